/* SPDX-License-Identifier: MIT
 *
 * What a confined engine sees of the machine, as a list of mounts that both bubblewrap and a chroot can make. A complete tree brings its own /usr; one that is not gets the host's
 * and stands at its own absolute path. Beside that: the parts of /sys that tell about processors and cards, the cards' device nodes, the user half of a
 * driver whose kernel half is the host's, a few files of /etc, and the caller's files at the paths they have outside.
 *
 * Only what exists gets into the list.
 */
#include "store_int.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <unistd.h>

/* ---- the list -------------------------------------------------------------------------------------------------- */

static int add(struct plan *p, const struct plan_item *item, struct err *err)
{
    struct plan_item *items = arena_grow(p->arena, p->items, p->n + 1, &p->cap, sizeof *items);
    if (!items)
        return err_nomem(err);
    p->items = items;
    struct plan_item copy = *item;
    copy.from = arena_dup(p->arena, str_of(item->from));
    copy.to = arena_dup(p->arena, str_of(item->to));
    if (!copy.from || !copy.to)
        return err_nomem(err);
    items[p->n++] = copy;
    return 0;
}

/* from as it is (a link stays one) at to, unless it does not exist. */
static int add_existing(struct plan *p, const char *from, const char *to, const struct plan_item *like, struct err *err)
{
    struct stat st;
    struct plan_item item = *like;
    char text[STORE_PATH_MAX];
    if (lstat(from, &st) < 0)
        return 0;
    item.from = from;
    item.to = to;
    item.is_dir = S_ISDIR(st.st_mode);
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(from, text, sizeof text - 1);
        if (n <= 0)
            return 0;
        text[n] = '\0';
        item.kind = PLAN_LINK;
        item.from = text;
        item.staged = false;
    }
    return add(p, &item, err);
}

/* As above, but what a link leads to is shown in its place. */
static int add_resolved(struct plan *p, const char *from, const char *to, const struct plan_item *like, struct err *err)
{
    char real[PATH_MAX];
    return realpath(from, real) ? add_existing(p, real, to, like, err) : 0;
}

/* ---- what every engine sees ------------------------------------------------------------------------------------- */

static const char *const tops[] = {"usr", "lib", "lib64", "lib32", "bin", "sbin", "opt"};

static int add_tree(struct plan *p, const struct store_runtime *r, struct err *err)
{
    const struct plan_item like = {.kind = PLAN_RO, .staged = true};
    for (size_t i = 0; i < BASE_COUNT(tops); i++) {
        char from[STORE_PATH_MAX], to[16];
        int code = store_pathf(from, err, "%s/%s", r->root, tops[i]);
        snprintf(to, sizeof to, "/%s", tops[i]);
        if (code == 0)
            code = add_existing(p, from, to, &like, err);
        if (code < 0)
            return code;
    }
    return 0;
}

static int add_host(struct plan *p, const struct store_runtime *r, struct err *err)
{
    static const char *const etc[] = {"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "OpenCL", "vulkan", "passwd", "group"};
    const struct plan_item like = {.kind = PLAN_RO, .same = true};
    int code = 0;
    for (size_t i = 0; code == 0 && i < BASE_COUNT(tops); i++) {
        char path[16];
        snprintf(path, sizeof path, "/%s", tops[i]);
        code = add_existing(p, path, path, &like, err);
    }
    for (size_t i = 0; code == 0 && i < BASE_COUNT(etc); i++) {
        char path[32];
        snprintf(path, sizeof path, "/etc/%s", etc[i]);
        code = add_resolved(p, path, path, &like, err);
    }
    const struct plan_item tree = {.kind = PLAN_RO, .same = true, .staged = true};
    if (code == 0 && strcmp(r->root, "/") != 0)
        code = add_existing(p, r->root, r->root, &tree, err);
    return code;
}

static int add_common(struct plan *p, struct err *err)
{
    static const char *const paths[] = {"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices",
                                        "/sys/module"};
    static const char *const devices[] = {"dri", "kfd", "dxg", "nvidia*"};
    const struct plan_item like = {.kind = PLAN_RO, .same = true}, device = {.kind = PLAN_DEV, .same = true};
    int code = 0;
    for (size_t i = 0; code == 0 && i < BASE_COUNT(paths); i++)
        code = add_resolved(p, paths[i], paths[i], &like, err);
    DIR *d = code == 0 ? opendir("/dev") : NULL;
    if (!d)
        return code;
    const struct dirent *e;
    while (code == 0 && (e = readdir(d)))
        for (size_t i = 0; code == 0 && i < BASE_COUNT(devices); i++)
            if (fnmatch(devices[i], e->d_name, 0) == 0) {
                char path[NAME_MAX + 8];
                snprintf(path, sizeof path, "/dev/%s", e->d_name);
                code = add_existing(p, path, path, &device, err);
            }
    closedir(d);
    return code;
}

/* NVIDIA's user libraries must match the kernel's module, so they come from the host. Those of other cards work with any kernel and are packages of the runtime. */
static int add_drivers(struct plan *p, struct err *err)
{
    static const char *const folders[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/x86_64-linux-gnu/nvidia/current",
                                          "/usr/lib/aarch64-linux-gnu/nvidia/current", "/usr/lib/wsl/lib"};
    static const char *const libraries[] = {"libcuda.so*", "libnvidia-*.so*", "libGLX_nvidia.so*", "libdxcore.so*"};
    static const char *const icds[] = {"/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"};
    const struct plan_item like = {.kind = PLAN_RO};
    int code = 0;
    for (size_t f = 0; code == 0 && f < BASE_COUNT(folders); f++) {
        DIR *d = opendir(folders[f]);
        if (!d)
            continue;
        const struct dirent *e;
        while (code == 0 && (e = readdir(d)))
            for (size_t i = 0; code == 0 && i < BASE_COUNT(libraries); i++)
                if (fnmatch(libraries[i], e->d_name, 0) == 0) {
                    char from[STORE_PATH_MAX], to[NAME_MAX + sizeof PLAN_DRIVERS + 2];
                    code = store_pathf(from, err, "%s/%s", folders[f], e->d_name);
                    snprintf(to, sizeof to, PLAN_DRIVERS "/%s", e->d_name);
                    if (code == 0)
                        code = add_resolved(p, from, to, &like, err);
                    p->has_drivers = true;
                }
        closedir(d);
    }
    for (size_t i = 0; code == 0 && p->has_drivers && i < BASE_COUNT(icds); i++)
        code = add_resolved(p, icds[i], "/etc/vulkan/icd.d/nvidia_icd.json", &like, err);
    return code;
}

/* ---- the caller's files -------------------------------------------------------------------------------------------- */

/* The item that path lies below, or n. */
static size_t find_above(const struct plan *p, const char *path)
{
    for (size_t i = 0; i < p->n; i++) {
        size_t len = strlen(p->items[i].to);
        if (strncmp(path, p->items[i].to, len) == 0 && path[len] == '/')
            return i;
    }
    return p->n;
}

static bool is_taken(const struct plan *p, const char *path)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(path, p->items[i].to) == 0)
            return true;
    return false;
}

/* Shows the children of a folder one by one in its stead, so that something else can be put between them: inside a read-only mount nothing can be made. */
static int split(struct plan *p, size_t i, struct err *err)
{
    struct plan_item whole = p->items[i];
    p->items[i] = p->items[--p->n];
    DIR *d = opendir(whole.from);
    if (!d)
        return err_sys(err, -errno, "cannot open folder '%s'", whole.from);
    int code = 0;
    const struct dirent *e;
    while (code == 0 && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        char from[STORE_PATH_MAX], to[STORE_PATH_MAX];
        code = store_pathf(from, err, "%s/%s", whole.from, e->d_name);
        if (code == 0)
            code = store_pathf(to, err, "%s/%s", whole.to, e->d_name);
        if (code == 0)
            code = add_existing(p, from, to, &whole, err);
    }
    closedir(d);
    return code;
}

static bool is_below(const char *path, const char *top)
{
    size_t len = strlen(top);
    return strncmp(path, top, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static int add_bind(struct plan *p, const struct store_bind *b, struct err *err)
{
    char real[PATH_MAX];
    struct stat st;
    if (b->path[0] != '/' || !os_relpath_valid(str_of(b->path + 1)))
        return err_set(err, -EINVAL, "cannot show '%s' to the engine: not a plain absolute path", b->path);
    if (is_below(b->path, "/proc") || is_below(b->path, "/dev") || is_below(b->path, "/sys"))
        return err_set(err, -EINVAL, "cannot show '%s' to the engine: files of the kernel are not shown", b->path);
    if (!realpath(b->path, real) || stat(real, &st) < 0)
        return err_sys(err, -errno, "cannot show '%s' to the engine", b->path);
    struct plan_item item = {.kind = b->writable ? PLAN_RW : PLAN_RO, .from = real, .to = b->path, .is_dir = S_ISDIR(st.st_mode), .same = true,
                             .staged = !b->writable};
    size_t i;
    while ((i = find_above(p, b->path)) < p->n) {
        if (p->items[i].kind == PLAN_LINK)
            return err_set(err, -EINVAL, "cannot show '%s' to the engine: it has its own '%s'", b->path, p->items[i].to);
        if (p->items[i].same)
            return b->writable && p->items[i].kind != PLAN_RW ? add(p, &item, err) : 0;
        int code = split(p, i, err);
        if (code < 0)
            return code;
    }
    if (!is_taken(p, b->path))
        return add(p, &item, err);
    for (i = 0; i < p->n; i++)
        if (strcmp(p->items[i].to, b->path) == 0 && p->items[i].same)
            return 0;
    return err_set(err, -EINVAL, "cannot show '%s' to the engine: it has its own", b->path);
}

static int compare_binds(const void *a, const void *b)
{
    return strcmp(((const struct store_bind *)a)->path, ((const struct store_bind *)b)->path);
}

static int add_binds(struct plan *p, const struct store_bind *binds, size_t n, struct err *err)
{
    struct store_bind *sorted = arena_alloc(p->arena, n + 1, sizeof *sorted);
    if (!sorted)
        return err_nomem(err);
    if (n) {
        memcpy(sorted, binds, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_binds);
    }
    int code = 0;
    for (size_t i = 0; code == 0 && i < n; i++)
        code = add_bind(p, &sorted[i], err);
    return code;
}

int plan_make(struct plan *p, struct arena *a, const struct store_runtime *r, const struct store_bind *binds, size_t n_binds, struct err *err)
{
    *p = (struct plan){.arena = a};
    int code = r->complete ? add_tree(p, r, err) : add_host(p, r, err);
    if (code == 0)
        code = add_common(p, err);
    if (code == 0 && r->complete)
        code = add_drivers(p, err);
    return code < 0 ? code : add_binds(p, binds, n_binds, err);
}
