/* SPDX-License-Identifier: MIT
 *
 * Going into the background. It happens before anything else is forked, so that every child is the child of the process
 * that stays, and its parent-death signal holds. One fork and a session of its own are enough: no terminal is ever opened. The parent stays
 * until the child has said in one byte how the start ended; meanwhile the child writes its progress to the terminal that it has inherited.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "up_int.h"

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int sig)
{
    (void)sig;
    asked_to_stop = 1;
}

/* The child's word; a signal to us is a signal to it. */
static int wait_for(pid_t child, int fd)
{
    /* Without SA_RESTART: read must come back. */
    struct sigaction a = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &a, NULL);
    (void)sigaction(SIGTERM, &a, NULL);
    unsigned char code = 0;
    ssize_t n;
    while ((n = read(fd, &code, 1)) < 0 && errno == EINTR) {
        if (asked_to_stop)
            (void)kill(child, SIGTERM); /* not collected: the number is its own */
        asked_to_stop = 0;
    }
    if (n == 1)
        return code;
    int status = 0;
    char how[OS_STATUS_TEXT];
    if (waitpid(child, &status, 0) == child)
        fprintf(stderr, "berth up: the start was broken off (%s)\n", os_status_text(status, how));
    return 1;
}

bool up_daemonize(struct up *u, int *ret_exit)
{
    int ends[2];
    *ret_exit = 1;
    if (fflush(NULL) != 0 || pipe2(ends, O_CLOEXEC) < 0) {
        fprintf(stderr, "berth up: cannot go into the background: %s\n", strerror(errno));
        return false;
    }
    pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "berth up: cannot go into the background: %s\n", strerror(errno));
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    if (child > 0) {
        close(ends[1]);
        *ret_exit = wait_for(child, ends[0]);
        close(ends[0]);
        return false;
    }
    (void)setsid();
    /* Whatever else the caller had open would stay open as long as the fleet is up. */
    if (ends[1] > 3)
        (void)close_range(3, (unsigned)ends[1] - 1, 0);
    (void)close_range((unsigned)ends[1] + 1, ~0u, 0);
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd >= 0) {
        (void)dup2(null_fd, STDIN_FILENO);
        close(null_fd);
    }
    u->ready_fd = ends[1];
    return true;
}

void up_daemon_tell(struct up *u, int exit_code)
{
    unsigned char code = (unsigned char)exit_code;
    if (u->ready_fd < 0)
        return;
    /* A parent that is gone does not mind. */
    base_ignore(os_write_all(u->ready_fd, &code, 1, NULL));
    os_closep(&u->ready_fd);
}

void up_daemon_detach(struct up *u)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    buf_addf(&path, "%s/berth.log", u->paths.logs);
    int fd = -1;
    if (buf_status(&path) == 0)
        fd = open(path.ptr, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fflush(NULL);
    (void)dup2(fd, STDOUT_FILENO);
    (void)dup2(fd, STDERR_FILENO);
    close(fd);
    u->detached = true;
}
