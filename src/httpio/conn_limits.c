/* SPDX-License-Identifier: MIT
 *
 * What a connection of the server is doing, and how long it may: from its state follow its phase and whether it is read, from the phase its limit. A limit
 * ends a connection that keeps the server waiting: a head or a body that does not come, or comes too slowly; a client that does not read; one that is gone.
 * Deadlines are computed when the server's sweep looks, so that nothing is to be set back while bytes come.
 */
#include "server_int.h"

bool httpio_conn_unused(const struct httpio_conn *c)
{
    return c->state == CONN_OPEN && !c->x.active && !c->in_body && c->pending.len == 0 && http_parser_idle(c->parser) && net_stream_quiet(c->stream);
}

static enum conn_phase phase_of(const struct httpio_conn *c)
{
    if (c->in_body)
        return !c->x.active ? PHASE_DROP : c->x.ended ? PHASE_BUSY : PHASE_BODY;
    if (c->x.active)
        return PHASE_BUSY;
    return http_parser_idle(c->parser) ? PHASE_IDLE : PHASE_HEAD;
}

static bool wants_bytes(const struct httpio_conn *c)
{
    if (c->state == CONN_LINGER)
        return true;
    if (c->x.active && c->in_body && c->x.paused)
        return false;
    return c->pending.len < HTTPIO_PENDING_MAX;
}

void httpio_conn_update(struct httpio_conn *c)
{
    bool read;

    if (c->state == CONN_CLOSED)
        return;
    if (c->state == CONN_OPEN) {
        enum conn_phase phase = phase_of(c);

        if (phase != c->phase) {
            c->phase = phase;
            c->since = c->body_since = httpio_conn_now(c);
            c->body_bytes = 0;
            httpio_server_idle(c, phase == PHASE_IDLE);
            httpio_server_head(c, phase == PHASE_HEAD);
            httpio_sweep_want(&c->server->sweep, httpio_conn_due(c, c->since));
        }
    }
    read = wants_bytes(c);
    if (read != c->reading) {
        c->reading = read;
        net_stream_read(c->stream, read);
        if (!read)
            httpio_sweep_want(&c->server->sweep, httpio_later(httpio_conn_now(c), HTTPIO_GONE_MS));
    }
}

static uint64_t limit_at(uint64_t since, uint64_t limit_ms)
{
    return limit_ms ? httpio_later(since, limit_ms) : UINT64_MAX;
}

/* True when the end of the client could not be seen by reading. */
static bool unread(const struct httpio_conn *c)
{
    return c->state == CONN_OPEN && !c->reading && c->x.active && !c->x.ended;
}

/* A body may neither stop nor come so slowly that it never ends. */
static uint64_t body_due(const struct httpio_conn *c)
{
    const struct httpio_limits *l = &c->server->limits;
    uint64_t stall = limit_at(c->since, l->body_stall_ms), pace = limit_at(c->body_since, l->body_stall_ms);

    if (l->body_pace == 0)
        return stall;
    pace = httpio_later(pace, c->body_bytes * 1000 / l->body_pace);
    return stall < pace ? stall : pace;
}

static uint64_t read_due(const struct httpio_conn *c, uint64_t now)
{
    const struct httpio_limits *l = &c->server->limits;

    if (unread(c))
        return net_stream_gone(c->stream) ? 0 : now + HTTPIO_GONE_MS;
    if (c->state == CONN_LINGER)
        return httpio_later(c->since, HTTPIO_LINGER_MS);
    switch (c->phase) {
    case PHASE_IDLE:
        return limit_at(c->since, net_stream_greeted(c->stream) ? l->idle_ms : l->head_ms);
    case PHASE_HEAD:
        return limit_at(c->since, l->head_ms);
    case PHASE_BODY:
        return body_due(c);
    case PHASE_DROP:
        return httpio_later(c->since, HTTPIO_LINGER_MS);
    case PHASE_BUSY:
        break;
    }
    return UINT64_MAX;
}

/* When writing was last seen to move, plus its limit. Movement is only seen when looked at, so we look four times within the limit. */
static uint64_t write_due(struct httpio_conn *c, uint64_t now, uint64_t *ret_look)
{
    uint64_t limit = c->server->limits.write_stall_ms;

    *ret_look = UINT64_MAX;
    if (c->write_since == 0 || limit == 0)
        return UINT64_MAX;
    uint64_t gone = c->given - net_stream_unsent(c->stream);
    if (gone != c->write_seen) {
        c->write_seen = gone;
        c->write_since = now;
    }
    *ret_look = httpio_later(now, limit / 4 + 1);
    return httpio_later(c->write_since, limit);
}

uint64_t httpio_conn_due(struct httpio_conn *c, uint64_t now)
{
    uint64_t look, reading = read_due(c, now), writing = write_due(c, now, &look);

    if (reading <= now || writing <= now)
        return 0;
    if (writing < look)
        look = writing;
    return reading < look ? reading : look;
}

void httpio_conn_expire(struct httpio_conn *c, uint64_t now)
{
    uint64_t look;

    if (write_due(c, now, &look) <= now) {
        httpio_server_add_count(c->server, HTTPIO_WRITE_STUCK);
        httpio_conn_kill(c, true);
        return;
    }
    if (unread(c)) {
        httpio_conn_kill(c, false);
        return;
    }
    if (c->state == CONN_OPEN && c->phase == PHASE_HEAD) {
        httpio_server_add_count(c->server, HTTPIO_HEAD_LATE);
        httpio_conn_refuse(c, 408, "timeout_error", "the request's head did not arrive in time");
    } else if (c->state == CONN_OPEN && c->phase == PHASE_BODY) {
        httpio_server_add_count(c->server, HTTPIO_BODY_LATE);
        httpio_conn_refuse(c, 408, "timeout_error", "the request's body stopped arriving, or came too slowly");
    } else {
        if (c->idle)
            httpio_server_add_count(c->server, HTTPIO_IDLE_OVER);
        httpio_conn_kill(c, false);
    }
}
