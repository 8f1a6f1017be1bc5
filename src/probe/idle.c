/* SPDX-License-Identifier: MIT
 *
 * Idleness: asks once a second how many requests the engine works on, until it is none. An engine that does not answer may be busy or may be
 * ending: it is asked again until the limit; that it has ended is for its owner to see.
 */
#include "probe_int.h"

#include <errno.h>
#include <stdlib.h>

struct probe_idle {
    struct net_loop *loop;
    struct httpio_client *client;
    struct probe_target target;
    uint64_t deadline_ms;
    struct net_timer *timer;
    struct httpio_fetch *fetch;
    void (*cb)(void *ctx, int status);
    void *ctx;
};

struct probe_idle *probe_idle_cancel(struct probe_idle *p)
{
    if (!p)
        return NULL;
    p->timer = net_timer_close(p->timer);
    p->fetch = httpio_fetch_cancel(p->fetch);
    explicit_bzero(p->target.key, sizeof p->target.key);
    free(p);
    return NULL;
}

static void finish(struct probe_idle *p, int status)
{
    void (*cb)(void *ctx, int status) = p->cb;
    void *ctx = p->ctx;
    probe_idle_cancel(p);
    cb(ctx, status);
}

static uint64_t left_ms(const struct probe_idle *p)
{
    uint64_t now = net_loop_now_ms(p->loop);
    return now < p->deadline_ms ? p->deadline_ms - now : 0;
}

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct probe_idle *p = ctx;
    unsigned busy = 1;
    (void)failed;
    p->fetch = NULL;
    if (status == 200 && engine_idle_parse(p->target.service, body, &busy, NULL) == 0 && busy == 0) {
        finish(p, 0);
        return;
    }
    uint64_t left = left_ms(p);
    net_timer_start(p->timer, left < PROBE_POLL_MS ? left : PROBE_POLL_MS, 0);
}

static void tick(void *ctx)
{
    struct probe_idle *p = ctx;
    const char *path = engine_idle_path(p->target.service);
    uint64_t left = left_ms(p);
    if (!path || left == 0) {
        finish(p, path ? -ETIMEDOUT : -ENOTSUP);
        return;
    }
    p->fetch = probe_ask(p->client, &p->target, path, NULL, left < PROBE_ANSWER_MS ? left : PROBE_ANSWER_MS, answered, p);
    if (!p->fetch)
        finish(p, -ENOMEM);
}

struct probe_idle *probe_idle_start(struct net_loop *l, struct httpio_client *c, const struct probe_target *t, uint64_t limit_ms,
                                    void (*cb)(void *ctx, int status), void *ctx)
{
    struct probe_idle *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    uint64_t now = net_loop_now_ms(l);
    *p = (struct probe_idle){.loop = l, .client = c, .target = *t, .cb = cb, .ctx = ctx};
    if (!size_add(now, limit_ms, &p->deadline_ms))
        p->deadline_ms = UINT64_MAX;
    p->timer = net_timer_new(l, tick, p);
    if (!p->timer)
        return probe_idle_cancel(p);
    net_timer_start(p->timer, 0, 0);
    return p;
}
