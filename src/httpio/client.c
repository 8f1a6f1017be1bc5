/* SPDX-License-Identifier: MIT
 *
 * Calls. A request is written as soon as it is made, into the kernel or, while its link connects, into the stream's queue. On a link that was used before
 * the body is copied too, because the peer may have closed at the very moment we wrote: then, when no byte of a response has come, the request is written
 * once more to a fresh link. Owners are called from the loop only, never from within a function that they call.
 */
#include <assert.h>
#include <errno.h>

#include "client_int.h"

const char *httpio_failure_text(enum httpio_failure f)
{
    switch (f) {
    case HTTPIO_CONNECT:
        return "no connection";
    case HTTPIO_RESET:
        return "connection closed before a response";
    case HTTPIO_CUT:
        return "connection closed in the middle of a response";
    case HTTPIO_TIMEOUT:
        return "no answer in time";
    case HTTPIO_MALFORMED:
        return "malformed response";
    }
    return "unknown failure";
}

static void look(void *ctx);

struct httpio_client *httpio_client_new(struct net_loop *l, const struct httpio_client_options *o)
{
    struct httpio_client *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    *c = (struct httpio_client){.magic = HTTPIO_MAGIC_CLIENT, .refs = 1, .loop = l, .options = *o, .scratch = BUF_INIT(2 * (size_t)HTTP_HEAD_MAX)};
    LIST_INIT(&c->peers);
    LIST_INIT(&c->links);
    LIST_INIT(&c->calls);
    LIST_INIT(&c->late);
    LIST_INIT(&c->fetches);
    if (httpio_sweep_init(&c->sweep, l, look, c) < 0) {
        free(c);
        return NULL;
    }
    return c;
}

void httpio_client_unref(struct httpio_client *c)
{
    assert(c->magic == HTTPIO_MAGIC_CLIENT && c->refs > 0);
    if (--c->refs > 0)
        return;
    buf_release(&c->scratch);
    c->magic = 0;
    free(c);
}

struct httpio_client *httpio_client_free(struct httpio_client *c)
{
    struct httpio_call *k;
    struct httpio_link *l;
    struct httpio_fetch *f;

    if (!c)
        return NULL;
    assert(c->magic == HTTPIO_MAGIC_CLIENT && !c->freed);
    c->freed = true;
    while ((f = LIST_FIRST(&c->fetches)))
        httpio_fetch_forget(f);
    while ((k = LIST_FIRST(&c->calls)) || (k = LIST_FIRST(&c->late)))
        (void)httpio_call_cancel(k); /* NOLINT: the analyzer does not see that it leaves the list */
    while ((l = LIST_FIRST(&c->links)))
        httpio_link_kill(l);
    httpio_sweep_release(&c->sweep);
    httpio_client_unref(c);
    return NULL;
}

/* ---- the end of a call ----------------------------------------------------------------------------------- */

static void call_free(struct httpio_call *k)
{
    free(k->body);
    k->magic = 0;
    free(k);
}

/* Takes the call out of everything; its link, if it still has one, is free of it. */
static struct httpio_link *detach(struct httpio_call *k)
{
    struct httpio_link *l = k->to;

    LIST_REMOVE(k, link);
    k->to = NULL;
    if (l)
        l->call = NULL;
    return l;
}

/* text: what happened, which the kind of failure is too coarse for; NULL: it is not. */
static void fail(struct httpio_call *k, enum httpio_failure f, const char *text)
{
    char addr[NET_ADDR_TEXT], all[ERR_TEXT_MAX];
    struct httpio_link *l = detach(k);

    if (l)
        httpio_link_kill(l);
    (void)snprintf(all, sizeof(all), "'%s': %s", net_addr_text(&k->addr, addr), text ? text : httpio_failure_text(f));
    k->ops.on_fail(k->ctx, f, all);
    call_free(k);
}

/* Each in words of its own: who is refused, who hears nothing and who is shown another certificate has something else to do. */
static const char *why_not_connected(int status, char *text, size_t size)
{
    static const struct {
        int status;
        const char *text;
    } known[] = {
        {-ECONNREFUSED, "connection refused"},
        {-ECONNRESET, "connection reset while it was made"},
        {-ETIMEDOUT, "no connection in time"},
        {-EHOSTUNREACH, "host unreachable"},
        {-ENETUNREACH, "network unreachable"},
        {-ENOENT, "there is no such socket"},
        {-EACCES, "this account may not use the socket"},
        {-EKEYREJECTED, "its certificate is not the one that it should have"},
        {-EKEYEXPIRED, "its certificate is not valid at this time"},
        {-EPROTO, "it does not speak TLS as it should"},
    };

    for (size_t i = 0; i < BASE_COUNT(known); i++)
        if (known[i].status == status)
            return known[i].text;
    (void)snprintf(text, size, "no connection: %s", strerror(-status));
    return text;
}

/* Who had the connection before, and is gone when the call is tried again, did not refuse it. */
static void not_connected(struct httpio_call *k, int status)
{
    char room[256], text[512];
    const char *why = why_not_connected(status, room, sizeof(room));

    (void)snprintf(text, sizeof(text), "%s; when tried again: %s", httpio_failure_text(HTTPIO_RESET), why);
    fail(k, k->repeated ? HTTPIO_RESET : HTTPIO_CONNECT, k->repeated ? text : why);
}

static void broken(struct httpio_call *k, int status)
{
    enum httpio_failure f = k->got_byte ? HTTPIO_CUT : HTTPIO_RESET;
    char text[512];

    if (status == -ECONNRESET)
        (void)snprintf(text, sizeof(text), "connection reset %s a response", k->got_byte ? "in the middle of" : "before");
    else
        (void)snprintf(text, sizeof(text), "%s%s%s", httpio_failure_text(f), status < 0 ? ": " : "", status < 0 ? strerror(-status) : "");
    fail(k, f, text);
}

static void finish(struct httpio_call *k, bool clean)
{
    struct httpio_link *l = detach(k);

    httpio_pool_give(l, clean && k->request_done); /* before the owner, whose next call may use it */
    if (k->ops.on_end)
        k->ops.on_end(k->ctx);
    call_free(k);
}

struct httpio_call *httpio_call_cancel(struct httpio_call *k)
{
    struct httpio_link *l;

    if (!k)
        return NULL;
    assert(k->magic == HTTPIO_MAGIC_CALL);
    l = detach(k);
    if (l)
        httpio_link_kill(l);
    call_free(k);
    return NULL;
}

/* ---- sending a request ----------------------------------------------------------------------------------- */

static void put(struct httpio_call *k, const struct str *parts, size_t n)
{
    int r = net_stream_write(k->to->stream, parts, n);

    (void)r; /* the stream's on_end tells */
}

/* Writes what is at hand of the request: all of it, or its head and the first part of its body. */
static void write_request(struct httpio_call *k, struct str body)
{
    char line[HTTP_CHUNK_LINE];
    struct str parts[5] = {{k->head, k->head_len}};
    size_t n = 1;

    if (k->chunked && body.len > 0)
        n += httpio_chunk(body, line, parts + n);
    else if (body.len > 0)
        parts[n++] = body;
    if (k->chunked && k->request_done)
        parts[n++] = STR(HTTP_CHUNK_LAST);
    put(k, parts, n);
}

/* Gives the call a link and writes the request to it. */
static int start(struct httpio_call *k, bool reuse, struct str body, struct err *err)
{
    struct httpio_client *c = k->client;
    struct httpio_link *l = reuse && !k->tls ? httpio_pool_take(c, &k->addr, k->epoch) : NULL;
    int r;

    if (!l) {
        r = httpio_pool_connect(c, &k->addr, k->tls, k->epoch, &l, err);
        if (r < 0)
            return r;
        k->connect_due = c->options.connect_ms ? httpio_later(net_loop_now_ms(c->loop), c->options.connect_ms) : UINT64_MAX;
        httpio_sweep_want(&c->sweep, k->connect_due);
    }
    l->call = k;
    k->to = l;
    if (k->is_head)
        http_parser_expect_head(l->parser);
    if (k->paused)
        net_stream_read(l->stream, false);
    write_request(k, body);
    return 0;
}

static bool retry(struct httpio_call *k)
{
    struct httpio_link *l = k->to;
    struct err err = {0};

    if (!l->reused || k->lost || k->got_byte) /* a fresh link is not reused: there is one second try */
        return false;
    k->to = NULL;
    k->repeated = true;
    l->call = NULL;
    httpio_link_kill(l);
    if (start(k, false, (struct str){k->body, k->body_len}, &err) < 0)
        not_connected(k, err.code);
    return true;
}

bool httpio_call_send(struct httpio_call *k, struct str data)
{
    char line[HTTP_CHUNK_LINE];
    struct str parts[3] = {data};

    assert(k->magic == HTTPIO_MAGIC_CALL);
    if (!k->body_follows || k->request_done || data.len == 0)
        return false;
    if (k->remaining >= 0 && data.len > (uint64_t)k->remaining) {
        k->doomed = true; /* nobody can be told how long it really is */
        httpio_sweep_want(&k->client->sweep, 0);
        return false;
    }
    if (k->remaining >= 0)
        k->remaining -= (int64_t)data.len;
    k->lost = true;
    put(k, parts, k->chunked ? httpio_chunk(data, line, parts) : 1);
    if (net_stream_queued(k->to->stream) <= k->client->options.send_high_bytes)
        return false;
    k->wait_drain = true;
    return true;
}

void httpio_call_end(struct httpio_call *k)
{
    struct str last = STR(HTTP_CHUNK_LAST);

    assert(k->magic == HTTPIO_MAGIC_CALL);
    if (k->request_done)
        return;
    if (k->remaining > 0) {
        k->doomed = true;
        httpio_sweep_want(&k->client->sweep, 0);
        return;
    }
    k->request_done = true;
    if (k->chunked)
        put(k, &last, 1);
}

void httpio_call_read(struct httpio_call *k, bool on)
{
    assert(k->magic == HTTPIO_MAGIC_CALL);
    if (k->paused == !on)
        return;
    k->paused = !on;
    k->last_ms = net_loop_now_ms(k->client->loop);
    if (on && k->stall_ms && k->head_seen)
        httpio_sweep_want(&k->client->sweep, httpio_later(k->last_ms, k->stall_ms));
    net_stream_read(k->to->stream, on);
}

/* ---- making a request ------------------------------------------------------------------------------------ */

static int add_fields(struct buf *out, const struct httpio_request *r)
{
    char text[NET_ADDR_TEXT];
    struct str host = r->host.len > 0 ? r->host : r->addr.unix_path ? STR("localhost") : str_of(net_addr_text(&r->addr, text));
    int e = http_write_field(out, STR("Host"), host);

    for (size_t i = 0; i < r->n_fields && e == 0; i++) {
        struct str name = r->fields[i].name;

        e = httpio_field_ours(name) || str_eq_nocase(name, STR("host")) ? -EINVAL : http_write_known_field(out, &r->fields[i]);
    }
    return e;
}

static void add_length(struct buf *out, uint64_t n)
{
    buf_add(out, "Content-Length: ", 16);
    buf_add_u64(out, n);
    buf_add(out, "\r\n", 2);
}

static int make_head(struct buf *out, const struct httpio_request *r, bool chunked)
{
    int e;

    buf_clear(out);
    e = http_write_request(out, r->method, r->target);
    if (e == 0)
        e = add_fields(out, r);
    if (e < 0)
        return e;
    if (chunked)
        buf_add_c(out, "Transfer-Encoding: chunked\r\n");
    else if (r->body_follows)
        add_length(out, (uint64_t)r->body_length);
    else if (r->body.len > 0 || str_eq(r->method, STR("POST")) || str_eq(r->method, STR("PUT")) || str_eq(r->method, STR("PATCH")))
        add_length(out, r->body.len);
    http_write_head_end(out);
    return buf_status(out);
}

static struct httpio_call *call_new(struct httpio_client *c, const struct httpio_request *r, bool chunked)
{
    struct str head = buf_str(&c->scratch);
    struct httpio_call *k = malloc(sizeof(*k) + head.len);
    uint64_t now = net_loop_now_ms(c->loop);

    if (!k)
        return NULL;
    *k = (struct httpio_call){.magic = HTTPIO_MAGIC_CALL, .client = c, .addr = r->addr, .tls = r->tls, .head_len = head.len, .remaining = -1, .chunked = chunked};
    k->is_head = str_eq(r->method, STR("HEAD"));
    k->body_follows = r->body_follows;
    k->request_done = !r->body_follows;
    if (r->body_follows && !chunked)
        k->remaining = r->body_length - (int64_t)r->body.len;
    k->connect_due = UINT64_MAX;
    k->head_due = r->timeout_ms ? httpio_later(now, r->timeout_ms) : UINT64_MAX;
    k->stall_ms = r->stall_ms;
    k->epoch = r->epoch;
    memcpy(k->head, head.ptr, head.len);
    return k;
}

int httpio_call(struct httpio_client *c, const struct httpio_request *r, const struct httpio_call_ops *ops, void *ctx, struct httpio_call **ret, struct err *err)
{
    bool chunked = r->body_follows && r->body_length < 0;
    struct httpio_call *k;
    int e;

    assert(c->magic == HTTPIO_MAGIC_CLIENT && !c->freed && ops->on_fail);
    if (r->body_follows && !chunked && r->body.len > (uint64_t)r->body_length)
        return err_set(err, -EINVAL, "cannot make a request whose body is longer than its length");
    e = make_head(&c->scratch, r, chunked);
    if (e == -ENOMEM)
        return err_nomem(err);
    if (e < 0)
        return err_set(err, -EINVAL, "cannot make a request: its method, target or a header field cannot be sent");
    k = call_new(c, r, chunked);
    if (!k)
        return err_nomem(err);
    k->ops = *ops;
    k->ctx = ctx;
    e = start(k, !r->fresh, r->body, err);
    if (e < 0) {
        call_free(k);
        return e;
    }
    if (k->to->reused && r->body.len > 0) {
        k->body = str_dup(r->body);
        k->body_len = r->body.len;
        k->lost = !k->body; /* without memory there is no second try, that is all */
    }
    LIST_INSERT_HEAD(&c->calls, k, link);
    httpio_sweep_want(&c->sweep, k->head_due);
    *ret = k;
    return 0;
}

/* ---- what a link tells ----------------------------------------------------------------------------------- */

static int go_on(const struct httpio_link *l)
{
    return l->state == LINK_BUSY ? 0 : -ECANCELED;
}

static int on_head(void *ctx, const struct http_head *head)
{
    struct httpio_link *l = ctx;
    struct httpio_call *k = l->call;

    assert(l->magic == HTTPIO_MAGIC_LINK && k->magic == HTTPIO_MAGIC_CALL);
    k->head_seen = true;
    httpio_link_learn(l, head);
    if (k->stall_ms)
        httpio_sweep_want(&l->client->sweep, httpio_later(k->last_ms, k->stall_ms));
    if (k->ops.on_head)
        k->ops.on_head(k->ctx, head);
    return go_on(l);
}

static int on_body(void *ctx, struct str data)
{
    struct httpio_link *l = ctx;
    struct httpio_call *k = l->call;

    assert(l->magic == HTTPIO_MAGIC_LINK && k->magic == HTTPIO_MAGIC_CALL);
    if (k->ops.on_body)
        k->ops.on_body(k->ctx, data);
    return go_on(l);
}

/* The owner is told when the parser has returned, and it is known whether anything follows. */
static int on_message_end(void *ctx)
{
    struct httpio_link *l = ctx;

    assert(l->magic == HTTPIO_MAGIC_LINK);
    l->call->complete = true;
    return 0;
}

const struct http_parser_ops httpio_call_parser_ops = {on_head, on_body, on_message_end};

void httpio_call_data(struct httpio_link *l, struct str data)
{
    struct httpio_call *k = l->call;
    struct err err = {0};
    size_t used = 0;
    int r;

    k->last_ms = net_loop_now_ms(l->client->loop);
    if (!k->got_byte) {
        k->got_byte = true;
        free(k->body);
        k->body = NULL;
    }
    r = http_parser_feed(l->parser, data, &used, &err);
    if (l->state != LINK_BUSY)
        return; /* the call was cancelled */
    if (r < 0)
        fail(k, HTTPIO_MALFORMED, err.text);
    else if (k->complete)
        finish(k, used == data.len);
}

void httpio_call_connected(struct httpio_link *l, int status)
{
    if (status < 0)
        not_connected(l->call, status);
    else
        l->call->connect_due = UINT64_MAX;
}

void httpio_call_ended(struct httpio_link *l, int status)
{
    struct httpio_call *k = l->call;

    if (status == 0 && k->got_byte) {
        int r = http_parser_eof(l->parser);

        if (l->state != LINK_BUSY)
            return;
        if (r == 0 && k->complete) {
            finish(k, false);
            return;
        }
    }
    if (!retry(k))
        broken(k, status);
}

void httpio_call_drained(struct httpio_link *l)
{
    struct httpio_call *k = l->call;

    if (!k->wait_drain)
        return;
    k->wait_drain = false;
    if (k->ops.on_drain)
        k->ops.on_drain(k->ctx);
}

/* ---- deadlines ------------------------------------------------------------------------------------------- */

static uint64_t call_due(const struct httpio_call *k)
{
    if (k->doomed)
        return 0;
    if (k->head_seen)
        return k->stall_ms && !k->paused ? httpio_later(k->last_ms, k->stall_ms) : UINT64_MAX;
    return k->connect_due < k->head_due ? k->connect_due : k->head_due;
}

static void expire(struct httpio_call *k, uint64_t now)
{
    if (k->doomed)
        fail(k, k->got_byte ? HTTPIO_CUT : HTTPIO_RESET, "the request's body has not the length that was announced");
    else if (!k->head_seen && k->connect_due <= now)
        not_connected(k, -ETIMEDOUT);
    else
        fail(k, HTTPIO_TIMEOUT, k->head_seen ? "the response stopped arriving" : NULL);
}

static void look(void *ctx)
{
    struct httpio_client *c = ctx;
    struct httpio_call *k, *next;
    uint64_t now = net_loop_now_ms(c->loop), due = httpio_pool_sweep(c, now);

    assert(c->magic == HTTPIO_MAGIC_CLIENT);
    c->refs++;
    for (k = LIST_FIRST(&c->calls); k; k = next) {
        uint64_t at = call_due(k);

        next = LIST_NEXT(k, link);
        if (at <= now) {
            LIST_REMOVE(k, link);
            LIST_INSERT_HEAD(&c->late, k, link);
        } else if (at < due) {
            due = at;
        }
    }
    /* Owners may cancel any call, which takes it out of this list, or free the client, which empties it. */
    while ((k = LIST_FIRST(&c->late)))
        expire(k, now); /* NOLINT: the same */
    httpio_sweep_want(&c->sweep, due);
    httpio_client_unref(c);
}
