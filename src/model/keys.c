/* SPDX-License-Identifier: MIT
 *
 * Metadata of one architecture, read as strictly as the engine reads it (law 1.4): a scalar must be a u32 and nothing near it, an array must have exactly one value for each block. Each message names the
 * key in full, since that is what a person has to look for in the file.
 */
#include "model_int.h"

#include <errno.h>
#include <stdio.h>

const struct gguf_kv *model_key(const struct model_load *l, const char *rest)
{
    char key[128]; /* names in the table and in this module are short */

    (void)snprintf(key, sizeof(key), "%s.%s", l->arch->name, rest);
    return gguf_find(l->g, key);
}

static int wrong_type(const struct model_load *l, const struct gguf_kv *kv, const char *want)
{
    return err_set(l->err, -EBADMSG, "key '%s' has type %s, the engine wants %s", kv->key.ptr, gguf_value_type_name(kv->type), want);
}

int model_key_u32(const struct model_load *l, const char *rest, uint32_t *ret)
{
    const struct gguf_kv *kv = model_key(l, rest);

    if (!kv)
        return 0;
    if (kv->type != GGUF_U32)
        return wrong_type(l, kv, "u32");
    *ret = (uint32_t)kv->v.u;
    return 0;
}

int model_key_need(const struct model_load *l, const char *rest, uint32_t *ret)
{
    if (!model_key(l, rest))
        return err_set(l->err, -EBADMSG, "key '%s.%s' is missing", l->m->arch, rest);
    return model_key_u32(l, rest, ret);
}

int model_key_bool(const struct model_load *l, const char *rest, bool *ret)
{
    const struct gguf_kv *kv = model_key(l, rest);

    if (kv && !gguf_bool(kv, ret))
        return wrong_type(l, kv, "bool");
    return 0;
}

/* One element as u32. */
static int element(const struct model_load *l, const struct gguf_kv *kv, uint64_t i, uint32_t *ret)
{
    int64_t v = 0;

    if (!gguf_at_i64(kv, i, &v))
        return err_set(l->err, -EBADMSG, "key '%s' is an array of %s, the engine wants whole numbers", kv->key.ptr, gguf_value_type_name(kv->elem));
    if (v < 0 || v > UINT32_MAX)
        return err_set(l->err, -EBADMSG, "key '%s' has the value %lld at index %llu, out of range", kv->key.ptr, (long long)v, (unsigned long long)i);
    *ret = (uint32_t)v;
    return 0;
}

int model_key_blocks(const struct model_load *l, const char *rest, bool trunk, uint32_t *ret, int *ret_found)
{
    const struct gguf_kv *kv = model_key(l, rest);
    uint32_t v = 0, n = l->m->n_block;
    int r;

    *ret_found = 0;
    if (!kv)
        return 0;
    if (kv->type != GGUF_ARRAY) {
        bool b = false;

        if (kv->type == GGUF_U32)
            v = (uint32_t)kv->v.u;
        else if (gguf_bool(kv, &b))
            v = b;
        else
            return wrong_type(l, kv, "u32 or an array");
        for (uint32_t i = 0; i < n; i++)
            ret[i] = v;
        *ret_found = 1;
        return 0;
    }
    if (kv->n != n && !(trunk && kv->n == l->trunk))
        return err_set(l->err, -EBADMSG, "key '%s' has %llu values, expected %u, one for each block", kv->key.ptr, (unsigned long long)kv->n, n);
    for (uint32_t i = 0; i < kv->n; i++) {
        r = element(l, kv, i, &ret[i]);
        if (r < 0)
            return r;
    }
    *ret_found = 2;
    return 0;
}

int model_key_max(const struct model_load *l, const char *rest, uint32_t *ret)
{
    const struct gguf_kv *kv = model_key(l, rest);
    uint32_t most = 0, v = 0;
    int r;

    if (!kv || kv->type != GGUF_ARRAY)
        return model_key_u32(l, rest, ret);
    if (kv->n > MODEL_LAYERS_MAX)
        return err_set(l->err, -EBADMSG, "key '%s' has %llu values, at most %d are possible", kv->key.ptr, (unsigned long long)kv->n, MODEL_LAYERS_MAX);
    for (uint64_t i = 0; i < kv->n; i++) {
        r = element(l, kv, i, &v);
        if (r < 0)
            return r;
        most = v > most ? v : most;
    }
    *ret = most;
    return 0;
}

uint64_t model_key_count(const struct model_load *l, const char *rest)
{
    const struct gguf_kv *kv = model_key(l, rest);

    return kv && kv->type == GGUF_ARRAY ? kv->n : 0;
}
