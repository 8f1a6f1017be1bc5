/* SPDX-License-Identifier: MIT
 *
 * Models for the solver's tests and its perf program, made in memory without cmocka: small ones from a seed, whose layers differ in size, and two of real size (Qwen3.8-27B with its MTP block, Flash-Next with its
 * experts) in the shapes of test/fit/models. A fault ends the program: these are inputs, not what is tested.
 */
#pragma once

#include <fit/fit.h>
#include <gguf/gguf.h>
#include <model/model.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)
#define S_F32 0U
#define S_F16 1U
#define S_Q8_0 8U
#define S_BF16 30U

/* splitmix64: the same models on every machine. */
static inline uint64_t rng_next(uint64_t *s)
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15ULL);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}
static inline uint64_t rng_range(uint64_t *s, uint64_t low, uint64_t high)
{
    return low + rng_next(s) % (high - low + 1);
}

struct maker {
    struct gguf_writer *w;
    char arch[24];
    struct buf head;
};

static inline void maker_die(const char *what, const char *why)
{
    fprintf(stderr, "solve_models: %s: %s\n", what, why);
    exit(1);
}

static inline void maker_u32(struct maker *k, const char *key, uint32_t v)
{
    char full[128];

    (void)snprintf(full, sizeof(full), "%s.%s", k->arch, key);
    gguf_put_u32(k->w, full, v);
}

static inline void maker_tensor(struct maker *k, uint32_t type, uint64_t a, uint64_t b, uint64_t c, const char *fmt, ...) BASE_PRINTF(6, 7);
static inline void maker_tensor(struct maker *k, uint32_t type, uint64_t a, uint64_t b, uint64_t c, const char *fmt, ...)
{
    const uint64_t dims[] = {a, b, c};
    char name[64];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    gguf_put_tensor(k->w, name, type, dims, c > 0 ? 3 : b > 0 ? 2 : 1);
}

static inline struct maker maker_new(const char *arch, uint32_t blocks, uint32_t embd, uint32_t heads, uint32_t kv_heads, uint32_t head, uint32_t trained)
{
    struct maker k = {.w = gguf_writer_new(), .head = BUF_INIT(64U << 20)};

    if (!k.w)
        maker_die(arch, "no memory");
    (void)snprintf(k.arch, sizeof(k.arch), "%s", arch);
    gguf_put_str(k.w, "general.architecture", str_of(arch));
    gguf_put_str(k.w, "tokenizer.ggml.model", STR("none"));
    maker_u32(&k, "block_count", blocks);
    maker_u32(&k, "context_length", trained);
    maker_u32(&k, "embedding_length", embd);
    maker_u32(&k, "attention.head_count", heads);
    maker_u32(&k, "attention.head_count_kv", kv_heads);
    maker_u32(&k, "attention.key_length", head);
    maker_u32(&k, "attention.value_length", head);
    return k;
}

static inline int maker_read(void *ctx, uint64_t off, void *out, size_t len, struct err *err)
{
    const struct maker *k = ctx;
    size_t have = off < k->head.len ? k->head.len - (size_t)off : 0;

    (void)err;
    memset(out, 0, len);
    memcpy(out, k->head.ptr + (have > 0 ? off : 0), have < len ? have : len);
    return 0;
}

static inline struct model *maker_model(struct maker *k)
{
    struct err err = {0};
    struct gguf *g = NULL;
    struct model *m = NULL;
    uint64_t data = 0;

    if (gguf_writer_header(k->w, &k->head, &data, &err) < 0)
        maker_die(k->arch, err.text);
    const struct gguf_source src = {maker_read, k->head.len + data, k};
    if (gguf_open(&src, &g, &err) < 0)
        maker_die(k->arch, err.text);
    const struct gguf *part = g;
    if (model_load(&part, 1, &m, &err) < 0)
        maker_die(k->arch, err.text);
    (void)gguf_free(g);
    (void)gguf_writer_free(k->w);
    buf_release(&k->head);
    return m;
}

static inline void maker_ends(struct maker *k, uint32_t type, uint64_t embd, uint64_t vocab)
{
    maker_u32(k, "vocab_size", (uint32_t)vocab);
    maker_tensor(k, type, embd, vocab, 0, "token_embd.weight");
    maker_tensor(k, S_F32, embd, 0, 0, "output_norm.weight");
    maker_tensor(k, type, embd, vocab, 0, "output.weight");
}

static inline void maker_attention(struct maker *k, uint32_t type, uint32_t il, uint64_t embd, uint64_t heads, uint64_t kv_heads, uint64_t head)
{
    maker_tensor(k, S_F32, embd, 0, 0, "blk.%u.attn_norm.weight", il);
    maker_tensor(k, type, embd, heads * head, 0, "blk.%u.attn_q.weight", il);
    maker_tensor(k, type, embd, kv_heads * head, 0, "blk.%u.attn_k.weight", il);
    maker_tensor(k, type, embd, kv_heads * head, 0, "blk.%u.attn_v.weight", il);
    maker_tensor(k, type, heads * head, embd, 0, "blk.%u.attn_output.weight", il);
    maker_tensor(k, S_F32, embd, 0, 0, "blk.%u.ffn_norm.weight", il);
}

/* A transformer of a few layers, each of another width; with experts when asked. */
static inline struct model *model_small(uint64_t seed, bool experts)
{
    const uint32_t n = (uint32_t)rng_range(&seed, 3, 6), embd = 256 * (uint32_t)rng_range(&seed, 2, 4), kv_heads = (uint32_t)rng_range(&seed, 1, 2);
    struct maker k = maker_new(experts ? "qwen3moe" : "llama", n, embd, 4, kv_heads, 64, 4096);

    maker_u32(&k, "feed_forward_length", 4096);
    if (experts) {
        maker_u32(&k, "expert_count", 8);
        maker_u32(&k, "expert_used_count", 2);
        maker_u32(&k, "expert_feed_forward_length", 1024);
    }
    maker_ends(&k, S_F16, embd, 512 * rng_range(&seed, 1, 8));
    for (uint32_t il = 0; il < n; il++) {
        const uint64_t ff = 512 * rng_range(&seed, 8, 32);

        maker_attention(&k, S_F16, il, embd, 4, kv_heads, 64);
        if (experts) {
            maker_tensor(&k, S_F32, embd, 8, 0, "blk.%u.ffn_gate_inp.weight", il);
            maker_tensor(&k, S_F16, embd, ff, 8, "blk.%u.ffn_gate_exps.weight", il);
            maker_tensor(&k, S_F16, embd, ff, 8, "blk.%u.ffn_up_exps.weight", il);
            maker_tensor(&k, S_F16, ff, embd, 8, "blk.%u.ffn_down_exps.weight", il);
        } else {
            maker_tensor(&k, S_F16, embd, ff, 0, "blk.%u.ffn_gate.weight", il);
            maker_tensor(&k, S_F16, embd, ff, 0, "blk.%u.ffn_up.weight", il);
            maker_tensor(&k, S_F16, ff, embd, 0, "blk.%u.ffn_down.weight", il);
        }
    }
    return maker_model(&k);
}

static inline void maker_deltanet(struct maker *k, uint32_t matrices, uint32_t il, uint64_t embd)
{
    maker_tensor(k, S_F32, embd, 0, 0, "blk.%u.attn_norm.weight", il);
    maker_tensor(k, S_F32, embd, 0, 0, "blk.%u.post_attention_norm.weight", il);
    maker_tensor(k, matrices, embd, 10240, 0, "blk.%u.attn_qkv.weight", il);
    maker_tensor(k, S_Q8_0, embd, 6144, 0, "blk.%u.attn_gate.weight", il);
    maker_tensor(k, S_F32, 4, 10240, 0, "blk.%u.ssm_conv1d.weight", il);
    maker_tensor(k, S_F32, 48, 0, 0, "blk.%u.ssm_dt.bias", il);
    maker_tensor(k, S_F32, 48, 0, 0, "blk.%u.ssm_a", il);
    maker_tensor(k, S_BF16, embd, 48, 0, "blk.%u.ssm_alpha.weight", il);
    maker_tensor(k, S_BF16, embd, 48, 0, "blk.%u.ssm_beta.weight", il);
    maker_tensor(k, S_F32, 128, 0, 0, "blk.%u.ssm_norm.weight", il);
    maker_tensor(k, S_Q8_0, 6144, embd, 0, "blk.%u.ssm_out.weight", il);
}

static inline void maker_deltanet_keys(struct maker *k)
{
    maker_u32(k, "full_attention_interval", 4);
    maker_u32(k, "ssm.conv_kernel", 4);
    maker_u32(k, "ssm.state_size", 128);
    maker_u32(k, "ssm.group_count", 16);
    maker_u32(k, "ssm.time_step_rank", 48);
    maker_u32(k, "ssm.inner_size", 6144);
}

/* 64 blocks of which every fourth is full attention, and one MTP block; 0.43 GiB a block. */
static inline struct model *model_27b(void)
{
    struct maker k = maker_new("qwen35", 65, 5120, 24, 4, 256, 262144);

    maker_u32(&k, "feed_forward_length", 17408);
    maker_u32(&k, "nextn_predict_layers", 1);
    maker_deltanet_keys(&k);
    maker_ends(&k, S_Q8_0, 5120, 151040);
    for (uint32_t il = 0; il < 65; il++) {
        const bool nextn = il == 64, full = nextn || il % 4 == 3;

        if (!full) {
            maker_deltanet(&k, S_BF16, il, 5120);
        } else {
            maker_tensor(&k, S_F32, 5120, 0, 0, "blk.%u.attn_norm.weight", il);
            maker_tensor(&k, S_F32, 5120, 0, 0, "blk.%u.post_attention_norm.weight", il);
            maker_tensor(&k, nextn ? S_Q8_0 : S_BF16, 5120, 12288, 0, "blk.%u.attn_q.weight", il);
            maker_tensor(&k, nextn ? S_Q8_0 : S_BF16, 5120, 1024, 0, "blk.%u.attn_k.weight", il);
            maker_tensor(&k, nextn ? S_Q8_0 : S_BF16, 5120, 1024, 0, "blk.%u.attn_v.weight", il);
            maker_tensor(&k, S_Q8_0, 6144, 5120, 0, "blk.%u.attn_output.weight", il);
        }
        if (nextn)
            maker_tensor(&k, S_Q8_0, 10240, 5120, 0, "blk.%u.nextn.eh_proj.weight", il);
        maker_tensor(&k, S_Q8_0, 5120, 17408, 0, "blk.%u.ffn_gate.weight", il);
        maker_tensor(&k, S_Q8_0, 5120, 17408, 0, "blk.%u.ffn_up.weight", il);
        maker_tensor(&k, S_Q8_0, 17408, 5120, 0, "blk.%u.ffn_down.weight", il);
    }
    return maker_model(&k);
}

/* Its block drafter: five layers behind a window of 2048, 2.056 GB, no head and no embeddings of its own. */
static inline struct model *model_dflash2(void)
{
    struct maker k = maker_new("dflash", 5, 5120, 32, 8, 128, 262144);
    const uint32_t window[] = {1, 1, 1, 1, 1};
    const int32_t taps[] = {1, 12, 23, 34, 46, 57};

    maker_u32(&k, "feed_forward_length", 17408);
    maker_u32(&k, "block_size", 8);
    maker_u32(&k, "vocab_size", 151040);
    maker_u32(&k, "attention.sliding_window", 2048);
    gguf_put_u32s(k.w, "dflash.attention.sliding_window_pattern", window, 5);
    gguf_put_i32s(k.w, "dflash.target_layers", taps, 6);
    maker_tensor(&k, S_Q8_0, 30720, 5120, 0, "fc.weight");
    maker_tensor(&k, S_F32, 5120, 0, 0, "enc.output_norm.weight");
    maker_tensor(&k, S_F32, 5120, 0, 0, "output_norm.weight");
    maker_tensor(&k, S_Q8_0, 512, 151040, 0, "selector_predecessor.weight");
    maker_tensor(&k, S_Q8_0, 512, 151040, 0, "selector_successor.weight");
    maker_tensor(&k, S_Q8_0, 5120, 512, 0, "selector_hidden.weight");
    for (uint32_t il = 0; il < 5; il++) {
        maker_attention(&k, S_Q8_0, il, 5120, 32, 8, 128);
        maker_tensor(&k, S_Q8_0, 5120, 384, 0, "blk.%u.attn_conv_proj.weight", il);
        maker_tensor(&k, S_Q8_0, 5120, 384, 0, "blk.%u.ffn_conv_proj.weight", il);
        maker_tensor(&k, S_Q8_0, 5120, 17408, 0, "blk.%u.ffn_gate.weight", il);
        maker_tensor(&k, S_Q8_0, 5120, 17408, 0, "blk.%u.ffn_up.weight", il);
        maker_tensor(&k, S_Q8_0, 17408, 5120, 0, "blk.%u.ffn_down.weight", il);
    }
    return maker_model(&k);
}

/* A small block drafter for targets of a few layers. */
static inline struct model *model_small_drafter(uint64_t seed, uint32_t embd, uint32_t vocab)
{
    const uint32_t n = (uint32_t)rng_range(&seed, 1, 3);
    struct maker k = maker_new("dflash", n, embd, 4, 2, 64, 4096);
    const int32_t taps[] = {0, 1};

    maker_u32(&k, "feed_forward_length", 2048);
    maker_u32(&k, "block_size", 4);
    maker_u32(&k, "vocab_size", vocab);
    gguf_put_i32s(k.w, "dflash.target_layers", taps, 2);
    maker_tensor(&k, S_F16, 2ULL * embd, embd, 0, "fc.weight");
    maker_tensor(&k, S_F32, embd, 0, 0, "output_norm.weight");
    for (uint32_t il = 0; il < n; il++) {
        const uint64_t ff = 512 * rng_range(&seed, 2, 12);

        maker_attention(&k, S_F16, il, embd, 4, 2, 64);
        maker_tensor(&k, S_F16, embd, ff, 0, "blk.%u.ffn_gate.weight", il);
        maker_tensor(&k, S_F16, embd, ff, 0, "blk.%u.ffn_up.weight", il);
        maker_tensor(&k, S_F16, ff, embd, 0, "blk.%u.ffn_down.weight", il);
    }
    return maker_model(&k);
}

/* A tower for images, of so many bytes. */
static inline struct model *model_projector(uint64_t bytes)
{
    struct maker k = {.w = gguf_writer_new(), .head = BUF_INIT(1U << 20), .arch = "clip"};

    if (!k.w)
        maker_die("clip", "no memory");
    gguf_put_str(k.w, "general.architecture", STR("clip"));
    maker_u32(&k, "vision.block_count", 1);
    maker_u32(&k, "vision.embedding_length", 64);
    maker_tensor(&k, S_F16, 1024, bytes / 2048, 0, "v.blk.0.attn_q.weight");
    return maker_model(&k);
}

/* 48 blocks of 512 experts of which ten are used: three matrices of 2560 by `ff` each. */
static inline struct model *model_moe(uint32_t blocks, uint32_t ff, uint32_t type)
{
    struct maker k = maker_new("qwen3moe", blocks, 2560, 16, 2, 256, 262144);

    maker_u32(&k, "feed_forward_length", 5120);
    maker_u32(&k, "expert_count", 512);
    maker_u32(&k, "expert_used_count", 10);
    maker_u32(&k, "expert_feed_forward_length", ff);
    maker_ends(&k, S_Q8_0, 2560, 151936);
    for (uint32_t il = 0; il < blocks; il++) {
        maker_attention(&k, S_Q8_0, il, 2560, 16, 2, 256);
        maker_tensor(&k, S_F32, 2560, 512, 0, "blk.%u.ffn_gate_inp.weight", il);
        maker_tensor(&k, type, 2560, ff, 512, "blk.%u.ffn_gate_exps.weight", il);
        maker_tensor(&k, type, 2560, ff, 512, "blk.%u.ffn_up_exps.weight", il);
        maker_tensor(&k, type, ff, 2560, 512, "blk.%u.ffn_down_exps.weight", il);
    }
    return maker_model(&k);
}
