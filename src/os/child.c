/* SPDX-License-Identifier: MIT
 *
 * A running child: signalled and collected through its pidfd, which names the process itself where a pid may already
 * belong to another one. And a whole run of a command, with what it wrote.
 */
#include "os_int.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK 16384
#define CHUNKS_AT_ONCE 64 /* as much as a pipe holds: a command that never stops writing must not keep us from the clock */

static bool has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

int os_proc_signal(const struct os_proc *p, int sig)
{
    /* An ended child that nobody has collected would take the signal without an error. */
    if (p->pidfd < 0 || has_ended(p->pidfd))
        return -ESRCH;
    return pidfd_send_signal(p->pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

void os_proc_kill_group(const struct os_proc *p)
{
    if (p->pid > 1)
        (void)kill(-p->pid, SIGKILL); /* not collected: the number is its own */
}

/* How a collected process ended: what its init told, else what the kernel says. */
static int ended_with(const struct os_proc *p, int status)
{
    return p->told && *p->told != OS_INIT_SILENT ? *p->told : status;
}

int os_proc_reap(struct os_proc *p, int *ret_status)
{
    if (p->pid <= 0)
        return -ECHILD;
    int status;
    pid_t got = waitpid(p->pid, &status, WNOHANG);
    if (got < 0)
        return -errno;
    if (got == 0)
        return 0;
    p->pid = 0;
    *ret_status = ended_with(p, status);
    return 1;
}

void os_proc_release(struct os_proc *p)
{
    os_closep(&p->pidfd);
    if (p->told)
        (void)munmap(p->told, sizeof(*p->told));
    p->told = NULL;
}

int os_pidfd_open(pid_t pid)
{
    if (pid <= 0)
        return -ESRCH;
    int fd = pidfd_open(pid, 0);
    return fd < 0 ? -errno : fd;
}

const char *os_status_text(int status, char out[OS_STATUS_TEXT])
{
    if (WIFEXITED(status)) {
        snprintf(out, OS_STATUS_TEXT, "exit %d", WEXITSTATUS(status));
    } else if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        const char *core = WCOREDUMP(status) ? " (core dumped)" : "";
        if (name)
            snprintf(out, OS_STATUS_TEXT, "killed by SIG%s%s", name, core);
        else
            snprintf(out, OS_STATUS_TEXT, "killed by signal %d%s", WTERMSIG(status), core);
    } else {
        snprintf(out, OS_STATUS_TEXT, "status %d", status);
    }
    return out;
}

/* ---- a whole run --------------------------------------------------------------------------------- */

struct run {
    struct os_proc proc;
    bool group; /* the child leads a process group */
    bool end_group;
    bool keep_end; /* of its stderr: what is over the ceiling is lost in front */
    int in[2];  /* our ends of its outputs, -1 when closed or not wanted */
    struct buf *out[2];
    uint64_t deadline_us; /* 0 none */
};

/* Takes what is there. The ceiling drops the rest but goes on reading: a full pipe would stop the command. */
static void take_output(struct run *r, unsigned i)
{
    char chunk[CHUNK];
    for (unsigned turn = 0; turn < CHUNKS_AT_ONCE; turn++) {
        ssize_t n = read(r->in[i], chunk, sizeof(chunk));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            return;
        if (n <= 0) {
            os_closep(&r->in[i]);
            return;
        }
        struct buf *out = r->out[i];
        if (i == 1 && r->keep_end && (size_t)n > out->max - out->len)
            buf_drop_front(out, (size_t)n - (out->max - out->len));
        size_t room = out->max - out->len;
        buf_add(out, chunk, (size_t)n < room ? (size_t)n : room);
    }
}

static int wait_ms(const struct run *r)
{
    if (r->deadline_us == 0)
        return -1;
    uint64_t now = clk_system.mono_us(NULL);
    if (now >= r->deadline_us)
        return 0;
    uint64_t ms = (r->deadline_us - now + 999) / 1000;
    return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

/* Until the command has ended; what its own children still hold open is not waited for. 0, or -ETIMEDOUT or -EINTR, with the command running. */
static int follow(struct run *r)
{
    for (;;) {
        struct pollfd p[4] = {
            {.fd = r->proc.pidfd, .events = POLLIN},
            {.fd = r->in[0], .events = POLLIN},
            {.fd = r->in[1], .events = POLLIN},
            {.fd = os_interrupt_fd(), .events = POLLIN},
        };
        int n = poll(p, 4, wait_ms(r));
        if (n < 0 && errno != EINTR)
            return -errno;
        if (os_interrupted())
            return -EINTR;
        for (unsigned i = 0; n > 0 && i < 2; i++)
            if (p[i + 1].revents)
                take_output(r, i);
        if (n > 0 && p[0].revents) {
            for (unsigned i = 0; i < 2; i++)
                if (r->in[i] >= 0)
                    take_output(r, i);
            return 0;
        }
        if (wait_ms(r) == 0)
            return -ETIMEDOUT;
    }
}

static void end_by_force(const struct run *r)
{
    if (r->group)
        (void)kill(-r->proc.pid, SIGKILL); /* not collected yet, so the number is still its own */
    base_ignore(os_proc_signal(&r->proc, SIGKILL)); /* it may just have ended by itself */
}

static int collect(struct run *r, int *ret_status)
{
    pid_t got;
    do {
        got = waitpid(r->proc.pid, ret_status, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    *ret_status = ended_with(&r->proc, *ret_status);
    return 0;
}

/* A pipe whose reading end is ours and does not block. */
static int open_output(struct run *r, unsigned i, struct buf *out, int *ret_write)
{
    r->out[i] = out;
    if (!out)
        return 0;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    r->in[i] = ends[0];
    *ret_write = ends[1];
    return fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static int run_started(struct run *r, const char *program, uint64_t timeout_ms, int *ret_status, struct err *err)
{
    char text[OS_PATH_TEXT], time[UNITS_TEXT];
    int status = 0;
    int code = follow(r);
    if (code < 0)
        end_by_force(r);
    else if (r->end_group)
        os_proc_kill_group(&r->proc);
    int collected = collect(r, &status);
    if (code == -EINTR)
        return err_set(err, code, "interrupted");
    if (code == -ETIMEDOUT)
        return err_set(err, code, "'%s' did not end within %s and was killed", os_path_text(AT_FDCWD, program, text),
                       units_show_ms(timeout_ms, time));
    if (code == 0)
        code = collected;
    if (code < 0)
        return err_sys(err, code, "cannot wait for '%s'", os_path_text(AT_FDCWD, program, text));
    for (unsigned i = 0; i < 2; i++)
        if (r->out[i] && buf_status(r->out[i]) < 0)
            return err_nomem(err);
    *ret_status = status;
    return 0;
}

/* Neither the terminal's Ctrl-C nor a signal that is sent to us reaches a command in a group of its own: where it would end us, the command must not stay behind. A program with handlers of its own sees to that itself. */
static bool ends_with_us(const struct os_spawn *s)
{
    struct sigaction now;
    return s->new_group && sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == SIG_DFL;
}

static int run(const struct os_spawn *s, int input, uint64_t timeout_ms, struct buf *out, struct buf *errout, bool keep_end, int *ret_status, struct err *err)
{
    const bool kept = ends_with_us(s);
    struct run r = {.proc = OS_PROC_NONE, .group = s->new_group, .end_group = s->new_group && s->end_group, .keep_end = keep_end, .in = {-1, -1}};
    os_autoclose int write_out = -1, write_err = -1;
    struct os_spawn own = *s;
    if (kept)
        os_interrupt_begin();
    int code = open_output(&r, 0, out, &write_out);
    if (code == 0)
        code = open_output(&r, 1, errout, &write_err);
    if (code < 0) {
        code = err_sys(err, code, "cannot start '%s': no pipe", s->argv[0]);
    } else {
        own.stdin_fd = input;
        own.stdout_fd = write_out;
        own.stderr_fd = write_err;
        code = os_spawn(&own, &r.proc, err);
    }
    if (code == 0) {
        os_closep(&write_out);
        os_closep(&write_err);
        if (timeout_ms && !size_mul(timeout_ms, 1000, &timeout_ms))
            timeout_ms = 0; /* longer than any clock counts */
        if (timeout_ms && !size_add(clk_system.mono_us(NULL), timeout_ms, &r.deadline_us))
            r.deadline_us = 0;
        code = run_started(&r, s->argv[0], timeout_ms / 1000, ret_status, err);
    }
    os_closep(&r.in[0]);
    os_closep(&r.in[1]);
    os_proc_release(&r.proc);
    if (kept)
        os_interrupt_end();
    return code;
}

/* ---- how it ended, in words ------------------------------------------------------------------------- */

int os_run(const struct os_spawn *s, uint64_t timeout_ms, struct buf *out, struct buf *errout, int *ret_status, struct err *err)
{
    return os_run_with(s, -1, timeout_ms, out, errout, ret_status, err);
}

int os_run_with(const struct os_spawn *s, int input, uint64_t timeout_ms, struct buf *out, struct buf *errout, int *ret_status, struct err *err)
{
    return run(s, input, timeout_ms, out, errout, false, ret_status, err);
}

int os_run_ok(const struct os_spawn *s, uint64_t timeout_ms, struct buf *out, struct err *err)
{
    base_autobuf struct buf said = BUF_INIT((size_t)4 * CHUNK);
    int status = 0, code = run(s, -1, timeout_ms, out, &said, true, &status, err);
    return code < 0 ? code : os_status_ok(status, buf_str(&said), err);
}

int os_status_ok(int status, struct str said, struct err *err)
{
    base_autobuf struct buf words = BUF_INIT((size_t)8 * OS_LAST_WORDS);
    char ended[OS_STATUS_TEXT];
    if (status == 0)
        return 0;
    said = str_trim(said);
    while (said.len > OS_LAST_WORDS && str_find_char(said, '\n') >= 0)
        (void)str_split(&said, '\n');
    while (said.ptr) {
        struct str line = str_trim(str_split(&said, '\n'));
        if (line.len && words.len)
            buf_add_c(&words, "; ");
        buf_add_printable(&words, line, OS_LAST_WORDS);
    }
    return err_set(err, -EIO, "%s: %s", os_status_text(status, ended), buf_status(&words) == 0 && words.len ? words.ptr : "no reason given");
}
