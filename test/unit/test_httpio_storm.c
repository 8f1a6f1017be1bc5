/* SPDX-License-Identifier: MIT
 *
 * Server and client of httpio against each other in one loop, both with owners that do whatever the dice say, in every callback and between them: answer, answer by
 * halves, stop reading, abort or cancel this one or any other, start another call, free client or server in the middle. The dice are seeded, so that a failure comes
 * again. What must hold whatever they say: every request ends in exactly one on_done, no callback comes after a call's last one, nothing is left over, and
 * the sanitizers have nothing to say.
 */
#include "httpio_aid.h"

#include <httpio/httpio.h>

#define SLOTS 32
#define ROUNDS 12

struct call {
    struct storm *s;
    struct httpio_call *k; /* NULL: the slot is free */
    bool follows, head;
    size_t sent;
};

struct live {
    struct httpio_exchange *x; /* NULL: the slot is free */
    bool begun, body_done;
};

struct storm {
    struct world w;
    uint64_t dice;
    struct net_timer *tick;
    struct httpio_server *server;
    struct httpio_client *client;
    struct net_addr addr;
    struct call calls[SLOTS];
    struct live live[4 * SLOTS];
    size_t started, to_start, requests, done, complete, ended, failed, cancelled;
};

static char bytes[100000];

static unsigned roll(struct storm *s, unsigned n)
{
    s->dice = s->dice * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(s->dice >> 33) % n;
}

static struct str piece(struct storm *s)
{
    static const unsigned sizes[] = {1, 10, 1000, 99999};

    return (struct str){bytes, roll(s, sizes[roll(s, 4)]) + 1};
}

/* ---- the server's owner ---------------------------------------------------------------------------------- */

static struct live *any_live(struct storm *s)
{
    struct live *v = &s->live[roll(s, BASE_COUNT(s->live))];

    return v->x ? v : NULL;
}

/* What an owner may do with an exchange at any time. It may be over afterwards, and its slot in use again. */
static void act(struct storm *s, struct live *v)
{
    if (!v || !v->x)
        return;
    switch (roll(s, 12)) {
    case 0:
        httpio_abort(v->x);
        break;
    case 1:
    case 2:
        if (!v->begun)
            httpio_respond(v->x, 200 + roll(s, 300), "text/plain", piece(s));
        break;
    case 3:
    case 4:
        if (!v->begun && httpio_begin(v->x, 200, NULL, 0, roll(s, 2) ? -1 : 5000) == 0)
            v->begun = true;
        break;
    case 5:
    case 6:
        if (v->begun)
            (void)httpio_send(v->x, piece(s));
        break;
    case 7:
        if (v->begun)
            httpio_end(v->x);
        break;
    case 8:
        httpio_read(v->x, false);
        break;
    default:
        httpio_read(v->x, true);
    }
}

/* In a callback of v: something with it, and now and then with another one. False: it is over. */
static bool meddle(struct storm *s, struct live *v)
{
    struct httpio_exchange *x = v->x;

    if (roll(s, 3) == 0)
        act(s, v);
    if (roll(s, 8) == 0)
        act(s, any_live(s));
    return v->x == x;
}

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct storm *s = ctx;
    size_t i = 0;

    (void)head;
    s->requests++;
    while (i < BASE_COUNT(s->live) && s->live[i].x)
        i++;
    assert_true(i < BASE_COUNT(s->live));
    s->live[i] = (struct live){.x = x};
    httpio_exchange_set(x, &s->live[i]);
    (void)meddle(s, &s->live[i]);
}

static void on_body(void *ctx, struct httpio_exchange *x, struct str data)
{
    struct storm *s = ctx;
    struct live *v = httpio_exchange_get(x);

    assert_ptr_equal(v->x, x);
    assert_true(data.len > 0);
    (void)meddle(s, v);
}

static void on_body_end(void *ctx, struct httpio_exchange *x)
{
    struct storm *s = ctx;
    struct live *v = httpio_exchange_get(x);

    assert_ptr_equal(v->x, x);
    assert_false(v->body_done);
    v->body_done = true;
    if (!meddle(s, v) || roll(s, 2))
        return;
    if (v->begun)
        httpio_end(x);
    else
        httpio_respond(x, 200, NULL, piece(s));
}

static void on_server_drain(void *ctx, struct httpio_exchange *x)
{
    struct live *v = httpio_exchange_get(x);

    assert_ptr_equal(v->x, x);
    (void)meddle(ctx, v);
}

static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    struct storm *s = ctx;
    struct live *v = httpio_exchange_get(x);

    assert_ptr_equal(v->x, x);
    v->x = NULL;
    s->done++;
    s->complete += completed;
    if (roll(s, 10) == 0)
        act(s, any_live(s));
}

/* ---- the client's owner ---------------------------------------------------------------------------------- */

static void start_call(struct storm *s);

static void cancel(struct storm *s, struct call *c)
{
    if (!c->k)
        return;
    c->k = httpio_call_cancel(c->k);
    s->cancelled++;
}

static void act_call(struct storm *s, struct call *c)
{
    if (!c->k)
        return;
    switch (roll(s, 12)) {
    case 0:
        cancel(s, c);
        break;
    case 1:
        httpio_call_read(c->k, false);
        break;
    case 2:
    case 3:
    case 4:
        httpio_call_read(c->k, true);
        break;
    case 5:
    case 6:
    case 7:
        if (c->follows && c->sent < 300000) {
            struct str p = piece(s);

            c->sent += p.len;
            (void)httpio_call_send(c->k, p);
        }
        break;
    default:
        if (c->follows)
            httpio_call_end(c->k);
    }
}

static void meddle_call(struct call *c)
{
    struct storm *s = c->s;

    assert_non_null(c->k);
    if (roll(s, 4) == 0)
        act_call(s, &s->calls[roll(s, SLOTS)]);
    if (roll(s, 6) == 0)
        start_call(s);
    if (roll(s, 10) == 0)
        act(s, any_live(s));
    if (roll(s, 4) == 0)
        act_call(s, c);
}

static void on_head(void *ctx, const struct http_head *head)
{
    struct call *c = ctx;

    assert_true(head->status >= 200);
    assert_false(c->head);
    c->head = true;
    meddle_call(c);
}

static void on_call_body(void *ctx, struct str data)
{
    assert_true(data.len > 0);
    meddle_call(ctx);
}

static void over(struct call *c)
{
    assert_non_null(c->k);
    c->k = NULL;
    start_call(c->s);
    if (roll(c->s, 10) == 0)
        act_call(c->s, &c->s->calls[roll(c->s, SLOTS)]);
}

static void on_end(void *ctx)
{
    struct call *c = ctx;

    assert_true(c->head);
    c->s->ended++;
    over(c);
}

static void on_fail(void *ctx, enum httpio_failure f, const char *text)
{
    struct call *c = ctx;

    assert_true(strlen(httpio_failure_text(f)) < strlen(text));
    c->s->failed++;
    over(c);
}

static void on_drain(void *ctx)
{
    meddle_call(ctx);
}

static void start_call(struct storm *s)
{
    static const struct httpio_call_ops ops = {on_head, on_call_body, on_end, on_fail, on_drain};
    static const char *const methods[] = {"GET", "POST", "HEAD", "PUT"};
    struct httpio_request r = {.addr = s->addr, .method = str_of(methods[roll(s, 4)]), .target = STR("/"), .timeout_ms = 60 + roll(s, 100), .stall_ms = 100};
    struct call *c = NULL;

    for (size_t i = 0; i < SLOTS && !c; i++)
        if (!s->calls[i].k)
            c = &s->calls[i];
    if (!c || s->started >= s->to_start || !s->client)
        return;
    *c = (struct call){.s = s};
    r.fresh = roll(s, 8) == 0;
    if (r.method.ptr[0] == 'P') {
        r.body = roll(s, 2) ? piece(s) : (struct str){0};
        r.body_follows = c->follows = roll(s, 2) != 0;
        r.body_length = roll(s, 2) ? -1 : (int64_t)(r.body.len + roll(s, 3000));
    }
    if (httpio_call(s->client, &r, &ops, c, &c->k, NULL) == 0)
        s->started++;
}

/* ---- the storm ------------------------------------------------------------------------------------------- */

static void on_tick(void *ctx)
{
    struct storm *s = ctx;
    for (size_t i = 0; i < BASE_COUNT(s->live); i++)
        if (roll(s, 2))
            act(s, &s->live[i]);
    for (size_t i = 0; i < SLOTS; i++)
        act_call(s, &s->calls[i]);
    if (roll(s, 20) == 0)
        httpio_client_forget(s->client, &s->addr);
    start_call(s);
}

static void storm_open(struct storm *s, uint64_t seed)
{
    static const struct httpio_server_ops ops = {on_request, on_body, on_body_end, on_server_drain, on_done, NULL};
    struct httpio_limits limits = {.head_ms = 100, .idle_ms = 60, .body_stall_ms = 80, .write_stall_ms = 100, .connections = 3 * SLOTS, .send_high_bytes = 50000};
    struct httpio_client_options options = {.connect_ms = 1000, .idle_ms = 50, .idle_max = 5, .send_high_bytes = 50000};
    struct net_addr a = loopback(0);
    int fd;

    *s = (struct storm){.dice = seed, .to_start = 400};
    world_open(&s->w);
    fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &s->addr), 0);
    s->server = httpio_server_new(s->w.loop, &limits, &ops, s);
    s->client = httpio_client_new(s->w.loop, &options);
    assert_non_null(s->server);
    assert_non_null(s->client);
    assert_int_equal(httpio_server_add(s->server, fd, NULL), 0);
    s->tick = net_timer_new(s->w.loop, on_tick, s);
    net_timer_start(s->tick, 1, 1);
    for (size_t i = 0; i < SLOTS; i++)
        start_call(s);
}

static bool over_all(const struct storm *s)
{
    for (size_t i = 0; i < SLOTS; i++)
        if (s->calls[i].k)
            return false;
    return s->started >= s->to_start;
}

static void all_weathers(void **state)
{
    (void)state;
    size_t complete = 0, ended = 0, failed = 0, cancelled = 0;

    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        struct storm s;
        bool in_the_middle = seed % 4 == 0; /* the rest of the calls is cut off */

        storm_open(&s, seed);
        for (int i = 0; i < (in_the_middle ? 5 : 2000) && !over_all(&s); i++)
            world_nap(&s.w, 5);
        net_timer_stop(s.tick);
        if (!in_the_middle)
            assert_int_equal(s.ended + s.failed + s.cancelled, s.to_start);
        s.client = httpio_client_free(s.client);
        for (int i = 0; i < 200 && seed % 2 && s.requests != s.done; i++)
            world_nap(&s.w, 5); /* the server sees its clients leave */
        if (seed % 2)
            assert_int_equal(s.requests, s.done);
        s.server = httpio_server_free(s.server);
        assert_int_equal(s.requests, s.done);
        s.w.loop = net_loop_free(s.w.loop);
        complete += s.complete;
        ended += s.ended;
        failed += s.failed;
        cancelled += s.cancelled;
    }
    /* it rained everywhere */
    assert_true(complete > 100);
    assert_true(ended > 100);
    assert_true(failed > 100);
    assert_true(cancelled > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_weathers),
    };
    return cmocka_run_group_tests_name("httpio_storm", tests, NULL, NULL);
}
