/* SPDX-License-Identifier: MIT
 *
 * Shared inside base only: text that is cut, never overrun, and ASCII case that no locale changes.
 */
#pragma once

#include <base/base.h>

/* Formats into out (cap > 4, terminated). What does not fit is cut at a UTF-8 boundary and ends in "...". */
void base_vformat(char *out, size_t cap, const char *fmt, va_list ap) BASE_PRINTF(3, 0);

static inline char base_lower(char c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}
