/* SPDX-License-Identifier: MIT
 *
 * engine: shape -> argument list, for each kind; what a shape that leaves numbers out gets; what is refused and how that is said.
 */
#include <engine/engine.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct fleet_device two[] = {{.name = "ROCm0", .memory_bytes = 34208743424}, {.name = "ROCm1", .memory_bytes = 17179869184}};
static const struct fleet_host bare = {.name = "here"};
static const struct fleet_host cards = {.name = "big", .devices = two, .n_devices = 2, .floor_bytes = 1ULL << 30};
static const struct fleet_host card = {.name = "one", .devices = two, .n_devices = 1};
static const struct fleet_runtime llama = {.name = "llama", .engine = "llama.cpp"};
static const struct fleet_runtime vllm = {.name = "vllm", .engine = "vllm"};
static const struct fleet_runtime generic = {.name = "own", .engine = "generic"};
static const struct engine_paths only_weights = {.weights = "/m/a.gguf"};

static struct fleet_service plain(const struct fleet_host *host, const struct fleet_runtime *runtime)
{
    return (struct fleet_service){.name = "small", .host = host, .runtime = runtime, .port = 7770, .bind = "127.0.0.1", .shape = {.split_auto = true, .slots = 1}};
}

/* The list as one line, in a buffer of the test's; a word with a blank is in quotes. */
static struct buf line;
static const char *argv_of(const struct fleet_service *s, const struct engine_paths *p)
{
    struct arena *a = arena_new(1 << 20);
    const char *const *v;
    size_t n;
    struct err err;
    assert_non_null(a);
    int r = engine_argv(s, p, a, &v, &n, &err);
    if (r < 0)
        fail_msg("%s", err.text);
    buf_release(&line);
    line = BUF_INIT(1 << 16);
    for (size_t i = 0; i < n; i++)
        buf_addf(&line, strchr(v[i], ' ') ? "%s'%s'" : "%s%s", i ? " " : "", v[i]);
    assert_null(v[n]);
    assert_int_equal(buf_status(&line), 0);
    arena_free(a);
    return line.ptr;
}

static void refused(const struct fleet_service *s, const struct engine_paths *p, const char *text)
{
    struct arena *a = arena_new(1 << 20);
    const char *const *v = NULL;
    size_t n;
    struct err err;
    assert_int_equal(engine_argv(s, p, a, &v, &n, &err), -EINVAL);
    assert_string_equal(err.text, text);
    assert_null(v);
    arena_free(a);
}

static void kinds_are_a_table(void **state)
{
    (void)state;
    const struct fleet_options known = engine_fleet_options();
    const char *const *names = known.engines;
    assert_int_equal(known.n_engines, 3);
    for (size_t i = 0; i < known.n_engines; i++) {
        assert_non_null(engine_find(names[i]));
        assert_non_null(engine_env(engine_find(names[i])));
    }
    assert_null(engine_find("llama"));
    assert_null(engine_find(""));
    assert_null(engine_find(NULL));
    assert_string_equal(engine_program(engine_find("llama.cpp")), "llama-server");
    assert_string_equal(engine_program(engine_find("vllm")), "vllm");
    assert_null(engine_program(engine_find("generic")));
}

static void llama_defaults_are_said(void **state)
{
    (void)state;
    struct fleet_service s = plain(&bare, &llama);
    assert_string_equal(argv_of(&s, &only_weights),
                        "-m /m/a.gguf --alias small --host 127.0.0.1 --port 7770 -c 4096 -np 1 -ngl 0 -b 2048 -ub 512 -ctk f16 -ctv f16 -fa auto --no-kv-unified -cram 512 "
                        "-ctxcp 8 -fit off --split-mode layer --kv-offload --repack --cors-origins localhost -lv 4 --log-colors off --sse-ping-interval 1 --metrics --slots "
                        "--no-ui --offline -dev none");
}

static void llama_everything(void **state)
{
    (void)state;
    struct fleet_service s = plain(&cards, &llama);
    const double split[] = {36, 29.5};
    const char *spec[] = {"draft-dflash", "ngram-mod"};
    const char *args[] = {"--reasoning-format", "deepseek", "--rope-scaling", "a b"};
    s.shape = (struct fleet_shape){.context = 262144, .slots = 2, .split = split, .n_split = 2, .batch = 4096, .ubatch = 1024, .kv_k = "q8_0", .kv_v = "q4_0",
                                   .flash_attention = FLEET_ON, .unified_kv = FLEET_ON, .prompt_cache_set = true, .prompt_cache_bytes = 16ULL << 30,
                                   .speculative = spec, .n_speculative = 2, .draft_max = 7, .threads = 6};
    s.args = args;
    s.n_args = 4;
    struct engine_paths p = {.weights = "/m/a-00001-of-00003.gguf", .projector = "/m/mm.gguf", .drafter = "/m/d.gguf", .template_file = "/t/x.jinja"};
    assert_string_equal(argv_of(&s, &p),
                        "-m /m/a-00001-of-00003.gguf --alias small --host 127.0.0.1 --port 7770 -c 262144 -np 2 -ngl all -ts 36,29.5 -b 4096 -ub 1024 -ctk q8_0 -ctv q4_0 -fa on "
                        "--kv-unified -cram 16384 -ctxcp 8 -fit off --split-mode layer --kv-offload --repack --cors-origins localhost -t 6 --mmproj /m/mm.gguf --mmproj-offload "
                        "--spec-type draft-dflash,ngram-mod --spec-draft-n-max 7 --cache-type-k-draft f16 --cache-type-v-draft f16 -md /m/d.gguf -ngld all "
                        "--jinja --chat-template-file /t/x.jinja -lv 4 --log-colors off --sse-ping-interval 1 --metrics --slots --no-ui --offline "
                        "--reasoning-format deepseek --rope-scaling 'a b' -dev ROCm0,ROCm1");
}

static void llama_devices(void **state)
{
    (void)state;
    struct fleet_service s = plain(&cards, &llama);
    /* several devices without a split: shares by memory, in MiB, so that no two starts differ */
    assert_non_null(strstr(argv_of(&s, &only_weights), " -ngl all -ts 32624,16384 "));
    s.host = &card;
    assert_null(strstr(argv_of(&s, &only_weights), "-ts"));
    assert_non_null(strstr(line.ptr, " -ngl all -b "));
    assert_non_null(strstr(line.ptr, " -dev ROCm0"));
    s.shape.gpu_layers_set = true;
    s.shape.gpu_layers = 12;
    assert_non_null(strstr(argv_of(&s, &only_weights), " -ngl 12 "));
    s.shape.gpu_layers = 0;
    assert_non_null(strstr(argv_of(&s, &only_weights), " -ngl 0 "));
    assert_non_null(strstr(line.ptr, " -dev none"));
    /* devices that the host does not declare: the user's own words */
    s.host = &bare;
    s.shape.gpu_layers = 99;
    const char *args[] = {"--rpc", "127.0.0.1:50052", "-dev", "RPC0"};
    s.args = args;
    s.n_args = 4;
    assert_non_null(strstr(argv_of(&s, &only_weights), " --offline --rpc 127.0.0.1:50052 -dev RPC0"));
    assert_null(strstr(line.ptr, "-dev none"));
    s.host = &card;
    assert_null(strstr(argv_of(&s, &only_weights), "-dev ROCm0"));
}

static void llama_args_replace_what_is_only_said(void **state)
{
    (void)state;
    struct fleet_service s = plain(&card, &llama);
    const char *spec[] = {"draft-mtp"};
    const char *args[] = {"--no-repack", "-ctxcp", "32", "-sm", "row", "-nkvo", "--ui", "-ctkd", "q8_0", "-ngld", "3", "--jinja"};
    s.shape.speculative = spec;
    s.shape.n_speculative = 1;
    s.args = args;
    s.n_args = BASE_COUNT(args);
    struct engine_paths p = {.weights = "/m/a.gguf", .drafter = "/m/d.gguf", .template_file = "/t"};
    const char *v = argv_of(&s, &p);
    static const char *const once[] = {"--repack", "-ctxcp", "--split-mode", "--kv-offload", "--no-ui", "--cache-type-k-draft", "-ngld", "--jinja"};
    static const int count[] = {0, 1, 0, 0, 0, 0, 1, 1};
    for (size_t i = 0; i < BASE_COUNT(once); i++) {
        int n = 0;
        struct str rest = str_of(v);
        while (rest.ptr)
            n += str_eq_c(str_split(&rest, ' '), once[i]);
        if (n != count[i])
            fail_msg("%s %d times", once[i], n);
    }
    assert_non_null(strstr(v, "--cache-type-v-draft f16"));
}

static void llama_prompt_cache_is_in_mib(void **state)
{
    (void)state;
    struct fleet_service s = plain(&bare, &llama);
    s.shape.prompt_cache_set = true;
    assert_non_null(strstr(argv_of(&s, &only_weights), " -cram 0 "));
    s.shape.prompt_cache_bytes = 1; /* on, however little: 0 would be off */
    assert_non_null(strstr(argv_of(&s, &only_weights), " -cram 1 "));
    s.shape.prompt_cache_bytes = (3ULL << 20) + 5;
    assert_non_null(strstr(argv_of(&s, &only_weights), " -cram 3 "));
}

static void llama_drafter_only_when_used(void **state)
{
    (void)state;
    struct fleet_service s = plain(&bare, &llama);
    struct engine_paths p = {.weights = "/m/a.gguf", .drafter = "/m/d.gguf"};
    assert_null(strstr(argv_of(&s, &p), "-md"));
    const char *ngram[] = {"ngram-mod"};
    s.shape.speculative = ngram;
    s.shape.n_speculative = 1;
    assert_null(strstr(argv_of(&s, &p), "-md"));
    assert_non_null(strstr(line.ptr, "--spec-type ngram-mod -lv"));
    const char *simple[] = {"draft-simple"};
    s.shape.speculative = simple;
    assert_non_null(strstr(argv_of(&s, &p), "--spec-type draft-simple --spec-draft-n-max 3 --cache-type-k-draft f16 --cache-type-v-draft f16 -md /m/d.gguf -ngld 0 "));
    const char *mtp[] = {"draft-mtp"};
    s.shape.speculative = mtp;
    assert_null(strstr(argv_of(&s, &only_weights), "-md"));
}

static void llama_batch_follows_ubatch(void **state)
{
    (void)state;
    struct fleet_service s = plain(&bare, &llama);
    s.shape.ubatch = 4096;
    assert_non_null(strstr(argv_of(&s, &only_weights), " -b 4096 -ub 4096 "));
    s.shape.ubatch = 0;
    s.shape.batch = 128;
    assert_non_null(strstr(argv_of(&s, &only_weights), " -b 128 -ub 128 "));
}

static void llama_refuses(void **state)
{
    (void)state;
    struct fleet_service s = plain(&cards, &llama);
    struct engine_paths none = {0};
    refused(&s, &none, "service 'small' has no model, llama.cpp needs one");

    s.shape.context = 3;
    s.shape.slots = 4;
    refused(&s, &only_weights, "context: 3 tokens for 4 slots, give each slot at least one");
    s.shape.context = 0;
    s.shape.slots = 257;
    refused(&s, &only_weights, "slots: 257, llama.cpp has at most 256");
    s.shape.slots = 1;
    s.shape.context = UINT32_MAX;
    refused(&s, &only_weights, "context: or batch: is over 2147483647");
    s.shape.context = 0;

    s.shape.batch = 256;
    s.shape.ubatch = 512;
    refused(&s, &only_weights, "ubatch: 512 is over batch: 256, llama.cpp would lower it in silence");
    s.shape.batch = s.shape.ubatch = 0;

    s.shape.kv_k = "q8";
    refused(&s, &only_weights, "kv: k: 'q8' is unknown to llama.cpp, it knows f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1");
    s.shape.kv_k = "Q8-0";
    refused(&s, &only_weights, "kv: k: 'Q8-0' is unknown to llama.cpp, did you mean 'q8_0'");
    s.shape.kv_k = NULL;
    s.shape.kv_v = "q8_0";
    s.shape.flash_attention = FLEET_OFF;
    refused(&s, &only_weights, "kv: v 'q8_0' needs flash attention, set flash-attention: on");
    s.shape.kv_v = "bf16";
    argv_of(&s, &only_weights);
    s.shape.kv_v = NULL;
    s.shape.flash_attention = FLEET_AUTO;

    const double three[] = {1, 2, 3}, zero[] = {0, 0};
    s.shape.split_auto = false;
    s.shape.split = three;
    s.shape.n_split = 3;
    refused(&s, &only_weights, "split: 3 shares for 2 devices, give one for each");
    s.shape.split = zero;
    s.shape.n_split = 2;
    refused(&s, &only_weights, "split: all shares are 0");
    s.host = &bare;
    refused(&s, &only_weights, "split: there is nothing to split, set gpu-layers: or declare the host's devices");
    s.shape.split_auto = true;

    const char *odd[] = {"draft-simpel"}, *two_drafts[] = {"draft-mtp", "ngram-mod", "draft-simple"}, *simple[] = {"draft-simple"}, *ngram[] = {"ngram-mod"};
    s.shape.speculative = odd;
    s.shape.n_speculative = 1;
    refused(&s, &only_weights, "speculative: 'draft-simpel' is unknown to llama.cpp, did you mean 'draft-simple'");
    s.shape.speculative = two_drafts;
    s.shape.n_speculative = 3;
    refused(&s, &only_weights, "speculative: 'draft-mtp' and 'draft-simple' together, llama.cpp takes one kind of drafter");
    s.shape.speculative = simple;
    s.shape.n_speculative = 1;
    refused(&s, &only_weights, "speculative: 'draft-simple' needs a drafter, set the model's drafter:");
    s.shape.speculative = ngram;
    s.shape.draft_max = 4;
    refused(&s, &only_weights, "draft-max: is for a draft-* kind of speculative:, give an ngram's sizes in args");
}

static void llama_refuses_our_own_flags(void **state)
{
    (void)state;
    struct fleet_service s = plain(&bare, &llama);
    static const struct {
        const char *word, *text;
    } cases[] = {
        {"-c", "'args' of service 'small' must not hold '-c'; use 'context'"},
        {"--tensor-split", "'args' of service 'small' must not hold '--tensor-split'; use 'split'"},
        {"--port=99", "'args' of service 'small' must not hold '--port'; use 'port'"},
        {"--no-kv-unified", "'args' of service 'small' must not hold '--no-kv-unified'; use 'unified-kv'"},
        {"-fit", "'args' of service 'small' must not hold '-fit'; the engine must not change what berth planned"},
        {"--api-key", "'args' of service 'small' must not hold '--api-key'; use 'key'"},
        {"--log-file", "'args' of service 'small' must not hold '--log-file'; berth keeps the log"},
        {"--sse-ping-interval", "'args' of service 'small' must not hold '--sse-ping-interval'; berth sets it itself, and a stop waits for it"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        const char *args[] = {"--mlock", cases[i].word};
        s.args = args;
        s.n_args = 2;
        refused(&s, &only_weights, cases[i].text);
    }
}

static void slot_context(void **state)
{
    (void)state;
    static const struct {
        uint32_t context, slots;
        enum fleet_tristate unified;
        uint64_t slot;
    } cases[] = {{4096, 1, FLEET_AUTO, 4096}, {8192, 2, FLEET_OFF, 4096}, {1000, 3, FLEET_OFF, 512}, {2000, 3, FLEET_OFF, 768}, {2000, 3, FLEET_ON, 2048},
                 {1, 1, FLEET_OFF, 256},      {0, 4, FLEET_OFF, 4096},    {0, 4, FLEET_ON, 16384}};
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct fleet_service s = plain(&bare, &llama);
        s.shape.context = cases[i].context;
        s.shape.slots = cases[i].slots;
        s.shape.unified_kv = cases[i].unified;
        struct fleet_shape sh;
        engine_shape(&s, &sh);
        assert_int_equal(engine_slot_context(&sh), cases[i].slot);
    }
}

static void vllm_argv(void **state)
{
    (void)state;
    struct fleet_service s = plain(&cards, &vllm);
    s.shape.context = 65536;
    s.shape.slots = 8;
    s.shape.kv_k = s.shape.kv_v = "fp8";
    struct engine_paths p = {.weights = "/m/big/model-00001-of-00004.safetensors", .template_file = "/t/x.jinja"};
    /* 1 GiB of 16 must stay free: 93 hundredths */
    assert_string_equal(argv_of(&s, &p), "serve /m/big --served-model-name small --host 127.0.0.1 --port 7770 --max-model-len 8192 --max-num-seqs 8 --max-num-batched-tokens 2048 "
                                         "--kv-cache-dtype fp8 --tensor-parallel-size 2 --gpu-memory-utilization 0.93 --chat-template /t/x.jinja");
    struct fleet_service d = plain(&bare, &vllm);
    const char *args[] = {"--gpu-memory-utilization", "0.5", "--enforce-eager"};
    assert_string_equal(argv_of(&d, &only_weights), "serve /m/a.gguf --served-model-name small --host 127.0.0.1 --port 7770 --max-model-len 4096 --max-num-seqs 1 "
                                                    "--max-num-batched-tokens 2048 --kv-cache-dtype auto --gpu-memory-utilization 0.90");
    d.args = args;
    d.n_args = 3;
    assert_non_null(strstr(argv_of(&d, &only_weights), "--kv-cache-dtype auto --gpu-memory-utilization 0.5 --enforce-eager"));
}

static void vllm_refuses(void **state)
{
    (void)state;
    struct fleet_service s = plain(&cards, &vllm);
    s.shape.ubatch = 512;
    refused(&s, &only_weights, "ubatch: cannot be said to vllm, set batch:");
    s.shape.ubatch = 0;
    s.shape.prompt_cache_set = true;
    s.shape.prompt_cache_bytes = 1 << 20;
    refused(&s, &only_weights, "prompt-cache: cannot be said to vllm, it keeps prompts in device memory");
    s.shape.prompt_cache_bytes = 0; /* off is what it does anyway */
    argv_of(&s, &only_weights);
    s.shape.kv_k = "fp8";
    s.shape.kv_v = "auto";
    refused(&s, &only_weights, "kv: cannot be said to vllm, k and v must be of one type");
    s.shape.kv_v = s.shape.kv_k = "q8_0";
    refused(&s, &only_weights, "kv: 'q8_0' is unknown to vllm, it knows auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2");
    s.shape.kv_v = s.shape.kv_k = NULL;
    const double uneven[] = {2, 1};
    s.shape.split_auto = false;
    s.shape.split = uneven;
    s.shape.n_split = 2;
    refused(&s, &only_weights, "split: cannot be said to vllm, it splits evenly, leave split: out");
    s.shape.split_auto = true;
    const char *args[] = {"--max-model-len=9"};
    s.args = args;
    s.n_args = 1;
    refused(&s, &only_weights, "'args' of service 'small' must not hold '--max-model-len'; use 'context' and 'slots'");
    s.n_args = 0;
    struct fleet_host full = cards;
    full.floor_bytes = 1ULL << 40;
    s.host = &full;
    refused(&s, &only_weights, "floor: of host 'big' leaves vllm no memory on its smallest device");
}

static void generic_argv(void **state)
{
    (void)state;
    struct fleet_service s = plain(&bare, &generic);
    struct engine_paths none = {0};
    const char *command[] = {"serve", "--at={bind}:{port}", "{model}", "{\"a\":{}}", "{nope}", ""};
    const char *args[] = {"-x"};
    s.command = command;
    s.n_command = 6;
    s.args = args;
    s.n_args = 1;
    assert_string_equal(argv_of(&s, &only_weights), "serve --at=127.0.0.1:7770 /m/a.gguf {\"a\":{}} {nope}  -x");
    refused(&s, &none, "command of service 'small' says {model}, but the service has no model");
    s.n_command = 0;
    refused(&s, &none, "service 'small' needs command: for engine generic");
}

static void memory_runs_out(void **state)
{
    (void)state;
    struct fleet_service s = plain(&cards, &llama);
    for (size_t max = 64; max < 8192; max += 256) {
        struct arena *a = arena_new(max);
        const char *const *v;
        size_t n;
        struct err err;
        int r = engine_argv(&s, &only_weights, a, &v, &n, &err);
        assert_true(r == 0 || r == -ENOMEM);
        arena_free(a);
    }
}

static void start_limit(void **state)
{
    (void)state;
    const struct engine_kind *k = engine_find("llama.cpp");
    assert_int_equal(engine_start_limit_ms(k, 0, 0), 60 * 1000);
    /* 100 GB at 500 MB/s: 200 s, three times, and a minute */
    assert_int_equal(engine_start_limit_ms(k, 100000000000, 500000000), 660 * 1000);
    /* unknown disk: slow */
    assert_int_equal(engine_start_limit_ms(k, 50000000, 0), 63 * 1000);
    assert_int_equal(engine_start_limit_ms(k, 25000000, 0), 61500);
    assert_int_equal(engine_start_limit_ms(k, UINT64_MAX, 1), UINT64_MAX);
    assert_true(engine_start_limit_ms(engine_find("vllm"), 0, 0) > engine_start_limit_ms(k, 0, 0));
}

static int release(void **state)
{
    (void)state;
    buf_release(&line);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_a_table),
        cmocka_unit_test(llama_defaults_are_said),
        cmocka_unit_test(llama_everything),
        cmocka_unit_test(llama_devices),
        cmocka_unit_test(llama_args_replace_what_is_only_said),
        cmocka_unit_test(llama_prompt_cache_is_in_mib),
        cmocka_unit_test(llama_drafter_only_when_used),
        cmocka_unit_test(llama_batch_follows_ubatch),
        cmocka_unit_test(llama_refuses),
        cmocka_unit_test(llama_refuses_our_own_flags),
        cmocka_unit_test(slot_context),
        cmocka_unit_test(vllm_argv),
        cmocka_unit_test(vllm_refuses),
        cmocka_unit_test(generic_argv),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(start_limit),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
