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

#define ANALYZE_ADDED(b, call) \
    ({ \
        const struct buf *added_to = (b); \
        (call); \
        if (added_to->fail > 0 || (added_to->fail == 0 && !added_to->ptr)) \
            __builtin_unreachable(); \
    })
#define buf_add(b, ...) ANALYZE_ADDED(b, (buf_add)(b, __VA_ARGS__))
#define buf_add_str(b, s) ANALYZE_ADDED(b, (buf_add_str)(b, s))
#define buf_add_c(b, s) ANALYZE_ADDED(b, (buf_add_c)(b, s))
#define buf_add_char(b, c) ANALYZE_ADDED(b, (buf_add_char)(b, c))
#define buf_addf(b, ...) ANALYZE_ADDED(b, (buf_addf)(b, __VA_ARGS__))

#define str_find(s, needle) \
    ({ \
        const struct str searched = (s); \
        const ptrdiff_t found_at = (str_find)(searched, needle); \
        if (found_at >= 0 && (!searched.ptr || (size_t)found_at >= searched.len)) \
            __builtin_unreachable(); \
        found_at; \
    })
#define str_starts(s, prefix) \
    ({ \
        const struct str starting = (s), begins_with = (prefix); \
        const bool starts = (str_starts)(starting, begins_with); \
        if (starts && begins_with.len && (!starting.ptr || starting.len < begins_with.len)) \
            __builtin_unreachable(); \
        starts; \
    })
