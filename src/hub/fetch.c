/* SPDX-License-Identifier: MIT
 *
 * Many files over few connections: which file is next, which connection takes which segments of it, when what failed is tried again, and when all is over. Runs on the network's thread, step by step; what the answers mean is in
 * fetch_lane.c.
 *
 * Segments are given out in ascending order, so that one follower can hash a file from its beginning while its end is still on its way.
 */
#include "fetch_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>

#define IDLE_US 200000
#define SLOW_FACTOR 8     /* a lane slower by this than the fastest gives its work to an idle one */
#define SLOW_AFTER_US 5000000

/* ---- what is told ------------------------------------------------------------------------------------------------------ */

void fetch_note(struct hub_way *w, enum event_level level, const char *fmt, ...)
{
    struct hub_fetch *f = w->fetch;
    va_list ap;
    pthread_mutex_lock(&f->lock);
    if (f->n_notes < HUB_NOTES_MAX) {
        struct hub_note *n = &f->notes[f->n_notes++];
        n->level = level;
        n->subject = w->want->subject;
        va_start(ap, fmt);
        (void)vsnprintf(n->text, sizeof n->text, fmt, ap);
        va_end(ap);
    }
    pthread_mutex_unlock(&f->lock);
}

static void set_state(struct hub_way *w, enum hub_way_state state)
{
    pthread_mutex_lock(&w->fetch->lock);
    w->state = state;
    pthread_mutex_unlock(&w->fetch->lock);
}

void way_drop_lanes(struct hub_way *w)
{
    for (size_t i = 0; i < w->fetch->n_lanes; i++)
        if (w->fetch->lanes[i].w == w) {
            hub_exchange_cancel(&w->fetch->lanes[i].x);
            lane_idle(&w->fetch->lanes[i]);
        }
}

static void leave(struct hub_way *w, enum hub_way_state state)
{
    way_drop_lanes(w);
    follow_stop(w);
    set_state(w, state); /* the keeper looks no more */
    if (!w->known)
        part_close(w);
    w->fetch->n_active--;
}

void way_fail(struct hub_way *w, const struct err *err)
{
    struct err kept = *err;
    leave(w, WAY_FAILED);
    w->err = kept;
    fetch_note(w, EVENT_ERROR, "%s", kept.text);
}

void way_again(struct hub_way *w, const struct err *why, uint64_t wait_ms, uint64_t now_us)
{
    struct hub_fetch *f = w->fetch;
    uint64_t came = w->done_bytes + w->copied_bytes;
    if (now_us < w->again_us)
        return; /* several lanes met the same fault */
    /* more than there ever was: a server without ranges brings the same bytes again, which is no progress */
    if (came > w->calm_bytes && came - w->calm_bytes >= 65536)
        w->fails = 0;
    if (came > w->calm_bytes)
        w->calm_bytes = came;
    if (++w->fails > f->hub->retries) {
        struct err last = *why;
        way_fail(w, (err_prefix(&last, "given up after %u tries in a row; what came is kept", w->fails), &last));
        return;
    }
    uint64_t pause = hub_pause_us(w->fails);
    if (wait_ms * 1000 > pause)
        pause = wait_ms * 1000;
    if (wait_ms && now_us + pause > f->hold_us)
        f->hold_us = now_us + pause;
    pthread_mutex_lock(&f->lock);
    w->again_us = now_us + pause;
    pthread_mutex_unlock(&f->lock);
    char wait[UNITS_TEXT];
    /* the first pauses of a connection that merely broke are nobody's business */
    if (w->fails > 1 || wait_ms)
        fetch_note(w, EVENT_WARN, "%s; again in %s (%u of %u)", why->text, units_show_ms(pause / 1000, wait), w->fails, f->hub->retries);
    else
        fetch_note(w, EVENT_DEBUG, "%s", why->text);
}

/* ---- beginning and ending a file ------------------------------------------------------------------------------------------ */

static void begin(struct hub_way *w)
{
    struct err err;
    w->fetch->n_active++;
    set_state(w, WAY_ACTIVE);
    int r = 0;
    if (!w->known) {
        r = part_open(w, &err);
        if (r == 0 && w->bytes != HUB_UNKNOWN && w->got)
            r = follow_start(w, 0, &err);
    }
    w->calm_bytes = w->done_bytes;
    if (r < 0)
        way_fail(w, &err);
    else if (w->done_bytes)
        fetch_note(w, EVENT_DEBUG, "taken up at %" PRIu64 " of %" PRIu64 " bytes", w->done_bytes, w->bytes);
}

static void succeed(struct hub_way *w)
{
    char size[UNITS_TEXT];
    leave(w, WAY_DONE);
    units_show_bytes(w->bytes, size);
    if (w->known)
        return;
    if (w->pinned)
        fetch_note(w, EVENT_INFO, "%s, proven", size);
    else
        fetch_note(w, EVENT_INFO, "%s, not pinned", size);
}

/* The follower has come to an end, or the keeper to a fault. */
static void look_at_proof(struct hub_way *w)
{
    struct err err = {.code = 0};
    pthread_mutex_lock(&w->fetch->lock);
    enum hub_proof p = w->proof;
    struct err disk = w->disk;
    pthread_mutex_unlock(&w->fetch->lock);
    if (disk.code) {
        way_fail(w, &disk);
        return;
    }
    if (p == PROOF_NONE || p == PROOF_RUNNING)
        return;
    follow_stop(w);
    if (p == PROOF_GOOD) {
        succeed(w);
    } else if (p == PROOF_ERROR) {
        err = w->err;
        way_fail(w, &err);
    } else {
        w->proof = PROOF_NONE;
        if (copy_begin(w, &err) < 0)
            way_fail(w, &err);
    }
}

/* No lane is at work on them. */
static void look_at_copies(struct hub_way *w)
{
    if (!w->known && !copy_wanted(w))
        copy_end(w);
    else if (w->known && !repair_wanted(w))
        succeed(w); /* each segment was proven by itself */
}

void way_restart(struct hub_way *w)
{
    struct err err;
    way_drop_lanes(w);
    follow_stop(w);
    w->proof = PROOF_NONE;
    w->ready = w->whole = false;
    w->url[0] = '\0';
    int r = 0;
    if (++w->restarts > HUB_RESTARTS)
        r = err_set(&err, -ESTALE, "the file changes on the server while it is fetched: pin it with 'berth lock', or try later");
    else
        r = part_reset(w, &err);
    if (r == 0 && w->got)
        r = follow_start(w, 0, &err);
    if (r < 0) {
        way_fail(w, &err);
        return;
    }
    fetch_note(w, EVENT_WARN, "changed on the server while it was fetched: beginning anew");
}

/* ---- giving out work ---------------------------------------------------------------------------------------------------------- */

static bool is_free(const struct hub_way *w, size_t i)
{
    return !w->leased[i] && w->got[i] < way_segment_bytes(w, i);
}

/* A lease of consecutive segments from the first free one; false when none is. Large while much is left, so that few requests do; small at the end, so that all lanes end together. */
static bool take_lease(struct hub_way *w, struct hub_lane *l)
{
    pthread_mutex_lock(&w->fetch->lock);
    size_t i = w->free_from;
    while (i < w->n_segments && w->got[i] == way_segment_bytes(w, i))
        i++;
    w->free_from = i; /* what is complete stays so */
    while (i < w->n_segments && !is_free(w, i))
        i++;
    size_t most = w->whole ? w->n_segments : (w->n_segments - i) / (w->fetch->n_lanes * 4);
    if (!w->whole && most > HUB_LEASE_SEGMENTS)
        most = HUB_LEASE_SEGMENTS;
    bool found = i < w->n_segments;
    if (found) {
        l->first = l->last = i;
        l->pos = (uint64_t)i * STORE_SEGMENT_BYTES + w->got[i];
        w->leased[i] = 1;
        while (l->last - l->first + 1 < most && l->last + 1 < w->n_segments && is_free(w, l->last + 1) && !w->got[l->last + 1])
            w->leased[++l->last] = 1;
        l->end = (uint64_t)l->last * STORE_SEGMENT_BYTES + way_segment_bytes(w, l->last);
    }
    pthread_mutex_unlock(&w->fetch->lock);
    return found;
}

/* Whether another lane may work on w now. */
static bool may_go(const struct hub_way *w, uint64_t now_us)
{
    if (w->state != WAY_ACTIVE || now_us < w->again_us)
        return false;
    return w->lanes == 0 || (w->ready && !w->whole);
}

static bool give(struct hub_way *w, struct hub_lane *l)
{
    if (w->copying) {
        if (!(w->known ? repair_lease(w, l) : copy_lease(w, l)))
            return false;
    } else if (w->bytes == HUB_UNKNOWN) {
        l->first = l->last = 0;
        l->pos = 0;
        l->end = STORE_SEGMENT_BYTES;
    } else if (!take_lease(w, l)) {
        return false;
    }
    lane_begin(l, w);
    return true;
}

/* The file with the fewest lanes, so that files on their way at once are hashed at once. */
static bool employ(struct hub_fetch *f, struct hub_lane *l, uint64_t now_us)
{
    for (unsigned lanes = 0; lanes <= f->n_lanes; lanes++)
        for (size_t i = 0; i < f->n_ways; i++)
            if (f->ways[i].lanes == lanes && may_go(&f->ways[i], now_us) && give(&f->ways[i], l))
                return true;
    return false;
}

static double rate_of(const struct hub_lane *l, uint64_t now_us)
{
    uint64_t us = now_us - l->began_us;
    return us ? (double)(l->pos - l->began_pos) / (double)us : 0;
}

/* When a lane is idle for want of segments and another is very slow, the slow one's connection is given up: what it has got stays, and the next lane goes on there. */
static void relieve(struct hub_fetch *f, uint64_t now_us)
{
    struct hub_lane *slow = NULL;
    double best = 0;
    for (size_t i = 0; i < f->n_lanes; i++) {
        struct hub_lane *l = &f->lanes[i];
        if (!l->w || now_us - l->began_us < SLOW_AFTER_US)
            continue;
        double r = rate_of(l, now_us);
        if (r > best)
            best = r;
        if (!l->w->copying && !l->w->whole && !l->paused && (!slow || r < rate_of(slow, now_us)))
            slow = l;
    }
    if (!slow || rate_of(slow, now_us) * SLOW_FACTOR >= best)
        return;
    hub_exchange_cancel(&slow->x);
    lane_idle(slow);
}

static void look_at_lane(struct hub_lane *l, uint64_t now_us)
{
    struct err why;
    char shown[HUB_SHOWN_MAX];
    uint64_t stall_us = l->x.hub->stall_us;
    struct hub_way *w = l->w;
    if (l->paused) {
        pthread_mutex_lock(&w->fetch->lock);
        bool room = w->fetch->unkept < HUB_LOSS_BYTES / 2;
        pthread_mutex_unlock(&w->fetch->lock);
        l->window_us = now_us;
        l->window_bytes = l->x.body_bytes;
        if (room) {
            l->paused = false;
            hub_exchange_resume(&l->x);
        }
        return;
    }
    if (now_us - l->window_us < stall_us)
        return;
    if (l->x.body_bytes - l->window_bytes >= stall_us / 1000000 * HUB_STALL_BYTES_S && l->x.body_bytes > l->window_bytes) {
        l->window_us = now_us;
        l->window_bytes = l->x.body_bytes;
        return;
    }
    hub_exchange_cancel(&l->x);
    (void)err_set(&why, -ETIMEDOUT, "%s: the connection stalled at byte %" PRIu64, hub_show(l->x.hub, l->x.url, shown), l->pos);
    lane_idle(l);
    way_again(w, &why, 0, now_us);
}

static bool all_over(const struct hub_fetch *f)
{
    for (size_t i = 0; i < f->n_ways; i++)
        if (f->ways[i].state == WAY_WAITING || f->ways[i].state == WAY_ACTIVE)
            return false;
    return true;
}

static void stop_all(struct hub_fetch *f)
{
    const struct err interrupted = {-EINTR, "interrupted; what came is kept"};
    for (size_t i = 0; i < f->n_ways; i++) {
        struct hub_way *w = &f->ways[i];
        if (w->state == WAY_ACTIVE) {
            way_drop_lanes(w);
            follow_stop(w);
        }
        if (w->state == WAY_ACTIVE || w->state == WAY_WAITING)
            w->err = interrupted;
    }
}

int64_t fetch_step(struct hub_job *job, bool stop, uint64_t now_us)
{
    struct hub_fetch *f = base_container(job, struct hub_fetch, job);
    bool idle = false, busy = false;
    if (stop) {
        stop_all(f);
        return -1;
    }
    for (size_t i = 0; i < f->n_ways; i++) {
        if (f->ways[i].state == WAY_ACTIVE)
            look_at_proof(&f->ways[i]);
        if (f->ways[i].state == WAY_WAITING && f->n_active < HUB_FILES_ACTIVE)
            begin(&f->ways[i]);
        if (f->ways[i].state == WAY_ACTIVE && f->ways[i].copying && !f->ways[i].lanes)
            look_at_copies(&f->ways[i]);
    }
    if (all_over(f))
        return -1;
    for (size_t i = 0; i < f->n_lanes; i++) {
        struct hub_lane *l = &f->lanes[i];
        if (l->w)
            look_at_lane(l, now_us);
        if (!l->w && (now_us < f->hold_us || !employ(f, l, now_us)))
            idle = true;
        busy = busy || l->w;
    }
    if (idle && busy && now_us >= f->hold_us)
        relieve(f, now_us);
    return IDLE_US;
}
