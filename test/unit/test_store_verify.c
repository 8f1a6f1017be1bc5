/* SPDX-License-Identifier: MIT
 *
 * Payload files: their manifests, what verification finds and where, what a repair may write to, and what is adopted. Files are sparse where they are large, so that three segments cost nothing on disk.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store_aid.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define SEG STORE_SEGMENT_BYTES
#define BIG (2 * SEG + 1000)

struct world {
    char top[64], state[96], path[128];
    struct os_dirs dirs;
    struct store *store;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    store_aid_open(w->top, w->state, &w->dirs, &w->store);
    snprintf(w->path, sizeof w->path, "%s/m.gguf", w->top);
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

/* A file of so many bytes: zeros, with a mark in each segment. */
static void make(const char *path, uint64_t bytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    for (uint64_t at = 0; at + 8 <= bytes; at += SEG)
        assert_int_equal(pwrite(fd, "markmark", 8, (off_t)at), 8);
    close(fd);
}

static void poke(const char *path, uint64_t at, const char *byte)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, byte, 1, (off_t)at), 1);
    close(fd);
}

static struct store_check verify_with(struct world *w, const char *path, struct fleet_lock_file want, struct store_verify_options o)
{
    struct store_check c = {.path = path, .want = want};
    struct err err;
    if (store_verify(w->store, &c, 1, &o, &err) < 0)
        fail_msg("%s", err.text);
    return c;
}

static struct store_check verify(struct world *w, const char *path, struct fleet_lock_file want)
{
    return verify_with(w, path, want, (struct store_verify_options){.threads = 2});
}

static const char *sha256_of(const char *path)
{
    static char hex[OS_SHA256_HEX];
    assert_int_equal(os_digest_file(AT_FDCWD, path, hex, NULL, NULL), 0);
    return hex;
}

static void test_segments(void **state)
{
    (void)state;
    assert_int_equal(store_segments(0), 0);
    assert_int_equal(store_segments(1), 1);
    assert_int_equal(store_segments(SEG), 1);
    assert_int_equal(store_segments(SEG + 1), 2);
    assert_int_equal(store_states(0), 0);
    assert_int_equal(store_states(SEG), 0);
    assert_int_equal(store_states(SEG + 1), 1);
    assert_int_equal(store_states(3 * SEG), 2);
}

static void test_manifest(void **state)
{
    struct world *w = *state;
    struct store_manifest m = {.bytes = BIG, .n_states = 2}, back;
    struct err err;
    assert_int_equal(store_manifest_load(w->store, w->path, &back, &err), -ENOENT);
    m.states = calloc(2, sizeof *m.states);
    memset(m.states[0], 1, sizeof m.states[0]);
    memset(m.states[1], 2, sizeof m.states[1]);
    memset(m.sha256, 3, sizeof m.sha256);
    memset(m.git_sha1, 4, sizeof m.git_sha1);
    assert_int_equal(store_manifest_save(w->store, w->path, &m, &err), -ENOENT);
    make(w->path, BIG - 1);
    assert_int_equal(store_manifest_save(w->store, w->path, &m, &err), -EBADMSG);
    make(w->path, BIG);
    assert_int_equal(store_manifest_save(w->store, w->path, &m, &err), 0);
    assert_int_equal(store_manifest_load(w->store, w->path, &back, &err), 0);
    assert_int_equal(back.bytes, BIG);
    assert_int_equal(back.n_states, 2);
    assert_memory_equal(back.states, m.states, 2 * sizeof *m.states);
    assert_memory_equal(back.sha256, m.sha256, sizeof m.sha256);
    assert_memory_equal(back.git_sha1, m.git_sha1, sizeof m.git_sha1);
    store_manifest_release(&back);
    m.n_states = 1;
    assert_int_equal(store_manifest_save(w->store, w->path, &m, &err), -EINVAL);
    store_manifest_release(&m);
}

/* Every cut and every changed byte of a manifest is refused. */
static void test_manifest_hostile(void **state)
{
    (void)state;
    uint8_t states[2][OS_SHA256_BYTES] = {{1}, {2}};
    struct store_manifest m = {.bytes = BIG, .n_states = 2, .states = states};
    struct stamp stamp = {.inode = 2, .bytes = BIG, .mtime_ns = 3, .ctime_ns = 4};
    base_autobuf struct buf text = BUF_INIT(4096);
    struct segments g;
    struct err err;
    segments_text(&m, &stamp, "/srv/m.gguf", &text);
    assert_int_equal(segments_parse(buf_str(&text), &g, &err), 0);
    assert_string_equal(g.path, "/srv/m.gguf");
    assert_true(stamp_same(&g.stamp, &stamp));
    segments_release(&g);
    for (size_t n = 0; n < text.len; n++) {
        assert_int_equal(segments_parse((struct str){text.ptr, n}, &g, &err), -EBADMSG);
        text.ptr[n] ^= 1;
        assert_int_equal(segments_parse(buf_str(&text), &g, &err), -EBADMSG);
        text.ptr[n] ^= 1;
    }
    buf_add_char(&text, 0);
    assert_int_equal(segments_parse(buf_str(&text), &g, &err), -EBADMSG);
}

static void test_record_then_prove(void **state)
{
    struct world *w = *state;
    make(w->path, BIG);
    struct store_check c = verify(w, w->path, (struct fleet_lock_file){0});
    assert_int_equal(c.verdict, STORE_RECORDED);
    assert_int_equal(c.bytes, BIG);
    char hex[OS_SHA256_HEX];
    assert_string_equal(os_hex(c.sha256, sizeof c.sha256, hex), sha256_of(w->path));
    c = verify(w, w->path, (struct fleet_lock_file){0});
    assert_int_equal(c.verdict, STORE_UNCHANGED);
    c = verify_with(w, w->path, (struct fleet_lock_file){0}, (struct store_verify_options){.full = true});
    assert_int_equal(c.verdict, STORE_PROVEN);
    assert_string_equal(os_hex(c.sha256, sizeof c.sha256, hex), sha256_of(w->path));
}

/* Touched and unpinned: damaged, until its owner says that it is what it is now. */
static void test_record_again(void **state)
{
    struct world *w = *state;
    make(w->path, 1000);
    assert_int_equal(verify(w, w->path, (struct fleet_lock_file){0}).verdict, STORE_RECORDED);
    poke(w->path, 500, "X");
    struct store_check c = verify(w, w->path, (struct fleet_lock_file){0});
    assert_int_equal(c.verdict, STORE_DAMAGED);
    assert_int_equal(c.want.bytes, 1000);
    store_check_release(&c);
    c = verify_with(w, w->path, (struct fleet_lock_file){0}, (struct store_verify_options){.record = true});
    assert_int_equal(c.verdict, STORE_RECORDED);
    assert_int_equal(verify(w, w->path, (struct fleet_lock_file){0}).verdict, STORE_UNCHANGED);
}

static void test_pinned(void **state)
{
    struct world *w = *state;
    make(w->path, BIG);
    const struct fleet_lock_file want = {.bytes = BIG, .sha256 = sha256_of(w->path)};
    assert_false(store_payload_proven(w->store, w->path, &want));
    struct store_check c = verify(w, w->path, want);
    assert_int_equal(c.verdict, STORE_PROVEN);
    assert_true(store_payload_proven(w->store, w->path, &want));
    c = verify(w, w->path, want);
    assert_int_equal(c.verdict, STORE_UNCHANGED);
    const struct fleet_lock_file other = {.bytes = BIG, .sha256 = "0000000000000000000000000000000000000000000000000000000000000000"};
    assert_false(store_payload_proven(w->store, w->path, &other));
    c = verify(w, w->path, other);
    assert_int_equal(c.verdict, STORE_DAMAGED);
    assert_false(c.located);
    assert_non_null(strstr(c.why.text, "has other content"));
    const struct fleet_lock_file longer = {.bytes = BIG + 1, .sha256 = other.sha256};
    c = verify(w, w->path, longer);
    assert_int_equal(c.verdict, STORE_DAMAGED);
    assert_string_equal(c.why.text, "has 33555432 bytes, not 33555433");
    /* and the proof of before still stands */
    assert_true(store_payload_proven(w->store, w->path, &want));
    store_check_release(&c);
}

static void test_git_sha1(void **state)
{
    struct world *w = *state;
    int fd = open(w->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, "hello\n", 6), 6);
    close(fd);
    const struct fleet_lock_file want = {.bytes = 6, .git_sha1 = "ce013625030ba8dba906f756967f9e9ca394464a"}, wrong = {.bytes = 6, .git_sha1 = "ce013625030ba8dba906f756967f9e9ca394464b"};
    assert_int_equal(verify(w, w->path, wrong).verdict, STORE_DAMAGED);
    assert_int_equal(verify(w, w->path, want).verdict, STORE_PROVEN);
    assert_true(store_payload_proven(w->store, w->path, &want));
    assert_false(store_payload_proven(w->store, w->path, &wrong));
    assert_int_equal(verify(w, w->path, want).verdict, STORE_UNCHANGED);
}

/* One flipped byte in each place of a segment is found in that segment, whoever set the times back. */
static void test_damage_located(void **state)
{
    struct world *w = *state;
    static const uint64_t places[] = {0, 8, SEG - 1, SEG, 2 * SEG - 1, 2 * SEG, BIG - 1};
    make(w->path, BIG);
    const struct fleet_lock_file want = {.bytes = BIG, .sha256 = sha256_of(w->path)};
    assert_int_equal(verify(w, w->path, want).verdict, STORE_PROVEN);
    struct stat st;
    assert_int_equal(stat(w->path, &st), 0);
    for (size_t i = 0; i < BASE_COUNT(places); i++) {
        poke(w->path, places[i], "X");
        const struct timespec times[2] = {st.st_atim, st.st_mtim};
        assert_int_equal(utimensat(AT_FDCWD, w->path, times, 0), 0);
        struct store_check c = verify(w, w->path, want);
        assert_int_equal(c.verdict, STORE_DAMAGED);
        assert_true(c.located);
        assert_int_equal(c.n_segments, 1);
        assert_int_equal(c.segments[0], places[i] / SEG);
        store_check_release(&c);
        poke(w->path, places[i], places[i] % SEG == 0 ? "m" : "\0");
        assert_int_equal(verify(w, w->path, want).verdict, STORE_PROVEN);
    }
}

/* What goes around the file system is found by a full verification, and from then on the stamp has no credit. */
static void test_full_finds_silent_damage(void **state)
{
    struct world *w = *state;
    make(w->path, BIG);
    const struct fleet_lock_file want = {.bytes = BIG, .sha256 = sha256_of(w->path)};
    assert_int_equal(verify(w, w->path, want).verdict, STORE_PROVEN);
    poke(w->path, SEG + 5, "X");
    struct segments g;
    struct stat st;
    assert_int_equal(segments_load(w->store, w->path, &g, NULL), 0);
    assert_int_equal(stat(w->path, &st), 0);
    struct stamp now = stamp_of(&st);
    assert_int_equal(segments_save(w->store, w->path, &g.m, &now, NULL), 0); /* as if the disk had done it */
    segments_release(&g);
    assert_int_equal(verify(w, w->path, want).verdict, STORE_UNCHANGED);
    struct store_check c = verify_with(w, w->path, want, (struct store_verify_options){.full = true});
    assert_int_equal(c.verdict, STORE_DAMAGED);
    assert_int_equal(c.n_segments, 1);
    assert_int_equal(c.segments[0], 1);
    store_check_release(&c);
    assert_false(store_payload_proven(w->store, w->path, &want));
    c = verify(w, w->path, want);
    assert_int_equal(c.verdict, STORE_DAMAGED);
    store_check_release(&c);
}

static void test_wrong_length(void **state)
{
    struct world *w = *state;
    make(w->path, BIG);
    const struct fleet_lock_file want = {.bytes = BIG, .sha256 = sha256_of(w->path)};
    assert_int_equal(verify(w, w->path, want).verdict, STORE_PROVEN);
    assert_int_equal(truncate(w->path, SEG + 10), 0);
    struct store_check c = verify(w, w->path, want);
    assert_int_equal(c.verdict, STORE_DAMAGED);
    assert_true(c.located);
    assert_int_equal(c.n_segments, 2);
    assert_int_equal(c.segments[0], 1);
    assert_int_equal(c.segments[1], 2);
    store_check_release(&c);
    make(w->path, BIG);
    assert_int_equal(truncate(w->path, BIG + 1), 0);
    c = verify(w, w->path, want);
    assert_int_equal(c.verdict, STORE_DAMAGED);
    assert_true(c.located);
    assert_int_equal(c.n_segments, 0);
    store_check_release(&c);
    assert_int_equal(truncate(w->path, 0), 0);
    c = verify(w, w->path, want);
    assert_int_equal(c.n_segments, 3);
    store_check_release(&c);
}

static void test_not_a_file(void **state)
{
    struct world *w = *state;
    assert_int_equal(verify(w, w->path, (struct fleet_lock_file){0}).verdict, STORE_MISSING);
    assert_int_equal(verify(w, w->top, (struct fleet_lock_file){0}).verdict, STORE_UNREADABLE);
    assert_int_equal(mkfifo(w->path, 0600), 0);
    assert_int_equal(verify(w, w->path, (struct fleet_lock_file){0}).verdict, STORE_UNREADABLE);
    assert_int_equal(unlink(w->path), 0);
    make(w->path, 0);
    struct store_check c = verify(w, w->path, (struct fleet_lock_file){.bytes = 0, .sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"});
    assert_int_equal(c.verdict, STORE_PROVEN);
}

static void test_many(void **state)
{
    struct world *w = *state;
    char paths[20][128];
    struct store_check c[20] = {{0}};
    for (size_t i = 0; i < BASE_COUNT(c); i++) {
        snprintf(paths[i], sizeof paths[i], "%s/f%02zu", w->top, i);
        make(paths[i], i == 7 ? BIG : 1000 * i + 8);
        c[i].path = paths[i];
    }
    assert_int_equal(unlink(paths[3]), 0);
    const struct store_verify_options o = {.threads = 3};
    for (unsigned round = 0; round < 3; round++) {
        if (round == 2)
            poke(paths[7], SEG + 1, "X");
        assert_int_equal(store_verify(w->store, c, BASE_COUNT(c), &o, NULL), 0);
        for (size_t i = 0; i < BASE_COUNT(c); i++) {
            enum store_verdict want = i == 3 ? STORE_MISSING : round == 0 ? STORE_RECORDED : round == 2 && i == 7 ? STORE_DAMAGED : STORE_UNCHANGED;
            assert_int_equal(c[i].verdict, want);
        }
    }
    assert_int_equal(c[7].n_segments, 1);
    assert_int_equal(c[7].segments[0], 1);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        store_check_release(&c[i]);
    assert_int_equal(store_verify(w->store, NULL, 0, &o, NULL), 0);
}

static void nothing(int sig)
{
    (void)sig;
}

static void test_interrupted(void **state)
{
    struct world *w = *state;
    make(w->path, BIG);
    struct store_check c = {.path = w->path};
    const struct store_verify_options o = {.threads = 1};
    void (*old)(int) = signal(SIGTERM, nothing);
    os_interrupt_begin();
    raise(SIGTERM);
    assert_int_equal(store_verify(w->store, &c, 1, &o, NULL), -EINTR);
    os_interrupt_end();
    signal(SIGTERM, old);
    store_check_release(&c);
    assert_int_equal(verify(w, w->path, (struct fleet_lock_file){0}).verdict, STORE_RECORDED);
}

/* ---- repair --------------------------------------------------------------------------------------------------------- */

static char byte_at(const char *path, uint64_t at)
{
    char c = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
    close(fd);
    return c;
}

static void test_repair_in_place(void **state)
{
    struct world *w = *state;
    make(w->path, BIG);
    poke(w->path, SEG, "X");
    struct stat before, after;
    assert_int_equal(stat(w->path, &before), 0);
    struct store_repair r;
    assert_int_equal(store_repair_begin(w->path, BIG, &r, NULL), 0);
    assert_null(r.copy);
    assert_int_equal(pwrite(r.fd, "m", 1, SEG), 1);
    assert_int_equal(store_repair_end(&r, true, NULL), 0);
    assert_int_equal(stat(w->path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(byte_at(w->path, SEG), 'm');
}

/* A file with another name: that other one keeps its bytes, whatever becomes of the repair. */
static void test_repair_linked(void **state)
{
    struct world *w = *state;
    char other[160];
    snprintf(other, sizeof other, "%s/other", w->top);
    make(w->path, BIG);
    poke(w->path, SEG, "X");
    assert_int_equal(link(w->path, other), 0);
    for (int keep = 0; keep < 2; keep++) {
        struct store_repair r;
        assert_int_equal(store_repair_begin(w->path, BIG + 5, &r, NULL), 0);
        assert_non_null(r.copy);
        base_autofree char *copy = str_dup(str_of(r.copy));
        assert_int_equal(pwrite(r.fd, "m", 1, SEG), 1);
        assert_int_equal(store_repair_end(&r, keep, NULL), 0);
        assert_int_equal(access(copy, F_OK), -1);
        assert_int_equal(byte_at(other, SEG), 'X');
        assert_int_equal(byte_at(w->path, SEG), keep ? 'm' : 'X');
    }
    struct stat st;
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_nlink, 1);
    assert_int_equal(st.st_size, BIG);
    assert_int_equal(stat(w->path, &st), 0);
    assert_int_equal(st.st_size, BIG + 5);
}

/* ---- adoption ------------------------------------------------------------------------------------------------------- */

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OLDER "1123456789abcdef0123456789abcdef01234567"

static void place(struct world *w, const char *below, uint64_t bytes, char ret[256])
{
    base_autofree char *dir = NULL;
    snprintf(ret, 256, "%s/%s", w->top, below);
    dir = str_dup(str_of(ret));
    *strrchr(dir, '/') = '\0';
    assert_int_equal(os_make_dirs(dir, 0755, NULL), 0);
    make(ret, bytes);
}

static void test_adopt(void **state)
{
    struct world *w = *state;
    char cache[128], blob[256], mine[256];
    const struct fleet_model m = {.name = "m", .source = FLEET_MODEL_HF, .source_arg = "org/repo", .revision = "main", .commit = COMMIT, .weights = "sub/m.gguf"};
    make(w->path, BIG);
    const struct fleet_lock_file f = {.path = "sub/m.gguf", .bytes = BIG, .sha256 = sha256_of(w->path)};
    struct err err;
    snprintf(cache, sizeof cache, "%s/cache", w->top);
    assert_int_equal(setenv("HF_HUB_CACHE", cache, 1), 0);
    snprintf(mine, sizeof mine, "%s/store/payloads/hf/org/repo/" COMMIT "/sub/m.gguf", w->state);

    assert_int_equal(store_adopt(w->store, &m, &f, NULL, &err), -ENOENT);
    /* right in size and name, wrong in content: not taken */
    char below[160];
    snprintf(below, sizeof below, "cache/models--org--repo/blobs/%s", f.sha256);
    place(w, below, BIG, blob);
    poke(blob, SEG + 3, "X");
    assert_int_equal(store_adopt(w->store, &m, &f, NULL, &err), -ENOENT);
    assert_int_equal(access(mine, F_OK), -1);
    make(blob, BIG);
    assert_int_equal(store_adopt(w->store, &m, &f, NULL, &err), 0);
    assert_true(store_payload_proven(w->store, mine, &f));
    assert_true(store_payload_proven(w->store, blob, &f));
    assert_string_equal(sha256_of(mine), sha256_of(blob));

    /* a damaged one is repaired without touching the cache's */
    poke(mine, 9, "X");
    char was = byte_at(blob, 9);
    struct store_repair r;
    assert_int_equal(store_repair_begin(mine, BIG, &r, NULL), 0);
    assert_int_equal(pwrite(r.fd, "Y", 1, 9), 1);
    assert_int_equal(store_repair_end(&r, true, NULL), 0);
    assert_int_equal(byte_at(blob, 9), was);
    assert_int_equal(byte_at(mine, 9), 'Y');
    assert_int_equal(unsetenv("HF_HUB_CACHE"), 0);
}

static void test_adopt_older_commit(void **state)
{
    struct world *w = *state;
    char old[256], mine[256], below[] = "state/store/payloads/hf/org/repo/" OLDER "/m.gguf";
    const struct fleet_model m = {.name = "m", .source = FLEET_MODEL_HF, .source_arg = "org/repo", .revision = "main", .commit = COMMIT, .weights = "m.gguf"};
    assert_int_equal(setenv("HF_HUB_CACHE", "/nonexistent", 1), 0);
    place(w, below, 1000, old);
    const struct fleet_lock_file f = {.path = "m.gguf", .bytes = 1000, .sha256 = sha256_of(old)};
    snprintf(mine, sizeof mine, "%s/store/payloads/hf/org/repo/" COMMIT "/m.gguf", w->state);
    assert_int_equal(store_adopt(w->store, &m, &f, NULL, NULL), 0);
    assert_true(store_payload_proven(w->store, mine, &f));
    assert_true(store_payload_proven(w->store, old, &f));
    struct fleet_model unlocked = m;
    unlocked.commit = NULL;
    assert_int_equal(store_adopt(w->store, &unlocked, &f, NULL, NULL), -ENOENT);
    assert_int_equal(unsetenv("HF_HUB_CACHE"), 0);
}

static void test_space(void **state)
{
    struct world *w = *state;
    struct err err;
    char path[128];
    snprintf(path, sizeof path, "%s/not/there/yet", w->top);
    assert_int_equal(store_space_check(path, 1, &err), 0);
    assert_int_equal(store_space_check(path, UINT64_MAX / 2, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "make room for"));
    assert_non_null(strstr(err.text, w->top));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_segments),       TEST(test_manifest),   TEST(test_manifest_hostile), TEST(test_record_then_prove),        TEST(test_record_again), TEST(test_pinned),
        TEST(test_git_sha1),       TEST(test_damage_located), TEST(test_full_finds_silent_damage), TEST(test_wrong_length), TEST(test_not_a_file),
        TEST(test_many),           TEST(test_interrupted), TEST(test_repair_in_place), TEST(test_repair_linked),            TEST(test_adopt),
        TEST(test_adopt_older_commit), TEST(test_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
