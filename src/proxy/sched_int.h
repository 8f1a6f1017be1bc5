/* SPDX-License-Identifier: MIT
 *
 * proxy, private to sched.c and policy.c: what a policy sees of the replicas when a request asks for one.
 */
#pragma once

#include "place_int.h"

#define SCHED_VIEWS_MAX 1024

struct sched {
    struct affinity *affinity;
    struct sched_ticket *first, *last;
    size_t waiting;
    uint64_t turns, rank, due;
    uint64_t walk;      /* counts walks over the queue */
    uint64_t walked_ms; /* the last one to its end */
    double gap_ms;  /* between the end of a turn and the next one of its conversation */
    double returns; /* share of held slots whose conversation came back in time */
};

/* A candidate that may have the request. */
struct sched_view {
    struct sched_replica *replica;
    size_t index;
    bool free;       /* a slot is there for this ticket */
    bool in_slot;    /* the match is what its slot was used for last */
    const struct affinity_match *match;
    uint64_t cached; /* tokens that should come from its cache */
    double cost_ms;  /* to read the rest of the prompt */
};

enum sched_verdict { SCHED_GO, SCHED_WAIT, SCHED_NOBODY };

struct sched_choice {
    enum sched_verdict verdict;
    enum sched_decision decision;
    bool full; /* SCHED_WAIT: there is no room for anybody at any candidate */
    size_t chosen, n;
    uint64_t due; /* SCHED_WAIT: when to ask again at the latest */
    size_t n_matches;
    struct affinity_match matches[AFFINITY_MATCHES];
    struct sched_view views[SCHED_VIEWS_MAX];
};

void sched_choose(struct sched *s, struct sched_ticket *t, uint64_t now_ms, struct sched_choice *ret);
/* Milliseconds until that replica should have a free slot. */
double sched_wait_ms(const struct sched_replica *r);
static inline bool sched_is(const struct sched_ticket *t, const char *policy)
{
    return str_eq_c(str_of(t->policy), policy);
}
