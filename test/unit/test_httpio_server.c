/* SPDX-License-Identifier: MIT
 *
 * The server of httpio, spoken to byte by byte over real connections. What the owner does with an exchange is chosen by the request's path; what happened to it is
 * a string with one letter an event: R request, b body, E end of the body, w drain, + done and complete, - done and not complete.
 */
#include "httpio_aid.h"

#include <sys/resource.h>

#include "../../src/httpio/server_int.h"

#define EXCHANGES 8
#define BIG (24 * 1024 * 1024)

struct served {
    struct httpio_exchange *x; /* NULL when it is over */
    char log[64];
    struct buf body;
    bool wait; /* httpio_send asked to wait */
};

struct site {
    struct world w;
    struct httpio_server *server;
    struct net_addr addr;
    struct served all[EXCHANGES];
    size_t n;
    char free_at;   /* the server is freed in that event */
    char abort_at;  /* the exchange, and with it all others, is aborted in that event */
    bool drain_in_request;
    unsigned drained;
    size_t answered; /* by /many */
    uint64_t opened;
};

static char big[BIG];

static struct served *served_of(struct site *t, const struct httpio_exchange *x)
{
    return &t->all[(size_t)(uintptr_t)httpio_exchange_get(x) - 1];
}

/* Notes an event. True when the exchange is still there. */
static bool note(struct site *t, struct served *v, char c)
{
    size_t len = strlen(v->log);

    net_loop_stop(t->w.loop);
    if (c != 'b' || len == 0 || v->log[len - 1] != 'b') { /* a body may come in any number of pieces */
        assert_true(len + 1 < sizeof(v->log));
        v->log[len] = c;
    }
    if (c == '+' || c == '-') {
        assert_non_null(v->x);
        v->x = NULL;
    }
    if (t->free_at == c && t->server) {
        struct httpio_server *s = t->server;

        t->server = NULL;
        (void)httpio_server_free(s);
        for (size_t i = 0; i < t->n; i++)
            assert_null(t->all[i].x);
    } else if (t->abort_at == c) {
        t->abort_at = 0;
        for (size_t i = 0; i < t->n; i++)
            if (t->all[i].x)
                httpio_abort(t->all[i].x);
    }
    return v->x != NULL;
}

static bool is(const struct httpio_exchange *x, const char *path)
{
    return str_eq_c(http_target_path(httpio_exchange_head(x)->target), path);
}

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct site *t = ctx;

    assert_ptr_equal(head, httpio_exchange_head(x));
    assert_null(httpio_exchange_get(x));
    if (is(x, "/many")) {
        httpio_exchange_set(x, (void *)(uintptr_t)(EXCHANGES + 1));
        return;
    }
    assert_true(t->n < EXCHANGES);
    struct served *v = &t->all[t->n++];
    *v = (struct served){.x = x, .body = BUF_INIT(64 * 1024 * 1024)};
    httpio_exchange_set(x, (void *)(uintptr_t)t->n);
    if (t->drain_in_request)
        httpio_server_drain(t->server, 1000, NULL, NULL);
    if (!note(t, v, 'R'))
        return;
    if (is(x, "/early"))
        httpio_respond(x, 200, "text/plain", STR("early"));
    else if (is(x, "/abort"))
        httpio_abort(x);
    else if (is(x, "/paused"))
        httpio_read(x, false);
    else if (is(x, "/big"))
        httpio_respond(x, 200, NULL, (struct str){big, BIG});
    else if (is(x, "/echo"))
        assert_int_equal(httpio_begin(x, 200, NULL, 0, head->content_length), 0);
}

static void on_body(void *ctx, struct httpio_exchange *x, struct str data)
{
    struct site *t = ctx;

    if (is(x, "/many"))
        return;
    struct served *v = served_of(t, x);
    buf_add_str(&v->body, data);
    if (note(t, v, 'b') && is(x, "/echo"))
        v->wait = httpio_send(x, data);
}

static void on_body_end(void *ctx, struct httpio_exchange *x)
{
    struct site *t = ctx;

    if (is(x, "/many")) {
        t->answered++;
        httpio_respond(x, 200, NULL, STR("m"));
        return;
    }
    struct served *v = served_of(t, x);
    if (!note(t, v, 'E'))
        return;
    if (is(x, "/hello"))
        httpio_respond(x, 200, "text/plain", STR("hello"));
    else if (is(x, "/echo"))
        httpio_end(x);
}

static void on_drain(void *ctx, struct httpio_exchange *x)
{
    struct site *t = ctx;
    struct served *v = served_of(t, x);

    v->wait = false;
    (void)note(t, v, 'w');
}

static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    struct site *t = ctx;

    if ((uintptr_t)httpio_exchange_get(x) > EXCHANGES)
        return;
    /* still readable */
    assert_true(httpio_exchange_head(x)->method.len > 0);
    assert_non_null(memchr(httpio_exchange_head(x)->target.ptr, '/', 1));
    (void)note(t, served_of(t, x), completed ? '+' : '-');
}

static void on_open(void *ctx)
{
    struct site *t = ctx;

    t->opened++;
    assert_true(httpio_server_open(t->server) > 0);
    assert_int_equal(t->opened, httpio_server_count(t->server, HTTPIO_ACCEPTED));
}

static const struct httpio_server_ops site_ops = {on_request, on_body, on_body_end, on_drain, on_done, on_open};

static void site_listen(struct site *t, const struct net_addr *a)
{
    struct err err;
    int fd = net_listen_socket(a, false, &err);

    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &t->addr), 0);
    assert_int_equal(httpio_server_add(t->server, fd, &err), 0);
}

static void site_open_limits(struct site *t, const struct httpio_limits *l)
{
    struct net_addr a = loopback(0);

    *t = (struct site){0};
    world_open(&t->w);
    t->server = httpio_server_new(t->w.loop, l, &site_ops, t);
    assert_non_null(t->server);
    site_listen(t, &a);
}

static void site_open(struct site *t)
{
    site_open_limits(t, &HTTPIO_LIMITS_DEFAULT);
}

static void site_close(struct site *t)
{
    t->server = httpio_server_free(t->server);
    for (size_t i = 0; i < t->n; i++) {
        assert_null(t->all[i].x);
        buf_release(&t->all[i].body);
    }
    t->w.loop = net_loop_free(t->w.loop);
}

/* What came, without the value of Date. */
static void assert_got(const struct raw *r, const char *want)
{
    base_autobuf struct buf seen = BUF_INIT(1024 * 1024);
    struct str rest = buf_str(&r->got);

    buf_add_c(&seen, "");
    while (rest.ptr) {
        struct str line = str_split(&rest, '\n');

        if (str_starts(line, STR("Date: ")))
            buf_add_c(&seen, "Date: D\r");
        else
            buf_add_str(&seen, line);
        if (rest.ptr)
            buf_add_char(&seen, '\n');
    }
    assert_string_equal(seen.ptr, want);
}

static void assert_error(const struct raw *r, const char *status, const char *type)
{
    char line[64], body[64];
    const char *json = strstr(raw_got(r), "\r\n\r\n{\"error\":{\"message\":\"");

    (void)snprintf(line, sizeof(line), "HTTP/1.1 %s ", status);
    (void)snprintf(body, sizeof(body), "\",\"type\":\"%s\",\"code\":%s}}", type, status);
    assert_ptr_equal(strstr(raw_got(r), line), raw_got(r));
    assert_true(raw_has(r, "\r\nContent-Type: application/json\r\n"));
    assert_true(raw_has(r, "\r\nConnection: close\r\n"));
    assert_true(raw_has(r, "\r\nDate: "));
    assert_non_null(json);
    assert_non_null(strstr(json, body));
    assert_string_equal(strstr(json, body) + strlen(body), "");
    char length[48];
    (void)snprintf(length, sizeof(length), "\r\nContent-Length: %zu\r\n", strlen(json + 4));
    assert_true(raw_has(r, length));
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: h\r\n\r\n"
#define HELLO "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nDate: D\r\n\r\nhello"

/* ---- parts ----------------------------------------------------------------------------------------------- */

static void dates_and_errors(void **state)
{
    (void)state;
    char text[HTTPIO_DATE];
    base_autobuf struct buf out = BUF_INIT(10000);

    assert_string_equal(httpio_date(784111777, text), "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_string_equal(httpio_date(0, text), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_string_equal(httpio_date(1709208000, text), "Thu, 29 Feb 2024 12:00:00 GMT");
    httpio_error_body(&out, "bad \"\\\x01\xff", "t", 400);
    assert_string_equal(out.ptr, "{\"error\":{\"message\":\"bad \\\"\\\\\\\\x01\\\\xff\",\"type\":\"t\",\"code\":400}}");
}

/* ---- plain exchanges ------------------------------------------------------------------------------------- */

static void one_after_the_other(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/hello"));
    WAIT(&t.w, raw_has(&r, "hello"));
    assert_got(&r, HELLO);
    raw_send(&r, "GET /hel");
    world_nap(&t.w, 10);
    raw_send(&r, "lo HTTP/1.1\r\nHost: h\r\n\r\n");
    WAIT(&t.w, raw_count(&r, "\r\n\r\nhello") == 2);
    assert_got(&r, HELLO HELLO);
    assert_string_equal(t.all[0].log, "RE+");
    assert_string_equal(t.all[1].log, "RE+");
    assert_int_equal(httpio_server_open(t.server), 1);
    raw_send(&r, "GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, 0);
    assert_true(raw_has(&r, "Date"));
    assert_int_equal(raw_count(&r, "Connection: close\r\n"), 1);
    raw_close(&r, false);
    WAIT(&t.w, httpio_server_open(t.server) == 0);
    site_close(&t);
}

static void older_clients(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    WAIT(&t.w, raw_has(&r, "hello"));
    assert_true(raw_has(&r, "\r\nConnection: keep-alive\r\n"));
    buf_clear(&r.got);
    raw_send(&r, "GET /wait HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    /* without a length: until the end of the connection */
    assert_int_equal(httpio_begin(t.all[1].x, 200, NULL, 0, -1), 0);
    assert_false(httpio_send(t.all[1].x, STR("until the end")));
    httpio_end(t.all[1].x);
    WAIT(&t.w, r.ended);
    assert_got(&r, "HTTP/1.1 200 OK\r\nDate: D\r\nConnection: close\r\n\r\nuntil the end");
    assert_string_equal(t.all[1].log, "RE+");
    raw_close(&r, false);

    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "GET /hello HTTP/1.0\r\n\r\n");
    WAIT(&t.w, r.ended);
    assert_true(raw_has(&r, "\r\nConnection: close\r\n"));
    raw_close(&r, false);
    site_close(&t);
}

static void without_a_body(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n");
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, '+'));
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    assert_int_equal(httpio_begin(t.all[1].x, 204, NULL, 0, 0), 0);
    httpio_end(t.all[1].x);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 3 && strchr(t.all[2].log, 'E'));
    assert_int_equal(httpio_begin(t.all[2].x, 304, NULL, 0, -1), 0);
    assert_false(httpio_send(t.all[2].x, STR("dropped")));
    httpio_end(t.all[2].x);
    raw_send(&r, GET("/hello"));
    WAIT(&t.w, raw_has(&r, "\r\n\r\nhello"));
    assert_got(&r, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nDate: D\r\n\r\n"
                   "HTTP/1.1 204 No Content\r\nDate: D\r\n\r\n"
                   "HTTP/1.1 304 Not Modified\r\nDate: D\r\n\r\n" HELLO);
    raw_close(&r, false);
    site_close(&t);
}

static void bodies_come_back(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\nhello ");
    WAIT(&t.w, raw_has(&r, "hello "));
    assert_got(&r, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nDate: D\r\n\r\nhello ");
    raw_send(&r, "world");
    WAIT(&t.w, raw_has(&r, "hello world"));
    assert_string_equal(t.all[0].log, "RbE+");
    buf_clear(&r.got);
    raw_send(&r, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    WAIT(&t.w, raw_has(&r, "0\r\n\r\n"));
    assert_got(&r, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nDate: D\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n");
    assert_string_equal(t.all[1].log, "RbE+");
    raw_close(&r, false);
    site_close(&t);
}

/* A head goes out although nothing follows it for now. */
static void head_alone(void **state)
{
    (void)state;
    struct site t;
    struct raw r;
    struct http_field f[] = {HTTPIO_FIELD(STR("X-A"), STR("1")), HTTPIO_FIELD(STR("date"), STR("mine"))};

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    assert_int_equal(httpio_begin(t.all[0].x, 200, f, 2, -1), 0);
    assert_int_equal(r.got.len, 0);
    WAIT(&t.w, raw_has(&r, "\r\n\r\n"));
    assert_string_equal(raw_got(&r), "HTTP/1.1 200 OK\r\nX-A: 1\r\ndate: mine\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_false(httpio_send(t.all[0].x, STR("")));
    assert_false(httpio_send(t.all[0].x, STR("data: 1\n\n")));
    WAIT(&t.w, raw_has(&r, "9\r\ndata: 1\n\n\r\n"));
    assert_false(raw_has(&r, "0\r\n\r\n"));
    httpio_end(t.all[0].x);
    WAIT(&t.w, raw_has(&r, "0\r\n\r\n"));
    raw_close(&r, false);
    site_close(&t);
}

static void answers_that_cannot_be(void **state)
{
    (void)state;
    struct site t;
    struct raw r;
    static const struct http_field bad[] = {
        {.name = {"X", 1}, .value = {"a\r\nb", 4}},
        {.name = {"X Y", 3}, .value = {"a", 1}},
        {.name = {"content-length", 14}, .value = {"1", 1}},
        {.name = {"Transfer-Encoding", 17}, .value = {"chunked", 7}},
        {.name = {"Connection", 10}, .value = {"close", 5}},
    };

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_int_equal(httpio_begin(t.all[0].x, 200, &bad[i], 1, -1), -EINVAL);
    assert_int_equal(httpio_begin(t.all[0].x, 100, NULL, 0, 0), -EINVAL);
    assert_int_equal(httpio_begin(t.all[0].x, 1000, NULL, 0, 0), -EINVAL);
    struct http_field large = HTTPIO_FIELD(STR("X"), ((struct str){big, HTTP_HEAD_MAX}));
    memset(big, 'x', HTTP_HEAD_MAX);
    assert_int_equal(httpio_begin(t.all[0].x, 200, &large, 1, -1), -EINVAL);
    assert_false(httpio_send(t.all[0].x, STR("not begun")));
    httpio_respond(t.all[0].x, 502, "text/plain", STR("none of them"));
    WAIT(&t.w, raw_has(&r, "none of them"));
    assert_got(&r, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: 12\r\nDate: D\r\n\r\nnone of them");
    assert_string_equal(t.all[0].log, "RE+");
    raw_close(&r, false);
    site_close(&t);
}

/* A response that is not what its head says never ends cleanly. */
static void wrong_lengths(void **state)
{
    (void)state;
    static const char *const parts[] = {"1234", "12345678901", "", NULL};

    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
        struct site t;
        struct raw r;

        site_open(&t);
        raw_connect(&r, &t.w, &t.addr);
        raw_send(&r, GET("/wait"));
        WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
        if (parts[i]) {
            assert_int_equal(httpio_begin(t.all[0].x, 200, NULL, 0, 10), 0);
            assert_int_equal(httpio_begin(t.all[0].x, 200, NULL, 0, 10), -EALREADY);
            (void)httpio_send(t.all[0].x, STR("12345"));
            (void)httpio_send(t.all[0].x, str_of(parts[i]));
        }
        httpio_end(t.all[0].x);
        assert_string_equal(t.all[0].log, "RE-");
        WAIT(&t.w, r.ended);
        assert_int_equal(r.status, parts[i] ? -ECONNRESET : 0);
        raw_close(&r, false);

        /* nor does one that is answered twice */
        raw_connect(&r, &t.w, &t.addr);
        raw_send(&r, GET("/wait"));
        WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
        assert_int_equal(httpio_begin(t.all[1].x, 200, NULL, 0, -1), 0);
        httpio_respond(t.all[1].x, 500, NULL, STR("no"));
        assert_string_equal(t.all[1].log, "RE-");
        raw_close(&r, false);
        site_close(&t);
    }
}

static void aborted(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/abort"));
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, 0);
    assert_int_equal(r.got.len, 0);
    assert_string_equal(t.all[0].log, "R-");
    raw_close(&r, false);

    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    assert_int_equal(httpio_begin(t.all[1].x, 200, NULL, 0, -1), 0);
    (void)httpio_send(t.all[1].x, STR("half a"));
    WAIT(&t.w, raw_has(&r, "half a"));
    httpio_abort(t.all[1].x);
    assert_string_equal(t.all[1].log, "RE-");
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, -ECONNRESET);
    raw_close(&r, false);
    site_close(&t);
}

/* ---- several requests ------------------------------------------------------------------------------------ */

static void pipelined_in_turn(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait?1") "POST /wait?2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" GET("/hello") GET("/hel"));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    world_nap(&t.w, 20);
    assert_int_equal(t.n, 1);
    httpio_respond(t.all[0].x, 200, NULL, STR("first"));
    assert_int_equal(t.n, 1); /* never from within a call of ours */
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    world_nap(&t.w, 10);
    assert_int_equal(t.n, 2);
    assert_string_equal(t.all[1].body.ptr, "abc");
    httpio_respond(t.all[1].x, 200, NULL, STR("second"));
    WAIT(&t.w, t.n == 4 && strchr(t.all[3].log, 'E'));
    httpio_respond(t.all[3].x, 404, NULL, STR("fourth"));
    WAIT(&t.w, raw_has(&r, "fourth"));
    const char *one = strstr(raw_got(&r), "first"), *two = strstr(one, "second"), *three = strstr(two, "hello");
    assert_non_null(three);
    assert_non_null(strstr(three, "fourth"));
    raw_close(&r, false);
    site_close(&t);
}

/* Thousands of requests in one piece: no recursion, none lost. Then far more of them than are kept while one waits. */
static void pipelined_floods(void **state)
{
    (void)state;
    const size_t n = 20000;
    base_autobuf struct buf flood = BUF_INIT(4 * 1024 * 1024);
    struct site t;
    struct raw r;

    for (size_t i = 0; i < n; i++)
        buf_add_c(&flood, GET("/many"));
    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send_bytes(&r, buf_str(&flood));
    WAIT(&t.w, t.answered == n);
    raw_send(&r, GET("/wait"));
    raw_send_bytes(&r, buf_str(&flood));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    world_nap(&t.w, 50);
    struct httpio_conn *c = base_container(t.all[0].x, struct httpio_conn, x);
    assert_true(c->pending.len >= HTTPIO_PENDING_MAX);
    assert_true(c->pending.len <= HTTPIO_PENDING_MAX + 64 * 1024);
    assert_false(c->reading);
    assert_int_equal(t.answered, n);
    httpio_respond(t.all[0].x, 200, NULL, STR("go on"));
    WAIT(&t.w, t.answered == 2 * n);
    raw_send(&r, GET("/hello"));
    WAIT(&t.w, raw_has_end(&r, "hello"));
    assert_int_equal(raw_count(&r, "\r\n\r\nm"), 2 * n);
    raw_close(&r, false);
    site_close(&t);
}

static void answered_before_the_body(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    /* a little that is still to come is dropped, and the connection goes on */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc");
    WAIT(&t.w, raw_has(&r, "early"));
    assert_false(raw_has(&r, "Connection"));
    assert_string_equal(t.all[0].log, "R+");
    raw_send(&r, "def" GET("/hello"));
    WAIT(&t.w, raw_has(&r, "hello"));
    assert_string_equal(t.all[0].log, "R+");
    raw_close(&r, false);

    /* of much the client is told at once */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\nabc");
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, 0);
    assert_true(raw_has(&r, "\r\nConnection: close\r\n"));
    assert_true(raw_has(&r, "early"));
    raw_close(&r, false);

    /* when it is not known, it is dropped up to a bound; the answer is not destroyed by a reset */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /early HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    WAIT(&t.w, raw_has(&r, "early"));
    assert_false(raw_has(&r, "Connection"));
    char head[16];
    (void)snprintf(head, sizeof(head), "%zx\r\n", HTTPIO_DROP_MAX + 100);
    uint64_t start = net_loop_now_ms(t.w.loop);
    raw_send(&r, head);
    raw_send_bytes(&r, (struct str){big, HTTPIO_DROP_MAX + 100});
    WAIT(&t.w, r.ended);
    assert_true(net_loop_now_ms(t.w.loop) - start < HTTPIO_LINGER_MS); /* by its bytes, not by its time */
    assert_int_equal(r.status, 0);
    raw_close(&r, false);
    site_close(&t);
}

static void expect_continue(void **state)
{
    (void)state;
#define EXPECT(path) "POST " path " HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    static const char go[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, EXPECT("/hello"));
    WAIT(&t.w, r.got.len > 0);
    assert_string_equal(raw_got(&r), go);
    raw_send(&r, "abc");
    WAIT(&t.w, raw_has(&r, "hello"));
    buf_clear(&r.got);

    /* only when the owner begins to read */
    raw_send(&r, EXPECT("/paused"));
    WAIT(&t.w, t.n == 2);
    world_nap(&t.w, 20);
    assert_int_equal(r.got.len, 0);
    httpio_read(t.all[1].x, true);
    httpio_read(t.all[1].x, true);
    WAIT(&t.w, r.got.len > 0);
    assert_string_equal(raw_got(&r), go);
    raw_send(&r, "abc");
    WAIT(&t.w, strchr(t.all[1].log, 'E'));
    httpio_respond(t.all[1].x, 200, NULL, STR("thanks"));
    WAIT(&t.w, raw_has(&r, "thanks"));
    assert_int_equal(raw_count(&r, go), 1);
    buf_clear(&r.got);

    /* a client that does not wait needs no permission */
    raw_send(&r, EXPECT("/paused") "abc");
    WAIT(&t.w, t.n == 3 && strchr(t.all[2].log, 'E'));
    httpio_read(t.all[2].x, true);
    httpio_respond(t.all[2].x, 200, NULL, STR("thanks"));
    WAIT(&t.w, raw_has(&r, "thanks"));
    assert_false(raw_has(&r, go));
    buf_clear(&r.got);

    /* answered without its body: the client may or may not send it, so nothing can follow */
    raw_send(&r, EXPECT("/early"));
    WAIT(&t.w, r.ended);
    assert_false(raw_has(&r, go));
    assert_true(raw_has(&r, "\r\nConnection: close\r\n"));
    raw_close(&r, false);
    site_close(&t);
}

/* ---- clients that leave ---------------------------------------------------------------------------------- */

static void client_leaves(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        bool stream, reset;
        const char *log;
    } cases[] = {
        {GET("/wait"), false, false, "RE-"},
        {GET("/wait"), false, true, "RE-"},
        {GET("/wait"), true, false, "RE-"},
        {GET("/wait"), true, true, "RE-"},
        {"POST /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", false, false, "Rb-"},
        {"POST /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", true, true, "Rb-"},
        {GET("/wait") "GET /par", false, false, "RE-"},
    };

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct site t;
        struct raw r;

        site_open(&t);
        raw_connect(&r, &t.w, &t.addr);
        raw_send(&r, cases[i].request);
        WAIT(&t.w, t.n == 1 && t.all[0].log[1] != '\0');
        if (cases[i].stream) {
            assert_int_equal(httpio_begin(t.all[0].x, 200, NULL, 0, -1), 0);
            (void)httpio_send(t.all[0].x, STR("data"));
            WAIT(&t.w, raw_has(&r, "data"));
        }
        raw_close(&r, cases[i].reset);
        WAIT(&t.w, !t.all[0].x);
        assert_string_equal(t.all[0].log, cases[i].log);
        WAIT(&t.w, httpio_server_open(t.server) == 0);
        site_close(&t);
    }
}

/* Its end is behind bytes that are not read: a paused body, or more requests than are kept. */
static void client_leaves_unread(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct site t;
        struct raw r;

        site_open(&t);
        raw_connect(&r, &t.w, &t.addr);
        if (what < 2) {
            raw_send(&r, "POST /paused HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n");
            WAIT(&t.w, t.n == 1);
            raw_send_bytes(&r, (struct str){big, 100000});
        } else {
            raw_send(&r, GET("/wait"));
            for (int i = 0; i < 3000; i++)
                raw_send(&r, GET("/many"));
            WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
        }
        world_nap(&t.w, 220);
        assert_non_null(t.all[0].x);
        raw_close(&r, what == 1);
        WAIT(&t.w, !t.all[0].x);
        assert_string_equal(t.all[0].log, what < 2 ? "R-" : "RE-");
        site_close(&t);
    }
}

static void client_ends_early(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    /* what was asked for before the end is answered */
    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/hello") GET("/hello"));
    net_stream_shutdown(r.s);
    WAIT(&t.w, r.ended);
    assert_got(&r, HELLO HELLO);
    raw_close(&r, false);

    /* a complete response is written to its end */
    raw_connect(&r, &t.w, &t.addr);
    net_stream_read(r.s, false);
    raw_send(&r, GET("/big") "GET /hel"); /* and what was begun is not waited for */
    WAIT(&t.w, t.n == 3);
    assert_string_equal(t.all[2].log, "R");
    net_stream_shutdown(r.s);
    world_nap(&t.w, 20);
    assert_string_equal(t.all[2].log, "R");
    net_stream_read(r.s, true);
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, 0);
    assert_true(r.got.len > BIG);
    assert_string_equal(t.all[2].log, "R+");
    raw_close(&r, false);

    /* half a head, and nothing at all */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "GET /hel");
    net_stream_shutdown(r.s);
    WAIT(&t.w, r.ended);
    assert_int_equal(r.got.len, 0);
    raw_close(&r, false);
    raw_connect(&r, &t.w, &t.addr);
    net_stream_shutdown(r.s);
    WAIT(&t.w, r.ended);
    assert_int_equal(t.n, 3);
    raw_close(&r, false);
    site_close(&t);
}

static void client_leaves_while_written_to(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    net_stream_read(r.s, false);
    raw_send(&r, GET("/big"));
    WAIT(&t.w, t.n == 1);
    raw_close(&r, true);
    WAIT(&t.w, !t.all[0].x);
    assert_string_equal(t.all[0].log, "R-");
    site_close(&t);
}

/* ---- limits ---------------------------------------------------------------------------------------------- */

static struct httpio_limits short_limits(void)
{
    struct httpio_limits l = {.connections = 100, .send_high_bytes = 64 * 1024};

    return l;
}

static void slow_head(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r;

    l.head_ms = 60;
    site_open_limits(&t, &l);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "GET /hello HTTP/1.1\r\n");
    for (int i = 0; i < 100 && !r.ended; i++) {
        world_nap(&t.w, 5);
        if (r.s && !r.ended)
            raw_send(&r, "X: y\r\n"); /* bytes now and then do not help */
    }
    assert_true(r.ended);
    assert_int_equal(r.status, 0);
    assert_error(&r, "408", "timeout_error");
    assert_int_equal(t.n, 0);
    raw_close(&r, false);
    site_close(&t);
}

static void idle_connections(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r, again;

    l.idle_ms = 60;
    site_open_limits(&t, &l);
    raw_connect(&r, &t.w, &t.addr);
    raw_connect(&again, &t.w, &t.addr);
    raw_send(&again, GET("/hello"));
    WAIT(&t.w, r.ended && again.ended);
    assert_int_equal(r.got.len, 0);
    assert_got(&again, HELLO);
    assert_int_equal(r.status, 0);
    assert_int_equal(again.status, 0);
    raw_close(&r, false);
    raw_close(&again, false);

    /* an exchange is not idle, however long it takes */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    world_nap(&t.w, 200);
    assert_false(r.ended);
    httpio_respond(t.all[1].x, 200, NULL, STR("late"));
    WAIT(&t.w, raw_has(&r, "late"));
    raw_close(&r, false);
    site_close(&t);
}

static void body_stalls(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r;

    l.body_stall_ms = 60;
    site_open_limits(&t, &l);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    WAIT(&t.w, r.ended);
    assert_error(&r, "408", "timeout_error");
    assert_string_equal(t.all[0].log, "Rb-");
    raw_close(&r, false);

    /* an answer that has begun is cut */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, -ECONNRESET);
    assert_string_equal(t.all[1].log, "Rb-");
    raw_close(&r, false);

    /* while the owner does not read, the time does not run */
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /paused HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    WAIT(&t.w, t.n == 3);
    world_nap(&t.w, 200);
    assert_string_equal(t.all[2].log, "Rb");
    httpio_read(t.all[2].x, true);
    WAIT(&t.w, !t.all[2].x);
    assert_string_equal(t.all[2].log, "Rb-");
    raw_close(&r, false);
    site_close(&t);
}

/* A body that never stands still and never ends: what it must bring grows with the time. One that is fast enough may take long. */
static void body_drips(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r;

    l.body_stall_ms = 500;
    l.body_pace = 200;
    site_open_limits(&t, &l);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n");
    for (int i = 0; i < 200 && !r.ended; i++) { /* 50 a second at most */
        raw_send(&r, "a");
        world_nap(&t.w, 20);
    }
    WAIT(&t.w, r.ended);
    assert_error(&r, "408", "timeout_error");
    raw_close(&r, false);

    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\n");
    for (int i = 0; i < 50; i++) { /* 500 a second, for a second */
        raw_send(&r, "aaaaaaaaaa");
        world_nap(&t.w, 20);
    }
    WAIT(&t.w, raw_has(&r, "hello"));
    raw_close(&r, false);
    site_close(&t);
}

static void writing_stalls(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r;

    l.write_stall_ms = 500;
    site_open_limits(&t, &l);
    raw_connect_narrow(&r, &t.w, &t.addr);
    raw_send(&r, GET("/big"));
    WAIT(&t.w, t.n == 1);
    for (int i = 0; i < 6; i++) { /* a slow reader is not a stalled one */
        size_t before = r.got.len;

        net_stream_read(r.s, true);
        WAIT(&t.w, r.got.len > before + 60000 || !t.all[0].x); /* enough to open its window again */
        net_stream_read(r.s, false);
        world_nap(&t.w, 100);
        assert_string_equal(t.all[0].log, "R");
    }
    uint64_t start = net_loop_now_ms(t.w.loop);
    WAIT(&t.w, !t.all[0].x);
    assert_string_equal(t.all[0].log, "R-");
    assert_true(net_loop_now_ms(t.w.loop) - start >= 200);
    raw_close(&r, false);
    site_close(&t);
}

static void too_many(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r[2], more[2];

    l.connections = 2;
    site_open_limits(&t, &l);
    for (size_t i = 0; i < 2; i++)
        raw_connect(&r[i], &t.w, &t.addr);
    WAIT(&t.w, httpio_server_open(t.server) == 2);
    for (size_t i = 0; i < 2; i++) {
        raw_connect(&more[i], &t.w, &t.addr);
        raw_send(&more[i], GET("/hello"));
        WAIT(&t.w, more[i].ended);
        assert_int_equal(more[i].status, 0);
        assert_error(&more[i], "503", "overloaded_error");
        raw_close(&more[i], false);
    }
    assert_int_equal(httpio_server_open(t.server), 2);
    assert_int_equal(t.n, 0);
    raw_close(&r[0], false);
    WAIT(&t.w, httpio_server_open(t.server) == 1);
    raw_send(&r[1], GET("/hello"));
    WAIT(&t.w, raw_has(&r[1], "hello"));
    raw_connect(&r[0], &t.w, &t.addr);
    raw_send(&r[0], GET("/hello"));
    WAIT(&t.w, raw_has(&r[0], "hello"));
    raw_close(&r[0], false);
    raw_close(&r[1], false);
    site_close(&t);
}

/* Clients that wait never hold the descriptors that are needed to answer them. */
static void as_many_as_descriptors_serve(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct rlimit before, few;
    const struct {
        rlim_t descriptors;
        size_t wanted, got;
    } cases[] = {{200, 100, 100 - HTTPIO_FDS_ELSE}, {200, 30, 30}, {200, 0, 100 - HTTPIO_FDS_ELSE}, {100, 100, 1}};

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        few = (struct rlimit){.rlim_cur = cases[i].descriptors, .rlim_max = before.rlim_max};
        l.connections = cases[i].wanted;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        site_open_limits(&t, &l);
        assert_int_equal(t.server->limits.connections, cases[i].got);
        site_close(&t);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* At the limit the connection that has waited longest for a request makes room, and one with a request under way does not. */
static void idle_ones_make_room(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r[4];

    l.connections = 2;
    l.idle_ms = 60000;
    site_open_limits(&t, &l);
    for (size_t i = 0; i < 2; i++) {
        raw_connect(&r[i], &t.w, &t.addr);
        WAIT(&t.w, httpio_server_open(t.server) == i + 1);
        LIST_FIRST(&t.server->conns)->since -= 2 * HTTPIO_RECLAIM_MS;
    }
    raw_connect(&r[2], &t.w, &t.addr);
    WAIT(&t.w, r[0].ended);
    assert_int_equal(r[0].got.len, 0);
    assert_false(r[1].ended);
    assert_int_equal(httpio_server_open(t.server), 2);
    assert_int_equal(httpio_server_count(t.server, HTTPIO_RECLAIMED), 1);
    assert_int_equal(httpio_server_count(t.server, HTTPIO_ACCEPTED), 3);
    /* the second has begun to send, the third has only just come */
    raw_send(&r[1], "GET / HT");
    raw_try_connect(&r[3], &t.w, &t.addr);
    WAIT(&t.w, r[3].ended);
    assert_true(raw_has(&r[3], "503"));
    assert_int_equal(httpio_server_count(t.server, HTTPIO_REFUSED), 1);
    for (size_t i = 0; i < BASE_COUNT(r); i++)
        raw_close(&r[i], false);
    site_close(&t);
}

/* Who begins heads and does not end them loses the oldest of them, and others go on. */
static void half_heads_are_few(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    static struct raw r[HTTPIO_HEADS_MIN + 4];
    struct raw whole;

    l.connections = 24; /* of which a quarter would be fewer than there always may be */
    l.head_ms = 60000;
    site_open_limits(&t, &l);
    for (size_t i = 0; i < BASE_COUNT(r); i++) {
        raw_connect(&r[i], &t.w, &t.addr);
        raw_send(&r[i], "GET / HT");
        while (t.server->n_heads + httpio_server_count(t.server, HTTPIO_HEAD_CROWD) != i + 1) /* half a head is told to nobody */
            world_nap(&t.w, 1);
        assert_true(t.server->n_heads <= HTTPIO_HEADS_MIN);
    }
    assert_int_equal(t.server->n_heads, HTTPIO_HEADS_MIN);
    assert_int_equal(httpio_server_count(t.server, HTTPIO_HEAD_CROWD), 4);
    for (size_t i = 0; i < 4; i++)
        WAIT(&t.w, r[i].ended);
    assert_false(r[4].ended);
    /* a whole head is none of them, and one that is completed is served */
    raw_connect(&whole, &t.w, &t.addr);
    raw_send(&whole, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    WAIT(&t.w, t.n == 1);
    raw_send(&r[4], "TP/1.1\r\nHost: a\r\n\r\n");
    WAIT(&t.w, t.n == 2);
    assert_int_equal(t.server->n_heads, HTTPIO_HEADS_MIN - 1);
    assert_false(r[5].ended);
    raw_close(&whole, false);
    for (size_t i = 0; i < BASE_COUNT(r); i++)
        raw_close(&r[i], false);
    while (t.server->n_heads > 0)
        world_nap(&t.w, 1);
    site_close(&t);
}

/* Far more than the limit: each is either told so or closed, and memory is bounded. */
static void a_flood_of_connections(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    static struct raw r[HTTPIO_REFUSED_MAX + 20];
    size_t told = 0, closed = 0;

    l.connections = 1;
    site_open_limits(&t, &l);
    for (size_t i = 0; i < BASE_COUNT(r); i++)
        raw_try_connect(&r[i], &t.w, &t.addr);
    for (size_t i = 1; i < BASE_COUNT(r); i++) {
        WAIT(&t.w, r[i].ended);
        if (raw_has(&r[i], "503"))
            told++;
        else
            closed++;
    }
    assert_int_equal(told, HTTPIO_REFUSED_MAX);
    assert_int_equal(closed, 19);
    for (size_t i = 0; i < BASE_COUNT(r); i++)
        raw_close(&r[i], false);
    site_close(&t);
}

static void heads_too_large(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
    memset(big, 'x', 200 * 1024);
    raw_send_bytes(&r, (struct str){big, 200 * 1024});
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, 0); /* what came after the limit was read, so the answer survived */
    assert_error(&r, "431", "invalid_request_error");
    raw_close(&r, false);

    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "GET / HTTP/1.1\r\nHost: h\r\n");
    for (int i = 0; i < HTTP_FIELDS_MAX; i++)
        raw_send(&r, "A: b\r\n");
    raw_send(&r, "\r\n");
    WAIT(&t.w, r.ended);
    assert_error(&r, "431", "invalid_request_error");
    assert_int_equal(t.n, 0);
    raw_close(&r, false);
    site_close(&t);
}

static void malformed(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "hello\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n X: folded\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /\"quoted\" HTTP/1.1\r\nHost: h\r\nBad\x01: \"x\r\n\r\n",
        "\x16\x03\x01\x02\x01\x01",
    };
    struct site t;
    struct raw r;

    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        site_open(&t);
        raw_connect(&r, &t.w, &t.addr);
        raw_send(&r, bad[i]);
        if (!r.ended)
            WAIT(&t.w, r.ended);
        assert_error(&r, "400", "invalid_request_error");
        assert_int_equal(t.n, 0);
        raw_close(&r, false);
        site_close(&t);
    }

    /* after a good one, and in a body: before its answer, and after it has begun */
    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/hello"));
    WAIT(&t.w, raw_has(&r, "hello"));
    buf_clear(&r.got);
    raw_send(&r, "POST /wait HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX");
    WAIT(&t.w, r.ended);
    assert_error(&r, "400", "invalid_request_error");
    assert_string_equal(t.all[1].log, "Rb-");
    raw_close(&r, false);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    WAIT(&t.w, raw_has(&r, "abc"));
    raw_send(&r, "zz\r\n");
    WAIT(&t.w, r.ended);
    assert_int_equal(r.status, -ECONNRESET);
    assert_false(raw_has(&r, "400"));
    assert_string_equal(t.all[2].log, "Rb-");
    raw_close(&r, false);
    site_close(&t);
}

/* ---- back-pressure --------------------------------------------------------------------------------------- */

static void owner_waits_for_the_client(void **state)
{
    (void)state;
    struct site t;
    struct raw r;
    size_t sent = 0;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    net_stream_read(r.s, false);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    assert_int_equal(httpio_begin(t.all[0].x, 200, NULL, 0, -1), 0);
    while (!t.all[0].wait) {
        t.all[0].wait = httpio_send(t.all[0].x, (struct str){big, 100000});
        sent += 100000;
        assert_true(sent < 1u << 30);
    }
    world_nap(&t.w, 20);
    assert_string_equal(t.all[0].log, "RE");
    net_stream_read(r.s, true);
    WAIT(&t.w, !t.all[0].wait);
    assert_string_equal(t.all[0].log, "REw");
    httpio_end(t.all[0].x);
    WAIT(&t.w, raw_has_end(&r, "\r\n0\r\n\r\n"));
    raw_close(&r, false);
    site_close(&t);
}

static void client_waits_for_the_owner(void **state)
{
    (void)state;
    struct site t;
    struct raw r;
    char head[96];

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    (void)snprintf(head, sizeof(head), "POST /paused HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", BIG);
    raw_send(&r, head);
    raw_send_bytes(&r, (struct str){big, BIG});
    WAIT(&t.w, t.n == 1);
    world_nap(&t.w, 30);
    assert_true(t.all[0].body.len <= 64 * 1024); /* one read at most */
    assert_true(net_stream_queued(r.s) > 0);
    httpio_read(t.all[0].x, true);
    WAIT(&t.w, strchr(t.all[0].log, 'E'));
    assert_int_equal(t.all[0].body.len, BIG);
    httpio_respond(t.all[0].x, 200, NULL, STR("all of it"));
    WAIT(&t.w, raw_has(&r, "all of it"));
    raw_close(&r, false);
    site_close(&t);
}

/* ---- owners that end everything from within -------------------------------------------------------------- */

/* A connection in each state, then one event in which the owner frees the server or aborts all exchanges. */
static void ended_within(char free_at, char abort_at)
{
    struct site t;
    struct raw idle, half, waits, streams, r;
    char at = free_at ? free_at : abort_at;

    site_open(&t);
    raw_connect(&idle, &t.w, &t.addr);
    raw_connect(&half, &t.w, &t.addr);
    raw_send(&half, "GET /ha");
    raw_connect(&waits, &t.w, &t.addr);
    raw_send(&waits, GET("/wait") GET("/hello"));
    raw_connect(&streams, &t.w, &t.addr);
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    raw_send(&streams, GET("/wait"));
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    assert_int_equal(httpio_begin(t.all[1].x, 200, NULL, 0, -1), 0);
    WAIT(&t.w, httpio_server_open(t.server) == 4);
    raw_connect(&r, &t.w, &t.addr);
    t.free_at = free_at;
    t.abort_at = abort_at;
    if (at == 'w') {
        net_stream_read(r.s, false);
        raw_send(&r, GET("/wait"));
        WAIT(&t.w, t.n == 3 && strchr(t.all[2].log, 'E'));
        assert_int_equal(httpio_begin(t.all[2].x, 200, NULL, 0, -1), 0);
        assert_true(httpio_send(t.all[2].x, (struct str){big, BIG}));
        net_stream_read(r.s, true);
    } else if (at == '-') {
        raw_send(&r, GET("/abort"));
    } else {
        raw_send(&r, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" GET("/hello"));
    }
    WAIT(&t.w, !t.all[0].x && !t.all[1].x && (t.n < 3 || !t.all[2].x));
    if (free_at)
        assert_null(t.server);
    raw_close(&idle, false);
    raw_close(&half, false);
    raw_close(&waits, false);
    raw_close(&streams, false);
    raw_close(&r, false);
    site_close(&t);
}

static void freed_within(void **state)
{
    (void)state;
    for (const char *at = "RbEw+-"; *at; at++)
        ended_within(*at, 0);
}

static void aborted_within(void **state)
{
    (void)state;
    for (const char *at = "RbEw+-"; *at; at++)
        ended_within(0, *at);
}

/* The server is freed by an exchange whose limit strikes, while others wait for the same. */
static void freed_by_a_limit(void **state)
{
    (void)state;
    struct httpio_limits l = short_limits();
    struct site t;
    struct raw r[4];

    l.body_stall_ms = 60;
    site_open_limits(&t, &l);
    for (size_t i = 0; i < 4; i++) {
        raw_connect(&r[i], &t.w, &t.addr);
        raw_send(&r[i], "POST /wait HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    }
    t.free_at = '-';
    WAIT(&t.w, !t.server);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(t.all[i].log, "Rb-");
    for (size_t i = 0; i < 4; i++)
        raw_close(&r[i], false);
    site_close(&t);
}

/* ---- draining -------------------------------------------------------------------------------------------- */

static void on_drained(void *ctx)
{
    struct site *t = ctx;

    t->drained++;
    net_loop_stop(t->w.loop);
}

static void on_drained_free(void *ctx)
{
    struct site *t = ctx;

    on_drained(ctx);
    t->server = httpio_server_free(t->server);
}

static void drains(void **state)
{
    (void)state;
    struct site t;
    struct raw idle, used, busy, half;

    site_open(&t);
    raw_connect(&idle, &t.w, &t.addr);
    raw_connect(&used, &t.w, &t.addr);
    raw_send(&used, GET("/hello"));
    WAIT(&t.w, raw_has(&used, "hello"));
    raw_connect(&busy, &t.w, &t.addr);
    raw_send(&busy, GET("/wait"));
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    raw_connect(&half, &t.w, &t.addr);
    raw_send(&half, "GET /hel");
    WAIT(&t.w, httpio_server_open(t.server) == 4);
    world_nap(&t.w, 20);

    httpio_server_drain(t.server, 4000, on_drained_free, &t);
    assert_int_equal(t.drained, 0);
    WAIT(&t.w, idle.ended && used.ended);
    int fd = net_listen_socket(&t.addr, false, NULL); /* nobody listens there any more */
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(t.drained, 0);
    raw_send(&half, "lo HTTP/1.1\r\nHost: h\r\n\r\n");
    WAIT(&t.w, half.ended);
    assert_true(raw_has(&half, "\r\nConnection: close\r\n"));
    assert_true(raw_has(&half, "hello"));
    assert_false(busy.ended);
    httpio_respond(t.all[1].x, 200, NULL, STR("done"));
    assert_int_equal(t.drained, 0); /* not from within a call of ours */
    WAIT(&t.w, t.drained == 1 && busy.ended);
    assert_true(raw_has(&busy, "\r\nConnection: close\r\n"));
    assert_true(raw_has(&busy, "done"));
    assert_null(t.server);
    raw_close(&idle, false);
    raw_close(&used, false);
    raw_close(&busy, false);
    raw_close(&half, false);
    site_close(&t);
}

static void drain_has_a_deadline(void **state)
{
    (void)state;
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    httpio_server_drain(t.server, 60, on_drained, &t);
    WAIT(&t.w, t.drained == 1);
    assert_string_equal(t.all[0].log, "RE-");
    assert_int_equal(httpio_server_open(t.server), 0);
    raw_close(&r, false);
    site_close(&t);

    /* nobody is there: told all the same, and not at once */
    site_open(&t);
    httpio_server_drain(t.server, 1000, on_drained, &t);
    assert_int_equal(t.drained, 0);
    WAIT(&t.w, t.drained == 1);
    site_close(&t);

    /* begun within a request */
    site_open(&t);
    t.drain_in_request = true;
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/hello") GET("/hello"));
    WAIT(&t.w, r.ended);
    assert_true(raw_has(&r, "\r\nConnection: close\r\n"));
    assert_int_equal(raw_count(&r, "hello"), 1);
    assert_int_equal(t.n, 1);
    raw_close(&r, false);
    site_close(&t);
}

/* ---- the rest -------------------------------------------------------------------------------------------- */

static void unix_sockets(void **state)
{
    (void)state;
    char dir[] = "/tmp/httpio-test-XXXXXX", path[64];
    struct net_addr a;
    struct site t;
    struct raw r;
    pid_t pid = 0;
    uid_t uid = 12345;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/s", dir);
    assert_int_equal(net_addr_unix(path, &a), 0);
    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 1 && strchr(t.all[0].log, 'E'));
    assert_int_equal(httpio_exchange_cred(t.all[0].x, &pid, &uid), -ENOTSUP);
    httpio_abort(t.all[0].x);
    raw_close(&r, false);

    site_listen(&t, &a); /* a second address */
    raw_connect(&r, &t.w, &a);
    raw_send(&r, GET("/wait"));
    WAIT(&t.w, t.n == 2 && strchr(t.all[1].log, 'E'));
    assert_int_equal(httpio_exchange_cred(t.all[1].x, &pid, &uid), 0);
    assert_int_equal(pid, getpid());
    assert_int_equal(uid, getuid());
    httpio_respond(t.all[1].x, 200, NULL, STR("hi"));
    WAIT(&t.w, raw_has(&r, "hi"));
    raw_close(&r, false);
    site_close(&t);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_null(httpio_server_free(NULL));
}

/* Every cut of a conversation into two pieces gives the same answers. */
static void cut_anywhere(void **state)
{
    (void)state;
    static const char talk[] = "POST /many HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n" GET("/many")
        "POST /many HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd";
    struct site t;
    struct raw r;

    site_open(&t);
    raw_connect(&r, &t.w, &t.addr);
    for (size_t i = 1; i < sizeof(talk) - 1; i++) {
        buf_clear(&r.got);
        raw_send_bytes(&r, (struct str){talk, i});
        world_nap(&t.w, 0);
        raw_send_bytes(&r, (struct str){talk + i, sizeof(talk) - 1 - i});
        WAIT(&t.w, t.answered == 3 * i && raw_count(&r, "\r\n\r\nm") == 3);
    }
    raw_close(&r, false);
    site_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dates_and_errors),
        cmocka_unit_test(one_after_the_other),
        cmocka_unit_test(older_clients),
        cmocka_unit_test(without_a_body),
        cmocka_unit_test(bodies_come_back),
        cmocka_unit_test(head_alone),
        cmocka_unit_test(answers_that_cannot_be),
        cmocka_unit_test(wrong_lengths),
        cmocka_unit_test(aborted),
        cmocka_unit_test(pipelined_in_turn),
        cmocka_unit_test(pipelined_floods),
        cmocka_unit_test(answered_before_the_body),
        cmocka_unit_test(expect_continue),
        cmocka_unit_test(client_leaves),
        cmocka_unit_test(client_leaves_unread),
        cmocka_unit_test(client_ends_early),
        cmocka_unit_test(client_leaves_while_written_to),
        cmocka_unit_test(slow_head),
        cmocka_unit_test(idle_connections),
        cmocka_unit_test(body_stalls),
        cmocka_unit_test(body_drips),
        cmocka_unit_test(writing_stalls),
        cmocka_unit_test(too_many),
        cmocka_unit_test(idle_ones_make_room),
        cmocka_unit_test(half_heads_are_few),
        cmocka_unit_test(a_flood_of_connections),
        cmocka_unit_test(as_many_as_descriptors_serve),
        cmocka_unit_test(heads_too_large),
        cmocka_unit_test(malformed),
        cmocka_unit_test(owner_waits_for_the_client),
        cmocka_unit_test(client_waits_for_the_owner),
        cmocka_unit_test(freed_within),
        cmocka_unit_test(aborted_within),
        cmocka_unit_test(freed_by_a_limit),
        cmocka_unit_test(drains),
        cmocka_unit_test(drain_has_a_deadline),
        cmocka_unit_test(unix_sockets),
        cmocka_unit_test(cut_anywhere),
    };
    return cmocka_run_group_tests_name("httpio_server", tests, NULL, NULL);
}
