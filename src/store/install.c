/* SPDX-License-Identifier: MIT
 *
 * Changes of the store: adding and removing runtimes. What happens where, so that a kill at any moment leaves no runtime that is not whole:
 *
 *   runtimes/.new-XXXXXX/{apt,tree}   made, unpacked, its rights set, started once, recorded
 *   runtimes/.new-XXXXXX/manifest.json
 *   rename to runtimes/ID             the one moment at which it begins to exist
 */
#include "store_int.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#define TRIAL_TEXT_MAX 65536
#define VERSION_MAX 40 /* of a version that a program prints */

/* ---- leftovers -------------------------------------------------------------------------------------------------- */

/* Ours, and the temporary files of os_write_atomic. */
static bool is_leftover(const char *name)
{
    return strncmp(name, ".new-", 5) == 0 || strncmp(name, ".old-", 5) == 0 || strncmp(name, ".berth-", 7) == 0;
}

static int clean_folder(const struct store *s, const char *name, struct err *err)
{
    DIR *d;
    int r = store_dir_read(s, name, &d, err);
    if (r < 0)
        return r;
    const struct dirent *e;
    while (r == 0 && (e = readdir(d)))
        if (is_leftover(e->d_name))
            r = os_remove_tree(dirfd(d), e->d_name, err);
    closedir(d);
    return r;
}

/* With the change lock held, nobody works in these. */
static int remove_leftovers(const struct store *s, struct err *err)
{
    int r = clean_folder(s, "runtimes", err);
    if (r == 0)
        r = clean_folder(s, "debs", err);
    return r < 0 ? r : clean_folder(s, "archives", err);
}

/* Takes a runtime out of sight and deletes it. */
static int discard(const struct store *s, const char *id, struct err *err)
{
    char from[STORE_PATH_MAX], to[STORE_PATH_MAX];
    int r = store_path(s, from, err, "runtimes/%s", id);
    if (r == 0)
        r = store_path(s, to, err, "runtimes/.old-XXXXXX");
    if (r < 0)
        return r;
    if (!mkdtemp(to))
        return err_sys(err, -errno, "cannot make '%s'", to);
    if (rename(from, to) < 0)
        return err_sys(err, -errno, "cannot remove runtime '%s'", id);
    os_autoclose int fd = store_dir(s, "runtimes", err);
    return fd < 0 ? fd : os_remove_tree(fd, strrchr(to, '/') + 1, err);
}

/* ---- making one --------------------------------------------------------------------------------------------------- */

/* A word of the program's first "version: X" line, or its first line, as far as it can be part of a name. */
static const char *printed_version(struct arena *a, struct str text)
{
    ptrdiff_t at = str_find(text, STR("version:"));
    struct str rest = at < 0 ? text : (struct str){text.ptr + at + 8, text.len - (size_t)at - 8};
    rest = str_trim(rest);
    char out[VERSION_MAX + 1];
    size_t n = 0;
    while (n < rest.len && n < VERSION_MAX && rest.ptr[n] > ' ') {
        char c = rest.ptr[n];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr(".+~_", c);
        out[n++] = plain ? c : '_';
    }
    out[n] = '\0';
    return arena_dup(a, n ? str_of(out) : STR("unknown"));
}

/* Links and folders that make a tree a root file system, and what that tells. */
static int finish_tree(const struct install *in, struct err *err)
{
    struct manifest *m = in->m;
    char loader[STORE_PATH_MAX];
    bool rooted = in->want->source == FLEET_SOURCE_DEBIAN || faccessat(in->treefd, "usr", F_OK, 0) == 0;
    int r = rooted ? tree_root(in->treefd, err) : 0;
    if (r == 0)
        r = tree_normalize(in->treefd, in->store->privileged, err);
    if (r < 0)
        return r;
    m->complete = tree_loader(in->treefd, m->program, loader) == 0;
    if (in->want->source == FLEET_SOURCE_DEBIAN && !m->complete)
        return err_set(err, -ENOENT, "its packages bring no loader or C library for '%s'", m->program);
    return m->complete ? tree_backends(in->treefd, loader, err) : 0;
}

/* A runtime that cannot even print its version is not kept. */
static int try_it(const struct install *in, struct err *err)
{
    char root[STORE_PATH_MAX];
    struct store_runtime rt;
    int r = store_pathf(root, err, "%s/tree", in->stage);
    if (r == 0)
        r = store_fill(in->store, "new", root, in->m, &rt, err);
    if (r < 0)
        return r;
    base_autobuf struct buf text = BUF_INIT(TRIAL_TEXT_MAX);
    enum store_confine confine;
    r = trial_run(in->store, &rt, &confine, &text, err);
    store_runtime_release(&rt);
    if (r == 0 && !*in->m->version) {
        in->m->version = printed_version(in->m->arena, buf_str(&text));
        r = in->m->version ? 0 : err_nomem(err);
    }
    return r;
}

static int fill_tree(struct install *in, struct err *err)
{
    int r;
    switch (in->want->source) {
    case FLEET_SOURCE_DEBIAN:
        r = debian_install(in, err);
        break;
    case FLEET_SOURCE_PATH:
        r = path_install(in, err);
        break;
    case FLEET_SOURCE_ARCHIVE:
        r = archive_install(in, err);
        break;
    default:
        r = system_install(in, err);
        return r < 0 ? r : try_it(in, err);
    }
    if (r == 0)
        r = finish_tree(in, err);
    if (r == 0)
        r = try_it(in, err);
    return r < 0 ? r : tree_scan(in->treefd, in->m, in->o->sink, in->subject, err);
}

static int write_manifest(struct install *in, int stagefd, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(64u << 20);
    in->m->installed_us = clk_system.real_us(NULL);
    int r = manifest_seal(in->m, err);
    if (r == 0)
        r = manifest_text(in->m, &text, err);
    if (r == 0)
        r = os_write_atomic(stagefd, "manifest.json", text.ptr, text.len, 0644, err);
    if (r == 0)
        r = os_remove_tree(stagefd, "apt", err);
    return r;
}

/* Puts the finished one in place. One of the same name is there only when it is damaged. */
static int publish(const struct install *in, struct err *err)
{
    const char *id = manifest_id(in->m);
    char to[STORE_PATH_MAX];
    int r = id ? store_path(in->store, to, err, "runtimes/%s", id) : err_nomem(err);
    if (r < 0)
        return r;
    os_autoclose int lock = -1;
    if (access(to, F_OK) == 0) {
        lock = store_lock(in->store, true, false, err);
        if (lock == -EWOULDBLOCK)
            return err_set(err, -EBUSY, "the damaged runtime '%s' is in use: stop what runs, then try again", id);
        r = lock < 0 ? lock : discard(in->store, id, err);
        if (r < 0)
            return r;
    }
    return rename(in->stage, to) < 0 ? err_sys(err, -errno, "cannot put runtime '%s' in place", id) : 0;
}

static int build(struct install *in, struct err *err)
{
    os_autoclose int stagefd = os_open_dir(in->stage, err);
    if (stagefd < 0)
        return stagefd;
    if (mkdirat(stagefd, "tree", 0755) < 0 || fchmod(stagefd, in->store->privileged ? 0755 : 0700) < 0)
        return err_sys(err, -errno, "cannot make a folder in '%s'", in->stage);
    os_autoclose int treefd = openat(stagefd, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (treefd < 0)
        return err_sys(err, -errno, "cannot open '%s/tree'", in->stage);
    in->treefd = treefd;
    int r = fill_tree(in, err);
    if (r == 0)
        r = write_manifest(in, stagefd, err);
    return r;
}

/* source and packages of the declaration into the manifest. */
static int describe_into(struct install *in, struct err *err)
{
    base_autobuf struct buf source = BUF_INIT((size_t)2 * STORE_PATH_MAX), packages = BUF_INIT(1u << 16);
    struct manifest *m = in->m;
    int r = store_describe(in->want, &source, &packages, err);
    if (r < 0)
        return r;
    m->engine = arena_dup(m->arena, str_of(in->want->engine));
    m->source = arena_dup(m->arena, buf_str(&source));
    m->packages = arena_dup(m->arena, buf_str(&packages));
    return m->engine && m->source && m->packages ? 0 : err_nomem(err);
}

static int install(struct store *s, const struct fleet_runtime *want, const struct store_add_options *o, const char *subject, int lockfd, struct store_runtime *ret,
                   struct err *err)
{
    char stage[STORE_PATH_MAX];
    int r = store_path(s, stage, err, "runtimes/.new-XXXXXX");
    if (r < 0)
        return r;
    struct install in = {.store = s, .want = want, .o = o, .subject = subject, .stage = stage, .treefd = -1, .lockfd = lockfd, .m = manifest_new()};
    if (!in.m)
        return err_nomem(err);
    r = describe_into(&in, err);
    if (r == 0 && !mkdtemp(stage))
        r = err_sys(err, -errno, "cannot make '%s'", stage);
    if (r == 0) {
        r = build(&in, err);
        if (r == 0)
            r = publish(&in, err);
        if (r < 0)
            (void)remove_leftovers(s, NULL); /* the error to tell is the first */
    }
    if (r == 0)
        r = store_fill(s, manifest_id(in.m), NULL, in.m, ret, err);
    manifest_free(in.m);
    return r;
}

/* 0 with *ret when it is there and proven; -ENOENT when it is not there; -EBADMSG with *ret when it is damaged. */
static int find_proven(struct store *s, const struct fleet_runtime *want, const struct store_add_options *o, const char *subject, struct store_runtime *ret,
                       struct err *err)
{
    int r = store_runtime_find(s, want, ret, err);
    if (r < 0)
        return r;
    r = store_runtime_verify(s, ret, o->sink, err);
    if (r < 0 && r != -EBADMSG)
        store_runtime_release(ret);
    if (r == 0 && path_changed(want, ret->installed_us))
        event_say(o->sink, EVENT_WARN, subject, "%s was changed since it was copied; the copy is used: 'berth runtime remove %s' and add take the new one",
                  want->source_arg, ret->id);
    return r;
}

int store_runtime_add(struct store *s, const struct fleet_runtime *want, const struct store_add_options *o, struct store_runtime *ret, struct err *err)
{
    char subject[FLEET_NAME_MAX + 16];
    struct store_runtime old = {0};
    struct err why;
    snprintf(subject, sizeof subject, "runtime %s", want->name);
    if (want->source == FLEET_SOURCE_OCI)
        return err_set(err, -EOPNOTSUPP, "runtime '%s' is an image: podman fetches it by its digest when its unit starts", want->name);
    int r = find_proven(s, want, o, subject, &old, &why);
    if (r == 0) {
        *ret = old;
        return 0;
    }
    store_runtime_release(&old);
    os_autoclose int change = store_lock_change(s, err);
    if (change < 0)
        return change;
    /* Somebody else may have added it while we waited. */
    r = find_proven(s, want, o, subject, &old, &why);
    if (r == 0) {
        *ret = old;
        return 0;
    }
    if (r == -EBADMSG)
        event_say(o->sink, EVENT_WARN, subject, "damaged, installing it again: %s", why.text);
    else if (r != -ENOENT)
        return err_set(err, r, "%s", why.text);
    r = remove_leftovers(s, err);
    os_interrupt_begin();
    if (r == 0)
        r = install(s, want, o, subject, change, ret, err);
    os_interrupt_end();
    if (r < 0 && r != -ENOMEM)
        (void)err_prefix(err, "runtime '%s'", want->name);
    /* A damaged one that the new one did not replace by name is of no more use; in use, it stays until it is removed by hand. */
    if (r == 0 && old.id && strcmp(old.id, ret->id) != 0) {
        os_autoclose int lock = store_lock(s, true, false, NULL);
        if (lock >= 0)
            (void)discard(s, old.id, NULL);
    }
    store_runtime_release(&old);
    return r;
}

/* ---- removing ---------------------------------------------------------------------------------------------------------- */

/* The one folder whose name begins with id, or is it. */
static int find_id(struct store *s, const char *id, char out[NAME_MAX + 1], struct err *err)
{
    DIR *d;
    int r = store_dir_read(s, "runtimes", &d, err);
    if (r < 0)
        return r;
    size_t found = 0, len = strlen(id);
    const struct dirent *e;
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.' || strncmp(e->d_name, id, len) != 0)
            continue;
        bool exact = e->d_name[len] == '\0';
        found = exact ? 1 : found + 1;
        snprintf(out, NAME_MAX + 1, "%s", e->d_name);
        if (exact)
            break;
    }
    closedir(d);
    if (found == 1)
        return 0;
    return found ? err_set(err, -ENOTUNIQ, "'%s' begins the names of %zu runtimes: write more of it", id, found)
                 : err_set(err, -ENOENT, "no runtime '%s' is installed: 'berth runtime list' shows what is", id);
}

int store_runtime_remove(struct store *s, const char *id, struct err *err)
{
    char full[NAME_MAX + 1];
    if (!os_name_valid(str_of(id)) || *id == '.')
        return err_set(err, -ENOENT, "'%s' is no name of a runtime", id);
    os_autoclose int change = store_lock_change(s, err);
    if (change < 0)
        return change;
    int r = remove_leftovers(s, err);
    if (r == 0)
        r = find_id(s, id, full, err);
    if (r < 0)
        return r;
    os_autoclose int lock = store_lock(s, true, false, err);
    if (lock == -EWOULDBLOCK)
        return err_set(err, -EBUSY, "cannot remove runtime '%s': an engine is running; stop the fleet first", full);
    return lock < 0 ? lock : discard(s, full, err);
}
