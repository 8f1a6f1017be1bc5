/* SPDX-License-Identifier: MIT
 *
 * Finding a member of a JSON object without a tree.
 */
#include <conf/conf.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void finds(const char *text, const char *want)
{
    size_t off = 0, len = 0;
    struct err err;
    assert_int_equal(json_scan_member(str_of(text), "model", &off, &len, &err), 0);
    assert_true(str_eq_c((struct str){text + off, len}, want));
}

static void refuses(const char *text, int code)
{
    size_t off = 77, len = 77;
    struct err err;
    assert_int_equal(json_scan_member(str_of(text), "model", &off, &len, &err), code);
    assert_int_equal(err.code, code);
    assert_int_equal(off, 77);
}

static void test_member(void **state)
{
    (void)state;
    finds("{\"model\":\"tiny\"}", "\"tiny\"");
    finds(" { \"a\" : [1, {\"model\": 2}], \"model\" :  \"x\" , \"z\":null}\n", "\"x\"");
    finds("{\"messages\":[{\"content\":\"\\\"model\\\":\\\"no\\\"\"}],\"model\":\"yes\"}", "\"yes\"");
    finds("{\"a\":\"ends with a backslash \\\\\",\"model\":\"b\"}", "\"b\"");
    finds("{\"model\":17 }", "17");
    finds("{\"model\":{\"a\":[\"}\"]}}", "{\"a\":[\"}\"]}");
}

static void test_last_of_two_counts(void **state)
{
    (void)state;
    finds("{\"model\":\"one\",\"model\":\"two\"}", "\"two\"");
}

static void test_escaped_key(void **state)
{
    (void)state;
    finds("{\"mod\\u0065l\":\"tiny\"}", "\"tiny\"");
}

static void test_not_there(void **state)
{
    (void)state;
    refuses("{}", -ENOENT);
    refuses("{\"a\":{\"model\":\"x\"}}", -ENOENT);
    refuses("{\"Model\":\"x\"}", -ENOENT);
}

static void test_broken(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", " ", "[]", "\"model\"", "{", "{\"model\"", "{\"model\":", "{\"model\":}", "{\"model\":\"x", "{\"model\":\"x\"", "{\"model\":\"x\",}", "{\"model\":\"x\" \"a\":1}",
        "{model:\"x\"}", "{\"model\":[1,2}", "{\"a\":\"\\", "{,\"model\":1}",
    };
    for (size_t i = 0; i < BASE_COUNT(texts); i++)
        refuses(texts[i], -EBADMSG);
}

static void test_deep_text_needs_no_stack(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(4 << 20);
    buf_add_c(&b, "{\"a\":");
    for (int i = 0; i < 1000000; i++)
        buf_add_char(&b, '[');
    for (int i = 0; i < 1000000; i++)
        buf_add_char(&b, ']');
    buf_add_c(&b, ",\"model\":\"x\"}");
    assert_int_equal(buf_status(&b), 0);
    finds(b.ptr, "\"x\"");
}

static void test_string(void **state)
{
    (void)state;
    base_autobuf struct buf out = BUF_INIT(64);
    struct err err;
    assert_int_equal(json_scan_string(STR("\"a\\u00e9\\n\\\"\""), &out, &err), 0);
    assert_string_equal(out.ptr, "a\xc3\xa9\n\"");
    buf_clear(&out);
    assert_int_equal(json_scan_string(STR("17"), &out, &err), -EBADMSG);
    assert_int_equal(json_scan_string(STR("\"a"), &out, &err), -EBADMSG);
    assert_int_equal(json_scan_string(STR("\"\\ud800\""), &out, &err), -EBADMSG);
}

static void test_walk(void **state)
{
    (void)state;
    static const struct {
        const char *text, *found;
        int end;
    } cases[] = {
        {"{}", "", 0},
        {" [ ] ", "", 0},
        {"[1, \"a,]\" ,{\"x\":[2]}]", "=1;=\"a,]\";={\"x\":[2]};", 0},
        {"{\"a\" : 1 , \"b\\\"\":[{}, {}]\n}", "\"a\"=1;\"b\\\"\"=[{}, {}];", 0},
        {"[1 2]", "=1 2;", 0}, /* what is in a value is its reader's business */
        {"[1", "", -EBADMSG},
        {"[1,", "=1;", -EBADMSG},
        {"[1,]", "=1;", -EBADMSG},
        {"[\"a\" \"b\"]", "=\"a\";", -EBADMSG},
        {"{1:2}", "", -EBADMSG},
        {"{\"a\" 2}", "", -EBADMSG},
        {"{\"a\":1]", "\"a\"=1;", -EBADMSG},
        {"", "", -EBADMSG},
        {"7", "", -EBADMSG},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf got = BUF_INIT(256);
        struct json_walk w;
        struct str key, value;
        int r = json_walk_begin(&w, str_of(cases[i].text), NULL);
        while (r >= 0 && (r = json_walk_next(&w, &key, &value)) == 1) {
            buf_add_str(&got, key);
            buf_add_char(&got, '=');
            buf_add_str(&got, value);
            buf_add_char(&got, ';');
        }
        if (r != cases[i].end || !str_eq_c(buf_str(&got), cases[i].found))
            fail_msg("'%s': %d, \"%s\"", cases[i].text, r, got.ptr ? got.ptr : "");
    }
}

/* All keys and values below text, as hashes of where they are. */
static uint64_t walk_all(struct str text, struct json_longs *longs, unsigned depth)
{
    struct json_walk w;
    struct str key, value;
    uint64_t sum = 0;
    int r = json_walk_begin(&w, text, longs);
    while (r >= 0 && depth && (r = json_walk_next(&w, &key, &value)) == 1)
        sum = sum * 31 + (uint64_t)(uintptr_t)key.ptr + key.len * 7 + (uint64_t)(uintptr_t)value.ptr * 3 + value.len + walk_all(value, longs, depth - 1);
    return sum * 31 + (uint64_t)r;
}

/* What is remembered of long strings changes nothing of what is found, and is used. */
static void test_long_strings(void **state)
{
    (void)state;
    static const char *const ends[] = {"", "\\\"", "\\\\", "\\\\\\\"", "]}", "\\\",\\\"k\\\":1"};
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    buf_add_c(&text, "{\"a\":[");
    for (size_t i = 0; i < JSON_LONGS_MAX + 8; i++) {
        buf_addf(&text, "%s{\"t\":\"", i ? "," : "");
        for (size_t k = 0; k < JSON_LONG_BYTES - 3 + i % 7; k++)
            buf_add_char(&text, 'x');
        buf_addf(&text, "%s\",\"n\":[%zu]}", ends[i % BASE_COUNT(ends)], i);
    }
    buf_add_c(&text, "],\"z\":\"end\"}");
    struct json_longs longs = {0};
    uint64_t want = walk_all(buf_str(&text), NULL, 6);
    assert_int_equal(walk_all(buf_str(&text), &longs, 6), want);
    assert_int_equal(longs.n, JSON_LONGS_MAX);
    assert_int_equal(walk_all(buf_str(&text), &longs, 6), want);
    for (size_t i = 0; i < longs.n; i++) {
        assert_int_equal(*longs.list[i].begin, '"');
        assert_int_equal(longs.list[i].end[-1], '"');
        assert_true(longs.list[i].end - longs.list[i].begin > JSON_LONG_BYTES);
    }
    /* a part that ends within one is broken all the same */
    struct str cut = {longs.list[0].begin - 5, (size_t)(longs.list[0].end - longs.list[0].begin)};
    assert_int_equal(*cut.ptr, '{');
    assert_int_equal(walk_all(cut, &longs, 1), walk_all(cut, NULL, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member),
        cmocka_unit_test(test_last_of_two_counts),
        cmocka_unit_test(test_escaped_key),
        cmocka_unit_test(test_not_there),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_deep_text_needs_no_stack),
        cmocka_unit_test(test_string),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_long_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
