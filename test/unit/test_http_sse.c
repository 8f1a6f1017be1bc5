/* SPDX-License-Identifier: MIT
 *
 * http: event streams split into events, whole and in every pair of pieces.
 */
#include <base/base.h>
#include <http/http.h>

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Writes what the splitter says of a stream that comes in two pieces: one line "name|data" for each event, "-" for one without data. */
static void split(struct str text, size_t at, size_t max, struct buf *out)
{
    struct http_sse s;
    struct http_sse_event e;
    http_sse_init(&s, max);
    struct str pieces[] = {{text.ptr, at}, {text.ptr + at, text.len - at}};
    for (size_t i = 0; i < BASE_COUNT(pieces); i++)
        while (pieces[i].len) {
            size_t used = 0;
            int r = http_sse_feed(&s, pieces[i], &used, &e);
            assert_true(r >= 0 && used > 0 && used <= pieces[i].len);
            assert_true(r == 1 || used == pieces[i].len);
            pieces[i].ptr += used;
            pieces[i].len -= used;
            if (r == 0)
                continue;
            assert_true(http_sse_between(&s));
            buf_add_str(out, e.name);
            buf_add_char(out, '|');
            if (e.has_data)
                buf_add_str(out, e.data);
            else
                buf_add_char(out, '-');
            buf_add_c(out, e.cut ? "~;" : ";");
        }
    if (!http_sse_between(&s))
        buf_add_c(out, "open");
    http_sse_release(&s);
}

static void check(const char *text, const char *want)
{
    struct str s = str_of(text);
    for (size_t at = 0; at <= s.len; at++) {
        base_autobuf struct buf got = BUF_INIT(4096);
        split(s, at, 1024, &got);
        if (!str_eq_c(buf_str(&got), want))
            fail_msg("\"%s\" in pieces at %zu gives \"%s\", not \"%s\"", text, at, got.ptr ? got.ptr : "", want);
    }
}

static void events(void **state)
{
    (void)state;
    check("", "");
    check("data: 1\n\n", "|1;");
    check("data: 1\n\ndata: 2\n\n", "|1;|2;");
    check("event: ping\ndata: {}\n\n", "ping|{};");
    check("data:1\nid: 7\nretry: 3\ndata:  2\n\n", "|1\n 2;");
    check("data\n\n", "|;");
    check("data: a:b\n\n", "|a:b;");
    check("event: a\nevent: b\ndata: x\n\ndata: y\n\n", "b|x;|y;");
    check("datax: 1\n\n", "|-;");
}

static void comments_and_ends(void **state)
{
    (void)state;
    check(":\n\n", "|-;");
    check(": keep-alive\n\ndata: 1\n\n", "|-;|1;");
    check("\n\ndata: 1\n\n", "|-;|-;|1;");
    check("data: 1\r\n\r\ndata: 2\r\n\r\n", "|1;|2;");
    check("data: 1\n\r\ndata: 2\r\n\n", "|1;|2;");
    check("\xef\xbb\xbf" "data: 1\n\n\xef\xbb\xbf" "data: 2\n\n", "|1;|-;");
    check("data: 1", "open");
    check("data: 1\n", "open");
    check("data: 1\n\nda", "|1;open");
}

/* An empty line of CR alone ends an event before it is known whether LF follows; that LF is then no empty line of its own. */
static void bare_cr(void **state)
{
    (void)state;
    check("data: 1\r\rdata: 2\r\r", "|1;|2;");
}

static void bounded(void **state)
{
    (void)state;
    base_autobuf struct buf text = BUF_INIT(1 << 16), got = BUF_INIT(1 << 16);
    buf_add_c(&text, "data: ");
    for (int i = 0; i < 5000; i++)
        buf_add_char(&text, 'x');
    buf_add_c(&text, "\n\ndata: 1\n\n");
    for (size_t at = 0; at < text.len; at += 997) {
        buf_clear(&got);
        split(buf_str(&text), at, 64, &got);
        assert_true(got.len < 80);
        assert_true(str_ends(buf_str(&got), STR("x~;|1;")));
    }
    /* a name that is too long */
    buf_clear(&text);
    buf_clear(&got);
    buf_add_c(&text, "event: ");
    for (int i = 0; i < 500; i++)
        buf_add_char(&text, 'n');
    buf_add_c(&text, "\ndata: 1\n\n");
    split(buf_str(&text), 0, 1024, &got);
    assert_int_equal(got.len, HTTP_SSE_NAME_MAX - 1 + 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events),
        cmocka_unit_test(comments_and_ends),
        cmocka_unit_test(bare_cr),
        cmocka_unit_test(bounded),
    };
    return cmocka_run_group_tests_name("http_sse", tests, NULL, NULL);
}
