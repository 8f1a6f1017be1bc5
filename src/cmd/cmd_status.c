/* SPDX-License-Identifier: MIT
 *
 * berth status: what runs. The supervisor answers JSON, hosts say what their units do; together they are printed as they are or as a table; the same for a fleet that is down.
 */
#include "status_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <up/up.h>

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
    if (str_eq_c(state, "failed") || str_eq_c(state, "unreachable") || str_eq_c(state, "foreign") || str_eq_c(state, "restarting"))
        return OS_RED;
    return str_eq_c(state, "down") || str_eq_c(state, "idle") || str_eq_c(state, "elsewhere") ? OS_DIM : OS_YELLOW;
}

/* ---- table ------------------------------------------------------------------------------------------------- */

/* Whether services are on more than one host: then each row says which. */
static bool many_hosts(json_val services)
{
    for (size_t i = 1; i < json_count(services); i++)
        if (!str_eq(json_get_str(json_at(services, 0), "host", ""), json_get_str(json_at(services, i), "host", "")))
            return true;
    return false;
}

static int add_services(json_val root, bool color, struct buf *out)
{
    static const char *const headings[] = {"HOST", "SERVICE", "STATE", "PID", "PORT", "MODEL", "UPTIME", "RESTARTS", "MEMORY"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT};
    json_val services = json_get(root, "services");
    size_t skip = many_hosts(services) ? 0 : 1;
    struct os_table *t = os_table_new(headings + skip, aligns + skip, BASE_COUNT(headings) - skip);
    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < json_count(services); i++) {
        json_val s = json_at(services, i);
        struct str name = json_get_str(s, "name", "-"), state = json_get_str(s, "state", "-"), model = json_get_str(s, "model", "-");
        struct str host = json_get_str(s, "host", "-");
        if (!skip)
            os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(host));
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

static bool is_unit(json_val service)
{
    struct str unit;
    return json_str(json_get(service, "host"), &unit) && !str_eq_c(json_get_str(service, "unit", ""), "child");
}

/* Units that nobody declares have the names that their hosts say. */
static void add_about(struct buf *out, struct str name, const char *text)
{
    buf_add_printable(out, name, FLEET_NAME_MAX);
    buf_addf(out, ": %s\n", text);
}

/* Why a service is not ready, one line each. */
static void add_reasons(json_val root, struct buf *out)
{
    struct str why;
    json_val services = json_get(root, "services");
    for (size_t i = 0; i < json_count(services); i++) {
        json_val s = json_at(services, i);
        struct str name = json_get_str(s, "name", "-"), state = json_get_str(s, "state", "-"), text;
        bool unit = is_unit(s);
        if (json_str(json_get(s, "pending"), &text) && str_eq_c(text, "restart"))
            add_about(out, name, unit ? "pending restart: its process is older than its unit; 'berth deploy' starts it anew" : "pending restart: the fleet file declares it otherwise by now");
        else if (unit && json_str(json_get(s, "pending"), &text)) {
            add_about(out, name, "not declared: 'berth deploy' takes it away");
            continue;
        }
        if (str_eq_c(state, "ready") || str_eq_c(state, "down") || !json_str(json_get(s, "error"), &text))
            continue;
        base_autobuf struct buf first = BUF_INIT(2048);
        buf_add_printable(&first, str_split(&text, '\n'), 300);
        add_about(out, name, first.ptr ? first.ptr : "");
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

/* Which version is in force where, and who did not answer. */
static void add_hosts(json_val root, struct buf *out)
{
    json_val hosts = json_get(root, "hosts");
    for (size_t i = 0; i < json_count(hosts); i++) {
        json_val h = json_at(hosts, i);
        struct str name = json_get_str(h, "name", "-"), error = json_get_str(h, "error", "");
        uint64_t version = json_get_u64(h, "version");
        buf_addf(out, "%s" STR_FMT " ", i ? "           " : "hosts      ", STR_ARG(name));
        if (!json_get_bool(h, "reached")) {
            buf_add_c(out, "cannot be asked: ");
            buf_add_printable(out, error, 200);
        } else if (version) {
            buf_addf(out, "version %llu%s", (unsigned long long)version, json_get_bool(h, "deploying") ? ", a deploy is at work or was broken off" : "");
        } else {
            buf_add_c(out, "nothing deployed");
        }
        buf_add_char(out, '\n');
    }
}

/* ---- command -------------------------------------------------------------------------------------------------- */

static int print_status(const struct buf *body, bool as_json)
{
    base_autobuf struct buf out = BUF_INIT(STATUS_TEXT_MAX);
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
        add_hosts(root, &out);
        code = buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
    }
    json_free(j);
    return code;
}

/* What the hosts say goes in; CMD_FAILED when one of them could not be asked. Without a usable file, as while a running fleet's is being edited, the supervisor speaks alone. */
static int add_units(const struct fleet *f, const struct os_dirs *dirs, struct buf *body)
{
    base_autobuf struct buf merged = BUF_INIT(STATUS_TEXT_MAX);
    struct status_hosts hosts = {0};
    struct json *j = NULL;
    struct err err;
    int r = status_hosts_ask(f, dirs, &hosts, &err);
    if (r == 0)
        r = json_parse(buf_str(body), &j, &err);
    if (r == 0 && status_hosts_merge(&hosts, f, json_root(j), &merged) < 0)
        r = err_nomem(&err);
    if (r == 0) {
        buf_clear(body);
        buf_add_str(body, buf_str(&merged));
    }
    json_free(j);
    int code = r < 0 ? cmd_fail(CMD_FAILED, &err) : hosts.silent ? CMD_FAILED : CMD_OK;
    status_hosts_release(&hosts);
    return code;
}

static struct fleet *load_quietly(const char *path)
{
    struct fleet_options options = engine_fleet_options();
    struct fleet *f = NULL;
    return fleet_load(path ? path : "fleet.yaml", &options, &f, NULL) == 0 ? f : NULL;
}

/* A supervisor is missed where there is something for it to run. */
static bool has_children(const struct fleet *f)
{
    for (size_t i = 0; f && i < f->n_services; i++)
        if (fleet_service_local(&f->services[i]))
            return true;
    return !f || f->n_services == 0;
}

static int ask_supervisor(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs, const struct fleet *f, struct buf *body)
{
    unsigned status = 200;
    struct err err;
    int code = CMD_OK, rc = up_call(dirs, name, "GET", "/status", &status, body, &err);
    if (rc == -ENOENT || rc == -EAGAIN) {
        struct fleet *again = f ? NULL : cmd_fleet(c, a, &code); /* says what is wrong with it */
        if (code == CMD_OK && has_children(f ? f : again))
            (void)fprintf(stderr, "%s\n", err.text);
        buf_clear(body);
        if (code == CMD_OK && up_status_down(f ? f : again, body) < 0)
            code = cmd_nomem();
        fleet_free(again);
        return code;
    }
    if (rc < 0)
        return cmd_fail(CMD_FAILED, &err);
    return status == 200 ? CMD_OK : cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' refused (%u): %s", name, status, body->ptr ? body->ptr : "");
}

static int status(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    base_autobuf struct buf body = BUF_INIT(STATUS_TEXT_MAX);
    struct fleet *f = load_quietly(cmd_value(c, a, "file"));
    int code = ask_supervisor(c, a, name, dirs, f, &body), silent = CMD_OK;
    if (code == CMD_OK && f)
        silent = add_units(f, dirs, &body);
    if (code == CMD_OK)
        code = print_status(&body, cmd_given(c, a, "json"));
    fleet_free(f);
    return code == CMD_OK ? silent : code;
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
    .description = "Prints each service with its host (where there are several), state (starting, loading, ready, draining, stopping, failed, down, or elsewhere for a child of another machine's supervisor), process, port, model, time since it was ready, restarts that nobody asked for, and resident memory; then the router with its numbers since its worker started (and the restarts of that), and a line 'crowded' when conversations of the last ten minutes are more than the engines hold.\n\n"
                   "Services that are units are asked for on their hosts, all hosts at the same time over the system's ssh: ready (its engine answers), loading, up (it cannot be asked), starting, restarting (it ended and is started again), stopped, failed, absent (not installed), foreign (not ours), unreachable. Below stands which version is in force on each host. A host that cannot be asked is exit code 1.\n\n"
                   "--json prints an object: fleet, state (starting, up, stopping, down), pid, uptime_ms, services (name, state, pid, bind, port, model, runtime, confined_by, uptime_ms, start_ms, starts, restarts, memory_bytes, memory_anon_bytes, swap_bytes, log, step, error, host, unit, pending: restart or removal), hosts (name, reached, version, deploying, took_ms, error), version, upgrades, upgrade_error, reloads, reload_error, router (state, pid, url, restarts, requests, retries, errors, active, leaving, and of the fullest endpoint working_set_tokens, capacity_tokens, conversations, slots, crowded), endpoints (name, aliases, services). What is not known is null.\n\n"
                   "'pending restart' is a service that runs as it was declared before; a fleet file that could not be taken over is named below the services.\n\n"
                   "A fleet that is not up is shown as down; that is no error.",
    .examples = "berth status\nberth status --json | jq -r '.services[] | select(.state != \"ready\") | .name'",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON},
    .run = run_status,
};
