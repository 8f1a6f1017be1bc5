/* SPDX-License-Identifier: MIT
 *
 * What servers say, as hub reads it: fields of heads, pages of the tree API, and the journal's text.
 */
#include <hub/hub_int.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <cmocka.h>

/* ---- fields ---------------------------------------------------------------------------------------------------------------- */

static void ranges(void **state)
{
    static const struct {
        const char *text;
        uint64_t from, to, total;
    } good[] = {
        {"bytes 0-99/100", 0, 99, 100},
        {"bytes 16777216-33554431/50000000000", 16777216, 33554431, 50000000000u},
        {"Bytes 5-5/*", 5, 5, HUB_UNKNOWN},
        {"bytes */1234", HUB_UNKNOWN, HUB_UNKNOWN, 1234},
        {" bytes 0-0/1 ", 0, 0, 1},
    };
    static const char *const bad[] = {"", "bytes", "bytes ", "bytes 0-99", "bytes 0-99/", "bytes 9-8/100", "bytes 0-100/100", "bytes */*", "bytes -5/10", "bytes 0-/10", "bytes 0-9/10x", "lines 0-9/10", "bytes 0-18446744073709551615/*",
                                      "bytes 0-18446744073709551616/*", "bytes 0 - 9/10"};
    struct hub_range r;
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(good); i++) {
        assert_true(hub_parse_range(str_of(good[i].text), &r));
        assert_true(r.from == good[i].from && r.to == good[i].to && r.total == good[i].total);
    }
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_false(hub_parse_range(str_of(bad[i]), &r));
}

static void links(void **state)
{
    static const struct {
        const char *text, *next;
    } cases[] = {
        {"<https://h/api?cursor=abc>; rel=\"next\"", "https://h/api?cursor=abc"},
        {"<https://h/1>; rel=\"prev\", <https://h/2>; rel=next", "https://h/2"},
        {"<https://h/1>; title=\"x\"; rel=\"next\"", "https://h/1"},
        {"<https://h/1>; REL=\"Next\"", "https://h/1"},
        {"<https://h/1>; rel=\"last\"", NULL},
        {"<https://h/1>", NULL},
        {"<https://h/1", NULL},
        {"<>; rel=\"next\"", NULL},
        {"rel=\"next\"", NULL},
        {"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct str next;
        assert_int_equal(hub_parse_next(str_of(cases[i].text), &next), cases[i].next != NULL);
        if (cases[i].next)
            assert_true(str_eq_c(next, cases[i].next));
    }
}

static void pauses(void **state)
{
    uint64_t ms = 0;
    (void)state;
    assert_true(hub_parse_retry_after(STR("120"), 0, &ms));
    assert_int_equal(ms, 120000);
    assert_true(hub_parse_retry_after(STR(" 0 "), 0, &ms));
    assert_int_equal(ms, 0);
    /* a server cannot stop us for a year */
    assert_true(hub_parse_retry_after(STR("31536000"), 0, &ms));
    assert_int_equal(ms, HUB_WAIT_MAX_MS);
    assert_true(hub_parse_retry_after(STR("99999999999999999999999"), 0, &ms));
    assert_int_equal(ms, HUB_WAIT_MAX_MS);
    /* 784111777 is 1994-11-06T08:49:37Z */
    assert_true(hub_parse_retry_after(STR("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777 - 90, &ms));
    assert_int_equal(ms, 90000);
    assert_true(hub_parse_retry_after(STR("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777 + 90, &ms));
    assert_int_equal(ms, 0);
    assert_true(hub_parse_retry_after(STR("Thu, 29 Feb 2024 00:00:00 GMT"), 1709164800 - 1, &ms));
    assert_int_equal(ms, 1000);
    assert_true(hub_parse_retry_after(STR("Fri, 01 Mar 2024 00:00:00 GMT"), 1709251200 - 2, &ms));
    assert_int_equal(ms, 2000);
    static const char *const bad[] = {"", "soon", "-1", "1.5", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 06 Foo 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 25:49:37 GMT"};
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_false(hub_parse_retry_after(str_of(bad[i]), 0, &ms));
    assert_true(hub_parse_rate_limit(STR("\"api\";r=0;t=55"), &ms));
    assert_int_equal(ms, 55000);
    assert_true(hub_parse_rate_limit(STR("limit=100, remaining=0, reset=7"), &ms));
    assert_int_equal(ms, 7000);
    assert_false(hub_parse_rate_limit(STR("\"api\";r=12;t=55"), &ms));
    assert_false(hub_parse_rate_limit(STR("\"api\";r=0"), &ms));
    assert_false(hub_parse_rate_limit(STR(""), &ms));
}

static void heads(void **state)
{
    static const char *const lines[] = {"HTTP/1.1 200 OK", "Content-Length: 5", "HTTP/1.1 206 Partial Content", "content-length:  100 ", "Content-Range: bytes 0-99/1000", "ETag: \"abc\"", "Content-Type: Text/HTML; charset=utf-8",
                                        "X-Linked-Etag: \"07580f7fba611dd2f71d7d0b20e8b277c0ac815a5c7afeb8b64d9a06b3cd22ed\"", "X-Linked-Size: 1000", "Retry-After: 3", "RateLimit: \"x\";r=0;t=9", "X-Error-Code: GatedRepo", "no field"};
    static struct hub_head h;
    (void)state;
    hub_head_clear(&h);
    for (size_t i = 0; i < BASE_COUNT(lines); i++)
        hub_head_line(&h, str_of(lines[i]), 0);
    assert_int_equal(h.status, 206);
    assert_int_equal(h.length, 100); /* of the last head, not the first */
    assert_true(h.has_range && h.range.total == 1000);
    assert_string_equal(h.etag, "\"abc\"");
    assert_string_equal(h.type, "text/html");
    assert_string_equal(h.linked_etag, "07580f7fba611dd2f71d7d0b20e8b277c0ac815a5c7afeb8b64d9a06b3cd22ed");
    assert_int_equal(h.linked_size, 1000);
    assert_int_equal(h.wait_ms, 9000);
    assert_string_equal(h.error, "GatedRepo");
    assert_false(h.bad || h.encoded);
    /* what contradicts itself, or is cut to something else, is not used */
    hub_head_line(&h, STR("Content-Length: 101"), 0);
    assert_true(h.bad);
    hub_head_line(&h, STR("HTTP/1.1 200 OK"), 0);
    assert_false(h.bad);
    hub_head_line(&h, STR("ETag: W/\"weak\""), 0);
    assert_string_equal(h.etag, "");
    hub_head_line(&h, STR("ETag: \"a\tb\""), 0);
    assert_string_equal(h.etag, "");
    hub_head_line(&h, STR("Content-Encoding: gzip"), 0);
    assert_true(h.encoded);
    hub_head_line(&h, STR("Content-Length: -1"), 0);
    assert_true(h.bad);
    static char location[HUB_URL_MAX + 20] = "Location: ";
    memset(location + 10, 'a', HUB_URL_MAX);
    hub_head_line(&h, STR("HTTP/1.1 302 Found"), 0);
    hub_head_line(&h, str_of(location), 0);
    assert_true(h.bad && !h.location[0]);
}

static void escaped(void **state)
{
    struct buf out = BUF_INIT(256);
    (void)state;
    hub_escape_path(&out, "a b/ü%?#+.gguf");
    assert_string_equal(out.ptr, "a%20b/%C3%BC%25%3F%23%2B.gguf");
    buf_release(&out);
}

/* ---- the API ----------------------------------------------------------------------------------------------------------------- */

#define SHA "07580f7fba611dd2f71d7d0b20e8b277c0ac815a5c7afeb8b64d9a06b3cd22ed"
#define SHA1 "5ead2c62ec092e5ff3e91b88ef2f6ba46db63ee8"

static void tree_page(void **state)
{
    struct hub_tree t = {0};
    size_t cap = 0;
    struct err err;
    (void)state;
    assert_int_equal(hub_parse_tree(STR("[{\"type\":\"directory\",\"oid\":\"x\",\"size\":0,\"path\":\"d\"},"
                                        "{\"type\":\"file\",\"oid\":\"" SHA1 "\",\"size\":7,\"path\":\"d/config.json\"},"
                                        "{\"type\":\"file\",\"oid\":\"" SHA1 "\",\"size\":50000000000,\"path\":\"w.gguf\",\"lfs\":{\"oid\":\"" SHA "\",\"size\":50000000000,\"pointerSize\":134}}]"),
                                    &t, &cap, &err),
                     0);
    assert_int_equal(hub_parse_tree(STR("[{\"type\":\"file\",\"oid\":\"" SHA1 "\",\"size\":1,\"path\":\"z\"}]"), &t, &cap, &err), 0);
    assert_int_equal(t.n_files, 3);
    assert_string_equal(t.files[0].path, "d/config.json");
    assert_string_equal(t.files[0].git_sha1, SHA1);
    assert_null(t.files[0].sha256);
    assert_int_equal(t.files[1].bytes, 50000000000);
    assert_string_equal(t.files[1].sha256, SHA);
    assert_null(t.files[1].git_sha1);
    hub_tree_release(&t);
}

static int parse_entry(const char *entry, struct err *err)
{
    struct hub_tree t = {0};
    size_t cap = 0;
    struct buf text = BUF_INIT(4096);
    buf_addf(&text, "[%s]", entry);
    int r = hub_parse_tree(buf_str(&text), &t, &cap, err);
    buf_release(&text);
    hub_tree_release(&t);
    return r;
}

static void tree_refusals(void **state)
{
    struct err err;
    (void)state;
    /* names that would leave the folder */
    static const char *const names[] = {"../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/./b", "a\\u0000b", "a\\nb"};
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        struct buf e = BUF_INIT(1024);
        buf_addf(&e, "{\"type\":\"file\",\"oid\":\"" SHA1 "\",\"size\":1,\"path\":\"%s\"}", names[i]);
        assert_int_equal(parse_entry(e.ptr, &err), -EBADMSG);
        buf_release(&e);
    }
    static const char *const bad[] = {
        "1",
        "{}",
        "{\"type\":\"file\",\"path\":\"a\"}",
        "{\"type\":\"file\",\"path\":\"a\",\"size\":-1,\"oid\":\"" SHA1 "\"}",
        "{\"type\":\"file\",\"path\":\"a\",\"size\":9300000000000000000,\"oid\":\"" SHA1 "\"}",
        "{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"short\"}",
        "{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"" SHA1 "\",\"lfs\":{\"oid\":\"short\"}}",
        "{\"type\":\"file\",\"path\":\"a\",\"size\":1,\"oid\":\"5EAD2C62EC092E5FF3E91B88EF2F6BA46DB63EE8\"}",
    };
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        assert_int_equal(parse_entry(bad[i], &err), -EPROTO);
    struct hub_tree t = {0};
    size_t cap = 0;
    assert_int_equal(hub_parse_tree(STR("{\"error\":\"no\"}"), &t, &cap, &err), -EPROTO);
    assert_int_equal(hub_parse_tree(STR("<html>"), &t, &cap, &err), -EPROTO);
    hub_tree_release(&t);
}

static void commit_of_answer(void **state)
{
    char commit[41];
    struct err err;
    (void)state;
    assert_int_equal(hub_parse_commit(STR("{\"sha\":\"" SHA1 "\",\"siblings\":[]}"), commit, &err), 0);
    assert_string_equal(commit, SHA1);
    assert_int_equal(hub_parse_commit(STR("{\"sha\":\"main\"}"), commit, &err), -EPROTO);
    assert_int_equal(hub_parse_commit(STR("{}"), commit, &err), -EPROTO);
    assert_int_equal(hub_parse_commit(STR("hello"), commit, &err), -EPROTO);
}

/* ---- the journal --------------------------------------------------------------------------------------------------------------- */

static void write_journal(struct buf *text, struct hub_journal *j)
{
    *j = (struct hub_journal){.bytes = 3 * STORE_SEGMENT_BYTES + 5, .digest = SHA, .etag = "\"e\""};
    hub_journal_begin(j, text);
    hub_journal_add(j, 0, STORE_SEGMENT_BYTES, text);
    hub_journal_add(j, 2, 100, text);
    hub_journal_add(j, 2, 200, text);
    hub_journal_add(j, 3, 5, text);
    assert_int_equal(buf_status(text), 0);
}

static void journal_round_trip(void **state)
{
    struct buf text = BUF_INIT(4096);
    struct hub_journal j, again;
    uint32_t got[4] = {0};
    (void)state;
    write_journal(&text, &j);
    assert_int_equal(hub_journal_open(buf_str(&text), &again), 0);
    assert_true(again.bytes == j.bytes && again.sum == j.sum);
    assert_string_equal(again.digest, SHA);
    assert_string_equal(again.etag, "\"e\"");
    hub_journal_read(buf_str(&text), &again, got, 4);
    assert_int_equal(again.valid, text.len);
    assert_int_equal(got[0], STORE_SEGMENT_BYTES);
    assert_int_equal(got[1], 0);
    assert_int_equal(got[2], 200);
    assert_int_equal(got[3], 5);
    buf_release(&text);
}

/* Cut at any byte, or with any byte changed, a journal never says more than it did. */
static void journal_damaged(void **state)
{
    struct buf text = BUF_INIT(4096);
    struct hub_journal j, again;
    (void)state;
    write_journal(&text, &j);
    static const uint32_t most[4] = {STORE_SEGMENT_BYTES, 0, 200, 5};
    for (size_t at = 0; at < text.len; at++)
        for (int what = 0; what < 3; what++) {
            base_autofree char *copy = str_dup(buf_str(&text));
            struct str s = {copy, what == 0 ? at : text.len};
            if (what)
                copy[at] = what == 1 ? (char)(copy[at] ^ 1) : '\0';
            uint32_t got[4] = {0};
            if (hub_journal_open(s, &again) < 0)
                continue;
            hub_journal_read(s, &again, got, 4);
            assert_true(again.valid <= (what == 0 ? at : text.len));
            if (what)
                assert_true(again.valid <= at);
            for (size_t i = 0; i < 4; i++)
                assert_true(got[i] == 0 || got[i] == most[i] || (i == 2 && got[i] == 100));
        }
    buf_release(&text);
}

static void journal_of_another(void **state)
{
    struct buf text = BUF_INIT(4096), mixed = BUF_INIT(8192);
    struct hub_journal j, other = {.bytes = 3 * STORE_SEGMENT_BYTES + 5, .digest = "-", .etag = "-"}, again;
    uint32_t got[4] = {0};
    (void)state;
    write_journal(&text, &j);
    size_t first = (size_t)str_find_char(buf_str(&text), '\n') + 1;
    hub_journal_begin(&other, &mixed);
    buf_add(&mixed, text.ptr + first, text.len - first);
    assert_int_equal(hub_journal_open(buf_str(&mixed), &again), 0);
    hub_journal_read(buf_str(&mixed), &again, got, 4);
    assert_int_equal(got[0] + got[2] + got[3], 0);
    /* numbers that the file does not have */
    buf_clear(&mixed);
    hub_journal_begin(&j, &mixed);
    hub_journal_add(&j, 4, 1, &mixed);
    hub_journal_add(&j, 0, 1, &mixed);
    assert_int_equal(hub_journal_open(buf_str(&mixed), &again), 0);
    hub_journal_read(buf_str(&mixed), &again, got, 4);
    assert_int_equal(got[0], 0);
    buf_clear(&mixed);
    hub_journal_begin(&j, &mixed);
    hub_journal_add(&j, 3, 6, &mixed);
    assert_int_equal(hub_journal_open(buf_str(&mixed), &again), 0);
    hub_journal_read(buf_str(&mixed), &again, got, 4);
    assert_int_equal(got[3], 0);
    buf_release(&text);
    buf_release(&mixed);
}

/* ---- addresses ------------------------------------------------------------------------------------------------------------------ */

static void addresses(void **state)
{
    struct hub h = {0};
    struct hub_origin a, b;
    struct err err;
    char out[HUB_URL_MAX], shown[HUB_SHOWN_MAX];
    (void)state;
    assert_int_equal(hub_curl_open(&h.c, &err), 0);
    assert_int_equal(hub_origin_of(&h, "https://Hub.Example/a", &a, &err), 0);
    assert_int_equal(hub_origin_of(&h, "https://hub.example:443/b?x", &b, &err), 0);
    assert_true(hub_origin_eq(&a, &b));
    static const char *const others[] = {"http://hub.example/", "https://hub.example:444/", "https://hub.example.evil/", "https://evil/hub.example", "https://hub.example@evil/", "https://xhub.example/"};
    for (size_t i = 0; i < BASE_COUNT(others); i++) {
        assert_int_equal(hub_origin_of(&h, others[i], &b, &err), 0);
        assert_false(hub_origin_eq(&a, &b));
    }
    static const char *const none[] = {"file:///etc/passwd", "ftp://h/", "", "x", "gopher://h/"};
    for (size_t i = 0; i < BASE_COUNT(none); i++)
        assert_true(hub_origin_of(&h, none[i], &b, &err) < 0);
    assert_int_equal(hub_url_follow(&h, "https://h/a/b", "/c?d", out, &err), 0);
    assert_string_equal(out, "https://h/c?d");
    assert_int_equal(hub_url_follow(&h, "http://h/a", "https://cdn/x#frag", out, &err), 0);
    assert_string_equal(out, "https://cdn/x");
    assert_int_equal(hub_url_follow(&h, "https://h/a", "http://h/a", out, &err), -EPROTO);
    assert_true(hub_url_follow(&h, "https://h/a", "file:///etc/passwd", out, &err) < 0);
    assert_true(hub_url_follow(&h, "https://h/a", "", out, &err) < 0);
    assert_string_equal(hub_show(&h, "https://user:pass@h/a?X-Signature=secret", shown), "https://h/a");
    assert_string_equal(hub_show(&h, "https://h/a#x", shown), "https://h/a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges),
        cmocka_unit_test(links),
        cmocka_unit_test(pauses),
        cmocka_unit_test(heads),
        cmocka_unit_test(escaped),
        cmocka_unit_test(tree_page),
        cmocka_unit_test(tree_refusals),
        cmocka_unit_test(commit_of_answer),
        cmocka_unit_test(journal_round_trip),
        cmocka_unit_test(journal_damaged),
        cmocka_unit_test(journal_of_another),
        cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
