/* SPDX-License-Identifier: MIT
 *
 * Shared inside base only: text that is cut, never overrun; one decoder of UTF-8; ASCII case that no locale changes.
 */
#pragma once

#include <base/base.h>

/* Formats into out (cap > 4, terminated). What does not fit is cut at a UTF-8 boundary and ends in "...". */
void base_vformat(char *out, size_t cap, const char *fmt, va_list ap) BASE_PRINTF(3, 0);

/* Decodes the character at the front of s: its length in bytes (1-4) and *ret_point, or 0 for broken UTF-8 or an empty s. */
size_t base_utf8_decode(struct str s, uint32_t *ret_point) BASE_MUST_USE;

char base_lower(char c);
