/* SPDX-License-Identifier: MIT
 *
 * Signals during work that leaves something half-made. They are kept until the work has been broken off and cleared away, and then sent again, so that a program ends of
 * them as it would have done, only tidily. An eventfd wakes whoever waits, so that no signal is lost between a look and a wait.
 */
#include "os_int.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const int kept[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

/* A signal has one set of handlers for the whole process, and so has this. */
static struct {
    unsigned depth;
    struct sigaction before[BASE_COUNT(kept)];
    int wake; /* -1 before the first use */
} state = {.wake = -1};
static volatile sig_atomic_t came;
static volatile sig_atomic_t wake_fd = -1;

static void on_signal(int sig)
{
    const uint64_t one = 1;
    int before = errno;
    came = sig;
    ssize_t ignored = wake_fd >= 0 ? write(wake_fd, &one, sizeof one) : 0;
    (void)ignored;
    errno = before;
}

void os_interrupt_begin(void)
{
    if (state.depth++ > 0)
        return;
    came = 0;
    if (state.wake < 0)
        wake_fd = state.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&a.sa_mask);
    for (size_t i = 0; i < BASE_COUNT(kept); i++) {
        (void)sigaction(kept[i], NULL, &state.before[i]);
        if (state.before[i].sa_handler != SIG_IGN)
            (void)sigaction(kept[i], &a, NULL);
    }
}

void os_interrupt_end(void)
{
    uint64_t count;
    if (--state.depth > 0)
        return;
    for (size_t i = 0; i < BASE_COUNT(kept); i++)
        (void)sigaction(kept[i], &state.before[i], NULL);
    ssize_t ignored = state.wake >= 0 ? read(state.wake, &count, sizeof count) : 0;
    (void)ignored;
    if (came)
        (void)raise(came);
}

bool os_interrupted(void)
{
    return state.depth > 0 && came;
}

int os_interrupt_fd(void)
{
    return state.depth > 0 ? state.wake : -1;
}
