/* SPDX-License-Identifier: MIT
 *
 * An engine that misbehaves as told, for what a real one cannot be made to show at will. It serves /health and /v1/models over
 * HTTP/1.1, one request for each connection, and counts nothing.
 *
 *   fake_engine --port N [--name NAME] [--exit CODE] [--never-ready] [--ignore-term] [--die-at /PATH] [--lines N] [--flag-file FILE] [--events N] [--gap MS]
 *
 * --exit CODE     says last words and ends before it listens
 * --never-ready   /health is 503 for ever
 * --ignore-term   TERM does nothing
 * --die-at PATH   a request for PATH ends it at once, with SIGKILL
 * --events N      a POST is answered by N events, one each --gap MS (default 3, 20), in a process of its own, while others are served
 * --lines N       writes N lines of log at a start
 * --flag-file F   --exit holds only while F exists
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

struct options {
    unsigned port;
    const char *name, *die_at, *flag_file;
    int exit_code;
    bool never_ready, ignore_term;
    unsigned lines, events, gap_ms;
};

static unsigned number(const char *text)
{
    return (unsigned)strtoul(text ? text : "0", NULL, 10);
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.name = "fake", .events = 3, .gap_ms = 20};
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

static void serve(int fd, const struct options *o)
{
    char request[8192], models[300];
    size_t n = 0;
    request[0] = '\0';
    while (n < sizeof(request) - 1 && !strstr(request, "\r\n\r\n")) {
        ssize_t got = read(fd, request + n, sizeof(request) - 1 - n);
        if (got <= 0)
            return;
        n += (size_t)got;
        request[n] = '\0';
    }
    char *path = strchr(request, ' ');
    char *end = path ? strchr(path + 1, ' ') : NULL;
    if (!end)
        return;
    *end = '\0';
    path++;
    if (o->die_at && strcmp(path, o->die_at) == 0)
        (void)raise(SIGKILL);
    if (strncmp(request, "POST", 4) == 0) {
        pid_t child = fork();
        if (child == 0) {
            (void)signal(SIGTERM, SIG_DFL);
            stream(fd, o);
            _exit(0);
        }
        return;
    }
    snprintf(models, sizeof(models), "{\"object\":\"list\",\"data\":[{\"id\":\"%s\"}]}", o->name);
    if (strcmp(path, "/health") == 0)
        answer(fd, o->never_ready ? 503 : 200, o->never_ready ? "{\"error\":\"loading\"}" : "{\"status\":\"ok\"}");
    else if (strcmp(path, "/v1/models") == 0)
        answer(fd, 200, models);
    else
        answer(fd, 404, "{}");
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
    int fd = listen_at(o.port);
    printf("fake: listening\n");
    for (;;) {
        int client = accept(fd, NULL, NULL);
        if (client < 0)
            continue;
        serve(client, &o);
        (void)close(client);
    }
}
