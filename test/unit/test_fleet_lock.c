/* SPDX-License-Identifier: MIT
 *
 * fleet.lock: written and read again, sorted, found beside the fleet file, refused when it is not sound; and what of it holds for a model whose declaration changed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "failing_malloc.h"

#include <errno.h>
#include <fcntl.h>
#include <fleet/fleet.h>
#include <os/os.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/berth-lock-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    int tmp = os_open_dir("/tmp", NULL);
    int r = os_remove_tree(tmp, folder + 5, NULL);
    close(tmp);
    return r;
}

static const struct fleet_lock_file files[] = {{"b-00002-of-00002.gguf", 7, SHA, NULL}, {"a.json", 3, NULL, COMMIT}, {"sub/b.gguf", 5000000000, SHA, NULL}};
static const struct fleet_lock_model models[] = {
    {.name = "zeta", .source = "hf:org/repo", .revision = "main", .commit = COMMIT, .files = files, .n_files = 3},
    {.name = "alpha", .source = "file:models", .files = files, .n_files = 1},
};
static const struct fleet_lock_runtime runtimes[] = {{"own", "path:/srv/llama", SHA}, {"llama", "debian:forky", SHA}};
static const struct fleet_lock sample = {.models = models, .n_models = 2, .runtimes = runtimes, .n_runtimes = 2};

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void round_trip(void **state)
{
    (void)state;
    struct fleet_lock *l = NULL;
    struct err err;
    assert_int_equal(fleet_lock_load(path_of("none.lock"), &l, &err), -ENOENT);
    if (fleet_lock_write(&sample, path_of("fleet.lock"), &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(fleet_lock_load(path_of("fleet.lock"), &l, &err), 0);
    assert_int_equal(l->n_models, 2);
    assert_string_equal(l->models[0].name, "alpha");
    assert_string_equal(l->models[0].source, "file:models");
    assert_null(l->models[0].commit);
    assert_null(l->models[0].revision);
    const struct fleet_lock_model *m = fleet_lock_find_model(l, "zeta");
    assert_string_equal(m->commit, COMMIT);
    assert_string_equal(m->revision, "main");
    assert_int_equal(m->n_files, 3);
    assert_string_equal(m->files[0].path, "a.json");
    const struct fleet_lock_file *f = fleet_lock_find_file(m, "sub/b.gguf");
    assert_int_equal(f->bytes, 5000000000);
    assert_string_equal(f->sha256, SHA);
    assert_null(f->git_sha1);
    assert_string_equal(fleet_lock_find_file(m, "a.json")->git_sha1, COMMIT);
    assert_null(fleet_lock_find_file(m, "c"));
    assert_null(fleet_lock_find_model(l, "c"));
    assert_null(fleet_lock_find_model(NULL, "c"));
    assert_null(fleet_lock_find_file(NULL, "c"));
    assert_int_equal(l->n_runtimes, 2);
    assert_string_equal(l->runtimes[0].name, "llama");
    assert_string_equal(l->runtimes[1].digest, SHA);

    /* the same again, to the byte, from the sorted one */
    base_autobuf struct buf one = BUF_INIT(1u << 16), two = BUF_INIT(1u << 16);
    assert_int_equal(os_read_file(AT_FDCWD, path_of("fleet.lock"), &one, NULL), 0);
    assert_int_equal(fleet_lock_write(l, path_of("fleet.lock"), &err), 0);
    assert_int_equal(os_read_file(AT_FDCWD, path_of("fleet.lock"), &two, NULL), 0);
    assert_true(str_eq(buf_str(&one), buf_str(&two)));
    assert_non_null(strstr(one.ptr, "\"version\": 1"));
    fleet_lock_free(l);
    assert_null(fleet_lock_free(NULL));
}

static void names(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"fleet.yaml", "fleet.lock"}, {"a/b.yml", "a/b.lock"}, {"odd", "odd.lock"}, {"/x/.yaml", "/x/.lock"}};
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf out = BUF_INIT(64);
        fleet_lock_path(cases[i][0], &out);
        assert_string_equal(out.ptr, cases[i][1]);
    }
}

#define MODEL(body) "{\"version\":1,\"models\":{\"m\":{" body "}},\"runtimes\":{}}"
#define HUB(more) MODEL("\"source\":\"hf:a/b\",\"revision\":\"main\"," more)
#define FILES(body) HUB("\"commit\":\"" COMMIT "\",\"files\":{" body "}")

static void refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"[]", "version"},
        {"{\"version\":2}", "use the berth that wrote it"},
        {"{\"version\":0}", "version"},
        {"{\"version\":\"1\"}", "version"},
        {"{\"version\":1,\"models\":[]}", "models"},
        {"{\"version\":1,\"models\":{\"../x\":{}}}", "no name of a model"},
        {"{\"version\":1,\"runtimes\":{\"r\":{\"source\":\"system\"}}}", "no digest"},
        {"{\"version\":1,\"runtimes\":{\"r\":{\"source\":\"system\",\"digest\":\"12\"}}}", "digest"},
        {"{\"version\":1,\"runtimes\":{\"R\":{\"source\":\"system\",\"digest\":\"" SHA "\"}}}", "no name of a runtime"},
        {MODEL("\"source\":\"ftp:x\""), "unknown source"},
        {MODEL("\"source\":\"hf:a\\u0007b\",\"revision\":\"main\""), "control character"},
        {HUB("\"files\":{}"), "no commit"},
        {HUB("\"commit\":\"../../../../etc/passwd0000000000000000000\""), "commit"},
        {FILES(""), "no good list of files"},
        {FILES("\"../x\":{\"bytes\":1,\"sha256\":\"" SHA "\"}"), "no path below"},
        {FILES("\"/x\":{\"bytes\":1,\"sha256\":\"" SHA "\"}"), "no path below"},
        {FILES("\"x\":{\"sha256\":\"" SHA "\"}"), "number of bytes"},
        {FILES("\"x\":{\"bytes\":-1,\"sha256\":\"" SHA "\"}"), "number of bytes"},
        {FILES("\"x\":{\"bytes\":18446744073709551615,\"sha256\":\"" SHA "\"}"), "number of bytes"},
        {FILES("\"x\":{\"bytes\":1}"), "neither or both"},
        {FILES("\"x\":{\"bytes\":1,\"sha256\":\"" SHA "\",\"git_sha1\":\"" COMMIT "\"}"), "neither or both"},
        {FILES("\"x\":{\"bytes\":1,\"sha256\":\"ABCDEF6789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}"), "sha256"},
        {FILES("\"x\":{\"bytes\":1,\"sha256\":\"" SHA "\"},\"x\":{\"bytes\":2,\"sha256\":\"" SHA "\"}"), "twice"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct fleet_lock *l = NULL;
        struct err err = {0};
        assert_int_equal(fleet_lock_parse(str_of(cases[i][0]), "f.lock", &l, &err), -EINVAL);
        assert_null(l);
        if (!strstr(err.text, cases[i][1]) || strncmp(err.text, "f.lock: ", 8) != 0)
            fail_msg("%s: %s", cases[i][0], err.text);
    }
    struct fleet_lock *l = NULL;
    assert_int_equal(fleet_lock_parse(str_of(FILES("\"x\":{\"bytes\":1,\"sha256\":\"" SHA "\"}")), "f.lock", &l, NULL), 0);
    fleet_lock_free(l);
}

/* What could not be read again is not written, and the good old file stays. */
static void write_refused(void **state)
{
    (void)state;
    struct err err;
    assert_int_equal(fleet_lock_write(&sample, path_of("fleet.lock"), &err), 0);
    const struct fleet_lock_model twice[] = {models[0], models[0]};
    assert_int_equal(fleet_lock_write(&(struct fleet_lock){.models = twice, .n_models = 2}, path_of("fleet.lock"), &err), -EINVAL);
    struct fleet_lock *l = NULL;
    assert_int_equal(fleet_lock_load(path_of("fleet.lock"), &l, &err), 0);
    assert_int_equal(l->n_models, 2);
    fleet_lock_free(l);
}

static void write_text(const char *name, const char *text)
{
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

#define FLEET(models) "version: 1\nname: home\nmodels:\n" models

static struct fleet *load(const char *text)
{
    struct fleet *f = NULL;
    struct err err;
    write_text("fleet.yaml", text);
    if (fleet_load(path_of("fleet.yaml"), &(struct fleet_options){0}, &f, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static void beside_the_fleet(void **state)
{
    (void)state;
    struct err err;
    struct fleet *f = load(FLEET("  zeta: {source: hf:org/repo, weights: w.gguf}\n"));
    assert_null(f->lock);
    assert_null(f->models[0].commit);
    fleet_free(f);
    assert_int_equal(fleet_lock_write(&sample, path_of("fleet.lock"), &err), 0);
    f = load(FLEET("  zeta: {source: hf:org/repo, weights: w.gguf}\n  alpha: {source: file:models, weights: w.gguf}\n  new: {source: hf:org/repo, weights: w.gguf}\n"));
    assert_non_null(f->lock);
    assert_string_equal(f->models[0].commit, COMMIT);
    assert_non_null(fleet_lock_of(f, &f->models[0]));
    assert_null(f->models[1].commit);
    assert_non_null(fleet_lock_of(f, &f->models[1])); /* by its folder beside the fleet file, wherever that is */
    assert_null(f->models[2].commit);
    assert_null(fleet_lock_of(f, &f->models[2]));
    fleet_free(f);
    /* another revision, another repository, another kind: what was locked is of no use */
    static const char *const other[] = {"hf:org/repo@v2", "hf:org/other", "file:models"};
    for (size_t i = 0; i < BASE_COUNT(other); i++) {
        char text[256];
        snprintf(text, sizeof text, FLEET("  zeta: {source: \"%s\", weights: w.gguf}\n"), other[i]);
        f = load(text);
        assert_null(f->models[0].commit);
        assert_null(fleet_lock_of(f, &f->models[0]));
        fleet_free(f);
    }
    f = NULL;
    write_text("fleet.lock", "{\"version\": 9}");
    assert_int_equal(fleet_load(path_of("fleet.yaml"), &(struct fleet_options){0}, &f, &err), -EINVAL);
    assert_null(f);
    assert_non_null(strstr(err.text, "fleet.lock: has format 9"));
}

#if FAILING_MALLOC
static void without_memory(void **state)
{
    (void)state;
    const char *text = FILES("\"x\":{\"bytes\":1,\"sha256\":\"" SHA "\"}");
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct fleet_lock *l = NULL;
        failing_arm(n);
        int r = fleet_lock_parse(str_of(text), "f.lock", &l, NULL);
        fleet_lock_free(l);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
    }
}
#endif

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(round_trip), TEST(names), TEST(refused), TEST(write_refused), TEST(beside_the_fleet),
#if FAILING_MALLOC
        TEST(without_memory),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
