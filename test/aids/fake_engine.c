/* SPDX-License-Identifier: MIT
 *
 * An engine that misbehaves as told, for what a real one cannot be made to show at will. It serves /health, /v1/models and /v1/chat/completions over
 * HTTP/1.1, one request for each connection, each on a thread of its own.
 *
 *   fake_engine --port N [--name NAME] [--exit CODE] [--never-ready] [--ignore-term] [--die-at /PATH] [--lines N] [--flag-file FILE] [--load MS] [--work MS] [--alone PORT]
 *               [--events N] [--gap MS]
 *
 * --exit CODE     says last words and ends before it listens
 * --never-ready   /health is 503 for ever
 * --ignore-term   TERM does nothing
 * --die-at PATH   a request for PATH ends it at once, with SIGKILL
 * --events N      a POST is answered by N events, one each --gap MS (default 20)
 * --lines N       writes N lines of log at a start
 * --flag-file F   --exit holds only while F exists
 * --load MS       /health is 503 for so long
 * --work MS       an answer takes so long; a stream sends a token every tenth of it
 * --alone PORT    ends at once when another engine with the same option lives: both would listen there
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct options {
    unsigned port;
    const char *name, *die_at, *flag_file;
    int exit_code;
    bool never_ready, ignore_term;
    unsigned lines, events, gap_ms, load_ms, work_ms, alone;
};

static unsigned number(const char *text)
{
    return (unsigned)strtoul(text ? text : "0", NULL, 10);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.name = "fake", .gap_ms = 20};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--never-ready") == 0) {
            o.never_ready = true;
            continue;
        }
        if (strcmp(argv[i], "--ignore-term") == 0) {
            o.ignore_term = true;
            continue;
        }
        if (strcmp(argv[i], "--port") == 0)
            o.port = number(value);
        else if (strcmp(argv[i], "--name") == 0)
            o.name = value;
        else if (strcmp(argv[i], "--exit") == 0)
            o.exit_code = (int)number(value);
        else if (strcmp(argv[i], "--die-at") == 0)
            o.die_at = value;
        else if (strcmp(argv[i], "--events") == 0)
            o.events = number(value);
        else if (strcmp(argv[i], "--gap") == 0)
            o.gap_ms = number(value);
        else if (strcmp(argv[i], "--lines") == 0)
            o.lines = number(value);
        else if (strcmp(argv[i], "--flag-file") == 0)
            o.flag_file = value;
        else if (strcmp(argv[i], "--load") == 0)
            o.load_ms = number(value);
        else if (strcmp(argv[i], "--work") == 0)
            o.work_ms = number(value);
        else if (strcmp(argv[i], "--alone") == 0)
            o.alone = number(value);
        i++;
    }
    return o;
}

static int listen_at(unsigned port)
{
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 64) < 0) {
        fprintf(stderr, "fake: cannot bind: Address already in use\n");
        exit(3);
    }
    return fd;
}

static void answer(int fd, unsigned status, const char *body)
{
    char text[1024];
    int n = snprintf(text, sizeof(text), "HTTP/1.1 %u X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status,
                     strlen(body), body);
    if (write(fd, text, (size_t)n) != n)
        fprintf(stderr, "fake: a client left\n");
}

/* The body is not read: it is small and waits in the socket. */
static void stream(int fd, const struct options *o)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    char event[256];
    if (write(fd, head, sizeof(head) - 1) < 0)
        return;
    for (unsigned i = 0; i < o->events; i++) {
        struct timeval gap = {.tv_sec = o->gap_ms / 1000, .tv_usec = (o->gap_ms % 1000) * 1000L};
        int n = snprintf(event, sizeof(event), "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s-%u \"},\"finish_reason\":null}]}\n\n", o->name, i);
        if (write(fd, event, (size_t)n) != n)
            return;
        (void)select(0, NULL, NULL, NULL, &gap);
    }
    if (write(fd, "data: [DONE]\n\n", 14) != 14)
        return;
    (void)shutdown(fd, SHUT_WR);
    while (read(fd, event, sizeof(event)) > 0) /* closing with bytes unread would be a reset */
        continue;
}

static void sleep_ms(unsigned ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void say(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        fprintf(stderr, "fake: a client left\n");
}

static void chat(int fd, const struct options *o, const char *body)
{
    char text[512];
    if (!strstr(body, "\"stream\":true")) {
        sleep_ms(o->work_ms);
        snprintf(text, sizeof(text), "{\"object\":\"chat.completion\",\"model\":\"%s\",\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"ok\"}}]}", o->name);
        answer(fd, 200, text);
        return;
    }
    say(fd, "HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n");
    for (unsigned i = 0; i < 10; i++) {
        sleep_ms(o->work_ms / 10);
        snprintf(text, sizeof(text), "data: {\"choices\":[{\"index\":0,\"finish_reason\":null,\"delta\":{\"content\":\"%s-%u \"}}]}\n\n", o->name, i);
        say(fd, text);
    }
    say(fd, "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"delta\":{}}]}\n\ndata: [DONE]\n\n");
}

/* A request with its body, terminated; false when the client left. Head and body in one buffer. */
static bool read_request(int fd, char *request, size_t size, char **ret_body)
{
    size_t n = 0, want = 0;
    char *end = NULL;
    while (!end || n < want) {
        ssize_t got = n < size - 1 ? read(fd, request + n, size - 1 - n) : 0;
        if (got <= 0)
            return false;
        n += (size_t)got;
        request[n] = '\0';
        if (end || !(end = strstr(request, "\r\n\r\n")))
            continue;
        const char *length = strcasestr(request, "\r\nContent-Length:");
        want = (size_t)(end - request) + 4 + (length && length < end ? number(length + 17) : 0);
    }
    *ret_body = end + 4;
    return true;
}

static const struct options *told;
static uint64_t began_ms;

static void serve(int fd, const struct options *o)
{
    static _Thread_local char request[65536];
    char models[300], *body;
    if (!read_request(fd, request, sizeof(request), &body))
        return;
    char *path = strchr(request, ' ');
    char *end = path ? strchr(path + 1, ' ') : NULL;
    if (!end)
        return;
    *end = '\0';
    path++;
    if (o->die_at && strcmp(path, o->die_at) == 0)
        (void)raise(SIGKILL);
    if (o->events && strncmp(request, "POST", 4) == 0) {
        stream(fd, o);
        return;
    }
    bool loading = o->never_ready || now_ms() - began_ms < o->load_ms;
    snprintf(models, sizeof(models), "{\"object\":\"list\",\"data\":[{\"id\":\"%s\"}]}", o->name);
    if (strcmp(path, "/health") == 0)
        answer(fd, loading ? 503 : 200, loading ? "{\"error\":\"loading\"}" : "{\"status\":\"ok\"}");
    else if (strcmp(path, "/v1/models") == 0)
        answer(fd, 200, models);
    else if (strcmp(path, "/v1/chat/completions") == 0)
        chat(fd, o, body);
    else
        answer(fd, 404, "{}");
}

static void *serve_thread(void *arg)
{
    int fd = (int)(intptr_t)arg;
    serve(fd, told);
    (void)close(fd);
    return NULL;
}

static void on_term(int sig)
{
    (void)sig;
    _exit(0);
}

int main(int argc, char **argv)
{
    struct options o = parse(argc, argv);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN);
    /* As the first process of a namespace it has no default for TERM. */
    (void)signal(SIGTERM, o.ignore_term ? SIG_IGN : on_term);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (unsigned i = 0; i < o.lines; i++)
        printf("fake: line %u\n", i + 1);
    if (o.exit_code && (!o.flag_file || access(o.flag_file, F_OK) == 0)) {
        fprintf(stderr, "fake: CUDA out of memory\nfake: these are my last words\n");
        return o.exit_code;
    }
    if (o.alone)
        (void)listen_at(o.alone);
    int fd = listen_at(o.port);
    told = &o;
    began_ms = now_ms();
    printf("fake: listening\n");
    for (;;) {
        pthread_t t;
        int client = accept(fd, NULL, NULL);
        if (client < 0)
            continue;
        if (pthread_create(&t, NULL, serve_thread, (void *)(intptr_t)client) == 0)
            (void)pthread_detach(t);
        else
            (void)close(client);
    }
}
