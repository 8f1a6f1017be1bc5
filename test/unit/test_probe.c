/* SPDX-License-Identifier: MIT
 *
 * probe: readiness and idleness against small servers in the same loop that answer by a script, and, when BERTH_TEST_LLAMA names a llama-server,
 * against that with the project's tiny models: every flag that engine writes is then taken by the real thing.
 */
#include <os/os.h>
#include <probe/probe.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the scripted engine -------------------------------------------------------------------------------------- */

/* One answer: the next request must be for this path. */
struct answer {
    const char *target;
    unsigned status; /* 0: never answers */
    const char *body;
};

static struct {
    struct net_loop *loop;
    struct httpio_client *client;
    struct httpio_server *server;
    struct net_addr addr;
    int fd; /* bound, and listening once the server has it */
    const struct answer *script;
    size_t n, next;
    struct buf posted;
    const char *key; /* that the engine asks for: each question must show it; NULL: none may show any */
    /* what came of it */
    int calls, status;
    enum probe_step at;
    char text[ERR_TEXT_MAX];
} t;

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    (void)ctx;
    if (t.next == t.n)
        fail_msg("unexpected request for " STR_FMT, STR_ARG(head->target));
    const struct answer *a = &t.script[t.next++];
    if (!str_eq_c(head->target, a->target))
        fail_msg("request for " STR_FMT " instead of %s", STR_ARG(head->target), a->target);
    char want[64];
    snprintf(want, sizeof want, "Bearer %s", t.key ? t.key : "");
    struct str shown = http_field_get(head, "authorization");
    if (!str_eq_c(shown, t.key ? want : ""))
        fail_msg("%s was asked with '" STR_FMT "'", a->target, STR_ARG(shown));
    httpio_exchange_set(x, (void *)(uintptr_t)a);
}

static void on_body(void *ctx, struct httpio_exchange *x, struct str data)
{
    (void)ctx;
    (void)x;
    buf_add_str(&t.posted, data);
}

static void on_body_end(void *ctx, struct httpio_exchange *x)
{
    (void)ctx;
    const struct answer *a = httpio_exchange_get(x);
    if (a->status)
        httpio_respond(x, a->status, "application/json", str_of(a->body));
}

static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    (void)ctx;
    (void)x;
    (void)completed;
}

static int setup(void **state)
{
    (void)state;
    memset(&t, 0, sizeof(t));
    t.posted = BUF_INIT(4096);
    struct httpio_client_options options = HTTPIO_CLIENT_DEFAULT;
    assert_int_equal(net_loop_new(&t.loop, NULL), 0);
    t.client = httpio_client_new(t.loop, &options);
    assert_non_null(t.client);
    t.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(t.fd, (struct sockaddr *)&any, sizeof(any)), 0);
    assert_int_equal(net_socket_addr(t.fd, &t.addr), 0);
    return 0;
}

static void open_server(void)
{
    static const struct httpio_server_ops ops = {.on_request = on_request, .on_body = on_body, .on_body_end = on_body_end, .on_done = on_done};
    struct httpio_limits limits = HTTPIO_LIMITS_DEFAULT;
    t.server = httpio_server_new(t.loop, &limits, &ops, NULL);
    assert_non_null(t.server);
    assert_int_equal(listen(t.fd, 16), 0);
    assert_int_equal(httpio_server_add(t.server, t.fd, NULL), 0);
    t.fd = -1;
}

static int teardown(void **state)
{
    (void)state;
    httpio_server_free(t.server);
    httpio_client_free(t.client);
    net_loop_free(t.loop);
    if (t.fd >= 0)
        close(t.fd);
    buf_release(&t.posted);
    return 0;
}

static void on_ready(void *ctx, int status, enum probe_step at, const struct err *err)
{
    assert_ptr_equal(ctx, &t);
    t.calls++;
    t.status = status;
    t.at = at;
    snprintf(t.text, sizeof(t.text), "%s", status < 0 ? err->text : "");
    net_loop_stop(t.loop);
}

static void on_idle(void *ctx, int status)
{
    assert_ptr_equal(ctx, &t);
    t.calls++;
    t.status = status;
    net_loop_stop(t.loop);
}

static const struct fleet_host bare = {.name = "here"};
static const struct fleet_runtime llama = {.name = "llama", .engine = "llama.cpp"}, vllm = {.name = "vllm", .engine = "vllm"}, generic = {.name = "own", .engine = "generic"};
static const struct engine_paths paths = {.weights = "/m/a.gguf"};

static struct fleet_service small(const struct fleet_runtime *runtime)
{
    return (struct fleet_service){.name = "small", .host = &bare, .runtime = runtime, .port = 1, .bind = "127.0.0.1", .shape = {.split_auto = true, .slots = 2, .context = 2048}};
}

#define MODELS "{\"data\":[{\"id\":\"small\"}]}"
#define PROPS "{\"build_info\":\"b1\",\"default_generation_settings\":{\"n_ctx\":1024},\"total_slots\":2,\"model_path\":\"/m/a.gguf\"}"
#define TOKEN "{\"tokens_predicted\":1}"
#define BUSY "[{\"is_processing\":true},{\"is_processing\":false}]"
#define FREE "[{\"is_processing\":false},{\"is_processing\":false}]"

/* Runs a readiness proof to its end and compares what came of it; the whole script must have been used. */
static void ready(const struct fleet_service *s, const struct answer *script, size_t n, uint64_t limit_ms, int status, enum probe_step at, const char *text)
{
    t.script = script;
    t.n = n;
    t.next = 0;
    t.calls = 0;
    if (!t.server)
        open_server();
    struct probe_target target = {.service = s, .paths = &paths, .addr = t.addr};
    if (t.key)
        snprintf(target.key, sizeof target.key, "%s", t.key);
    assert_non_null(probe_ready_start(t.loop, t.client, &target, limit_ms, on_ready, &t));
    assert_int_equal(t.calls, 0);
    net_loop_run(t.loop);
    assert_int_equal(t.calls, 1);
    assert_string_equal(t.text, text);
    assert_int_equal(t.status, status);
    assert_int_equal(t.at, at);
    assert_int_equal(t.next, n);
}

static void all_steps(void **state)
{
    (void)state;
    static const struct answer script[] = {{"/health", 503, "{}"}, {"/health", 200, "{}"}, {"/v1/models", 200, MODELS}, {"/props", 200, PROPS}, {"/completion", 200, TOKEN}};
    struct fleet_service s = small(&llama);
    ready(&s, script, BASE_COUNT(script), 5000, 0, PROBE_DONE, "");
    assert_non_null(strstr(t.posted.ptr, "\"n_predict\":1,"));
}

/* Each question shows the key, and one that is refused is said to be. */
static void key_is_shown(void **state)
{
    (void)state;
    static const struct answer all[] = {{"/health", 200, "{}"}, {"/v1/models", 200, MODELS}, {"/props", 200, PROPS}, {"/completion", 200, TOKEN}};
    static const struct answer refused[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS}, {"/props", 401, "{\"error\":{}}"}};
    struct fleet_service s = small(&llama);
    s.key = "/etc/berth/small.key";
    t.key = "K-of-the-engine-0";
    ready(&s, all, BASE_COUNT(all), 5000, 0, PROBE_DONE, "");
    ready(&s, refused, 3, 5000, -EBADMSG, PROBE_PROPS, "what it took: status 401: it does not take the key in '/etc/berth/small.key': start it again when the file was changed");
}

static void speculation_is_asked(void **state)
{
    (void)state;
    static const struct answer on[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS}, {"/props", 200, PROPS}, {"/slots", 200, "[{\"speculative\":true}]"}, {"/completion", 200, TOKEN}};
    static const struct answer off[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS}, {"/props", 200, PROPS}, {"/slots", 200, "[{\"speculative\":false}]"}};
    const char *types[] = {"ngram-mod"};
    struct fleet_service s = small(&llama);
    s.shape.speculative = types;
    s.shape.n_speculative = 1;
    ready(&s, on, BASE_COUNT(on), 5000, 0, PROBE_DONE, "");
    ready(&s, off, BASE_COUNT(off), 5000, -EBADMSG, PROBE_PROPS, "what it took: speculation: asked for 'ngram-mod', 0 of 1 slots have any; the log says why");
}

static void other_kinds(void **state)
{
    (void)state;
    static const struct answer v[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS}, {"/v1/completions", 200, "{\"usage\":{\"completion_tokens\":1}}"}};
    static const struct answer g[] = {{"/ready", 404, ""}, {"/ready", 200, ""}};
    static const struct answer named[] = {{"/ready", 200, ""}, {"/names", 200, MODELS}};
    struct fleet_service s = small(&vllm), own = small(&generic);
    ready(&s, v, BASE_COUNT(v), 5000, 0, PROBE_DONE, "");
    own.health = "/ready";
    ready(&own, g, BASE_COUNT(g), 5000, 0, PROBE_DONE, "");
    own.identity = "/names";
    ready(&own, named, BASE_COUNT(named), 5000, 0, PROBE_DONE, "");
}

static void later_steps_fail(void **state)
{
    (void)state;
    struct fleet_service s = small(&llama);
    static const struct answer other[] = {{"/health", 200, ""}, {"/v1/models", 200, "{\"data\":[{\"id\":\"big\"}]}"}};
    ready(&s, other, 2, 5000, -ENOENT, PROBE_IDENTITY, "identity: it serves 'big', not 'small': another program may be listening there");
    static const struct answer key[] = {{"/health", 200, ""}, {"/v1/models", 401, "{\"error\":{}}"}};
    ready(&s, key, 2, 5000, -EBADMSG, PROBE_IDENTITY, "identity: status 401: it wants a key; name its file in 'key' of the service");
    static const struct answer web[] = {{"/health", 200, ""}, {"/v1/models", 404, "<html>"}};
    ready(&s, web, 2, 5000, -EBADMSG, PROBE_IDENTITY, "identity: answer is no model list: another program may be listening there");
    static const struct answer odd[] = {{"/health", 200, ""}, {"/v1/models", 500, MODELS}};
    ready(&s, odd, 2, 5000, -EBADMSG, PROBE_IDENTITY, "identity: status 500");
    static const struct answer less[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS},
                                         {"/props", 200, "{\"build_info\":\"b1\",\"default_generation_settings\":{\"n_ctx\":512},\"total_slots\":2,\"model_path\":\"/m/a.gguf\"}"}};
    ready(&s, less, 3, 5000, -EBADMSG, PROBE_PROPS, "what it took: context per slot: asked 1024, got 512 (the model was trained for less, or the engine changed it)");
    static const struct answer mute[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS}, {"/props", 200, PROPS}, {"/completion", 500, "{\"error\":{\"message\":\"no\"}}"}};
    ready(&s, mute, 4, 5000, -EBADMSG, PROBE_TOKEN, "one token: request for one token failed: 'no'");
}

static void listens_later(void *ctx)
{
    (void)ctx;
    open_server();
}

static void refused_means_loading(void **state)
{
    (void)state;
    static const struct answer script[] = {{"/health", 200, ""}, {"/v1/models", 200, MODELS}, {"/props", 200, PROPS}, {"/completion", 200, TOKEN}};
    struct fleet_service s = small(&llama);
    struct net_timer *timer = net_timer_new(t.loop, listens_later, NULL);
    net_timer_start(timer, 300, 0);
    t.script = script;
    t.n = BASE_COUNT(script);
    struct probe_target target = {.service = &s, .paths = &paths, .addr = t.addr};
    assert_non_null(probe_ready_start(t.loop, t.client, &target, 5000, on_ready, &t));
    net_loop_run(t.loop);
    net_timer_close(timer);
    assert_string_equal(t.text, "");
    assert_int_equal(t.at, PROBE_DONE);
    assert_int_equal(t.next, t.n);
}

static void limit_ends_health(void **state)
{
    (void)state;
    static const struct answer loading[] = {{"/health", 503, ""}, {"/health", 503, ""}};
    static const struct answer mute[] = {{"/health", 0, NULL}};
    struct fleet_service s = small(&llama);
    ready(&s, loading, 2, 300, -ETIMEDOUT, PROBE_HEALTH, t.text);
    assert_true(str_starts(str_of(t.text), STR("health: not ready after ")));
    assert_true(str_ends(str_of(t.text), STR(" ms, last answer of /health: status 503")));
    ready(&s, mute, 1, 100, -ETIMEDOUT, PROBE_HEALTH, t.text);
    assert_true(str_ends(str_of(t.text), STR(", last answer of /health: no whole response within 100 ms")));
}

static void nobody_listens(void **state)
{
    (void)state;
    struct fleet_service s = small(&llama);
    struct probe_target target = {.service = &s, .paths = &paths, .addr = t.addr};
    assert_non_null(probe_ready_start(t.loop, t.client, &target, 250, on_ready, &t));
    net_loop_run(t.loop);
    assert_int_equal(t.calls, 1);
    assert_int_equal(t.status, -ETIMEDOUT);
    assert_non_null(strstr(t.text, "refused"));
}

static void stop(void *ctx)
{
    (void)ctx;
    net_loop_stop(t.loop);
}

/* Cancelled before the first question, while it waits between two, and while one is under way: no call comes, nothing is left. */
static void cancelled(void **state)
{
    (void)state;
    static const struct answer loading[] = {{"/health", 503, ""}}, mute[] = {{"/health", 0, NULL}}, busy[] = {{"/slots", 200, BUSY}};
    const struct answer *scripts[] = {NULL, loading, mute, busy};
    struct fleet_service s = small(&llama);
    struct probe_target target = {.service = &s, .paths = &paths, .addr = t.addr};
    struct net_timer *timer = net_timer_new(t.loop, stop, NULL);
    open_server();
    for (size_t i = 0; i < 4; i++) {
        t.script = scripts[i];
        t.n = scripts[i] ? 1 : 0;
        t.next = 0;
        struct probe_ready *p = i < 3 ? probe_ready_start(t.loop, t.client, &target, 5000, on_ready, &t) : NULL;
        struct probe_idle *q = i < 3 ? NULL : probe_idle_start(t.loop, t.client, &target, 5000, on_idle, &t);
        if (scripts[i]) {
            net_timer_start(timer, 50, 0);
            net_loop_run(t.loop);
        }
        assert_null(probe_ready_cancel(p));
        assert_null(probe_idle_cancel(q));
        net_timer_start(timer, 50, 0);
        net_loop_run(t.loop);
        assert_int_equal(t.next, t.n);
    }
    net_timer_close(timer);
    assert_int_equal(t.calls, 0);
    assert_null(probe_ready_cancel(NULL));
    assert_null(probe_idle_cancel(NULL));
}

static void idle(const struct fleet_service *s, const struct answer *script, size_t n, uint64_t limit_ms, int status)
{
    t.script = script;
    t.n = n;
    t.next = 0;
    t.calls = 0;
    if (!t.server)
        open_server();
    struct probe_target target = {.service = s, .paths = &paths, .addr = t.addr};
    assert_non_null(probe_idle_start(t.loop, t.client, &target, limit_ms, on_idle, &t));
    assert_int_equal(t.calls, 0);
    net_loop_run(t.loop);
    assert_int_equal(t.calls, 1);
    assert_int_equal(t.status, status);
    assert_int_equal(t.next, n);
}

static void idleness(void **state)
{
    (void)state;
    static const struct answer at_once[] = {{"/slots", 200, FREE}}, later[] = {{"/slots", 200, BUSY}, {"/slots", 200, FREE}}, never[] = {{"/slots", 200, BUSY}},
                               odd[] = {{"/slots", 501, FREE}}, v[] = {{"/metrics", 200, "vllm:num_requests_running{a=\"b\"} 0.0\n"}};
    struct fleet_service l = small(&llama), s = small(&vllm), own = small(&generic);
    idle(&l, at_once, 1, 1000, 0);
    idle(&l, later, 2, 5000, 0);
    idle(&l, never, 1, 100, -ETIMEDOUT);
    idle(&l, odd, 1, 100, -ETIMEDOUT);
    idle(&l, NULL, 0, 0, -ETIMEDOUT);
    idle(&s, v, 1, 1000, 0);
    idle(&own, NULL, 0, 1000, -ENOTSUP);
}

static void texts(void **state)
{
    (void)state;
    for (int i = PROBE_HEALTH; i <= PROBE_DONE; i++)
        assert_true(strlen(probe_step_text((enum probe_step)i)) > 0);
}

/* ---- the real engine ----------------------------------------------------------------------------------------------- */

struct real {
    const char *name;
    struct fleet_shape shape;
    const char *drafter;
    int status; /* of the proof */
    enum probe_step at;
    const char *text; /* of the proof, or of the comparison with the log */
};

static const char *const simple[] = {"draft-simple", "ngram-mod"}, *const eagle[] = {"draft-eagle3"};
static const struct real reals[] = {
    {.name = "defaults", .shape = {.slots = 1, .split_auto = true}, .at = PROBE_DONE, .text = ""},
    {.name = "all-said",
     .shape = {.slots = 3, .split_auto = true, .context = 2000, .batch = 256, .ubatch = 128, .kv_k = "q8_0", .kv_v = "q4_0", .flash_attention = FLEET_ON, .prompt_cache_set = true, .threads = 2},
     .at = PROBE_DONE, .text = ""},
    {.name = "unified", .shape = {.slots = 4, .split_auto = true, .context = 1024, .unified_kv = FLEET_ON, .kv_k = "bf16", .flash_attention = FLEET_OFF}, .at = PROBE_DONE, .text = ""},
    {.name = "drafting", .shape = {.slots = 2, .split_auto = true, .context = 1024, .speculative = simple, .n_speculative = 2, .draft_max = 4}, .drafter = "berth-tiny-draft-f16.gguf",
     .at = PROBE_DONE, .text = ""},
    {.name = "too-long", .shape = {.slots = 1, .split_auto = true, .context = 4096}, .status = -EBADMSG, .at = PROBE_PROPS,
     .text = "what it took: context per slot: asked 4096, got 1024 (the model was trained for less, or the engine changed it)"},
    {.name = "wrong-drafter", .shape = {.slots = 1, .split_auto = true, .context = 1024, .speculative = eagle, .n_speculative = 1}, .drafter = "berth-tiny-draft-f16.gguf",
     .status = -EBADMSG, .at = PROBE_PROPS, .text = "what it took: speculation: asked for 'draft-eagle3', 0 of 1 slots have any; the log says why"},
};

static uint16_t free_port(void)
{
    struct net_addr any, got;
    struct err err;
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &any), 0);
    int fd = net_listen_socket(&any, false, &err);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &got), 0);
    close(fd);
    return got.port;
}

static void run_real(const struct real *r, const char *program, const char *folder)
{
    char weights[1024], drafter[1024], log[] = "/tmp/berth-probe-XXXXXX";
    snprintf(weights, sizeof(weights), "%s/berth-tiny-f16.gguf", folder);
    snprintf(drafter, sizeof(drafter), "%s/%s", folder, r->drafter ? r->drafter : "");
    struct engine_paths p = {.weights = weights, .drafter = r->drafter ? drafter : NULL};
    struct fleet_service s = {.name = r->name, .host = &bare, .runtime = &llama, .port = free_port(), .bind = "127.0.0.1", .shape = r->shape};

    struct arena *a = arena_new(1 << 20);
    const char *const *args, *argv[256] = {program};
    size_t n;
    struct err err = {.text = ""};
    assert_int_equal(engine_argv(&s, &p, a, &args, &n, &err), 0);
    assert_true(n + 2 < BASE_COUNT(argv));
    memcpy(argv + 1, args, (n + 1) * sizeof(*args));
    int fd = mkostemp(log, O_CLOEXEC | O_APPEND);
    assert_true(fd >= 0);
    struct os_proc proc = OS_PROC_NONE;
    struct os_spawn spawn = {.argv = argv, .envp = engine_env(engine_find("llama.cpp")), .stdin_fd = -1, .stdout_fd = fd, .stderr_fd = fd, .death_signal = SIGKILL};
    assert_int_equal(os_spawn(&spawn, &proc, &err), 0);

    struct probe_target target = {.service = &s, .paths = &p, .addr = {.host = "127.0.0.1", .port = s.port}};
    t.calls = 0;
    assert_non_null(probe_ready_start(t.loop, t.client, &target, 30000, on_ready, &t));
    net_loop_run(t.loop);
    int status = t.status;
    if (status == 0) {
        assert_non_null(probe_idle_start(t.loop, t.client, &target, 5000, on_idle, &t));
        net_loop_run(t.loop);
        assert_int_equal(t.status, 0);
    }
    assert_int_equal(os_proc_signal(&proc, SIGTERM), 0);
    int ended = 0, how = 0;
    for (int i = 0; i < 1000 && ended == 0; i++) {
        ended = os_proc_reap(&proc, &how);
        usleep(ended ? 0 : 10000);
    }
    os_proc_release(&proc);
    assert_int_equal(ended, 1);
    assert_int_equal(how, 0);

    base_autobuf struct buf said = BUF_INIT(1 << 20);
    assert_int_equal(os_read_file(AT_FDCWD, log, &said, &err), 0);
    close(fd);
    unlink(log);
    err.text[0] = '\0';
    if (status < 0)
        snprintf(err.text, sizeof(err.text), "%s", t.text);
    else
        assert_int_equal(engine_log_check(&s, buf_str(&said), &err), r->text[0] ? -EBADMSG : 0);
    if (strcmp(err.text, r->text) != 0 || status != r->status || t.at != r->at)
        fail_msg("%s: status %d at %s: %s\n%s", r->name, status, probe_step_text(t.at), err.text, said.ptr);
    assert_int_equal(engine_words_find(engine_find("llama.cpp"), buf_str(&said)), ENGINE_WORDS_UNKNOWN);
    arena_free(a);
}

static void real_engine(void **state)
{
    (void)state;
    const char *program = getenv("BERTH_TEST_LLAMA");
    if (!program || !*program) {
        skip();
        return;
    }
    char *folder = realpath("assets/tiny", NULL);
    assert_non_null(folder);
    for (size_t i = 0; i < BASE_COUNT(reals); i++)
        run_real(&reals[i], program, folder);
    free(folder);
}

#define IN_LOOP(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_LOOP(key_is_shown), IN_LOOP(all_steps),         IN_LOOP(speculation_is_asked), IN_LOOP(other_kinds), IN_LOOP(later_steps_fail), IN_LOOP(refused_means_loading),
        IN_LOOP(limit_ends_health), IN_LOOP(nobody_listens),       IN_LOOP(cancelled),   IN_LOOP(idleness),         cmocka_unit_test(texts),
        IN_LOOP(real_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
