/* SPDX-License-Identifier: MIT
 *
 * Archives of engines: names, hostile tars and zips that must leave nothing outside, bombs, and runtimes made of good ones. They are written here, byte by byte, so that they can say what no tool would.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_aid.h"

#include <errno.h>
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
    assert_non_null(w);
    store_aid_open(w->top, w->state, &w->dirs, &w->store);
    snprintf(w->tree, sizeof w->tree, "%s/deep/tree", w->top);
    assert_int_equal(os_make_dirs(w->tree, 0755, NULL), 0);
    w->treefd = os_open_dir(w->tree, NULL);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    close(w->treefd);
    store_aid_close(w->top, w->store);
    free(w);
    return 0;
}

/* One entry of an archive. type: '0' file, '1' hard link, '2' link, '3' device, '5' folder, '6' pipe. */
struct entry {
    const char *name;
    char type;
    const char *text; /* content, or the link's */
    unsigned mode;
};

static void add_tar(struct buf *tar, const struct entry *e)
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

static int file_of(const struct buf *b)
{
    int fd = memfd_create("archive", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(os_write_all(fd, b->ptr, b->len, NULL), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static int tar_of(const struct entry *entries, size_t n)
{
    static const char zeros[1024];
    base_autobuf struct buf tar = BUF_INIT(1u << 20);
    for (size_t i = 0; i < n; i++)
        add_tar(&tar, &entries[i]);
    buf_add(&tar, zeros, sizeof zeros);
    return file_of(&tar);
}

/* ---- zip --------------------------------------------------------------------------------------------------------- */

static void put(struct buf *out, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_add_char(out, (char)(v >> (8 * i)));
}

static uint32_t crc_of(const char *data, size_t n)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= (uint8_t)data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static uint32_t unix_mode(const struct entry *e)
{
    const unsigned kind = e->type == '2' ? S_IFLNK : e->type == '3' ? S_IFCHR : e->type == '5' ? S_IFDIR : e->type == '6' ? S_IFIFO : S_IFREG;
    return kind | (e->mode ? e->mode : 0644u);
}

/* What a header says of a file, in the order that both kinds of header have it. */
static void put_facts(struct buf *zip, unsigned method, uint32_t crc, size_t packed, size_t bytes, const char *name)
{
    put(zip, 20, 2);
    put(zip, 0, 2);
    put(zip, method, 2);
    put(zip, 0, 4);
    put(zip, crc, 4);
    put(zip, packed, 4);
    put(zip, bytes, 4);
    put(zip, strlen(name), 2);
    put(zip, 0, 2);
}

/* One file's local header and content, and its line in the directory at the end. */
static void add_zip(struct buf *zip, struct buf *list, const struct entry *e, unsigned method, struct str packed, uint32_t crc, size_t bytes)
{
    size_t at = zip->len;
    put(zip, 0x04034b50, 4);
    put_facts(zip, method, crc, packed.len, bytes, e->name);
    buf_add_c(zip, e->name);
    buf_add_str(zip, packed);
    put(list, 0x02014b50, 4);
    put(list, 3 << 8 | 20, 2); /* made on unix */
    put_facts(list, method, crc, packed.len, bytes, e->name);
    put(list, 0, 6);
    put(list, (uint64_t)unix_mode(e) << 16, 4);
    put(list, at, 4);
    buf_add_c(list, e->name);
}

static int end_zip(struct buf *zip, struct buf *list, size_t n)
{
    size_t at = zip->len;
    buf_add_str(zip, buf_str(list));
    put(zip, 0x06054b50, 4);
    put(zip, 0, 4);
    put(zip, n, 2);
    put(zip, n, 2);
    put(zip, list->len, 4);
    put(zip, at, 4);
    put(zip, 0, 2);
    return file_of(zip);
}

static int zip_of(const struct entry *entries, size_t n)
{
    base_autobuf struct buf zip = BUF_INIT(1u << 20), list = BUF_INIT(1u << 20);
    for (size_t i = 0; i < n; i++) {
        struct str text = str_of(entries[i].text ? entries[i].text : "");
        add_zip(&zip, &list, &entries[i], 0, text, crc_of(text.ptr, text.len), text.len);
    }
    return end_zip(&zip, &list, n);
}

/* Zeros, as deflate packs them best without a table of its own: one literal, then copies of 258 bytes in 13 bits each. */
static void pack_zeros(struct buf *out, size_t copies)
{
    uint64_t bits = 1 | 1 << 1; /* the last block, fixed codes */
    unsigned n = 3;
    for (size_t i = 0; i <= copies + 1; i++) {
        /* codes begin with their highest bit: 00110000, 11000101 and 00000, 0000000 */
        bits |= (uint64_t)(i == 0 ? 0x0c : i <= copies ? 0xa3 : 0) << n;
        n += i == 0 ? 8 : i <= copies ? 13 : 7;
        for (; n >= 8; n -= 8, bits >>= 8)
            buf_add_char(out, (char)bits);
    }
    buf_add_char(out, (char)bits);
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
    os_autoclose int zip = zip_of(good, BASE_COUNT(good) - 1); /* which has no hard links */
    assert_int_equal(mkdirat(w->treefd, "zip", 0755), 0);
    os_autoclose int tree = openat(w->treefd, "zip", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (archive_unpack(zip, tree, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(fstatat(tree, "bin/run", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_size, strlen(SCRIPT));
    assert_int_equal(st.st_mode & 0111, 0111);
    assert_int_equal(fstatat(tree, "lib/x.so", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_true(S_ISLNK(st.st_mode));
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
    for (size_t k = 0; k < 2 * BASE_COUNT(cases); k++) {
        char name[32], path[STORE_PATH_MAX];
        struct err err = {0};
        size_t i = k / 2;
        bool zip = k % 2;
        if (zip && (cases[i].entries[0].type == '1' || cases[i].entries[0].type == '6'))
            continue; /* a zip has no hard links, and libarchive makes a file of its pipes */
        snprintf(name, sizeof name, "t%zu", k);
        assert_int_equal(mkdirat(w->treefd, name, 0755), 0);
        os_autoclose int tree = openat(w->treefd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        os_autoclose int fd = (zip ? zip_of : tar_of)(cases[i].entries, cases[i].n);
        int r = archive_unpack(fd, tree, &err);
        if (r == 0 && !*cases[i].why)
            r = tree_links_stay(tree, &err);
        if (r != (*cases[i].why ? -EBADMSG : -EINVAL) || !strstr(err.text, *cases[i].why ? cases[i].why : "leads out of the folder"))
            fail_msg("case %zu, %s: %d %s", i, zip ? "zip" : "tar", r, err.text);
        for (const char *const *at = (const char *const[]){"", "/deep", "/deep/tree", NULL}; *at; at++) {
            assert_int_equal(store_pathf(path, NULL, "%s%s/evil", w->top, *at), 0);
            assert_int_equal(access(path, F_OK), -1);
        }
        assert_int_equal(access("/tmp/berth-evil", F_OK), -1);
    }
}

/* Little that becomes very much, in one file or in many, whatever the headers say of it. */
static void test_bomb(void **state)
{
    struct world *w = *state;
    const size_t copies = ((size_t)10 << 20) / 258, said[] = {1 + 258 * copies, 5, 0xfffffff0};
    base_autofree char *zeros = calloc(1, 1 + 258 * copies);
    assert_non_null(zeros);
    for (size_t i = 0; i < BASE_COUNT(said); i++) {
        base_autobuf struct buf zip = BUF_INIT(1u << 20), list = BUF_INIT(1u << 20), packed = BUF_INIT(1u << 20);
        struct err err = {0};
        struct stat st;
        char name[2][8];
        pack_zeros(&packed, copies);
        for (size_t k = 0; k < 2; k++) {
            snprintf(name[k], sizeof name[k], "b%zu%zu", i, k);
            const struct entry e = {name[k], '0', NULL, 0644};
            add_zip(&zip, &list, &e, 8, buf_str(&packed), crc_of(zeros, 1 + 258 * copies), said[i]);
        }
        os_autoclose int fd = end_zip(&zip, &list, 2);
        int r = archive_unpack(fd, w->treefd, &err);
        /* one that lies is found out by its sum or its length; it must end, and not be much */
        if (r >= 0 || (i == 0 && r != -E2BIG))
            fail_msg("%zu: %d %s", i, r, err.text);
        if (i == 0)
            assert_non_null(strstr(err.text, "far too much for its own size"));
        uint64_t sum = 0;
        for (size_t k = 0; k < 2; k++)
            sum += fstatat(w->treefd, name[k], &st, 0) == 0 ? (uint64_t)st.st_size : 0;
        assert_true(sum <= STORE_ARCHIVE_SMALL);
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
        TEST(test_names), TEST(test_unpack), TEST(test_hostile), TEST(test_bomb), TEST(test_not_an_archive), TEST(test_runtime), TEST(test_runtime_refused), TEST(test_runtime_fetched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
