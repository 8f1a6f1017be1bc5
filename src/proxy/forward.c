/* SPDX-License-Identifier: MIT
 *
 * The call to a replica. The forwarded request is written anew from parsed fields. A small body goes in one piece, so that the
 * client may repeat it on a fresh connection when a kept one turns out to be dead; a large one goes in slices over a fresh
 * connection, as fast as the replica takes it. The answer is passed on as it comes; a slow reader stops the replica.
 */
#include <errno.h>
#include <strings.h>

#include "proxy_int.h"

/* ---- choosing ------------------------------------------------------------------------------------------- */

static bool tried(const struct proxy_request *r, size_t i)
{
    return r->tried[i / 64] >> (i % 64) & 1;
}

/* The ready replica whose turn it is among those not tried yet, a suspect one only when no other is left; index in the endpoint, or -1. */
static ptrdiff_t choose(const struct proxy_request *r)
{
    uint64_t now = net_loop_now_ms(r->proxy->loop), best_used = 0;
    bool best_suspect = false;
    ptrdiff_t best = -1;
    for (size_t i = 0; i < r->endpoint->n_replicas; i++) {
        const struct proxy_replica *replica = &r->config->replicas[r->endpoint->replicas[i]];
        if (!replica->ready || !replica->resolved || tried(r, i))
            continue;
        const struct proxy_peer *peer = proxy_peer_of(r->proxy, r->config, replica);
        uint64_t used = peer ? peer->used : 0;
        bool suspect = peer && peer->suspect_ms > now;
        if (best < 0 || suspect < best_suspect || (suspect == best_suspect && used < best_used)) {
            best = (ptrdiff_t)i;
            best_used = used;
            best_suspect = suspect;
        }
    }
    return best;
}

static void failed(struct proxy_request *r, const char *reason, const char *text)
{
    struct proxy *p = r->proxy;
    struct proxy_peer *peer = proxy_peer_of(p, r->config, r->replica);
    if (peer)
        peer->suspect_ms = net_loop_now_ms(p->loop) + PROXY_SUSPECT_MS;
    metrics_add(metrics_get(p->metrics, PROXY_M_RETRIES, (const char *const[]){r->replica->name, reason}), 1);
    if (p->on_failed)
        p->on_failed(p->on_failed_ctx, r->replica->name, r->replica->generation, text);
}

/* ---- the request's body ------------------------------------------------------------------------------------ */

/* Cuts the body so that this replica's own name for the model stands in it. */
static int cut_body(struct proxy_request *r)
{
    struct str body = buf_str(&r->body);
    r->part = r->part_off = 0;
    r->parts[0] = body;
    r->parts[1] = r->parts[2] = (struct str){0};
    if (!r->model_len)
        return 0;
    base_autobuf struct buf name = BUF_INIT(4096);
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_cstr(o, NULL, r->replica->served);
    int rc = json_out_finish(o, false, &name);
    json_out_free(o);
    if (rc < 0)
        return rc;
    size_t end = r->model_off + r->model_len, len = name.len;
    free(r->quoted);
    r->quoted = buf_take(&name);
    if (!r->quoted)
        return -ENOMEM;
    r->parts[0] = (struct str){body.ptr, r->model_off};
    r->parts[1] = (struct str){r->quoted, len};
    r->parts[2] = (struct str){body.ptr + end, body.len - end};
    return 0;
}

/* Sends slices until the replica's connection is full or nothing is left. */
static void send_slices(struct proxy_request *r)
{
    while (r->part < BASE_COUNT(r->parts)) {
        struct str part = r->parts[r->part];
        if (r->part_off == part.len) {
            r->part++;
            r->part_off = 0;
            continue;
        }
        size_t n = part.len - r->part_off < PROXY_SLICE ? part.len - r->part_off : PROXY_SLICE;
        struct str slice = {part.ptr + r->part_off, n};
        r->part_off += n;
        if (httpio_call_send(r->call, slice))
            return;
    }
    r->sending = false;
    httpio_call_end(r->call);
    if (r->passing)
        proxy_request_drop_body(r);
}

/* ---- the request's head --------------------------------------------------------------------------------------- */

/* The target in origin form: what follows the host of a URL. */
static struct str origin_form(struct str target, struct buf *scratch)
{
    if (target.ptr[0] == '/' || str_eq_c(target, "*"))
        return target;
    ptrdiff_t host = str_find(target, STR("://"));
    size_t i = host < 0 ? target.len : (size_t)host + 3;
    while (i < target.len && target.ptr[i] != '/' && target.ptr[i] != '?')
        i++;
    struct str rest = {target.ptr + i, target.len - i};
    if (rest.len && rest.ptr[0] == '/')
        return rest;
    buf_add_char(scratch, '/');
    buf_add_str(scratch, rest);
    return buf_str(scratch);
}

static size_t request_fields(const struct http_head *head, struct http_field out[HTTP_FIELDS_MAX])
{
    /* Written anew for the replica's connection; a body that was read whole needs no leave to be sent. */
    static const char *const ours[] = {"host", "content-length", "expect"};
    size_t n = 0;
    for (size_t i = 0; i < head->n_fields; i++) {
        struct http_field f = head->fields[i];
        bool skip = http_field_hop(head, f.name);
        for (size_t k = 0; !skip && k < BASE_COUNT(ours); k++)
            skip = str_eq_nocase(f.name, str_of(ours[k]));
        if (!skip)
            out[n++] = f;
    }
    return n;
}

static const struct httpio_call_ops call_ops;

/* Starts the call to r->replica. */
static int call(struct proxy_request *r, struct err *err)
{
    const struct http_head *head = httpio_exchange_head(r->x);
    struct http_field fields[HTTP_FIELDS_MAX];
    base_autobuf struct buf target = BUF_INIT(HTTP_TARGET_MAX + 2);
    base_autobuf struct buf joined = BUF_INIT(PROXY_BODY_SMALL + 4096);
    int rc = cut_body(r);
    if (rc < 0)
        return err_nomem(err);
    size_t len = r->parts[0].len + r->parts[1].len + r->parts[2].len;
    bool large = len > PROXY_BODY_SMALL;
    struct httpio_request q = {
        .addr = r->replica->addr,
        .method = head->method,
        .target = origin_form(head->target, &target),
        .fields = fields,
        .n_fields = request_fields(head, fields),
        .fresh = large,
        .body_follows = large,
        .body_length = (int64_t)len,
    };
    if (!large && r->model_len) {
        for (size_t i = 0; i < BASE_COUNT(r->parts); i++)
            buf_add_str(&joined, r->parts[i]);
        q.body = buf_str(&joined);
    } else if (!large) {
        q.body = r->parts[0];
    }
    if (buf_status(&target) < 0 || buf_status(&joined) < 0)
        return err_nomem(err);
    rc = httpio_call(r->proxy->client, &q, &call_ops, r, &r->call, err);
    if (rc == 0 && large) {
        r->sending = true;
        send_slices(r);
    }
    return rc;
}

/* ---- attempts ------------------------------------------------------------------------------------------------- */

static void give_up(struct proxy_request *r, const char *text)
{
    if (r->attempts)
        proxy_request_fail(r, 502, "upstream_error", "no replica of '%s' could be reached; the last, '%s': %s", r->endpoint->name, r->replica->name, text);
    else
        proxy_request_fail(r, 503, "unavailable_error", "no replica of '%s' is ready", r->endpoint->name);
}

/* Tries replicas until one takes the call. text: why the one before did not, or NULL. */
static void attempt(struct proxy_request *r, const char *text)
{
    struct err err;
    for (;;) {
        ptrdiff_t i = choose(r);
        if (i < 0) {
            give_up(r, text);
            return;
        }
        if (r->attempts++)
            r->proxy->stats.retries++;
        r->tried[i / 64] |= UINT64_C(1) << (i % 64);
        r->replica = &r->config->replicas[r->endpoint->replicas[i]];
        struct proxy_peer *peer = proxy_peer_of(r->proxy, r->config, r->replica);
        if (peer)
            peer->used = ++r->proxy->turns;
        int rc = call(r, &err);
        if (rc == 0)
            return;
        if (rc == -ENOMEM || rc == -EINVAL) { /* ours or the client's, not the replica's */
            proxy_request_fail(r, rc == -EINVAL ? 400 : 503, rc == -EINVAL ? "invalid_request_error" : "unavailable_error", "%s", err.text);
            return;
        }
        failed(r, "connect", err.text);
        text = err.text;
    }
}

void proxy_forward(struct proxy_request *r)
{
    r->tried = calloc(r->endpoint->n_replicas / 64 + 1, sizeof *r->tried);
    if (r->tried)
        attempt(r, NULL);
    else
        proxy_request_fail(r, 503, "unavailable_error", "out of memory");
}

void proxy_forward_drained(struct proxy_request *r)
{
    if (r->call)
        httpio_call_read(r->call, true);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

static bool is_event_stream(const struct http_head *head)
{
    static const char type[] = "text/event-stream";
    struct str v = http_field_get(head, "content-type");
    return v.len >= sizeof type - 1 && strncasecmp(v.ptr, type, sizeof type - 1) == 0;
}

static size_t response_fields(const struct proxy_request *r, const struct http_head *head, char attempts[12], struct http_field *out)
{
    size_t n = 0;
    for (size_t i = 0; i < head->n_fields; i++) {
        struct str name = head->fields[i].name;
        if (http_field_hop(head, name) || str_eq_nocase(name, STR("content-length")) || str_eq_nocase(name, STR("x-berth-replica")) ||
            str_eq_nocase(name, STR("x-berth-attempts")))
            continue;
        out[n++] = head->fields[i];
    }
    snprintf(attempts, 12, "%u", r->attempts);
    out[n++] = HTTPIO_FIELD(STR("X-Berth-Replica"), str_of(r->replica->name));
    out[n++] = HTTPIO_FIELD(STR("X-Berth-Attempts"), str_of(attempts));
    if (is_event_stream(head) && !http_field_get(head, "x-accel-buffering").ptr)
        out[n++] = HTTPIO_FIELD(STR("X-Accel-Buffering"), STR("no"));
    return n;
}

static void on_head(void *ctx, const struct http_head *head)
{
    struct proxy_request *r = ctx;
    struct http_field fields[HTTP_FIELDS_MAX + 3];
    char attempts[12];
    size_t n = response_fields(r, head, attempts, fields);
    const char *endpoint = r->endpoint->name;
    metrics_observe(metrics_get(r->proxy->metrics, PROXY_M_FIRST_BYTE, &endpoint), (double)(net_loop_now_ms(r->proxy->loop) - r->since_ms) / 1000);
    if (httpio_begin(r->x, head->status, fields, n, head->content_length) < 0) {
        r->call = httpio_call_cancel(r->call);
        proxy_request_fail(r, 502, "upstream_error", "the answer of replica '%s' cannot be passed on", r->replica->name);
        return;
    }
    r->status = head->status;
    r->passing = true;
    if (!r->sending) /* nobody else will get it */
        proxy_request_drop_body(r);
}

static void on_body(void *ctx, struct str data)
{
    struct proxy_request *r = ctx;
    if (httpio_send(r->x, data))
        httpio_call_read(r->call, false);
}

static void on_end(void *ctx)
{
    struct proxy_request *r = ctx;
    r->call = NULL;
    httpio_end(r->x);
}

static void on_fail(void *ctx, enum httpio_failure f, const char *text)
{
    struct proxy_request *r = ctx;
    r->call = NULL;
    r->sending = false;
    if (r->passing) {
        r->cut = true;
        httpio_abort(r->x);
    } else if (f == HTTPIO_CONNECT || f == HTTPIO_RESET) {
        failed(r, f == HTTPIO_CONNECT ? "connect" : "reset", text);
        attempt(r, text);
    } else {
        proxy_request_fail(r, f == HTTPIO_TIMEOUT ? 504 : 502, "upstream_error", "replica '%s': %s", r->replica->name, text);
    }
}

static void on_drain(void *ctx)
{
    struct proxy_request *r = ctx;
    if (r->sending)
        send_slices(r);
}

static const struct httpio_call_ops call_ops = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_fail = on_fail,
    .on_drain = on_drain,
};
