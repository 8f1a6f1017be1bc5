/* SPDX-License-Identifier: MIT
 *
 * The store on disk: opening and locking it, and the life of a runtime in it. A runtime is made in runtimes/.new-XXXXXX, proven to start, recorded, and becomes visible by
 * one rename; what is damaged or removed becomes invisible by one rename (.old-XXXXXX) before it is deleted. Leftovers of a killed change begin with a dot, so that nobody takes
 * them for a runtime, and go with the next change.
 *
 * Two locks: store/lock is held shared by whoever runs engines and exclusively by what takes files away (remove, replacing a damaged runtime); store/change is held by every
 * change, so that changes wait for one another but adding a runtime never waits for a running fleet.
 */
#include "store_int.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <unistd.h>

#define RUNTIMES_MAX 10000

int store_pathf(char out[STORE_PATH_MAX], struct err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, STORE_PATH_MAX, fmt, ap);
    va_end(ap);
    if (n < 0 || n >= STORE_PATH_MAX)
        return err_set(err, -ENAMETOOLONG, "path '%.200s...' is too long", out);
    return 0;
}

int store_path(const struct store *s, char out[STORE_PATH_MAX], struct err *err, const char *fmt, ...)
{
    base_autobuf struct buf b = BUF_INIT(STORE_PATH_MAX);
    va_list ap;
    va_start(ap, fmt);
    buf_addf(&b, "%s/", s->root);
    buf_addv(&b, fmt, ap);
    va_end(ap);
    if (buf_status(&b) < 0 || !b.ptr)
        return err_set(err, -ENAMETOOLONG, "a path below '%s' is too long", s->root);
    memcpy(out, b.ptr, b.len + 1);
    return 0;
}

int store_dir(const struct store *s, const char *name, struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = store_path(s, path, err, "%s", name);
    return r < 0 ? r : os_open_dir(path, err);
}

int store_dir_read(const struct store *s, const char *name, DIR **ret, struct err *err)
{
    int fd = store_dir(s, name, err);
    if (fd < 0)
        return fd;
    *ret = fdopendir(fd); /* closedir closes it */
    if (*ret)
        return 0;
    os_closep(&fd);
    return err_nomem(err);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* A folder that did not exist gets its mode whatever the umask says; one that does is left alone. */
static int make_folder(const char *path, mode_t mode, struct err *err)
{
    struct stat st;
    bool is_new = stat(path, &st) < 0 && errno == ENOENT;
    if (!is_new && S_ISDIR(st.st_mode))
        return 0;
    int r = os_make_dirs(path, mode, err);
    if (r == 0 && is_new && chmod(path, mode) < 0)
        r = err_sys(err, -errno, "cannot set the rights of '%s'", path);
    return r;
}

int store_look(const struct os_dirs *dirs, struct store **ret, struct err *err)
{
    struct store *s = calloc(1, sizeof *s);
    base_autobuf struct buf root = BUF_INIT(STORE_PATH_MAX / 2);
    if (!s)
        return err_nomem(err);
    s->dirs = dirs;
    s->privileged = geteuid() == 0;
    buf_addf(&root, "%s/store", dirs->state);
    s->root = buf_take(&root);
    if (!s->root) {
        store_free(s);
        return err_set(err, -ENAMETOOLONG, "the state folder's path is too long: '%.200s...'", dirs->state);
    }
    *ret = s;
    return 0;
}

int store_make(const struct store *s, struct err *err)
{
    static const char *const folders[] = {"payloads", "runtimes", "debs", "archives", "manifests"};
    mode_t mode = s->privileged ? 0755 : 0700;
    int r = make_folder(s->dirs->state, mode, err);
    if (r == 0)
        r = make_folder(s->root, mode, err);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(folders); i++) {
        char path[STORE_PATH_MAX];
        r = store_path(s, path, err, "%s", folders[i]);
        if (r == 0)
            r = make_folder(path, mode, err);
    }
    return r;
}

int store_open(const struct os_dirs *dirs, struct store **ret, struct err *err)
{
    struct store *s = NULL;
    int r = store_look(dirs, &s, err);
    if (r == 0)
        r = store_make(s, err);
    if (r == 0)
        *ret = s;
    else
        store_free(s);
    return r;
}

struct store *store_free(struct store *s)
{
    if (s) {
        for (size_t i = 0; i < s->n_kept; i++) {
            free(s->kept[i].id);
            buf_release(&s->kept[i].text);
        }
        free(s->root);
        free(s);
    }
    return NULL;
}

static int lock_named(struct store *s, const char *name, bool exclusive, bool wait, struct err *err)
{
    char path[STORE_PATH_MAX];
    int r = store_path(s, path, err, "%s", name);
    return r < 0 ? r : os_lock(path, exclusive, wait, err);
}

int store_lock(struct store *s, bool exclusive, bool wait, struct err *err)
{
    return lock_named(s, "lock", exclusive, wait, err);
}

int store_lock_change(struct store *s, struct err *err)
{
    return lock_named(s, "change", true, true, err);
}

/* ---- reading what is installed ------------------------------------------------------------------------------------ */

void store_runtime_release(struct store_runtime *r)
{
    if (!r)
        return;
    free(r->id);
    free(r->engine);
    free(r->version);
    free(r->source);
    free(r->packages);
    free(r->root);
    free(r->program);
    *r = (struct store_runtime){0};
}

struct store_runtime *store_runtimes_free(struct store_runtime *list, size_t n)
{
    for (size_t i = 0; list && i < n; i++)
        store_runtime_release(&list[i]);
    free(list);
    return NULL;
}

int store_fill(const struct store *s, const char *id, const char *root, const struct manifest *m, struct store_runtime *ret, struct err *err)
{
    char path[STORE_PATH_MAX];
    bool on_host = m && strcmp(m->source, "system") == 0;
    int r = on_host ? store_pathf(path, err, "/") : root ? store_pathf(path, err, "%s", root) : store_path(s, path, err, "runtimes/%s/tree", id);
    if (r < 0)
        return r;
    struct store_runtime rt = {
        .id = str_dup(str_of(id)),
        .engine = str_dup(str_of(m ? m->engine : "?")),
        .version = str_dup(str_of(m ? m->version : "?")),
        .source = str_dup(str_of(m ? m->source : "?")),
        .packages = str_dup(str_of(m ? m->packages : "")),
        .root = str_dup(str_of(path)),
        .program = str_dup(str_of(m ? m->program : "")),
        .complete = m && m->complete,
        .n_files = m ? m->n_files : 0,
        .bytes = m ? m->bytes : 0,
        .installed_us = m ? m->installed_us : 0,
    };
    if (m)
        memcpy(rt.digest, m->digest, sizeof rt.digest);
    if (!rt.id || !rt.engine || !rt.version || !rt.source || !rt.packages || !rt.root || !rt.program) {
        store_runtime_release(&rt);
        return err_nomem(err);
    }
    *ret = rt;
    return 0;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
           a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* The text of a manifest: kept from before when its file is the same, else read. *ret is the store's, or spare's when there is no room to keep it. */
static int kept_text(struct store *s, const char *id, struct buf *spare, struct str *ret, struct err *err)
{
    char path[STORE_PATH_MAX];
    struct stat st;
    struct store_kept *k = NULL;
    int r = store_path(s, path, err, "runtimes/%s/manifest.json", id);
    if (r < 0)
        return r;
    for (size_t i = 0; i < s->n_kept && !k; i++)
        k = strcmp(s->kept[i].id, id) == 0 ? &s->kept[i] : NULL;
    bool known = stat(path, &st) == 0;
    if (k && known && is_same(&k->st, &st)) {
        *ret = buf_str(&k->text);
        return 0;
    }
    char *name = !k && s->n_kept < STORE_KEPT_MAX ? str_dup(str_of(id)) : NULL;
    if (name) {
        k = &s->kept[s->n_kept++];
        *k = (struct store_kept){.id = name, .text = BUF_INIT(64u << 20)};
    }
    struct buf *text = k ? &k->text : spare;
    buf_clear(text);
    /* taken before the reading: a file that changes meanwhile is another one next time */
    if (k)
        k->st = known ? st : (struct stat){.st_size = -1};
    r = os_read_file(AT_FDCWD, path, text, err);
    if (r < 0 && k)
        k->st = (struct stat){.st_size = -1};
    if (r == 0)
        *ret = buf_str(text);
    return r;
}

/* The manifest of an installed runtime, proven against the runtime's name. -ENOENT when there is none: then it is no runtime. */
static int read_manifest(struct store *s, const char *id, struct manifest **ret, struct err *err)
{
    base_autobuf struct buf spare = BUF_INIT(64u << 20);
    struct str text = {0};
    int r = kept_text(s, id, &spare, &text, err);
    if (r < 0)
        return r;
    struct manifest *m = NULL;
    r = manifest_parse(text, &m, err);
    if (r < 0) {
        (void)err_prefix(err, "runtime '%s'", id);
        return r;
    }
    const char *own = manifest_id(m);
    if (!own || strcmp(own, id) != 0) {
        r = own ? err_set(err, -EBADMSG, "runtime '%s': its manifest is of '%s'", id, own) : err_nomem(err);
        manifest_free(m);
        return r;
    }
    *ret = m;
    return 0;
}

static int compare_runtimes(const void *a, const void *b)
{
    return strcmp(((const struct store_runtime *)a)->id, ((const struct store_runtime *)b)->id);
}

static int list_one(struct store *s, const char *id, struct store_runtime *list, size_t *n, struct err *err)
{
    struct manifest *m = NULL;
    int r = read_manifest(s, id, &m, err);
    if (r == -ENOENT || r == -ENOTDIR)
        return 0;
    if (r == 0 || r == -EBADMSG)
        r = store_fill(s, id, NULL, m, &list[*n], err);
    manifest_free(m);
    if (r == 0)
        ++*n;
    return r;
}

int store_runtime_list(struct store *s, struct store_runtime **ret, size_t *ret_n, struct err *err)
{
    DIR *d;
    int r = store_dir_read(s, "runtimes", &d, err);
    if (r == -ENOENT) { /* a store that nobody has made */
        *ret = NULL;
        *ret_n = 0;
        return 0;
    }
    if (r < 0)
        return r;
    struct store_runtime *list = NULL;
    size_t n = 0, cap = 0;
    const struct dirent *e;
    while (r == 0 && (e = readdir(d))) {
        if (e->d_name[0] == '.' || !os_name_valid(str_of(e->d_name)))
            continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            struct store_runtime *p = cap > RUNTIMES_MAX ? NULL : realloc(list, cap * sizeof *p);
            if (!p) {
                r = err_nomem(err);
                break;
            }
            memset(p + n, 0, (cap - n) * sizeof *p);
            list = p;
        }
        r = list_one(s, e->d_name, list, &n, err);
    }
    closedir(d);
    if (r < 0) {
        store_runtimes_free(list, n);
        return r;
    }
    if (n)
        qsort(list, n, sizeof *list, compare_runtimes);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* ---- a declaration and what is installed for it -------------------------------------------------------------------- */

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int store_describe(const struct fleet_runtime *w, struct buf *source, struct buf *packages, struct err *err)
{
    fleet_runtime_text(w, source);
    size_t n = w->source == FLEET_SOURCE_DEBIAN ? w->n_packages : 0;
    base_autofree const char **sorted = calloc(n + 1, sizeof *sorted);
    if (!sorted)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        sorted[i] = w->packages[i];
    qsort(sorted, n, sizeof *sorted, compare_words);
    for (size_t i = 0; i < n; i++)
        buf_addf(packages, "%s%s", i ? " " : "", sorted[i]);
    int r = buf_status(source);
    return r < 0 || (r = buf_status(packages)) < 0 ? err_sys(err, r, "runtime '%s' cannot be described", w->name) : 0;
}

int store_runtime_find(struct store *s, const struct fleet_runtime *want, struct store_runtime *ret, struct err *err)
{
    base_autobuf struct buf source = BUF_INIT((size_t)2 * STORE_PATH_MAX), packages = BUF_INIT(1u << 16);
    struct store_runtime *list = NULL, *best = NULL;
    size_t n = 0;
    int r = store_describe(want, &source, &packages, err);
    if (r == 0)
        r = store_runtime_list(s, &list, &n, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].engine, want->engine) == 0 && str_eq_c(buf_str(&source), list[i].source) && str_eq(buf_str(&packages), str_of(list[i].packages)) &&
            (!best || list[i].installed_us > best->installed_us))
            best = &list[i];
    if (best) {
        *ret = *best;
        *best = (struct store_runtime){0};
    } else {
        r = err_set(err, -ENOENT, "runtime '%s' (%s) is not installed: 'berth runtime add' installs it", want->name, source.ptr);
    }
    store_runtimes_free(list, n);
    return r;
}

int store_runtime_verify(struct store *s, const struct store_runtime *rt, const struct event_sink *sink, struct err *err)
{
    char subject[FLEET_NAME_MAX + 256];
    snprintf(subject, sizeof subject, "runtime %s", rt->id);
    struct manifest *m = NULL;
    int r = read_manifest(s, rt->id, &m, err);
    if (r == -ENOENT || r == -ENOTDIR)
        return err_set(err, -EBADMSG, "runtime '%s' has no manifest", rt->id);
    if (r < 0)
        return r;
    assert(m);
    if (strcmp(m->source, "system") == 0) {
        r = system_verify(m, err);
    } else {
        os_autoclose int treefd = os_open_dir(rt->root, err);
        r = treefd < 0 ? treefd : tree_verify(treefd, m, sink, subject, err);
    }
    manifest_free(m);
    if (r < 0)
        (void)err_prefix(err, "runtime '%s'", rt->id);
    return r;
}
