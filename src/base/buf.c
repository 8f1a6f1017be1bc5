/* SPDX-License-Identifier: MIT
 *
 * Growable bytes with a ceiling that is given at birth, so that no peer decides how much memory we use. Failure is
 * remembered instead of reported by each add: a run of adds is followed by one question, buf_status. The memory holds
 * one byte more than the content, for the terminator; the ceiling counts content only.
 */
#include "base_int.h"

#include <assert.h>
#include <errno.h>

/* tools/analyze.h has macros of the same names: here are the functions themselves. */
#undef buf_add
#undef buf_addf

#define FIRST_CAP 64

void buf_release(struct buf *b)
{
    free(b->ptr);
    *b = BUF_INIT(b->max);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->fail = 0;
    if (b->ptr)
        b->ptr[0] = '\0';
}

/* The memory to ask for so that `need` bytes fit: doubled for few copies, but never far over the ceiling. */
static size_t next_cap(const struct buf *b, size_t need)
{
    size_t cap = b->cap > SIZE_MAX / 2 ? SIZE_MAX : b->cap * 2;
    size_t most = b->max == SIZE_MAX ? SIZE_MAX : b->max + 1;
    if (cap < FIRST_CAP)
        cap = FIRST_CAP;
    if (cap > most)
        cap = most;
    return cap < need ? need : cap;
}

char *buf_room(struct buf *b, size_t n)
{
    if (b->fail)
        return NULL;
    if (n > b->max - b->len || n > SIZE_MAX - 1 - b->len) {
        b->fail = -E2BIG;
        return NULL;
    }
    size_t need = b->len + n + 1;
    if (need > b->cap) {
        size_t cap = next_cap(b, need);
        char *ptr = realloc(b->ptr, cap);
        if (!ptr) {
            b->fail = -ENOMEM;
            return NULL;
        }
        b->ptr = ptr;
        b->cap = cap;
        b->ptr[b->len] = '\0';
    }
    return b->ptr + b->len;
}

void buf_grew(struct buf *b, size_t n)
{
    assert(b->ptr && n < b->cap - b->len);
    b->len += n;
    b->ptr[b->len] = '\0';
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    /* A ceiling is never below what is there, so what fits the memory and the ceiling needs no other look. */
    bool fits = !b->fail && len < b->cap - b->len && len <= b->max - b->len;
    char *to = fits ? b->ptr + b->len : buf_room(b, len);
    if (!to)
        return;
    if (len)
        memcpy(to, data, len);
    b->len += len;
    b->ptr[b->len] = '\0';
}

void buf_add_u64(struct buf *b, uint64_t n)
{
    char digits[STR_U64];
    buf_add_str(b, str_of_u64(n, digits));
}

void buf_addv(struct buf *b, const char *fmt, va_list ap)
{
    if (b->fail)
        return;
    va_list again;
    va_copy(again, ap);
    size_t room = b->cap - b->len;
    int n = vsnprintf(b->ptr ? b->ptr + b->len : NULL, room, fmt, ap);
    if (n < 0) {
        b->fail = -E2BIG; /* only text over INT_MAX bytes is refused by vsnprintf here */
    } else if ((size_t)n < room && (size_t)n <= b->max - b->len) {
        b->len += (size_t)n;
    } else {
        char *to = buf_room(b, (size_t)n);
        if (to) {
            vsnprintf(to, (size_t)n + 1, fmt, again);
            buf_grew(b, (size_t)n);
        }
    }
    if (b->ptr)
        b->ptr[b->len] = '\0'; /* what a failed try left behind is not content */
    va_end(again);
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_addv(b, fmt, ap);
    va_end(ap);
}

void buf_add_printable(struct buf *b, struct str s, size_t max_chars)
{
    size_t shown = 0;
    while (s.len) {
        uint32_t point = 0;
        size_t n = str_utf8_decode(s, &point);
        bool plain = n > 0 && str_is_shown(point);
        if (n == 0)
            n = 1;
        size_t width = plain ? 1 : n * 4;
        if (width > max_chars - shown) {
            buf_add_c(b, "...");
            return;
        }
        shown += width;
        if (plain)
            buf_add(b, s.ptr, n);
        for (size_t i = 0; !plain && i < n; i++)
            buf_addf(b, "\\x%02x", (unsigned)(unsigned char)s.ptr[i]);
        s.ptr += n;
        s.len -= n;
    }
}

void buf_add_lines(struct buf *b, struct str s)
{
    while (s.ptr) {
        buf_add_printable(b, str_split(&s, '\n'), SIZE_MAX);
        if (s.ptr)
            buf_add_char(b, '\n');
    }
}

void buf_add_quoted(struct buf *b, struct str s)
{
    buf_add_char(b, '"');
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c == '"' || c == '\\')
            buf_addf(b, "\\%c", c);
        else if (c == '\n')
            buf_add_c(b, "\\n");
        else if (c < 0x20 || c == 0x7F)
            buf_addf(b, "\\u%04x", c);
        else
            buf_add_char(b, (char)c);
    }
    buf_add_char(b, '"');
}

void buf_drop_front(struct buf *b, size_t n)
{
    assert(n <= b->len);
    if (n == 0)
        return;
    memmove(b->ptr, b->ptr + n, b->len - n + 1);
    b->len -= n;
}

void buf_fail(struct buf *b, int code)
{
    if (!b->fail)
        b->fail = code;
}

char *buf_take(struct buf *b)
{
    if (b->fail)
        return NULL;
    if (!b->ptr)
        return calloc(1, 1);
    char *text = b->ptr;
    *b = BUF_INIT(b->max);
    return text;
}
