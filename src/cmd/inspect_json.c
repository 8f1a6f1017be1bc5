/* SPDX-License-Identifier: MIT
 *
 * berth inspect for programs. Names and units are stable: sizes in bytes, counts as numbers, null for what the file does not give.
 */
#include "inspect_int.h"

#include <conf/conf.h>
#include <math.h>

#define ARRAY_SHOWN 6 /* strings of an array that are given; numbers are given as long as the reader keeps them */

static void put(struct json_out *o, const char *key, uint64_t n)
{
    if (n)
        json_out_u64(o, key, n);
    else
        json_out_null(o, key);
}

static void put_str(struct json_out *o, const char *key, struct str s)
{
    if (s.len)
        json_out_str(o, key, s);
    else
        json_out_null(o, key);
}

static void put_real(struct json_out *o, const char *key, double v)
{
    if (isfinite(v))
        json_out_f64(o, key, v);
    else
        json_out_null(o, key); /* JSON has no word for it */
}

static void put_layers(struct json_out *o, const struct inspect_layers *l)
{
    json_out_obj(o, "layers");
    put(o, "total", l->total);
    json_out_u64(o, "full_attention", l->full);
    json_out_u64(o, "sliding_window", l->sliding);
    json_out_u64(o, "recurrent", l->recurrent);
    json_out_u64(o, "attention_and_recurrent", l->both);
    json_out_u64(o, "sharing_a_cache", l->shared);
    json_out_u64(o, "without_a_cache", l->ffn);
    json_out_u64(o, "next_token", l->nextn);
    json_out_u64(o, "with_experts", l->moe);
    json_out_cstr(o, "told_by", l->by_tensors ? "tensors" : "architecture");
    json_out_end(o);
}

static void put_parts(struct json_out *o, const struct inspect *in)
{
    json_out_arr(o, "parts");
    for (size_t i = 0; i < in->n_parts; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "file", in->parts[i].file);
        json_out_u64(o, "bytes", in->parts[i].bytes);
        json_out_u64(o, "tensors", in->parts[i].tensors);
        json_out_cstr(o, "state", in->parts[i].state);
        put_str(o, "why", str_of(in->parts[i].why));
        json_out_end(o);
    }
    json_out_end(o);
}

static void put_types(struct json_out *o, const struct inspect *in)
{
    json_out_arr(o, "types");
    for (size_t i = 0; i < in->n_types; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "type", in->types[i].name);
        json_out_u64(o, "tensors", in->types[i].tensors);
        json_out_u64(o, "parameters", in->types[i].elements);
        json_out_u64(o, "bytes", in->types[i].bytes);
        json_out_end(o);
    }
    json_out_end(o);
}

/* ---- metadata and tensors -------------------------------------------------------------------------------------------- */

static bool put_string(void *ctx, uint64_t i, struct str s)
{
    (void)i;
    json_out_str(ctx, NULL, s);
    return true;
}

static void put_array(struct json_out *o, const struct gguf *g, const struct gguf_kv *kv)
{
    json_out_cstr(o, "elements", gguf_value_type_name(kv->elem));
    json_out_u64(o, "count", kv->n);
    json_out_arr(o, kv->elem == GGUF_STRING ? "first" : "value");
    if (kv->elem == GGUF_STRING)
        base_ignore(gguf_each_str(g, kv, ARRAY_SHOWN, put_string, o, NULL)); /* a file that vanished meanwhile: fewer are given */
    for (uint64_t i = 0; kv->kept.len && i < kv->n; i++) {
        int64_t whole;
        double real;
        if (kv->elem == GGUF_BOOL && gguf_at_i64(kv, i, &whole))
            json_out_bool(o, NULL, whole != 0);
        else if (gguf_at_i64(kv, i, &whole))
            json_out_i64(o, NULL, whole);
        else if (gguf_at_f64(kv, i, &real))
            put_real(o, NULL, real);
        else
            json_out_null(o, NULL);
    }
    json_out_end(o);
}

static void put_value(struct json_out *o, const struct gguf *g, const struct gguf_kv *kv)
{
    json_out_cstr(o, "type", gguf_value_type_name(kv->type));
    switch (kv->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: json_out_u64(o, "value", kv->v.u); break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: json_out_i64(o, "value", kv->v.i); break;
    case GGUF_F32:
    case GGUF_F64: put_real(o, "value", kv->v.f); break;
    case GGUF_BOOL: json_out_bool(o, "value", kv->v.b); break;
    case GGUF_STRING:
        json_out_u64(o, "bytes", kv->n);
        json_out_str(o, kv->kept.len == kv->n ? "value" : "first", kv->kept);
        break;
    case GGUF_ARRAY: put_array(o, g, kv); break;
    }
}

static void put_kv(struct json_out *o, const struct inspect *in)
{
    const struct gguf *g = inspect_meta(in);
    json_out_arr(o, "kv");
    for (size_t i = 0; g && i < gguf_info(g)->n_kv; i++) {
        json_out_obj(o, NULL);
        json_out_str(o, "key", gguf_kv(g, i)->key);
        put_value(o, g, gguf_kv(g, i));
        json_out_end(o);
    }
    for (size_t f = 0; f < in->st.n; f++)
        for (size_t i = 0; in->st.files[f] && i < gguf_st_info(in->st.files[f])->n_metadata; i++) {
            struct str key, value;
            gguf_st_metadata(in->st.files[f], i, &key, &value);
            json_out_obj(o, NULL);
            json_out_str(o, "key", key);
            json_out_cstr(o, "type", "string");
            json_out_str(o, "value", value);
            json_out_end(o);
        }
    json_out_end(o);
}

static void put_tensor(void *ctx, const struct inspect_tensor *t)
{
    struct json_out *o = ctx;
    json_out_obj(o, NULL);
    json_out_str(o, "name", t->name);
    json_out_cstr(o, "type", t->type);
    json_out_arr(o, "shape");
    for (uint32_t i = 0; i < t->n_dims; i++)
        json_out_u64(o, NULL, t->dims[i]);
    json_out_end(o);
    json_out_u64(o, "bytes", t->bytes);
    json_out_u64(o, "at_byte", t->off);
    json_out_u64(o, "part", t->part + 1);
    json_out_end(o);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------ */

static void put_facts(struct json_out *o, const struct inspect *in)
{
    put_str(o, "name", in->name);
    put_str(o, "architecture", in->arch);
    put_str(o, "file_type", in->file_type);
    json_out_u64(o, "parameters", in->parameters);
    json_out_u64(o, "tensor_count", in->tensors);
    json_out_u64(o, "unknown_type_tensors", in->unknown_tensors);
    if (in->parameters)
        json_out_f64(o, "bits_per_weight", (double)in->weight_bytes * 8 / (double)in->parameters);
    else
        json_out_null(o, "bits_per_weight");
    json_out_u64(o, "bytes", in->bytes);
    json_out_u64(o, "header_bytes", in->header_bytes);
    json_out_u64(o, "weight_bytes", in->weight_bytes);
    put_layers(o, &in->layers);
    put(o, "context", in->context);
    put(o, "sliding_window", in->window);
    put(o, "embedding", in->embedding);
    put(o, "heads", in->heads);
    put(o, "kv_heads_least", in->kv_heads_least);
    put(o, "kv_heads_most", in->kv_heads_most);
    put(o, "head_width", in->head_width);
    put(o, "experts", in->experts);
    put(o, "experts_used", in->experts_used);
    put(o, "experts_shared", in->experts_shared);
    put_str(o, "tokenizer", in->tokenizer);
    put_str(o, "tokenizer_pre", in->tokenizer_pre);
    put(o, "vocabulary", in->vocabulary);
    json_out_bool(o, "chat_template", in->has_template);
    put_str(o, "drafts", str_of(in->drafts));
    put(o, "block_size", in->block_size);
    put_str(o, "target_layers", in->targets);
}

void inspect_json(const struct inspect *in, bool kv, bool tensors, struct json_out *o)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "file", in->path);
    json_out_cstr(o, "format", in->format == INSPECT_GGUF ? "gguf" : in->format == INSPECT_INDEX ? "safetensors-index" : "safetensors");
    put(o, "version", in->version);
    json_out_cstr(o, "role", in->role);
    put_facts(o, in);
    put_types(o, in);
    put_parts(o, in);
    json_out_arr(o, "notes");
    for (size_t i = 0; i < in->n_notes; i++)
        json_out_cstr(o, NULL, in->notes[i]);
    json_out_end(o);
    if (kv)
        put_kv(o, in);
    if (tensors) {
        json_out_arr(o, "tensors");
        inspect_each(in, put_tensor, o);
        json_out_end(o);
    }
    put_str(o, "error", in->fault ? str_of(in->why.text) : (struct str){"", 0});
    json_out_end(o);
}
