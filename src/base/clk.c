/* SPDX-License-Identifier: MIT
 *
 * The system's clocks behind the injectable interface, and the one format in which a moment is shown.
 */
#include <base/base.h>

#include <time.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec t = {0};
    (void)clock_gettime(id, &t); /* cannot fail: both clocks always exist */
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t mono_us(void *ctx)
{
    (void)ctx;
    return read_us(CLOCK_MONOTONIC);
}

static uint64_t real_us(void *ctx)
{
    (void)ctx;
    return read_us(CLOCK_REALTIME);
}

const struct clk clk_system = {.mono_us = mono_us, .real_us = real_us};

const char *clk_rfc3339(uint64_t real_us_since_1970, char out[CLK_RFC3339])
{
    time_t seconds = (time_t)(real_us_since_1970 / 1000000);
    struct tm tm = {0};
    if (!gmtime_r(&seconds, &tm) || strftime(out, CLK_RFC3339, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        snprintf(out, CLK_RFC3339, "?");
    return out;
}
