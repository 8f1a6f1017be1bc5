/* SPDX-License-Identifier: MIT
 *
 * What berth inspect takes from safetensors: one file, or an index with its files, and config.json beside it, which says what the tensors do not.
 */
#include "inspect_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1u << 20)
#define PATH_BYTES_MAX 8192

/* The path of a file in path's folder; in the arena, NULL without memory. */
static const char *beside(struct inspect *in, const char *file)
{
    const char *slash = strrchr(in->path, '/');
    size_t n = slash ? (size_t)(slash - in->path) + 1 : 0;
    base_autobuf struct buf out = BUF_INIT(PATH_BYTES_MAX);
    buf_add(&out, in->path, n);
    buf_add_c(&out, file);
    return buf_status(&out) < 0 ? NULL : arena_dup(in->arena, buf_str(&out));
}

/* ---- config.json ---------------------------------------------------------------------------------------------------- */

/* A number of the language model: in text_config of models that have more than one, else at the top. */
static uint64_t number(json_val root, const char *key)
{
    uint64_t n = 0;
    if (json_u64(json_get(json_get(root, "text_config"), key), &n) || json_u64(json_get(root, key), &n))
        return n;
    return 0;
}

static uint64_t first_number(json_val root, const char *const *keys, size_t n)
{
    uint64_t found = 0;
    for (size_t i = 0; i < n && !found; i++)
        found = number(root, keys[i]);
    return found;
}

static struct str copy(struct inspect *in, json_val v)
{
    struct str s;
    char *kept = json_str(v, &s) ? arena_dup(in->arena, s) : NULL;
    return kept ? (struct str){kept, s.len} : (struct str){"", 0};
}

static void take_layers(struct inspect *in, json_val root)
{
    struct inspect_layers *l = &in->layers;
    json_val kinds = json_get(json_get(root, "text_config"), "layer_types");
    if (!kinds)
        kinds = json_get(root, "layer_types");
    l->total = number(root, "num_hidden_layers");
    for (size_t i = 0; i < json_count(kinds); i++) {
        struct str kind;
        if (!json_str(json_at(kinds, i), &kind))
            continue;
        if (str_eq_c(kind, "full_attention"))
            l->full++;
        else if (str_eq_c(kind, "sliding_attention") || str_eq_c(kind, "chunked_attention"))
            l->sliding++;
        else if (str_eq_c(kind, "linear_attention") || str_eq_c(kind, "mamba") || str_eq_c(kind, "conv"))
            l->recurrent++;
    }
}

static void take_config(struct inspect *in, json_val root)
{
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    static const char *const shared[] = {"n_shared_experts", "num_shared_experts"};
    in->arch = copy(in, json_get(root, "model_type"));
    in->name = copy(in, json_at(json_get(root, "architectures"), 0));
    in->context = number(root, "max_position_embeddings");
    in->embedding = number(root, "hidden_size");
    in->heads = number(root, "num_attention_heads");
    in->kv_heads_least = in->kv_heads_most = number(root, "num_key_value_heads");
    in->head_width = number(root, "head_dim");
    if (!in->head_width && in->heads)
        in->head_width = in->embedding / in->heads;
    in->window = number(root, "sliding_window");
    in->vocabulary = number(root, "vocab_size");
    in->experts = first_number(root, experts, BASE_COUNT(experts));
    in->experts_used = number(root, "num_experts_per_tok");
    in->experts_shared = first_number(root, shared, BASE_COUNT(shared));
    take_layers(in, root);
}

/* config.json is a help and no part of the model's file: when it is not there or broken, a note says so. */
static void read_config(struct inspect *in)
{
    const char *path = beside(in, "config.json");
    struct gguf_source src = {.size = 0};
    struct json *doc = NULL;
    struct err why;
    base_autobuf struct buf text = BUF_INIT(CONFIG_BYTES_MAX);
    if (!path || in->opener->open(in->opener->ctx, path, &src, &why) < 0) {
        inspect_note(in, "there is no config.json beside it, which would say architecture, layers and context");
        return;
    }
    int r = store_source_read(&src, &text, &why);
    in->opener->close(&src);
    if (r == 0)
        r = json_parse(buf_str(&text), &doc, &why);
    if (r < 0)
        inspect_note(in, "config.json cannot be used: %s", why.text);
    else
        take_config(in, json_root(doc));
    json_free(doc);
}

/* ---- files -------------------------------------------------------------------------------------------------------------- */

static int allocate(struct inspect *in, size_t n, struct err *err)
{
    in->st.sources = arena_alloc(in->arena, n, sizeof(*in->st.sources));
    in->st.files = arena_alloc(in->arena, n, sizeof(void *));
    in->parts = arena_alloc(in->arena, n, sizeof(*in->parts));
    if (!in->st.sources || !in->st.files || !in->parts)
        return err_nomem(err);
    in->st.n = in->n_parts = n;
    in->role = "model";
    in->drafts = "";
    return 0;
}

/* Opens file i at path and counts it. */
static int open_file(struct inspect *in, size_t i, const char *path, struct err *err)
{
    in->parts[i] = (struct inspect_part){.file = path, .state = "bad", .why = ""};
    int r = in->opener->open(in->opener->ctx, path, &in->st.sources[i], err);
    if (r == -ENOENT)
        in->parts[i].state = "missing";
    if (r == 0) {
        in->parts[i].bytes = in->st.sources[i].size;
        in->bytes += in->parts[i].bytes;
        r = gguf_st_open(&in->st.sources[i], &in->st.files[i], err);
    }
    if (r < 0)
        return r;
    const struct gguf_st_info *info = gguf_st_info(in->st.files[i]);
    in->parts[i].tensors = info->n_tensors;
    in->header_bytes += info->header_bytes;
    in->unknown_tensors += info->n_unknown;
    for (size_t t = 0; t < info->n_tensors; t++) {
        const struct gguf_st_tensor *tensor = gguf_st_tensor(in->st.files[i], t);
        inspect_count(in, tensor->type ? tensor->type->name : tensor->dtype.ptr, tensor->elements, tensor->bytes);
    }
    in->parts[i].state = "ok";
    return 0;
}

static void note_unknown(struct inspect *in)
{
    for (size_t i = 0; in->unknown_tensors && i < in->st.n; i++)
        for (size_t t = 0; in->st.files[i] && t < gguf_st_info(in->st.files[i])->n_tensors; t++) {
            const struct gguf_st_tensor *tensor = gguf_st_tensor(in->st.files[i], t);
            if (tensor->type)
                continue;
            base_autobuf struct buf shown = BUF_INIT(4096);
            buf_add_printable(&shown, tensor->dtype, 20);
            buf_add_c(&shown, "' of '");
            buf_add_printable(&shown, tensor->name, 60);
            inspect_note(in, "a tensor type that is not known here: '%s' and %" PRIu64 " of %" PRIu64 " tensors in all", shown.ptr ? shown.ptr : "", in->unknown_tensors, in->tensors);
            return;
        }
}

int inspect_safetensors(struct inspect *in, struct err *err)
{
    struct gguf_split_name name;
    const char *slash = strrchr(in->path, '/');
    in->format = INSPECT_SAFETENSORS;
    int r = allocate(in, 1, err);
    if (r == 0)
        r = open_file(in, 0, in->path, err);
    if (r < 0)
        return r;
    inspect_order(in);
    read_config(in);
    note_unknown(in);
    if (gguf_split_name(str_of(slash ? slash + 1 : in->path), &name) && name.count > 1)
        inspect_note(in, "this is part %" PRIu32 " of %" PRIu32 "; for all of them, inspect %.*s.safetensors.index.json", name.no, name.count, STR_ARG(name.prefix));
    in->fault = gguf_st_whole(in->st.files[0], &in->why);
    return 0;
}

/* One file of the index: what is wrong with it becomes its state, and the fault of the whole when it is the first. */
static int open_indexed(struct inspect *in, size_t i, struct err *err)
{
    struct err why;
    const char *path = beside(in, in->st.index.files[i]);
    if (!path)
        return err_nomem(err);
    int r = open_file(in, i, path, &why);
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r == 0)
        r = gguf_st_whole(in->st.files[i], &why);
    if (r < 0 && strcmp(in->parts[i].state, "missing") != 0)
        in->parts[i].state = "bad";
    if (r == 0) {
        r = gguf_index_check(&in->st.index, (uint32_t)i, in->st.files[i], &why);
        if (r < 0)
            in->parts[i].state = "foreign";
    }
    if (r == 0)
        return 0;
    in->parts[i].why = arena_dup(in->arena, str_of(why.text));
    if (!in->parts[i].why)
        return err_nomem(err);
    if (in->fault)
        return 0;
    in->fault = r;
    if (strcmp(in->parts[i].state, "missing") == 0)
        err_set(&in->why, r, "file %zu of %zu is missing: %s; fetch it", i + 1, in->st.n, path);
    else
        err_set(&in->why, r, "file %zu of %zu, %s: %s", i + 1, in->st.n, path, why.text);
    return 0;
}

int inspect_index(struct inspect *in, struct err *err)
{
    struct gguf_source src = {.size = 0};
    base_autobuf struct buf text = BUF_INIT(GGUF_ST_HEADER_MAX);
    in->format = INSPECT_INDEX;
    int r = in->opener->open(in->opener->ctx, in->path, &src, err);
    if (r == 0)
        r = store_source_read(&src, &text, err);
    in->opener->close(&src);
    if (r == 0)
        r = gguf_index_parse(buf_str(&text), &in->st.index, err);
    if (r == 0)
        r = allocate(in, in->st.index.n_files, err);
    for (size_t i = 0; r == 0 && i < in->st.n; i++)
        r = open_indexed(in, i, err);
    if (r < 0)
        return r;
    inspect_order(in);
    read_config(in);
    note_unknown(in);
    if (!in->fault && in->st.index.total_bytes && in->st.index.total_bytes != in->weight_bytes)
        in->fault = err_set(&in->why, -EBADMSG, "total_size says %" PRIu64 " bytes, the tensors of all files have %" PRIu64 ": index and files are not of one model", in->st.index.total_bytes, in->weight_bytes);
    return 0;
}
