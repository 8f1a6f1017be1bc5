/* SPDX-License-Identifier: MIT
 *
 * The status of a fleet as JSON. The same shape whether the fleet is up or down, so that whoever reads it needs one
 * way; what is not known is null. cmd_status.c documents it for people.
 */
#include <errno.h>
#include <unistd.h>

#include "up_int.h"

static void put_pid(struct json_out *o, const char *key, pid_t pid)
{
    if (pid > 0)
        json_out_u64(o, key, (uint64_t)pid);
    else
        json_out_null(o, key);
}

static const struct up_service *find(const struct up *u, const struct fleet_service *s)
{
    for (size_t i = 0; u && i < u->n_services; i++)
        if (u->services[i]->service == s)
            return u->services[i];
    return NULL;
}

/* us NULL: nothing of ours runs it. */
static void put_service(struct json_out *o, struct up *u, const struct fleet_service *s, const struct up_service *us)
{
    struct run_info info, *i = NULL;
    const char *runtime = us && us->runtime ? us->runtime->installed.id : NULL;
    if (us && us->run) {
        run_info(us->run, &info);
        i = &info;
        s = run_service_of(us->run); /* what it is, which may not be what is declared by now */
    }
    const char *why = NULL, *seen = u && !us ? up_watch_text(u, s, &why) : NULL;
    const char *absent = seen ? seen : fleet_service_local(s) ? "down" : "elsewhere";
    bool alive = i && i->pid > 0;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", s->name);
    bool idle = i && up_demand_idle(us) && (i->state == RUN_ABSENT || i->state == RUN_FAILED);
    json_out_cstr(o, "state", idle ? "idle" : i ? run_state_text(i->state) : absent);
    json_out_bool(o, "on_demand", s->start == FLEET_ON_DEMAND);
    json_out_bool(o, "drained", us ? us->drained : u && up_watch_drained(u, s));
    put_pid(o, "pid", i ? i->pid : 0);
    json_out_cstr(o, "bind", s->bind);
    json_out_u64(o, "port", s->port);
    json_out_cstr(o, "model", s->model ? s->model->name : NULL);
    json_out_cstr(o, "runtime", runtime);
    json_out_cstr(o, "confined_by", alive ? i->confine : NULL);
    if (i && (i->state == RUN_READY || i->state == RUN_DRAINING))
        json_out_u64(o, "uptime_ms", net_loop_now_ms(u->loop) - i->since_ms);
    else
        json_out_null(o, "uptime_ms");
    if (i && i->took_ms > 0)
        json_out_u64(o, "start_ms", i->took_ms);
    else
        json_out_null(o, "start_ms");
    json_out_u64(o, "starts", i ? i->generation : 0);
    json_out_u64(o, "restarts", i ? i->restarts : 0);
    if (alive) {
        json_out_u64(o, "memory_bytes", i->mem.rss_bytes);
        json_out_u64(o, "memory_anon_bytes", i->mem.rss_anon_bytes);
        json_out_u64(o, "swap_bytes", i->mem.swap_bytes);
    } else {
        json_out_null(o, "memory_bytes");
        json_out_null(o, "memory_anon_bytes");
        json_out_null(o, "swap_bytes");
    }
    json_out_cstr(o, "log", i ? i->log_path : NULL);
    json_out_cstr(o, "step", i ? i->step : NULL);
    json_out_cstr(o, "error", i ? i->error : why);
    json_out_cstr(o, "pending", !us ? NULL : us->removed ? "removal" : up_service_pending(us) ? "restart" : NULL);
    json_out_end(o);
}

static const char *router_state(const struct up *u)
{
    if (!u->router.wanted)
        return "elsewhere";
    if (u->router.draining)
        return up_router_alive(u) ? "draining" : "down";
    return up_router_accepts(u) ? "up" : u->phase == UP_STARTING ? "waiting" : "starting";
}

/* Workers that finish what they have while another one serves. */
static uint64_t leaving(const struct up *u)
{
    uint64_t n = 0;
    for (const struct up_worker *w = u ? u->router.workers : NULL; w; w = w->next)
        n += w->leaving;
    return n;
}

static void put_router(struct json_out *o, const struct up *u, const struct fleet *f)
{
    struct net_addr a = {0};
    char url[PROXY_URL_TEXT];
    bool known = u && u->router.wanted;
    if (known)
        a = u->router.addr;
    else
        known = proxy_address(f, &a, NULL) == 0 && (a.unix_path || a.port != 0);
    (void)proxy_url(f, &a, url);
    json_out_obj(o, "router");
    json_out_cstr(o, "state", u ? router_state(u) : "down");
    put_pid(o, "pid", u && u->router.workers ? u->router.workers->proc.pid : 0);
    json_out_cstr(o, "url", known ? url : NULL);
    char admin[NET_ADDR_TEXT + 16], text[NET_ADDR_TEXT];
    snprintf(admin, sizeof(admin), "http://%s", u && u->control.admin.host[0] ? net_addr_text(&u->control.admin, text) : "");
    json_out_cstr(o, "admin", u && u->control.admin.host[0] ? admin : NULL);
    json_out_u64(o, "restarts", u ? u->router.restarts : 0);
    struct proxy_stats stats = {0};
    if (u)
        up_router_stats(u, &stats);
    json_out_u64(o, "requests", stats.requests);
    json_out_u64(o, "retries", stats.retries);
    json_out_u64(o, "errors", stats.errors);
    json_out_u64(o, "active", stats.active);
    json_out_u64(o, "leaving", leaving(u));
    json_out_u64(o, "working_set_tokens", stats.working_set);
    json_out_u64(o, "capacity_tokens", stats.capacity);
    json_out_u64(o, "conversations", stats.conversations);
    json_out_u64(o, "slots", stats.slots);
    json_out_bool(o, "crowded", stats.crowded);
    json_out_end(o);
}

static void put_endpoints(struct json_out *o, const struct fleet *f)
{
    json_out_arr(o, "endpoints");
    for (size_t i = 0; i < f->n_endpoints; i++) {
        const struct fleet_endpoint *e = &f->endpoints[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "name", e->name);
        json_out_arr(o, "aliases");
        for (size_t k = 0; k < e->n_aliases; k++)
            json_out_cstr(o, NULL, e->aliases[k]);
        json_out_end(o);
        json_out_arr(o, "services");
        for (size_t k = 0; k < e->n_services; k++)
            json_out_cstr(o, NULL, e->services[k]->name);
        json_out_end(o);
        json_out_end(o);
    }
    json_out_end(o);
}

int up_status_text(struct up *u, const struct fleet *f, struct buf *out)
{
    static const char *const phases[] = {"starting", "up", "stopping"};
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_cstr(o, "fleet", f->name);
    json_out_cstr(o, "state", u ? phases[u->phase] : "down");
    put_pid(o, "pid", u ? getpid() : 0);
    if (u)
        json_out_u64(o, "uptime_ms", net_loop_now_ms(u->loop) - u->began_ms);
    else
        json_out_null(o, "uptime_ms");
    json_out_arr(o, "services");
    for (size_t i = 0; i < f->n_services; i++) {
        put_service(o, u, &f->services[i], find(u, &f->services[i]));
    }
    for (size_t i = 0; u && i < u->n_services; i++)
        if (u->services[i]->removed)
            put_service(o, u, u->services[i]->service, u->services[i]);
    json_out_end(o);
    json_out_cstr(o, "version", u ? BERTH_VERSION : NULL);
    json_out_u64(o, "upgrades", u ? u->upgrade.done : 0);
    json_out_cstr(o, "upgrade_error", u && u->upgrade.error.len ? u->upgrade.error.ptr : NULL);
    json_out_u64(o, "reloads", u ? u->reload.done : 0);
    json_out_cstr(o, "reload_error", u && u->reload.error.len ? u->reload.error.ptr : NULL);
    put_router(o, u, f);
    put_endpoints(o, f);
    json_out_end(o);
    int rc = json_out_finish(o, false, out);
    json_out_free(o);
    return rc;
}

int up_status_down(const struct fleet *f, struct buf *ret)
{
    return up_status_text(NULL, f, ret);
}
