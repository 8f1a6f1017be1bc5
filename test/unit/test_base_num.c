/* SPDX-License-Identifier: MIT
 *
 * Checked arithmetic, units, the clock, errors and events.
 */
#include <base/base.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_size(void **state)
{
    (void)state;
    uint64_t n = 7;
    assert_true(size_add(UINT64_MAX - 1, 1, &n) && n == UINT64_MAX);
    n = 7;
    assert_false(size_add(UINT64_MAX, 1, &n));
    assert_false(size_mul(UINT64_MAX / 2 + 1, 2, &n));
    assert_false(size_align(UINT64_MAX, 2, &n));
    assert_int_equal(n, 7);
    assert_true(size_mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &n) && n == UINT64_MAX - UINT32_MAX);
    assert_true(size_align(0, 32, &n) && n == 0);
    assert_true(size_align(33, 32, &n) && n == 64);
    assert_true(size_align(64, 32, &n) && n == 64);
    assert_true(size_align(UINT64_MAX, 1, &n) && n == UINT64_MAX);
}

static void test_units_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        uint64_t bytes;
    } cases[] = {
        {"0", 0, 0},
        {"512", 0, 512},
        {"512B", 0, 512},
        {"512 B", 0, 512},
        {"31.86GiB", 0, UINT64_C(34209414513)}, /* 34209414512.64 */
        {"2GB", 0, 2000000000},
        {"2G", 0, 2000000000},
        {"8 MiB", 0, 8 << 20},
        {"1Ki", 0, 1024},
        {"1kB", 0, 1000},
        {"1KB", 0, 1000},
        {"0.5KiB", 0, 512},
        {"1.5", 0, 2},
        {"0.4", 0, 0},
        {"2TiB", 0, UINT64_C(2) << 40},
        {"3T", 0, UINT64_C(3000000000000)},
        {"0.1234567890123456789012345678901234567890TiB", 0, UINT64_C(135742175047)},
        {"9223372036854775807", 0, INT64_MAX},
        {"9223372036854775808", -ERANGE, 0},
        {"9223372036854775807.5", -ERANGE, 0},
        {"8388608TiB", -ERANGE, 0},
        {"99999999999999999999999GiB", -ERANGE, 0},
        {"99999999999999999999999XiB", -EINVAL, 0},
        {"", -EINVAL, 0},
        {"GiB", -EINVAL, 0},
        {"-1", -EINVAL, 0},
        {"+1", -EINVAL, 0},
        {"1.", -EINVAL, 0},
        {".5GiB", -EINVAL, 0},
        {"1.5.5", -EINVAL, 0},
        {"1,5GiB", -EINVAL, 0},
        {" 1", -EINVAL, 0},
        {"1 ", -EINVAL, 0},
        {"1\tGiB", -EINVAL, 0},
        {"1GIB", -EINVAL, 0},
        {"1gb", -EINVAL, 0},
        {"1GiBB", -EINVAL, 0},
        {"1GiB ", -EINVAL, 0},
        {"1 G B", -EINVAL, 0},
        {"0x10", -EINVAL, 0},
        {"1e3", -EINVAL, 0},
        {"nan", -EINVAL, 0},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        uint64_t n = 77;
        int code = units_bytes(str_of(cases[i].text), &n);
        if (code != cases[i].code || n != (code ? 77 : cases[i].bytes))
            fail_msg("'%s': %d, %llu", cases[i].text, code, (unsigned long long)n);
    }
}

static void test_units_rate(void **state)
{
    (void)state;
    uint64_t n = 77;
    assert_int_equal(units_rate(STR("640GB/s"), &n), 0);
    assert_true(n == UINT64_C(640000000000));
    assert_int_equal(units_rate(STR("31.5 GB/s"), &n), 0);
    assert_true(n == UINT64_C(31500000000));
    assert_int_equal(units_rate(STR("640GB"), &n), -EINVAL);
    assert_int_equal(units_rate(STR("/s"), &n), -EINVAL);
    assert_int_equal(units_rate(STR("640GB/s/s"), &n), -EINVAL);
    assert_int_equal(units_rate(STR("10000000TB/s"), &n), -ERANGE);
    assert_true(n == UINT64_C(31500000000));
}

static void test_units_show(void **state)
{
    (void)state;
    char out[UNITS_TEXT];
    assert_string_equal(units_show_bytes(0, out), "0 B");
    assert_string_equal(units_show_bytes(1023, out), "1023 B");
    assert_string_equal(units_show_bytes(1024, out), "1.00 KiB");
    assert_string_equal(units_show_bytes(1048575, out), "1.00 MiB");
    assert_string_equal(units_show_bytes(UINT64_C(34209414513), out), "31.86 GiB");
    assert_string_equal(units_show_bytes(UINT64_MAX, out), "16777216.00 TiB");
    assert_ptr_equal(units_show_bytes(1, out), out);
    assert_string_equal(units_show_count(0, out), "0");
    assert_string_equal(units_show_count(999, out), "999");
    assert_string_equal(units_show_count(1000, out), "1,000");
    assert_string_equal(units_show_count(262144, out), "262,144");
    assert_string_equal(units_show_count(UINT64_MAX, out), "18,446,744,073,709,551,615");
    assert_string_equal(units_show_ms(0, out), "0 ms");
    assert_string_equal(units_show_ms(850, out), "850 ms");
    assert_string_equal(units_show_ms(12345, out), "12.3 s");
    assert_string_equal(units_show_ms(59999, out), "59.9 s");
    assert_string_equal(units_show_ms(245000, out), "4m 05s");
    assert_string_equal(units_show_ms(11520000, out), "3h 12m");
    assert_string_equal(units_show_ms(439200000, out), "5d 2h");
    assert_string_equal(units_show_ms(UINT64_MAX, out), "213503982334d 14h");
}

static void test_clk(void **state)
{
    (void)state;
    char out[CLK_RFC3339];
    assert_string_equal(clk_rfc3339(0, out), "1970-01-01T00:00:00Z");
    assert_string_equal(clk_rfc3339(UINT64_C(1769860800999999), out), "2026-01-31T12:00:00Z");
    assert_string_equal(clk_rfc3339(UINT64_C(951782400000000), out), "2000-02-29T00:00:00Z");
    assert_true(strlen(clk_rfc3339(UINT64_MAX, out)) < CLK_RFC3339);
    uint64_t a = clk_system.mono_us(clk_system.ctx), b = clk_system.mono_us(clk_system.ctx);
    assert_true(a > 0 && b >= a);
    assert_true(clk_system.real_us(clk_system.ctx) > UINT64_C(1700000000000000));
}

static void test_err(void **state)
{
    (void)state;
    struct err err = {0};
    assert_int_equal(err_set(&err, -EINVAL, "bad %s", "value"), -EINVAL);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.text, "bad value");
    assert_int_equal(err_prefix(&err, "service '%s'", "a"), -EINVAL);
    assert_string_equal(err.text, "service 'a': bad value");
    assert_int_equal(err_set(&err, -EIO, "%s again", err.text), -EIO);
    assert_string_equal(err.text, "service 'a': bad value again");
    assert_int_equal(err_sys(&err, -ENOENT, "cannot open '%s'", "x"), -ENOENT);
    assert_string_equal(err.text, "cannot open 'x': No such file or directory");
    assert_int_equal(err_nomem(&err), -ENOMEM);
    assert_string_equal(err.text, "out of memory");
    assert_int_equal(err_set(NULL, -EPERM, "x"), -EPERM);
    assert_int_equal(err_sys(NULL, -EPERM, "x"), -EPERM);
    assert_int_equal(err_prefix(NULL, "x"), -EIO);
    assert_int_equal(err_nomem(NULL), -ENOMEM);
}

static void test_err_cut(void **state)
{
    (void)state;
    struct err err = {0};
    char text[3000];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    err_set(&err, -EINVAL, "%s", text);
    assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
    assert_string_equal(err.text + ERR_TEXT_MAX - 4, "...");
    err_prefix(&err, "p");
    assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
    assert_memory_equal(err.text, "p: aaa", 6);
    assert_string_equal(err.text + ERR_TEXT_MAX - 4, "...");
    /* Whatever the offset, the cut never leaves a part of a character. */
    for (size_t shift = 0; shift < 4; shift++) {
        base_autobuf struct buf b = BUF_INIT(8000);
        for (size_t i = 0; i < shift; i++)
            buf_add_char(&b, 'x');
        for (size_t i = 0; i < 600; i++)
            buf_add_c(&b, "\xF0\x9F\x98\x80");
        err_set(&err, -EINVAL, "%s", b.ptr);
        assert_true(str_is_utf8(str_of(err.text)));
        assert_true(strlen(err.text) > ERR_TEXT_MAX - 8);
        assert_true(str_ends(str_of(err.text), STR("...")));
    }
}

struct seen {
    enum event_level level;
    char subject[32], text[32];
    uint64_t done, total;
    unsigned n;
};

static void see(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    struct seen *s = ctx;
    s->level = level;
    snprintf(s->subject, sizeof(s->subject), "%s", subject);
    snprintf(s->text, sizeof(s->text), "%s", text);
    s->done = done;
    s->total = total;
    s->n++;
}

static void test_event(void **state)
{
    (void)state;
    struct seen seen = {0};
    struct event_sink sink = {.emit = see, .ctx = &seen};
    event_say(&sink, EVENT_WARN, "service a", "port %d", 80);
    assert_int_equal(seen.level, EVENT_WARN);
    assert_string_equal(seen.subject, "service a");
    assert_string_equal(seen.text, "port 80");
    assert_int_equal(seen.total, 0);
    event_progress(&sink, "runtime b", "fetching", 3, 9);
    assert_string_equal(seen.text, "fetching");
    assert_int_equal(seen.done, 3);
    assert_int_equal(seen.total, 9);
    assert_int_equal(seen.n, 2);
    event_say(NULL, EVENT_INFO, "x", "y");
    event_progress(NULL, "x", "y", 1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),           cmocka_unit_test(test_units_bytes), cmocka_unit_test(test_units_rate),
        cmocka_unit_test(test_units_show),  cmocka_unit_test(test_clk),
        cmocka_unit_test(test_err),            cmocka_unit_test(test_err_cut),     cmocka_unit_test(test_event),
    };
    return cmocka_run_group_tests_name("base numbers, time, errors", tests, NULL, NULL);
}
