/* SPDX-License-Identifier: MIT
 *
 * Addresses as text and as the kernel wants them, and the one place that makes listening sockets. IP addresses only: names are resolved by whoever reads
 * them from a file. IPv6 text is kept in the form that inet_ntop writes, so that equal addresses are equal bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net_int.h"

int net_addr_ip(const char *host, uint16_t port, struct net_addr *ret)
{
    unsigned char raw[sizeof(struct in6_addr)];
    struct net_addr a = {.port = port};
    int family = strchr(host, ':') ? AF_INET6 : AF_INET;

    if (inet_pton(family, host, raw) != 1)
        return -EINVAL;
    if (!inet_ntop(family, raw, a.host, sizeof(a.host)))
        return -EINVAL;
    *ret = a;
    return 0;
}

int net_addr_unix(const char *path, struct net_addr *ret)
{
    struct net_addr a = {.unix_path = true};
    size_t len = strlen(path);

    if (len == 0)
        return -EINVAL;
    if (len >= sizeof(a.host))
        return -ENAMETOOLONG;
    memcpy(a.host, path, len + 1);
    *ret = a;
    return 0;
}

int net_addr_parse(const char *text, uint16_t port, struct net_addr *ret)
{
    return str_starts(str_of(text), STR("unix:")) ? net_addr_unix(text + 5, ret) : net_addr_ip(text, port, ret);
}

const char *net_addr_text(const struct net_addr *a, char out[NET_ADDR_TEXT])
{
    if (a->unix_path)
        (void)snprintf(out, NET_ADDR_TEXT, "%s", a->host);
    else if (strchr(a->host, ':'))
        (void)snprintf(out, NET_ADDR_TEXT, "[%s]:%u", a->host, (unsigned)a->port);
    else
        (void)snprintf(out, NET_ADDR_TEXT, "%s:%u", a->host, (unsigned)a->port);
    return out;
}

bool net_addr_eq(const struct net_addr *a, const struct net_addr *b)
{
    return a->port == b->port && a->unix_path == b->unix_path && strcmp(a->host, b->host) == 0;
}

socklen_t net_addr_sockaddr(const struct net_addr *a, struct sockaddr_storage *ss)
{
    memset(ss, 0, sizeof(*ss));
    if (a->unix_path) {
        struct sockaddr_un *un = (struct sockaddr_un *)ss;
        size_t len = strlen(a->host);

        if (len == 0 || len >= sizeof(un->sun_path))
            return 0;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, a->host, len + 1);
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    }
    if (strchr(a->host, ':')) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ss;

        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(a->port);
        return inet_pton(AF_INET6, a->host, &in6->sin6_addr) == 1 ? (socklen_t)sizeof(*in6) : 0;
    }
    struct sockaddr_in *in = (struct sockaddr_in *)ss;
    in->sin_family = AF_INET;
    in->sin_port = htons(a->port);
    return inet_pton(AF_INET, a->host, &in->sin_addr) == 1 ? (socklen_t)sizeof(*in) : 0;
}

/* Removes a socket file that nobody listens at. -EADDRINUSE when somebody does, -ENOTSOCK when it is no socket. */
static int remove_stale(const char *path, const struct sockaddr *sa, socklen_t len)
{
    struct stat st;
    int fd, r;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode))
        return -ENOTSOCK;
    /* Non-blocking: a listener with a full backlog answers EAGAIN and counts as alive. */
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    r = connect(fd, sa, len) == 0 ? 0 : errno;
    (void)close(fd);
    if (r != ECONNREFUSED)
        return -EADDRINUSE;
    if (unlink(path) < 0 && errno != ENOENT)
        return -errno;
    return 0;
}

static int bind_socket(int fd, const struct net_addr *a, const struct sockaddr *sa, socklen_t len)
{
    int r;

    if (bind(fd, sa, len) == 0)
        return 0;
    if (!a->unix_path || errno != EADDRINUSE)
        return -errno;
    r = remove_stale(a->host, sa, len);
    if (r < 0)
        return r;
    return bind(fd, sa, len) == 0 ? 0 : -errno;
}

/* Options, bind, rights, listen. */
static int set_listening(int fd, const struct net_addr *a, bool reuseport, const struct sockaddr *sa, socklen_t len)
{
    int one = 1, r;

    if (!a->unix_path) {
        if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0)
            return -errno;
        if (reuseport && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) < 0)
            return -errno;
    }
    /* The file is made with the rights of the socket: what is at the path later, a link maybe, is not touched. */
    if (a->unix_path && fchmod(fd, 0600) < 0)
        return -errno;
    r = bind_socket(fd, a, sa, len);
    if (r < 0)
        return r;
    if (listen(fd, SOMAXCONN) < 0)
        return -errno;
    return 0;
}

int net_listen_socket(const struct net_addr *a, bool reuseport, struct err *err)
{
    struct sockaddr_storage ss;
    char text[NET_ADDR_TEXT];
    socklen_t len = net_addr_sockaddr(a, &ss);
    int fd, r;

    if (len == 0)
        return err_set(err, -EINVAL, "cannot listen at '%s': not an IP address or a path", a->host);
    fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, -errno, "cannot listen at '%s'", net_addr_text(a, text));
    r = set_listening(fd, a, reuseport, (const struct sockaddr *)&ss, len);
    if (r < 0) {
        (void)close(fd);
        if (r == -ENOTSOCK)
            return err_set(err, r, "cannot listen at '%s': something that is no socket is there; remove it, or choose another path", net_addr_text(a, text));
        return err_sys(err, r, "cannot listen at '%s'", net_addr_text(a, text));
    }
    return fd;
}

int net_socket_addr(int fd, struct net_addr *ret)
{
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    char host[INET6_ADDRSTRLEN];

    if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
        return -errno;
    if (ss.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&ss;

        if (!inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host)))
            return -errno;
        return net_addr_ip(host, ntohs(in->sin_port), ret);
    }
    if (ss.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&ss;

        if (!inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host)))
            return -errno;
        return net_addr_ip(host, ntohs(in6->sin6_port), ret);
    }
    if (ss.ss_family == AF_UNIX) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)&ss;
        char path[sizeof(un->sun_path) + 1] = "";

        /* The kernel may fill sun_path without a terminator; the zeroed storage behind it is one. */
        memcpy(path, un->sun_path, sizeof(un->sun_path));
        return net_addr_unix(path, ret);
    }
    return -EAFNOSUPPORT;
}
