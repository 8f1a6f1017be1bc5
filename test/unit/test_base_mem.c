/* SPDX-License-Identifier: MIT
 *
 * Buffers and arenas: content, ceilings, and each allocation failing in turn.
 */
#include <base/base.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Allocations that succeed before one fails; negative: all succeed. */
static int allocations_left = -1;

static bool may_allocate(void)
{
    if (allocations_left > 0)
        allocations_left--;
    else if (allocations_left == 0)
        return false;
    return true;
}

static void *failing_malloc(size_t size)
{
    return may_allocate() ? malloc(size) : NULL;
}

static void *failing_calloc(size_t n, size_t size)
{
    return may_allocate() ? calloc(n, size) : NULL;
}

static void *failing_realloc(void *p, size_t size)
{
    return may_allocate() ? realloc(p, size) : NULL;
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#include "../../src/base/buf.c"
#include "../../src/base/arena.c"
#undef malloc
#undef calloc
#undef realloc

static int reset(void **state)
{
    (void)state;
    allocations_left = -1;
    return 0;
}

/* ---- buf ----------------------------------------------------------------------------------------- */

static void test_buf_add(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(100);
    assert_null(b.ptr);
    assert_int_equal(buf_str(&b).len, 0);
    buf_add_c(&b, "");
    assert_string_equal(b.ptr, "");
    buf_add_c(&b, "ab");
    buf_add_str(&b, STR("c"));
    buf_add_char(&b, 'd');
    buf_addf(&b, "%d-%s", 42, "x");
    assert_string_equal(b.ptr, "abcd42-x");
    assert_int_equal(b.len, 8);
    assert_int_equal(buf_status(&b), 0);
    buf_drop_front(&b, 4);
    assert_string_equal(b.ptr, "42-x");
    assert_int_equal(b.len, 4);
    buf_drop_front(&b, 4);
    assert_string_equal(b.ptr, "");
    assert_int_equal(b.len, 0);
    buf_add_c(&b, "z");
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.ptr, "");
    buf_release(&b);
    assert_null(b.ptr);
    assert_int_equal(b.max, 100);
    buf_add_c(&b, "again");
    assert_string_equal(b.ptr, "again");
}

static void test_buf_ceiling(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(4);
    buf_add_c(&b, "abcd");
    assert_int_equal(buf_status(&b), 0);
    buf_add_c(&b, "");
    assert_int_equal(buf_status(&b), 0);
    buf_add_char(&b, 'e');
    assert_int_equal(buf_status(&b), -E2BIG);
    assert_string_equal(b.ptr, "abcd");
    buf_add_c(&b, "");
    assert_null(buf_room(&b, 0));
    assert_null(buf_take(&b));
    buf_clear(&b);
    buf_addf(&b, "%s", "abcde");
    assert_int_equal(buf_status(&b), -E2BIG);
    assert_string_equal(b.ptr, "");
    buf_clear(&b);
    buf_addf(&b, "%s", "abcd");
    assert_int_equal(buf_status(&b), 0);
    assert_string_equal(b.ptr, "abcd");
    base_autobuf struct buf none = BUF_INIT(0);
    buf_add_char(&none, 'x');
    assert_int_equal(buf_status(&none), -E2BIG);
    base_autobuf struct buf all = BUF_INIT(SIZE_MAX);
    assert_null(buf_room(&all, SIZE_MAX));
    assert_int_equal(buf_status(&all), -E2BIG);
    buf_clear(&all);
    buf_addf(&all, "%s", "fits");
    assert_string_equal(all.ptr, "fits");
}

/* The memory stays near what was asked for, also when the content comes byte by byte. */
static void test_buf_growth(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(10000);
    for (unsigned i = 0; i < 10000; i++)
        buf_add_char(&b, (char)('a' + i % 26));
    assert_int_equal(buf_status(&b), 0);
    assert_int_equal(b.len, 10000);
    assert_true(b.cap <= 10001);
    assert_int_equal(b.ptr[9999], 'a' + 9999 % 26);
    char *room = NULL;
    buf_clear(&b);
    room = buf_room(&b, 5);
    assert_non_null(room);
    memcpy(room, "hello", 5);
    buf_grew(&b, 5);
    assert_string_equal(b.ptr, "hello");
}

static void test_buf_printf_grows(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(4096);
    for (unsigned i = 0; i < 200; i++)
        buf_addf(&b, "%03u ", i);
    assert_int_equal(b.len, 800);
    assert_memory_equal(b.ptr + 796, "199 ", 5);
}

static void test_buf_take(void **state)
{
    (void)state;
    struct buf b = BUF_INIT(100);
    base_autofree char *empty = buf_take(&b);
    assert_string_equal(empty, "");
    buf_add_c(&b, "text");
    base_autofree char *text = buf_take(&b);
    assert_string_equal(text, "text");
    assert_null(b.ptr);
    assert_int_equal(b.len, 0);
}

static const char *printable(struct buf *b, struct str s, size_t max)
{
    buf_clear(b);
    buf_add_printable(b, s, max);
    assert_int_equal(buf_status(b), 0);
    return b->ptr ? b->ptr : "";
}

static void test_buf_printable(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(1000);
    assert_string_equal(printable(&b, STR("plain \xC3\xA4"), 100), "plain \xC3\xA4");
    assert_string_equal(printable(&b, STR("a\033[2J\nb\0"), 100), "a\\x1b[2J\\x0ab\\x00");
    assert_string_equal(printable(&b, STR("\x7F\xC2\x9B"), 100), "\\x7f\\xc2\\x9b");
    assert_string_equal(printable(&b, STR("\xFFx\xE2\x82"), 100), "\\xffx\\xe2\\x82");
    assert_string_equal(printable(&b, STR("a\xE2\x80\xAE" "b"), 100), "a\\xe2\\x80\\xae" "b"); /* right-to-left override */
    assert_string_equal(printable(&b, STR("\xEF\xBB\xBFx"), 100), "\\xef\\xbb\\xbfx");
    assert_string_equal(printable(&b, STR("abc"), 3), "abc");
    assert_string_equal(printable(&b, STR("abcd"), 3), "abc...");
    assert_string_equal(printable(&b, STR("\xC3\xA4\xC3\xA4\xC3\xA4"), 2), "\xC3\xA4\xC3\xA4...");
    assert_string_equal(printable(&b, STR("a\n"), 4), "a...");
    assert_string_equal(printable(&b, STR("x"), 0), "...");
    assert_string_equal(printable(&b, str_of(NULL), 0), "");
}

static void test_buf_fail(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(100);
    buf_add_c(&b, "a");
    buf_fail(&b, 0);
    assert_int_equal(buf_status(&b), 0);
    buf_fail(&b, -ENOMEM);
    buf_fail(&b, -E2BIG);
    buf_add_c(&b, "b");
    assert_int_equal(buf_status(&b), -ENOMEM);
    assert_string_equal(b.ptr, "a");
}

static void test_buf_quoted(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(100);
    buf_add_quoted(&b, STR("a\"b\\c\n\t\x7f\xC3\xA4"));
    assert_string_equal(b.ptr, "\"a\\\"b\\\\c\\n\\u0009\\u007f\xC3\xA4\"");
    buf_clear(&b);
    buf_add_quoted(&b, str_of(NULL));
    assert_string_equal(b.ptr, "\"\"");
}

static void test_buf_nomem(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(100000);
    allocations_left = 0;
    buf_add_c(&b, "x");
    assert_int_equal(buf_status(&b), -ENOMEM);
    assert_null(buf_take(&b));
    buf_clear(&b);
    assert_null(buf_take(&b));
    allocations_left = 1;
    buf_add_c(&b, "kept");
    assert_int_equal(buf_status(&b), 0);
    buf_addf(&b, "%1000d", 1);
    assert_int_equal(buf_status(&b), -ENOMEM);
    assert_string_equal(b.ptr, "kept");
    buf_add_c(&b, "y");
    assert_string_equal(b.ptr, "kept");
}

/* ---- arena --------------------------------------------------------------------------------------- */

static void test_arena_alloc(void **state)
{
    (void)state;
    struct arena *a = arena_new(1 << 20);
    assert_non_null(a);
    char *last = NULL;
    for (size_t i = 0; i < 1000; i++) {
        char *p = arena_alloc(a, i % 7, 13);
        assert_non_null(p);
        assert_ptr_not_equal(p, last);
        assert_int_equal((uintptr_t)p % _Alignof(max_align_t), 0);
        for (size_t k = 0; k < i % 7 * 13; k++)
            assert_int_equal(p[k], 0);
        memset(p, 0x55, i % 7 * 13);
        last = p;
    }
    assert_string_equal(arena_dup(a, STR("dup")), "dup");
    assert_string_equal(arena_dup(a, str_of(NULL)), "");
    assert_string_equal(arena_printf(a, "%d %s", 1, "two"), "1 two");
    assert_null(arena_free(a));
    assert_null(arena_free(NULL));
}

static void test_arena_grow(void **state)
{
    (void)state;
    struct arena *a = arena_new(1 << 16);
    uint32_t *list = NULL;
    size_t cap = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t *grown = arena_grow(a, list, i + 1, &cap, sizeof *grown);
        assert_non_null(grown);
        assert_true(cap > i);
        assert_true(i == 0 || grown[i - 1] == i - 1);
        assert_int_equal(grown[i], 0);
        list = grown;
        list[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(list[i], i);
    size_t before = cap;
    assert_ptr_equal(arena_grow(a, list, cap, &cap, sizeof *list), list);
    assert_null(arena_grow(a, list, 1 << 20, &cap, sizeof *list)); /* over the ceiling */
    assert_null(arena_grow(a, list, SIZE_MAX, &cap, sizeof *list));
    assert_int_equal(cap, before);
    assert_int_equal(list[999], 999);
    arena_free(a);
}

static void test_arena_ceiling(void **state)
{
    (void)state;
    struct arena *a = arena_new(1024);
    assert_non_null(arena_alloc(a, 1, 1000));
    assert_null(arena_alloc(a, 1, 100));
    assert_null(arena_alloc(a, SIZE_MAX, 2));
    assert_null(arena_alloc(a, 1, SIZE_MAX));
    assert_null(arena_dup(a, (struct str){"x", SIZE_MAX}));
    assert_non_null(arena_alloc(a, 1, 8)); /* what is left can still be had */
    arena_free(a);
    a = arena_new(10000);
    assert_non_null(arena_alloc(a, 1, 100));
    assert_non_null(arena_alloc(a, 1, 5000)); /* a block of its own, behind the first */
    assert_non_null(arena_alloc(a, 1, 3900)); /* still from the first */
    assert_null(arena_alloc(a, 1, 5000));
    arena_free(a);
    a = arena_new(0);
    assert_null(arena_alloc(a, 1, 1));
    arena_free(a);
}

static void test_arena_nomem(void **state)
{
    (void)state;
    allocations_left = 0;
    assert_null(arena_new(100));
    allocations_left = 1;
    struct arena *a = arena_new(1 << 20);
    assert_non_null(a);
    assert_null(arena_alloc(a, 1, 1));
    assert_null(arena_printf(a, "x"));
    allocations_left = -1;
    assert_non_null(arena_alloc(a, 1, 1));
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_buf_add, reset),       cmocka_unit_test_teardown(test_buf_ceiling, reset),
        cmocka_unit_test_teardown(test_buf_growth, reset),    cmocka_unit_test_teardown(test_buf_printf_grows, reset),
        cmocka_unit_test_teardown(test_buf_take, reset),      cmocka_unit_test_teardown(test_buf_printable, reset),
        cmocka_unit_test_teardown(test_buf_nomem, reset),     cmocka_unit_test_teardown(test_buf_quoted, reset),
        cmocka_unit_test_teardown(test_buf_fail, reset),     cmocka_unit_test_teardown(test_arena_alloc, reset),
        cmocka_unit_test_teardown(test_arena_grow, reset),
        cmocka_unit_test_teardown(test_arena_ceiling, reset), cmocka_unit_test_teardown(test_arena_nomem, reset),
    };
    return cmocka_run_group_tests_name("base memory", tests, NULL, NULL);
}
