/* SPDX-License-Identifier: MIT
 *
 * proxy, private: where a request goes. Parts without sockets and without a clock of their own, so that each can be tested by itself:
 *
 *   identity.c  what a request is part of: its conversation, found from its messages or from what the client says, and its scaffold
 *   affinity.c  which replica holds how much of a conversation
 *   memory.c    the same as bytes, so that a restart of the router forgets nothing
 *   sched.c     slots, policies: who is sent where, and when
 *   queue.c     who waits, in which order
 *
 * A conversation is the chain of its messages' hashes: the next turn has the last one as an exact prefix, so the longest known chain is the conversation. System text and tools, which all
 * conversations of an agent share, are the scaffold: it seeds the chain and is never a match by itself.
 */
#pragma once

#include <base/base.h>
#include <http/http.h>

/* ---- identity.c ----------------------------------------------------------------------------------------- */

enum place_dialect {
    PLACE_OTHER,       /* no generation: neither queue nor slot */
    PLACE_CHAT,        /* /v1/chat/completions */
    PLACE_COMPLETIONS, /* /v1/completions, /completion, /infill: one prompt */
    PLACE_RESPONSES,   /* /v1/responses */
    PLACE_MESSAGES,    /* /v1/messages */
    PLACE_BATCH,       /* embeddings, rerank, audio, images: takes a slot, has no conversation */
    PLACE_N_DIALECTS,
};

#define PLACE_CHAIN_MAX 1024      /* messages whose hashes are kept, the last ones: older turns are found through newer ones */
#define PLACE_HINT_MAX 512        /* bytes of a session's name; a longer one is no name */
#define PLACE_BYTES_PER_TOKEN 4   /* until a replica says how many tokens a prompt had */

struct place_identity {
    enum place_dialect dialect;
    bool stream;           /* "stream": true */
    bool pinned;           /* the client names an id_slot itself */
    uint64_t scaffold;     /* 0 without system text and tools */
    uint64_t scaffold_tokens, tokens; /* estimates; tokens is of everything */
    uint64_t hint;         /* what the client calls the session; 0 nothing */
    uint64_t flow;         /* for whom the queue is fair: the hint, else the conversation's first message */
    size_t n;              /* of chain */
    uint64_t chain[PLACE_CHAIN_MAX]; /* hash of everything up to and with each message */
};

/* Header fields that name a session, first to last. */
struct place_names {
    const char *const *names;
    size_t n;
};
extern const struct place_names place_names_default;
/* Reads a request: what its body says, on any thread, and then how its head names it. body may be anything; what is no JSON object has no conversation. seed makes hashes unpredictable for clients. */
void place_read(enum place_dialect dialect, struct str body, uint64_t seed, struct place_identity *ret);
void place_name(const struct http_head *head, const struct place_names *names, uint64_t seed, struct place_identity *id);
enum place_dialect place_dialect_of(struct str method, struct str path);
const char *place_dialect_name(enum place_dialect d);
/* Never 0. Who does not know the seed cannot find two texts with the same one. */
uint64_t place_hash(uint64_t seed, struct str s);

/* ---- affinity.c ------------------------------------------------------------------------------------------- */

#define AFFINITY_BYTES_MAX 16777216 /* about 190,000 turns; what was not asked for longest goes first */
#define AFFINITY_MATCHES 8          /* replicas that a look-up tells of */
#define AFFINITY_HITS 4             /* known prefixes that it looks at, the longest first */
#define AFFINITY_NO_SLOT UINT32_MAX
#define AFFINITY_PLACES 2           /* of one turn: where it was, and where it went when that was busy */
#define AFFINITY_LIVE_MS 600000     /* a conversation without a turn for so long is no part of the working set */
#define AFFINITY_FIRST UINT32_MAX   /* a cursor before the newest turn */

/* What one process of a replica holds of a conversation. */
struct affinity_place {
    uint32_t replica;    /* number that is never used again */
    uint32_t slot;       /* or AFFINITY_NO_SLOT */
    uint64_t generation; /* of its process: another one holds nothing */
    uint32_t tokens;
    uint32_t prompt;     /* of these without the answer: what the same prompt finds again; 0: not known */
};
struct affinity_match {
    struct affinity_place place;
    uint64_t key; /* of the turn that was found */
    size_t links; /* length of the chain that matched; 0: found by the hint */
    uint64_t used_ms; /* when that turn ended */
};

struct affinity;
struct affinity *affinity_new(size_t max_bytes) BASE_MUST_USE;
struct affinity *affinity_free(struct affinity *a);
/* For each replica that holds something of this conversation what it holds most; the longest known chain first, what only the hint leads to last. Returns how many. O(n). */
size_t affinity_find(struct affinity *a, const uint64_t *chain, size_t n, uint64_t hint, struct affinity_match ret[AFFINITY_MATCHES]);
/* That place holds the turn `key`. Forgets others when there is no room; without memory nothing is learnt. */
void affinity_put(struct affinity *a, uint64_t key, const struct affinity_place *p);
/* That replica turned out not to hold it. */
void affinity_drop(struct affinity *a, uint64_t key, uint32_t replica);
size_t affinity_bytes(const struct affinity *a);
/* The newest turn of a conversation is `key`, which was put before; `before` (0: none) was it until now. */
void affinity_live(struct affinity *a, uint64_t key, uint64_t before, uint64_t now_ms);
/* Tokens of the conversations at that replica which had a turn within AFFINITY_LIVE_MS, each with its newest one; how many they are (may be NULL). */
uint64_t affinity_working_set(struct affinity *a, uint32_t replica, uint64_t now_ms, unsigned *ret_conversations);
uint64_t affinity_changes(const struct affinity *a); /* counts them: what was saved at the same number is not out of date */
/* Walks all turns, the one that was used last first; *cursor begins as AFFINITY_FIRST. A place with tokens 0 is none. The index must not change meanwhile. */
bool affinity_next(const struct affinity *a, uint32_t *cursor, uint64_t *ret_key, struct affinity_place ret[AFFINITY_PLACES]) BASE_MUST_USE;

/* ---- memory.c ---------------------------------------------------------------------------------------------- */

/* The index as bytes, for the next process of the router. Little-endian:
 *
 *   "berthidx", u32 version, u32 replicas, u32 turns, u64 seed of the hashes
 *   each replica:  u64 generation, u32 prompt tokens a second (0: not known), u32 thousandths of what is kept, u8 length, name
 *   each turn:     u64 key, u32 tokens, u16 replica, u16 slot (65535: none); the one that was used last first
 *   u64 hash of everything before
 *
 * A replica whose process is another one by then holds nothing: its turns are passed over. */
#define MEMORY_VERSION 2
#define MEMORY_TURNS_MAX 8192         /* of which nobody was used longer ago than of the others */
#define MEMORY_REPLICAS_MAX 1024
#define MEMORY_BYTES_MAX 524288       /* no file of this version is larger */

struct sched_replica;
struct memory_replica {
    const char *name; /* at most 255 bytes */
    struct sched_replica *r;
};
/* Fails as buf does. */
int memory_save(const struct affinity *a, uint64_t seed, const struct memory_replica *replicas, size_t n, struct buf *out) BASE_MUST_USE;
/* Fills an index that is empty, and what was learnt of those replicas, which have their generation and slots already. *ret_seed: what keys are made with. -EBADMSG: the text is broken; -ENOTSUP: of another
 * version; nothing is changed then. */
int memory_load(struct affinity *a, struct str text, const struct memory_replica *replicas, size_t n, uint64_t *ret_seed, struct err *err) BASE_MUST_USE;

/* ---- sched.c ------------------------------------------------------------------------------------------------ */

#define SCHED_QUEUE_MAX 1024          /* waiting requests; more are refused */
#define SCHED_QUEUE_MS 600000         /* longest wait: long prefills before it are normal, more than ten minutes are not */
#define SCHED_WALK_MS 1000            /* so often everybody's wait is looked at, also when nobody can have a turn */
#define SCHED_SLOTS_MAX 256
#define SCHED_SUSPECT_MS 1000         /* how long a replica that failed is left alone; doubles with each failure ... */
#define SCHED_SUSPECT_MAX_MS 30000    /* ... up to this */
#define SCHED_HOLD_MAX_MS 250         /* a freed slot waits so long at most for its conversation's next turn */
#define SCHED_STARVED_TURNS 8         /* who has waited this many mean service times is not passed by continuing conversations */
#define SCHED_TPS_GUESS 500.0         /* prompt tokens a second, until a replica has told */
#define SCHED_WEIGHED_MAX 8           /* candidates that a ticket remembers of its choice */

struct sched_slot {
    bool busy;
    uint64_t key;      /* last turn in it; 0: nothing was put there yet */
    uint64_t used_ms;
    uint64_t hold_until_ms; /* for the next turn after key */
};

/* A replica as the scheduler sees it. The owner embeds it, and fills what is above the line through sched_replica_set. */
struct sched_replica {
    uint32_t id;
    uint64_t generation;
    bool ready;
    unsigned n_slots; /* requests at once; 0: as many as come */
    bool pins;        /* takes id_slot */
    uint64_t context; /* tokens that its slots hold together; 0 unknown. The owner writes it */
    bool startable;   /* not ready, and it is worth waiting for */
    /* ---- */
    unsigned running; /* tickets of this generation, leased or not */
    uint64_t life;    /* counts its generations: a lease of another one is void */
    unsigned active;  /* leases of this generation */
    uint64_t used;    /* when it last had its turn, counted in turns */
    unsigned failures;     /* in a row */
    uint64_t suspect_ms;   /* until then it is the last choice */
    unsigned window;       /* after failures: how many at once, rising; 0: no limit but its slots */
    bool told;             /* prefill_tps is what its answers told, not the guess */
    double prefill_tps, service_ms, kept; /* learned; kept: share of a prediction that holds when the slot was used by others since */
    struct sched_slot *slots; /* n_slots of them when it pins */
};

enum sched_decision { SCHED_COLD, SCHED_AFFINE, SCHED_OVERFLOW, SCHED_TURN, SCHED_LEAST, SCHED_HASH, SCHED_RETRY, SCHED_JOINED, SCHED_N_DECISIONS };
const char *sched_decision_name(enum sched_decision d);

enum sched_state { SCHED_OUT, SCHED_WAITING, SCHED_RUNNING };

/* A candidate as it looked when the choice was made. */
struct sched_weighed {
    const struct sched_replica *replica;
    uint64_t cached;    /* tokens that should come from its cache */
    double wait_ms;     /* until a slot should be free */
    double prefill_tps;
};

/* Tickets with the same policy and candidates: when none of these has room for one of them, none has for the others, which need not be looked at. */
struct sched_group {
    size_t waiting; /* leased ones that no candidate has had yet */
    uint64_t full;  /* the walk that found no room */
};

/* Tickets that wait and have something in common: their owner, or their owner and their flow. */
enum sched_kinship { SCHED_BY_OWNER, SCHED_BY_FLOW, SCHED_N_KINSHIPS };
struct sched_kin {
    uint64_t owner, flow; /* flow 0: all of the owner */
    size_t n;
    uint64_t most; /* no `place` of theirs is above it */
    struct sched_ticket *first, *last;
    struct sched_kin *next; /* in the table's place */
};
struct sched_link {
    struct sched_ticket *next, *before;
};

/* One request. The owner keeps it from sched_enter until it is out again. */
struct sched_ticket {
    /* set by the owner */
    const char *policy;
    struct sched_group *group; /* NULL: it is looked at by itself */
    struct sched_replica **candidates;
    uint64_t *tried; /* bit i: candidates[i] had it */
    size_t n_candidates;
    const uint64_t *chain;
    size_t n_chain;
    uint64_t hint, flow, tokens;
    uint64_t owner; /* of the request, between whom the queue is fair first; 0: it is fair between flows alone */
    uint64_t seq; /* tells tickets without a conversation apart */
    bool leased; /* takes a slot; else it only needs a replica */
    bool pinned; /* the client chose a slot */
    /* set here */
    enum sched_state state;
    struct sched_replica *replica; /* NULL when handed out: none is ready */
    size_t index;                  /* of it in candidates */
    uint64_t generation, life;     /* of it */
    uint32_t slot;                 /* AFFINITY_NO_SLOT: leave it to the engine */
    bool displaced;                /* others used the slot since */
    enum sched_decision decision;
    uint64_t matched;              /* key of the turn that decided; 0 none */
    uint64_t continues;            /* key of the conversation's last turn, wherever it was; 0 none */
    uint64_t predicted;            /* tokens that should come from its cache */
    uint64_t entered_ms, started_ms, rank;
    uint64_t offered_ms; /* when it first waited on for its conversation's replica though another had room; 0: it did not */
    uint64_t waited_ms; /* before earlier replicas */
    uint64_t place;                /* how many of its owner and flow waited before it */
    bool grouped;                  /* counted in its group */
    struct sched_ticket *next, *before;
    struct {
        struct sched_link link;
        struct sched_kin kin; /* when it lies here */
    } kinship[SCHED_N_KINSHIPS];
    struct sched_weighed weighed[SCHED_WEIGHED_MAX]; /* the chosen one first */
    size_t n_weighed;
};

enum sched_result { SCHED_OK, SCHED_FAILED, SCHED_ABANDONED }; /* abandoned: says nothing of the replica */

/* What a request taught. Zeroes are unknown. */
struct sched_outcome {
    enum sched_result result;
    bool proved;       /* with SCHED_OK: what the replica was blamed for is forgiven, as by sched_proved */
    bool content;      /* the prompt was read to its end */
    bool counted;      /* the numbers are known */
    uint64_t prompt_n, cached_n, predicted_n;
    double prompt_ms;
};

struct sched;
struct sched *sched_new(struct affinity *a) BASE_MUST_USE; /* borrows the index */
struct sched *sched_free(struct sched *s);
bool sched_policy_known(struct str name);
/* The owner tells what a replica is. A new generation begins without leases, slots and blame. -ENOMEM. */
int sched_replica_set(struct sched_replica *r, bool ready, uint64_t generation, unsigned n_slots, bool pins) BASE_MUST_USE;
void sched_replica_release(struct sched_replica *r);
/* The ticket waits until sched_next hands it out; -EBUSY when the queue is full. After a failure the owner marks the candidate as tried and enters it again: it is never refused then, goes
 * first, and its wait is counted anew. */
int sched_enter(struct sched *s, struct sched_ticket *t, uint64_t now_ms) BASE_MUST_USE;
/* The next ticket that goes to a replica, running; or one out with replica NULL that no ready replica is left for (`expired`: that has waited too long). NULL: all others wait. */
struct sched_ticket *sched_next(struct sched *s, uint64_t now_ms, bool *ret_expired);
/* When sched_next may have something without anything else having happened; UINT64_MAX never. */
uint64_t sched_due(const struct sched *s);
/* Its replica answers: what it was blamed for is forgiven, and it gets more at once. */
void sched_proved(const struct sched_ticket *t);
/* All that a ticket which was handed out has waited, before each replica that it had. */
static inline uint64_t sched_waited_ms(const struct sched_ticket *t)
{
    return t->waited_ms + (t->started_ms > t->entered_ms ? t->started_ms - t->entered_ms : 0);
}
/* A running one is over, or a waiting one leaves. Harmless when out. */
void sched_leave(struct sched *s, struct sched_ticket *t, const struct sched_outcome *o, uint64_t now_ms);
size_t sched_waiting(const struct sched *s);
/* The waiting ones, first to last along their `next`; NULL: none. */
struct sched_ticket *sched_first(const struct sched *s);
/* What an endpoint's replicas are asked to hold, against what they can. `crowded`: they cannot, so that prompts are read again whatever is decided here. */
struct sched_room {
    uint64_t working_set, capacity; /* tokens; capacity 0: unknown */
    unsigned conversations, slots;  /* slots 0: unknown */
    bool crowded;
};
void sched_room(struct sched *s, struct sched_replica *const *replicas, size_t n, uint64_t now_ms, struct sched_room *ret);
