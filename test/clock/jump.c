/* SPDX-License-Identifier: MIT
 *
 * A wall clock for tests, preloaded into a program: each reading is a day early, right, or a day late, in turns. The monotonic clock is the kernel's. Nothing but C, no sanitizers.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

#define DAY_S 86400

static time_t jump(void)
{
    static atomic_uint turns;
    return ((time_t)(turns++ % 3) - 1) * DAY_S;
}

int clock_gettime(clockid_t id, struct timespec *ret)
{
    static int (*real)(clockid_t id, struct timespec *ret);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, ret);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        ret->tv_sec += jump();
    return code;
}

int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    int code = clock_gettime(CLOCK_REALTIME, &t);
    *ret = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return code;
}

time_t time(time_t *ret)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (ret)
        *ret = t.tv_sec;
    return t.tv_sec;
}
