/* SPDX-License-Identifier: MIT
 *
 * Archives of engines: names, hostile tars that must leave nothing outside, and runtimes made of good ones. The tars are written here, byte by byte, so that they can say what no tool would.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <store/store_int.h>
#include <sys/mman.h>
#include <unistd.h>

#define SCRIPT "#!/bin/sh\necho 'version: 3.1 (abc)'\n"

struct world {
    char top[64], state[96], tree[96];
    struct os_dirs dirs;
    struct store *store;
    int treefd;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct err err;
    assert_non_null(w);
    snprintf(w->top, sizeof w->top, "/tmp/berth-archive-XXXXXX");
    assert_non_null(mkdtemp(w->top));
    assert_int_equal(chmod(w->top, 0755), 0);
    snprintf(w->state, sizeof w->state, "%s/state", w->top);
    snprintf(w->tree, sizeof w->tree, "%s/deep/tree", w->top);
    w->dirs = (struct os_dirs){.state = w->state, .run = w->state, .config = w->state};
    if (store_open(&w->dirs, &w->store, &err) < 0 || os_make_dirs(w->tree, 0755, &err) < 0)
        fail_msg("%s", err.text);
    w->treefd = os_open_dir(w->tree, NULL);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    store_free(w->store);
    close(w->treefd);
    int tmp = os_open_dir("/tmp", NULL);
    assert_int_equal(os_remove_tree(tmp, w->top + 5, NULL), 0);
    close(tmp);
    free(w);
    return 0;
}

/* One entry of a tar. type: '0' file, '1' hard link, '2' link, '3' device, '5' folder, '6' pipe. */
struct entry {
    const char *name;
    char type;
    const char *text; /* content, or the link's */
    unsigned mode;
};

static void add(struct buf *tar, const struct entry *e)
{
    char h[512] = "";
    size_t n = e->type == '0' && e->text ? strlen(e->text) : 0;
    unsigned sum = 0;
    snprintf(h, 100, "%s", e->name);
    snprintf(h + 100, 8, "%07o", (e->mode ? e->mode : 0644u) & 07777);
    snprintf(h + 108, 8, "%07o", 0u);
    snprintf(h + 116, 8, "%07o", 0u);
    snprintf(h + 124, 12, "%011o", (unsigned)n & 0xffffff);
    snprintf(h + 136, 12, "%011o", 0u);
    h[156] = e->type;
    if (e->type == '1' || e->type == '2')
        snprintf(h + 157, 100, "%s", e->text);
    memcpy(h + 257, "ustar\00000", 8);
    memset(h + 148, ' ', 8);
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    buf_add(tar, h, sizeof h);
    buf_add(tar, e->text, n);
    static const char zeros[512];
    if (n % 512)
        buf_add(tar, zeros, 512 - n % 512);
}

static int tar_of(const struct entry *entries, size_t n)
{
    static const char zeros[1024];
    base_autobuf struct buf tar = BUF_INIT(1u << 20);
    for (size_t i = 0; i < n; i++)
        add(&tar, &entries[i]);
    buf_add(&tar, zeros, sizeof zeros);
    int fd = memfd_create("tar", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(os_write_all(fd, tar.ptr, tar.len, NULL), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
        int r;
    } cases[] = {
        {"a", "a", 1},         {"./a/b", "a/b", 1},    {"././a//", NULL, 1},  {".", NULL, 0},       {"./", NULL, 0},   {"", NULL, 0},          {"/etc/passwd", NULL, -EINVAL},
        {"../a", NULL, -EINVAL}, {"a/../b", NULL, -EINVAL}, {"a/./b", NULL, -EINVAL}, {"a//b", NULL, -EINVAL}, {"a\nb", NULL, -EINVAL}, {"a/..", NULL, -EINVAL}, {"..", NULL, -EINVAL},
        {"a\xff", NULL, -EINVAL}, {".../a", ".../a", 1}, {"..a/b", "..a/b", 1},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char out[STORE_PATH_MAX];
        if (archive_name(str_of(cases[i].in), out) != cases[i].r)
            fail_msg("'%s'", cases[i].in);
        if (cases[i].out)
            assert_string_equal(out, cases[i].out);
    }
    assert_int_equal(archive_name((struct str){"a\0b", 3}, (char[STORE_PATH_MAX]){0}), -EINVAL);
}

static void test_unpack(void **state)
{
    struct world *w = *state;
    static const struct entry good[] = {
        {"./", '5', NULL, 0755}, {"./bin/run", '0', SCRIPT, 0755}, {"lib/", '5', NULL, 0700}, {"lib/x.so.1", '0', "library", 0600}, {"lib/x.so", '2', "x.so.1", 0777}, {"lib/y.so", '1', "lib/x.so.1", 0},
    };
    struct err err;
    struct stat st;
    os_autoclose int fd = tar_of(good, BASE_COUNT(good));
    if (archive_unpack(fd, w->treefd, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(fstatat(w->treefd, "bin/run", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_size, strlen(SCRIPT));
    assert_int_equal(st.st_mode & 0111, 0111);
    assert_int_equal(fstatat(w->treefd, "lib/x.so", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(fstatat(w->treefd, "lib/y.so", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_size, 7);
    assert_int_equal(tree_links_stay(w->treefd, &err), 0);
}

/* What each hostile archive must be refused for; "" is one that unpacks and whose links are refused after it. */
static void test_hostile(void **state)
{
    struct world *w = *state;
    static const struct {
        struct entry entries[3];
        size_t n;
        const char *why;
    } cases[] = {
        {{{"../evil", '0', "x", 0}}, 1, "would leave the folder"},
        {{{"/tmp/berth-evil", '0', "x", 0}}, 1, "would leave the folder"},
        {{{"a/../../evil", '0', "x", 0}}, 1, "would leave the folder"},
        {{{"d", '2', "../..", 0}, {"d/evil", '0', "x", 0}}, 2, "is there twice"}, /* the link comes last, and finds a folder of its name */
        {{{"l", '2', "../../evil", 0}}, 1, ""},
        {{{"l", '2', "/etc/passwd", 0}}, 1, ""},
        {{{"a/l", '2', "../../x", 0}}, 1, ""},
        {{{"l", '1', "../../../etc/passwd", 0}}, 1, "is a link out of it"},
        {{{"l", '1', "/etc/passwd", 0}}, 1, "is a link out of it"},
        {{{"l", '1', "later", 0}}, 1, "is a link to no file before it"},
        {{{"a", '0', "x", 0}, {"a", '0', "y", 0}}, 2, "is there twice"},
        {{{"a", '0', "x", 0}, {"a/b", '0', "y", 0}}, 2, "lies below what is no folder"},
        {{{"dev", '3', NULL, 0}}, 1, "is neither a file, a folder nor a link"},
        {{{"pipe", '6', NULL, 0}}, 1, "is neither a file, a folder nor a link"},
        {{{"su", '0', "x", 04755}}, 1, "has a set-id bit"},
        {{{"su", '0', "x", 02755}}, 1, "has a set-id bit"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char name[32], path[STORE_PATH_MAX];
        struct err err = {0};
        snprintf(name, sizeof name, "t%zu", i);
        assert_int_equal(mkdirat(w->treefd, name, 0755), 0);
        os_autoclose int tree = openat(w->treefd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        os_autoclose int fd = tar_of(cases[i].entries, cases[i].n);
        int r = archive_unpack(fd, tree, &err);
        if (r == 0 && !*cases[i].why)
            r = tree_links_stay(tree, &err);
        if (r != (*cases[i].why ? -EBADMSG : -EINVAL) || !strstr(err.text, *cases[i].why ? cases[i].why : "leads out of the folder"))
            fail_msg("case %zu: %d %s", i, r, err.text);
        for (const char *const *at = (const char *const[]){"", "/deep", "/deep/tree", NULL}; *at; at++) {
            assert_int_equal(store_pathf(path, NULL, "%s%s/evil", w->top, *at), 0);
            assert_int_equal(access(path, F_OK), -1);
        }
        assert_int_equal(access("/tmp/berth-evil", F_OK), -1);
    }
}

static void test_not_an_archive(void **state)
{
    struct world *w = *state;
    struct err err;
    static const char *const texts[] = {"<html>please log in</html>", "PK\003\004 and no more", "\x1f\x8b\x08 cut"};
    for (size_t i = 0; i < BASE_COUNT(texts); i++) {
        os_autoclose int fd = memfd_create("x", MFD_CLOEXEC);
        assert_int_equal(os_write_all(fd, texts[i], strlen(texts[i]), NULL), 0);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_int_equal(archive_unpack(fd, w->treefd, &err), -EBADMSG);
    }
}

/* ---- runtimes ------------------------------------------------------------------------------------------------------- */

/* The archive as a file, and its digest. */
static void put_archive(struct world *w, const char *prefix, char path[128], char digest[OS_SHA256_HEX])
{
    char a[64], b[64];
    snprintf(a, sizeof a, "%sbin/llama-server", prefix);
    snprintf(b, sizeof b, "%slib/data", prefix);
    const struct entry entries[] = {{a, '0', SCRIPT, 0755}, {b, '0', "data", 0644}};
    snprintf(path, 128, "%s/a.tar", w->top);
    os_autoclose int from = tar_of(entries, 2);
    base_autobuf struct buf tar = BUF_INIT(1u << 20);
    assert_int_equal(os_read_all(from, &tar, NULL), 0);
    int top = os_open_dir(w->top, NULL);
    assert_int_equal(os_write_atomic(top, "a.tar", tar.ptr, tar.len, 0644, NULL), 0);
    close(top);
    assert_int_equal(os_digest_file(AT_FDCWD, path, digest, NULL, NULL), 0);
}

static void test_runtime(void **state)
{
    struct world *w = *state;
    static const char *const prefixes[] = {"", "llama-b1/", "a/b/"};
    for (size_t i = 0; i < BASE_COUNT(prefixes); i++) {
        char path[128], digest[OS_SHA256_HEX], want_source[256];
        struct store_runtime r;
        struct err err;
        put_archive(w, prefixes[i], path, digest);
        const struct fleet_runtime want = {.name = "own", .engine = "llama.cpp", .source = FLEET_SOURCE_ARCHIVE, .source_arg = path, .digest = digest};
        if (store_runtime_add(w->store, &want, &(struct store_add_options){0}, &r, &err) < 0)
            fail_msg("%s", err.text);
        assert_string_equal(r.program, "/bin/llama-server");
        assert_string_equal(r.version, "3.1");
        snprintf(want_source, sizeof want_source, "archive:%s#sha256=%s", path, digest);
        assert_string_equal(r.source, want_source);
        assert_int_equal(r.n_files, 2);
        assert_int_equal(store_runtime_verify(w->store, &r, NULL, &err), 0);
        store_runtime_release(&r);
        assert_int_equal(store_runtime_find(w->store, &want, &r, &err), 0);
        store_runtime_release(&r);
    }
}

static void test_runtime_refused(void **state)
{
    struct world *w = *state;
    char path[128], digest[OS_SHA256_HEX];
    struct store_runtime r;
    struct err err;
    put_archive(w, "", path, digest);
    digest[0] = digest[0] == '0' ? '1' : '0';
    struct fleet_runtime want = {.name = "own", .engine = "llama.cpp", .source = FLEET_SOURCE_ARCHIVE, .source_arg = path, .digest = digest};
    assert_int_equal(store_runtime_add(w->store, &want, &(struct store_add_options){0}, &r, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "is not what is pinned"));
    put_archive(w, "none/of/the/folders/", path, digest);
    assert_int_equal(store_runtime_add(w->store, &want, &(struct store_add_options){0}, &r, &err), -ENOENT);
    want.source_arg = "https://example.org/a.tar";
    assert_int_equal(store_runtime_add(w->store, &want, &(struct store_add_options){0}, &r, &err), -ENETUNREACH);
    want.source = FLEET_SOURCE_OCI;
    assert_int_equal(store_runtime_add(w->store, &want, &(struct store_add_options){0}, &r, &err), -EOPNOTSUPP);
}

struct fetch {
    const char *from;
    unsigned calls;
};

static int fetch(void *ctx, const char *url, const char *sha256, const char *path, struct err *err)
{
    struct fetch *f = ctx;
    assert_string_equal(url, "https://example.org/a.tar");
    assert_int_equal(strlen(sha256), 64);
    f->calls++;
    return os_copy_file(AT_FDCWD, f->from, AT_FDCWD, path, 0644, err);
}

/* Fetched once; made again from what the store has kept. */
static void test_runtime_fetched(void **state)
{
    struct world *w = *state;
    char path[128], digest[OS_SHA256_HEX];
    struct store_runtime r;
    struct err err;
    put_archive(w, "x/", path, digest);
    struct fetch f = {.from = path};
    const struct store_add_options o = {.fetch = fetch, .fetch_ctx = &f};
    const struct fleet_runtime want = {.name = "own", .engine = "llama.cpp", .source = FLEET_SOURCE_ARCHIVE, .source_arg = "https://example.org/a.tar", .digest = digest};
    for (unsigned i = 0; i < 2; i++) {
        if (store_runtime_add(w->store, &want, &o, &r, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(f.calls, 1);
        assert_int_equal(store_runtime_remove(w->store, r.id, &err), 0);
        store_runtime_release(&r);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_names), TEST(test_unpack), TEST(test_hostile), TEST(test_not_an_archive), TEST(test_runtime), TEST(test_runtime_refused), TEST(test_runtime_fetched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
