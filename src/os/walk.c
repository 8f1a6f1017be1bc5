/* SPDX-License-Identifier: MIT
 *
 * Directory trees: made, walked and removed. Everything below a start is reached by openat from one directory to the
 * next, never through a link, so that a tree whose content is hostile cannot lead elsewhere; removing stops at mounts too.
 * Names are read whole and sorted before anything is done with them: the order is the same everywhere, and removing does
 * not disturb the reading.
 */
#include "os_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REMOVE_DEPTH 256       /* one open descriptor each; far deeper than anything that we unpack */
#define NAMES_BYTES (64u << 20) /* a directory with more is refused: it would be about a million files */

/* ---- names --------------------------------------------------------------------------------------- */

/* The names in a directory, in byte order, without "." and "..". */
struct names {
    struct buf bytes; /* each terminated, one behind the other */
    const char **sorted;
    size_t n;
};

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int collect(DIR *dir, struct names *names)
{
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (!e)
            return -errno;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        buf_add(&names->bytes, e->d_name, strlen(e->d_name) + 1);
        names->n++;
        if (buf_status(&names->bytes) < 0)
            return buf_status(&names->bytes);
    }
}

static int sort(struct names *names)
{
    names->sorted = calloc(names->n ? names->n : 1, sizeof(*names->sorted));
    if (!names->sorted)
        return -ENOMEM;
    const char *at = names->bytes.ptr;
    for (size_t i = 0; i < names->n; i++) {
        names->sorted[i] = at;
        at += strlen(at) + 1;
    }
    qsort(names->sorted, names->n, sizeof(*names->sorted), by_bytes);
    return 0;
}

static void names_release(struct names *n)
{
    buf_release(&n->bytes);
    free(n->sorted);
    n->sorted = NULL;
    n->n = 0;
}

/* fd stays the caller's and may be read again. */
static int names_read(int fd, struct names *ret)
{
    struct names names = {.bytes = BUF_INIT(NAMES_BYTES)};
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* a dup would share the reading position */
    if (own < 0)
        return -errno;
    DIR *dir = fdopendir(own);
    if (!dir) {
        os_closep(&own);
        return -ENOMEM;
    }
    int r = collect(dir, &names);
    if (r == 0)
        r = sort(&names);
    closedir(dir);
    if (r < 0)
        names_release(&names);
    else
        *ret = names;
    return r;
}

/* Opens a directory below dirfd, never through a link and never into another mount. A descriptor or a negative errno. */
static int open_below(int dirfd, const char *name)
{
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW,
                           .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH};
    long fd;
    do {
        fd = syscall(SYS_openat2, dirfd, name, &how, sizeof(how));
    } while (fd < 0 && errno == EAGAIN); /* a rename somewhere made the kernel unsure */
    return fd >= 0 ? (int)fd : -errno;
}

/* ---- making -------------------------------------------------------------------------------------- */

static int make_dir(const char *path, mode_t mode)
{
    if (mkdir(path, mode) == 0)
        return 0;
    int code = -errno;
    struct stat st;
    if (stat(path, &st) < 0)
        return code;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

int os_make_dirs(const char *path, mode_t mode, struct err *err)
{
    char text[OS_PATH_TEXT];
    base_autofree char *part = str_dup(str_of(path));
    if (!part)
        return err_nomem(err);
    size_t len = strlen(part);
    while (len > 1 && part[len - 1] == '/')
        part[--len] = '\0';
    for (char *slash = part; (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        int r = make_dir(part, (mode | 0111) & 0755);
        if (r < 0)
            return err_sys(err, r, "cannot make folder '%s'", os_path_text(AT_FDCWD, part, text));
        *slash = '/';
    }
    int r = make_dir(part, mode);
    return r < 0 ? err_sys(err, r, "cannot make folder '%s'", os_path_text(AT_FDCWD, part, text)) : 0;
}

int os_open_dir(const char *path, struct err *err)
{
    char text[OS_PATH_TEXT];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : err_sys(err, -errno, "cannot open folder '%s'", os_path_text(AT_FDCWD, path, text));
}

/* ---- removing ------------------------------------------------------------------------------------ */

static int remove_below(int dirfd, const char *name, unsigned depth, struct err *err);

static int empty_dir(int dirfd, const char *name, unsigned depth, struct err *err)
{
    char text[OS_PATH_TEXT];
    if (depth > REMOVE_DEPTH)
        return err_set(err, -ELOOP, "cannot remove '%s': more than %d folders deep", os_path_text(dirfd, name, text), REMOVE_DEPTH);
    os_autoclose int fd = open_below(dirfd, name);
    if (fd == -EXDEV)
        return err_set(err, -EXDEV, "cannot remove '%s': another file system is mounted there", os_path_text(dirfd, name, text));
    if (fd < 0)
        return err_sys(err, fd, "cannot open folder '%s'", os_path_text(dirfd, name, text));
    struct stat st;
    if (fstat(fd, &st) == 0 && (st.st_mode & 0300) != 0300)
        (void)fchmod(fd, 0700); /* unpacked trees have read-only folders; when it fails, removing says why */
    struct names names = {.n = 0};
    int r = names_read(fd, &names);
    if (r < 0)
        return err_sys(err, r, "cannot read folder '%s'", os_path_text(dirfd, name, text));
    for (size_t i = 0; r == 0 && i < names.n; i++)
        r = remove_below(fd, names.sorted[i], depth + 1, err);
    names_release(&names);
    return r;
}

static int remove_below(int dirfd, const char *name, unsigned depth, struct err *err)
{
    char text[OS_PATH_TEXT];
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
        return 0;
    struct stat st;
    int code = -errno;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        return err_sys(err, code, "cannot remove '%s'", os_path_text(dirfd, name, text));
    int r = empty_dir(dirfd, name, depth, err);
    if (r == 0 && unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        r = err_sys(err, -errno, "cannot remove '%s'", os_path_text(dirfd, name, text));
    return r;
}

int os_remove_tree(int dirfd, const char *name, struct err *err)
{
    char text[OS_PATH_TEXT];
    if (!os_name_valid(str_of(name)))
        return err_set(err, -EINVAL, "cannot remove '%s': not a name", os_path_text(AT_FDCWD, name, text));
    return remove_below(dirfd, name, 1, err);
}

int os_remove_path(const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');
    if (path[0] != '/')
        return err_set(err, -EINVAL, "cannot remove '%s': not an absolute path", path);
    base_autofree char *dir = str_dup((struct str){path, slash == path ? 1 : (size_t)(slash - path)});
    if (!dir)
        return err_nomem(err);
    os_autoclose int fd = os_open_dir(dir, err);
    return fd == -ENOENT ? 0 : fd < 0 ? fd : os_remove_tree(fd, slash + 1, err);
}

/* ---- walking ------------------------------------------------------------------------------------- */

struct walk {
    int (*visit)(void *ctx, const struct os_entry *e, struct err *err);
    void *ctx;
    struct buf path;
};

static int walk_dir(struct walk *w, int fd, unsigned depth, struct err *err);

static int walk_entry(struct walk *w, int fd, const char *name, unsigned depth, struct err *err)
{
    if (os_interrupted())
        return err_set(err, -EINTR, "interrupted");
    char text[OS_PATH_TEXT];
    struct stat st;
    if (depth > OS_WALK_DEPTH)
        return err_set(err, -ELOOP, "'%s' is more than %d folders deep", os_path_text(fd, name, text), OS_WALK_DEPTH);
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, -errno, "cannot look at '%s'", os_path_text(fd, name, text));
    struct os_entry e = {
        .path = w->path.ptr, .dirfd = fd, .name = name, .mode = st.st_mode, .size = (uint64_t)st.st_size};
    int r = w->visit(w->ctx, &e, err);
    if (r < 0 || !S_ISDIR(st.st_mode))
        return r;
    os_autoclose int below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (below < 0)
        return err_sys(err, -errno, "cannot open folder '%s'", os_path_text(fd, name, text));
    return walk_dir(w, below, depth + 1, err);
}

static int walk_dir(struct walk *w, int fd, unsigned depth, struct err *err)
{
    char text[OS_PATH_TEXT];
    struct names names = {.n = 0};
    int r = names_read(fd, &names);
    if (r < 0)
        return err_sys(err, r, "cannot read folder '%s'", os_path_text(fd, "", text));
    size_t before = w->path.len;
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        if (before)
            buf_add_char(&w->path, '/');
        buf_add_c(&w->path, names.sorted[i]);
        r = buf_status(&w->path) < 0 ? err_nomem(err) : walk_entry(w, fd, names.sorted[i], depth, err);
        if (w->path.ptr) {
            w->path.len = before;
            w->path.ptr[before] = '\0';
        }
    }
    names_release(&names);
    return r;
}

int os_walk(int dirfd, int (*visit)(void *ctx, const struct os_entry *e, struct err *err), void *ctx, struct err *err)
{
    struct walk w = {.visit = visit, .ctx = ctx, .path = BUF_INIT((size_t)(OS_WALK_DEPTH + 1) * (NAME_MAX + 1))};
    int r = walk_dir(&w, dirfd, 1, err);
    buf_release(&w.path);
    return r;
}
