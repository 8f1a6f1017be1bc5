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

#define FIT_DEVICES_MAX 16 /* as many as llama.cpp uses (llama_max_devices) */
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
    bool context_declared; /* by somebody: what the engine would not give a slot of it is refused, not only told */
    uint32_t slot_cap;     /* --kv-unified-per-slot: the most that one slot may take of a shared pool; 0 all of it */
    bool adapters;         /* --lora or --control-vector: their bytes are not known here */
    bool sampling;         /* --backend-sampling: the devices sample */
    /* the drafter's own */
    double draft_p_min;
    bool no_draft_sampling; /* --no-spec-draft-backend-sampling */
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
    const int64_t *extra_bytes; /* per device: driver, context, pools: reading minus the sum of terms; a term of its own, or when negative taken off compute */
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
    double draft_accept;        /* share of drafted tokens that the target takes, as measured; 0: FIT_ACCEPT_DEFAULT. For speed alone */
};

/* ---- what comes out ------------------------------------------------------------------------------------------------- */

enum fit_term {
    FIT_WEIGHTS, FIT_KV, FIT_STATE /* recurrent */, FIT_INDEXER, FIT_COMPUTE, FIT_OUTPUT, FIT_DRAFT_WEIGHTS, FIT_DRAFT_KV, FIT_DRAFT_STATE, FIT_DRAFT_COMPUTE, FIT_DRAFT_OUTPUT,
    FIT_PROJECTOR, FIT_PROJECTOR_COMPUTE, FIT_PROMPT_CACHE, FIT_CHECKPOINTS, FIT_TABLES /* ngram tables */, FIT_EXTRA /* driver, context, pools */, FIT_TERMS
};
const char *fit_term_text(enum fit_term t);
enum fit_known { FIT_EXACT, FIT_MEASURED, FIT_ESTIMATE, FIT_UNPREDICTED /* no law: what the shares come to, and anything up to the whole is possible */ };

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
/* A refusal that stays whatever a solver varies: its search would end with nothing. */
bool fit_note_stays(const struct fit_note *n);

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

/* ---- the same, many times ------------------------------------------------------------------------------------------- */

/* What does not depend on the numbers of a shape, done once: tensors summed by layer, overrides matched, the drafter understood. fit_predict is fit_prepare and fit_predict_prepared. */
struct fit_prepared;
/* in and all that it points to must outlive it, but for in->shape, whose overrides (both lists) are taken over. Its memory is a's. Codes as fit_predict. */
int fit_prepare(const struct fit_input *in, struct arena *a, struct fit_prepared **ret, struct err *err) BASE_MUST_USE;
/* As fit_predict for the prepared input with another shape, whose overrides are not read: the prepared ones hold. Takes microseconds. a NULL: nothing is allocated and notes have "" as text. Several threads may use
 * one prepared object. */
int fit_predict_prepared(const struct fit_prepared *p, const struct fit_shape *s, struct arena *a, struct fit_result *ret, struct err *err) BASE_MUST_USE;

/* ---- speed ------------------------------------------------------------------------------------------------------------ */

#define FIT_ACCEPT_DEFAULT 0.6 /* with it the order of drafters and depths comes out as measured: none, MTP 7, MTP 3, a block drafter of 7 */

struct fit_speed {
    double decode_tok_s, prefill_tok_s;  /* 0: a bandwidth is not known */
    uint64_t bytes_per_token;            /* read for one token at this depth, from all places */
    uint64_t read_bytes[FIT_DEVICES_MAX + 1]; /* of one pass, drafting included: from each device's memory; the host is last */
    uint64_t link_bytes[FIT_DEVICES_MAX];     /* of one pass: over each device's link */
    double pass_s;                       /* one pass of the target, drafting included; 0: a bandwidth is not known */
    double pass_tokens;                  /* tokens that a pass gives; 1 without a drafter */
    const char *assumes;
};
/* Roofline: bytes read per token from each place over its bandwidth, experts by the used share, devices one after the other; an estimate from above, because work and waiting are not counted. depth: tokens in the context.
 * Experts on the host are computed there; with a MoE cache what misses it comes over the link. a NULL: assumes is "". */
int fit_speed(const struct fit_input *in, const struct fit_result *r, uint64_t depth, struct arena *a, struct fit_speed *ret, struct err *err) BASE_MUST_USE;

/* ---- known-bad shapes -------------------------------------------------------------------------------------------------- */

/* A shape that failed for a reason that no arithmetic shows. It meets every shape that is equal in the named parts. */
enum fit_part { FIT_PART_CONTEXT = 1, FIT_PART_SLOTS = 2, FIT_PART_LAYERS = 4 /* split, gpu-layers, cpu_moe: which layers lie where */, FIT_PART_UBATCH = 8, FIT_PART_KV = 16, FIT_PART_SPEC = 32, FIT_PART_BATCH = 64 };
struct fit_bad {
    const struct fit_shape *shape;
    unsigned parts;     /* enum fit_part; 0: all of them */
    const char *reason; /* "died on its eighth request with GPU page faults, 2026-01-31" */
};

/* ---- solver ------------------------------------------------------------------------------------------------------------ */

#define FIT_FRONT_MAX 128      /* points that are given back; each takes about 20 KiB of the arena */
#define FIT_SOLVE_DEPTH 8192   /* tokens in the context at which speeds are compared */
#define FIT_SOLVE_COMBINATIONS 200000 /* of several services; a larger space is refused, because nobody waits for it */

enum fit_want { FIT_WANT_CONTEXT, FIT_WANT_SLOTS, FIT_WANT_SPEED };
/* What one service keeps to instead of its devices' floors and the general slack. */
struct fit_own {
    bool floor_set, slack_set;
    uint64_t floor_bytes, slack_bytes;
    const char *reason; /* required; every choice repeats it in a note, "own-floor" or "own-slack" */
};
/* What may be varied; everything else stays as in the input. Empty sets mean: as declared. KV types and ubatches are in order of preference: a later one is proposed only where no earlier one fits (with the same context, slots
 * and drafter). The same holds for what is moved to the CPU: the projector, routed experts layer by layer, then whole layers; only as much as it takes. */
struct fit_space {
    bool split, gpu_layers, drafter_off, cpu_moe, projector_device;
    uint32_t contexts[32]; size_t n_contexts; /* totals, as -c; those that give a slot more than the model was trained for are left out, the declared one excepted */
    bool context_largest;  /* tried too: the largest context that fits, a multiple of 256 a slot up to the trained one, with nothing moved to the CPU */
    uint32_t slots[16]; size_t n_slots;
    uint32_t ubatches[8]; size_t n_ubatches;
    const struct gguf_type *kv[8]; size_t n_kv; /* same type for K and V */
    enum fit_want want;
    uint64_t slack_bytes; /* largest allowed gap between devices, 0: any */
    struct fit_own own;
    const struct fit_bad *known_bad; size_t n_known_bad; /* never proposed */
    uint64_t depth;       /* tokens in the context at which speeds are compared; 0: FIT_SOLVE_DEPTH */
};
struct fit_choice {
    struct fit_shape shape;
    struct fit_result result;
    struct fit_speed speed; /* at the space's depth */
};
/* The Pareto front over (a slot's context, slots, decode speed, smallest left over a device's floor, drafter kept), best first by `want`; several services share the devices: others' use is given as less free memory, or all are
 * solved together (inputs in one array, all with the same devices; choices then hold one entry for each service, in order, whose `left` is what all of them leave). Of placements two are looked at for each combination: what leaves
 * most, and the fastest when devices differ in bandwidth. *ret: choices of at most FIT_FRONT_MAX points, n_inputs entries each. *ret_n = number of front points; 0: nothing fits. Deterministic.
 * For up to two devices and two services the answer is that of trying everything; beyond, splits are found by exchange and may be short of the best.
 * spaces: one for each input; want, slack and depth are the first one's, unless a service has its own slack.
 * -EINVAL: a fault of the input, a floor or slack of its own without a reason; -E2BIG: over FIT_SOLVE_COMBINATIONS; -ENOMEM. */
int fit_solve(const struct fit_input *inputs, size_t n_inputs, const struct fit_space *spaces, struct arena *a, struct fit_choice **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;

/* ---- what a step buys ---------------------------------------------------------------------------------------------------- */

#define FIT_KNOBS_MAX 12

struct fit_knob {
    const char *knob;     /* "context", "ubatch", "slots", "kv", "drafter", "layer", "cpu-moe", "projector", "prompt-cache", "checkpoints" */
    const char *from, *to;
    int64_t freed_bytes;  /* on the device that binds; negative: it takes more */
    bool fits;            /* then */
    struct fit_shape shape;
};
/* One step of each knob that can be turned, as it would change the device that binds in r (which is the prediction of in): context an eighth less, ubatch half, a slot less (the others keep their context), KV q8_0, no drafter, a layer moved to where most is left, the
 * routed experts of one more layer on the CPU, the projector elsewhere; when the host binds, half the prompt cache and half the checkpoints. Steps that free nothing there are left out. Best first: what then fits, then what frees most. *ret: at most FIT_KNOBS_MAX. */
int fit_knobs(const struct fit_input *in, const struct fit_result *r, struct arena *a, struct fit_knob **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;

enum fit_axis { FIT_AXIS_SPLIT, FIT_AXIS_CONTEXT, FIT_AXIS_SLOTS, FIT_AXIS_UBATCH, FIT_AXIS_KV };
int fit_axis_of(struct str name, enum fit_axis *ret, struct err *err) BASE_MUST_USE; /* "split", "context", "slots", "ubatch", "kv" */
struct fit_row {
    const char *value;    /* "36,29", "262144", "q8_0" */
    bool declared;        /* this is the input's own shape */
    uint32_t slot_context;
    int64_t left[FIT_DEVICES_MAX + 1]; /* free after load; the host is last */
    uint64_t gap_bytes;
    bool fits;
    const char *why;      /* known-bad, or refused; NULL */
    struct fit_note warns; /* the first warning that the declared shape has not; rule NULL: none */
    double decode_tok_s;  /* at FIT_SOLVE_DEPTH; 0 unknown */
    struct fit_shape shape;
};
/* The shapes around the declared one along one axis, in order of the value, the declared one among them. Splits keep the declared one's sum when it is fine enough to say every layer; else shares count layers (the output is one). */
int fit_table(const struct fit_input *in, enum fit_axis axis, const struct fit_bad *bad, size_t n_bad, struct arena *a, struct fit_row **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;

/* ---- conversations on replicas ---------------------------------------------------------------------------------------------- */

/* Families are conversations that share a prefix; each is kept by the replica that served it. */
struct fit_families {
    uint32_t replicas;
    uint64_t replica_tokens; /* KV tokens of one replica */
    uint32_t families;
    uint64_t family_tokens;  /* cached, at their longest */
    uint32_t running;        /* sequences that one replica runs at once */
    uint64_t running_tokens; /* of each: a running sequence and its cached prefix draw on the same pool */
};
struct fit_working_set {
    uint32_t families_per_replica; /* of the fullest one */
    uint64_t need_tokens, have_tokens; /* on it */
    bool wall;                     /* no placement of conversations can keep them all: it is capacity that lacks */
    uint64_t short_tokens;         /* that lack on it; 0 without a wall */
    uint32_t kept_families;        /* over all replicas, beside what runs */
    uint32_t replicas_needed;      /* that would keep all; 0: not even one family fits beside what runs */
    const char *text;
};
/* -EINVAL for no replica or no tokens. */
int fit_working_set(const struct fit_families *f, struct arena *a, struct fit_working_set *ret, struct err *err) BASE_MUST_USE;

/* ---- vLLM ---------------------------------------------------------------------------------------------------------------------- */

/* vLLM takes a share of the card at start, subtracts what it needs and makes the rest a pool of KV blocks. What it needs belongs to its build, model and flags, so it is declared or measured and never derived: the same law gives a
 * right answer at one point and a wrong one beside it. A figure that was not declared for exactly this point is unknown (0), never interpolated. Bytes are for one rank. */
struct fit_vllm_price {     /* what one token of the pool takes */
    uint32_t max_model_len; /* at exactly this length */
    const char *kv;         /* "fp8", "bf16" */
    uint64_t attention_bytes, side_bytes;
};
struct fit_vllm_reading {   /* KV pool that was read at one prefill chunk (--max-num-batched-tokens) */
    uint32_t chunk;
    uint64_t kv_bytes;
};
struct fit_vllm_refusal {   /* "max-num-seqs 2: does not compile" */
    const char *flag;
    uint64_t value;
    const char *reason;
};
struct fit_vllm {
    uint64_t total_bytes;        /* of the card */
    uint64_t free_at_init_bytes; /* as this runtime reports it: contexts and collectives are taken off; it belongs to the runtime, not to the card */
    double utilization;          /* 0: the ceiling */
    double utilization_most;     /* the runtime refuses more than this; 0: 1 */
    uint64_t weight_bytes;       /* that are always resident: all but routed experts when those have an arena */
    uint64_t overhead_bytes;     /* activations, workspaces, fragmentation */
    uint32_t graphs;
    uint64_t graph_bytes;        /* of one */
    uint64_t kv_reserve_bytes;   /* with an arena: the pool is this, the arena takes the rest; 0: the pool takes the rest */
    uint64_t expert_slot_bytes;  /* of the arena; 0: no arena */
    uint32_t max_model_len, max_num_seqs, chunk;
    uint32_t block_tokens;       /* of the prefix cache */
    const char *kv;
    uint32_t tp, pp, dcp;        /* 0: 1 */
    uint32_t heads, kv_heads, n_layer;
    const char *const *layer_kinds; /* n_layer names, or NULL: all are alike. Stages of a pipeline want the same kinds */
    const struct fit_vllm_price *prices; size_t n_prices;
    const struct fit_vllm_reading *readings; size_t n_readings;
    const struct fit_vllm_refusal *refusals; size_t n_refusals;
};
struct fit_vllm_result {
    double utilization, utilization_ceiling;
    uint64_t budget_bytes, graphs_bytes;
    uint64_t kv_bytes;        /* the pool; measured when there is a reading at this chunk */
    bool kv_measured;
    uint64_t token_bytes;     /* 0: no price for this length and type */
    uint64_t pool_tokens;
    double contexts;          /* of max_model_len that the pool holds: 4.12 */
    uint64_t arena_bytes, arena_slots;
    int64_t left_bytes;       /* of the card: total - budget, and what the budget does not cover */
    bool starts;              /* every gate of the start is passed; it is no promise to survive a full-length request */
    struct fit_note notes[FIT_NOTES_MAX];
    size_t n_notes;
};
/* One rank. -EINVAL for numbers that cannot be (no total, free over total, utilization not in (0, 1]). */
int fit_vllm(const struct fit_vllm *v, struct arena *a, struct fit_vllm_result *ret, struct err *err) BASE_MUST_USE;
/* The largest --gpu-memory-utilization, a multiple of step (0.01), that a start accepts: total times it is at most what is free then. 0: none. */
double fit_vllm_ceiling(uint64_t total_bytes, uint64_t free_at_init_bytes, double most, double step);
