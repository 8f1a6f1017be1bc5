/* SPDX-License-Identifier: MIT
 *
 * Models for tests, as headers in memory: `made_new("llama")` starts one with what every model has, `made_key` and its kin add metadata under the architecture's name, `made_tensor` a weight, and `made_load` reads
 * it all back through the reader and the loader. Several `made` are the parts of a set.
 */
#pragma once

#include <model/model.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define F32 0u
#define F16 1u
#define Q4_0 2u
#define Q8_0 8u
#define Q4_K 12u
#define MXFP4 39u

struct made {
    struct gguf_writer *w;
    char arch[32];
    struct buf head;
    uint64_t data_bytes;
    struct gguf_source src;
    struct gguf *g;
};

static inline const char *made_name(const struct made *f, const char *rest, char out[128])
{
    (void)snprintf(out, 128, "%s.%s", f->arch, rest);
    return out;
}

static inline void made_key(struct made *f, const char *rest, uint32_t v)
{
    char key[128];

    gguf_put_u32(f->w, made_name(f, rest, key), v);
}

static inline void made_keys(struct made *f, const char *rest, const uint32_t *v, size_t n)
{
    char key[128];

    gguf_put_u32s(f->w, made_name(f, rest, key), v, n);
}
#define MADE_KEYS(f, rest, ...) made_keys(f, rest, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static inline void made_tensor(struct made *f, const char *name, uint32_t type, uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t dims[] = {a, b, c};

    gguf_put_tensor(f->w, name, type, dims, c > 0 ? 3 : b > 0 ? 2 : 1);
}

/* Nothing but an architecture. */
static inline struct made made_bare(const char *arch)
{
    struct made f = {.w = gguf_writer_new(), .head = BUF_INIT(1u << 20)};

    assert_non_null(f.w);
    (void)snprintf(f.arch, sizeof(f.arch), "%s", arch);
    gguf_put_str(f.w, "general.architecture", str_of(arch));
    return f;
}

/* Blocks, heads, embeddings and a vocabulary of three. */
static inline struct made made_new(const char *arch, uint32_t blocks, uint32_t embd, uint32_t heads, uint32_t kv_heads)
{
    static const struct str tokens[] = {{"a", 1}, {"b", 1}, {"c", 1}};
    struct made f = made_bare(arch);

    gguf_put_str(f.w, "general.name", STR("made for a test"));
    made_key(&f, "context_length", 4096);
    made_key(&f, "embedding_length", embd);
    made_key(&f, "block_count", blocks);
    if (heads > 0)
        made_key(&f, "attention.head_count", heads);
    if (kv_heads > 0)
        made_key(&f, "attention.head_count_kv", kv_heads);
    gguf_put_str(f.w, "tokenizer.ggml.model", STR("gpt2"));
    gguf_put_strs(f.w, "tokenizer.ggml.tokens", tokens, 3);
    return f;
}

/* Tables of words at both ends, so that any architecture is content. */
static inline void made_ends(struct made *f, uint64_t embd, uint64_t vocab)
{
    made_tensor(f, "token_embd.weight", F16, embd, vocab, 0);
    made_tensor(f, "output_norm.weight", F32, embd, 0, 0);
    made_tensor(f, "output.weight", F16, embd, vocab, 0);
}

/* A hollow file: behind the header there is a hole. */
static inline int made_read(void *ctx, uint64_t off, void *out, size_t len, struct err *err)
{
    const struct made *f = ctx;
    size_t have = off < f->head.len ? f->head.len - (size_t)off : 0;

    (void)err;
    memset(out, 0, len);
    memcpy(out, f->head.ptr + (have > 0 ? off : 0), have < len ? have : len);
    return 0;
}

static inline void made_open(struct made *f)
{
    struct err err = {0};

    if (gguf_writer_header(f->w, &f->head, &f->data_bytes, &err) < 0)
        fail_msg("%s", err.text);
    f->src = (struct gguf_source){made_read, f->head.len + f->data_bytes, f};
    if (gguf_open(&f->src, &f->g, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void made_done(struct made *f)
{
    f->g = gguf_free(f->g);
    f->w = gguf_writer_free(f->w);
    buf_release(&f->head);
}

/* Loads and takes the file away; the model is the caller's. */
static inline struct model *made_load(struct made *f)
{
    struct model *m = NULL;
    struct err err = {0};
    const struct gguf *part;

    made_open(f);
    part = f->g;
    if (model_load(&part, 1, &m, &err) < 0)
        fail_msg("%s", err.text);
    made_done(f);
    return m;
}

/* Expects a refusal with this code and words of its message. */
static inline void made_refused(struct made *f, int code, const char *words)
{
    struct model *m = NULL;
    struct err err = {0};
    const struct gguf *part;

    made_open(f);
    part = f->g;
    assert_int_equal(model_load(&part, 1, &m, &err), code);
    assert_null(m);
    if (!strstr(err.text, words))
        fail_msg("'%s' does not say '%s'", err.text, words);
    made_done(f);
}

static inline void made_kinds(const struct model *m, const char *want)
{
    struct buf b = BUF_INIT(1024);

    model_kinds(m, &b);
    assert_int_equal(buf_status(&b), 0);
    assert_string_equal(b.ptr ? b.ptr : "", want);
    buf_release(&b);
}
