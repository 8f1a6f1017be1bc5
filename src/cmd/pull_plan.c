/* SPDX-License-Identifier: MIT
 *
 * What berth pull has to fetch: the files that models name, compared with what the lock (or, without one, the hub) says they are, and with what is on this machine.
 */
#include "pull_int.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define SUBJECT_COLUMNS 44 /* of a file's name: the end of a long one tells parts of a set apart */

struct planning {
    struct pull_session *s;
    struct pull_plan *p;
    const struct fleet_model *m;
    const struct fleet_lock_model *known; /* of the lock or the hub; NULL: nothing is known of a plain server's files */
    bool locked;
};

static const char *subject_of(struct arena *a, const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *name = slash ? slash + 1 : file;
    size_t len = strlen(name);
    if (len <= SUBJECT_COLUMNS)
        return arena_dup(a, str_of(name));
    return arena_printf(a, "...%s", name + len - (SUBJECT_COLUMNS - 3));
}

/* One file, or one fragment of one. */
static int add_item(struct planning *g, const char *role, const char *file, const struct fleet_lock_file *want, const char *joined, struct err *err)
{
    struct pull_plan *p = g->p;
    struct arena *a = g->s->arena;
    base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
    int r = store_payload_path(g->s->store, g->m, file, &path, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->items[i].path, path.ptr) == 0)
            return 0; /* another model has it too */
    struct pull_item *list = arena_grow(a, p->items, p->n + 1, &p->cap, sizeof *list);
    if (!list)
        return err_nomem(err);
    p->items = list;
    struct pull_item *i = &list[p->n++];
    *i = (struct pull_item){.model = g->m, .role = role, .file = arena_dup(a, str_of(file)), .path = arena_dup(a, buf_str(&path)), .subject = subject_of(a, file), .joined = joined, .want = {.bytes = HUB_UNKNOWN}};
    i->commit = g->known ? g->known->commit : NULL;
    if (want)
        i->want = *want;
    return i->file && i->path && i->subject ? 0 : err_nomem(err);
}

/* All fragments of a file that is joined of them. */
static int add_fragments(struct planning *g, const char *role, const char *file, const struct store_pin *pin, struct err *err)
{
    struct pull_plan *p = g->p;
    struct arena *a = g->s->arena;
    base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
    int r = store_payload_path(g->s->store, g->m, file, &path, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < p->n_joins; i++)
        if (strcmp(p->joins[i].path, path.ptr) == 0)
            return 0; /* another model has it too */
    struct pull_join *list = arena_grow(a, p->joins, p->n_joins + 1, &p->cap_joins, sizeof *list);
    if (!list)
        return err_nomem(err);
    p->joins = list;
    struct pull_join *j = &list[p->n_joins++];
    *j = (struct pull_join){.file = arena_dup(a, str_of(file)), .path = arena_dup(a, buf_str(&path)), .pin = *pin};
    if (!j->file || !j->path)
        return err_nomem(err);
    for (size_t i = 0; r == 0 && i < pin->n_parts; i++)
        r = add_item(g, role, pin->parts[i]->path, pin->parts[i], j->path, err);
    return r;
}

static int add_named(void *ctx, const char *role, const char *file, struct err *err)
{
    struct planning *g = ctx;
    if (!g->known)
        return add_item(g, role, file, NULL, NULL, err);
    struct store_pin pin;
    int pinned = store_pin_of(g->known, file, g->s->arena, &pin, err);
    if (pinned < 0)
        return err_prefix(err, "model '%s'", g->m->name);
    if (pinned)
        return pin.parts ? add_fragments(g, role, file, &pin, err) : add_item(g, role, file, &pin.want, NULL, err);
    return err_set(err, -ENOENT, "model '%s': fleet.lock does not have its %s file '%s': 'berth lock' pins it", g->m->name, role, file);
}

/* A model whose hub does not answer, but whose files are all here, is as usable as before. */
static bool all_here(struct pull_session *s, const struct fleet_model *m)
{
    uint64_t bytes;
    return store_payload_check(s->store, m, &bytes, NULL) == 0;
}

static int plan_hub(struct planning *g, struct fleet_lock_model *found, struct err *err)
{
    g->known = fleet_lock_of(g->s->fleet, g->m);
    g->locked = g->known != NULL;
    if (g->locked)
        return 0;
    g->p->n_unlocked++;
    int r = pull_hub(g->s, err);
    if (r == 0)
        r = hub_resolve(g->s->hub, g->m, g->s->arena, found, err);
    if (r == 0)
        g->known = found;
    else if (r != -EINTR && all_here(g->s, g->m)) {
        os_progress_say(g->s->progress, OS_YELLOW, "%s: kept as it is here: %s", g->m->name, err->text);
        return 1;
    }
    return r;
}

void pull_plan_model(struct pull_session *s, struct pull_plan *p, const struct fleet_model *m)
{
    struct planning g = {.s = s, .p = p, .m = m};
    struct fleet_lock_model found;
    struct err err;
    uint64_t bytes;
    int r = 0;
    if (m->source == FLEET_MODEL_FILE) {
        r = store_payload_check(s->store, m, &bytes, &err); /* there is nowhere to fetch it from */
    } else {
        if (m->source == FLEET_MODEL_HF)
            r = plan_hub(&g, &found, &err);
        else
            g.known = fleet_lock_of(s->fleet, m);
        if (r == 0)
            r = store_payload_each(m, add_named, &g, &err);
    }
    if (r >= 0)
        return;
    p->failed = true;
    os_progress_set(s->progress, m->name, err.text, 0, 0, OS_RED);
}

/* ---- what is here ------------------------------------------------------------------------------------------------------------- */

static bool is_pinned(const struct pull_item *i)
{
    return i->want.sha256 || i->want.git_sha1;
}

static struct pull_join *join_of(struct pull_plan *p, const struct pull_item *i)
{
    for (size_t k = 0; i->joined && k < p->n_joins; k++)
        if (strcmp(p->joins[k].path, i->joined) == 0)
            return &p->joins[k];
    return NULL;
}

/* A file that exists but was not proven to be what is wanted: somebody put it there, or touched it. */
struct stranger {
    const char *path;
    struct store_pin pin;
    bool *here;
};

static size_t add_stranger(struct stranger *list, size_t n, const char *path, const struct store_pin *pin, bool *here)
{
    struct stat st;
    if (*here || stat(path, &st) < 0 || (uint64_t)st.st_size != pin->want.bytes)
        return n;
    list[n] = (struct stranger){path, *pin, here};
    return n + 1;
}

static int prove_strangers(struct pull_session *s, struct pull_plan *p, struct err *err)
{
    struct stranger *list = arena_alloc(s->arena, p->n + p->n_joins + 1, sizeof *list);
    struct store_check *checks = arena_alloc(s->arena, p->n + p->n_joins + 1, sizeof *checks);
    size_t n = 0;
    if (!list || !checks)
        return err_nomem(err);
    for (size_t i = 0; i < p->n; i++)
        if (is_pinned(&p->items[i]))
            n = add_stranger(list, n, p->items[i].path, &(struct store_pin){.want = p->items[i].want}, &p->items[i].here);
    for (size_t i = 0; i < p->n_joins; i++)
        n = add_stranger(list, n, p->joins[i].path, &p->joins[i].pin, &p->joins[i].here);
    for (size_t i = 0; i < n; i++)
        checks[i] = (struct store_check){.path = list[i].path, .want = list[i].pin.want, .parts = list[i].pin.parts, .n_parts = list[i].pin.n_parts};
    const struct store_verify_options o = {.sink = &s->sink};
    int r = n ? store_verify(s->store, checks, n, &o, err) : 0;
    for (size_t i = 0; i < n; i++) {
        *list[i].here = r == 0 && (checks[i].verdict == STORE_PROVEN || checks[i].verdict == STORE_UNCHANGED);
        store_check_release(&checks[i]);
    }
    return r;
}

static int adopt(struct pull_session *s, struct pull_item *i, struct err *err)
{
    struct fleet_model at = *i->model;
    at.commit = i->commit;
    if (i->here || !is_pinned(i) || !i->model->commit)
        return 0;
    int r = store_adopt(s->store, &at, &i->want, &s->sink, err);
    if (r == 0) {
        i->here = true;
        os_progress_set(s->progress, i->subject, "was on this machine already, proven", 0, 0, OS_GREEN);
    }
    return r == -ENOENT ? 0 : r;
}

int pull_plan_here(struct pull_session *s, struct pull_plan *p, struct err *err)
{
    for (size_t i = 0; i < p->n_joins; i++)
        p->joins[i].here = store_payload_proven(s->store, p->joins[i].path, &p->joins[i].pin.want);
    for (size_t i = 0; i < p->n; i++) {
        struct pull_item *item = &p->items[i];
        struct store_manifest m;
        if (is_pinned(item)) {
            item->here = store_payload_proven(s->store, item->path, &item->want);
        } else if (store_manifest_load(s->store, item->path, &m, NULL) == 0) {
            char hex[OS_SHA256_HEX];
            const struct fleet_lock_file as_fetched = {.path = "", .bytes = m.bytes, .sha256 = os_hex(m.sha256, sizeof m.sha256, hex)};
            item->here = store_payload_proven(s->store, item->path, &as_fetched);
            store_manifest_release(&m);
        }
    }
    int r = prove_strangers(s, p, err);
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        const struct pull_join *j = join_of(p, &p->items[i]);
        if (j && j->here)
            p->items[i].here = true;
        else
            r = adopt(s, &p->items[i], err);
    }
    return r;
}
