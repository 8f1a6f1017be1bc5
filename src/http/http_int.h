/* SPDX-License-Identifier: MIT
 *
 * http_int: what the files of http share: which bytes may stand where. One table, one look-up a byte, for parsing and writing
 * alike, so that what is refused from a peer is never sent to one.
 */
#pragma once

#include <http/http.h>

/* What a byte may be part of. */
#define HTTP_BYTE_TOKEN 1  /* a method or a field name (RFC 9110, 5.6.2) */
#define HTTP_BYTE_LINE 2   /* a start line or a field value: printable, space, tab, and bytes above 0x7f */
#define HTTP_BYTE_TARGET 4 /* a request target: printable ASCII but '#', which never travels */
#define HTTP_BYTE_HOST 8   /* a host with port: names, IPv4, bracketed IPv6 */

extern const uint8_t http_byte_class[256];

/* True when s is not empty and each byte belongs to the class. */
bool http_all_of(struct str s, uint8_t class);
/* How many bytes at the front of s are certainly no control bytes, looked at eight at a time: most lines and values are that as a whole, or to their end. */
size_t http_plain_front(struct str s);
/* True for the names that http_field_hop knows by themselves. */
bool http_always_hop(struct str name);

/* ---- check.c: refusals that need no parser ------------------------------------------------------------ */

/* Why something is refused: a code and a line for people. */
struct http_refusal {
    int code; /* -EBADMSG, -EMSGSIZE or -EPROTO */
    const char *why;
};

/* A start line without its CRLF, cut into its parts. False: refused, *no says why. Only the members of *head that a start line gives are written. */
bool http_check_request_line(struct str line, struct http_head *head, struct http_refusal *no) BASE_MUST_USE;
bool http_check_status_line(struct str line, struct http_head *head, struct http_refusal *no) BASE_MUST_USE;

/* What the framing fields of a head say, gathered while its fields come by. */
struct http_framing {
    unsigned n_host, n_length, n_coding;
    bool names_hops; /* a Connection field names others */
    struct str host;
    int64_t content_length; /* valid when n_length is not 0 */
};
/* Counts one field in. False: the field alone is reason to refuse. */
bool http_check_field(struct http_framing *fr, struct http_field f, struct http_refusal *no) BASE_MUST_USE;
/* Whether all fields together leave one reading only. */
bool http_check_framing(const struct http_framing *fr, const struct http_head *head, enum http_kind kind, struct http_refusal *no) BASE_MUST_USE;
/* True when a response of that status has no body, whatever its fields say. */
bool http_status_bodiless(unsigned status);
