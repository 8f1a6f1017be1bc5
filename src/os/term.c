/* SPDX-License-Identifier: MIT
 *
 * The terminal: whether there is one, how wide, whether colour is wanted, and how many columns a text takes. The
 * width table is ours because the C library's needs a locale that a server often does not have.
 */
#include "os_int.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH_DEFAULT 80

bool os_is_terminal(int fd)
{
    return isatty(fd) == 1;
}

unsigned os_term_width(int fd)
{
    struct winsize size = {0};
    if (ioctl(fd, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return WIDTH_DEFAULT;
    return size.ws_col;
}

bool os_term_color(int fd)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (!os_is_terminal(fd) || (no_color && *no_color))
        return false;
    return !term || strcmp(term, "dumb") != 0;
}

const char *os_style_on(enum os_style style, bool color)
{
    if (!color)
        return "";
    switch (style) {
    case OS_PLAIN:
        return "";
    case OS_BOLD:
        return "\033[1m";
    case OS_DIM:
        return "\033[2m";
    case OS_RED:
        return "\033[31m";
    case OS_GREEN:
        return "\033[32m";
    case OS_YELLOW:
        return "\033[33m";
    case OS_CYAN:
        return "\033[36m";
    }
    return "";
}

const char *os_style_off(enum os_style style, bool color)
{
    return color && style != OS_PLAIN ? "\033[0m" : "";
}

/* ---- columns ------------------------------------------------------------------------------------- */

struct range {
    uint32_t first, last;
};

/* Marks that sit on the character before them, joiners and selectors. */
static const struct range none[] = {
    {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x0610, 0x061A}, {0x064B, 0x065F},   {0x0900, 0x0902},
    {0x0E31, 0x0E31}, {0x0E34, 0x0E3A}, {0x0E47, 0x0E4E}, {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF},   {0x200B, 0x200D},
    {0x20D0, 0x20FF}, {0x302A, 0x302D}, {0x3099, 0x309A}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F},   {0xE0100, 0xE01EF},
};

/* East Asian wide and full-width characters, and emoji shown as pictures. */
static const struct range wide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},   {0x25FD, 0x25FE},   {0x2614, 0x2615},
    {0x2648, 0x2653},   {0x26A1, 0x26A1},   {0x26D4, 0x26D4},   {0x2705, 0x2705},   {0x270A, 0x270B},   {0x2728, 0x2728},
    {0x274C, 0x274C},   {0x2753, 0x2755},   {0x2795, 0x2797},   {0x2B50, 0x2B50},   {0x2E80, 0x303E},   {0x3041, 0xA4CF},
    {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},
    {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F7E0, 0x1F7EB}, {0x1F900, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD},
};

static bool is_in(const struct range *ranges, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n && ranges[i].first <= c; i++)
        if (c <= ranges[i].last)
            return true;
    return false;
}

/* Cuts one character from the front of s; its columns. A broken byte counts as one. */
static size_t next_width(struct str *s)
{
    uint32_t c = 0;
    size_t n = str_utf8_decode(*s, &c);
    if (n == 0)
        n = 1;
    s->ptr += n;
    s->len -= n;
    if (c < 0x300)
        return 1;
    if (is_in(none, BASE_COUNT(none), c))
        return 0;
    return is_in(wide, BASE_COUNT(wide), c) ? 2 : 1;
}

size_t os_text_width(struct str s)
{
    size_t columns = 0;
    while (s.len)
        columns += next_width(&s);
    return columns;
}

struct str os_text_cut(struct str s, size_t max)
{
    struct str rest = s;
    size_t columns = 0;
    while (rest.len) {
        struct str before = rest;
        columns += next_width(&rest);
        if (columns > max)
            return (struct str){s.ptr, s.len - before.len};
    }
    return s;
}
