/* SPDX-License-Identifier: MIT
 *
 * The parser: llhttp decides what a message means, this file decides what llhttp gets to see. A message is cut into phases
 * (head, body of known length, body until close, chunk line, chunk data, the CRLF after it, trailer). In the phases
 * that consist of lines every byte first passes line_scan, which knows no HTTP but that a line ends in CRLF, holds no
 * control bytes and does not begin with white space. What has passed goes to llhttp, never more than the phase holds, and both
 * must agree on where the phase ends and on how long the body is; a disagreement is a refusal.
 *
 * A head is gathered in one buffer first and parsed in one go when its empty line has come, so that every view into it is
 * one piece and no field costs an allocation. Body bytes are never copied.
 */
#include "http_int.h"

#include <ctype.h>
#include <errno.h>

/* llhttp.h has enumerators of the same names as enum http_kind; its own are reached under these. */
#define HTTP_REQUEST LLHTTP_TYPE_REQUEST
#define HTTP_RESPONSE LLHTTP_TYPE_RESPONSE
#include <llhttp.h>
#undef HTTP_REQUEST
#undef HTTP_RESPONSE

/* A head's buffer above this is given back after its message: long heads are rare, connections are many. */
#define HEAD_KEEP_BYTES 16384
/* Interim responses before the final one: a few are normal (100, 102, 103), a stream of them is a peer that never answers. */
#define INTERIM_MAX 32

enum phase { PHASE_HEAD, PHASE_LENGTH, PHASE_UNTIL_CLOSE, PHASE_CHUNK_LINE, PHASE_CHUNK_DATA, PHASE_CHUNK_END, PHASE_TRAILER };

/* Where in a line we are. */
struct line {
    size_t len; /* bytes before its CR */
    bool cr;    /* the CR has come */
};

struct http_parser {
    enum http_kind kind;
    struct http_parser_ops ops;
    void *ctx;
    llhttp_t ll;

    enum phase phase;
    int failed;        /* the code of the first error, for good */
    bool started;      /* a byte of the message has come */
    bool expect_head;  /* the response answers HEAD */
    bool complete;     /* llhttp has seen the end of the message */
    unsigned n_interim;
    struct http_refusal no; /* why a callback of llhttp stopped it */

    struct line line;
    size_t n_lines;       /* of the head, then trailer fields */
    size_t start_len;     /* of the start line without its CRLF */
    size_t trailer_bytes;
    uint64_t remaining; /* of the body or chunk */
    uint64_t taken;     /* body bytes llhttp has reported in the current step */

    struct buf head_bytes;
    struct http_head head;
    struct http_framing framing;
    struct http_field pending; /* the field that llhttp is in */
    /* last, so that its pages stay untouched in a message with few fields */
    struct http_field fields[HTTP_FIELDS_MAX];
};

/* ---- refusing --------------------------------------------------------------------------------------------- */

static int refuse(const struct http_parser *p, const struct http_refusal *no, struct err *err)
{
    return err_set(err, no->code, "malformed %s: %s", p->kind == HTTP_REQUEST ? "request" : "response", no->why);
}

static int bad(const struct http_parser *p, const char *why, struct err *err)
{
    return refuse(p, &(struct http_refusal){.code = -EBADMSG, .why = why}, err);
}

static int too_large(const struct http_parser *p, const char *why, struct err *err)
{
    return refuse(p, &(struct http_refusal){.code = -EMSGSIZE, .why = why}, err);
}

/* ---- callbacks of llhttp: they gather and check, and never call out --------------------------------------------- */

/* Stops llhttp from within a callback. */
static int stop(struct http_parser *p, int code, const char *why)
{
    p->no = (struct http_refusal){.code = code, .why = why};
    return HPE_USER;
}

static int on_url(llhttp_t *ll, const char *at, size_t len)
{
    struct http_parser *p = ll->data;
    if (at != p->head.target.ptr || len != p->head.target.len)
        return stop(p, -EBADMSG, "the request line has more than one reading");
    return 0;
}

static int on_field(llhttp_t *ll, const char *at, size_t len)
{
    struct http_parser *p = ll->data;
    if (p->phase != PHASE_HEAD)
        return 0;
    if (p->head.n_fields == HTTP_FIELDS_MAX)
        return stop(p, -EMSGSIZE, "there are too many header fields");
    p->pending = (struct http_field){.name = {at, len}, .value = {at + len, 0}};
    return 0;
}

static int on_value(llhttp_t *ll, const char *at, size_t len)
{
    struct http_parser *p = ll->data;
    if (p->phase != PHASE_HEAD)
        return 0;
    struct str *v = &p->pending.value;
    if (v->len && v->ptr + v->len != at)
        return stop(p, -EBADMSG, "a field value comes in pieces");
    *v = (struct str){v->len ? v->ptr : at, v->len + len};
    return 0;
}

static int on_value_complete(llhttp_t *ll)
{
    struct http_parser *p = ll->data;
    if (p->phase != PHASE_HEAD) /* a trailer field is dropped, but counted */
        return ++p->n_lines > HTTP_FIELDS_MAX ? stop(p, -EMSGSIZE, "there are too many trailer fields") : 0;
    struct http_field f = {.name = p->pending.name, .value = str_trim(p->pending.value), .sound = true, .hop = http_always_hop(p->pending.name)};
    if (!http_check_field(&p->framing, f, &p->no))
        return HPE_USER;
    p->fields[p->head.n_fields++] = f;
    return 0;
}

static bool bodiless(const struct http_parser *p)
{
    return p->kind == HTTP_RESPONSE && (p->expect_head || http_status_bodiless(p->head.status));
}

/* Settles the framing, ours against llhttp's. */
static int on_headers_complete(llhttp_t *ll)
{
    struct http_parser *p = ll->data;
    if (!http_check_framing(&p->framing, &p->head, p->kind, &p->no))
        return HPE_USER;
    struct http_head *h = &p->head;
    for (size_t i = 0; i < h->n_fields && p->framing.names_hops; i++)
        p->fields[i].hop = http_field_hop(h, p->fields[i].name);
    h->chunked = p->framing.n_coding > 0;
    h->content_length = p->framing.n_length ? p->framing.content_length : -1;
    if (h->chunked != !!(ll->flags & F_CHUNKED) || (h->content_length >= 0) != !!(ll->flags & F_CONTENT_LENGTH) ||
        (h->content_length >= 0 && (uint64_t)h->content_length != ll->content_length) || ll->http_minor != h->minor ||
        (p->kind == HTTP_RESPONSE && ll->status_code != h->status))
        return stop(p, -EBADMSG, "the head has more than one reading");

    if (bodiless(p))
        ll->flags |= F_SKIPBODY; /* asked before its answer is known to llhttp, keep-alive must not wait for a close */
    h->upgrade = ll->upgrade;
    h->keep_alive = llhttp_should_keep_alive(ll) && !(h->upgrade && str_eq_c(h->method, "CONNECT"));
    h->expect_continue = p->kind == HTTP_REQUEST && h->minor == 1 && http_field_has(h, "expect", "100-continue");
    ll->upgrade = 0; /* never followed: what comes next is HTTP or nothing */
    return bodiless(p) ? 1 : 0;
}

static int on_body(llhttp_t *ll, const char *at, size_t len)
{
    (void)at;
    ((struct http_parser *)ll->data)->taken += len;
    return 0;
}

static int on_chunk_header(llhttp_t *ll)
{
    struct http_parser *p = ll->data;
    if (ll->content_length > INT64_MAX)
        return stop(p, -EBADMSG, "a chunk is too large");
    p->remaining = ll->content_length;
    return 0;
}

static int on_message_complete(llhttp_t *ll)
{
    ((struct http_parser *)ll->data)->complete = true;
    return 0;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_chunk_header = on_chunk_header,
    .on_message_complete = on_message_complete,
};

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* Readies everything for a head. What the previous head callback was given is gone. */
static void begin(struct http_parser *p)
{
    llhttp_reset(&p->ll);
    p->phase = PHASE_HEAD;
    p->complete = false;
    p->line = (struct line){0};
    p->n_lines = p->trailer_bytes = 0;
    p->remaining = 0;
    p->head = (struct http_head){.fields = p->fields, .content_length = -1};
    p->framing = (struct http_framing){0};
    if (p->head_bytes.cap > HEAD_KEEP_BYTES)
        buf_release(&p->head_bytes);
    else
        buf_clear(&p->head_bytes);
}

struct http_parser *http_parser_new(enum http_kind kind, const struct http_parser_ops *ops, void *ctx)
{
    struct http_parser *p = malloc(sizeof *p);
    if (!p)
        return NULL;
    memset(p, 0, offsetof(struct http_parser, fields));
    p->kind = kind;
    p->ops = *ops;
    p->ctx = ctx;
    p->head_bytes = BUF_INIT((size_t)2 * HTTP_HEAD_MAX); /* room for a terminator and growth; add_head holds the limit */
    llhttp_init(&p->ll, kind == HTTP_REQUEST ? LLHTTP_TYPE_REQUEST : LLHTTP_TYPE_RESPONSE, &settings);
    p->ll.data = p;
    begin(p);
    return p;
}

struct http_parser *http_parser_free(struct http_parser *p)
{
    if (p) {
        buf_release(&p->head_bytes);
        free(p);
    }
    return NULL;
}

void http_parser_expect_head(struct http_parser *p)
{
    p->expect_head = true;
}

bool http_parser_idle(const struct http_parser *p)
{
    return !p->started;
}

/* ---- lines -------------------------------------------------------------------------------------------------------- */

/* Takes bytes of one line, at most to its end. Returns why the line is refused, or NULL. */
static const char *line_scan(struct line *l, struct str data, size_t *used, bool *end)
{
    const char *s = data.ptr;
    size_t i = 0;
    *end = false;
    if (!l->cr) {
        if (!l->len && (s[0] == ' ' || s[0] == '\t'))
            return "a line begins with white space";
        i = http_plain_front(data);
        while (i < data.len && (http_byte_class[(unsigned char)s[i]] & HTTP_BYTE_LINE))
            i++;
        l->len += i;
        *used = i;
        if (i == data.len)
            return NULL;
        if (s[i] == '\n')
            return "a line ends in LF without CR";
        if (s[i] != '\r')
            return "a line has a control byte";
        l->cr = true;
        *used = ++i;
        if (i == data.len)
            return NULL;
    }
    if (s[i] != '\n')
        return "a CR is not followed by LF";
    l->cr = false;
    *used = i + 1;
    *end = true;
    return NULL;
}

/* Hands bytes to llhttp, which must take all of them. */
static int execute(struct http_parser *p, struct str data, struct err *err)
{
    llhttp_errno_t e = llhttp_execute(&p->ll, data.ptr, data.len);
    if (e == HPE_OK)
        return 0;
    if (p->no.code) /* a callback stopped it; the code llhttp returns depends on which */
        return refuse(p, &p->no, err);
    const char *reason = llhttp_get_error_reason(&p->ll);
    if (!reason || !*reason)
        reason = llhttp_errno_name(e);
    return err_set(err, -EBADMSG, "malformed %s: %c%s", p->kind == HTTP_REQUEST ? "request" : "response", tolower((unsigned char)*reason), reason + 1);
}

/* What a callback of our owner returned. */
static int told(int r, struct err *err)
{
    return r < 0 ? err_set(err, r, "the reader of the message stopped it") : 0;
}

/* ---- phases: each takes some bytes of data (not empty), says how many in *used -------------------------------------- */

static int add_head(struct http_parser *p, struct str data, struct err *err)
{
    if (data.len > HTTP_HEAD_MAX - p->head_bytes.len)
        return too_large(p, "the head is too large", err);
    buf_add_str(&p->head_bytes, data);
    return buf_status(&p->head_bytes) < 0 ? err_nomem(err) : 0;
}

/* The start line is complete: another protocol is refused before more of it is waited for. */
static int check_start(struct http_parser *p, struct err *err)
{
    struct str line = {p->head_bytes.ptr, p->start_len};
    struct http_refusal no;
    if (!line.len)
        return bad(p, "an empty line comes before the start line", err);
    if (!(p->kind == HTTP_REQUEST ? http_check_request_line(line, &p->head, &no) : http_check_status_line(line, &p->head, &no)))
        return refuse(p, &no, err);
    return 0;
}

/* The empty line has come. */
static int head_complete(struct http_parser *p, struct err *err)
{
    /* the buffer may have moved while it grew */
    struct http_head *h = &p->head;
    h->method.ptr = p->head_bytes.ptr;
    h->target.ptr = p->head_bytes.ptr + h->method.len + 1;
    h->reason.ptr = p->head_bytes.ptr + p->start_len - h->reason.len;
    int r = execute(p, buf_str(&p->head_bytes), err);
    if (r < 0)
        return r;
    if (p->head.status >= 100 && p->head.status < 200) {
        if (++p->n_interim > INTERIM_MAX)
            return bad(p, "interim responses do not end", err);
        if (!p->complete)
            return bad(p, "an interim response has a body", err);
        begin(p);
        return 0;
    }
    p->expect_head = false;
    p->n_interim = 0;
    if (p->head.chunked)
        p->phase = PHASE_CHUNK_LINE;
    else if (p->head.content_length >= 0)
        p->phase = PHASE_LENGTH;
    else if (p->complete || p->kind == HTTP_RESPONSE)
        p->phase = PHASE_UNTIL_CLOSE;
    else
        return bad(p, "the request's body has no end", err);
    p->line = (struct line){0};
    p->n_lines = 0;
    p->remaining = p->phase == PHASE_LENGTH ? (uint64_t)p->head.content_length : UINT64_MAX;
    return told(p->ops.on_head(p->ctx, &p->head), err);
}

static struct str cut(struct str s, size_t from, size_t to)
{
    return (struct str){s.ptr + from, to - from};
}

static int step_head(struct http_parser *p, struct str data, size_t *used, struct err *err)
{
    size_t i = 0, added = 0;
    while (i < data.len) {
        size_t n = 0;
        bool end;
        const char *why = line_scan(&p->line, cut(data, i, data.len), &n, &end);
        if (why)
            return bad(p, why, err);
        i += n;
        if (!end)
            break;
        bool first = p->n_lines++ == 0, empty = p->line.len == 0;
        p->line = (struct line){0};
        if (!first && !empty)
            continue;
        int r = add_head(p, cut(data, added, i), err);
        if (r < 0)
            return r;
        added = i;
        if (!first) {
            *used = i;
            return head_complete(p, err);
        }
        p->start_len = p->head_bytes.len - 2;
        r = check_start(p, err);
        if (r < 0)
            return r;
    }
    *used = i;
    return add_head(p, cut(data, added, i), err);
}

/* Body bytes of known or unknown number. */
static int step_data(struct http_parser *p, struct str data, size_t *used, struct err *err)
{
    size_t n = data.len < p->remaining ? data.len : (size_t)p->remaining;
    p->taken = 0;
    int r = execute(p, cut(data, 0, n), err);
    if (r < 0)
        return r;
    if (p->taken != n || p->complete != (p->phase == PHASE_LENGTH && n == p->remaining))
        return bad(p, "the body's length has more than one reading", err);
    if (p->phase != PHASE_UNTIL_CLOSE)
        p->remaining -= n;
    if (p->phase == PHASE_CHUNK_DATA && !p->remaining)
        p->phase = PHASE_CHUNK_END;
    *used = n;
    return told(p->ops.on_body(p->ctx, cut(data, 0, n)), err);
}

static int step_chunk_line(struct http_parser *p, struct str data, size_t *used, struct err *err)
{
    bool end;
    const char *why = line_scan(&p->line, data, used, &end);
    if (why)
        return bad(p, why, err);
    if (p->line.len > HTTP_CHUNK_LINE_MAX)
        return too_large(p, "the line before a chunk is too long", err);
    p->remaining = UINT64_MAX;
    int r = execute(p, cut(data, 0, *used), err);
    if (r < 0)
        return r;
    if (end != (p->remaining != UINT64_MAX))
        return bad(p, "a chunk's size has more than one reading", err);
    if (end) {
        p->line = (struct line){0};
        p->phase = p->remaining ? PHASE_CHUNK_DATA : PHASE_TRAILER;
    }
    return 0;
}

/* The CRLF after a chunk's data. */
static int step_chunk_end(struct http_parser *p, struct str data, size_t *used, struct err *err)
{
    size_t n = 0;
    if (!p->line.cr) {
        if (data.ptr[n++] != '\r')
            return bad(p, "a chunk does not end where its size says", err);
        p->line.cr = true;
    }
    if (n < data.len) {
        if (data.ptr[n++] != '\n')
            return bad(p, "a CR is not followed by LF", err);
        p->line.cr = false;
        p->phase = PHASE_CHUNK_LINE;
    }
    *used = n;
    return execute(p, cut(data, 0, n), err);
}

static int step_trailer(struct http_parser *p, struct str data, size_t *used, struct err *err)
{
    size_t i = 0;
    bool last = false;
    while (i < data.len && !last) {
        size_t n = 0;
        bool end;
        const char *why = line_scan(&p->line, cut(data, i, data.len), &n, &end);
        if (why)
            return bad(p, why, err);
        i += n;
        if (end) {
            last = p->line.len == 0;
            p->line = (struct line){0};
        }
    }
    p->trailer_bytes += i;
    if (p->trailer_bytes > HTTP_HEAD_MAX)
        return too_large(p, "the trailer is too large", err);
    *used = i;
    int r = execute(p, cut(data, 0, i), err);
    if (r < 0)
        return r;
    return last == p->complete ? 0 : bad(p, "the trailer's end has more than one reading", err);
}

static int step(struct http_parser *p, struct str data, size_t *used, struct err *err)
{
    switch (p->phase) {
    case PHASE_HEAD:
        return step_head(p, data, used, err);
    case PHASE_LENGTH:
    case PHASE_UNTIL_CLOSE:
    case PHASE_CHUNK_DATA:
        return step_data(p, data, used, err);
    case PHASE_CHUNK_LINE:
        return step_chunk_line(p, data, used, err);
    case PHASE_CHUNK_END:
        return step_chunk_end(p, data, used, err);
    case PHASE_TRAILER:
        return step_trailer(p, data, used, err);
    }
    return -EINVAL;
}

/* ---- feeding ----------------------------------------------------------------------------------------------------------- */

/* The message is whole. Its head stays readable until a byte of the next one comes. */
static int finish(struct http_parser *p)
{
    p->started = p->complete = false;
    return p->ops.on_end(p->ctx);
}

int http_parser_feed(struct http_parser *p, struct str data, size_t *ret_used, struct err *err)
{
    if (p->failed)
        return err_set(err, p->failed, "nothing can follow a malformed message");
    size_t used = 0;
    while (used < data.len) {
        if (!p->started) {
            begin(p);
            p->started = true;
        }
        size_t n = 0;
        int r = step(p, cut(data, used, data.len), &n, err);
        used += n;
        bool whole = r >= 0 && p->complete;
        if (whole)
            r = told(finish(p), err);
        if (r < 0) {
            p->failed = r;
            return r;
        }
        if (whole)
            break;
    }
    *ret_used = used;
    return 0;
}

int http_parser_eof(struct http_parser *p)
{
    if (p->failed)
        return p->failed;
    if (!p->started)
        return 0;
    if (p->phase != PHASE_UNTIL_CLOSE || llhttp_finish(&p->ll) != HPE_OK || !p->complete)
        return -ECONNRESET;
    return finish(p);
}
