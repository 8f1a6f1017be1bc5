/* SPDX-License-Identifier: MIT
 *
 * Writing heads and chunk lines. Everything that could end a line early or start another message is refused here, so that no
 * caller can be talked into sending it, wherever its strings came from.
 */
#include "http_int.h"

#include <errno.h>

int http_write_request(struct buf *out, struct str method, struct str target)
{
    if (!http_all_of(method, HTTP_BYTE_TOKEN) || !http_all_of(target, HTTP_BYTE_TARGET) || target.len > HTTP_TARGET_MAX)
        return -EINVAL;
    buf_add_str(out, method);
    buf_add_char(out, ' ');
    buf_add_str(out, target);
    buf_add(out, " HTTP/1.1\r\n", 11);
    return buf_status(out);
}

static const char *reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *text;
    } reasons[] = {
        {100, "Continue"},
        {101, "Switching Protocols"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {425, "Too Early"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
        {529, "Overloaded"},
    };
    for (size_t i = 0; i < BASE_COUNT(reasons); i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Unknown";
}

int http_write_status(struct buf *out, unsigned status)
{
    if (status < 100 || status > 599)
        return -EINVAL;
    char code[4] = {(char)('0' + status / 100), (char)('0' + status / 10 % 10), (char)('0' + status % 10), ' '};
    buf_add(out, "HTTP/1.1 ", 9);
    buf_add(out, code, sizeof code);
    buf_add_c(out, reason(status));
    buf_add(out, "\r\n", 2);
    return buf_status(out);
}

static int put_field(struct buf *out, struct str name, struct str value)
{
    size_t len = name.len + value.len + 4; /* of bytes that are in memory: it does not wrap */
    char *to = buf_room(out, len);
    if (!to)
        return buf_status(out);
    memcpy(to, name.ptr, name.len);
    to[name.len] = ':';
    to[name.len + 1] = ' ';
    if (value.len)
        memcpy(to + name.len + 2, value.ptr, value.len);
    to[len - 2] = '\r';
    to[len - 1] = '\n';
    buf_grew(out, len);
    return 0;
}

int http_write_field(struct buf *out, struct str name, struct str value)
{
    if (!http_all_of(name, HTTP_BYTE_TOKEN) || (value.len && !http_all_of(value, HTTP_BYTE_LINE)))
        return -EINVAL;
    return put_field(out, name, value);
}

int http_write_known_field(struct buf *out, const struct http_field *f)
{
    return f->sound ? put_field(out, f->name, f->value) : http_write_field(out, f->name, f->value);
}

void http_write_head_end(struct buf *out)
{
    buf_add(out, "\r\n", 2);
}

size_t http_chunk_line(uint64_t len, char out[HTTP_CHUNK_LINE])
{
    char digits[16];
    size_t n = 0, k = 0;
    do {
        digits[n++] = "0123456789abcdef"[len & 15];
        len >>= 4;
    } while (len);
    while (n)
        out[k++] = digits[--n];
    out[k++] = '\r';
    out[k++] = '\n';
    return k;
}
