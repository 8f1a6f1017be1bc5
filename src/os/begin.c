/* SPDX-License-Identifier: MIT
 *
 * What a process has before it does anything: its first three descriptors and how many it may have. Both are the caller's doing, and both
 * can be such that a program does harm without a fault of its own: a file that is opened as number 2 gets every message.
 */
#include "os_int.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* The limit that we came with; `set` once it was raised. */
static struct {
    struct rlimit was;
    bool set;
} descriptors;

/* Taken by something that cannot be used the usual way, so that reading and writing still fail. */
static void take_standard(void)
{
    static const int ways[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        int null_fd = open("/dev/null", ways[fd]); /* the lowest free number, which is this one */
        if (null_fd > 2)
            (void)close(null_fd);
    }
}

void os_begin(void)
{
    struct rlimit r;
    take_standard();
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return;
    descriptors.was = r;
    r.rlim_cur = r.rlim_max;
    descriptors.set = setrlimit(RLIMIT_NOFILE, &r) == 0;
}

size_t os_fds_max(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return 256; /* every system gives that many */
    return r.rlim_cur > INT32_MAX ? INT32_MAX : (size_t)r.rlim_cur;
}

void os_fds_limit_back(void)
{
    if (descriptors.set)
        (void)setrlimit(RLIMIT_NOFILE, &descriptors.was);
}
