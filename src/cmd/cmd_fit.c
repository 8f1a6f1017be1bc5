/* SPDX-License-Identifier: MIT
 *
 * berth fit: what fits where. Plans the fleet's services, shows what each takes on each device, and answers the questions that follow: which shapes are near, which is best, what the engine itself says.
 */
#include "fit_int.h"
#include "pull_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX (16u << 20)

/* ---- options --------------------------------------------------------------------------------------------------------------- */

static int read_bytes(const struct cmd *c, const struct cmd_args *a, const char *name, bool *ret_set, uint64_t *ret)
{
    const char *text = cmd_value(c, a, name);
    if (!text)
        return CMD_OK;
    /* a size needs its unit; nothing needs none */
    if (strcmp(text, "0") != 0 && (strspn(text, "0123456789") == strlen(text) || units_bytes(str_of(text), ret) < 0))
        return cmd_usage(c, "--%s: '%.60s' is no size: 1GiB, 512MiB", name, text);
    *ret_set = true;
    return CMD_OK;
}

static int read_options(const struct cmd *c, const struct cmd_args *a, struct check_plan_options *o)
{
    o->headers = cmd_value(c, a, "headers");
    o->now = cmd_given(c, a, "now");
    int code = read_bytes(c, a, "floor", &o->floor_set, &o->floor_bytes);
    return code == CMD_OK ? read_bytes(c, a, "slack", &o->slack_set, &o->slack_bytes) : code;
}

/* The service that a question is about: the named one, or the only one that there is. */
static int one_service(const struct fit_session *s, const struct cmd *c, const struct fleet_service *named, const char *option, struct check_need **ret)
{
    struct check_need *n = named ? fit_session_need(s, named->name) : s->plan->n_needs == 1 ? &s->plan->needs[0] : NULL;
    if (!n)
        return cmd_usage(c, "--%s is about one service: name it", option);
    if (n->why)
        return cmd_failf(CMD_FAILED, "service '%s': %s", n->service->name, n->why);
    if (n->pool)
        return cmd_failf(CMD_FAILED, "service '%s': --%s is for llama.cpp; what vLLM takes is declared", n->service->name, option);
    *ret = n;
    return CMD_OK;
}

/* ---- results ----------------------------------------------------------------------------------------------------------------- */

static int write_picture(const struct fit_view *v, const char *path)
{
    base_autobuf struct buf text = BUF_INIT(TEXT_MAX);
    struct err err;
    fit_svg(v, &text);
    if (buf_status(&text) < 0)
        return cmd_failf(CMD_FAILED, "out of memory");
    return cmd_write_file(path, buf_str(&text), true, &err) < 0 ? cmd_fail(CMD_FAILED, &err) : CMD_OK;
}

int fit_print_json(struct json_out *o)
{
    base_autobuf struct buf text = BUF_INIT(CONF_JSON_MAX);
    int failed = json_out_finish(o, true, &text);
    json_out_free(o);
    return failed ? cmd_failf(CMD_FAILED, "out of memory") : cmd_print(buf_str(&text));
}

static int print_json(const struct fit_view *v)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_failf(CMD_FAILED, "out of memory");
    fit_json(v, o);
    return fit_print_json(o);
}

static int print_text(const struct fit_view *v)
{
    base_autobuf struct buf text = BUF_INIT(TEXT_MAX);
    fit_text(v, &text);
    return buf_status(&text) < 0 ? cmd_failf(CMD_FAILED, "out of memory") : cmd_print(buf_str(&text));
}

/* The last word on stderr when something does not fit. */
static int conclude(const struct fit_view *v)
{
    if (fit_view_fits(v))
        return CMD_OK;
    for (size_t i = 0; i < v->plan->n_machines; i++) {
        const struct check_machine *m = &v->plan->machines[i];
        base_autobuf struct buf text = BUF_INIT(4096);
        if (!fit_view_machine(v, m) || m->fits)
            continue;
        fit_verdict(m, &text);
        return cmd_failf(CMD_FAILED, "%s %s", m->host->name, text.ptr ? text.ptr : "does not fit");
    }
    return cmd_failf(CMD_FAILED, "not every service can be planned");
}

static int show_plan(const struct cmd *c, const struct cmd_args *a, const struct fit_view *v)
{
    const char *picture = cmd_value(c, a, "svg");
    int code = cmd_given(c, a, "json") ? print_json(v) : print_text(v);
    if (code == CMD_OK && picture)
        code = write_picture(v, picture);
    return code == CMD_OK ? conclude(v) : code;
}

/* ---- command ------------------------------------------------------------------------------------------------------------------- */

/* What is asked beside the plan; the number of them. */
static unsigned questions(const struct cmd *c, const struct cmd_args *a)
{
    static const char *const names[] = {"table", "solve", "measure", "observe", "explain-log", "known-bad", "not-bad"};
    unsigned n = 0;
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        n += cmd_given(c, a, names[i]);
    return n;
}

static int answer(struct fit_session *s, const struct cmd *c, const struct cmd_args *a, const struct fleet_service *only)
{
    struct fit_question q = {.c = c, .a = a, .json = cmd_given(c, a, "json"), .only = only};
    struct fit_families families;
    const char *asked = cmd_value(c, a, "families");
    if (asked && fit_families_read(asked, &families) < 0)
        return cmd_usage(c, "--families: '%.60s' is not like 3x30000 or 3x30000+1x50000", asked);
    q.view = (struct fit_view){.plan = s->plan, .only = only, .session = s, .families = asked ? &families : NULL, .color = os_term_color(STDOUT_FILENO), .width = os_term_width(STDOUT_FILENO)};
    int code;
    if (cmd_given(c, a, "observe"))
        return fit_observe(s, &q);
    if (cmd_given(c, a, "solve"))
        return fit_solve_show(s, &q);
    if (!questions(c, a))
        return show_plan(c, a, &q.view);
    const char *option = cmd_given(c, a, "table") ? "table" : cmd_given(c, a, "measure") ? "measure" : cmd_given(c, a, "known-bad") ? "known-bad" : cmd_given(c, a, "not-bad") ? "not-bad" : "explain-log";
    code = one_service(s, c, only, option, &q.need);
    if (code != CMD_OK)
        return code;
    if (cmd_given(c, a, "table"))
        return fit_table_show(s, &q);
    if (cmd_given(c, a, "known-bad"))
        return fit_record_bad(s, &q);
    if (cmd_given(c, a, "not-bad"))
        return fit_forget_bad(s, &q);
    if (cmd_given(c, a, "explain-log"))
        return fit_explain(s, &q);
    code = fit_measure(s, &q);
    if (code != CMD_OK)
        return code;
    q.view.plan = s->plan;
    return show_plan(c, a, &q.view);
}

static int fit_fleet(const struct cmd *c, const struct cmd_args *a, const struct fleet *f)
{
    struct fit_session s;
    const struct fleet_service *only = NULL;
    int code = CMD_OK;
    if (a->n_words) {
        code = cmd_service(f, a->words[0]);
        only = fleet_service_find(f, a->words[0]);
    }
    if (code != CMD_OK)
        return code;
    code = fit_session_open(&s, f);
    if (code == CMD_OK)
        code = read_options(c, a, &s.options);
    if (code == CMD_OK && !s.options.headers)
        code = pull_headers(f, s.store, only);
    if (code == CMD_OK)
        code = fit_session_plan(&s);
    if (code == CMD_OK)
        code = answer(&s, c, a, only);
    fit_session_close(&s);
    return code;
}

static int run_fit(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, 1, &a, &code))
        return code;
    if (questions(c, &a) > 1)
        return cmd_usage(c, "one question at a time: --table, --solve, --measure, --observe, --explain-log, --known-bad or --not-bad");
    if (cmd_given(c, &a, "want") && !cmd_given(c, &a, "solve"))
        return cmd_usage(c, "--want goes with --solve");
    enum fit_axis axis;
    struct err err;
    if (cmd_given(c, &a, "table") && fit_axis_of(str_of(cmd_value(c, &a, "table")), &axis, &err) < 0)
        return cmd_usage(c, "--table: %s", err.text);
    if (cmd_given(c, &a, "svg") && questions(c, &a) && !cmd_given(c, &a, "measure"))
        return cmd_usage(c, "--svg draws the plan: leave the question out");
    struct fleet *f = cmd_fleet(c, &a, &code);
    if (!f)
        return code;
    code = fit_fleet(c, &a, f);
    fleet_free(f);
    return code;
}

const struct cmd cmd_fit = {
    .name = "fit",
    .synopsis = "[--table AXIS | --solve | ...] [--json] [-f FILE] [SERVICE]",
    .summary = "what fits where, to the byte, and what would be better",
    .description =
        "Works out what each service of the fleet takes on each device, term by term (weights, KV cache, states, compute, drafter, projector, prompt cache), from the headers of the model files and the engine's own rules. Nothing is loaded "
        "and no device is needed; of models that are not here yet the headers are read from their hub. A figure is marked = (exact by law), * (measured, from the ledger), ~ (estimated) or ? (not predicted: no law is known). Exit 1 when it does not fit: the device, the term that binds and what one step of each knob would buy are named.\n\n"
        "Devices are those that the fleet declares, of whatever host; on this machine undeclared ones are found, with what is free of them at the moment. What the fleet's own engines hold counts as free. Services that share a device are planned together; those on demand that do not fit together take turns, and each must fit beside what stays up.\n\n"
        "--table prints the shapes around the declared one along one axis: split, context, slots, ubatch or kv.\n\n"
        "--solve searches split, context, slots, ubatch, KV types, drafter, experts and projector for the best shapes that keep the floors, for all services of a machine together (or for the named one beside the others), and prints those that no other "
        "beats, the recommended one as a part of a fleet file and as the engine's command line. --want says what counts most.\n\n"
        "--measure asks the installed engine itself, on a copy of the header without weights, for the compute buffers of this build, model and shape, and keeps what it learns in the ledger; it takes seconds. --observe reads the logs and device memory of "
        "the services that run and keeps that. --explain-log compares an engine's log with the plan, term by term, and exits 1 when a term is off. Later plans use what was measured and say so.\n\n"
        "--known-bad records the service's shape as bad for a reason that no arithmetic shows: it is never proposed again, until --not-bad takes that back.",
    .examples = "berth fit\n"
                "berth fit medium --svg fit.svg\n"
                "berth fit medium --table split\n"
                "berth fit --solve --want speed --floor 1GiB\n"
                "berth fit --headers ~/headers -f big.yaml    # models that are elsewhere",
    .options =
        {
            CMD_OPTION_FILE,
            CMD_OPTION_JSON,
            {0, "svg", "FILE", "draw the devices into FILE"},
            {0, "table", "AXIS", "split, context, slots, ubatch or kv around the declared shape"},
            {0, "solve", NULL, "find the best shapes"},
            {0, "want", "WHAT", "context, slots or speed (default context)"},
            {0, "floor", "BYTES", "keep so much of each device free, instead of the fleet's floor"},
            {0, "slack", "BYTES", "largest gap between the devices of a machine"},
            {0, "families", "NxTOKENS", "conversations that replicas are to keep: 3x30000, or 3x30000+1x50000 with one running"},
            {0, "headers", "FOLDER", "take models' headers from FOLDER"},
            {0, "now", NULL, "declared devices of this machine: only what is free now"},
            {0, "measure", NULL, "ask the installed engine for its compute buffers"},
            {0, "observe", NULL, "learn from the services that run"},
            {0, "explain-log", "FILE", "compare an engine's log with the plan"},
            {0, "known-bad", "REASON", "record the shape as one never to propose"},
            {0, "not-bad", NULL, "take that back"},
        },
    .run = run_fit,
};
