/* SPDX-License-Identifier: MIT
 *
 * What the router answers itself: its health, the models, the calls by which clients of Ollama find out what is here, and a WebSocket that is not to be. Such clients then speak OpenAI's
 * API, which they are told when they do not.
 */
#include <errno.h>

#include "proxy_int.h"

#define LONG_AGO "1970-01-01T00:00:00Z" /* models have no date here */

static bool any_ready(const struct proxy_config *c, const struct proxy_endpoint *e)
{
    for (size_t i = 0; i < e->n_replicas; i++)
        if (c->replicas[e->replicas[i]].ready)
            return true;
    return false;
}

/* Sends what was written; the exchange may be gone when it returns. c and r as of proxy_answer. */
static void finish(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, unsigned status, struct json_out *o)
{
    base_autobuf struct buf body = BUF_INIT((size_t)2 * PROXY_CHANNEL_LINE_MAX);
    int rc = o ? json_out_finish(o, false, &body) : -ENOMEM;
    json_out_free(o);
    if (rc < 0)
        httpio_abort(x);
    else
        proxy_answer_json(x, c, r, status, buf_str(&body));
}

/* In Ollama's shape. */
static void answer_error(struct proxy_request *r, unsigned status, const char *text)
{
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "error", text);
        json_out_end(o);
    }
    finish(r->x, r->config, r, status, o);
}

/* ---- Ollama ------------------------------------------------------------------------------------------------ */

static void write_details(struct json_out *o)
{
    json_out_obj(o, "details");
    json_out_cstr(o, "format", "");
    json_out_cstr(o, "family", "");
    json_out_null(o, "families");
    json_out_cstr(o, "parameter_size", "");
    json_out_cstr(o, "quantization_level", "");
    json_out_end(o);
}

static void write_tag(struct json_out *o, const char *name)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", name);
    json_out_cstr(o, "model", name);
    json_out_cstr(o, "modified_at", LONG_AGO);
    json_out_u64(o, "size", 0);
    json_out_cstr(o, "digest", "");
    write_details(o);
    json_out_end(o);
}

bool proxy_own_lists(const struct proxy_key *key, const struct proxy_endpoint *e)
{
    return !key || proxy_key_allows(key, e->name);
}

static void answer_tags(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_key *key, bool ready_only)
{
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_arr(o, "models");
        for (size_t i = 0; c && i < c->n_endpoints; i++) {
            const struct proxy_endpoint *e = &c->endpoints[i];
            if (!proxy_own_lists(key, e) || (ready_only && !any_ready(c, e)))
                continue;
            write_tag(o, e->name);
            for (size_t k = 0; k < e->n_aliases; k++)
                write_tag(o, e->aliases[k]);
        }
        json_out_end(o);
        json_out_end(o);
    }
    finish(x, c, NULL, 200, o);
}

static void answer_version(struct httpio_exchange *x, const struct proxy_config *c)
{
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "version", BERTH_VERSION);
        json_out_end(o);
    }
    finish(x, c, NULL, 200, o);
}

static bool lists(const struct proxy_request *r, struct str name)
{
    const struct proxy_endpoint *e = proxy_config_find(r->config, name);
    struct proxy_keys *keys;
    const struct proxy_key *key = proxy_guard_shown(r->proxy, httpio_exchange_head(r->x), r->config, &keys);
    bool listed = e && proxy_own_lists(key, e);
    proxy_keys_unref(keys);
    return listed;
}

/* The model is "model", or "name" as older clients have it. */
static void answer_show(struct proxy_request *r, int found, struct str model)
{
    base_autobuf struct buf name = BUF_INIT(4096);
    struct str body = proxy_body_text(&r->body);
    size_t off, len;
    bool known = false;
    if (found) {
        known = found == 1 && lists(r, model);
    } else if (body.len <= PROXY_BODY_SMALL && proxy_body_reach(&r->body, body) == 0 && json_scan_member(body, "name", &off, &len, NULL) == 0) {
        known = json_scan_string((struct str){body.ptr + off, len}, &name, NULL) == 0 && lists(r, buf_str(&name));
    } else {
        answer_error(r, 400, "set \"model\" to a model's name; GET /api/tags lists them");
        return;
    }
    if (!known) {
        answer_error(r, 404, "this model is not served here; GET /api/tags lists those that are");
        return;
    }
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "modelfile", "");
        json_out_cstr(o, "parameters", "");
        json_out_cstr(o, "template", "");
        json_out_cstr(o, "modified_at", LONG_AGO);
        write_details(o);
        json_out_obj(o, "model_info");
        json_out_end(o);
        json_out_arr(o, "capabilities");
        json_out_cstr(o, NULL, "completion");
        json_out_end(o);
        json_out_end(o);
    }
    finish(r->x, r->config, r, 200, o);
}

static bool is_show(const struct http_head *head)
{
    return str_eq_c(http_target_path(head->target), "/api/show") && str_eq_c(head->method, "POST");
}

bool proxy_own_body(struct proxy_request *r, int found, struct str model)
{
    if (!is_show(httpio_exchange_head(r->x)))
        return false;
    r->status = 200;
    answer_show(r, found, model);
    return true;
}

bool proxy_own_refuse(struct proxy_request *r)
{
    const struct http_head *head = httpio_exchange_head(r->x);
    if (!str_starts(http_target_path(head->target), STR("/api/")) || is_show(head))
        return false;
    r->status = 404;
    answer_error(r, 404, "this is not Ollama: ask POST /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses (OpenAI), or /v1/messages (Anthropic)");
    return true;
}

/* ---- without a body ------------------------------------------------------------------------------------------- */

static void answer_health(struct httpio_exchange *x, const struct proxy_config *c)
{
    if (c && proxy_config_any_ready(c))
        proxy_answer_json(x, c, NULL, 200, STR("{\"status\":\"ok\"}"));
    else
        proxy_answer_error(x, c, NULL, PLACE_OTHER, 503, STR("no replica is ready"));
}

static void write_model(struct json_out *o, struct str name)
{
    json_out_obj(o, NULL);
    json_out_str(o, "id", name);
    json_out_cstr(o, "object", "model");
    json_out_u64(o, "created", 0);
    json_out_cstr(o, "owned_by", "berth");
    json_out_end(o);
}

static void answer_models(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_key *key)
{
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "object", "list");
        json_out_arr(o, "data");
        for (size_t i = 0; c && i < c->n_endpoints; i++) {
            const struct proxy_endpoint *e = &c->endpoints[i];
            if (!proxy_own_lists(key, e))
                continue;
            write_model(o, str_of(e->name));
            for (size_t k = 0; k < e->n_aliases; k++)
                write_model(o, str_of(e->aliases[k]));
        }
        json_out_end(o);
        json_out_end(o);
    }
    finish(x, c, NULL, 200, o);
}

static void answer_model(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_key *key, struct str encoded)
{
    base_autobuf struct buf name = BUF_INIT(4096);
    proxy_decode(encoded, false, &name);
    const struct proxy_endpoint *e = buf_status(&name) == 0 && c ? proxy_config_find(c, buf_str(&name)) : NULL;
    if (!e || !proxy_own_lists(key, e)) {
        proxy_answer_error(x, c, NULL, PLACE_OTHER, 404, STR("this model is not served here; GET /v1/models lists those that are"));
        return;
    }
    struct json_out *o = json_out_new();
    if (o)
        write_model(o, buf_str(&name));
    finish(x, c, NULL, 200, o);
}

/* A client that may use WebSockets goes back to plain HTTP at once when this is the answer; others make it ask again and again. */
static void answer_no_upgrade(struct httpio_exchange *x, const struct proxy_config *c, enum place_dialect d)
{
    proxy_answer_error(x, c, NULL, d, 426, STR("there are no WebSockets here: send the request by POST over HTTP"));
}

/* False: it is none of these. key as of proxy_own_lists. */
static bool answer_get(struct httpio_exchange *x, const struct http_head *head, const struct proxy_config *c, const struct proxy_key *key)
{
    static const struct str one = {"/v1/models/", 11};
    struct str path = http_target_path(head->target);
    if (http_field_has(head, "upgrade", "websocket"))
        answer_no_upgrade(x, c, place_dialect_of(STR("POST"), path));
    else if (str_eq_c(head->target, "/"))
        proxy_answer(x, c, NULL, 200, "text/plain; charset=utf-8", STR("berth is running\n"));
    else if (str_eq_c(path, "/v1/models") || str_eq_c(path, "/models"))
        answer_models(x, c, key);
    else if (str_eq_c(path, "/api/version"))
        answer_version(x, c);
    else if (str_eq_c(path, "/api/tags") || str_eq_c(path, "/api/ps"))
        answer_tags(x, c, key, str_eq_c(path, "/api/ps"));
    else if (str_starts(path, one) && path.len > one.len)
        answer_model(x, c, key, (struct str){path.ptr + one.len, path.len - one.len});
    else
        return false;
    return true;
}

bool proxy_own(struct proxy *p, struct httpio_exchange *x, const struct http_head *head, const struct proxy_config *c)
{
    struct proxy_keys *keys;
    if (!str_eq_c(head->method, "GET") && !str_eq_c(head->method, "HEAD"))
        return false;
    if (str_eq_c(http_target_path(head->target), "/health")) {
        answer_health(x, c);
        return true;
    }
    const struct proxy_key *key = proxy_guard_shown(p, head, c, &keys);
    bool known = key || !c || !c->keyed; /* who is not known is refused as any other, counted and logged */
    bool own = known && answer_get(x, head, c, key);
    proxy_keys_unref(keys);
    return own;
}
