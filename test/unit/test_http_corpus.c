/* SPDX-License-Identifier: MIT
 *
 * Replays test/http/parse/ (see the README there): bytes in, transcript out. Each case runs four times: fed in one piece, byte by byte, in
 * pieces of 7 bytes and cut in two halves, and must come to the same verdict each time.
 */
#include <base/base.h>
#include <http/http.h>

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CASES_DIR "test/http/parse"
#define CASES_MIN 60

struct run {
    struct buf out;     /* transcript */
    struct buf body;    /* of the current message, shown as one whatever its pieces */
    bool request;
    bool heads_only;    /* every response answers HEAD */
};

static int on_head(void *ctx, const struct http_head *h)
{
    struct run *r = ctx;
    if (r->request) {
        buf_addf(&r->out, "head " STR_FMT " ", STR_ARG(h->method));
        buf_add_printable(&r->out, h->target, 60);
        buf_addf(&r->out, " 1.%u", h->minor);
    } else {
        buf_addf(&r->out, "head %u \"" STR_FMT "\" 1.%u", h->status, STR_ARG(h->reason), h->minor);
    }
    if (h->chunked)
        buf_add_c(&r->out, " chunked");
    if (h->content_length >= 0)
        buf_addf(&r->out, " length=%lld", (long long)h->content_length);
    buf_add_c(&r->out, h->keep_alive ? " keep" : " close");
    if (h->expect_continue)
        buf_add_c(&r->out, " expect");
    if (h->upgrade)
        buf_add_c(&r->out, " upgrade");
    buf_add_char(&r->out, '\n');
    for (size_t i = 0; i < h->n_fields && i < 8; i++) {
        buf_addf(&r->out, "field " STR_FMT ": ", STR_ARG(h->fields[i].name));
        buf_add_printable(&r->out, h->fields[i].value, 60);
        buf_add_char(&r->out, '\n');
    }
    if (h->n_fields > 8)
        buf_addf(&r->out, "fields %zu\n", h->n_fields);
    return 0;
}

static int on_body(void *ctx, struct str data)
{
    struct run *r = ctx;
    assert_true(data.len > 0);
    buf_add_str(&r->body, data);
    return 0;
}

static void flush_body(struct run *r)
{
    if (r->body.len) {
        buf_add_c(&r->out, "body ");
        buf_add_printable(&r->out, buf_str(&r->body), 60);
        buf_add_char(&r->out, '\n');
    }
    buf_clear(&r->body);
}

static int on_end(void *ctx)
{
    struct run *r = ctx;
    flush_body(r);
    buf_add_c(&r->out, "end\n");
    return 0;
}

/* Feeds in pieces of `piece` bytes, then closes. What follows a message is fed again, as a server does with pipelined requests. */
static void replay(struct run *r, struct str in, size_t piece)
{
    static const struct http_parser_ops ops = {on_head, on_body, on_end};
    struct http_parser *p = http_parser_new(r->request ? HTTP_REQUEST : HTTP_RESPONSE, &ops, r);
    assert_non_null(p);
    struct err err = {0};
    int rc = 0;
    for (size_t i = 0; i < in.len && rc == 0;) {
        if (r->heads_only && http_parser_idle(p))
            http_parser_expect_head(p);
        size_t n = in.len - i < piece ? in.len - i : piece, used = 0;
        /* an exact copy, so that a read past the end is seen by the sanitizer */
        char *exact = malloc(n);
        assert_non_null(exact);
        memcpy(exact, in.ptr + i, n);
        rc = http_parser_feed(p, (struct str){exact, n}, &used, &err);
        free(exact);
        if (rc == 0) {
            assert_true(used > 0 && used <= n);
            i += used;
        }
    }
    if (rc < 0) {
        flush_body(r);
        assert_int_equal(err.code, rc);
        buf_addf(&r->out, "refused %s: %s\n", rc == -EBADMSG ? "bad" : rc == -EMSGSIZE ? "large" : rc == -EPROTO ? "protocol" : "?", err.text);
        size_t used = 0;
        assert_int_equal(http_parser_feed(p, STR("x"), &used, NULL), rc);
        assert_int_equal(http_parser_eof(p), rc);
    } else {
        bool idle = http_parser_idle(p);
        rc = http_parser_eof(p);
        flush_body(r);
        if (!idle)
            buf_addf(&r->out, "closed %s\n", rc == 0 ? "whole" : rc == -ECONNRESET ? "early" : "?");
        else
            assert_int_equal(rc, 0);
    }
    assert_int_equal(buf_status(&r->out), 0);
    http_parser_free(p);
}

/* ---- the text format ------------------------------------------------------------------------------------- */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void add_escaped(struct buf *b, struct str s, const char *where)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] != '\\') {
            buf_add_char(b, s.ptr[i]);
            continue;
        }
        char c = i + 1 < s.len ? s.ptr[++i] : 0;
        if (c == 'x' && i + 2 < s.len && hex(s.ptr[i + 1]) >= 0 && hex(s.ptr[i + 2]) >= 0) {
            buf_add_char(b, (char)(hex(s.ptr[i + 1]) * 16 + hex(s.ptr[i + 2])));
            i += 2;
        } else if (c == 'r' || c == 'n' || c == 't' || c == '0' || c == '\\') {
            buf_add_char(b, c == 'r' ? '\r' : c == 'n' ? '\n' : c == 't' ? '\t' : c == '0' ? '\0' : '\\');
        } else {
            fail_msg("%s: unknown escape", where);
        }
    }
}

/* "in TEXT" or "in*COUNT TEXT". */
static void add_input(struct buf *b, struct str line, const char *where)
{
    uint64_t times = 1;
    if (line.ptr[2] == '*') {
        struct str rest = {line.ptr + 3, line.len - 3}, count = str_split(&rest, ' ');
        if (str_to_u64(count, &times) < 0 || !rest.ptr)
            fail_msg("%s: bad count", where);
        line = rest;
    } else {
        line = (struct str){line.ptr + 3, line.len - 3};
    }
    while (times--)
        add_escaped(b, line, where);
}

/* The transcript, line by line; a refusal matches when the text after its word is part of the message. */
static void compare(struct str want, struct str got, const char *where, size_t piece)
{
    struct str w = want, g = got;
    while (w.len || g.len) {
        struct str a = str_split(&w, '\n'), b = str_split(&g, '\n');
        if (str_eq(a, b))
            continue;
        ptrdiff_t colon = str_find_char(a, ':');
        if (str_starts(a, STR("refused ")) && colon > 0 && str_starts(b, (struct str){a.ptr, (size_t)colon + 1})) {
            struct str part = str_trim((struct str){a.ptr + colon + 1, a.len - (size_t)colon - 1});
            if (!part.len || str_find(b, part) >= 0)
                continue;
        }
        fail_msg("%s, in pieces of %zu:\n--- expected\n" STR_FMT "--- got\n" STR_FMT, where, piece, STR_ARG(want), STR_ARG(got));
    }
}

struct one {
    char where[6144];
    bool request, heads_only;
    struct buf in, want;
};

static void run_case(struct one *c)
{
    assert_int_equal(buf_status(&c->in) | buf_status(&c->want), 0);
    if (!c->want.len)
        fail_msg("%s: expects nothing", c->where);
    size_t pieces[] = {c->in.len ? c->in.len : 1, 1, 7, c->in.len / 2 + 1};
    for (size_t i = 0; i < BASE_COUNT(pieces); i++) {
        struct run r = {.out = BUF_INIT(1 << 20), .body = BUF_INIT(1 << 20), .request = c->request, .heads_only = c->heads_only};
        replay(&r, buf_str(&c->in), pieces[i]);
        compare(buf_str(&c->want), buf_str(&r.out), c->where, pieces[i]);
        buf_release(&r.out);
        buf_release(&r.body);
    }
}

static int run_file(const char *path)
{
    static char text[1 << 18];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t len = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    assert_true(len < sizeof text);

    int cases = 0;
    struct one c = {.in = BUF_INIT(1 << 20), .want = BUF_INIT(1 << 20)};
    struct str rest = {text, len};
    for (int n = 1; rest.ptr; n++) {
        struct str line = str_split(&rest, '\n');
        char where[600];
        snprintf(where, sizeof where, "%s:%d", path, n);
        if (str_starts(line, STR("== "))) {
            if (cases++)
                run_case(&c);
            buf_clear(&c.in);
            buf_clear(&c.want);
            struct str kind = {line.ptr + 3, line.len - 3}, name = kind;
            kind = str_split(&name, ' ');
            snprintf(c.where, sizeof c.where, "%s:%d " STR_FMT, path, n, STR_ARG(name));
            c.request = str_eq_c(kind, "request");
            c.heads_only = str_eq_c(kind, "response-to-head");
            if (!c.request && !c.heads_only && !str_eq_c(kind, "response"))
                fail_msg("%s: unknown kind", where);
        } else if (!line.len || line.ptr[0] == '#') {
            continue;
        } else if (!cases) {
            fail_msg("%s: a line before the first case", where);
        } else if (str_starts(line, STR("in ")) || str_starts(line, STR("in*"))) {
            add_input(&c.in, line, where);
        } else {
            buf_add_str(&c.want, line);
            buf_add_char(&c.want, '\n');
        }
    }
    if (cases)
        run_case(&c);
    buf_release(&c.in);
    buf_release(&c.want);
    return cases;
}

static void test_all_files(void **state)
{
    (void)state;
    DIR *d = opendir(CASES_DIR);
    assert_non_null(d);
    int cases = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (!str_ends(str_of(e->d_name), STR(".txt")))
            continue;
        char path[512];
        snprintf(path, sizeof path, CASES_DIR "/%s", e->d_name);
        int n = run_file(path);
        assert_true(n > 0);
        cases += n;
    }
    closedir(d);
    print_message("%d cases\n", cases);
    assert_true(cases >= CASES_MIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
