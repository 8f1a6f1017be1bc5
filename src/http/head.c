/* SPDX-License-Identifier: MIT
 *
 * Reading a parsed head: fields by name, tokens in a comma-separated list, and which fields belong to one connection only.
 * A head has at most HTTP_FIELDS_MAX fields, so a walk over all of them is fast enough and needs no index.
 */
#include "http_int.h"

#include <endian.h>
#include <strings.h>

const uint8_t http_byte_class[256] = {
     0,  0,  0,  0,  0,  0,  0,  0,  0,  2,  0,  0,  0,  0,  0,  0, /* 00 */
     0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0, /* 10 */
     2,  7,  6,  3,  7, 15,  7,  7,  6,  6,  7,  7,  6, 15, 15,  6, /* 20 */
    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 14,  6,  6,  6,  6,  6, /* 30 */
     6, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, /* 40 */
    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 14,  6, 14,  7, 15, /* 50 */
     7, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15, /* 60 */
    15, 15, 15, 15, 15, 15, 15, 15, 15, 15, 15,  6,  7,  6, 15,  0, /* 70 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* 80 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* 90 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* a0 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* b0 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* c0 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* d0 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* e0 */
     2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2,  2, /* f0 */
};

/* The high bit of each of eight bytes that is a control byte; above the lowest of them others may be set too. */
static uint64_t controls(const char *at)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t x, del;
    memcpy(&x, at, 8);
    x = le64toh(x);
    del = x ^ ones * 0x7f;
    return ((x - ones * 0x20) & ~x & high) | ((del - ones) & ~del & high);
}

size_t http_plain_front(struct str s)
{
    size_t i = 0;
    for (; i + 8 <= s.len; i += 8) {
        uint64_t found = controls(s.ptr + i);
        if (found)
            return i + (size_t)__builtin_ctzll(found) / 8;
    }
    if (i < s.len && s.len >= 8) {
        uint64_t found = controls(s.ptr + s.len - 8); /* some of them once more */
        return found ? s.len - 8 + (size_t)__builtin_ctzll(found) / 8 : s.len;
    }
    return i;
}

bool http_all_of(struct str s, uint8_t class)
{
    size_t i = class == HTTP_BYTE_LINE ? http_plain_front(s) : 0;
    unsigned all = class;
    for (; i + 4 <= s.len; i += 4) {
        const unsigned char *at = (const unsigned char *)s.ptr + i;
        all &= http_byte_class[at[0]] & http_byte_class[at[1]] & http_byte_class[at[2]] & http_byte_class[at[3]];
    }
    for (; i < s.len; i++)
        all &= http_byte_class[(unsigned char)s.ptr[i]];
    return s.len > 0 && all;
}

static bool named(const struct http_field *f, const char *name, size_t len)
{
    return f->name.len == len && strncasecmp(f->name.ptr, name, len) == 0;
}

struct str http_field_get(const struct http_head *h, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < h->n_fields; i++)
        if (named(&h->fields[i], name, len))
            return h->fields[i].value;
    return (struct str){0};
}

bool http_field_once(const struct http_head *h, const char *name)
{
    size_t n = 0, len = strlen(name);
    for (size_t i = 0; i < h->n_fields; i++)
        n += named(&h->fields[i], name, len);
    return n <= 1;
}

static bool has_token(struct str list, struct str token)
{
    while (list.ptr)
        if (str_eq_nocase(str_trim(str_split(&list, ',')), token))
            return true;
    return false;
}

bool http_field_has(const struct http_head *h, const char *name, const char *token)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < h->n_fields; i++)
        if (named(&h->fields[i], name, len) && has_token(h->fields[i].value, str_of(token)))
            return true;
    return false;
}

bool http_always_hop(struct str name)
{
    static const struct str hop[] = {
        {"connection", 10}, {"keep-alive", 10}, {"proxy-connection", 16},  {"proxy-authenticate", 18}, {"proxy-authorization", 19},
        {"te", 2},          {"trailer", 7},     {"transfer-encoding", 17}, {"upgrade", 7},
    };
    /* Most names have none of these lengths. */
    const unsigned lengths = 1u << 2 | 1u << 7 | 1u << 10 | 1u << 16 | 1u << 17 | 1u << 18 | 1u << 19;
    for (size_t i = 0; i < BASE_COUNT(hop) && name.len < 20 && (lengths >> name.len & 1); i++)
        if (name.len == hop[i].len && strncasecmp(name.ptr, hop[i].ptr, name.len) == 0)
            return true;
    return false;
}

bool http_field_hop(const struct http_head *h, struct str name)
{
    if (http_always_hop(name))
        return true;
    for (size_t i = 0; i < h->n_fields; i++)
        if (named(&h->fields[i], "connection", 10) && has_token(h->fields[i].value, name))
            return true;
    return false;
}

struct str http_target_path(struct str target)
{
    ptrdiff_t scheme = target.len && target.ptr[0] == '/' ? -1 : str_find(target, STR("://"));
    if (scheme > 0) {
        target.ptr += scheme + 3;
        target.len -= (size_t)scheme + 3;
        while (target.len && *target.ptr != '/' && *target.ptr != '?') {
            target.ptr++;
            target.len--;
        }
        if (!target.len || *target.ptr == '?')
            return STR("/");
    }
    ptrdiff_t query = str_find_char(target, '?');
    if (query >= 0)
        target.len = (size_t)query;
    return target;
}
