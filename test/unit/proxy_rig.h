/* SPDX-License-Identifier: MIT
 *
 * What the tests of the proxy share: one loop with the proxy, replicas, and clients in it, real sockets on ports that the system chose. Nothing
 * sleeps: WAIT runs the loop until a condition holds and fails the test when it does not within RIG_LIMIT_MS.
 *
 * A replica is an httpio server (struct replica) whose answer is a mode, or a bare socket (struct bare) that plays dead in the ways a server
 * that follows the rules cannot.
 */
#pragma once

#include <base/base.h>
#include <conf/conf.h>
#include <http/http.h>
#include <httpio/httpio.h>
#include <net/net.h>
#include <proxy/proxy.h>

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef RIG_LIMIT_MS
#define RIG_LIMIT_MS 10000
#endif
#define RIG_REPLICAS 4

enum mode {
    ECHO,    /* 200, with the request's body as the answer */
    HOLD,    /* answers when the test says so: replica_answer */
    STREAM,  /* an event stream that the test feeds: replica_event */
    BUSY,    /* 503 with Retry-After and a body */
    FLOOD,   /* `flood` bytes as fast as they are taken */
    STOPPED, /* does not read the body until the test says so */
    HEADERS, /* fields that must and must not pass */
    EMPTY,   /* 204 */
    DENY,    /* 401 */
};

struct replica {
    struct httpio_server *server;
    uint16_t port;
    enum mode mode;
    unsigned requests, finished, left; /* left: exchanges whose peer went away before the end */
    struct httpio_exchange *x;         /* the one under way */
    struct buf line;                   /* "METHOD TARGET" of the last request */
    struct buf fields;                 /* "Name: value\n"... */
    struct buf body;
    uint64_t body_sum;
    size_t body_len;
    size_t flood, sent;
};

/* A socket that accepts and then does as it is told. */
struct bare {
    struct net_listener *listener;
    struct net_stream *streams[16];
    uint16_t port;
    unsigned accepted, requests;
    const char *reply; /* sent when bytes come; NULL: nothing */
    bool close_after;  /* then the connection is closed */
    bool reset;        /* ... with RST */
};

/* One call of an HTTP client, or a raw connection. */
struct client {
    struct httpio_call *call;
    struct net_stream *raw;
    unsigned status;
    struct buf fields, body; /* raw: body holds all bytes */
    uint64_t sum;
    size_t len;
    unsigned events; /* pieces of body that came */
    bool done, failed, reset;
    enum httpio_failure failure;
};

struct rig {
    struct net_loop *loop;
    struct proxy *proxy;
    struct httpio_client *http;
    struct net_addr addr; /* of the proxy */
    struct net_addr door[2]; /* of each of its loops, after rig_open_lanes */
    struct replica replicas[RIG_REPLICAS];
    struct net_timer *limit;
    bool expired;
    unsigned slots; /* of each replica in rig_config */
    bool pins;
    const char *policy;
    const char *key; /* of the first replica; NULL none */
    bool tells;      /* replicas tell their capacity themselves */
    bool asks;       /* replicas may ask clients for keys of their own */
};

static struct rig rig;

static void rig_poke(void)
{
    net_loop_stop(rig.loop);
}

static void rig_expire(void *ctx)
{
    (void)ctx;
    rig.expired = true;
    rig_poke();
}

/* Runs the loop until the condition holds; something that changes it must call rig_poke. */
#define WAIT(condition)                                                     \
    do {                                                                    \
        rig.expired = false;                                                \
        net_timer_start(rig.limit, RIG_LIMIT_MS, 0);                        \
        while (!(condition) && !rig.expired)                                \
            net_loop_run(rig.loop);                                         \
        net_timer_stop(rig.limit);                                          \
        if (!(condition))                                                   \
            fail_msg("%s:%d: this did not come: %s", __FILE__, __LINE__, #condition); \
    } while (0)

static void rig_quiet(void *ctx)
{
    *(bool *)ctx = true;
    rig_poke();
}

/* Lets the loop run for some time, for what must not happen. */
static inline void rig_run(uint64_t ms)
{
    bool over = false;
    struct net_timer *t = net_timer_new(rig.loop, rig_quiet, &over);
    net_timer_start(t, ms, 0);
    WAIT(over);
    net_timer_close(t);
}

/* As WAIT, for what nobody tells of. */
#define WAIT_POLL(condition)                                                \
    do {                                                                    \
        for (int i_ = 0; !(condition) && i_ < RIG_LIMIT_MS / 5; i_++)       \
            rig_run(5);                                                     \
        if (!(condition))                                                   \
            fail_msg("%s:%d: this did not come: %s", __FILE__, __LINE__, #condition); \
    } while (0)

static inline uint64_t rig_us(void)
{
    return clk_system.mono_us(clk_system.ctx);
}

static int rig_listen(uint16_t *ret_port)
{
    struct net_addr a;
    struct err err;
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &a), 0);
    int fd = net_listen_socket(&a, false, &err);
    if (fd < 0)
        fail_msg("%s", err.text);
    assert_int_equal(net_socket_addr(fd, &a), 0);
    *ret_port = a.port;
    return fd;
}

static uint64_t rig_sum(uint64_t sum, struct str data)
{
    for (size_t i = 0; i < data.len; i++)
        sum = (sum ^ (unsigned char)data.ptr[i]) * UINT64_C(1099511628211);
    return sum;
}

/* ---- replicas ---------------------------------------------------------------------------------------------- */

static inline void replica_event(struct replica *r, const char *text)
{
    assert_non_null(r->x);
    (void)httpio_send(r->x, str_of(text));
}

static inline void replica_end(struct replica *r)
{
    assert_non_null(r->x);
    httpio_end(r->x);
}

static inline void replica_answer(struct replica *r, const char *text)
{
    assert_non_null(r->x);
    httpio_respond(r->x, 200, "text/plain", str_of(text));
}

static void replica_flood(struct replica *r)
{
    static char block[32 * 1024];
    while (r->sent < r->flood) {
        for (size_t i = 0; i < sizeof block; i += 64)
            block[i] = (char)((r->sent + i) / 64);
        size_t n = r->flood - r->sent < sizeof block ? r->flood - r->sent : sizeof block;
        r->sent += n;
        if (httpio_send(r->x, (struct str){block, n}))
            return;
    }
    httpio_end(r->x);
}

static void replica_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct replica *r = ctx;
    r->requests++;
    r->x = x;
    r->body_len = 0;
    r->body_sum = 0;
    buf_clear(&r->line);
    buf_clear(&r->fields);
    buf_clear(&r->body);
    buf_addf(&r->line, STR_FMT " ", STR_ARG(head->method));
    buf_add_str(&r->line, head->target);
    for (size_t i = 0; i < head->n_fields; i++) {
        buf_add_str(&r->fields, head->fields[i].name);
        buf_add_c(&r->fields, ": ");
        buf_add_str(&r->fields, head->fields[i].value);
        buf_add_char(&r->fields, '\n');
    }
    if (r->mode == STOPPED)
        httpio_read(x, false);
    rig_poke();
}

static void replica_body(void *ctx, struct httpio_exchange *x, struct str data)
{
    (void)x;
    struct replica *r = ctx;
    buf_add_str(&r->body, data);
    r->body_sum = rig_sum(r->body_sum, data);
    r->body_len += data.len;
}

static void replica_body_end(void *ctx, struct httpio_exchange *x)
{
    struct replica *r = ctx;
    const struct http_field stream[] = {HTTPIO_FIELD(STR("Content-Type"), STR("text/event-stream"))};
    const struct http_field busy[] = {HTTPIO_FIELD(STR("Retry-After"), STR("7")), HTTPIO_FIELD(STR("X-Request-Id"), STR("q"))};
    const struct http_field odd[] = {
        HTTPIO_FIELD(STR("X-Berth-Replica"), STR("forged")), HTTPIO_FIELD(STR("Keep-Alive"), STR("timeout=5")), HTTPIO_FIELD(STR("Set-Cookie"), STR("a=1")),
        HTTPIO_FIELD(STR("Set-Cookie"), STR("b=2")),         HTTPIO_FIELD(STR("Date"), STR("Thu, 01 Jan 1970 00:00:00 GMT")),
        HTTPIO_FIELD(STR("Upgrade"), STR("h2c")),            HTTPIO_FIELD(STR("X-Odd"), STR("\xc3\xa4 \t\"x\"")),
    };
    switch (r->mode) {
    case ECHO:
    case STOPPED:
        httpio_respond(x, 200, "application/octet-stream", buf_str(&r->body));
        break;
    case HOLD:
        break;
    case STREAM:
        assert_int_equal(httpio_begin(x, 200, stream, 1, -1), 0);
        break;
    case BUSY:
        assert_int_equal(httpio_begin(x, 503, busy, BASE_COUNT(busy), 4), 0);
        (void)httpio_send(x, STR("busy"));
        httpio_end(x);
        break;
    case FLOOD:
        assert_int_equal(httpio_begin(x, 200, NULL, 0, (int64_t)r->flood), 0);
        r->sent = 0;
        replica_flood(r);
        break;
    case HEADERS:
        assert_int_equal(httpio_begin(x, 200, odd, BASE_COUNT(odd), 5), 0);
        (void)httpio_send(x, STR("hello"));
        httpio_end(x);
        break;
    case DENY:
        httpio_respond(x, 401, "application/json", STR("{\"error\":\"Invalid API Key\"}"));
        break;
    case EMPTY:
        assert_int_equal(httpio_begin(x, 204, NULL, 0, -1), 0);
        httpio_end(x);
        break;
    }
    rig_poke();
}

static void replica_drain(void *ctx, struct httpio_exchange *x)
{
    (void)x;
    replica_flood(ctx);
}

static void replica_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    struct replica *r = ctx;
    if (r->x == x)
        r->x = NULL;
    if (completed)
        r->finished++;
    else
        r->left++;
    rig_poke();
}

static const struct httpio_server_ops replica_ops = {replica_request, replica_body, replica_body_end, replica_drain, replica_done, NULL};

static void replica_open(struct replica *r, enum mode mode)
{
    *r = (struct replica){.mode = mode, .line = BUF_INIT(1 << 20), .fields = BUF_INIT(1 << 20), .body = BUF_INIT((size_t)128 << 20)};
    r->server = httpio_server_new(rig.loop, &HTTPIO_LIMITS_DEFAULT, &replica_ops, r);
    assert_non_null(r->server);
    assert_int_equal(httpio_server_add(r->server, rig_listen(&r->port), NULL), 0);
}

static void replica_close(struct replica *r)
{
    r->server = httpio_server_free(r->server);
    buf_release(&r->line);
    buf_release(&r->fields);
    buf_release(&r->body);
}

static inline bool has_line(const struct buf *fields, const char *line)
{
    struct str rest = buf_str(fields);
    while (rest.ptr)
        if (str_eq_c(str_split(&rest, '\n'), line))
            return true;
    return false;
}

/* ---- bare sockets --------------------------------------------------------------------------------------------- */

static void bare_data(void *ctx, struct str data)
{
    struct bare *b = ctx;
    (void)data;
    b->requests++;
    for (size_t i = 0; i < BASE_COUNT(b->streams); i++) {
        struct net_stream *s = b->streams[i];
        if (!s)
            continue;
        struct str reply = str_of(b->reply);
        if (reply.len)
            assert_int_equal(net_stream_write(s, &reply, 1), 0);
        if (b->close_after)
            b->streams[i] = net_stream_close(s, b->reset);
    }
    rig_poke();
}

static void bare_end(void *ctx, int status)
{
    (void)ctx;
    (void)status;
    rig_poke();
}

static void bare_accept(void *ctx, struct net_stream *s)
{
    static const struct net_stream_ops ops = {.on_data = bare_data, .on_end = bare_end};
    struct bare *b = ctx;
    assert_true(b->accepted < BASE_COUNT(b->streams));
    b->streams[b->accepted++] = s;
    net_stream_set_ops(s, &ops, b);
    net_stream_read(s, true);
}

static inline void bare_open(struct bare *b, const char *reply, bool close_after, bool reset)
{
    *b = (struct bare){.reply = reply, .close_after = close_after, .reset = reset};
    int fd = rig_listen(&b->port);
    assert_int_equal(net_listener_new(rig.loop, fd, bare_accept, b, &b->listener, NULL), 0);
}

static inline void bare_close(struct bare *b)
{
    b->listener = net_listener_close(b->listener);
    for (size_t i = 0; i < BASE_COUNT(b->streams); i++)
        b->streams[i] = net_stream_close(b->streams[i], false);
}

/* A port that refuses: bound, so that nobody else gets it, and not listened at. */
static inline int refusing(uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

static void client_head(void *ctx, const struct http_head *head)
{
    struct client *c = ctx;
    c->status = head->status;
    for (size_t i = 0; i < head->n_fields; i++) {
        buf_add_str(&c->fields, head->fields[i].name);
        buf_add_c(&c->fields, ": ");
        buf_add_str(&c->fields, head->fields[i].value);
        buf_add_char(&c->fields, '\n');
    }
    rig_poke();
}

static void client_body(void *ctx, struct str data)
{
    struct client *c = ctx;
    c->events++;
    c->len += data.len;
    c->sum = rig_sum(c->sum, data);
    buf_add_str(&c->body, data);
    rig_poke();
}

static void client_end(void *ctx)
{
    struct client *c = ctx;
    c->call = NULL;
    c->done = true;
    rig_poke();
}

static void client_fail(void *ctx, enum httpio_failure f, const char *text)
{
    struct client *c = ctx;
    (void)text;
    c->call = NULL;
    c->done = c->failed = true;
    c->failure = f;
    rig_poke();
}

static const struct httpio_call_ops client_ops = {.on_head = client_head, .on_body = client_body, .on_end = client_end, .on_fail = client_fail};

static inline void client_init(struct client *c)
{
    *c = (struct client){.fields = BUF_INIT(1 << 20), .body = BUF_INIT(1 << 20)};
}

static inline void client_release(struct client *c)
{
    c->call = httpio_call_cancel(c->call);
    c->raw = net_stream_close(c->raw, false);
    buf_release(&c->fields);
    buf_release(&c->body);
}

static inline void client_start(struct client *c, const char *method, const char *target, struct str body)
{
    client_init(c);
    struct httpio_request q = {.addr = rig.addr, .method = str_of(method), .target = str_of(target), .body = body};
    assert_int_equal(httpio_call(rig.http, &q, &client_ops, c, &c->call, NULL), 0);
}

/* A whole call. The caller releases c. */
static inline void ask(struct client *c, const char *method, const char *target, const char *body)
{
    client_start(c, method, target, str_of(body));
    WAIT(c->done);
}

static inline void raw_data(void *ctx, struct str data)
{
    struct client *c = ctx;
    buf_add_str(&c->body, data);
    c->len += data.len;
    rig_poke();
}

static inline void raw_end(void *ctx, int status)
{
    struct client *c = ctx;
    c->done = true;
    c->reset = status < 0;
    rig_poke();
}

static inline void raw_connect(void *ctx, int status)
{
    (void)ctx;
    assert_int_equal(status, 0);
}

/* A connection of its own that sends these bytes; everything that comes back is in body. */
static inline void raw_start(struct client *c, const char *bytes)
{
    static const struct net_stream_ops ops = {.on_connect = raw_connect, .on_data = raw_data, .on_end = raw_end};
    struct str part = str_of(bytes);
    client_init(c);
    assert_int_equal(net_connect(rig.loop, &rig.addr, &ops, c, &c->raw, NULL), 0);
    assert_int_equal(net_stream_write(c->raw, &part, 1), 0);
}

static inline bool contains(const struct buf *b, const char *text)
{
    return b->len && str_find(buf_str(b), str_of(text)) >= 0;
}

/* ---- the rig ------------------------------------------------------------------------------------------------------- */

/* ports of n replicas "r0", "r1", ... of one endpoint "m" with alias "alias"; bit i of unready: replica i is not ready. */
static inline void rig_config(const uint16_t *ports, size_t n, unsigned unready, uint64_t generation)
{
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    struct proxy_config *c;
    struct err err;
    buf_add_c(&b, "{\"config\":{\"replicas\":[");
    for (size_t i = 0; i < n; i++)
        buf_addf(&b, "%s{\"name\":\"r%zu\",\"served\":\"served-%zu\",\"host\":\"127.0.0.1\",\"port\":%u,\"ready\":%s,\"generation\":%llu,\"slots\":%u,\"context\":0,\"pins\":%s%s%s%s%s}", i ? "," : "", i,
                 i, ports[i], unready >> i & 1 ? "false" : "true", (unsigned long long)generation, rig.slots, rig.pins ? "true" : "false", rig.asks ? ",\"asks\":true" : rig.tells ? ",\"tells\":\"/metrics\"" : "", i == 0 && rig.key ? ",\"key\":\"" : "", i == 0 && rig.key ? rig.key : "",
                 i == 0 && rig.key ? "\"" : "");
    buf_addf(&b, "],\"endpoints\":[{\"name\":\"m\",\"policy\":\"%s\",\"aliases\":[\"alias\",\"gpt \\\"4\\\"\"],\"replicas\":[", rig.policy);
    for (size_t i = 0; i < n; i++)
        buf_addf(&b, "%s%zu", i ? "," : "", i);
    buf_add_c(&b, "]}],\"headers\":[]}}");
    if (proxy_config_parse(buf_str(&b), &c, &err) < 0)
        fail_msg("%s", err.text);
    proxy_set_config(rig.proxy, c);
}

/* n replicas of that mode behind endpoint "m". */
static inline void rig_replicas(size_t n, enum mode mode)
{
    uint16_t ports[RIG_REPLICAS];
    for (size_t i = 0; i < n; i++) {
        replica_open(&rig.replicas[i], mode);
        ports[i] = rig.replicas[i].port;
    }
    rig_config(ports, n, 0, 1);
}

static int rig_open(void **state)
{
    (void)state;
    struct err err;
    rig = (struct rig){.slots = 64, .policy = "adaptive"};
    assert_int_equal(net_loop_new(&rig.loop, &err), 0);
    rig.limit = net_timer_new(rig.loop, rig_expire, NULL);
    rig.http = httpio_client_new(rig.loop, &HTTPIO_CLIENT_DEFAULT);
    assert_int_equal(proxy_new(rig.loop, 1, &rig.proxy, &err), 0);
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &rig.addr), 0);
    assert_int_equal(proxy_listen(rig.proxy, rig_listen(&rig.addr.port), &err), 0);
    return 0;
}

/* A proxy of two loops, each with a port of its own, so that a test says by which one a request comes. */
static inline int rig_open_lanes(void **state)
{
    struct err err;
    rig_open(state);
    rig.proxy = proxy_free(rig.proxy);
    assert_int_equal(proxy_new(rig.loop, BASE_COUNT(rig.door), &rig.proxy, &err), 0);
    for (size_t i = 0; i < BASE_COUNT(rig.door); i++) {
        assert_int_equal(net_addr_ip("127.0.0.1", 0, &rig.door[i]), 0);
        assert_int_equal(proxy_listen(rig.proxy, rig_listen(&rig.door[i].port), &err), 0);
    }
    return 0;
}

static int rig_close(void **state)
{
    (void)state;
    rig.http = httpio_client_free(rig.http);
    rig.proxy = proxy_free(rig.proxy);
    for (size_t i = 0; i < RIG_REPLICAS; i++)
        if (rig.replicas[i].server)
            replica_close(&rig.replicas[i]);
    rig.limit = net_timer_close(rig.limit);
    rig.loop = net_loop_free(rig.loop);
    return 0;
}

static inline struct proxy_stats rig_stats(void)
{
    struct proxy_stats s;
    proxy_stats(rig.proxy, &s);
    return s;
}

/* Whether the router's metrics have that line. */
static inline bool rig_metric(const char *line)
{
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(proxy_metrics(rig.proxy, &b), 0);
    return has_line(&b, line);
}

#define RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rig_open, rig_close)
#define RIG_LANES_TEST(f) cmocka_unit_test_setup_teardown(f, rig_open_lanes, rig_close)
