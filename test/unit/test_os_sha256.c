/* SPDX-License-Identifier: MIT
 *
 * The sha256 that can be taken up again, against published digests and against OpenSSL's by name, however the bytes are cut; and git's name of a blob.
 */
#include <openssl/evp.h>
#include <os/os.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BYTES 100000

static uint8_t *content(void)
{
    uint8_t *data = malloc(BYTES);
    uint32_t x = 1;
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (uint8_t)(x >> 24);
    }
    return data;
}

static void by_name(const void *data, size_t n, char hex[OS_SHA256_HEX])
{
    uint8_t raw[OS_SHA256_BYTES];
    assert_int_equal(EVP_Digest(data, n, raw, NULL, EVP_sha256(), NULL), 1);
    (void)os_hex(raw, sizeof raw, hex);
}

static const char *ended(struct os_sha256 *h, char hex[OS_SHA256_HEX])
{
    uint8_t raw[OS_SHA256_BYTES];
    os_sha256_final(h, raw);
    return os_hex(raw, sizeof raw, hex);
}

static void test_published(void **state)
{
    (void)state;
    char hex[OS_SHA256_HEX];
    struct os_sha256 h;
    os_sha256_init(&h);
    assert_string_equal(ended(&h, hex), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    os_sha256_init(&h);
    os_sha256_update(&h, "abc", 3);
    assert_string_equal(ended(&h, hex), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    os_sha256_init(&h);
    for (size_t i = 0; i < 1000000; i++)
        os_sha256_update(&h, "a", 1);
    assert_string_equal(ended(&h, hex), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void test_any_cut(void **state)
{
    (void)state;
    uint8_t *data = content();
    char want[OS_SHA256_HEX], got[OS_SHA256_HEX];
    static const size_t lengths[] = {0, 1, 55, 56, 63, 64, 65, 119, 120, 127, 128, 1000, BYTES};
    static const size_t steps[] = {1, 7, 63, 64, 65, 4096, BYTES};
    for (size_t l = 0; l < BASE_COUNT(lengths); l++) {
        by_name(data, lengths[l], want);
        for (size_t s = 0; s < BASE_COUNT(steps); s++) {
            struct os_sha256 h;
            os_sha256_init(&h);
            for (size_t at = 0; at < lengths[l]; at += steps[s])
                os_sha256_update(&h, data + at, lengths[l] - at < steps[s] ? lengths[l] - at : steps[s]);
            assert_string_equal(ended(&h, got), want);
        }
    }
    free(data);
}

static void test_resume(void **state)
{
    (void)state;
    uint8_t *data = content(), kept[OS_SHA256_BYTES], next[OS_SHA256_BYTES], again[OS_SHA256_BYTES];
    char want[OS_SHA256_HEX], got[OS_SHA256_HEX];
    struct os_sha256 h, r;
    by_name(data, BYTES, want);
    os_sha256_init(&h);
    os_sha256_update(&h, data, 64 * 100);
    os_sha256_state(&h, kept);
    os_sha256_update(&h, data + 64 * 100, 64 * 50);
    os_sha256_state(&h, next);

    /* a piece is proven from its own beginning to the next */
    os_sha256_resume(&r, kept, 64 * 100);
    os_sha256_update(&r, data + 64 * 100, 64 * 50);
    os_sha256_state(&r, again);
    assert_memory_equal(again, next, sizeof next);
    os_sha256_update(&r, data + 64 * 150, BYTES - 64 * 150);
    assert_string_equal(ended(&r, got), want);

    /* and one flipped bit in it is seen */
    data[64 * 120] ^= 1;
    os_sha256_resume(&r, kept, 64 * 100);
    os_sha256_update(&r, data + 64 * 100, 64 * 50);
    os_sha256_state(&r, again);
    assert_memory_not_equal(again, next, sizeof next);
    free(data);
}

/* A count of bits that does not fit 32 bits must reach the last block: the digest of 512 MiB + 1 zeros, which Python's hashlib and sha256sum give too. */
static void test_long(void **state)
{
    (void)state;
    uint8_t *zeros = calloc(1, 1u << 20);
    char hex[OS_SHA256_HEX];
    struct os_sha256 h;
    assert_non_null(zeros);
    os_sha256_init(&h);
    for (unsigned i = 0; i < 512; i++)
        os_sha256_update(&h, zeros, 1u << 20);
    os_sha256_update(&h, zeros, 1);
    assert_string_equal(ended(&h, hex), "7c40fe5ce847740d0f0d0cdde3949d6585804cdec3ae61a15b923165699c8137");
    free(zeros);
}

static void test_hex(void **state)
{
    (void)state;
    uint8_t raw[2] = {7, 7};
    char text[5];
    assert_string_equal(os_hex((const uint8_t[]){0x0f, 0xa0}, 2, text), "0fa0");
    assert_true(os_unhex(STR("0fa0"), raw, 2));
    assert_int_equal(raw[0], 0x0f);
    assert_int_equal(raw[1], 0xa0);
    assert_false(os_unhex(STR("0FA0"), raw, 2));
    assert_false(os_unhex(STR("0fa"), raw, 2));
    assert_false(os_unhex(STR("0fag"), raw, 2));
    assert_false(os_unhex(STR("0fa00"), raw, 2));
    assert_int_equal(raw[0], 0x0f);
}

static void test_git(void **state)
{
    (void)state;
    char hex[OS_SHA256_HEX];
    struct os_digest *d = os_digest_new_git(0);
    assert_int_equal(os_digest_hex(d, hex), 0);
    assert_string_equal(hex, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    os_digest_free(d);
    d = os_digest_new_git(6);
    assert_int_equal(os_digest_add(d, "hello\n", 6), 0);
    assert_int_equal(os_digest_hex(d, hex), 0);
    assert_string_equal(hex, "ce013625030ba8dba906f756967f9e9ca394464a");
    os_digest_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published), cmocka_unit_test(test_any_cut), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_long),      cmocka_unit_test(test_hex),     cmocka_unit_test(test_git),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
