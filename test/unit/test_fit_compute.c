/* SPDX-License-Identifier: MIT
 *
 * Compute and output buffers: the figures that the engine reported for graphs that were measured, the allocator's own rules, and what a measurement does.
 */
#include "fit_aid.h"

#include "../../src/fit/fit_int.h"

static void the_allocator(void **state)
{
    (void)state;
    struct fit_heap h;

    fit_heap_init(&h);
    struct fit_block a = fit_heap_take(&h, 100), b = fit_heap_take(&h, 1), c = fit_heap_take(&h, 64), d = fit_heap_take(&h, 32);
    assert_int_equal(a.size, 128); /* multiples of 32 */
    assert_int_equal(b.off, 128);
    assert_int_equal(h.peak, 256);
    fit_heap_give(&h, a);
    fit_heap_give(&h, c);
    /* the smallest hole that fits, not the first */
    assert_int_equal(fit_heap_take(&h, 64).off, 160);
    assert_int_equal(fit_heap_take(&h, 96).off, 0);
    /* neighbours join on both sides */
    fit_heap_init(&h);
    a = fit_heap_take(&h, 32);
    b = fit_heap_take(&h, 32);
    c = fit_heap_take(&h, 32);
    d = fit_heap_take(&h, 32);
    fit_heap_give(&h, a);
    fit_heap_give(&h, c);
    fit_heap_give(&h, b);
    assert_int_equal(h.n, 2);
    assert_int_equal(fit_heap_take(&h, 96).off, 0);
    fit_heap_give(&h, d);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.peak, 128);
    /* nothing is nothing; the largest thing ends at the end */
    fit_heap_give(&h, (struct fit_block){0, 0});
    assert_int_equal(fit_heap_take(&h, UINT64_MAX).off, 96);
    assert_int_equal(h.peak, FIT_BYTES_MAX);
    assert_int_equal(fit_heap_take(&h, 32).size, 0);
    /* more holes than are remembered */
    struct fit_block all[4 * FIT_HOLES];
    fit_heap_init(&h);
    for (size_t i = 0; i < 4 * FIT_HOLES; i++)
        all[i] = fit_heap_take(&h, 32);
    for (size_t i = 0; i < 4 * FIT_HOLES; i += 2)
        fit_heap_give(&h, all[i]);
    assert_int_equal(h.n, FIT_HOLES);
    assert_int_equal(fit_heap_take(&h, 32).size, 32);
}

static void dense(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct rig x;

    rig_init(&x, m, 2);
    x.in.n_devices = 1;
    x.shape.context = 8192;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 130037792);
    assert_true(x.r.use[0].terms[FIT_COMPUTE].low < 130037792 && x.r.use[0].terms[FIT_COMPUTE].high > 130037792);
    assert_int_equal(x.r.use[0].terms[FIT_COMPUTE].known, FIT_ESTIMATE);
    /* a tool reserves logits for a whole ubatch */
    x.in.program = FIT_TOOL;
    rig_predict(&x);
    assert_int_equal(x.r.n_outputs, 2048);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 304627712);
    /* as many slots as wanted cost what one of their length does */
    x.in.program = FIT_SERVER;
    x.shape.slots = 4;
    x.shape.context = 4 * 8192;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 130037792);
    /* two devices: inputs four times */
    x.shape.slots = 1;
    x.shape.context = 8192;
    x.in.n_devices = 2;
    rig_split(&x, 1, 1);
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 255909888);
    /* with half the window in the mask twice: 2 bytes a cell and token, in each copy */
    x.shape.context = 16384;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 255909888 + 8ull * 8192 * 512);
    /* scores without flash attention */
    x.in.n_devices = 1;
    x.shape.context = 8192;
    x.shape.flash = FLEET_OFF;
    rig_predict(&x);
    assert_true(term(&x, 0, FIT_COMPUTE) > 4ull * 32 * 8192 * 512);
    rig_done(&x);
    m = model_free(m);
}

/* The f16 llama of the engine's own test program, on two workers; output of two slots. */
static void fixture(void **state)
{
    (void)state;
    struct made f = made_sized("llama", 6, 512, 8, 2, 64, 1024, 512, 4096);
    made_ends(&f, 512, 512);
    for (uint32_t il = 0; il < 6; il++) {
        made_attention(&f, il, 512, 512, 128, F16, F16);
        made_ffn(&f, il, 512, 1024, F16, F16);
    }
    struct model *m = made_load(&f);
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 4096;
    x.shape.slots = 2;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 30466048);
    assert_int_equal(term(&x, 1, FIT_COMPUTE), 21012608);
    assert_int_equal(term(&x, 2, FIT_COMPUTE), 18948224);
    assert_int_equal(model_bytes(&x, 0), 17842176);
    assert_int_equal(model_bytes(&x, 1), 9447424);
    assert_int_equal(context_bytes(&x, 0), 8388608);
    assert_int_equal(context_bytes(&x, 1), 4194304);
    assert_int_equal(term(&x, 2, FIT_OUTPUT), 4096);
    x.in.program = FIT_TOOL;
    x.shape.batch = x.shape.ubatch = 512;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 30466048);
    rig_done(&x);
    m = model_free(m);
}

/* An encoder on one device: tokens see each other alone, whatever the cache holds, and no logits come out. */
static void encoder(void **state)
{
    (void)state;
    struct made f = made_sized("llama-embed", 2, 256, 2, 2, 128, 384, 128, 256);
    made_ends(&f, 256, 128);
    for (uint32_t il = 0; il < 2; il++) {
        made_attention(&f, il, 256, 256, 256, F32, F32);
        made_ffn(&f, il, 256, 384, F32, F32);
    }
    struct model *m = made_load(&f);
    struct rig x;

    rig_init(&x, m, 1);
    x.in.program = FIT_TOOL;
    x.shape.context = 4096;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 4988928);
    assert_int_equal(term(&x, 1, FIT_COMPUTE), 2633728);
    x.shape.context = 65536;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 4988928);
    rig_done(&x);
    m = model_free(m);
}

static void experts(void **state)
{
    (void)state;
    struct model *m = made_qwen3_30b();
    struct rig x;

    rig_init(&x, m, 1);
    x.shape.context = 8192;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 96483360);
    /* on the host: the products are there, their sum is here */
    const uint64_t before = term(&x, 1, FIT_COMPUTE);
    x.shape.cpu_moe = UINT32_MAX;
    rig_predict(&x);
    assert_true(term(&x, 0, FIT_COMPUTE) < 96483360);
    assert_int_equal(term(&x, 1, FIT_COMPUTE) - before, 62914560);
    /* a GPU copies what it multiplies with from there */
    const uint64_t rpc = term(&x, 0, FIT_COMPUTE);
    x.devices[0].backend = FIT_CUDA;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_COMPUTE) - rpc, 768ull * 2048 * 128 / 256 * 210);
    rig_done(&x);
    m = model_free(m);
}

static void measured(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    const struct fit_coef coef[2] = {{.a = 1000, .b = 100, .c = 2, .d = 8, .ub_min = 128, .ub_max = 512, .kv_min = 2048, .kv_max = 32768, .worst_error = 0.01}, {.a = -1, .ub_max = UINT32_MAX, .kv_max = UINT32_MAX}};
    const int64_t extra[2] = {3 * (int64_t)MIB, 0};
    struct fit_calibration cal = {.compute = coef, .source = "measured", .n = 2};
    struct rig x;

    rig_init(&x, m, 1);
    x.shape.context = 8192;
    x.in.calibration = &cal;
    rig_predict(&x);
    const uint64_t want = 1000 + 100 * 512 + 2ull * 512 * 8192 + 8;
    assert_int_equal(term(&x, 0, FIT_COMPUTE), want);
    assert_int_equal(x.r.use[0].terms[FIT_COMPUTE].known, FIT_MEASURED);
    assert_int_equal(x.r.use[0].terms[FIT_COMPUTE].high, want + want / 100);
    assert_int_equal(x.r.use[1].terms[FIT_COMPUTE].known, FIT_ESTIMATE); /* a figure below zero is none */
    /* outside of what was measured it is not believed */
    x.shape.ubatch = 1024;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].terms[FIT_COMPUTE].known, FIT_ESTIMATE);
    x.shape.ubatch = 512;
    x.shape.context = 65536;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].terms[FIT_COMPUTE].known, FIT_ESTIMATE);

    /* a reading: more is a term of its own, less is taken off compute */
    cal = (struct fit_calibration){.extra_bytes = extra, .n = 2};
    x.shape.context = 8192;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_EXTRA), 3 * MIB);
    const int64_t less[2] = {-(int64_t)MIB, INT64_MIN};
    cal.extra_bytes = less;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_EXTRA), 0);
    assert_int_equal(term(&x, 0, FIT_COMPUTE), 130037792 - MIB);
    assert_int_equal(term(&x, 1, FIT_COMPUTE), 0);
    /* without one a card's driver is a guess, a worker's is none */
    x.in.calibration = NULL;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_EXTRA), 0);
    x.devices[0].backend = FIT_CUDA;
    rig_predict(&x);
    assert_true(term(&x, 0, FIT_EXTRA) > 0);
    assert_int_equal(x.r.use[0].terms[FIT_EXTRA].known, FIT_ESTIMATE);
    rig_done(&x);
    m = model_free(m);
}

/* What a context gives out: logits of all slots, and later what its drafter reads. */
static void outputs(void **state)
{
    (void)state;
    struct model *m = made_27b(), *drafter = made_drafter(2048, false, false);
    const uint64_t v = 151040, e = 5120;
    struct rig x;

    rig_init(&x, m, 1);
    x.shape.context = 8192;
    x.shape.slots = 2;
    rig_predict(&x);
    assert_int_equal(term(&x, 1, FIT_OUTPUT), 4 * v * 2);
    assert_int_equal(x.r.use[1].terms[FIT_OUTPUT].high, 4 * v * 2);
    x.shape.spec = FIT_SPEC_MTP;
    rig_predict(&x);
    assert_int_equal(x.r.n_outputs, 8);
    assert_int_equal(term(&x, 1, FIT_OUTPUT), 4 * v * 2);
    assert_int_equal(x.r.use[1].terms[FIT_OUTPUT].high, 4 * v * 8 + 4 * e * 2048);
    assert_int_equal(term(&x, 1, FIT_DRAFT_OUTPUT), 4 * v * 2 + 4 * e * 2 + 4 * (3 * v + 1) * 2);
    x.shape.no_draft_sampling = true;
    rig_predict(&x);
    assert_int_equal(term(&x, 1, FIT_DRAFT_OUTPUT), 4 * v * 2 + 4 * e * 2);
    x.in.drafter = drafter;
    x.shape.spec = FIT_SPEC_DFLASH;
    rig_predict(&x);
    assert_int_equal(x.r.use[1].terms[FIT_OUTPUT].high, 4 * v * 8 + 5 * 4 * e * 2048);
    x.shape.spec = FIT_SPEC_NGRAM_MOD;
    x.in.drafter = NULL;
    rig_predict(&x);
    assert_int_equal(x.r.n_outputs, 130);
    assert_int_equal(term(&x, 1, FIT_TABLES), 16 * MIB);
    x.shape.spec = FIT_SPEC_NGRAM_SIMPLE;
    rig_predict(&x);
    assert_int_equal(x.r.n_outputs, 98);
    /* embeddings: all rows of a batch, which is then a ubatch */
    x.shape.spec = 0;
    x.shape.embedding = true;
    rig_predict(&x);
    assert_int_equal(x.r.n_batch, 512);
    assert_int_equal(x.r.n_outputs, 512);
    rig_done(&x);
    m = model_free(m);
    drafter = model_free(drafter);
}

static uint64_t saved(const struct model *m, uint64_t tokens, uint32_t slots)
{
    uint64_t target = 0, draft = 1;
    struct rig x;

    rig_init(&x, m, 0);
    x.shape.context = 2048;
    x.shape.slots = slots;
    assert_int_equal(fit_saved_state(&x.in, tokens, &target, &draft, &x.err), 0);
    assert_int_equal(draft, 0);
    rig_done(&x);
    return target;
}

/* What the engine wrote for 100 tokens of one of two slots, without the file's own headers. */
static void states(void **state)
{
    (void)state;
    struct made f = made_sized("llama", 2, 256, 2, 2, 128, 384, 128, 256);
    made_ends(&f, 256, 128);
    struct model *m = made_load(&f);
    assert_int_equal(saved(m, 100, 2), 206076);
    assert_int_equal(saved(m, 100, 1), 206072);
    m = model_free(m);

    /* two caches; of the windowed one what the window holds */
    f = made_sized("gemma3", 2, 256, 2, 2, 128, 384, 128, 256);
    made_key(&f, "attention.sliding_window", 32);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0);
    made_ends(&f, 256, 128);
    m = made_load(&f);
    assert_int_equal(saved(m, 100, 2), 136856);
    struct rig x;
    rig_init(&x, m, 0);
    x.shape.context = 2048;
    x.shape.slots = 2;
    x.shape.checkpoints = 1;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_CHECKPOINTS), 2 * 33204);
    assert_int_equal(x.r.use[0].terms[FIT_CHECKPOINTS].low, 0);
    x.shape.swa_full = true; /* can then be cut anywhere */
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_CHECKPOINTS), 0);
    rig_done(&x);
    m = model_free(m);

    /* compressed caches and their compressors, one layer of each kind */
    f = made_sized("deepseek4", 4, 512, 8, 1, 64, 1024, 128, 256);
    made_key(&f, "attention.sliding_window", 32);
    made_key(&f, "attention.indexer.head_count", 1);
    made_key(&f, "attention.indexer.key_length", 128);
    made_key(&f, "attention.indexer.top_k", 8);
    made_key(&f, "expert_count", 2);
    made_key(&f, "expert_used_count", 2);
    MADE_KEYS(&f, "attention.compress_ratios", 0, 0, 4, 128);
    made_ends(&f, 512, 128);
    m = made_load(&f);
    assert_int_equal(saved(m, 100, 2), 118192);
    assert_int_equal(saved(m, 128, 2), 121344);
    assert_int_equal(saved(m, 4, 2), 93152);
    m = model_free(m);
}

static void projector(void **state)
{
    (void)state;
    struct model *m = made_llama_8b();
    struct made f = made_bare("clip");
    gguf_put_str(f.w, "clip.projector_type", STR("mlp"));
    gguf_put_bool(f.w, "clip.has_vision_encoder", true);
    made_tensor(&f, "v.patch_embd.weight", F16, 64, 100, 0);
    made_tensor(&f, "mm.0.bias", F32, 3, 0, 0);
    struct model *p = made_load(&f);
    struct rig x;

    rig_init(&x, m, 2);
    rig_split(&x, 1, 1);
    x.shape.context = 4096;
    x.in.projector = p;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_PROJECTOR), 12800 + 32);
    assert_int_equal(term(&x, 1, FIT_PROJECTOR), 0);
    assert_int_equal(x.r.use[0].terms[FIT_PROJECTOR_COMPUTE].known, FIT_ESTIMATE);
    x.shape.projector_device = 1;
    rig_predict(&x);
    assert_int_equal(term(&x, 1, FIT_PROJECTOR), 12800 + 32);
    x.shape.projector_device = -2;
    rig_predict(&x);
    assert_int_equal(term(&x, 2, FIT_PROJECTOR), 12800 + 32);
    rig_done(&x);
    m = model_free(m);
    p = model_free(p);
}

/* A device without layers computes with what is moved to it: the engine took 2,105,344 bytes for the rows of a token_embd that is 256 wide. */
static void moved_to_an_idle_device(void **state)
{
    (void)state;
    struct made f = made_sized("llama", 2, 256, 4, 4, 64, 384, 128, 4096);
    made_tensor(&f, "token_embd.weight", F32, 256, 128, 0);
    made_tensor(&f, "output_norm.weight", F32, 256, 0, 0);
    made_tensor(&f, "output.weight", F32, 256, 128, 0);
    for (uint32_t il = 0; il < 2; il++) {
        made_attention(&f, il, 256, 256, 256, F32, F32);
        made_ffn(&f, il, 256, 384, F32, F32);
    }
    struct model *m = made_load(&f);
    struct rig x;
    rig_init(&x, m, 2);
    x.in.program = FIT_TOOL;
    x.shape.context = 2048;
    rig_split(&x, 1, 0);
    rig_predict(&x);
    assert_int_equal(x.r.use[1].terms[FIT_COMPUTE].high, 0);
    assert_int_equal(x.r.use[1].terms[FIT_COMPUTE].known, FIT_EXACT);
    x.shape.overrides[0] = (struct fit_override){"token_embd", "RPC1"};
    x.shape.n_overrides = 1;
    rig_predict(&x);
    const struct fit_amount *a = &x.r.use[1].terms[FIT_COMPUTE];
    assert_int_equal(a->known, FIT_ESTIMATE);
    assert_int_equal(a->bytes, 4 * 512 * 4 * 256);
    assert_true(a->low > 0 && a->low < 2105344 && a->high > 2105344 && a->high < 2 * 2105344);
    /* of several layers one at a time */
    x.shape.overrides[0].pattern = "ffn_(up|down)";
    rig_predict(&x);
    assert_int_equal(a->bytes, 4 * 512 * 2 * (256 + 384));
    rig_done(&x);
    m = model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_allocator), cmocka_unit_test(dense), cmocka_unit_test(fixture), cmocka_unit_test(encoder), cmocka_unit_test(experts), cmocka_unit_test(moved_to_an_idle_device), cmocka_unit_test(measured), cmocka_unit_test(outputs), cmocka_unit_test(states), cmocka_unit_test(projector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
