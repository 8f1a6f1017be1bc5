/* SPDX-License-Identifier: MIT
 *
 * httpio: the one HTTP server and the one HTTP client, on net and http. Both stream bodies both ways with back-pressure, bound everything that a peer can cause
 * and tell their owner through callbacks. One loop, one thread. Objects given to callbacks live until the callback that is named as the last one. Any function may be
 * called from any callback, on any object. Servers and clients are freed before their loop.
 */
#pragma once

#include <base/base.h>
#include <http/http.h>
#include <net/net.h>

/* Every limit of a connection, with its default. 0: none. Times are kept to about 50 ms. What a limit strikes is answered, when it can be: 408 for a head or body
 * that does not come, 431 for a head that is too large, 400 for what is malformed, 503 for too many, each with {"error":{"message","type","code"}} and a close. */
struct httpio_limits {
    uint64_t head_ms;         /* first byte of a head to its end, and of a connection's TLS handshake: 10 s */
    uint64_t idle_ms;         /* a kept-alive connection without a request: 60 s */
    uint64_t body_stall_ms;   /* no byte of a body that is being read: 60 s */
    uint64_t body_pace;       /* bytes a second that a body must bring on the whole, from its first body_stall_ms on: 512. Who sends a byte now and then would hold a connection for ever. 0: any */
    uint64_t write_stall_ms;  /* no progress of what is being sent: 60 s */
    size_t connections;       /* open at once: 4096, or as many as half of the process's descriptors serve. At the limit the one that has waited longest for a request, for a second at least, makes room; without such a one more are answered 503 and closed.
                               * A quarter of them, 16 at least, may be in the middle of a head; of more the one that has been for longest is closed */
    unsigned servers;         /* that share the process's descriptors: 1 */
    size_t send_high_bytes;   /* queued bytes above which httpio_send asks the owner to wait: 256 KiB */
};
#define HTTPIO_LIMITS_DEFAULT \
    ((struct httpio_limits){.head_ms = 10000, .idle_ms = 60000, .body_stall_ms = 60000, .body_pace = 512, .write_stall_ms = 60000, .connections = 4096, .servers = 1, .send_high_bytes = 262144})

/* What limits have done to connections, and how many there were. */
enum httpio_event {
    HTTPIO_ACCEPTED,
    HTTPIO_REFUSED,    /* over the limit of connections */
    HTTPIO_RECLAIMED,  /* closed without a request, to make room */
    HTTPIO_IDLE_OVER,  /* closed without a request, its time over */
    HTTPIO_HEAD_LATE,  /* 408: the head did not come */
    HTTPIO_BODY_LATE,  /* 408: the body stopped coming */
    HTTPIO_WRITE_STUCK, /* closed: its peer took nothing */
    HTTPIO_HEAD_CROWD, /* closed in the middle of a head: too many others were */
    HTTPIO_HEAD_LARGE, /* 431 */
    HTTPIO_BAD,        /* 400: malformed */
    HTTPIO_N_EVENTS,
};
const char *httpio_event_name(enum httpio_event e);

/* A field to be sent. A list is an array with its length. */
#define HTTPIO_FIELD(n, v) ((struct http_field){.name = (n), .value = (v)})

/* ---- server ----------------------------------------------------------------------------------------------- */

struct httpio_server;
struct httpio_exchange; /* one request and its response */

/* For each exchange: on_request, then on_body*, on_body_end (at once when there is no body), and at last on_done, after which the exchange is gone. Any may be
 * NULL except on_request and on_done. on_done comes also when the client has left or a limit struck: completed is then false; it always comes, exactly once. After it, or
 * after httpio_end, the rest of the body is not handed over. Completed means that the kernel has all of the response. A client that finishes its sending side before
 * the response is complete has left. Requests that come meanwhile over the same connection wait for their turn. */
struct httpio_server_ops {
    void (*on_request)(void *ctx, struct httpio_exchange *x, const struct http_head *head); /* head is valid until on_done */
    void (*on_body)(void *ctx, struct httpio_exchange *x, struct str data);
    void (*on_body_end)(void *ctx, struct httpio_exchange *x);
    void (*on_drain)(void *ctx, struct httpio_exchange *x);   /* after httpio_send returned true: send on */
    void (*on_done)(void *ctx, struct httpio_exchange *x, bool completed);
    void (*on_open)(void *ctx); /* one more connection. The server must not be freed in it */
};
struct httpio_server *httpio_server_new(struct net_loop *l, const struct httpio_limits *limits, const struct httpio_server_ops *ops, void *ctx) BASE_MUST_USE;
/* Serves a listening descriptor, which it owns from now on, also on failure. May be called for several. */
int httpio_server_add(struct httpio_server *s, int fd, struct err *err) BASE_MUST_USE;
/* The same over TLS. Takes a reference. */
int httpio_server_add_tls(struct httpio_server *s, int fd, struct net_tls *tls, struct err *err) BASE_MUST_USE;
/* Stops accepting; kept-alive connections without a request are closed, the others after their exchange ("Connection: close"). cb comes once none is left, at the latest after
 * deadline_ms, when the rest is closed. */
void httpio_server_drain(struct httpio_server *s, uint64_t deadline_ms, void (*cb)(void *ctx), void *ctx);
/* Closes everything at once (on_done of each exchange is called before it returns). Takes NULL; returns NULL. */
struct httpio_server *httpio_server_free(struct httpio_server *s);
size_t httpio_server_open(const struct httpio_server *s); /* connections */
uint64_t httpio_server_count(const struct httpio_server *s, enum httpio_event e); /* since it was made; from any thread */

void httpio_exchange_set(struct httpio_exchange *x, void *user);
void *httpio_exchange_get(const struct httpio_exchange *x);
const struct http_head *httpio_exchange_head(const struct httpio_exchange *x);
/* pid and uid of the peer of a unix socket; -ENOTSUP for TCP. */
int httpio_exchange_cred(const struct httpio_exchange *x, pid_t *ret_pid, uid_t *ret_uid) BASE_MUST_USE;
/* Back-pressure on the request body. What was already read (64 KiB at most) may still come. "Expect: 100-continue" is answered when the owner reads: at once unless it stopped
 * reading within on_request, then when it reads on. That a client has left is noticed within a quarter of a second while it is not read, else at once. */
void httpio_read(struct httpio_exchange *x, bool on);
/* Begins the response. length >= 0 sends Content-Length and exactly that many bytes must follow; -1 sends chunked to 1.1 clients and until-close to 1.0. Framing and Connection fields are added
 * here; giving them in fields is our bug and -EINVAL. Date is added unless given. A response to HEAD sends its head only, 204 and 304 too. The head goes out with the first bytes of the
 * body, or before the loop waits again. -EINVAL (a field that cannot be sent, the head is too large; another may be begun), -EALREADY, -ENOMEM. */
int httpio_begin(struct httpio_exchange *x, unsigned status, const struct http_field *fields, size_t n, int64_t length) BASE_MUST_USE;
/* Sends body bytes. True: more than send_high_bytes are queued; wait for on_drain. */
bool httpio_send(struct httpio_exchange *x, struct str data);
/* The response is complete. on_done follows, maybe before this returns. One that is longer or shorter than announced, or not begun, is aborted instead. */
void httpio_end(struct httpio_exchange *x);
/* Ends the exchange with an unclean close (RST after content was sent, so that no client takes it for a whole answer). */
void httpio_abort(struct httpio_exchange *x);
/* Ends a response that is not whole, after what was sent has gone out: its last chunk or part of its length is missing, so that its reader knows. Where only the connection's end would tell the end it is as httpio_abort. on_done follows. */
void httpio_cut(struct httpio_exchange *x);
/* A whole response in one call; aborts when one has begun. The request's body, if it is still coming, is read and dropped up to a bound, else the connection closes. */
void httpio_respond(struct httpio_exchange *x, unsigned status, const char *content_type, struct str body);

/* ---- client ------------------------------------------------------------------------------------------------- */

/* Keeps idle connections for reuse: per address at most `idle_max`, each for at most idle_ms (4 s: llama-server closes at 5.00 s) or less when the peer's Keep-Alive field says so, and within its max. */
struct httpio_client;
struct httpio_client_options {
    uint64_t connect_ms; /* 5 s */
    uint64_t idle_ms;    /* 4 s */
    size_t idle_max;     /* 64 */
    size_t send_high_bytes; /* 256 KiB */
};
#define HTTPIO_CLIENT_DEFAULT ((struct httpio_client_options){.connect_ms = 5000, .idle_ms = 4000, .idle_max = 64, .send_high_bytes = 262144})

enum httpio_failure {
    HTTPIO_CONNECT,   /* refused, unreachable, connect timed out, TLS did not come about */
    HTTPIO_RESET,     /* broken before the first byte of a response; on a reused connection the call has already been tried again on a fresh one if no body byte was lost, which may have been refused then */
    HTTPIO_CUT,       /* broken or ended in the middle of a response */
    HTTPIO_TIMEOUT,   /* the call's own limit */
    HTTPIO_MALFORMED, /* the response cannot be parsed */
};
const char *httpio_failure_text(enum httpio_failure f); /* of the kind: "no connection", "no answer in time", ... */

struct httpio_call;
/* on_head, on_body*, then exactly one of on_end and on_fail, after which the call is gone. None comes after httpio_call_cancel. */
struct httpio_call_ops {
    void (*on_head)(void *ctx, const struct http_head *head); /* valid until the last callback */
    void (*on_body)(void *ctx, struct str data);
    void (*on_end)(void *ctx);
    void (*on_fail)(void *ctx, enum httpio_failure f, const char *text); /* text: for people, "'ADDRESS': what happened", valid during the call */
    void (*on_drain)(void *ctx); /* after httpio_call_send returned true */
};
struct httpio_client *httpio_client_new(struct net_loop *l, const struct httpio_client_options *o) BASE_MUST_USE;
/* Cancels what runs (no callbacks). Takes NULL; returns NULL. */
struct httpio_client *httpio_client_free(struct httpio_client *c);
/* Closes idle connections to an address (a replica that was restarted). */
void httpio_client_forget(struct httpio_client *c, const struct net_addr *a);

struct httpio_request {
    struct net_addr addr;
    struct net_tls *tls;  /* net_tls_trust: over TLS, with that certificate at the other end, by a connection that is not kept; referred to. NULL: plain */
    struct str method, target;
    const struct http_field *fields; /* Host and framing are added here; both must not be given */
    size_t n_fields;
    struct str host;      /* value of Host; empty: the address */
    struct str body;      /* copied; the whole body when body_follows is false */
    bool body_follows;    /* body bytes come by httpio_call_send and end with httpio_call_end */
    int64_t body_length;  /* with body_follows: exact length of all of it, or -1 for chunked; a body that turns out otherwise fails the call */
    bool fresh;           /* no reused connection */
    uint64_t epoch;       /* a kept connection that was made for another epoch of the address is not used (a replica that was restarted) */
    uint64_t timeout_ms;  /* until the response's head; 0 none */
    uint64_t stall_ms;    /* without any byte of the response's body; 0 none */
};
/* Starts a call; what it needs is copied. Callbacks never come before this returns. -EINVAL, -ENOMEM, or the error of the socket call. */
int httpio_call(struct httpio_client *c, const struct httpio_request *r, const struct httpio_call_ops *ops, void *ctx, struct httpio_call **ret, struct err *err) BASE_MUST_USE;
bool httpio_call_send(struct httpio_call *k, struct str data); /* as httpio_send */
void httpio_call_end(struct httpio_call *k);
void httpio_call_read(struct httpio_call *k, bool on); /* back-pressure on the response body */
/* Closes its connection at once, so that the peer stops working. Takes NULL; returns NULL. */
struct httpio_call *httpio_call_cancel(struct httpio_call *k);

/* The field that shows an engine its key: *ret is valid as long as text. Returns how many fields that is: 0 without a key (NULL or ""). */
#define HTTPIO_BEARER_MAX 512
size_t httpio_bearer(const char *key, char text[HTTPIO_BEARER_MAX], struct http_field *ret);

/* A small call whose response is wanted whole: at most max_body bytes, timeout_ms for all of it. cb comes exactly once, unless cancelled, and body and failed are valid during it. failed is NULL when
 * there is a response, else why there is none, and status is 0: -ECONNREFUSED, -ECONNRESET, -EPIPE (cut in the middle), -ETIMEDOUT, -EBADMSG, -EFBIG, -ENOMEM, or what httpio_call returns. */
struct httpio_fetch;
typedef void httpio_fetched(void *ctx, unsigned status, struct str body, const struct err *failed);
struct httpio_fetch *httpio_fetch(struct httpio_client *c, const struct httpio_request *r, size_t max_body, uint64_t timeout_ms,
                                  httpio_fetched *cb, void *ctx) BASE_MUST_USE;
struct httpio_fetch *httpio_fetch_cancel(struct httpio_fetch *f);
