/* SPDX-License-Identifier: MIT
 *
 * What operators read off their own machines, from headers alone: two 32 GB cards with a 27B hybrid and its drafters, one 24 GB card with a windowed model, and a sparse hybrid whose caches are counted a token.
 */
#include "fit_aid.h"

#include <math.h>

#define CARD ((uint64_t)(31.86 * (double)GIB))

/* Two cards, context 262,144, two slots. */
static void two_cards(struct rig *x, const struct model *m)
{
    rig_init(x, m, 2);
    for (int i = 0; i < 2; i++) {
        x->devices[i].name = i ? "ROCm1" : "ROCm0";
        x->devices[i].backend = FIT_HIP;
        x->devices[i].total_bytes = x->devices[i].free_bytes = CARD;
    }
    x->shape.context = 262144;
    x->shape.slots = 2;
    x->shape.batch = 6144;
    x->shape.ubatch = 1536;
}

static double gib(int64_t bytes)
{
    return (double)bytes / (double)GIB;
}

static void near(double got, double want, double slack, const char *what)
{
    if (fabs(got - want) > slack)
        fail_msg("%s: %.3f, want %.3f", what, got, want);
}

/* Six splits were read; one of them calibrates, the others follow. */
static void six_splits(void **state)
{
    (void)state;
    static const struct {
        double a, b, free0, free1;
    } readings[] = {{39, 26, 2.42, 7.20}, {38, 27, 3.85, 5.77}, {37, 28, 4.28, 5.34}, {36, 29, 4.71, 4.91}, {35, 30, 5.14, 4.48}, {34, 31, 6.57, 3.05}};
    struct model *m = made_27b(), *drafter = made_drafter(2048, false, false);
    int64_t extra[3] = {0};
    const struct fit_calibration cal = {.extra_bytes = extra, .source = "a reading", .n = 3};
    struct rig x;

    two_cards(&x, m);
    x.in.drafter = drafter;
    x.shape.spec = FIT_SPEC_DFLASH;
    x.shape.draft_max = 7;

    /* the steps come from the headers alone */
    double last0 = 0, last1 = 0;
    for (size_t i = 0; i < 6; i++) {
        rig_split(&x, readings[i].a, readings[i].b);
        rig_predict(&x);
        if (i > 0) {
            double step = i == 1 || i == 5 ? 1.43 : 0.43;
            near(gib(x.r.use[0].left) - last0, step, 0.005, "step on the first card");
            near(last1 - gib(x.r.use[1].left), step, 0.005, "step on the second card");
        }
        last0 = gib(x.r.use[0].left);
        last1 = gib(x.r.use[1].left);
    }

    rig_split(&x, 36, 29);
    rig_predict(&x);
    extra[0] = (int64_t)((31.86 - 4.71) * (double)GIB) - (int64_t)(x.r.use[0].used - term(&x, 0, FIT_EXTRA));
    extra[1] = (int64_t)((31.86 - 4.91) * (double)GIB) - (int64_t)(x.r.use[1].used - term(&x, 1, FIT_EXTRA));
    x.in.calibration = &cal;
    for (size_t i = 0; i < 6; i++) {
        char what[64];
        rig_split(&x, readings[i].a, readings[i].b);
        rig_predict(&x);
        (void)snprintf(what, sizeof(what), "-ts %.0f,%.0f", readings[i].a, readings[i].b);
        near(gib(x.r.use[0].left), readings[i].free0, 0.03, what);
        near(gib(x.r.use[1].left), readings[i].free1, 0.03, what);
        /* a gap of half a GiB at most: one split alone keeps it */
        assert_int_equal(x.r.gap_bytes <= GIB / 2, readings[i].a == 36);
    }
    /* 37 of 66 places: blocks 0 to 36 */
    rig_split(&x, 36, 29);
    rig_predict(&x);
    assert_int_equal(x.r.use[0].n_layers, 37);
    assert_int_equal(x.r.layer_device[36], 0);
    assert_int_equal(x.r.layer_device[37], 1);
    rig_done(&x);
    m = model_free(m);
    drafter = model_free(drafter);
}

static void more_context(void **state)
{
    (void)state;
    struct model *m = made_27b();
    uint64_t before[2];
    struct rig x;

    /* eight attention layers a card and the mask in four copies: 4.832 GB */
    two_cards(&x, m);
    rig_split(&x, 1, 1);
    x.shape.slots = 1;
    x.shape.ubatch = 512;
    rig_predict(&x);
    before[0] = x.r.use[0].used;
    before[1] = x.r.use[1].used;
    x.shape.context += 131072;
    rig_predict(&x);
    assert_int_equal(x.r.use[0].used - before[0], 4831838208);
    assert_int_equal(x.r.use[1].used - before[1], 4831838208);

    /* KV of a token, and of one more block with the MTP layer */
    assert_int_equal((term(&x, 0, FIT_KV) + term(&x, 1, FIT_KV)) / x.r.n_ctx, 65536);
    x.shape.spec = FIT_SPEC_MTP;
    rig_predict(&x);
    assert_int_equal((term(&x, 0, FIT_DRAFT_KV) + term(&x, 1, FIT_DRAFT_KV)) / x.r.n_ctx, 4096);
    assert_int_equal(term(&x, 1, FIT_DRAFT_WEIGHTS), 0); /* its weights are the target's */
    /* three rows that may be rolled back */
    assert_int_equal(x.r.n_rs_rows, 4);

    /* what the MTP drafter costs on the second card: 3.05 GiB were read */
    rig_done(&x);
    two_cards(&x, m);
    rig_split(&x, 36, 29);
    x.shape.ubatch = 512;
    rig_predict(&x);
    before[1] = x.r.use[1].used;
    x.shape.spec = FIT_SPEC_MTP;
    rig_predict(&x);
    near(gib((int64_t)(x.r.use[1].used - before[1])), 3.05, 0.75, "MTP drafter");
    rig_done(&x);
    m = model_free(m);
}

/* A saved state is 68 KiB a token with its drafter's; the cap must hold a full slot's. */
static void saved_states(void **state)
{
    (void)state;
    struct model *m = made_27b();
    uint64_t t[2], d[2];
    struct rig x;

    two_cards(&x, m);
    rig_split(&x, 36, 29);
    x.shape.context = 393216;
    x.shape.spec = FIT_SPEC_MTP;
    assert_int_equal(fit_saved_state(&x.in, 1000, &t[0], &d[0], &x.err), 0);
    assert_int_equal(fit_saved_state(&x.in, 1001, &t[1], &d[1], &x.err), 0);
    assert_int_equal(t[1] - t[0], 65536 + 24); /* M-RoPE: positions in two dimensions more */
    assert_int_equal(d[1] - d[0], 4096 + 24);
    assert_int_equal(fit_saved_state(&x.in, 196608, &t[0], &d[0], &x.err), 0);
    near(gib((int64_t)(t[0] + d[0])), 12.8, 0.2, "a full slot");
    x.shape.prompt_cache_bytes = 8192 * MIB;
    rig_predict(&x);
    assert_non_null(note_of(&x.r, "prompt-cache-small"));
    assert_int_equal(term(&x, 2, FIT_PROMPT_CACHE), 8192 * MIB);
    x.shape.prompt_cache_bytes = 16384 * MIB;
    rig_predict(&x);
    assert_null(note_of(&x.r, "prompt-cache-small"));
    assert_null(note_of(&x.r, "prompt-cache-large"));
    x.host.total_bytes = 24 * GIB;
    rig_predict(&x);
    assert_non_null(note_of(&x.r, "prompt-cache-large"));
    rig_done(&x);
    m = model_free(m);
}

static void drafters(void **state)
{
    (void)state;
    struct model *m = made_27b(), *windowed = made_drafter(2048, false, false), *whole = made_drafter(0, true, true);
    struct rig x;

    two_cards(&x, m);
    rig_split(&x, 36, 29);
    x.in.drafter = windowed;
    x.shape.spec = FIT_SPEC_DFLASH;
    rig_predict(&x);
    /* window and ubatch: five layers of two streams */
    assert_int_equal(term(&x, 0, FIT_DRAFT_KV) + term(&x, 1, FIT_DRAFT_KV), 5ull * 2 * 1024 * 2 * 2 * (2048 + 1536));
    assert_null(note_of(&x.r, "drafter-window"));

    /* without a window: 20 KiB a token, five GiB, found before anything is loaded */
    x.in.drafter = whole;
    x.shape.spec = FIT_SPEC_DSPARK;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_DRAFT_KV) + term(&x, 1, FIT_DRAFT_KV), 20480ull * 262144);
    assert_int_equal(note_of(&x.r, "drafter-window")->severity, FIT_WARNING);
    assert_true(strstr(note_of(&x.r, "drafter-window")->text, "5.00 GiB") != NULL);
    x.shape.draft_max = 9;
    rig_predict(&x);
    assert_non_null(note_of(&x.r, "draft-depth"));
    rig_done(&x);
    m = model_free(m);
    windowed = model_free(windowed);
    whole = model_free(whole);
}

/* 12 attention layers of 48, an indexer beside each. */
static void sparse_hybrid(void **state)
{
    (void)state;
    struct made f = made_sized("qwen4exp", 48, 2560, 16, 2, 256, 5120, 256, 262144);
    made_delta_keys(&f, 6144, 128, 16, 48);
    made_key(&f, "attention.indexer.head_count", 36);
    made_key(&f, "attention.indexer.key_length", 128);
    made_key(&f, "attention.indexer.top_k", 2048);
    made_key(&f, "hyper_connection.count", 4);
    made_key(&f, "ple.conv_kernel", 4);
    made_key(&f, "ple.ngram_size", 3);
    MADE_KEYS(&f, "ple.layers", 1);
    made_ends(&f, 2560, 256);
    struct model *m = made_load(&f);
    struct rig x;

    two_cards(&x, m);
    rig_split(&x, 1, 1);
    rig_predict(&x);
    assert_int_equal((term(&x, 0, FIT_KV) + term(&x, 1, FIT_KV)) / x.r.n_ctx, 24576);
    assert_true((term(&x, 0, FIT_INDEXER) + term(&x, 1, FIT_INDEXER)) / x.r.n_ctx >= 3072);
    /* slots divide the pool, they do not multiply it */
    const uint64_t two = term(&x, 0, FIT_KV);
    x.shape.slots = 4;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_KV), two);
    rig_done(&x);
    m = model_free(m);
}

/* One card: a slot of 262,144 tokens costs 3,450 MiB with q8_0, four of them fit in 24,576 MiB and a fifth does not. */
static void windowed_model(void **state)
{
    (void)state;
    struct made f = made_bare("gemma4");
    uint32_t kv[36], swa[36];
    for (uint32_t il = 0; il < 36; il++) {
        swa[il] = il % 6 != 5;
        kv[il] = swa[il] ? 8 : 2;
    }
    made_key(&f, "context_length", 262144);
    made_key(&f, "embedding_length", 3840);
    made_key(&f, "block_count", 36);
    made_key(&f, "feed_forward_length", 21504);
    made_key(&f, "attention.head_count", 16);
    made_keys(&f, "attention.head_count_kv", kv, 36);
    made_keys(&f, "attention.sliding_window_pattern", swa, 36);
    made_key(&f, "attention.key_length", 512);
    made_key(&f, "attention.value_length", 512);
    made_key(&f, "attention.key_length_swa", 256);
    made_key(&f, "attention.value_length_swa", 256);
    made_key(&f, "attention.sliding_window", 1024);
    made_key(&f, "vocab_size", 256);
    gguf_put_str(f.w, "tokenizer.ggml.model", STR("none"));
    made_ends(&f, 3840, 256);
    struct model *m = made_load(&f);
    struct rig x;

    rig_init(&x, m, 1);
    x.devices[0].backend = FIT_CUDA;
    x.shape.k_type = x.shape.v_type = gguf_type_get(Q8_0);
    x.shape.context = 262144;
    rig_predict(&x);
    const uint64_t one = term(&x, 0, FIT_KV);
    near((double)one / (double)MIB, 3450, 35, "one slot");
    x.shape.slots = 4;
    x.shape.context *= 4;
    rig_predict(&x);
    assert_int_equal(term(&x, 0, FIT_KV), 4 * one);
    /* what is fixed came to 8,546 MiB there */
    assert_true(8546 * MIB + 4 * one < 24576 * MIB);
    assert_true(8546 * MIB + 5 * one > 24576 * MIB);
    rig_done(&x);
    m = model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(six_splits), cmocka_unit_test(more_context), cmocka_unit_test(saved_states), cmocka_unit_test(drafters), cmocka_unit_test(sparse_hybrid), cmocka_unit_test(windowed_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
