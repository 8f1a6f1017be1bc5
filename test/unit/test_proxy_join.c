/* SPDX-License-Identifier: MIT
 *
 * proxy: the same turn asked twice while the first is under way is one call, whose bytes all of its clients get, whoever of them stays. And the request that kills who has it: two
 * replicas, not all.
 */
#include "proxy_rig.h"

#include <proxy/proxy_int.h>

#define CHAT "/v1/chat/completions"
#define SAME "{\"model\":\"m\",\"stream\":true,\"prompt_cache_key\":\"k\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"
#define CONTENT "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
#define DONE "data: [DONE]\n\n"

static struct client c[3];

/* n clients ask for the same; the replica has it once. */
static void ask_same(size_t n, const char *body)
{
    for (size_t i = 0; i < n; i++) {
        client_start(&c[i], "POST", CHAT, str_of(body));
        WAIT(rig.replicas[0].x);
    }
    rig_run(30);
    assert_int_equal(rig.replicas[0].requests, 1);
}

static void release(size_t n)
{
    for (size_t i = 0; i < n; i++)
        client_release(&c[i]);
}

static void both_get_all(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    ask_same(3, SAME);
    replica_event(&rig.replicas[0], CONTENT);
    WAIT(c[0].len && c[1].len && c[2].len);
    replica_event(&rig.replicas[0], CONTENT DONE);
    replica_end(&rig.replicas[0]);
    WAIT(c[0].done && c[1].done && c[2].done);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(c[i].status, 200);
        assert_false(c[i].failed);
        assert_string_equal(c[i].body.ptr, CONTENT CONTENT DONE);
        assert_true(has_line(&c[i].fields, i ? "X-Berth-Decision: joined" : "X-Berth-Decision: cold"));
        assert_true(has_line(&c[i].fields, "X-Berth-Replica: r0"));
    }
    release(3);
    WAIT_POLL(rig.replicas[0].finished == 1);
    /* what comes later is a call of its own */
    client_start(&c[0], "POST", CHAT, STR(SAME));
    WAIT(rig.replicas[0].requests == 2);
    replica_event(&rig.replicas[0], CONTENT);
    WAIT(c[0].len);
    client_start(&c[1], "POST", CHAT, STR(SAME)); /* too late: there is content */
    WAIT(rig.replicas[0].requests == 3);
    release(2);
}

static void whole_answers_too(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    ask_same(2, "{\"model\":\"m\",\"prompt_cache_key\":\"k\"}");
    replica_answer(&rig.replicas[0], "{\"all\":1}");
    WAIT(c[0].done && c[1].done);
    assert_string_equal(c[0].body.ptr, "{\"all\":1}");
    assert_string_equal(c[1].body.ptr, "{\"all\":1}");
    release(2);
}

static void whoever_stays_goes_on(void **state)
{
    (void)state;
    for (size_t gone = 0; gone < 2; gone++)
        for (size_t late = 0; late < 2; late++) { /* before content, and after */
            struct client *left = &c[gone], *stays = &c[1 - gone];
            rig_replicas(1, STREAM);
            ask_same(2, SAME);
            if (late) {
                replica_event(&rig.replicas[0], CONTENT);
                WAIT(c[0].len && c[1].len);
            }
            client_release(left);
            rig_run(50);
            assert_int_equal(rig.replicas[0].left, 0);
            assert_non_null(rig.replicas[0].x);
            replica_event(&rig.replicas[0], CONTENT DONE);
            replica_end(&rig.replicas[0]);
            WAIT(stays->done);
            assert_false(stays->failed);
            assert_string_equal(stays->body.ptr, late ? CONTENT CONTENT DONE : CONTENT DONE);
            client_release(stays);
            WAIT_POLL(rig.replicas[0].finished == 1);
            replica_close(&rig.replicas[0]);
            rig.replicas[0].server = NULL;
        }
}

static void nobody_stays(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    ask_same(3, SAME);
    client_release(&c[1]);
    rig_run(20);
    client_release(&c[0]);
    rig_run(20);
    assert_int_equal(rig.replicas[0].left, 0);
    client_release(&c[2]);
    WAIT(rig.replicas[0].left == 1);
    struct proxy_stats s;
    proxy_stats(rig.proxy, &s);
    assert_int_equal(s.active, 0);
}

/* What differs, and what was never said to be one conversation, is asked twice. */
static void others_do_not_join(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {SAME, "{\"model\":\"m\",\"stream\":true,\"prompt_cache_key\":\"k\",\"messages\":[{\"role\":\"user\",\"content\":\"two\"}]}"},
        {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"},
    };
    rig_replicas(1, HOLD);
    for (size_t i = 0; i < BASE_COUNT(pairs); i++) {
        client_start(&c[0], "POST", CHAT, str_of(pairs[i][0]));
        client_start(&c[1], "POST", CHAT, str_of(pairs[i][1]));
        WAIT(rig.replicas[0].requests == 2 * i + 2);
        release(2);
        WAIT_POLL(rig.replicas[0].left == 2 * i + 2);
    }
    /* another key */
    static const char *const keys[] = {"Authorization: Bearer a\r\n", "Authorization: Bearer b\r\n"};
    for (size_t i = 0; i < 2; i++) {
        base_autobuf struct buf b = BUF_INIT(1 << 12);
        buf_addf(&b, "POST " CHAT " HTTP/1.1\r\nHost: a\r\n%sContent-Length: %zu\r\n\r\n%s", keys[i], strlen(SAME), SAME);
        raw_start(&c[i], b.ptr);
    }
    WAIT(rig.replicas[0].requests == 6);
    release(2);
}

static void failures_are_shared(void **state)
{
    (void)state;
    rig_replicas(1, STREAM);
    ask_same(2, SAME);
    replica_event(&rig.replicas[0], CONTENT);
    WAIT(c[0].len && c[1].len);
    httpio_abort(rig.replicas[0].x);
    WAIT(c[0].done && c[1].done);
    for (size_t i = 0; i < 2; i++) {
        assert_true(c[i].failed);
        assert_true(contains(&c[i].body, "data: {\"error\":"));
    }
    release(2);
    /* before content: what is left to say is said to both */
    rig.replicas[0].requests = 0;
    ask_same(2, SAME);
    httpio_abort(rig.replicas[0].x);
    WAIT(c[0].done && c[1].done);
    assert_int_equal(c[0].status, 502);
    assert_int_equal(c[1].status, 502);
    release(2);
}

static void cancel(unsigned number)
{
    base_autobuf struct buf text = BUF_INIT(1 << 16);
    char target[64];
    unsigned status = 0;
    snprintf(target, sizeof target, "/requests/%u/cancel", number);
    assert_int_equal(proxy_ask(rig.proxy, STR("POST"), str_of(target), &status, &text), 0);
    assert_int_equal(status, 200);
}

/* Who runs the router ends the one that he names, whichever it is: the other's answer goes on. */
static void a_cancel_ends_one(void **state)
{
    (void)state;
    unsigned first = 1; /* number of the first request of a round */
    for (unsigned gone = 0; gone < 2; gone++)
        for (unsigned late = 0; late < 2; late++, first += 2) { /* before content, and after */
            struct client *ended = &c[gone], *stays = &c[1 - gone];
            rig_replicas(1, STREAM);
            ask_same(2, SAME);
            if (late) {
                replica_event(&rig.replicas[0], CONTENT);
                WAIT(c[0].len && c[1].len);
            }
            cancel(first + gone);
            WAIT(ended->done);
            if (late) {
                assert_true(ended->failed);
                assert_true(contains(&ended->body, CONTENT "data: {\"error\":{\"message\":\"this request was cancelled by the operator\""));
            } else {
                assert_int_equal(ended->status, 410);
            }
            assert_int_equal(rig.replicas[0].left, 0);
            replica_event(&rig.replicas[0], CONTENT DONE);
            replica_end(&rig.replicas[0]);
            WAIT(stays->done);
            assert_false(stays->failed);
            assert_string_equal(stays->body.ptr, late ? CONTENT CONTENT DONE : CONTENT DONE);
            release(2);
            replica_close(&rig.replicas[0]);
            rig.replicas[0].server = NULL;
        }
    /* the last one takes the call with it */
    rig_replicas(1, STREAM);
    ask_same(2, SAME);
    cancel(first);
    cancel(first + 1);
    WAIT(c[0].done && c[1].done);
    WAIT(rig.replicas[0].left == 1);
    release(2);
}

/* One that does not read its answer is left behind with an error; the other has all of it, at its own pace. */
static void the_slow_one_is_left_behind(void **state)
{
    (void)state;
    enum { EVENTS = 800, SIZE = 32768 };
    for (unsigned slow = 0; slow < 2; slow++) {
        base_autobuf struct buf request = BUF_INIT(1 << 12), event = BUF_INIT(1 << 16);
        struct client *quick = &c[1 - slow], *stuck = &c[slow];
        rig_replicas(1, STREAM);
        buf_addf(&request, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n%s", strlen(SAME), SAME);
        buf_add_c(&event, "data: {\"choices\":[{\"delta\":{\"content\":\"");
        while (event.len < SIZE - 8)
            buf_add_char(&event, 'x');
        buf_add_c(&event, "\"}}]}\n\n");
        for (unsigned i = 0; i < 2; i++) {
            if (i == slow)
                raw_start(stuck, request.ptr);
            else
                client_start(quick, "POST", CHAT, STR(SAME));
            WAIT(rig.replicas[0].x);
            rig_run(20);
        }
        assert_int_equal(rig.replicas[0].requests, 1);
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
        assert_true(stuck->len > PROXY_BEHIND_MAX && stuck->len < EVENTS * event.len); /* what the kernel holds counts too */
        assert_true(contains(&stuck->body, "data: {\"error\":{\"message\":\"this client took its answer too slowly\""));
        release(2);
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* A request that kills who has it gets two, and the others live. */
static void poison_is_bounded(void **state)
{
    (void)state;
    static struct bare bares[RIG_REPLICAS];
    uint16_t ports[RIG_REPLICAS];
    size_t had = 0;
    for (size_t i = 0; i < RIG_REPLICAS; i++) {
        bare_open(&bares[i], "", true, i % 2 == 0);
        ports[i] = bares[i].port;
    }
    rig_config(ports, RIG_REPLICAS, 0, 1);
    ask(&c[0], "POST", CHAT, "{\"model\":\"m\"}");
    assert_int_equal(c[0].status, 502);
    assert_true(contains(&c[0].body, "2 replicas of 'm' broke off while they had this request"));
    client_release(&c[0]);
    for (size_t i = 0; i < RIG_REPLICAS; i++) {
        had += bares[i].requests > 0;
        bare_close(&bares[i]);
    }
    assert_int_equal(had, 2);
}

static void long_names_are_shown_cut(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    rig_replicas(1, ECHO);
    buf_add_c(&b, "{\"model\":\"");
    for (int i = 0; i < 5000; i++)
        buf_add_char(&b, 'x');
    buf_add_c(&b, "\"}");
    ask(&c[0], "POST", CHAT, b.ptr);
    assert_int_equal(c[0].status, 404);
    assert_true(contains(&c[0].body, "model 'xxxxxxxx"));
    assert_true(contains(&c[0].body, "...' is not served here"));
    assert_true(c[0].len < 1000);
    client_release(&c[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(both_get_all),       RIG_TEST(whole_answers_too),   RIG_TEST(whoever_stays_goes_on), RIG_TEST(nobody_stays),
        RIG_TEST(a_cancel_ends_one),  RIG_TEST(the_slow_one_is_left_behind),
        RIG_TEST(others_do_not_join), RIG_TEST(failures_are_shared), RIG_TEST(poison_is_bounded),     RIG_TEST(long_names_are_shown_cut),
    };
    return cmocka_run_group_tests_name("proxy_join", tests, NULL, NULL);
}
