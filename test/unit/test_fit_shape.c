/* SPDX-License-Identifier: MIT
 *
 * Shapes from declarations: what is left out is what the engine is told for it, what is said in args decides, and what cannot be followed is refused by name.
 */
#include "fit_aid.h"

#include <engine/engine.h>

static const struct fleet_device cards[] = {{.name = "ROCm0", .memory_bytes = 32 * GIB}, {.name = "ROCm1", .memory_bytes = 16 * GIB}};
static const struct fleet_host host = {.name = "big", .devices = cards, .n_devices = 2};
static const struct fleet_model model = {.name = "m"};

struct said {
    struct fleet_service s;
    struct fit_shape shape;
    struct arena *a;
    struct err err;
};

static int read_args(struct said *x, const char *const *args, size_t n)
{
    x->s.args = args;
    x->s.n_args = n;
    return fit_shape_of(&x->s, x->a, &x->shape, &x->err);
}
#define ARGS(x, ...) read_args(x, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void begin(struct said *x)
{
    memset(x, 0, sizeof(*x));
    x->s = (struct fleet_service){.name = "medium", .host = &host, .model = &model, .shape = {.split_auto = true}};
    x->a = arena_new(MIB);
    assert_non_null(x->a);
}

static void end(struct said *x)
{
    x->a = arena_free(x->a);
}

static void take(struct said *x)
{
    if (fit_shape_of(&x->s, x->a, &x->shape, &x->err) < 0)
        fail_msg("%s", x->err.text);
}

/* The same as the engine's command line says. */
static void defaults(void **state)
{
    (void)state;
    struct said x;
    struct fleet_shape e;

    begin(&x);
    for (uint32_t slots = 0; slots < 3; slots++)
        for (uint32_t batch = 0; batch < 3000; batch += 1500)
            for (uint32_t ubatch = 0; ubatch < 5000; ubatch += 2500) {
                x.s.shape.slots = slots;
                x.s.shape.batch = batch;
                x.s.shape.ubatch = ubatch;
                take(&x);
                engine_shape(&x.s, &e);
                assert_int_equal(x.shape.slots, e.slots);
                assert_int_equal(x.shape.context, e.context);
                assert_int_equal(x.shape.batch, e.batch);
                assert_int_equal(x.shape.ubatch, e.ubatch);
                assert_int_equal(x.shape.gpu_layers, e.gpu_layers);
                assert_int_equal(x.shape.prompt_cache_bytes, e.prompt_cache_bytes);
                assert_int_equal(x.shape.draft_max, e.draft_max);
                assert_string_equal(x.shape.k_type->name, e.kv_k);
                assert_string_equal(x.shape.v_type->name, e.kv_v);
                assert_int_equal(x.shape.unified, e.unified_kv == FLEET_ON);
            }
    assert_int_equal(x.shape.checkpoints, ENGINE_CHECKPOINTS);
    /* shares are the cards' memory when none are declared */
    assert_int_equal(x.shape.n_split, 2);
    assert_true(x.shape.split[0] == 32768 && x.shape.split[1] == 16384);
    x.s.host = NULL;
    take(&x);
    assert_int_equal(x.shape.n_split, 0);
    assert_int_equal(x.shape.gpu_layers, 0);
    assert_int_equal(x.shape.draft_gpu_layers, 0);

    fit_shape_default(&x.shape);
    assert_int_equal(x.shape.context, 0);
    assert_int_equal(x.shape.gpu_layers, UINT32_MAX);
    assert_int_equal(x.shape.projector_device, -1);
    end(&x);
}

static void declared(void **state)
{
    (void)state;
    static const double split[] = {36, 29};
    static const char *const kinds[] = {"draft-dflash", "ngram-mod", "ngram-map-k4v"};
    struct said x;

    begin(&x);
    x.s.shape = (struct fleet_shape){.context = 262144, .slots = 2, .split = split, .n_split = 2, .kv_k = "q8_0", .kv_v = "q4_0", .flash_attention = FLEET_ON, .unified_kv = FLEET_ON, .prompt_cache_set = true,
                                     .prompt_cache_bytes = 100, .speculative = kinds, .n_speculative = 3, .draft_max = 7, .gpu_layers_set = true, .gpu_layers = 12};
    take(&x);
    assert_int_equal(x.shape.context, 262144);
    assert_true(x.shape.unified);
    assert_true(x.shape.split[0] == 36 && x.shape.split[1] == 29);
    assert_string_equal(x.shape.k_type->name, "q8_0");
    assert_string_equal(x.shape.v_type->name, "q4_0");
    assert_int_equal(x.shape.flash, FLEET_ON);
    assert_int_equal(x.shape.prompt_cache_bytes, MIB); /* less than one would turn it off */
    assert_int_equal(x.shape.spec, FIT_SPEC_DFLASH | FIT_SPEC_NGRAM_MOD | FIT_SPEC_NGRAM_MAP);
    assert_int_equal(x.shape.draft_max, 7);
    assert_int_equal(x.shape.gpu_layers, 12);
    x.s.shape.kv_k = "q9_9";
    assert_int_equal(fit_shape_of(&x.s, x.a, &x.shape, &x.err), -EINVAL);
    assert_true(strstr(x.err.text, "q9_9") != NULL);
    x.s.shape.kv_k = "f16";
    x.s.shape.speculative = (const char *const[]){"draft-nope"};
    x.s.shape.n_speculative = 1;
    assert_int_equal(fit_shape_of(&x.s, x.a, &x.shape, &x.err), -EINVAL);
    end(&x);
}

static void flags(void **state)
{
    (void)state;
    struct said x;

    begin(&x);
    assert_int_equal(ARGS(&x, "-ctxcp", "32", "-nkvo", "--swa-full", "-nr", "--no-host", "-lm", "none", "--reasoning-format", "deepseek", "--embedding", "--lora", "x.gguf", "-bs"), 0);
    assert_int_equal(x.shape.checkpoints, 32);
    assert_true(x.shape.kv_on_cpu && x.shape.swa_full && x.shape.no_repack && x.shape.no_host && x.shape.no_mmap && x.shape.embedding && x.shape.adapters && x.shape.sampling);
    assert_int_equal(ARGS(&x, "-nkvo", "--kv-offload", "-nr", "--repack", "-lm", "mmap"), 0);
    assert_true(!x.shape.kv_on_cpu && !x.shape.no_repack && !x.shape.no_mmap);
    assert_int_equal(ARGS(&x, "-lm", "mmap+mlock", "-sm", "none", "-mg", "1", "--moe-cache-mib", "512", "-ncmoe", "7"), 0);
    assert_true(x.shape.no_mmap);
    assert_int_equal(x.shape.split_mode, FIT_SPLIT_NONE);
    assert_int_equal(x.shape.main_gpu, 1);
    assert_int_equal(x.shape.moe_cache_bytes, 512 * MIB);
    assert_int_equal(x.shape.cpu_moe, 7);
    assert_int_equal(ARGS(&x, "-cmoe", "-cmoed", "-ngld", "3", "-devd", "ROCm1", "-ctkd", "q8_0", "-ctvd", "q4_0", "--spec-draft-n-ubatch", "128", "--spec-draft-p-min", "0.25", "--no-spec-draft-backend-sampling"), 0);
    assert_int_equal(x.shape.cpu_moe, UINT32_MAX);
    assert_int_equal(x.shape.draft_cpu_moe, UINT32_MAX);
    assert_int_equal(x.shape.draft_gpu_layers, 3);
    assert_int_equal(x.shape.n_draft_devices, 1);
    assert_int_equal(x.shape.draft_devices[0], 1);
    assert_string_equal(x.shape.draft_k_type->name, "q8_0");
    assert_string_equal(x.shape.draft_v_type->name, "q4_0");
    assert_int_equal(x.shape.draft_ubatch, 128);
    assert_true(x.shape.draft_p_min == 0.25 && x.shape.no_draft_sampling);
    assert_int_equal(ARGS(&x, "-ngld", "all", "-devd", "none", "-mmdev", "ROCm1"), 0);
    assert_int_equal(x.shape.draft_gpu_layers, UINT32_MAX);
    assert_true(x.shape.draft_on_cpu);
    assert_int_equal(x.shape.projector_device, 1);
    assert_int_equal(ARGS(&x, "-mmdev", "none"), 0);
    assert_int_equal(x.shape.projector_device, -2);
    assert_int_equal(ARGS(&x, "--no-mmproj-offload", "-dev", "ROCm0,ROCm1"), 0);
    assert_int_equal(x.shape.projector_device, -2);
    /* what stands behind a flag is its value, whatever it looks like */
    assert_int_equal(ARGS(&x, "--lora", "-nkvo"), 0);
    assert_false(x.shape.kv_on_cpu);
    end(&x);
}

static void overrides(void **state)
{
    (void)state;
    struct said x;

    begin(&x);
    assert_int_equal(ARGS(&x, "-ot", "a=CPU,b.*=ROCm1", "-ot", "c=CPU=x", "-otd", "d=CPU"), 0);
    assert_int_equal(x.shape.n_overrides, 3);
    assert_string_equal(x.shape.overrides[1].pattern, "b.*");
    assert_string_equal(x.shape.overrides[1].buffer, "ROCm1");
    assert_string_equal(x.shape.overrides[2].buffer, "CPU=x"); /* the first '=' parts them */
    assert_int_equal(x.shape.n_draft_overrides, 1);
    assert_string_equal(x.shape.draft_overrides[0].pattern, "d");
    /* experts that were put on the CPU before stay there */
    assert_int_equal(ARGS(&x, "-ncmoe", "2", "-ot", "exps=ROCm1"), 0);
    assert_int_equal(x.shape.cpu_moe, 0);
    assert_int_equal(x.shape.n_overrides, 2);
    assert_string_equal(x.shape.overrides[0].pattern, "blk\\.(0|1)\\.ffn_(up|down|gate|gate_up)_(ch|)exps");
    assert_int_equal(ARGS(&x, "-ot", "exps=ROCm1", "-ncmoe", "2"), 0);
    assert_int_equal(x.shape.cpu_moe, 2);
    assert_int_equal(ARGS(&x, "-ncffn", "3"), 0);
    assert_string_equal(x.shape.overrides[0].pattern, "blk\\.(0|1|2)\\.ffn_(up|down|gate)\\.");
    /* 512 layers of it are still a pattern that can be matched */
    assert_int_equal(ARGS(&x, "-ncffn", "512"), 0);
    struct model *m = made_llama_8b();
    struct rig r;
    rig_init(&r, m, 0);
    r.shape.context = 256;
    r.shape.overrides[0] = x.shape.overrides[0];
    r.shape.n_overrides = 1;
    rig_predict(&r);
    assert_null(note_of(&r.r, "override-unmatched"));
    rig_done(&r);
    m = model_free(m);
    end(&x);
}

static void refused(void **state)
{
    (void)state;
    struct said x;

    begin(&x);
    static const struct {
        const char *args[2];
        const char *says;
    } cases[] = {
        {{"-ctxcp", "many"}, "not a number"},   {{"-ctxcp", NULL}, "missing"},        {{"-ot", "abc"}, "pattern=buffer"},      {{"-ot", "a=CPU,b{1"}, "pattern=buffer"}, {{"-sm", "diagonal"}, "none, layer"},
        {{"-dev", "ROCm1,ROCm0"}, "order"},     {{"-dev", "none"}, "gpu-layers"},     {{"-devd", "CUDA9"}, "no device"},       {{"-mmdev", "CUDA9"}, "no device"},       {{"--override-kv", "a=int:1"}, "header"},
        {{"-ctkd", "q9"}, "no tensor type"},    {{"--spec-draft-p-min", "2"}, "from 0 to 1"}, {{"--spec-draft-p-min", "nan"}, "from 0 to 1"}, {{"-ncmoe", "-1"}, "not a number"}, {{"--moe-cache-mib", "99999999999999999999"}, "not a number"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        x.shape.context = 4711;
        assert_int_equal(read_args(&x, cases[i].args, cases[i].args[1] ? 2 : 1), -EINVAL);
        if (!strstr(x.err.text, cases[i].says) || !strstr(x.err.text, "medium"))
            fail_msg("'%s'", x.err.text);
        assert_int_equal(x.shape.context, 4711); /* untouched */
    }
    /* one more than can be held */
    struct buf list = BUF_INIT(4096);
    for (int i = 0; i <= FIT_OVERRIDES_MAX; i++)
        buf_add_c(&list, i ? ",a=CPU" : "a=CPU");
    assert_int_equal(ARGS(&x, "-ot", list.ptr), -EINVAL);
    buf_release(&list);
    /* memory that ends */
    struct arena *kept = x.a;
    x.a = arena_new(16);
    assert_int_equal(ARGS(&x, "-ot", "abcdefghijklmnop=CPU"), -ENOMEM);
    x.a = arena_free(x.a);
    x.a = kept;
    end(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(defaults), cmocka_unit_test(declared), cmocka_unit_test(flags), cmocka_unit_test(overrides), cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
