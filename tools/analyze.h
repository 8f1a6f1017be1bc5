/* SPDX-License-Identifier: MIT
 *
 * Forced into what tools/analyze looks at: an analyzer does not see into another file, so it is told here what base.h promises: that these return the code that they were given, which is negative.
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
