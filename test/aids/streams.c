/* SPDX-License-Identifier: MIT
 *
 * Event streams for benchmarks: a server whose events carry the time at which they were written, and a client that reads many of them at once and compares. Both ends are on one machine and
 * one clock. One thread, epoll, everything on loopback.
 *
 *   streams serve PORT INTERVAL_US EVENTS   answers each request with so many events, the first at once; 0: without end
 *   streams watch PORT STREAMS              reads them to their end: "MEDIAN_MS P99_MS MOST_MS EVENTS READS BROKEN"
 *   streams hold PORT STREAMS               opens them, says "open N" when each has its first event, closes all at the end of its standard input
 *   streams idle PORT STREAMS               the same with connections that ask nothing
 *   streams send PORT KIND MIB RATE         sends bodies of that size one after the other, so many MiB a second, until it is killed; KIND is code or picture. "sent" for each on its standard output
 */
#include <base/base.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STREAMS_MAX 65536
#define TAIL 1024 /* of what has come and is not a whole event yet */
#define SAMPLES_MAX 4000000

struct conn {
    int fd;
    bool open, sending, seen, ended;
    uint64_t body_left; /* of a request: what is passed over before the answer */
    uint64_t next_ns;
    unsigned sent;
    char tail[TAIL];
    size_t len;
};

static struct conn conns[STREAMS_MAX];
static int poller;

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t number(const char *text)
{
    uint64_t n = 0;
    if (str_to_u64(str_of(text), &n) < 0) {
        (void)fprintf(stderr, "streams: '%s' is no number\n", text);
        exit(2);
    }
    return n;
}

static struct sockaddr_in address(uint64_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void watch_fd(int fd, uint32_t events, uint64_t data)
{
    struct epoll_event e = {.events = events, .data.u64 = data};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e) < 0)
        die("epoll_ctl");
}

static void no_delay(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* ---- server --------------------------------------------------------------------------------------------- */

static void drop(struct conn *c)
{
    close(c->fd);
    c->open = c->sending = false;
    c->len = 0;
}

static void put(struct conn *c, const char *data, size_t len)
{
    /* Events are small: what the kernel does not take at once is a reader that has stopped. */
    if (send(c->fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
        drop(c);
}

static void put_event(struct conn *c, uint64_t events)
{
    char event[160], chunk[200];
    bool last = events && c->sent == events;
    int n = last ? snprintf(event, sizeof event, "data: [DONE]\n\n")
                 : snprintf(event, sizeof event, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"at\":%llu}\n\n", (unsigned long long)now_ns());
    int m = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n%s", (unsigned)n, event, last ? "0\r\n\r\n" : "");
    c->sent++;
    if (last)
        c->sending = false;
    put(c, chunk, (size_t)m);
}

/* A request is whole when its head and as many bytes as it says are there. */
static void take_request(struct conn *c)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char well[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    static char passed[1 << 18];
    ssize_t n = c->body_left ? recv(c->fd, passed, sizeof passed, 0) : recv(c->fd, c->tail + c->len, TAIL - c->len, 0);
    if (n <= 0) {
        drop(c);
        return;
    }
    if (c->body_left) {
        c->body_left -= (uint64_t)n < c->body_left ? (uint64_t)n : c->body_left;
        if (!c->body_left)
            put(c, well, sizeof well - 1);
        return;
    }
    c->len += (size_t)n;
    struct str text = {c->tail, c->len};
    ptrdiff_t end = str_find(text, STR("\r\n\r\n"));
    if (end < 0)
        return;
    uint64_t body = 0;
    struct str rest = {text.ptr, (size_t)end};
    while (rest.ptr) {
        struct str line = str_split(&rest, '\n'), name = str_split(&line, ':');
        if (str_eq_nocase(name, STR("content-length")))
            base_ignore(str_to_u64(str_trim(line), &body));
    }
    if (body > TAIL) { /* a large one asks for no stream */
        c->body_left = body - (c->len - (size_t)end - 4);
        c->len = 0;
        return;
    }
    if (c->len < (size_t)end + 4 + body)
        return;
    c->len = 0;
    if (!str_starts(text, STR("POST "))) { /* whoever asks for its health */
        put(c, well, sizeof well - 1);
        return;
    }
    c->sent = 0;
    c->sending = true;
    c->next_ns = now_ns();
    put(c, head, sizeof head - 1);
}

static void serve(uint64_t port, uint64_t interval_us, uint64_t events)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = address(port);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 4096) < 0)
        die("streams: cannot listen");
    watch_fd(fd, EPOLLIN, STREAMS_MAX);
    int most = 0;
    for (;;) {
        struct epoll_event e[256];
        int n = epoll_wait(poller, e, BASE_COUNT(e), 1);
        for (int i = 0; i < n; i++) {
            if (e[i].data.u64 < STREAMS_MAX) {
                take_request(&conns[e[i].data.u64]);
                continue;
            }
            int k;
            while ((k = accept4(fd, NULL, NULL, SOCK_NONBLOCK)) >= 0 && k < STREAMS_MAX) {
                no_delay(k);
                conns[k] = (struct conn){.fd = k, .open = true};
                most = k > most ? k : most;
                watch_fd(k, EPOLLIN, (uint64_t)k);
            }
        }
        uint64_t now = now_ns();
        for (int k = 0; k <= most; k++)
            if (conns[k].sending && conns[k].next_ns <= now) {
                conns[k].next_ns += interval_us * 1000;
                put_event(&conns[k], events);
            }
    }
}

/* ---- client ------------------------------------------------------------------------------------------------ */

static float *samples;
static size_t n_samples;
static uint64_t reads, events_seen;

static void open_stream(struct conn *c, uint64_t port, uint64_t number_of)
{
    char body[160], text[400];
    struct sockaddr_in a = address(port);
    *c = (struct conn){.fd = socket(AF_INET, SOCK_STREAM, 0), .open = true};
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a) < 0)
        die("streams: cannot connect");
    no_delay(c->fd);
    int n = snprintf(body, sizeof body, "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"stream %llu\"}]}", (unsigned long long)number_of);
    int m = snprintf(text, sizeof text, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", n, body);
    if (send(c->fd, text, (size_t)m, MSG_NOSIGNAL) != m)
        die("streams: cannot send");
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0)
        die("fcntl");
}

/* Looks at whole events and keeps the rest. */
static void look(struct conn *c, uint64_t now)
{
    struct str rest = {c->tail, c->len};
    ptrdiff_t at;
    while ((at = str_find(rest, STR("\n\n"))) >= 0) {
        struct str event = {rest.ptr, (size_t)at};
        ptrdiff_t stamp = str_find(event, STR("\"at\":"));
        uint64_t ns = 0;
        if (stamp >= 0) {
            struct str value = {event.ptr + stamp + 5, event.len - (size_t)stamp - 5};
            base_ignore(str_to_u64(str_split(&value, '}'), &ns));
            events_seen++;
            c->seen = true;
            if (n_samples < SAMPLES_MAX && ns)
                samples[n_samples++] = (float)(now - ns) / 1e6f;
        }
        c->ended = c->ended || str_find(event, STR("[DONE]")) >= 0;
        rest.ptr += at + 2;
        rest.len -= (size_t)at + 2;
    }
    if (rest.len == TAIL) /* no event of ours is so long: a head */
        rest.len = 0;
    memmove(c->tail, rest.ptr, rest.len);
    c->len = rest.len;
}

/* False when the stream is over. */
static bool take_data(struct conn *c)
{
    ssize_t n = recv(c->fd, c->tail + c->len, TAIL - c->len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n > 0) {
        reads++;
        c->len += (size_t)n;
        look(c, now_ns());
    }
    if (n > 0 && !c->ended)
        return true;
    close(c->fd);
    c->open = false;
    return false;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Opens them all; reads until each is over, or with `hold` until the end of the input. */
static void client(uint64_t port, uint64_t streams, bool hold)
{
    if (streams == 0 || streams > STREAMS_MAX || !(samples = malloc(SAMPLES_MAX * sizeof *samples)))
        die("streams: how many?");
    size_t live = 0, seen = 0;
    bool said = false;
    if (hold)
        watch_fd(STDIN_FILENO, EPOLLIN, STREAMS_MAX);
    for (uint64_t i = 0; i < streams; i++) {
        open_stream(&conns[i], port, i);
        watch_fd(conns[i].fd, EPOLLIN, i);
        live++;
    }
    while (live) {
        struct epoll_event e[256];
        int n = epoll_wait(poller, e, BASE_COUNT(e), -1);
        for (int i = 0; i < n; i++) {
            if (e[i].data.u64 == STREAMS_MAX)
                return;
            struct conn *c = &conns[e[i].data.u64];
            bool had = c->seen;
            live -= !take_data(c);
            seen += c->seen && !had;
        }
        if (hold && !said && seen == streams) {
            (void)printf("open %llu\n", (unsigned long long)streams);
            (void)fflush(stdout);
            said = true;
        }
    }
    size_t broken = 0;
    for (uint64_t i = 0; i < streams; i++)
        broken += !conns[i].ended;
    qsort(samples, n_samples, sizeof *samples, by_value);
    if (hold)
        (void)fprintf(stderr, "streams: all were closed by the other end\n");
    else
        (void)printf("%.3f %.3f %.3f %llu %llu %zu\n", (double)samples[n_samples / 2], (double)samples[n_samples - 1 - n_samples / 100], (double)samples[n_samples ? n_samples - 1 : 0],
                     (unsigned long long)events_seen, (unsigned long long)reads, broken);
}

/* Connections that ask nothing, until the end of the input. */
static void idle(uint64_t port, uint64_t n)
{
    struct sockaddr_in a = address(port);
    char c;
    for (uint64_t i = 0; i < n; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
            die("streams: cannot connect");
    }
    (void)printf("open %llu\n", (unsigned long long)n);
    (void)fflush(stdout);
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
}

/* ---- bodies ------------------------------------------------------------------------------------------------ */

#define PIECE 65536

/* A conversation about code, or a question with a picture. */
static void make_body(const char *kind, size_t size, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bool picture = strcmp(kind, "picture") == 0;
    uint64_t dice = 88172645463325252u;
    buf_add_c(out, picture ? "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64," : "{\"model\":\"m\",\"messages\":[");
    for (size_t turn = 0; !picture && out->len < size; turn++) {
        buf_addf(out, "%s{\"role\":\"%s\",\"content\":\"", turn ? "," : "", turn % 2 ? "assistant" : "user");
        for (int line = 0; line < 60; line++)
            buf_addf(out, "static int f%zu_%d(void)\\n{\\n\\tprintf(\\\"%%d\\\\n\\\", 7);\\n}\\n", turn, line);
        buf_add_c(out, "\"}");
    }
    while (picture && out->len < size) {
        dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
        for (int i = 0; i < 10; i++)
            buf_add_char(out, digits[dice >> 6 * i & 63]);
    }
    buf_add_c(out, picture ? "\"}}]}]}" : "]}");
    if (buf_status(out) < 0)
        die("streams: out of memory");
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void send_all(int fd, struct str data)
{
    while (data.len) {
        ssize_t n = send(fd, data.ptr, data.len, MSG_NOSIGNAL);
        if (n <= 0)
            die("streams: cannot send");
        data.ptr += n;
        data.len -= (size_t)n;
    }
}

static _Noreturn void send_bodies(uint64_t port, const char *kind, uint64_t mib, uint64_t rate)
{
    struct buf body = BUF_INIT(256 << 20);
    make_body(kind, mib << 20, &body);
    uint64_t each_ns = PIECE * UINT64_C(1000000000) / ((rate ? rate : 1) << 20), due = now_ns();
    for (;;) {
        struct sockaddr_in a = address(port);
        char head[256], answer[1024];
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
            die("streams: cannot connect");
        int n = snprintf(head, sizeof head, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", body.len);
        send_all(fd, (struct str){head, (size_t)n});
        for (struct str left = buf_str(&body); left.len;) {
            struct str piece = {left.ptr, left.len < PIECE ? left.len : PIECE};
            due = (due + each_ns > now_ns()) ? due + each_ns : now_ns();
            sleep_until(due);
            send_all(fd, piece);
            left.ptr += piece.len;
            left.len -= piece.len;
        }
        ssize_t got = recv(fd, answer, sizeof answer, 0);
        if (got < 12 || memcmp(answer + 9, "200", 3) != 0)
            die("streams: a body was not taken");
        (void)printf("sent\n");
        (void)fflush(stdout);
        close(fd);
    }
}

int main(int argc, char **argv)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    poller = epoll_create1(0);
    if (argc == 5 && strcmp(argv[1], "serve") == 0)
        serve(number(argv[2]), number(argv[3]), number(argv[4]));
    else if (argc == 4 && (strcmp(argv[1], "watch") == 0 || strcmp(argv[1], "hold") == 0))
        client(number(argv[2]), number(argv[3]), argv[1][0] == 'h');
    else if (argc == 4 && strcmp(argv[1], "idle") == 0)
        idle(number(argv[2]), number(argv[3]));
    else if (argc == 6 && strcmp(argv[1], "send") == 0)
        send_bodies(number(argv[2]), argv[3], number(argv[4]), number(argv[5]));
    else
        return (void)fprintf(stderr, "usage: streams serve PORT INTERVAL_US EVENTS | watch PORT STREAMS | hold PORT STREAMS | idle PORT STREAMS | send PORT KIND MIB RATE\n"), 2;
    return 0;
}
