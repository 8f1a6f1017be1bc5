/* SPDX-License-Identifier: MIT
 *
 * The solver: walks what may be varied, lets solve_place find the best places for each combination, and keeps the front. Contexts, slots and the drafter are what is traded against each other. KV type, ubatch and what lies on
 * the CPU are concessions: of those only the least that fit are looked at, component by component, so that a smaller type never pushes out a better one that fits as well.
 *
 * Whoever takes more tokens takes more bytes. So along rising contexts a combination that once did not fit is dropped, and what had to be moved to the CPU is never less than before. That is not relied upon where compute buffers
 * were measured: a measured knob need not be monotonic.
 */
#include "solve_int.h"

#include <errno.h>

#define CELLS 256          /* the engine rounds a slot's context to it */
#define LARGEST_RETRIES 16 /* contexts below the largest that are tried when a rule is against that one */

/* ---- one service --------------------------------------------------------------------------------------------------------------- */

/* In rising order, each once; 0 means `zero`. */
static size_t sorted(const uint32_t *from, size_t n, uint32_t declared, uint32_t zero, uint32_t *ret)
{
    size_t k = 0;
    if (n == 0) {
        ret[0] = declared;
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t v = from[i] ? from[i] : zero;
        size_t at = 0;
        while (at < k && ret[at] < v)
            at++;
        if (at < k && ret[at] == v)
            continue;
        memmove(&ret[at + 1], &ret[at], (k - at) * sizeof(*ret));
        ret[at] = v;
        k++;
    }
    return k;
}

static void find_spills(struct solve_service *s)
{
    if (s->in.n_devices == 0)
        return;
    for (uint32_t v = fit_next_moe(s->prepared[0], s->shape.cpu_moe); s->space->cpu_moe && v > 0; v = fit_next_moe(s->prepared[0], v))
        s->moe[s->n_moe++] = v;
    s->n_spill = (uint32_t)s->n_moe + (s->space->gpu_layers ? s->n_layers : 0);
}

static void take_space(struct solve_service *s)
{
    const struct fit_space *f = s->space;
    const struct model *m = s->in.target;
    s->n_contexts = sorted(f->contexts, f->n_contexts, s->shape.context, m->context_trained, s->contexts);
    s->n_slots = sorted(f->slots, f->n_slots, s->shape.slots, s->shape.slots, s->slots);
    s->n_ubatches = f->n_ubatches ? f->n_ubatches : 1;
    s->n_kv = f->n_kv ? f->n_kv : 1;
    for (size_t i = 0; i < s->n_ubatches; i++)
        s->ubatches[i] = f->n_ubatches ? f->ubatches[i] : s->shape.ubatch;
    for (size_t i = 0; i < s->n_kv; i++)
        s->kv[i] = f->n_kv ? f->kv[i] : NULL;
    s->n_drafter = f->drafter_off && fit_drafts(&s->in, &s->shape) ? 2 : 1;
    s->free_projector = f->projector_device && s->in.projector && s->in.n_devices > 0;
    s->n_projector = s->free_projector ? 2 : 1;
    s->free_split = f->split && s->in.n_devices > 1 && s->shape.split_mode == FIT_SPLIT_LAYER;
    s->n_layers = s->shape.gpu_layers < m->n_layer + 1 ? s->shape.gpu_layers : m->n_layer + 1;
    s->share_sum = fit_declared_sum(&s->shape, s->n_layers);
}

static int check_space(const struct fit_space *f, struct err *err)
{
    if (f->n_contexts > BASE_COUNT(f->contexts) || f->n_slots > BASE_COUNT(f->slots) || f->n_ubatches > BASE_COUNT(f->ubatches) || f->n_kv > BASE_COUNT(f->kv))
        return err_set(err, -EINVAL, "solve: a set has more entries than it can hold");
    if ((f->own.floor_set || f->own.slack_set) && (!f->own.reason || f->own.reason[0] == 0))
        return err_set(err, -EINVAL, "solve: a service's own %s needs a reason, which every answer repeats", f->own.floor_set ? "floor" : "slack");
    for (size_t i = 0; i < f->n_known_bad; i++)
        if (!f->known_bad[i].shape)
            return err_set(err, -EINVAL, "solve: known-bad shape %zu is missing", i + 1);
    return 0;
}

static int service_init(struct solve *x, struct solve_service *s, const struct fit_input *in, const struct fit_space *space)
{
    int r = check_space(space, x->err);
    if (r < 0)
        return r;
    if (!in->shape)
        return err_set(x->err, -EINVAL, "no shape to start from");
    s->in = *in;
    s->shape = *in->shape;
    s->space = space;
    if (space->own.floor_set && in->n_devices > 0 && in->n_devices <= FIT_DEVICES_MAX) {
        struct fit_device *devices = arena_alloc(x->scratch, in->n_devices, sizeof(*devices));
        if (!devices)
            return err_nomem(x->err);
        memcpy(devices, in->devices, in->n_devices * sizeof(*devices));
        for (size_t d = 0; d < in->n_devices; d++)
            devices[d].floor_bytes = space->own.floor_bytes;
        s->in.devices = devices;
    }
    r = fit_prepare(&s->in, x->scratch, &s->prepared[0], x->err);
    if (r == 0)
        r = fit_traffic_of(s->prepared[0], &s->traffic[0], x->err);
    if (r < 0)
        return r;
    take_space(s);
    find_spills(s);
    if (s->n_drafter == 1)
        return 0;
    struct fit_input without = s->in;
    without.drafter = NULL;
    r = fit_prepare(&without, x->scratch, &s->prepared[1], x->err);
    return r < 0 ? r : fit_traffic_of(s->prepared[1], &s->traffic[1], x->err);
}

/* ---- combinations ---------------------------------------------------------------------------------------------------------------- */

static size_t n_groups(const struct solve_service *s)
{
    return s->n_contexts * s->n_slots * s->n_drafter;
}
static size_t n_concessions(const struct solve_service *s)
{
    return s->n_kv * s->n_ubatches * s->n_projector;
}

static void set_group(const struct solve_service *s, size_t i, struct solve_way *w)
{
    w->context = s->contexts[i % s->n_contexts];
    i /= s->n_contexts;
    w->drafter = (uint8_t)(i % s->n_drafter);
    w->slots = (uint8_t)(i / s->n_drafter);
}

static void set_concession(const struct solve_service *s, size_t i, struct solve_way *w)
{
    w->projector = (uint8_t)(i % s->n_projector);
    i /= s->n_projector;
    w->ubatch = (uint8_t)(i % s->n_ubatches);
    w->kv = (uint8_t)(i / s->n_ubatches);
}

/* A slot would get more than the model was trained for; the declared shape may. */
static bool beyond_training(const struct solve_service *s, const struct solve_way *w)
{
    uint32_t trained = s->in.target->context_trained, slots = s->slots[w->slots];
    uint32_t each = s->shape.unified || slots == 0 ? w->context : w->context / slots;
    return trained > 0 && each > trained && !(w->context == s->shape.context && slots == s->shape.slots);
}

/* Concessions of all services. */
static bool no_more(const struct solve_way *a, const struct solve_way *b, size_t n)
{
    for (size_t s = 0; s < n; s++)
        if (a[s].kv > b[s].kv || a[s].ubatch > b[s].ubatch || a[s].projector > b[s].projector || a[s].spill > b[s].spill)
            return false;
    return true;
}

struct search {
    struct solve *x;
    struct solve_way ways[FIT_SERVICES_MAX];
    struct solve_way *taken; /* concessions that were enough in this group, x->n ways each */
    size_t n_taken, max_taken;
    uint32_t *spill_from;    /* one service: for each concession what it took with the context before; UINT32_MAX: did not fit */
    bool monotonic;
};

static bool is_more_than_needed(const struct search *q)
{
    for (size_t i = 0; i < q->n_taken; i++)
        if (no_more(&q->taken[i * q->x->n], q->ways, q->x->n))
            return true;
    return false;
}

static void take(struct search *q, struct solve_spot *spots, struct solve_verdict *v)
{
    struct solve *x = q->x;
    if (q->n_taken < q->max_taken)
        memcpy(&q->taken[q->n_taken++ * x->n], q->ways, x->n * sizeof(*q->ways));
    solve_add(x, q->ways, spots, v);
    if (solve_hasten(x, q->ways, spots, v))
        solve_add(x, q->ways, spots, v);
}

/* ---- what must go to the CPU ------------------------------------------------------------------------------------------------------ */

static bool devices_fit(struct search *q, struct solve_verdict *v)
{
    struct solve_spot spots[FIT_SERVICES_MAX];
    return solve_place(q->x, q->ways, SOLVE_ROOMY, spots, v) && v->devices_fit;
}

/* The least value of service s's spill from low on with which the devices hold everything; high + 1: none. */
static uint32_t least_spill(struct search *q, size_t s, uint32_t low, uint32_t high)
{
    struct solve_verdict v;
    uint32_t end = high + 1;
    q->ways[s].spill = high;
    if (low > high || !devices_fit(q, &v))
        return end;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        q->ways[s].spill = mid;
        if (devices_fit(q, &v))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* With one service: the least that fits, and less than what lesser concessions took. *needs: what is known to be needed; then what bytes demand. */
static bool fit_one(struct search *q, uint32_t *needs, struct solve_spot *spots, struct solve_verdict *v)
{
    struct solve_way *w = &q->ways[0];
    struct solve_spot at[FIT_SERVICES_MAX];
    uint32_t high = q->x->services[0].n_spill, low = *needs > 0 ? *needs : 1;
    w->spill = 0;
    if (*needs == 0 && solve_place(q->x, q->ways, SOLVE_BEST, spots, v))
        return true;
    for (size_t i = 0; i < q->n_taken; i++) {
        w->spill = q->taken[i].spill;
        if (no_more(&q->taken[i], w, 1) && q->taken[i].spill <= high)
            high = q->taken[i].spill - 1; /* had it been none, this would not be asked */
    }
    w->spill = 0;
    bool bytes = *needs > 0 || !devices_fit(q, v);
    low = least_spill(q, 0, low, high);
    for (uint32_t k = low; k <= high; k++) {
        w->spill = k;
        if (solve_place(q->x, q->ways, SOLVE_BEST, spots, v)) {
            *needs = bytes ? low : 0;
            return true;
        }
        if (!solve_place(q->x, q->ways, SOLVE_ROOMY, at, v) || !v->host_fits)
            return false; /* and it would only get more */
    }
    return false;
}

/* With several: the first keeps as much on the devices as it can, then the next. */
static bool fit_all(struct search *q, struct solve_spot *spots, struct solve_verdict *v)
{
    struct solve *x = q->x;
    uint32_t any = 0;
    for (size_t s = 0; s < x->n; s++)
        q->ways[s].spill = 0;
    if (solve_place(x, q->ways, SOLVE_BEST, spots, v))
        return true;
    for (size_t s = 0; s < x->n; s++) {
        q->ways[s].spill = x->services[s].n_spill;
        any |= q->ways[s].spill;
    }
    if (any == 0)
        return false;
    for (size_t s = 0; s < x->n; s++) {
        uint32_t high = x->services[s].n_spill, k = least_spill(q, s, 0, high);
        if (k > high)
            return false;
        q->ways[s].spill = k;
    }
    return solve_place(x, q->ways, SOLVE_BEST, spots, v);
}

/* ---- walking ------------------------------------------------------------------------------------------------------------------------ */

/* Bytes alone forbid it, whatever is moved to the CPU; more context will not help. */
static bool out_of_bytes(struct search *q)
{
    struct solve_verdict v;
    uint32_t most = q->x->services[0].n_spill;
    q->ways[0].spill = most;
    return !devices_fit(q, &v) || (most == 0 && !v.host_fits);
}

static void try_one(struct search *q, size_t concession)
{
    struct solve_spot spots[FIT_SERVICES_MAX];
    struct solve_verdict v;
    uint32_t from = q->monotonic ? q->spill_from[concession] : 0;
    q->ways[0].spill = 0;
    if (from == UINT32_MAX || is_more_than_needed(q))
        return;
    uint32_t needs = from;
    if (fit_one(q, &needs, spots, &v)) {
        take(q, spots, &v);
        q->spill_from[concession] = needs;
    } else if (out_of_bytes(q)) {
        q->spill_from[concession] = UINT32_MAX;
    }
    solve_forget(q->x);
}

static void try_all(struct search *q)
{
    struct solve_spot spots[FIT_SERVICES_MAX];
    struct solve_verdict v;
    for (size_t s = 0; s < q->x->n; s++)
        q->ways[s].spill = 0;
    if (!is_more_than_needed(q) && fit_all(q, spots, &v) && !is_more_than_needed(q))
        take(q, spots, &v);
}

/* Counts up in a number whose digits have these bases; false: it was the last. */
static bool next_digits(size_t *digits, const size_t *bases, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        if (++digits[i] < bases[i])
            return true;
        digits[i] = 0;
    }
    return false;
}

static bool any_beyond_training(const struct search *q)
{
    for (size_t s = 0; s < q->x->n; s++)
        if (beyond_training(&q->x->services[s], &q->ways[s]))
            return true;
    return false;
}

static void walk_concessions(struct search *q, const size_t *bases)
{
    struct solve *x = q->x;
    size_t digits[FIT_SERVICES_MAX] = {0};
    q->n_taken = 0;
    do {
        for (size_t s = 0; s < x->n; s++)
            set_concession(&x->services[s], digits[s], &q->ways[s]);
        if (x->n == 1)
            try_one(q, digits[0]);
        else
            try_all(q);
    } while (x->failed == 0 && next_digits(digits, bases, x->n));
}

static void walk_groups(struct search *q, const size_t *groups, const size_t *concessions)
{
    struct solve *x = q->x;
    size_t digits[FIT_SERVICES_MAX] = {0};
    do {
        for (size_t s = 0; s < x->n; s++)
            set_group(&x->services[s], digits[s], &q->ways[s]);
        if (x->n == 1 && digits[0] % x->services[0].n_contexts == 0)
            memset(q->spill_from, 0, concessions[0] * sizeof(*q->spill_from));
        if (!any_beyond_training(q))
            walk_concessions(q, concessions);
    } while (x->failed == 0 && next_digits(digits, groups, x->n));
}

/* ---- the largest context ---------------------------------------------------------------------------------------------------------- */

static bool holds(struct search *q, uint32_t cells, uint32_t unit)
{
    struct solve_verdict v;
    q->ways[0].context = cells * unit;
    bool fits = devices_fit(q, &v) && v.host_fits;
    solve_forget(q->x);
    return fits;
}

/* Above what lesser concessions reached; returns what was found, in cells a slot. */
static uint32_t largest_above(struct search *q, uint32_t reached, uint32_t most, uint32_t unit)
{
    struct solve_spot spots[FIT_SERVICES_MAX];
    struct solve_verdict v;
    uint32_t low = reached, high = most;
    q->ways[0].spill = 0;
    if (low >= high || !holds(q, low + 1, unit))
        return reached;
    while (low < high) {
        uint32_t mid = low + (high - low + 1) / 2;
        if (holds(q, mid, unit))
            low = mid;
        else
            high = mid - 1;
    }
    for (uint32_t k = low; k > reached && low - k < LARGEST_RETRIES; k--) {
        q->ways[0].context = k * unit;
        bool fits = solve_place(q->x, q->ways, SOLVE_BEST, spots, &v);
        if (fits)
            take(q, spots, &v);
        solve_forget(q->x);
        if (fits)
            return k;
    }
    return reached;
}

static void walk_largest(struct search *q, uint32_t *reached)
{
    struct solve *x = q->x;
    struct solve_service *s = &x->services[0];
    size_t n = n_concessions(s);
    for (size_t g = 0; g < s->n_slots * s->n_drafter && x->failed == 0; g++) {
        set_group(s, g * s->n_contexts, &q->ways[0]);
        uint64_t unit = CELLS * (s->shape.unified ? 1ULL : s->slots[q->ways[0].slots]);
        uint64_t most = s->in.target->context_trained / CELLS;
        most = most * unit > INT32_MAX ? INT32_MAX / unit : most;
        q->n_taken = q->max_taken; /* nothing here bounds another context */
        for (size_t c = 0; c < n && x->failed == 0; c++) {
            struct solve_way *w = &q->ways[0], lesser = *w;
            uint32_t above = 0;
            set_concession(s, c, w);
            w->spill = 0;
            for (size_t k = 0; k < c; k++) {
                set_concession(s, k, &lesser);
                lesser.spill = 0;
                if (no_more(&lesser, w, 1) && reached[k] > above)
                    above = reached[k];
            }
            reached[c] = largest_above(q, above, (uint32_t)most, (uint32_t)unit);
        }
    }
}

/* ---- entry --------------------------------------------------------------------------------------------------------------------------- */

static int check_inputs(const struct fit_input *inputs, size_t n, struct err *err)
{
    if (n == 0 || n > FIT_SERVICES_MAX)
        return err_set(err, -EINVAL, "solve: %zu services, give 1 to %d", n, FIT_SERVICES_MAX);
    for (size_t i = 1; i < n; i++) {
        bool same = inputs[i].n_devices == inputs[0].n_devices && !inputs[i].host == !inputs[0].host;
        for (size_t d = 0; same && d < inputs[0].n_devices; d++)
            same = str_eq(str_of(inputs[i].devices[d].name), str_of(inputs[0].devices[d].name)) && inputs[i].devices[d].free_bytes == inputs[0].devices[d].free_bytes;
        if (!same)
            return err_set(err, -EINVAL, "solve: service %zu has other devices than the first; only services on the same devices are solved together", i + 1);
    }
    return 0;
}

/* On each device the strictest floor holds. */
static int share_devices(struct solve *x)
{
    const struct fit_input *first = &x->services[0].in;
    x->n_devices = first->n_devices;
    if (first->host) {
        x->host_copy = *first->host;
        x->host = &x->host_copy;
    }
    struct fit_device *devices = arena_alloc(x->scratch, x->n_devices + 1, sizeof(*devices));
    if (!devices)
        return err_nomem(x->err);
    if (x->n_devices > 0)
        memcpy(devices, first->devices, x->n_devices * sizeof(*devices));
    for (size_t s = 1; s < x->n; s++) {
        const struct fit_input *in = &x->services[s].in;
        for (size_t d = 0; d < x->n_devices; d++)
            if (in->devices[d].floor_bytes > devices[d].floor_bytes)
                devices[d].floor_bytes = in->devices[d].floor_bytes;
        if (in->host && in->host->floor_bytes > x->host_copy.floor_bytes)
            x->host_copy.floor_bytes = in->host->floor_bytes;
    }
    x->devices = devices;
    return 0;
}

static void take_general(struct solve *x, const struct fit_space *spaces)
{
    x->want = spaces[0].want;
    x->depth = spaces[0].depth ? spaces[0].depth : FIT_SOLVE_DEPTH;
    x->slack = spaces[0].slack_bytes;
    bool own = false;
    for (size_t s = 0; s < x->n; s++) {
        const struct fit_own *o = &spaces[s].own;
        if (!o->slack_set)
            continue;
        x->slack = !own || o->slack_bytes < x->slack ? o->slack_bytes : x->slack;
        own = true;
    }
    bool known = true;
    for (size_t d = 0; d < x->n_devices; d++) {
        known &= solve_rate(x, d) > 0;
        x->unequal |= solve_rate(x, d) != solve_rate(x, 0);
    }
    x->unequal &= known;
}

static bool was_measured(const struct fit_input *in)
{
    return in->calibration && (in->calibration->compute || in->calibration->draft_compute);
}

static int search(struct solve *x)
{
    size_t groups[FIT_SERVICES_MAX] = {0}, concessions[FIT_SERVICES_MAX] = {0};
    uint64_t all = 1, per_group = 1;
    for (size_t s = 0; s < x->n; s++) {
        groups[s] = n_groups(&x->services[s]);
        concessions[s] = n_concessions(&x->services[s]);
        if (!size_mul(all, (uint64_t)groups[s] * concessions[s], &all) || all > FIT_SOLVE_COMBINATIONS)
            return err_set(x->err, -E2BIG, "solve: over %d combinations; give fewer contexts, slots, ubatches or KV types", FIT_SOLVE_COMBINATIONS);
        per_group *= concessions[s];
    }
    struct search *q = arena_alloc(x->scratch, 1, sizeof(*q));
    struct solve_way *taken = arena_alloc(x->scratch, (size_t)per_group * x->n, sizeof(*taken));
    uint32_t *spill_from = arena_alloc(x->scratch, concessions[0], sizeof(*spill_from));
    if (!q || !taken || !spill_from)
        return err_nomem(x->err);
    *q = (struct search){.x = x, .taken = taken, .max_taken = (size_t)per_group, .spill_from = spill_from, .monotonic = !was_measured(&x->services[0].in)};
    walk_groups(q, groups, concessions);
    solve_forget(x);
    if (x->n == 1 && x->services[0].space->context_largest && x->failed == 0)
        walk_largest(q, spill_from);
    return x->failed;
}

static int solve(struct solve *x, const struct fit_input *inputs, const struct fit_space *spaces, struct arena *a, struct fit_choice **ret, size_t *ret_n)
{
    int r = 0;
    x->services = arena_alloc(x->scratch, x->n, sizeof(*x->services));
    if (!x->services)
        return err_nomem(x->err);
    for (size_t s = 0; s < x->n && r == 0; s++)
        r = service_init(x, &x->services[s], &inputs[s], &spaces[s]);
    if (r == 0)
        r = share_devices(x);
    if (r < 0)
        return r;
    take_general(x, spaces);
    r = search(x);
    return r < 0 ? r : solve_emit(x, a, ret, ret_n);
}

int fit_solve(const struct fit_input *inputs, size_t n_inputs, const struct fit_space *spaces, struct arena *a, struct fit_choice **ret, size_t *ret_n, struct err *err)
{
    int r = check_inputs(inputs, n_inputs, err);
    if (r < 0)
        return r;
    struct arena *scratch = arena_new(FIT_SCRATCH_MAX);
    struct solve *x = scratch ? arena_alloc(scratch, 1, sizeof(*x)) : NULL;
    if (!x) {
        arena_free(scratch);
        return err_nomem(err);
    }
    x->n = n_inputs;
    x->scratch = scratch;
    x->err = err;
    r = solve(x, inputs, spaces, a, ret, ret_n);
    arena_free(scratch);
    return r;
}
