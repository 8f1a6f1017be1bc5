/* SPDX-License-Identifier: MIT
 *
 * Server-sent events as bytes: finds where each event ends and what it says, in any pieces that the bytes come in. Lines end with LF, CR or CRLF; an event ends
 * with an empty line. Nothing is changed: who passes a stream on sends the bytes that came. Memory is bounded: of a longer event the front is known, and that it is cut.
 */
#include "http_int.h"

#include <errno.h>

void http_sse_init(struct http_sse *s, size_t max)
{
    *s = (struct http_sse){.line = BUF_INIT(max), .data = BUF_INIT(max), .name = BUF_INIT(HTTP_SSE_NAME_MAX), .fresh = true};
}

void http_sse_release(struct http_sse *s)
{
    buf_release(&s->line);
    buf_release(&s->data);
    buf_release(&s->name);
}

bool http_sse_between(const struct http_sse *s)
{
    return s->fresh;
}

/* Adds as much as there is room for; what has none is marked. */
static void add(struct http_sse *s, struct buf *b, struct str text)
{
    size_t room = b->max > b->len + 1 ? b->max - b->len - 1 : 0;
    if (text.len > room) {
        s->cut = true;
        text.len = room;
    }
    buf_add_str(b, text);
}

/* A line that is not empty. */
static void take_line(struct http_sse *s, struct str line)
{
    if (!s->begun && str_starts(line, STR("\xef\xbb\xbf"))) {
        line.ptr += 3;
        line.len -= 3;
    }
    struct str value = line, field = str_split(&value, ':');
    if (value.len && value.ptr[0] == ' ') {
        value.ptr++;
        value.len--;
    }
    if (str_eq_c(field, "data")) {
        if (s->has_data)
            add(s, &s->data, STR("\n"));
        s->has_data = true;
        add(s, &s->data, value);
    } else if (str_eq_c(field, "event")) {
        buf_clear(&s->name);
        add(s, &s->name, value);
    }
}

/* The end of a line; true when it ends an event. */
static bool end_line(struct http_sse *s, struct str tail)
{
    struct str line = tail;
    if (s->line.len) {
        add(s, &s->line, tail);
        line = buf_str(&s->line);
    } else if (line.len >= s->line.max) { /* as much of it as if it had come in pieces */
        line.len = s->line.max - 1;
        s->cut = true;
    }
    bool empty = line.len == 0;
    if (!empty)
        take_line(s, line);
    s->begun = true;
    buf_clear(&s->line);
    return empty;
}

/* A new event begins: what the last one said is over. */
static void forget(struct http_sse *s)
{
    buf_clear(&s->data);
    buf_clear(&s->name);
    s->has_data = s->cut = s->told = false;
}

/* Where the line that begins at i ends: the offset of its CR or LF, or data.len. */
static size_t line_end(struct str data, size_t i)
{
    const char *lf = memchr(data.ptr + i, '\n', data.len - i);
    size_t end = lf ? (size_t)(lf - data.ptr) : data.len;
    const char *cr = memchr(data.ptr + i, '\r', end - i);
    return cr ? (size_t)(cr - data.ptr) : end;
}

int http_sse_feed(struct http_sse *s, struct str data, size_t *ret_used, struct http_sse_event *ret)
{
    size_t i = 0;
    if (s->told)
        forget(s);
    while (i < data.len) {
        if (s->after_cr && data.ptr[i] == '\n') { /* the second half of CRLF belongs to the line before */
            s->after_cr = false;
            i++;
            continue;
        }
        s->after_cr = false;
        size_t end = line_end(data, i);
        struct str part = {data.ptr + i, end - i};
        if (end == data.len) {
            add(s, &s->line, part);
            s->fresh = false;
            i = end;
            break;
        }
        s->after_cr = data.ptr[end] == '\r';
        i = end + 1;
        if (s->after_cr && i < data.len && data.ptr[i] == '\n') {
            s->after_cr = false;
            i++;
        }
        s->fresh = end_line(s, part);
        if (s->fresh) {
            int rc = buf_status(&s->data) < 0 ? buf_status(&s->data) : buf_status(&s->name);
            *ret_used = i;
            s->told = true;
            if (rc < 0)
                return rc;
            *ret = (struct http_sse_event){.name = buf_str(&s->name), .data = buf_str(&s->data), .has_data = s->has_data, .cut = s->cut};
            return 1;
        }
    }
    *ret_used = i;
    return buf_status(&s->line);
}
