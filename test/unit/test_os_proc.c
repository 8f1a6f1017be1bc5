/* SPDX-License-Identifier: MIT
 *
 * What /proc says: of this process, of others, of who listens.
 */
#include <os/os.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_boot_id(void **state)
{
    (void)state;
    char a[OS_BOOT_ID] = "", b[OS_BOOT_ID] = "";
    assert_int_equal(os_boot_id(a, NULL), 0);
    assert_int_equal(os_boot_id(b, NULL), 0);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), 36);
    assert_int_equal(a[8], '-');
}

static void test_start(void **state)
{
    (void)state;
    uint64_t before = 0, after = 0, first = 0;
    assert_int_equal(os_proc_start(getpid(), &before), 0);
    assert_true(before > 0);
    assert_int_equal(os_proc_start(1, &first), 0);
    assert_true(first <= before);
    /* A name made to look like other fields. */
    char name[16] = "";
    assert_int_equal(prctl(PR_GET_NAME, name), 0);
    assert_int_equal(prctl(PR_SET_NAME, "x) S 1 1 (y"), 0);
    assert_int_equal(os_proc_start(getpid(), &after), 0);
    assert_int_equal(prctl(PR_SET_NAME, name), 0);
    assert_true(after == before);
    assert_int_equal(os_proc_start(0, &after), -ESRCH);
    assert_int_equal(os_proc_start(-1, &after), -ESRCH);
    assert_int_equal(os_proc_start(0x7FFFFFFF, &after), -ESRCH);
    assert_true(after == before);
}

static void test_mem(void **state)
{
    (void)state;
    enum { MORE = 32 << 20 };
    struct os_mem before, after;
    assert_int_equal(os_proc_mem(getpid(), &before), 0);
    assert_true(before.rss_bytes >= before.rss_anon_bytes && before.rss_anon_bytes > 0);
    void *p = mmap(NULL, MORE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(os_proc_mem(getpid(), &after), 0);
    munmap(p, MORE);
    assert_true(after.rss_anon_bytes + after.swap_bytes >= before.rss_anon_bytes + MORE / 2);
    assert_int_equal(os_proc_mem(0x7FFFFFFF, &after), -ESRCH);
}

/* ---- ports --------------------------------------------------------------------------------------- */

/* A process that listens on a free port of family's loopback and ends when *ret_end is closed; its pid, or 0 when there is no such family here. */
static pid_t listen_in_child(int family, const char *name, uint16_t *ret_port, int *ret_end)
{
    int up[2], down[2];
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(down[1]);
        struct sockaddr_storage at = {.ss_family = (sa_family_t)family};
        struct sockaddr_in *in4 = (struct sockaddr_in *)&at;
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&at;
        socklen_t len = family == AF_INET ? sizeof(*in4) : sizeof(*in6);
        if (family == AF_INET)
            in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        else
            in6->sin6_addr = in6addr_loopback;
        int fd = socket(family, SOCK_STREAM, 0);
        uint16_t port = 0;
        prctl(PR_SET_NAME, name);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)&at, &len) == 0)
            port = ntohs(family == AF_INET ? in4->sin_port : in6->sin6_port);
        ssize_t n = write(up[1], &port, sizeof(port));
        char c;
        n += read(down[0], &c, 1);
        _exit(n > 0 ? 0 : 1);
    }
    assert_int_equal(read(up[0], ret_port, sizeof(*ret_port)), sizeof(*ret_port));
    close(up[0]);
    close(up[1]);
    close(down[0]);
    *ret_end = down[1];
    return pid;
}

static void end_child(pid_t pid, int end)
{
    close(end);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void check_owner(int family)
{
    uint16_t port;
    int end;
    struct os_owner owner = {.pid = 77};
    pid_t pid = listen_in_child(family, "my\033engine", &port, &end);
    if (port) {
        assert_int_equal(os_port_owner(port, &owner), 0);
        assert_int_equal(owner.pid, pid);
        assert_string_equal(owner.name, "my\\x1bengine");
    }
    end_child(pid, end);
    if (!port) {
        print_message("skipped: no loopback of this family\n");
        skip();
    }
    assert_int_equal(os_port_owner(port, &owner), -ENOENT);
    assert_int_equal(owner.pid, 0);
}

static void test_owner_ipv4(void **state)
{
    (void)state;
    check_owner(AF_INET);
}

static void test_owner_ipv6(void **state)
{
    (void)state;
    check_owner(AF_INET6);
}

/* Bound, but not listening: nobody is there for a client. */
static void test_owner_bound(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct os_owner owner;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(os_port_owner(ntohs(at.sin_port), &owner), -ENOENT);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(os_port_owner(ntohs(at.sin_port), &owner), 0);
    assert_int_equal(owner.pid, getpid());
    close(fd);
}

/* Another user's process: somebody listens, but who is not shown. */
static void test_owner_hidden(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    uint16_t port;
    int end;
    pid_t pid = listen_in_child(AF_INET, "engine", &port, &end);
    pid_t asker = fork();
    if (asker == 0) {
        struct os_owner owner = {.pid = 77};
        if (setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        int r = os_port_owner(port, &owner);
        _exit(r == 0 && owner.pid == 0 && strcmp(owner.name, "?") == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(asker, &status, 0), asker);
    end_child(pid, end);
    assert_int_equal(status, 0);
}

static void test_account(void **state)
{
    (void)state;
    uid_t uid = 0;
    gid_t gid = 0;
    struct err err = {0};
    if (os_engine_account(&uid, &gid, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_not_equal(uid, 0);
    assert_int_not_equal(gid, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_id),     cmocka_unit_test(test_start),       cmocka_unit_test(test_mem),
        cmocka_unit_test(test_owner_ipv4),  cmocka_unit_test(test_owner_ipv6),  cmocka_unit_test(test_owner_bound),
        cmocka_unit_test(test_owner_hidden), cmocka_unit_test(test_account),
    };
    return cmocka_run_group_tests_name("os processes", tests, NULL, NULL);
}
