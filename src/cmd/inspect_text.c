/* SPDX-License-Identifier: MIT
 *
 * berth inspect for people: a few lines about the model, a table of the parts of a set, and on demand tables of metadata and tensors. All text from the file is made printable.
 */
#include "inspect_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LABEL_WIDTH 15
#define VALUE_CHARS 72   /* of a string in the table of metadata */
#define ARRAY_SHOWN 6    /* elements of an array there */
#define TYPES_SHOWN 6

/* "27.36 B", "65". Returns out. */
static const char *counted(uint64_t n, char out[UNITS_TEXT])
{
    static const struct {
        double one;
        const char *unit;
    } units[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
    for (size_t i = 0; i < BASE_COUNT(units); i++)
        if ((double)n >= units[i].one) {
            (void)snprintf(out, UNITS_TEXT, "%.2f %s", (double)n / units[i].one, units[i].unit);
            return out;
        }
    (void)snprintf(out, UNITS_TEXT, "%" PRIu64, n);
    return out;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- the summary ------------------------------------------------------------------------------------------------- */

static void label(struct buf *out, const char *name, bool color)
{
    buf_addf(out, "  %s%s%s", color ? "\x1b[2m" : "", name, color ? "\x1b[0m" : "");
    for (size_t n = strlen(name); n < LABEL_WIDTH; n++)
        buf_add_char(out, ' ');
}

static void add_model(const struct inspect *in, bool color, struct buf *out)
{
    label(out, in->role, color);
    if (in->name.len)
        buf_add_printable(out, in->name, 60);
    if (in->name.len && in->arch.len)
        buf_add_c(out, ", ");
    if (in->arch.len)
        buf_add_printable(out, in->arch, 40);
    else
        buf_add_c(out, in->name.len ? ", architecture not given" : "architecture not given");
    if (in->file_type.len) {
        buf_add_c(out, ", ");
        buf_add_printable(out, in->file_type, 20);
    }
    buf_add_char(out, '\n');
}

static void add_size(const struct inspect *in, bool color, struct buf *out)
{
    char n[UNITS_TEXT], tensors[UNITS_TEXT], size[UNITS_TEXT], header[UNITS_TEXT];
    label(out, "parameters", color);
    if (!in->tensors)
        buf_add_c(out, "no tensors: metadata alone\n");
    else if (in->parameters)
        buf_addf(out, "%s parameters in %s tensor%s, %.2f bits per weight\n", counted(in->parameters, n), units_show_count(in->tensors, tensors), plural(in->tensors), (double)in->weight_bytes * 8 / (double)in->parameters);
    else
        buf_addf(out, "none in %s tensors\n", units_show_count(in->tensors, n));
    label(out, "size", color);
    buf_addf(out, "%s", units_show_bytes(in->bytes, size));
    if (in->n_parts > 1)
        buf_addf(out, " in %zu parts", in->n_parts);
    buf_addf(out, ", header %s, ", units_show_bytes(in->header_bytes, header));
    if (in->format == INSPECT_GGUF)
        buf_addf(out, "GGUF v%" PRIu32 "\n", in->version);
    else
        buf_add_c(out, "safetensors\n");
}

struct kind {
    uint64_t n;
    const char *what;
};

/* "16 full attention, 48 recurrent" into out; kinds without layers are left out. */
static void add_kinds(struct buf *out, const struct kind *kinds, size_t n)
{
    char number[UNITS_TEXT];
    const char *before = ": ";
    for (size_t i = 0; i < n; i++) {
        if (!kinds[i].n)
            continue;
        buf_addf(out, "%s%s %s", before, units_show_count(kinds[i].n, number), kinds[i].what);
        before = ", ";
    }
}

static void add_layers(const struct inspect *in, bool color, struct buf *out)
{
    const struct inspect_layers *l = &in->layers;
    char n[UNITS_TEXT], w[UNITS_TEXT];
    if (!l->total)
        return;
    const struct kind kinds[] = {
        {l->full, l->by_tensors && in->window ? "attention" : "full attention"}, {l->sliding, "sliding window"}, {l->recurrent, "recurrent"}, {l->both, "attention and recurrent"}, {l->shared, "sharing a cache"}, {l->ffn, "without a cache"}, {l->nextn, "next-token (MTP)"},
    };
    label(out, "layers", color);
    buf_addf(out, "%s layer%s", units_show_count(l->total, n), plural(l->total));
    add_kinds(out, kinds, BASE_COUNT(kinds));
    if (l->moe)
        buf_addf(out, "; %s with experts", units_show_count(l->moe, n));
    buf_add_char(out, '\n');
    if (in->window) {
        label(out, "window", color);
        buf_addf(out, "%s tokens%s\n", units_show_count(in->window, w), l->by_tensors ? ", in which layers is not known here" : "");
    }
}

static void add_attention(const struct inspect *in, bool color, struct buf *out)
{
    char a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT];
    if (!in->heads)
        return;
    label(out, "attention", color);
    buf_addf(out, "%s heads", units_show_count(in->heads, a));
    if (in->kv_heads_most && in->kv_heads_least != in->kv_heads_most)
        buf_addf(out, ", %s to %s for K and V", units_show_count(in->kv_heads_least, b), units_show_count(in->kv_heads_most, c));
    else if (in->kv_heads_most)
        buf_addf(out, ", %s for K and V", units_show_count(in->kv_heads_most, b));
    if (in->head_width)
        buf_addf(out, ", %s wide", units_show_count(in->head_width, c));
    buf_add_char(out, '\n');
}

static void add_experts(const struct inspect *in, bool color, struct buf *out)
{
    char a[UNITS_TEXT];
    if (!in->experts)
        return;
    label(out, "experts", color);
    buf_addf(out, "%s experts", units_show_count(in->experts, a));
    if (in->experts_used)
        buf_addf(out, ", %s used", units_show_count(in->experts_used, a));
    if (in->experts_shared)
        buf_addf(out, ", %s shared", units_show_count(in->experts_shared, a));
    buf_add_char(out, '\n');
}

static void add_drafter(const struct inspect *in, bool color, struct buf *out)
{
    char a[UNITS_TEXT];
    if (!in->drafts[0])
        return;
    label(out, "drafts", color);
    if (strcmp(in->drafts, "draft-mtp") == 0) {
        buf_add_c(out, "for itself as draft-mtp\n");
        return;
    }
    bool assistant = strcmp(in->drafts, "assistant") == 0;
    buf_add_c(out, assistant ? "as the assistant of a target, whose cache it uses" : "as ");
    if (!assistant)
        buf_add_c(out, in->drafts);
    if (in->block_size)
        buf_addf(out, ", block size %s", units_show_count(in->block_size, a));
    if (in->window)
        buf_addf(out, ", sliding window %s", units_show_count(in->window, a));
    else if (!assistant)
        buf_add_c(out, ", no sliding window: its cache grows with the whole context");
    if (in->targets.len)
        buf_addf(out, ", listens to layers %.*s", STR_ARG(in->targets));
    buf_add_char(out, '\n');
}

static void add_text(const struct inspect *in, bool color, struct buf *out)
{
    char a[UNITS_TEXT], size[UNITS_TEXT];
    bool tokens = !str_eq_c(in->tokenizer, "none") && !str_eq_c(in->tokenizer, "no_vocab");
    if (in->context) {
        label(out, "context", color);
        buf_addf(out, "%s tokens\n", units_show_count(in->context, a));
    }
    if (in->vocabulary || in->tokenizer.len) {
        label(out, "vocabulary", color);
        buf_addf(out, "%s tokens", units_show_count(in->vocabulary, a));
        if (!tokens)
            buf_add_c(out, ", no tokenizer");
        else if (in->tokenizer.len) {
            buf_add_c(out, ", ");
            buf_add_printable(out, in->tokenizer, 40);
        }
        if (in->tokenizer_pre.len) {
            buf_add_char(out, '/');
            buf_add_printable(out, in->tokenizer_pre, 40);
        }
        buf_add_char(out, '\n');
    }
    if (in->has_template) {
        label(out, "chat template", color);
        buf_addf(out, "%s\n", units_show_bytes(in->template_bytes, size));
    } else if (in->format == INSPECT_GGUF && in->tokenizer.len && tokens && strcmp(in->role, "model") == 0) {
        label(out, "chat template", color);
        buf_add_c(out, "none\n");
    }
}

static void add_types(const struct inspect *in, bool color, struct buf *out)
{
    char size[UNITS_TEXT];
    if (!in->n_types)
        return;
    label(out, "weights", color);
    for (size_t i = 0; i < in->n_types && i < TYPES_SHOWN; i++) {
        buf_add_c(out, i ? ", " : "");
        buf_add_printable(out, str_of(in->types[i].name), 40);
        buf_addf(out, " %s", units_show_bytes(in->types[i].bytes, size));
    }
    if (in->n_types > TYPES_SHOWN)
        buf_addf(out, ", and %zu more", in->n_types - TYPES_SHOWN);
    buf_add_char(out, '\n');
}

static void add_notes(const struct inspect *in, bool color, struct buf *out)
{
    for (size_t i = 0; i < in->n_notes; i++) {
        label(out, "note", color);
        buf_addf(out, "%s\n", in->notes[i]);
    }
}

/* ---- tables --------------------------------------------------------------------------------------------------------- */

static void add_table(struct os_table *t, bool color, struct buf *out)
{
    buf_add_char(out, '\n');
    if (!t || os_table_text(t, color, out) < 0)
        buf_fail(out, -ENOMEM);
    os_table_free(t);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void add_parts(const struct inspect *in, bool color, struct buf *out)
{
    static const char *const headings[] = {"PART", "FILE", "SIZE", "TENSORS", "STATE"};
    static const enum os_align aligns[] = {OS_RIGHT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    char size[UNITS_TEXT];
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    for (size_t i = 0; t && i < in->n_parts; i++) {
        const struct inspect_part *p = &in->parts[i];
        bool ok = strcmp(p->state, "ok") == 0;
        bool there = strcmp(p->state, "missing") != 0;
        os_table_cell(t, OS_PLAIN, "%zu", i + 1);
        os_table_cell(t, OS_BOLD, "%s", base_name(p->file));
        os_table_cell(t, OS_PLAIN, "%s", there ? units_show_bytes(p->bytes, size) : "-");
        os_table_cell(t, OS_PLAIN, there ? "%" PRIu64 : "-", p->tensors);
        os_table_cell(t, ok ? OS_GREEN : OS_RED, "%s", p->state);
    }
    add_table(t, color, out);
}

static void add_element(struct buf *out, const struct gguf_kv *kv, uint64_t i)
{
    int64_t whole;
    double real;
    if (kv->elem == GGUF_BOOL && gguf_at_i64(kv, i, &whole))
        buf_add_c(out, whole ? "true" : "false");
    else if (gguf_at_i64(kv, i, &whole))
        buf_addf(out, "%" PRId64, whole);
    else if (gguf_at_f64(kv, i, &real))
        buf_addf(out, "%g", real);
}

static bool add_string(void *ctx, uint64_t i, struct str s)
{
    struct buf *out = ctx;
    buf_add_c(out, i ? ", \"" : "\"");
    buf_add_printable(out, s, 20);
    buf_add_char(out, '"');
    return true;
}

/* "[262144] "<pad>", "<eos>", ..." */
static void add_array(struct buf *out, const struct gguf *g, const struct gguf_kv *kv)
{
    char n[UNITS_TEXT];
    bool shown = true;
    buf_addf(out, kv->n ? "[%s] " : "[%s]", units_show_count(kv->n, n));
    if (kv->elem == GGUF_STRING)
        shown = gguf_each_str(g, kv, ARRAY_SHOWN, add_string, out, NULL) == 0;
    else if (kv->kept.len)
        for (uint64_t i = 0; i < kv->n && i < ARRAY_SHOWN; i++) {
            buf_add_c(out, i ? ", " : "");
            add_element(out, kv, i);
        }
    else
        shown = false;
    if (shown && kv->n > ARRAY_SHOWN)
        buf_add_c(out, ", ...");
}

static void add_value(struct buf *out, const struct gguf *g, const struct gguf_kv *kv)
{
    switch (kv->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: buf_addf(out, "%" PRIu64, kv->v.u); break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: buf_addf(out, "%" PRId64, kv->v.i); break;
    case GGUF_F32:
    case GGUF_F64: buf_addf(out, "%g", kv->v.f); break;
    case GGUF_BOOL: buf_add_c(out, kv->v.b ? "true" : "false"); break;
    case GGUF_STRING: buf_add_printable(out, kv->kept, VALUE_CHARS); break;
    case GGUF_ARRAY: add_array(out, g, kv); break;
    }
}

static void add_kv(const struct inspect *in, bool color, struct buf *out)
{
    static const char *const headings[] = {"KEY", "TYPE", "VALUE"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT};
    const struct gguf *g = inspect_meta(in);
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    for (size_t i = 0; t && g && i < gguf_info(g)->n_kv; i++) {
        const struct gguf_kv *kv = gguf_kv(g, i);
        base_autobuf struct buf value = BUF_INIT(16384);
        add_value(&value, g, kv);
        os_table_cell(t, OS_BOLD, "%s", kv->key.ptr);
        os_table_cell(t, OS_PLAIN, kv->type == GGUF_ARRAY ? "%s[]" : "%s", gguf_value_type_name(kv->type == GGUF_ARRAY ? kv->elem : kv->type));
        os_table_cell(t, OS_PLAIN, "%s", value.ptr ? value.ptr : "");
    }
    for (size_t f = 0; t && f < in->st.n; f++)
        for (size_t i = 0; in->st.files[f] && i < gguf_st_info(in->st.files[f])->n_metadata; i++) {
            struct str key, value;
            gguf_st_metadata(in->st.files[f], i, &key, &value);
            os_table_cell(t, OS_BOLD, "%s", key.ptr);
            os_table_cell(t, OS_PLAIN, "string");
            os_table_cell(t, OS_PLAIN, "%.*s", VALUE_CHARS, value.ptr);
        }
    add_table(t, color, out);
}

struct rows {
    struct os_table *t;
    bool parts;
};

static void add_tensor(void *ctx, const struct inspect_tensor *tensor)
{
    const struct rows *rows = ctx;
    char size[UNITS_TEXT];
    base_autobuf struct buf shape = BUF_INIT(512);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        buf_addf(&shape, "%s%" PRIu64, i ? " x " : "", tensor->dims[i]);
    os_table_cell(rows->t, OS_BOLD, "%s", tensor->name.ptr);
    os_table_cell(rows->t, OS_PLAIN, "%s", shape.ptr ? shape.ptr : "scalar");
    os_table_cell(rows->t, OS_PLAIN, "%s", tensor->type);
    os_table_cell(rows->t, OS_PLAIN, "%s", units_show_bytes(tensor->bytes, size));
    os_table_cell(rows->t, OS_PLAIN, "%" PRIu64, tensor->off);
    if (rows->parts)
        os_table_cell(rows->t, OS_PLAIN, "%zu", tensor->part + 1);
}

static void add_tensors(const struct inspect *in, bool color, struct buf *out)
{
    static const char *const headings[] = {"TENSOR", "SHAPE", "TYPE", "SIZE", "AT BYTE", "PART"};
    static const enum os_align aligns[] = {OS_LEFT, OS_RIGHT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT};
    struct rows rows = {.parts = in->n_parts > 1};
    rows.t = os_table_new(headings, aligns, BASE_COUNT(headings) - (rows.parts ? 0 : 1));
    if (rows.t)
        inspect_each(in, add_tensor, &rows);
    add_table(rows.t, color, out);
}

void inspect_text(const struct inspect *in, bool kv, bool tensors, bool color, struct buf *out)
{
    buf_add_c(out, color ? "\x1b[1m" : "");
    buf_add_printable(out, str_of(in->path), 4096);
    buf_add_c(out, color ? "\x1b[0m\n" : "\n");
    add_model(in, color, out);
    add_size(in, color, out);
    add_layers(in, color, out);
    add_attention(in, color, out);
    add_experts(in, color, out);
    add_drafter(in, color, out);
    add_text(in, color, out);
    add_types(in, color, out);
    add_notes(in, color, out);
    if (in->n_parts > 1)
        add_parts(in, color, out);
    if (kv)
        add_kv(in, color, out);
    if (tensors)
        add_tensors(in, color, out);
}
