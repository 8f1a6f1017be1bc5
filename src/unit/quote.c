/* SPDX-License-Identifier: MIT
 *
 * How one word is written in a unit. systemd splits a value at spaces, reads quotes and backslashes, replaces %-specifiers everywhere and $-variables in commands; a backslash at the end of a line would take
 * the next line along, and a word ";" alone ends a command. Inside double quotes with these escapes nothing of that is left: systemd.syntax(7), systemd.service(5).
 */
#include <errno.h>

#include "unit_int.h"

/* Characters that mean nothing to systemd wherever they stand in a word. */
static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_-+=.,:/@", c));
}

static bool all_plain(struct str word)
{
    /* '@', ':', '+' and '-' before a program's path are prefixes; a path never begins with one, and an argument may */
    for (size_t i = 0; i < word.len; i++)
        if (!is_plain(word.ptr[i]))
            return false;
    return word.len > 0;
}

/* "{credential:NAME}" at the front of s: its length; 0: it is none. systemd knows the folder as %d. */
static size_t credential_mark(struct str s, struct str *ret_name)
{
    if (!str_starts(s, STR(FLEET_CREDENTIAL_MARK)))
        return 0;
    size_t from = strlen(FLEET_CREDENTIAL_MARK);
    ptrdiff_t end = str_find_char(s, '}');
    *ret_name = (struct str){s.ptr + from, end > 0 ? (size_t)end - from : 0};
    return end > 0 && all_plain(*ret_name) ? (size_t)end + 1 : 0;
}

int unit_quote(struct str word, bool commands, struct buf *out)
{
    if (!str_is_utf8(word))
        return -EINVAL;
    if (all_plain(word)) {
        buf_add_str(out, word);
        return 0;
    }
    buf_add_char(out, '"');
    for (size_t i = 0; i < word.len; i++) {
        unsigned char c = (unsigned char)word.ptr[i];
        struct str name;
        size_t mark = c == '{' ? credential_mark((struct str){word.ptr + i, word.len - i}, &name) : 0;
        if (mark) {
            buf_add_c(out, "%d/");
            buf_add_str(out, name);
            i += mark - 1;
        } else if (c == '\\' || c == '"')
            buf_addf(out, "\\%c", c);
        else if (c == '%' || (c == '$' && commands))
            buf_addf(out, "%c%c", c, c);
        else if (c < 0x20 || c == 0x7f)
            buf_addf(out, "\\x%02x", c);
        else
            buf_add_char(out, (char)c);
    }
    buf_add_char(out, '"');
    return 0;
}
