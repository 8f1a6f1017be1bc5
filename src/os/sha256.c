/* SPDX-License-Identifier: MIT
 *
 * sha256 whose chaining state can be kept and taken up again. After each 64 bytes a sha256 is nothing but 32 bytes of state, so a file whose states are known at some places is
 * provable in pieces: from one state, over the bytes between, to the next. OpenSSL's digests by name (EVP) keep their state to themselves; its functions of the first hour do not, and run the same
 * code of the processor (SHA-NI, AVX2, ARMv8). They are called deprecated for being of one algorithm each, which is what is wanted here; so this one file asks for no warning.
 * The state lives in our own struct: OpenSSL's is filled for each call (some ten words, against hundreds of kilobytes hashed), so that no header of it leaks.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "os_int.h"

#include <assert.h>
#include <openssl/sha.h>

static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void os_sha256_init(struct os_sha256 *h)
{
    *h = (struct os_sha256){.bytes = 0};
    memcpy(h->state, start, sizeof start);
}

void os_sha256_resume(struct os_sha256 *h, const uint8_t state[OS_SHA256_BYTES], uint64_t bytes)
{
    assert(bytes % OS_SHA256_BLOCK == 0);
    *h = (struct os_sha256){.bytes = bytes};
    for (size_t i = 0; i < 8; i++)
        h->state[i] = (uint32_t)state[i * 4] << 24 | (uint32_t)state[i * 4 + 1] << 16 | (uint32_t)state[i * 4 + 2] << 8 | state[i * 4 + 3];
}

/* OpenSSL's struct as it is after all whole blocks. */
static SHA256_CTX context(const struct os_sha256 *h)
{
    SHA256_CTX c;
    (void)SHA256_Init(&c); /* cannot fail; it sets what is not ours */
    for (size_t i = 0; i < 8; i++)
        c.h[i] = h->state[i];
    return c;
}

/* n is a multiple of the block. */
static void take_blocks(struct os_sha256 *h, const uint8_t *data, size_t n)
{
    SHA256_CTX c = context(h);
    (void)SHA256_Update(&c, data, n); /* cannot fail either */
    for (size_t i = 0; i < 8; i++)
        h->state[i] = c.h[i];
}

void os_sha256_update(struct os_sha256 *h, const void *data, size_t n)
{
    const uint8_t *at = data;
    size_t kept = (size_t)(h->bytes % OS_SHA256_BLOCK);
    h->bytes += n;
    if (kept) {
        size_t room = OS_SHA256_BLOCK - kept, some = n < room ? n : room;
        memcpy(h->rest + kept, at, some);
        if (some < room)
            return;
        take_blocks(h, h->rest, OS_SHA256_BLOCK);
        at += some;
        n -= some;
    }
    size_t whole = n - n % OS_SHA256_BLOCK;
    if (whole)
        take_blocks(h, at, whole);
    if (n > whole)
        memcpy(h->rest, at + whole, n - whole);
}

void os_sha256_state(const struct os_sha256 *h, uint8_t ret[OS_SHA256_BYTES])
{
    assert(h->bytes % OS_SHA256_BLOCK == 0);
    for (size_t i = 0; i < OS_SHA256_BYTES; i++)
        ret[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void os_sha256_final(struct os_sha256 *h, uint8_t ret[OS_SHA256_BYTES])
{
    SHA256_CTX c = context(h);
    uint64_t blocks_bits = (h->bytes - h->bytes % OS_SHA256_BLOCK) * 8;
    c.Nl = (SHA_LONG)blocks_bits;
    c.Nh = (SHA_LONG)(blocks_bits >> 32);
    (void)SHA256_Update(&c, h->rest, (size_t)(h->bytes % OS_SHA256_BLOCK));
    (void)SHA256_Final(ret, &c);
}

const char *os_hex(const uint8_t *data, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[i * 2] = digits[data[i] >> 4];
        out[i * 2 + 1] = digits[data[i] & 15];
    }
    out[n * 2] = '\0';
    return out;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool os_unhex(struct str hex, uint8_t *ret, size_t n)
{
    if (hex.len != n * 2)
        return false;
    for (size_t i = 0; i < n; i++)
        if (digit(hex.ptr[i * 2]) < 0 || digit(hex.ptr[i * 2 + 1]) < 0)
            return false;
    for (size_t i = 0; i < n; i++)
        ret[i] = (uint8_t)(digit(hex.ptr[i * 2]) << 4 | digit(hex.ptr[i * 2 + 1]));
    return true;
}
