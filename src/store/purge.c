/* SPDX-License-Identifier: MIT
 *
 * What nothing uses. A payload is used when a fleet that this machine knows names it: each that was ever locked, pulled or started here has a line in STATE/fleets/NAME/uses with its file's path, which is read anew; while
 * it is up, what it was started with is in further lines there; and every version that a deployment keeps (STATE/fleets/NAME/versions/ID/fleet.yaml with its fleet.lock) is one that may be gone back to.
 *
 * Whoever begins to use payloads first writes that down, under the lock store/uses; a purge holds that lock from its first look to its last removal. So a fleet that starts meanwhile either was seen, or finds its files gone before it
 * has started anything, and says so. A fleet whose file cannot be read stops the purge: what it uses is not known.
 */
#include "store_int.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define MEMORY_MAX ((size_t)256 << 20)
#define USES_BYTES_MAX ((size_t)16 << 20)
#define FLEET_FILE "fleet.yaml"

/* ---- what is used ----------------------------------------------------------------------------------------------- */

struct used {
    struct store *s;
    struct arena *arena;
    const char **paths; /* sorted once all are there */
    size_t n, cap;
    const struct fleet_model *model; /* the one being added */
    const char **gone;  /* fleets whose file is not there any more */
    size_t n_gone, cap_gone;
};

static int use_path(struct used *u, struct str path, struct err *err)
{
    const char *kept = arena_dup(u->arena, path);
    const char **list = kept ? arena_grow(u->arena, u->paths, u->n + 1, &u->cap, sizeof *list) : NULL;
    if (!list)
        return err_nomem(err);
    u->paths = list;
    list[u->n++] = kept;
    return 0;
}

static int use_file(void *ctx, const char *role, const char *file, struct err *err)
{
    struct used *u = ctx;
    base_autobuf struct buf path = BUF_INIT((size_t)2 * STORE_PATH_MAX);
    (void)role;
    int r = store_payload_path(u->s, u->model, file, &path, err);
    return r < 0 ? r : use_path(u, buf_str(&path), err);
}

static int use_fleet(struct used *u, const struct fleet *f, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < f->n_models; i++) {
        u->model = &f->models[i];
        r = store_payload_each(u->model, use_file, u, err);
    }
    return r;
}

/* The fleet in a file: 1, or 0 when there is no such file. */
static int use_fleet_file(struct used *u, const char *path, const struct fleet_options *opt, struct err *err)
{
    struct fleet *f = NULL;
    int r = fleet_load(path, opt, &f, err);
    if (r == -ENOENT && access(path, F_OK) < 0)
        return 0;
    if (r == 0)
        r = use_fleet(u, f, err);
    fleet_free(f);
    return r < 0 ? r : 1;
}

/* True while somebody holds the lock that `berth up` holds. */
static bool is_up(const struct store *s, const char *name)
{
    char path[STORE_PATH_MAX];
    if (store_pathf(path, NULL, "%s/fleets/%s/lock", s->dirs->state, name) < 0 || access(path, F_OK) < 0)
        return false;
    os_autoclose int fd = os_lock(path, false, false, NULL);
    return fd < 0;
}

/* A fleet without a file uses nothing, but that is worth a word. */
static int tell_gone(struct used *u, const char *file, struct err *err)
{
    const char **list = arena_grow(u->arena, u->gone, u->n_gone + 1, &u->cap_gone, sizeof *list);
    if (!list)
        return err_nomem(err);
    u->gone = list;
    list[u->n_gone] = arena_dup(u->arena, str_of(file));
    return list[u->n_gone++] ? 0 : err_nomem(err);
}

static int use_versions(struct used *u, const char *folder, const struct fleet_options *opt, struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = store_pathf(path, err, "%s/versions", folder);
    DIR *d = r < 0 ? NULL : opendir(path);
    const struct dirent *e;
    while (r >= 0 && d && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        r = store_pathf(path, err, "%s/versions/%s/" FLEET_FILE, folder, e->d_name);
        if (r == 0)
            r = use_fleet_file(u, path, opt, err);
    }
    if (d)
        closedir(d);
    return r < 0 ? r : 0;
}

/* What one fleet of this machine uses. */
static int use_known(struct used *u, const char *name, const struct fleet_options *opt, struct err *err)
{
    char folder[STORE_PATH_MAX], path[STORE_PATH_MAX];
    base_autobuf struct buf text = BUF_INIT(USES_BYTES_MAX);
    int r = store_pathf(folder, err, "%s/fleets/%s", u->s->dirs->state, name);
    if (r == 0)
        r = store_pathf(path, err, "%s/uses", folder);
    if (r == 0)
        r = os_read_file(AT_FDCWD, path, &text, err);
    if (r == 0) {
        struct str rest = buf_str(&text);
        base_autofree char *file = str_dup(str_split(&rest, '\n'));
        r = file ? use_fleet_file(u, file, opt, err) : err_nomem(err);
        if (r == 0)
            r = tell_gone(u, file, err);
        for (bool up = is_up(u->s, name); r >= 0 && up && rest.ptr;) {
            struct str line = str_split(&rest, '\n');
            r = line.len ? use_path(u, line, err) : 0;
        }
    }
    if (r >= 0 || r == -ENOENT)
        r = use_versions(u, folder, opt, err);
    if (r < 0 && r != -ENOMEM)
        (void)err_prefix(err, "what fleet '%s' uses cannot be known: repair its file, or remove '%s' when the fleet is no more", name, folder);
    return r;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int find_used(struct used *u, const struct fleet *here, const struct fleet_options *opt, struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = here ? use_fleet(u, here, err) : 0;
    if (r == 0)
        r = store_pathf(path, err, "%s/fleets", u->s->dirs->state);
    DIR *d = r < 0 ? NULL : opendir(path);
    if (d) {
        const struct dirent *e;
        while (r == 0 && (e = readdir(d)))
            if (fleet_name_valid(str_of(e->d_name)))
                r = use_known(u, e->d_name, opt, err);
        closedir(d);
    }
    if (r == 0 && u->n)
        qsort(u->paths, u->n, sizeof *u->paths, compare_paths);
    return r;
}

static bool is_used(const struct used *u, const char *path)
{
    return u->n && bsearch(&path, u->paths, u->n, sizeof *u->paths, compare_paths);
}

/* ---- writing it down -------------------------------------------------------------------------------------------- */

static int lock_uses(const struct store *s, struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = store_path(s, path, err, "uses");
    return r < 0 ? r : os_lock(path, true, true, err);
}

static int uses_text(struct store *s, const struct fleet *f, bool running, const char *old, struct buf *out, struct err *err)
{
    base_autofree char *real = realpath(f->file, NULL);
    if (!real)
        return err_sys(err, -errno, "cannot use '%s'", f->file);
    buf_addf(out, "%s\n", real);
    if (!running) { /* what it was started with stays */
        base_autobuf struct buf text = BUF_INIT(USES_BYTES_MAX);
        struct str rest = os_read_file(AT_FDCWD, old, &text, NULL) == 0 ? buf_str(&text) : STR("");
        (void)str_split(&rest, '\n');
        buf_add_str(out, rest);
        return buf_status(out);
    }
    struct used u = {.s = s, .arena = arena_new(MEMORY_MAX)};
    int r = u.arena ? use_fleet(&u, f, err) : err_nomem(err);
    for (size_t i = 0; r == 0 && i < u.n; i++)
        buf_addf(out, "%s\n", u.paths[i]);
    (void)arena_free(u.arena);
    return r < 0 ? r : buf_status(out);
}

int store_uses_write(struct store *s, const struct fleet *f, bool running, struct err *err)
{
    char folder[STORE_PATH_MAX], old[STORE_PATH_MAX];
    base_autobuf struct buf text = BUF_INIT(USES_BYTES_MAX);
    int r = store_pathf(folder, err, "%s/fleets/%s", s->dirs->state, f->name);
    if (r == 0)
        r = store_pathf(old, err, "%s/uses", folder);
    if (r == 0)
        r = os_make_dirs(folder, 0700, err);
    if (r < 0)
        return r;
    os_autoclose int lock = lock_uses(s, err);
    if (lock < 0)
        return lock;
    r = uses_text(s, f, running, old, &text, err);
    if (r < 0)
        return r;
    os_autoclose int dir = os_open_dir(folder, err);
    return dir < 0 ? dir : os_write_atomic(dir, "uses", text.ptr, text.len, 0600, err);
}

int store_lock_payloads(struct store *s, bool wait, struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = store_path(s, path, err, "fetch");
    return r < 0 ? r : os_lock(path, true, wait, err);
}

/* ---- what is not ------------------------------------------------------------------------------------------------ */

struct looking {
    const struct used *used;
    struct store_purge *p;
    const char *root; /* absolute folder of the walk */
    size_t cap;
};

static int add_garbage(struct looking *l, const char *path, enum store_garbage_kind kind, const struct stat *st, struct err *err)
{
    struct store_purge *p = l->p;
    struct store_garbage *list = arena_grow(p->arena, p->list, p->n + 1, &l->cap, sizeof *list);
    if (!list)
        return err_nomem(err);
    bool shared = st->st_nlink > 1;
    p->list = list;
    list[p->n] = (struct store_garbage){.path = arena_dup(p->arena, str_of(path)), .kind = kind, .bytes = shared ? 0 : (uint64_t)st->st_blocks * 512, .shared = shared};
    if (!list[p->n].path)
        return err_nomem(err);
    p->bytes += list[p->n++].bytes;
    return 0;
}

/* Whether a path that is used leads through the link at `path`: somebody keeps that folder on another disk. */
static bool leads_to_used(const struct used *u, const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < u->n; i++)
        if (strncmp(u->paths[i], path, n) == 0 && u->paths[i][n] == '/')
            return true;
    return false;
}

/* The file that one on its way belongs to: the longest beginning of path that is used and goes on with ".part". */
static bool part_of_used(const struct used *u, const char *path)
{
    char whole[STORE_PATH_MAX];
    for (const char *at = strstr(path, ".part"); at; at = strstr(at + 1, ".part"))
        if (store_pathf(whole, NULL, "%.*s", (int)(at - path), path) == 0 && is_used(u, whole))
            return true;
    return false;
}

static int visit_payload(void *ctx, const struct os_entry *e, struct err *err)
{
    struct looking *l = ctx;
    char path[STORE_PATH_MAX];
    struct stat st;
    if (S_ISDIR(e->mode))
        return 0;
    int r = store_pathf(path, err, "%s/%s", l->root, e->path);
    if (r < 0 || fstatat(e->dirfd, e->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return r;
    if (is_used(l->used, path) || part_of_used(l->used, path) || (S_ISLNK(e->mode) && leads_to_used(l->used, path))) {
        l->p->kept_bytes += (uint64_t)st.st_blocks * 512;
        l->p->n_kept++;
        return 0;
    }
    const char *dot = strstr(e->name, ".part");
    struct str name = str_of(e->name);
    bool partial = dot || str_ends(name, STR(".repair")) || str_ends(name, STR(".adopt")) || str_starts(name, STR(".berth-"));
    return add_garbage(l, path, partial ? STORE_GARBAGE_PARTIAL : STORE_GARBAGE_PAYLOAD, &st, err);
}

/* A manifest goes with its file, or when there is none. */
static int visit_manifest(void *ctx, const struct os_entry *e, struct err *err)
{
    struct looking *l = ctx;
    char path[STORE_PATH_MAX];
    struct segments g = {.path = NULL};
    struct stat st;
    int r = store_pathf(path, err, "%s/%s", l->root, e->path);
    if (r < 0 || fstatat(e->dirfd, e->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return r;
    bool orphan = segments_read(e->dirfd, e->name, &g, NULL) < 0 || access(g.path, F_OK) < 0;
    for (size_t i = 0; !orphan && i < l->p->n; i++)
        orphan = strcmp(l->p->list[i].path, g.path) == 0;
    segments_release(&g);
    return orphan ? add_garbage(l, path, STORE_GARBAGE_MANIFEST, &st, err) : 0;
}

static int look_in(struct looking *l, const char *folder, int (*visit)(void *ctx, const struct os_entry *e, struct err *err), struct err *err)
{
    char root[STORE_PATH_MAX];
    int r = store_path(l->used->s, root, err, "%s", folder);
    os_autoclose int fd = r < 0 ? r : os_open_dir(root, err);
    l->root = root;
    if (fd >= 0)
        r = os_walk(fd, visit, l, err);
    l->root = NULL;
    return fd < 0 ? fd : r;
}

/* Removes a file and the folders that are empty then. */
static int remove_one(const struct store *s, struct store_garbage *g, struct err *err)
{
    char path[STORE_PATH_MAX], top[STORE_PATH_MAX];
    int r = store_pathf(path, err, "%s", g->path);
    if (r == 0)
        r = store_path(s, top, err, "%s", g->kind == STORE_GARBAGE_MANIFEST ? "manifests" : "payloads/hf");
    if (r < 0)
        return r;
    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(err, -errno, "cannot remove '%s'", path);
    g->removed = true;
    for (char *slash; (slash = strrchr(path, '/')) && (*slash = '\0', strlen(path) > strlen(top));)
        if (rmdir(path) < 0)
            break;
    return 0;
}

static int purge(struct store *s, struct used *u, const struct store_purge_options *o, struct store_purge *p, struct err *err)
{
    struct looking l = {.used = u, .p = p};
    int r = find_used(u, o->fleet, o->fleet_options, err);
    if (r == 0)
        r = look_in(&l, "payloads", visit_payload, err);
    if (r == 0)
        r = look_in(&l, "manifests", visit_manifest, err);
    for (size_t i = 0; r == 0 && o->remove && i < p->n; i++)
        r = remove_one(s, &p->list[i], err);
    return r;
}

int store_purge(struct store *s, const struct store_purge_options *o, struct store_purge *ret, struct err *err)
{
    os_autoclose int fetch = o->remove ? store_lock_payloads(s, false, err) : -1;
    if (o->remove && fetch == -EWOULDBLOCK)
        return err_set(err, -EBUSY, "files are being fetched or repaired: wait for it to end, then purge");
    if (o->remove && fetch < 0)
        return fetch;
    os_autoclose int lock = lock_uses(s, err);
    if (lock < 0)
        return lock;
    struct store_purge p = {.arena = arena_new(MEMORY_MAX)};
    struct used u = {.s = s, .arena = p.arena};
    int r = p.arena ? purge(s, &u, o, &p, err) : err_nomem(err);
    p.gone = u.gone;
    p.n_gone = u.n_gone;
    if (r < 0)
        store_purge_release(&p);
    else
        *ret = p;
    return r;
}

void store_purge_release(struct store_purge *p)
{
    (void)arena_free(p->arena);
    *p = (struct store_purge){.arena = NULL};
}
