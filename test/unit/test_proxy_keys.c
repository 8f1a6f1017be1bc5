/* SPDX-License-Identifier: MIT
 *
 * The keys file: what it may hold, what is refused and where; secrets, their hashes, and finding one.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/proxy/keys_int.h"

#define H1 "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" /* of "secret" */
#define H2 "sha256:0000000000000000000000000000000000000000000000000000000000000000"

static struct proxy_keys *parse(const char *text)
{
    struct proxy_keys *k = NULL;
    struct err err;
    if (proxy_keys_parse(str_of(text), "keys", &k, &err) < 0)
        fail_msg("%s", err.text);
    return k;
}

static void a_file_with_everything(void **state)
{
    (void)state;
    struct proxy_keys *k = parse("# people\n\n  alice " H1 "  models=a,b/c:7 concurrency=2\trate=60 \r\nbob " H2);
    assert_int_equal(proxy_keys_count(k), 2);
    const struct proxy_key *a = proxy_keys_at(k, 0), *b = proxy_keys_at(k, 1);
    assert_string_equal(a->name, "alice");
    assert_int_equal(a->n_models, 2);
    assert_string_equal(a->models[1], "b/c:7");
    assert_int_equal(a->concurrency, 2);
    assert_int_equal(a->rate, 60);
    assert_true(proxy_key_allows(a, "a"));
    assert_false(proxy_key_allows(a, "c"));
    assert_true(proxy_key_allows(b, "c"));
    assert_null(proxy_keys_at(k, 2));
    assert_ptr_equal(proxy_keys_find(k, STR("secret")), a);
    assert_null(proxy_keys_find(k, STR("secret ")));
    assert_null(proxy_keys_find(k, STR("")));
    proxy_keys_unref(k);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"alice", "keys:1: after the name comes sha256: and 64 hexadecimal digits in lower case, as 'berth key add NAME' writes it"},
        {"\n\nalice sha256:12", "keys:3: after the name comes sha256: and 64 hexadecimal digits in lower case, as 'berth key add NAME' writes it"},
        {"alice md5:2bb8", "keys:1: after the name comes sha256: and 64 hexadecimal digits in lower case, as 'berth key add NAME' writes it"},
        {"Alice " H1, "keys:1: a line begins with the key's name: lower-case letters, digits, '-', '_' and '.'"},
        {"a " H1 "\na " H2, "keys:2: it has the name or the hash of another line"},
        {"a " H1 "\nb " H1, "keys:2: it has the name or the hash of another line"},
        {"a " H1 " rate=0", "keys:1: 'rate' must be a number from 1 to 1000000"},
        {"a " H1 " rate=18446744073709551617", "keys:1: 'rate' must be a number from 1 to 1000000"},
        {"a " H1 " concurrency", "keys:1: 'concurrency' must be a number from 1 to 1000000"},
        {"a " H1 " rate=1 rate=2", "keys:1: 'rate' is there twice"},
        {"a " H1 " models=", "keys:1: 'models' must be names with commas between them"},
        {"a " H1 " models=a,,b", "keys:1: 'models' must be names with commas between them"},
        {"a " H1 " models=a models=b", "keys:1: 'models' is there twice"},
        {"a " H1 " admin", "keys:1: after the hash come models=A,B, concurrency=N and rate=N only"},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct proxy_keys *k = NULL;
        struct err err;
        assert_int_equal(proxy_keys_parse(str_of(cases[i].text), "keys", &k, &err), -EINVAL);
        assert_string_equal(err.text, cases[i].want);
        assert_null(k);
    }
}

static void new_keys_differ_and_are_found(void **state)
{
    (void)state;
    char one[PROXY_KEY_TEXT], two[PROXY_KEY_TEXT], text[256];
    unsigned char hash[PROXY_KEY_HASH];
    size_t n = (size_t)snprintf(text, sizeof text, "x sha256:");
    assert_int_equal(proxy_key_new(one, NULL), 0);
    assert_int_equal(proxy_key_new(two, NULL), 0);
    assert_string_not_equal(one, two);
    assert_int_equal(strlen(one), 6 + 43);
    assert_int_equal(strspn(one, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), strlen(one));
    assert_int_equal(proxy_key_hash(str_of(one), hash), 0);
    for (size_t i = 0; i < sizeof hash; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%02x", hash[i]);
    struct proxy_keys *k = parse(text);
    assert_non_null(proxy_keys_find(k, str_of(one)));
    assert_null(proxy_keys_find(k, str_of(two)));
    proxy_keys_unref(k);
}

static void a_file_that_others_can_read(void **state)
{
    (void)state;
    char path[] = "/tmp/berth-keys-XXXXXX", want[200];
    base_autobuf struct buf out = BUF_INIT(PROXY_KEYS_FILE_MAX);
    struct err err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "a " H1 "\n", strlen("a " H1 "\n")), strlen("a " H1 "\n"));
    assert_int_equal(proxy_keys_read(path, &out, &err), 0);
    assert_int_equal(out.len, strlen("a " H1 "\n"));
    static const mode_t modes[] = {0640, 0604, 0620, 0602};
    for (size_t i = 0; i < BASE_COUNT(modes); i++) {
        assert_int_equal(fchmod(fd, modes[i]), 0);
        assert_int_equal(proxy_keys_read(path, &out, &err), -EACCES);
        snprintf(want, sizeof want, "keys file '%s' can be read or written by others (mode %03o); chmod 600 '%s'", path, (unsigned)modes[i], path);
        assert_string_equal(err.text, want);
    }
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(proxy_keys_read(path, &out, &err), -ENOENT);
    assert_int_equal(proxy_keys_read("/tmp", &out, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_with_everything),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(new_keys_differ_and_are_found),
        cmocka_unit_test(a_file_that_others_can_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
