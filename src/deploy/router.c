/* SPDX-License-Identifier: MIT
 *
 * The fleet's router as a unit of its host: `berth route` on a copy of the fleet file, which only a deploy replaces. Another fleet file is read by the router that runs; another build of berth takes its place in the same process: neither
 * drops a stream. Its unit's text has nothing in it that changes with either, so that it is started again as good as never.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "deploy_int.h"

#define TELL_MS 60000u /* a router that reads its file or is replaced answers within seconds */
#define UP_MS 20000u   /* until one that was started accepts */
#define STEP_MS 100

/* ---- what is wanted ---------------------------------------------------------------------------------------------- */

/* A file's text; "" when there is none, NULL on failure. */
static const char *text_of(struct deploy *d, const char *path, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(DEPLOY_FILE_MAX);
    int r = path ? os_read_file(AT_FDCWD, path, &text, err) : err_nomem(err);
    if (r < 0 && r != -ENOENT)
        return NULL;
    const char *kept = r < 0 || !text.len ? "" : arena_dup(d->arena, buf_str(&text));
    if (!kept)
        (void)err_nomem(err);
    return kept;
}

static int read_files(struct deploy *d, struct deploy_router_unit *f, struct err *err)
{
    const char *old_lock = arena_printf(d->arena, "%s/fleet.lock", f->folder);
    if (!old_lock)
        return err_nomem(err);
    f->old_yaml = text_of(d, f->file, err);
    f->old_lock = f->old_yaml ? text_of(d, old_lock, err) : NULL;
    return f->old_lock ? 0 : -EIO;
}

int deploy_front_open(struct deploy *d, struct err *err)
{
    const struct fleet_router *o = &d->fleet->router;
    struct deploy_router_unit f = {0};
    struct err why;
    char name[UNIT_NAME_MAX];
    base_autobuf struct buf text = BUF_INIT(UNIT_TEXT_MAX);
    if (o->unit != FLEET_SYSTEMD || o->host != d->host)
        return 0;
    f.unit = arena_dup(d->arena, str_of(unit_name(d->fleet->name, "router", name)));
    f.path = arena_printf(d->arena, "%s/%s", d->unit_dir, name);
    f.folder = arena_printf(d->arena, "%s/router", d->folder);
    f.file = f.folder ? arena_printf(d->arena, "%s/fleet.yaml", f.folder) : NULL;
    const char *berth = arena_printf(d->arena, "%s/bin/berth", d->dirs->state);
    if (!f.unit || !f.path || !f.file || !berth)
        return err_nomem(err);
    if (read_files(d, &f, &why) < 0)
        return err_set(err, why.code, "%s", why.text);
    const char *const start[] = {berth, "route", "--host", d->host->name, "-f", f.file, NULL}, *const reload[] = {berth, "reload", "-f", f.file, NULL};
    const struct unit_router in = {.fleet = d->fleet->name, .scope = d->host->scope, .start = start, .reload = reload};
    int r = unit_render_router(&in, &text, err);
    if (r == 0 && !(f.text = arena_dup(d->arena, buf_str(&text))))
        r = err_nomem(err);
    if (r == 0)
        d->front = f;
    return r;
}

/* ---- what is there ------------------------------------------------------------------------------------------------ */

/* Whether a process runs from the very file that this one runs from; of a copy that a deploy brought that is its loader, in a folder of its own for each build. */
static bool is_same_build(pid_t pid)
{
    char theirs[64];
    struct stat a, b;
    snprintf(theirs, sizeof theirs, "/proc/%d/exe", (int)pid);
    return pid > 0 && stat(theirs, &a) == 0 && stat("/proc/self/exe", &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int deploy_front_plan(struct deploy *d, bool interrupted, struct deploy_item *item, struct err *err)
{
    struct deploy_router_unit *f = &d->front;
    struct deploy_unit u = {0};
    *item = (struct deploy_item){.service = "router", .unit = f->unit, .path = f->path, .old_path = f->path, .text = f->text, .diff = "", .router = true};
    int r = deploy_read_own(d, f->path, "router", &item->old_text, err);
    if (r == 0)
        r = deploy_show(d, f->unit, &u, err);
    if (r < 0)
        return r;
    bool other_file = strcmp(d->yaml, f->old_yaml) != 0 || strcmp(d->lock, f->old_lock) != 0;
    item->was_active = u.active || u.activating;
    f->other_build = item->was_active && !is_same_build(u.pid);
    if (!item->old_text) {
        item->action = DEPLOY_INSTALL;
        item->reason = "not installed";
    } else if (strcmp(item->old_text, f->text) != 0) {
        item->action = DEPLOY_CHANGE;
        item->reason = "its unit changed";
    } else if (!item->was_active) {
        item->action = DEPLOY_START;
        item->reason = "it does not run";
    } else if (other_file || f->other_build) {
        item->action = DEPLOY_RELOAD;
        item->reason = !other_file ? "another build of berth" : f->other_build ? "fleet file changed, and another build of berth" : "fleet file changed";
    } else {
        item->action = interrupted ? DEPLOY_PROVE : DEPLOY_KEEP;
        item->reason = interrupted ? "an earlier deploy did not come to its proof" : "as declared";
    }
    return 0;
}

/* Files that it reads beside the fleet file are the host's: a copy elsewhere must still find them. */
static int gate_file(const struct deploy *d, const char *path, const char *key, struct err *err)
{
    size_t n = strlen(d->fleet->dir);
    if (!path)
        return 0;
    if (strncmp(path, d->fleet->dir, n) == 0 && path[n] == '/')
        return err_set(err, -EINVAL, "'%s' must be an absolute path: the router runs from a copy of the fleet file", key);
    return access(path, R_OK) < 0 ? err_sys(err, -errno, "'%s' needs '%s' on host '%s'", key, path, d->host->name) : 0;
}

/* The router shows each engine its key, from the same path as that engine's host. */
static int gate_engine_keys(const struct deploy *d, struct err *err)
{
    char key[FLEET_KEY_MAX + 1];
    int r = 0;
    for (size_t i = 0; r == 0 && i < d->fleet->n_services; i++)
        if (d->fleet->services[i].key && (r = fleet_key_read(d->fleet->services[i].key, key, err)) < 0)
            (void)err_prefix(err, "the router needs the key of service '%s' on host '%s'", d->fleet->services[i].name, d->host->name);
    explicit_bzero(key, sizeof key);
    return r;
}

int deploy_front_gate(struct deploy *d, const struct deploy_item *item, struct err *err)
{
    const struct fleet_router *o = &d->fleet->router;
    struct os_owner owner;
    int r = deploy_self(d, err); /* systemd looks whether the program is there */
    if (r == 0)
        r = deploy_gate_text(d, item->path, item->text, UNIT_SERVICE, err);
    if (r == 0)
        r = gate_file(d, o->keys_file, "keys-file", err);
    if (r == 0)
        r = gate_file(d, o->certificate, "certificate", err);
    if (r == 0)
        r = gate_file(d, o->key, "key", err);
    if (r == 0)
        r = gate_engine_keys(d, err);
    if (r == 0 && !o->socket && o->port && os_port_owner(o->port, &owner) == 0 && owner.pid > 0 && !deploy_belongs(owner.pid, item->unit))
        r = run_port_taken(o->port, "the router", err);
    return r;
}

/* ---- telling it ----------------------------------------------------------------------------------------------------- */

/* This host's berth with these words; what it says is in err. */
static int berth(struct deploy *d, const char *verb, const char *option, struct buf *out, struct err *err)
{
    base_autobuf struct buf program = BUF_INIT(DEPLOY_PATH_MAX), none = BUF_INIT(65536);
    buf_addf(&program, "%s/bin/berth", d->dirs->state);
    if (buf_status(&program) < 0)
        return err_nomem(err);
    const char *const argv[] = {program.ptr, verb, "-f", d->front.file, option, NULL};
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ};
    int r = os_run_ok(&s, TELL_MS, out ? out : &none, err);
    return r < 0 ? err_prefix(err, "'berth %s'", verb) : 0;
}

static int put_files(struct deploy *d, const char *yaml, const char *lock, struct err *err)
{
    int r = os_make_dirs(d->front.folder, 0755, err);
    if (r < 0)
        return r;
    os_autoclose int fd = os_open_dir(d->front.folder, err);
    if (fd < 0)
        return fd;
    if (*lock)
        r = os_write_atomic(fd, "fleet.lock", lock, strlen(lock), 0644, err);
    else if (unlinkat(fd, "fleet.lock", 0) < 0 && errno != ENOENT)
        r = err_sys(err, -errno, "cannot remove '%s/fleet.lock'", d->front.folder);
    return r == 0 ? os_write_atomic(fd, "fleet.yaml", yaml, strlen(yaml), 0644, err) : r;
}

/* ---- proof ------------------------------------------------------------------------------------------------------------ */

/* Over its control socket, which says "0 done". */
static bool accepts(struct deploy *d)
{
    base_autobuf struct buf out = BUF_INIT(65536);
    return berth(d, "_router", "state", &out, NULL) == 0 && str_starts(buf_str(&out), STR("0 "));
}

static int wait_accepting(struct deploy *d, const struct deploy_item *i, struct err *err)
{
    struct deploy_unit u;
    for (unsigned waited = 0; !accepts(d); waited += STEP_MS) {
        const struct timespec t = {.tv_nsec = STEP_MS * 1000000L};
        int r = deploy_show(d, i->unit, &u, err);
        if (r < 0)
            return r;
        if (deploy_stop_asked())
            return err_set(err, -EINTR, "interrupted");
        if (waited >= UP_MS || (!u.active && !u.activating))
            return err_set(err, -EIO, "it does not accept; 'journalctl -u %s' says why", i->unit);
        (void)nanosleep(&t, NULL);
    }
    return 0;
}

static int prove(struct deploy *d, const struct deploy_item *i, struct err *err)
{
    const struct fleet_router *o = &d->fleet->router;
    struct os_owner owner;
    event_say(d->sink, EVENT_INFO, i->service, "is being proven");
    int r = wait_accepting(d, i, err);
    if (r < 0)
        return r;
    if (o->socket || !o->port || os_port_owner(o->port, &owner) < 0 || owner.pid <= 0 || deploy_belongs(owner.pid, i->unit))
        return 0;
    return err_set(err, -EADDRINUSE, "what answers on port %u is %s (pid %d), which is not of unit '%s'", o->port, owner.name, (int)owner.pid, i->unit);
}

/* ---- forth and back ----------------------------------------------------------------------------------------------------- */

static int restart(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err)
{
    int r = 0;
    if (i->was_active)
        r = deploy_stop_unit(d, i->unit, err);
    if (r == 0)
        r = deploy_install(d, i, stamp, err);
    return r == 0 ? deploy_start_unit(d, i->unit, err) : r;
}

int deploy_front_bring(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err)
{
    int r = 0;
    if (i->action == DEPLOY_PROVE)
        return prove(d, i, err);
    event_say(d->sink, EVENT_INFO, i->service, "%s: %s", deploy_action_text(i->action), i->reason);
    r = put_files(d, d->yaml, d->lock, err);
    if (r == 0)
        r = i->action == DEPLOY_RELOAD ? berth(d, "reload", NULL, NULL, err) : restart(d, i, stamp, err);
    if (r == 0 && i->action == DEPLOY_RELOAD && d->front.other_build) {
        r = wait_accepting(d, i, err); /* a new address is served in a moment, and only then another build can take over */
        if (r == 0)
            r = berth(d, "upgrade", NULL, NULL, err);
    }
    return r == 0 ? prove(d, i, err) : r;
}

int deploy_front_restore(struct deploy *d, const struct deploy_item *i, struct err *err)
{
    if (!*d->front.old_yaml)
        return 0;
    event_say(d->sink, EVENT_WARN, i->service, "the fleet file before is read again");
    int r = put_files(d, d->front.old_yaml, d->front.old_lock, err);
    return r == 0 && i->action == DEPLOY_RELOAD ? berth(d, "reload", NULL, NULL, err) : r;
}
