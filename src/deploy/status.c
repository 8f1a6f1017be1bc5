/* SPDX-License-Identifier: MIT
 *
 * What of a fleet is on this machine, for `berth status`: each unit as systemd has it, and whether the engine behind it answers, which systemd cannot know. Nothing is compared with what is wanted, which would take a plan;
 * only what shows by itself is said: a unit that is not there, one that is not ours, one whose process is older than its file.
 *
 * All engines are asked at the same time, each for ANSWER_MS at most, so that a host answers in well under a second.
 */
#include <conf/conf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <httpio/httpio.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "deploy_int.h"

#define ANSWER_MS 500
#define ANSWER_MAX ((size_t)64 << 10)

struct seen {
    const char *name, *unit;
    const struct fleet_service *declared; /* NULL: by its unit alone */
    struct deploy_unit u;
    const char *state, *pending;
    char why[DEPLOY_PATH_MAX + 128];
    bool asked, answers;
    struct httpio_fetch *fetch;
    struct round *round;
};
struct round {
    struct deploy d; /* of this machine; only what asking systemd takes */
    struct seen *list;
    size_t n, cap, waiting;
    struct net_loop *loop;
    struct httpio_client *client;
};

/* ---- units ------------------------------------------------------------------------------------------------------ */

static int add(struct round *r, const char *name, const struct fleet_service *declared, struct err *err)
{
    char unit[UNIT_NAME_MAX];
    struct seen *list = arena_grow(r->d.arena, r->list, r->n + 1, &r->cap, sizeof *list);
    if (!list)
        return err_nomem(err);
    r->list = list;
    struct seen *s = &list[r->n];
    *s = (struct seen){.name = arena_dup(r->d.arena, str_of(name)), .declared = declared, .unit = arena_dup(r->d.arena, str_of(unit_name(r->d.fleet->name, name, unit)))};
    if (!s->name || !s->unit)
        return err_nomem(err);
    r->n++;
    return 0;
}

static bool is_listed(const struct round *r, struct str name)
{
    for (size_t i = 0; i < r->n; i++)
        if (str_eq_c(name, r->list[i].name))
            return true;
    return false;
}

/* Units that carry the fleet's name in their second line and were not declared. */
static int add_undeclared(struct round *r, const char *dir, struct err *err)
{
    DIR *list = opendir(dir);
    const struct dirent *e;
    int rc = 0;
    while (rc == 0 && list && (e = readdir(list))) {
        struct str name = str_of(e->d_name);
        base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX), text = BUF_INIT(DEPLOY_FILE_MAX);
        struct unit_owner o;
        char service[FLEET_NAME_MAX + 1];
        if (!str_starts(name, STR("berth-")) || (!str_ends(name, STR(".service")) && !str_ends(name, STR(".container"))))
            continue;
        buf_addf(&path, "%s/%s", dir, e->d_name);
        if (buf_status(&path) < 0 || os_read_file(AT_FDCWD, path.ptr, &text, NULL) < 0 || !unit_owner_parse(buf_str(&text), &o) || !str_eq_c(o.fleet, r->d.fleet->name) || !fleet_name_valid(o.service) || is_listed(r, o.service))
            continue;
        /* the router is no service */
        if (str_eq_c(o.service, "router") && r->d.fleet->router.unit == FLEET_SYSTEMD && r->d.fleet->router.host == r->d.host)
            continue;
        snprintf(service, sizeof service, STR_FMT, STR_ARG(o.service));
        rc = add(r, service, NULL, err);
    }
    if (list)
        closedir(list);
    return rc;
}

/* A file of ours, a file of somebody else, or none. */
static const char *find_file(struct round *r, const struct seen *s, bool *ret_ours)
{
    const char *const dirs[] = {r->d.unit_dir, r->d.quadlet_dir};
    for (size_t i = 0; i < BASE_COUNT(dirs); i++) {
        char file[UNIT_NAME_MAX];
        base_autobuf struct buf text = BUF_INIT(DEPLOY_FILE_MAX);
        struct unit_owner o;
        const char *path = arena_printf(r->d.arena, "%s/%s", dirs[i], unit_file(r->d.fleet->name, s->name, i == 0 ? UNIT_SERVICE : UNIT_CONTAINER, file));
        if (!path || access(path, F_OK) < 0)
            continue;
        *ret_ours = os_read_file(AT_FDCWD, path, &text, NULL) == 0 && unit_owner_parse(buf_str(&text), &o) && str_eq_c(o.fleet, r->d.fleet->name);
        return path;
    }
    return NULL;
}

static void judge_unit(struct round *r, struct seen *s)
{
    bool ours = true;
    const char *path = find_file(r, s, &ours);
    if (!path && !s->u.loaded) {
        s->state = "absent";
        snprintf(s->why, sizeof s->why, "not installed: 'berth deploy' installs it");
    } else if (!ours || (!path && *s->u.fragment && !s->u.active)) {
        s->state = "foreign";
        snprintf(s->why, sizeof s->why, "'%s' was not written by berth", path ? path : s->u.fragment);
    } else if (s->u.failed) {
        s->state = "failed";
        snprintf(s->why, sizeof s->why, "its process ended; 'journalctl%s -u %s' has its last words", r->d.host->scope == FLEET_USER ? " --user" : "", s->unit);
    } else if (s->u.activating) {
        s->state = s->u.restarts ? "restarting" : "starting";
        if (s->u.restarts)
            snprintf(s->why, sizeof s->why, "it ends and is started again, %llu times by now; 'journalctl%s -u %s' says why", (unsigned long long)s->u.restarts, r->d.host->scope == FLEET_USER ? " --user" : "", s->unit);
    } else if (!s->u.active) {
        s->state = "stopped";
        snprintf(s->why, sizeof s->why, "installed and not running: 'berth deploy' starts it");
    } else {
        s->state = "loading"; /* until its engine answers */
        if (s->u.stale || (path && deploy_older_than_file(&s->u, path)))
            s->pending = "restart";
    }
}

/* ---- engines ------------------------------------------------------------------------------------------------------ */

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct seen *s = ctx;
    (void)body;
    s->fetch = NULL;
    s->answers = status == 200;
    if (status == 0)
        snprintf(s->why, sizeof s->why, "health: %s", failed->text);
    else if (status != 200)
        snprintf(s->why, sizeof s->why, "health: status %u", status);
    if (--s->round->waiting == 0)
        net_loop_stop(s->round->loop);
}

/* An address that an engine on this machine is reached by: a wildcard is no destination. */
static const char *reached_by(const char *bind)
{
    return strcmp(bind, "0.0.0.0") == 0 ? "127.0.0.1" : strcmp(bind, "::") == 0 ? "::1" : bind;
}

static int ask_engines(struct round *r, struct err *err)
{
    int rc = net_loop_new(&r->loop, err);
    if (rc < 0)
        return rc;
    if (!(r->client = httpio_client_new(r->loop, &HTTPIO_CLIENT_DEFAULT)))
        return err_nomem(err);
    for (size_t i = 0; i < r->n; i++) {
        struct seen *s = &r->list[i];
        struct httpio_request q = {.method = STR("GET"), .fresh = true};
        const char *path = s->declared && strcmp(s->state, "loading") == 0 ? engine_health_path(s->declared) : NULL;
        if (!path || net_addr_ip(reached_by(s->declared->bind), s->declared->port, &q.addr) < 0)
            continue;
        q.target = str_of(path);
        s->round = r;
        s->asked = true;
        if (!(s->fetch = httpio_fetch(r->client, &q, ANSWER_MAX, ANSWER_MS, answered, s)))
            return err_nomem(err);
        r->waiting++;
    }
    if (r->waiting)
        net_loop_run(r->loop);
    return 0;
}

/* What answers must be the unit's own process, where the kernel shows whose it is. */
static void judge_engine(struct seen *s)
{
    struct os_owner o;
    if (strcmp(s->state, "loading") != 0)
        return;
    if (!s->asked || !s->answers) {
        s->state = s->asked ? "loading" : "up";
        return;
    }
    s->state = "ready";
    if (os_port_owner(s->declared->port, &o) == 0 && o.pid > 0 && !deploy_belongs(o.pid, s->unit)) {
        s->state = "foreign";
        snprintf(s->why, sizeof s->why, "what answers on port %u is %s (pid %d), which is not of unit '%s'", s->declared->port, o.name, (int)o.pid, s->unit);
    }
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

static void put_number(struct json_out *o, const char *key, uint64_t n)
{
    if (n)
        json_out_u64(o, key, n);
    else
        json_out_null(o, key);
}

static void put(struct json_out *o, const struct seen *s)
{
    struct os_mem mem = {0};
    bool runs = s->u.active && s->u.pid > 0;
    uint64_t now_us = clk_system.mono_us(clk_system.ctx), since_us = s->u.since_mono_us;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", s->name);
    json_out_cstr(o, "unit", s->unit);
    json_out_cstr(o, "state", s->state);
    put_number(o, "pid", runs ? (uint64_t)s->u.pid : 0);
    put_number(o, "uptime_ms", runs && since_us && since_us <= now_us ? (now_us - since_us) / 1000 : 0);
    json_out_u64(o, "restarts", s->u.restarts);
    put_number(o, "memory_bytes", runs && os_proc_mem(s->u.pid, &mem) == 0 ? mem.rss_bytes : 0);
    json_out_bool(o, "enabled", s->u.enabled);
    json_out_cstr(o, "error", strcmp(s->state, "ready") != 0 && *s->why ? s->why : NULL);
    json_out_cstr(o, "pending", !s->declared ? "removal" : s->pending);
    json_out_end(o);
}

static int ask_manager(struct round *r, struct err *err)
{
    const char **units = arena_alloc(r->d.arena, r->n + 1, sizeof *units);
    struct deploy_unit *found = calloc(r->n + 1, sizeof *found);
    struct err why;
    int rc = units && found ? 0 : err_nomem(err);
    for (size_t i = 0; rc == 0 && i < r->n; i++)
        units[i] = r->list[i].unit;
    int asked = rc == 0 ? deploy_show_many(&r->d, units, r->n, found, &why) : rc;
    for (size_t i = 0; rc == 0 && i < r->n; i++) {
        struct seen *s = &r->list[i];
        s->u = found[i];
        if (asked == 0) {
            judge_unit(r, s);
            continue;
        }
        s->state = "unknown";
        snprintf(s->why, sizeof s->why, "%s", why.text);
    }
    free(found);
    return rc;
}

static int list_units(struct round *r, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < r->d.fleet->n_services; i++) {
        const struct fleet_service *s = &r->d.fleet->services[i];
        if (s->host == r->d.host && s->unit != FLEET_CHILD)
            rc = add(r, s->name, s, err);
    }
    if (rc == 0)
        rc = add_undeclared(r, r->d.unit_dir, err);
    if (rc == 0)
        rc = add_undeclared(r, r->d.quadlet_dir, err);
    return rc == 0 ? ask_manager(r, err) : rc;
}

static int write_round(const struct round *r, struct buf *ret, struct err *err)
{
    struct json_out *o = json_out_new();
    if (!o)
        return err_nomem(err);
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", r->d.host->name);
    put_number(o, "version", deploy_version_current(r->d.folder));
    json_out_bool(o, "deploying", deploy_marked(&r->d));
    json_out_arr(o, "units");
    for (size_t i = 0; i < r->n; i++)
        put(o, &r->list[i]);
    json_out_end(o);
    json_out_end(o);
    int rc = json_out_finish(o, false, ret);
    json_out_free(o);
    return rc < 0 ? err_nomem(err) : 0;
}

int deploy_status(const char *fleet_path, const char *host, const struct os_dirs *dirs, struct buf *ret, struct err *err)
{
    struct round r = {.d = {.dirs = dirs, .arena = arena_new(DEPLOY_MEMORY), .lock_fd = -1}};
    struct fleet_options options = engine_fleet_options();
    options.here = host;
    int rc = r.d.arena ? fleet_load(fleet_path, &options, &r.d.fleet, err) : err_nomem(err);
    if (rc == 0)
        rc = deploy_find_host(&r.d, host, err);
    if (rc == 0)
        rc = deploy_find_folders(&r.d, err);
    if (rc == 0)
        rc = list_units(&r, err);
    if (rc == 0)
        rc = ask_engines(&r, err);
    r.client = httpio_client_free(r.client);
    r.loop = net_loop_free(r.loop);
    for (size_t i = 0; rc == 0 && i < r.n; i++)
        judge_engine(&r.list[i]);
    if (rc == 0)
        rc = write_round(&r, ret, err);
    fleet_free(r.d.fleet);
    arena_free(r.d.arena);
    return rc;
}
