/* SPDX-License-Identifier: MIT
 *
 * The other end of the control socket, for the commands that talk to a running supervisor; and where a fleet keeps its
 * things, which both ends must know. The lock tells whether a supervisor runs; the pid in it says which one.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "up_int.h"

#define CALL_MS 10000                  /* every answer but a restart's is made at once */
#define RESTART_MS (24ul * 3600 * 1000) /* a start's own limit ends it; large models on slow disks take their time */
#define GONE_STEP_MS 50

/* ---- paths ------------------------------------------------------------------------------------------- */

static char *join(const char *a, const char *b)
{
    struct buf p = BUF_INIT(UP_PATH_MAX);
    if (a)
        buf_addf(&p, "%s/%s", a, b);
    return buf_take(&p);
}

int up_paths_make(const struct os_dirs *dirs, const char *name, struct up_paths *ret, struct err *err)
{
    base_autofree char *fleets = join(dirs->state, "fleets");
    struct up_paths p = {.run = join(dirs->run, name), .fleet = join(fleets, name)};
    p.lock = join(p.run, "lock");
    p.sock = join(p.run, "control.sock");
    p.pids = join(p.run, "pids");
    p.state_lock = join(p.fleet, "lock");
    p.logs = join(p.fleet, "logs");
    p.work = join(p.fleet, "work");
    if (!p.lock || !p.sock || !p.pids || !p.state_lock || !p.logs || !p.work) {
        up_paths_release(&p);
        return err_nomem(err);
    }
    *ret = p;
    return 0;
}

void up_paths_release(struct up_paths *p)
{
    free(p->run);
    free(p->lock);
    free(p->sock);
    free(p->pids);
    free(p->state_lock);
    free(p->fleet);
    free(p->logs);
    free(p->work);
    *p = (struct up_paths){0};
}

int up_log_path(const struct os_dirs *dirs, const char *name, const char *service, struct buf *ret)
{
    buf_addf(ret, "%s/fleets/%s/logs/%s.log", dirs->state, name, service);
    return buf_status(ret);
}

/* ---- is it running ---------------------------------------------------------------------------------------- */

pid_t up_lock_holder(const char *lock_path, struct buf *ret_run)
{
    if (access(lock_path, F_OK) < 0)
        return 0; /* os_lock would make it, and its folder may not be there */
    os_autoclose int fd = os_lock(lock_path, false, false, NULL);
    if (fd != -EWOULDBLOCK)
        return 0;
    base_autobuf struct buf b = BUF_INIT(UP_LOCK_TEXT);
    uint64_t pid;
    if (os_read_file(AT_FDCWD, lock_path, &b, NULL) < 0)
        return -1;
    struct str run = buf_str(&b), first = str_split(&run, '\n');
    if (str_to_u64(first, &pid) < 0 || pid < 1 || pid > INT32_MAX)
        return -1;
    if (ret_run)
        buf_add_printable(ret_run, str_trim(run), UP_PATH_MAX - 1);
    return (pid_t)pid;
}

int up_wait_gone(const struct os_dirs *dirs, const char *name, uint64_t limit_ms, struct err *err)
{
    struct up_paths p = {0};
    int rc = up_paths_make(dirs, name, &p, err);
    if (rc < 0)
        return rc;
    uint64_t until = clk_system.mono_us(NULL) / 1000 + limit_ms;
    for (;;) {
        pid_t pid = up_lock_holder(p.lock, NULL);
        if (pid == 0)
            break;
        uint64_t now = clk_system.mono_us(NULL) / 1000;
        if (now >= until) {
            rc = err_set(err, -ETIMEDOUT, "fleet '%s' is still being stopped (pid %d)", name, (int)pid);
            break;
        }
        /* The lock cannot be waited for with a limit; the process that holds it can. */
        os_autoclose int pidfd = pid > 0 ? os_pidfd_open(pid) : -1;
        struct pollfd f = {.fd = pidfd, .events = POLLIN};
        uint64_t step = pidfd >= 0 ? until - now : GONE_STEP_MS;
        (void)poll(&f, 1, step > 60000 ? 60000 : (int)step);
    }
    up_paths_release(&p);
    return rc;
}

/* ---- one request -------------------------------------------------------------------------------------------- */

struct call {
    struct net_loop *loop;
    unsigned status;
    struct buf *body;
    bool done, ok;
    struct err *err;
};

static void on_answer(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct call *k = ctx;
    k->done = true;
    k->status = status;
    k->ok = status > 0;
    if (k->ok)
        buf_add_str(k->body, body);
    else
        err_set(k->err, -EIO, "the supervisor did not answer: %s", failed->text);
    net_loop_stop(k->loop);
}

static int run_call(struct call *k, const struct httpio_request *r, uint64_t limit_ms)
{
    int rc = net_loop_new(&k->loop, k->err);
    if (rc < 0)
        return rc;
    struct httpio_client *c = httpio_client_new(k->loop, &HTTPIO_CLIENT_DEFAULT);
    struct httpio_fetch *f = c ? httpio_fetch(c, r, UP_TEXT_MAX, limit_ms, on_answer, k) : NULL;
    if (f)
        net_loop_run(k->loop);
    else
        rc = err_nomem(k->err);
    httpio_client_free(c);
    net_loop_free(k->loop);
    if (rc == 0 && !k->done)
        rc = err_set(k->err, -EIO, "the supervisor did not answer");
    else if (rc == 0 && !k->ok)
        rc = -EIO;
    return rc;
}

static int not_up(const struct up_paths *p, const char *name, struct err *err)
{
    base_autobuf struct buf where = BUF_INIT((size_t)4 * UP_PATH_MAX);
    pid_t pid = up_lock_holder(p->state_lock, &where);
    if (pid > 0 && where.len)
        return err_set(err, -EBUSY, "fleet '%s' is up with another run folder (pid %d): 'BERTH_RUN=%s' in front of the command finds it", name, (int)pid, where.ptr);
    return err_set(err, -ENOENT, "fleet '%s' is not up; 'berth up' brings it up", name);
}

int up_call(const struct os_dirs *dirs, const char *name, const char *method, const char *target, unsigned *ret_status, struct buf *ret_body, struct err *err)
{
    struct up_paths p = {0};
    int rc = up_paths_make(dirs, name, &p, err);
    if (rc < 0)
        return rc;
    pid_t pid = up_lock_holder(p.lock, NULL);
    struct httpio_request r = {.method = str_of(method), .target = str_of(target), .host = STR("berth")};
    struct call k = {.body = ret_body, .err = err};
    if (pid == 0)
        rc = not_up(&p, name, err);
    else if (access(p.sock, F_OK) < 0)
        rc = err_set(err, -EAGAIN, "fleet '%s' is being prepared (pid %d); try again in a moment", name, (int)pid);
    else if (net_addr_unix(p.sock, &r.addr) < 0)
        rc = err_set(err, -ENAMETOOLONG, "path '%s' is too long for a socket; set BERTH_RUN to a shorter folder", p.sock);
    else
        rc = run_call(&k, &r, str_starts(r.target, STR("/restart")) ? RESTART_MS : CALL_MS);
    up_paths_release(&p);
    if (rc == 0)
        rc = buf_status(ret_body);
    if (rc == 0)
        *ret_status = k.status;
    return rc;
}
