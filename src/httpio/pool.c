/* SPDX-License-Identifier: MIT
 *
 * Connections of the client, and those kept idle for another call. An idle link is read all the time, so that its end or a byte that nobody asked for closes
 * it at once. What has arrived since the loop last looked is found by asking the kernel before a link is used again, however short it was idle: an answer that nobody asked for must not be taken for that of
 * the next request. A close that meets a request on its way is one that the call tries again.
 */
#include <assert.h>
#include <errno.h>

#include "client_int.h"

/* ---- events ---------------------------------------------------------------------------------------------- */

static void on_connect(void *ctx, int status)
{
    struct httpio_link *l = ctx;

    assert(l->magic == HTTPIO_MAGIC_LINK && l->state == LINK_CONNECTING);
    if (status == 0)
        l->state = LINK_BUSY;
    httpio_call_connected(l, status);
}

static void on_data(void *ctx, struct str data)
{
    struct httpio_link *l = ctx;

    assert(l->magic == HTTPIO_MAGIC_LINK);
    if (l->call)
        httpio_call_data(l, data);
    else
        httpio_link_kill(l);
}

static void on_end(void *ctx, int status)
{
    struct httpio_link *l = ctx;

    assert(l->magic == HTTPIO_MAGIC_LINK);
    if (l->call)
        httpio_call_ended(l, status);
    else
        httpio_link_kill(l);
}

static void on_drain(void *ctx)
{
    struct httpio_link *l = ctx;

    assert(l->magic == HTTPIO_MAGIC_LINK);
    if (l->call)
        httpio_call_drained(l);
}

static void on_close(void *ctx)
{
    struct httpio_link *l = ctx;

    assert(l->magic == HTTPIO_MAGIC_LINK && l->state == LINK_CLOSED);
    l->parser = http_parser_free(l->parser);
    l->magic = 0;
    httpio_client_unref(l->client);
    free(l);
}

static const struct net_stream_ops stream_ops = {on_connect, on_data, on_end, on_drain, on_close};

/* ---- peers ----------------------------------------------------------------------------------------------- */

static struct httpio_peer *find_peer(struct httpio_client *c, const struct net_addr *a)
{
    struct httpio_peer *p;

    LIST_FOREACH(p, &c->peers, link)
        if (net_addr_eq(&p->addr, a))
            return p;
    return NULL;
}

static struct httpio_peer *need_peer(struct httpio_client *c, const struct net_addr *a, uint64_t epoch)
{
    struct httpio_peer *p = find_peer(c, a);

    if (p) {
        p->generation += p->epoch != epoch;
        p->epoch = epoch;
        return p;
    }
    p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->addr = *a;
    p->epoch = epoch;
    LIST_INIT(&p->idle);
    LIST_INSERT_HEAD(&c->peers, p, link);
    return p;
}

static void drop_empty_peer(struct httpio_peer *p)
{
    if (p->n_links > 0)
        return;
    LIST_REMOVE(p, link);
    free(p);
}

/* ---- links ----------------------------------------------------------------------------------------------- */

static void leave_idle(struct httpio_link *l)
{
    if (l->state != LINK_IDLE)
        return;
    LIST_REMOVE(l, idle_link);
    l->peer->n_idle--;
}

void httpio_link_kill(struct httpio_link *l)
{
    struct httpio_peer *p = l->peer;

    assert(!l->call);
    if (l->state == LINK_CLOSED)
        return;
    leave_idle(l);
    l->state = LINK_CLOSED;
    LIST_REMOVE(l, link);
    l->stream = net_stream_close(l->stream, false);
    l->peer = NULL;
    p->n_links--;
    drop_empty_peer(p);
}

int httpio_pool_connect(struct httpio_client *c, const struct net_addr *a, struct net_tls *tls, uint64_t epoch, struct httpio_link **ret, struct err *err)
{
    struct httpio_peer *p = need_peer(c, a, epoch);
    struct httpio_link *l = p ? calloc(1, sizeof(*l)) : NULL;
    int r = -ENOMEM;

    if (l)
        l->parser = http_parser_new(HTTP_RESPONSE, &httpio_call_parser_ops, l);
    if (!l || !l->parser)
        (void)err_nomem(err);
    else
        r = net_connect(c->loop, a, &stream_ops, l, &l->stream, err);
    if (r == 0 && tls && (r = net_stream_set_tls(l->stream, tls)) < 0) {
        net_stream_set_ops(l->stream, &(struct net_stream_ops){0}, NULL);
        l->stream = net_stream_close(l->stream, false);
        (void)err_nomem(err);
    }
    if (r < 0) {
        if (l)
            l->parser = http_parser_free(l->parser);
        free(l);
        if (p)
            drop_empty_peer(p);
        return r;
    }
    l->magic = HTTPIO_MAGIC_LINK;
    l->state = LINK_CONNECTING;
    l->client = c;
    l->once = tls != NULL;
    l->peer = p;
    l->generation = p->generation;
    l->uses_left = UINT64_MAX;
    l->idle_ms = c->options.idle_ms;
    p->n_links++;
    c->refs++;
    LIST_INSERT_HEAD(&c->links, l, link);
    *ret = l;
    return 0;
}

struct httpio_link *httpio_pool_take(struct httpio_client *c, const struct net_addr *a, uint64_t epoch)
{
    struct httpio_peer *p = find_peer(c, a);
    uint64_t now = net_loop_now_ms(c->loop);
    struct httpio_link *l;

    /* Killing a peer's last link frees the peer. */
    for (size_t n = p ? p->n_idle : 0; n > 0; n--) {
        l = LIST_FIRST(&p->idle);
        if (p->epoch == epoch && now < l->idle_due && net_stream_quiet(l->stream)) {
            leave_idle(l);
            l->state = LINK_BUSY;
            return l;
        }
        httpio_link_kill(l);
    }
    return NULL;
}

void httpio_pool_give(struct httpio_link *l, bool clean)
{
    struct httpio_client *c = l->client;
    struct httpio_peer *p = l->peer;

    assert(!l->call);
    if (l->state != LINK_BUSY)
        return;
    if (!clean || l->once || !l->keep_alive || c->freed || l->generation != p->generation || l->uses_left == 0 || l->idle_ms == 0 || p->n_idle >= c->options.idle_max ||
        !http_parser_idle(l->parser) || net_stream_queued(l->stream) > 0) {
        httpio_link_kill(l);
        return;
    }
    l->state = LINK_IDLE;
    l->reused = true;
    l->idle_due = httpio_later(net_loop_now_ms(c->loop), l->idle_ms);
    LIST_INSERT_HEAD(&p->idle, l, idle_link);
    p->n_idle++;
    net_stream_read(l->stream, true);
    httpio_sweep_want(&c->sweep, l->idle_due);
}

void httpio_link_learn(struct httpio_link *l, const struct http_head *head)
{
    struct str rest = http_field_get(head, "keep-alive");
    uint64_t n;

    l->keep_alive = head->keep_alive;
    if (l->uses_left != UINT64_MAX)
        l->uses_left--;
    while (rest.ptr) {
        struct str part = str_split(&rest, ','), name = str_trim(str_split(&part, '='));

        if (!part.ptr || str_to_u64(str_trim(part), &n) < 0)
            continue;
        /* A fifth less than the peer's time, so that our next request does not meet its close. */
        if (str_eq_nocase(name, STR("timeout")) && n < UINT64_MAX / 1000 && n * 800 < l->idle_ms)
            l->idle_ms = n * 800;
        /* Some peers say how many are left, others how many there are in all; the smaller reading is safe for both. */
        if (str_eq_nocase(name, STR("max")) && (n == 0 || n - 1 < l->uses_left))
            l->uses_left = n == 0 ? 0 : n - 1;
    }
}

uint64_t httpio_pool_sweep(struct httpio_client *c, uint64_t now)
{
    struct httpio_link *l, *next;
    uint64_t due = UINT64_MAX;

    for (l = LIST_FIRST(&c->links); l; l = next) {
        next = LIST_NEXT(l, link);
        if (l->state != LINK_IDLE)
            continue;
        if (l->idle_due <= now)
            httpio_link_kill(l);
        else if (l->idle_due < due)
            due = l->idle_due;
    }
    return due;
}

void httpio_client_forget(struct httpio_client *c, const struct net_addr *a)
{
    struct httpio_peer *p = find_peer(c, a);

    if (!p)
        return;
    p->generation++;
    for (size_t n = p->n_idle; n > 0; n--)
        httpio_link_kill(LIST_FIRST(&p->idle));
}
