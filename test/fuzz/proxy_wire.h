/* SPDX-License-Identifier: MIT
 *
 * What fuzz_proxy.c holds the router's bytes against: a reader of HTTP messages that shares nothing with src/http and takes only the one form in which the router writes them, and marks.
 *
 * A mark is a word of MARK_LEN characters that the fuzzer puts where its input has MARK_BYTE: 'C' with the client's connection and a serial number that rises along it, or 'B' with the number of a replica's
 * answer. Its last four digits prove it, so that bytes of the input are not taken for one.
 */
#pragma once

#include <base/base.h>

#include <stdio.h>
#include <stdlib.h>

#define MARK_BYTE 0x1d
#define MARK_LEN 13 /* "Zq", kind, six digits, four that prove them */

struct mark {
    char kind;
    unsigned number; /* 'C': connection * 65536 + serial */
};

static unsigned mark_proof(char kind, unsigned number)
{
    return (number * 2654435761u ^ (unsigned)kind * 40503u) >> 13 & 0xffff;
}

static void mark_add(struct buf *out, char kind, unsigned number)
{
    buf_addf(out, "Zq%c%06x%04x", kind, number & 0xffffff, mark_proof(kind, number & 0xffffff));
}

/* The next mark at or behind *at, which moves behind it. */
static bool mark_next(struct str s, size_t *at, struct mark *ret)
{
    for (; *at + MARK_LEN <= s.len; (*at)++) {
        const char *p = memchr(s.ptr + *at, 'Z', s.len - *at - MARK_LEN + 1);
        char digits[11] = "";
        if (!p)
            return false;
        *at = (size_t)(p - s.ptr);
        if (p[1] != 'q' || (p[2] != 'B' && p[2] != 'C'))
            continue;
        memcpy(digits, p + 3, 10);
        if (strspn(digits, "0123456789abcdef") != 10)
            continue;
        unsigned long long n = strtoull(digits, NULL, 16);
        if ((n & 0xffff) != mark_proof(p[2], (unsigned)(n >> 16)))
            continue;
        *ret = (struct mark){p[2], (unsigned)(n >> 16)};
        *at += MARK_LEN;
        return true;
    }
    return false;
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

struct wire {
    struct str method, target; /* of a request */
    unsigned status;           /* of a response */
    struct str head;           /* with its empty line */
    bool events;               /* its content type is that of an event stream */
    bool until_close;
    size_t len;                /* all of it */
    const char *wrong;
};

static int wire_bad(struct wire *m, const char *why)
{
    m->wrong = why;
    return -1;
}

static bool wire_token(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!(s.ptr[i] >= 'a' && s.ptr[i] <= 'z') && !(s.ptr[i] >= 'A' && s.ptr[i] <= 'Z') && !(s.ptr[i] >= '0' && s.ptr[i] <= '9') && (!s.ptr[i] || !strchr("!#$%&'*+-.^_`|~", s.ptr[i])))
            return false;
    return s.len > 0;
}

static bool wire_text(struct str s, bool spaces)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c == 0x7f || c < 0x20 ? !(spaces && c == '\t') : c == ' ' && !spaces)
            return false;
    }
    return true;
}

/* A line and its CR LF off the front of *rest. */
static bool wire_line(struct str *rest, struct str *ret)
{
    ptrdiff_t end = str_find(*rest, STR("\r\n"));
    if (end < 0)
        return false;
    *ret = (struct str){rest->ptr, (size_t)end};
    *rest = (struct str){rest->ptr + end + 2, rest->len - (size_t)end - 2};
    return true;
}

static bool wire_number(struct str s, unsigned base, size_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        unsigned d = c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10 : 99;
        if (d >= base)
            return false;
        *ret = *ret * base + d;
    }
    return s.len > 0 && s.len < 16;
}

static int wire_first_line(struct wire *m, struct str line, bool request)
{
    if (request) {
        m->method = str_split(&line, ' ');
        m->target = str_split(&line, ' ');
        if (!wire_token(m->method) || !m->target.len || !wire_text(m->target, false) || !str_eq_c(line, "HTTP/1.1"))
            return wire_bad(m, "request line");
        return 0;
    }
    struct str version = str_split(&line, ' '), code = str_split(&line, ' ');
    size_t status;
    if (!str_eq_c(version, "HTTP/1.1") || code.len != 3 || !wire_number(code, 10, &status) || !line.ptr || !wire_text(line, true))
        return wire_bad(m, "status line");
    m->status = (unsigned)status;
    return 0;
}

struct wire_framing {
    unsigned lengths, codings, hosts;
    size_t length;
};

static int wire_field(struct wire *m, struct str line, struct wire_framing *f)
{
    struct str value = line, name = str_split(&value, ':');
    if (!wire_token(name) || !value.ptr || !wire_text(value, true))
        return wire_bad(m, "field");
    value = str_trim(value);
    if (str_eq_nocase(name, STR("content-length"))) {
        f->lengths++;
        if (!wire_number(value, 10, &f->length))
            return wire_bad(m, "content-length");
    } else if (str_eq_nocase(name, STR("transfer-encoding"))) {
        f->codings++;
        if (!str_eq_c(value, "chunked"))
            return wire_bad(m, "transfer-encoding");
    } else if (str_eq_nocase(name, STR("host"))) {
        f->hosts++;
    } else if (str_eq_nocase(name, STR("content-type")) && value.len >= 17 && str_eq_nocase((struct str){value.ptr, 17}, STR("text/event-stream"))) {
        m->events = true;
    }
    return 0;
}

static int wire_chunks(struct wire *m, struct str *rest, struct buf *body)
{
    for (;;) {
        struct str line;
        size_t n;
        if (!wire_line(rest, &line))
            return rest->len < 20 ? 0 : wire_bad(m, "chunk size without an end");
        if (!wire_number(line, 16, &n))
            return wire_bad(m, "chunk size");
        if (rest->len < n + 2)
            return 0;
        buf_add(body, rest->ptr, n);
        if (memcmp(rest->ptr + n, "\r\n", 2) != 0)
            return wire_bad(m, "chunk end");
        *rest = (struct str){rest->ptr + n + 2, rest->len - n - 2};
        if (n == 0)
            return 1;
    }
}

/* Reads a message at the front of `in`: 1 it is whole, 0 bytes are missing, -1 the router must not have written this. bare: it has no body, whatever its fields say. eof: nothing follows. body gets what is inside. */
static int wire_read(struct str in, bool request, bool bare, bool eof, struct wire *m, struct buf *body)
{
    struct wire_framing f = {0};
    struct str rest = in, line;
    int rc;
    *m = (struct wire){0};
    buf_clear(body);
    if (!wire_line(&rest, &line))
        return 0;
    if (wire_first_line(m, line, request) < 0)
        return -1;
    for (;;) {
        if (!wire_line(&rest, &line))
            return 0;
        if (!line.len)
            break;
        if (wire_field(m, line, &f) < 0)
            return -1;
    }
    m->head = (struct str){in.ptr, (size_t)(rest.ptr - in.ptr)};
    if (f.lengths + f.codings > 1)
        return wire_bad(m, "two lengths");
    if (request && f.hosts != 1)
        return wire_bad(m, "host");
    bare = bare || (!request && (m->status < 200 || m->status == 204 || m->status == 304));
    m->until_close = !request && !bare && f.lengths + f.codings == 0;
    if (bare) {
        rc = 1;
    } else if (m->until_close) {
        buf_add_str(body, rest);
        rest = (struct str){rest.ptr + rest.len, 0};
        rc = eof;
    } else if (f.codings) {
        rc = wire_chunks(m, &rest, body);
    } else {
        rc = rest.len >= f.length;
        buf_add(body, rest.ptr, rc ? f.length : rest.len);
        rest.ptr += rc ? f.length : rest.len;
    }
    m->len = (size_t)(rest.ptr - in.ptr);
    return rc;
}
