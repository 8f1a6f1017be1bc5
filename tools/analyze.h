/* SPDX-License-Identifier: MIT
 *
 * Forced into what tools/analyze looks at: an analyzer does not see into another file, so it is told here what base.h promises: that an error returns the code that it was given, which is negative; that a buffer
 * which was added to is a text, or has failed; and that what was found is in what was searched.
 */
#pragma once

#include <base/base.h>
#include <errno.h>

#define ANALYZE_FAILS(code, call) \
    ({ \
        const int failed_with = (code); \
        (void)(call); \
        if (failed_with >= 0) \
            __builtin_unreachable(); \
        failed_with; \
    })
#define err_set(err, code, ...) ANALYZE_FAILS(code, (err_set)(err, failed_with, __VA_ARGS__))
#define err_sys(err, code, ...) ANALYZE_FAILS(code, (err_sys)(err, failed_with, __VA_ARGS__))
#define err_nomem(err) ANALYZE_FAILS(-ENOMEM, (err_nomem)(err))

static inline void analyze_added(const struct buf *b)
{
    if (b->fail > 0 || (b->fail == 0 && !b->ptr))
        __builtin_unreachable();
}
static inline void analyze_add(struct buf *b, const void *data, size_t len)
{
    buf_add(b, data, len);
    analyze_added(b);
}
static inline void analyze_add_str(struct buf *b, struct str s)
{
    buf_add_str(b, s);
    analyze_added(b);
}
static inline void analyze_add_c(struct buf *b, const char *s)
{
    buf_add_c(b, s);
    analyze_added(b);
}
static inline void analyze_add_char(struct buf *b, char c)
{
    buf_add_char(b, c);
    analyze_added(b);
}
#define buf_add analyze_add
#define buf_add_str analyze_add_str
#define buf_add_c analyze_add_c
#define buf_add_char analyze_add_char
#define buf_addf(b, ...) \
    do { \
        (buf_addf)(b, __VA_ARGS__); \
        analyze_added(b); \
    } while (0)

static inline ptrdiff_t analyze_found(struct str s, ptrdiff_t at)
{
    if (at >= 0 && (!s.ptr || (size_t)at >= s.len))
        __builtin_unreachable();
    return at;
}
static inline ptrdiff_t analyze_find(struct str s, struct str needle)
{
    return analyze_found(s, str_find(s, needle));
}
static inline ptrdiff_t analyze_find_char(struct str s, char c)
{
    return analyze_found(s, str_find_char(s, c));
}
static inline bool analyze_starts(struct str s, struct str prefix)
{
    bool starts = str_starts(s, prefix);
    if (starts && prefix.len && (!s.ptr || s.len < prefix.len))
        __builtin_unreachable();
    return starts;
}
#define str_find analyze_find
#define str_find_char analyze_find_char
#define str_starts analyze_starts
