/* SPDX-License-Identifier: MIT
 *
 * The router as a whole: made, configured, drained and freed; its replicas, and its clock: a timer that asks the scheduler again, and a tick while streams wait for signs of life.
 */
#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include "proxy_int.h"

static void on_wake(void *ctx)
{
    proxy_pump(ctx);
}

static void on_tick(void *ctx);

int proxy_new(struct net_loop *l, struct proxy **ret, struct err *err)
{
    struct proxy *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->loop = l;
    p->tick_ms = PROXY_TICK_MS;
    p->heartbeat_ms = PROXY_HEARTBEAT_MS;
    p->hang_ms = PROXY_HANG_MS;
    p->bodies_max = PROXY_BODIES_MAX;
    p->log = BUF_INIT(1 << 20);
    /* Without randomness hashes are only less of a surprise. */
    base_ignore(getrandom(&p->seed, sizeof p->seed, GRND_NONBLOCK));
    p->see = see_new();
    p->metrics = metrics_new(proxy_metric_descs, PROXY_M_COUNT, PROXY_SERIES_MAX);
    p->server = httpio_server_new(l, &HTTPIO_LIMITS_DEFAULT, &proxy_server_ops, p);
    p->client = httpio_client_new(l, &HTTPIO_CLIENT_DEFAULT);
    p->affinity = affinity_new(AFFINITY_BYTES_MAX);
    p->sched = p->affinity ? sched_new(p->affinity) : NULL;
    p->wake = net_timer_new(l, on_wake, p);
    p->tick = net_timer_new(l, on_tick, p);
    if (!p->metrics || !p->see || !p->server || !p->client || !p->sched || !p->wake || !p->tick) {
        proxy_free(p);
        return err_nomem(err);
    }
    *ret = p;
    return 0;
}

struct proxy *proxy_free(struct proxy *p)
{
    if (!p)
        return NULL;
    p->pumping = true; /* nobody is sent anywhere any more */
    p->server = httpio_server_free(p->server);
    p->client = httpio_client_free(p->client);
    p->wake = net_timer_close(p->wake);
    p->tick = net_timer_close(p->tick);
    proxy_log_flush(p);
    buf_release(&p->log);
    p->metrics = metrics_free(p->metrics);
    p->see = see_free(p->see);
    p->config = proxy_config_unref(p->config);
    for (size_t i = 0; i < p->n_peers; i++) {
        sched_replica_release(&p->peers[i]->s);
        free(p->peers[i]);
    }
    free(p->peers);
    free(p->current);
    p->sched = sched_free(p->sched);
    p->affinity = affinity_free(p->affinity);
    p->tls = net_tls_unref(p->tls);
    free(p);
    return NULL;
}

int proxy_listen(struct proxy *p, int fd, struct err *err)
{
    struct net_addr a;
    bool local = net_socket_addr(fd, &a) == 0 && a.unix_path;
    return p->tls && !local ? httpio_server_add_tls(p->server, fd, p->tls, err) : httpio_server_add(p->server, fd, err);
}

int proxy_set_tls(struct proxy *p, struct str certificate, struct str key, struct err *err)
{
    return p->tls ? net_tls_replace(p->tls, certificate, key, err) : net_tls_new(certificate, key, &p->tls, err);
}

void proxy_drain(struct proxy *p, uint64_t deadline_ms, void (*cb)(void *ctx), void *ctx)
{
    httpio_server_drain(p->server, deadline_ms, cb, ctx);
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
    peer->s.id = (uint32_t)p->n_peers + 1;
    p->peers[p->n_peers++] = peer;
    return peer;
}

/* The peer of a replica, told what is new. NULL without memory: it gets no requests then. */
static struct proxy_peer *peer_update(struct proxy *p, const struct proxy_replica *r)
{
    struct proxy_peer *peer = peer_named(p, r->name);
    bool is_new = !peer;
    if (is_new)
        peer = peer_new(p, r->name);
    if (!peer)
        return NULL;
    if (!is_new && (peer->s.generation != r->generation || !net_addr_eq(&peer->addr, &r->addr)))
        httpio_client_forget(p->client, &peer->addr);
    snprintf(peer->served, sizeof peer->served, "%s", r->served);
    peer->addr = r->addr;
    peer->s.context = r->context;
    return sched_replica_set(&peer->s, r->ready && r->resolved, r->generation, r->slots, r->pins) < 0 ? NULL : peer;
}

void proxy_set_config(struct proxy *p, struct proxy_config *c)
{
    struct proxy_peer **current = calloc(c->n_replicas ? c->n_replicas : 1, sizeof(struct proxy_peer *));
    for (size_t i = 0; i < p->n_peers; i++)
        p->peers[i]->s.ready = false;
    for (size_t i = 0; current && i < c->n_replicas; i++)
        current[i] = peer_update(p, &c->replicas[i]);
    free(p->current);
    p->current = current;
    proxy_config_unref(p->config);
    p->config = c;
    proxy_pump(p);
}

void proxy_room(struct proxy *p, const struct proxy_endpoint *e, struct sched_room *ret)
{
    struct sched_replica *replicas[FLEET_SERVICES_MAX];
    size_t n = 0;
    for (size_t i = 0; p->current && i < e->n_replicas && n < BASE_COUNT(replicas); i++)
        if (p->current[e->replicas[i]])
            replicas[n++] = &p->current[e->replicas[i]]->s;
    sched_room(p->sched, replicas, n, net_loop_now_ms(p->loop), ret);
}

/* ---- what is kept over a restart ---------------------------------------------------------------------------- */

static size_t list_peers(const struct proxy *p, struct memory_replica out[MEMORY_REPLICAS_MAX])
{
    size_t n = p->n_peers < MEMORY_REPLICAS_MAX ? p->n_peers : MEMORY_REPLICAS_MAX;
    for (size_t i = 0; i < n; i++)
        out[i] = (struct memory_replica){p->peers[i]->name, &p->peers[i]->s};
    return n;
}

int proxy_index_save(const struct proxy *p, struct buf *out)
{
    struct memory_replica replicas[MEMORY_REPLICAS_MAX];
    return memory_save(p->affinity, p->seed, replicas, list_peers(p, replicas), out);
}

int proxy_index_load(struct proxy *p, struct str index, struct err *err)
{
    struct memory_replica replicas[MEMORY_REPLICAS_MAX];
    if (p->requests_seen || affinity_changes(p->affinity))
        return err_set(err, -EBUSY, "the index of conversations is in use");
    return memory_load(p->affinity, index, replicas, list_peers(p, replicas), &p->seed, err);
}

/* ---- the clock ------------------------------------------------------------------------------------------------ */

void proxy_pump(struct proxy *p)
{
    struct sched_ticket *t;
    bool expired;
    if (p->pumping)
        return;
    p->pumping = true;
    while ((t = sched_next(p->sched, net_loop_now_ms(p->loop), &expired)))
        proxy_forward_go(base_container(t, struct proxy_request, ticket), expired);
    p->pumping = false;
    uint64_t due = sched_due(p->sched), now = net_loop_now_ms(p->loop);
    if (due == UINT64_MAX)
        net_timer_stop(p->wake);
    else
        net_timer_start(p->wake, due > now ? due - now : 1, 0);
}

void proxy_tick(struct proxy *p)
{
    if (!p->ticking)
        net_timer_start(p->tick, p->tick_ms, p->tick_ms);
    p->ticking = true;
}

void proxy_stream_add(struct proxy_request *r)
{
    struct proxy *p = r->proxy;
    r->next_stream = p->streams;
    if (p->streams)
        p->streams->at_stream = &r->next_stream;
    r->at_stream = &p->streams;
    p->streams = r;
    proxy_tick(p);
}

void proxy_stream_remove(struct proxy_request *r)
{
    if (!r->at_stream)
        return;
    *r->at_stream = r->next_stream;
    if (r->next_stream)
        r->next_stream->at_stream = r->at_stream;
    r->at_stream = NULL;
}

/* Looks after the streams. What is done for one may end it, and then others begin: the walk ends there. */
static void on_tick(void *ctx)
{
    struct proxy *p = ctx;
    uint64_t now = net_loop_now_ms(p->loop);
    proxy_log_flush(p);
    for (struct proxy_request *r = p->streams; r;) {
        struct proxy_request *next = r->next_stream;
        bool hangs = r->call && !r->paused && r->ticket.replica->pins && now - r->byte_ms >= p->hang_ms;
        if (hangs) {
            proxy_answer_hang(r);
            break; /* the list is another one: the rest has its turn at the next tick */
        }
        if (now - r->sent_ms >= p->heartbeat_ms)
            proxy_answer_heartbeat(r);
        r = next;
    }
    if (!p->streams) {
        net_timer_stop(p->tick);
        p->ticking = false;
    }
}
