/* SPDX-License-Identifier: MIT
 *
 * Who is sent where. A policy looks at the replicas that may have a request and names one, or none yet. Those that have just failed are seen only when there is no other.
 *
 *   adaptive    where the prompt is read soonest, with what is known of its conversation; new ones take turns
 *   counter     a conversation stays where it was served last; new ones take turns
 *   roundrobin  turns                       least  the fewest requests for each slot
 *   hash        the same place for the same conversation, whatever its load, as long as the replicas stay
 *   sticky      a conversation stays, new ones go to the replica with the fewest requests
 */
#include "sched_int.h"

#define NEAR_COST 1.5   /* new conversations take turns among replicas whose cost is at most this much of the best */
#define NONE SIZE_MAX

typedef size_t policy_fn(struct sched_ticket *t, uint64_t now, struct sched_choice *c);

/* ---- who is better ------------------------------------------------------------------------------------------ */

static double load(const struct sched_replica *r)
{
    return (double)r->active / (r->n_slots ? r->n_slots : 1);
}

/* The free one whose turn it is, among those that cost at most max_cost; NONE. */
static size_t next_turn(const struct sched_choice *c, double max_cost)
{
    size_t best = NONE;
    for (size_t i = 0; i < c->n; i++)
        if (c->views[i].free && c->views[i].cost_ms <= max_cost && (best == NONE || c->views[i].replica->used < c->views[best].replica->used))
            best = i;
    return best;
}

static size_t least_loaded(const struct sched_choice *c)
{
    size_t best = NONE;
    for (size_t i = 0; i < c->n; i++) {
        if (!c->views[i].free)
            continue;
        const struct sched_replica *r = c->views[i].replica;
        double d = best == NONE ? -1 : load(r) - load(c->views[best].replica);
        if (d < 0 || (d <= 0 && r->used < c->views[best].replica->used))
            best = i;
    }
    return best;
}

/* The best match: what only a hint leads to counts less than any chain; of two the one that was found first, which is the longer. */
static size_t best_match(const struct sched_choice *c)
{
    size_t best = NONE;
    for (size_t i = 0; i < c->n; i++)
        if (c->views[i].match && (best == NONE || c->views[i].match < c->views[best].match))
            best = i;
    return best;
}

static size_t cheapest(const struct sched_choice *c, bool free_only)
{
    size_t best = NONE;
    for (size_t i = 0; i < c->n; i++) {
        const struct sched_view *v = &c->views[i];
        if (free_only && !v->free)
            continue;
        if (best == NONE || v->cost_ms < c->views[best].cost_ms ||
            (v->cost_ms <= c->views[best].cost_ms && v->replica->used < c->views[best].replica->used))
            best = i;
    }
    return best;
}

/* ---- policies -------------------------------------------------------------------------------------------------- */

static size_t take_turns(struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    (void)t, (void)now;
    c->decision = SCHED_TURN;
    return next_turn(c, 1e300);
}

static size_t take_least(struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    (void)t, (void)now;
    c->decision = SCHED_LEAST;
    return least_loaded(c);
}

/* Stays with its match, which is waited for. */
static size_t stay_or(size_t other, struct sched_choice *c)
{
    size_t best = best_match(c);
    c->decision = best == NONE ? SCHED_COLD : SCHED_AFFINE;
    if (best == NONE)
        return other;
    return c->views[best].free ? best : NONE;
}

static size_t take_counter(struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    (void)t, (void)now;
    return stay_or(next_turn(c, 1e300), c);
}

static size_t take_sticky(struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    (void)t, (void)now;
    return stay_or(least_loaded(c), c);
}

/* The highest of the hashes of conversation and replica: when one replica goes, only its conversations move. */
static size_t take_hash(struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    (void)now;
    uint64_t key = t->hint ? t->hint : t->n_chain ? t->chain[0] : t->seq, best_hash = 0;
    size_t best = NONE;
    c->decision = SCHED_HASH;
    for (size_t i = 0; i < c->n; i++) {
        uint64_t h = place_hash(key, (struct str){(const char *)&c->views[i].replica->id, sizeof(uint32_t)});
        if (best == NONE || h > best_hash) {
            best = i;
            best_hash = h;
        }
    }
    return best != NONE && c->views[best].free ? best : NONE;
}

double sched_wait_ms(const struct sched_replica *r)
{
    return r->service_ms / (r->n_slots ? r->n_slots : 1);
}

/* A conversation whose replica is busy waits for it as long as that saves time, counted from when it could first have gone elsewhere: then it is sent where there is room. What it waited while nobody had room
 * says nothing for going elsewhere. */
static size_t take_adaptive(struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    size_t home = cheapest(c, false), other = cheapest(c, true);
    if (best_match(c) == NONE) {
        c->decision = SCHED_COLD;
        return other == NONE ? NONE : next_turn(c, c->views[other].cost_ms * NEAR_COST);
    }
    c->decision = SCHED_AFFINE;
    if (other == NONE || c->views[home].free)
        return other == NONE ? NONE : other;
    double saves = c->views[other].cost_ms - c->views[home].cost_ms;
    uint64_t since = t->offered_ms ? t->offered_ms : now;
    if ((double)(now - since) + sched_wait_ms(c->views[home].replica) < saves) {
        t->offered_ms = since;
        c->due = since + (uint64_t)saves;
        return NONE;
    }
    c->decision = SCHED_OVERFLOW;
    return other;
}

static const struct {
    const char *name;
    policy_fn *choose;
} policies[] = {
    {"adaptive", take_adaptive}, {"counter", take_counter}, {"roundrobin", take_turns}, {"least", take_least}, {"hash", take_hash}, {"sticky", take_sticky},
};

bool sched_policy_known(struct str name)
{
    for (size_t i = 0; i < BASE_COUNT(policies); i++)
        if (str_eq_c(name, policies[i].name))
            return true;
    return false;
}

/* ---- what there is to choose from ---------------------------------------------------------------------------------- */

static bool tried(const struct sched_ticket *t, size_t i)
{
    return t->tried[i / 64] >> (i % 64) & 1;
}

static bool is_full(const struct sched_replica *r)
{
    return (r->window && r->active >= r->window) || (r->n_slots && r->active >= r->n_slots);
}

/* Whether a slot is there for this ticket; *due: when one that is held may be. */
static bool has_room(const struct sched_ticket *t, const struct sched_view *v, uint64_t now, uint64_t *due)
{
    const struct sched_replica *r = v->replica;
    if (!t->leased)
        return true;
    if (is_full(r))
        return false;
    if (!r->pins || !r->n_slots || t->pinned)
        return true;
    bool starved = r->service_ms > 0 && (double)(now - t->entered_ms) > SCHED_STARVED_TURNS * r->service_ms;
    for (unsigned i = 0; i < r->n_slots; i++) {
        const struct sched_slot *slot = &r->slots[i];
        if (slot->busy)
            continue;
        if (slot->hold_until_ms <= now || starved || (v->match && v->match->key == slot->key))
            return true;
        if (slot->hold_until_ms < *due)
            *due = slot->hold_until_ms;
    }
    return false;
}

static void look_at(const struct sched_ticket *t, struct sched_view *v, struct sched_choice *c, uint64_t now)
{
    const struct sched_replica *r = v->replica;
    for (size_t k = 0; k < c->n_matches && !v->match; k++)
        if (c->matches[k].place.replica == r->id && c->matches[k].place.generation == r->generation)
            v->match = &c->matches[k];
    if (v->match) {
        const struct affinity_place *place = &v->match->place;
        bool same = place->prompt && t->n_chain && v->match->links == t->n_chain; /* the very prompt: its answer is no part of it */
        uint64_t held = same ? place->prompt : place->tokens, tokens = held < t->tokens ? held : t->tokens;
        uint32_t at = place->slot;
        v->in_slot = !r->pins || (at < r->n_slots && r->slots[at].key == v->match->key);
        v->cached = v->in_slot ? tokens : (uint64_t)((double)tokens * r->kept);
    }
    v->cost_ms = (double)(t->tokens - v->cached) * 1000 / r->prefill_tps;
    v->free = has_room(t, v, now, &c->due);
}

void sched_choose(struct sched *s, struct sched_ticket *t, uint64_t now, struct sched_choice *c)
{
    size_t n_ready = 0;
    bool suspects = true, startable = false;
    for (size_t i = 0; i < t->n_candidates; i++) {
        if (tried(t, i))
            continue;
        startable = startable || t->candidates[i]->startable;
        if (t->candidates[i]->ready) {
            n_ready++;
            suspects = suspects && t->candidates[i]->suspect_ms > now;
        }
    }
    c->n = c->n_matches = 0;
    c->due = UINT64_MAX;
    c->verdict = n_ready || startable ? SCHED_WAIT : SCHED_NOBODY;
    c->full = true;
    if (!n_ready)
        return;
    if (t->leased && (t->n_chain || t->hint))
        c->n_matches = affinity_find(s->affinity, t->chain, t->n_chain, t->hint, c->matches);
    for (size_t i = 0; i < t->n_candidates && c->n < SCHED_VIEWS_MAX; i++) {
        struct sched_replica *r = t->candidates[i];
        if (!r->ready || tried(t, i) || (r->suspect_ms > now && !suspects))
            continue;
        struct sched_view *v = &c->views[c->n++];
        *v = (struct sched_view){.replica = r, .index = i};
        look_at(t, v, c, now);
        c->full = c->full && is_full(r);
    }
    size_t chosen = NONE;
    for (size_t i = 0; i < BASE_COUNT(policies); i++)
        if (strcmp(t->policy, policies[i].name) == 0) {
            chosen = policies[i].choose(t, now, c);
            break;
        }
    if (chosen == NONE)
        return;
    c->chosen = chosen;
    c->verdict = SCHED_GO;
}
