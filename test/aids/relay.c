/* SPDX-License-Identifier: MIT
 *
 * The least that a proxy can do, for benchmarks: copies bytes between each client and a connection of its own to a backend and looks at none. What it costs is the kernel's part, which every
 * proxy pays. One thread, epoll, everything on loopback; a receive and a send for each piece, as a proxy needs them.
 *
 *   relay BACKEND-PORT PORT
 */
#include <base/base.h>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 65536
#define EVENTS 256

static int other[DESCRIPTORS_MAX]; /* end of the same connection, by descriptor */
static int poller;

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

static struct sockaddr_in at_port(const char *text)
{
    uint64_t port = 0;
    if (str_to_u64(str_of(text), &port) < 0 || port == 0 || port > UINT16_MAX)
        die("relay: no port");
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void watch(int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (fd >= DESCRIPTORS_MAX || epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e) < 0)
        die("relay: epoll_ctl");
}

static void take_client(int listener, const struct sockaddr_in *backend)
{
    int one = 1, client = accept(listener, NULL, NULL), up = socket(AF_INET, SOCK_STREAM, 0);
    if (client < 0 || up < 0 || connect(up, (const struct sockaddr *)backend, sizeof *backend) < 0)
        die("relay: connect");
    (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(up, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(client);
    watch(up);
    other[client] = up;
    other[up] = client;
}

static void copy(int fd)
{
    static char piece[65536];
    ssize_t n = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
    if (n > 0 && send(other[fd], piece, (size_t)n, MSG_NOSIGNAL) == n)
        return;
    if (other[fd] > 0)
        (void)shutdown(other[fd], SHUT_RDWR); /* which is an event of the other end */
    other[other[fd]] = 0;
    (void)close(fd);
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 3)
        die("relay BACKEND-PORT PORT");
    struct sockaddr_in backend = at_port(argv[1]), own = at_port(argv[2]);
    poller = epoll_create1(EPOLL_CLOEXEC);
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (poller < 0 || bind(listener, (const struct sockaddr *)&own, sizeof own) < 0 || listen(listener, 512) < 0)
        die("relay: listen");
    watch(listener);
    for (;;) {
        int n = epoll_wait(poller, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener)
                take_client(listener, &backend);
            else
                copy(events[i].data.fd);
        }
    }
}
