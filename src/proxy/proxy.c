/* SPDX-License-Identifier: MIT
 *
 * The router as a whole: made, configured, drained and freed; its peers and its numbers. Replicas take turns by age: the one
 * that was used longest ago is next. That stays fair when some are skipped and when a configuration is swapped, where a counter
 * over a list would not.
 */
#include <errno.h>
#include <unistd.h>

#include "proxy_int.h"

static const double first_byte_bounds[] = {0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
static const double duration_bounds[] = {0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800};

static const struct metrics_desc descs[PROXY_M_COUNT] = {
    [PROXY_M_REQUESTS] = {"berth_router_requests_total", "Requests answered, by the endpoint they named, the last replica they went to and the status sent",
                          METRICS_COUNTER, {"endpoint", "replica", "code"}, NULL, 0},
    [PROXY_M_RETRIES] = {"berth_router_retries_total", "Calls that failed before any byte of a response, by replica and reason",
                         METRICS_COUNTER, {"replica", "reason"}, NULL, 0},
    [PROXY_M_CUT] = {"berth_router_cut_total", "Answers that broke off, by replica", METRICS_COUNTER, {"replica"}, NULL, 0},
    [PROXY_M_CANCELLED] = {"berth_router_cancelled_total", "Requests whose client left before the end", METRICS_COUNTER, {0}, NULL, 0},
    [PROXY_M_FIRST_BYTE] = {"berth_router_first_byte_seconds", "From a request's head to the head of its answer", METRICS_HISTOGRAM, {"endpoint"},
                            first_byte_bounds, BASE_COUNT(first_byte_bounds)},
    [PROXY_M_DURATION] = {"berth_router_duration_seconds", "From a request's head to the end of its answer", METRICS_HISTOGRAM, {"endpoint"},
                          duration_bounds, BASE_COUNT(duration_bounds)},
    [PROXY_M_ACTIVE] = {"berth_router_active", "Requests under way", METRICS_GAUGE, {0}, NULL, 0},
    [PROXY_M_READY] = {"berth_router_replica_ready", "Whether a replica is ready, as the router was told", METRICS_GAUGE, {"replica"}, NULL, 0},
};

int proxy_new(struct net_loop *l, struct proxy **ret, struct err *err)
{
    struct proxy *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(err);
    p->loop = l;
    p->metrics = metrics_new(descs, PROXY_M_COUNT, PROXY_SERIES_MAX);
    p->server = httpio_server_new(l, &HTTPIO_LIMITS_DEFAULT, &proxy_server_ops, p);
    p->client = httpio_client_new(l, &HTTPIO_CLIENT_DEFAULT);
    if (!p->metrics || !p->server || !p->client) {
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
    p->server = httpio_server_free(p->server);
    p->client = httpio_client_free(p->client);
    p->metrics = metrics_free(p->metrics);
    p->config = proxy_config_unref(p->config);
    free(p->peers);
    free(p);
    return NULL;
}

int proxy_listen(struct proxy *p, int fd, struct err *err)
{
    return httpio_server_add(p->server, fd, err);
}

void proxy_drain(struct proxy *p, uint64_t deadline_ms, void (*cb)(void *ctx), void *ctx)
{
    httpio_server_drain(p->server, deadline_ms, cb, ctx);
}

/* ---- configuration and peers ------------------------------------------------------------------------------ */

static const struct proxy_replica *named(const struct proxy_config *c, const char *name)
{
    for (size_t i = 0; c && i < c->n_replicas; i++)
        if (strcmp(c->replicas[i].name, name) == 0)
            return &c->replicas[i];
    return NULL;
}

struct proxy_peer *proxy_peer_of(struct proxy *p, const struct proxy_config *c, const struct proxy_replica *r)
{
    if (c != p->config) {
        const struct proxy_replica *now = named(p->config, r->name);
        if (!now || now->generation != r->generation)
            return NULL;
        r = now;
    }
    return p->peers ? &p->peers[r - p->config->replicas] : NULL;
}

void proxy_set_config(struct proxy *p, struct proxy_config *c)
{
    /* Without memory for peers all replicas look unused and unsuspected: turns are not fair, nothing fails. */
    struct proxy_peer *peers = calloc(c->n_replicas ? c->n_replicas : 1, sizeof *peers);
    for (size_t i = 0; i < c->n_replicas; i++) {
        const struct proxy_replica *now = &c->replicas[i], *was = named(p->config, now->name);
        metrics_set(metrics_get(p->metrics, PROXY_M_READY, &now->name), now->ready);
        if (!was)
            continue;
        bool same = was->generation == now->generation;
        if (!same && was->resolved)
            httpio_client_forget(p->client, &was->addr);
        if (peers && p->peers) {
            peers[i] = p->peers[was - p->config->replicas];
            if (!same)
                peers[i].suspect_ms = 0;
        }
    }
    for (size_t i = 0; p->config && i < p->config->n_replicas; i++)
        if (!named(c, p->config->replicas[i].name))
            metrics_set(metrics_get(p->metrics, PROXY_M_READY, &p->config->replicas[i].name), 0);
    free(p->peers);
    p->peers = peers;
    proxy_config_unref(p->config);
    p->config = c;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

void proxy_stats(const struct proxy *p, struct proxy_stats *ret)
{
    *ret = p->stats;
}

int proxy_metrics(const struct proxy *p, struct buf *out)
{
    metrics_set(metrics_get(p->metrics, PROXY_M_ACTIVE, NULL), (double)p->stats.active);
    return metrics_text(p->metrics, out);
}
