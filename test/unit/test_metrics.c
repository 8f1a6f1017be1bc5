/* SPDX-License-Identifier: MIT
 *
 * metrics: counting, ceilings, and the exposition text byte by byte.
 */
#include <base/base.h>
#include <metrics/metrics.h>

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { REQUESTS, OPEN, WAIT, RETRIES };
static const double wait_bounds[] = {0.005, 0.1, 1, 2.5};
static const struct metrics_desc descs[] = {
    [REQUESTS] = {"t_requests_total", "Requests answered", METRICS_COUNTER, {"model", "code"}, NULL, 0},
    [OPEN] = {"t_open", "Open connections", METRICS_GAUGE, {0}, NULL, 0},
    [WAIT] = {"t_wait_seconds", "Waiting\nin \\ line", METRICS_HISTOGRAM, {"model"}, wait_bounds, BASE_COUNT(wait_bounds)},
    [RETRIES] = {"t_retries_total", "Requests sent again", METRICS_COUNTER, {0}, NULL, 0},
};

static struct metrics_series *get2(struct metrics *m, size_t i, const char *a, const char *b)
{
    return metrics_get(m, i, (const char *const[]){a, b});
}

static void expect_text(const struct metrics *m, const char *want)
{
    base_autobuf struct buf out = BUF_INIT(1 << 16);
    assert_int_equal(metrics_text(m, &out), 0);
    assert_string_equal(out.ptr, want);
}

static void test_counting(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(descs, BASE_COUNT(descs), 100);
    assert_non_null(m);
    struct metrics_series *a = get2(m, REQUESTS, "a", "200"), *b = get2(m, REQUESTS, "a", "503");
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(a, get2(m, REQUESTS, "a", "200"));
    metrics_add(a, 2);
    metrics_add(a, 1);
    metrics_add(b, UINT64_MAX);
    assert_int_equal(metrics_count(a), 3);
    assert_true(metrics_count(b) == UINT64_MAX);
    /* the border between values is part of the key */
    assert_ptr_not_equal(get2(m, REQUESTS, "x", "yz"), get2(m, REQUESTS, "xy", "z"));
    /* values are copied */
    char name[] = "model";
    struct metrics_series *w = metrics_get(m, WAIT, (const char *const[]){name});
    name[0] = 'x';
    assert_ptr_equal(w, metrics_get(m, WAIT, (const char *const[]){"model"}));
    metrics_observe(w, 0.1);
    metrics_observe(w, 7);
    metrics_observe(w, NAN);
    assert_int_equal(metrics_count(w), 2);
    assert_null(metrics_free(m));
}

static void test_text(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(descs, BASE_COUNT(descs), 100);
    expect_text(m, "# HELP t_requests_total Requests answered\n"
                   "# TYPE t_requests_total counter\n"
                   "# HELP t_open Open connections\n"
                   "# TYPE t_open gauge\n"
                   "t_open 0\n"
                   "# HELP t_wait_seconds Waiting\\nin \\\\ line\n"
                   "# TYPE t_wait_seconds histogram\n"
                   "# HELP t_retries_total Requests sent again\n"
                   "# TYPE t_retries_total counter\n"
                   "t_retries_total 0\n");
    metrics_add(get2(m, REQUESTS, "b", "200"), 7);
    metrics_add(get2(m, REQUESTS, "a\"\\\n", "503"), 1);
    metrics_set(metrics_get(m, OPEN, NULL), 0.1);
    struct metrics_series *w = metrics_get(m, WAIT, (const char *const[]){"a"});
    metrics_observe(w, 0.005);
    metrics_observe(w, 0.0051);
    metrics_observe(w, 0.5);
    metrics_observe(w, 100);
    metrics_add(metrics_get(m, RETRIES, NULL), 3);
    expect_text(m, "# HELP t_requests_total Requests answered\n"
                   "# TYPE t_requests_total counter\n"
                   "t_requests_total{model=\"b\",code=\"200\"} 7\n"
                   "t_requests_total{model=\"a\\\"\\\\\\n\",code=\"503\"} 1\n"
                   "# HELP t_open Open connections\n"
                   "# TYPE t_open gauge\n"
                   "t_open 0.1\n"
                   "# HELP t_wait_seconds Waiting\\nin \\\\ line\n"
                   "# TYPE t_wait_seconds histogram\n"
                   "t_wait_seconds_bucket{model=\"a\",le=\"0.005\"} 1\n"
                   "t_wait_seconds_bucket{model=\"a\",le=\"0.1\"} 2\n"
                   "t_wait_seconds_bucket{model=\"a\",le=\"1\"} 3\n"
                   "t_wait_seconds_bucket{model=\"a\",le=\"2.5\"} 3\n"
                   "t_wait_seconds_bucket{model=\"a\",le=\"+Inf\"} 4\n"
                   "t_wait_seconds_sum{model=\"a\"} 100.5101\n"
                   "t_wait_seconds_count{model=\"a\"} 4\n"
                   "# HELP t_retries_total Requests sent again\n"
                   "# TYPE t_retries_total counter\n"
                   "t_retries_total 3\n");
    metrics_free(m);
}

static void test_histogram_without_labels(void **state)
{
    (void)state;
    static const double bounds[] = {1};
    static const struct metrics_desc one[] = {{"h_seconds", "H", METRICS_HISTOGRAM, {0}, bounds, 1}};
    struct metrics *m = metrics_new(one, 1, 1);
    expect_text(m, "# HELP h_seconds H\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"1\"} 0\nh_seconds_bucket{le=\"+Inf\"} 0\n"
                   "h_seconds_sum 0\nh_seconds_count 0\n");
    metrics_observe(metrics_get(m, 0, NULL), -2);
    expect_text(m, "# HELP h_seconds H\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"1\"} 1\nh_seconds_bucket{le=\"+Inf\"} 1\n"
                   "h_seconds_sum -2\nh_seconds_count 1\n");
    metrics_free(m);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct metrics_desc one[] = {{"g", "G", METRICS_GAUGE, {0}, NULL, 0}};
    static const struct {
        double v;
        const char *text;
    } cases[] = {
        {0, "0"}, {1e9, "1e+09"}, {34359738368.0, "34359738368"}, {1.0 / 3, "0.3333333333333333"},
        {-0.25, "-0.25"}, {1e300, "1e+300"}, {INFINITY, "+Inf"}, {-INFINITY, "-Inf"}, {NAN, "NaN"},
    };
    struct metrics *m = metrics_new(one, 1, 1);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char want[100];
        metrics_set(metrics_get(m, 0, NULL), cases[i].v);
        snprintf(want, sizeof want, "# HELP g G\n# TYPE g gauge\ng %s\n", cases[i].text);
        expect_text(m, want);
    }
    metrics_free(m);
}

static void test_hostile_values(void **state)
{
    (void)state;
    static const struct metrics_desc one[] = {{"c_total", "C", METRICS_COUNTER, {"v"}, NULL, 0}};
    struct metrics *m = metrics_new(one, 1, 3);
    metrics_add(metrics_get(m, 0, (const char *const[]){"\xff\xc3\xa4"}), 1);
    metrics_add(metrics_get(m, 0, (const char *const[]){"\xc3\xa4"}), 2);
    metrics_add(metrics_get(m, 0, (const char *const[]){""}), 3);
    expect_text(m, "# HELP c_total C\n# TYPE c_total counter\nc_total{v=\"\?\?\?\"} 1\nc_total{v=\"\xc3\xa4\"} 2\nc_total{v=\"\"} 3\n");
    metrics_free(m);
}

static void test_ceilings(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(descs, BASE_COUNT(descs), 2);
    struct metrics_series *a = get2(m, REQUESTS, "a", "1");
    assert_non_null(a);
    char big[METRICS_VALUE_MAX + 2];
    memset(big, 'x', sizeof big);
    big[METRICS_VALUE_MAX + 1] = 0;
    assert_null(get2(m, REQUESTS, "a", big));
    big[METRICS_VALUE_MAX] = 0;
    assert_non_null(get2(m, REQUESTS, "a", big));
    assert_null(get2(m, REQUESTS, "a", "3"));
    assert_null(metrics_get(m, OPEN, NULL));
    assert_ptr_equal(get2(m, REQUESTS, "a", "1"), a);
    /* what could not be counted is not counted, and nothing else happens */
    metrics_add(NULL, 1);
    metrics_set(NULL, 1);
    metrics_observe(NULL, 1);
    assert_int_equal(metrics_count(NULL), 0);
    /* a text that does not fit says so */
    base_autobuf struct buf out = BUF_INIT(40);
    assert_int_equal(metrics_text(m, &out), -E2BIG);
    metrics_free(m);
    assert_null(metrics_free(NULL));
}

/* Many series in one bucket chain and many buckets: each is found again. */
static void test_many_series(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(descs, BASE_COUNT(descs), 5000);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 5000; i++) {
            char name[16];
            snprintf(name, sizeof name, "m%d", i);
            struct metrics_series *s = get2(m, REQUESTS, name, "200");
            assert_non_null(s);
            assert_int_equal(metrics_count(s), turn);
            metrics_add(s, 1);
        }
    metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counting),     cmocka_unit_test(test_text),     cmocka_unit_test(test_histogram_without_labels),
        cmocka_unit_test(test_numbers),      cmocka_unit_test(test_ceilings), cmocka_unit_test(test_hostile_values),
        cmocka_unit_test(test_many_series),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
