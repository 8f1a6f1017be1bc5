/* SPDX-License-Identifier: MIT
 *
 * Tables for people. Cells are kept until the text is wanted, since a column is as wide as its widest cell. Padding is
 * written only before a cell that has text, so no line ends in spaces.
 */
#include "os_int.h"

#include <assert.h>
#include <errno.h>

#define CELL_CHARS 1024     /* of one cell; what is longer ends in "..." */
#define TABLE_BYTES (64u << 20) /* of all cells: a table for people is far below */
#define GAP 2

struct cell {
    struct str text;
    size_t width;
    enum os_style style;
};

struct os_table {
    struct arena *arena;
    size_t n_columns;
    enum os_align *aligns;
    size_t *widths;
    struct cell *cells; /* the first row is the headings */
    size_t n, cap;
    bool failed;
};

static void add_cell(struct os_table *t, enum os_style style, struct str raw)
{
    base_autobuf struct buf shown = BUF_INIT((size_t)16 * CELL_CHARS);
    if (t->failed)
        return;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 8 * t->n_columns;
        struct cell *cells = reallocarray(t->cells, cap, sizeof(*cells));
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->cap = cap;
    }
    buf_add_printable(&shown, raw, CELL_CHARS);
    char *text = buf_status(&shown) < 0 ? NULL : arena_dup(t->arena, buf_str(&shown));
    if (!text) {
        t->failed = true;
        return;
    }
    struct cell *c = &t->cells[t->n];
    *c = (struct cell){.text = {text, shown.len}, .width = os_text_width(buf_str(&shown)), .style = style};
    size_t *width = &t->widths[t->n % t->n_columns];
    if (*width < c->width)
        *width = c->width;
    t->n++;
}

struct os_table *os_table_new(const char *const *headings, const enum os_align *aligns, size_t n_columns)
{
    assert(n_columns > 0);
    struct os_table *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->n_columns = n_columns;
    t->arena = arena_new(TABLE_BYTES);
    t->aligns = calloc(n_columns, sizeof(*t->aligns));
    t->widths = calloc(n_columns, sizeof(*t->widths));
    if (!t->arena || !t->aligns || !t->widths)
        return os_table_free(t);
    memcpy(t->aligns, aligns, n_columns * sizeof(*aligns));
    for (size_t i = 0; i < n_columns; i++)
        add_cell(t, OS_BOLD, str_of(headings[i]));
    return t->failed ? os_table_free(t) : t;
}

struct os_table *os_table_free(struct os_table *t)
{
    if (!t)
        return NULL;
    arena_free(t->arena);
    free(t->aligns);
    free(t->widths);
    free(t->cells);
    free(t);
    return NULL;
}

void os_table_cell(struct os_table *t, enum os_style style, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(1u << 20);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    if (buf_status(&text) < 0)
        t->failed = true;
    else
        add_cell(t, style, buf_str(&text));
}

static void add_spaces(struct buf *out, size_t n)
{
    while (n--)
        buf_add_char(out, ' ');
}

static void add_row(const struct os_table *t, const struct cell *row, bool color, struct buf *out)
{
    size_t owed = 0, last = t->n_columns; /* owed: spaces that the next text needs before it */
    while (last > 0 && str_trim(row[last - 1].text).len == 0)
        last--;
    for (size_t i = 0; i < last; i++) {
        const struct cell *c = &row[i];
        size_t pad = t->widths[i] - c->width;
        struct str text = c->text;
        while (i + 1 == last && text.ptr[text.len - 1] == ' ')
            text.len--;
        if (text.len) {
            add_spaces(out, owed + (t->aligns[i] == OS_RIGHT ? pad : 0));
            buf_add_c(out, os_style_on(c->style, color));
            buf_add_str(out, text);
            buf_add_c(out, os_style_off(c->style, color));
            owed = GAP + (t->aligns[i] == OS_RIGHT ? 0 : pad);
        } else {
            owed += t->widths[i] + GAP;
        }
    }
    buf_add_char(out, '\n');
}

int os_table_text(struct os_table *t, bool color, struct buf *out)
{
    if (t->failed)
        return -ENOMEM;
    if (t->n % t->n_columns)
        return -EINVAL;
    for (size_t i = 0; i < t->n; i += t->n_columns)
        add_row(t, t->cells + i, color, out);
    return buf_status(out) < 0 ? -ENOMEM : 0;
}
