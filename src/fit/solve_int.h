/* SPDX-License-Identifier: MIT
 *
 * Private parts of speed and solver.
 */
#pragma once

#include "fit_int.h"

#define FIT_SCRATCH_MAX (512u << 20) /* of a solver and its kin; what a model of 512 layers takes is far below */

/* ---- speed.c ---- */

/* What a pass reads that a prepared prediction's sums do not tell apart: routed experts among overridden tensors, and a drafter's own head. Done once; shared by threads. */
struct fit_traffic {
    uint64_t fixed_dense[FIT_DEVICES_MAX + 1], fixed_experts[FIT_DEVICES_MAX + 1];
    uint64_t head_bytes;    /* the output matrix of the target, which MTP and drafters without one read too */
    bool borrows_head;
    uint64_t drafter_bytes; /* of all the drafter's layers and its output */
};
int fit_traffic_of(const struct fit_prepared *p, struct fit_traffic *ret, struct err *err) BASE_MUST_USE;
/* As fit_speed for a shape of a prepared input; assumes stays "". Takes microseconds and cannot fail. */
void fit_speed_prepared(const struct fit_prepared *p, const struct fit_traffic *t, const struct fit_shape *s, const struct fit_result *r, uint64_t depth, struct fit_speed *ret);
int fit_speed_assumes(const struct fit_prepared *p, const struct fit_shape *s, const struct fit_result *r, uint64_t depth, struct arena *a, struct fit_speed *ret, struct err *err) BASE_MUST_USE;

/* ---- bad.c ---- */

/* The first of the list that shape s, predicted as r, meets; NULL: none. room is overwritten. */
const struct fit_bad *fit_known_bad(const struct fit_prepared *p, const struct fit_bad *list, size_t n, const struct fit_shape *s, const struct fit_result *r, struct fit_result *room);

/* ---- steps.c: what knobs and tables share ---- */

/* An input, prepared with and without its drafter, and one prediction after the other. */
struct fit_steps {
    const struct fit_input *in;
    struct fit_prepared *prepared[2]; /* [1]: without its drafter */
    struct fit_traffic traffic[2];
    struct fit_result result, room;
};
int fit_steps_new(const struct fit_input *in, struct arena *scratch, struct fit_steps **ret, struct err *err) BASE_MUST_USE;
/* Predicts s into x->result; its texts live in a, NULL: "". */
int fit_steps_predict(struct fit_steps *x, const struct fit_shape *s, struct arena *a, struct err *err) BASE_MUST_USE;
double fit_steps_speed(const struct fit_steps *x, const struct fit_shape *s); /* tokens a second of what was predicted last, which was s */
bool fit_drafts(const struct fit_input *in, const struct fit_shape *s); /* a context drafts, which can be turned off */
/* Shares of a split in whole numbers, as many as devices: the declared ones when they are fine enough to say every layer of r's placement, else layers counted by device. Returns their sum. */
uint32_t fit_whole_shares(const struct fit_input *in, const struct fit_result *r, uint32_t *ret);
/* The declared shares' sum when they are whole and fine enough for so many layers; else 0. */
uint32_t fit_declared_sum(const struct fit_shape *s, uint32_t n_layers);
/* cpu_moe with one more layer's experts on the CPU than now; 0: there is none. */
uint32_t fit_next_moe(const struct fit_prepared *p, uint32_t cpu_moe);
const char *fit_shares_text(const double *shares, size_t n, struct arena *a);

/* ---- solver -------------------------------------------------------------------------------------------------------------- */

#define FIT_SPILLS_MAX (2 * MODEL_LAYERS_MAX + 2)

/* One service and what may be varied in it. */
struct solve_service {
    struct fit_input in;          /* its devices are the solver's own copy, with the service's own floor */
    const struct fit_space *space;
    struct fit_prepared *prepared[2]; /* [1]: without its drafter */
    struct fit_traffic traffic[2];
    struct fit_shape shape;       /* declared; the fields below are set before each prediction */
    uint32_t contexts[33], slots[16], ubatches[8];
    const struct gguf_type *kv[8]; /* NULL: as declared */
    size_t n_contexts, n_slots, n_ubatches, n_kv, n_drafter, n_projector; /* each at least 1 */
    bool free_split, free_projector; /* splits and the projector's device are searched */
    uint32_t share_sum;           /* of splits; 0: as many as layers are placed */
    uint32_t moe[MODEL_LAYERS_MAX + 1]; /* values of cpu_moe from the declared one on, each with one more layer's experts on the CPU */
    size_t n_moe;
    uint32_t n_layers;            /* placed on devices when nothing is moved: the output counts as one */
    uint32_t n_spill;             /* ways to move something to the CPU, beside moving nothing */
};

/* What is decided for a service, but for where its layers go. Indexes into the service's sets. */
struct solve_way {
    uint32_t context;
    uint8_t slots, drafter /* 1: off */, kv, ubatch, projector /* 1: on the CPU */;
    uint32_t spill;
};

/* Where they go. */
struct solve_spot {
    uint32_t shares[FIT_DEVICES_MAX];
    int projector; /* device */
};

/* What a service takes there. */
struct solve_used {
    bool known, refused; /* refused by the engine's rules, or known to be bad */
    uint64_t bytes[FIT_DEVICES_MAX + 1];
};

/* Judgement over all services. */
struct solve_verdict {
    bool fits, devices_fit, host_fits;
    int64_t least; /* left over a device's floor; without devices the host's */
    uint64_t gap;
    int64_t over[FIT_DEVICES_MAX]; /* left over each device's floor */
};

/* Splits of one service over two devices, as far as they were asked for: one for each share of the first. */
struct solve_line {
    struct solve_line *next;
    struct solve_way way;
    int projector;
    uint32_t n, room;
    struct solve_used *points;
};

/* Cuts that were looked at, for one service going one way. */
#define SOLVE_CUTS 1024 /* a power of two; when more were looked at, those of a place are forgotten */
struct solve_cut {
    uint64_t round; /* of the memo's owner; another: it is forgotten */
    struct solve_spot spot;
    struct solve_used used;
};
struct solve_cuts {
    struct solve_way way;
    size_t service;
    uint64_t round;
    struct solve_cut cuts[SOLVE_CUTS];
};

/* A complete answer for one service. */
struct solve_part {
    struct solve_way way;
    struct solve_spot spot;
    uint32_t slot_context, slots;
    double speed;
};
struct solve_point {
    struct solve_point *next;
    int64_t least;
    struct solve_part *parts; /* one for each service */
    double keys[4];           /* in the order of what is wanted; more is better */
    size_t order;             /* of finding */
};

struct solve {
    struct solve_service *services;
    size_t n;
    const struct fit_device *devices; /* with the strictest floor of all services */
    size_t n_devices;
    const struct fit_host *host;
    struct fit_host host_copy;
    uint64_t slack, depth;
    enum fit_want want;
    bool unequal;         /* devices differ in bandwidth, so that splits differ in speed */
    struct arena *scratch;
    struct solve_line *lines[FIT_SERVICES_MAX]; /* of the combinations at hand */
    struct solve_line *idle; /* to be used again */
    double near[FIT_SERVICES_MAX]; /* where each service's best place on the last line was, as a part of its length: the next will not be far */
    struct solve_cuts *cuts; /* with three devices and more */
    struct solve_point *front;
    size_t n_front, n_found;
    struct fit_result result, other; /* of the last prediction, and of a known-bad shape; too large for the stack */
    struct fit_shape work;
    int failed;           /* first error; everything then says no */
    struct err *err;
};

/* solve_place.c */

/* The shape of a service that goes a way and lies at a spot. */
void solve_shape(const struct solve_service *s, const struct solve_way *w, const struct solve_spot *at, size_t n_devices, struct fit_shape *ret);
/* Predicts it into x->result; refused when it may not be proposed. */
struct solve_used solve_eval(struct solve *x, size_t service, const struct solve_way *w, const struct solve_spot *at);
struct solve_verdict solve_judge(const struct solve *x, const uint64_t *used);
/* What is left on each device and, last, on the host. */
void solve_left(const struct solve *x, const uint64_t *used, int64_t *ret_left);
/* What the shares of a split sum up to. */
uint32_t solve_share_sum(const struct solve_service *s, uint32_t spill);
bool solve_better(const struct solve_verdict *a, const struct solve_verdict *b); /* leaves more, then has the smaller gap */
uint64_t solve_rate(const struct solve *x, size_t device);
/* The projector's devices to look at: from first on and before end; -1: it is not placed here. */
int solve_projector_first(const struct solve_service *s, const struct solve_way *w);
int solve_projector_end(const struct solve *x, const struct solve_service *s, const struct solve_way *w);
/* Which places are asked for. */
enum solve_mode {
    SOLVE_BEST,  /* what leaves most of those where everything fits and nothing is refused */
    SOLVE_MOST,  /* what leaves most, allowed or not: what it says of bytes is then true of every way that takes less */
    SOLVE_ROOMY, /* any place where the devices have room, allowed or not */
};
/* Places for all services (x->n ways); false: there are none. */
bool solve_place(struct solve *x, const struct solve_way *ways, enum solve_mode mode, struct solve_spot *ret, struct solve_verdict *ret_verdict);
/* Moves layers to faster devices, one service after the other, as long as everything fits. False: nothing to gain. */
bool solve_hasten(struct solve *x, const struct solve_way *ways, struct solve_spot *spots, struct solve_verdict *ret_verdict);
void solve_forget(struct solve *x); /* the lines of the last combination */
bool solve_same_way(const struct solve_way *a, const struct solve_way *b);

/* solve_many.c: three devices and more */
bool solve_many(struct solve *x, size_t service, const struct solve_way *w, const uint64_t *others, enum solve_mode mode, struct solve_spot *ret, struct solve_verdict *ret_verdict);
bool solve_many_hasten(struct solve *x, size_t service, const struct solve_way *w, const uint64_t *others, struct solve_spot *spot, struct solve_verdict *ret_verdict);

/* solve_front.c */
void solve_add(struct solve *x, const struct solve_way *ways, const struct solve_spot *spots, const struct solve_verdict *v);
int solve_emit(struct solve *x, struct arena *a, struct fit_choice **ret, size_t *ret_n);
double solve_speed_of(struct solve *x, size_t service, const struct solve_way *w, const struct solve_spot *at); /* predicts */
