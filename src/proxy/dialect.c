/* SPDX-License-Identifier: MIT
 *
 * What the APIs call things: which event of a stream is the first with content, which may be its last, how an error looks, what a client takes for a sign of life. An event is parsed only
 * where its bytes say that it may matter, so that tokens pass at the cost of a search.
 */
#include "proxy_int.h"

#include <errno.h>

static bool has(struct str text, const char *part)
{
    return text.len && str_find(text, str_of(part)) >= 0;
}

static bool named(const struct http_sse_event *e, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq_c(e->name, names[i]))
            return true;
    return false;
}

/* A chunk that only says whose turn it is. */
static bool is_role_only(struct str data)
{
    struct json *j;
    if (!has(data, "\"role\"") || json_parse(data, &j, NULL) < 0)
        return false;
    json_val choice = json_at(json_get(json_root(j), "choices"), 0), delta = json_get(choice, "delta");
    json_val finish = json_get(choice, "finish_reason"), v;
    struct str key, text;
    bool only = json_is_obj(delta) && (!finish || json_is_null(finish));
    for (size_t at = 0; only && json_next(delta, &at, &key, &v);)
        only = str_eq_c(key, "role") || json_is_null(v) || (json_str(v, &text) && text.len == 0);
    json_free(j);
    return only;
}

bool dialect_is_content(enum place_dialect d, const struct http_sse_event *e)
{
    static const char *const messages[] = {"ping", "message_start"}, *const responses[] = {"response.created", "response.in_progress", "response.queued", "keepalive"};
    if (!e->has_data)
        return false;
    if (d == PLACE_MESSAGES)
        return !named(e, messages, BASE_COUNT(messages));
    if (d == PLACE_RESPONSES)
        return !named(e, responses, BASE_COUNT(responses));
    return d != PLACE_CHAT || !is_role_only(e->data);
}

/* What a chunk says of its choices. A text that has these words has its quotes escaped, and one that is these words has no colon behind it. */
static enum dialect_end end_of_choices(struct str data)
{
    static const struct str key = {"\"finish_reason\"", 15};
    enum dialect_end said = DIALECT_SAYS_NOTHING;
    for (ptrdiff_t at; (at = str_find(data, key)) >= 0;) {
        data = str_trim((struct str){data.ptr + at + key.len, data.len - (size_t)at - key.len});
        if (!data.len || data.ptr[0] != ':')
            continue;
        struct str value = str_trim((struct str){data.ptr + 1, data.len - 1});
        if (value.len < 2 || value.ptr[0] != '"' || value.ptr[1] == '"') /* null, or the empty text that some send in its place */
            return DIALECT_GOES_ON;
        said = DIALECT_MAY_END;
    }
    return said;
}

enum dialect_end dialect_end(enum place_dialect d, const struct http_sse_event *e)
{
    static const char *const messages[] = {"message_stop", "error"},
                             *const responses[] = {"response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"};
    unsigned code;
    if (d == PLACE_MESSAGES)
        return named(e, messages, BASE_COUNT(messages)) ? DIALECT_ENDS : DIALECT_SAYS_NOTHING;
    if (d == PLACE_RESPONSES)
        return named(e, responses, BASE_COUNT(responses)) ? DIALECT_ENDS : DIALECT_SAYS_NOTHING;
    if (d != PLACE_CHAT && d != PLACE_COMPLETIONS)
        return DIALECT_MAY_END;
    if (str_eq_c(e->data, "[DONE]") || has(e->data, "\"stop\":true") || dialect_is_error(e, &code))
        return DIALECT_ENDS;
    return end_of_choices(e->data);
}

void dialect_name(enum place_dialect d, struct http_sse_event *e, char scratch[DIALECT_NAME_MAX])
{
    struct json *j;
    struct str type = {0};
    if (e->name.len || (d != PLACE_MESSAGES && d != PLACE_RESPONSES) || json_parse(e->data, &j, NULL) < 0)
        return;
    if (json_str(json_get(json_root(j), "type"), &type) && type.len <= DIALECT_NAME_MAX) {
        memcpy(scratch, type.ptr, type.len);
        e->name = (struct str){scratch, type.len};
    }
    json_free(j);
}

/* Where an event has its error: in chat and messages; in an event of responses that is one; in their last one. */
static json_val find_error(json_val root, struct str name)
{
    json_val error = json_get(root, "error");
    if (!error && str_eq_c(name, "error"))
        return root;
    return error ? error : json_get(json_get(root, "response"), "error");
}

/* Who is to blame is told by a number, else by a name. */
static unsigned error_code(json_val error)
{
    static const char *const of_request[] = {"invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large", "billing_error", "invalid_prompt", "context_length_exceeded"};
    uint64_t code = 500;
    struct str names[2] = {{0}};
    (void)json_str(json_get(error, "type"), &names[0]);
    if (json_u64(json_get(error, "code"), &code))
        return code >= 400 && code < 600 ? (unsigned)code : 500;
    (void)json_str(json_get(error, "code"), &names[1]);
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        if (str_eq_c(names[i], "rate_limit_error") || str_eq_c(names[i], "rate_limit_exceeded"))
            return 429;
        for (size_t k = 0; k < BASE_COUNT(of_request); k++)
            if (str_eq_c(names[i], of_request[k]))
                return 400;
    }
    return 500;
}

bool dialect_is_error(const struct http_sse_event *e, unsigned *ret_code)
{
    struct json *j;
    if (!has(e->data, "\"error\"") || json_parse(e->data, &j, NULL) < 0)
        return false;
    json_val error = find_error(json_root(j), e->name);
    bool is = error && !json_is_null(error);
    if (is)
        *ret_code = error_code(error);
    json_free(j);
    return is;
}

unsigned dialect_tokens(enum place_dialect d, const struct http_sse_event *e)
{
    static const struct str delta = {"delta", 5};
    if (!e->data.len || str_eq_c(e->data, "[DONE]"))
        return 0;
    return d == PLACE_CHAT || d == PLACE_COMPLETIONS || str_ends(e->name, delta);
}

struct str dialect_heartbeat(enum place_dialect d)
{
    switch (d) {
    case PLACE_MESSAGES: /* comments do not count for its clients */
        return STR("event: ping\ndata: {\"type\":\"ping\"}\n\n");
    case PLACE_RESPONSES: /* nor here, where a client goes by events that it can read and skips those of a type that it does not know */
        return STR("event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":0}\n\n");
    default:
        return STR(": keep-alive\n\n");
    }
}

/* ---- errors --------------------------------------------------------------------------------------------------- */

static const char *error_type(enum place_dialect d, unsigned status)
{
    if (d == PLACE_MESSAGES && status >= 500)
        return status == 503 ? "overloaded_error" : "api_error";
    if (status == 503)
        return "unavailable_error";
    if (status == 401)
        return "authentication_error";
    if (status == 403)
        return "permission_error";
    if (status == 404)
        return "not_found_error";
    if (status == 429)
        return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "upstream_error";
}

static void write_error(struct json_out *o, enum place_dialect d, unsigned status, struct str message)
{
    if (d == PLACE_MESSAGES)
        json_out_cstr(o, "type", "error");
    json_out_obj(o, "error");
    json_out_str(o, "message", message);
    json_out_cstr(o, "type", error_type(d, status));
    json_out_u64(o, "code", status);
    json_out_end(o);
}

int dialect_error_body(enum place_dialect d, unsigned status, struct str message, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    write_error(o, d, status, message);
    json_out_end(o);
    int r = json_out_finish(o, false, out);
    json_out_free(o);
    return r;
}

int dialect_error_event(enum place_dialect d, unsigned status, struct str message, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    buf_add_c(out, d == PLACE_MESSAGES ? "event: error\n" : d == PLACE_RESPONSES ? "event: response.failed\n" : "");
    buf_add_c(out, "data: ");
    json_out_obj(o, NULL);
    if (d == PLACE_RESPONSES) {
        json_out_cstr(o, "type", "response.failed");
        json_out_obj(o, "response");
        json_out_cstr(o, "object", "response");
        json_out_cstr(o, "status", "failed");
        json_out_obj(o, "error");
        json_out_cstr(o, "code", "server_error");
        json_out_str(o, "message", message);
        json_out_end(o);
        json_out_end(o);
    } else {
        write_error(o, d, status, message);
    }
    json_out_end(o);
    int r = json_out_finish(o, false, out);
    json_out_free(o);
    buf_add_c(out, "\n\n");
    return r < 0 ? r : buf_status(out);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static bool read_u64(json_val obj, const char *key, uint64_t *ret)
{
    return json_u64(json_get(obj, key), ret);
}

static void read_timings(json_val t, struct dialect_usage *u)
{
    u->known = read_u64(t, "prompt_n", &u->prompt_n) || u->known;
    (void)read_u64(t, "cache_n", &u->cached_n);
    (void)read_u64(t, "predicted_n", &u->predicted_n);
    (void)json_f64(json_get(t, "prompt_ms"), &u->prompt_ms);
    (void)json_f64(json_get(t, "predicted_ms"), &u->predicted_ms);
}

/* The three ways to say it: with the cached ones among the prompt's (chat, responses), or beside them (messages). */
static void read_tokens(json_val v, struct dialect_usage *u)
{
    uint64_t prompt = 0, cached = 0;
    bool beside = read_u64(v, "cache_read_input_tokens", &cached);
    if (!beside && !read_u64(json_get(v, "prompt_tokens_details"), "cached_tokens", &cached))
        (void)read_u64(json_get(v, "input_tokens_details"), "cached_tokens", &cached);
    if (read_u64(v, "prompt_tokens", &prompt) || read_u64(v, "input_tokens", &prompt)) {
        u->prompt_n = beside ? prompt : prompt > cached ? prompt - cached : 0;
        u->cached_n = cached;
        u->known = true;
    }
    if (!read_u64(v, "completion_tokens", &u->predicted_n))
        (void)read_u64(v, "output_tokens", &u->predicted_n);
}

void dialect_read_usage(struct str text, struct dialect_usage *u)
{
    struct json *j;
    if ((!has(text, "\"timings\"") && !has(text, "\"usage\"")) || json_parse(text, &j, NULL) < 0)
        return;
    json_val root = json_root(j), inner = json_get(root, "response");
    if (!inner)
        inner = json_get(root, "message");
    if (json_is_obj(json_get(inner, "usage")))
        read_tokens(json_get(inner, "usage"), u);
    if (json_is_obj(json_get(root, "usage")))
        read_tokens(json_get(root, "usage"), u);
    if (json_is_obj(json_get(root, "timings")))
        read_timings(json_get(root, "timings"), u);
    json_free(j);
}
