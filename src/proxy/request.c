/* SPDX-License-Identifier: MIT
 *
 * A request from its head to its end. What its head tells against it is answered before its body is read. Then the body is read whole before anything else is decided: it names the model, and it must be
 * there to be sent again. The request dies in on_done and nowhere else; whoever answers must not touch it afterwards.
 */
#include <errno.h>

#include "proxy_int.h"

/* ---- answers of our own --------------------------------------------------------------------------------------- */

void proxy_answer(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, unsigned status, const char *type, struct str body)
{
    struct http_field fields[5 + PROXY_CORS_FIELDS];
    char number[24], position[24], retry[16];
    size_t n = proxy_cors_fields(c, httpio_exchange_head(x), fields);
    fields[n++] = HTTPIO_FIELD(STR("Content-Type"), str_of(type));
    if (status == 503)
        fields[n++] = HTTPIO_FIELD(STR("Retry-After"), STR(PROXY_RETRY_AFTER));
    if (status == 401)
        fields[n++] = HTTPIO_FIELD(STR("WWW-Authenticate"), STR("Bearer"));
    if (status == 429 && r && r->retry_s) {
        snprintf(retry, sizeof retry, "%u", r->retry_s);
        fields[n++] = HTTPIO_FIELD(STR("Retry-After"), str_of(retry));
    }
    if (r) {
        snprintf(number, sizeof number, "%llu", (unsigned long long)r->number);
        fields[n++] = HTTPIO_FIELD(STR("X-Berth-Request-Id"), str_of(number));
    }
    if (r && r->turned_away) {
        snprintf(position, sizeof position, "%zu", r->turned_away);
        fields[n++] = HTTPIO_FIELD(STR("X-Berth-Queue-Position"), str_of(position));
    }
    if (httpio_begin(x, status, fields, n, (int64_t)body.len) < 0) {
        httpio_abort(x);
        return;
    }
    base_ignore(httpio_send(x, body));
    httpio_end(x);
}

void proxy_answer_json(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, unsigned status, struct str body)
{
    proxy_answer(x, c, r, status, "application/json; charset=utf-8", body);
}

void proxy_answer_error(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, enum place_dialect d, unsigned status, struct str message)
{
    base_autobuf struct buf body = BUF_INIT(524288);
    if (dialect_error_body(d, status, message, &body) < 0)
        httpio_abort(x);
    else
        proxy_answer_json(x, c, r, status, buf_str(&body));
}

/* The end of a stream that has begun without a replica's content. */
static void fail_stream(struct proxy_request *r, unsigned status, struct str message)
{
    base_autobuf struct buf event = BUF_INIT(524288);
    r->cut = true;
    if (dialect_error_event(r->dialect, status, message, &event) < 0) {
        httpio_abort(r->x);
        return;
    }
    (void)httpio_send(r->x, buf_str(&event));
    httpio_cut(r->x);
}

void proxy_request_fail(struct proxy_request *r, unsigned status, const char *fmt, ...)
{
    base_autobuf struct buf message = BUF_INIT(65536);
    bool begun = r->status != 0;
    struct proxy_request *f;
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&message, fmt, ap);
    va_end(ap);
    proxy_join_close(r);
    proxy_join_leave(r);
    while ((f = proxy_join_take(r)))
        proxy_request_fail(f, status, "%s", buf_status(&message) < 0 ? "out of memory" : message.ptr);
    proxy_request_drop_body(r);
    if (!begun)
        r->status = status;
    if (r->sink)
        proxy_link_end(r, PROXY_LINK_FAILED, status, buf_status(&message) < 0 ? STR("out of memory") : buf_str(&message));
    else if (buf_status(&message) < 0)
        httpio_abort(r->x);
    else if (begun)
        fail_stream(r, status, buf_str(&message));
    else
        proxy_answer_error(r->x, r->config, r, r->dialect, status, buf_str(&message));
}

void proxy_request_cancel(struct proxy_request *r)
{
    struct proxy_lane *lane = r->lane;
    r->cancelled = true;
    proxy_numbers_cancelled(r);
    if (r->leader || r->source || r->followers) { /* its client's part ends; the answer is that of the others */
        bool between = proxy_answer_between(r);
        proxy_join_leave(r);
        proxy_answer_part(r->followers ? proxy_join_succeed(r) : r, between, 410, STR("this request was cancelled by the operator"));
        return;
    }
    if (r->status && !r->call && !proxy_request_waits(r)) { /* all of its answer is on the way to a slow client */
        httpio_abort(r->x);
        return;
    }
    if (r->content) {
        proxy_answer_cancel(r);
        return;
    }
    r->call = httpio_call_cancel(r->call);
    r->sending = false;
    bool waiting = proxy_forward_leave(r, SCHED_ABANDONED);
    proxy_answer_reset(r);
    /* a status that no client takes for a reason to ask again */
    proxy_request_fail(r, 410, "this request was cancelled by the operator");
    proxy_settle(lane, waiting);
}

/* ---- which endpoint ------------------------------------------------------------------------------------------------ */

static int unhex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void proxy_decode(struct str value, bool plus, struct buf *out)
{
    for (size_t i = 0; i < value.len; i++) {
        int hi = i + 2 < value.len && value.ptr[i] == '%' ? unhex(value.ptr[i + 1]) : -1;
        int lo = hi >= 0 ? unhex(value.ptr[i + 2]) : -1;
        if (lo >= 0)
            i += 2;
        buf_add_char(out, lo >= 0 ? (char)(hi * 16 + lo) : plus && value.ptr[i] == '+' ? ' ' : value.ptr[i]);
    }
}

/* The decoded value of the query's first "model"; false when there is none. */
static bool model_in_query(struct str target, struct buf *out)
{
    ptrdiff_t q = str_find_char(target, '?');
    struct str query = q < 0 ? (struct str){0} : (struct str){target.ptr + q + 1, target.len - (size_t)q - 1};
    while (query.ptr) {
        struct str value = str_split(&query, '&'), key = str_split(&value, '=');
        if (!str_eq_c(key, "model") || !value.ptr)
            continue;
        proxy_decode(value, true, out);
        return true;
    }
    return false;
}

static void list_names(const struct proxy_config *c, const struct proxy_key *key, struct buf *out)
{
    size_t shown = 0;
    for (size_t i = 0; i < c->n_endpoints; i++)
        for (size_t k = 0; proxy_own_lists(key, &c->endpoints[i]) && k <= c->endpoints[i].n_aliases; k++) {
            if (shown == PROXY_KNOWN_SHOWN) {
                buf_add_c(out, ", ...");
                return;
            }
            buf_addf(out, "%s'%s'", shown++ ? ", " : "", k ? c->endpoints[i].aliases[k - 1] : c->endpoints[i].name);
        }
}

/* Every name that the client may ask for, up to a bound. */
static void list_known(const struct proxy_request *r, struct buf *out)
{
    struct proxy_keys *keys;
    const struct proxy_key *key = proxy_guard_shown(r->proxy, httpio_exchange_head(r->x), r->config, &keys);
    list_names(r->config, key, out);
    proxy_keys_unref(keys);
}

static void fail_unknown(struct proxy_request *r, struct str model)
{
    base_autobuf struct buf text = BUF_INIT(65536);
    buf_add_c(&text, "model '");
    buf_add_printable(&text, model, FLEET_MODEL_NAME_MAX);
    buf_add_c(&text, "' is not served here; known models: ");
    list_known(r, &text);
    proxy_request_fail(r, 404, "%s", buf_status(&text) < 0 ? "model is not served here" : text.ptr);
}

static void fail_unnamed(struct proxy_request *r)
{
    base_autobuf struct buf text = BUF_INIT(65536);
    list_known(r, &text);
    proxy_request_fail(r, 400, "no model is named; set \"model\" in the JSON body or model= in the query to one of: %s",
                       buf_status(&text) < 0 || !text.len ? "(none)" : text.ptr);
}

/* The request is whole, and this is what it says. Another one may be looked at while this one is on its way: then k is of that. */
static void decide(struct proxy_request *r, struct proxy_look *k)
{
    base_autobuf struct buf model = k->model;
    k->model = (struct buf)BUF_INIT(model.max);
    if (r->config != r->proxy->config) { /* the newest */
        proxy_config_unref(r->config);
        r->config = proxy_config_now(r->proxy);
    }
    int found = k->found;
    if (proxy_own_body(r, found, buf_str(&model)))
        return;
    if (!found && model_in_query(httpio_exchange_head(r->x)->target, &model))
        found = buf_status(&model) < 0 ? 2 : 1;
    if (found < 0) {
        proxy_request_fail(r, 400, k->form ? "the form's parts are malformed, or it names the model twice" : "\"model\" must be a string that names a model, and stand there once");
        return;
    }
    if (found) {
        r->endpoint = found == 1 ? proxy_config_find(r->config, buf_str(&model)) : NULL;
        if (!r->endpoint) {
            fail_unknown(r, buf_status(&model) < 0 ? STR("...") : buf_str(&model));
            return;
        }
    } else if (r->config->n_endpoints == 1) {
        r->endpoint = &r->config->endpoints[0];
    } else {
        fail_unnamed(r);
        return;
    }
    if (proxy_guard_model(r) == 0)
        proxy_forward(r, k);
}

/* ---- the exchange -------------------------------------------------------------------------------------------------- */

void proxy_request_drop_body(struct proxy_request *r)
{
    proxy_look_drop(r);
    proxy_body_drop(r->proxy, &r->body);
}

/* The body cannot be kept. */
static void fail_body(struct proxy_request *r, int rc)
{
    char most[UNITS_TEXT];
    uint64_t max = r->config->bodies.max_bytes;
    const char *reason = rc == -EFBIG ? "large" : rc == -EAGAIN ? "full" : rc == -ENOSPC ? "disk full" : "error";
    metrics_add(PROXY_M(r->proxy, PROXY_M_BODIES_REFUSED, reason), 1);
    if (rc == -EFBIG && max % (1 << 20) == 0)
        proxy_request_fail(r, 413, "the request body is larger than %llu MiB", (unsigned long long)(max >> 20));
    else if (rc == -EFBIG)
        proxy_request_fail(r, 413, "the request body is larger than %s", units_show_bytes(max, most));
    else if (rc == -EAGAIN)
        proxy_request_fail(r, 503, "too many large requests are under way");
    else if (rc == -ENOSPC)
        proxy_request_fail(r, 507, "the router's disk has no room for the request body");
    else if (rc == -ENOMEM)
        proxy_request_fail(r, 503, "out of memory");
    else
        proxy_request_fail(r, 503, "the router cannot keep the request body: %s", strerrordesc_np(-rc));
}

/* Whether a body is worth reading: it is not when there is no room for it, or no place in line. */
static void admit_body(struct proxy_request *r, const struct http_head *head)
{
    if (!head->chunked && head->content_length <= 0)
        return;
    int rc = proxy_body_admit(r->proxy, &r->config->bodies, head->content_length);
    if (rc < 0)
        fail_body(r, rc);
    else if (head->chunked || head->expect_continue || head->content_length > PROXY_BODY_SMALL)
        proxy_forward_admit(r); /* a small one is here before anybody could be told */
}

/* config: in force, given over. */
static void take(struct proxy_lane *l, struct httpio_exchange *x, const struct http_head *head, struct proxy_config *config)
{
    struct proxy *p = l->proxy;
    struct proxy_request *r = l->spare;
    if (r) {
        l->spare = r->next_stream;
        l->n_spare--;
    } else {
        r = malloc(sizeof *r);
    }
    if (!r) {
        proxy_config_unref(config);
        httpio_abort(x);
        return;
    }
    *r = (struct proxy_request){.proxy = p, .lane = l, .x = x, .config = config, .since_ms = net_loop_now_ms(l->loop),
                                 .held = BUF_INIT((size_t)16 * PROXY_HOLD_MAX), .number = ++p->numbers};
    r->dialect = place_dialect_of(head->method, http_target_path(head->target));
    proxy_body_init(&r->body, config ? &config->bodies : &FLEET_BODIES_DEFAULT);
    httpio_exchange_set(x, r);
    r->page = see_begin(p->see, r->number, r, l, r->since_ms, head->method, http_target_path(head->target));
    p->stats.requests++;
    p->stats.active++;
    if (!config)
        proxy_request_fail(r, 503, "the router has no configuration yet");
    else if (proxy_guard_admit(r) < 0)
        return;
    else if (str_eq_c(head->method, "CONNECT"))
        proxy_request_fail(r, 405, "CONNECT is not served here");
    else if (!proxy_own_refuse(r))
        admit_body(r, head);
}

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct proxy_lane *l = ctx;
    struct proxy_config *config = proxy_config_now(l->proxy);
    httpio_exchange_set(x, NULL);
    if (proxy_cors_preflight(x, head, config) || proxy_own(l->proxy, x, head, config))
        proxy_config_unref(config);
    else
        take(l, x, head, config);
}

static void on_body(void *ctx, struct httpio_exchange *x, struct str data)
{
    (void)ctx;
    struct proxy_request *r = httpio_exchange_get(x);
    if (!r || r->status)
        return;
    int rc = proxy_body_add(r, data, httpio_exchange_head(x)->content_length);
    if (rc < 0)
        fail_body(r, rc);
    else if (proxy_body_full(r))
        httpio_read(x, false);
}

/* It is whole, and where it is to be kept. */
static void take_body(struct proxy_request *r)
{
    proxy_body_map(&r->body);
    int rc = proxy_look(r);
    if (rc < 0)
        fail_body(r, rc);
    else if (rc == 0)
        decide(r, &r->lane->look);
}

void proxy_request_looked(struct proxy_request *r, int rc, struct proxy_look *k)
{
    if (rc < 0)
        fail_body(r, rc);
    else
        decide(r, k);
}

void proxy_request_kept(struct proxy_request *r, int rc, bool whole)
{
    if (rc < 0)
        fail_body(r, rc);
    else if (whole)
        take_body(r);
    else if (!proxy_body_full(r))
        httpio_read(r->x, true);
}

static void on_body_end(void *ctx, struct httpio_exchange *x)
{
    (void)ctx;
    struct proxy_request *r = httpio_exchange_get(x);
    if (!r || r->status)
        return;
    int rc = proxy_body_end(&r->body);
    if (rc < 0)
        fail_body(r, rc);
    else if (rc == 0)
        take_body(r);
}

static void on_drain(void *ctx, struct httpio_exchange *x)
{
    (void)ctx;
    struct proxy_request *r = httpio_exchange_get(x);
    if (r)
        proxy_forward_drained(r);
}

static void free_request(struct proxy_request *r)
{
    struct proxy_lane *l = r->lane;
    proxy_guard_leave(r);
    proxy_link_drop(r);
    proxy_join_leave(r);
    proxy_join_close(r);
    proxy_stream_remove(r);
    proxy_sender_remove(r);
    proxy_answer_reset(r);
    proxy_request_drop_body(r);
    proxy_config_unref(r->config);
    buf_release(&r->held);
    free(r->quoted);
    free(r->chain);
    if (r->ticket.tried != &r->tried)
        free(r->ticket.tried);
    if (l->n_spare == PROXY_SPARE_MAX) {
        free(r);
        return;
    }
    r->next_stream = l->spare;
    l->spare = r;
    l->n_spare++;
}

void proxy_request_over(struct proxy_request *r)
{
    struct proxy_lane *l = r->lane;
    r->call = httpio_call_cancel(r->call);
    bool left = r->entered, waiting = proxy_forward_leave(r, SCHED_ABANDONED);
    free_request(r);
    if (left) /* else who ended it sees to the others */
        proxy_settle(l, waiting);
}

void proxy_request_left(struct proxy_request *r)
{
    proxy_join_leave(r);
    proxy_request_over(r->followers ? proxy_join_succeed(r) : r);
}

static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    (void)ctx;
    struct proxy_request *r = httpio_exchange_get(x);
    if (!r)
        return;
    struct dialect_usage usage = r->usage;
    if (r->followers) /* the answer has other clients; its tokens are counted at its end */
        r->usage = (struct dialect_usage){0};
    proxy_numbers_done(r, completed);
    r->usage = usage;
    proxy_request_over(r->followers ? proxy_join_succeed(r) : r);
}

const struct httpio_server_ops proxy_server_ops = {
    .on_request = on_request,
    .on_body = on_body,
    .on_body_end = on_body_end,
    .on_drain = on_drain,
    .on_done = on_done,
    .on_open = proxy_lane_opened,
};
