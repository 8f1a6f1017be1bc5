/* SPDX-License-Identifier: MIT
 *
 * What the router answers itself, beside health and the model list: one model, the calls by which clients of Ollama find out what is here, and a WebSocket that is not to be. Such clients then speak OpenAI's
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

/* Sends what was written; the exchange may be gone when it returns. */
static void finish(struct httpio_exchange *x, const struct proxy_request *r, unsigned status, struct json_out *o)
{
    base_autobuf struct buf body = BUF_INIT((size_t)2 * PROXY_CHANNEL_LINE_MAX);
    int rc = o ? json_out_finish(o, false, &body) : -ENOMEM;
    json_out_free(o);
    if (rc < 0)
        httpio_abort(x);
    else
        proxy_answer_json(x, NULL, r, status, buf_str(&body));
}

static void answer_error(struct httpio_exchange *x, const struct proxy_request *r, unsigned status, const char *text)
{
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "error", text);
        json_out_end(o);
    }
    finish(x, r, status, o);
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
    finish(x, NULL, 200, o);
}

static void answer_version(struct httpio_exchange *x)
{
    struct json_out *o = json_out_new();
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "version", BERTH_VERSION);
        json_out_end(o);
    }
    finish(x, NULL, 200, o);
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
    if (found)
        known = found == 1 && lists(r, model);
    else if (body.len <= PROXY_BODY_SMALL && proxy_body_reach(&r->body, body) == 0 && json_scan_member(body, "name", &off, &len, NULL) == 0)
        known = json_scan_string((struct str){body.ptr + off, len}, &name, NULL) == 0 && lists(r, buf_str(&name));
    else {
        answer_error(r->x, r, 400, "set \"model\" to a model's name; GET /api/tags lists them");
        return;
    }
    if (!known) {
        answer_error(r->x, r, 404, "this model is not served here; GET /api/tags lists those that are");
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
    finish(r->x, r, 200, o);
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
    answer_error(r->x, r, 404, "this is not Ollama: ask POST /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses (OpenAI), or /v1/messages (Anthropic)");
    return true;
}

/* ---- without a body ------------------------------------------------------------------------------------------- */

static void answer_running(struct httpio_exchange *x)
{
    httpio_respond(x, 200, "text/plain; charset=utf-8", STR("berth is running\n"));
}

/* A client that may use WebSockets goes back to plain HTTP at once when this is the answer; others make it ask again and again. */
static void answer_no_upgrade(struct httpio_exchange *x, enum place_dialect d)
{
    base_autobuf struct buf body = BUF_INIT(4096);
    if (dialect_error_body(d, 426, STR("there are no WebSockets here: send the request by POST over HTTP"), &body) < 0)
        httpio_abort(x);
    else
        proxy_answer_json(x, NULL, NULL, 426, buf_str(&body));
}

static void answer_model(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_key *key, struct str encoded)
{
    base_autobuf struct buf name = BUF_INIT(4096), body = BUF_INIT(8192);
    proxy_decode(encoded, false, &name);
    const struct proxy_endpoint *e = buf_status(&name) == 0 && c ? proxy_config_find(c, buf_str(&name)) : NULL;
    if (e && proxy_own_lists(key, e)) {
        struct json_out *o = json_out_new();
        if (o)
            proxy_write_model(o, buf_str(&name));
        finish(x, NULL, 200, o);
    } else if (dialect_error_body(PLACE_OTHER, 404, STR("this model is not served here; GET /v1/models lists those that are"), &body) < 0) {
        httpio_abort(x);
    } else {
        proxy_answer_json(x, c, NULL, 404, buf_str(&body));
    }
}

bool proxy_own(struct httpio_exchange *x, const struct http_head *head, const struct proxy_config *c, const struct proxy_key *key)
{
    static const struct str one = {"/v1/models/", 11};
    bool get = str_eq_c(head->method, "GET") || str_eq_c(head->method, "HEAD");
    struct str path = http_target_path(head->target);
    if (get && http_field_has(head, "upgrade", "websocket"))
        answer_no_upgrade(x, place_dialect_of(STR("POST"), path));
    else if (get && str_eq_c(head->target, "/"))
        answer_running(x);
    else if (get && str_eq_c(path, "/api/version"))
        answer_version(x);
    else if (get && (str_eq_c(path, "/api/tags") || str_eq_c(path, "/api/ps")))
        answer_tags(x, c, key, str_eq_c(path, "/api/ps"));
    else if (get && str_starts(path, one) && path.len > one.len)
        answer_model(x, c, key, (struct str){path.ptr + one.len, path.len - one.len});
    else
        return false;
    return true;
}
