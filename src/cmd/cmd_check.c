/* SPDX-License-Identifier: MIT
 *
 * berth check: proves the contracts of the fleet and prints them: one line for what several subjects have in common, and for each broken one what, where, why and what to do. A page of 80 columns, whatever the terminal has.
 */
#include "live_int.h"
#include "fit_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define CONTRACT_COLUMN 10 /* behind the verdict */
#define SUBJECT_COLUMN 24
#define FOUND_COLUMN 44
#define RESULTS_MAX ((size_t)128 << 20)

static const struct {
    const char *text, *shown;
    enum os_style style;
} verdicts[] = {
    [CHECK_HOLDS] = {"ok", "ok", OS_GREEN},
    [CHECK_BROKEN] = {"broken", "BROKEN", OS_RED},
    [CHECK_UNPROVEN] = {"unproven", "unproven", OS_YELLOW},
    [CHECK_NONE] = {"does-not-apply", "-", OS_DIM},
};

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

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
        json_out_cstr(o, "where", r[i].where);
        json_out_cstr(o, "why", r[i].why);
        json_out_cstr(o, "fix", r[i].fix);
        json_out_end(o);
    }
    json_out_end(o);
    return cmd_print_json(o);
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

static void add_style(struct buf *out, bool color, enum os_style style, const char *text)
{
    buf_addf(out, "%s%s%s", os_style_on(style, color), text, os_style_off(style, color));
}

/* From column `at` to the end of the line, and on below it. */
static void add_wrapped(struct buf *out, size_t at, struct str text)
{
    cmd_add_wrapped(out, text, at, at);
    buf_add_char(out, '\n');
}

/* Fills up to the column; text that is already beyond goes on in a new line. */
static void to_column(struct buf *out, size_t *at, size_t column)
{
    if (*at + 2 > column) {
        buf_addf(out, "\n%*s", (int)column, "");
    } else {
        buf_addf(out, "%*s", (int)(column - *at), "");
    }
    *at = column;
}

static void add_row(struct buf *out, bool color, enum check_verdict v, const char *contract, const char *subject, const char *found)
{
    size_t at = os_text_width(str_of(verdicts[v].shown));
    add_style(out, color, verdicts[v].style, verdicts[v].shown);
    to_column(out, &at, CONTRACT_COLUMN);
    buf_add_printable(out, str_of(contract), 255);
    at += os_text_width(str_of(contract));
    to_column(out, &at, SUBJECT_COLUMN);
    buf_add_printable(out, str_of(subject), 512);
    at += os_text_width(str_of(subject));
    to_column(out, &at, FOUND_COLUMN);
    add_wrapped(out, FOUND_COLUMN, str_of(found));
}

/* The first word of a subject: its kind. */
static struct str kind_of(const struct check_result *r)
{
    struct str s = str_of(r->subject);
    return str_split(&s, ' ');
}

/* Results of one contract and verdict are one row, unless they are broken or all are to be seen: "3 services" of one kind, and what was found when all have the same. */
static void add_group(struct buf *out, bool color, const struct check_result *r, size_t n)
{
    char subject[256];
    bool same_kind = true, same_text = true;
    for (size_t i = 1; i < n; i++) {
        same_kind = same_kind && str_eq(kind_of(&r[0]), kind_of(&r[i]));
        same_text = same_text && strcmp(r[0].text, r[i].text) == 0;
    }
    struct str kind = same_kind ? kind_of(&r[0]) : STR("subject");
    snprintf(subject, sizeof subject, "%zu " STR_FMT "s", n, STR_ARG(kind));
    base_autobuf struct buf found = BUF_INIT(8192);
    buf_add_c(&found, r[0].text);
    if (!same_text)
        buf_addf(&found, "; --all shows %s", n == 2 ? "both" : "each");
    add_row(out, color, r[0].verdict, r[0].contract, subject, buf_status(&found) < 0 ? r[0].text : found.ptr);
}

/* How many results from r on belong into one row. */
static size_t run_of(const struct check_result *r, size_t n, bool all)
{
    size_t k = 1;
    while (!all && r[0].verdict != CHECK_BROKEN && k < n && r[k].verdict == r[0].verdict && strcmp(r[k].contract, r[0].contract) == 0)
        k++;
    return k;
}

static void add_part(struct buf *out, bool color, const char *name, const char *text)
{
    if (!text)
        return;
    buf_add_c(out, "  ");
    add_style(out, color, OS_DIM, name);
    buf_addf(out, "%*s", (int)(9 - strlen(name)), "");
    add_wrapped(out, 11, str_of(text));
}

static void add_broken(struct buf *out, bool color, const struct check_result *r)
{
    base_autobuf struct buf title = BUF_INIT(1024);
    buf_add_printable(&title, str_of(r->contract), 255);
    buf_add_c(&title, ": ");
    buf_add_printable(&title, str_of(r->subject), 512);
    buf_add_char(out, '\n');
    add_style(out, color, OS_BOLD, buf_status(&title) < 0 ? r->contract : title.ptr);
    buf_add_char(out, '\n');
    add_part(out, color, "what", r->text);
    add_part(out, color, "where", r->where);
    add_part(out, color, "why", r->why);
    add_part(out, color, "fix", r->fix);
}

static int print_text(const struct check_result *r, size_t n, bool all)
{
    base_autobuf struct buf out = BUF_INIT(RESULTS_MAX);
    bool color = os_term_color(1);
    size_t at = 0;
    buf_addf(&out, "%-*s%-*s%-*s%s\n", CONTRACT_COLUMN, "", SUBJECT_COLUMN - CONTRACT_COLUMN, "CONTRACT", FOUND_COLUMN - SUBJECT_COLUMN, "SUBJECT", "FOUND");
    while (at < n) {
        size_t k = run_of(&r[at], n - at, all);
        if (r[at].verdict == CHECK_BROKEN)
            add_row(&out, color, CHECK_BROKEN, r[at].contract, r[at].subject, "see below");
        else if (k == 1)
            add_row(&out, color, r[at].verdict, r[at].contract, r[at].subject, r[at].text);
        else
            add_group(&out, color, &r[at], k);
        at += k;
    }
    for (size_t i = 0; i < n; i++)
        if (r[i].verdict == CHECK_BROKEN)
            add_broken(&out, color, &r[i]);
    return buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

/* ---- the list of contracts --------------------------------------------------------------------------------------------- */

static int list_json(const char *const *users, size_t n)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_arr(o, NULL);
    for (size_t i = 0; check_contract(i); i++) {
        const struct check_contract *c = check_contract(i);
        json_out_obj(o, NULL);
        json_out_cstr(o, "contract", c->name);
        json_out_cstr(o, "says", c->says);
        json_out_cstr(o, "how", c->how);
        json_out_cstr(o, "why", c->why);
        json_out_cstr(o, "fix", c->fix);
        json_out_end(o);
    }
    for (size_t i = 0; i < n; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "contract", users[i]);
        json_out_cstr(o, "says", "yours: contracts/ beside the fleet file");
        json_out_end(o);
    }
    json_out_end(o);
    return cmd_print_json(o);
}

static int list_text(const char *const *users, size_t n)
{
    base_autobuf struct buf out = BUF_INIT(1 << 20);
    bool color = os_term_color(1);
    for (size_t i = 0; check_contract(i); i++) {
        const struct check_contract *c = check_contract(i);
        size_t at = strlen(c->name);
        add_style(&out, color, OS_BOLD, c->name);
        to_column(&out, &at, 14);
        add_wrapped(&out, 14, str_of(c->says));
        buf_addf(&out, "%14s", "");
        base_autobuf struct buf how = BUF_INIT(1024);
        buf_addf(&how, "by: %s", c->how);
        add_wrapped(&out, 14, buf_str(&how));
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = os_text_width(str_of(users[i]));
        buf_add_printable(&out, str_of(users[i]), 255);
        to_column(&out, &at, 14);
        add_wrapped(&out, 14, STR("yours: contracts/ beside the fleet file"));
    }
    return buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

static int list_contracts(const struct cmd *c, const struct cmd_args *a, const struct fleet *f)
{
    struct arena *arena = arena_new(RESULTS_MAX);
    const char *const *users = NULL;
    size_t n = 0;
    struct err err;
    if (!arena)
        return cmd_nomem();
    int r = f ? check_user_names(f, arena, &users, &n, &err) : 0;
    int code = cmd_given(c, a, "json") ? list_json(users, n) : list_text(users, n);
    if (r < 0 && code == CMD_OK)
        code = cmd_fail(CMD_FAILED, &err);
    arena_free(arena);
    return code;
}

/* ---- the command --------------------------------------------------------------------------------------------------------- */

/* How many contracts are broken, whatever their subjects; results of one stand together. */
static int judge(const struct check_result *r, size_t n, const char *fleet)
{
    size_t all = 0, broken = 0;
    for (size_t i = 0; i < n;) {
        const char *name = r[i].contract;
        bool bad = false;
        for (; i < n && strcmp(r[i].contract, name) == 0; i++)
            bad = bad || r[i].verdict == CHECK_BROKEN;
        all++;
        broken += bad;
    }
    return broken ? cmd_failf(CMD_FAILED, "%zu of %zu contracts of fleet '%s' %s broken", broken, all, fleet, broken == 1 ? "is" : "are") : CMD_OK;
}

static int check_and_print(const struct cmd *c, const struct cmd_args *a, struct fit_session *s)
{
    struct arena *arena = arena_new(RESULTS_MAX);
    struct check_result *results = NULL;
    struct check_options o = {.plan = s->options, .dirs = &s->dirs, .only = a->words, .n_only = a->n_words};
    size_t n = 0;
    struct err err;
    o.plan.headers = cmd_value(c, a, "headers");
    if (!arena)
        return cmd_nomem();
    int r = check_fleet(s->fleet, s->store, &o, arena, &results, &n, &err), code;
    if (r < 0)
        code = cmd_fail(r == -ENOENT && a->n_words ? CMD_USAGE : CMD_FAILED, &err);
    else if (cmd_given(c, a, "live") && check_live(&s->dirs, s->fleet, arena, &results, &n, &err) < 0)
        code = cmd_fail(CMD_FAILED, &err);
    else
        code = cmd_given(c, a, "json") ? print_json(results, n) : print_text(results, n, cmd_given(c, a, "all"));
    if (code == CMD_OK)
        code = judge(results, n, s->fleet->name);
    arena_free(arena);
    return code;
}

static int run_check(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code))
        return code;
    for (size_t i = 0; i < a.n_words; i++)
        if (str_ends(str_of(a.words[i]), STR(".yaml")) || str_ends(str_of(a.words[i]), STR(".yml")))
            return cmd_usage(c, "takes no word '%.60s'; did you mean '-f %.60s'?", a.words[i], a.words[i]);
    /* the table needs no fleet; with one its own contracts are listed too */
    bool list = cmd_given(c, &a, "list");
    if (list && !cmd_given(c, &a, "file") && access("fleet.yaml", F_OK) < 0)
        return list_contracts(c, &a, NULL);
    struct fleet *f = cmd_fleet(c, &a, &code);
    if (!f)
        return code;
    if (list) {
        code = list_contracts(c, &a, f);
        fleet_free(f);
        return code;
    }
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
    .synopsis = "[CONTRACT...] [--all | --list] [--live] [--json] [-f FILE]",
    .summary = "prove every contract of the fleet",
    .description = "Proves what the fleet file promises, all in one go: files, headers and templates, engine builds, drafters, memory with floors and slacks, prompt caches, ports, addresses, who reaches whom, firewalls, clients' files, units, what is "
                   "deployed, documents. '--list' names the contracts and how each is proven; docs/check.md has them with their reasons. Executables in the folder 'contracts' beside the fleet file are contracts too.\n\n"
                   "With --live each service that runs on this machine is also asked for what it declares ('serves' in the fleet file): a chat, a message of 250 tokens, the same again, a tool call, a picture and so on, some hundred tokens in all; and each endpoint once through the router that is up here, by its name and aliases.\n\n"
                   "Nothing is started and nothing is changed. What was named and is missing is broken; what cannot be seen from this machine is unproven; '-' does not apply, and says why. For a broken one: what, where, why it matters, what to do. "
                   "Exit 1 when one is broken, 2 when the file cannot be used.",
    .examples = "berth check\nberth check limits reach    # only these\nberth check --list\nberth check --live\nberth check -f examples/demo.yaml --json",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {'a', "all", NULL, "a line for each subject"}, {'l', "list", NULL, "name the contracts"},
                {0, "live", NULL, "ask what runs here for what it declares"}, {0, "headers", "FOLDER", "take models' headers from FOLDER, for what must fit"}},
    .run = run_check,
};
