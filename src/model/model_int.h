/* SPDX-License-Identifier: MIT
 *
 * Inside of model: the row that each architecture has in the table, and the state of one load. A load runs in a fixed order, each step standing on those before: arch (which row), keys (metadata as the
 * engine reads it), layers (what each layer caches), tensors (where each weight goes).
 */
#pragma once

#include "model.h"

/* Elements of one cell or one state row of one layer. Real ones stay below 2^22; the limit keeps products with bytes and layers far from 64 bits. */
#define MODEL_WIDTH_MAX (1ull << 32)
#define MODEL_MEMORY_MAX (64u << 20) /* of one model: tensors at their limit, with names */

/* Law 3.3. */
enum arch_cache {
    CACHE_KV,    /* plain, or dense + window when the architecture's window is on */
    CACHE_NO,
    CACHE_STATE, /* recurrent only */
    CACHE_HYBRID, /* also with a window: lfm2 */
    CACHE_HYBRID_INDEX,
    CACHE_INDEX,
    CACHE_MLA_INDEX, /* with a window: dots3note */
    CACHE_V4,
};

/* Law 3.4: whether the window is on, and its size. */
enum arch_swa {
    SWA_NEVER,
    SWA_IF_SET,      /* the key, when it is over 0 */
    SWA_REQUIRED,    /* the key must be there */
    SWA_DEFAULT,     /* the key, else arch.window */
    SWA_DEFAULT_64,  /* the same, but only in models of 64 blocks (exaone4) */
    SWA_FIXED,       /* arch.window whatever the key says, unless it says 0 (llama4) */
    SWA_FIXED_IF_SET /* arch.window when the key is there and not 0 (smallthinker) */
};
/* Law 3.4: which layers have it when the file has no pattern; other values are the period. */
#define PATTERN_REQUIRED 0   /* the file must say */
#define PATTERN_ALL 254      /* every layer */
#define PATTERN_ATTENTION 255 /* every layer that is not recurrent */

/* Law 3.7: which layers are recurrent. */
enum arch_recurrent {
    REC_NEVER,
    REC_ALL,
    REC_BOTH,        /* every layer is both (falcon-h1) */
    REC_NO_KV_HEADS, /* those with head_count_kv 0 */
    REC_THREE_KINDS, /* the same, unless they have a feed-forward part (nemotron_h) */
    REC_INTERVAL,    /* as an array says, else all but every arch.interval-th */
};

/* Law 3.6. */
enum arch_index {
    INDEX_NO,
    INDEX_ALL,       /* every layer of the trunk */
    INDEX_TYPES,     /* those that indexer.types names; without it all, or a built-in table (glm-dsa) */
    INDEX_TYPES_FULL, /* the same, without windowed layers (dots3note) */
    INDEX_MOE,       /* those behind the leading dense blocks, K and V (minimax-m3) */
    INDEX_ATTENTION_KV, /* layers that are not recurrent; twice as wide when blocks are compressed (qwen4exp) */
    INDEX_ATTENTION_3, /* layers that are not recurrent, three keys wide (glm5-next) */
};

enum arch_flag {
    F_MLA = 1 << 0,           /* law 3.5: caches K only when both _mla keys are set */
    F_V_LORA = 1 << 1,        /* law 3.2: V's head is kv_lora_rank */
    F_CHUNKED = 1 << 2,       /* the window is one of chunks */
    F_DENSE_FIRST = 1 << 3,   /* law 3.4: the first of each period is dense, not the last */
    F_OUTPUT = 1 << 4,        /* law 2.3: output.weight is required */
    F_TIED_ALWAYS = 1 << 5,   /* law 2.3: a tied copy is made even on the CPU */
    F_NO_LOGITS = 1 << 6,     /* no output head */
    F_NORM_OUTPUT = 1 << 7,   /* law 2.3: token_embd_norm is with the output */
    F_ROPE_DENSE = 1 << 8,    /* law 2.3: rope factors of the layers without a window only */
    F_MTP = 1 << 9,           /* law 5: can run its nextn layers */
    F_NEXTN_SKIPPED = 1 << 10, /* law 2.3: never loads them */
    F_ROLLBACK = 1 << 11,     /* law 3.7 */
    F_REPEAT = 1 << 12,       /* law 10.3: np must divide the ubatch */
    F_NO_FLASH = 1 << 13,     /* law 3.2 */
    F_NO_SPLIT = 1 << 14,     /* law 2.6 */
    F_M_ROPE = 1 << 15,       /* law 6.1 */
    F_M_ROPE_IF = 1 << 16,    /* the same, when rope.dimension_sections says so */
    F_NOT_CAUSAL = 1 << 17,
    F_SHARED_KEY = 1 << 18,   /* law 3.8: shared_kv_layers */
    F_SHARED_20 = 1 << 19,    /* law 3.8: 20 owners */
    F_NO_OWN_KV = 1 << 20,    /* law 3.8: reads the target's */
    F_LOOPS = 1 << 21,        /* law 3.9: num_loops */
    F_ROUTER = 1 << 22,       /* law 3.9: one layer more */
    F_PLE = 1 << 23,          /* law 3.7: ple.layers have a state */
    F_SQUARE = 1 << 24,       /* law 3.7: the state is a square for each head (minimax-01) */
    F_TAPS = 1 << 25,         /* a drafter that taps its target's layers */
    F_NO_LOADER = 1 << 26,    /* law 10.1: a name that the engine knows and cannot load */
    F_TIED_UNUSED = 1 << 27,  /* law 2.3: an output matrix is made, and nothing uses it */
    F_NEXTN_CACHED = 1 << 28, /* law 3.10: the trunk's cache has its nextn layers too */
    F_TIED_SAME = 1 << 30,    /* law 2.3: the output is token_embd itself, on the CPU, and no copy */
    F_NEXTN_ROPE = 1 << 29,   /* law 2.3: rope factors are there for nextn layers that are not loaded */
};

struct model_arch_row {
    const char *name;
    uint32_t flags;
    uint32_t window;
    uint8_t cache, swa, pattern, recurrent, interval, index, role;
};
/* NULL: unknown. */
const struct model_arch_row *model_arch_row(struct str name);
/* The table's names in order, NULL at its end. */
const char *model_arch(size_t i);

/* One load. Arrays have n_block values. */
struct model_load {
    const struct gguf *g; /* the first part, which has the metadata */
    const struct model_arch_row *arch;
    struct model *m;
    struct err *err;
    uint32_t trunk; /* blocks that are not nextn */
    uint32_t heads[MODEL_LAYERS_MAX], kv_heads[MODEL_LAYERS_MAX], ff[MODEL_LAYERS_MAX];
    bool swa[MODEL_LAYERS_MAX], recurrent[MODEL_LAYERS_MAX];
    uint32_t k_head, v_head, k_head_swa, v_head_swa;
    bool mla;
};

/* ---- keys: "<architecture>.<rest>", as strict as the engine ------------------------------------------------------ */

/* NULL: not there. It asks for no memory, so that a missing key is never the sign of an empty heap. */
const struct gguf_kv *model_key(const struct model_load *l, const char *rest);
/* A u32; *ret stays when the key is missing. -EBADMSG: another type. */
int model_key_u32(const struct model_load *l, const char *rest, uint32_t *ret) BASE_MUST_USE;
/* The same for a key that must be there. */
int model_key_need(const struct model_load *l, const char *rest, uint32_t *ret) BASE_MUST_USE;
int model_key_bool(const struct model_load *l, const char *rest, bool *ret) BASE_MUST_USE;
/* One value for each block: a scalar fills, an array has n_block values, or as many as the trunk when `trunk` allows it. *ret_found: 0 missing (ret stays), 1 scalar, 2 array. */
int model_key_blocks(const struct model_load *l, const char *rest, bool trunk, uint32_t *ret, int *ret_found) BASE_MUST_USE;
/* The largest of a scalar or an array of any length; *ret stays when the key is missing. */
int model_key_max(const struct model_load *l, const char *rest, uint32_t *ret) BASE_MUST_USE;
/* Elements of an array; 0 for anything else. */
uint64_t model_key_count(const struct model_load *l, const char *rest);

/* ---- the steps ------------------------------------------------------------------------------------------------------- */

int model_read_params(struct model_load *l) BASE_MUST_USE;   /* params.c: dimensions of the whole model */
int model_read_layers(struct model_load *l) BASE_MUST_USE;   /* layers.c: what each layer caches */
int model_read_pattern(struct model_load *l) BASE_MUST_USE;  /* window.c: l->swa and the window */
int model_read_index(struct model_load *l) BASE_MUST_USE;    /* indexer.c: indexer widths of the layers */
int model_read_v4(struct model_load *l) BASE_MUST_USE;       /* indexer.c: deepseek4's compressed caches */
int model_read_tensors(struct model *m, const struct gguf *const *parts, size_t n_parts, struct err *err) BASE_MUST_USE; /* tensors.c: names and bytes */
int model_place_tensors(struct model_load *l) BASE_MUST_USE; /* tensors.c: places */
