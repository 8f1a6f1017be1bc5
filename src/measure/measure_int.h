/* SPDX-License-Identifier: MIT
 *
 * Private parts of measure: flags of a hollow run, the processes that answer it, the fitting of coefficients, and how all of it is kept in the ledger.
 */
#pragma once

#include "measure.h"

#include <engine/engine.h>

/* Kinds of rows in the ledger. */
#define MEASURE_KIND_COMPUTE "compute"
#define MEASURE_KIND_OBSERVED "observed"

#define MEASURE_PATH_MAX 4096
#define MEASURE_HARDWARE_MAX ((size_t)(FIT_DEVICES_MAX + 1) * (HW_IDENTITY + 40))

/* ---- key.c ---- */

/* "0:ROCm0 0000:03:00.0 ...; host cpu ...": what the ledger keeps of key->hardware; empty when unknown. */
int measure_hardware(const struct measure_key *key, const struct fit_input *in, struct buf *ret, struct err *err) BASE_MUST_USE;
/* Name of a value of device d: "d0.NAME", "host.NAME". Returns out. */
#define MEASURE_NAME 48
const char *measure_name(size_t d, size_t n_devices, const char *name, char out[MEASURE_NAME]);

/* ---- argv.c ---- */

/* How a hollow run calls the devices: a name for -dev, and a name of its buffer type for -ot. */
struct measure_device {
    const char *name, *buffer;
};
struct measure_run_shape {
    uint32_t ubatch, context, slots;
    const char *weights, *drafter; /* hollow files; drafter NULL: none */
    const char *rpc;               /* "127.0.0.1:4001,..."; NULL: the devices are real */
    const struct measure_device *devices;
};
/* Arguments of llama-server for a run that measures in's shape at other numbers. r tells where the layers go. */
int measure_argv(const struct fit_input *in, const struct fit_result *r, const struct measure_run_shape *s, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
/* Slots of a model of n_layer layers on each device, as the engine divides them by the shares in counts (law 2.2). */
void measure_divide(uint32_t n_layer, uint32_t ngl, const uint32_t *counts, size_t n_devices, uint16_t *ret_layer_device);
/* The slots of r on each device. */
void measure_counts(const struct fit_result *r, size_t n_devices, uint32_t *ret);

/* ---- lab.c ---- */

/* Processes of a measurement: the folder, the form of confinement, and the devices as the engine knows them. */
struct measure_bench {
    const struct measure_lab *lab;
    enum store_confine confine;
    char folder[MEASURE_PATH_MAX]; /* of the hollow files; removed at the end */
    char work[MEASURE_PATH_MAX];   /* empty folder that engines stand in */
    struct store_runtime worker;   /* the runtime with ggml-rpc-server as its program; program NULL: none is needed. Borrows but for program */
    char worker_program[MEASURE_PATH_MAX];
    bool emulated;
    bool begun;                    /* signals wait until the folders are gone */
    int lock;                      /* shared, on the lab's folder: its folders are in use */
};
int bench_open(struct measure_bench *b, const struct measure_lab *lab, const struct fit_input *in, struct err *err) BASE_MUST_USE;
void bench_close(struct measure_bench *b);
/* What one run said. Compute buffers by device (the host last). */
struct measure_answer {
    uint64_t bytes[FIT_DEVICES_MAX + 1], draft_bytes[FIT_DEVICES_MAX + 1];
    bool pipeline, draft_pipeline, draft_measured;
    struct engine_context target;
};
int bench_run(struct measure_bench *b, const struct fit_input *in, const struct fit_result *r, struct measure_run_shape *s, struct measure_answer *ret, struct err *err) BASE_MUST_USE;
/* The device that a buffer's name means, n_devices for the host, -1 for none. rpc: endpoints of emulated devices, NULL. */
int measure_device_of(struct str buffer, const struct fit_input *in, const char *const *rpc);

/* ---- answers.c: the engine's words, without processes ---- */

/* Takes lines until the first measuring pass is complete. */
struct measure_reader {
    struct engine_memory memory;
    struct measure_answer answer;
    const struct fit_input *in;
    const char *const *rpc;
    char last_error[256]; /* the last line that the engine marked as an error */
    bool done;
};
void measure_reader_line(struct measure_reader *m, struct str line);

/* ---- solve.c ---- */

/* What the engine's own pass counts too much on device d of a context (law 4.5). */
uint64_t measure_excess(const struct model *m, const uint16_t *layer_device, uint32_t n_layer, bool nextn, size_t d, size_t n_devices, bool pipeline, uint32_t n_ubatch);
/* Half a unit of the log's last place: two decimals of a MiB. */
#define MEASURE_ROUNDING 5243.0
/* Coefficients through the points that are not held out; ret->worst_error is how far off any point can be, the log's rounding included. draft: of draft_bytes. Returns the largest relative error beyond that rounding. */
double measure_fit(const struct measure_point *points, size_t n, size_t device, bool draft, struct fit_coef *ret);
double measure_coef_at(const struct fit_coef *c, uint32_t ubatch, uint32_t n_kv, uint32_t outputs);

/* ---- points.c ---- */

/* Where to measure, from the asked range and what the engine makes of the shape. Every number can be run: ubatch a multiple of the slots where it has to be, context a multiple of 256 a slot and no smaller than ubatch. */
struct measure_bracket {
    uint32_t ub[2], context[2];
};
void measure_bracket_first(const struct fit_input *in, const struct fit_result *r, const struct measure_range *range, struct measure_bracket *ret);
/* Halves it around the shape itself; with pin to the shape's own ubatch alone, in which windowed caches go in steps and no line fits. False when that changes nothing. */
bool measure_bracket_narrow(const struct fit_input *in, const struct fit_result *r, bool pin, struct measure_bracket *b);
/* The held-out point: the middle. */
void measure_bracket_middle(const struct fit_input *in, const struct measure_bracket *b, uint32_t *ret_ub, uint32_t *ret_context);

/* ---- keep.c ---- */

#define MEASURE_EMULATED "emulated"
/* The coefficients that a row holds. False: the row is of another number of devices or not readable. */
bool measure_read_compute(const struct ledger_row *row, size_t n_devices, struct measure_compute *ret);
int measure_keep_compute(const struct measure_lab *lab, const struct measure_key *key, const struct fit_input *in, const char *family, const struct measure_compute *c, struct err *err) BASE_MUST_USE;

/* What an observation's row holds, by device (the host last). */
struct measure_kept {
    uint32_t ubatch, n_kv, outputs;
    bool compute_seen, draft_seen;
    double used[FIT_DEVICES_MAX + 1]; /* < 0: not known */
    double rest[FIT_DEVICES_MAX + 1]; /* all terms but compute */
    double compute[FIT_DEVICES_MAX + 1], draft_compute[FIT_DEVICES_MAX + 1]; /* seen, or predicted without a calibration */
};
bool measure_read_observed(const struct ledger_row *row, size_t n_devices, struct measure_kept *ret);
int measure_keep_observed(struct ledger *l, const struct measure_key *key, const struct fit_input *in, const char *family, const struct measure_kept *k, enum ledger_tag tag, uint64_t at_us, struct err *err) BASE_MUST_USE;
