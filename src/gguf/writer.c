/* SPDX-License-Identifier: MIT
 *
 * The writer collects two runs of bytes, key-value pairs and tensor infos, in the form that they have in the file, and counts them; the header is then the magic, the
 * counts, both runs and padding. Names are remembered to refuse one twice, in a hash table that grows with them. The first failure sticks.
 */
#include "gguf.h"

#include <errno.h>
#include <string.h>

#define VERSION 3
#define HEADER_MAX (1u << 30)     /* of one file's header: far above any vocabulary */
#define NAMES_MAX (1u << 20)
#define NAMES_BYTES_MAX (256u << 20)

struct gguf_writer {
    struct buf kv, tensors;
    uint64_t n_kv, n_tensors;
    uint64_t data_bytes;     /* offset of the next tensor */
    struct arena *arena;     /* holds the names */
    const char **names;      /* keys as "k<key>" and tensors as "t<name>" */
    size_t n_names, cap_names;
    size_t *slots;           /* open addressing: index + 1 into names, 0 free */
    size_t n_slots;
    struct err err;          /* first failure; code 0: none */
};

struct gguf_writer *gguf_writer_new(void)
{
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->arena = arena_new(NAMES_BYTES_MAX);
    if (!w->arena)
        return gguf_writer_free(w);
    w->kv = BUF_INIT(HEADER_MAX);
    w->tensors = BUF_INIT(HEADER_MAX);
    return w;
}

struct gguf_writer *gguf_writer_free(struct gguf_writer *w)
{
    if (!w)
        return NULL;
    buf_release(&w->kv);
    buf_release(&w->tensors);
    w->arena = arena_free(w->arena);
    free(w->names);
    free(w->slots);
    free(w);
    return NULL;
}

/* ---- names that are taken ------------------------------------------------------------------------------------- */

static uint64_t hash(const char *s)
{
    uint64_t h = 14695981039346656037ull;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211ull;
    return h;
}

/* The slot of name, or the free one where it belongs. Names come from our own caller, so the hash needs no secret. */
static size_t *slot_of(const struct gguf_writer *w, const char *name)
{
    size_t i = (size_t)hash(name) & (w->n_slots - 1);
    while (w->slots[i] && strcmp(w->names[w->slots[i] - 1], name) != 0)
        i = (i + 1) & (w->n_slots - 1);
    return &w->slots[i];
}

static bool grow_names(struct gguf_writer *w)
{
    size_t cap = w->cap_names ? w->cap_names * 2 : 64;
    const char **names = cap > NAMES_MAX ? NULL : realloc(w->names, cap * sizeof *names);
    if (!names)
        return false;
    w->names = names;
    size_t *slots = calloc(cap * 2, sizeof *slots);
    if (!slots)
        return false;
    free(w->slots);
    w->slots = slots;
    w->n_slots = cap * 2;
    w->cap_names = cap;
    for (size_t i = 0; i < w->n_names; i++)
        *slot_of(w, w->names[i]) = i + 1;
    return true;
}

/* Takes a name of its kind ('k' or 't'); false with the failure set when it is there already. */
static bool take_name(struct gguf_writer *w, char kind, const char *name)
{
    if (w->n_names == w->cap_names && !grow_names(w)) {
        (void)err_nomem(&w->err);
        return false;
    }
    const char *own = arena_printf(w->arena, "%c%s", kind, name);
    if (!own) {
        (void)err_nomem(&w->err);
        return false;
    }
    size_t *slot = slot_of(w, own);
    if (*slot) {
        (void)err_set(&w->err, -EEXIST, "%s '%s' is there twice", kind == 'k' ? "key" : "tensor", name);
        return false;
    }
    w->names[w->n_names++] = own;
    *slot = w->n_names;
    return true;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void put_le(struct buf *b, uint64_t v, size_t bytes)
{
    char out[8];
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)(v >> 8 * i);
    buf_add(b, out, bytes);
}

static void put_string(struct buf *b, struct str s)
{
    put_le(b, s.len, 8);
    buf_add_str(b, s);
}

static uint32_t float_bits(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* Key and type of the next pair. */
static bool begin(struct gguf_writer *w, const char *key, enum gguf_value_type type)
{
    if (w->err.code)
        return false;
    size_t len = strlen(key);
    if (len == 0 || len > GGUF_KEY_MAX || !str_is_utf8(str_of(key))) {
        (void)err_set(&w->err, -EINVAL, "'%.80s' is no key", key);
        return false;
    }
    if (!take_name(w, 'k', key))
        return false;
    put_string(&w->kv, str_of(key));
    put_le(&w->kv, type, 4);
    w->n_kv++;
    return true;
}

static bool begin_array(struct gguf_writer *w, const char *key, enum gguf_value_type elem, size_t n)
{
    if (n > GGUF_STRING_MAX && !w->err.code)
        (void)err_set(&w->err, -ERANGE, "key '%.80s' has %zu elements; at most %u are read", key, n, GGUF_STRING_MAX);
    if (!begin(w, key, GGUF_ARRAY))
        return false;
    put_le(&w->kv, elem, 4);
    put_le(&w->kv, n, 8);
    return true;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

void gguf_put_u16(struct gguf_writer *w, const char *key, uint16_t v)
{
    if (begin(w, key, GGUF_U16))
        put_le(&w->kv, v, 2);
}

void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    if (begin(w, key, GGUF_U32))
        put_le(&w->kv, v, 4);
}

void gguf_put_i32(struct gguf_writer *w, const char *key, int32_t v)
{
    if (begin(w, key, GGUF_I32))
        put_le(&w->kv, (uint32_t)v, 4);
}

void gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v)
{
    if (begin(w, key, GGUF_U64))
        put_le(&w->kv, v, 8);
}

void gguf_put_f32(struct gguf_writer *w, const char *key, float v)
{
    if (begin(w, key, GGUF_F32))
        put_le(&w->kv, float_bits(v), 4);
}

void gguf_put_bool(struct gguf_writer *w, const char *key, bool v)
{
    if (begin(w, key, GGUF_BOOL))
        put_le(&w->kv, v, 1);
}

void gguf_put_str(struct gguf_writer *w, const char *key, struct str v)
{
    if (v.len > GGUF_STRING_MAX && !w->err.code)
        (void)err_set(&w->err, -ERANGE, "key '%.80s' has a string of %zu bytes; at most %u are read", key, v.len, GGUF_STRING_MAX);
    if (begin(w, key, GGUF_STRING))
        put_string(&w->kv, v);
}

void gguf_put_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n)
{
    if (begin_array(w, key, GGUF_U32, n))
        for (size_t i = 0; i < n; i++)
            put_le(&w->kv, v[i], 4);
}

void gguf_put_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n)
{
    if (begin_array(w, key, GGUF_I32, n))
        for (size_t i = 0; i < n; i++)
            put_le(&w->kv, (uint32_t)v[i], 4);
}

void gguf_put_u64s(struct gguf_writer *w, const char *key, const uint64_t *v, size_t n)
{
    if (begin_array(w, key, GGUF_U64, n))
        for (size_t i = 0; i < n; i++)
            put_le(&w->kv, v[i], 8);
}

void gguf_put_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n)
{
    if (begin_array(w, key, GGUF_F32, n))
        for (size_t i = 0; i < n; i++)
            put_le(&w->kv, float_bits(v[i]), 4);
}

void gguf_put_strs(struct gguf_writer *w, const char *key, const struct str *v, size_t n)
{
    if (begin_array(w, key, GGUF_STRING, n))
        for (size_t i = 0; i < n; i++)
            put_string(&w->kv, v[i]);
}

/* ---- tensors and the header ------------------------------------------------------------------------------------------ */

void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, const uint64_t *dims, size_t n_dims)
{
    if (w->err.code)
        return;
    const struct gguf_type *t = gguf_type_get(type);
    size_t len = strlen(name);
    uint64_t bytes = 0, end = 0;
    if (len == 0 || len > GGUF_NAME_MAX || !str_is_utf8(str_of(name)))
        (void)err_set(&w->err, -EINVAL, "'%.80s' is no name of a tensor: 1 to %d bytes", name, GGUF_NAME_MAX);
    else if (!t)
        (void)err_set(&w->err, -EINVAL, "tensor '%s' has type %u, which does not exist", name, (unsigned)type);
    else if (n_dims == 0 || n_dims > GGUF_DIMS_MAX)
        (void)err_set(&w->err, -EINVAL, "tensor '%s' has %zu dimensions; 1 to %d are possible", name, n_dims, GGUF_DIMS_MAX);
    else if (gguf_tensor_bytes(t, dims, n_dims, &bytes) == -EINVAL)
        (void)err_set(&w->err, -EINVAL, "tensor '%s' has rows of %llu elements, no multiple of %u, the block of %s", name, (unsigned long long)dims[0],
                      (unsigned)t->block, t->name);
    else if (gguf_tensor_bytes(t, dims, n_dims, &bytes) < 0 || !size_add(w->data_bytes, bytes, &end) || !size_align(end, GGUF_ALIGN, &end) || end > INT64_MAX)
        (void)err_set(&w->err, -ERANGE, "tensor '%s' is larger than a file can be", name);
    if (w->err.code || !take_name(w, 't', name))
        return;
    put_string(&w->tensors, str_of(name));
    put_le(&w->tensors, n_dims, 4);
    for (size_t i = 0; i < n_dims; i++)
        put_le(&w->tensors, dims[i], 8);
    put_le(&w->tensors, type, 4);
    put_le(&w->tensors, w->data_bytes, 8);
    w->n_tensors++;
    w->data_bytes = end;
}

int gguf_writer_header(struct gguf_writer *w, struct buf *out, uint64_t *ret_data_bytes, struct err *err)
{
    if (w->err.code)
        return err_set(err, w->err.code, "%s", w->err.text);
    if (buf_status(&w->kv) < 0 || buf_status(&w->tensors) < 0) {
        int code = buf_status(&w->kv) < 0 ? buf_status(&w->kv) : buf_status(&w->tensors);
        return code == -ENOMEM ? err_nomem(err) : err_set(err, -ERANGE, "the header is larger than %u bytes", HEADER_MAX);
    }
    buf_add_c(out, "GGUF");
    put_le(out, VERSION, 4);
    put_le(out, w->n_tensors, 8);
    put_le(out, w->n_kv, 8);
    buf_add_str(out, buf_str(&w->kv));
    buf_add_str(out, buf_str(&w->tensors));
    while (out->len % GGUF_ALIGN && buf_status(out) == 0)
        buf_add_char(out, '\0');
    if (buf_status(out) < 0)
        return buf_status(out) == -ENOMEM ? err_nomem(err) : err_set(err, -ERANGE, "the header does not fit %zu bytes", out->max);
    *ret_data_bytes = w->data_bytes;
    return 0;
}
