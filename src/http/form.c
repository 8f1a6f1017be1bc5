/* SPDX-License-Identifier: MIT
 *
 * multipart/form-data as bytes: where the value of one field is. Nothing is copied or decoded: who passes a body on changes that value and nothing else. A body whose parts are not as RFC 7578 has
 * them is refused, not read in some way or other; so is one that has the field twice, as its readers do not agree on which one counts.
 */
#include "http_int.h"

#include <errno.h>
#include <strings.h>

#define PART_HEAD_MAX 8192 /* of the fields before a part's value */
#define BOUNDARY_MAX 70    /* RFC 2046 */

/* ---- parameters: ; name=value ; name="value" ------------------------------------------------------------------ */

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* Cuts the next parameter from the front of s. False at its end, or where it is malformed. A quoted value with a backslash is malformed here: no client needs one for what is looked for. */
static bool next_parameter(struct str *s, struct str *ret_name, struct str *ret_value)
{
    *s = str_trim(*s);
    if (!s->len || s->ptr[0] != ';')
        return false;
    struct str rest = str_trim((struct str){s->ptr + 1, s->len - 1});
    ptrdiff_t eq = str_find_char(rest, '=');
    if (eq < 1)
        return false;
    *ret_name = (struct str){rest.ptr, (size_t)eq};
    rest.ptr += eq + 1;
    rest.len -= (size_t)eq + 1;
    if (rest.len && rest.ptr[0] == '"') {
        ptrdiff_t end = str_find_char((struct str){rest.ptr + 1, rest.len - 1}, '"');
        if (end < 0)
            return false;
        *ret_value = (struct str){rest.ptr + 1, (size_t)end};
        *s = (struct str){rest.ptr + end + 2, rest.len - (size_t)end - 2};
        return str_find_char(*ret_value, '\\') < 0;
    }
    size_t n = 0;
    while (n < rest.len && rest.ptr[n] != ';' && !is_space(rest.ptr[n]))
        n++;
    *ret_value = (struct str){rest.ptr, n};
    *s = (struct str){rest.ptr + n, rest.len - n};
    return n > 0;
}

/* The value's first word is `kind`; *ret_rest: its parameters. */
static bool is_kind(struct str value, const char *kind, struct str *ret_rest)
{
    size_t n = strlen(kind);
    value = str_trim(value);
    if (value.len < n || strncasecmp(value.ptr, kind, n) != 0)
        return false;
    *ret_rest = (struct str){value.ptr + n, value.len - n};
    return !ret_rest->len || ret_rest->ptr[0] == ';' || is_space(ret_rest->ptr[0]);
}

bool http_form_is(struct str content_type)
{
    struct str rest;
    return is_kind(content_type, "multipart/form-data", &rest);
}

/* ---- parts --------------------------------------------------------------------------------------------------------- */

/* Reads a part's field lines. False: malformed. *ret_is: it is the form's field `name`, and no file. */
static bool read_head(struct str head, const char *name, bool *ret_is)
{
    *ret_is = false;
    while (head.len) {
        ptrdiff_t end = str_find(head, STR("\r\n"));
        struct str line = {head.ptr, end < 0 ? head.len : (size_t)end}, rest, key, value;
        head = end < 0 ? (struct str){0} : (struct str){head.ptr + end + 2, head.len - (size_t)end - 2};
        struct str field = str_split(&line, ':');
        if (!line.ptr || !field.len || is_space(field.ptr[0]))
            return false;
        if (!str_eq_nocase(field, STR("content-disposition")) || !is_kind(line, "form-data", &rest))
            continue;
        bool named = false, file = false;
        while (next_parameter(&rest, &key, &value)) {
            named = named || (str_eq_nocase(key, STR("name")) && str_eq_c(value, name));
            file = file || str_eq_nocase(key, STR("filename")) || str_eq_nocase(key, STR("filename*"));
        }
        if (str_trim(rest).len)
            return false;
        *ret_is = named && !file;
    }
    return true;
}

/* Behind the delimiter at the front of s: 1 and *s is the next part, 0 that was the last one, -EBADMSG. */
static int after_delimiter(struct str *s)
{
    size_t n = 0;
    if (str_starts(*s, STR("--")))
        return 0;
    while (n < s->len && is_space(s->ptr[n]))
        n++;
    if (s->len - n < 2 || s->ptr[n] != '\r' || s->ptr[n + 1] != '\n')
        return -EBADMSG;
    s->ptr += n + 2;
    s->len -= n + 2;
    return 1;
}

/* Where a part's value begins; 0: malformed. *ret_head: what is before it. */
static size_t head_end(struct str part, struct str *ret_head)
{
    if (str_starts(part, STR("\r\n"))) {
        *ret_head = (struct str){0};
        return 2;
    }
    struct str front = {part.ptr, part.len < PART_HEAD_MAX ? part.len : PART_HEAD_MAX};
    ptrdiff_t end = str_find(front, STR("\r\n\r\n"));
    if (end < 0)
        return 0;
    *ret_head = (struct str){part.ptr, (size_t)end};
    return (size_t)end + 4;
}

int http_form_find(struct str content_type, struct str body, const char *name, size_t *ret_off, size_t *ret_len)
{
    char delimiter[BOUNDARY_MAX + 5];
    struct str rest, key, value, boundary = {0}, s = body, head;
    bool found = false, is;
    size_t off = 0, len = 0;
    int rc;
    if (!is_kind(content_type, "multipart/form-data", &rest))
        return -EBADMSG;
    while (next_parameter(&rest, &key, &value))
        if (str_eq_nocase(key, STR("boundary")))
            boundary = value;
    if (!boundary.len || boundary.len > BOUNDARY_MAX || str_trim(rest).len)
        return -EBADMSG;
    snprintf(delimiter, sizeof delimiter, "\r\n--" STR_FMT, STR_ARG(boundary));
    struct str dash = {delimiter + 2, boundary.len + 2}, line = {delimiter, boundary.len + 4};
    if (!str_starts(s, dash)) /* no preamble: nobody sends one, and who reads on may see it otherwise */
        return -EBADMSG;
    s.ptr += dash.len;
    s.len -= dash.len;
    while ((rc = after_delimiter(&s)) == 1) {
        size_t at = head_end(s, &head);
        if (!at || !read_head(head, name, &is))
            return -EBADMSG;
        s.ptr += at;
        s.len -= at;
        ptrdiff_t end = str_find(s, line);
        if (end < 0 || (is && found))
            return -EBADMSG;
        if (is) {
            found = true;
            off = (size_t)(s.ptr - body.ptr);
            len = (size_t)end;
        }
        s.ptr += (size_t)end + line.len;
        s.len -= (size_t)end + line.len;
    }
    if (rc < 0 || !found)
        return rc < 0 ? rc : -ENOENT;
    *ret_off = off;
    *ret_len = len;
    return 0;
}
