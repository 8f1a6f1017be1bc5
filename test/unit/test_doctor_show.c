/* SPDX-License-Identifier: MIT
 *
 * A doctor's report as people see it. It may come from another host: nothing in it reaches the terminal as anything but text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cmd/doctor_text_int.h>
#include <string.h>

/* Of main.c, which a test has not got. */
const struct cmd *const cmd_table[] = {NULL};
const size_t cmd_table_len = 0;

static void show(const char *report, bool verbose, bool color, struct buf *out)
{
    struct json *j = NULL;
    assert_int_equal(json_parse(str_of(report), &j, NULL), 0);
    doctor_show(json_root(j), verbose, color, out);
    json_free(j);
    assert_int_equal(buf_status(out), 0);
}

static void words_of_another_host_are_made_fit_to_print(void **state)
{
    static const char report[] = "{\"host\": \"\\u001b[2Jh\", \"machine\": {\"cpu\": \"\\u001b[1mc\", \"threads\": 1}, \"findings\": ["
                                 "{\"level\": \"\\u001b[31m\", \"topic\": \"\\u001b]0;t\\u0007\", \"where\": \"\\u001b[5mw\", \"what\": \"a \\u001b[7mb\", \"why\": \"\\u001b[8m\", \"todo\": \"\\r\\u001b[K\"},"
                                 "{\"level\": \"ok\", \"topic\": \"\\u001b[1mo\", \"where\": \"\\u001b[2m\", \"what\": \"\\u001b[3m\"}]}";
    base_autobuf struct buf out = BUF_INIT(65536);
    (void)state;
    show(report, true, false, &out);
    assert_null(memchr(out.ptr, '\033', out.len));
    assert_null(memchr(out.ptr, '\a', out.len));
    assert_null(memchr(out.ptr, '\r', out.len));
    assert_non_null(strstr(out.ptr, "\nnote  \\x1b]0;t\\x07  \\x1b[5mw\n      a \\x1b[7mb\n"));
}

static void columns_stand_below_each_other(void **state)
{
    static const char report[] = "{\"machine\": {\"threads\": 2}, \"findings\": ["
                                 "{\"level\": \"ok\", \"topic\": \"swap\", \"where\": \"here\", \"what\": \"there is none\"},"
                                 "{\"level\": \"ok\", \"topic\": \"log\", \"where\": \"kernel\", \"what\": \"nothing\"}]}";
    base_autobuf struct buf out = BUF_INIT(65536), colored = BUF_INIT(65536);
    (void)state;
    show(report, true, false, &out);
    assert_non_null(strstr(out.ptr, "\nok    swap         there is none\nok    log          kernel  nothing\n"));
    show(report, true, true, &colored);
    assert_non_null(strstr(colored.ptr, "\n\033[32mok  \033[0m  swap         there is none\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_another_host_are_made_fit_to_print),
        cmocka_unit_test(columns_stand_below_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
