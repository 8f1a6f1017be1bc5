/* SPDX-License-Identifier: MIT
 *
 * Safetensors and its index: what is accepted covers the file without gap or overlap and can be found by name; what is refused says why.
 */
#include "../unit/memory_source.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t seen;

static void walk(const struct gguf_st *s)
{
    const struct gguf_st_info *info = gguf_st_info(s);
    uint64_t end = info->header_bytes;
    for (size_t i = 0; i < info->n_tensors; i++) {
        const struct gguf_st_tensor *t = gguf_st_tensor(s, i);
        if (t->off != end || t->n_dims > GGUF_ST_DIMS_MAX || gguf_st_find(s, t->name) != t)
            abort();
        end += t->bytes;
    }
    if (end != info->file_bytes + info->missing_bytes)
        abort();
    for (size_t i = 0; i < info->n_metadata; i++) {
        struct str key, value;
        gguf_st_metadata(s, i, &key, &value);
        seen += key.len + value.len;
    }
    seen += (size_t)gguf_st_whole(s, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct memory_source m;
    struct gguf_st *s = NULL;
    struct gguf_index x;
    struct err err = {.text = ""};
    int r = gguf_st_open(memory_source_init(&m, data, size, size), &s, &err);
    if (r == 0)
        walk(s);
    else if (err.code != r || !err.text[0])
        abort();
    if (gguf_index_parse((struct str){(const char *)data, size}, &x, &err) == 0) {
        if (!x.n_files || !x.n_tensors)
            abort();
        for (size_t i = 0; i < x.n_tensors; i++)
            if (x.tensors[i].file >= x.n_files || strchr(x.files[x.tensors[i].file], '/'))
                abort();
        for (uint32_t f = 0; s && f < x.n_files; f++)
            seen += (size_t)gguf_index_check(&x, f, s, NULL);
        gguf_index_release(&x);
    }
    gguf_st_free(s);
    return 0;
}
