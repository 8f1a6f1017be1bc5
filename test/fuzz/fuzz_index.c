/* SPDX-License-Identifier: MIT
 *
 * The index of conversations that a router left, from any bytes: as they are, and with the checksum put right, so that what is behind it is reached. What was read can be written, and is the same then.
 */
#include "../../src/proxy/memory.c"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_it(struct str text)
{
    struct sched_replica reps[2] = {{.id = 1}, {.id = 5}};
    const struct memory_replica names[] = {{"a", &reps[0]}, {"bb", &reps[1]}};
    struct affinity *a = affinity_new(1 << 20);
    base_autobuf struct buf out = BUF_INIT(MEMORY_BYTES_MAX);
    uint64_t seed = 0, key;
    uint32_t cursor = AFFINITY_FIRST;
    struct affinity_place p[AFFINITY_PLACES];
    size_t n = 0;
    assert(a && sched_replica_set(&reps[0], true, 1, 2, true) == 0 && sched_replica_set(&reps[1], true, 2, 4, true) == 0);
    int rc = memory_load(a, text, names, BASE_COUNT(names), &seed, NULL);
    for (; affinity_next(a, &cursor, &key, p); n++)
        assert(key && p[0].tokens && (p[0].replica == 1 || p[0].replica == 5));
    assert(n <= MEMORY_TURNS_MAX && (rc == 0 || n == 0));
    assert(reps[0].prefill_tps > 0 && reps[0].kept > 0 && reps[0].kept <= 1);
    assert(memory_save(a, seed, names, BASE_COUNT(names), &out) == 0);
    affinity_free(a);
    sched_replica_release(&reps[0]);
    sched_replica_release(&reps[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    base_autobuf struct buf b = BUF_INIT(MEMORY_BYTES_MAX);
    read_it((struct str){(const char *)data, size});
    buf_add(&b, data, size);
    if (size > MEMORY_BYTES_MAX - SUM_BYTES || buf_status(&b) < 0)
        return 0;
    put(&b, place_hash(SUM_SEED, buf_str(&b)), SUM_BYTES);
    read_it(buf_str(&b));
    return 0;
}
