/* SPDX-License-Identifier: MIT
 *
 * What plan, deploy and rollback do on the machine that they are about, whether a person sits at it or a berth on another machine has sent for it: one JSON text comes out, which deploy_show.c shows.
 */
#include "deploy_host_int.h"

#include <errno.h>
#include <store/store.h>
#include <unistd.h>

static void items(struct json_out *o, const struct deploy_plan *p)
{
    json_out_arr(o, "items");
    for (size_t i = 0; p && i < p->n; i++) {
        const struct deploy_item *it = &p->items[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "action", deploy_action_text(it->action));
        json_out_cstr(o, "service", it->service);
        json_out_cstr(o, "unit", it->unit);
        json_out_cstr(o, "path", it->path);
        json_out_cstr(o, "reason", it->reason);
        json_out_cstr(o, "diff", it->diff);
        json_out_end(o);
    }
    json_out_end(o);
}

/* A runtime of Debian's packages is made from what came along, one that the machine has itself from that; what cannot be made so is left for the error that names it. */
static void make_runtimes(const struct fleet *f, const struct os_dirs *dirs, const struct event_sink *sink)
{
    struct store *s = NULL;
    if (store_open(dirs, &s, NULL) < 0)
        return;
    for (size_t i = 0; i < f->n_services; i++) {
        const struct fleet_service *v = &f->services[i];
        const struct store_add_options o = {.offline = true, .sink = sink};
        struct store_runtime r = {0};
        if (v->host->ssh || v->unit != FLEET_SYSTEMD || (v->runtime->source != FLEET_SOURCE_DEBIAN && v->runtime->source != FLEET_SOURCE_SYSTEM) || store_runtime_find(s, v->runtime, &r, NULL) == 0) {
            store_runtime_release(&r);
            continue;
        }
        base_ignore(store_runtime_add(s, v->runtime, &o, &r, NULL)); /* deploy_open says what is missing */
        store_runtime_release(&r);
    }
    store_free(s);
}

/* All that a deploy brings to the machine first, while no other deploy may. *ret_fd: the hold; ret_path: where the fleet file is from then on. */
static int bring(const struct deploy_request *q, const struct os_dirs *dirs, const struct event_sink *sink, int *ret_fd, struct buf *ret_path, struct err *err)
{
    struct fleet_options options = engine_fleet_options();
    struct fleet *f = NULL;
    options.here = q->host;
    int r = fleet_load(q->fleet_path, &options, &f, err);
    if (r < 0)
        return r;
    int fd = r = deploy_hold(dirs, f->name, err);
    if (fd >= 0)
        r = deploy_take_in(dirs, f->name, q->fleet_path, ret_path, err);
    if (r == 0 && !str_eq_c(buf_str(ret_path), q->fleet_path)) { /* its lock and what its paths lead to have moved with it */
        f = fleet_free(f);
        r = fleet_load(ret_path->ptr, &options, &f, err);
    }
    if (r == 0) {
        make_runtimes(f, dirs, sink);
        r = deploy_fetch(f) == CMD_OK ? 0 : err_set(err, -EIO, "not all files of its models could be fetched, see above; nothing was touched, and what came is kept");
    }
    fleet_free(f);
    if (r < 0)
        os_closep(&fd);
    else
        *ret_fd = fd;
    return r;
}

/* One that a gate or the proof stops is an answer too: it is in the text, with what was planned. */
static int act(const struct deploy_request *q, struct deploy *d, int fd, struct deploy_plan *plan, struct deploy_outcome *out, struct err *err)
{
    int r = q->only_plan ? 0 : deploy_begin(d, fd, err);
    if (r == 0)
        r = deploy_plan(d, plan, err);
    if (r < 0 || q->only_plan)
        return r;
    r = deploy_gates(d, plan, err);
    return r == 0 ? deploy_apply(d, plan, out, err) : r;
}

int deploy_here(const struct deploy_request *q, const struct os_dirs *dirs, const struct event_sink *sink, struct buf *ret)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    struct deploy_options o = {.fleet_path = q->fleet_path, .host = q->host, .who = q->who, .only_plan = q->only_plan, .prove_collectives = q->prove_collectives, .sink = sink, .router = q->router};
    struct deploy *d = NULL, *then = NULL;
    struct deploy_plan plan = {0};
    struct deploy_outcome out = {0};
    struct err err;
    int fd = -1, r = q->only_plan ? 0 : bring(q, dirs, sink, &fd, &path, &err);
    if (r == 0 && path.len)
        o.fleet_path = path.ptr;
    if (r == 0 && (r = deploy_open(&o, dirs, &d, &err)) < 0)
        os_closep(&fd);
    if (r == 0)
        r = q->since ? deploy_open_then(d, q->since, &then, &err) : act(q, d, fd, &plan, &out, &err);
    if (r == 0 && q->since)
        r = deploy_plan_since(d, then, &plan, &err);
    struct json_out *j = json_out_new();
    if (!j) {
        deploy_free(then);
        deploy_free(d);
        return -ENOMEM;
    }
    json_out_obj(j, NULL);
    json_out_cstr(j, "host", d ? deploy_host(d)->name : q->host);
    items(j, &plan);
    json_out_u64(j, "todo", deploy_plan_todo(&plan));
    if (!q->only_plan) {
        json_out_u64(j, "started", out.started);
        json_out_u64(j, "proven", out.proven);
        json_out_u64(j, "retired", out.retired);
        json_out_u64(j, "kept", out.kept);
        json_out_u64(j, "version", out.version);
        json_out_bool(j, "rolled_back", out.rolled_back);
    }
    json_out_cstr(j, "error", r < 0 ? err.text : NULL);
    json_out_end(j);
    deploy_free(then);
    deploy_free(d);
    r = json_out_finish(j, false, ret);
    json_out_free(j);
    return r;
}

/* ---- for berth itself ---------------------------------------------------------------------------------------------- */

static void say(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    (void)done;
    base_autobuf struct buf line = BUF_INIT(65536);
    if (level < EVENT_INFO || total != 0)
        return;
    buf_add_lines(&line, str_of(text));
    (void)fprintf(stderr, "%s%s: %s: %s\n", (const char *)ctx, level == EVENT_ERROR ? " error" : level == EVENT_WARN ? " warning" : "", subject, buf_status(&line) == 0 && line.ptr ? line.ptr : "");
}

/* The fleet's router, for the deploy: it is up here, only whoever sent for us can reach it, or nobody is told. f is the caller's to free. */
struct told {
    struct deploy_router router;
    struct deploy_router_here here;
    struct fleet *f;
};

static int find_router(struct told *t, const char *where, const struct deploy_request *q, const struct os_dirs *dirs, const struct event_sink *sink, struct err *err)
{
    struct fleet_options options = engine_fleet_options();
    options.here = q->host;
    if (where && strcmp(where, "relay") == 0)
        t->router = (struct deploy_router){deploy_router_relay, (void *)(uintptr_t)sink};
    if (!where || strcmp(where, "here") != 0)
        return 0;
    int r = fleet_load(q->fleet_path, &options, &t->f, err);
    t->here = (struct deploy_router_here){dirs, t->f, sink};
    t->router = (struct deploy_router){deploy_router_here, &t->here};
    return r;
}

static int run_apply(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, 1, &a, &code))
        return code;
    if (strcmp(a.words[0], "plan") != 0 && strcmp(a.words[0], "deploy") != 0 && strcmp(a.words[0], "rollback") != 0)
        return cmd_usage(c, "'%.20s' is nothing to do: plan, deploy or rollback", a.words[0]);
    const char *host = cmd_value(c, &a, "host");
    const struct event_sink sink = {.emit = say, .ctx = (void *)(uintptr_t)(host ? host : "here")};
    struct deploy_request q = {.fleet_path = cmd_value(c, &a, "file"), .host = host, .who = cmd_value(c, &a, "who"), .since = cmd_value(c, &a, "since"), .only_plan = strcmp(a.words[0], "plan") == 0, .prove_collectives = cmd_given(c, &a, "prove-collectives")};
    base_autobuf struct buf text = BUF_INIT(DEPLOY_TEXT_MAX), back = BUF_INIT(8192);
    struct os_dirs dirs;
    struct err err;
    if (cmd_given(c, &a, "secrets"))
        deploy_take_secrets();
    if (q.since && !q.only_plan)
        return cmd_usage(c, "--since is for plan");
    if (os_dirs_find(&dirs, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    int r = 0;
    if (strcmp(a.words[0], "rollback") == 0) {
        r = deploy_rollback_path(&q, &dirs, &back, &err);
        q.fleet_path = back.ptr;
    }
    struct told told = {0};
    if (r == 0)
        r = find_router(&told, cmd_value(c, &a, "router"), &q, &dirs, &sink, &err);
    if (told.router.tell)
        q.router = &told.router;
    if (r < 0)
        code = cmd_fail(CMD_FAILED, &err);
    else if (deploy_here(&q, &dirs, &sink, &text) < 0)
        code = cmd_nomem();
    else
        code = cmd_print(buf_str(&text));
    fleet_free(told.f);
    os_dirs_release(&dirs);
    return code;
}

const struct cmd cmd_apply = {
    .name = "_apply",
    .synopsis = "plan|deploy|rollback [--host HOST] [--who WHO] [--router here|relay] [--since WHAT] [--secrets] -f FILE",
    .summary = "deploy on this machine, for berth on another one",
    .description = "What plan, deploy and rollback run on each host. Prints JSON.",
    .options = {CMD_OPTION_FILE, {0, "host", "HOST", "the host that this machine is"}, {0, "who", "WHO", "for the history"}, {0, "router", "WHERE", "where the fleet's router is: here, or reached through whoever reads the output (relay)"}, {0, "prove-collectives", NULL, "as deploy has it"}, {0, "secrets", NULL, "read settings of the hub from standard input"}, {0, "since", "WHAT", "plan: against a kept version, or another fleet file"}},
    .hidden = true,
    .run = run_apply,
};

static int run_status_there(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    base_autobuf struct buf text = BUF_INIT(DEPLOY_TEXT_MAX);
    struct os_dirs dirs;
    struct err err;
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    const char *path = cmd_value(c, &a, "file");
    if (os_dirs_find(&dirs, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    code = deploy_status(path ? path : "fleet.yaml", cmd_value(c, &a, "host"), &dirs, &text, &err) < 0 ? cmd_fail(CMD_FAILED, &err) : cmd_print(buf_str(&text));
    os_dirs_release(&dirs);
    return code;
}

const struct cmd cmd_status_there = {
    .name = "_status",
    .synopsis = "[--host HOST] -f FILE",
    .summary = "what of a fleet is on this machine, for berth on another one",
    .description = "What status asks of each host. Prints JSON.",
    .options = {CMD_OPTION_FILE, {0, "host", "HOST", "the host that this machine is"}},
    .hidden = true,
    .run = run_status_there,
};

/* ---- before a stop --------------------------------------------------------------------------------------------------- */

#define DRAIN_MS 30000

static int run_drain(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    uint16_t port;
    if (!cmd_parse(c, argc, argv, 3, 4, &a, &code))
        return code;
    if (!fleet_is_port(str_of(a.words[2]), &port))
        return cmd_usage(c, "'%.20s' is no port; " FLEET_PORTS, a.words[2]);
    const struct fleet_runtime runtime = {.engine = a.words[0]};
    const struct fleet_service s = {.name = "", .runtime = &runtime, .bind = a.words[1], .port = port, .key = a.n_words > 3 ? a.words[3] : NULL};
    deploy_drain(&s, DRAIN_MS);
    return CMD_OK;
}

const struct cmd cmd_drain = {
    .name = "_drain",
    .synopsis = "ENGINE ADDRESS PORT [KEYFILE]",
    .summary = "wait until an engine rests",
    .description = "What a unit runs before systemd ends its engine.",
    .hidden = true,
    .run = run_drain,
};
