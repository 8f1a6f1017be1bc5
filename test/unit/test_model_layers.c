/* SPDX-License-Identifier: MIT
 *
 * What layers cache: one test for each family of architectures. Numbers are those of real models or of the worked examples in docs/laws.md (law 3.11), so that a wrong width shows as a wrong number of bytes.
 */
#include "model_aid.h"

/* Bytes of a plain layer's keys and values in f16. */
static uint64_t f16_bytes(const struct model_layer *y, uint64_t cells)
{
    return (y->k_width + y->v_width) * 2 * cells;
}

static uint64_t state_bytes(const struct model_layer *y)
{
    return (y->r_elems + y->s_elems) * 4;
}

static void test_llama(void **state)
{
    (void)state;
    struct made f = made_new("llama", 32, 4096, 32, 8);
    made_key(&f, "feed_forward_length", 14336);
    made_ends(&f, 4096, 3);
    struct model *m = made_load(&f);

    assert_true(m->known);
    assert_string_equal(m->arch, "llama");
    assert_string_equal(m->name, "made for a test");
    assert_string_equal(m->tokenizer, "gpt2");
    assert_int_equal(m->cache, MODEL_CACHE_PLAIN);
    assert_int_equal(m->role, MODEL_TARGET);
    assert_int_equal(m->n_layer, 32);
    assert_int_equal(m->embd, 4096);
    assert_int_equal(m->embd_out, 4096);
    assert_int_equal(m->ff, 14336);
    assert_int_equal(m->vocab, 3);
    assert_int_equal(m->context_trained, 4096);
    assert_true(m->causal && m->logits);
    assert_false(m->m_rope || m->ple || m->can_rollback || m->chat_template || m->tied_output || m->mtp);
    for (int i = 0; i < 32; i++) {
        assert_true(m->layers[i].attention);
        assert_int_equal(m->layers[i].k_head, 128);
        assert_int_equal(m->layers[i].kv_heads, 8);
        assert_int_equal(m->layers[i].ff, 14336);
        assert_int_equal(f16_bytes(&m->layers[i], 8192), 33554432);
    }
    made_kinds(m, "32 full attention");
    (void)model_free(m);
}

/* Law 3.2: the key missing means as many as heads; per-layer counts; a head size of its own. */
static void test_plain_heads(void **state)
{
    (void)state;
    struct made f = made_new("deci", 3, 64, 0, 0);
    MADE_KEYS(&f, "attention.head_count", 4, 0, 8);
    MADE_KEYS(&f, "attention.head_count_kv", 2, 0, 4);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->layers[0].k_width, 32);
    assert_int_equal(m->layers[1].k_width, 0);
    assert_int_equal(m->layers[2].v_width, 64);
    assert_int_equal(m->heads, 8);
    made_kinds(m, "2 full attention, 1 without cache");
    (void)model_free(m);

    f = made_new("llama", 1, 64, 4, 0);
    made_key(&f, "attention.key_length", 20);
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[0].k_width, 80);
    assert_int_equal(m->layers[0].v_width, 64);
    (void)model_free(m);

    /* no heads in the first block: head sizes are 0 whatever the keys say */
    f = made_new("deci", 2, 64, 0, 0);
    MADE_KEYS(&f, "attention.head_count", 0, 4);
    made_key(&f, "attention.key_length", 16);
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[1].k_width, 0);
    (void)model_free(m);
}

static void test_gemma3(void **state)
{
    (void)state;
    struct made f = made_new("gemma3", 48, 3840, 16, 8);
    made_key(&f, "attention.key_length", 256);
    made_key(&f, "attention.value_length", 256);
    made_key(&f, "attention.sliding_window", 1024);
    made_tensor(&f, "token_embd.weight", F16, 3840, 3, 0);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_SWA);
    assert_int_equal(m->window, 1024);
    assert_true(m->tied_output);
    made_kinds(m, "8 full attention, 40 sliding window");
    assert_false(m->layers[5].swa || m->layers[47].swa);
    assert_true(m->layers[0].swa && m->layers[6].swa);
    assert_int_equal(2 * f16_bytes(&m->layers[5], 16384), 268435456);
    assert_int_equal(2 * f16_bytes(&m->layers[0], 1536), 25165824);
    (void)model_free(m);

    f = made_new("gemma3", 4, 64, 4, 4); /* no key: no window */
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->cache, MODEL_CACHE_PLAIN);
    made_kinds(m, "4 full attention");
    (void)model_free(m);
}

static void test_gpt_oss(void **state)
{
    (void)state;
    struct made f = made_new("gpt-oss", 24, 2880, 64, 8);
    made_key(&f, "attention.key_length", 64);
    made_key(&f, "attention.value_length", 64);
    made_key(&f, "attention.sliding_window", 128);
    made_key(&f, "expert_count", 32);
    made_key(&f, "expert_used_count", 4);
    made_key(&f, "expert_feed_forward_length", 2880);
    made_ends(&f, 2880, 3);
    struct model *m = made_load(&f);

    made_kinds(m, "12 full attention, 12 sliding window");
    assert_true(m->layers[0].swa);
    assert_false(m->layers[1].swa);
    assert_int_equal(f16_bytes(&m->layers[1], 32768) * 2, 134217728);
    assert_int_equal(f16_bytes(&m->layers[0], 768) * 2, 3145728);
    assert_int_equal(m->experts, 32);
    assert_int_equal(m->experts_used, 4);
    assert_int_equal(m->expert_ff, 2880);
    (void)model_free(m);
}

/* Which layers have a window, as "w" and "-". */
static void check_pattern(struct made *f, uint64_t embd, uint32_t window, const char *want)
{
    made_ends(f, embd, 3);
    struct model *m = made_load(f);
    char got[65] = {0};

    assert_int_equal(m->window, window);
    for (uint32_t i = 0; i < m->n_layer; i++)
        got[i] = m->layers[i].swa ? 'w' : '-';
    assert_string_equal(got, want);
    (void)model_free(m);
}

static struct made windowed(const char *arch, uint32_t blocks, uint32_t window)
{
    struct made f = made_new(arch, blocks, 64, 4, 4);

    if (window > 0)
        made_key(&f, "attention.sliding_window", window);
    return f;
}

static void test_window_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        uint32_t window, want;
        const char *pattern;
    } cases[] = {
        {"afmoe", 32, 32, "www-www-w"},
        {"cohere2", 32, 32, "www-www-w"},
        {"exaone-moe", 0, 128, "www-www-w"},
        {"exaone-moe", 64, 64, "www-www-w"},
        {"exaone4", 64, 0, "---------"},
        {"gemma2", 0, 4096, "w-w-w-w-w"},
        {"gemma3n", 32, 32, "wwww-wwww"},
        {"laguna", 32, 32, "-www-www-"},
        {"llama4", 0, 8192, "www-www-w"},
        {"llama4", 1000, 8192, "www-www-w"},
        {"mellum", 32, 32, "www-www-w"},
        {"mellum", 0, 0, "---------"},
        {"muse-glimmer", 32, 32, "www-www-w"},
        {"olmo2", 32, 32, "www-www-w"},
        {"plamo3", 32, 32, "wwwwwww-w"},
        {"smallthinker", 77, 4096, "-www-www-"},
        {"smallthinker", 0, 0, "---------"},
        {"phi3", 32, 0, "---------"},
        {"qwen2", 32, 0, "---------"},
    };

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct made f = windowed(cases[i].arch, 9, cases[i].window);

        check_pattern(&f, 64, cases[i].want, cases[i].pattern);
    }
}

static void test_window_files(void **state)
{
    (void)state;
    struct made f = windowed("gemma3", 6, 32); /* an array is taken as it is */
    MADE_KEYS(&f, "attention.sliding_window_pattern", 0, 1, 1, 0, 0, 1);
    check_pattern(&f, 64, 32, "-ww--w");

    f = windowed("gemma3", 6, 32); /* a scalar is the period */
    made_key(&f, "attention.sliding_window_pattern", 3);
    check_pattern(&f, 64, 32, "ww-ww-");

    f = windowed("cohere2moe", 6, 32); /* here of dense-first groups */
    made_key(&f, "attention.sliding_window_pattern", 3);
    check_pattern(&f, 64, 32, "-ww-ww");

    f = windowed("cohere2moe", 6, 32); /* every fourth, when the file does not say */
    check_pattern(&f, 64, 32, "-www-w");

    f = windowed("llama4", 4, 0); /* said to be none */
    made_key(&f, "attention.sliding_window", 0);
    check_pattern(&f, 64, 0, "----");

    f = windowed("exaone4", 64, 0);
    check_pattern(&f, 64, 4096, "www-www-www-www-www-www-www-www-www-www-www-www-www-www-www-www-");

    f = windowed("glm4moe", 4, 0);
    check_pattern(&f, 64, 0, "----");
}

/* The mimo2 and step35 way: other head counts and sizes under the window. */
static void test_window_heads(void **state)
{
    (void)state;
    struct made f = windowed("mimo2", 3, 128);
    made_key(&f, "attention.key_length", 192);
    made_key(&f, "attention.value_length", 128);
    made_key(&f, "attention.key_length_swa", 96);
    made_key(&f, "attention.value_length_swa", 64);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 0, 1, 1);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->layers[0].k_width, 768);
    assert_int_equal(m->layers[0].v_width, 512);
    assert_int_equal(m->layers[1].k_width, 384);
    assert_int_equal(m->layers[1].v_width, 256);
    (void)model_free(m);
}

static struct made deltanet(const char *arch, uint32_t blocks, uint32_t embd, uint32_t heads, uint32_t kv, uint32_t head, uint32_t inner, uint32_t n_state, uint32_t groups)
{
    struct made f = made_new(arch, blocks, embd, heads, kv);

    made_key(&f, "attention.key_length", head);
    made_key(&f, "attention.value_length", head);
    made_key(&f, "ssm.conv_kernel", 4);
    made_key(&f, "ssm.inner_size", inner);
    made_key(&f, "ssm.state_size", n_state);
    made_key(&f, "ssm.group_count", groups);
    return f;
}

static void test_qwen35(void **state)
{
    (void)state;
    struct made f = deltanet("qwen35", 8, 256, 4, 2, 64, 512, 64, 4);
    made_ends(&f, 256, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_HYBRID);
    assert_int_equal(m->full_attention_interval, 4);
    assert_true(m->can_rollback && m->m_rope);
    for (int i = 0; i < 8; i++) {
        bool attention = i % 4 == 3;

        assert_int_equal(m->layers[i].attention, attention);
        assert_int_equal(m->layers[i].recurrent, !attention);
        assert_int_equal(state_bytes(&m->layers[i]), attention ? 0 : 143360);
        assert_int_equal(f16_bytes(&m->layers[i], 2048) * 2, attention ? 2097152 : 0);
    }
    (void)model_free(m);

    /* an array beats the interval */
    f = deltanet("qwen35", 2, 256, 4, 2, 64, 512, 64, 4);
    MADE_KEYS(&f, "attention.recurrent_layers", 0, 1);
    made_ends(&f, 256, 3);
    m = made_load(&f);
    assert_true(m->layers[0].attention && m->layers[1].recurrent);
    assert_int_equal(m->full_attention_interval, 0);
    (void)model_free(m);
}

/* A 27B with its MTP block: 64 KiB a token in the trunk, 4 KiB in the draft. */
static void test_qwen35_nextn(void **state)
{
    (void)state;
    struct made f = deltanet("qwen35", 65, 5120, 24, 4, 256, 6144, 128, 16);
    uint64_t trunk = 0, draft = 0;
    made_key(&f, "nextn_predict_layers", 1);
    made_ends(&f, 5120, 3);
    made_tensor(&f, "blk.63.attn_q.weight", F16, 5120, 256, 0);
    made_tensor(&f, "blk.64.attn_q.weight", F16, 5120, 256, 0);
    struct model *m = made_load(&f);

    made_kinds(m, "16 full attention, 48 recurrent, 1 nextn");
    assert_int_equal(m->n_layer, 65);
    assert_int_equal(m->n_nextn, 1);
    assert_true(m->mtp);
    for (int i = 0; i < 65; i++)
        *(m->layers[i].nextn ? &draft : &trunk) += f16_bytes(&m->layers[i], 1);
    assert_int_equal(trunk, 65536);
    assert_int_equal(draft, 4096);
    assert_false(m->layers[64].recurrent);
    assert_int_equal(model_find_tensor(m, "blk.63.attn_q.weight")->place, MODEL_REPEATING);
    assert_int_equal(model_find_tensor(m, "blk.64.attn_q.weight")->place, MODEL_NEXTN);
    assert_int_equal(model_find_tensor(m, "blk.64.attn_q.weight")->layer, 64);
    (void)model_free(m);
}

static void test_qwen3next(void **state)
{
    (void)state;
    struct made f = deltanet("qwen3next", 48, 2048, 16, 2, 256, 4096, 128, 16);
    made_ends(&f, 2048, 3);
    struct model *m = made_load(&f);

    made_kinds(m, "12 full attention, 36 recurrent");
    assert_int_equal(state_bytes(&m->layers[0]), 2195456);
    assert_int_equal(f16_bytes(&m->layers[3], 65536), 134217728);
    assert_false(m->can_rollback || m->m_rope);
    (void)model_free(m);
}

static void test_qwen4exp(void **state)
{
    (void)state;
    struct made f = deltanet("qwen4exp", 8, 256, 2, 2, 128, 256, 128, 2);
    made_key(&f, "attention.indexer.key_length", 64);
    MADE_KEYS(&f, "attention.compress_ratios", 0, 0, 0, 4, 0, 0, 0, 0);
    MADE_KEYS(&f, "ple.layers", 0, 2);
    made_key(&f, "ple.conv_kernel", 4);
    made_key(&f, "ple.ngram_size", 3);
    made_key(&f, "hyper_connection.count", 4);
    made_key(&f, "embedding_length_out", 1024);
    made_ends(&f, 256, 3);
    made_tensor(&f, "per_layer_token_embd.weight", Q8_0, 160, 7, 0);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_HYBRID_INDEXER);
    assert_true(m->ple && m->m_rope && m->can_rollback && m->split_tensor_refused);
    assert_int_equal(m->embd_out, 1024);
    assert_int_equal(m->layers[0].ple_elems, 3 * 3 * 4 * 256);
    assert_int_equal(m->layers[1].ple_elems, 0);
    assert_int_equal(m->layers[2].ple_elems, 3 * 3 * 4 * 256);
    assert_int_equal(m->layers[0].indexer_k_width, 0);
    assert_int_equal(m->layers[3].indexer_k_width, 64 + 64); /* one compressed block suffices for all */
    assert_int_equal(m->layers[7].indexer_k_width, 64 + 64);
    assert_int_equal(m->layers[3].indexer_v_width, 0);
    assert_true(m->layers[3].indexer_v_in_k_type);
    assert_int_equal(model_find_tensor(m, "per_layer_token_embd.weight")->place, MODEL_INPUT);
    (void)model_free(m);
}

static struct made latent(const char *arch, uint32_t blocks, uint32_t heads)
{
    struct made f = made_new(arch, blocks, 7168, heads, 1);

    made_key(&f, "attention.key_length", 576);
    made_key(&f, "attention.value_length", 512);
    made_key(&f, "attention.key_length_mla", 192);
    made_key(&f, "attention.value_length_mla", 128);
    return f;
}

static void test_deepseek2(void **state)
{
    (void)state;
    struct made f = latent("deepseek2", 61, 128);
    made_ends(&f, 7168, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->cache, MODEL_CACHE_PLAIN);
    assert_int_equal(m->layers[0].k_width, 576);
    assert_int_equal(m->layers[0].v_width, 0);
    assert_int_equal(m->layers[0].v_head, 0);
    (void)model_free(m);

    /* converted before latent attention: heads in full */
    f = made_new("deepseek2", 61, 7168, 128, 128);
    made_key(&f, "attention.key_length", 192);
    made_key(&f, "attention.value_length", 128);
    made_ends(&f, 7168, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[60].k_width, 24576);
    assert_int_equal(m->layers[60].v_width, 16384);
    (void)model_free(m);

    /* an architecture without the law ignores the keys */
    f = latent("llama", 1, 128);
    made_ends(&f, 7168, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[0].v_width, 512);
    (void)model_free(m);
}

static void test_deepseek32(void **state)
{
    (void)state;
    struct made f = latent("deepseek32", 5, 128);
    made_key(&f, "nextn_predict_layers", 1);
    made_key(&f, "attention.indexer.key_length", 128);
    made_ends(&f, 7168, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_DSA);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m->layers[i].indexer_k_width, 128);
        assert_int_equal(m->layers[i].indexer_v_width, 0);
    }
    assert_int_equal(m->layers[4].indexer_k_width, 0);
    assert_int_equal(m->layers[4].k_width, 576);
    assert_true(m->layers[4].nextn);
    (void)model_free(m);
}

static void test_glm_dsa(void **state)
{
    (void)state;
    struct made f = latent("glm-dsa", 4, 64);
    made_key(&f, "attention.indexer.key_length", 128);
    MADE_KEYS(&f, "attention.indexer.types", 1, 0, 0, 1);
    made_ends(&f, 7168, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->layers[0].indexer_k_width, 128);
    assert_int_equal(m->layers[1].indexer_k_width, 0);
    assert_int_equal(m->layers[3].indexer_k_width, 128);
    (void)model_free(m);

    /* no key: all of them */
    f = latent("glm-dsa", 4, 64);
    made_key(&f, "attention.indexer.key_length", 128);
    made_ends(&f, 7168, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[1].indexer_k_width, 128);
    (void)model_free(m);

    /* no key and a million tokens: the built-in table */
    f = made_bare("glm-dsa");
    made_key(&f, "context_length", 1048576);
    made_key(&f, "embedding_length", 64);
    made_key(&f, "block_count", 79);
    made_key(&f, "nextn_predict_layers", 1);
    made_key(&f, "attention.head_count", 4);
    made_key(&f, "attention.indexer.key_length", 128);
    made_ends(&f, 64, 3);
    m = made_load(&f);
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_layer; i++)
        n += m->layers[i].indexer_k_width > 0;
    assert_int_equal(n, 21);
    assert_true(m->layers[0].indexer_k_width > 0 && m->layers[1].indexer_k_width > 0 && m->layers[2].indexer_k_width > 0 && m->layers[74].indexer_k_width > 0);
    assert_true(m->layers[3].indexer_k_width == 0 && m->layers[77].indexer_k_width == 0);
    (void)model_free(m);
}

static void test_dots3note(void **state)
{
    (void)state;
    struct made f = latent("dots3note", 4, 64);
    made_key(&f, "nextn_predict_layers", 1);
    made_key(&f, "attention.key_length_swa", 320);
    made_key(&f, "attention.sliding_window", 32);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 0, 1, 0, 0);
    made_key(&f, "attention.indexer.key_length", 128);
    MADE_KEYS(&f, "attention.indexer.types", 1, 1, 0);
    made_ends(&f, 7168, 3);
    made_tensor(&f, "blk.3.nextn.eh_proj.weight", F16, 14336, 7168, 0);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_DSA_SWA);
    assert_int_equal(m->layers[0].k_width, 576);
    assert_int_equal(m->layers[0].indexer_k_width, 128);
    assert_int_equal(m->layers[1].k_width, 320);
    assert_int_equal(m->layers[1].indexer_k_width, 0); /* under the window */
    assert_int_equal(m->layers[2].indexer_k_width, 0); /* of the other type */
    assert_false(m->layers[3].attention || m->mtp);
    assert_true(m->nextn_skipped);
    assert_int_equal(model_find_tensor(m, "blk.3.nextn.eh_proj.weight")->place, MODEL_SKIPPED);
    (void)model_free(m);
}

static void test_minimax_m3(void **state)
{
    (void)state;
    struct made f = made_new("minimax-m3", 4, 64, 4, 2);
    made_key(&f, "leading_dense_block_count", 1);
    made_key(&f, "attention.indexer.key_length", 48);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_INDEXER);
    assert_int_equal(m->layers[0].indexer_k_width, 0);
    assert_int_equal(m->layers[1].indexer_k_width, 48);
    assert_int_equal(m->layers[1].indexer_v_width, 16);
    assert_false(m->layers[1].indexer_v_in_k_type);
    (void)model_free(m);
}

static void test_deepseek4(void **state)
{
    (void)state;
    struct made f = made_new("deepseek4", 4, 512, 8, 1);
    made_key(&f, "attention.key_length", 64);
    made_key(&f, "attention.value_length", 64);
    made_key(&f, "attention.sliding_window", 32);
    made_key(&f, "attention.indexer.key_length", 128);
    MADE_KEYS(&f, "attention.compress_ratios", 0, 0, 4, 128);
    made_ends(&f, 512, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_DEEPSEEK4);
    assert_true(m->always_streams && m->can_rollback);
    made_kinds(m, "4 sliding window");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(m->layers[i].k_width, 64);
        assert_int_equal(m->layers[i].v_width, 0);
    }
    assert_int_equal(m->layers[1].compress_ratio, 0);
    assert_int_equal(m->layers[1].compressor_elems, 0);
    assert_int_equal(m->layers[2].compress_ratio, 4);
    assert_int_equal(m->layers[2].compressor_elems, 8 * 128);
    assert_int_equal(m->layers[2].indexer_k_width, 128);
    assert_int_equal(m->layers[2].indexer_compressor_elems, 8 * 256);
    assert_int_equal(m->layers[3].compress_ratio, 128);
    assert_int_equal(m->layers[3].compressor_elems, 128 * 64);
    assert_int_equal(m->layers[3].indexer_k_width, 0);
    (void)model_free(m);
}

/* Kimi's delta attention: latent keys where there is attention, a square state elsewhere. */
static void test_kimi_linear(void **state)
{
    (void)state;
    struct made f = made_new("kimi-linear", 4, 2304, 0, 0);
    MADE_KEYS(&f, "attention.head_count", 32, 32, 32, 32);
    MADE_KEYS(&f, "attention.head_count_kv", 0, 0, 0, 1);
    made_key(&f, "attention.key_length", 576);
    made_key(&f, "attention.value_length", 512);
    made_key(&f, "attention.key_length_mla", 192);
    made_key(&f, "attention.value_length_mla", 128);
    made_key(&f, "kda.head_dim", 128);
    made_key(&f, "ssm.conv_kernel", 4);
    made_ends(&f, 2304, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_HYBRID);
    assert_true(m->needs_repeatable_batch);
    assert_int_equal(m->layers[0].r_elems, 3 * 3 * 32 * 128);
    assert_int_equal(m->layers[0].s_elems, 128 * 128 * 32);
    assert_int_equal(m->layers[3].k_width, 576);
    assert_int_equal(m->layers[3].v_width, 0);
    assert_int_equal(m->layers[3].r_elems, 0);
    (void)model_free(m);

    f = made_new("kimi-k3", 2, 64, 4, 0);
    MADE_KEYS(&f, "attention.head_count_kv", 2, 0);
    made_key(&f, "attention.kv_lora_rank", 40);
    made_key(&f, "kda.head_dim", 8);
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[0].v_width, 80); /* the rank is V's head */
    assert_int_equal(m->layers[1].r_elems, 3 * 3 * 4 * 8); /* no kernel: 3 */
    (void)model_free(m);
}

static void test_glm5_next(void **state)
{
    (void)state;
    struct made f = latent("glm5-next", 4, 2);
    made_key(&f, "attention.indexer.key_length", 128);
    made_key(&f, "kda.head_dim", 64);
    made_key(&f, "ssm.conv_kernel", 4);
    made_ends(&f, 7168, 3);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_HYBRID_INDEXER);
    assert_true(m->layers[0].recurrent && m->layers[3].attention);
    assert_int_equal(m->layers[0].s_elems, 64 * 64 * 2);
    assert_int_equal(m->layers[0].indexer_k_width, 0);
    assert_int_equal(m->layers[3].indexer_k_width, 384);
    assert_int_equal(m->layers[3].v_width, 0);
    (void)model_free(m);
}

static void test_minimax_01(void **state)
{
    (void)state;
    struct made f = made_new("minimax-01", 16, 256, 2, 2);
    made_ends(&f, 256, 3);
    struct model *m = made_load(&f);

    made_kinds(m, "2 full attention, 14 recurrent");
    assert_true(m->layers[7].attention && m->layers[15].attention && m->needs_repeatable_batch);
    assert_int_equal(m->layers[0].r_elems, 0);
    assert_int_equal(m->layers[0].s_elems, 128 * 128 * 2);
    (void)model_free(m);
}

static struct made mamba(const char *arch, uint32_t blocks, uint32_t embd, uint32_t groups)
{
    struct made f = made_new(arch, blocks, embd, 0, 0);

    made_key(&f, "ssm.conv_kernel", 4);
    made_key(&f, "ssm.inner_size", 2 * embd);
    made_key(&f, "ssm.state_size", 16);
    if (groups > 0)
        made_key(&f, "ssm.group_count", groups);
    return f;
}

static void test_mamba(void **state)
{
    (void)state;
    struct made f = mamba("mamba", 2, 256, 0);
    made_ends(&f, 256, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->cache, MODEL_CACHE_RECURRENT);
    assert_int_equal(m->layers[1].r_elems, 3 * 512);
    assert_int_equal(m->layers[1].s_elems, 16 * 512);
    assert_false(m->layers[0].attention);
    (void)model_free(m);

    f = mamba("mamba2", 2, 256, 8);
    made_ends(&f, 256, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[0].r_elems, 3 * (512 + 2 * 8 * 16));
    made_kinds(m, "2 recurrent");
    (void)model_free(m);
}

static void test_rwkv(void **state)
{
    (void)state;
    struct made f = made_new("rwkv7", 3, 768, 0, 0);
    made_key(&f, "wkv.head_size", 64);
    made_ends(&f, 768, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->cache, MODEL_CACHE_RECURRENT);
    assert_int_equal(m->layers[2].r_elems, 2 * 768); /* the default */
    assert_int_equal(m->layers[2].s_elems, 768 * 64);
    (void)model_free(m);

    f = made_new("arwkv7", 1, 768, 0, 0);
    made_key(&f, "wkv.head_size", 64);
    made_key(&f, "token_shift_count", 1);
    made_ends(&f, 768, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[0].r_elems, 768);
    (void)model_free(m);
}

static void test_jamba_granite(void **state)
{
    (void)state;
    static const char *const archs[] = {"jamba", "granitehybrid", "plamo2"};

    for (size_t i = 0; i < BASE_COUNT(archs); i++) {
        struct made f = mamba(archs[i], 4, 256, i == 1 ? 1 : 0);
        made_key(&f, "attention.head_count", 8);
        MADE_KEYS(&f, "attention.head_count_kv", 0, 0, 4, 0);
        made_ends(&f, 256, 3);
        struct model *m = made_load(&f);

        assert_int_equal(m->cache, MODEL_CACHE_HYBRID);
        made_kinds(m, "1 full attention, 3 recurrent");
        assert_int_equal(m->layers[2].k_width, 128);
        assert_int_equal(m->layers[0].r_elems, 3 * (512 + (i == 1 ? 32 : 0)));
        (void)model_free(m);
    }
}

static void test_nemotron_h(void **state)
{
    (void)state;
    struct made f = mamba("nemotron_h", 4, 256, 2);
    made_key(&f, "attention.head_count", 8);
    MADE_KEYS(&f, "attention.head_count_kv", 0, 0, 4, 0);
    MADE_KEYS(&f, "feed_forward_length", 0, 1024, 0, 0);
    made_ends(&f, 256, 3);
    struct model *m = made_load(&f);

    made_kinds(m, "1 full attention, 2 recurrent, 1 without cache");
    assert_true(m->layers[0].recurrent && m->layers[2].attention && m->layers[3].recurrent);
    assert_false(m->layers[1].recurrent || m->layers[1].attention);
    assert_int_equal(m->ff, 1024);
    assert_true(m->can_rollback);
    (void)model_free(m);
}

static void test_falcon_h1(void **state)
{
    (void)state;
    struct made f = mamba("falcon-h1", 2, 256, 1);
    made_key(&f, "attention.head_count", 8);
    made_key(&f, "attention.head_count_kv", 2);
    made_ends(&f, 256, 3);
    struct model *m = made_load(&f);

    made_kinds(m, "2 attention and recurrent");
    assert_true(m->layers[0].attention && m->layers[0].recurrent);
    assert_int_equal(m->layers[0].k_width, 64);
    assert_int_equal(m->layers[0].s_elems, 16 * 512);
    (void)model_free(m);
}

static void test_lfm2(void **state)
{
    (void)state;
    for (int window = 0; window < 2; window++) {
        struct made f = made_new("lfm2", 4, 256, 4, 0);
        MADE_KEYS(&f, "attention.head_count_kv", 0, 2, 0, 2);
        made_key(&f, "shortconv.l_cache", 3);
        if (window)
            made_key(&f, "attention.sliding_window", 32);
        made_ends(&f, 256, 3);
        made_tensor(&f, "token_embd_norm.weight", F32, 256, 0, 0);
        struct model *m = made_load(&f);

        assert_int_equal(m->cache, window ? MODEL_CACHE_HYBRID_SWA : MODEL_CACHE_HYBRID);
        made_kinds(m, window ? "2 sliding window, 2 recurrent" : "2 full attention, 2 recurrent");
        assert_int_equal(m->layers[0].r_elems, 2 * 256);
        assert_int_equal(m->layers[0].s_elems, 0);
        assert_int_equal(model_find_tensor(m, "token_embd_norm.weight")->place, MODEL_OUTPUT);
        (void)model_free(m);
    }
}

static void test_gemma4(void **state)
{
    (void)state;
    struct made f = made_new("gemma4", 6, 512, 8, 0);
    MADE_KEYS(&f, "attention.head_count_kv", 4, 1, 4, 1, 4, 1);
    made_key(&f, "attention.key_length", 512);
    made_key(&f, "attention.value_length", 512);
    made_key(&f, "attention.key_length_swa", 256);
    made_key(&f, "attention.value_length_swa", 256);
    made_key(&f, "attention.sliding_window", 1024);
    made_key(&f, "attention.shared_kv_layers", 2);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0, 1, 0, 1, 0);
    made_tensor(&f, "token_embd.weight", Q8_0, 512, 3, 0);
    made_tensor(&f, "per_layer_token_embd.weight", Q8_0, 512, 3, 0);
    made_tensor(&f, "per_layer_model_proj.weight", F16, 512, 6, 0);
    made_tensor(&f, "rope_freqs.weight", F32, 256, 0, 0);
    struct model *m = made_load(&f);

    assert_int_equal(m->cache, MODEL_CACHE_SWA);
    made_kinds(m, "2 full attention, 2 sliding window, 2 without cache");
    assert_int_equal(m->layers[0].k_width, 4 * 256);
    assert_int_equal(m->layers[1].k_width, 512);
    assert_false(m->layers[4].attention || m->layers[5].attention);
    assert_true(m->tied_output && m->tied_copy_always && m->rope_dense_only);
    assert_string_equal(model_tied_tensor(m)->name, "token_embd.weight");
    assert_int_equal(model_find_tensor(m, "rope_freqs.weight")->place, MODEL_PER_BUFFER);
    assert_int_equal(model_find_tensor(m, "per_layer_model_proj.weight")->place, MODEL_FIRST);
    (void)model_free(m);
}

static void test_gemma3n(void **state)
{
    (void)state;
    struct made f = made_new("gemma3n", 30, 256, 8, 2);
    made_key(&f, "attention.sliding_window", 512);
    made_tensor(&f, "token_embd.weight", F16, 256, 3, 0);
    struct model *m = made_load(&f);

    made_kinds(m, "4 full attention, 16 sliding window, 10 without cache");
    assert_true(m->layers[19].attention && !m->layers[20].attention && m->tied_copy_always);
    (void)model_free(m);
}

static void test_layers_not_blocks(void **state)
{
    (void)state;
    struct made f = made_new("nanbeige", 3, 64, 4, 4);
    made_key(&f, "num_loops", 2);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->n_block, 3);
    assert_int_equal(m->n_layer, 6);
    made_kinds(m, "6 full attention");
    (void)model_free(m);

    f = made_new("graniteswitch", 3, 64, 4, 4);
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->n_layer, 4);
    assert_int_equal(m->layers[2].k_width, 64);
    assert_int_equal(m->layers[3].k_width, 16); /* the router has one head */
    assert_int_equal(m->layers[3].v_width, 16);
    (void)model_free(m);
}

static void test_no_cache(void **state)
{
    (void)state;
    static const char *const archs[] = {"bert", "nomic-bert", "jina-bert-v3", "neo-bert", "eurobert", "gemma-embedding2", "clef"};

    for (size_t i = 0; i < BASE_COUNT(archs); i++) {
        struct made f = made_new(archs[i], 2, 64, 4, 4);
        made_tensor(&f, "token_embd.weight", F16, 64, 3, 0);
        struct model *m = made_load(&f);
        assert_int_equal(m->cache, MODEL_CACHE_NONE);
        made_kinds(m, "2 without cache");
        assert_false(m->logits || m->tied_output);
        (void)model_free(m);
    }
    struct made f = made_new("dream", 2, 64, 4, 4);
    made_tensor(&f, "token_embd.weight", F16, 64, 3, 0);
    struct model *m = made_load(&f);
    assert_int_equal(m->cache, MODEL_CACHE_NONE);
    assert_true(m->logits && m->tied_output);
    assert_false(m->causal);
    (void)model_free(m);
}

static void test_m_rope(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct made f = made_new("glm4moe", 1, 64, 4, 4);
        MADE_KEYS(&f, "rope.dimension_sections", 8 * i, 8 * i, 8 * i, 0);
        made_ends(&f, 64, 3);
        struct model *m = made_load(&f);
        assert_int_equal(m->m_rope, i == 1);
        (void)model_free(m);
    }
    struct made f = made_new("qwen2vl", 1, 64, 4, 4);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);
    assert_true(m->m_rope);
    (void)model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_plain_heads),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_gpt_oss),
        cmocka_unit_test(test_window_defaults),
        cmocka_unit_test(test_window_files),
        cmocka_unit_test(test_window_heads),
        cmocka_unit_test(test_qwen35),
        cmocka_unit_test(test_qwen35_nextn),
        cmocka_unit_test(test_qwen3next),
        cmocka_unit_test(test_qwen4exp),
        cmocka_unit_test(test_deepseek2),
        cmocka_unit_test(test_deepseek32),
        cmocka_unit_test(test_glm_dsa),
        cmocka_unit_test(test_dots3note),
        cmocka_unit_test(test_minimax_m3),
        cmocka_unit_test(test_deepseek4),
        cmocka_unit_test(test_kimi_linear),
        cmocka_unit_test(test_glm5_next),
        cmocka_unit_test(test_minimax_01),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_rwkv),
        cmocka_unit_test(test_jamba_granite),
        cmocka_unit_test(test_nemotron_h),
        cmocka_unit_test(test_falcon_h1),
        cmocka_unit_test(test_lfm2),
        cmocka_unit_test(test_gemma4),
        cmocka_unit_test(test_gemma3n),
        cmocka_unit_test(test_layers_not_blocks),
        cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_m_rope),
    };

    return cmocka_run_group_tests_name("model_layers", tests, NULL, NULL);
}
