/* SPDX-License-Identifier: MIT
 *
 * The configuration: one line of JSON that the owner of a fleet writes and the worker reads.
 *
 *   {"config":{"replicas":[{"name":"a","served":"a","host":"127.0.0.1","port":7770,"ready":true,"generation":3,"slots":2,"context":8192,"pins":true}, ...],
 *              "endpoints":[{"name":"m","policy":"adaptive","aliases":["x"],"replicas":[0,1]}, ...],
 *              "headers":["x-task", ...], "bodies":{"max":67108864,"spill":1048576,"memory":268435456,"disk":8589934592}}}
 *
 * A replica that asks for a key has it as "key"; nothing prints this line. One that may ask clients for a key of its own has "asks":true; one that tells
 * its capacity itself has "tells":PATH, where.
 * A host is an IP address, or "unix:PATH" with port 0; a name stands there when the owner has no address for it, and is out of reach.
 *
 * Both ends are the same program, so a text with anything else in it is an error, not something to be lenient about.
 */
#include <errno.h>

#include <engine/engine.h>

#include "proxy_int.h"

#define HOST_MAX 1024 /* of a host's name */
#define CONFIG_ARENA_MAX 16777216 /* of a line of PROXY_CHANNEL_LINE_MAX bytes with room for structs */

/* ---- writing -------------------------------------------------------------------------------------------- */

/* Where the service is reached from the machine that the router runs on. */
const char *proxy_service_host(const struct fleet_service *s)
{
    if (s->host && s->host->ssh) {
        if (s->host->address)
            return s->host->address;
        if (fleet_service_wide(s) && strcmp(s->bind, "0.0.0.0") != 0 && strcmp(s->bind, "::") != 0)
            return s->bind;
        const char *at = strrchr(s->host->ssh, '@');
        return at ? at + 1 : s->host->ssh;
    }
    if (strcmp(s->bind, "0.0.0.0") == 0)
        return "127.0.0.1";
    return strcmp(s->bind, "::") == 0 ? "::1" : s->bind;
}

static const struct proxy_state *state_of(const struct proxy_state *states, size_t n, const struct fleet_service *s)
{
    for (size_t i = 0; i < n; i++)
        if (states[i].service == s)
            return &states[i];
    return NULL;
}

static void write_replica(struct json_out *o, const struct fleet_service *declared, const struct proxy_state *state)
{
    const struct fleet_service *s = state && state->as ? state->as : declared;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", s->name);
    json_out_cstr(o, "served", engine_served_name(s));
    json_out_cstr(o, "host", state && state->address ? state->address : proxy_service_host(s));
    json_out_u64(o, "port", s->port);
    json_out_bool(o, "ready", state ? state->ready : true);
    json_out_u64(o, "generation", state ? state->generation : 0);
    json_out_u64(o, "slots", strcmp(s->runtime->engine, "generic") == 0 ? 0 : s->shape.slots);
    json_out_u64(o, "context", strcmp(s->runtime->engine, "llama.cpp") == 0 ? s->shape.context : 0);
    json_out_bool(o, "pins", strcmp(s->runtime->engine, "llama.cpp") == 0);
    if (strcmp(s->runtime->engine, "generic") == 0)
        json_out_bool(o, "asks", true);
    if (engine_capacity_path(s))
        json_out_cstr(o, "tells", engine_capacity_path(s));
    if (state && state->startable)
        json_out_bool(o, "startable", true);
    if (state && state->why)
        json_out_cstr(o, "why", state->why);
    if (state && state->key && state->key[0])
        json_out_cstr(o, "key", state->key);
    json_out_end(o);
}

static void write_endpoint(struct json_out *o, const struct fleet *f, const struct fleet_endpoint *e)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", e->name);
    json_out_cstr(o, "policy", fleet_policy_name(e->policy));
    json_out_arr(o, "aliases");
    for (size_t i = 0; i < e->n_aliases; i++)
        json_out_cstr(o, NULL, e->aliases[i]);
    json_out_end(o);
    json_out_arr(o, "replicas");
    for (size_t i = 0; i < e->n_services; i++)
        json_out_u64(o, NULL, (uint64_t)(e->services[i] - f->services));
    json_out_end(o);
    json_out_end(o);
}

static bool is_default(const struct fleet_bodies *b)
{
    const struct fleet_bodies d = FLEET_BODIES_DEFAULT;
    /* zeroes are of a fleet that was not read from a file */
    return !b->max_bytes || (b->max_bytes == d.max_bytes && b->spill_bytes == d.spill_bytes && b->memory_bytes == d.memory_bytes && b->disk_bytes == d.disk_bytes);
}

static void write_bodies(struct json_out *o, const struct fleet_bodies *b)
{
    json_out_obj(o, "bodies");
    json_out_u64(o, "max", b->max_bytes);
    json_out_u64(o, "spill", b->spill_bytes);
    json_out_u64(o, "memory", b->memory_bytes);
    json_out_u64(o, "disk", b->disk_bytes);
    json_out_end(o);
}

int proxy_config_text(const struct fleet *f, const struct proxy_state *states, size_t n, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_obj(o, "config");
    json_out_arr(o, "replicas");
    for (size_t i = 0; i < f->n_services; i++)
        write_replica(o, &f->services[i], state_of(states, n, &f->services[i]));
    json_out_end(o);
    json_out_arr(o, "endpoints");
    for (size_t i = 0; i < f->n_endpoints; i++)
        write_endpoint(o, f, &f->endpoints[i]);
    json_out_end(o);
    json_out_arr(o, "headers");
    for (size_t i = 0; i < f->router.n_conversation_headers; i++)
        json_out_cstr(o, NULL, f->router.conversation_headers[i]);
    json_out_end(o);
    if (!is_default(&f->router.bodies))
        write_bodies(o, &f->router.bodies);
    if (f->router.keys_file)
        json_out_bool(o, "keyed", true);
    if (f->router.n_cors)
        json_out_arr(o, "cors");
    for (size_t i = 0; i < f->router.n_cors; i++)
        json_out_cstr(o, NULL, f->router.cors[i]);
    if (f->router.n_cors)
        json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    int r = json_out_finish(o, false, out);
    json_out_free(o);
    return r;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static int bad(struct err *err, const char *what)
{
    return err_set(err, -EBADMSG, "the router's configuration is malformed: %s", what);
}

/* A name that goes into JSON, a header field and a label as it is. */
static int read_name(const struct proxy_config *c, json_val v, size_t max, const char **ret, struct err *err)
{
    struct str s;
    if (!json_str(v, &s) || s.len == 0 || s.len > max || !str_is_utf8(s))
        return bad(err, "a name is missing or too long");
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7f)
            return bad(err, "a name has a control byte");
    *ret = arena_dup(c->arena, s);
    return *ret ? 0 : err_nomem(err);
}

/* Room for all of the array at key, which has at most max values; NULL with *ret_rc set. */
static void *read_array(const struct proxy_config *c, json_val obj, const char *key, size_t max, size_t size, size_t *ret_n, int *ret_rc, struct err *err)
{
    json_val arr = json_get(obj, key);
    size_t n = json_count(arr);
    void *mem = NULL;
    if (!json_is_arr(arr) || n > max)
        *ret_rc = bad(err, "a list is missing or too long");
    else if (!(mem = arena_alloc(c->arena, n ? n : 1, size)))
        *ret_rc = err_nomem(err);
    else
        *ret_n = n;
    return mem;
}

static bool is_socket(const char *host)
{
    return str_starts(str_of(host), STR("unix:"));
}

static int read_replica(const struct proxy_config *c, json_val v, struct proxy_replica *r, struct err *err)
{
    uint64_t port, slots;
    int rc = read_name(c, json_get(v, "name"), FLEET_NAME_MAX, &r->name, err);
    if (rc == 0)
        rc = read_name(c, json_get(v, "served"), FLEET_NAME_MAX, &r->served, err);
    if (rc == 0)
        rc = read_name(c, json_get(v, "host"), HOST_MAX, &r->host, err);
    if (rc < 0)
        return rc;
    size_t more = 0; /* what is written only when there is something to say */
    if (json_get(v, "startable")) {
        more++;
        if (!json_bool(json_get(v, "startable"), &r->startable))
            return bad(err, "a replica is not complete");
    }
    if (json_get(v, "asks")) {
        more++;
        if (!json_bool(json_get(v, "asks"), &r->asks))
            return bad(err, "a replica is not complete");
    }
    if (json_get(v, "why")) {
        more++;
        rc = read_name(c, json_get(v, "why"), PROXY_WHY_MAX - 1, &r->why, err);
    }
    if (rc == 0 && json_get(v, "tells")) {
        more++;
        rc = read_name(c, json_get(v, "tells"), PROXY_TELLS_MAX - 1, &r->tells, err);
    }
    if (rc == 0 && json_get(v, "key")) {
        more++;
        rc = read_name(c, json_get(v, "key"), FLEET_KEY_MAX, &r->key, err);
    }
    if (rc < 0)
        return rc;
    if (json_count(v) != 9 + more || !json_u64(json_get(v, "port"), &port) || (port == 0 && !is_socket(r->host)) || port > UINT16_MAX ||
        !json_bool(json_get(v, "ready"), &r->ready) || !json_u64(json_get(v, "generation"), &r->generation) ||
        !json_u64(json_get(v, "slots"), &slots) || slots > SCHED_SLOTS_MAX || !json_u64(json_get(v, "context"), &r->context) || !json_bool(json_get(v, "pins"), &r->pins))
        return bad(err, "a replica is not complete");
    r->slots = (unsigned)slots;
    r->resolved = net_addr_parse(r->host, (uint16_t)port, &r->addr) == 0;
    return 0;
}

static int read_endpoint(const struct proxy_config *c, json_val v, struct proxy_endpoint *e, struct err *err)
{
    const char **aliases = NULL;
    uint32_t *replicas = NULL;
    base_autobuf struct buf text = BUF_INIT((size_t)8 * FLEET_MODEL_NAME_MAX);
    int rc = read_name(c, json_get(v, "name"), FLEET_MODEL_NAME_MAX, &e->name, err);
    if (rc == 0)
        rc = read_name(c, json_get(v, "policy"), FLEET_NAME_MAX, &e->policy, err);
    if (rc == 0 && !sched_policy_known(str_of(e->policy)))
        rc = bad(err, "a policy is not known");
    if (rc == 0)
        aliases = read_array(c, v, "aliases", PROXY_CHANNEL_LINE_MAX, sizeof *aliases, &e->n_aliases, &rc, err);
    if (rc == 0)
        replicas = read_array(c, v, "replicas", FLEET_SERVICES_MAX, sizeof *replicas, &e->n_replicas, &rc, err);
    for (size_t i = 0; rc == 0 && i < e->n_aliases; i++)
        rc = read_name(c, json_at(json_get(v, "aliases"), i), FLEET_MODEL_NAME_MAX, &aliases[i], err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < e->n_replicas; i++) {
        uint64_t at;
        if (!json_u64(json_at(json_get(v, "replicas"), i), &at) || at >= c->n_replicas)
            return bad(err, "an endpoint names a replica that is not there");
        replicas[i] = (uint32_t)at;
    }
    if (json_count(v) != 4)
        return bad(err, "an endpoint is not complete");
    e->aliases = aliases;
    e->replicas = replicas;
    json_add_string(&text, str_of(e->name));
    e->quoted = buf_status(&text) == 0 ? arena_dup(c->arena, buf_str(&text)) : NULL;
    e->candidates = arena_alloc(c->arena, e->n_replicas, sizeof(struct sched_replica *));
    e->ways = arena_alloc(c->arena, e->n_replicas, sizeof *e->ways);
    e->group = arena_alloc(c->arena, 1, sizeof *e->group);
    return e->quoted && e->group && (e->n_replicas == 0 || (e->candidates && e->ways)) ? 0 : err_nomem(err);
}

/* None: the names that are known here. */
static int read_headers(struct proxy_config *c, json_val v, struct err *err)
{
    int rc = 0;
    size_t n = 0;
    const char **names = read_array(c, v, "headers", FLEET_HEADERS_MAX, sizeof *names, &n, &rc, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_name(c, json_at(json_get(v, "headers"), i), FLEET_NAME_MAX, &names[i], err);
    c->names = n ? (struct place_names){names, n} : place_names_default;
    return rc;
}

static int read_cors(struct proxy_config *c, json_val v, struct err *err)
{
    int rc = 0;
    const char **origins = read_array(c, v, "cors", FLEET_SERVICES_MAX, sizeof *origins, &c->n_cors, &rc, err);
    for (size_t i = 0; rc == 0 && i < c->n_cors; i++)
        rc = read_name(c, json_at(json_get(v, "cors"), i), PROXY_WHY_MAX, &origins[i], err);
    c->cors = origins;
    return rc;
}

/* None: the defaults. */
static int read_bodies(struct proxy_config *c, json_val v, struct err *err)
{
    c->bodies = FLEET_BODIES_DEFAULT;
    if (!v)
        return 0;
    struct fleet_bodies *b = &c->bodies;
    if (json_count(v) != 4 || !json_u64(json_get(v, "max"), &b->max_bytes) || b->max_bytes > FLEET_BODY_MAX || !json_u64(json_get(v, "spill"), &b->spill_bytes) ||
        !json_u64(json_get(v, "memory"), &b->memory_bytes) || !json_u64(json_get(v, "disk"), &b->disk_bytes))
        return bad(err, "the limits of bodies are not complete");
    return 0;
}

static int read_config(struct proxy_config *c, json_val root, struct err *err)
{
    json_val v = json_get(root, "config");
    json_val keyed = json_get(v, "keyed"), cors = json_get(v, "cors"), bodies = json_get(v, "bodies");
    if (json_count(root) != 1 || json_count(v) != 3 + (size_t)(keyed != NULL) + (size_t)(cors != NULL) + (size_t)(bodies != NULL) || (keyed && !json_bool(keyed, &c->keyed)))
        return bad(err, "it is no object \"config\" with replicas, endpoints and headers");
    int rc = read_bodies(c, bodies, err);
    if (rc < 0)
        return rc;
    c->replicas = read_array(c, v, "replicas", FLEET_SERVICES_MAX, sizeof *c->replicas, &c->n_replicas, &rc, err);
    if (rc == 0)
        c->endpoints = read_array(c, v, "endpoints", FLEET_SERVICES_MAX, sizeof *c->endpoints, &c->n_endpoints, &rc, err);
    for (size_t i = 0; rc == 0 && i < c->n_replicas; i++)
        rc = read_replica(c, json_at(json_get(v, "replicas"), i), &c->replicas[i], err);
    for (size_t i = 0; rc == 0 && i < c->n_endpoints; i++)
        rc = read_endpoint(c, json_at(json_get(v, "endpoints"), i), &c->endpoints[i], err);
    if (rc == 0)
        rc = read_headers(c, v, err);
    return rc < 0 || !cors ? rc : read_cors(c, v, err);
}

int proxy_config_parse(struct str text, struct proxy_config **ret, struct err *err)
{
    struct json *j;
    int rc = json_parse(text, &j, err);
    if (rc < 0)
        return rc == -ENOMEM ? rc : (err_prefix(err, "the router's configuration is malformed"), -EBADMSG);
    struct proxy_config *c = calloc(1, sizeof *c);
    if (c)
        c->arena = arena_new(CONFIG_ARENA_MAX);
    if (!c || !c->arena) {
        free(c);
        json_free(j);
        return err_nomem(err);
    }
    c->refs = 1;
    rc = read_config(c, json_root(j), err);
    json_free(j);
    if (rc < 0) {
        proxy_config_unref(c);
        return rc;
    }
    *ret = c;
    return 0;
}

/* ---- life and look-ups ------------------------------------------------------------------------------------------ */

struct proxy_config *proxy_config_ref(struct proxy_config *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

struct proxy_config *proxy_config_unref(struct proxy_config *c)
{
    if (c && atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        free(c->peers);
        c->arena = arena_free(c->arena);
        free(c);
    }
    return NULL;
}

const struct proxy_endpoint *proxy_config_find(const struct proxy_config *c, struct str model)
{
    for (size_t i = 0; i < c->n_endpoints; i++) {
        const struct proxy_endpoint *e = &c->endpoints[i];
        if (str_eq_c(model, e->name))
            return e;
        for (size_t k = 0; k < e->n_aliases; k++)
            if (str_eq_c(model, e->aliases[k]))
                return e;
    }
    return NULL;
}

bool proxy_config_any_ready(const struct proxy_config *c)
{
    for (size_t i = 0; i < c->n_replicas; i++)
        if ((c->replicas[i].ready && c->replicas[i].resolved) || c->replicas[i].startable)
            return true;
    return false;
}
