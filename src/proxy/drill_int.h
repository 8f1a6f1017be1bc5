/* SPDX-License-Identifier: MIT
 *
 * proxy, private: the failure drill. A router of its own with the fleet's endpoints, whose replicas are mocks on loopback ports that the system chose; all in one loop.
 *
 *   drill.c        the router, the clients, the run
 *   drill_mock.c   replicas that fail in one way each
 *   drill_cases.c  what is tried, and what must come of it
 */
#pragma once

#include "proxy_int.h"

#define DRILL_WAIT_MS 5000   /* nothing of a case may take longer */
#define DRILL_LEAVE_MS 500   /* a client that leaves ends its call within; it is some milliseconds, unless the machine is busy */
#define DRILL_HANG_MS 60     /* the router's patience with a replica that says nothing, instead of minutes */
#define DRILL_PATIENT_MS 10000 /* ... and where silence is no failure: longer than anything may take */
#define DRILL_BEAT_MS 30     /* its signs of life, instead of seconds */
#define DRILL_BODY_MAX ((size_t)1 << 20)

/* ---- mocks -------------------------------------------------------------------------------------------------- */

enum drill_mode {
    DRILL_GOOD,      /* answers; streams when asked for one */
    DRILL_REFUSE,    /* does not listen */
    DRILL_RESET,     /* RST once the request is there */
    DRILL_EOF,       /* ends the connection instead of an answer */
    DRILL_GARBAGE,   /* answers something that is no HTTP */
    DRILL_500, DRILL_503, DRILL_429,
    DRILL_HEAD_ONLY, /* 200 and the head of a stream, then the end */
    DRILL_ERROR_EVENT, /* 200, and its first event is an error */
    DRILL_SHORT,     /* half of what Content-Length says, then the end */
    DRILL_DIE,       /* some content of a stream, then RST */
    DRILL_END_EARLY, /* some content of a stream, then its proper end without the last event */
    DRILL_SILENT,    /* takes the request and says nothing */
    DRILL_STALL,     /* some content of a stream, then nothing */
    DRILL_SLOW,      /* a stream with a pause between its events */
    DRILL_STALE,     /* answers, and closes the connection when the next request comes over it */
};

/* A request that two replicas broke off goes to no third, as it may be to blame: of these failures the replicas of a case have one. */
bool drill_breaks(enum drill_mode mode);

struct drill;
struct drill_mock;
/* Listens on a port of its own. */
int drill_mock_new(struct drill *d, struct drill_mock **ret, struct err *err) BASE_MUST_USE;
struct drill_mock *drill_mock_free(struct drill_mock *m);
/* From now on; forgets what was counted, and drops its connections. */
int drill_mock_set(struct drill_mock *m, enum drill_mode mode, struct err *err) BASE_MUST_USE;
uint16_t drill_mock_port(const struct drill_mock *m);
unsigned drill_mock_requests(const struct drill_mock *m);
/* Requests whose connection the router has closed before they were answered. */
unsigned drill_mock_left(const struct drill_mock *m);
/* Of the last request. */
struct str drill_mock_body(const struct drill_mock *m);
/* Answers what waits at one that is silent. */
void drill_mock_release(struct drill_mock *m);

/* ---- clients -------------------------------------------------------------------------------------------------- */

struct drill_client {
    struct drill *drill;
    struct httpio_call *call;
    unsigned status;
    bool done, failed; /* failed: the end was not a proper one */
    bool retry_after;
    char replica[FLEET_NAME_MAX + 1];
    struct buf body;
    unsigned pieces;
    uint64_t late_us; /* longest time between the mock's write and the client's read */
};
int drill_ask(struct drill *d, struct drill_client *c, const char *target, struct str body) BASE_MUST_USE;
void drill_client_release(struct drill_client *c); /* a call that is under way is left */

/* ---- the drill --------------------------------------------------------------------------------------------------- */

struct drill {
    const struct fleet *fleet;
    struct net_loop *loop;
    struct proxy *proxy;
    struct httpio_client *http;
    struct net_addr addr; /* of the router */
    char key[PROXY_KEY_TEXT]; /* that its clients show; empty where the fleet asks for none */
    struct net_timer *limit;
    bool expired;
    uint64_t generation, asked;
    unsigned breaks_left; /* requests that replicas still break off; the next one is answered */
    struct drill_mock **mocks; /* of each service */
    uint64_t sent_us;          /* when a mock has written the last event */
    /* the endpoint that is tried */
    const struct fleet_endpoint *endpoint;
    struct drill_mock **replicas;
    size_t n;
    bool pins;      /* its engines say something all the time, so that silence is a failure */
    unsigned slots; /* of all of its replicas; 0 any number */
    char why[256];  /* of a case that failed */
};
/* Wakes drill_wait. */
void drill_poke(struct drill *d);
/* Runs the loop until *what is true; false when it did not come in DRILL_WAIT_MS. */
bool drill_wait(struct drill *d, const bool *what);
/* The same for a condition of which nobody tells. */
bool drill_until(struct drill *d, bool (*is)(void *ctx), void *ctx);
uint64_t drill_now_us(void);
/* The replicas are as new; the one at `live` has mode good, the others mode. live SIZE_MAX: all have it. */
int drill_arm(struct drill *d, enum drill_mode mode, size_t live, bool ready, struct err *err) BASE_MUST_USE;

enum drill_verdict { DRILL_PASSED, DRILL_FAILED, DRILL_SKIPPED };
struct drill_case {
    const char *name, *expects;
    /* live: which replica is to answer, where one of several is. d->why says what was wrong. */
    enum drill_verdict (*run)(struct drill *d, const struct drill_case *c, size_t live);
    enum drill_mode mode;
    const char *target; /* NULL: chat */
};
/* A case of failover: where there is nobody else, an error is what must come. */
bool drill_moves(const struct drill_case *c);
extern const struct drill_case drill_cases[];
extern const size_t drill_n_cases;
