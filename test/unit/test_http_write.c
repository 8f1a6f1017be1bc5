/* SPDX-License-Identifier: MIT
 *
 * http: writing heads, and looking into parsed ones. What is written is parsed again where that says more than a comparison.
 */
#include <base/base.h>
#include <http/http.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_request(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(4096);
    assert_int_equal(http_write_request(&b, STR("POST"), STR("/v1/%2f?x=\"|")), 0);
    assert_int_equal(http_write_field(&b, STR("Host"), STR("a:1")), 0);
    assert_int_equal(http_write_field(&b, STR("X-Empty"), STR("")), 0);
    assert_int_equal(http_write_field(&b, STR("X-T"), STR("a\tb \xc3\xa4")), 0);
    http_write_head_end(&b);
    assert_string_equal(b.ptr, "POST /v1/%2f?x=\"| HTTP/1.1\r\nHost: a:1\r\nX-Empty: \r\nX-T: a\tb \xc3\xa4\r\n\r\n");
}

static void test_refused(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    static const struct str bad_names[] = {{"", 0}, {NULL, 0}, {"a b", 3}, {"a:", 2}, {"a\r\n", 3}, {"a\0", 2}, {" a", 2}, {"\xc3\xa4", 2}};
    for (size_t i = 0; i < BASE_COUNT(bad_names); i++)
        assert_int_equal(http_write_field(&b, bad_names[i], STR("v")), -EINVAL);
    static const struct str bad_values[] = {{"a\r\nB: c", 7}, {"a\n", 2}, {"\r", 1}, {"a\0b", 3}, {"\x7f", 1}, {"\x1b[0m", 4}};
    for (size_t i = 0; i < BASE_COUNT(bad_values); i++)
        assert_int_equal(http_write_field(&b, STR("A"), bad_values[i]), -EINVAL);
    static const struct str bad_targets[] = {{"", 0}, {"/a b", 4}, {"/\r\n", 3}, {"/#", 2}, {"/\xc3\xa4", 3}, {"/\0", 2}};
    for (size_t i = 0; i < BASE_COUNT(bad_targets); i++)
        assert_int_equal(http_write_request(&b, STR("GET"), bad_targets[i]), -EINVAL);
    static char longest[HTTP_TARGET_MAX + 1];
    memset(longest, '/', sizeof longest);
    assert_int_equal(http_write_request(&b, STR("GET"), (struct str){longest, sizeof longest}), -EINVAL);
    assert_int_equal(http_write_request(&b, STR("GET /"), STR("/")), -EINVAL);
    assert_int_equal(http_write_request(&b, STR(""), STR("/")), -EINVAL);
    assert_int_equal(http_write_status(&b, 99), -EINVAL);
    assert_int_equal(http_write_status(&b, 600), -EINVAL);
    assert_int_equal(b.len, 0);
}

static void test_no_room(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(24);
    assert_int_equal(http_write_status(&b, 200), 0);
    assert_int_equal(http_write_field(&b, STR("Content-Type"), STR("text/plain")), -E2BIG);
    assert_int_equal(http_write_request(&b, STR("GET"), STR("/")), -E2BIG);
}

static void test_status(void **state)
{
    (void)state;
    static const struct {
        unsigned status;
        const char *line;
    } cases[] = {
        {200, "HTTP/1.1 200 OK\r\n"},        {404, "HTTP/1.1 404 Not Found\r\n"}, {503, "HTTP/1.1 503 Service Unavailable\r\n"},
        {100, "HTTP/1.1 100 Continue\r\n"}, {599, "HTTP/1.1 599 Unknown\r\n"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf b = BUF_INIT(100);
        assert_int_equal(http_write_status(&b, cases[i].status), 0);
        assert_string_equal(b.ptr, cases[i].line);
    }
}

static void test_chunk_line(void **state)
{
    (void)state;
    static const struct {
        uint64_t len;
        const char *line;
    } cases[] = {{1, "1\r\n"}, {16, "10\r\n"}, {0xabcdef, "abcdef\r\n"}, {UINT64_MAX, "ffffffffffffffff\r\n"}, {0, "0\r\n"}};
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char out[HTTP_CHUNK_LINE];
        size_t n = http_chunk_line(cases[i].len, out);
        assert_int_equal(n, strlen(cases[i].line));
        assert_memory_equal(out, cases[i].line, n);
    }
}

/* Values are looked at in pieces of eight bytes: one bad byte is found wherever it is. */
static void test_each_place(void **state)
{
    (void)state;
    static const char bad[] = {'\0', '\n', '\r', '\x1f', '\x7f'}, good[] = {'\t', ' ', '~', '\x80', '\xff'};
    for (size_t len = 1; len <= 26; len++)
        for (size_t at = 0; at < len; at++)
            for (size_t k = 0; k < BASE_COUNT(bad); k++) {
                base_autobuf struct buf b = BUF_INIT(100);
                char *value = malloc(len); /* exactly so many: nothing is read behind it */
                assert_non_null(value);
                memset(value, 'v', len);
                value[at] = good[k];
                assert_int_equal(http_write_field(&b, STR("N"), (struct str){value, len}), 0);
                assert_int_equal(b.len, len + 5);
                value[at] = bad[k];
                assert_int_equal(http_write_field(&b, STR("N"), (struct str){value, len}), -EINVAL);
                assert_int_equal(http_write_field(&b, (struct str){value, len}, STR("v")), -EINVAL);
                assert_int_equal(b.len, len + 5);
                free(value);
            }
}

/* Only who parsed a field may say that it is sound. */
static void test_known_field(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(1000);
    struct http_field f = {.name = STR("A"), .value = STR("b\rc")};
    assert_int_equal(http_write_known_field(&b, &f), -EINVAL);
    f.value = STR("b");
    assert_int_equal(http_write_known_field(&b, &f), 0);
    f.sound = true;
    assert_int_equal(http_write_known_field(&b, &f), 0);
    assert_string_equal(b.ptr, "A: b\r\nA: b\r\n");
}

static void test_fields(void **state)
{
    (void)state;
    static const struct http_field f[] = {
        {.name = {"Host", 4}, .value = {"a", 1}},
        {.name = {"Connection", 10}, .value = {"close, X-Once", 13}},
        {.name = {"X-Once", 6}, .value = {"1", 1}},
        {.name = {"connection", 10}, .value = {"x-twice ,", 9}},
        {.name = {"X-Empty", 7}, .value = {"", 0}},
        {.name = {"host", 4}, .value = {"b", 1}},
    };
    struct http_head h = {.fields = f, .n_fields = BASE_COUNT(f)};
    assert_true(str_eq_c(http_field_get(&h, "hOST"), "a"));
    assert_non_null(http_field_get(&h, "x-empty").ptr);
    assert_int_equal(http_field_get(&h, "x-empty").len, 0);
    assert_null(http_field_get(&h, "hos").ptr);
    assert_null(http_field_get(&h, "hostx").ptr);
    assert_true(http_field_has(&h, "connection", "CLOSE"));
    assert_true(http_field_has(&h, "connection", "X-Twice"));
    assert_false(http_field_has(&h, "connection", "x"));
    assert_false(http_field_has(&h, "connection", "close, x-once"));
    assert_false(http_field_has(&h, "upgrade", "x"));

    static const char *const hop[] = {"Connection", "keep-alive", "Proxy-Connection", "PROXY-AUTHENTICATE", "Proxy-Authorization", "TE",
                                      "Trailer", "Transfer-Encoding", "Upgrade", "x-once", "X-TWICE", "close"};
    for (size_t i = 0; i < BASE_COUNT(hop); i++)
        assert_true(http_field_hop(&h, str_of(hop[i])));
    static const char *const end[] = {"Host", "Authorization", "Content-Length", "Retry-After", "X-Empty", "TE-", "Trailers"};
    for (size_t i = 0; i < BASE_COUNT(end); i++)
        assert_false(http_field_hop(&h, str_of(end[i])));
}

static void test_target_path(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/", "/"},
        {"/v1/models?x=1?y", "/v1/models"},
        {"/a%2Fb//c", "/a%2Fb//c"},
        {"?x", ""},
        {"http://a:1/v1/x?y=://", "/v1/x"},
        {"https://a", "/"},
        {"http://a?x=/", "/"},
        {"/x?u=http://a/b", "/x"},
        {"/x://y", "/x://y"},
        {"*", "*"},
        {"a:443", "a:443"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct str path = http_target_path(str_of(cases[i][0]));
        if (!str_eq_c(path, cases[i][1]))
            fail_msg("path of '%s' is '" STR_FMT "'", cases[i][0], STR_ARG(path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),    cmocka_unit_test(test_refused), cmocka_unit_test(test_no_room), cmocka_unit_test(test_status),
        cmocka_unit_test(test_chunk_line), cmocka_unit_test(test_each_place), cmocka_unit_test(test_known_field), cmocka_unit_test(test_fields),  cmocka_unit_test(test_target_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
