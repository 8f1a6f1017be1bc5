/* SPDX-License-Identifier: MIT
 *
 * Values that the container allows and no model can have: each is refused with a message that names the key, and none wraps, indexes out of an array or asks for memory.
 */
#include "model_aid.h"

#include "../../src/model/model_int.h"

#define MAX UINT32_MAX

/* A sound model of an architecture, with `key` set by the case. */
static struct made sound(const char *arch)
{
    struct made f = made_new(arch, 4, 64, 4, 4);

    made_ends(&f, 64, 3);
    return f;
}

/* A model whose dimensions are all given. */
static struct made sized(uint32_t blocks, uint32_t embd, uint32_t heads)
{
    return made_new("llama", blocks, embd, heads, 0);
}

static void test_blocks(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 513, 4000000000u, MAX};

    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        struct made f = sized(bad[i], 64, 4);
        made_refused(&f, -EBADMSG, "key 'llama.block_count' is ");
    }
    struct made f = sized(512, 64, 4);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->n_layer, 512);
    (void)model_free(m);

    f = sized(2, 64, 4);
    made_ends(&f, 64, 3);
    made_tensor(&f, "blk.2.attn_q.weight", F16, 64, 64, 0);
    made_refused(&f, -EBADMSG, "tensor 'blk.2.attn_q.weight' is of block 2, but 'llama.block_count' is 2");
}

static void test_required(void **state)
{
    (void)state;
    static const char *const keys[] = {"context_length", "embedding_length", "block_count"};

    for (size_t skip = 0; skip < BASE_COUNT(keys); skip++) {
        struct made f = made_bare("llama");
        char want[64];
        for (size_t i = 0; i < BASE_COUNT(keys); i++)
            if (i != skip)
                made_key(&f, keys[i], 4);
        (void)snprintf(want, sizeof(want), "key 'llama.%s' is missing", keys[skip]);
        made_refused(&f, -EBADMSG, want);
    }
    struct made f = {.w = gguf_writer_new(), .head = BUF_INIT(1u << 20)};
    gguf_put_u32(f.w, "llama.block_count", 4);
    made_refused(&f, -EBADMSG, "key 'general.architecture' is missing");
}

static void test_types(void **state)
{
    (void)state;
    struct made f = sound("llama");
    gguf_put_i32(f.w, "llama.expert_count", 4);
    made_refused(&f, -EBADMSG, "key 'llama.expert_count' has type i32, the engine wants u32");

    f = sound("llama");
    gguf_put_u64(f.w, "llama.attention.key_length", 128);
    made_refused(&f, -EBADMSG, "key 'llama.attention.key_length' has type u64");

    f = sound("llama");
    gguf_put_str(f.w, "llama.feed_forward_length", STR("64"));
    made_refused(&f, -EBADMSG, "key 'llama.feed_forward_length' has type string, the engine wants u32 or an array");

    f = sound("llama");
    gguf_put_f32s(f.w, "llama.feed_forward_length", (const float[]){1, 2, 3, 4}, 4);
    made_refused(&f, -EBADMSG, "key 'llama.feed_forward_length' is an array of f32");

    f = sound("llama");
    gguf_put_u32(f.w, "llama.attention.causal", 1);
    made_refused(&f, -EBADMSG, "key 'llama.attention.causal' has type u32, the engine wants bool");

    f = sound("llama");
    gguf_put_u32s(f.w, "general.finetune", (const uint32_t[]){1}, 1); /* nobody's business */
    struct model *m = made_load(&f);
    assert_string_equal(m->name, "made for a test");
    (void)model_free(m);

    f = made_bare("nosuch9"); /* decorative: tolerated */
    gguf_put_u32s(f.w, "general.name", (const uint32_t[]){1}, 1);
    m = made_load(&f);
    assert_string_equal(m->name, "");
    (void)model_free(m);
}

static void test_arrays(void **state)
{
    (void)state;
    struct made f = made_new("deci", 4, 64, 4, 0);
    MADE_KEYS(&f, "attention.head_count_kv", 1, 2, 3);
    made_refused(&f, -EBADMSG, "key 'deci.attention.head_count_kv' has 3 values, expected 4, one for each block");

    f = made_new("deci", 4, 64, 4, 0);
    MADE_KEYS(&f, "attention.head_count_kv", 1, 2, 3, 4, 5);
    made_refused(&f, -EBADMSG, "has 5 values, expected 4");

    f = sound("deci");
    gguf_put_i32s(f.w, "deci.feed_forward_length", (const int32_t[]){1, 2, -3, 4}, 4);
    made_refused(&f, -EBADMSG, "key 'deci.feed_forward_length' has the value -3 at index 2");

    f = sound("gemma3");
    made_key(&f, "attention.sliding_window", 32);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0);
    made_refused(&f, -EBADMSG, "'gemma3.attention.sliding_window_pattern' has 2 values");

    /* longer than a reader keeps */
    static uint32_t many[20000];
    f = sound("llama");
    made_keys(&f, "expert_used_count", many, BASE_COUNT(many));
    made_refused(&f, -EBADMSG, "at most 512 are possible");
}

static void test_nextn(void **state)
{
    (void)state;
    static const uint32_t bad[] = {4, 5, MAX};

    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        struct made f = sound("glm4moe");
        made_key(&f, "nextn_predict_layers", bad[i]);
        made_refused(&f, -EBADMSG, "none would be left");
    }
}

static void test_experts(void **state)
{
    (void)state;
    static const struct {
        uint32_t count, used;
        const char *words;
    } cases[] = {
        {1025, 8, "'llama.expert_count' is 1025, at most 1024"},
        {MAX, MAX, "at most 1024"},
        {8, 0, "'llama.expert_used_count' is 0 of 8"},
        {8, 9, "'llama.expert_used_count' is 9 of 8"},
    };

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct made f = sound("llama");
        made_key(&f, "expert_count", cases[i].count);
        made_key(&f, "expert_used_count", cases[i].used);
        made_refused(&f, -EBADMSG, cases[i].words);
    }
}

static void test_no_heads(void **state)
{
    (void)state;
    struct made f = made_new("llama", 2, 64, 0, 0);
    made_key(&f, "attention.key_length", 128);
    made_ends(&f, 64, 3);
    struct model *m = made_load(&f);
    assert_int_equal(m->layers[0].k_width, 0);
    made_kinds(m, "2 without cache");
    (void)model_free(m);

    f = made_new("llama", 2, 64, MAX, 0); /* more heads than width: each is 0 wide */
    made_ends(&f, 64, 3);
    m = made_load(&f);
    assert_int_equal(m->layers[0].k_width, 0);
    (void)model_free(m);
}

static void test_widths(void **state)
{
    (void)state;
    struct made f = sized(1, 64, MAX);
    made_key(&f, "attention.key_length", MAX);
    made_refused(&f, -EBADMSG, "the key of one layer would be 4294967295 x 4294967295 elements");

    f = sized(1, 64, 65537);
    made_key(&f, "attention.key_length", 1);
    made_key(&f, "attention.value_length", 65537);
    made_refused(&f, -EBADMSG, "the value of one layer");

    f = made_new("mamba2", 1, MAX, 0, 0);
    made_key(&f, "ssm.conv_kernel", MAX);
    made_key(&f, "ssm.inner_size", MAX);
    made_key(&f, "ssm.state_size", MAX);
    made_key(&f, "ssm.group_count", MAX);
    made_refused(&f, -EBADMSG, "the convolution of one layer");

    f = made_new("mamba", 1, 64, 0, 0);
    made_key(&f, "ssm.inner_size", MAX);
    made_key(&f, "ssm.state_size", MAX);
    made_refused(&f, -EBADMSG, "the state of one layer");

    f = made_new("rwkv7", 1, MAX, 0, 0);
    made_key(&f, "wkv.head_size", MAX);
    made_refused(&f, -EBADMSG, "the token shift of one layer");

    f = made_new("kimi-linear", 1, 64, MAX, 0);
    MADE_KEYS(&f, "attention.head_count_kv", 0);
    made_key(&f, "kda.head_dim", MAX);
    made_key(&f, "ssm.conv_kernel", 0);
    made_refused(&f, -EBADMSG, "of one layer");

    f = made_new("minimax-01", 2, 64, MAX, 1);
    made_key(&f, "attention.key_length", MAX);
    made_refused(&f, -EBADMSG, "the state of one layer");

    f = made_new("qwen4exp", 4, MAX, 4, 4);
    made_key(&f, "attention.key_length", 4);
    made_key(&f, "attention.value_length", 4);
    MADE_KEYS(&f, "ple.layers", 0);
    made_key(&f, "ple.conv_kernel", MAX);
    made_key(&f, "ple.ngram_size", MAX);
    made_key(&f, "hyper_connection.count", MAX);
    made_refused(&f, -EBADMSG, "the embedding state of one layer");
}

static void test_windows(void **state)
{
    (void)state;
    struct made f = sound("cohere2");
    made_refused(&f, -EBADMSG, "key 'cohere2.attention.sliding_window' is missing");

    f = sound("gemma2");
    made_key(&f, "attention.sliding_window", 0);
    made_refused(&f, -EBADMSG, "'gemma2.attention.sliding_window' is 0");

    f = sound("gpt-oss");
    made_key(&f, "attention.sliding_window", 128);
    made_key(&f, "attention.sliding_window_pattern", 1);
    made_refused(&f, -EBADMSG, "gives it to no layer");

    f = sound("mimo2");
    made_key(&f, "attention.sliding_window", 128);
    made_refused(&f, -EBADMSG, "key 'mimo2.attention.sliding_window_pattern' is missing");

    f = sound("gemma3");
    made_key(&f, "attention.sliding_window", MAX);
    made_key(&f, "attention.sliding_window_pattern", MAX);
    struct model *m = made_load(&f);
    assert_int_equal(m->window, MAX);
    made_kinds(m, "4 sliding window");
    (void)model_free(m);
}

static void test_recurrent(void **state)
{
    (void)state;
    struct made f = sound("qwen3next");
    made_key(&f, "full_attention_interval", 0);
    made_refused(&f, -EBADMSG, "'qwen3next.full_attention_interval' is 0");

    f = sound("qwen4exp");
    MADE_KEYS(&f, "ple.layers", 4);
    made_refused(&f, -EBADMSG, "'qwen4exp.ple.layers' names a layer that is not there");
}

static void test_shared(void **state)
{
    (void)state;
    static const uint32_t bad[] = {4, 5, MAX};

    for (size_t i = 0; i < BASE_COUNT(bad) + 2; i++) {
        struct made f = sound("gemma4");
        made_key(&f, "attention.sliding_window", 32);
        MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0, 1, 0);
        if (i < BASE_COUNT(bad)) {
            made_key(&f, "attention.shared_kv_layers", bad[i]);
            made_refused(&f, -EBADMSG, "none would own a cache");
        } else { /* 1 leaves a windowed layer as the last, 3 leaves one alone */
            made_key(&f, "attention.shared_kv_layers", i == BASE_COUNT(bad) ? 1 : 3);
            made_refused(&f, -EBADMSG, "must be one with a window and one without");
        }
    }
}

static void test_counts(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 129, MAX};

    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        struct made f = sound("nanbeige");
        made_key(&f, "num_loops", bad[i]);
        made_refused(&f, -EBADMSG, "possible are 1 to 512 layers");
    }
    struct made f = made_new("graniteswitch", 512, 64, 4, 4);
    made_refused(&f, -EBADMSG, "the model has 513 layers");

    f = sound("deepseek4");
    made_key(&f, "attention.sliding_window", 32);
    MADE_KEYS(&f, "attention.compress_ratios", 0, 4, 5, 128);
    made_refused(&f, -EBADMSG, "'deepseek4.attention.compress_ratios' has 5 for block 2");

    f = sound("dots3note");
    made_key(&f, "attention.sliding_window", 32);
    MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 0, 1, 0);
    made_refused(&f, -EBADMSG, "'dots3note.attention.indexer.types' is missing");
}

/* Every architecture of the table, with nothing but dimensions: a model or a refusal, never a fault. */
static void test_every_arch_bare(void **state)
{
    (void)state;
    const char *name;

    for (size_t i = 0; (name = model_arch(i)) != NULL; i++)
        for (uint32_t extreme = 0; extreme < 2; extreme++) {
            struct made f = made_new(name, extreme ? 512 : 4, extreme ? MAX : 64, extreme ? MAX : 4, extreme ? MAX : 4);
            struct model *m = NULL;
            struct err err = {0};
            const struct gguf *part;
            int r;

            made_ends(&f, 64, 3);
            made_open(&f);
            part = f.g;
            r = model_load(&part, 1, &m, &err);
            if (r == 0)
                assert_true(m->known);
            else
                assert_true(r == (strcmp(name, "gptj") == 0 ? -ENOTSUP : -EBADMSG) && err.text[0]);
            m = model_free(m);
            made_done(&f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_nextn),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_no_heads),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_every_arch_bare),
    };

    return cmocka_run_group_tests_name("model_hostile", tests, NULL, NULL);
}
