/* SPDX-License-Identifier: MIT
 *
 * Slots and the queue. A replica gets at most as many requests as it has slots; the rest waits here, where a client that leaves costs nothing. The queue is in order of rank: a request's rank
 * is that of the last one handed out plus the number of requests of the same flow that wait already, so that one conversation with many requests does not stand before another's first.
 *
 * Who goes where is its policy's business (policy.c); when, is decided here. A slot that its conversation has just left is held for a moment: an agent's next turn comes within milliseconds, and finds
 * its whole prompt there. Leases belong to a ticket and to a generation of a replica: what an older process still owes does not count against its successor.
 */
#include "sched_int.h"

#include <errno.h>

#define EWMA_NEW 0.2            /* weight of a new number */
#define LEARN_TOKENS 32         /* shorter prompts say little about speed */
#define DROP_FROM_TOKENS 64     /* a prediction below this is not worth correcting */
#define GAP_MAX_MS 2000.0       /* a turn that comes later was not waited for */
#define KEPT_IN_RAM 0.5         /* an engine that keeps more of what its slots were used for has room beside them */
#define OVERDUE 1.5             /* whoever stays away for longer than that many times another's absence is not coming back before it */

const char *sched_decision_name(enum sched_decision d)
{
    static const char *const names[SCHED_N_DECISIONS] = {"cold", "affine", "overflow", "turn", "least", "hash", "retry", "joined"};
    return names[d];
}

struct sched *sched_new(struct affinity *a)
{
    struct sched *s = calloc(1, sizeof *s);
    if (s)
        *s = (struct sched){.affinity = a, .due = UINT64_MAX, .rank = SCHED_RANK_FIRST + 1, .gap_ms = 20, .returns = 0.5};
    return s;
}

struct sched *sched_free(struct sched *s)
{
    free(s);
    return NULL;
}

/* ---- replicas ---------------------------------------------------------------------------------------------- */

int sched_replica_set(struct sched_replica *r, bool ready, uint64_t generation, unsigned n_slots, bool pins)
{
    bool same = r->slots && r->generation == generation && r->n_slots == n_slots && r->pins == pins;
    if (!same) {
        struct sched_slot *slots = calloc(n_slots ? n_slots : 1, sizeof *slots);
        if (!slots)
            return -ENOMEM;
        free(r->slots);
        r->slots = slots;
        r->active = r->running = r->failures = r->window = 0;
        r->suspect_ms = 0;
        r->life++;
    }
    r->ready = ready;
    r->generation = generation;
    r->n_slots = n_slots;
    r->pins = pins;
    if (r->prefill_tps <= 0)
        r->prefill_tps = SCHED_TPS_GUESS;
    if (r->kept <= 0)
        r->kept = 0.9;
    return 0;
}

void sched_replica_release(struct sched_replica *r)
{
    free(r->slots);
    r->slots = NULL;
}

static void learn(double *what, double seen)
{
    *what = *what > 0 ? *what * (1 - EWMA_NEW) + seen * EWMA_NEW : seen;
}

static void blame(struct sched_replica *r, uint64_t now)
{
    uint64_t ms = SCHED_SUSPECT_MS;
    if (r->suspect_ms > now) /* what fails together is one failure */
        return;
    for (unsigned i = 0; i < r->failures && ms < SCHED_SUSPECT_MAX_MS; i++)
        ms *= 2;
    r->failures++;
    r->suspect_ms = now + (ms < SCHED_SUSPECT_MAX_MS ? ms : SCHED_SUSPECT_MAX_MS);
    r->window = 1;
}

static void praise(struct sched_replica *r)
{
    r->failures = 0;
    r->suspect_ms = 0;
    if (r->window && (r->window *= 2) >= (r->n_slots ? r->n_slots : SCHED_SLOTS_MAX))
        r->window = 0;
}

/* ---- the queue ----------------------------------------------------------------------------------------------- */

static void leave_queue(struct sched *s, struct sched_ticket *t)
{
    sched_queue_remove(&s->queue, t);
    if (t->grouped)
        t->group->waiting--;
    t->grouped = false;
}

int sched_enter(struct sched *s, struct sched_ticket *t, uint64_t now)
{
    bool again = t->entered_ms > 0; /* it has waited its turn */
    if (!again && s->queue.n >= SCHED_QUEUE_MAX)
        return -EBUSY;
    if (again)
        t->waited_ms += t->started_ms - t->entered_ms;
    t->entered_ms = now;
    t->offered_ms = 0;
    t->replica = NULL;
    t->state = SCHED_WAITING;
    t->grouped = t->group && t->leased && !again; /* who comes again has fewer candidates */
    if (t->grouped)
        t->group->waiting++;
    sched_queue_add(&s->queue, t, s->rank, again);
    return 0;
}

size_t sched_waiting(const struct sched *s)
{
    return s->queue.n;
}

struct sched_ticket *sched_first(const struct sched *s)
{
    return s->queue.first;
}

uint64_t sched_due(const struct sched *s)
{
    return s->due;
}

/* ---- handing out ------------------------------------------------------------------------------------------------ */

/* Whose slot a conversation takes that has lost its own, where nothing is kept beside the slots. With more conversations in turn than slots the one that was used longest ago is the next to come: to take always
 * that one would make everybody lose every time. All being away for about the same time, the one that comes back last is the one that has just left, unless one is overdue. */
static uint32_t victim(const struct sched_replica *r, const struct sched_view *v, uint32_t oldest, uint32_t newest, uint64_t now)
{
    if (!v->match || v->in_slot || r->kept >= KEPT_IN_RAM || newest == AFFINITY_NO_SLOT)
        return oldest;
    double away = (double)(now - v->match->used_ms), idle = (double)(now - r->slots[oldest].used_ms);
    return idle > OVERDUE * away ? oldest : newest;
}

/* Whether less is lost with slot a than with slot b: first with one that is held for nobody, then with the one that was left longer ago. */
static bool is_lesser_loss(const struct sched_replica *r, uint32_t a, uint32_t b, uint64_t now)
{
    const struct sched_slot *x = &r->slots[a], *y = &r->slots[b];
    bool x_held = x->hold_until_ms > now, y_held = y->hold_until_ms > now;
    if (x_held != y_held)
        return y_held;
    return x->used_ms < y->used_ms;
}

/* The slot that a ticket gets there; AFFINITY_NO_SLOT: the engine chooses. A held one is for its conversation alone, unless there is no other: then it was asked for by who has waited too long. */
static uint32_t pick_slot(const struct sched_ticket *t, const struct sched_view *v, uint64_t now)
{
    const struct sched_replica *r = v->replica;
    uint32_t empty = AFFINITY_NO_SLOT, least = AFFINITY_NO_SLOT, newest = AFFINITY_NO_SLOT;
    if (!r->pins || t->pinned || !t->leased)
        return AFFINITY_NO_SLOT;
    for (uint32_t i = 0; i < r->n_slots; i++) {
        const struct sched_slot *slot = &r->slots[i];
        if (slot->busy)
            continue;
        if (v->match && slot->key == v->match->key)
            return i;
        if (!slot->key) {
            empty = empty == AFFINITY_NO_SLOT ? i : empty;
            continue;
        }
        if (least == AFFINITY_NO_SLOT || is_lesser_loss(r, i, least, now))
            least = i;
        if (slot->hold_until_ms <= now && (newest == AFFINITY_NO_SLOT || slot->used_ms >= r->slots[newest].used_ms))
            newest = i;
    }
    /* A request that names an empty slot is not given what the engine keeps in RAM of its conversation: only a new one may go there. */
    return empty != AFFINITY_NO_SLOT && !v->match ? empty : victim(r, v, least, newest, now);
}

/* What the choice was made from, for who asks later. */
static void note_choice(struct sched_ticket *t, const struct sched_choice *c)
{
    t->n_weighed = 0;
    for (size_t i = 0; i <= c->n && t->n_weighed < SCHED_WEIGHED_MAX; i++) {
        size_t at = i == 0 ? c->chosen : i - 1;
        const struct sched_view *v = &c->views[at];
        if (i > 0 && at == c->chosen)
            continue;
        t->weighed[t->n_weighed++] = (struct sched_weighed){
            .replica = v->replica, .cached = v->cached, .wait_ms = v->free ? 0 : sched_wait_ms(v->replica), .prefill_tps = v->replica->prefill_tps};
    }
}

static void lease(struct sched *s, struct sched_ticket *t, const struct sched_choice *c, uint64_t now)
{
    const struct sched_view *v = &c->views[c->chosen];
    struct sched_replica *r = v->replica;
    t->replica = r;
    t->index = v->index;
    t->generation = r->generation;
    t->life = r->life;
    t->decision = c->decision;
    t->matched = v->match ? v->match->key : 0;
    t->continues = c->n_matches ? c->matches[0].key : 0;
    t->predicted = v->cached;
    t->displaced = v->match && !v->in_slot;
    t->slot = pick_slot(t, v, now);
    note_choice(t, c);
    t->started_ms = now;
    t->state = SCHED_RUNNING;
    r->used = ++s->turns;
    if (t->rank > s->rank)
        s->rank = t->rank;
    r->running++;
    if (!t->leased)
        return;
    r->active++;
    if (t->slot != AFFINITY_NO_SLOT) {
        struct sched_slot *slot = &r->slots[t->slot];
        if (slot->hold_until_ms && slot->key == t->matched && t->matched) {
            learn(&s->returns, 1);
            if (now - slot->used_ms < (uint64_t)GAP_MAX_MS)
                learn(&s->gap_ms, (double)(now - slot->used_ms));
        }
        slot->busy = true;
        slot->hold_until_ms = 0;
    }
}

struct sched_ticket *sched_next(struct sched *s, uint64_t now, bool *ret_expired)
{
    size_t left = s->queue.n; /* who may have a turn yet */
    bool whole = now - s->walked_ms >= SCHED_WALK_MS, passed = false;
    s->due = UINT64_MAX;
    s->walk++;
    *ret_expired = false;
    for (struct sched_ticket *t = s->queue.first, *next; t && (left || whole); t = next) {
        struct sched_choice c;
        next = t->next;
        if (now - t->entered_ms >= SCHED_QUEUE_MS) {
            leave_queue(s, t);
            t->state = SCHED_OUT;
            *ret_expired = true;
            return t;
        }
        if (t->grouped && t->group->full == s->walk) {
            passed = true;
            continue;
        }
        sched_choose(s, t, now, &c);
        if (c.verdict == SCHED_WAIT && c.full && t->grouped) {
            t->group->full = s->walk;
            left -= t->group->waiting;
            passed = passed || t->group->waiting > 1;
        } else if (c.verdict == SCHED_WAIT) {
            left--;
        }
        if (c.verdict == SCHED_WAIT) {
            uint64_t limit = t->entered_ms + SCHED_QUEUE_MS, due = c.due < limit ? c.due : limit;
            if (due < s->due)
                s->due = due;
            continue;
        }
        leave_queue(s, t);
        if (c.verdict == SCHED_NOBODY) {
            t->state = SCHED_OUT;
            return t;
        }
        lease(s, t, &c, now);
        return t;
    }
    if (whole)
        s->walked_ms = now;
    /* those that were passed over have not said when their time is over */
    if (passed && s->walked_ms + SCHED_WALK_MS < s->due)
        s->due = s->walked_ms + SCHED_WALK_MS;
    return NULL;
}

/* ---- the end of a lease ------------------------------------------------------------------------------------------ */

/* How long a slot is kept for the next turn of the conversation in it; 0 when that is not worth an idle slot. */
static uint64_t hold_ms(const struct sched *s, const struct sched_replica *r, uint64_t tokens)
{
    double ms = 5 + 3 * s->gap_ms;
    if (ms > SCHED_HOLD_MAX_MS)
        ms = SCHED_HOLD_MAX_MS;
    double saved = s->returns * (double)tokens / r->prefill_tps * 1000;
    return s->returns > 0.1 && saved > ms * (1 - s->returns) ? (uint64_t)ms : 0;
}

static void release_slot(struct sched *s, const struct sched_ticket *t, struct sched_slot *slot, uint64_t tokens, bool content, uint64_t now)
{
    slot->busy = false;
    slot->used_ms = now;
    slot->hold_until_ms = 0;
    if (!content)
        return;
    slot->key = t->n_chain ? t->chain[t->n_chain - 1] : t->hint ? t->hint : 1;
    uint64_t hold = t->n_chain ? hold_ms(s, t->replica, tokens) : 0;
    if (hold && sched_is(t, "adaptive"))
        slot->hold_until_ms = now + hold;
}

/* Corrects what was believed of a prompt's place by what came of it. */
static void correct(struct sched *s, const struct sched_ticket *t, const struct sched_outcome *o)
{
    struct sched_replica *r = t->replica;
    if (o->prompt_ms > 0 && o->prompt_n >= LEARN_TOKENS) {
        learn(&r->prefill_tps, (double)o->prompt_n * 1000 / o->prompt_ms);
        r->told = true;
    }
    if (!t->matched || t->predicted < DROP_FROM_TOKENS)
        return;
    double share = (double)o->cached_n / (double)t->predicted;
    if (t->displaced)
        learn(&r->kept, share < 0.01 ? 0.01 : share > 1 ? 1 : share);
    if (share < 0.25)
        affinity_drop(s->affinity, t->matched, r->id);
}

static void remember(struct sched *s, const struct sched_ticket *t, uint64_t tokens, uint64_t prompt, uint64_t now)
{
    struct affinity_place p = {.replica = t->replica->id, .slot = t->slot, .generation = t->generation,
                               .tokens = tokens > UINT32_MAX ? UINT32_MAX : tokens ? (uint32_t)tokens : 1,
                               .prompt = prompt > UINT32_MAX ? UINT32_MAX : (uint32_t)prompt};
    if (t->n_chain)
        affinity_put(s->affinity, t->chain[t->n_chain - 1], &p);
    if (t->hint)
        affinity_put(s->affinity, t->hint, &p);
    if (t->n_chain || t->hint)
        affinity_live(s->affinity, t->n_chain ? t->chain[t->n_chain - 1] : t->hint, t->continues, now);
}

void sched_proved(const struct sched_ticket *t)
{
    if (t->state == SCHED_RUNNING && t->replica->life == t->life)
        praise(t->replica);
}

void sched_leave(struct sched *s, struct sched_ticket *t, const struct sched_outcome *o, uint64_t now)
{
    struct sched_replica *r = t->replica;
    if (t->state == SCHED_WAITING)
        leave_queue(s, t);
    if (t->state != SCHED_RUNNING || r->life != t->life) {
        t->state = SCHED_OUT;
        return;
    }
    t->state = SCHED_OUT;
    r->running--;
    if (o->result == SCHED_FAILED)
        blame(r, now);
    else if (o->result == SCHED_OK && o->proved)
        praise(r);
    if (!t->leased)
        return;
    uint64_t tokens = o->counted ? o->prompt_n + o->cached_n + o->predicted_n : t->tokens;
    r->active--;
    if (o->result == SCHED_OK)
        learn(&r->service_ms, (double)(now - t->started_ms));
    if (o->content && o->counted)
        correct(s, t, o);
    if (o->content)
        remember(s, t, tokens, o->counted ? o->prompt_n + o->cached_n : 0, now);
    if (t->slot != AFFINITY_NO_SLOT)
        release_slot(s, t, &r->slots[t->slot], tokens, o->content, now);
}

/* ---- room ---------------------------------------------------------------------------------------------------------- */

void sched_room(struct sched *s, struct sched_replica *const *replicas, size_t n, uint64_t now, struct sched_room *ret)
{
    bool tokens_known = n > 0, slots_known = n > 0, kept = false;
    *ret = (struct sched_room){0};
    for (size_t i = 0; i < n; i++) {
        const struct sched_replica *r = replicas[i];
        unsigned conversations;
        ret->working_set += affinity_working_set(s->affinity, r->id, now, &conversations);
        ret->conversations += conversations;
        if (!r->ready)
            continue;
        ret->capacity += r->context;
        ret->slots += r->n_slots;
        tokens_known = tokens_known && r->context;
        slots_known = slots_known && r->n_slots;
        kept = kept || r->kept >= KEPT_IN_RAM;
    }
    if (!tokens_known)
        ret->capacity = 0;
    if (!slots_known)
        ret->slots = 0;
    ret->crowded = !kept && ((ret->capacity && ret->working_set > ret->capacity) || (ret->slots && ret->conversations > ret->slots));
}
