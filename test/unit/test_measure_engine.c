/* SPDX-License-Identifier: MIT
 *
 * Measuring with the real engine: hollow models of full size whose compute buffers are known, a real start beside its measurement, refusals. Skipped without a runtime in $BERTH_TEST_STATE (default build/test-state).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <measure/measure_int.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY "assets/tiny/berth-tiny-f16.gguf"
#define DRAFT "assets/tiny/berth-tiny-draft-f16.gguf"
#define MIB (1ull << 20)

struct rig {
    char folder[64], state[PATH_MAX], run[96], ledger_path[96];
    struct os_dirs dirs;
    struct store *store;
    struct store_runtime *runtimes;
    size_t n_runtimes;
    const struct store_runtime *runtime; /* NULL: none is here */
    struct ledger *ledger;
    struct measure_lab lab;
};
static struct rig rig;

static int set_up(void **state)
{
    (void)state;
    const char *dir = getenv("BERTH_TEST_STATE");
    struct stat st;
    if (!realpath(dir ? dir : "build/test-state", rig.state) || stat(rig.state, &st) < 0)
        return 0;
    snprintf(rig.folder, sizeof rig.folder, "/tmp/berth-measure-XXXXXX");
    if (!mkdtemp(rig.folder) || chmod(rig.folder, 0755) < 0)
        return -1;
    snprintf(rig.run, sizeof rig.run, "%s/run", rig.folder);
    snprintf(rig.ledger_path, sizeof rig.ledger_path, "%s/ledger.db", rig.folder);
    rig.dirs = (struct os_dirs){.state = rig.state, .run = rig.run, .config = rig.folder};
    if (store_open(&rig.dirs, &rig.store, NULL) < 0 || store_runtime_list(rig.store, &rig.runtimes, &rig.n_runtimes, NULL) < 0 || ledger_open(rig.ledger_path, &rig.ledger, NULL) < 0)
        return -1;
    for (size_t i = 0; i < rig.n_runtimes; i++)
        if (strcmp(rig.runtimes[i].engine, "llama.cpp") == 0 && rig.runtimes[i].complete)
            rig.runtime = &rig.runtimes[i];
    rig.lab = (struct measure_lab){.store = rig.store, .runtime = rig.runtime, .folder = rig.folder, .ledger = rig.ledger};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ledger_free(rig.ledger);
    store_runtimes_free(rig.runtimes, rig.n_runtimes);
    store_free(rig.store);
    if (!*rig.folder)
        return 0;
    os_autoclose int tmp = os_open_dir("/tmp", NULL);
    return os_remove_tree(tmp, strrchr(rig.folder, '/') + 1, NULL);
}

#define NEED_ENGINE() \
    do { \
        if (!rig.runtime) \
            skip(); \
    } while (0)

/* ---- what is measured -------------------------------------------------------------------------------------------------------------------- */

static struct model *load(const char *path)
{
    struct store_weights w;
    struct model *m = NULL;
    const struct gguf *parts[64];
    struct err err;
    assert_int_equal(store_weights_open(path, &w, NULL), 0);
    assert_true(w.n <= BASE_COUNT(parts));
    for (size_t i = 0; i < w.n; i++)
        parts[i] = w.parts[i].g;
    if (model_load(parts, w.n, &m, &err) < 0)
        fail_msg("%s", err.text);
    store_weights_release(&w);
    return m;
}

static const struct fit_device two[] = {
    {.name = "ROCm0", .backend = FIT_RPC, .total_bytes = 64ull << 30, .free_bytes = 64ull << 30},
    {.name = "ROCm1", .backend = FIT_RPC, .total_bytes = 64ull << 30, .free_bytes = 64ull << 30},
};
static const struct fit_host host = {.total_bytes = 256ull << 30, .free_bytes = 256ull << 30, .repack = true};

/* A hollow model of mkmodel's. */
static char *make_model(const char *name, const char *const *options)
{
    static char path[128];
    const char *build = getenv("BUILD");
    char program[PATH_MAX];
    const char *argv[32] = {program}, *envp[] = {"PATH=/usr/bin:/bin", NULL};
    size_t n = 1;
    snprintf(program, sizeof program, "%s/mkmodel", build ? build : "build");
    snprintf(path, sizeof path, "%s/%s.gguf", rig.folder, name);
    for (size_t i = 0; options[i]; i++)
        argv[n++] = options[i];
    argv[n] = path;
    int status = -1;
    struct buf said = BUF_INIT(4096);
    struct err err;
    if (os_run(&(struct os_spawn){.argv = argv, .envp = envp}, 60000, NULL, &said, &status, &err) < 0)
        fail_msg("%s", err.text);
    if (status != 0)
        fail_msg("mkmodel: %s", said.ptr ? said.ptr : "failed");
    buf_release(&said);
    return path;
}

static const struct measure_key key = {.build = "test-build", .model = "digest", .service = ""};

static void measure(const struct fit_input *in, const char *weights, const char *drafter, const struct measure_range *range, struct measure_compute *ret)
{
    struct err err;
    const struct measure_files files = {.weights = weights, .drafter = drafter};
    int r = measure_compute(&rig.lab, &key, in, &files, range, ret, &err);
    if (r < 0)
        fail_msg("%s", err.text);
}

static void near(double got, double want, double share, const char *what)
{
    if (fabs(got - want) > want * share)
        fail_msg("%s: got %.0f, want %.0f", what, got, want);
}

/* ---- full size ----------------------------------------------------------------------------------------------------------------------------- */

static const char *const llama_8b[] = {"--hollow", "--arch", "llama", "--layers", "32", "--dim", "4096", "--heads", "32", "--kv-heads", "8", "--ff", "14336", "--vocab", "128256", "--untied", "--type", "q4_K", "--context", "131072", NULL};

/* Known figures of the engine: 4 bytes an element, 14336 and 4096 wide, a mask of f16. */
static double one_device(double ub, double kv)
{
    return ub * (12 * 14336 + 16 * 4096 + 28 + 2 * kv) + 32;
}

static void a_dense_model_on_one_device(void **state)
{
    (void)state;
    NEED_ENGINE();
    const char *path = make_model("llama8", llama_8b);
    struct model *m = load(path);
    struct fit_shape shape;
    struct measure_compute c;
    fit_shape_default(&shape);
    shape.context = 8192;
    shape.flash = FLEET_ON;
    const struct fit_input in = {.target = m, .shape = &shape, .devices = two, .n_devices = 1, .host = &host};
    measure(&in, path, NULL, NULL, &c);
    assert_true(c.emulated);
    assert_false(c.has_draft);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.n_points, 5);
    assert_true(c.worst_error <= MEASURE_GOOD);
    assert_int_equal(c.compute[0].ub_min, 256);
    assert_int_equal(c.compute[0].ub_max, 512);
    assert_int_equal(c.compute[0].kv_min, 4096);
    assert_int_equal(c.compute[0].kv_max, 8192);
    /* the corners and a point in between, to a ten-thousandth */
    near(measure_coef_at(&c.compute[0], 512, 8192, 1), 130037792, 1e-4, "512, 8192");
    near(measure_coef_at(&c.compute[0], 512, 8192, 1), one_device(512, 8192), 1e-4, "the law");
    near(measure_coef_at(&c.compute[0], 320, 5120, 1), one_device(320, 5120), 2e-4, "320, 5120");
    /* the prediction with what was learnt is what was measured */
    struct arena *a = arena_new(256 << 20);
    struct measure_calibration cal;
    struct fit_result *plain = calloc(1, sizeof *plain), *learnt = calloc(1, sizeof *learnt);
    assert_int_equal(fit_predict(&in, a, plain, NULL), 0);
    assert_int_equal(measure_calibration(rig.ledger, &key, &in, plain, a, &cal, NULL), 0);
    assert_true(cal.emulated);
    assert_int_equal(cal.n_compute, 1);
    assert_non_null(strstr(cal.c.source, " on test-build, devices emulated"));
    struct fit_input with = in;
    with.calibration = &cal.c;
    assert_int_equal(fit_predict(&with, a, learnt, NULL), 0);
    assert_int_equal(learnt->use[0].terms[FIT_COMPUTE].known, FIT_MEASURED);
    near((double)learnt->use[0].terms[FIT_COMPUTE].bytes, 130037792, 1e-4, "calibrated");
    free(plain);
    free(learnt);
    arena_free(a);
    model_free(m);
}

static void a_dense_model_on_two_devices(void **state)
{
    (void)state;
    NEED_ENGINE();
    const char *path = make_model("llama8", llama_8b);
    struct model *m = load(path);
    struct fit_shape shape;
    struct measure_compute c;
    fit_shape_default(&shape);
    shape.context = 8192;
    shape.flash = FLEET_ON;
    shape.split[0] = shape.split[1] = 1;
    shape.n_split = 2;
    const struct fit_input in = {.target = m, .shape = &shape, .devices = two, .n_devices = 2, .host = &host};
    measure(&in, path, NULL, NULL, &c);
    assert_true(c.worst_error <= MEASURE_GOOD);
    near(measure_coef_at(&c.compute[0], 512, 8192, 1), 255909888, 1e-4, "the first device");
    /* the engine's plan says 213,950,592; one activation in four copies less is what it then takes */
    near(measure_coef_at(&c.compute[1], 512, 8192, 1), 213950592.0 - 4 * 4.0 * 4096 * 512, 1e-4, "the second device");
    model_free(m);
}

static void a_mixture_of_experts(void **state)
{
    (void)state;
    NEED_ENGINE();
    static const char *const options[] = {"--hollow", "--arch", "qwen3moe", "--layers", "48", "--dim", "2048", "--heads", "32", "--kv-heads", "4", "--head-dim", "128", "--ff", "768", "--experts", "128", "--experts-used", "8",
                                          "--vocab", "151936", "--untied", "--type", "q4_K", "--context", "262144", NULL};
    const char *path = make_model("moe", options);
    struct model *m = load(path);
    struct fit_shape shape;
    struct measure_compute c;
    fit_shape_default(&shape);
    shape.context = 16384;
    shape.flash = FLEET_ON;
    const struct fit_input in = {.target = m, .shape = &shape, .devices = two, .n_devices = 1, .host = &host};
    const struct measure_range range = {.ub_min = 128, .ub_max = 1024, .context_min = 8192, .context_max = 65536};
    measure(&in, path, NULL, &range, &c);
    /* ub (4 U E + 12 U F + 16 E + 28 + 2 kv) + 32 */
    double want = 512 * (4 * 8 * 2048.0 + 12 * 8 * 768.0 + 16 * 2048.0 + 28 + 2 * 16384.0) + 32;
    near(measure_coef_at(&c.compute[0], 512, 16384, 1), want, 1e-3, "512, 16384");
    assert_true(c.compute[0].worst_error < 0.01);
    model_free(m);
}

/* ---- a real start beside it ------------------------------------------------------------------------------------------------------------------ */

/* Starts the engine on the CPU until it listens; its log. */
static void real_log(const char *const *args, size_t n, struct buf *log)
{
    char work[96];
    enum store_confine confine;
    struct store_launch l;
    struct err err;
    snprintf(work, sizeof work, "%s/real", rig.folder);
    assert_true(mkdir(work, 0755) == 0 || errno == EEXIST);
    assert_int_equal(store_confine_probe(rig.store, rig.runtime, &confine, NULL), 0);
    char assets[PATH_MAX];
    assert_non_null(realpath("assets/tiny", assets));
    const struct store_bind binds = {.path = assets};
    if (store_launch_make(rig.store, rig.runtime, confine, args, n, &binds, 1, NULL, 0, work, &l, &err) < 0)
        fail_msg("%s", err.text);
    int out[2], info[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(info, O_CLOEXEC), 0);
    if (l.has_info_fd) {
        l.spawn.keep_fds = &info[1];
        l.spawn.n_keep_fds = 1;
    }
    l.spawn.stdin_fd = -1;
    l.spawn.stdout_fd = l.spawn.stderr_fd = out[1];
    l.spawn.death_signal = SIGKILL;
    struct os_proc p;
    assert_int_equal(os_spawn(&l.spawn, &p, &err), 0);
    close(out[1]);
    while (str_find(buf_str(log), STR("listening on")) < 0) {
        char *room = buf_room(log, 65536);
        assert_non_null(room);
        ssize_t got = read(out[0], room, 65536);
        if (got <= 0)
            fail_msg("the engine ended: %s", log->ptr ? log->ptr : "");
        buf_grew(log, (size_t)got);
    }
    base_ignore(os_proc_signal(&p, SIGKILL));
    int status;
    struct pollfd fd = {.fd = p.pidfd, .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 20000), 1);
    assert_int_equal(os_proc_reap(&p, &status), 1);
    os_proc_release(&p);
    close(out[0]);
    close(info[0]);
    close(info[1]);
    store_launch_release(&l);
}

static void a_real_start(void **state)
{
    (void)state;
    NEED_ENGINE();
    char weights[PATH_MAX], drafter[PATH_MAX];
    assert_non_null(realpath(TINY, weights));
    assert_non_null(realpath(DRAFT, drafter));
    struct model *m = load(weights), *d = load(drafter);
    struct fit_shape shape;
    struct measure_compute c;
    fit_shape_default(&shape);
    shape.context = 4096;
    shape.slots = 2;
    shape.flash = FLEET_ON;
    shape.spec = FIT_SPEC_SIMPLE;
    shape.draft_max = 4;
    const struct fit_input in = {.target = m, .drafter = d, .shape = &shape, .n_devices = 0, .host = &host};
    measure(&in, weights, drafter, NULL, &c);
    assert_false(c.emulated);
    assert_true(c.has_draft);
    assert_int_equal(c.n, 1);

    struct buf log = BUF_INIT(8 << 20);
    const char *args[] = {"-m", weights, "-md", drafter, "--spec-type", "draft-simple", "--spec-draft-n-max", "4", "-dev", "none", "-c", "4096", "-np", "2", "--no-kv-unified", "-b", "2048", "-ub", "512", "-fa", "on", "-ctk", "f16",
                          "-ctv", "f16", "--host", "127.0.0.1", "--port", "0", "-lv", "4", "-fit", "off", "--no-warmup", "--log-colors", "off", "--offline"};
    real_log(args, BASE_COUNT(args), &log);
    struct measure_seen seen;
    struct err err;
    if (measure_read_log("llama.cpp", &in, buf_str(&log), &seen, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(seen.n_ubatch, 512);
    assert_int_equal(seen.n_ctx_seq, 2048);
    assert_int_equal(seen.slots, 2);
    assert_int_equal(seen.n_lost, 0);
    double target = 0, draft = 0;
    for (size_t i = 0; i < seen.n; i++) {
        assert_int_equal(seen.rows[i].device, 0);
        target += seen.rows[i].term == FIT_COMPUTE ? (double)seen.rows[i].bytes : 0;
        draft += seen.rows[i].term == FIT_DRAFT_COMPUTE ? (double)seen.rows[i].bytes : 0;
    }
    assert_true(target > MIB && draft > MIB / 2.0);
    near(measure_coef_at(&c.compute[0], 512, 2048, 10), target, 0.01, "the target");
    near(measure_coef_at(&c.draft_compute[0], 512, 2048, 2), draft, 0.01, "the drafter");

    /* the same log against the prediction: what is known by law is exact to the log's rounding */
    struct arena *a = arena_new(256 << 20);
    struct fit_result *r = calloc(1, sizeof *r);
    struct measure_comparison cmp;
    assert_int_equal(fit_predict(&in, a, r, NULL), 0);
    assert_int_equal(measure_compare_log(&in, r, &seen, a, &cmp, NULL), 0);
    assert_null(cmp.shape);
    bool kv = false, draft_kv = false, pages = false;
    for (size_t i = 0; i < cmp.n; i++) {
        const struct measure_difference *row = &cmp.rows[i];
        if (row->known == FIT_EXACT && row->verdict != MEASURE_EXACT)
            fail_msg("%s %s: predicted %llu, logged %llu", row->name, fit_term_text(row->term), (unsigned long long)row->predicted, (unsigned long long)row->logged);
        kv |= row->term == FIT_KV && row->logged > 0;
        draft_kv |= row->term == FIT_DRAFT_KV && row->logged > 0;
        pages |= strcmp(row->name, "page cache") == 0 && row->logged > 0;
    }
    assert_true(kv && draft_kv && pages);
    free(r);
    arena_free(a);
    buf_release(&log);
    model_free(m);
    model_free(d);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------------------------------------- */

static void what_the_engine_refuses(void **state)
{
    (void)state;
    NEED_ENGINE();
    char weights[PATH_MAX];
    assert_non_null(realpath(TINY, weights));
    struct model *m = load(weights);
    struct fit_shape shape;
    struct measure_compute c;
    struct err err;
    fit_shape_default(&shape);
    shape.context = 1024;
    const struct fit_input in = {.target = m, .shape = &shape, .devices = two, .n_devices = 1, .host = &host};
    /* a file that is no model of this engine: its header names another number of layers than it has */
    char broken[128];
    snprintf(broken, sizeof broken, "%s/broken.gguf", rig.folder);
    struct gguf_writer *w = gguf_writer_new();
    gguf_put_str(w, "general.architecture", STR("llama"));
    struct buf header = BUF_INIT(65536);
    uint64_t data = 0;
    assert_int_equal(gguf_writer_header(w, &header, &data, NULL), 0);
    gguf_writer_free(w);
    os_autoclose int fd = open(broken, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(os_write_all(fd, header.ptr, header.len, NULL), 0);
    buf_release(&header);
    const struct measure_files files = {.weights = broken};
    assert_int_equal(measure_compute(&rig.lab, &key, &in, &files, NULL, &c, &err), -EINVAL);
    assert_non_null(strstr(err.text, "the engine refuses this shape: "));
    assert_non_null(strstr(err.text, "key not found in model"));

    struct measure_lab hurried = rig.lab;
    hurried.timeout_ms = 1;
    const struct measure_files tiny = {.weights = weights};
    assert_int_equal(measure_compute(&hurried, &key, &in, &tiny, NULL, &c, &err), -ETIMEDOUT);

    struct store_runtime other = *rig.runtime;
    char vllm[] = "vllm";
    other.engine = vllm;
    struct measure_lab wrong = rig.lab;
    wrong.runtime = &other;
    assert_int_equal(measure_compute(&wrong, &key, &in, &tiny, NULL, &c, &err), -ENOTSUP);
    model_free(m);
}

static void nothing_is_left_behind(void **state)
{
    (void)state;
    NEED_ENGINE();
    struct buf list = BUF_INIT(65536);
    const char *argv[] = {"ls", rig.folder, NULL}, *envp[] = {"PATH=/usr/bin:/bin", NULL};
    int status = 0;
    assert_int_equal(os_run(&(struct os_spawn){.argv = argv, .envp = envp, .use_path = true}, 10000, &list, NULL, &status, NULL), 0);
    assert_null(strstr(list.ptr, "measure"));
    buf_release(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_model_on_one_device), cmocka_unit_test(a_dense_model_on_two_devices), cmocka_unit_test(a_mixture_of_experts),
        cmocka_unit_test(a_real_start), cmocka_unit_test(what_the_engine_refuses), cmocka_unit_test(nothing_is_left_behind),
    };
    return cmocka_run_group_tests_name("measure with the engine", tests, set_up, tear_down);
}
