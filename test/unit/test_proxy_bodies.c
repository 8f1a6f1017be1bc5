/* SPDX-License-Identifier: MIT
 *
 * Bodies of requests: what is refused before it is read, what goes to a file and comes out of it, what is left when it goes wrong, and how much memory all of it takes.
 */
#define RIG_LIMIT_MS 120000 /* much goes to a disk that may have other work */
#include "proxy_spill.h"

#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define CHAT "/v1/chat/completions"
#define MIB ((size_t)1 << 20)

#define BODIES_TEST(f) cmocka_unit_test_setup_teardown(f, spill_open, spill_close)

static struct fleet_bodies *limits(void)
{
    return &rig.proxy->config->bodies;
}

static uint64_t count(enum proxy_metric m)
{
    return metrics_count(metrics_get(rig.proxy->metrics, m, NULL));
}

static uint64_t refused(const char *reason)
{
    return metrics_count(PROXY_M(rig.proxy, PROXY_M_BODIES_REFUSED, reason));
}

/* `front`, a string member of n bytes, `back`. */
static void make_body(struct buf *out, const char *front, size_t n, const char *back)
{
    buf_add_c(out, front);
    char *at = buf_room(out, n);
    assert_non_null(at);
    for (size_t i = 0; i < n; i++)
        at[i] = (char)('a' + i % 23);
    buf_grew(out, n);
    buf_add_c(out, back);
}

/* ---- a file is as good as memory ------------------------------------------------------------------------------ */

/* Wherever the model stands, its name becomes the replica's, and all else is the same bytes. */
static void test_model_anywhere(void **state)
{
    (void)state;
    static const struct {
        const char *front, *back, *sent_front, *sent_back;
    } cases[] = {
        {"{\"model\":\"alias\",\"image\":\"", "\"}", "{\"model\":\"served-0\",\"image\":\"", "\"}"},
        {"{\"image\":\"", "\",\"model\":\"alias\"}", "{\"image\":\"", "\",\"model\":\"served-0\"}"},
        {"{\"image\":\"\\\"model\\\":\\\"x\\\"", "\" , \"model\" : \"alias\" , \"n\": 1}", "{\"image\":\"\\\"model\\\":\\\"x\\\"", "\" , \"model\" : \"served-0\" , \"n\": 1}"},
        {"{\"a\":{\"model\":\"no\"},\"image\":\"", "\",\"mod\\u0065l\":\"m\"}", "{\"a\":{\"model\":\"no\"},\"image\":\"", "\",\"mod\\u0065l\":\"served-0\"}"},
        {"{\"image\":\"", "\"}", "{\"image\":\"", "\"}"}, /* the only endpoint */
    };
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        base_autobuf struct buf body = BUF_INIT(16 * MIB), sent = BUF_INIT(16 * MIB);
        struct client c;
        make_body(&body, cases[i].front, 5 * MIB, cases[i].back);
        make_body(&sent, cases[i].sent_front, 5 * MIB, cases[i].sent_back);
        client_start(&c, "POST", CHAT, buf_str(&body));
        WAIT(c.done);
        assert_int_equal(c.status, 200);
        assert_int_equal(rig.replicas[0].body.len, sent.len);
        assert_memory_equal(rig.replicas[0].body.ptr, sent.ptr, sent.len);
        client_release(&c);
        assert_int_equal(count(PROXY_M_SPILLED), i + 1);
    }
    WAIT_POLL(spill_files() == 0);
    assert_true(count(PROXY_M_SPILLED_BYTES) > 25 * MIB);
}

static void test_form(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf body = BUF_INIT(16 * MIB), sent = BUF_INIT(16 * MIB);
    static const char file[] = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    make_body(&body, file, 3 * MIB, "\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nalias\r\n--b--\r\n");
    make_body(&sent, file, 3 * MIB, "\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nserved-0\r\n--b--\r\n");
    struct client c;
    struct http_field type = HTTPIO_FIELD(STR("Content-Type"), STR("multipart/form-data; boundary=b"));
    client_init(&c);
    struct httpio_request q = {.addr = rig.addr, .method = STR("POST"), .target = STR("/v1/audio/transcriptions"), .body = buf_str(&body), .fields = &type, .n_fields = 1};
    assert_int_equal(httpio_call(rig.http, &q, &client_ops, &c, &c.call, NULL), 0);
    WAIT(c.done);
    assert_int_equal(c.status, 200);
    assert_int_equal(rig.replicas[0].body.len, sent.len);
    assert_memory_equal(rig.replicas[0].body.ptr, sent.ptr, sent.len);
    client_release(&c);
    assert_int_equal(count(PROXY_M_SPILLED), 1);
}

/* A conversation is the same one whether a turn of it was in memory or in a file. */
static void test_conversation(void **state)
{
    (void)state;
    rig.slots = 4;
    rig_replicas(3, ECHO);
    base_autobuf struct buf turn = BUF_INIT(16 * MIB);
    const char *front = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"", *reply = "\"},{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":\"user\",\"content\":\"more\"}]}";
    make_body(&turn, front, MIB - 1000, "\"}]}");
    char first[FLEET_NAME_MAX + 32] = "";
    for (int i = 0; i < 4; i++) {
        struct client c;
        client_start(&c, "POST", CHAT, buf_str(&turn));
        WAIT(c.done);
        assert_int_equal(c.status, 200);
        for (size_t k = 0; i == 0 && k < 3; k++)
            if (rig.replicas[k].requests)
                snprintf(first, sizeof first, "X-Berth-Replica: r%zu", k);
        assert_true(has_line(&c.fields, first));
        assert_true(has_line(&c.fields, i ? "X-Berth-Decision: affine" : "X-Berth-Decision: cold"));
        client_release(&c);
        assert_int_equal(count(PROXY_M_SPILLED), i > 1 ? i - 1 : 0); /* the later ones were sent to a file */
        buf_clear(&turn);
        if (i == 0)
            make_body(&turn, front, MIB - 1000, reply);
        if (i > 0) {
            limits()->spill_bytes = 1000;
            make_body(&turn, front, MIB - 1000, reply);
        }
    }
}

/* What a replica had that broke off is read from the file again. */
static void test_sent_again(void **state)
{
    (void)state;
    struct bare dead;
    bare_open(&dead, NULL, true, true);
    replica_open(&rig.replicas[0], ECHO);
    rig_config((uint16_t[]){dead.port, rig.replicas[0].port}, 2, 0, 1);
    base_autobuf struct buf body = BUF_INIT(16 * MIB), sent = BUF_INIT(16 * MIB);
    make_body(&body, "{\"image\":\"", 6 * MIB, "\",\"model\":\"alias\"}");
    make_body(&sent, "{\"image\":\"", 6 * MIB, "\",\"model\":\"served-1\"}");
    struct client c;
    client_start(&c, "POST", CHAT, buf_str(&body));
    WAIT(c.done);
    assert_int_equal(c.status, 200);
    assert_true(has_line(&c.fields, "X-Berth-Attempts: 2"));
    assert_int_equal(rig.replicas[0].body.len, sent.len);
    assert_memory_equal(rig.replicas[0].body.ptr, sent.ptr, sent.len);
    client_release(&c);
    bare_close(&dead);
    WAIT_POLL(spill_files() == 0);
}

/* ---- looked at beside the loop --------------------------------------------------------------------------------- */

/* Keeps every thread of the pool until it is let go: what is looked at there waits. */
#define POOL 4
static struct {
    sem_t begun, go;
    unsigned over;
} pool;

static void hold_job(void *ctx)
{
    (void)ctx;
    (void)sem_post(&pool.begun);
    while (sem_wait(&pool.go) < 0)
        ;
}

static void held_over(void *ctx)
{
    (void)ctx;
    pool.over++;
    rig_poke();
}

static void pool_hold(void)
{
    struct net_work *w;
    pool.over = 0;
    assert_int_equal(sem_init(&pool.begun, 0, 0), 0);
    assert_int_equal(sem_init(&pool.go, 0, 0), 0);
    for (int i = 0; i < POOL; i++)
        assert_int_equal(net_work_new(rig.loop, hold_job, held_over, NULL, &w), 0);
    for (int i = 0; i < POOL; i++)
        while (sem_wait(&pool.begun) < 0)
            ;
}

static void pool_go(void)
{
    for (int i = 0; i < POOL; i++)
        (void)sem_post(&pool.go);
    WAIT(pool.over == POOL);
    (void)sem_destroy(&pool.begun);
    (void)sem_destroy(&pool.go);
}

#define EVENT "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"

/* While a large body is looked at, which here takes as long as we like, other streams have all of their events, and small requests their answers. */
static void test_others_go_on(void **state)
{
    (void)state;
    enum { EVENTS = 50 };
    struct client stream, large, small;
    rig_replicas(1, STREAM);
    limits()->spill_bytes = 32 * MIB; /* nothing is written: what waits is the look alone */
    client_start(&stream, "POST", CHAT, STR("{\"model\":\"m\",\"stream\":true}"));
    WAIT(rig.replicas[0].x);
    struct httpio_exchange *x = rig.replicas[0].x;
    pool_hold();
    base_autobuf struct buf body = BUF_INIT(32 * MIB);
    make_body(&body, "{\"model\":\"alias\",\"messages\":[{\"role\":\"user\",\"content\":\"", 16 * MIB, "\"}]}");
    client_start(&large, "POST", CHAT, buf_str(&body));
    WAIT_POLL(rig.proxy->bodies >= 16 * MIB);
    for (size_t i = 1; i <= EVENTS; i++) {
        (void)httpio_send(x, STR(EVENT));
        WAIT(stream.len == i * strlen(EVENT));
    }
    rig.replicas[0].mode = ECHO;
    ask(&small, "POST", CHAT, "{\"model\":\"m\"}");
    assert_int_equal(small.status, 200);
    assert_int_equal(rig.replicas[0].requests, 2);
    assert_false(large.done);
    pool_go();
    WAIT(large.done);
    assert_int_equal(large.status, 200);
    assert_int_equal(rig.replicas[0].requests, 3);
    assert_int_equal(rig.replicas[0].body_len, body.len + strlen("served-0") - strlen("alias"));
    client_release(&small);
    client_release(&large);
    client_release(&stream);
    WAIT_POLL(rig.proxy->stats.active == 0);
}

/* A body of many small pieces costs as much as a large one and is looked at beside the loop as well; text of the same size is not. */
static void test_many_pieces_are_looked_at_beside(void **state)
{
    (void)state;
    struct client pieces, text;
    rig_replicas(1, ECHO);
    base_autobuf struct buf numbers = BUF_INIT(MIB), words = BUF_INIT(MIB);
    buf_add_c(&numbers, "{\"model\":\"m\",\"prompt\":[");
    while (numbers.len < 200000)
        buf_add_c(&numbers, "1,");
    buf_add_c(&numbers, "1]}");
    make_body(&words, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a,b:[{", 200000, "\"}]}");
    pool_hold();
    client_start(&pieces, "POST", "/v1/completions", buf_str(&numbers));
    WAIT_POLL(rig.proxy->bodies == numbers.len);
    ask(&text, "POST", CHAT, words.ptr);
    assert_int_equal(text.status, 200);
    assert_int_equal(rig.replicas[0].requests, 1);
    assert_false(pieces.done);
    pool_go();
    WAIT(pieces.done);
    assert_int_equal(pieces.status, 200);
    assert_int_equal(rig.replicas[0].body_len, numbers.len + strlen("served-0") - strlen("m"));
    client_release(&pieces);
    client_release(&text);
}

/* A replica that takes bodies as fast as they come does not keep the loop: they go out in turns, between which one may end, and each arrives whole. */
static void test_bodies_go_out_in_turns(void **state)
{
    (void)state;
    struct client c[3];
    struct proxy_lane *l = rig.proxy->lanes;
    rig_replicas(3, ECHO);
    base_autobuf struct buf body = BUF_INIT(32 * MIB);
    make_body(&body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"", 8 * MIB, "\"}]}");
    for (int i = 0; i < 3; i++)
        client_start(&c[i], "POST", CHAT, buf_str(&body));
    WAIT(l->senders && l->senders != l->last_sender);
    assert_true(l->sent <= PROXY_SEND_TURN + PROXY_SLICE);
    c[1].call = httpio_call_cancel(c[1].call);
    WAIT(c[0].done && c[2].done);
    WAIT_POLL(rig.proxy->stats.active == 0);
    assert_null(l->senders);
    assert_null(l->last_sender);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c[i].status, i == 1 ? 0 : 200);
        client_release(&c[i]);
    }
    size_t whole = 0;
    for (int i = 0; i < 3; i++)
        whole += rig.replicas[i].body_len == body.len + strlen("served-0") - strlen("m");
    assert_true(whole >= 2);
}

/* What is looked at on the loop, and what is not, by size and by pieces. */
static void test_quick_looks(void **state)
{
    (void)state;
    base_autobuf struct buf body = BUF_INIT(2 * MIB);
    make_body(&body, "", PROXY_LOOK_MAX, "");
    assert_true(proxy_look_quick(buf_str(&body)));
    buf_add_char(&body, 'a');
    assert_false(proxy_look_quick(buf_str(&body)));
    memset(body.ptr, ',', PROXY_LOOK_MARKS - 1);
    assert_true(proxy_look_quick((struct str){body.ptr, PROXY_LOOK_MAX}));
    body.ptr[PROXY_LOOK_MAX - 1] = '[';
    assert_false(proxy_look_quick((struct str){body.ptr, PROXY_LOOK_MAX}));
    memset(body.ptr, ',', body.len);
    assert_true(proxy_look_quick((struct str){body.ptr, PROXY_LOOK_SURE}));
    assert_false(proxy_look_quick((struct str){body.ptr, PROXY_LOOK_SURE + 1}));
}

/* It ends while it is looked at: it counts no longer, and its memory is gone once nobody looks. */
static void test_ends_while_looked_at(void **state)
{
    (void)state;
    struct client c;
    rig_replicas(1, ECHO);
    limits()->spill_bytes = 32 * MIB;
    base_autobuf struct buf body = BUF_INIT(32 * MIB), answer = BUF_INIT(4096);
    make_body(&body, "{\"model\":\"alias\",\"image\":\"", 2 * MIB, "\"}");
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        pool_hold();
        client_start(&c, "POST", CHAT, buf_str(&body));
        WAIT_POLL(rig.proxy->bodies == body.len);
        rig_run(20);
        if (cancelled) {
            char target[64];
            unsigned status;
            snprintf(target, sizeof target, "/requests/%llu/cancel", (unsigned long long)rig.proxy->numbers);
            assert_int_equal(proxy_ask(rig.proxy, STR("POST"), str_of(target), &status, &answer), 0);
            assert_int_equal(status, 200);
            WAIT(c.done);
            assert_int_equal(c.status, 410);
        }
        client_release(&c);
        WAIT_POLL(rig.proxy->stats.active == 0);
        assert_int_equal(rig.proxy->bodies, 0);
        pool_go();
    }
    /* in a file, at one moment or another */
    limits()->spill_bytes = MIB;
    for (int i = 0; i < 12; i++) {
        client_start(&c, "POST", CHAT, buf_str(&body));
        WAIT_POLL(rig.proxy->spilled == body.len || c.done);
        client_release(&c);
        WAIT_POLL(rig.proxy->stats.active == 0);
        assert_int_equal(rig.proxy->spilled, 0);
    }
    WAIT_POLL(spill_files() == 0);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* With memory used up small bodies go to files; without room there either they are turned away and told when to come again. */
static void test_memory_used_up(void **state)
{
    (void)state;
    rig_replicas(1, HOLD);
    limits()->memory_bytes = 1500;
    limits()->disk_bytes = 1500;
    base_autobuf struct buf body = BUF_INIT(MIB);
    make_body(&body, "{\"model\":\"m\",\"x\":\"", 1000, "\"}");
    struct client c[3];
    client_start(&c[0], "POST", CHAT, buf_str(&body));
    WAIT(rig.replicas[0].requests == 1);
    assert_int_equal(count(PROXY_M_SPILLED), 0);
    client_start(&c[1], "POST", CHAT, buf_str(&body));
    WAIT(rig.replicas[0].requests == 2);
    assert_int_equal(count(PROXY_M_SPILLED), 1);
    client_start(&c[2], "POST", CHAT, buf_str(&body));
    WAIT(c[2].done);
    assert_int_equal(c[2].status, 503);
    assert_true(has_line(&c[2].fields, "Retry-After: 2"));
    assert_int_equal(refused("full"), 1);
    base_autobuf struct buf text = BUF_INIT(MIB);
    assert_int_equal(proxy_metrics(rig.proxy, &text), 0);
    assert_true(contains(&text, "berth_router_body_bytes{where=\"memory\"} 1020"));
    assert_true(contains(&text, "berth_router_body_bytes{where=\"file\"} 1020"));
    for (size_t i = 0; i < BASE_COUNT(c); i++)
        client_release(&c[i]);
    WAIT_POLL(rig.proxy->stats.active == 0);
}

/* A chunked body says nothing of its length: it is cut when it is too long. */
static void test_chunked_too_long(void **state)
{
    (void)state;
    static char bytes[70000];
    rig_replicas(1, ECHO);
    limits()->max_bytes = 50000;
    limits()->spill_bytes = 10000;
    int n = snprintf(bytes, sizeof bytes, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nF000\r\n%0*d\r\n0\r\n\r\n", 0xf000, 1);
    assert_true(n > 0xf000 && n < (int)sizeof bytes);
    struct client c;
    raw_start(&c, bytes);
    WAIT(contains(&c.body, "\r\n\r\n"));
    assert_true(contains(&c.body, "HTTP/1.1 413 "));
    assert_int_equal(rig.replicas[0].requests, 0);
    assert_int_equal(refused("large"), 1);
    client_release(&c);
}

static void test_disk_full(void **state)
{
    (void)state;
    struct rlimit before, small;
    rig_replicas(1, ECHO);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 2 * MIB;
    base_autobuf struct buf body = BUF_INIT(16 * MIB);
    make_body(&body, "{\"model\":\"m\",\"x\":\"", 8 * MIB, "\"}");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct client c;
    client_start(&c, "POST", CHAT, buf_str(&body));
    WAIT(c.done);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(c.status, 507);
    assert_true(contains(&c.body, "the router's disk has no room for the request body"));
    assert_int_equal(rig.replicas[0].requests, 0);
    assert_int_equal(refused("disk full"), 1);
    WAIT_POLL(spill_files() == 0);
    client_release(&c);
}

/* One that is removed is made again for the next body; not where all around it is gone. */
static void test_no_folder(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf body = BUF_INIT(16 * MIB);
    make_body(&body, "{\"model\":\"m\",\"x\":\"", 2 * MIB, "\"}");
    for (int i = 0; i < 2; i++) {
        struct client c;
        struct stat st;
        assert_int_equal(rmdir(spill_folder), 0);
        client_start(&c, "POST", CHAT, buf_str(&body));
        WAIT(c.done);
        assert_int_equal(c.status, 200);
        assert_int_equal(count(PROXY_M_SPILLED), i + 1);
        assert_int_equal(lstat(spill_folder, &st), 0);
        assert_int_equal(st.st_mode, S_IFDIR | 0700);
        client_release(&c);
    }
    assert_int_equal(rmdir(spill_folder) | rmdir(spill_top), 0);
    struct client c;
    client_start(&c, "POST", CHAT, buf_str(&body));
    WAIT(c.done);
    assert_int_equal(c.status, 503);
    assert_true(contains(&c.body, "the router cannot keep the request body: "));
    assert_int_equal(refused("error"), 1);
    client_release(&c);
    assert_int_equal(mkdir(spill_top, 0700) | mkdir(spill_folder, 0700), 0);
}

/* Its client leaves in the middle of it: the file is gone with it. */
static void test_client_leaves(void **state)
{
    (void)state;
    rig_replicas(1, ECHO);
    base_autobuf struct buf bytes = BUF_INIT(16 * MIB);
    make_body(&bytes, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n{\"x\":\"", 3 * MIB, "");
    for (int reset = 0; reset < 2; reset++) {
        struct client c;
        raw_start(&c, bytes.ptr);
        WAIT_POLL(rig.proxy->spilled == 3 * MIB + 6);
        assert_int_equal(spill_files(), 1);
        c.raw = net_stream_close(c.raw, reset);
        WAIT_POLL(rig.proxy->stats.active == 0);
        assert_int_equal(rig.proxy->spilled, 0);
        WAIT_POLL(spill_files() == 0);
        client_release(&c);
    }
    assert_int_equal(rig.replicas[0].requests, 0);
}

/* ---- before it is read ----------------------------------------------------------------------------------------- */

/* A request whose head tells against it is answered without a byte of its body, and is not asked for that either. */
static void test_refused_from_the_head(void **state)
{
    (void)state;
    static const struct {
        const char *head, *status;
    } cases[] = {
        {"POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 401 "},
        {"POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 401 "},
        {"POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\nContent-Length: 67108865\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 413 "},
        {"POST /api/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 404 "},
        {"POST /api/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\nContent-Length: 5000000\r\n\r\n", "HTTP/1.1 404 "},
        {"POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 100 "},
        {"POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer good\r\nContent-Length: 40000000\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 503 "},
        {"POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer seldom\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n", "HTTP/1.1 429 "},
    };
    static const char *const secrets[] = {"good", "seldom"};
    base_autobuf struct buf text = BUF_INIT(4096);
    for (size_t i = 0; i < BASE_COUNT(secrets); i++) {
        unsigned char hash[PROXY_KEY_HASH];
        assert_int_equal(proxy_key_hash(str_of(secrets[i]), hash), 0);
        buf_addf(&text, "%s sha256:", secrets[i]);
        for (size_t b = 0; b < sizeof hash; b++)
            buf_addf(&text, "%02x", hash[b]);
        buf_addf(&text, " rate=%d\n", i ? 1 : 100);
    }
    struct proxy_keys *keys;
    assert_int_equal(proxy_keys_parse(buf_str(&text), "keys", &keys, NULL), 0);
    rig_replicas(1, ECHO);
    proxy_set_keys(rig.proxy, keys);
    rig.proxy->config->keyed = true;
    limits()->disk_bytes = 30000000;
    struct client spent; /* the one request that `seldom` has in a minute */
    raw_start(&spent, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer seldom\r\nContent-Length: 2\r\n\r\n{}");
    WAIT(contains(&spent.body, "HTTP/1.1 200 "));
    client_release(&spent);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c;
        raw_start(&c, cases[i].head);
        WAIT(contains(&c.body, "\r\n\r\n"));
        if (!str_starts(buf_str(&c.body), str_of(cases[i].status)))
            fail_msg("case %zu: %s", i, c.body.ptr);
        client_release(&c);
        WAIT_POLL(rig.proxy->stats.active == 0);
    }
    assert_int_equal(rig.replicas[0].requests, 1);
}

static void test_queue_is_full(void **state)
{
    (void)state;
    rig.slots = 1;
    rig_replicas(1, HOLD);
    static struct client waiting[SCHED_QUEUE_MAX + 1];
    for (size_t i = 0; i < BASE_COUNT(waiting); i++) {
        client_start(&waiting[i], "POST", CHAT, STR("{\"model\":\"m\"}"));
        if (i % 64 == 0)
            WAIT_POLL(rig.proxy->stats.active == i + 1);
    }
    WAIT_POLL(sched_waiting(rig.proxy->sched) == SCHED_QUEUE_MAX);
    struct client c;
    raw_start(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n");
    WAIT(contains(&c.body, "\r\n\r\n"));
    assert_true(contains(&c.body, "HTTP/1.1 503 "));
    assert_true(contains(&c.body, "X-Berth-Queue-Position: 1025\r\n"));
    client_release(&c);
    raw_start(&c, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n"); /* waits for no slot */
    WAIT(contains(&c.body, "\r\n\r\n"));
    assert_true(contains(&c.body, "HTTP/1.1 100 "));
    client_release(&c);
    for (size_t i = 0; i < BASE_COUNT(waiting); i++)
        client_release(&waiting[i]);
    WAIT_POLL(rig.proxy->stats.active == 0);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

#define CROWD 64
#define EACH (8 * MIB)
#define ALLOWED (64 * MIB) /* of 512; limits of what connections may have queued, and a body that is looked at */

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
static const bool counts_more = true; /* the sanitizer's own memory, which grows with what is touched and is kept when it is freed */
#else
static const bool counts_more = false;
#endif

static struct sender {
    struct client c;
    size_t left;
} crowd[CROWD];

/* The most memory that the process ever had at once, mapped files counted, in bytes. */
static uint64_t most_resident(bool forget)
{
    base_autobuf struct buf text = BUF_INIT(1 << 16);
    uint64_t kib = 0;
    os_autoclose int clear = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (forget)
        assert_int_equal(write(clear, "5", 1), 1);
    os_autoclose int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    assert_int_equal(os_read_all(fd, &text, NULL), 0);
    const char *at = strstr(text.ptr, "VmHWM:");
    assert_non_null(at);
    struct str number = str_trim(str_of(at + 6));
    assert_int_equal(str_to_u64(str_split(&number, ' '), &kib), 0);
    return kib * 1024;
}

/* Sends on, whenever what it sent before has gone. */
static void send_more(void *ctx)
{
    static char block[65536];
    struct sender *s = ctx;
    if (!block[0])
        memset(block, 'a', sizeof block);
    while (s->left && net_stream_queued(s->c.raw) == 0) {
        struct str part = {block, s->left < sizeof block ? s->left : sizeof block};
        s->left -= part.len;
        assert_int_equal(net_stream_write(s->c.raw, &part, 1), 0);
        if (!s->left)
            assert_int_equal(net_stream_write(s->c.raw, &STR("\"}"), 1), 0);
    }
}

/* Takes a body without keeping it. */
static size_t swallowed;
static unsigned answered;

static void swallow(void *ctx, struct httpio_exchange *x, struct str data)
{
    (void)ctx, (void)x;
    swallowed += data.len;
}

static void swallowed_all(void *ctx, struct httpio_exchange *x)
{
    (void)ctx;
    answered++;
    httpio_respond(x, 200, "text/plain", STR("ok"));
}

static void ignore_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    (void)ctx, (void)x, (void)head;
}

static void ignore_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    (void)ctx, (void)x, (void)completed;
    rig_poke();
}

static bool all_answered(void)
{
    for (size_t i = 0; i < CROWD; i++)
        if (!contains(&crowd[i].c.body, "HTTP/1.1 200 "))
            return false;
    return true;
}

static void test_crowd(void **state)
{
    (void)state;
    static const struct httpio_server_ops ops = {.on_request = ignore_request, .on_body = swallow, .on_body_end = swallowed_all, .on_done = ignore_done};
    static const struct net_stream_ops sender_ops = {.on_connect = raw_connect, .on_data = raw_data, .on_end = raw_end, .on_drain = send_more};
    struct httpio_server *backend = httpio_server_new(rig.loop, &HTTPIO_LIMITS_DEFAULT, &ops, NULL);
    uint16_t port;
    assert_non_null(backend);
    assert_int_equal(httpio_server_add(backend, rig_listen(&port), NULL), 0);
    rig.slots = 2;
    rig_config(&port, 1, 0, 1);
    base_autobuf struct buf head = BUF_INIT(4096);
    buf_addf(&head, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n{\"model\":\"m\",\"x\":\"", 18 + EACH + 2);
    uint64_t before = most_resident(true);
    for (size_t i = 0; i < CROWD; i++) {
        client_init(&crowd[i].c);
        crowd[i].left = EACH;
        assert_int_equal(net_connect(rig.loop, &rig.addr, &sender_ops, &crowd[i], &crowd[i].c.raw, NULL), 0);
        struct str part = buf_str(&head);
        assert_int_equal(net_stream_write(crowd[i].c.raw, &part, 1), 0);
    }
    WAIT_POLL(rig.proxy->spilled > CROWD * EACH / 4 || answered > CROWD / 4);
    WAIT_POLL(all_answered());
    assert_int_equal(answered, CROWD);
    assert_int_equal(swallowed, CROWD * (18 + EACH + 2 + strlen("served-0") - 1));
    assert_int_equal(count(PROXY_M_SPILLED), CROWD);
    uint64_t most = most_resident(false);
    if (!counts_more && most > before + ALLOWED)
        fail_msg("%zu MiB for %zu MiB of bodies", (size_t)(most - before) / MIB, CROWD * EACH / MIB);
    print_message("%zu MiB of bodies took %zu MiB of memory\n", CROWD * EACH / MIB, (size_t)(most - before) / MIB);
    for (size_t i = 0; i < CROWD; i++)
        client_release(&crowd[i].c);
    backend = httpio_server_free(backend);
    WAIT_POLL(rig.proxy->stats.active == 0);
    WAIT_POLL(spill_files() == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BODIES_TEST(test_model_anywhere),
        BODIES_TEST(test_form),
        BODIES_TEST(test_conversation),
        BODIES_TEST(test_sent_again),
        BODIES_TEST(test_others_go_on),
        BODIES_TEST(test_ends_while_looked_at),
        BODIES_TEST(test_many_pieces_are_looked_at_beside),
        BODIES_TEST(test_quick_looks),
        BODIES_TEST(test_bodies_go_out_in_turns),
        BODIES_TEST(test_memory_used_up),
        BODIES_TEST(test_chunked_too_long),
        BODIES_TEST(test_disk_full),
        BODIES_TEST(test_no_folder),
        BODIES_TEST(test_client_leaves),
        BODIES_TEST(test_refused_from_the_head),
        BODIES_TEST(test_queue_is_full),
        BODIES_TEST(test_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
