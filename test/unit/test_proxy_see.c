/* SPDX-License-Identifier: MIT
 *
 * proxy: what can be seen of requests: the book by itself, and what a router says of those that run, wait, have ended, and are cancelled.
 */
#include "proxy_rig.h"

#include <proxy/proxy_int.h>

#define CHAT "/v1/chat/completions"
#define MESSAGES "/v1/messages"
#define PLAIN "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"
#define STREAM_BODY "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"
#define EVENT(text) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text "\"}}]}\n\n"
#define LAST "data: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}],\"timings\":{\"cache_n\":30,\"prompt_n\":10,\"prompt_ms\":200,\"predicted_n\":3,\"predicted_ms\":60}}\n\ndata: [DONE]\n\n"

/* ---- the book ------------------------------------------------------------------------------------------------ */

static void rates(void **state)
{
    (void)state;
    struct see_rate r = {0};
    assert_true(see_rate_of(&r, 0) <= 0);
    see_rate_add(&r, 100500, 10);
    assert_true(see_rate_of(&r, 100900) <= 0); /* a second that runs does not count */
    assert_true(see_rate_of(&r, 101000) == 2);
    see_rate_add(&r, 102000, 15);
    assert_true(see_rate_of(&r, 103000) == 5);
    assert_true(see_rate_of(&r, 106000) == 3); /* the ten are too old */
    assert_true(see_rate_of(&r, 108000) <= 0);
    see_rate_add(&r, 500000, 5);
    assert_true(see_rate_of(&r, 501000) == 1);
    see_rate_add(&r, 500000, UINT64_MAX); /* stays at its end */
    assert_true(see_rate_of(&r, 501000) == UINT32_MAX / 5.0);
}

static size_t count(struct see *s, const char *list)
{
    base_autobuf struct buf b = BUF_INIT(1 << 22);
    struct json_out *o = json_out_new();
    struct json *j;
    json_out_obj(o, NULL);
    assert_int_equal(see_write_all(s, 0, o), 0);
    json_out_end(o);
    assert_int_equal(json_out_finish(o, false, &b), 0);
    json_out_free(o);
    assert_int_equal(json_parse(buf_str(&b), &j, NULL), 0);
    size_t n = json_count(json_get(json_root(j), list));
    json_free(j);
    return n;
}

static bool knows(struct see *s, uint64_t number)
{
    struct json_out *o = json_out_new();
    json_out_obj(o, NULL);
    bool known = see_write_one(s, number, 0, o);
    json_out_free(o);
    return known;
}

/* However many there are, what has ended is bounded, and the oldest goes first. */
static void the_book_is_bounded(void **state)
{
    (void)state;
    struct see *s = see_new();
    struct see_page *many[SEE_KEPT + 100];
    void *where;
    struct see_end end = {.status = 200, .outcome = "ok"};
    double regret = 7;
    assert_non_null(s);
    for (size_t i = 0; i < BASE_COUNT(many); i++)
        many[i] = see_begin(s, i + 1, &many[i], NULL, 0, STR("POST"), STR("/a/path/that/is/longer/than/what/a/page/has/room/for/and/then/some/more"));
    assert_int_equal(count(s, "requests"), SEE_SHOWN);
    assert_int_equal(count(s, "recent"), 0);
    assert_ptr_equal(see_owner(s, 5, &where), &many[4]);
    for (size_t i = 0; i < BASE_COUNT(many); i++)
        assert_false(see_end(s, many[i], &end, 0, &regret));
    assert_true(regret == 7);
    assert_null(see_owner(s, 5, &where));
    assert_false(knows(s, 100));
    assert_true(knows(s, 101));
    assert_true(knows(s, BASE_COUNT(many)));
    for (size_t i = 0; i < 3; i++)
        assert_false(see_end(s, see_begin(s, 1000 + i, NULL, NULL, 0, STR("GET"), STR("/")), &end, 0, &regret));
    assert_false(knows(s, 103));
    assert_true(knows(s, 104));
    assert_int_equal(count(s, "recent"), SEE_RECENT);
    /* without a page nothing happens */
    see_phase(s, NULL, SEE_QUEUE, 0);
    see_tokens(s, NULL, 1);
    assert_false(see_end(s, NULL, &end, 0, &regret));
    see_free(s);
}

/* What was lost is the difference to the best of the others, as it looked then, with the prompt's real length. */
static void regret(void **state)
{
    (void)state;
    struct see *s = see_new();
    const char *names[] = {"a", "b", "c"};
    struct sched_ticket t = {.decision = SCHED_AFFINE, .entered_ms = 1000, .started_ms = 1300, .n_weighed = 3};
    t.weighed[0] = (struct sched_weighed){.cached = 900, .prefill_tps = 1000};
    t.weighed[1] = (struct sched_weighed){.cached = 0, .prefill_tps = 2000};
    t.weighed[2] = (struct sched_weighed){.cached = 1000, .wait_ms = 450, .prefill_tps = 1000};
    struct see_end end = {.status = 200, .outcome = "ok", .counted = true, .prompt_n = 1000, .cached_n = 0, .prompt_ms = 900};
    double ms = -1;
    struct see_page *g = see_begin(s, 1, NULL, NULL, 1000, STR("POST"), STR("/x"));
    see_sent(s, g, &t, names, 1300);
    assert_true(see_end(s, g, &end, 2500, &ms)); /* 300 + 900 against 450 at c and 500 at b */
    assert_true(ms == 750);
    end.prompt_ms = 100;
    g = see_begin(s, 2, NULL, NULL, 1000, STR("POST"), STR("/x"));
    see_sent(s, g, &t, names, 1300);
    assert_true(see_end(s, g, &end, 2500, &ms)); /* it was the best */
    assert_true(ms == 0);
    /* no choice, or another attempt: nothing to regret */
    g = see_begin(s, 3, NULL, NULL, 1000, STR("POST"), STR("/x"));
    see_sent(s, g, &t, names, 1300);
    see_failed(s, g, "connect");
    see_sent(s, g, &t, names, 1300);
    assert_false(see_end(s, g, &end, 2500, &ms));
    see_free(s);
}

/* ---- a router ---------------------------------------------------------------------------------------------------- */

static struct json *told;

/* What the router answers; until the next question. */
static json_val tell(const char *method, const char *target, unsigned want)
{
    base_autobuf struct buf b = BUF_INIT(1 << 22);
    unsigned status = 0;
    told = json_free(told);
    assert_int_equal(proxy_ask(rig.proxy, str_of(method), str_of(target), &status, &b), 0);
    assert_int_equal(status, want);
    assert_int_equal(json_parse(buf_str(&b), &told, NULL), 0);
    return json_root(told);
}

static json_val request(size_t i)
{
    return json_at(json_get(tell("GET", "/requests", 200), "requests"), i);
}

static bool is(json_val v, const char *key, const char *want)
{
    struct str s;
    return json_str(json_get(v, key), &s) ? want && str_eq_c(s, want) : !want && json_is_null(json_get(v, key));
}

static uint64_t number(json_val v, const char *key)
{
    uint64_t n;
    if (!json_u64(json_get(v, key), &n))
        fail_msg("no number '%s'", key);
    return n;
}

static void phases_of_a_request(void **state)
{
    (void)state;
    struct client c, waits;
    rig.slots = 1;
    rig.pins = true;
    rig_replicas(1, STREAM);
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(rig.replicas[0].x);
    json_val v = request(0);
    assert_true(is(v, "phase", "prefill") && is(v, "replica", "r0") && is(v, "endpoint", "m") && is(v, "api", "chat") && is(v, "decision", "cold") && is(v, "key", NULL));
    assert_int_equal(number(v, "id"), 1);
    client_start(&waits, "POST", CHAT, STR(STREAM_BODY));
    WAIT_POLL(rig.proxy->stats.active == 2);
    v = request(1);
    assert_true(is(v, "phase", "queue") && is(v, "replica", NULL));
    assert_int_equal(number(v, "position"), 1);
    json_val r = json_at(json_get(json_root(told), "replicas"), 0);
    assert_int_equal(number(r, "busy"), 1);
    assert_int_equal(number(r, "waiting"), 1);
    assert_int_equal(number(r, "slots"), 1);
    assert_true(json_is_null(json_get(r, "cache_share")));
    assert_true(json_is_null(json_get(r, "prefill_tokens_per_s"))); /* a guess is no reading */
    replica_event(&rig.replicas[0], EVENT("a") EVENT("b"));
    WAIT(contains(&c.body, "\"b\""));
    v = request(0);
    assert_true(is(v, "phase", "decode"));
    assert_int_equal(number(v, "tokens"), 2);
    replica_event(&rig.replicas[0], EVENT("c") LAST);
    replica_end(&rig.replicas[0]);
    WAIT(c.done && rig.replicas[0].x);
    v = json_at(json_get(tell("GET", "/requests", 200), "recent"), 0);
    assert_true(is(v, "phase", "done") && is(v, "outcome", "ok"));
    assert_int_equal(number(v, "id"), 1);
    assert_int_equal(number(v, "tokens"), 3);
    assert_int_equal(number(v, "cached_tokens"), 30);
    assert_int_equal(number(v, "prompt_tokens"), 40);
    assert_int_equal(number(v, "status"), 200);
    double share = 0, rate = 0;
    assert_true(json_f64(json_get(json_at(json_get(json_root(told), "replicas"), 0), "cache_share"), &share) && share == 0.75);
    assert_true(json_f64(json_get(v, "tokens_per_s"), &rate) && rate == 50);
    assert_false(rig_metric("berth_router_replica_prompt_tokens_per_second{"));
    assert_true(rig_metric("berth_router_inter_token_seconds_count{endpoint=\"m\",replica=\"r0\"} 1"));
    client_release(&c);
    client_release(&waits);
}

static void explained(void **state)
{
    (void)state;
    struct client c;
    rig.pins = true;
    rig.slots = 1;
    rig_replicas(2, STREAM);
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], EVENT("a") LAST);
    replica_end(&rig.replicas[0]);
    WAIT(c.done);
    json_val v = tell("GET", "/requests/1", 200), list = json_get(v, "candidates");
    bool chosen = false;
    double ms = 0;
    assert_int_equal(json_count(list), 2);
    assert_true(is(json_at(list, 0), "replica", "r0") && json_bool(json_get(json_at(list, 0), "chosen"), &chosen) && chosen);
    assert_true(is(json_at(list, 1), "replica", "r1") && json_bool(json_get(json_at(list, 1), "chosen"), &chosen) && !chosen);
    assert_true(json_f64(json_get(json_at(list, 1), "expected_ms"), &ms) && ms == 80); /* 40 tokens at the speed that is guessed at first */
    assert_true(json_f64(json_get(v, "prompt_ms"), &ms) && ms == 200);
    assert_true(json_f64(json_get(v, "regret_ms"), &ms) && ms >= 120);
    assert_int_equal(json_count(json_get(v, "failed")), 0);
    assert_true(rig_metric("berth_router_regret_seconds_count{endpoint=\"m\",replica=\"r0\"} 1"));
    assert_true(is(tell("GET", "/requests/99", 404), "error", "no request of that number runs, or it ended too long ago"));
    static const char *const wrong[] = {"/requests/", "/requests/x", "/requests/1/", "/requests/1/cancel", "/requests/99999999999999999999", "/request", "/requests/1/2/3"};
    for (size_t i = 0; i < BASE_COUNT(wrong); i++)
        (void)tell("GET", wrong[i], 404);
    (void)tell("DELETE", "/requests/1", 404);
    client_release(&c);
}

/* A failed attempt stays in sight. */
static void failures_are_told(void **state)
{
    (void)state;
    struct client c;
    uint16_t ports[2];
    rig_replicas(2, ECHO);
    int fd = refusing(&ports[0]);
    ports[1] = rig.replicas[1].port;
    rig_config(ports, 2, 0, 2);
    ask(&c, "POST", CHAT, PLAIN);
    assert_int_equal(c.status, 200);
    json_val v = tell("GET", "/requests/1", 200), failed = json_get(v, "failed");
    assert_int_equal(number(v, "attempts"), 2);
    assert_int_equal(json_count(failed), 1);
    assert_true(is(json_at(failed, 0), "replica", "r0") && is(json_at(failed, 0), "reason", "connect") && is(v, "replica", "r1") && is(v, "decision", "retry"));
    client_release(&c);
    close(fd);
}

/* Whatever a request does, a cancel ends it: its replica is left alone, its client is told, and nobody takes it for a failure. */
static void cancelled(void **state)
{
    (void)state;
    struct client c[3];
    rig.slots = 1;
    rig_replicas(1, STREAM);
    client_start(&c[0], "POST", MESSAGES, STR(STREAM_BODY));
    WAIT(rig.replicas[0].x);
    client_start(&c[1], "POST", CHAT, STR(PLAIN));
    WAIT_POLL(rig.proxy->stats.active == 2);
    /* in the queue */
    assert_int_equal(number(tell("POST", "/requests/2/cancel", 200), "cancelled"), 2);
    WAIT(c[1].done);
    assert_int_equal(c[1].status, 410);
    assert_true(contains(&c[1].body, "cancelled by the operator") && has_line(&c[1].fields, "X-Berth-Request-Id: 2"));
    assert_int_equal(rig.replicas[0].requests, 1);
    /* while its answer comes */
    replica_event(&rig.replicas[0], "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}\n\n");
    WAIT(contains(&c[0].body, "\"a\""));
    (void)tell("POST", "/requests/1/cancel", 200);
    WAIT(c[0].done && rig.replicas[0].left == 1);
    assert_true(c[0].failed && contains(&c[0].body, "event: error\n") && contains(&c[0].body, "cancelled by the operator"));
    /* while its prompt is read */
    client_start(&c[2], "POST", CHAT, STR(PLAIN));
    WAIT(rig.replicas[0].x);
    (void)tell("POST", "/requests/3/cancel", 200);
    WAIT(c[2].done && rig.replicas[0].left == 2);
    assert_int_equal(c[2].status, 410);
    (void)tell("POST", "/requests/3/cancel", 404);
    json_val v = tell("GET", "/requests/1", 200);
    assert_true(is(v, "outcome", "cancelled"));
    static const char *const lines[] = {"berth_router_cancelled_total{phase=\"queue\"} 1", "berth_router_cancelled_total{phase=\"decode\"} 1", "berth_router_cancelled_total{phase=\"prefill\"} 1"};
    for (size_t i = 0; i < BASE_COUNT(lines); i++)
        assert_true(rig_metric(lines[i]));
    assert_int_equal(rig.proxy->stats.errors, 0);
    assert_int_equal(rig.proxy->stats.active, 0);
    assert_true(rig.proxy->peers[0]->s.suspect_ms == 0);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        client_release(&c[i]);
}

/* Its client is told where it would have stood. */
static void turned_away(void **state)
{
    (void)state;
    struct client first, c[SCHED_QUEUE_MAX + 1];
    rig.slots = 1;
    rig_replicas(1, HOLD);
    client_start(&first, "POST", CHAT, STR(PLAIN));
    WAIT(rig.replicas[0].x);
    for (size_t i = 0; i < BASE_COUNT(c); i++) {
        client_start(&c[i], "POST", CHAT, STR(PLAIN));
        if (i % 64 == 63)
            WAIT_POLL(rig.proxy->stats.active >= i);
    }
    struct client *last = &c[SCHED_QUEUE_MAX];
    WAIT(last->done);
    assert_int_equal(last->status, 503);
    assert_true(has_line(&last->fields, "X-Berth-Queue-Position: 1025") && has_line(&last->fields, "Retry-After: 2"));
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        client_release(&c[i]);
    client_release(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(the_book_is_bounded),
        cmocka_unit_test(regret),
        RIG_TEST(phases_of_a_request),
        RIG_TEST(explained),
        RIG_TEST(failures_are_told),
        RIG_TEST(cancelled),
        RIG_TEST(turned_away),
    };
    int rc = cmocka_run_group_tests_name("proxy_see", tests, NULL, NULL);
    told = json_free(told);
    return rc;
}
