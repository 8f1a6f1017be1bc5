/* SPDX-License-Identifier: MIT
 *
 * Parsers of store: manifests, the lines of apt's --print-uris, the machine's mirror, and the loader that a program names. Hostile input, and memory that ends anywhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "failing_malloc.h"

#include <elf.h>
#include <store/store_int.h>
#include <unistd.h>

#define SHA_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define SHA_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static struct manifest *sample(void)
{
    struct manifest *m = manifest_new();
    assert_non_null(m);
    m->engine = "llama.cpp";
    m->version = "0.7.0+dfsg-2";
    m->source = "debian:forky";
    m->packages = "a b";
    m->program = "/usr/bin/llama-server";
    m->complete = true;
    m->installed_us = 1234567;
    m->debs = arena_alloc(m->arena, 1, sizeof *m->debs);
    m->debs[0] = (struct manifest_deb){.file = "a_1_amd64.deb", .sha256 = SHA_A};
    m->n_debs = 1;
    const struct manifest_entry entries[] = {
        {.path = "usr/lib/x.so", .kind = MANIFEST_LINK, .detail = "x.so.1"},
        {.path = "usr", .kind = MANIFEST_DIR, .mode = 0755, .detail = ""},
        {.path = "usr/lib/x.so.1", .kind = MANIFEST_FILE, .mode = 0644, .bytes = 7, .detail = SHA_A},
        {.path = "usr/bin/llama-server", .kind = MANIFEST_FILE, .mode = 0755, .bytes = 5, .detail = SHA_B},
    };
    for (size_t i = 0; i < BASE_COUNT(entries); i++)
        assert_int_equal(manifest_add(m, &entries[i], NULL), 0);
    assert_int_equal(manifest_seal(m, NULL), 0);
    return m;
}

static char *text_of(const struct manifest *m)
{
    struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(manifest_text(m, &b, NULL), 0);
    return buf_take(&b);
}

static void round_trip(void **state)
{
    (void)state;
    struct manifest *m = sample(), *back = NULL;
    char *text = text_of(m);
    assert_int_equal(manifest_parse(str_of(text), &back, NULL), 0);
    assert_string_equal(back->digest, m->digest);
    assert_string_equal(manifest_id(back), manifest_id(m));
    assert_string_equal(m->digest, "10147c78624d20c2f7390fa64dc1b674e8fbae5682ce1bb543b792aa7a601c2a"); /* the digest names folders on disk: it never changes */
    assert_memory_equal(manifest_id(m), "llama.cpp-0.7.0+dfsg-2-", 23);
    assert_int_equal(strlen(manifest_id(m)), 23 + 12);
    assert_string_equal(back->source, "debian:forky");
    assert_string_equal(back->packages, "a b");
    assert_true(back->complete);
    assert_int_equal(back->installed_us, 1234567);
    assert_int_equal(back->n_files, 2);
    assert_int_equal(back->bytes, 12);
    assert_int_equal(back->n_debs, 1);
    assert_string_equal(back->debs[0].sha256, SHA_A);
    assert_string_equal(back->entries[0].path, "usr"); /* sorted */
    ptrdiff_t i = manifest_find(back, "usr/lib/x.so");
    assert_true(i >= 0);
    assert_int_equal(back->entries[i].kind, MANIFEST_LINK);
    assert_string_equal(back->entries[i].detail, "x.so.1");
    assert_int_equal(manifest_find(back, "usr/lib/x"), -1);
    free(text);
    manifest_free(back);
    manifest_free(m);
}

/* Whatever is part of the digest changes it. */
static void digest_covers(void **state)
{
    (void)state;
    struct manifest *m = sample();
    char before[OS_SHA256_HEX];
    memcpy(before, m->digest, sizeof before);
    m->installed_us++;
    assert_int_equal(manifest_seal(m, NULL), 0);
    assert_string_equal(m->digest, before);
    manifest_free(m);
    for (size_t i = 0; i < 7; i++) {
        m = sample();
        const char **texts[] = {&m->engine, &m->version, &m->source, &m->packages, &m->program, &m->entries[1].detail, &m->entries[1].path};
        *texts[i] = "other";
        assert_int_equal(manifest_seal(m, NULL), 0);
        assert_string_not_equal(m->digest, before);
        manifest_free(m);
    }
    m = sample();
    m->complete = false;
    assert_int_equal(manifest_seal(m, NULL), 0);
    assert_string_not_equal(m->digest, before);
    m->complete = true;
    m->entries[1].mode ^= 0111;
    assert_int_equal(manifest_seal(m, NULL), 0);
    assert_string_not_equal(m->digest, before);
    manifest_free(m);
}

/* text with the first `from` replaced by `to`. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    struct buf b = BUF_INIT(1 << 20);
    buf_add(&b, text, (size_t)(at - text));
    buf_add_c(&b, to);
    buf_add_c(&b, at + strlen(from));
    return buf_take(&b);
}

static void refuses(void **state)
{
    (void)state;
    static const char *const edits[][3] = {
        {"\"version\": 1", "\"version\": 2", "format 2"},
        {"\"version\": 1", "\"version\": \"1\"", "version"},
        {"\"engine\": \"llama.cpp\"", "\"engine\": \"../x\"", "engine"},
        {"0.7.0+dfsg-2", "0.7/0", "engine_version"},
        {"0.7.0+dfsg-2", "", "engine_version"},
        {"/usr/bin/llama-server\"", "usr/bin/llama-server\"", "program"},
        {"\"program\": \"/usr/bin/llama-server\"", "\"program\": \"/usr/../llama-server\"", "program"},
        {"\"complete\": true", "\"complete\": 1", "complete"},
        {"\"usr/lib/x.so.1\"", "\"../x.so.1\"", "path"},
        {"\"usr/lib/x.so.1\"", "\"/x.so.1\"", "path"},
        {"\"usr/lib/x.so.1\"", "\"usr\"", "twice"},
        {"\"kind\": \"link\"", "\"kind\": \"fifo\"", "kind"},
        {"\"mode\": \"0755\"", "\"mode\": \"4755\"", "mode"},
        {"\"mode\": \"0755\"", "\"mode\": \"0758\"", "mode"},
        {"\"mode\": \"0755\"", "\"mode\": 493", "mode"},
        {"\"bytes\": 7", "\"bytes\": -7", "size"},
        {"\"bytes\": 7", "\"bytes\": 8", "changed"},
        {"\"sha256\": \"bbbb", "\"sha256\": \"bbbc", "changed"},
        {"\"sha256\": \"bbbb", "\"sha256\": \"Bbbb", "sha256"},
        {"x.so.1\"\n", "x.so.\\n1\"\n", "control"},
        {"debian:forky", "debian:sid", "changed"},
        {"\"debs\": [", "\"debs\": {\"x\": ", ""},
        {"{", "[", ""},
        {"}", "", ""},
    };
    struct manifest *m = sample(), *back = NULL;
    char *text = text_of(m);
    for (size_t i = 0; i < BASE_COUNT(edits); i++) {
        struct err err = {0};
        char *bad = edited(text, edits[i][0], edits[i][1]);
        int r = manifest_parse(str_of(bad), &back, &err);
        if (r != -EBADMSG && r != -EEXIST)
            fail_msg("edit %zu gave %d", i, r);
        if (!strstr(err.text, edits[i][2]))
            fail_msg("edit %zu: '%s' does not contain '%s'", i, err.text, edits[i][2]);
        free(bad);
    }
    assert_null(back);
    free(text);
    manifest_free(m);
}

static void no_memory(void **state)
{
    (void)state;
#if !FAILING_MALLOC
    skip();
#else
    struct manifest *m = sample();
    char *text = text_of(m);
    long n = 0;
    bool failed = true;
    for (; failed && n < 10000; n++) {
        struct manifest *back = NULL;
        failing_arm(n);
        int r = manifest_parse(str_of(text), &back, NULL);
        if (r == 0)
            manifest_free(back);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_true(r == 0 || r == -ENOMEM || r == -EBADMSG);
        assert_true(failed || r == 0);
    }
    assert_in_range(n, 6, 9999);
    free(text);
    manifest_free(m);
#endif
}

/* ---- apt ---------------------------------------------------------------------------------------------------------- */

static void uris(void **state)
{
    (void)state;
    struct arena *a = arena_new(1 << 20);
    struct apt_list list;
    struct str text = STR("Reading package lists...\nThe following NEW packages will be installed:\n  libc6\n"
                          "'http://deb.debian.org/debian/pool/main/g/glibc/libc6_2.43-7_amd64.deb' libc6_2.43-7_amd64.deb 1866392 SHA256:" SHA_A "\n"
                          "'http://deb.debian.org/debian/pool/main/g/gmp/libgmp10_6.3.0%2bdfsg-5_amd64.deb' libgmp10_2%3a6.3.0+dfsg-5_amd64.deb 559860 SHA256:" SHA_B);
    assert_int_equal(apt_uris_parse(text, a, &list, NULL), 0);
    assert_int_equal(list.n, 2);
    assert_int_equal(list.bytes, 1866392 + 559860);
    assert_string_equal(list.debs[0].file, "libc6_2.43-7_amd64.deb");
    assert_string_equal(list.debs[0].url, "http://deb.debian.org/debian/pool/main/g/glibc/libc6_2.43-7_amd64.deb");
    assert_string_equal(list.debs[1].file, "libgmp10_2%3a6.3.0+dfsg-5_amd64.deb");
    assert_string_equal(list.debs[1].sha256, SHA_B);
    assert_int_equal(list.debs[1].bytes, 559860);
    assert_int_equal(apt_uris_parse(STR("Reading package lists...\n"), a, &list, NULL), 0);
    assert_int_equal(list.n, 0);
    arena_free(a);
}

static void uris_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "'http://x/y.deb' y.deb 10 MD5Sum:d41d8cd98f00b204e9800998ecf8427e",
        "'http://x/y.deb' y.deb 10",
        "'http://x/y.deb' y.deb 10 SHA256:abc",
        "'http://x/y.deb' ../y.deb 10 SHA256:" SHA_A,
        "'http://x/y.deb' a/y.deb 10 SHA256:" SHA_A,
        "'http://x/y.deb' -y.deb 10 SHA256:" SHA_A,
        "'http://x/y.deb' .y.deb 10 SHA256:" SHA_A,
        "'http://x/y.deb' y.exe 10 SHA256:" SHA_A,
        "'http://x/y.deb' y.deb 0 SHA256:" SHA_A,
        "'http://x/y.deb' y.deb 99999999999999999999 SHA256:" SHA_A,
        "'http://x/y.deb' y.deb 99999999999999999 SHA256:" SHA_A,
        "'http://x/y.deb' y.deb -1 SHA256:" SHA_A,
        "'http://x/y.deb y.deb 10 SHA256:" SHA_A,
        "'",
        "''",
    };
    for (size_t i = 0; i < BASE_COUNT(lines); i++) {
        struct arena *a = arena_new(1 << 20);
        struct apt_list list;
        if (apt_uris_parse(str_of(lines[i]), a, &list, NULL) != -EBADMSG)
            fail_msg("taken: %s", lines[i]);
        arena_free(a);
    }
}

static void mirrors(void **state)
{
    (void)state;
    struct arena *a = arena_new(1 << 20);
    struct str text = STR("'https://packages.example/apt/dists/stable/InRelease' x 0 \n"
                          "'http://security.debian.org/debian-security/dists/trixie-security/InRelease' x 0 \n"
                          "'http://snapshot.example/debian/2025/dists/trixie/InRelease' x 0 \n"
                          "'http://mirror.example/debian/dists/trixie/InRelease' x 0 \n"
                          "'http://other.example/debian/dists/trixie/InRelease' x 0 \n");
    assert_string_equal(apt_mirror_parse(text, a), "http://mirror.example/debian");
    assert_string_equal(apt_mirror_parse(STR("'http://snapshot.example/debian/2025/dists/trixie/InRelease' x 0"), a), "http://snapshot.example/debian/2025");
    assert_null(apt_mirror_parse(STR("'http://security.debian.org/debian-security/dists/x/InRelease' x"), a));
    assert_null(apt_mirror_parse(STR("'file:/srv/debian/dists/x/InRelease' x"), a));
    assert_null(apt_mirror_parse(STR("'http://archive.ubuntu.example/ubuntu/dists/x/InRelease' x"), a));
    assert_null(apt_mirror_parse(STR(""), a));
    arena_free(a);
}

/* ---- programs ------------------------------------------------------------------------------------------------------- */

struct program {
    Elf64_Ehdr eh;
    Elf64_Phdr ph;
    char interp[32];
};

static struct program program(void)
{
    struct program p = {.eh = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, 1}, .e_phoff = sizeof(Elf64_Ehdr), .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 1},
                        .ph = {.p_type = PT_INTERP, .p_offset = offsetof(struct program, interp), .p_filesz = 14},
                        .interp = "/lib64/ld-x.so"};
    p.ph.p_filesz = sizeof "/lib64/ld-x.so";
    return p;
}

static void put(int dirfd, const char *path, const void *data, size_t len)
{
    int fd = openat(dirfd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
    close(fd);
}

static void loaders(void **state)
{
    (void)state;
    char dir[] = "/tmp/berth-loader-XXXXXX", found[STORE_PATH_MAX];
    assert_non_null(mkdtemp(dir));
    int fd = os_open_dir(dir, NULL);
    assert_int_equal(mkdirat(fd, "usr", 0755), 0);
    assert_int_equal(mkdirat(fd, "usr/lib", 0755), 0);
    assert_int_equal(mkdirat(fd, "usr/lib/trip", 0755), 0);
    /* absolute links resolve inside the tree */
    assert_int_equal(symlinkat("/usr/lib", fd, "lib64"), 0);
    assert_int_equal(symlinkat("trip/ld-x.so.1", fd, "usr/lib/ld-x.so"), 0);
    struct program p = program();
    put(fd, "prog", &p, sizeof p);
    assert_int_equal(tree_loader(fd, "/prog", found), -ENOENT);
    put(fd, "usr/lib/trip/ld-x.so.1", "x", 1);
    assert_int_equal(tree_loader(fd, "/prog", found), -ENOENT); /* no C library */
    put(fd, "usr/lib/trip/libc.so.6", "x", 1);
    assert_int_equal(tree_loader(fd, "/prog", found), 0);
    assert_string_equal(found, "usr/lib/trip/ld-x.so.1");
    struct program bad[8];
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        bad[i] = p;
    bad[0].eh.e_ident[EI_CLASS] = ELFCLASS32;
    bad[1].eh.e_phoff = UINT64_MAX - 8;
    bad[2].ph.p_filesz = UINT64_MAX;
    bad[3].ph.p_offset = UINT64_MAX - 1;
    bad[4].ph.p_filesz = 1;
    bad[5].eh.e_phentsize = 1;
    bad[6].interp[0] = 'x';
    bad[7].eh.e_phnum = 0;
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        put(fd, "prog", &bad[i], sizeof bad[i]);
        assert_int_equal(tree_loader(fd, "/prog", found), -ENOENT);
    }
    put(fd, "prog", "#!/bin/sh\n", 10);
    assert_int_equal(tree_loader(fd, "/prog", found), -ENOENT);
    close(fd);
    int tmp = os_open_dir("/tmp", NULL);
    assert_int_equal(os_remove_tree(tmp, dir + 5, NULL), 0);
    close(tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(digest_covers), cmocka_unit_test(refuses),  cmocka_unit_test(no_memory),
        cmocka_unit_test(uris),       cmocka_unit_test(uris_refused),  cmocka_unit_test(mirrors),  cmocka_unit_test(loaders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
