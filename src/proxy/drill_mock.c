/* SPDX-License-Identifier: MIT
 *
 * Replicas for the drill. Each reads requests as a server does, with the parser, and then fails in its one way, on the bare connection: what it must be able to do no proper server can.
 */
#include <errno.h>
#include <unistd.h>

#include "drill_int.h"

#define CONNS_MAX 64
#define EVENTS 20     /* of a slow stream */
#define EVENT_GAP_MS 3

#define HEAD_JSON "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n"
#define HEAD_STREAM "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#define STATUS(line) "HTTP/1.1 " line "\r\nContent-Type: application/json\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"

struct conn {
    struct drill_mock *mock; /* NULL: free */
    struct net_stream *stream;
    struct http_parser *parser;
    bool streams;   /* the request asks for a stream */
    bool whole;     /* a request is there and not answered */
    bool used;      /* it has answered one */
    enum place_dialect dialect;
    unsigned sent;  /* events of a slow stream */
    struct net_timer *timer;
    struct buf body;
};

struct drill_mock {
    struct drill *drill;
    enum drill_mode mode;
    struct net_listener *listener;
    uint16_t port;
    unsigned requests, left;
    struct buf body;
    struct conn conns[CONNS_MAX];
};

static void put(struct conn *c, struct str text)
{
    base_ignore(net_stream_write(c->stream, &text, 1)); /* a broken connection is told by its end */
    c->mock->drill->sent_us = drill_now_us();
}

static void put_chunk(struct conn *c, const char *text)
{
    char line[HTTP_CHUNK_LINE];
    struct str parts[] = {{line, http_chunk_line(strlen(text), line)}, str_of(text), STR(HTTP_CHUNK_END)};
    base_ignore(net_stream_write(c->stream, parts, BASE_COUNT(parts)));
    c->mock->drill->sent_us = drill_now_us();
}

static void conn_close(struct conn *c, bool reset)
{
    c->stream = net_stream_close(c->stream, reset);
    c->timer = net_timer_close(c->timer);
    c->parser = http_parser_free(c->parser);
    buf_release(&c->body);
    c->mock = NULL;
}

/* ---- what an API's stream is made of ------------------------------------------------------------------------- */

static const char *content_of(enum place_dialect d)
{
    switch (d) {
    case PLACE_MESSAGES:
        return "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
    case PLACE_RESPONSES:
        return "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    default:
        return "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    }
}

static const char *last_of(enum place_dialect d)
{
    switch (d) {
    case PLACE_MESSAGES:
        return "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    case PLACE_RESPONSES:
        return "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n";
    default:
        return "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    }
}

static void end_stream(struct conn *c)
{
    put_chunk(c, last_of(c->dialect));
    put(c, STR(HTTP_CHUNK_LAST));
    c->whole = false;
    c->used = true;
}

static void good(struct conn *c)
{
    if (c->streams) {
        put(c, STR(HEAD_STREAM));
        put_chunk(c, content_of(c->dialect));
        end_stream(c);
        return;
    }
    put(c, STR(HEAD_JSON "{\"ok\":true}"));
    c->whole = false;
    c->used = true;
}

static void on_slow(void *ctx)
{
    struct conn *c = ctx;
    if (c->sent++ < EVENTS) {
        put_chunk(c, content_of(c->dialect));
        net_timer_start(c->timer, EVENT_GAP_MS, 0);
    } else {
        end_stream(c);
    }
}

static void slow(struct conn *c)
{
    c->sent = 0;
    c->timer = c->timer ? c->timer : net_timer_new(c->mock->drill->loop, on_slow, c);
    put(c, STR(HEAD_STREAM));
    if (c->timer)
        net_timer_start(c->timer, EVENT_GAP_MS, 0);
}

/* Some content, and what then follows. */
static void begin_content(struct conn *c)
{
    if (c->streams) {
        put(c, STR(HEAD_STREAM));
        put_chunk(c, content_of(c->dialect));
    } else {
        put(c, STR("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{\"part\":"));
    }
}

/* Bytes before a reset must have arrived: the reset comes a moment later. */
static void on_die(void *ctx)
{
    struct conn *c = ctx;
    conn_close(c, true);
}

static void die_soon(struct conn *c)
{
    c->whole = false; /* nobody left: it dies itself */
    c->timer = c->timer ? c->timer : net_timer_new(c->mock->drill->loop, on_die, c);
    if (c->timer)
        net_timer_start(c->timer, 5, 0);
}

bool drill_breaks(enum drill_mode mode)
{
    return mode == DRILL_RESET || mode == DRILL_EOF || mode == DRILL_GARBAGE || mode == DRILL_SHORT || mode == DRILL_HEAD_ONLY;
}

static enum drill_mode mode_now(struct drill_mock *m)
{
    if (!drill_breaks(m->mode))
        return m->mode;
    if (!m->drill->breaks_left)
        return DRILL_GOOD;
    m->drill->breaks_left--;
    return m->mode;
}

static void answer(struct conn *c)
{
    switch (mode_now(c->mock)) {
    case DRILL_GOOD:
    case DRILL_STALE:
    case DRILL_REFUSE:
        good(c);
        return;
    case DRILL_RESET:
        conn_close(c, true);
        return;
    case DRILL_EOF:
        conn_close(c, false);
        return;
    case DRILL_GARBAGE:
        put(c, STR("this is no HTTP\r\n\r\n"));
        conn_close(c, false);
        return;
    case DRILL_500:
        put(c, STR(STATUS("500 Internal Server Error")));
        break;
    case DRILL_503:
        put(c, STR(STATUS("503 Service Unavailable")));
        break;
    case DRILL_429:
        put(c, STR(STATUS("429 Too Many Requests")));
        break;
    case DRILL_HEAD_ONLY:
        put(c, STR(HEAD_STREAM));
        conn_close(c, false);
        return;
    case DRILL_ERROR_EVENT:
        put(c, STR(HEAD_STREAM));
        put_chunk(c, "data: {\"error\":{\"code\":500,\"message\":\"out of memory\",\"type\":\"server_error\"}}\n\n");
        put(c, STR(HTTP_CHUNK_LAST));
        break;
    case DRILL_SHORT:
        put(c, STR("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half\":"));
        conn_close(c, false);
        return;
    case DRILL_DIE:
        begin_content(c);
        die_soon(c);
        return;
    case DRILL_END_EARLY:
        begin_content(c);
        put(c, STR(HTTP_CHUNK_LAST));
        break;
    case DRILL_STALL:
        begin_content(c);
        return;
    case DRILL_SILENT:
        return;
    case DRILL_SLOW:
        slow(c);
        return;
    }
    c->whole = false;
    c->used = true;
}

/* ---- reading requests --------------------------------------------------------------------------------------------- */

static int on_head(void *ctx, const struct http_head *head)
{
    struct conn *c = ctx;
    c->dialect = place_dialect_of(head->method, http_target_path(head->target));
    buf_clear(&c->body);
    return 0;
}

static int on_body(void *ctx, struct str data)
{
    struct conn *c = ctx;
    buf_add_str(&c->body, data);
    return 0;
}

static int on_message(void *ctx)
{
    struct conn *c = ctx;
    c->whole = true;
    return 0;
}

static void on_data(void *ctx, struct str data)
{
    struct conn *c = ctx;
    struct drill_mock *m = c->mock;
    if (m->mode == DRILL_STALE && c->used) {
        conn_close(c, true);
        return;
    }
    while (data.len && c->mock) {
        size_t used = 0;
        if (http_parser_feed(c->parser, data, &used, NULL) < 0) {
            conn_close(c, true);
            return;
        }
        data.ptr += used;
        data.len -= used;
        if (!c->whole)
            continue;
        m->requests++;
        c->streams = str_find(buf_str(&c->body), STR("\"stream\":true")) >= 0;
        buf_clear(&m->body);
        buf_add_str(&m->body, buf_str(&c->body));
        answer(c);
        drill_poke(m->drill);
        if (c->mock && c->whole) /* what comes now comes after the answer */
            return;
    }
}

static void on_end(void *ctx, int status)
{
    struct conn *c = ctx;
    struct drill_mock *m = c->mock;
    (void)status;
    m->left += c->whole;
    conn_close(c, false);
    drill_poke(m->drill);
}

static void on_accept(void *ctx, struct net_stream *s)
{
    static const struct net_stream_ops ops = {.on_data = on_data, .on_end = on_end};
    static const struct http_parser_ops parse = {.on_head = on_head, .on_body = on_body, .on_end = on_message};
    struct drill_mock *m = ctx;
    struct conn *c = NULL;
    for (size_t i = 0; i < CONNS_MAX && !c; i++)
        if (!m->conns[i].mock)
            c = &m->conns[i];
    struct http_parser *parser = c ? http_parser_new(HTTP_REQUEST, &parse, c) : NULL;
    if (!parser) {
        net_stream_close(s, true);
        return;
    }
    *c = (struct conn){.mock = m, .stream = s, .parser = parser, .body = BUF_INIT(2 * DRILL_BODY_MAX)};
    net_stream_set_ops(s, &ops, c);
    net_stream_read(s, true);
}

/* ---- life --------------------------------------------------------------------------------------------------------------- */

static int listen_at(struct drill_mock *m, struct err *err)
{
    struct net_addr a;
    int rc = net_addr_ip("127.0.0.1", m->port, &a);
    int fd = rc < 0 ? rc : net_listen_socket(&a, false, err);
    if (fd < 0)
        return fd;
    rc = net_socket_addr(fd, &a);
    if (rc < 0) {
        close(fd);
        return err_sys(err, rc, "cannot learn a socket's port");
    }
    m->port = a.port;
    return net_listener_new(m->drill->loop, fd, on_accept, m, &m->listener, err);
}

int drill_mock_new(struct drill *d, struct drill_mock **ret, struct err *err)
{
    struct drill_mock *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(err);
    m->drill = d;
    m->body = BUF_INIT(2 * DRILL_BODY_MAX);
    int rc = listen_at(m, err);
    if (rc < 0) {
        free(m);
        return rc;
    }
    *ret = m;
    return 0;
}

static void drop_all(struct drill_mock *m)
{
    for (size_t i = 0; i < CONNS_MAX; i++)
        if (m->conns[i].mock)
            conn_close(&m->conns[i], false);
}

struct drill_mock *drill_mock_free(struct drill_mock *m)
{
    if (!m)
        return NULL;
    drop_all(m);
    m->listener = net_listener_close(m->listener);
    buf_release(&m->body);
    free(m);
    return NULL;
}

int drill_mock_set(struct drill_mock *m, enum drill_mode mode, struct err *err)
{
    drop_all(m);
    m->mode = mode;
    m->requests = m->left = 0;
    if (mode == DRILL_REFUSE) {
        m->listener = net_listener_close(m->listener);
        return 0;
    }
    return m->listener ? 0 : listen_at(m, err);
}

uint16_t drill_mock_port(const struct drill_mock *m)
{
    return m->port;
}

unsigned drill_mock_requests(const struct drill_mock *m)
{
    return m->requests;
}

unsigned drill_mock_left(const struct drill_mock *m)
{
    return m->left;
}

struct str drill_mock_body(const struct drill_mock *m)
{
    return buf_str(&m->body);
}

void drill_mock_release(struct drill_mock *m)
{
    m->mode = DRILL_GOOD;
    for (size_t i = 0; i < CONNS_MAX; i++)
        if (m->conns[i].mock && m->conns[i].whole)
            good(&m->conns[i]);
}
