/* SPDX-License-Identifier: MIT
 *
 * A whole measurement: hollow files, runs at the corners and the middle of a rectangle, coefficients, the check of the middle, and the same again in a smaller rectangle where another set of tensors takes over.
 *
 * What a run says is the engine's plan, not its real allocation; the one known difference is taken off (measure_excess). The first of a prompt graph's three reservations is all that the plan makes; minimax-01 alone gets its
 * final size from the last one, which has one sequence, so it is asked with one.
 */
#include "measure_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 3 /* rectangles; five runs each */
#define MEMORY_MAX ((size_t)256 << 20) /* of one prediction */

struct session {
    const struct measure_lab *lab;
    const struct fit_input *in;
    struct arena *a;
    struct fit_result r;
    struct measure_bench bench;
    char *weights, *drafter;
    struct measure_compute c;
    uint16_t draft_device[MODEL_LAYERS_MAX + 2];
    bool one_sequence;
};

/* Where the drafter's own layers stand: by the same shares, over its devices. */
static void divide_draft(struct session *s)
{
    const struct fit_input *in = s->in;
    uint32_t counts[FIT_DEVICES_MAX], own[FIT_DEVICES_MAX] = {0};
    const struct fit_shape *shape = in->shape;
    size_t n = shape->n_draft_devices ? shape->n_draft_devices : in->n_devices;
    if (!in->drafter) /* an MTP head in the target */
        return;
    measure_counts(&s->r, in->n_devices, counts);
    for (size_t i = 0; i < n; i++)
        own[i] = counts[i]; /* the engine takes the first shares for whatever list it has */
    measure_divide(in->drafter->n_layer, shape->draft_gpu_layers, own, shape->draft_on_cpu ? 0 : n, s->draft_device);
    for (uint32_t k = 0; k <= in->drafter->n_layer; k++) {
        size_t at = s->draft_device[k];
        s->draft_device[k] = (uint16_t)(shape->draft_on_cpu || at >= n ? in->n_devices : shape->n_draft_devices ? shape->draft_devices[at] : at);
    }
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void take_answer(const struct session *s, const struct measure_answer *a, struct measure_point *p)
{
    const struct fit_input *in = s->in;
    p->ubatch = a->target.n_ubatch;
    p->n_kv = a->target.n_ctx_seq;
    p->outputs = a->target.n_outputs_max;
    for (size_t d = 0; d <= in->n_devices; d++) {
        p->bytes[d] = less(a->bytes[d], measure_excess(in->target, s->r.layer_device, in->target->n_layer, false, d, in->n_devices, a->pipeline, p->ubatch));
        uint32_t ub = in->shape->draft_ubatch && in->shape->draft_ubatch < p->ubatch ? in->shape->draft_ubatch : p->ubatch;
        uint64_t excess = in->drafter ? measure_excess(in->drafter, s->draft_device, in->drafter->n_layer, false, d, in->n_devices, a->draft_pipeline, ub)
                                      : measure_excess(in->target, s->r.layer_device, in->target->n_layer, true, d, in->n_devices, a->draft_pipeline, ub);
        p->draft_bytes[d] = less(a->draft_bytes[d], excess);
    }
}

/* Runs one point, unless it was run before. */
static int measure_one(struct session *s, uint32_t ub, uint32_t context, bool held_out, struct measure_point *ret, struct err *err)
{
    struct measure_compute *c = &s->c;
    for (size_t i = 0; i < c->n_points; i++)
        if (c->points[i].context == context && c->points[i].ubatch == ub) {
            *ret = c->points[i];
            ret->held_out = held_out;
            return 0;
        }
    if (c->n_points == MEASURE_POINTS_MAX)
        return err_set(err, -E2BIG, "more than %d points", MEASURE_POINTS_MAX);
    uint32_t slots = s->in->shape->slots ? s->in->shape->slots : 1;
    struct measure_run_shape shape = {.ubatch = ub, .context = s->one_sequence ? context / slots : context, .slots = s->one_sequence ? 1 : slots, .weights = s->weights, .drafter = s->drafter};
    struct measure_answer answer;
    event_say(s->lab->sink, EVENT_INFO, "measure", "at ubatch %u, context %u", (unsigned)ub, (unsigned)context);
    int r = bench_run(&s->bench, s->in, &s->r, &shape, &answer, err);
    if (r < 0)
        return r;
    struct measure_point p = {.context = context, .held_out = held_out};
    take_answer(s, &answer, &p);
    if (p.ubatch == 0 || p.n_kv == 0)
        return err_set(err, -EIO, "the engine measured without saying its shape");
    c->has_draft = c->n_points == 0 ? answer.draft_measured : c->has_draft && answer.draft_measured;
    c->points[c->n_points++] = p;
    *ret = p;
    return 0;
}

/* Coefficients of all devices from one rectangle's points; returns how far off the worst is. */
static double fit_all(struct session *s, const struct measure_point *points, size_t n)
{
    const struct fit_input *in = s->in;
    struct measure_point draft[MEASURE_POINTS_MAX] = {{0}};
    double worst = 0;
    memcpy(draft, points, n * sizeof *draft);
    for (size_t i = 0; i < n; i++)
        if (in->shape->draft_ubatch && in->shape->draft_ubatch < draft[i].ubatch)
            draft[i].ubatch = in->shape->draft_ubatch;
    for (size_t d = 0; d <= in->n_devices; d++) {
        double e = measure_fit(points, n, d, false, &s->c.compute[d]);
        worst = e > worst ? e : worst;
        if (!s->c.has_draft)
            continue;
        e = measure_fit(draft, n, d, true, &s->c.draft_compute[d]);
        worst = e > worst ? e : worst;
    }
    return worst;
}

/* With the caches on the host and several devices the plan may lack one activation that the real allocation has: said, since it is not known when. */
static void widen(struct session *s, const struct measure_point *p)
{
    if (!s->in->shape->kv_on_cpu || s->in->n_devices < 2)
        return;
    for (size_t d = 0; d < s->in->n_devices; d++) {
        struct fit_coef *k = &s->c.compute[d];
        double missing = sizeof(float) * (double)s->in->target->embd * p->ubatch, share = p->bytes[d] ? missing / (double)p->bytes[d] : 0;
        k->worst_error = k->worst_error + share > 1 ? 1 : k->worst_error + share;
    }
}

static int measure_rounds(struct session *s, const struct measure_range *range, struct err *err)
{
    struct measure_bracket b;
    measure_bracket_first(s->in, &s->r, range, &b);
    for (int round = 0;; round++) {
        struct measure_point points[5] = {{0}};
        uint32_t ub, context;
        measure_bracket_middle(s->in, &b, &ub, &context);
        for (size_t i = 0; i < 4; i++) {
            int r = measure_one(s, b.ub[i & 1], b.context[i >> 1], false, &points[i], err);
            if (r < 0)
                return r;
        }
        int r = measure_one(s, ub, context, true, &points[4], err);
        if (r < 0)
            return r;
        s->c.worst_error = fit_all(s, points, BASE_COUNT(points));
        if (s->c.worst_error <= MEASURE_GOOD || round + 1 == ROUNDS || !measure_bracket_narrow(s->in, &s->r, round + 2 == ROUNDS, &b)) {
            widen(s, &points[3]);
            return 0;
        }
        event_say(s->lab->sink, EVENT_INFO, "measure", "the held-out point is off by %.1f %%: measuring again nearer to the shape", s->c.worst_error * 100);
    }
}

static int prepare(struct session *s, const struct measure_files *files, struct err *err)
{
    struct fit_input plain = *s->in;
    plain.calibration = NULL;
    plain.program = FIT_SERVER;
    int code = fit_predict(&plain, s->a, &s->r, err);
    for (size_t i = 0; code == 0 && i < s->r.n_notes; i++)
        if (s->r.notes[i].severity == FIT_REFUSED)
            code = err_set(err, -EINVAL, "the engine refuses this shape: %s", s->r.notes[i].text);
    if (code == 0)
        code = bench_open(&s->bench, s->lab, s->in, err);
    if (code < 0)
        return code;
    s->c.emulated = s->bench.emulated;
    s->c.n = s->in->n_devices + 1;
    s->one_sequence = strcmp(s->in->target->arch, "minimax-01") == 0;
    divide_draft(s);
    code = measure_hollow(files->weights, s->bench.folder, "model", &s->weights, err);
    if (code == 0 && files->drafter && (s->in->shape->spec & FIT_SPEC_CONTEXT))
        code = measure_hollow(files->drafter, s->bench.folder, "draft", &s->drafter, err);
    return code;
}

static int measure_and_keep(struct session *s, const struct measure_key *key, const struct measure_files *files, const struct measure_range *range, struct err *err)
{
    static const struct measure_range anywhere = {0};
    char family[MEASURE_FAMILY];
    int code = prepare(s, files, err);
    if (code == 0)
        code = measure_rounds(s, range ? range : &anywhere, err);
    if (code < 0 || !s->lab->ledger)
        return code;
    code = measure_family(s->in, &s->r, family, err);
    return code < 0 ? code : measure_keep_compute(s->lab, key, s->in, family, &s->c, err);
}

int measure_compute(const struct measure_lab *lab, const struct measure_key *key, const struct fit_input *in, const struct measure_files *files, const struct measure_range *range, struct measure_compute *ret, struct err *err)
{
    struct session *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(err);
    s->lab = s->bench.lab = lab;
    s->in = in;
    s->a = arena_new(MEMORY_MAX);
    int code = s->a ? measure_and_keep(s, key, files, range, err) : err_nomem(err);
    bench_close(&s->bench);
    if (code == 0)
        *ret = s->c;
    free(s->weights);
    free(s->drafter);
    arena_free(s->a);
    free(s);
    return code;
}
