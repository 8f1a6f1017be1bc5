/* SPDX-License-Identifier: MIT
 *
 * What a tree holds and what a program needs of it: where the server is, which loader starts it, and what Debian's packages leave to
 * the machine: the links of a merged /usr, the folders that mounts go to, ggml's back ends where the loader form finds them.
 * Nothing is named by architecture: the program says which loader it wants, and the loader's folder is the library folder.
 */
#include "store_int.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROGRAM_HEADERS_MAX 128

/* Opens path inside the tree as a process would whose root it is: links, absolute ones too, resolve below treefd. */
static int open_in_root(int treefd, const char *path, uint64_t flags)
{
    struct open_how how = {.flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, treefd, path, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

int tree_program(int treefd, const char *name, char out[STORE_PATH_MAX])
{
    static const char *const folders[] = {"usr/bin/", "bin/", ""};
    for (size_t i = 0; i < BASE_COUNT(folders); i++) {
        int r = store_pathf(out, NULL, "/%s%s", folders[i], name);
        if (r < 0)
            return r;
        os_autoclose int fd = open_in_root(treefd, out, O_RDONLY);
        struct stat st;
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111))
            return 0;
    }
    return -ENOENT;
}

/* ---- the loader ---------------------------------------------------------------------------------------------- */

static bool read_at(int fd, void *to, size_t len, uint64_t at)
{
    return at <= INT64_MAX && pread(fd, to, len, (off_t)at) == (ssize_t)len;
}

/* The interpreter that a dynamic 64-bit program of this byte order names. -ENOENT for anything else (a script, a static program). */
static int elf_interpreter(int fd, char out[STORE_PATH_MAX])
{
    Elf64_Ehdr eh;
    if (!read_at(fd, &eh, sizeof eh, 0) || memcmp(eh.e_ident, ELFMAG, SELFMAG) != 0 || eh.e_ident[EI_CLASS] != ELFCLASS64 ||
        eh.e_ident[EI_DATA] != ELFDATA2LSB || eh.e_phentsize != sizeof(Elf64_Phdr))
        return -ENOENT;
    for (uint16_t i = 0; i < eh.e_phnum && i < PROGRAM_HEADERS_MAX; i++) {
        Elf64_Phdr ph;
        uint64_t at;
        if (!size_add(eh.e_phoff, i * sizeof ph, &at) || !read_at(fd, &ph, sizeof ph, at))
            return -ENOENT;
        if (ph.p_type != PT_INTERP)
            continue;
        if (ph.p_filesz < 2 || ph.p_filesz > STORE_PATH_MAX || !read_at(fd, out, ph.p_filesz, ph.p_offset))
            return -ENOENT;
        out[ph.p_filesz - 1] = '\0';
        return *out == '/' ? 0 : -ENOENT;
    }
    return -ENOENT;
}

/* Where treefd's file fd really is, relative to the tree. */
static int real_path(int treefd, int fd, char out[STORE_PATH_MAX])
{
    char link[64], tree[STORE_PATH_MAX], file[STORE_PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", treefd);
    ssize_t nt = readlink(link, tree, sizeof tree - 1);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t nf = readlink(link, file, sizeof file - 1);
    if (nt <= 0 || nf <= 0)
        return -ENOENT;
    tree[nt] = file[nf] = '\0';
    if (nt == 1) /* the tree is "/" */
        nt = 0;
    if (nf <= nt + 1 || strncmp(tree, file, (size_t)nt) != 0 || file[nt] != '/')
        return -ENOENT;
    return store_pathf(out, NULL, "%s", file + nt + 1);
}

static bool has_libc(int treefd, const char *loader)
{
    char path[STORE_PATH_MAX];
    const char *slash = strrchr(loader, '/');
    int len = slash ? (int)(slash - loader) : 0;
    if (store_pathf(path, NULL, "/%.*s/libc.so.6", len, loader) < 0)
        return false;
    os_autoclose int fd = open_in_root(treefd, path, O_RDONLY);
    return fd >= 0;
}

/* The first loader where 64-bit systems have theirs, for a tree whose program is not known. */
static int any_loader(int treefd, char out[STORE_PATH_MAX])
{
    static const char *const folders[] = {"/lib64", "/lib", "/usr/lib64", "/usr/lib"};
    for (size_t i = 0; i < BASE_COUNT(folders); i++) {
        int fd = open_in_root(treefd, folders[i], O_RDONLY | O_DIRECTORY);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
        if (!d) {
            os_closep(&fd);
            continue;
        }
        int r = -ENOENT;
        const struct dirent *e;
        while (r < 0 && (e = readdir(d)))
            if (strncmp(e->d_name, "ld-linux-", 9) == 0)
                r = store_pathf(out, NULL, "%s/%s", folders[i], e->d_name);
        closedir(d);
        if (r == 0)
            return 0;
    }
    return -ENOENT;
}

int tree_loader(int treefd, const char *program, char out[STORE_PATH_MAX])
{
    char asked[STORE_PATH_MAX];
    int r;
    if (*program) {
        os_autoclose int fd = open_in_root(treefd, program, O_RDONLY);
        r = fd < 0 ? fd : elf_interpreter(fd, asked);
    } else {
        r = any_loader(treefd, asked);
    }
    if (r < 0)
        return r;
    os_autoclose int loader = open_in_root(treefd, asked, O_RDONLY);
    struct stat st;
    if (loader < 0 || fstat(loader, &st) < 0 || !S_ISREG(st.st_mode))
        return -ENOENT;
    char found[STORE_PATH_MAX];
    r = real_path(treefd, loader, found);
    if (r < 0)
        return r;
    return has_libc(treefd, found) ? store_pathf(out, NULL, "%s", found) : -ENOENT;
}

/* ---- what the packages leave out -------------------------------------------------------------------------------- */

int tree_root(int treefd, struct err *err)
{
    static const char *const merged[] = {"lib", "lib64", "lib32", "bin", "sbin"};
    static const char *const mounts[] = {"proc", "sys", "dev", "tmp", "etc", "run"};
    for (size_t i = 0; i < BASE_COUNT(merged); i++) {
        char target[32];
        snprintf(target, sizeof target, "usr/%s", merged[i]);
        if (faccessat(treefd, target, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && symlinkat(target, treefd, merged[i]) < 0 && errno != EEXIST)
            return err_sys(err, -errno, "cannot make link '%s'", merged[i]);
    }
    for (size_t i = 0; i < BASE_COUNT(mounts); i++)
        if (mkdirat(treefd, mounts[i], 0755) < 0 && errno != EEXIST)
            return err_sys(err, -errno, "cannot make folder '%s'", mounts[i]);
    return 0;
}

static int link_backend(int libfd, const char *folder, const char *name, struct err *err)
{
    char target[STORE_PATH_MAX];
    struct str n = str_of(name);
    if (!str_starts(n, STR("lib")) || !str_ends(n, STR(".so")))
        return 0;
    int r = store_pathf(target, err, "ggml/%s/%s", folder, name);
    if (r < 0)
        return r;
    return symlinkat(target, libfd, name) < 0 && errno != EEXIST ? err_sys(err, -errno, "cannot make link '%s'", name) : 0;
}

int tree_backends(int treefd, const char *loader, struct err *err)
{
    char lib[STORE_PATH_MAX], path[STORE_PATH_MAX];
    const char *slash = strrchr(loader, '/');
    int r = store_pathf(lib, err, "%.*s", slash ? (int)(slash - loader) : 0, loader);
    if (r < 0 || !slash)
        return r;
    os_autoclose int libfd = openat(treefd, lib, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int ggml = libfd < 0 ? -1 : openat(libfd, "ggml", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = ggml < 0 ? NULL : fdopendir(ggml);
    if (!d) {
        os_closep(&ggml);
        return 0; /* not an engine on ggml */
    }
    const struct dirent *e;
    while (r == 0 && (e = readdir(d))) {
        if (strncmp(e->d_name, "backends", 8) != 0 || store_pathf(path, NULL, "ggml/%s", e->d_name) < 0)
            continue;
        int fd = openat(libfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *b = fd < 0 ? NULL : fdopendir(fd);
        if (!b) {
            os_closep(&fd);
            continue;
        }
        const struct dirent *f;
        while (r == 0 && (f = readdir(b)))
            r = link_backend(libfd, e->d_name, f->d_name, err);
        closedir(b);
    }
    closedir(d);
    return r;
}
