/* SPDX-License-Identifier: MIT
 *
 * Numbers with units, as people write and read them. Reading is exact: a number is a whole part and a decimal fraction,
 * both integers, so "31.86GiB" gives the same byte count on every machine. What is shown can be read again.
 */
#include "base_int.h"

#include <errno.h>

#define FRACTION_DIGITS 18 /* digits after these are worth less than a millionth of a byte in any unit below */

struct number {
    uint64_t whole;
    uint64_t fraction, scale; /* fraction / scale, scale a power of ten */
    bool over;                /* the whole part does not fit */
};

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"", 1},
    {"k", 1000},
    {"K", 1000},
    {"M", 1000000},
    {"G", 1000000000},
    {"T", 1000000000000},
    {"Ki", UINT64_C(1) << 10},
    {"Mi", UINT64_C(1) << 20},
    {"Gi", UINT64_C(1) << 30},
    {"Ti", UINT64_C(1) << 40},
};

static void skip(struct str *s, size_t n)
{
    s->ptr += n;
    s->len -= n;
}

static bool next_digit(struct str *s, uint64_t *ret)
{
    if (s->len == 0 || s->ptr[0] < '0' || s->ptr[0] > '9')
        return false;
    *ret = (uint64_t)(s->ptr[0] - '0');
    skip(s, 1);
    return true;
}

static void skip_spaces(struct str *s)
{
    while (s->len && s->ptr[0] == ' ')
        skip(s, 1);
}

/* digits [ "." digits ], cut from the front of s. */
static int read_number(struct str *s, struct number *ret)
{
    struct number n = {.scale = 1};
    uint64_t digit;
    if (!next_digit(s, &digit))
        return -EINVAL;
    do {
        if (!size_mul(n.whole, 10, &n.whole) || !size_add(n.whole, digit, &n.whole))
            n.over = true;
    } while (next_digit(s, &digit));
    if (s->len && s->ptr[0] == '.') {
        skip(s, 1);
        if (!next_digit(s, &digit))
            return -EINVAL;
        unsigned digits = 0;
        do {
            if (digits++ < FRACTION_DIGITS) {
                n.fraction = n.fraction * 10 + digit;
                n.scale *= 10;
            }
        } while (next_digit(s, &digit));
    }
    *ret = n;
    return 0;
}

/* n * factor, the fraction rounded half up to a whole. */
static int scaled(const struct number *n, uint64_t factor, uint64_t *ret)
{
    uint64_t whole, sum;
    unsigned __int128 part = (unsigned __int128)n->fraction * factor;
    uint64_t rounded = (uint64_t)((part + n->scale / 2) / n->scale);
    if (n->over || !size_mul(n->whole, factor, &whole) || !size_add(whole, rounded, &sum) || sum > INT64_MAX)
        return -ERANGE;
    *ret = sum;
    return 0;
}

int units_bytes(struct str s, uint64_t *ret)
{
    struct number n;
    int r = read_number(&s, &n);
    if (r < 0)
        return r;
    if (s.len) {
        skip_spaces(&s);
        if (s.len == 0)
            return -EINVAL;
        if (s.ptr[s.len - 1] == 'B')
            s.len--;
    }
    for (size_t i = 0; i < BASE_COUNT(byte_units); i++)
        if (str_eq_c(s, byte_units[i].name))
            return scaled(&n, byte_units[i].factor, ret);
    return -EINVAL;
}

int units_ms(struct str s, uint64_t *ret)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    struct number n;
    int r = read_number(&s, &n);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(units); i++)
        if (str_eq_c(s, units[i].name))
            return scaled(&n, units[i].ms, ret);
    return -EINVAL;
}

int units_rate(struct str s, uint64_t *ret)
{
    struct str per_second = STR("/s");
    if (!str_ends(s, per_second))
        return -EINVAL;
    s.len -= per_second.len;
    return units_bytes(s, ret);
}

const char *units_show_count(uint64_t n, char out[UNITS_TEXT])
{
    char digits[UNITS_TEXT];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
    size_t at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *units_show_bytes(uint64_t bytes, char out[UNITS_TEXT])
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) {
        snprintf(out, UNITS_TEXT, "%u B", (unsigned)bytes);
        return out;
    }
    for (unsigned i = 0;; i++) {
        uint64_t unit = UINT64_C(1) << (10 * (i + 1));
        unsigned __int128 exact = (unsigned __int128)bytes * 100;
        uint64_t hundredths = (uint64_t)((exact + unit / 2) / unit);
        /* Rounding may reach the next unit: 1023.999 KiB is shown as 1.00 MiB. */
        if (hundredths < 102400 || i + 1 == BASE_COUNT(names)) {
            snprintf(out, UNITS_TEXT, "%llu.%02u %s", (unsigned long long)(hundredths / 100), (unsigned)(hundredths % 100), names[i]);
            return out;
        }
    }
}

const char *units_show_ms(uint64_t ms, char out[UNITS_TEXT])
{
    uint64_t s = ms / 1000;
    if (s < 1)
        snprintf(out, UNITS_TEXT, "%u ms", (unsigned)ms);
    else if (s < 60)
        snprintf(out, UNITS_TEXT, "%u.%u s", (unsigned)s, (unsigned)(ms % 1000 / 100));
    else if (s < 3600)
        snprintf(out, UNITS_TEXT, "%um %02us", (unsigned)(s / 60), (unsigned)(s % 60));
    else if (s < 86400)
        snprintf(out, UNITS_TEXT, "%uh %02um", (unsigned)(s / 3600), (unsigned)(s / 60 % 60));
    else
        snprintf(out, UNITS_TEXT, "%llud %uh", (unsigned long long)(s / 86400), (unsigned)(s / 3600 % 24));
    return out;
}
