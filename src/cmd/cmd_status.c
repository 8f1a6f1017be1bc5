/* SPDX-License-Identifier: MIT
 *
 * berth status: what runs. The supervisor answers JSON, which is printed as it is or as a table; the same for a fleet that is down.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <up/up.h>

#define TEXT_MAX (8u << 20)

/* ---- cells ----------------------------------------------------------------------------------------------- */

static void number_cell(struct os_table *t, json_val v, const char *key)
{
    uint64_t n;
    if (json_u64(json_get(v, key), &n))
        os_table_cell(t, OS_PLAIN, "%llu", (unsigned long long)n);
    else
        os_table_cell(t, OS_PLAIN, "-");
}

static void time_cell(struct os_table *t, json_val v, const char *key)
{
    char text[UNITS_TEXT];
    uint64_t ms;
    os_table_cell(t, OS_PLAIN, "%s", json_u64(json_get(v, key), &ms) ? units_show_ms(ms, text) : "-");
}

static void bytes_cell(struct os_table *t, json_val v, const char *key)
{
    char text[UNITS_TEXT];
    uint64_t n;
    os_table_cell(t, OS_PLAIN, "%s", json_u64(json_get(v, key), &n) ? units_show_bytes(n, text) : "-");
}

static enum os_style style_of(struct str state)
{
    if (str_eq_c(state, "ready") || str_eq_c(state, "up"))
        return OS_GREEN;
    if (str_eq_c(state, "failed"))
        return OS_RED;
    return str_eq_c(state, "down") || str_eq_c(state, "idle") || str_eq_c(state, "elsewhere") ? OS_DIM : OS_YELLOW;
}

/* ---- table ------------------------------------------------------------------------------------------------- */

static int add_services(json_val root, bool color, struct buf *out)
{
    static const char *const headings[] = {"SERVICE", "STATE", "PID", "PORT", "MODEL", "UPTIME", "RESTARTS", "MEMORY"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT};
    json_val services = json_get(root, "services");
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < json_count(services); i++) {
        json_val s = json_at(services, i);
        struct str name = json_get_str(s, "name", "-"), state = json_get_str(s, "state", "-"), model = json_get_str(s, "model", "-");
        os_table_cell(t, OS_BOLD, STR_FMT, STR_ARG(name));
        bool drained = false;
        (void)json_bool(json_get(s, "drained"), &drained);
        os_table_cell(t, style_of(state), STR_FMT "%s", STR_ARG(state), drained ? " (drained)" : str_eq_c(state, "idle") ? " (on demand)" : "");
        number_cell(t, s, "pid");
        number_cell(t, s, "port");
        os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(model));
        time_cell(t, s, "uptime_ms");
        number_cell(t, s, "restarts");
        bytes_cell(t, s, "memory_bytes");
    }
    int rc = os_table_text(t, color, out);
    os_table_free(t);
    return rc;
}

/* Why a service is not ready, one line each. */
static void add_reasons(json_val root, struct buf *out)
{
    struct str why;
    json_val services = json_get(root, "services");
    for (size_t i = 0; i < json_count(services); i++) {
        json_val s = json_at(services, i);
        struct str name = json_get_str(s, "name", "-"), state = json_get_str(s, "state", "-"), text;
        if (json_str(json_get(s, "pending"), &text) && str_eq_c(text, "restart"))
            buf_addf(out, STR_FMT ": pending restart: the fleet file declares it otherwise by now\n", STR_ARG(name));
        if (str_eq_c(state, "ready") || str_eq_c(state, "down") || !json_str(json_get(s, "error"), &text))
            continue;
        struct str first = str_split(&text, '\n');
        buf_addf(out, STR_FMT ": ", STR_ARG(name));
        buf_add_printable(out, first, 300);
        buf_add_char(out, '\n');
    }
    if (json_str(json_get(root, "reload_error"), &why)) {
        buf_add_c(out, "the fleet file is not in force: ");
        buf_add_printable(out, why, 600);
        buf_add_char(out, '\n');
    }
}

/* Conversations that the engines cannot hold all: no policy helps, more memory or fewer of them do. */
static void add_room(json_val r, struct buf *out)
{
    bool crowded = false;
    if (!json_bool(json_get(r, "crowded"), &crowded) || !crowded)
        return;
    uint64_t tokens = json_get_u64(r, "working_set_tokens"), room = json_get_u64(r, "capacity_tokens");
    buf_addf(out, "crowded    %llu conversations in %llu slots", (unsigned long long)json_get_u64(r, "conversations"), (unsigned long long)json_get_u64(r, "slots"));
    if (room)
        buf_addf(out, ", %llu tokens in %llu", (unsigned long long)tokens, (unsigned long long)room);
    buf_add_c(out, ": prompts are read again\n");
}

static void add_router(json_val root, struct buf *out)
{
    json_val r = json_get(root, "router"), endpoints = json_get(root, "endpoints");
    struct str state = json_get_str(r, "state", "-"), url = json_get_str(r, "url", "-");
    buf_addf(out, "\nrouter     " STR_FMT "  " STR_FMT "\n", STR_ARG(url), STR_ARG(state));
    if (!str_eq_c(state, "down") && !str_eq_c(state, "elsewhere"))
        buf_addf(out, "requests   %llu, under way %llu, sent again %llu, errors %llu, restarts %llu\n",
                 (unsigned long long)json_get_u64(r, "requests"), (unsigned long long)json_get_u64(r, "active"),
                 (unsigned long long)json_get_u64(r, "retries"), (unsigned long long)json_get_u64(r, "errors"),
                 (unsigned long long)json_get_u64(r, "restarts"));
    add_room(r, out);
    buf_add_c(out, "endpoints  ");
    for (size_t i = 0; i < json_count(endpoints); i++) {
        struct str name = json_get_str(json_at(endpoints, i), "name", "-");
        buf_addf(out, "%s" STR_FMT, i ? ", " : "", STR_ARG(name));
    }
    buf_add_char(out, '\n');
}

/* ---- command -------------------------------------------------------------------------------------------------- */

static int print_status(const struct buf *body, bool as_json)
{
    base_autobuf struct buf out = BUF_INIT(TEXT_MAX);
    struct json *j = NULL;
    struct err err;
    if (json_parse(buf_str(body), &j, &err) < 0)
        return cmd_failf(CMD_FAILED, "the supervisor's answer is not understood: %s", err.text);
    json_val root = json_root(j);
    int code;
    struct json_out *o = as_json ? json_out_new() : NULL;
    if (o) {
        json_out_val(o, NULL, root);
        code = cmd_print_json(o);
    } else if (as_json || add_services(root, os_term_color(STDOUT_FILENO), &out) < 0) {
        code = cmd_nomem();
    } else {
        add_reasons(root, &out);
        add_router(root, &out);
        code = buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
    }
    json_free(j);
    return code;
}

/* What the file says of a fleet that nobody runs. */
static int status_of_file(const struct cmd *c, const struct cmd_args *a, struct buf *body)
{
    int code = CMD_OK;
    struct fleet *f = cmd_fleet(c, a, &code);
    buf_clear(body);
    if (f && up_status_down(f, body) < 0)
        code = cmd_nomem();
    fleet_free(f);
    return code;
}

static int status(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    base_autobuf struct buf body = BUF_INIT(TEXT_MAX);
    unsigned code = 200;
    struct err err;
    int rc = up_call(dirs, name, "GET", "/status", &code, &body, &err);
    if (rc == -ENOENT || rc == -EAGAIN) {
        (void)fprintf(stderr, "%s\n", err.text);
        int of_file = status_of_file(c, a, &body);
        if (of_file != CMD_OK)
            return of_file;
    } else if (rc < 0) {
        return cmd_fail(CMD_FAILED, &err);
    } else if (code != 200) {
        return cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' refused (%u): %s", name, code, body.ptr ? body.ptr : "");
    }
    return print_status(&body, cmd_given(c, a, "json"));
}

static int run_status(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, 0, &a, &code) ? cmd_on_name(c, &a, status) : code;
}

const struct cmd cmd_status = {
    .name = "status",
    .synopsis = "[--json] [-f FILE]",
    .summary = "what runs: services, router, requests",
    .description = "Prints each service with its state (starting, loading, ready, draining, stopping, failed, down, or elsewhere for one that is not started by this machine's supervisor), process, port, model, time since it was ready, restarts that nobody asked for, and resident memory; then the router with its numbers since its worker started (and the restarts of that), and a line 'crowded' when conversations of the last ten minutes are more than the engines hold.\n\n"
                   "--json prints an object: fleet, state (starting, up, stopping, down), pid, uptime_ms, services (name, state, pid, bind, port, model, runtime, confined_by, uptime_ms, start_ms, starts, restarts, memory_bytes, memory_anon_bytes, swap_bytes, log, step, error, pending: restart or removal), reloads, reload_error, router (state, pid, url, restarts, requests, retries, errors, active, leaving, and of the fullest endpoint working_set_tokens, capacity_tokens, conversations, slots, crowded), endpoints (name, aliases, services). What is not known is null.\n\n"
                   "'pending restart' is a service that runs as it was declared before; a fleet file that could not be taken over is named below the services.\n\n"
                   "A fleet that is not up is shown as down; that is no error.",
    .examples = "berth status\nberth status --json | jq -r '.services[] | select(.state != \"ready\") | .name'",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON},
    .run = run_status,
};
