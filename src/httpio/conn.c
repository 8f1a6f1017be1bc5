/* SPDX-License-Identifier: MIT
 *
 * One connection of the server: reads, parses, hands requests to their owner one at a time, and decides when it goes on and when it ends. The parser stops
 * between messages; bytes of later requests wait in `pending` until the exchange before them is over. Reading goes on while a response is under way, so that
 * a client that leaves is noticed at once: its end, or an error, ends an exchange that is not complete. A client that only finishes its sending side looks
 * the same and is treated the same, unless its response was already complete.
 *
 * When a connection ends while the client may still be sending, it lingers: our side is finished and what comes is dropped for a short time, because closing
 * with unread bytes would reset the connection and could destroy the answer on its way.
 */
#include <assert.h>
#include <errno.h>

#include "server_int.h"

static const char error_type_request[] = "invalid_request_error";

/* ---- writing --------------------------------------------------------------------------------------------- */

void httpio_conn_write(struct httpio_conn *c, const struct str *parts, size_t n_parts)
{
    struct str all[5];
    size_t n = 0;

    assert(n_parts < BASE_COUNT(all));
    if (c->corked)
        all[n++] = buf_str(&c->out);
    for (size_t i = 0; i < n_parts; i++)
        all[n++] = parts[i];
    if (n == 0)
        return;
    if (net_stream_write(c->stream, all, n) < 0)
        c->broken = true;
    for (size_t i = 0; i < n; i++)
        c->given += all[i].len;
    if (c->corked) {
        c->corked = false;
        httpio_server_not_soon(c, SOON_FLUSH);
        if (c->out.cap > HTTPIO_OUT_KEEP_BYTES)
            buf_release(&c->out);
    }
    if (c->write_since == 0 && net_stream_queued(c->stream) > 0) {
        c->write_since = httpio_conn_now(c);
        c->write_seen = c->given - net_stream_unsent(c->stream);
        httpio_sweep_want(&c->server->sweep, httpio_conn_due(c, c->write_since));
    }
}

void httpio_conn_flush(struct httpio_conn *c)
{
    if (c->state == CONN_OPEN)
        httpio_conn_write(c, NULL, 0);
}

int httpio_conn_end_head(struct httpio_conn *c, bool with_date, unsigned minor)
{
    if (with_date) {
        buf_add(&c->out, "Date: ", 6);
        buf_add_c(&c->out, httpio_server_date(c->server));
        buf_add(&c->out, "\r\n", 2);
    }
    if (c->close_after)
        buf_add_c(&c->out, "Connection: close\r\n");
    else if (minor == 0)
        buf_add_c(&c->out, "Connection: keep-alive\r\n");
    http_write_head_end(&c->out);
    return buf_status(&c->out);
}

void httpio_conn_continue(struct httpio_conn *c)
{
    struct httpio_exchange *x = &c->x;
    struct str line = STR("HTTP/1.1 100 Continue\r\n\r\n");

    if (!x->active || !x->expect || x->begun || x->paused || !c->in_body)
        return;
    x->expect = false;
    httpio_conn_write(c, &line, 1);
}

/* ---- ending ---------------------------------------------------------------------------------------------- */

static void exchange_done(struct httpio_conn *c, bool completed)
{
    struct httpio_server *s = c->server;

    c->x.active = false;
    s->ops.on_done(s->ctx, &c->x, completed);
}

void httpio_conn_kill(struct httpio_conn *c, bool reset)
{
    if (c->state == CONN_CLOSED)
        return;
    c->state = CONN_CLOSED;
    httpio_server_gone(c);
    c->stream = net_stream_close(c->stream, reset);
    if (c->x.active)
        exchange_done(c, false);
}

/* Both sides have said everything. */
static void end_linger(struct httpio_conn *c)
{
    if (c->eof && net_stream_queued(c->stream) == 0)
        httpio_conn_kill(c, false);
}

static void conn_linger(struct httpio_conn *c)
{
    c->state = CONN_LINGER;
    httpio_server_idle(c, false);
    httpio_server_head(c, false);
    c->since = httpio_conn_now(c);
    c->dropped = 0;
    buf_release(&c->pending);
    net_stream_shutdown(c->stream);
    httpio_sweep_want(&c->server->sweep, httpio_conn_due(c, c->since));
    httpio_conn_update(c);
    end_linger(c);
}

void httpio_conn_refuse(struct httpio_conn *c, unsigned status, const char *type, const char *message)
{
    base_autobuf struct buf body = BUF_INIT((size_t)4 * ERR_TEXT_MAX);
    struct str part;
    bool sent = c->x.active && c->x.begun;

    if (c->x.active) {
        if (sent) {
            httpio_conn_kill(c, !c->corked);
            return;
        }
        exchange_done(c, false);
        if (c->state != CONN_OPEN)
            return;
    }
    c->close_after = true;
    httpio_error_body(&body, message, type, status);
    buf_clear(&c->out);
    if (http_write_status(&c->out, status) < 0) {
        httpio_conn_kill(c, false);
        return;
    }
    buf_addf(&c->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    if (buf_status(&body) < 0 || httpio_conn_end_head(c, true, 1) < 0) {
        httpio_conn_kill(c, false);
        return;
    }
    c->corked = true;
    part = buf_str(&body);
    httpio_conn_write(c, &part, 1);
    conn_linger(c);
}

/* No other request comes over this connection. `left`: bytes that nobody will read. */
static void conn_finish(struct httpio_conn *c, bool left)
{
    if (left || c->in_body || c->pending.len > 0)
        conn_linger(c);
    else
        httpio_conn_kill(c, false);
}

void httpio_conn_flushed(struct httpio_conn *c)
{
    exchange_done(c, true);
    if (c->state != CONN_OPEN)
        return;
    if (!c->feeding) {
        if (c->close_after || (c->eof && c->pending.len == 0)) {
            conn_finish(c, false);
            return;
        }
        if (c->pending.len > 0)
            httpio_server_soon(c, SOON_NEXT);
    }
    httpio_conn_update(c);
}

/* ---- what the parser finds ------------------------------------------------------------------------------- */

/* Stops the parser for good when an owner has ended the connection. */
static int go_on(const struct httpio_conn *c)
{
    return c->state == CONN_OPEN ? 0 : -ECANCELED;
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct httpio_conn *c = ctx;
    struct httpio_server *s = c->server;
    struct httpio_exchange *x = &c->x;

    assert(c->magic == HTTPIO_MAGIC_CONN && !x->active);
    *x = (struct httpio_exchange){.magic = HTTPIO_MAGIC_EXCHANGE, .active = true, .head = head, .remaining = -1};
    x->has_body = head->chunked || head->content_length > 0;
    x->expect = x->has_body && head->expect_continue;
    c->in_body = x->has_body;
    c->dropped = 0;
    c->close_after = c->close_after || !head->keep_alive;
    s->ops.on_request(s->ctx, x, head);
    if (c->state == CONN_OPEN)
        httpio_conn_continue(c);
    return go_on(c);
}

static int on_body(void *ctx, struct str data)
{
    struct httpio_conn *c = ctx;
    struct httpio_server *s = c->server;
    struct httpio_exchange *x = &c->x;

    assert(c->magic == HTTPIO_MAGIC_CONN);
    x->expect = false; /* the client did not wait */
    c->body_bytes += data.len;
    if (x->active && !x->ended) {
        if (s->ops.on_body)
            s->ops.on_body(s->ctx, x, data);
        return go_on(c);
    }
    c->dropped += data.len;
    if (c->dropped > HTTPIO_DROP_MAX && !x->active) /* not before the response is written */
        conn_linger(c);
    return go_on(c);
}

static int on_message_end(void *ctx)
{
    struct httpio_conn *c = ctx;
    struct httpio_server *s = c->server;
    struct httpio_exchange *x = &c->x;

    assert(c->magic == HTTPIO_MAGIC_CONN);
    c->in_body = false;
    c->since = httpio_conn_now(c); /* of a next head that is already here */
    if (x->active && !x->ended && s->ops.on_body_end)
        s->ops.on_body_end(s->ctx, x);
    return go_on(c);
}

static const struct http_parser_ops parser_ops = {on_head, on_body, on_message_end};

/* ---- reading --------------------------------------------------------------------------------------------- */

static void bad_request(struct httpio_conn *c, int code, const struct err *err)
{
    switch (code) {
    case -EMSGSIZE:
        httpio_server_add_count(c->server, HTTPIO_HEAD_LARGE);
        httpio_conn_refuse(c, 431, error_type_request, err->text);
        break;
    case -ENOMEM:
        httpio_conn_refuse(c, 503, "overloaded_error", "out of memory");
        break;
    default:
        httpio_server_add_count(c->server, HTTPIO_BAD);
        httpio_conn_refuse(c, 400, error_type_request, err->text);
    }
}

/* True when the parser may have bytes: the next request waits until the exchange before it is over. */
static bool may_feed(const struct httpio_conn *c)
{
    return c->state == CONN_OPEN && (c->x.active ? c->in_body : !c->close_after || c->in_body || !http_parser_idle(c->parser));
}

/* Parses what it may of data; returns how much was taken. */
static size_t feed(struct httpio_conn *c, struct str data)
{
    struct err err = {0};
    size_t used = 0;

    c->feeding = true;
    while (used < data.len && may_feed(c)) {
        size_t n = 0;
        int r = http_parser_feed(c->parser, (struct str){data.ptr + used, data.len - used}, &n, &err);

        if (r < 0 && c->state == CONN_OPEN)
            bad_request(c, r, &err);
        if (r < 0 || c->state != CONN_OPEN)
            break;
        used += n;
    }
    c->feeding = false;
    return used;
}

/* After feeding: what an exchange that ended meanwhile has left to be done. left: bytes that were not taken. */
static void after_feed(struct httpio_conn *c, size_t left)
{
    if (c->state != CONN_OPEN)
        return;
    if (c->eof && left == 0 && (!c->x.active || c->in_body)) {
        httpio_conn_kill(c, false); /* what is missing will never come */
        return;
    }
    if (!c->x.active && c->close_after && (c->in_body || http_parser_idle(c->parser))) {
        conn_finish(c, left > 0);
        return;
    }
    httpio_conn_update(c);
}

/* Keeps bytes of later requests. False: there is no memory, and the connection is closed. */
static bool keep(struct httpio_conn *c, struct str data)
{
    buf_add_str(&c->pending, data);
    if (buf_status(&c->pending) == 0)
        return true;
    httpio_conn_kill(c, true);
    return false;
}

static void on_data(void *ctx, struct str data)
{
    struct httpio_conn *c = ctx;
    size_t used;

    assert(c->magic == HTTPIO_MAGIC_CONN);
    if (c->state == CONN_LINGER) {
        c->dropped += data.len;
        if (c->dropped > HTTPIO_LINGER_BYTES)
            httpio_conn_kill(c, false);
        return;
    }
    if (c->pending.len > 0) {
        if (keep(c, data))
            httpio_conn_update(c);
        return;
    }
    if (c->phase == PHASE_BODY || c->phase == PHASE_IDLE)
        c->since = httpio_conn_now(c);
    used = feed(c, data);
    if (c->state == CONN_OPEN && used < data.len) {
        if (!keep(c, (struct str){data.ptr + used, data.len - used}))
            return;
        if (!c->x.active && !c->close_after)
            httpio_server_soon(c, SOON_NEXT);
    }
    after_feed(c, data.len - used);
}

void httpio_conn_next(struct httpio_conn *c)
{
    struct buf pending = c->pending;
    size_t used;

    if (c->state != CONN_OPEN || pending.len == 0 || !may_feed(c))
        return;
    /* Taken out while it is parsed: what an owner does meanwhile may release the connection's buffer. */
    c->pending = BUF_INIT(pending.max);
    c->since = httpio_conn_now(c);
    used = feed(c, buf_str(&pending));
    if (c->state == CONN_OPEN && used < pending.len) {
        buf_drop_front(&pending, used);
        c->pending = pending;
    } else {
        buf_release(&pending);
    }
    after_feed(c, c->pending.len);
}

static void on_end(void *ctx, int status)
{
    struct httpio_conn *c = ctx;

    assert(c->magic == HTTPIO_MAGIC_CONN);
    c->eof = true;
    if (status < 0) {
        httpio_conn_kill(c, false);
        return;
    }
    if (c->state == CONN_LINGER) {
        end_linger(c);
        return;
    }
    /* A complete response is still written, and requests that came before the end are answered. */
    if (c->x.active ? !c->x.ended : c->pending.len == 0)
        httpio_conn_kill(c, false);
}

static void on_drain(void *ctx)
{
    struct httpio_conn *c = ctx;
    struct httpio_server *s = c->server;

    assert(c->magic == HTTPIO_MAGIC_CONN);
    c->write_since = 0;
    if (c->state == CONN_LINGER)
        end_linger(c);
    if (c->state != CONN_OPEN || !c->x.active)
        return;
    if (c->x.ended) {
        httpio_conn_flushed(c);
    } else if (c->x.wait_drain) {
        c->x.wait_drain = false;
        if (s->ops.on_drain)
            s->ops.on_drain(s->ctx, &c->x);
    }
}

static void on_close(void *ctx)
{
    struct httpio_conn *c = ctx;

    assert(c->magic == HTTPIO_MAGIC_CONN && c->state == CONN_CLOSED);
    c->parser = http_parser_free(c->parser);
    buf_release(&c->out);
    buf_release(&c->pending);
    c->magic = c->x.magic = 0;
    httpio_server_unref(c->server);
    free(c);
}

static const struct net_stream_ops stream_ops = {.on_data = on_data, .on_end = on_end, .on_drain = on_drain, .on_close = on_close};

/* ---- accepting ------------------------------------------------------------------------------------------- */

void httpio_conn_accept(struct httpio_server *s, struct net_stream *stream)
{
    bool refused = s->limits.connections > 0 && s->open >= s->limits.connections && !httpio_server_make_room(s);
    struct httpio_conn *c = refused && s->refused >= HTTPIO_REFUSED_MAX ? NULL : calloc(1, sizeof(*c));
    struct http_parser *parser = c ? http_parser_new(HTTP_REQUEST, &parser_ops, c) : NULL;

    if (!parser) {
        free(c);
        (void)net_stream_close(stream, true);
        return;
    }
    *c = (struct httpio_conn){.magic = HTTPIO_MAGIC_CONN, .server = s, .stream = stream, .parser = parser, .refused = refused, .phase = PHASE_IDLE};
    c->out = BUF_INIT((size_t)HTTP_HEAD_MAX);
    c->pending = BUF_INIT(HTTPIO_PENDING_MAX + (size_t)256 * 1024);
    c->since = httpio_conn_now(c);
    s->refs++;
    httpio_server_add_count(s, refused ? HTTPIO_REFUSED : HTTPIO_ACCEPTED);
    if (refused)
        s->refused++;
    else
        s->open++;
    httpio_server_idle(c, !refused);
    LIST_INSERT_HEAD(&s->conns, c, link);
    net_stream_set_ops(stream, &stream_ops, c);
    if (refused) {
        httpio_conn_refuse(c, 503, "overloaded_error", "too many connections");
        return;
    }
    httpio_sweep_want(&s->sweep, httpio_conn_due(c, c->since));
    httpio_conn_update(c);
    if (s->ops.on_open)
        s->ops.on_open(s->ctx);
}
