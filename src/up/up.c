/* SPDX-License-Identifier: MIT
 *
 * The supervisor's phases. Starting: every service at once, then the router; the first one that fails ends it. Serving: what dies is started again by
 * run, and the router hears of each change. Stopping: the router takes no new request and finishes what it has, then every engine is
 * stopped at once. All of it follows from on_state and two calls of the router; nothing waits.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "up_int.h"

struct up_service *up_service_named(struct up *u, struct str name)
{
    for (size_t i = 0; i < u->n_services; i++)
        if (str_eq_c(name, u->services[i]->service->name))
            return u->services[i];
    return NULL;
}

bool up_starts(const struct up *u, const struct fleet_service *s)
{
    return !u->o->router_only && fleet_service_local(s);
}

bool up_routes(const struct up *u, const struct fleet *f)
{
    return u->o->router_only || (f->router.unit == FLEET_CHILD && !(f->router.host && f->router.host->ssh));
}

struct up_stamp up_stamp_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return (struct up_stamp){0};
    return (struct up_stamp){
        .dev = st.st_dev,
        .ino = st.st_ino,
        .mode = st.st_mode,
        .size = (uint64_t)st.st_size,
        .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
    };
}

bool up_stamp_eq(const struct up_stamp *a, const struct up_stamp *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->mode == b->mode && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

int up_may_change(const struct up *u, struct err *err)
{
    if (u->phase != UP_SERVING)
        return err_set(err, -EAGAIN, u->phase == UP_STARTING ? "the fleet is still starting" : "the fleet is being stopped");
    return u->restart.at ? err_set(err, -EAGAIN, "a restart is under way") : 0;
}

void up_signals(sigset_t *ret)
{
    (void)sigemptyset(ret);
    (void)sigaddset(ret, SIGINT);
    (void)sigaddset(ret, SIGTERM);
    (void)sigaddset(ret, SIGHUP);
}

/* ---- stopping --------------------------------------------------------------------------------------------- */

static void finish_if_gone(struct up *u)
{
    struct run_info info;
    if (u->phase != UP_STOPPING || !u->services_stopping)
        return;
    for (size_t i = 0; i < u->n_services; i++) {
        if (!u->services[i]->run)
            continue;
        run_info(u->services[i]->run, &info);
        if (info.state != RUN_ABSENT)
            return;
    }
    u->done = true;
    net_loop_stop(u->loop);
}

static void stop_services(struct up *u)
{
    uint64_t now = net_loop_now_ms(u->loop);
    uint64_t left = u->stop_by_ms > now ? u->stop_by_ms - now : 0;
    u->services_stopping = true;
    for (size_t i = 0; i < u->n_services; i++)
        if (u->services[i]->run)
            run_stop(u->services[i]->run, left);
    finish_if_gone(u);
}

void up_router_is_gone(struct up *u)
{
    if (u->phase == UP_STOPPING && !u->services_stopping)
        stop_services(u);
}

void up_stop(struct up *u)
{
    if (u->phase == UP_STOPPING)
        return;
    bool served = u->phase == UP_SERVING;
    u->phase = UP_STOPPING;
    up_manager_tell(u, "STOPPING=1\n");
    net_timer_stop(u->tick);
    up_restart_end(u, "the fleet is being stopped");
    /* Nobody has been sent to engines that never all were ready. */
    uint64_t limit = served ? RUN_DRAIN_MS : 0;
    u->stop_by_ms = net_loop_now_ms(u->loop) + limit;
    if (served)
        up_say(u, EVENT_INFO, "", "stopping fleet '%s'%s", u->fleet->name, u->detached ? "" : "; once more to hurry");
    else if (u->exit_code == 0)
        up_say(u, EVENT_WARN, "", "stopping fleet '%s' before all of it was ready", u->fleet->name);
    if (!u->progress && !u->detached)
        u->progress = os_progress_new(STDERR_FILENO, &clk_system);
    if (u->router.wanted && served) {
        up_router_tell(u); /* what is not up will not come: who waits for it hears so */
        up_router_drain(u, limit);
    } else {
        up_router_never(u);
        stop_services(u);
    }
}

/* Once more: nothing is waited for that need not be. */
static void hurry(struct up *u)
{
    u->stop_by_ms = 0;
    up_router_kill(u);
    for (size_t i = 0; u->services_stopping && i < u->n_services; i++)
        if (u->services[i]->run)
            run_stop(u->services[i]->run, 0);
}

void up_fail(struct up *u, const char *subject, const char *text)
{
    if (u->phase == UP_STOPPING)
        return;
    up_say(u, EVENT_ERROR, subject, "%s", text);
    u->exit_code = 1;
    up_stop(u);
}

static void on_signal(void *ctx, int signum)
{
    struct up *u = ctx;
    (void)signum;
    if (u->phase == UP_STOPPING)
        hurry(u);
    else
        up_stop(u);
}

/* ---- starting and serving ----------------------------------------------------------------------------------- */

static bool all_ready(const struct up *u)
{
    struct run_info info;
    for (size_t i = 0; i < u->n_services; i++) {
        run_info(u->services[i]->run, &info);
        if (info.state != RUN_READY && !up_on_demand(u->services[i]))
            return false;
    }
    return true;
}

static void serve(struct up *u)
{
    u->phase = UP_SERVING;
    net_timer_stop(u->tick);
    u->progress = os_progress_free(u->progress);
    up_print_table(u);
    if (u->o->background) {
        up_daemon_detach(u);
        up_say(u, EVENT_INFO, "", "fleet '%s' is up (pid %d)", u->fleet->name, (int)getpid());
    }
    up_daemon_tell(u, 0);
    up_manager_tell(u, "READY=1\n");
    up_demand_begin(u);
}

void up_router_is_up(struct up *u)
{
    if (u->phase == UP_STARTING)
        serve(u);
}

static void all_are_ready(struct up *u)
{
    if (u->router.wanted)
        up_router_start(u);
    else
        serve(u);
}

/* A process of ours has come or gone. */
static bool changes_record(enum run_state from, enum run_state to)
{
    return to == RUN_LOADING || to == RUN_ABSENT || to == RUN_FAILED || (to == RUN_STARTING && from != RUN_ABSENT && from != RUN_FAILED);
}

static void start_absent(struct up_service *us)
{
    struct err err;
    if (up_service_renew(us, &err) < 0)
        up_say_service(us->up, EVENT_ERROR, us->service, "%s", err.text);
    base_ignore(run_start(us->run, NULL)); /* a failure is a state */
}

static void on_state(void *ctx, struct run_service *s, enum run_state from, enum run_state to)
{
    struct up_service *us = ctx;
    struct up *u = us->up;
    struct run_info info;
    if (changes_record(from, to))
        up_record(u);
    up_manager_tell(u, "");
    up_progress_service(u, s, from);
    if (up_on_demand(us) && u->phase != UP_STOPPING) {
        up_demand_state(us, to);
        up_restart_step(u, s);
        return;
    }
    up_router_tell(u);
    switch (u->phase) {
    case UP_STARTING:
        if (to == RUN_FAILED) {
            char subject[UP_SUBJECT_MAX];
            run_info(s, &info);
            up_fail(u, up_subject(us->service, subject), info.error ? info.error : "did not start");
        } else if (to == RUN_READY && all_ready(u)) {
            all_are_ready(u);
        }
        return;
    case UP_SERVING:
        if (us->removed && (to == RUN_ABSENT || to == RUN_FAILED))
            up_reload_gone(u);
        else if (to == RUN_ABSENT && u->restart.at != us) /* it was on its way out as one on demand when it became one that is always up */
            start_absent(us);
        up_restart_step(u, s);
        return;
    case UP_STOPPING:
        if (to == RUN_FAILED)
            run_stop(s, 0);
        if (to == RUN_ABSENT)
            finish_if_gone(u);
        return;
    }
}

static void on_tick(void *ctx)
{
    up_progress_all(ctx);
}

static void start_services(struct up *u)
{
    for (size_t i = 0; u->phase == UP_STARTING && i < u->n_services; i++)
        if (!up_on_demand(u->services[i]))
            base_ignore(run_start(u->services[i]->run, NULL)); /* a failure is a state, told by on_state */
    if (u->n_services == u->demand.d.n)
        all_are_ready(u);
}

int up_service_run(struct up_service *s, struct err *err)
{
    static const struct run_ops ops = {.on_state = on_state};
    s->run_of = up_fleet_ref(s->of);
    return run_new(&s->up->env, s->service, &s->runtime->installed, s->runtime->confine, &ops, s, &s->run, err);
}

static int make_services(struct up *u, struct err *err)
{
    u->env = (struct run_env){.loop = u->loop, .client = u->client, .store = u->store, .clk = &clk_system, .sink = &u->sink,
                              .log_dir = u->paths.logs, .work_dir = u->paths.work};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < u->n_services; i++) {
        rc = up_service_run(u->services[i], err);
        if (rc == 0 && u->upgrade.state)
            rc = up_resume_service(u->services[i], err);
    }
    return rc;
}

/* A hang-up with a terminal means that it is gone; `nohup` says that it does not matter, and without a terminal it is the word to read the file again. */
static bool wants_hangup(const struct up *u)
{
    struct sigaction a;
    if (u->o->background || (sigaction(SIGHUP, NULL, &a) == 0 && a.sa_handler == SIG_IGN))
        return false;
    int tty = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
    if (tty < 0)
        return false;
    close(tty);
    return true;
}

static void on_hangup(void *ctx, int signum)
{
    base_autobuf struct buf b = BUF_INIT(UP_TEXT_MAX);
    struct err err;
    (void)signum;
    if (up_reload(ctx, &b, &err) == -EAGAIN)
        up_say(ctx, EVENT_WARN, "reload", "%s; not now", err.text); /* all else is said there */
}

static int watch_signals(struct up *u, struct err *err)
{
    int rc = net_signal_new(u->loop, SIGINT, on_signal, u, &u->signals[0], err);
    if (rc == 0)
        rc = net_signal_new(u->loop, SIGTERM, on_signal, u, &u->signals[1], err);
    if (rc == 0)
        rc = net_signal_new(u->loop, SIGHUP, wants_hangup(u) ? on_signal : on_hangup, u, &u->signals[2], err);
    return rc;
}

static int open_loop(struct up *u, struct err *err)
{
    int rc = net_loop_new(&u->loop, err);
    if (rc < 0)
        return rc;
    rc = watch_signals(u, err);
    if (rc < 0)
        return rc;
    u->began_ms = net_loop_now_ms(u->loop);
    u->client = httpio_client_new(u->loop, &HTTPIO_CLIENT_DEFAULT);
    u->tick = net_timer_new(u->loop, on_tick, u);
    if (!u->client || !u->tick)
        return err_nomem(err);
    rc = up_manager_open(u, err);
    if (rc == 0)
        rc = make_services(u, err);
    if (rc == 0)
        rc = up_demand_open(u, err);
    if (rc == 0)
        rc = up_keys_watch(u, err);
    if (rc == 0)
        rc = up_control_open(u, err);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void release(struct up *u)
{
    sigset_t ends;
    /* It is ending: a second signal could only make an orderly end look like a violent one, once nobody listens any more. */
    up_signals(&ends);
    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    up_control_close(u);
    up_demand_close(u);
    up_keys_release(u);
    up_router_release(u);
    up_reload_release(u);
    buf_release(&u->upgrade.error);
    buf_release(&u->upgrade.file);
    up_watch_end(u);
    up_names_unused(u);
    up_names_prune(u);
    for (size_t i = 0; i < u->n_services; i++)
        u->services[i]->run = run_free(u->services[i]->run);
    for (size_t i = 0; i < BASE_COUNT(u->signals) && u->loop; i++)
        u->signals[i] = net_signal_close(u->signals[i]);
    if (u->loop) {
        u->tick = net_timer_close(u->tick);
        u->watchdog = net_timer_close(u->watchdog);
        u->watch_timer = net_timer_close(u->watch_timer);
        u->upgrade.timer = net_timer_close(u->upgrade.timer);
    }
    u->client = httpio_client_free(u->client);
    u->loop = net_loop_free(u->loop);
    u->progress = os_progress_free(u->progress);
    if (u->lock_fd >= 0)
        (void)unlink(u->paths.pids); /* none is left */
    up_runtimes_release(u);
    while (u->n_services > 0)
        up_service_free(u->services[u->n_services - 1]);
    free(u->services);
    os_closep(&u->store_fd);
    u->store = store_free(u->store);
    os_closep(&u->state_fd);
    /* Last of all: whoever waits for the lock finds everything gone. */
    os_closep(&u->lock_fd);
    up_paths_release(&u->paths);
    os_dirs_release(&u->dirs);
}

/* Until nothing runs any more. Another program takes over between two turns of the loop; when it cannot, this one goes on. */
static void run_loop(struct up *u)
{
    while (!u->done) {
        net_loop_run(u->loop);
        if (u->upgrade.wanted && !u->done)
            up_upgrade_exec(u);
        else
            return;
    }
}

static int open_all(struct up *u, struct err *err)
{
    int rc = os_dirs_find(&u->dirs, err);
    if (rc == 0)
        rc = up_paths_make(&u->dirs, u->fleet->name, &u->paths, err);
    if (rc == 0)
        rc = up_prepare(u, err);
    if (rc == 0)
        rc = open_loop(u, err);
    return rc < 0 ? rc : up_watch_begin(u, err);
}

static int run_fleet(struct up *u)
{
    struct err err;
    u->progress = os_progress_new(STDERR_FILENO, &clk_system);
    if (open_all(u, &err) < 0) {
        up_say(u, EVENT_ERROR, "", "%s", err.text);
        u->exit_code = 1;
    } else {
        net_timer_start(u->tick, UP_TICK_MS, UP_TICK_MS);
        start_services(u);
        run_loop(u);
        if (u->detached)
            up_say(u, EVENT_INFO, "", "stopped");
    }
    release(u);
    return u->exit_code;
}

static void init(struct up *u, const struct up_options *o)
{
    *u = (struct up){.o = o, .lock_fd = -1, .state_fd = -1, .store_fd = -1, .ready_fd = -1, .control = {.admin_fd = -1, .kept_fd = -1, .kept_admin_fd = -1}};
    u->reload.error = BUF_INIT(ERR_TEXT_MAX + 64);
    u->upgrade.error = BUF_INIT(ERR_TEXT_MAX + 64);
    u->upgrade.file = BUF_INIT(CONF_YAML_MAX);
    u->sink = (struct event_sink){.emit = up_emit, .ctx = u};
    u->router.metrics = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    u->router.index = BUF_INIT((size_t)2 * PROXY_INDEX_MAX);
}

int up_main(const struct up_options *o)
{
    struct up u;
    struct err err;
    init(&u, o);
    if (up_fleet_load(o->fleet_path, o->host, &u.of, &err) < 0) {
        fprintf(stderr, "berth %s: %s%s\n", o->router_only ? "route" : "up", err.text, err.code == -ENOENT ? "; 'berth init' writes one, -f FILE names another" : "");
        return 2;
    }
    u.fleet = u.of->f;
    int code = 0;
    if (!o->background || up_daemonize(&u, &code)) {
        (void)signal(SIGPIPE, SIG_IGN);
        code = run_fleet(&u);
        /* A start that was stopped before all was ready is no success for the one who waits. */
        up_daemon_tell(&u, code == 0 ? 1 : code);
    }
    u.of = up_fleet_unref(u.of);
    return code;
}

/* What was there goes on; what should be there and is not is started. */
static void go_on(struct up *u)
{
    struct err err;
    u->phase = UP_SERVING;
    up_resume_done(u);
    up_record(u);
    up_router_tell(u);
    for (size_t i = 0; i < u->n_services; i++)
        if (u->services[i]->start && !up_on_demand(u->services[i]))
            base_ignore(run_start(u->services[i]->run, NULL)); /* a failure is a state */
    if (u->router.wanted && !u->router.workers)
        up_router_start(u);
    else if (u->router.wanted && up_router_replace(u, &err) < 0)
        up_say(u, EVENT_ERROR, "router", "%s", err.text);
    up_say(u, EVENT_INFO, "upgrade", "berth %s has taken over fleet '%s' (pid %d)", BERTH_VERSION, u->fleet->name, (int)getpid());
    up_demand_begin(u);
    up_manager_tell(u, "READY=1\n");
}

int up_resume(const struct up_options *o, struct up_fleet *of, struct json *state)
{
    struct up u;
    struct err err;
    init(&u, o);
    u.of = of;
    u.fleet = of->f;
    u.upgrade.state = state;
    u.detached = o->background;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)json_u64(json_get(json_root(state), "upgrades"), &u.upgrade.done);
    (void)json_u64(json_get(json_root(state), "reloads"), &u.reload.done);
    int rc = open_all(&u, &err);
    (void)json_u64(json_get(json_root(state), "began_ms"), &u.began_ms);
    if (rc == 0 && u.router.wanted)
        rc = up_resume_router(&u, &err);
    if (rc < 0) {
        up_say(&u, EVENT_ERROR, "upgrade", "%s", err.text);
        u.exit_code = 1;
        up_resume_done(&u);
    } else {
        go_on(&u);
        run_loop(&u);
        if (u.detached)
            up_say(&u, EVENT_INFO, "", "stopped");
    }
    release(&u);
    u.of = up_fleet_unref(u.of);
    return u.exit_code;
}
