/* SPDX-License-Identifier: MIT
 *
 * proxy: the configuration as text, and the processes: a worker at its channel, in a child, spoken to as
 * their owners and clients do.
 */
#include <base/base.h>
#include <conf/conf.h>
#include <fleet/fleet.h>
#include <net/net.h>
#include <proxy/proxy.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failing_malloc.h"

#define LIMIT_MS 10000

/* ---- a fleet ------------------------------------------------------------------------------------------------ */

static struct fleet_host here = {.name = "here"}, there = {.name = "big", .ssh = "op@10.0.0.9"}, named = {.name = "named", .ssh = "x", .address = "10.0.0.7"};
static struct fleet_runtime runtime = {.name = "llama", .engine = "llama.cpp"};
static struct fleet_service services[] = {
    {.name = "a", .host = &here, .runtime = &runtime, .port = 7001, .bind = "127.0.0.1", .shape = {.slots = 2}},
    {.name = "b", .host = &here, .runtime = &runtime, .port = 7002, .bind = "0.0.0.0"},
    {.name = "c", .host = &there, .runtime = &runtime, .port = 7003, .bind = "0.0.0.0"},
    {.name = "d", .host = &named, .runtime = &runtime, .port = 7004, .bind = "10.0.0.7"},
    {.name = "e", .host = &here, .runtime = &runtime, .port = 7005, .bind = "::"},
};
static const struct fleet_service *const pair[] = {&services[1], &services[0]}, *const all[] = {&services[0], &services[2], &services[3], &services[4]};
static const char *const aliases[] = {"gpt-4o", "\xc3\xa4 \"q\""};
static struct fleet_endpoint endpoints[] = {
    {.name = "m", .services = pair, .n_services = 2, .aliases = aliases, .n_aliases = 2},
    {.name = "n", .services = all, .n_services = 4, .policy = FLEET_HASH},
};
static const struct fleet fleet = {
    .name = "f", .services = services, .n_services = BASE_COUNT(services), .endpoints = endpoints, .n_endpoints = BASE_COUNT(endpoints), .router = {.loops = 1}};

static const char *config_text(struct buf *out, bool ready)
{
    struct proxy_state states[] = {{.service = &services[1], .ready = ready, .generation = 3}, {.service = &services[0], .ready = true, .generation = 4, .key = "K-of-the-engine-0"}};
    assert_int_equal(proxy_config_text(&fleet, states, 2, out), 0);
    return out->ptr;
}

static void test_config_text(void **state)
{
    (void)state;
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    struct proxy_config *c = NULL;
    struct err err;
    assert_string_equal(config_text(&b, false),
                        "{\"config\":{\"replicas\":["
                        "{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":7001,\"ready\":true,\"generation\":4,\"slots\":2,\"context\":0,\"pins\":true,\"key\":\"K-of-the-engine-0\"},"
                        "{\"name\":\"b\",\"served\":\"b\",\"host\":\"127.0.0.1\",\"port\":7002,\"ready\":false,\"generation\":3,\"slots\":0,\"context\":0,\"pins\":true},"
                        "{\"name\":\"c\",\"served\":\"c\",\"host\":\"10.0.0.9\",\"port\":7003,\"ready\":true,\"generation\":0,\"slots\":0,\"context\":0,\"pins\":true},"
                        "{\"name\":\"d\",\"served\":\"d\",\"host\":\"10.0.0.7\",\"port\":7004,\"ready\":true,\"generation\":0,\"slots\":0,\"context\":0,\"pins\":true},"
                        "{\"name\":\"e\",\"served\":\"e\",\"host\":\"::1\",\"port\":7005,\"ready\":true,\"generation\":0,\"slots\":0,\"context\":0,\"pins\":true}],"
                        "\"endpoints\":[{\"name\":\"m\",\"policy\":\"adaptive\",\"aliases\":[\"gpt-4o\",\"\xc3\xa4 \\\"q\\\"\"],\"replicas\":[1,0]},"
                        "{\"name\":\"n\",\"policy\":\"hash\",\"aliases\":[],\"replicas\":[0,2,3,4]}],\"headers\":[]}}");
    if (proxy_config_parse(buf_str(&b), &c, &err) < 0)
        fail_msg("%s", err.text);
    assert_ptr_equal(proxy_config_ref(c), c);
    assert_null(proxy_config_unref(c));
    assert_null(proxy_config_unref(c));
    assert_null(proxy_config_unref(NULL));
    /* a program that may have keys of its own */
    struct fleet_runtime other = {.name = "x", .engine = "generic"};
    struct fleet_service foreign = services[0];
    foreign.runtime = &other;
    buf_clear(&b);
    struct fleet one = {.services = &foreign, .n_services = 1};
    assert_int_equal(proxy_config_text(&one, NULL, 0, &b), 0);
    assert_true(str_find(buf_str(&b), STR("\"pins\":false,\"asks\":true}")) > 0);
    assert_int_equal(proxy_config_parse(buf_str(&b), &c, &err), 0);
    assert_null(proxy_config_unref(c));
    /* no room */
    base_autobuf struct buf small = BUF_INIT(20);
    assert_int_equal(proxy_config_text(&fleet, NULL, 0, &small), -E2BIG);
}

#define R "{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":1,\"ready\":true,\"generation\":1,\"slots\":2,\"context\":0,\"pins\":false}"
#define E(list) "{\"name\":\"m\",\"policy\":\"least\",\"aliases\":[],\"replicas\":[" list "]}"
#define C(replicas, endpoints) "{\"config\":{\"replicas\":[" replicas "],\"endpoints\":[" endpoints "],\"headers\":[]}}"

static void test_config_refused(void **state)
{
    (void)state;
    static const char *const good[] = {C(R, E("0")), C("", ""), C(R, E(""))};
    static const char *const bad[] = {
        "", "{}", "[]", "null", "{\"config\":{}}", "{\"config\":[]}", "{\"config\":{\"replicas\":[],\"endpoints\":{}}}", C(R, E("1")), C(R, E("-1")), C(R, E("\"0\"")),
        C(R, "{}"), C(R, "7"), C("{}", ""), C("7", ""), C(R, "{\"name\":\"\",\"policy\":\"least\",\"aliases\":[],\"replicas\":[0]}"),
        C(R, "{\"name\":\"m\",\"policy\":\"least\",\"aliases\":[7],\"replicas\":[0]}"), C(R, "{\"name\":\"m\",\"policy\":\"least\",\"aliases\":[],\"replicas\":[0],\"x\":1}"),
        C("{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":0,\"ready\":true,\"generation\":1,\"slots\":2,\"context\":0,\"pins\":false}", ""),
        C("{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":65536,\"ready\":true,\"generation\":1,\"slots\":2,\"context\":0,\"pins\":false}", ""),
        C("{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":1,\"ready\":1,\"generation\":1,\"slots\":2,\"context\":0,\"pins\":false}", ""),
        C("{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":1,\"ready\":true,\"generation\":-1,\"slots\":2,\"context\":0,\"pins\":false}", ""),
        C("{\"name\":\"a\\n\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":1,\"ready\":true,\"generation\":1,\"slots\":2,\"context\":0,\"pins\":false}", ""),
        C("{\"name\":\"a\\u0000\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":1,\"ready\":true,\"generation\":1,\"slots\":2,\"context\":0,\"pins\":false}", ""),
        "{\"config\":{\"replicas\":[],\"endpoints\":[],\"headers\":[],\"x\":1}}", "{\"config\":{\"replicas\":[],\"endpoints\":[],\"headers\":[]},\"x\":1}", C("", "") "x",
        C(R, "{\"name\":\"m\",\"policy\":\"best\",\"aliases\":[],\"replicas\":[0]}"), C("{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":1,\"ready\":true,\"generation\":1,\"slots\":257,\"context\":0,\"pins\":false}", ""),
    };
    for (size_t i = 0; i < BASE_COUNT(good); i++) {
        struct proxy_config *c;
        assert_int_equal(proxy_config_parse(str_of(good[i]), &c, NULL), 0);
        proxy_config_unref(c);
    }
    for (size_t i = 0; i < BASE_COUNT(bad); i++) {
        struct proxy_config *c = NULL;
        struct err err = {0};
        int rc = proxy_config_parse(str_of(bad[i]), &c, &err);
        if (rc != -EBADMSG || c || !str_starts(str_of(err.text), STR("the router's configuration is malformed")))
            fail_msg("'%s' gives %d, \"%s\"", bad[i], rc, err.text);
    }
}

/* Wherever memory ends, reading says so and leaves nothing behind. */
static void test_config_out_of_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    config_text(&b, true);
    bool came = true;
    for (long n = 0; came; n++) {
        struct proxy_config *c = NULL;
        failing_arm(n);
        int rc = proxy_config_parse(buf_str(&b), &c, NULL);
        c = proxy_config_unref(c);
        long left = failing_disarm(&came);
        assert_int_equal(rc, came ? -ENOMEM : 0);
        assert_int_equal(left, 0);
        assert_true(n < 1000);
    }
#else
    skip();
#endif
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int channel;
    uint16_t port;
    struct buf in; /* of the channel */
};

static int listen_here(uint16_t *ret_port)
{
    struct net_addr a;
    assert_int_equal(net_addr_ip("127.0.0.1", 0, &a), 0);
    int fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    assert_int_equal(net_socket_addr(fd, &a), 0);
    *ret_port = a.port;
    return fd;
}

/* The exit code tells how the child's run ended: 0, or 1 with the message on stderr. */
static void child_start(struct child *c)
{
    int ends[2], fd = listen_here(&c->port);
    *c = (struct child){.port = c->port, .in = BUF_INIT(PROXY_CHANNEL_LINE_MAX)};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    (void)fflush(NULL);
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        struct err err = {0};
        close(ends[0]);
        int rc = proxy_worker(ends[1], &fd, 1, -1, 2, &err);
        if (rc < 0)
            (void)fprintf(stderr, "%s\n", err.text);
        _exit(rc < 0 ? 1 : 0);
    }
    close(fd);
    close(ends[1]);
    c->channel = ends[0];
}

static int child_wait(struct child *c)
{
    int status = 0;
    for (int i = 0; i < LIMIT_MS; i++) {
        pid_t pid = waitpid(c->pid, &status, WNOHANG);
        if (pid == c->pid) {
            if (c->channel >= 0)
                close(c->channel);
            buf_release(&c->in);
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        }
        (void)poll(NULL, 0, 1);
    }
    kill(c->pid, SIGKILL);
    (void)waitpid(c->pid, &status, 0);
    fail_msg("the child does not end");
    return -1;
}

static void tell(struct child *c, const char *line)
{
    struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    buf_addf(&b, "%s\n", line);
    assert_int_equal(send(c->channel, b.ptr, b.len, MSG_NOSIGNAL), (ssize_t)b.len);
    buf_release(&b);
}

/* The next line of the channel, without its end; the caller frees. */
static char *hear(struct child *c)
{
    for (;;) {
        ptrdiff_t nl = str_find_char(buf_str(&c->in), '\n');
        if (nl >= 0) {
            char *line = str_dup((struct str){c->in.ptr, (size_t)nl});
            buf_drop_front(&c->in, (size_t)nl + 1);
            return line;
        }
        char data[4096];
        struct pollfd p = {.fd = c->channel, .events = POLLIN};
        if (poll(&p, 1, LIMIT_MS) != 1)
            fail_msg("the worker says nothing");
        ssize_t n = recv(c->channel, data, sizeof data, 0);
        if (n <= 0)
            fail_msg("the worker has closed its channel");
        buf_add(&c->in, data, (size_t)n);
    }
}

static void hear_line(struct child *c, const char *want)
{
    char *line = hear(c);
    assert_string_equal(line, want);
    free(line);
}

static int dial(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Everything that comes back for these bytes. */
static void talk(uint16_t port, const char *bytes, struct buf *out)
{
    int fd = dial(port);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, bytes, strlen(bytes), MSG_NOSIGNAL), (ssize_t)strlen(bytes));
    for (;;) {
        char data[4096];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, LIMIT_MS) != 1)
            fail_msg("no answer");
        ssize_t n = recv(fd, data, sizeof data, 0);
        if (n <= 0)
            break;
        buf_add(out, data, (size_t)n);
    }
    close(fd);
    assert_int_equal(buf_status(out), 0);
}

static void expect(uint16_t port, const char *bytes, const char *part)
{
    struct buf b = BUF_INIT(1 << 20);
    talk(port, bytes, &b);
    if (!b.len || str_find(buf_str(&b), str_of(part)) < 0)
        fail_msg("no '%s' in '%s'", part, b.len ? b.ptr : "");
    buf_release(&b);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
#define POST(body, length) "POST /v1/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: " length "\r\n\r\n" body

static void test_worker_life(void **state)
{
    (void)state;
    struct child c;
    base_autobuf struct buf text = BUF_INIT(1 << 16);
    child_start(&c);
    /* asked before it has a configuration */
    tell(&c, "{\"stats\":true}");
    char *line = hear(&c);
    assert_true(str_starts(str_of(line), STR("{\"stats\":{\"requests\":0,\"retries\":0,\"errors\":0,\"active\":0,\"working_set\":0,\"capacity\":0,\"conversations\":0,\"slots\":0,\"crowded\":false,\"metrics\":\"# HELP ")));
    free(line);
    /* a connection that waits is served once the configuration comes */
    int early = dial(c.port);
    assert_true(early >= 0);
    tell(&c, config_text(&text, true));
    hear_line(&c, "{\"up\":true}");
    close(early);
    expect(c.port, GET("/health"), "{\"status\":\"ok\"}");
    expect(c.port, GET("/v1/models"), "\"id\":\"gpt-4o\"");
    expect(c.port, POST("{\"model\":\"nobody\"}", "18"), "404 Not Found");
    /* the second configuration replaces the first, in two pieces */
    const char *none = "{\"config\":{\"replicas\":[],\"endpoints\":[],\"headers\":[]}}";
    assert_int_equal(send(c.channel, none, 10, MSG_NOSIGNAL), 10);
    (void)poll(NULL, 0, 5);
    tell(&c, none + 10);
    tell(&c, "{\"stats\":true}");
    line = hear(&c);
    assert_true(str_starts(str_of(line), STR("{\"stats\":{\"requests\":1,\"retries\":0,\"errors\":0,\"active\":0,")));
    free(line);
    expect(c.port, GET("/health"), "503 Service Unavailable");
    tell(&c, "{\"drain\":1000}");
    assert_int_equal(child_wait(&c), 0);
    assert_int_equal(dial(c.port), -1);
}

/* An index that is broken, or of another version, is passed over: the worker comes up all the same. */
static void test_worker_index(void **state)
{
    (void)state;
    static const char *const lines[] = {"{\"index\":\"\"}", "{\"index\":\"zz\"}", "{\"index\":\"abc\"}", "{\"index\":\"6265727468696478\"}"};
    for (size_t i = 0; i < BASE_COUNT(lines); i++) {
        struct child c;
        child_start(&c);
        tell(&c, lines[i]);
        tell(&c, C("", ""));
        hear_line(&c, "{\"up\":true}");
        tell(&c, "{\"drain\":0}");
        assert_int_equal(child_wait(&c), 0);
    }
}

static void test_worker_tells_failures(void **state)
{
    (void)state;
    struct child c;
    uint16_t port;
    int fd = listen_here(&port);
    close(fd); /* nobody listens there for now */
    char config[512];
    snprintf(config, sizeof config, C("{\"name\":\"a\",\"served\":\"a\",\"host\":\"127.0.0.1\",\"port\":%u,\"ready\":true,\"generation\":5,\"slots\":2,\"context\":0,\"pins\":false}", E("0")), port);
    child_start(&c);
    tell(&c, config);
    hear_line(&c, "{\"up\":true}");
    expect(c.port, POST("{}", "2"), "502 Bad Gateway");
    char *line = hear(&c);
    assert_true(str_starts(str_of(line), STR("{\"failed\":{\"service\":\"a\",\"generation\":5,\"text\":\"")));
    assert_true(str_find(str_of(line), STR("refused")) > 0);
    free(line);
    tell(&c, "{\"drain\":0}");
    assert_int_equal(child_wait(&c), 0);
}

static void test_worker_channel_ends(void **state)
{
    (void)state;
    for (int configured = 0; configured < 2; configured++) {
        struct child c;
        child_start(&c);
        int open = -1;
        if (configured) {
            tell(&c, C("", ""));
            hear_line(&c, "{\"up\":true}");
            open = dial(c.port);
        }
        close(c.channel);
        c.channel = -1;
        assert_int_equal(child_wait(&c), 0);
        if (open >= 0)
            close(open);
    }
}

static void test_worker_nonsense(void **state)
{
    (void)state;
    static const char *const lines[] = {"x", "{}", "{\"config\":1}", "{\"drain\":-1}", "{\"stats\":false}", "[]", ""};
    for (size_t i = 0; i < BASE_COUNT(lines); i++) {
        struct child c;
        child_start(&c);
        tell(&c, lines[i]);
        assert_int_equal(child_wait(&c), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_text),           cmocka_unit_test(test_config_refused),      cmocka_unit_test(test_worker_life),
        cmocka_unit_test(test_config_out_of_memory),
        cmocka_unit_test(test_worker_index),
        cmocka_unit_test(test_worker_tells_failures), cmocka_unit_test(test_worker_channel_ends), cmocka_unit_test(test_worker_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
