/* SPDX-License-Identifier: MIT
 *
 * What llama.cpp's log tells of memory: lines as the engine prints them, one start after the other, measuring passes apart from what is loaded, the drafter apart from the target.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <engine/engine.h>
#include <stdio.h>
#include <string.h>

#define MIB_HALF_CENT 5243 /* 0.005 MiB */

static const struct engine_kind *llama(void)
{
    return engine_find("llama.cpp");
}

/* The buffers of a log, one line each: "name kind context bytes", '?' before those of a measuring pass. */
static char *walk(const char *log, struct engine_memory *m)
{
    static const char *const kinds[] = {"weights", "kv", "indexer", "state", "compute", "output", "moe-cache", "projector-compute"};
    static char out[8192];
    size_t n = 0;
    struct str rest = str_of(log);
    *m = (struct engine_memory){0};
    out[0] = '\0';
    while (rest.ptr) {
        struct engine_buffer b = {0};
        struct str line = str_split(&rest, '\n');
        if (!engine_memory_line(m, llama(), line, &b))
            continue;
        n += (size_t)snprintf(out + n, sizeof out - n, "%s" STR_FMT " %s %u %llu\n", b.measuring ? "?" : "", STR_ARG(b.name), kinds[b.kind], b.context, (unsigned long long)b.bytes);
        assert_int_equal(b.tolerance_bytes, MIB_HALF_CENT);
    }
    return out;
}

#define BEGIN "0.00.014.398 I srv  llama_server: initializing ...\n0.00.041.516 I srv    load_model: loading model '/m/t.gguf'\n0.00.041.540 I srv    load_model: local path '/m/t.gguf'\n"
#define CONTEXT(ub, out) \
    "0.00.050.600 I llama_context: constructing llama_context\n" \
    "0.00.050.645 I llama_context: n_seq_max             = 2\n" \
    "0.00.050.645 I llama_context: n_ctx                 = 4096\n" \
    "0.00.050.646 I llama_context: n_ctx_seq             = 2048\n" \
    "0.00.050.646 I llama_context: n_batch               = 2048\n" \
    "0.00.050.686 I llama_context: n_ubatch              = " ub "\n" \
    "0.00.050.782 I llama_context: n_outputs_max         = " out "\n" \
    "0.00.050.783 I llama_context: n_outputs_max_per_seq = 1\n"
#define MEASURE "0.00.041.647 I common_params_fit_impl: getting device memory data for initial parameters:\n"
#define EXTRA "0.00.056.046 I operator(): getting device memory data for the extra model at a context size of 4096:\n"
#define PROJECTED "0.00.065.052 I common_params_fit_impl: projected memory use with initial parameters [MiB]:\n"
#define TOOK "0.00.065.425 I common_fit_params: fitting params to free memory took 0.01 seconds\n"
#define LOADING "0.00.068.880 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)\n"

static void a_start_with_a_drafter(void **state)
{
    (void)state;
    struct engine_memory m;
    const char *out = walk(BEGIN MEASURE LOADING "0.00.050.542 I load_tensors:          CPU model buffer size =     0.00 MiB\n" CONTEXT("512", "8")
                           "0.00.051.163 I llama_context:        CPU  output buffer size =     0.00 MiB\n"
                           "0.00.051.170 I llama_context: pipeline parallelism enabled\n"
                           "0.00.053.886 I sched_reserve: RPC0[127.0.0.1:40035] compute buffer size =    17.80 MiB\n" EXTRA LOADING CONTEXT("512", "2")
                           "0.00.063.139 I sched_reserve: RPC0[127.0.0.1:40035] compute buffer size =    13.07 MiB\n" PROJECTED TOOK LOADING
                           "0.00.087.897 I load_tensors:   CPU_Mapped model buffer size =     0.12 MiB\n"
                           "0.00.087.899 I load_tensors: RPC0[127.0.0.1:40035] model buffer size =     2.14 MiB\n" CONTEXT("256", "6")
                           "0.00.090.535 I llama_context:        CPU  output buffer size =     0.50 MiB\n"
                           "0.00.099.642 I llama_kv_cache: RPC0[127.0.0.1:40035] KV buffer size =     4.00 MiB\n"
                           "0.00.102.198 I llama_kv_cache: size =    8.00 MiB (  2048 cells,   2 layers,  2/2 seqs), K (f16):    4.00 MiB, V (f16):    4.00 MiB\n"
                           "0.00.115.922 I sched_reserve:        CPU compute buffer size =    13.07 MiB\n"
                           "0.00.116.017 I common_speculative_init_result: loading draft model '/m/d.gguf'\n" LOADING
                           "0.00.121.538 I load_tensors: RPC0[127.0.0.1:40035] model buffer size =     2.13 MiB\n" CONTEXT("512", "2")
                           "0.00.131.088 I llama_kv_cache: RPC0[127.0.0.1:40035] KV buffer size =     4.00 MiB\n"
                           "0.00.137.459 I sched_reserve: RPC0[127.0.0.1:40035] compute buffer size =     1.00 MiB\n", &m);
    assert_string_equal(out, "?CPU weights 0 0\n?CPU output 0 0\n?RPC0[127.0.0.1:40035] compute 0 18664653\n?RPC0[127.0.0.1:40035] compute 1 13704888\n"
                             "CPU_Mapped weights 0 125829\nRPC0[127.0.0.1:40035] weights 0 2243953\nCPU output 0 524288\nRPC0[127.0.0.1:40035] kv 0 4194304\nCPU compute 0 13704888\n"
                             "RPC0[127.0.0.1:40035] weights 1 2233467\nRPC0[127.0.0.1:40035] kv 1 4194304\nRPC0[127.0.0.1:40035] compute 1 1048576\n");
    assert_int_equal(m.starts, 1);
    assert_true(m.measured && !m.measuring && !m.failed && !m.draft_unmeasured);
    assert_int_equal(m.passes, 1);
    assert_int_equal(m.contexts, 2);
    assert_int_equal(m.models, 2);
    /* the load's target, not the pass's and not the drafter's */
    assert_int_equal(m.target.n_ubatch, 256);
    assert_int_equal(m.target.n_outputs_max, 6);
    assert_int_equal(m.target.n_ctx, 4096);
    assert_int_equal(m.target.n_ctx_seq, 2048);
    assert_int_equal(m.target.n_seq_max, 2);
    assert_false(m.pipeline);
}

static void who_copies_its_inputs(void **state)
{
    (void)state;
    struct engine_memory m;
#define COPIES "0.00.051.170 I llama_context: pipeline parallelism enabled\n"
    walk(BEGIN LOADING CONTEXT("512", "8") COPIES, &m);
    assert_true(m.pipeline);
    walk(BEGIN LOADING CONTEXT("512", "8") COPIES CONTEXT("512", "2"), &m);
    assert_false(m.pipeline);
}

static void an_mtp_context_has_no_model_of_its_own(void **state)
{
    (void)state;
    struct engine_memory m;
    const char *out = walk(BEGIN MEASURE LOADING CONTEXT("512", "8") "I\n" EXTRA CONTEXT("512", "2") "0.00.063.139 I sched_reserve: CUDA0 compute buffer size =    13.07 MiB\n", &m);
    assert_string_equal(out, "?CUDA0 compute 1 13704888\n");
    assert_true(m.measuring);
    assert_int_equal(m.target.n_outputs_max, 8);
}

static void caches_of_every_kind(void **state)
{
    (void)state;
    struct engine_memory m;
    const char *out = walk("llama_context: constructing llama_context\n"
                           "llama_kv_cache_dsv4: creating DSV4 raw KV cache\nllama_kv_cache_iswa: creating     SWA KV cache, size = 768 cells\n"
                           "llama_kv_cache: ROCm0 KV buffer size =     1.00 MiB\n"
                           "llama_kv_cache_dsv4: creating DSV4 lightning-indexer KV cache, size = 512 cells\nllama_kv_cache: ROCm0 KV buffer size =     2.00 MiB\n"
                           "llama_kv_cache_dsv4: creating DSV4 CSA compressor state\nllama_dsv4_comp_state: ROCm0 DSV4 csa state buffer size =     3.00 MiB\n"
                           "operator(): creating indexer KV cache, size = 2048 cells\nllama_kv_cache: ROCm1 KV buffer size =     4.00 MiB\n"
                           "llama_kv_cache_dsa: creating main KV cache, size = 2048 cells\nllama_kv_cache: ROCm1 KV buffer size =     5.00 MiB\n"
                           "llama_memory_recurrent: ROCm0 RS buffer size =     6.00 MiB\nimpl: ROCm0 MoE cache size =     7.00 MiB for 90.00 MiB of host experts\n"
                           "reserve_compute_meta: ROCm0 compute buffer size =     8.00 MiB\n", &m);
    assert_string_equal(out, "ROCm0 kv 0 1048576\nROCm0 indexer 0 2097152\nROCm0 state 0 3145728\nROCm1 indexer 0 4194304\nROCm1 kv 0 5242880\nROCm0 state 0 6291456\nROCm0 moe-cache 0 7340032\n"
                             "ROCm0 projector-compute 0 8388608\n");
}

static void another_start(void **state)
{
    (void)state;
    struct engine_memory m;
    walk(BEGIN LOADING CONTEXT("512", "8") BEGIN, &m);
    assert_int_equal(m.starts, 2);
    assert_int_equal(m.target.n_ubatch, 0);
    assert_int_equal(m.models, 0);
    /* a server that slept and loads again says nothing but this */
    walk(BEGIN LOADING CONTEXT("512", "8") "0.00.041.516 I srv    load_model: loading model '/m/t.gguf'\n", &m);
    assert_int_equal(m.starts, 2);
}

static void what_a_pass_says_of_failure(void **state)
{
    (void)state;
    struct engine_memory m;
    walk(BEGIN MEASURE "0.00.061.782 E common_fit_params: encountered an error while trying to fit params to free device memory: failed to create llama_context from model\n" TOOK, &m);
    assert_true(m.failed && !m.measured && !m.measuring);
    walk(BEGIN MEASURE EXTRA "0.00.1 W operator(): failed to measure the memory of the extra model, fitting without it\n" PROJECTED, &m);
    assert_true(m.draft_unmeasured && m.measured && m.measuring);
    walk(BEGIN MEASURE "0.00.055.808 I common_params_fit_impl: projected to use 18 MiB of device memory vs. 24105 MiB of free device memory\n", &m);
    assert_true(m.measured); /* one device */
}

static void lines_that_are_none(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "", ":", "sched_reserve:", "sched_reserve: CUDA0", "sched_reserve: CUDA0 compute buffer size", "sched_reserve: CUDA0 compute buffer size = ", "sched_reserve: CUDA0 compute buffer size = 1.0",
        "sched_reserve: CUDA0 compute buffer size = 1.0 GiB", "sched_reserve: CUDA0 compute buffer size = -1.0 MiB", "sched_reserve: CUDA0 compute buffer size = 99999999999999999999.00 MiB",
        "sched_reserve: CUDA0 compute buffer size = 1.00000000 MiB", "sched_reserve: CUDA0 compute buffer size = 1.x MiB", "sched_reserve: CUDA0 compute buffer size = . MiB", "sched_reserve: CUDA0 model buffer size = 1.00 MiB",
        "sched_reserve: compute buffer size = 1.00 MiB", "llama_model_loader: - kv  25: tokenizer.chat_template str = load_tensors: CUDA0 model buffer size = 1.00 MiB",
        "evil: CUDA0 model buffer size = 1.00 MiB", "load_tensors: CUDA0 LoRA buffer size = 1.00 MiB",
    };
    for (size_t i = 0; i < BASE_COUNT(lines); i++) {
        struct engine_memory m = {0};
        struct engine_buffer b = {0};
        if (engine_memory_line(&m, llama(), str_of(lines[i]), &b))
            fail_msg("'%s' is taken for a buffer", lines[i]);
    }
    struct engine_memory m = {0};
    struct engine_buffer b = {0};
    assert_false(engine_memory_line(&m, engine_find("vllm"), STR("sched_reserve: CUDA0 compute buffer size = 1.00 MiB"), &b));
    /* decimals decide the tolerance; none is a whole one's half */
    assert_true(engine_memory_line(&m, llama(), STR("sched_reserve: CUDA0 compute buffer size = 1.0001 MiB"), &b));
    assert_int_equal(b.bytes, 1048681);
    assert_int_equal(b.tolerance_bytes, 53);
    assert_true(engine_memory_line(&m, llama(), STR("sched_reserve: CUDA0 compute buffer size = 7 MiB"), &b));
    assert_int_equal(b.bytes, 7 << 20);
    assert_int_equal(b.tolerance_bytes, 1 << 19);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_with_a_drafter), cmocka_unit_test(who_copies_its_inputs), cmocka_unit_test(an_mtp_context_has_no_model_of_its_own), cmocka_unit_test(caches_of_every_kind),
        cmocka_unit_test(another_start), cmocka_unit_test(what_a_pass_says_of_failure), cmocka_unit_test(lines_that_are_none),
    };
    return cmocka_run_group_tests_name("engine memory", tests, NULL, NULL);
}
