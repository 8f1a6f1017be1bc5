/* SPDX-License-Identifier: MIT
 *
 * What the owner of services on demand must know: what each replica works on, and for which endpoints requests wait of which no replica is there. Told whenever it changes, together with the number of the last
 * configuration that was followed before counting, so that an owner who takes a replica away knows when nothing can be on its way there any more.
 */
#include <errno.h>

#include "proxy_int.h"

#define WANT_MAX 1024 /* endpoints */

struct want {
    const char *endpoint;
    uint64_t n, ms;
};

/* Whether it waits for somebody to be started. */
static bool is_want(const struct sched_ticket *t)
{
    bool startable = false;
    for (size_t i = 0; i < t->n_candidates; i++) {
        if (t->tried[i / 64] >> (i % 64) & 1)
            continue;
        if (t->candidates[i]->ready)
            return false;
        startable = startable || t->candidates[i]->startable;
    }
    return startable;
}

static size_t count_waiting(struct proxy *p, struct want wants[WANT_MAX])
{
    uint64_t now = proxy_lane_now(p->lanes);
    size_t n = 0;
    for (struct sched_ticket *t = sched_first(p->sched); t; t = t->next) {
        const struct proxy_request *r = base_container(t, struct proxy_request, ticket);
        size_t i = 0;
        if (!is_want(t))
            continue;
        while (i < n && strcmp(wants[i].endpoint, r->endpoint->name) != 0)
            i++;
        if (i == WANT_MAX)
            continue;
        if (i == n)
            wants[n++] = (struct want){.endpoint = r->endpoint->name};
        uint64_t ms = now - t->entered_ms;
        wants[i].n++;
        wants[i].ms = ms > wants[i].ms ? ms : wants[i].ms;
    }
    return n;
}

static uint64_t mix(uint64_t h, const char *name, uint64_t n)
{
    h = place_hash(h, str_of(name));
    return place_hash(h, (struct str){(const char *)&n, sizeof n});
}

static int write_line(const struct proxy *p, uint64_t mark, const struct want *wants, size_t n, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_obj(o, "demand");
    json_out_u64(o, "mark", mark);
    json_out_arr(o, "active");
    for (size_t i = 0; i < p->n_peers; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "service", p->peers[i]->name);
        json_out_u64(o, "n", p->peers[i]->s.running);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_arr(o, "waiting");
    for (size_t i = 0; i < n; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "endpoint", wants[i].endpoint);
        json_out_u64(o, "n", wants[i].n);
        json_out_u64(o, "ms", wants[i].ms);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    int rc = json_out_finish(o, false, out);
    json_out_free(o);
    return rc;
}

/* The line is written under the lock, which the names belong to: seldom, and short in a fleet with services on demand. */
int proxy_want_text(struct proxy *p, uint64_t mark, uint64_t *digest, struct buf *out)
{
    struct want wants[WANT_MAX];
    (void)pthread_mutex_lock(&p->lock);
    size_t n = count_waiting(p, wants);
    uint64_t h = mix(p->seed, "", mark);
    for (size_t i = 0; i < p->n_peers; i++)
        h = mix(h, p->peers[i]->name, p->peers[i]->s.running);
    for (size_t i = 0; i < n; i++)
        h = mix(h, wants[i].endpoint, wants[i].n);
    int rc = h != *digest;
    *digest = h;
    if (rc > 0)
        rc = write_line(p, mark, wants, n, out) < 0 ? -ENOMEM : 1;
    (void)pthread_mutex_unlock(&p->lock);
    return rc;
}
