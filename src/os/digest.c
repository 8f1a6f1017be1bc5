/* SPDX-License-Identifier: MIT
 *
 * Digests of what comes in pieces: sha256, by sha256.c, and git's sha1 of a blob, by OpenSSL's digests by name. The first use of a name has OpenSSL read its configuration and look for who provides it, a millisecond that
 * a sha256 does without.
 */
#include "os_int.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((size_t)64 << 10) /* stays in the core's own cache between reading and hashing */

struct os_digest {
    EVP_MD_CTX *evp; /* NULL: a sha256 */
    struct os_sha256 sha256;
};

struct os_digest *os_digest_new(void)
{
    struct os_digest *d = calloc(1, sizeof(*d));
    if (d)
        os_sha256_init(&d->sha256);
    return d;
}

struct os_digest *os_digest_new_git(uint64_t bytes)
{
    char head[32];
    int n = snprintf(head, sizeof(head), "blob %llu", (unsigned long long)bytes);
    struct os_digest *d = calloc(1, sizeof(*d));
    if (!d)
        return NULL;
    d->evp = EVP_MD_CTX_new();
    if (!d->evp || EVP_DigestInit_ex(d->evp, EVP_sha1(), NULL) != 1 || os_digest_add(d, head, (size_t)n + 1) < 0) /* its NUL is part of it */
        return os_digest_free(d);
    return d;
}

struct os_digest *os_digest_free(struct os_digest *d)
{
    if (d)
        EVP_MD_CTX_free(d->evp);
    free(d);
    return NULL;
}

int os_digest_add(struct os_digest *d, const void *data, size_t len)
{
    if (d->evp)
        return EVP_DigestUpdate(d->evp, data, len) == 1 ? 0 : -EIO;
    os_sha256_update(&d->sha256, data, len);
    return 0;
}

int os_digest_hex(struct os_digest *d, char ret[OS_SHA256_HEX])
{
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = OS_SHA256_BYTES;
    if (!d->evp)
        os_sha256_final(&d->sha256, raw);
    else if (EVP_DigestFinal_ex(d->evp, raw, &n) != 1 || n * 2 + 1 > OS_SHA256_HEX)
        return -EIO;
    (void)os_hex(raw, n, ret);
    return 0;
}

static int digest_fd(struct os_digest *d, int fd, uint64_t *ret_bytes)
{
    base_autofree char *chunk = malloc(CHUNK);
    if (!chunk)
        return -ENOMEM;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        int r = os_digest_add(d, chunk, (size_t)n);
        if (r < 0)
            return r;
        *ret_bytes += (uint64_t)n;
    }
}

int os_digest_file(int dirfd, const char *path, char ret[OS_SHA256_HEX], uint64_t *ret_bytes, struct err *err)
{
    char text[OS_PATH_TEXT];
    struct stat st;
    os_autoclose int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot open '%s'", os_path_text(dirfd, path, text));
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "cannot read '%s': not a regular file", os_path_text(dirfd, path, text));
    struct os_digest *d = os_digest_new();
    if (!d)
        return err_nomem(err);
    uint64_t bytes = 0;
    char hex[OS_SHA256_HEX];
    int r = digest_fd(d, fd, &bytes);
    if (r == 0)
        r = os_digest_hex(d, hex);
    os_digest_free(d);
    if (r < 0)
        return err_sys(err, r, "cannot read '%s'", os_path_text(dirfd, path, text));
    memcpy(ret, hex, sizeof(hex));
    if (ret_bytes)
        *ret_bytes = bytes;
    return 0;
}
