/* SPDX-License-Identifier: MIT
 *
 * proxy, private: what can be seen of requests while they run and for some time after. A book with a page for each request: those under way, and the last SEE_KEPT that have ended, oldest first
 * out. A page has a fixed size, so the book's memory is bounded by the number of connections. It has a lock of its own and may be used from any thread; a page belongs to the
 * request until see_end. Every function accepts a NULL page and does nothing: without memory a request is served unseen.
 *
 * Names of replicas are not copied: they live as long as the router.
 */
#pragma once

#include <conf/conf.h>
#include <fleet/fleet.h>

#include "place_int.h"

#define SEE_KEPT 512       /* requests remembered after their end */
#define SEE_INSIDE 64      /* of those under way, whose pages are where those of ended ones are */
#define SEE_SHOWN 256      /* of those under way, in one answer */
#define SEE_RECENT 64      /* of those that ended, in one answer: who looks gets it twice a second */
#define SEE_PATH_MAX 64    /* of a path; the rest is cut */
#define SEE_TRIES_MAX 8    /* failed attempts that are remembered */
#define SEE_RATE_S 5       /* seconds over which a rate is taken */

enum see_phase {
    SEE_READ,    /* its body is coming */
    SEE_QUEUE,   /* it waits for a slot */
    SEE_LOAD,    /* ... and no replica that could have it is ready */
    SEE_PREFILL, /* a replica has it and has said nothing yet */
    SEE_DECODE,  /* its answer is coming */
    SEE_DONE,
    SEE_N_PHASES,
};
const char *see_phase_name(enum see_phase p);

/* Events of the last SEE_RATE_S seconds. */
struct see_rate {
    uint64_t second; /* of the newest number */
    uint32_t n[SEE_RATE_S + 1];
};
void see_rate_add(struct see_rate *r, uint64_t now_ms, uint64_t n);
double see_rate_of(const struct see_rate *r, uint64_t now_ms); /* a second, over whole seconds */

struct see;
struct see_page;
struct see *see_new(void) BASE_MUST_USE;
struct see *see_free(struct see *s);

/* A request begins. owner and the place where it may be used: what see_owner gives back. */
struct see_page *see_begin(struct see *s, uint64_t number, void *owner, void *where, uint64_t now_ms, struct str method, struct str path);
struct see_named {
    const char *endpoint, *key; /* copied; key NULL: nobody in particular */
    const char *api;            /* not copied */
    uint64_t conversation;      /* 0 none */
    uint64_t prompt_tokens;     /* a guess */
    bool stream;
};
/* It is whole, and goes into the queue. */
void see_is(struct see *s, struct see_page *g, const struct see_named *n, uint64_t now_ms);
void see_phase(struct see *s, struct see_page *g, enum see_phase phase, uint64_t now_ms);
/* Where it stands in the queue, 1 first. */
void see_position(struct see *s, struct see_page *g, size_t position);
/* A replica gets it: whom the ticket chose, and from what. names[i]: of t->weighed[i]. */
void see_sent(struct see *s, struct see_page *g, const struct sched_ticket *t, const char *const *names, uint64_t now_ms);
/* It gets the answer of another one, which that replica has; NULL: none has it yet, or it is not known. */
void see_joined(struct see *s, struct see_page *g, const char *replica);
/* That attempt failed. reason is not copied. */
void see_failed(struct see *s, struct see_page *g, const char *reason);
void see_tokens(struct see *s, struct see_page *g, uint64_t n);
struct see_end {
    unsigned status;
    const char *outcome; /* "ok", "error", "cut", "slow", "left", "cancelled"; not copied */
    bool counted;        /* the replica told of tokens */
    uint64_t prompt_n, cached_n, predicted_n;
    double prompt_ms, predicted_ms; /* 0 unknown */
};
/* The page is the book's from now on. True with *ret_regret_ms when it is known by how much the best of the other candidates would have read the prompt sooner, as it looked when the
 * choice was made; 0: it would not. */
bool see_end(struct see *s, struct see_page *g, const struct see_end *e, uint64_t now_ms, double *ret_regret_ms);

/* Another owner has it from here on. */
void see_hand(struct see *s, struct see_page *g, void *owner);
/* The owner of a request under way; NULL: there is none of that number. Elsewhere than at *ret_where it may be gone at any time. */
void *see_owner(struct see *s, uint64_t number, void **ret_where);
/* Writes "requests" (under way, oldest first) and "recent" (newest first) into the object that o is in. -ENOMEM. */
int see_write_all(struct see *s, uint64_t now_ms, struct json_out *o) BASE_MUST_USE;
/* Writes one request with all that is known, as the members of the object that o is in. False: it is not known, or has been forgotten. */
bool see_write_one(struct see *s, uint64_t number, uint64_t now_ms, struct json_out *o);
