/* SPDX-License-Identifier: MIT
 *
 * The solver's twin: tries every shape of a space, one by one, each predicted as any shape is, and keeps the front by the same definition. It knows nothing of bisection, monotonicity or lines.
 */
#pragma once

#include "solve_models.h"

#include <fit/solve_int.h>

#define TWIN_SERVICES 2

/* One shape of one service, tried. */
struct twin_shape {
    uint32_t context, slots, seq;
    unsigned drafter, kv, ubatch, projector, spill; /* concessions by index */
    bool refused;
    uint64_t used[FIT_DEVICES_MAX + 1];
    double speed;
};
struct twin_list {
    struct twin_shape *v;
    size_t n, cap;
};

/* A point of the front: for each service context, slots, speed, drafter; then what is left. */
struct twin_point {
    uint32_t seq[TWIN_SERVICES], slots[TWIN_SERVICES];
    double speed[TWIN_SERVICES];
    unsigned drafter[TWIN_SERVICES];
    int64_t least;
};
struct twin {
    const struct fit_input *in;
    const struct fit_space *space;
    size_t n; /* services */
    struct twin_list lists[TWIN_SERVICES];
    struct twin_point *front;
    size_t n_front, cap_front;
    size_t tried;
    struct fit_traffic traffic; /* of what is being tried */
};

static inline void *twin_grow(void *p, size_t n, size_t size)
{
    p = realloc(p, n * size);
    if (!p)
        maker_die("twin", "no memory");
    return p;
}

static inline void twin_try(struct twin *t, size_t service, const struct fit_prepared *p, const struct fit_input *in, const struct fit_shape *s, struct twin_shape x)
{
    struct twin_list *l = &t->lists[service];
    struct fit_result r;
    struct fit_speed speed;
    const uint64_t depth = t->space->depth ? t->space->depth : FIT_SOLVE_DEPTH;

    if (fit_predict_prepared(p, s, NULL, &r, NULL) < 0)
        maker_die("twin", "a prediction failed");
    t->tried++;
    x.seq = r.n_ctx_seq;
    for (size_t d = 0; d <= in->n_devices; d++)
        x.used[d] = r.use[d].used;
    for (size_t i = 0; i < r.n_notes; i++)
        x.refused |= r.notes[i].severity == FIT_REFUSED;
    fit_speed_prepared(p, &t->traffic, s, &r, depth < r.n_ctx_seq ? depth : r.n_ctx_seq, &speed);
    x.speed = speed.decode_tok_s;
    if (l->n == l->cap)
        l->v = twin_grow(l->v, l->cap = l->cap ? 2 * l->cap : 256, sizeof(*l->v));
    l->v[l->n++] = x;
}

/* Every split of `rest` shares over the devices from d on. */
static inline void twin_splits(struct twin *t, size_t service, const struct fit_prepared *p, const struct fit_input *in, struct fit_shape *s, struct twin_shape x, size_t d, uint32_t rest)
{
    if (d + 1 == in->n_devices) {
        s->split[d] = rest;
        s->n_split = in->n_devices;
        twin_try(t, service, p, in, s, x);
        return;
    }
    for (uint32_t k = 0; k <= rest; k++) {
        s->split[d] = k;
        twin_splits(t, service, p, in, s, x, d + 1, rest - k);
    }
}

static inline void twin_places(struct twin *t, size_t service, const struct fit_prepared *p, const struct fit_input *in, struct fit_shape s, struct twin_shape x)
{
    const uint32_t n_layer = in->target->n_layer, placed = s.gpu_layers > n_layer ? n_layer + 1 : s.gpu_layers;
    const bool projectors = t->space->projector_device && in->projector && in->n_devices > 0;

    for (int d = projectors ? -2 : 0; d < (projectors ? (int)in->n_devices : 1); d++) {
        if (d == -1)
            continue;
        if (projectors)
            s.projector_device = d;
        x.projector = projectors && d == -2;
        if (t->space->split && in->n_devices > 1)
            twin_splits(t, service, p, in, &s, x, 0, placed);
        else
            twin_try(t, service, p, in, &s, x);
    }
}

/* Nothing moved, then the experts of one more layer each, then one more layer each. */
static inline void twin_spills(struct twin *t, size_t service, const struct fit_prepared *p, const struct fit_input *in, struct fit_shape s, struct twin_shape x)
{
    const uint32_t n_layer = in->target->n_layer;

    twin_places(t, service, p, in, s, x);
    for (uint32_t k = 0; t->space->cpu_moe && in->target->experts > 0 && k < n_layer; k++) {
        s.cpu_moe = k + 1;
        x.spill++;
        twin_places(t, service, p, in, s, x);
    }
    for (uint32_t k = 0; t->space->gpu_layers && k <= n_layer; k++) {
        s.gpu_layers = n_layer - k;
        x.spill++;
        twin_places(t, service, p, in, s, x);
    }
}

static inline bool twin_beyond(const struct fit_input *in, uint32_t context, uint32_t slots)
{
    const uint32_t each = in->shape->unified ? context : context / slots;

    return each > in->target->context_trained && !(context == in->shape->context && slots == in->shape->slots);
}

static inline void twin_types(struct twin *t, size_t service, const struct fit_prepared *p, const struct fit_input *in, struct fit_shape s, struct twin_shape x)
{
    const struct fit_space *f = t->space;

    for (size_t kv = 0; kv < (f->n_kv ? f->n_kv : 1); kv++)
        for (size_t ub = 0; ub < (f->n_ubatches ? f->n_ubatches : 1); ub++) {
            if (f->n_kv)
                s.k_type = s.v_type = f->kv[kv];
            if (f->n_ubatches)
                s.ubatch = f->ubatches[ub];
            x.kv = (unsigned)kv;
            x.ubatch = (unsigned)ub;
            twin_spills(t, service, p, in, s, x);
        }
}

static inline void twin_service(struct twin *t, size_t service, struct arena *a)
{
    const struct fit_space *f = t->space;
    struct fit_input in = t->in[service];
    const unsigned n_drafter = f->drafter_off && (in.shape->spec & FIT_SPEC_CONTEXT) ? 2 : 1;

    for (unsigned off = 0; off < n_drafter; off++) {
        struct fit_shape s = *in.shape;
        struct fit_prepared *p;
        if (off) {
            s.spec &= ~(unsigned)FIT_SPEC_CONTEXT;
            in.drafter = NULL;
        }
        if (fit_prepare(&in, a, &p, NULL) < 0 || fit_traffic_of(p, &t->traffic, NULL) < 0)
            maker_die("twin", "cannot prepare");
        for (size_t i = 0; i < (f->n_slots ? f->n_slots : 1); i++) {
            s.slots = f->n_slots ? f->slots[i] : in.shape->slots;
            const uint32_t unit = 256 * (s.unified ? 1 : s.slots);
            for (size_t k = 0; k < (f->n_contexts ? f->n_contexts : 1); k++) {
                s.context = f->n_contexts ? f->contexts[k] : in.shape->context;
                if (!twin_beyond(&t->in[service], s.context, s.slots))
                    twin_types(t, service, p, &in, s, (struct twin_shape){.context = s.context, .slots = s.slots, .drafter = off});
            }
            for (uint32_t k = 1; f->context_largest && k <= in.target->context_trained / 256; k++) {
                s.context = k * unit;
                twin_types(t, service, p, &in, s, (struct twin_shape){.context = s.context, .slots = s.slots, .drafter = off});
            }
        }
    }
}

/* ---- judging ------------------------------------------------------------------------------------------------------------- */

static inline bool twin_fits(const struct twin *t, const struct twin_shape *const *v, int64_t *ret_least)
{
    const struct fit_input *in = &t->in[0];
    uint64_t used[FIT_DEVICES_MAX + 1] = {0};
    int64_t least = INT64_MAX, low = INT64_MAX, high = INT64_MIN;

    for (size_t s = 0; s < t->n; s++)
        for (size_t d = 0; d <= in->n_devices; d++)
            used[d] += v[s]->used[d];
    for (size_t d = 0; d < in->n_devices; d++) {
        const int64_t left = (int64_t)in->devices[d].free_bytes - (int64_t)used[d], over = left - (int64_t)in->devices[d].floor_bytes;
        least = over < least ? over : least;
        low = left < low ? left : low;
        high = left > high ? left : high;
    }
    const int64_t host = (int64_t)in->host->free_bytes - (int64_t)used[in->n_devices] - (int64_t)in->host->floor_bytes;
    *ret_least = in->n_devices > 0 ? least : host;
    for (size_t s = 0; s < t->n; s++)
        if (v[s]->refused)
            return false;
    return *ret_least >= 0 && host >= 0 && (t->space->slack_bytes == 0 || in->n_devices < 2 || (uint64_t)(high - low) <= t->space->slack_bytes);
}

static inline bool twin_dominates(const struct twin *t, const struct twin_point *a, const struct twin_point *b)
{
    for (size_t s = 0; s < t->n; s++)
        if (a->seq[s] < b->seq[s] || a->slots[s] < b->slots[s] || a->speed[s] < b->speed[s] || a->drafter[s] > b->drafter[s])
            return false;
    return a->least >= b->least;
}

static inline void twin_keep(struct twin *t, const struct twin_point *p)
{
    size_t k = 0;

    for (size_t i = 0; i < t->n_front; i++)
        if (twin_dominates(t, &t->front[i], p))
            return;
    for (size_t i = 0; i < t->n_front; i++)
        if (!twin_dominates(t, p, &t->front[i]))
            t->front[k++] = t->front[i];
    t->n_front = k;
    if (t->n_front == t->cap_front)
        t->front = twin_grow(t->front, t->cap_front = t->cap_front ? 2 * t->cap_front : 64, sizeof(*t->front));
    t->front[t->n_front++] = *p;
}

static inline bool twin_same_group(const struct twin_shape *a, const struct twin_shape *b)
{
    return a->context == b->context && a->slots == b->slots && a->drafter == b->drafter;
}
static inline bool twin_same_concessions(const struct twin_shape *a, const struct twin_shape *b)
{
    return a->kv == b->kv && a->ubatch == b->ubatch && a->projector == b->projector && a->spill == b->spill;
}

/* What fits of one group with one set of concessions: the place that leaves most, and the fastest. */
struct twin_found {
    const struct twin_shape *most[TWIN_SERVICES], *fastest[TWIN_SERVICES];
    int64_t most_least, fastest_least;
};
struct twin_founds {
    struct twin_found *v;
    size_t n, cap;
};

static inline double twin_speed(const struct twin *t, const struct twin_shape *const *v)
{
    double product = 1;

    for (size_t s = 0; s < t->n; s++)
        product *= v[s]->speed;
    return product;
}

static inline void twin_note(const struct twin *t, struct twin_founds *f, const struct twin_shape *const *v, int64_t least)
{
    struct twin_found *x = NULL;

    for (size_t i = 0; i < f->n && !x; i++) {
        bool same = true;
        for (size_t s = 0; s < t->n; s++)
            same = same && twin_same_group(f->v[i].most[s], v[s]) && twin_same_concessions(f->v[i].most[s], v[s]);
        x = same ? &f->v[i] : NULL;
    }
    if (!x) {
        if (f->n == f->cap)
            f->v = twin_grow(f->v, f->cap = f->cap ? 2 * f->cap : 64, sizeof(*f->v));
        x = &f->v[f->n++];
        *x = (struct twin_found){.most_least = INT64_MIN, .fastest_least = INT64_MIN};
    }
    if (least > x->most_least) {
        memcpy(x->most, v, sizeof(x->most));
        x->most_least = least;
    }
    const double speed = twin_speed(t, v), best = x->fastest[0] ? twin_speed(t, (const struct twin_shape *const *)x->fastest) : -1;
    if (speed > best || (speed == best && least > x->fastest_least)) {
        memcpy(x->fastest, v, sizeof(x->fastest));
        x->fastest_least = least;
    }
}

/* Another one of the same group makes do with no more of anything. */
static inline bool twin_needless(const struct twin *t, const struct twin_founds *f, size_t i)
{
    for (size_t k = 0; k < f->n; k++) {
        bool lesser = k != i;
        for (size_t s = 0; s < t->n; s++) {
            const struct twin_shape *a = f->v[k].most[s], *b = f->v[i].most[s];
            lesser = lesser && twin_same_group(a, b) && a->kv <= b->kv && a->ubatch <= b->ubatch && a->projector <= b->projector && a->spill <= b->spill;
        }
        if (lesser)
            return true;
    }
    return false;
}

static inline void twin_keep_shapes(struct twin *t, const struct twin_shape *const *v, int64_t least)
{
    struct twin_point p = {.least = least};

    for (size_t s = 0; s < t->n; s++) {
        p.seq[s] = v[s]->seq;
        p.slots[s] = v[s]->slots;
        p.speed[s] = v[s]->speed;
        p.drafter[s] = v[s]->drafter;
    }
    twin_keep(t, &p);
}

/* For the largest context of each slots and drafter only the largest counts, with nothing moved. */
static inline bool twin_listed(const struct twin *t, const struct twin_shape *x)
{
    if (t->space->n_contexts == 0)
        return x->context == t->in[0].shape->context;
    for (size_t i = 0; i < t->space->n_contexts; i++)
        if (t->space->contexts[i] == x->context)
            return true;
    return false;
}

static inline bool twin_outgrown(const struct twin *t, const struct twin_founds *f, size_t i)
{
    const struct twin_shape *x = f->v[i].most[0];

    if (!t->space->context_largest || twin_listed(t, x))
        return false;
    if (x->spill > 0)
        return true;
    for (size_t k = 0; k < f->n; k++) {
        const struct twin_shape *y = f->v[k].most[0];
        if (y->slots == x->slots && y->drafter == x->drafter && y->spill == 0 && y->context > x->context && y->kv <= x->kv && y->ubatch <= x->ubatch && y->projector <= x->projector)
            return true;
    }
    return false;
}

static inline void twin_run(struct twin *t)
{
    struct arena *a = arena_new(1U << 30);
    struct twin_founds f = {0};

    for (size_t s = 0; s < t->n; s++)
        twin_service(t, s, a);
    for (size_t i = 0; i < t->lists[0].n; i++)
        for (size_t k = 0; k < (t->n > 1 ? t->lists[1].n : 1); k++) {
            const struct twin_shape *v[TWIN_SERVICES] = {&t->lists[0].v[i], t->n > 1 ? &t->lists[1].v[k] : NULL};
            int64_t least;
            if (twin_fits(t, v, &least))
                twin_note(t, &f, v, least);
        }
    for (size_t i = 0; i < f.n; i++) {
        if (twin_needless(t, &f, i) || twin_outgrown(t, &f, i))
            continue;
        twin_keep_shapes(t, (const struct twin_shape *const *)f.v[i].most, f.v[i].most_least);
        if (t->n == 1)
            twin_keep_shapes(t, (const struct twin_shape *const *)f.v[i].fastest, f.v[i].fastest_least);
    }
    free(f.v);
    arena_free(a);
}

static inline void twin_release(struct twin *t)
{
    for (size_t s = 0; s < t->n; s++)
        free(t->lists[s].v);
    free(t->front);
}

/* The point of a choice. */
static inline struct twin_point twin_point_of(const struct fit_input *in, const struct fit_choice *c, size_t n)
{
    struct twin_point p = {.least = INT64_MAX};

    for (size_t s = 0; s < n; s++) {
        p.seq[s] = c[s].result.n_ctx_seq;
        p.slots[s] = c[s].shape.slots;
        p.speed[s] = c[s].speed.decode_tok_s;
        p.drafter[s] = (in[s].shape->spec & FIT_SPEC_CONTEXT) && !(c[s].shape.spec & FIT_SPEC_CONTEXT);
    }
    for (size_t d = 0; d < in->n_devices; d++) {
        const int64_t over = c[0].result.use[d].left - (int64_t)in->devices[d].floor_bytes;
        p.least = over < p.least ? over : p.least;
    }
    if (in->n_devices == 0)
        p.least = c[0].result.use[0].left - (int64_t)in->host->floor_bytes;
    return p;
}

static inline bool twin_equal(const struct twin_point *a, const struct twin_point *b, size_t n)
{
    for (size_t s = 0; s < n; s++)
        if (a->seq[s] != b->seq[s] || a->slots[s] != b->slots[s] || a->speed[s] != b->speed[s] || a->drafter[s] != b->drafter[s])
            return false;
    return a->least == b->least;
}
