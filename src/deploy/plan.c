/* SPDX-License-Identifier: MIT
 *
 * The plan: each unit that is wanted against its file, what systemd has loaded and what runs; and each file of ours that is not wanted. Nothing is remembered from the deploy before, so a file that somebody changed by hand, or
 * that a killed deploy left, shows as what it is. What a service declares to serve is in no file of its own: it is compared with the version in force, which was proven.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "deploy_int.h"

const char *deploy_action_text(enum deploy_action a)
{
    static const char *const texts[] = {[DEPLOY_KEEP] = "keep", [DEPLOY_PROVE] = "prove", [DEPLOY_START] = "start", [DEPLOY_CHANGE] = "change", [DEPLOY_INSTALL] = "install", [DEPLOY_RETIRE] = "retire", [DEPLOY_RELOAD] = "reload"};
    return texts[a];
}

size_t deploy_plan_todo(const struct deploy_plan *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        n += p->items[i].action != DEPLOY_KEEP;
    return n;
}

/* ---- what is installed --------------------------------------------------------------------------------------------- */

int deploy_read_own(struct deploy *d, const char *path, const char *service, const char **ret, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(DEPLOY_FILE_MAX);
    struct unit_owner o;
    struct stat st;
    *ret = NULL;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : err_sys(err, -errno, "cannot look at '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EEXIST, "'%s' is not a file of berth's: take it away, or rename service '%s'", path, service);
    int r = os_read_file(AT_FDCWD, path, &text, err);
    if (r < 0)
        return r;
    if (!unit_owner_parse(buf_str(&text), &o) || !str_eq_c(o.fleet, d->fleet->name))
        return err_set(err, -EEXIST, "'%s' was not written by berth for fleet '%s': take it away, or rename service '%s'", path, d->fleet->name, service);
    *ret = arena_dup(d->arena, buf_str(&text));
    return *ret ? 0 : err_nomem(err);
}

/* A unit of our name that systemd has from elsewhere. */
static int check_fragment(const struct deploy *d, const struct deploy_wanted *w, const struct deploy_unit *u, struct err *err)
{
    size_t n = strlen(u->fragment);
    bool of_generator = strstr(u->fragment, "/generator/") != NULL;
    if (n == 0 || str_eq_c(str_of(u->fragment), w->path) || (of_generator && w->form == UNIT_CONTAINER))
        return 0;
    /* its other form, which this deploy replaces */
    if (of_generator || str_starts(str_of(u->fragment), str_of(d->unit_dir)))
        return 0;
    return err_set(err, -EEXIST, "systemd has unit '%s' from '%s', which is not berth's: take it away, or rename service '%s'", w->unit, u->fragment, w->name);
}

bool deploy_older_than_file(const struct deploy_unit *u, const char *path)
{
    struct stat st;
    return u->since_s && stat(path, &st) == 0 && st.st_mtim.tv_sec > 0 && u->since_s < (uint64_t)st.st_mtim.tv_sec;
}

/* The fleet file of the version in force. NULL: there is none, or none that can be read. */
static struct fleet *load_in_force(const struct deploy *d)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    struct fleet_options o = engine_fleet_options();
    struct fleet *f = NULL;
    o.here = d->host->name;
    o.dir = d->dir;
    if (deploy_version_path(d->dirs, d->fleet->name, 0, &path, NULL) < 0 || fleet_load(path.ptr, &o, &f, NULL) < 0)
        return NULL;
    return f;
}

/* What runs as declared: whether it must be proven, and why. */
static void judge_proof(const struct deploy_wanted *w, const struct fleet *in_force, bool interrupted, struct deploy_item *item, struct buf *why)
{
    const struct fleet_service *was = in_force ? fleet_service_find(in_force, w->name) : NULL;
    item->action = DEPLOY_PROVE;
    if (interrupted) {
        buf_add_c(why, "a deploy before this one was broken off");
        return;
    }
    if (was)
        deploy_diff_serves(&was->serves, &w->service.serves, why);
    if (why->len) {
        buf_add_c(why, " changed");
        return;
    }
    item->action = DEPLOY_KEEP;
    buf_add_c(why, "as declared");
}

static int judge(struct deploy *d, const struct deploy_wanted *w, const struct deploy_unit *u, const struct fleet *in_force, bool interrupted, struct deploy_item *item, struct err *err)
{
    base_autobuf struct buf diff = BUF_INIT(DEPLOY_FILE_MAX), why = BUF_INIT(1024);
    const char *old_health = item->old_health ? item->old_health : "", *health = w->health ? w->health : "";
    if (!w->text) {
        item->action = item->old_text ? DEPLOY_CHANGE : DEPLOY_INSTALL;
        buf_add_c(&why, w->lacks);
    } else if (!item->old_text) {
        item->action = DEPLOY_INSTALL;
        buf_add_c(&why, "not installed");
    } else if (strcmp(item->old_text, w->text) != 0 || strcmp(old_health, health) != 0 || strcmp(item->old_path, w->path) != 0) {
        item->action = DEPLOY_CHANGE;
        deploy_diff(str_of(item->old_text), str_of(w->text), &diff, &why);
        if (why.len == 0)
            buf_add_c(&why, strcmp(item->old_path, w->path) != 0 ? "another form of unit" : strcmp(old_health, health) != 0 ? "health check" : "comment");
        buf_add_c(&why, " changed");
    } else if (u->stale || !u->loaded) {
        item->action = DEPLOY_START;
        buf_add_c(&why, "systemd has not read its file");
    } else if (!u->active) {
        item->action = DEPLOY_START;
        buf_add_c(&why, u->activating ? "starting over and over" : u->failed ? "failed" : "not running");
    } else if (deploy_older_than_file(u, w->path)) {
        item->action = DEPLOY_START;
        buf_add_c(&why, "its process is older than its file");
    } else {
        judge_proof(w, in_force, interrupted, item, &why);
    }
    item->reason = buf_status(&why) < 0 ? NULL : arena_dup(d->arena, buf_str(&why));
    item->diff = buf_status(&diff) < 0 ? NULL : arena_dup(d->arena, buf_str(&diff));
    return item->reason && item->diff ? 0 : err_nomem(err);
}

static int plan_wanted(struct deploy *d, const struct deploy_wanted *w, const struct deploy_unit *u, const struct fleet *in_force, bool interrupted, struct deploy_item *item, struct err *err)
{
    char file[UNIT_NAME_MAX];
    bool container = w->form == UNIT_CONTAINER;
    const char *other = arena_printf(d->arena, "%s/%s", container ? d->unit_dir : d->quadlet_dir, unit_file(d->fleet->name, w->name, container ? UNIT_SERVICE : UNIT_CONTAINER, file));
    *item = (struct deploy_item){.service = w->name, .unit = w->unit, .path = w->path, .declared = &w->service, .text = w->text, .health = w->health, .old_path = w->path};
    if (!other)
        return err_nomem(err);
    int r = deploy_read_own(d, w->path, w->name, &item->old_text, err);
    if (r == 0 && !item->old_text && (r = deploy_read_own(d, other, w->name, &item->old_text, err)) == 0 && item->old_text)
        item->old_path = other;
    if (r == 0 && w->health_path) {
        base_autobuf struct buf health = BUF_INIT(DEPLOY_FILE_MAX);
        int e = os_read_file(AT_FDCWD, w->health_path, &health, err);
        if (e == 0 && !(item->old_health = arena_dup(d->arena, buf_str(&health))))
            return err_nomem(err);
        r = e == -ENOENT ? 0 : e;
    }
    if (r == 0)
        r = check_fragment(d, w, u, err);
    if (r < 0)
        return r;
    item->was_active = u->active || u->activating;
    return judge(d, w, u, in_force, interrupted, item, err);
}

/* ---- what is to go --------------------------------------------------------------------------------------------------- */

static bool is_wanted(const struct deploy *d, const char *service)
{
    if (d->front.unit && strcmp(service, "router") == 0)
        return true;
    for (size_t i = 0; i < d->n_wanted; i++)
        if (strcmp(d->wanted[i].name, service) == 0)
            return true;
    return false;
}

/* A file in a folder of units: ours and not wanted? Then it is one more item. What cannot be read is not ours. */
static int consider(struct deploy *d, const char *dir, const char *name, struct deploy_plan *p, size_t *cap, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(DEPLOY_FILE_MAX);
    struct str n = str_of(name);
    struct unit_owner o;
    struct deploy_unit u;
    char unit[UNIT_NAME_MAX];
    if (!str_starts(n, STR("berth-")) || (!str_ends(n, STR(".service")) && !str_ends(n, STR(".container"))))
        return 0;
    const char *path = arena_printf(d->arena, "%s/%s", dir, name);
    if (!path)
        return err_nomem(err);
    if (os_read_file(AT_FDCWD, path, &text, NULL) < 0 || !unit_owner_parse(buf_str(&text), &o) || !str_eq_c(o.fleet, d->fleet->name) || !fleet_name_valid(o.service))
        return 0;
    const char *service = arena_dup(d->arena, o.service);
    if (!service)
        return err_nomem(err);
    if (is_wanted(d, service))
        return 0;
    unit_name(d->fleet->name, service, unit);
    int r = deploy_show(d, unit, &u, err);
    if (r < 0)
        return r;
    struct deploy_item *items = arena_grow(d->arena, p->items, p->n + 1, cap, sizeof *items);
    if (!items)
        return err_nomem(err);
    p->items = items;
    items[p->n] = (struct deploy_item){.action = DEPLOY_RETIRE, .service = service, .unit = arena_dup(d->arena, str_of(unit)), .path = path, .reason = "no longer declared", .diff = "", .old_path = path, .was_active = u.active || u.activating,
                                       .old_text = arena_dup(d->arena, buf_str(&text))};
    return items[p->n].unit && items[p->n++].old_text ? 0 : err_nomem(err);
}

static int plan_retired(struct deploy *d, const char *dir, struct deploy_plan *p, size_t *cap, struct err *err)
{
    DIR *list = opendir(dir);
    if (!list)
        return errno == ENOENT ? 0 : err_sys(err, -errno, "cannot look into '%s'", dir);
    const struct dirent *e;
    int r = 0;
    while (r == 0 && (e = readdir(list)))
        r = consider(d, dir, e->d_name, p, cap, err);
    closedir(list);
    return r;
}

/* What systemd knows of all wanted units; the caller frees. */
static int ask_manager(const struct deploy *d, struct deploy_unit **ret, struct err *err)
{
    struct deploy_unit *found = calloc(d->n_wanted + 1, sizeof *found);
    const char **units = arena_alloc(d->arena, d->n_wanted + 1, sizeof *units);
    int r = found && units ? 0 : err_nomem(err);
    for (size_t i = 0; r == 0 && i < d->n_wanted; i++)
        units[i] = d->wanted[i].unit;
    if (r == 0)
        r = deploy_show_many(d, units, d->n_wanted, found, err);
    if (r < 0)
        free(found);
    else
        *ret = found;
    return r;
}

int deploy_plan(struct deploy *d, struct deploy_plan *ret, struct err *err)
{
    size_t cap = d->n_wanted + 8;
    struct deploy_plan p = {.interrupted = deploy_marked(d), .items = arena_alloc(d->arena, cap, sizeof *p.items)};
    if (!p.items)
        return err_nomem(err);
    struct deploy_unit *units = NULL;
    int r = ask_manager(d, &units, err);
    struct fleet *in_force = load_in_force(d);
    for (size_t i = 0; r == 0 && i < d->n_wanted; i++)
        r = plan_wanted(d, &d->wanted[i], &units[i], in_force, p.interrupted, &p.items[p.n++], err);
    fleet_free(in_force);
    free(units);
    if (r == 0)
        r = plan_retired(d, d->unit_dir, &p, &cap, err);
    if (r == 0)
        r = plan_retired(d, d->quadlet_dir, &p, &cap, err);
    if (r == 0 && d->front.unit) {
        struct deploy_item *items = arena_grow(d->arena, p.items, p.n + 1, &cap, sizeof *items);
        if (!items)
            return err_nomem(err);
        p.items = items;
        r = deploy_front_plan(d, p.interrupted, &items[p.n++], err);
    }
    if (r == 0)
        *ret = p;
    return r;
}
