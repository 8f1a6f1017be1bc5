/* SPDX-License-Identifier: MIT
 *
 * The client of httpio against a server that is played byte by byte. What happened to a call is a string with one letter an event: h head, b body, w drain, E end,
 * F failure.
 */
#include "httpio_aid.h"
#include "tls_pair.h"

#include "../../src/httpio/client_int.h"

#define CALLS 16
#define BIG (24 * 1024 * 1024)

struct desk;

struct made {
    struct desk *d;
    struct httpio_call *k; /* NULL when it is over */
    char log[32];
    struct buf body;
    unsigned status;
    enum httpio_failure failure;
    char text[256];
    char server[64]; /* a field of the head, read again at the end */
    const struct http_head *head;
};

struct desk {
    struct world w;
    struct net_listener *listener;
    struct net_addr addr;
    struct raw at[16]; /* connections that came, in order */
    size_t n_at;
    struct httpio_client *client;
    struct made all[CALLS];
    size_t n;
    bool calling; /* within a function of httpio */
    char free_at, cancel_at, again_at;
};

static char big[BIG];

static void on_accept(void *ctx, struct net_stream *s)
{
    struct desk *d = ctx;

    assert_true(d->n_at < BASE_COUNT(d->at));
    raw_init(&d->at[d->n_at], &d->w);
    d->at[d->n_at].s = s;
    net_stream_set_ops(s, &raw_ops, &d->at[d->n_at]);
    net_stream_read(s, true);
    d->n_at++;
    net_loop_stop(d->w.loop);
}

static struct made *call_at(struct desk *d, const struct httpio_request *r);
static struct httpio_request get(const struct desk *d, const char *target);

/* Notes an event. True when the call is still there. */
static bool note(struct made *m, char c)
{
    struct desk *d = m->d;
    size_t len = strlen(m->log);

    net_loop_stop(d->w.loop);
    assert_false(d->calling);
    assert_true(m->k || strchr("EF", c) == NULL); /* nothing comes after the end */
    if (c != 'b' || len == 0 || m->log[len - 1] != 'b') {
        assert_true(len + 1 < sizeof(m->log));
        m->log[len] = c;
    }
    if (c == 'E' || c == 'F')
        m->k = NULL;
    if (d->free_at == c && d->client) {
        for (size_t i = 0; i < d->n; i++)
            d->all[i].k = NULL;
        d->client = httpio_client_free(d->client);
    } else if (d->cancel_at == c) {
        d->cancel_at = 0;
        for (size_t i = 0; i < d->n; i++)
            d->all[i].k = httpio_call_cancel(d->all[i].k);
    } else if (d->again_at == c) {
        struct httpio_request r = get(d, "/again");

        d->again_at = 0;
        (void)call_at(d, &r);
    }
    return m->k != NULL;
}

static void on_head(void *ctx, const struct http_head *head)
{
    struct made *m = ctx;

    m->status = head->status;
    m->head = head;
    (void)note(m, 'h');
}

static void on_body(void *ctx, struct str data)
{
    struct made *m = ctx;

    buf_add_str(&m->body, data);
    (void)note(m, 'b');
}

static void on_end(void *ctx)
{
    struct made *m = ctx;
    struct str s = http_field_get(m->head, "server"); /* the head is still there */

    (void)snprintf(m->server, sizeof(m->server), STR_FMT, STR_ARG(s));
    (void)note(m, 'E');
}

static void on_fail(void *ctx, enum httpio_failure f, const char *text)
{
    struct made *m = ctx;

    m->failure = f;
    (void)snprintf(m->text, sizeof(m->text), "%s", text);
    (void)note(m, 'F');
}

static void on_drain(void *ctx)
{
    (void)note(ctx, 'w');
}

static const struct httpio_call_ops call_ops = {on_head, on_body, on_end, on_fail, on_drain};

static void desk_open_options(struct desk *d, const struct httpio_client_options *o)
{
    struct net_addr a = loopback(0);
    int fd;

    *d = (struct desk){0};
    world_open(&d->w);
    fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &d->addr), 0);
    assert_int_equal(net_listener_new(d->w.loop, fd, on_accept, d, &d->listener, NULL), 0);
    d->client = httpio_client_new(d->w.loop, o);
    assert_non_null(d->client);
}

static void desk_open(struct desk *d)
{
    desk_open_options(d, &HTTPIO_CLIENT_DEFAULT);
}

static void desk_close(struct desk *d)
{
    d->client = httpio_client_free(d->client);
    d->w.loop = net_loop_free(d->w.loop);
    for (size_t i = 0; i < d->n_at; i++)
        buf_release(&d->at[i].got);
    for (size_t i = 0; i < d->n; i++)
        buf_release(&d->all[i].body);
}

static struct httpio_request get(const struct desk *d, const char *target)
{
    return (struct httpio_request){.addr = d->addr, .method = STR("GET"), .target = str_of(target)};
}

static struct httpio_request post(const struct desk *d, const char *body)
{
    return (struct httpio_request){.addr = d->addr, .method = STR("POST"), .target = STR("/"), .body = str_of(body)};
}

static struct made *call_at(struct desk *d, const struct httpio_request *r)
{
    struct made *m = &d->all[d->n++];
    struct err err = {0};

    assert_true(d->n <= CALLS);
    *m = (struct made){.d = d, .body = BUF_INIT(64 * 1024 * 1024)};
    d->calling = true;
    assert_int_equal(httpio_call(d->client, r, &call_ops, m, &m->k, &err), 0);
    d->calling = false;
    return m;
}

static struct made *call_get(struct desk *d, const char *target)
{
    struct httpio_request r = get(d, target);

    return call_at(d, &r);
}

/* A call whose request has arrived at connection number `at`. */
static struct made *call_arrives(struct desk *d, const struct httpio_request *r, size_t at)
{
    struct made *m;

    if (at < d->n_at)
        buf_clear(&d->at[at].got);
    m = call_at(d, r);
    WAIT(&d->w, d->n_at > at && raw_has(&d->at[at], "\r\n\r\n"));
    assert_int_equal(d->n_at, at + 1 > d->n_at ? at + 1 : d->n_at);
    return m;
}

static struct made *get_arrives(struct desk *d, size_t at)
{
    struct httpio_request r = get(d, "/");

    return call_arrives(d, &r, at);
}

#define OK5 "HTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: 5\r\n\r\nhello"

static void answer(struct desk *d, size_t at, struct made *m, const char *response, const char *log)
{
    raw_send(&d->at[at], response);
    WAIT(&d->w, !m->k);
    assert_string_equal(m->log, log);
}

/* text NULL: what is said of that kind, and perhaps more. */
static void assert_failed(const struct made *m, enum httpio_failure f, const char *text)
{
    const char *kind = httpio_failure_text(f), *what = strstr(m->text, "': ");

    assert_null(m->k);
    assert_int_equal(m->failure, f);
    assert_non_null(what);
    assert_true(strncmp(m->text, "'127.0.0.1:", 11) == 0 || strncmp(m->text, "'/", 2) == 0);
    if (text)
        assert_string_equal(what + 3, text);
    else
        assert_int_equal(strncmp(what + 3, kind, strlen(kind)), 0);
}

/* ---- plain calls ----------------------------------------------------------------------------------------- */

static void request_and_response(void **state)
{
    (void)state;
    struct desk d;
    char want[256];
    struct http_field f[] = {HTTPIO_FIELD(STR("X-A"), STR("1")), HTTPIO_FIELD(STR("Accept"), STR("*/*"))};

    desk_open(&d);
    struct httpio_request r = get(&d, "/x?y=1");
    r.fields = f;
    r.n_fields = 2;
    struct made *m = call_arrives(&d, &r, 0);
    (void)snprintf(want, sizeof(want), "GET /x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nX-A: 1\r\nAccept: */*\r\n\r\n", (unsigned)d.addr.port);
    assert_string_equal(raw_got(&d.at[0]), want);
    answer(&d, 0, m, OK5, "hbE");
    assert_int_equal(m->status, 200);
    assert_string_equal(m->body.ptr, "hello");
    assert_string_equal(m->server, "s");

    /* again over the same connection, with a body and a name of its own */
    r = post(&d, "{\"a\":1}");
    r.host = STR("model.example");
    m = call_arrives(&d, &r, 0);
    assert_string_equal(raw_got(&d.at[0]), "POST / HTTP/1.1\r\nHost: model.example\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
    answer(&d, 0, m, "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "hbE");
    assert_int_equal(m->status, 404);
    assert_string_equal(m->body.ptr, "abcde");

    /* an empty body is told for methods that have one */
    r = post(&d, "");
    m = call_arrives(&d, &r, 0);
    assert_true(raw_has(&d.at[0], "\r\nContent-Length: 0\r\n"));
    answer(&d, 0, m, "HTTP/1.1 204 No Content\r\n\r\n", "hE");

    /* HEAD has no body whatever it says; interim responses are passed over */
    r = get(&d, "/");
    r.method = STR("HEAD");
    m = call_arrives(&d, &r, 0);
    answer(&d, 0, m, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", "hE");
    m = get_arrives(&d, 0);
    answer(&d, 0, m, OK5, "hbE");
    assert_int_equal(d.n_at, 1);
    desk_close(&d);
}

static void bodies_that_follow(void **state)
{
    (void)state;
    struct desk d;
    struct http_field f = HTTPIO_FIELD(STR("X"), STR("y"));

    desk_open(&d);
    struct httpio_request r = post(&d, "");
    r.body_follows = true;
    r.body_length = -1;
    r.fields = &f;
    r.n_fields = 1;
    struct made *m = call_at(&d, &r);
    assert_false(httpio_call_send(m->k, STR("before it is connected"))); /* in order all the same */
    WAIT(&d.w, d.n_at == 1 && raw_has(&d.at[0], "connected\r\n"));
    assert_true(raw_has(&d.at[0], "\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n16\r\nbefore it is connected\r\n"));
    assert_false(httpio_call_send(m->k, STR("")));
    assert_false(httpio_call_send(m->k, STR("more")));
    WAIT(&d.w, raw_has(&d.at[0], "4\r\nmore\r\n"));
    httpio_call_end(m->k);
    httpio_call_end(m->k);
    assert_false(httpio_call_send(m->k, STR("too late")));
    WAIT(&d.w, raw_has_end(&d.at[0], "4\r\nmore\r\n0\r\n\r\n"));
    answer(&d, 0, m, OK5, "hbE");

    /* with a first part at hand, and a length */
    r.body = STR("first");
    r.body_length = 10;
    m = call_arrives(&d, &r, 0);
    assert_true(raw_has(&d.at[0], "\r\nContent-Length: 10\r\n\r\nfirst"));
    assert_false(httpio_call_send(m->k, STR("after")));
    httpio_call_end(m->k);
    WAIT(&d.w, raw_has(&d.at[0], "firstafter"));
    answer(&d, 0, m, OK5, "hbE");

    r.body_length = -1;
    m = call_arrives(&d, &r, 0);
    assert_true(raw_has(&d.at[0], "\r\n\r\n5\r\nfirst\r\n"));
    httpio_call_end(m->k);
    answer(&d, 0, m, OK5, "hbE");
    assert_int_equal(d.n_at, 1);

    /* a body that is not what its length says fails, and never looks complete */
    static const char *const bad[] = {"shor", "too long"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        size_t n = d.n_at;

        r.body_length = 10;
        r.fresh = true;
        m = call_arrives(&d, &r, n);
        (void)httpio_call_send(m->k, str_of(bad[i]));
        httpio_call_end(m->k);
        WAIT(&d.w, !m->k);
        assert_failed(m, HTTPIO_RESET, "the request's body has not the length that was announced");
        WAIT(&d.w, d.at[n].ended);
    }
    desk_close(&d);
}

static void requests_that_cannot_be(void **state)
{
    (void)state;
    static const struct http_field bad[] = {
        {.name = {"X", 1}, .value = {"a\r\nb", 4}}, {.name = {"", 0}, .value = {"a", 1}},          {.name = {"Host", 4}, .value = {"a", 1}}, {.name = {"CONTENT-LENGTH", 14}, .value = {"1", 1}}, {.name = {"Transfer-Encoding", 17}, .value = {"chunked", 7}},
        {.name = {"Connection", 10}, .value = {"close", 5}},
    };
    struct desk d;
    struct err err = {0};
    struct httpio_call *k = NULL;

    desk_open(&d);
    struct httpio_request r = get(&d, "/");
    r.n_fields = 1;
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        r.fields = &bad[i];
        assert_int_equal(httpio_call(d.client, &r, &call_ops, NULL, &k, &err), -EINVAL);
        assert_int_equal(err.code, -EINVAL);
    }
    r = get(&d, "/a b");
    assert_int_equal(httpio_call(d.client, &r, &call_ops, NULL, &k, &err), -EINVAL);
    r = get(&d, "/");
    r.method = STR("GET\r\n");
    assert_int_equal(httpio_call(d.client, &r, &call_ops, NULL, &k, &err), -EINVAL);
    r = get(&d, "/");
    r.host = STR("h\r\nX: y");
    assert_int_equal(httpio_call(d.client, &r, &call_ops, NULL, &k, &err), -EINVAL);
    r = post(&d, "longer");
    r.body_follows = true;
    r.body_length = 3;
    assert_int_equal(httpio_call(d.client, &r, &call_ops, NULL, &k, &err), -EINVAL);
    r = get(&d, "/");
    (void)snprintf(r.addr.host, sizeof(r.addr.host), "nonsense");
    assert_int_equal(httpio_call(d.client, &r, &call_ops, NULL, &k, &err), -EINVAL);
    assert_null(k);
    assert_null(httpio_call_cancel(NULL));
    assert_null(httpio_client_free(NULL));
    assert_null(LIST_FIRST(&d.client->peers));
    desk_close(&d);
}

/* ---- keeping connections --------------------------------------------------------------------------------- */

static void not_kept(void **state)
{
    (void)state;
    static const char *const responses[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=0\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=0\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellox", /* a byte too many */
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    };

    for (size_t i = 0; i < BASE_COUNT(responses); i++) {
        struct desk d;

        desk_open(&d);
        struct made *m = get_arrives(&d, 0);
        answer(&d, 0, m, responses[i], "hbE");
        assert_string_equal(m->body.ptr, "hello");
        WAIT(&d.w, d.at[0].ended);
        m = get_arrives(&d, 1);
        answer(&d, 1, m, OK5, "hbE");
        assert_string_equal(m->body.ptr, "hello");
        desk_close(&d);
    }
}

static void kept_while_allowed(void **state)
{
    (void)state;
    struct desk d;

    /* two requests in all */
    desk_open(&d);
    struct made *m = get_arrives(&d, 0);
    answer(&d, 0, m, "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=2\r\nContent-Length: 5\r\n\r\nhello", "hbE");
    m = get_arrives(&d, 0);
    answer(&d, 0, m, "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=2\r\nContent-Length: 5\r\n\r\nhello", "hbE");
    WAIT(&d.w, d.at[0].ended);
    desk_close(&d);

    /* our own limit of time, and the peer's when it is shorter */
    static const struct {
        uint64_t ours;
        const char *field;
        uint64_t limit;
    } cases[] = {{50, "", 50}, {50, "Keep-Alive: timeout=5\r\n", 50}, {4000, "Keep-Alive: max=7 , timeout=1\r\n", 800}, {4000, "Keep-Alive: nonsense, timeout=x, =, timeout\r\n", 4000}};
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct httpio_client_options o = HTTPIO_CLIENT_DEFAULT;
        char response[200];

        o.idle_ms = cases[i].ours;
        desk_open_options(&d, &o);
        m = get_arrives(&d, 0);
        (void)snprintf(response, sizeof(response), "HTTP/1.1 200 OK\r\n%sContent-Length: 5\r\n\r\nhello", cases[i].field);
        answer(&d, 0, m, response, "hbE");
        struct httpio_link *l = LIST_FIRST(&d.client->links);
        assert_int_equal(l->state, LINK_IDLE);
        assert_int_equal(l->idle_ms, cases[i].limit);
        if (cases[i].limit == 50) {
            WAIT(&d.w, d.at[0].ended);
            assert_null(LIST_FIRST(&d.client->links));
            assert_null(LIST_FIRST(&d.client->peers));
        }
        desk_close(&d);
    }
}

static void pool_is_bounded(void **state)
{
    (void)state;
    struct httpio_client_options o = HTTPIO_CLIENT_DEFAULT;
    struct desk d;
    struct made *m[4];

    o.idle_max = 2;
    desk_open_options(&d, &o);
    for (size_t i = 0; i < 4; i++)
        m[i] = get_arrives(&d, i);
    for (size_t i = 0; i < 4; i++)
        answer(&d, i, m[i], OK5, "hbE");
    WAIT(&d.w, d.at[2].ended && d.at[3].ended);
    assert_false(d.at[0].ended);
    assert_false(d.at[1].ended);
    m[0] = get_arrives(&d, 1); /* the latest first */

    /* forgotten: the idle one at once, the busy one after its call */
    struct net_addr other = loopback(1);
    httpio_client_forget(d.client, &other);
    httpio_client_forget(d.client, &d.addr);
    WAIT(&d.w, d.at[0].ended);
    assert_false(d.at[1].ended);
    answer(&d, 1, m[0], OK5, "hbE");
    WAIT(&d.w, d.at[1].ended);
    m[1] = get_arrives(&d, 4);
    answer(&d, 4, m[1], OK5, "hbE");
    m[2] = get_arrives(&d, 4);
    answer(&d, 4, m[2], OK5, "hbE");
    httpio_client_forget(d.client, &d.addr);
    WAIT(&d.w, d.at[4].ended);
    assert_null(LIST_FIRST(&d.client->peers));
    desk_close(&d);
}

/* An end or a byte that the kernel has and the loop has not seen yet: the connection is not used, also a moment after its last answer. A whole answer that nobody asked for is nobody's. */
static void stale_unseen(void **state)
{
    (void)state;
    for (int what = 0; what < 4; what++) {
        struct desk d;

        desk_open(&d);
        struct made *m = get_arrives(&d, 0);
        answer(&d, 0, m, OK5, "hbE");
        if (what == 0)
            raw_send(&d.at[0], "HTTP/1.1 408 Request Timeout\r\n\r\n");
        else if (what == 1)
            raw_send(&d.at[0], "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged");
        else if (what == 2)
            net_stream_shutdown(d.at[0].s);
        else
            d.at[0].s = net_stream_close(d.at[0].s, true);
        /* loopback: it has arrived, and the loop has not turned */
        m = get_arrives(&d, 1);
        assert_int_equal(raw_count(&d.at[0], "GET /"), 1);
        answer(&d, 1, m, OK5, "hbE");
        assert_int_equal(d.n_at, 2);
        desk_close(&d);
    }
}

/* An idle connection that the peer ends is closed at once. */
static void idle_ends(void **state)
{
    (void)state;
    for (int what = 0; what < 2; what++) {
        struct desk d;

        desk_open(&d);
        struct made *m = get_arrives(&d, 0);
        answer(&d, 0, m, OK5, "hbE");
        assert_non_null(LIST_FIRST(&d.client->links));
        if (what == 0)
            net_stream_shutdown(d.at[0].s);
        else
            raw_send(&d.at[0], "x");
        WAIT(&d.w, d.at[0].ended);
        assert_null(LIST_FIRST(&d.client->links));
        desk_close(&d);
    }
}

/* ---- a second try ---------------------------------------------------------------------------------------- */

static void tried_again(void **state)
{
    (void)state;
    struct desk d;
    char first[256];

    for (int reset = 0; reset < 2; reset++) {
        desk_open(&d);
        struct made *m = get_arrives(&d, 0);
        answer(&d, 0, m, OK5, "hbE");
        struct httpio_request r = post(&d, "the body");
        m = call_arrives(&d, &r, 0);
        WAIT(&d.w, raw_has(&d.at[0], "the body"));
        (void)snprintf(first, sizeof(first), "%s", raw_got(&d.at[0]));
        d.at[0].s = net_stream_close(d.at[0].s, reset);
        WAIT(&d.w, d.n_at == 2 && raw_has(&d.at[1], "the body"));
        assert_string_equal(raw_got(&d.at[1]), first);
        answer(&d, 1, m, OK5, "hbE");
        desk_close(&d);
    }
}

static void tried_again_once(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    struct made *m = get_arrives(&d, 0);
    answer(&d, 0, m, OK5, "hbE");
    m = get_arrives(&d, 0);
    d.at[0].s = net_stream_close(d.at[0].s, false);
    WAIT(&d.w, d.n_at == 2 && raw_has(&d.at[1], "\r\n\r\n"));
    d.at[1].s = net_stream_close(d.at[1].s, false);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_RESET, "connection closed before a response");
    assert_string_equal(m->log, "F");
    assert_int_equal(d.n_at, 2);

    /* the second try finds nobody */
    m = get_arrives(&d, 2);
    answer(&d, 2, m, OK5, "hbE");
    m = get_arrives(&d, 2);
    d.listener = net_listener_close(d.listener);
    d.at[2].s = net_stream_close(d.at[2].s, false);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_RESET, "connection closed before a response; when tried again: connection refused");
    desk_close(&d);
}

static void not_tried_again(void **state)
{
    (void)state;
    struct desk d;

    /* on a fresh connection */
    desk_open(&d);
    struct made *m = get_arrives(&d, 0);
    d.at[0].s = net_stream_close(d.at[0].s, true);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_RESET, "connection reset before a response");
    assert_int_equal(d.n_at, 1);

    /* fresh by wish, although one is idle */
    m = get_arrives(&d, 1);
    answer(&d, 1, m, OK5, "hbE");
    struct httpio_request r = get(&d, "/");
    r.fresh = true;
    m = call_arrives(&d, &r, 2);
    d.at[2].s = net_stream_close(d.at[2].s, false);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_RESET, "connection closed before a response");

    /* after a byte of a response */
    m = get_arrives(&d, 1);
    raw_send(&d.at[1], "H");
    world_nap(&d.w, 10);
    d.at[1].s = net_stream_close(d.at[1].s, false);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_CUT, "connection closed in the middle of a response");
    assert_int_equal(d.n_at, 3);

    /* after a part of the body that is not at hand any more */
    m = get_arrives(&d, 3);
    answer(&d, 3, m, OK5, "hbE");
    r = post(&d, "");
    r.body_follows = true;
    r.body_length = -1;
    m = call_arrives(&d, &r, 3);
    (void)httpio_call_send(m->k, STR("lost"));
    WAIT(&d.w, raw_has(&d.at[3], "lost"));
    d.at[3].s = net_stream_close(d.at[3].s, false);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_RESET, "connection closed before a response");
    assert_int_equal(d.n_at, 4);

    /* but before it was sent, yes; it then follows on the new connection */
    m = get_arrives(&d, 4);
    answer(&d, 4, m, OK5, "hbE");
    r.body = STR("first");
    m = call_arrives(&d, &r, 4);
    d.at[4].s = net_stream_close(d.at[4].s, false);
    WAIT(&d.w, d.n_at == 6 && raw_has(&d.at[5], "5\r\nfirst\r\n"));
    (void)httpio_call_send(m->k, STR("next"));
    httpio_call_end(m->k);
    WAIT(&d.w, raw_has_end(&d.at[5], "\r\n\r\n5\r\nfirst\r\n4\r\nnext\r\n0\r\n\r\n"));
    answer(&d, 5, m, OK5, "hbE");

    /* nor is the end of the body forgotten, when it came before the second try */
    m = call_arrives(&d, &r, 5);
    httpio_call_end(m->k);
    WAIT(&d.w, raw_has_end(&d.at[5], "5\r\nfirst\r\n0\r\n\r\n"));
    d.at[5].s = net_stream_close(d.at[5].s, false);
    WAIT(&d.w, d.n_at == 7 && raw_has_end(&d.at[6], "\r\n\r\n5\r\nfirst\r\n0\r\n\r\n"));
    answer(&d, 6, m, OK5, "hbE");
    desk_close(&d);
}

/* ---- failures -------------------------------------------------------------------------------------------- */

static void nobody_there(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    d.listener = net_listener_close(d.listener);
    struct made *m = call_get(&d, "/");
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_CONNECT, "connection refused");
    assert_string_equal(m->log, "F");
    desk_close(&d);
}

/* What keeps a connection from being made has words of its own: who speaks no TLS, and shows a certificate that is another's or over. */
static void not_who_it_should_be(void **state)
{
    (void)state;
    struct tls_pair right = tls_pair_new("a", NULL), other = tls_pair_new("a", NULL), over = tls_pair_dated("a", NULL, -7200, -3600);
    const struct {
        const struct tls_pair *has, *trusted;
        const char *text;
    } cases[] = {
        {NULL, &right, "it does not speak TLS as it should"},
        {&other, &right, "its certificate is not the one that it should have"},
        {&over, &over, "its certificate is not valid at this time"},
    };

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct desk d;
        struct net_tls *server = NULL, *client;

        desk_open(&d);
        if (cases[i].has) {
            assert_int_equal(net_tls_new(str_of(cases[i].has->certificate), str_of(cases[i].has->key), &server, NULL), 0);
            net_listener_set_tls(d.listener, server);
            (void)net_tls_unref(server);
        }
        assert_int_equal(net_tls_trust(str_of(cases[i].trusted->certificate), &client, NULL), 0);
        struct httpio_request r = get(&d, "/");
        r.tls = client;
        struct made *m = call_at(&d, &r);
        if (!cases[i].has) {
            WAIT(&d.w, d.n_at == 1);
            raw_send(&d.at[0], "HTTP/1.1 400 Bad Request\r\n\r\n");
        }
        WAIT(&d.w, !m->k);
        assert_failed(m, HTTPIO_CONNECT, cases[i].text);
        (void)net_tls_unref(client);
        desk_close(&d);
    }
    tls_pair_release(&right);
    tls_pair_release(&other);
    tls_pair_release(&over);
}

static void no_such_socket(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    assert_int_equal(net_addr_unix("/nowhere/berth.sock", &d.addr), 0);
    struct made *m = call_get(&d, "/");
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_CONNECT, "there is no such socket");
    desk_close(&d);
}

/* A listener whose queue is full leaves the connection open half. */
static void connecting_takes_too_long(void **state)
{
    (void)state;
    struct httpio_client_options o = HTTPIO_CLIENT_DEFAULT;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fill[3];
    struct desk d;

    assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    assert_int_equal(listen(fd, 0), 0);
    o.connect_ms = 60;
    desk_open_options(&d, &o);
    assert_int_equal(net_socket_addr(fd, &d.addr), 0);
    in.sin_port = htons(d.addr.port);
    for (size_t i = 0; i < 3; i++) {
        fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fill[i], (struct sockaddr *)&in, sizeof(in));
    }
    struct made *m = call_get(&d, "/");
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_CONNECT, "no connection in time");
    for (size_t i = 0; i < 3; i++)
        (void)close(fill[i]);
    (void)close(fd);
    desk_close(&d);
}

static void no_answer_in_time(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    struct httpio_request r = get(&d, "/");
    r.timeout_ms = 60;
    struct made *m = call_arrives(&d, &r, 0);
    raw_send(&d.at[0], "HTTP/1.1 200 OK\r\n"); /* half a head is none */
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_TIMEOUT, "no answer in time");
    WAIT(&d.w, d.at[0].ended);

    /* after the head that limit is over */
    m = call_arrives(&d, &r, 1);
    raw_send(&d.at[1], "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    world_nap(&d.w, 150);
    answer(&d, 1, m, "hello", "hbE");

    /* the body's own limit: between bytes */
    r.stall_ms = 300;
    m = call_arrives(&d, &r, 1);
    raw_send(&d.at[1], "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        world_nap(&d.w, 70);
        raw_send(&d.at[1], "x");
    }
    world_nap(&d.w, 20);
    assert_non_null(m->k);
    assert_int_equal(m->body.len, 5);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_TIMEOUT, "the response stopped arriving");
    assert_string_equal(m->log, "hbF");

    /* while the owner does not read, the time does not run */
    m = call_arrives(&d, &r, 2);
    raw_send(&d.at[2], "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n");
    WAIT(&d.w, m->status == 200);
    httpio_call_read(m->k, false);
    world_nap(&d.w, 400);
    assert_string_equal(m->log, "h");
    httpio_call_read(m->k, true);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_TIMEOUT, "the response stopped arriving");
    desk_close(&d);
}

static void broken_responses(void **state)
{
    (void)state;
    static const struct {
        const char *response;
        enum httpio_failure failure;
        const char *log;
    } cases[] = {
        {"", HTTPIO_RESET, "F"},
        {"HTTP/1.1 200 OK\r\nContent-Le", HTTPIO_CUT, "F"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", HTTPIO_CUT, "hbF"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", HTTPIO_CUT, "hbF"},
        {"HTTP/1.1 100 Continue\r\n\r\n", HTTPIO_CUT, "F"},
        {"hello\r\n\r\n", HTTPIO_MALFORMED, "F"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", HTTPIO_MALFORMED, "F"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", HTTPIO_MALFORMED, "hF"},
        {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", HTTPIO_MALFORMED, "F"},
    };

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct desk d;

        desk_open(&d);
        struct made *m = get_arrives(&d, 0);
        raw_send(&d.at[0], cases[i].response);
        net_stream_shutdown(d.at[0].s);
        WAIT(&d.w, !m->k);
        assert_failed(m, cases[i].failure, NULL);
        assert_string_equal(m->log, cases[i].log);
        WAIT(&d.w, d.at[0].ended);
        assert_null(LIST_FIRST(&d.client->links));
        desk_close(&d);
    }
}

static void until_close(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    struct made *m = get_arrives(&d, 0);
    raw_send(&d.at[0], "HTTP/1.1 200 OK\r\nServer: s\r\n\r\nhel");
    WAIT(&d.w, m->body.len == 3);
    raw_send(&d.at[0], "lo");
    net_stream_shutdown(d.at[0].s);
    WAIT(&d.w, !m->k);
    assert_string_equal(m->log, "hbE");
    assert_string_equal(m->body.ptr, "hello");
    assert_string_equal(m->server, "s");
    assert_null(LIST_FIRST(&d.client->links));

    /* a reset is no end, also when it comes together with the data */
    m = get_arrives(&d, 1);
    raw_send(&d.at[1], "HTTP/1.1 200 OK\r\n\r\nhel");
    d.at[1].s = net_stream_close(d.at[1].s, true);
    WAIT(&d.w, !m->k);
    assert_failed(m, HTTPIO_CUT, "connection reset in the middle of a response");
    assert_string_equal(m->log, "hbF");
    desk_close(&d);
}

static void answered_early(void **state)
{
    (void)state;
    struct desk d;
    struct made *m;

    /* complete before the body was: the call is over, its connection is not used again */
    desk_open(&d);
    struct httpio_request r = post(&d, "");
    r.body_follows = true;
    r.body_length = -1;
    m = call_arrives(&d, &r, 0);
    (void)httpio_call_send(m->k, STR("part"));
    answer(&d, 0, m, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig", "hbE");
    assert_int_equal(m->status, 413);
    WAIT(&d.w, d.at[0].ended);
    assert_null(LIST_FIRST(&d.client->links));

    /* the peer answers and closes while much is still to be sent */
    r = post(&d, "");
    r.body = (struct str){big, BIG};
    m = call_arrives(&d, &r, 1);
    assert_true(net_stream_queued(m->k->to->stream) > 0);
    net_stream_read(d.at[1].s, false);
    raw_send(&d.at[1], "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig");
    d.at[1].s = net_stream_close(d.at[1].s, false); /* with bytes unread: a reset */
    WAIT(&d.w, !m->k);
    assert_string_equal(m->log, "hbE");
    assert_int_equal(m->status, 413);
    assert_string_equal(m->body.ptr, "big");
    desk_close(&d);
}

/* ---- back-pressure --------------------------------------------------------------------------------------- */

static void waits_both_ways(void **state)
{
    (void)state;
    struct desk d;
    size_t sent = 0;
    bool wait = false;

    desk_open(&d);
    struct httpio_request r = post(&d, "");
    r.body_follows = true;
    r.body_length = -1;
    struct made *m = call_arrives(&d, &r, 0);
    net_stream_read(d.at[0].s, false);
    while (!wait) {
        wait = httpio_call_send(m->k, (struct str){big, 100000});
        sent += 100000;
        assert_true(sent < 1u << 30);
    }
    world_nap(&d.w, 20);
    assert_string_equal(m->log, "");
    net_stream_read(d.at[0].s, true);
    WAIT(&d.w, m->log[0]);
    assert_string_equal(m->log, "w");
    httpio_call_end(m->k);

    httpio_call_read(m->k, false);
    char head[64];
    (void)snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BIG);
    raw_send(&d.at[0], head);
    raw_send_bytes(&d.at[0], (struct str){big, BIG});
    world_nap(&d.w, 30);
    assert_string_equal(m->log, "w");
    assert_true(net_stream_queued(d.at[0].s) > 0);
    httpio_call_read(m->k, true);
    WAIT(&d.w, m->body.len > 0);
    httpio_call_read(m->k, false);
    httpio_call_read(m->k, true);
    WAIT(&d.w, !m->k);
    assert_string_equal(m->log, "whbE");
    assert_int_equal(m->body.len, BIG);
    desk_close(&d);
}

/* ---- owners that end everything from within -------------------------------------------------------------- */

/* Calls in each state, then one event in which the owner frees the client or cancels all calls. */
static void ended_within(char free_at, char cancel_at)
{
    struct desk d;
    struct made *m;
    char at = free_at ? free_at : cancel_at;

    desk_open(&d);
    struct made *first = get_arrives(&d, 0), *second = get_arrives(&d, 1), *third;
    raw_send(&d.at[1], "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel");
    WAIT(&d.w, second->body.len == 3);
    m = get_arrives(&d, 2);
    answer(&d, 2, m, OK5, "hbE"); /* idle */
    struct httpio_request r = post(&d, "");
    r.body_follows = true;
    r.body_length = -1;
    r.fresh = true;
    m = call_arrives(&d, &r, 3);
    if (at == 'w') {
        net_stream_read(d.at[3].s, false);
        while (!httpio_call_send(m->k, (struct str){big, 100000}))
            continue;
    }
    r = get(&d, "/connecting");
    r.fresh = true;
    third = call_at(&d, &r);
    d.free_at = free_at;
    d.cancel_at = cancel_at;
    if (at == 'w')
        net_stream_read(d.at[3].s, true);
    else if (at == 'F')
        net_stream_shutdown(d.at[3].s);
    else
        raw_send(&d.at[3], OK5 "and more");
    WAIT(&d.w, !m->k && !first->k && !second->k && !third->k);
    assert_int_equal(m->log[strlen(m->log) - 1], at);
    if (free_at)
        assert_null(d.client);
    WAIT(&d.w, d.at[0].ended && d.at[1].ended && (d.at[3].ended || at == 'w'));
    assert_string_equal(first->log, "");
    assert_string_equal(second->log, "hb");
    assert_string_equal(third->log, "");
    if (free_at)
        WAIT(&d.w, d.at[2].ended);
    else
        assert_false(d.at[2].ended); /* what was idle stays */
    desk_close(&d);
}

static void freed_within(void **state)
{
    (void)state;
    for (const char *at = "hbwEF"; *at; at++)
        ended_within(*at, 0);
}

static void cancelled_within(void **state)
{
    (void)state;
    for (const char *at = "hbwEF"; *at; at++)
        ended_within(0, *at);
}

/* Many calls whose time is over at once, and the first to hear of it ends the others. */
static void ended_by_a_limit(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct desk d;

        desk_open(&d);
        struct httpio_request r = get(&d, "/");
        r.timeout_ms = 60;
        for (size_t i = 0; i < 4; i++)
            (void)call_arrives(&d, &r, i);
        if (how == 1)
            d.free_at = 'F';
        if (how == 2)
            d.cancel_at = 'F';
        WAIT(&d.w, !d.all[0].k && !d.all[1].k && !d.all[2].k && !d.all[3].k);
        size_t failed = 0;
        for (size_t i = 0; i < 4; i++)
            failed += d.all[i].log[0] == 'F';
        assert_int_equal(failed, how == 0 ? 4 : 1);
        desk_close(&d);
    }
}

/* A call made in the end of another uses its connection. */
static void again_within(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    struct made *m = get_arrives(&d, 0);
    buf_clear(&d.at[0].got);
    d.again_at = 'E';
    answer(&d, 0, m, OK5, "hbE");
    WAIT(&d.w, raw_has(&d.at[0], "GET /again"));
    answer(&d, 0, &d.all[1], OK5, "hbE");
    assert_int_equal(d.n_at, 1);

    /* in a failure it gets a new one */
    m = get_arrives(&d, 0);
    d.again_at = 'F';
    answer(&d, 0, m, "garbage\r\n\r\n", "F");
    WAIT(&d.w, d.n_at == 2 && raw_has(&d.at[1], "GET /again"));
    answer(&d, 1, &d.all[3], OK5, "hbE");
    desk_close(&d);
}

static void cancelled_from_outside(void **state)
{
    (void)state;
    struct desk d;

    desk_open(&d);
    struct made *m = get_arrives(&d, 0);
    m->k = httpio_call_cancel(m->k);
    WAIT(&d.w, d.at[0].ended); /* at once, so that the peer stops */
    assert_string_equal(m->log, "");
    m = call_get(&d, "/connecting");
    m->k = httpio_call_cancel(m->k);
    world_nap(&d.w, 10);
    assert_string_equal(m->log, "");
    assert_null(LIST_FIRST(&d.client->links));
    desk_close(&d);
}

/* ---- fetch ----------------------------------------------------------------------------------------------- */

struct fetched {
    struct desk *d;
    struct httpio_fetch *f;
    unsigned n, status;
    char body[64];
    struct err fail;
    bool free_client, cancel_self;
};

static void on_fetched(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct fetched *g = ctx;

    assert_false(g->d->calling);
    g->n++;
    g->status = status;
    (void)snprintf(g->body, sizeof(g->body), STR_FMT, STR_ARG(body));
    if (failed)
        g->fail = *failed;
    assert_true((status == 0) == (failed != NULL));
    if (g->cancel_self)
        (void)httpio_fetch_cancel(g->f);
    if (g->free_client)
        g->d->client = httpio_client_free(g->d->client);
    net_loop_stop(g->d->w.loop);
}

static void fetch(struct fetched *g, struct desk *d, const struct httpio_request *r, size_t max, uint64_t ms)
{
    *g = (struct fetched){.d = d};
    d->calling = true;
    g->f = httpio_fetch(d->client, r, max, ms, on_fetched, g);
    d->calling = false;
    assert_non_null(g->f);
}

static void fetch_arrives(struct fetched *g, struct desk *d, size_t at, size_t max, uint64_t ms)
{
    struct httpio_request r = get(d, "/");

    if (at < d->n_at)
        buf_clear(&d->at[at].got);
    fetch(g, d, &r, max, ms);
    WAIT(&d->w, d->n_at > at && raw_has(&d->at[at], "\r\n\r\n"));
}

static void fetched_whole(void **state)
{
    (void)state;
    struct desk d;
    struct fetched g;

    desk_open(&d);
    fetch_arrives(&g, &d, 0, 5, 1000);
    raw_send(&d.at[0], "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n");
    world_nap(&d.w, 10);
    assert_int_equal(g.n, 0);
    raw_send(&d.at[0], "2\r\nlo\r\n0\r\n\r\n");
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.status, 404);
    assert_string_equal(g.body, "hello");

    fetch_arrives(&g, &d, 0, 0, 0); /* nothing wanted, no limit */
    g.cancel_self = true;
    raw_send(&d.at[0], "HTTP/1.1 204 No Content\r\n\r\n");
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.status, 204);

    fetch_arrives(&g, &d, 0, 100, 1000);
    g.free_client = true;
    raw_send(&d.at[0], OK5);
    WAIT(&d.w, g.n == 1);
    assert_string_equal(g.body, "hello");
    world_nap(&d.w, 10);
    assert_int_equal(g.n, 1);
    desk_close(&d);
}

static void fetched_not(void **state)
{
    (void)state;
    struct desk d;
    struct fetched g, other;

    desk_open(&d);
    fetch_arrives(&g, &d, 0, 4, 1000);
    raw_send(&d.at[0], "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -EFBIG);
    assert_string_equal(g.fail.text, "the response is larger than 4 bytes");
    WAIT(&d.w, d.at[0].ended);

    fetch_arrives(&g, &d, 1, 4, 1000);
    raw_send(&d.at[1], "HTTP/1.1 200 OK\r\n\r\nhello");
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -EFBIG);
    assert_string_equal(g.fail.text, "the response is larger than 4 bytes");

    fetch_arrives(&g, &d, 2, 100, 60);
    raw_send(&d.at[2], "HTTP/1.1 200 OK\r\n\r\nhel");
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -ETIMEDOUT);
    assert_string_equal(g.fail.text, "no whole response within 60 ms");
    WAIT(&d.w, d.at[2].ended);

    fetch_arrives(&g, &d, 3, 100, 1000);
    net_stream_shutdown(d.at[3].s);
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -ECONNRESET);
    assert_non_null(strstr(g.fail.text, httpio_failure_text(HTTPIO_RESET)));

    /* one that cannot be started is told of later, like any other */
    struct httpio_request r = get(&d, "/ ");
    fetch(&g, &d, &r, 100, 1000);
    assert_int_equal(g.n, 0);
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -EINVAL);
    assert_non_null(strstr(g.fail.text, "cannot make a request"));
    fetch(&g, &d, &r, 100, 1000);
    g.f = httpio_fetch_cancel(g.f);
    assert_null(httpio_fetch_cancel(NULL));

    /* cancelled: nothing comes */
    fetch_arrives(&g, &d, 4, 100, 1000);
    g.f = httpio_fetch_cancel(g.f);
    WAIT(&d.w, d.at[4].ended);
    assert_int_equal(g.n, 0);

    /* the call's own limit is a time that has passed as well */
    r = get(&d, "/");
    r.timeout_ms = 30;
    fetch(&g, &d, &r, 100, 5000);
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -ETIMEDOUT);
    WAIT(&d.w, d.n_at > 5 && d.at[5].ended);

    /* freed with others under way */
    fetch_arrives(&other, &d, 6, 100, 1000);
    fetch_arrives(&g, &d, 7, 100, 1000);
    g.free_client = true;
    raw_send(&d.at[7], "garbage\r\n");
    WAIT(&d.w, g.n == 1);
    assert_int_equal(g.fail.code, -EBADMSG);
    assert_non_null(strstr(g.fail.text, httpio_failure_text(HTTPIO_MALFORMED)));
    assert_null(strstr(strstr(g.fail.text, "malformed response") + 1, "malformed response"));
    WAIT(&d.w, d.at[6].ended);
    assert_int_equal(other.n, 0);
    desk_close(&d);
}

/* ---- with the real server -------------------------------------------------------------------------------- */

struct both {
    struct world w;
    struct httpio_server *server;
    struct httpio_client *client;
    struct net_addr addr;
    size_t started, ended, failed, served;
};

static void start_one(struct both *b);

static void both_end(void *ctx)
{
    struct both *b = ctx;

    b->ended++;
    if (b->started < 5000)
        start_one(b);
    else if (b->ended == b->started)
        net_loop_stop(b->w.loop);
}

static void both_fail(void *ctx, enum httpio_failure f, const char *text)
{
    struct both *b = ctx;

    (void)f;
    (void)text;
    b->failed++;
    net_loop_stop(b->w.loop);
}

static void start_one(struct both *b)
{
    static const struct httpio_call_ops ops = {.on_end = both_end, .on_fail = both_fail};
    struct httpio_request r = {.addr = b->addr, .method = STR("POST"), .target = STR("/"), .body = {big, 3000}};
    struct httpio_call *k;

    b->started++;
    assert_int_equal(httpio_call(b->client, &r, &ops, b, &k, NULL), 0);
}

static void serve_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    (void)ctx;
    (void)x;
    assert_int_equal(head->content_length, 3000);
}

static void serve_body_end(void *ctx, struct httpio_exchange *x)
{
    struct both *b = ctx;

    if (b->served++ % 50 == 49)
        httpio_abort(x); /* looks to the client like a connection that was closed just then: the call is tried again */
    else
        httpio_respond(x, 200, NULL, (struct str){big, 2000});
}

static void serve_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    (void)ctx;
    (void)x;
    (void)completed;
}

static void thousands_of_calls(void **state)
{
    (void)state;
    static const struct httpio_server_ops ops = {.on_request = serve_request, .on_body_end = serve_body_end, .on_done = serve_done};
    struct both b = {0};
    struct net_addr a = loopback(0);
    int fd = net_listen_socket(&a, false, NULL);

    world_open(&b.w);
    assert_int_equal(net_socket_addr(fd, &b.addr), 0);
    b.server = httpio_server_new(b.w.loop, &HTTPIO_LIMITS_DEFAULT, &ops, &b);
    b.client = httpio_client_new(b.w.loop, &HTTPIO_CLIENT_DEFAULT);
    assert_int_equal(httpio_server_add(b.server, fd, NULL), 0);
    /* the first of each connection must not be aborted: it would rightly fail */
    for (int i = 0; i < 16; i++)
        start_one(&b);
    WAIT(&b.w, b.ended == 5000 || b.failed > 0);
    /* a second try may meet another abort on its fresh connection; only that fails */
    assert_true(b.failed == 0);
    assert_int_equal(b.ended, 5000);
    assert_true(b.served > 5000);
    b.client = httpio_client_free(b.client);
    b.server = httpio_server_free(b.server);
    b.w.loop = net_loop_free(b.w.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_and_response),
        cmocka_unit_test(bodies_that_follow),
        cmocka_unit_test(requests_that_cannot_be),
        cmocka_unit_test(not_kept),
        cmocka_unit_test(kept_while_allowed),
        cmocka_unit_test(pool_is_bounded),
        cmocka_unit_test(stale_unseen),
        cmocka_unit_test(idle_ends),
        cmocka_unit_test(tried_again),
        cmocka_unit_test(tried_again_once),
        cmocka_unit_test(not_tried_again),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(not_who_it_should_be),
        cmocka_unit_test(no_such_socket),
        cmocka_unit_test(connecting_takes_too_long),
        cmocka_unit_test(no_answer_in_time),
        cmocka_unit_test(broken_responses),
        cmocka_unit_test(until_close),
        cmocka_unit_test(answered_early),
        cmocka_unit_test(waits_both_ways),
        cmocka_unit_test(freed_within),
        cmocka_unit_test(cancelled_within),
        cmocka_unit_test(ended_by_a_limit),
        cmocka_unit_test(again_within),
        cmocka_unit_test(cancelled_from_outside),
        cmocka_unit_test(fetched_whole),
        cmocka_unit_test(fetched_not),
        cmocka_unit_test(thousands_of_calls),
    };
    return cmocka_run_group_tests_name("httpio_client", tests, NULL, NULL);
}
