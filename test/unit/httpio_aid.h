/* SPDX-License-Identifier: MIT
 *
 * What the tests of httpio share: a loop with a watchdog, and raw ends of connections that send bytes and keep what they get. Every event stops the loop, and
 * WAIT turns it until its condition holds; a condition that never comes true is a failure after HANG_MS, not a hang.
 */
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <net/net.h>

#define HANG_MS 5000

struct world {
    struct net_loop *loop;
    struct net_timer *watchdog, *nap;
    bool hung, napped;
};

static inline void world_hang(void *ctx)
{
    struct world *w = ctx;

    w->hung = true;
    net_loop_stop(w->loop);
}

static inline void world_nap_over(void *ctx)
{
    struct world *w = ctx;

    w->napped = true;
    net_loop_stop(w->loop);
}

static inline void world_open(struct world *w)
{
    *w = (struct world){0};
    assert_int_equal(net_loop_new(&w->loop, NULL), 0);
    w->watchdog = net_timer_new(w->loop, world_hang, w);
    w->nap = net_timer_new(w->loop, world_nap_over, w);
    assert_non_null(w->watchdog);
    assert_non_null(w->nap);
}

static inline void world_turn(struct world *w)
{
    net_timer_start(w->watchdog, HANG_MS, 0);
    net_loop_run(w->loop);
    net_timer_stop(w->watchdog);
    assert_false(w->hung);
}

#define WAIT(w, cond)      \
    do {                   \
        while (!(cond))    \
            world_turn(w); \
    } while (0)

/* Lets the loop run for a while in which something must not happen. */
static inline void world_nap(struct world *w, uint64_t ms)
{
    w->napped = false;
    net_timer_start(w->nap, ms, 0);
    WAIT(w, w->napped);
}

/* ---- raw ends -------------------------------------------------------------------------------------------- */

struct raw {
    struct world *w;
    struct net_stream *s;
    struct buf got;
    bool connected, ended, closed;
    int status;
};

static inline void raw_on_connect(void *ctx, int status)
{
    struct raw *r = ctx;

    r->connected = status == 0;
    r->ended = status < 0;
    r->status = status;
    net_loop_stop(r->w->loop);
}

static inline void raw_on_data(void *ctx, struct str data)
{
    struct raw *r = ctx;

    buf_add_str(&r->got, data);
    net_loop_stop(r->w->loop);
}

static inline void raw_on_end(void *ctx, int status)
{
    struct raw *r = ctx;

    r->ended = true;
    r->status = status;
    net_loop_stop(r->w->loop);
}

static inline void raw_on_drain(void *ctx)
{
    struct raw *r = ctx;

    net_loop_stop(r->w->loop);
}

static inline void raw_on_close(void *ctx)
{
    struct raw *r = ctx;

    r->closed = true;
    r->s = NULL;
    net_loop_stop(r->w->loop);
}

static const struct net_stream_ops raw_ops = {raw_on_connect, raw_on_data, raw_on_end, raw_on_drain, raw_on_close};

static inline void raw_init(struct raw *r, struct world *w)
{
    *r = (struct raw){.w = w, .got = BUF_INIT(64 * 1024 * 1024)};
}

static inline void raw_try_connect(struct raw *r, struct world *w, const struct net_addr *a)
{
    raw_init(r, w);
    assert_int_equal(net_connect(w->loop, a, &raw_ops, r, &r->s, NULL), 0);
    WAIT(w, r->connected || r->ended);
}

static inline void raw_connect(struct raw *r, struct world *w, const struct net_addr *a)
{
    raw_try_connect(r, w, a);
    assert_true(r->connected);
}

/* With small buffers, so that the peer soon notices that nothing is read. It does not read yet. */
static inline void raw_connect_narrow(struct raw *r, struct world *w, const struct net_addr *a)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(a->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bytes = 32 * 1024;

    raw_init(r, w);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    assert_int_equal(net_stream_from_fd(w->loop, fd, &raw_ops, r, &r->s, NULL), 0);
    net_stream_read(r->s, false);
    r->connected = true;
}

static inline void raw_send_bytes(struct raw *r, struct str data)
{
    int e = net_stream_write(r->s, &data, 1);

    (void)e; /* the peer may have closed */
}

static inline void raw_send(struct raw *r, const char *text)
{
    raw_send_bytes(r, str_of(text));
}

static inline const char *raw_got(const struct raw *r)
{
    return r->got.ptr ? r->got.ptr : "";
}

static inline bool raw_has(const struct raw *r, const char *text)
{
    return strstr(raw_got(r), text) != NULL;
}

/* True when what came ends with text: cheap, and for bytes too. */
static inline bool raw_has_end(const struct raw *r, const char *text)
{
    return str_ends(buf_str(&r->got), str_of(text));
}

/* How often text was received. */
static inline size_t raw_count(const struct raw *r, const char *text)
{
    size_t n = 0, len = strlen(text);

    /* Not strstr, which under ASan looks at all that follows each time. */
    for (size_t i = 0; i + len <= r->got.len; i++)
        if (r->got.ptr[i] == text[0] && memcmp(r->got.ptr + i, text, len) == 0)
            n++;
    return n;
}

static inline void raw_close(struct raw *r, bool reset)
{
    if (r->s) {
        (void)net_stream_close(r->s, reset);
        WAIT(r->w, r->closed);
    }
    buf_release(&r->got);
}

static inline struct net_addr loopback(uint16_t port)
{
    struct net_addr a;

    assert_int_equal(net_addr_ip("127.0.0.1", port, &a), 0);
    return a;
}
