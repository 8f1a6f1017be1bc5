/* SPDX-License-Identifier: MIT
 *
 * The caller's side of a fetch: it is set up, watched while the network's thread works, and taken down. Events reach the sink from here alone.
 */
#include "fetch_int.h"

#include <errno.h>
#include <unistd.h>

#define RATE_OVER_US 3000000.0 /* what is shown is an average over about so long */

/* ---- watching ------------------------------------------------------------------------------------------------------------- */

/* A rate that follows what came since it was last looked at. */
static void follow_rate(double *rate, uint64_t *seen, uint64_t bytes, uint64_t us)
{
    double now = us ? (double)(bytes - *seen) * 1e6 / (double)us : 0;
    double weight = (double)us / RATE_OVER_US;
    if (bytes < *seen)
        now = 0;
    *rate = *rate <= 0 || weight > 1 ? now : *rate + (now - *rate) * weight;
    *seen = bytes;
}

static void show_rate(struct buf *out, double rate, uint64_t left)
{
    char speed[UNITS_TEXT], time[UNITS_TEXT];
    if (rate < 1)
        return;
    buf_addf(out, "%s/s", units_show_bytes((uint64_t)rate, speed));
    if (left)
        buf_addf(out, ", %s left", units_show_ms((uint64_t)((double)left / rate * 1000), time));
}

struct shown {
    const char *subject;
    uint64_t done, total, hashed, again_us, copied;
    bool copying;
};

static size_t look(struct hub_fetch *f, struct shown *list, uint64_t *done, uint64_t *total, bool *known)
{
    size_t n = 0;
    *done = *total = 0;
    *known = true;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < f->n_ways; i++) {
        struct hub_way *w = &f->ways[i];
        if (w->state == WAY_FAILED)
            continue;
        if (w->bytes == HUB_UNKNOWN)
            *known = false;
        else
            *total += w->bytes;
        *done += w->state == WAY_DONE ? w->bytes : w->done_bytes;
        if (w->state == WAY_ACTIVE && n < HUB_FILES_ACTIVE)
            list[n++] = (struct shown){w->want->subject, w->done_bytes, w->bytes == HUB_UNKNOWN ? 0 : w->bytes, (uint64_t)w->hashed * STORE_SEGMENT_BYTES, w->again_us, w->copied_bytes, w->copying};
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}

static struct hub_way *way_of(struct hub_fetch *f, const char *subject)
{
    for (size_t i = 0; i < f->n_ways; i++)
        if (f->ways[i].want->subject == subject)
            return &f->ways[i];
    return NULL;
}

static void show_way(struct hub_fetch *f, const struct shown *s, uint64_t now_us, uint64_t us)
{
    base_autobuf struct buf text = BUF_INIT(256);
    struct hub_way *w = way_of(f, s->subject);
    if (!w)
        return;
    follow_rate(&w->rate, &w->seen_bytes, s->done + s->copied, us);
    if (s->again_us > now_us)
        buf_addf(&text, "waiting %u s", (unsigned)((s->again_us - now_us + 999999) / 1000000));
    else if (s->copying)
        buf_add_c(&text, "comparing");
    else if (s->total && s->done == s->total)
        buf_add_c(&text, "proving");
    else
        show_rate(&text, w->rate, s->total > s->done ? s->total - s->done : 0);
    event_progress(f->hub->sink, s->subject, text.ptr ? text.ptr : "", s->done, s->total);
}

/* Takes what was noted on the network's thread. */
static void tell_notes(struct hub_fetch *f)
{
    for (;;) {
        struct hub_note n;
        pthread_mutex_lock(&f->lock);
        bool some = f->n_notes > 0;
        if (some) {
            n = f->notes[0];
            memmove(f->notes, f->notes + 1, --f->n_notes * sizeof n);
        }
        pthread_mutex_unlock(&f->lock);
        if (!some)
            return;
        event_say(f->hub->sink, n.level, n.subject, "%s", n.text);
    }
}

static void watch(struct hub_job *job)
{
    struct hub_fetch *f = base_container(job, struct hub_fetch, job);
    struct shown list[HUB_FILES_ACTIVE];
    uint64_t done, total, now_us = hub_now_us(), us = now_us - f->watched_us;
    bool known;
    size_t n = look(f, list, &done, &total, &known);
    tell_notes(f);
    for (size_t i = 0; i < n; i++)
        show_way(f, &list[i], now_us, us);
    follow_rate(&f->rate, &f->seen_bytes, done, us);
    f->watched_us = now_us;
    if (f->n_ways > 1) {
        base_autobuf struct buf text = BUF_INIT(256);
        show_rate(&text, f->rate, known && total > done ? total - done : 0);
        event_progress(f->hub->sink, "total", text.ptr ? text.ptr : "", done, known ? total : 0);
    }
}

/* ---- setting up and taking down ----------------------------------------------------------------------------------------------- */

static int make_fetch(struct hub *h, struct store *s, const struct hub_want *wants, size_t n, struct hub_fetch **ret, struct err *err)
{
    struct hub_fetch *f = calloc(1, sizeof *f);
    if (!f)
        return err_nomem(err);
    f->job.step = fetch_step;
    f->job.watch = watch;
    f->hub = h;
    f->store = s;
    f->watched_us = hub_now_us();
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->moved, NULL);
    f->ways = calloc(n, sizeof *f->ways);
    f->lanes = calloc(h->connections, sizeof *f->lanes);
    f->notes = calloc(HUB_NOTES_MAX, sizeof *f->notes);
    *ret = f;
    if (!f->ways || !f->lanes || !f->notes)
        return err_nomem(err);
    f->n_ways = n;
    f->n_lanes = h->connections;
    for (size_t i = 0; i < n; i++) {
        f->ways[i] = (struct hub_way){.fetch = f, .want = &wants[i], .fd = -1, .journal_fd = -1, .bytes = wants[i].bytes, .pinned = wants[i].sha256 || wants[i].git_sha1};
        if (strlen(wants[i].url) >= HUB_URL_MAX)
            return err_set(err, -ENAMETOOLONG, "an address of over %d bytes", HUB_URL_MAX - 1);
    }
    for (size_t i = 0; i < f->n_lanes; i++)
        f->lanes[i].x = (struct hub_exchange){.hub = h, .on_head = lane_on_head, .on_body = lane_on_body, .on_end = lane_on_end, .owner = &f->lanes[i]};
    return 0;
}

static void free_fetch(struct hub_fetch *f)
{
    keeper_stop(f);
    for (size_t i = 0; i < f->n_ways; i++) {
        struct hub_way *w = &f->ways[i];
        if (!w->known)
            part_close(w);
        copy_release(w);
        free(w->tries_left);
        free(w->part);
        free(w->journal);
        free(w->got);
        free(w->leased);
        free(w->dirty);
        store_manifest_release(&w->m);
    }
    for (size_t i = 0; f->lanes && i < f->n_lanes; i++)
        free(f->lanes[i].copy);
    free(f->ways);
    free(f->lanes);
    free(f->notes);
    (void)pthread_cond_destroy(&f->moved);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
}

/* The first error; the codes of all. */
static int conclude(const struct hub_fetch *f, int *ret_codes, struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < f->n_ways; i++) {
        const struct hub_way *w = &f->ways[i];
        int code = w->state == WAY_DONE ? 0 : w->err.code;
        if (ret_codes)
            ret_codes[i] = code;
        if (code < 0 && r == 0)
            r = err_set(err, code, "%s", w->err.text);
    }
    return r;
}

int hub_fetch(struct hub *h, struct store *s, const struct hub_want *wants, size_t n, int *ret_codes, struct err *err)
{
    struct hub_fetch *f = NULL;
    if (!n)
        return 0;
    int r = make_fetch(h, s, wants, n, &f, err);
    if (r == 0)
        r = keeper_start(f, err);
    if (r == 0) {
        r = hub_run(h, &f->job, err);
        keeper_stop(f);
        tell_notes(f);
        int first = conclude(f, ret_codes, r == 0 ? err : NULL);
        r = r < 0 ? r : first;
    }
    if (f)
        free_fetch(f);
    return r;
}

int hub_repair(struct hub *h, const struct hub_want *w, const struct store_manifest *m, const uint64_t *segments, size_t n, int fd, uint64_t *ret_bytes, struct err *err)
{
    struct hub_fetch *f = NULL;
    *ret_bytes = 0;
    int r = make_fetch(h, NULL, w, 1, &f, err);
    struct hub_way *way = r == 0 ? &f->ways[0] : NULL;
    if (r == 0) {
        way->known = m;
        way->fd = fd;
        way->bytes = m->bytes;
        way->n_segments = store_segments(m->bytes);
        way->copying = true;
        way->leased = calloc(way->n_segments + 1, 1);
        way->tries_left = calloc(way->n_segments + 1, 1);
        if (!way->leased || !way->tries_left)
            r = err_nomem(err);
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (segments[i] >= way->n_segments)
            r = err_set(err, -EINVAL, "a segment behind the end of the file");
        else
            repair_want(way, (size_t)segments[i]);
    }
    if (r == 0) {
        r = hub_run(h, &f->job, err);
        tell_notes(f);
        *ret_bytes = way->copied_bytes;
        int first = conclude(f, NULL, r == 0 ? err : NULL);
        r = r < 0 ? r : first;
    }
    if (f)
        free_fetch(f);
    return r;
}
