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

/* Numbers the pages of those that wait, and counts for each peer who waits for it. */
static void note_queue(struct proxy *p)
{
    uint64_t now = net_loop_now_ms(p->loop);
    size_t position = 0;
    for (size_t i = 0; i < p->n_peers; i++)
        p->peers[i]->waiting = 0;
    for (struct sched_ticket *t = sched_first(p->sched); t; t = t->next) {
        struct proxy_request *r = base_container(t, struct proxy_request, ticket);
        see_position(p->see, r->page, ++position);
        see_phase(p->see, r->page, any_ready(t) ? SEE_QUEUE : SEE_LOAD, now);
        for (size_t i = 0; i < t->n_candidates; i++)
            PROXY_PEER(t->candidates[i])->waiting++;
    }
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

static void write_replica(struct proxy *p, const struct proxy_peer *peer, const char *served, struct json_out *o)
{
    uint64_t now = net_loop_now_ms(p->loop), read = peer->prompt_n + peer->cached_n;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", peer->name);
    json_out_cstr(o, "served", served);
    json_out_bool(o, "ready", peer->s.ready);
    json_out_bool(o, "suspect", peer->s.suspect_ms > now);
    json_out_u64(o, "slots", peer->s.n_slots);
    json_out_u64(o, "busy", peer->s.active);
    json_out_u64(o, "waiting", peer->waiting);
    json_out_f64(o, "tokens_per_s", see_rate_of(&peer->rate, now));
    json_out_f64(o, "prefill_tokens_per_s", (double)(int64_t)(peer->s.prefill_tps * 10) / 10);
    json_out_u64(o, "prompt_tokens", peer->prompt_n);
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
    note_queue(p);
    json_out_obj(o, NULL);
    json_out_u64(o, "active", p->stats.active);
    json_out_u64(o, "waiting", sched_waiting(p->sched));
    json_out_u64(o, "total", p->stats.requests);
    json_out_u64(o, "retries", p->stats.retries);
    json_out_u64(o, "errors", p->stats.errors);
    json_out_arr(o, "replicas");
    for (size_t i = 0; p->config && p->current && i < p->config->n_replicas; i++)
        if (p->current[i])
            write_replica(p, p->current[i], p->config->replicas[i].served, o);
    json_out_end(o);
    int rc = see_write_all(p->see, net_loop_now_ms(p->loop), o);
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
    note_queue(p);
    json_out_obj(o, NULL);
    bool known = see_write_one(p->see, number, net_loop_now_ms(p->loop), o);
    if (!known)
        json_out_cstr(o, "error", "no request of that number runs, or it ended too long ago");
    json_out_end(o);
    return known ? 200 : 404;
}

static unsigned cancel(struct proxy *p, uint64_t number, struct json_out *o)
{
    struct proxy_request *r = see_owner(p->see, number);
    if (!r) {
        write_error(o, "no request of that number is under way");
        return 404;
    }
    proxy_request_cancel(r);
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
