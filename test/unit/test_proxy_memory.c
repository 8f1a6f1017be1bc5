/* SPDX-License-Identifier: MIT
 *
 * proxy: what is known of conversations, over a restart of the router: written, read, refused when anything about it is wrong, believed only of processes that still live.
 */
#include "sched_rig.h"

#include <errno.h>

static struct memory_replica names[REPLICAS] = {{"a", &reps[0]}, {"b", &reps[1]}, {"c", &reps[2]}};

/* Conversation c has had a turn, in slot c / 2 of replica c % 2. */
static void had_a_turn(size_t c, uint64_t tokens)
{
    struct affinity_place p = {.replica = reps[c % 2].id, .slot = (uint32_t)(c / 2), .generation = reps[c % 2].generation, .tokens = (uint32_t)tokens};
    affinity_put(aff, c * 1000 + 1, &p);
}

static void save(struct buf *out)
{
    assert_int_equal(memory_save(aff, 77, names, 2, out), 0);
}

/* A new router with these generations. */
static void anew(uint64_t generation_a, uint64_t generation_b)
{
    close_sched(NULL);
    open_sched(NULL);
    reps[0].id = 9; /* numbers are the router's own */
    assert_int_equal(sched_replica_set(&reps[0], true, generation_a, 4, true), 0);
    assert_int_equal(sched_replica_set(&reps[1], true, generation_b, 4, true), 0);
}

static void comes_back(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(MEMORY_BYTES_MAX), again = BUF_INIT(MEMORY_BYTES_MAX);
    struct err err;
    uint64_t seed = 0;
    replicas(2, 4);
    reps[0].prefill_tps = reps[1].prefill_tps = 1234;
    reps[0].told = reps[1].told = true;
    reps[0].kept = 0.25;
    for (size_t c = 0; c < 6; c++)
        had_a_turn(c, 100 + c);
    save(&b);
    anew(1, 1);
    if (memory_load(aff, buf_str(&b), names, 2, &seed, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(seed, 77);
    assert_true(reps[0].prefill_tps > 1233 && reps[0].prefill_tps < 1235 && reps[0].kept > 0.24 && reps[0].kept < 0.26 && reps[0].told);
    /* the next turn goes home, to its slot */
    go(turn(0, "adaptive", 2, 3, 2, 400));
    assert_ptr_equal(t[0].replica, &reps[1]);
    assert_int_equal(t[0].slot, 1);
    assert_int_equal(t[0].decision, SCHED_AFFINE);
    assert_int_equal(t[0].predicted, 103);
    assert_false(t[0].displaced);
    /* and what is saved again is as much */
    assert_int_equal(memory_save(aff, 77, names, 2, &again), 0);
    assert_int_equal(again.len, b.len);
}

static void only_of_the_same_process(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(MEMORY_BYTES_MAX);
    uint64_t seed, key;
    uint32_t cursor = AFFINITY_FIRST;
    struct affinity_place p[AFFINITY_PLACES];
    replicas(2, 4);
    for (size_t c = 0; c < 6; c++)
        had_a_turn(c, 100);
    save(&b);
    anew(1, 2);
    reps[1].prefill_tps = 5;
    assert_int_equal(memory_load(aff, buf_str(&b), names, 2, &seed, NULL), 0);
    size_t n = 0;
    for (; affinity_next(aff, &cursor, &key, p); n++)
        assert_int_equal(p[0].replica, 9);
    assert_int_equal(n, 3);
    assert_int_equal(reps[1].slots[0].key, 0);
    assert_true(reps[1].prefill_tps < 6);
    /* a replica of that name is gone */
    anew(1, 1);
    assert_int_equal(memory_load(aff, buf_str(&b), names, 1, &seed, NULL), 0);
    go(turn(0, "adaptive", 2, 3, 2, 400));
    assert_int_equal(t[0].decision, SCHED_COLD);
    /* what an older process held is not written either */
    buf_clear(&b);
    assert_int_equal(sched_replica_set(&reps[0], true, 8, 4, true), 0);
    assert_int_equal(memory_save(aff, 77, names, 2, &b), 0);
    anew(8, 1);
    assert_int_equal(memory_load(aff, buf_str(&b), names, 2, &seed, NULL), 0);
    cursor = AFFINITY_FIRST;
    assert_false(affinity_next(aff, &cursor, &key, p));
}

/* The newest ones, as many as are allowed; their order stays. */
static void bounded(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(MEMORY_BYTES_MAX);
    struct affinity_place p[AFFINITY_PLACES];
    uint64_t seed, key;
    uint32_t cursor = AFFINITY_FIRST;
    replicas(2, 4);
    affinity_free(base_take_ptr(aff));
    aff = affinity_new(AFFINITY_BYTES_MAX);
    for (size_t i = 1; i <= MEMORY_TURNS_MAX + 100; i++)
        affinity_put(aff, i, &(struct affinity_place){.replica = reps[0].id, .slot = AFFINITY_NO_SLOT, .generation = 1, .tokens = 5});
    save(&b);
    struct affinity *small = aff;
    aff = affinity_new(AFFINITY_BYTES_MAX);
    affinity_free(small);
    assert_int_equal(memory_load(aff, buf_str(&b), names, 2, &seed, NULL), 0);
    for (size_t i = 0; i < MEMORY_TURNS_MAX; i++) {
        assert_true(affinity_next(aff, &cursor, &key, p));
        assert_int_equal(key, MEMORY_TURNS_MAX + 100 - i);
        assert_int_equal(p[0].slot, AFFINITY_NO_SLOT);
    }
    assert_false(affinity_next(aff, &cursor, &key, p));
    /* no room to write */
    base_autobuf struct buf little = BUF_INIT(1000);
    assert_int_equal(memory_save(aff, 77, names, 2, &little), -E2BIG);
}

static void anything_wrong_is_refused(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(MEMORY_BYTES_MAX);
    struct affinity_place p[AFFINITY_PLACES];
    struct err err;
    uint64_t seed = 5, key;
    uint32_t cursor = AFFINITY_FIRST;
    replicas(2, 4);
    for (size_t c = 0; c < 6; c++)
        had_a_turn(c, 100);
    save(&b);
    anew(1, 1);
    for (size_t len = 0; len < b.len; len++)
        assert_int_equal(memory_load(aff, (struct str){b.ptr, len}, names, 2, &seed, &err), -EBADMSG);
    for (size_t i = 0; i < b.len; i++) {
        b.ptr[i] ^= 0x10;
        int rc = memory_load(aff, buf_str(&b), names, 2, &seed, &err);
        assert_int_equal(rc, i >= 8 && i < 12 ? -ENOTSUP : -EBADMSG);
        b.ptr[i] ^= 0x10;
    }
    assert_true(str_starts(str_of(err.text), STR("the index of conversations is broken: its checksum")));
    assert_int_equal(seed, 5);
    assert_false(affinity_next(aff, &cursor, &key, p));
    assert_int_equal(memory_load(aff, buf_str(&b), names, 2, &seed, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {SCHED_TEST(comes_back), SCHED_TEST(only_of_the_same_process), SCHED_TEST(bounded), SCHED_TEST(anything_wrong_is_refused)};
    return cmocka_run_group_tests_name("proxy_memory", tests, NULL, NULL);
}
