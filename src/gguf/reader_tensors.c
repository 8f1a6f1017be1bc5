/* SPDX-License-Identifier: MIT
 *
 * The tensor table: names, shapes, types, and where the data of each lies. Data follows the table in the same order, each tensor at the running sum of the padded sizes before it; what differs from that is refused, as engines
 * do. A tensor of unknown type has the bytes up to the next one.
 */
#include "reader_int.h"

#include <errno.h>
#include <inttypes.h>

static const struct str *tensor_name(const struct gguf *g, size_t i)
{
    return &g->tensors[i].name;
}

static int read_name(struct gguf *g, struct window *w, size_t i, struct str *ret, struct err *err)
{
    struct reader_quote q;
    uint64_t at = window_off(w);
    int r = window_need(w, 8, "the tensor table", err);
    if (r < 0)
        return r;
    uint64_t n = le64(window_at(w));
    if (n == 0 || n > GGUF_NAME_MAX)
        return err_set(err, -EBADMSG, "the name of tensor %zu of %zu at byte %" PRIu64 " claims %" PRIu64 " bytes; it must be 1 to %d: the file is damaged", i + 1, g->info.n_tensors, at, n, GGUF_NAME_MAX);
    w->pos += 8;
    r = window_need(w, (size_t)n, "the name of a tensor", err);
    if (r < 0)
        return r;
    struct str name = {(const char *)window_at(w), (size_t)n};
    if (!str_is_utf8(name))
        return err_set(err, -EBADMSG, "the name of tensor %zu of %zu at byte %" PRIu64 " is no text: '%s'; the file is damaged", i + 1, g->info.n_tensors, at, reader_quote(name, &q));
    char *copy = arena_dup(g->arena, name);
    if (!copy)
        return err_nomem(err);
    *ret = (struct str){copy, name.len};
    w->pos += (size_t)n;
    return 0;
}

static int read_dims(struct window *w, struct gguf_tensor *t, struct err *err)
{
    int r = window_need(w, 4, "the tensor table", err);
    if (r < 0)
        return r;
    t->n_dims = le32(window_at(w));
    if (t->n_dims > GGUF_DIMS_MAX)
        return err_set(err, -EBADMSG, "tensor '%s' at byte %" PRIu64 " claims %" PRIu32 " dimensions; there are at most %d: the file is damaged", t->name.ptr, t->info_off, t->n_dims, GGUF_DIMS_MAX);
    w->pos += 4;
    r = window_need(w, 8 * (size_t)t->n_dims + 12, "the tensor table", err);
    if (r < 0)
        return r;
    t->elements = 1;
    for (uint32_t k = 0; k < GGUF_DIMS_MAX; k++) {
        t->dims[k] = k < t->n_dims ? le64(window_at(w) + (size_t)8 * k) : 1;
        if (t->dims[k] > INT64_MAX || !size_mul(t->elements, t->dims[k], &t->elements) || t->elements > INT64_MAX)
            return err_set(err, -EBADMSG, "tensor '%s' at byte %" PRIu64 " claims dimension %" PRIu32 " of %" PRIu64 ", which makes more elements than can be counted: the file is damaged", t->name.ptr, t->info_off, k, t->dims[k]);
    }
    w->pos += 8 * (size_t)t->n_dims;
    return 0;
}

/* One entry. *ret_rel is its offset within the data section. */
static int read_tensor(struct gguf *g, struct window *w, size_t i, uint64_t *ret_rel, struct err *err)
{
    struct gguf_tensor *t = &g->tensors[i];
    t->info_off = window_off(w);
    int r = read_name(g, w, i, &t->name, err);
    if (r < 0)
        return r;
    r = read_dims(w, t, err);
    if (r < 0)
        return r;
    t->type_id = le32(window_at(w));
    *ret_rel = le64(window_at(w) + 4);
    w->pos += 12;
    t->type = gguf_type_get(t->type_id);
    if (!t->type) {
        if (t->type_id > GGUF_TYPE_MAX)
            return err_set(err, -EBADMSG, "tensor '%s' at byte %" PRIu64 " has type %" PRId32 ", which no engine can have: the file is damaged", t->name.ptr, t->info_off, (int32_t)t->type_id);
        g->info.n_unknown++;
        return 0;
    }
    r = gguf_tensor_bytes(t->type, t->dims, GGUF_DIMS_MAX, &t->bytes);
    if (r == -EINVAL)
        return err_set(err, -EBADMSG, "tensor '%s' at byte %" PRIu64 " has rows of %" PRIu64 " elements, no multiple of the %" PRIu32 " in a block of %s", t->name.ptr, t->info_off, t->dims[0], t->type->block, t->type->name);
    if (r < 0)
        return err_set(err, -EBADMSG, "tensor '%s' at byte %" PRIu64 " has more bytes than can be counted: the file is damaged", t->name.ptr, t->info_off);
    return 0;
}

/* Where the layout stands while it is compared with the table. */
struct layout {
    uint64_t end;   /* of the tensor before, from the start of the data section, unpadded */
    bool end_known; /* false behind a tensor of unknown type */
};

/* Compares the offset of tensor i with the end of the one before. */
static int check_place(const struct gguf *g, size_t i, uint64_t rel, const struct layout *lay, struct err *err)
{
    const struct gguf_tensor *t = &g->tensors[i];
    uint64_t want;
    if (!size_align(lay->end, g->info.align, &want) || want > INT64_MAX)
        return err_set(err, -EBADMSG, "the data before tensor '%s' (table at byte %" PRIu64 ") has more bytes than can be counted: the file is damaged", t->name.ptr, t->info_off);
    if (rel % g->info.align)
        return err_set(err, -EBADMSG, "tensor '%s' (table at byte %" PRIu64 ") begins at byte %" PRIu64 " of the data, no multiple of the alignment %" PRIu32, t->name.ptr, t->info_off, rel, g->info.align);
    if (rel < want)
        return err_set(err, -EBADMSG, "tensor '%s' (table at byte %" PRIu64 ") begins at byte %" PRIu64 " of the data, inside what belongs to the one before (up to %" PRIu64 "): the file is damaged", t->name.ptr, t->info_off, rel, want);
    if (rel > want && lay->end_known)
        return err_set(err, -EBADMSG, "tensor '%s' (table at byte %" PRIu64 ") begins at byte %" PRIu64 " of the data; behind the one before it must be %" PRIu64 ", so there is a gap: the file is damaged", t->name.ptr, t->info_off,
                       rel, want);
    return 0;
}

/* rel: the offsets as the table has them, one for each tensor. */
static int check_layout(struct gguf *g, const uint64_t *rel, struct err *err)
{
    struct gguf_info *info = &g->info;
    struct layout lay = {.end_known = true};
    for (size_t i = 0; i < info->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        int r = check_place(g, i, rel[i], &lay, err);
        if (r < 0)
            return r;
        bool fits = size_add(info->data_off, rel[i], &t->off);
        if (fits && !t->type)
            t->bytes = i + 1 < info->n_tensors ? (rel[i + 1] > rel[i] ? rel[i + 1] - rel[i] : 0) : (info->file_bytes > t->off ? info->file_bytes - t->off : 0);
        fits = fits && size_add(t->off, t->bytes, &info->end) && info->end <= INT64_MAX && size_add(info->data_bytes, t->bytes, &info->data_bytes) && size_add(info->elements, t->elements, &info->elements);
        if (!fits)
            return err_set(err, -EBADMSG, "the data up to tensor '%s' (table at byte %" PRIu64 ") has more bytes than can be counted: the file is damaged", t->name.ptr, t->info_off);
        lay = (struct layout){.end = rel[i] + (t->type ? t->bytes : 0), .end_known = t->type != NULL};
    }
    return 0;
}

/* True when another GGUF file begins at off. */
static int magic_at(const struct gguf *g, uint64_t off, bool *ret, struct err *err)
{
    uint8_t magic[4];
    *ret = false;
    if (off > g->info.file_bytes || g->info.file_bytes - off < sizeof(magic))
        return 0;
    int r = g->src->read(g->src->ctx, off, magic, sizeof(magic), err);
    if (r < 0)
        return r;
    *ret = memcmp(magic, "GGUF", 4) == 0;
    return 0;
}

static int find_faults(struct gguf *g, struct err *err)
{
    struct gguf_info *info = &g->info;
    if (info->n_unknown)
        info->faults |= GGUF_UNKNOWN;
    if (info->end > info->file_bytes) {
        info->faults |= GGUF_CUT;
        info->missing_bytes = info->end - info->file_bytes;
        return 0;
    }
    /* parts that were joined follow the last tensor, padded or not */
    uint64_t padded = info->end;
    uint64_t behind;
    if (size_align(info->end - info->data_off, info->align, &behind) && size_add(info->data_off, behind, &behind))
        padded = behind;
    uint64_t places[] = {info->end, padded};
    for (size_t i = 0; i < BASE_COUNT(places); i++) {
        bool joined;
        int r = magic_at(g, places[i], &joined, err);
        if (r < 0)
            return r;
        if (joined) {
            info->faults |= GGUF_JOINED;
            info->joined_off = places[i];
            return 0;
        }
    }
    return 0;
}

int reader_tensors(struct gguf *g, struct window *w, struct err *err)
{
    struct gguf_info *info = &g->info;
    size_t n = info->n_tensors;
    g->tensors = arena_alloc(g->arena, n ? n : 1, sizeof(*g->tensors));
    uint64_t *rel = arena_alloc(g->arena, n ? n : 1, sizeof(*rel));
    if (!g->tensors || !rel)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        int r = read_tensor(g, w, i, &rel[i], err);
        if (r < 0)
            return r;
    }
    info->header_bytes = window_off(w);
    if (!size_align(info->header_bytes, info->align, &info->data_off))
        return err_set(err, -EBADMSG, "the header has more bytes than can be counted: the file is damaged");
    size_t twice = n;
    uint32_t *order;
    int r = reader_sort(g, n, tensor_name, &order, &twice, err);
    if (r < 0)
        return r;
    if (twice < n)
        return err_set(err, -EBADMSG, "tensor '%s' is there twice, the second time in the table at byte %" PRIu64, g->tensors[twice].name.ptr, g->tensors[twice].info_off);
    info->end = n ? info->data_off : info->header_bytes;
    r = check_layout(g, rel, err);
    return r < 0 ? r : find_faults(g, err);
}
