/* SPDX-License-Identifier: MIT
 *
 * Contracts about units of this machine: what systemd or Podman says of each text that would be installed, and what is installed already: whose it is, and whether it is still declared. The folders are those that a deploy
 * writes to; each file is read once.
 */
#include "check_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <run/run.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNIT_FILES_MAX 4096 /* with our prefix in one folder */

/* ---- what is installed ------------------------------------------------------------------------------------------- */

/* The value behind --port on a line that starts an engine. */
static struct str port_in(struct str text)
{
    ptrdiff_t at = str_find(text, STR(" --port "));
    if (at < 0)
        return STR("");
    struct str s = {text.ptr + at + 8, text.len - (size_t)at - 8};
    size_t n = 0;
    while (n < s.len && s.ptr[n] >= '0' && s.ptr[n] <= '9')
        n++;
    return (struct str){s.ptr, n};
}

static int take_unit(struct check_run *c, const char *dir, const char *name, size_t *cap)
{
    base_autobuf struct buf text = BUF_INIT(UNIT_TEXT_MAX);
    struct unit_owner o = {.fleet = {NULL, 0}};
    struct str n = str_of(name);
    if (!str_starts(n, STR("berth-")) || (!str_ends(n, STR(".service")) && !str_ends(n, STR(".container"))))
        return 0;
    const char *path = arena_printf(c->a, "%s/%s", dir, name);
    struct check_unit *list = c->n_units < UNIT_FILES_MAX ? arena_grow(c->a, (void *)(uintptr_t)c->units, c->n_units + 1, cap, sizeof *list) : NULL;
    if (!path || !list)
        return err_nomem(c->err);
    c->units = list;
    /* what cannot be read, a link to nowhere among it, is not berth's */
    bool ours = os_read_file(AT_FDCWD, path, &text, NULL) == 0 && unit_owner_parse(buf_str(&text), &o);
    struct str port = ours ? port_in(buf_str(&text)) : STR("");
    struct check_unit u = {.path = path, .name = arena_dup(c->a, n), .fleet = ours ? arena_dup(c->a, o.fleet) : NULL, .service = ours ? arena_dup(c->a, o.service) : NULL, .port = port.len ? arena_dup(c->a, port) : NULL};
    if (!u.name || (ours && (!u.fleet || !u.service)) || (port.len && !u.port))
        return err_nomem(c->err);
    list[c->n_units++] = u;
    return 0;
}

static int take_folder(struct check_run *c, const char *dir, size_t *cap)
{
    DIR *list = dir ? opendir(dir) : NULL;
    const struct dirent *e;
    int r = dir ? 0 : err_nomem(c->err);
    while (list && r == 0 && (e = readdir(list)))
        r = take_unit(c, dir, e->d_name, cap);
    if (list)
        closedir(list);
    return r;
}

int check_want_units(struct check_run *c)
{
    const struct fleet_host *h = fleet_host_here(c->f);
    size_t cap = 0;
    if (c->units_read || !h || !c->o->dirs)
        return 0;
    c->units_read = true;
    if (h->scope == FLEET_SYSTEM) {
        int r = take_folder(c, "/etc/systemd/system", &cap);
        return r < 0 ? r : take_folder(c, "/etc/containers/systemd", &cap);
    }
    /* beside berth's own folder: $XDG_CONFIG_HOME */
    const char *slash = strrchr(c->o->dirs->config, '/');
    int n = (int)(slash - c->o->dirs->config);
    int r = take_folder(c, arena_printf(c->a, "%.*s/systemd/user", n, c->o->dirs->config), &cap);
    return r < 0 ? r : take_folder(c, arena_printf(c->a, "%.*s/containers/systemd", n, c->o->dirs->config), &cap);
}

static const char *file_of(const struct fleet *f, const struct fleet_service *s, char out[UNIT_NAME_MAX])
{
    return unit_file(f->name, s->name, s->unit == FLEET_QUADLET ? UNIT_CONTAINER : UNIT_SERVICE, out);
}

static bool is_unit_here(const struct fleet_service *s)
{
    return check_is_here(s->host) && s->unit != FLEET_CHILD;
}

/* ---- names ------------------------------------------------------------------------------------------------------------ */

static int judge_name(struct check_run *c, const struct fleet_service *s)
{
    const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos);
    char name[UNIT_NAME_MAX];
    file_of(c->f, s, name);
    for (size_t i = 0; i < c->n_units; i++) {
        const struct check_unit *u = &c->units[i];
        if (strcmp(u->name, name) != 0)
            continue;
        if (!u->fleet)
            return check_found(c, CHECK_BROKEN, subject, at, "'%s' has its name and was not written by berth", u->path);
        if (strcmp(u->fleet, c->f->name) != 0 || strcmp(u->service, s->name) != 0)
            return check_found(c, CHECK_BROKEN, subject, at, "'%s' has its name and is of service '%s' of fleet '%s'", u->path, u->service, u->fleet);
        return check_found(c, CHECK_HOLDS, subject, at, "%s is its own", name);
    }
    return check_found(c, CHECK_HOLDS, subject, at, "%s is free", name);
}

int check_names(struct check_run *c)
{
    int r = check_want_units(c);
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos);
        if (is_unit_here(s))
            r = judge_name(c, s);
        else if (s->unit != FLEET_CHILD)
            r = check_found(c, CHECK_UNPROVEN, subject, at, "a unit of host '%s'", s->host->name);
        else
            r = check_found(c, CHECK_NONE, subject, at, "a child of 'berth up'");
    }
    return r;
}

/* ---- what nobody declares --------------------------------------------------------------------------------------------- */

int check_deployed(struct check_run *c)
{
    int r = check_want_units(c);
    size_t ours = 0;
    bool broken = false;
    for (size_t i = 0; r == 0 && i < c->n_units; i++) {
        const struct check_unit *u = &c->units[i];
        if (!u->fleet || strcmp(u->fleet, c->f->name) != 0)
            continue;
        const struct fleet_service *s = fleet_service_find(c->f, u->service);
        char name[UNIT_NAME_MAX] = "";
        ours++;
        if (s && is_unit_here(s) && strcmp(u->name, file_of(c->f, s, name)) == 0)
            continue;
        broken = true;
        r = check_found(c, CHECK_BROKEN, check_subject(c, "unit", u->name), u->path, !s ? "no service '%s' is declared" : check_is_here(s->host) ? "service '%s' is declared as another form of unit" : "service '%s' is declared for another host", u->service);
    }
    if (r < 0 || broken)
        return r;
    const struct fleet_host *h = fleet_host_here(c->f);
    const char *subject = h ? check_subject(c, "host", h->name) : check_subject(c, "fleet", c->f->name);
    if (!h || !c->units_read)
        return check_found(c, CHECK_UNPROVEN, subject, NULL, "this machine is no host of the fleet");
    return check_found(c, ours ? CHECK_HOLDS : CHECK_NONE, subject, check_at(c, h->pos), ours ? "%zu unit%s, all declared" : "nothing is deployed here", ours, ours == 1 ? "" : "s");
}

/* ---- the texts that would be installed ----------------------------------------------------------------------------------- */

struct texts {
    char folder[32];
    int fd;
};

static int write_unit(struct check_run *c, struct texts *t, const struct fleet_service *s, const char **ret_path, struct err *err)
{
    struct check_runtime *known = &c->plan->state->runtimes[s->runtime - c->f->runtimes];
    struct unit_input in;
    base_autobuf struct buf text = BUF_INIT(UNIT_TEXT_MAX);
    char name[UNIT_NAME_MAX];
    int r = run_unit_input(c->s, c->f->name, s, &known->found, c->a, &in, NULL, err);
    if (r == 0)
        r = unit_render(&in, &text, err);
    if (r == 0)
        r = os_write_atomic(t->fd, file_of(c->f, s, name), text.ptr, text.len, 0644, err);
    if (r < 0)
        return r;
    *ret_path = arena_printf(c->a, "%s/%s", t->folder, name);
    return *ret_path ? 0 : err_nomem(err);
}

static int judge_unit(struct check_run *c, struct texts *t, const struct fleet_service *s, const char *subject, const char *at)
{
    const struct check_runtime *known = &c->plan->state->runtimes[s->runtime - c->f->runtimes];
    const char *path = NULL;
    struct err err;
    if (s->unit == FLEET_SYSTEMD && !known->installed)
        return check_found(c, CHECK_UNPROVEN, subject, at, "its runtime is not installed here: a unit names its files");
    const char *const *argv;
    size_t n;
    if (check_command(c, s, &argv, &n, &err) == -EINVAL)
        return check_found(c, CHECK_NONE, subject, at, "its command line cannot be made: see contract argv");
    int r = write_unit(c, t, s, &path, &err);
    if (r == -ENOENT)
        return check_found(c, CHECK_NONE, subject, at, "its model's files are not here: see contract payload");
    if (r == 0)
        r = run_unit_verify(path, s->unit == FLEET_QUADLET ? UNIT_CONTAINER : UNIT_SERVICE, s->host->scope, &err);
    if (r == -ENOMEM)
        return err_nomem(c->err);
    if (r == -ENOENT)
        return check_found(c, CHECK_UNPROVEN, subject, at, "%s", err.text);
    return r < 0 ? check_found(c, CHECK_BROKEN, subject, at, "%s", err.text) : check_found(c, CHECK_HOLDS, subject, at, s->unit == FLEET_QUADLET ? "Podman takes it" : "systemd takes it");
}

static int each_unit(struct check_run *c, struct texts *t)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos);
        if (is_unit_here(s))
            r = judge_unit(c, t, s, subject, at);
        else
            r = check_found(c, s->unit == FLEET_CHILD ? CHECK_NONE : CHECK_UNPROVEN, subject, at, s->unit == FLEET_CHILD ? "a child of 'berth up'" : "a unit of another host");
    }
    return r;
}

int check_unit_text(struct check_run *c)
{
    struct texts t = {.folder = "/tmp/berth-units-XXXXXX", .fd = -1};
    int r = check_want_plan(c);
    if (r < 0)
        return r;
    if (!mkdtemp(t.folder))
        return err_sys(c->err, -errno, "cannot make a folder below /tmp");
    os_interrupt_begin();
    t.fd = os_open_dir(t.folder, c->err);
    r = t.fd < 0 ? t.fd : each_unit(c, &t);
    os_closep(&t.fd);
    base_ignore(os_remove_path(t.folder, NULL)); /* it is below /tmp */
    os_interrupt_end();
    return r;
}
