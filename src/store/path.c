/* SPDX-License-Identifier: MIT
 *
 * Sources path:DIR and system. The first is copied, links included, so that a later build in DIR changes nothing that runs. The second stays where the host
 * has it: the manifest records the program's digest, so that an upgrade of the host is noticed.
 */
#include "store_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <limits.h>

/* Paths that make no sense to copy whole: a slip of the pen would fill the disk. */
static bool too_wide(const char *path)
{
    static const char *const paths[] = {"/", "/usr", "/home", "/root", "/opt", "/srv", "/var", "/tmp"};
    for (size_t i = 0; i < BASE_COUNT(paths); i++)
        if (strcmp(path, paths[i]) == 0)
            return true;
    return false;
}

int path_install(struct install *in, struct err *err)
{
    const char *dir = in->want->source_arg;
    const char *program = engine_program(engine_find(in->m->engine));
    char real[PATH_MAX], found[STORE_PATH_MAX] = "";
    if (!realpath(dir, real))
        return err_sys(err, -errno, "cannot use the folder '%s'", dir);
    if (too_wide(real))
        return err_set(err, -EINVAL, "cannot use the folder '%s': name the folder of the build itself", dir);
    size_t len = strlen(real);
    if (strncmp(in->store->root, real, len) == 0 && (in->store->root[len] == '/' || !in->store->root[len]))
        return err_set(err, -EINVAL, "cannot use the folder '%s': berth's own store is inside", dir);
    os_autoclose int srcfd = os_open_dir(real, err);
    if (srcfd < 0)
        return srcfd;
    if (program && tree_program(srcfd, program, found) < 0)
        return err_set(err, -ENOENT, "the folder '%s' holds no program '%s', neither in itself nor in bin or usr/bin", dir, program);
    event_say(in->o->sink, EVENT_INFO, in->subject, "copying %s", dir);
    int r = tree_copy(srcfd, in->treefd, err);
    if (r < 0)
        return r;
    in->m->program = arena_dup(in->m->arena, str_of(found));
    return in->m->program ? 0 : err_nomem(err);
}

static int visit_newer(void *ctx, const struct os_entry *e, struct err *err)
{
    const uint64_t *installed_us = ctx;
    struct stat st;
    (void)err;
    if (!S_ISREG(e->mode) || fstatat(e->dirfd, e->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    return st.st_mtim.tv_sec > (time_t)(*installed_us / 1000000) ? -ESTALE : 0;
}

bool path_changed(const struct fleet_runtime *want, uint64_t installed_us)
{
    os_autoclose int fd = want->source == FLEET_SOURCE_PATH ? os_open_dir(want->source_arg, NULL) : -1;
    return fd >= 0 && os_walk(fd, visit_newer, &installed_us, NULL) == -ESTALE;
}

int system_install(struct install *in, struct err *err)
{
    const char *program = engine_program(engine_find(in->m->engine));
    base_autobuf struct buf found = BUF_INIT(STORE_PATH_MAX);
    char real[PATH_MAX] = "", digest[OS_SHA256_HEX];
    if (!program)
        return 0;
    int r = os_find_program(program, &found, err);
    if (r < 0)
        return r;
    if (!realpath(found.ptr, real))
        return err_sys(err, -errno, "cannot use '%s'", found.ptr);
    struct stat st;
    struct manifest_entry e = {.path = real + 1, .kind = MANIFEST_FILE, .detail = digest};
    r = os_digest_file(AT_FDCWD, real, digest, &e.bytes, err);
    if (r < 0)
        return r;
    if (stat(real, &st) < 0)
        return err_sys(err, -errno, "cannot look at '%s'", real);
    e.mode = st.st_mode & 0777;
    in->m->program = arena_dup(in->m->arena, str_of(real));
    return in->m->program ? manifest_add(in->m, &e, err) : err_nomem(err);
}

int system_verify(const struct manifest *m, struct err *err)
{
    for (size_t i = 0; i < m->n_entries; i++) {
        const struct manifest_entry *e = &m->entries[i];
        char path[STORE_PATH_MAX], digest[OS_SHA256_HEX];
        int r = store_pathf(path, err, "/%s", e->path);
        if (r < 0)
            return r;
        if (e->kind != MANIFEST_FILE || os_digest_file(AT_FDCWD, path, digest, NULL, NULL) < 0)
            return err_set(err, -EBADMSG, "'%s' is not there any more", path);
        if (strcmp(digest, e->detail) != 0)
            return err_set(err, -EBADMSG, "'%s' has other content: the host's program was replaced", path);
    }
    return 0;
}
