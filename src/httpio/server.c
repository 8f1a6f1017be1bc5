/* SPDX-License-Identifier: MIT
 *
 * The server as a whole: listeners, the list of connections, deadlines, what happens soon, draining, the end. Walks over connections call owners, who may
 * close any connection or free the server: a walk first moves what it wants into a list of its own and then takes one after the other from there;
 * closing unlinks a connection from whatever list it is in.
 */
#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include <os/os.h>

#include "server_int.h"

static void soon(void *ctx);
static void look(void *ctx);

/* For each connection there may be another one of ours that answers it; some descriptors are for everything else. Without a limit of our own, clients that wait would hold those
 * that are needed to answer them. */
static size_t connections_max(size_t wanted, unsigned servers)
{
    size_t possible = os_fds_max() / 2;

    possible = possible > HTTPIO_FDS_ELSE ? possible - HTTPIO_FDS_ELSE : 1;
    if (servers > 1)
        possible = (possible + servers - 1) / servers;
    return wanted == 0 || possible < wanted ? possible : wanted;
}

struct httpio_server *httpio_server_new(struct net_loop *l, const struct httpio_limits *limits, const struct httpio_server_ops *ops, void *ctx)
{
    struct httpio_server *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    assert(ops->on_request && ops->on_done);
    *s = (struct httpio_server){.magic = HTTPIO_MAGIC_SERVER, .refs = 1, .loop = l, .limits = *limits, .ops = *ops, .ctx = ctx, .drain_due = UINT64_MAX};
    s->limits.connections = connections_max(limits->connections, limits->servers);
    LIST_INIT(&s->ports);
    LIST_INIT(&s->conns);
    LIST_INIT(&s->late);
    LIST_INIT(&s->soon);
    TAILQ_INIT(&s->idle);
    TAILQ_INIT(&s->heads);
    s->soon_timer = net_timer_new(l, soon, s);
    if (!s->soon_timer || httpio_sweep_init(&s->sweep, l, look, s) < 0) {
        s->soon_timer = net_timer_close(s->soon_timer);
        free(s);
        return NULL;
    }
    return s;
}

void httpio_server_unref(struct httpio_server *s)
{
    assert(s->magic == HTTPIO_MAGIC_SERVER && s->refs > 0);
    if (--s->refs > 0)
        return;
    s->magic = 0;
    free(s);
}

static void on_accept(void *ctx, struct net_stream *stream)
{
    struct httpio_port *p = ctx;

    httpio_conn_accept(p->server, stream);
}

static int add(struct httpio_server *s, int fd, struct net_tls *tls, struct err *err)
{
    struct httpio_port *p = calloc(1, sizeof(*p));
    int r;

    assert(s->magic == HTTPIO_MAGIC_SERVER && !s->freed);
    if (!p) {
        (void)close(fd);
        return err_nomem(err);
    }
    p->server = s;
    r = net_listener_new(s->loop, fd, on_accept, p, &p->listener, err);
    if (r < 0) {
        free(p);
        return r;
    }
    if (tls)
        net_listener_set_tls(p->listener, tls);
    LIST_INSERT_HEAD(&s->ports, p, link);
    return 0;
}

int httpio_server_add(struct httpio_server *s, int fd, struct err *err)
{
    return add(s, fd, NULL, err);
}

int httpio_server_add_tls(struct httpio_server *s, int fd, struct net_tls *tls, struct err *err)
{
    return add(s, fd, tls, err);
}

static void close_ports(struct httpio_server *s)
{
    struct httpio_port *p;

    while ((p = LIST_FIRST(&s->ports))) {
        LIST_REMOVE(p, link);
        p->listener = net_listener_close(p->listener);
        free(p);
    }
}

struct httpio_server *httpio_server_free(struct httpio_server *s)
{
    struct httpio_conn *c;

    if (!s)
        return NULL;
    assert(s->magic == HTTPIO_MAGIC_SERVER && !s->freed);
    s->freed = true;
    s->drain_cb = NULL;
    close_ports(s);
    while ((c = LIST_FIRST(&s->conns)) || (c = LIST_FIRST(&s->late)))
        httpio_conn_kill(c, false);
    s->soon_timer = net_timer_close(s->soon_timer);
    httpio_sweep_release(&s->sweep);
    httpio_server_unref(s);
    return NULL;
}

size_t httpio_server_open(const struct httpio_server *s)
{
    return s->open;
}

uint64_t httpio_server_count(const struct httpio_server *s, enum httpio_event e)
{
    return atomic_load_explicit(&s->counts[e], memory_order_relaxed);
}

const char *httpio_event_name(enum httpio_event e)
{
    static const char *const names[HTTPIO_N_EVENTS] = {
        [HTTPIO_ACCEPTED] = "accepted",   [HTTPIO_REFUSED] = "refused",     [HTTPIO_RECLAIMED] = "reclaimed",     [HTTPIO_IDLE_OVER] = "idle",   [HTTPIO_HEAD_LATE] = "slow_head", [HTTPIO_HEAD_CROWD] = "crowded_head",
        [HTTPIO_BODY_LATE] = "slow_body", [HTTPIO_WRITE_STUCK] = "slow_reader", [HTTPIO_HEAD_LARGE] = "large_head", [HTTPIO_BAD] = "malformed",
    };
    return names[e];
}

/* ---- those that wait for a request --------------------------------------------------------------------- */

void httpio_server_idle(struct httpio_conn *c, bool idle)
{
    if (idle == c->idle)
        return;
    c->idle = idle;
    if (idle)
        TAILQ_INSERT_TAIL(&c->server->idle, c, idle_link);
    else
        TAILQ_REMOVE(&c->server->idle, c, idle_link);
}

/* Who begins heads and does not end them would hold all connections for as long as a head may take. */
static void thin_heads(struct httpio_server *s)
{
    size_t most = s->limits.connections / HTTPIO_HEADS_SHARE;
    struct httpio_conn *c = TAILQ_FIRST(&s->heads);

    if (most < HTTPIO_HEADS_MIN)
        most = HTTPIO_HEADS_MIN;
    if (s->limits.connections == 0 || s->n_heads <= most)
        return;
    httpio_server_add_count(s, HTTPIO_HEAD_CROWD);
    httpio_conn_kill(c, false);
}

void httpio_server_head(struct httpio_conn *c, bool on)
{
    struct httpio_server *s = c->server;

    if (on == c->at_head)
        return;
    c->at_head = on;
    if (!on) {
        TAILQ_REMOVE(&s->heads, c, head_link);
        s->n_heads--;
        return;
    }
    TAILQ_INSERT_TAIL(&s->heads, c, head_link);
    s->n_heads++;
    thin_heads(s);
}

bool httpio_server_make_room(struct httpio_server *s)
{
    uint64_t now = net_loop_now_ms(s->loop);

    for (int i = 0; i < HTTPIO_RECLAIM_TRIES; i++) {
        struct httpio_conn *c = TAILQ_FIRST(&s->idle);

        if (!c || now - c->since < HTTPIO_RECLAIM_MS)
            return false;
        if (httpio_conn_unused(c)) {
            httpio_server_add_count(s, HTTPIO_RECLAIMED);
            httpio_conn_kill(c, false);
            return true;
        }
        /* A request has just come and was not read yet. */
        TAILQ_REMOVE(&s->idle, c, idle_link);
        TAILQ_INSERT_TAIL(&s->idle, c, idle_link);
    }
    return false;
}

const char *httpio_server_date(struct httpio_server *s)
{
    uint64_t now_s = clk_system.real_us(clk_system.ctx) / 1000000;

    if (now_s != s->date_s) {
        s->date_s = now_s;
        (void)httpio_date(now_s, s->date);
    }
    return s->date;
}

/* ---- soon ------------------------------------------------------------------------------------------------ */

static void wake_soon(struct httpio_server *s)
{
    if (s->soon_set || !s->soon_timer)
        return;
    s->soon_set = true;
    net_timer_start(s->soon_timer, 0, 0);
}

void httpio_server_soon(struct httpio_conn *c, unsigned what)
{
    if (c->soon == 0)
        LIST_INSERT_HEAD(&c->server->soon, c, soon_link);
    c->soon |= what;
    wake_soon(c->server);
}

void httpio_server_not_soon(struct httpio_conn *c, unsigned what)
{
    if ((c->soon & what) == 0)
        return;
    c->soon &= ~what;
    if (c->soon == 0)
        LIST_REMOVE(c, soon_link);
}

static bool drained(const struct httpio_server *s)
{
    return s->drain_cb && s->open == 0 && s->refused == 0;
}

static void soon(void *ctx)
{
    struct httpio_server *s = ctx;
    struct httpio_conn_list batch;
    struct httpio_conn *c;

    assert(s->magic == HTTPIO_MAGIC_SERVER);
    s->refs++;
    s->soon_set = false;
    HTTPIO_LIST_MOVE(&batch, &s->soon, soon_link);
    while ((c = LIST_FIRST(&batch))) {
        unsigned what = c->soon;

        httpio_server_not_soon(c, what);
        if (what & SOON_FLUSH)
            httpio_conn_flush(c);
        if (what & SOON_NEXT)
            httpio_conn_next(c);
    }
    if (drained(s)) {
        void (*cb)(void *) = s->drain_cb;

        s->drain_cb = NULL;
        cb(s->drain_ctx);
    }
    httpio_server_unref(s);
}

void httpio_server_gone(struct httpio_conn *c)
{
    struct httpio_server *s = c->server;

    LIST_REMOVE(c, link);
    httpio_server_idle(c, false);
    httpio_server_head(c, false);
    httpio_server_not_soon(c, SOON_FLUSH | SOON_NEXT);
    if (c->refused)
        s->refused--;
    else
        s->open--;
    if (drained(s))
        wake_soon(s);
}

/* ---- draining -------------------------------------------------------------------------------------------- */

void httpio_server_drain(struct httpio_server *s, uint64_t deadline_ms, void (*cb)(void *ctx), void *ctx)
{
    struct httpio_conn *c, *next;

    assert(s->magic == HTTPIO_MAGIC_SERVER && !s->freed);
    s->drain_cb = cb;
    s->drain_ctx = ctx;
    s->drain_due = httpio_later(net_loop_now_ms(s->loop), deadline_ms);
    close_ports(s);
    /* No owner is called here, so the walk is safe: what is closed has no exchange. */
    for (c = LIST_FIRST(&s->conns); c; c = next) {
        next = LIST_NEXT(c, link);
        c->close_after = true;
        if (httpio_conn_unused(c))
            httpio_conn_kill(c, false);
    }
    httpio_sweep_want(&s->sweep, s->drain_due);
    if (drained(s))
        wake_soon(s);
}

/* ---- deadlines ------------------------------------------------------------------------------------------- */

static void look(void *ctx)
{
    struct httpio_server *s = ctx;
    struct httpio_conn *c, *next;
    uint64_t now = net_loop_now_ms(s->loop), due = s->drain_cb ? s->drain_due : UINT64_MAX;
    bool over = s->drain_cb && now >= s->drain_due;

    assert(s->magic == HTTPIO_MAGIC_SERVER);
    s->refs++;
    for (c = LIST_FIRST(&s->conns); c; c = next) {
        uint64_t at = httpio_conn_due(c, now);

        next = LIST_NEXT(c, link);
        if (over || at == 0) {
            LIST_REMOVE(c, link);
            LIST_INSERT_HEAD(&s->late, c, link);
        } else if (at < due) {
            due = at;
        }
    }
    while ((c = LIST_FIRST(&s->late))) {
        LIST_REMOVE(c, link);
        LIST_INSERT_HEAD(&s->conns, c, link);
        if (over)
            httpio_conn_kill(c, true);
        else
            httpio_conn_expire(c, now);
    }
    if (!over)
        httpio_sweep_want(&s->sweep, due);
    httpio_server_unref(s);
}
