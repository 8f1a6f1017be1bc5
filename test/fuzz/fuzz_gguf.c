/* SPDX-License-Identifier: MIT
 *
 * GGUF headers: what is accepted lies inside the file, its names are unique and can be found, its tensors follow each other; what is refused says why.
 */
#include "../unit/memory_source.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t seen;

static bool look(void *ctx, uint64_t i, struct str s)
{
    (void)ctx;
    for (size_t k = 0; k < s.len; k++)
        seen += (unsigned char)s.ptr[k];
    return i < 1000;
}

static void walk_kvs(const struct gguf *g, size_t size)
{
    for (size_t i = 0; i < gguf_info(g)->n_kv; i++) {
        const struct gguf_kv *kv = gguf_kv(g, i);
        uint64_t u;
        int64_t n;
        double d;
        bool b;
        struct str s;
        if (kv->off > size || kv->bytes > size - kv->off || kv->kept.len > kv->bytes || strlen(kv->key.ptr) != kv->key.len || gguf_find(g, kv->key.ptr) != kv)
            abort();
        seen += gguf_u64(kv, &u) + gguf_bool(kv, &b) + gguf_str(kv, &s);
        for (uint64_t k = 0; gguf_at_i64(kv, k, &n); k++)
            seen += (size_t)n;
        for (uint64_t k = 0; gguf_at_f64(kv, k, &d); k++)
            seen++;
        if (kv->type == GGUF_ARRAY && kv->elem == GGUF_STRING && gguf_each_str(g, kv, UINT64_MAX, look, NULL, NULL) < 0)
            abort();
    }
}

static void walk_tensors(const struct gguf *g)
{
    const struct gguf_info *info = gguf_info(g);
    uint64_t end = info->data_off;
    for (size_t i = 0; i < info->n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);
        if (t->off < end || (t->off - info->data_off) % info->align || t->name.len > GGUF_NAME_MAX)
            abort();
        if (t->type)
            end = t->off + t->bytes;
    }
    if (info->end > info->file_bytes && !(info->faults & GGUF_CUT))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct memory_source m;
    struct gguf *g = NULL;
    struct err err = {.text = ""};
    const struct gguf_source *src = memory_source_init(&m, data, size, size);
    if (gguf_open(src, &g, &err) < 0) {
        if (g || err.code >= 0 || !err.text[0])
            abort();
        return 0;
    }
    walk_kvs(g, size);
    walk_tensors(g);
    seen += (size_t)gguf_whole(g, NULL);
    struct gguf_part parts[2] = {{.path = NULL, .g = g}, {.path = NULL, .g = g}};
    char name[] = "x";
    parts[0].path = parts[1].path = name;
    seen += (size_t)gguf_set_check(parts, 1, &err);
    parts[0].state = GGUF_PART_OK;
    seen += (size_t)gguf_set_check(parts, 2, &err);
    gguf_free(g);
    return 0;
}
