/* SPDX-License-Identifier: MIT
 *
 * fit: a pure function. Models, a shape, devices and what was measured before go in; out come the bytes on each device term by term, whether it fits, what binds, what it
 * would cost to change, and how fast it may be. No I/O, no clock, no global state. Laws are those of llama.cpp 0.7.0 ("law N" in the code names the section in docs/laws.md).
 *
 * A figure carries how it is known: exact (by law), measured (from the ledger), or estimated (with an interval).
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <model/model.h>

#define FIT_DEVICES_MAX 16
#define FIT_SERVICES_MAX 32
#define FIT_OVERRIDES_MAX 64
#define FIT_DRAFT_OVERRIDES_MAX 16
#define FIT_NOTES_MAX 64
#define FIT_FLOOR_DEFAULT (1ull << 30)
#define FIT_BYTES_MAX (1ull << 62) /* sums saturate here, which fits nowhere */

/* ---- what goes in ------------------------------------------------------------------------------------------------ */

enum fit_backend { FIT_CPU, FIT_RPC, FIT_CUDA, FIT_HIP, FIT_VULKAN, FIT_OTHER };
enum fit_backend fit_backend_of(const char *device_name); /* "CUDA0" -> FIT_CUDA; unknown prefixes -> FIT_OTHER */

struct fit_device {
    const char *name;       /* as -dev names it */
    const char *buffer;     /* as -ot names its buffer type; NULL: same as name */
    enum fit_backend backend;
    uint64_t total_bytes, free_bytes; /* free before this plan; equal to total when planning off the box */
    uint64_t floor_bytes;
    uint64_t bandwidth_bytes_s, link_bytes_s; /* 0 unknown */
    bool shared;            /* its pool is the host's RAM (iGPU) */
};
struct fit_host {
    uint64_t total_bytes, free_bytes;
    uint64_t floor_bytes;
    uint64_t bandwidth_bytes_s;
    bool repack; /* the CPU's features take q4_0, q4_K, ... into CPU_REPACK buffers */
};
struct fit_override { const char *pattern, *buffer; }; /* -ot: regular expression searched in the tensor's name */

enum fit_spec { FIT_SPEC_NONE = 0, FIT_SPEC_SIMPLE = 1, FIT_SPEC_EAGLE3 = 2, FIT_SPEC_MTP = 4, FIT_SPEC_DFLASH = 8, FIT_SPEC_DSPARK = 16,
                FIT_SPEC_NGRAM_SIMPLE = 32, FIT_SPEC_NGRAM_MAP = 64, FIT_SPEC_NGRAM_MOD = 128, FIT_SPEC_NGRAM_CACHE = 256 }; /* bits */
#define FIT_SPEC_CONTEXT (FIT_SPEC_SIMPLE | FIT_SPEC_EAGLE3 | FIT_SPEC_MTP | FIT_SPEC_DFLASH | FIT_SPEC_DSPARK)

enum fit_split_mode { FIT_SPLIT_LAYER, FIT_SPLIT_NONE, FIT_SPLIT_ROW, FIT_SPLIT_TENSOR }; /* -sm */

/* The shape as the engine's flags say it. Every field is meant; fit_shape_default gives berth's defaults. */
struct fit_shape {
    uint32_t context;      /* -c, total; 0: the model's trained context */
    uint32_t slots;        /* -np */
    bool unified;          /* -kvu */
    uint32_t batch, ubatch;
    uint32_t gpu_layers;   /* -ngl; UINT32_MAX: all */
    double split[FIT_DEVICES_MAX]; /* -ts */
    size_t n_split;        /* 0: by free bytes */
    const struct gguf_type *k_type, *v_type, *draft_k_type, *draft_v_type;
    enum fleet_tristate flash;
    bool kv_on_cpu;        /* -nkvo */
    bool swa_full;
    bool no_repack, no_host, no_mmap;
    unsigned spec;         /* enum fit_spec bits */
    uint32_t draft_max;    /* 0: the engine's default (3) */
    uint32_t draft_ubatch; /* 0: the target's */
    uint32_t draft_gpu_layers; /* UINT32_MAX: all */
    uint32_t cpu_moe;      /* -ncmoe N; UINT32_MAX: -cmoe */
    struct fit_override overrides[FIT_OVERRIDES_MAX];
    size_t n_overrides;
    uint64_t prompt_cache_bytes; /* -cram; UINT64_MAX: no limit */
    uint32_t checkpoints;  /* -ctxcp */
    bool embedding;        /* --embedding or reranking: n_outputs_max is n_batch */
    int projector_device;  /* index, -1: first device, -2: CPU */
    enum fit_split_mode split_mode;
    uint32_t main_gpu;     /* -mg: with FIT_SPLIT_NONE the only device */
    uint64_t moe_cache_bytes; /* --moe-cache-mib, over all devices; 0 off */
    bool adapters;         /* --lora or --control-vector: their bytes are not known here */
    /* the drafter's own */
    double draft_p_min;
    uint32_t draft_cpu_moe; /* -ncmoed N; UINT32_MAX: -cmoed */
    struct fit_override draft_overrides[FIT_DRAFT_OVERRIDES_MAX]; /* -otd */
    size_t n_draft_overrides;
    uint16_t draft_devices[FIT_DEVICES_MAX]; /* -devd, indexes; none: the target's */
    size_t n_draft_devices;
    bool draft_on_cpu;     /* -devd none */
};
/* berth's defaults: one slot of the trained context, everything on the devices, f16, split by free bytes. */
void fit_shape_default(struct fit_shape *s);
/* Takes a declared shape over, with what berth says for what it leaves out (as engine_argv does); flags in args that decide memory (-ctxcp, -nkvo, --swa-full, -ot, -ncmoe, ...) are read too. Strings live in a
 * or in s. -EINVAL names the flag that cannot be read or followed. */
int fit_shape_of(const struct fleet_service *s, struct arena *a, struct fit_shape *ret, struct err *err) BASE_MUST_USE;

/* Who runs the shape: llama-server, or a tool that reserves logits for a whole batch (law 4.1). */
enum fit_program { FIT_SERVER, FIT_TOOL };

/* Coefficients of a compute buffer, measured for one build, model and placement: a + b*ub + c*ub*n_kv + d*outputs, in force inside the measured brackets. */
struct fit_coef {
    double a, b, c, d;
    uint32_t ub_min, ub_max, kv_min, kv_max;
    double worst_error; /* largest relative error at the held-out point */
};
/* What was measured before; n is the number of devices plus one (the host is last). A NULL pointer: nothing. */
struct fit_calibration {
    const struct fit_coef *compute, *draft_compute;
    const int64_t *extra_bytes; /* per device: driver, context, pools: reading minus the sum of terms; applied as a term of its own */
    const char *source;         /* "measured 2026-01-31 on b11669" */
    size_t n;
};

struct fit_input {
    const struct model *target, *drafter, *projector; /* the latter two NULL: none */
    const struct fit_shape *shape;
    const struct fit_device *devices;
    size_t n_devices;
    const struct fit_host *host;
    const struct fit_calibration *calibration; /* NULL: none */
    enum fit_program program;
    const char *engine_version; /* "0.7.0": advisories are keyed by it; NULL: unproven */
};

/* ---- what comes out ------------------------------------------------------------------------------------------------- */

enum fit_term {
    FIT_WEIGHTS, FIT_KV, FIT_STATE /* recurrent */, FIT_INDEXER, FIT_COMPUTE, FIT_OUTPUT, FIT_DRAFT_WEIGHTS, FIT_DRAFT_KV, FIT_DRAFT_STATE, FIT_DRAFT_COMPUTE, FIT_DRAFT_OUTPUT,
    FIT_PROJECTOR, FIT_PROJECTOR_COMPUTE, FIT_PROMPT_CACHE, FIT_CHECKPOINTS, FIT_TABLES /* ngram tables */, FIT_EXTRA /* driver, context, pools */, FIT_TERMS
};
const char *fit_term_text(enum fit_term t);
enum fit_known { FIT_EXACT, FIT_MEASURED, FIT_ESTIMATE };

/* All are figures after load. Exact ones have low = bytes = high but for three: FIT_OUTPUT and FIT_DRAFT_OUTPUT grow at run time to high, FIT_PROMPT_CACHE and FIT_CHECKPOINTS start at low = 0 and are counted at their ceiling. */
struct fit_amount {
    uint64_t bytes, low, high;
    enum fit_known known;
};
struct fit_use {
    struct fit_amount terms[FIT_TERMS];
    uint64_t used, used_high;  /* sums */
    int64_t left;              /* free - used */
    uint64_t mapped_bytes;     /* host: weights in the page cache through mmap, not an allocation, not in used */
    uint64_t repack_bytes;     /* host: part of FIT_WEIGHTS and FIT_DRAFT_WEIGHTS that is repacked; with mmap it is all of them, the rest is mapped_bytes */
    uint32_t n_layers;         /* slots placed here, the output included */
};

enum fit_severity { FIT_NOTE, FIT_WARNING, FIT_REFUSED };
struct fit_note {
    enum fit_severity severity;
    const char *rule;   /* "kv-type", "drafter-window": stable names, listed in docs/fit.md */
    const char *text;   /* what, why, what to do */
};

struct fit_result {
    /* resolved as the engine resolves them (law 3.1) */
    uint32_t n_ctx, n_ctx_seq, n_stream, n_batch, n_ubatch, n_outputs;
    uint32_t n_rs_rows;     /* rows of a recurrent state, over all slots */
    uint32_t draft_max;     /* after the engine's clamps; 0: nothing is drafted by a context */
    uint16_t layer_device[MODEL_LAYERS_MAX + 2]; /* slot -> device index; n_devices is the CPU */
    uint32_t n_slots_placed;
    bool pipeline;          /* four copies of split inputs (law 4.2) */
    struct fit_use use[FIT_DEVICES_MAX + 1]; /* devices in order, then the host */
    bool fits;              /* every device and the host stay above their floors and nothing is refused */
    int binds;              /* index of the device (or host) with least left over its floor */
    enum fit_term binds_term; /* its largest term that a knob can lower */
    uint64_t gap_bytes;     /* largest difference in left between devices */
    struct fit_note notes[FIT_NOTES_MAX];
    size_t n_notes;
};
/* Predicts one service. Notes' texts live in arena a. An error is a fault of the input that no note can say (-EINVAL: no target, too many devices) or memory; a shape that the engine would
 * refuse is a result with a FIT_REFUSED note that carries the engine's own reason. */
int fit_predict(const struct fit_input *in, struct arena *a, struct fit_result *ret, struct err *err) BASE_MUST_USE;

/* Bytes of one saved sequence state of n tokens (law 6.1): target and, when there is one, drafter. */
int fit_saved_state(const struct fit_input *in, uint64_t tokens, uint64_t *ret_target, uint64_t *ret_draft, struct err *err) BASE_MUST_USE;
/* Largest context (a multiple of 256 per slot) that still fits with everything else as it is; 0 none. */
int fit_largest_context(const struct fit_input *in, struct arena *a, uint32_t *ret, struct err *err) BASE_MUST_USE;

/* ---- the same, many times ------------------------------------------------------------------------------------------- */

/* What does not depend on the numbers of a shape, done once: tensors summed by layer, overrides matched, the drafter understood. fit_predict is fit_prepare and fit_predict_prepared. */
struct fit_prepared;
/* in and all that it points to must outlive it, but for in->shape, whose overrides (both lists) are taken over. Its memory is a's. Codes as fit_predict. */
int fit_prepare(const struct fit_input *in, struct arena *a, struct fit_prepared **ret, struct err *err) BASE_MUST_USE;
/* As fit_predict for the prepared input with another shape, whose overrides are not read: the prepared ones hold. Takes microseconds. a NULL: nothing is allocated and notes have "" as text. Several threads may use
 * one prepared object. */
int fit_predict_prepared(const struct fit_prepared *p, const struct fit_shape *s, struct arena *a, struct fit_result *ret, struct err *err) BASE_MUST_USE;
int fit_largest_context_prepared(const struct fit_prepared *p, const struct fit_shape *s, uint32_t *ret, struct err *err) BASE_MUST_USE;

/* ---- speed ------------------------------------------------------------------------------------------------------------ */

struct fit_speed {
    double decode_tok_s, prefill_tok_s; /* 0: a bandwidth is not known */
    uint64_t bytes_per_token;           /* read for one token at full context */
    const char *assumes;
};
/* Roofline: bytes read per token from each place over its bandwidth, experts by the used share; an estimate. depth: tokens in the context. */
int fit_speed(const struct fit_input *in, const struct fit_result *r, uint64_t depth, struct arena *a, struct fit_speed *ret, struct err *err) BASE_MUST_USE;

/* ---- solver ------------------------------------------------------------------------------------------------------------ */

enum fit_want { FIT_WANT_CONTEXT, FIT_WANT_SLOTS, FIT_WANT_SPEED };
/* What may be varied; everything else stays as in the input. Empty sets mean: as declared. */
struct fit_space {
    bool split, gpu_layers, drafter_off, cpu_moe, projector_device;
    uint32_t contexts[32]; size_t n_contexts;
    uint32_t slots[16]; size_t n_slots;
    uint32_t ubatches[8]; size_t n_ubatches;
    const struct gguf_type *kv[8]; size_t n_kv; /* same type for K and V */
    enum fit_want want;
    uint64_t slack_bytes; /* largest allowed gap between devices, 0: any */
};
struct fit_choice {
    struct fit_shape shape;
    struct fit_result result;
    struct fit_speed speed;
};
/* The Pareto front over (context, slots, decode speed, smallest left over floor), best first by `want`; several services share the devices: others' use is given as less free memory, or all are solved
 * together (inputs in one array; choices then hold one entry for each service, in order). choices: room for max fronts of n_inputs entries each. *ret_n = number of front points; 0: nothing fits. */
int fit_solve(const struct fit_input *inputs, size_t n_inputs, const struct fit_space *space, struct arena *a, struct fit_choice **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
