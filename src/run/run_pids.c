/* SPDX-License-Identifier: MIT
 *
 * The record of a fleet's processes, for the berth that comes after one that was killed. The parent-death signal ends
 * them almost always; this is for what it missed (another process forked by the engine's account, a kernel that lost it). A text of
 * lines: "boot ID", then "PID START SERVICE" for each; a process is only ever killed when pid, start time and boot id all agree.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "run_int.h"

#define RECORD_MAX (256u << 10) /* two processes for each of FLEET_SERVICES_MAX services */
#define GONE_MS 5000            /* a killed engine may have gigabytes to give back */

static void add_process(struct buf *b, pid_t pid, const char *service)
{
    uint64_t start;
    if (pid > 0 && os_proc_start(pid, &start) == 0)
        buf_addf(b, "%d %llu %s\n", (int)pid, (unsigned long long)start, service);
}

int run_pids_write(const char *path, struct run_service *const *services, size_t n, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(RECORD_MAX);
    char boot[OS_BOOT_ID];
    int rc = os_boot_id(boot, err);
    if (rc < 0)
        return rc;
    buf_addf(&b, "boot %s\n", boot);
    for (size_t i = 0; i < n; i++) {
        const struct run_service *s = services[i];
        add_process(&b, s->proc.pid, s->service->name);
        if (s->engine.pid != s->proc.pid)
            add_process(&b, s->engine.pid, s->service->name);
    }
    rc = buf_status(&b);
    if (rc < 0)
        return err_set(err, rc, "cannot make the record of processes");
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return err_set(err, -EINVAL, "record path '%s' is not absolute", path);
    base_autofree char *dir = str_dup((struct str){path, (size_t)(slash - path)});
    if (!dir)
        return err_nomem(err);
    os_autoclose int dirfd = os_open_dir(dir, err);
    if (dirfd < 0)
        return dirfd;
    return os_write_atomic(dirfd, slash + 1, b.ptr, b.len, 0600, err);
}

/* "PID START SERVICE" */
static bool parse_line(struct str line, pid_t *ret_pid, uint64_t *ret_start, struct str *ret_service)
{
    uint64_t pid, start;
    struct str a = str_split(&line, ' ');
    struct str b = str_split(&line, ' ');
    if (str_to_u64(a, &pid) < 0 || pid < 2 || pid > INT32_MAX || str_to_u64(b, &start) < 0 || line.len == 0)
        return false;
    *ret_pid = (pid_t)pid;
    *ret_start = start;
    *ret_service = line;
    return true;
}

/* True when it was that process and is killed. */
static bool kill_one(pid_t pid, uint64_t start)
{
    os_autoclose int pidfd = os_pidfd_open(pid);
    uint64_t is;
    /* The descriptor first: from then on the number cannot become somebody else's between look and signal. */
    if (pidfd < 0 || os_proc_start(pid, &is) < 0 || is != start)
        return false;
    struct os_proc p = {.pid = pid, .pidfd = pidfd};
    if (os_proc_signal(&p, SIGKILL) < 0)
        return false;
    struct pollfd f = {.fd = pidfd, .events = POLLIN};
    (void)poll(&f, 1, GONE_MS);
    return true;
}

static bool record_valid(struct str text, const char *boot, bool *ret_this_boot)
{
    struct str line = str_split(&text, '\n');
    if (!str_starts(line, STR("boot ")))
        return false;
    line.ptr += 5;
    line.len -= 5;
    *ret_this_boot = str_eq_c(line, boot);
    while (text.len > 0) {
        pid_t pid;
        uint64_t start;
        struct str service;
        if (!parse_line(str_split(&text, '\n'), &pid, &start, &service))
            return false;
    }
    return true;
}

/* How many services had a process: an engine and the bubblewrap around it, in lines one after the other, are one. */
static size_t kill_all(struct str text)
{
    struct str counted = {0};
    size_t n = 0;
    while (text.len > 0) {
        pid_t pid;
        uint64_t start;
        struct str service;
        if (!parse_line(str_split(&text, '\n'), &pid, &start, &service) || !kill_one(pid, start))
            continue;
        if (!str_eq(service, counted))
            n++;
        counted = service;
    }
    return n;
}

int run_pids_recover(const char *path, size_t *ret_n, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(RECORD_MAX);
    char boot[OS_BOOT_ID];
    size_t n = 0;
    int rc = os_boot_id(boot, err);
    if (rc < 0)
        return rc;
    rc = os_read_file(AT_FDCWD, path, &b, err);
    if (rc == -ENOENT) {
        *ret_n = 0;
        return 0;
    }
    if (rc < 0 && rc != -EFBIG)
        return rc;
    struct str text = buf_str(&b);
    bool this_boot = false;
    if (rc == 0 && record_valid(text, boot, &this_boot) && this_boot) {
        (void)str_split(&text, '\n');
        n = kill_all(text);
    }
    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(err, -errno, "cannot remove '%s'", path);
    *ret_n = n;
    return 0;
}
