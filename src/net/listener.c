/* SPDX-License-Identifier: MIT
 *
 * Accepting. Our own accept loop on a polled descriptor rather than libuv's, which answers a lack of descriptors by closing the clients that wait: here
 * they stay in the kernel's queue and accepting pauses. A listener owns two handles and the descriptor; the descriptor is closed at once, so that the
 * address is free when net_listener_close returns, the memory goes with the second close callback.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net_int.h"

struct net_listener {
    uint32_t magic;
    int fd;
    unsigned open_handles;
    bool starved; /* until the timer strikes */
    bool closing;
    struct net_loop *loop;
    void (*on_accept)(void *ctx, struct net_stream *s);
    void *ctx;
    struct net_tls *tls; /* NULL: plain */
    uv_poll_t poll;
    uv_timer_t timer;
};

static void poll_cb(uv_poll_t *poll, int status, int events);

static void update(struct net_listener *l)
{
    if (l->starved)
        (void)uv_poll_stop(&l->poll);
    else
        (void)uv_poll_start(&l->poll, UV_READABLE, poll_cb); /* fails for a closing handle only */
}

static void timer_cb(uv_timer_t *timer)
{
    struct net_listener *l = timer->data;

    assert(l->magic == NET_MAGIC_LISTENER);
    l->starved = false;
    update(l);
}

static void starve(struct net_listener *l)
{
    l->starved = true;
    update(l);
    (void)uv_timer_start(&l->timer, timer_cb, NET_ACCEPT_PAUSE_MS, 0);
}

/* True when another connection may be waiting. */
static bool accept_one(struct net_listener *l)
{
    struct net_stream *s;
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        switch (errno) {
        case EAGAIN:
            return false;
        case EINTR:
        case ECONNABORTED:
        case EPROTO:
            return true; /* that client has gone again */
        default:
            starve(l); /* no descriptors, no memory: the client waits in the kernel's queue */
            return false;
        }
    }
    if (net_stream_adopt(l->loop, fd, &s) < 0) {
        starve(l);
        return false;
    }
    if (l->tls && net_tls_begin(s, l->tls) < 0) {
        (void)net_stream_close(s, true);
        starve(l);
        return false;
    }
    l->on_accept(l->ctx, s);
    return !l->closing;
}

static void poll_cb(uv_poll_t *poll, int status, int events)
{
    struct net_listener *l = poll->data;

    (void)events;
    assert(l->magic == NET_MAGIC_LISTENER);
    if (status < 0) {
        starve(l);
        return;
    }
    for (int i = 0; i < NET_ACCEPT_BATCH && accept_one(l); i++)
        continue;
}

static void handle_closed(uv_handle_t *handle)
{
    struct net_listener *l = handle->data;

    if (--l->open_handles > 0)
        return;
    l->magic = NET_MAGIC_DEAD;
    (void)net_tls_unref(l->tls);
    free(l);
}

int net_listener_new(struct net_loop *l, int fd, void (*on_accept)(void *ctx, struct net_stream *s), void *ctx, struct net_listener **ret, struct err *err)
{
    struct net_listener *n;
    int r;

    if (l->closing) {
        (void)close(fd);
        return err_set(err, -ECANCELED, "the event loop is closing");
    }
    n = calloc(1, sizeof(*n));
    if (!n) {
        (void)close(fd);
        return err_nomem(err);
    }
    *n = (struct net_listener){.magic = NET_MAGIC_LISTENER, .fd = fd, .loop = l, .on_accept = on_accept, .ctx = ctx, .open_handles = 2};
    r = uv_poll_init(&l->uv, &n->poll, fd);
    if (r < 0) {
        (void)close(fd);
        free(n);
        return err_sys(err, r, "cannot accept on descriptor %d", fd);
    }
    (void)uv_timer_init(&l->uv, &n->timer); /* cannot fail */
    n->poll.data = n->timer.data = n;
    update(n);
    *ret = n;
    return 0;
}

struct net_listener *net_listener_close(struct net_listener *l)
{
    if (!l)
        return NULL;
    assert(l->magic == NET_MAGIC_LISTENER && !l->closing);
    l->closing = true;
    uv_close((uv_handle_t *)&l->poll, handle_closed);
    uv_close((uv_handle_t *)&l->timer, handle_closed);
    (void)close(l->fd); /* libuv has let go of it */
    return NULL;
}

void net_listener_set_tls(struct net_listener *l, struct net_tls *t)
{
    assert(l->magic == NET_MAGIC_LISTENER && !l->tls);
    l->tls = net_tls_ref(t);
}
