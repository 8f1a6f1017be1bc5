/* SPDX-License-Identifier: MIT
 *
 * Opening a deploy: everything that can be known without touching the machine. A unit's text must change when, and only when, something that the engine gets changes: a template is named by its content, a locked model by
 * its commit, a runtime by its digest.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "deploy_int.h"

int deploy_find_folders(struct deploy *d, struct err *err)
{
    d->folder = arena_printf(d->arena, "%s/fleets/%s", d->dirs->state, d->fleet->name);
    if (d->host->scope == FLEET_SYSTEM) {
        d->unit_dir = "/etc/systemd/system";
        d->quadlet_dir = "/etc/containers/systemd";
    } else {
        /* beside berth's own folder: $XDG_CONFIG_HOME */
        int n = (int)(strrchr(d->dirs->config, '/') - d->dirs->config);
        d->unit_dir = arena_printf(d->arena, "%.*s/systemd/user", n, d->dirs->config);
        d->quadlet_dir = arena_printf(d->arena, "%.*s/containers/systemd", n, d->dirs->config);
    }
    return d->folder && d->unit_dir && d->quadlet_dir ? 0 : err_nomem(err);
}

static int make_folder(struct deploy *d, struct err *err)
{
    if (d->host->scope == FLEET_SYSTEM && geteuid() != 0)
        return err_set(err, -EPERM, "host '%s' has 'scope: system', which takes root: deploy as root, or say 'scope: user'", d->host->name);
    return os_make_dirs(d->folder, 0755, err);
}

int deploy_find_host(struct deploy *d, const char *name, struct err *err)
{
    d->host = fleet_host_here(d->fleet);
    if (d->host)
        return 0;
    return name ? err_set(err, -ENOENT, "fleet '%s' has no host '%s'; 'hosts' of the fleet file lists them", d->fleet->name, name) : err_set(err, -ENOENT, "every host of fleet '%s' has 'ssh': name one, or leave 'ssh' out of the one that is this machine", d->fleet->name);
}

/* What systemd runs before it ends an engine: waits until the engine rests. The path is always the same, so that another berth is no other unit; a failure of it holds nothing up. */
static int stop_command(struct deploy *d, const struct fleet_service *s, struct unit_input *in, struct err *err)
{
    const char **words = arena_alloc(d->arena, 7, sizeof *words);
    if (!words)
        return err_nomem(err);
    /* systemd shows credentials to the engine alone, and its account cannot read the file itself: who asks with a key is the manager's own account */
    words[0] = arena_printf(d->arena, "-%s%s/bin/berth", s->key && s->unit != FLEET_QUADLET ? "+" : "", d->dirs->state);
    words[1] = "_drain";
    words[2] = s->runtime->engine;
    words[3] = s->bind;
    words[4] = arena_printf(d->arena, "%u", s->port);
    in->stop = words;
    in->n_stop = 5;
    if (s->key)
        words[in->n_stop++] = s->key;
    return words[0] && words[4] ? 0 : err_nomem(err);
}

static int name_files(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    char file[UNIT_NAME_MAX], unit[UNIT_NAME_MAX], base[UNIT_NAME_MAX];
    const char *dir = w->form == UNIT_CONTAINER ? d->quadlet_dir : d->unit_dir;
    w->unit = arena_dup(d->arena, str_of(unit_name(d->fleet->name, w->name, unit)));
    w->path = arena_printf(d->arena, "%s/%s", dir, unit_file(d->fleet->name, w->name, w->form, file));
    if (w->form == UNIT_CONTAINER && !(w->health_path = arena_printf(d->arena, "%s/%s.health", dir, unit_base(d->fleet->name, w->name, base))))
        return err_nomem(err);
    return w->unit && w->path ? 0 : err_nomem(err);
}

static int text_of(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(UNIT_TEXT_MAX), health = BUF_INIT(65536);
    struct unit_input in;
    int r = run_unit_input(d->store, d->fleet->name, &w->service, &w->runtime, d->arena, &in, &w->paths, err);
    if (r == 0)
        r = stop_command(d, &w->service, &in, err);
    if (r == 0)
        r = unit_render(&in, &text, err);
    if (r == 0 && in.form == UNIT_CONTAINER)
        r = unit_render_health(&in, &health, err);
    if (r < 0)
        return r;
    w->text = arena_dup(d->arena, buf_str(&text));
    w->health = in.form == UNIT_CONTAINER ? arena_dup(d->arena, buf_str(&health)) : NULL;
    return w->text && (w->health || in.form != UNIT_CONTAINER) ? 0 : err_nomem(err);
}

/* A deploy fetches what is pinned. */
static bool is_to_fetch(const struct deploy *d, const struct fleet_model *m)
{
    uint64_t bytes;
    return m && m->source != FLEET_MODEL_FILE && fleet_lock_of(d->fleet, m) && store_payload_check(d->store, m, &bytes, NULL) < 0;
}

static int want(struct deploy *d, const struct fleet_service *s, bool only_plan, struct deploy_wanted *w, struct err *err)
{
    *w = (struct deploy_wanted){.service = *s, .name = s->name, .form = s->unit == FLEET_QUADLET ? UNIT_CONTAINER : UNIT_SERVICE};
    int r = name_files(d, w, err);
    if (r == 0 && w->form == UNIT_SERVICE)
        r = store_runtime_find(d->store, s->runtime, &w->runtime, err);
    if (r == -ENOENT && only_plan && (s->runtime->source == FLEET_SOURCE_DEBIAN || s->runtime->source == FLEET_SOURCE_SYSTEM)) {
        w->lacks = arena_printf(d->arena, "runtime '%s' is not installed there, and is made first", s->runtime->name);
        return w->lacks ? 0 : err_nomem(err);
    }
    if (r == 0 && only_plan && is_to_fetch(d, s->model)) {
        w->lacks = arena_printf(d->arena, "files of model '%s' are not there, and are fetched first", s->model->name);
        return w->lacks ? 0 : err_nomem(err);
    }
    if (r == 0 && s->model) {
        w->model = *s->model;
        w->service.model = &w->model;
        if (s->model->template_file)
            r = deploy_store_file(d, s->model->template_file, &w->model.template_file, err);
    }
    if (r == 0)
        r = text_of(d, w, err);
    return r < 0 ? err_prefix(err, "service '%s'", s->name) : 0;
}

static int want_all(struct deploy *d, bool only_plan, struct err *err)
{
    d->wanted = arena_alloc(d->arena, d->fleet->n_services + 1, sizeof *d->wanted);
    if (!d->wanted)
        return err_nomem(err);
    for (size_t i = 0; i < d->fleet->n_services; i++) {
        const struct fleet_service *s = &d->fleet->services[i];
        if (s->host != d->host || s->unit == FLEET_CHILD)
            continue;
        int r = want(d, s, only_plan, &d->wanted[d->n_wanted++], err);
        if (r < 0)
            return r;
    }
    return 0;
}

int deploy_open(const struct deploy_options *o, const struct os_dirs *dirs, struct deploy **ret, struct err *err)
{
    struct arena *arena = arena_new(DEPLOY_MEMORY);
    struct deploy *d = arena ? arena_alloc(arena, 1, sizeof *d) : NULL;
    if (!d) {
        arena_free(arena);
        return err_nomem(err);
    }
    *d = (struct deploy){.dirs = dirs, .sink = o->sink, .who = o->who, .prove_collectives = o->prove_collectives, .router = o->router, .arena = arena, .lock_fd = -1};
    struct fleet_options options = engine_fleet_options();
    options.here = o->host;
    options.dir = o->dir ? arena_dup(arena, str_of(o->dir)) : deploy_version_dir(arena, o->fleet_path);
    int r = deploy_read_fleet(d, o->fleet_path, err);
    if (r == 0)
        r = fleet_load(o->fleet_path, &options, &d->fleet, err);
    if (r == 0)
        d->dir = options.dir ? options.dir : d->fleet->dir;
    if (r == 0)
        r = deploy_find_host(d, o->host, err);
    if (r == 0)
        r = deploy_find_folders(d, err);
    if (r == 0)
        r = make_folder(d, err);
    if (r == 0)
        r = store_open(dirs, &d->store, err);
    if (r == 0)
        r = want_all(d, o->only_plan, err);
    if (r == 0)
        r = deploy_front_open(d, err);
    if (r < 0)
        deploy_free(d);
    else
        *ret = d;
    return r;
}

struct deploy *deploy_free(struct deploy *d)
{
    if (!d)
        return NULL;
    for (size_t i = 0; i < d->n_wanted; i++)
        store_runtime_release(&d->wanted[i].runtime);
    os_closep(&d->lock_fd);
    store_free(d->store);
    fleet_free(d->fleet);
    arena_free(d->arena);
    return NULL;
}

const struct fleet_host *deploy_host(const struct deploy *d)
{
    return d->host;
}

/* Whether a fleet file has a host; what is wrong with the file is said by who opens it. */
static bool knows_host(const char *path, const char *host)
{
    struct fleet_options options = engine_fleet_options();
    struct fleet *f = NULL;
    if (fleet_load(path, &options, &f, NULL) < 0)
        return true;
    bool knows = fleet_host_find(f, host) != NULL;
    fleet_free(f);
    return knows;
}

int deploy_open_then(const struct deploy *d, const char *what, struct deploy **ret, struct err *err)
{
    struct deploy_options o = {.fleet_path = what, .dir = d->dir, .host = d->host->name, .only_plan = true, .sink = d->sink};
    base_autobuf struct buf kept = BUF_INIT(DEPLOY_PATH_MAX);
    uint64_t n;
    int r = 0;
    if (str_to_u64(str_of(what), &n) == 0) {
        r = deploy_version_kept(d, n, &kept, err);
        o.fleet_path = kept.ptr;
    }
    if (r < 0)
        return r;
    if (!knows_host(o.fleet_path, o.host)) {
        *ret = NULL;
        return 0;
    }
    r = deploy_open(&o, d->dirs, ret, err);
    return r < 0 ? err_prefix(err, "what was declared at '%s'", what) : 0;
}
