/* SPDX-License-Identifier: MIT
 *
 * engine: what an engine answers (model list, props, slots, metrics, one token), judged. The bodies are those of a real llama-server, kept as the
 * fuzzer's corpus; a body that is none is refused without a guess.
 */
#include <engine/engine.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "failing_malloc.h"

static const struct fleet_host bare = {.name = "here"};
static const struct fleet_runtime llama = {.name = "llama", .engine = "llama.cpp"}, vllm = {.name = "vllm", .engine = "vllm"}, generic = {.name = "own", .engine = "generic"};
static const struct engine_paths paths = {.weights = "/models/berth-tiny-f16.gguf"};

static struct fleet_service small(const struct fleet_runtime *runtime)
{
    return (struct fleet_service){.name = "small", .host = &bare, .runtime = runtime, .port = 1, .bind = "127.0.0.1", .shape = {.split_auto = true, .slots = 2}};
}

/* A body of the corpus; freed by the caller with buf_release. */
static struct buf body(const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "test/fuzz/corpus/engine_json/%s", name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    struct buf b = BUF_INIT(64 * 1024);
    char *to = buf_room(&b, 64 * 1024);
    assert_non_null(to);
    buf_grew(&b, fread(to, 1, 64 * 1024, f));
    fclose(f);
    assert_true(b.len > 0);
    return b;
}

#define BODY(var, name) \
    base_autobuf struct buf var##_buf = body(name); \
    struct str var = buf_str(&var##_buf)

static void identity(void **state)
{
    (void)state;
    struct err err;
    BODY(models, "models.json");
    assert_int_equal(engine_identity_check(models, "small", &err), 0);
    assert_int_equal(engine_identity_check(models, "smal", &err), -ENOENT);
    assert_string_equal(err.text, "it serves 'small', not 'smal': another program may be listening there");
    assert_int_equal(engine_identity_check(STR("{\"data\":[{\"id\":\"a\"},{\"id\":\"b\",\"aliases\":[\"x\",\"y\"]},{\"id\":7},3]}"), "y", &err), 0);
    assert_int_equal(engine_identity_check(STR("{\"data\":[{\"id\":\"a\\u0007\"},{\"id\":\"b\"}]}"), "y", &err), -ENOENT);
    assert_string_equal(err.text, "it serves 'a\\x07', 'b', not 'y': another program may be listening there");
    assert_int_equal(engine_identity_check(STR("{\"data\":[]}"), "y", &err), -ENOENT);
    assert_string_equal(err.text, "it serves no model, not 'y': another program may be listening there");
    static const char *const none[] = {"", "[]", "{}", "{\"data\":{}}", "<html>", "{\"data\":[]"};
    for (size_t i = 0; i < BASE_COUNT(none); i++) {
        assert_int_equal(engine_identity_check(str_of(none[i]), "y", &err), -EBADMSG);
        assert_string_equal(err.text, "answer is no model list: another program may be listening there");
    }
}

static void props_say(const struct fleet_service *s, const struct engine_paths *p, struct str text, const char *want)
{
    struct err err = {.text = ""};
    int r = engine_props_check(s, p, text, &err);
    assert_string_equal(err.text, want ? want : "");
    assert_int_equal(r, want ? -EBADMSG : 0);
}

static void props(void **state)
{
    (void)state;
    BODY(real, "props.json"); /* two slots of 1024 tokens */
    struct fleet_service s = small(&llama);
    s.shape.context = 2048;
    props_say(&s, &paths, real, NULL);
    s.shape.context = 1800; /* 900 per slot, rounded up by the engine */
    props_say(&s, &paths, real, NULL);
    s.shape.context = 0; /* ours, capped by what the model was trained for */
    props_say(&s, &paths, real, NULL);
    s.shape.context = 8192;
    props_say(&s, &paths, real, "context per slot: asked 4096, got 1024 (the model was trained for less, or the engine changed it)");
    s.shape.context = 512;
    props_say(&s, &paths, real, "context per slot: asked 256, got 1024");
    s.shape.context = 1024;
    s.shape.unified_kv = FLEET_ON; /* each slot may take all */
    props_say(&s, &paths, real, NULL);
    s.shape.unified_kv = FLEET_OFF;
    s.shape.context = 4096;
    s.shape.slots = 4;
    struct engine_paths other = {.weights = "/models/other.gguf", .projector = "/models/mm.gguf"};
    props_say(&s, &other, real,
              "slots: asked 4, got 2; model: asked '/models/other.gguf', got '/models/berth-tiny-f16.gguf'; projector: asked for, takes neither images nor sound");
    const char *args[] = {"--kv-unified-per-slot", "1024"};
    s = small(&llama);
    s.shape.context = 8192;
    s.shape.unified_kv = FLEET_ON;
    s.args = args;
    s.n_args = 2;
    props_say(&s, &paths, real, NULL);
}

static void props_of_others(void **state)
{
    (void)state;
    struct fleet_service s = small(&llama);
    static const char *const none[] = {"", "[]", "{}", "<html>", "{\"build_info\":7}", "{\"build_info\":\"\"}"};
    for (size_t i = 0; i < BASE_COUNT(none); i++)
        props_say(&s, &paths, str_of(none[i]), "answer is not llama-server's: another program may be listening there");
    props_say(&s, &paths, STR("{\"build_info\":\"b1\",\"endpoint_slots\":false,\"endpoint_metrics\":0,\"total_slots\":-2,\"default_generation_settings\":[]}"),
              "context per slot: not told; slots: not told; model: not told; --slots: asked for, is off");
    struct fleet_service v = small(&vllm), g = small(&generic);
    props_say(&v, &paths, STR(""), NULL);
    props_say(&g, &paths, STR(""), NULL);
}

static void speculation(void **state)
{
    (void)state;
    BODY(with, "slots-speculative.json");
    BODY(without, "slots.json");
    struct err err;
    struct fleet_service s = small(&llama);
    assert_null(engine_speculation_path(&s));
    assert_int_equal(engine_speculation_check(&s, without, &err), 0); /* nobody asked */
    const char *types[] = {"draft-simple", "ngram-mod"};
    s.shape.speculative = types;
    s.shape.n_speculative = 2;
    assert_string_equal(engine_speculation_path(&s), "/slots");
    assert_int_equal(engine_speculation_check(&s, with, &err), 0);
    assert_int_equal(engine_speculation_check(&s, without, &err), -EBADMSG);
    assert_string_equal(err.text, "speculation: asked for 'draft-simple' and more, 0 of 2 slots have any; the log says why");
    assert_int_equal(engine_speculation_check(&s, STR("[]"), &err), -EBADMSG);
    assert_int_equal(engine_speculation_check(&s, STR("{}"), &err), -EBADMSG);
    assert_int_equal(engine_speculation_check(&s, STR("[{\"speculative\":true},{\"speculative\":1}]"), &err), -EBADMSG);
}

static void capacity(void **state)
{
    (void)state;
    struct fleet_service l = small(&llama), v = small(&vllm), g = small(&generic);
    struct err err;
    uint64_t tokens = 7;
    BODY(metrics, "metrics-vllm.txt");
    assert_string_equal(engine_capacity_path(&v), "/metrics");
    assert_null(engine_capacity_path(&l));
    assert_null(engine_capacity_path(&g));
    assert_int_equal(engine_capacity_parse(metrics, &tokens, &err), 0);
    assert_int_equal(tokens, 16 * (27848 + 1000)); /* of both engines */
    assert_int_equal(engine_capacity_parse(STR("# HELP vllm:cache_config_info{\nvllm:cache_config_info{num_gpu_blocks=\"3\",block_size=\"5\"} 1\n"), &tokens, &err), 0);
    assert_int_equal(tokens, 15);
    static const char *const bad[] = {
        "", "vllm:cache_config_info 1", "vllm:cache_config_info{block_size=\"16\"} 1", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1",
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"0\"} 1", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"18446744073709551615\"} 1",
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1", "vllm:cache_config_info{block_size=16,num_gpu_blocks=1} 1", "vllm:cache_config_infos{block_size=\"1\",num_gpu_blocks=\"1\"} 1",
    };
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_int_equal(engine_capacity_parse(str_of(bad[i]), &tokens, &err), -EBADMSG);
    assert_int_equal(tokens, 15);
}

static void idle(void **state)
{
    (void)state;
    struct fleet_service l = small(&llama), v = small(&vllm), g = small(&generic);
    struct err err;
    unsigned busy = 99;
    BODY(none, "slots.json");
    BODY(some, "slots-busy.json");
    BODY(metrics, "metrics-vllm.txt");
    assert_int_equal(engine_idle_parse(&l, none, &busy, &err), 0);
    assert_int_equal(busy, 0);
    assert_int_equal(engine_idle_parse(&l, some, &busy, &err), 0);
    assert_int_equal(busy, 1);
    assert_int_equal(engine_idle_parse(&v, metrics, &busy, &err), 0);
    assert_int_equal(busy, 7);
    assert_int_equal(engine_idle_parse(&v, STR("vllm:num_requests_running 3\n"), &busy, &err), 0);
    assert_int_equal(busy, 3);
    static const char *const odd[] = {"", "vllm:num_requests_running", "vllm:num_requests_running{ 1", "vllm:num_requests_running nan", "vllm:num_requests_running -1",
                                      "vllm:num_requests_running 1e30", "vllm:num_requests_runnings 1", "vllm:num_requests_running{a=\"}\"} 1", "vllm:num_requests_waiting 1"};
    for (size_t i = 0; i < BASE_COUNT(odd); i++)
        assert_int_equal(engine_idle_parse(&v, str_of(odd[i]), &busy, &err), -EBADMSG);
    static const char *const bad[] = {"", "{}", "[{}]", "[{\"is_processing\":1}]", "[1]"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_int_equal(engine_idle_parse(&l, str_of(bad[i]), &busy, &err), -EBADMSG);
    assert_int_equal(engine_idle_parse(&g, STR("[]"), &busy, &err), -ENOTSUP);
    assert_int_equal(busy, 3);
}

static void one_token(void **state)
{
    (void)state;
    struct err err;
    static const char *const good[] = {"token.json", "token-chat.json"};
    for (size_t i = 0; i < BASE_COUNT(good); i++) {
        BODY(answer, good[i]);
        assert_int_equal(engine_token_check(answer, &err), 0);
    }
    BODY(error, "token-error.json");
    assert_int_equal(engine_token_check(error, &err), -EBADMSG);
    assert_string_equal(err.text, "request for one token failed: '[json.exception.out_of_range.403] key 'prompt' not found'");
    static const char *const none[] = {"{}", "[]", "{\"tokens_predicted\":0}", "{\"usage\":{\"completion_tokens\":\"1\"}}", "{\"content\":\"a\"}"};
    for (size_t i = 0; i < BASE_COUNT(none); i++) {
        assert_int_equal(engine_token_check(str_of(none[i]), &err), -EBADMSG);
        assert_string_equal(err.text, "answer to a request for one token holds none");
    }
    assert_int_equal(engine_token_check(STR("Internal Server Error"), &err), -EBADMSG);
    assert_string_equal(err.text, "answer to a request for one token is no JSON");
}

static void token_request(void **state)
{
    (void)state;
    struct arena *a = arena_new(1 << 16);
    const char *path = NULL, *text = NULL;
    struct fleet_service l = small(&llama), v = small(&vllm), g = small(&generic);
    assert_int_equal(engine_token_request(&l, a, &path, &text), 0);
    assert_string_equal(path, "/completion");
    assert_non_null(strstr(text, "\"n_predict\":1,"));
    assert_int_equal(engine_token_request(&v, a, &path, &text), 0);
    assert_string_equal(path, "/v1/completions");
    assert_string_equal(text, "{\"model\":\"small\",\"prompt\":\"Hello\",\"max_tokens\":1,\"temperature\":0,\"stream\":false}");
    assert_int_equal(engine_token_request(&g, a, &path, &text), -ENOTSUP);
    const char *embedding[] = {"--embedding"}, *pooling[] = {"--runner", "pooling"}, *generate[] = {"--runner", "generate"};
    l.args = embedding;
    l.n_args = 1;
    assert_int_equal(engine_token_request(&l, a, &path, &text), -ENOTSUP);
    v.args = pooling;
    v.n_args = 2;
    assert_int_equal(engine_token_request(&v, a, &path, &text), -ENOTSUP);
    v.args = generate;
    assert_int_equal(engine_token_request(&v, a, &path, &text), 0);
    arena_free(a);
}

static void what_can_be_asked(void **state)
{
    (void)state;
    struct fleet_service l = small(&llama), v = small(&vllm), g = small(&generic);
    l.health = "/elsewhere"; /* a declaration matters for generic only */
    assert_string_equal(engine_health_path(&l), "/health");
    assert_string_equal(engine_identity_path(&l), "/v1/models");
    assert_string_equal(engine_props_path(&l), "/props");
    assert_string_equal(engine_idle_path(&l), "/slots");
    assert_string_equal(engine_health_path(&v), "/health");
    assert_null(engine_props_path(&v));
    assert_string_equal(engine_idle_path(&v), "/metrics");
    assert_string_equal(engine_health_path(&g), "/health");
    assert_null(engine_identity_path(&g));
    assert_null(engine_idle_path(&g));
    g.health = "/ready";
    g.identity = "/models";
    assert_string_equal(engine_health_path(&g), "/ready");
    assert_string_equal(engine_identity_path(&g), "/models");
    assert_string_equal(engine_served_name(&g), "small");
}

/* Deep nesting and long texts must cost nothing but an error. */
static void hostile(void **state)
{
    (void)state;
    base_autobuf struct buf deep = BUF_INIT(1 << 20);
    struct fleet_service s = small(&llama);
    struct err err;
    unsigned busy;
    for (int i = 0; i < 100000; i++)
        buf_add_c(&deep, "[");
    assert_int_equal(engine_identity_check(buf_str(&deep), "x", &err), -EBADMSG);
    assert_int_equal(engine_idle_parse(&s, buf_str(&deep), &busy, &err), -EBADMSG);
    buf_clear(&deep);
    buf_add_c(&deep, "{\"data\":[");
    for (int i = 0; i < 5000; i++)
        buf_addf(&deep, "%s{\"id\":\"%0200d\"}", i ? "," : "", i);
    buf_add_c(&deep, "]}");
    assert_int_equal(buf_status(&deep), -E2BIG);
    buf_clear(&deep);
    buf_add_c(&deep, "{\"data\":[");
    for (int i = 0; i < 2000; i++)
        buf_addf(&deep, "%s{\"id\":\"%0200d\"}", i ? "," : "", i);
    buf_add_c(&deep, "]}");
    assert_int_equal(engine_identity_check(buf_str(&deep), "x", &err), -ENOENT);
    assert_true(strlen(err.text) < 900);
    assert_non_null(strstr(err.text, ", not 'x': another program may be listening there"));
}

#if FAILING_MALLOC
static int token_of_vllm(void)
{
    struct fleet_service v = small(&vllm);
    struct arena *a = arena_new(1 << 16);
    const char *path, *text;
    int r = a ? engine_token_request(&v, a, &path, &text) : -ENOMEM;
    arena_free(a);
    return r;
}

/* Each call that memory can end in, for everything that parses. */
static void memory_runs_out(void **state)
{
    (void)state;
    BODY(models, "models.json");
    BODY(real, "props.json");
    BODY(slots, "slots-busy.json");
    BODY(token, "token.json");
    struct fleet_service s = small(&llama);
    s.shape.context = 8192; /* a difference: the error is built too */
    static struct err err;
    unsigned busy;
    for (int which = 0; which < 5; which++) {
        bool failed = true;
        for (long at = 0; failed; at++) {
            assert_true(at < 1000);
            failing_arm(at);
            int r = which == 0   ? engine_identity_check(models, "other", &err)
                    : which == 1 ? engine_props_check(&s, &paths, real, &err)
                    : which == 2 ? engine_idle_parse(&s, slots, &busy, &err)
                    : which == 3 ? engine_token_check(token, &err)
                                 : token_of_vllm();
            assert_int_equal(failing_disarm(&failed), 0); /* nothing leaks */
            assert_true(!failed || r == -ENOMEM || r == -ENOENT || r == -EBADMSG);
        }
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity),      cmocka_unit_test(props),     cmocka_unit_test(props_of_others), cmocka_unit_test(speculation),
        cmocka_unit_test(capacity), cmocka_unit_test(idle),          cmocka_unit_test(one_token), cmocka_unit_test(token_request),   cmocka_unit_test(what_can_be_asked),
        cmocka_unit_test(hostile),
#if FAILING_MALLOC
        cmocka_unit_test(memory_runs_out),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
