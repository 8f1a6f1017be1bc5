/* SPDX-License-Identifier: MIT
 *
 * What the tests of the scheduler share: replicas, tickets and a clock that are plain variables. A ticket is entered, handed out, and done with the tokens that a cache gave.
 */
#pragma once

#include <base/base.h>
#include <proxy/place_int.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REPLICAS 3
#define TICKETS 64

static struct affinity *aff;
static struct sched *sched;
static struct sched_replica reps[REPLICAS], *cands[REPLICAS];
static struct sched_ticket t[TICKETS];
static uint64_t tried[TICKETS], chains[TICKETS][8], now;

static inline int open_sched(void **state)
{
    (void)state;
    aff = affinity_new(1 << 20);
    sched = sched_new(aff);
    now = 1000;
    memset(reps, 0, sizeof reps);
    memset(t, 0, sizeof t);
    memset(tried, 0, sizeof tried);
    for (uint32_t i = 0; i < REPLICAS; i++) {
        reps[i].id = i + 1;
        cands[i] = &reps[i];
    }
    return 0;
}

static inline int close_sched(void **state)
{
    (void)state;
    for (size_t i = 0; i < REPLICAS; i++)
        sched_replica_release(&reps[i]);
    sched = sched_free(sched);
    aff = affinity_free(aff);
    return 0;
}

static inline void replicas(size_t n, unsigned slots)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(sched_replica_set(&reps[i], true, 1, slots, true), 0);
}

static inline struct sched_ticket *ticket(size_t i, const char *policy, size_t n, uint64_t tokens)
{
    t[i] = (struct sched_ticket){.policy = policy, .candidates = cands, .n_candidates = n, .tried = &tried[i], .chain = chains[i], .tokens = tokens, .leased = true, .seq = i + 1};
    tried[i] = 0;
    return &t[i];
}

/* Turn `turn` of conversation c, counted from 1. */
static inline struct sched_ticket *turn(size_t i, const char *policy, size_t n, uint64_t c, size_t turns, uint64_t tokens)
{
    struct sched_ticket *k = ticket(i, policy, n, tokens);
    for (size_t m = 0; m < turns; m++)
        chains[i][m] = c * 1000 + m + 1;
    k->n_chain = turns;
    k->flow = c;
    return k;
}

static inline struct sched_ticket *next(void)
{
    bool expired;
    return sched_next(sched, now, &expired);
}

static inline void done(struct sched_ticket *k, uint64_t cached)
{
    sched_proved(k);
    sched_leave(sched, k, &(struct sched_outcome){.result = SCHED_OK, .content = true, .counted = true, .prompt_n = k->tokens - cached, .cached_n = cached, .prompt_ms = (double)(k->tokens - cached)},
                now);
}

static inline void go(struct sched_ticket *k)
{
    assert_int_equal(sched_enter(sched, k, now), 0);
    assert_ptr_equal(next(), k);
    assert_non_null(k->replica);
}

#define SCHED_TEST(f) cmocka_unit_test_setup_teardown(f, open_sched, close_sched)
