/* SPDX-License-Identifier: MIT
 *
 * For tests of fit: models of real size as hollow files in memory, devices, and one call that predicts. Widths are those of the models that the worked examples of the laws were taken from.
 */
#pragma once

#include "model_aid.h"

#include <fit/fit.h>

#define BF16 30u
#define Q6_K 14u
#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)

struct rig {
    struct fit_shape shape;
    struct fit_device devices[4];
    struct fit_host host;
    struct fit_input in;
    struct arena *a;
    struct fit_result r;
    struct err err;
};

/* n devices of an RPC worker with the host's memory, as the laws were measured on. */
static inline void rig_init(struct rig *x, const struct model *m, size_t n)
{
    static const char *const names[] = {"RPC0", "RPC1", "RPC2", "RPC3"};

    memset(x, 0, sizeof(*x));
    fit_shape_default(&x->shape);
    x->shape.no_mmap = true;
    x->shape.prompt_cache_bytes = 0;
    for (size_t i = 0; i < n; i++)
        x->devices[i] = (struct fit_device){.name = names[i], .backend = FIT_RPC, .total_bytes = 64 * GIB, .free_bytes = 64 * GIB};
    x->host = (struct fit_host){.total_bytes = 128 * GIB, .free_bytes = 128 * GIB};
    x->in = (struct fit_input){.target = m, .shape = &x->shape, .devices = x->devices, .n_devices = n, .host = &x->host, .program = FIT_SERVER, .engine_version = "0.7.0"};
    x->a = arena_new(64 * MIB);
    assert_non_null(x->a);
}

static inline void rig_done(struct rig *x)
{
    x->a = arena_free(x->a);
}

static inline void rig_split(struct rig *x, double a, double b)
{
    x->shape.split[0] = a;
    x->shape.split[1] = b;
    x->shape.n_split = 2;
}

static inline void rig_predict(struct rig *x)
{
    if (fit_predict(&x->in, x->a, &x->r, &x->err) < 0)
        fail_msg("%s", x->err.text);
}

static inline uint64_t term(const struct rig *x, size_t device, enum fit_term t)
{
    return x->r.use[device].terms[t].bytes;
}

/* As the engine's "context" column counts. */
static inline uint64_t context_bytes(const struct rig *x, size_t device)
{
    return term(x, device, FIT_KV) + term(x, device, FIT_STATE) + term(x, device, FIT_INDEXER);
}

/* As the engine's "model" column counts. */
static inline uint64_t model_bytes(const struct rig *x, size_t device)
{
    return term(x, device, FIT_WEIGHTS) + x->r.use[device].mapped_bytes;
}

static inline const struct fit_note *note_of(const struct fit_result *r, const char *rule)
{
    for (size_t i = 0; i < r->n_notes; i++)
        if (strcmp(r->notes[i].rule, rule) == 0)
            return &r->notes[i];
    return NULL;
}

/* ---- models ---------------------------------------------------------------------------------------------------------- */

static inline void made_layer(struct made *f, uint32_t il, const char *name, uint32_t type, uint64_t a, uint64_t b, uint64_t c)
{
    char full[64];

    (void)snprintf(full, sizeof(full), "blk.%u.%s", il, name);
    made_tensor(f, full, type, a, b, c);
}

/* Tokens that are only counted. */
static inline struct made made_sized(const char *arch, uint32_t blocks, uint32_t embd, uint32_t heads, uint32_t kv_heads, uint32_t head, uint32_t ff, uint32_t vocab, uint32_t trained)
{
    struct made f = made_bare(arch);

    made_key(&f, "context_length", trained);
    made_key(&f, "embedding_length", embd);
    made_key(&f, "block_count", blocks);
    made_key(&f, "feed_forward_length", ff);
    made_key(&f, "attention.head_count", heads);
    made_key(&f, "attention.head_count_kv", kv_heads);
    made_key(&f, "attention.key_length", head);
    made_key(&f, "attention.value_length", head);
    made_key(&f, "vocab_size", vocab);
    gguf_put_str(f.w, "tokenizer.ggml.model", STR("none"));
    return f;
}

static inline void made_attention(struct made *f, uint32_t il, uint64_t embd, uint64_t q, uint64_t kv, uint32_t type, uint32_t v_type)
{
    made_layer(f, il, "attn_norm.weight", F32, embd, 0, 0);
    made_layer(f, il, "attn_q.weight", type, embd, q, 0);
    made_layer(f, il, "attn_k.weight", type, embd, kv, 0);
    made_layer(f, il, "attn_v.weight", v_type, embd, kv, 0);
    made_layer(f, il, "attn_output.weight", type, q, embd, 0);
    made_layer(f, il, "ffn_norm.weight", F32, embd, 0, 0);
}

static inline void made_ffn(struct made *f, uint32_t il, uint64_t embd, uint64_t ff, uint32_t type, uint32_t down_type)
{
    made_layer(f, il, "ffn_gate.weight", type, embd, ff, 0);
    made_layer(f, il, "ffn_up.weight", type, embd, ff, 0);
    made_layer(f, il, "ffn_down.weight", down_type, ff, embd, 0);
}

/* llama-8B as Q4_K_M. */
static inline struct model *made_llama_8b(void)
{
    struct made f = made_sized("llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072);

    made_tensor(&f, "token_embd.weight", Q4_K, 4096, 128256, 0);
    made_tensor(&f, "output_norm.weight", F32, 4096, 0, 0);
    made_tensor(&f, "output.weight", Q6_K, 4096, 128256, 0);
    for (uint32_t il = 0; il < 32; il++) {
        made_attention(&f, il, 4096, 4096, 1024, Q4_K, Q6_K);
        made_ffn(&f, il, 4096, 14336, Q4_K, Q6_K);
    }
    return made_load(&f);
}

/* gemma3-12B: eight dense layers among forty windowed ones, its head is the embedding. */
static inline struct model *made_gemma3_12b(void)
{
    struct made f = made_sized("gemma3", 48, 3840, 16, 8, 256, 15360, 262144, 131072);

    made_key(&f, "attention.sliding_window", 1024);
    made_tensor(&f, "token_embd.weight", Q4_K, 3840, 262144, 0);
    made_tensor(&f, "output_norm.weight", F32, 3840, 0, 0);
    for (uint32_t il = 0; il < 48; il++) {
        made_attention(&f, il, 3840, 4096, 2048, Q4_K, Q6_K);
        made_layer(&f, il, "attn_q_norm.weight", F32, 256, 0, 0);
        made_layer(&f, il, "attn_k_norm.weight", F32, 256, 0, 0);
        made_layer(&f, il, "post_attention_norm.weight", F32, 3840, 0, 0);
        made_layer(&f, il, "post_ffw_norm.weight", F32, 3840, 0, 0);
        made_ffn(&f, il, 3840, 15360, Q4_K, Q6_K);
    }
    return made_load(&f);
}

/* qwen3-30B-A3B. */
static inline struct model *made_qwen3_30b(void)
{
    struct made f = made_sized("qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, 40960);

    made_key(&f, "expert_count", 128);
    made_key(&f, "expert_used_count", 8);
    made_key(&f, "expert_feed_forward_length", 768);
    made_tensor(&f, "token_embd.weight", Q4_K, 2048, 151936, 0);
    made_tensor(&f, "output_norm.weight", F32, 2048, 0, 0);
    made_tensor(&f, "output.weight", Q6_K, 2048, 151936, 0);
    for (uint32_t il = 0; il < 48; il++) {
        made_attention(&f, il, 2048, 4096, 512, Q4_K, Q6_K);
        made_layer(&f, il, "attn_q_norm.weight", F32, 128, 0, 0);
        made_layer(&f, il, "attn_k_norm.weight", F32, 128, 0, 0);
        made_layer(&f, il, "ffn_gate_inp.weight", F32, 2048, 128, 0);
        made_layer(&f, il, "ffn_gate_exps.weight", Q4_K, 2048, 768, 128);
        made_layer(&f, il, "ffn_up_exps.weight", Q4_K, 2048, 768, 128);
        made_layer(&f, il, "ffn_down_exps.weight", Q6_K, 768, 2048, 128);
    }
    return made_load(&f);
}

static inline void made_delta_keys(struct made *f, uint32_t inner, uint32_t state, uint32_t groups, uint32_t rank)
{
    made_key(f, "full_attention_interval", 4);
    made_key(f, "ssm.conv_kernel", 4);
    made_key(f, "ssm.inner_size", inner);
    made_key(f, "ssm.state_size", state);
    made_key(f, "ssm.group_count", groups);
    made_key(f, "ssm.time_step_rank", rank);
}

/* A hybrid of which every fourth layer is attention; only what its caches need. */
static inline struct model *made_hybrid(uint32_t blocks, uint32_t inner, uint32_t state, uint32_t groups, uint32_t kv_heads, uint32_t head)
{
    struct made f = made_sized("qwen35", blocks, 512, 8, kv_heads, head, 1024, 256, 262144);

    made_delta_keys(&f, inner, state, groups, 8);
    made_ends(&f, 512, 256);
    return made_load(&f);
}

/* Qwen3.8-27B: 64 blocks, of which every fourth is attention, and one MTP block. An attention block has 0.43 GiB of weights, a recurrent one 0.38 GiB, to which its states come. */
static inline struct model *made_27b(void)
{
    struct made f = made_sized("qwen35", 65, 5120, 24, 4, 256, 17408, 151040, 262144);

    made_key(&f, "nextn_predict_layers", 1);
    made_delta_keys(&f, 6144, 128, 16, 48);
    made_tensor(&f, "token_embd.weight", Q8_0, 5120, 151040, 0);
    made_tensor(&f, "output_norm.weight", F32, 5120, 0, 0);
    made_tensor(&f, "output.weight", Q8_0, 5120, 151040, 0);
    for (uint32_t il = 0; il < 65; il++) {
        const bool nextn = il == 64, full = nextn || il % 4 == 3;
        const uint32_t t = nextn ? Q8_0 : BF16;

        made_layer(&f, il, "attn_norm.weight", F32, 5120, 0, 0);
        made_layer(&f, il, "post_attention_norm.weight", F32, 5120, 0, 0);
        if (full) {
            made_layer(&f, il, "attn_q.weight", t, 5120, 12288, 0);
            made_layer(&f, il, "attn_k.weight", t, 5120, 1024, 0);
            made_layer(&f, il, "attn_v.weight", t, 5120, 1024, 0);
            made_layer(&f, il, "attn_output.weight", Q8_0, 6144, 5120, 0);
        } else {
            made_layer(&f, il, "attn_qkv.weight", Q8_0, 5120, 10240, 0);
            made_layer(&f, il, "attn_gate.weight", Q8_0, 5120, 6144, 0);
            made_layer(&f, il, "ssm_conv1d.weight", F32, 4, 10240, 0);
            made_layer(&f, il, "ssm_dt.bias", F32, 48, 0, 0);
            made_layer(&f, il, "ssm_a", F32, 48, 0, 0);
            made_layer(&f, il, "ssm_alpha.weight", BF16, 5120, 48, 0);
            made_layer(&f, il, "ssm_beta.weight", BF16, 5120, 48, 0);
            made_layer(&f, il, "ssm_norm.weight", F32, 128, 0, 0);
            made_layer(&f, il, "ssm_out.weight", Q8_0, 6144, 5120, 0);
        }
        if (nextn)
            made_layer(&f, il, "nextn.eh_proj.weight", Q8_0, 10240, 5120, 0);
        made_ffn(&f, il, 5120, 17408, Q8_0, Q8_0);
    }
    return made_load(&f);
}

/* A block drafter of five layers without embeddings of its own; window 0: it caches all that the target does. dspark: with the heads that make it one. */
static inline struct model *made_drafter(uint32_t window, bool dspark, bool confidence)
{
    static const int32_t taps[] = {1, 16, 31, 46, 61};
    struct made f = made_sized("dflash", 5, 5120, 32, 8, 128, 17408, 151040, 262144);

    made_key(&f, "block_size", dspark ? 7 : 8);
    gguf_put_i32s(f.w, "dflash.target_layers", taps, 5);
    if (window > 0) {
        made_key(&f, "attention.sliding_window", window);
        MADE_KEYS(&f, "attention.sliding_window_pattern", 1, 1, 1, 1, 1);
    }
    made_tensor(&f, "fc.weight", Q8_0, 25600, 5120, 0);
    made_tensor(&f, "enc.output_norm.weight", F32, 5120, 0, 0);
    made_tensor(&f, "output_norm.weight", F32, 5120, 0, 0);
    if (dspark) {
        made_tensor(&f, "markov_w1.weight", F16, 32, 151040, 0);
        made_tensor(&f, "markov_w2.weight", F16, 32, 151040, 0);
    }
    if (confidence)
        made_tensor(&f, "conf_proj.weight", F16, 5152, 1, 0);
    for (uint32_t il = 0; il < 5; il++) {
        made_attention(&f, il, 5120, 4096, 1024, Q8_0, Q8_0);
        made_ffn(&f, il, 5120, 17408, Q8_0, Q8_0);
    }
    return made_load(&f);
}
