/* SPDX-License-Identifier: MIT
 *
 * Progress of several tasks at once. On a terminal the running tasks are a block of lines at the bottom that is redrawn in
 * place; what is finished or said is written for good above it:
 *
 *     beta     ready in 0.6 s
 *     alpha    loading   [#########-----------]  45 %   2.1 s
 *
 * Elsewhere (a pipe, a log, a dumb terminal) only finished tasks and messages are written, a line each. A redraw is one
 * write of erasing and drawing together, so that nothing flickers, and no drawn line is as wide as the terminal, since a
 * wrapped one could not be erased. Columns only ever grow: they do not jump while one looks.
 */
#include "os_int.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_US 80000 /* faster than this nobody sees */
#define BAR_COLUMNS 20
#define SUBJECT_MAX 48  /* columns */
#define TEXT_COLUMN_MAX 32
#define TASKS_MAX 1024
#define OUT_BYTES (1u << 20)
#define ROWS_DEFAULT 24

struct task {
    char subject[64], text[ERR_TEXT_MAX];
    uint64_t done, total, start_us;
};

struct os_progress {
    int fd;
    const struct clk *clk;
    bool live, color;
    struct task *tasks; /* running, in the order of their first line */
    size_t n, cap;
    size_t subject_columns, text_columns;
    size_t drawn; /* lines on the screen now */
    bool stale;   /* the screen is behind the tasks */
    uint64_t drawn_us;
};

static uint64_t now_us(const struct os_progress *p)
{
    return p->clk->mono_us(p->clk->ctx);
}

struct os_progress *os_progress_new(int fd, const struct clk *clk)
{
    struct os_progress *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    const char *term = getenv("TERM");
    p->fd = fd;
    p->clk = clk;
    p->live = os_is_terminal(fd) && term && *term && strcmp(term, "dumb") != 0;
    p->color = os_term_color(fd);
    return p;
}

/* ---- text ---------------------------------------------------------------------------------------- */

/* Outside text made printable, cut to cap bytes where a character ends. */
static void copy_text(char *to, size_t cap, const char *from)
{
    base_autobuf struct buf shown = BUF_INIT(4 * cap + 16);
    buf_add_printable(&shown, str_of(from), cap - 1);
    struct str s = buf_str(&shown);
    if (buf_status(&shown) < 0)
        s = (struct str){NULL, 0};
    if (s.len >= cap) {
        s.len = cap - 1;
        while (s.len && ((unsigned char)s.ptr[s.len] & 0xC0) == 0x80)
            s.len--;
    }
    if (s.len)
        memcpy(to, s.ptr, s.len);
    to[s.len] = '\0';
}

static size_t width_of(const char *text)
{
    return os_text_width(str_of(text));
}

static const char *show_elapsed(uint64_t us, char out[UNITS_TEXT])
{
    uint64_t tenths = us / 100000;
    if (tenths >= 600)
        return units_show_ms(us / 1000, out);
    snprintf(out, UNITS_TEXT, "%u.%u s", (unsigned)(tenths / 10), (unsigned)(tenths % 10));
    return out;
}

static void pad(struct buf *out, size_t from, size_t to)
{
    for (; from < to; from++)
        buf_add_char(out, ' ');
}

/* Text in a style, padded to columns, but never over *left, which shrinks by what was written. */
static void put(struct buf *out, struct str text, size_t columns, enum os_style style, bool color, size_t *left)
{
    text = os_text_cut(text, *left);
    size_t width = os_text_width(text);
    if (columns < width)
        columns = width;
    if (columns > *left)
        columns = *left;
    buf_add_c(out, os_style_on(style, color));
    buf_add_str(out, text);
    buf_add_c(out, os_style_off(style, color));
    pad(out, width, columns);
    *left -= columns;
}

static void put_bar(const struct os_progress *p, const struct task *t, struct buf *out, size_t *left)
{
    uint64_t done = t->done < t->total ? t->done : t->total;
    double part = (double)done / (double)t->total;
    size_t full = (size_t)(part * BAR_COLUMNS);
    char bar[BAR_COLUMNS], percent[16];
    memset(bar, '#', full);
    memset(bar + full, '-', BAR_COLUMNS - full);
    snprintf(percent, sizeof(percent), "] %3u %%", (unsigned)(part * 100));
    put(out, STR("  ["), 3, OS_PLAIN, p->color, left);
    put(out, (struct str){bar, full}, full, OS_CYAN, p->color, left);
    put(out, (struct str){bar + full, BAR_COLUMNS - full}, BAR_COLUMNS - full, OS_DIM, p->color, left);
    put(out, str_of(percent), 0, OS_PLAIN, p->color, left);
}

/* The line of a running task, with room for a bar when one of them has it; one column short of the terminal at most. In a
 * narrow one the bar goes first, then text is cut. */
static void add_line(const struct os_progress *p, const struct task *t, bool bars, size_t terminal, struct buf *out)
{
    enum { BAR = 2 + 1 + BAR_COLUMNS + 1 + 6, TIME = 8 };
    char time[UNITS_TEXT], padded[UNITS_TEXT + TIME];
    snprintf(padded, sizeof(padded), "%*s", TIME, show_elapsed(now_us(p) - t->start_us, time));
    size_t left = terminal > 1 ? terminal - 1 : 1;
    if (left < 2 + p->subject_columns + 2 + p->text_columns + BAR + TIME)
        bars = false;
    size_t tail = TIME + (bars ? BAR : 0);
    put(out, STR("  "), 2, OS_PLAIN, p->color, &left);
    put(out, str_of(t->subject), p->subject_columns + 2, OS_BOLD, p->color, &left);
    size_t reserved = left > tail + 8 ? tail : 0; /* where not even the time fits beside some text, there is only text */
    left -= reserved;
    put(out, str_of(t->text), p->text_columns, OS_PLAIN, p->color, &left);
    left += reserved;
    if (bars && reserved && t->total)
        put_bar(p, t, out, &left);
    else if (bars && reserved)
        put(out, STR(""), BAR, OS_PLAIN, p->color, &left);
    if (reserved)
        put(out, str_of(padded), 0, OS_DIM, p->color, &left);
    buf_add_char(out, '\n');
}

/* ---- the block ----------------------------------------------------------------------------------- */

static size_t screen_rows(int fd)
{
    struct winsize size = {0};
    return ioctl(fd, TIOCGWINSZ, &size) < 0 || size.ws_row == 0 ? ROWS_DEFAULT : size.ws_row;
}

static void erase(struct os_progress *p, struct buf *out)
{
    if (p->drawn)
        buf_addf(out, "\033[%zuA\r\033[J", p->drawn);
    p->drawn = 0;
}

static void draw(struct os_progress *p, struct buf *out)
{
    size_t terminal = os_term_width(p->fd), rows = screen_rows(p->fd);
    size_t most = rows > 2 ? rows - 2 : 1; /* the cursor cannot go back to what has scrolled away */
    size_t shown = p->n <= most ? p->n : most - 1;
    bool bars = false;
    for (size_t i = 0; i < shown; i++)
        bars = bars || p->tasks[i].total;
    for (size_t i = 0; i < shown; i++)
        add_line(p, &p->tasks[i], bars, terminal, out);
    p->drawn = shown;
    if (shown < p->n) {
        buf_addf(out, "  and %zu more\n", p->n - shown);
        p->drawn++;
    }
    p->stale = false;
    p->drawn_us = now_us(p);
}

static void flush(const struct os_progress *p, const struct buf *out)
{
    if (buf_status(out) == 0 && out->len)
        base_ignore(os_write_all(p->fd, out->ptr, out->len, NULL)); /* nobody watches a closed terminal */
}

/* Writes text for good above the block and the block anew. Only then is the screen touched, by one write. */
static void show(struct os_progress *p, struct str above)
{
    base_autobuf struct buf out = BUF_INIT(OUT_BYTES);
    if (p->live)
        erase(p, &out);
    buf_add_str(&out, above);
    if (p->live)
        draw(p, &out);
    flush(p, &out);
}

/* ---- tasks --------------------------------------------------------------------------------------- */

static struct task *find(struct os_progress *p, const char *subject)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->tasks[i].subject, subject) == 0)
            return &p->tasks[i];
    return NULL;
}

static struct task *add(struct os_progress *p, const char *subject)
{
    if (p->n == TASKS_MAX)
        return NULL;
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 8;
        struct task *tasks = reallocarray(p->tasks, cap, sizeof(*tasks));
        if (!tasks)
            return NULL;
        p->tasks = tasks;
        p->cap = cap;
    }
    struct task *t = &p->tasks[p->n++];
    *t = (struct task){.start_us = now_us(p)};
    memcpy(t->subject, subject, strlen(subject) + 1);
    return t;
}

static void grow(size_t *columns, size_t width, size_t most)
{
    if (width > most)
        width = most;
    if (*columns < width)
        *columns = width;
}

/* "alpha: ready in 0.6 s"; what went wrong happened "after", not "in". A task that was never seen running took no time that we know of. */
static void add_finished(const struct os_progress *p, const char *subject, const char *text, const struct task *t, enum os_style style,
                         struct buf *out)
{
    char time[UNITS_TEXT];
    if (p->live) {
        buf_addf(out, "  %s%s%s", os_style_on(OS_BOLD, p->color), subject, os_style_off(OS_BOLD, p->color));
        pad(out, width_of(subject), p->subject_columns + 2);
    } else {
        buf_addf(out, "%s: ", subject);
    }
    buf_addf(out, "%s%s%s", os_style_on(style, p->color), text, os_style_off(style, p->color));
    if (t)
        buf_addf(out, "%s%s", style == OS_RED || style == OS_YELLOW ? " after " : " in ", show_elapsed(now_us(p) - t->start_us, time));
    buf_add_char(out, '\n');
}

static void finish(struct os_progress *p, const char *subject, const char *text, enum os_style style)
{
    base_autobuf struct buf line = BUF_INIT((size_t)4 * ERR_TEXT_MAX);
    struct task *t = find(p, subject);
    add_finished(p, subject, text, t, style, &line);
    if (t) {
        size_t after = p->n - (size_t)(t - p->tasks) - 1;
        memmove(t, t + 1, after * sizeof(*t));
        p->n--;
    }
    if (buf_status(&line) == 0)
        show(p, buf_str(&line));
}

void os_progress_set(struct os_progress *p, const char *subject, const char *text, uint64_t done, uint64_t total, enum os_style done_style)
{
    char name[sizeof(p->tasks->subject)], what[sizeof(p->tasks->text)];
    copy_text(name, sizeof(name), subject);
    copy_text(what, sizeof(what), text);
    grow(&p->subject_columns, width_of(name), SUBJECT_MAX);
    if (done_style != OS_PLAIN) {
        finish(p, name, what, done_style);
        return;
    }
    grow(&p->text_columns, width_of(what), TEXT_COLUMN_MAX);
    struct task *t = find(p, name);
    bool changed = !t || strcmp(t->text, what) != 0;
    if (!t)
        t = add(p, name);
    if (!t)
        return;
    memcpy(t->text, what, sizeof(what));
    t->done = done;
    t->total = total;
    p->stale = true;
    if (p->live && (changed || now_us(p) - p->drawn_us >= REDRAW_US))
        show(p, (struct str){NULL, 0});
}

void os_progress_say(struct os_progress *p, enum os_style style, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(OUT_BYTES / 16), out = BUF_INIT(OUT_BYTES);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    if (buf_status(&text) < 0)
        return;
    struct str rest = buf_str(&text);
    if (str_ends(rest, STR("\n")))
        rest.len--;
    while (rest.ptr) { /* the lines of an engine's log come in one message */
        struct str line = str_split(&rest, '\n');
        buf_add_c(&out, os_style_on(style, p->color));
        buf_add_printable(&out, line, SIZE_MAX);
        buf_add_c(&out, os_style_off(style, p->color));
        buf_add_char(&out, '\n');
    }
    if (buf_status(&out) == 0)
        show(p, buf_str(&out));
}

struct os_progress *os_progress_free(struct os_progress *p)
{
    if (!p)
        return NULL;
    if (p->live && p->stale)
        show(p, (struct str){NULL, 0});
    free(p->tasks);
    free(p);
    return NULL;
}
