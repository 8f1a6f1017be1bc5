/* SPDX-License-Identifier: MIT
 *
 * What berth inspect takes from a GGUF file or split set. The metadata is that of the first part; tensors are those of all parts that could be read. A key of an unexpected kind is left out and never trusted.
 */
#include "inspect_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void inspect_note(struct inspect *in, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(4096);
    if (in->n_notes == INSPECT_NOTES_MAX)
        return;
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    const char *kept = buf_status(&text) < 0 ? NULL : arena_dup(in->arena, buf_str(&text));
    if (kept)
        in->notes[in->n_notes++] = kept;
}

void inspect_count(struct inspect *in, const char *type, uint64_t elements, uint64_t bytes)
{
    size_t i = 0;
    while (i < in->n_types && strcmp(in->types[i].name, type) != 0)
        i++;
    in->tensors++;
    in->parameters += elements; /* readers have checked the sum of each file; a set has at most GGUF_PARTS_MAX */
    in->weight_bytes += bytes;
    if (i == INSPECT_TYPES_MAX)
        return;
    if (i == in->n_types) {
        in->types[i] = (struct inspect_type){.name = type};
        in->n_types++;
    }
    in->types[i].tensors++;
    in->types[i].elements += elements;
    in->types[i].bytes += bytes;
}

static int compare_type(const void *x, const void *y)
{
    const struct inspect_type *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

void inspect_order(struct inspect *in)
{
    qsort(in->types, in->n_types, sizeof(in->types[0]), compare_type);
}

const struct gguf *inspect_meta(const struct inspect *in)
{
    if (in->format != INSPECT_GGUF)
        return NULL;
    const struct store_weights *w = &in->weights;
    return w->parts[0].g ? w->parts[0].g : w->parts[w->given].g;
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

static uint64_t number(const struct gguf_kv *kv)
{
    uint64_t n = 0;
    return gguf_u64(kv, &n) ? n : 0;
}

static uint64_t arch_number(const struct gguf *g, const char *rest)
{
    return number(gguf_find_arch(g, rest));
}

static struct str text(const struct gguf *g, const char *key)
{
    struct str s = {"", 0};
    return gguf_str(gguf_find(g, key), &s) ? s : (struct str){"", 0};
}

/* Least and most of a number that may be one for each layer; layers without any are not counted. */
static void range(const struct gguf_kv *kv, uint64_t *ret_least, uint64_t *ret_most)
{
    *ret_least = *ret_most = number(kv);
    int64_t v;
    for (uint64_t i = 0; kv && gguf_at_i64(kv, i, &v); i++) {
        if (v <= 0)
            continue;
        if (*ret_least == 0 || (uint64_t)v < *ret_least)
            *ret_least = (uint64_t)v;
        if ((uint64_t)v > *ret_most)
            *ret_most = (uint64_t)v;
    }
}

static const char *file_type_name(uint64_t t)
{
    static const char *const names[] = {
        [0] = "F32", [1] = "F16", [2] = "Q4_0", [3] = "Q4_1", [7] = "Q8_0", [8] = "Q5_0", [9] = "Q5_1", [10] = "Q2_K", [11] = "Q3_K_S", [12] = "Q3_K_M", [13] = "Q3_K_L", [14] = "Q4_K_S", [15] = "Q4_K_M",
        [16] = "Q5_K_S", [17] = "Q5_K_M", [18] = "Q6_K", [19] = "IQ2_XXS", [20] = "IQ2_XS", [21] = "Q2_K_S", [22] = "IQ3_XS", [23] = "IQ3_XXS", [24] = "IQ1_S", [25] = "IQ4_NL", [26] = "IQ3_S", [27] = "IQ3_M",
        [28] = "IQ2_S", [29] = "IQ2_M", [30] = "IQ4_XS", [31] = "IQ1_M", [32] = "BF16", [36] = "TQ1_0", [37] = "TQ2_0", [38] = "MXFP4_MOE",
    };
    return t < BASE_COUNT(names) && names[t] ? names[t] : "";
}

static void take_names(struct inspect *in, const struct gguf *g)
{
    in->version = gguf_info(g)->version;
    in->arch = gguf_arch(g);
    in->name = text(g, "general.name");
    uint64_t type;
    if (gguf_u64(gguf_find(g, "general.file_type"), &type))
        in->file_type = str_of(file_type_name(type));
    in->tokenizer = text(g, "tokenizer.ggml.model");
    in->tokenizer_pre = text(g, "tokenizer.ggml.pre");
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    in->vocabulary = tokens && tokens->type == GGUF_ARRAY ? tokens->n : arch_number(g, "vocab_size");
    const struct gguf_kv *template = gguf_find(g, "tokenizer.chat_template");
    if (template && template->type == GGUF_STRING) {
        in->has_template = true;
        in->template_bytes = template->n;
    }
}

static void take_shape(struct inspect *in, const struct gguf *g)
{
    uint64_t least;
    in->context = arch_number(g, "context_length");
    in->embedding = arch_number(g, "embedding_length");
    in->window = arch_number(g, "attention.sliding_window");
    in->experts = arch_number(g, "expert_count");
    in->experts_used = arch_number(g, "expert_used_count");
    in->experts_shared = arch_number(g, "expert_shared_count");
    range(gguf_find_arch(g, "attention.head_count"), &least, &in->heads);
    range(gguf_find_arch(g, "attention.head_count_kv"), &in->kv_heads_least, &in->kv_heads_most);
    in->head_width = arch_number(g, "attention.key_length");
    if (!in->head_width && in->heads)
        in->head_width = in->embedding / in->heads;
}

/* "1, 17, 33" of an array of numbers, or the number itself. */
static struct str list(struct inspect *in, const struct gguf_kv *kv)
{
    base_autobuf struct buf out = BUF_INIT(1024);
    int64_t v;
    for (uint64_t i = 0; kv && gguf_at_i64(kv, i, &v) && i < 64; i++)
        buf_addf(&out, "%s%" PRId64, i ? ", " : "", v);
    char *kept = buf_status(&out) < 0 || !out.len ? NULL : arena_dup(in->arena, buf_str(&out));
    return kept ? (struct str){kept, out.len} : (struct str){"", 0};
}

static void take_role(struct inspect *in, const struct gguf *g)
{
    struct str type = text(g, "general.type");
    in->role = "model";
    in->drafts = "";
    in->block_size = arch_number(g, "block_size");
    in->targets = list(in, gguf_find_arch(g, "target_layers"));
    if (str_eq_c(in->arch, "clip") || str_eq_c(type, "mmproj")) {
        in->role = "projector";
    } else if (str_eq_c(type, "adapter")) {
        in->role = "adapter";
    } else if (!in->tensors && in->vocabulary && in->weights.n == 1) {
        in->role = "vocabulary";
    }
}

static void take_notes(struct inspect *in, const struct gguf *g)
{
    struct err why;
    char size[UNITS_TEXT];
    for (size_t p = 0; p < in->weights.n; p++) {
        const struct gguf *part = in->weights.parts[p].g;
        if (!part)
            continue;
        const struct gguf_info *info = gguf_info(part);
        if ((info->faults & GGUF_UNKNOWN) && !(info->faults & (GGUF_CUT | GGUF_JOINED)) && gguf_whole(part, &why) < 0)
            inspect_note(in, "%s", why.text);
        uint64_t end;
        if (!info->faults && size_align(info->end, info->align, &end) && end < info->file_bytes)
            inspect_note(in, "%s behind the last tensor; engines do not mind", units_show_bytes(info->file_bytes - info->end, size));
    }
    if (!in->arch.len && in->weights.parts[0].g)
        inspect_note(in, "there is no general.architecture: engines refuse the file");
    uint64_t layers;
    if (gguf_u64(gguf_find_arch(g, "block_count"), &layers) && (layers == 0 || layers > 512))
        inspect_note(in, "block_count is %" PRIu64 ": engines take 1 to 512", layers);
}

/* ---- parts --------------------------------------------------------------------------------------------------------- */

static int take_parts(struct inspect *in, struct err *err)
{
    static const char *const states[] = {[GGUF_PART_OK] = "ok", [GGUF_PART_MISSING] = "missing", [GGUF_PART_BAD] = "bad", [GGUF_PART_FOREIGN] = "foreign"};
    const struct store_weights *w = &in->weights;
    in->parts = arena_alloc(in->arena, w->n, sizeof(*in->parts));
    if (!in->parts)
        return err_nomem(err);
    in->n_parts = w->n;
    for (size_t i = 0; i < w->n; i++) {
        const struct gguf_part *p = &w->parts[i];
        in->parts[i] = (struct inspect_part){.file = p->path, .state = states[p->state], .why = p->state == GGUF_PART_OK ? "" : p->why.text};
        if (w->sources[i])
            in->parts[i].bytes = w->sources[i]->size;
        in->bytes += in->parts[i].bytes;
        if (!p->g)
            continue;
        in->parts[i].tensors = gguf_info(p->g)->n_tensors;
        in->header_bytes += gguf_info(p->g)->header_bytes;
        in->unknown_tensors += gguf_info(p->g)->n_unknown;
        for (size_t t = 0; t < gguf_info(p->g)->n_tensors; t++) {
            const struct gguf_tensor *tensor = gguf_tensor(p->g, t);
            inspect_count(in, tensor->type ? tensor->type->name : gguf_type_past(tensor->type_id), tensor->elements, tensor->bytes);
        }
    }
    return 0;
}

int inspect_gguf(struct inspect *in, struct err *err)
{
    int r = store_weights_open_by(in->opener, in->path, &in->weights, err);
    if (r < 0)
        return r;
    in->format = INSPECT_GGUF;
    r = take_parts(in, err);
    if (r < 0)
        return r;
    inspect_order(in);
    const struct gguf *g = inspect_meta(in);
    take_names(in, g);
    take_shape(in, g);
    take_role(in, g);
    inspect_layers(in);
    take_notes(in, g);
    in->fault = in->weights.verdict;
    if (in->fault)
        in->why = in->weights.why;
    return 0;
}
