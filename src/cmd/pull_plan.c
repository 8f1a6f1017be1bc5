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

/* All fragments of file, when that is how the source has it: 1, else 0. */
static int add_fragments(struct planning *g, const char *role, const char *file, struct err *err)
{
    struct pull_plan *p = g->p;
    struct arena *a = g->s->arena;
    base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
    struct pull_join j = {.model = g->m};
    int r = store_payload_path(g->s->store, g->m, file, &path, err);
    j.file = arena_dup(a, str_of(file));
    j.path = arena_dup(a, buf_str(&path));
    if (r == 0 && (!j.file || !j.path))
        r = err_nomem(err);
    for (size_t i = 0; r == 0 && i < g->known->n_files; i++) {
        const struct fleet_lock_file *f = &g->known->files[i];
        uint32_t no, count;
        if (!hub_fragment(str_of(f->path), file, &no, &count))
            continue;
        j.count = count;
        if (!size_add(j.bytes, f->bytes, &j.bytes))
            return err_set(err, -ERANGE, "the fragments of '%s' have too many bytes", file);
        r = add_item(g, role, f->path, f, j.path, err);
    }
    if (r < 0 || !j.count)
        return r;
    for (size_t i = 0; i < p->n_joins; i++)
        if (strcmp(p->joins[i].path, j.path) == 0)
            return 1; /* another model has it too */
    struct pull_join *list = arena_grow(a, p->joins, p->n_joins + 1, &p->cap_joins, sizeof *list);
    if (!list)
        return err_nomem(err);
    p->joins = list;
    p->joins[p->n_joins++] = j;
    return 1;
}

static int add_named(void *ctx, const char *role, const char *file, struct err *err)
{
    struct planning *g = ctx;
    if (!g->known)
        return add_item(g, role, file, NULL, NULL, err);
    const struct fleet_lock_file *f = fleet_lock_find_file(g->known, file);
    if (f)
        return add_item(g, role, file, f, NULL, err);
    int r = add_fragments(g, role, file, err);
    if (r != 0)
        return r < 0 ? r : 0;
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

/* A joined file was proven when it was made of proven fragments; its manifest has its length. */
static void look_for_joined(struct pull_session *s, struct pull_plan *p)
{
    for (size_t k = 0; k < p->n_joins; k++) {
        struct store_manifest m;
        if (store_manifest_load(s->store, p->joins[k].path, &m, NULL) < 0)
            continue;
        char hex[OS_SHA256_HEX];
        const struct fleet_lock_file as_made = {.path = "", .bytes = m.bytes, .sha256 = os_hex(m.sha256, sizeof m.sha256, hex)};
        p->joins[k].here = m.bytes == p->joins[k].bytes && store_payload_proven(s->store, p->joins[k].path, &as_made);
        store_manifest_release(&m);
    }
}

/* Files that exist but were not proven to be what is wanted: somebody put them there, or touched them. */
static int prove_strangers(struct pull_session *s, struct pull_plan *p, struct err *err)
{
    struct store_check *checks = calloc(p->n + 1, sizeof *checks);
    size_t *of = calloc(p->n + 1, sizeof *of), n = 0;
    struct stat st;
    int r = checks && of ? 0 : err_nomem(err);
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        struct pull_item *item = &p->items[i];
        if (item->here || !is_pinned(item) || stat(item->path, &st) < 0 || (uint64_t)st.st_size != item->want.bytes)
            continue;
        of[n] = i;
        checks[n++] = (struct store_check){.path = item->path, .want = item->want};
    }
    const struct store_verify_options o = {.sink = &s->sink};
    if (r == 0 && n)
        r = store_verify(s->store, checks, n, &o, err);
    for (size_t k = 0; k < n; k++) {
        p->items[of[k]].here = r == 0 && (checks[k].verdict == STORE_PROVEN || checks[k].verdict == STORE_UNCHANGED);
        store_check_release(&checks[k]);
    }
    free(checks);
    free(of);
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
    look_for_joined(s, p);
    for (size_t i = 0; i < p->n; i++) {
        struct pull_item *item = &p->items[i];
        const struct pull_join *j = join_of(p, item);
        struct store_manifest m;
        if (j && j->here) {
            item->here = true;
        } else if (is_pinned(item)) {
            item->here = store_payload_proven(s->store, item->path, &item->want);
        } else if (store_manifest_load(s->store, item->path, &m, NULL) == 0) {
            char hex[OS_SHA256_HEX];
            const struct fleet_lock_file as_fetched = {.path = "", .bytes = m.bytes, .sha256 = os_hex(m.sha256, sizeof m.sha256, hex)};
            item->here = store_payload_proven(s->store, item->path, &as_fetched);
            store_manifest_release(&m);
        }
    }
    int r = prove_strangers(s, p, err);
    for (size_t i = 0; r == 0 && i < p->n; i++)
        r = adopt(s, &p->items[i], err);
    return r;
}
