/* SPDX-License-Identifier: MIT
 *
 * The supervisor is replaced by another build of berth without its engines noticing: it writes down what it holds, as JSON in a memfd, and runs the program at its own path in its place. The process
 * stays the same, so that engines stay its children; it inherits the fleet's lock, pidfds, logs, listening sockets and the channels of the router's workers. Then it replaces the router's worker too,
 * which finishes its streams.
 *
 * The other program is tried first: it must understand what is written, and the fleet file must still declare what runs. From then on there is no way back, and nothing is left to fail but memory: the file's text
 * that was tried goes along, whatever becomes of the file meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "up_int.h"

#define STATE_VERSION 1
#define STATE_MAX ((size_t)8 << 20)
#define TRY_MS 20000 /* the other program reads two files */
#define WORKERS_MAX 64 /* routers that finish what they have: one for each upgrade or move within an hour */
#define KEPT_MAX (FLEET_SERVICES_MAX * 4 + UP_SOCKETS_MAX + 64)

/* Descriptors that the next program gets. */
struct kept {
    int fds[KEPT_MAX];
    size_t n;
    int own[WORKERS_MAX]; /* of these, made for it */
    size_t n_own;
};

static void kept_free(struct kept *k)
{
    while (k && k->n_own > 0)
        (void)close(k->own[--k->n_own]);
    free(k);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void put_fd(struct json_out *o, const char *key, int fd, struct kept *k)
{
    if (fd < 0 || k->n == KEPT_MAX)
        return;
    json_out_u64(o, key, (uint64_t)fd);
    k->fds[k->n++] = fd;
}

static int put_service(struct json_out *o, const struct up_service *s, struct kept *k, struct err *err)
{
    struct run_handover h;
    if (s->removed || run_hand_over(s->run, &h) < 0)
        return err_set(err, -EAGAIN, "service '%s' is being started or stopped; try again when it is at rest", s->service->name);
    if (up_service_pending(s))
        return err_set(err, -EAGAIN, "service '%s' is pending a restart; 'berth restart %s' first", s->service->name, s->service->name);
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", s->service->name);
    json_out_u64(o, "hash", s->service->declared_hash);
    json_out_u64(o, "pid", (uint64_t)h.pid);
    json_out_u64(o, "engine_pid", (uint64_t)h.engine_pid);
    put_fd(o, "pidfd", h.pidfd, k);
    put_fd(o, "engine_pidfd", h.engine_pidfd, k);
    put_fd(o, "info_fd", h.info_fd, k);
    put_fd(o, "log_fd", h.log_fd, k);
    json_out_u64(o, "generation", h.generation);
    json_out_u64(o, "restarts", h.restarts);
    json_out_u64(o, "since_ms", h.since_ms);
    json_out_u64(o, "ready_ms", h.ready_ms);
    json_out_u64(o, "took_ms", h.took_ms);
    json_out_bool(o, "start", h.start);
    if (h.failed.ptr)
        json_out_str(o, "failed", h.failed);
    json_out_bool(o, "drained", s->drained);
    json_out_end(o);
    return 0;
}

static int put_router(struct json_out *o, const struct up *u, struct kept *k, struct err *err)
{
    const struct up_router *r = &u->router;
    int rc = 0;
    json_out_obj(o, "router");
    json_out_bool(o, "passed", r->passed);
    json_out_u64(o, "restarts", r->restarts);
    json_out_str(o, "certificate", buf_str(&r->pair.certificate));
    json_out_str(o, "certificate_key", buf_str(&r->pair.key));
    json_out_str(o, "keys", buf_str(&u->keys.read.text));
    json_out_cstr(o, "own_key", u->keys.own);
    json_out_arr(o, "listen");
    for (size_t i = 0; i < r->n_listen; i++)
        put_fd(o, NULL, r->listen_fds[i], k);
    json_out_end(o);
    json_out_arr(o, "workers");
    for (const struct up_worker *w = r->workers; rc == 0 && w; w = w->next) {
        int fd = k->n_own < WORKERS_MAX ? net_stream_dup(w->channel) : -EAGAIN;
        if (fd < 0) {
            rc = err_set(err, -EAGAIN, "the router has not taken all that it was told; try again");
            break;
        }
        json_out_obj(o, NULL);
        json_out_u64(o, "pid", (uint64_t)w->proc.pid);
        put_fd(o, "pidfd", w->proc.pidfd, k);
        put_fd(o, "channel_fd", fd, k);
        k->own[k->n_own++] = fd;
        json_out_bool(o, "accepts", w->accepts);
        json_out_bool(o, "leaving", w->leaving);
        json_out_str(o, "line", buf_str(&w->line));
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    return rc;
}

static int put_all(struct json_out *o, const struct up *u, struct kept *k, struct err *err)
{
    int rc = 0;
    json_out_obj(o, NULL);
    json_out_u64(o, "version", STATE_VERSION);
    json_out_cstr(o, "file", u->o->fleet_path);
    json_out_str(o, "text", buf_str(&u->upgrade.file));
    json_out_cstr(o, "program", u->o->program);
    json_out_cstr(o, "host", u->o->host);
    json_out_cstr(o, "fleet", u->fleet->name);
    json_out_bool(o, "background", u->o->background);
    json_out_bool(o, "offline", u->o->offline);
    json_out_bool(o, "router_only", u->o->router_only);
    json_out_u64(o, "began_ms", u->began_ms);
    json_out_u64(o, "reloads", u->reload.done);
    json_out_u64(o, "upgrades", u->upgrade.done + 1);
    put_fd(o, "lock_fd", u->lock_fd, k);
    put_fd(o, "state_lock_fd", u->state_fd, k);
    put_fd(o, "store_fd", u->store_fd, k);
    put_fd(o, "control_fd", u->control.kept_fd, k);
    put_fd(o, "admin_fd", u->control.kept_admin_fd, k);
    json_out_arr(o, "services");
    for (size_t i = 0; rc == 0 && i < u->n_services; i++)
        rc = put_service(o, u->services[i], k, err);
    json_out_end(o);
    up_watch_hand_over(u, o);
    if (rc == 0)
        rc = put_router(o, u, k, err);
    json_out_end(o);
    return rc;
}

/* The state in a memfd; the value is its descriptor. */
static int write_state(const struct up *u, struct kept *k, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(STATE_MAX);
    struct json_out *o = json_out_new();
    if (!o)
        return err_nomem(err);
    int rc = put_all(o, u, k, err);
    if (rc == 0 && json_out_finish(o, false, &b) < 0)
        rc = err_nomem(err);
    json_out_free(o);
    if (rc < 0)
        return rc;
    int fd = memfd_create("berth-state", MFD_CLOEXEC);
    if (fd < 0)
        return err_sys(err, -errno, "cannot make a memfd");
    rc = os_write_all(fd, b.ptr, b.len, err);
    explicit_bzero(b.ptr, b.cap); /* a certificate's key is in it */
    if (rc == 0 && lseek(fd, 0, SEEK_SET) < 0)
        rc = err_sys(err, -errno, "cannot rewind the state");
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

/* The other program's word that it can go on from here. */
static int try_program(const struct up *u, int state, struct err *err)
{
    const char *argv[] = {u->o->program, "_up", "--check", "--state-fd", "3", NULL};
    struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .keep_fds = &state, .n_keep_fds = 1, .death_signal = SIGKILL};
    int rc = os_run_ok(&s, TRY_MS, NULL, err);
    if (rc < 0)
        return err_prefix(err, "'%s' cannot take over", u->o->program);
    return lseek(state, 0, SEEK_SET) < 0 ? err_sys(err, -errno, "cannot rewind the state") : 0;
}

int up_upgrade_ask(struct up *u, struct err *err)
{
    int rc = up_may_change(u, err);
    if (rc < 0)
        return rc;
    if (u->router.wanted && !up_router_accepts(u))
        return err_set(err, -EAGAIN, "the router is not serving just now");
    buf_clear(&u->upgrade.file);
    rc = os_read_file(AT_FDCWD, u->o->fleet_path, &u->upgrade.file, err);
    if (rc < 0)
        return rc;
    struct kept *k = calloc(1, sizeof(*k));
    if (!k)
        return err_nomem(err);
    int fd = write_state(u, k, err);
    rc = fd < 0 ? fd : try_program(u, fd, err);
    os_closep(&fd);
    kept_free(k);
    if (rc == 0)
        buf_clear(&u->upgrade.error);
    return rc;
}

static void keep_open(const struct kept *k, int state, bool on)
{
    for (size_t i = 0; i <= k->n; i++)
        (void)fcntl(i < k->n ? k->fds[i] : state, F_SETFD, on ? 0 : FD_CLOEXEC);
}

void up_upgrade_exec(struct up *u)
{
    struct err err;
    struct kept *k = calloc(1, sizeof(*k));
    int fd = k ? write_state(u, k, &err) : err_nomem(&err);
    u->upgrade.wanted = false;
    if (fd >= 0) {
        char number[12];
        sigset_t signals, before;
        snprintf(number, sizeof(number), "%d", fd);
        char *const argv[] = {(char *)u->o->program, (char *)"_up", (char *)"--state-fd", number, NULL};
        /* What comes meanwhile waits until the other one listens. */
        up_signals(&signals);
        (void)sigprocmask(SIG_BLOCK, &signals, &before);
        (void)fflush(NULL);
        base_ignore(os_notify_reloading());
        keep_open(k, fd, true);
        (void)execv(argv[0], argv);
        int failed = errno;
        keep_open(k, fd, false);
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        os_closep(&fd);
        err_sys(&err, -failed, "cannot run '%s'", u->o->program);
        up_manager_tell(u, "READY=1\n");
    }
    buf_add_c(&u->upgrade.error, err.text); /* for who asked */
    up_say(u, EVENT_ERROR, "upgrade", "%s; this one goes on", err.text);
    kept_free(k);
}

/* ---- reading: in the program that takes over ----------------------------------------------------------------- */

static int bad(struct err *err, const char *what)
{
    return err_set(err, -EBADMSG, "the state that was handed over is not understood: %s", what);
}

static bool get_fd(json_val v, const char *key, int *ret)
{
    uint64_t n;
    *ret = -1;
    if (!json_get(v, key))
        return true;
    if (!json_u64(json_get(v, key), &n) || n > INT32_MAX)
        return false;
    *ret = (int)n;
    return true;
}

/* An inherited one, which is not passed on by itself. */
static int take_fd(json_val v, const char *key)
{
    int fd;
    if (!get_fd(v, key, &fd) || fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -1;
    return fd;
}

int up_resume_fd(const struct up *u, const char *key)
{
    return take_fd(json_root(u->upgrade.state), key);
}

static json_val find_named(const struct up *u, const char *key, const char *wanted)
{
    json_val list = json_get(json_root(u->upgrade.state), key);
    for (size_t i = 0; i < json_count(list); i++) {
        struct str name;
        if (json_str(json_get(json_at(list, i), "name"), &name) && str_eq_c(name, wanted))
            return json_at(list, i);
    }
    return NULL;
}

json_val up_resume_watch(const struct up *u, const char *name)
{
    return find_named(u, "watches", name);
}

static bool read_handover(json_val v, struct run_handover *h)
{
    uint64_t pid = 0, engine = 0;
    *h = (struct run_handover){0};
    bool ok = json_u64(json_get(v, "pid"), &pid) && pid <= INT32_MAX && json_u64(json_get(v, "engine_pid"), &engine) && engine <= INT32_MAX &&
              json_u64(json_get(v, "generation"), &h->generation) && json_u64(json_get(v, "restarts"), &h->restarts) && json_u64(json_get(v, "since_ms"), &h->since_ms) &&
              json_u64(json_get(v, "ready_ms"), &h->ready_ms) && json_u64(json_get(v, "took_ms"), &h->took_ms) && json_bool(json_get(v, "start"), &h->start) &&
              get_fd(v, "pidfd", &h->pidfd) && get_fd(v, "engine_pidfd", &h->engine_pidfd) && get_fd(v, "info_fd", &h->info_fd) && get_fd(v, "log_fd", &h->log_fd);
    h->pid = (pid_t)pid;
    h->engine_pid = (pid_t)engine;
    (void)json_str(json_get(v, "failed"), &h->failed); /* there when it has failed */
    return ok && (pid == 0 || h->pidfd >= 0);
}

/* The state must be whole, and the fleet file must declare what runs: else it would be stopped. */
static int check_state(json_val root, const struct fleet *f, bool router_only, struct err *err)
{
    uint64_t version;
    struct str name;
    json_val list = json_get(root, "services");
    if (!json_u64(json_get(root, "version"), &version) || version != STATE_VERSION)
        return bad(err, "another version of it");
    if (!json_str(json_get(root, "fleet"), &name) || !str_eq_c(name, f->name))
        return err_set(err, -EINVAL, "%s: its name is '%s', which is not the fleet that is up", f->file, f->name);
    for (size_t i = 0; i < json_count(list); i++) {
        struct run_handover h;
        uint64_t hash;
        json_val v = json_at(list, i);
        if (!json_str(json_get(v, "name"), &name) || !json_u64(json_get(v, "hash"), &hash) || !read_handover(v, &h))
            return bad(err, "a service is not complete");
        base_autofree char *text = str_dup(name);
        const struct fleet_service *s = text ? fleet_service_find(f, text) : NULL;
        if (!s || router_only || !fleet_service_local(s) || s->declared_hash != hash)
            return err_set(err, -EINVAL, "%s: service '" STR_FMT "' is not declared as it runs; 'berth reload' and 'berth restart' first", f->file, STR_ARG(name));
    }
    return 0;
}

int up_resume_service(struct up_service *s, struct err *err)
{
    struct run_handover h;
    json_val v = find_named(s->up, "services", s->service->name);
    if (!read_handover(v, &h)) {
        s->start = true; /* new in the file */
        return 0;
    }
    const int fds[] = {h.pidfd, h.engine_pidfd, h.info_fd, h.log_fd};
    for (size_t i = 0; i < BASE_COUNT(fds); i++)
        if (fds[i] >= 0)
            (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    (void)json_bool(json_get(v, "drained"), &s->drained);
    s->start = h.start;
    return run_take_over(s->run, &h, err);
}

int up_resume_router(struct up *u, struct err *err)
{
    json_val r = json_get(json_root(u->upgrade.state), "router"), list = json_get(r, "workers");
    int rc = 0;
    (void)json_u64(json_get(r, "restarts"), &u->router.restarts);
    for (size_t i = json_count(list); rc == 0 && i-- > 0;) { /* each comes before those that are there */
        json_val v = json_at(list, i);
        struct up_worker *w;
        struct str line;
        uint64_t pid = 0;
        int channel = take_fd(v, "channel_fd");
        struct os_proc proc = {.pidfd = take_fd(v, "pidfd")};
        if (!json_u64(json_get(v, "pid"), &pid) || channel < 0 || proc.pidfd < 0)
            return bad(err, "a router's process is not complete");
        proc.pid = (pid_t)pid;
        rc = up_worker_adopt(u, &proc, channel, &w, err);
        if (rc < 0)
            break;
        (void)json_bool(json_get(v, "accepts"), &w->accepts);
        (void)json_bool(json_get(v, "leaving"), &w->leaving);
        if (json_str(json_get(v, "line"), &line))
            buf_add_str(&w->line, line);
    }
    return rc;
}

size_t up_resume_sockets(struct up *u)
{
    json_val r = json_get(json_root(u->upgrade.state), "router"), list = json_get(r, "listen");
    size_t n = 0;
    for (size_t i = 0; i < json_count(list) && n < UP_SOCKETS_MAX; i++) {
        uint64_t fd;
        if (json_u64(json_at(list, i), &fd) && fd <= INT32_MAX && fcntl((int)fd, F_SETFD, FD_CLOEXEC) == 0)
            u->router.listen_fds[n++] = (int)fd;
    }
    (void)json_bool(json_get(r, "passed"), &u->router.passed);
    return n;
}

static int take_text(const struct up *u, const char *key, struct buf *ret, struct err *err)
{
    struct str text;
    if (!json_str(json_get(json_get(json_root(u->upgrade.state), "router"), key), &text) || text.len == 0)
        return -ENOENT;
    buf_add_str(ret, text);
    return buf_status(ret) < 0 ? err_nomem(err) : 0;
}

int up_resume_pair(struct up *u, struct err *err)
{
    struct proxy_pair p = {.certificate = BUF_INIT(NET_PEM_MAX), .key = BUF_INIT(NET_PEM_MAX)};
    int rc = take_text(u, "certificate", &p.certificate, err);
    if (rc == 0)
        rc = take_text(u, "certificate_key", &p.key, err);
    if (rc < 0) {
        proxy_pair_release(&p);
        return rc;
    }
    up_say(u, EVENT_WARN, "router", "the certificate stays as it was: %s", err->text);
    u->router.pair = p;
    return 0;
}

int up_resume_keys(struct up *u, struct err *err)
{
    struct str own;
    base_autobuf struct buf text = BUF_INIT(STATE_MAX);
    int rc = take_text(u, "keys", &text, err);
    if (rc < 0)
        return rc;
    u->keys.read.text = text;
    text = BUF_INIT(STATE_MAX);
    if (json_str(json_get(json_get(json_root(u->upgrade.state), "router"), "own_key"), &own))
        snprintf(u->keys.own, sizeof u->keys.own, STR_FMT, STR_ARG(own));
    up_say(u, EVENT_WARN, "router", "the keys stay as they were: %s", err->text);
    return 0;
}

void up_resume_done(struct up *u)
{
    sigset_t signals;
    up_signals(&signals);
    (void)sigprocmask(SIG_UNBLOCK, &signals, NULL);
    u->upgrade.state = json_free(u->upgrade.state);
}

static int read_state(int fd, struct json **ret, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(STATE_MAX);
    int rc = os_read_all(fd, &b, err);
    if (rc == 0)
        rc = json_parse(buf_str(&b), ret, err);
    if (b.ptr)
        explicit_bzero(b.ptr, b.cap);
    return rc;
}

int up_resume_main(int state_fd, bool check_only)
{
    struct json *j = NULL;
    struct err err;
    struct up_fleet *of = NULL;
    struct up_options o = {0};
    struct str file, program, host, text = {0};
    int code = 1;
    (void)fcntl(state_fd, F_SETFD, FD_CLOEXEC);
    int rc = read_state(state_fd, &j, &err);
    close(state_fd);
    json_val root = rc == 0 ? json_root(j) : NULL;
    if (rc == 0 && (!json_str(json_get(root, "file"), &file) || !json_str(json_get(root, "program"), &program) || !json_bool(json_get(root, "background"), &o.background) ||
                    !json_bool(json_get(root, "offline"), &o.offline) || !json_bool(json_get(root, "router_only"), &o.router_only)))
        rc = bad(&err, "how it was started is not told");
    bool named = json_str(json_get(root, "host"), &host);
    (void)json_str(json_get(root, "text"), &text); /* of what was tried: the file may be another by now, or none */
    base_autofree char *path = rc == 0 ? str_dup(file) : NULL, *own = rc == 0 ? str_dup(program) : NULL, *here = named ? str_dup(host) : NULL;
    if (rc == 0 && (!path || !own || (named && !here)))
        rc = err_nomem(&err);
    o.host = here;
    if (rc == 0)
        rc = up_fleet_load_text(text, path, here, &of, &err);
    if (rc == 0)
        rc = check_state(root, of->f, o.router_only, &err);
    if (rc < 0) {
        fprintf(stderr, "%s%s\n", check_only ? "" : "berth up: ", err.text);
        json_free(j);
    } else if (check_only) {
        code = 0;
        json_free(j);
    } else {
        o.fleet_path = path;
        o.program = own;
        return up_resume(&o, of, j); /* which owns both */
    }
    up_fleet_unref(of);
    return code;
}
