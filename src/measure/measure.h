/* SPDX-License-Identifier: MIT
 *
 * measure: where a computed figure ends, the engine is asked. Three sources, all into the ledger: hollow runs (the engine's own planning pass over a header without data), logs and readings of a running service, and what both
 * taught before, handed to fit as a calibration. A measurement belongs to a build, a model (a digest of its headers), a family of shapes and the hardware; whatever of these differs makes it another measurement.
 *
 * Shapes of one family differ in ubatch and context only, and in splits that give each device the same kinds of layers.
 *
 * measure_compute starts processes: main thread only. Nothing else does I/O but through the ledger and the files that it is given.
 */
#pragma once

#include <base/base.h>
#include <fit/fit.h>
#include <hw/hw.h>
#include <ledger/ledger.h>
#include <store/store.h>

/* ---- what a measurement belongs to ------------------------------------------------------------------------------------ */

#define MEASURE_FAMILY 1024
/* Texts stay the caller's. */
struct measure_key {
    const char *build;    /* store_runtime.id */
    const char *model;    /* measure_model_digest */
    const char *service;  /* "" none */
    const char *const *hardware; /* hw_identity of each of fit_input's devices in order, then the host's; NULL: unknown (planned off the box) */
};
/* sha256 over the headers of the weights' parts and of the drafter and projector (NULL none); of arrays over GGUF_KEEP_ARRAY bytes (the vocabulary) only the length counts, so that it takes no longer than reading the tensor table. */
int measure_model_digest(const struct store_weights *weights, const struct store_weights *drafter, const struct store_weights *projector, char ret[OS_SHA256_HEX], struct err *err) BASE_MUST_USE;
/* The family of in's shape, from its prediction r. */
int measure_family(const struct fit_input *in, const struct fit_result *r, char ret[MEASURE_FAMILY], struct err *err) BASE_MUST_USE;

/* ---- hollow runs -------------------------------------------------------------------------------------------------------- */

struct measure_lab {
    struct store *store;
    const struct store_runtime *runtime;
    const char *folder;    /* absolute; hollow files are made in a folder of their own below it, and removed */
    struct ledger *ledger; /* NULL: nothing is kept */
    const struct clk *clk; /* NULL: clk_system */
    const struct event_sink *sink; /* subject: the service, or "measure" */
    uint64_t timeout_ms;   /* of one run; 0: MEASURE_TIMEOUT_MS */
};
#define MEASURE_TIMEOUT_MS 60000ULL /* the largest header takes under one second; a machine may be busy */

/* Where to measure; zeros: around the shape itself (half its ubatch and context to its own). */
struct measure_range {
    uint32_t ub_min, ub_max;           /* tokens */
    uint32_t context_min, context_max; /* as -c */
};
#define MEASURE_POINTS_MAX 16
/* One run: what the engine said it needs for computing, without the weights and caches. */
struct measure_point {
    uint32_t ubatch, context, n_kv, outputs;
    uint64_t bytes[FIT_DEVICES_MAX + 1], draft_bytes[FIT_DEVICES_MAX + 1]; /* devices, then the host */
    bool held_out;   /* not used for the coefficients */
};
struct measure_compute {
    struct fit_coef compute[FIT_DEVICES_MAX + 1], draft_compute[FIT_DEVICES_MAX + 1];
    size_t n;          /* devices and the host */
    bool has_draft;
    bool emulated;     /* the devices were RPC workers on the CPU: their alignment, and no scratch of a GPU's kernels */
    double worst_error; /* largest relative error at a held-out point */
    struct measure_point points[MEASURE_POINTS_MAX];
    size_t n_points;
};
/* Measures the compute buffers of in's shape: the engine runs on hollow copies of the files at a few points of the range, coefficients are fitted, a point is held out and checked; where it is off by more than MEASURE_GOOD the
 * range is narrowed around the shape and measured again, at last at its own ubatch alone. Devices that the runtime does not offer here are emulated by ggml-rpc-server. The result is kept in the ledger. files: paths of the weights (first part), drafter, projector.
 * -ENOTSUP: this engine kind or build cannot be asked; -EINVAL: the engine refuses the shape (its own words); -ETIMEDOUT; -EIO: it said nothing usable (its last words). */
#define MEASURE_GOOD 0.005
struct measure_files {
    const char *weights, *drafter, *projector; /* the latter two NULL: none */
};
int measure_compute(const struct measure_lab *lab, const struct measure_key *key, const struct fit_input *in, const struct measure_files *files, const struct measure_range *range, struct measure_compute *ret, struct err *err) BASE_MUST_USE;

/* Makes folder/NAME.gguf (and all parts) from the headers of path: sparse, as long as the original, without its data. *ret_path is malloc'ed: the file to name to the engine. */
int measure_hollow(const char *path, const char *folder, const char *name, char **ret_path, struct err *err) BASE_MUST_USE;

/* ---- logs and readings of a running service ------------------------------------------------------------------------------- */

#define MEASURE_SEEN_MAX 128
/* Buffers of one start, summed by device and term. */
struct measure_seen {
    struct measure_seen_row {
        int device;          /* index of fit_input's devices, n_devices for the host; -1: a name that is none of them */
        enum fit_term term;
        char name[64];       /* as the log has it */
        uint64_t bytes;
        uint64_t tolerance;  /* the log rounds: bytes may be off by so much */
        bool mapped;         /* weights in the page cache, not an allocation */
    } rows[MEASURE_SEEN_MAX];
    size_t n;
    size_t n_lost;           /* rows beyond MEASURE_SEEN_MAX */
    uint32_t n_ctx, n_ctx_seq, n_ubatch, n_batch, slots; /* of the target's context; 0: not said */
};
/* Reads the last start in a log of engine `kind` ("llama.cpp"). -ENODATA with what to do when it tells no buffer (the engine says them with -lv 4). */
int measure_read_log(const char *kind, const struct fit_input *in, struct str log, struct measure_seen *ret, struct err *err) BASE_MUST_USE;

/* A service as it is. Figures of in's devices in order, then the host (of its process: anonymous memory); UINT64_MAX: not known. */
struct measure_observation {
    const struct measure_seen *seen;  /* NULL: no log */
    const uint64_t *used_bytes;       /* held by the engine's own process; or all that is used on a device that nobody else uses */
    enum ledger_tag tag;
};
struct measure_observed {
    int64_t extra_bytes[FIT_DEVICES_MAX + 1]; /* reading minus the sum of terms: driver, context, pools, and what the prediction is off by */
    bool extra_known[FIT_DEVICES_MAX + 1];
    uint64_t compute[FIT_DEVICES_MAX + 1], draft_compute[FIT_DEVICES_MAX + 1];
    bool compute_known, draft_known;
    size_t n;
};
/* Works out what an observation teaches against the prediction r (made without a calibration) and keeps it in the ledger (NULL: does not). at_us: real time. */
int measure_observe(struct ledger *ledger, const struct measure_key *key, const struct fit_input *in, const struct fit_result *r, const struct measure_observation *o, uint64_t at_us, struct measure_observed *ret,
                    struct err *err) BASE_MUST_USE;

/* ---- what was learnt ------------------------------------------------------------------------------------------------------- */

struct measure_calibration {
    struct fit_calibration c;  /* c.n 0: nothing applies */
    unsigned n_compute, n_observed; /* rows that were used */
    unsigned n_stale;          /* rows of the same build, model and family on hardware that has changed */
    const char *stale;         /* what changed first: "ROCm0 was 0000:03:00.0 ..., is ...", or NULL */
    bool emulated;             /* compute comes from emulated devices */
};
/* What the ledger knows for in's shape, whose prediction without a calibration is r. An observation of the very shape on this hardware comes before coefficients measured on it, and those before emulated ones; extra bytes come from the newest
 * observation of the family on this hardware, after traffic before after load. Memory is a's. */
int measure_calibration(struct ledger *ledger, const struct measure_key *key, const struct fit_input *in, const struct fit_result *r, struct arena *a, struct measure_calibration *ret, struct err *err) BASE_MUST_USE;

/* ---- explaining a log --------------------------------------------------------------------------------------------------------- */

enum measure_verdict { MEASURE_EXACT /* within the log's rounding */, MEASURE_WITHIN /* within the prediction's interval */, MEASURE_OFF };
const char *measure_verdict_text(enum measure_verdict v);
struct measure_difference {
    int device;            /* as measure_seen_row */
    const char *name;
    enum fit_term term;
    uint64_t predicted, low, high, logged, tolerance;
    enum fit_known known;
    enum measure_verdict verdict;
};
struct measure_comparison {
    struct measure_difference *rows; /* devices in order, terms in order; terms that only one side has are there too, with 0 on the other */
    size_t n, n_off;
    const struct measure_difference *worst; /* the term that is most bytes off; NULL: none is */
    const char *shape;     /* what the log says of the shape where it is not the predicted one ("n_ctx 8192, predicted 4096"), or NULL: then the rest need not agree */
};
/* Prediction against log, term by term. Memory is a's. */
int measure_compare_log(const struct fit_input *in, const struct fit_result *r, const struct measure_seen *seen, struct arena *a, struct measure_comparison *ret, struct err *err) BASE_MUST_USE;
