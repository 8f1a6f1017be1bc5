/* SPDX-License-Identifier: MIT
 *
 * model.safetensors.index.json: {"metadata": {"total_size": N}, "weight_map": {tensor: file}}. File names from it become paths beside it, so each must be one plain name.
 */
#include "reader_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static int compare_tensor(const void *x, const void *y)
{
    const struct gguf_index_tensor *a = x, *b = y;
    return reader_compare(a->name, b->name);
}

static int compare_file(const void *x, const void *y)
{
    const struct str *a = x, *b = y;
    return reader_compare(*a, *b);
}

static bool is_plain(struct str file)
{
    return file.len > 0 && file.len <= 255 && str_find_char(file, '/') < 0 && str_is_utf8(file) && !str_eq_c(file, ".") && !str_eq_c(file, "..");
}

/* The distinct values of the map, sorted, and the number of each tensor's one. map has n pairs. */
static int read_files(struct gguf_index *x, json_val map, size_t n, struct err *err)
{
    base_autofree struct str *all = calloc(n, sizeof(*all));
    if (!all)
        return err_nomem(err);
    size_t iter = 0, k = 0;
    struct str key;
    json_val v;
    struct reader_quote q;
    while (json_next(map, &iter, &key, &v)) {
        if (!json_str(v, &all[k]) || !is_plain(all[k]))
            return err_set(err, -EBADMSG, "tensor '%s' in weight_map has no plain file name", reader_quote(key, &q));
        k++;
    }
    qsort(all, n, sizeof(*all), compare_file);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || !str_eq(all[i], all[distinct - 1]))
            all[distinct++] = all[i];
    if (distinct > GGUF_PARTS_MAX)
        return err_set(err, -E2BIG, "weight_map names %zu files; at most %d are read", distinct, GGUF_PARTS_MAX);
    const char **files = arena_alloc(x->arena, distinct, sizeof(*files));
    if (!files)
        return err_nomem(err);
    for (size_t i = 0; i < distinct; i++) {
        files[i] = arena_dup(x->arena, all[i]);
        if (!files[i])
            return err_nomem(err);
    }
    iter = 0;
    for (k = 0; json_next(map, &iter, &key, &v); k++) {
        struct str file;
        if (!json_str(v, &file))
            return -EBADMSG;
        const struct str *at = bsearch(&file, all, distinct, sizeof(*all), compare_file);
        char *name = arena_dup(x->arena, key);
        if (!name)
            return err_nomem(err);
        x->tensors[k] = (struct gguf_index_tensor){{name, key.len}, (uint32_t)(at ? at - all : 0)};
    }
    x->files = files;
    x->n_files = distinct;
    return 0;
}

static int read_index(struct gguf_index *x, json_val root, struct err *err)
{
    json_val map = json_get(root, "weight_map");
    struct reader_quote q;
    struct str said;
    if (!json_is_obj(map)) {
        if (json_str(json_get(root, "error"), &said))
            return err_set(err, -EMEDIUMTYPE, "what a server answered instead of the file: '%s'; fetch it again", reader_quote(said, &q));
        return err_set(err, -EMEDIUMTYPE, "a JSON file without 'weight_map', so no index of safetensors");
    }
    size_t n = json_count(map);
    if (n == 0)
        return err_set(err, -EBADMSG, "weight_map has no tensor");
    if (n > GGUF_TENSORS_MAX)
        return err_set(err, -E2BIG, "weight_map has %zu tensors; at most %d are read", n, GGUF_TENSORS_MAX);
    x->tensors = arena_alloc(x->arena, n, sizeof(*x->tensors));
    if (!x->tensors)
        return err_nomem(err);
    int r = read_files(x, map, n, err);
    if (r < 0)
        return r;
    x->n_tensors = n;
    qsort(x->tensors, n, sizeof(*x->tensors), compare_tensor);
    for (size_t i = 1; i < n; i++)
        if (str_eq(x->tensors[i - 1].name, x->tensors[i].name))
            return err_set(err, -EBADMSG, "tensor '%s' is twice in weight_map", reader_quote(x->tensors[i].name, &q));
    json_val total = json_get(json_get(root, "metadata"), "total_size");
    double whole;
    if (!json_u64(total, &x->total_bytes) && json_f64(total, &whole) && whole >= 0 && whole < 9e18)
        x->total_bytes = (uint64_t)whole; /* some writers divide on the way */
    return 0;
}

int gguf_index_parse(struct str text, struct gguf_index *ret, struct err *err)
{
    struct json *doc = NULL;
    struct err why;
    int r = json_parse(text, &doc, &why);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(err) : err_set(err, -EBADMSG, "broken JSON: %s", why.text);
    struct gguf_index x = {.arena = arena_new(GGUF_MEMORY_MAX)};
    r = x.arena ? read_index(&x, json_root(doc), err) : err_nomem(err);
    json_free(doc);
    if (r < 0) {
        gguf_index_release(&x);
        return r;
    }
    *ret = x;
    return 0;
}

void gguf_index_release(struct gguf_index *x)
{
    arena_free(x->arena);
    *x = (struct gguf_index){.arena = NULL};
}

int gguf_index_check(const struct gguf_index *x, uint32_t file, const struct gguf_st *s, struct err *err)
{
    struct reader_quote q;
    size_t here = 0;
    for (size_t i = 0; i < x->n_tensors; i++) {
        if (x->tensors[i].file != file)
            continue;
        here++;
        if (!gguf_st_find(s, x->tensors[i].name))
            return err_set(err, -EBADMSG, "has no tensor '%s', which the index says is in it: file and index are not of one model", reader_quote(x->tensors[i].name, &q));
    }
    for (size_t i = 0; here < gguf_st_info(s)->n_tensors && i < gguf_st_info(s)->n_tensors; i++) {
        struct gguf_index_tensor want = {.name = gguf_st_tensor(s, i)->name};
        const struct gguf_index_tensor *found = bsearch(&want, x->tensors, x->n_tensors, sizeof(want), compare_tensor);
        if (!found || found->file != file)
            return err_set(err, -EBADMSG, "has the tensor '%s', which the index does not say is in it: file and index are not of one model", reader_quote(want.name, &q));
    }
    return 0;
}
