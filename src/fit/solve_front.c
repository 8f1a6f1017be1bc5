/* SPDX-License-Identifier: MIT
 *
 * The Pareto front: what is found is kept unless something else is as good in every respect, then ranked by what is wanted and predicted once more in full, with its notes. Respects are, for each service, a slot's context,
 * slots, decode speed and whether the drafter stays, and for all of them the smallest amount left over a floor.
 */
#include "solve_int.h"

#include <errno.h>

static bool as_good(const struct solve *x, const struct solve_point *a, const struct solve_point *b)
{
    for (size_t s = 0; s < x->n; s++) {
        const struct solve_part *p = &a->parts[s], *q = &b->parts[s];
        if (p->slot_context < q->slot_context || p->slots < q->slots || p->speed < q->speed || p->way.drafter > q->way.drafter)
            return false;
    }
    return a->least >= b->least;
}

/* Speeds are estimates: for a rank they are alike when two digits are. */
static double two_digits(double v)
{
    double scale = 1;
    if (!(v > 0))
        return 0;
    while (v * scale < 10)
        scale *= 10;
    while (v * scale >= 100)
        scale /= 10;
    return (double)(uint64_t)(v * scale + 0.5) / scale;
}

/* Several services: products, so that twice as much for one of them counts the same for each. */
static void rank(const struct solve *x, struct solve_point *p)
{
    double context = 1, slots = 1, speed = 1, drafters = 0;
    for (size_t s = 0; s < x->n; s++) {
        context *= p->parts[s].slot_context;
        slots *= p->parts[s].slots;
        speed *= two_digits(p->parts[s].speed);
        drafters += p->parts[s].way.drafter ? 0 : 1;
    }
    const double keys[][3] = {[FIT_WANT_CONTEXT] = {context, slots, speed}, [FIT_WANT_SLOTS] = {slots, context, speed}, [FIT_WANT_SPEED] = {speed, context, slots}};
    memcpy(p->keys, keys[x->want], sizeof(keys[0]));
    p->keys[3] = drafters;
}

void solve_add(struct solve *x, const struct solve_way *ways, const struct solve_spot *spots, const struct solve_verdict *v)
{
    struct solve_part parts[FIT_SERVICES_MAX];
    struct solve_point found = {.least = v->least, .parts = parts, .order = x->n_found++};
    for (size_t s = 0; s < x->n; s++) {
        double speed = solve_speed_of(x, s, &ways[s], &spots[s]);
        parts[s] = (struct solve_part){.way = ways[s], .spot = spots[s], .slot_context = x->result.n_ctx_seq, .slots = x->services[s].slots[ways[s].slots], .speed = speed};
    }
    if (x->failed < 0)
        return;
    for (struct solve_point *p = x->front; p; p = p->next)
        if (as_good(x, p, &found))
            return;
    for (struct solve_point **at = &x->front; *at;)
        if (as_good(x, &found, *at)) {
            *at = (*at)->next;
            x->n_front--;
        } else {
            at = &(*at)->next;
        }
    struct solve_point *p = arena_alloc(x->scratch, 1, sizeof(*p));
    struct solve_part *kept = arena_alloc(x->scratch, x->n, sizeof(*kept));
    if (!p || !kept) {
        x->failed = err_nomem(x->err);
        return;
    }
    *p = found;
    memcpy(kept, parts, x->n * sizeof(*kept));
    p->parts = kept;
    rank(x, p);
    p->next = x->front;
    x->front = p;
    x->n_front++;
}

static int by_rank(const void *a, const void *b)
{
    const struct solve_point *p = *(struct solve_point *const *)a, *q = *(struct solve_point *const *)b;
    for (size_t i = 0; i < BASE_COUNT(p->keys); i++)
        if (p->keys[i] != q->keys[i])
            return p->keys[i] > q->keys[i] ? -1 : 1;
    if (p->least != q->least)
        return p->least > q->least ? -1 : 1;
    return p->order < q->order ? -1 : 1;
}

/* ---- giving back ------------------------------------------------------------------------------------------------------------- */

/* A choice repeats why it keeps to something of its own, whatever else there is to say. */
static int own_note(struct fit_result *r, const char *rule, const char *what, uint64_t bytes, const char *reason, struct arena *a, struct err *err)
{
    char size[UNITS_TEXT];
    const char *text = arena_printf(a, "%s of its own, %s: %s", what, units_show_bytes(bytes, size), reason);
    if (!text)
        return err_nomem(err);
    size_t at = r->n_notes < FIT_NOTES_MAX ? r->n_notes++ : FIT_NOTES_MAX - 1;
    r->notes[at] = (struct fit_note){FIT_NOTE, rule, text};
    return 0;
}

/* What all services together leave. */
static void share_left(const struct solve *x, struct fit_choice *of_point)
{
    uint64_t used[FIT_DEVICES_MAX + 1] = {0};
    int64_t left[FIT_DEVICES_MAX + 1], least = INT64_MAX;
    for (size_t s = 0; s < x->n; s++)
        for (size_t d = 0; d <= x->n_devices; d++)
            used[d] = fit_add(used[d], of_point[s].result.use[d].used);
    const struct solve_verdict v = solve_judge(x, used);
    int binds = 0;
    solve_left(x, used, left);
    for (size_t d = 0; d < x->n_devices + (x->host ? 1 : 0); d++) {
        int64_t over = d < x->n_devices ? v.over[d] : left[d] - (int64_t)x->host->floor_bytes;
        if (over < least) {
            least = over;
            binds = (int)d;
        }
    }
    for (size_t s = 0; s < x->n; s++) {
        struct fit_result *r = &of_point[s].result;
        for (size_t d = 0; d <= x->n_devices; d++)
            r->use[d].left = left[d];
        r->gap_bytes = v.gap;
        r->fits = v.fits;
        r->binds = binds;
        r->binds_term = fit_largest_term(&r->use[binds]);
    }
}

static int emit_part(struct solve *x, size_t service, const struct solve_part *part, struct arena *a, struct fit_choice *ret)
{
    const struct solve_service *s = &x->services[service];
    const struct fit_prepared *p = s->prepared[part->way.drafter];
    solve_shape(s, &part->way, &part->spot, x->n_devices, &ret->shape);
    int r = fit_predict_prepared(p, &ret->shape, a, &ret->result, x->err);
    if (r < 0)
        return r;
    uint64_t depth = x->depth < ret->result.n_ctx_seq ? x->depth : ret->result.n_ctx_seq;
    fit_speed_prepared(p, &s->traffic[part->way.drafter], &ret->shape, &ret->result, depth, &ret->speed);
    r = fit_speed_assumes(p, &ret->shape, &ret->result, depth, a, &ret->speed, x->err);
    const struct fit_own *own = &s->space->own;
    if (r == 0 && own->floor_set)
        r = own_note(&ret->result, "own-floor", "floor", own->floor_bytes, own->reason, a, x->err);
    if (r == 0 && own->slack_set)
        r = own_note(&ret->result, "own-slack", "slack", own->slack_bytes, own->reason, a, x->err);
    return r;
}

int solve_emit(struct solve *x, struct arena *a, struct fit_choice **ret, size_t *ret_n)
{
    size_t n = x->n_front < FIT_FRONT_MAX ? x->n_front : FIT_FRONT_MAX, k = 0;
    if (n == 0) {
        *ret = NULL;
        *ret_n = 0;
        return 0;
    }
    const struct solve_point **order = arena_alloc(x->scratch, x->n_front, sizeof(struct solve_point *));
    struct fit_choice *choices = arena_alloc(a, n * x->n, sizeof(*choices));
    if (!order || !choices)
        return err_nomem(x->err);
    for (const struct solve_point *p = x->front; p; p = p->next)
        order[k++] = p;
    qsort(order, k, sizeof(struct solve_point *), by_rank);
    for (size_t i = 0; i < n; i++) {
        for (size_t s = 0; s < x->n; s++) {
            int r = emit_part(x, s, &order[i]->parts[s], a, &choices[i * x->n + s]);
            if (r < 0)
                return r;
        }
        if (x->n > 1)
            share_left(x, &choices[i * x->n]);
    }
    *ret = choices;
    *ret_n = n;
    return 0;
}
