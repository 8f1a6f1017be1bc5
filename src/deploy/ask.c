/* SPDX-License-Identifier: MIT
 *
 * Asking many hosts at the same time what runs there: one ssh for each, one command, nothing copied. What answers is the berth that the last deploy left there, about the version that is in force there. A connection is kept
 * for a minute, so that asking again costs no new one. A host that says nothing within the limit is named with what ssh said, and holds up no other.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deploy_int.h"

#define SAID_MAX ((size_t)64 << 10)
#define ANSWER_MAX ((size_t)4 << 20)
#define END_MS 5000         /* for a killed one to be gone */
#define CONTROL_DIR_MAX 40  /* a socket's path has 107 bytes; ssh adds 59 of its own */
#define WORDS_MAX 24

extern char **environ;

struct asked {
    struct deploy_answer *answer;
    struct os_proc proc;
    int out, said; /* read ends */
    struct buf errout;
    bool running;
};

static int start(struct asked *a, const struct os_dirs *dirs, const char *fleet, struct err *err)
{
    const char *argv[WORDS_MAX] = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2"};
    size_t n = 9;
    int out[2] = {-1, -1}, said[2] = {-1, -1};
    base_autobuf struct buf control = BUF_INIT(256), script = BUF_INIT(4096), command = BUF_INIT(8192);
    buf_addf(&control, "ControlPath=%s/ssh-%%C", dirs->run);
    /* names of fleets and hosts have no character that means anything to a shell */
    buf_addf(&script,
             "if [ \"$(id -u)\" = 0 ]; then s=/var/lib/berth; else s=${XDG_STATE_HOME:-$HOME/.local/state}/berth; fi; f=$s/fleets/%s/versions/current/fleet.yaml; "
             "if [ -x \"$s/bin/berth\" ] && [ -e \"$f\" ]; then exec \"$s/bin/berth\" _status --host '%s' -f \"$f\"; else echo '{\"units\":[]}'; fi",
             fleet, a->answer->host->name);
    if (buf_status(&script) == 0)
        deploy_shell(script.ptr, &command);
    if (buf_status(&control) < 0 || buf_status(&script) < 0 || buf_status(&command) < 0)
        return err_nomem(err);
    if (strlen(dirs->run) <= CONTROL_DIR_MAX && os_make_dirs(dirs->run, 0700, NULL) == 0) {
        const char *const keep[] = {"-o", "ControlMaster=auto", "-o", control.ptr, "-o", "ControlPersist=60"};
        memcpy(argv + n, keep, sizeof keep);
        n += BASE_COUNT(keep);
    }
    argv[n++] = "--";
    argv[n++] = a->answer->host->ssh;
    argv[n++] = command.ptr;
    int r = pipe2(out, O_CLOEXEC) < 0 || pipe2(said, O_CLOEXEC) < 0 ? err_sys(err, -errno, "cannot make a pipe") : 0;
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .use_path = true, .stdin_fd = -1, .stdout_fd = out[1], .stderr_fd = said[1], .new_group = true};
    if (r == 0)
        r = os_spawn(&s, &a->proc, err);
    if (r == -ENOENT)
        err_set(err, r, "'ssh' is not here: install openssh-client");
    os_closep(&out[1]);
    os_closep(&said[1]);
    a->out = out[0];
    a->said = said[0];
    a->running = r == 0;
    if (a->out >= 0)
        (void)fcntl(a->out, F_SETFL, O_NONBLOCK);
    if (a->said >= 0)
        (void)fcntl(a->said, F_SETFL, O_NONBLOCK);
    return r;
}

/* What has come so far. A descriptor that is at its end is closed. */
static void take(int *fd, struct buf *into)
{
    char block[4096];
    ssize_t n = -1;
    while (*fd >= 0 && (n = read(*fd, block, sizeof block)) > 0)
        buf_add(into, block, (size_t)n);
    if (*fd >= 0 && (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)))
        os_closep(fd);
}

static void finish(struct asked *a, bool late, uint64_t limit_ms)
{
    base_autobuf struct buf shown = BUF_INIT(4096);
    struct deploy_answer *answer = a->answer;
    struct pollfd f = {.fd = a->proc.pidfd, .events = POLLIN};
    int status = 0;
    if (late)
        os_proc_kill_group(&a->proc);
    (void)poll(&f, 1, END_MS);
    base_ignore(os_proc_reap(&a->proc, &status)); /* it has ended, or was killed */
    /* a connection that stays holds its ends open: what is there by now is all */
    take(&a->out, &answer->text);
    take(&a->said, &a->errout);
    a->running = false;
    struct str rest = str_trim(buf_str(&a->errout)), last = {0}, text;
    /* as nologin says it */
    if (!rest.len && !deploy_after_mark(buf_str(&answer->text), &text))
        rest = str_trim(buf_str(&answer->text));
    while (rest.ptr && rest.len)
        last = str_trim(str_split(&rest, '\n'));
    buf_add_printable(&shown, last, 300);
    if (late)
        answer->status = err_set(&answer->why, -ETIMEDOUT, "no answer within %llu s", (unsigned long long)(limit_ms / 1000));
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        answer->status = err_set(&answer->why, -EHOSTUNREACH, "%s", shown.len ? shown.ptr : "ssh failed and gave no reason");
    else if (buf_status(&answer->text) < 0)
        answer->status = err_set(&answer->why, -E2BIG, "its answer is too large");
    else if (!deploy_after_mark(buf_str(&answer->text), &text))
        answer->status = err_set(&answer->why, -EHOSTUNREACH, "its login shell runs no commands");
    else
        buf_drop_front(&answer->text, (size_t)(text.ptr - answer->text.ptr));
}

static void wait_all(struct asked *list, size_t n, uint64_t limit_ms)
{
    struct pollfd *fds = calloc(3 * n + 1, sizeof *fds); /* there may be nobody to ask */
    uint64_t began = clk_system.mono_us(clk_system.ctx) / 1000, now = began;
    bool any = fds != NULL;
    while (any) {
        any = false;
        for (size_t i = 0; i < n; i++) {
            struct asked *a = &list[i];
            /* what is done has no descriptors to wait for: poll passes -1 over */
            fds[3 * i] = (struct pollfd){.fd = a->running ? a->out : -1, .events = POLLIN};
            fds[3 * i + 1] = (struct pollfd){.fd = a->running ? a->said : -1, .events = POLLIN};
            fds[3 * i + 2] = (struct pollfd){.fd = a->running ? a->proc.pidfd : -1, .events = POLLIN};
            any |= a->running;
        }
        if (!any || now - began >= limit_ms || (poll(fds, 3 * n, (int)(limit_ms - (now - began))) < 0 && errno != EINTR))
            break;
        now = clk_system.mono_us(clk_system.ctx) / 1000;
        for (size_t i = 0; i < n; i++) {
            if (!list[i].running)
                continue;
            take(&list[i].out, &list[i].answer->text);
            take(&list[i].said, &list[i].errout);
            list[i].answer->took_ms = now - began;
            if (fds[3 * i + 2].revents)
                finish(&list[i], false, limit_ms);
        }
    }
    for (size_t i = 0; i < n; i++)
        if (list[i].running)
            finish(&list[i], true, limit_ms);
    free(fds);
}

int deploy_ask(const struct fleet *f, const struct os_dirs *dirs, struct deploy_answer *answers, size_t n, uint64_t limit_ms, struct err *err)
{
    struct asked *list = calloc(n + 1, sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        answers[i].text = BUF_INIT(ANSWER_MAX);
        list[i] = (struct asked){.answer = &answers[i], .proc = OS_PROC_NONE, .out = -1, .said = -1, .errout = BUF_INIT(SAID_MAX)};
        if ((answers[i].status = start(&list[i], dirs, f->name, &answers[i].why)) < 0)
            list[i].running = false;
    }
    wait_all(list, n, limit_ms);
    for (size_t i = 0; i < n; i++) {
        os_closep(&list[i].out);
        os_closep(&list[i].said);
        buf_release(&list[i].errout);
    }
    free(list);
    return 0;
}
