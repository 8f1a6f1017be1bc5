/* SPDX-License-Identifier: MIT
 *
 * What a lock says of one file: its own line, or those of the fragments that it was cut into, and how a joined file is proven by them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>

#include "store_aid.h"

#define MEMORY_MAX 65536
#define SHA_OF_HELLO "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03" /* "hello\n" */
#define GIT_OF_HELLO "ce013625030ba8dba906f756967f9e9ca394464a"

static void names(void **state)
{
    uint32_t no = 0, count = 0;
    (void)state;
    assert_true(store_fragment(STR("d/m.gguf.part2of3"), "d/m.gguf", &no, &count));
    assert_int_equal(no, 2);
    assert_int_equal(count, 3);
    static const char *const none[] = {"d/m.gguf", "d/m.gguf.part0of3", "d/m.gguf.part4of3", "d/m.gguf.part1of1", "d/m.gguf.part1of", "d/m.gguf.partof3", "d/m.gguf.part1of3x", "m.gguf.part1of3", "d/m.gguf.part1of99999"};
    for (size_t i = 0; i < BASE_COUNT(none); i++)
        assert_false(store_fragment(str_of(none[i]), "d/m.gguf", &no, &count));
}

static void whole(void **state)
{
    const struct fleet_lock_file files[] = {{.path = "a", .bytes = 6, .sha256 = SHA_OF_HELLO}};
    const struct fleet_lock_model m = {.files = files, .n_files = 1};
    struct arena *a = arena_new(MEMORY_MAX);
    struct store_pin p;
    struct err err;
    (void)state;
    assert_int_equal(store_pin_of(&m, "a", a, &p, &err), 1);
    assert_string_equal(p.want.sha256, SHA_OF_HELLO);
    assert_null(p.parts);
    assert_int_equal(store_pin_of(&m, "b", a, &p, &err), 0);
    assert_null(p.want.sha256);
    assert_int_equal(store_pin_of(NULL, "a", a, &p, &err), 0);
    arena_free(a);
}

/* In the order of their numbers, not of their names. */
static void in_order(void **state)
{
    struct fleet_lock_file files[11];
    char paths[11][32];
    const struct fleet_lock_model m = {.files = files, .n_files = 11}, less = {.files = files, .n_files = 10};
    struct arena *a = arena_new(MEMORY_MAX);
    struct store_pin p, other;
    struct err err;
    (void)state;
    for (unsigned i = 0; i < 11; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "m.part%uof11", i == 0 ? 1 : i < 3 ? 9 + i : i - 1);
        files[i] = (struct fleet_lock_file){.path = paths[i], .bytes = i + 1, .sha256 = SHA_OF_HELLO};
    }
    assert_int_equal(store_pin_of(&m, "m", a, &p, &err), 1);
    assert_int_equal(p.n_parts, 11);
    assert_int_equal(p.want.bytes, 66);
    assert_string_equal(p.parts[1]->path, "m.part2of11");
    assert_string_equal(p.parts[10]->path, "m.part11of11");
    /* one digest is another: so is the sum */
    files[10].sha256 = "0000000000000000000000000000000000000000000000000000000000000000";
    assert_int_equal(store_pin_of(&m, "m", a, &other, &err), 1);
    assert_int_equal(strlen(p.want.git_sha1), 40);
    assert_string_not_equal(p.want.git_sha1, other.want.git_sha1);
    assert_int_equal(store_pin_of(&less, "m", a, &p, &err), 0);
    files[3].bytes = STORE_PAYLOAD_MAX;
    assert_int_equal(store_pin_of(&m, "m", a, &p, &err), -EFBIG);
    files[3].bytes = UINT64_MAX;
    assert_int_equal(store_pin_of(&m, "m", a, &p, &err), -EFBIG);
    /* as many as there must be, but one twice */
    files[3].bytes = 4;
    files[3].path = files[4].path;
    assert_int_equal(store_pin_of(&m, "m", a, &p, &err), -ENOENT);
    arena_free(a);
}

static void proven_by_parts(void **state)
{
    char top[64], state_dir[96], path[96];
    struct fleet_lock_file files[] = {{.path = "m.part1of2", .bytes = 6, .sha256 = SHA_OF_HELLO}, {.path = "m.part2of2", .bytes = 6, .git_sha1 = GIT_OF_HELLO}};
    const struct fleet_lock_model m = {.files = files, .n_files = 2};
    const struct store_verify_options o = {.threads = 1};
    struct arena *a = arena_new(MEMORY_MAX);
    struct os_dirs dirs;
    struct store *s;
    struct store_pin p;
    struct err err;
    (void)state;
    store_aid_open(top, state_dir, &dirs, &s);
    (void)snprintf(path, sizeof path, "%s/m", top);
    for (unsigned wrong = 0; wrong < 2; wrong++) {
        store_aid_put(top, "m", wrong ? "hello\nhellO\n" : "hello\nhello\n", 0644);
        assert_int_equal(store_pin_of(&m, "m", a, &p, &err), 1);
        struct store_check c = {.path = path, .want = p.want, .parts = p.parts, .n_parts = p.n_parts};
        assert_int_equal(store_verify(s, &c, 1, &o, &err), 0);
        assert_int_equal(c.verdict, wrong ? STORE_DAMAGED : STORE_PROVEN);
        assert_int_equal(store_payload_proven(s, path, &p.want), !wrong);
        store_check_release(&c);
    }
    /* the manifest is of these fragments and of no others */
    files[0].sha256 = "0000000000000000000000000000000000000000000000000000000000000000";
    assert_int_equal(store_pin_of(&m, "m", a, &p, &err), 1);
    assert_false(store_payload_proven(s, path, &p.want));
    arena_free(a);
    store_aid_close(top, s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(whole), cmocka_unit_test(in_order), cmocka_unit_test(proven_by_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
