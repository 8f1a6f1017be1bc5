/* SPDX-License-Identifier: MIT
 *
 * berth top: requests and replicas, live. On a terminal a view that is drawn anew twice a second; elsewhere, and with --once, one plain table.
 */
#include "route_int.h"
#include "top_int.h"

#include <errno.h>
#include <os/os.h>
#include <stdio.h>
#include <unistd.h>
#include <up/up.h>

#define TEXT_MAX (8u << 20)
#define REDRAW_MS 500
#define SAID_MS 4000 /* how long a message stays */

/* ---- what there is ---------------------------------------------------------------------------------------- */

static void forget(struct top_data *d)
{
    d->status = json_free(d->status);
    d->requests = json_free(d->requests);
    d->error[0] = '\0';
}

static int fetch(const struct os_dirs *dirs, const char *fleet, const char *target, struct json **ret, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(TEXT_MAX);
    unsigned status = 0;
    int rc = up_call(dirs, fleet, "GET", target, &status, &body, err);
    if (rc == 0 && status != 200)
        rc = err_set(err, -EIO, "fleet '%s' does not answer (%u)", fleet, status);
    return rc < 0 ? rc : json_parse(buf_str(&body), ret, err);
}

/* 0, or d->error says why not. */
static int look(const struct os_dirs *dirs, const char *fleet, struct top_data *d)
{
    struct err err;
    forget(d);
    int rc = fetch(dirs, fleet, "/status", &d->status, &err);
    if (rc == 0)
        rc = fetch(dirs, fleet, "/requests", &d->requests, &err);
    if (rc < 0)
        snprintf(d->error, sizeof d->error, "%s", err.text);
    return rc;
}

/* ---- once -------------------------------------------------------------------------------------------------- */

static int print_once(const struct top_data *d)
{
    base_autobuf struct buf out = BUF_INIT(TEXT_MAX);
    bool color = os_term_color(STDOUT_FILENO);
    top_headline(d, &out);
    buf_add_char(&out, '\n');
    int rc = top_replicas(d, color, &out);
    if (rc == 0 && top_count(d, TOP_REQUESTS)) {
        buf_add_char(&out, '\n');
        rc = top_requests(d, TOP_REQUESTS, SIZE_MAX, color, &out);
    }
    return rc < 0 || buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

static int print_json(const struct top_data *d)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_obj(o, NULL);
    json_out_val(o, "status", json_root(d->status));
    json_out_val(o, "router", json_root(d->requests));
    json_out_end(o);
    return cmd_print_json(o);
}

/* ---- live --------------------------------------------------------------------------------------------------- */

struct live {
    const struct os_dirs *dirs;
    const char *fleet;
    struct top_data data;
    uint64_t selected; /* id; 0: none */
    bool explains;     /* the selected one is shown alone */
    char said[200];
    uint64_t said_until_ms;
};

static uint64_t now_ms(void)
{
    return clk_system.mono_us(clk_system.ctx) / 1000;
}

static void say(struct live *l, const char *fmt, ...) BASE_PRINTF(2, 3);
static void say(struct live *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(l->said, sizeof l->said, fmt, ap);
    va_end(ap);
    l->said_until_ms = now_ms() + SAID_MS;
}

/* Where the selected one is in its list, when it is still there. */
static size_t index_of(const struct live *l)
{
    for (size_t i = 0; i < top_count(&l->data, TOP_REQUESTS); i++)
        if (top_id(&l->data, TOP_REQUESTS, i) == l->selected)
            return i;
    return SIZE_MAX;
}

static void move(struct live *l, ptrdiff_t by)
{
    size_t n = top_count(&l->data, TOP_REQUESTS), at = index_of(l);
    if (!n)
        return;
    ptrdiff_t to = at == SIZE_MAX ? 0 : (ptrdiff_t)at + by;
    to = to < 0 ? 0 : to >= (ptrdiff_t)n ? (ptrdiff_t)n - 1 : to;
    l->selected = top_id(&l->data, TOP_REQUESTS, (size_t)to);
}

static void cancel(struct live *l)
{
    base_autobuf struct buf target = BUF_INIT(64), body = BUF_INIT(65536);
    unsigned status = 0;
    struct err err;
    if (!l->selected || index_of(l) == SIZE_MAX) {
        say(l, "select a request with the arrow keys first");
        return;
    }
    buf_addf(&target, "/requests/%llu/cancel", (unsigned long long)l->selected);
    if (up_call(l->dirs, l->fleet, "POST", target.ptr, &status, &body, &err) < 0)
        say(l, "%s", err.text);
    else
        say(l, status == 200 ? "request %llu was cancelled" : "request %llu is over", (unsigned long long)l->selected);
}

/* Draws lines of text, from `top` on so many of them; the one that is marked is line `mark` of the text (SIZE_MAX none). */
static void draw_lines(struct buf *out, struct str lines, unsigned columns, unsigned rows, size_t mark)
{
    for (size_t i = 0; rows && lines.len; i++, rows--) {
        struct str line = str_split(&lines, '\n');
        os_screen_line(out, line, columns, i == mark);
        buf_add_c(out, "\r\n");
    }
}

static size_t count_lines(const struct buf *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++)
        n += b->ptr[i] == '\n';
    return n;
}

/* The tables, as many rows as there is room for; the list of requests is moved so that the selected one is seen. */
static void draw_tables(struct live *l, struct buf *out, unsigned columns, unsigned rows, bool color)
{
    base_autobuf struct buf replicas = BUF_INIT(TEXT_MAX), requests = BUF_INIT(TEXT_MAX), recent = BUF_INIT(TEXT_MAX);
    size_t n = top_count(&l->data, TOP_REQUESTS), at = index_of(l);
    if (top_replicas(&l->data, color, &replicas) < 0 || top_requests(&l->data, TOP_REQUESTS, SIZE_MAX, color, &requests) < 0 ||
        top_requests(&l->data, TOP_RECENT, rows, color, &recent) < 0)
        return;
    size_t used = count_lines(&replicas) + 1;
    draw_lines(out, buf_str(&replicas), columns, rows, SIZE_MAX);
    if (used >= rows)
        return;
    draw_lines(out, STR("\n"), columns, 1, SIZE_MAX);
    size_t room = rows - used;
    struct str text = buf_str(&requests), head = str_split(&text, '\n');
    os_screen_line(out, head, columns, false);
    buf_add_c(out, "\r\n");
    room--;
    size_t first = at != SIZE_MAX && at >= room && room ? at - room + 1 : 0;
    for (size_t i = 0; i < first; i++)
        (void)str_split(&text, '\n');
    draw_lines(out, text, columns, (unsigned)room, at == SIZE_MAX ? SIZE_MAX : at - first);
    if (!n)
        draw_lines(out, STR("    none\n"), columns, 1, SIZE_MAX);
    size_t shown = n ? n - first : 1;
    if (shown + 3 < room && top_count(&l->data, TOP_RECENT)) {
        draw_lines(out, STR("\n"), columns, 1, SIZE_MAX);
        draw_lines(out, buf_str(&recent), columns, (unsigned)(room - shown - 1), SIZE_MAX);
    }
}

static void draw_explained(struct live *l, struct buf *out, unsigned columns, unsigned rows, bool color)
{
    base_autobuf struct buf target = BUF_INIT(64), text = BUF_INIT(TEXT_MAX);
    struct json *j = NULL;
    struct err err;
    buf_addf(&target, "/requests/%llu", (unsigned long long)l->selected);
    if (fetch(l->dirs, l->fleet, target.ptr, &j, &err) < 0)
        buf_addf(&text, "request %llu is not remembered any more\n", (unsigned long long)l->selected);
    else if (route_explain_text(json_root(j), color, &text) < 0)
        buf_clear(&text);
    json_free(j);
    draw_lines(out, buf_str(&text), columns, rows, SIZE_MAX);
}

static void draw(struct live *l)
{
    base_autobuf struct buf out = BUF_INIT(TEXT_MAX), head = BUF_INIT(4096);
    unsigned columns, rows;
    bool color = os_term_color(STDOUT_FILENO);
    os_screen_size(&columns, &rows);
    buf_add_c(&out, "\033[?2026h\033[H"); /* shown at once, where the terminal can */
    if (l->data.status)
        top_headline(&l->data, &head);
    else
        buf_addf(&head, "%s  %s\n", l->fleet, l->data.error);
    draw_lines(&out, buf_str(&head), columns, 1, SIZE_MAX);
    draw_lines(&out, STR("\n"), columns, rows > 4, SIZE_MAX);
    if (rows > 4 && l->explains)
        draw_explained(l, &out, columns, rows - 4, color);
    else if (rows > 4 && l->data.requests)
        draw_tables(l, &out, columns, rows - 4, color);
    buf_addf(&out, "\033[J\033[%u;1H", rows);
    if (now_ms() < l->said_until_ms)
        os_screen_line(&out, str_of(l->said), columns, false);
    else
        os_screen_line(&out, l->explains ? STR("\033[1mesc\033[0m back   \033[1mx\033[0m cancel   \033[1mq\033[0m quit")
                                         : STR("\033[1m\xe2\x86\x91\xe2\x86\x93\033[0m select   \033[1menter\033[0m explain   \033[1mx\033[0m cancel   \033[1mq\033[0m quit"),
                       columns, false);
    buf_add_c(&out, "\033[?2026l");
    if (buf_status(&out) == 0)
        base_ignore(write(STDOUT_FILENO, out.ptr, out.len));
}

/* False: it is over. */
static bool on_key(struct live *l, int key)
{
    switch (key) {
    case 'q':
    case OS_KEY_OVER:
        return false;
    case OS_KEY_UP:
    case 'k':
        move(l, -1);
        break;
    case OS_KEY_DOWN:
    case 'j':
        move(l, 1);
        break;
    case OS_KEY_PAGE_UP:
        move(l, -10);
        break;
    case OS_KEY_PAGE_DOWN:
        move(l, 10);
        break;
    case OS_KEY_HOME:
        move(l, PTRDIFF_MIN / 2);
        break;
    case OS_KEY_END:
        move(l, PTRDIFF_MAX / 2);
        break;
    case OS_KEY_ENTER:
        if (l->selected)
            l->explains = !l->explains;
        else
            say(l, "select a request with the arrow keys first");
        break;
    case OS_KEY_ESCAPE:
        l->explains = false;
        break;
    case 'x':
        cancel(l);
        break;
    default:
        break;
    }
    return true;
}

static int live(const struct os_dirs *dirs, const char *fleet)
{
    struct live l = {.dirs = dirs, .fleet = fleet};
    struct err err;
    int rc = os_screen_begin(STDIN_FILENO, STDOUT_FILENO, &err);
    if (rc < 0)
        return cmd_fail(CMD_FAILED, &err);
    uint64_t next = 0;
    for (;;) {
        if (now_ms() >= next) {
            (void)look(dirs, fleet, &l.data); /* what went wrong is in the data */
            next = now_ms() + REDRAW_MS;
        }
        draw(&l);
        uint64_t now = now_ms();
        int key = os_screen_key(next > now ? next - now : 0);
        if (!on_key(&l, key))
            break;
        if (key == 'x')
            next = 0;
    }
    forget(&l.data);
    os_screen_end();
    return CMD_OK;
}

/* ---- command -------------------------------------------------------------------------------------------------- */

static int top(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    struct top_data d = {0};
    bool json = cmd_given(c, a, "json");
    int code = CMD_OK;
    if (look(dirs, name, &d) < 0)
        code = cmd_failf(CMD_FAILED, "%s", d.error);
    else if (json)
        code = print_json(&d);
    else if (cmd_given(c, a, "once") || !os_is_terminal(STDIN_FILENO) || !os_is_terminal(STDOUT_FILENO))
        code = print_once(&d);
    else
        code = live(dirs, name);
    forget(&d);
    return code;
}

static int run_top(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, 0, &a, &code) ? cmd_on_name(c, &a, top) : code;
}

const struct cmd cmd_top = {
    .name = "top",
    .synopsis = "[--once | --json] [-f FILE]",
    .summary = "requests and replicas, live",
    .description = "Shows what the router of a fleet that is up works on: for each replica its state, slots in use, requests that wait, tokens written a second, prompt tokens read a second and the share of prompt tokens found in its cache; for each request its phase (read, queue with its position, load, prefill, decode), age, tokens so far and a second, its conversation and its key's name. A star marks a request that was sent again.\n\n"
                   "Arrow keys select a request, enter explains where it went and why, x cancels it, q quits. Where standard output is no terminal one plain table is printed, as with --once.\n\n"
                   "--json prints an object: status, as of 'berth status --json', and router: active, waiting, total, retries, errors, replicas, requests, and recent, the ones that ended last.",
    .examples = "berth top\nberth top --once\nberth top --json | jq '.router.requests[] | {id, phase, replica}'",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "once", NULL, "print one table and end"}},
    .run = run_top,
};
