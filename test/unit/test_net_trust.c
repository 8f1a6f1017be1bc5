/* SPDX-License-Identifier: MIT
 *
 * A client's end of TLS, which believes one certificate, against a listener of the same loop that echoes.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <net/net.h>

#include "tls_pair.h"

#define HANG_MS 20000
#define SECRET_BYTES 100000

struct both {
    struct net_loop *loop;
    struct net_timer *watchdog;
    struct net_listener *listener;
    struct net_stream *server, *client;
    size_t heard, echoed; /* by the server; back at the client */
    int connects, status, ends;
    bool hung, rude, same; /* rude: the server closes at once */
};

static void on_hang(void *ctx)
{
    struct both *b = ctx;
    b->hung = true;
    net_loop_stop(b->loop);
}

static void server_data(void *ctx, struct str data)
{
    struct both *b = ctx;
    b->heard += data.len;
    base_ignore(net_stream_write(b->server, &data, 1));
}

static void server_end(void *ctx, int status)
{
    struct both *b = ctx;
    (void)status;
    b->server = net_stream_close(b->server, false);
}

static void on_accept(void *ctx, struct net_stream *s)
{
    static const struct net_stream_ops ops = {.on_data = server_data, .on_end = server_end};
    struct both *b = ctx;
    if (b->rude) {
        net_stream_close(s, false);
        return;
    }
    b->server = s;
    net_stream_set_ops(s, &ops, b);
    net_stream_read(s, true);
}

static void on_connect(void *ctx, int status)
{
    struct both *b = ctx;
    b->connects++;
    b->status = status;
    if (status < 0)
        net_loop_stop(b->loop);
}

static void client_data(void *ctx, struct str data)
{
    struct both *b = ctx;
    for (size_t i = 0; i < data.len; i++)
        b->same = b->same && data.ptr[i] == (char)((b->echoed + i) % 251);
    b->echoed += data.len;
    if (b->echoed == SECRET_BYTES)
        net_loop_stop(b->loop);
}

static void client_end(void *ctx, int status)
{
    struct both *b = ctx;
    (void)status;
    b->ends++;
    net_loop_stop(b->loop);
}

/* Connects to a server that has `has` (NULL: speaks plain), trusting the certificate of `trusted`, and writes at once. */
static struct both meet(const struct tls_pair *has, const struct tls_pair *trusted, bool rude)
{
    static const struct net_stream_ops ops = {.on_connect = on_connect, .on_data = client_data, .on_end = client_end};
    static char secret[SECRET_BYTES];
    struct both b = {.rude = rude, .same = true};
    struct net_tls *server = NULL, *client = NULL;
    struct net_addr a;
    for (size_t i = 0; i < sizeof secret; i++)
        secret[i] = (char)(i % 251);
    assert_int_equal(net_loop_new(&b.loop, NULL), 0);
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &a), 0);
    int fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &a), 0);
    assert_int_equal(net_listener_new(b.loop, fd, on_accept, &b, &b.listener, NULL), 0);
    if (has) {
        assert_int_equal(net_tls_new(str_of(has->certificate), str_of(has->key), &server, NULL), 0);
        net_listener_set_tls(b.listener, server);
    }
    assert_int_equal(net_tls_trust(str_of(trusted->certificate), &client, NULL), 0);
    b.watchdog = net_timer_new(b.loop, on_hang, &b);
    net_timer_start(b.watchdog, HANG_MS, 0);
    assert_int_equal(net_connect(b.loop, &a, &ops, &b, &b.client, NULL), 0);
    assert_int_equal(net_stream_set_tls(b.client, client), 0);
    assert_int_equal(net_stream_write(b.client, (struct str[]){{secret, 10}, {secret + 10, sizeof secret - 10}}, 2), 0);
    net_loop_run(b.loop);
    b.loop = net_loop_free(b.loop);
    net_tls_unref(server);
    net_tls_unref(client);
    assert_false(b.hung);
    assert_int_equal(b.connects, 1);
    return b;
}

/* A certificate whose dates are these, in seconds from now, signed by `by` (NULL: by itself). */
static struct tls_pair make_pair(long from, long until, const struct tls_pair *by)
{
    struct tls_pair p = tls_pair_new("router.example", NULL), made = {.key = p.key};
    BIO *in = BIO_new_mem_buf(p.certificate, -1), *key = BIO_new_mem_buf(by ? by->key : p.key, -1), *out = BIO_new(BIO_s_mem());
    X509 *x = PEM_read_bio_X509(in, NULL, NULL, NULL);
    EVP_PKEY *k = PEM_read_bio_PrivateKey(key, NULL, NULL, NULL);
    assert_non_null(x);
    assert_non_null(k);
    X509_gmtime_adj(X509_getm_notBefore(x), from);
    X509_gmtime_adj(X509_getm_notAfter(x), until);
    assert_true(X509_sign(x, k, EVP_sha256()) > 0);
    assert_int_equal(PEM_write_bio_X509(out, x), 1);
    X509_free(x);
    EVP_PKEY_free(k);
    BIO_free(in);
    BIO_free(key);
    free(p.certificate);
    made.certificate = tls_take_bio(out);
    return made;
}

static void test_trusted(void **state)
{
    struct tls_pair p = tls_pair_new("any name at all", NULL);
    (void)state;
    struct both b = meet(&p, &p, false);
    assert_int_equal(b.status, 0);
    assert_int_equal(b.echoed, SECRET_BYTES);
    assert_int_equal(b.heard, SECRET_BYTES);
    assert_true(b.same);
    assert_int_equal(b.ends, 0);
    tls_pair_release(&p);
}

/* Under the same name, signed by itself or by the one that is trusted: nothing of what was written goes out. */
static void test_another(void **state)
{
    struct tls_pair trusted = tls_pair_new("router.example", NULL), other = tls_pair_new("router.example", NULL), child = make_pair(0, 3600, &trusted);
    const struct tls_pair *const wrong[] = {&other, &child};
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(wrong); i++) {
        struct both b = meet(wrong[i], &trusted, false);
        assert_int_equal(b.status, -EKEYREJECTED);
        assert_int_equal(b.heard, 0);
        assert_int_equal(b.echoed, 0);
    }
    tls_pair_release(&trusted);
    tls_pair_release(&other);
    tls_pair_release(&child);
}

static void test_dates(void **state)
{
    struct tls_pair over = make_pair(-7200, -3600, NULL), to_come = make_pair(3600, 7200, NULL);
    (void)state;
    struct both b = meet(&over, &over, false);
    assert_int_equal(b.status, -EKEYEXPIRED);
    assert_int_equal(b.heard, 0);
    b = meet(&to_come, &to_come, false);
    assert_int_equal(b.status, -EKEYEXPIRED);
    assert_int_equal(b.heard, 0);
    tls_pair_release(&over);
    tls_pair_release(&to_come);
}

/* A server that echoes our first word in plain, and one that says nothing and goes. */
static void test_no_tls(void **state)
{
    struct tls_pair p = tls_pair_new("router.example", NULL);
    (void)state;
    struct both b = meet(NULL, &p, false);
    assert_int_equal(b.status, -EPROTO);
    assert_true(b.heard < 1000); /* a hello, and not what was written */
    assert_int_equal(b.echoed, 0);
    b = meet(NULL, &p, true);
    assert_true(b.status == -ECONNRESET || b.status == -EPIPE);
    tls_pair_release(&p);
}

static void test_unusable(void **state)
{
    struct net_tls *t = NULL;
    struct err err;
    (void)state;
    assert_int_equal(net_tls_trust(STR("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), &t, &err), -EINVAL);
    assert_int_equal(net_tls_trust(STR(""), &t, &err), -EINVAL);
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trusted), cmocka_unit_test(test_another), cmocka_unit_test(test_dates), cmocka_unit_test(test_no_tls), cmocka_unit_test(test_unusable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
