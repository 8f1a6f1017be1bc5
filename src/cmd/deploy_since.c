/* SPDX-License-Identifier: MIT
 *
 * A fleet as it was declared at a git revision: the file, its lock and the templates that it names, read out of the repository with git's own command into a scratch folder. The working tree is not touched.
 */
#include "deploy_host_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define GIT_MS 30000
#define FILE_MAX ((size_t)4 << 20) /* of one file */

extern char **environ;

/* A file below the fleet file's folder at a revision. -EIO: git has it not, err has what it says. */
static int show(const char *dir, const char *revision, const char *file, struct buf *out, struct err *err)
{
    base_autobuf struct buf what = BUF_INIT(8192);
    buf_addf(&what, "%s:./%s", revision, file);
    if (buf_status(&what) < 0)
        return err_nomem(err);
    const char *const argv[] = {"git", "-C", dir, "show", what.ptr, NULL};
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .use_path = true, .new_group = true};
    int r = os_run_ok(&s, GIT_MS, out, err);
    if (r == -ENOENT)
        return err_set(err, -EINVAL, "'git' is not here: install it, or give the number of a version that the hosts keep");
    if (r == 0 && out->len == out->max)
        return err_set(err, -E2BIG, "'%s' was too large at '%s'", file, revision);
    return r == -EIO ? err_prefix(err, "git cannot show '%s' at '%s'", file, revision) : r;
}

static int write_below(const char *folder, const char *file, const struct buf *text, struct err *err)
{
    base_autobuf struct buf dir = BUF_INIT(8192);
    const char *slash = strrchr(file, '/');
    buf_addf(&dir, "%s/%.*s", folder, slash ? (int)(slash - file) : 0, file);
    if (buf_status(&dir) < 0)
        return err_nomem(err);
    int r = os_make_dirs(dir.ptr, 0700, err);
    os_autoclose int fd = r < 0 ? -1 : os_open_dir(dir.ptr, err);
    if (fd < 0)
        return r < 0 ? r : fd;
    return os_write_atomic(fd, slash ? slash + 1 : file, text->ptr ? text->ptr : "", text->len, 0600, err);
}

/* One file; needed: it must have been there. */
static int fetch(const struct fleet *f, const char *revision, const char *file, const char *folder, bool needed, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(FILE_MAX);
    int r = show(f->dir, revision, file, &text, err);
    if (r == -EIO && !needed)
        return 0;
    return r < 0 ? (r == -EIO ? err->code = -EINVAL : r) : write_below(folder, file, &text, err);
}

/* Templates that the file named then and that lie beside it; one that is elsewhere has no past. */
static int fetch_templates(const struct fleet *f, const char *revision, const struct fleet *then, struct err *err)
{
    size_t dir = strlen(then->dir);
    int r = 0;
    for (size_t i = 0; r == 0 && i < then->n_models; i++) {
        const char *t = then->models[i].template_file;
        if (t && strncmp(t, then->dir, dir) == 0 && t[dir] == '/' && os_relpath_valid(str_of(t + dir + 1)))
            r = fetch(f, revision, t + dir + 1, then->dir, true, err);
    }
    return r;
}

int deploy_since_get(const struct fleet *f, const char *revision, struct deploy_since *ret, struct err *err)
{
    char folder[] = "/tmp/berth-since-XXXXXX";
    const char *slash = strrchr(f->file, '/'), *name = slash ? slash + 1 : f->file;
    base_autobuf struct buf lock = BUF_INIT(8192), path = BUF_INIT(8192);
    struct fleet_options options = engine_fleet_options();
    struct err ignored;
    *ret = (struct deploy_since){0};
    err = err ? err : &ignored;
    if (revision[0] == '-' || revision[0] == '\0' || strchr(revision, ':'))
        return err_set(err, -EINVAL, "'%.60s' is no revision: give a branch, a tag or a commit, or the number of a version that the hosts keep", revision);
    if (!mkdtemp(folder))
        return err_sys(err, -errno, "cannot make a folder");
    ret->folder = str_dup(str_of(folder));
    fleet_lock_path(name, &lock);
    buf_addf(&path, "%s/%s", folder, name);
    if (!ret->folder || buf_status(&lock) < 0 || buf_status(&path) < 0) {
        base_ignore(os_remove_path(folder, NULL)); /* it is empty, and below /tmp */
        return err_nomem(err);
    }
    int r = fetch(f, revision, name, folder, true, err);
    if (r == 0)
        r = fetch(f, revision, lock.ptr, folder, false, err);
    if (r == 0 && (r = fleet_load(path.ptr, &options, &ret->fleet, err)) < 0)
        err_prefix(err, "the fleet file at '%s'", revision);
    if (r == 0)
        r = fetch_templates(f, revision, ret->fleet, err);
    if (r < 0)
        deploy_since_clear(ret);
    return r;
}

void deploy_since_clear(struct deploy_since *s)
{
    fleet_free(s->fleet);
    if (s->folder)
        base_ignore(os_remove_path(s->folder, NULL)); /* it is below /tmp */
    free(s->folder);
    *s = (struct deploy_since){0};
}
