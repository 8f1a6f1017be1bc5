/* SPDX-License-Identifier: MIT
 *
 * The launch recipe without an engine: what is mounted where, which arguments and environment come out, what is refused; and a script that runs for real in whatever form the machine allows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_aid.h"

#include <errno.h>
#include <unistd.h>

struct world {
    char top[64], state[96], tree[96], work[96], models[96], own[96];
    struct os_dirs dirs;
    struct store *store;
    struct store_runtime rt;
};

/* A runtime's fields are its own memory; here nobody frees or changes them. */
static char *fixed(const char *text)
{
    return (char *)(uintptr_t)text;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    store_aid_open(w->top, w->state, &w->dirs, &w->store);
    snprintf(w->tree, sizeof w->tree, "%s/tree", w->top);
    snprintf(w->work, sizeof w->work, "%s/work", w->top);
    snprintf(w->models, sizeof w->models, "%s/models", w->top);
    snprintf(w->own, sizeof w->own, "%s/own", w->top);
    w->dirs.run = w->work;
    store_aid_dir(w->top, "work");
    store_aid_dir(w->tree, "usr/bin");
    store_aid_dir(w->tree, "usr/lib/deep");
    store_aid_dir(w->models, "sub");
    store_aid_dir(w->own, "bin");
    store_aid_dir(w->own, "lib");
    store_aid_put(w->tree, "usr/bin/llama-server", "#!/bin/sh\n", 0755);
    store_aid_put(w->tree, "usr/lib/x.so", "x", 0644);
    store_aid_put(w->models, "m.gguf", "model", 0644);
    store_aid_put(w->models, "sub/n.gguf", "model", 0644);
    store_aid_put(w->own, "bin/llama-server", "#!/bin/sh\necho ran: $0 \"$@\"; env; pwd\n", 0755);
    char link[STORE_PATH_MAX];
    assert_int_equal(store_pathf(link, NULL, "%s/lib", w->tree), 0);
    assert_int_equal(symlink("usr/lib", link), 0);
    w->rt = (struct store_runtime){.id = fixed("x"), .engine = fixed("llama.cpp"), .version = fixed("1"), .source = fixed("debian:x"), .packages = fixed(""),
                                   .root = w->tree, .program = fixed("/usr/bin/llama-server"), .complete = true};
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    store_aid_close(w->top, w->store);
    free(w);
    return 0;
}

static const struct plan_item *item_at(const struct plan *p, const char *to)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->items[i].to, to) == 0)
            return &p->items[i];
    return NULL;
}

static int plan_with(struct world *w, struct plan *p, struct arena *a, const char *path, struct err *err)
{
    const struct store_bind b = {.path = path};
    return plan_make(p, a, &w->rt, &b, path ? 1 : 0, err);
}

static void plan_of_a_tree(void **state)
{
    struct world *w = *state;
    struct arena *a = arena_new(1 << 20);
    struct plan p;
    char model[STORE_PATH_MAX];
    assert_int_equal(store_pathf(model, NULL, "%s/m.gguf", w->models), 0);
    assert_int_equal(plan_with(w, &p, a, model, NULL), 0);
    const struct plan_item *usr = item_at(&p, "/usr"), *lib = item_at(&p, "/lib"), *m = item_at(&p, model);
    assert_non_null(usr);
    assert_int_equal(usr->kind, PLAN_RO);
    assert_true(usr->staged && usr->is_dir && !usr->same);
    assert_non_null(lib);
    assert_int_equal(lib->kind, PLAN_LINK);
    assert_string_equal(lib->from, "usr/lib");
    assert_non_null(m);
    assert_string_equal(m->from, model);
    assert_true(m->staged && !m->is_dir);
    assert_null(item_at(&p, "/bin")); /* the tree has none */
    arena_free(a);
}

static void plan_inside_usr(void **state)
{
    struct world *w = *state;
    struct arena *a = arena_new(4 << 20);
    struct plan p;
    /* a real file of the host, below a folder that the tree has too */
    assert_int_equal(plan_with(w, &p, a, "/usr/bin/env", NULL), 0);
    assert_null(item_at(&p, "/usr"));
    assert_null(item_at(&p, "/usr/bin"));
    assert_non_null(item_at(&p, "/usr/lib"));
    assert_non_null(item_at(&p, "/usr/bin/env"));
    const struct plan_item *server = item_at(&p, "/usr/bin/llama-server");
    assert_non_null(server);
    assert_true(strncmp(server->from, w->tree, strlen(w->tree)) == 0);
    arena_free(a);
}

static void plan_refuses(void **state)
{
    struct world *w = *state;
    static const char *const paths[] = {"relative", "/proc/self/maps", "/dev/null", "/sys/kernel", "/usr", "/lib/x", "/a/../etc/passwd", "/a//b", "/"};
    for (size_t i = 0; i < BASE_COUNT(paths); i++) {
        struct arena *a = arena_new(4 << 20);
        struct plan p;
        struct err err = {0};
        int r = plan_with(w, &p, a, paths[i], &err);
        if (r != -EINVAL && r != -ENOENT)
            fail_msg("'%s' gave %d", paths[i], r);
        assert_non_null(strstr(err.text, paths[i]));
        arena_free(a);
    }
    struct arena *a = arena_new(4 << 20);
    struct plan p;
    assert_int_equal(plan_with(w, &p, a, "/nonexistent/model.gguf", NULL), -ENOENT);
    arena_free(a);
}

static void plan_nests(void **state)
{
    struct world *w = *state;
    struct arena *a = arena_new(1 << 20);
    struct plan p;
    char sub[STORE_PATH_MAX], file[STORE_PATH_MAX];
    assert_int_equal(store_pathf(sub, NULL, "%s/sub", w->models), 0);
    assert_int_equal(store_pathf(file, NULL, "%s/sub/n.gguf", w->models), 0);
    const struct store_bind binds[] = {{.path = file}, {.path = w->models}, {.path = w->models}, {.path = sub, .writable = true}};
    assert_int_equal(plan_make(&p, a, &w->rt, binds, BASE_COUNT(binds), NULL), 0);
    const struct plan_item *m = item_at(&p, w->models), *s = item_at(&p, sub);
    assert_non_null(m);
    assert_non_null(s);
    assert_true(m < s); /* parents first */
    assert_int_equal(s->kind, PLAN_RW);
    assert_null(item_at(&p, file)); /* shown by its folder */
    arena_free(a);
}

/* ---- arguments and environment ---------------------------------------------------------------------------------------- */

static bool has_word(const char *const *v, const char *word)
{
    for (; *v; v++)
        if (strcmp(*v, word) == 0)
            return true;
    return false;
}

static int launch(struct world *w, enum store_confine form, struct store_launch *l, struct err *err)
{
    static const char *const args[] = {"--port", "1"};
    static const char *const env[] = {"KEY=very-secret", "LANG=xx"};
    const struct store_bind b = {.path = w->models};
    return store_launch_make(w->store, &w->rt, form, args, 2, &b, 1, env, 2, w->work, l, err);
}

static void bwrap_words(void **state)
{
    struct world *w = *state;
    struct store_launch l;
    assert_int_equal(launch(w, STORE_BWRAP, &l, NULL), 0);
    const char *const *v = l.spawn.argv;
    assert_string_equal(v[0], "bwrap");
    static const char *const wanted[] = {"--unshare-all", "--share-net", "--die-with-parent", "--new-session", "--as-pid-1", "--info-fd", "--ro-bind"};
    for (size_t i = 0; i < BASE_COUNT(wanted); i++)
        assert_true(has_word(v, wanted[i]));
    assert_false(has_word(v, "--bind"));
    assert_true(l.has_info_fd);
    assert_true(l.spawn.own_pids);
    size_t n = 0;
    while (v[n])
        n++;
    assert_string_equal(v[n - 4], "--");
    assert_string_equal(v[n - 3], "/usr/bin/llama-server");
    assert_string_equal(v[n - 2], "--port");
    assert_string_equal(v[n - 1], "1");
    /* what is secret goes through the environment, which only its owner may read */
    for (size_t i = 0; i < n; i++)
        assert_null(strstr(v[i], "very-secret"));
    assert_true(has_word(l.spawn.envp, "KEY=very-secret"));
    assert_true(has_word(l.spawn.envp, "LANG=xx"));
    assert_false(has_word(l.spawn.envp, "LANG=C.UTF-8"));
    assert_true(has_word(l.spawn.envp, "HOME=/tmp"));
    if (geteuid() == 0) {
        assert_true(l.spawn.drop);
        assert_int_not_equal(l.spawn.uid, 0);
        assert_true(l.spawn.n_binds >= 3); /* the cover, usr, the models */
    } else {
        assert_false(l.spawn.drop);
        assert_int_equal(l.spawn.n_binds, 0);
    }
    store_launch_release(&l);
}

static void chroot_words(void **state)
{
    struct world *w = *state;
    struct store_launch l;
    struct err err = {0};
    int r = launch(w, STORE_CHROOT, &l, &err);
    if (geteuid() != 0) {
        assert_int_equal(r, -EPERM);
        return;
    }
    assert_int_equal(r, 0);
    assert_non_null(l.spawn.chroot);
    assert_string_equal(l.spawn.argv[0], "/usr/bin/llama-server");
    assert_string_equal(l.spawn.argv[2], "1");
    assert_true(l.spawn.drop);
    assert_true(l.spawn.own_pids);
    assert_false(l.has_info_fd);
    char point[STORE_PATH_MAX];
    struct stat st;
    assert_int_equal(store_pathf(point, NULL, "%s%s", l.spawn.chroot, w->models), 0);
    assert_int_equal(stat(point, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    bool found = false;
    for (size_t i = 0; i < l.spawn.n_binds; i++)
        found |= strcmp(l.spawn.binds[i].to, point) == 0 && strcmp(l.spawn.binds[i].from, w->models) == 0;
    assert_true(found);
    store_launch_release(&l);
    /* the same list of mounts takes the same folder */
    struct store_launch again;
    assert_int_equal(launch(w, STORE_CHROOT, &again, &err), 0);
    store_launch_release(&again);
    const struct store_bind b = {.path = w->models, .writable = true};
    assert_int_equal(store_launch_make(w->store, &w->rt, STORE_CHROOT, NULL, 0, &b, 1, NULL, 0, w->work, &l, &err), -ENOTSUP);
}

static void loader_words(void **state)
{
    struct world *w = *state;
    struct store_launch l;
    struct err err = {0};
    assert_int_equal(launch(w, STORE_LOADER, &l, &err), -ENOENT); /* a complete tree without a loader */
    w->rt.complete = false;
    w->rt.root = w->own;
    w->rt.program = fixed("/bin/llama-server");
    assert_int_equal(launch(w, STORE_LOADER, &l, &err), 0);
    char program[STORE_PATH_MAX], libraries[2 * STORE_PATH_MAX];
    assert_int_equal(store_pathf(program, NULL, "%s/bin/llama-server", w->own), 0);
    snprintf(libraries, sizeof libraries, "LD_LIBRARY_PATH=%s/bin:%s/lib", w->own, w->own);
    assert_string_equal(l.spawn.argv[0], program);
    assert_int_equal(l.spawn.own_pids, os_own_pids_possible());
    assert_string_equal(l.spawn.cwd, w->work);
    assert_true(has_word(l.spawn.envp, libraries));
    assert_null(l.spawn.chroot);
    assert_int_equal(l.spawn.n_binds, 0);
    store_launch_release(&l);
    /* without a program of its own: the command's, from the tree when that has it, else as it is called */
    w->rt.program = fixed("");
    const char *const commands[][2] = {{"llama-server", "-x"}, {"sh", "-x"}};
    for (size_t i = 0; i < BASE_COUNT(commands); i++) {
        assert_int_equal(store_launch_make(w->store, &w->rt, STORE_LOADER, commands[i], 2, NULL, 0, NULL, 0, w->work, &l, &err), 0);
        assert_string_equal(l.spawn.argv[0], i == 0 ? program : "sh");
        assert_string_equal(l.spawn.argv[1], "-x");
        store_launch_release(&l);
    }
}

/* ---- for real ----------------------------------------------------------------------------------------------------------- */

static void runs(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    enum store_confine form;
    w->rt.complete = false;
    w->rt.root = w->own;
    w->rt.program = fixed("/bin/llama-server");
    if (store_confine_probe(w->store, &w->rt, &form, &err) < 0)
        fail_msg("%s", err.text);
    struct store_launch l;
    assert_int_equal(launch(w, form, &l, &err), 0);
    int ends[2], keep[1];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    keep[0] = ends[1];
    if (l.has_info_fd) {
        l.spawn.keep_fds = keep;
        l.spawn.n_keep_fds = 1;
    }
    struct buf out = BUF_INIT(65536), errout = BUF_INIT(65536), info = BUF_INIT(4096);
    int status;
    if (os_run(&l.spawn, 30000, &out, &errout, &status, &err) < 0)
        fail_msg("%s", err.text);
    close(ends[1]);
    assert_int_equal(os_read_all(ends[0], &info, NULL), 0);
    close(ends[0]);
    if (status != 0)
        fail_msg("%s", errout.ptr);
    assert_non_null(strstr(out.ptr, "/own/bin/llama-server --port 1\n"));
    assert_non_null(strstr(out.ptr, "KEY=very-secret\n"));
    assert_non_null(strstr(out.ptr, "HOME=/tmp\n"));
    assert_null(strstr(out.ptr, "USER="));
    assert_true(!l.has_info_fd || strstr(info.ptr, "child-pid"));
    buf_release(&out);
    buf_release(&errout);
    buf_release(&info);
    store_launch_release(&l);
    /* a program that does not start is an error in every form */
    store_aid_put(w->own, "bin/llama-server", "#!/bin/sh\necho no such card >&2; exit 9\n", 0755);
    assert_int_equal(store_confine_probe(w->store, &w->rt, &form, &err), -EIO);
    assert_non_null(strstr(err.text, "exit 9"));
    assert_non_null(strstr(err.text, "no such card"));
}

static void texts(void **state)
{
    (void)state;
    assert_string_equal(store_confine_text(STORE_BWRAP), "bubblewrap");
    assert_string_equal(store_confine_text(STORE_CHROOT), "chroot");
    assert_string_equal(store_confine_text(STORE_LOADER), "loader");
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(plan_of_a_tree), T(plan_inside_usr), T(plan_refuses), T(plan_nests), T(bwrap_words), T(chroot_words), T(loader_words), T(runs), cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
