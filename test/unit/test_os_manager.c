/* SPDX-License-Identifier: MIT
 *
 * The service manager's protocols: passed sockets (in a child, where descriptor 3 is ours to take) and notices, by path and abstract.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <os/os.h>

static char dir[64], path[96];

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/berth-manager-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/notify", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    unlink(path);
    rmdir(dir);
    return 0;
}

static int receiver(const char *name, size_t len)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(un.sun_path, name, len);
    assert_int_equal(bind(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)), 0);
    return fd;
}

static void assert_got(int fd, const char *text)
{
    char got[4096];
    ssize_t n = recv(fd, got, sizeof(got) - 1, 0);

    assert_true(n >= 0);
    got[n] = '\0';
    assert_string_equal(got, text);
}

static void test_notify(void **state)
{
    char abstract[64];
    (void)state;

    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(os_notify("READY=1"), 0); /* nobody listens */
    setenv("NOTIFY_SOCKET", path, 1);
    assert_int_equal(os_notify("READY=1"), -ENOENT);
    int fd = receiver(path, strlen(path) + 1);
    assert_int_equal(os_notify("READY=1\nSTATUS=%d ready", 3), 0);
    assert_got(fd, "READY=1\nSTATUS=3 ready");
    close(fd);

    int n = snprintf(abstract, sizeof(abstract), "@berth-%d", (int)getpid());
    setenv("NOTIFY_SOCKET", abstract, 1);
    abstract[0] = '\0';
    fd = receiver(abstract, (size_t)n);
    uint64_t before = clk_system.mono_us(NULL), stamp = 0;
    assert_int_equal(os_notify_reloading(), 0);
    char got[256] = "";
    assert_true(recv(fd, got, sizeof(got) - 1, 0) > 0);
    assert_true(str_starts(str_of(got), STR("RELOADING=1\nMONOTONIC_USEC=")));
    assert_int_equal(str_to_u64(str_of(strrchr(got, '=') + 1), &stamp), 0);
    assert_true(stamp >= before && stamp <= clk_system.mono_us(NULL));
    close(fd);

    static const char *const unusable[] = {"", "/", "@", "vsock:2:1234", "relative"};
    for (size_t i = 0; i < BASE_COUNT(unusable); i++) {
        setenv("NOTIFY_SOCKET", unusable[i], 1);
        assert_int_equal(os_notify("READY=1"), -EAFNOSUPPORT);
    }
    char longer[200];
    memset(longer, 'a', sizeof(longer));
    longer[0] = '/';
    longer[sizeof(longer) - 1] = '\0';
    setenv("NOTIFY_SOCKET", longer, 1);
    assert_int_equal(os_notify("READY=1"), -ENAMETOOLONG);
    setenv("NOTIFY_SOCKET", path, 1);
    memset(longer, 'b', sizeof(longer) - 1);
    assert_int_equal(os_notify("%s%0*d", longer, 4000, 1), -E2BIG);
}

static void test_watchdog(void **state)
{
    char pid[16];
    (void)state;

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    assert_int_equal(os_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "3000000", 1);
    assert_int_equal(os_watchdog_ms(), 0); /* nobody to tell */
    setenv("NOTIFY_SOCKET", path, 1);
    assert_int_equal(os_watchdog_ms(), 1500);
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(os_watchdog_ms(), 1500);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(os_watchdog_ms(), 0);
    unsetenv("WATCHDOG_PID");
    setenv("WATCHDOG_USEC", "1", 1);
    assert_int_equal(os_watchdog_ms(), 1);
    setenv("WATCHDOG_USEC", "soon", 1);
    assert_int_equal(os_watchdog_ms(), 0);
}

/* In a child: descriptors from 3 on are listening sockets (l) or others (p), the variables as given; pid NULL: the child's own. The value: how many were taken, or 100 and the errno. */
static int passed(const char *kinds, const char *count, const char *pid, const char *names, const char *first_name)
{
    pid_t child = fork();
    if (child == 0) {
        char own[16];
        struct os_socket list[OS_SOCKETS_MAX];
        size_t n = 77;
        struct err err;

        (void)close_range(3, ~0u, 0);
        for (const char *k = kinds; *k; k++) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            if (*k == 'l' && listen(fd, 4) < 0)
                _exit(99);
        }
        snprintf(own, sizeof(own), "%d", (int)getpid());
        setenv("LISTEN_PID", pid ? pid : own, 1);
        setenv("LISTEN_FDS", count, 1);
        if (names)
            setenv("LISTEN_FDNAMES", names, 1);
        int r = os_sockets_passed(list, &n, &err);
        if (getenv("LISTEN_PID") || getenv("LISTEN_FDS") || getenv("LISTEN_FDNAMES"))
            _exit(98);
        if (r < 0)
            _exit(100 - r);
        for (size_t i = 0; i < n; i++)
            if (list[i].fd != 3 + (int)i || !(fcntl(list[i].fd, F_GETFD) & FD_CLOEXEC) || !(fcntl(list[i].fd, F_GETFL) & O_NONBLOCK))
                _exit(97);
        if (n > 0 && strcmp(list[0].name, first_name) != 0)
            _exit(96);
        _exit((int)n);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_passed(void **state)
{
    (void)state;
    assert_int_equal(passed("", "0", NULL, NULL, ""), 0);
    assert_int_equal(passed("l", "1", NULL, NULL, ""), 1);
    assert_int_equal(passed("ll", "2", NULL, "router:other", "router"), 2);
    assert_int_equal(passed("ll", "2", NULL, "router", "router"), 2); /* fewer names than sockets */
    assert_int_equal(passed("l", "1", "1", NULL, ""), 0);             /* for somebody else */
    assert_int_equal(passed("l", "one", NULL, NULL, ""), 0);
    assert_int_equal(passed("lp", "2", NULL, NULL, ""), 100 + EBADF);
    assert_int_equal(passed("l", "3", NULL, NULL, ""), 100 + EBADF);
    assert_int_equal(passed("l", "17", NULL, NULL, ""), 100 + E2BIG);
    assert_int_equal(passed("l", "18446744073709551616", NULL, NULL, ""), 0);
    assert_int_equal(passed("l", "1", NULL, "a-name-that-is-longer-than-any-that-a-manager-would-give-to-a-socket", ""), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_notify, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_watchdog, set_up, tear_down),
        cmocka_unit_test(test_passed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
