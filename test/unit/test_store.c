/* SPDX-License-Identifier: MIT
 *
 * The store without a network: payloads, and the whole life of a runtime made from a folder. The engine of these tests is a shell script that prints a version, so that
 * it starts in whatever form of confinement the machine allows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store_aid.h"

#define SCRIPT "#!/bin/sh\necho 'version: 3.1 (abc)'\n"

struct world {
    char top[64];
    char state[96], run[96], config[96], src[96];
    struct os_dirs dirs;
    struct store *store;
    struct fleet_runtime want;
    struct store_add_options options;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    snprintf(w->top, sizeof w->top, "/tmp/berth-store-XXXXXX");
    assert_non_null(mkdtemp(w->top));
    assert_int_equal(chmod(w->top, 0755), 0); /* the engine's account may have to get in */
    snprintf(w->state, sizeof w->state, "%s/state", w->top);
    snprintf(w->run, sizeof w->run, "%s/run", w->top);
    snprintf(w->config, sizeof w->config, "%s/config", w->top);
    snprintf(w->src, sizeof w->src, "%s/src", w->top);
    w->dirs = (struct os_dirs){.state = w->state, .run = w->run, .config = w->config};
    struct err err;
    if (store_open(&w->dirs, &w->store, &err) < 0)
        fail_msg("%s", err.text);
    store_aid_dir(w->src, "bin");
    store_aid_dir(w->src, "lib/deep");
    store_aid_put(w->src, "bin/llama-server", SCRIPT, 06711); /* set-id bits do not survive */
    store_aid_put(w->src, "lib/libx.so.1", "library", 0600);
    store_aid_put(w->src, "lib/deep/data", "data", 0444);
    char link[STORE_PATH_MAX];
    assert_int_equal(store_pathf(link, NULL, "%s/lib/libx.so", w->src), 0);
    assert_int_equal(symlink("libx.so.1", link), 0);
    w->want = (struct fleet_runtime){.name = "own", .engine = "llama.cpp", .source = FLEET_SOURCE_PATH, .source_arg = w->src};
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

static struct store_runtime add(struct world *w)
{
    struct store_runtime r = {0};
    struct err err;
    if (store_runtime_add(w->store, &w->want, &w->options, &r, &err) < 0)
        fail_msg("%s", err.text);
    return r;
}

/* Names in runtimes/, those of leftovers too. */
static size_t count_entries(struct world *w, bool hidden)
{
    int fd = store_dir(w->store, "runtimes", NULL);
    DIR *d = fdopendir(fd);
    assert_non_null(d);
    size_t n = 0;
    const struct dirent *e;
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && (hidden || e->d_name[0] != '.'))
            n++;
    closedir(d);
    return n;
}

/* ---- payloads ----------------------------------------------------------------------------------------------------- */

static int check(struct world *w, const struct fleet_model *m, uint64_t *bytes, struct err *err)
{
    *err = (struct err){0};
    return store_payload_check(w->store, m, bytes, err);
}

static void payload_paths(void **state)
{
    struct world *w = *state;
    struct buf b = BUF_INIT(STORE_PATH_MAX);
    struct fleet_model m = {.name = "m", .source = FLEET_MODEL_FILE, .source_arg = "/srv/models"};
    assert_int_equal(store_payload_path(w->store, &m, "sub/x.gguf", &b, NULL), 0);
    assert_string_equal(b.ptr, "/srv/models/sub/x.gguf");
    buf_clear(&b);
    m = (struct fleet_model){.name = "m", .source = FLEET_MODEL_HF, .source_arg = "org/repo", .revision = "main"};
    assert_int_equal(store_payload_path(w->store, &m, "x.gguf", &b, NULL), 0);
    assert_true(str_ends(buf_str(&b), STR("/state/store/payloads/hf/org/repo/main/x.gguf")));
    buf_release(&b);
    static const char *const files[] = {"../x", "/etc/passwd", "a/../../x", "", "a//b", "x\n"};
    for (size_t i = 0; i < BASE_COUNT(files); i++)
        assert_int_equal(store_payload_path(w->store, &m, files[i], &b, NULL), -EINVAL);
    m.source_arg = "../..";
    assert_int_equal(store_payload_path(w->store, &m, "x", &b, NULL), -EINVAL);
    m.source_arg = "org/repo";
    m.revision = "a/b";
    assert_int_equal(store_payload_path(w->store, &m, "x", &b, NULL), -EINVAL);
}

static void payload_check(void **state)
{
    struct world *w = *state;
    struct err err;
    uint64_t bytes = 77;
    store_aid_dir(w->top, "m/dir.gguf");
    char dir[STORE_PATH_MAX], path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(dir, NULL, "%s/m", w->top), 0);
    store_aid_put(dir, "w.gguf", "12345", 0644);
    store_aid_put(dir, "p.gguf", "123", 0644);
    store_aid_put(dir, "empty.gguf", "", 0644);
    assert_int_equal(store_pathf(path, NULL, "%s/fifo.gguf", dir), 0);
    assert_int_equal(mkfifo(path, 0644), 0);
    struct fleet_model m = {.name = "m", .source = FLEET_MODEL_FILE, .source_arg = dir, .weights = "w.gguf", .projector = "p.gguf", .drafter = "w.gguf"};
    assert_int_equal(check(w, &m, &bytes, &err), 0);
    assert_int_equal(bytes, 13);
    m.drafter = "no.gguf";
    assert_int_equal(check(w, &m, &bytes, &err), -ENOENT);
    assert_non_null(strstr(err.text, "drafter"));
    assert_non_null(strstr(err.text, "/m/no.gguf'"));
    assert_int_equal(bytes, 13);
    m.drafter = NULL;
    static const char *const wrong[][2] = {{"empty.gguf", "empty"}, {"dir.gguf", "no regular file"}, {"fifo.gguf", "no regular file"}, {"../state", "below"}};
    for (size_t i = 0; i < BASE_COUNT(wrong); i++) {
        m.weights = wrong[i][0];
        assert_int_equal(check(w, &m, &bytes, &err), -EINVAL);
        assert_non_null(strstr(err.text, wrong[i][1]));
    }
    m.weights = "w.gguf";
    m.template_file = "/nonexistent/t.jinja";
    assert_int_equal(check(w, &m, &bytes, &err), -ENOENT);
    assert_non_null(strstr(err.text, "template"));
    m = (struct fleet_model){.name = "m", .source = FLEET_MODEL_HF, .source_arg = "org/repo", .revision = "main", .weights = "w.gguf"};
    assert_int_equal(check(w, &m, &bytes, &err), -ENOENT);
    assert_non_null(strstr(err.text, "'berth pull m' fetches it"));
    assert_non_null(strstr(err.text, "/payloads/hf/org/repo/main/w.gguf"));
}

static void payload_split(void **state)
{
    struct world *w = *state;
    struct err err;
    uint64_t bytes = 0;
    store_aid_put(w->src, "x-00001-of-00003.gguf", "1", 0644);
    store_aid_put(w->src, "x-00002-of-00003.gguf", "22", 0644);
    struct fleet_model m = {.name = "m", .source = FLEET_MODEL_FILE, .source_arg = w->src, .weights = "x-00001-of-00003.gguf"};
    assert_int_equal(check(w, &m, &bytes, &err), -ENOENT);
    assert_non_null(strstr(err.text, "x-00003-of-00003.gguf"));
    store_aid_put(w->src, "x-00003-of-00003.gguf", "333", 0644);
    assert_int_equal(check(w, &m, &bytes, &err), 0);
    assert_int_equal(bytes, 6);
    m.weights = "x-00002-of-00003.gguf";
    assert_int_equal(check(w, &m, &bytes, &err), -EINVAL);
    assert_non_null(strstr(err.text, "'x-00001-of-00003.gguf'"));
    /* a name that only looks like a part is a file of its own */
    store_aid_put(w->src, "y-0001-of-0003.gguf", "4444", 0644);
    m.weights = "y-0001-of-0003.gguf";
    assert_int_equal(check(w, &m, &bytes, &err), 0);
    assert_int_equal(bytes, 4);
}

/* ---- adding --------------------------------------------------------------------------------------------------------- */

static void adds(void **state)
{
    struct world *w = *state;
    struct store_runtime r, found;
    struct err err = {0};
    assert_int_equal(store_runtime_find(w->store, &w->want, &found, &err), -ENOENT);
    assert_non_null(strstr(err.text, "'own'"));
    r = add(w);
    assert_memory_equal(r.id, "llama.cpp-3.1-", 14);
    assert_string_equal(r.version, "3.1");
    assert_string_equal(r.program, "/bin/llama-server");
    assert_false(r.complete);
    assert_int_equal(r.n_files, 3);
    assert_int_equal(r.bytes, strlen(SCRIPT) + 7 + 4);
    assert_true(r.installed_us > 0);
    char path[STORE_PATH_MAX];
    struct stat st;
    assert_int_equal(store_pathf(path, NULL, "%s/bin/llama-server", r.root), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    assert_int_equal(store_pathf(path, NULL, "%s/lib/libx.so.1", r.root), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0644);
    assert_int_equal(store_runtime_find(w->store, &w->want, &found, NULL), 0);
    assert_string_equal(found.id, r.id);
    assert_int_equal(found.installed_us, r.installed_us);
    assert_int_equal(store_runtime_verify(w->store, &found, NULL, NULL), 0);
    store_runtime_release(&found);

    /* again: nothing is made anew */
    struct stat before, after;
    assert_int_equal(stat(r.root, &before), 0);
    struct store_runtime again = add(w);
    assert_int_equal(stat(again.root, &after), 0);
    assert_string_equal(again.id, r.id);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(again.installed_us, r.installed_us);
    assert_int_equal(count_entries(w, true), 1);
    store_runtime_release(&again);

    struct store_runtime *list;
    size_t n;
    assert_int_equal(store_runtime_list(w->store, &list, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_string_equal(list[0].id, r.id);
    store_runtimes_free(list, n);
    store_runtime_release(&r);
}

static void refuses(void **state)
{
    struct world *w = *state;
    struct store_runtime r;
    struct err err;
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/evil", w->src), 0);
    static const char *const targets[] = {"/etc/passwd", "../x", "lib/../../x", "lib/deep/../../../x"};
    for (size_t i = 0; i < BASE_COUNT(targets); i++) {
        assert_int_equal(symlink(targets[i], path), 0);
        assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EINVAL);
        assert_non_null(strstr(err.text, "'evil'"));
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(mkfifo(path, 0644), 0);
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EINVAL);
    assert_int_equal(unlink(path), 0);
    store_aid_put(w->src, "bin/llama-server", "#!/bin/sh\necho broken >&2\nexit 3\n", 0755);
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EIO);
    assert_non_null(strstr(err.text, "exit 3"));
    assert_non_null(strstr(err.text, "broken"));
    store_aid_put(w->src, "bin/llama-server", "", 0755); /* bubblewrap runs it as a script */
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EIO);
    store_aid_put(w->src, "bin/llama-server", "#!/bin/sh\n", 0755);
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EIO);
    assert_non_null(strstr(err.text, "says nothing"));
    store_aid_put(w->src, "bin/llama-server", SCRIPT, 0644); /* not a program */
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -ENOENT);
    assert_non_null(strstr(err.text, "llama-server"));
    w->want.source_arg = "/nonexistent/build";
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -ENOENT);
    w->want.source_arg = "/usr";
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EINVAL);
    w->want.source_arg = w->top; /* holds the store */
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EINVAL);
    assert_int_equal(count_entries(w, true), 0);
}

/* ---- tampering -------------------------------------------------------------------------------------------------------- */

struct damage {
    const char *what, *path;
};

static void break_it(const char *root, const char *what)
{
    char a[STORE_PATH_MAX], b[STORE_PATH_MAX];
    assert_int_equal(store_pathf(a, NULL, "%s/lib/libx.so.1", root), 0);
    assert_int_equal(store_pathf(b, NULL, "%s/lib/libx.so", root), 0);
    if (strcmp(what, "has other content") == 0) {
        store_aid_put(root, "lib/libx.so.1", "librarY", 0644);
    } else if (strcmp(what, "has another size") == 0) {
        store_aid_put(root, "lib/libx.so.1", "library+", 0644);
    } else if (strcmp(what, "was added") == 0) {
        store_aid_put(root, "lib/extra", "", 0644);
    } else if (strcmp(what, "is missing") == 0) {
        assert_int_equal(unlink(a), 0);
    } else if (strcmp(what, "has other rights") == 0) {
        assert_int_equal(chmod(a, 04644), 0);
    } else if (strcmp(what, "links elsewhere") == 0) {
        assert_int_equal(unlink(b), 0);
        assert_int_equal(symlink("/etc/passwd", b), 0);
    } else { /* is of another kind: a link in place of the file, with the same content behind it */
        assert_int_equal(rename(a, b), 0);
        assert_int_equal(symlink("libx.so", a), 0);
    }
}

static void tampering(void **state)
{
    struct world *w = *state;
    static const struct damage damages[] = {
        {"has other content", "lib/libx.so.1"}, {"has another size", "lib/libx.so.1"}, {"was added", "lib/extra"},         {"is missing", "lib/libx.so.1"},
        {"has other rights", "lib/libx.so.1"},  {"links elsewhere", "lib/libx.so"},    {"is of another kind", "lib/libx.so"},
    };
    for (size_t i = 0; i < BASE_COUNT(damages); i++) {
        struct err err = {0};
        struct store_runtime r = add(w);
        break_it(r.root, damages[i].what);
        assert_int_equal(store_runtime_verify(w->store, &r, NULL, &err), -EBADMSG);
        if (!strstr(err.text, damages[i].what) || !strstr(err.text, damages[i].path))
            fail_msg("'%s' does not say '%s' of '%s'", err.text, damages[i].what, damages[i].path);
        /* adding makes it whole again, under the same name */
        struct store_runtime again = add(w);
        assert_string_equal(again.id, r.id);
        assert_int_equal(store_runtime_verify(w->store, &again, NULL, &err), 0);
        assert_int_equal(count_entries(w, true), 1);
        store_runtime_release(&again);
        store_runtime_release(&r);
    }
}

static void manifest_tampering(void **state)
{
    struct world *w = *state;
    struct store_runtime r = add(w), found;
    struct err err = {0};
    char folder[STORE_PATH_MAX], other[STORE_PATH_MAX];
    struct buf text = BUF_INIT(1 << 20);
    assert_int_equal(store_path(w->store, folder, NULL, "runtimes/%s", r.id), 0);
    assert_int_equal(store_path(w->store, other, NULL, "runtimes/llama.cpp-3.1-000000000000"), 0);
    int fd = os_open_dir(folder, NULL);
    assert_int_equal(os_read_file(fd, "manifest.json", &text, NULL), 0);
    close(fd);
    char *at = strstr(text.ptr, "\"0644\"");
    assert_non_null(at);
    at[2] = '7';
    store_aid_put(folder, "manifest.json", text.ptr, 0644);
    assert_int_equal(store_runtime_verify(w->store, &r, NULL, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "changed"));
    assert_int_equal(store_runtime_find(w->store, &w->want, &found, NULL), -ENOENT);
    /* it still shows in the list, so that it is noticed and can be removed */
    struct store_runtime *list;
    size_t n;
    assert_int_equal(store_runtime_list(w->store, &list, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_string_equal(list[0].version, "?");
    assert_int_equal(store_runtime_verify(w->store, &list[0], NULL, NULL), -EBADMSG);
    store_runtimes_free(list, n);
    /* a whole manifest under another name is none either */
    at[2] = '6';
    store_aid_put(folder, "manifest.json", text.ptr, 0644);
    assert_int_equal(store_runtime_verify(w->store, &r, NULL, NULL), 0);
    assert_int_equal(rename(folder, other), 0);
    assert_int_equal(store_runtime_find(w->store, &w->want, &found, NULL), -ENOENT);
    assert_int_equal(store_runtime_remove(w->store, "llama.cpp-3.1-0000", NULL), 0);
    assert_int_equal(count_entries(w, true), 0);
    buf_release(&text);
    store_runtime_release(&r);
}

/* ---- half installs and several at once ------------------------------------------------------------------------------------ */

static void half_install(void **state)
{
    struct world *w = *state;
    struct store_runtime *list;
    size_t n = 7;
    char runtimes[STORE_PATH_MAX];
    assert_int_equal(store_path(w->store, runtimes, NULL, "runtimes"), 0);
    store_aid_dir(runtimes, ".new-abcdef/tree/bin");
    store_aid_put(runtimes, ".new-abcdef/manifest.json", "{}", 0644);
    store_aid_dir(runtimes, ".old-abcdef/tree");
    store_aid_dir(runtimes, "llama.cpp-9-aaaaaaaaaaaa/tree"); /* no manifest: no runtime */
    assert_int_equal(store_runtime_list(w->store, &list, &n, NULL), 0);
    assert_int_equal(n, 0);
    store_runtimes_free(list, n);
    struct store_runtime r = add(w);
    assert_int_equal(count_entries(w, true), 2);
    store_runtime_release(&r);
}

/* Kills its own process at an event whose text begins so. */
static void kill_at(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    (void)level;
    (void)subject;
    (void)done;
    (void)total;
    if (strncmp(text, ctx, strlen(ctx)) == 0)
        (void)kill(getpid(), SIGKILL);
}

static int add_in_child(struct world *w, const struct event_sink *sink)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct store_runtime r;
        w->options.sink = sink;
        _exit(store_runtime_add(w->store, &w->want, &w->options, &r, NULL) == 0 ? 0 : 1);
    }
    return pid;
}

static void killed(void **state)
{
    struct world *w = *state;
    static const char *const moments[] = {"copying", "recording"};
    for (size_t i = 0; i < BASE_COUNT(moments); i++) {
        char moment[16];
        snprintf(moment, sizeof moment, "%s", moments[i]);
        struct event_sink sink = {.emit = kill_at, .ctx = moment};
        int status = 0;
        pid_t pid = add_in_child(w, &sink);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(count_entries(w, false), 0);
        assert_int_equal(count_entries(w, true), 1); /* what it leaves begins with a dot ... */
    }
    struct store_runtime r = add(w);
    assert_int_equal(count_entries(w, true), 1); /* ... and the next change takes it away */
    store_runtime_release(&r);
}

static void concurrent(void **state)
{
    struct world *w = *state;
    pid_t pids[3];
    for (size_t i = 0; i < BASE_COUNT(pids); i++)
        pids[i] = add_in_child(w, NULL);
    for (size_t i = 0; i < BASE_COUNT(pids); i++) {
        int status = 1;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(count_entries(w, true), 1);
    struct store_runtime r;
    assert_int_equal(store_runtime_find(w->store, &w->want, &r, NULL), 0);
    assert_int_equal(store_runtime_verify(w->store, &r, NULL, NULL), 0);
    store_runtime_release(&r);
}

/* ---- removing, locks, other sources -------------------------------------------------------------------------------------------- */

static void removes(void **state)
{
    struct world *w = *state;
    struct err err;
    struct store_runtime a = add(w);
    store_aid_put(w->src, "lib/more", "x", 0644);
    struct fleet_runtime want = w->want;
    char same[STORE_PATH_MAX];
    assert_int_equal(store_pathf(same, NULL, "%s/../src", w->src), 0); /* another declaration of the same folder */
    w->want.source_arg = same;
    int lock = store_lock(w->store, false, false, NULL); /* something runs: adding still works */
    assert_true(lock >= 0);
    struct store_runtime b = add(w);
    w->want = want;
    assert_string_not_equal(a.id, b.id);
    assert_int_equal(store_runtime_remove(w->store, "llama", &err), -ENOTUNIQ);
    assert_int_equal(store_runtime_remove(w->store, "nothing", &err), -ENOENT);
    assert_int_equal(store_runtime_remove(w->store, "../x", &err), -ENOENT);
    assert_int_equal(store_runtime_remove(w->store, ".", &err), -ENOENT);
    assert_int_equal(store_runtime_remove(w->store, "", &err), -ENOENT);
    assert_int_equal(store_runtime_remove(w->store, a.id, &err), -EBUSY);
    /* a damaged one in use is not replaced under the feet of what runs */
    break_it(a.root, "has other content");
    struct store_runtime r;
    assert_int_equal(unlinkat(AT_FDCWD, w->src, 0) < 0, 1);
    char more[STORE_PATH_MAX];
    assert_int_equal(store_pathf(more, NULL, "%s/lib/more", w->src), 0);
    assert_int_equal(unlink(more), 0);
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -EBUSY);
    close(lock);
    assert_int_equal(store_runtime_remove(w->store, a.id, &err), 0);
    assert_int_equal(store_runtime_remove(w->store, "llama", &err), 0); /* the one that is left */
    assert_int_equal(count_entries(w, true), 0);
    store_runtime_release(&a);
    store_runtime_release(&b);
}

static void locks(void **state)
{
    struct world *w = *state;
    int a = store_lock(w->store, false, false, NULL), b = store_lock(w->store, false, false, NULL);
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(store_lock(w->store, true, false, NULL), -EWOULDBLOCK);
    close(a);
    close(b);
    a = store_lock(w->store, true, false, NULL);
    assert_true(a >= 0);
    assert_int_equal(store_lock(w->store, false, false, NULL), -EWOULDBLOCK);
    close(a);
}

static void system_source(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    const char *was = getenv("PATH");
    char path[STORE_PATH_MAX], bin[STORE_PATH_MAX];
    base_autofree char *before = str_dup(str_of(was ? was : ""));
    assert_int_equal(store_pathf(bin, NULL, "%s/bin", w->src), 0);
    assert_int_equal(store_pathf(path, NULL, "relative:%s/bin:/usr/bin:/bin", w->src), 0);
    assert_int_equal(setenv("PATH", path, 1), 0);
    w->want = (struct fleet_runtime){.name = "host", .engine = "llama.cpp", .source = FLEET_SOURCE_SYSTEM};
    store_aid_put(w->src, "bin/llama-server", SCRIPT, 0755);
    struct store_runtime r = add(w);
    assert_string_equal(r.root, "/");
    assert_string_equal(r.source, "system");
    assert_string_equal(r.version, "3.1");
    assert_non_null(strstr(r.program, "/src/bin/llama-server"));
    assert_int_equal(store_runtime_verify(w->store, &r, NULL, NULL), 0);
    store_aid_put(w->src, "bin/llama-server", "#!/bin/sh\necho 'version: 3.2 (abc)'\n", 0755);
    assert_int_equal(store_runtime_verify(w->store, &r, NULL, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "replaced"));
    struct store_runtime next = add(w);
    assert_string_equal(next.version, "3.2");
    assert_int_equal(count_entries(w, true), 1);
    store_runtime_release(&next);
    store_runtime_release(&r);
    store_aid_put(w->src, "bin/llama-server", "#!/bin/sh\n", 0644);
    assert_int_equal(store_runtime_add(w->store, &w->want, &w->options, &r, &err), -ENOENT);
    assert_int_equal(setenv("PATH", before, 1), 0);
}

static void note_warning(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    (void)subject;
    if (level == EVENT_WARN)
        snprintf(ctx, 256, "%s", text);
}

/* A later build in the folder changes nothing that runs, and is told. */
static void changed_source(void **state)
{
    struct world *w = *state;
    char said[256] = "", path[STORE_PATH_MAX];
    struct event_sink sink = {.emit = note_warning, .ctx = said};
    w->options.sink = &sink;
    struct store_runtime r = add(w), again = add(w);
    assert_string_equal(said, "");
    store_runtime_release(&again);
    assert_int_equal(store_pathf(path, NULL, "%s/lib/deep/data", w->src), 0);
    const struct timespec later[2] = {{.tv_sec = (time_t)(r.installed_us / 1000000) + 60}, {.tv_sec = (time_t)(r.installed_us / 1000000) + 60}};
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
    again = add(w);
    assert_string_equal(again.id, r.id);
    assert_non_null(strstr(said, "was changed since it was copied"));
    assert_non_null(strstr(said, w->src));
    store_runtime_release(&again);
    store_runtime_release(&r);
}

/* A kind without a program of its own is copied and proven all the same. */
static void generic_kind(void **state)
{
    struct world *w = *state;
    w->want.engine = "generic";
    struct store_runtime r = add(w);
    assert_string_equal(r.program, "");
    assert_memory_equal(r.id, "generic-", 8);
    assert_int_equal(store_runtime_verify(w->store, &r, NULL, NULL), 0);
    store_runtime_release(&r);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(payload_paths), T(payload_check), T(payload_split), T(adds),    T(refuses), T(tampering),     T(manifest_tampering),
        T(half_install),  T(killed),        T(concurrent),    T(removes), T(locks),   T(system_source), T(changed_source), T(generic_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
