/* SPDX-License-Identifier: MIT
 *
 * The router as a whole: made, configured, drained and freed by the thread that owns it; its replicas; and what its lanes tell the owner.
 */
#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include <os/os.h>

#include "proxy_int.h"

int proxy_new(struct net_loop *l, unsigned loops, struct proxy **ret, struct err *err)
{
    struct proxy *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    (void)pthread_mutex_init(&p->lock, NULL); /* cannot fail without attributes */
    p->tick_ms = PROXY_TICK_MS;
    p->heartbeat_ms = PROXY_HEARTBEAT_MS;
    p->hang_ms = PROXY_HANG_MS;
    p->capacity_ms = PROXY_CAPACITY_MS;
    p->spill_dir = -1;
    /* Without randomness hashes are only less of a surprise. */
    base_ignore(getrandom(&p->seed, sizeof p->seed, GRND_NONBLOCK));
    p->see = see_new();
    p->metrics = metrics_new(proxy_metric_descs, PROXY_M_COUNT, PROXY_SERIES_MAX);
    p->affinity = affinity_new(AFFINITY_BYTES_MAX);
    p->sched = p->affinity ? sched_new(p->affinity) : NULL;
    p->lanes = calloc(loops, sizeof *p->lanes);
    int rc = p->metrics && p->see && p->sched && p->lanes ? 0 : err_nomem(err);
    while (rc == 0 && p->n_lanes < loops) {
        struct proxy_lane *lane = &p->lanes[p->n_lanes++];
        rc = proxy_lane_init(p, lane, lane == p->lanes ? l : NULL, loops, err);
    }
    if (rc < 0) {
        proxy_free(p);
        return rc;
    }
    *ret = p;
    return 0;
}

/* What ended at one lane has something for another one, where more may end. */
static void settle_links(struct proxy *p)
{
    bool more;
    do {
        more = false;
        for (unsigned i = 0; i < p->n_lanes; i++) {
            more = more || p->lanes[i].mail;
            proxy_link_deliver(&p->lanes[i]);
        }
    } while (more);
}

struct proxy *proxy_free(struct proxy *p)
{
    if (!p)
        return NULL;
    for (unsigned i = 0; i < p->n_lanes; i++)
        proxy_lane_stop(&p->lanes[i]);
    proxy_capacity_end(p);
    for (unsigned i = 0; i < p->n_lanes; i++)
        proxy_lane_close(&p->lanes[i]);
    settle_links(p);
    for (unsigned i = 0; i < p->n_lanes; i++)
        proxy_lane_release(&p->lanes[i]);
    free(p->lanes);
    p->metrics = metrics_free(p->metrics);
    p->see = see_free(p->see);
    p->config = proxy_config_unref(p->config);
    for (size_t i = 0; i < p->n_peers; i++) {
        sched_replica_release(&p->peers[i]->s);
        free(p->peers[i]);
    }
    free(p->peers);
    proxy_guard_release(p);
    p->sched = sched_free(p->sched);
    p->affinity = affinity_free(p->affinity);
    p->tls = net_tls_unref(p->tls);
    os_closep(&p->spill_dir);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
}

/* ---- listening and draining ------------------------------------------------------------------------------- */

struct listen_order {
    int fd, rc;
    struct err *err;
};

static void lane_listen(struct proxy_lane *l, void *arg)
{
    struct listen_order *o = arg;
    struct net_addr a;
    bool local = net_socket_addr(o->fd, &a) == 0 && a.unix_path;
    o->rc = l->proxy->tls && !local ? httpio_server_add_tls(l->server, o->fd, l->proxy->tls, o->err) : httpio_server_add(l->server, o->fd, o->err);
}

int proxy_listen(struct proxy *p, int fd, struct err *err)
{
    struct listen_order o = {.fd = fd, .err = err};
    proxy_lane_do(&p->lanes[p->listeners++ % p->n_lanes], lane_listen, &o);
    return o.rc;
}

int proxy_set_tls(struct proxy *p, struct str certificate, struct str key, struct err *err)
{
    return p->tls ? net_tls_replace(p->tls, certificate, key, err) : net_tls_new(certificate, key, &p->tls, err);
}

void proxy_spill_to(struct proxy *p, int dir_fd)
{
    os_closep(&p->spill_dir);
    p->spill_dir = dir_fd;
}

static void finish_drain(struct proxy *p)
{
    void (*cb)(void *) = p->drain_cb;
    p->drain_cb = NULL;
    if (cb)
        cb(p->drain_ctx);
}

static void on_drained(void *ctx)
{
    struct proxy_lane *l = ctx;
    struct proxy *p = l->proxy;
    (void)pthread_mutex_lock(&p->lock);
    bool last = !l->drained && --p->undrained == 0;
    l->drained = true;
    (void)pthread_mutex_unlock(&p->lock);
    if (last && l == p->lanes)
        finish_drain(p);
    else if (last)
        net_wake_send(p->lanes->wake);
}

static void lane_drain(struct proxy_lane *l, void *arg)
{
    httpio_server_drain(l->server, *(uint64_t *)arg, on_drained, l);
}

void proxy_drain(struct proxy *p, uint64_t deadline_ms, void (*cb)(void *ctx), void *ctx)
{
    p->drain_cb = cb;
    p->drain_ctx = ctx;
    (void)pthread_mutex_lock(&p->lock);
    p->undrained = p->n_lanes;
    for (unsigned i = 0; i < p->n_lanes; i++)
        p->lanes[i].drained = false;
    (void)pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_lanes; i++)
        proxy_lane_do(&p->lanes[i], lane_drain, &deadline_ms);
}

/* ---- what the owner is told ---------------------------------------------------------------------------------- */

void proxy_tell_failed(struct proxy_lane *l, const char *service, uint64_t generation, const char *text)
{
    struct proxy *p = l->proxy;
    if (!p->on_failed)
        return;
    if (l == p->lanes) {
        p->on_failed(p->on_failed_ctx, service, generation, text);
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_peers; i++)
        if (p->peers[i]->name == service) {
            p->peers[i]->failed = true;
            p->peers[i]->failed_generation = generation;
            snprintf(p->peers[i]->failed_text, PROXY_FAILED_MAX, "%s", text);
        }
    (void)pthread_mutex_unlock(&p->lock);
    net_wake_send(p->lanes->wake);
}

/* The next peer that other lanes have told of. */
static const struct proxy_peer *next_failed(struct proxy *p, uint64_t *ret_generation, char text[PROXY_FAILED_MAX])
{
    struct proxy_peer *found = NULL;
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_peers && !found; i++)
        if (p->peers[i]->failed)
            found = p->peers[i];
    if (found) {
        found->failed = false;
        *ret_generation = found->failed_generation;
        memcpy(text, found->failed_text, PROXY_FAILED_MAX);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return found;
}

void proxy_tell_moved(struct proxy_lane *l)
{
    struct proxy *p = l->proxy;
    if (l == p->lanes) {
        if (p->on_moved)
            p->on_moved(p->on_moved_ctx);
    } else if (p->watched && !atomic_exchange(&p->moved, true)) {
        net_wake_send(p->lanes->wake);
    }
}

void proxy_owner_woken(struct proxy *p)
{
    const struct proxy_peer *peer;
    uint64_t generation = 0;
    char text[PROXY_FAILED_MAX];
    while ((peer = next_failed(p, &generation, text)))
        p->on_failed(p->on_failed_ctx, peer->name, generation, text);
    if (atomic_exchange(&p->moved, false))
        proxy_tell_moved(p->lanes);
    (void)pthread_mutex_lock(&p->lock);
    bool drained = p->undrained == 0;
    (void)pthread_mutex_unlock(&p->lock);
    if (drained)
        finish_drain(p);
}

/* ---- configuration and replicas --------------------------------------------------------------------------- */

static struct proxy_peer *peer_named(struct proxy *p, const char *name)
{
    for (size_t i = 0; i < p->n_peers; i++)
        if (strcmp(p->peers[i]->name, name) == 0)
            return p->peers[i];
    return NULL;
}

static struct proxy_peer *peer_new(struct proxy *p, const char *name)
{
    struct proxy_peer **all = realloc(p->peers, (p->n_peers + 1) * sizeof(struct proxy_peer *));
    if (!all)
        return NULL;
    p->peers = all;
    struct proxy_peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->proxy = p;
    peer->s.id = (uint32_t)p->n_peers + 1;
    p->peers[p->n_peers++] = peer;
    return peer;
}

/* The peer of a replica, told what is new. NULL without memory: it gets no requests then. */
static struct proxy_peer *peer_update(struct proxy *p, const struct proxy_replica *r)
{
    struct proxy_peer *peer = peer_named(p, r->name);
    if (!peer)
        peer = peer_new(p, r->name);
    if (!peer)
        return NULL;
    peer->target = (struct proxy_target){.addr = r->addr, .asks = r->asks, .pins = r->pins};
    if (r->resolved)
        (void)net_addr_text(&r->addr, peer->target.host);
    snprintf(peer->target.key, sizeof peer->target.key, "%s", r->key ? r->key : "");
    snprintf(peer->target.served, sizeof peer->target.served, "%s", r->served);
    snprintf(peer->tells, sizeof peer->tells, "%s", r->tells ? r->tells : "");
    peer->s.startable = r->startable;
    snprintf(peer->why, sizeof peer->why, "%s", r->why ? r->why : "");
    if (sched_replica_set(&peer->s, r->ready && r->resolved, r->generation, r->slots, r->pins) < 0)
        return NULL;
    peer->s.context = !r->tells ? r->context : peer->told_life == peer->s.life ? peer->told_tokens : 0;
    return peer;
}

static void find_candidates(const struct proxy_config *c, struct proxy_endpoint *e)
{
    for (size_t i = 0; i < e->n_replicas; i++)
        if (c->peers[e->replicas[i]])
            e->candidates[e->n_candidates++] = &c->peers[e->replicas[i]]->s;
}

void proxy_set_config(struct proxy *p, struct proxy_config *c)
{
    c->peers = calloc(c->n_replicas ? c->n_replicas : 1, sizeof(struct proxy_peer *));
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_peers; i++)
        p->peers[i]->s.ready = p->peers[i]->s.startable = false;
    for (size_t i = 0; c->peers && i < c->n_replicas; i++)
        c->peers[i] = peer_update(p, &c->replicas[i]);
    for (size_t i = 0; c->peers && i < c->n_endpoints; i++)
        find_candidates(c, &c->endpoints[i]);
    struct proxy_config *before = p->config;
    p->config = c;
    (void)pthread_mutex_unlock(&p->lock);
    proxy_config_unref(before);
    proxy_capacity_ask(p);
    proxy_pump(p->lanes);
}

struct proxy_config *proxy_config_now(struct proxy *p)
{
    (void)pthread_mutex_lock(&p->lock);
    struct proxy_config *c = p->config ? proxy_config_ref(p->config) : NULL;
    (void)pthread_mutex_unlock(&p->lock);
    return c;
}

void proxy_room(struct proxy *p, const struct proxy_endpoint *e, struct sched_room *ret)
{
    sched_room(p->sched, e->candidates, e->n_candidates, proxy_lane_now(p->lanes), ret);
}

/* ---- what is kept over a restart ---------------------------------------------------------------------------- */

_Static_assert(PROXY_INDEX_MAX == MEMORY_BYTES_MAX, "who owns a router has room for its index");

static size_t list_peers(const struct proxy *p, struct memory_replica out[MEMORY_REPLICAS_MAX])
{
    size_t n = p->n_peers < MEMORY_REPLICAS_MAX ? p->n_peers : MEMORY_REPLICAS_MAX;
    for (size_t i = 0; i < n; i++)
        out[i] = (struct memory_replica){p->peers[i]->name, &p->peers[i]->s};
    return n;
}

uint64_t proxy_index_changes(struct proxy *p)
{
    (void)pthread_mutex_lock(&p->lock);
    uint64_t n = affinity_changes(p->affinity);
    (void)pthread_mutex_unlock(&p->lock);
    return n;
}

/* The lock is held for longer than anywhere else, a millisecond for a full index: seldom, and what is written is one state. */
int proxy_index_save(struct proxy *p, struct buf *out)
{
    struct memory_replica replicas[MEMORY_REPLICAS_MAX];
    (void)pthread_mutex_lock(&p->lock);
    int rc = memory_save(p->affinity, p->seed, replicas, list_peers(p, replicas), out);
    (void)pthread_mutex_unlock(&p->lock);
    return rc;
}

int proxy_index_load(struct proxy *p, struct str index, struct err *err)
{
    struct memory_replica replicas[MEMORY_REPLICAS_MAX];
    (void)pthread_mutex_lock(&p->lock);
    int rc = p->numbers || affinity_changes(p->affinity) ? err_set(err, -EBUSY, "the index of conversations is in use")
                                                          : memory_load(p->affinity, index, replicas, list_peers(p, replicas), &p->seed, err);
    (void)pthread_mutex_unlock(&p->lock);
    return rc;
}
