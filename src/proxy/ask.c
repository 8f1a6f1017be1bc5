/* SPDX-License-Identifier: MIT
 *
 * What the owner of a router may ask it, as requests over HTTP would: the worker's channel carries method, target, status and body. Everything here looks; only a cancel acts, as if
 * the client had left, but that the client is told.
 */
#include <errno.h>

#include "proxy_int.h"

/* ---- the queue, as seen from outside --------------------------------------------------------------------------- */

static bool any_ready(const struct sched_ticket *t)
{
    for (size_t i = 0; i < t->n_candidates; i++)
        if (t->candidates[i]->ready)
            return true;
    return false;
}

/* Numbers the pages of those that wait, and counts for each peer who waits for it. Returns the time. */
static uint64_t note_queue(struct proxy *p)
{
    size_t position = 0;
    (void)pthread_mutex_lock(&p->lock);
    uint64_t now = proxy_lane_now(p->lanes);
    for (size_t i = 0; i < p->n_peers; i++)
        p->peers[i]->waiting = 0;
    for (struct sched_ticket *t = sched_first(p->sched); t; t = t->next) {
        struct proxy_request *r = base_container(t, struct proxy_request, ticket);
        see_position(p->see, r->page, ++position);
        see_phase(p->see, r->page, any_ready(t) ? SEE_QUEUE : SEE_LOAD, now);
        for (size_t i = 0; i < t->n_candidates; i++)
            PROXY_PEER(t->candidates[i])->waiting++;
    }
    (void)pthread_mutex_unlock(&p->lock);
    return now;
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

static void write_replica(struct proxy *p, const struct proxy_peer *at, const char *served, uint64_t now, struct json_out *o)
{
    (void)pthread_mutex_lock(&p->lock);
    struct proxy_peer copy = *at;
    (void)pthread_mutex_unlock(&p->lock);
    const struct proxy_peer *peer = &copy;
    uint64_t read = peer->prompt_n + peer->cached_n;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", peer->name);
    json_out_cstr(o, "served", served);
    json_out_bool(o, "ready", peer->s.ready);
    json_out_bool(o, "suspect", peer->s.suspect_ms > now);
    json_out_u64(o, "slots", peer->s.n_slots);
    json_out_u64(o, "busy", peer->s.active);
    json_out_u64(o, "waiting", peer->waiting);
    json_out_f64(o, "tokens_per_s", see_rate_of(&peer->rate, now));
    if (peer->s.told)
        json_out_f64(o, "prefill_tokens_per_s", (double)(int64_t)(peer->s.prefill_tps * 10) / 10);
    else
        json_out_null(o, "prefill_tokens_per_s");
    json_out_u64(o, "prompt_tokens", read);
    json_out_u64(o, "cached_tokens", peer->cached_n);
    json_out_u64(o, "generated_tokens", peer->predicted_n);
    if (read)
        json_out_f64(o, "cache_share", (double)(peer->cached_n * 1000 / read) / 1000);
    else
        json_out_null(o, "cache_share");
    json_out_end(o);
}

static int write_all(struct proxy *p, struct json_out *o)
{
    const struct proxy_config *c = p->config; /* only this thread changes it */
    uint64_t now = note_queue(p);
    (void)pthread_mutex_lock(&p->lock);
    size_t waiting = sched_waiting(p->sched);
    (void)pthread_mutex_unlock(&p->lock);
    json_out_obj(o, NULL);
    json_out_u64(o, "active", p->stats.active);
    json_out_u64(o, "waiting", waiting);
    json_out_u64(o, "total", p->stats.requests);
    json_out_u64(o, "retries", p->stats.retries);
    json_out_u64(o, "errors", p->stats.errors);
    json_out_arr(o, "replicas");
    for (size_t i = 0; c && c->peers && i < c->n_replicas; i++)
        if (c->peers[i])
            write_replica(p, c->peers[i], c->replicas[i].served, now, o);
    json_out_end(o);
    int rc = see_write_all(p->see, now, o);
    json_out_end(o);
    return rc;
}

static void write_error(struct json_out *o, const char *text)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "error", text);
    json_out_end(o);
}

static unsigned write_one(struct proxy *p, uint64_t number, struct json_out *o)
{
    uint64_t now = note_queue(p);
    json_out_obj(o, NULL);
    bool known = see_write_one(p->see, number, now, o);
    if (!known)
        json_out_cstr(o, "error", "no request of that number runs, or it ended too long ago");
    json_out_end(o);
    return known ? 200 : 404;
}

struct cancel_order {
    uint64_t number;
    bool found;
};

/* On the lane's thread nobody else ends its requests. */
static void cancel_here(struct proxy_lane *l, void *arg)
{
    struct cancel_order *c = arg;
    void *where;
    struct proxy_request *r = see_owner(l->proxy->see, c->number, &where);
    c->found = r != NULL;
    if (r)
        proxy_request_cancel(r);
}

static unsigned cancel(struct proxy *p, uint64_t number, struct json_out *o)
{
    struct cancel_order c = {.number = number};
    void *where;
    if (see_owner(p->see, number, &where))
        proxy_lane_do(where, cancel_here, &c);
    if (!c.found) {
        write_error(o, "no request of that number is under way");
        return 404;
    }
    json_out_obj(o, NULL);
    json_out_u64(o, "cancelled", number);
    json_out_end(o);
    return 200;
}

/* The path's second part is a number; *ret_rest is what follows it. */
static bool numbered(struct str path, uint64_t *ret, struct str *ret_rest)
{
    if (!str_starts(path, STR("/requests/")))
        return false;
    path.ptr += 10;
    path.len -= 10;
    struct str number = str_split(&path, '/');
    *ret_rest = path;
    return str_to_u64(number, ret) == 0;
}

int proxy_ask(struct proxy *p, struct str method, struct str target, unsigned *ret_status, struct buf *out)
{
    struct json_out *o = json_out_new();
    struct str path = http_target_path(target), rest = {0};
    bool get = str_eq_c(method, "GET"), post = str_eq_c(method, "POST");
    uint64_t number = 0;
    unsigned status = 200;
    int rc = 0;
    if (!o)
        return -ENOMEM;
    if (get && str_eq_c(path, "/requests")) {
        rc = write_all(p, o);
    } else if (get && numbered(path, &number, &rest) && !rest.ptr) {
        status = write_one(p, number, o);
    } else if (post && numbered(path, &number, &rest) && str_eq_c(rest, "cancel")) {
        status = cancel(p, number, o);
    } else {
        write_error(o, "there are GET /requests, GET /requests/ID and POST /requests/ID/cancel");
        status = 404;
    }
    if (rc == 0)
        rc = json_out_finish(o, false, out);
    json_out_free(o);
    if (rc == 0)
        *ret_status = status;
    return rc;
}
