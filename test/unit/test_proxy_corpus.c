/* SPDX-License-Identifier: MIT
 *
 * Replays test/http/proxy/ (see the README there) through the router: what a client sends, what a backend gets, what it answers, what the client gets, byte by byte. Each case runs twice: the client's bytes in one
 * piece, and in three.
 */
#include "proxy_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <os/os.h>
#include <proxy/proxy_int.h>

#define CASES_DIR "test/http/proxy"
#define STEPS_MAX 8
#define FILES_MAX 64

/* One request at the backend and what it answers. */
struct step {
    struct buf want, answer;
    bool hangup;
};

struct run {
    char name[128];
    struct buf send, want, refusal;
    unsigned refused;
    bool closed;
    struct step steps[STEPS_MAX];
    size_t n_steps, step; /* how many there are; which one is next */
    struct buf got;       /* by the backend, of this step */
    struct buf seen;      /* by the client */
    bool ended;
};

static struct run run;
static struct net_listener *backend;
static struct net_stream *streams[16];
static unsigned n_cases, n_wrong;

/* ---- patterns ------------------------------------------------------------------------------------------------ */

#define ANY '\x01' /* in a pattern: \* */

/* Whether t is what p describes. */
static bool matches(struct str p, struct str t)
{
    size_t i = 0, k = 0, star = SIZE_MAX, from = 0;
    while (k < t.len) {
        if (i < p.len && p.ptr[i] == ANY) {
            star = i++;
            from = k;
        } else if (i < p.len && p.ptr[i] == t.ptr[k]) {
            i++;
            k++;
        } else if (star != SIZE_MAX && t.ptr[from] != '\r' && t.ptr[from] != '\n') {
            i = star + 1;
            k = ++from;
        } else {
            return false;
        }
    }
    while (i < p.len && p.ptr[i] == ANY)
        i++;
    return i == p.len;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void add_line(struct buf *out, struct str line)
{
    bool open = line.len && line.ptr[line.len - 1] == '\\' && !(line.len > 1 && line.ptr[line.len - 2] == '\\');
    line.len -= open;
    for (size_t i = 0; i < line.len; i++) {
        char c = line.ptr[i];
        if (c != '\\') {
            buf_add_char(out, c);
            continue;
        }
        c = ++i < line.len ? line.ptr[i] : '?';
        int high = c == 'x' && i + 2 < line.len ? digit(line.ptr[i + 1]) : -1, low = high >= 0 ? digit(line.ptr[i + 2]) : -1;
        if (low >= 0)
            i += 2;
        else if (!strchr("rnt0*\\", c))
            fail_msg("%s: no escape: \\%c", run.name, c);
        buf_add_char(out, low >= 0 ? (char)(high * 16 + low) : c == 'r' ? '\r' : c == 'n' ? '\n' : c == 't' ? '\t' : c == '0' ? '\0' : c == '*' ? ANY : c);
    }
    if (!open)
        buf_add(out, "\r\n", 2);
}

static void add_want(struct buf *out, struct str line)
{
    if (str_eq_c(line, "@host"))
        add_line(out, STR("Host: \\*"));
    else if (str_eq_c(line, "@date"))
        add_line(out, STR("Date: \\*"));
    else if (str_eq_c(line, "@berth"))
        add_line(out, STR("X-Berth-Request-Id: \\*\\r\\nX-Berth-Replica: r0\\r\\nX-Berth-Decision: \\*\\r\\nX-Berth-Attempts: \\*\\r\\nX-Berth-Queue-Ms: \\*"));
    else
        add_line(out, line);
}

/* ---- the backend and the client -------------------------------------------------------------------------------- */

static void backend_data(void *ctx, struct str data)
{
    struct net_stream **at = ctx;
    struct step *s = &run.steps[run.step];
    buf_add_str(&run.got, data);
    rig_poke();
    if (run.step >= run.n_steps || !matches(buf_str(&s->want), buf_str(&run.got)))
        return;
    struct str answer = buf_str(&s->answer);
    if (answer.len)
        assert_int_equal(net_stream_write(*at, &answer, 1), 0);
    buf_clear(&run.got);
    run.step++;
    if (s->hangup)
        net_stream_shutdown(*at);
}

static void backend_end(void *ctx, int status)
{
    struct net_stream **at = ctx;
    (void)status;
    *at = net_stream_close(*at, false);
}

static void backend_accept(void *ctx, struct net_stream *s)
{
    static const struct net_stream_ops ops = {.on_data = backend_data, .on_end = backend_end};
    (void)ctx;
    for (size_t i = 0; i < BASE_COUNT(streams); i++)
        if (!streams[i]) {
            streams[i] = s;
            net_stream_set_ops(s, &ops, &streams[i]);
            net_stream_read(s, true);
            return;
        }
    fail_msg("%s: too many connections", run.name);
}

static void client_data(void *ctx, struct str data)
{
    (void)ctx;
    buf_add_str(&run.seen, data);
    rig_poke();
}

static void client_gone(void *ctx, int status)
{
    (void)ctx, (void)status;
    run.ended = true;
    rig_poke();
}

/* ---- one case ------------------------------------------------------------------------------------------------------ */

static void show(const char *what, struct str wanted, struct str got)
{
    base_autobuf struct buf a = BUF_INIT(1 << 20), b = BUF_INIT(1 << 20);
    buf_add_printable(&a, wanted, 4000);
    buf_add_printable(&b, got, 4000);
    print_error("%s: %s\n  wanted: %s\n  got:    %s\n", run.name, what, a.ptr ? a.ptr : "", b.ptr ? b.ptr : "");
}

static bool is_refusal(void)
{
    char front[32];
    struct str seen = buf_str(&run.seen);
    snprintf(front, sizeof front, "HTTP/1.1 %u ", run.refused);
    return run.ended && str_starts(seen, str_of(front)) && str_find(seen, STR("\r\n\r\n{\"error\":{")) > 0 && (!run.refusal.len || str_find(seen, buf_str(&run.refusal)) > 0) &&
           str_find(seen, STR("}HTTP/1.1 ")) < 0;
}

static bool is_over(void)
{
    if (run.refused)
        return run.ended;
    return matches(buf_str(&run.want), buf_str(&run.seen)) && (run.ended || !run.closed) && run.step == run.n_steps;
}

static void check(void)
{
    bool good = run.refused ? is_refusal() && !run.got.len && !run.step : is_over() && !run.got.len;
    if (good)
        return;
    n_wrong++;
    if (run.refused)
        show("was not refused like that", buf_str(&run.refusal), buf_str(&run.seen));
    else if (run.step < run.n_steps || run.got.len)
        show("the backend got something else", run.step < run.n_steps ? buf_str(&run.steps[run.step].want) : (struct str){0}, buf_str(&run.got));
    else
        show("the client got something else", buf_str(&run.want), buf_str(&run.seen));
}

static void play(size_t piece)
{
    static const struct net_stream_ops ops = {.on_connect = raw_connect, .on_data = client_data, .on_end = client_gone};
    struct net_stream *s;
    struct str rest = buf_str(&run.send);
    run.step = 0;
    run.ended = false;
    buf_clear(&run.got);
    buf_clear(&run.seen);
    assert_int_equal(net_connect(rig.loop, &rig.addr, &ops, NULL, &s, NULL), 0);
    while (rest.len && !run.ended) {
        struct str part = {rest.ptr, rest.len < piece ? rest.len : piece};
        rest = (struct str){rest.ptr + part.len, rest.len - part.len};
        base_ignore(net_stream_write(s, &part, 1)); /* the router may have closed already */
        if (rest.len)
            rig_run(1);
    }
    rig.expired = false;
    net_timer_start(rig.limit, RIG_LIMIT_MS, 0);
    while (!is_over() && !rig.expired && !(run.ended && !run.closed && !run.refused))
        net_loop_run(rig.loop);
    net_timer_stop(rig.limit);
    check();
    s = net_stream_close(s, false);
    for (size_t i = 0; i < BASE_COUNT(streams); i++)
        streams[i] = net_stream_close(streams[i], false);
    WAIT_POLL(rig.proxy->stats.active == 0);
}

static void play_case(void)
{
    if (!run.name[0])
        return;
    n_cases++;
    play(SIZE_MAX);
    if (run.send.len < 2000)
        play(run.send.len / 3 + 1);
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */

static void run_clear(void)
{
    struct buf *all[] = {&run.send, &run.want, &run.refusal, &run.got, &run.seen};
    for (size_t i = 0; i < BASE_COUNT(all); i++)
        buf_release(all[i]);
    for (size_t i = 0; i < STEPS_MAX; i++) {
        buf_release(&run.steps[i].want);
        buf_release(&run.steps[i].answer);
    }
    run = (struct run){.send = BUF_INIT(1 << 24), .want = BUF_INIT(1 << 24), .refusal = BUF_INIT(4096), .got = BUF_INIT(1 << 24), .seen = BUF_INIT(1 << 24)};
    for (size_t i = 0; i < STEPS_MAX; i++)
        run.steps[i] = (struct step){.want = BUF_INIT(1 << 24), .answer = BUF_INIT(1 << 24)};
}

static bool take(struct str *line, const char *front)
{
    size_t n = strlen(front);
    if (!str_starts(*line, str_of(front)))
        return false;
    *line = (struct str){line->ptr + n, line->len - n};
    return true;
}

static struct step *step_for_want(void)
{
    if (run.n_steps == 0 || run.steps[run.n_steps - 1].answer.len) {
        assert_true(run.n_steps < STEPS_MAX);
        run.n_steps++;
    }
    return &run.steps[run.n_steps - 1];
}

static void send_times(struct str line)
{
    uint64_t times = 0;
    assert_int_equal(str_to_u64(str_split(&line, ' '), &times), 0);
    for (uint64_t i = 0; i < times; i++)
        add_line(&run.send, line);
}

static void refusal(struct str line)
{
    uint64_t code = 0;
    assert_int_equal(str_to_u64(str_split(&line, ' '), &code), 0);
    run.refused = (unsigned)code;
    if (line.ptr)
        buf_add_str(&run.refusal, line);
}

static void take_line(struct str line)
{
    if (!line.len || line.ptr[0] == '#')
        return;
    if (take(&line, "== ")) {
        play_case();
        run_clear();
        snprintf(run.name, sizeof run.name, STR_FMT, STR_ARG(line));
    } else if (take(&line, ">*")) {
        send_times(line);
    } else if (take(&line, "> ") || str_eq_c(line, ">")) {
        add_line(&run.send, str_eq_c(line, ">") ? (struct str){0} : line);
    } else if (take(&line, "b ") || str_eq_c(line, "b")) {
        add_want(&step_for_want()->want, str_eq_c(line, "b") ? (struct str){0} : line);
    } else if (take(&line, "a ") || str_eq_c(line, "a")) {
        assert_true(run.n_steps > 0);
        add_line(&run.steps[run.n_steps - 1].answer, str_eq_c(line, "a") ? (struct str){0} : line);
    } else if (take(&line, "< ") || str_eq_c(line, "<")) {
        add_want(&run.want, str_eq_c(line, "<") ? (struct str){0} : line);
    } else if (take(&line, "refused ")) {
        refusal(line);
    } else if (str_eq_c(line, "closed")) {
        run.closed = true;
    } else if (str_eq_c(line, "hangup")) {
        run.steps[run.n_steps - 1].hangup = true;
    } else {
        fail_msg("%s: not understood: " STR_FMT, run.name, STR_ARG(line));
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum how { AS_EVER, IN_FILES, AT_A_SOCKET, THAT_ASKS };

/* One replica at a socket of this machine. */
static int listen_at_socket(char path[64])
{
    base_autobuf struct buf b = BUF_INIT(4096);
    struct net_addr a;
    struct proxy_config *c;
    snprintf(path, 64, "/tmp/berth-corpus-%ld.sock", (long)getpid());
    assert_int_equal(net_addr_unix(path, &a), 0);
    int fd = net_listen_socket(&a, false, NULL);
    assert_true(fd >= 0);
    buf_addf(&b, "{\"config\":{\"replicas\":[{\"name\":\"r0\",\"served\":\"served-0\",\"host\":\"unix:%s\",\"port\":0,\"ready\":true,\"generation\":1,\"slots\":64,\"context\":0,\"pins\":false}],"
                 "\"endpoints\":[{\"name\":\"m\",\"policy\":\"adaptive\",\"aliases\":[\"alias\"],\"replicas\":[0]}],\"headers\":[]}}", path);
    assert_int_equal(proxy_config_parse(buf_str(&b), &c, NULL), 0);
    proxy_set_config(rig.proxy, c);
    return fd;
}

static void replay(enum how how)
{
    char socket[64] = "";
    char *names[FILES_MAX];
    size_t n = 0;
    uint16_t port;
    const char *folder = how == THAT_ASKS ? CASES_DIR "/asks" : CASES_DIR;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (strlen(e->d_name) > 4 && strcmp(e->d_name + strlen(e->d_name) - 4, ".txt") == 0 && n < FILES_MAX)
            assert_non_null(names[n++] = strdup(e->d_name));
    (void)closedir(d);
    qsort(names, n, sizeof *names, by_name);
    if (how == AT_A_SOCKET) {
        assert_int_equal(net_listener_new(rig.loop, listen_at_socket(socket), backend_accept, NULL, &backend, NULL), 0);
    } else {
        assert_int_equal(net_listener_new(rig.loop, rig_listen(&port), backend_accept, NULL, &backend, NULL), 0);
        rig.asks = how == THAT_ASKS;
        rig_config(&port, 1, 0, 1);
    }
    if (how == IN_FILES) {
        proxy_spill_to(rig.proxy, os_open_dir("/tmp", NULL));
        rig.proxy->config->bodies.spill_bytes = 0;
    }
    n_cases = n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        char path[512];
        base_autobuf struct buf text = BUF_INIT(1 << 20);
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_int_equal(os_read_file(AT_FDCWD, path, &text, NULL), 0);
        struct str rest = buf_str(&text);
        while (rest.ptr)
            take_line(str_split(&rest, '\n'));
        play_case();
        run_clear();
        free(names[i]);
    }
    backend = net_listener_close(backend);
    if (socket[0])
        (void)unlink(socket);
    print_message("%u cases\n", n_cases);
    assert_int_equal(n_wrong, 0);
    assert_true(n_cases >= (how == THAT_ASKS ? 2 : 150));
    assert_int_equal(rig.proxy->bodies + rig.proxy->spilled, 0);
}

static void every_case(void **state)
{
    (void)state;
    replay(AS_EVER);
    assert_int_equal(metrics_count(metrics_get(rig.proxy->metrics, PROXY_M_SPILLED, NULL)), 0);
}

/* The same when every body is in a file. */
static void every_case_in_files(void **state)
{
    (void)state;
    replay(IN_FILES);
    assert_true(metrics_count(metrics_get(rig.proxy->metrics, PROXY_M_SPILLED, NULL)) > 20);
}

static void every_case_at_a_socket(void **state)
{
    (void)state;
    replay(AT_A_SOCKET);
}

static void every_case_that_asks(void **state)
{
    (void)state;
    replay(THAT_ASKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {RIG_TEST(every_case), RIG_TEST(every_case_in_files), RIG_TEST(every_case_at_a_socket), RIG_TEST(every_case_that_asks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
