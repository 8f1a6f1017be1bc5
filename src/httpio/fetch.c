/* SPDX-License-Identifier: MIT
 *
 * A call whose response is gathered whole. Its own timer bounds it from start to end, and also tells of a call that could not be started, so that the
 * callback never comes from within httpio_fetch.
 */
#include <assert.h>
#include <errno.h>

#include "client_int.h"

struct httpio_fetch {
    uint32_t magic;
    LIST_ENTRY(httpio_fetch) link;
    bool telling; /* its callback runs: nothing is left to cancel */
    unsigned status;
    uint64_t timeout_ms;
    size_t max_body;
    struct httpio_call *call;
    struct net_timer *timer;
    struct buf body;
    struct err start; /* why the call could not be started; code 0: it was */
    httpio_fetched *cb;
    void *ctx;
};

static void fetch_free(struct httpio_fetch *f)
{
    buf_release(&f->body);
    f->magic = 0;
    free(f);
}

void httpio_fetch_forget(struct httpio_fetch *f)
{
    LIST_REMOVE(f, link);
    f->timer = net_timer_close(f->timer);
    fetch_free(f);
}

/* failed NULL: the response is whole. */
static void tell(struct httpio_fetch *f, const struct err *failed)
{
    LIST_REMOVE(f, link);
    f->timer = net_timer_close(f->timer);
    f->call = httpio_call_cancel(f->call);
    f->telling = true;
    if (failed)
        f->cb(f->ctx, 0, (struct str){0}, failed);
    else
        f->cb(f->ctx, f->status, buf_str(&f->body), NULL);
    fetch_free(f);
}

static void too_large(struct httpio_fetch *f)
{
    struct err err;

    err_set(&err, -EFBIG, "the response is larger than %zu bytes", f->max_body);
    tell(f, &err);
}

static void on_head(void *ctx, const struct http_head *head)
{
    struct httpio_fetch *f = ctx;

    f->status = head->status;
    if (head->content_length > 0 && (uint64_t)head->content_length > f->max_body)
        too_large(f);
}

static void on_body(void *ctx, struct str data)
{
    struct httpio_fetch *f = ctx;

    if (data.len > f->max_body - f->body.len) {
        too_large(f);
        return;
    }
    buf_add_str(&f->body, data);
    if (buf_status(&f->body) < 0) {
        struct err err;
        err_nomem(&err);
        tell(f, &err);
    }
}

static void on_end(void *ctx)
{
    struct httpio_fetch *f = ctx;

    f->call = NULL;
    tell(f, NULL);
}

static void on_fail(void *ctx, enum httpio_failure why, const char *text)
{
    static const int codes[] = {
        [HTTPIO_CONNECT] = -ECONNREFUSED, [HTTPIO_RESET] = -ECONNRESET, [HTTPIO_CUT] = -EPIPE, [HTTPIO_TIMEOUT] = -ETIMEDOUT, [HTTPIO_MALFORMED] = -EBADMSG,
    };
    struct httpio_fetch *f = ctx;
    struct err err;

    f->call = NULL;
    err_set(&err, codes[why], "%s", text);
    tell(f, &err);
}

static void on_time(void *ctx)
{
    struct httpio_fetch *f = ctx;
    struct err err = f->start;

    assert(f->magic == HTTPIO_MAGIC_FETCH);
    if (f->call)
        err_set(&err, -ETIMEDOUT, "no whole response within %llu ms", (unsigned long long)f->timeout_ms);
    tell(f, &err);
}

struct httpio_fetch *httpio_fetch(struct httpio_client *c, const struct httpio_request *r, size_t max_body, uint64_t timeout_ms,
                                  httpio_fetched *cb, void *ctx)
{
    static const struct httpio_call_ops ops = {.on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};
    struct httpio_fetch *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    *f = (struct httpio_fetch){.magic = HTTPIO_MAGIC_FETCH, .timeout_ms = timeout_ms, .max_body = max_body, .cb = cb, .ctx = ctx};
    f->body = BUF_INIT(max_body < SIZE_MAX ? max_body + 1 : SIZE_MAX);
    f->timer = net_timer_new(c->loop, on_time, f);
    if (!f->timer) {
        free(f);
        return NULL;
    }
    LIST_INSERT_HEAD(&c->fetches, f, link);
    if (httpio_call(c, r, &ops, f, &f->call, &f->start) < 0) {
        net_timer_start(f->timer, 0, 0);
    } else if (timeout_ms > 0) {
        net_timer_start(f->timer, timeout_ms, 0);
    }
    return f;
}

size_t httpio_bearer(const char *key, char text[HTTPIO_BEARER_MAX], struct http_field *ret)
{
    if (!key || !key[0])
        return 0;
    snprintf(text, HTTPIO_BEARER_MAX, "Bearer %s", key);
    *ret = HTTPIO_FIELD(STR("Authorization"), str_of(text));
    return 1;
}

struct httpio_fetch *httpio_fetch_cancel(struct httpio_fetch *f)
{
    if (!f)
        return NULL;
    assert(f->magic == HTTPIO_MAGIC_FETCH);
    if (f->telling)
        return NULL;
    f->call = httpio_call_cancel(f->call);
    httpio_fetch_forget(f);
    return NULL;
}
