/* SPDX-License-Identifier: MIT
 *
 * Streams. Reading: all streams of a loop share its one buffer, data is handed to the owner before the next read. Writing: bytes go to the kernel at once
 * as one gather-write; only what it does not take is copied, into `wait`, which becomes `flight` when it is libuv's turn. A stream that keeps up never
 * allocates, and one that has caught up gives its buffers back.
 *
 * A failed write is reported by on_end, never from within net_stream_write. While reading is on, the report waits for what the peer sent before it broke
 * off: a server may answer "too large" and close while the request is still being sent. Otherwise the loop's idle callback reports it.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "net_int.h"

/* ---- life ------------------------------------------------------------------------------------------------ */

static struct net_stream *stream_new(struct net_loop *l, bool tcp)
{
    struct net_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->magic = NET_MAGIC_STREAM;
    s->tcp = tcp;
    s->loop = l;
    s->flight = BUF_INIT(NET_QUEUE_MAX);
    s->wait = BUF_INIT(NET_QUEUE_MAX);
    if (tcp)
        (void)uv_tcp_init(&l->uv, &s->uv.tcp); /* cannot fail without flags */
    else
        (void)uv_pipe_init(&l->uv, &s->uv.pipe, 0);
    s->uv.handle.data = s;
    return s;
}

static void stream_closed(uv_handle_t *handle)
{
    struct net_stream *s = handle->data;

    assert(s->magic == NET_MAGIC_STREAM && s->closing);
    if (s->ops.on_close)
        s->ops.on_close(s->ctx);
    net_tls_end(s);
    buf_release(&s->flight);
    buf_release(&s->wait);
    s->magic = NET_MAGIC_DEAD;
    free(s);
}

static int stream_fd(const struct net_stream *s)
{
    uv_os_fd_t fd;

    return uv_fileno(&s->uv.handle, &fd) == 0 ? fd : -1;
}

struct net_stream *net_stream_close(struct net_stream *s, bool reset)
{
    if (!s)
        return NULL;
    assert(s->magic == NET_MAGIC_STREAM && !s->closing);
    if (s->tls && !reset && s->error == 0 && !s->shut)
        net_tls_farewell(s);
    s->closing = true;
    if (s->late) {
        s->late = false;
        TAILQ_REMOVE(&s->loop->late, s, late_link);
    }
    if (reset && s->tcp && stream_fd(s) >= 0) {
        struct linger hard = {.l_onoff = 1, .l_linger = 0};

        (void)setsockopt(stream_fd(s), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    uv_close(&s->uv.handle, stream_closed);
    return NULL;
}

/* Closes a stream that its owner has never seen. */
static void stream_drop(struct net_stream *s)
{
    s->ops = (struct net_stream_ops){0};
    (void)net_stream_close(s, false);
}

void net_stream_set_ops(struct net_stream *s, const struct net_stream_ops *ops, void *ctx)
{
    assert(s->magic == NET_MAGIC_STREAM);
    s->ops = *ops;
    s->ctx = ctx;
}

/* ---- the end --------------------------------------------------------------------------------------------- */

/* What connected gets no further: its owner has not been told yet that it did. */
static void connect_failed(struct net_stream *s, int status)
{
    s->greeting = false;
    s->error = status;
    s->ended = true;
    buf_release(&s->wait);
    s->ops.on_connect(s->ctx, status);
}

static void report_end(struct net_stream *s, int status)
{
    s->reading = false;
    if (s->greeting) {
        connect_failed(s, status < 0 ? status : -ECONNRESET);
        return;
    }
    s->ended = true;
    if (s->ops.on_end)
        s->ops.on_end(s->ctx, status);
}

static void report_late(uv_idle_t *idle)
{
    struct net_loop *l = idle->data;
    struct net_stream *s;

    assert(l->magic == NET_MAGIC_LOOP);
    while ((s = TAILQ_FIRST(&l->late))) {
        TAILQ_REMOVE(&l->late, s, late_link);
        s->late = false;
        report_end(s, s->error);
    }
    (void)uv_idle_stop(idle);
}

static void owe_end(struct net_stream *s)
{
    if (s->late)
        return;
    s->late = true;
    TAILQ_INSERT_TAIL(&s->loop->late, s, late_link);
    (void)uv_idle_start(&s->loop->idle, report_late);
}

/* Writing has failed. Out of memory leaves the connection alive, so that its read side would never tell. */
static void broke(struct net_stream *s, int error)
{
    s->error = error;
    buf_release(&s->wait);
    if (s->reading && error == -ENOMEM) {
        (void)uv_read_stop(&s->uv.stream);
        s->reading = false;
    }
    if (!s->reading)
        owe_end(s);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void alloc_cb(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    struct net_stream *s = handle->data;

    (void)wanted;
    *buf = uv_buf_init(s->loop->rbuf, sizeof(s->loop->rbuf));
}

static void deliver(struct net_stream *s, struct str data)
{
    if (s->tls) {
        int r = net_tls_feed(s, data);

        if (r == 0 || s->closing || s->late)
            return;
        if (s->reading)
            (void)uv_read_stop(&s->uv.stream);
        if (r < 0 && s->error == 0)
            s->error = r;
        report_end(s, s->error);
    } else if (s->ops.on_data) {
        s->ops.on_data(s->ctx, data);
    }
}

/* libuv makes up an end when the descriptor is hung up after a short read, and would hide a reset behind it, which cuts a message where an end completes
 * it. So the kernel is asked. */
static void read_rest(struct net_stream *s)
{
    ssize_t n;

    do {
        n = recv(stream_fd(s), s->loop->rbuf, sizeof(s->loop->rbuf), MSG_DONTWAIT);
        if (n > 0)
            deliver(s, (struct str){s->loop->rbuf, (size_t)n});
        if (s->closing || s->ended)
            return;
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0 && errno != EAGAIN && s->error == 0)
        s->error = -errno;
    if (s->tls && s->error == 0)
        s->error = -ECONNRESET; /* an end that was not announced may be anybody's doing */
    report_end(s, s->error);
}

static void read_cb(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct net_stream *s = stream->data;

    assert(s->magic == NET_MAGIC_STREAM && !s->closing);
    if (n > 0) {
        deliver(s, (struct str){buf->base, (size_t)n});
    } else if (n == UV_EOF) {
        (void)uv_read_stop(stream);
        read_rest(s);
    } else if (n < 0) {
        (void)uv_read_stop(stream);
        if (s->error == 0)
            s->error = (int)n;
        report_end(s, s->error);
    }
}

/* Whatever the owner wants. */
static void read_on(struct net_stream *s, bool on)
{
    if (on == s->reading)
        return;
    s->reading = on;
    if (!on) {
        (void)uv_read_stop(&s->uv.stream);
        if (s->error != 0)
            owe_end(s); /* the read side was to tell, and is silent from here on */
        return;
    }
    int r = uv_read_start(&s->uv.stream, alloc_cb, read_cb);
    if (r < 0)
        broke(s, r);
}

void net_stream_read(struct net_stream *s, bool on)
{
    assert(s->magic == NET_MAGIC_STREAM && !s->closing);
    s->want_read = on;
    if (!s->connecting && !s->greeting && !s->ended && !s->late)
        read_on(s, on);
}

bool net_stream_gone(const struct net_stream *s)
{
    struct pollfd p = {.fd = stream_fd(s), .events = POLLRDHUP};

    return s->ended || s->error != 0 || (poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
}

bool net_stream_quiet(const struct net_stream *s)
{
    char byte;

    if (s->closing || s->connecting || s->ended || s->error != 0)
        return false;
    return recv(stream_fd(s), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void finish_sending(struct net_stream *s)
{
    /* An error shows when the peer has gone, and then the read side tells. */
    (void)shutdown(stream_fd(s), SHUT_WR);
}

static void fly(struct net_stream *s);

static void write_cb(uv_write_t *req, int status)
{
    struct net_stream *s = req->handle->data;

    assert(s->magic == NET_MAGIC_STREAM);
    s->flying = false;
    buf_release(&s->flight);
    if (s->closing)
        return;
    if (status < 0) {
        if (s->error == 0)
            broke(s, status);
        return;
    }
    if (s->wait.len > 0) {
        fly(s);
        return;
    }
    if (s->shut)
        finish_sending(s);
    if (s->ops.on_drain)
        s->ops.on_drain(s->ctx);
}

/* Gives what waits to libuv. */
static void fly(struct net_stream *s)
{
    uv_buf_t buf;
    int r;

    s->flight = s->wait;
    s->wait = BUF_INIT(NET_QUEUE_MAX);
    buf = uv_buf_init(s->flight.ptr, (unsigned)s->flight.len); /* NET_QUEUE_MAX fits */
    r = uv_write(&s->req.write, &s->uv.stream, &buf, 1, write_cb);
    if (r == 0) {
        s->flying = true;
        return;
    }
    buf_release(&s->flight);
    broke(s, r);
}

/* Hands parts to the kernel while it takes them. Returns the bytes taken or a negative errno. */
static ssize_t send_now(struct net_stream *s, const struct str *parts, size_t n_parts)
{
    size_t taken = 0;
    int fd = stream_fd(s);

    while (n_parts > 0) {
        struct iovec bufs[NET_PARTS];
        struct msghdr m = {.msg_iov = bufs, .msg_iovlen = n_parts < NET_PARTS ? n_parts : NET_PARTS};
        size_t n = m.msg_iovlen, want = 0;

        for (size_t i = 0; i < n; i++) {
            bufs[i] = (struct iovec){(char *)parts[i].ptr, parts[i].len};
            want += parts[i].len;
        }
        /* Not by libuv, which writes as to a file: for a socket that is the longer way into the kernel. */
        ssize_t r = want == 0 ? 0 : n == 1 ? send(fd, parts->ptr, want, MSG_DONTWAIT | MSG_NOSIGNAL) : sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
            return (ssize_t)taken;
        if (r < 0)
            return -errno;
        taken += (size_t)r;
        if ((size_t)r < want)
            break;
        parts += n;
        n_parts -= n;
    }
    return (ssize_t)taken;
}

int net_stream_write(struct net_stream *s, const struct str *parts, size_t n_parts)
{
    if (!s->tls)
        return net_stream_send(s, parts, n_parts);
    assert(s->magic == NET_MAGIC_STREAM);
    if (s->closing || s->error != 0 || s->shut)
        return -EPIPE;
    if (net_tls_write(s, parts, n_parts) < 0) {
        if (s->error == 0)
            broke(s, -EPROTO);
        return -EPIPE;
    }
    return 0;
}

int net_stream_send(struct net_stream *s, const struct str *parts, size_t n_parts)
{
    size_t total = 0, skip = 0;

    assert(s->magic == NET_MAGIC_STREAM);
    if (s->closing || s->error != 0 || s->shut)
        return -EPIPE;
    for (size_t i = 0; i < n_parts; i++)
        total += parts[i].len;
    if (total > NET_QUEUE_MAX) {
        broke(s, -ENOMEM);
        return -ENOMEM;
    }
    if (!s->connecting && !s->flying) {
        ssize_t taken = send_now(s, parts, n_parts);

        if (taken < 0) {
            broke(s, (int)taken);
            return -EPIPE;
        }
        skip = (size_t)taken;
        if (skip == total)
            return 0;
    }
    for (size_t i = 0; i < n_parts; i++) {
        size_t off = skip < parts[i].len ? skip : parts[i].len;

        if (off < parts[i].len)
            buf_add(&s->wait, parts[i].ptr + off, parts[i].len - off);
        skip -= off;
    }
    if (buf_status(&s->wait) < 0) {
        broke(s, -ENOMEM);
        return -ENOMEM;
    }
    if (!s->connecting && !s->flying)
        fly(s);
    return 0;
}

size_t net_stream_queued(const struct net_stream *s)
{
    return s->wait.len + (s->flying ? uv_stream_get_write_queue_size(&s->uv.stream) : 0);
}

size_t net_stream_unsent(const struct net_stream *s)
{
    int held = 0;

    if (s->connecting || s->closing || ioctl(stream_fd(s), SIOCOUTQ, &held) < 0 || held < 0)
        held = 0;
    return net_stream_queued(s) + (size_t)held;
}

void net_stream_shutdown(struct net_stream *s)
{
    assert(s->magic == NET_MAGIC_STREAM && !s->closing);
    if (s->shut)
        return;
    if (s->tls && s->error == 0)
        net_tls_farewell(s);
    s->shut = true;
    if (!s->connecting && !s->flying)
        finish_sending(s);
}

/* ---- making ---------------------------------------------------------------------------------------------- */

bool net_stream_greet(struct net_stream *s)
{
    s->greeting = false;
    s->ops.on_connect(s->ctx, 0);
    if (s->closing || net_tls_write(s, NULL, 0) < 0)
        return false;
    if (!s->want_read)
        read_on(s, false);
    return true;
}

static void connect_cb(uv_connect_t *req, int status)
{
    struct net_stream *s = req->handle->data;

    assert(s->magic == NET_MAGIC_STREAM);
    if (s->closing)
        return;
    s->connecting = false;
    if (status == 0 && s->tls) {
        s->greeting = true;
        status = net_tls_hello(s);
        if (status == 0) {
            read_on(s, true);
            return;
        }
    }
    if (status < 0) {
        connect_failed(s, status);
        return;
    }
    s->ops.on_connect(s->ctx, 0);
    if (s->closing)
        return;
    if (s->wait.len > 0 && !s->flying)
        fly(s);
    else if (s->shut && !s->flying)
        finish_sending(s);
    if (s->want_read)
        net_stream_read(s, true);
}

int net_connect(struct net_loop *l, const struct net_addr *a, const struct net_stream_ops *ops, void *ctx, struct net_stream **ret, struct err *err)
{
    char text[NET_ADDR_TEXT];
    struct sockaddr_storage ss;
    struct net_stream *s;
    int r = 0;

    if (l->closing)
        return err_set(err, -ECANCELED, "the event loop is closing");
    if (net_addr_sockaddr(a, &ss) == 0)
        return err_set(err, -EINVAL, "cannot connect to '%s': not an IP address or a path", a->host);
    s = stream_new(l, !a->unix_path);
    if (!s)
        return err_nomem(err);
    s->connecting = true;
    s->want_read = true;
    if (s->tcp) {
        (void)uv_tcp_nodelay(&s->uv.tcp, 1); /* remembered for the socket to come */
        r = uv_tcp_connect(&s->req.connect, &s->uv.tcp, (const struct sockaddr *)&ss, connect_cb);
    } else {
        uv_pipe_connect(&s->req.connect, &s->uv.pipe, a->host, connect_cb);
    }
    if (r < 0) {
        stream_drop(s);
        return err_sys(err, r, "cannot connect to '%s'", net_addr_text(a, text));
    }
    net_stream_set_ops(s, ops, ctx);
    *ret = s;
    return 0;
}

int net_stream_set_tls(struct net_stream *s, struct net_tls *t)
{
    assert(s->magic == NET_MAGIC_STREAM && s->connecting && !s->tls && s->wait.len == 0);
    return net_tls_begin(s, t);
}

int net_stream_adopt(struct net_loop *l, int fd, struct net_stream **ret)
{
    int domain = 0, type = 0, r;
    socklen_t len = sizeof(int);
    struct net_stream *s;

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
        r = -errno;
    else if (type != SOCK_STREAM || (domain != AF_INET && domain != AF_INET6 && domain != AF_UNIX))
        r = -EINVAL;
    else
        r = l->closing ? -ECANCELED : 0;
    s = r == 0 ? stream_new(l, domain != AF_UNIX) : NULL;
    if (!s) {
        (void)close(fd);
        return r < 0 ? r : -ENOMEM;
    }
    if (s->tcp)
        (void)uv_tcp_nodelay(&s->uv.tcp, 1);
    r = s->tcp ? uv_tcp_open(&s->uv.tcp, fd) : uv_pipe_open(&s->uv.pipe, fd);
    if (r < 0) {
        if (stream_fd(s) < 0)
            (void)close(fd);
        stream_drop(s);
        return r;
    }
    *ret = s;
    return 0;
}

int net_stream_from_fd(struct net_loop *l, int fd, const struct net_stream_ops *ops, void *ctx, struct net_stream **ret, struct err *err)
{
    struct net_stream *s;
    int r = net_stream_adopt(l, fd, &s);

    if (r < 0)
        return err_sys(err, r, "cannot use descriptor %d as a stream", fd);
    net_stream_set_ops(s, ops, ctx);
    net_stream_read(s, true);
    *ret = s;
    return 0;
}

bool net_stream_greeted(const struct net_stream *s)
{
    return !s->tls || net_tls_greeted(s);
}

int net_stream_dup(const struct net_stream *s)
{
    if (s->closing || s->connecting || s->tls || net_stream_queued(s) > 0)
        return -EAGAIN;
    int fd = fcntl(stream_fd(s), F_DUPFD_CLOEXEC, 3);
    return fd < 0 ? -errno : fd;
}

int net_stream_peer_cred(const struct net_stream *s, pid_t *ret_pid, uid_t *ret_uid)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    if (s->tcp)
        return -ENOTSUP;
    if (getsockopt(stream_fd(s), SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return -errno;
    *ret_pid = cred.pid;
    *ret_uid = cred.uid;
    return 0;
}
