/* SPDX-License-Identifier: MIT
 *
 * Transfers against the fake hub, in this process, so that sanitizers see the network's thread, the followers and the keeper at work: every fault in turn, a repair, a remote header, and an interruption.
 */
#include <hub/hub_int.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>

#define N_FILES 3
#define FILE_BYTES 20000000u

struct world {
    char dir[64];
    struct os_proc proc;
    int in, out;
    char endpoint[64];
    struct os_dirs dirs;
    struct store *store;
    struct hub *hub;
    struct hub_tree tree;
};

static void write_file(const char *path, uint64_t seed, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    (void)fwrite("GGUF", 1, 4, f);
    for (size_t i = 4; i < n; i += sizeof seed) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        (void)fwrite(&seed, 1, n - i < sizeof seed ? n - i : sizeof seed, f);
    }
    assert_int_equal(fclose(f), 0);
}

static void start(struct world *w, const char *every, const char *kinds)
{
    const char *build = getenv("BUILD");
    char program[256], path[256], ports[64] = "";
    int in[2], out[2];
    struct err err;
    *w = (struct world){.in = -1};
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/test_hub.XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    (void)snprintf(path, sizeof path, "%s/root/org/model", w->dir);
    assert_int_equal(os_make_dirs(path, 0755, &err), 0);
    for (unsigned i = 0; i < N_FILES; i++) {
        (void)snprintf(path, sizeof path, "%s/root/org/model/%u.gguf", w->dir, i);
        write_file(path, i + 1, FILE_BYTES + i);
    }
    (void)snprintf(path, sizeof path, "%s/root", w->dir);
    (void)snprintf(program, sizeof program, "%s/aids/fake_hub", build ? build : "build");
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    const char *const argv[] = {program, path, every ? "--every" : NULL, every, kinds, NULL};
    const struct os_spawn s = {.argv = argv, .stdin_fd = in[0], .stdout_fd = out[1], .stderr_fd = 2, .death_signal = SIGKILL};
    assert_int_equal(os_spawn(&s, &w->proc, &err), 0);
    close(in[0]);
    close(out[1]);
    w->in = in[1];
    w->out = out[0];
    assert_true(read(w->out, ports, sizeof ports - 1) > 0);
    struct str rest = str_of(ports), port = str_split(&rest, ' ');
    (void)snprintf(w->endpoint, sizeof w->endpoint, "http://127.0.0.1:" STR_FMT, STR_ARG(port));
    w->dirs.state = w->dir;
    if (store_open(&w->dirs, &w->store, &err) < 0)
        fail_msg("%s", err.text);
    const struct hub_options o = {.endpoint = w->endpoint, .stall_ms = 1000};
    if (hub_new(&o, &w->hub, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(hub_tree(w->hub, "org/model", "main", &w->tree, &err), 0);
    assert_int_equal(w->tree.n_files, N_FILES);
}

static void stop(struct world *w)
{
    int status;
    struct err err;
    hub_tree_release(&w->tree);
    w->hub = hub_free(w->hub);
    w->store = store_free(w->store);
    close(w->in); /* the fake hub ends with it */
    close(w->out);
    while (os_proc_reap(&w->proc, &status) == 0)
        usleep(1000);
    os_proc_release(&w->proc);
    os_autoclose int tmp = os_open_dir("/tmp", &err);
    assert_int_equal(os_remove_tree(tmp, w->dir + sizeof "/tmp/" - 1, &err), 0);
}

/* What is to be fetched: all files of the tree, pinned, into DIR/got. */
struct wants {
    struct hub_want list[N_FILES];
    char url[N_FILES][512], path[N_FILES][256];
};

static void make_wants(const struct world *w, struct wants *x)
{
    struct err err;
    for (size_t i = 0; i < N_FILES; i++) {
        const struct hub_file *f = &w->tree.files[i];
        struct buf url = BUF_INIT(512);
        assert_int_equal(hub_url(w->hub, "org/model", w->tree.commit, f->path, &url, &err), 0);
        (void)snprintf(x->url[i], sizeof x->url[i], "%s", url.ptr);
        (void)snprintf(x->path[i], sizeof x->path[i], "%s/got/%s", w->dir, f->path);
        buf_release(&url);
        x->list[i] = (struct hub_want){f->path, x->url[i], x->path[i], f->bytes, f->sha256, f->git_sha1};
    }
}

static void assert_proven(const struct world *w, const struct wants *x)
{
    for (size_t i = 0; i < N_FILES; i++) {
        char hex[OS_SHA256_HEX];
        uint64_t bytes;
        struct err err;
        const struct fleet_lock_file want = {.path = "", .bytes = x->list[i].bytes, .sha256 = x->list[i].sha256};
        assert_int_equal(os_digest_file(AT_FDCWD, x->path[i], hex, &bytes, &err), 0);
        assert_string_equal(hex, x->list[i].sha256);
        assert_int_equal(bytes, FILE_BYTES + i);
        assert_true(store_payload_proven(w->store, x->path[i], &want));
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------- */

static void every_fault(void **state)
{
    struct world w;
    static struct wants x;
    struct err err;
    int codes[N_FILES];
    (void)state;
    start(&w, "1000000", "reset,corrupt,expire,short,429,long,wronglength,otherrange,gzip,stall,503");
    make_wants(&w, &x);
    if (hub_fetch(w.hub, w.store, x.list, N_FILES, codes, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < N_FILES; i++)
        assert_int_equal(codes[i], 0);
    assert_proven(&w, &x);
    stop(&w);
}

/* A byte in each megabyte is wrong, in the file, in its copies and in what is to decide between them. */
static void corrupted_often(void **state)
{
    struct world w;
    static struct wants x;
    struct err err;
    (void)state;
    start(&w, "1000000", "corrupt");
    make_wants(&w, &x);
    if (hub_fetch(w.hub, w.store, x.list, N_FILES, NULL, &err) < 0)
        fail_msg("%s", err.text);
    assert_proven(&w, &x);
    stop(&w);
}

static void one_fails_the_others_come(void **state)
{
    struct world w;
    static struct wants x;
    struct err err;
    int codes[N_FILES];
    (void)state;
    start(&w, NULL, NULL);
    make_wants(&w, &x);
    struct hub_want wrong[N_FILES];
    memcpy(wrong, x.list, sizeof wrong);
    wrong[1].sha256 = x.list[0].sha256; /* what the hub itself says is another */
    assert_int_equal(hub_fetch(w.hub, w.store, wrong, N_FILES, codes, &err), -ESTALE);
    assert_non_null(strstr(err.text, "changed upstream"));
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], -ESTALE);
    assert_int_equal(codes[2], 0);
    assert_int_equal(access(x.path[1], F_OK), -1);
    assert_int_equal(hub_fetch(w.hub, w.store, &x.list[1], 1, NULL, &err), 0);
    assert_proven(&w, &x);
    stop(&w);
}

static void repair(void **state)
{
    struct world w;
    static struct wants x;
    struct err err;
    struct store_manifest m;
    uint64_t bytes = 0;
    const uint64_t second = 1;
    (void)state;
    start(&w, NULL, NULL);
    make_wants(&w, &x);
    assert_int_equal(hub_fetch(w.hub, w.store, x.list, N_FILES, NULL, &err), 0);
    assert_int_equal(store_manifest_load(w.store, x.path[0], &m, &err), 0);
    int fd = open(x.path[0], O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "damage", 6, 17000000), 6);
    assert_int_equal(hub_repair(w.hub, &x.list[0], &m, &second, 1, fd, &bytes, &err), 0);
    assert_int_equal(bytes, FILE_BYTES - STORE_SEGMENT_BYTES);
    close(fd);
    char hex[OS_SHA256_HEX];
    assert_int_equal(os_digest_file(AT_FDCWD, x.path[0], hex, NULL, &err), 0);
    assert_string_equal(hex, x.list[0].sha256);
    /* a manifest of another file: what comes is not its segment, and nothing is written */
    m.sha256[0] ^= 1;
    fd = open(x.path[0], O_RDWR | O_CLOEXEC);
    assert_int_equal(hub_repair(w.hub, &x.list[0], &m, &second, 1, fd, &bytes, &err), -EBADMSG);
    close(fd);
    store_manifest_release(&m);
    assert_int_equal(os_digest_file(AT_FDCWD, x.path[0], hex, NULL, &err), 0);
    assert_string_equal(hex, x.list[0].sha256);
    stop(&w);
}

/* The signal comes on the caller's thread, from its own watching. */
static void interrupt_once(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    bool *sent = ctx;
    (void)level, (void)subject, (void)text, (void)total;
    if (!*sent && done) {
        *sent = true;
        (void)raise(SIGTERM);
    }
}

static void ignore_term(int sig)
{
    (void)sig;
}

static void interrupted(void **state)
{
    struct world w;
    static struct wants x;
    struct err err;
    bool sent = false;
    (void)state;
    start(&w, "4000000", "slow");
    make_wants(&w, &x);
    w.hub = hub_free(w.hub);
    const struct event_sink sink = {interrupt_once, &sent};
    const struct hub_options o = {.endpoint = w.endpoint, .sink = &sink};
    assert_int_equal(hub_new(&o, &w.hub, &err), 0);
    (void)signal(SIGTERM, ignore_term);
    os_interrupt_begin();
    int r = hub_fetch(w.hub, w.store, x.list, N_FILES, NULL, &err);
    os_interrupt_end();
    (void)signal(SIGTERM, SIG_DFL);
    assert_true(sent);
    assert_int_equal(r, -EINTR);
    stop(&w);
}

static void remote_header(void **state)
{
    struct world w;
    static struct wants x;
    struct gguf_source src;
    struct err err;
    static char far[1000], near[1000];
    (void)state;
    start(&w, NULL, NULL);
    make_wants(&w, &x);
    assert_int_equal(hub_source_open(w.hub, x.url[0], &src, &err), 0);
    assert_int_equal(src.size, FILE_BYTES);
    char path[256];
    (void)snprintf(path, sizeof path, "%s/root/org/model/0.gguf", w.dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    static const uint64_t places[] = {0, 524000, 600000, 1048000, 9000000, FILE_BYTES - 1000, 100};
    for (size_t i = 0; i < BASE_COUNT(places); i++) {
        assert_int_equal(src.read(src.ctx, places[i], far, sizeof far, &err), 0);
        assert_int_equal(pread(fd, near, sizeof near, (off_t)places[i]), sizeof near);
        assert_memory_equal(far, near, sizeof far);
    }
    close(fd);
    hub_source_close(&src);
    /* where nobody listens */
    w.hub = hub_free(w.hub);
    const struct hub_options o = {.endpoint = w.endpoint, .retries = 1};
    assert_int_equal(hub_new(&o, &w.hub, &err), 0);
    assert_int_equal(hub_source_open(w.hub, "http://127.0.0.1:1/x", &src, &err), -ECONNREFUSED);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault), cmocka_unit_test(corrupted_often), cmocka_unit_test(one_fails_the_others_come), cmocka_unit_test(repair), cmocka_unit_test(interrupted), cmocka_unit_test(remote_header),
    };
    static const char *const names[] = {"HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        (void)unsetenv(names[i]);
    (void)setenv("HF_HOME", "/nonexistent", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
