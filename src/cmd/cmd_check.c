/* SPDX-License-Identifier: MIT
 *
 * berth check: proves the contracts of the fleet and prints them.
 */
#include "live_int.h"
#include "fit_int.h"

#include <conf/conf.h>

static const struct {
    const char *text;
    enum os_style style;
} verdicts[] = {
    [CHECK_HOLDS] = {"ok", OS_GREEN},
    [CHECK_BROKEN] = {"broken", OS_RED},
    [CHECK_UNPROVEN] = {"unproven", OS_YELLOW},
};

static int print_json(const struct check_result *r, size_t n)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_arr(o, NULL);
    for (size_t i = 0; i < n; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "contract", r[i].contract);
        json_out_cstr(o, "subject", r[i].subject);
        json_out_cstr(o, "verdict", verdicts[r[i].verdict].text);
        json_out_cstr(o, "text", r[i].text);
        json_out_end(o);
    }
    json_out_end(o);
    return cmd_print_json(o);
}

static int print_table(const struct check_result *r, size_t n)
{
    static const char *const headings[] = {"", "CONTRACT", "SUBJECT", "FOUND"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT, OS_LEFT};
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return cmd_nomem();
    for (size_t i = 0; i < n; i++) {
        os_table_cell(t, verdicts[r[i].verdict].style, "%s", verdicts[r[i].verdict].text);
        os_table_cell(t, OS_PLAIN, "%s", r[i].contract);
        os_table_cell(t, OS_BOLD, "%s", r[i].subject);
        os_table_cell(t, OS_PLAIN, "%s", r[i].text);
    }
    return cmd_print_table(t);
}

static int check_and_print(const struct cmd *c, const struct cmd_args *a, struct fit_session *s)
{
    struct arena *arena = arena_new(16 << 20);
    struct check_result *results = NULL;
    size_t n = 0;
    struct err err;
    int code = CMD_OK;
    s->options.headers = cmd_value(c, a, "headers");
    if (!arena)
        code = cmd_nomem();
    else if (check_fleet(s->fleet, s->store, &s->options, arena, &results, &n, &err) < 0)
        code = cmd_fail(CMD_FAILED, &err);
    else if (cmd_given(c, a, "live") && check_live(s->fleet, arena, &results, &n, &err) < 0)
        code = cmd_fail(CMD_FAILED, &err);
    else
        code = cmd_given(c, a, "json") ? print_json(results, n) : print_table(results, n);
    size_t broken = 0;
    for (size_t i = 0; code == CMD_OK && i < n; i++)
        broken += results[i].verdict == CHECK_BROKEN;
    if (broken)
        code = cmd_failf(CMD_FAILED, "%zu of %zu contracts of fleet '%s' are broken", broken, n, s->fleet->name);
    arena_free(arena);
    return code;
}

static int run_check(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    struct fleet *f = cmd_fleet(c, &a, &code);
    if (!f)
        return code;
    struct fit_session s;
    code = fit_session_open(&s, f);
    if (code == CMD_OK)
        code = check_and_print(c, &a, &s);
    fit_session_close(&s);
    fleet_free(f);
    return code;
}

const struct cmd cmd_check = {
    .name = "check",
    .synopsis = "[--live] [--json] [--headers FOLDER] [-f FILE]",
    .summary = "prove every contract of the fleet",
    .description = "Reads the fleet file and proves what it promises: that the file is sound (keys, units, references, names, ports), that every model's files are there, that every runtime is installed, that each shape can be "
                   "expressed as the engine's flags, and that what the services take fits their devices with the floors and slacks that were declared ('berth fit' shows it).\n\n"
                   "With --live each service that runs on this machine is also asked for what it declares ('serves' in the fleet file): a chat, a message of 250 tokens, the same again, a tool call, a picture and so on, some hundred tokens in all.\n\n"
                   "Nothing is started and nothing is changed. A contract that cannot be seen from this machine is reported as unproven. Exit 1 when one is broken, 2 when the file cannot be used.",
    .examples = "berth check\nberth check --live\nberth check -f examples/demo.yaml --json",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "live", NULL, "ask what runs here for what it declares"}, {0, "headers", "FOLDER", "take models' headers from FOLDER, for what must fit"}},
    .run = run_check,
};
