/* SPDX-License-Identifier: MIT
 *
 * proxy: replicas that refuse, die, break off or say nothing, clients that leave, and a router that is told to end or given another
 * configuration in the middle of it all.
 */
#include "proxy_rig.h"

#include <proxy/proxy_int.h>
#include <sys/resource.h>

#define CHAT "/v1/chat/completions"
#define BODY "{\"model\":\"m\"}"

/* ---- before any byte of a response: another replica gets the request ------------------------------------------ */

static void test_refused(void **state)
{
    (void)state;
    uint16_t ports[2];
    int fd = refusing(&ports[0]);
    replica_open(&rig.replicas[0], ECHO);
    ports[1] = rig.replicas[0].port;
    rig_config(ports, 2, 0, 1);
    struct client c;
    ask(&c, "POST", CHAT, BODY);
    assert_int_equal(c.status, 200);
    assert_string_equal(c.body.ptr, "{\"model\":\"served-1\"}"); /* the name is the second replica's own */
    assert_true(has_line(&c.fields, "X-Berth-Replica: r1"));
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 2"));
    client_release(&c);
    assert_int_equal(rig_stats().retries, 1);
    assert_int_equal(rig_stats().errors, 0);
    assert_true(rig_metric("berth_router_retries_total{replica=\"r0\",reason=\"connect\"} 1"));
    /* it just failed: for a while it is not asked again while another is there */
    for (int i = 0; i < 3; i++) {
        ask(&c, "POST", CHAT, BODY);
        assert_true(has_line(&c.fields, "X-Berth-Attempts: 1"));
        client_release(&c);
    }
    /* a new process at that place is not suspected for the old one's failure */
    rig_config(ports, 2, 0, 2);
    ask(&c, "POST", CHAT, BODY);
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 2"));
    client_release(&c);
    close(fd);
}

/* A router that has no descriptor left for a call does not hold it against its replicas. */
static void test_no_descriptor(void **state)
{
    (void)state;
    static const char ask_again[] = "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n" BODY;
    struct rlimit was, none;
    struct client c;
    rig_replicas(2, ECHO);
    raw_start(&c, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
    WAIT(contains(&c.body, "{\"status\":\"ok\"}"));
    buf_clear(&c.body);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    int next = dup(0);
    assert_true(next >= 0);
    close(next);
    none.rlim_cur = (rlim_t)next; /* the lowest that is free */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct str data = str_of(ask_again);
    assert_int_equal(net_stream_write(c.raw, &data, 1), 0);
    WAIT(contains(&c.body, "\"code\":503"));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_true(contains(&c.body, "Too many open files"));
    client_release(&c);
    assert_int_equal(rig_stats().retries, 0);
    assert_true(rig_metric("berth_router_replica_suspect{replica=\"r0\"} 0"));
    assert_true(rig_metric("berth_router_replica_suspect{replica=\"r1\"} 0"));
    assert_true(rig_metric("berth_router_replica_busy{replica=\"r0\"} 0"));
    ask(&c, "POST", CHAT, BODY);
    assert_int_equal(c.status, 200);
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 1"));
    client_release(&c);
}

static void test_reset_before_bytes(void **state)
{
    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        struct bare dead;
        bare_open(&dead, NULL, true, reset);
        replica_open(&rig.replicas[0], ECHO);
        rig_config((uint16_t[]){dead.port, rig.replicas[0].port}, 2, 0, (uint64_t)reset + 1);
        /* the bare replica's turn: it is the one that was used longest ago */
        struct client c;
        ask(&c, "POST", CHAT, BODY);
        assert_int_equal(c.status, 200);
        assert_true(has_line(&c.fields, "X-Berth-Attempts: 2"));
        assert_true(dead.requests == 1);
        client_release(&c);
        assert_int_equal(rig_stats().retries, (unsigned)reset + 1);
        bare_close(&dead);
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
        uint16_t none = 0;
        rig_config(&none, 0, 0, 1); /* forgets turns */
    }
    assert_true(rig_metric("berth_router_retries_total{replica=\"r0\",reason=\"reset\"} 2"));
}

/* A large body, which goes in slices, is kept until somebody has answered. */
static void test_large_body_sent_again(void **state)
{
    (void)state;
    struct bare dead;
    bare_open(&dead, NULL, true, true);
    replica_open(&rig.replicas[0], ECHO);
    rig_config((uint16_t[]){dead.port, rig.replicas[0].port}, 2, 0, 1);
    base_autobuf struct buf body = BUF_INIT(8 << 20);
    buf_add_c(&body, "{\"model\":\"m\",\"x\":\"");
    for (int i = 0; i < 3 << 20; i++)
        buf_add_char(&body, (char)('a' + i % 23));
    buf_add_c(&body, "\"}");
    uint64_t sum = rig_sum(rig_sum(0, STR("{\"model\":\"served-1\"")), (struct str){body.ptr + 12, body.len - 12});
    struct client c;
    client_start(&c, "POST", CHAT, buf_str(&body));
    WAIT(c.done);
    assert_int_equal(c.status, 200);
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 2"));
    assert_true(c.sum == sum);
    client_release(&c);
    bare_close(&dead);
}

/* All bodies together have a bound, which counts what is kept and not what came. */
static void test_bodies_are_bounded(void **state)
{
    (void)state;
    static char body[60000];
    int n = snprintf(body, sizeof body, "{\"model\":\"m\",\"x\":\"%050000d\"}", 0);
    rig_replicas(1, HOLD);
    rig.proxy->config->bodies.memory_bytes = 80000;
    for (int i = 0; i < 3; i++) {
        struct client kept, refused;
        client_start(&kept, "POST", CHAT, (struct str){body, (size_t)n});
        WAIT(rig.replicas[0].x);
        client_start(&refused, "POST", CHAT, (struct str){body, (size_t)n});
        WAIT(refused.done);
        assert_int_equal(refused.status, 503);
        assert_non_null(strstr(refused.body.ptr, "too many large requests are under way"));
        replica_answer(&rig.replicas[0], "x");
        WAIT(kept.done);
        assert_int_equal(kept.status, 200);
        client_release(&kept);
        client_release(&refused);
    }
    assert_int_equal(rig.proxy->bodies, 0);
}

/* Kept connections that died meanwhile cost nobody an answer. */
static void test_stale_connection(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    uint16_t port = rig.replicas[0].port;
    struct client c;
    for (int i = 0; i < 5; i++) {
        ask(&c, "POST", CHAT, BODY);
        assert_int_equal(c.status, 200);
        client_release(&c);
        /* the process is replaced behind the router's back */
        replica_close(&rig.replicas[0]);
        struct net_addr a;
        assert_int_equal(net_addr_ip("127.0.0.1", port, &a), 0);
        rig.replicas[0] = (struct replica){.mode = ECHO, .port = port, .line = BUF_INIT(1 << 20), .fields = BUF_INIT(1 << 20), .body = BUF_INIT(1 << 20)};
        rig.replicas[0].server = httpio_server_new(rig.loop, &HTTPIO_LIMITS_DEFAULT, &replica_ops, &rig.replicas[0]);
        int fd = net_listen_socket(&a, false, NULL);
        assert_true(fd >= 0);
        assert_int_equal(httpio_server_add(rig.replicas[0].server, fd, NULL), 0);
    }
    assert_int_equal(rig_stats().errors, 0);
}

static void test_all_refused(void **state)
{
    (void)state;
    uint16_t ports[3];
    int fds[3];
    for (int i = 0; i < 3; i++)
        fds[i] = refusing(&ports[i]);
    rig_config(ports, 3, 0, 1);
    for (int i = 0; i < 2; i++) { /* also when all of them are suspect */
        struct client c;
        ask(&c, "POST", CHAT, BODY);
        assert_int_equal(c.status, 502);
        assert_true(contains(&c.body, "no replica of 'm' could be reached; the last, 'r"));
        assert_true(contains(&c.body, "\"type\":\"upstream_error\",\"code\":502"));
        client_release(&c);
        assert_int_equal(rig_stats().retries, 2 * (i + 1));
        assert_int_equal(rig_stats().errors, i + 1);
    }
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void test_none_ready(void **state)
{
    (void)state;
    replica_open(&rig.replicas[0], ECHO);
    rig_config(&rig.replicas[0].port, 1, 1, 1);
    struct client c;
    ask(&c, "POST", CHAT, BODY);
    assert_int_equal(c.status, 503);
    assert_true(has_line(&c.fields, "Retry-After: 2"));
    assert_string_equal(c.body.ptr, "{\"error\":{\"message\":\"no replica of 'm' is ready\",\"type\":\"unavailable_error\",\"code\":503}}");
    client_release(&c);
    assert_int_equal(rig_stats().errors, 1);
    assert_true(rig_metric("berth_router_requests_total{endpoint=\"m\",replica=\"\",code=\"503\"} 1"));
    assert_true(rig_metric("berth_router_replica_ready{replica=\"r0\"} 0"));
}

/* A replica whose host has no address is passed over like one that is not ready. */
static void test_unknown_host(void **state)
{
    (void)state;
    replica_open(&rig.replicas[0], ECHO);
    base_autobuf struct buf b = BUF_INIT(4096);
    struct proxy_config *config;
    buf_addf(&b, "{\"config\":{\"replicas\":[{\"name\":\"r0\",\"served\":\"s0\",\"host\":\"not..valid\",\"port\":1,\"ready\":true,\"generation\":1,\"slots\":1,\"context\":0,\"pins\":false},"
                 "{\"name\":\"r1\",\"served\":\"s1\",\"host\":\"127.0.0.1\",\"port\":%u,\"ready\":true,\"generation\":1,\"slots\":1,\"context\":0,\"pins\":false}],"
                 "\"endpoints\":[{\"name\":\"m\",\"policy\":\"adaptive\",\"aliases\":[],\"replicas\":[0,1]}],\"headers\":[]}}",
             rig.replicas[0].port);
    assert_int_equal(proxy_config_parse(buf_str(&b), &config, NULL), 0);
    proxy_set_config(rig.proxy, config);
    struct client c;
    ask(&c, "POST", CHAT, BODY);
    assert_int_equal(c.status, 200);
    assert_true(has_line(&c.fields, "X-Berth-Replica: r1"));
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 1"));
    client_release(&c);
}

/* ---- answers that break off ------------------------------------------------------------------------------------------ */

/* A first replica whose answer is these bytes and an end; a second one that answers. */
static void broken_off(const char *target, const char *reply, bool reset, unsigned status, const char *body_part, bool moved)
{
    struct bare dead;
    bare_open(&dead, reply, true, reset);
    replica_open(&rig.replicas[0], ECHO);
    rig_config((uint16_t[]){dead.port, rig.replicas[0].port}, 2, 0, 1);
    struct client c;
    ask(&c, "POST", target, BODY);
    assert_int_equal(c.status, status);
    if (body_part)
        assert_true(contains(&c.body, body_part));
    assert_int_equal(c.failed, status == 200 && !moved);
    if (c.failed)
        assert_int_equal(c.failure, HTTPIO_CUT);
    client_release(&c);
    assert_int_equal(rig.replicas[0].requests, moved);
    assert_int_equal(rig_stats().retries, moved);
    assert_int_equal(rig_stats().errors, !moved);
    bare_close(&dead);
}

#define OK_HEAD "HTTP/1.1 200 OK\r\n"
#define EVENTS OK_HEAD "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

/* Of a generation the client has nothing before it is sure, so another replica can take it. */
static void test_ended_after_head(void **state)
{
    (void)state;
    broken_off(CHAT, OK_HEAD "Content-Length: 10\r\n\r\n", false, 200, "served-1", true);
    assert_true(rig_metric("berth_router_retries_total{replica=\"r0\",reason=\"cut\"} 1"));
    assert_true(rig_metric("berth_router_requests_total{endpoint=\"m\",replica=\"r1\",code=\"200\"} 1"));
}

static void test_ended_in_body(void **state)
{
    (void)state;
    broken_off(CHAT, OK_HEAD "Content-Length: 10\r\n\r\nhello", false, 200, "served-1", true);
}

static void test_stream_ended_before_content(void **state)
{
    (void)state;
    broken_off(CHAT, EVENTS "3\r\n:\n\n\r\n", true, 200, "served-1", true);
}

static void test_stream_ended_without_content(void **state)
{
    (void)state;
    broken_off(CHAT, EVENTS "3\r\n:\n\n\r\n0\r\n\r\n", false, 200, "served-1", true);
    assert_true(rig_metric("berth_router_retries_total{replica=\"r0\",reason=\"empty\"} 1"));
}

static void test_stream_that_says_an_error(void **state)
{
    (void)state;
    broken_off(CHAT, EVENTS "20\r\ndata: {\"error\":{\"code\":500}}   \n\n\r\n", false, 200, "served-1", true);
}

static void test_malformed_answer(void **state)
{
    (void)state;
    broken_off(CHAT, OK_HEAD "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", false, 200, "served-1", true);
}

static void test_server_error_before_another(void **state)
{
    (void)state;
    broken_off(CHAT, "HTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\nx", false, 200, "served-1", true);
}

/* After the first content never again. */
static void test_stream_ended_without_its_end(void **state)
{
    (void)state;
    broken_off(CHAT, EVENTS "9\r\ndata: 1\n\n\r\n", false, 200, "data: 1", false);
    assert_true(rig_metric("berth_router_cut_total{replica=\"r0\"} 1"));
}

/* What is no generation may have been carried out: it passes at once, and is not repeated once an answer has begun. */
static void test_other_calls_break_off(void **state)
{
    (void)state;
    broken_off("/slots/0", OK_HEAD "Content-Length: 10\r\n\r\nhello", false, 200, "hello", false);
}

static void test_other_calls_malformed(void **state)
{
    (void)state;
    broken_off("/slots/0", "HTTP/1.1 200 O", false, 502, "replica 'r0'", false);
}

/* What the client's socket sees of an answer that broke off: no last chunk, and no clean end. */
static void test_unclean_end(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    for (int old = 0; old < 2; old++) {
        struct client c;
        raw_start(&c, old ? "POST " CHAT " HTTP/1.0\r\nContent-Length: 13\r\n\r\n" BODY
                          : "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n" BODY);
        WAIT(rig.replicas[0].x);
        replica_event(&rig.replicas[0], "data: 1\n\n");
        WAIT(contains(&c.body, "data: 1\n\n"));
        httpio_abort(rig.replicas[0].x);
        WAIT(c.done);
        assert_int_equal(c.reset, old); /* 1.1: the last chunk is missing; 1.0 has only the end of the connection to tell */
        assert_false(contains(&c.body, "0\r\n\r\n"));
        assert_true(contains(&c.body, "data: {\"error\":{\"message\":\"replica 'r0' broke off"));
        client_release(&c);
    }
}

/* ---- slow ones, and clients that leave --------------------------------------------------------------------------------- */

static void test_slow_answer(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    struct client c;
    client_start(&c, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    rig_run(100);
    assert_int_equal(rig_stats().active, 1);
    assert_false(c.done);
    assert_true(rig_metric("berth_router_active 1"));
    replica_answer(&rig.replicas[0], "at last");
    WAIT(c.done);
    assert_string_equal(c.body.ptr, "at last");
    assert_int_equal(rig_stats().active, 0);
    client_release(&c);
}

static void test_client_leaves_waiting(void **state)
{
    (void)state;
    rig_replicas(2, HOLD);
    struct client c;
    client_start(&c, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    uint64_t since = rig_us();
    c.call = httpio_call_cancel(c.call);
    WAIT(rig.replicas[0].left == 1);
    uint64_t us = rig_us() - since;
    print_message("the replica knows after %llu us\n", (unsigned long long)us);
    assert_true(us < 20000);
    assert_int_equal(rig_stats().active, 0);
    assert_int_equal(rig_stats().errors, 0);
    assert_int_equal(rig.replicas[1].requests, 0); /* nobody else works for a client that is gone */
    assert_true(rig_metric("berth_router_cancelled_total{phase=\"prefill\"} 1"));
    assert_true(rig_metric("berth_router_requests_total{endpoint=\"m\",replica=\"r0\",code=\"499\"} 1"));
    client_release(&c);
}

static void test_client_leaves_stream(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    struct client c;
    client_start(&c, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], "data: 1\n\n");
    WAIT(c.len > 0);
    uint64_t since = rig_us();
    c.call = httpio_call_cancel(c.call);
    WAIT(rig.replicas[0].left == 1);
    assert_true(rig_us() - since < 20000);
    assert_int_equal(rig_stats().active, 0);
    assert_int_equal(rig_stats().errors, 0);
    client_release(&c);
}

static void test_client_leaves_in_request(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    struct client c;
    raw_start(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{\"model\":");
    WAIT_POLL(rig_stats().active == 1);
    c.raw = net_stream_close(c.raw, true);
    WAIT_POLL(rig_stats().active == 0);
    assert_int_equal(rig.replicas[0].requests, 0);
    client_release(&c);
}

/* A client that has shut down its sending side after the request still wants the answer, or has gone: what matters is that nothing hangs. */
static void test_replica_leaves_while_client_stalls(void **state)
{
    (void)state;
    rig_replicas(1, FLOOD);
    rig.replicas[0].flood = 48 << 20;
    struct client c;
    client_start(&c, "POST", CHAT, STR(BODY));
    WAIT(c.len > 0);
    httpio_call_read(c.call, false);
    rig_run(20);
    httpio_abort(rig.replicas[0].x);
    httpio_call_read(c.call, true);
    WAIT(c.done);
    assert_true(c.failed);
    assert_int_equal(rig_stats().active, 0);
    client_release(&c);
}

/* ---- configuration and end ------------------------------------------------------------------------------------------------ */

static void test_config_swapped_under_way(void **state)
{
    (void)state;
    rig_replicas(2, HOLD);
    uint16_t ports[] = {rig.replicas[0].port, rig.replicas[1].port};
    struct client a, b;
    client_start(&a, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    /* the replica leaves the configuration; its request ends all the same */
    rig_config(ports + 1, 1, 0, 9);
    client_start(&b, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[1].x);
    replica_answer(&rig.replicas[0], "old");
    replica_answer(&rig.replicas[1], "new");
    WAIT(a.done && b.done);
    assert_string_equal(a.body.ptr, "old");
    assert_string_equal(b.body.ptr, "new");
    client_release(&a);
    client_release(&b);
    /* a request that fails over knows the replicas that it began with */
    client_start(&a, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[1].x);
    rig_config(ports, 0, 0, 10);
    httpio_abort(rig.replicas[1].x); /* on a kept connection, so it is asked once more on a fresh one */
    WAIT(rig.replicas[1].x);
    httpio_abort(rig.replicas[1].x);
    WAIT(a.done);
    assert_int_equal(a.status, 502);
    client_release(&a);
}

static void set_true(void *ctx)
{
    *(bool *)ctx = true;
    rig_poke();
}

static void test_drain(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    struct client c, late;
    bool drained = false;
    client_start(&c, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    proxy_drain(rig.proxy, 60000, set_true, &drained);
    ask(&late, "GET", "/health", NULL);
    assert_true(late.failed);
    assert_int_equal(late.failure, HTTPIO_CONNECT);
    assert_false(drained);
    replica_answer(&rig.replicas[0], "done");
    WAIT(c.done && drained);
    assert_string_equal(c.body.ptr, "done");
    client_release(&c);
    client_release(&late);
}

static void test_drain_deadline(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    struct client c;
    bool drained = false;
    client_start(&c, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    proxy_drain(rig.proxy, 50, set_true, &drained);
    WAIT(drained && c.done && rig.replicas[0].left == 1);
    assert_true(c.failed);
    client_release(&c);
}

/* Freed in the middle of everything: nothing is left and nobody is called. */
static void test_freed_under_way(void **state)
{
    (void)state;
    rig_replicas(2, STREAM);
    rig.replicas[1].mode = HOLD;
    struct client a, b;
    client_start(&a, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], "data: 1\n\n");
    WAIT(a.status == 200);
    client_start(&b, "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[1].x);
    rig.proxy = proxy_free(rig.proxy);
    WAIT(a.done && b.done && rig.replicas[0].left == 1 && rig.replicas[1].left == 1);
    assert_true(a.failed && b.failed);
    client_release(&a);
    client_release(&b);
    assert_int_equal(proxy_new(rig.loop, 1, &rig.proxy, NULL), 0);
}

/* Two replicas under load, one of them dies with requests in it: every client gets its answer. */
static void test_death_under_load(void **state)
{
    (void)state;
    enum { CLIENTS = 16 };
    rig_replicas(2, HOLD);
    struct client c[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        client_start(&c[i], "POST", CHAT, STR(BODY));
    WAIT(rig.replicas[0].requests == CLIENTS / 2 && rig.replicas[1].requests == CLIENTS / 2);
    rig.replicas[1].mode = ECHO;
    rig.replicas[0].server = httpio_server_free(rig.replicas[0].server);
    WAIT(rig.replicas[1].finished == CLIENTS / 2);
    replica_close(&rig.replicas[0]);
    unsigned done = 0;
    for (int i = 0; i < CLIENTS; i++)
        done += c[i].done;
    assert_true(done <= CLIENTS / 2);
    WAIT_POLL(rig_stats().active == CLIENTS / 2);
    assert_int_equal(rig_stats().retries, CLIENTS / 2);
    assert_int_equal(rig_stats().errors, 0);
    for (int i = 0; i < CLIENTS; i++) {
        assert_true(!c[i].done || c[i].status == 200);
        client_release(&c[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(test_refused),
        RIG_TEST(test_no_descriptor),
        RIG_TEST(test_reset_before_bytes),
        RIG_TEST(test_large_body_sent_again),
        RIG_TEST(test_bodies_are_bounded),
        RIG_TEST(test_stale_connection),
        RIG_TEST(test_all_refused),
        RIG_TEST(test_none_ready),
        RIG_TEST(test_unknown_host),
        RIG_TEST(test_ended_after_head),
        RIG_TEST(test_ended_in_body),
        RIG_TEST(test_stream_ended_before_content),
        RIG_TEST(test_stream_ended_without_content),
        RIG_TEST(test_stream_that_says_an_error),
        RIG_TEST(test_malformed_answer),
        RIG_TEST(test_server_error_before_another),
        RIG_TEST(test_stream_ended_without_its_end),
        RIG_TEST(test_other_calls_break_off),
        RIG_TEST(test_other_calls_malformed),
        RIG_TEST(test_unclean_end),
        RIG_TEST(test_slow_answer),
        RIG_TEST(test_client_leaves_waiting),
        RIG_TEST(test_client_leaves_stream),
        RIG_TEST(test_client_leaves_in_request),
        RIG_TEST(test_replica_leaves_while_client_stalls),
        RIG_TEST(test_config_swapped_under_way),
        RIG_TEST(test_drain),
        RIG_TEST(test_drain_deadline),
        RIG_TEST(test_freed_under_way),
        RIG_TEST(test_death_under_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
