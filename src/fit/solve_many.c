/* SPDX-License-Identifier: MIT
 *
 * One service over three devices and more. Layers lie in order, so a split is a cut into stretches. To leave at least L everywhere, give each device in turn the longest stretch with which it still does: when that ends before
 * the last layer, no cut leaves L. The largest L is found by bisection over real predictions. What then breaks a rule or the slack is repaired, and speed gained, by moving single layers.
 */
#include "solve_int.h"

struct cut {
    struct solve *x;
    size_t service;
    const struct solve_way *w;
    const uint64_t *others;
};

/* Bisections come back to the same cuts. */
static bool memo(struct solve *x, size_t service, const struct solve_way *w)
{
    if (!x->cuts) {
        x->cuts = arena_alloc(x->scratch, 1, sizeof(*x->cuts));
        if (!x->cuts) {
            x->failed = err_nomem(x->err);
            return false;
        }
    } else if (x->cuts->service == service && solve_same_way(&x->cuts->way, w)) {
        return true;
    }
    x->cuts->service = service;
    x->cuts->way = *w;
    x->cuts->round++;
    return true;
}

static struct solve_used used_at(const struct cut *c, const struct solve_spot *at)
{
    struct solve_cuts *m = c->x->cuts;
    uint64_t hash = (uint64_t)at->projector + 1;
    for (size_t d = 0; d < c->x->n_devices; d++)
        hash = (hash ^ at->shares[d]) * 0x9e3779b97f4a7c15ULL;
    struct solve_cut *k = &m->cuts[(hash >> 32) & (SOLVE_CUTS - 1)];
    if (k->round == m->round && k->spot.projector == at->projector && memcmp(k->spot.shares, at->shares, sizeof(at->shares)) == 0)
        return k->used;
    struct solve_used u = solve_eval(c->x, c->service, c->w, at);
    *k = (struct solve_cut){m->round, *at, u};
    return u;
}

static struct solve_verdict verdict_of(const struct cut *c, const struct solve_spot *at, bool *ret_refused)
{
    uint64_t used[FIT_DEVICES_MAX + 1];
    struct solve_used u = used_at(c, at);
    for (size_t d = 0; d <= c->x->n_devices; d++)
        used[d] = fit_add(u.bytes[d], c->others[d]);
    *ret_refused = u.refused;
    return solve_judge(c->x, used);
}

/* The longest stretch of at most `most` layers for device d with which it has `least` left; those behind it lie on the last device meanwhile. False: not even none at all. */
static bool longest(const struct cut *c, struct solve_spot *at, size_t d, uint32_t most, int64_t least)
{
    size_t last = c->x->n_devices - 1;
    uint32_t low = 0, high = most + 1; /* low - 1 is known to do */
    bool refused;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        at->shares[d] = mid;
        at->shares[last] = most - mid;
        if (verdict_of(c, at, &refused).over[d] >= least)
            low = mid + 1;
        else
            high = mid;
    }
    at->shares[d] = low > 0 ? low - 1 : 0;
    return low > 0;
}

static bool at_least(const struct cut *c, int projector, uint32_t sum, int64_t least, struct solve_spot *ret, struct solve_verdict *ret_verdict)
{
    struct solve_spot at = {.projector = projector};
    size_t last = c->x->n_devices - 1;
    uint32_t rest = sum;
    bool refused;
    for (size_t d = 0; d < last; d++) {
        if (!longest(c, &at, d, rest, least))
            return false;
        rest -= at.shares[d];
    }
    at.shares[last] = rest;
    struct solve_verdict v = verdict_of(c, &at, &refused);
    if (v.least < least)
        return false;
    *ret = at;
    *ret_verdict = v;
    return true;
}

/* Even stretches: some cut to start from. */
static struct solve_spot even(const struct cut *c, int projector, uint32_t sum)
{
    struct solve_spot at = {.projector = projector};
    size_t n = c->x->n_devices;
    for (size_t d = 0; d < n; d++)
        at.shares[d] = (uint32_t)(sum * (d + 1) / n - sum * d / n);
    return at;
}

/* No cut leaves more than an empty device has. */
static int64_t ceiling(const struct cut *c, int projector, uint32_t sum)
{
    int64_t most = INT64_MAX;
    bool refused;
    for (size_t d = 0; d < c->x->n_devices; d++) {
        struct solve_spot at = {.projector = projector};
        at.shares[d == 0 ? 1 : 0] = sum;
        struct solve_verdict v = verdict_of(c, &at, &refused);
        most = v.over[d] < most ? v.over[d] : most;
    }
    return most;
}

static void most_left(const struct cut *c, int projector, uint32_t sum, struct solve_spot *ret, struct solve_verdict *ret_verdict)
{
    bool refused;
    *ret = even(c, projector, sum);
    *ret_verdict = verdict_of(c, ret, &refused);
    int64_t high = ceiling(c, projector, sum);
    while (c->x->failed == 0 && ret_verdict->least < high) {
        int64_t low = ret_verdict->least, mid = low + 1 + (high - low - 1) / 2;
        if (!at_least(c, projector, sum, mid, ret, ret_verdict))
            high = mid - 1;
    }
}

/* The best cut that is one layer away and allowed. */
static bool repair(const struct cut *c, struct solve_spot *at, struct solve_verdict *v)
{
    size_t n = c->x->n_devices;
    struct solve_spot best = *at;
    struct solve_verdict best_verdict = {0};
    bool found = false, refused;
    for (size_t from = 0; from < n; from++)
        for (size_t to = 0; to < n; to++) {
            if (from == to || at->shares[from] == 0)
                continue;
            struct solve_spot next = *at;
            next.shares[from]--;
            next.shares[to]++;
            struct solve_verdict w = verdict_of(c, &next, &refused);
            if (refused || !w.fits || (found && !solve_better(&w, &best_verdict)))
                continue;
            best = next;
            best_verdict = w;
            found = true;
        }
    *at = best;
    *v = best_verdict;
    return found;
}

bool solve_many(struct solve *x, size_t service, const struct solve_way *w, const uint64_t *others, enum solve_mode mode, struct solve_spot *ret, struct solve_verdict *ret_verdict)
{
    const struct solve_service *s = &x->services[service];
    const struct cut c = {x, service, w, others};
    uint32_t sum = solve_share_sum(s, w->spill);
    bool found = false, refused;
    if (!memo(x, service, w))
        return false;
    for (int p = solve_projector_first(s, w); x->failed == 0 && p < solve_projector_end(x, s, w); p++) {
        struct solve_spot at;
        struct solve_verdict v;
        if (mode != SOLVE_MOST && !at_least(&c, p, sum, 0, &at, &v))
            continue;
        if (mode == SOLVE_ROOMY) {
            *ret = at;
            *ret_verdict = v;
            return true;
        }
        most_left(&c, p, sum, &at, &v);
        if (found && !solve_better(&v, ret_verdict))
            continue;
        v = verdict_of(&c, &at, &refused);
        if (mode == SOLVE_BEST && (!v.fits || refused) && (!v.devices_fit || !repair(&c, &at, &v)))
            continue;
        *ret = at;
        *ret_verdict = v;
        found = true;
    }
    return found && x->failed == 0;
}

bool solve_many_hasten(struct solve *x, size_t service, const struct solve_way *w, const uint64_t *others, struct solve_spot *spot, struct solve_verdict *ret_verdict)
{
    const struct cut c = {x, service, w, others};
    size_t n = x->n_devices;
    double speed = solve_speed_of(x, service, w, spot);
    bool any = false;
    if (!memo(x, service, w))
        return false;
    for (bool gained = true; gained && x->failed == 0;) {
        gained = false;
        for (size_t from = 0; from < n; from++)
            for (size_t to = 0; to < n; to++) {
                if (spot->shares[from] == 0 || solve_rate(x, to) <= solve_rate(x, from))
                    continue;
                struct solve_spot next = *spot;
                bool refused;
                next.shares[from]--;
                next.shares[to]++;
                struct solve_verdict v = verdict_of(&c, &next, &refused);
                if (refused || !v.fits)
                    continue;
                double then = solve_speed_of(x, service, w, &next);
                if (then <= speed)
                    continue;
                *spot = next;
                *ret_verdict = v;
                speed = then;
                any = gained = true;
            }
    }
    return any;
}
