/* SPDX-License-Identifier: MIT
 *
 * Opens a GGUF header: magic, version, counts, then the metadata, one pass through the window. Values are described (type, count, place) and kept when they are small; strings of arrays are stepped over. The tensor table
 * behind the metadata is read by reader_tensors.c.
 */
#include "reader_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define HEAD_BYTES 24   /* magic, version, two counts */
#define KV_LEAST 14     /* bytes of the smallest pair: length, one character, type, one byte */
#define TENSOR_LEAST 25 /* of the smallest tensor info: length, one character, number of dimensions, type, offset */

size_t gguf_value_bytes(enum gguf_value_type t)
{
    static const uint8_t bytes[] = {[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
    return (size_t)t < BASE_COUNT(bytes) ? bytes[t] : 0;
}

const char *gguf_value_type_name(enum gguf_value_type t)
{
    static const char *const names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
    return (size_t)t < BASE_COUNT(names) ? names[t] : "unknown";
}

const char *reader_quote(struct str s, struct reader_quote *q)
{
    base_autobuf struct buf b = BUF_INIT(sizeof(q->text) - 1);
    buf_add_printable(&b, s, 60);
    if (buf_status(&b) < 0 || !b.ptr)
        q->text[0] = '\0';
    else
        memcpy(q->text, b.ptr, b.len + 1);
    return q->text;
}

/* ---- names in order ------------------------------------------------------------------------------------------- */

struct by_name {
    const struct gguf *g;
    const struct str *(*name)(const struct gguf *g, size_t i);
};

/* Equal names keep the order of the file, so that the later one is the one too many. */
static int compare_index(const void *a, const void *b, void *ctx)
{
    const struct by_name *n = ctx;
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    int r = reader_compare(*n->name(n->g, i), *n->name(n->g, k));
    return r ? r : (i > k) - (i < k);
}

int reader_sort(struct gguf *g, size_t n, const struct str *(*name)(const struct gguf *g, size_t i), uint32_t **ret, size_t *ret_twice, struct err *err)
{
    struct by_name by = {g, name};
    uint32_t *order = arena_alloc(g->arena, n ? n : 1, sizeof(*order));
    if (!order)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, n, sizeof(*order), compare_index, &by);
    *ret_twice = n;
    for (size_t i = 1; i < n && *ret_twice == n; i++)
        if (reader_compare(*name(g, order[i - 1]), *name(g, order[i])) == 0)
            *ret_twice = order[i];
    *ret = order;
    return 0;
}

static const struct str *kv_name(const struct gguf *g, size_t i)
{
    return &g->kvs[i].key;
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct str want = str_of(key);
    size_t low = 0, high = g->info.n_kv;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct gguf_kv *kv = &g->kvs[g->kv_order[mid]];
        int r = reader_compare(kv->key, want);
        if (r == 0)
            return kv;
        if (r < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static int read_key(struct gguf *g, struct window *w, size_t i, struct str *ret, struct err *err)
{
    uint64_t at = window_off(w);
    int r = window_need(w, 8, "the metadata", err);
    if (r < 0)
        return r;
    uint64_t n = le64(window_at(w));
    if (n == 0 || n > GGUF_KEY_MAX)
        return err_set(err, -EBADMSG, "key %zu of %zu at byte %" PRIu64 " claims a length of %" PRIu64 "; it must be 1 to %d: the file is damaged", i + 1, g->info.n_kv, at, n, GGUF_KEY_MAX);
    w->pos += 8;
    r = window_need(w, (size_t)n, "a key", err);
    if (r < 0)
        return r;
    struct str key = {(const char *)window_at(w), (size_t)n};
    if (!str_is_utf8(key)) {
        struct reader_quote q;
        return err_set(err, -EBADMSG, "key %zu of %zu at byte %" PRIu64 " is no text: '%s'; the file is damaged", i + 1, g->info.n_kv, at, reader_quote(key, &q));
    }
    char *copy = arena_dup(g->arena, key);
    if (!copy)
        return err_nomem(err);
    *ret = (struct str){copy, key.len};
    w->pos += (size_t)n;
    return 0;
}

static int keep(struct gguf *g, struct window *w, size_t n, const char *what, struct str *ret, struct err *err)
{
    int r = window_need(w, n, what, err);
    if (r < 0)
        return r;
    char *copy = arena_dup(g->arena, (struct str){(const char *)window_at(w), n});
    if (!copy)
        return err_nomem(err);
    *ret = (struct str){copy, n};
    return 0;
}

static int read_string(struct gguf *g, struct window *w, struct gguf_kv *kv, struct err *err)
{
    int r = window_need(w, 8, "the length of a string", err);
    if (r < 0)
        return r;
    kv->n = kv->bytes = le64(window_at(w));
    if (kv->n > GGUF_STRING_MAX) {
        struct reader_quote q;
        return err_set(err, -EBADMSG, "the string of '%s' at byte %" PRIu64 " claims %" PRIu64 " bytes; none may have over %u: the file is damaged", reader_quote(kv->key, &q), window_off(w), kv->n, GGUF_STRING_MAX);
    }
    w->pos += 8;
    kv->off = window_off(w);
    if (kv->bytes > window_left(w))
        return window_skip(w, kv->bytes, "a string", err);
    r = keep(g, w, kv->n < GGUF_KEEP_STRING ? (size_t)kv->n : GGUF_KEEP_STRING, "a string", &kv->kept, err);
    return r < 0 ? r : window_skip(w, kv->bytes, "a string", err);
}

static int read_array(struct gguf *g, struct window *w, struct gguf_kv *kv, struct err *err)
{
    struct reader_quote q;
    uint64_t at = window_off(w);
    int r = window_need(w, 12, "an array", err);
    if (r < 0)
        return r;
    uint32_t elem = le32(window_at(w));
    kv->n = le64(window_at(w) + 4);
    w->pos += 12;
    kv->off = window_off(w);
    if (elem == GGUF_ARRAY)
        return err_set(err, -EBADMSG, "the value of '%s' at byte %" PRIu64 " is an array of arrays, which no engine reads", reader_quote(kv->key, &q), at);
    if (elem > GGUF_F64)
        return err_set(err, -EBADMSG, "the array '%s' at byte %" PRIu64 " has elements of type %" PRIu32 "; there are 0 to %d: the file is damaged", reader_quote(kv->key, &q), at, elem, GGUF_F64);
    kv->elem = (enum gguf_value_type)elem;
    size_t each = kv->elem == GGUF_STRING ? 8 : gguf_value_bytes(kv->elem);
    if (kv->n > GGUF_ARRAY_MAX)
        return err_set(err, -EBADMSG, "the array '%s' at byte %" PRIu64 " claims %" PRIu64 " elements; none may have over %u: the file is damaged", reader_quote(kv->key, &q), at, kv->n, GGUF_ARRAY_MAX);
    if (kv->n * each > window_left(w)) /* cannot wrap: 2^30 times 8 */
        return err_set(err, -ENODATA, "the array '%s' at byte %" PRIu64 " has %" PRIu64 " elements of at least %zu bytes, but only %" PRIu64 " bytes follow: the file is cut short or damaged; fetch it again",
                       reader_quote(kv->key, &q), at, kv->n, each, window_left(w));
    if (kv->elem == GGUF_STRING) {
        r = window_skip_strings(w, kv->n, err);
        if (r < 0)
            return err_prefix(err, "array '%s'", reader_quote(kv->key, &q));
        kv->bytes = window_off(w) - kv->off;
        return 0;
    }
    kv->bytes = kv->n * each;
    if (kv->bytes <= GGUF_KEEP_ARRAY && kv->bytes) {
        r = keep(g, w, (size_t)kv->bytes, "an array", &kv->kept, err);
        if (r < 0)
            return r;
    }
    return window_skip(w, kv->bytes, "an array", err);
}

static void set_scalar(struct gguf_kv *kv, const uint8_t *p)
{
    float f;
    uint32_t u32;
    uint64_t u64;
    switch (kv->type) {
    case GGUF_U8: kv->v.u = p[0]; break;
    case GGUF_I8: kv->v.i = le_i8(p); break;
    case GGUF_U16: kv->v.u = le16(p); break;
    case GGUF_I16: kv->v.i = (int16_t)le16(p); break;
    case GGUF_U32: kv->v.u = le32(p); break;
    case GGUF_I32: kv->v.i = (int32_t)le32(p); break;
    case GGUF_U64: kv->v.u = le64(p); break;
    case GGUF_I64: kv->v.i = (int64_t)le64(p); break;
    case GGUF_BOOL: kv->v.b = p[0] != 0; break;
    case GGUF_F32:
        u32 = le32(p);
        memcpy(&f, &u32, sizeof(f));
        kv->v.f = (double)f;
        break;
    case GGUF_F64:
        u64 = le64(p);
        memcpy(&kv->v.f, &u64, sizeof(kv->v.f));
        break;
    case GGUF_STRING:
    case GGUF_ARRAY: break;
    }
}

static int read_kv(struct gguf *g, struct window *w, size_t i, struct err *err)
{
    struct gguf_kv *kv = &g->kvs[i];
    int r = read_key(g, w, i, &kv->key, err);
    if (r < 0)
        return r;
    uint64_t at = window_off(w);
    r = window_need(w, 4, "the type of a value", err);
    if (r < 0)
        return r;
    uint32_t type = le32(window_at(w));
    if (type > GGUF_F64) {
        struct reader_quote q;
        return err_set(err, -EBADMSG, "the value of '%s' at byte %" PRIu64 " has type %" PRIu32 "; there are 0 to %d: the file is damaged", reader_quote(kv->key, &q), at, type, GGUF_F64);
    }
    w->pos += 4;
    kv->type = (enum gguf_value_type)type;
    if (kv->type == GGUF_STRING)
        return read_string(g, w, kv, err);
    if (kv->type == GGUF_ARRAY)
        return read_array(g, w, kv, err);
    kv->n = 1;
    kv->bytes = gguf_value_bytes(kv->type);
    kv->off = window_off(w);
    r = window_need(w, (size_t)kv->bytes, "a value", err);
    if (r < 0)
        return r;
    set_scalar(kv, window_at(w));
    w->pos += (size_t)kv->bytes;
    return 0;
}

static int read_kvs(struct gguf *g, struct window *w, struct err *err)
{
    g->kvs = arena_alloc(g->arena, g->info.n_kv ? g->info.n_kv : 1, sizeof(*g->kvs));
    if (!g->kvs)
        return err_nomem(err);
    for (size_t i = 0; i < g->info.n_kv; i++) {
        int r = read_kv(g, w, i, err);
        if (r < 0)
            return r;
    }
    size_t twice = g->info.n_kv;
    int r = reader_sort(g, g->info.n_kv, kv_name, &g->kv_order, &twice, err);
    if (r < 0)
        return r;
    if (twice < g->info.n_kv) {
        struct reader_quote q;
        return err_set(err, -EBADMSG, "key '%s' is there twice, the second time with its value at byte %" PRIu64, reader_quote(g->kvs[twice].key, &q), g->kvs[twice].off);
    }
    return 0;
}

/* ---- the fixed part -------------------------------------------------------------------------------------------------- */

static int check_count(uint64_t n, uint64_t max, uint64_t least, uint64_t left, uint64_t at, const char *what, struct err *err)
{
    if (n > INT64_MAX)
        return err_set(err, -EBADMSG, "the header claims %" PRId64 " %s at byte %" PRIu64 ": the file is damaged", (int64_t)n, what, at);
    if (n > left / least)
        return err_set(err, -ENODATA, "the header claims %" PRIu64 " %s at byte %" PRIu64 ", of at least %" PRIu64 " bytes each, but only %" PRIu64 " bytes follow: the file is cut short or damaged; fetch it again", n, what, at,
                       least, left);
    if (n > max)
        return err_set(err, -E2BIG, "the header claims %" PRIu64 " %s at byte %" PRIu64 "; at most %" PRIu64 " are read", n, what, at, max);
    return 0;
}

static int check_version(const uint8_t *p, struct err *err)
{
    uint32_t version = le32(p);
    if (version == 2 || version == 3)
        return 0;
    if ((version & 0xffff) == 0 && version)
        return err_set(err, -ENOTSUP, "a big-endian GGUF file (its version reads as %" PRIu32 " at byte 4); engines on this kind of machine want little-endian: fetch that, or convert it with gguf-py's gguf_convert_endian.py",
                       version);
    if (version == 1)
        return err_set(err, -ENOTSUP, "GGUF version 1 (at byte 4), which engines have stopped reading: convert the model again or fetch a newer file");
    if (version == 0)
        return err_set(err, -EBADMSG, "GGUF version 0 (at byte 4) does not exist: the file is damaged; fetch it again");
    return err_set(err, -ENOTSUP, "GGUF version %" PRIu32 " (at byte 4); versions 2 and 3 are known: the file is damaged, or newer than this berth", version);
}

static int read_head(struct gguf *g, struct window *w, struct err *err)
{
    int r = window_need(w, 8, "the magic number and version", err);
    if (r < 0)
        return r;
    r = check_version(window_at(w) + 4, err);
    if (r < 0)
        return r;
    r = window_need(w, HEAD_BYTES, "the first 24 bytes", err);
    if (r < 0)
        return r;
    const uint8_t *p = window_at(w);
    g->info.version = le32(p + 4);
    uint64_t n_tensors = le64(p + 8), n_kv = le64(p + 16);
    uint64_t left = window_left(w) - HEAD_BYTES;
    r = check_count(n_tensors, GGUF_TENSORS_MAX, TENSOR_LEAST, left, 8, "tensors", err);
    if (r < 0)
        return r;
    r = check_count(n_kv, GGUF_KV_MAX, KV_LEAST, left - n_tensors * TENSOR_LEAST, 16, "metadata keys", err);
    if (r < 0)
        return r;
    g->info.n_tensors = (size_t)n_tensors;
    g->info.n_kv = (size_t)n_kv;
    w->pos += HEAD_BYTES;
    return 0;
}

static int read_align(struct gguf *g, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, "general.alignment");
    g->info.align = GGUF_ALIGN;
    if (!kv)
        return 0;
    if (kv->type != GGUF_U32)
        return err_set(err, -EBADMSG, "general.alignment at byte %" PRIu64 " has type %s; engines want u32", kv->off, gguf_value_type_name(kv->type));
    if (kv->v.u == 0 || (kv->v.u & (kv->v.u - 1)) || kv->v.u > GGUF_ALIGN_MAX)
        return err_set(err, -EBADMSG, "general.alignment at byte %" PRIu64 " is %" PRIu64 "; it must be a power of two up to %u", kv->off, kv->v.u, GGUF_ALIGN_MAX);
    g->info.align = (uint32_t)kv->v.u;
    return 0;
}

static int read_all(struct gguf *g, struct window *w, struct err *err)
{
    int r = read_head(g, w, err);
    if (r < 0)
        return r;
    r = read_kvs(g, w, err);
    if (r < 0)
        return r;
    r = read_align(g, err);
    if (r < 0)
        return r;
    const struct gguf_kv *arch = gguf_find(g, "general.architecture");
    if (arch && !gguf_str(arch, &g->arch))
        return err_set(err, -EBADMSG, "general.architecture at byte %" PRIu64 " is no short string: the file is damaged", arch->off);
    return reader_tensors(g, w, err);
}

int gguf_open(const struct gguf_source *src, struct gguf **ret, struct err *err)
{
    enum gguf_file kind;
    int r = gguf_sniff(src, &kind, err);
    if (r < 0)
        return r;
    if (kind != GGUF_FILE_GGUF)
        return err_set(err, -EMEDIUMTYPE, "a %s file, not a GGUF file", kind == GGUF_FILE_JSON ? "JSON" : "safetensors");
    struct gguf *g = calloc(1, sizeof(*g));
    if (!g)
        return err_nomem(err);
    g->src = src;
    g->info.file_bytes = src->size;
    g->arena = arena_new(GGUF_MEMORY_MAX);
    struct window w = {0};
    r = g->arena ? window_init(&w, src, GGUF_WINDOW, 0, err) : err_nomem(err);
    if (r == 0)
        r = read_all(g, &w, err);
    window_release(&w);
    if (r < 0) {
        gguf_free(g);
        return r;
    }
    *ret = g;
    return 0;
}

struct gguf *gguf_free(struct gguf *g)
{
    if (g) {
        g->arena = arena_free(g->arena);
        free(g);
    }
    return NULL;
}
