/* SPDX-License-Identifier: MIT
 *
 * String views, UTF-8, numbers in text, and the nearest known word.
 */
#include <base/base.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_eq(void **state)
{
    (void)state;
    assert_true(str_eq(STR("ab"), STR("ab")));
    assert_false(str_eq(STR("ab"), STR("abc")));
    assert_false(str_eq(STR("ab"), STR("aB")));
    assert_true(str_eq(str_of(NULL), STR("")));
    assert_true(str_eq_c(STR("x"), "x"));
    assert_true(str_eq_c(str_of(NULL), NULL));
    assert_true(str_eq_nocase(STR("Content-LENGTH"), STR("content-length")));
    assert_false(str_eq_nocase(STR("a["), STR("a{"))); /* 0x20 apart, but no letters */
    assert_false(str_eq_nocase(STR("\xC4"), STR("\xE4")));
}

static void test_starts_ends(void **state)
{
    (void)state;
    assert_true(str_starts(STR("hf:x"), STR("hf:")));
    assert_false(str_starts(STR("hf"), STR("hf:")));
    assert_true(str_starts(STR("x"), STR("")));
    assert_true(str_ends(STR("a.gguf"), STR(".gguf")));
    assert_false(str_ends(STR("gguf"), STR(".gguf")));
    assert_true(str_ends(str_of(NULL), STR("")));
}

static void test_trim(void **state)
{
    (void)state;
    assert_true(str_eq_c(str_trim(STR(" \t a b\r\n")), "a b"));
    assert_int_equal(str_trim(STR(" \n ")).len, 0);
    assert_int_equal(str_trim(str_of(NULL)).len, 0);
    assert_int_equal(str_trim(STR("\v")).len, 1);
}

static void test_find(void **state)
{
    (void)state;
    assert_int_equal(str_find_char(STR("abcb"), 'b'), 1);
    assert_int_equal(str_find_char(STR("abc"), 'z'), -1);
    assert_int_equal(str_find_char(str_of(NULL), 'z'), -1);
    assert_int_equal(str_find(STR("aabab"), STR("ab")), 1);
    assert_int_equal(str_find(STR("a\0b"), STR("b")), 2);
    assert_int_equal(str_find(STR("ab"), STR("abc")), -1);
    assert_int_equal(str_find(str_of(NULL), STR("a")), -1);
}

static void test_split(void **state)
{
    (void)state;
    struct str s = STR("a,,b,");
    assert_true(str_eq_c(str_split(&s, ','), "a"));
    assert_true(str_eq_c(str_split(&s, ','), ""));
    assert_true(str_eq_c(str_split(&s, ','), "b"));
    assert_non_null(s.ptr);
    assert_true(str_eq_c(str_split(&s, ','), ""));
    assert_null(s.ptr);
    s = STR("one");
    assert_true(str_eq_c(str_split(&s, ','), "one"));
    assert_null(s.ptr);
    assert_int_equal(s.len, 0);
}

static void test_dup(void **state)
{
    (void)state;
    base_autofree char *copy = str_dup(STR("a\0b"));
    assert_non_null(copy);
    assert_memory_equal(copy, "a\0b", 4);
    base_autofree char *empty = str_dup(str_of(NULL));
    assert_string_equal(empty, "");
    assert_null(str_dup((struct str){"x", SIZE_MAX}));
    char *taken = base_take_ptr(copy);
    assert_null(copy);
    free(taken);
}

static void test_to_u64(void **state)
{
    (void)state;
    uint64_t n = 7;
    assert_int_equal(str_to_u64(STR("0"), &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(str_to_u64(STR("18446744073709551615"), &n), 0);
    assert_true(n == UINT64_MAX);
    n = 7;
    assert_int_equal(str_to_u64(STR("18446744073709551616"), &n), -ERANGE);
    assert_int_equal(str_to_u64(STR("99999999999999999999999"), &n), -ERANGE);
    assert_int_equal(str_to_u64(STR("99999999999999999999999x"), &n), -EINVAL);
    assert_int_equal(str_to_u64(STR(""), &n), -EINVAL);
    assert_int_equal(str_to_u64(STR("-1"), &n), -EINVAL);
    assert_int_equal(str_to_u64(STR("+1"), &n), -EINVAL);
    assert_int_equal(str_to_u64(STR(" 1"), &n), -EINVAL);
    assert_int_equal(str_to_u64(STR("1\0"), &n), -EINVAL);
    assert_int_equal(n, 7);
}

static void test_utf8(void **state)
{
    (void)state;
    assert_true(str_is_utf8(str_of(NULL)));
    assert_true(str_is_utf8(STR("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80")));
    assert_true(str_is_utf8(STR("\xF4\x8F\xBF\xBF")));
    static const struct str bad[] = {
        STR("a\0b"),             /* NUL */
        STR("\xC0\x80"),         /* overlong NUL */
        STR("\xC1\xBF"),         /* overlong */
        STR("\xE0\x9F\xBF"),     /* overlong */
        STR("\xF0\x8F\xBF\xBF"), /* overlong */
        STR("\xED\xA0\x80"),     /* surrogate */
        STR("\xF4\x90\x80\x80"), /* over U+10FFFF */
        STR("\xF8\x88\x80\x80\x80"),
        STR("\x80"),
        STR("\xC3"),
        STR("\xE2\x82"),
        STR("\xC3\x28"),
        STR("\xFF"),
    };
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_false(str_is_utf8(bad[i]));
    uint32_t point = 0;
    assert_int_equal(str_utf8_decode(STR("\xE2\x82\xAC!"), &point), 3);
    assert_int_equal(point, 0x20AC);
    assert_int_equal(str_utf8_decode(STR(""), &point), 0);
}

static const char *nearest(const char *word)
{
    static const char *const keys[] = {"port", "context", "prompt-cache", "kv", "", "slots", "draft-max", "ubatch"};
    return str_nearest(str_of(word), keys, BASE_COUNT(keys));
}

static void test_nearest(void **state)
{
    (void)state;
    assert_string_equal(nearest("prot"), "port"); /* neighbours swapped: one edit */
    assert_string_equal(nearest("slot"), "slots");
    assert_string_equal(nearest("contxt"), "context");
    assert_string_equal(nearest("cnotxet"), "context"); /* two edits of seven letters */
    assert_string_equal(nearest("Prompt_Cache"), "prompt-cache");
    assert_string_equal(nearest("promptCache"), "prompt-cache");
    assert_string_equal(nearest("draftmax"), "draft-max");
    assert_string_equal(nearest("K_V"), "kv");
    assert_string_equal(nearest("prompt"), "prompt-cache");
    assert_string_equal(nearest("draft"), "draft-max");
    assert_null(nearest("con"));     /* too short to be one's beginning */
    assert_null(nearest("kw"));      /* one edit of two letters is no misspelling */
    assert_null(nearest("batches")); /* three edits */
    assert_null(nearest(""));
    assert_null(nearest("---"));
    assert_null(nearest("a-word-much-longer-than-any-key-that-could-ever-be-meant-by-it-really"));
    assert_null(str_nearest(STR("port"), NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eq),     cmocka_unit_test(test_starts_ends), cmocka_unit_test(test_trim),
        cmocka_unit_test(test_find),   cmocka_unit_test(test_split),       cmocka_unit_test(test_dup),
        cmocka_unit_test(test_to_u64), cmocka_unit_test(test_utf8),        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests_name("base str", tests, NULL, NULL);
}
