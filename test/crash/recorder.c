/* SPDX-License-Identifier: MIT
 *
 * Preloaded into berth pull: writes down, in order, what it does to the files below CRASH_ROOT, so that test/crash/replay can cut the power after every step. A record is a line, "KIND BYTES OFFSET PATH[\tPATH2]", followed by BYTES of data:
 *
 *   W  was written (recorded when it had returned)      T  was truncated to OFFSET
 *   B  a sync begins: it covers what was written before  E  it has ended
 *   R  was renamed to PATH2                              U  was unlinked
 *
 * Folders are synced like files.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What is not of interest has an empty path. */
static void path_of(int fd, char path[4096])
{
    char link[64];
    const char *root = getenv("CRASH_ROOT");
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 4095);
    path[n < 0 ? 0 : n] = '\0';
    if (!root || strncmp(path, root, strlen(root)) != 0)
        path[0] = '\0';
}

static void note(char kind, const char *path, const char *other, const void *data, size_t n, long long off)
{
    static FILE *log;
    if (!path[0])
        return;
    pthread_mutex_lock(&lock);
    if (!log)
        log = fopen(getenv("CRASH_LOG"), "ae");
    if (log) {
        (void)fprintf(log, "%c %zu %lld %s%s%s\n", kind, n, off, path, other ? "\t" : "", other ? other : "");
        (void)fwrite(data ? data : "", 1, n, log);
        (void)fflush(log);
    }
    pthread_mutex_unlock(&lock);
}

#define REAL(type, name, ...) type (*real)(__VA_ARGS__) = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static ssize_t do_pwrite(const char *name, int fd, const void *data, size_t n, off_t off)
{
    char path[4096];
    REAL(ssize_t, name, int, const void *, size_t, off_t);
    ssize_t r = real(fd, data, n, off);
    path_of(fd, path);
    if (r > 0)
        note('W', path, NULL, data, (size_t)r, off);
    return r;
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t off) { return do_pwrite("pwrite", fd, data, n, off); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t off) { return do_pwrite("pwrite64", fd, data, n, off); }

ssize_t write(int fd, const void *data, size_t n)
{
    char path[4096];
    REAL(ssize_t, "write", int, const void *, size_t);
    off_t off = lseek(fd, 0, SEEK_CUR);
    ssize_t r = real(fd, data, n);
    if (r > 0 && off >= 0) {
        path_of(fd, path);
        note('W', path, NULL, data, (size_t)r, off);
    }
    return r;
}

static int do_truncate(const char *name, int fd, off_t size)
{
    char path[4096];
    REAL(int, name, int, off_t);
    int r = real(fd, size);
    path_of(fd, path);
    if (r == 0)
        note('T', path, NULL, NULL, 0, size);
    return r;
}
int ftruncate(int fd, off_t size) { return do_truncate("ftruncate", fd, size); }
int ftruncate64(int fd, off_t size) { return do_truncate("ftruncate64", fd, size); }

static int do_sync(const char *name, int fd)
{
    char path[4096];
    REAL(int, name, int);
    path_of(fd, path);
    note('B', path, NULL, NULL, 0, 0);
    int r = real(fd);
    note('E', path, NULL, NULL, 0, 0);
    return r;
}
int fsync(int fd) { return do_sync("fsync", fd); }
int fdatasync(int fd) { return do_sync("fdatasync", fd); }

int rename(const char *from, const char *to)
{
    const char *root = getenv("CRASH_ROOT");
    REAL(int, "rename", const char *, const char *);
    int r = real(from, to);
    if (r == 0 && root && strncmp(from, root, strlen(root)) == 0)
        note('R', from, to, NULL, 0, 0);
    return r;
}

int unlink(const char *path)
{
    const char *root = getenv("CRASH_ROOT");
    REAL(int, "unlink", const char *);
    int r = real(path);
    if (r == 0 && root && strncmp(path, root, strlen(root)) == 0)
        note('U', path, NULL, NULL, 0, 0);
    return r;
}
