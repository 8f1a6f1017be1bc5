/* SPDX-License-Identifier: MIT
 *
 * net: the event loop, timers, signals, descriptors to watch, work for other threads, and TCP, TLS and unix streams, on libuv and OpenSSL. Owns every libuv handle's life: a caller holds an opaque pointer and gives it
 * back with the close function; memory is freed by the last close callback only. After *_close no callback of that object comes any more except a
 * stream's on_close. One loop, one thread: nothing here may be called from another thread, but net_wake_send.
 */
#pragma once

#include <base/base.h>
#include <sys/types.h>

struct net_loop;
/* Makes the process ignore SIGPIPE: a write to a closed connection is an error of that connection. */
int net_loop_new(struct net_loop **ret, struct err *err) BASE_MUST_USE;
/* Runs until net_loop_stop, or until nothing is left to wait for. May be called again. */
void net_loop_run(struct net_loop *l);
void net_loop_stop(struct net_loop *l);
/* Closes what is left (each stream's on_close is called), then frees. Not from a callback. */
struct net_loop *net_loop_free(struct net_loop *l);
uint64_t net_loop_now_ms(const struct net_loop *l); /* monotonic, as of this turn of the loop */

/* ---- timers, signals, descriptors ------------------------------------------------------------------------ */

struct net_timer;
/* Calls cb after delay_ms, then every repeat_ms when not 0. NULL without memory. */
struct net_timer *net_timer_new(struct net_loop *l, void (*cb)(void *ctx), void *ctx) BASE_MUST_USE;
void net_timer_start(struct net_timer *t, uint64_t delay_ms, uint64_t repeat_ms); /* again: starts over */
void net_timer_stop(struct net_timer *t);
struct net_timer *net_timer_close(struct net_timer *t); /* takes NULL; returns NULL */

struct net_signal;
int net_signal_new(struct net_loop *l, int signum, void (*cb)(void *ctx, int signum), void *ctx, struct net_signal **ret, struct err *err) BASE_MUST_USE;
struct net_signal *net_signal_close(struct net_signal *s);

/* Has another thread call cb on this loop's thread, soon. Sends before cb has begun may come as one call. */
struct net_wake;
int net_wake_new(struct net_loop *l, void (*cb)(void *ctx), void *ctx, struct net_wake **ret, struct err *err) BASE_MUST_USE;
void net_wake_send(struct net_wake *w); /* from any thread, until net_wake_close */
struct net_wake *net_wake_close(struct net_wake *w);

/* Calls cb whenever fd is readable (or ended). The descriptor stays the caller's and must outlive the watch. Level-triggered. */
struct net_watch;
int net_watch_new(struct net_loop *l, int fd, void (*cb)(void *ctx), void *ctx, struct net_watch **ret, struct err *err) BASE_MUST_USE;
struct net_watch *net_watch_close(struct net_watch *w);

/* Has work(ctx), which may wait for a disk, called on another thread, and then done(ctx) on this loop's thread, always and exactly once, at the latest while the loop is freed. A few are worked on at once, for all loops
 * of the process; the others wait in order. -ENOMEM; -ECANCELED: the loop is being freed. */
struct net_work;
int net_work_new(struct net_loop *l, void (*work)(void *ctx), void (*done)(void *ctx), void *ctx, struct net_work **ret) BASE_MUST_USE;
/* What has not been begun is not done; done is called soon all the same. Until then. */
void net_work_cancel(struct net_work *w);

/* ---- addresses ---------------------------------------------------------------------------------------------- */

/* A place to listen at or to connect to: an IP address with port, or a unix socket's path. */
#define NET_HOST_MAX 108 /* sun_path */
struct net_addr {
    char host[NET_HOST_MAX]; /* "127.0.0.1", "::1", or the path */
    uint16_t port;
    bool unix_path;
};
int net_addr_ip(const char *host, uint16_t port, struct net_addr *ret) BASE_MUST_USE;  /* -EINVAL unless an IP address */
int net_addr_unix(const char *path, struct net_addr *ret) BASE_MUST_USE;              /* -ENAMETOOLONG over 107 bytes */
/* "unix:PATH", or an IP address with that port. -EINVAL, -ENAMETOOLONG. */
int net_addr_parse(const char *text, uint16_t port, struct net_addr *ret) BASE_MUST_USE;
#define NET_ADDR_TEXT 128
const char *net_addr_text(const struct net_addr *a, char out[NET_ADDR_TEXT]); /* "127.0.0.1:80", "[::1]:80", path */
bool net_addr_eq(const struct net_addr *a, const struct net_addr *b);

/* ---- streams -------------------------------------------------------------------------------------------------- */

struct net_stream;
struct net_stream_ops {
    void (*on_connect)(void *ctx, int status);     /* once, for net_connect: 0 or a negative errno; after an error only net_stream_close is allowed. With TLS when the handshake is complete */
    void (*on_data)(void *ctx, struct str data);   /* valid during the call */
    void (*on_end)(void *ctx, int status);         /* 0: the peer has finished sending; negative errno: broken. Nothing more is read. Writing may go on after 0; if that breaks,
                                                    * a second and last on_end tells. Never called from within a function of net */
    void (*on_drain)(void *ctx);                   /* all that was queued has been written, after net_stream_queued was not 0 */
    void (*on_close)(void *ctx);                   /* last call: ctx may be freed */
};

/* Connects (TCP with no delay). Reading starts by itself once connected. ops are copied. */
int net_connect(struct net_loop *l, const struct net_addr *a, const struct net_stream_ops *ops, void *ctx, struct net_stream **ret, struct err *err) BASE_MUST_USE;
/* Takes over a connected socket descriptor (TCP, unix stream or one end of a socketpair); owns it also on failure. Reading starts by itself. */
int net_stream_from_fd(struct net_loop *l, int fd, const struct net_stream_ops *ops, void *ctx, struct net_stream **ret, struct err *err) BASE_MUST_USE;
/* Sets who is told from now on (for accepted streams). */
void net_stream_set_ops(struct net_stream *s, const struct net_stream_ops *ops, void *ctx);
/* Sends bytes: tries at once, copies and queues the rest (while connecting, everything). -ENOMEM, or -EPIPE once the connection is broken; both are told by on_end too, after what the peer
 * had sent before was read, so that a caller may leave it to on_end. */
int net_stream_write(struct net_stream *s, const struct str *parts, size_t n_parts) BASE_MUST_USE;
size_t net_stream_queued(const struct net_stream *s); /* bytes not written yet */
size_t net_stream_unsent(const struct net_stream *s); /* these and what the kernel holds because the peer has not taken it. One system call */
void net_stream_read(struct net_stream *s, bool on);  /* stops and resumes reading: back-pressure */
bool net_stream_gone(const struct net_stream *s);     /* the peer has finished sending or the connection is broken, also behind bytes that nobody reads. One system call */
bool net_stream_quiet(const struct net_stream *s);    /* connected and nothing waits to be read: no byte, no end, no error. One system call */
/* Finishes our sending side once the queue is empty. */
void net_stream_shutdown(struct net_stream *s);
/* Closes at once, what is queued is lost (reset: with RST, so that the peer sees an unclean end). on_close follows. Takes NULL; returns NULL. */
struct net_stream *net_stream_close(struct net_stream *s, bool reset);
/* Another descriptor of the same connection, close-on-exec, the caller's: what goes on when this program is replaced. -EAGAIN while bytes are queued. */
int net_stream_dup(const struct net_stream *s) BASE_MUST_USE;
/* pid, uid of a unix peer. */
int net_stream_peer_cred(const struct net_stream *s, pid_t *ret_pid, uid_t *ret_uid) BASE_MUST_USE;

/* ---- listening --------------------------------------------------------------------------------------------------- */

struct net_listener;
/* Makes a bound, listening, non-blocking, close-on-exec socket: for TCP with SO_REUSEADDR (and SO_REUSEPORT when reuseport), for unix a file made with mode 0600 (a stale
 * socket file that nobody listens at is replaced). -EADDRINUSE, -ENOTSOCK (something else is at the path) and others, with the address in err. The caller owns the descriptor. */
int net_listen_socket(const struct net_addr *a, bool reuseport, struct err *err) BASE_MUST_USE;
/* The address that a listening descriptor is bound to (the port, when 0 was asked for). */
int net_socket_addr(int fd, struct net_addr *ret) BASE_MUST_USE;
/* Accepts on a listening descriptor, which it owns from now on, also on failure. on_accept gets each new stream with reading stopped: set its ops, then net_stream_read(s, true). Running out of
 * descriptors pauses accepting for 100 ms. */
int net_listener_new(struct net_loop *l, int fd, void (*on_accept)(void *ctx, struct net_stream *s), void *ctx, struct net_listener **ret, struct err *err) BASE_MUST_USE;
struct net_listener *net_listener_close(struct net_listener *l);

/* ---- TLS ------------------------------------------------------------------------------------------------------------ */

/* A server's certificate (its chain behind it) and key, both PEM. Counted; may be shared by listeners of any thread, and all of these functions called from any. TLS 1.2 and 1.3, ALPN http/1.1. */
struct net_tls;
#define NET_PEM_MAX ((size_t)256 * 1024) /* of either: chains of certificates have a few kilobytes */
/* -EINVAL: they cannot be used, with the reason. */
int net_tls_new(struct str certificate, struct str key, struct net_tls **ret, struct err *err) BASE_MUST_USE;
/* Connections from here on get this pair; others keep theirs. On failure nothing changes. */
int net_tls_replace(struct net_tls *t, struct str certificate, struct str key, struct err *err) BASE_MUST_USE;
struct net_tls *net_tls_ref(struct net_tls *t);
struct net_tls *net_tls_unref(struct net_tls *t); /* takes NULL; returns NULL */
struct net_tls_stats {
    uint64_t done, failed, left; /* handshakes: complete; refused by either side; not complete when the connection ended */
};
void net_tls_stats(struct net_tls *t, struct net_tls_stats *ret);
/* Streams that the listener accepts from here on speak TLS: on_data and net_stream_write are what is inside. Bytes cannot be written before the peer has sent some. An end that the peer did not announce is
 * -ECONNRESET for on_end; net_stream_shutdown and a close without reset announce ours. Takes a reference. */
void net_listener_set_tls(struct net_listener *l, struct net_tls *t);
/* Of a client: believes the first certificate of this PEM text and no other, under whatever name, while it is valid by its dates. Counted as the server's. -EINVAL: there is none, or it cannot be used. */
int net_tls_trust(struct str certificate, struct net_tls **ret, struct err *err) BASE_MUST_USE;
/* Right after net_connect: the stream speaks TLS with a server that must show the certificate that t trusts. Bytes may be written at once; none is sent before that is proven. on_connect: -EKEYREJECTED when it is another
 * certificate, -EKEYEXPIRED when its dates are over or to come, -EPROTO for what is no TLS. Takes a reference. -ENOMEM. */
int net_stream_set_tls(struct net_stream *s, struct net_tls *t) BASE_MUST_USE;
/* False while a TLS handshake is not complete. */
bool net_stream_greeted(const struct net_stream *s);

/* ---- names ---------------------------------------------------------------------------------------------------------- */

/* Looks the name of a host up, as the system does it, on a thread of its own: a resolver that hangs holds nothing up, not even the end of the process. cb comes once: with the addresses in the order in which they are
 * to be tried, or with none and the reason, valid during the call. -EAGAIN: too many are looked up already. Cancelled before its loop is freed. */
#define NET_RESOLVE_MAX 8      /* addresses of a name that are told */
#define NET_RESOLVES_AT_ONCE 32 /* of this process; each costs a thread while it lasts */
struct net_resolve;
int net_resolve(struct net_loop *l, const char *host, uint16_t port, void (*cb)(void *ctx, const struct net_addr *addrs, size_t n, const char *why), void *ctx, struct net_resolve **ret,
                struct err *err) BASE_MUST_USE;
struct net_resolve *net_resolve_cancel(struct net_resolve *r); /* takes NULL; returns NULL */
