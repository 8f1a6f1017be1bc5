/* SPDX-License-Identifier: MIT
 *
 * model: what decides a model's memory, read from its header alone: every tensor with its bytes and the place that the engine gives it, every layer with what it caches, and what a drafter or a
 * projector is. No I/O of its own: bytes come through gguf's source. Rules are those of llama.cpp; "law N" in the code names the section of docs/laws.md. An architecture that is not in the table
 * has known = false and is said to be so: its weights are summed, nothing else is guessed.
 */
#pragma once

#include <base/base.h>
#include <gguf/gguf.h>

#define MODEL_LAYERS_MAX 512   /* the engine's own limit */
#define MODEL_TENSORS_MAX 65536
#define MODEL_EXPERTS_MAX 1024

/* Where a tensor is put. */
enum model_place {
    MODEL_INPUT,      /* always on the CPU */
    MODEL_OUTPUT,     /* with the output slot */
    MODEL_REPEATING,  /* with its layer */
    MODEL_FIRST,      /* repeating without a number: with layer 0 */
    MODEL_PER_BUFFER, /* rope factors: one copy for each distinct buffer type among the layers that use them */
    MODEL_NEXTN,      /* with its layer, but only when the nextn layers are loaded; the few that are loaded all the same are MODEL_REPEATING */
    MODEL_SKIPPED,    /* never loaded by this architecture */
};

struct model_tensor {
    const char *name;
    const struct gguf_type *type;
    uint64_t ne[GGUF_DIMS_MAX]; /* missing dimensions are 1 */
    uint64_t bytes;
    enum model_place place;
    int32_t layer;    /* number in "blk.N."; -1 none */
    uint16_t part;    /* of a split set, 0-based */
    bool expert;      /* one of ffn_*_exps: routed experts */
    bool used_by_matmul; /* may be repacked on the CPU; not token_embd */
    uint64_t offset;  /* in its part's data section */
};

/* What one logical layer caches for a sequence. Widths are elements for one cell. */
struct model_layer {
    bool attention; /* has a K cache (and V unless v_width is 0) of its own */
    bool swa;       /* its cells are bounded by the window */
    bool recurrent; /* has R and S states; may be together with attention (falcon-h1) */
    bool nextn;     /* belongs to the MTP context */
    uint32_t kv_heads, k_head, v_head; /* v_head 0: only K is cached (MLA) */
    uint64_t k_width, v_width;
    uint64_t indexer_k_width, indexer_v_width; /* 0: no indexer cache */
    bool index_chooses; /* attends to what its indexer chose; an indexer's keys may be stored without it */
    bool index_follows; /* attends to what the nearest layer before it chose */
    bool indexer_v_in_k_type; /* the indexer's V lies in its K tensor and is counted in indexer_k_width; indexer_v_width is 0 */
    uint64_t r_elems, s_elems, ple_elems; /* f32 elements of one row */
    uint32_t compress_ratio;  /* deepseek4: 0, 4 or 128 */
    uint64_t compressor_elems, indexer_compressor_elems; /* deepseek4: f32 elements of one of the TWO tensors of a state, for one stream and rollback row */
    uint32_t ff;              /* feed-forward width */
    uint32_t heads;
};

/* Which caches a context of this model has. */
enum model_cache {
    MODEL_CACHE_NONE, MODEL_CACHE_PLAIN, MODEL_CACHE_SWA, MODEL_CACHE_RECURRENT, MODEL_CACHE_HYBRID, MODEL_CACHE_HYBRID_SWA, MODEL_CACHE_HYBRID_INDEXER,
    MODEL_CACHE_INDEXER, MODEL_CACHE_DSA, MODEL_CACHE_DSA_SWA, MODEL_CACHE_DEEPSEEK4,
};

enum model_role { MODEL_TARGET, MODEL_PROJECTOR, MODEL_DRAFT_SIMPLE /* any target can be one */, MODEL_DRAFT_EAGLE3, MODEL_DRAFT_DFLASH, MODEL_DRAFT_DSPARK, MODEL_DRAFT_ASSISTANT };

struct model {
    const char *arch;  /* "qwen35" */
    const char *name;  /* general.name or "" */
    bool known;        /* the architecture's laws are known; false: only weights are */
    enum model_role role;
    enum model_cache cache;
    uint32_t n_block;  /* A.block_count, nextn included */
    uint32_t n_nextn;
    uint32_t n_layer;  /* logical layers that are placed: n_block, or as law 3.9 says */
    uint32_t embd, heads, ff, vocab, context_trained;
    uint32_t embd_out;   /* width of the embeddings that come out; embd unless the file says otherwise */
    uint32_t experts, experts_used, expert_ff;
    uint32_t window;      /* sliding window, 0 none */
    bool window_chunked;
    uint32_t full_attention_interval; /* 0 none */
    uint32_t hyper;       /* hyper-connections: the residual stream is that many times embd wide; 1 without */
    uint32_t index_heads, index_key, index_top, index_pool; /* indexers: heads and their width, cells that they choose, cells that they score as one (1: each) */
    bool causal;
    uint32_t rope_dims;   /* elements of a head that are turned by position */
    bool m_rope;          /* 12 more bytes a saved cell */
    bool ple;             /* per-layer embeddings with a state */
    bool tied_output;     /* no output.weight: token_embd is used again */
    bool tied_copy_always; /* gemma4, gemma3n: counted twice even on the CPU */
    bool can_rollback;    /* recurrent state has rollback rows (law 3.7) */
    bool needs_repeatable_batch; /* np must divide the ubatch (kimi-linear and others) */
    bool flash_attention_off;    /* the architecture cannot (grok) */
    bool logits;          /* has an output head */
    bool mtp;             /* draft-mtp works: there are nextn layers and the architecture can run them */
    bool nextn_skipped;   /* the architecture never loads its nextn tensors; all of them are MODEL_SKIPPED */
    bool nextn_cached;    /* the trunk's own context caches the nextn layers too (bailingmoe3) */
    bool nextn_rope;      /* MODEL_PER_BUFFER tensors are there for the nextn layers too when those are not loaded (step35) */
    bool rope_dense_only; /* MODEL_PER_BUFFER tensors are used by the layers without a window only (gemma4) */
    bool always_streams;  /* one stream for each sequence even when KV is unified (deepseek4) */
    bool split_tensor_refused; /* -sm tensor is refused */
    uint32_t expert_shared_ff; /* shared experts' width, 0 none */
    uint32_t block_size;  /* drafter: A.block_size, 0 none */
    uint32_t taps;        /* drafter: target layers that it taps */
    bool own_embeddings;  /* has token_embd; a drafter without takes the target's */
    bool confidence_head; /* dspark */
    bool vision, audio;  /* projector: what it turns into tokens */
    bool sample_from_anchor; /* dspark: n_max may be block_size, else block_size - 1 */
    bool chat_template;
    const char *tokenizer; /* "gpt2", or "" */
    struct model_layer *layers;
    struct model_tensor *tensors; /* in file order, part by part */
    size_t n_tensors;
    uint64_t weight_bytes; /* sum over all tensors, as in the files */
    uint64_t params;
    uint16_t n_parts;
    struct arena *arena;   /* owns all of the above */
};

/* Reads a model from the opened parts of its set, in order; n_parts 1 is a file of its own. The readers and their sources are needed during the call only. Whether data is complete does not matter: a header alone will do.
 * -EBADMSG for what the engine refuses too: a required key that is missing, of another type or out of range, an array of another length than the layers, a required tensor missing, the same tensor twice, parts that are not of one
 * set or not in order; -ENOTSUP: a tensor of unknown type, or an architecture that the engine has in name only (gptj); -E2BIG: over a limit above; -ENOMEM. An unknown architecture is no error. */
int model_load(const struct gguf *const *parts, size_t n_parts, struct model **ret, struct err *err) BASE_MUST_USE;
struct model *model_free(struct model *m); /* takes NULL; returns NULL */

/* Whether the architecture is in the table. */
bool model_arch_known(struct str arch);
/* The tensor of that name, or NULL. */
const struct model_tensor *model_find_tensor(const struct model *m, const char *name);
/* What the engine allocates a second time on the output device when tied_output is set; NULL when it is not. */
const struct model_tensor *model_tied_tensor(const struct model *m);
/* Appends the layers by kind: "16 full attention, 48 recurrent, 1 nextn". */
void model_kinds(const struct model *m, struct buf *out);
