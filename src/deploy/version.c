/* SPDX-License-Identifier: MIT
 *
 * What a deploy leaves behind on purpose: versions, templates by content, the trash; and the mark that says that one is at work.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "deploy_int.h"

#define BIN_YOUNG_S 3600 /* longer than any copying takes */
#define BROUGHT "incoming."
#define BROUGHT_YOUNG_S 86400 /* longer than any plan takes that reads it */

/* A path below the fleet's folder, in the arena; NULL without memory. */
static const char *below(struct deploy *d, const char *name)
{
    return arena_printf(d->arena, "%s/%s", d->folder, name);
}

/* ---- lock and mark -------------------------------------------------------------------------------------------- */

int deploy_hold(const struct os_dirs *dirs, const char *fleet, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    buf_addf(&path, "%s/fleets/%s", dirs->state, fleet);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    int r = os_make_dirs(path.ptr, 0755, err);
    if (r < 0)
        return r;
    buf_add_c(&path, "/deploy.lock");
    int fd = buf_status(&path) < 0 ? err_nomem(err) : os_lock(path.ptr, true, false, err);
    return fd == -EWOULDBLOCK ? err_set(err, -EBUSY, "another deploy of fleet '%s' is at work on this machine: wait for its end", fleet) : fd;
}

/* What errands left that were cut off. One that is at work at this moment is young. */
static void prune_brought(int fd, const char *folder)
{
    DIR *list = opendir(folder);
    const struct dirent *e;
    while (list && (e = readdir(list))) {
        struct stat st;
        if (str_starts(str_of(e->d_name), STR(BROUGHT)) && fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && time(NULL) - st.st_mtime > BROUGHT_YOUNG_S)
            base_ignore(os_remove_tree(fd, e->d_name, NULL)); /* tried again by the next deploy */
    }
    if (list)
        closedir(list);
}

int deploy_take_in(const struct os_dirs *dirs, const char *fleet, const char *fleet_path, struct buf *ret, struct err *err)
{
    base_autobuf struct buf folder = BUF_INIT(DEPLOY_PATH_MAX), prefix = BUF_INIT(DEPLOY_PATH_MAX), name = BUF_INIT(DEPLOY_PATH_MAX);
    struct str path = str_of(fleet_path);
    buf_addf(&folder, "%s/fleets/%s", dirs->state, fleet);
    buf_addf(&prefix, "%s/" BROUGHT, folder.ptr ? folder.ptr : "");
    if (buf_status(&folder) < 0 || buf_status(&prefix) < 0)
        return err_nomem(err);
    if (!str_starts(path, buf_str(&prefix))) {
        buf_add_str(ret, path);
        return buf_status(ret) < 0 ? err_nomem(err) : 0;
    }
    struct str rest = {path.ptr + folder.len + 1, path.len - folder.len - 1};
    buf_add_str(&name, str_split(&rest, '/'));
    buf_addf(ret, "%s/incoming/" STR_FMT, folder.ptr, STR_ARG(rest));
    if (buf_status(&name) < 0 || buf_status(ret) < 0)
        return err_nomem(err);
    os_autoclose int fd = os_open_dir(folder.ptr, err);
    if (fd < 0)
        return fd;
    int r = os_remove_tree(fd, "incoming", err);
    if (r < 0 && r != -ENOENT)
        return r;
    if (renameat(fd, name.ptr, fd, "incoming") < 0)
        return err_sys(err, -errno, "cannot take in '%s'", fleet_path);
    prune_brought(fd, folder.ptr);
    return 0;
}

int deploy_begin(struct deploy *d, int fd, struct err *err)
{
    d->lock_fd = fd;
    /* from here on a purge keeps what this version needs */
    return store_uses_write(d->store, d->fleet, false, err);
}

bool deploy_marked(const struct deploy *d)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    buf_addf(&path, "%s/deploying", d->folder);
    return buf_status(&path) == 0 && access(path.ptr, F_OK) == 0;
}

int deploy_mark(struct deploy *d, bool on, struct err *err)
{
    os_autoclose int fd = os_open_dir(d->folder, err);
    if (fd < 0)
        return fd;
    if (on)
        return os_write_atomic(fd, "deploying", "", 0, 0600, err);
    if (unlinkat(fd, "deploying", 0) < 0 && errno != ENOENT)
        return err_sys(err, -errno, "cannot remove '%s/deploying'", d->folder);
    return fsync(fd) < 0 ? err_sys(err, -errno, "cannot write '%s'", d->folder) : 0;
}

/* ---- templates ------------------------------------------------------------------------------------------------ */

int deploy_store_file(struct deploy *d, const char *path, const char **ret, struct err *err)
{
    base_autobuf struct buf content = BUF_INIT(DEPLOY_FILE_MAX);
    const char *folder = arena_printf(d->arena, "%s/store/templates", d->dirs->state), *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char hex[OS_SHA256_HEX];
    if (!folder)
        return err_nomem(err);
    int r = os_read_file(AT_FDCWD, path, &content, err);
    struct os_digest *digest = r == 0 ? os_digest_new() : NULL;
    if (r == 0 && !digest)
        r = err_nomem(err);
    if (r == 0)
        r = os_digest_add(digest, content.ptr, content.len);
    if (r == 0)
        r = os_digest_hex(digest, hex);
    os_digest_free(digest);
    if (r == 0)
        r = os_make_dirs(folder, 0755, err);
    if (r < 0)
        return r;
    os_autoclose int fd = os_open_dir(folder, err);
    char *name = arena_printf(d->arena, "%.12s-%s", hex, base);
    *ret = name ? arena_printf(d->arena, "%s/%s", folder, name) : NULL;
    if (fd < 0 || !*ret)
        return fd < 0 ? fd : err_nomem(err);
    return access(*ret, F_OK) == 0 ? 0 : os_write_atomic(fd, name, content.ptr, content.len, 0644, err);
}

/* ---- versions --------------------------------------------------------------------------------------------------- */

uint64_t deploy_version_current(const char *folder)
{
    char target[64];
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    buf_addf(&path, "%s/versions/current", folder);
    ssize_t n = buf_status(&path) < 0 ? -1 : readlink(path.ptr, target, sizeof target);
    uint64_t v = 0;
    return n > 0 && str_to_u64((struct str){target, (size_t)n}, &v) == 0 ? v : 0;
}

static bool version_there(const char *folder, uint64_t v)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    buf_addf(&path, "%s/versions/%llu/fleet.yaml", folder, (unsigned long long)v);
    return buf_status(&path) == 0 && access(path.ptr, F_OK) == 0;
}

/* The version that was in force when v was deployed: numbers alone do not tell, after a rollback. 0: not known. */
static uint64_t version_before(const char *folder, uint64_t v)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX), text = BUF_INIT(64);
    uint64_t before = 0;
    buf_addf(&path, "%s/versions/%llu/before", folder, (unsigned long long)v);
    if (buf_status(&path) < 0 || os_read_file(AT_FDCWD, path.ptr, &text, NULL) < 0 || str_to_u64(str_trim(buf_str(&text)), &before) < 0)
        return 0;
    return before != v && version_there(folder, before) ? before : 0;
}

static uint64_t one_back(const char *folder, uint64_t v)
{
    uint64_t before = version_before(folder, v);
    if (before)
        return before;
    do
        v--;
    while (v && !version_there(folder, v));
    return v;
}

int deploy_version_path(const struct os_dirs *dirs, const char *fleet, unsigned back, struct buf *ret, struct err *err)
{
    base_autobuf struct buf folder = BUF_INIT(DEPLOY_PATH_MAX);
    buf_addf(&folder, "%s/fleets/%s", dirs->state, fleet);
    if (buf_status(&folder) < 0)
        return err_nomem(err);
    uint64_t v = deploy_version_current(folder.ptr);
    for (unsigned i = 0; v && i < back; i++)
        v = one_back(folder.ptr, v);
    if (!v || !version_there(folder.ptr, v))
        return err_set(err, -ENOENT, back ? "there is no version of fleet '%s' before the one in force on this machine" : "no version of fleet '%s' was deployed to this machine", fleet);
    buf_addf(ret, "%s/versions/%llu/fleet.yaml", folder.ptr, (unsigned long long)v);
    return buf_status(ret) < 0 ? err_nomem(err) : 0;
}

int deploy_version_kept(const struct deploy *d, uint64_t n, struct buf *ret, struct err *err)
{
    if (!version_there(d->folder, n))
        return err_set(err, -ENOENT, "there is no version %llu of fleet '%s' on host '%s': %llu is in force, the last %d are kept", (unsigned long long)n, d->fleet->name, d->host->name, (unsigned long long)deploy_version_current(d->folder), DEPLOY_VERSIONS_KEPT);
    buf_addf(ret, "%s/versions/%llu/fleet.yaml", d->folder, (unsigned long long)n);
    return buf_status(ret) < 0 ? err_nomem(err) : 0;
}

const char *deploy_version_dir(struct arena *a, const char *fleet_path)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX), text = BUF_INIT(DEPLOY_PATH_MAX);
    const char *slash = strrchr(fleet_path, '/'), *brought = strstr(fleet_path, "/" BROUGHT);
    if (brought)
        return arena_printf(a, "%.*s/incoming", (int)(brought - fleet_path), fleet_path);
    buf_addf(&path, "%.*sfolder", slash ? (int)(slash + 1 - fleet_path) : 0, fleet_path);
    if (!strstr(fleet_path, "/versions/") || buf_status(&path) < 0 || os_read_file(AT_FDCWD, path.ptr, &text, NULL) < 0 || !text.len || text.ptr[0] != '/')
        return NULL;
    return arena_dup(a, buf_str(&text));
}

static int read_or_empty(const char *path, struct buf *out, struct err *err)
{
    int r = os_read_file(AT_FDCWD, path, out, err);
    return r == -ENOENT ? 0 : r;
}

/* Where a template is kept below a version's folder; NULL: it lies elsewhere, and the stored copy is what units name. */
static const char *kept_as(const struct fleet *f, const char *path)
{
    size_t dir = strlen(f->dir);
    return strncmp(path, f->dir, dir) == 0 && path[dir] == '/' && os_relpath_valid(str_of(path + dir + 1)) ? path + dir + 1 : NULL;
}

static int keep_templates(const struct fleet *f, const char *folder, struct err *err)
{
    for (size_t i = 0; i < f->n_models; i++) {
        const char *from = f->models[i].template_file, *below_dir = from ? kept_as(f, from) : NULL;
        if (!below_dir)
            continue;
        base_autobuf struct buf to = BUF_INIT(DEPLOY_PATH_MAX), parent = BUF_INIT(DEPLOY_PATH_MAX);
        buf_addf(&to, "%s/%s", folder, below_dir);
        if (buf_status(&to) == 0)
            buf_add(&parent, to.ptr, (size_t)(strrchr(to.ptr, '/') - to.ptr));
        if (buf_status(&to) < 0 || buf_status(&parent) < 0)
            return err_nomem(err);
        int r = os_make_dirs(parent.ptr, 0755, err);
        if (r == 0 && access(to.ptr, F_OK) < 0)
            r = os_copy_file(AT_FDCWD, from, AT_FDCWD, to.ptr, 0644, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* dir: what its relative paths are taken from, where that is known; NULL: its own folder. */
static int write_version(const struct fleet *f, const char *dir, const char *folder, struct str yaml, struct str lock, struct err *err)
{
    int r = os_make_dirs(folder, 0755, err);
    if (r < 0)
        return r;
    os_autoclose int fd = os_open_dir(folder, err);
    if (fd < 0)
        return fd;
    if (dir)
        r = os_write_atomic(fd, "folder", dir, strlen(dir), 0644, err);
    if (r == 0 && lock.len)
        r = os_write_atomic(fd, "fleet.lock", lock.ptr, lock.len, 0644, err);
    if (r == 0)
        r = keep_templates(f, folder, err);
    /* last: a folder without it is no version */
    return r == 0 ? os_write_atomic(fd, "fleet.yaml", yaml.ptr, yaml.len, 0644, err) : r;
}

static int make_current(const char *versions, uint64_t v, struct err *err)
{
    char target[32];
    os_autoclose int fd = os_open_dir(versions, err);
    if (fd < 0)
        return fd;
    snprintf(target, sizeof target, "%llu", (unsigned long long)v);
    if (unlinkat(fd, ".current", 0) < 0 && errno != ENOENT)
        return err_sys(err, -errno, "cannot write '%s'", versions);
    if (symlinkat(target, fd, ".current") < 0 || renameat(fd, ".current", fd, "current") < 0 || fsync(fd) < 0)
        return err_sys(err, -errno, "cannot write '%s/current'", versions);
    return 0;
}

/* The oldest go; what was in force before them stays reachable by history alone. */
static void prune(const char *versions, uint64_t v)
{
    os_autoclose int fd = v > DEPLOY_VERSIONS_KEPT ? os_open_dir(versions, NULL) : -1;
    char name[32];
    for (uint64_t old = v > DEPLOY_VERSIONS_KEPT ? v - DEPLOY_VERSIONS_KEPT : 0; fd >= 0 && old > 0; old--) {
        snprintf(name, sizeof name, "%llu", (unsigned long long)old);
        if (faccessat(fd, name, F_OK, 0) < 0)
            break;
        base_ignore(os_remove_tree(fd, name, NULL)); /* tried again by the next deploy */
    }
}

static bool is_same_file(const char *a, const char *b)
{
    base_autobuf struct buf x = BUF_INIT(DEPLOY_FILE_MAX), y = BUF_INIT(DEPLOY_FILE_MAX);
    return os_read_file(AT_FDCWD, a, &x, NULL) == 0 && os_read_file(AT_FDCWD, b, &y, NULL) == 0 && str_eq(buf_str(&x), buf_str(&y));
}

/* Whether a version has the templates of the fleet as they are. */
static bool has_templates(const struct fleet *f, const char *folder, uint64_t v)
{
    for (size_t i = 0; i < f->n_models; i++) {
        base_autobuf struct buf kept = BUF_INIT(DEPLOY_PATH_MAX);
        const char *from = f->models[i].template_file, *below_dir = from ? kept_as(f, from) : NULL;
        if (!below_dir)
            continue;
        buf_addf(&kept, "%s/versions/%llu/%s", folder, (unsigned long long)v, below_dir);
        if (buf_status(&kept) < 0 || !is_same_file(from, kept.ptr))
            return false;
    }
    return true;
}

/* A version with the same files, so that going back and forth makes no new ones. */
static uint64_t find_same(struct deploy *d, uint64_t newest, struct str yaml, struct str lock)
{
    for (uint64_t v = newest; v > 0 && v + DEPLOY_VERSIONS_KEPT > newest; v--) {
        base_autobuf struct buf y = BUF_INIT(DEPLOY_FILE_MAX), l = BUF_INIT(DEPLOY_FILE_MAX), path = BUF_INIT(DEPLOY_PATH_MAX), lock_path = BUF_INIT(DEPLOY_PATH_MAX);
        buf_addf(&path, "%s/versions/%llu/fleet.yaml", d->folder, (unsigned long long)v);
        buf_addf(&lock_path, "%s/versions/%llu/fleet.lock", d->folder, (unsigned long long)v);
        if (buf_status(&path) == 0 && buf_status(&lock_path) == 0 && version_there(d->folder, v) && read_or_empty(path.ptr, &y, NULL) == 0 && read_or_empty(lock_path.ptr, &l, NULL) == 0 && str_eq(buf_str(&y), yaml) &&
            str_eq(buf_str(&l), lock) && has_templates(d->fleet, d->folder, v))
            return v;
    }
    return 0;
}

static uint64_t newest_version(struct deploy *d)
{
    uint64_t v = deploy_version_current(d->folder);
    while (version_there(d->folder, v + 1))
        v++;
    return v;
}

/* The two files as they are on disk; without a lock it is empty. */
static int read_fleet(const struct fleet *f, struct buf *yaml, struct buf *lock, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    fleet_lock_path(f->file, &path);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    int r = os_read_file(AT_FDCWD, f->file, yaml, err);
    return r == 0 ? read_or_empty(path.ptr, lock, err) : r;
}

int deploy_read_fleet(struct deploy *d, const char *path, struct err *err)
{
    base_autobuf struct buf yaml = BUF_INIT(DEPLOY_FILE_MAX), lock = BUF_INIT(DEPLOY_FILE_MAX), lock_path = BUF_INIT(DEPLOY_PATH_MAX);
    fleet_lock_path(path, &lock_path);
    if (buf_status(&lock_path) < 0)
        return err_nomem(err);
    int r = os_read_file(AT_FDCWD, path, &yaml, err);
    if (r == 0)
        r = read_or_empty(lock_path.ptr, &lock, err);
    if (r < 0)
        return r;
    d->yaml = arena_dup(d->arena, buf_str(&yaml));
    d->lock = lock.len ? arena_dup(d->arena, buf_str(&lock)) : "";
    return d->yaml && d->lock ? 0 : err_nomem(err);
}

int deploy_version_write(const struct fleet *f, const char *folder, struct err *err)
{
    base_autobuf struct buf yaml = BUF_INIT(DEPLOY_FILE_MAX), lock = BUF_INIT(DEPLOY_FILE_MAX);
    int r = read_fleet(f, &yaml, &lock, err);
    return r == 0 ? write_version(f, NULL, folder, buf_str(&yaml), buf_str(&lock), err) : r;
}

int deploy_link_missing(int fd, const char *folder, const char *stage, struct str there, size_t *ret_n, struct err *err)
{
    int copy = dup(fd);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    const struct dirent *e;
    int r = list ? 0 : err_sys(err, -errno, "cannot look into '%s'", folder);
    if (!list && copy >= 0)
        close(copy);
    while (r == 0 && list && (e = readdir(list))) {
        base_autobuf struct buf name = BUF_INIT(512), from = BUF_INIT(DEPLOY_PATH_MAX), to = BUF_INIT(DEPLOY_PATH_MAX);
        buf_addf(&name, "\n%s\n", e->d_name);
        buf_addf(&from, "%s/%s", folder, e->d_name);
        buf_addf(&to, "%s/%s", stage, e->d_name);
        if (buf_status(&name) < 0 || buf_status(&from) < 0 || buf_status(&to) < 0)
            r = err_nomem(err);
        else if (e->d_name[0] != '.' && str_find(there, buf_str(&name)) < 0) {
            if (symlink(from.ptr, to.ptr) < 0)
                r = err_sys(err, -errno, "cannot make link '%s'", to.ptr);
            (*ret_n)++;
        }
    }
    if (list)
        closedir(list);
    return r;
}

/* What a rollback from v enters: what is in force until now. A rollback itself leaves the way back as it was, so that a second one goes further. */
static int keep_before(struct deploy *d, const char *versions, uint64_t v, struct err *err)
{
    uint64_t current = deploy_version_current(d->folder);
    const char *folder = arena_printf(d->arena, "%s/%llu", versions, (unsigned long long)v);
    char text[32];
    if (!folder)
        return err_nomem(err);
    if (!current || current == v || str_starts(str_of(d->fleet->file), str_of(versions)))
        return 0;
    os_autoclose int fd = os_open_dir(folder, err);
    snprintf(text, sizeof text, "%llu", (unsigned long long)current);
    return fd < 0 ? fd : os_write_atomic(fd, "before", text, strlen(text), 0644, err);
}

int deploy_version_keep(struct deploy *d, uint64_t *ret, struct err *err)
{
    const char *versions = below(d, "versions");
    int r = 0;
    if (!versions)
        return err_nomem(err);
    uint64_t newest = newest_version(d), v = find_same(d, newest, str_of(d->yaml), str_of(d->lock));
    if (!v) {
        v = newest + 1;
        const char *folder = arena_printf(d->arena, "%s/%llu", versions, (unsigned long long)v);
        r = folder ? write_version(d->fleet, d->dir, folder, str_of(d->yaml), str_of(d->lock), err) : err_nomem(err);
    }
    if (r == 0)
        r = keep_before(d, versions, v, err);
    if (r == 0)
        r = make_current(versions, v, err);
    if (r < 0)
        return r;
    prune(versions, newest > v ? newest : v);
    *ret = v;
    return 0;
}

/* ---- trash -------------------------------------------------------------------------------------------------------- */

int deploy_trash(struct deploy *d, const char *stamp, const char *path, const char *unit, struct err *err)
{
    const char *folder = arena_printf(d->arena, "%s/trash/%s", d->folder, stamp), *slash = strrchr(path, '/');
    const char *to = folder ? arena_printf(d->arena, "%s/%s", folder, slash + 1) : NULL;
    if (!to)
        return err_nomem(err);
    int r = os_make_dirs(folder, 0700, err);
    if (r == 0 && access(to, F_OK) < 0)
        r = os_copy_file(AT_FDCWD, path, AT_FDCWD, to, 0644, err);
    if (r < 0)
        return r;
    base_autobuf struct buf words = BUF_INIT((size_t)4 * DEPLOY_PATH_MAX);
    const char *user = d->host->scope == FLEET_USER ? " --user" : "";
    buf_addf(&words, "cp '%s' '%s' && systemctl%s daemon-reload && systemctl%s %s '%s'\n", to, path, user, user, str_ends(str_of(path), STR(".container")) ? "start" : "enable --now", unit);
    const char *restore = arena_printf(d->arena, "%s/restore", folder);
    if (!restore || buf_status(&words) < 0)
        return err_nomem(err);
    os_autoclose int fd = open(restore, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0700);
    if (fd < 0)
        return err_sys(err, -errno, "cannot write '%s'", restore);
    return os_write_all(fd, words.ptr, words.len, err);
}

/* Newest first: they are named by their time. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)b, *(const char *const *)a);
}

void deploy_prune_trash(struct deploy *d)
{
    const char *path = below(d, "trash"), **names = NULL;
    os_autoclose int fd = path ? os_open_dir(path, NULL) : -1;
    DIR *list = fd < 0 ? NULL : opendir(path);
    const struct dirent *e;
    size_t n = 0, cap = 0;
    while (list && (e = readdir(list))) {
        const char **more = e->d_name[0] == '.' ? NULL : arena_grow(d->arena, names, n + 1, &cap, sizeof *names);
        if (!more)
            continue; /* without memory the next deploy does it */
        names = more;
        if ((names[n] = arena_dup(d->arena, str_of(e->d_name))))
            n++;
    }
    if (list)
        closedir(list);
    if (n > 1)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = DEPLOY_TRASH_KEPT; i < n; i++)
        base_ignore(os_remove_tree(fd, names[i], NULL)); /* tried again by the next deploy */
}

/* ---- this program ------------------------------------------------------------------------------------------------------ */

int deploy_self(struct deploy *d, struct err *err)
{
    char program[DEPLOY_PATH_MAX];
    base_autobuf struct buf dir = BUF_INIT(DEPLOY_PATH_MAX);
    const char *bundle = getenv("BERTH_BUNDLE");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    buf_addf(&dir, "%s/bin", d->dirs->state);
    if (n < 0 || buf_status(&dir) < 0)
        return n < 0 ? err_sys(err, -errno, "cannot tell where berth is") : err_nomem(err);
    program[n] = '\0';
    int r = os_make_dirs(dir.ptr, 0755, err);
    if (r < 0)
        return r;
    os_autoclose int fd = os_open_dir(dir.ptr, err);
    if (fd < 0)
        return fd;
    /* a copy that came with its libraries is started through its own loader */
    base_autobuf struct buf script = BUF_INIT((size_t)4 * DEPLOY_PATH_MAX);
    if (bundle)
        buf_addf(&script, "#!/bin/sh\nBERTH_BUNDLE='%s' exec '%s/ld.so' --library-path '%s' '%s/berth' \"$@\"\n", bundle, bundle, bundle, bundle);
    else
        buf_addf(&script, "#!/bin/sh\nexec '%s' \"$@\"\n", program);
    if (buf_status(&script) < 0 || strchr(bundle ? bundle : program, '\''))
        return err_set(err, -EINVAL, "berth cannot be started from '%s'", bundle ? bundle : program);
    return os_write_atomic(fd, "berth", script.ptr, script.len, 0755, err);
}

/* Whether a process runs out of a folder: it may load more of it, or start itself again. */
static bool is_run_from(const char *folder)
{
    DIR *list = opendir("/proc");
    const struct dirent *e;
    bool found = !list;
    size_t n = strlen(folder);
    while (!found && list && (e = readdir(list))) {
        char link[512], target[DEPLOY_PATH_MAX];
        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        snprintf(link, sizeof link, "/proc/%.32s/exe", e->d_name);
        ssize_t got = readlink(link, target, sizeof target);
        found = got > (ssize_t)n && strncmp(target, folder, n) == 0 && target[n] == '/';
    }
    if (list)
        closedir(list);
    return found;
}

/* Copies of berth that nothing starts: units name bin/berth, which starts the one that wrote it. A folder that another deploy brings at this moment is young. */
void deploy_prune_bin(struct deploy *d)
{
    const char *own = getenv("BERTH_BUNDLE"), *base = own ? strrchr(own, '/') : NULL;
    base_autobuf struct buf dir = BUF_INIT(DEPLOY_PATH_MAX);
    time_t now = time(NULL);
    buf_addf(&dir, "%s/bin", d->dirs->state);
    os_autoclose int fd = buf_status(&dir) < 0 ? -1 : os_open_dir(dir.ptr, NULL);
    DIR *list = fd < 0 ? NULL : opendir(dir.ptr);
    const struct dirent *e;
    while (base && list && (e = readdir(list))) {
        struct stat st;
        if (e->d_name[0] == '.' || strcmp(e->d_name, base + 1) == 0 || fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode) || now - st.st_mtime < BIN_YOUNG_S)
            continue;
        base_autobuf struct buf folder = BUF_INIT(DEPLOY_PATH_MAX);
        buf_addf(&folder, "%s/%s", dir.ptr, e->d_name);
        if (buf_status(&folder) == 0 && !is_run_from(folder.ptr))
            base_ignore(os_remove_tree(fd, e->d_name, NULL)); /* tried again by the next deploy */
    }
    if (list)
        closedir(list);
}
