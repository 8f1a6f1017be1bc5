/* SPDX-License-Identifier: MIT
 *
 * Readiness: the steps in order, each one question and a judgement that engine gives. A process that answers 200 on /health proves little (another
 * program may own the port, a model may have fallen to the CPU, a slot may hang), so what it serves, what it took, and one token
 * are asked too. The object holds one timer and at most one question under way; it is gone before its callback is called.
 */
#include "probe_int.h"

#include <errno.h>
#include <stdlib.h>

struct probe_ready {
    struct net_loop *loop;
    struct httpio_client *client;
    struct probe_target target;
    uint64_t started_ms, deadline_ms, wait_ms;
    enum probe_step step;
    bool asked_props; /* within PROBE_PROPS: props are fine, speculation comes next */
    struct net_timer *timer;
    struct httpio_fetch *fetch;
    struct buf last; /* what health said last, for people */
    void (*cb)(void *ctx, int status, enum probe_step at, const struct err *err);
    void *ctx;
};

const char *probe_step_text(enum probe_step s)
{
    static const char *const text[] = {
        [PROBE_HEALTH] = "health", [PROBE_IDENTITY] = "identity", [PROBE_PROPS] = "what it took", [PROBE_TOKEN] = "one token", [PROBE_DONE] = "ready",
    };
    return text[s];
}

struct httpio_fetch *probe_ask(struct httpio_client *c, const struct probe_target *t, const char *path, const char *body, uint64_t timeout_ms,
                               httpio_fetched *cb, void *ctx)
{
    char bearer[HTTPIO_BEARER_MAX];
    struct http_field fields[2];
    struct httpio_request r = {.addr = t->addr, .method = STR("GET"), .target = str_of(path), .fresh = true, .fields = fields, .n_fields = httpio_bearer(t->key, bearer, fields)};
    if (body) {
        r.method = STR("POST");
        r.body = str_of(body);
        fields[r.n_fields++] = (struct http_field)HTTPIO_FIELD(STR("Content-Type"), STR("application/json"));
    }
    struct httpio_fetch *f = httpio_fetch(c, &r, PROBE_BODY_MAX, timeout_ms, cb, ctx);
    explicit_bzero(bearer, sizeof bearer);
    return f;
}

struct probe_ready *probe_ready_cancel(struct probe_ready *p)
{
    if (!p)
        return NULL;
    p->timer = net_timer_close(p->timer);
    p->fetch = httpio_fetch_cancel(p->fetch);
    buf_release(&p->last);
    explicit_bzero(p->target.key, sizeof p->target.key);
    free(p);
    return NULL;
}

static void finish(struct probe_ready *p, int status, struct err *err)
{
    void (*cb)(void *ctx, int status, enum probe_step at, const struct err *err) = p->cb;
    void *ctx = p->ctx;
    enum probe_step at = p->step;
    if (status < 0)
        (void)err_prefix(err, "%s", probe_step_text(at));
    probe_ready_cancel(p);
    cb(ctx, status, at, err);
}

static uint64_t left_ms(const struct probe_ready *p)
{
    uint64_t now = net_loop_now_ms(p->loop);
    return now < p->deadline_ms ? p->deadline_ms - now : 0;
}

/* ---- the steps ------------------------------------------------------------------------------------------------ */

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed);

/* The question of the present step: its path, and the body when it is a POST; path NULL: this kind is not asked. */
static int question(struct probe_ready *p, struct arena *a, const char **ret_path, const char **ret_body)
{
    const struct fleet_service *s = p->target.service;
    *ret_path = *ret_body = NULL;
    if (p->step == PROBE_HEALTH)
        *ret_path = engine_health_path(s);
    else if (p->step == PROBE_IDENTITY)
        *ret_path = engine_identity_path(s);
    else if (p->step == PROBE_PROPS)
        *ret_path = p->asked_props ? engine_speculation_path(s) : engine_props_path(s);
    else if (p->step == PROBE_TOKEN) {
        int r = engine_token_request(s, a, ret_path, ret_body);
        return r == -ENOTSUP ? 0 : r;
    }
    return 0;
}

static void next(struct probe_ready *p)
{
    if (p->step == PROBE_PROPS && !p->asked_props)
        p->asked_props = true;
    else
        p->step++;
}

/* Asks the present step's question, going over those that this kind cannot answer. */
static void ask(struct probe_ready *p)
{
    struct err err;
    struct arena *a = arena_new(64UL * 1024);
    const char *path = NULL, *body = NULL;
    int r = a ? question(p, a, &path, &body) : -ENOMEM;
    while (r == 0 && !path && p->step != PROBE_DONE) {
        next(p);
        r = question(p, a, &path, &body);
    }
    if (r == 0 && p->step != PROBE_DONE) {
        uint64_t timeout = PROBE_ANSWER_MS;
        if (p->step == PROBE_HEALTH && left_ms(p) < timeout)
            timeout = left_ms(p) ? left_ms(p) : 1;
        else if (p->step == PROBE_TOKEN)
            timeout = left_ms(p) > PROBE_TOKEN_MS ? left_ms(p) : PROBE_TOKEN_MS;
        p->fetch = probe_ask(p->client, &p->target, path, body, timeout, answered, p);
        r = p->fetch ? 0 : -ENOMEM;
    }
    arena_free(a);
    if (r < 0)
        finish(p, err_sys(&err, r, "cannot ask"), &err);
    else if (p->step == PROBE_DONE)
        finish(p, 0, NULL);
}

static void tick(void *ctx)
{
    struct probe_ready *p = ctx;
    if (left_ms(p) > 0) {
        ask(p);
        return;
    }
    struct err err;
    char took[UNITS_TEXT];
    (void)err_set(&err, -ETIMEDOUT, "not ready after %s, last answer of %s: %s", units_show_ms(net_loop_now_ms(p->loop) - p->started_ms, took),
                  engine_health_path(p->target.service), p->last.len ? p->last.ptr : "none");
    finish(p, -ETIMEDOUT, &err);
}

/* Still loading: remembers what was said and asks again later, each time a little later. */
static void wait_on(struct probe_ready *p, unsigned status, const struct err *failed)
{
    buf_clear(&p->last);
    if (status)
        buf_addf(&p->last, "status %u", status);
    else
        buf_add_printable(&p->last, str_of(failed->text), 200);
    if (buf_status(&p->last) < 0)
        buf_clear(&p->last);
    uint64_t left = left_ms(p);
    net_timer_start(p->timer, p->wait_ms < left ? p->wait_ms : left, 0);
    p->wait_ms += p->wait_ms / 4;
    if (p->wait_ms > PROBE_MAX_WAIT_MS)
        p->wait_ms = PROBE_MAX_WAIT_MS;
}

static int judge(const struct probe_ready *p, struct str body, struct err *err)
{
    const struct fleet_service *s = p->target.service;
    if (p->step == PROBE_IDENTITY)
        return engine_identity_check(body, engine_served_name(s), err);
    if (p->step == PROBE_TOKEN)
        return engine_token_check(body, err);
    return p->asked_props ? engine_speculation_check(s, body, err) : engine_props_check(s, p->target.paths, body, err);
}

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct probe_ready *p = ctx;
    struct err err;
    p->fetch = NULL;
    if (p->step == PROBE_HEALTH && status != 200) {
        wait_on(p, status, failed);
        return;
    }
    int r = 0;
    if (status == 0)
        r = err_set(&err, -EIO, "no answer: %s", failed->text);
    else if (p->step != PROBE_HEALTH)
        r = judge(p, body, &err);
    /* an error answer that says why has been judged better than its number tells */
    if (r == 0 && status != 200)
        r = err_set(&err, -EBADMSG, "status %u", status);
    if (r == -EBADMSG && status == 401)
        r = p->target.key[0] ? err_set(&err, -EBADMSG, "status 401: it does not take the key in '%s': start it again when the file was changed", p->target.service->key)
                             : err_set(&err, -EBADMSG, "status 401: it wants a key; name its file in 'key' of the service");
    if (r < 0) {
        finish(p, r, &err);
        return;
    }
    next(p);
    ask(p);
}

struct probe_ready *probe_ready_start(struct net_loop *l, struct httpio_client *c, const struct probe_target *t, uint64_t limit_ms,
                                      void (*cb)(void *ctx, int status, enum probe_step at, const struct err *err), void *ctx)
{
    struct probe_ready *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    uint64_t now = net_loop_now_ms(l);
    *p = (struct probe_ready){.loop = l, .client = c, .target = *t, .started_ms = now, .wait_ms = PROBE_FIRST_WAIT_MS, .last = BUF_INIT(1024), .cb = cb, .ctx = ctx};
    if (!size_add(now, limit_ms, &p->deadline_ms))
        p->deadline_ms = UINT64_MAX;
    p->timer = net_timer_new(l, tick, p);
    if (!p->timer)
        return probe_ready_cancel(p);
    net_timer_start(p->timer, 0, 0);
    return p;
}
