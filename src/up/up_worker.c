/* SPDX-License-Identifier: MIT
 *
 * One process of the router: its start, its channel, its end. What is said over the channel and which process serves is up_router.c's. A worker needs no rights: under root it
 * runs as the engines' account. Several may live: the newest serves, older ones finish what they have.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "up_int.h"

#define FD_LISTEN 4 /* in the worker, behind its channel */

void up_worker_send(struct up_worker *w, const struct buf *b)
{
    if (!w->channel || buf_status(b) < 0)
        return;
    struct str parts[2] = {buf_str(b), STR("\n")};
    /* A channel that is broken ends the worker, and its end is seen. */
    base_ignore(net_stream_write(w->channel, parts, 2));
}

static void on_data(void *ctx, struct str data)
{
    struct up_worker *w = ctx;
    struct buf *b = &w->line;
    while (data.len > 0) {
        ptrdiff_t nl = str_find_char(data, '\n');
        if (nl < 0) {
            buf_add_str(b, data);
            return;
        }
        buf_add(b, data.ptr, (size_t)nl);
        data.ptr += nl + 1;
        data.len -= (size_t)nl + 1;
        if (buf_status(b) == 0 && b->len > 0)
            up_router_take(w, buf_str(b));
        buf_clear(b);
    }
}

static void on_end(void *ctx, int status)
{
    (void)ctx; /* the process's own end says more */
    (void)status;
}

static int open_log(struct up *u, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    buf_addf(&path, "%s/router.log", u->paths.logs);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    int fd = open(path.ptr, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? err_sys(err, -errno, "cannot open log '%s'", path.ptr) : fd;
}

/* Under root a worker runs as the engines' account. */
static int find_account(struct os_spawn *s, struct err *err)
{
    s->drop = geteuid() == 0;
    return s->drop ? os_engine_account(&s->uid, &s->gid, err) : 0;
}

static int spill_path(const struct up *u, struct buf *ret, struct err *err)
{
    buf_addf(ret, "%s/" PROXY_BODIES, u->paths.fleet);
    return buf_status(ret) < 0 ? err_nomem(err) : 0;
}

/* The folder for large bodies, which its account alone may use; on disk, because the run folder is memory. */
static int open_spill(const char *path, const struct os_spawn *s, struct err *err)
{
    int fd = os_make_dirs(path, 0700, err);
    if (fd == 0)
        fd = os_open_dir(path, err);
    if (fd >= 0 && s->drop && fchown(fd, s->uid, s->gid) < 0) {
        int rc = err_sys(err, -errno, "cannot give '%s' to the router's account", path);
        close(fd);
        fd = rc;
    }
    return fd;
}

int up_worker_mend_spill(struct up *u, struct err *err)
{
    struct os_spawn s = {0};
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    int rc = spill_path(u, &path, err);
    if (rc < 0 || access(path.ptr, F_OK) == 0 || errno != ENOENT)
        return rc;
    rc = find_account(&s, err);
    os_autoclose int fd = rc < 0 ? rc : open_spill(path.ptr, &s, err);
    if (fd < 0)
        return fd;
    up_say(u, EVENT_WARN, "router", "its folder '%s' had been removed: it is there again", path.ptr);
    return 0;
}

static int spawn(struct up *u, int channel, struct os_proc *ret, struct err *err)
{
    os_autoclose int log = u->o->router_only ? -1 : open_log(u, err);
    if (log < 0 && !u->o->router_only)
        return log;
    const struct up_router *r = &u->router;
    const char *argv[6 + 2 * UP_SOCKETS_MAX + 2 + 1] = {u->o->program, "_route", "--channel-fd", "3", "--loops"};
    static const char *const envp[] = {"LANG=C.UTF-8", NULL};
    char loops[12], numbers[UP_SOCKETS_MAX][12], folder[12];
    int keep[1 + UP_SOCKETS_MAX + 1] = {channel};
    snprintf(loops, sizeof(loops), "%u", (unsigned)u->fleet->router.loops);
    argv[5] = loops;
    for (size_t i = 0; i < r->n_listen; i++) {
        snprintf(numbers[i], sizeof(numbers[i]), "%zu", FD_LISTEN + i);
        argv[6 + 2 * i] = "--listen-fd";
        argv[7 + 2 * i] = numbers[i];
        keep[1 + i] = r->listen_fds[i];
    }
    struct os_spawn s = {.argv = argv, .envp = envp, .cwd = "/", .stdin_fd = -1, .stdout_fd = log >= 0 ? log : STDOUT_FILENO, .stderr_fd = log >= 0 ? log : STDERR_FILENO,
                         .keep_fds = keep, .n_keep_fds = 1 + r->n_listen, .death_signal = SIGKILL, .new_group = true};
    struct err why;
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    int rc = find_account(&s, err);
    if (rc < 0)
        return rc;
    rc = spill_path(u, &path, &why);
    os_autoclose int spill = rc < 0 ? rc : open_spill(path.ptr, &s, &why);
    if (spill < 0) {
        up_say(u, EVENT_WARN, "router", "large request bodies stay in memory: %s", why.text);
    } else {
        snprintf(folder, sizeof(folder), "%zu", FD_LISTEN + r->n_listen);
        argv[6 + 2 * r->n_listen] = "--spill-fd";
        argv[7 + 2 * r->n_listen] = folder;
        keep[s.n_keep_fds++] = spill;
    }
    rc = os_spawn(&s, ret, err);
    if (rc == -EACCES && s.drop) {
        /* The account cannot come to a program below a private folder; to the file that this process runs from it can. */
        argv[0] = "/proc/self/exe";
        rc = os_spawn(&s, ret, err);
    }
    return rc;
}

static void on_ended(void *ctx)
{
    struct up_worker *w = ctx;
    int status = 0;
    if (os_proc_reap(&w->proc, &status) > 0)
        up_router_ended(w, status);
}

struct up_worker *up_worker_free(struct up_worker *w)
{
    if (!w)
        return NULL;
    for (struct up_worker **at = &w->up->router.workers; *at; at = &(*at)->next) {
        if (*at != w)
            continue;
        *at = w->next;
        break;
    }
    w->watch = net_watch_close(w->watch);
    w->channel = net_stream_close(w->channel, false);
    if (w->proc.pidfd >= 0) {
        base_ignore(os_proc_signal(&w->proc, SIGKILL));
        (void)waitpid(w->proc.pid, NULL, 0);
        os_proc_release(&w->proc);
    }
    buf_release(&w->line);
    free(w->report);
    free(w);
    return NULL;
}

int up_worker_adopt(struct up *u, const struct os_proc *proc, int channel_fd, struct up_worker **ret, struct err *err)
{
    static const struct net_stream_ops ops = {.on_data = on_data, .on_end = on_end};
    struct up_worker *w = calloc(1, sizeof(*w));
    if (!w) {
        close(channel_fd);
        return err_nomem(err);
    }
    *w = (struct up_worker){.up = u, .proc = *proc, .line = BUF_INIT(PROXY_CHANNEL_LINE_MAX), .started_ms = net_loop_now_ms(u->loop)};
    int rc = net_stream_from_fd(u->loop, channel_fd, &ops, w, &w->channel, err);
    if (rc == 0)
        rc = net_watch_new(u->loop, w->proc.pidfd, on_ended, w, &w->watch, err);
    if (rc < 0) {
        w->proc = OS_PROC_NONE; /* the caller's on failure */
        up_worker_free(w);
        return rc;
    }
    w->next = u->router.workers;
    u->router.workers = w;
    *ret = w;
    return 0;
}

int up_worker_start(struct up *u, struct up_worker **ret, struct err *err)
{
    int ends[2];
    struct os_proc proc = OS_PROC_NONE;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return err_sys(err, -errno, "cannot make the router's channel");
    int rc = spawn(u, ends[1], &proc, err);
    close(ends[1]);
    if (rc < 0) {
        close(ends[0]);
        return rc;
    }
    rc = up_worker_adopt(u, &proc, ends[0], ret, err);
    if (rc < 0) {
        base_ignore(os_proc_signal(&proc, SIGKILL));
        (void)waitpid(proc.pid, NULL, 0);
        os_proc_release(&proc);
    }
    return rc;
}
