/* SPDX-License-Identifier: MIT
 *
 * proxy: the policies against each other, in counted prompt tokens and assignments and never by the clock: a burst of cold prompts, warm turns after it, one scaffold in front of everything, and
 * more conversations than the replicas hold. What an engine would find in its cache is played here: which conversation each slot, or each replica, was used for.
 */
#include "sched_rig.h"

static const char *const policy_names[] = {"roundrobin", "least", "hash", "sticky", "counter", "adaptive"};
enum { ROBIN, LEAST, HASH, STICKY, COUNTER, ADAPTIVE, N_POLICIES };

/* ---- what was measured on two real replicas ------------------------------------------------------------------- */

struct tally {
    unsigned requests[2]; /* of the cold burst */
    uint64_t cold, reread; /* prompt tokens: of the busier replica in the burst; read again in the warm turns */
};

#define BURST 16
#define LONG 90000

/* 16 cold prompts at once, then one warm turn of each. Replicas read 10 tokens in a millisecond; what they hold is a set of conversations. */
static struct tally measure(const char *policy, size_t n)
{
    bool holds[2][BURST] = {0};
    struct tally r = {0};
    uint64_t read[2] = {0};
    close_sched(NULL);
    open_sched(NULL);
    replicas(n, BURST);
    for (size_t i = 0; i < BURST; i++)
        go(turn(i, policy, n, i + 1, 1, LONG));
    for (size_t i = 0; i < BURST; i++) {
        size_t at = (size_t)(t[i].replica - reps);
        r.requests[at]++;
        read[at] += LONG;
        holds[at][i] = true;
        now += 10;
        done(&t[i], 0);
    }
    r.cold = read[0] > read[1] ? read[0] : read[1];
    now += 60000;
    for (size_t i = 0; i < BURST; i++) {
        size_t c = (i * 7 + 3) % BURST; /* not in the order in which they came */
        go(turn(i, policy, n, c + 1, 2, LONG + 100));
        size_t at = (size_t)(t[i].replica - reps);
        uint64_t cached = holds[at][c] ? LONG : 0;
        r.reread += LONG + 100 - cached;
        done(&t[i], cached);
        now += 10;
    }
    return r;
}

static void policies_in_order(void **state)
{
    (void)state;
    struct tally one = measure("adaptive", 1), all[N_POLICIES];
    print_message("%-12s %9s %14s %14s\n", "policy", "requests", "cold, busier", "warm, read");
    for (size_t i = 0; i < N_POLICIES; i++) {
        all[i] = measure(policy_names[i], 2);
        print_message("%-12s %5u %3u %14llu %14llu\n", policy_names[i], all[i].requests[0], all[i].requests[1], (unsigned long long)all[i].cold, (unsigned long long)all[i].reread);
    }
    /* the burst: spread as turns spread it. All at one replica is twice as slow, a hash lies between by chance, and to place by load gains nothing over the counter */
    assert_int_equal(all[ROBIN].requests[0], BURST / 2);
    assert_int_equal(all[ADAPTIVE].requests[0], BURST / 2);
    assert_int_equal(all[COUNTER].requests[0], BURST / 2);
    assert_int_equal(all[ADAPTIVE].cold, all[ROBIN].cold);
    assert_int_equal(one.cold, 2 * all[ADAPTIVE].cold);
    assert_true(all[HASH].cold >= all[ADAPTIVE].cold && all[HASH].cold <= one.cold);
    assert_true(all[LEAST].cold >= all[COUNTER].cold && all[STICKY].cold >= all[COUNTER].cold);
    /* warm turns: what is new is read, and nothing else; who does not know its conversations reads them again */
    assert_int_equal(all[STICKY].reread, BURST * 100);
    assert_int_equal(all[ADAPTIVE].reread, all[STICKY].reread);
    assert_int_equal(all[COUNTER].reread, all[STICKY].reread);
    assert_int_equal(all[HASH].reread, all[STICKY].reread);
    assert_true(all[ROBIN].reread > 2 * all[ADAPTIVE].reread && all[LEAST].reread > 2 * all[ADAPTIVE].reread);
    assert_true(sched_policy_known(STR("least")) && !sched_policy_known(STR("")) && !sched_policy_known(STR("random")));
}

/* Cold prompts of very different lengths: turns put as many at each, and no policy that goes by the number of requests does better. */
static uint64_t busier(const char *policy)
{
    uint64_t read[2] = {0};
    close_sched(NULL);
    open_sched(NULL);
    replicas(2, BURST);
    for (size_t i = 0; i < BURST; i++) {
        go(turn(i, policy, 2, i + 1, 1, i % 3 ? 4000 : LONG));
        read[t[i].replica - reps] += t[i].tokens;
    }
    return read[0] > read[1] ? read[0] : read[1];
}

static void load_has_lost_to_the_counter(void **state)
{
    (void)state;
    assert_true(busier("adaptive") <= busier("roundrobin"));
    assert_true(busier("counter") <= busier("least"));
    assert_true(busier("counter") <= busier("sticky"));
}

/* A replica that stops in the middle of the burst: each of its requests goes to the other one, once, and what comes later never asks it. */
static void one_stops_in_the_burst(void **state)
{
    (void)state;
    unsigned moved = 0;
    replicas(2, BURST);
    for (size_t i = 0; i < 6; i++)
        go(turn(i, "adaptive", 2, i + 1, 1, LONG));
    for (size_t i = 0; i < 6; i++)
        if (t[i].replica == &reps[0]) {
            sched_leave(sched, &t[i], &(struct sched_outcome){.result = SCHED_FAILED}, now);
            tried[i] |= UINT64_C(1) << t[i].index;
            go(&t[i]);
            assert_ptr_equal(t[i].replica, &reps[1]);
            moved++;
        }
    assert_int_equal(moved, 3);
    assert_int_equal(reps[0].failures, 1); /* what fails together is one failure */
    for (size_t i = 6; i < 10; i++) {
        go(turn(i, "adaptive", 2, i + 1, 1, LONG));
        assert_ptr_equal(t[i].replica, &reps[1]);
    }
    for (size_t i = 0; i < 10; i++)
        done(&t[i], 0);
    assert_int_equal(reps[0].active + reps[1].active, 0);
}

/* ---- one agent's scaffold in front of every conversation ---------------------------------------------------------- */

#define SCAFFOLD 20000

/* `count` conversations of three turns, whose scaffold every replica has once it read it; replicas that are `fast` read sooner. The most requests of one over the mean, in percent. */
static unsigned pile(size_t n, size_t count, bool fast)
{
    unsigned requests[REPLICAS] = {0}, most = 0;
    bool scaffold[REPLICAS] = {0};
    close_sched(NULL);
    open_sched(NULL);
    replicas(n, 2);
    if (fast)
        reps[0].prefill_tps = 1.3 * SCHED_TPS_GUESS;
    for (size_t step = 0; step < 3; step++)
        for (size_t c = 0; c < count; c++) {
            struct sched_ticket *k = turn(c % 2, "adaptive", n, c + 1, step + 1, SCAFFOLD + 200 * (step + 1));
            go(k);
            size_t at = (size_t)(k->replica - reps);
            requests[at]++;
            done(k, step ? SCAFFOLD + 200 * step : scaffold[at] ? SCAFFOLD : 0);
            scaffold[at] = true;
            now += 3000;
        }
    for (size_t i = 0; i < n; i++)
        most = requests[i] > most ? requests[i] : most;
    return (unsigned)(100 * most * n / (3 * count));
}

static void shared_scaffold_does_not_pile_up(void **state)
{
    (void)state;
    for (size_t n = 2; n <= REPLICAS; n++) {
        assert_in_range(pile(n, 48, false), 100, 130);
        assert_in_range(pile(n, 48, true), 100, 130);
    }
}

/* ---- more conversations than there is room for ------------------------------------------------------------------------ */

#define SLOTS 4
#define ROUNDS 8

struct wall {
    uint64_t prompt, cached;
    unsigned moved;
    struct sched_room room;
};

/* `count` conversations that take turns over and over at two replicas which keep nothing but what is in their slots. */
static struct wall circle(size_t count, const char *policy)
{
    size_t in[2][SLOTS] = {0}, home[TICKETS] = {0};
    struct wall w = {0};
    close_sched(NULL);
    open_sched(NULL);
    replicas(2, SLOTS);
    for (size_t i = 0; i < 2; i++) {
        reps[i].context = 4 * SLOTS * 1000;
        reps[i].kept = 0.1;
    }
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t c = 0; c < count; c++) {
            struct sched_ticket *k = turn(c, policy, 2, c + 1, round + 1, 4000);
            go(k);
            size_t at = (size_t)(k->replica - reps);
            assert_true(k->slot < SLOTS);
            uint64_t cached = in[at][k->slot] == c + 1 && k->n_chain > 1 ? 3800 : 0;
            in[at][k->slot] = c + 1;
            w.moved += home[c] && home[c] != at + 1;
            home[c] = at + 1;
            if (k->n_chain > 1) {
                w.prompt += 4000;
                w.cached += cached;
            }
            now += 400;
            done(k, cached);
            now += 600;
        }
    sched_room(sched, cands, 2, now, &w.room);
    return w;
}

static void says_so_at_the_wall(void **state)
{
    (void)state;
    struct wall fits = circle(2 * SLOTS, "adaptive");
    assert_false(fits.room.crowded);
    assert_int_equal(fits.room.slots, 2 * SLOTS);
    assert_int_equal(fits.room.capacity, 32000);
    assert_int_equal(fits.cached * 4000, fits.prompt * 3800); /* everything that can be */
    assert_int_equal(fits.moved, 0);
    struct wall over = circle(3 * SLOTS, "adaptive");
    assert_true(over.room.crowded);
    assert_true(over.room.working_set > over.room.capacity);
    assert_true(over.room.conversations >= 3 * SLOTS);
    /* The one that was used longest ago is the next to come: to take its slot every time would leave nothing of any. */
    print_message("12 conversations in turn in 8 slots: %llu of %llu prompt tokens from the cache, %u moves\n", (unsigned long long)over.cached, (unsigned long long)over.prompt, over.moved);
    assert_true(over.cached * 100 > over.prompt * 30);
    assert_true(over.moved <= 3 * SLOTS);
    /* No policy wins: what one keeps, the others keep too, or less. */
    for (size_t i = 0; i < N_POLICIES; i++) {
        struct wall other = circle(3 * SLOTS, policy_names[i]);
        assert_true(other.room.crowded);
        assert_true(other.cached <= over.cached + over.cached / 10);
    }
}

/* What is kept beside the slots is room too. */
static void ram_is_room(void **state)
{
    (void)state;
    struct sched_room room;
    replicas(1, 1);
    reps[0].context = 1000;
    for (size_t i = 0; i < 4; i++) {
        go(turn(i, "adaptive", 1, i + 1, 1, 600));
        done(&t[i], 0);
        now += 1000;
    }
    sched_room(sched, cands, 1, now, &room);
    assert_int_equal(room.working_set, 2400);
    assert_int_equal(room.conversations, 4);
    assert_false(room.crowded); /* it is not known yet what comes back from RAM */
    reps[0].kept = 0.1;
    sched_room(sched, cands, 1, now, &room);
    assert_true(room.crowded);
    /* a next turn takes the place of the last one, and who stays away is forgotten */
    go(turn(4, "adaptive", 1, 1, 2, 700));
    done(&t[4], 600);
    sched_room(sched, cands, 1, now, &room);
    assert_int_equal(room.working_set, 2500);
    assert_int_equal(room.conversations, 4);
    now += AFFINITY_LIVE_MS - 500;
    sched_room(sched, cands, 1, now, &room);
    assert_int_equal(room.working_set, 700);
    assert_int_equal(room.conversations, 1);
    assert_false(room.crowded);
    now += 1000;
    sched_room(sched, cands, 1, now, &room);
    assert_int_equal(room.working_set + room.conversations, 0);
    /* unknown is not full */
    reps[0].context = 0;
    sched_room(sched, cands, 1, now, &room);
    assert_int_equal(room.capacity, 0);
}

/* Tickets of a group whose replicas are full are passed over together, those of others are not; order and time hold as without groups. */
static void groups_are_passed_over(void **state)
{
    (void)state;
    struct sched_group full = {0}, other = {0};
    replicas(2, 1);
    for (size_t i = 0; i < 40; i++) { /* all for the first replica, the last one of no group */
        ticket(i, "roundrobin", 1, 10);
        t[i].group = i < 39 ? &full : NULL;
        assert_int_equal(sched_enter(sched, &t[i], now), 0);
    }
    assert_int_equal(full.waiting, 39);
    assert_ptr_equal(next(), &t[0]);
    assert_null(next());
    assert_int_equal(full.waiting, 38);
    assert_int_equal(sched_due(sched), now + SCHED_WALK_MS);
    /* behind them, for the second one */
    ticket(50, "roundrobin", 1, 10);
    t[50].candidates = &cands[1];
    t[50].group = &other;
    assert_int_equal(sched_enter(sched, &t[50], now), 0);
    assert_ptr_equal(next(), &t[50]);
    assert_null(next());
    /* the next of the group, and not the one after it */
    now += 10;
    done(&t[0], 0);
    assert_ptr_equal(next(), &t[1]);
    assert_null(next());
    /* one leaves, one is sent again and goes first, by itself */
    sched_leave(sched, &t[2], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    assert_int_equal(full.waiting, 36);
    sched_leave(sched, &t[1], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    assert_int_equal(sched_enter(sched, &t[1], now), 0);
    assert_int_equal(full.waiting, 36);
    assert_ptr_equal(next(), &t[1]);
    assert_null(next());
    /* whose time is over is told so, wherever it stands */
    now += SCHED_QUEUE_MS;
    bool expired = false;
    for (size_t i = 3; i < 40; i++) {
        assert_ptr_equal(sched_next(sched, now, &expired), &t[i]);
        assert_true(expired);
    }
    assert_null(next());
    assert_int_equal(full.waiting, 0);
    assert_int_equal(sched_due(sched), UINT64_MAX);
    assert_int_equal(sched_waiting(sched), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCHED_TEST(policies_in_order), SCHED_TEST(load_has_lost_to_the_counter), SCHED_TEST(one_stops_in_the_burst), SCHED_TEST(shared_scaffold_does_not_pile_up),
        SCHED_TEST(says_so_at_the_wall), SCHED_TEST(ram_is_room), SCHED_TEST(groups_are_passed_over),
    };
    return cmocka_run_group_tests_name("proxy_order", tests, NULL, NULL);
}
