/* SPDX-License-Identifier: MIT
 *
 * YAML: the tree and its positions, everything that is refused with its place and words, the bounds, and running out of
 * memory.
 */
#include <conf/conf.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_malloc.h"

static struct yaml *parse(const char *text)
{
    struct yaml *y = NULL;
    struct err err = {0};
    int rc = yaml_parse(str_of(text), "f.yaml", &y, &err);
    if (rc < 0)
        fail_msg("%s", err.text);
    return y;
}

static void assert_refused(struct str text, const char *want)
{
    struct yaml *y = NULL;
    struct err err = {0};
    assert_int_equal(yaml_parse(text, "f.yaml", &y, &err), -EINVAL);
    assert_null(y);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.text, want);
    assert_int_equal(yaml_parse(text, "f.yaml", &y, NULL), -EINVAL);
}

static void assert_at(const struct yaml_node *n, unsigned line, unsigned column)
{
    assert_non_null(n);
    assert_int_equal(n->line, line);
    assert_int_equal(n->column, column);
}

static void builds_a_tree(void **state)
{
    (void)state;
    struct yaml *y = parse("# top\n"
                           "name: home\n"
                           "map:\n"
                           "  x: 1\n"
                           "  \xC3\xBC: {in: \"quoted\", none: , nil: ~}\n"
                           "list:\n"
                           "- a\n"
                           "- [b, 'c']\n"
                           "block: |\n"
                           "  text\n");
    const struct yaml_node *root = yaml_root(y);
    assert_int_equal(root->kind, YAML_MAP);
    assert_at(root, 2, 1);
    const struct yaml_node *name = yaml_get(root, "name");
    assert_at(name, 2, 7);
    assert_true(str_eq_c(name->text, "home"));
    assert_false(name->quoted);
    assert_true(str_eq_c(name->key, "name"));
    assert_int_equal(name->key_line, 2);
    assert_int_equal(name->key_column, 1);
    const struct yaml_node *flow = yaml_get(yaml_get(root, "map"), "\xC3\xBC");
    assert_at(flow, 5, 6); /* characters, not bytes */
    assert_at(yaml_get(flow, "in"), 5, 11);
    assert_true(yaml_get(flow, "in")->quoted);
    assert_true(yaml_is_null(yaml_get(flow, "none")));
    assert_true(yaml_is_null(yaml_get(flow, "nil")));
    const struct yaml_node *list = yaml_get(root, "list");
    assert_int_equal(list->kind, YAML_SEQ);
    assert_true(str_eq_c(list->first->text, "a"));
    assert_at(list->first, 7, 3);
    assert_null(list->first->key.ptr);
    const struct yaml_node *inner = list->first->next;
    assert_int_equal(inner->kind, YAML_SEQ);
    assert_true(inner->first->next->quoted);
    assert_null(inner->first->next->next);
    assert_null(inner->next);
    const struct yaml_node *block = yaml_get(root, "block");
    assert_true(block->quoted);
    assert_true(str_eq_c(block->text, "text\n"));
    assert_null(yaml_get(root, "nothing"));
    assert_null(yaml_get(name, "x"));
    assert_null(yaml_get(NULL, "x"));
    assert_null(yaml_free(y));
    assert_null(yaml_free(NULL));
}

static void nulls(void **state)
{
    (void)state;
    static const char *const null[] = {"", "~", "null", "# only a comment\n", "---\n"};
    for (size_t i = 0; i < BASE_COUNT(null); i++) {
        struct yaml *y = parse(null[i]);
        assert_true(yaml_is_null(yaml_root(y)));
        yaml_free(y);
    }
    static const char *const text[] = {"''", "\"null\"", "'~'", "Null", "0", "[]", "{}"};
    for (size_t i = 0; i < BASE_COUNT(text); i++) {
        struct yaml *y = parse(text[i]);
        assert_false(yaml_is_null(yaml_root(y)));
        yaml_free(y);
    }
    assert_false(yaml_is_null(NULL));
    struct yaml *y = NULL;
    assert_int_equal(yaml_parse((struct str){NULL, 0}, "f.yaml", &y, NULL), 0);
    assert_at(yaml_root(y), 1, 1);
    yaml_free(y);
}

static void takes_mark_breaks_and_directive(void **state)
{
    (void)state;
    struct yaml *y = parse("\xEF\xBB\xBF%YAML 1.2\r\n---\r\na: 1\r\nb: 2\r\n...\r\n");
    assert_at(yaml_get(yaml_root(y), "b"), 4, 4);
    yaml_free(y);
}

static void refuses_what_is_ambiguous(void **state)
{
    (void)state;
    assert_refused(STR("a: &x 1\n"), "f.yaml:1:4: anchors are not supported; write the value out where it is used");
    assert_refused(STR("a: &x {b: c}\n"), "f.yaml:1:4: anchors are not supported; write the value out where it is used");
    assert_refused(STR("a: &x\n  - b\n"), "f.yaml:1:4: anchors are not supported; write the value out where it is used");
    assert_refused(STR("&x a: 1\n"), "f.yaml:1:1: anchors are not supported; write the value out where it is used");
    assert_refused(STR("a: *x\n"),
                   "f.yaml:1:4: aliases are not supported; write the value out, or put text that begins with '*' in quotes");
    assert_refused(STR("*x : 1\n"),
                   "f.yaml:1:1: aliases are not supported; write the value out, or put text that begins with '*' in quotes");
    assert_refused(STR("<<: *x\n"),
                   "f.yaml:1:5: aliases are not supported; write the value out, or put text that begins with '*' in quotes");
    static const char *const tagged[] = {"a: !!str 1\n", "a: !x {}\n", "a: ! 1\n", "a: ! 'b'\n", "a: !<tag:x> [b]\n"};
    for (size_t i = 0; i < BASE_COUNT(tagged); i++)
        assert_refused(str_of(tagged[i]), "f.yaml:1:4: tags are not supported; remove it, or put text that begins with '!' in quotes");
    assert_refused(STR("a: 1\n---\nb: 2\n"), "f.yaml:2:1: a second document begins here; keep one in each file");
    assert_refused(STR("--- a\n--- b\n"), "f.yaml:2:1: a second document begins here; keep one in each file");
    assert_refused(STR("a: 1\n...\nb: 2\n"), "f.yaml:3:1: this stands after the end of the document; remove it");
}

static void refuses_keys(void **state)
{
    (void)state;
    assert_refused(STR("'a': 1\n"), "f.yaml:1:1: a key must be a plain word; remove the quotes");
    assert_refused(STR("x:\n  \"a\": 1\n"), "f.yaml:2:3: a key must be a plain word; remove the quotes");
    assert_refused(STR("[a, b]: 1\n"), "f.yaml:1:1: a key must be a plain word, not a list or map");
    assert_refused(STR("{a: b}: 1\n"), "f.yaml:1:1: a key must be a plain word, not a list or map");
    assert_refused(STR("? {a: b}\n: 1\n"), "f.yaml:1:3: a key must be a plain word, not a list or map");
    assert_refused(STR("{? : 1}\n"), "f.yaml:1:4: a key is missing here");
    assert_refused(STR("{: 1}\n"), "f.yaml:1:2: a value is missing here");
    assert_refused(STR("a: 1\nb: 2\na: 3\nb: 4\n"), "f.yaml:3:1: duplicate key 'a'; it stands at line 1 too");
    assert_refused(STR("x: {a: 1, b: 2, a: 3}\n"), "f.yaml:1:17: duplicate key 'a'; it stands at line 1 too");
    assert_refused(STR("b: 1\nb: 2\na: 1\na: 2\n"), "f.yaml:2:1: duplicate key 'b'; it stands at line 1 too");
    /* equal keys in different maps are no duplicates */
    yaml_free(parse("a: {a: 1}\nb: {a: 1}\n"));
}

static void libyaml_errors_are_in_our_words(void **state)
{
    (void)state;
    assert_refused(STR("a:\n\tb: 1\n"), "f.yaml:2:1: a tab in the indentation; use spaces");
    assert_refused(STR("a: 1\n\tb: 1\n"), "f.yaml:2:1: a tab in the indentation; use spaces");
    assert_refused(STR("a: b: c\n"), "f.yaml:1:5: ':' is not allowed here; put the text in quotes, or check the indentation");
    assert_refused(STR("a:\n  b: 1\n c: 2\n"), "f.yaml:3:2: this does not belong to the map that begins at line 1; check the indentation");
    assert_refused(STR("a:\n  - x\n  y: 1\n"), "f.yaml:3:3: this does not belong to the list that begins at line 2; check the indentation");
    assert_refused(STR("a: [1, 2\nb: 3\n"), "f.yaml:2:2: ',' or ']' is missing before this, in the list that begins at line 1");
    assert_refused(STR("a: {x: 1\nb: 3\n"), "f.yaml:2:2: ',' or '}' is missing before this, in the map that begins at line 1");
    assert_refused(STR("a:\n- x\nb\n"), "f.yaml:3:1: a key without a value; write 'key: value'");
    assert_refused(STR("a: \"x\nb: 3\n"), "f.yaml:1:4: the quote that opens here is not closed");
    assert_refused(STR("a: 'x\n--- b\n"), "f.yaml:1:4: the quote that opens here is not closed");
    assert_refused(STR("a: @x\n"), "f.yaml:1:4: a value cannot begin with '@'; put it in quotes");
    assert_refused(STR("\xC3\xBC: `x\n"), "f.yaml:1:4: a value cannot begin with '`'; put it in quotes");
    assert_refused(STR("a: }\n"), "f.yaml:1:4: a value is missing here");
    assert_refused(STR("a: - b\n"), "f.yaml:1:4: a list cannot begin here; begin it on its own line");
    assert_refused(STR("a: *\n"), "f.yaml:1:4: anchors and aliases are not supported; put text that begins with '&' or '*' in quotes");
    assert_refused(STR("a: \"\\q\"\n"), "f.yaml:1:5: unknown escape; write '\\\\' for a backslash, or use single quotes");
    assert_refused(STR("%FOO\na: 1\n"), "f.yaml:1:5: found unknown directive name");
}

static void refuses_bytes_that_are_no_text(void **state)
{
    (void)state;
    assert_refused(STR("a: 1\nb: \xFF\n"), "f.yaml:2:4: byte 0xff is not UTF-8 text");
    assert_refused(STR("\xC3\xBC: \xC0\x80\n"), "f.yaml:1:4: byte 0xc0 is not UTF-8 text");
    assert_refused(STR("a: \xED\xA0\x80\n"), "f.yaml:1:4: byte 0xed is not UTF-8 text");
    assert_refused(STR("a: \xE2\x82"), "f.yaml:1:4: byte 0xe2 is not UTF-8 text");
    assert_refused(STR("a: \0\n"), "f.yaml:1:4: byte 0x00 is not UTF-8 text");
    assert_refused(STR("\xFF\xFE\x61\x00"), "f.yaml:1:1: byte 0xff is not UTF-8 text"); /* UTF-16 */
    assert_refused(STR("a: 1\nb: \x01\n"), "f.yaml:2:4: control characters are not allowed; remove this character");
}

static void bounds_depth(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
    for (int i = 0; i < CONF_DEPTH_MAX; i++)
        buf_add_char(&b, '[');
    for (int i = 0; i < CONF_DEPTH_MAX; i++)
        buf_add_char(&b, ']');
    yaml_free(parse(b.ptr));
    buf_clear(&b);
    for (int i = 0; i < CONF_DEPTH_MAX + 1; i++)
        buf_add_char(&b, '[');
    assert_refused(buf_str(&b), "f.yaml:1:33: nested more than 32 levels deep");
    buf_clear(&b);
    for (int i = 0; i < 200; i++)
        buf_add_c(&b, "- ");
    assert_refused(buf_str(&b), "f.yaml:1:65: nested more than 32 levels deep");
    buf_clear(&b);
    for (unsigned i = 0; i < 100; i++) {
        for (unsigned k = 0; k < i; k++)
            buf_add_char(&b, ' ');
        buf_add_c(&b, "a:\n");
    }
    assert_refused(buf_str(&b), "f.yaml:33:33: nested more than 32 levels deep");
}

/* CPU time of refusing or reading a text, in milliseconds. */
static uint64_t cost_ms(struct str text, int want)
{
    struct yaml *y = NULL;
    clock_t start = clock();
    assert_int_equal(yaml_parse(text, "f.yaml", &y, NULL), want);
    uint64_t ms = (uint64_t)(clock() - start) * 1000 / CLOCKS_PER_SEC;
    yaml_free(y);
    return ms;
}

/* A mebibyte that is built to cost: each must be far from the minutes that a quadratic reader would take. The limit allows
 * for sanitizers on a busy machine. */
static void hostile_texts_cost_little(void **state)
{
    (void)state;
    static const struct {
        const char *first, *again;
        int want;
    } hostile[] = {
        {"", "[", -EINVAL},         {"", "{", -EINVAL},    {"", "{a: ", -EINVAL},  {"", "[a,", -EINVAL},
        {"a: [", "b,", -EINVAL},    {"", "- ", -EINVAL},   {"", "-\n", -EINVAL},   {"", "? ", -EINVAL},
        {"a: ", "x ", 0},           {"a: ", "x\n ", 0},    {"a: \"", "\\x41", -EINVAL}, {"", "\n", 0},
        {"", "#", 0},               {"a: |\n", " x\n", 0}, {"", "a: b\n", -EINVAL}, {"", "!", -EINVAL},
    };
    for (size_t i = 0; i < BASE_COUNT(hostile); i++) {
        base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
        buf_add_c(&b, hostile[i].first);
        size_t step = strlen(hostile[i].again);
        while (b.len + step < CONF_YAML_MAX)
            buf_add(&b, hostile[i].again, step);
        assert_int_equal(buf_status(&b), 0);
        uint64_t ms = cost_ms(buf_str(&b), hostile[i].want);
        if (ms > 4000)
            fail_msg("'%s%s...' took %llu ms", hostile[i].first, hostile[i].again, (unsigned long long)ms);
    }
}

static void bounds_size_and_count(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(2 * CONF_YAML_MAX);
    while (b.len < CONF_YAML_MAX)
        buf_add_c(&b, "# comment that fills.....\n######");
    b.len = CONF_YAML_MAX;
    struct yaml *y = NULL;
    assert_int_equal(yaml_parse(buf_str(&b), "f.yaml", &y, NULL), 0);
    yaml_free(y);
    b.len = CONF_YAML_MAX + 1;
    assert_refused(buf_str(&b), "f.yaml:1:1: the file is larger than 1024 KiB");
    /* 65536 values are the limit: the list is one of them */
    buf_clear(&b);
    for (int i = 0; i < 65535; i++)
        buf_add_c(&b, "- a\n");
    yaml_free(parse(b.ptr));
    buf_add_c(&b, "- b\n");
    assert_refused(buf_str(&b), "f.yaml:65536:3: the file holds more than 65536 values");
}

static void finds_duplicates_among_many(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(CONF_YAML_MAX);
    for (int i = 0; i < 50000; i++)
        buf_addf(&b, "k%d: 1\n", i);
    assert_true(cost_ms(buf_str(&b), 0) < 4000);
    buf_add_c(&b, "k777: 2\n");
    assert_refused(buf_str(&b), "f.yaml:50001:1: duplicate key 'k777'; it stands at line 778 too");
}

static void survives_without_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    static const char *const texts[] = {"name: home\nlist: [a, 'b', {c: d}]\nmap:\n  x: |\n    text\n  y: \"\\x41\"\n", "a: 1\na: 2\n", "a: [1\n"};
    for (size_t i = 0; i < BASE_COUNT(texts); i++) {
        bool failed = true;
        for (long n = 0; failed; n++) {
            assert_true(n < 10000);
            struct yaml *y = NULL;
            struct err err = {0};
            failing_arm(n);
            int rc = yaml_parse(str_of(texts[i]), "f.yaml", &y, &err);
            yaml_free(y);
            assert_int_equal(failing_disarm(&failed), 0);
            assert_int_equal(rc, failed ? -ENOMEM : i == 0 ? 0 : -EINVAL);
            assert_int_equal(err.code, rc);
        }
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builds_a_tree),
        cmocka_unit_test(nulls),
        cmocka_unit_test(takes_mark_breaks_and_directive),
        cmocka_unit_test(refuses_what_is_ambiguous),
        cmocka_unit_test(refuses_keys),
        cmocka_unit_test(libyaml_errors_are_in_our_words),
        cmocka_unit_test(refuses_bytes_that_are_no_text),
        cmocka_unit_test(bounds_depth),
        cmocka_unit_test(hostile_texts_cost_little),
        cmocka_unit_test(bounds_size_and_count),
        cmocka_unit_test(finds_duplicates_among_many),
        cmocka_unit_test(survives_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
