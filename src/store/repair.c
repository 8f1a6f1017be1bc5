/* SPDX-License-Identifier: MIT
 *
 * Writing into a payload file that is damaged, and taking over one that is somewhere else already. Both keep one promise: a file that has other names is never written to, because they belong to others (a cache of
 * huggingface_hub, another revision in the store).
 */
#include "store_int.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REVISIONS_MAX 1000 /* folders of one repository that are looked at */

/* ---- repair ----------------------------------------------------------------------------------------------------- */

/* fsync of the folder that path is in, so that a rename in it lasts. */
static int sync_folder(const char *path)
{
    base_autofree char *copy = str_dup(str_of(path));
    os_autoclose int fd = copy ? open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd < 0)
        return copy ? -errno : -ENOMEM;
    return fsync(fd) < 0 && errno != EINVAL ? -errno : 0;
}

static void repair_release(struct store_repair *r)
{
    os_closep(&r->fd);
    free(r->path);
    free(r->copy);
    *r = (struct store_repair){.fd = -1};
}

/* A copy beside the file, by reflink where the file system can: what is not damaged is then shared, and unshared where it is written. */
static int open_copy(struct store_repair *r, mode_t mode, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(STORE_PATH_MAX);
    buf_addf(&b, "%s.repair", r->path);
    r->copy = buf_take(&b);
    if (!r->copy)
        return err_nomem(err);
    if (unlink(r->copy) < 0 && errno != ENOENT) /* of a repair that was killed */
        return err_sys(err, -errno, "cannot remove '%s'", r->copy);
    int rc = os_copy_file(AT_FDCWD, r->path, AT_FDCWD, r->copy, mode | S_IWUSR, err);
    if (rc < 0) {
        free(r->copy);
        r->copy = NULL;
    }
    return rc;
}

int store_repair_begin(const char *path, uint64_t bytes, struct store_repair *ret, struct err *err)
{
    struct store_repair r = {.fd = -1, .path = str_dup(str_of(path))};
    struct stat st;
    if (!r.path)
        return err_nomem(err);
    int rc = stat(path, &st) < 0 ? err_sys(err, -errno, "cannot look at '%s'", path) : 0;
    if (rc == 0 && st.st_nlink > 1) {
        rc = store_space_check(path, (uint64_t)st.st_size, err);
        if (rc == 0)
            rc = open_copy(&r, st.st_mode & 0777, err);
    }
    if (rc == 0) {
        r.fd = open(r.copy ? r.copy : path, O_RDWR | O_CLOEXEC | O_NOCTTY);
        if (r.fd < 0 || ftruncate(r.fd, (off_t)bytes) < 0)
            rc = err_sys(err, -errno, "cannot write to '%s'", r.copy ? r.copy : path);
    }
    if (rc < 0) {
        if (r.copy)
            (void)unlink(r.copy);
        repair_release(&r);
        return rc;
    }
    *ret = r;
    return 0;
}

int store_repair_end(struct store_repair *r, bool keep, struct err *err)
{
    int rc = 0;
    if (keep && fsync(r->fd) < 0)
        rc = err_sys(err, -errno, "cannot write to '%s'", r->path);
    if (r->copy && keep && rc == 0 && rename(r->copy, r->path) < 0)
        rc = err_sys(err, -errno, "cannot replace '%s'", r->path);
    if (r->copy && (!keep || rc < 0))
        (void)unlink(r->copy);
    if (keep && rc == 0 && (rc = sync_folder(r->path)) < 0)
        (void)err_sys(err, rc, "cannot write to the folder of '%s'", r->path);
    repair_release(r);
    return rc;
}

/* ---- adoption --------------------------------------------------------------------------------------------------- */

struct adoption {
    struct store *s;
    const struct fleet_model *m;
    const struct fleet_lock_file *f;
    const char *path; /* where it belongs */
    const struct event_sink *sink;
};

/* A file of the same content under path, without its bytes being stored twice where that can be. */
static int take_over(const char *from, const char *path, struct err *err)
{
    base_autofree char *copy = str_dup(str_of(path)), *temporary = NULL;
    base_autobuf struct buf b = BUF_INIT(STORE_PATH_MAX);
    buf_addf(&b, "%s.adopt", path);
    temporary = buf_take(&b);
    if (!copy || !temporary)
        return err_nomem(err);
    int rc = os_make_dirs(dirname(copy), 0755, err);
    if (rc < 0)
        return rc;
    if (unlink(temporary) < 0 && errno != ENOENT)
        return err_sys(err, -errno, "cannot remove '%s'", temporary);
    os_autoclose int src = open(from, O_RDONLY | O_CLOEXEC), dst = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (src < 0 || dst < 0)
        return err_sys(err, -errno, "cannot make '%s' of '%s'", path, from);
    if (ioctl(dst, FICLONE, src) < 0) {
        /* without reflinks: a second name of the file itself, which links of a cache lead to */
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", src);
        rc = unlink(temporary) < 0 ? err_sys(err, -errno, "cannot remove '%s'", temporary) : 0;
        if (rc == 0 && linkat(AT_FDCWD, link, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) < 0) /* another file system, or a file that is not ours */
            rc = os_copy_file(AT_FDCWD, from, AT_FDCWD, temporary, 0644, err);
    }
    os_autoclose int done = rc == 0 ? open(temporary, O_RDONLY | O_CLOEXEC) : -1;
    if (rc == 0 && (done < 0 || fsync(done) < 0 || rename(temporary, path) < 0))
        rc = err_sys(err, -errno, "cannot put '%s' in its place", path);
    if (rc < 0)
        (void)unlink(temporary);
    else
        rc = sync_folder(path);
    return rc;
}

/* 0 when from was f and is in its place; -ENOENT when it is not f. */
static int try_file(const struct adoption *a, const char *from, struct err *err)
{
    struct stat st;
    struct store_manifest known;
    if (stat(from, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != a->f->bytes)
        return -ENOENT;
    struct store_check c = {.path = from, .want = *a->f};
    const struct store_verify_options o = {.sink = a->sink};
    event_say(a->sink, EVENT_INFO, a->f->path, "found in %s: proving it", from);
    int rc = store_verify(a->s, &c, 1, &o, err);
    bool good = rc == 0 && (c.verdict == STORE_PROVEN || c.verdict == STORE_UNCHANGED);
    store_check_release(&c);
    if (rc < 0 || !good)
        return rc < 0 ? rc : -ENOENT;
    rc = take_over(from, a->path, err);
    if (rc == 0)
        rc = store_manifest_load(a->s, from, &known, err);
    if (rc < 0)
        return rc;
    rc = store_manifest_save(a->s, a->path, &known, err);
    if (rc == 0)
        rc = store_manifest_save(a->s, from, &known, err); /* a new link has changed its ctime, and nothing else */
    store_manifest_release(&known);
    return rc;
}

/* The same file below DIR/ANY/rest. */
static int try_below(const struct adoption *a, const char *dir, const char *rest, struct err *err)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    int rc = -ENOENT;
    for (size_t n = 0; d && rc == -ENOENT && n < REVISIONS_MAX && (e = readdir(d)); n++) {
        char from[STORE_PATH_MAX];
        if (e->d_name[0] == '.' || store_pathf(from, NULL, "%s/%s/%s", dir, e->d_name, rest) < 0 || strcmp(from, a->path) == 0)
            continue;
        rc = try_file(a, from, err);
    }
    if (d)
        closedir(d);
    return rc;
}

/* Where huggingface_hub keeps what it fetched. */
static int hub_cache(char out[STORE_PATH_MAX])
{
    static const struct {
        const char *name, *below;
    } places[] = {{"HF_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"XDG_CACHE_HOME", "/huggingface/hub"}, {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < BASE_COUNT(places); i++) {
        const char *v = getenv(places[i].name);
        if (v && *v == '/')
            return store_pathf(out, NULL, "%s%s", v, places[i].below);
    }
    return -ENOENT;
}

/* models--ORG--REPO/blobs/SHA256 is the content itself; a snapshot's file leads to it, or is it where links were not possible. */
static int try_cache(const struct adoption *a, struct err *err)
{
    char cache[STORE_PATH_MAX], dir[STORE_PATH_MAX], from[STORE_PATH_MAX];
    struct str name = str_of(a->m->source_arg);
    struct str org = str_split(&name, '/');
    const char *digest = a->f->sha256 ? a->f->sha256 : a->f->git_sha1;
    if (hub_cache(cache) < 0 || store_pathf(dir, NULL, "%s/models--" STR_FMT "--" STR_FMT, cache, STR_ARG(org), STR_ARG(name)) < 0)
        return -ENOENT;
    int rc = store_pathf(from, NULL, "%s/blobs/%s", dir, digest) < 0 ? -ENOENT : try_file(a, from, err);
    if (rc == -ENOENT)
        rc = store_pathf(from, NULL, "%s/snapshots", dir) < 0 ? -ENOENT : try_below(a, from, a->f->path, err);
    return rc;
}

int store_adopt(struct store *s, const struct fleet_model *m, const struct fleet_lock_file *f, const struct event_sink *sink, struct err *err)
{
    char dir[STORE_PATH_MAX];
    base_autobuf struct buf path = BUF_INIT((size_t)2 * STORE_PATH_MAX);
    if (m->source != FLEET_MODEL_HF || !m->commit)
        return err_set(err, -ENOENT, "model '%s' is not locked to a hub's commit", m->name);
    int rc = store_payload_path(s, m, f->path, &path, err);
    if (rc == 0)
        rc = store_path(s, dir, err, "payloads/hf/%s", m->source_arg);
    if (rc < 0)
        return rc;
    const struct adoption a = {.s = s, .m = m, .f = f, .path = path.ptr, .sink = sink};
    rc = try_below(&a, dir, f->path, err);
    if (rc == -ENOENT)
        rc = try_cache(&a, err);
    return rc == -ENOENT ? err_set(err, rc, "'%s' is nowhere on this machine", f->path) : rc;
}
