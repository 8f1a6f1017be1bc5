/* SPDX-License-Identifier: MIT
 *
 * What `berth inspect` found in one model: a GGUF file or split set, a safetensors file, or an index with its files. Filled by inspect_gguf.c or inspect_hub.c, shown by inspect_text.c or inspect_json.c. Numbers that the file does
 * not give are 0, texts empty.
 */
#pragma once

#include "cmd_int.h"

#include <gguf/gguf.h>
#include <store/store.h>

#define INSPECT_LAYERS_MAX 1024   /* layers whose tensors are looked at; engines stop at 512 */
#define INSPECT_TYPES_MAX 64      /* tensor types told apart; ggml has 35 */
#define INSPECT_NOTES_MAX 8
#define INSPECT_MEMORY_MAX (64u << 20)

enum inspect_format { INSPECT_GGUF, INSPECT_SAFETENSORS, INSPECT_INDEX };

struct inspect_part {
    const char *file;  /* as a path */
    uint64_t bytes, tensors;
    const char *state; /* "ok", "missing", "bad", "foreign" */
    const char *why;   /* "" when ok */
};

struct inspect_type {
    const char *name;
    uint64_t tensors, elements, bytes;
};

/* A tensor of either format. */
struct inspect_tensor {
    struct str name;
    const char *type;
    const uint64_t *dims;
    uint32_t n_dims;
    uint64_t elements, off, bytes;
    size_t part; /* index */
};

/* How many layers are of which kind. */
struct inspect_layers {
    uint64_t total;     /* as the file says, next-token layers included */
    uint64_t full;      /* attention over the whole context */
    uint64_t sliding;   /* attention over a window */
    uint64_t recurrent; /* a state instead of a cache */
    uint64_t both;      /* attention and a state in one layer */
    uint64_t shared;    /* attention over the cache of another layer */
    uint64_t ffn;       /* none of these */
    uint64_t nextn;     /* next-token (MTP) layers, the last ones */
    uint64_t moe;       /* of all these, with experts */
    bool by_tensors;    /* told by which tensors a layer has: a window is then not seen */
};

struct inspect {
    struct arena *arena;
    const char *path;
    const struct store_opener *opener; /* of path and of what is beside it */
    enum inspect_format format;
    struct store_weights weights; /* INSPECT_GGUF */
    struct {                      /* the others: one file, or those of the index */
        struct gguf_source *sources;
        struct gguf_st **files;
        size_t n;
        struct gguf_index index;
    } st;

    uint32_t version;     /* of GGUF */
    const char *role;     /* "model", "drafter", "projector", "adapter", "vocabulary", "part" */
    struct str name, arch, file_type;
    uint64_t parameters, tensors, unknown_tensors;
    uint64_t bytes, header_bytes, weight_bytes; /* bytes: all files */
    struct inspect_layers layers;
    uint64_t context, window, embedding;
    uint64_t heads, kv_heads_least, kv_heads_most, head_width;
    uint64_t experts, experts_used, experts_shared;
    uint64_t vocabulary, template_bytes;
    bool has_template;
    struct str tokenizer, tokenizer_pre;
    const char *drafts;   /* drafter: how it drafts, "" when it is none */
    uint64_t block_size;
    struct str targets;   /* layers of the target that it listens to */

    struct inspect_part *parts;
    size_t n_parts;
    struct inspect_type types[INSPECT_TYPES_MAX]; /* by bytes, largest first */
    size_t n_types;
    const char *notes[INSPECT_NOTES_MAX];
    size_t n_notes;
    int fault;            /* 0, or what is wrong though it could be read */
    struct err why;
};

/* Reads path into in, whose arena is set. What could not be read at all is an error; what is wrong with a readable file is in->fault. */
int inspect_gguf(struct inspect *in, struct err *err) BASE_MUST_USE;
int inspect_safetensors(struct inspect *in, struct err *err) BASE_MUST_USE;
int inspect_index(struct inspect *in, struct err *err) BASE_MUST_USE;

/* Fills in->layers from the laws of the architecture, or from the tensors that each layer has when there is no law for it; corrects the role where the laws know better. */
void inspect_layers(struct inspect *in);

void inspect_note(struct inspect *in, const char *fmt, ...) BASE_PRINTF(2, 3);
void inspect_count(struct inspect *in, const char *type, uint64_t elements, uint64_t bytes); /* one tensor into totals and types */
void inspect_order(struct inspect *in);                                                      /* types by bytes */
/* Calls fn for each tensor, in the order of parts and files. */
void inspect_each(const struct inspect *in, void (*fn)(void *ctx, const struct inspect_tensor *t), void *ctx);

/* The metadata of the model: of the first part of a set when it is there. NULL for other formats. */
const struct gguf *inspect_meta(const struct inspect *in);

void inspect_text(const struct inspect *in, bool kv, bool tensors, bool color, struct buf *out);
struct json_out;
void inspect_json(const struct inspect *in, bool kv, bool tensors, struct json_out *o);
