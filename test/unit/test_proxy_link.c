/* SPDX-License-Identifier: MIT
 *
 * proxy: the same turn asked twice, at two event loops. What each client gets is the same to the last byte, whoever of them leaves, and when. Each loop has a port of its own here; the replica and the clients live on the
 * first loop. Most of it is done both ways round. Meant to be run with the thread sanitizer too.
 */
#include "proxy_rig.h"

#include <os/os.h>
#include <proxy/proxy_int.h>
#include <semaphore.h>

static atomic_int memory_ends; /* which one of the link's next allocations finds no memory; 0: none */

static bool refuses(void)
{
    int n = memory_ends;
    while (n > 0 && !atomic_compare_exchange_weak(&memory_ends, &n, n - 1))
        ;
    return n == 1;
}

static void *link_malloc(size_t size)
{
    return refuses() ? NULL : malloc(size);
}

static void *link_calloc(size_t n, size_t size)
{
    return refuses() ? NULL : calloc(n, size);
}

#define malloc link_malloc
#define calloc link_calloc
#include <proxy/link.c>
#undef malloc
#undef calloc

#define CHAT "/v1/chat/completions"
#define SAME "{\"model\":\"m\",\"stream\":true,\"prompt_cache_key\":\"k\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"
#define WHOLE "{\"model\":\"m\",\"prompt_cache_key\":\"k\"}"
#define CONTENT "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
#define USAGE "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n"
#define DONE "data: [DONE]\n\n"

static struct client c[6];

static uint64_t active(void)
{
    struct proxy_stats s;
    proxy_stats(rig.proxy, &s);
    return s.active;
}

static bool metric(const char *line)
{
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(proxy_metrics(rig.proxy, &b), 0);
    return has_line(&b, line);
}

static uint64_t joins(const char *loop)
{
    return metrics_count(PROXY_M(rig.proxy, PROXY_M_JOINS, loop));
}

static void start(struct client *at, unsigned lane, const char *body)
{
    rig.addr = rig.door[lane];
    client_start(at, "POST", CHAT, str_of(body));
}

/* c[0] asks at that loop, and c[1] to c[n - 1] at the other one and at that one in turn; all but the first have joined when it returns. */
static void ask_same(size_t n, unsigned lane, const char *body)
{
    uint64_t before = joins("same") + joins("other");
    unsigned requests = rig.replicas[0].requests;
    for (size_t i = 0; i < n; i++) {
        start(&c[i], i % 2 ? 1 - lane : lane, body);
        WAIT(rig.replicas[0].x);
        WAIT_POLL(joins("same") + joins("other") == before + i);
    }
    assert_int_equal(rig.replicas[0].requests, requests + 1);
}

static void release(size_t n)
{
    for (size_t i = 0; i < n; i++)
        client_release(&c[i]);
    WAIT_POLL(active() == 0);
}

/* Nothing is left of requests, bodies, leases. */
static void assert_rest(void)
{
    WAIT_POLL(active() == 0 && rig.proxy->bodies == 0 && rig.proxy->spilled == 0);
    WAIT_POLL(metric("berth_router_replica_busy{replica=\"r0\"} 0") && metric("berth_router_waiting 0"));
    for (size_t i = 0; i < PROXY_RUNNING; i++)
        assert_null(rig.proxy->running[i]);
}

static void finish_stream(struct replica *r)
{
    replica_event(r, CONTENT DONE);
    replica_end(r);
}

static bool shown(unsigned number, const char *text)
{
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    char target[64];
    unsigned status = 0;
    snprintf(target, sizeof target, "/requests/%u", number);
    assert_int_equal(proxy_ask(rig.proxy, STR("GET"), str_of(target), &status, &b), 0);
    return contains(&b, text);
}

/* ---- what clients get ------------------------------------------------------------------------------------------- */

static void both_get_all(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    for (unsigned lane = 0; lane < 2; lane++) {
        ask_same(4, lane, SAME);
        assert_int_equal(joins("other"), 2 * lane + 2);
        assert_int_equal(joins("same"), lane + 1);
        WAIT_POLL(shown(4 * lane + 2, "\"decision\":\"joined\"") && shown(4 * lane + 3, "\"decision\":\"joined\""));
        replica_event(&rig.replicas[0], ": prompt is read\n\n" CONTENT);
        for (size_t i = 0; i < 4; i++)
            WAIT(c[i].len);
        replica_event(&rig.replicas[0], "data: {\"choices\":[{\"delta\":{\"content\":"); /* in parts */
        rig_run(20);
        replica_event(&rig.replicas[0], "\"b\"}}]}\n\n");
        finish_stream(&rig.replicas[0]);
        for (size_t i = 0; i < 4; i++) {
            WAIT(c[i].done);
            assert_int_equal(c[i].status, 200);
            assert_false(c[i].failed);
            assert_string_equal(c[i].body.ptr, ": prompt is read\n\n" CONTENT "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n" CONTENT DONE);
            assert_true(has_line(&c[i].fields, i ? "X-Berth-Decision: joined" : lane ? "X-Berth-Decision: affine" : "X-Berth-Decision: cold"));
            assert_true(has_line(&c[i].fields, "X-Berth-Replica: r0"));
            assert_true(has_line(&c[i].fields, "X-Berth-Attempts: 1"));
            assert_true(has_line(&c[i].fields, "X-Accel-Buffering: no"));
        }
        assert_true(shown(4 * lane + 2, "\"replica\":\"r0\",\"decision\":\"joined\""));
        release(4);
        assert_rest();
    }
    assert_int_equal(rig.replicas[0].finished, 2);
}

static void whole_answers_too(void **state)
{
    (void)state;
    base_autobuf struct buf large = BUF_INIT(1 << 20);
    rig_replicas(1, HOLD);
    while (large.len < (size_t)600 * 1024) /* more than is held */
        buf_addf(&large, "%zu ", large.len);
    for (unsigned lane = 0; lane < 4; lane++) {
        const char *text = lane / 2 ? large.ptr : "{\"all\":1}";
        ask_same(2, lane % 2, WHOLE);
        replica_answer(&rig.replicas[0], text);
        WAIT(c[0].done && c[1].done);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(c[i].status, 200);
            assert_string_equal(c[i].body.ptr, text);
            assert_true(has_line(&c[i].fields, "Content-Type: text/plain"));
            assert_true(c[i].fields.len && contains(&c[i].fields, "Content-Length: "));
        }
        release(2);
    }
    assert_rest();
}

static void each_has_its_framing(void **state)
{
    (void)state;
    base_autobuf struct buf old = BUF_INIT(1 << 12);
    buf_addf(&old, "POST " CHAT " HTTP/1.0\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(SAME), SAME);
    rig_replicas(1, STREAM);
    for (unsigned lane = 0; lane < 2; lane++) {
        start(&c[0], lane, SAME);
        WAIT(rig.replicas[0].requests == lane + 1);
        rig.addr = rig.door[1 - lane];
        raw_start(&c[1], old.ptr);
        WAIT_POLL(joins("other") == lane + 1);
        finish_stream(&rig.replicas[0]);
        WAIT(c[0].done && c[1].done);
        assert_string_equal(c[0].body.ptr, CONTENT DONE);
        assert_false(contains(&c[1].body, "chunked"));
        assert_false(c[1].reset);
        assert_true(str_ends(buf_str(&c[1].body), STR("\r\n\r\n" CONTENT DONE)));
        release(2);
    }
}

static void signs_of_life_come_from_its_own_loop(void **state)
{
    (void)state;
    rig.proxy->tick_ms = 10;
    rig.proxy->heartbeat_ms = 30;
    rig_replicas(1, STREAM);
    for (unsigned lane = 0; lane < 2; lane++) {
        ask_same(2, lane, SAME);
        WAIT(c[0].len >= 4 && c[1].len >= 4); /* the stream has begun without the replica */
        replica_event(&rig.replicas[0], CONTENT);
        WAIT(contains(&c[0].body, CONTENT) && contains(&c[1].body, CONTENT));
        size_t before = c[1].len;
        WAIT(c[1].len > before);
        client_release(&c[0]); /* and without its leader */
        before = c[1].len;
        WAIT(c[1].len > before + 4);
        finish_stream(&rig.replicas[0]);
        WAIT(c[1].done);
        assert_false(c[1].failed);
        assert_true(str_ends(buf_str(&c[1].body), STR(CONTENT DONE)));
        client_init(&c[0]);
        release(2);
    }
    /* an answer that is no stream has no place in one that has begun: its client is told */
    replica_close(&rig.replicas[0]);
    rig_replicas(1, HOLD);
    ask_same(2, 0, SAME);
    WAIT(c[0].len && c[1].len);
    replica_answer(&rig.replicas[0], "no stream");
    WAIT(c[0].done && c[1].done);
    for (size_t i = 0; i < 2; i++)
        assert_true(c[i].failed && contains(&c[i].body, "data: {\"error\":{\"message\":\"replica 'r0' answered 200"));
    release(2);
    assert_rest();
}

/* ---- who leaves, and when ---------------------------------------------------------------------------------------- */

static void whoever_stays_goes_on(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 16; round++) {
        unsigned lane = round & 1, gone = round >> 1 & 1, late = round >> 2 & 1, cancelled = round >> 3 & 1;
        struct client *left = &c[gone], *stays = &c[1 - gone];
        rig_replicas(1, STREAM);
        ask_same(2, lane, SAME);
        if (late) {
            replica_event(&rig.replicas[0], CONTENT);
            WAIT(c[0].len && c[1].len);
        }
        if (cancelled) {
            base_autobuf struct buf text = BUF_INIT(1 << 16);
            char target[64];
            unsigned status = 0;
            snprintf(target, sizeof target, "/requests/%u/cancel", 2 * round + 1 + gone);
            assert_int_equal(proxy_ask(rig.proxy, STR("POST"), str_of(target), &status, &text), 0);
            assert_int_equal(status, 200);
            WAIT(left->done);
            assert_true(late ? contains(&left->body, CONTENT "data: {\"error\":{\"message\":\"this request was cancelled by the operator\"") : left->status == 410);
        }
        client_release(left);
        WAIT_POLL(active() == 1);
        assert_int_equal(rig.replicas[0].left, 0);
        assert_non_null(rig.replicas[0].x);
        finish_stream(&rig.replicas[0]);
        WAIT(stays->done);
        assert_false(stays->failed);
        assert_string_equal(stays->body.ptr, late ? CONTENT CONTENT DONE : CONTENT DONE);
        client_release(stays);
        WAIT_POLL(rig.replicas[0].finished == 1);
        assert_rest();
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* In each order; the call ends with the last one. */
static void nobody_stays(void **state)
{
    (void)state;
    static const unsigned char orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 0, 1, 3}, {0, 2, 3, 1}, {1, 3, 0, 2}};
    rig_replicas(1, STREAM);
    for (unsigned round = 0; round < 4 * BASE_COUNT(orders); round++) {
        const unsigned char *order = orders[round / 4];
        ask_same(4, round % 2, SAME);
        if (round / 2 % 2) {
            replica_event(&rig.replicas[0], CONTENT);
            for (size_t i = 0; i < 4; i++)
                WAIT(c[i].len);
        }
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(rig.replicas[0].left, round);
            assert_non_null(rig.replicas[0].x);
            client_release(&c[order[i]]);
            WAIT_POLL(active() == 3 - i);
        }
        WAIT(rig.replicas[0].left == round + 1);
    }
    assert_rest();
    for (size_t i = 0; i < 4; i++)
        client_init(&c[i]);
}

/* The call of a client that has left is sent again, as the one that stays has it, and once more when the first one's replica died. */
static void goes_to_another_replica(void **state)
{
    (void)state;
    for (unsigned lane = 0; lane < 2; lane++) {
        rig_replicas(2, STREAM);
        base_autobuf struct buf request = BUF_INIT(1 << 12);
        buf_addf(&request, "POST " CHAT " HTTP/1.0\r\nHost: a\r\nX-Mine: first\r\nContent-Length: %zu\r\n\r\n%s", strlen(SAME), SAME);
        rig.addr = rig.door[lane];
        raw_start(&c[0], request.ptr);
        WAIT(rig.replicas[0].x || rig.replicas[1].x);
        buf_clear(&request);
        buf_addf(&request, "POST " CHAT " HTTP/1.0\r\nHost: a\r\nX-Mine: second\r\nContent-Length: %zu\r\n\r\n%s", strlen(SAME), SAME);
        struct replica *first = &rig.replicas[rig.replicas[1].x ? 1 : 0], *second = &rig.replicas[rig.replicas[1].x ? 0 : 1];
        rig.addr = rig.door[1 - lane];
        raw_start(&c[1], request.ptr);
        WAIT_POLL(joins("other") == lane + 1);
        assert_true(has_line(&first->fields, "X-Mine: first"));
        client_release(&c[0]);
        WAIT_POLL(active() == 1);
        httpio_abort(first->x);
        WAIT(second->x && second->body.len);
        assert_true(has_line(&second->fields, "X-Mine: second"));
        assert_true(contains(&second->body, "\"prompt_cache_key\":\"k\""));
        finish_stream(second);
        WAIT(c[1].done);
        assert_true(contains(&c[1].body, "\r\nX-Berth-Attempts: 2\r\n"));
        assert_true(str_ends(buf_str(&c[1].body), STR("\r\n\r\n" CONTENT DONE)));
        client_release(&c[1]);
        assert_rest();
        for (size_t i = 0; i < 2; i++) {
            replica_close(&rig.replicas[i]);
            rig.replicas[i].server = NULL;
        }
    }
}

static void failures_are_shared(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    for (unsigned round = 0; round < 8; round++) {
        unsigned lane = round & 1, late = round >> 1 & 1, alone = round >> 2 & 1;
        ask_same(2, lane, SAME);
        if (late) {
            replica_event(&rig.replicas[0], CONTENT);
            WAIT(c[0].len && c[1].len);
        }
        if (alone) {
            client_release(&c[0]);
            WAIT_POLL(active() == 1);
        }
        httpio_abort(rig.replicas[0].x);
        for (size_t i = alone; i < 2; i++) {
            WAIT(c[i].done);
            assert_true(late ? c[i].failed && contains(&c[i].body, "data: {\"error\":") : c[i].status == 502);
        }
        if (alone)
            client_init(&c[0]);
        release(2);
        assert_rest();
    }
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static struct buf lines;

static void keep_log(void *ctx, struct str text)
{
    (void)ctx;
    (void)pthread_mutex_lock(&log_lock);
    buf_add_str(&lines, text);
    (void)pthread_mutex_unlock(&log_lock);
}

static bool logged(const char *text)
{
    (void)pthread_mutex_lock(&log_lock);
    bool is = contains(&lines, text);
    (void)pthread_mutex_unlock(&log_lock);
    return is;
}

/* Each has a line; what the call cost is told by the one that stays, once. */
static void tokens_are_counted_once(void **state)
{
    (void)state;
    lines = (struct buf)BUF_INIT(1 << 16);
    rig.proxy->tick_ms = 10; /* which writes the lines */
    rig.proxy->on_log = keep_log;
    rig_replicas(1, STREAM);
    for (unsigned lane = 0; lane < 2; lane++) {
        char text[512];
        ask_same(3, lane, SAME); /* c[1] at the other loop, c[2] at that one */
        client_release(&c[2]);
        client_release(&c[0]);
        WAIT_POLL(active() == 1);
        replica_event(&rig.replicas[0], CONTENT USAGE);
        finish_stream(&rig.replicas[0]);
        WAIT(c[1].done);
        assert_string_equal(c[1].body.ptr, CONTENT USAGE CONTENT DONE);
        client_release(&c[1]);
        assert_rest();
        for (unsigned i = 0; i < 3; i++) {
            snprintf(text, sizeof text, "\"request\":%u,\"method\":\"POST\",\"path\":\"" CHAT "\",\"endpoint\":\"m\",\"replica\":%s,\"decision\":%s,\"attempts\":%u,\"status\":%u,\"cut\":false", 3 * lane + 1 + i,
                     i == 2 ? "null" : "\"r0\"", i == 2 ? "null" : i == 1 ? "\"joined\"" : lane ? "\"affine\"" : "\"cold\"", i < 2, i == 1 ? 200 : 499);
            WAIT_POLL(logged(text));
        }
    }
    WAIT_POLL(logged(",\"prompt_tokens\":7,"));
    assert_true(metric("berth_router_tokens_total{endpoint=\"m\",replica=\"r0\",kind=\"prompt\"} 14"));
    assert_true(metric("berth_router_tokens_total{endpoint=\"m\",replica=\"r0\",kind=\"generated\"} 4"));
    assert_true(metric("berth_router_requests_total{endpoint=\"m\",replica=\"r0\",code=\"200\"} 2"));
    assert_true(metric("berth_router_requests_total{endpoint=\"m\",replica=\"r0\",code=\"499\"} 2"));
    assert_true(metric("berth_router_cancelled_total{phase=\"prefill\"} 2"));
    assert_true(metric("berth_router_joins_total{loop=\"other\"} 2") && metric("berth_router_joins_total{loop=\"same\"} 2"));
    rig.proxy = proxy_free(rig.proxy);
    buf_release(&lines);
}

/* ---- what is not joined ------------------------------------------------------------------------------------------- */

static void others_do_not_join(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    start(&c[0], 0, SAME);
    WAIT(rig.replicas[0].requests == 1);
    for (unsigned i = 0; i < 2; i++) { /* credentials of others */
        base_autobuf struct buf b = BUF_INIT(1 << 12);
        buf_addf(&b, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %u\r\nContent-Length: %zu\r\n\r\n%s", i, strlen(SAME), SAME);
        rig.addr = rig.door[1];
        raw_start(&c[1 + i], b.ptr);
        WAIT(rig.replicas[0].requests == 2 + i);
    }
    start(&c[3], 1, "{\"model\":\"m\",\"stream\":true,\"prompt_cache_key\":\"k\",\"messages\":[{\"role\":\"user\",\"content\":\"two\"}]}");
    WAIT(rig.replicas[0].requests == 4);
    start(&c[4], 1, "{\"model\":\"m\",\"messages\":[]}");
    start(&c[5], 0, "{\"model\":\"m\",\"messages\":[]}");
    WAIT(rig.replicas[0].requests == 6);
    assert_int_equal(joins("other"), 0);
    release(6);
    assert_rest();
}

static void what_has_content_is_not_joined(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    start(&c[0], 1, SAME);
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], CONTENT);
    WAIT(c[0].len);
    start(&c[1], 0, SAME);
    WAIT(rig.replicas[0].requests == 2);
    release(2);
    assert_rest();
}

/* ---- a loop that does nothing ---------------------------------------------------------------------------------------- */

struct stop {
    unsigned lane;
    pthread_t thread;
    sem_t stopped, go_on;
    bool closes; /* then nobody may join what runs there any more */
};

static void be_stopped(struct proxy_lane *l, void *arg)
{
    struct stop *s = arg;
    (void)sem_post(&s->stopped);
    while (sem_wait(&s->go_on) < 0)
        ;
    for (size_t i = 0; i < PROXY_RUNNING && s->closes; i++)
        if (l->proxy->running[i])
            proxy_join_close(l->proxy->running[i]);
}

static void *order(void *arg)
{
    struct stop *s = arg;
    proxy_lane_do(&rig.proxy->lanes[s->lane], be_stopped, s);
    return NULL;
}

/* The second loop: the first one is the test's own. */
static void stop_lane(struct stop *s)
{
    s->lane = 1;
    assert_int_equal(sem_init(&s->stopped, 0, 0), 0);
    assert_int_equal(sem_init(&s->go_on, 0, 0), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, order, s), 0);
    while (sem_wait(&s->stopped) < 0)
        ;
}

static void let_lane_go(struct stop *s)
{
    (void)sem_post(&s->go_on);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    (void)sem_destroy(&s->stopped);
    (void)sem_destroy(&s->go_on);
}

/* When the answer's loop gets to it there is nothing to join: it is a call of its own. */
static void too_late_is_a_call_of_its_own(void **state)
{
    (void)state;
    struct stop s = {.closes = true};
    rig_replicas(1, STREAM);
    start(&c[0], 1, SAME);
    WAIT(rig.replicas[0].x);
    stop_lane(&s);
    start(&c[1], 0, SAME);
    WAIT_POLL(active() == 2);
    rig_run(30);
    assert_int_equal(rig.replicas[0].requests, 1);
    struct httpio_exchange *first = rig.replicas[0].x;
    let_lane_go(&s);
    WAIT(rig.replicas[0].requests == 2 && rig.replicas[0].x != first);
    finish_stream(&rig.replicas[0]);
    WAIT(c[1].done);
    assert_string_equal(c[1].body.ptr, CONTENT DONE);
    assert_true(contains(&c[1].fields, "X-Berth-Decision: ") && !has_line(&c[1].fields, "X-Berth-Decision: joined"));
    assert_int_equal(joins("other"), 0);
    release(2);
    assert_rest();
}

/* Of the one that asks and the one that is asked, either is gone before the other has looked; or both are. */
static void gone_before_it_was_looked_at(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 3; round++) {
        struct stop s = {.closes = false};
        bool asked_goes = round != 0, asker_goes = round != 1;
        rig_replicas(1, STREAM);
        start(&c[0], 1, SAME);
        WAIT(rig.replicas[0].x);
        stop_lane(&s);
        start(&c[1], 0, SAME);
        WAIT_POLL(active() == 2);
        rig_run(20);
        if (asked_goes)
            client_release(&c[0]);
        if (asker_goes) {
            client_release(&c[1]);
            WAIT_POLL(active() == 1);
        }
        let_lane_go(&s);
        WAIT_POLL(active() == 2u - asked_goes - asker_goes);
        if (asked_goes && asker_goes) {
            WAIT_POLL(!rig.replicas[0].x);
        } else {
            struct client *stays = &c[asked_goes];
            WAIT_POLL(rig.replicas[0].x);
            rig_run(20); /* it may be sent anew: either was first */
            WAIT_POLL(rig.replicas[0].x);
            finish_stream(&rig.replicas[0]);
            WAIT(stays->done);
            assert_string_equal(stays->body.ptr, CONTENT DONE);
            client_release(stays);
        }
        assert_rest();
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* Bytes for a loop that does nothing are bounded, and hold up nobody; its client is told when it goes on. */
static void a_loop_that_stands_is_left_behind(void **state)
{
    (void)state;
    enum { EVENTS = 100, SIZE = 32768 };
    struct stop s = {.closes = false};
    base_autobuf struct buf event = BUF_INIT(1 << 16);
    rig_replicas(1, STREAM);
    buf_add_c(&event, "data: {\"choices\":[{\"delta\":{\"content\":\"");
    while (event.len < SIZE - 8)
        buf_add_char(&event, 'x');
    buf_add_c(&event, "\"}}]}\n\n");
    ask_same(2, 0, SAME);
    replica_event(&rig.replicas[0], CONTENT);
    WAIT(c[0].len && c[1].len);
    stop_lane(&s);
    for (unsigned i = 1; i <= EVENTS; i++) {
        replica_event(&rig.replicas[0], event.ptr);
        WAIT(c[0].len >= i * event.len);
    }
    replica_event(&rig.replicas[0], DONE);
    replica_end(&rig.replicas[0]);
    WAIT(c[0].done);
    assert_false(c[0].failed);
    assert_int_equal(c[0].len, strlen(CONTENT) + EVENTS * event.len + strlen(DONE));
    let_lane_go(&s);
    buf_release(&c[1].body);
    c[1].body = (struct buf)BUF_INIT((size_t)4 << 20);
    WAIT(c[1].done);
    assert_true(c[1].failed);
    assert_true(c[1].len > PROXY_BEHIND_MAX && c[1].len < PROXY_BEHIND_MAX + 2 * SIZE);
    assert_true(contains(&c[1].body, "}\n\ndata: {\"error\":{\"message\":\"this client took its answer too slowly\""));
    release(2);
    assert_rest();
}

/* ---- a client that does not read ---------------------------------------------------------------------------------- */

static void the_slow_one_is_left_behind(void **state)
{
    (void)state;
    enum { EVENTS = 800, SIZE = 32768 };
    for (unsigned round = 0; round < 4; round++) {
        unsigned lane = round & 1, slow = round >> 1 & 1;
        base_autobuf struct buf request = BUF_INIT(1 << 12), event = BUF_INIT(1 << 16);
        struct client *quick = &c[1 - slow], *stuck = &c[slow];
        rig_replicas(1, STREAM);
        buf_addf(&request, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(SAME), SAME);
        buf_add_c(&event, "data: {\"choices\":[{\"delta\":{\"content\":\"");
        while (event.len < SIZE - 8)
            buf_add_char(&event, 'x');
        buf_add_c(&event, "\"}}]}\n\n");
        for (unsigned i = 0; i < 2; i++) {
            rig.addr = rig.door[i ? 1 - lane : lane];
            if (i == slow)
                raw_start(stuck, request.ptr);
            else
                client_start(quick, "POST", CHAT, STR(SAME));
            WAIT(rig.replicas[0].x);
            WAIT_POLL(joins("other") == round + i);
        }
        net_stream_read(stuck->raw, false);
        for (unsigned i = 1; i <= EVENTS; i++) {
            replica_event(&rig.replicas[0], event.ptr);
            WAIT(quick->len >= i * event.len);
        }
        replica_event(&rig.replicas[0], DONE);
        replica_end(&rig.replicas[0]);
        WAIT(quick->done);
        assert_false(quick->failed);
        assert_int_equal(quick->len, EVENTS * event.len + strlen(DONE));
        buf_release(&stuck->body);
        stuck->body = (struct buf)BUF_INIT((size_t)EVENTS * SIZE * 2);
        net_stream_read(stuck->raw, true);
        WAIT(stuck->done);
        assert_true(stuck->len < EVENTS * event.len);
        assert_true(contains(&stuck->body, "data: {\"error\":{\"message\":\"this client took its answer too slowly\""));
        release(2);
        assert_rest();
        assert_true(shown(2 * round + 1 + slow, "\"outcome\":\"slow\"") && shown(2 * round + 2 - slow, "\"outcome\":\"ok\""));
        assert_false(metric("berth_router_cut_total{replica=\"r0\"} 1"));
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* When nobody takes more the replica waits; and then all of it comes. */
static void nobody_reads_for_a_while(void **state)
{
    (void)state;
    enum { LEN = 24 << 20 };
    for (unsigned lane = 0; lane < 2; lane++) {
        base_autobuf struct buf request = BUF_INIT(1 << 12);
        rig_replicas(1, HOLD);
        rig.replicas[0].flood = LEN;
        buf_addf(&request, "POST " CHAT " HTTP/1.0\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(WHOLE), WHOLE);
        for (unsigned i = 0; i < 2; i++) {
            rig.addr = rig.door[i ? 1 - lane : lane];
            raw_start(&c[i], request.ptr);
            WAIT(rig.replicas[0].x);
            WAIT_POLL(joins("other") == lane + i);
        }
        client_release(&c[0]); /* the leader: the other is the only one, and is not left behind */
        WAIT_POLL(active() == 1);
        net_stream_read(c[1].raw, false);
        assert_int_equal(httpio_begin(rig.replicas[0].x, 200, NULL, 0, LEN), 0);
        replica_flood(&rig.replicas[0]);
        rig_run(300);
        assert_true(rig.replicas[0].sent < LEN); /* it is held up */
        buf_release(&c[1].body);
        c[1].body = (struct buf)BUF_INIT((size_t)2 * LEN);
        net_stream_read(c[1].raw, true);
        WAIT(c[1].done);
        assert_true(c[1].len > LEN && c[1].len < LEN + 1000);
        client_release(&c[1]);
        assert_rest();
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* ---- the router's own ends ------------------------------------------------------------------------------------------- */

/* With joined requests, in every phase. */
static void freed_in_the_middle(void **state)
{
    for (unsigned round = 0; round < 12; round++) {
        unsigned lane = round & 1, late = round >> 1 & 1, left = round >> 2;
        rig_replicas(1, STREAM);
        ask_same(4, lane, SAME);
        if (late) {
            replica_event(&rig.replicas[0], CONTENT);
            for (size_t i = 0; i < 4; i++)
                WAIT(c[i].len);
        }
        if (left) { /* the leader; or all at its loop */
            client_release(&c[0]);
            WAIT_POLL(active() == 3);
        }
        if (left == 2) {
            client_release(&c[2]);
            WAIT_POLL(active() == 2);
        }
        rig.proxy = proxy_free(rig.proxy);
        for (size_t i = 0; i < 4; i++) {
            if (left > i / 2 && i % 2 == 0)
                continue;
            WAIT(c[i].done);
            assert_true(c[i].failed);
            client_release(&c[i]);
        }
        rig_close(state);
        rig_open_lanes(state);
    }
}

static void drained(void *ctx)
{
    ++*(int *)ctx;
    rig_poke();
}

/* A drain waits for who has joined at one loop, whose call is at another one where nothing else is left. */
static void drain_waits_for_links(void **state)
{
    for (unsigned lane = 0; lane < 2; lane++) {
        int times = 0;
        rig_replicas(1, STREAM);
        ask_same(2, lane, SAME);
        client_release(&c[0]);
        WAIT_POLL(active() == 1);
        proxy_drain(rig.proxy, 60000, drained, &times);
        rig_run(30);
        assert_int_equal(times, 0);
        finish_stream(&rig.replicas[0]);
        WAIT(c[1].done && times);
        assert_string_equal(c[1].body.ptr, CONTENT DONE);
        assert_int_equal(times, 1);
        client_release(&c[1]);
        rig_close(state);
        rig_open_lanes(state);
    }
}

/* A body in a file is compared, and let go of by its own loop. */
static void large_bodies(void **state)
{
    (void)state;
    struct client *quick[2] = {&c[0], &c[1]};
    base_autobuf struct buf body = BUF_INIT((size_t)4 << 20);
    proxy_spill_to(rig.proxy, os_open_dir("/tmp", NULL));
    rig_replicas(1, STREAM);
    buf_add_c(&body, "{\"model\":\"m\",\"stream\":true,\"prompt_cache_key\":\"k\",\"messages\":[{\"role\":\"user\",\"content\":\"");
    while (body.len < (size_t)3 << 20)
        buf_addf(&body, "%zu ", body.len);
    buf_add_c(&body, "\"}]}");
    for (unsigned round = 0; round < 4; round++) {
        unsigned lane = round & 1, gone = round >> 1;
        ask_same(2, lane, body.ptr);
        assert_int_equal(joins("other"), round + 1);
        client_release(quick[gone]);
        WAIT_POLL(active() == 1);
        finish_stream(&rig.replicas[0]);
        WAIT(quick[1 - gone]->done);
        assert_string_equal(quick[1 - gone]->body.ptr, CONTENT DONE);
        client_release(quick[1 - gone]);
        assert_rest();
    }
}

/* Wherever memory ends the one at the other loop has a call of its own, or all of the answer, or is told; the first one has all of it. */
static void without_memory(void **state)
{
    (void)state;
    unsigned own = 0, told = 0, all = 0;
    base_autobuf struct buf request = BUF_INIT(1 << 12);
    buf_addf(&request, "POST " CHAT " HTTP/1.0\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(SAME), SAME);
    rig_replicas(1, STREAM);
    for (int at = 1; at <= 10; at++) {
        unsigned before = rig.replicas[0].requests;
        uint64_t joined = joins("other");
        start(&c[0], at % 2, SAME);
        WAIT(rig.replicas[0].x);
        struct httpio_exchange *first = rig.replicas[0].x;
        memory_ends = at;
        rig.addr = rig.door[1 - at % 2];
        raw_start(&c[1], request.ptr); /* which asks once */
        WAIT_POLL(rig.replicas[0].requests == before + 2 || joins("other") > joined);
        if (rig.replicas[0].requests == before + 2) {
            WAIT_POLL(rig.replicas[0].x != first && rig.replicas[0].body.len);
            finish_stream(&rig.replicas[0]);
            rig.replicas[0].x = first;
            own++;
        }
        for (unsigned i = 0; i < 3; i++) {
            replica_event(&rig.replicas[0], CONTENT);
            WAIT(c[0].len >= (i + 1) * strlen(CONTENT));
        }
        finish_stream(&rig.replicas[0]);
        WAIT(c[0].done && c[1].done);
        assert_false(c[0].failed);
        assert_string_equal(c[0].body.ptr, CONTENT CONTENT CONTENT CONTENT DONE);
        struct str got = buf_str(&c[1].body);
        if (rig.replicas[0].requests == before + 2)
            assert_true(str_ends(got, STR("\r\n\r\n" CONTENT DONE)));
        else if (str_starts(got, STR("HTTP/1.1 502 ")) || c[1].reset || !got.len)
            told++;
        else if (str_ends(got, STR("\r\n\r\n" CONTENT CONTENT CONTENT CONTENT DONE)))
            all++;
        else
            fail_msg("%d: " STR_FMT, at, STR_ARG(got));
        memory_ends = 0;
        release(2);
        assert_rest();
    }
    assert_true(own >= 3 && told >= 3 && all >= 1);
}

/* ---- all at once ---------------------------------------------------------------------------------------------------- */

/* Turns asked by many at both loops, who leave at any time, while configurations change and somebody looks and cancels. Who stays has all of it. */
static void storm(void **state)
{
    (void)state;
    enum { CLIENTS = 12, ROUNDS = 60 };
    static struct client many[CLIENTS];
    unsigned seed = 1, whole = 0;
    rig_replicas(1, STREAM);
    uint16_t port = rig.replicas[0].port;
#define RANDOM(n) ((seed = seed * 1103515245 + 12345) >> 16) % (n)
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool here[CLIENTS];
        unsigned stays = RANDOM(CLIENTS), events = RANDOM(4), first = RANDOM(2);
        uint64_t number = rig.proxy->numbers;
        for (unsigned i = 0; i < CLIENTS; i++) {
            start(&many[i], i ? RANDOM(2) : first, SAME);
            here[i] = true;
            if (i == 0)
                WAIT(rig.replicas[0].requests == round + 1 && rig.replicas[0].x);
        }
        WAIT_POLL(joins("same") + joins("other") >= (uint64_t)(round + 1) * (CLIENTS - 1));
        for (unsigned step = 0; step < events + 2; step++) {
            for (unsigned k = RANDOM(4); k; k--) {
                unsigned gone = RANDOM(CLIENTS);
                base_autobuf struct buf text = BUF_INIT(1 << 20);
                char target[64];
                unsigned status;
                if (gone == stays || !here[gone])
                    continue;
                here[gone] = false;
                snprintf(target, sizeof target, "/requests/%llu/cancel", (unsigned long long)number + 1 + gone);
                if (gone == 0 && RANDOM(2)) /* numbers are given as requests come: that one is known */
                    assert_int_equal(proxy_ask(rig.proxy, STR("POST"), str_of(target), &status, &text), 0);
                else
                    client_release(&many[gone]);
                assert_int_equal(proxy_ask(rig.proxy, STR("GET"), STR("/requests"), &status, &text), 0);
            }
            if (step && step <= events)
                replica_event(&rig.replicas[0], CONTENT);
            if (RANDOM(8) == 0)
                rig_config(&port, 1, 0, 1);
        }
        finish_stream(&rig.replicas[0]);
        for (unsigned i = 0; i < CLIENTS; i++) {
            if (!here[i]) {
                client_release(&many[i]);
                continue;
            }
            WAIT(many[i].done);
            assert_false(many[i].failed);
            assert_int_equal(many[i].len, (events + 1) * strlen(CONTENT) + strlen(DONE));
            client_release(&many[i]);
            whole++;
        }
        WAIT_POLL(active() == 0);
        assert_int_equal(rig.replicas[0].requests, round + 1);
    }
    assert_true(whole >= ROUNDS);
    assert_true(joins("other") > ROUNDS);
    assert_rest();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_LANES_TEST(both_get_all),
        RIG_LANES_TEST(whole_answers_too),
        RIG_LANES_TEST(each_has_its_framing),
        RIG_LANES_TEST(signs_of_life_come_from_its_own_loop),
        RIG_LANES_TEST(whoever_stays_goes_on),
        RIG_LANES_TEST(nobody_stays),
        RIG_LANES_TEST(goes_to_another_replica),
        RIG_LANES_TEST(failures_are_shared),
        RIG_LANES_TEST(tokens_are_counted_once),
        RIG_LANES_TEST(others_do_not_join),
        RIG_LANES_TEST(what_has_content_is_not_joined),
        RIG_LANES_TEST(too_late_is_a_call_of_its_own),
        RIG_LANES_TEST(gone_before_it_was_looked_at),
        RIG_LANES_TEST(a_loop_that_stands_is_left_behind),
        RIG_LANES_TEST(the_slow_one_is_left_behind),
        RIG_LANES_TEST(nobody_reads_for_a_while),
        RIG_LANES_TEST(freed_in_the_middle),
        RIG_LANES_TEST(drain_waits_for_links),
        RIG_LANES_TEST(large_bodies),
        RIG_LANES_TEST(without_memory),
        RIG_LANES_TEST(storm),
    };
    return cmocka_run_group_tests_name("proxy_link", tests, NULL, NULL);
}
