/* SPDX-License-Identifier: MIT
 *
 * A certificate that signs itself and its key, made for one test.
 */
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

struct tls_pair {
    char *certificate, *key;
};

static inline char *tls_take_bio(BIO *b)
{
    char *data, *text;
    long n = BIO_get_mem_data(b, &data);

    text = malloc((size_t)n + 1);
    assert_non_null(text);
    memcpy(text, data, (size_t)n);
    text[n] = 0;
    BIO_free(b);
    return text;
}

/* Valid from and until these seconds from this moment. passphrase NULL: the key is open. */
static inline struct tls_pair tls_pair_dated(const char *name, const char *passphrase, long from, long until)
{
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *cert = BIO_new(BIO_s_mem()), *key = BIO_new(BIO_s_mem());

    assert_non_null(k);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), from);
    X509_gmtime_adj(X509_getm_notAfter(x), until);
    X509_set_pubkey(x, k);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    assert_true(X509_sign(x, k, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_bio_X509(cert, x), 1);
    assert_int_equal(PEM_write_bio_PrivateKey(key, k, passphrase ? EVP_aes_128_cbc() : NULL, (const unsigned char *)passphrase,
                                              passphrase ? (int)strlen(passphrase) : 0, NULL, NULL), 1);
    X509_free(x);
    EVP_PKEY_free(k);
    return (struct tls_pair){.certificate = tls_take_bio(cert), .key = tls_take_bio(key)};
}

static inline struct tls_pair tls_pair_new(const char *name, const char *passphrase)
{
    return tls_pair_dated(name, passphrase, 0, 3600);
}

static inline void tls_pair_release(struct tls_pair *p)
{
    free(p->certificate);
    free(p->key);
}
