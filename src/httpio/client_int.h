/* SPDX-License-Identifier: MIT
 *
 * The client, inside: pool.c owns connections (links) and keeps idle ones by address (peers); client.c owns calls; fetch.c is a user of both.
 *
 * A call has exactly one link from its start to its end, a link at most one call. A link is freed by its stream's on_close only, never while a callback runs; a
 * call is freed when its last callback has returned or when it is cancelled, so after an owner was called the link's state is asked before the call is touched.
 * The client lives until its owner has freed it and its last link is gone.
 */
#pragma once

#include "httpio_int.h"

#define HTTPIO_MAGIC_CLIENT 0x68636c31u
#define HTTPIO_MAGIC_LINK 0x686c6b31u
#define HTTPIO_MAGIC_CALL 0x68636131u
#define HTTPIO_MAGIC_FETCH 0x68666531u

enum link_state {
    LINK_CONNECTING,
    LINK_BUSY,
    LINK_IDLE,   /* in its peer's list */
    LINK_CLOSED, /* waits for its stream's on_close */
};

struct httpio_link {
    uint32_t magic;
    enum link_state state;
    bool reused;     /* has carried a call before */
    bool once;       /* over TLS: not kept */
    bool keep_alive; /* the last response allows another call */
    unsigned generation; /* its peer's when it was made */
    struct httpio_client *client;
    struct httpio_peer *peer;
    struct net_stream *stream;
    struct http_parser *parser;
    struct httpio_call *call;
    uint64_t uses_left;
    uint64_t idle_ms;  /* for how long it may be idle: ours or the peer's limit */
    uint64_t idle_due;
    LIST_ENTRY(httpio_link) link, idle_link;
};

/* All connections to one address. */
struct httpio_peer {
    struct net_addr addr;
    size_t n_links, n_idle;
    unsigned generation; /* links of an earlier one are not kept */
    uint64_t epoch;      /* of its links, as callers count */
    LIST_HEAD(, httpio_link) idle; /* the latest first: it is the least likely to be closed by the peer */
    LIST_ENTRY(httpio_peer) link;
};

struct httpio_call {
    uint32_t magic;
    bool is_head;
    bool chunked;
    bool body_follows;
    bool request_done; /* the request is complete */
    bool repeated;     /* over a fresh link, after a kept one had it */
    bool lost;         /* the request's bytes are not at hand any more: no second try */
    bool got_byte;     /* of a response */
    bool head_seen;
    bool complete;
    bool paused;
    bool wait_drain;
    bool doomed;       /* its request cannot be completed */
    int64_t remaining; /* of a request body with a length; -1 without */
    struct httpio_client *client;
    struct httpio_link *to;
    struct httpio_call_ops ops;
    void *ctx;
    struct net_addr addr;
    struct net_tls *tls; /* asked for at its start alone: such a call is not tried again. NULL: plain */
    char *body; /* copy of the request's body for a second try */
    size_t body_len;
    uint64_t epoch, connect_due, head_due, stall_ms, last_ms;
    LIST_ENTRY(httpio_call) link;
    size_t head_len;
    char head[];
};

LIST_HEAD(httpio_call_list, httpio_call);

struct httpio_client {
    uint32_t magic;
    unsigned refs; /* the owner, each link, each walk */
    bool freed;
    struct net_loop *loop;
    struct httpio_client_options options;
    LIST_HEAD(, httpio_peer) peers;
    LIST_HEAD(, httpio_link) links;
    struct httpio_call_list calls, late; /* every call is in calls, or in late while a walk has it in its hands */
    LIST_HEAD(, httpio_fetch) fetches;
    struct httpio_sweep sweep;
    struct buf scratch; /* a head is made here */
};

void httpio_client_unref(struct httpio_client *c);

/* ---- pool.c ---- */
/* An idle link to the address that is certainly open and quiet, made busy; NULL: there is none. Links of another epoch are closed. */
struct httpio_link *httpio_pool_take(struct httpio_client *c, const struct net_addr *a, uint64_t epoch);
/* A new link, which connects. tls: as of a request. */
int httpio_pool_connect(struct httpio_client *c, const struct net_addr *a, struct net_tls *tls, uint64_t epoch, struct httpio_link **ret, struct err *err) BASE_MUST_USE;
/* The link's call is over: keeps it when it may be used again, else closes it. */
void httpio_pool_give(struct httpio_link *l, bool clean);
void httpio_link_kill(struct httpio_link *l);
/* What a response's Keep-Alive field says. */
void httpio_link_learn(struct httpio_link *l, const struct http_head *head);
/* Closes idle links whose time is up; returns when the next one's is. */
uint64_t httpio_pool_sweep(struct httpio_client *c, uint64_t now);

/* ---- client.c: what a link tells its call ---- */
void httpio_call_connected(struct httpio_link *l, int status);
void httpio_call_data(struct httpio_link *l, struct str data);
void httpio_call_ended(struct httpio_link *l, int status);
void httpio_call_drained(struct httpio_link *l);
extern const struct http_parser_ops httpio_call_parser_ops; /* ctx: the link */

/* ---- fetch.c ---- */
void httpio_fetch_forget(struct httpio_fetch *f); /* frees without a word; its call is the client's to cancel */
