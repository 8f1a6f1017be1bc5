/* SPDX-License-Identifier: MIT
 *
 * All that must be in order before anything is started: folders, the fleet's lock, what a killed berth left, runtimes
 * (installed, proven, tried), payloads, ports. The first thing that is wrong ends it with one error; up to here nothing runs that would have to be
 * stopped.
 */
#include <errno.h>
#include <fcntl.h>
#include <hub/hub.h>
#include <unistd.h>

#include "up_int.h"

#define LOCK_TRIES 10

static int make_folders(struct up *u, struct err *err)
{
    /* The engine's account must be able to come to the work folder, where it may not write. */
    mode_t open_mode = geteuid() == 0 ? 0755 : 0700;
    int rc = os_make_dirs(u->paths.run, 0700, err);
    if (rc == 0)
        rc = os_make_dirs(u->paths.fleet, open_mode, err);
    if (rc == 0)
        rc = os_make_dirs(u->paths.logs, 0700, err);
    if (rc == 0)
        rc = os_make_dirs(u->paths.work, open_mode, err);
    return rc;
}

/* Holds a lock file, and writes into it who does: the pid, and where its control socket is. -EWOULDBLOCK: another one does. */
static int hold(const struct up *u, const char *path, int *ret_fd, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(UP_LOCK_TEXT);
    int fd;
    /* A command that looks whether the fleet is up holds the lock for a moment. */
    for (unsigned i = 0; (fd = os_lock(path, true, false, err)) == -EWOULDBLOCK && i < LOCK_TRIES; i++)
        if (up_lock_holder(path, NULL) > 0)
            break;
    if (fd < 0)
        return fd;
    buf_addf(&text, "%d\n%s\n", (int)getpid(), u->dirs.run);
    int rc = buf_status(&text) < 0 ? err_nomem(err) : 0;
    errno = EIO;
    if (rc == 0 && (ftruncate(fd, 0) < 0 || pwrite(fd, text.ptr, text.len, 0) != (ssize_t)text.len))
        rc = err_sys(err, -errno, "cannot write '%s'", path);
    if (rc < 0)
        close(fd);
    else
        *ret_fd = fd;
    return rc;
}

static int is_taken(const struct up *u, const char *path, struct err *err)
{
    base_autobuf struct buf where = BUF_INIT((size_t)4 * UP_PATH_MAX);
    char who[32] = "";
    pid_t pid = up_lock_holder(path, &where);
    if (pid > 0)
        snprintf(who, sizeof(who), " (pid %d)", (int)pid);
    if (where.len == 0 || str_eq_c(buf_str(&where), u->dirs.run))
        return err_set(err, -EBUSY, "fleet '%s' is already up%s; 'berth down' stops it, 'berth restart' restarts its services", u->fleet->name, who);
    return err_set(err, -EBUSY, "fleet '%s' is already up%s with the run folder '%s' and this state; 'BERTH_RUN=%s berth down' stops it, another BERTH_STATE keeps the two apart", u->fleet->name, who, where.ptr, where.ptr);
}

/* The lock of the run folder is what commands find a fleet by. That of the state folder keeps a second one away that has another run folder: logs, prompts and what is known of conversations would be written by both. */
static int take_locks(struct up *u, struct err *err)
{
    bool resumed = u->upgrade.state;
    u->lock_fd = resumed ? up_resume_fd(u, "lock_fd") : -1;
    u->state_fd = resumed ? up_resume_fd(u, "state_lock_fd") : -1;
    if (resumed && u->lock_fd < 0)
        return err_set(err, -EBADMSG, "the fleet's lock was not handed over");
    int rc = resumed ? 0 : hold(u, u->paths.lock, &u->lock_fd, err);
    if (rc == -EWOULDBLOCK)
        return is_taken(u, u->paths.lock, err);
    if (rc == 0 && u->state_fd < 0)
        rc = hold(u, u->paths.state_lock, &u->state_fd, err);
    if (rc == -EWOULDBLOCK)
        rc = is_taken(u, u->paths.state_lock, err);
    /* Nobody serves it: whoever did is gone. */
    if (rc == 0 && !resumed && unlink(u->paths.sock) < 0 && errno != ENOENT)
        rc = err_sys(err, -errno, "cannot remove '%s'", u->paths.sock);
    if (rc < 0 && u->state_fd < 0)
        os_closep(&u->lock_fd); /* what holders of both tidy up is another's */
    return rc;
}

static int recover(struct up *u, struct err *err)
{
    size_t n = 0;
    os_autoclose int run = os_open_dir(u->paths.run, err);
    if (run < 0)
        return run;
    os_write_sweep(run);
    int rc = run_pids_recover(u->paths.pids, &n, err);
    if (rc == 0 && n > 0)
        up_say(u, EVENT_WARN, "", "ended %zu engine%s of a berth that was killed", n, n == 1 ? "" : "s");
    return rc;
}

void up_record(struct up *u)
{
    struct run_service *list[FLEET_SERVICES_MAX];
    size_t n = 0;
    for (size_t i = 0; i < u->n_services; i++)
        if (u->services[i]->run)
            list[n++] = u->services[i]->run;
    struct err err;
    if (run_pids_write(u->paths.pids, list, n, &err) < 0)
        up_say(u, EVENT_WARN, "", "%s", err.text);
}

/* ---- runtimes ------------------------------------------------------------------------------------------------ */

static bool is_used(const struct up *u, const struct fleet_runtime *r)
{
    for (size_t i = 0; i < u->n_services; i++)
        if (u->services[i]->service->runtime == r)
            return true;
    return false;
}

static int install(struct up *u, const struct fleet_runtime *r, struct err *err)
{
    struct store_runtime got = {0};
    int rc = store_runtime_find(u->store, r, &got, err);
    if (rc == -ENOENT) {
        struct store_add_options o = {.offline = u->o->offline, .fetch = hub_fetch_pinned, .fetch_ctx = &u->sink, .sink = &u->sink};
        rc = store_runtime_add(u->store, r, &o, &got, err);
        if (rc == 0 && u->progress) {
            char subject[FLEET_NAME_MAX + 16];
            snprintf(subject, sizeof(subject), "runtime %s", r->name);
            os_progress_set(u->progress, subject, "installed", 0, 0, OS_GREEN);
        }
    }
    store_runtime_release(&got);
    return rc;
}

/* Under the store's shared lock: what is proven here cannot change while it runs. */
static int prove(struct up *u, const struct fleet_runtime *declared, struct up_runtime *r, struct err *err)
{
    int rc = store_runtime_find(u->store, declared, &r->installed, err);
    if (rc < 0)
        return rc;
    rc = store_runtime_verify(u->store, &r->installed, NULL, err);
    if (rc < 0)
        return rc;
    rc = store_confine_probe(u->store, &r->installed, &r->confine, err);
    return rc < 0 ? err_prefix(err, "runtime '%s'", declared->name) : 0;
}

static void runtime_free(struct up_runtime *r)
{
    store_runtime_release(&r->installed);
    free(r);
}

int up_runtime_of(struct up *u, const struct fleet_runtime *declared, const struct up_runtime **ret, struct err *err)
{
    struct up_runtime *r = u->runtimes;
    while (r && r->declared_hash != declared->declared_hash)
        r = r->next;
    if (!r) {
        r = calloc(1, sizeof(*r));
        if (!r)
            return err_nomem(err);
        int rc = prove(u, declared, r, err);
        if (rc < 0) {
            runtime_free(r);
            return rc;
        }
        r->declared_hash = declared->declared_hash;
        r->next = u->runtimes;
        u->runtimes = r;
    }
    *ret = r;
    return 0;
}

void up_runtimes_release(struct up *u)
{
    for (struct up_runtime *r; (r = u->runtimes);) {
        u->runtimes = r->next;
        runtime_free(r);
    }
}

static int prepare_runtimes(struct up *u, struct err *err)
{
    const struct fleet *f = u->fleet;
    int rc = 0;
    for (size_t i = 0; rc == 0 && !u->upgrade.state && i < f->n_runtimes; i++)
        if (is_used(u, &f->runtimes[i]))
            rc = install(u, &f->runtimes[i], err);
    if (rc < 0)
        return rc;
    u->store_fd = u->upgrade.state ? up_resume_fd(u, "store_fd") : -1;
    if (u->store_fd < 0)
        u->store_fd = store_lock(u->store, false, true, err);
    if (u->store_fd < 0)
        return u->store_fd;
    for (size_t i = 0; rc == 0 && i < u->n_services; i++)
        rc = up_runtime_of(u, u->services[i]->service->runtime, &u->services[i]->runtime, err);
    return rc;
}

/* ---- payloads and ports ----------------------------------------------------------------------------------------- */

/* What is used is written down first: a purge then either sees it, or was through before, and the files are missed here. */
static int check_payloads(struct up *u, struct err *err)
{
    int rc = store_uses_write(u->store, u->fleet, true, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < u->n_services; i++) {
        const struct fleet_service *s = u->services[i]->service;
        uint64_t bytes;
        if (s->model && store_payload_check(u->store, s->model, &bytes, err) < 0)
            return err_prefix(err, "service '%s'", s->name);
    }
    return 0;
}

static int check_ports(struct up *u, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < u->n_services; i++)
        rc = run_port_check(u->services[i]->service, err);
    return rc;
}

/* Bound before any engine is started, so that a taken port is known at once. A service manager that has opened sockets for us knows better than the fleet file where. */
static int bind_router(struct up *u, struct err *err)
{
    struct os_socket passed[OS_SOCKETS_MAX];
    size_t n = 0;
    const struct fleet_router *r = &u->fleet->router;
    u->router.wanted = up_routes(u, u->fleet);
    if (!u->router.wanted)
        return 0;
    int rc = proxy_tls_read(u->fleet, &u->router.pair, err);
    if (rc < 0 && up_resume_pair(u, err) < 0)
        return rc;
    rc = up_keys_load(u, err);
    if (rc < 0 && up_resume_keys(u, err) < 0)
        return rc;
    u->router.n_listen = u->upgrade.state ? up_resume_sockets(u) : 0;
    if (u->router.n_listen > 0)
        return net_socket_addr(u->router.listen_fds[0], &u->router.addr);
    rc = os_sockets_passed(passed, &n, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        u->router.listen_fds[u->router.n_listen++] = passed[i].fd;
    u->router.passed = n > 0;
    if (n > 0)
        return net_socket_addr(passed[0].fd, &u->router.addr);
    rc = proxy_bind(u->fleet, u->router.listen_fds, &u->router.addr, err);
    if (rc == -EADDRINUSE && !r->socket)
        return run_port_taken(r->port, "the router", err);
    if (rc < 0)
        return err_prefix(err, "router");
    u->router.n_listen = (size_t)rc;
    return 0;
}

static int bind_admin(struct up *u, struct err *err)
{
    const struct fleet_router *r = &u->fleet->router;
    struct net_addr a;
    if (!r->admin || !u->router.wanted)
        return 0;
    u->control.admin_fd = u->upgrade.state ? up_resume_fd(u, "admin_fd") : -1;
    if (u->control.admin_fd >= 0)
        return net_socket_addr(u->control.admin_fd, &u->control.admin);
    int rc = net_addr_ip(r->admin, r->admin_port, &a);
    if (rc < 0)
        return err_set(err, rc, "address '%s' of the router's admin listener is no IP address", r->admin);
    int fd = net_listen_socket(&a, false, err);
    if (fd == -EADDRINUSE)
        return run_port_taken(r->admin_port, "the admin listener", err);
    if (fd < 0)
        return err_prefix(err, "admin");
    u->control.admin_fd = fd;
    return net_socket_addr(fd, &u->control.admin);
}

static int find_services(struct up *u, struct err *err)
{
    const struct fleet *f = u->fleet;
    struct up_service *s;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->n_services; i++)
        if (up_starts(u, &f->services[i]))
            rc = up_service_add(u, &f->services[i], &s, err);
    return rc;
}

int up_prepare(struct up *u, struct err *err)
{
    int rc = make_folders(u, err);
    if (rc == 0)
        rc = take_locks(u, err);
    if (rc == 0 && !u->upgrade.state)
        rc = recover(u, err);
    if (rc == 0)
        rc = find_services(u, err);
    if (rc == 0)
        rc = store_open(&u->dirs, &u->store, err);
    /* Before the runtimes: nobody waits for an installation to hear of a missing model. */
    if (rc == 0 && !u->upgrade.state)
        rc = check_payloads(u, err);
    if (rc == 0)
        rc = prepare_runtimes(u, err);
    if (rc == 0 && !u->upgrade.state)
        rc = check_ports(u, err);
    if (rc == 0)
        rc = bind_router(u, err);
    if (rc == 0)
        rc = bind_admin(u, err);
    return rc;
}
