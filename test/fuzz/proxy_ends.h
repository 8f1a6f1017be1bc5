/* SPDX-License-Identifier: MIT
 *
 * Both ends of the router in fuzz_proxy.c: replicas, which hold it to what a server may be sent, and clients, which hold it to what they may get. Each reads and writes bare sockets of this machine without
 * waiting; what must hold is said at the top of fuzz_proxy.c.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proxy_world.h"

/* ---- replicas -------------------------------------------------------------------------------------------------- */

static int said_head(void *ctx, const struct http_head *head)
{
    (void)ctx, (void)head;
    return 0;
}
static int said_body(void *ctx, struct str data)
{
    (void)ctx, (void)data;
    return 0;
}
static int said_end(void *ctx)
{
    struct backend *b = ctx;
    b->answers++;
    if (b->answer < ANSWERS && b->answers == b->requests)
        w.answers[b->answer].whole = true;
    return 0;
}
static const struct http_parser_ops said_ops = {said_head, said_body, said_end};

static void backend_close(struct backend *b)
{
    if (b->fd < 0)
        return;
    if (!b->loose && b->answers < b->requests)
        base_ignore(http_parser_eof(b->said));
    (void)close(b->fd);
    b->said = http_parser_free(b->said);
    buf_release(&b->in);
    buf_release(&b->out);
    b->fd = -1;
}

/* What the kernel has of an answer is read as the router must read it. */
static void backend_said(struct backend *b, struct str s)
{
    b->unsure = b->unsure || b->deaf || (b->answers >= b->requests && b->in.len > b->at);
    while (s.len && !b->loose) {
        size_t used = 0;
        if (b->answers >= b->requests || http_parser_feed(b->said, s, &used, NULL) < 0) {
            b->loose = true;
            return;
        }
        s = (struct str){s.ptr + used, s.len - used};
    }
}

/* Sends what waits. */
static bool flush(int fd, struct buf *out, size_t *ret_sent)
{
    ssize_t n = out->len ? send(fd, out->ptr, out->len, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    *ret_sent = n > 0 ? (size_t)n : 0;
    if (n < 0 && errno != EAGAIN)
        buf_clear(out);
    return n > 0;
}

static bool backend_flush(struct backend *b)
{
    size_t n;
    if (!flush(b->fd, &b->out, &n))
        return false;
    backend_said(b, (struct str){b->out.ptr, n});
    buf_drop_front(&b->out, n);
    return true;
}

static void backend_shut(struct backend *b)
{
    if (!b->loose && b->answers < b->requests && !b->out.len)
        base_ignore(http_parser_eof(b->said));
    b->loose = true;
    b->unsure = b->unsure || b->deaf;
    (void)shutdown(b->fd, SHUT_WR);
}

static void backend_send(struct backend *b, struct str s)
{
    expand(s, 'B', NULL, b->deaf || b->unsure ? ANSWERS : b->answer, &b->out);
    (void)backend_flush(b);
}

/* A whole request has come. */
static void backend_asked(struct backend *b, const struct wire *m, struct str body)
{
    struct mark mark = {0};
    size_t at = 0;
    if (b->answers < b->requests && !b->unsure)
        fail("a request before the last one was answered", m->head);
    if (b->loose && !b->unsure)
        fail("a request over a connection that is not clean", m->head);
    b->requests++;
    b->answer = ANSWERS;
    if (str_eq_c(m->method, "HEAD"))
        http_parser_expect_head(b->said);
    if (w.n_answers < ANSWERS) {
        b->answer = w.n_answers++;
        bool found = mark_next(m->target, &at, &mark);
        for (at = 0; !found && mark_next(body, &at, &mark);)
            found = mark.kind == 'C';
        w.answers[b->answer] = (struct answer){.marked = found && mark.kind == 'C', .whole = b->unsure, .mark = mark.number};
    }
    const struct buf *reply = &w.automatic[b->replica];
    if (!reply->len)
        return;
    b->hangs_up = reply->ptr[0] == '!';
    backend_send(b, (struct str){reply->ptr + b->hangs_up, reply->len - b->hangs_up});
}

static bool backend_read(struct backend *b)
{
    char block[16384];
    ssize_t n = b->deaf ? -1 : recv(b->fd, block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && (b->deaf || errno == EAGAIN)) {
        bool moved = backend_flush(b), over = b->hangs_up && !b->out.len;
        if (over)
            backend_close(b);
        return moved || over;
    }
    if (n <= 0) {
        backend_close(b);
        return true;
    }
    buf_add(&b->in, block, (size_t)n);
    struct wire m;
    struct str rest = {b->in.ptr + b->at, b->in.len - b->at};
    int rc = wire_read(rest, true, false, false, &m, &w.scratch);
    if (rc < 0)
        fail(m.wrong, rest);
    if (rc > 0) {
        b->at += m.len;
        if (rest.len > m.len)
            fail("bytes behind a request", rest);
        backend_asked(b, &m, buf_str(&w.scratch));
    }
    return true;
}

static bool backends_accept(unsigned replica)
{
    int fd = base.listening[replica] < 0 ? -1 : accept4(base.listening[replica], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return false;
    struct backend *b = NULL;
    for (size_t i = 0; i < BACKENDS && !b; i++)
        if (w.backends[i].fd < 0)
            b = &w.backends[i];
    if (!b || w.ending) {
        (void)close(fd);
        return true;
    }
    *b = (struct backend){.fd = fd, .replica = replica, .born = ++w.births, .answer = ANSWERS, .in = BUF_INIT(16 << 20), .out = BUF_INIT(16 << 20)};
    b->said = http_parser_new(HTTP_RESPONSE, &said_ops, b);
    need(b->said, "memory");
    return true;
}

/* The oldest or newest connection to a replica; NULL. */
static struct backend *backend_of(unsigned replica, bool newest)
{
    struct backend *found = NULL;
    for (size_t i = 0; i < BACKENDS; i++) {
        struct backend *b = &w.backends[i];
        if (b->fd >= 0 && b->replica == replica && (!found || (b->born > found->born) == newest))
            found = b;
    }
    return found;
}

/* ---- clients ------------------------------------------------------------------------------------------------------ */

static int asked_head(void *ctx, const struct http_head *head)
{
    struct client *c = ctx;
    if (c->n_asked < ASKED)
        c->head[c->n_asked] = str_eq_c(head->method, "HEAD");
    c->n_asked++;
    return 0;
}
static int asked_end(void *ctx)
{
    ((struct client *)ctx)->n_whole++;
    return 0;
}
static const struct http_parser_ops asked_ops = {asked_head, said_body, asked_end};

static void client_close(struct client *c)
{
    if (c->fd < 0)
        return;
    (void)close(c->fd);
    c->asked = http_parser_free(c->asked);
    buf_release(&c->got);
    buf_release(&c->out);
    c->fd = -1;
}

static void client_open(struct client *c)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    *c = (struct client){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), .id = ++w.connections & 0xff, .got = BUF_INIT(64 << 20), .out = BUF_INIT(16 << 20)};
    memcpy(a.sun_path, base.paths[REPLICAS], strlen(base.paths[REPLICAS]));
    need(c->fd >= 0 && connect(c->fd, (struct sockaddr *)&a, sizeof a) == 0, "a client cannot connect");
    c->asked = http_parser_new(HTTP_REQUEST, &asked_ops, c);
    need(c->asked, "memory");
}

static bool client_flush(struct client *c)
{
    size_t n;
    if (!flush(c->fd, &c->out, &n))
        return false;
    struct str s = {c->out.ptr, n};
    while (s.len && !c->broken) {
        size_t used = 0;
        c->broken = http_parser_feed(c->asked, s, &used, NULL) < 0;
        s = (struct str){s.ptr + used, s.len - used};
    }
    buf_drop_front(&c->out, n);
    return true;
}

static bool client_read(struct client *c)
{
    char block[16384];
    bool moved = client_flush(c);
    ssize_t n = c->deaf || c->ended ? -1 : recv(c->fd, block, sizeof block, MSG_DONTWAIT);
    if (n > 0)
        buf_add(&c->got, block, (size_t)n);
    else if (!c->deaf && !c->ended && (n == 0 || errno != EAGAIN))
        c->ended = true;
    else
        return moved;
    return true;
}

/* What is in an answer is the client's, and behind what it had. A replica's answer that is not whole must not look whole. */
static void check_marks(const struct client *c, const struct wire *m, struct str all, bool whole, unsigned *next)
{
    struct mark mark;
    int64_t last = -1, of = -1;
    for (size_t at = 0; mark_next(all, &at, &mark);) {
        unsigned number = mark.number;
        if (mark.kind == 'B') {
            if (number >= w.n_answers || (of >= 0 && of != number))
                fail("parts of two answers in one", all);
            of = number;
            if (whole && !m->events && !m->until_close && !w.answers[number].whole)
                fail("a broken answer that looks whole", all);
            if (!w.answers[number].marked)
                continue;
            number = w.answers[number].mark;
        }
        if (number >> 16 != c->id)
            fail("another client's answer", all);
        if ((number & 0xffff) < *next)
            fail("an answer out of order", all);
        if ((int64_t)(number & 0xffff) > last)
            last = number & 0xffff;
    }
    if (last >= 0)
        *next = (unsigned)last + 1;
}

/* Reads what it got. at_rest: nothing of it is under way any more. */
static void client_check(struct client *c, bool at_rest)
{
    bool partial = c->got.len > c->at;
    while (partial && (at_rest || c->ended || c->looked < c->got.len)) {
        struct wire m;
        struct str rest = {c->got.ptr + c->at, c->got.len - c->at};
        bool bare = c->n_answers < c->n_asked && c->n_answers < ASKED && c->head[c->n_answers];
        int rc = wire_read(rest, false, bare, c->ended, &m, &w.scratch);
        unsigned next = c->next;
        if (rc < 0)
            fail(m.wrong, rest);
        if (!bare)
            check_marks(c, &m, rc ? (struct str){rest.ptr, m.len} : rest, rc, &next);
        c->looked = c->got.len;
        if (rc == 0)
            break;
        if (m.status < 200 && m.status != 100)
            fail("an interim answer that nobody sends", rest);
        c->n_answers += m.status >= 200;
        c->next = next;
        c->at += m.len;
        partial = c->got.len > c->at;
    }
    if (c->n_answers > c->n_asked + 1)
        fail("more answers than requests", buf_str(&c->got));
    if (!at_rest || c->ended || c->deaf || c->out.len)
        return;
    if (partial)
        fail("an answer that never ends", buf_str(&c->got));
    if (c->n_answers < c->n_whole)
        fail("a request without an answer", buf_str(&c->got));
}
