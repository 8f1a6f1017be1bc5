/* SPDX-License-Identifier: MIT
 *
 * The index of conversations as bytes (the format is in place_int.h). Reading trusts nothing: every count is held against what is there before it is believed, the hash against all of
 * it, and a replica that is not the same process any more gives nothing. A broken file costs what a router without one costs: the first turn of each conversation.
 */
#include "place_int.h"

#include <errno.h>

#define MAGIC "berthidx"
#define HEAD_BYTES 28
#define REPLICA_BYTES 17 /* and its name */
#define TURN_BYTES 16
#define SUM_BYTES 8
#define SUM_SEED 0x6265727468696478u
#define NO_SLOT UINT16_MAX
#define NOWHERE UINT16_MAX

/* ---- writing -------------------------------------------------------------------------------------------- */

static void put(struct buf *out, uint64_t value, unsigned bytes)
{
    unsigned char b[8];
    for (unsigned i = 0; i < bytes; i++)
        b[i] = (unsigned char)(value >> 8 * i);
    buf_add(out, b, bytes);
}

/* Which of the replicas a place is at; NOWHERE: at none of them as it is. */
static uint16_t place_of(const struct affinity_place *p, const struct memory_replica *replicas, size_t n)
{
    for (size_t i = 0; p->tokens && i < n; i++)
        if (replicas[i].r->id == p->replica && replicas[i].r->generation == p->generation)
            return (uint16_t)i;
    return NOWHERE;
}

int memory_save(const struct affinity *a, uint64_t seed, const struct memory_replica *replicas, size_t n, struct buf *out)
{
    size_t start = out->len;
    uint32_t cursor = AFFINITY_FIRST, turns = 0;
    struct affinity_place places[AFFINITY_PLACES];
    uint64_t key;
    if (n > MEMORY_REPLICAS_MAX)
        n = MEMORY_REPLICAS_MAX;
    buf_add_c(out, MAGIC);
    put(out, MEMORY_VERSION, 4);
    put(out, n, 4);
    size_t at = out->len;
    put(out, 0, 4);
    put(out, seed, 8);
    for (size_t i = 0; i < n; i++) {
        const struct sched_replica *r = replicas[i].r;
        struct str name = str_of(replicas[i].name);
        put(out, r->generation, 8);
        put(out, r->told && r->prefill_tps < UINT32_MAX ? (uint64_t)r->prefill_tps : 0, 4);
        put(out, (uint64_t)(r->kept * 1000), 4);
        put(out, name.len, 1);
        buf_add(out, name.ptr, name.len > 255 ? 255 : name.len);
    }
    while (turns < MEMORY_TURNS_MAX && affinity_next(a, &cursor, &key, places)) {
        /* The older place of a turn is not kept: it is where the conversation went away from. */
        uint16_t where = place_of(&places[0], replicas, n);
        if (where == NOWHERE)
            continue;
        put(out, key, 8);
        put(out, places[0].tokens, 4);
        put(out, where, 2);
        put(out, places[0].slot < NO_SLOT ? places[0].slot : NO_SLOT, 2);
        turns++;
    }
    if (buf_status(out) < 0)
        return buf_status(out);
    for (unsigned i = 0; i < 4; i++)
        out->ptr[at + i] = (char)(turns >> 8 * i);
    put(out, place_hash(SUM_SEED, (struct str){out->ptr + start, out->len - start}), SUM_BYTES);
    return buf_status(out);
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static uint64_t get(const char *at, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = bytes; i-- > 0;)
        v = v << 8 | (unsigned char)at[i];
    return v;
}

struct reader {
    struct str rest;
    struct sched_replica *here[MEMORY_REPLICAS_MAX]; /* of each saved one: the same process; NULL */
    struct {
        uint32_t tps, kept;
    } learnt[MEMORY_REPLICAS_MAX];
    uint32_t n_replicas, n_turns;
};

static int broken(struct err *err, const char *what)
{
    return err_set(err, -EBADMSG, "the index of conversations is broken: %s", what);
}

static int read_head(struct reader *r, struct str text, uint64_t *ret_seed, struct err *err)
{
    if (text.len > MEMORY_BYTES_MAX || text.len < HEAD_BYTES + SUM_BYTES || memcmp(text.ptr, MAGIC, sizeof MAGIC - 1) != 0)
        return broken(err, "it is none");
    uint64_t version = get(text.ptr + 8, 4);
    if (version != MEMORY_VERSION)
        return err_set(err, -ENOTSUP, "the index of conversations is of version %llu, not %d", (unsigned long long)version, MEMORY_VERSION);
    struct str body = {text.ptr, text.len - SUM_BYTES};
    if (place_hash(SUM_SEED, body) != get(text.ptr + body.len, SUM_BYTES))
        return broken(err, "its checksum is wrong");
    r->n_replicas = (uint32_t)get(text.ptr + 12, 4);
    r->n_turns = (uint32_t)get(text.ptr + 16, 4);
    if (r->n_replicas > MEMORY_REPLICAS_MAX || r->n_turns > MEMORY_TURNS_MAX)
        return broken(err, "it counts too many");
    *ret_seed = get(text.ptr + 20, 8);
    r->rest = (struct str){text.ptr + HEAD_BYTES, body.len - HEAD_BYTES};
    return 0;
}

static int read_replica(struct reader *r, uint32_t i, const struct memory_replica *replicas, size_t n, struct err *err)
{
    if (r->rest.len < REPLICA_BYTES)
        return broken(err, "it ends within a replica");
    const char *at = r->rest.ptr;
    size_t len = (unsigned char)at[16];
    if (r->rest.len - REPLICA_BYTES < len)
        return broken(err, "it ends within a name");
    struct str name = {at + REPLICA_BYTES, len};
    for (size_t k = 0; k < n; k++)
        if (str_eq_c(name, replicas[k].name) && replicas[k].r->generation == get(at, 8))
            r->here[i] = replicas[k].r;
    r->learnt[i].tps = (uint32_t)get(at + 8, 4);
    r->learnt[i].kept = (uint32_t)get(at + 12, 4);
    r->rest.ptr += REPLICA_BYTES + len;
    r->rest.len -= REPLICA_BYTES + len;
    return 0;
}

/* The turn at `at`, whose bytes are there. */
static void take_turn(struct affinity *a, const struct reader *r, const char *at)
{
    uint64_t where = get(at + 12, 2), slot = get(at + 14, 2);
    struct sched_replica *replica = where < r->n_replicas ? r->here[where] : NULL;
    if (!replica || !get(at, 8) || !get(at + 8, 4))
        return;
    struct affinity_place p = {
        .replica = replica->id,
        .generation = replica->generation,
        .tokens = (uint32_t)get(at + 8, 4),
        .slot = slot == NO_SLOT ? AFFINITY_NO_SLOT : (uint32_t)slot,
    };
    affinity_put(a, get(at, 8), &p);
    if (replica->slots && p.slot < replica->n_slots)
        replica->slots[p.slot].key = get(at, 8); /* the last one to be taken was the last one there */
}

int memory_load(struct affinity *a, struct str text, const struct memory_replica *replicas, size_t n, uint64_t *ret_seed, struct err *err)
{
    struct reader reader = {0}, *r = &reader;
    uint64_t seed = 0;
    int rc = read_head(r, text, &seed, err);
    for (uint32_t i = 0; rc == 0 && i < r->n_replicas; i++)
        rc = read_replica(r, i, replicas, n, err);
    if (rc == 0 && r->rest.len != (size_t)r->n_turns * TURN_BYTES)
        rc = broken(err, "its length is not that of its turns");
    if (rc < 0)
        return rc;
    for (uint32_t i = r->n_turns; i-- > 0;)
        take_turn(a, r, r->rest.ptr + (size_t)i * TURN_BYTES);
    for (uint32_t i = 0; i < r->n_replicas; i++)
        if (r->here[i] && r->learnt[i].kept && r->learnt[i].kept <= 1000) {
            r->here[i]->kept = r->learnt[i].kept / 1000.0;
            r->here[i]->told = r->learnt[i].tps > 0;
            if (r->here[i]->told)
                r->here[i]->prefill_tps = r->learnt[i].tps;
        }
    *ret_seed = seed;
    return 0;
}
