/* SPDX-License-Identifier: MIT
 *
 * proxy, private: the router's parts.
 *
 *   config.c   the configuration: text, reading, look-ups
 *   proxy.c    the router's life, its replicas, its clock
 *   numbers.c  metrics, and a line for each request
 *   request.c  a request from its head to its end: reading, own answers, errors
 *   forward.c  the call to a replica: queue, sending, sending again
 *   answer.c   what comes back: held until it is sure, then passed on
 *   dialect.c  what the APIs call an event, an error, a sign of life
 *   place_int.h has the parts that choose
 *   see_int.h  what can be seen of requests, in see.c
 *   ask.c      what the owner may ask
 *   listen.c   where it is reached: socket and certificate, for its owner
 *   worker.c   the process around it: channel, signals
 *
 * A configuration never changes. What does change about a replica is a `peer` of the router, found by name, which outlives the swap of a configuration
 * and lives as long as the router: there are as many as there ever were names.
 */
#pragma once

#include <conf/conf.h>
#include <httpio/httpio.h>
#include <metrics/metrics.h>

#include "place_int.h"
#include "proxy.h"
#include "see_int.h"

#define PROXY_BODIES_MAX ((size_t)512 * 1024 * 1024) /* bytes of all bodies that are kept at once; more is 503 */
#define PROXY_BODY_SMALL 262144         /* a body up to here is handed over in one piece and may go to a kept connection */
#define PROXY_SLICE 65536               /* a larger one goes in pieces of this size, as the replica takes them */
#define PROXY_KNOWN_SHOWN 32            /* names listed in the answer to an unknown one */
#define PROXY_HOLD_MAX 65536            /* of an answer that is held until it is sure; a longer one is passed on */
#define PROXY_EVENT_MAX 65536           /* of an event that is read; of a longer one the front */
#define PROXY_TICK_MS 1000
#define PROXY_HEARTBEAT_MS 8000         /* silence on a stream after which a sign of life is sent: clients give up at 15 s */
#define PROXY_HANG_MS 95000             /* llama-server says something on a stream every 30 s, whatever it works on; who does not for so long hangs */
#define PROXY_LOG_FLUSH 32768
#define PROXY_RETRY_AFTER "2"           /* seconds until a client should ask again, when nothing is ready */
#define PROXY_SERIES_MAX 8192           /* endpoints x replicas x status codes, with room */
#define PROXY_LINE_MAX 1024             /* of what the worker says about a failed replica */

/* ---- config.c ------------------------------------------------------------------------------------------- */

struct proxy_replica {
    const char *name;   /* of the service */
    const char *served; /* the model name that its engine answers to */
    const char *host;   /* IP address or host name, as written */
    struct net_addr addr;
    bool resolved;      /* addr is valid: a host name may be unknown */
    bool ready;
    uint64_t generation;
    unsigned slots;     /* requests at once; 0: as many as come */
    uint64_t context;   /* tokens that all slots hold together; 0 unknown */
    bool pins;          /* takes id_slot */
};

struct proxy_endpoint {
    const char *name;
    const char *policy;
    const char *const *aliases;
    size_t n_aliases;
    const uint32_t *replicas; /* indices */
    size_t n_replicas;
};

struct proxy_config {
    unsigned refs;
    struct arena *arena;
    struct proxy_replica *replicas;
    size_t n_replicas;
    struct proxy_endpoint *endpoints;
    size_t n_endpoints;
    struct place_names names; /* of conversations */
};

/* As proxy_config_parse. A host name that `before` (may be NULL) has resolved is not looked up again: that would hold up every stream. */
int proxy_config_parse_after(struct str text, const struct proxy_config *before, struct proxy_config **ret, struct err *err) BASE_MUST_USE;
/* By name or alias; NULL. */
const struct proxy_endpoint *proxy_config_find(const struct proxy_config *c, struct str model);
bool proxy_config_any_ready(const struct proxy_config *c);

/* ---- proxy.c ---------------------------------------------------------------------------------------------- */

struct proxy_peer {
    struct sched_replica s;
    char name[FLEET_NAME_MAX + 1];
    char served[FLEET_NAME_MAX + 1];
    struct net_addr addr;
    /* as its answers told */
    uint64_t prompt_n, cached_n, predicted_n;
    struct see_rate rate; /* tokens of answers */
    size_t waiting;       /* requests that could go there, when last counted */
};
#define PROXY_PEER(r) base_container(r, struct proxy_peer, s)

struct proxy_request;

struct proxy {
    struct net_loop *loop;
    struct httpio_server *server;
    struct httpio_client *client;
    struct proxy_config *config; /* NULL until the first one */
    struct proxy_peer **peers;   /* all there ever were */
    size_t n_peers;
    struct proxy_peer **current; /* of config->replicas */
    struct affinity *affinity;
    struct sched *sched;
    struct net_timer *wake, *tick;
    uint64_t tick_ms, heartbeat_ms, hang_ms;
    bool pumping, ticking;
    struct proxy_request *streams; /* those that want signs of life */
    uint64_t seed, requests_seen;
    struct proxy_stats stats;
    size_t bodies, bodies_max; /* bytes kept */
    struct metrics *metrics;
    struct see *see;
    struct net_tls *tls;         /* NULL: plain HTTP */
    struct buf log; /* lines that are not written yet */
    /* Told of a replica that could not be reached; may be NULL. */
    void (*on_failed)(void *ctx, const char *service, uint64_t generation, const char *text);
    void *on_failed_ctx;
    /* Gets lines for the log of requests; NULL: there is none. */
    void (*on_log)(void *ctx, struct str lines);
    void *on_log_ctx;
};

/* Hands out what the scheduler has. Requests may be gone when it returns. */
void proxy_pump(struct proxy *p);
/* Sees to it that the clock ticks once more. */
void proxy_tick(struct proxy *p);
void proxy_stream_add(struct proxy_request *r);
void proxy_stream_remove(struct proxy_request *r);
/* How much room an endpoint of the configuration has. */
void proxy_room(struct proxy *p, const struct proxy_endpoint *e, struct sched_room *ret);

/* ---- dialect.c ------------------------------------------------------------------------------------------------ */

/* True when the client has something of its answer with this event; before it the answer may come from elsewhere. */
bool dialect_is_content(enum place_dialect d, const struct http_sse_event *e);
/* True for the event after which a stream may end. */
bool dialect_is_end(enum place_dialect d, const struct http_sse_event *e);
/* True for an event that says that the replica failed: *ret_code as it says, else 500. */
bool dialect_is_error(const struct http_sse_event *e, unsigned *ret_code);
/* How many tokens of an answer an event brings, as far as its name tells: none or one. */
unsigned dialect_tokens(enum place_dialect d, const struct http_sse_event *e);
struct str dialect_heartbeat(enum place_dialect d);
/* An error in a whole answer, and as an event of a stream. */
int dialect_error_body(enum place_dialect d, unsigned status, struct str message, struct buf *out) BASE_MUST_USE;
int dialect_error_event(enum place_dialect d, unsigned status, struct str message, struct buf *out) BASE_MUST_USE;

struct dialect_usage {
    bool known;
    uint64_t prompt_n, cached_n, predicted_n; /* prompt_n: without what was cached */
    double prompt_ms, predicted_ms;           /* 0 unknown */
};
/* Adds what an answer or an event's data says of tokens. */
void dialect_read_usage(struct str text, struct dialect_usage *u);

/* ---- request.c --------------------------------------------------------------------------------------------- */

struct proxy_request {
    struct proxy *proxy;
    struct httpio_exchange *x;
    struct proxy_config *config; /* the one it began with */
    const struct proxy_endpoint *endpoint;
    uint64_t number, since_ms;
    struct see_page *page;       /* NULL: unseen */
    struct buf body;
    size_t counted;              /* of body, in proxy->bodies */
    size_t model_off, model_len; /* of the model's value in body; len 0: there is none */
    /* where it goes */
    enum place_dialect dialect;
    bool stream;                 /* its client asked for one */
    struct sched_ticket ticket;
    struct sched_replica **candidates;
    uint64_t *chain;
    const char *last;            /* name of the last replica that had it; NULL */
    unsigned attempts;
    struct str parts[5];         /* of the body as this replica gets it */
    char *quoted;                /* the model's name there */
    char slot[32];
    size_t part, part_off;       /* how far a large body was sent */
    bool sending;                /* a large body is on its way */
    struct httpio_call *call;
    uint64_t byte_ms;            /* when the replica was last heard of */
    bool paused;                 /* it is not read until the client has taken what is queued */
    /* what comes back */
    const struct http_head *head; /* of the replica's answer, which is held; NULL */
    bool events;                 /* it is an event stream that is read */
    struct http_sse sse;
    struct buf held;
    bool content;                /* the client has something of the answer, or all of it is there */
    bool ended;                  /* its last event came */
    struct dialect_usage usage;
    uint64_t content_ms, sent_ms;
    unsigned status;             /* of the answer; 0 none yet */
    bool passing;                /* the answer is a replica's */
    bool cut;                    /* ... and broke off */
    bool cancelled;              /* by who runs the router */
    size_t turned_away;          /* where it would have stood in a queue that was full */
    uint64_t token_ms;           /* when the last token passed */
    struct metrics_series *gaps; /* where the time between them goes */
    struct proxy_request *next_stream, **at_stream; /* in proxy->streams */
};

extern const struct httpio_server_ops proxy_server_ops; /* ctx is the proxy */

/* Answers with an error of ours, in a stream that has begun as its last event. The request may be gone when it returns. */
void proxy_request_fail(struct proxy_request *r, unsigned status, const char *fmt, ...) BASE_PRINTF(3, 4);
/* Ends it because who runs the router says so. The request may be gone when it returns. */
void proxy_request_cancel(struct proxy_request *r);
/* Lets go of the kept body. */
void proxy_request_drop_body(struct proxy_request *r);

/* ---- forward.c ---------------------------------------------------------------------------------------------- */

/* Puts the complete request in line. The request may be gone when it returns. */
void proxy_forward(struct proxy_request *r);
/* It is its turn: ticket.replica is where, or NULL for nowhere. */
void proxy_forward_go(struct proxy_request *r, bool expired);
/* The call has ended badly, or does not answer: another replica, or an error. */
void proxy_forward_failed(struct proxy_request *r, const char *reason, const char *text, bool blame);
/* True when another ready replica has not had it. */
bool proxy_forward_another(const struct proxy_request *r);
/* The client has taken what was queued. */
void proxy_forward_drained(struct proxy_request *r);
/* Gives the lease back. */
void proxy_forward_leave(struct proxy_request *r, enum sched_result result);
void proxy_forward_send(struct proxy_request *r); /* more of a large body */

/* ---- answer.c --------------------------------------------------------------------------------------------------- */

extern const struct httpio_call_ops proxy_answer_ops;
/* Forgets what a call that failed has said. */
void proxy_answer_reset(struct proxy_request *r);
void proxy_answer_heartbeat(struct proxy_request *r);
/* The replica has said nothing for too long: another one, or the answer ends here. The request may be gone when it returns. */
void proxy_answer_hang(struct proxy_request *r);
/* Its content has begun and it is to end here. The request may be gone when it returns. */
void proxy_answer_cancel(struct proxy_request *r);

/* ---- numbers.c --------------------------------------------------------------------------------------------------- */

enum proxy_metric {
    PROXY_M_REQUESTS,
    PROXY_M_RETRIES,
    PROXY_M_CUT,
    PROXY_M_CANCELLED,
    PROXY_M_DECISIONS,
    PROXY_M_TOKENS,
    PROXY_M_PREDICTED,
    PROXY_M_REGRET,
    PROXY_M_HEARTBEATS,
    PROXY_M_HANDSHAKES,
    PROXY_M_QUEUE,
    PROXY_M_FIRST_BYTE,
    PROXY_M_INTER_TOKEN,
    PROXY_M_DURATION,
    PROXY_M_ACTIVE,
    PROXY_M_WAITING,
    PROXY_M_INDEX,
    PROXY_M_WORKING_SET,
    PROXY_M_CAPACITY,
    PROXY_M_CONVERSATIONS,
    PROXY_M_SLOTS,
    PROXY_M_CROWDED,
    PROXY_M_READY,
    PROXY_M_SUSPECT,
    PROXY_M_BUSY,
    PROXY_M_SPEED,
    PROXY_M_COUNT,
};
extern const struct metrics_desc proxy_metric_descs[PROXY_M_COUNT];
#define PROXY_M(p, which, ...) metrics_get((p)->metrics, which, (const char *const[]){__VA_ARGS__})

/* It is cancelled by who runs the router. */
void proxy_numbers_cancelled(const struct proxy_request *r);
/* At its end. */
void proxy_numbers_done(struct proxy_request *r, bool completed);
void proxy_log_flush(struct proxy *p);
