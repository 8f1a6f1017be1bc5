/* SPDX-License-Identifier: MIT
 *
 * Another machine: the system's own ssh, with the person's own configuration, one connection for all that is done. What goes over is this program with the libraries that it has loaded and their loader (so that the other machine
 * needs nothing but a kernel, a shell and tar), the packages that runtimes are made from, and the version of the fleet; then the copy does over there what the program does here.
 *
 * Every word that reaches the other machine's shell is in single quotes; no word of ours has one. The account's login shell may be any and may print what it likes: it is only asked to start sh, and what counts comes after a line of
 * ours. What is brought lies under a name of this errand alone until it is whole, so that two machines which deploy at once, or one that is cut off, spoil nothing.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "deploy_int.h"

#define ASK_MS 60000
#define SEND_MS 1800000
#define LIBS_MAX 64
#define THERE_MAX (16u << 20) /* of one line: the result is one */
#define CHATTER_MAX (1u << 20) /* that a login shell may print before the command */
#define END_MS 5000

struct deploy_remote {
    const char *target;  /* ssh's */
    const char *control; /* "ControlPath=..." */
    char *scratch;
    int scratch_fd;
    const char *own; /* six characters that no other errand has */
    struct arena *arena;
    const char *state;   /* $STATE over there */
    const char *bundle;  /* folder of the copy over there */
    const struct event_sink *sink;
};

extern char **environ;

/* ---- ssh --------------------------------------------------------------------------------------------------------- */

#define SSH_WORDS 16
static const char **ssh_argv(const struct deploy_remote *r, const char *command, const char *argv[SSH_WORDS + 2])
{
    const char *const words[] = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ControlMaster=auto", "-o", r->control, "-o", "ControlPersist=60", "--", r->target, command};
    _Static_assert(BASE_COUNT(words) <= SSH_WORDS + 1, "room for ssh's words");
    memcpy(argv, words, sizeof words);
    argv[BASE_COUNT(words)] = NULL;
    return argv;
}

/* The script as the command of an ssh, in the arena. NULL without memory. */
static const char *in_shell(const struct deploy_remote *r, const char *script)
{
    base_autobuf struct buf text = BUF_INIT(DEPLOY_COMMAND_MAX);
    deploy_shell(script, &text);
    return buf_status(&text) < 0 ? NULL : arena_dup(r->arena, buf_str(&text));
}

/* A script over there, its output here. */
static int ask(const struct deploy_remote *r, const char *script, const char *what, struct buf *out, struct err *err)
{
    const char *argv[SSH_WORDS + 2], *command = script ? in_shell(r, script) : NULL;
    base_autobuf struct buf all = BUF_INIT(CHATTER_MAX + out->max), errout = BUF_INIT(65536);
    if (!command)
        return err_nomem(err);
    const struct os_spawn s = {.argv = ssh_argv(r, command, argv), .envp = (const char *const *)environ, .use_path = true, .new_group = true};
    struct str text;
    int status, rc = os_run(&s, ASK_MS, &all, &errout, &status, err);
    if (rc == -ENOENT)
        return err_set(err, rc, "'ssh' is not here: install openssh-client");
    if (rc < 0)
        return err_prefix(err, "%s", what);
    /* nologin says on its output why it does nothing */
    bool begun = deploy_after_mark(buf_str(&all), &text);
    if (os_status_ok(status, errout.len || begun ? buf_str(&errout) : buf_str(&all), err) < 0)
        return err_prefix(err, "%s failed", what);
    if (!begun)
        return err_set(err, -EHOSTUNREACH, "%s failed: its login shell runs no commands", what);
    buf_add_str(out, text);
    return buf_status(out) < 0 ? err_set(err, -E2BIG, "%s: the answer is too large", what) : 0;
}

/* Until a child has ended: 0, or -ETIMEDOUT or -EINTR, with it and what it started killed. *ret_status as waitpid's. */
static int wait_end(struct os_proc *p, int limit_ms, int *ret_status)
{
    struct pollfd f[2] = {{.fd = p->pidfd, .events = POLLIN}, {.fd = os_interrupt_fd(), .events = POLLIN}};
    int n = poll(f, 2, limit_ms);
    if (!f[0].revents)
        os_proc_kill_group(p);
    int r = n == 0 ? -ETIMEDOUT : !f[0].revents ? -EINTR : 0;
    (void)poll(f, 1, END_MS);
    base_ignore(os_proc_reap(p, ret_status)); /* a status that is not 0 says it */
    return r;
}

/* Files below a folder of ours to a script over there. list: names for tar, NULL-terminated. */
static int send_files(const struct deploy_remote *r, const char *from, const char *const *list, const char *script, const char *what, struct err *err)
{
    const char *argv[SSH_WORDS + 2], *tar[LIBS_MAX + 8] = {"tar", "-C", from, "-czhf", "-", "--"}, *command = script ? in_shell(r, script) : NULL;
    size_t n = 6;
    int fds[2];
    if (!command)
        return err_nomem(err);
    for (size_t i = 0; list[i] && n < LIBS_MAX + 7; i++)
        tar[n++] = list[i];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, -errno, "cannot make a pipe");
    const struct os_spawn pack = {.argv = tar, .envp = (const char *const *)environ, .use_path = true, .stdin_fd = -1, .stdout_fd = fds[1], .stderr_fd = STDERR_FILENO, .new_group = true, .death_signal = SIGTERM};
    const struct os_spawn over = {.argv = ssh_argv(r, command, argv), .envp = (const char *const *)environ, .use_path = true, .stdin_fd = fds[0], .stdout_fd = -1, .stderr_fd = STDERR_FILENO, .new_group = true, .death_signal = SIGTERM};
    struct os_proc p[2] = {OS_PROC_NONE, OS_PROC_NONE};
    int rc = os_spawn(&pack, &p[0], err);
    if (rc == 0 && (rc = os_spawn(&over, &p[1], err)) < 0)
        base_ignore(os_proc_signal(&p[0], SIGKILL)); /* ended already, then */
    close(fds[0]);
    close(fds[1]);
    for (size_t i = 0; i < 2; i++) {
        int status = SIGKILL, waited = p[i].pidfd < 0 ? 0 : wait_end(&p[i], SEND_MS, &status); /* as of what cannot be collected */
        if (rc == 0 && waited < 0)
            rc = err_set(err, waited, "%s: %s", what, waited == -EINTR ? "interrupted" : "it does not come to an end");
        if (rc == 0 && (rc = os_status_ok(status, STR("see above"), err)) < 0)
            err_prefix(err, "%s failed", what);
        os_proc_release(&p[i]);
    }
    return rc;
}

/* ---- the machine ------------------------------------------------------------------------------------------------------ */

static bool plain_path(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!isalnum((unsigned char)s.ptr[i]) && !strchr("/._-+@", s.ptr[i]))
            return false;
    return s.len > 1 && s.ptr[0] == '/';
}

static int meet(struct deploy_remote *r, const struct fleet_host *h, struct err *err)
{
    base_autobuf struct buf out = BUF_INIT(4096);
    struct utsname here;
    struct err why;
    int rc = ask(r, "uname -m; id -u; echo \"${XDG_STATE_HOME:-$HOME/.local/state}\"", "reaching the host", &out, &why);
    if (rc < 0)
        return err_set(err, rc, "%s; 'ssh %s' must work without a question", why.text, h->ssh);
    struct str rest = buf_str(&out), machine = str_trim(str_split(&rest, '\n')), uid = str_trim(str_split(&rest, '\n')), state = str_trim(str_split(&rest, '\n'));
    if (uname(&here) < 0 || !str_eq_c(machine, here.machine))
        return err_set(err, -ENOEXEC, "it is a " STR_FMT " machine, and this berth is for %s: install berth there", STR_ARG(machine), here.machine);
    bool root = str_eq(uid, STR("0"));
    if (h->scope == FLEET_SYSTEM && !root)
        return err_set(err, -EPERM, "'scope: system' takes root: let 'ssh' name root's account, or say 'scope: user'");
    if (!root && !plain_path(state))
        return err_set(err, -EINVAL, "its state folder '" STR_FMT "' has characters that no path of berth's may have", STR_ARG(state));
    r->state = root ? "/var/lib/berth" : arena_printf(r->arena, STR_FMT "/berth", STR_ARG(state));
    return r->state ? 0 : err_nomem(err);
}

/* ---- this program ------------------------------------------------------------------------------------------------------- */

struct parts {
    struct arena *arena;
    const char *paths[LIBS_MAX], *names[LIBS_MAX + 1]; /* names end with NULL */
    size_t n;
    int failed;
};

static void add_part(struct parts *p, const char *path, const char *name)
{
    p->paths[p->n] = arena_dup(p->arena, str_of(path));
    p->names[p->n] = arena_dup(p->arena, str_of(name));
    if (!p->paths[p->n] || !p->names[p->n])
        p->failed = -ENOMEM;
    else
        p->n++;
}

/* Libraries in the order in which they were loaded, by the names under which they are looked for. */
static int add_library(struct dl_phdr_info *info, size_t size, void *ctx)
{
    struct parts *p = ctx;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (p->n == LIBS_MAX)
        p->failed = -E2BIG;
    else if (slash)
        add_part(p, info->dlpi_name, strncmp(slash, "/ld-linux", 9) == 0 || strncmp(slash, "/ld.so", 6) == 0 ? "ld.so" : slash + 1);
    return p->failed;
}

/* The files that this process is made of: the program first, its loader as "ld.so", the libraries. */
static int find_parts(struct parts *p, struct err *err)
{
    char program[DEPLOY_PATH_MAX];
    const char *bundle = getenv("BERTH_BUNDLE");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bundle)
        n = snprintf(program, sizeof program, "%s/berth", bundle);
    if (n < 0 || (size_t)n >= sizeof program)
        return err_sys(err, n < 0 ? -errno : -ENAMETOOLONG, "cannot tell where berth is");
    program[n] = '\0';
    if (!bundle && access(program, R_OK) < 0) /* replaced meanwhile; what runs is what goes, and not only we open it */
        snprintf(program, sizeof program, "/proc/%d/exe", (int)getpid());
    add_part(p, program, "berth");
    (void)dl_iterate_phdr(add_library, p);
    return p->failed ? err_sys(err, p->failed, "cannot list berth's libraries") : 0;
}

static int digest_parts(const struct parts *p, char hex[OS_SHA256_HEX], struct err *err)
{
    struct os_digest *d = os_digest_new();
    int r = d ? 0 : err_nomem(err);
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        char one[OS_SHA256_HEX];
        r = os_digest_file(AT_FDCWD, p->paths[i], one, NULL, err);
        if (r == 0)
            r = os_digest_add(d, p->names[i], strlen(p->names[i]) + 1);
        if (r == 0)
            r = os_digest_add(d, one, sizeof one);
    }
    if (r == 0)
        r = os_digest_hex(d, hex);
    os_digest_free(d);
    return r;
}

static int send_self(struct deploy_remote *r, struct err *err)
{
    struct parts parts = {.arena = r->arena};
    char hex[OS_SHA256_HEX];
    base_autobuf struct buf out = BUF_INIT(256);
    int rc = find_parts(&parts, err);
    if (rc == 0)
        rc = digest_parts(&parts, hex, err);
    if (rc < 0)
        return rc;
    r->bundle = arena_printf(r->arena, "%s/bin/%.16s", r->state, hex);
    const char *start = arena_printf(r->arena, "'%s/ld.so' --library-path '%s' '%s/berth' --version", r->bundle, r->bundle, r->bundle);
    const char *look = arena_printf(r->arena, "test ! -e '%s/berth' || ! %s >/dev/null 2>&1 || echo here", r->bundle, start ? start : "");
    /* whole on the disk before it has its name; one that a power cut has spoiled is replaced */
    const char *take = arena_printf(r->arena, "set -e; umask 022; d='%s'; n=\"$d.%s\"; trap 'rm -rf \"$n\"' EXIT; mkdir -p \"$n\"; tar -xzf - -C \"$n\"; sync; %s >/dev/null 2>&1 || { rm -rf \"$d\"; mv -T \"$n\" \"$d\"; }", r->bundle, r->own, start ? start : "");
    const char *stage = arena_printf(r->arena, "%s/bundle", r->scratch);
    if (!r->bundle || !start || !look || !take || !stage)
        return err_nomem(err);
    rc = ask(r, look, "looking for berth's copy", &out, err);
    if (rc < 0 || str_eq_c(str_trim(buf_str(&out)), "here"))
        return rc;
    event_say(r->sink, EVENT_INFO, r->target, "berth is copied there");
    rc = os_make_dirs(stage, 0700, err);
    for (size_t i = 0; rc == 0 && i < parts.n; i++) {
        const char *link = arena_printf(r->arena, "%s/%s", stage, parts.names[i]);
        if (!link || (symlink(parts.paths[i], link) < 0 && errno != EEXIST))
            rc = err_sys(err, link ? -errno : -ENOMEM, "cannot make a link in '%s'", stage);
    }
    if (rc == 0)
        rc = send_files(r, stage, parts.names, take, "copying berth", err);
    return rc == 0 ? ask(r, start, "starting berth's copy", &out, err) : rc;
}

/* ---- packages and fleet -------------------------------------------------------------------------------------------------- */

/* What runtimes of Debian's packages are made from: all that is kept here and not there. */
static int send_packages(struct deploy_remote *r, const struct os_dirs *dirs, struct err *err)
{
    base_autobuf struct buf out = BUF_INIT(4u << 20);
    const char *folder = arena_printf(r->arena, "%s/store/debs", dirs->state), *stage = arena_printf(r->arena, "%s/debs", r->scratch);
    const char *look = arena_printf(r->arena, "mkdir -p '%s/store/debs'; ls '%s/store/debs'", r->state, r->state), *take = arena_printf(r->arena, "set -e; umask 022; cd '%s/store/debs'; n=.in.%s; trap 'rm -rf \"$n\"' EXIT; find . -maxdepth 1 -name '.in.*' -mmin +1440 -exec rm -rf {} +; mkdir \"$n\"; tar -xzf - -C \"$n\"; sync; find \"$n\" -type f -exec mv -f {} . \\;", r->state, r->own);
    if (!folder || !stage || !look || !take)
        return err_nomem(err);
    os_autoclose int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, -errno, "cannot look into '%s'", folder);
    int rc = ask(r, look, "looking for packages", &out, err);
    if (rc == 0)
        rc = os_make_dirs(stage, 0700, err);
    if (rc < 0)
        return rc;
    base_autobuf struct buf there = BUF_INIT((4u << 20) + 2);
    buf_addf(&there, "\n");
    buf_add_str(&there, buf_str(&out));
    size_t n = 0;
    return buf_status(&there) < 0 ? err_nomem(err) : deploy_link_missing(fd, folder, stage, buf_str(&there), &n, err) < 0 ? err->code : n ? send_files(r, stage, (const char *const[]){".", NULL}, take, "copying packages", err) : 0;
}

static int send_fleet(struct deploy_remote *r, const struct fleet *f, const struct fleet *since, const char **ret, struct err *err)
{
    const char *stage = arena_printf(r->arena, "%s/fleet", r->scratch), *to = arena_printf(r->arena, "%s/fleets/%s/incoming.%s", r->state, f->name, r->own);
    const char *take = arena_printf(r->arena, "set -e; umask 022; d='%s'; mkdir -p \"${d%%/*}\"; mkdir \"$d\"; tar -xzf - -C \"$d\"", to ? to : "");
    if (!stage || !to || !take)
        return err_nomem(err);
    const char *then = arena_printf(r->arena, "%s/since", stage);
    if (!then)
        return err_nomem(err);
    int rc = deploy_version_write(f, stage, err);
    if (rc == 0 && since)
        rc = deploy_version_write(since, then, err);
    if (rc == 0)
        rc = send_files(r, stage, (const char *const[]){".", NULL}, take, "copying the fleet", err);
    *ret = to;
    return rc;
}

/* ---- running ------------------------------------------------------------------------------------------------------------------ */

static bool plain_word(const char *s)
{
    return !strchr(s, '\'') && !strchr(s, '\n');
}

/* A line "router WORD SERVICE" that it printed: done here, and answered. False: it is no such line. */
static bool ask_router(const struct deploy_router *router, struct str line, int to_fd)
{
    struct str word = line, service, first = str_split(&word, ' ');
    base_autobuf struct buf answer = BUF_INIT((size_t)2 * ERR_TEXT_MAX);
    struct err why = {0};
    if (!router || !str_eq_c(first, "router") || !word.ptr)
        return false;
    service = word;
    word = str_split(&service, ' ');
    const char *name = fleet_name_valid(service) ? str_dup(service) : NULL;
    int r = err_set(&why, -EINVAL, "the router knows no '" STR_FMT "'", STR_ARG(word));
    for (unsigned w = DEPLOY_DRAIN; name && w <= DEPLOY_ASK; w++)
        if (str_eq_c(word, deploy_word_text((enum deploy_word)w)))
            r = router->tell(router->ctx, (enum deploy_word)w, name, &why);
    free((void *)(uintptr_t)name);
    buf_addf(&answer, "%d ", r < 0 ? -r : 0);
    buf_add_printable(&answer, str_of(r < 0 ? why.text : "done"), ERR_TEXT_MAX);
    buf_add_char(&answer, '\n');
    if (buf_status(&answer) == 0)
        base_ignore(os_write_all(to_fd, answer.ptr, answer.len, NULL)); /* one that has gone goes on without */
    return true;
}

/* What it prints: lines for the router are done as they come, the rest is the result. */
static int read_there(int fd, int to_fd, const struct deploy_router *router, struct buf *out, struct err *err)
{
    base_autobuf struct buf line = BUF_INIT(THERE_MAX);
    struct pollfd f[2] = {{.fd = fd, .events = POLLIN}, {.fd = os_interrupt_fd(), .events = POLLIN}};
    bool begun = false; /* what the login shell prints before is nothing to us */
    size_t chatter = 0;
    char part[4096];
    for (;;) {
        if (poll(f, 2, -1) < 0 && errno == EINTR)
            continue;
        if (f[1].revents)
            return err_set(err, -EINTR, "interrupted; what was begun there goes on to its end, and 'berth plan' tells how far it is");
        ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, -errno, "cannot read what the other machine says");
        for (ssize_t i = 0; i < n; i++) {
            buf_add_char(&line, part[i]);
            if (part[i] != '\n' || buf_status(&line) < 0)
                continue;
            if (!begun)
                begun = deploy_is_mark(buf_str(&line));
            else if (!ask_router(router, str_trim(buf_str(&line)), to_fd))
                buf_add_str(out, buf_str(&line));
            buf_clear(&line);
        }
        chatter += n > 0 && !begun ? (size_t)n : 0;
        int r = chatter > CHATTER_MAX ? -E2BIG : buf_status(&line) < 0 ? buf_status(&line) : buf_status(out);
        if (r < 0)
            return err_sys(err, r, "cannot keep what the other machine says");
        if (n > 0)
            continue;
        if (begun)
            buf_add_str(out, buf_str(&line));
        return buf_status(out) < 0 ? err_nomem(err) : 0;
    }
}

/* The copy over there, with its words; what it prints here, what it says on our stderr as it comes. */
static int run_there(struct deploy_remote *r, const char *const *words, const struct deploy_errand *e, struct buf *out, int *ret_status, struct err *err)
{
    const char *argv[SSH_WORDS + 2], *in_sh = NULL;
    base_autobuf struct buf command = BUF_INIT(DEPLOY_COMMAND_MAX / 2);
    int fds[2] = {-1, -1}, in[2] = {-1, -1};
    buf_addf(&command, "BERTH_BUNDLE='%s' exec '%s/ld.so' --library-path '%s' '%s/berth'", r->bundle, r->bundle, r->bundle, r->bundle);
    for (size_t i = 0; words[i]; i++) {
        if (!plain_word(words[i]))
            return err_set(err, -EINVAL, "'%s' cannot be told to another machine: it has a quote or a line's end; rename it", words[i]);
        buf_addf(&command, " '%s'", words[i]);
    }
    if (buf_status(&command) < 0 || e->secrets.len > DEPLOY_SECRETS_MAX || !(in_sh = in_shell(r, command.ptr)))
        return err_nomem(err);
    int rc = pipe2(fds, O_CLOEXEC) < 0 || pipe2(in, O_CLOEXEC) < 0 ? err_sys(err, -errno, "cannot make a pipe") : 0;
    /* they fit into the pipe, so that nobody waits for anybody */
    if (rc == 0 && e->secrets.len)
        rc = os_write_all(in[1], e->secrets.ptr, e->secrets.len, err);
    const struct os_spawn s = {.argv = ssh_argv(r, in_sh, argv), .envp = (const char *const *)environ, .use_path = true, .stdin_fd = in[0], .stdout_fd = fds[1], .stderr_fd = STDERR_FILENO, .death_signal = SIGTERM};
    struct os_proc p = OS_PROC_NONE;
    if (rc == 0)
        rc = os_spawn(&s, &p, err);
    os_closep(&fds[1]);
    os_closep(&in[0]);
    if (rc == 0)
        rc = read_there(fds[0], in[1], e->router, out, err);
    os_closep(&fds[0]);
    os_closep(&in[1]);
    if (p.pidfd >= 0) {
        struct pollfd f = {.fd = p.pidfd, .events = POLLIN};
        /* it has closed its output, or nobody reads it any more */
        if (rc < 0 || poll(&f, 1, ASK_MS) == 0)
            base_ignore(os_proc_signal(&p, SIGTERM));
        (void)poll(&f, 1, END_MS);
        base_ignore(os_proc_reap(&p, ret_status));
        os_proc_release(&p);
    }
    return rc;
}

/* An ssh for tidying up, which is not held back by a signal that ended what was before. */
static void quietly(const char *const *argv)
{
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .use_path = true, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .new_group = true};
    struct os_proc p = OS_PROC_NONE;
    int status;
    if (os_spawn(&s, &p, NULL) < 0)
        return;
    struct pollfd f = {.fd = p.pidfd, .events = POLLIN};
    if (poll(&f, 1, END_MS) != 1)
        os_proc_kill_group(&p);
    (void)poll(&f, 1, END_MS);
    base_ignore(os_proc_reap(&p, &status)); /* what is left over there is cleared away by the next deploy */
    os_proc_release(&p);
}

static int open_remote(struct deploy_remote *r, const struct fleet_host *h, struct err *err)
{
    int rc = deploy_scratch_make(&r->scratch, &r->scratch_fd, err);
    if (rc < 0)
        return rc;
    r->own = strrchr(r->scratch, '-') + 1;
    r->control = arena_printf(r->arena, "ControlPath=%s/c", r->scratch);
    r->target = h->ssh;
    return r->control ? 0 : err_nomem(err);
}

/* fleet_there: the folder that was brought, which a deploy has taken in by now; NULL: none was. */
static void close_remote(struct deploy_remote *r, const char *fleet_there)
{
    const char *const close[] = {"ssh", "-O", "exit", "-o", r->control, "--", r->target, NULL};
    const char *argv[SSH_WORDS + 2], *script = fleet_there ? arena_printf(r->arena, "rm -rf '%s'", fleet_there) : NULL, *command = script ? in_shell(r, script) : NULL;
    if (command)
        quietly(ssh_argv(r, command, argv));
    if (r->control)
        quietly(close);
    if (r->scratch)
        base_ignore(os_remove_path(r->scratch, NULL)); /* the next errand tries again */
    os_closep(&r->scratch_fd);
    free(r->scratch);
    arena_free(r->arena);
}

int deploy_remote(const struct fleet *f, const struct fleet_host *h, const struct os_dirs *dirs, const struct deploy_errand *e, const struct event_sink *sink, struct buf *out, int *ret_status, struct err *err)
{
    struct deploy_remote r = {.arena = arena_new(DEPLOY_MEMORY), .scratch_fd = -1, .sink = sink};
    const char *fleet_there = NULL, *all[24] = {0};
    size_t n = 0;
    if (!r.arena)
        return err_nomem(err);
    int rc = open_remote(&r, h, err);
    if (rc == 0)
        rc = meet(&r, h, err);
    if (rc == 0)
        rc = send_self(&r, err);
    if (rc == 0)
        rc = send_packages(&r, dirs, err);
    if (rc == 0)
        rc = send_fleet(&r, f, e->since, &fleet_there, err);
    if (rc == 0) {
        for (; e->words[n] && n < BASE_COUNT(all) - 5; n++)
            all[n] = e->words[n];
        if (e->since) {
            all[n++] = "--since";
            all[n++] = arena_printf(r.arena, "%s/since/fleet.yaml", fleet_there);
        }
        all[n++] = "-f";
        all[n++] = arena_printf(r.arena, "%s/fleet.yaml", fleet_there);
        rc = all[n - 1] ? run_there(&r, all, e, out, ret_status, err) : err_nomem(err);
    }
    close_remote(&r, fleet_there);
    return rc;
}

