/* SPDX-License-Identifier: MIT
 *
 * net, inside: the shape of the loop and of every object that owns libuv handles. Each object begins with a magic number; `data` of each of its handles
 * points to the object, so that the walk in net_loop_free and the assertions in callbacks can tell what they hold. An object is freed by the last close
 * callback of its handles and nowhere else.
 */
#pragma once

#include <sys/queue.h>
#include <uv.h>

#include "net.h"

#define NET_MAGIC_LOOP 0x6e6c6f31u
#define NET_MAGIC_TIMER 0x6e746d31u
#define NET_MAGIC_SIGNAL 0x6e736731u
#define NET_MAGIC_WATCH 0x6e776131u
#define NET_MAGIC_WAKE 0x6e776b31u
#define NET_MAGIC_WORK 0x6e776f31u
#define NET_MAGIC_STREAM 0x6e737431u
#define NET_MAGIC_LISTENER 0x6e6c6931u
#define NET_MAGIC_DEAD 0xdeadbeefu /* written before memory is freed */

#define NET_READ_BYTES ((size_t)64 * 1024)         /* the loop's one read buffer: what one read may take */
#define NET_PLAIN_BYTES ((size_t)16 * 1024)        /* of one TLS record at most */
#define NET_QUEUE_MAX ((size_t)1024 * 1024 * 1024) /* most bytes a stream may queue: owners bound what they send well below */
#define NET_PARTS 16                               /* parts handed to the kernel at once */
#define NET_ACCEPT_BATCH 64                        /* connections accepted before others get their turn */
#define NET_ACCEPT_PAUSE_MS 100                    /* without descriptors: how long nothing is accepted */

struct net_stream;
struct net_tls_conn;

struct net_loop {
    uint32_t magic;
    uv_loop_t uv;
    uv_idle_t idle;                        /* active while `late` is not empty */
    TAILQ_HEAD(, net_stream) late;         /* streams that owe an on_end for a failed write */
    bool closing;
    bool running;
    char rbuf[NET_READ_BYTES];             /* data is handed on before the next read, so one buffer serves all streams */
    char plain[NET_PLAIN_BYTES];           /* the same after TLS */
};

struct net_stream {
    uint32_t magic;
    bool tcp;
    bool connecting;
    bool greeting;  /* connected by net_connect, and its TLS handshake is under way: on_connect is to come */
    bool want_read; /* what the owner asked for */
    bool reading;   /* what libuv does */
    bool ended;     /* on_end was called: nothing more is read */
    bool flying;    /* req.write is under way with the bytes of `flight` */
    bool shut;      /* our side is finished, or will be when the queue is empty */
    bool late;      /* is in loop->late */
    bool closing;
    int error;      /* first error of writing or reading, 0 none */
    struct net_loop *loop;
    struct net_tls_conn *tls; /* NULL: bytes go as they are */
    struct net_stream_ops ops;
    void *ctx;
    struct buf flight, wait; /* being written; to be written after that */
    TAILQ_ENTRY(net_stream) late_link;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv;
    union { /* a stream that connects does not write yet */
        uv_connect_t connect;
        uv_write_t write;
    } req;
};

/* A stream on an accepted descriptor, without ops and with reading stopped. Owns fd also on failure. */
int net_stream_adopt(struct net_loop *l, int fd, struct net_stream **ret) BASE_MUST_USE;

/* Sends bytes as they are; as net_stream_write. */
int net_stream_send(struct net_stream *s, const struct str *parts, size_t n_parts) BASE_MUST_USE;

/* ---- tls.c ---- */
/* Makes a fresh stream a server's end of TLS, or a client's, as t is. */
int net_tls_begin(struct net_stream *s, struct net_tls *t) BASE_MUST_USE;
void net_tls_end(struct net_stream *s); /* frees; a stream without TLS is fine */
/* A client's first word. -EPROTO, -ENOMEM. */
int net_tls_hello(struct net_stream *s) BASE_MUST_USE;
/* A client's handshake is complete: tells the owner, then sends what it wrote meanwhile. False: the stream is closing or broken. */
bool net_stream_greet(struct net_stream *s) BASE_MUST_USE;
/* Takes what the loop has read and hands on what is inside. 0, 1: the peer has said that nothing follows, -EPROTO, -EKEYREJECTED, -EKEYEXPIRED: broken. The stream may be closing when it returns. */
int net_tls_feed(struct net_stream *s, struct str data) BASE_MUST_USE;
/* -EPROTO: broken, or before a server's handshake is complete; a client's bytes wait for it. */
int net_tls_write(struct net_stream *s, const struct str *parts, size_t n_parts) BASE_MUST_USE;
/* Says that nothing follows. */
void net_tls_farewell(struct net_stream *s);
bool net_tls_greeted(const struct net_stream *s);

/* Fills ss; returns its length, 0 when the address is not valid. */
socklen_t net_addr_sockaddr(const struct net_addr *a, struct sockaddr_storage *ss);
