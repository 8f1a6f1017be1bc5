/* SPDX-License-Identifier: MIT
 *
 * Knobs, neighbourhood tables and working sets: what one step changes is what the prediction of that step says, and the balance table of a real box comes out row by row.
 */
#include "failing_malloc.h"
#include "solve_models.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct rig {
    struct fit_device devices[3];
    struct fit_host host;
    struct fit_shape shape;
    struct fit_input in;
    struct fit_result now;
    struct model *model;
    struct arena *arena;
    struct fit_knob *knobs;
    struct fit_row *rows;
    size_t n;
};

static void rig_init(struct rig *r, struct model *m, size_t n_devices)
{
    static const char *const names[] = {"ROCm0", "ROCm1", "ROCm2"};

    memset(r, 0, sizeof(*r));
    r->model = m;
    r->host = (struct fit_host){.total_bytes = 256 * GIB, .free_bytes = 256 * GIB, .bandwidth_bytes_s = 256000000000};
    for (size_t d = 0; d < 3; d++)
        r->devices[d] = (struct fit_device){.name = names[d], .backend = FIT_HIP, .total_bytes = 64 * GIB, .free_bytes = 64 * GIB, .floor_bytes = GIB, .bandwidth_bytes_s = 640000000000, .link_bytes_s = 31500000000};
    fit_shape_default(&r->shape);
    r->in = (struct fit_input){.target = m, .shape = &r->shape, .devices = r->devices, .n_devices = n_devices, .host = &r->host, .engine_version = "0.7.0"};
    r->arena = arena_new(64U << 20);
    assert_non_null(r->arena);
}

static void rig_done(struct rig *r)
{
    r->model = model_free(r->model);
    r->arena = arena_free(r->arena);
}

static void predict(struct rig *r)
{
    struct err err = {0};

    if (fit_predict(&r->in, r->arena, &r->now, &err) < 0)
        fail_msg("%s", err.text);
}

static void knobs(struct rig *r)
{
    struct err err = {0};

    predict(r);
    if (fit_knobs(&r->in, &r->now, r->arena, &r->knobs, &r->n, &err) < 0)
        fail_msg("%s", err.text);
}

static const struct fit_knob *knob(const struct rig *r, const char *name)
{
    static const struct fit_knob none;

    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->knobs[i].knob, name) == 0)
            return &r->knobs[i];
    return &none;
}

/* There is that step; from NULL: from whatever. */
static void check_step(const struct rig *r, const char *name, const char *from, const char *to)
{
    const struct fit_knob *k = knob(r, name);

    if (!k->knob)
        fail_msg("no knob %s", name);
    if (from)
        assert_string_equal(k->from, from);
    assert_string_equal(k->to, to);
}

/* Each is what a prediction of its own shape says. */
static void check_knobs(struct rig *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct fit_knob *k = &r->knobs[i];
        struct fit_input in = r->in;
        struct fit_result then;
        in.shape = &k->shape;
        if (!(k->shape.spec & FIT_SPEC_CONTEXT))
            in.drafter = NULL;
        assert_int_equal(fit_predict(&in, r->arena, &then, NULL), 0);
        assert_int_equal(k->freed_bytes, (int64_t)(r->now.use[r->now.binds].used - then.use[r->now.binds].used));
        assert_int_equal(k->fits, then.fits);
        assert_true(k->freed_bytes > 0 || k->fits);
        assert_string_not_equal(k->from, k->to);
        if (i > 0)
            assert_true(k[-1].fits > k->fits || (k[-1].fits == k->fits && k[-1].freed_bytes >= k->freed_bytes));
    }
}

/* The 27B with its block drafter, a projector on the first card, and 39,26: the first card is over. */
static void test_knobs_of_27b(void **state)
{
    (void)state;
    struct rig r;
    struct model *drafter = model_dflash2(), *projector = model_projector(888 * MIB);
    rig_init(&r, model_27b(), 2);
    r.shape.context = 262144;
    r.shape.slots = 2;
    r.shape.ubatch = 1536;
    r.shape.n_split = 2;
    r.shape.split[0] = 39;
    r.shape.split[1] = 26;
    r.shape.spec = FIT_SPEC_DFLASH;
    r.shape.draft_max = 7;
    r.in.drafter = drafter;
    r.in.projector = projector;
    predict(&r);
    assert_int_equal(r.now.binds, 0);
    r.devices[0].free_bytes = r.now.use[0].used + GIB / 2; /* half a GiB short of its floor */
    knobs(&r);
    assert_false(r.now.fits);
    check_knobs(&r);

    check_step(&r, "context", "262144", "229376");
    assert_true(knob(&r, "context")->fits); /* 9 full-attention layers of 4 KiB a token */
    assert_in_range(knob(&r, "context")->freed_bytes, 9ULL * 4096 * 32768, 2 * GIB);
    check_step(&r, "ubatch", NULL, "768");
    check_step(&r, "slots", "2 of 131,072", "1 of 131,072");
    assert_int_equal(knob(&r, "slots")->shape.context, 131072);
    check_step(&r, "kv", "f16", "q8_0");
    check_step(&r, "drafter", "draft-dflash", "none");
    check_step(&r, "layer", "39,26", "38,27");
    assert_in_range(knob(&r, "layer")->freed_bytes, (uint64_t)(1.40 * GIB), (uint64_t)(1.60 * GIB)); /* block 39 is full attention */
    check_step(&r, "projector", "ROCm0", "ROCm1");
    assert_true(knob(&r, "projector")->freed_bytes >= (int64_t)(888 * MIB));
    assert_null(knob(&r, "cpu-moe")->knob);
    assert_null(knob(&r, "prompt-cache")->knob);
    rig_done(&r);
    (void)model_free(drafter);
    (void)model_free(projector);
}

static void test_knobs_of_experts(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, model_moe(12, 640, S_Q8_0), 1);
    r.shape.context = 8192;
    r.shape.cpu_moe = 2;
    r.devices[0].free_bytes = 8 * GIB;
    knobs(&r);
    check_knobs(&r);
    check_step(&r, "cpu-moe", "2", "3");
    assert_in_range(knob(&r, "cpu-moe")->freed_bytes, 512ULL * 3 * 2560 * 640 * 34 / 32 * 9 / 10, 512ULL * 3 * 2560 * 640 * 34 / 32 * 11 / 10);
    check_step(&r, "layer", "gpu-layers 13", "gpu-layers 12");
    r.shape.cpu_moe = UINT32_MAX;
    knobs(&r);
    assert_null(knob(&r, "cpu-moe")->knob);
    rig_done(&r);
}

static void test_knobs_of_the_host(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, model_27b(), 1);
    r.shape.context = 8192;
    r.shape.slots = 2;
    r.shape.prompt_cache_bytes = 16 * GIB;
    r.shape.checkpoints = 8;
    r.host.free_bytes = 16 * GIB;
    knobs(&r);
    check_knobs(&r);
    assert_int_equal(r.now.binds, 1);
    assert_int_equal(knob(&r, "prompt-cache")->freed_bytes, 8 * GIB);
    check_step(&r, "prompt-cache", NULL, "8.00 GiB");
    assert_true(knob(&r, "prompt-cache")->fits);
    check_step(&r, "checkpoints", NULL, "4");
    assert_null(knob(&r, "layer")->knob);
    assert_null(knob(&r, "kv")->knob);
    struct err err = {0};
    r.in.shape = NULL;
    assert_int_equal(fit_knobs(&r.in, &r.now, r.arena, &r.knobs, &r.n, &err), -EINVAL);
    rig_done(&r);
}

/* ---- tables ---------------------------------------------------------------------------------------------------------------------- */

static void table(struct rig *r, enum fit_axis axis, const struct fit_bad *bad, size_t n_bad)
{
    struct err err = {0};

    if (fit_table(&r->in, axis, bad, n_bad, r->arena, &r->rows, &r->n, &err) < 0)
        fail_msg("%s", err.text);
    size_t declared = 0;
    for (size_t i = 0; i < r->n; i++) {
        struct fit_input in = r->in;
        struct fit_result then;
        in.shape = &r->rows[i].shape;
        assert_int_equal(fit_predict(&in, r->arena, &then, NULL), 0);
        for (size_t d = 0; d <= in.n_devices; d++)
            assert_int_equal(r->rows[i].left[d], then.use[d].left);
        assert_int_equal(r->rows[i].gap_bytes, then.gap_bytes);
        assert_int_equal(r->rows[i].slot_context, then.n_ctx_seq);
        declared += r->rows[i].declared;
    }
    assert_int_equal(declared, 1);
}

static const struct fit_row *row(const struct rig *r, const char *value)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->rows[i].value, value) == 0)
            return &r->rows[i];
    fail_msg("no row %s", value);
    return NULL;
}

static double left(const struct rig *r, const char *value, int d)
{
    return (double)row(r, value)->left[d] / (double)GIB;
}

static void near(double value, double want, double most)
{
    if (!(value >= want - most && value <= want + most))
        fail_msg("%.6g is not %.6g", value, want);
}

/* Readings of a box: 39,26 2.42/7.20, 38,27 3.85/5.77, 37,28 4.28/5.34, 36,29 4.71/4.91, 35,30 5.14/4.48, 34,31 6.57/3.05. */
static void test_balance_table(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, model_27b(), 2);
    r.shape.context = 262144;
    r.shape.slots = 2;
    r.shape.batch = 6144;
    r.shape.ubatch = 1536;
    r.shape.n_split = 2;
    r.shape.split[0] = 36;
    r.shape.split[1] = 29;
    predict(&r);
    r.devices[0].free_bytes = r.now.use[0].used + (uint64_t)(4.71 * GIB);
    r.devices[1].free_bytes = r.now.use[1].used + (uint64_t)(4.91 * GIB);
    const struct fit_bad bad = {&(struct fit_shape){0}, FIT_PART_LAYERS, "page faults"};
    struct fit_shape died = r.shape;
    died.split[0] = 39;
    died.split[1] = 26;
    const struct fit_bad list[] = {bad, {&died, FIT_PART_LAYERS, "page faults on its eighth request"}};
    table(&r, FIT_AXIS_SPLIT, &list[1], 1);

    assert_int_equal(r.n, 7);
    assert_string_equal(r.rows[0].value, "33,32");
    near(left(&r, "34,31", 0), 6.57, 0.03);
    near(left(&r, "34,31", 1), 3.05, 0.03);
    near(left(&r, "35,30", 0), 5.14, 0.03);
    near(left(&r, "36,29", 0), 4.71, 0.001);
    near(left(&r, "37,28", 1), 5.34, 0.03);
    near(left(&r, "38,27", 0), 3.85, 0.03);
    near(left(&r, "39,26", 0), 2.42, 0.03);
    near(left(&r, "39,26", 1), 7.20, 0.03);
    near((double)row(&r, "36,29")->gap_bytes / (double)GIB, 0.20, 0.01);
    assert_true(row(&r, "36,29")->declared);
    assert_true(row(&r, "38,27")->fits);
    assert_false(row(&r, "39,26")->fits);
    assert_string_equal(row(&r, "39,26")->why, "known to be bad: page faults on its eighth request");
    assert_null(row(&r, "38,27")->why);
    assert_true(row(&r, "36,29")->decode_tok_s > 0);

    /* shares too coarse to say every layer are counted anew */
    r.shape.split[0] = 1;
    r.shape.split[1] = 1;
    table(&r, FIT_AXIS_SPLIT, NULL, 0);
    assert_true(row(&r, "33,33")->declared);
    rig_done(&r);
}

static void test_split_over_three(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, model_27b(), 3);
    r.shape.context = 8192;
    r.shape.n_split = 3;
    r.shape.split[0] = 64;
    r.shape.split[1] = 1;
    r.shape.split[2] = 1;
    table(&r, FIT_AXIS_SPLIT, NULL, 0);
    assert_int_equal(r.n, 1 + 2 + 1 + 1 + 1); /* 62,3,1 63,2,1 64,0,2 64,1,1 64,2,0 65,0,1 */
    assert_string_equal(r.rows[0].value, "62,3,1");
    assert_string_equal(r.rows[5].value, "65,0,1");
    rig_done(&r);

    rig_init(&r, model_small(1, false), 1);
    r.shape.context = 1024;
    table(&r, FIT_AXIS_SPLIT, NULL, 0);
    assert_int_equal(r.n, 1);
    assert_string_equal(r.rows[0].value, "ROCm0");
    rig_done(&r);
}

/* 131,072 tokens more take 4.832 GB of a card with 8 full-attention layers, the mask in four copies included. */
static void test_other_tables(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r, model_27b(), 2);
    r.shape.context = 262144;
    r.shape.n_split = 2;
    r.shape.split[0] = r.shape.split[1] = 33;
    table(&r, FIT_AXIS_CONTEXT, NULL, 0);
    assert_int_equal(r.n, 7);
    assert_string_equal(r.rows[0].value, "65536");
    assert_string_equal(r.rows[6].value, "524288");
    near((double)(row(&r, "262144")->left[0] - row(&r, "393216")->left[0]), 4.832e9, 0.005e9);
    assert_true(row(&r, "262144")->declared);

    r.shape.slots = 2;
    table(&r, FIT_AXIS_SLOTS, NULL, 0);
    assert_int_equal(r.n, 6);
    assert_string_equal(r.rows[0].value, "1");
    assert_int_equal(row(&r, "4")->slot_context, 65536);
    assert_true(row(&r, "2")->declared);

    r.shape.ubatch = 768;
    table(&r, FIT_AXIS_UBATCH, NULL, 0);
    assert_int_equal(r.n, 6); /* 128 256 512 768 1024 2048 */
    assert_true(row(&r, "768")->declared);
    assert_true(row(&r, "2048")->left[1] < row(&r, "512")->left[1]);
    r.shape.ubatch = 4096; /* the batch bounds it */
    table(&r, FIT_AXIS_UBATCH, NULL, 0);
    assert_true(row(&r, "2048")->declared);

    table(&r, FIT_AXIS_KV, NULL, 0);
    assert_int_equal(r.n, 9);
    assert_true(row(&r, "f16")->declared);
    assert_true(row(&r, "q8_0")->left[0] > row(&r, "f16")->left[0]);
    r.shape.v_type = gguf_type_get(S_Q8_0);
    table(&r, FIT_AXIS_KV, NULL, 0);
    assert_int_equal(r.n, 10);
    assert_true(row(&r, "f16/q8_0")->declared);
    r.shape.flash = FLEET_OFF;
    table(&r, FIT_AXIS_KV, NULL, 0);
    assert_false(row(&r, "q8_0")->fits);
    assert_non_null(strstr(row(&r, "q8_0")->why, "flash_attn"));
    rig_done(&r);
}

static void test_axes(void **state)
{
    (void)state;
    enum fit_axis axis = FIT_AXIS_SPLIT;
    struct err err = {0};
    struct rig r;

    assert_int_equal(fit_axis_of(STR("kv"), &axis, &err), 0);
    assert_int_equal(axis, FIT_AXIS_KV);
    assert_int_equal(fit_axis_of(STR("splits"), &axis, &err), -EINVAL);
    assert_non_null(strstr(err.text, "ubatch"));
    rig_init(&r, model_small(1, false), 1);
    assert_int_equal(fit_table(&r.in, (enum fit_axis)17, NULL, 0, r.arena, &r.rows, &r.n, &err), -EINVAL);
    struct arena *tiny = arena_new(16);
    assert_int_equal(fit_table(&r.in, FIT_AXIS_KV, NULL, 0, tiny, &r.rows, &r.n, &err), -ENOMEM);
    arena_free(tiny);
    r.in.shape = NULL;
    assert_int_equal(fit_table(&r.in, FIT_AXIS_KV, NULL, 0, r.arena, &r.rows, &r.n, &err), -EINVAL);
    rig_done(&r);
}

static void test_no_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    struct rig r;
    bool failed = true;
    long n = 0, refused = 0;
    rig_init(&r, model_small(2, true), 2);
    r.shape.context = 2048;
    predict(&r);
    for (; failed && n < 1000; n++) {
        struct fit_speed speed;
        failing_arm(n);
        struct arena *a = arena_new(64U << 20);
        int e = a ? fit_knobs(&r.in, &r.now, a, &r.knobs, &r.n, NULL) : -ENOMEM;
        for (int axis = FIT_AXIS_SPLIT; e == 0 && axis <= FIT_AXIS_KV; axis++)
            e = fit_table(&r.in, (enum fit_axis)axis, NULL, 0, a, &r.rows, &r.n, NULL);
        if (e == 0)
            e = fit_speed(&r.in, &r.now, 0, a, &speed, NULL);
        (void)arena_free(a);
        const long live = failing_disarm(&failed);
        assert_int_equal(live, 0);
        refused += e == -ENOMEM;
        assert_true(e == 0 || (failed && e == -ENOMEM)); /* qsort does without the memory that it asks for */
    }
    assert_in_range(n, 20, 999);
    assert_true(refused > n - 5);
    rig_done(&r);
#else
    skip();
#endif
}

/* ---- working sets --------------------------------------------------------------------------------------------------------------------- */

/* A pair of replicas of 122,636 tokens: two families of 50k beside 50k running do not go into one. */
static void test_capacity_wall(void **state)
{
    (void)state;
    struct arena *a = arena_new(1U << 16);
    struct fit_working_set w;
    struct fit_families f = {.replicas = 2, .replica_tokens = 122636, .families = 3, .family_tokens = 50000, .running = 1, .running_tokens = 50000};
    struct err err = {0};

    assert_int_equal(fit_working_set(&f, a, &w, &err), 0);
    assert_true(w.wall);
    assert_int_equal(w.families_per_replica, 2);
    assert_int_equal(w.need_tokens, 150000);
    assert_int_equal(w.short_tokens, 150000 - 122636);
    assert_int_equal(w.kept_families, 2);
    assert_int_equal(w.replicas_needed, 3);
    assert_non_null(strstr(w.text, "capacity wall, not a matter of placement"));
    assert_non_null(strstr(w.text, "27,364 too many"));

    f.family_tokens = 30000;
    f.running_tokens = 30000;
    assert_int_equal(fit_working_set(&f, a, &w, &err), 0);
    assert_false(w.wall);
    assert_int_equal(w.need_tokens, 90000);
    assert_int_equal(w.short_tokens, 0);
    assert_int_equal(w.kept_families, 3);
    assert_int_equal(w.replicas_needed, 1); /* three of 30k beside 30k running: 120k */
    assert_non_null(strstr(w.text, "90,000 of 122,636"));

    f.running = 5;
    assert_int_equal(fit_working_set(&f, a, &w, &err), 0);
    assert_true(w.wall);
    assert_int_equal(w.kept_families, 0);
    assert_int_equal(w.replicas_needed, 0);
    assert_non_null(strstr(w.text, "no number of replicas"));

    f = (struct fit_families){.replicas = 1, .replica_tokens = 100};
    assert_int_equal(fit_working_set(&f, a, &w, &err), 0);
    assert_false(w.wall);
    f.families = 4;
    assert_int_equal(fit_working_set(&f, a, &w, &err), 0);
    assert_int_equal(w.kept_families, 4);
    f.families = UINT32_MAX;
    f.family_tokens = UINT64_MAX;
    f.running = UINT32_MAX;
    f.running_tokens = UINT64_MAX;
    assert_int_equal(fit_working_set(&f, a, &w, &err), 0);
    assert_true(w.wall);
    f.replicas = 0;
    assert_int_equal(fit_working_set(&f, a, &w, &err), -EINVAL);
    f.replicas = 1;
    f.replica_tokens = 0;
    assert_int_equal(fit_working_set(&f, a, &w, &err), -EINVAL);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_knobs_of_27b),     cmocka_unit_test(test_knobs_of_experts), cmocka_unit_test(test_knobs_of_the_host), cmocka_unit_test(test_balance_table),
        cmocka_unit_test(test_split_over_three), cmocka_unit_test(test_other_tables),     cmocka_unit_test(test_axes),              cmocka_unit_test(test_capacity_wall),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
