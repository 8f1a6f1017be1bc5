/* SPDX-License-Identifier: MIT
 *
 * Where services go when everything else is decided. Over two devices there is one number to find, the share of the first: the more it gets the less is left on it and the more on the second, slot by slot and exactly as
 * predicted, so the balance point is found by bisection over real predictions, and from there outward every place comes in order of what it leaves. Two services are tried in pairs; more by exchange, pair after pair.
 */
#include "solve_int.h"

/* ---- one prediction ------------------------------------------------------------------------------------------------------ */

static uint32_t layers_placed(const struct solve_service *s, uint32_t spill)
{
    return spill > s->n_moe ? s->n_layers - (uint32_t)(spill - s->n_moe) : s->n_layers;
}

uint32_t solve_share_sum(const struct solve_service *s, uint32_t spill)
{
    return s->share_sum ? s->share_sum : layers_placed(s, spill);
}

void solve_shape(const struct solve_service *s, const struct solve_way *w, const struct solve_spot *at, size_t n_devices, struct fit_shape *ret)
{
    *ret = s->shape;
    ret->context = w->context;
    ret->slots = s->slots[w->slots];
    ret->ubatch = s->ubatches[w->ubatch];
    if (s->kv[w->kv])
        ret->k_type = ret->v_type = s->kv[w->kv];
    if (w->drafter)
        ret->spec &= ~(unsigned)FIT_SPEC_CONTEXT;
    if (w->spill > 0 && s->n_moe > 0)
        ret->cpu_moe = s->moe[w->spill < s->n_moe ? w->spill - 1 : s->n_moe - 1];
    if (w->spill > s->n_moe)
        ret->gpu_layers = layers_placed(s, w->spill);
    if (w->projector)
        ret->projector_device = -2;
    else if (s->free_projector)
        ret->projector_device = at->projector;
    if (!s->free_split)
        return;
    ret->n_split = n_devices;
    for (size_t d = 0; d < n_devices; d++)
        ret->split[d] = at->shares[d];
}

struct solve_used solve_eval(struct solve *x, size_t service, const struct solve_way *w, const struct solve_spot *at)
{
    const struct solve_service *s = &x->services[service];
    struct solve_used u = {.known = true, .refused = true};
    if (x->failed < 0)
        return u;
    solve_shape(s, w, at, x->n_devices, &x->work);
    x->failed = fit_predict_prepared(s->prepared[w->drafter], &x->work, NULL, &x->result, x->err);
    if (x->failed < 0)
        return u;
    u.refused = false;
    for (size_t i = 0; i < x->result.n_notes; i++)
        u.refused |= x->result.notes[i].severity == FIT_REFUSED;
    for (size_t d = 0; d <= x->n_devices; d++)
        u.bytes[d] = x->result.use[d].used;
    u.refused = u.refused || fit_known_bad(s->prepared[w->drafter], s->space->known_bad, s->space->n_known_bad, &x->work, &x->result, &x->other);
    return u;
}

double solve_speed_of(struct solve *x, size_t service, const struct solve_way *w, const struct solve_spot *at)
{
    const struct solve_service *s = &x->services[service];
    struct fit_speed speed;
    (void)solve_eval(x, service, w, at);
    if (x->failed < 0)
        return 0;
    fit_speed_prepared(s->prepared[w->drafter], &s->traffic[w->drafter], &x->work, &x->result, x->depth < x->result.n_ctx_seq ? x->depth : x->result.n_ctx_seq, &speed);
    return speed.decode_tok_s;
}

/* ---- judgement ----------------------------------------------------------------------------------------------------------- */

static int64_t difference(uint64_t free, uint64_t used)
{
    return (int64_t)(free > FIT_BYTES_MAX ? FIT_BYTES_MAX : free) - (int64_t)(used > FIT_BYTES_MAX ? FIT_BYTES_MAX : used);
}

void solve_left(const struct solve *x, const uint64_t *used, int64_t *ret_left)
{
    uint64_t host_used = used[x->n_devices];
    for (size_t d = 0; d < x->n_devices; d++)
        if (x->devices[d].shared)
            host_used = fit_add(host_used, used[d]);
    int64_t host = x->host ? difference(x->host->free_bytes, host_used) : 0;
    for (size_t d = 0; d < x->n_devices; d++) {
        ret_left[d] = difference(x->devices[d].free_bytes, used[d]);
        if (x->devices[d].shared && x->host && host < ret_left[d])
            ret_left[d] = host;
    }
    ret_left[x->n_devices] = host;
}

struct solve_verdict solve_judge(const struct solve *x, const uint64_t *used)
{
    struct solve_verdict v = {.least = INT64_MAX};
    int64_t left[FIT_DEVICES_MAX + 1], low = INT64_MAX, high = INT64_MIN;
    solve_left(x, used, left);
    for (size_t d = 0; d < x->n_devices; d++) {
        v.over[d] = left[d] - difference(x->devices[d].floor_bytes, 0);
        v.least = v.over[d] < v.least ? v.over[d] : v.least;
        low = left[d] < low ? left[d] : low;
        high = left[d] > high ? left[d] : high;
    }
    int64_t host = x->host ? left[x->n_devices] - difference(x->host->floor_bytes, 0) : 0;
    v.least = x->n_devices > 0 ? v.least : host;
    v.gap = x->n_devices > 1 ? (uint64_t)high - (uint64_t)low : 0;
    v.devices_fit = v.least >= 0;
    v.host_fits = host >= 0;
    v.fits = v.devices_fit && v.host_fits && (x->slack == 0 || v.gap <= x->slack);
    return v;
}

bool solve_better(const struct solve_verdict *a, const struct solve_verdict *b)
{
    return a->least != b->least ? a->least > b->least : a->gap < b->gap;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------------ */

bool solve_same_way(const struct solve_way *a, const struct solve_way *b)
{
    return a->context == b->context && a->slots == b->slots && a->drafter == b->drafter && a->kv == b->kv && a->ubatch == b->ubatch && a->projector == b->projector && a->spill == b->spill;
}

void solve_forget(struct solve *x)
{
    for (size_t s = 0; s < x->n; s++)
        while (x->lines[s]) {
            struct solve_line *l = x->lines[s];
            x->lines[s] = l->next;
            l->next = x->idle;
            x->idle = l;
        }
}

static struct solve_line *line_new(struct solve *x, uint32_t n)
{
    for (struct solve_line **at = &x->idle; *at; at = &(*at)->next)
        if ((*at)->room >= n) {
            struct solve_line *l = *at;
            *at = l->next;
            for (uint32_t i = 0; i < n; i++)
                l->points[i].known = false;
            return l;
        }
    struct solve_line *l = arena_alloc(x->scratch, 1, sizeof(*l));
    struct solve_used *points = arena_alloc(x->scratch, n, sizeof(*points));
    if (!l || !points) {
        x->failed = err_nomem(x->err);
        return NULL;
    }
    l->points = points;
    l->room = n;
    return l;
}

/* NULL without memory. */
static struct solve_line *line_of(struct solve *x, size_t service, const struct solve_way *w, int projector)
{
    const struct solve_service *s = &x->services[service];
    for (struct solve_line **at = &x->lines[service]; *at; at = &(*at)->next) {
        struct solve_line *l = *at;
        if (l->projector != projector || !solve_same_way(&l->way, w))
            continue;
        *at = l->next; /* to the front: it will be asked for again */
        l->next = x->lines[service];
        return x->lines[service] = l;
    }
    uint32_t n = s->free_split && x->n_devices == 2 ? solve_share_sum(s, w->spill) + 1 : 1;
    struct solve_line *l = line_new(x, n);
    if (!l)
        return NULL;
    l->way = *w;
    l->projector = projector;
    l->n = n;
    l->next = x->lines[service];
    x->lines[service] = l;
    return l;
}

static struct solve_spot spot_on(const struct solve_line *l, uint32_t a)
{
    return (struct solve_spot){.shares = {a, l->n - 1 - a}, .projector = l->projector};
}

static const struct solve_used *point_of(struct solve *x, size_t service, struct solve_line *l, uint32_t a)
{
    struct solve_used *u = &l->points[a];
    if (!u->known) {
        struct solve_spot at = spot_on(l, a);
        *u = solve_eval(x, service, &l->way, &at);
    }
    return u;
}

static struct solve_verdict verdict_on(struct solve *x, size_t service, struct solve_line *l, uint32_t a, const uint64_t *others, bool *ret_refused)
{
    const struct solve_used *u = point_of(x, service, l, a);
    uint64_t used[FIT_DEVICES_MAX + 1];
    for (size_t d = 0; d <= x->n_devices; d++)
        used[d] = fit_add(u->bytes[d], others[d]);
    *ret_refused = u->refused;
    return solve_judge(x, used);
}

static bool balanced_at(struct solve *x, size_t service, struct solve_line *l, uint32_t a, const uint64_t *others)
{
    bool refused;
    struct solve_verdict v = verdict_on(x, service, l, a, others, &refused);
    return v.over[0] <= v.over[1];
}

/* The smallest share of the first device with which no more is left on it than on the second. */
static uint32_t crossing(struct solve *x, size_t service, struct solve_line *l, const uint64_t *others)
{
    uint32_t low = 0, high = l->n - 1, step = 1; /* the answer is in [low, high]; at the end it is taken for granted */
    uint32_t at = (uint32_t)(x->near[service] * high);
    while (low < high) {
        if (at < low || at >= high)
            at = low + (high - low) / 2;
        if (balanced_at(x, service, l, at, others)) {
            high = at;
            at = at >= step ? at - step : 0;
        } else {
            low = at + 1;
            at = at + step;
        }
        step *= 2;
    }
    x->near[service] = l->n > 1 ? (double)low / (l->n - 1) : 0;
    return low;
}

/* The places of a line in order of what they leave; the first that will do. Only what leaves more than `than` is of interest. */
/* The place where the last answer was, when the devices have room there. */
static bool roomy(struct solve *x, size_t service, struct solve_line *l, const uint64_t *others, uint32_t *ret, struct solve_verdict *ret_verdict)
{
    bool refused;
    *ret = (uint32_t)(x->near[service] * (l->n - 1) + 0.5);
    *ret_verdict = verdict_on(x, service, l, *ret, others, &refused);
    return ret_verdict->devices_fit;
}

/* What lies left and right of those places of a line that were looked at. */
struct ends {
    uint32_t left, right; /* next ones: left - 1 and right */
    bool have_left, have_right, left_refused, right_refused;
    struct solve_verdict at_left, at_right;
};

/* Looks at both; true: the left one is the better. */
static bool look(struct solve *x, size_t service, struct solve_line *l, const uint64_t *others, struct ends *e)
{
    if (!e->have_right && e->right < l->n)
        e->at_right = verdict_on(x, service, l, e->right, others, &e->right_refused);
    if (!e->have_left && e->left > 0)
        e->at_left = verdict_on(x, service, l, e->left - 1, others, &e->left_refused);
    e->have_right = e->right < l->n;
    e->have_left = e->left > 0;
    return e->have_left && (!e->have_right || solve_better(&e->at_left, &e->at_right));
}

static bool walk(struct solve *x, size_t service, struct solve_line *l, const uint64_t *others, enum solve_mode mode, const struct solve_verdict *than, uint32_t *ret, struct solve_verdict *ret_verdict)
{
    if (mode == SOLVE_ROOMY && !than && roomy(x, service, l, others, ret, ret_verdict))
        return true;
    uint32_t middle = l->n > 1 ? crossing(x, service, l, others) : 0;
    struct ends e = {.left = middle, .right = middle};
    while (x->failed == 0 && (e.left > 0 || e.right < l->n)) {
        bool left = look(x, service, l, others, &e);
        const struct solve_verdict *v = left ? &e.at_left : &e.at_right;
        if ((mode == SOLVE_BEST && !v->devices_fit) || (than && !solve_better(v, than)))
            return false;
        if (mode != SOLVE_BEST || (v->fits && !(left ? e.left_refused : e.right_refused))) {
            *ret = left ? e.left - 1 : e.right;
            *ret_verdict = *v;
            return true;
        }
        if (left) {
            e.left--;
            e.have_left = false;
        } else {
            e.right++;
            e.have_right = false;
        }
    }
    return false;
}

/* ---- one service, others fixed ------------------------------------------------------------------------------------------------ */

int solve_projector_first(const struct solve_service *s, const struct solve_way *w)
{
    return s->free_projector && !w->projector ? 0 : -1;
}

int solve_projector_end(const struct solve *x, const struct solve_service *s, const struct solve_way *w)
{
    return s->free_projector && !w->projector ? (int)x->n_devices : 0;
}

/* than: as walk; NULL: anything. */
static bool place_one(struct solve *x, size_t service, const struct solve_way *w, const uint64_t *others, enum solve_mode mode, const struct solve_verdict *than, struct solve_spot *ret, struct solve_verdict *ret_verdict)
{
    const struct solve_service *s = &x->services[service];
    if (x->n_devices > 2 && s->free_split) {
        struct solve_verdict v;
        struct solve_spot spot;
        if (!solve_many(x, service, w, others, mode, &spot, &v) || (than && !solve_better(&v, than)))
            return false;
        *ret = spot;
        *ret_verdict = v;
        return true;
    }
    bool found = false;
    for (int p = solve_projector_first(s, w); x->failed == 0 && p < solve_projector_end(x, s, w); p++) {
        struct solve_line *l = line_of(x, service, w, p);
        struct solve_verdict v;
        uint32_t a;
        if (!l || !walk(x, service, l, others, mode, found ? ret_verdict : than, &a, &v))
            continue;
        *ret = spot_on(l, a);
        *ret_verdict = v;
        found = true;
    }
    return found;
}

/* ---- several services ------------------------------------------------------------------------------------------------------------ */

/* Used by all services but up to two; SIZE_MAX: none. */
static void used_by_others(struct solve *x, const struct solve_way *ways, const struct solve_spot *spots, size_t but, size_t and_but, uint64_t *ret)
{
    memset(ret, 0, (x->n_devices + 1) * sizeof(*ret));
    for (size_t s = 0; s < x->n; s++) {
        if (s == but || s == and_but)
            continue;
        struct solve_used u = solve_eval(x, s, &ways[s], &spots[s]);
        for (size_t d = 0; d <= x->n_devices; d++)
            ret[d] = fit_add(ret[d], u.bytes[d]);
    }
}

/* Every place of service i with the best of service k for it. */
static bool place_pair(struct solve *x, const struct solve_way *ways, size_t i, size_t k, const uint64_t *others, enum solve_mode mode, struct solve_spot *spots, struct solve_verdict *ret_verdict)
{
    const struct solve_service *s = &x->services[i];
    bool found = false;
    for (int p = solve_projector_first(s, &ways[i]); p < solve_projector_end(x, s, &ways[i]); p++) {
        struct solve_line *l = line_of(x, i, &ways[i], p);
        for (uint32_t a = 0; l && x->failed == 0 && a < l->n; a++) {
            const struct solve_used *u = point_of(x, i, l, a);
            uint64_t used[FIT_DEVICES_MAX + 1];
            struct solve_spot spot;
            struct solve_verdict v;
            if (mode == SOLVE_BEST && u->refused)
                continue;
            for (size_t d = 0; d <= x->n_devices; d++)
                used[d] = fit_add(others[d], u->bytes[d]);
            if (!place_one(x, k, &ways[k], used, mode, found ? ret_verdict : NULL, &spot, &v))
                continue;
            spots[i] = spot_on(l, a);
            spots[k] = spot;
            *ret_verdict = v;
            found = true;
        }
    }
    return found;
}

static bool all_allowed(struct solve *x, const struct solve_way *ways, const struct solve_spot *spots)
{
    for (size_t s = 0; s < x->n; s++)
        if (solve_eval(x, s, &ways[s], &spots[s]).refused)
            return false;
    return true;
}

/* One after the other, then again with the others fixed, until nothing gains. */
static bool place_by_exchange(struct solve *x, const struct solve_way *ways, enum solve_mode mode, struct solve_spot *spots, struct solve_verdict *ret_verdict)
{
    uint64_t others[FIT_DEVICES_MAX + 1] = {0};
    struct solve_verdict v = {0};
    for (size_t s = 0; s < x->n; s++) {
        if (!place_one(x, s, &ways[s], others, SOLVE_MOST, NULL, &spots[s], &v))
            return false;
        struct solve_used u = solve_eval(x, s, &ways[s], &spots[s]);
        for (size_t d = 0; d <= x->n_devices; d++)
            others[d] = fit_add(others[d], u.bytes[d]);
    }
    bool pairs = x->n_devices <= 2;
    for (bool gained = true; gained && x->failed == 0;) {
        gained = false;
        for (size_t i = 0; i < x->n; i++)
            for (size_t k = pairs ? i + 1 : i; k < (pairs ? x->n : i + 1); k++) {
                struct solve_spot try[FIT_SERVICES_MAX];
                struct solve_verdict w;
                used_by_others(x, ways, spots, i, k, others);
                bool found = pairs ? place_pair(x, ways, i, k, others, SOLVE_MOST, try, &w) : place_one(x, i, &ways[i], others, SOLVE_MOST, NULL, &try[i], &w);
                if (!found || !solve_better(&w, &v))
                    continue;
                spots[i] = try[i];
                if (pairs)
                    spots[k] = try[k];
                v = w;
                gained = true;
            }
    }
    *ret_verdict = v;
    return x->failed == 0 && (mode != SOLVE_BEST || (v.fits && all_allowed(x, ways, spots)));
}

bool solve_place(struct solve *x, const struct solve_way *ways, enum solve_mode mode, struct solve_spot *ret, struct solve_verdict *ret_verdict)
{
    static const uint64_t nobody[FIT_DEVICES_MAX + 1];
    bool found;
    if (x->n == 1)
        found = place_one(x, 0, &ways[0], nobody, mode, NULL, &ret[0], ret_verdict);
    else if (x->n == 2 && x->n_devices <= 2)
        found = place_pair(x, ways, 0, 1, nobody, mode, ret, ret_verdict);
    else
        found = place_by_exchange(x, ways, mode, ret, ret_verdict);
    return found && x->failed == 0;
}

/* ---- speed ------------------------------------------------------------------------------------------------------------------- */

uint64_t solve_rate(const struct solve *x, size_t device)
{
    const struct fit_device *v = &x->devices[device];
    return v->bandwidth_bytes_s == 0 && v->shared && x->host ? x->host->bandwidth_bytes_s : v->bandwidth_bytes_s;
}

/* On a line: the largest share of the faster device that fits. */
static bool extreme(struct solve *x, size_t service, struct solve_line *l, const uint64_t *others, uint32_t *ret, struct solve_verdict *ret_verdict)
{
    bool first = solve_rate(x, 0) > solve_rate(x, 1), refused;
    uint32_t low = 0, high = l->n; /* places, counted from where the faster device has nothing: those below low have room on it */
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        struct solve_verdict v = verdict_on(x, service, l, first ? mid : l->n - 1 - mid, others, &refused);
        if (v.over[first ? 0 : 1] >= 0)
            low = mid + 1;
        else
            high = mid;
    }
    while (low > 0 && x->failed == 0) {
        uint32_t a = first ? low - 1 : l->n - low;
        struct solve_verdict v = verdict_on(x, service, l, a, others, &refused);
        if (!v.devices_fit)
            return false; /* and the slower device has even less room from here on */
        if (v.fits && !refused) {
            *ret = a;
            *ret_verdict = v;
            return true;
        }
        low--;
    }
    return false;
}

static bool hasten_one(struct solve *x, size_t service, const struct solve_way *w, const uint64_t *others, struct solve_spot *spot, struct solve_verdict *verdict)
{
    const struct solve_service *s = &x->services[service];
    if (!s->free_split || x->n_devices < 2)
        return false;
    if (x->n_devices > 2)
        return solve_many_hasten(x, service, w, others, spot, verdict);
    double best = solve_speed_of(x, service, w, spot);
    bool found = false;
    for (int p = solve_projector_first(s, w); x->failed == 0 && p < solve_projector_end(x, s, w); p++) {
        struct solve_line *l = line_of(x, service, w, p);
        struct solve_verdict v;
        uint32_t a;
        if (!l || !extreme(x, service, l, others, &a, &v))
            continue;
        struct solve_spot at = spot_on(l, a);
        double speed = solve_speed_of(x, service, w, &at);
        if (speed > best || (found && speed == best && solve_better(&v, verdict))) {
            best = speed;
            *spot = at;
            *verdict = v;
            found = true;
        }
    }
    return found;
}

bool solve_hasten(struct solve *x, const struct solve_way *ways, struct solve_spot *spots, struct solve_verdict *ret_verdict)
{
    bool gained = false;
    if (!x->unequal)
        return false;
    for (size_t s = 0; s < x->n && x->failed == 0; s++) {
        uint64_t others[FIT_DEVICES_MAX + 1];
        used_by_others(x, ways, spots, s, SIZE_MAX, others);
        gained |= hasten_one(x, s, &ways[s], others, &spots[s], ret_verdict);
    }
    return gained && x->failed == 0;
}
