/* SPDX-License-Identifier: MIT
 *
 * What a service manager and its services say to each other, as systemd does it, in plain C: sockets that were opened for us (LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES), and words
 * about our state to a datagram socket (NOTIFY_SOCKET; a name that begins with '@' is abstract). Without a manager the variables are not there and nothing happens.
 *
 * Variables from outside are checked like any other text: a number that is none, a process that is not us and a name that is too long count as not set.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "os_int.h"

#define FIRST_FD 3       /* the protocol's */
#define NOTIFY_MAX 4096  /* bytes of one message */

static bool number_of(const char *variable, uint64_t *ret)
{
    const char *text = getenv(variable);

    return text && str_to_u64(str_of(text), ret) == 0;
}

/* ---- sockets that were opened for us ---------------------------------------------------------------------- */

static void forget(void)
{
    (void)unsetenv("LISTEN_PID");
    (void)unsetenv("LISTEN_FDS");
    (void)unsetenv("LISTEN_FDNAMES");
}

static void take_names(struct os_socket *list, size_t n)
{
    const char *text = getenv("LISTEN_FDNAMES");
    struct str names = str_of(text);

    for (size_t i = 0; i < n; i++) {
        struct str name = names.ptr ? str_split(&names, ':') : (struct str){0};
        if (name.len < sizeof(list[i].name))
            (void)snprintf(list[i].name, sizeof(list[i].name), "%.*s", (int)name.len, name.ptr ? name.ptr : "");
    }
}

int os_sockets_passed(struct os_socket list[OS_SOCKETS_MAX], size_t *ret_n, struct err *err)
{
    uint64_t pid, n;

    *ret_n = 0;
    if (!number_of("LISTEN_PID", &pid) || !number_of("LISTEN_FDS", &n) || pid != (uint64_t)getpid()) {
        forget();
        return 0;
    }
    if (n > OS_SOCKETS_MAX) {
        forget();
        return err_set(err, -E2BIG, "%llu sockets were passed by the service manager; %d is the most", (unsigned long long)n, OS_SOCKETS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        int fd = FIRST_FD + (int)i, listening = 0, flags = fcntl(fd, F_GETFD);
        socklen_t len = sizeof(listening);

        list[i] = (struct os_socket){.fd = fd};
        if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) < 0 || !listening) {
            forget();
            return err_set(err, -EBADF, "descriptor %d, passed by the service manager, is no listening socket; use ListenStream= with Accept=no", fd);
        }
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    take_names(list, (size_t)n);
    forget();
    *ret_n = (size_t)n;
    return 0;
}

/* ---- what we say -------------------------------------------------------------------------------------------- */

static int send_text(const char *to, struct str text)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    size_t len = strlen(to);

    if ((to[0] != '/' && to[0] != '@') || len < 2)
        return -EAFNOSUPPORT;
    if (len >= sizeof(un.sun_path))
        return -ENAMETOOLONG;
    memcpy(un.sun_path, to, len);
    if (to[0] == '@')
        un.sun_path[0] = '\0';
    /* An abstract name ends with its length, a path with its terminator. */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (to[0] == '/'));
    os_autoclose int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    ssize_t n = sendto(fd, text.ptr, text.len, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&un, size);
    return n < 0 ? -errno : 0;
}

int os_notify(const char *fmt, ...)
{
    const char *to = getenv("NOTIFY_SOCKET");
    base_autobuf struct buf b = BUF_INIT(NOTIFY_MAX);
    va_list ap;

    if (!to)
        return 0;
    va_start(ap, fmt);
    buf_addv(&b, fmt, ap);
    va_end(ap);
    int r = buf_status(&b);
    return r < 0 ? r : send_text(to, buf_str(&b));
}

int os_notify_reloading(void)
{
    return os_notify("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)clk_system.mono_us(NULL));
}

uint64_t os_watchdog_ms(void)
{
    uint64_t us, pid;

    if (!getenv("NOTIFY_SOCKET") || !number_of("WATCHDOG_USEC", &us) || us == 0)
        return 0;
    if (getenv("WATCHDOG_PID") && (!number_of("WATCHDOG_PID", &pid) || pid != (uint64_t)getpid()))
        return 0;
    uint64_t ms = us / 2000; /* half of it, so that one late turn is no death */
    return ms ? ms : 1;
}
