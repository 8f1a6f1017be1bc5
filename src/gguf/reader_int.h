/* SPDX-License-Identifier: MIT
 *
 * What the reading files share: the window through which a header is walked, and the reader's insides.
 *
 * The window keeps one promise: after window_need(w, n) the next n bytes are in memory at window_at(w). It moves forward only, never past the end of the source, and says "ends at byte N" when more is asked than there is.
 */
#pragma once

#include "gguf.h"

#include <string.h>

struct window {
    const struct gguf_source *src;
    uint8_t *buf;
    size_t cap;
    uint64_t start;  /* offset in the source of buf[0] */
    size_t pos, len; /* next byte to take, bytes that are there */
};

int window_init(struct window *w, const struct gguf_source *src, size_t cap, uint64_t off, struct err *err) BASE_MUST_USE;
void window_release(struct window *w);
/* Makes the next n bytes (at most the window's size) available. -ENODATA names `what` when the source ends before. */
int window_need(struct window *w, size_t n, const char *what, struct err *err) BASE_MUST_USE;
/* Steps over n bytes without reading them. -ENODATA. */
int window_skip(struct window *w, uint64_t n, const char *what, struct err *err) BASE_MUST_USE;
/* Steps over count strings (u64 length, bytes). */
int window_skip_strings(struct window *w, uint64_t count, struct err *err) BASE_MUST_USE;

static inline uint64_t window_off(const struct window *w)
{
    return w->start + w->pos;
}

/* Bytes from the next one to the end of the source. */
static inline uint64_t window_left(const struct window *w)
{
    return w->src->size - window_off(w);
}

static inline const uint8_t *window_at(const struct window *w)
{
    return w->buf + w->pos;
}

static inline int64_t le_i8(const uint8_t *p)
{
    return (int64_t)(p[0] ^ 0x80) - 0x80;
}

static inline uint16_t le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t le64(const uint8_t *p)
{
    return (uint64_t)le32(p) | (uint64_t)le32(p + 4) << 32;
}

/* Order of names: by bytes. */
static inline int reader_compare(struct str a, struct str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int r = n ? memcmp(a.ptr, b.ptr, n) : 0;
    return r ? r : (a.len > b.len) - (a.len < b.len);
}

struct gguf {
    const struct gguf_source *src;
    struct arena *arena;
    struct gguf_info info;
    struct gguf_kv *kvs;
    uint32_t *kv_order;     /* indexes, sorted by key */
    struct gguf_tensor *tensors;
    struct str arch;
};

/* Bytes of one value of a fixed size; 0 for strings and arrays. */
size_t gguf_value_bytes(enum gguf_value_type t);
/* Reads the tensor table behind the metadata and checks it; `at` of the data section follows from it. */
int reader_tensors(struct gguf *g, struct window *w, struct err *err) BASE_MUST_USE;
/* Indexes 0..n-1 in the order of the names that name() gives, in g's arena. When two are equal *ret_twice is the later index, else n. */
int reader_sort(struct gguf *g, size_t n, const struct str *(*name)(const struct gguf *g, size_t i), uint32_t **ret, size_t *ret_twice, struct err *err) BASE_MUST_USE;
/* Text from a file, quoted for a message: at most 60 characters, controls made visible. */
struct reader_quote {
    char text[256];
};
const char *reader_quote(struct str s, struct reader_quote *q);
