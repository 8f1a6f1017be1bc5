/* SPDX-License-Identifier: MIT
 *
 * proxy: the drill passes on a router that works, whatever the policy, and fails on one that does not: each kind of case is shown a router that is broken in its way.
 */
#include "../../src/proxy/drill.c"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct fleet_runtime llama = {.name = "l", .engine = "llama.cpp"}, generic = {.name = "g", .engine = "generic"};
static struct fleet_service services[] = {
    {.name = "a", .runtime = &llama, .bind = "0.0.0.0", .port = 1, .shape = {.slots = 2}}, {.name = "b", .runtime = &llama, .bind = "10.0.0.1", .port = 1, .shape = {.slots = 1}},
    {.name = "c", .runtime = &generic, .bind = "127.0.0.1", .port = 1},
};
static const struct fleet_service *const pair[] = {&services[0], &services[1]}, *const one[] = {&services[2]};
static struct fleet_endpoint endpoints[] = {{.name = "two \"x\"", .services = pair, .n_services = 2}, {.name = "one", .services = one, .n_services = 1}};
static const struct fleet fleet = {.name = "f", .services = services, .n_services = 3, .endpoints = endpoints, .n_endpoints = 2};

struct sums {
    unsigned passed, failed, skipped;
};

static void sum(void *ctx, const struct proxy_drill_case *c)
{
    struct sums *s = ctx;
    s->passed += c->runs && !c->failed;
    s->failed += c->failed > 0;
    s->skipped += !c->runs;
    if (c->failed)
        print_message("%s at %s: %s\n", c->name, c->endpoint, c->why);
}

static void passes_with_every_policy(void **state)
{
    (void)state;
    static const enum fleet_policy policies[] = {FLEET_ADAPTIVE, FLEET_COUNTER, FLEET_ROUNDROBIN, FLEET_LEAST, FLEET_HASH, FLEET_STICKY};
    for (size_t i = 0; i < BASE_COUNT(policies); i++) {
        struct sums s = {0};
        struct err err;
        endpoints[0].policy = endpoints[1].policy = policies[i];
        if (proxy_drill(&fleet, i ? 1 : 3, sum, &s, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(s.failed, 0);
        assert_int_equal(s.passed + s.skipped, 2 * drill_n_cases);
        assert_int_equal(s.skipped, 4); /* one: a large body that moves, silence twice, a queue */
    }
    endpoints[0].policy = endpoints[1].policy = FLEET_ADAPTIVE;
}

/* One case of the first endpoint with a router that has been tampered with. */
static bool case_fails(const char *name, void (*tamper)(struct drill *d))
{
    struct drill d = {.fleet = &fleet};
    struct proxy_drill_case r = {0};
    struct err err;
    assert_int_equal(start(&d, &err), 0);
    choose_endpoint(&d, &endpoints[0]);
    tamper(&d);
    for (size_t i = 0; i < drill_n_cases; i++)
        if (strcmp(drill_cases[i].name, name) == 0)
            run_case(&d, &drill_cases[i], 1, &r);
    stop(&d);
    assert_int_equal(r.runs, 1);
    if (r.failed)
        assert_true(r.why[0]);
    return r.failed == 1;
}

static void nothing(struct drill *d)
{
    (void)d;
}

/* The router that is asked knows one replica only, which the drill takes for two. */
static void lose_a_replica(struct drill *d)
{
    static struct fleet_endpoint alone[2];
    static struct fleet small;
    alone[0] = endpoints[0];
    alone[0].n_services = 1;
    alone[1] = endpoints[1];
    small = fleet;
    small.endpoints = alone;
    d->fleet = &small;
}

static void lose_patience(struct drill *d)
{
    d->proxy->hang_ms = DRILL_WAIT_MS * 2;
    d->proxy->heartbeat_ms = DRILL_WAIT_MS * 2;
}

/* Another endpoint answers to the name that nobody should know. */
static void know_everybody(struct drill *d)
{
    static const char *const names[] = {"no such model"};
    static struct fleet_endpoint known[2];
    static struct fleet small;
    known[0] = endpoints[0];
    known[0].aliases = names;
    known[0].n_aliases = 1;
    known[1] = endpoints[1];
    small = fleet;
    small.endpoints = known;
    d->fleet = &small;
}

static void turn_bodies_away(struct drill *d)
{
    static struct fleet small;
    small = fleet;
    small.router.bodies = (struct fleet_bodies){.max_bytes = 50, .memory_bytes = 50};
    d->fleet = &small;
}

static void fails_on_a_broken_router(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*tamper)(struct drill *d);
    } cases[] = {
        {"large body, reset", turn_bodies_away}, {"unknown model", know_everybody}, {"chat waits", lose_patience}, {"answers", turn_bodies_away}, {"client leaves the queue", turn_bodies_away},
    };
    static const char *const moves[] = {"refused", "reset", "end instead of an answer", "no HTTP", "status 500", "status 503", "status 429", "half an answer", "stream: 200, then the end",
                                        "stream: first event is an error"};
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        if (case_fails(cases[i].name, nothing))
            fail_msg("'%s' fails by itself", cases[i].name);
        if (!case_fails(cases[i].name, cases[i].tamper))
            fail_msg("'%s' does not see it", cases[i].name);
    }
    /* live is the first replica for an even repeat: with the second one lost from the router it is still found, so the live one is the second */
    for (size_t i = 0; i < BASE_COUNT(moves); i++) {
        struct drill d = {.fleet = &fleet};
        struct err err;
        assert_int_equal(start(&d, &err), 0);
        choose_endpoint(&d, &endpoints[0]);
        lose_a_replica(&d);
        for (size_t k = 0; k < drill_n_cases; k++)
            if (strcmp(drill_cases[k].name, moves[i]) == 0 && drill_cases[k].run(&d, &drill_cases[k], 1) != DRILL_FAILED)
                fail_msg("'%s' does not see that nobody is left", moves[i]);
        stop(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_with_every_policy), cmocka_unit_test(fails_on_a_broken_router)};
    return cmocka_run_group_tests_name("proxy_drill", tests, NULL, NULL);
}
