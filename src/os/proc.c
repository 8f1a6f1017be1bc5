/* SPDX-License-Identifier: MIT
 *
 * What /proc says of a process: when it started, whose child it is, how much memory it holds. And the account that engines run as.
 */
#include "os_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#define PROC_FILE_MAX 16384 /* stat and status are about a thousand bytes */

int os_boot_id(char ret[OS_BOOT_ID], struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(256);
    int r = os_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", &text, err);
    if (r < 0)
        return r;
    struct str id = str_trim(buf_str(&text));
    if (id.len == 0 || id.len >= OS_BOOT_ID)
        return err_set(err, -EINVAL, "'/proc/sys/kernel/random/boot_id' holds no boot id");
    memcpy(ret, id.ptr, id.len);
    ret[id.len] = '\0';
    return 0;
}

/* /proc/PID/file. -ESRCH when there is no such process. */
static int read_proc(pid_t pid, const char *file, struct buf *out)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    int r = pid <= 0 ? -ESRCH : os_read_file(AT_FDCWD, path, out, NULL);
    return r == -ENOENT ? -ESRCH : r;
}

/* Field number `wanted` of /proc/PID/stat, one of those behind the name. */
static int stat_field(pid_t pid, int wanted, uint64_t *ret)
{
    base_autobuf struct buf text = BUF_INIT(PROC_FILE_MAX);
    int r = read_proc(pid, "stat", &text);
    if (r < 0)
        return r;
    /* The name, in parentheses, may hold spaces and parentheses itself: fields are counted from the last one. */
    const char *end = text.ptr ? strrchr(text.ptr, ')') : NULL;
    struct str rest = end ? str_of(end) : (struct str){0};
    for (int field = 2; rest.ptr; field++) {
        struct str value = str_split(&rest, ' ');
        if (field == wanted)
            return str_to_u64(value, ret);
    }
    return -EINVAL;
}

int os_proc_start(pid_t pid, uint64_t *ret_ticks)
{
    return stat_field(pid, 22, ret_ticks);
}

pid_t os_proc_child(pid_t parent)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    pid_t found = 0;
    while (proc && found == 0 && (e = readdir(proc))) {
        uint64_t pid, its_parent;
        if (str_to_u64(str_of(e->d_name), &pid) < 0 || pid > INT32_MAX)
            continue;
        if (stat_field((pid_t)pid, 4, &its_parent) == 0 && its_parent == (uint64_t)parent)
            found = (pid_t)pid;
    }
    if (proc)
        (void)closedir(proc);
    return found;
}

/* "VmRSS:     1234 kB": bytes, when the line is that field. */
static void take_field(struct str line, const char *name, uint64_t *ret)
{
    uint64_t kib, bytes;
    struct str label = str_split(&line, ':');
    if (!str_eq_c(label, name) || !str_ends(line, STR(" kB")))
        return;
    line.len -= 3;
    if (str_to_u64(str_trim(line), &kib) == 0 && size_mul(kib, 1024, &bytes))
        *ret = bytes;
}

int os_proc_mem(pid_t pid, struct os_mem *ret)
{
    base_autobuf struct buf text = BUF_INIT(PROC_FILE_MAX);
    int r = read_proc(pid, "status", &text);
    if (r < 0)
        return r;
    struct os_mem mem = {0};
    struct str rest = buf_str(&text);
    while (rest.ptr) {
        struct str line = str_split(&rest, '\n');
        take_field(line, "VmRSS", &mem.rss_bytes);
        take_field(line, "RssAnon", &mem.rss_anon_bytes);
        take_field(line, "VmSwap", &mem.swap_bytes);
    }
    *ret = mem;
    return 0;
}

int os_engine_account(uid_t *ret_uid, gid_t *ret_gid, struct err *err)
{
    static const char *const names[] = {"_berth", "nobody"};
    char room[OS_ACCOUNT_ROOM];
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        struct passwd entry, *found = NULL;
        if (getpwnam_r(names[i], &entry, room, sizeof(room), &found) != 0 || !found)
            continue;
        if (found->pw_uid == 0)
            return err_set(err, -EPERM, "account '%s' has user id 0; engines do not run as root", names[i]);
        *ret_uid = found->pw_uid;
        *ret_gid = found->pw_gid;
        return 0;
    }
    return err_set(err, -ENOENT, "no account for engines: neither '_berth' nor 'nobody' exists; add one");
}
