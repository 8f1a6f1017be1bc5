/* SPDX-License-Identifier: MIT
 *
 * The whole router in one process: its server, its scheduler and its client, between clients and replicas that do what the input says, over sockets of this machine. The clock stands still but where the input
 * moves it, what other threads would do is done by this one, and after each step everything runs until nothing is left to do, so that an input always has the same course.
 *
 * An input is four bytes (two of flags, slots, the size of pieces) and steps, each ended by STEP_END; its first byte says what it is, and what of it is a digit counts from '0':
 *
 *   a..f BYTES     client 0..5 sends (connects first)       A..F           it ends its sending side
 *   x N            client N closes                          s N            it stops reading, or reads on
 *   0 1 BYTES      the newest connection to replica 0, 1 answers so          2 3 BYTES   the oldest one
 *   4 5 BYTES      from here on replica 0, 1 answers each request so; a first byte '!' closes after that
 *   6 7            the newest connection to replica 0, 1 ends its sending side  8 9      it closes
 *   u N            that of replica N stops reading, or reads on                 n N      replica N refuses connections, or takes them again
 *   * N BYTES      that of replica 0 sends BYTES 1024 << N times              + N BYTES  client 0 does
 *   t N            time passes (see steps_ms)                                 g N        a new configuration: bits 0 and 1 take replicas away, bit 2 starts them anew
 *   h              what other threads would do stands still, or goes on
 *   q TARGET       its owner asks; '!' first: to cancel that request            m          ... for its numbers and its index of conversations
 *
 * MARK_BYTE in what clients and replicas send becomes a mark (proxy_wire.h), which tells whose it is. What must hold:
 *   - a replica gets requests that are one request each, in the form in which the router writes them, none before the last one is answered, and none over a connection that said more than it was asked for
 *   - a client gets whole answers in the order of its requests, nothing of another's, and nothing of an answer that is not whole as if it were
 *   - whatever clients do, in the end no request, lease, place in the queue, byte of a body, connection or descriptor is left
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <net/net_int.h>
#include <os/os.h>
#include <proxy/keys_int.h>
#include <proxy/proxy_int.h>
#include <proxy/sched_int.h>

#ifdef BERTH_LIBFUZZER /* its search is for ways through the router, not through what looks at it */
#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function)
#endif

#include "proxy_wire.h"

#define STEP_END 0x1e
#define CLIENTS 6
#define BACKENDS 64
#define REPLICAS 2
#define ANSWERS 256
#define ASKED 64               /* requests of a connection whose method is remembered */
#define JOBS 256               /* for other threads, at once */
#define INPUT_MAX 8192
#define FLOOD_MAX (640 << 10)  /* bytes that an input may have sent by repetition */
#define TURNS_MAX 100000       /* of the loop in one step: more is a loop that never rests */
#define OVER_MS 300000         /* longer than anything that a client does may last */

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

/* ---- replicas -------------------------------------------------------------------------------------------------- */

static int said_head(void *ctx, const struct http_head *head)
{
    (void)ctx, (void)head;
    return 0;
}
static int said_body(void *ctx, struct str data)
{
    (void)ctx, (void)data;
    return 0;
}
static int said_end(void *ctx)
{
    struct backend *b = ctx;
    b->answers++;
    if (b->answer < ANSWERS && b->answers == b->requests)
        w.answers[b->answer].whole = true;
    return 0;
}
static const struct http_parser_ops said_ops = {said_head, said_body, said_end};

static void backend_close(struct backend *b)
{
    if (b->fd < 0)
        return;
    if (!b->loose && b->answers < b->requests)
        base_ignore(http_parser_eof(b->said));
    (void)close(b->fd);
    b->said = http_parser_free(b->said);
    buf_release(&b->in);
    buf_release(&b->out);
    b->fd = -1;
}

/* What the kernel has of an answer is read as the router must read it. */
static void backend_said(struct backend *b, struct str s)
{
    b->unsure = b->unsure || b->deaf || (b->answers >= b->requests && b->in.len > b->at);
    while (s.len && !b->loose) {
        size_t used = 0;
        if (b->answers >= b->requests || http_parser_feed(b->said, s, &used, NULL) < 0) {
            b->loose = true;
            return;
        }
        s = (struct str){s.ptr + used, s.len - used};
    }
}

/* Sends what waits. */
static bool flush(int fd, struct buf *out, size_t *ret_sent)
{
    ssize_t n = out->len ? send(fd, out->ptr, out->len, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    *ret_sent = n > 0 ? (size_t)n : 0;
    if (n < 0 && errno != EAGAIN)
        buf_clear(out);
    return n > 0;
}

static bool backend_flush(struct backend *b)
{
    size_t n;
    if (!flush(b->fd, &b->out, &n))
        return false;
    backend_said(b, (struct str){b->out.ptr, n});
    buf_drop_front(&b->out, n);
    return true;
}

static void backend_shut(struct backend *b)
{
    if (!b->loose && b->answers < b->requests && !b->out.len)
        base_ignore(http_parser_eof(b->said));
    b->loose = true;
    b->unsure = b->unsure || b->deaf;
    (void)shutdown(b->fd, SHUT_WR);
}

static void backend_send(struct backend *b, struct str s)
{
    expand(s, 'B', NULL, b->deaf || b->unsure ? ANSWERS : b->answer, &b->out);
    (void)backend_flush(b);
}

/* A whole request has come. */
static void backend_asked(struct backend *b, const struct wire *m, struct str body)
{
    struct mark mark = {0};
    size_t at = 0;
    if (b->answers < b->requests && !b->unsure)
        fail("a request before the last one was answered", m->head);
    if (b->loose && !b->unsure)
        fail("a request over a connection that is not clean", m->head);
    b->requests++;
    b->answer = ANSWERS;
    if (str_eq_c(m->method, "HEAD"))
        http_parser_expect_head(b->said);
    if (w.n_answers < ANSWERS) {
        b->answer = w.n_answers++;
        bool found = mark_next(m->target, &at, &mark);
        for (at = 0; !found && mark_next(body, &at, &mark);)
            found = mark.kind == 'C';
        w.answers[b->answer] = (struct answer){.marked = found && mark.kind == 'C', .whole = b->unsure, .mark = mark.number};
    }
    const struct buf *reply = &w.automatic[b->replica];
    if (!reply->len)
        return;
    b->hangs_up = reply->ptr[0] == '!';
    backend_send(b, (struct str){reply->ptr + b->hangs_up, reply->len - b->hangs_up});
}

static bool backend_read(struct backend *b)
{
    char block[16384];
    ssize_t n = b->deaf ? -1 : recv(b->fd, block, sizeof block, MSG_DONTWAIT);
    if (n < 0 && (b->deaf || errno == EAGAIN)) {
        bool moved = backend_flush(b), over = b->hangs_up && !b->out.len;
        if (over)
            backend_close(b);
        return moved || over;
    }
    if (n <= 0) {
        backend_close(b);
        return true;
    }
    buf_add(&b->in, block, (size_t)n);
    struct wire m;
    struct str rest = {b->in.ptr + b->at, b->in.len - b->at};
    int rc = wire_read(rest, true, false, false, &m, &w.scratch);
    if (rc < 0)
        fail(m.wrong, rest);
    if (rc > 0) {
        b->at += m.len;
        if (rest.len > m.len)
            fail("bytes behind a request", rest);
        backend_asked(b, &m, buf_str(&w.scratch));
    }
    return true;
}

static bool backends_accept(unsigned replica)
{
    int fd = base.listening[replica] < 0 ? -1 : accept4(base.listening[replica], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return false;
    struct backend *b = NULL;
    for (size_t i = 0; i < BACKENDS && !b; i++)
        if (w.backends[i].fd < 0)
            b = &w.backends[i];
    if (!b || w.ending) {
        (void)close(fd);
        return true;
    }
    *b = (struct backend){.fd = fd, .replica = replica, .born = ++w.births, .answer = ANSWERS, .in = BUF_INIT(16 << 20), .out = BUF_INIT(16 << 20)};
    b->said = http_parser_new(HTTP_RESPONSE, &said_ops, b);
    need(b->said, "memory");
    return true;
}

/* The oldest or newest connection to a replica; NULL. */
static struct backend *backend_of(unsigned replica, bool newest)
{
    struct backend *found = NULL;
    for (size_t i = 0; i < BACKENDS; i++) {
        struct backend *b = &w.backends[i];
        if (b->fd >= 0 && b->replica == replica && (!found || (b->born > found->born) == newest))
            found = b;
    }
    return found;
}

/* ---- clients ------------------------------------------------------------------------------------------------------ */

static int asked_head(void *ctx, const struct http_head *head)
{
    struct client *c = ctx;
    if (c->n_asked < ASKED)
        c->head[c->n_asked] = str_eq_c(head->method, "HEAD");
    c->n_asked++;
    return 0;
}
static int asked_end(void *ctx)
{
    ((struct client *)ctx)->n_whole++;
    return 0;
}
static const struct http_parser_ops asked_ops = {asked_head, said_body, asked_end};

static void client_close(struct client *c)
{
    if (c->fd < 0)
        return;
    (void)close(c->fd);
    c->asked = http_parser_free(c->asked);
    buf_release(&c->got);
    buf_release(&c->out);
    c->fd = -1;
}

static void client_open(struct client *c)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    *c = (struct client){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), .id = ++w.connections & 0xff, .got = BUF_INIT(64 << 20), .out = BUF_INIT(16 << 20)};
    memcpy(a.sun_path, base.paths[REPLICAS], strlen(base.paths[REPLICAS]));
    need(c->fd >= 0 && connect(c->fd, (struct sockaddr *)&a, sizeof a) == 0, "a client cannot connect");
    c->asked = http_parser_new(HTTP_REQUEST, &asked_ops, c);
    need(c->asked, "memory");
}

static bool client_flush(struct client *c)
{
    size_t n;
    if (!flush(c->fd, &c->out, &n))
        return false;
    struct str s = {c->out.ptr, n};
    while (s.len && !c->broken) {
        size_t used = 0;
        c->broken = http_parser_feed(c->asked, s, &used, NULL) < 0;
        s = (struct str){s.ptr + used, s.len - used};
    }
    buf_drop_front(&c->out, n);
    return true;
}

static bool client_read(struct client *c)
{
    char block[16384];
    bool moved = client_flush(c);
    ssize_t n = c->deaf || c->ended ? -1 : recv(c->fd, block, sizeof block, MSG_DONTWAIT);
    if (n > 0)
        buf_add(&c->got, block, (size_t)n);
    else if (!c->deaf && !c->ended && (n == 0 || errno != EAGAIN))
        c->ended = true;
    else
        return moved;
    return true;
}

/* What is in an answer is the client's, and behind what it had. A replica's answer that is not whole must not look whole. */
static void check_marks(const struct client *c, const struct wire *m, struct str all, bool whole, unsigned *next)
{
    struct mark mark;
    int64_t last = -1, of = -1;
    for (size_t at = 0; mark_next(all, &at, &mark);) {
        unsigned number = mark.number;
        if (mark.kind == 'B') {
            if (number >= w.n_answers || (of >= 0 && of != number))
                fail("parts of two answers in one", all);
            of = number;
            if (whole && !m->events && !m->until_close && !w.answers[number].whole)
                fail("a broken answer that looks whole", all);
            if (!w.answers[number].marked)
                continue;
            number = w.answers[number].mark;
        }
        if (number >> 16 != c->id)
            fail("another client's answer", all);
        if ((number & 0xffff) < *next)
            fail("an answer out of order", all);
        if ((int64_t)(number & 0xffff) > last)
            last = number & 0xffff;
    }
    if (last >= 0)
        *next = (unsigned)last + 1;
}

/* Reads what it got. at_rest: nothing of it is under way any more. */
static void client_check(struct client *c, bool at_rest)
{
    bool partial = c->got.len > c->at;
    while (partial && (at_rest || c->ended || c->looked < c->got.len)) {
        struct wire m;
        struct str rest = {c->got.ptr + c->at, c->got.len - c->at};
        bool bare = c->n_answers < c->n_asked && c->n_answers < ASKED && c->head[c->n_answers];
        int rc = wire_read(rest, false, bare, c->ended, &m, &w.scratch);
        unsigned next = c->next;
        if (rc < 0)
            fail(m.wrong, rest);
        if (!bare)
            check_marks(c, &m, rc ? (struct str){rest.ptr, m.len} : rest, rc, &next);
        c->looked = c->got.len;
        if (rc == 0)
            break;
        if (m.status < 200 && m.status != 100)
            fail("an interim answer that nobody sends", rest);
        c->n_answers += m.status >= 200;
        c->next = next;
        c->at += m.len;
        partial = c->got.len > c->at;
    }
    if (c->n_answers > c->n_asked + 1)
        fail("more answers than requests", buf_str(&c->got));
    if (!at_rest || c->ended || c->deaf || c->out.len)
        return;
    if (partial)
        fail("an answer that never ends", buf_str(&c->got));
    if (c->n_answers < c->n_whole)
        fail("a request without an answer", buf_str(&c->got));
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

static bool loop_turn(void)
{
    uv_loop_t *uv = &w.loop->uv;
    struct pollfd p = {.fd = uv_backend_fd(uv), .events = POLLIN};
    uv_update_time(uv);
    if (uv_backend_timeout(uv) != 0 && poll(&p, 1, 0) <= 0)
        return false;
    (void)uv_run(uv, UV_RUN_NOWAIT);
    return true;
}

/* Until nothing is left to do. */
static void settle(void)
{
    for (unsigned turns = 0;; turns++) {
        bool moved = loop_turn();
        moved |= job_turn();
        for (unsigned i = 0; i < REPLICAS; i++)
            while (backends_accept(i))
                moved = true;
        for (size_t i = 0; i < BACKENDS; i++)
            moved |= w.backends[i].fd >= 0 && backend_read(&w.backends[i]);
        for (size_t i = 0; i < CLIENTS; i++)
            moved |= w.clients[i].fd >= 0 && client_read(&w.clients[i]);
        if (!moved)
            break;
        need(turns < TURNS_MAX, "a loop that never rests");
    }
    for (size_t i = 0; i < CLIENTS; i++)
        if (w.clients[i].fd >= 0)
            client_check(&w.clients[i], w.proxy->stats.active == 0);
}

static void pass(uint64_t ms)
{
    fuzz_now_ns += ms * 1000000;
    settle();
}

/* ---- the router ------------------------------------------------------------------------------------------------------ */

static const char *const policies[] = {"adaptive", "counter", "roundrobin", "least", "hash", "sticky"};

static void configure(unsigned away)
{
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    struct proxy_config *c;
    struct err err;
    bool two = w.flags & 1, pins = w.flags & 2, keyed = w.flags & 4, startable = w.flags & 8, key = w.flags & 16, files = w.flags & 32;
    const char *policy = policies[(w.more_flags & 7) % BASE_COUNT(policies)];
    buf_add_c(&b, "{\"config\":{\"replicas\":[");
    for (unsigned i = 0; i < 1u + two; i++)
        buf_addf(&b, "%s{\"name\":\"r%u\",\"served\":\"served-%u\",\"host\":\"unix:%s\",\"port\":0,\"ready\":%s,\"generation\":%u,\"slots\":%u,\"context\":4096,\"pins\":%s%s%s}", i ? "," : "", i, i, base.paths[i],
                 away >> i & 1 ? "false" : "true", w.generation, w.slots, pins ? "true" : "false", startable && !w.ending ? ",\"startable\":true" : "", key && i == 0 ? ",\"key\":\"engine-key\"" : "");
    buf_addf(&b, "],\"endpoints\":[{\"name\":\"m\",\"policy\":\"%s\",\"aliases\":[\"alias\"],\"replicas\":[0%s]}", policy, two ? ",1" : "");
    if (w.more_flags & 8)
        buf_addf(&b, ",{\"name\":\"n\",\"policy\":\"%s\",\"aliases\":[],\"replicas\":[%u]}", policy, two);
    buf_addf(&b, "],\"headers\":[]%s%s%s}}", files ? ",\"bodies\":{\"max\":600000,\"spill\":64,\"memory\":700000,\"disk\":800000}" : "", keyed ? ",\"keyed\":true" : "", w.more_flags & 16 ? ",\"cors\":[\"http://page.test\"]" : "");
    if (proxy_config_parse(buf_str(&b), &c, &err) < 0)
        fail(err.text, buf_str(&b));
    proxy_set_config(w.proxy, c);
}

/* Keys "k1", which may do anything, and "k2", which may not. */
static void set_keys(void)
{
    base_autobuf struct buf b = BUF_INIT(1 << 12);
    static const char *const limits[] = {"", " models=m concurrency=1 rate=3"};
    struct proxy_keys *keys;
    for (unsigned i = 0; i < 2; i++) {
        unsigned char hash[PROXY_KEY_HASH];
        char key[] = {'k', (char)('1' + i), 0};
        need(proxy_key_hash(str_of(key), hash) == 0, "a key's hash");
        buf_addf(&b, "%s sha256:", key);
        for (size_t k = 0; k < sizeof hash; k++)
            buf_addf(&b, "%02x", hash[k]);
        buf_addf(&b, "%s\n", limits[i]);
    }
    need(proxy_keys_parse(buf_str(&b), "keys", &keys, NULL) == 0, "the keys");
    proxy_set_keys(w.proxy, keys);
}

static void ask(struct str what)
{
    base_autobuf struct buf out = BUF_INIT(1 << 22), target = BUF_INIT(1 << 14);
    bool cancels = what.len && what.ptr[0] == '!';
    unsigned status;
    if (cancels)
        buf_addf(&target, "/requests/" STR_FMT "/cancel", STR_ARG(((struct str){what.ptr + 1, what.len - 1})));
    else
        buf_add_str(&target, what);
    need(proxy_ask(w.proxy, cancels ? STR("POST") : STR("GET"), buf_str(&target), &status, &out) == 0, "its owner got no answer");
    struct json *j;
    need(json_parse(buf_str(&out), &j, NULL) == 0, "its owner got no JSON");
    json_free(j);
}

static void ask_numbers(void)
{
    base_autobuf struct buf out = BUF_INIT(1 << 22), index = BUF_INIT(PROXY_INDEX_MAX);
    struct proxy_stats stats;
    proxy_stats(w.proxy, &stats);
    need(proxy_metrics(w.proxy, &out) == 0 && proxy_index_save(w.proxy, &index) == 0, "its numbers");
}

/* ---- steps ------------------------------------------------------------------------------------------------------------- */

static const uint64_t steps_ms[] = {1, 60, 260, 1100, 4100, 8100, 11000, 31000, 61000, 96000, 601000};

static unsigned digit(struct str s)
{
    return s.len ? (unsigned char)(s.ptr[0] - '0') : 0;
}

static struct str behind(struct str s)
{
    return s.len ? (struct str){s.ptr + 1, s.len - 1} : s;
}

static void client_send(struct client *c, struct str s)
{
    size_t piece = w.pieces && s.len <= 1024 ? w.pieces : s.len;
    if (c->fd < 0)
        client_open(c);
    while (s.len && !c->ended) {
        struct str part = {s.ptr, s.len < piece ? s.len : piece};
        expand(part, 'C', &c->serial, c->id, &c->out);
        (void)client_flush(c);
        s = (struct str){s.ptr + part.len, s.len - part.len};
        if (s.len)
            settle();
    }
}

/* The same again and again. */
static void flood(struct str s, unsigned power, struct backend *b, struct client *c)
{
    for (size_t times = (size_t)1024 << (power & 7); s.len && times && w.flood + s.len <= FLOOD_MAX; times--) {
        w.flood += s.len;
        expand(s, b ? 'B' : 'C', c ? &c->serial : NULL, b ? (b->deaf || b->unsure ? ANSWERS : b->answer) : c->id, b ? &b->out : &c->out);
    }
}

static void step_client(char op, struct str arg)
{
    struct client *c = &w.clients[op == 'x' || op == 's' ? digit(arg) % CLIENTS : (unsigned)((op | 0x20) - 'a')];
    if (op == 'x')
        client_close(c);
    else if (op == 's')
        c->deaf = c->fd >= 0 && !c->deaf;
    else if (op >= 'a')
        client_send(c, arg);
    else if (c->fd >= 0 && !c->out.len)
        (void)shutdown(c->fd, SHUT_WR);
}

static void step_backend(char op, struct str arg)
{
    struct backend *b = op == 'u' ? backend_of(digit(arg) % REPLICAS, true) : backend_of((unsigned)(op - '0') % REPLICAS, op != '2' && op != '3');
    if (op == '4' || op == '5') {
        buf_clear(&w.automatic[op - '4']);
        buf_add_str(&w.automatic[op - '4'], arg);
    } else if (!b) {
        return;
    } else if (op == 'u') {
        b->deaf = !b->deaf;
    } else if (op <= '3') {
        for (size_t piece = w.pieces && arg.len <= 1024 ? w.pieces : arg.len; arg.len && b->fd >= 0;) {
            struct str part = {arg.ptr, arg.len < piece ? arg.len : piece};
            backend_send(b, part);
            arg = (struct str){arg.ptr + part.len, arg.len - part.len};
            if (arg.len)
                settle();
        }
    } else if (op <= '7') {
        backend_shut(b);
    } else {
        backend_close(b);
    }
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(a.sun_path, path, strlen(path));
    (void)unlink(path);
    need(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 128) == 0, "cannot listen");
    return fd;
}

static void refuse(unsigned replica, bool on)
{
    if (on == (base.listening[replica] < 0))
        return;
    if (on)
        os_closep(&base.listening[replica]);
    else
        base.listening[replica] = listen_at(base.paths[replica]);
}

static void step(struct str s)
{
    char op = s.ptr[0];
    struct str arg = behind(s);
    if ((op >= 'a' && op < 'a' + CLIENTS) || (op >= 'A' && op < 'A' + CLIENTS) || op == 'x' || op == 's') {
        step_client(op, arg);
    } else if ((op >= '0' && op <= '9') || op == 'u') {
        step_backend(op, arg);
    } else if (op == 'n') {
        refuse(digit(arg) % REPLICAS, base.listening[digit(arg) % REPLICAS] >= 0);
    } else if (op == '*') {
        struct backend *b = backend_of(0, true);
        if (b)
            flood(behind(arg), digit(arg), b, NULL);
    } else if (op == '+') {
        if (w.clients[0].fd >= 0)
            flood(behind(arg), digit(arg), NULL, &w.clients[0]);
    } else if (op == 't') {
        pass(steps_ms[digit(arg) % BASE_COUNT(steps_ms)]);
    } else if (op == 'g') {
        w.generation += digit(arg) >> 2 & 1;
        configure(digit(arg) & 3);
    } else if (op == 'h') {
        jobs.held = !jobs.held;
    } else if (op == 'q') {
        ask(arg);
    } else if (op == 'm') {
        ask_numbers();
    }
    settle();
}

/* ---- one input --------------------------------------------------------------------------------------------------------- */

static unsigned descriptors(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void remove_all(void)
{
    for (unsigned i = 0; i <= REPLICAS; i++)
        (void)unlink(base.paths[i]);
    (void)rmdir(base.dir);
}

static void begin_once(void)
{
    snprintf(base.dir, sizeof base.dir, "/tmp/berth-fuzz-XXXXXX");
    need(mkdtemp(base.dir) != NULL, "no folder in /tmp");
    for (unsigned i = 0; i <= REPLICAS; i++) {
        snprintf(base.paths[i], sizeof base.paths[i], "%s/%u", base.dir, i);
        base.listening[i] = listen_at(base.paths[i]);
    }
    (void)atexit(remove_all);
    /* what the first loop opens for all */
    need(net_loop_new(&w.loop, NULL) == 0, "no loop");
    w.loop = net_loop_free(w.loop);
}

static void begin(const uint8_t *data)
{
    struct err err;
    if (!base.dir[0])
        begin_once();
    w.flags = data[0];
    w.more_flags = data[1];
    w.slots = data[2] & 3;
    w.pieces = data[3] & 15;
    w.generation = 1;
    for (size_t i = 0; i < CLIENTS; i++)
        w.clients[i].fd = -1;
    for (size_t i = 0; i < BACKENDS; i++)
        w.backends[i].fd = -1;
    for (unsigned i = 0; i < REPLICAS; i++) {
        refuse(i, false);
        w.automatic[i] = BUF_INIT(1 << 16);
    }
    base.descriptors = descriptors();
    w.scratch = BUF_INIT(64 << 20);
    if (net_loop_new(&w.loop, &err) < 0 || proxy_new(w.loop, 1, &w.proxy, &err) < 0)
        fail(err.text, (struct str){0});
    w.proxy->seed = 1;
    if (w.flags & 4)
        set_keys();
    if (w.flags & 32)
        proxy_spill_to(w.proxy, open(base.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    configure(0);
    int fd = fcntl(base.listening[REPLICAS], F_DUPFD_CLOEXEC, 3);
    need(fd >= 0 && proxy_listen(w.proxy, fd, &err) == 0, "the router cannot listen");
}

/* Replicas are gone, and time passes: nothing may be left of anything, whatever clients have left undone. */
static void end(void)
{
    const struct proxy *p = w.proxy;
    const struct proxy_lane *l = p->lanes;
    w.ending = true;
    jobs.held = false;
    for (unsigned i = 0; i < REPLICAS; i++)
        buf_clear(&w.automatic[i]);
    for (size_t i = 0; i < BACKENDS; i++)
        backend_close(&w.backends[i]);
    configure(3);
    for (uint64_t ms = 0; ms < OVER_MS; ms += 5000)
        pass(5000);
    need(p->stats.active == 0, "requests are left");
    need(sched_waiting(p->sched) == 0 && !l->handed, "places in the queue are left");
    for (size_t i = 0; i < p->n_peers; i++)
        need(p->peers[i]->s.active == 0 && p->peers[i]->s.running == 0, "leases are left");
    for (const struct proxy_use *u = p->uses; u; u = u->next)
        need(u->active == 0, "requests of a key are left");
    for (size_t i = 0; i < PROXY_RUNNING; i++)
        need(!p->running[i], "requests to join are left");
    need(jobs.n == 0, "work for others is left");
    need(p->bodies == 0 && p->spilled == 0, "bytes of bodies are left");
    need(!l->streams, "streams are left");
    need(httpio_server_open(l->server) == 0, "connections are left");
    for (size_t i = 0; i < CLIENTS; i++)
        client_close(&w.clients[i]);
    w.proxy = proxy_free(w.proxy);
    w.loop = net_loop_free(w.loop);
    for (unsigned i = 0; i < REPLICAS; i++)
        buf_release(&w.automatic[i]);
    buf_release(&w.scratch);
    need(descriptors() + (base.listening[0] < 0) + (base.listening[1] < 0) == base.descriptors, "descriptors are left");
    memset(&w, 0, sizeof w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4 || size > INPUT_MAX)
        return 0;
    begin(data);
    struct str rest = {(const char *)data + 4, size - 4};
    while (rest.ptr && rest.len) {
        struct str s = str_split(&rest, STEP_END);
        if (s.len)
            step(s);
    }
    end();
    return 0;
}

#ifdef BERTH_LIBFUZZER
#pragma clang attribute pop
#endif
