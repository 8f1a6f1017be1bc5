/* SPDX-License-Identifier: MIT
 *
 * The world that fuzz_proxy.c puts the router into: a clock that stands still but where the input moves it, the work that other threads would do, done by this one, and who is in it. Time and libuv's
 * thread pool are taken over by functions of their names.
 */
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <net/net_int.h>
#include <proxy/proxy_int.h>

#include "proxy_wire.h"

#define CLIENTS 6
#define BACKENDS 64
#define REPLICAS 2
#define ANSWERS 256
#define ASKED 64               /* requests of a connection whose method is remembered */
#define JOBS 256               /* for other threads, at once */

/* ---- the clock ---------------------------------------------------------------------------------------------- */

static uint64_t fuzz_now_ns = UINT64_C(1000000000000);

/* libuv's, and ours. */
int clock_gettime(clockid_t id, struct timespec *ret)
{
    if (id == CLOCK_REALTIME || id == CLOCK_PROCESS_CPUTIME_ID || id == CLOCK_THREAD_CPUTIME_ID)
        return (int)syscall(SYS_clock_gettime, id, ret);
    *ret = (struct timespec){.tv_sec = (time_t)(fuzz_now_ns / 1000000000), .tv_nsec = (long)(fuzz_now_ns % 1000000000)};
    return 0;
}

/* ---- other threads ---------------------------------------------------------------------------------------- */

static struct {
    struct job {
        uv_work_t *req;
        bool cancelled;
    } all[JOBS];
    size_t n;
    bool held;
} jobs;

/* In libuv's place. */
int uv_queue_work(uv_loop_t *loop, uv_work_t *req, uv_work_cb work, uv_after_work_cb after)
{
    if (jobs.n == JOBS)
        return UV_ENOMEM;
    req->loop = loop;
    req->work_cb = work;
    req->after_work_cb = after;
    jobs.all[jobs.n++] = (struct job){.req = req};
    return 0;
}

int uv_cancel(uv_req_t *req)
{
    for (size_t i = 0; i < jobs.n; i++)
        if ((uv_req_t *)jobs.all[i].req == req)
            jobs.all[i].cancelled = true;
    return 0;
}

/* The first one, unless they are held. */
static bool job_turn(void)
{
    size_t i = 0;
    while (i < jobs.n && jobs.held && !jobs.all[i].cancelled)
        i++;
    if (i == jobs.n)
        return false;
    struct job j = jobs.all[i];
    memmove(&jobs.all[i], &jobs.all[i + 1], (--jobs.n - i) * sizeof j);
    if (!j.cancelled)
        j.req->work_cb(j.req);
    j.req->after_work_cb(j.req, j.cancelled ? UV_ECANCELED : 0);
    return true;
}

/* ---- the world ------------------------------------------------------------------------------------------------ */

struct backend {
    int fd;
    unsigned replica, requests, answers; /* answers: whole ones */
    uint64_t born;
    struct buf in, out;
    size_t at;               /* what of in was read */
    struct http_parser *said;
    bool loose;              /* it said more than it was asked for, or ended: nothing more may be asked here */
    bool unsure;             /* it spoke without listening: what it said may be an answer to what it has not read */
    bool deaf, hangs_up;
    unsigned answer;         /* of the last request; ANSWERS none */
};

struct client {
    int fd;
    unsigned id, serial, n_asked, n_whole;
    unsigned n_answers, next; /* whole ones that it got; the serial number that the next one has at least */
    size_t at, looked;        /* what of got is read, and up to where it was looked at */
    struct buf got, out;
    struct http_parser *asked;
    bool head[ASKED];
    bool broken, ended, deaf; /* broken: what it sent is no HTTP; ended: by the router */
};

struct answer {
    bool marked, whole;
    unsigned mark; /* of the request */
};

static struct {
    struct net_loop *loop;
    struct proxy *proxy;
    struct client clients[CLIENTS];
    struct backend backends[BACKENDS];
    struct answer answers[ANSWERS];
    struct buf automatic[REPLICAS];
    struct buf scratch;
    unsigned n_answers, connections, generation, pieces;
    uint64_t births;
    size_t flood;
    uint8_t flags, more_flags, slots;
    bool ending;
} w;

static struct {
    char dir[64], paths[REPLICAS + 1][96]; /* the last one is the router's */
    int listening[REPLICAS + 1];
    unsigned descriptors;
} base = {.listening = {-1, -1, -1}};

static void fail(const char *what, struct str seen)
{
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    buf_add_printable(&b, seen, 3000);
    fprintf(stderr, "fuzz_proxy: %s: %s\n", what, b.ptr ? b.ptr : "");
    abort();
}

static void need(bool holds, const char *what)
{
    if (!holds)
        fail(what, (struct str){0});
}

/* Bytes of the input with marks in place. */
static void expand(struct str s, char kind, unsigned *serial, unsigned number, struct buf *out)
{
    while (s.ptr) {
        buf_add_str(out, str_split(&s, MARK_BYTE));
        if (s.ptr && kind == 'C')
            mark_add(out, kind, number << 16 | ((*serial)++ & 0xffff));
        else if (s.ptr && number < ANSWERS)
            mark_add(out, kind, number);
    }
}
