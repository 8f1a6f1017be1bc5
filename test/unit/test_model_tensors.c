/* SPDX-License-Identifier: MIT
 *
 * Weights and what surrounds them: bytes and places of tensors, tied outputs, sets of parts, drafters, projectors, unknown architectures, and the table itself.
 */
#include "model_aid.h"

#include "../../src/model/model_int.h"

#include "failing_malloc.h"

static void check_place(const struct model *m, const char *name, enum model_place place, int32_t layer)
{
    const struct model_tensor *t = model_find_tensor(m, name);

    if (!t)
        fail_msg("no tensor '%s'", name);
    if (t->place != place || t->layer != layer)
        fail_msg("'%s' has place %d, layer %d", name, (int)t->place, t->layer);
}

static void test_bytes(void **state)
{
    (void)state;
    struct made f = made_new("llama", 2, 256, 4, 4);
    made_tensor(&f, "token_embd.weight", Q4_0, 256, 3, 0);
    made_tensor(&f, "blk.1.ffn_up_exps.weight", MXFP4, 256, 5, 7);
    made_tensor(&f, "output.weight", Q4_K, 256, 3, 0);
    struct model *m = made_load(&f);
    const struct model_tensor *t = &m->tensors[1];

    assert_int_equal(m->n_tensors, 3);
    assert_int_equal(m->n_parts, 1);
    assert_string_equal(t->name, "blk.1.ffn_up_exps.weight");
    assert_string_equal(t->type->name, "mxfp4");
    assert_int_equal(t->bytes, 8 * 17 * 5 * 7);
    assert_int_equal(t->ne[2], 7);
    assert_int_equal(t->ne[3], 1);
    assert_true(t->expert && t->used_by_matmul);
    assert_int_equal(m->tensors[0].bytes, 3 * 8 * 18);
    assert_int_equal(m->tensors[0].offset, 0);
    assert_int_equal(t->offset, 448); /* 432 rounded up to 32 */
    assert_int_equal(m->weight_bytes, 432 + 4760 + 3 * 144);
    assert_int_equal(m->params, 768 + 256 * 35 + 768);
    assert_null(model_find_tensor(m, "blk.1.ffn_up_exps"));
    assert_null(model_tied_tensor(m));
    (void)model_free(m);
}

/* What is loaded of a nextn block that nobody asked for. */
static void test_nextn_loaded(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *name;
        enum model_place place;
    } cases[] = {
        {"deepseek32", "blk.2.exp_probs_b.bias", MODEL_REPEATING}, {"deepseek32", "blk.2.ffn_gate_inp.weight", MODEL_NEXTN},          {"deepseek32", "blk.2.nextn.shared_head_norm.weight", MODEL_NEXTN},
        {"glm-dsa", "blk.2.exp_probs_b.bias", MODEL_REPEATING},    {"cohere2moe", "blk.2.nextn.shared_head_norm.weight", MODEL_REPEATING}, {"cohere2moe", "blk.2.exp_probs_b.bias", MODEL_NEXTN},
        {"hy_v3", "blk.2.ffn_down_exps.weight", MODEL_REPEATING},  {"hy_v3", "blk.2.attn_q_norm.weight", MODEL_NEXTN},                {"step35", "blk.2.attn_q_norm.weight", MODEL_REPEATING},
        {"step35", "blk.2.ffn_up.weight", MODEL_REPEATING},        {"step35", "blk.2.attn_q.weight", MODEL_NEXTN},                    {"glm4moe", "blk.2.exp_probs_b.bias", MODEL_NEXTN},
        {"exaone-moe", "blk.2.exp_probs_b.bias", MODEL_SKIPPED},
    };

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct made f = made_new(cases[i].arch, 3, 256, 4, 4);
        made_key(&f, "nextn_predict_layers", 1);
        made_key(&f, "attention.sliding_window", 32);
        MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 1, 0);
        made_ends(&f, 256, 3);
        made_tensor(&f, "blk.1.exp_probs_b.bias", F32, 4, 0, 0);
        made_tensor(&f, cases[i].name, F32, 256, 0, 0);
        struct model *m = made_load(&f);
        check_place(m, cases[i].name, cases[i].place, 2);
        check_place(m, "blk.1.exp_probs_b.bias", MODEL_REPEATING, 1);
        assert_int_equal(m->nextn_rope, strcmp(cases[i].arch, "step35") == 0);
        assert_false(m->nextn_cached);
        (void)model_free(m);
    }
    struct made f = made_new("bailingmoe3", 3, 256, 4, 4);
    made_key(&f, "nextn_predict_layers", 1);
    made_ends(&f, 256, 3);
    struct model *m = made_load(&f);
    assert_true(m->nextn_cached);
    (void)model_free(m);
}

/* An embedding that is allocated again as an output, although nothing asks for logits. */
static void test_tied_unused(void **state)
{
    (void)state;
    static const char *const archs[] = {"gemma-embedding", "bert"};
    for (size_t i = 0; i < BASE_COUNT(archs); i++) {
        struct made f = made_new(archs[i], 7, 256, 4, 4);
        made_key(&f, "attention.sliding_window", 32);
        made_tensor(&f, "token_embd.weight", F32, 256, 3, 0);
        struct model *m = made_load(&f);
        assert_false(m->logits);
        assert_int_equal(m->tied_output, i == 0);
        assert_int_equal(model_tied_tensor(m) != NULL, i == 0);
        (void)model_free(m);
    }
}

static void test_places(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum model_place place;
        int32_t layer;
        bool expert, product;
    } cases[] = {
        {"token_embd.weight", MODEL_INPUT, -1, false, false},
        {"position_embd.weight", MODEL_INPUT, -1, false, false},
        {"token_types.weight", MODEL_INPUT, -1, false, false},
        {"per_layer_token_embd.weight", MODEL_INPUT, -1, false, false},
        {"masked_embd_centroids.weight", MODEL_INPUT, -1, false, true},
        {"masked_embd_ordering", MODEL_INPUT, -1, false, false},
        {"output.weight", MODEL_OUTPUT, -1, false, true},
        {"output.scale", MODEL_OUTPUT, -1, false, false},
        {"output_norm.weight", MODEL_OUTPUT, -1, false, false},
        {"output_hc_up.weight", MODEL_OUTPUT, -1, false, true},
        {"cls.output.weight", MODEL_OUTPUT, -1, false, true},
        {"enc.output_norm.weight", MODEL_OUTPUT, -1, false, false},
        {"dense_2.weight", MODEL_OUTPUT, -1, false, true},
        {"nextn.post_projection.weight", MODEL_OUTPUT, -1, false, true},
        {"d2t", MODEL_OUTPUT, -1, false, false},
        {"fc.weight", MODEL_OUTPUT, -1, false, true},
        {"token_embd_norm.weight", MODEL_FIRST, -1, false, false},
        {"per_layer_model_proj.weight", MODEL_FIRST, -1, false, true},
        {"outputs.weight", MODEL_FIRST, -1, false, true},
        {"rope_freqs.weight", MODEL_PER_BUFFER, -1, false, false},
        {"rope_factors_long.weight", MODEL_PER_BUFFER, -1, false, false},
        {"rope_factors_short.weight", MODEL_PER_BUFFER, -1, false, false},
        {"blk.0.attn_q.weight", MODEL_REPEATING, 0, false, true},
        {"blk.11.attn_q.bias", MODEL_REPEATING, 11, false, false},
        {"blk.3.attn_norm.weight", MODEL_REPEATING, 3, false, false},
        {"blk.3.ssm_conv1d.weight", MODEL_REPEATING, 3, false, false},
        {"blk.3.ffn_gate_up_exps.weight", MODEL_REPEATING, 3, true, true},
        {"blk.3.ffn_down_chexps.weight", MODEL_REPEATING, 3, true, true},
        {"blk.3.ffn_down_shexp.weight", MODEL_REPEATING, 3, false, true},
        {"blk.3.ffn_up_exps.bias", MODEL_REPEATING, 3, true, false},
        {"enc.blk.5.attn_q.weight", MODEL_REPEATING, 5, false, true},
        {"dec.blk.6.attn_rel_b.weight", MODEL_REPEATING, 6, false, false},
        {"blk.7", MODEL_FIRST, -1, false, true},
        {"blk.x.attn_q.weight", MODEL_FIRST, -1, false, true},
        {"blk.-1.attn_q.weight", MODEL_FIRST, -1, false, true},
    };
    struct made f = made_new("llama", 12, 256, 4, 4);

    for (size_t i = 0; i < BASE_COUNT(cases); i++)
        made_tensor(&f, cases[i].name, F16, 4, 4, 0);
    struct model *m = made_load(&f);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        const struct model_tensor *t = model_find_tensor(m, cases[i].name);

        check_place(m, cases[i].name, cases[i].place, cases[i].layer);
        if (t->expert != cases[i].expert || t->used_by_matmul != cases[i].product)
            fail_msg("'%s': expert %d, matmul %d", t->name, t->expert, t->used_by_matmul);
    }
    (void)model_free(m);
}

/* Law 2.3. */
static void test_tied(void **state)
{
    (void)state;
    struct made f = made_new("llama", 1, 64, 4, 4);
    made_tensor(&f, "token_embd.weight", F16, 64, 3, 0);
    struct model *m = made_load(&f);
    assert_true(m->tied_output && m->own_embeddings);
    assert_false(m->tied_copy_always);
    assert_ptr_equal(model_tied_tensor(m), &m->tensors[0]);
    (void)model_free(m);

    f = made_new("qwen2moe", 1, 64, 4, 4);
    made_tensor(&f, "token_embd.weight", F16, 64, 3, 0);
    made_refused(&f, -EBADMSG, "tensor 'output.weight' is missing, which qwen2moe models need");

    f = made_new("llama", 1, 64, 4, 4);
    made_tensor(&f, "blk.0.attn_q.weight", F16, 64, 64, 0);
    made_refused(&f, -EBADMSG, "'token_embd.weight' are both missing");

    /* a head kept in a file of its own, to go beside its target */
    f = made_new("glm4moe", 3, 64, 4, 4);
    made_key(&f, "nextn_predict_layers", 1);
    made_tensor(&f, "blk.2.nextn.eh_proj.weight", F16, 128, 64, 0);
    m = made_load(&f);
    assert_false(m->tied_output || m->own_embeddings);
    assert_true(m->mtp);
    (void)model_free(m);
}

static void test_nextn_skipped(void **state)
{
    (void)state;
    static const char *const archs[] = {"bailingmoe2", "exaone4", "exaone-moe", "glm4"};

    for (size_t i = 0; i < BASE_COUNT(archs); i++) {
        struct made f = made_new(archs[i], 2, 64, 4, 4);
        made_key(&f, "nextn_predict_layers", 1);
        made_ends(&f, 64, 3);
        made_tensor(&f, "blk.0.attn_q.weight", F16, 64, 64, 0);
        made_tensor(&f, "blk.1.attn_q.weight", F16, 64, 64, 0);
        struct model *m = made_load(&f);

        check_place(m, "blk.0.attn_q.weight", MODEL_REPEATING, 0);
        check_place(m, "blk.1.attn_q.weight", MODEL_SKIPPED, 1);
        assert_false(m->mtp || m->layers[1].attention);
        assert_true(m->layers[1].nextn && m->nextn_skipped);
        (void)model_free(m);
    }
}

static void test_flags(void **state)
{
    (void)state;
    struct made f = made_new("grok", 1, 64, 4, 4);
    made_ends(&f, 64, 3);
    gguf_put_str(f.w, "tokenizer.chat_template", STR("{{ messages }}"));
    gguf_put_bool(f.w, "grok.attention.causal", false);
    struct model *m = made_load(&f);
    assert_true(m->flash_attention_off && m->split_tensor_refused && m->chat_template);
    assert_false(m->causal);
    (void)model_free(m);

    /* a tokenizer without tokens */
    f = made_bare("llama");
    made_key(&f, "context_length", 64);
    made_key(&f, "embedding_length", 64);
    made_key(&f, "block_count", 1);
    made_key(&f, "vocab_size", 77);
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->vocab, 77);
    assert_string_equal(m->tokenizer, "");
    assert_string_equal(m->name, "");
    (void)model_free(m);
}

/* ---- drafters and projectors ----------------------------------------------------------------------- */

static struct made dflash(uint32_t window)
{
    struct made f = made_new("dflash", 5, 256, 8, 2);

    MADE_KEYS(&f, "target_layers", 1, 8, 15, 22);
    made_key(&f, "block_size", 8);
    if (window > 0) {
        made_key(&f, "attention.sliding_window", window);
        MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 1, 1, 1, 0);
    }
    made_tensor(&f, "fc.weight", F16, 1024, 256, 0);
    return f;
}

static void test_dflash(void **state)
{
    (void)state;
    struct made f = dflash(2048);
    struct model *m = made_load(&f);
    assert_int_equal(m->role, MODEL_DRAFT_DFLASH);
    assert_int_equal(m->cache, MODEL_CACHE_SWA);
    assert_int_equal(m->window, 2048);
    assert_int_equal(m->taps, 4);
    assert_int_equal(m->block_size, 8);
    assert_false(m->own_embeddings || m->tied_output);
    made_kinds(m, "1 full attention, 4 sliding window");
    check_place(m, "fc.weight", MODEL_OUTPUT, -1);
    (void)model_free(m);

    f = dflash(0);
    m = made_load(&f);
    assert_int_equal(m->cache, MODEL_CACHE_PLAIN);
    assert_int_equal(m->layers[0].k_width + m->layers[0].v_width, 128);
    (void)model_free(m);

    f = dflash(0);
    made_key(&f, "attention.sliding_window", 2048);
    made_refused(&f, -EBADMSG, "key 'dflash.attention.sliding_window_pattern' is missing");

    f = dflash(0); /* of deepseek4 blocks */
    made_key(&f, "attention.sliding_window", 128);
    made_key(&f, "hyper_connection.count", 4);
    m = made_load(&f);
    made_kinds(m, "5 sliding window");
    (void)model_free(m);
}

static void test_dspark(void **state)
{
    (void)state;
    for (int head = 0; head < 2; head++) {
        struct made f = dflash(0);
        gguf_put_bool(f.w, "dflash.sample_from_anchor", head);
        made_tensor(&f, "markov_w1.weight", F16, 64, 3, 0);
        made_tensor(&f, "markov_w2.weight", F16, 64, 3, 0);
        if (head)
            made_tensor(&f, "conf_proj.weight", F16, 320, 1, 0);
        struct model *m = made_load(&f);

        assert_int_equal(m->role, MODEL_DRAFT_DSPARK);
        assert_int_equal(m->confidence_head, head);
        assert_int_equal(m->sample_from_anchor, head);
        check_place(m, "markov_w1.weight", MODEL_OUTPUT, -1);
        assert_false(model_find_tensor(m, "markov_w1.weight")->used_by_matmul);
        assert_true(model_find_tensor(m, "markov_w2.weight")->used_by_matmul);
        (void)model_free(m);
    }
}

static void test_eagle3(void **state)
{
    (void)state;
    struct made f = made_new("eagle3", 1, 4096, 32, 8);
    MADE_KEYS(&f, "target_layers", 2, 16, 29);
    made_tensor(&f, "fc.weight", F16, 12288, 4096, 0);
    struct model *m = made_load(&f);
    assert_int_equal(m->role, MODEL_DRAFT_EAGLE3);
    assert_int_equal(m->taps, 3);
    assert_false(m->own_embeddings || m->tied_output);
    assert_int_equal(m->layers[0].k_width, 1024);
    (void)model_free(m);

    f = made_new("eagle3", 1, 64, 4, 4);
    MADE_KEYS(&f, "target_layers", 2, 16);
    made_refused(&f, -EBADMSG, "'eagle3.target_layers' has 2 values, expected 3");
    f = made_new("eagle3", 1, 64, 4, 4);
    made_refused(&f, -EBADMSG, "'eagle3.target_layers' is missing");
}

static void test_assistant(void **state)
{
    (void)state;
    struct made f = made_new("gemma4-assistant", 4, 256, 4, 1);
    made_key(&f, "nextn_predict_layers", 4);
    made_key(&f, "attention.sliding_window", 512);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 1, 1, 0);
    made_tensor(&f, "token_embd.weight", F16, 256, 3, 0);
    made_tensor(&f, "blk.0.attn_q.weight", F16, 256, 256, 0);
    struct model *m = made_load(&f);

    assert_int_equal(m->role, MODEL_DRAFT_ASSISTANT);
    assert_int_equal(m->cache, MODEL_CACHE_NONE);
    assert_true(m->tied_output && m->rope_dense_only);
    for (int i = 0; i < 4; i++)
        assert_false(m->layers[i].attention);
    check_place(m, "blk.0.attn_q.weight", MODEL_REPEATING, 0);
    (void)model_free(m);
}

static void test_projector(void **state)
{
    (void)state;
    struct made f = made_bare("clip");
    gguf_put_u32(f.w, "clip.vision.block_count", 27);
    made_tensor(&f, "v.blk.0.attn_q.weight", F16, 64, 64, 0);
    made_tensor(&f, "mm.0.weight", F16, 64, 128, 0);
    made_tensor(&f, "output.weight", F16, 64, 2, 0);
    struct model *m = made_load(&f);

    assert_true(m->known);
    assert_int_equal(m->role, MODEL_PROJECTOR);
    assert_int_equal(m->cache, MODEL_CACHE_NONE);
    assert_int_equal(m->n_layer, 0);
    assert_int_equal(m->weight_bytes, 2 * (64 * 64 + 64 * 128 + 64 * 2));
    check_place(m, "output.weight", MODEL_FIRST, -1);
    (void)model_free(m);
}

static void test_unknown(void **state)
{
    (void)state;
    struct made f = made_bare("nosuch9");
    gguf_put_u32(f.w, "nosuch9.block_count", 4000000000u);
    made_tensor(&f, "token_embd.weight", F16, 64, 3, 0);
    made_tensor(&f, "blk.6.attn_q.weight", F16, 64, 64, 0);
    struct model *m = made_load(&f);

    assert_false(m->known);
    assert_string_equal(m->arch, "nosuch9");
    assert_int_equal(m->cache, MODEL_CACHE_NONE);
    assert_int_equal(m->weight_bytes, 2 * (64 * 3 + 64 * 64));
    assert_int_equal(m->n_layer, 7);
    assert_int_equal(m->layers[6].k_width, 0);
    check_place(m, "blk.6.attn_q.weight", MODEL_REPEATING, 6);
    (void)model_free(m);

    f = made_bare("nosuch9");
    made_tensor(&f, "blk.512.attn_q.weight", F16, 64, 64, 0);
    made_refused(&f, -E2BIG, "block 512");
}

/* ---- sets -------------------------------------------------------------------------------------------- */

#define PARTS 3

static void make_set(struct made *f, const char *second)
{
    for (uint16_t i = 0; i < PARTS; i++) {
        f[i] = i == 0 ? made_new("llama", 2, 64, 4, 4) : made_bare("llama");
        gguf_put_u16(f[i].w, "split.no", i);
        gguf_put_u16(f[i].w, "split.count", PARTS);
        gguf_put_i32(f[i].w, "split.tensors.count", 4);
    }
    made_tensor(&f[1], "token_embd.weight", F16, 64, 3, 0); /* the first has metadata only */
    made_tensor(&f[1], "blk.0.attn_q.weight", F16, 64, 64, 0);
    made_tensor(&f[2], second, F16, 64, 64, 0);
    made_tensor(&f[2], "output.weight", F16, 64, 3, 0);
    for (int i = 0; i < PARTS; i++)
        made_open(&f[i]);
}

static int load_set(struct made *f, const int *order, size_t n, struct model **ret, struct err *err)
{
    const struct gguf *parts[PARTS + 1];

    for (size_t i = 0; i < n; i++)
        parts[i] = f[order[i]].g;
    return model_load(parts, n, ret, err);
}

static void test_set(void **state)
{
    (void)state;
    struct made f[PARTS];
    struct model *m = NULL;
    struct err err = {0};

    make_set(f, "blk.1.attn_q.weight");
    assert_int_equal(load_set(f, (int[]){0, 1, 2}, 3, &m, &err), 0);
    assert_int_equal(m->n_parts, 3);
    assert_int_equal(m->n_tensors, 4);
    assert_int_equal(m->tensors[0].part, 1);
    assert_int_equal(m->tensors[3].part, 2);
    assert_int_equal(m->tensors[2].offset, 0); /* each part counts from its own start */
    assert_int_equal(m->weight_bytes, 2 * 2 * (64 * 3 + 64 * 64));
    m = model_free(m);

    assert_int_equal(load_set(f, (int[]){0, 2, 1}, 3, &m, &err), -EBADMSG);
    assert_string_equal(err.text, "part 2 of 3 says it is part 3 of 3");
    assert_int_equal(load_set(f, (int[]){0, 1}, 2, &m, &err), -EBADMSG);
    assert_int_equal(load_set(f, (int[]){0}, 1, &m, &err), -EBADMSG);
    assert_int_equal(load_set(f, NULL, 0, &m, &err), -EINVAL);
    assert_null(m);
    for (int i = 0; i < PARTS; i++)
        made_done(&f[i]);

    make_set(f, "blk.0.attn_q.weight");
    assert_int_equal(load_set(f, (int[]){0, 1, 2}, 3, &m, &err), -EBADMSG);
    assert_string_equal(err.text, "tensor 'blk.0.attn_q.weight' is in part 2 and again in part 3");
    assert_null(m);
    for (int i = 0; i < PARTS; i++)
        made_done(&f[i]);
}

static void test_set_foreign(void **state)
{
    (void)state;
    struct made f[2] = {made_new("llama", 2, 64, 4, 4), made_bare("llama")};
    struct model *m = NULL;
    struct err err = {0};

    made_open(&f[0]);
    made_open(&f[1]);
    assert_int_equal(load_set(f, (int[]){0, 1}, 2, &m, &err), -EBADMSG);
    assert_string_equal(err.text, "part 1 is no part of a set");
    made_done(&f[0]);
    made_done(&f[1]);
}

/* ---- the table, memory ---------------------------------------------------------------------------------- */

static void test_table(void **state)
{
    (void)state;
    size_t n = 0;

    for (const char *name; (name = model_arch(n)) != NULL; n++) {
        assert_true(model_arch_known(str_of(name)));
        if (n > 0)
            assert_true(strcmp(model_arch(n - 1), name) < 0);
    }
    assert_int_equal(n, 158);
    assert_false(model_arch_known(STR("")));
    assert_false(model_arch_known(STR("llam")));
    assert_false(model_arch_known(STR("llama5")));
    assert_false(model_arch_known(STR("zzz")));
    assert_null(model_free(NULL));
}

static void test_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    struct made f = made_new("gemma4", 4, 64, 4, 4);
    const struct gguf *part;
    struct err err = {0};
    bool failed = true;
    made_key(&f, "attention.sliding_window", 32);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0, 1, 0);
    made_ends(&f, 64, 3);
    made_open(&f);
    part = f.g;
    for (long n = 0; failed; n++) {
        struct model *m = NULL;
        failing_arm(n);
        int r = model_load(&part, 1, &m, &err);
        m = model_free(m);
        assert_int_equal(failing_disarm(&failed), 0);
        if (r != (failed ? -ENOMEM : 0))
            fail_msg("call %ld: %d, '%s'", n, r, err.text);
    }
    made_done(&f);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_nextn_loaded),
        cmocka_unit_test(test_tied_unused),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_nextn_skipped),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_dflash),
        cmocka_unit_test(test_dspark),
        cmocka_unit_test(test_eagle3),
        cmocka_unit_test(test_assistant),
        cmocka_unit_test(test_projector),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_set_foreign),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests_name("model_tensors", tests, NULL, NULL);
}
