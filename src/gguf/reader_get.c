/* SPDX-License-Identifier: MIT
 *
 * What callers take from an opened header: facts, values, elements of arrays. Values that were not kept are read from their place in the file.
 */
#include "reader_int.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#define EACH_WINDOW (16u << 10) /* a few strings are wanted, seldom all */

const struct gguf_info *gguf_info(const struct gguf *g)
{
    return &g->info;
}

int gguf_whole(const struct gguf *g, struct err *err)
{
    const struct gguf_info *info = &g->info;
    if (info->faults & GGUF_CUT) {
        size_t cut = 0;
        while (cut < info->n_tensors && g->tensors[cut].off + g->tensors[cut].bytes <= info->file_bytes)
            cut++;
        assert(cut < info->n_tensors);
        char missing[UNITS_TEXT];
        return err_set(err, -ENODATA, "the file ends at byte %" PRIu64 ", inside the data of tensor '%s' (%zu of %zu): %s of %" PRIu64 " bytes are missing; fetch it again", info->file_bytes, g->tensors[cut].name.ptr, cut + 1,
                       info->n_tensors, units_show_bytes(info->missing_bytes, missing), info->end);
    }
    if (info->faults & GGUF_JOINED)
        return err_set(err, -EBADMSG,
                       "a second GGUF file begins at byte %" PRIu64 ", behind the last tensor: parts were joined with cat, of which engines see the first alone; keep the parts as they are, or join them with llama-gguf-split --merge",
                       info->joined_off);
    if (info->faults & GGUF_UNKNOWN) {
        size_t i = 0;
        while (g->tensors[i].type)
            i++;
        const struct gguf_tensor *t = &g->tensors[i];
        return err_set(err, -ENOTSUP, "a tensor type that llama.cpp does not have: type %" PRIu32 ", %s, of '%s' (table at byte %" PRIu64 ") and %zu of %zu tensors in all; it takes another engine, or a newer one", t->type_id,
                       gguf_type_past(t->type_id), t->name.ptr, t->info_off, info->n_unknown, info->n_tensors);
    }
    return 0;
}

const char *gguf_type_past(uint32_t id)
{
    switch (id) {
    case 4: return "q4_2 (removed from ggml)";
    case 5: return "q4_3 (removed from ggml)";
    case 31: return "q4_0_4_4 (removed from ggml)";
    case 32: return "q4_0_4_8 (removed from ggml)";
    case 33: return "q4_0_8_8 (removed from ggml)";
    case 36: return "iq4_nl_4_4 (removed from ggml)";
    case 37: return "iq4_nl_4_8 (removed from ggml)";
    case 38: return "iq4_nl_8_8 (removed from ggml)";
    default: return "unknown";
    }
}

const struct gguf_kv *gguf_kv(const struct gguf *g, size_t i)
{
    assert(i < g->info.n_kv);
    return &g->kvs[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i)
{
    assert(i < g->info.n_tensors);
    return &g->tensors[i];
}

struct str gguf_arch(const struct gguf *g)
{
    return g->arch;
}

const struct gguf_kv *gguf_find_arch(const struct gguf *g, const char *rest)
{
    base_autobuf struct buf key = BUF_INIT(GGUF_KEY_MAX);
    buf_add_str(&key, g->arch);
    buf_add_char(&key, '.');
    buf_add_c(&key, rest);
    return buf_status(&key) < 0 ? NULL : gguf_find(g, key.ptr);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static bool is_unsigned(enum gguf_value_type t)
{
    return t == GGUF_U8 || t == GGUF_U16 || t == GGUF_U32 || t == GGUF_U64;
}

static bool is_signed(enum gguf_value_type t)
{
    return t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
}

bool gguf_u64(const struct gguf_kv *kv, uint64_t *ret)
{
    if (kv && is_unsigned(kv->type))
        *ret = kv->v.u;
    else if (kv && is_signed(kv->type) && kv->v.i >= 0)
        *ret = (uint64_t)kv->v.i;
    else
        return false;
    return true;
}

bool gguf_bool(const struct gguf_kv *kv, bool *ret)
{
    if (!kv || kv->type != GGUF_BOOL)
        return false;
    *ret = kv->v.b;
    return true;
}

bool gguf_str(const struct gguf_kv *kv, struct str *ret)
{
    if (!kv || kv->type != GGUF_STRING || kv->kept.len != kv->n)
        return false;
    *ret = kv->kept;
    return true;
}

/* The bytes of element i of a kept array of numbers, or NULL. */
static const uint8_t *element(const struct gguf_kv *kv, uint64_t i)
{
    if (!kv || kv->type != GGUF_ARRAY || i >= kv->n || !kv->kept.len)
        return NULL;
    return (const uint8_t *)kv->kept.ptr + (size_t)i * gguf_value_bytes(kv->elem);
}

bool gguf_at_i64(const struct gguf_kv *kv, uint64_t i, int64_t *ret)
{
    const uint8_t *p = element(kv, i);
    if (!p)
        return false;
    switch (kv->elem) {
    case GGUF_U8: *ret = p[0]; return true;
    case GGUF_BOOL: *ret = p[0] != 0; return true;
    case GGUF_I8: *ret = le_i8(p); return true;
    case GGUF_U16: *ret = le16(p); return true;
    case GGUF_I16: *ret = (int16_t)le16(p); return true;
    case GGUF_U32: *ret = le32(p); return true;
    case GGUF_I32: *ret = (int32_t)le32(p); return true;
    case GGUF_I64: *ret = (int64_t)le64(p); return true;
    case GGUF_U64:
        if (le64(p) > INT64_MAX)
            return false;
        *ret = (int64_t)le64(p);
        return true;
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_STRING:
    case GGUF_ARRAY: break;
    }
    return false;
}

bool gguf_at_f64(const struct gguf_kv *kv, uint64_t i, double *ret)
{
    const uint8_t *p = element(kv, i);
    int64_t whole;
    if (!p)
        return false;
    if (kv->elem == GGUF_F32) {
        uint32_t bits = le32(p);
        float f;
        memcpy(&f, &bits, sizeof(f));
        *ret = (double)f;
        return true;
    }
    if (kv->elem == GGUF_F64) {
        uint64_t bits = le64(p);
        memcpy(ret, &bits, sizeof(*ret));
        return true;
    }
    if (!gguf_at_i64(kv, i, &whole))
        return false;
    *ret = (double)whole;
    return true;
}

int gguf_each_str(const struct gguf *g, const struct gguf_kv *kv, uint64_t most, bool (*fn)(void *ctx, uint64_t i, struct str s), void *ctx, struct err *err)
{
    if (!kv || kv->type != GGUF_ARRAY || kv->elem != GGUF_STRING)
        return err_set(err, -EINVAL, "the value is no array of strings");
    struct window w;
    int r = window_init(&w, g->src, EACH_WINDOW, kv->off, err);
    bool more = true;
    for (uint64_t i = 0; r == 0 && more && i < kv->n && i < most; i++) {
        r = window_need(&w, 8, "an array of strings", err);
        if (r < 0)
            break;
        uint64_t n = le64(window_at(&w));
        w.pos += 8;
        size_t shown = n < GGUF_KEEP_STRING ? (size_t)n : GGUF_KEEP_STRING;
        r = window_need(&w, shown, "a string", err);
        if (r < 0)
            break;
        more = fn(ctx, i, (struct str){(const char *)window_at(&w), shown});
        r = window_skip(&w, n, "a string", err);
    }
    window_release(&w);
    return r;
}
