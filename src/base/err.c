/* SPDX-License-Identifier: MIT
 *
 * Errors as values: a negative errno and one line for people, in a buffer of fixed size that the caller owns, so that
 * reporting an error never needs memory. A message that is too long is cut where a character ends, never in the middle of one.
 */
#include "base_int.h"

#include <assert.h>
#include <errno.h>

/* tools/analyze.h has macros of the same names: here are the functions themselves. */
#undef err_set
#undef err_sys
#undef err_nomem

void base_freep(void *pp)
{
    /* pp points at a pointer of any type; copying the bytes avoids reading it through a wrong one. */
    void *p;
    memcpy(&p, pp, sizeof(p));
    int saved = errno;
    free(p);
    errno = saved;
}

static void cut(char *out, size_t cap)
{
    size_t end = cap - 1 - 3;
    while (end > 0 && ((unsigned char)out[end] & 0xC0) == 0x80)
        end--;
    memcpy(out + end, "...", 4);
}

void base_vformat(char *out, size_t cap, const char *fmt, va_list ap)
{
    assert(cap > 4);
    int n = vsnprintf(out, cap, fmt, ap);
    if (n < 0)
        snprintf(out, cap, "?");
    else if ((size_t)n >= cap)
        cut(out, cap);
}

/* The arguments may point into err->text itself, so the line is made elsewhere and copied. */
static BASE_PRINTF(2, 0) void set_text(struct err *err, const char *fmt, va_list ap)
{
    char line[ERR_TEXT_MAX];
    base_vformat(line, sizeof(line), fmt, ap);
    memcpy(err->text, line, strlen(line) + 1);
}

static void join(struct err *err, const char *first, const char *second)
{
    char line[ERR_TEXT_MAX];
    int n = snprintf(line, sizeof(line), "%s: %s", first, second);
    if ((size_t)n >= sizeof(line))
        cut(line, sizeof(line));
    memcpy(err->text, line, strlen(line) + 1);
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    assert(code < 0);
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set_text(err, fmt, ap);
        va_end(ap);
        err->code = code;
    }
    return code;
}

int err_sys(struct err *err, int code, const char *fmt, ...)
{
    assert(code < 0);
    if (err) {
        char line[ERR_TEXT_MAX];
        va_list ap;
        va_start(ap, fmt);
        base_vformat(line, sizeof(line), fmt, ap);
        va_end(ap);
        char room[64];
        const char *why = strerror_r(-code, room, sizeof(room));
        join(err, line, why);
        err->code = code;
    }
    return code;
}

int err_prefix(struct err *err, const char *fmt, ...)
{
    if (!err)
        return -EIO;
    char first[ERR_TEXT_MAX], second[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    base_vformat(first, sizeof(first), fmt, ap);
    va_end(ap);
    memcpy(second, err->text, sizeof(second));
    second[sizeof(second) - 1] = '\0';
    join(err, first, second);
    return err->code;
}

int err_nomem(struct err *err)
{
    return err_set(err, -ENOMEM, "out of memory");
}
