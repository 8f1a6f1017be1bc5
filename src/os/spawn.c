/* SPDX-License-Identifier: MIT
 *
 * Starting a child. The parent prepares everything that needs memory or look-ups; between fork and exec the child makes
 * system calls only, since another thread of the parent may have held any lock. What goes wrong there travels
 * back through a close-on-exec pipe as step, index and errno, and becomes a message in the parent: the pipe's end without
 * content means that exec happened.
 *
 * The parent-death signal is cleared by setuid, so it is set after it; a parent that died before is noticed by the pipe, whose
 * other end is the parent's alone. The signal reaches the child and not what the child has started; for that there is the namespace of
 * processes, which the kernel ends as a whole with its first process.
 */
#include "os_int.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GROUPS_MAX 256 /* supplementary groups of one account; more are left out */
#define PATH_DEFAULT "/usr/local/bin:/usr/bin:/bin"
#define EXIT_NOT_STARTED 127

enum step {
    STEP_SESSION,
    STEP_MAP,
    STEP_NAMESPACE,
    STEP_PRIVATE,
    STEP_PROC,
    STEP_BIND,
    STEP_READ_ONLY,
    STEP_CHROOT,
    STEP_CWD,
    STEP_GROUPS,
    STEP_GID,
    STEP_UID,
    STEP_PRIVS,
    STEP_DEATH,
    STEP_FD,
    STEP_INIT,
    STEP_EXEC,
};

struct report {
    enum step step;
    int code;     /* errno */
    size_t index; /* of the bind */
};

/* What the child needs beside struct os_spawn, made by the parent. */
struct plan {
    const struct os_spawn *s;
    const char *program;
    int *fds; /* 0, 1, 2, then keep_fds: n of them */
    size_t n_fds;
    gid_t groups[GROUPS_MAX];
    size_t n_groups;
    bool new_user;
    char uid_map[64], gid_map[64]; /* of new_user */
    int null_fd, report_fd;
    int *told; /* shared with the init; NULL without */
};

/* ---- in the child ------------------------------------------------------------------------------- */

static _Noreturn void fail(const struct plan *p, enum step step, size_t index)
{
    struct report r = {.step = step, .code = errno, .index = index};
    ssize_t ignored = write(p->report_fd, &r, sizeof(r));
    (void)ignored;
    _exit(EXIT_NOT_STARTED);
}

/* By the kernel's call: libc refuses to touch the two signals that it keeps for itself, which a parent may have ignored all the same. An
 * all-zero action is the default one on every architecture. */
static void reset_signals(void)
{
    const unsigned char usual[64] = {0};
    for (int sig = 1; sig < _NSIG; sig++)
        (void)syscall(SYS_rt_sigaction, sig, usual, NULL, (size_t)_NSIG / 8); /* refused for KILL and STOP */
}

static void tell_kernel(const struct plan *p, const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail(p, STEP_MAP, 0);
    (void)close(fd);
}

/* Our own account, under its own number. */
static void make_user(const struct plan *p)
{
    if (!p->new_user)
        return;
    tell_kernel(p, "/proc/self/setgroups", "deny");
    tell_kernel(p, "/proc/self/uid_map", p->uid_map);
    tell_kernel(p, "/proc/self/gid_map", p->gid_map);
}

/* Read-only all the way down: mounts below `from` come along, and the attribute is added, so nosuid, nodev and noexec stay. */
static void make_mounts(const struct plan *p)
{
    const struct os_spawn *s = p->s;
    if (s->n_binds == 0 && !s->own_pids)
        return;
    if (unshare(CLONE_NEWNS) < 0)
        fail(p, STEP_NAMESPACE, 0);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail(p, STEP_PRIVATE, 0);
    /* The old one names other processes than the numbers that this one sees. */
    if (s->own_pids && mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        fail(p, STEP_PROC, 0);
    for (size_t i = 0; i < s->n_binds; i++) {
        struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY};
        if (mount(s->binds[i].from, s->binds[i].to, NULL, MS_BIND | MS_REC, NULL) < 0)
            fail(p, STEP_BIND, i);
        if (mount_setattr(AT_FDCWD, s->binds[i].to, AT_RECURSIVE, &read_only, sizeof(read_only)) < 0)
            fail(p, STEP_READ_ONLY, i);
    }
}

static void enter(const struct plan *p)
{
    const struct os_spawn *s = p->s;
    if (s->chroot && (chroot(s->chroot) < 0 || chdir("/") < 0))
        fail(p, STEP_CHROOT, 0);
    if (s->cwd && chdir(s->cwd) < 0)
        fail(p, STEP_CWD, 0);
}

/* By system calls, not libc, whose versions tell the other threads that a forked child does not have. */
static void give_up_root(const struct plan *p)
{
    const struct os_spawn *s = p->s;
    if (!s->drop)
        return;
    if (syscall(SYS_setgroups, p->n_groups, p->groups) < 0)
        fail(p, STEP_GROUPS, 0);
    if (syscall(SYS_setresgid, s->gid, s->gid, s->gid) < 0)
        fail(p, STEP_GID, 0);
    if (syscall(SYS_setresuid, s->uid, s->uid, s->uid) < 0)
        fail(p, STEP_UID, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fail(p, STEP_PRIVS, 0);
}

static void bind_life(const struct plan *p)
{
    if (p->s->death_signal == 0)
        return;
    if (prctl(PR_SET_PDEATHSIG, p->s->death_signal, 0, 0, 0) < 0)
        fail(p, STEP_DEATH, 0);
    struct pollfd told = {.fd = p->report_fd};
    if (poll(&told, 1, 0) != 0)
        _exit(EXIT_NOT_STARTED); /* nobody reads: it died before the signal was set */
}

/* Every descriptor first moves above all targets, so that placing one never closes another that is still to be placed. */
static void place_fds(struct plan *p)
{
    int above = (int)p->n_fds;
    int report = fcntl(p->report_fd, F_DUPFD_CLOEXEC, above);
    if (report < 0)
        fail(p, STEP_FD, 0);
    p->report_fd = report;
    for (size_t i = 0; i < p->n_fds; i++) {
        int moved = fcntl(p->fds[i] < 0 ? p->null_fd : p->fds[i], F_DUPFD_CLOEXEC, above);
        if (moved < 0)
            fail(p, STEP_FD, i);
        p->fds[i] = moved;
    }
    for (size_t i = 0; i < p->n_fds; i++)
        if (dup2(p->fds[i], (int)i) < 0)
            fail(p, STEP_FD, i);
    if (close_range((unsigned)above, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        fail(p, STEP_FD, 0);
}

/* Only the child comes back. The report's end is its alone: what is read there must not wait for the init. */
static void leave_init(const struct plan *p)
{
    if (!p->s->own_init)
        return;
    pid_t pid = fork();
    if (pid < 0)
        fail(p, STEP_INIT, 0);
    if (pid > 0)
        os_be_init(pid, p->told);
}

static _Noreturn void become(struct plan *p)
{
    static char *const empty[] = {NULL};
    const struct os_spawn *s = p->s;
    reset_signals();
    if (s->new_group && setsid() < 0)
        fail(p, STEP_SESSION, 0);
    make_user(p);
    make_mounts(p);
    enter(p);
    give_up_root(p);
    place_fds(p);
    os_fds_limit_back();
    bind_life(p);
    leave_init(p);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    execve(p->program, (char *const *)s->argv, s->envp ? (char *const *)s->envp : empty);
    fail(p, STEP_EXEC, 0);
}

/* ---- in the parent ------------------------------------------------------------------------------ */

static int report_error(const struct plan *p, const struct report *r, struct err *err)
{
    char a[OS_PATH_TEXT], b[OS_PATH_TEXT];
    const struct os_spawn *s = p->s;
    const char *program = os_path_text(AT_FDCWD, s->argv[0], a);
    int code = -r->code;
    switch (r->step) {
    case STEP_SESSION:
        return err_sys(err, code, "cannot start '%s': no session of its own", program);
    case STEP_MAP:
        return err_sys(err, code, "cannot start '%s': no account in its user namespace", program);
    case STEP_NAMESPACE:
        return err_sys(err, code, "cannot start '%s': no mount namespace", program);
    case STEP_PRIVATE:
        return err_sys(err, code, "cannot start '%s': mounts cannot be made private", program);
    case STEP_PROC:
        return err_sys(err, code, "cannot start '%s': no /proc of its own", program);
    case STEP_BIND:
    case STEP_READ_ONLY:
        return err_sys(err, code, "cannot start: '%s' cannot be %s '%s'", os_path_text(AT_FDCWD, s->binds[r->index].from, a),
                       r->step == STEP_BIND ? "mounted on" : "made read-only on",
                       os_path_text(AT_FDCWD, s->binds[r->index].to, b));
    case STEP_CHROOT:
        return err_sys(err, code, "cannot start '%s': cannot enter the tree '%s'", program, os_path_text(AT_FDCWD, s->chroot, b));
    case STEP_CWD:
        return err_sys(err, code, "cannot start '%s': cannot go to folder '%s'", program, os_path_text(AT_FDCWD, s->cwd, b));
    case STEP_GROUPS:
        return err_sys(err, code, "cannot start '%s': supplementary groups cannot be set", program);
    case STEP_GID:
        return err_sys(err, code, "cannot start '%s': cannot become group %u", program, (unsigned)s->gid);
    case STEP_UID:
        return err_sys(err, code, "cannot start '%s': cannot become user %u", program, (unsigned)s->uid);
    case STEP_PRIVS:
        return err_sys(err, code, "cannot start '%s': cannot forbid new privileges", program);
    case STEP_DEATH:
        return err_sys(err, code, "cannot start '%s': cannot set the parent-death signal %d", program, s->death_signal);
    case STEP_FD:
        return err_sys(err, code, "cannot start '%s': descriptors cannot be placed", program);
    case STEP_INIT:
        return err_sys(err, code, "cannot start '%s': no process for its namespace", program);
    case STEP_EXEC:
        break;
    }
    if (code == -ENOENT && !s->chroot && access(p->program, F_OK) == 0)
        return err_set(err, code, "cannot start '%s': the program that its first line or its header names is not there", program);
    if (code == -ENOEXEC)
        return err_set(err, code, "cannot start '%s': it is no program for this machine, or a script without a line '#!' at its top", program);
    return err_sys(err, code, "cannot start '%s'", program);
}

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

int os_find_program(const char *name, struct buf *out, struct err *err)
{
    const char *usual = getenv("PATH");
    struct str path = str_of(usual && *usual ? usual : PATH_DEFAULT);
    while (path.ptr) {
        struct str dir = str_split(&path, ':');
        if (dir.len == 0 || dir.ptr[0] != '/')
            continue; /* what runs must not depend on where we stand */
        buf_clear(out);
        buf_add_str(out, dir);
        buf_addf(out, "/%s", name);
        if (buf_status(out) == 0 && is_program(out->ptr))
            return 0;
    }
    char text[OS_PATH_TEXT];
    return err_set(err, -ENOENT, "program '%s' is not found in PATH; install it", os_path_text(AT_FDCWD, name, text));
}

/* The account's own groups, as a login would give: the device nodes of cards often belong to one of them. */
static int find_groups(struct plan *p, struct err *err)
{
    const struct os_spawn *s = p->s;
    if (s->uid == 0)
        return err_set(err, -EINVAL, "cannot give up root to user 0; name another account");
    char room[OS_ACCOUNT_ROOM];
    struct passwd entry, *found = NULL;
    int n = GROUPS_MAX;
    if (getpwuid_r(s->uid, &entry, room, sizeof(room), &found) == 0 && found) {
        if (getgrouplist(entry.pw_name, s->gid, p->groups, &n) < 0)
            n = GROUPS_MAX;
        p->n_groups = (size_t)n;
    }
    return 0;
}

static int make_fds(struct plan *p, struct err *err)
{
    const struct os_spawn *s = p->s;
    p->n_fds = 3 + s->n_keep_fds;
    p->fds = calloc(p->n_fds, sizeof(*p->fds));
    if (!p->fds)
        return err_nomem(err);
    p->fds[0] = s->stdin_fd;
    p->fds[1] = s->stdout_fd;
    p->fds[2] = s->stderr_fd;
    for (size_t i = 0; i < s->n_keep_fds; i++) {
        assert(s->keep_fds[i] >= 0);
        p->fds[3 + i] = s->keep_fds[i];
    }
    return 0;
}

static void collect(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* Waits until the child has become the program or said why not. */
static int await_exec(const struct plan *p, int report_fd, pid_t pid, struct err *err)
{
    struct report r;
    ssize_t n;
    do {
        n = read(report_fd, &r, sizeof(r));
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(r))
        return 0;
    collect(pid);
    return report_error(p, &r, err);
}

/* As fork does, but for the namespaces, which libc has no function for. */
static pid_t fork_apart(struct plan *p)
{
    if (!p->s->own_pids)
        return fork();
    p->new_user = geteuid() != 0;
    snprintf(p->uid_map, sizeof(p->uid_map), "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
    snprintf(p->gid_map, sizeof(p->gid_map), "%u %u 1", (unsigned)getegid(), (unsigned)getegid());
    unsigned long flags = CLONE_NEWPID | (p->new_user ? CLONE_NEWUSER : 0) | SIGCHLD;
    return (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
}

static bool try_own_pids(void)
{
    const struct os_spawn s = {.own_pids = true};
    struct plan p = {.s = &s, .report_fd = -1};
    int status = -1;
    pid_t pid = fork_apart(&p);
    if (pid == 0) {
        make_user(&p);
        make_mounts(&p);
        _exit(0);
    }
    if (pid < 0)
        return false;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status == 0;
}

bool os_own_pids_possible(void)
{
    static enum { UNKNOWN, NO, YES } found;
    if (found == UNKNOWN)
        found = try_own_pids() ? YES : NO;
    return found == YES;
}

static int start(struct plan *p, struct os_proc *ret, struct err *err)
{
    char text[OS_PATH_TEXT];
    const char *program = os_path_text(AT_FDCWD, p->s->argv[0], text);
    os_autoclose int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return err_sys(err, -errno, "cannot open '/dev/null'");
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_sys(err, -errno, "cannot start '%s': no pipe", program);
    os_autoclose int report_in = ends[0], report_out = ends[1];
    p->null_fd = null_fd;
    p->report_fd = report_out;
    /* No handler of ours may run in the child, so everything is blocked until they are reset there. */
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork_apart(p);
    if (pid == 0) {
        (void)close(report_in); /* the parent's alone */
        become(p);
    }
    int code = -errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        return err_sys(err, code, "cannot start '%s'%s", program, p->s->own_pids ? ": no namespace of processes" : "");
    os_autoclose int pidfd = pidfd_open(pid, 0);
    if (pidfd < 0) {
        code = -errno;
        (void)kill(pid, SIGKILL);
        collect(pid);
        return err_sys(err, code, "cannot start '%s': no process descriptor", program);
    }
    os_closep(&report_out);
    int r = await_exec(p, report_in, pid, err);
    if (r < 0)
        return r;
    *ret = (struct os_proc){.pid = pid, .pidfd = os_take_fd(&pidfd), .told = base_take_ptr(p->told)};
    return 0;
}

static int share_told(struct plan *p, struct err *err)
{
    void *page = mmap(NULL, sizeof(*p->told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return err_nomem(err);
    p->told = page;
    *p->told = OS_INIT_SILENT;
    return 0;
}

int os_spawn(const struct os_spawn *s, struct os_proc *ret, struct err *err)
{
    assert(s->argv && s->argv[0]);
    assert(!(s->use_path && s->chroot)); /* our PATH says nothing about another tree */
    assert(s->death_signal == 0 || gettid() == getpid());
    assert(!s->own_init || s->own_pids);
    base_autobuf struct buf path = BUF_INIT(4096);
    struct plan p = {.s = s, .program = s->argv[0]};
    if (s->use_path && !strchr(s->argv[0], '/')) {
        int r = os_find_program(s->argv[0], &path, err);
        if (r < 0)
            return r;
        p.program = path.ptr;
    }
    int r = make_fds(&p, err);
    if (r == 0 && s->drop)
        r = find_groups(&p, err);
    if (r == 0 && s->own_init)
        r = share_told(&p, err);
    if (r == 0)
        r = start(&p, ret, err);
    if (p.told)
        (void)munmap(p.told, sizeof(*p.told));
    free(p.fds);
    return r;
}
