/* SPDX-License-Identifier: MIT
 *
 * Which replica holds how much of a conversation: a hash table from a turn's key to the last places that had it, with an age list. One entry for each turn, so that a fork of a conversation is found at the
 * turn where it began. Entries live in one block that grows by doubling up to its ceiling; links are numbers, not pointers.
 *
 * Of each conversation the newest turn is "live" while it was used lately: the sum of their tokens is the working set of a replica. The age list is nearly in order of their times (a look-up moves an entry, and leaves its time), so that what has
 * gone out of use is found at its old end: `stale` is the newest entry that was counted out.
 */
#include "place_int.h"

#define NONE UINT32_MAX
#define FIRST_ENTRIES 256

struct entry {
    uint64_t key;
    struct affinity_place places[AFFINITY_PLACES]; /* the latest first; tokens 0: none */
    uint32_t collision, older, newer;
    uint64_t used_ms;
    uint32_t live, live_at; /* tokens that are counted in the working set of that replica; 0: none */
};

struct live {
    uint64_t tokens;
    uint32_t conversations;
};

struct affinity {
    struct entry *entries;
    uint32_t *table;
    uint32_t n, room, max; /* entries: used, allocated, ever */
    uint32_t mask;
    uint32_t newest, oldest, stale;
    uint64_t now_ms;
    struct live *live; /* by number of the replica */
    uint32_t n_live;
    uint64_t changes;
};

struct affinity *affinity_new(size_t max_bytes)
{
    struct affinity *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    size_t each = sizeof(struct entry) + 2 * sizeof(uint32_t); /* the table is at most twice as long */
    *a = (struct affinity){.max = (uint32_t)(max_bytes / each), .newest = NONE, .oldest = NONE, .stale = NONE};
    return a;
}

struct affinity *affinity_free(struct affinity *a)
{
    if (a) {
        free(a->entries);
        free(a->table);
        free(a->live);
        free(a);
    }
    return NULL;
}

size_t affinity_bytes(const struct affinity *a)
{
    return a->room * sizeof(struct entry) + (a->table ? (a->mask + (size_t)1) * sizeof *a->table : 0);
}

static uint32_t *bucket(struct affinity *a, uint64_t key)
{
    return &a->table[(uint32_t)(key ^ key >> 32) & a->mask];
}

static uint32_t find(struct affinity *a, uint64_t key)
{
    uint32_t i = a->table ? *bucket(a, key) : NONE;
    while (i != NONE && a->entries[i].key != key)
        i = a->entries[i].collision;
    return i;
}

/* ---- age ------------------------------------------------------------------------------------------------ */

static void age_remove(struct affinity *a, uint32_t i)
{
    struct entry *e = &a->entries[i];
    if (a->stale == i)
        a->stale = e->older;
    *(e->newer == NONE ? &a->newest : &a->entries[e->newer].older) = e->older;
    *(e->older == NONE ? &a->oldest : &a->entries[e->older].newer) = e->newer;
}

static void age_insert(struct affinity *a, uint32_t i)
{
    a->entries[i].older = a->newest;
    a->entries[i].newer = NONE;
    *(a->newest == NONE ? &a->oldest : &a->entries[a->newest].newer) = i;
    a->newest = i;
}

/* ---- the working set ----------------------------------------------------------------------------------------- */

static void count_out(struct affinity *a, struct entry *e)
{
    if (!e->live)
        return;
    a->live[e->live_at].tokens -= e->live;
    a->live[e->live_at].conversations--;
    e->live = 0;
}

static void count_in(struct affinity *a, struct entry *e)
{
    uint32_t at = e->places[0].replica;
    if (at >= a->n_live) {
        struct live *live = realloc(a->live, (at + (size_t)1) * sizeof *live);
        if (!live)
            return;
        memset(live + a->n_live, 0, (at + (size_t)1 - a->n_live) * sizeof *live);
        a->live = live;
        a->n_live = at + 1;
    }
    e->live = e->places[0].tokens;
    e->live_at = at;
    a->live[at].tokens += e->live;
    a->live[at].conversations += e->live > 0;
}

static void pass_time(struct affinity *a, uint64_t now_ms)
{
    if (now_ms > a->now_ms)
        a->now_ms = now_ms;
    for (;;) {
        uint32_t i = a->stale == NONE ? a->oldest : a->entries[a->stale].newer;
        if (i == NONE || a->now_ms - a->entries[i].used_ms < AFFINITY_LIVE_MS)
            return;
        count_out(a, &a->entries[i]);
        a->stale = i;
    }
}

/* ---- room ------------------------------------------------------------------------------------------------ */

static bool grow(struct affinity *a)
{
    uint32_t room = a->room ? a->room * 2 : FIRST_ENTRIES, size = FIRST_ENTRIES;
    if (room > a->max)
        room = a->max;
    if (room == a->room)
        return false;
    while (size < room)
        size *= 2;
    struct entry *entries = realloc(a->entries, room * sizeof *entries);
    if (!entries)
        return false;
    a->entries = entries;
    uint32_t *table = malloc(size * sizeof *table);
    if (!table)
        return false;
    memset(table, 0xff, size * sizeof *table); /* NONE */
    free(a->table);
    a->table = table;
    a->mask = size - 1;
    a->room = room;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t *b = bucket(a, entries[i].key);
        entries[i].collision = *b;
        *b = i;
    }
    return true;
}

/* An entry that is in no list: a new one, or the one that was not asked for longest. */
static uint32_t take(struct affinity *a)
{
    if (a->n < a->room || grow(a))
        return a->n++;
    uint32_t i = a->oldest;
    if (i == NONE)
        return NONE;
    age_remove(a, i);
    count_out(a, &a->entries[i]);
    uint32_t *at = bucket(a, a->entries[i].key);
    while (*at != i)
        at = &a->entries[*at].collision;
    *at = a->entries[i].collision;
    return i;
}

/* ---- use ------------------------------------------------------------------------------------------------- */

void affinity_put(struct affinity *a, uint64_t key, const struct affinity_place *p)
{
    uint32_t i = find(a, key);
    if (i == NONE) {
        i = take(a);
        if (i == NONE)
            return;
        uint32_t *b = bucket(a, key);
        a->entries[i] = (struct entry){.key = key, .collision = *b};
        *b = i;
    } else {
        age_remove(a, i);
    }
    age_insert(a, i);
    struct entry *e = &a->entries[i];
    if (e->places[0].replica != p->replica)
        e->places[1] = e->places[0];
    e->places[0] = *p;
    e->used_ms = a->now_ms;
    a->changes++;
}

void affinity_live(struct affinity *a, uint64_t key, uint64_t before, uint64_t now_ms)
{
    pass_time(a, now_ms);
    uint32_t i = before && before != key ? find(a, before) : NONE;
    if (i != NONE)
        count_out(a, &a->entries[i]);
    i = find(a, key);
    if (i == NONE)
        return;
    age_remove(a, i);
    age_insert(a, i);
    a->entries[i].used_ms = a->now_ms;
    count_out(a, &a->entries[i]);
    count_in(a, &a->entries[i]);
}

uint64_t affinity_working_set(struct affinity *a, uint32_t replica, uint64_t now_ms, unsigned *ret_conversations)
{
    pass_time(a, now_ms);
    bool known = replica < a->n_live;
    if (ret_conversations)
        *ret_conversations = known ? a->live[replica].conversations : 0;
    return known ? a->live[replica].tokens : 0;
}

uint64_t affinity_changes(const struct affinity *a)
{
    return a->changes;
}

bool affinity_next(const struct affinity *a, uint32_t *cursor, uint64_t *ret_key, struct affinity_place ret[AFFINITY_PLACES])
{
    uint32_t i = *cursor == AFFINITY_FIRST ? a->newest : a->entries[*cursor].older;
    if (i == NONE)
        return false;
    *cursor = i;
    *ret_key = a->entries[i].key;
    memcpy(ret, a->entries[i].places, sizeof a->entries[i].places);
    return true;
}

void affinity_drop(struct affinity *a, uint64_t key, uint32_t replica)
{
    uint32_t i = find(a, key);
    if (i == NONE)
        return;
    struct affinity_place *p = a->entries[i].places;
    if (p[1].replica == replica)
        p[1] = (struct affinity_place){0};
    if (p[0].replica == replica) {
        p[0] = p[1];
        p[1] = (struct affinity_place){0};
    }
    a->changes++;
}

/* Adds the places of an entry whose replicas are not known yet. */
static size_t collect(struct affinity *a, uint32_t i, size_t links, struct affinity_match *ret, size_t n)
{
    const struct entry *e = &a->entries[i];
    for (size_t k = 0; k < AFFINITY_PLACES && n < AFFINITY_MATCHES; k++) {
        bool known = e->places[k].tokens == 0;
        for (size_t m = 0; m < n && !known; m++)
            known = ret[m].place.replica == e->places[k].replica && ret[m].place.generation == e->places[k].generation;
        if (!known)
            ret[n++] = (struct affinity_match){.place = e->places[k], .key = e->key, .links = links, .used_ms = e->used_ms};
    }
    age_remove(a, i);
    age_insert(a, i);
    return n;
}

size_t affinity_find(struct affinity *a, const uint64_t *chain, size_t n, uint64_t hint, struct affinity_match ret[AFFINITY_MATCHES])
{
    size_t found = 0, hits = 0;
    for (size_t k = n; k > 0 && hits < AFFINITY_HITS; k--) {
        uint32_t i = find(a, chain[k - 1]);
        if (i == NONE)
            continue;
        hits++;
        found = collect(a, i, k, ret, found);
    }
    uint32_t i = hint ? find(a, hint) : NONE;
    return i == NONE ? found : collect(a, i, 0, ret, found);
}
