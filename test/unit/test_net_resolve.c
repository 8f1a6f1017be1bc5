/* SPDX-License-Identifier: MIT
 *
 * net: looking names up. The system's resolver is replaced by one that answers, refuses and hangs as it is told.
 */
#include <net/net.h>

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>

#include <cmocka.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hold;        /* look-ups of "slow" wait */
static unsigned waiting, over;

static struct addrinfo *add(struct addrinfo *list, const char *ip)
{
    struct addrinfo *a = calloc(1, sizeof *a);
    struct sockaddr_in *in = calloc(1, sizeof *in);
    in->sin_family = AF_INET;
    (void)inet_pton(AF_INET, ip, &in->sin_addr);
    *a = (struct addrinfo){.ai_family = AF_INET, .ai_addr = (struct sockaddr *)in, .ai_addrlen = sizeof *in, .ai_next = list};
    return a;
}

/* In place of the C library's. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    (void)service, (void)hints;
    if (strcmp(node, "slow") == 0) {
        pthread_mutex_lock(&lock);
        waiting++;
        pthread_cond_broadcast(&changed);
        while (hold)
            pthread_cond_wait(&changed, &lock);
        waiting--;
        over++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    if (strcmp(node, "nobody") == 0)
        return EAI_NONAME;
    *ret = NULL;
    if (strcmp(node, "many") == 0)
        for (int i = 20; i > 0; i--) {
            char ip[32];
            snprintf(ip, sizeof ip, "10.0.0.%d", (i + 1) / 2); /* each twice */
            *ret = add(*ret, ip);
        }
    else if (strcmp(node, "none") != 0)
        *ret = add(add(NULL, "127.0.0.1"), "127.0.0.2");
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list) {
        struct addrinfo *next = list->ai_next;
        free(list->ai_addr);
        free(list);
        list = next;
    }
}

struct found {
    struct net_loop *loop;
    struct net_addr addrs[NET_RESOLVE_MAX];
    size_t n;
    char why[128];
    bool done;
};

static void on_found(void *ctx, const struct net_addr *addrs, size_t n, const char *why)
{
    struct found *f = ctx;
    assert_false(f->done);
    assert_int_equal(n == 0, why != NULL);
    memcpy(f->addrs, addrs, n * sizeof *addrs);
    f->n = n;
    snprintf(f->why, sizeof f->why, "%s", why ? why : "");
    f->done = true;
    net_loop_stop(f->loop);
}

static struct net_loop *ticking;
static unsigned stop_at;

static void tick(void *ctx)
{
    if (++*(unsigned *)ctx == stop_at)
        net_loop_stop(ticking);
}

static void look(struct net_loop *l, const char *host, struct found *f)
{
    struct net_resolve *r;
    *f = (struct found){.loop = l};
    assert_int_equal(net_resolve(l, host, 80, on_found, f, &r, NULL), 0);
}

static void test_answers(void **state)
{
    (void)state;
    struct net_loop *l;
    struct found f;
    assert_int_equal(net_loop_new(&l, NULL), 0);
    look(l, "two", &f);
    net_loop_run(l);
    assert_int_equal(f.n, 2);
    assert_string_equal(f.addrs[0].host, "127.0.0.2");
    assert_string_equal(f.addrs[1].host, "127.0.0.1");
    assert_int_equal(f.addrs[0].port, 80);
    look(l, "many", &f);
    net_loop_run(l);
    assert_int_equal(f.n, NET_RESOLVE_MAX);
    assert_string_equal(f.addrs[0].host, "10.0.0.1");
    assert_string_equal(f.addrs[1].host, "10.0.0.2");
    look(l, "nobody", &f);
    net_loop_run(l);
    assert_int_equal(f.n, 0);
    assert_string_equal(f.why, gai_strerror(EAI_NONAME));
    look(l, "none", &f);
    net_loop_run(l);
    assert_string_equal(f.why, "it has no address that can be used");
    l = net_loop_free(l);
}

/* The loop goes on, other names are found, and the one that hung is found when it does not any more. */
static void test_a_name_hangs(void **state)
{
    (void)state;
    struct net_loop *l;
    struct found slow, fast;
    unsigned ticks = 0;
    assert_int_equal(net_loop_new(&l, NULL), 0);
    hold = true;
    look(l, "slow", &slow);
    look(l, "fast", &fast);
    net_loop_run(l);
    assert_true(fast.done);
    ticking = l;
    struct net_timer *t = net_timer_new(l, tick, &ticks);
    net_timer_start(t, 1, 1);
    assert_false(slow.done);
    stop_at = 20;
    net_loop_run(l);
    assert_int_equal(ticks, 20);
    assert_false(slow.done);
    pthread_mutex_lock(&lock);
    hold = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    while (!slow.done)
        net_loop_run(l);
    assert_int_equal(slow.n, 2);
    t = net_timer_close(t);
    l = net_loop_free(l);
}

/* Nobody waits for one that was cancelled, not the end of its loop either; there are only so many at once. */
static void test_cancelled(void **state)
{
    (void)state;
    struct net_loop *l;
    struct net_resolve *r[NET_RESOLVES_AT_ONCE], *more;
    struct found f = {0};
    struct err err;
    assert_int_equal(net_loop_new(&l, NULL), 0);
    hold = true;
    over = 0;
    for (size_t i = 0; i < BASE_COUNT(r); i++)
        assert_int_equal(net_resolve(l, "slow", 80, on_found, &f, &r[i], NULL), 0);
    assert_int_equal(net_resolve(l, "fast", 80, on_found, &f, &more, &err), -EAGAIN);
    assert_string_equal(err.text, "cannot look up host 'fast': Resource temporarily unavailable");
    for (size_t i = 0; i < BASE_COUNT(r); i++)
        r[i] = net_resolve_cancel(r[i]);
    l = net_loop_free(l);
    pthread_mutex_lock(&lock);
    hold = false;
    pthread_cond_broadcast(&changed);
    while (over < BASE_COUNT(r))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    assert_false(f.done);
    assert_null(net_resolve_cancel(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_a_name_hangs), cmocka_unit_test(test_cancelled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
