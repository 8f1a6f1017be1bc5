/* SPDX-License-Identifier: MIT
 *
 * http: what a parser promises to its owner: how much it takes, when views are valid, what callbacks may return, where memory
 * ends. What messages mean is in test_http_corpus.c. parser.c is included, so that its allocation can be made to fail.
 */
#include <base/base.h>
#include <http/http.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static bool no_memory;
static void *failing_malloc(size_t n)
{
    return no_memory ? NULL : malloc(n);
}
#define malloc failing_malloc
#include "../../src/http/parser.c"
#undef malloc

struct seen {
    int heads, ends;
    size_t body;
    const char *last; /* where the last body bytes were */
    int head_rc, body_rc, end_rc;
    const struct http_head *head;
};

static int seen_head(void *ctx, const struct http_head *head)
{
    struct seen *s = ctx;
    s->heads++;
    s->head = head;
    return s->head_rc;
}

static int seen_body(void *ctx, struct str data)
{
    struct seen *s = ctx;
    s->body += data.len;
    s->last = data.ptr;
    return s->body_rc;
}

static int seen_end(void *ctx)
{
    struct seen *s = ctx;
    s->ends++;
    return s->end_rc;
}

static const struct http_parser_ops seen_ops = {seen_head, seen_body, seen_end};

static void test_one_message_at_a_time(void **state)
{
    (void)state;
    struct seen s = {0};
    struct http_parser *p = http_parser_new(HTTP_REQUEST, &seen_ops, &s);
    assert_true(http_parser_idle(p));
    assert_int_equal(http_parser_eof(p), 0);
    struct str in = STR("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nHost: b\r\n\r\n");
    size_t first = 0, used = 0;
    assert_int_equal(http_parser_feed(p, in, &first, NULL), 0);
    assert_int_equal(first, str_find(in, STR("GET")));
    assert_int_equal(s.heads, 1);
    assert_int_equal(s.ends, 1);
    assert_int_equal(s.body, 3);
    assert_ptr_equal(s.last, in.ptr + first - 3); /* not copied */
    assert_true(http_parser_idle(p));
    /* the head is readable until the next byte */
    assert_true(str_eq_c(http_field_get(s.head, "host"), "a"));
    assert_int_equal(http_parser_feed(p, (struct str){NULL, 0}, &used, NULL), 0);
    assert_int_equal(used, 0);
    assert_true(str_eq_c(s.head->target, "/1"));

    assert_int_equal(http_parser_feed(p, (struct str){in.ptr + first, 1}, &used, NULL), 0);
    assert_int_equal(used, 1);
    assert_false(http_parser_idle(p));
    assert_int_equal(http_parser_feed(p, (struct str){in.ptr + first + 1, in.len - first - 1}, &used, NULL), 0);
    assert_int_equal(used, in.len - first - 1);
    assert_true(str_eq_c(s.head->target, "/2"));
    assert_int_equal(s.ends, 2);
    assert_null(http_parser_free(p));
    assert_null(http_parser_free(NULL));
}

/* The head's views stay valid although what was fed is gone. */
static void test_views_outlive_input(void **state)
{
    (void)state;
    struct seen s = {0};
    struct http_parser *p = http_parser_new(HTTP_RESPONSE, &seen_ops, &s);
    char text[] = "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 5\r\n\r\nhe";
    size_t used = 0;
    assert_int_equal(http_parser_feed(p, str_of(text), &used, NULL), 0);
    memset(text, '#', sizeof text - 1);
    assert_true(str_eq_c(http_field_get(s.head, "x-a"), "b"));
    assert_true(str_eq_c(s.head->reason, "OK"));
    assert_int_equal(http_parser_feed(p, STR("llo"), &used, NULL), 0);
    assert_true(str_eq_c(http_field_get(s.head, "x-a"), "b"));
    http_parser_free(p);
}

static void test_callbacks_stop(void **state)
{
    (void)state;
    const struct str in = STR("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    for (int i = 0; i < 3; i++) {
        struct seen s = {.head_rc = i == 0 ? -ECANCELED : 0, .body_rc = i == 1 ? -ENOSPC : 0, .end_rc = i == 2 ? -EPERM : 0};
        int want = i == 0 ? -ECANCELED : i == 1 ? -ENOSPC : -EPERM;
        struct http_parser *p = http_parser_new(HTTP_REQUEST, &seen_ops, &s);
        size_t used = 77;
        struct err err = {0};
        assert_int_equal(http_parser_feed(p, in, &used, &err), want);
        assert_int_equal(err.code, want);
        assert_int_equal(used, 77);
        assert_int_equal(http_parser_feed(p, STR("GET"), &used, &err), want);
        assert_int_equal(http_parser_eof(p), want);
        assert_int_equal(s.heads, 1);
        assert_int_equal(s.body, i == 0 ? 0 : 1);
        assert_int_equal(s.ends, i == 2 ? 1 : 0);
        http_parser_free(p);
    }
}

static void test_eof_callback_error(void **state)
{
    (void)state;
    struct seen s = {.end_rc = -EPERM};
    struct http_parser *p = http_parser_new(HTTP_RESPONSE, &seen_ops, &s);
    size_t used = 0;
    assert_int_equal(http_parser_feed(p, STR("HTTP/1.1 200 OK\r\n\r\n"), &used, NULL), 0);
    assert_int_equal(http_parser_eof(p), -EPERM);
    assert_int_equal(s.ends, 1);
    http_parser_free(p);
}

/* What a HEAD was asked for is forgotten after its response. */
static void test_expect_head_once(void **state)
{
    (void)state;
    struct seen s = {0};
    struct http_parser *p = http_parser_new(HTTP_RESPONSE, &seen_ops, &s);
    const struct str in = STR("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    size_t used = 0;
    http_parser_expect_head(p);
    assert_int_equal(http_parser_feed(p, in, &used, NULL), 0);
    assert_int_equal(s.ends, 1);
    assert_true(s.head->keep_alive);
    assert_int_equal(http_parser_feed(p, in, &used, NULL), 0);
    assert_int_equal(s.ends, 1);
    assert_int_equal(http_parser_feed(p, STR("body"), &used, NULL), 0);
    assert_int_equal(s.ends, 2);
    assert_int_equal(s.body, 4);
    http_parser_free(p);
}

/* A long head's memory is given back, a short one's is used again. */
static void test_memory_kept(void **state)
{
    (void)state;
    struct seen s = {0};
    struct http_parser *p = http_parser_new(HTTP_REQUEST, &seen_ops, &s);
    base_autobuf struct buf in = BUF_INIT(HTTP_HEAD_MAX);
    buf_add_c(&in, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    for (int i = 0; i < 40000; i++)
        buf_add_char(&in, 'x');
    buf_add_c(&in, "\r\n\r\n");
    size_t used = 0;
    assert_int_equal(http_parser_feed(p, buf_str(&in), &used, NULL), 0);
    assert_true(p->head_bytes.cap >= 40000);
    assert_int_equal(http_parser_feed(p, STR("GET / HTTP/1.1\r\n"), &used, NULL), 0);
    assert_true(p->head_bytes.cap <= HEAD_KEEP_BYTES);
    http_parser_free(p);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct seen s = {0};
    no_memory = true;
    assert_null(http_parser_new(HTTP_REQUEST, &seen_ops, &s));
    no_memory = false;
    /* a buffer that cannot grow is an error of its own, not a malformed message */
    struct http_parser *p = http_parser_new(HTTP_REQUEST, &seen_ops, &s);
    p->head_bytes.max = 8;
    size_t used = 0;
    struct err err = {0};
    assert_int_equal(http_parser_feed(p, STR("GET / HTTP/1.1\r\n"), &used, &err), -ENOMEM);
    http_parser_free(p);
}

/* Which fields end here is settled once for each head: by name, and by what its Connection fields name, wherever they stand. */
static void test_hops(void **state)
{
    (void)state;
    static const struct {
        const char *head, *hops; /* a letter for each field */
    } cases[] = {
        {"Host: a\r\nX-A: 1\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\n", "nnhh"},
        {"Host: a\r\nX-A: 1\r\nConnection: Close\r\nTE: trailers\r\nte-x: 1\r\n", "nnhhn"},
        {"X-A: 1\r\nHost: a\r\nConnection: close, x-a\r\nX-B: 2\r\nconnection: X-B\r\nX-AB: 3\r\n", "hnhhhn"},
        {"Host: a\r\nUpgrade: h2c\r\nProxy-Authorization: x\r\nTransfer-Encodings: y\r\n", "nhhn"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct seen s = {0};
        struct http_parser *p = http_parser_new(HTTP_REQUEST, &seen_ops, &s);
        size_t used = 0;
        assert_int_equal(http_parser_feed(p, STR("GET / HTTP/1.1\r\n"), &used, NULL), 0);
        assert_int_equal(http_parser_feed(p, str_of(cases[i].head), &used, NULL), 0);
        assert_int_equal(http_parser_feed(p, STR("\r\n"), &used, NULL), 0);
        assert_int_equal(s.head->n_fields, strlen(cases[i].hops));
        for (size_t k = 0; k < s.head->n_fields; k++) {
            assert_true(s.head->fields[k].sound);
            assert_int_equal(s.head->fields[k].hop, cases[i].hops[k] == 'h');
            assert_int_equal(s.head->fields[k].hop, http_field_hop(s.head, s.head->fields[k].name));
        }
        http_parser_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_message_at_a_time), cmocka_unit_test(test_views_outlive_input), cmocka_unit_test(test_callbacks_stop),
        cmocka_unit_test(test_eof_callback_error),    cmocka_unit_test(test_expect_head_once),    cmocka_unit_test(test_memory_kept),
        cmocka_unit_test(test_out_of_memory),         cmocka_unit_test(test_hops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
