/* SPDX-License-Identifier: MIT
 *
 * The decisions of demand_int.h. One action at a time: each changes the state, and the next look sees it. What fits is asked with sets of units; those that are on their way out still hold their memory, so that a start waits for their end,
 * but they count as gone when it is asked whether more must go.
 */
#include <errno.h>

#include "demand_int.h"

#define NONE SIZE_MAX

int demand_init(struct demand *d, size_t n, bool (*fits)(void *ctx, const bool *up), void *ctx)
{
    *d = (struct demand){.n = n, .fits = fits, .ctx = ctx, .due = UINT64_MAX};
    d->units = calloc(n ? n : 1, sizeof *d->units);
    d->up = calloc(n ? n : 1, sizeof *d->up);
    d->keep = calloc(n ? n : 1, sizeof *d->keep);
    d->order = calloc(n ? n : 1, sizeof *d->order);
    if (d->units && d->up && d->keep && d->order)
        return 0;
    demand_release(d);
    return -ENOMEM;
}

void demand_release(struct demand *d)
{
    free(d->units);
    free(d->up);
    free(d->keep);
    free(d->order);
    *d = (struct demand){.due = UINT64_MAX};
}

uint64_t demand_due(const struct demand *d)
{
    return d->due;
}

bool demand_startable(const struct demand *d, size_t unit, uint64_t now)
{
    return d->units[unit].failures == 0 || d->units[unit].retry_ms <= now;
}

/* ---- what is told ------------------------------------------------------------------------------------------- */

void demand_report_begin(struct demand *d)
{
    for (size_t i = 0; i < d->n; i++)
        d->units[i].active = d->units[i].waiting = 0;
}

void demand_report_active(struct demand *d, size_t unit, uint64_t active)
{
    d->units[unit].active = active;
}

/* Whether nothing that is up must go for it. */
static bool fits_beside(struct demand *d, size_t unit)
{
    for (size_t i = 0; i < d->n; i++)
        d->up[i] = d->units[i].state != DEMAND_DOWN;
    d->up[unit] = true;
    return d->fits(d->ctx, d->up);
}

/* Of units that do the same the one that is there soonest; NONE when none may be started yet. */
static size_t choose(struct demand *d, const size_t *units, size_t n, uint64_t now)
{
    size_t first = NONE;
    for (size_t i = 0; i < n; i++) {
        const struct demand_unit *u = &d->units[units[i]];
        if (u->state == DEMAND_LOADING || u->state == DEMAND_READY)
            return units[i];
    }
    for (size_t i = 0; i < n; i++) {
        const struct demand_unit *u = &d->units[units[i]];
        if (u->waiting > 0) /* it has been chosen already */
            return units[i];
        if (!demand_startable(d, units[i], now))
            continue;
        if (u->state == DEMAND_DOWN && n > 1 && fits_beside(d, units[i]))
            return units[i];
        first = first == NONE ? units[i] : first;
    }
    return first;
}

void demand_report_wait(struct demand *d, const size_t *units, size_t n, uint64_t waiting, uint64_t since_ms, uint64_t now)
{
    size_t at = choose(d, units, n, now);
    if (at == NONE || waiting == 0)
        return;
    struct demand_unit *u = &d->units[at];
    if (u->waiting == 0 || since_ms < u->since_ms)
        u->since_ms = since_ms;
    u->waiting += waiting;
}

void demand_report_end(struct demand *d, uint64_t seq, uint64_t now)
{
    d->seq = seq;
    for (size_t i = 0; i < d->n; i++)
        if (d->units[i].active > 0)
            d->units[i].used_ms = now;
}

void demand_closed(struct demand *d, size_t unit, uint64_t seq)
{
    d->units[unit].seq = seq;
}

void demand_loading(struct demand *d, size_t unit, uint64_t now)
{
    struct demand_unit *u = &d->units[unit];
    if (u->state == DEMAND_LOADING)
        return;
    u->state = DEMAND_LOADING;
    u->began_ms = now;
}

void demand_ready(struct demand *d, size_t unit, uint64_t now)
{
    struct demand_unit *u = &d->units[unit];
    u->load_ms = now - u->began_ms;
    u->ready_ms = u->used_ms = now;
    u->state = DEMAND_READY;
    u->failures = 0;
    u->preload = false;
}

/* It may be started again later: the later, the more often this was said. */
static void put_off(struct demand_unit *u, unsigned times, uint64_t now)
{
    uint64_t ms = DEMAND_RETRY_MIN_MS;
    for (unsigned i = 1; i < times && ms < DEMAND_RETRY_MAX_MS; i++)
        ms *= 2;
    u->failures = times;
    u->retry_ms = now + (ms < DEMAND_RETRY_MAX_MS ? ms : DEMAND_RETRY_MAX_MS);
}

void demand_failed(struct demand *d, size_t unit, uint64_t now)
{
    struct demand_unit *u = &d->units[unit];
    put_off(u, u->failures + 1, now);
    u->state = DEMAND_DOWN;
    u->waiting = u->active = 0; /* they are answered */
    u->preload = false;
}

void demand_gone(struct demand *d, size_t unit)
{
    struct demand_unit *u = &d->units[unit];
    if (u->state == DEMAND_STOPPING)
        u->deaths = 0;
    u->state = DEMAND_DOWN;
    u->active = 0;
}

void demand_died(struct demand *d, size_t unit, uint64_t now)
{
    struct demand_unit *u = &d->units[unit];
    u->deaths = now - u->ready_ms < DEMAND_STABLE_MS ? u->deaths + 1 : 1;
    if (u->deaths > 1)
        put_off(u, u->deaths - 1, now);
    u->preload = u->pinned;
    demand_gone(d, unit);
}

/* ---- what to do --------------------------------------------------------------------------------------------- */

static void at_latest(struct demand *d, uint64_t ms)
{
    if (ms < d->due)
        d->due = ms;
}

static uint64_t load_of(const struct demand_unit *u)
{
    return u->load_ms ? u->load_ms : DEMAND_LOAD_GUESS_MS;
}

/* When its turn is over; while it works on nothing for more than a moment it is over sooner. */
static uint64_t turn_ends(const struct demand_unit *u)
{
    uint64_t turn = 2 * load_of(u);
    turn = turn < DEMAND_TURN_MIN_MS ? DEMAND_TURN_MIN_MS : turn > DEMAND_TURN_MAX_MS ? DEMAND_TURN_MAX_MS : turn;
    uint64_t end = u->ready_ms + turn, pause = load_of(u) / 2 < DEMAND_PAUSE_MS ? load_of(u) / 2 : DEMAND_PAUSE_MS;
    if (u->active == 0 && u->waiting == 0 && u->used_ms + pause < end)
        end = u->used_ms + pause;
    return end;
}

/* What is lost with it for each moment that it stood idle: the less, the sooner it goes. Busy ones go last, the one that had its turn longest first. */
static double worth(const struct demand_unit *u, uint64_t now)
{
    double idle = (double)(now - u->used_ms) + 1, load = (double)load_of(u);
    if (u->active > 0)
        return 1e15 - (double)(now - u->ready_ms);
    return load / idle;
}

static void insert_by_worth(struct demand *d, size_t n, size_t unit, uint64_t now)
{
    size_t at = n;
    for (; at > 0 && worth(&d->units[d->order[at - 1]], now) > worth(&d->units[unit], now); at--)
        d->order[at] = d->order[at - 1];
    d->order[at] = unit;
}

/* The unit to close so that target fits; NONE: nothing helps yet, or it is enough to wait for those that go. *ret_never: whatever goes, it does not fit. */
static size_t find_victim(struct demand *d, size_t target, uint64_t now, bool *ret_never)
{
    size_t n = 0;
    bool later = false;
    *ret_never = false;
    for (size_t i = 0; i < d->n; i++) {
        const struct demand_unit *u = &d->units[i];
        d->keep[i] = u->state == DEMAND_LOADING || u->state == DEMAND_READY;
        if (u->state != DEMAND_READY || u->pinned || i == target) {
            later = later || u->state == DEMAND_LOADING;
        } else if (turn_ends(u) > now) {
            at_latest(d, turn_ends(u));
            later = true;
        } else {
            insert_by_worth(d, n++, i, now);
        }
    }
    d->keep[target] = true;
    if (d->fits(d->ctx, d->keep))
        return NONE;
    size_t gone = 0;
    while (gone < n) {
        d->keep[d->order[gone++]] = false;
        if (d->fits(d->ctx, d->keep))
            break;
    }
    if (!d->fits(d->ctx, d->keep)) {
        *ret_never = !later;
        return NONE;
    }
    /* Who went in vain stays. */
    for (size_t i = 0; i + 1 < gone; i++) {
        d->keep[d->order[i]] = true;
        if (!d->fits(d->ctx, d->keep))
            d->keep[d->order[i]] = false;
    }
    for (size_t i = 0; i < gone; i++)
        if (!d->keep[d->order[i]])
            return d->order[i];
    return NONE;
}

/* What is closing: it goes when it works on nothing and the router knows; one that was only idle stays when it is wanted again. */
static bool settle_closing(struct demand *d, size_t i, uint64_t now, struct demand_action *ret)
{
    struct demand_unit *u = &d->units[i];
    if (!u->for_another && u->waiting > 0) {
        u->state = DEMAND_READY;
        u->used_ms = now;
        *ret = (struct demand_action){DEMAND_OPEN, i};
        return true;
    }
    if (u->active > 0 || u->seq == 0 || d->seq < u->seq)
        return false;
    u->state = DEMAND_STOPPING;
    *ret = (struct demand_action){DEMAND_STOP, i};
    return true;
}

static bool close_unit(struct demand *d, size_t i, bool for_another, struct demand_action *ret)
{
    d->units[i].state = DEMAND_CLOSING;
    d->units[i].for_another = for_another;
    d->units[i].seq = 0;
    *ret = (struct demand_action){DEMAND_CLOSE, i};
    return true;
}

static bool stop_idle(struct demand *d, size_t i, uint64_t now, struct demand_action *ret)
{
    const struct demand_unit *u = &d->units[i];
    if (!u->idle_stop_ms || u->pinned || u->active > 0 || u->waiting > 0)
        return false;
    if (now - u->used_ms >= u->idle_stop_ms)
        return close_unit(d, i, false, ret);
    at_latest(d, u->used_ms + u->idle_stop_ms);
    return false;
}

static bool wanted(struct demand *d, size_t i, uint64_t now)
{
    const struct demand_unit *u = &d->units[i];
    if (u->state != DEMAND_DOWN || (u->waiting == 0 && !u->preload))
        return false;
    if (demand_startable(d, i, now))
        return true;
    at_latest(d, u->retry_ms);
    return false;
}

static bool before(const struct demand_unit *a, const struct demand_unit *b)
{
    if ((a->waiting > 0) != (b->waiting > 0)) /* a request before a preload */
        return a->waiting > 0;
    return a->since_ms < b->since_ms;
}

static size_t longest_waiting(struct demand *d, uint64_t now)
{
    size_t first = NONE;
    for (size_t i = 0; i < d->n; i++)
        if (wanted(d, i, now) && (first == NONE || before(&d->units[i], &d->units[first])))
            first = i;
    return first;
}

static bool start(struct demand *d, size_t i, uint64_t now, struct demand_action *ret)
{
    demand_loading(d, i, now);
    *ret = (struct demand_action){DEMAND_START, i};
    return true;
}

/* Others that are wanted may start when they fit beside all that is up, and beside the first one and what will be up with it (keep, as find_victim left it). */
static bool start_beside(struct demand *d, size_t first, uint64_t now, struct demand_action *ret)
{
    for (size_t i = 0; i < d->n; i++) {
        if (i == first || !wanted(d, i, now) || !fits_beside(d, i))
            continue;
        d->keep[i] = true;
        if (d->fits(d->ctx, d->keep))
            return start(d, i, now, ret);
        d->keep[i] = false;
    }
    return false;
}

static bool serve_waiting(struct demand *d, uint64_t now, struct demand_action *ret)
{
    size_t first = longest_waiting(d, now);
    bool never;
    if (first == NONE)
        return false;
    if (fits_beside(d, first))
        return start(d, first, now, ret);
    size_t victim = d->units[first].waiting > 0 ? find_victim(d, first, now, &never) : NONE;
    if (victim != NONE)
        return close_unit(d, victim, true, ret);
    if (d->units[first].waiting == 0) { /* a preload takes nobody's place */
        d->units[first].preload = false;
        return serve_waiting(d, now, ret);
    }
    if (never) {
        demand_failed(d, first, now);
        *ret = (struct demand_action){DEMAND_REFUSE, first};
        return true;
    }
    return start_beside(d, first, now, ret);
}

bool demand_next(struct demand *d, uint64_t now, struct demand_action *ret)
{
    d->due = UINT64_MAX;
    for (size_t i = 0; i < d->n; i++) {
        const struct demand_unit *u = &d->units[i];
        if (u->state == DEMAND_CLOSING && settle_closing(d, i, now, ret))
            return true;
        if (u->state == DEMAND_READY && stop_idle(d, i, now, ret))
            return true;
        if (u->state == DEMAND_DOWN && u->failures && u->retry_ms > now)
            at_latest(d, u->retry_ms); /* the router hears that it may be asked for again */
    }
    return serve_waiting(d, now, ret);
}
