/* SPDX-License-Identifier: MIT
 *
 * Safetensors: 8 bytes of length, a JSON object from tensor names to {dtype, shape, data_offsets}, then the data. As strict as the reference reader: the ranges cover the data without gap or overlap and each is as long as shape
 * and type say; besides, no key may be there twice. The sizes that the JSON gives are compared with each other and with the file before anything is believed.
 */
#include "reader_int.h"

#include <assert.h>
#include <conf/conf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define LENGTH_BYTES 8

struct gguf_st {
    struct arena *arena;
    struct gguf_st_info info;
    struct gguf_st_tensor *tensors;        /* in the order of the data */
    const struct gguf_st_tensor **by_name;
    struct str (*metadata)[2];
};

static const struct gguf_st_type types[] = {
    {"F32", 32}, {"F16", 16}, {"BF16", 16}, {"F64", 64}, {"I8", 8}, {"U8", 8}, {"I16", 16}, {"U16", 16}, {"I32", 32}, {"U32", 32}, {"I64", 64}, {"U64", 64}, {"BOOL", 8},
    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},
};

static const struct gguf_st_type *find_type(struct str name)
{
    for (size_t i = 0; i < BASE_COUNT(types); i++)
        if (str_eq_c(name, types[i].name))
            return &types[i];
    return NULL;
}

static int copy_str(struct gguf_st *s, struct str from, struct str *ret, struct err *err)
{
    char *copy = arena_dup(s->arena, from);
    if (!copy)
        return err_nomem(err);
    *ret = (struct str){copy, from.len};
    return 0;
}

/* ---- one tensor ------------------------------------------------------------------------------------------------ */

static int read_shape(json_val v, struct gguf_st_tensor *t, struct str key, struct err *err)
{
    size_t n = json_count(v);
    struct reader_quote q;
    if (!json_is_arr(v))
        return err_set(err, -EBADMSG, "tensor '%s' in the header has no array 'shape'", reader_quote(key, &q));
    if (n > GGUF_ST_DIMS_MAX)
        return err_set(err, -EBADMSG, "tensor '%s' in the header has %zu dimensions; at most %d are read", reader_quote(key, &q), n, GGUF_ST_DIMS_MAX);
    t->n_dims = (uint32_t)n;
    t->elements = 1;
    for (size_t i = 0; i < n; i++) {
        if (!json_u64(json_at(v, i), &t->dims[i]))
            return err_set(err, -EBADMSG, "dimension %zu of tensor '%s' in the header is no whole number", i, reader_quote(key, &q));
        if (!size_mul(t->elements, t->dims[i], &t->elements) || t->elements > INT64_MAX)
            return err_set(err, -EBADMSG, "dimension %zu of tensor '%s' in the header makes more elements than can be counted: the file is damaged", i, reader_quote(key, &q));
    }
    return 0;
}

static int read_range(const struct gguf_st *s, json_val v, struct gguf_st_tensor *t, struct str key, struct err *err)
{
    uint64_t begin, end, bits;
    struct reader_quote q;
    if (json_count(v) != 2 || !json_is_arr(v) || !json_u64(json_at(v, 0), &begin) || !json_u64(json_at(v, 1), &end))
        return err_set(err, -EBADMSG, "tensor '%s' in the header has no 'data_offsets' of two whole numbers", reader_quote(key, &q));
    if (begin > end || end > INT64_MAX)
        return err_set(err, -EBADMSG, "tensor '%s' in the header has the range %" PRIu64 " to %" PRIu64 ": the file is damaged", reader_quote(key, &q), begin, end);
    t->bytes = end - begin;
    if (!size_add(s->info.header_bytes, begin, &t->off))
        return err_set(err, -EBADMSG, "tensor '%s' in the header begins beyond all files: the file is damaged", reader_quote(key, &q));
    if (!t->type)
        return 0;
    if (!size_mul(t->elements, t->type->bits, &bits) || bits % 8 || bits / 8 != t->bytes)
        return err_set(err, -EBADMSG, "tensor '%s' in the header has %" PRIu64 " elements of %s but a range of %" PRIu64 " bytes: the file is damaged", reader_quote(key, &q), t->elements, t->type->name, t->bytes);
    return 0;
}

/* Members that a tensor's object has once each, and no others. */
static int read_members(json_val obj, struct str key, json_val ret[3], struct err *err)
{
    static const char *const members[] = {"dtype", "shape", "data_offsets"};
    size_t iter = 0;
    struct str member;
    json_val v;
    struct reader_quote q, qm;
    if (!json_is_obj(obj))
        return err_set(err, -EBADMSG, "tensor '%s' in the header is no object", reader_quote(key, &q));
    while (json_next(obj, &iter, &member, &v)) {
        size_t i = 0;
        while (i < BASE_COUNT(members) && !str_eq_c(member, members[i]))
            i++;
        if (i == BASE_COUNT(members))
            return err_set(err, -EBADMSG, "tensor '%s' in the header has the unknown member '%s'", reader_quote(key, &q), reader_quote(member, &qm));
        if (ret[i])
            return err_set(err, -EBADMSG, "tensor '%s' in the header has '%s' twice", reader_quote(key, &q), members[i]);
        ret[i] = v;
    }
    return 0;
}

static int read_tensor(struct gguf_st *s, struct str key, json_val obj, struct gguf_st_tensor *t, struct err *err)
{
    struct reader_quote q;
    json_val member[3] = {NULL, NULL, NULL};
    struct str dtype;
    if (key.len > GGUF_ST_NAME_MAX)
        return err_set(err, -EBADMSG, "a tensor in the header has a name of %zu bytes ('%s'); at most %d are read", key.len, reader_quote(key, &q), GGUF_ST_NAME_MAX);
    int r = read_members(obj, key, member, err);
    if (r < 0)
        return r;
    if (!json_str(member[0], &dtype))
        return err_set(err, -EBADMSG, "tensor '%s' in the header has no 'dtype'", reader_quote(key, &q));
    t->type = find_type(dtype);
    if (!t->type)
        s->info.n_unknown++;
    r = read_shape(member[1], t, key, err);
    if (r == 0)
        r = read_range(s, member[2], t, key, err);
    if (r == 0)
        r = copy_str(s, key, &t->name, err);
    if (r == 0)
        r = copy_str(s, dtype, &t->dtype, err);
    return r;
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static int read_metadata(struct gguf_st *s, json_val obj, struct err *err)
{
    size_t iter = 0, n = json_count(obj);
    struct str key, value;
    json_val v;
    struct reader_quote q;
    if (s->metadata)
        return err_set(err, -EBADMSG, "the header has '__metadata__' twice");
    if (!json_is_obj(obj))
        return err_set(err, -EBADMSG, "'__metadata__' in the header is no object");
    s->metadata = arena_alloc(s->arena, n ? n : 1, sizeof(*s->metadata));
    if (!s->metadata)
        return err_nomem(err);
    while (json_next(obj, &iter, &key, &v)) {
        if (!json_str(v, &value))
            return err_set(err, -EBADMSG, "'%s' in '__metadata__' of the header is no string", reader_quote(key, &q));
        int r = copy_str(s, key, &s->metadata[s->info.n_metadata][0], err);
        if (r == 0)
            r = copy_str(s, value, &s->metadata[s->info.n_metadata][1], err);
        if (r < 0)
            return r;
        s->info.n_metadata++;
    }
    return 0;
}

static int compare_place(const void *x, const void *y)
{
    const struct gguf_st_tensor *a = x, *b = y;
    if (a->off != b->off)
        return a->off < b->off ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_name(const void *x, const void *y)
{
    const struct gguf_st_tensor *const *a = x, *const *b = y;
    return reader_compare((*a)->name, (*b)->name);
}

static int sort_names(struct gguf_st *s, struct err *err)
{
    size_t n = s->info.n_tensors;
    struct reader_quote q;
    s->by_name = arena_alloc(s->arena, n ? n : 1, sizeof(void *));
    if (!s->by_name)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, n, sizeof(void *), compare_name);
    for (size_t i = 1; i < n; i++)
        if (str_eq(s->by_name[i - 1]->name, s->by_name[i]->name))
            return err_set(err, -EBADMSG, "tensor '%s' is twice in the header", reader_quote(s->by_name[i]->name, &q));
    return 0;
}

/* The ranges, in their order, must follow each other from the end of the header to the end of the file. */
static int check_cover(struct gguf_st *s, struct err *err)
{
    uint64_t end = s->info.header_bytes;
    struct reader_quote q;
    for (size_t i = 0; i < s->info.n_tensors; i++) {
        const struct gguf_st_tensor *t = &s->tensors[i];
        if (t->off != end)
            return err_set(err, -EBADMSG, "tensor '%s' begins at byte %" PRIu64 ", %s byte %" PRIu64 ", where the one before ends: the file is damaged", reader_quote(t->name, &q), t->off,
                           t->off < end ? "before" : "which leaves a gap after", end);
        if (!size_add(end, t->bytes, &end) || end > INT64_MAX || !size_add(s->info.elements, t->elements, &s->info.elements))
            return err_set(err, -EBADMSG, "the data up to tensor '%s' has more bytes than can be counted: the file is damaged", reader_quote(t->name, &q));
    }
    s->info.data_bytes = end - s->info.header_bytes;
    if (end > s->info.file_bytes)
        s->info.missing_bytes = end - s->info.file_bytes;
    else if (end < s->info.file_bytes)
        return err_set(err, -EBADMSG, "the last tensor ends at byte %" PRIu64 " but the file at %" PRIu64 ": what follows belongs to no tensor; fetch it again", end, s->info.file_bytes);
    return 0;
}

static int read_header(struct gguf_st *s, json_val root, struct err *err)
{
    size_t iter = 0, n = json_count(root);
    struct str key;
    json_val v;
    if (!json_is_obj(root))
        return err_set(err, -EBADMSG, "the header (byte 8) is JSON but no object");
    if (n > GGUF_TENSORS_MAX)
        return err_set(err, -E2BIG, "the header has %zu tensors; at most %d are read", n, GGUF_TENSORS_MAX);
    s->tensors = arena_alloc(s->arena, n ? n : 1, sizeof(*s->tensors));
    if (!s->tensors)
        return err_nomem(err);
    while (json_next(root, &iter, &key, &v)) {
        int r;
        if (str_eq_c(key, "__metadata__")) {
            r = read_metadata(s, v, err);
        } else {
            r = read_tensor(s, key, v, &s->tensors[s->info.n_tensors], err);
            s->info.n_tensors++;
        }
        if (r < 0)
            return r;
    }
    qsort(s->tensors, s->info.n_tensors, sizeof(*s->tensors), compare_place);
    int r = sort_names(s, err);
    return r < 0 ? r : check_cover(s, err);
}

/* The JSON between the length and the data, as *ret_text. */
static int read_text(const struct gguf_source *src, struct buf *ret_text, struct err *err)
{
    uint8_t length[LENGTH_BYTES];
    int r = src->read(src->ctx, 0, length, sizeof(length), err); /* gguf_sniff has seen nine bytes */
    if (r < 0)
        return r;
    uint64_t n = le64(length);
    if (n > GGUF_ST_HEADER_MAX)
        return err_set(err, -EBADMSG, "the safetensors header claims %" PRIu64 " bytes at byte 0; at most %u are read: the file is damaged", n, GGUF_ST_HEADER_MAX);
    if (n > src->size - LENGTH_BYTES)
        return err_set(err, -ENODATA, "the file ends at byte %" PRIu64 ", inside its safetensors header of %" PRIu64 " bytes: it is cut short; fetch it again", src->size, n);
    char *room = buf_room(ret_text, (size_t)n);
    if (!room)
        return err_nomem(err);
    r = src->read(src->ctx, LENGTH_BYTES, room, (size_t)n, err);
    if (r < 0)
        return r;
    buf_grew(ret_text, (size_t)n);
    return 0;
}

int gguf_st_open(const struct gguf_source *src, struct gguf_st **ret, struct err *err)
{
    enum gguf_file kind;
    int r = gguf_sniff(src, &kind, err);
    if (r < 0)
        return r;
    if (kind != GGUF_FILE_SAFETENSORS)
        return err_set(err, -EMEDIUMTYPE, "a %s file, not a safetensors file", kind == GGUF_FILE_JSON ? "JSON" : "GGUF");
    base_autobuf struct buf text = BUF_INIT(GGUF_ST_HEADER_MAX);
    r = read_text(src, &text, err);
    if (r < 0)
        return r;
    struct json *doc = NULL;
    struct err why;
    r = json_parse(buf_str(&text), &doc, &why);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(err) : err_set(err, -EBADMSG, "the safetensors header (from byte 8) is no JSON: %s", why.text);
    struct gguf_st *s = calloc(1, sizeof(*s));
    if (s)
        s->arena = arena_new(GGUF_MEMORY_MAX);
    if (!s || !s->arena) {
        r = err_nomem(err);
    } else {
        s->info.file_bytes = src->size;
        s->info.header_bytes = LENGTH_BYTES + text.len;
        r = read_header(s, json_root(doc), err);
    }
    json_free(doc);
    if (r < 0) {
        gguf_st_free(s);
        return r;
    }
    *ret = s;
    return 0;
}

struct gguf_st *gguf_st_free(struct gguf_st *s)
{
    if (s) {
        s->arena = arena_free(s->arena);
        free(s);
    }
    return NULL;
}

const struct gguf_st_info *gguf_st_info(const struct gguf_st *s)
{
    return &s->info;
}

int gguf_st_whole(const struct gguf_st *s, struct err *err)
{
    char missing[UNITS_TEXT];
    if (!s->info.missing_bytes)
        return 0;
    return err_set(err, -ENODATA, "the file ends at byte %" PRIu64 ": %s of %" PRIu64 " bytes are missing; fetch it again", s->info.file_bytes, units_show_bytes(s->info.missing_bytes, missing),
                   s->info.header_bytes + s->info.data_bytes);
}

const struct gguf_st_tensor *gguf_st_tensor(const struct gguf_st *s, size_t i)
{
    assert(i < s->info.n_tensors);
    return &s->tensors[i];
}

const struct gguf_st_tensor *gguf_st_find(const struct gguf_st *s, struct str name)
{
    size_t low = 0, high = s->info.n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int r = reader_compare(s->by_name[mid]->name, name);
        if (r == 0)
            return s->by_name[mid];
        if (r < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

void gguf_st_metadata(const struct gguf_st *s, size_t i, struct str *ret_key, struct str *ret_value)
{
    assert(i < s->info.n_metadata);
    *ret_key = s->metadata[i][0];
    *ret_value = s->metadata[i][1];
}
