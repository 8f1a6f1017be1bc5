/* SPDX-License-Identifier: MIT
 *
 * proxy, private: the router's parts.
 *
 *   config.c   the configuration: text, reading, look-ups
 *   proxy.c    the router's life, what it knows of replicas beyond the configuration, numbers
 *   request.c  a request from its head to its end: reading, own answers, errors
 *   forward.c  the call to a replica: choosing, sending, sending again, passing the answer through
 *   worker.c   the process around it: channel, signals
 *
 * A configuration never changes. What does change about a replica (its turn, whether it just failed) is a `peer` of the
 * router, found by name, so that it outlives the swap of a configuration.
 */
#pragma once

#include <conf/conf.h>
#include <httpio/httpio.h>
#include <metrics/metrics.h>

#include "proxy.h"

#define PROXY_BODIES_MAX ((size_t)512 * 1024 * 1024) /* bytes of all bodies that are kept at once; more is 503 */
#define PROXY_BODY_SMALL 262144         /* a body up to here is handed over in one piece and may go to a kept connection */
#define PROXY_SLICE 65536               /* a larger one goes in pieces of this size, as the replica takes them */
#define PROXY_KNOWN_SHOWN 32            /* names listed in the answer to an unknown one */
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
};

struct proxy_endpoint {
    const char *name;
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
};

/* As proxy_config_parse. A host name that `before` (may be NULL) has resolved is not looked up again: that would hold up every stream. */
int proxy_config_parse_after(struct str text, const struct proxy_config *before, struct proxy_config **ret, struct err *err) BASE_MUST_USE;
/* By name or alias; NULL. */
const struct proxy_endpoint *proxy_config_find(const struct proxy_config *c, struct str model);
bool proxy_config_any_ready(const struct proxy_config *c);

/* ---- proxy.c ---------------------------------------------------------------------------------------------- */

/* What is known of a replica beyond the configuration. peers[i] belongs to config->replicas[i]. */
struct proxy_peer {
    uint64_t used;       /* when it last had its turn, counted in turns */
    uint64_t suspect_ms; /* until then it is the last choice */
};

enum proxy_metric {
    PROXY_M_REQUESTS,
    PROXY_M_RETRIES,
    PROXY_M_CUT,
    PROXY_M_CANCELLED,
    PROXY_M_FIRST_BYTE,
    PROXY_M_DURATION,
    PROXY_M_ACTIVE,
    PROXY_M_READY,
    PROXY_M_COUNT,
};

struct proxy {
    struct net_loop *loop;
    struct httpio_server *server;
    struct httpio_client *client;
    struct proxy_config *config; /* NULL until the first one */
    struct proxy_peer *peers;
    uint64_t turns;
    struct proxy_stats stats;
    size_t bodies; /* bytes kept */
    struct metrics *metrics;
    /* Told of a replica that could not be reached; may be NULL. */
    void (*on_failed)(void *ctx, const char *service, uint64_t generation, const char *text);
    void *on_failed_ctx;
};

/* The peer of a replica that a request found in its own configuration; NULL when there is none of that name and generation any more. */
struct proxy_peer *proxy_peer_of(struct proxy *p, const struct proxy_config *c, const struct proxy_replica *r);

/* ---- request.c --------------------------------------------------------------------------------------------- */

struct proxy_request {
    struct proxy *proxy;
    struct httpio_exchange *x;
    struct proxy_config *config; /* the one it began with */
    const struct proxy_endpoint *endpoint;
    const struct proxy_replica *replica; /* of the call under way */
    uint64_t since_ms;
    struct buf body;
    size_t counted;              /* of body, in proxy->bodies */
    size_t model_off, model_len; /* of the model's value in body; len 0: there is none */
    uint64_t *tried;             /* bit i: endpoint->replicas[i] had this request */
    unsigned attempts;
    struct str parts[3];         /* of the body as this replica gets it */
    char *quoted;                /* parts[1] */
    size_t part, part_off;       /* how far a large body was sent */
    bool sending;                /* a large body is on its way */
    struct httpio_call *call;
    unsigned status;             /* of the answer; 0 none yet */
    bool passing;                /* the answer is a replica's */
    bool cut;                    /* ... and broke off */
};

extern const struct httpio_server_ops proxy_server_ops; /* ctx is the proxy */

/* Answers with an error of ours. The request may be gone when it returns. */
void proxy_request_fail(struct proxy_request *r, unsigned status, const char *type, const char *fmt, ...) BASE_PRINTF(4, 5);
/* Lets go of the kept body. */
void proxy_request_drop_body(struct proxy_request *r);

/* ---- forward.c ---------------------------------------------------------------------------------------------- */

/* Sends the complete request to a replica. The request may be gone when it returns. */
void proxy_forward(struct proxy_request *r);
/* The client has taken what was queued. */
void proxy_forward_drained(struct proxy_request *r);
