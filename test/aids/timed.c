/* SPDX-License-Identifier: MIT
 *
 * Times whole processes, for benchmarks: from fork to the end, output thrown away.
 *
 *   timed RUNS COMMAND...    prints "LEAST_US MEDIAN_US RSS_KB ANON_KB EXIT"
 *
 * RSS is the largest of the last run as the kernel keeps it; anonymous memory is read from /proc when one more run, traced, is about to end.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUNS_MAX 1000

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static pid_t start(char **argv, int traced)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
        _exit(127);
    if (traced && ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
        _exit(127);
    execvp(argv[0], argv);
    _exit(127);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* RssAnon in KiB, 0 when it cannot be read. */
static unsigned long anon_kb(pid_t pid)
{
    char path[64], line[256];
    unsigned long kb = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %lu", &kb) == 1)
            break;
    if (f)
        (void)fclose(f);
    return kb;
}

/* Runs once under ptrace and looks when it is about to end. */
static unsigned long traced_anon_kb(char **argv)
{
    int status;
    unsigned long kb = 0;
    pid_t pid = start(argv, 1);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
        return 0;
    ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(uintptr_t)(PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL));
    for (int sig = 0; ptrace(PTRACE_CONT, pid, NULL, (void *)(uintptr_t)sig) == 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status);) {
        int event = status >> 8;
        if (event == (SIGTRAP | (PTRACE_EVENT_EXIT << 8)))
            kb = anon_kb(pid);
        sig = event > 0xff ? 0 : WSTOPSIG(status);
    }
    return kb;
}

int main(int argc, char **argv)
{
    static double us[RUNS_MAX];
    char *end = NULL;
    unsigned long runs = argc > 2 ? strtoul(argv[1], &end, 10) : 0;
    if (!runs || runs > RUNS_MAX || *end) {
        fprintf(stderr, "timed: needs a number of runs up to %d and a command\n", RUNS_MAX);
        return 2;
    }
    struct rusage usage = {0};
    int status = 0;
    for (unsigned long i = 0; i < runs; i++) {
        double t = now_us();
        pid_t pid = start(argv + 2, 0);
        if (pid < 0 || wait4(pid, &status, 0, &usage) != pid)
            return 1;
        us[i] = now_us() - t;
    }
    qsort(us, runs, sizeof(us[0]), by_value);
    printf("%.0f %.0f %ld %lu %d\n", us[0], us[runs / 2], usage.ru_maxrss, traced_anon_kb(argv + 2), WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return 0;
}
