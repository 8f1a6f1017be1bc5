/* SPDX-License-Identifier: MIT
 *
 * The first process of a namespace of processes. The kernel shields it from the signals of all others in there, leaves every orphan to it, and ends all when it ends: a program that is meant to run as
 * anywhere else runs as its child. It is a fork of ours that never becomes another program, so it keeps nothing open and calls nothing but the kernel.
 */
#include "os_int.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_LOST 127

/* Collects what has ended. True when the child is among it. */
static bool collect(pid_t child, int *told)
{
    bool over = false;
    int status;
    for (pid_t got; (got = waitpid(-1, &status, WNOHANG)) > 0 || (got < 0 && errno == EINTR);)
        if (got == child) {
            *told = status;
            over = true;
        }
    return over;
}

_Noreturn void os_be_init(pid_t child, int *told)
{
    sigset_t all;
    sigfillset(&all);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* our memory is nobody's to read in there */
    (void)close_range(0, ~0u, 0);
    while (!collect(child, told)) {
        int sig = sigwaitinfo(&all, NULL);
        if (sig > 0 && sig != SIGCHLD)
            (void)kill(child, sig);
    }
    _exit(WIFEXITED(*told) ? WEXITSTATUS(*told) : EXIT_LOST);
}
