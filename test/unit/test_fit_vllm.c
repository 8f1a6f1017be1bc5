/* SPDX-License-Identifier: MIT
 *
 * vLLM's budget against what was read on two cards of 31.86 GiB: ceilings, pools, arenas, prefix blocks, and what may not be derived from its neighbours.
 */
#include <fit/fit.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define GIB(x) ((uint64_t)((x) * (double)(1ULL << 30)))
#define MIB(x) ((uint64_t)((x) * (double)(1ULL << 20)))

static struct arena *arena;

static int up(void **state)
{
    (void)state;
    arena = arena_new(1U << 20);
    return arena ? 0 : -1;
}
static int down(void **state)
{
    (void)state;
    arena = arena_free(arena);
    return 0;
}

static struct fit_vllm_result run(const struct fit_vllm *v)
{
    struct fit_vllm_result r = {0};
    struct err err = {0};

    if (fit_vllm(v, arena, &r, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

static bool says(const struct fit_vllm_result *r, enum fit_severity severity, const char *rule, const char *words)
{
    for (size_t i = 0; i < r->n_notes; i++)
        if (r->notes[i].severity == severity && strcmp(r->notes[i].rule, rule) == 0 && strstr(r->notes[i].text, words))
            return true;
    return false;
}

static void near(double value, double want, double most)
{
    if (!(value >= want - most && value <= want + most))
        fail_msg("%.9g is not %.9g", value, want);
}

/* A 27B over two cards: 14.42 GiB a card for KV were 425,047 tokens. */
static struct fit_vllm build_27b(void)
{
    static const struct fit_vllm_price prices[] = {{262144, "bf16", 32768, 3659}};

    return (struct fit_vllm){.total_bytes = GIB(31.86), .free_at_init_bytes = GIB(31.23), .weight_bytes = GIB(14.5), .overhead_bytes = GIB(2.29), .max_model_len = 262144, .max_num_seqs = 4, .chunk = 8192,
                             .block_tokens = 1648, .kv = "bf16", .tp = 2, .heads = 24, .kv_heads = 4, .n_layer = 64, .prices = prices, .n_prices = 1};
}

static void test_ceiling(void **state)
{
    (void)state;
    near(fit_vllm_ceiling(GIB(31.86), GIB(31.23), 0, 0.01), 0.98, 1e-9);
    near(fit_vllm_ceiling(GIB(31.86), GIB(31.23), 0, 0.001), 0.98, 1e-9);
    near(fit_vllm_ceiling(GIB(31.86), GIB(31.86), 0, 0.01), 1, 1e-9);
    near(fit_vllm_ceiling(GIB(31.86), GIB(31.86), 0.982, 0.001), 0.982, 1e-9);
    near(fit_vllm_ceiling(GIB(31.86), 0, 0, 0.01), 0, 0);
    near(fit_vllm_ceiling(0, 0, 0, 0.01), 0, 0);
    near(fit_vllm_ceiling(GIB(1), GIB(1), 0, 0), 0, 0);

    struct fit_vllm v = build_27b();
    struct fit_vllm_result r = run(&v);
    near(r.utilization, 0.98, 1e-9);
    assert_true(r.starts);
    v.utilization = 0.99; /* 31.54 GiB */
    r = run(&v);
    assert_false(r.starts);
    assert_true(says(&r, FIT_REFUSED, "utilization", "31.54 GiB and 31.23 GiB are free"));
    v.utilization = 0.98; /* 31.22 GiB */
    r = run(&v);
    assert_true(r.starts);
    near((double)r.budget_bytes, (double)GIB(31.2228), 100);
    near((double)r.left_bytes, (double)GIB(0.6372), 100);

    /* a lower one buys no slack, and what a runtime refuses is its own */
    v.utilization = 0.9;
    r = run(&v);
    assert_true(says(&r, FIT_NOTE, "utilization", "smaller"));
    v.free_at_init_bytes = v.total_bytes;
    v.utilization_most = 0.982;
    v.utilization = 1;
    r = run(&v);
    assert_true(says(&r, FIT_REFUSED, "utilization", "refuses more than 0.982"));
    v.utilization = 0.982;
    assert_true(run(&v).starts);
}

static void test_pool_of_27b(void **state)
{
    (void)state;
    struct fit_vllm v = build_27b();
    v.utilization = 0.98;
    v.overhead_bytes = (uint64_t)(0.98 * (double)v.total_bytes) - v.weight_bytes - GIB(14.42);
    const struct fit_vllm_result r = run(&v);

    near((double)r.kv_bytes, (double)GIB(14.42), 2);
    near((double)r.pool_tokens, 425047, 100);
    assert_false(r.kv_measured);
}

/* Pool bytes and tokens as they were read; the price of a token belongs to type and length. */
static void test_prices(void **state)
{
    (void)state;
    static const struct fit_vllm_price prices[] = {{262144, "fp8", 6138, 1563}, {241664, "bf16", 12276, 1563}, {200704, "fp8", 6138, 1754}};
    static const struct {
        uint64_t pool;
        const char *kv;
        uint32_t len;
        double tokens, contexts;
    } read[] = {{8311013376, "fp8", 262144, 1079582, 4.12}, {10388766720, "fp8", 262144, 1350182, 5.15}, {6100000000, "fp8", 262144, 792069, 3.02},
                {11047010304, "bf16", 241664, 798280, 3.30}, {3150000000, "fp8", 200704, 398658, 1.99}};

    for (size_t i = 0; i < BASE_COUNT(read); i++) {
        struct fit_vllm v = {.total_bytes = GIB(31.86), .free_at_init_bytes = GIB(31.29), .kv = read[i].kv, .max_model_len = read[i].len, .kv_reserve_bytes = read[i].pool, .expert_slot_bytes = 2457600, .prices = prices,
                             .n_prices = BASE_COUNT(prices), .tp = 2, .kv_heads = 2};
        struct fit_vllm_result r = run(&v);
        assert_int_equal(r.kv_bytes, read[i].pool);
        near((double)r.pool_tokens, read[i].tokens, 0.0015 * read[i].tokens);
        near(r.contexts, read[i].contexts, 0.011);
        assert_true(r.starts);
        assert_true(says(&r, FIT_NOTE, "survival", "no proof"));
        /* the neighbour's price does not hold */
        v.max_model_len -= 4096;
        r = run(&v);
        assert_int_equal(r.token_bytes, 0);
        assert_int_equal(r.pool_tokens, 0);
        assert_true(says(&r, FIT_WARNING, "token-price", "another length"));
    }
    struct fit_vllm v = {.total_bytes = GIB(31.86), .free_at_init_bytes = GIB(31.29), .kv = "fp8", .max_model_len = 262144, .kv_reserve_bytes = 2000000000, .expert_slot_bytes = 2457600, .prices = prices, .n_prices = 3};
    struct fit_vllm_result r = run(&v);
    assert_false(r.starts);
    assert_true(says(&r, FIT_REFUSED, "pool", "less than one context of 262,144"));
    v.kv = NULL;
    r = run(&v);
    assert_int_equal(r.token_bytes, 0);
}

/* Slots of 2.344 MiB: what weights, reserve, graphs and overhead leave of the budget. */
static void test_expert_arena(void **state)
{
    (void)state;
    struct fit_vllm v = {.total_bytes = GIB(31.86), .free_at_init_bytes = GIB(31.5), .utilization = 0.982, .expert_slot_bytes = 2457600, .kv_reserve_bytes = 8311013376, .graphs = 3, .graph_bytes = MIB(12),
                         .overhead_bytes = GIB(7.60)};
    const uint64_t budget = (uint64_t)(0.982 * (double)v.total_bytes);

    v.weight_bytes = budget - v.kv_reserve_bytes - 3 * MIB(12) - v.overhead_bytes - GIB(14.8685);
    struct fit_vllm_result r = run(&v);
    assert_int_equal(r.arena_slots, 6496);
    near((double)r.arena_bytes / (double)GIB(1), 14.87, 0.005);
    assert_int_equal(r.graphs_bytes, MIB(36));
    assert_int_equal(r.kv_bytes, v.kv_reserve_bytes);
    v.overhead_bytes = GIB(5.25);
    r = run(&v);
    assert_int_equal(r.arena_slots, 7522);
    near((double)r.arena_bytes / (double)GIB(1), 17.22, 0.005);
    /* bytes and slots of the readings belong together */
    near(6248 * 2457600.0 / (double)GIB(1), 14.30, 0.005);
    v.overhead_bytes = GIB(25);
    r = run(&v);
    assert_false(r.starts);
    assert_int_equal(r.arena_slots, 0);
    assert_true(says(&r, FIT_REFUSED, "budget", "leave nothing"));
}

/* 4096 4.16, 8192 5.44, 16384 4.22 GiB: between them nothing is known. */
static void test_prefill_chunk_is_read_not_drawn(void **state)
{
    (void)state;
    const struct fit_vllm_reading readings[] = {{4096, GIB(4.16)}, {8192, GIB(5.44)}, {16384, GIB(4.22)}};
    struct fit_vllm v = build_27b();

    v.readings = readings;
    v.n_readings = 3;
    struct fit_vllm_result r = run(&v);
    assert_true(r.kv_measured);
    assert_int_equal(r.kv_bytes, GIB(5.44));
    v.chunk = 16384;
    assert_int_equal(run(&v).kv_bytes, GIB(4.22));
    v.chunk = 12288;
    r = run(&v);
    assert_false(r.kv_measured);
    assert_int_equal(r.kv_bytes, 0);
    assert_int_equal(r.pool_tokens, 0);
    assert_true(says(&r, FIT_WARNING, "prefill-chunk", "12,288"));
}

static void test_parallel(void **state)
{
    (void)state;
    struct fit_vllm v = build_27b();

    v.tp = 3;
    struct fit_vllm_result r = run(&v);
    assert_true(says(&r, FIT_REFUSED, "tensor-parallel", "3 and 4 KV heads"));
    v.tp = 5;
    r = run(&v);
    assert_true(says(&r, FIT_REFUSED, "tensor-parallel", "does not divide 24"));
    v.tp = 8;
    r = run(&v);
    assert_true(r.starts);
    assert_true(says(&r, FIT_NOTE, "kv-copies", "8 ranks"));

    /* decode-context-parallel wants more ranks than KV heads */
    v.kv_heads = 2;
    v.tp = 2;
    v.dcp = 2;
    r = run(&v);
    assert_true(says(&r, FIT_REFUSED, "decode-context-parallel", "KV heads"));
    v.tp = 4;
    r = run(&v);
    assert_true(r.starts);
    assert_false(says(&r, FIT_NOTE, "kv-copies", ""));
    v.dcp = 3;
    r = run(&v);
    assert_true(says(&r, FIT_REFUSED, "decode-context-parallel", "does not divide"));
    v.dcp = 4;
    r = run(&v);
    assert_false(r.starts);
}

static void test_pipeline(void **state)
{
    (void)state;
    const char *kinds[8] = {"delta", "delta", "delta", "full", "delta", "delta", "delta", "full"};
    struct fit_vllm v = build_27b();

    v.tp = 1;
    v.n_layer = 8;
    v.pp = 2;
    v.layer_kinds = kinds;
    assert_true(run(&v).starts);
    kinds[3] = "delta";
    kinds[4] = "full";
    struct fit_vllm_result r = run(&v);
    assert_true(says(&r, FIT_REFUSED, "pipeline-parallel", "different kinds"));
    v.pp = 3;
    r = run(&v);
    assert_true(r.starts);
    assert_true(says(&r, FIT_WARNING, "pipeline-parallel", "evenly"));
    v.pp = 9;
    assert_false(run(&v).starts);
}

static void test_known_bad(void **state)
{
    (void)state;
    const struct fit_vllm_refusal refusals[] = {{"max-num-seqs", 2, "does not compile"}};
    struct fit_vllm v = build_27b();

    v.refusals = refusals;
    v.n_refusals = 1;
    v.max_num_seqs = 2;
    const struct fit_vllm_result r = run(&v);
    assert_false(r.starts);
    assert_true(says(&r, FIT_REFUSED, "known-bad", "--max-num-seqs 2 is known to be bad: does not compile"));
    v.max_num_seqs = 3;
    assert_true(run(&v).starts);
}

static void test_faults_of_input(void **state)
{
    (void)state;
    struct fit_vllm_result r;
    struct err err = {0};
    struct fit_vllm v = build_27b();

    v.total_bytes = 0;
    assert_int_equal(fit_vllm(&v, arena, &r, &err), -EINVAL);
    v = build_27b();
    v.free_at_init_bytes = v.total_bytes + 1;
    assert_int_equal(fit_vllm(&v, arena, &r, &err), -EINVAL);
    v = build_27b();
    v.utilization = 1.2;
    assert_int_equal(fit_vllm(&v, arena, &r, &err), -EINVAL);
    v.utilization = 0.0 / (v.pp ? 1.0 : 0.0);
    assert_int_equal(fit_vllm(&v, arena, &r, &err), -EINVAL);
    v = build_27b();
    const char *kind = "full";
    v.layer_kinds = &kind;
    v.n_layer = 0;
    assert_int_equal(fit_vllm(&v, arena, &r, &err), -EINVAL);
    /* sums that do not wrap */
    v = build_27b();
    v.graphs = UINT32_MAX;
    v.graph_bytes = UINT64_MAX;
    v.weight_bytes = UINT64_MAX;
    assert_false(run(&v).starts);
    struct arena *tiny = arena_new(16);
    v = build_27b();
    assert_int_equal(fit_vllm(&v, tiny, &r, &err), -ENOMEM);
    arena_free(tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ceiling, up, down),
        cmocka_unit_test_setup_teardown(test_pool_of_27b, up, down),
        cmocka_unit_test_setup_teardown(test_prices, up, down),
        cmocka_unit_test_setup_teardown(test_expert_arena, up, down),
        cmocka_unit_test_setup_teardown(test_prefill_chunk_is_read_not_drawn, up, down),
        cmocka_unit_test_setup_teardown(test_parallel, up, down),
        cmocka_unit_test_setup_teardown(test_pipeline, up, down),
        cmocka_unit_test_setup_teardown(test_known_bad, up, down),
        cmocka_unit_test_setup_teardown(test_faults_of_input, up, down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
