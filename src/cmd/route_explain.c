/* SPDX-License-Identifier: MIT
 *
 * berth route explain: one request as the router remembers it: what it could choose from, whom it chose and why, what really happened, and what another choice would have cost.
 */
#include "cmd_int.h"
#include "route_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <unistd.h>
#include <up/up.h>

#define TEXT_MAX (1u << 20)

static bool known(json_val v, const char *key)
{
    double d;
    return json_f64(json_get(v, key), &d);
}

static const char *show_ms(double ms, char out[UNITS_TEXT])
{
    return units_show_ms(ms > 0 ? (uint64_t)(ms + 0.5) : 0, out);
}

/* ---- parts --------------------------------------------------------------------------------------------------- */

static void add_head(json_val v, struct buf *out)
{
    char age[UNITS_TEXT], took[UNITS_TEXT];
    struct str method = json_get_str(v, "method", ""), path = json_get_str(v, "path", ""), endpoint;
    struct str phase = json_get_str(v, "phase", ""), outcome = json_get_str(v, "outcome", ""), conversation, key;
    buf_addf(out, "request       %llu, " STR_FMT " ", (unsigned long long)json_get_u64(v, "id"), STR_ARG(method));
    buf_add_printable(out, path, 64);
    if (json_str(json_get(v, "endpoint"), &endpoint)) {
        buf_add_c(out, " for ");
        buf_add_printable(out, endpoint, 255); /* what was asked for may be none of ours */
    }
    if (json_str(json_get(v, "key"), &key))
        buf_addf(out, ", key " STR_FMT, STR_ARG(key));
    buf_add_char(out, '\n');
    units_show_ms(json_get_u64(v, "age_ms"), age);
    units_show_ms(json_get_u64(v, "ms"), took);
    if (outcome.len)
        buf_addf(out, "ended         " STR_FMT ", status %llu, after %s (began %s ago)\n", STR_ARG(outcome), (unsigned long long)json_get_u64(v, "status"), took, age);
    else
        buf_addf(out, "under way     " STR_FMT " for %s, began %s ago\n", STR_ARG(phase), units_show_ms(json_get_u64(v, "phase_ms"), took), age);
    if (json_get_u64(v, "position"))
        buf_addf(out, "queue         position %llu\n", (unsigned long long)json_get_u64(v, "position"));
    if (json_str(json_get(v, "conversation"), &conversation))
        buf_addf(out, "conversation  " STR_FMT "\n", STR_ARG(conversation));
}

static const char *why(struct str decision, size_t candidates)
{
    static const struct {
        const char *name, *text;
    } table[] = {
        {"affine", "it holds the conversation, and reads the rest soonest"},
        {"overflow", "another holds the conversation, but is too busy to wait for"},
        {"cold", "nobody holds the conversation; new ones take turns"},
        {"turn", "its turn"},
        {"least", "the fewest requests for each slot"},
        {"hash", "the place that follows from the conversation"},
        {"retry", "the ones before failed"},
        {"joined", "the same turn was under way; both get its answer"},
    };
    if (candidates == 1 && str_eq_c(decision, "cold"))
        return "no other could have had it";
    for (size_t i = 0; i < BASE_COUNT(table); i++)
        if (str_eq_c(decision, table[i].name))
            return table[i].text;
    return "";
}

static int add_candidates(json_val v, bool color, struct buf *out)
{
    static const char *const headings[] = {"CANDIDATE", "CACHED", "WAIT", "READS/S", "PROMPT READ AFTER", ""};
    static const enum os_align aligns[] = {OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    json_val list = json_get(v, "candidates");
    char wait[UNITS_TEXT], total[UNITS_TEXT];
    if (!json_count(list))
        return 0;
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < json_count(list); i++) {
        json_val c = json_at(list, i);
        struct str name;
        bool chosen = false;
        name = json_get_str(c, "replica", "-");
        base_ignore(json_bool(json_get(c, "chosen"), &chosen));
        os_table_cell(t, chosen ? OS_BOLD : OS_PLAIN, STR_FMT, STR_ARG(name));
        os_table_cell(t, OS_PLAIN, "%llu", (unsigned long long)json_get_u64(c, "expected_cached_tokens"));
        os_table_cell(t, OS_PLAIN, "%s", show_ms(json_get_f64(c, "wait_ms"), wait));
        os_table_cell(t, OS_PLAIN, "%.0f", json_get_f64(c, "prefill_tokens_per_s"));
        os_table_cell(t, OS_PLAIN, "%s", show_ms(json_get_f64(c, "expected_ms"), total));
        os_table_cell(t, OS_GREEN, "%s", chosen ? "chosen" : "");
    }
    buf_add_char(out, '\n');
    int rc = os_table_text(t, color, out);
    os_table_free(t);
    return rc;
}

static void add_choice(json_val v, struct buf *out)
{
    json_val failed = json_get(v, "failed");
    struct str replica, decision;
    replica = json_get_str(v, "replica", "-");
    if (!json_str(json_get(v, "decision"), &decision)) {
        buf_add_c(out, json_get_str(v, "outcome", "").len ? "\nno replica had it: the router itself answered\n" : "\nno replica has had it yet\n");
        return;
    }
    buf_addf(out, "\nchosen    " STR_FMT " (" STR_FMT "): %s\n", STR_ARG(replica), STR_ARG(decision), why(decision, json_count(json_get(v, "candidates"))));
    for (size_t i = 0; i < json_count(failed); i++) {
        struct str name, reason;
        name = json_get_str(json_at(failed, i), "replica", "-");
        reason = json_get_str(json_at(failed, i), "reason", "-");
        buf_addf(out, "failed    " STR_FMT ": ", STR_ARG(name));
        buf_add_printable(out, reason, 400); /* an engine's words */
        buf_add_char(out, '\n');
    }
}

static void add_truth(json_val v, struct buf *out)
{
    char queue[UNITS_TEXT], first[UNITS_TEXT], read[UNITS_TEXT], regret[UNITS_TEXT];
    if (known(v, "queue_ms"))
        buf_addf(out, "waited    %s in the queue", units_show_ms(json_get_u64(v, "queue_ms"), queue));
    if (known(v, "first_ms"))
        buf_addf(out, ", first content after %s", units_show_ms(json_get_u64(v, "first_ms"), first));
    if (known(v, "queue_ms"))
        buf_add_char(out, '\n');
    if (known(v, "cached_tokens")) {
        char of[3][UNITS_TEXT];
        uint64_t cached = json_get_u64(v, "cached_tokens");
        buf_addf(out, "cache     %s of %s prompt tokens, %s expected\n", units_show_count(cached, of[0]), units_show_count(json_get_u64(v, "prompt_tokens"), of[1]),
                 units_show_count(json_get_u64(v, "expected_cached_tokens"), of[2]));
    }
    if (known(v, "prompt_ms"))
        buf_addf(out, "prompt    the rest was read in %s\n", show_ms(json_get_f64(v, "prompt_ms"), read));
    if (json_get_u64(v, "tokens"))
        buf_addf(out, "answer    %llu tokens, %.1f/s\n", (unsigned long long)json_get_u64(v, "tokens"), json_get_f64(v, "tokens_per_s"));
    if (!known(v, "regret_ms"))
        return;
    if (json_get_f64(v, "regret_ms") > 0)
        buf_addf(out, "regret    %s: another candidate would have had the prompt read sooner\n", show_ms(json_get_f64(v, "regret_ms"), regret));
    else
        buf_add_c(out, "regret    none: no other candidate would have been sooner\n");
}

int route_explain_text(json_val v, bool color, struct buf *out)
{
    add_head(v, out);
    if (add_candidates(v, color, out) < 0)
        return -ENOMEM;
    add_choice(v, out);
    add_truth(v, out);
    return buf_status(out);
}

static int print_explained(json_val v)
{
    base_autobuf struct buf out = BUF_INIT(TEXT_MAX);
    return route_explain_text(v, os_term_color(STDOUT_FILENO), &out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

/* ---- command -------------------------------------------------------------------------------------------------- */

int route_explain(const struct cmd *c, const struct cmd_args *a, const char *fleet, const struct os_dirs *dirs)
{
    base_autobuf struct buf body = BUF_INIT(TEXT_MAX), target = BUF_INIT(64);
    unsigned status = 0;
    uint64_t id;
    struct json *j;
    struct err err;
    if (str_to_u64(str_of(a->words[1]), &id) < 0)
        return cmd_usage(c, "'%.40s' is no request's number; answers carry it as X-Berth-Request-Id", a->words[1]);
    buf_addf(&target, "/requests/%llu", (unsigned long long)id);
    if (up_call(dirs, fleet, "GET", target.ptr, &status, &body, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (status == 404)
        return cmd_failf(CMD_FAILED, "the router remembers no request %llu; 'berth logs router' may have its line", (unsigned long long)id);
    if (status != 200)
        return cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' refused (%u): %s", fleet, status, body.ptr ? body.ptr : "");
    if (json_parse(buf_str(&body), &j, &err) < 0)
        return cmd_failf(CMD_FAILED, "the supervisor's answer is not understood: %s", err.text);
    struct json_out *o = cmd_given(c, a, "json") ? json_out_new() : NULL;
    int code;
    if (o) {
        json_out_val(o, NULL, json_root(j));
        code = cmd_print_json(o);
    } else {
        code = print_explained(json_root(j));
    }
    json_free(j);
    return code;
}
