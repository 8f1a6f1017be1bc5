/* SPDX-License-Identifier: MIT
 *
 * Which replica holds how much of a conversation: a hash table from a turn's key to the last places that had it, with an age list. One entry for each turn, so that a fork of a conversation is found at the
 * turn where it began. Entries live in one block that grows by doubling up to its ceiling; links are numbers, not pointers.
 */
#include "place_int.h"

#define PLACES 2 /* of one turn: where it was, and where it went when that was busy */
#define NONE UINT32_MAX
#define FIRST_ENTRIES 256

struct entry {
    uint64_t key;
    struct affinity_place places[PLACES]; /* the latest first; tokens 0: none */
    uint32_t collision, older, newer;
};

struct affinity {
    struct entry *entries;
    uint32_t *table;
    uint32_t n, room, max; /* entries: used, allocated, ever */
    uint32_t mask;
    uint32_t newest, oldest;
};

struct affinity *affinity_new(size_t max_bytes)
{
    struct affinity *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    size_t each = sizeof(struct entry) + 2 * sizeof(uint32_t); /* the table is at most twice as long */
    *a = (struct affinity){.max = (uint32_t)(max_bytes / each), .newest = NONE, .oldest = NONE};
    return a;
}

struct affinity *affinity_free(struct affinity *a)
{
    if (a) {
        free(a->entries);
        free(a->table);
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
}

/* Adds the places of an entry whose replicas are not known yet. */
static size_t collect(struct affinity *a, uint32_t i, size_t links, struct affinity_match *ret, size_t n)
{
    const struct entry *e = &a->entries[i];
    for (size_t k = 0; k < PLACES && n < AFFINITY_MATCHES; k++) {
        bool known = e->places[k].tokens == 0;
        for (size_t m = 0; m < n && !known; m++)
            known = ret[m].place.replica == e->places[k].replica && ret[m].place.generation == e->places[k].generation;
        if (!known)
            ret[n++] = (struct affinity_match){.place = e->places[k], .key = e->key, .links = links};
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
