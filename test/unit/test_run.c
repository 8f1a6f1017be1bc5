/* SPDX-License-Identifier: MIT
 *
 * The life of a service, with an engine that misbehaves as told (test/aids/fake_engine.c). Everything below run is real:
 * processes, sockets, proofs.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/run/run_int.h"

#define GUARD_MS 20000
#define WORDS_MAX 16

struct world {
    char dir[64];
    struct os_dirs dirs;
    struct store *store;
    struct net_loop *loop;
    struct httpio_client *client;
    struct net_timer *guard;
    struct run_env env;
    struct run_ops ops;
    struct fleet_host host;
    struct fleet_runtime declared;
    struct fleet_service service;
    struct store_runtime runtime;
    const char *command[WORDS_MAX];
    char program[PATH_MAX], port[8];
    struct run_service *s;
    char seen[512]; /* states in their order: "starting loading ready " */
    enum run_state stop_at;
    bool timed_out;
};

static void on_guard(void *ctx)
{
    struct world *w = ctx;
    w->timed_out = true;
    net_loop_stop(w->loop);
}

static void on_state(void *ctx, struct run_service *s, enum run_state from, enum run_state to)
{
    struct world *w = ctx;
    (void)s;
    (void)from;
    size_t n = strlen(w->seen);
    snprintf(w->seen + n, sizeof(w->seen) - n, "%s ", run_state_text(to));
    if (to == w->stop_at)
        net_loop_stop(w->loop);
}

/* Runs the loop until the service comes into a state. */
static void until(struct world *w, enum run_state state)
{
    struct run_info i;
    run_info(w->s, &i);
    w->stop_at = state;
    if (i.state != state) {
        net_timer_start(w->guard, GUARD_MS, 0);
        net_loop_run(w->loop);
        net_timer_stop(w->guard);
    }
    run_info(w->s, &i);
    if (w->timed_out)
        fail_msg("still %s, seen: %s, error: %s", run_state_text(i.state), w->seen, i.error ? i.error : "none");
    assert_int_equal(i.state, state);
}

static uint16_t free_port(void)
{
    struct net_addr a;
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &a), 0);
    int fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &a), 0);
    close(fd);
    return a.port;
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct err err = {0};
    char self[PATH_MAX];
    assert_non_null(w);
    snprintf(w->dir, sizeof(w->dir), "/tmp/berth-run-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    assert_int_equal(chmod(w->dir, 0755), 0);
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(w->program, sizeof(w->program), "%.*s/aids/fake_engine", (int)(strrchr(self, '/') - self), self);

    w->dirs.state = w->dirs.run = w->dirs.config = w->dir;
    if (store_open(&w->dirs, &w->store, &err) < 0 || net_loop_new(&w->loop, &err) < 0)
        fail_msg("%s", err.text);
    w->client = httpio_client_new(w->loop, &HTTPIO_CLIENT_DEFAULT);
    w->guard = net_timer_new(w->loop, on_guard, w);
    assert_non_null(w->client);
    assert_non_null(w->guard);
    w->env = (struct run_env){.loop = w->loop, .client = w->client, .store = w->store, .clk = &clk_system, .log_dir = w->dir, .work_dir = w->dir,
                              .times = {.backoff_ms = 20, .term_ms = 100, .limit_ms = 10000}};
    w->ops = (struct run_ops){.on_state = on_state};
    w->host = (struct fleet_host){.name = "here"};
    w->declared = (struct fleet_runtime){.name = "fake", .engine = "generic", .source = FLEET_SOURCE_SYSTEM};
    uint16_t port = free_port();
    snprintf(w->port, sizeof(w->port), "%u", port);
    w->service = (struct fleet_service){.name = "fake", .host = &w->host, .runtime = &w->declared, .port = port, .bind = "127.0.0.1",
                                        .command = w->command, .health = "/health", .identity = "/v1/models"};
    static char id[] = "generic-1", engine[] = "generic", version[] = "1", source[] = "system", root[] = "/", none[] = "";
    w->runtime = (struct store_runtime){.id = id, .engine = engine, .version = version, .source = source, .packages = none, .root = root, .program = none};
    *state = w;
    return 0;
}

/* The service with an engine of these options. */
static void make(struct world *w, const char *const *options)
{
    struct err err = {0};
    size_t n = 0;
    w->command[n++] = w->program;
    w->command[n++] = "--port";
    w->command[n++] = "{port}";
    for (; options && *options; options++)
        w->command[n++] = *options;
    assert_true(n <= WORDS_MAX);
    w->service.n_command = n;
    if (run_new(&w->env, &w->service, &w->runtime, STORE_LOADER, &w->ops, w, &w->s, &err) < 0)
        fail_msg("%s", err.text);
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int tear_down(void **state)
{
    struct world *w = *state;
    w->s = run_free(w->s);
    w->guard = net_timer_close(w->guard);
    w->client = httpio_client_free(w->client);
    w->loop = net_loop_free(w->loop);
    w->store = store_free(w->store);
    int tmp = os_open_dir("/tmp", NULL);
    assert_true(tmp >= 0);
    assert_int_equal(os_remove_tree(tmp, strrchr(w->dir, '/') + 1, NULL), 0);
    close(tmp);
    free(w);
    return 0;
}

static void start(struct world *w)
{
    struct err err = {0};
    if (run_start(w->s, &err) < 0)
        fail_msg("%s", err.text);
}

static bool is_gone(pid_t pid)
{
    return kill(pid, 0) < 0;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void start_and_stop(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--lines", "3"));
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_true(i.pid > 0);
    assert_int_equal(i.generation, 1);
    assert_int_equal(i.restarts, 0);
    assert_true(i.mem.rss_bytes > 0);
    assert_null(i.error);
    assert_string_equal(i.confine, "loader");
    pid_t pid = i.pid;
    assert_int_not_equal(getpgid(pid), getpgrp()); /* a Ctrl-C at the terminal is ours alone */
    run_stop(w->s, 1000);
    until(w, RUN_ABSENT);
    assert_string_equal(w->seen, "starting loading ready draining stopping absent ");
    assert_true(is_gone(pid));
    run_info(w->s, &i);
    assert_int_equal(i.pid, 0);

    base_autobuf struct buf log = BUF_INIT(65536);
    assert_int_equal(os_read_file(AT_FDCWD, i.log_path, &log, NULL), 0);
    assert_non_null(strstr(log.ptr, "start 1 (loader): "));
    assert_non_null(strstr(log.ptr, "\nfake: line 3\n"));
    assert_non_null(strstr(log.ptr, "ended (exit 0)"));
}

static void a_second_start(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, NULL);
    start(w);
    until(w, RUN_READY);
    run_stop(w->s, 0);
    until(w, RUN_ABSENT);
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(i.generation, 2);
    assert_int_equal(i.restarts, 0);
}

static void dies_at_load(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--exit", "7", "--lines", "20"));
    start(w);
    until(w, RUN_FAILED);
    run_info(w->s, &i);
    assert_int_equal(i.pid, 0);
    assert_non_null(i.error);
    assert_non_null(strstr(i.error, "the engine ended while loading (exit 7)\nout of device memory"));
    assert_non_null(strstr(i.error, "\n  | fake: these are my last words"));
    /* The last ten lines, no more. */
    assert_non_null(strstr(i.error, "\n  | fake: line 13\n"));
    assert_null(strstr(i.error, "fake: line 12\n"));
    assert_string_equal(w->seen, "starting loading failed ");
    run_stop(w->s, 1000);
    assert_string_equal(w->seen, "starting loading failed absent ");
}

static void dies_with_few_words(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--exit", "7", "--lines", "2"));
    start(w);
    until(w, RUN_FAILED);
    run_info(w->s, &i);
    assert_non_null(strstr(i.error, ".log:\n  | fake: line 1\n"));
}

static void never_ready(void **state)
{
    struct world *w = *state;
    struct run_info i;
    w->env.times.limit_ms = 300;
    make(w, OPTIONS("--never-ready"));
    start(w);
    run_info(w->s, &i);
    pid_t pid = i.pid;
    until(w, RUN_FAILED);
    run_info(w->s, &i);
    assert_non_null(strstr(i.error, "not ready after 300 ms"));
    assert_true(is_gone(pid));
}

static void wrong_model(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--name", "another"));
    start(w);
    until(w, RUN_FAILED);
    run_info(w->s, &i);
    assert_non_null(strstr(i.error, "not what was declared: "));
    assert_non_null(strstr(i.error, "another"));
}

static void dies_later(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, NULL);
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(kill(i.pid, SIGKILL), 0);
    until(w, RUN_STARTING);
    run_info(w->s, &i);
    assert_int_equal(i.pid, 0);
    assert_non_null(strstr(i.error, "(killed by SIGKILL)"));
    assert_string_equal(i.step, "starts again in 20 ms");
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(i.restarts, 1);
    assert_int_equal(i.generation, 2);
    assert_string_equal(w->seen, "starting loading ready starting loading ready ");
}

static void dies_later_and_is_its_owners(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, NULL);
    run_set_again(w->s, false);
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(kill(i.pid, SIGKILL), 0);
    until(w, RUN_FAILED);
    run_info(w->s, &i);
    assert_non_null(strstr(i.error, "(killed by SIGKILL)"));
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(i.restarts, 0);
    assert_int_equal(i.generation, 2);
}

/* Back-off goes on while starts fail, and the service comes back once the cause is gone. */
static void dies_again_and_again(void **state)
{
    struct world *w = *state;
    struct run_info i;
    char flag[128];
    snprintf(flag, sizeof(flag), "%s/flag", w->dir);
    make(w, OPTIONS("--exit", "1", "--flag-file", flag));
    start(w);
    until(w, RUN_READY);
    int fd = open(flag, O_CREAT | O_WRONLY, 0644);
    assert_true(fd >= 0);
    close(fd);
    run_info(w->s, &i);
    assert_int_equal(kill(i.pid, SIGKILL), 0);
    until(w, RUN_STARTING); /* ended */
    for (run_info(w->s, &i); i.restarts < 2 || i.pid != 0; run_info(w->s, &i))
        net_loop_run(w->loop); /* comes back at each change to starting */
    assert_string_equal(i.step, "starts again in 80 ms");
    assert_int_equal(unlink(flag), 0);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(i.restarts, 3);
}

static void stop_while_waiting_to_start_again(void **state)
{
    struct world *w = *state;
    struct run_info i;
    w->env.times.backoff_ms = 60000;
    make(w, NULL);
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(kill(i.pid, SIGKILL), 0);
    until(w, RUN_STARTING);
    run_stop(w->s, 1000);
    run_info(w->s, &i);
    assert_int_equal(i.state, RUN_ABSENT);
}

static void ignores_term(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--ignore-term"));
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    pid_t pid = i.pid;
    uint64_t began = clk_system.mono_us(NULL);
    run_stop(w->s, 0);
    until(w, RUN_ABSENT);
    uint64_t took_ms = (clk_system.mono_us(NULL) - began) / 1000;
    assert_true(took_ms >= 2 * w->env.times.term_ms - 20);
    assert_true(is_gone(pid));
}

static void hurry(void **state)
{
    struct world *w = *state;
    w->env.times.term_ms = 60000;
    make(w, OPTIONS("--ignore-term"));
    start(w);
    until(w, RUN_READY);
    run_stop(w->s, 0); /* TERM */
    run_stop(w->s, 0); /* TERM */
    run_stop(w->s, 0); /* KILL */
    until(w, RUN_ABSENT);
}

static void stop_while_loading(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--never-ready"));
    start(w);
    run_info(w->s, &i);
    pid_t pid = i.pid;
    run_stop(w->s, 30000);
    until(w, RUN_ABSENT);
    assert_string_equal(w->seen, "starting loading stopping absent ");
    assert_true(is_gone(pid));
}

static void port_is_taken(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    struct net_addr a;
    char want[128];
    make(w, NULL);
    assert_int_equal(net_addr_ip("127.0.0.1", w->service.port, &a), 0);
    int fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(run_start(w->s, &err), -EADDRINUSE);
    snprintf(want, sizeof(want), "port %u of service 'fake' is taken by test_run (pid %d)", w->service.port, (int)getpid());
    assert_string_equal(err.text, want);
    assert_string_equal(w->seen, "starting failed ");
    close(fd);
    start(w);
    until(w, RUN_READY);
}

static void no_such_program(void **state)
{
    struct world *w = *state;
    struct err err = {0};
    struct run_info i;
    snprintf(w->program, sizeof(w->program), "/nowhere/engine");
    make(w, NULL);
    assert_int_equal(run_start(w->s, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/engine"));
    run_info(w->s, &i);
    assert_int_equal(i.state, RUN_FAILED);
    assert_string_equal(i.error, err.text);
}

static void freed_while_it_runs(void **state)
{
    struct world *w = *state;
    struct run_info i;
    make(w, OPTIONS("--ignore-term"));
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    pid_t pid = i.pid;
    w->s = run_free(w->s);
    assert_true(is_gone(pid));
}

/* ---- logs ---------------------------------------------------------------------------------------------------- */

static void a_full_log_is_moved(void **state)
{
    struct world *w = *state;
    char path[128], old[136];
    struct stat st;
    snprintf(path, sizeof(path), "%s/fake.log", w->dir);
    snprintf(old, sizeof(old), "%s.1", path);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, RUN_LOG_MAX - 200), 0);
    close(fd);
    make(w, OPTIONS("--lines", "100"));
    start(w);
    until(w, RUN_READY);
    run_stop(w->s, 0);
    until(w, RUN_ABSENT);
    assert_int_equal(stat(old, &st), 0);
    assert_true((uint64_t)st.st_size <= RUN_LOG_MAX);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0 && st.st_size < 65536);
    base_autobuf struct buf log = BUF_INIT(65536);
    assert_int_equal(os_read_file(AT_FDCWD, path, &log, NULL), 0);
    assert_non_null(strstr(log.ptr, "fake: line 100\n"));
}

/* ---- the record of processes ------------------------------------------------------------------------------------- */

static void record_path(const struct world *w, char out[128])
{
    snprintf(out, 128, "%s/pids", w->dir);
}

static void a_record_is_recovered(void **state)
{
    struct world *w = *state;
    char path[128];
    struct run_info i;
    size_t n = 99;
    record_path(w, path);
    make(w, NULL);
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(run_pids_write(path, &w->s, 1, NULL), 0);
    assert_int_equal(run_pids_recover(path, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_int_equal(access(path, F_OK), -1);
    until(w, RUN_STARTING); /* it was killed */
    assert_int_equal(run_pids_recover(path, &n, NULL), 0);
    assert_int_equal(n, 0);
}

static void write_record(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void a_record_of_other_processes(void **state)
{
    struct world *w = *state;
    char path[128], boot[OS_BOOT_ID], text[1024];
    uint64_t start_ticks = 0;
    struct run_info i;
    size_t n;
    record_path(w, path);
    make(w, NULL);
    start(w);
    until(w, RUN_READY);
    run_info(w->s, &i);
    assert_int_equal(os_boot_id(boot, NULL), 0);
    assert_int_equal(os_proc_start(i.pid, &start_ticks), 0);
    const struct {
        const char *boot;
        uint64_t start;
        const char *tail;
    } cases[] = {
        {boot, start_ticks + 1, "fake\n"},                                       /* a pid that was given anew */
        {"00000000-0000-0000-0000-000000000000", start_ticks, "fake\n"},         /* before the last boot */
        {boot, start_ticks, "fake\nnot a line\n"},                               /* damaged */
        {boot, start_ticks, "\n"},                                               /* no service */
        {boot, start_ticks, "fake\n1 1 init\n"},                                 /* never the first process */
    };
    for (size_t k = 0; k < BASE_COUNT(cases); k++) {
        snprintf(text, sizeof(text), "boot %s\n%d %llu %s", cases[k].boot, (int)i.pid, (unsigned long long)cases[k].start, cases[k].tail);
        write_record(path, text);
        n = 99;
        assert_int_equal(run_pids_recover(path, &n, NULL), 0);
        assert_int_equal(n, 0);
        assert_int_equal(access(path, F_OK), -1);
        assert_false(is_gone(i.pid));
    }
    write_record(path, "");
    assert_int_equal(run_pids_recover(path, &n, NULL), 0);
    assert_int_equal(n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        TEST(start_and_stop), TEST(a_second_start), TEST(dies_at_load), TEST(dies_with_few_words), TEST(never_ready), TEST(wrong_model), TEST(dies_later), TEST(dies_later_and_is_its_owners),
        TEST(dies_again_and_again), TEST(stop_while_waiting_to_start_again), TEST(ignores_term), TEST(hurry), TEST(stop_while_loading),
        TEST(port_is_taken), TEST(no_such_program), TEST(freed_while_it_runs), TEST(a_full_log_is_moved), TEST(a_record_is_recovered),
        TEST(a_record_of_other_processes),
    };
    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
