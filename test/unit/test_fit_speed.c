/* SPDX-License-Identifier: MIT
 *
 * Speeds: what a pass reads is counted to the byte, and the streaming figures of a real box come out: active experts over a PCIe Gen4 x4 link, the same from the host's memory.
 */
#include "solve_models.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define LINK_X4 6720000000U /* pinned, host to device */
#define HOST_RATE 256000000000U

struct rig {
    struct fit_device devices[2];
    struct fit_host host;
    struct fit_shape shape;
    struct fit_input in;
    struct fit_result result;
    struct fit_speed speed;
    struct arena *arena;
};

static void rig_init(struct rig *r, struct model *m, size_t n_devices)
{
    memset(r, 0, sizeof(*r));
    r->host = (struct fit_host){.total_bytes = 256 * GIB, .free_bytes = 256 * GIB, .bandwidth_bytes_s = HOST_RATE};
    for (size_t d = 0; d < 2; d++)
        r->devices[d] = (struct fit_device){.name = d ? "ROCm1" : "ROCm0", .backend = FIT_HIP, .total_bytes = 32 * GIB, .free_bytes = 32 * GIB, .bandwidth_bytes_s = 640000000000, .link_bytes_s = LINK_X4};
    fit_shape_default(&r->shape);
    r->shape.context = 4096;
    r->in = (struct fit_input){.target = m, .shape = &r->shape, .devices = r->devices, .n_devices = n_devices, .host = &r->host, .engine_version = "0.7.0"};
    r->arena = arena_new(64U << 20);
    assert_non_null(r->arena);
}

static void rig_run(struct rig *r, uint64_t depth)
{
    struct err err = {0};

    if (fit_predict(&r->in, r->arena, &r->result, &err) < 0 || fit_speed(&r->in, &r->result, depth, r->arena, &r->speed, &err) < 0)
        fail_msg("%s", err.text);
}

static void rig_done(struct rig *r, struct model *m)
{
    r->arena = arena_free(r->arena);
    (void)model_free(m);
}

static void assert_near(double value, double want, double part)
{
    if (!(value >= want * (1 - part) && value <= want * (1 + part)))
        fail_msg("%.6g is not %.6g", value, want);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------------- */

static uint64_t read_of(const struct model *m, double experts)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct model_tensor *t = &m->tensors[i];
        const uint64_t padded = (t->bytes + 31) / 32 * 32;
        if (t->place != MODEL_INPUT && t->place != MODEL_SKIPPED && t->place != MODEL_NEXTN)
            sum += strstr(t->name, "_exps") ? (uint64_t)((double)padded * experts) : padded;
    }
    return sum;
}

static void test_weights_and_cache(void **state)
{
    (void)state;
    struct model *m = model_small(3, false);
    struct rig r;
    rig_init(&r, m, 2);
    rig_run(&r, 0);
    const uint64_t weights = read_of(m, 1);

    assert_int_equal(r.speed.bytes_per_token, weights);
    assert_int_equal(r.speed.read_bytes[0] + r.speed.read_bytes[1], weights);
    assert_int_equal(r.speed.read_bytes[2], 0);
    assert_near(r.speed.decode_tok_s, 640e9 / (double)weights, 1e-9);
    assert_near(r.speed.pass_s, (double)weights / 640e9, 1e-9);
    assert_near(r.speed.pass_tokens, 1, 1e-12);

    /* K and V of 1000 tokens in f16 */
    uint64_t cell = 0;
    for (uint32_t il = 0; il < m->n_layer; il++)
        cell += 2 * (m->layers[il].k_width + m->layers[il].v_width);
    rig_run(&r, 1000);
    assert_int_equal(r.speed.bytes_per_token, weights + 1000 * cell);
    r.shape.k_type = r.shape.v_type = gguf_type_get(S_Q8_0);
    rig_run(&r, 1000);
    assert_int_equal(r.speed.bytes_per_token, weights + 1000 * cell * 34 / 64);
    r.shape.kv_on_cpu = true;
    rig_run(&r, 1000);
    assert_int_equal(r.speed.read_bytes[2], 1000 * cell * 34 / 64);
    rig_done(&r, m);
}

/* The same bytes take as long wherever they lie when memories are alike; a slower card is felt by its part. */
static void test_devices_in_series(void **state)
{
    (void)state;
    struct model *m = model_small(4, false);
    struct rig r;
    rig_init(&r, m, 2);
    r.shape.n_split = 2;
    r.shape.split[0] = 1;
    rig_run(&r, 0);
    const double alone = r.speed.decode_tok_s;

    r.shape.split[1] = 1;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s == alone);
    assert_true(r.speed.read_bytes[0] > 0 && r.speed.read_bytes[1] > 0);
    r.devices[1].bandwidth_bytes_s = 64000000000;
    rig_run(&r, 0);
    assert_near(r.speed.pass_s, (double)r.speed.read_bytes[0] / 640e9 + (double)r.speed.read_bytes[1] / 64e9, 1e-9);
    /* layers on the host are read from its memory */
    r.shape.gpu_layers = 1;
    rig_run(&r, 0);
    assert_true(r.speed.read_bytes[2] > 0);
    assert_int_equal(r.speed.read_bytes[0] + r.speed.read_bytes[1] + r.speed.read_bytes[2], read_of(m, 1));
    rig_done(&r, m);
}

static void test_unknown_bandwidth(void **state)
{
    (void)state;
    struct model *m = model_small(5, false);
    struct rig r;
    rig_init(&r, m, 2);
    r.devices[1].bandwidth_bytes_s = 0;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s == 0 && r.speed.prefill_tok_s == 0 && r.speed.pass_s == 0);
    assert_int_equal(r.speed.bytes_per_token, read_of(m, 1));
    assert_non_null(strstr(r.speed.assumes, "declare the bandwidth"));
    /* not needed: nothing lies there */
    r.shape.n_split = 2;
    r.shape.split[0] = 1;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s > 0);
    /* a shared pool has the host's */
    r.shape.split[0] = 0;
    r.shape.split[1] = 1;
    r.devices[1].shared = true;
    rig_run(&r, 0);
    assert_near(r.speed.decode_tok_s, 256e9 / (double)read_of(m, 1), 1e-9);
    r.host.bandwidth_bytes_s = 0;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s == 0);
    struct err err = {0};
    r.in.shape = NULL;
    assert_int_equal(fit_speed(&r.in, &r.result, 0, r.arena, &r.speed, &err), -EINVAL);
    rig_done(&r, m);
}

/* ---- experts -------------------------------------------------------------------------------------------------------------------- */

/* 22 layers of ten active experts of 3 matrices 2560 x 540 at 16 bits: 1.70 GiB a token. */
static struct model *active_1_70_gib(void)
{
    return model_moe(22, 540, S_F16);
}

static void test_streamed_experts(void **state)
{
    (void)state;
    struct model *m = active_1_70_gib();
    struct rig r;
    rig_init(&r, m, 1);
    const double active = 22 * 10 * 3 * 2560.0 * 540 * 2;

    assert_near(active / (double)GIB, 1.70, 0.001);
    r.shape.cpu_moe = UINT32_MAX;
    r.shape.moe_cache_bytes = 1; /* as good as none: everything is streamed */
    rig_run(&r, 0);
    assert_near((double)r.speed.link_bytes[0], active, 1e-6);
    const double link_s = (double)r.speed.link_bytes[0] / LINK_X4;
    assert_near(link_s, 0.272, 0.005);
    assert_near(1 / link_s, 3.7, 0.01);
    assert_true(r.speed.decode_tok_s < 1 / link_s && r.speed.decode_tok_s > 0.95 / link_s);
    assert_non_null(strstr(r.speed.assumes, "over the link"));

    /* a fifth of them resident */
    r.shape.moe_cache_bytes = m->weight_bytes / 5;
    rig_run(&r, 0);
    assert_near(LINK_X4 / (double)r.speed.link_bytes[0], 4.6, 0.01);
    /* all of them */
    r.shape.moe_cache_bytes = m->weight_bytes;
    rig_run(&r, 0);
    assert_int_equal(r.speed.link_bytes[0], 0);

    /* computed where they lie, in the host's memory */
    r.shape.moe_cache_bytes = 0;
    rig_run(&r, 0);
    assert_int_equal(r.speed.link_bytes[0], 0);
    assert_near((double)r.speed.read_bytes[1], active, 1e-6);
    assert_near((double)r.speed.read_bytes[1] / HOST_RATE, 0.0071, 0.01);
    assert_non_null(strstr(r.speed.assumes, "computed there"));
    assert_non_null(strstr(r.speed.assumes, "10 of 512"));

    /* without the link's speed the stream has none, computing on the host still has */
    r.devices[0].link_bytes_s = 0;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s > 0);
    assert_true(r.speed.prefill_tok_s == 0); /* a prompt would copy them */
    r.shape.moe_cache_bytes = 1;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s == 0);
    rig_done(&r, m);
}

/* Flash-Next's experts on two cards and a host of 256 GB/s: 20.46 tok/s were measured, and a bound from above lies above. */
static void test_bound_holds(void **state)
{
    (void)state;
    struct model *m = model_moe(48, 640, S_Q8_0);
    struct rig r;
    rig_init(&r, m, 2);
    r.shape.cpu_moe = UINT32_MAX;
    rig_run(&r, 8192);
    assert_true(r.speed.decode_tok_s > 20.46 && r.speed.decode_tok_s < 200);
    rig_done(&r, m);

    /* the 27B without a drafter: 17.7 */
    m = model_27b();
    rig_init(&r, m, 2);
    r.shape.context = 262144;
    rig_run(&r, 0);
    assert_true(r.speed.decode_tok_s > 17.7 && r.speed.decode_tok_s < 25);
    rig_done(&r, m);
}

/* An override moves experts like -cmoe; what is looked up in a table by rows is not read. */
static void test_overridden(void **state)
{
    (void)state;
    struct model *m = active_1_70_gib();
    struct rig r;
    rig_init(&r, m, 1);
    r.shape.cpu_moe = UINT32_MAX;
    rig_run(&r, 0);
    const struct fit_speed want = r.speed;

    r.shape.cpu_moe = 0;
    r.shape.overrides[0] = (struct fit_override){"\\.ffn_(up|down|gate)_exps", "CPU"};
    r.shape.n_overrides = 1;
    rig_run(&r, 0);
    assert_near((double)r.speed.read_bytes[1], (double)want.read_bytes[1], 1e-6);
    assert_near((double)r.speed.read_bytes[0], (double)want.read_bytes[0], 1e-6);
    r.shape.overrides[1] = (struct fit_override){"token_embd", "CPU"};
    r.shape.n_overrides = 2;
    const uint64_t before = r.speed.read_bytes[1];
    rig_run(&r, 0);
    assert_int_equal(r.speed.read_bytes[1], before);
    rig_done(&r, m);
}

/* On a prompt nearly all experts are touched, and the host's weights go over the link. */
static void test_prompt(void **state)
{
    (void)state;
    struct model *m = active_1_70_gib();
    struct rig r;
    rig_init(&r, m, 1);
    r.shape.cpu_moe = UINT32_MAX;
    rig_run(&r, 0);
    const double experts = 512.0 / 10 * 1.70 * (double)GIB;
    assert_near(r.speed.prefill_tok_s, 512 / (experts / LINK_X4), 0.02);
    r.shape.ubatch = 1024;
    rig_run(&r, 0);
    assert_near(r.speed.prefill_tok_s, 1024 / (experts / LINK_X4), 0.02);
    rig_done(&r, m);
}

/* ---- drafters ------------------------------------------------------------------------------------------------------------------- */

/* Measured on one box: none 17.7, MTP 3 32.4, MTP 7 26.7, a block drafter of 7 43.5. */
static void test_order_of_drafters(void **state)
{
    (void)state;
    struct model *m = model_27b(), *d = model_dflash2();
    struct rig r;
    double none, mtp3, mtp7, dflash;
    rig_init(&r, m, 2);
    r.shape.context = 262144;
    rig_run(&r, 4096);
    none = r.speed.decode_tok_s;
    r.shape.spec = FIT_SPEC_MTP;
    r.shape.draft_max = 3;
    rig_run(&r, 4096);
    mtp3 = r.speed.decode_tok_s;
    assert_near(r.speed.pass_tokens, 1 + 0.6 + 0.36 + 0.216, 1e-9);
    assert_non_null(strstr(r.speed.assumes, "a guess"));
    r.shape.draft_max = 7;
    rig_run(&r, 4096);
    mtp7 = r.speed.decode_tok_s;
    r.shape.spec = FIT_SPEC_DFLASH;
    r.in.drafter = d;
    rig_run(&r, 4096);
    dflash = r.speed.decode_tok_s;
    assert_true(none < mtp7 && mtp7 < mtp3 && mtp3 < dflash);
    assert_true(r.speed.bytes_per_token < r.speed.read_bytes[0] + r.speed.read_bytes[1]);

    /* a drafter that is never believed only costs; one that always is gives all its tokens */
    r.in.draft_accept = 1e-9;
    rig_run(&r, 4096);
    assert_true(r.speed.decode_tok_s < none);
    assert_non_null(strstr(r.speed.assumes, "measured"));
    r.in.draft_accept = 1;
    rig_run(&r, 4096);
    assert_near(r.speed.pass_tokens, 8, 1e-9);
    (void)model_free(d);
    rig_done(&r, m);
}

/* Checking several tokens at once touches more experts than one token does. */
static void test_drafts_touch_more_experts(void **state)
{
    (void)state;
    struct model *m = model_moe(8, 640, S_Q8_0), *d = model_small_drafter(1, 2560, 151936);
    struct rig r;
    rig_init(&r, m, 1);
    rig_run(&r, 0);
    const uint64_t alone = r.speed.read_bytes[0];
    r.in.drafter = d;
    r.shape.spec = FIT_SPEC_DFLASH;
    rig_run(&r, 0);
    assert_int_equal(r.speed.bytes_per_token, alone);
    const double experts = 8 * 512 * 3.0 * 2560 * 640 * 34 / 32, one = experts * 10 / 512, four = experts * (1 - 0.98046875 * 0.98046875 * 0.98046875 * 0.98046875);
    const double head = 151936.0 * 2560 * 34 / 32; /* which the drafter borrows */
    assert_near((double)r.speed.read_bytes[0], (double)alone - one + four + (double)d->weight_bytes + head, 0.001);
    (void)model_free(d);
    rig_done(&r, m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_and_cache), cmocka_unit_test(test_devices_in_series), cmocka_unit_test(test_unknown_bandwidth),   cmocka_unit_test(test_streamed_experts),
        cmocka_unit_test(test_bound_holds),       cmocka_unit_test(test_overridden),        cmocka_unit_test(test_prompt),              cmocka_unit_test(test_order_of_drafters),
        cmocka_unit_test(test_drafts_touch_more_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
