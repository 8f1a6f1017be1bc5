/* SPDX-License-Identifier: MIT
 *
 * The order of things. What is retired goes first, since it may hold what the others need; then one service after the other: stop, wait for the port, write the file, start, prove. A failure, or a person's Ctrl-C, turns around:
 * everything that was touched is put back in the opposite order, started and proven by the version before.
 *
 * A file is replaced by one rename and never missing in between, and a unit stays enabled, so that a machine that loses its power in the middle comes up with the old or the new service, and the next deploy finishes.
 */
#include <errno.h>
#include <fcntl.h>
#include <ledger/ledger.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "deploy_int.h"

#define STOP_MS 180000     /* of a stop, which the unit itself limits to less, and a start, which waits for the process alone */
#define RELOAD_MS 60000    /* of what systemd does by itself; some generators are slow */
#define MEMORY_STEP_MS 500 /* between two looks at what is free */

static volatile sig_atomic_t stop_asked;
static bool turning; /* what was asked to stop is on its way back, which is gone to its end */

static void on_signal(int sig)
{
    (void)sig;
    stop_asked = 1;
}

bool deploy_stop_asked(void)
{
    return stop_asked != 0 && !turning;
}

/* A deploy outlives the terminal or the ssh session that it came from; Ctrl-C and TERM turn it around. */
static void take_signals(struct sigaction before[3], bool on)
{
    static const int signals[3] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < BASE_COUNT(signals); i++) {
        struct sigaction a = {.sa_flags = SA_RESTART};
        a.sa_handler = on_signal;
        if (signals[i] == SIGHUP)
            a.sa_handler = SIG_IGN;
        (void)sigaction(signals[i], on ? &a : &before[i], on ? &before[i] : NULL);
    }
    if (on)
        stop_asked = 0;
}

/* ---- the router ---------------------------------------------------------------------------------------------------- */

const char *deploy_word_text(enum deploy_word w)
{
    static const char *const texts[] = {[DEPLOY_DRAIN] = "drain", [DEPLOY_RESUME] = "resume", [DEPLOY_ASK] = "ask"};
    return texts[w];
}

static int tell(struct deploy *d, enum deploy_word what, const char *service, struct err *err)
{
    static const char *const failed[] = {[DEPLOY_DRAIN] = "the router does not let go of it", [DEPLOY_RESUME] = "the router does not take it back", [DEPLOY_ASK] = "through the router"};
    if (!d->router)
        return 0;
    int r = d->router->tell(d->router->ctx, what, service, err);
    return r < 0 && r != -ENOENT ? err_prefix(err, "%s", failed[what]) : 0;
}

/* Where it must not hold up what is more: a service that is to run again, a file that is to go. */
static void tell_gently(struct deploy *d, enum deploy_word what, const char *service)
{
    struct err why;
    if (tell(d, what, service, &why) < 0)
        event_say(d->sink, EVENT_WARN, service, "%s", why.text);
}

/* ---- steps ---------------------------------------------------------------------------------------------------- */

int deploy_stop_unit(struct deploy *d, const char *unit, struct err *err)
{
    const char *const words[] = {"stop", "--", unit, NULL};
    return deploy_systemctl(d, words, STOP_MS, err);
}

static int reload(struct deploy *d, struct err *err)
{
    static const char *const words[] = {"daemon-reload", NULL};
    return deploy_systemctl(d, words, RELOAD_MS, err);
}

static bool is_container(const char *path)
{
    return str_ends(str_of(path), STR(".container"));
}

/* A quadlet's unit is made by a generator, which cannot be enabled: its file says when it starts. */
static int enable(struct deploy *d, const char *path, const char *unit, bool on, struct err *err)
{
    const char *const words[] = {on ? "enable" : "disable", "--quiet", "--", unit, NULL};
    return is_container(path) ? 0 : deploy_systemctl(d, words, RELOAD_MS, err);
}

int deploy_start_unit(struct deploy *d, const char *unit, struct err *err)
{
    const char *const reset[] = {"reset-failed", "--", unit, NULL}, *const words[] = {"start", "--", unit, NULL};
    base_ignore(deploy_systemctl(d, reset, RELOAD_MS, NULL)); /* fails when nothing is to be forgotten */
    return deploy_systemctl(d, words, STOP_MS, err);
}

static int write_file(const char *path, const char *text, mode_t mode, struct err *err)
{
    base_autobuf struct buf dir = BUF_INIT(DEPLOY_PATH_MAX);
    const char *slash = strrchr(path, '/');
    buf_add(&dir, path, (size_t)(slash - path));
    if (buf_status(&dir) < 0)
        return err_nomem(err);
    int r = os_make_dirs(dir.ptr, 0755, err);
    if (r < 0)
        return r;
    os_autoclose int fd = os_open_dir(dir.ptr, err);
    return fd < 0 ? fd : os_write_atomic(fd, slash + 1, text, strlen(text), mode, err);
}

static int remove_file(const char *path, struct err *err)
{
    return unlink(path) < 0 && errno != ENOENT ? err_sys(err, -errno, "cannot remove '%s'", path) : 0;
}

/* The health check lies beside its quadlet. */
static int put_health(struct deploy *d, const char *path, const char *text, struct err *err)
{
    if (!is_container(path))
        return 0;
    const char *to = arena_printf(d->arena, "%.*s.health", (int)(strlen(path) - strlen(".container")), path);
    if (!to)
        return err_nomem(err);
    return text && *text ? write_file(to, text, 0755, err) : remove_file(to, err);
}

/* What the last process held comes back when its driver is done with it. */
static int wait_memory(struct deploy *d, struct err *err)
{
    for (unsigned waited = 0;; waited += MEMORY_STEP_MS) {
        int r = deploy_fit(d, err);
        if (r != -ENOSPC || waited >= DEPLOY_MEMORY_MS || deploy_stop_asked())
            return r;
        const struct timespec t = {.tv_nsec = MEMORY_STEP_MS * 1000000L};
        (void)nanosleep(&t, NULL);
    }
}

/* ---- forth ------------------------------------------------------------------------------------------------------ */

int deploy_install(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err)
{
    int r = 0;
    if (i->old_text)
        r = deploy_trash(d, stamp, i->old_path, i->unit, err);
    if (r == 0 && i->old_text && strcmp(i->old_path, i->path) != 0) {
        r = enable(d, i->old_path, i->unit, false, err);
        if (r == 0)
            r = put_health(d, i->old_path, NULL, err);
        if (r == 0)
            r = remove_file(i->old_path, err);
    }
    if (r == 0)
        r = put_health(d, i->path, i->health, err);
    if (r == 0)
        r = write_file(i->path, i->text, 0644, err);
    if (r == 0)
        r = reload(d, err);
    return r == 0 ? enable(d, i->path, i->unit, true, err) : r;
}

static int bring(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err)
{
    const struct deploy_wanted *w = deploy_wanted_of(d, i);
    int r = 0;
    event_say(d->sink, EVENT_INFO, i->service, "%s: %s", deploy_action_text(i->action), i->reason);
    if (i->action == DEPLOY_PROVE)
        return deploy_prove(d, w, err);
    if (i->was_active)
        r = deploy_stop_unit(d, i->unit, err);
    if (r == 0)
        r = deploy_wait_port(&w->service, err);
    if (r == 0)
        r = deploy_install(d, i, stamp, err);
    if (r == 0 && i->was_active)
        r = wait_memory(d, err);
    if (r < 0)
        return r;
    return deploy_start_unit(d, i->unit, err) < 0 ? deploy_ended(d, w, "it did not start", err) : deploy_prove(d, w, err);
}

/* Back among those that clients are sent to, and asked as they ask. */
static int return_to_clients(struct deploy *d, const struct deploy_item *i, struct err *err)
{
    int r = tell(d, DEPLOY_RESUME, i->service, err);
    return r < 0 ? r : tell(d, DEPLOY_ASK, i->service, err);
}

static int retire(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err)
{
    event_say(d->sink, EVENT_INFO, i->service, "retire: %s; it is kept in '%s/trash/%s'", i->reason, d->folder, stamp);
    /* copied first: disable can delete a file that is a link */
    int r = deploy_trash(d, stamp, i->old_path, i->unit, err);
    if (r == 0)
        r = deploy_stop_unit(d, i->unit, err);
    if (r == 0)
        r = enable(d, i->old_path, i->unit, false, err);
    if (r == 0)
        r = put_health(d, i->old_path, NULL, err);
    if (r == 0)
        r = remove_file(i->old_path, err);
    return r == 0 ? reload(d, err) : r;
}

/* ---- and back ------------------------------------------------------------------------------------------------------ */

static int put_back(struct deploy *d, const struct deploy_item *i, struct err *err)
{
    bool other = strcmp(i->old_path, i->path) != 0;
    if (!i->router)
        tell_gently(d, DEPLOY_DRAIN, i->service);
    event_say(d->sink, EVENT_WARN, i->service, "%s", i->old_text ? "the version before is entered again" : "is taken away again");
    int r = deploy_stop_unit(d, i->unit, err);
    if (r == 0 && (other || !i->old_text)) {
        r = enable(d, i->path, i->unit, false, err);
        if (r == 0)
            r = put_health(d, i->path, NULL, err);
        if (r == 0)
            r = remove_file(i->path, err);
    }
    if (r == 0 && i->old_text)
        r = put_health(d, i->old_path, i->old_health, err);
    if (r == 0 && i->old_text)
        r = write_file(i->old_path, i->old_text, 0644, err);
    if (r == 0)
        r = reload(d, err);
    if (r == 0 && i->old_text)
        r = enable(d, i->old_path, i->unit, true, err);
    if (r == 0 && i->declared)
        r = deploy_wait_port(i->declared, err);
    return r == 0 && i->old_text && i->was_active ? deploy_start_unit(d, i->unit, err) : r;
}

/* Proves what runs again by what the version before declared of it. Where nothing was declared, as after the first deploy, that it runs is all that can be said. */
static int prove_back(struct deploy *d, struct deploy *before, const struct deploy_item *i, struct err *err)
{
    struct deploy_unit u;
    for (size_t k = 0; before && k < before->n_wanted; k++)
        if (strcmp(before->wanted[k].name, i->service) == 0 && strcmp(before->wanted[k].text, i->old_text) == 0)
            return deploy_prove(before, &before->wanted[k], err);
    int r = deploy_show(d, i->unit, &u, err);
    return r < 0 || u.active ? r : err_set(err, -EIO, "it does not run");
}

static struct deploy *version_before(struct deploy *d)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    struct deploy *before = NULL;
    if (deploy_version_path(d->dirs, d->fleet->name, 0, &path, NULL) < 0)
        return NULL;
    const struct deploy_options o = {.fleet_path = path.ptr, .host = d->host->name, .sink = d->sink};
    return deploy_open(&o, d->dirs, &before, NULL) < 0 ? NULL : before;
}

static bool answers_for(const struct fleet_endpoint *e, const char *service)
{
    for (size_t i = 0; i < e->n_services; i++)
        if (strcmp(e->services[i]->name, service) == 0)
            return true;
    return false;
}

/* Whether clients of an endpoint would be left with neither. */
static bool are_replicas(const struct deploy *d, const char *a, const char *b)
{
    for (size_t i = 0; i < d->fleet->n_endpoints; i++)
        if (answers_for(&d->fleet->endpoints[i], a) && answers_for(&d->fleet->endpoints[i], b))
            return true;
    return false;
}

static int undo(struct deploy *d, struct deploy *before, const struct deploy_item *i, struct err *err)
{
    if (i->router) {
        int e = deploy_front_restore(d, i, err);
        return e < 0 || i->action == DEPLOY_RELOAD ? e : put_back(d, i, err);
    }
    int r = put_back(d, i, err);
    if (r == 0 && i->old_text && i->was_active)
        r = prove_back(d, before, i, err);
    if (r == 0 && i->old_text && i->was_active)
        tell_gently(d, DEPLOY_RESUME, i->service);
    return r;
}

/* Undoes items [0, n) in the opposite order. Goes on after a failure: each service that can run again should. But one that came up alone among its replicas stays: what is proven is not given up for what may not come. */
static int way_back(struct deploy *d, const struct deploy_item *const *touched, size_t n, struct buf *said)
{
    struct deploy *before = version_before(d);
    const struct deploy_item *lost = NULL;
    struct err why;
    int bad = 0;
    turning = true;
    for (size_t k = n; k-- > 0;) {
        const struct deploy_item *i = touched[k];
        if (i->action == DEPLOY_PROVE)
            continue;
        bool alone = lost && i->action != DEPLOY_RETIRE && are_replicas(d, i->service, lost->service);
        int r = alone ? err_set(&why, -EBUSY, "it stays as it was deployed, since '%s' does not run again", lost->service) : undo(d, before, i, &why);
        if (r < 0) {
            buf_addf(said, "%s'%s' is not as it was: %s", said->len ? "; " : "", i->service, why.text);
            bad = r;
            lost = lost ? lost : i;
        }
    }
    turning = false;
    deploy_free(before);
    return bad;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------- */

static void note(struct deploy *d, const char *what, const char *detail)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX), subject = BUF_INIT(256);
    struct ledger *l = NULL;
    struct err err;
    buf_addf(&path, "%s/ledger.db", d->dirs->state);
    buf_addf(&subject, "fleet %s", d->fleet->name);
    const struct ledger_event e = {.at_us = clk_system.real_us(clk_system.ctx), .subject = subject.ptr, .what = what, .detail = detail};
    if (buf_status(&path) < 0 || buf_status(&subject) < 0 || ledger_open(path.ptr, &l, &err) < 0 || ledger_note(l, &e, NULL, &err) < 0)
        event_say(d->sink, EVENT_WARN, d->fleet->name, "the history has not got this deploy: %s", buf_status(&path) < 0 ? "out of memory" : err.text);
    ledger_free(l);
}

static void stamp_now(char out[32])
{
    char text[CLK_RFC3339];
    size_t n = 0;
    for (const char *p = clk_rfc3339(clk_system.real_us(clk_system.ctx), text); *p && n < 31; p++)
        if (*p != '-' && *p != ':')
            out[n++] = *p;
    out[n] = '\0';
}

/* One item, once the router has let go of what runs: before that nothing of it is touched. */
static int do_item(struct deploy *d, const struct deploy_item *item, const char *stamp, const struct deploy_item **touched, size_t *n, struct err *err)
{
    bool retiring = item->action == DEPLOY_RETIRE;
    int r = retiring || item->router || !item->was_active || item->action == DEPLOY_PROVE ? 0 : tell(d, DEPLOY_DRAIN, item->service, err);
    if (r < 0) {
        tell_gently(d, DEPLOY_RESUME, item->service);
        return r;
    }
    if (retiring)
        tell_gently(d, DEPLOY_DRAIN, item->service);
    touched[(*n)++] = item;
    r = retiring ? retire(d, item, stamp, err) : item->router ? deploy_front_bring(d, item, stamp, err) : bring(d, item, stamp, err);
    if (r == 0 && !retiring && !item->router)
        r = return_to_clients(d, item, err);
    return r == 0 && deploy_stop_asked() ? err_set(err, -EINTR, "interrupted") : r;
}

static int forth(struct deploy *d, const struct deploy_plan *p, const struct deploy_item **touched, size_t *n, struct deploy_outcome *out, struct err *err)
{
    char stamp[32];
    int r = 0;
    stamp_now(stamp);
    for (int retiring = 1; r == 0 && retiring >= 0; retiring--)
        for (size_t i = 0; r == 0 && i < p->n; i++) {
            const struct deploy_item *item = &p->items[i];
            if (item->action == DEPLOY_KEEP || (item->action == DEPLOY_RETIRE) != (retiring == 1))
                continue;
            r = do_item(d, item, stamp, touched, n, err);
            if (r < 0)
                err_prefix(err, "%s '%s'", deploy_action_text(item->action), item->service);
            else if (retiring)
                out->retired++;
            else if (item->action == DEPLOY_PROVE)
                out->proven++;
            else
                out->started++;
            if (r == 0 && !retiring && !item->router)
                deploy_collectives_record(d, item->declared);
        }
    return r;
}

/* How the way back of items that were touched ended. What was only proven stayed as it was. */
static const char *back_text(const struct deploy_item *const *touched, size_t n)
{
    size_t changed = 0, before = 0;
    for (size_t i = 0; i < n; i++)
        if (touched[i]->action != DEPLOY_PROVE) {
            changed++;
            before += touched[i]->old_text != NULL;
        }
    return !changed ? "nothing was touched" : before ? "what was there before runs again" : "nothing of it is left";
}

static int turn_around(struct deploy *d, const struct deploy_item *const *touched, size_t n, struct deploy_outcome *out, struct err *err)
{
    base_autobuf struct buf said = BUF_INIT(ERR_TEXT_MAX), both = BUF_INIT((size_t)2 * ERR_TEXT_MAX);
    struct str last = str_of(err->text), head = str_split(&last, '\n'); /* an engine's last words follow in lines of their own */
    int code = err->code;
    event_say(d->sink, EVENT_ERROR, d->host->name, STR_FMT, STR_ARG(head));
    out->rolled_back = way_back(d, touched, n, &said) == 0;
    buf_addf(&both, STR_FMT "; %s", STR_ARG(head), out->rolled_back ? back_text(touched, n) : said.ptr ? said.ptr : "the way back failed");
    if (last.len)
        buf_addf(&both, "\n" STR_FMT, STR_ARG(last));
    note(d, "failed", buf_status(&both) < 0 ? err->text : both.ptr);
    return buf_status(&both) < 0 ? code : err_set(err, code, "%s", both.ptr);
}

static int succeed(struct deploy *d, const struct deploy_plan *p, struct deploy_outcome *out, struct err *err)
{
    base_autobuf struct buf detail = BUF_INIT(4096);
    int r = deploy_version_keep(d, &out->version, err);
    if (r < 0)
        return r;
    buf_addf(&detail, "version %llu by %s: %zu started, ", (unsigned long long)out->version, d->who ? d->who : "-", out->started);
    if (out->proven)
        buf_addf(&detail, "%zu proven again, ", out->proven);
    buf_addf(&detail, "%zu retired, %zu kept", out->retired, out->kept);
    if (deploy_plan_todo(p) && buf_status(&detail) == 0)
        note(d, "deployed", detail.ptr);
    deploy_prune_bin(d);
    deploy_prune_trash(d);
    return 0;
}

static int apply(struct deploy *d, const struct deploy_plan *p, struct deploy_outcome *out, struct err *err)
{
    const struct deploy_item **touched = arena_alloc(d->arena, p->n + 1, sizeof(const struct deploy_item *));
    size_t n = 0;
    if (!touched)
        return err_nomem(err);
    int r = deploy_self(d, err);
    if (r == 0)
        r = deploy_mark(d, true, err);
    if (r < 0)
        return r;
    r = forth(d, p, touched, &n, out, err);
    if (r < 0)
        r = turn_around(d, touched, n, out, err);
    else
        r = succeed(d, p, out, err);
    /* a way back that failed stays marked, so that the next deploy proves everything; so does what an earlier one left and this one could not prove */
    if (r == 0 || (out->rolled_back && !p->interrupted)) {
        struct err why;
        if (deploy_mark(d, false, &why) < 0)
            event_say(d->sink, EVENT_WARN, d->host->name, "%s", why.text);
    }
    return r;
}

int deploy_apply(struct deploy *d, const struct deploy_plan *p, struct deploy_outcome *ret, struct err *err)
{
    struct err ignored;
    struct sigaction before[3];
    *ret = (struct deploy_outcome){.kept = p->n - deploy_plan_todo(p)};
    err = err ? err : &ignored;
    if (deploy_plan_todo(p) == 0 && !p->interrupted)
        return succeed(d, p, ret, err);
    take_signals(before, true);
    int r = apply(d, p, ret, err);
    take_signals(before, false);
    return r;
}
