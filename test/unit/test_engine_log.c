/* SPDX-License-Identifier: MIT
 *
 * engine: log lines and last words. Every file of test/engine/words is one end of a log with its class on the first line; those named unknown-* are near misses that
 * must not be given a reason.
 */
#include <engine/engine.h>

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define WORDS "test/engine/words"

static const char *const classes[] = {
    [ENGINE_WORDS_UNKNOWN] = "unknown",           [ENGINE_WORDS_DEVICE_MEMORY] = "device-memory",     [ENGINE_WORDS_HOST_MEMORY] = "host-memory",
    [ENGINE_WORDS_MEMORY_NOT_BACK] = "memory-not-back", [ENGINE_WORDS_MEMLOCK] = "memlock",           [ENGINE_WORDS_PAGE_FAULT] = "page-fault",
    [ENGINE_WORDS_KERNEL_TABLES] = "kernel-tables", [ENGINE_WORDS_SPLIT_NAME] = "split-name",         [ENGINE_WORDS_UNKNOWN_FLAG] = "unknown-flag",
    [ENGINE_WORDS_TEMPLATE] = "template",         [ENGINE_WORDS_PORT] = "port",                       [ENGINE_WORDS_CORRUPT] = "corrupt",
    [ENGINE_WORDS_UNKNOWN_ARCH] = "unknown-arch", [ENGINE_WORDS_NO_DEVICE] = "no-device",
};

static struct buf read_sample(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), WORDS "/%s", name);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    struct buf b = BUF_INIT(64 * 1024);
    char *to = buf_room(&b, 64 * 1024);
    assert_non_null(to);
    buf_grew(&b, fread(to, 1, 64 * 1024, f));
    assert_true(feof(f));
    fclose(f);
    return b;
}

/* The value of the header line "# key: value". */
static struct str header(struct str *rest, const char *key)
{
    struct str line = str_split(rest, '\n');
    char start[64];
    snprintf(start, sizeof(start), "# %s: ", key);
    assert_true(str_starts(line, str_of(start)));
    return (struct str){line.ptr + strlen(start), line.len - strlen(start)};
}

static void every_sample_has_its_class(void **state)
{
    (void)state;
    unsigned seen[BASE_COUNT(classes)] = {0};
    DIR *d = opendir(WORDS);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (!str_ends(str_of(e->d_name), STR(".log")))
            continue;
        struct buf b = read_sample(e->d_name);
        struct str rest = buf_str(&b);
        struct str class = header(&rest, "class"), engine = header(&rest, "engine");
        header(&rest, "from");
        char *kind = str_dup(engine);
        assert_non_null(kind);
        assert_non_null(engine_find(kind));
        enum engine_words w = engine_words_find(engine_find(kind), rest);
        if (!str_eq_c(class, classes[w]))
            fail_msg("%s: taken for %s", e->d_name, classes[w]);
        seen[w]++;
        free(kind);
        buf_release(&b);
    }
    closedir(d);
    for (size_t i = 0; i < BASE_COUNT(classes); i++)
        if (seen[i] == 0)
            fail_msg("no sample of %s", classes[i]);
}

static void every_class_has_advice(void **state)
{
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(classes); i++) {
        const char *text = engine_words_text((enum engine_words)i);
        assert_non_null(text);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(text, engine_words_text((enum engine_words)k));
    }
    assert_string_equal(engine_words_text((enum engine_words)99), engine_words_text(ENGINE_WORDS_UNKNOWN));
}

static enum engine_words llama_words(const char *tail)
{
    return engine_words_find(engine_find("llama.cpp"), str_of(tail));
}

static void words_in_order(void **state)
{
    (void)state;
    assert_int_equal(llama_words(NULL), ENGINE_WORDS_UNKNOWN);
    assert_int_equal(llama_words(""), ENGINE_WORDS_UNKNOWN);
    assert_int_equal(llama_words("\n\n \r\n"), ENGINE_WORDS_UNKNOWN);
    /* the first is the cause */
    assert_int_equal(llama_words("0.00.1 E x: std::bad_alloc\n0.00.2 E x: CUDA error: out of memory\n"), ENGINE_WORDS_HOST_MEMORY);
    /* a strong one replaces a warning */
    assert_int_equal(llama_words("0.00.1 W warning: failed to mlock 5-byte buffer\n0.00.2 E x: std::bad_alloc"), ENGINE_WORDS_HOST_MEMORY);
    /* what was survived is not the reason */
    assert_int_equal(llama_words("std::bad_alloc\n0.00.2 I srv  llama_server: listening on http://127.0.0.1:1\n"), ENGINE_WORDS_UNKNOWN);
    assert_int_equal(llama_words("std::bad_alloc\n0.00.2 I srv  llama_server: initializing ...\n"), ENGINE_WORDS_UNKNOWN);
    /* both needles must be in one line */
    assert_int_equal(llama_words("error loading model: x\nmissing tensor y\n"), ENGINE_WORDS_UNKNOWN);
    assert_int_equal(llama_words("error loading model: missing tensor 'y'\n"), ENGINE_WORDS_CORRUPT);
}

static void line(const char *kind, const char *text, enum engine_line want, const char *shown)
{
    struct str got;
    enum engine_line l = engine_line_parse(engine_find(kind), str_of(text), &got);
    if (l != want || !str_eq_c(got, shown))
        fail_msg("\"%s\": class %d, text \"" STR_FMT "\"", text, l, STR_ARG(got));
}

static void llama_lines(void **state)
{
    (void)state;
    const char *k = "llama.cpp";
    line(k, "0.00.013.237 I srv    load_model: loading model '/m/a.gguf'", ENGINE_LINE_LOADING, "load_model: loading model '/m/a.gguf'");
    line(k, "0.00.015.278 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)", ENGINE_LINE_LOADING,
         "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)");
    line(k, "0.00.017.358 I load_tensors:   CPU_Mapped model buffer size =     2.54 MiB", ENGINE_LINE_BUFFER, "load_tensors:   CPU_Mapped model buffer size =     2.54 MiB");
    line(k, "0.00.023.636 I cmn  common_init_: warming up the model with an empty run - please wait ... (--no-warmup to disable)\r", ENGINE_LINE_WARMUP,
         "common_init_: warming up the model with an empty run - please wait ... (--no-warmup to disable)");
    line(k, "0.00.028.495 I srv  llama_server: listening on http://127.0.0.1:18733", ENGINE_LINE_READY, "llama_server: listening on http://127.0.0.1:18733");
    line(k, "0.00.028.567 I srv  update_slots: all slots are idle", ENGINE_LINE_OTHER, "update_slots: all slots are idle");
    line(k, "warning: no usable GPU found, --gpu-layers option will be ignored", ENGINE_LINE_DROPPED, "warning: no usable GPU found, --gpu-layers option will be ignored");
    line(k, "0.00.023.594 E srv    load_model: failed to initialize speculative decoding context: draft model is not eagle3 (expected 3 extract layers, got 0)", ENGINE_LINE_DROPPED,
         "load_model: failed to initialize speculative decoding context: draft model is not eagle3 (expected 3 extract layers, got 0)");
    line(k, "warn: LLAMA_ARG_CTX_SIZE environment variable is set, but will be overwritten by command line argument -c", ENGINE_LINE_DROPPED,
         "warn: LLAMA_ARG_CTX_SIZE environment variable is set, but will be overwritten by command line argument -c");
    line(k, "0.00.000.888 W DEPRECATED: argument '--lora' specified multiple times, use comma-separated values instead (only last value will be used)", ENGINE_LINE_DROPPED,
         "DEPRECATED: argument '--lora' specified multiple times, use comma-separated values instead (only last value will be used)");
    line(k, "0.00.015.478 W warning: failed to mlock 2666496-byte buffer (after previously locking 0 bytes): Cannot allocate memory", ENGINE_LINE_DROPPED,
         "warning: failed to mlock 2666496-byte buffer (after previously locking 0 bytes): Cannot allocate memory");
    /* said of every engine with -cram 0; nobody asked for it */
    line(k, "0.00.020.236 W srv          init: --cache-idle-slots requires --cache-ram, disabling", ENGINE_LINE_OTHER, "init: --cache-idle-slots requires --cache-ram, disabling");
    line(k, "0.00.1 I llama_model_loader: - kv 3: general.name str = option will be ignored", ENGINE_LINE_OTHER, "llama_model_loader: - kv 3: general.name str = option will be ignored");
    line(k, "", ENGINE_LINE_OTHER, "");
    line(k, "0.00.1", ENGINE_LINE_OTHER, "0.00.1");
    line(k, "0.00.1 X what", ENGINE_LINE_OTHER, "0.00.1 X what");
    line(k, "0.00.1 I", ENGINE_LINE_OTHER, "");
}

static void other_lines(void **state)
{
    (void)state;
    const char *k = "vllm";
    line(k, "(EngineCore_DP0 pid=104) INFO 05-10 16:00:15 [gpu_model_runner.py:1686] Graph capturing finished in 112 secs, took 0.95 GiB", ENGINE_LINE_WARMUP,
         "Graph capturing finished in 112 secs, took 0.95 GiB");
    line(k, "INFO 05-10 16:00:15 [gpu_worker.py:298] Available KV cache memory: 3.18 GiB", ENGINE_LINE_BUFFER, "Available KV cache memory: 3.18 GiB");
    line(k, "(EngineCore pid=1) (Worker pid=2) INFO 05-10 16:00:15 [x.py:1] Starting to load model /m...", ENGINE_LINE_LOADING, "Starting to load model /m...");
    line(k, "INFO:     Application startup complete.", ENGINE_LINE_READY, "Application startup complete.");
    line(k, "(odd) INFORMAL", ENGINE_LINE_OTHER, "(odd) INFORMAL");
    line(k, "WARNING 05-10 16:00:15 [x.py:1] LoRA is not supported by the V1 Engine. Falling back to V0.", ENGINE_LINE_DROPPED,
         "LoRA is not supported by the V1 Engine. Falling back to V0.");
    line(k, "(", ENGINE_LINE_OTHER, "(");
    line(k, "INFO", ENGINE_LINE_OTHER, "");
    line(k, "INFO 05-10", ENGINE_LINE_OTHER, "");
    line("generic", "  listening on http \r", ENGINE_LINE_OTHER, "listening on http");
}

/* ---- what a finished start's log says against what was asked ------------------------------------------------------- */

static const struct fleet_device rpc[] = {{.name = "RPC0", .memory_bytes = 1 << 30}};
static const struct fleet_host bare = {.name = "here"}, one = {.name = "one", .devices = rpc, .n_devices = 1};
static const struct fleet_runtime llama = {.name = "llama", .engine = "llama.cpp"};

#define STARTED "0.00.011.192 I srv  llama_server: initializing ...\n"
#define NO_GPU "warning: no usable GPU found, --gpu-layers option will be ignored\n"
#define ON_CPU "0.00.017.358 I load_tensors:   CPU_Mapped model buffer size =     2.54 MiB\n"
#define ON_DEVICE "0.00.032.970 I load_tensors: RPC0[127.0.0.1:50161] model buffer size =     1.83 MiB\n"
#define CONTEXT "0.00.017.521 I llama_context: n_ubatch              = 512\n0.00.017.522 I llama_context: kv_unified            = false\n"
#define KV "0.00.016.749 I llama_kv_cache: size =    1.00 MiB (  1024 cells,   4 layers,  1/1 seqs), K (f16):    0.50 MiB, V (f16):    0.50 MiB\n"
#define KV_DRAFT "0.00.016.749 I llama_kv_cache: size =    1.00 MiB (  1024 cells,   4 layers,  1/1 seqs), K (q8_0):    0.50 MiB, V (q8_0):    0.50 MiB\n"

static void log_says(const struct fleet_service *s, const char *log, const char *want)
{
    struct err err = {.text = ""};
    int r = engine_log_check(s, str_of(log), &err);
    assert_string_equal(err.text, want ? want : "");
    assert_int_equal(r, want ? -EBADMSG : 0);
}

static void log_check(void **state)
{
    (void)state;
    struct fleet_service s = {.name = "small", .host = &bare, .runtime = &llama, .shape = {.split_auto = true, .slots = 1}};
    log_says(&s, NULL, NULL);
    log_says(&s, STARTED ON_CPU CONTEXT KV KV_DRAFT, NULL);
    /* said of every start without a card, also of one that asked for no layers there */
    log_says(&s, STARTED NO_GPU ON_CPU, NULL);
    log_says(&s, STARTED "0.1 W warning: failed to mlock 1-byte buffer\n" ON_CPU, "the engine dropped something: 'warning: failed to mlock 1-byte buffer'");
    s.shape.gpu_layers_set = true;
    s.shape.gpu_layers = 4;
    log_says(&s, STARTED NO_GPU, "the engine dropped something: 'warning: no usable GPU found, --gpu-layers option will be ignored'");
    /* of an earlier run */
    log_says(&s, NO_GPU STARTED CONTEXT, NULL);
    s.shape.gpu_layers = 0;
    assert_false(engine_line_denies(&s, STR("warning: no usable GPU found, --gpu-layers option will be ignored")));
    assert_true(engine_line_denies(&s, STR("warning: failed to mlock 1-byte buffer")));

    s.shape.kv_k = "q8_0";
    s.shape.unified_kv = FLEET_ON;
    s.shape.ubatch = 256;
    log_says(&s, STARTED ON_CPU CONTEXT KV, "unified-kv: asked true, got false; kv: k: asked q8_0, got f16; ubatch: asked 256, got 512");
    log_says(&s, STARTED, NULL);
    s.shape = (struct fleet_shape){.split_auto = true, .slots = 1, .context = 100};
    log_says(&s, "I llama_context: n_ubatch = 100", NULL); /* never more than the context */

    s.shape = (struct fleet_shape){.split_auto = true, .slots = 1};
    s.host = &one;
    log_says(&s, STARTED ON_CPU "0.1 I load_tensors: offloaded 5/5 layers to GPU\n", "gpu-layers: asked for, but all weights are in host memory");
    log_says(&s, STARTED ON_CPU ON_DEVICE, NULL);

    const char *spec[] = {"draft-simple", "ngram-mod"};
    s.host = &bare;
    s.shape.speculative = spec;
    s.shape.n_speculative = 2;
    log_says(&s, STARTED "0.1 I spec common_specu: adding speculative implementation 'ngram-mod'\n", "speculation: asked for 'draft-simple', not begun");
    log_says(&s, STARTED "0.1 I spec common_specu: adding speculative implementation 'ngram-mod'\n0.1 I spec common_specu: adding speculative implementation 'draft-simple'\n", NULL);

    static const struct fleet_runtime vllm = {.name = "v", .engine = "vllm"};
    s.runtime = &vllm;
    log_says(&s, "anything", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_has_its_class), cmocka_unit_test(every_class_has_advice), cmocka_unit_test(words_in_order),
        cmocka_unit_test(llama_lines),                cmocka_unit_test(other_lines),            cmocka_unit_test(log_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
