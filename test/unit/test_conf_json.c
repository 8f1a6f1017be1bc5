/* SPDX-License-Identifier: MIT
 *
 * JSON: what is read, what is refused and where, walking, writing, and running out of memory.
 */
#include <conf/conf.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_malloc.h"

static struct json *parse(const char *text)
{
    struct json *j = NULL;
    struct err err = {0};
    int rc = json_parse(str_of(text), &j, &err);
    if (rc < 0)
        fail_msg("%s: %s", text, err.text);
    return j;
}

static void assert_refused(struct str text, const char *want)
{
    struct json *j = NULL;
    struct err err = {0};
    assert_int_equal(json_parse(text, &j, &err), -EINVAL);
    assert_null(j);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.text, want);
    assert_int_equal(json_parse(text, &j, NULL), -EINVAL);
}

static void reads_values(void **state)
{
    (void)state;
    struct json *j = parse("{\"s\":\"a\\u0000b\",\"n\":18446744073709551615,\"i\":-1,\"f\":1.5,\"t\":true,\"z\":null,\"a\":[1,[2],{}],\"o\":{}}");
    json_val root = json_root(j);
    struct str s;
    uint64_t u;
    double d;
    bool b;
    assert_true(json_is_obj(root));
    assert_int_equal(json_count(root), 8);
    assert_true(json_str(json_get(root, "s"), &s));
    assert_int_equal(s.len, 3);
    assert_memory_equal(s.ptr, "a\0b", 3);
    assert_true(json_u64(json_get(root, "n"), &u));
    assert_true(u == UINT64_MAX);
    assert_false(json_u64(json_get(root, "i"), &u));
    assert_true(json_f64(json_get(root, "i"), &d) && d == -1);
    assert_false(json_u64(json_get(root, "f"), &u));
    assert_true(json_f64(json_get(root, "f"), &d) && d == 1.5);
    assert_true(json_bool(json_get(root, "t"), &b) && b);
    assert_true(str_eq(json_get_str(root, "s", "-"), s));
    assert_true(str_eq_c(json_get_str(root, "n", "-"), "-") && str_eq_c(json_get_str(root, "none", "-"), "-"));
    assert_true(json_get_u64(root, "n") == UINT64_MAX && json_get_u64(root, "i") == 0);
    assert_true(json_get_f64(root, "f") == 1.5 && json_get_f64(root, "s") == 0);
    assert_true(json_get_bool(root, "t") && !json_get_bool(root, "n"));
    assert_true(json_is_null(json_get(root, "z")));
    json_val a = json_get(root, "a");
    assert_true(json_is_arr(a));
    assert_int_equal(json_count(a), 3);
    assert_true(json_u64(json_at(json_at(a, 1), 0), &u) && u == 2);
    assert_null(json_at(a, 3));
    assert_int_equal(json_count(json_get(root, "o")), 0);
    assert_null(json_free(j));
}

static void absent_values_are_nothing(void **state)
{
    (void)state;
    struct str s;
    uint64_t u;
    double d;
    bool b;
    size_t iter = 0;
    json_val v;
    struct json *j = parse("[1]");
    json_val none = json_get(json_root(j), "x"); /* no object */
    assert_null(none);
    assert_null(json_get(NULL, "x"));
    assert_null(json_at(NULL, 0));
    assert_null(json_root(NULL));
    assert_int_equal(json_count(NULL), 0);
    assert_false(json_is_obj(none) || json_is_arr(none) || json_is_null(none));
    assert_false(json_str(none, &s) || json_u64(none, &u) || json_f64(none, &d) || json_bool(none, &b));
    assert_false(json_next(none, &iter, &s, &v));
    assert_false(json_next(json_root(j), &iter, &s, &v));
    json_free(j);
    assert_null(json_free(NULL));
}

static void walks_objects(void **state)
{
    (void)state;
    struct json *j = parse("{\"a\":{\"x\":[1,2,{\"y\":3}]},\"\":[],\"c\":{},\"d\":4}");
    static const char *const want[] = {"a", "", "c", "d"};
    size_t iter = 0, n = 0;
    struct str key;
    json_val v = NULL;
    while (json_next(json_root(j), &iter, &key, &v)) {
        assert_true(n < 4);
        assert_true(str_eq_c(key, want[n]));
        assert_ptr_equal(v, json_get(json_root(j), want[n]));
        n++;
    }
    assert_int_equal(n, 4);
    iter = 0;
    assert_false(json_next(json_get(json_root(j), "c"), &iter, &key, &v));
    json_free(j);
}

static void refuses_with_place(void **state)
{
    (void)state;
    assert_refused(STR(""), "1:1: the JSON text is empty");
    struct json *j = NULL;
    static const struct {
        const char *text, *place;
    } bad[] = {
        {"{\"a\": 1,\n \"b\": nope}", "2:7: "},
        {"[1,]", "1:"},
        {"{\"a\":1} x", "1:9: "},
        {"{\"\xC3\xBC\": \xC3}", "1:7: "}, /* the column counts characters */
        {"[1] // c", "1:"},
        {"[NaN]", "1:2: "},
        {"\"\\ud800\"", "1:"},
        {"\"a\tb\"", "1:"},
        {"\xEF\xBB\xBF[]", "1:1: "},
        {"[01]", "1:"},
        {"[1e999]", "1:"},
        {"{\"a\"", "1:"},
        {"\r\n\r\r[", "4:"},
    };
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        struct err err = {0};
        assert_int_equal(json_parse(str_of(bad[i].text), &j, &err), -EINVAL);
        if (strncmp(err.text, bad[i].place, strlen(bad[i].place)) != 0)
            fail_msg("%s: %s, not at %s", bad[i].text, err.text, bad[i].place);
    }
    assert_null(j);
}

static void bounds_depth(void **state)
{
    (void)state;
    char text[2 * CONF_DEPTH_MAX + 3] = {0};
    memset(text, '[', CONF_DEPTH_MAX);
    memset(text + CONF_DEPTH_MAX, ']', CONF_DEPTH_MAX);
    json_free(parse(text));
    memset(text, '[', CONF_DEPTH_MAX + 1);
    memset(text + CONF_DEPTH_MAX + 1, ']', CONF_DEPTH_MAX + 1);
    assert_refused(str_of(text), "1:33: JSON is nested more than 32 levels deep");
    /* brackets in strings are text, also after an escaped quote; closed levels do not count */
    json_free(parse("[\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"]"));
    json_free(parse("[[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[]]"));
}

static void bounds_size(void **state)
{
    (void)state;
    struct json *j = NULL;
    struct err err;
    /* the length is looked at first: nothing behind the pointer is touched */
    assert_int_equal(json_parse((struct str){"[", CONF_JSON_MAX + 1}, &j, &err), -E2BIG);
    assert_non_null(strstr(err.text, "too long"));
}

static void text_is_copied(void **state)
{
    (void)state;
    char text[] = "{\"k\":\"value\"}";
    struct json *j = parse(text);
    memset(text, 'x', sizeof text - 1);
    struct str s;
    assert_true(json_str(json_get(json_root(j), "k"), &s));
    assert_true(str_eq_c(s, "value"));
    json_free(j);
}

static char *finish(struct json_out *o, bool pretty)
{
    struct buf out = BUF_INIT(4096);
    assert_int_equal(json_out_finish(o, pretty, &out), 0);
    json_out_free(o);
    return buf_take(&out);
}

static void writes(void **state)
{
    (void)state;
    struct json *j = parse("{\"deep\":[1,{\"x\":null}]}");
    struct json_out *o = json_out_new();
    json_out_obj(o, NULL);
    json_out_u64(o, "u", UINT64_MAX);
    json_out_i64(o, "i", -5);
    json_out_f64(o, "f", 0.5);
    json_out_f64(o, "nan", NAN);
    json_out_bool(o, "b", false);
    json_out_cstr(o, "none", NULL);
    json_out_cstr(o, "s", "q\"\n/");
    json_out_arr(o, "a");
    json_out_str(o, NULL, (struct str){NULL, 0});
    json_out_null(o, NULL);
    json_out_val(o, NULL, json_get(json_root(j), "deep"));
    json_out_val(o, NULL, NULL);
    json_out_end(o);
    json_out_end(o);
    json_free(j); /* the copy does not need it */
    base_autofree char *text = finish(o, false);
    assert_string_equal(text, "{\"u\":18446744073709551615,\"i\":-5,\"f\":0.5,\"nan\":null,\"b\":false,\"none\":null,"
                              "\"s\":\"q\\\"\\n/\",\"a\":[\"\",null,[1,{\"x\":null}],null]}");
}

static void writes_pretty_and_appends(void **state)
{
    (void)state;
    struct json_out *o = json_out_new();
    json_out_obj(o, NULL);
    json_out_arr(o, "a");
    json_out_u64(o, NULL, 1);
    json_out_end(o);
    json_out_end(o);
    struct buf out = BUF_INIT(4096);
    buf_add_c(&out, ">");
    assert_int_equal(json_out_finish(o, true, &out), 0);
    assert_string_equal(out.ptr, ">{\n  \"a\": [\n    1\n  ]\n}\n");
    buf_release(&out);
    struct buf tiny = BUF_INIT(4);
    assert_int_equal(json_out_finish(o, true, &tiny), -E2BIG);
    buf_release(&tiny);
    json_out_free(o);
    assert_null(json_out_free(NULL));
}

static void replaces_bad_utf8(void **state)
{
    (void)state;
    struct json_out *o = json_out_new();
    json_out_str(o, NULL, (struct str){"a\xFF\xC3\xBC\0\xE2\x82", 7});
    base_autofree char *text = finish(o, false);
    assert_string_equal(text, "\"a\xEF\xBF\xBD\xC3\xBC\\u0000\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void survives_without_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    bool failed = true;
    for (long n = 0; failed; n++) {
        assert_true(n < 10000);
        struct json *j = NULL;
        struct err err = {0};
        failing_arm(n);
        int rc = json_parse(STR("{\"a\":[1,2,3,{\"b\":\"some text\"}],\"c\":true}"), &j, &err);
        json_free(j);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        assert_int_equal(err.code, failed ? -ENOMEM : 0);
    }
    failed = true;
    for (long n = 0; failed; n++) {
        assert_true(n < 10000);
        failing_arm(n);
        int rc = -ENOMEM;
        struct buf out = BUF_INIT(1 << 20);
        struct json_out *o = json_out_new();
        if (o) {
            json_out_obj(o, NULL);
            json_out_arr(o, "list");
            for (int i = 0; i < 300; i++)
                json_out_cstr(o, NULL, "\xFF a text of some length that fills the pools");
            json_out_end(o);
            json_out_end(o);
            rc = json_out_finish(o, true, &out);
        }
        json_out_free(o);
        buf_release(&out);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_int_equal(rc, failed ? -ENOMEM : 0);
    }
#else
    skip();
#endif
}

/* Comments, last commas and a byte order mark pass where they are asked for, and nowhere else; depth is counted with none of them. */
static void relaxed(void **state)
{
    static const struct {
        const char *text;
        bool taken;
    } cases[] = {
        {"\xEF\xBB\xBF{\"a\": 1}", true},
        {"{\"a\": 1, }", true},
        {"{\"a\": [1, 2,], // it's \"\n \"b\": /* [ */ 2}", true},
        {"// \"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n{\"a\": 1}", true},
        {"{\"a//b\": \"/* no comment\"}", true},
        {"{\"a\": 1", false},
        {"{\"a\": 1} /* without an end", false},
        {"{\"a\": 1} x", false},
        {"{'a': 1}", false},
        {"{a: 1}", false},
        {"/", false},
        {"\xEF\xBB\xBF", false},
        {"\xFF\xFE{", false},
    };
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct json *j = NULL;
        struct err err = {0};
        int r = json_parse_relaxed(str_of(cases[i].text), &j, &err);
        if ((r == 0) != cases[i].taken)
            fail_msg("%s: %s", cases[i].text, err.text);
        json_free(j);
        j = NULL;
        if (i < 4)
            assert_int_equal(json_parse(str_of(cases[i].text), &j, &err), -EINVAL);
    }
    /* a quote in a comment hides no bracket */
    base_autobuf struct buf deep = BUF_INIT(65536);
    struct json *j = NULL;
    struct err err = {0};
    buf_add_c(&deep, "/* \" */ ");
    for (int i = 0; i < 1000; i++)
        buf_add_char(&deep, '[');
    for (int i = 0; i < 1000; i++)
        buf_add_char(&deep, ']');
    assert_int_equal(json_parse_relaxed(buf_str(&deep), &j, &err), -EINVAL);
    assert_non_null(strstr(err.text, "nested more than"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values),
        cmocka_unit_test(relaxed),
        cmocka_unit_test(absent_values_are_nothing),
        cmocka_unit_test(walks_objects),
        cmocka_unit_test(refuses_with_place),
        cmocka_unit_test(bounds_depth),
        cmocka_unit_test(bounds_size),
        cmocka_unit_test(text_is_copied),
        cmocka_unit_test(writes),
        cmocka_unit_test(writes_pretty_and_appends),
        cmocka_unit_test(replaces_bad_utf8),
        cmocka_unit_test(survives_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
