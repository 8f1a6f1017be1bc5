/* SPDX-License-Identifier: MIT
 *
 * berth plan, deploy, rollback: over the hosts of a fleet, one after the other; the first that fails is the last. history: what was done on this machine.
 */
#include "deploy_host_int.h"

#include <errno.h>
#include <hub/hub.h>
#include <ledger/ledger.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLAN_TODO 10 /* exit code of plan --exit-code: apart from those of every command */

struct tour {
    const struct cmd *c;
    const struct cmd_args *a;
    const struct fleet *fleet;
    const struct os_dirs *dirs;
    const char *verb; /* plan, deploy, rollback */
    const char *version;        /* plan --since: a kept version's number, or NULL */
    struct deploy_since since;  /* plan --since: a revision's fleet, or empty */
    char who[256];
    struct os_progress *progress;
    struct event_sink sink;
    struct json *texts[FLEET_SERVICES_MAX];
    json_val hosts[FLEET_SERVICES_MAX];
    size_t n;
};

static void show(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    struct os_progress *p = ctx;
    enum os_style style = level == EVENT_ERROR ? OS_RED : level == EVENT_WARN ? OS_YELLOW : OS_PLAIN;
    if (total)
        os_progress_set(p, subject, text, done, total, OS_PLAIN);
    else if (level >= EVENT_INFO)
        os_progress_say(p, style, "%s: %s", subject, text);
}

static void find_who(char out[256])
{
    char host[128] = "";
    const char *sudo = getenv("SUDO_USER");
    const struct passwd *pw = sudo ? NULL : getpwuid(getuid());
    (void)gethostname(host, sizeof host - 1);
    snprintf(out, 256, "%.100s@%.120s", sudo ? sudo : pw ? pw->pw_name : "?", host);
    for (char *p = out; *p; p++)
        if (*p == '\'' || (unsigned char)*p < 0x20)
            *p = '?';
}

int deploy_rollback_path(const struct deploy_request *q, const struct os_dirs *dirs, struct buf *ret, struct err *err)
{
    struct fleet_options options = engine_fleet_options();
    struct fleet *f = NULL;
    options.here = q->host;
    int r = fleet_load(q->fleet_path, &options, &f, err);
    if (r == 0)
        r = deploy_version_path(dirs, f->name, 1, ret, err);
    fleet_free(f);
    return r;
}

/* ---- the router ------------------------------------------------------------------------------------------------- */

static const struct fleet_host *router_host(const struct fleet *f)
{
    return f->router.host && f->router.host->ssh ? f->router.host : NULL;
}

/* On another machine berth's copy there does it; its answer is a line. */
static int tell_there(struct tour *t, const struct fleet_host *h, enum deploy_word what, const char *service, struct err *err)
{
    const char *const words[] = {"_router", deploy_word_text(what), service, NULL};
    const struct deploy_errand e = {.words = words};
    base_autobuf struct buf out = BUF_INIT(65536);
    uint64_t code = 0;
    int status = 0, r = deploy_remote(t->fleet, h, t->dirs, &e, NULL, &out, &status, err);
    struct str text = buf_str(&out), first = str_split(&text, ' ');
    if (r == 0 && (str_to_u64(first, &code) < 0 || code > 4095))
        r = err_set(err, -EIO, "berth on host '%s' said why above", h->name);
    return r < 0 || code == 0 ? r : err_set(err, -(int)code, STR_FMT, STR_ARG(str_trim(text)));
}

static int tell_router(void *ctx, enum deploy_word what, const char *service, struct err *err)
{
    struct tour *t = ctx;
    const struct deploy_router_here here = {t->dirs, t->fleet, &t->sink};
    const struct fleet_host *h = router_host(t->fleet);
    return h ? tell_there(t, h, what, service, err) : deploy_router_here((void *)(uintptr_t)&here, what, service, err);
}

/* ---- one host --------------------------------------------------------------------------------------------------- */

static bool proves_collectives(const struct tour *t)
{
    return strcmp(t->verb, "deploy") == 0 && cmd_given(t->c, t->a, "prove-collectives");
}

static int on_this_machine(struct tour *t, const struct fleet_host *h, struct buf *out, struct err *err)
{
    const struct deploy_router router = {tell_router, t};
    struct deploy_request q = {.fleet_path = t->fleet->file, .host = h->name, .who = t->who, .since = t->version ? t->version : t->since.fleet ? t->since.fleet->file : NULL, .only_plan = strcmp(t->verb, "plan") == 0, .prove_collectives = proves_collectives(t), .router = &router};
    base_autobuf struct buf back = BUF_INIT(8192);
    int r = 0;
    if (strcmp(t->verb, "rollback") == 0) {
        r = deploy_rollback_path(&q, t->dirs, &back, err);
        q.fleet_path = back.ptr;
    }
    return r < 0 ? r : deploy_here(&q, t->dirs, &t->sink, out) < 0 ? err_nomem(err) : 0;
}

/* Whether the host may have to fetch from a hub: then it is told what this account's hub and token are. */
static bool may_fetch(const struct tour *t, const struct fleet_host *h)
{
    for (size_t i = 0; i < t->fleet->n_services && strcmp(t->verb, "plan") != 0; i++) {
        const struct fleet_service *s = &t->fleet->services[i];
        if (s->host == h && s->unit != FLEET_CHILD && s->model && s->model->source == FLEET_MODEL_HF)
            return true;
    }
    return false;
}

static int on_another(struct tour *t, const struct fleet_host *h, struct buf *out, struct err *err)
{
    base_autobuf struct buf secrets = BUF_INIT(DEPLOY_SECRETS_MAX);
    int status = 0, r = may_fetch(t, h) ? hub_export(&secrets, err) : 0;
    const char *words[16] = {"_apply", t->verb, "--host", h->name, "--who", t->who, "--router", router_host(t->fleet) == h ? "here" : "relay"};
    const struct deploy_router router = {tell_router, t};
    size_t n = 8;
    if (t->version) {
        words[n++] = "--since";
        words[n++] = t->version;
    }
    if (proves_collectives(t))
        words[n++] = "--prove-collectives";
    if (secrets.len) {
        words[n++] = "--secrets";
        buf_add_char(&secrets, '\n'); /* an empty line ends them */
    }
    /* so that the copy takes it along; where it is missing, a host that has to fetch says so */
    base_ignore(hub_load(NULL));
    const struct deploy_errand e = {.words = words, .since = t->since.fleet, .secrets = buf_str(&secrets), .router = &router};
    if (r == 0 && (r = buf_status(&secrets)) < 0)
        r = err_nomem(err);
    if (r == 0)
        r = deploy_remote(t->fleet, h, t->dirs, &e, &t->sink, out, &status, err);
    if (secrets.ptr)
        explicit_bzero(secrets.ptr, secrets.len);
    if (r == 0 && out->len == 0)
        r = err_set(err, -EIO, WIFEXITED(status) && WEXITSTATUS(status) == 255 ? "the connection broke; what was begun there goes on: 'berth plan %s' tells how far it is" : "berth there said why above", h->name);
    return r;
}

/* Ctrl-C here ends the errand and what it has made on this machine; what another one has begun by then it brings to its end. */
static int on_another_tidily(struct tour *t, const struct fleet_host *h, struct buf *out, struct err *err)
{
    os_interrupt_begin();
    int r = on_another(t, h, out, err);
    if (r < 0 && os_interrupted()) {
        base_ignore(err_prefix(err, "host '%s'", h->name));
        base_ignore(cmd_fail(CMD_FAILED, err)); /* the signal is the exit code */
    }
    os_interrupt_end();
    return r;
}

static int visit(struct tour *t, const struct fleet_host *h)
{
    base_autobuf struct buf out = BUF_INIT(DEPLOY_TEXT_MAX);
    struct err err;
    int r = h->ssh ? on_another_tidily(t, h, &out, &err) : on_this_machine(t, h, &out, &err);
    if (r == 0 && (r = json_parse(buf_str(&out), &t->texts[t->n], &err)) < 0)
        base_ignore(err_prefix(&err, "what berth there printed is not understood"));
    if (r < 0) {
        err_prefix(&err, "host '%s'", h->name);
        return cmd_fail(CMD_FAILED, &err);
    }
    t->hosts[t->n] = json_root(t->texts[t->n]);
    struct str error;
    return json_str(json_get(t->hosts[t->n++], "error"), &error) ? CMD_FAILED : CMD_OK;
}

/* Another host may have units that are no longer declared; this machine has when a version of the fleet is in force here. */
static bool may_have_units(const struct fleet *f, const struct fleet_host *h, const struct os_dirs *dirs)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    if (h->ssh || deploy_version_path(dirs, f->name, 0, &path, NULL) == 0)
        return true;
    for (size_t i = 0; i < f->n_services; i++)
        if (f->services[i].host == h && f->services[i].unit != FLEET_CHILD)
            return true;
    return f->router.unit == FLEET_SYSTEMD && f->router.host == h;
}

/* ---- all of them -------------------------------------------------------------------------------------------------- */

static int finish_json(const struct tour *t)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_arr(o, NULL);
    for (size_t i = 0; i < t->n; i++)
        json_out_val(o, NULL, t->hosts[i]);
    json_out_end(o);
    return cmd_print_json(o);
}

static int finish(struct tour *t, int code)
{
    uint64_t todo = 0, n;
    int shown = CMD_OK;
    for (size_t i = 0; i < t->n; i++)
        todo += json_u64(json_get(t->hosts[i], "todo"), &n) ? n : 0;
    if (cmd_given(t->c, t->a, "json"))
        shown = finish_json(t);
    else if (strcmp(t->verb, "plan") == 0 && t->n)
        shown = deploy_show_plan(t->hosts, t->n, cmd_given(t->c, t->a, "diff"));
    for (size_t i = 0; i < t->n && !cmd_given(t->c, t->a, "json"); i++) {
        struct str error;
        if (strcmp(t->verb, "plan") != 0 || json_str(json_get(t->hosts[i], "error"), &error))
            base_ignore(deploy_show_outcome(t->hosts[i])); /* a failure is in code already */
    }
    if (code == CMD_OK && shown == CMD_OK && strcmp(t->verb, "plan") == 0 && todo && cmd_given(t->c, t->a, "exit-code"))
        return PLAN_TODO;
    return code == CMD_OK ? shown : code;
}

/* A word that is no host: a service's name, which is what people take these commands for, or nothing that the fleet has. */
static int refuse_word(const struct tour *t, const char *word)
{
    const struct fleet_service *s = fleet_service_find(t->fleet, word);
    const char *names[FLEET_SERVICES_MAX], *near;
    base_autobuf struct buf shown = BUF_INIT(512);
    size_t n = 0;
    if (s)
        return cmd_failf(CMD_USAGE, "'%s' is a service, and whole hosts are meant here: 'berth %s %s' is for the one that it is on", word, t->verb, s->host->name);
    for (size_t i = 0; i < t->fleet->n_hosts && n < BASE_COUNT(names); i++)
        names[n++] = t->fleet->hosts[i].name;
    near = str_nearest(str_of(word), names, n);
    buf_add_printable(&shown, str_of(word), 60);
    return cmd_failf(CMD_USAGE, "fleet '%s' has no host '%s', nor a service of that name; %s%s%s", t->fleet->name, buf_status(&shown) < 0 || !shown.len ? "" : shown.ptr, near ? "did you mean '" : "'hosts' of the fleet file lists them", near ? near : "", near ? "'?" : "");
}

static bool is_named_before(const struct tour *t, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(t->a->words[k], t->a->words[i]) == 0)
            return true;
    return false;
}

static int go(struct tour *t)
{
    int code = CMD_OK;
    for (size_t i = 0; i < t->a->n_words; i++)
        if (!fleet_host_find(t->fleet, t->a->words[i]))
            return refuse_word(t, t->a->words[i]);
    bool any = false;
    /* named ones in the order of their names on the line: the first is the canary */
    for (size_t i = 0; i < t->a->n_words && code == CMD_OK; i++, any = true)
        code = is_named_before(t, i) ? CMD_OK : visit(t, fleet_host_find(t->fleet, t->a->words[i]));
    for (size_t i = 0; t->a->n_words == 0 && i < t->fleet->n_hosts && code == CMD_OK; i++)
        if (may_have_units(t->fleet, &t->fleet->hosts[i], t->dirs)) {
            any = true;
            code = visit(t, &t->fleet->hosts[i]);
        }
    if (!any)
        return cmd_failf(CMD_USAGE, "no service of fleet '%s' is a unit: give one 'unit: systemd' or 'unit: quadlet'", t->fleet->name);
    return finish(t, code);
}

/* Digits are a version that the hosts keep; else it is a revision of the repository that the fleet file is in. */
static int find_since(struct tour *t)
{
    const char *since = strcmp(t->verb, "plan") == 0 ? cmd_value(t->c, t->a, "since") : NULL;
    uint64_t n;
    struct err err;
    if (since && str_to_u64(str_of(since), &n) == 0)
        t->version = since;
    else if (since && deploy_since_get(t->fleet, since, &t->since, &err) < 0)
        return cmd_fail(CMD_USAGE, &err);
    return CMD_OK;
}

static int tour_fleet(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs)
{
    struct tour *t = calloc(1, sizeof *t);
    if (!t)
        return cmd_nomem();
    *t = (struct tour){.c = c, .a = a, .fleet = f, .dirs = dirs, .verb = c->name};
    find_who(t->who);
    t->progress = os_progress_new(STDERR_FILENO, &clk_system);
    t->sink = (struct event_sink){.emit = show, .ctx = t->progress};
    int code = t->progress ? find_since(t) : cmd_nomem();
    if (code == CMD_OK)
        code = go(t);
    deploy_since_clear(&t->since);
    os_progress_free(t->progress);
    for (size_t i = 0; i < t->n; i++)
        json_free(t->texts[i]);
    free(t);
    return code;
}

static int run_tour(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code) ? cmd_on_fleet(c, &a, tour_fleet) : code;
}

const struct cmd cmd_plan = {
    .name = "plan",
    .synopsis = "[HOST...] [--since REV] [--diff] [--json] [-f FILE]",
    .summary = "what a deploy would install, restart and retire",
    .description = "Compares the units that the fleet file wants on each host with what is installed and runs there, file by file, and changes nothing. A service is only touched for a reason: its unit's text differs (--diff shows the lines), it "
                   "does not run, or its process is older than its file. Without HOST all hosts. With --exit-code the exit code is 10 when there is something to do.\n\n"
                   "With --since it compares what the file declares with what was declared before, whatever is installed: at a revision of the git repository that the file is in ('main', 'HEAD~2'), or in the version of that number which the hosts keep.",
    .examples = "berth plan\nberth plan big --diff\nberth plan --since main    # what a branch changes\nberth plan --exit-code && echo nothing to do",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "since", "REV", "compare with what was declared at a revision"}, {0, "diff", NULL, "show the lines that differ"}, {0, "exit-code", NULL, "exit with 10 when there is something to do"}},
    .run = run_tour,
};

const struct cmd cmd_deploy = {
    .name = "deploy",
    .synopsis = "[HOST...] [--prove-collectives] [--json] [-f FILE]",
    .summary = "bring hosts to what the fleet file says, and prove it",
    .description = "Goes over the hosts in their order (or as named), each one through the system's ssh, with berth copied along: nothing needs to be installed there. On a host, gates come first, with nothing touched: payloads and runtime are "
                   "what was pinned, the units are what its systemd accepts, the ports are free or ours, and it all fits in what is free now. Then one service after the other is stopped, its port waited for, its unit written, started, and "
                   "proven: health, the model that it serves, what the engine took, one token, that the process which answers is the unit's own, and that it does what 'serves' declares. The fleet's router lets go of it before, takes it back after, and is asked as clients ask.\n\n"
                   "When something fails, everything that was changed on that host is put back and proven to run again, and no further host is touched; the exit code is 1. A deploy that was killed is finished by the next one. What is "
                   "retired goes to a trash folder with the commands that bring it back.\n\n"
                   "Services whose cards work together (tensor or pipeline parallelism) are refused until a collective was proven on exactly that hardware ('berth doctor'). --prove-collectives lets them start all the same: when the service's own "
                   "proof holds, it is recorded as that one.",
    .examples = "berth deploy\nberth deploy canary big",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "prove-collectives", NULL, "start services whose cards never worked together"}},
    .run = run_tour,
};

const struct cmd cmd_rollback = {
    .name = "rollback",
    .synopsis = "[HOST...] [--json] [-f FILE]",
    .summary = "deploy the version before the one in force",
    .description = "Each host keeps the fleet files that were in force there. A rollback deploys the one before, with the same gates and proofs; a second one goes one further back.",
    .examples = "berth rollback big",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON},
    .run = run_tour,
};

/* ---- history -------------------------------------------------------------------------------------------------------- */

struct events {
    struct os_table *t;
    size_t n;
};

static int add_event(void *ctx, const struct ledger_event *e, struct err *err)
{
    struct events *v = ctx;
    char when[CLK_RFC3339];
    struct str detail = str_of(e->detail), how = str_split(&detail, '\n'); /* an engine's last words come after it */
    (void)err;
    os_table_cell(v->t, OS_PLAIN, "%s", clk_rfc3339(e->at_us, when));
    os_table_cell(v->t, strcmp(e->what, "failed") == 0 ? OS_RED : OS_GREEN, "%s", e->what);
    os_table_cell(v->t, OS_PLAIN, STR_FMT, STR_ARG(how));
    v->n++;
    return 0;
}

static int history(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs)
{
    static const char *const headings[] = {"WHEN", "WHAT", "HOW IT ENDED"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT};
    base_autobuf struct buf path = BUF_INIT(8192), subject = BUF_INIT(256);
    struct ledger *l = NULL;
    struct err err;
    (void)c;
    (void)a;
    buf_addf(&path, "%s/ledger.db", dirs->state);
    buf_addf(&subject, "fleet %s", f->name);
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t || buf_status(&path) < 0 || buf_status(&subject) < 0) {
        os_table_free(t);
        return cmd_nomem();
    }
    struct events events = {.t = t};
    int code = CMD_OK;
    /* a machine that nothing was done on yet has no ledger, and looking makes none */
    if (access(path.ptr, F_OK) == 0 && (ledger_open(path.ptr, &l, &err) < 0 || ledger_history(l, subject.ptr, 50, add_event, &events, &err) < 0))
        code = cmd_fail(CMD_FAILED, &err);
    ledger_free(l);
    if (code == CMD_OK && events.n)
        return cmd_print_table(t);
    os_table_free(t);
    return code == CMD_OK ? cmd_print(STR("nothing of this fleet was deployed here\n")) : code;
}

static int run_history(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, 0, &a, &code) ? cmd_on_fleet(c, &a, history) : code;
}

const struct cmd cmd_history = {
    .name = "history",
    .synopsis = "[-f FILE]",
    .summary = "what was deployed on this machine, and how it ended",
    .description = "The last 50 deploys and rollbacks of the fleet on this machine, newest first: when, by whom, and how each ended.",
    .options = {CMD_OPTION_FILE},
    .run = run_history,
};
