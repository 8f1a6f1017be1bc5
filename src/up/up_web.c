/* SPDX-License-Identifier: MIT
 *
 * The page of the admin listener: three files of web/, which are part of the program, and a stream of server-sent events with the state of the fleet. While somebody looks the router is asked twice a
 * second, once for all who look; who does not take an event in time misses some, never the order.
 *
 * The page loads nothing from elsewhere and may not be framed. What acts goes by POST with a field that a form of another site cannot send.
 */
#include <assert.h>
#include <errno.h>

#include "up_int.h"

#define LOOK_MS 500     /* between events */
#define LOOKERS_MAX 16  /* streams at once */

/* The files' bytes: the assembler takes them in. */
#define EMBED(symbol, file)                                                                                    \
    __asm__(".pushsection .rodata\n.global " #symbol "\n.global " #symbol "_end\n" #symbol ":\n.incbin \"" file "\"\n" \
            #symbol "_end:\n.popsection\n");                                                                   \
    extern const char symbol[], symbol##_end[] /* NOLINT(bugprone-macro-parentheses): a name that is declared */
EMBED(up_web_index, "web/index.html");
EMBED(up_web_style, "web/style.css");
EMBED(up_web_app, "web/app.js");

static const struct page {
    const char *path, *type, *begin, *end;
} pages[] = {
    {"/", "text/html; charset=utf-8", up_web_index, up_web_index_end},
    {"/style.css", "text/css; charset=utf-8", up_web_style, up_web_style_end},
    {"/app.js", "text/javascript; charset=utf-8", up_web_app, up_web_app_end},
};

struct up_looker {
    struct up_looker *next;
    struct httpio_exchange *x;
    bool full; /* it has not taken the last event yet */
};

static void on_look(void *ctx);

/* ---- pages ------------------------------------------------------------------------------------------------- */

static void answer_page(struct httpio_exchange *x, const struct page *p)
{
    const struct http_field fields[] = {
        HTTPIO_FIELD(STR("Content-Type"), str_of(p->type)),
        HTTPIO_FIELD(STR("Content-Security-Policy"), STR("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
                                                         "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")),
        HTTPIO_FIELD(STR("X-Content-Type-Options"), STR("nosniff")),
        HTTPIO_FIELD(STR("Referrer-Policy"), STR("no-referrer")),
        HTTPIO_FIELD(STR("Cross-Origin-Resource-Policy"), STR("same-origin")),
        HTTPIO_FIELD(STR("Cache-Control"), STR("no-cache")),
    };
    struct str body = {p->begin, (size_t)(p->end - p->begin)};
    if (httpio_begin(x, 200, fields, BASE_COUNT(fields), (int64_t)body.len) < 0) {
        httpio_abort(x);
        return;
    }
    (void)httpio_send(x, body);
    httpio_end(x);
}

bool up_web_may_act(const struct http_head *head)
{
    static const char *const browsers[] = {"origin", "referer", "cookie", "sec-fetch-site", "sec-fetch-mode"};
    bool browser = false;
    for (size_t i = 0; i < BASE_COUNT(browsers); i++)
        browser = browser || http_field_get(head, browsers[i]).ptr;
    return !browser || http_field_get(head, "x-berth-page").ptr;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void look_soon(struct up *u)
{
    if (u->web.lookers && u->web.timer)
        net_timer_start(u->web.timer, LOOK_MS, 0);
}

/* One event for everybody. router empty: it says nothing. */
static void tell(struct up *u, struct str router)
{
    base_autobuf struct buf status = BUF_INIT(UP_TEXT_MAX), event = BUF_INIT((size_t)2 * UP_TEXT_MAX + 64);
    if (up_status_text(u, u->fleet, &status) < 0)
        return;
    buf_add_c(&event, "event: state\ndata: {\"status\":");
    buf_add_str(&event, buf_str(&status));
    buf_add_c(&event, ",\"router\":");
    buf_add_str(&event, router.len ? router : STR("null"));
    buf_add_c(&event, "}\n\n");
    for (struct up_looker *l = u->web.lookers; l && buf_status(&event) == 0; l = l->next)
        if (!l->full)
            l->full = httpio_send(l->x, buf_str(&event));
}

static void on_look(void *ctx)
{
    struct up *u = ctx;
    if (u->web.serial) /* the last question is still open */
        tell(u, (struct str){0});
    u->web.serial = ++u->control.serial;
    if (!up_router_question(u, u->web.serial, STR("GET"), STR("/requests"))) {
        u->web.serial = 0;
        tell(u, (struct str){0});
    }
    look_soon(u);
}

bool up_web_answer(struct up *u, uint64_t serial, unsigned status, struct str body)
{
    if (!serial || serial != u->web.serial)
        return false;
    u->web.serial = 0;
    tell(u, status == 200 ? body : (struct str){0});
    return true;
}

static void begin_events(struct up *u, struct httpio_exchange *x)
{
    const struct http_field fields[] = {HTTPIO_FIELD(STR("Content-Type"), STR("text/event-stream")), HTTPIO_FIELD(STR("Cache-Control"), STR("no-store")),
                                        HTTPIO_FIELD(STR("X-Accel-Buffering"), STR("no"))};
    size_t n = 0;
    for (const struct up_looker *l = u->web.lookers; l; l = l->next)
        n++;
    struct up_looker *l = n < LOOKERS_MAX ? calloc(1, sizeof *l) : NULL;
    if (!u->web.timer)
        u->web.timer = net_timer_new(u->loop, on_look, u);
    if (!l || !u->web.timer || httpio_begin(x, 200, fields, BASE_COUNT(fields), -1) < 0) {
        free(l);
        httpio_respond(x, 503, "application/json", STR("{\"error\":\"too many look already\"}"));
        return;
    }
    (void)httpio_send(x, STR("retry: 1000\n\n"));
    *l = (struct up_looker){.next = u->web.lookers, .x = x};
    u->web.lookers = l;
    net_timer_start(u->web.timer, 0, 0);
}

/* ---- for up_control.c --------------------------------------------------------------------------------------------- */

bool up_web_request(struct up *u, struct httpio_exchange *x, const struct http_head *head)
{
    struct str path = http_target_path(head->target);
    bool get = str_eq_c(head->method, "GET");
    if (get && str_eq_c(path, "/events")) {
        begin_events(u, x);
        return true;
    }
    for (size_t i = 0; i < BASE_COUNT(pages); i++)
        if ((get || str_eq_c(head->method, "HEAD")) && str_eq_c(path, pages[i].path)) {
            answer_page(x, &pages[i]);
            return true;
        }
    return false;
}

void up_web_drained(struct up *u, struct httpio_exchange *x)
{
    for (struct up_looker *l = u->web.lookers; l; l = l->next)
        if (l->x == x)
            l->full = false;
}

void up_web_done(struct up *u, struct httpio_exchange *x)
{
    for (struct up_looker **at = &u->web.lookers; *at; at = &(*at)->next) {
        struct up_looker *l = *at;
        if (l->x != x)
            continue;
        *at = l->next;
        free(l);
        break;
    }
    if (!u->web.lookers && u->web.timer) {
        net_timer_stop(u->web.timer);
        u->web.serial = 0;
    }
}

void up_web_close(struct up *u)
{
    assert(!u->web.lookers);
    if (u->loop)
        u->web.timer = net_timer_close(u->web.timer);
}
