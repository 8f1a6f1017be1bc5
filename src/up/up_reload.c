/* SPDX-License-Identifier: MIT
 *
 * Reading the fleet file again while the fleet is up: parse, compare, swap. All that can fail comes first; then the new configuration is in force at once for everything that is the router's
 * (endpoints, aliases, policies, keys, certificate, listening address), services that are new are started, those that are gone are taken out of the router, drained and stopped. One whose process
 * would be another runs on as it is, and is pending until its next restart.
 *
 * A reading of the file lives as long as something runs as it declares.
 */
#include <errno.h>
#include <unistd.h>

#include "up_int.h"

/* ---- readings ------------------------------------------------------------------------------------------- */

int up_fleet_load_text(struct str text, const char *path, const char *host, struct up_fleet **ret, struct err *err)
{
    struct fleet_options fo = engine_fleet_options();
    fo.here = host;
    struct up_fleet *of = calloc(1, sizeof(*of));
    if (!of)
        return err_nomem(err);
    of->refs = 1;
    int rc = text.ptr ? fleet_load_text(text, path, &fo, &of->f, err) : fleet_load(path, &fo, &of->f, err);
    if (rc < 0)
        free(of);
    else
        *ret = of;
    return rc;
}

int up_fleet_load(const char *path, const char *host, struct up_fleet **ret, struct err *err)
{
    return up_fleet_load_text((struct str){0}, path, host, ret, err);
}

struct up_fleet *up_fleet_ref(struct up_fleet *of)
{
    of->refs++;
    return of;
}

struct up_fleet *up_fleet_unref(struct up_fleet *of)
{
    if (of && --of->refs == 0) {
        of->f = fleet_free(of->f);
        free(of);
    }
    return NULL;
}

/* ---- services ------------------------------------------------------------------------------------------- */

int up_service_add(struct up *u, const struct fleet_service *service, struct up_service **ret, struct err *err)
{
    struct up_service **all = realloc(u->services, (u->n_services + 1) * sizeof(struct up_service *));
    if (!all)
        return err_nomem(err);
    u->services = all;
    struct up_service *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err);
    *s = (struct up_service){.up = u, .service = service, .of = up_fleet_ref(u->of)};
    u->services[u->n_services++] = s;
    *ret = s;
    return 0;
}

void up_service_free(struct up_service *s)
{
    struct up *u = s->up;
    size_t at = 0;
    while (at < u->n_services && u->services[at] != s)
        at++;
    if (at < u->n_services) {
        memmove(&u->services[at], &u->services[at + 1], (u->n_services - at - 1) * sizeof(struct up_service *));
        u->n_services--;
    }
    up_demand_leave(s);
    s->run = run_free(s->run);
    s->of = up_fleet_unref(s->of);
    s->run_of = up_fleet_unref(s->run_of);
    free(s);
}

bool up_service_pending(const struct up_service *s)
{
    return !s->removed && s->run && run_service_of(s->run)->declared_hash != s->service->declared_hash;
}

int up_service_renew(struct up_service *s, struct err *err)
{
    if (run_service_of(s->run) == s->service)
        return 0;
    int rc = run_declare(s->run, s->service, &s->runtime->installed, s->runtime->confine, err);
    if (rc < 0)
        return rc;
    up_fleet_unref(s->run_of);
    s->run_of = up_fleet_ref(s->of);
    return 0;
}

static void sweep(void *ctx)
{
    struct up *u = ctx;
    for (size_t i = u->n_services; i-- > 0;) {
        struct up_service *s = u->services[i];
        struct run_info info;
        if (!s->removed)
            continue;
        run_info(s->run, &info);
        if (info.state == RUN_FAILED)
            run_stop(s->run, 0);
        else if (info.state == RUN_ABSENT)
            up_service_free(s);
    }
    up_record(u);
}

void up_reload_gone(struct up *u)
{
    net_timer_start(u->reload.sweep, 0, 0); /* not within the callback of the one that goes */
}

/* ---- what changes ------------------------------------------------------------------------------------------ */

/* A reading that is not in force yet, and all that it needs. */
struct change {
    struct up *u;
    struct up_fleet *of;
    struct fleet *f;
    const struct up_runtime *runtimes[FLEET_SERVICES_MAX]; /* of f's services that run here */
    bool rebind, replace, rekey; /* other sockets; another worker; another certificate */
    int fds[FLEET_ROUTER_LOOPS_MAX];
    size_t n_fds;
    struct net_addr addr;
    struct proxy_pair pair;
    struct up_keys_read keys;
};

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static int check_fleet(const struct change *c, struct err *err)
{
    const struct up *u = c->u;
    size_t n = u->n_services;
    if (!same(c->f->name, u->fleet->name))
        return err_set(err, -EINVAL, "its name is '%s' and the fleet that is up is '%s'; 'berth down' that one first", c->f->name, u->fleet->name);
    if (up_routes(u, c->f) != u->router.wanted)
        return err_set(err, -EINVAL, "the router moves to another host, which takes a start of the fleet: 'berth down', 'berth up'");
    for (size_t i = 0; i < c->f->n_services; i++)
        n += up_starts(u, &c->f->services[i]) && !up_service_named(c->u, str_of(c->f->services[i].name));
    return n <= FLEET_SERVICES_MAX ? 0 : err_set(err, -E2BIG, "with those that are still being stopped there would be more than %d services", FLEET_SERVICES_MAX);
}

static int check_services(struct change *c, struct err *err)
{
    struct up *u = c->u;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        uint64_t bytes;
        if (!up_starts(u, s))
            continue;
        rc = up_runtime_of(u, s->runtime, &c->runtimes[i], err);
        if (rc == -ENOENT)
            return err_set(err, rc, "runtime '%s' of service '%s' is not installed; 'berth runtime add' does that", s->runtime->name, s->name);
        const struct up_service *known = up_service_named(u, str_of(s->name));
        bool fresh = !known || known->service->declared_hash != s->declared_hash;
        if (rc == 0 && fresh && s->model && store_payload_check(u->store, s->model, &bytes, err) < 0)
            rc = err_prefix(err, "service '%s'", s->name);
        if (rc == 0 && known && known->removed)
            rc = err_set(err, -EAGAIN, "service '%s' is still being stopped; try again when it is gone", s->name);
    }
    return rc;
}

static bool same_pair(const struct proxy_pair *a, const struct proxy_pair *b)
{
    return str_eq(buf_str(&a->key), buf_str(&b->key)) && str_eq(buf_str(&a->certificate), buf_str(&b->certificate));
}

/* Whether both listen at the same sockets. */
static bool same_place(const struct fleet_router *a, const struct fleet_router *b)
{
    return a->loops == b->loops && a->port == b->port && same(a->address, b->address) && same(a->socket, b->socket) && same(a->group, b->group);
}

static int check_router(struct change *c, struct err *err)
{
    const struct up *u = c->u;
    const struct fleet_router *old = &u->fleet->router, *new = &c->f->router;
    if (!u->router.wanted)
        return 0;
    int rc = proxy_tls_read(c->f, &c->pair, err);
    if (rc == 0)
        rc = up_keys_read(c->u, c->f->router.keys_file, &c->keys, err);
    if (rc < 0)
        return rc;
    bool had = u->router.pair.key.len > 0, has = c->pair.key.len > 0;
    c->rekey = has && had && !same_pair(&c->pair, &u->router.pair);
    c->rebind = !u->router.passed && !same_place(old, new);
    c->replace = c->rebind || had != has;
    if (c->replace && !up_router_accepts(u))
        return err_set(err, -EAGAIN, "the router is not serving just now, and its address is to change");
    if (!c->rebind)
        return 0;
    rc = proxy_bind(c->f, c->fds, &c->addr, err);
    if (rc < 0)
        return rc;
    c->n_fds = (size_t)rc;
    return 0;
}

/* ---- the swap ------------------------------------------------------------------------------------------------- */

static void put_names(struct json_out *o, const char *key, const struct up *u, bool (*wanted)(const struct up_service *s))
{
    json_out_arr(o, key);
    for (size_t i = 0; i < u->n_services; i++)
        if (wanted(u->services[i]))
            json_out_cstr(o, NULL, u->services[i]->service->name);
    json_out_end(o);
}

static bool is_new(const struct up_service *s)
{
    return s->fresh;
}

static bool is_removed(const struct up_service *s)
{
    return s->removed;
}

static int report(const struct up *u, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_u64(o, "reloads", u->reload.done);
    put_names(o, "started", u, is_new);
    put_names(o, "removed", u, is_removed);
    put_names(o, "pending", u, up_service_pending);
    json_out_end(o);
    int rc = json_out_finish(o, false, out);
    json_out_free(o);
    return rc;
}

/* A service that goes on: as it is now declared from its next start on, which is now when it does not run. */
static void keep(struct change *c, struct up_service *s, const struct fleet_service *declared, const struct up_runtime *runtime)
{
    struct run_info info;
    run_info(s->run, &info);
    s->fresh = up_on_demand(s) && declared->start != FLEET_ON_DEMAND && (info.state == RUN_ABSENT || info.state == RUN_FAILED);
    up_fleet_unref(s->of);
    s->of = up_fleet_ref(c->of);
    s->service = declared;
    s->runtime = runtime;
}

/* Services of the new reading get their places. -ENOMEM: some may have them already, and go again. */
static int add_new(struct change *c, struct err *err)
{
    struct up *u = c->u;
    struct up_fleet *old = u->of;
    int rc = 0;
    u->of = c->of; /* whose services they are */
    for (size_t i = 0; rc == 0 && i < c->f->n_services; i++) {
        struct up_service *s;
        if (!up_starts(u, &c->f->services[i]) || up_service_named(u, str_of(c->f->services[i].name)))
            continue;
        rc = up_service_add(u, &c->f->services[i], &s, err);
        if (rc < 0)
            break;
        s->runtime = c->runtimes[i];
        s->fresh = true;
        rc = up_service_run(s, err);
    }
    u->of = old;
    for (size_t i = u->n_services; rc < 0 && i-- > 0;)
        if (is_new(u->services[i]))
            up_service_free(u->services[i]);
    return rc;
}

static void swap(struct change *c)
{
    struct up *u = c->u;
    for (size_t i = 0; i < u->n_services; i++) {
        struct up_service *s = u->services[i];
        const struct fleet_service *declared = fleet_service_find(c->f, s->service->name);
        if (s->removed || is_new(s))
            continue;
        if (declared && up_starts(u, declared))
            keep(c, s, declared, c->runtimes[declared - c->f->services]);
        else
            s->removed = true;
    }
    up_fleet_unref(u->of);
    u->of = up_fleet_ref(c->of);
    u->fleet = c->f;
}

static void swap_router(struct change *c)
{
    struct up *u = c->u;
    struct up_router *r = &u->router;
    struct proxy_pair pair = r->pair;
    struct err err;
    r->pair = c->pair;
    c->pair = pair;
    up_keys_take(u, &c->keys);
    up_keys_follow(u);
    if (c->rebind) {
        up_router_rebind(u, c->fds, c->n_fds, &c->addr);
        c->n_fds = 0;
    }
    if (c->rekey)
        up_router_tell_pair(u);
    up_router_tell_keys(u); /* before the configuration that asks for them */
    up_router_tell(u);
    if (c->replace && up_router_replace(u, &err) < 0)
        up_say(u, EVENT_ERROR, "router", "%s", err.text);
}

/* Starts what is new or did not run and is declared otherwise now, stops what is gone. */
static void begin(struct up *u)
{
    struct err err;
    for (size_t i = 0; i < u->n_services; i++) {
        struct up_service *s = u->services[i];
        struct run_info info = {0};
        bool start = s->fresh || up_service_pending(s);
        s->fresh = false;
        run_info(s->run, &info);
        bool idle = info.state == RUN_ABSENT || info.state == RUN_FAILED;
        if (s->removed) {
            run_stop(s->run, RUN_DRAIN_MS);
            up_reload_gone(u);
        } else if (idle && start && !up_on_demand(s)) {
            if (up_service_renew(s, &err) < 0 || run_start(s->run, &err) < 0)
                up_say_service(u, EVENT_ERROR, s->service, "%s", err.text);
        }
    }
}

static int apply(struct change *c, struct buf *out, struct err *err)
{
    struct up *u = c->u;
    int rc = check_fleet(c, err);
    if (rc == 0)
        rc = check_services(c, err);
    if (rc == 0)
        rc = check_router(c, err);
    if (rc == 0)
        rc = add_new(c, err);
    if (rc < 0)
        return rc;
    swap(c);
    u->reload.done++;
    rc = report(u, out);
    if (up_watch_begin(u, err) < 0)
        up_say(u, EVENT_ERROR, "reload", "services of others are not asked for their health: out of memory");
    if (up_demand_renew(u, err) < 0)
        return err ? err->code : -ENOMEM;
    swap_router(c);
    begin(u);
    up_demand_begin(u);
    up_record(u);
    return rc < 0 ? err_nomem(err) : 0;
}

int up_reload(struct up *u, struct buf *out, struct err *err)
{
    struct err why = {0};
    int rc = up_may_change(u, err);
    if (rc < 0)
        return rc;
    struct change *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err);
    c->u = u;
    base_ignore(os_notify_reloading());
    if (!u->reload.sweep)
        u->reload.sweep = net_timer_new(u->loop, sweep, u);
    rc = u->reload.sweep ? up_fleet_load(u->o->fleet_path, u->o->host, &c->of, &why) : err_nomem(&why);
    if (rc == 0) {
        c->f = c->of->f;
        rc = apply(c, out, &why);
    }
    buf_clear(&u->reload.error);
    if (rc < 0) {
        buf_add_c(&u->reload.error, why.text);
        up_say(u, EVENT_ERROR, "reload", "%s; the configuration before it stays in force", why.text);
        err_set(err, rc, "%s", why.text);
    } else {
        up_say(u, EVENT_INFO, "reload", "%s is in force", u->fleet->file);
    }
    up_manager_tell(u, "READY=1\n");
    while (c->n_fds > 0)
        (void)close(c->fds[--c->n_fds]);
    proxy_pair_release(&c->pair);
    buf_release(&c->keys.text);
    up_fleet_unref(c->of);
    free(c);
    return rc;
}

void up_reload_release(struct up *u)
{
    if (u->loop)
        u->reload.sweep = net_timer_close(u->reload.sweep);
    buf_release(&u->reload.error);
}
