/* SPDX-License-Identifier: MIT
 *
 * Preloaded into berth check: appends the absolute path of each file that is opened for reading to OPEN_LOG, a line each, so that a test can count them.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*next_openat)(int dir, const char *path, int flags, ...);

static void record(int fd)
{
    char link[64], path[PATH_MAX];
    const char *log = getenv("OPEN_LOG");
    struct stat st;
    if (!log || fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return;
    path[n] = '\n';
    int out = next_openat(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out < 0 || write(out, path, (size_t)n + 1) < 0)
        abort(); /* a count that is too low would prove nothing */
    close(out);
}

static int open_and_record(int dir, const char *path, int flags, mode_t mode)
{
    if (!next_openat)
        *(void **)&next_openat = dlsym(RTLD_NEXT, "openat");
    int fd = next_openat(dir, path, flags, mode);
    if ((flags & O_ACCMODE) == O_RDONLY)
        record(fd);
    return fd;
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list ap; \
        va_start(ap, flags); \
        mode = va_arg(ap, mode_t); \
        va_end(ap); \
    }

int open(const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_and_record(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_and_record(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_and_record(dir, path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_and_record(dir, path, flags, mode);
}
