/* SPDX-License-Identifier: MIT
 *
 * Which services on demand are up, as a machine without processes: a world of units with sizes, a memory, and a router that is told and tells.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../src/up/demand_int.h"

#define N 4

struct world {
    struct demand d;
    unsigned size[N], memory;
    bool exclusive; /* units 0 and 1 may not be up together */
    uint64_t now, seq;
    uint64_t active[N], waiting[N], since[N];
    size_t asked_of[N]; /* how many units the wait of unit i names: i, i+1, ... */
    bool open[N];       /* for the router */
    char log[512];
};

static bool fits(void *ctx, const bool *up)
{
    const struct world *w = ctx;
    unsigned sum = 0;
    for (size_t i = 0; i < N; i++)
        sum += up[i] ? w->size[i] : 0;
    return sum <= w->memory && !(w->exclusive && up[0] && up[1]);
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->now = 1000000;
    w->memory = 10;
    for (size_t i = 0; i < N; i++) {
        w->size[i] = 6;
        w->asked_of[i] = 1;
    }
    assert_int_equal(demand_init(&w->d, N, fits, w), 0);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    demand_release(&w->d);
    free(w);
    return 0;
}

/* The router's report as of now; a unit that it may use is waited for by nobody. */
static void report(struct world *w)
{
    demand_report_begin(&w->d);
    for (size_t i = 0; i < N; i++) {
        size_t units[N];
        for (size_t k = 0; k < w->asked_of[i]; k++)
            units[k] = i + k;
        demand_report_active(&w->d, i, w->active[i]);
        if (!w->open[i])
            demand_report_wait(&w->d, units, w->asked_of[i], w->waiting[i], w->since[i], w->now);
    }
    demand_report_end(&w->d, w->seq, w->now);
}

/* Does all there is to do, with a letter for each action: "S0 C1 X1 O0 R2". The router follows at once. */
static const char *go(struct world *w)
{
    struct demand_action a;
    static const char letters[] = "SCOXR";
    w->log[0] = '\0';
    for (unsigned guard = 0; demand_next(&w->d, w->now, &a); guard++) {
        size_t len = strlen(w->log);
        assert_true(guard < 32);
        snprintf(w->log + len, sizeof w->log - len, "%s%c%zu", len ? " " : "", letters[a.what], a.unit);
        if (a.what == DEMAND_CLOSE) {
            w->open[a.unit] = false;
            demand_closed(&w->d, a.unit, ++w->seq);
        } else if (a.what == DEMAND_OPEN) {
            w->open[a.unit] = true;
        }
        report(w);
        for (size_t i = 0; i < N; i++) { /* never what does not fit */
            bool up[N];
            for (size_t k = 0; k < N; k++)
                up[k] = w->d.units[k].state != DEMAND_DOWN;
            assert_true(fits(w, up));
        }
    }
    return w->log;
}

static void ask(struct world *w, size_t unit, uint64_t n)
{
    if (n && !w->waiting[unit])
        w->since[unit] = w->now;
    w->waiting[unit] = n;
    report(w);
}

static void loaded(struct world *w, size_t unit, uint64_t took)
{
    w->now += took;
    demand_ready(&w->d, unit, w->now);
    w->open[unit] = true;
    w->active[unit] = w->waiting[unit];
    w->waiting[unit] = 0;
    report(w);
}

static void done(struct world *w, size_t unit, uint64_t after)
{
    w->now += after;
    report(w);
    w->active[unit] = 0;
    report(w);
}

static void stopped(struct world *w, size_t unit)
{
    demand_gone(&w->d, unit);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void nothing_is_started_before_it_is_asked_for(void **state)
{
    struct world *w = *state;
    assert_string_equal(go(w), "");
    assert_true(demand_due(&w->d) == UINT64_MAX);
    ask(w, 2, 3);
    assert_string_equal(go(w), "S2");
    ask(w, 2, 9); /* one load for all of them */
    assert_string_equal(go(w), "");
    loaded(w, 2, 4000);
    assert_string_equal(go(w), "");
}

static void two_that_fit_are_up_together(void **state)
{
    struct world *w = *state;
    w->size[0] = w->size[1] = 5;
    ask(w, 0, 1);
    ask(w, 1, 1);
    assert_string_equal(go(w), "S0 S1");
}

static void two_that_do_not_fit_take_turns(void **state)
{
    struct world *w = *state;
    ask(w, 0, 1);
    assert_string_equal(go(w), "S0");
    w->now += 10;
    ask(w, 1, 1);
    assert_string_equal(go(w), ""); /* loading is not interrupted */
    loaded(w, 0, 1000);
    assert_string_equal(go(w), ""); /* its turn */
    done(w, 0, 100);
    assert_string_equal(go(w), ""); /* a moment for its next request */
    assert_true(demand_due(&w->d) == w->now + 1010 / 2); /* half of its load */
    w->now = demand_due(&w->d);
    assert_string_equal(go(w), "C0 X0");
    w->now += 500;
    assert_string_equal(go(w), ""); /* its memory is not back */
    stopped(w, 0);
    assert_string_equal(go(w), "S1");
}

static void a_running_stream_is_waited_for(void **state)
{
    struct world *w = *state;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    w->now += 60000; /* it streams for a minute, its turn is over */
    report(w);
    ask(w, 1, 1);
    assert_string_equal(go(w), "C0");
    w->now += 5;
    ask(w, 0, 5); /* who comes now waits */
    w->now += 100000;
    report(w);
    assert_string_equal(go(w), "");
    done(w, 0, 1);
    assert_string_equal(go(w), "X0");
    stopped(w, 0);
    assert_string_equal(go(w), "S1");
    loaded(w, 1, 1000);
    w->now += 4990; /* many ask for it, its turn is bounded */
    report(w);
    assert_string_equal(go(w), "");
    w->now += 20;
    report(w);
    assert_string_equal(go(w), "C1");
    done(w, 1, 1);
    assert_string_equal(go(w), "X1");
    stopped(w, 1);
    assert_string_equal(go(w), "S0");
}

/* The router has not heard yet that it is closed: something may be on its way. */
static void it_is_stopped_only_when_the_router_knows(void **state)
{
    struct world *w = *state;
    struct demand_action a;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    done(w, 0, 1);
    w->now += 10000;
    ask(w, 1, 1);
    assert_true(demand_next(&w->d, w->now, &a));
    assert_int_equal(a.what, DEMAND_CLOSE);
    demand_closed(&w->d, 0, 7);
    w->seq = 6;
    report(w);
    assert_false(demand_next(&w->d, w->now, &a));
    w->active[0] = 1; /* it was */
    w->seq = 7;
    report(w);
    assert_false(demand_next(&w->d, w->now, &a));
    done(w, 0, 1);
    assert_true(demand_next(&w->d, w->now, &a));
    assert_int_equal(a.what, DEMAND_STOP);
}

static void pinned_ones_stay(void **state)
{
    struct world *w = *state;
    w->d.units[0].pinned = true;
    w->d.units[0].idle_stop_ms = 1;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    done(w, 0, 1);
    w->now += 1000000;
    ask(w, 1, 1);
    assert_string_equal(go(w), "R1"); /* there never will be room */
    assert_false(demand_startable(&w->d, 1, w->now));
}

static void who_stood_idle_longest_for_its_load_goes(void **state)
{
    struct world *w = *state;
    w->size[0] = w->size[1] = w->size[2] = 3;
    w->size[3] = 4;
    for (size_t i = 0; i < 3; i++) {
        ask(w, i, 1);
        (void)go(w);
        loaded(w, i, i == 1 ? 60000 : 1000);
        done(w, i, 1);
    }
    w->now += 600000;
    ask(w, 3, 1);
    /* 0 stood idle longest and is loaded fast; 3 needs the room of one, 1 takes a minute to load */
    assert_string_equal(go(w), "C0 X0");
    stopped(w, 0);
    assert_string_equal(go(w), "S3");
}

static void no_more_go_than_must(void **state)
{
    struct world *w = *state;
    w->size[0] = 1;
    w->size[1] = 8;
    w->size[2] = 9;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 100);
    done(w, 0, 1);
    w->now += 1000;
    ask(w, 1, 1);
    (void)go(w);
    loaded(w, 1, 100);
    done(w, 1, 1);
    w->now += 100000;
    ask(w, 2, 1);
    assert_string_equal(go(w), "C1 X1"); /* 0 is worth less, but its room is not enough, and 2 fits beside it */
}

static void idle_ones_are_stopped(void **state)
{
    struct world *w = *state;
    w->d.units[0].idle_stop_ms = 10000;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    done(w, 0, 50000); /* work is no idleness */
    assert_string_equal(go(w), "");
    assert_int_equal(demand_due(&w->d), w->now + 10000);
    w->now += 10000;
    assert_string_equal(go(w), "C0 X0");
    stopped(w, 0);
    assert_string_equal(go(w), "");
    /* asked for while it closes: it stays */
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    done(w, 0, 1);
    w->now += 10000;
    struct demand_action a;
    assert_true(demand_next(&w->d, w->now, &a));
    assert_int_equal(a.what, DEMAND_CLOSE);
    w->open[0] = false;
    ask(w, 0, 1);
    assert_string_equal(go(w), "O0");
}

static void a_failed_load_is_tried_again_later_and_later(void **state)
{
    struct world *w = *state;
    uint64_t wait = DEMAND_RETRY_MIN_MS;
    for (unsigned i = 0; i < 12; i++) {
        ask(w, 0, 1);
        assert_string_equal(go(w), "S0");
        demand_failed(&w->d, 0, w->now);
        ask(w, 0, 0);
        ask(w, 0, 1); /* who comes now is not waited for */
        assert_string_equal(go(w), "");
        assert_false(demand_startable(&w->d, 0, w->now));
        assert_int_equal(demand_due(&w->d), w->now + wait);
        w->now += wait;
        assert_true(demand_startable(&w->d, 0, w->now));
        wait = wait * 2 > DEMAND_RETRY_MAX_MS ? DEMAND_RETRY_MAX_MS : wait * 2;
    }
    ask(w, 0, 1);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 10);
    assert_int_equal(w->d.units[0].failures, 0);
}

static void the_longest_wait_is_served_first(void **state)
{
    struct world *w = *state;
    ask(w, 0, 1);
    (void)go(w);
    w->now += 5;
    ask(w, 2, 1);
    w->now += 5;
    ask(w, 1, 7);
    loaded(w, 0, 100);
    done(w, 0, 1);
    w->now += 2000;
    assert_string_equal(go(w), "C0 X0");
    stopped(w, 0);
    assert_string_equal(go(w), "S2");
}

/* A small one that fits beside what is waited for need not wait for it; one that would take its room waits. */
static void small_ones_pass_where_there_is_room(void **state)
{
    struct world *w = *state;
    w->size[1] = 8;
    w->size[2] = 3;
    w->size[3] = 2;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    done(w, 0, 1);
    w->now += 10000;
    ask(w, 1, 1); /* needs the room of 0 */
    w->now += 5;
    ask(w, 2, 1);
    ask(w, 3, 1);
    assert_string_equal(go(w), "C0 X0 S3");
    stopped(w, 0);
    assert_string_equal(go(w), "S1");
}

static void preloads_take_what_is_free(void **state)
{
    struct world *w = *state;
    w->d.units[0].preload = w->d.units[1].preload = true;
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 1000);
    w->now += 1000000;
    assert_string_equal(go(w), ""); /* 1 was not worth the room of 0 */
    ask(w, 1, 1);
    assert_string_equal(go(w), "C0 X0");
}

static void groups_narrow(void **state)
{
    struct world *w = *state;
    w->memory = 100;
    w->exclusive = true;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 100);
    done(w, 0, 1);
    w->now += 5000;
    ask(w, 1, 1);
    ask(w, 2, 1);
    assert_string_equal(go(w), "C0 X0 S2");
    stopped(w, 0);
    assert_string_equal(go(w), "S1");
}

/* An endpoint of two: the one that is on its way, else the one that fits. */
static void one_of_several_will_do(void **state)
{
    struct world *w = *state;
    w->size[3] = 4;
    w->asked_of[2] = 2;
    ask(w, 0, 1);
    (void)go(w);
    loaded(w, 0, 1000);
    ask(w, 2, 1);
    assert_string_equal(go(w), "S3");
    w->now += 10;
    ask(w, 2, 4);
    assert_string_equal(go(w), "");
}

static void none_is_starved(void **state)
{
    struct world *w = *state;
    /* three that exclude each other, all asked for all the time: each is served again and again */
    unsigned served[3] = {0};
    for (size_t i = 0; i < 3; i++)
        ask(w, i, 5);
    for (unsigned step = 0; step < 2000; step++) {
        (void)go(w);
        for (size_t i = 0; i < 3; i++) {
            enum demand_state s = w->d.units[i].state;
            if (s == DEMAND_LOADING) {
                loaded(w, i, 300);
                served[i]++;
            } else if (s == DEMAND_STOPPING) {
                stopped(w, i);
            } else if (s == DEMAND_CLOSING) {
                w->active[i] = 0;
            } else if (s == DEMAND_READY) {
                w->active[i] = 5;
            }
            if (!w->open[i] && !w->waiting[i]) {
                w->waiting[i] = 5;
                w->since[i] = w->now;
            }
        }
        w->now += 100;
        report(w);
    }
    for (size_t i = 0; i < 3; i++)
        assert_in_range(served[i], 8, 16); /* about 200 s in turns of 5 s */
    assert_in_range(served[0] - served[2] + 1, 0, 2);
}

/* Unit 0 was ready for ms and has ended by itself. */
static void died(struct world *w, uint64_t ms)
{
    w->now += ms;
    w->active[0] = 0;
    w->open[0] = false;
    demand_died(&w->d, 0, w->now);
    report(w);
}

static void what_dies_later_starts_for_who_asks_and_holds_no_place(void **state)
{
    struct world *w = *state;
    ask(w, 0, 1);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 500);
    died(w, 100);
    assert_string_equal(go(w), ""); /* nobody asks */
    ask(w, 1, 1);
    assert_string_equal(go(w), "S1");
    loaded(w, 1, 500);
    done(w, 1, 100000);
    ask(w, 0, 1);
    assert_string_equal(go(w), "C1 X1");
    stopped(w, 1);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 500);
    died(w, 100); /* twice in a row: it waits */
    assert_false(demand_startable(&w->d, 0, w->now));
    assert_true(demand_startable(&w->d, 0, w->now + DEMAND_RETRY_MIN_MS));
    w->now += DEMAND_RETRY_MIN_MS;
    ask(w, 0, 1);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 500);
    died(w, 100);
    assert_false(demand_startable(&w->d, 0, w->now + DEMAND_RETRY_MIN_MS));
    assert_true(demand_startable(&w->d, 0, w->now + 2 * DEMAND_RETRY_MIN_MS));
    w->now += 2 * DEMAND_RETRY_MIN_MS;
    ask(w, 0, 1);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 500);
    died(w, DEMAND_STABLE_MS);
    assert_true(demand_startable(&w->d, 0, w->now));
}

static void a_pinned_one_that_dies_comes_back(void **state)
{
    struct world *w = *state;
    w->d.units[0].pinned = true;
    ask(w, 0, 1);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 500);
    died(w, 100);
    assert_string_equal(go(w), "S0");
    loaded(w, 0, 500);
    died(w, 100);
    assert_string_equal(go(w), "");
    assert_true(demand_due(&w->d) == w->now + DEMAND_RETRY_MIN_MS);
    w->now += DEMAND_RETRY_MIN_MS;
    assert_string_equal(go(w), "S0");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(nothing_is_started_before_it_is_asked_for), T(two_that_fit_are_up_together), T(two_that_do_not_fit_take_turns), T(a_running_stream_is_waited_for),
        T(it_is_stopped_only_when_the_router_knows), T(pinned_ones_stay), T(who_stood_idle_longest_for_its_load_goes), T(no_more_go_than_must), T(idle_ones_are_stopped),
        T(a_failed_load_is_tried_again_later_and_later), T(the_longest_wait_is_served_first), T(small_ones_pass_where_there_is_room), T(preloads_take_what_is_free), T(groups_narrow),
        T(one_of_several_will_do), T(none_is_starved), T(what_dies_later_starts_for_who_asks_and_holds_no_place), T(a_pinned_one_that_dies_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
