/* SPDX-License-Identifier: MIT
 *
 * proxy: the order of the queue. What the rules say is written down here once more as plainly as it can be, with an array that is walked for everything, and the dice play both: tickets enter, are handed out,
 * come again and leave, of few owners and few conversations or of many. After each step both have the same tickets in the same order.
 */
#include <base/base.h>
#include <proxy/place_int.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define PLAYERS 4000 /* many more than may wait */

/* One ticket, and a replica that is his alone, so that the test says who is handed out. */
struct player {
    struct sched_ticket ticket;
    struct sched_replica replica;
    struct sched_replica *candidate;
    uint64_t tried;
};
static struct player *players;
static struct sched *sched;
static uint64_t dice, now;

static size_t roll(size_t n)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (size_t)(dice % n);
}

/* ---- the rules ------------------------------------------------------------------------------------------ */

struct waiting {
    size_t player;
    uint64_t rank, place, owner, flow;
};
static struct waiting line[PLAYERS];
static size_t n_line;
static uint64_t last_rank; /* of who was handed out */
static size_t refused;

static void insert(size_t at, struct waiting w)
{
    memmove(line + at + 1, line + at, (n_line++ - at) * sizeof line[0]);
    line[at] = w;
}

static void drop(size_t at)
{
    memmove(line + at, line + at + 1, (--n_line - at) * sizeof line[0]);
}

static void plain_enter(size_t player, bool again)
{
    const struct sched_ticket *t = &players[player].ticket;
    struct waiting w = {.player = player, .rank = again ? 0 : last_rank, .owner = t->owner, .flow = t->flow};
    for (size_t i = 0; i < n_line && !again; i++) {
        bool flow = w.flow && line[i].flow == w.flow && line[i].owner == w.owner;
        w.place += flow;
        w.rank += w.owner ? line[i].owner == w.owner : flow;
    }
    /* an owner's places are his: who is less far along takes them, one after the other */
    for (size_t i = 0; i < n_line && w.owner && !again; i++)
        if (line[i].owner == w.owner && line[i].place > w.place && line[i].rank) {
            struct waiting o = line[i];
            line[i] = w;
            line[i].rank = o.rank;
            o.rank = w.rank;
            w = o;
        }
    size_t at = n_line;
    while (at > 0 && line[at - 1].rank > w.rank)
        at--;
    insert(at, w);
}

/* ---- both ------------------------------------------------------------------------------------------------- */

static void same(void)
{
    const struct sched_ticket *t = sched_first(sched), *before = NULL;
    assert_int_equal(sched_waiting(sched), n_line);
    for (size_t i = 0; i < n_line; i++) {
        assert_ptr_equal(t, &players[line[i].player].ticket);
        assert_ptr_equal(t->before, before);
        assert_int_equal(t->rank, line[i].rank);
        assert_int_equal(t->place, line[i].place);
        before = t;
        t = t->next;
    }
    assert_null(t);
}

static void enter(size_t i, uint64_t owners, uint64_t flows)
{
    struct player *p = &players[i];
    p->ticket = (struct sched_ticket){.policy = "roundrobin", .candidates = &p->candidate, .n_candidates = 1, .tried = &p->tried, .leased = true, .owner = roll(owners), .flow = roll(flows)};
    p->candidate = &p->replica;
    p->replica.startable = true; /* and not ready */
    int rc = sched_enter(sched, &p->ticket, now);
    refused += rc < 0;
    assert_int_equal(rc, n_line >= SCHED_QUEUE_MAX ? -EBUSY : 0);
    if (rc == 0)
        plain_enter(i, false);
}

static void hand_out(size_t at)
{
    struct player *p = &players[line[at].player];
    bool expired;
    p->replica.ready = true;
    assert_ptr_equal(sched_next(sched, now, &expired), &p->ticket);
    p->replica.ready = false;
    last_rank = line[at].rank > last_rank ? line[at].rank : last_rank;
    drop(at);
}

static void leave(size_t at)
{
    sched_leave(sched, &players[line[at].player].ticket, &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    drop(at);
}

/* A running one ends, or fails and comes again. */
static void end(size_t i)
{
    bool again = roll(3) == 0;
    sched_leave(sched, &players[i].ticket, &(struct sched_outcome){.result = again ? SCHED_FAILED : SCHED_OK}, now);
    if (!again)
        return;
    players[i].replica.suspect_ms = 0;
    assert_int_equal(sched_enter(sched, &players[i].ticket, now), 0);
    plain_enter(i, true);
}

static void step(size_t most, uint64_t owners, uint64_t flows)
{
    size_t i = roll(PLAYERS), what = roll(8);
    now += roll(3);
    if (players[i].ticket.state == SCHED_RUNNING)
        end(i);
    else if (players[i].ticket.state == SCHED_OUT && n_line < most && what < 6)
        enter(i, owners, flows);
    else if (n_line && what == 6)
        leave(roll(n_line));
    else if (n_line)
        hand_out(roll(4) ? roll(n_line < 4 ? n_line : 4) : roll(n_line)); /* mostly the first ones */
    same();
}

static void play(size_t steps, size_t most, uint64_t owners, uint64_t flows)
{
    struct affinity *a = affinity_new(1 << 20);
    players = calloc(PLAYERS, sizeof *players);
    sched = sched_new(a);
    assert_true(a && players && sched);
    for (uint32_t i = 0; i < PLAYERS; i++) {
        players[i].replica.id = i + 1;
        assert_int_equal(sched_replica_set(&players[i].replica, false, 1, 1, false), 0);
    }
    n_line = 0;
    last_rank = 1;
    now = 1000;
    dice = 0x2545f4914f6cdd1du ^ owners << 32 ^ flows;
    for (size_t i = 0; i < steps; i++)
        step(most, owners, flows);
    while (n_line)
        leave(roll(n_line));
    same();
    for (size_t i = 0; i < PLAYERS; i++)
        sched_replica_release(&players[i].replica);
    sched = sched_free(sched);
    free(players);
    affinity_free(a);
}

/* Owner 0 has none, and flow 0 is none. */
static void order_is_as_the_rules_say(void **state)
{
    (void)state;
    static const uint64_t owners[] = {1, 2, 3, 40}, flows[] = {1, 2, 5, 1000};
    for (size_t i = 0; i < BASE_COUNT(owners); i++)
        for (size_t k = 0; k < BASE_COUNT(flows); k++)
            play(3000, k % 2 ? 24 : 200, owners[i], flows[k]);
}

static void order_holds_when_it_is_full(void **state)
{
    (void)state;
    refused = 0;
    play(6000, PLAYERS, 3, 400);
    assert_true(refused > 0);
    refused = 0;
    play(6000, PLAYERS, 1, 2); /* nearly as many ranks as tickets */
    assert_true(refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_as_the_rules_say),
        cmocka_unit_test(order_holds_when_it_is_full),
    };
    return cmocka_run_group_tests_name("proxy_queue", tests, NULL, NULL);
}
