/* SPDX-License-Identifier: MIT
 *
 * What a person sees: a progress line for each service while the fleet starts, messages afterwards, the table at the end of a
 * start. In the background each message is one key=value line of berth.log.
 */
#include <unistd.h>

#include "up_int.h"

#define SAY_MAX (32u << 10)
#define SAY_LINE_MAX (128u << 10) /* quoted */

static void say_log_line(enum event_level level, const char *subject, struct str text)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    base_autobuf struct buf b = BUF_INIT(SAY_LINE_MAX);
    char when[CLK_RFC3339];
    buf_addf(&b, "time=%s level=%s ", clk_rfc3339(clk_system.real_us(NULL), when), levels[level]);
    if (subject[0])
        buf_addf(&b, "subject=\"%s\" ", subject);
    buf_add_c(&b, "msg=");
    buf_add_quoted(&b, text);
    buf_add_char(&b, '\n');
    if (buf_status(&b) == 0)
        base_ignore(os_write_all(STDERR_FILENO, b.ptr, b.len, NULL));
}

/* An engine's or another host's words may be in it. */
static void say_plain(const char *command, const char *subject, struct str text)
{
    base_autobuf struct buf line = BUF_INIT((size_t)4 * SAY_MAX);
    buf_add_lines(&line, text);
    if (buf_status(&line) == 0)
        fprintf(stderr, "berth %s: %s%s%s\n", command, subject, subject[0] ? ": " : "", line.ptr ? line.ptr : "");
}

static void say(struct up *u, enum event_level level, const char *subject, const char *fmt, va_list ap) BASE_PRINTF(4, 0);
static void say(struct up *u, enum event_level level, const char *subject, const char *fmt, va_list ap)
{
    static const enum os_style styles[] = {OS_DIM, OS_PLAIN, OS_YELLOW, OS_RED};
    base_autobuf struct buf b = BUF_INIT(SAY_MAX);
    buf_addv(&b, fmt, ap);
    if (buf_status(&b) < 0)
        return;
    if (u->detached) {
        say_log_line(level, subject, buf_str(&b));
        return;
    }
    const char *command = u->o->router_only ? "route" : "up";
    if (u->progress)
        os_progress_say(u->progress, styles[level], "berth %s: %s%s%s", command, subject, subject[0] ? ": " : "", b.ptr);
    else
        say_plain(command, subject, buf_str(&b));
}

void up_say(struct up *u, enum event_level level, const char *subject, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(u, level, subject, fmt, ap);
    va_end(ap);
}

const char *up_subject(const struct fleet_service *s, char out[UP_SUBJECT_MAX])
{
    snprintf(out, UP_SUBJECT_MAX, "service '%s'", s->name);
    return out;
}

void up_say_service(struct up *u, enum event_level level, const struct fleet_service *s, const char *fmt, ...)
{
    char subject[UP_SUBJECT_MAX];
    va_list ap;
    va_start(ap, fmt);
    say(u, level, up_subject(s, subject), fmt, ap);
    va_end(ap);
}

/* Events of the modules below. While the fleet starts, the services' own have their progress lines. */
void up_emit(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    struct up *u = ctx;
    bool of_service = str_starts(str_of(subject), STR("service "));
    if (u->progress && !of_service && level == EVENT_INFO)
        os_progress_set(u->progress, subject, text, done, total, OS_PLAIN);
    else if (level != EVENT_DEBUG && !(of_service && u->phase != UP_SERVING))
        up_say(u, level, subject, "%s", text);
}

void up_progress_service(struct up *u, struct run_service *s, enum run_state from)
{
    if (!u->progress)
        return;
    const char *name = run_service_of(s)->name;
    struct run_info i;
    char text[512];
    run_info(s, &i);
    switch (i.state) {
    case RUN_READY:
        os_progress_set(u->progress, name, "ready", 0, 0, OS_GREEN);
        return;
    case RUN_FAILED:
        os_progress_set(u->progress, name, "failed", 0, 0, OS_RED);
        return;
    case RUN_ABSENT:
        if (from != RUN_FAILED)
            os_progress_set(u->progress, name, "stopped", 0, 0, OS_DIM);
        return;
    case RUN_STARTING:
    case RUN_LOADING:
    case RUN_DRAINING:
    case RUN_STOPPING:
        snprintf(text, sizeof(text), "%s%s%s", run_state_text(i.state), i.step ? "  " : "", i.step ? i.step : "");
        os_progress_set(u->progress, name, text, 0, 0, OS_PLAIN);
        return;
    }
}

void up_progress_all(struct up *u)
{
    for (size_t i = 0; i < u->n_services; i++) {
        struct run_info info;
        if (!u->services[i]->run)
            continue;
        run_info(u->services[i]->run, &info);
        /* What is finished has its line for good. */
        if (info.state != RUN_READY && info.state != RUN_FAILED && info.state != RUN_ABSENT)
            up_progress_service(u, u->services[i]->run, info.state);
    }
}

/* ---- the table ---------------------------------------------------------------------------------------------- */

static void add_row(struct os_table *t, const struct up_service *us)
{
    struct run_info i;
    char took[UNITS_TEXT];
    const struct fleet_service *s = us->service;
    run_info(us->run, &i);
    os_table_cell(t, OS_BOLD, "%s", s->name);
    bool idle = up_demand_idle(us);
    if (idle)
        os_table_cell(t, OS_DIM, "idle (on demand)");
    else
        os_table_cell(t, i.state == RUN_READY ? OS_GREEN : OS_YELLOW, "%s", run_state_text(i.state));
    if (i.pid > 0)
        os_table_cell(t, OS_PLAIN, "%d", (int)i.pid);
    else
        os_table_cell(t, OS_PLAIN, "-");
    if (s->port)
        os_table_cell(t, OS_PLAIN, "%u", s->port);
    else
        os_table_cell(t, OS_PLAIN, "socket");
    os_table_cell(t, OS_PLAIN, "%s", s->model ? s->model->name : "-");
    os_table_cell(t, OS_PLAIN, "%s", idle ? "-" : i.confine);
    os_table_cell(t, OS_PLAIN, "%s", idle ? "-" : units_show_ms(i.took_ms, took));
}

static void add_addresses(struct up *u, struct buf *out)
{
    const struct fleet *f = u->fleet;
    char url[PROXY_URL_TEXT];
    buf_add_c(out, out->len ? "\n" : "");
    if (u->router.wanted) {
        buf_addf(out, "router     %s\nendpoints  ", proxy_url(f, &u->router.addr, url));
        for (size_t i = 0; i < f->n_endpoints; i++)
            buf_addf(out, "%s%s", i ? ", " : "", f->endpoints[i].name);
        buf_add_char(out, '\n');
    }
    char addr[NET_ADDR_TEXT];
    if (u->control.admin.host[0])
        buf_addf(out, "admin      http://%s\n", net_addr_text(&u->control.admin, addr));
    if (u->o->background)
        buf_addf(out, "stop       berth down -f %s\n", f->file);
    else
        buf_add_c(out, "stop       Ctrl-C\n");
}

void up_print_table(struct up *u)
{
    static const char *const headings[] = {"SERVICE", "STATE", "PID", "PORT", "MODEL", "CONFINED BY", "READY IN"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT, OS_LEFT, OS_LEFT};
    base_autobuf struct buf text = BUF_INIT(UP_TEXT_MAX);
    char url[PROXY_URL_TEXT];
    if (u->o->router_only) {
        fprintf(stderr, "router  %s\n", proxy_url(u->fleet, &u->router.addr, url));
        return;
    }
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return;
    for (size_t i = 0; i < u->n_services; i++)
        add_row(t, u->services[i]);
    if (u->n_services > 0 && os_table_text(t, os_term_color(STDOUT_FILENO), &text) < 0)
        buf_clear(&text);
    os_table_free(t);
    add_addresses(u, &text);
    if (buf_status(&text) == 0)
        base_ignore(os_write_all(STDOUT_FILENO, text.ptr, text.len, NULL)); /* nobody reads it: the fleet is up all the same */
}
