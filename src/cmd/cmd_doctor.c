/* SPDX-License-Identifier: MIT
 *
 * berth doctor: what is right and wrong with a machine, here or of another host; its cards into the fleet file; and the proof that its cards can work together.
 */
#include "doctor_text_int.h"

#include <deploy/deploy.h>
#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_MAX_BYTES ((size_t)1 << 20)
#define PROVE_MS (UINT64_C(10) * 60 * 1000)
#define PROVE_OUTPUT_MAX ((size_t)4 << 20)

extern char **environ;

struct visit {
    const struct cmd *c;
    const struct cmd_args *a;
    struct fleet_options options;
    struct fleet *fleet;            /* NULL: there is no file, and none was named */
    const struct fleet_host *host;  /* that this machine is; NULL */
    const char *path;
    struct os_dirs dirs;
    struct store *store;
    struct ledger *ledger;          /* NULL: there is none yet */
};

/* ---- what there is beside the machine ----------------------------------------------------------------------------------- */

/* A doctor is of use without a fleet file, but not with one that is wrong. */
static int open_fleet(struct visit *v)
{
    const char *named = cmd_value(v->c, v->a, "file");
    struct err err;
    v->path = named ? named : "fleet.yaml";
    v->options = engine_fleet_options();
    v->options.here = cmd_value(v->c, v->a, "here");
    bool wanted = named || v->options.here || cmd_given(v->c, v->a, "write") || cmd_given(v->c, v->a, "host");
    int r = fleet_load(v->path, &v->options, &v->fleet, &err);
    if (r < 0 && (r != -ENOENT || wanted))
        return cmd_fail(CMD_USAGE, &err);
    v->host = v->fleet ? fleet_host_here(v->fleet) : NULL;
    return CMD_OK;
}

static int open_ledger(struct visit *v, bool make, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    buf_addf(&path, "%s/ledger.db", v->dirs.state);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    if (!make && access(path.ptr, F_OK) < 0)
        return 0;
    int r = make ? os_make_dirs(v->dirs.state, 0755, err) : 0;
    return r == 0 ? ledger_open(path.ptr, &v->ledger, err) : r;
}

static int look(struct visit *v, struct doctor_report **ret, struct err *err)
{
    const struct doctor_options o = {.root = getenv("BERTH_HW_ROOT"), .fleet = v->host ? v->fleet : NULL, .host = v->host, .store = v->store, .ledger = v->ledger};
    return doctor_look(&o, ret, err);
}

/* ---- showing ---------------------------------------------------------------------------------------------------------------- */

/* The report's JSON, as it is or for people; the exit code says whether something is bad. */
static int show(const struct visit *v, struct str text)
{
    struct json *j = NULL;
    struct err err;
    if (json_parse(text, &j, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    base_autobuf struct buf out = BUF_INIT(DOCTOR_TEXT_MAX);
    int code;
    struct json_out *o = cmd_given(v->c, v->a, "json") ? json_out_new() : NULL;
    if (o) {
        json_out_val(o, NULL, json_root(j)); /* as ours: it may be another host's */
        code = cmd_print_json(o);
    } else if (cmd_given(v->c, v->a, "json")) {
        code = cmd_nomem();
    } else {
        doctor_show(json_root(j), cmd_given(v->c, v->a, "verbose"), os_term_color(STDOUT_FILENO), &out);
        code = buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
    }
    if (code == CMD_OK && str_eq_c(json_get_str(json_root(j), "worst", ""), "bad"))
        code = CMD_FAILED;
    json_free(j);
    return code;
}

static int look_here(struct visit *v)
{
    struct doctor_report *r = NULL;
    base_autobuf struct buf text = BUF_INIT(DOCTOR_TEXT_MAX);
    struct err err;
    if (look(v, &r, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    int rc = doctor_json(r, v->host ? v->host->name : NULL, &text);
    doctor_free(r);
    return rc < 0 ? cmd_nomem() : show(v, buf_str(&text));
}

static int look_there(struct visit *v, const char *name)
{
    const struct fleet_host *h = fleet_host_find(v->fleet, name);
    const char *const words[] = {"doctor", "--json", "--here", name, NULL};
    base_autobuf struct buf text = BUF_INIT(DOCTOR_TEXT_MAX);
    struct err err;
    int status = 0;
    if (!h)
        return cmd_failf(CMD_USAGE, "fleet '%s' has no host '%.60s'; 'hosts' of the fleet file lists them", v->fleet->name, name);
    if (!h->ssh)
        return look_here(v);
    struct os_progress *p = os_progress_new(STDERR_FILENO, &clk_system);
    if (!p)
        return cmd_nomem();
    struct event_sink sink = cmd_progress_sink(p);
    const struct deploy_errand e = {.words = words};
    int r = deploy_remote(v->fleet, h, &v->dirs, &e, &sink, &text, &status, &err);
    os_progress_free(p);
    if (r == 0 && text.len == 0)
        r = err_set(&err, -EIO, WIFEXITED(status) && WEXITSTATUS(status) == 255 ? "the connection broke" : "berth there said why above");
    if (r < 0) {
        err_prefix(&err, "host '%s'", name);
        return cmd_fail(CMD_FAILED, &err);
    }
    return show(v, buf_str(&text));
}

/* ---- the cards into the fleet file ------------------------------------------------------------------------------------------ */

static int write_devices(struct visit *v)
{
    base_autobuf struct buf before = BUF_INIT(FILE_MAX_BYTES), after = BUF_INIT(FILE_MAX_BYTES * 2), shown = BUF_INIT(FILE_MAX_BYTES * 4);
    struct hw_reader *reader = NULL;
    struct hw *h = calloc(1, sizeof *h);
    struct err err;
    size_t n = 0;
    if (!h)
        return cmd_nomem();
    if (!v->host) {
        free(h);
        return cmd_failf(CMD_USAGE, "fleet '%s' has no host without 'ssh', which this machine would be; --here HOST names one", v->fleet->name);
    }
    int r = hw_open(getenv("BERTH_HW_ROOT"), &reader, &err);
    if (r == 0)
        r = hw_read(reader, h, &err);
    if (r == 0)
        r = os_read_file(AT_FDCWD, v->path, &before, &err);
    if (r == 0)
        r = doctor_write(buf_str(&before), v->path, &v->options, v->host->name, h, &after, &n, &err);
    hw_close(reader);
    free(h);
    if (r < 0)
        return cmd_fail(r == -EINVAL ? CMD_USAGE : CMD_FAILED, &err);
    if (n == 0)
        return cmd_print(STR("the fleet file says what is here: nothing to write\n"));
    doctor_show_diff(buf_str(&before), buf_str(&after), &shown);
    if (!cmd_given(v->c, v->a, "dry-run") && cmd_write_file(v->path, buf_str(&after), true, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    buf_addf(&shown, cmd_given(v->c, v->a, "dry-run") ? "%s would be changed so\n" : "%s is written\n", v->path);
    return buf_status(&shown) < 0 ? cmd_nomem() : cmd_print(buf_str(&shown));
}

/* ---- the proof of collectives ----------------------------------------------------------------------------------------------- */

static int run_test(const struct visit *v, struct buf *out, struct err *err)
{
    const char *argv[CMD_WORDS_MAX + 1] = {NULL};
    for (size_t i = 0; i < v->a->n_words; i++)
        argv[i] = v->a->words[i];
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .use_path = true, .new_group = true, .end_group = true, .death_signal = SIGKILL};
    int r = os_run_ok(&s, PROVE_MS, out, err);
    if (r == -ETIMEDOUT)
        return err_set(err, r, "'%s' did not end in ten minutes: collectives hang on these cards; look at 'atomics' and 'kernel' of berth doctor -v", argv[0]);
    if (r == 0 && out->len == out->max)
        return err_set(err, -EFBIG, "'%s' prints more than %zu bytes, and its verdict may be in what is over", argv[0], out->max);
    return r == -EIO ? err_prefix(err, "'%s' failed", argv[0]) : r;
}

static int prove(struct visit *v)
{
    base_autobuf struct buf out = BUF_INIT(PROVE_OUTPUT_MAX), key = BUF_INIT(8192), line = BUF_INIT(8192);
    struct doctor_report *report = NULL;
    struct err err;
    double rate = 0;
    int r = look(v, &report, &err);
    if (r == 0 && !doctor_collective_key(&report->hw, v->host, &key))
        r = err_set(&err, -ENODEV, "there are no two cards here that could work together");
    /* before the test: what took ten minutes must have a place */
    if (r == 0)
        r = open_ledger(v, true, &err);
    if (r == 0)
        r = run_test(v, &out, &err);
    if (r == 0 && (r = doctor_collective_read(buf_str(&out), &report->hw, v->host, &rate, &err)) < 0)
        err_prefix(&err, "nothing is proven");
    const char *slash = strrchr(v->a->words[0], '/'), *by = slash ? slash + 1 : v->a->words[0];
    if (r == 0)
        r = doctor_collective_add(v->ledger, key.ptr, by, rate, &err);
    doctor_free(report);
    if (r < 0)
        return cmd_fail(CMD_FAILED, &err);
    buf_addf(&line, "collectives are proven on these cards: %.1f GB/s, by %s\n", rate / 1e9, by);
    return buf_status(&line) < 0 ? cmd_nomem() : cmd_print(buf_str(&line));
}

/* ---- the command -------------------------------------------------------------------------------------------------------------- */

static int go(struct visit *v)
{
    struct err err;
    const char *there = cmd_value(v->c, v->a, "host");
    int code = open_fleet(v);
    if (code != CMD_OK)
        return code;
    if (os_dirs_find(&v->dirs, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (cmd_given(v->c, v->a, "write"))
        return write_devices(v);
    if (cmd_given(v->c, v->a, "prove"))
        return prove(v);
    if (there)
        return look_there(v, there);
    if (open_ledger(v, false, &err) < 0)
        (void)cmd_fail(CMD_OK, &err); /* then no proof is known */
    if (v->fleet && store_open(&v->dirs, &v->store, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    return look_here(v);
}

static int run_doctor(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code))
        return code;
    bool proves = cmd_given(c, &a, "prove");
    if (proves != (a.n_words > 0))
        return proves ? cmd_usage(c, "--prove needs the command of a test: --prove -- all_reduce_perf -g 2") : cmd_usage(c, "takes no word '%.60s'; did you mean '--host %.60s'?", a.words[0], a.words[0]);
    if (cmd_given(c, &a, "host") && (proves || cmd_given(c, &a, "write") || cmd_given(c, &a, "here")))
        return cmd_usage(c, "--host only looks: run the rest on that machine");
    if (cmd_given(c, &a, "dry-run") && !cmd_given(c, &a, "write"))
        return cmd_usage(c, "--dry-run belongs to --write");
    struct visit v = {.c = c, .a = &a};
    code = go(&v);
    ledger_free(v.ledger);
    store_free(v.store);
    fleet_free(v.fleet);
    os_dirs_release(&v.dirs);
    return code;
}

const struct cmd cmd_doctor = {
    .name = "doctor",
    .synopsis = "[-v] [--host HOST | --write | --prove -- COMMAND] [-f FILE]",
    .summary = "what is right and wrong with this machine",
    .description = "Looks at the machine's cards and their memory, drivers and firmware; at each bridge between them and the CPU; at the kernel log, before memory is blamed; at limits, swap, cgroups, Podman, and what keeps services running after a boot. "
                   "With a fleet file also at the cards that it declares, and at the runtimes' files for them. Each finding says why it matters and what to do. The exit code is 1 when something is bad; some of it only root may read.\n\n"
                   "--write puts the cards into the fleet file, shows the difference and changes no other byte; what is ambiguous it refuses. --host looks at another host of the fleet, over ssh, as 'berth deploy' does.\n\n"
                   "Tensor and pipeline parallelism are unproven on a machine until a collective ran on exactly its cards; until then 'berth deploy' refuses services that need it. --prove runs a test of rccl-tests or nccl-tests and records that every "
                   "card took part and every sum was right.",
    .examples = "berth doctor\nberth doctor -v\nberth doctor --write\nberth doctor --host big\nberth doctor --prove -- all_reduce_perf -b 8M -e 128M -f 4 -g 2",
    .options = {CMD_OPTION_FILE,
                CMD_OPTION_JSON,
                {'v', "verbose", NULL, "show what is in order too, and each bridge"},
                {0, "host", "HOST", "look at another host of the fleet"},
                {0, "here", "HOST", "which host of the fleet file this machine is"},
                {0, "write", NULL, "put the cards into the fleet file"},
                {0, "dry-run", NULL, "with --write: only show the difference"},
                {0, "prove", NULL, "run a test of collectives and record its success"}},
    .run = run_doctor,
};
