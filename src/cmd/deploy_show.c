/* SPDX-License-Identifier: MIT
 *
 * Plans and outcomes for people.
 */
#include "deploy_host_int.h"

#include <limits.h>
#include <unistd.h>

#define DIFF_LINE_MAX (1u << 16) /* characters of a line that are shown */

static enum os_style style_of(struct str action)
{
    if (str_eq_c(action, "keep"))
        return OS_DIM;
    return str_eq_c(action, "retire") ? OS_RED : str_eq_c(action, "install") ? OS_GREEN : OS_YELLOW;
}

static void add_rows(struct os_table *t, json_val host)
{
    json_val items = json_get(host, "items");
    for (size_t i = 0; i < json_count(items); i++) {
        json_val it = json_at(items, i);
        struct str action = json_get_str(it, "action", ""), service = json_get_str(it, "service", ""), reason = json_get_str(it, "reason", ""), name = json_get_str(host, "host", "");
        os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(name));
        os_table_cell(t, style_of(action), STR_FMT, STR_ARG(action));
        os_table_cell(t, OS_BOLD, STR_FMT, STR_ARG(service));
        os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(reason));
    }
}

/* A file of another host may hold anything. */
static void add_diff(struct buf *out, json_val host)
{
    json_val items = json_get(host, "items");
    for (size_t i = 0; i < json_count(items); i++) {
        json_val it = json_at(items, i);
        struct str path = json_get_str(it, "path", ""), diff = json_get_str(it, "diff", "");
        if (!diff.len)
            continue;
        buf_add_char(out, '\n');
        buf_add_printable(out, path, PATH_MAX);
        buf_add_c(out, ":\n");
        while (diff.len) {
            buf_add_printable(out, str_split(&diff, '\n'), DIFF_LINE_MAX);
            buf_add_char(out, '\n');
        }
    }
}

int deploy_show_plan(const json_val *hosts, size_t n, bool diff)
{
    static const char *const headings[] = {"HOST", "ACTION", "SERVICE", "WHY"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT, OS_LEFT};
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    base_autobuf struct buf differences = BUF_INIT(DEPLOY_TEXT_MAX);
    if (!t)
        return cmd_nomem();
    for (size_t i = 0; i < n; i++) {
        add_rows(t, hosts[i]);
        if (diff)
            add_diff(&differences, hosts[i]);
    }
    int code = cmd_print_table(t);
    return code == CMD_OK && differences.len ? cmd_print(buf_str(&differences)) : code;
}

static void add_counts(struct buf *line, json_val host)
{
    uint64_t again = json_get_u64(host, "proven");
    buf_addf(line, ": version %llu is in force: %llu started and proven, ", (unsigned long long)json_get_u64(host, "version"), (unsigned long long)json_get_u64(host, "started"));
    if (again)
        buf_addf(line, "%llu proven again, ", (unsigned long long)again);
    buf_addf(line, "%llu retired, %llu kept\n", (unsigned long long)json_get_u64(host, "retired"), (unsigned long long)json_get_u64(host, "kept"));
}

int deploy_show_outcome(json_val host)
{
    struct str name = json_get_str(host, "host", ""), error = json_get_str(host, "error", "");
    if (error.len)
        return cmd_failf(CMD_FAILED, STR_FMT ": " STR_FMT, STR_ARG(name), STR_ARG(error));
    base_autobuf struct buf line = BUF_INIT(8192);
    uint64_t todo = json_get_u64(host, "todo");
    buf_add_printable(&line, name, FLEET_NAME_MAX);
    if (todo == 0)
        buf_addf(&line, ": nothing to do, version %llu is in force\n", (unsigned long long)json_get_u64(host, "version"));
    else
        add_counts(&line, host);
    return buf_status(&line) < 0 ? cmd_nomem() : cmd_print(buf_str(&line));
}
