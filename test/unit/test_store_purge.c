/* SPDX-License-Identifier: MIT
 *
 * What a purge lists and what it must never list: payloads of every fleet that the machine knows, of one that is up as it was started, of versions that are kept, and what is on its way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_aid.h"

#include <errno.h>
#include <unistd.h>

#define NEWER "0123456789abcdef0123456789abcdef01234567"
#define OLDER "1123456789abcdef0123456789abcdef01234567"
#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

struct world {
    char top[64], state[96], run[96];
    struct os_dirs dirs;
    struct store *store;
    struct fleet_options options;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    store_aid_open(w->top, w->state, &w->dirs, &w->store);
    snprintf(w->run, sizeof w->run, "%s/run", w->top);
    w->dirs.run = w->run;
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

static void put(struct world *w, const char *below, const char *text)
{
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/%s", w->top, below), 0);
    base_autofree char *dir = str_dup(str_of(path));
    *strrchr(dir, '/') = '\0';
    assert_int_equal(os_make_dirs(dir, 0755, NULL), 0);
    int fd = os_open_dir(dir, NULL);
    struct err err;
    if (os_write_atomic(fd, strrchr(path, '/') + 1, text, strlen(text), 0644, &err) < 0)
        fail_msg("%s", err.text);
    close(fd);
}

#define HF "state/store/payloads/hf/"

static void put_fleet(struct world *w, const char *folder, const char *commit)
{
    char text[1024], name[128];
    snprintf(name, sizeof name, "%s/fleet.yaml", folder);
    put(w, name, "version: 1\nname: home\nmodels:\n  m: {source: \"hf:org/repo\", weights: w-00001-of-00002.gguf, projector: p.gguf}\n");
    if (!commit)
        return;
    snprintf(text, sizeof text,
             "{\"version\":1,\"models\":{\"m\":{\"source\":\"hf:org/repo\",\"revision\":\"main\",\"commit\":\"%s\",\"files\":{\"w-00001-of-00002.gguf\":{\"bytes\":1,\"sha256\":\"" SHA "\"}}}},\"runtimes\":{}}", commit);
    snprintf(name, sizeof name, "%s/fleet.lock", folder);
    put(w, name, text);
}

static struct fleet *load(struct world *w, const char *below)
{
    char path[STORE_PATH_MAX];
    struct fleet *f = NULL;
    struct err err;
    assert_int_equal(store_pathf(path, NULL, "%s/%s", w->top, below), 0);
    if (fleet_load(path, &w->options, &f, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static struct store_purge purge(struct world *w, bool remove)
{
    struct store_purge p = {.n = 0};
    struct err err;
    if (store_purge(w->store, &(struct store_purge_options){.fleet_options = &w->options, .remove = remove}, &p, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

static bool lists(const struct store_purge *p, const char *end)
{
    for (size_t i = 0; i < p->n; i++)
        if (str_ends(str_of(p->list[i].path), str_of(end)))
            return true;
    return false;
}

static bool there(struct world *w, const char *below)
{
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/%s", w->top, below), 0);
    return access(path, F_OK) == 0;
}

static void test_nobody(void **state)
{
    struct world *w = *state;
    put(w, HF "org/repo/main/w.gguf", "weights");
    put(w, HF "org/repo/main/sub/x.gguf.part", "half");
    put(w, HF "org/repo/main/sub/x.gguf.part.journal", "journal");
    put(w, "state/store/manifests/" SHA, "no manifest");
    struct store_purge p = purge(w, false);
    assert_int_equal(p.n, 4);
    assert_true(lists(&p, "main/w.gguf"));
    assert_int_equal(p.list[0].kind, STORE_GARBAGE_PARTIAL);
    assert_true(p.bytes > 0);
    assert_true(there(w, HF "org/repo/main/w.gguf")); /* only listed */
    store_purge_release(&p);
    p = purge(w, true);
    assert_int_equal(p.n, 4);
    assert_true(p.list[0].removed);
    store_purge_release(&p);
    assert_false(there(w, HF "org"));
    assert_true(there(w, "state/store/payloads/hf"));
    p = purge(w, false);
    assert_int_equal(p.n, 0);
    store_purge_release(&p);
}

static void test_known_fleet(void **state)
{
    struct world *w = *state;
    put_fleet(w, "home", NEWER);
    static const char *const kept[] = {HF "org/repo/" NEWER "/w-00001-of-00002.gguf", HF "org/repo/" NEWER "/w-00002-of-00002.gguf.part", HF "org/repo/" NEWER "/w-00002-of-00002.gguf.part.journal", HF "org/repo/" NEWER "/p.gguf.part1of2"};
    static const char *const gone[] = {HF "org/repo/" OLDER "/w-00001-of-00002.gguf", HF "org/repo/main/w-00001-of-00002.gguf", HF "org/repo/" NEWER "/README.md", HF "org/repo/" NEWER "/w-00001-of-00002.gguf.repair", HF "org/other/main/w.part"};
    for (size_t i = 0; i < BASE_COUNT(kept); i++)
        put(w, kept[i], "x");
    for (size_t i = 0; i < BASE_COUNT(gone); i++)
        put(w, gone[i], "x");
    struct fleet *f = load(w, "home/fleet.yaml");
    assert_int_equal(store_uses_write(w->store, f, false, NULL), 0);
    fleet_free(f);
    struct store_purge p = purge(w, true);
    assert_int_equal(p.n, BASE_COUNT(gone));
    assert_int_equal(p.n_kept, BASE_COUNT(kept));
    store_purge_release(&p);
    for (size_t i = 0; i < BASE_COUNT(kept); i++)
        assert_true(there(w, kept[i]));
    for (size_t i = 0; i < BASE_COUNT(gone); i++)
        assert_false(there(w, gone[i]));
    /* its file goes: then nothing is kept for it, and that is said */
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/home/fleet.yaml", w->top), 0);
    assert_int_equal(unlink(path), 0);
    p = purge(w, false);
    assert_int_equal(p.n, BASE_COUNT(kept));
    assert_int_equal(p.n_gone, 1);
    assert_non_null(strstr(p.gone[0], "home/fleet.yaml"));
    store_purge_release(&p);
}

/* A fleet that is up keeps what it was started with, whatever its file says by now; when it is down the file alone counts. */
static void test_fleet_that_is_up(void **state)
{
    struct world *w = *state;
    static const char old[] = HF "org/repo/" OLDER "/w-00001-of-00002.gguf", new[] = HF "org/repo/" NEWER "/w-00001-of-00002.gguf";
    put(w, old, "x");
    put(w, new, "x");
    put_fleet(w, "home", OLDER);
    struct fleet *f = load(w, "home/fleet.yaml");
    assert_int_equal(store_uses_write(w->store, f, true, NULL), 0);
    fleet_free(f);
    put_fleet(w, "home", NEWER);
    f = load(w, "home/fleet.yaml");
    assert_int_equal(store_uses_write(w->store, f, false, NULL), 0); /* as a pull of the new one does */
    fleet_free(f);
    put(w, "state/fleets/home/lock", "");
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/fleets/home/lock", w->state), 0);
    int up = os_lock(path, true, false, NULL);
    assert_true(up >= 0);
    struct store_purge p = purge(w, true);
    assert_int_equal(p.n, 0);
    assert_int_equal(p.n_kept, 2);
    store_purge_release(&p);
    close(up);
    p = purge(w, true);
    assert_int_equal(p.n, 1);
    store_purge_release(&p);
    assert_false(there(w, old));
    assert_true(there(w, new));
}

static void test_versions(void **state)
{
    struct world *w = *state;
    static const char old[] = HF "org/repo/" OLDER "/w-00001-of-00002.gguf", main_[] = HF "org/repo/main/w-00001-of-00002.gguf";
    put(w, old, "x");
    put(w, main_, "x");
    put_fleet(w, "state/fleets/home/versions/7", OLDER);
    struct store_purge p = purge(w, true);
    assert_int_equal(p.n, 1);
    assert_true(lists(&p, "main/w-00001-of-00002.gguf"));
    store_purge_release(&p);
    assert_true(there(w, old));
}

static void test_unreadable_fleet(void **state)
{
    struct world *w = *state;
    put(w, HF "org/repo/main/w.gguf", "x");
    put_fleet(w, "home", NULL);
    struct fleet *f = load(w, "home/fleet.yaml");
    assert_int_equal(store_uses_write(w->store, f, false, NULL), 0);
    fleet_free(f);
    put(w, "home/fleet.yaml", "version: 1\nnam: home\n");
    struct store_purge p;
    struct err err;
    assert_int_equal(store_purge(w->store, &(struct store_purge_options){.fleet_options = &w->options, .remove = true}, &p, &err), -EINVAL);
    assert_non_null(strstr(err.text, "what fleet 'home' uses cannot be known"));
    assert_non_null(strstr(err.text, "home/fleet.yaml:2:1"));
    assert_true(there(w, HF "org/repo/main/w.gguf"));
}

static void test_fetch_under_way(void **state)
{
    struct world *w = *state;
    struct err err;
    struct store_purge p;
    int fetch = store_lock_payloads(w->store, true, &err);
    assert_true(fetch >= 0);
    assert_int_equal(store_purge(w->store, &(struct store_purge_options){.fleet_options = &w->options, .remove = true}, &p, &err), -EBUSY);
    assert_int_equal(store_purge(w->store, &(struct store_purge_options){.fleet_options = &w->options}, &p, &err), 0);
    store_purge_release(&p);
    close(fetch);
}

/* A manifest of a file in somebody's own folder stays as long as the file does; a file with another name frees nothing. */
static void test_manifests_and_links(void **state)
{
    struct world *w = *state;
    char own[STORE_PATH_MAX], blob[STORE_PATH_MAX], name[STORE_PATH_MAX];
    put(w, "own.gguf", "own");
    put(w, HF "org/repo/main/w.gguf", "shared");
    assert_int_equal(store_pathf(own, NULL, "%s/own.gguf", w->top), 0);
    assert_int_equal(store_pathf(blob, NULL, "%s/" HF "org/repo/main/w.gguf", w->top), 0);
    assert_int_equal(store_pathf(name, NULL, "%s/cache", w->top), 0);
    assert_int_equal(link(blob, name), 0);
    struct store_check c[2] = {{.path = own}, {.path = blob}};
    assert_int_equal(store_verify(w->store, c, 2, &(struct store_verify_options){0}, NULL), 0);
    struct store_purge p = purge(w, true);
    assert_int_equal(p.n, 2); /* the link and its manifest */
    assert_true(p.list[0].shared);
    assert_int_equal(p.list[0].bytes, 0);
    assert_int_equal(p.list[1].kind, STORE_GARBAGE_MANIFEST);
    store_purge_release(&p);
    struct store_manifest m;
    assert_int_equal(store_manifest_load(w->store, own, &m, NULL), 0);
    store_manifest_release(&m);
    assert_int_equal(store_manifest_load(w->store, blob, &m, NULL), -ENOENT);
    assert_true(there(w, "cache"));
    assert_int_equal(unlink(own), 0);
    p = purge(w, true);
    assert_int_equal(p.n, 1);
    store_purge_release(&p);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_nobody), TEST(test_known_fleet), TEST(test_fleet_that_is_up), TEST(test_versions), TEST(test_unreadable_fleet), TEST(test_fetch_under_way), TEST(test_manifests_and_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
