/* SPDX-License-Identifier: MIT
 *
 * Who may ask: keys with their limits, and pages of other origins. A key is shown as "Authorization: Bearer KEY", "x-api-key" or "api-key"; it is never passed on and never written down, its name is. What a key has under
 * way and how fast it asks is counted by name, so that a new keys file changes limits without forgetting.
 */
#include <errno.h>
#include <strings.h>

#include "keys_int.h"
#include "proxy_int.h"

/* ---- keys ------------------------------------------------------------------------------------------------------ */

void proxy_set_keys(struct proxy *p, struct proxy_keys *k)
{
    (void)pthread_mutex_lock(&p->lock);
    struct proxy_keys *before = p->keys;
    p->keys = k;
    (void)pthread_mutex_unlock(&p->lock);
    proxy_keys_unref(before);
}

static struct proxy_keys *keys_now(struct proxy *p)
{
    (void)pthread_mutex_lock(&p->lock);
    struct proxy_keys *k = p->keys ? proxy_keys_ref(p->keys) : NULL;
    (void)pthread_mutex_unlock(&p->lock);
    return k;
}

static struct str shown_key(const struct http_head *head)
{
    static const char bearer[] = "bearer ";
    struct str v = http_field_get(head, "authorization");
    if (v.len > sizeof bearer - 1 && strncasecmp(v.ptr, bearer, sizeof bearer - 1) == 0)
        return str_trim((struct str){v.ptr + sizeof bearer - 1, v.len - (sizeof bearer - 1)});
    v = http_field_get(head, "x-api-key");
    return str_trim(v.len ? v : http_field_get(head, "api-key"));
}

const struct proxy_key *proxy_guard_shown(struct proxy *p, const struct http_head *head, const struct proxy_config *c, struct proxy_keys **ret_keys)
{
    *ret_keys = c && c->keyed ? keys_now(p) : NULL;
    return *ret_keys ? proxy_keys_find(*ret_keys, shown_key(head)) : NULL;
}

bool proxy_guard_secret(struct str field)
{
    return (str_eq_nocase(field, STR("authorization")) || str_eq_nocase(field, STR("x-api-key")) || str_eq_nocase(field, STR("api-key")));
}

/* The counters of a name; they stay as long as the router. The lock is held. NULL without memory. */
static struct proxy_use *use_named(struct proxy *p, const char *name)
{
    for (struct proxy_use *u = p->uses; u; u = u->next)
        if (strcmp(u->name, name) == 0)
            return u;
    struct proxy_use *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    snprintf(u->name, sizeof u->name, "%s", name);
    u->next = p->uses;
    p->uses = u;
    return u;
}

/* Seconds until one more request may come; 0: it may now, and is counted. The lock is held. */
static unsigned take_turn(struct proxy_use *u, uint32_t per_minute, uint64_t now)
{
    double rate = (double)per_minute / 60000; /* a millisecond */
    if (per_minute == 0)
        return 0;
    u->tokens = u->filled_ms ? u->tokens + (double)(now - u->filled_ms) * rate : per_minute;
    if (u->tokens > per_minute)
        u->tokens = per_minute;
    u->filled_ms = now;
    if (u->tokens < 1)
        return 1 + (unsigned)((1 - u->tokens) / rate / 1000);
    u->tokens--;
    return 0;
}

static int admit(struct proxy_request *r, const struct proxy_key *key)
{
    struct proxy *p = r->proxy;
    unsigned wait_s = 0;
    (void)pthread_mutex_lock(&p->lock);
    struct proxy_use *u = use_named(p, key->name);
    bool full = u && key->concurrency && u->active >= key->concurrency;
    if (u && !full)
        wait_s = take_turn(u, key->rate, proxy_lane_now(r->lane));
    bool admitted = u && !full && wait_s == 0;
    if (admitted) {
        u->active++;
        r->use = u;
    }
    (void)pthread_mutex_unlock(&p->lock);
    r->key = u ? u->name : NULL;
    r->retry_s = full ? 1 : wait_s;
    if (!u)
        proxy_request_fail(r, 503, "out of memory");
    else if (full)
        proxy_request_fail(r, 429, "key '%s' has %u requests under way, as many as it may have at once", u->name, key->concurrency);
    else if (wait_s)
        proxy_request_fail(r, 429, "key '%s' may ask %u times a minute; again in %u s", u->name, key->rate, wait_s);
    return admitted ? 0 : -EACCES; /* the request may be gone */
}

int proxy_guard_admit(struct proxy_request *r)
{
    if (!r->config->keyed)
        return 0;
    struct proxy_keys *k = keys_now(r->proxy);
    const struct proxy_key *key = k ? proxy_keys_find(k, shown_key(httpio_exchange_head(r->x))) : NULL;
    int rc = -EACCES;
    if (key)
        rc = admit(r, key);
    else
        proxy_request_fail(r, 401, PROXY_GUARD_UNKNOWN);
    proxy_keys_unref(k);
    return rc;
}

int proxy_guard_model(struct proxy_request *r)
{
    if (!r->key)
        return 0;
    struct proxy_keys *k = keys_now(r->proxy);
    const struct proxy_key *key = NULL;
    for (size_t i = 0; k && i < proxy_keys_count(k) && !key; i++)
        key = strcmp(proxy_keys_at(k, i)->name, r->key) == 0 ? proxy_keys_at(k, i) : NULL;
    bool may = key && proxy_key_allows(key, r->endpoint->name);
    if (!key) /* removed while the body came */
        proxy_request_fail(r, 401, PROXY_GUARD_UNKNOWN);
    else if (!may)
        proxy_request_fail(r, 403, "key '%s' may not use model '%s'", r->key, r->endpoint->name);
    proxy_keys_unref(k);
    return may ? 0 : -EACCES;
}

void proxy_guard_leave(struct proxy_request *r)
{
    if (!r->use)
        return;
    (void)pthread_mutex_lock(&r->proxy->lock);
    r->use->active--;
    (void)pthread_mutex_unlock(&r->proxy->lock);
    r->use = NULL;
}

void proxy_guard_release(struct proxy *p)
{
    p->keys = proxy_keys_unref(p->keys);
    for (struct proxy_use *u = p->uses, *next; u; u = next) {
        next = u->next;
        free(u);
    }
    p->uses = NULL;
}

/* ---- pages of other origins -------------------------------------------------------------------------------------- */

static bool is_allowed(const struct proxy_config *c, struct str origin)
{
    for (size_t i = 0; c && i < c->n_cors; i++)
        if (str_eq_c(origin, c->cors[i]))
            return true;
    return false;
}

size_t proxy_cors_fields(const struct proxy_config *c, const struct http_head *head, struct http_field out[PROXY_CORS_FIELDS])
{
    size_t n = 0;
    if (!c || !c->n_cors)
        return 0;
    /* Said to everybody: a cache must not give one origin's answer to another. */
    out[n++] = HTTPIO_FIELD(STR("Vary"), STR("Origin"));
    struct str origin = http_field_get(head, "origin");
    if (!is_allowed(c, origin) || !http_field_once(head, "origin"))
        return n;
    out[n++] = HTTPIO_FIELD(STR("Access-Control-Allow-Origin"), origin);
    out[n++] = HTTPIO_FIELD(STR("Access-Control-Expose-Headers"), STR("X-Berth-Request-Id, X-Berth-Replica, X-Berth-Decision, X-Berth-Attempts, X-Berth-Queue-Ms, Retry-After"));
    return n;
}

bool proxy_cors_is_field(struct str name)
{
    return name.len > 15 && strncasecmp(name.ptr, "access-control-", 15) == 0;
}

/* A browser asks before it lets a page send. No key comes with that, and none is asked for. */
bool proxy_cors_preflight(struct httpio_exchange *x, const struct http_head *head, const struct proxy_config *c)
{
    struct http_field fields[PROXY_CORS_FIELDS + 3];
    struct str wanted = http_field_get(head, "access-control-request-headers");
    if (!str_eq_c(head->method, "OPTIONS") || !c || !c->n_cors || !http_field_get(head, "access-control-request-method").len)
        return false;
    size_t n = proxy_cors_fields(c, head, fields);
    if (n > 1) {
        fields[n++] = HTTPIO_FIELD(STR("Access-Control-Allow-Methods"), STR("GET, HEAD, POST, DELETE"));
        fields[n++] = HTTPIO_FIELD(STR("Access-Control-Max-Age"), STR("600"));
        if (wanted.len) /* names alone decide nothing: each request is looked at */
            fields[n++] = HTTPIO_FIELD(STR("Access-Control-Allow-Headers"), wanted);
    }
    if (httpio_begin(x, n > 1 ? 204 : 403, fields, n, 0) < 0)
        httpio_abort(x);
    else
        httpio_end(x);
    return true;
}
