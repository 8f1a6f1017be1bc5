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
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <net/net_int.h>
#include <os/os.h>
#include <proxy/keys_int.h>
#include <proxy/proxy_int.h>
#include <proxy/sched_int.h>

#ifdef BERTH_LIBFUZZER /* its search is for ways through the router, not through what looks at it */
#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function)
#endif

#include "proxy_ends.h"

#define STEP_END 0x1e
#define INPUT_MAX 8192
#define FLOOD_MAX (640 << 10)  /* bytes that an input may have sent by repetition */
#define TURNS_MAX 100000       /* of the loop in one step: more is a loop that never rests */
#define OVER_MS 300000         /* longer than anything that a client does may last */

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
