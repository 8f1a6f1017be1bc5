/* SPDX-License-Identifier: MIT
 *
 * proxy: two event loops share one scheduler. Each loop has a port of its own here, so that a test says by which one a request comes; replicas and clients live on the first loop. Meant to be run with the
 * thread sanitizer too.
 */
#include "proxy_rig.h"

#include <proxy/proxy_int.h>

#define CHAT "/v1/chat/completions"

static void start(struct client *c, unsigned lane, const char *body)
{
    rig.addr = rig.door[lane];
    client_start(c, "POST", CHAT, str_of(body));
}

static size_t waiting(void)
{
    (void)pthread_mutex_lock(&rig.proxy->lock);
    size_t n = sched_waiting(rig.proxy->sched);
    (void)pthread_mutex_unlock(&rig.proxy->lock);
    return n;
}

static unsigned leases(void)
{
    unsigned n = 0;
    (void)pthread_mutex_lock(&rig.proxy->lock);
    for (size_t i = 0; i < rig.proxy->n_peers; i++)
        n += rig.proxy->peers[i]->s.active;
    (void)pthread_mutex_unlock(&rig.proxy->lock);
    return n;
}

static uint64_t active(void)
{
    struct proxy_stats s;
    proxy_stats(rig.proxy, &s);
    return s.active;
}

#define ONE "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"
#define TWO "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"two\"}]}"

/* The slot that one loop gives back goes to a request that waits at the other. */
static void a_turn_crosses_loops(void **state)
{
    (void)state;
    struct client first, second;
    rig.slots = 1;
    rig_replicas(1, HOLD);
    for (unsigned lane = 0; lane < 2; lane++) {
        unsigned before = rig.replicas[0].requests;
        start(&first, lane, ONE);
        WAIT(rig.replicas[0].requests == before + 1 && rig.replicas[0].x);
        WAIT_POLL(leases() == 1);
        start(&second, 1 - lane, TWO);
        WAIT_POLL(waiting() == 1);
        assert_int_equal(rig.replicas[0].requests, before + 1);
        replica_answer(&rig.replicas[0], "first");
        WAIT(first.done && rig.replicas[0].requests == before + 2 && rig.replicas[0].x);
        replica_answer(&rig.replicas[0], "second");
        WAIT(second.done);
        assert_true(contains(&first.body, "first") && contains(&second.body, "second"));
        client_release(&first);
        client_release(&second);
        WAIT_POLL(active() == 0);
    }
}

/* What one loop learnt of a conversation the other knows. */
static void conversations_are_shared(void **state)
{
    (void)state;
    struct client c;
    rig_replicas(2, ECHO);
    start(&c, 0, ONE);
    WAIT(c.done);
    bool at_first = has_line(&c.fields, "X-Berth-Replica: r0");
    client_release(&c);
    WAIT_POLL(active() == 0);
    for (int i = 0; i < 4; i++) {
        start(&c, 1, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"more\"}]}");
        WAIT(c.done);
        assert_true(has_line(&c.fields, "X-Berth-Decision: affine"));
        assert_true(has_line(&c.fields, at_first ? "X-Berth-Replica: r0" : "X-Berth-Replica: r1"));
        client_release(&c);
    }
}

/* Who looks at the queue while requests of the other loop end. */
static void look(void)
{
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    unsigned status = 0;
    assert_int_equal(proxy_ask(rig.proxy, STR("GET"), STR("/requests"), &status, &text), 0);
    assert_int_equal(status, 200);
}

/* Many requests at both doors, some of whose clients leave in the queue, while configurations change and somebody looks: nothing is left behind. */
static void storm(void **state)
{
    (void)state;
    enum { CLIENTS = 24, ROUNDS = 12 };
    static struct client clients[CLIENTS];
    char body[128];
    unsigned answered = 0;
    rig.slots = 2;
    rig.pins = true;
    rig_replicas(2, ECHO);
    uint16_t ports[] = {rig.replicas[0].port, rig.replicas[1].port};
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < CLIENTS; i++) {
            snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"%u\"}]}", (unsigned)(round * 7 + i) % 40);
            start(&clients[i], i % 2, body);
        }
        if (round % 3 == 1)
            rig_config(ports, 2, round % 2, 1 + round / 3);
        look();
        for (unsigned i = 0; i < CLIENTS; i += 5)
            clients[i].call = httpio_call_cancel(clients[i].call);
        for (unsigned i = 0; i < CLIENTS; i++) {
            look();
            if (i % 5 == 0) {
                client_release(&clients[i]);
                continue;
            }
            WAIT(clients[i].done);
            assert_false(clients[i].failed);
            assert_int_equal(clients[i].status, 200);
            answered++;
            client_release(&clients[i]);
        }
    }
    assert_int_equal(answered, ROUNDS * (CLIENTS - (CLIENTS + 4) / 5));
    WAIT_POLL(active() == 0);
    assert_int_equal(waiting(), 0);
    assert_int_equal(leases(), 0);
    assert_int_equal(rig.proxy->bodies, 0);
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    assert_int_equal(proxy_metrics(rig.proxy, &text), 0);
    assert_true(contains(&text, "\nberth_router_active 0\n"));
}

static void drained(void *ctx)
{
    ++*(int *)ctx;
    rig_poke();
}

/* A drain waits for what runs at either loop, and says once that it is over. */
static void drain_waits_for_both(void **state)
{
    (void)state;
    struct client c[2];
    int times = 0;
    rig_replicas(2, HOLD);
    for (unsigned lane = 0; lane < 2; lane++)
        start(&c[lane], lane, lane ? TWO : ONE);
    WAIT(rig.replicas[0].x && rig.replicas[1].x);
    proxy_drain(rig.proxy, 60000, drained, &times);
    for (unsigned i = 0; i < 2; i++) {
        rig_run(20);
        assert_int_equal(times, 0);
        replica_answer(&rig.replicas[i], "done");
        WAIT(c[0].done || c[1].done);
    }
    WAIT(times > 0 && c[0].done && c[1].done);
    rig_run(20);
    assert_int_equal(times, 1);
    assert_int_equal(c[0].status, 200);
    assert_int_equal(c[1].status, 200);
    client_release(&c[0]);
    client_release(&c[1]);
}

static pthread_t told_by;
static char told[64];

static void failed(void *ctx, const char *service, uint64_t generation, const char *text)
{
    (void)ctx, (void)text;
    told_by = pthread_self();
    snprintf(told, sizeof told, "%s %u", service, (unsigned)generation);
    rig_poke();
}

/* The owner hears on its own thread of a replica that another loop could not reach. */
static void failures_reach_the_owner(void **state)
{
    (void)state;
    struct client c;
    uint16_t port;
    int fd = rig_listen(&port);
    (void)close(fd); /* nobody is there */
    rig.proxy->on_failed = failed;
    told[0] = '\0';
    rig_config(&port, 1, 0, 7);
    start(&c, 1, ONE);
    WAIT(c.done && told[0]);
    assert_int_equal(c.status, 502);
    assert_string_equal(told, "r0 7");
    assert_true(pthread_equal(told_by, pthread_self()));
    client_release(&c);
}

/* Who runs the router may end a request at any loop. */
static void cancelled_at_both(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    for (unsigned lane = 0; lane < 2; lane++) {
        base_autobuf struct buf text = BUF_INIT(1 << 16);
        struct client c;
        unsigned status = 0;
        char target[64];
        start(&c, lane, ONE);
        WAIT(rig.replicas[0].requests == lane + 1);
        snprintf(target, sizeof target, "/requests/%u/cancel", lane + 1);
        assert_int_equal(proxy_ask(rig.proxy, STR("POST"), str_of(target), &status, &text), 0);
        assert_int_equal(status, 200);
        WAIT(c.done);
        assert_int_equal(c.status, 410);
        assert_int_equal(proxy_ask(rig.proxy, STR("POST"), str_of(target), &status, &text), 0);
        assert_int_equal(status, 404);
        client_release(&c);
    }
}

/* With requests under way at both, in the queue and at replicas. */
static void freed_in_the_middle(void **state)
{
    (void)state;
    struct client c[6];
    rig.slots = 1;
    rig_replicas(1, HOLD);
    for (unsigned i = 0; i < BASE_COUNT(c); i++)
        start(&c[i], i % 2, i % 3 ? ONE : TWO);
    WAIT_POLL(waiting() == BASE_COUNT(c) - 1);
    rig.proxy = proxy_free(rig.proxy);
    for (unsigned i = 0; i < BASE_COUNT(c); i++) {
        WAIT(c[i].done);
        assert_true(c[i].failed);
        client_release(&c[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_LANES_TEST(a_turn_crosses_loops), RIG_LANES_TEST(conversations_are_shared), RIG_LANES_TEST(storm), RIG_LANES_TEST(drain_waits_for_both), RIG_LANES_TEST(failures_reach_the_owner), RIG_LANES_TEST(cancelled_at_both),
        RIG_LANES_TEST(freed_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
