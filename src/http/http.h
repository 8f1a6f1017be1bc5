/* SPDX-License-Identifier: MIT
 *
 * http: HTTP/1.1 messages as bytes. Parses with llhttp in strict mode plus refusals of our own; writes heads anew from parsed fields; splits event streams. No sockets, no clock.
 * Refuse, never repair: an ambiguous message is an error. What is refused beyond llhttp's strict mode: a header line that begins with space or tab, CR
 * without LF, LF without CR, Content-Length together with Transfer-Encoding, more than one Content-Length, any transfer coding but exactly "chunked", space before the colon, an
 * empty header name, NUL and control bytes in values, absolute-form targets whose host differs from Host, a request of 1.1 with no Host or two.
 */
#pragma once

#include <base/base.h>

#define HTTP_HEAD_MAX 65536   /* bytes of start line and header fields: agents send long cookies and tracing headers, not more */
#define HTTP_FIELDS_MAX 128         /* header fields of a message */
#define HTTP_TARGET_MAX 16384 /* bytes of a request target */
#define HTTP_CHUNK_LINE_MAX 256     /* bytes of a chunk's size line with its extensions */

struct http_field {
    struct str name, value; /* value without surrounding white space */
    bool sound; /* set by the parser, or for literals, digits and names of our own: its bytes need no other look when it is written */
    bool hop;   /* set by the parser: http_field_hop */
};

/* A message's start line and fields. All views point into the parser's memory and are valid until a byte of the next message is fed. */
struct http_head {
    /* request */
    struct str method; /* "POST" */
    struct str target; /* as sent: "/v1/chat/completions?x=1" */
    /* response */
    unsigned status;
    struct str reason;
    /* both */
    unsigned minor;        /* HTTP/1.minor: 0 or 1 */
    const struct http_field *fields;
    size_t n_fields;
    bool chunked;
    int64_t content_length; /* -1 when not given */
    bool keep_alive;        /* the connection may carry another message after this one */
    bool expect_continue;
    bool upgrade;           /* an Upgrade or CONNECT was asked for; never followed by us */
};

/* The value of the first field of that name (case does not matter), or a view with ptr NULL. */
struct str http_field_get(const struct http_head *h, const char *name);
/* False: there are several of that name, so that who looks at one of them may be misled. */
bool http_field_once(const struct http_head *h, const char *name);
/* True when a comma-separated field of that name has that token in any of its lines. */
bool http_field_has(const struct http_head *h, const char *name, const char *token);
/* True for fields that belong to one connection and are never forwarded: Connection and those it names, Keep-Alive, Proxy-Connection, Proxy-Authenticate,
 * Proxy-Authorization, TE, Trailer, Transfer-Encoding, Upgrade. */
bool http_field_hop(const struct http_head *h, struct str name);

/* ---- parsing -------------------------------------------------------------------------------------------- */

enum http_kind { HTTP_REQUEST, HTTP_RESPONSE };

/* Called in order head, body*, end; none may be NULL, none may free the parser. Return 0 to go on, or a negative errno that stops the parser: http_parser_feed returns it. */
struct http_parser_ops {
    int (*on_head)(void *ctx, const struct http_head *head);
    int (*on_body)(void *ctx, struct str data); /* decoded; points into what was fed */
    int (*on_end)(void *ctx);                   /* message complete, trailers dropped */
};

struct http_parser;
struct http_parser *http_parser_new(enum http_kind kind, const struct http_parser_ops *ops, void *ctx) BASE_MUST_USE;
struct http_parser *http_parser_free(struct http_parser *p);
/* Before a response whose request was HEAD: it has no body whatever its fields say. Forgotten after one message. */
void http_parser_expect_head(struct http_parser *p);
/* Feeds bytes. Stops after each complete message: *ret_used tells how much was taken; the caller feeds the rest when it is ready for the next message.
 * An interim response (1xx but 101) is swallowed. -EBADMSG (malformed or refused), -EMSGSIZE (head too large or too many fields), -EPROTO (101 or upgrade by the peer), or what a callback returned;
 * err says what. After an error the parser takes no more bytes. */
int http_parser_feed(struct http_parser *p, struct str data, size_t *ret_used, struct err *err) BASE_MUST_USE;
/* The peer has closed: 0 when that is a legal end (between messages, or of a response that runs until close; on_end is then called), -ECONNRESET in the middle of a message. */
int http_parser_eof(struct http_parser *p) BASE_MUST_USE;
/* True between messages: nothing of the next one was fed. */
bool http_parser_idle(const struct http_parser *p);

/* ---- writing ---------------------------------------------------------------------------------------------- */

/* Names and values are checked: -EINVAL for anything that could break the framing (CR, LF, NUL, ':' in a name, ...). */
int http_write_request(struct buf *out, struct str method, struct str target) BASE_MUST_USE;
int http_write_status(struct buf *out, unsigned status) BASE_MUST_USE; /* "HTTP/1.1 200 OK" with our reason phrases */
int http_write_field(struct buf *out, struct str name, struct str value) BASE_MUST_USE;
/* As http_write_field, but a field as a parser gave it is not checked again. */
int http_write_known_field(struct buf *out, const struct http_field *f) BASE_MUST_USE;
void http_write_head_end(struct buf *out);
/* The line before a chunk of len > 0 bytes; after the data comes HTTP_CHUNK_END. HTTP_CHUNK_LAST ends a body. */
#define HTTP_CHUNK_LINE 20
size_t http_chunk_line(uint64_t len, char out[HTTP_CHUNK_LINE]);
#define HTTP_CHUNK_END "\r\n"
#define HTTP_CHUNK_LAST "0\r\n\r\n"
/* The path of a target without query, as sent. */
struct str http_target_path(struct str target);

/* ---- forms ---------------------------------------------------------------------------------------------------- */

/* True for multipart/form-data. */
bool http_form_is(struct str content_type);
/* Where the value of a form's field is in a multipart/form-data body. -ENOENT: there is none; -EBADMSG: the body is malformed, or has the field twice. */
int http_form_find(struct str content_type, struct str body, const char *name, size_t *ret_off, size_t *ret_len) BASE_MUST_USE;

/* ---- event streams ------------------------------------------------------------------------------------------ */

#define HTTP_SSE_NAME_MAX 128 /* bytes of an event's name: those of the APIs are below 60 */

/* Splits text/event-stream into events, whatever pieces it comes in. The members are private. */
struct http_sse {
    struct buf line, data, name; /* line: the front of one whose end has not come */
    bool begun;    /* a line has ended: no byte order mark any more */
    bool fresh;    /* the last byte ended an event, or there was none */
    bool after_cr; /* a LF now would belong to the line that has ended */
    bool has_data, cut;
    bool told;     /* data and name are those of an event that was handed over */
};
struct http_sse_event {
    struct str name; /* of the "event" field; empty without one */
    struct str data; /* lines joined with LF */
    bool has_data;   /* false: comments or other fields alone, which a reader does not see as an event */
    bool cut;        /* there was more than fits */
};
/* max bounds the bytes kept of a line and of an event's data. */
void http_sse_init(struct http_sse *s, size_t max);
void http_sse_release(struct http_sse *s);
/* Reads up to the end of the next event. 1: an event ended, *ret is valid until the next call; 0: all was read and none has ended; -ENOMEM. *ret_used: bytes read, those of its empty line included. */
int http_sse_feed(struct http_sse *s, struct str data, size_t *ret_used, struct http_sse_event *ret) BASE_MUST_USE;
/* True between events: other bytes may be put here. */
bool http_sse_between(const struct http_sse *s);
