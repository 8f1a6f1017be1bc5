/* SPDX-License-Identifier: MIT
 *
 * String views: pointer and length over bytes that somebody else owns. Nothing here needs a terminator, so text from
 * outside can be looked at where it lies. Case means ASCII case; the locale plays no part.
 */
#include "base_int.h"

#include <errno.h>

/* tools/analyze.h has macros of the same names: here are the functions themselves. */
#undef str_find
#undef str_find_char
#undef str_starts

struct str str_of_u64(uint64_t n, char out[STR_U64])
{
    size_t at = STR_U64;
    do {
        out[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    return (struct str){out + at, STR_U64 - at};
}

bool str_eq_nocase(struct str a, struct str b)
{
    if (a.len != b.len)
        return false;
    for (size_t i = 0; i < a.len; i++)
        if (base_lower(a.ptr[i]) != base_lower(b.ptr[i]))
            return false;
    return true;
}

bool str_starts(struct str s, struct str prefix)
{
    return s.len >= prefix.len && str_eq((struct str){s.ptr, prefix.len}, prefix);
}

bool str_ends(struct str s, struct str suffix)
{
    if (suffix.len == 0)
        return true;
    return s.len >= suffix.len && str_eq((struct str){s.ptr + (s.len - suffix.len), suffix.len}, suffix);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

struct str str_trim(struct str s)
{
    while (s.len && is_blank(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    while (s.len && is_blank(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

ptrdiff_t str_find_char(struct str s, char c)
{
    const char *at = s.len ? memchr(s.ptr, c, s.len) : NULL;
    return at ? at - s.ptr : -1;
}

ptrdiff_t str_find(struct str s, struct str needle)
{
    if (s.len == 0 || needle.len == 0)
        return -1;
    const char *at = memmem(s.ptr, s.len, needle.ptr, needle.len);
    return at ? at - s.ptr : -1;
}

struct str str_split(struct str *s, char sep)
{
    struct str field = *s;
    ptrdiff_t at = str_find_char(*s, sep);
    if (at < 0) {
        *s = (struct str){NULL, 0};
        return field;
    }
    field.len = (size_t)at;
    s->ptr += at + 1;
    s->len -= (size_t)at + 1;
    return field;
}

char *str_dup(struct str s)
{
    if (s.len == SIZE_MAX)
        return NULL;
    char *copy = malloc(s.len + 1);
    if (!copy)
        return NULL;
    if (s.len)
        memcpy(copy, s.ptr, s.len);
    copy[s.len] = '\0';
    return copy;
}

int str_to_u64(struct str s, uint64_t *ret)
{
    if (s.len == 0)
        return -EINVAL;
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return -EINVAL;
    uint64_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        uint64_t digit = (uint64_t)(s.ptr[i] - '0');
        if (!size_mul(n, 10, &n) || !size_add(n, digit, &n))
            return -ERANGE;
    }
    *ret = n;
    return 0;
}

/* How many bytes the lead byte announces, its payload and the least value that needs that many; 0 when it leads nothing. */
static size_t lead(unsigned char c, uint32_t *ret_bits, uint32_t *ret_least)
{
    if (c < 0x80)
        return *ret_bits = c, *ret_least = 0, 1;
    if ((c & 0xE0) == 0xC0)
        return *ret_bits = c & 0x1Fu, *ret_least = 0x80, 2;
    if ((c & 0xF0) == 0xE0)
        return *ret_bits = c & 0x0Fu, *ret_least = 0x800, 3;
    if ((c & 0xF8) == 0xF0)
        return *ret_bits = c & 0x07u, *ret_least = 0x10000, 4;
    return 0;
}

size_t str_utf8_decode(struct str s, uint32_t *ret_point)
{
    if (s.len == 0)
        return 0;
    uint32_t point, least;
    size_t n = lead((unsigned char)s.ptr[0], &point, &least);
    if (n == 0 || n > s.len)
        return 0;
    for (size_t i = 1; i < n; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if ((c & 0xC0) != 0x80)
            return 0;
        point = point << 6 | (c & 0x3Fu);
    }
    if (point < least || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return 0;
    *ret_point = point;
    return n;
}

bool str_is_utf8(struct str s)
{
    while (s.len) {
        uint32_t point;
        size_t n = str_utf8_decode(s, &point);
        if (n == 0 || point == 0)
            return false;
        s.ptr += n;
        s.len -= n;
    }
    return true;
}

/* A text that turns the direction of writing reads other than it is; a byte order mark is not seen at all. */
bool str_is_shown(uint32_t c)
{
    if (c < 0x20 || (c >= 0x7F && c <= 0x9F))
        return false;
    if (c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069))
        return false;
    return c != 0xFEFF && (c & 0xFFFE) != 0xFFFE;
}
