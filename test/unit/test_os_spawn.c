/* SPDX-License-Identifier: MIT
 *
 * Children: what reaches them and what does not, how failures before exec come back, how they die with us, and whole runs. The
 * test's own program is the child where it matters what a child sees: called with a word it does that and exits.
 */
#include <os/os.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define SELF "/proc/self/exe"
#define PATIENCE_MS 10000 /* how long an event may take before the test fails */

/* ---- the child's side ---------------------------------------------------------------------------- */

static int say_fds(void)
{
    for (int fd = 0; fd < 200; fd++) {
        char link[64], target[256];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof(target));
        if (n > 0)
            printf("%d=%.*s ", fd, (int)n, target);
    }
    return 0;
}

static int say_signals(void)
{
    char line[256];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "SigBlk", 6) == 0 || strncmp(line, "SigIgn", 6) == 0)
            printf("%s", line);
    return f ? fclose(f) : 1;
}

static int child(const char *word)
{
    if (strcmp(word, "fds") == 0)
        return say_fds();
    if (strcmp(word, "signals") == 0)
        return say_signals();
    if (strcmp(word, "group") == 0)
        return printf("%d %d", getsid(0) == getpid(), getpgrp() == getpid()) < 0;
    if (strcmp(word, "wait") == 0) {
        alarm(60); /* should a test fail, nothing stays for long */
        for (;;)
            pause();
    }
    return 99;
}

/* ---- helpers ------------------------------------------------------------------------------------- */

static const char *const usual_env[] = {"PATH=/usr/bin:/bin", "ASAN_OPTIONS=detect_leaks=0", NULL};

static struct os_spawn command(const char *const *argv)
{
    return (struct os_spawn){.argv = argv, .envp = usual_env, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
}

/* Runs to the end; the output must be text, the status 0. */
static void assert_says(const struct os_spawn *s, const char *text)
{
    base_autobuf struct buf out = BUF_INIT(65536);
    struct err err = {0};
    int status = -1;
    if (os_run(s, PATIENCE_MS, &out, NULL, &status, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(out.ptr ? out.ptr : "", text);
    assert_int_equal(status, 0);
}

/* No child of this process is left, ended or not. */
static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static bool has_event(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, PATIENCE_MS) == 1;
}

static bool is_root(void)
{
    return geteuid() == 0;
}

/* In a process of its own whose mounts are its own: exit 0 when everything was as expected. */
static int in_own_mounts(int (*check)(const char *dir))
{
    char dir[] = "/tmp/berth-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
            _exit(77);
        _exit(check(dir));
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    int tmp = os_open_dir("/tmp", NULL);
    struct err err = {0};
    if (os_remove_tree(tmp, dir + strlen("/tmp/"), &err) < 0)
        fail_msg("%s", err.text);
    close(tmp);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("skipped: no mount namespaces here\n");
        return 0;
    }
    return status;
}

/* ---- starting ------------------------------------------------------------------------------------ */

static void test_run(void **state)
{
    (void)state;
    const char *argv[] = {"/bin/sh", "-c", "echo out; echo err >&2; exit 3", NULL};
    struct os_spawn s = command(argv);
    base_autobuf struct buf out = BUF_INIT(100), errout = BUF_INIT(100);
    int status = -1;
    char text[OS_STATUS_TEXT];
    assert_int_equal(os_run(&s, 0, &out, &errout, &status, NULL), 0);
    assert_string_equal(out.ptr, "out\n");
    assert_string_equal(errout.ptr, "err\n");
    assert_string_equal(os_status_text(status, text), "exit 3");
    assert_no_child();
}

static void test_environment(void **state)
{
    (void)state;
    static const char *const env[] = {"A=1", "B=two words", NULL};
    const char *argv[] = {"env", NULL};
    setenv("BERTH_SECRET", "x", 1);
    struct os_spawn s = command(argv);
    s.use_path = true;
    s.envp = env;
    assert_says(&s, "A=1\nB=two words\n");
    s.envp = NULL;
    assert_says(&s, "");
    unsetenv("BERTH_SECRET");
}

static void test_path(void **state)
{
    (void)state;
    struct err err = {0};
    const char *argv[] = {"true", NULL}, *none[] = {"no-such-program-here", NULL};
    struct os_spawn s = command(argv);
    struct os_proc proc = OS_PROC_NONE;
    int status;
    base_autofree char *before = str_dup(str_of(getenv("PATH")));
    s.use_path = true;
    setenv("PATH", ":.:relative:/nowhere:/usr/bin:/bin", 1);
    assert_int_equal(os_run(&s, PATIENCE_MS, NULL, NULL, &status, &err), 0);
    assert_int_equal(status, 0);
    s.argv = none;
    assert_int_equal(os_spawn(&s, &proc, &err), -ENOENT);
    assert_string_equal(err.text, "program 'no-such-program-here' is not found in PATH; install it");
    setenv("PATH", ".", 1);
    s.argv = argv;
    assert_int_equal(os_spawn(&s, &proc, &err), -ENOENT);
    setenv("PATH", before ? before : "", 1);
    /* Without use_path a bare name is a file of the current folder. */
    s.use_path = false;
    assert_int_equal(os_spawn(&s, &proc, &err), -ENOENT);
    assert_string_equal(err.text, "cannot start 'true': No such file or directory");
    assert_int_equal(proc.pidfd, -1);
    assert_no_child();
}

static void test_failures(void **state)
{
    (void)state;
    struct err err = {0};
    struct os_proc proc = OS_PROC_NONE;
    const char *argv[] = {"/bin/true", NULL}, *folder[] = {"/tmp", NULL};
    struct os_spawn s = command(argv);
    s.cwd = "/no/such/folder";
    assert_int_equal(os_spawn(&s, &proc, &err), -ENOENT);
    assert_string_equal(err.text, "cannot start '/bin/true': cannot go to folder '/no/such/folder': No such file or directory");
    s.cwd = NULL;
    s.chroot = "/no/such/tree";
    int r = os_spawn(&s, &proc, &err);
    assert_true(r == -ENOENT || r == -EPERM);
    assert_non_null(strstr(err.text, "cannot enter the tree '/no/such/tree'"));
    s.chroot = NULL;
    s.stdout_fd = 999;
    assert_int_equal(os_spawn(&s, &proc, &err), -EBADF);
    assert_non_null(strstr(err.text, "descriptors cannot be placed"));
    s.stdout_fd = -1;
    s.death_signal = 12345;
    assert_int_equal(os_spawn(&s, &proc, &err), -EINVAL);
    assert_non_null(strstr(err.text, "parent-death signal 12345"));
    s.death_signal = 0;
    s.drop = true; /* to user 0 */
    assert_int_equal(os_spawn(&s, &proc, &err), -EINVAL);
    s = command(folder);
    assert_int_equal(os_spawn(&s, &proc, &err), -EACCES);
    assert_string_equal(err.text, "cannot start '/tmp': Permission denied");
    assert_int_equal(proc.pidfd, -1);
    assert_no_child();
}

static void test_cwd(void **state)
{
    (void)state;
    const char *argv[] = {"/bin/pwd", NULL};
    struct os_spawn s = command(argv);
    s.cwd = "/usr";
    assert_says(&s, "/usr\n");
}

/* ---- descriptors, signals, groups ---------------------------------------------------------------- */

/* Not close-on-exec: only os_spawn keeps it from the child. */
static void named_fd(const char *name, int fd)
{
    int made = memfd_create(name, 0);
    if (made != fd) {
        dup2(made, fd);
        close(made);
    }
}

/* The targets are 3, 4, 5, 6; the sources lie on them in another order, and one is wanted twice. */
static int check_fds(void)
{
    const char *argv[] = {SELF, "fds", NULL};
    (void)close_range(3, ~0u, 0);
    named_fd("b", 3);
    named_fd("c", 4);
    named_fd("a", 5);
    named_fd("leak", 6);
    named_fd("far", 150);
    named_fd("in", 7);
    int out[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return 2;
    const int keep[] = {5, 3, 4, 3};
    struct os_spawn s = command(argv);
    s.stdin_fd = 7;
    s.stdout_fd = out[1];
    s.keep_fds = keep;
    s.n_keep_fds = 4;
    struct os_proc proc = OS_PROC_NONE;
    if (os_spawn(&s, &proc, NULL) < 0)
        return 3;
    close(out[1]);
    base_autobuf struct buf text = BUF_INIT(4096);
    if (os_read_all(out[0], &text, NULL) < 0)
        return 4;
    const char *rest = strstr(text.ptr, " 2=");
    if (!str_starts(buf_str(&text), STR("0=/memfd:in (deleted) 1=pipe:")) || !rest)
        return 5;
    return strcmp(rest, " 2=/dev/null 3=/memfd:a (deleted) 4=/memfd:b (deleted) 5=/memfd:c (deleted) 6=/memfd:b (deleted) ") ? 6 : 0;
}

static void test_fds(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(check_fds());
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Also when our own 0, 1 and 2 are closed. */
static void test_fds_closed(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        const char *argv[] = {SELF, "fds", NULL};
        struct os_spawn s = command(argv);
        base_autobuf struct buf out = BUF_INIT(4096);
        int status = -1;
        close(0);
        close(1);
        close(2);
        int r = os_run(&s, PATIENCE_MS, &out, NULL, &status, NULL);
        bool right = r == 0 && status == 0 && str_starts(buf_str(&out), STR("0=/dev/null 1=pipe:")) &&
                     str_ends(buf_str(&out), STR(" 2=/dev/null "));
        _exit(right ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_signals(void **state)
{
    (void)state;
    const char *argv[] = {SELF, "signals", NULL};
    sigset_t blocked, before, after;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    void (*usual)(int) = signal(SIGPIPE, SIG_IGN);
    struct os_spawn s = command(argv);
    assert_says(&s, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    sigprocmask(SIG_SETMASK, &before, &after);
    assert_true(sigismember(&after, SIGUSR1) == 1 && sigismember(&after, SIGTERM) == 1 && sigismember(&after, SIGHUP) == 0);
    signal(SIGPIPE, usual);
}

static void test_group(void **state)
{
    (void)state;
    const char *argv[] = {SELF, "group", NULL};
    struct os_spawn s = command(argv);
    assert_says(&s, "0 0");
    s.new_group = true;
    assert_says(&s, "1 1");
}

static void test_signal_and_reap(void **state)
{
    (void)state;
    const char *argv[] = {SELF, "wait", NULL};
    struct os_spawn s = command(argv);
    struct os_proc proc = OS_PROC_NONE;
    int status = -1;
    char text[OS_STATUS_TEXT];
    assert_int_equal(os_proc_signal(&proc, SIGTERM), -ESRCH);
    assert_int_equal(os_proc_reap(&proc, &status), -ECHILD);
    assert_int_equal(os_spawn(&s, &proc, NULL), 0);
    assert_true(fcntl(proc.pidfd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(os_proc_reap(&proc, &status), 0);
    os_autoclose int other = os_pidfd_open(proc.pid);
    assert_true(other >= 0);
    assert_int_equal(os_proc_signal(&proc, 0), 0);
    assert_int_equal(os_proc_signal(&proc, SIGTERM), 0);
    assert_true(has_event(proc.pidfd));
    assert_int_equal(os_proc_signal(&proc, SIGTERM), -ESRCH);
    pid_t pid = proc.pid;
    assert_int_equal(os_proc_reap(&proc, &status), 1);
    assert_string_equal(os_status_text(status, text), "killed by SIGTERM");
    assert_int_equal(os_proc_reap(&proc, &status), -ECHILD);
    os_proc_release(&proc);
    assert_int_equal(proc.pidfd, -1);
    assert_int_equal(os_pidfd_open(pid), -ESRCH);
    assert_int_equal(os_pidfd_open(0), -ESRCH);
    assert_string_equal(os_status_text(SIGSEGV | 0x80, text), "killed by SIGSEGV (core dumped)");
    assert_string_equal(os_status_text(SIGRTMIN + 3, text), "killed by signal 37");
    assert_string_equal(os_status_text(0, text), "exit 0");
}

/* ---- dying together ------------------------------------------------------------------------------ */

/* A process in between starts a child that holds a pipe's end and then dies without a word. True when the child died with it. */
static bool dies_with_parent(bool drop)
{
    int life[2];
    assert_int_equal(pipe2(life, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        const char *argv[] = {"/bin/sleep", "60", NULL};
        struct os_spawn s = command(argv);
        struct os_proc proc = OS_PROC_NONE;
        s.death_signal = SIGKILL;
        s.keep_fds = &life[1];
        s.n_keep_fds = 1;
        s.drop = drop;
        s.uid = 65534;
        s.gid = 65534;
        if (os_spawn(&s, &proc, NULL) < 0)
            _exit(1);
        ssize_t n = write(life[1], "s", 1);
        kill(getpid(), n == 1 ? SIGKILL : SIGTERM);
    }
    close(life[1]);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    char c = 0;
    assert_int_equal(read(life[0], &c, 1), 1); /* the child had started */
    bool ended = has_event(life[0]) && read(life[0], &c, 1) == 0;
    close(life[0]);
    return ended;
}

static void test_death_signal(void **state)
{
    (void)state;
    assert_true(dies_with_parent(false));
}

/* setuid clears the signal, so it must have been set after it. */
static void test_death_signal_after_drop(void **state)
{
    (void)state;
    if (!is_root()) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    assert_true(dies_with_parent(true));
}

/* ---- a namespace of processes -------------------------------------------------------------------------- */

static struct os_spawn apart(const char *const *argv, const int *life)
{
    struct os_spawn s = command(argv);
    s.own_pids = true;
    s.death_signal = SIGKILL;
    s.keep_fds = life;
    s.n_keep_fds = 1;
    return s;
}

/* The first process there, which sees no other; what it has started ends with it. */
static int check_own_pids(const char *dir)
{
    static const char *const look[] = {"/bin/sh", "-c", "echo $$ /proc/[0-9]*", NULL};
    static const char *const leave[] = {"/bin/sh", "-c", "sleep 60 & printf s >&3; wait", NULL};
    (void)dir;
    base_autobuf struct buf out = BUF_INIT(4096);
    struct err err = {0};
    int life[2], status = -1;
    char c = 0;
    if (pipe2(life, O_CLOEXEC) < 0)
        return 1;
    struct os_spawn s = apart(look, &life[1]);
    int r = os_run(&s, PATIENCE_MS, &out, NULL, &status, &err);
    if (!os_own_pids_possible())
        return r < 0 ? 77 : 8;
    if (r < 0 || strcmp(out.ptr, "1 /proc/1\n") != 0) {
        print_error("%s, %s", err.text, out.ptr ? out.ptr : "nothing");
        return 2;
    }
    struct os_proc proc = OS_PROC_NONE;
    s = apart(leave, &life[1]);
    if (os_spawn(&s, &proc, &err) < 0)
        return 3;
    close(life[1]);
    if (!has_event(life[0]) || read(life[0], &c, 1) != 1 || c != 's')
        return 4;
    if (os_proc_signal(&proc, SIGKILL) < 0 || !has_event(proc.pidfd))
        return 5;
    return has_event(life[0]) && read(life[0], &c, 1) == 0 ? 0 : 6;
}

static int as_nobody(int (*check)(const char *dir), const char *dir)
{
    if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
        return 7;
    return check(dir);
}

static int check_own_pids_as_nobody(const char *dir)
{
    return as_nobody(check_own_pids, dir);
}

static void test_own_pids(void **state)
{
    (void)state;
    assert_int_equal(in_own_mounts(check_own_pids), 0);
    if (is_root())
        assert_int_equal(in_own_mounts(check_own_pids_as_nobody), 0);
}

/* ---- with a small first process in it ---------------------------------------------------------------- */

/* How a script ends under an init, and what it says; -1: not at all. */
static int end_of(const char *script, struct buf *out)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct err err = {0};
    int status = -1;
    struct os_spawn s = command(argv);
    s.own_pids = s.own_init = s.new_group = s.end_group = true;
    s.death_signal = SIGKILL;
    buf_clear(out);
    if (os_run(&s, PATIENCE_MS, out, NULL, &status, &err) < 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    return status;
}

static int check_init_ends(const char *dir)
{
    base_autobuf struct buf out = BUF_INIT(4096);
    (void)dir;
    int status = end_of("exit 7", &out);
    if (!os_own_pids_possible())
        return status == -1 ? 77 : 8;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
        return 1;
    for (int sig = 1; sig < 16; sig++) { /* each that ends a program, sent to itself */
        char script[64];
        snprintf(script, sizeof(script), "kill -%d $$; exit 9", sig);
        status = end_of(script, &out);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != sig) {
            print_error("signal %d: status %d\n", sig, status);
            return 2;
        }
    }
    /* signals to all, and to the first */
    status = end_of("kill -9 -1; kill -9 1; exit 3", &out);
    if (status != (3 << 8))
        return 3;
    /* an orphan is collected, or its number would stay; os_run has an eye on the clock */
    status = end_of("pid=$( (sh -c 'echo $$; exec >&-; exit 5') & ); while [ -e /proc/$pid ]; do :; done; echo gone", &out);
    if (status != 0 || strcmp(out.ptr, "gone\n") != 0)
        return 4;
    /* what has left session and group ends too, and is not waited for */
    status = end_of("setsid sleep 600 & exit 0", &out);
    return status == 0 ? 0 : 5;
}

/* Signals from outside reach the program; its memory is its own; what it leaves behind is gone when it is collected. */
static int check_init_passes(const char *dir)
{
    static const char *const argv[] = {"/bin/sh", "-c", "trap 'exit 4' TERM; sleep 600 & printf s >&3; wait", NULL};
    (void)dir;
    int life[2], status = -1;
    char c = 0;
    if (pipe2(life, O_CLOEXEC) < 0)
        return 1;
    struct os_proc proc = OS_PROC_NONE;
    struct os_spawn s = apart(argv, &life[1]);
    s.own_init = true;
    if (os_spawn(&s, &proc, NULL) < 0)
        return os_own_pids_possible() ? 2 : 77;
    close(life[1]);
    if (!has_event(life[0]) || read(life[0], &c, 1) != 1 || c != 's')
        return 3;
    if (os_proc_signal(&proc, SIGTERM) < 0 || !has_event(proc.pidfd))
        return 4;
    if (os_proc_reap(&proc, &status) != 1 || !WIFEXITED(status) || WEXITSTATUS(status) != 4)
        return 5;
    os_proc_release(&proc);
    return read(life[0], &c, 1) == 0 ? 0 : 6;
}

/* A program that is not there is told as without. */
static int check_init_no_program(const char *dir)
{
    static const char *const argv[] = {"/nonexistent/program", NULL};
    (void)dir;
    struct os_proc proc = OS_PROC_NONE;
    struct err err = {0};
    struct os_spawn s = command(argv);
    s.own_pids = s.own_init = true;
    int r = os_spawn(&s, &proc, &err);
    if (!os_own_pids_possible())
        return 77;
    return r == -ENOENT && proc.pid == 0 && proc.told == NULL ? 0 : 1;
}

static int check_init_ends_as_nobody(const char *dir)
{
    return as_nobody(check_init_ends, dir);
}

static int check_init_passes_as_nobody(const char *dir)
{
    return as_nobody(check_init_passes, dir);
}

static void test_own_init(void **state)
{
    (void)state;
    assert_int_equal(in_own_mounts(check_init_ends), 0);
    assert_int_equal(in_own_mounts(check_init_passes), 0);
    assert_int_equal(in_own_mounts(check_init_no_program), 0);
    if (is_root()) {
        assert_int_equal(in_own_mounts(check_init_ends_as_nobody), 0);
        assert_int_equal(in_own_mounts(check_init_passes_as_nobody), 0);
    }
}

static void test_kill_group(void **state)
{
    static const char *const leave[] = {"/bin/sh", "-c", "sleep 60 & printf s >&3", NULL};
    (void)state;
    int life[2], status = -1;
    char c = 0;
    assert_int_equal(pipe2(life, O_CLOEXEC), 0);
    struct os_proc proc = OS_PROC_NONE;
    struct os_spawn s = apart(leave, &life[1]);
    s.own_pids = false;
    s.new_group = true;
    assert_int_equal(os_spawn(&s, &proc, NULL), 0);
    close(life[1]);
    assert_true(has_event(proc.pidfd));
    assert_int_equal(read(life[0], &c, 1), 1);
    os_proc_kill_group(&proc);
    assert_true(has_event(life[0]));
    assert_int_equal(read(life[0], &c, 1), 0);
    assert_int_equal(os_proc_reap(&proc, &status), 1);
    assert_int_equal(status, 0);
    os_proc_kill_group(&proc); /* collected: nobody's number */
    os_proc_release(&proc);
    close(life[0]);
}

/* The parent dies, and with it the child's child. */
static int check_die(bool init)
{
    static const char *const leave[] = {"/bin/sh", "-c", "sleep 60 & printf s >&3; wait", NULL};
    int life[2];
    char c = 0;
    if (pipe2(life, O_CLOEXEC) < 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        struct os_proc proc = OS_PROC_NONE;
        struct os_spawn s = apart(leave, &life[1]);
        s.own_init = init;
        int r = os_spawn(&s, &proc, NULL);
        if (r < 0)
            _exit(os_own_pids_possible() ? 2 : 77);
        close(life[1]);
        (void)has_event(life[0]);
        kill(getpid(), SIGKILL);
    }
    close(life[1]);
    int status = -1;
    if (waitpid(pid, &status, 0) != pid)
        return 3;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (read(life[0], &c, 1) != 1 || c != 's')
        return 4;
    return has_event(life[0]) && read(life[0], &c, 1) == 0 ? 0 : 5;
}

static int check_own_pids_die(const char *dir)
{
    (void)dir;
    return check_die(false);
}

static int check_own_init_dies(const char *dir)
{
    (void)dir;
    return check_die(true);
}

static void test_own_pids_die(void **state)
{
    (void)state;
    assert_int_equal(in_own_mounts(check_own_pids_die), 0);
    assert_int_equal(in_own_mounts(check_own_init_dies), 0);
}

static void test_child_of(void **state)
{
    static const char *const wait[] = {SELF, "wait", NULL};
    (void)state;
    struct os_spawn s = command(wait);
    struct os_proc proc = OS_PROC_NONE;
    assert_int_equal(os_proc_child(getpid()), 0);
    assert_int_equal(os_spawn(&s, &proc, NULL), 0);
    assert_int_equal(os_proc_child(getpid()), proc.pid);
    assert_int_equal(os_proc_child(proc.pid), 0);
    assert_int_equal(os_proc_signal(&proc, SIGKILL), 0);
    int status = -1;
    assert_int_equal(waitpid(proc.pid, &status, 0), proc.pid);
    os_proc_release(&proc);
}

/* ---- the beginning of a process ------------------------------------------------------------------------ */

/* 0 when all is as it should be. */
static int begin_closed(void)
{
    static const char *const argv[] = {"/bin/sh", "-c", "ulimit -n", NULL};
    base_autobuf struct buf out = BUF_INIT(256);
    struct rlimit r = {.rlim_cur = 77, .rlim_max = 99};
    int status = -1;
    char c;
    close(0);
    close(2);
    if (setrlimit(RLIMIT_NOFILE, &r) < 0)
        return 1;
    os_begin();
    if (os_fds_max() != 99)
        return 2;
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    if (fd <= 2 || write(2, "x", 1) != -1 || errno != EBADF || read(0, &c, 1) != -1 || errno != EBADF)
        return 3;
    struct os_spawn s = command(argv);
    if (os_run(&s, PATIENCE_MS, &out, NULL, &status, NULL) < 0 || status != 0)
        return 4;
    return strcmp(out.ptr, "77\n") == 0 ? 0 : 5;
}

static void test_begin(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(begin_closed());
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- interrupted work ---------------------------------------------------------------------------------- */

static int count_visits(void *ctx, const struct os_entry *e, struct err *err)
{
    (void)e;
    (void)err;
    ++*(int *)ctx;
    return 0;
}

/* Ends by SIGTERM when all is as it should be, else with a number. */
static int interrupt(void)
{
    static const char *const term_parent[] = {"/bin/sh", "-c", "kill -TERM $PPID; sleep 60", NULL};
    struct os_spawn s = command(term_parent);
    struct err err = {0};
    int status = -1, visits = 0;
    s.new_group = true;
    (void)signal(SIGHUP, SIG_IGN);
    os_interrupt_begin();
    (void)raise(SIGHUP); /* ignored before, ignored now */
    if (os_interrupted())
        return 1;
    os_interrupt_begin();
    if (os_run(&s, PATIENCE_MS, NULL, NULL, &status, &err) != -EINTR || strcmp(err.text, "interrupted") != 0)
        return 2;
    if (!os_interrupted() || waitpid(-1, NULL, WNOHANG) != -1)
        return 3;
    os_interrupt_end();
    int fd = os_open_dir("/proc/self", NULL);
    if (os_walk(fd, count_visits, &visits, &err) != -EINTR || visits != 0)
        return 4;
    os_interrupt_end();
    return 5;
}

static void test_interrupt(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(interrupt());
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, SIGTERM);
    os_interrupt_begin();
    assert_false(os_interrupted());
    os_interrupt_end();
    assert_int_equal(os_interrupt_fd(), -1);
}

/* Outside of os_interrupt_begin too: a signal that ends us ends the command's group, and then us. */
static void test_run_ends_with_us(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        static const char *const argv[] = {"/bin/sh", "-c", "sleep 60 & kill -TERM $PPID; wait", NULL};
        struct os_spawn s = command(argv);
        const int keep[] = {fds[1]};
        int status = -1;
        s.new_group = true;
        s.keep_fds = keep;
        s.n_keep_fds = 1;
        close(fds[0]);
        base_ignore(os_run(&s, PATIENCE_MS, NULL, NULL, &status, NULL));
        _exit(1);
    }
    int status = -1;
    char c;
    close(fds[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, SIGTERM);
    assert_true(has_event(fds[0])); /* nobody has the other end any more: shell and sleep are gone */
    assert_int_equal(read(fds[0], &c, 1), 0);
    close(fds[0]);
}

/* ---- rights and mounts (root) -------------------------------------------------------------------- */

static void test_drop(void **state)
{
    (void)state;
    if (!is_root()) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    const char *argv[] = {"/bin/sh", "-c", "id -u; id -g; id -G; grep -E 'Cap(Prm|Eff)|NoNewPrivs|Groups' /proc/self/status", NULL};
    struct os_spawn s = command(argv);
    s.drop = true;
    s.uid = 12345; /* no account */
    s.gid = 23456;
    assert_says(&s, "12345\n23456\n23456\nGroups:\t \nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
}

/* A tree of /usr alone, entered with a bind whose own nested mount must be read-only as well and stay nosuid. */
static int check_tree(const char *dir)
{
    char tree[128], from[128], path[256];
    snprintf(tree, sizeof(tree), "%s/tree", dir);
    snprintf(from, sizeof(from), "%s/from", dir);
    static const char *const dirs[] = {"tree/usr", "tree/data", "tree/proc", "from/sub"};
    for (size_t i = 0; i < BASE_COUNT(dirs); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, dirs[i]);
        if (os_make_dirs(path, 0755, NULL) < 0)
            return 2;
    }
    static const char *const links[] = {"bin", "lib", "lib64"};
    for (size_t i = 0; i < BASE_COUNT(links); i++) {
        char target[32];
        snprintf(target, sizeof(target), "usr/%s", links[i]);
        snprintf(path, sizeof(path), "%s/%s", tree, links[i]);
        if (symlink(target, path) < 0)
            return 3;
    }
    snprintf(path, sizeof(path), "%s/sub", from);
    if (mount("none", path, "tmpfs", MS_NOSUID | MS_NODEV, NULL) < 0)
        return 4;
    char usr[160], data[160], proc[160];
    snprintf(usr, sizeof(usr), "%s/usr", tree);
    snprintf(data, sizeof(data), "%s/data", tree);
    snprintf(proc, sizeof(proc), "%s/proc", tree);
    const struct os_bind binds[] = {{"/usr", usr}, {from, data}, {"/proc", proc}};
    const char *argv[] = {"/bin/sh", "-c",
                          "cd /; echo *; pwd; echo x 2>/dev/null >/data/a || echo fixed; echo x 2>/dev/null >/data/sub/a || echo fixed; "
                          "grep /data/sub /proc/self/mounts | cut -d ' ' -f 4 | cut -d , -f 1-3",
                          NULL};
    struct os_spawn s = command(argv);
    s.binds = binds;
    s.n_binds = 3;
    s.chroot = tree;
    base_autobuf struct buf out = BUF_INIT(4096);
    struct err err = {0};
    int status = -1;
    if (os_run(&s, PATIENCE_MS, &out, NULL, &status, &err) < 0 || status != 0) {
        print_error("%s (%d)\n", err.text, status);
        return 5;
    }
    if (!str_eq_c(buf_str(&out), "bin data lib lib64 proc usr\n/\nfixed\nfixed\nro,nosuid,nodev\n")) {
        print_error("%s\n", out.ptr);
        return 6;
    }
    /* The source and our own mounts are as before. */
    snprintf(path, sizeof(path), "%s/sub/w", from);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    snprintf(path, sizeof(path), "%s/share", usr);
    if (fd < 0 || access(path, F_OK) == 0)
        return 7;
    close(fd);
    return 0;
}

static void test_tree(void **state)
{
    (void)state;
    if (!is_root()) {
        print_message("skipped: only root can mount\n");
        skip();
    }
    assert_int_equal(in_own_mounts(check_tree), 0);
}

static void test_bind_fails(void **state)
{
    (void)state;
    struct os_proc proc = OS_PROC_NONE;
    struct err err = {0};
    const char *argv[] = {"/bin/true", NULL};
    const struct os_bind binds[] = {{"/usr", "/no/such/place"}};
    struct os_spawn s = command(argv);
    s.binds = binds;
    s.n_binds = 1;
    int r = os_spawn(&s, &proc, &err);
    assert_true(r == -ENOENT || r == -EPERM);
    if (r == -ENOENT)
        assert_string_equal(err.text, "cannot start: '/usr' cannot be mounted on '/no/such/place': No such file or directory");
    assert_no_child();
}

/* Removing a tree stops at something mounted in it, a bind of the same file system included. */
static int check_remove_mount(const char *dir)
{
    char path[128], keep[128];
    struct err err = {0};
    snprintf(keep, sizeof(keep), "%s/keep", dir);
    snprintf(path, sizeof(path), "%s/t/mounted", dir);
    if (os_make_dirs(keep, 0755, NULL) < 0 || os_make_dirs(path, 0755, NULL) < 0)
        return 2;
    int fd = os_open_dir(keep, NULL), top = os_open_dir(dir, NULL);
    if (os_write_atomic(fd, "file", "kept", 4, 0600, NULL) < 0 || mount(keep, path, NULL, MS_BIND, NULL) < 0)
        return 3;
    if (os_remove_tree(top, "t", &err) != -EXDEV || !strstr(err.text, "t/mounted'"))
        return 4;
    base_autobuf struct buf text = BUF_INIT(10);
    int r = os_read_file(fd, "file", &text, NULL);
    close(fd);
    close(top);
    return r < 0 ? 5 : 0;
}

static void test_remove_mount(void **state)
{
    (void)state;
    if (!is_root()) {
        print_message("skipped: only root can mount\n");
        skip();
    }
    assert_int_equal(in_own_mounts(check_remove_mount), 0);
}

/* ---- whole runs ---------------------------------------------------------------------------------- */

static void test_run_over_ceiling(void **state)
{
    (void)state;
    const char *argv[] = {"/bin/sh", "-c", "head -c 300000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2; exit 7", NULL};
    struct os_spawn s = command(argv);
    base_autobuf struct buf out = BUF_INIT(1000), errout = BUF_INIT(0);
    struct err err = {0};
    int status = -1;
    char text[OS_STATUS_TEXT];
    if (os_run(&s, PATIENCE_MS, &out, &errout, &status, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(os_status_text(status, text), "exit 7"); /* it was not stopped by a full pipe */
    assert_int_equal(out.len, 1000);
    assert_int_equal(buf_status(&out), 0);
    assert_int_equal(out.ptr[999], 'o');
    assert_int_equal(errout.len, 0);
}

/* How a script ends, in os_run_ok's words. */
static int run_script(const char *script, struct buf *out, struct err *err)
{
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    struct os_spawn s = command(argv);
    return os_run_ok(&s, PATIENCE_MS, out, err);
}

static void test_run_ok(void **state)
{
    (void)state;
    base_autobuf struct buf out = BUF_INIT(1000);
    struct err err = {0};
    assert_int_equal(run_script("echo said; echo only a warning >&2", &out, &err), 0);
    assert_string_equal(out.ptr, "said\n");
    assert_int_equal(run_script("exit 3", NULL, &err), -EIO);
    assert_string_equal(err.text, "exit 3: no reason given");
    assert_int_equal(run_script("echo '  E: no disk  ' >&2; echo >&2; printf 'E: \\033[1mgave up\\n' >&2; exit 1", NULL, &err), -EIO);
    assert_string_equal(err.text, "exit 1: E: no disk; E: \\x1b[1mgave up");
    assert_int_equal(run_script("echo going >&2; kill -9 $$", NULL, &err), -EIO);
    assert_string_equal(err.text, "killed by SIGKILL: going");
    const char *argv[] = {"/no/such/program", NULL};
    struct os_spawn s = command(argv);
    assert_int_equal(os_run_ok(&s, PATIENCE_MS, NULL, &err), -ENOENT);
}

/* The reason stands at the end, however much comes before it. */
static void test_run_ok_last_words(void **state)
{
    (void)state;
    struct err err = {0};
    assert_int_equal(run_script("yes 'one line of very many' | head -c 1000000 >&2; echo >&2; echo 'the reason' >&2; exit 1", NULL, &err), -EIO);
    assert_true(str_starts(str_of(err.text), STR("exit 1: one line of very many; one line")));
    assert_true(str_ends(str_of(err.text), STR("; the reason")));
    assert_in_range(strlen(err.text), OS_LAST_WORDS - 50, OS_LAST_WORDS + 60);

    char longer[2 * OS_LAST_WORDS];
    memset(longer, 'x', sizeof longer);
    assert_int_equal(os_status_ok(0x100, (struct str){longer, sizeof longer}, &err), -EIO);
    assert_int_equal(strlen(err.text), strlen("exit 1: ") + OS_LAST_WORDS + strlen("..."));
    assert_int_equal(os_status_ok(0, STR("it talks"), &err), 0);
}

static void test_run_timeout(void **state)
{
    (void)state;
    const char *quiet[] = {SELF, "wait", NULL}, *loud[] = {"yes", NULL};
    struct os_spawn s = command(quiet);
    base_autobuf struct buf out = BUF_INIT(1000);
    struct err err = {0};
    int status = -77;
    assert_int_equal(os_run(&s, 20, &out, NULL, &status, &err), -ETIMEDOUT);
    assert_string_equal(err.text, "'/proc/self/exe' did not end within 20 ms and was killed");
    assert_int_equal(status, -77);
    assert_no_child();
    /* One that never stops writing does not keep us from the clock. */
    s = command(loud);
    s.use_path = true;
    assert_int_equal(os_run(&s, 50, &out, NULL, &status, &err), -ETIMEDOUT);
    assert_int_equal(out.len, 1000);
    assert_no_child();
}

/* With a group of its own, what the command started is killed too: the pipe's last writer goes. */
static void test_run_timeout_group(void **state)
{
    (void)state;
    int life[2];
    assert_int_equal(pipe2(life, O_CLOEXEC), 0);
    const char *argv[] = {"/bin/sh", "-c", "sleep 60 & sleep 60", NULL};
    struct os_spawn s = command(argv);
    int status;
    s.new_group = true;
    s.keep_fds = &life[1];
    s.n_keep_fds = 1;
    assert_int_equal(os_run(&s, 50, NULL, NULL, &status, NULL), -ETIMEDOUT);
    close(life[1]);
    char c;
    assert_true(has_event(life[0]));
    assert_int_equal(read(life[0], &c, 1), 0);
    close(life[0]);
}

/* A process that the command left behind holds its output open: that is not waited for. */
static void test_run_leftover(void **state)
{
    (void)state;
    const char *argv[] = {"/bin/sh", "-c", "sleep 60 & echo $!", NULL};
    struct os_spawn s = command(argv);
    base_autobuf struct buf out = BUF_INIT(100);
    struct err err = {0};
    int status = -1;
    uint64_t pid;
    if (os_run(&s, PATIENCE_MS, &out, NULL, &status, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(status, 0);
    assert_int_equal(str_to_u64(str_trim(buf_str(&out)), &pid), 0);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return child(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_cwd),
        cmocka_unit_test(test_fds),
        cmocka_unit_test(test_fds_closed),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_signal_and_reap),
        cmocka_unit_test(test_death_signal),
        cmocka_unit_test(test_death_signal_after_drop),
        cmocka_unit_test(test_begin),
        cmocka_unit_test(test_own_pids),
        cmocka_unit_test(test_own_init),
        cmocka_unit_test(test_kill_group),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_run_ends_with_us),
        cmocka_unit_test(test_own_pids_die),
        cmocka_unit_test(test_child_of),
        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_bind_fails),
        cmocka_unit_test(test_remove_mount),
        cmocka_unit_test(test_run_over_ceiling),
        cmocka_unit_test(test_run_ok),
        cmocka_unit_test(test_run_ok_last_words),
        cmocka_unit_test(test_run_timeout),
        cmocka_unit_test(test_run_timeout_group),
        cmocka_unit_test(test_run_leftover),
    };
    return cmocka_run_group_tests_name("os children", tests, NULL, NULL);
}
