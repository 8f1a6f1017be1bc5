/* SPDX-License-Identifier: MIT
 *
 * net: real sockets on port 0, one loop per test. A watchdog stops a loop that hangs, which fails the test.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <pthread.h>

#include <cmocka.h>

#include <net/net.h>

#define HANG_MS 5000

/* ---- the world of a test --------------------------------------------------------------------------------- */

struct world {
    struct net_loop *loop;
    struct net_timer *watchdog;
    struct net_listener *listener;
    struct net_addr addr;
    bool hung;
};

/* One end of a connection and what happened to it, in order: c connected, d data, e ended, w drained, x closed. */
struct end {
    struct world *w;
    struct net_stream *s;
    struct buf got;
    char log[32];
    size_t n_log;
    int connect_status, end_status, n_ends;
    bool closed;
    bool stop_at_end, stop_at_close, stop_at_drain, stop_at_data; /* when the loop is left */
    char close_at;                                               /* closes itself there */
    const char *answer;                                          /* written at the first data */
    bool in_write;
};

static void note(struct end *e, char c)
{
    if (e->n_log > 0 && e->log[e->n_log - 1] == c && c == 'd')
        return; /* data may come in any number of pieces */
    assert_true(e->n_log + 1 < sizeof(e->log));
    e->log[e->n_log++] = c;
}

static bool close_now(struct end *e, char c)
{
    if (e->close_at != c)
        return false;
    e->s = net_stream_close(e->s, false);
    return true;
}

static int put(struct end *e, const char *text)
{
    struct str part = str_of(text);
    int r;

    e->in_write = true;
    r = net_stream_write(e->s, &part, 1);
    e->in_write = false;
    return r;
}

static void on_connect(void *ctx, int status)
{
    struct end *e = ctx;

    note(e, 'c');
    e->connect_status = status;
    if (!close_now(e, 'c') && status < 0)
        net_loop_stop(e->w->loop);
}

static void on_data(void *ctx, struct str data)
{
    struct end *e = ctx;

    note(e, 'd');
    assert_false(e->closed);
    buf_add_str(&e->got, data);
    if (e->answer) {
        const char *text = e->answer;

        e->answer = NULL;
        assert_int_equal(put(e, text), 0);
    }
    if (!close_now(e, 'd') && e->stop_at_data)
        net_loop_stop(e->w->loop);
}

static void on_end(void *ctx, int status)
{
    struct end *e = ctx;

    note(e, 'e');
    assert_false(e->in_write);
    e->n_ends++;
    e->end_status = status;
    if (!close_now(e, 'e') && e->stop_at_end)
        net_loop_stop(e->w->loop);
}

static void on_drain(void *ctx)
{
    struct end *e = ctx;

    note(e, 'w');
    assert_int_equal(net_stream_queued(e->s), 0);
    if (!close_now(e, 'w') && e->stop_at_drain)
        net_loop_stop(e->w->loop);
}

static void on_close(void *ctx)
{
    struct end *e = ctx;

    note(e, 'x');
    assert_false(e->closed);
    e->closed = true;
    e->s = NULL;
    if (e->stop_at_close)
        net_loop_stop(e->w->loop);
}

static const struct net_stream_ops end_ops = {on_connect, on_data, on_end, on_drain, on_close};

static void hang(void *ctx)
{
    struct world *w = ctx;

    w->hung = true;
    net_loop_stop(w->loop);
}

static void world_open(struct world *w)
{
    *w = (struct world){0};
    assert_int_equal(net_loop_new(&w->loop, NULL), 0);
    w->watchdog = net_timer_new(w->loop, hang, w);
    assert_non_null(w->watchdog);
}

static void run(struct world *w)
{
    net_timer_start(w->watchdog, HANG_MS, 0);
    net_loop_run(w->loop);
    net_timer_stop(w->watchdog);
    assert_false(w->hung);
}

static void world_close(struct world *w)
{
    w->loop = net_loop_free(w->loop);
}

static void end_init(struct end *e, struct world *w)
{
    *e = (struct end){.w = w, .got = BUF_INIT(64 * 1024 * 1024)};
}

static void end_release(struct end *e)
{
    buf_release(&e->got);
}

/* Two ends of one connection: `a` connects, `b` is accepted. */
struct pair {
    struct world w;
    struct end a, b;
};

static void accept_b(void *ctx, struct net_stream *s)
{
    struct pair *p = ctx;

    assert_null(p->b.s);
    p->b.s = s;
    net_stream_set_ops(s, &end_ops, &p->b);
    net_loop_stop(p->w.loop);
}

static void listen_at(struct world *w, const struct net_addr *a, void (*cb)(void *, struct net_stream *), void *ctx)
{
    struct err err;
    int fd = net_listen_socket(a, false, &err);

    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &w->addr), 0);
    assert_int_equal(net_listener_new(w->loop, fd, cb, ctx, &w->listener, &err), 0);
}

static struct net_addr loopback(uint16_t port)
{
    struct net_addr a;

    assert_int_equal(net_addr_ip("127.0.0.1", port, &a), 0);
    return a;
}

/* Connected both ways when it returns; b does not read yet. */
static void pair_open_at(struct pair *p, const struct net_addr *a)
{
    world_open(&p->w);
    end_init(&p->a, &p->w);
    end_init(&p->b, &p->w);
    listen_at(&p->w, a, accept_b, p);
    assert_int_equal(net_connect(p->w.loop, &p->w.addr, &end_ops, &p->a, &p->a.s, NULL), 0);
    run(&p->w);
    assert_non_null(p->b.s);
}

static void pair_open(struct pair *p)
{
    struct net_addr a = loopback(0);

    pair_open_at(p, &a);
}

static void pair_close(struct pair *p)
{
    world_close(&p->w);
    end_release(&p->a);
    end_release(&p->b);
}

/* A folder for sockets, removed by the caller. */
static void temp_dir(char dir[32])
{
    (void)snprintf(dir, 32, "/tmp/net-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static struct net_addr unix_in(const char *dir)
{
    char path[64];
    struct net_addr a;

    (void)snprintf(path, sizeof(path), "%s/s", dir);
    assert_int_equal(net_addr_unix(path, &a), 0);
    return a;
}

/* ---- wakes ----------------------------------------------------------------------------------------------- */

struct woken {
    struct net_loop *loop;
    struct net_wake *wake;
    pthread_t by, other;
    unsigned calls;
};

static void on_wake(void *ctx)
{
    struct woken *w = ctx;

    w->by = pthread_self();
    w->calls++;
    net_loop_stop(w->loop);
}

static void *sender(void *arg)
{
    const struct woken *w = arg;

    for (int i = 0; i < 100; i++)
        net_wake_send(w->wake);
    return NULL;
}

static void wakes(void **state)
{
    struct woken w = {0};

    (void)state;
    assert_int_equal(net_loop_new(&w.loop, NULL), 0);
    assert_int_equal(net_wake_new(w.loop, on_wake, &w, &w.wake, NULL), 0);
    assert_int_equal(pthread_create(&w.other, NULL, sender, &w), 0);
    net_loop_run(w.loop); /* not before it was woken */
    assert_int_equal(pthread_join(w.other, NULL), 0);
    assert_true(w.calls >= 1 && w.calls <= 100);
    assert_true(pthread_equal(w.by, pthread_self()));
    w.wake = net_wake_close(w.wake);
    w.loop = net_loop_free(w.loop);
}

/* ---- addresses ------------------------------------------------------------------------------------------- */

static void addresses(void **state)
{
    (void)state;
    struct net_addr a, b;
    char text[NET_ADDR_TEXT], path[200];

    assert_int_equal(net_addr_ip("127.0.0.1", 80, &a), 0);
    assert_string_equal(net_addr_text(&a, text), "127.0.0.1:80");
    assert_int_equal(net_addr_ip("0:0:0:0:0:0:0:1", 65535, &b), 0);
    assert_string_equal(net_addr_text(&b, text), "[::1]:65535");
    assert_false(net_addr_eq(&a, &b));
    b = a;
    assert_true(net_addr_eq(&a, &b));
    b.port = 81;
    assert_false(net_addr_eq(&a, &b));

    static const char *const bad[] = {"", "localhost", "127.0.0.1.5", "127.1", "256.0.0.1", "::g", "1.2.3.4 ", "fe80::1%lo", ":", "/tmp/x"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_int_equal(net_addr_ip(bad[i], 1, &a), -EINVAL);

    assert_int_equal(net_addr_unix("", &a), -EINVAL);
    memset(path, 'x', sizeof(path));
    path[108] = '\0';
    assert_int_equal(net_addr_unix(path, &a), -ENAMETOOLONG);
    path[107] = '\0';
    assert_int_equal(net_addr_unix(path, &a), 0);
    assert_string_equal(net_addr_text(&a, text), path);
    assert_true(a.unix_path);
}

static void listening_tcp(void **state)
{
    (void)state;
    struct net_addr any = loopback(0), got, again;
    struct err err = {0};
    char text[NET_ADDR_TEXT];
    int fd = net_listen_socket(&any, false, &err), fd2;

    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(net_socket_addr(fd, &got), 0);
    assert_int_not_equal(got.port, 0);
    assert_int_equal(net_listen_socket(&got, false, &err), -EADDRINUSE);
    assert_int_equal(err.code, -EADDRINUSE);
    assert_non_null(strstr(err.text, net_addr_text(&got, text)));
    (void)close(fd);

    fd = net_listen_socket(&any, true, &err);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &got), 0);
    fd2 = net_listen_socket(&got, true, &err);
    assert_true(fd2 >= 0);
    assert_int_equal(net_socket_addr(fd2, &again), 0);
    assert_true(net_addr_eq(&got, &again));
    (void)close(fd);
    (void)close(fd2);

    assert_int_equal(net_addr_ip("192.0.2.1", 0, &any), 0); /* not ours */
    assert_int_equal(net_listen_socket(&any, false, &err), -EADDRNOTAVAIL);
    snprintf(any.host, sizeof(any.host), "nonsense");
    assert_int_equal(net_listen_socket(&any, false, &err), -EINVAL);
    assert_int_equal(net_socket_addr(STDIN_FILENO, &got) < 0, 1);
}

static void listening_unix(void **state)
{
    (void)state;
    char dir[32];
    struct err err = {0};
    struct stat st;
    struct net_addr a, got;
    mode_t old;

    temp_dir(dir);
    a = unix_in(dir);
    old = umask(0);
    int fd = net_listen_socket(&a, false, &err);
    (void)umask(old);
    assert_true(fd >= 0);
    assert_int_equal(stat(a.host, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(net_socket_addr(fd, &got), 0);
    assert_true(net_addr_eq(&a, &got));

    /* somebody listens */
    assert_int_equal(net_listen_socket(&a, false, &err), -EADDRINUSE);
    assert_non_null(strstr(err.text, a.host));
    /* nobody does: the file is left over */
    (void)close(fd);
    assert_int_equal(stat(a.host, &st), 0);
    fd = net_listen_socket(&a, false, &err);
    assert_true(fd >= 0);
    (void)close(fd);
    /* a file that is no socket stays */
    assert_int_equal(unlink(a.host), 0);
    fd = open(a.host, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(net_listen_socket(&a, false, &err), -ENOTSOCK);
    assert_non_null(strstr(err.text, "something that is no socket is there"));
    assert_int_equal(stat(a.host, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0644);
    assert_int_equal(unlink(a.host), 0);
    /* nor does a link, and what it leads to is not touched */
    char other[sizeof(a.host) + 8];
    snprintf(other, sizeof(other), "%s.other", a.host);
    fd = open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(symlink(other, a.host), 0);
    assert_int_equal(net_listen_socket(&a, false, &err), -ENOTSOCK);
    assert_int_equal(lstat(other, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    assert_int_equal(unlink(a.host), 0);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(net_listen_socket(&a, false, &err), -ENOENT);
}

/* ---- timers, signals, descriptors ------------------------------------------------------------------------ */

struct ticks {
    struct world *w;
    struct net_timer *t, *other;
    unsigned n, close_after;
};

static void tick(void *ctx)
{
    struct ticks *k = ctx;

    k->n++;
    if (k->n == k->close_after) {
        k->t = net_timer_close(k->t);
        k->other = net_timer_close(k->other);
        net_loop_stop(k->w->loop);
    }
}

static void never(void *ctx)
{
    (void)ctx;
    fail_msg("a stopped or closed timer struck");
}

static void timers(void **state)
{
    (void)state;
    struct world w;
    struct ticks k = {.w = &w, .close_after = 3};
    uint64_t start;

    world_open(&w);
    assert_null(net_timer_close(NULL));
    k.t = net_timer_new(w.loop, tick, &k);
    k.other = net_timer_new(w.loop, never, NULL);
    start = net_loop_now_ms(w.loop);
    net_timer_start(k.other, 200, 0);
    net_timer_start(k.t, 200, 0);
    net_timer_start(k.t, 10, 5); /* starts over */
    run(&w);
    assert_int_equal(k.n, 3);
    assert_true(net_loop_now_ms(w.loop) - start >= 20);

    /* stopped: nothing is left to wait for */
    k.other = net_timer_new(w.loop, never, NULL);
    net_timer_start(k.other, 1, 0);
    net_timer_stop(k.other);
    net_loop_run(w.loop);

    /* a timer that is started long after the last run does not strike early */
    struct timespec nap = {.tv_nsec = 30 * 1000 * 1000};
    (void)nanosleep(&nap, NULL);
    k = (struct ticks){.w = &w, .close_after = 1};
    k.t = net_timer_new(w.loop, tick, &k);
    start = clk_system.mono_us(NULL);
    net_timer_start(k.t, 20, 0);
    run(&w);
    assert_true(clk_system.mono_us(NULL) - start >= 19 * 1000);
    world_close(&w); /* closes the one that is left */
}

struct caught {
    struct world *w;
    struct net_signal *s;
    int signum;
};

static void on_signal(void *ctx, int signum)
{
    struct caught *c = ctx;

    c->signum = signum;
    c->s = net_signal_close(c->s);
    net_loop_stop(c->w->loop);
}

static void signals(void **state)
{
    (void)state;
    struct world w;
    struct caught c = {.w = &w};
    struct err err = {0};

    world_open(&w);
    assert_int_equal(net_signal_new(w.loop, SIGUSR1, on_signal, &c, &c.s, &err), 0);
    assert_int_equal(raise(SIGUSR1), 0);
    run(&w);
    assert_int_equal(c.signum, SIGUSR1);
    assert_null(c.s);
    assert_int_equal(net_signal_new(w.loop, 4000, on_signal, &c, &c.s, &err), -EINVAL);
    assert_null(c.s);
    assert_int_equal(net_signal_new(w.loop, SIGUSR2, on_signal, &c, &c.s, &err), 0);
    world_close(&w);
}

struct seen {
    struct world *w;
    struct net_watch *watch;
    int fd;
    unsigned n;
    char last;
};

static void on_readable(void *ctx)
{
    struct seen *s = ctx;

    s->n++;
    if (read(s->fd, &s->last, 1) == 0) {
        s->last = 'E';
        s->watch = net_watch_close(s->watch);
        net_loop_stop(s->w->loop);
    }
}

static void watched_descriptor(void **state)
{
    (void)state;
    struct world w;
    int fds[2], file;
    struct seen s = {.w = &w};
    struct err err = {0};

    world_open(&w);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    s.fd = fds[0];
    assert_int_equal(net_watch_new(w.loop, fds[0], on_readable, &s, &s.watch, &err), 0);
    assert_int_equal(write(fds[1], "abc", 3), 3);
    (void)close(fds[1]);
    run(&w);
    assert_int_equal(s.n, 4); /* level-triggered: one call for each byte that was left, one for the end */
    assert_int_equal(s.last, 'E');
    (void)close(fds[0]);

    file = open("/proc/self/status", O_RDONLY | O_CLOEXEC); /* cannot be waited for */
    assert_true(file >= 0);
    assert_true(net_watch_new(w.loop, file, on_readable, &s, &s.watch, &err) < 0);
    assert_true(err.code < 0);
    (void)close(file);
    world_close(&w);
}

/* ---- streams --------------------------------------------------------------------------------------------- */

static void echo_parts_and_end(struct net_addr a)
{
    struct pair p;
    struct str parts[40];
    char want[41] = "";

    pair_open_at(&p, &a);
    net_stream_read(p.b.s, true);
    for (size_t i = 0; i < BASE_COUNT(parts); i++) {
        parts[i] = i % 7 == 3 ? (struct str){NULL, 0} : (struct str){&"abcdefghijklmnopqrstuvwxyz"[i % 26], 1};
        if (parts[i].len)
            (void)snprintf(want + strlen(want), 2, "%c", parts[i].ptr[0]);
    }
    p.b.answer = "answer";
    p.a.stop_at_data = true;
    assert_int_equal(net_stream_write(p.a.s, parts, BASE_COUNT(parts)), 0);
    assert_int_equal(net_stream_queued(p.a.s), 0);
    run(&p.w);
    assert_string_equal(p.b.got.ptr, want);
    assert_string_equal(p.a.got.ptr, "answer");

    /* a finishes sending; b sees the end and may go on writing */
    p.b.stop_at_end = true;
    net_stream_shutdown(p.a.s);
    assert_int_equal(put(&p.a, "x"), -EPIPE);
    run(&p.w);
    assert_int_equal(p.b.end_status, 0);
    assert_int_equal(put(&p.b, " and more"), 0);
    run(&p.w);
    assert_string_equal(p.a.got.ptr, "answer and more");

    p.a.stop_at_end = true;
    p.b.s = net_stream_close(p.b.s, false);
    run(&p.w);
    assert_int_equal(p.a.end_status, 0);
    assert_true(p.b.closed);
    p.a.s = net_stream_close(p.a.s, false);
    p.a.stop_at_close = true;
    run(&p.w);
    assert_string_equal(p.a.log, "cdex");
    assert_string_equal(p.b.log, "dex");
    pair_close(&p);
}

static void echo_tcp(void **state)
{
    (void)state;
    echo_parts_and_end(loopback(0));
}

static void echo_tcp6(void **state)
{
    (void)state;
    struct net_addr a;
    int fd;

    assert_int_equal(net_addr_ip("::1", 0, &a), 0);
    fd = net_listen_socket(&a, false, NULL);
    if (fd < 0)
        skip(); /* a machine without IPv6 */
    (void)close(fd);
    echo_parts_and_end(a);
}

static void echo_unix(void **state)
{
    (void)state;
    char dir[32];
    struct net_addr a;

    temp_dir(dir);
    a = unix_in(dir);
    echo_parts_and_end(a);
    assert_int_equal(unlink(a.host), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void connection_refused(void **state)
{
    (void)state;
    struct world w;
    struct end e;
    struct net_addr a = loopback(0);
    struct err err = {0};
    int fd;

    world_open(&w);
    end_init(&e, &w);
    fd = net_listen_socket(&a, false, NULL);
    assert_int_equal(net_socket_addr(fd, &a), 0);
    (void)close(fd);
    assert_int_equal(net_connect(w.loop, &a, &end_ops, &e, &e.s, &err), 0);
    assert_int_equal(put(&e, "never sent"), 0); /* queued */
    run(&w);
    assert_int_equal(e.connect_status, -ECONNREFUSED);
    assert_int_equal(net_stream_queued(e.s), 0);
    e.s = net_stream_close(e.s, false);

    assert_int_equal(net_addr_unix("/tmp/no-such-folder-for-net/s", &a), 0);
    e.connect_status = 0;
    struct net_stream *second = NULL;
    assert_int_equal(net_connect(w.loop, &a, &end_ops, &e, &second, &err), 0);
    e.closed = false;
    run(&w);
    assert_int_equal(e.connect_status, -ENOENT);
    e.n_log = 0;
    e.closed = false; /* the first one's close came meanwhile */
    second = net_stream_close(second, true);
    snprintf(a.host, sizeof(a.host), "%s", "");
    assert_int_equal(net_connect(w.loop, &a, &end_ops, &e, &second, &err), -EINVAL);
    world_close(&w);
    end_release(&e);
}

static void written_while_connecting(void **state)
{
    (void)state;
    struct pair p;
    struct net_addr a = loopback(0);

    world_open(&p.w);
    end_init(&p.a, &p.w);
    end_init(&p.b, &p.w);
    listen_at(&p.w, &a, accept_b, &p);
    assert_int_equal(net_connect(p.w.loop, &p.w.addr, &end_ops, &p.a, &p.a.s, NULL), 0);
    assert_false(net_stream_quiet(p.a.s));
    assert_int_equal(put(&p.a, "early "), 0);
    assert_int_equal(put(&p.a, "words"), 0);
    assert_int_equal(net_stream_queued(p.a.s), 11);
    net_stream_shutdown(p.a.s);
    run(&p.w);
    net_stream_read(p.b.s, true);
    p.b.stop_at_end = true;
    run(&p.w);
    assert_string_equal(p.b.got.ptr, "early words");
    assert_int_equal(p.b.end_status, 0);
    assert_string_equal(p.a.log, "cw");
    pair_close(&p);
}

static void back_pressure(void **state)
{
    (void)state;
    const size_t size = 24 * 1024 * 1024;
    struct pair p;
    char *big = malloc(size);

    assert_non_null(big);
    for (size_t i = 0; i < size; i++)
        big[i] = (char)(i * 2654435761u >> 13);
    pair_open(&p);
    struct str part = {big, size / 2}, rest = {big + size / 2, size / 2};
    assert_int_equal(net_stream_write(p.a.s, &part, 1), 0);
    size_t queued = net_stream_queued(p.a.s);
    assert_true(queued > 0 && queued < size / 2);
    assert_int_equal(net_stream_write(p.a.s, &rest, 1), 0); /* behind what flies */
    assert_int_equal(net_stream_queued(p.a.s), queued + size / 2);
    assert_true(net_stream_unsent(p.a.s) > net_stream_queued(p.a.s)); /* the kernel holds some, the peer's kernel has taken the rest */
    assert_true(net_stream_unsent(p.a.s) <= size);
    net_stream_shutdown(p.a.s); /* waits for the queue */
    net_stream_read(p.b.s, true);
    p.b.stop_at_end = true;
    run(&p.w);
    assert_int_equal(p.b.got.len, size);
    assert_memory_equal(p.b.got.ptr, big, size);
    assert_string_equal(p.a.log, "cw");
    free(big);
    pair_close(&p);
}

static void reading_stops(void **state)
{
    (void)state;
    struct pair p;
    struct net_timer *t;

    pair_open(&p);
    t = net_timer_new(p.w.loop, hang, &p.w);
    assert_int_equal(put(&p.a, "one"), 0);
    net_timer_start(t, 20, 0); /* b has not been told to read */
    net_loop_run(p.w.loop);
    assert_true(p.w.hung);
    p.w.hung = false;
    assert_int_equal(p.b.got.len, 0);
    net_stream_read(p.b.s, true);
    net_stream_read(p.b.s, false);
    net_stream_read(p.b.s, true);
    p.b.stop_at_data = true;
    run(&p.w);
    assert_string_equal(p.b.got.ptr, "one");
    pair_close(&p);
}

/* Whatever is closed from within its own callback hears of nothing but its close. */
static void closed_in_callback(void **state)
{
    (void)state;
    static const struct {
        char at;
        const char *log;
    } cases[] = {{'c', "cx"}, {'d', "cdx"}, {'e', "cex"}, {'w', "cwx"}};
    static char big[16 * 1024 * 1024];

    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct pair p;
        struct net_addr a = loopback(0);
        struct str part = {big, sizeof(big)};

        world_open(&p.w);
        end_init(&p.a, &p.w);
        end_init(&p.b, &p.w);
        listen_at(&p.w, &a, accept_b, &p);
        p.a.close_at = cases[i].at;
        p.a.stop_at_close = true;
        assert_int_equal(net_connect(p.w.loop, &p.w.addr, &end_ops, &p.a, &p.a.s, NULL), 0);
        run(&p.w);
        if (!p.b.s) /* closed before it was accepted */
            run(&p.w);
        if (cases[i].at == 'd')
            assert_int_equal(put(&p.b, "some data"), 0);
        if (cases[i].at == 'e')
            net_stream_shutdown(p.b.s);
        if (cases[i].at == 'w') {
            assert_int_equal(net_stream_write(p.a.s, &part, 1), 0);
            net_stream_read(p.b.s, true);
        }
        while (!p.a.closed)
            run(&p.w);
        assert_string_equal(p.a.log, cases[i].log);
        pair_close(&p);
    }
}

static void closed_with_queue(void **state)
{
    (void)state;
    static char big[16 * 1024 * 1024];
    struct pair p;
    struct str part = {big, sizeof(big)};

    pair_open(&p);
    assert_int_equal(net_stream_write(p.a.s, &part, 1), 0);
    assert_true(net_stream_queued(p.a.s) > 0);
    p.a.s = net_stream_close(p.a.s, false);
    p.a.stop_at_close = true;
    run(&p.w);
    assert_string_equal(p.a.log, "cx"); /* no drain */
    pair_close(&p);
}

static void reset_is_seen(void **state)
{
    (void)state;
    struct pair p;

    pair_open(&p);
    net_stream_read(p.b.s, true);
    p.b.stop_at_end = true;
    p.a.s = net_stream_close(p.a.s, true);
    run(&p.w);
    assert_int_equal(p.b.end_status, -ECONNRESET);
    assert_int_equal(put(&p.b, "x"), -EPIPE);
    pair_close(&p);
}

/* Data and a reset that arrive together: the data is handed over, and the end is not taken for a clean one. */
static void reset_behind_data(void **state)
{
    (void)state;
    struct pair p;

    pair_open(&p);
    assert_int_equal(put(&p.a, "half an answ"), 0);
    p.a.s = net_stream_close(p.a.s, true);
    p.a.stop_at_close = true;
    run(&p.w);
    net_stream_read(p.b.s, true);
    p.b.stop_at_end = true;
    run(&p.w);
    assert_string_equal(p.b.got.ptr, "half an answ");
    assert_int_equal(p.b.end_status, -ECONNRESET);
    assert_string_equal(p.b.log, "de");
    pair_close(&p);
}

/* Lets the loop turn until the kernel has told `e` that its peer is gone and a write fails. */
static void write_until_broken(struct end *e)
{
    int r = 0;

    for (int i = 0; i < 200 && r == 0; i++) {
        struct timespec nap = {.tv_nsec = 1000 * 1000};

        r = put(e, "into the void");
        (void)nanosleep(&nap, NULL);
    }
    assert_int_equal(r, -EPIPE);
}

/* A peer that answered and closed without reading: its answer is read before the broken connection is told. */
static void answer_before_break(void **state)
{
    (void)state;
    struct pair p;

    pair_open(&p);
    assert_int_equal(put(&p.a, "a request that nobody reads"), 0);
    assert_int_equal(put(&p.b, "too large"), 0);
    p.b.s = net_stream_close(p.b.s, true);
    write_until_broken(&p.a);
    assert_int_equal(p.a.n_ends, 0);
    p.a.stop_at_end = true;
    run(&p.w);
    assert_string_equal(p.a.got.ptr, "too large");
    assert_true(p.a.end_status < 0);
    assert_string_equal(p.a.log, "cde");
    pair_close(&p);
}

static void break_without_reading(void **state)
{
    (void)state;
    for (int close_before = 0; close_before < 2; close_before++) {
        struct pair p;

        pair_open(&p); /* b never reads */
        p.a.s = net_stream_close(p.a.s, true);
        write_until_broken(&p.b);
        assert_int_equal(p.b.n_ends, 0);
        if (close_before) { /* what it owed is forgotten */
            p.b.s = net_stream_close(p.b.s, false);
            p.b.stop_at_close = true;
            run(&p.w);
            assert_string_equal(p.b.log, "x");
        } else {
            p.b.stop_at_end = true;
            run(&p.w);
            assert_true(p.b.end_status < 0);
            assert_string_equal(p.b.log, "e");
            net_stream_read(p.b.s, true); /* says nothing more */
        }
        pair_close(&p);
    }
}

/* Reading is turned off between the failed write and its report. */
static void break_then_reading_off(void **state)
{
    (void)state;
    struct pair p;

    pair_open(&p);
    p.b.s = net_stream_close(p.b.s, true);
    write_until_broken(&p.a);
    net_stream_read(p.a.s, false);
    p.a.stop_at_end = true;
    run(&p.w);
    assert_int_equal(p.a.n_ends, 1);
    assert_true(p.a.end_status < 0);
    pair_close(&p);
}

static void break_after_end(void **state)
{
    (void)state;
    struct pair p;

    pair_open(&p);
    net_stream_read(p.b.s, true);
    p.b.stop_at_end = true;
    p.a.s = net_stream_close(p.a.s, false);
    run(&p.w);
    assert_int_equal(p.b.end_status, 0);
    write_until_broken(&p.b);
    run(&p.w);
    assert_int_equal(p.b.n_ends, 2);
    assert_true(p.b.end_status < 0);
    pair_close(&p);
}

static void queue_breaks(void **state)
{
    (void)state;
    static char big[16 * 1024 * 1024];
    struct pair p;
    struct str part = {big, sizeof(big)};

    pair_open(&p);
    assert_int_equal(net_stream_write(p.a.s, &part, 1), 0);
    assert_true(net_stream_queued(p.a.s) > 0);
    net_stream_read(p.a.s, false);
    p.a.stop_at_end = true;
    p.b.s = net_stream_close(p.b.s, true);
    run(&p.w);
    assert_true(p.a.end_status < 0);
    assert_int_equal(net_stream_queued(p.a.s), 0);
    pair_close(&p);
}

static void too_much_to_queue(void **state)
{
    (void)state;
    struct pair p;
    struct str parts[2] = {{"x", 1}, {"y", (size_t)1 << 31}}; /* the size is refused before the bytes are looked at */

    pair_open(&p);
    assert_int_equal(net_stream_write(p.a.s, parts, 2), -ENOMEM);
    assert_int_equal(put(&p.a, "x"), -EPIPE);
    p.a.stop_at_end = true;
    run(&p.w);
    assert_int_equal(p.a.end_status, -ENOMEM);
    pair_close(&p);
}

static void quiet_or_not(void **state)
{
    (void)state;
    struct pair p;

    pair_open(&p);
    assert_true(net_stream_quiet(p.b.s));
    assert_int_equal(put(&p.a, "x"), 0); /* loopback: there when the call returns */
    assert_false(net_stream_quiet(p.b.s));
    net_stream_read(p.b.s, true);
    p.b.stop_at_data = true;
    run(&p.w);
    assert_true(net_stream_quiet(p.b.s));
    assert_false(net_stream_gone(p.b.s));
    assert_int_equal(put(&p.a, "unread"), 0);
    assert_false(net_stream_gone(p.b.s));
    p.a.s = net_stream_close(p.a.s, false);
    p.a.stop_at_close = true;
    net_stream_read(p.b.s, false);
    run(&p.w);
    assert_false(net_stream_quiet(p.b.s)); /* the end waits */
    assert_true(net_stream_gone(p.b.s));
    pair_close(&p);
}

static void descriptors_as_streams(void **state)
{
    (void)state;
    struct world w;
    struct end e;
    struct err err = {0};
    int fds[2];

    world_open(&w);
    end_init(&e, &w);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(net_stream_from_fd(w.loop, fds[0], &end_ops, &e, &e.s, &err), 0);
    assert_int_equal(write(fds[1], "hello", 5), 5);
    e.stop_at_data = true;
    run(&w);
    assert_string_equal(e.got.ptr, "hello");
    pid_t pid;
    uid_t uid;
    assert_int_equal(net_stream_peer_cred(e.s, &pid, &uid), 0);
    assert_int_equal(pid, getpid());
    assert_int_equal(uid, getuid());
    e.s = net_stream_close(e.s, true);
    (void)close(fds[1]);

    /* what is no stream is refused, and closed */
    struct net_stream *s = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(net_stream_from_fd(w.loop, fds[0], &end_ops, &e, &s, &err), -EINVAL);
    assert_int_equal(fcntl(fds[0], F_GETFD), -1);
    (void)close(fds[1]);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(net_stream_from_fd(w.loop, fds[0], &end_ops, &e, &s, &err), -ENOTSOCK);
    assert_int_equal(fcntl(fds[0], F_GETFD), -1);
    (void)close(fds[1]);
    assert_null(s);
    world_close(&w);
    end_release(&e);
}

static void credentials(void **state)
{
    (void)state;
    char dir[32];
    struct net_addr a;
    struct pair p;
    pid_t pid = 0;
    uid_t uid = 12345;

    temp_dir(dir);
    a = unix_in(dir);
    pair_open_at(&p, &a);
    assert_int_equal(net_stream_peer_cred(p.b.s, &pid, &uid), 0);
    assert_int_equal(pid, getpid());
    assert_int_equal(uid, getuid());
    pair_close(&p);
    assert_int_equal(unlink(a.host), 0);
    assert_int_equal(rmdir(dir), 0);

    pair_open(&p);
    assert_int_equal(net_stream_peer_cred(p.b.s, &pid, &uid), -ENOTSUP);
    pair_close(&p);
}

/* ---- listeners ------------------------------------------------------------------------------------------- */

struct door {
    struct world w;
    unsigned n, close_at, stop_at;
    struct net_stream *held[64];
};

static void hold(void *ctx, struct net_stream *s)
{
    struct door *d = ctx;

    assert_true(d->n < BASE_COUNT(d->held));
    d->held[d->n++] = s;
    if (d->n == d->close_at)
        d->w.listener = net_listener_close(d->w.listener);
    if (d->n == d->stop_at)
        net_loop_stop(d->w.loop);
}

static int plain_client(const struct net_addr *a)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(a->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
    return fd;
}

static void listener_closes_in_its_callback(void **state)
{
    (void)state;
    struct door d = {0};
    struct net_addr a = loopback(0);
    int c[5];

    world_open(&d.w);
    listen_at(&d.w, &a, hold, &d);
    for (size_t i = 0; i < 4; i++)
        c[i] = plain_client(&d.w.addr);
    d.close_at = d.stop_at = 3; /* from within its callback, with one more waiting */
    run(&d.w);
    assert_int_equal(d.n, 3);
    assert_null(d.w.listener);
    net_loop_run(d.w.loop);
    assert_int_equal(d.n, 3);
    for (size_t i = 0; i < 4; i++)
        (void)close(c[i]);

    /* the address is free at once */
    int fd = net_listen_socket(&d.w.addr, false, NULL);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_null(net_listener_close(NULL));
    world_close(&d.w);
}

static void out_of_descriptors(void **state)
{
    (void)state;
    struct door d = {0};
    struct net_addr a = loopback(0);
    struct rlimit old, low;
    int c[4], probe;

    world_open(&d.w);
    listen_at(&d.w, &a, hold, &d);
    for (size_t i = 0; i < 4; i++)
        c[i] = plain_client(&d.w.addr);
    probe = dup(c[0]);
    (void)close(probe);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)probe + 1; /* exactly one more fits */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    d.stop_at = 1;
    run(&d.w);
    assert_int_equal(d.n, 1);
    uint64_t start = clk_system.mono_us(NULL);
    d.held[0] = net_stream_close(d.held[0], false); /* room again */
    d.stop_at = 2;
    run(&d.w);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(d.n, 2);
    assert_true(clk_system.mono_us(NULL) - start >= 50 * 1000); /* it was pausing */
    d.stop_at = 4;
    run(&d.w);
    assert_int_equal(d.n, 4); /* none of the clients was lost */
    for (size_t i = 0; i < 4; i++)
        (void)close(c[i]);
    world_close(&d.w);
}

/* ---- the loop's end -------------------------------------------------------------------------------------- */

struct stubborn {
    struct net_loop *loop;
    struct net_addr addr;
    bool closed;
};

static void want_another(void *ctx)
{
    struct stubborn *b = ctx;
    struct err err = {0};
    struct net_stream *s = NULL;
    struct net_signal *g = NULL;

    b->closed = true;
    assert_int_equal(net_connect(b->loop, &b->addr, &end_ops, NULL, &s, &err), -ECANCELED);
    assert_int_equal(net_signal_new(b->loop, SIGUSR1, NULL, NULL, &g, &err), -ECANCELED);
    assert_null(net_timer_new(b->loop, never, NULL));
}

static void loop_closes_what_is_left(void **state)
{
    (void)state;
    struct door d = {0};
    struct net_addr a = loopback(0);
    struct stubborn b = {0};
    struct net_stream_ops ops = {.on_close = want_another};
    struct net_stream *s;
    struct net_signal *g;
    struct net_watch *watch;
    struct net_timer *t;
    int fds[2];

    world_open(&d.w);
    listen_at(&d.w, &a, hold, &d);
    b.loop = d.w.loop;
    b.addr = d.w.addr;
    assert_int_equal(net_connect(d.w.loop, &d.w.addr, &ops, &b, &s, NULL), 0);
    assert_int_equal(net_signal_new(d.w.loop, SIGUSR1, on_signal, NULL, &g, NULL), 0);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(net_watch_new(d.w.loop, fds[0], on_readable, NULL, &watch, NULL), 0);
    t = net_timer_new(d.w.loop, never, NULL);
    net_timer_start(t, 100000, 0);
    world_close(&d.w);
    assert_true(b.closed);
    (void)close(fds[0]);
    (void)close(fds[1]);
    assert_null(net_loop_free(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(listening_tcp),
        cmocka_unit_test(listening_unix),
        cmocka_unit_test(timers),
        cmocka_unit_test(wakes),
        cmocka_unit_test(signals),
        cmocka_unit_test(watched_descriptor),
        cmocka_unit_test(echo_tcp),
        cmocka_unit_test(echo_tcp6),
        cmocka_unit_test(echo_unix),
        cmocka_unit_test(connection_refused),
        cmocka_unit_test(written_while_connecting),
        cmocka_unit_test(back_pressure),
        cmocka_unit_test(reading_stops),
        cmocka_unit_test(closed_in_callback),
        cmocka_unit_test(closed_with_queue),
        cmocka_unit_test(reset_is_seen),
        cmocka_unit_test(reset_behind_data),
        cmocka_unit_test(answer_before_break),
        cmocka_unit_test(break_without_reading),
        cmocka_unit_test(break_then_reading_off),
        cmocka_unit_test(break_after_end),
        cmocka_unit_test(queue_breaks),
        cmocka_unit_test(too_much_to_queue),
        cmocka_unit_test(quiet_or_not),
        cmocka_unit_test(descriptors_as_streams),
        cmocka_unit_test(credentials),
        cmocka_unit_test(listener_closes_in_its_callback),
        cmocka_unit_test(out_of_descriptors),
        cmocka_unit_test(loop_closes_what_is_left),
    };
    return cmocka_run_group_tests_name("net", tests, NULL, NULL);
}
