/* SPDX-License-Identifier: MIT
 *
 * Who listens on a TCP port: the kernel's socket tables give the inode of the listening socket, the descriptors of all
 * processes tell whose it is. Descriptors of other users are hidden from a user who is not root, so the owner may stay unknown.
 */
#include "os_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define STATE_LISTEN 0x0A
#define SOCKETS_MAX 64 /* listeners of one port: SO_REUSEPORT and one per address */

struct inodes {
    uint64_t of[SOCKETS_MAX];
    size_t n;
};

/* A line of /proc/net/tcp: "sl local:PORT remote:PORT st tx:rx tr:tm retrnsmt uid timeout inode ...", numbers in hex but uid and inode. */
static void take_socket(const char *line, uint16_t port, struct inodes *found)
{
    unsigned local, state;
    unsigned long long inode;
    if (sscanf(line, " %*[^:]: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %llu", &local, &state, &inode) != 3)
        return;
    if (local == port && state == STATE_LISTEN && found->n < SOCKETS_MAX)
        found->of[found->n++] = inode;
}

static int find_sockets(const char *path, uint16_t port, struct inodes *found)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : -errno; /* no IPv6 here */
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, f) > 0)
        take_socket(line, port, found);
    int r = ferror(f) ? -EIO : 0;
    free(line);
    (void)fclose(f);
    return r;
}

/* Is one of the descriptors in this directory one of the sockets? */
static bool holds(int proc, const char *pid, const struct inodes *sockets)
{
    char path[64];
    snprintf(path, sizeof(path), "%.20s/fd", pid);
    int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        os_closep(&fd);
        return false;
    }
    bool found = false;
    const struct dirent *e;
    while (!found && (e = readdir(dir))) {
        char link[64];
        ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);
        unsigned long long inode;
        if (n <= 0)
            continue;
        link[n] = '\0';
        if (sscanf(link, "socket:[%llu]", &inode) != 1)
            continue;
        for (size_t i = 0; i < sockets->n && !found; i++)
            found = sockets->of[i] == inode;
    }
    closedir(dir);
    return found;
}

static void read_name(int proc, const char *pid, char name[64])
{
    char path[64];
    base_autobuf struct buf text = BUF_INIT(64), shown = BUF_INIT(256);
    snprintf(path, sizeof(path), "%.20s/comm", pid);
    if (os_read_file(proc, path, &text, NULL) < 0)
        return;
    buf_add_printable(&shown, str_trim(buf_str(&text)), 60);
    if (buf_status(&shown) == 0 && shown.len > 0 && shown.len < 64)
        memcpy(name, shown.ptr, shown.len + 1);
}

int os_port_owner(uint16_t port, struct os_owner *ret)
{
    struct inodes sockets = {.n = 0};
    int r = find_sockets("/proc/net/tcp", port, &sockets);
    if (r == 0)
        r = find_sockets("/proc/net/tcp6", port, &sockets);
    if (r < 0)
        return r;
    if (sockets.n == 0) {
        *ret = (struct os_owner){.pid = 0};
        return -ENOENT;
    }
    struct os_owner owner = {.pid = 0, .name = "?"};
    DIR *proc = opendir("/proc");
    const struct dirent *e;
    while (proc && owner.pid == 0 && (e = readdir(proc))) {
        uint64_t pid;
        if (str_to_u64(str_of(e->d_name), &pid) < 0 || !holds(dirfd(proc), e->d_name, &sockets))
            continue;
        owner.pid = (pid_t)pid;
        read_name(dirfd(proc), e->d_name, owner.name);
    }
    if (proc)
        closedir(proc);
    *ret = owner;
    return 0;
}
