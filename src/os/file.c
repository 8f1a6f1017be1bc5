/* SPDX-License-Identifier: MIT
 *
 * Files: read whole with a ceiling, write so that a reader sees the old content or the new and never a part, copy as cheaply as
 * the file system allows. A path that turns out to be a pipe or a device is refused instead of waited for.
 */
#include "os_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK 65536
#define TEMPORARY ".berth-" /* and 16 digits */
#define TEMPORARY_LEN (sizeof(TEMPORARY) - 1 + 16)

void os_closep(int *fd)
{
    if (*fd < 0)
        return;
    int saved = errno;
    (void)close(*fd);
    *fd = -1;
    errno = saved;
}

int os_take_fd(int *fd)
{
    int ret = *fd;
    *fd = -1;
    return ret;
}

/* After a failed read or write: waits when the descriptor is only not ready. 0 to try again, else -errno. */
static int ready_again(int fd, short events)
{
    if (errno == EINTR)
        return 0;
    if (errno != EAGAIN)
        return -errno;
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, -1) < 0 && errno != EINTR ? -errno : 0;
}

/* One read, ready or not. */
static ssize_t read_some(int fd, void *to, size_t len)
{
    for (;;) {
        ssize_t n = read(fd, to, len);
        if (n >= 0)
            return n;
        int r = ready_again(fd, POLLIN);
        if (r < 0)
            return r;
    }
}

static int write_full(int fd, const void *data, size_t len)
{
    const char *from = data;
    while (len) {
        ssize_t n = write(fd, from, len);
        if (n > 0) {
            from += n;
            len -= (size_t)n;
            continue;
        }
        int r = n == 0 ? -EIO : ready_again(fd, POLLOUT);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Until the end of fd. -EFBIG at the ceiling, which only one byte more than it can tell. */
static int read_to_end(int fd, size_t first, struct buf *out)
{
    size_t want = first;
    for (;;) {
        size_t room = out->max - out->len;
        char extra;
        char *to = room ? buf_room(out, want < room ? want : room) : &extra;
        if (!to)
            return -ENOMEM;
        ssize_t n = read_some(fd, to, !room ? 1 : want < room ? want : room);
        if (n <= 0)
            return (int)n;
        if (!room)
            return -EFBIG;
        buf_grew(out, (size_t)n);
        want = CHUNK;
    }
}

/* Opens a regular file. The open does not block on a pipe that nobody writes to. */
static int open_regular(int dirfd, const char *path, struct stat *st)
{
    os_autoclose int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, st) < 0)
        return -errno;
    if (S_ISDIR(st->st_mode))
        return -EISDIR;
    if (!S_ISREG(st->st_mode))
        return -ENODEV;
    return os_take_fd(&fd);
}

static int open_error(struct err *err, int code, int dirfd, const char *path)
{
    char text[OS_PATH_TEXT];
    if (code == -ENODEV)
        return err_set(err, -EINVAL, "cannot read '%s': not a regular file", os_path_text(dirfd, path, text));
    return err_sys(err, code, "cannot open '%s'", os_path_text(dirfd, path, text));
}

int os_read_file(int dirfd, const char *path, struct buf *out, struct err *err)
{
    char text[OS_PATH_TEXT];
    struct stat st = {0};
    os_autoclose int fd = open_regular(dirfd, path, &st);
    if (fd < 0)
        return open_error(err, fd, dirfd, path);
    size_t before = out->len;
    uint64_t size = (uint64_t)st.st_size;
    /* Files of /proc and /sys say 0 and have content, so the size only saves work. */
    int r = size > out->max - before ? -EFBIG : read_to_end(fd, size ? (size_t)size + 1 : CHUNK, out);
    if (r == 0)
        return 0;
    out->len = before;
    if (out->ptr)
        out->ptr[before] = '\0';
    if (r == -EFBIG) {
        char most[UNITS_TEXT];
        return err_set(err, r, "cannot read '%s': larger than %s", os_path_text(dirfd, path, text),
                       units_show_bytes(out->max - before, most));
    }
    return err_sys(err, r, "cannot read '%s'", os_path_text(dirfd, path, text));
}

int os_read_all(int fd, struct buf *out, struct err *err)
{
    char text[OS_PATH_TEXT];
    int r = read_to_end(fd, CHUNK, out);
    return r < 0 ? err_sys(err, r, "cannot read from '%s'", os_path_text(fd, "", text)) : 0;
}

int os_write_all(int fd, const void *data, size_t len, struct err *err)
{
    char text[OS_PATH_TEXT];
    int r = write_full(fd, data, len);
    return r < 0 ? err_sys(err, r, "cannot write to '%s'", os_path_text(fd, "", text)) : 0;
}

/* ---- replacing ---------------------------------------------------------------------------------- */

static int sync_dir(int dirfd)
{
    os_autoclose int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return fsync(fd) < 0 && errno != EINVAL ? -errno : 0; /* EINVAL: a file system without such a thing */
}

/* A file beside the target that nobody else uses. */
static int open_temporary(int dirfd, char name[32])
{
    for (unsigned tries = 0; tries < 16; tries++) {
        uint64_t random;
        if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
            return -EIO;
        snprintf(name, 32, TEMPORARY "%016llx", (unsigned long long)random);
        int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd >= 0 ? fd : -errno;
    }
    return -EEXIST;
}

/* like: whose rights and owner the file gets, as far as we may give them; NULL: mode, and ours. */
static int write_renamed(int dirfd, const char *name, const void *data, size_t len, mode_t mode, const struct stat *like, struct err *err)
{
    char text[OS_PATH_TEXT], temporary[32];
    if (!os_name_valid(str_of(name)))
        return err_set(err, -EINVAL, "cannot write '%s': not the name of a file", os_path_text(AT_FDCWD, name, text));
    os_autoclose int fd = open_temporary(dirfd, temporary);
    if (fd < 0)
        return err_sys(err, fd, "cannot write '%s'", os_path_text(dirfd, name, text));
    int r = write_full(fd, data, len);
    if (r == 0 && like && fchown(fd, like->st_uid, like->st_gid) < 0)
        base_ignore(fchown(fd, (uid_t)-1, like->st_gid)); /* another account's file in a folder that we may write to becomes ours */
    if (r == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0 || renameat(dirfd, temporary, dirfd, name) < 0))
        r = -errno;
    if (r < 0)
        (void)unlinkat(dirfd, temporary, 0);
    else
        r = sync_dir(dirfd);
    return r < 0 ? err_sys(err, r, "cannot write '%s'", os_path_text(dirfd, name, text)) : 0;
}

int os_write_atomic(int dirfd, const char *name, const void *data, size_t len, mode_t mode, struct err *err)
{
    return write_renamed(dirfd, name, data, len, mode, NULL, err);
}

int os_replace_atomic(int dirfd, const char *name, const void *data, size_t len, struct err *err)
{
    char text[OS_PATH_TEXT];
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, -errno, "cannot write '%s'", os_path_text(dirfd, name, text));
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "cannot write '%s': not a regular file", os_path_text(dirfd, name, text));
    /* a folder's rights would let a file be replaced that says it is not to be written to */
    if (faccessat(dirfd, name, W_OK, AT_EACCESS) < 0)
        return err_sys(err, -errno, "cannot write '%s'", os_path_text(dirfd, name, text));
    return write_renamed(dirfd, name, data, len, st.st_mode & 0777, &st, err);
}

/* Where a path leads, which need not be there; a link that leads nowhere is refused. */
static char *resolve(const char *path, struct err *err)
{
    char text[OS_PATH_TEXT];
    struct stat st;
    char *whole = realpath(path, NULL);
    if (whole)
        return whole;
    int code = -errno;
    if (code == -ENOENT && lstat(path, &st) < 0 && errno == ENOENT) {
        whole = str_dup(str_of(path));
        code = -ENOMEM;
    }
    if (!whole)
        err_sys(err, code, "cannot write '%s'", os_path_text(AT_FDCWD, path, text));
    return whole;
}

int os_put_file(const char *path, const void *data, size_t len, mode_t mode, struct err *err)
{
    char text[OS_PATH_TEXT];
    struct stat st;
    struct err why = {.code = -ENOMEM};
    base_autofree char *whole = resolve(path, &why);
    if (!whole)
        return err_set(err, why.code, "%s", why.text);
    char *slash = strrchr(whole, '/');
    const char *name = slash ? slash + 1 : whole;
    if (slash)
        *slash = '\0';
    os_autoclose int dir = os_open_dir(!slash ? "." : *whole ? whole : "/", err);
    if (dir < 0)
        return dir;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? os_write_atomic(dir, name, data, len, mode, err) : err_sys(err, -errno, "cannot write '%s'", os_path_text(AT_FDCWD, path, text));
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "cannot write '%s': not a regular file", os_path_text(AT_FDCWD, path, text));
    if (st.st_uid == geteuid() && faccessat(dir, name, W_OK, AT_EACCESS) < 0)
        return err_sys(err, -errno, "cannot write '%s'", os_path_text(AT_FDCWD, path, text));
    return write_renamed(dir, name, data, len, st.st_mode & 0777, &st, err);
}

void os_write_sweep(int dirfd)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *e;
    if (!d) {
        os_closep(&fd);
        return;
    }
    while ((e = readdir(d)))
        if (strncmp(e->d_name, TEMPORARY, sizeof(TEMPORARY) - 1) == 0 && strlen(e->d_name) == TEMPORARY_LEN)
            (void)unlinkat(dirfd, e->d_name, 0);
    closedir(d);
}

/* ---- copying ------------------------------------------------------------------------------------ */

static int copy_by_hand(int from, int to)
{
    base_autofree char *chunk = malloc(CHUNK);
    if (!chunk)
        return -ENOMEM;
    for (;;) {
        ssize_t n = read_some(from, chunk, CHUNK);
        if (n <= 0)
            return (int)n;
        int r = write_full(to, chunk, (size_t)n);
        if (r < 0)
            return r;
    }
}

static int copy_content(int from, int to)
{
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    ssize_t n;
    do {
        n = copy_file_range(from, NULL, to, NULL, 1u << 30, 0);
    } while (n > 0 || (n < 0 && errno == EINTR));
    /* Both positions have moved with what was copied, so whatever is left is read by hand: all of it between file systems
     * that cannot help each other, and nothing at the end of the file. */
    if (n < 0 && (errno == ENOSPC || errno == EIO || errno == EDQUOT || errno == EFBIG))
        return -errno;
    return copy_by_hand(from, to);
}

int os_copy_file(int src_dirfd, const char *src, int dst_dirfd, const char *dst, mode_t mode, struct err *err)
{
    char a[OS_PATH_TEXT], b[OS_PATH_TEXT];
    struct stat st;
    os_autoclose int from = open_regular(src_dirfd, src, &st);
    if (from < 0)
        return open_error(err, from, src_dirfd, src);
    os_autoclose int to = openat(dst_dirfd, dst, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (to < 0)
        return err_sys(err, -errno, "cannot make '%s'", os_path_text(dst_dirfd, dst, a));
    int r = copy_content(from, to);
    if (r == 0 && fchmod(to, mode) < 0)
        r = -errno;
    if (r == 0)
        return 0;
    (void)unlinkat(dst_dirfd, dst, 0);
    return err_sys(err, r, "cannot copy '%s' to '%s'", os_path_text(src_dirfd, src, a), os_path_text(dst_dirfd, dst, b));
}
