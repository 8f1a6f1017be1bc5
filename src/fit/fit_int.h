/* SPDX-License-Identifier: MIT
 *
 * Private parts of fit. A prediction has four steps: sizes are resolved (cache.c), layers get their devices and tensors follow (place.c), each context adds its caches (cache.c) and buffers
 * (compute.c, states.c), and the rules look at the result (legal.c). What a prediction needs of a model's tensors is summed up once, by layer, in a struct fit_placed; after that nobody walks tensors.
 *
 * Sums of bytes saturate at FIT_BYTES_MAX instead of failing: a shape that large fits nowhere, and says so.
 */
#pragma once

#include "fit.h"

#define FIT_CELLS 256 /* the engine rounds every cache, and a slot's context, up to it */

/* How a buffer type rounds a tensor (law 2.5). */
enum fit_class {
    FIT_CLASS_PLAIN, /* CPU, RPC workers on CPUs, Metal: 32 bytes */
    FIT_CLASS_CUDA,  /* CUDA, HIP: 128 bytes, and rows of quantized tensors up to 512 elements */
    FIT_CLASS_WIDE,  /* Vulkan: what the device asks for, at most 256 */
    FIT_CLASSES
};
enum fit_class fit_class_of(enum fit_backend b);
/* Bytes that a buffer of class c takes for rows rows of width elements. */
uint64_t fit_tensor_bytes(enum fit_class c, const struct gguf_type *t, uint64_t width, uint64_t rows);

/* Tensors that go to one place, as each class of buffer would round them. */
struct fit_sums {
    uint64_t bytes[FIT_CLASSES];
    uint64_t repack; /* part of the plain figure that the CPU's repacking takes */
};
/* What may part a layer's tensors. */
#define FIT_MOE 1     /* routed experts: follow cpu_moe */
#define FIT_NO_CUDA 2 /* of a type that CUDA and HIP have no kernel for: fall through to the CPU */
#define FIT_LOADED 4  /* of a nextn layer, and loaded with it or without */
#define FIT_GROUPS 8
struct fit_group {
    struct fit_sums part[FIT_GROUPS];
};

/* Widths of one layer's activations, read from its tensors. */
struct fit_layer {
    uint32_t q, k, v, o;      /* columns of the projections; o is what the last one reads */
    uint32_t qkv;             /* one product for all three; 0: separate ones */
    uint32_t up, down;        /* dense feed-forward part; 0 none */
    uint32_t expert, shared;  /* width of one routed expert, of the shared ones */
    uint32_t q_a, kv_a, lora; /* MLA: q's low rank (0 none), K's latent with and without its rope part */
    uint32_t in, conv, x;     /* state layers: first projection, channels of the convolution, mamba's second projection */
    uint32_t inner;           /* what a state layer's output projection reads */
    bool gated, ffn_norm;     /* without a norm of its own the feed-forward part works beside attention */
    bool attn_norm, pre_ffn, post_ffn; /* norms in front of attention, in front of the feed-forward part, behind it */
    bool away;                /* an override keeps its experts on the CPU */
    uint64_t largest, largest_expert; /* bytes of its largest tensor */
    uint64_t kind;            /* a hash of all that its activations depend on: layers of one kind are played alike */
    enum fit_mixer { FIT_MIX_OTHER, FIT_MIX_DELTA, FIT_MIX_MAMBA, FIT_MIX_MAMBA2, FIT_MIX_SHORT } mixer;
};

/* How far the truth may lie from what is played, in percent of it. */
struct fit_margin {
    unsigned below, above;
};

/* One model with its overrides, summed. */
struct fit_placed {
    const struct model *m;
    struct fit_layer *layers;
    struct fit_group *slots; /* m->n_layer layers, then the output slot; of a nextn layer only FIT_LOADED parts are always there */
    struct fit_sums input;   /* always on the CPU */
    struct fit_sums fixed[FIT_DEVICES_MAX + 1], fixed_nextn[FIT_DEVICES_MAX + 1]; /* overridden: by device, the host at n_devices */
    uint64_t *moved;         /* columns of activations of what overrides moved, by device and layer (the input at n_layer); NULL without overrides */
    struct fit_sums per_buffer; /* one copy for each distinct buffer type */
    struct fit_sums tied;    /* the output's own copy of token_embd */
    bool has_tied;
    bool shares_kv;          /* layers attend to another layer's cache */
    bool selects;            /* a block drafter that selects among candidates */
    unsigned graph;          /* enum fit_trait of its graph */
    struct fit_margin margin; /* of its compute */
    uint64_t table_bytes, table_width; /* of per_layer_token_embd, 0 none */
    bool table_moved;        /* it is overridden to a device */
    uint64_t v_width_max;    /* law 3.2 without flash attention */
    uint32_t override_hits[FIT_OVERRIDES_MAX];  /* tensors that each override moved */
    bool override_no_buffer[FIT_OVERRIDES_MAX]; /* its buffer is none of the devices' nor CPU */
    bool override_no_kernel[FIT_OVERRIDES_MAX]; /* moves a type to a device that has no kernel for it */
    const struct fit_override *overrides;
    size_t n_overrides;
};

/* What an architecture's graph does otherwise than the plain one. */
enum fit_trait {
    FIT_NO_ROPE = 1 << 0,        /* q and k are not turned by their positions */
    FIT_NO_CACHE = 1 << 1,       /* tokens look at each other alone */
    FIT_NO_HEAD = 1 << 2,        /* hidden states come out, no logits */
    FIT_ALL_LOGITS = 1 << 3,     /* no rows are picked: logits of every token */
    FIT_NO_MIXED = 1 << 4,       /* no second kind of input embeddings */
    FIT_FFN_FIRST = 1 << 5,      /* the feed-forward part beside attention comes before attention's last product */
    FIT_POSITION_ROWS = 1 << 6,  /* rows of position_embd are added */
    FIT_TYPE_ROWS = 1 << 7,      /* and a row of token_types */
    FIT_EMBD_NORM = 1 << 8,      /* a norm of its own stands before the first layer */
    FIT_LATE_ROWS = 1 << 10,     /* rows are picked behind a mix of what several layers gave */
    FIT_NO_EXPERTS = 1 << 11,    /* none are used, whatever the file has */
    FIT_HYPER_GATE = 1 << 12,    /* the mix of residual streams is gated, and its norm is kept for the way back */
    FIT_INDEX_PLAIN = 1 << 13,   /* an indexer without a rotation of its keys */
    FIT_HYPER_VIEWS = 1 << 14,   /* residual streams are mixed one by one before the output */
    FIT_BIAS = 1 << 9,           /* scores get a learned bias by distance, which no fused attention has */
};
unsigned fit_traits(const struct model *m);

struct fit_prepared {
    struct fit_input in;
    struct fit_override overrides[FIT_OVERRIDES_MAX], draft_overrides[FIT_DRAFT_OVERRIDES_MAX];
    struct fit_placed *target, *drafter; /* drafter NULL: none */
    struct fit_sums projector;
    enum fit_class classes[FIT_DEVICES_MAX + 1];
    size_t host; /* index of the host: n_devices */
};

/* One context of the engine. */
struct fit_context {
    const struct fit_placed *pm;
    uint16_t *device;        /* slot -> device */
    bool mtp;                /* holds the caches of the nextn layers, and only those */
    bool draft;              /* counts into the drafter's terms */
    uint32_t np, n_ctx, n_ctx_seq, n_stream, n_batch, n_ubatch, n_outputs;
    uint32_t rs_rows;        /* rows of recurrent state */
    uint32_t rs_seq;         /* rows for each sequence */
    uint32_t copies;         /* of what crosses devices (law 4.2) */
    bool unified, flash;
    const struct gguf_type *k, *v;
};

/* Whether c has l's cache (law 3.10). */
static inline bool fit_cached_by(const struct fit_context *c, const struct model_layer *l)
{
    return l->nextn == c->mtp || (l->nextn && c->pm->m->nextn_cached);
}

/* What one prediction carries. */
struct fit_run {
    const struct fit_prepared *p;
    const struct fit_shape *s;
    struct fit_result *r;
    struct arena *a; /* NULL: notes have no text */
    int failed;      /* -ENOMEM of a note */
    struct fit_context target, draft; /* draft.pm NULL: none */
    uint16_t draft_device[MODEL_LAYERS_MAX + 2];
    uint16_t devices[FIT_DEVICES_MAX]; /* the list that layers are split over (law 2.1, -sm none) */
    size_t n_devices;
    bool mmap, repack;
    unsigned spec;   /* kinds that the engine really runs */
};

/* ---- heap.c, graph.c: the engine's allocator and what it is asked for ---- */

#define FIT_HOLES 64
struct fit_block {
    uint64_t off, size;
};
struct fit_heap {
    struct fit_block holes[FIT_HOLES]; /* in order of address; the last is the end */
    size_t n;
    uint64_t peak;
};
void fit_heap_init(struct fit_heap *h);
struct fit_block fit_heap_take(struct fit_heap *h, uint64_t bytes);
void fit_heap_give(struct fit_heap *h, struct fit_block b);

/* One device's part of a graph. */
struct fit_graph {
    const struct model *m;
    const struct fit_layer *layers;
    uint32_t n_layer;
    uint32_t from, to;  /* layers here */
    bool output;        /* the output is here */
    uint32_t ub, outputs, np, copies;
    uint64_t cells, swa_cells, v_max;
    uint64_t all_cells, all_swa_cells; /* of all streams */
    uint64_t table;     /* columns of per-layer embeddings, 0 none */
    uint32_t cpu_moe;   /* layers whose experts are on the CPU */
    unsigned traits;    /* enum fit_trait */
    bool flash, rope, no_cache; /* rope, no_cache: the traits that are asked for most */
    bool mtp;           /* nextn layers alone: no indexer, no state */
    bool all_rows;      /* hidden states of every token are asked for, so rows are picked behind the last norm */
    bool cast_k, cast_v; /* f32 caches are made f16 for flash attention */
    bool turn_k, turn_v; /* quantized caches hold rotated values */
};
/* Whether scores and sums are one step. */
static inline bool fit_fused(const struct fit_graph *g)
{
    return g->flash && !(g->traits & FIT_BIAS);
}
struct fit_play {
    const struct fit_graph *g;
    const struct model *m;
    struct fit_heap h;
    uint64_t f, fo;             /* bytes of one f32 column for the ubatch, for its outputs */
    struct fit_block pos;       /* positions */
    struct fit_block next_state; /* rows that a layer's convolution will read, fetched while the one before is at work */
    struct fit_block idx[2][3]; /* of the dense and the windowed cache: enum fit_read */
    struct fit_block choice;    /* of an indexer, kept for the layers that follow it */
    uint32_t own;               /* layers before this one are computed here */
    uint32_t last_use[2];       /* last layer here that reads them */
    bool keep;                  /* inputs stay */
    struct fit_block plane[MODEL_LAYERS_MAX]; /* of an indexer that chooses cell by cell: zeros for each cell and token, there from the start */
};
enum fit_read { FIT_READ_K, FIT_READ_V, FIT_READ_MASK, FIT_READ_POS };
/* An input: as many copies as the pipeline keeps; the last one is worked with. */
struct fit_block fit_play_input(struct fit_play *p, uint64_t bytes);
/* Layer il has read it: it is given back when no later layer does. */
void fit_play_read(struct fit_play *p, uint32_t il, enum fit_read what);
/* A layer on the residual stream x, which becomes what it hands on. */
void fit_play_layer(struct fit_play *p, uint32_t il, struct fit_block *x, bool give_x);
int fit_layers_new(const struct model *m, struct arena *a, struct fit_layer **ret) BASE_MUST_USE;
void fit_graph_init(struct fit_graph *g, const struct fit_run *x, const struct fit_context *c);
bool fit_experts_away(const struct fit_graph *g, uint32_t il);
uint64_t fit_graph_device(const struct fit_graph *g);
uint64_t fit_graph_host(const struct fit_graph *g, uint32_t own_layers);
/* Columns (f32 of a token) that the products of layer il, or the input at n_layer, need on a device for tensors that were moved there alone. */
uint64_t *fit_moved(const struct fit_placed *pm, size_t device, uint32_t il);

/* Numbers of tokens as people read them; the text lives as long as the block that asks. */
#define FIT_COUNT(n) units_show_count((n), (char[UNITS_TEXT]){""})

static inline uint64_t fit_add(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_add_overflow(a, b, &r) || r > FIT_BYTES_MAX ? FIT_BYTES_MAX : r;
}
static inline uint64_t fit_mul(uint64_t a, uint64_t b)
{
    uint64_t r;
    return __builtin_mul_overflow(a, b, &r) || r > FIT_BYTES_MAX ? FIT_BYTES_MAX : r;
}
/* Up to a multiple of a power of two. */
static inline uint64_t fit_pad(uint64_t n, uint64_t align)
{
    return n >= FIT_BYTES_MAX ? FIT_BYTES_MAX : (n + align - 1) & ~(align - 1);
}
static inline uint64_t fit_row(const struct gguf_type *t, uint64_t n)
{
    return fit_mul(n / t->block, t->bytes);
}

/* Adds bytes that are known by law. */
void fit_exact(struct fit_run *x, size_t device, enum fit_term t, uint64_t bytes);
void fit_amount_add(struct fit_run *x, size_t device, enum fit_term t, struct fit_amount amount);

/* ---- override.c ---- */

/* ECMAScript's regular expressions as far as -ot needs them, matched with regcomp. */
struct fit_regex;
/* -EINVAL: what cannot be translated is named. Memory is the heap's until fit_regex_free. */
int fit_regex_new(const char *pattern, struct fit_regex **ret, struct err *err) BASE_MUST_USE;
struct fit_regex *fit_regex_free(struct fit_regex *re);
bool fit_regex_search(const struct fit_regex *re, const char *text);
/* Routed experts as -cmoe names them. */
bool fit_is_routed_expert(const char *tensor);

/* ---- place.c ---- */

int fit_placed_new(const struct fit_prepared *p, const struct model *m, const struct fit_override *overrides, size_t n, struct arena *a, struct fit_placed **ret, struct err *err) BASE_MUST_USE;
struct fit_sums fit_sum_all(const struct model *m); /* every tensor in one buffer: a projector */
/* The device whose buffers have that name, p->host for the CPU's, -1: none. */
int fit_buffer_index(const struct fit_prepared *p, const char *buffer);
/* Slots 0..n_layer to devices; ngl UINT32_MAX: all. */
void fit_place_layers(const struct fit_run *x, uint32_t n_layer, uint32_t ngl, const uint16_t *devices, size_t n_devices, uint16_t *ret);
/* Divides what all devices of the split have of a term by their shares, or leaves it where it is; either way it is no more than a guess. */
void fit_divide(struct fit_run *x, enum fit_term t, bool move);
void fit_place_weights(struct fit_run *x, const struct fit_context *c, uint32_t cpu_moe, bool nextn);

/* ---- fit.c ---- */

/* Of what a knob can lower, which is everything but what is there by itself. */
enum fit_term fit_largest_term(const struct fit_use *u);

/* ---- cache.c ---- */

void fit_resolve(struct fit_run *x);
uint64_t fit_cells(const struct fit_context *c, const struct fit_shape *s, bool swa);
void fit_caches(struct fit_run *x, const struct fit_context *c);

/* ---- draft.c ---- */

/* What the engine will make of the asked kinds: x->spec, the target's outputs and rollback rows, r->draft_max. Before the target's context. */
void fit_speculation(struct fit_run *x);
/* The drafter's context, when there is one. After the target's. */
void fit_draft(struct fit_run *x);

/* ---- compute.c, states.c, legal.c ---- */

void fit_compute(struct fit_run *x, const struct fit_context *c);
struct fit_margin fit_margin_of(const struct model *m);
void fit_output(struct fit_run *x, const struct fit_context *c);
void fit_host_states(struct fit_run *x); /* prompt cache, checkpoints, tables */
/* One saved state of n tokens (at most the context), and one checkpoint. */
uint64_t fit_state_bytes(const struct fit_context *c, uint64_t tokens);
uint64_t fit_checkpoint_bytes(const struct fit_context *c);
void fit_projector(struct fit_run *x);

/* Whether "auto" may end in off: layers on the CPU before those of a device, in a model that is not of attention alone. */
bool fit_flash_may_fall(const struct fit_run *x, const struct fit_context *c);
/* What CUDA and HIP may need at most on one device to unpack a layer's quantized K and V; 0: nothing is quantized, or no such device. */
uint64_t fit_kv_scratch(const struct fit_run *x);

/* One rule, in force for engine versions from since on and before until (NULL: no bound). */
struct fit_rule {
    const char *name, *since, *until;
    void (*fn)(struct fit_run *x, const char *rule);
};
const struct fit_rule *fit_draft_rules(size_t *ret_n);
const struct fit_rule *fit_arch_rules(size_t *ret_n);
/* Names of all rules in order; NULL at the end. The documents list them. */
const char *fit_rule_name(size_t i);
void fit_legal(struct fit_run *x);
void fit_note(struct fit_run *x, enum fit_severity severity, const char *rule, const char *fmt, ...) BASE_PRINTF(4, 5);
