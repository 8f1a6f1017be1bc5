/* SPDX-License-Identifier: MIT
 *
 * The loop and its small objects: timers, signals, wakes, watched descriptors. Each wraps one libuv handle and is freed by that handle's close callback, so that
 * an object may be closed from within its own callback. net_loop_free walks the handles that are left and closes them the same way their owners would.
 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "net_int.h"

struct net_timer {
    uint32_t magic;
    uv_timer_t uv;
    struct net_loop *loop;
    void (*cb)(void *ctx);
    void *ctx;
};

struct net_signal {
    uint32_t magic;
    uv_signal_t uv;
    void (*cb)(void *ctx, int signum);
    void *ctx;
};

struct net_watch {
    uint32_t magic;
    uv_poll_t uv;
    void (*cb)(void *ctx);
    void *ctx;
};

struct net_wake {
    uint32_t magic;
    uv_async_t uv;
    void (*cb)(void *ctx);
    void *ctx;
};

/* ---- loop ------------------------------------------------------------------------------------------------ */

int net_loop_new(struct net_loop **ret, struct err *err)
{
    struct net_loop *l = calloc(1, sizeof(*l));
    int r;

    if (!l)
        return err_nomem(err);
    r = uv_loop_init(&l->uv);
    if (r < 0) {
        free(l);
        return err_sys(err, r, "cannot make an event loop");
    }
    l->magic = NET_MAGIC_LOOP;
    TAILQ_INIT(&l->late);
    (void)uv_idle_init(&l->uv, &l->idle); /* cannot fail */
    l->idle.data = l;
    /* A write to a connection that the peer has closed must be an error of that connection, not the end of the process. */
    (void)signal(SIGPIPE, SIG_IGN);
    *ret = l;
    return 0;
}

void net_loop_run(struct net_loop *l)
{
    assert(l->magic == NET_MAGIC_LOOP);
    l->running = true;
    (void)uv_run(&l->uv, UV_RUN_DEFAULT);
    l->running = false;
}

void net_loop_stop(struct net_loop *l)
{
    assert(l->magic == NET_MAGIC_LOOP);
    uv_stop(&l->uv);
}

static void close_left(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (uv_is_closing(handle))
        return;
    switch (*(const uint32_t *)handle->data) {
    case NET_MAGIC_TIMER:
        (void)net_timer_close(handle->data);
        break;
    case NET_MAGIC_SIGNAL:
        (void)net_signal_close(handle->data);
        break;
    case NET_MAGIC_WAKE:
        (void)net_wake_close(handle->data);
        break;
    case NET_MAGIC_WATCH:
        (void)net_watch_close(handle->data);
        break;
    case NET_MAGIC_STREAM:
        (void)net_stream_close(handle->data, false);
        break;
    case NET_MAGIC_LISTENER:
        (void)net_listener_close(handle->data);
        break;
    default:
        uv_close(handle, NULL); /* the loop's own */
    }
}

struct net_loop *net_loop_free(struct net_loop *l)
{
    if (!l)
        return NULL;
    assert(l->magic == NET_MAGIC_LOOP);
    l->closing = true; /* an on_close that wants a new stream is refused, so this ends */
    while (uv_loop_close(&l->uv) == UV_EBUSY) {
        uv_walk(&l->uv, close_left, NULL);
        (void)uv_run(&l->uv, UV_RUN_DEFAULT);
    }
    l->magic = NET_MAGIC_DEAD;
    free(l);
    return NULL;
}

/* Between runs the loop's time stands still; what is then measured or started must not begin in the past. */
static void refresh_time(struct net_loop *l)
{
    if (!l->running)
        uv_update_time(&l->uv);
}

uint64_t net_loop_now_ms(const struct net_loop *l)
{
    refresh_time((struct net_loop *)l);
    return uv_now(&l->uv);
}

/* ---- timers ---------------------------------------------------------------------------------------------- */

static void timer_cb(uv_timer_t *uv)
{
    struct net_timer *t = uv->data;

    assert(t->magic == NET_MAGIC_TIMER);
    t->cb(t->ctx);
}

static void timer_closed(uv_handle_t *handle)
{
    struct net_timer *t = handle->data;

    t->magic = NET_MAGIC_DEAD;
    free(t);
}

struct net_timer *net_timer_new(struct net_loop *l, void (*cb)(void *ctx), void *ctx)
{
    struct net_timer *t;

    if (l->closing)
        return NULL;
    t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    *t = (struct net_timer){.magic = NET_MAGIC_TIMER, .loop = l, .cb = cb, .ctx = ctx};
    (void)uv_timer_init(&l->uv, &t->uv); /* cannot fail */
    t->uv.data = t;
    return t;
}

void net_timer_start(struct net_timer *t, uint64_t delay_ms, uint64_t repeat_ms)
{
    assert(t->magic == NET_MAGIC_TIMER);
    refresh_time(t->loop);
    (void)uv_timer_start(&t->uv, timer_cb, delay_ms, repeat_ms); /* fails for a closing timer only */
}

void net_timer_stop(struct net_timer *t)
{
    assert(t->magic == NET_MAGIC_TIMER);
    (void)uv_timer_stop(&t->uv);
}

struct net_timer *net_timer_close(struct net_timer *t)
{
    if (!t)
        return NULL;
    assert(t->magic == NET_MAGIC_TIMER);
    uv_close((uv_handle_t *)&t->uv, timer_closed);
    return NULL;
}

/* ---- signals --------------------------------------------------------------------------------------------- */

static void signal_cb(uv_signal_t *uv, int signum)
{
    struct net_signal *s = uv->data;

    assert(s->magic == NET_MAGIC_SIGNAL);
    s->cb(s->ctx, signum);
}

static void signal_closed(uv_handle_t *handle)
{
    struct net_signal *s = handle->data;

    s->magic = NET_MAGIC_DEAD;
    free(s);
}

int net_signal_new(struct net_loop *l, int signum, void (*cb)(void *ctx, int signum), void *ctx, struct net_signal **ret, struct err *err)
{
    struct net_signal *s;
    int r;

    if (l->closing)
        return err_set(err, -ECANCELED, "the event loop is closing");
    s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err);
    *s = (struct net_signal){.magic = NET_MAGIC_SIGNAL, .cb = cb, .ctx = ctx};
    r = uv_signal_init(&l->uv, &s->uv);
    if (r < 0) {
        free(s);
        return err_sys(err, r, "cannot watch signal %d", signum);
    }
    s->uv.data = s;
    r = uv_signal_start(&s->uv, signal_cb, signum);
    if (r < 0) {
        uv_close((uv_handle_t *)&s->uv, signal_closed);
        return err_sys(err, r, "cannot watch signal %d", signum);
    }
    *ret = s;
    return 0;
}

struct net_signal *net_signal_close(struct net_signal *s)
{
    if (!s)
        return NULL;
    assert(s->magic == NET_MAGIC_SIGNAL);
    uv_close((uv_handle_t *)&s->uv, signal_closed);
    return NULL;
}

/* ---- wakes ----------------------------------------------------------------------------------------------- */

static void wake_cb(uv_async_t *uv)
{
    struct net_wake *w = uv->data;

    assert(w->magic == NET_MAGIC_WAKE);
    w->cb(w->ctx);
}

static void wake_closed(uv_handle_t *handle)
{
    struct net_wake *w = handle->data;

    w->magic = NET_MAGIC_DEAD;
    free(w);
}

int net_wake_new(struct net_loop *l, void (*cb)(void *ctx), void *ctx, struct net_wake **ret, struct err *err)
{
    struct net_wake *w;
    int r;

    if (l->closing)
        return err_set(err, -ECANCELED, "the event loop is closing");
    w = calloc(1, sizeof(*w));
    if (!w)
        return err_nomem(err);
    *w = (struct net_wake){.magic = NET_MAGIC_WAKE, .cb = cb, .ctx = ctx};
    r = uv_async_init(&l->uv, &w->uv, wake_cb);
    if (r < 0) {
        free(w);
        return err_sys(err, r, "cannot make a wake of the event loop");
    }
    w->uv.data = w;
    *ret = w;
    return 0;
}

void net_wake_send(struct net_wake *w)
{
    assert(w->magic == NET_MAGIC_WAKE);
    (void)uv_async_send(&w->uv); /* fails for no handle of ours */
}

struct net_wake *net_wake_close(struct net_wake *w)
{
    if (!w)
        return NULL;
    assert(w->magic == NET_MAGIC_WAKE);
    uv_close((uv_handle_t *)&w->uv, wake_closed);
    return NULL;
}

/* ---- watched descriptors --------------------------------------------------------------------------------- */

static void watch_cb(uv_poll_t *uv, int status, int events)
{
    struct net_watch *w = uv->data;

    (void)status; /* an error is seen by the owner, who reads the descriptor */
    (void)events;
    assert(w->magic == NET_MAGIC_WATCH);
    w->cb(w->ctx);
}

static void watch_closed(uv_handle_t *handle)
{
    struct net_watch *w = handle->data;

    w->magic = NET_MAGIC_DEAD;
    free(w);
}

int net_watch_new(struct net_loop *l, int fd, void (*cb)(void *ctx), void *ctx, struct net_watch **ret, struct err *err)
{
    struct net_watch *w;
    int r;

    if (l->closing)
        return err_set(err, -ECANCELED, "the event loop is closing");
    w = calloc(1, sizeof(*w));
    if (!w)
        return err_nomem(err);
    *w = (struct net_watch){.magic = NET_MAGIC_WATCH, .cb = cb, .ctx = ctx};
    r = uv_poll_init(&l->uv, &w->uv, fd);
    if (r < 0) {
        free(w);
        return err_sys(err, r, "cannot watch descriptor %d", fd);
    }
    w->uv.data = w;
    r = uv_poll_start(&w->uv, UV_READABLE, watch_cb);
    if (r < 0) {
        uv_close((uv_handle_t *)&w->uv, watch_closed);
        return err_sys(err, r, "cannot watch descriptor %d", fd);
    }
    *ret = w;
    return 0;
}

struct net_watch *net_watch_close(struct net_watch *w)
{
    if (!w)
        return NULL;
    assert(w->magic == NET_MAGIC_WATCH);
    uv_close((uv_handle_t *)&w->uv, watch_closed);
    return NULL;
}
