/* SPDX-License-Identifier: MIT
 *
 * How an engine is started from its tree, in three forms, tried in this order:
 *
 *   bubblewrap  as us; as root already as the engine's account, which makes the user namespace. Root first binds what that account may not be able to reach (the tree, the
 *               models) below COVER in a mount namespace of the child's own; bubblewrap takes it from there.
 *   chroot      root only, where user namespaces are forbidden: the mounts go to a skeleton of folders in `work`, in the child's own mount namespace; then chroot and the engine's account.
 *   loader      no mounts at all: the tree's own loader with the tree's libraries. A tree without a loader is started as it is.
 *
 * All start in a namespace of processes of their own, the last one when that is possible, so that the kernel ends all of it with the child that we know; bubblewrap alone, when it
 * is killed while it sets things up, leaves an engine behind. No form leaves an engine running as root. Nothing of the environment goes through bubblewrap's arguments, which anybody may read.
 */
#include "store_int.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#define LAUNCH_MEMORY_MAX (64u << 20)
#define INFO_FD 3
#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

const char *store_confine_text(enum store_confine c)
{
    static const char *const texts[] = {[STORE_BWRAP] = "bubblewrap", [STORE_CHROOT] = "chroot", [STORE_LOADER] = "loader"};
    return texts[c];
}

/* A growing NULL-terminated list in an arena. A failure sticks as v == NULL. */
struct words {
    struct arena *arena;
    const char **v;
    size_t n, cap;
    bool failed;
};

static void push(struct words *w, const char *word)
{
    if (w->failed || !word) {
        w->failed = true;
        return;
    }
    const char **v = arena_grow(w->arena, w->v, w->n + 2, &w->cap, sizeof *v);
    if (!v) {
        w->failed = true;
        return;
    }
    w->v = v;
    v[w->n++] = word; /* NULL follows: the arena's memory is zeroed */
}

static void push_all(struct words *w, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        push(w, arena_dup(w->arena, str_of(words[i])));
}

/* What all forms work on. */
struct recipe {
    const struct store *store;
    const struct store_runtime *r;
    struct arena *arena;
    struct plan plan;
    const char *const *args;
    size_t n_args;
    const char *work;
    const char *library_path; /* LD_LIBRARY_PATH inside; NULL */
    struct os_bind *binds;
    size_t n_binds;
    struct words argv;
    struct os_spawn *spawn;
};

/* ---- the program and its libraries --------------------------------------------------------------------------------- */

/* The program as it is called where it can be seen: inside a complete tree, else at its place on the host. A kind without a program of its own has it as first argument: a name is looked for in the tree,
 * then left to PATH; a path is taken as it is. */
static void push_command(struct recipe *c)
{
    const char *program = c->r->program;
    bool of_tree = *program != '\0';
    size_t skip = 0;
    if (!of_tree) {
        char found[STORE_PATH_MAX];
        program = c->n_args ? c->args[0] : "";
        skip = c->n_args ? 1 : 0;
        os_autoclose int fd = *program && !strchr(program, '/') ? open(c->r->root, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        of_tree = fd >= 0 && tree_program(fd, program, found) == 0;
        program = arena_dup(c->arena, str_of(of_tree ? found : program));
    }
    if (of_tree && program && !c->r->complete && strcmp(c->r->root, "/") != 0)
        program = arena_printf(c->arena, "%s%s", c->r->root, program);
    push(&c->argv, program && *program ? program : NULL);
    push_all(&c->argv, c->args + skip, c->n_args - skip);
}

static void add_library_dir(struct buf *b, const char *root, const char *dir)
{
    char path[STORE_PATH_MAX];
    struct stat st;
    if (store_pathf(path, NULL, "%s/%s", root, dir) == 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        buf_addf(b, "%s%s", b->len ? ":" : "", path);
}

/* Beside its own folders the engine's libraries may be where the build put them; a path that was compiled in names the folder that was copied from. */
static int find_libraries(struct recipe *c, enum store_confine form, const char *loader, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT((size_t)8 * STORE_PATH_MAX);
    const char *root = c->r->root;
    char dir[STORE_PATH_MAX];
    if (c->r->complete && form == STORE_LOADER) {
        int len = (int)(strrchr(loader, '/') - loader);
        static const char *const below[] = {"", "/llama"};
        for (size_t i = 0; i < BASE_COUNT(below); i++) {
            int r = store_pathf(dir, err, "%.*s%s", len, loader, below[i]);
            if (r < 0)
                return r;
            add_library_dir(&b, root, dir);
        }
        add_library_dir(&b, root, "usr/lib");
        add_library_dir(&b, root, "usr/local/lib");
    } else if (c->r->complete) {
        if (c->plan.has_drivers)
            buf_add_c(&b, PLAN_DRIVERS);
    } else if (strcmp(root, "/") != 0) {
        const char *slash = strrchr(c->r->program, '/');
        int r = store_pathf(dir, err, "%.*s", slash ? (int)(slash - c->r->program) : 0, c->r->program);
        if (r < 0)
            return r;
        add_library_dir(&b, root, *dir ? dir + 1 : "bin");
        add_library_dir(&b, root, "lib");
        add_library_dir(&b, root, "usr/lib");
    }
    if (buf_status(&b) < 0)
        return err_nomem(err);
    if (b.len && !(c->library_path = arena_dup(c->arena, buf_str(&b))))
        return err_nomem(err);
    return 0;
}

static const char *env_value(const char *const *env, size_t n, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (strncmp(env[i], name, len) == 0 && env[i][len] == '=')
            return env[i] + len + 1;
    return NULL;
}

/* The caller's values win over ours; libraries of the tree come before those of the caller. */
static int make_env(struct recipe *c, const char *const *env, size_t n, bool with_libraries, struct err *err)
{
    static const char *const usual[][2] = {{"PATH", DEFAULT_PATH}, {"HOME", "/tmp"}, {"LANG", "C.UTF-8"}};
    struct words w = {.arena = c->arena};
    const char *more = env_value(env, n, "LD_LIBRARY_PATH");
    for (size_t i = 0; i < BASE_COUNT(usual); i++)
        if (!env_value(env, n, usual[i][0]))
            push(&w, arena_printf(c->arena, "%s=%s", usual[i][0], usual[i][1]));
    bool own = with_libraries && c->library_path;
    if (own)
        push(&w, arena_printf(c->arena, "LD_LIBRARY_PATH=%s%s%s", c->library_path, more ? ":" : "", more ? more : ""));
    for (size_t i = 0; i < n; i++)
        if (!own || strncmp(env[i], "LD_LIBRARY_PATH=", 16) != 0)
            push(&w, arena_dup(c->arena, str_of(env[i])));
    if (w.failed)
        return err_nomem(err);
    w.v[w.n] = NULL;
    c->spawn->envp = w.v;
    return 0;
}

/* ---- folders to mount on -------------------------------------------------------------------------------------------- */

/* A folder of its own in work for this list of mounts: services that see the same share it, others do not disturb it. */
static int skeleton(struct recipe *c, const char *prefix, char out[STORE_PATH_MAX], struct err *err)
{
    char hex[OS_SHA256_HEX] = "";
    struct os_digest *d = os_digest_new();
    int r = d ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < c->plan.n; i++) {
        const struct plan_item *item = &c->plan.items[i];
        char kind = (char)('a' + (char)item->kind * 2 + item->is_dir);
        r = os_digest_add(d, &kind, 1);
        if (r == 0)
            r = os_digest_add(d, item->to, strlen(item->to) + 1);
    }
    if (r == 0)
        r = os_digest_hex(d, hex);
    os_digest_free(d);
    if (r < 0)
        return err_sys(err, r, "cannot name a folder in '%s'", c->work);
    r = store_pathf(out, err, "%s/%s-%.12s", c->work, prefix, hex);
    if (r == 0 && mkdir(out, 0755) < 0 && errno != EEXIST)
        r = err_sys(err, -errno, "cannot make folder '%s'", out);
    if (r == 0 && chmod(out, 0755) < 0)
        r = err_sys(err, -errno, "cannot set the rights of '%s'", out);
    return r;
}

/* Makes root/path (path absolute) with its parents, as a folder or an empty file. What is there stays. */
static int make_point(const char *root, const char *path, bool is_dir, struct err *err)
{
    char full[STORE_PATH_MAX];
    int r = store_pathf(full, err, "%s%s", root, path);
    if (r < 0)
        return r;
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (mkdir(full, 0755) == 0)
            (void)chmod(full, 0755); /* whatever the umask says; the mount fails if this did */
        else if (errno != EEXIST)
            return err_sys(err, -errno, "cannot make folder '%s'", full);
        *p = '/';
    }
    if (is_dir) {
        if (mkdir(full, 0755) < 0)
            return errno == EEXIST ? 0 : err_sys(err, -errno, "cannot make folder '%s'", full);
        return chmod(full, 0755) < 0 ? err_sys(err, -errno, "cannot set the rights of '%s'", full) : 0;
    }
    os_autoclose int fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    return fd < 0 ? err_sys(err, -errno, "cannot make '%s'", full) : 0;
}

static int push_bind(struct recipe *c, const char *from, const char *to, struct err *err)
{
    from = arena_dup(c->arena, str_of(from));
    to = arena_dup(c->arena, str_of(to));
    if (!from || !to)
        return err_nomem(err);
    c->binds[c->n_binds++] = (struct os_bind){.from = from, .to = to};
    return 0;
}

static int alloc_binds(struct recipe *c, struct err *err)
{
    c->binds = arena_alloc(c->arena, c->plan.n + 16, sizeof *c->binds);
    return c->binds ? 0 : err_nomem(err);
}

/* ---- bubblewrap -------------------------------------------------------------------------------------------------------- */

/* A folder that every machine has, that everybody can reach, and that nothing in the plan lies below. */
static const char *find_cover(const struct plan *p)
{
    static const char *const covers[] = {"/mnt", "/media", "/srv", "/opt", "/tmp"};
    for (size_t i = 0; i < BASE_COUNT(covers); i++) {
        struct stat st;
        size_t len = strlen(covers[i]);
        bool used = lstat(covers[i], &st) < 0 || !S_ISDIR(st.st_mode);
        for (size_t k = 0; !used && k < p->n; k++)
            used = p->items[k].kind != PLAN_LINK && strncmp(p->items[k].from, covers[i], len) == 0 && (p->items[k].from[len] == '/' || !p->items[k].from[len]);
        if (!used)
            return covers[i];
    }
    return NULL;
}

/* As root: binds what is staged below a folder that the engine's account can reach; bubblewrap then takes it from there. */
static int stage_binds(struct recipe *c, struct err *err)
{
    char dir[STORE_PATH_MAX], name[32], to[64];
    const char *cover = find_cover(&c->plan);
    if (!cover)
        return err_set(err, -EBUSY, "no folder is free to show files to the engine's account");
    int r = skeleton(c, "stage", dir, err);
    if (r == 0)
        r = alloc_binds(c, err);
    if (r == 0)
        r = push_bind(c, dir, cover, err);
    for (size_t i = 0; r == 0 && i < c->plan.n; i++) {
        struct plan_item *item = &c->plan.items[i];
        if (!item->staged)
            continue;
        snprintf(name, sizeof name, "/%zu", i);
        snprintf(to, sizeof to, "%s/%zu", cover, i);
        r = make_point(dir, name, item->is_dir, err);
        if (r == 0)
            r = push_bind(c, item->from, to, err);
        if (r == 0)
            item->from = c->binds[c->n_binds - 1].to;
    }
    return r;
}

static int make_bwrap(struct recipe *c, bool with_info, struct err *err)
{
    static const char *const head[] = {"bwrap", "--unshare-all", "--share-net", "--die-with-parent", "--new-session", "--as-pid-1"};
    static const char *const own[] = {"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"};
    static const char *const options[] = {[PLAN_RO] = "--ro-bind", [PLAN_RW] = "--bind", [PLAN_DEV] = "--dev-bind", [PLAN_LINK] = "--symlink"};
    int r = c->store->privileged ? stage_binds(c, err) : 0;
    if (r < 0)
        return r;
    push_all(&c->argv, head, BASE_COUNT(head));
    if (with_info) {
        push(&c->argv, "--info-fd");
        push(&c->argv, arena_printf(c->arena, "%d", INFO_FD));
    }
    push_all(&c->argv, own, BASE_COUNT(own));
    for (size_t i = 0; i < c->plan.n; i++) {
        push(&c->argv, options[c->plan.items[i].kind]);
        push(&c->argv, c->plan.items[i].from);
        push(&c->argv, c->plan.items[i].to);
    }
    push(&c->argv, "--chdir");
    push(&c->argv, "/");
    push(&c->argv, "--");
    push_command(c);
    c->spawn->use_path = true;
    c->spawn->cwd = "/";
    return 0;
}

/* ---- chroot --------------------------------------------------------------------------------------------------------------- */

static int chroot_item(struct recipe *c, const char *root, const struct plan_item *item, struct err *err)
{
    char to[STORE_PATH_MAX];
    int r = store_pathf(to, err, "%s%s", root, item->to);
    if (r < 0)
        return r;
    if (item->kind == PLAN_RW)
        return err_set(err, -ENOTSUP, "cannot let the engine write to '%s' in a chroot: install bubblewrap", item->to);
    if (item->kind == PLAN_LINK) {
        char parent[STORE_PATH_MAX];
        r = store_pathf(parent, err, "%.*s", (int)(strrchr(item->to, '/') - item->to), item->to);
        if (r == 0 && *parent)
            r = make_point(root, parent, true, err);
        if (r < 0)
            return r;
        return symlink(item->from, to) < 0 && errno != EEXIST ? err_sys(err, -errno, "cannot make link '%s'", to) : 0;
    }
    /* DEV is a node or a folder; a node is mounted on a file */
    r = make_point(root, item->to, item->is_dir, err);
    return r < 0 ? r : push_bind(c, item->from, to, err);
}

static int make_chroot(struct recipe *c, struct err *err)
{
    static const char *const nodes[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
    char root[STORE_PATH_MAX], tmp[STORE_PATH_MAX];
    if (!c->store->privileged)
        return err_set(err, -EPERM, "only root can use chroot");
    int r = skeleton(c, "root", root, err);
    if (r == 0)
        r = alloc_binds(c, err);
    const struct plan_item proc = {.kind = PLAN_RO, .from = "/proc", .to = "/proc", .is_dir = true};
    if (r == 0)
        r = chroot_item(c, root, &proc, err);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(nodes); i++) {
        const struct plan_item node = {.kind = PLAN_DEV, .from = nodes[i], .to = nodes[i]};
        r = chroot_item(c, root, &node, err);
    }
    for (size_t i = 0; r == 0 && i < c->plan.n; i++)
        r = chroot_item(c, root, &c->plan.items[i], err);
    if (r == 0)
        r = make_point(root, "/tmp", true, err);
    if (r == 0)
        r = store_pathf(tmp, err, "%s/tmp", root);
    if (r == 0 && chmod(tmp, 01777) < 0)
        r = err_sys(err, -errno, "cannot set the rights of '%s'", tmp);
    if (r < 0)
        return r;
    c->spawn->chroot = arena_dup(c->arena, str_of(root));
    push_command(c);
    if (!c->spawn->chroot)
        return err_nomem(err);
    if (!c->argv.failed && c->argv.v[0][0] != '/')
        return err_set(err, -EINVAL, "'%s' must be an absolute path to run in a chroot", c->argv.v[0]);
    return 0;
}

/* ---- loader ----------------------------------------------------------------------------------------------------------------- */

static int make_loader(struct recipe *c, const char *loader)
{
    if (c->r->complete) {
        struct words command = {.arena = c->arena};
        struct words kept = c->argv;
        c->argv = command;
        push_command(c);
        command = c->argv;
        c->argv = kept;
        const char *program = command.failed ? NULL : command.v[0];
        push(&c->argv, arena_printf(c->arena, "%s/%s", c->r->root, loader));
        push(&c->argv, "--inhibit-cache");
        push(&c->argv, "--argv0");
        push(&c->argv, program ? (strrchr(program, '/') ? strrchr(program, '/') + 1 : program) : NULL);
        push(&c->argv, "--library-path");
        push(&c->argv, c->library_path);
        push(&c->argv, program ? arena_printf(c->arena, "%s%s", c->r->root, program) : NULL);
        push_all(&c->argv, command.v + 1, command.n ? command.n - 1 : 0);
    } else {
        push_command(c);
        c->spawn->use_path = true; /* of no effect on an absolute path */
    }
    c->spawn->cwd = arena_dup(c->arena, str_of(c->work));
    return 0;
}

/* ---- all together -------------------------------------------------------------------------------------------------------------- */

static int make_form(struct recipe *c, enum store_confine form, bool with_info, const char *const *env, size_t n_env, struct err *err)
{
    char loader[STORE_PATH_MAX] = "";
    if (form == STORE_LOADER && c->r->complete) {
        os_autoclose int treefd = os_open_dir(c->r->root, err);
        if (treefd < 0)
            return treefd;
        int r = tree_loader(treefd, c->r->program, loader);
        if (r < 0)
            return err_sys(err, r, "the tree '%s' has lost its loader", c->r->root);
    }
    int r = find_libraries(c, form, loader, err);
    if (r == 0)
        r = make_env(c, env, n_env, form != STORE_LOADER || !c->r->complete, err);
    if (r < 0)
        return r;
    r = form == STORE_BWRAP ? make_bwrap(c, with_info, err) : form == STORE_CHROOT ? make_chroot(c, err) : make_loader(c, loader);
    if (r < 0)
        return r;
    if (c->argv.failed)
        return c->n_args || *c->r->program ? err_nomem(err) : err_set(err, -EINVAL, "there is no command to run");
    c->argv.v[c->argv.n] = NULL;
    c->spawn->argv = c->argv.v;
    c->spawn->own_pids = form != STORE_LOADER || os_own_pids_possible();
    c->spawn->binds = c->binds;
    c->spawn->n_binds = c->n_binds;
    if (c->store->privileged) {
        c->spawn->drop = true;
        r = os_engine_account(&c->spawn->uid, &c->spawn->gid, err);
    }
    return r;
}

int launch_make(struct store *s, const struct store_runtime *r, enum store_confine form, const struct launch_words *w, const struct store_bind *binds, size_t n_binds,
                const char *work, bool with_info, struct store_launch *ret, struct err *err)
{
    struct store_launch l = {.arena = arena_new(LAUNCH_MEMORY_MAX), .has_info_fd = form == STORE_BWRAP && with_info};
    if (!l.arena)
        return err_nomem(err);
    l.spawn.stdin_fd = l.spawn.stdout_fd = l.spawn.stderr_fd = -1;
    struct recipe c = {.store = s, .r = r, .arena = l.arena, .args = w->args, .n_args = w->n_args, .work = work, .argv.arena = l.arena, .spawn = &l.spawn};
    int code = form == STORE_LOADER ? 0 : plan_make(&c.plan, l.arena, r, binds, n_binds, err);
    if (code == 0)
        code = make_form(&c, form, l.has_info_fd, w->env, w->n_env, err);
    if (code < 0) {
        store_launch_release(&l);
        return code;
    }
    *ret = l;
    return 0;
}

int store_launch_make(struct store *s, const struct store_runtime *r, enum store_confine c, const char *const *args, size_t n_args, const struct store_bind *binds,
                      size_t n_binds, const char *const *env, size_t n_env, const char *work, struct store_launch *ret, struct err *err)
{
    const struct launch_words w = {.args = args, .n_args = n_args, .env = env, .n_env = n_env};
    return launch_make(s, r, c, &w, binds, n_binds, work, true, ret, err);
}

void store_launch_release(struct store_launch *l)
{
    l->arena = arena_free(l->arena);
    l->spawn = (struct os_spawn){.stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
}
