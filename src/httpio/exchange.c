/* SPDX-License-Identifier: MIT
 *
 * What the owner of an exchange may do: read or not, and answer. The head of a response is corked: it goes out with the first bytes of the body in one
 * system call, or by itself before the loop waits again. Nothing here calls the owner except what ends the exchange, as the very last thing.
 */
#include <assert.h>
#include <errno.h>

#include "server_int.h"

static struct httpio_conn *conn_of(const struct httpio_exchange *x)
{
    struct httpio_conn *c = base_container(x, struct httpio_conn, x);

    assert(x->magic == HTTPIO_MAGIC_EXCHANGE && c->magic == HTTPIO_MAGIC_CONN);
    return c;
}

void httpio_exchange_set(struct httpio_exchange *x, void *user)
{
    x->user = user;
}

void *httpio_exchange_get(const struct httpio_exchange *x)
{
    return x->user;
}

const struct http_head *httpio_exchange_head(const struct httpio_exchange *x)
{
    return x->head;
}

int httpio_exchange_cred(const struct httpio_exchange *x, pid_t *ret_pid, uid_t *ret_uid)
{
    const struct httpio_conn *c = conn_of(x);

    return c->state == CONN_CLOSED ? -ENOTCONN : net_stream_peer_cred(c->stream, ret_pid, ret_uid);
}

void httpio_read(struct httpio_exchange *x, bool on)
{
    struct httpio_conn *c = conn_of(x);

    if (!x->active || c->state != CONN_OPEN || x->paused == !on)
        return;
    x->paused = !on;
    if (on) {
        c->since = c->body_since = net_loop_now_ms(c->server->loop);
        c->body_bytes = 0;
        httpio_sweep_want(&c->server->sweep, httpio_conn_due(c, c->since));
        if (!c->feeding)
            httpio_conn_continue(c);
    }
    httpio_conn_update(c);
}

/* ---- answering ------------------------------------------------------------------------------------------- */

/* Content-Length, Transfer-Encoding, or the decision to end the response by closing. */
static void add_framing(struct httpio_conn *c, unsigned status, int64_t length)
{
    struct httpio_exchange *x = &c->x;

    if (status == 204 || status == 304)
        return;
    if (length >= 0) {
        buf_add(&c->out, "Content-Length: ", 16);
        buf_add_u64(&c->out, (uint64_t)length);
        buf_add(&c->out, "\r\n", 2);
    } else if (x->head->minor > 0) {
        x->chunked = true;
        buf_add_c(&c->out, "Transfer-Encoding: chunked\r\n");
    } else {
        c->close_after = true;
    }
}

/* True when the rest of the request's body will not be read to its end. */
static bool body_is_lost(const struct httpio_conn *c)
{
    const struct httpio_exchange *x = &c->x;

    return c->in_body && (x->expect || x->head->content_length > (int64_t)HTTPIO_DROP_MAX);
}

/* Makes the head. It is corked, and goes out with what the caller does next. */
static int begin(struct httpio_exchange *x, unsigned status, const struct http_field *fields, size_t n, int64_t length)
{
    struct httpio_conn *c = conn_of(x);
    bool with_date = true, close_after = c->close_after;
    int r;

    if (!x->active || x->begun)
        return -EALREADY;
    if (status < 200)
        return -EINVAL; /* interim responses are ours */
    buf_clear(&c->out);
    r = http_write_status(&c->out, status);
    for (size_t i = 0; i < n && r == 0; i++) {
        if (fields[i].name.len == 4 && str_eq_nocase(fields[i].name, STR("date")))
            with_date = false;
        r = httpio_field_ours(fields[i].name) ? -EINVAL : http_write_known_field(&c->out, &fields[i]);
    }
    if (r == 0) {
        if (body_is_lost(c))
            c->close_after = true;
        add_framing(c, status, length);
        r = httpio_conn_end_head(c, with_date, x->head->minor);
    }
    if (r < 0) {
        c->close_after = close_after;
        x->chunked = false;
        return r == -E2BIG ? -EINVAL : r;
    }
    x->no_body = status == 204 || status == 304 || str_eq(x->head->method, STR("HEAD"));
    x->remaining = length;
    x->begun = true;
    c->corked = true;
    return 0;
}

int httpio_begin(struct httpio_exchange *x, unsigned status, const struct http_field *fields, size_t n, int64_t length)
{
    int r = begin(x, status, fields, n, length);

    if (r == 0)
        httpio_server_soon(conn_of(x), SOON_FLUSH);
    return r;
}

bool httpio_send(struct httpio_exchange *x, struct str data)
{
    struct httpio_conn *c = conn_of(x);
    char line[HTTP_CHUNK_LINE];
    struct str parts[3] = {data};

    if (!x->active || !x->begun || x->ended || x->no_body || x->wrong || data.len == 0)
        return false;
    if (x->remaining >= 0) {
        if (data.len > (uint64_t)x->remaining) {
            x->wrong = true; /* nobody can be told how long it really is */
            return false;
        }
        x->remaining -= (int64_t)data.len;
    }
    httpio_conn_write(c, parts, x->chunked ? httpio_chunk(data, line, parts) : 1);
    if (net_stream_queued(c->stream) <= c->server->limits.send_high_bytes)
        return false;
    x->wait_drain = true;
    return true;
}

static void finish(struct httpio_exchange *x)
{
    struct httpio_conn *c = conn_of(x);

    x->ended = true;
    if (!c->broken && net_stream_queued(c->stream) == 0)
        httpio_conn_flushed(c);
    else
        httpio_conn_update(c);
}

void httpio_end(struct httpio_exchange *x)
{
    struct httpio_conn *c = conn_of(x);
    struct str last = STR(HTTP_CHUNK_LAST);

    if (!x->active || x->ended)
        return;
    if (!x->begun || x->wrong || (x->remaining > 0 && !x->no_body)) {
        httpio_abort(x);
        return;
    }
    httpio_conn_write(c, &last, x->chunked && !x->no_body ? 1 : 0);
    finish(x);
}

void httpio_cut(struct httpio_exchange *x)
{
    struct httpio_conn *c = conn_of(x);

    if (!x->active || x->ended)
        return;
    if (!x->begun || x->no_body || x->wrong || (!x->chunked && x->remaining <= 0)) {
        httpio_abort(x);
        return;
    }
    c->close_after = true;
    httpio_conn_write(c, NULL, 0); /* a head that is still here */
    finish(x);
}

void httpio_abort(struct httpio_exchange *x)
{
    struct httpio_conn *c = conn_of(x);

    if (x->active)
        httpio_conn_kill(c, x->begun && !c->corked);
}

void httpio_respond(struct httpio_exchange *x, unsigned status, const char *content_type, struct str body)
{
    struct http_field type = HTTPIO_FIELD(STR("Content-Type"), str_of(content_type));

    if (begin(x, status, &type, content_type ? 1 : 0, (int64_t)body.len) < 0) {
        httpio_abort(x);
        return;
    }
    (void)httpio_send(x, body);
    httpio_end(x);
}
