/* SPDX-License-Identifier: MIT
 *
 * The supervisor from outside: a child process runs up_main with engines that misbehave as told (test/aids/fake_engine.c), this
 * one talks to its control socket. The real engine's turn is test/engine/up.bats.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/up/up_int.h"

#define WAIT_MS 20000

struct world {
    char dir[64], file[80], builds[PATH_MAX];
    struct os_dirs dirs;
    uint16_t ports[3];
    pid_t child;
    int out; /* its standard output */
    struct buf said, errors;
};

static void free_ports(uint16_t *ports, size_t n)
{
    int fds[8];
    assert_true(n <= BASE_COUNT(fds));
    for (size_t i = 0; i < n; i++) {
        struct net_addr a;
        assert_int_equal(net_addr_ip("127.0.0.1", 0, &a), 0);
        fds[i] = net_listen_socket(&a, false, NULL);
        assert_true(fds[i] >= 0);
        assert_int_equal(net_socket_addr(fds[i], &a), 0);
        ports[i] = a.port;
    }
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->out = -1;
    w->said = w->errors = BUF_INIT(1 << 20);
    snprintf(w->dir, sizeof(w->dir), "/tmp/berth-up-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    assert_int_equal(chmod(w->dir, 0755), 0);
    snprintf(w->file, sizeof(w->file), "%s/fleet.yaml", w->dir);
    w->dirs.state = w->dirs.run = w->dirs.config = w->dir;
    assert_int_equal(setenv("BERTH_STATE", w->dir, 1), 0);
    assert_int_equal(setenv("BERTH_RUN", w->dir, 1), 0);
    free_ports(w->ports, 3);
    ssize_t n = readlink("/proc/self/exe", w->builds, sizeof(w->builds) - 1);
    assert_true(n > 0);
    w->builds[n] = '\0';
    for (unsigned i = 0; i < 2; i++) /* BUILD/test/test_up */
        *strrchr(w->builds, '/') = '\0';
    *state = w;
    return 0;
}

static int wait_child(struct world *w)
{
    int status = 0;
    if (w->child <= 0)
        return -1;
    assert_int_equal(waitpid(w->child, &status, 0), w->child);
    w->child = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int tear_down(void **state)
{
    struct world *w = *state;
    if (w->child > 0) {
        (void)kill(w->child, SIGKILL);
        (void)wait_child(w);
    }
    os_closep(&w->out);
    buf_release(&w->said);
    buf_release(&w->errors);
    int tmp = os_open_dir("/tmp", NULL);
    assert_true(tmp >= 0);
    assert_int_equal(os_remove_tree(tmp, strrchr(w->dir, '/') + 1, NULL), 0);
    close(tmp);
    free(w);
    return 0;
}

/* Two services; the options are words for the second one's engine. */
static void write_fleet(const struct world *w, const char *options_of_b)
{
    FILE *f = fopen(w->file, "w");
    assert_non_null(f);
    fprintf(f,
            "version: 1\nname: test\nruntimes:\n  fake: {engine: generic, source: system}\nservices:\n"
            "  a: {runtime: fake, port: %u, identity: /v1/models, command: [\"%s/aids/fake_engine\", --port, \"{port}\", --name, a]}\n"
            "  b: {runtime: fake, port: %u, identity: /v1/models, command: [\"%s/aids/fake_engine\", --port, \"{port}\", --name, b%s]}\n"
            "endpoints:\n  both: {services: [a, b]}\nrouter: {listen: \"127.0.0.1:%u\"}\n",
            w->ports[0], w->builds, w->ports[1], w->builds, options_of_b, w->ports[2]);
    assert_int_equal(fclose(f), 0);
}

static void begin(struct world *w)
{
    char program[PATH_MAX + 8], errors[96];
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    snprintf(program, sizeof(program), "%s/berth", w->builds);
    snprintf(errors, sizeof(errors), "%s/stderr", w->dir);
    (void)fflush(NULL);
    w->child = fork();
    if (w->child == 0) {
        int err_fd = open(errors, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)dup2(err_fd, STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        close(err_fd);
        struct up_options o = {.fleet_path = w->file, .program = program};
        exit(up_main(&o)); /* not _exit: leaks are looked for */
    }
    assert_true(w->child > 0);
    close(ends[1]);
    w->out = ends[0];
}

static void read_errors(struct world *w)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/stderr", w->dir);
    buf_clear(&w->errors);
    assert_int_equal(os_read_file(AT_FDCWD, path, &w->errors, NULL), 0);
}

/* Until it has printed the table, or has ended. */
static bool is_up(struct world *w)
{
    for (;;) {
        struct pollfd f = {.fd = w->out, .events = POLLIN};
        assert_int_equal(poll(&f, 1, WAIT_MS), 1);
        char *room = buf_room(&w->said, 4096);
        assert_non_null(room);
        ssize_t n = read(w->out, room, 4096);
        if (n <= 0)
            return false;
        buf_grew(&w->said, (size_t)n);
        if (str_find(buf_str(&w->said), STR("\nstop ")) >= 0)
            return true;
    }
}

static void bring_up(struct world *w)
{
    begin(w);
    if (!is_up(w)) {
        read_errors(w);
        fail_msg("not up: %s", w->errors.ptr);
    }
}

/* One control request; *ret is the parsed answer, for json_free. */
static unsigned call(struct world *w, const char *method, const char *target, struct json **ret)
{
    base_autobuf struct buf body = BUF_INIT(1 << 20);
    struct err err = {0};
    unsigned status = 0;
    if (up_call(&w->dirs, "test", method, target, &status, &body, &err) < 0)
        fail_msg("%s %s: %s", method, target, err.text);
    if (json_parse(buf_str(&body), ret, &err) < 0)
        fail_msg("%s %s: %s", method, target, err.text);
    return status;
}

static void assert_text(json_val v, const char *key, const char *want)
{
    struct str s = {0};
    if (!json_str(json_get(v, key), &s) || !str_eq_c(s, want))
        fail_msg("'%s' is '" STR_FMT "', not '%s'", key, STR_ARG(s), want);
}

static uint64_t number(json_val v, const char *key)
{
    uint64_t n = UINT64_MAX;
    assert_true(json_u64(json_get(v, key), &n));
    return n;
}

static void go_down(struct world *w)
{
    struct json *j;
    struct err err = {0};
    bool stopping = false;
    assert_int_equal(call(w, "POST", "/down", &j), 200);
    assert_true(json_bool(json_get(json_root(j), "stopping"), &stopping) && stopping);
    json_free(j);
    if (up_wait_gone(&w->dirs, "test", WAIT_MS, &err) < 0)
        fail_msg("%s", err.text);
    int code = wait_child(w);
    read_errors(w);
    if (code != 0)
        fail_msg("exit %d: %s", code, w->errors.ptr);
}

static pid_t pid_of(struct world *w, size_t service, const char *state)
{
    struct json *j;
    assert_int_equal(call(w, "GET", "/status", &j), 200);
    json_val s = json_at(json_get(json_root(j), "services"), service);
    if (state)
        assert_text(s, "state", state);
    uint64_t pid = 0;
    (void)json_u64(json_get(s, "pid"), &pid);
    json_free(j);
    return (pid_t)pid;
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

static void not_running(void **state)
{
    struct world *w = *state;
    base_autobuf struct buf body = BUF_INIT(1024), path = BUF_INIT(1024);
    struct err err = {0};
    unsigned status;
    char want[128];
    assert_int_equal(up_call(&w->dirs, "test", "GET", "/status", &status, &body, &err), -ENOENT);
    assert_string_equal(err.text, "fleet 'test' is not up; 'berth up' brings it up");
    assert_int_equal(up_wait_gone(&w->dirs, "test", 0, &err), 0);
    assert_int_equal(up_log_path(&w->dirs, "test", "a", &path), 0);
    snprintf(want, sizeof(want), "%s/fleets/test/logs/a.log", w->dir);
    assert_string_equal(path.ptr, want);
}

static void a_lock_names_its_holder(void **state)
{
    struct world *w = *state;
    char path[96];
    struct err err = {0};
    snprintf(path, sizeof(path), "%s/lock", w->dir);
    assert_int_equal(up_lock_holder(path, NULL), 0);
    int fd = os_lock(path, true, false, NULL);
    assert_true(fd >= 0);
    static const char held[] = "4711\n/a/run\x1b\n"; /* what another wrote is shown, not obeyed */
    base_autobuf struct buf run = BUF_INIT(UP_PATH_MAX);
    assert_int_equal(write(fd, held, sizeof(held) - 1), sizeof(held) - 1);
    assert_int_equal(up_lock_holder(path, &run), 4711);
    assert_string_equal(run.ptr, "/a/run\\x1b");
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(up_lock_holder(path, NULL), -1); /* held, by whom is not known yet */
    close(fd);
    assert_int_equal(up_lock_holder(path, NULL), 0);

    snprintf(path, sizeof(path), "%s/test", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/test/lock", w->dir);
    fd = os_lock(path, true, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(up_wait_gone(&w->dirs, "test", 60, &err), -ETIMEDOUT);
    close(fd);
}

static void status_of_a_fleet_that_is_down(void **state)
{
    struct world *w = *state;
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    struct fleet *f;
    struct json *j;
    struct err err = {0};
    const char *engines[] = {"generic"};
    struct fleet_options o = {.engines = engines, .n_engines = 1};
    write_fleet(w, "");
    if (fleet_load(w->file, &o, &f, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(up_status_down(f, &b), 0);
    assert_int_equal(json_parse(buf_str(&b), &j, NULL), 0);
    json_val root = json_root(j), s = json_at(json_get(root, "services"), 1);
    assert_text(root, "fleet", "test");
    assert_text(root, "state", "down");
    assert_true(json_is_null(json_get(root, "pid")));
    assert_text(s, "name", "b");
    assert_text(s, "state", "down");
    assert_int_equal(number(s, "port"), w->ports[1]);
    assert_true(json_is_null(json_get(s, "memory_bytes")));
    assert_text(json_get(root, "router"), "state", "down");
    assert_text(json_at(json_get(root, "endpoints"), 0), "name", "both");
    json_free(j);
    fleet_free(f);
}

static void up_and_down(void **state)
{
    struct world *w = *state;
    struct json *j;
    char url[64], sock[96];
    struct stat st;
    write_fleet(w, "");
    bring_up(w);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", w->ports[2]);
    assert_true(str_find(buf_str(&w->said), str_of(url)) > 0);
    snprintf(sock, sizeof(sock), "%s/test/control.sock", w->dir);
    assert_int_equal(stat(sock, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    assert_int_equal(call(w, "GET", "/status", &j), 200);
    json_val root = json_root(j), s = json_at(json_get(root, "services"), 0), r = json_get(root, "router");
    assert_text(root, "state", "up");
    assert_int_equal(number(root, "pid"), w->child);
    assert_text(s, "state", "ready");
    assert_true(number(s, "memory_bytes") > 0);
    assert_text(r, "state", "up");
    assert_text(r, "url", url);
    pid_t engine = (pid_t)number(s, "pid"), router = (pid_t)number(r, "pid");
    json_free(j);
    /* what only the router knows comes through its channel, with its status */
    assert_int_equal(call(w, "GET", "/requests", &j), 200);
    assert_int_equal(json_count(json_get(json_root(j), "replicas")), 2);
    assert_int_equal(json_count(json_get(json_root(j), "requests")), 0);
    json_free(j);
    assert_int_equal(call(w, "POST", "/requests/1/cancel", &j), 404);
    assert_text(json_root(j), "error", "no request of that number is under way");
    json_free(j);
    assert_int_equal(up_lock_holder((snprintf(sock, sizeof(sock), "%s/test/lock", w->dir), sock), NULL), w->child);

    go_down(w);
    assert_int_equal(kill(engine, 0), -1);
    assert_int_equal(kill(router, 0), -1);
    snprintf(sock, sizeof(sock), "%s/test/pids", w->dir);
    assert_int_equal(access(sock, F_OK), -1);
}

static void restart_over_the_socket(void **state)
{
    struct world *w = *state;
    struct json *j;
    write_fleet(w, "");
    bring_up(w);
    pid_t a = pid_of(w, 0, "ready"), b = pid_of(w, 1, "ready");
    unsigned status = call(w, "POST", "/restart?service=a", &j);
    if (status != 200)
        assert_text(json_root(j), "error", "");
    assert_int_equal(number(json_root(j), "restarted"), 1);
    json_free(j);
    assert_int_not_equal(pid_of(w, 0, "ready"), a);
    assert_int_equal(pid_of(w, 1, "ready"), b);
    assert_int_equal(call(w, "POST", "/restart", &j), 200);
    assert_int_equal(number(json_root(j), "restarted"), 2);
    json_free(j);
    assert_int_not_equal(pid_of(w, 1, "ready"), b);

    const struct {
        const char *method, *target;
        unsigned status;
    } cases[] = {
        {"POST", "/restart?service=c", 404}, {"POST", "/restart?x=a", 400}, {"GET", "/restart", 404}, {"POST", "/status", 404}, {"GET", "/", 404},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        assert_int_equal(call(w, cases[i].method, cases[i].target, &j), cases[i].status);
        assert_non_null(json_get(json_root(j), "error"));
        json_free(j);
    }
    go_down(w);
}

static void a_killed_engine_comes_back(void **state)
{
    struct world *w = *state;
    write_fleet(w, "");
    bring_up(w);
    pid_t a = pid_of(w, 0, "ready"), next = a;
    assert_int_equal(kill(a, SIGKILL), 0);
    for (unsigned i = 0; i < 500 && (next == a || next == 0 || pid_of(w, 0, NULL) == 0); i++) {
        next = pid_of(w, 0, NULL);
        (void)poll(NULL, 0, 10);
    }
    assert_true(next != a && next > 0);
    struct json *j;
    assert_int_equal(call(w, "GET", "/status", &j), 200);
    assert_int_equal(number(json_at(json_get(json_root(j), "services"), 0), "restarts"), 1);
    json_free(j);
    go_down(w);
    assert_true(str_find(buf_str(&w->errors), STR("service 'a': the engine ended after")) >= 0);
}

static void an_engine_that_dies_at_load(void **state)
{
    struct world *w = *state;
    write_fleet(w, ", --exit, \"5\"");
    begin(w);
    assert_false(is_up(w));
    assert_int_equal(wait_child(w), 1);
    read_errors(w);
    assert_true(str_find(buf_str(&w->errors), STR("berth up: service 'b': the engine ended while loading (exit 5)\nout of device memory")) >= 0);
    assert_true(str_find(buf_str(&w->errors), STR("| fake: these are my last words")) > 0);
    assert_int_equal(up_wait_gone(&w->dirs, "test", 0, NULL), 0);
    struct net_addr addr;
    for (size_t i = 0; i < 3; i++) { /* nobody listens */
        assert_int_equal(net_addr_ip("127.0.0.1", w->ports[i], &addr), 0);
        int fd = net_listen_socket(&addr, false, NULL);
        assert_true(fd >= 0);
        close(fd);
    }
}

static void an_engine_that_serves_another_model(void **state)
{
    struct world *w = *state;
    write_fleet(w, ", --name, other");
    begin(w);
    assert_false(is_up(w));
    assert_int_equal(wait_child(w), 1);
    read_errors(w);
    assert_true(str_find(buf_str(&w->errors), STR("berth up: service 'b': not what was declared")) >= 0);
    assert_true(str_find(buf_str(&w->errors), STR("other")) >= 0);
}

static void a_signal_stops_it(void **state)
{
    struct world *w = *state;
    write_fleet(w, "");
    bring_up(w);
    assert_int_equal(kill(w->child, SIGTERM), 0);
    assert_int_equal(wait_child(w), 0);
}

static void an_unusable_fleet(void **state)
{
    struct world *w = *state;
    write_fleet(w, ", [");
    begin(w);
    assert_false(is_up(w));
    assert_int_equal(wait_child(w), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        TEST(not_running), TEST(a_lock_names_its_holder), TEST(status_of_a_fleet_that_is_down), TEST(up_and_down), TEST(restart_over_the_socket),
        TEST(a_killed_engine_comes_back), TEST(an_engine_that_dies_at_load), TEST(an_engine_that_serves_another_model), TEST(a_signal_stops_it),
        TEST(an_unusable_fleet),
    };
    return cmocka_run_group_tests_name("up", tests, NULL, NULL);
}
