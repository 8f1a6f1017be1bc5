/* SPDX-License-Identifier: MIT
 *
 * What is refused although a parser could make sense of it. Two parties that read one message differently are how requests are
 * smuggled, so everything that has more than one reading in the wild is an error here, in both directions: start lines with
 * other than single spaces, lengths that are no plain number or come twice, transfer codings but "chunked", hosts that disagree.
 */
#include "http_int.h"

#include <errno.h>
#include <strings.h>

static bool refuse(struct http_refusal *no, int code, const char *why)
{
    *no = (struct http_refusal){.code = code, .why = why};
    return false;
}

static bool bad(struct http_refusal *no, const char *why)
{
    return refuse(no, -EBADMSG, why);
}

/* "HTTP/1.0" or "HTTP/1.1" at the start of s. */
static bool check_version(struct str s, unsigned *minor, struct http_refusal *no)
{
    if (!str_starts(s, STR("HTTP/")))
        return bad(no, "the start line names no HTTP version");
    if (s.len < 8 || (s.ptr[7] != '0' && s.ptr[7] != '1') || s.ptr[6] != '.' || s.ptr[5] != '1')
        return bad(no, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    *minor = (unsigned)(s.ptr[7] - '0');
    return true;
}

bool http_check_request_line(struct str line, struct http_head *head, struct http_refusal *no)
{
    struct str rest = line;
    struct str method = str_split(&rest, ' ');
    struct str target = str_split(&rest, ' ');
    if (!rest.ptr)
        return bad(no, "the request line is not \"METHOD TARGET HTTP/1.1\"");
    if (target.len > HTTP_TARGET_MAX)
        return refuse(no, -EMSGSIZE, "the request target is too long");
    if (!http_all_of(method, HTTP_BYTE_TOKEN))
        return bad(no, "the method is no token");
    if (!http_all_of(target, HTTP_BYTE_TARGET))
        return bad(no, "the request target is empty or has a byte that does not belong there");
    if (!check_version(rest, &head->minor, no))
        return false;
    if (rest.len != 8)
        return bad(no, "bytes follow the HTTP version");
    head->method = method;
    head->target = target;
    return true;
}

bool http_check_status_line(struct str line, struct http_head *head, struct http_refusal *no)
{
    if (!check_version(line, &head->minor, no))
        return false;
    if (line.len < 12 || line.ptr[8] != ' ')
        return bad(no, "the status line has no status");
    unsigned status = 0;
    for (size_t i = 9; i < 12; i++) {
        if (line.ptr[i] < '0' || line.ptr[i] > '9')
            return bad(no, "the status is no number of three digits");
        status = status * 10 + (unsigned)(line.ptr[i] - '0');
    }
    if (status < 100 || status > 599)
        return bad(no, "the status is not between 100 and 599");
    if (line.len > 12 && line.ptr[12] != ' ')
        return bad(no, "the status is no number of three digits");
    if (status == 101)
        return refuse(no, -EPROTO, "the peer switches protocols, which nobody asked for");
    head->status = status;
    head->reason = line.len > 13 ? (struct str){line.ptr + 13, line.len - 13} : (struct str){line.ptr + line.len, 0};
    return true;
}

static bool check_length(struct http_framing *fr, struct str value, struct http_refusal *no)
{
    uint64_t n;
    if (str_to_u64(value, &n) < 0 || n > INT64_MAX)
        return bad(no, "the content-length is no plain number or too large");
    if (fr->n_length++)
        return bad(no, "there is more than one content-length");
    fr->content_length = (int64_t)n;
    return true;
}

bool http_check_field(struct http_framing *fr, struct http_field f, struct http_refusal *no)
{
    if (!http_all_of(f.name, HTTP_BYTE_TOKEN))
        return bad(no, "a field name is empty or has a byte that does not belong there");
    switch (f.name.len) {
    case 4:
        if (strncasecmp(f.name.ptr, "host", 4) != 0)
            break;
        if (f.value.len && !http_all_of(f.value, HTTP_BYTE_HOST))
            return bad(no, "the host is malformed");
        fr->host = f.value;
        if (fr->n_host++)
            return bad(no, "there is more than one host");
        break;
    case 10:
        if (strncasecmp(f.name.ptr, "connection", 10) == 0 && !str_eq_nocase(f.value, STR("keep-alive")) && !str_eq_nocase(f.value, STR("close")))
            fr->names_hops = true;
        break;
    case 14:
        if (strncasecmp(f.name.ptr, "content-length", 14) == 0)
            return check_length(fr, f.value, no);
        break;
    case 17:
        if (strncasecmp(f.name.ptr, "transfer-encoding", 17) != 0)
            break;
        if (fr->n_coding++)
            return bad(no, "there is more than one transfer-encoding");
        if (!str_eq_nocase(f.value, STR("chunked")))
            return bad(no, "the transfer-encoding is not \"chunked\"");
        break;
    default:
        break;
    }
    return true;
}

/* The host with its port unless that is the scheme's own. */
static struct str without_port(struct str host, struct str port)
{
    if (str_ends(host, port))
        host.len -= port.len;
    return host;
}

/* A target is a path, "*" for OPTIONS, host:port for CONNECT, or a URL of the very host that Host names. */
static bool check_target(const struct http_framing *fr, const struct http_head *head, struct http_refusal *no)
{
    struct str t = head->target;
    if (t.ptr[0] == '/' || str_eq_c(head->method, "CONNECT"))
        return true;
    if (str_eq_c(t, "*"))
        return str_eq_c(head->method, "OPTIONS") || bad(no, "the target \"*\" is for OPTIONS only");

    struct str port;
    if (t.len > 7 && strncasecmp(t.ptr, "http://", 7) == 0) {
        t = (struct str){t.ptr + 7, t.len - 7};
        port = STR(":80");
    } else if (t.len > 8 && strncasecmp(t.ptr, "https://", 8) == 0) {
        t = (struct str){t.ptr + 8, t.len - 8};
        port = STR(":443");
    } else {
        return bad(no, "the request target is neither a path nor an http URL");
    }
    size_t n = 0;
    while (n < t.len && t.ptr[n] != '/' && t.ptr[n] != '?')
        n++;
    struct str host = {t.ptr, n};
    if (!http_all_of(host, HTTP_BYTE_HOST))
        return bad(no, "the host in the request target is malformed");
    if (fr->n_host && !str_eq_nocase(without_port(host, port), without_port(fr->host, port)))
        return bad(no, "the request target names another host than the field host");
    return true;
}

bool http_status_bodiless(unsigned status)
{
    return status < 200 || status == 204 || status == 304;
}

bool http_check_framing(const struct http_framing *fr, const struct http_head *head, enum http_kind kind, struct http_refusal *no)
{
    if (fr->n_coding && fr->n_length)
        return bad(no, "both content-length and transfer-encoding are given");
    if (fr->n_coding && head->minor == 0)
        return bad(no, "HTTP/1.0 has no transfer-encoding");
    if (kind == HTTP_REQUEST) {
        if (head->minor == 1 && !fr->n_host)
            return bad(no, "a request of HTTP/1.1 must have a host");
        return check_target(fr, head, no);
    }
    if ((head->status < 200 || head->status == 204) && (fr->n_coding || (fr->n_length && fr->content_length > 0)))
        return bad(no, "a response without a body announces one");
    return true;
}
