/* SPDX-License-Identifier: MIT
 *
 * berth drill: the failures that replicas have, played against the router as this fleet configures it.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <proxy/proxy.h>
#include <unistd.h>

#define REPEAT_MAX 1000

struct seen {
    struct json_out *json; /* NULL: a table */
    struct os_table *table;
    unsigned passed, failed, skipped;
};

static void tell(void *ctx, const struct proxy_drill_case *c)
{
    struct seen *s = ctx;
    const char *result = !c->runs ? "skipped" : c->failed ? "FAILED" : "passed";
    *(c->failed ? &s->failed : c->runs ? &s->passed : &s->skipped) += 1;
    if (s->json) {
        json_out_obj(s->json, NULL);
        json_out_cstr(s->json, "endpoint", c->endpoint);
        json_out_cstr(s->json, "case", c->name);
        json_out_cstr(s->json, "expects", c->expects);
        json_out_cstr(s->json, "result", !c->runs ? "skipped" : c->failed ? "failed" : "passed");
        json_out_u64(s->json, "runs", c->runs);
        json_out_u64(s->json, "failed", c->failed);
        json_out_f64(s->json, "mean_ms", (double)c->mean_us / 1000);
        json_out_f64(s->json, "max_ms", (double)c->max_us / 1000);
        json_out_cstr(s->json, "why", c->why[0] ? c->why : NULL);
        json_out_end(s->json);
        return;
    }
    os_table_cell(s->table, OS_PLAIN, "%s", c->endpoint);
    os_table_cell(s->table, OS_PLAIN, "%s", c->name);
    os_table_cell(s->table, !c->runs ? OS_DIM : c->failed ? OS_RED : OS_GREEN, "%s", result);
    if (c->runs)
        os_table_cell(s->table, OS_PLAIN, "%.1f ms", (double)c->mean_us / 1000);
    else
        os_table_cell(s->table, OS_DIM, "-");
    if (c->failed)
        os_table_cell(s->table, OS_RED, "%u of %u: %s", c->failed, c->runs, c->why);
    else
        os_table_cell(s->table, OS_DIM, "%s", c->runs ? c->expects : c->why);
}

static int print(struct seen *s)
{
    if (s->json) {
        json_out_end(s->json);
        json_out_u64(s->json, "passed", s->passed);
        json_out_u64(s->json, "failed", s->failed);
        json_out_u64(s->json, "skipped", s->skipped);
        json_out_end(s->json);
        return cmd_print_json(s->json);
    }
    base_autobuf struct buf last = BUF_INIT(256);
    int code = cmd_print_table(s->table);
    buf_addf(&last, "\n%u passed, %u failed", s->passed, s->failed);
    if (s->skipped)
        buf_addf(&last, ", %u skipped", s->skipped);
    buf_add_char(&last, '\n');
    return code != CMD_OK ? code : cmd_print(buf_str(&last));
}

static int drill(const struct fleet *f, unsigned repeat, bool json)
{
    static const char *const headings[] = {"ENDPOINT", "FAILURE", "RESULT", "TIME", "WHAT MUST COME"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT, OS_RIGHT, OS_LEFT};
    struct seen s = {.json = json ? json_out_new() : NULL, .table = json ? NULL : os_table_new(headings, aligns, BASE_COUNT(headings))};
    struct err err;
    if (!s.json && !s.table)
        return cmd_nomem();
    if (s.json) {
        json_out_obj(s.json, NULL);
        json_out_arr(s.json, "cases");
    }
    if (proxy_drill(f, repeat, tell, &s, &err) < 0) {
        json_out_free(s.json);
        os_table_free(s.table);
        return cmd_fail(CMD_FAILED, &err);
    }
    int code = print(&s);
    return code != CMD_OK ? code : s.failed ? CMD_FAILED : CMD_OK;
}

static int run_drill(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    uint64_t repeat = 1;
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    const char *text = cmd_value(c, &a, "repeat");
    if (text && (str_to_u64(str_of(text), &repeat) < 0 || repeat < 1 || repeat > REPEAT_MAX))
        return cmd_usage(c, "'%.40s' is no number of repeats from 1 to %d", text, REPEAT_MAX);
    struct fleet *f = cmd_fleet(c, &a, &code);
    if (!f)
        return code;
    code = drill(f, (unsigned)repeat, cmd_given(c, &a, "json"));
    fleet_free(f);
    return code;
}

const struct cmd cmd_drill = {
    .name = "drill",
    .synopsis = "[--repeat N] [--json] [-f FILE]",
    .summary = "play the failures of replicas against the router",
    .description = "Starts a router with this fleet's endpoints, policies and slots, and replicas that fail on purpose, all on loopback ports of their own: nothing that runs is touched, and no engine is needed. For each endpoint it plays every failure (connections that are refused, reset or end, errors, answers that break off before and after content, silence, dead kept connections, clients that leave in every phase) and says whether the client got what it must get. The router's patience is shortened to milliseconds; TLS is left out, and a key is made where clients need one.\n\n"
                   "Where an endpoint has one replica, an error that the client understands is what must come. A case that does not apply to an endpoint is skipped. Exit code 1 when a case failed.",
    .examples = "berth drill\nberth drill --repeat 20",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "repeat", "N", "play each case N times (default 1)"}},
    .run = run_drill,
};
