/* SPDX-License-Identifier: MIT
 *
 * http_echo: a server on httpio for measurements. Answers every request with a body of the given size, or with the request's own body under /echo; under
 * /events it streams events for ever, one each millisecond. Prints the port it listens at, and runs until SIGINT or SIGTERM.
 *
 *     http_echo [PORT [BYTES]]        PORT 0 (default): any free port; BYTES: 2048
 */
#include <errno.h>
#include <signal.h>
#include <sys/queue.h>

#include <httpio/httpio.h>

struct stream {
    struct httpio_exchange *x;
    LIST_ENTRY(stream) link;
};

struct echo {
    struct net_loop *loop;
    struct httpio_server *server;
    struct net_timer *timer;
    struct str body;
    LIST_HEAD(, stream) streams;
};

static const struct http_field plain = {.name = {"Content-Type", 12}, .value = {"application/octet-stream", 24}};
static const struct http_field events = {.name = {"Content-Type", 12}, .value = {"text/event-stream", 17}};

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct echo *e = ctx;

    if (str_eq(head->target, STR("/echo"))) {
        if (httpio_begin(x, 200, &plain, 1, head->content_length) < 0)
            httpio_abort(x);
    } else if (str_eq(head->target, STR("/events"))) {
        struct stream *s = calloc(1, sizeof(*s));

        if (!s || httpio_begin(x, 200, &events, 1, -1) < 0) {
            free(s);
            httpio_abort(x);
            return;
        }
        s->x = x;
        httpio_exchange_set(x, s);
        if (LIST_EMPTY(&e->streams))
            net_timer_start(e->timer, 1, 1);
        LIST_INSERT_HEAD(&e->streams, s, link);
    }
}

static void on_body(void *ctx, struct httpio_exchange *x, struct str data)
{
    (void)ctx;
    if (str_eq(httpio_exchange_head(x)->target, STR("/echo")) && httpio_send(x, data))
        httpio_read(x, false);
}

static void on_body_end(void *ctx, struct httpio_exchange *x)
{
    struct echo *e = ctx;
    struct str target = httpio_exchange_head(x)->target;

    if (str_eq(target, STR("/echo")))
        httpio_end(x);
    else if (!str_eq(target, STR("/events")))
        httpio_respond(x, 200, "application/octet-stream", e->body);
}

static void on_drain(void *ctx, struct httpio_exchange *x)
{
    (void)ctx;
    httpio_read(x, true);
}

static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    struct echo *e = ctx;
    struct stream *s = httpio_exchange_get(x);

    (void)completed;
    if (!s)
        return;
    LIST_REMOVE(s, link);
    free(s);
    if (LIST_EMPTY(&e->streams))
        net_timer_stop(e->timer);
}

/* Sending calls no owner, so the list stays as it is. */
static void on_tick(void *ctx)
{
    struct echo *e = ctx;
    struct stream *s;

    LIST_FOREACH(s, &e->streams, link)
        (void)httpio_send(s->x, STR("data: {\"choices\":[{\"delta\":{\"content\":\"word \"}}]}\n\n"));
}

static void on_signal(void *ctx, int signum)
{
    struct echo *e = ctx;

    (void)signum;
    net_loop_stop(e->loop);
}

static int run(struct echo *e, uint16_t port, struct err *err)
{
    static const struct httpio_server_ops ops = {on_request, on_body, on_body_end, on_drain, on_done, NULL};
    struct httpio_limits limits = HTTPIO_LIMITS_DEFAULT;
    struct net_signal *term = NULL, *intr = NULL;
    struct net_addr addr;
    int fd, r;

    limits.connections = 20000;
    if (net_addr_ip("127.0.0.1", port, &addr) < 0)
        return err_set(err, -EINVAL, "no loopback address");
    r = net_loop_new(&e->loop, err);
    if (r < 0)
        return r;
    e->server = httpio_server_new(e->loop, &limits, &ops, e);
    e->timer = net_timer_new(e->loop, on_tick, e);
    fd = e->server && e->timer ? net_listen_socket(&addr, false, err) : err_nomem(err);
    r = fd < 0 ? fd : net_socket_addr(fd, &addr);
    if (r >= 0)
        r = httpio_server_add(e->server, fd, err);
    if (r >= 0)
        r = net_signal_new(e->loop, SIGTERM, on_signal, e, &term, err);
    if (r >= 0)
        r = net_signal_new(e->loop, SIGINT, on_signal, e, &intr, err);
    if (r >= 0) {
        (void)printf("%u\n", (unsigned)addr.port);
        (void)fflush(stdout);
        net_loop_run(e->loop);
    }
    e->server = httpio_server_free(e->server);
    e->loop = net_loop_free(e->loop);
    return r;
}

int main(int argc, char **argv)
{
    struct echo e = {0};
    struct err err = {0};
    uint64_t port = 0, bytes = 2048;
    char *body;
    int r;

    if (argc > 3 || (argc > 1 && (str_to_u64(str_of(argv[1]), &port) < 0 || port > UINT16_MAX)) ||
        (argc > 2 && (str_to_u64(str_of(argv[2]), &bytes) < 0 || bytes > 64 * 1024 * 1024))) {
        (void)fprintf(stderr, "usage: http_echo [PORT [BYTES]]\n");
        return 2;
    }
    body = malloc(bytes + 1);
    if (!body)
        return 1;
    memset(body, 'x', bytes);
    e.body = (struct str){body, bytes};
    r = run(&e, (uint16_t)port, &err);
    free(body);
    if (r < 0)
        (void)fprintf(stderr, "http_echo: %s\n", err.text);
    return r < 0 ? 1 : 0;
}
