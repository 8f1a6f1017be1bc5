/* SPDX-License-Identifier: MIT
 *
 * From a declaration to a process: checks what a start needs, asks `engine` for the argument list and `store` for the
 * recipe, opens the pipes and spawns. Everything that was made is owned by the service and closed by run_launch_clear, also when a
 * step in the middle failed.
 */
#include <errno.h>
#include <fcntl.h>
#include <gguf/gguf.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_int.h"

#define KILL_WAIT_MS 5000

int run_port_taken(uint16_t port, const char *what, struct err *err)
{
    struct os_owner owner;
    if (os_port_owner(port, &owner) == 0 && owner.pid > 0)
        return err_set(err, -EADDRINUSE, "port %u of %s is taken by %s (pid %d)", port, what, owner.name, (int)owner.pid);
    return err_set(err, -EADDRINUSE, "port %u of %s is taken by another process", port, what);
}

static int folder_of(const char *path, struct buf *out)
{
    const char *slash = strrchr(path, '/');
    buf_add(out, path, slash == path ? 1 : (size_t)(slash - path));
    return buf_status(out);
}

/* The engine may write in the folder of its socket, so that folder is for nothing else: it is made when it is missing, and one in which others may write is refused. */
static int socket_folder(const char *path, const struct fleet_service *service, struct err *err)
{
    base_autobuf struct buf folder = BUF_INIT(NET_HOST_MAX);
    struct stat st;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    int rc = folder_of(path, &folder);
    if (rc == 0 && geteuid() == 0)
        rc = os_engine_account(&uid, &gid, err);
    if (rc < 0)
        return rc;
    if (lstat(folder.ptr, &st) < 0 && errno == ENOENT) {
        rc = os_make_dirs(folder.ptr, 0700, err);
        if (rc == 0 && geteuid() == 0 && lchown(folder.ptr, uid, gid) < 0)
            rc = err_sys(err, -errno, "cannot give folder '%s' to the engines' account", folder.ptr);
        if (rc < 0 || lstat(folder.ptr, &st) < 0)
            return rc < 0 ? rc : err_sys(err, -errno, "cannot look at folder '%s'", folder.ptr);
    }
    if (!S_ISDIR(st.st_mode) || (st.st_uid != uid && st.st_uid != geteuid()) || (st.st_mode & 022))
        return err_set(err, -EPERM, "folder '%s' of the socket of service '%s' must be a folder of the engine's account in which nobody else may write; choose one of its own, berth makes it", folder.ptr,
                       service->name);
    return 0;
}

int run_port_check(const struct fleet_service *service, struct err *err)
{
    struct net_addr a;
    if (net_addr_parse(service->bind, service->port, &a) < 0)
        return err_set(err, -EINVAL, "bind '%s' of service '%s' is no address", service->bind, service->name);
    if (a.unix_path) {
        int rc = socket_folder(a.host, service, err);
        if (rc < 0)
            return rc;
    }
    /* Binding proves it; reading /proc only names the owner. An engine may set SO_REUSEPORT and then shares a port without
     * a word, so its own failure to bind is nothing to rely on. */
    struct err why;
    os_autoclose int fd = net_listen_socket(&a, false, &why);
    if (fd >= 0) {
        if (a.unix_path)
            (void)unlink(a.host); /* the engine makes its own, and most refuse to replace one */
        return 0;
    }
    if (fd == -EADDRINUSE && a.unix_path)
        return err_set(err, fd, "socket '%s' of service '%s' is taken: something listens at it, or it is no socket", a.host, service->name);
    base_autobuf struct buf what = BUF_INIT(FLEET_NAME_MAX + 32);
    buf_addf(&what, "service '%s'", service->name);
    if (fd == -EADDRINUSE && buf_status(&what) == 0)
        return run_port_taken(service->port, what.ptr, err);
    return err_set(err, fd, "service '%s' cannot use its port: %s", service->name, why.text);
}

/* ---- paths and binds ------------------------------------------------------------------------------------- */

struct binds {
    struct store_bind *list;
    size_t n, max;
};

static int bind_add(struct binds *b, const char *path, struct err *err)
{
    if (!path)
        return 0;
    if (b->n == b->max)
        return err_set(err, -E2BIG, "more than %zu files for one engine", b->max);
    b->list[b->n++] = (struct store_bind){.path = path};
    return 0;
}

/* A weights file, and the other parts of its set. */
static int bind_weights(struct run_service *s, struct binds *b, struct err *err)
{
    const char *path = s->paths.weights;
    struct gguf_split_name set = {.count = 0};
    int rc = bind_add(b, path, err);
    if (!path || !gguf_split_name(str_of(path), &set) || !str_eq_c(set.suffix, ".gguf"))
        return rc;
    for (uint32_t i = 2; rc == 0 && i <= set.count; i++) {
        base_autobuf struct buf part = BUF_INIT(8192);
        gguf_split_file(&part, &set, i);
        const char *kept = buf_status(&part) < 0 ? NULL : arena_dup(s->arena, buf_str(&part));
        rc = kept ? bind_add(b, kept, err) : err_nomem(err);
    }
    return rc;
}

/* A path as the engine gets it: its folder without links and "..", as it can be shown at the same place inside; the file's own name is kept, since the parts of a set are
 * found by it. */
static int plain_path(struct run_service *s, const char *path, const char **ret, struct err *err)
{
    char real[PATH_MAX];
    const char *slash = strrchr(path, '/');
    base_autofree char *dir = str_dup((struct str){path, slash ? (size_t)(slash - path) : 0});
    if (!dir)
        return err_nomem(err);
    if (!realpath(*dir ? dir : "/", real))
        return err_sys(err, -errno, "cannot use '%s'", path);
    *ret = arena_printf(s->arena, "%s%s", strcmp(real, "/") == 0 ? "" : real, slash ? slash : path);
    return *ret ? 0 : err_nomem(err);
}

static int payload_path(struct run_service *s, const char *file, const char **ret, struct err *err)
{
    *ret = NULL;
    if (!file)
        return 0;
    base_autobuf struct buf b = BUF_INIT(8192);
    int rc = store_payload_path(s->env->store, s->service->model, file, &b, err);
    return rc < 0 ? rc : plain_path(s, b.ptr, ret, err);
}

/* A generic engine of the host, and none of a container, whose runtime is no folder: whatever its command names by an absolute path, and the folder that its program was installed into. */
static int bind_command(struct run_service *s, struct binds *b, struct err *err)
{
    int rc = 0;
    if (s->service->n_command == 0 || !s->runtime->root || strcmp(s->runtime->root, "/") != 0)
        return 0;
    for (size_t i = 0; rc == 0 && i < s->service->n_command; i++) {
        const char *word = s->service->command[i];
        if (word[0] == '/' && os_relpath_valid(str_of(word + 1)) && access(word, F_OK) == 0)
            rc = bind_add(b, word, err);
    }
    const char *program = s->service->command[0], *slash = strrchr(program, '/');
    if (rc < 0 || !slash || program[0] != '/')
        return rc;
    struct str dir = {program, (size_t)(slash - program)};
    if (str_ends(dir, STR("/bin")))
        dir.len -= 4;
    const char *folder = arena_dup(s->arena, dir);
    if (!folder)
        return err_nomem(err);
    return folder[0] && os_relpath_valid(str_of(folder + 1)) && access(folder, F_OK) == 0 ? bind_add(b, folder, err) : 0;
}

static int bind_socket(struct run_service *s, struct binds *b, struct err *err)
{
    const char *path = fleet_service_socket(s->service);
    base_autobuf struct buf folder = BUF_INIT(NET_HOST_MAX);
    if (!path)
        return 0;
    const char *kept = folder_of(path, &folder) < 0 ? NULL : arena_dup(s->arena, buf_str(&folder));
    int rc = kept ? bind_add(b, kept, err) : err_nomem(err);
    if (rc == 0)
        b->list[b->n - 1].writable = true;
    return rc;
}

static int find_paths(struct run_service *s, struct binds *b, struct err *err)
{
    const struct fleet_model *m = s->service->model;
    s->paths = (struct engine_paths){.key = s->key_path};
    b->max = GGUF_PARTS_MAX + FLEET_ARGS_MAX + 8;
    b->list = arena_alloc(s->arena, b->max, sizeof(*b->list));
    if (!b->list)
        return err_nomem(err);
    int rc = bind_command(s, b, err);
    if (rc == 0)
        rc = bind_socket(s, b, err);
    if (rc < 0 || !m)
        return rc;
    rc = payload_path(s, m->weights, &s->paths.weights, err);
    if (rc == 0)
        rc = payload_path(s, m->projector, &s->paths.projector, err);
    if (rc == 0)
        rc = payload_path(s, m->drafter, &s->paths.drafter, err);
    if (rc == 0 && m->template_file)
        rc = plain_path(s, m->template_file, &s->paths.template_file, err);
    if (rc == 0)
        rc = bind_weights(s, b, err);
    if (rc == 0)
        rc = bind_add(b, s->paths.projector, err);
    if (rc == 0)
        rc = bind_add(b, s->paths.drafter, err);
    if (rc == 0)
        rc = bind_add(b, s->paths.template_file, err);
    if (rc == 0 && s->slot_dir) {
        s->paths.slot_dir = s->slot_dir;
        rc = bind_add(b, s->slot_dir, err);
        if (rc == 0)
            b->list[b->n - 1].writable = true;
    }
    return rc;
}

static int make_env(struct run_service *s, const char *const **ret, size_t *ret_n, struct err *err)
{
    const char *const *of_kind = engine_env(s->kind);
    size_t n_kind = 0;
    while (of_kind[n_kind])
        n_kind++;
    const char **env = arena_alloc(s->arena, n_kind + s->service->n_env + 1, sizeof(*env));
    if (!env)
        return err_nomem(err);
    for (size_t i = 0; i < n_kind; i++)
        env[i] = of_kind[i];
    for (size_t i = 0; i < s->service->n_env; i++)
        env[n_kind + i] = s->service->env[i];
    *ret = env;
    *ret_n = n_kind + s->service->n_env;
    return 0;
}

/* ---- the process ------------------------------------------------------------------------------------------- */

bool run_alive(const struct run_service *s)
{
    return s->proc.pidfd >= 0;
}

void run_launch_clear(struct run_service *s)
{
    s->proc_watch = net_watch_close(s->proc_watch);
    s->info_watch = net_watch_close(s->info_watch);
    os_closep(&s->info_fd);
    run_log_close(s);
    if (s->engine.pidfd >= 0 && s->engine.pidfd != s->proc.pidfd)
        os_proc_release(&s->engine);
    s->engine = OS_PROC_NONE;
    os_proc_release(&s->proc);
    s->proc = OS_PROC_NONE;
}

void run_launch_kill(struct run_service *s)
{
    if (run_alive(s)) {
        int status;
        struct pollfd f = {.fd = s->proc.pidfd, .events = POLLIN};
        /* The engine first: bubblewrap then collects it and ends. */
        bool known = s->engine.pidfd >= 0 && os_proc_signal(&s->engine, SIGKILL) == 0;
        if (!known || poll(&f, 1, KILL_WAIT_MS) == 0)
            base_ignore(os_proc_signal(&s->proc, SIGKILL));
        (void)poll(&f, 1, KILL_WAIT_MS);
        os_proc_kill_group(&s->proc);
        base_ignore(os_proc_reap(&s->proc, &status));
    }
    run_launch_clear(s);
}

static void log_start(struct run_service *s, const struct os_spawn *spawn)
{
    base_autobuf struct buf b = BUF_INIT(128u << 10);
    buf_addf(&b, "start %llu (%s):", (unsigned long long)s->generation, store_confine_text(s->confine));
    for (size_t i = 0; spawn->argv[i]; i++) {
        bool plain = spawn->argv[i][0] && !strpbrk(spawn->argv[i], " \t\n\"'\\");
        buf_add_c(&b, plain ? " " : " '");
        buf_add_printable(&b, str_of(spawn->argv[i]), 4096);
        if (!plain)
            buf_add_c(&b, "'");
    }
    if (buf_status(&b) == 0)
        run_log_say(s, b.ptr);
}

static int make_pipe(int fds[2], struct err *err)
{
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, -errno, "cannot make a pipe");
    /* Our end only; the engine's writes wait. */
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    return 0;
}

/* The engine gets its key as a file without a name that is its own alone: sealed, and gone with it. Its number there is known before the recipe is made: behind bubblewrap's. */
static int take_key(struct run_service *s, int *ret_fd, struct err *err)
{
    explicit_bzero(s->key, sizeof s->key);
    s->key_path = NULL;
    if (!s->service->key)
        return 0;
    int rc = fleet_key_read(s->service->key, s->key, err);
    if (rc < 0)
        return rc;
    size_t len = strlen(s->key);
    os_autoclose int fd = memfd_create("berth-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || write(fd, s->key, len) != (ssize_t)len || fchmod(fd, 0444) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return err_sys(err, -errno, "cannot hand the key of service '%s' to its engine", s->service->name);
    s->key_path = s->confine == STORE_BWRAP ? "/proc/self/fd/4" : "/proc/self/fd/3";
    *ret_fd = os_take_fd(&fd);
    return 0;
}

static int spawn(struct run_service *s, struct store_launch *l, int key_fd, struct err *err)
{
    int out[2] = {-1, -1}, info[2] = {-1, -1}, keep[2];
    int rc = make_pipe(out, err);
    if (rc == 0 && l->has_info_fd)
        rc = make_pipe(info, err);
    if (rc == 0)
        rc = run_log_open(s, err);
    if (rc == 0) {
        l->spawn.stdin_fd = -1;
        l->spawn.stdout_fd = l->spawn.stderr_fd = out[1];
        l->spawn.keep_fds = keep;
        if (l->has_info_fd)
            keep[l->spawn.n_keep_fds++] = info[1];
        if (key_fd >= 0)
            keep[l->spawn.n_keep_fds++] = key_fd;
        l->spawn.death_signal = SIGKILL;
        l->spawn.new_group = true;
        s->generation++;
        log_start(s, &l->spawn);
        rc = os_spawn(&l->spawn, &s->proc, err);
        if (rc < 0)
            s->proc = OS_PROC_NONE;
    }
    os_closep(&out[1]);
    os_closep(&info[1]);
    l->spawn.keep_fds = NULL;
    if (rc == 0) {
        s->info_fd = os_take_fd(&info[0]);
        rc = run_log_watch(s, os_take_fd(&out[0]), err);
    }
    os_closep(&out[0]);
    os_closep(&info[0]);
    return rc;
}

int run_watch(struct run_service *s, struct err *err)
{
    int rc = net_watch_new(s->env->loop, s->proc.pidfd, run_on_end, s, &s->proc_watch, err);
    return rc < 0 || s->info_fd < 0 ? rc : net_watch_new(s->env->loop, s->info_fd, run_on_info, s, &s->info_watch, err);
}

int run_recipe(struct run_service *s, struct run_recipe *ret, struct err *err)
{
    struct binds b = {0};
    *ret = (struct run_recipe){0};
    int rc = find_paths(s, &b, err);
    ret->binds = b.list;
    ret->n_binds = b.n;
    if (rc == 0)
        rc = engine_argv(s->service, &s->paths, s->arena, &ret->args, &ret->n_args, err);
    return rc == 0 ? make_env(s, &ret->env, &ret->n_env, err) : rc;
}

int run_launch(struct run_service *s, struct err *err)
{
    struct run_recipe recipe = {0};
    uint64_t bytes = 0;
    int rc = 0;
    os_autoclose int key_fd = -1;
    s->arena = arena_free(s->arena);
    s->arena = arena_new(RUN_ARENA_MAX);
    if (!s->arena)
        return err_nomem(err);
    if (s->service->model)
        rc = store_payload_check(s->env->store, s->service->model, &bytes, err);
    if (rc == 0)
        rc = run_port_check(s->service, err);
    if (rc == 0)
        rc = take_key(s, &key_fd, err);
    if (rc == 0)
        rc = run_recipe(s, &recipe, err);
    if (rc < 0)
        return rc;
    s->limit_ms = s->env->times.limit_ms ? s->env->times.limit_ms : engine_start_limit_ms(s->kind, bytes, 0);

    struct store_launch l;
    rc = store_launch_make(s->env->store, s->runtime, s->confine, recipe.args, recipe.n_args, recipe.binds, recipe.n_binds, recipe.env, recipe.n_env, s->env->work_dir, &l, err);
    if (rc < 0)
        return rc;
    rc = spawn(s, &l, key_fd, err);
    store_launch_release(&l);
    if (rc == 0 && s->info_fd < 0)
        s->engine = s->proc; /* nothing is around it */
    if (rc == 0)
        rc = run_watch(s, err);
    if (rc < 0)
        run_launch_kill(s);
    return rc;
}
