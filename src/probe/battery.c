/* SPDX-License-Identifier: MIT
 *
 * The battery over HTTP: one question after the other, each judged before the next; the first failure is the answer. At most one question is under way, and the object is gone before its callback is called.
 */
#include "probe_int.h"

#include <errno.h>
#include <stdlib.h>

struct probe_battery {
    struct httpio_client *client;
    const struct fleet_service *service;
    struct probe_door door;
    enum probe_check check;
    size_t index; /* of the check's questions; of the door's models */
    struct probe_seen seen;
    struct net_timer *begin;
    struct httpio_fetch *fetch;
    void (*cb)(void *ctx, int status, const struct err *err);
    void *ctx;
};

struct probe_battery *probe_battery_cancel(struct probe_battery *b)
{
    if (!b)
        return NULL;
    b->begin = net_timer_close(b->begin);
    b->fetch = httpio_fetch_cancel(b->fetch);
    free(b);
    return NULL;
}

static void finish(struct probe_battery *b, int status, struct err *err)
{
    void (*cb)(void *ctx, int status, const struct err *err) = b->cb;
    void *ctx = b->ctx;
    if (status < 0 && b->door.models)
        (void)err_prefix(err, "%s as '%s'", probe_check_text(b->check), b->door.models[b->index]);
    else if (status < 0)
        (void)err_prefix(err, "%s", probe_check_text(b->check));
    probe_battery_cancel(b);
    cb(ctx, status, err);
}

/* To the next question that this service is asked; false: that was all. */
static bool advance(struct probe_battery *b)
{
    b->index++;
    if (b->door.models)
        return b->index < b->door.n_models;
    while (b->check < PROBE_CHECKS && !probe_check_applies(b->service, b->check, b->index)) {
        b->check++;
        b->index = 0;
    }
    return b->check < PROBE_CHECKS;
}

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed);

static struct httpio_fetch *post(struct probe_battery *b, struct str body)
{
    char bearer[HTTPIO_BEARER_MAX];
    struct http_field fields[2] = {{.name = STR("Content-Type"), .value = STR("application/json")}};
    const struct httpio_request r = {.addr = b->door.addr, .tls = b->door.tls, .method = STR("POST"), .target = str_of(probe_check_path(b->check)), .fresh = true, .body = body, .fields = fields, .n_fields = 1 + httpio_bearer(b->door.key, bearer, &fields[1])};
    struct httpio_fetch *f = httpio_fetch(b->client, &r, PROBE_BODY_MAX, PROBE_CHECK_MS, answered, b);
    explicit_bzero(bearer, sizeof bearer);
    return f;
}

static void ask(struct probe_battery *b)
{
    base_autobuf struct buf body = BUF_INIT(PROBE_QUESTION_MAX);
    struct err err;
    const char *model = b->door.models ? b->door.models[b->index] : engine_served_name(b->service);
    int r = probe_check_body(b->service, model, b->check, b->index, &body);
    if (r == 0)
        b->fetch = post(b, buf_str(&body));
    if (!b->fetch)
        finish(b, r < 0 ? err_sys(&err, r, "cannot ask") : err_nomem(&err), &err);
}

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct probe_battery *b = ctx;
    struct err err;
    int r = 0;
    b->fetch = NULL;
    if (status)
        r = probe_check_judge(b->service, b->check, b->index, status, body, &b->seen, &err);
    else if (b->check != PROBE_SIZE)
        r = err_set(&err, -EIO, "no answer: %s", failed->text);
    if (r < 0)
        finish(b, r, &err);
    else if (advance(b))
        ask(b);
    else
        finish(b, 0, NULL);
}

static void begin(void *ctx)
{
    struct probe_battery *b = ctx;
    bool any = probe_check_applies(b->service, PROBE_CHAT, 0) && (!b->door.models || b->door.n_models);
    b->index = SIZE_MAX; /* one before the first */
    if (any && advance(b))
        ask(b);
    else
        finish(b, 0, NULL);
}

struct probe_battery *probe_battery_start(struct net_loop *l, struct httpio_client *c, const struct fleet_service *s, const struct probe_door *door, void (*cb)(void *ctx, int status, const struct err *err), void *ctx)
{
    struct probe_battery *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *b = (struct probe_battery){.client = c, .service = s, .door = *door, .cb = cb, .ctx = ctx};
    b->begin = net_timer_new(l, begin, b);
    if (!b->begin)
        return probe_battery_cancel(b);
    net_timer_start(b->begin, 0, 0);
    return b;
}
