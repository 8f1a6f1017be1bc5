/* SPDX-License-Identifier: MIT
 *
 * proxy: finding the endpoint, taking turns, and passing requests and answers through untouched. What happens when replicas or clients
 * fail is in test_proxy_faults.c.
 */
#include "proxy_rig.h"

#define CHAT "/v1/chat/completions"

/* ---- finding the endpoint ------------------------------------------------------------------------------------ */

static void test_model_named(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    struct client c;
    static const char *const cases[][2] = {
        {"{\"model\":\"m\"}", "{\"model\":\"served-0\"}"},
        {"{\"model\":\"alias\",\"x\":1}", "{\"model\":\"served-0\",\"x\":1}"},
        {" {\n \"a\" : {\"model\":\"no\"} , \"model\" :  \"m\" , \"b\":[1, 2.50] }\n", " {\n \"a\" : {\"model\":\"no\"} , \"model\" :  \"served-0\" , \"b\":[1, 2.50] }\n"},
        {"{\"model\":\"gpt \\\"4\\\"\"}", "{\"model\":\"served-0\"}"},
        {"{\"model\":\"\\u006d\"}", "{\"model\":\"served-0\"}"},
        /* one endpoint: who names none means it, and nothing is changed */
        {"{\"prompt\":\"x\"}", "{\"prompt\":\"x\"}"},
        {"{\"model\":null}", "{\"model\":null}"},
        {"no json at all", "no json at all"},
        {"[\"model\"]", "[\"model\"]"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        ask(&c, "POST", CHAT, cases[i][0]);
        assert_int_equal(c.status, 200);
        assert_string_equal(c.body.ptr, cases[i][1]);
        assert_true(has_line(&c.fields, "X-Berth-Replica: r0"));
        assert_true(has_line(&c.fields, "X-Berth-Attempts: 1"));
        client_release(&c);
    }
    assert_int_equal(rig.replicas[0].requests, BASE_COUNT(cases));
}

static void test_model_unknown(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    struct client c;
    ask(&c, "POST", CHAT, "{\"model\":\"gpt\\n5\"}");
    assert_int_equal(c.status, 404);
    assert_true(has_line(&c.fields, "Content-Type: application/json; charset=utf-8"));
    assert_string_equal(c.body.ptr, "{\"error\":{\"message\":\"model 'gpt\\\\x0a5' is not served here; known models: 'm', 'alias', 'gpt \\\"4\\\"'\","
                                    "\"type\":\"not_found_error\",\"code\":404}}");
    client_release(&c);
    ask(&c, "POST", CHAT, "{\"model\":\"\"}");
    assert_int_equal(c.status, 404);
    client_release(&c);
    ask(&c, "POST", CHAT, "{\"model\":7}");
    assert_int_equal(c.status, 400);
    assert_true(contains(&c.body, "must be a string"));
    client_release(&c);
    /* a name of which a buffer might hold the beginning only */
    base_autobuf struct buf body = BUF_INIT(1 << 20);
    for (int escaped = 0; escaped < 2; escaped++) {
        buf_clear(&body);
        buf_add_c(&body, "{\"model\":\"m");
        for (int i = 0; i < 8000; i++)
            buf_add_c(&body, escaped ? "\\u006d" : "m");
        buf_add_c(&body, "\"}");
        ask(&c, "POST", CHAT, body.ptr);
        assert_int_equal(c.status, 404);
        client_release(&c);
    }
    buf_clear(&body);
    buf_add_c(&body, "/props?model=m");
    for (int i = 0; i < 8000; i++)
        buf_add_char(&body, 'm');
    ask(&c, "GET", body.ptr, NULL);
    assert_int_equal(c.status, 404);
    client_release(&c);
    assert_int_equal(rig.replicas[0].requests, 0);
}

/* Two endpoints: a model must be named, in the body or in the query. */
static void test_model_required(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(4096);
    struct proxy_config *config;
    struct client c;
    replica_open(&rig.replicas[0], ECHO);
    buf_addf(&b, "{\"config\":{\"replicas\":[{\"name\":\"r0\",\"served\":\"s\",\"host\":\"127.0.0.1\",\"port\":%u,\"ready\":true,\"generation\":1,\"slots\":0,\"context\":0,\"pins\":false}],"
                 "\"endpoints\":[{\"name\":\"a\",\"policy\":\"adaptive\",\"aliases\":[],\"replicas\":[0]},{\"name\":\"b b\",\"policy\":\"adaptive\",\"aliases\":[],\"replicas\":[0]}],\"headers\":[]}}",
             rig.replicas[0].port);
    assert_int_equal(proxy_config_parse(buf_str(&b), &config, NULL), 0);
    proxy_set_config(rig.proxy, config);

    ask(&c, "POST", CHAT, "{}");
    assert_int_equal(c.status, 400);
    assert_string_equal(c.body.ptr, "{\"error\":{\"message\":\"no model is named; set \\\"model\\\" in the JSON body or model= in the query to one of: 'a', 'b b'\","
                                    "\"type\":\"invalid_request_error\",\"code\":400}}");
    client_release(&c);
    static const char *const not_once[] = {"{\"model\":\"a\",\"model\":\"b b\"}", "{\"model\":\"a\",\"n\":1,\"model\":\"a\"}", "{\"model\":7}"};
    for (size_t i = 0; i < BASE_COUNT(not_once); i++) {
        ask(&c, "POST", CHAT, not_once[i]);
        assert_int_equal(c.status, 400);
        assert_string_equal(c.body.ptr, "{\"error\":{\"message\":\"\\\"model\\\" must be a string that names a model, and stand there once\",\"type\":\"invalid_request_error\",\"code\":400}}");
        client_release(&c);
    }
    ask(&c, "GET", "/props", NULL);
    assert_int_equal(c.status, 400);
    client_release(&c);
    static const char *const targets[] = {"/props?model=a", "/props?x=y&model=b+b&model=no", "/props?model=%62%20b"};
    for (size_t i = 0; i < BASE_COUNT(targets); i++) {
        char line[64];
        ask(&c, "GET", targets[i], NULL);
        assert_int_equal(c.status, 200);
        snprintf(line, sizeof line, "GET %s", targets[i]);
        assert_string_equal(rig.replicas[0].line.ptr, line);
        client_release(&c);
    }
    static const char *const unknown[] = {"/props?model=c", "/props?model=", "/props?model=%6", "/props?model=a%00"};
    for (size_t i = 0; i < BASE_COUNT(unknown); i++) {
        ask(&c, "GET", unknown[i], NULL);
        assert_int_equal(c.status, 404);
        client_release(&c);
    }
    static const char *const unnamed[] = {"/props?models=a", "/props?model", "/props?amodel=a", "/props?"};
    for (size_t i = 0; i < BASE_COUNT(unnamed); i++) {
        ask(&c, "GET", unnamed[i], NULL);
        assert_int_equal(c.status, 400);
        client_release(&c);
    }
}

static void test_own_paths(void **state)
{
    (void)state;
    struct client c;
    ask(&c, "GET", "/health", NULL);
    assert_int_equal(c.status, 503); /* no configuration yet */
    assert_true(has_line(&c.fields, "Retry-After: 2"));
    client_release(&c);
    ask(&c, "GET", "/v1/models", NULL);
    assert_int_equal(c.status, 200);
    assert_string_equal(c.body.ptr, "{\"object\":\"list\",\"data\":[]}");
    client_release(&c);
    ask(&c, "POST", CHAT, "{\"model\":\"m\"}");
    assert_int_equal(c.status, 503);
    client_release(&c);

    rig_replicas(2, ECHO);
    ask(&c, "GET", "/health?x=1", NULL);
    assert_int_equal(c.status, 200);
    assert_string_equal(c.body.ptr, "{\"status\":\"ok\"}");
    client_release(&c);
    static const char *const lists[] = {"/v1/models", "/models", "/v1/models?limit=1"};
    for (size_t i = 0; i < BASE_COUNT(lists); i++) {
        ask(&c, "GET", lists[i], NULL);
        assert_string_equal(c.body.ptr, "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"created\":0,\"owned_by\":\"berth\"},"
                                        "{\"id\":\"alias\",\"object\":\"model\",\"created\":0,\"owned_by\":\"berth\"},"
                                        "{\"id\":\"gpt \\\"4\\\"\",\"object\":\"model\",\"created\":0,\"owned_by\":\"berth\"}]}");
        client_release(&c);
    }
    ask(&c, "HEAD", "/health", NULL);
    assert_int_equal(c.status, 200);
    assert_int_equal(c.len, 0);
    client_release(&c);
    rig_config((uint16_t[]){rig.replicas[0].port, rig.replicas[1].port}, 2, 3, 1);
    ask(&c, "GET", "/health", NULL);
    assert_int_equal(c.status, 503);
    client_release(&c);
    rig_config((uint16_t[]){rig.replicas[0].port, rig.replicas[1].port}, 2, 1, 1);
    ask(&c, "GET", "/health", NULL);
    assert_int_equal(c.status, 200);
    client_release(&c);
    assert_int_equal(rig.replicas[0].requests + rig.replicas[1].requests, 0);
    /* anything but GET and HEAD is no path of ours */
    ask(&c, "POST", "/health", "{}");
    assert_string_equal(rig.replicas[1].line.ptr, "POST /health");
    client_release(&c);
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

static void ask_n(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct client c;
        ask(&c, "POST", CHAT, "{\"model\":\"m\"}");
        assert_int_equal(c.status, 200);
        client_release(&c);
    }
}

static void test_turns(void **state)
{
    (void)state;
    rig_replicas(3, ECHO);
    uint16_t ports[] = {rig.replicas[0].port, rig.replicas[1].port, rig.replicas[2].port};
    ask_n(9);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig.replicas[i].requests, 3);
    /* one is skipped: the others share its turns evenly */
    rig_config(ports, 3, 1 << 1, 1);
    ask_n(8);
    assert_int_equal(rig.replicas[0].requests, 7);
    assert_int_equal(rig.replicas[1].requests, 3);
    assert_int_equal(rig.replicas[2].requests, 7);
    /* a configuration before each request does not send them all to the first */
    for (int i = 0; i < 6; i++) {
        rig_config(ports, 3, 1 << 1, (uint64_t)i + 2);
        ask_n(1);
    }
    assert_int_equal(rig.replicas[0].requests, 10);
    assert_int_equal(rig.replicas[2].requests, 10);
}

static void test_connections_reused(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    ask_n(20);
    assert_int_equal(rig.replicas[0].requests, 20);
    assert_int_equal(httpio_server_open(rig.replicas[0].server), 1);
}

/* A new process at the same address: what was kept of the old one is not used. */
static void test_new_generation(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    uint16_t port = rig.replicas[0].port;
    ask_n(1);
    assert_int_equal(httpio_server_open(rig.replicas[0].server), 1);
    rig_config(&port, 1, 0, 2);
    WAIT_POLL(httpio_server_open(rig.replicas[0].server) == 0);
    ask_n(1);
}

/* ---- passing through ---------------------------------------------------------------------------------------------- */

static void test_target_untouched(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    static const char *const targets[] = {
        "/v1/files/a%2Fb%20c/../d//e?x=%2f&y=a+b&z=%zz&empty=&=", "/upstream/%C3%A4?q=http://h/p?x", "/;a=b,c@d!$&'()*", "/a\"b|c^d`{e}\\?<>",
    };
    for (size_t i = 0; i < BASE_COUNT(targets); i++) {
        struct client c;
        char line[128];
        ask(&c, "GET", targets[i], NULL);
        assert_int_equal(c.status, 200);
        snprintf(line, sizeof line, "GET %s", targets[i]);
        assert_string_equal(rig.replicas[0].line.ptr, line);
        client_release(&c);
    }
    /* the URL of a request is sent in origin form */
    struct client c;
    raw_start(&c, "GET http://h:1/a%2fb?c HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\n\r\n");
    WAIT(c.done);
    assert_string_equal(rig.replicas[0].line.ptr, "GET /a%2fb?c");
    client_release(&c);
    raw_start(&c, "GET http://h:1?c HTTP/1.1\r\nHost: h:1\r\nConnection: close\r\n\r\n");
    WAIT(c.done);
    assert_string_equal(rig.replicas[0].line.ptr, "GET /?c");
    client_release(&c);
}

static void test_request_fields(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    struct client c;
    raw_start(&c, "POST " CHAT " HTTP/1.1\r\nHost: client.example\r\nAuthorization: Bearer k\r\nX-Two: 1\r\nX-Two: 2\r\nX-Odd:   \xc3\xa4 \t\"\r\n"
                  "Connection: close, X-Once\r\nX-Once: 1\r\nKeep-Alive: 5\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic x\r\n"
                  "TE: trailers\r\nTrailer: X-Sum\r\nUpgrade: websocket\r\nAccept-Encoding: gzip\r\nExpect: 100-continue\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"mod\r\n9\r\nel\":\"m\"}\n\r\n0\r\nX-Sum: 1\r\n\r\n");
    WAIT(c.done);
    assert_true(contains(&c.body, "HTTP/1.1 200 OK\r\n"));
    assert_false(c.reset);
    const struct buf *f = &rig.replicas[0].fields;
    char host[64];
    snprintf(host, sizeof host, "Host: 127.0.0.1:%u", rig.replicas[0].port);
    static const char *const kept[] = {"X-Two: 1", "X-Two: 2", "X-Odd: \xc3\xa4 \t\"", "Accept-Encoding: gzip", "Content-Length: 21"};
    for (size_t i = 0; i < BASE_COUNT(kept); i++)
        assert_true(has_line(f, kept[i]));
    assert_true(has_line(f, host));
    static const char *const gone[] = {"client.example", "Authorization", "X-Once", "Keep-Alive", "Proxy-", "TE:", "Trailer", "Upgrade", "Expect", "X-Sum", "Transfer-Encoding", "close"};
    for (size_t i = 0; i < BASE_COUNT(gone); i++)
        assert_false(contains(f, gone[i]));
    assert_string_equal(rig.replicas[0].body.ptr, "{\"model\":\"served-0\"}\n");
    client_release(&c);
}

static void test_response_fields(void **state)
{
    (void)state;
    rig_replicas(1, HEADERS);
    struct client c;
    ask(&c, "POST", CHAT, "{\"model\":\"m\"}");
    static const char *const kept[] = {"Set-Cookie: a=1", "Set-Cookie: b=2", "X-Odd: \xc3\xa4 \t\"x\"", "Date: Thu, 01 Jan 1970 00:00:00 GMT", "Content-Length: 5",
                                       "X-Berth-Replica: r0", "X-Berth-Attempts: 1"};
    for (size_t i = 0; i < BASE_COUNT(kept); i++)
        assert_true(has_line(&c.fields, kept[i]));
    static const char *const gone[] = {"forged", "Keep-Alive: timeout", "Upgrade", "X-Accel-Buffering"};
    for (size_t i = 0; i < BASE_COUNT(gone); i++)
        assert_false(contains(&c.fields, gone[i]));
    assert_string_equal(c.body.ptr, "hello");
    client_release(&c);
}

/* A replica's own error is an answer like any other. */
static void test_status_passed(void **state)
{
    (void)state;
    rig_replicas(2, BUSY);
    struct client c;
    ask(&c, "POST", CHAT, "{\"model\":\"m\"}");
    assert_int_equal(c.status, 503);
    assert_string_equal(c.body.ptr, "busy");
    assert_true(has_line(&c.fields, "Retry-After: 7"));
    assert_true(has_line(&c.fields, "X-Request-Id: q"));
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 2")); /* the other one was asked too */
    client_release(&c);
    struct proxy_stats s;
    proxy_stats(rig.proxy, &s);
    assert_int_equal(s.requests, 1);
    assert_int_equal(s.errors, 0);
    assert_int_equal(s.retries, 1);
}

static void test_head_and_empty(void **state)
{
    (void)state;
    rig_replicas(1, HEADERS);
    struct client c;
    ask(&c, "HEAD", "/anything", NULL);
    assert_int_equal(c.status, 200);
    assert_false(c.failed);
    assert_int_equal(c.len, 0);
    assert_true(has_line(&c.fields, "Content-Length: 5"));
    assert_string_equal(rig.replicas[0].line.ptr, "HEAD /anything");
    client_release(&c);
    rig.replicas[0].mode = EMPTY;
    ask(&c, "DELETE", "/slots/1", NULL);
    assert_int_equal(c.status, 204);
    assert_false(contains(&c.fields, "Content-Length"));
    assert_false(contains(&c.fields, "Transfer-Encoding"));
    client_release(&c);
    /* the connection is still good */
    rig.replicas[0].mode = HEADERS;
    ask(&c, "GET", "/x", NULL);
    assert_string_equal(c.body.ptr, "hello");
    client_release(&c);
    assert_int_equal(httpio_server_open(rig.replicas[0].server), 1);
}

static void test_old_client(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    struct client c;
    raw_start(&c, "POST " CHAT " HTTP/1.0\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}");
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], "data: 1\n\ndata: [DONE]\n\n");
    WAIT(contains(&c.body, "data: 1\n\n"));
    replica_end(&rig.replicas[0]);
    WAIT(c.done);
    assert_false(c.reset);
    assert_false(contains(&c.body, "Transfer-Encoding"));
    assert_true(str_ends(buf_str(&c.body), STR("\r\n\r\ndata: 1\n\ndata: [DONE]\n\n")));
    client_release(&c);
}

static void test_connect_refused(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    struct client c;
    raw_start(&c, "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n");
    WAIT(c.done);
    assert_true(contains(&c.body, "HTTP/1.1 405 "));
    client_release(&c);
    assert_int_equal(rig.replicas[0].requests, 0);
}

/* ---- streams and large bodies ---------------------------------------------------------------------------------------- */

/* The next event is sent only when the one before has arrived: whoever buffers is stuck. The time each takes is measured too. */
static void test_events_unbuffered(void **state)
{
    (void)state;
    enum { EVENTS = 200 };
    rig_replicas(1, STREAM);
    uint64_t us[EVENTS], worst = 0, sum = 0;
    struct client c;
    client_start(&c, "POST", CHAT, STR("{\"model\":\"m\",\"stream\":true}"));
    WAIT(rig.replicas[0].x);
    size_t len = 0;
    for (unsigned i = 0; i < EVENTS; i++) {
        char event[64];
        snprintf(event, sizeof event, "data: {\"token\":%u}\n\n", i);
        uint64_t since = rig_us();
        replica_event(&rig.replicas[0], event);
        len += strlen(event);
        WAIT(c.len == len);
        us[i] = rig_us() - since;
        worst = us[i] > worst ? us[i] : worst;
        sum += us[i];
    }
    assert_int_equal(c.events, EVENTS);
    assert_true(has_line(&c.fields, "X-Accel-Buffering: no"));
    assert_true(has_line(&c.fields, "Content-Type: text/event-stream"));
    replica_event(&rig.replicas[0], "data: [DONE]\n\n");
    replica_end(&rig.replicas[0]);
    WAIT(c.done);
    assert_false(c.failed);
    print_message("an event takes %llu us, at worst %llu us\n", (unsigned long long)(sum / EVENTS), (unsigned long long)worst);
    /* a buffer that waits for more, or for an acknowledgement (40 ms), would show in the mean */
    assert_true(sum / EVENTS < 20000);
    client_release(&c);
}

static void test_large_answer(void **state)
{
    (void)state;
    rig_replicas(1, FLOOD);
    struct replica *r = &rig.replicas[0];
    r->flood = 48 * 1024 * 1024;
    struct client c;
    client_start(&c, "POST", CHAT, STR("{\"model\":\"m\"}"));
    WAIT(c.len > 0);
    /* a client that does not read stops the replica: what is on its way is bounded by buffers of sockets */
    httpio_call_read(c.call, false);
    size_t before;
    do {
        before = r->sent;
        rig_run(100);
    } while (r->sent != before);
    assert_true(r->sent < r->flood);
    size_t arrived = c.len;
    assert_true(r->sent - arrived < 40 * 1024 * 1024);
    httpio_call_read(c.call, true);
    WAIT(c.done);
    assert_false(c.failed);
    assert_int_equal(c.len, r->flood);
    client_release(&c);
}

static void test_large_request(void **state)
{
    (void)state;
    rig_replicas(1, STOPPED);
    struct replica *r = &rig.replicas[0];
    base_autobuf struct buf body = BUF_INIT(32 << 20);
    buf_add_c(&body, "{\"image\":\"");
    for (size_t i = 0; i < 20u << 20; i++)
        buf_add_char(&body, (char)('a' + (i * i / 7) % 26));
    struct str start = buf_str(&body);
    uint64_t sum = rig_sum(0, start);
    size_t len = start.len;
    sum = rig_sum(sum, STR("\",\"model\":\"served-0\",\"x\":1}"));
    len += strlen("\",\"model\":\"served-0\",\"x\":1}");
    buf_add_c(&body, "\",\"model\":\"alias\",\"x\":1}");
    struct client c;
    client_start(&c, "POST", CHAT, buf_str(&body));
    WAIT(r->requests == 1);
    rig_run(50); /* the replica does not read */
    assert_true(r->body_len < len / 2);
    httpio_read(r->x, true);
    WAIT(c.done);
    assert_int_equal(c.status, 200);
    assert_int_equal(r->body_len, len);
    assert_true(r->body_sum == sum);
    assert_true(c.sum == sum);
    assert_int_equal(c.len, len);
    client_release(&c);
}

static void test_too_large(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    struct client c;
    raw_start(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 67108865\r\n\r\n{");
    WAIT(contains(&c.body, "}}"));
    assert_true(contains(&c.body, "HTTP/1.1 413 "));
    assert_true(contains(&c.body, "larger than 64 MiB"));
    client_release(&c);

    /* a length that nobody announced */
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    raw_start(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 66 && !c.done && !c.body.len; i++) {
        struct str chunk[] = {STR("100000\r\n"), {block, sizeof block}, STR("\r\n")};
        if (net_stream_write(c.raw, chunk, BASE_COUNT(chunk)) < 0)
            break;
        WAIT_POLL(net_stream_queued(c.raw) < sizeof block || c.done || c.body.len);
    }
    WAIT(contains(&c.body, "HTTP/1.1 413 ") || c.done);
    assert_true(contains(&c.body, "HTTP/1.1 413 "));
    client_release(&c);
    assert_int_equal(rig.replicas[0].requests, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_model_named),        RIG_TEST(test_model_unknown),    RIG_TEST(test_model_required), RIG_TEST(test_own_paths),
        RIG_TEST(test_turns),              RIG_TEST(test_connections_reused), RIG_TEST(test_new_generation), RIG_TEST(test_target_untouched),
        RIG_TEST(test_request_fields),     RIG_TEST(test_response_fields),  RIG_TEST(test_status_passed),  RIG_TEST(test_head_and_empty),
        RIG_TEST(test_old_client),         RIG_TEST(test_connect_refused),  RIG_TEST(test_events_unbuffered), RIG_TEST(test_large_answer),
        RIG_TEST(test_large_request),      RIG_TEST(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
