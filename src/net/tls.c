/* SPDX-License-Identifier: MIT
 *
 * TLS of streams, with OpenSSL: of a server's, and of a client's that knows which certificate it must be shown. Neither memory BIOs nor the descriptor: a BIO of our own reads from the bytes that the loop has just read and writes
 * through the stream's plain path, so that a connection holds no buffers while nothing is under way, and queueing, back-pressure and errors are those of every stream.
 *
 * What the peer sent is decrypted as far as it goes before the loop reads again; only a record that is not complete stays, inside OpenSSL. A stream without TLS
 * pays one look at a pointer.
 *
 * A `net_tls` is a certificate with its key behind a lock: connections of any thread begin with what it holds at that moment, and keep it when it is replaced.
 */
#include <assert.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "net_int.h"

#define TLS_MAGIC 0x6e746c31u
#define TLS_CHAIN_MAX 16               /* certificates behind the first: real chains have one or two */

struct net_tls {
    uint32_t magic;
    atomic_uint refs;
    pthread_mutex_t lock; /* over ctx */
    SSL_CTX *ctx;
    X509 *peer; /* a client's: the one certificate that it believes; NULL: a server's */
    atomic_ullong done, failed, left;
};

struct net_tls_conn {
    SSL *ssl;
    struct net_tls *tls;
    struct str in; /* what the loop has read and OpenSSL has not taken yet */
    struct buf early; /* a client's bytes that wait for the handshake */
    int refused;   /* why the peer's certificate is not believed: a negative errno, or 0 */
    bool greeted;  /* the handshake is complete */
    bool ended;    /* the peer has said that nothing follows */
    bool broken;
};

/* ---- the certificate ------------------------------------------------------------------------------------- */

static int refuse(struct err *err, const char *what)
{
    unsigned long code = ERR_peek_last_error();
    const char *why = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return err_set(err, -EINVAL, "%s%s%s", what, why ? ": " : "", why ? why : "");
}

/* A key that wants a passphrase is refused: nobody is there to type it. */
static int no_passphrase(char *buf, int size, int writing, void *ctx)
{
    (void)buf;
    (void)size;
    (void)writing;
    (void)ctx;
    return -1;
}

static int use_chain(SSL_CTX *ctx, BIO *from, struct err *err)
{
    X509 *cert = PEM_read_bio_X509_AUX(from, NULL, no_passphrase, NULL);
    int r = cert ? SSL_CTX_use_certificate(ctx, cert) : 0;

    X509_free(cert);
    if (r != 1)
        return refuse(err, "it holds no usable certificate in PEM form");
    for (int i = 0; i < TLS_CHAIN_MAX; i++) {
        cert = PEM_read_bio_X509(from, NULL, no_passphrase, NULL);
        if (!cert) {
            ERR_clear_error(); /* the end */
            return 0;
        }
        if (SSL_CTX_add0_chain_cert(ctx, cert) != 1) {
            X509_free(cert);
            return refuse(err, "a certificate of its chain cannot be used");
        }
    }
    return err_set(err, -EINVAL, "it has more than %d certificates", TLS_CHAIN_MAX + 1);
}

static int use_pair(SSL_CTX *ctx, struct str certificate, struct str key, struct err *err)
{
    BIO *from = certificate.len <= NET_PEM_MAX ? BIO_new_mem_buf(certificate.ptr, (int)certificate.len) : NULL;
    int r = from ? use_chain(ctx, from, err) : refuse(err, "too large");

    BIO_free(from);
    if (r < 0)
        return err_prefix(err, "certificate");
    from = key.len <= NET_PEM_MAX ? BIO_new_mem_buf(key.ptr, (int)key.len) : NULL;
    EVP_PKEY *k = from ? PEM_read_bio_PrivateKey(from, NULL, no_passphrase, NULL) : NULL;
    BIO_free(from);
    if (!k)
        r = refuse(err, "key: it holds no key in PEM form that opens without a passphrase");
    else if (SSL_CTX_use_PrivateKey(ctx, k) != 1)
        r = refuse(err, "key: it does not belong to the certificate");
    EVP_PKEY_free(k);
    return r;
}

/* HTTP/1.1 is what is spoken here; a client that offers others only is told at once. */
static int choose_protocol(SSL *ssl, const unsigned char **ret, unsigned char *ret_len, const unsigned char *in, unsigned in_len, void *ctx)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *out;

    (void)ssl;
    (void)ctx;
    if (SSL_select_next_proto(&out, ret_len, ours, sizeof(ours) - 1, in, in_len) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *ret = out;
    return SSL_TLSEXT_ERR_OK;
}

static int make_ctx(struct str certificate, struct str key, SSL_CTX **ret, struct err *err)
{
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return err_nomem(err);
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); /* tickets do it without memory here */
    (void)SSL_CTX_set_num_tickets(ctx, 1);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    int r = use_pair(ctx, certificate, key, err);
    if (r < 0) {
        SSL_CTX_free(ctx);
        return r;
    }
    *ret = ctx;
    return 0;
}

/* Owns ctx and peer also on failure. */
static int make(SSL_CTX *ctx, X509 *peer, struct net_tls **ret, struct err *err)
{
    struct net_tls *t = calloc(1, sizeof(*t));
    if (!t) {
        SSL_CTX_free(ctx);
        X509_free(peer);
        return err_nomem(err);
    }
    t->magic = TLS_MAGIC;
    t->refs = 1;
    t->ctx = ctx;
    t->peer = peer;
    (void)pthread_mutex_init(&t->lock, NULL); /* cannot fail without attributes */
    *ret = t;
    return 0;
}

int net_tls_new(struct str certificate, struct str key, struct net_tls **ret, struct err *err)
{
    SSL_CTX *ctx;
    int r = make_ctx(certificate, key, &ctx, err);
    return r < 0 ? r : make(ctx, NULL, ret, err);
}

/* The certificate itself is the root of its chain, whoever signed it: what its signers signed for others is worth nothing here. */
int net_tls_trust(struct str certificate, struct net_tls **ret, struct err *err)
{
    ERR_clear_error();
    BIO *from = certificate.len <= NET_PEM_MAX ? BIO_new_mem_buf(certificate.ptr, (int)certificate.len) : NULL;
    X509 *peer = from ? PEM_read_bio_X509_AUX(from, NULL, no_passphrase, NULL) : NULL;
    BIO_free(from);
    if (!peer)
        return refuse(err, "it holds no usable certificate in PEM form");
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (!ctx || X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), peer) != 1) {
        SSL_CTX_free(ctx);
        X509_free(peer);
        ERR_clear_error();
        return err_nomem(err);
    }
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    (void)X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(ctx), X509_V_FLAG_PARTIAL_CHAIN);
    return make(ctx, peer, ret, err);
}

int net_tls_replace(struct net_tls *t, struct str certificate, struct str key, struct err *err)
{
    SSL_CTX *ctx;
    int r = make_ctx(certificate, key, &ctx, err);
    if (r < 0)
        return r;
    (void)pthread_mutex_lock(&t->lock);
    SSL_CTX *old = t->ctx;
    t->ctx = ctx;
    (void)pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(old); /* connections hold their own references */
    return 0;
}

struct net_tls *net_tls_ref(struct net_tls *t)
{
    assert(t->magic == TLS_MAGIC);
    (void)atomic_fetch_add(&t->refs, 1);
    return t;
}

struct net_tls *net_tls_unref(struct net_tls *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) > 1)
        return NULL;
    t->magic = NET_MAGIC_DEAD;
    SSL_CTX_free(t->ctx);
    X509_free(t->peer);
    (void)pthread_mutex_destroy(&t->lock);
    free(t);
    return NULL;
}

void net_tls_stats(struct net_tls *t, struct net_tls_stats *ret)
{
    *ret = (struct net_tls_stats){.done = atomic_load(&t->done), .failed = atomic_load(&t->failed), .left = atomic_load(&t->left)};
}

/* ---- between OpenSSL and a stream ------------------------------------------------------------------------- */

static int bio_write(BIO *bio, const char *data, int len)
{
    struct net_stream *s = BIO_get_data(bio);
    struct str part = {data, (size_t)len};

    BIO_clear_retry_flags(bio);
    return net_stream_send(s, &part, 1) == 0 ? len : -1;
}

static int bio_read(BIO *bio, char *data, int len)
{
    const struct net_stream *s = BIO_get_data(bio);
    struct str *in = &s->tls->in;
    size_t n = in->len < (size_t)len ? in->len : (size_t)len;

    BIO_clear_retry_flags(bio);
    if (n == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(data, in->ptr, n);
    in->ptr += n;
    in->len -= n;
    return (int)n;
}

static long bio_ctrl(BIO *bio, int what, long number, void *data)
{
    (void)bio;
    (void)number;
    (void)data;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *bio_method;

static void make_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stream");

    if (m && BIO_meth_set_write(m, bio_write) == 1 && BIO_meth_set_read(m, bio_read) == 1 && BIO_meth_set_ctrl(m, bio_ctrl) == 1)
        bio_method = m; /* for as long as the process lives */
    else
        BIO_meth_free(m);
}

/* A BIO over the stream, which the SSL owns; false without memory. */
static bool attach(struct net_stream *s, SSL *ssl)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, make_method);
    BIO *bio = bio_method ? BIO_new(bio_method) : NULL;
    if (!bio)
        return false;
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    return true;
}

int net_tls_begin(struct net_stream *s, struct net_tls *t)
{
    struct net_tls_conn *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    (void)pthread_mutex_lock(&t->lock);
    c->ssl = SSL_new(t->ctx);
    (void)pthread_mutex_unlock(&t->lock);
    if (!c->ssl || !attach(s, c->ssl)) {
        SSL_free(c->ssl);
        free(c);
        ERR_clear_error();
        return -ENOMEM;
    }
    if (t->peer)
        SSL_set_connect_state(c->ssl);
    else
        SSL_set_accept_state(c->ssl);
    c->early = BUF_INIT(NET_QUEUE_MAX);
    c->tls = net_tls_ref(t);
    s->tls = c;
    return 0;
}

void net_tls_end(struct net_stream *s)
{
    struct net_tls_conn *c = s->tls;

    if (!c)
        return;
    if (!c->greeted && !c->broken)
        (void)atomic_fetch_add(&c->tls->left, 1);
    SSL_free(c->ssl);
    buf_release(&c->early);
    (void)net_tls_unref(c->tls);
    free(c);
    s->tls = NULL;
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

/* Somebody speaks plain HTTP here: the one answer that they can read. */
static void tell_plain(struct net_stream *s)
{
    struct str text = STR("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 43\r\nConnection: close\r\n\r\n"
                          "this port speaks TLS: use an https address\n");

    base_ignore(net_stream_send(s, &text, 1)); /* the connection ends in any case */
}

/* What OpenSSL says after a call that gave nothing: true when it only wants more bytes. */
static bool wants_more(struct net_stream *s, int result)
{
    struct net_tls_conn *c = s->tls;
    int what = SSL_get_error(c->ssl, result);

    if (what == SSL_ERROR_WANT_READ)
        return true;
    if (what == SSL_ERROR_ZERO_RETURN) {
        c->ended = true;
        return false;
    }
    if (!c->greeted && !c->broken) {
        long verdict = SSL_get_verify_result(c->ssl);
        (void)atomic_fetch_add(&c->tls->failed, 1);
        if (c->tls->peer && verdict != X509_V_OK)
            c->refused = verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID ? -EKEYEXPIRED : -EKEYREJECTED;
        if (!c->tls->peer && ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST)
            tell_plain(s);
    }
    c->broken = true;
    ERR_clear_error();
    return false;
}

/* Another certificate that the right one has signed is another one still. */
static bool is_believed(struct net_tls_conn *c)
{
    X509 *shown = SSL_get1_peer_certificate(c->ssl);
    bool same = shown && X509_cmp(shown, c->tls->peer) == 0;

    X509_free(shown);
    if (!same) {
        c->refused = -EKEYREJECTED;
        c->broken = true;
        (void)atomic_fetch_add(&c->tls->failed, 1);
    }
    return same;
}

static bool greet(struct net_stream *s)
{
    struct net_tls_conn *c = s->tls;
    int r = SSL_do_handshake(c->ssl);

    if (r != 1) {
        base_ignore(wants_more(s, r)); /* what it was is in c */
        return false;
    }
    if (c->tls->peer && !is_believed(c))
        return false;
    c->greeted = true;
    (void)atomic_fetch_add(&c->tls->done, 1);
    return !c->tls->peer || net_stream_greet(s);
}

int net_tls_hello(struct net_stream *s)
{
    ERR_clear_error();
    base_ignore(greet(s)); /* the server's answer is to come */
    return s->tls->broken ? -EPROTO : 0;
}

/* Reads what is complete. The owner may close the stream; its memory stays until the loop turns. */
static void decrypt(struct net_stream *s)
{
    struct net_tls_conn *c = s->tls;
    size_t n;

    for (;;) {
        int r = SSL_read_ex(c->ssl, s->loop->plain, sizeof(s->loop->plain), &n);
        if (r != 1) {
            base_ignore(wants_more(s, r));
            return;
        }
        if (s->ops.on_data)
            s->ops.on_data(s->ctx, (struct str){s->loop->plain, n});
        if (s->closing)
            return;
    }
}

int net_tls_feed(struct net_stream *s, struct str data)
{
    struct net_tls_conn *c = s->tls;

    ERR_clear_error();
    c->in = data;
    if (!c->broken && !c->ended && (c->greeted || greet(s)))
        decrypt(s);
    c->in = (struct str){0};
    return c->refused ? c->refused : c->broken ? -EPROTO : c->ended ? 1 : 0;
}

int net_tls_write(struct net_stream *s, const struct str *parts, size_t n_parts)
{
    struct net_tls_conn *c = s->tls;
    char record[NET_PLAIN_BYTES];
    size_t have = 0, sent;

    if (c->broken || (!c->greeted && !c->tls->peer))
        return -EPROTO;
    if (!c->greeted) {
        for (size_t i = 0; i < n_parts; i++)
            buf_add_str(&c->early, parts[i]);
        return buf_status(&c->early) < 0 ? -EPROTO : 0;
    }
    ERR_clear_error();
    if (c->early.len) { /* what was written before the handshake goes first */
        struct buf early = c->early;
        c->early = BUF_INIT(NET_QUEUE_MAX);
        int r = net_tls_write(s, (struct str[]){buf_str(&early)}, 1);
        buf_release(&early);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; i < n_parts; i++) {
        struct str left = parts[i];
        while (left.len > 0) {
            size_t n = left.len < sizeof(record) - have ? left.len : sizeof(record) - have;
            memcpy(record + have, left.ptr, n);
            have += n;
            left.ptr += n;
            left.len -= n;
            bool last = left.len == 0 && i + 1 == n_parts;
            if (have < sizeof(record) && !last)
                continue;
            if (SSL_write_ex(c->ssl, record, have, &sent) != 1)
                goto failed;
            have = 0;
        }
    }
    if (have == 0 || SSL_write_ex(c->ssl, record, have, &sent) == 1) /* the last part was empty */
        return 0;
failed:
    c->broken = true;
    ERR_clear_error();
    return -EPROTO;
}

void net_tls_farewell(struct net_stream *s)
{
    struct net_tls_conn *c = s->tls;

    if (!c->greeted || c->broken || (SSL_get_shutdown(c->ssl) & SSL_SENT_SHUTDOWN) != 0)
        return;
    ERR_clear_error();
    (void)SSL_shutdown(c->ssl); /* who does not get it sees an end without it */
    ERR_clear_error();
}

bool net_tls_greeted(const struct net_stream *s)
{
    return s->tls->greeted;
}
