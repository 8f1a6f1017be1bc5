/* SPDX-License-Identifier: MIT
 *
 * The proof of a unit: probe asks the engine the same questions as everywhere, while here it is watched that the unit lives, and that the process which listens is the unit's own: one that answers on the port from elsewhere is named
 * and believed in nothing. Then comes the battery: whether it does what its service declares.
 */
#include <errno.h>
#include <fcntl.h>
#include <probe/probe.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "deploy_int.h"

#define WATCH_MS 1000
#define WAIT_STEP_MS 100
#define LOG_MAX (8u << 20)
#define TAIL_MAX (64u << 10)
#define TAIL_LINES 8

/* ---- the port ----------------------------------------------------------------------------------------------- */

static void pause_ms(long ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

int deploy_wait_port(const struct fleet_service *s, struct err *err)
{
    bool reuses = engine_reuses_port(engine_find(s->runtime->engine));
    for (unsigned waited = 0;; waited += WAIT_STEP_MS) {
        unsigned n = 0, waiting = 0;
        int r = os_port_sockets(s->port, &n, &waiting);
        if (r < 0)
            return err_sys(err, r, "cannot look at port %u", s->port);
        n += reuses ? 0 : waiting;
        if (n == 0)
            return 0;
        if (deploy_stop_asked())
            return err_set(err, -EINTR, "interrupted");
        struct os_owner o;
        if (waited >= DEPLOY_PORT_MS) {
            if (os_port_owner(s->port, &o) == 0 && o.pid > 0)
                return err_set(err, -EADDRINUSE, "port %u of service '%s' is taken by %s (pid %d)", s->port, s->name, o.name, (int)o.pid);
            return err_set(err, -EADDRINUSE, "port %u of service '%s' is not free: %u connections of it are left; end its clients, or try again in a minute", s->port, s->name, n);
        }
        pause_ms(WAIT_STEP_MS);
    }
}

/* ---- whose it is ------------------------------------------------------------------------------------------------ */

/* Whether a process belongs to a unit: the kernel keeps it in the unit's control group. */
bool deploy_belongs(pid_t pid, const char *unit)
{
    char path[64];
    base_autobuf struct buf groups = BUF_INIT(65536), part = BUF_INIT(UNIT_NAME_MAX + 2);
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    buf_addf(&part, "/%s", unit);
    return buf_status(&part) == 0 && os_read_file(AT_FDCWD, path, &groups, NULL) == 0 && str_find(buf_str(&groups), buf_str(&part)) >= 0;
}

static int check_owner(const struct deploy_wanted *w, struct err *err)
{
    struct os_owner o;
    int r = os_port_owner(w->service.port, &o);
    if (r < 0)
        return err_sys(err, r, "cannot tell who listens on port %u", w->service.port);
    if (o.pid > 0 && !deploy_belongs(o.pid, w->unit))
        return err_set(err, -EADDRINUSE, "what answers on port %u is %s (pid %d), which is not of unit '%s'", w->service.port, o.name, (int)o.pid, w->unit);
    return 0;
}

/* ---- last words ---------------------------------------------------------------------------------------------------- */

static void last_words(const struct deploy *d, const struct deploy_wanted *w, const char *invocation, struct buf *out)
{
    base_autobuf struct buf log = BUF_INIT(LOG_MAX);
    deploy_journal(d, invocation, &log);
    struct str tail = buf_status(&log) < 0 ? STR("") : str_trim(buf_str(&log));
    if (tail.len > TAIL_MAX)
        tail = (struct str){tail.ptr + tail.len - TAIL_MAX, TAIL_MAX};
    enum engine_words words = engine_words_find(engine_find(w->service.runtime->engine), tail);
    if (words != ENGINE_WORDS_UNKNOWN)
        buf_addf(out, ": %s", engine_words_text(words));
    size_t from = tail.len;
    for (unsigned lines = 0; from > 0; from--)
        if (tail.ptr[from - 1] == '\n' && ++lines == TAIL_LINES)
            break;
    struct str rest = {tail.ptr + from, tail.len - from};
    while (rest.ptr && rest.len) {
        buf_add_c(out, "\n  ");
        buf_add_printable(out, str_split(&rest, '\n'), 200);
    }
}

int deploy_ended(struct deploy *d, const struct deploy_wanted *w, const char *what, struct err *err)
{
    base_autobuf struct buf words = BUF_INIT(ERR_TEXT_MAX);
    struct deploy_unit u;
    if (deploy_show(d, w->unit, &u, NULL) == 0)
        last_words(d, w, u.invocation, &words);
    return err_set(err, -ECANCELED, "%s%s", what, buf_status(&words) < 0 || !words.len ? "" : words.ptr);
}

/* ---- the proof -------------------------------------------------------------------------------------------------------- */

struct proof {
    struct deploy *d;
    const struct deploy_wanted *w;
    struct net_loop *loop;
    struct httpio_client *client;
    struct net_timer *watch;
    struct probe_ready *ready;
    struct probe_battery *battery;
    struct probe_door door;
    char key[FLEET_KEY_MAX + 1];
    char invocation[64];
    uint64_t restarts;
    int status;
    struct err *err;
};

static void end(struct proof *p, int status)
{
    p->status = status;
    p->ready = probe_ready_cancel(p->ready);
    p->battery = probe_battery_cancel(p->battery);
    net_loop_stop(p->loop);
}

static void on_battery(void *ctx, int status, const struct err *err)
{
    struct proof *p = ctx;
    p->battery = NULL;
    if (status < 0)
        *p->err = *err;
    end(p, status);
}

static int check_log(struct proof *p, struct err *err);

/* What only ours may be asked, since a process from elsewhere is believed in nothing. */
static void on_ready(void *ctx, int status, enum probe_step at, const struct err *err)
{
    struct proof *p = ctx;
    (void)at;
    p->ready = NULL;
    if (status < 0)
        *p->err = *err;
    else
        status = check_owner(p->w, p->err);
    if (status == 0)
        status = check_log(p, p->err);
    if (status == 0 && !(p->battery = probe_battery_start(p->loop, p->client, &p->w->service, &p->door, on_battery, p)))
        status = err_nomem(p->err);
    if (status < 0)
        end(p, status);
}

static void on_watch(void *ctx)
{
    struct proof *p = ctx;
    struct deploy_unit u;
    if (deploy_stop_asked()) {
        end(p, err_set(p->err, -EINTR, "interrupted"));
        return;
    }
    /* a manager that is busy is asked again; the proof has its own limit */
    if (deploy_show(p->d, p->w->unit, &u, NULL) < 0)
        return;
    bool again = *p->invocation && strcmp(u.invocation, p->invocation) != 0;
    if (!again && u.restarts == p->restarts && (u.active || u.activating))
        return;
    base_autobuf struct buf words = BUF_INIT(ERR_TEXT_MAX);
    /* of the process that ended: a new one has said nothing yet */
    last_words(p->d, p->w, p->invocation, &words);
    end(p, err_set(p->err, -ECANCELED, "its engine ended%s", buf_status(&words) < 0 || !words.len ? "" : words.ptr));
}

static int ask(struct proof *p, struct err *err)
{
    const struct deploy_wanted *w = p->w;
    struct probe_target target = {.service = &w->service, .paths = &w->paths};
    uint64_t bytes = 0;
    if (net_addr_ip(w->service.bind, w->service.port, &target.addr) < 0)
        return err_set(err, -EINVAL, "bind '%s' is no IP address", w->service.bind);
    if (w->service.key && fleet_key_read(w->service.key, p->key, err) < 0)
        return err->code;
    memcpy(target.key, p->key, sizeof target.key);
    p->door.addr = target.addr;
    p->door.key = p->key;
    if (w->service.model && store_payload_check(p->d->store, w->service.model, &bytes, err) < 0)
        return err->code;
    int r = net_loop_new(&p->loop, err);
    if (r < 0)
        return r;
    p->client = httpio_client_new(p->loop, &HTTPIO_CLIENT_DEFAULT);
    p->watch = net_timer_new(p->loop, on_watch, p);
    if (p->client && p->watch)
        p->ready = probe_ready_start(p->loop, p->client, &target, engine_start_limit_ms(engine_find(w->service.runtime->engine), bytes, 0), on_ready, p);
    if (!p->ready)
        return err_nomem(err);
    net_timer_start(p->watch, WATCH_MS, WATCH_MS);
    p->status = -EINPROGRESS;
    net_loop_run(p->loop);
    return p->status;
}

/* What no path tells: devices, KV types, and anything that was asked for and silently not done. */
static int check_log(struct proof *p, struct err *err)
{
    base_autobuf struct buf log = BUF_INIT(LOG_MAX);
    struct deploy_unit u;
    int r = deploy_show(p->d, p->w->unit, &u, err);
    if (r < 0)
        return r;
    deploy_journal(p->d, u.invocation, &log);
    return buf_status(&log) < 0 ? 0 : engine_log_check(&p->w->service, buf_str(&log), err);
}

int deploy_prove(struct deploy *d, const struct deploy_wanted *w, struct err *err)
{
    struct err ignored;
    struct proof p = {.d = d, .w = w, .err = err ? err : &ignored};
    struct deploy_unit u;
    err = p.err;
    int r = deploy_show(d, w->unit, &u, err);
    if (r < 0)
        return r;
    snprintf(p.invocation, sizeof p.invocation, "%s", u.invocation);
    p.restarts = u.restarts;
    event_say(d->sink, EVENT_INFO, w->name, "is being proven");
    r = ask(&p, err);
    p.watch = net_timer_close(p.watch);
    p.client = httpio_client_free(p.client);
    p.loop = net_loop_free(p.loop);
    explicit_bzero(p.key, sizeof p.key);
    return r;
}

/* ---- coming to rest ----------------------------------------------------------------------------------------------------- */

static void on_idle(void *ctx, int status)
{
    (void)status;
    net_loop_stop(ctx);
}

void deploy_drain(const struct fleet_service *s, uint64_t limit_ms)
{
    struct probe_target target = {.service = s};
    if (s->key && fleet_key_read(s->key, target.key, NULL) < 0)
        return; /* without it the engine does not say whether it rests: there is nothing to wait for */
    struct net_loop *loop = NULL;
    if (net_addr_ip(s->bind, s->port, &target.addr) < 0 || net_loop_new(&loop, NULL) < 0)
        return;
    struct httpio_client *client = httpio_client_new(loop, &HTTPIO_CLIENT_DEFAULT);
    struct probe_idle *idle = client ? probe_idle_start(loop, client, &target, limit_ms, on_idle, loop) : NULL;
    if (idle)
        net_loop_run(loop);
    httpio_client_free(client);
    net_loop_free(loop);
}
