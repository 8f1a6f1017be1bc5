/* SPDX-License-Identifier: MIT
 *
 * The processes of a measurement: llama-server on a hollow model, and where its devices are not here, one ggml-rpc-server on loopback for each. A worker serves one client at a time and may not survive a client that is
 * killed, so each run has workers of its own. The server is killed as soon as its measuring pass is complete: what would follow is the loading of a model that has no data.
 *
 * Everything runs through the store's recipe, confined as a service would be. Descriptors, processes and folders are gone when a run returns, whichever way it does.
 */
#include "measure_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_MAX_BYTES ((size_t)1 << 20) /* the engine prints metadata on one line */
#define WORKER_START_MS 10000
#define LISTEN_POLL_MS 5
#define PORT_TRIES 8
#define LIST_DEVICES_MS 60000
#define ARGS_MEMORY_MAX ((size_t)4 << 20)
#define FOLDER_FORM "measure"

/* ---- one child ----------------------------------------------------------------------------------------------------------------------- */

struct child {
    struct os_proc proc;
    int out;      /* its stdout and stderr */
    int info[2];  /* bubblewrap's pipe; nobody reads it */
    int status;
    bool ended;
};
#define CHILD_NONE ((struct child){.proc = {.pid = 0, .pidfd = -1}, .out = -1, .info = {-1, -1}})

static int child_start(struct child *c, const struct measure_bench *b, const struct store_runtime *r, const char *const *args, size_t n_args, const struct store_bind *binds, size_t n_binds, struct err *err)
{
    int pipes[2];
    struct store_launch l;
    int code = store_launch_make(b->lab->store, r, b->confine, args, n_args, binds, n_binds, NULL, 0, b->work, &l, err);
    if (code < 0)
        return code;
    if (pipe2(pipes, O_CLOEXEC) < 0) {
        code = err_sys(err, -errno, "cannot make a pipe");
        store_launch_release(&l);
        return code;
    }
    c->out = pipes[0];
    os_autoclose int write_end = pipes[1];
    if (l.has_info_fd && pipe2(c->info, O_CLOEXEC) < 0)
        code = err_sys(err, -errno, "cannot make a pipe");
    if (code == 0) {
        if (l.has_info_fd) {
            l.spawn.keep_fds = &c->info[1];
            l.spawn.n_keep_fds = 1;
        }
        l.spawn.stdin_fd = -1;
        l.spawn.stdout_fd = l.spawn.stderr_fd = write_end;
        l.spawn.death_signal = SIGKILL;
        l.spawn.new_group = true;
        code = os_spawn(&l.spawn, &c->proc, err);
    }
    store_launch_release(&l);
    return code;
}

static void child_end(struct child *c)
{
    if (c->proc.pid > 0 && !c->ended) {
        base_ignore(os_proc_signal(&c->proc, SIGKILL)); /* it may have ended by itself */
        struct pollfd p = {.fd = c->proc.pidfd, .events = POLLIN};
        while (poll(&p, 1, -1) < 0 && errno == EINTR)
            ;
        c->ended = os_proc_reap(&c->proc, &c->status) == 1;
    }
    os_proc_release(&c->proc);
    os_closep(&c->out);
    os_closep(&c->info[0]);
    os_closep(&c->info[1]);
}

/* ---- the bench -------------------------------------------------------------------------------------------------------------------------- */

static int make_folder(char *ret, const char *parent, const char *form, struct err *err)
{
    int n = snprintf(ret, MEASURE_PATH_MAX, "%s/%s-XXXXXX", parent, form);
    if (n < 0 || n >= MEASURE_PATH_MAX) {
        *ret = '\0';
        return err_set(err, -ENAMETOOLONG, "the path of folder '%s' is too long", parent);
    }
    if (!mkdtemp(ret)) {
        int code = err_sys(err, -errno, "cannot make a folder in '%s'", parent);
        *ret = '\0';
        return code;
    }
    return chmod(ret, 0755) < 0 ? err_sys(err, -errno, "cannot set the rights of '%s'", ret) : 0; /* the engine may run as another account */
}

static void remove_folder(const char *parent, char *path)
{
    if (!*path)
        return;
    os_autoclose int dir = os_open_dir(parent, NULL);
    if (dir >= 0)
        base_ignore(os_remove_tree(dir, strrchr(path, '/') + 1, NULL)); /* left behind it is an oddity, not a fault of the measurement */
    *path = '\0';
}

/* What a killed measurement left. With the folder locked alone, nobody measures there. */
static void sweep(int dir)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        os_closep(&fd);
        return;
    }
    for (const struct dirent *e; (e = readdir(d));)
        if (str_starts(str_of(e->d_name), STR(FOLDER_FORM "-")))
            base_ignore(os_remove_tree(dir, e->d_name, NULL));
    closedir(d);
}

static int lock_folder(struct measure_bench *b, struct err *err)
{
    int r;
    b->lock = os_open_dir(b->lab->folder, err);
    if (b->lock < 0)
        return b->lock;
    if (flock(b->lock, LOCK_EX | LOCK_NB) == 0)
        sweep(b->lock);
    do
        r = flock(b->lock, LOCK_SH);
    while (r < 0 && errno == EINTR && !os_interrupted());
    return r < 0 ? err_sys(err, -errno, "cannot lock folder '%s'", b->lab->folder) : 0;
}

static int interrupted(struct err *err)
{
    return os_interrupted() ? err_set(err, -EINTR, "interrupted") : 0;
}

static bool is_program(const char *root, const char *path)
{
    char full[MEASURE_PATH_MAX * 2];
    struct stat st;
    snprintf(full, sizeof full, "%s%s", strcmp(root, "/") == 0 ? "" : root, path);
    return stat(full, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111);
}

/* "/usr/libexec/x86_64-linux-gnu/llama/bin/ggml-rpc-server": Debian keeps it apart, by architecture. */
static bool find_in_libexec(struct measure_bench *b, const char *root)
{
    char path[MEASURE_PATH_MAX];
    snprintf(path, sizeof path, "%s/usr/libexec", strcmp(root, "/") == 0 ? "" : root);
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        if (!os_name_valid(str_of(e->d_name)))
            continue;
        snprintf(b->worker_program, sizeof b->worker_program, "/usr/libexec/%s/llama/bin/ggml-rpc-server", e->d_name);
        found = is_program(root, b->worker_program);
    }
    if (dir)
        closedir(dir);
    return found;
}

static int find_worker(struct measure_bench *b, struct err *err)
{
    static const char *const names[] = {"ggml-rpc-server", "rpc-server"};
    const struct store_runtime *r = b->lab->runtime;
    const char *slash = strrchr(r->program, '/');
    bool found = find_in_libexec(b, r->root);
    for (size_t i = 0; !found && i < BASE_COUNT(names); i++) {
        snprintf(b->worker_program, sizeof b->worker_program, "%.*s/%s", slash ? (int)(slash - r->program) : 0, r->program, names[i]); /* beside the server */
        found = is_program(r->root, b->worker_program);
    }
    if (!found)
        return err_set(err, -ENOTSUP, "runtime '%s' has no ggml-rpc-server to stand in for devices that are not here: add the package libggml0-backend-rpc, or measure on the machine itself", r->id);
    b->worker = *r;
    b->worker.program = b->worker_program;
    return 0;
}

/* "  CUDA0: NVIDIA GeForce RTX 3090 (24121 MiB, 23810 MiB free)" */
static bool lists_device(struct str text, const char *name)
{
    while (text.ptr) {
        struct str line = str_trim(str_split(&text, '\n'));
        ptrdiff_t colon = str_find_char(line, ':');
        if (colon > 0 && str_eq_c((struct str){line.ptr, (size_t)colon}, name))
            return true;
    }
    return false;
}

/* Whether the runtime offers every device of the shape here. */
static int ask_devices(struct measure_bench *b, const struct fit_input *in, bool *ret, struct err *err)
{
    static const char *const args[] = {"--list-devices"};
    struct child c = CHILD_NONE;
    base_autobuf struct buf out = BUF_INIT((size_t)1 << 20);
    int code = child_start(&c, b, b->lab->runtime, args, 1, NULL, 0, err);
    uint64_t end = clk_system.mono_us(clk_system.ctx) / 1000 + LIST_DEVICES_MS;
    while (code == 0) {
        uint64_t at = clk_system.mono_us(clk_system.ctx) / 1000;
        struct pollfd p[] = {{.fd = c.out, .events = POLLIN}, {.fd = os_interrupt_fd(), .events = POLLIN}};
        int n = at < end ? poll(p, BASE_COUNT(p), (int)(end - at)) : 0;
        code = interrupted(err);
        if (n == 0 && code == 0)
            code = err_set(err, -ETIMEDOUT, "the engine does not list its devices");
        else if (n > 0 && p[0].revents) {
            char *room = buf_room(&out, 65536);
            ssize_t got = room ? read(c.out, room, 65536) : -1;
            if (got <= 0)
                break; /* its end, or more than a list of devices can be */
            buf_grew(&out, (size_t)got);
        }
    }
    child_end(&c);
    *ret = code == 0;
    for (size_t d = 0; d < in->n_devices; d++)
        *ret = *ret && lists_device(buf_str(&out), in->devices[d].name);
    return code;
}

int bench_open(struct measure_bench *b, const struct measure_lab *lab, const struct fit_input *in, struct err *err)
{
    bool real = true;
    *b = (struct measure_bench){.lab = lab, .lock = -1};
    if (strcmp(lab->runtime->engine, "llama.cpp") != 0)
        return err_set(err, -ENOTSUP, "engine '%s' cannot be asked what it would allocate: only llama.cpp can", lab->runtime->engine);
    int r = store_confine_probe(lab->store, lab->runtime, &b->confine, err);
    if (r < 0)
        return r;
    os_interrupt_begin();
    b->begun = true;
    r = lock_folder(b, err);
    if (r == 0)
        r = make_folder(b->folder, lab->folder, FOLDER_FORM, err);
    if (r == 0)
        r = make_folder(b->work, lab->folder, FOLDER_FORM "-work", err);
    if (r == 0 && in->n_devices)
        r = ask_devices(b, in, &real, err);
    b->emulated = !real;
    if (r == 0 && b->emulated)
        r = find_worker(b, err);
    if (r < 0)
        bench_close(b);
    return r;
}

void bench_close(struct measure_bench *b)
{
    if (!b->begun)
        return;
    remove_folder(b->lab->folder, b->folder);
    remove_folder(b->lab->folder, b->work);
    os_closep(&b->lock);
    b->begun = false;
    os_interrupt_end();
}

/* ---- workers ------------------------------------------------------------------------------------------------------------------------------ */

struct workers {
    struct child list[FIT_DEVICES_MAX];
    size_t n;
    char endpoints[FIT_DEVICES_MAX][32];
    const char *endpoint[FIT_DEVICES_MAX];
    char buffers[FIT_DEVICES_MAX][48], names[FIT_DEVICES_MAX][16];
    struct measure_device devices[FIT_DEVICES_MAX];
};

static int free_port(uint16_t *ret, struct err *err)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    os_autoclose int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return err_sys(err, -errno, "cannot find a free port");
    *ret = ntohs(a.sin_port);
    return 0;
}

/* Throws away what a worker says, so that it never waits for us. False when it has ended. */
static bool drain(struct child *c, int wait_ms)
{
    char junk[4096];
    struct pollfd p = {.fd = c->out, .events = POLLIN};
    int n = poll(&p, 1, wait_ms);
    return n <= 0 || read(c->out, junk, sizeof junk) > 0;
}

/* Until somebody listens on its port: it says nothing when it does. */
static int await_listen(struct child *c, uint16_t port, struct err *err)
{
    uint64_t end = clk_system.mono_us(clk_system.ctx) / 1000 + WORKER_START_MS;
    struct os_owner owner;
    while (os_port_owner(port, &owner) == -ENOENT) {
        if (!drain(c, LISTEN_POLL_MS))
            return err_set(err, -EADDRINUSE, "ggml-rpc-server ended before it listened");
        if (clk_system.mono_us(clk_system.ctx) / 1000 > end)
            return err_set(err, -ETIMEDOUT, "ggml-rpc-server does not listen");
        int r = interrupted(err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int start_worker(const struct measure_bench *b, struct workers *w, size_t d, struct err *err)
{
    int code = -EADDRINUSE;
    for (int i = 0; code == -EADDRINUSE && i < PORT_TRIES; i++) {
        uint16_t port = 0;
        char text[16];
        code = free_port(&port, err); /* somebody else may take it meanwhile */
        if (code < 0)
            return code;
        snprintf(text, sizeof text, "%u", port);
        snprintf(w->endpoints[d], sizeof w->endpoints[d], "127.0.0.1:%u", port);
        const char *args[] = {"-H", "127.0.0.1", "-p", text};
        w->list[d] = CHILD_NONE;
        code = child_start(&w->list[d], b, &b->worker, args, BASE_COUNT(args), NULL, 0, err);
        if (code == 0)
            code = await_listen(&w->list[d], port, err);
        if (code < 0)
            child_end(&w->list[d]);
    }
    return code;
}

static void stop_workers(struct workers *w)
{
    for (size_t d = 0; d < w->n; d++)
        child_end(&w->list[d]);
    w->n = 0;
}

static int start_workers(const struct measure_bench *b, size_t n, struct workers *w, struct buf *rpc, struct err *err)
{
    for (size_t d = 0; d < n; d++) {
        int code = start_worker(b, w, d, err);
        if (code < 0) {
            stop_workers(w);
            return code;
        }
        w->n = d + 1;
        w->endpoint[d] = w->endpoints[d];
        snprintf(w->names[d], sizeof w->names[d], "RPC%u", (unsigned)d);
        snprintf(w->buffers[d], sizeof w->buffers[d], "RPC0[%s]", w->endpoints[d]);
        w->devices[d] = (struct measure_device){.name = w->names[d], .buffer = w->buffers[d]};
        buf_addf(rpc, "%s%s", d ? "," : "", w->endpoints[d]);
    }
    return buf_status(rpc) < 0 ? err_nomem(err) : 0;
}

/* ---- one run ---------------------------------------------------------------------------------------------------------------------------------- */

/* Hands whole lines on. */
static void take_lines(struct buf *b, struct measure_reader *m)
{
    struct str rest = buf_str(b);
    ptrdiff_t end;
    while ((end = str_find_char(rest, '\n')) >= 0) {
        measure_reader_line(m, (struct str){rest.ptr, (size_t)end});
        rest = (struct str){rest.ptr + end + 1, rest.len - (size_t)end - 1};
    }
    if (rest.len > LINE_MAX_BYTES / 2)
        rest.len = 0; /* no line that tells anything is so long */
    buf_drop_front(b, b->len - rest.len);
}

/* Reads the server until it has measured, failed or ended. */
static int listen_to(struct child *server, struct workers *w, struct measure_reader *m, uint64_t timeout_ms, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(LINE_MAX_BYTES);
    uint64_t end = clk_system.mono_us(clk_system.ctx) / 1000 + timeout_ms;
    while (!m->done) {
        struct pollfd fds[FIT_DEVICES_MAX + 2] = {{.fd = server->out, .events = POLLIN}};
        for (size_t d = 0; d < w->n; d++)
            fds[d + 1] = (struct pollfd){.fd = w->list[d].out, .events = POLLIN};
        fds[w->n + 1] = (struct pollfd){.fd = os_interrupt_fd(), .events = POLLIN};
        uint64_t at = clk_system.mono_us(clk_system.ctx) / 1000;
        int n = at < end ? poll(fds, w->n + 2, (int)(end - at > INT32_MAX ? INT32_MAX : end - at)) : 0;
        const int failed = n < 0 ? errno : 0;
        int r = interrupted(err);
        if (r < 0)
            return r;
        if (failed == EINTR)
            continue;
        if (n <= 0)
            return err_set(err, -ETIMEDOUT, "the engine did not finish measuring within %llu s", (unsigned long long)timeout_ms / 1000);
        for (size_t d = 0; d < w->n; d++)
            if (fds[d + 1].revents && !drain(&w->list[d], 0))
                os_closep(&w->list[d].out); /* it ended; the server will say what that means to it */
        if (!fds[0].revents)
            continue;
        char *room = buf_room(&b, 65536);
        if (!room)
            return err_nomem(err);
        ssize_t got = read(server->out, room, 65536);
        if (got <= 0)
            return 0;
        buf_grew(&b, (size_t)got);
        take_lines(&b, m);
    }
    return 0;
}

/* What an end without figures means. */
static int verdict(struct child *server, const struct measure_reader *m, struct err *err)
{
    char why[OS_STATUS_TEXT];
    if (m->memory.failed || *m->last_error)
        return err_set(err, -EINVAL, "the engine refuses this shape: %s", *m->last_error ? m->last_error : "it could not measure it");
    child_end(server);
    return err_set(err, -EIO, "the engine ended without measuring: %s", os_status_text(server->status, why));
}

/* All that lives as long as a run. */
struct run {
    struct workers workers;
    struct measure_reader reader;
    struct measure_device own[FIT_DEVICES_MAX];
    struct child server;
    struct buf rpc;
    struct arena *a;
};

static int run_all(struct measure_bench *b, struct run *x, const struct fit_input *in, const struct fit_result *r, struct measure_run_shape *s, struct err *err)
{
    const char *const *args = NULL;
    size_t n_args = 0;
    int code = 0;
    if (b->emulated) {
        code = start_workers(b, in->n_devices, &x->workers, &x->rpc, err);
        s->devices = x->workers.devices;
        s->rpc = x->rpc.ptr;
    }
    if (code == 0)
        code = measure_argv(in, r, s, x->a, &args, &n_args, err);
    const struct store_bind files = {.path = b->folder};
    if (code == 0)
        code = child_start(&x->server, b, b->lab->runtime, args, n_args, &files, 1, err);
    if (code < 0)
        return code;
    x->reader.in = in;
    x->reader.rpc = b->emulated ? x->workers.endpoint : NULL;
    code = listen_to(&x->server, &x->workers, &x->reader, b->lab->timeout_ms ? b->lab->timeout_ms : MEASURE_TIMEOUT_MS, err);
    return code == 0 && !x->reader.memory.measured ? verdict(&x->server, &x->reader, err) : code;
}

int bench_run(struct measure_bench *b, const struct fit_input *in, const struct fit_result *r, struct measure_run_shape *s, struct measure_answer *ret, struct err *err)
{
    struct run *x = calloc(1, sizeof *x);
    if (!x)
        return err_nomem(err);
    x->server = CHILD_NONE;
    x->rpc = BUF_INIT((size_t)FIT_DEVICES_MAX * 32);
    x->a = arena_new(ARGS_MEMORY_MAX);
    for (size_t d = 0; d < in->n_devices; d++)
        x->own[d] = (struct measure_device){.name = in->devices[d].name, .buffer = in->devices[d].buffer ? in->devices[d].buffer : in->devices[d].name};
    s->devices = x->own;
    s->rpc = NULL;
    int code = x->a ? run_all(b, x, in, r, s, err) : err_nomem(err);
    child_end(&x->server);
    stop_workers(&x->workers);
    if (code == 0)
        *ret = x->reader.answer;
    buf_release(&x->rpc);
    arena_free(x->a);
    free(x);
    return code;
}
