/* SPDX-License-Identifier: MIT
 *
 * up, private: which services on demand are to be up. Decisions only: no processes, no sockets, no clock of its own, so that every order of events can be tried in a test. The owner tells what
 * happened, then takes actions with demand_next until there are none, and comes back at demand_due at the latest.
 *
 *   DOWN -> LOADING -> READY -> CLOSING -> STOPPING -> DOWN
 *
 * One that is to go is first closed: the router sends it nothing new, and says so by the number of the configuration that it follows; when it then works on nothing it is stopped. So nothing that runs is ever
 * ended for another model, and nothing slips in between.
 *
 * Who waits longest is served first. A model that has been loaded may serve all who ask for it for a while (its turn), so that many waiting requests share one load; when its turn is over and another is
 * waited for, it is closed, however many ask for it. That bounds the wait.
 */
#pragma once

#include <base/base.h>

#define DEMAND_TURN_MIN_MS 5000    /* of a model that others wait for; twice the time of its load, at least this ... */
#define DEMAND_TURN_MAX_MS 60000   /* ... and at most this */
#define DEMAND_PAUSE_MS 1000       /* one that works on nothing keeps its turn so long: an agent's next request is on its way. Half the time of its load when that is less */
#define DEMAND_RETRY_MIN_MS 1000   /* after a failed start; doubles with each ... */
#define DEMAND_RETRY_MAX_MS 300000 /* ... up to here */
#define DEMAND_STABLE_MS 60000     /* one that ends by itself sooner after it was ready twice in a row waits as one that failed */
#define DEMAND_LOAD_GUESS_MS 2000  /* of a load that was never seen */

enum demand_state { DEMAND_DOWN, DEMAND_LOADING, DEMAND_READY, DEMAND_CLOSING, DEMAND_STOPPING };

struct demand_unit {
    /* set by the owner */
    bool pinned, preload;
    uint64_t idle_stop_ms; /* 0: never */
    /* ---- */
    enum demand_state state;
    uint64_t active;       /* requests that it works on, as last told */
    uint64_t waiting;      /* requests that wait for it */
    uint64_t since_ms;     /* when the first of them came */
    uint64_t used_ms;      /* when it last worked */
    uint64_t began_ms, ready_ms, load_ms;
    uint64_t seq;          /* CLOSING: the configuration without it */
    bool for_another;      /* CLOSING: it makes room */
    unsigned failures, deaths; /* in a row: starts that failed; ends of its own soon after it was ready */
    uint64_t retry_ms;     /* not before then */
};

struct demand {
    struct demand_unit *units;
    size_t n;
    uint64_t seq;          /* that the router follows */
    uint64_t due;
    /* Whether the units with up[i] may run at the same time, beside all that is always there. */
    bool (*fits)(void *ctx, const bool *up);
    void *ctx;
    bool *up, *keep;       /* scratch */
    size_t *order;
};

enum demand_what {
    DEMAND_START,  /* start it; later demand_ready or demand_failed */
    DEMAND_CLOSE,  /* tell the router; give the configuration's number to demand_closed at once */
    DEMAND_OPEN,   /* tell the router that it is there after all */
    DEMAND_STOP,   /* it works on nothing: stop it; later demand_gone */
    DEMAND_REFUSE, /* it cannot be started beside what must stay, and what waits for it will not be served: it counts as failed */
};
struct demand_action {
    enum demand_what what;
    size_t unit;
};

/* All units down. -ENOMEM. */
int demand_init(struct demand *d, size_t n, bool (*fits)(void *ctx, const bool *up), void *ctx) BASE_MUST_USE;
void demand_release(struct demand *d);

/* What the router tells: begin, then one line for each unit that it works with and for each group of units of which one is waited for, then end. What is not named works on nothing, and nobody waits for it.
 * seq: the newest configuration that it had followed before it counted. */
void demand_report_begin(struct demand *d);
void demand_report_active(struct demand *d, size_t unit, uint64_t active);
void demand_report_wait(struct demand *d, const size_t *units, size_t n, uint64_t waiting, uint64_t since_ms, uint64_t now);
void demand_report_end(struct demand *d, uint64_t seq, uint64_t now);

/* What became of actions, and what happens by itself. */
void demand_closed(struct demand *d, size_t unit, uint64_t seq);
void demand_loading(struct demand *d, size_t unit, uint64_t now); /* it is being started, by whom ever */
void demand_ready(struct demand *d, size_t unit, uint64_t now);
void demand_failed(struct demand *d, size_t unit, uint64_t now);
void demand_gone(struct demand *d, size_t unit);
void demand_died(struct demand *d, size_t unit, uint64_t now); /* it ended by itself after it was ready: started again for who waits, or when it is pinned */

/* The next thing to do; false: nothing until something happens or demand_due. The state follows at once. */
bool demand_next(struct demand *d, uint64_t now, struct demand_action *ret) BASE_MUST_USE;
uint64_t demand_due(const struct demand *d); /* UINT64_MAX: never */
/* Whether a request may wait for it: false after a failure, until it is tried again. */
bool demand_startable(const struct demand *d, size_t unit, uint64_t now);
