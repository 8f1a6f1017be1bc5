/* SPDX-License-Identifier: MIT
 *
 * Names of hosts. The system's resolver may take as long as it likes, so each look-up has a thread that nobody waits for: what it works on belongs to both sides until one lets go. A look-up that was cancelled
 * is freed by its thread. libuv's own pool is not used: its threads are few, and the end of the process waits for them.
 */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "net_int.h"

#define WHY_MAX 256

struct net_resolve {
    pthread_mutex_t lock;
    bool done, dropped;     /* lock; the thread has finished; the owner is not there any more */
    struct net_wake *wake;  /* lock; NULL when dropped */
    void (*cb)(void *ctx, const struct net_addr *addrs, size_t n, const char *why);
    void *ctx;
    uint16_t port;
    struct net_addr addrs[NET_RESOLVE_MAX]; /* the thread's until it is done */
    size_t n;
    char why[WHY_MAX];
    char host[];
};

static atomic_uint under_way;

static void release(struct net_resolve *r)
{
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

static bool is_known(const struct net_resolve *r, const struct net_addr *a)
{
    for (size_t i = 0; i < r->n; i++)
        if (net_addr_eq(&r->addrs[i], a))
            return true;
    return false;
}

static void look_up(struct net_resolve *r)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int code = getaddrinfo(r->host, NULL, &hints, &list);

    for (const struct addrinfo *i = code == 0 ? list : NULL; i && r->n < NET_RESOLVE_MAX; i = i->ai_next) {
        char text[NI_MAXHOST];
        struct net_addr a;

        if (getnameinfo(i->ai_addr, i->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) == 0 && net_addr_ip(text, r->port, &a) == 0 && !is_known(r, &a))
            r->addrs[r->n++] = a;
    }
    if (list)
        freeaddrinfo(list);
    if (r->n == 0)
        (void)snprintf(r->why, sizeof(r->why), "%s", code == 0 ? "it has no address that can be used" : gai_strerror(code));
}

static void *run(void *arg)
{
    struct net_resolve *r = arg;

    look_up(r);
    atomic_fetch_sub(&under_way, 1);
    (void)pthread_mutex_lock(&r->lock);
    r->done = true;
    bool dropped = r->dropped;
    if (!dropped)
        net_wake_send(r->wake); /* within the lock: the owner may close it only outside of this */
    (void)pthread_mutex_unlock(&r->lock);
    if (dropped)
        release(r);
    return NULL;
}

static void on_wake(void *ctx)
{
    struct net_resolve *r = ctx;

    (void)pthread_mutex_lock(&r->lock);
    bool done = r->done;
    (void)pthread_mutex_unlock(&r->lock);
    assert(done);
    r->wake = net_wake_close(r->wake);
    r->cb(r->ctx, r->addrs, r->n, r->n ? NULL : r->why);
    release(r);
}

static int start(struct net_resolve *r)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return -rc;
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    /* Signals are for the thread of the loop. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, &attr, run, r);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return -rc;
}

int net_resolve(struct net_loop *l, const char *host, uint16_t port, void (*cb)(void *ctx, const struct net_addr *addrs, size_t n, const char *why), void *ctx, struct net_resolve **ret,
                struct err *err)
{
    size_t len = strlen(host);
    struct net_resolve *r = calloc(1, sizeof(*r) + len + 1);

    if (!r)
        return err_nomem(err);
    (void)pthread_mutex_init(&r->lock, NULL); /* cannot fail without attributes */
    r->cb = cb;
    r->ctx = ctx;
    r->port = port;
    memcpy(r->host, host, len + 1);
    int rc = net_wake_new(l, on_wake, r, &r->wake, err);
    if (rc < 0) {
        release(r);
        return rc;
    }
    rc = atomic_fetch_add(&under_way, 1) < NET_RESOLVES_AT_ONCE ? start(r) : -EAGAIN;
    if (rc < 0) {
        atomic_fetch_sub(&under_way, 1);
        r->wake = net_wake_close(r->wake);
        release(r);
        return err_sys(err, rc, "cannot look up host '%s'", host);
    }
    *ret = r;
    return 0;
}

struct net_resolve *net_resolve_cancel(struct net_resolve *r)
{
    if (!r)
        return NULL;
    (void)pthread_mutex_lock(&r->lock);
    bool done = r->done;
    r->dropped = true;
    r->wake = net_wake_close(r->wake);
    (void)pthread_mutex_unlock(&r->lock);
    if (done)
        release(r);
    return NULL;
}
