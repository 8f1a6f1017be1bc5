/* SPDX-License-Identifier: MIT
 *
 * proxy, private to sched.c, queue.c and policy.c: who waits in which order, and what a policy sees of the replicas when a request asks for one.
 */
#pragma once

#include "place_int.h"

#define SCHED_VIEWS_MAX 1024

/* ---- queue.c ---------------------------------------------------------------------------------------------- */

#define SCHED_RANK_FIRST 0 /* of who is entered again */
#define QUEUE_KIN 512      /* places of the table of kin; a power of two */

struct sched_queue {
    struct sched_ticket *first, *last;
    size_t n;
    struct {
        uint64_t rank;
        struct sched_ticket *last; /* of that rank */
    } ranks[SCHED_QUEUE_MAX + 1];  /* those in the queue, rising: each ticket may have another one, and all that come again have the first */
    size_t n_ranks;
    struct sched_kin *kin[QUEUE_KIN];
};

/* Gives t its rank, counted from `rank`, which is above SCHED_RANK_FIRST, and its place. The queue must have less than SCHED_QUEUE_MAX, or t comes again. */
void sched_queue_add(struct sched_queue *q, struct sched_ticket *t, uint64_t rank, bool again);
void sched_queue_remove(struct sched_queue *q, struct sched_ticket *t);

/* ---- sched.c and policy.c ----------------------------------------------------------------------------------- */

struct sched {
    struct affinity *affinity;
    struct sched_queue queue;
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
