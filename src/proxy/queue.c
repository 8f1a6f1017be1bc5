/* SPDX-License-Identifier: MIT
 *
 * Who waits, in order of rank. A rank is that of the last ticket handed out plus how many of the same owner wait already, or, without an owner, of the same flow: the more somebody has in the queue, the
 * further back is his next one. An owner's places are his, in whatever order: the conversation that has fewer waiting comes first.
 *
 * Clients choose how many of them wait and as whom, and every entry is made under the lock of all loops. So nobody walks the queue to enter it: tickets of an owner, and those of each flow, are counted as kin,
 * found by hash; and the last ticket of each rank is known, in order of ranks. What is walked is an owner's own list, and that only when a conversation of his has to move.
 *
 * Nothing is allocated: a ticket has room for its kin's count, which lies in one of those that it counts.
 */
#include <assert.h>

#include "sched_int.h"

/* ---- kin --------------------------------------------------------------------------------------------------- */

/* The place in the table of who has this owner and flow (0: all of the owner), or where he would be. */
static struct sched_kin **find_kin(struct sched_queue *q, uint64_t owner, uint64_t flow)
{
    uint64_t hash = (owner ^ flow << 1) * 0x9e3779b97f4a7c15u;
    struct sched_kin **at = &q->kin[hash >> 32 & (QUEUE_KIN - 1)];
    while (*at && ((*at)->owner != owner || (*at)->flow != flow))
        at = &(*at)->next;
    return at;
}

static struct sched_kin **kin_of(struct sched_queue *q, const struct sched_ticket *t, enum sched_kinship k)
{
    return find_kin(q, t->owner, k == SCHED_BY_FLOW ? t->flow : 0);
}

static bool has_kin(const struct sched_ticket *t, enum sched_kinship k)
{
    return (k == SCHED_BY_FLOW ? t->flow : t->owner) != 0;
}

/* Behind `before`; NULL: first. */
static void link_kin(struct sched_kin *kin, struct sched_ticket *t, enum sched_kinship k, struct sched_ticket *before)
{
    struct sched_link *l = &t->kinship[k].link;
    l->before = before;
    l->next = before ? before->kinship[k].link.next : kin->first;
    *(l->before ? &l->before->kinship[k].link.next : &kin->first) = t;
    *(l->next ? &l->next->kinship[k].link.before : &kin->last) = t;
}

static void unlink_kin(struct sched_kin *kin, struct sched_ticket *t, enum sched_kinship k)
{
    struct sched_link *l = &t->kinship[k].link;
    *(l->before ? &l->before->kinship[k].link.next : &kin->first) = l->next;
    *(l->next ? &l->next->kinship[k].link.before : &kin->last) = l->before;
}

/* An owner's own are in the order of the queue; those that come again are before all others, in any order. */
static void join_kin(struct sched_queue *q, struct sched_ticket *t, enum sched_kinship k)
{
    struct sched_kin **at = kin_of(q, t, k), *kin = *at;
    if (!kin) {
        kin = *at = &t->kinship[k].kin;
        *kin = (struct sched_kin){.owner = t->owner, .flow = k == SCHED_BY_FLOW ? t->flow : 0};
    }
    struct sched_ticket *before = t->rank == SCHED_RANK_FIRST ? NULL : kin->last;
    while (k == SCHED_BY_OWNER && before && before->rank > t->rank)
        before = before->kinship[k].link.before;
    link_kin(kin, t, k, before);
    kin->n++;
    if (t->place > kin->most)
        kin->most = t->place;
}

static void leave_kin(struct sched_queue *q, struct sched_ticket *t, enum sched_kinship k)
{
    struct sched_kin **at = kin_of(q, t, k), *kin = *at;
    assert(kin); /* it counts t */
    unlink_kin(kin, t, k);
    kin->n--;
    if (kin != &t->kinship[k].kin)
        return;
    struct sched_ticket *heir = kin->first;
    if (heir) {
        heir->kinship[k].kin = *kin;
        *at = &heir->kinship[k].kin;
    } else {
        *at = kin->next;
    }
}

/* ---- order ------------------------------------------------------------------------------------------------- */

/* How many of the ranks in the queue are at most that one. */
static size_t ranks_to(const struct sched_queue *q, uint64_t rank)
{
    size_t from = 0, to = q->n_ranks;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (q->ranks[middle].rank <= rank)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Behind all of its rank. */
static void link_ranked(struct sched_queue *q, struct sched_ticket *t)
{
    size_t i = ranks_to(q, t->rank);
    struct sched_ticket *before = i ? q->ranks[i - 1].last : NULL;
    if (!before || before->rank != t->rank) {
        memmove(q->ranks + i + 1, q->ranks + i, (q->n_ranks++ - i) * sizeof q->ranks[0]);
        q->ranks[i++].rank = t->rank;
    }
    q->ranks[i - 1].last = t;
    t->before = before;
    t->next = before ? before->next : q->first;
    *(t->before ? &t->before->next : &q->first) = t;
    *(t->next ? &t->next->before : &q->last) = t;
}

static void unlink_ranked(struct sched_queue *q, struct sched_ticket *t)
{
    size_t i = ranks_to(q, t->rank) - 1;
    if (q->ranks[i].last == t && t->before && t->before->rank == t->rank)
        q->ranks[i].last = t->before;
    else if (q->ranks[i].last == t)
        memmove(q->ranks + i, q->ranks + i + 1, (--q->n_ranks - i) * sizeof q->ranks[0]);
    *(t->before ? &t->before->next : &q->first) = t->next;
    *(t->next ? &t->next->before : &q->last) = t->before;
    t->next = t->before = NULL;
}

/* t, which has no place yet, takes that of `o` and its rank, and o has none then, and t's rank. */
static void take_place(struct sched_queue *q, struct sched_kin *own, struct sched_ticket *t, struct sched_ticket *o)
{
    uint64_t rank = o->rank;
    size_t i = ranks_to(q, rank) - 1;
    if (q->ranks[i].last == o)
        q->ranks[i].last = t;
    o->rank = t->rank;
    t->rank = rank;
    t->before = o->before;
    t->next = o->next;
    *(t->before ? &t->before->next : &q->first) = t;
    *(t->next ? &t->next->before : &q->last) = t;
    o->next = o->before = NULL;
    struct sched_ticket *before = o->kinship[SCHED_BY_OWNER].link.before;
    unlink_kin(own, o, SCHED_BY_OWNER);
    link_kin(own, t, SCHED_BY_OWNER, before);
}

/* The new one takes the place of the first of its owner whose conversation is further along, which moves to his next place, and so on. Returns who is without a place at the end. */
static struct sched_ticket *move_up(struct sched_queue *q, struct sched_ticket *t)
{
    struct sched_kin *own = *kin_of(q, t, SCHED_BY_OWNER);
    if (!own || own->most <= t->place)
        return t;
    for (struct sched_ticket *o = own->first, *next; o; o = next) {
        next = o->kinship[SCHED_BY_OWNER].link.next;
        if (o->place <= t->place || o->rank == SCHED_RANK_FIRST)
            continue;
        take_place(q, own, t, o);
        t = o;
    }
    own->most = t->place; /* those that were further along have left */
    return t;
}

static size_t count_kin(struct sched_queue *q, const struct sched_ticket *t, enum sched_kinship k)
{
    const struct sched_kin *kin = has_kin(t, k) ? *kin_of(q, t, k) : NULL;
    return kin ? kin->n : 0;
}

/* ---- for the scheduler ------------------------------------------------------------------------------------- */

void sched_queue_add(struct sched_queue *q, struct sched_ticket *t, uint64_t rank, bool again)
{
    t->place = again ? 0 : count_kin(q, t, SCHED_BY_FLOW);
    t->rank = again ? SCHED_RANK_FIRST : rank + count_kin(q, t, t->owner ? SCHED_BY_OWNER : SCHED_BY_FLOW);
    if (has_kin(t, SCHED_BY_FLOW))
        join_kin(q, t, SCHED_BY_FLOW);
    if (t->owner && !again)
        t = move_up(q, t);
    if (t->owner)
        join_kin(q, t, SCHED_BY_OWNER);
    link_ranked(q, t);
    q->n++;
}

void sched_queue_remove(struct sched_queue *q, struct sched_ticket *t)
{
    unlink_ranked(q, t);
    for (enum sched_kinship k = 0; k < SCHED_N_KINSHIPS; k++)
        if (has_kin(t, k))
            leave_kin(q, t, k);
    q->n--;
}
