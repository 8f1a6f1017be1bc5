/* SPDX-License-Identifier: MIT
 *
 * http: the value of a field in multipart/form-data, and everything that is none.
 */
#include <http/http.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TYPE "multipart/form-data; boundary=xX"
#define MODEL "Content-Disposition: form-data; name=\"model\"\r\n\r\n"
#define PART(head, value) "--xX\r\n" head "\r\n\r\n" value "\r\n"
#define END "--xX--\r\n"
#define FILE_PART PART("Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav", "RI\r\n--x\r\n\r\nFF")

static int find(const char *type, const char *body, char value[64])
{
    size_t off = 0, len = 0;
    int rc = http_form_find(str_of(type), str_of(body), "model", &off, &len);
    snprintf(value, 64, "%.*s", rc == 0 ? (int)len : 0, body + off);
    return rc;
}

static void found(void **state)
{
    (void)state;
    static const struct {
        const char *type, *body, *want;
    } cases[] = {
        {TYPE, "--xX\r\n" MODEL "whisper\r\n" END, "whisper"},
        {TYPE, FILE_PART "--xX\r\n" MODEL "whisper\r\n" END, "whisper"},
        {TYPE, "--xX\r\n" MODEL "whisper\r\n" FILE_PART END, "whisper"},
        {TYPE, "--xX\r\n" MODEL "\r\n" END, ""},
        {TYPE, "--xX \t\r\n" MODEL "a\r\n" END "epilogue", "a"},
        {TYPE, "--xX\r\n\r\nno head\r\n--xX\r\n" MODEL "a\r\n--xX--", "a"},
        {TYPE, PART("content-disposition:form-data;name=model", "a") END, "a"},
        {TYPE, PART("X-Other: 1\r\nContent-Disposition: form-data; x=y; name=\"model\"\r\nContent-Type: text/plain", "a") END, "a"},
        {TYPE, PART("Content-Disposition: form-data; name=\"model\"; filename=\"m\"", "a file") "--xX\r\n" MODEL "b\r\n" END, "b"},
        {"Multipart/Form-Data; charset=utf-8; boundary=\"xX\"", "--xX\r\n" MODEL "a\r\n" END, "a"},
        {TYPE, "--xX\r\n" MODEL "a\r\n--xXtra\r\n" END, NULL}, /* a longer line is no delimiter and no value either */
    };
    char value[64];
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        int rc = find(cases[i].type, cases[i].body, value);
        if (rc != (cases[i].want ? 0 : -EBADMSG) || (cases[i].want && strcmp(value, cases[i].want) != 0))
            fail_msg("case %zu: %d, '%s'", i, rc, value);
    }
}

static void not_there(void **state)
{
    (void)state;
    static const char *const none[] = {END, FILE_PART END, PART("Content-Disposition: form-data; name=\"Model\"", "a") END, PART("Content-Disposition: attachment; name=\"model\"", "a") END};
    static const struct {
        const char *type, *body;
    } bad[] = {
        {TYPE, ""}, {TYPE, "--xX"}, {TYPE, "--xX\r\n"}, {TYPE, "--xX\r\n" MODEL}, {TYPE, "--xX\r\n" MODEL "a"}, {TYPE, "--xX\r\n" MODEL "a\r\n--x"}, {TYPE, "--xX\r\n" MODEL "a\n--xX--"},
        {TYPE, "preamble\r\n--xX\r\n" MODEL "a\r\n" END}, {TYPE, "--xX\n" MODEL "a\r\n" END},
        {TYPE, "--xX\r\n" MODEL "a\r\n--xX\r\n" MODEL "b\r\n" END}, /* which one? */
        {TYPE, PART(" folded: 1", "a") END}, {TYPE, PART("no colon", "a") END}, {TYPE, PART("Content-Disposition: form-data; name=\"mo\\\"del\"", "a") END},
        {TYPE, PART("Content-Disposition: form-data; name=\"model", "a") END}, {TYPE, PART("Content-Disposition: form-data; name", "a") END},
        {"multipart/form-data", "--\r\n" MODEL "a\r\n----"}, {"multipart/form-data; boundary=", END}, {"multipart/form-data; boundary=\"xX", END}, {"multipart/form-datax; boundary=xX", END},
        {"multipart/mixed; boundary=xX", END}, {"", END},
        {"multipart/form-data; boundary=01234567890123456789012345678901234567890123456789012345678901234567890", "--01234567890123456789012345678901234567890123456789012345678901234567890--"},
    };
    char value[64];
    for (size_t i = 0; i < BASE_COUNT(none); i++)
        if (find(TYPE, none[i], value) != -ENOENT)
            fail_msg("none %zu", i);
    for (size_t i = 0; i < BASE_COUNT(bad); i++)
        if (find(bad[i].type, bad[i].body, value) != -EBADMSG)
            fail_msg("bad %zu is '%s'", i, value);
    assert_true(http_form_is(STR("multipart/form-data; boundary=a")) && http_form_is(STR(" MULTIPART/form-data")) && !http_form_is(STR("application/json")) && !http_form_is((struct str){0}));
    /* a head without end is not looked through for ever */
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    buf_add_c(&b, "--xX\r\n");
    for (int i = 0; i < 1000; i++)
        buf_add_c(&b, "X-A: 0123456789\r\n");
    buf_add_c(&b, MODEL "a\r\n" END);
    assert_int_equal(find(TYPE, b.ptr, value), -EBADMSG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(found), cmocka_unit_test(not_there)};
    return cmocka_run_group_tests_name("http_form", tests, NULL, NULL);
}
