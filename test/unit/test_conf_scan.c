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
#include <stdlib.h>
#include <string.h>

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

static void test_twice(void **state)
{
    (void)state;
    refuses("{\"model\":\"one\",\"model\":\"two\"}", -EEXIST);
    refuses("{\"model\":\"one\",\"a\":[1],\"mod\\u0065l\":\"one\",\"model\":null}", -EEXIST);
    refuses("{\"model\":\"one\",\"model\":\"two\"", -EBADMSG);
    finds("{\"a\":1,\"a\":2,\"model\":\"one\"}", "\"one\"");
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
        int r = json_walk_begin(&w, str_of(cases[i].text));
        while (r >= 0 && (r = json_walk_next(&w, &key)) == 1 && (r = json_walk_value(&w, &value)) == 0) {
            buf_add_str(&got, key);
            buf_add_char(&got, '=');
            buf_add_str(&got, value);
            buf_add_char(&got, ';');
        }
        if (r != cases[i].end || !str_eq_c(buf_str(&got), cases[i].found))
            fail_msg("'%s': %d, \"%s\"", cases[i].text, r, got.ptr ? got.ptr : "");
    }
}

/* Writes what a walk through all of a text finds: members that are entered, taken whole, and left alone, in turn. */
static int show(struct json_walk *w, unsigned *turn, struct buf *out)
{
    struct json_walk in;
    struct str key, value;
    int r;
    while ((r = json_walk_next(w, &key)) == 1) {
        char c = json_walk_peek(w);
        buf_add_str(out, key);
        if ((*turn)++ % 3 == 2) {
            buf_add_char(out, '-');
        } else if (c == '{' || c == '[') {
            buf_add_char(out, c);
            json_walk_enter(w, &in);
            r = show(&in, turn, out);
            if (r < 0)
                return r;
            json_walk_leave(w, &in);
            buf_add_char(out, c == '{' ? '}' : ']');
        } else {
            r = json_walk_value(w, &value);
            if (r < 0)
                return r;
            buf_add_str(out, value);
        }
    }
    return r;
}

static void test_walk_within(void **state)
{
    (void)state;
    static const struct {
        const char *text, *found;
        int end;
    } cases[] = {
        {"{\"a\":[1,2],\"b\":{\"c\":3} , \"d\" : [ ] }x", "\"a\"[1-]\"b\"{\"c\"3}\"d\"-", 0},
        {"[[[7]],[8],[9 ] ]", "[[-]][8]-", 0},
        {"[[1,2}]", "[1-", -EBADMSG},
        {"[{\"a\" 1}]", "{", -EBADMSG},
        {"[[", "[", -EBADMSG},
        {"[1,2,[3}", "12-", -EBADMSG}, /* one that is passed over is asked of brackets alone */
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf got = BUF_INIT(256);
        struct json_walk w;
        unsigned turn = 0;
        assert_int_equal(json_walk_begin(&w, str_of(cases[i].text)), 0);
        buf_add_c(&got, "");
        int r = show(&w, &turn, &got);
        struct str found = buf_str(&got);
        if (r != cases[i].end || !str_starts(found, str_of(cases[i].found)) || (r == 0 && found.len != strlen(cases[i].found)))
            fail_msg("'%s': %d, \"" STR_FMT "\"", cases[i].text, r, STR_ARG(found));
    }
}

/* Where a value ends, byte by byte. */
static size_t plain_end(struct str text)
{
    size_t depth = 0;
    bool string = false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (string && c == '\\')
            i++;
        else if (c == '"')
            string = !string;
        else if (!string && (c == '{' || c == '['))
            depth++;
        else if (!string && (c == '}' || c == ']'))
            depth--;
        if (!string && depth == 0 && (c == '"' || c == '}' || c == ']'))
            return i + 1;
    }
    return 0;
}

/* However quotes, backslashes and brackets lie in the blocks that are looked at at once, a value ends where it ends; so does one that is cut off, nowhere. */
static void test_blocks(void **state)
{
    (void)state;
    static const char *const bits[] = {"\\\"", "\\\\", "\\n", "{", "]", "}", "[", "x", ",", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "\\\\\\\"", "\\u0041"};
    uint64_t random = 88172645463325252u;
    for (unsigned round = 0; round < 4000; round++) {
        base_autobuf struct buf text = BUF_INIT(1 << 16);
        unsigned n_strings = 1 + round % 4;
        buf_add_c(&text, "[");
        for (unsigned pad = round % 67; pad; pad--)
            buf_add_char(&text, ' ');
        size_t from = text.len;
        buf_add_c(&text, n_strings > 1 ? "{\"k\":[" : "");
        for (unsigned k = 0; k < n_strings; k++) {
            buf_add_c(&text, k ? ",{\"\\\\\":\"" : "\"");
            for (unsigned i = 0; i < 1 + round % 23; i++) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                buf_add_c(&text, bits[random % BASE_COUNT(bits)]);
            }
            buf_add_c(&text, k ? "\"}" : "\"");
        }
        buf_add_c(&text, n_strings > 1 ? "]}" : "");
        size_t to = text.len;
        buf_add_c(&text, ",1]");
        assert_int_equal(buf_status(&text), 0);
        for (size_t cut = 0; cut < 2; cut++) {
            /* on the heap, to its last byte: what reads beyond is found */
            size_t len = cut ? to - 1 : text.len;
            base_autofree char *copy = malloc(len);
            assert_non_null(copy);
            memcpy(copy, text.ptr, len);
            struct json_walk w;
            struct str key, value = {0};
            assert_int_equal(json_walk_begin(&w, (struct str){copy, len}), 0);
            assert_int_equal(json_walk_next(&w, &key), 1);
            assert_int_equal(json_walk_value(&w, &value), cut ? -EBADMSG : 0);
            if (!cut && (value.ptr != copy + from || value.len != to - from || value.len != plain_end((struct str){copy + from, len - from})))
                fail_msg("'" STR_FMT "': %zu bytes, not %zu", STR_ARG(buf_str(&text)), value.len, to - from);
        }
    }
}

/* Marks are counted outside strings, wherever these begin and end in the blocks that are looked at at once. */
static void test_marks(void **state)
{
    (void)state;
    static const char text[] = "{\"a,b\":[1,2,{\"\\\",:\":\"{[\\\\\"},[]]}"; /* marks: 4 brackets, 2 colons, 3 commas */
    for (size_t before = 0; before < 130; before++) {
        base_autobuf struct buf b = BUF_INIT(4096);
        while (b.len < before)
            buf_add_char(&b, ' ');
        buf_add_c(&b, text);
        assert_int_equal(json_scan_marks(buf_str(&b), SIZE_MAX), 9);
        assert_int_equal(json_scan_marks(buf_str(&b), 9), 9);
        assert_int_equal(json_scan_marks(buf_str(&b), 8), 8);
        assert_int_equal(json_scan_marks(buf_str(&b), 0), 0);
    }
    assert_int_equal(json_scan_marks(STR(""), 5), 0);
    assert_int_equal(json_scan_marks(STR("\",,,"), 5), 0);
}

/* Numbers and white space of any length end where they end. */
static void test_long_scalars(void **state)
{
    (void)state;
    static const char *const ends[] = {",", "}", "]"};
    for (size_t n = 1; n < 200; n++)
        for (size_t e = 0; e < BASE_COUNT(ends); e++) {
            base_autobuf struct buf b = BUF_INIT(4096);
            bool array = ends[e][0] == ']';
            buf_add_c(&b, array ? "[" : "{\"k\":");
            size_t from = b.len + n;
            for (size_t i = 0; i < n; i++)
                buf_add_char(&b, " \t\r\n"[i % 4]);
            for (size_t i = 0; i < n; i++)
                buf_add_char(&b, '7');
            for (size_t i = 0; i < 200 - n; i++)
                buf_add_char(&b, ' ');
            buf_add_c(&b, ends[e]);
            struct json_walk w;
            struct str key, value = {0};
            assert_int_equal(json_walk_begin(&w, buf_str(&b)), 0);
            assert_int_equal(json_walk_next(&w, &key), 1);
            assert_int_equal(json_walk_value(&w, &value), 0);
            assert_ptr_equal(value.ptr, b.ptr + from);
            assert_int_equal(value.len, n);
            /* cut off before its end, it is none */
            base_autofree char *copy = malloc(b.len - 1);
            assert_non_null(copy);
            memcpy(copy, b.ptr, b.len - 1);
            assert_int_equal(json_walk_begin(&w, (struct str){copy, b.len - 1}), 0);
            assert_int_equal(json_walk_next(&w, &key), 1);
            assert_int_equal(json_walk_value(&w, &value), -EBADMSG);
        }
}

/* Each byte is looked at a few times, whatever it is: walks whose cost grows with the square of these texts would take minutes. */
static void test_long_texts_are_walked_once(void **state)
{
    (void)state;
    static const char *const repeated[] = {"\\\\", "\\\"", "\\n", "x", "\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\ ................................................................................"};
    for (size_t i = 0; i < BASE_COUNT(repeated); i++)
        for (unsigned nested = 0; nested < 2; nested++) {
            base_autobuf struct buf text = BUF_INIT(16 << 20);
            buf_add_c(&text, nested ? "{\"a\":[\"" : "{\"a\":\"");
            while (text.len < 8 << 20)
                buf_add_c(&text, repeated[i]);
            buf_add_c(&text, nested ? "\"],\"model\":\"m\"}" : "\",\"model\":\"m\"}");
            size_t off = 0, len = 0;
            assert_int_equal(buf_status(&text), 0);
            assert_int_equal(json_scan_member(buf_str(&text), "model", &off, &len, NULL), 0);
            assert_int_equal(off, text.len - 4);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_member),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_escaped_key),
        cmocka_unit_test(test_not_there),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_deep_text_needs_no_stack),
        cmocka_unit_test(test_string),
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_walk_within),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_long_scalars),
        cmocka_unit_test(test_long_texts_are_walked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
