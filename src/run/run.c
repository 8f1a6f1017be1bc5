/* SPDX-License-Identifier: MIT
 *
 * The state machine of one service. Everything that happens comes in through few doors: run_start, run_stop, the end of the process
 * (run_on_end), the answer of a proof, one timer. Each door does its work and changes the state last, because the owner's on_state may come
 * back in. A process that we end ourselves leaves a verdict behind, so that its end is told with our reason and not
 * with "killed".
 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run_int.h"

const char *run_state_text(enum run_state s)
{
    static const char *const text[] = {"absent", "starting", "loading", "ready", "draining", "stopping", "failed"};
    return text[s];
}

static uint64_t now_ms(const struct run_service *s)
{
    return net_loop_now_ms(s->env->loop);
}

/* Last in every function: on_state may call run_stop. */
static void set_state(struct run_service *s, enum run_state to)
{
    enum run_state from = s->state;
    s->state = to;
    s->since_ms = now_ms(s);
    if (s->ops.on_state)
        s->ops.on_state(s->ctx, s, from, to);
}

static void timer_cb(void *ctx)
{
    struct run_service *s = ctx;
    s->on_timer(s);
}

static void timer_set(struct run_service *s, uint64_t ms, void (*cb)(struct run_service *s))
{
    s->on_timer = cb;
    net_timer_start(s->timer, ms, 0);
}

static void say(struct run_service *s, enum event_level level, const char *fmt, ...) BASE_PRINTF(3, 4);
static void say(struct run_service *s, enum event_level level, const char *fmt, ...)
{
    char subject[FLEET_NAME_MAX + 16], text[ERR_TEXT_MAX + 64];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)snprintf(subject, sizeof(subject), "service '%s'", s->service->name);
    event_say(s->env->sink, level, subject, "%s", text);
}

static void cancel_proofs(struct run_service *s)
{
    s->ready = probe_ready_cancel(s->ready);
    s->idle = probe_idle_cancel(s->idle);
    net_timer_stop(s->timer);
}

/* ---- ending a process ------------------------------------------------------------------------------------- */

/* TERM, TERM, KILL: the engine's first TERM waits for a request under way without limit, its second does not. Bubblewrap ends with its engine and collects it; it is
 * killed itself, which takes the engine along, only when the engine is not known or even KILL has not helped. */
static void end_step(struct run_service *s)
{
    unsigned round = s->end_round++;
    if (s->engine.pidfd >= 0)
        base_ignore(os_proc_signal(&s->engine, round < 2 ? SIGTERM : SIGKILL));
    if (s->engine.pidfd < 0 || round > 2)
        base_ignore(os_proc_signal(&s->proc, SIGKILL));
    /* Before it is ready it has no request to wait for; and as the first process of a namespace it ignores TERM until it has a handler. */
    uint64_t wait_ms = s->took_ms == 0 ? RUN_TERM_LOADING_MS : RUN_TERM_MS;
    timer_set(s, s->env->times.term_ms ? s->env->times.term_ms : wait_ms, end_step);
}

static void end_begin(struct run_service *s)
{
    cancel_proofs(s);
    s->end_round = 0;
    end_step(s);
}

/* We end it; the reason is told at its end. */
static void condemn(struct run_service *s, const char *text)
{
    buf_clear(&s->verdict);
    buf_add_c(&s->verdict, text);
    end_begin(s);
}

/* ---- starting ---------------------------------------------------------------------------------------------- */

static void on_ready(void *ctx, int status, enum probe_step at, const struct err *err)
{
    struct run_service *s = ctx;
    s->ready = NULL;
    base_autobuf struct buf b = BUF_INIT(RUN_ERROR_MAX);
    struct err log = {0};
    run_log_drain(s);
    if (status == -ETIMEDOUT && at == PROBE_HEALTH) {
        char limit[UNITS_TEXT];
        buf_addf(&b, "not ready after %s, its limit for a start", units_show_ms(s->limit_ms, limit));
    } else if (status < 0) {
        buf_addf(&b, "not what was declared: %s", err && err->code < 0 ? err->text : probe_step_text(at));
    } else if (s->dropped.len > 0) {
        buf_addf(&b, "the engine did not do what was asked for: %s", s->dropped.ptr);
    } else if (engine_log_check(s->service, buf_str(&s->log.tail), &log) < 0) {
        buf_addf(&b, "the engine did not do what was asked for: %s", log.text);
    }
    if (status < 0 || b.len > 0) {
        condemn(s, buf_status(&b) == 0 ? b.ptr : "not ready");
        return;
    }
    char took[UNITS_TEXT];
    s->ready_ms = now_ms(s);
    s->took_ms = s->ready_ms - s->start_ms;
    s->was_ready = true;
    buf_clear(&s->step);
    say(s, EVENT_INFO, "ready in %s", units_show_ms(s->took_ms, took));
    set_state(s, RUN_READY);
}

/* What bubblewrap tells when it has started the process inside. Who that is says the host's /proc: bubblewrap counts in a namespace of its own. It is read to its
 * end: bubblewrap writes on, and would die of a pipe that is closed. */
void run_on_info(void *ctx)
{
    struct run_service *s = ctx;
    char block[1024];
    ssize_t n = read(s->info_fd, block, sizeof(block));
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        s->info_watch = net_watch_close(s->info_watch);
        os_closep(&s->info_fd);
        return;
    }
    if (s->engine.pidfd >= 0)
        return;
    pid_t pid = os_proc_child(s->proc.pid);
    int fd = pid > 0 ? os_pidfd_open(pid) : -1;
    if (fd < 0)
        return; /* ended already, which run_on_end tells */
    s->engine = (struct os_proc){.pid = pid, .pidfd = fd};
    if (s->state == RUN_STARTING)
        set_state(s, RUN_LOADING);
}

void run_aim(struct run_service *s)
{
    s->target = (struct probe_target){.service = s->service, .paths = &s->paths, .addr = s->addr};
    memcpy(s->target.key, s->key, sizeof s->target.key);
}

static int launch(struct run_service *s, struct err *err)
{
    buf_clear(&s->verdict);
    buf_clear(&s->dropped);
    buf_clear(&s->step);
    s->start_ms = now_ms(s);
    s->took_ms = 0;
    httpio_client_forget(s->env->client, &s->addr);
    int rc = run_launch(s, err);
    if (rc < 0)
        return rc;
    run_aim(s);
    s->ready = probe_ready_start(s->env->loop, s->env->client, &s->target, s->limit_ms, on_ready, s);
    if (!s->ready) {
        run_launch_kill(s);
        return err_nomem(err);
    }
    return 0;
}

/* Its process is known at once, unless bubblewrap has to tell it. */
static void launched(struct run_service *s)
{
    if (s->engine.pidfd >= 0)
        set_state(s, RUN_LOADING);
}

static void set_error(struct run_service *s, const char *text)
{
    buf_clear(&s->error);
    buf_add_c(&s->error, text);
    if (buf_status(&s->error) < 0)
        buf_clear(&s->error);
}

int run_start(struct run_service *s, struct err *err)
{
    assert(s->state == RUN_ABSENT || s->state == RUN_FAILED);
    struct err why = {0};
    s->was_ready = false;
    s->backoff_ms = 0;
    set_state(s, RUN_STARTING);
    int rc = launch(s, &why);
    if (rc < 0) {
        set_error(s, why.text);
        if (err)
            *err = why;
        set_state(s, RUN_FAILED);
        return rc;
    }
    launched(s);
    return 0;
}

/* ---- starting again ---------------------------------------------------------------------------------------- */

static void start_again_later(struct run_service *s);

/* The first line of the error. */
static struct str reason(const struct run_service *s)
{
    struct str text = buf_str(&s->error);
    return str_split(&text, '\n');
}

/* It has ended, or could not be started again; the error says why. */
static void again_or_failed(struct run_service *s)
{
    if (s->was_ready && !s->once) {
        start_again_later(s);
        return;
    }
    struct str why = reason(s);
    say(s, EVENT_ERROR, STR_FMT, STR_ARG(why));
    set_state(s, RUN_FAILED);
}

static void start_again(struct run_service *s)
{
    struct err err = {0};
    s->restarts++;
    int rc = launch(s, &err);
    if (rc < 0) {
        set_error(s, err.text);
        again_or_failed(s);
        return;
    }
    if (s->engine.pidfd >= 0)
        launched(s);
    else
        set_state(s, RUN_STARTING);
}

static void start_again_later(struct run_service *s)
{
    uint64_t first = s->env->times.backoff_ms ? s->env->times.backoff_ms : RUN_BACKOFF_MIN_MS;
    s->backoff_ms = s->backoff_ms == 0 ? first : s->backoff_ms * 2;
    if (s->backoff_ms > RUN_BACKOFF_MAX_MS)
        s->backoff_ms = RUN_BACKOFF_MAX_MS;
    char wait[UNITS_TEXT];
    buf_clear(&s->step);
    buf_addf(&s->step, "starts again in %s", units_show_ms(s->backoff_ms, wait));
    struct str why = reason(s);
    say(s, EVENT_WARN, STR_FMT "; starts again in %s", STR_ARG(why), wait);
    timer_set(s, s->backoff_ms, start_again);
    set_state(s, RUN_STARTING);
}

/* ---- the end of a process ------------------------------------------------------------------------------------- */

static void make_error(struct run_service *s, int status)
{
    char how[OS_STATUS_TEXT], since[UNITS_TEXT];
    buf_clear(&s->error);
    if (buf_status(&s->verdict) == 0 && s->verdict.len > 0)
        buf_add_str(&s->error, buf_str(&s->verdict));
    else if (s->took_ms > 0)
        buf_addf(&s->error, "the engine ended after %s (%s)", units_show_ms(now_ms(s) - s->ready_ms, since), os_status_text(status, how));
    else
        buf_addf(&s->error, "the engine ended while loading (%s)", os_status_text(status, how));
    run_log_words(s, &s->error);
    if (buf_status(&s->error) < 0)
        set_error(s, "the engine ended");
}

/* Bubblewrap passes its engine's end on as a shell does: 128 and the signal. */
static int engine_status(const struct run_service *s, int status)
{
    bool of_signal = s->confine == STORE_BWRAP && WIFEXITED(status) && WEXITSTATUS(status) > 128 && WEXITSTATUS(status) < 128 + NSIG;
    return of_signal ? WEXITSTATUS(status) - 128 : status;
}

void run_on_end(void *ctx)
{
    struct run_service *s = ctx;
    int status = 0;
    if (os_proc_signal(&s->proc, 0) == -ESRCH)
        os_proc_kill_group(&s->proc); /* what it left behind, where no namespace ends it */
    if (os_proc_reap(&s->proc, &status) == 0)
        return;
    status = engine_status(s, status);
    bool asked = s->state == RUN_STOPPING || s->state == RUN_DRAINING;
    cancel_proofs(s);
    char how[OS_STATUS_TEXT], text[OS_STATUS_TEXT + 16];
    snprintf(text, sizeof(text), "ended (%s)", os_status_text(status, how));
    run_log_drain(s);
    run_log_say(s, text);
    run_launch_clear(s);
    if (asked) {
        set_state(s, RUN_ABSENT);
        return;
    }
    make_error(s, status);
    if (s->took_ms > 0 && now_ms(s) - s->ready_ms >= RUN_STABLE_MS)
        s->backoff_ms = 0;
    again_or_failed(s);
}

/* ---- stopping ---------------------------------------------------------------------------------------------------- */

static void on_idle(void *ctx, int status)
{
    struct run_service *s = ctx;
    s->idle = NULL;
    (void)status; /* idle, out of time or not to be known: it is ended now */
    end_begin(s);
    set_state(s, RUN_STOPPING);
}

static void settle_over(struct run_service *s)
{
    s->idle = probe_idle_start(s->env->loop, s->env->client, &s->target, s->drain_ms, on_idle, s);
    if (!s->idle)
        on_idle(s, -ENOMEM);
}

/* A second wish: the next step at once. */
static void stop_again(struct run_service *s)
{
    if (s->state == RUN_STOPPING) {
        end_step(s);
        return;
    }
    end_begin(s);
    set_state(s, RUN_STOPPING);
}

void run_stop(struct run_service *s, uint64_t drain_ms)
{
    switch (s->state) {
    case RUN_ABSENT:
        return;
    case RUN_FAILED:
        set_state(s, RUN_ABSENT);
        return;
    case RUN_DRAINING:
    case RUN_STOPPING:
        if (drain_ms == 0)
            stop_again(s);
        return;
    case RUN_STARTING:
    case RUN_LOADING:
        cancel_proofs(s);
        if (!run_alive(s)) { /* waits to start again */
            set_state(s, RUN_ABSENT);
            return;
        }
        end_begin(s);
        set_state(s, RUN_STOPPING);
        return;
    case RUN_READY:
        if (drain_ms == 0) {
            end_begin(s);
            set_state(s, RUN_STOPPING);
            return;
        }
        s->drain_ms = drain_ms;
        timer_set(s, RUN_SETTLE_MS, settle_over);
        set_state(s, RUN_DRAINING);
        return;
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

int run_declare(struct run_service *s, const struct fleet_service *service, const struct store_runtime *runtime, enum store_confine confine, struct err *err)
{
    struct net_addr addr;
    const struct engine_kind *kind = engine_find(service->runtime->engine);
    assert(s->state == RUN_ABSENT || s->state == RUN_FAILED);
    if (!kind)
        return err_set(err, -EINVAL, "service '%s': no engine kind '%s'", service->name, service->runtime->engine);
    if (net_addr_parse(service->bind, service->port, &addr) < 0)
        return err_set(err, -EINVAL, "bind '%s' of service '%s' is no address", service->bind, service->name);
    s->service = service;
    s->runtime = runtime;
    s->confine = confine;
    s->kind = kind;
    s->addr = addr;
    return 0;
}

int run_new(const struct run_env *env, const struct fleet_service *service, const struct store_runtime *runtime, enum store_confine confine,
            const struct run_ops *ops, void *ctx, struct run_service **ret, struct err *err)
{
    struct run_service *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err);
    *s = (struct run_service){.env = env, .service = service, .ops = *ops, .ctx = ctx,
                              .proc = OS_PROC_NONE, .engine = OS_PROC_NONE, .info_fd = -1};
    s->log.fd = s->log.pipe_fd = -1;
    s->log.tail = BUF_INIT(RUN_TAIL_MAX);
    s->log.line = BUF_INIT(RUN_LINE_MAX);
    s->verdict = s->error = BUF_INIT(RUN_ERROR_MAX);
    s->step = s->dropped = BUF_INIT(RUN_TEXT_MAX);
    int rc = run_declare(s, service, runtime, confine, err);
    base_autobuf struct buf path = BUF_INIT(8192);
    buf_addf(&path, "%s/%s.log", env->log_dir, service->name);
    s->log.path = buf_take(&path);
    s->timer = net_timer_new(env->loop, timer_cb, s);
    if (rc == 0 && (!s->log.path || !s->timer))
        rc = err_nomem(err);
    if (rc < 0) {
        run_free(s);
        return rc;
    }
    s->since_ms = now_ms(s);
    *ret = s;
    return 0;
}

void run_set_slot_dir(struct run_service *s, const char *path)
{
    s->slot_dir = path;
}

void run_set_again(struct run_service *s, bool again)
{
    s->once = !again;
}

struct run_service *run_free(struct run_service *s)
{
    if (!s)
        return NULL;
    if (s->timer)
        cancel_proofs(s);
    run_launch_kill(s);
    run_log_release(s);
    s->timer = net_timer_close(s->timer);
    buf_release(&s->verdict);
    buf_release(&s->error);
    buf_release(&s->step);
    buf_release(&s->dropped);
    s->arena = arena_free(s->arena);
    free(s);
    return NULL;
}

void run_info(struct run_service *s, struct run_info *ret)
{
    *ret = (struct run_info){
        .state = s->state,
        .pid = s->engine.pid,
        .generation = s->generation,
        .restarts = s->restarts,
        .since_ms = s->since_ms,
        .took_ms = s->took_ms,
        .confine = store_confine_text(s->confine),
        .log_path = s->log.path,
        .error = s->error.len > 0 ? s->error.ptr : NULL,
        .step = s->step.len > 0 ? s->step.ptr : NULL,
    };
    if (s->engine.pid > 0 && os_proc_mem(s->engine.pid, &ret->mem) < 0)
        ret->mem = (struct os_mem){0};
}

const char *run_key(const struct run_service *s)
{
    return s->key;
}

const struct fleet_service *run_service_of(const struct run_service *s)
{
    return s->service;
}
