/* SPDX-License-Identifier: MIT
 *
 * TLS of accepted streams, against a client of OpenSSL's own in a thread, which blocks. The server side echoes.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <net/net.h>

#include "tls_pair.h"

#define HANG_MS 20000

struct server {
    struct net_loop *loop;
    struct net_timer *watchdog;
    struct net_listener *listener;
    struct net_tls *tls;
    struct net_addr addr;
    struct net_stream *s;
    size_t got;
    int ends, end_status;
    bool hung, closed, farewell; /* farewell: finishes its side with the first data */
    bool pause;                  /* stops reading at the first data, once */
    struct net_timer *resume;
};

static void on_hang(void *ctx)
{
    struct server *v = ctx;

    v->hung = true;
    net_loop_stop(v->loop);
}

static void on_resume(void *ctx)
{
    struct server *v = ctx;

    if (v->s)
        net_stream_read(v->s, true);
}

static void on_data(void *ctx, struct str data)
{
    struct server *v = ctx;

    v->got += data.len;
    assert_true(net_stream_greeted(v->s));
    assert_int_equal(net_stream_write(v->s, (struct str[]){{data.ptr, data.len / 2}, {data.ptr + data.len / 2, data.len - data.len / 2}, {NULL, 0}}, 3), 0);
    if (v->pause) {
        v->pause = false;
        net_stream_read(v->s, false);
        net_timer_start(v->resume, 1, 0);
    }
    if (v->farewell)
        net_stream_shutdown(v->s);
}

static void on_end(void *ctx, int status)
{
    struct server *v = ctx;

    v->ends++;
    v->end_status = status;
    v->s = net_stream_close(v->s, false);
}

static void on_close(void *ctx)
{
    struct server *v = ctx;

    v->closed = true;
    net_loop_stop(v->loop);
}

static void on_accept(void *ctx, struct net_stream *s)
{
    static const struct net_stream_ops ops = {.on_data = on_data, .on_end = on_end, .on_close = on_close};
    struct server *v = ctx;

    v->s = s;
    assert_false(net_stream_greeted(s));
    net_stream_set_ops(s, &ops, v);
    net_stream_read(s, true);
}

static void server_open(struct server *v, const struct tls_pair *p)
{
    struct net_addr a;
    int fd;

    *v = (struct server){0};
    assert_int_equal(net_loop_new(&v->loop, NULL), 0);
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &a), 0);
    fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &v->addr), 0);
    assert_int_equal(net_tls_new(str_of(p->certificate), str_of(p->key), &v->tls, NULL), 0);
    assert_int_equal(net_listener_new(v->loop, fd, on_accept, v, &v->listener, NULL), 0);
    net_listener_set_tls(v->listener, v->tls);
    v->watchdog = net_timer_new(v->loop, on_hang, v);
    v->resume = net_timer_new(v->loop, on_resume, v);
}

static void server_close(struct server *v)
{
    v->listener = net_listener_close(v->listener);
    v->loop = net_loop_free(v->loop);
    v->tls = net_tls_unref(v->tls);
}

/* ---- the client --------------------------------------------------------------------------------------------- */

struct client {
    uint16_t port;
    int max_version;       /* 0: the newest */
    const char *alpn;      /* wire form; NULL: none is offered */
    size_t bytes;          /* sent and awaited back */
    bool plain;            /* speaks HTTP instead */
    bool leave;            /* closes the socket without a word */
    bool until_end;        /* reads until the end */
    /* what came */
    int handshake;
    char chosen[16], name[64], text[256];
    size_t echoed;
    bool same, clean_end;
};

static void talk(struct client *c, SSL *ssl)
{
    static const char block[10000] = {1, 2, 3};
    char got[10000];
    const unsigned char *chosen;
    unsigned n_chosen;
    X509 *cert = SSL_get1_peer_certificate(ssl);

    X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, c->name, sizeof(c->name));
    X509_free(cert);
    SSL_get0_alpn_selected(ssl, &chosen, &n_chosen);
    memcpy(c->chosen, chosen ? chosen : (const unsigned char *)"", n_chosen < sizeof(c->chosen) ? n_chosen : 0);
    c->same = true;
    for (size_t sent = 0; sent < c->bytes;) {
        size_t want = c->bytes - sent < sizeof(block) ? c->bytes - sent : sizeof(block);
        if (SSL_write(ssl, block, (int)want) != (int)want)
            return;
        sent += want;
        for (size_t have = 0; have < want;) {
            int n = SSL_read(ssl, got, (int)(want - have));
            if (n <= 0)
                return;
            c->same = c->same && memcmp(got, block + have, (size_t)n) == 0;
            have += (size_t)n;
            c->echoed += (size_t)n;
        }
    }
    if (c->until_end) {
        int n = SSL_read(ssl, got, sizeof(got));
        c->clean_end = n <= 0 && SSL_get_error(ssl, n) == SSL_ERROR_ZERO_RETURN;
    }
    if (!c->leave)
        SSL_shutdown(ssl);
}

static void *run_client(void *arg)
{
    struct client *c = arg;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);

    if (connect(fd, (struct sockaddr *)&in, sizeof(in)) == 0 && c->plain) {
        if (write(fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27) == 27)
            base_ignore(read(fd, c->text, sizeof(c->text) - 1));
    } else {
        if (c->max_version) {
            SSL_set_security_level(ssl, 0);
            SSL_set_min_proto_version(ssl, c->max_version);
            SSL_set_max_proto_version(ssl, c->max_version);
        }
        if (c->alpn)
            SSL_set_alpn_protos(ssl, (const unsigned char *)c->alpn, (unsigned)strlen(c->alpn));
        SSL_set_fd(ssl, fd);
        c->handshake = SSL_connect(ssl);
        if (c->handshake == 1)
            talk(c, ssl);
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return NULL;
}

/* One connection from its begin to its end. */
static void serve(struct server *v, struct client *c)
{
    pthread_t t;

    c->port = v->addr.port;
    v->got = 0;
    v->closed = false;
    v->ends = 0;
    assert_int_equal(pthread_create(&t, NULL, run_client, c), 0);
    net_timer_start(v->watchdog, HANG_MS, 0);
    net_loop_run(v->loop);
    net_timer_stop(v->watchdog);
    assert_false(v->hung);
    assert_true(v->closed);
    assert_int_equal(pthread_join(t, NULL), 0);
}

/* ---- tests --------------------------------------------------------------------------------------------------- */

static void test_echo(void **state)
{
    struct tls_pair p = tls_pair_new("one", NULL);
    struct server v;
    struct client c = {.bytes = 1000000, .alpn = "\x02h2\x08http/1.1"};
    struct net_tls_stats stats;

    (void)state;
    server_open(&v, &p);
    v.pause = true;
    serve(&v, &c);
    assert_int_equal(c.handshake, 1);
    assert_string_equal(c.chosen, "http/1.1");
    assert_string_equal(c.name, "one");
    assert_int_equal(c.echoed, 1000000);
    assert_true(c.same);
    assert_int_equal(v.got, 1000000);
    assert_int_equal(v.ends, 1);
    assert_int_equal(v.end_status, 0); /* announced */
    net_tls_stats(v.tls, &stats);
    assert_int_equal(stats.done, 1);
    assert_int_equal(stats.failed + stats.left, 0);
    server_close(&v);
    tls_pair_release(&p);
}

static void test_versions(void **state)
{
    static const struct {
        int version;
        const char *alpn;
        int ok;
    } cases[] = {{TLS1_3_VERSION, NULL, 1}, {TLS1_2_VERSION, NULL, 1}, {TLS1_1_VERSION, NULL, 0}, {TLS1_3_VERSION, "\x02h2", 0}};
    struct tls_pair p = tls_pair_new("one", NULL);
    struct server v;
    struct net_tls_stats stats;

    (void)state;
    server_open(&v, &p);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c = {.bytes = 5, .max_version = cases[i].version, .alpn = cases[i].alpn};

        serve(&v, &c);
        assert_int_equal(c.handshake == 1, cases[i].ok);
        assert_int_equal(c.echoed, cases[i].ok ? 5 : 0);
    }
    net_tls_stats(v.tls, &stats);
    assert_int_equal(stats.done, 2);
    assert_int_equal(stats.failed, 2);
    server_close(&v);
    tls_pair_release(&p);
}

static void test_ends(void **state)
{
    struct tls_pair p = tls_pair_new("one", NULL);
    struct server v;
    struct client leaves = {.bytes = 10, .leave = true}, waits = {.bytes = 10, .until_end = true};

    (void)state;
    server_open(&v, &p);
    serve(&v, &leaves);
    assert_int_equal(v.end_status, -ECONNRESET); /* nobody said that it was over */
    v.farewell = true;
    serve(&v, &waits);
    assert_true(waits.clean_end);
    assert_int_equal(v.end_status, 0);
    server_close(&v);
    tls_pair_release(&p);
}

static void test_plain_http(void **state)
{
    struct tls_pair p = tls_pair_new("one", NULL);
    struct server v;
    struct client c = {.plain = true};
    struct net_tls_stats stats;

    (void)state;
    server_open(&v, &p);
    serve(&v, &c);
    assert_non_null(strstr(c.text, "HTTP/1.1 400 Bad Request\r\n"));
    const char *body = strstr(c.text, "\r\n\r\n");
    assert_non_null(body);
    assert_string_equal(body + 4, "this port speaks TLS: use an https address\n");
    assert_int_equal(strlen(body + 4), 43); /* the Content-Length */
    net_tls_stats(v.tls, &stats);
    assert_int_equal(stats.failed, 1);
    server_close(&v);
    tls_pair_release(&p);
}

static void test_replace(void **state)
{
    struct tls_pair one = tls_pair_new("one", NULL), two = tls_pair_new("two", NULL), locked = tls_pair_new("three", "word");
    struct server v;
    struct client a = {.bytes = 5}, b = {.bytes = 5}, c = {.bytes = 5};
    struct err err = {0};

    (void)state;
    server_open(&v, &one);
    serve(&v, &a);
    assert_string_equal(a.name, "one");
    assert_int_equal(net_tls_replace(v.tls, str_of(two.certificate), str_of(two.key), NULL), 0);
    serve(&v, &b);
    assert_string_equal(b.name, "two");
    /* what cannot be used leaves what there is */
    assert_int_equal(net_tls_replace(v.tls, str_of(one.certificate), str_of(two.key), &err), -EINVAL);
    assert_non_null(strstr(err.text, "key: it does not belong to the certificate"));
    assert_int_equal(net_tls_replace(v.tls, str_of(locked.certificate), str_of(locked.key), &err), -EINVAL);
    assert_non_null(strstr(err.text, "without a passphrase"));
    assert_int_equal(net_tls_replace(v.tls, STR("no certificate"), str_of(two.key), &err), -EINVAL);
    assert_non_null(strstr(err.text, "certificate: it holds no usable certificate in PEM form"));
    assert_int_equal(net_tls_replace(v.tls, str_of(two.certificate), str_of(two.certificate), &err), -EINVAL);
    assert_non_null(strstr(err.text, "key: it holds no key"));
    serve(&v, &c);
    assert_string_equal(c.name, "two");
    server_close(&v);
    tls_pair_release(&one);
    tls_pair_release(&two);
    tls_pair_release(&locked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo), cmocka_unit_test(test_versions), cmocka_unit_test(test_ends), cmocka_unit_test(test_plain_http), cmocka_unit_test(test_replace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
