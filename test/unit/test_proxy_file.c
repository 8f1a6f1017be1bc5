/* SPDX-License-Identifier: MIT
 *
 * A disk that does not write: what waits for it, what does not, and what is left of a body whose client has gone meanwhile. The file's writing is this test's own: it waits until it is let go.
 */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <base/base.h>

static pthread_mutex_t disk_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t disk_moves = PTHREAD_COND_INITIALIZER;
static bool disk_held;    /* lock */
static int disk_error;    /* lock; what a write fails with */
static unsigned disk_began; /* lock; writes that were begun */

static ssize_t disk_pwrite(int fd, const void *data, size_t len, off_t at)
{
    (void)pthread_mutex_lock(&disk_lock);
    disk_began++;
    while (disk_held)
        (void)pthread_cond_wait(&disk_moves, &disk_lock);
    int error = disk_error;
    (void)pthread_mutex_unlock(&disk_lock);
    if (error) {
        errno = error;
        return -1;
    }
    return pwrite(fd, data, len, at);
}

#define pwrite disk_pwrite
#include "../../src/proxy/file.c"
#undef pwrite

#include "proxy_spill.h"

#define CHAT "/v1/chat/completions"
#define MIB ((size_t)1 << 20)
#define THREADS 2

static void disk_set(bool held, int error)
{
    (void)pthread_mutex_lock(&disk_lock);
    disk_held = held;
    disk_error = error;
    if (held)
        disk_began = 0;
    (void)pthread_cond_broadcast(&disk_moves);
    (void)pthread_mutex_unlock(&disk_lock);
}

static unsigned began(void)
{
    (void)pthread_mutex_lock(&disk_lock);
    unsigned n = disk_began;
    (void)pthread_mutex_unlock(&disk_lock);
    return n;
}

static int close_all(void **state)
{
    disk_set(false, 0);
    return spill_close(state);
}

#define FILE_TEST(f) cmocka_unit_test_setup_teardown(f, spill_open, close_all)

/* A request with a body of n bytes, which tells where each byte belongs. */
static void make_request(struct buf *out, size_t n, const char *framing)
{
    buf_addf(out, "POST " CHAT " HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", framing);
    char *at = buf_room(out, n);
    assert_non_null(at);
    for (size_t i = 0; i < n; i++)
        at[i] = (char)('a' + (i ^ i >> 8 ^ i >> 16) % 23);
    buf_grew(out, n);
}

static void test_others_go_on(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf bytes = BUF_INIT(16 * MIB);
    make_request(&bytes, 6 * MIB, "Content-Length: 6291456");
    struct client slow;
    disk_set(true, 0);
    raw_start(&slow, bytes.ptr);
    WAIT_POLL(began() == 1);
    for (int i = 0; i < 20; i++) {
        struct client c;
        ask(&c, "POST", CHAT, "{\"model\":\"m\"}");
        assert_int_equal(c.status, 200);
        client_release(&c);
    }
    rig_run(50);
    assert_int_equal(began(), 1); /* one after the other */
    assert_true(rig.proxy->bodies > PROXY_FILE_AHEAD);
    assert_true(rig.proxy->bodies <= PROXY_FILE_AHEAD + 4 * 65536); /* the client is not read any more */
    assert_int_equal(rig.proxy->bodies, rig.proxy->spilled);
    assert_int_equal(rig.proxy->stats.active, 1);
    disk_set(false, 0);
    WAIT(contains(&slow.body, "HTTP/1.1 200 "));
    assert_int_equal(rig.replicas[0].body.len, 6 * MIB);
    assert_memory_equal(rig.replicas[0].body.ptr, bytes.ptr + bytes.len - 6 * MIB, 6 * MIB);
    WAIT_POLL(rig.proxy->stats.active == 0);
    assert_int_equal(rig.proxy->bodies, 0);
    assert_int_equal(rig.proxy->spilled, 0);
    client_release(&slow);
    WAIT_POLL(spill_files() == 0);
}

/* What a thread works on ends first; what none has begun is not done. */
static void test_clients_leave(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf bytes = BUF_INIT(16 * MIB);
    make_request(&bytes, 2 * MIB, "Content-Length: 3000000");
    struct client c[THREADS + 3];
    disk_set(true, 0);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        raw_start(&c[i], bytes.ptr);
    WAIT_POLL(began() == THREADS && rig.proxy->stats.active == BASE_COUNT(c) && rig.proxy->spilled > PROXY_FILE_AHEAD * BASE_COUNT(c));
    assert_int_equal(spill_files(), THREADS);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        c[i].raw = net_stream_close(c[i].raw, true); /* an end without reset would stand behind what is not read */
    WAIT_POLL(rig.proxy->stats.active == 0);
    assert_int_equal(rig.proxy->bodies, 0);
    assert_int_equal(rig.proxy->spilled, 0);
    assert_int_equal(spill_files(), THREADS);
    disk_set(false, 0);
    WAIT_POLL(spill_files() == 0);
    assert_int_equal(began(), THREADS);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        client_release(&c[i]);
    assert_int_equal(rig.replicas[0].requests, 0);
}

/* The body is all there when its writing fails. */
static void test_fails_at_the_end(void **state)
{
    (void)state;
    static const struct {
        int error;
        const char *status, *text;
    } cases[] = {
        {ENOSPC, "HTTP/1.1 507 ", "the router's disk has no room for the request body"},
        {EIO, "HTTP/1.1 503 ", "the router cannot keep the request body: Input/output error"},
    };
    rig_replicas(1, ECHO);
    rig.proxy->config->bodies.spill_bytes = 1000;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf bytes = BUF_INIT(MIB);
        make_request(&bytes, 30000, "Content-Length: 30000");
        struct client c;
        disk_set(true, cases[i].error);
        raw_start(&c, bytes.ptr);
        WAIT_POLL(began() == 1 && rig.proxy->spilled == 30000);
        disk_set(false, cases[i].error);
        WAIT(contains(&c.body, cases[i].text));
        assert_true(str_starts(buf_str(&c.body), str_of(cases[i].status)));
        client_release(&c);
        WAIT_POLL(rig.proxy->stats.active == 0);
    }
    assert_int_equal(rig.replicas[0].requests, 0);
    WAIT_POLL(spill_files() == 0);
}

/* The operator ends a request whose client is not read. */
static void test_cancelled(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf bytes = BUF_INIT(16 * MIB), out = BUF_INIT(MIB);
    make_request(&bytes, 2 * MIB, "Content-Length: 3000000");
    struct client c;
    unsigned status;
    disk_set(true, 0);
    raw_start(&c, bytes.ptr);
    WAIT_POLL(began() == 1 && rig.proxy->spilled > PROXY_FILE_AHEAD);
    assert_int_equal(proxy_ask(rig.proxy, STR("POST"), STR("/requests/1/cancel"), &status, &out), 0);
    assert_int_equal(status, 200);
    WAIT(contains(&c.body, "this request was cancelled by the operator"));
    assert_true(str_starts(buf_str(&c.body), STR("HTTP/1.1 410 ")));
    assert_int_equal(rig.proxy->spilled, 0);
    client_release(&c);
    disk_set(false, 0);
    WAIT_POLL(spill_files() == 0);
}

/* The router ends first. */
static void test_router_ends(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf bytes = BUF_INIT(16 * MIB);
    make_request(&bytes, 2 * MIB, "Content-Length: 3000000");
    struct client c[THREADS + 1];
    disk_set(true, 0);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        raw_start(&c[i], bytes.ptr);
    WAIT_POLL(began() == THREADS && rig.proxy->stats.active == BASE_COUNT(c));
    rig.proxy = proxy_free(rig.proxy);
    disk_set(false, 0);
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        client_release(&c[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FILE_TEST(test_others_go_on), FILE_TEST(test_clients_leave), FILE_TEST(test_fails_at_the_end), FILE_TEST(test_cancelled), FILE_TEST(test_router_ends),
    };
    if (setenv("UV_THREADPOOL_SIZE", "2", 1) < 0) /* THREADS */
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
