/* SPDX-License-Identifier: MIT
 *
 * The server, inside: server.c owns listeners, limits, deadlines and the drain; conn.c owns what a connection reads and when it ends; exchange.c is what
 * an owner may do with an exchange.
 *
 * A connection is freed by its stream's on_close only, which never comes while a callback runs. So a connection may be used after an owner was called, and
 * all that must be asked again then is whether its state is still CONN_OPEN. The server lives until its owner has freed it and its last connection is gone.
 */
#pragma once

#include <stdatomic.h>

#include "httpio_int.h"

#define HTTPIO_MAGIC_SERVER 0x68737631u
#define HTTPIO_MAGIC_CONN 0x68636e31u
#define HTTPIO_MAGIC_EXCHANGE 0x68786331u

#define HTTPIO_PENDING_MAX ((size_t)16 * 1024) /* bytes of later requests kept while an exchange is under way; above it reading stops */
#define HTTPIO_DROP_MAX ((size_t)256 * 1024)   /* bytes of a request's body read and dropped after its response, before we rather close */
#define HTTPIO_LINGER_MS 2000                  /* how long a finished connection is read, so that the peer is not reset before it saw our answer */
#define HTTPIO_GONE_MS 200                     /* how often a client whose bytes are not read is asked for: its end is behind them */
#define HTTPIO_LINGER_BYTES ((size_t)1024 * 1024)
#define HTTPIO_FDS_ELSE 64                     /* descriptors that are no connections: refused ones that are told so, listeners, channels, files */
#define HTTPIO_REFUSED_MAX 64                  /* connections over the limit that are told so at once; more are just closed */
#define HTTPIO_RECLAIM_MS 1000                 /* a connection that waits for a request for so long may be closed to make room */
#define HTTPIO_RECLAIM_TRIES 8                 /* looks at connections that may make room, for one that needs it */
#define HTTPIO_HEADS_SHARE 4                   /* of the connections, one in so many may be in the middle of a head ... */
#define HTTPIO_HEADS_MIN 16                    /* ... and so many always */
#define HTTPIO_OUT_KEEP_BYTES 2048             /* a connection's head buffer above this is given back */

enum conn_state {
    CONN_OPEN,
    CONN_LINGER, /* everything is said; what still comes is dropped */
    CONN_CLOSED, /* waits for its stream's on_close */
};

/* What a connection is read for, which decides the limit that runs. */
enum conn_phase {
    PHASE_IDLE,  /* no byte of a request yet */
    PHASE_HEAD,
    PHASE_BODY,
    PHASE_BUSY,  /* the request is complete, its owner works */
    PHASE_DROP,  /* the exchange is over, the rest of its body is dropped */
};

struct httpio_exchange {
    uint32_t magic;
    bool active;      /* on_request was called and on_done was not */
    bool has_body;
    bool expect;      /* 100 Continue is to be sent before the body is read */
    bool paused;      /* the owner does not want the body now */
    bool begun;       /* the response's head is made */
    bool ended;       /* the response is complete */
    bool no_body;     /* HEAD, 204, 304 */
    bool chunked;
    bool wrong;       /* more was sent than announced: must not end cleanly */
    bool wait_drain;  /* httpio_send has returned true */
    int64_t remaining; /* of a response with a length; -1 without */
    const struct http_head *head;
    void *user;
};

/* What waits for the `soon` timer. */
enum { SOON_FLUSH = 1, SOON_NEXT = 2 };

struct httpio_conn {
    uint32_t magic;
    enum conn_state state;
    enum conn_phase phase;
    unsigned soon;       /* SOON_*; not 0: is in server->soon */
    bool refused;        /* over the limit of connections: not counted */
    bool feeding;        /* the parser runs: what follows an exchange is done when it returns */
    bool in_body;        /* between a request's head and its end */
    bool reading;        /* what net was told */
    bool close_after;    /* no other request after this exchange */
    bool eof;            /* the peer has finished sending */
    bool broken;         /* a write failed: on_end will tell */
    bool corked;         /* `out` holds a head that goes with the next bytes */
    struct httpio_server *server;
    struct net_stream *stream;
    struct http_parser *parser;
    uint64_t since;       /* when the phase began, or its last body byte came */
    uint64_t body_since, body_bytes; /* when reading of the body began, and what came of it since */
    uint64_t write_since; /* when the queue last moved; 0: it is empty */
    uint64_t given, write_seen; /* bytes handed to net; of these gone when last looked at */
    size_t dropped;
    struct buf out;       /* the head being written */
    struct buf pending;   /* bytes of later requests */
    struct httpio_exchange x;
    bool idle;            /* in server->idle */
    LIST_ENTRY(httpio_conn) link, soon_link;
    TAILQ_ENTRY(httpio_conn) idle_link;
    bool at_head;         /* in server->heads */
    TAILQ_ENTRY(httpio_conn) head_link;
};

struct httpio_port {
    struct httpio_server *server;
    struct net_listener *listener;
    LIST_ENTRY(httpio_port) link;
};

LIST_HEAD(httpio_conn_list, httpio_conn);

struct httpio_server {
    uint32_t magic;
    unsigned refs; /* the owner, each connection, each callback that walks */
    bool freed;
    bool soon_set;
    struct net_loop *loop;
    struct httpio_limits limits;
    struct httpio_server_ops ops;
    void *ctx;
    LIST_HEAD(, httpio_port) ports;
    struct httpio_conn_list conns, late, soon; /* every connection is in conns, or in late while a walk has it in its hands */
    TAILQ_HEAD(, httpio_conn) idle; /* connections without a request, the oldest first */
    TAILQ_HEAD(, httpio_conn) heads; /* in the middle of a head, the oldest first */
    size_t n_heads;
    size_t open, refused;
    atomic_uint_least64_t counts[HTTPIO_N_EVENTS];
    struct net_timer *soon_timer;
    struct httpio_sweep sweep;
    uint64_t drain_due;
    void (*drain_cb)(void *ctx);
    void *drain_ctx;
    uint64_t date_s;
    char date[HTTPIO_DATE];
};

/* ---- server.c ---- */
void httpio_server_unref(struct httpio_server *s);
/* Has the `soon` timer do `what` for c. */
void httpio_server_soon(struct httpio_conn *c, unsigned what);
void httpio_server_not_soon(struct httpio_conn *c, unsigned what);
/* A connection is gone: forgets it and looks whether a drain is complete. */
void httpio_server_gone(struct httpio_conn *c);
const char *httpio_server_date(struct httpio_server *s);

/* It has, or has no more, a request to wait for. */
void httpio_server_idle(struct httpio_conn *c, bool idle);
/* It is in the middle of a head, or is not any more. With too many of them the oldest is closed. */
void httpio_server_head(struct httpio_conn *c, bool on);
/* Closes a connection that has waited for long. False: there is none. */
bool httpio_server_make_room(struct httpio_server *s);
static inline void httpio_server_add_count(struct httpio_server *s, enum httpio_event e)
{
    atomic_fetch_add_explicit(&s->counts[e], 1, memory_order_relaxed);
}

/* ---- conn.c ---- */
void httpio_conn_accept(struct httpio_server *s, struct net_stream *stream);
/* Closes now. The exchange's on_done is the last thing that happens. */
void httpio_conn_kill(struct httpio_conn *c, bool reset);
/* Answers with an error of our own and lingers. An exchange that has not answered is ended; one that has is cut. */
void httpio_conn_refuse(struct httpio_conn *c, unsigned status, const char *type, const char *message);
void httpio_conn_next(struct httpio_conn *c);  /* goes on with pending bytes */
void httpio_conn_flush(struct httpio_conn *c); /* sends a corked head */
/* Hands bytes to net; a corked head goes before them. */
void httpio_conn_write(struct httpio_conn *c, const struct str *parts, size_t n_parts);
/* The response is complete and written. */
void httpio_conn_flushed(struct httpio_conn *c);
/* The part of a head that is the same for all: Date, Connection, the empty line. */
int httpio_conn_end_head(struct httpio_conn *c, bool with_date, unsigned minor);
void httpio_conn_continue(struct httpio_conn *c); /* 100 Continue, when it is owed */

/* ---- conn_limits.c ---- */
static inline uint64_t httpio_conn_now(const struct httpio_conn *c)
{
    return net_loop_now_ms(c->server->loop);
}
/* True when no request is there, not even its first byte. */
bool httpio_conn_unused(const struct httpio_conn *c);
void httpio_conn_update(struct httpio_conn *c); /* reading and phase, after anything they depend on */
/* Looks at one connection: when its next deadline is, or 0 when one has passed. */
uint64_t httpio_conn_due(struct httpio_conn *c, uint64_t now);
/* A deadline has passed. */
void httpio_conn_expire(struct httpio_conn *c, uint64_t now);
