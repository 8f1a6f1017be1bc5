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

#define FIELD_LOCAL 1
#define FIELD_STATE 3
#define FIELD_INODE 9
#define SOCKETS_MAX 64 /* listeners of one port: SO_REUSEPORT and one per address */

struct inodes {
    uint64_t of[SOCKETS_MAX]; /* of listeners */
    size_t n;
    unsigned open, waiting;   /* sockets of the port in any state but TIME_WAIT, and in that */
};

static struct str next_word(struct str *s)
{
    *s = str_trim(*s);
    return str_split(s, ' ');
}

/* A line of /proc/net/tcp: "sl local:PORT remote:PORT st tx:rx tr:tm retrnsmt uid timeout inode ...". port is ":1F90". */
static void take_socket(struct str line, struct str port, struct inodes *found)
{
    struct str local = {0}, state = {0}, word = {0};
    uint64_t inode;
    for (unsigned i = 0; i <= FIELD_INODE; i++) {
        word = next_word(&line);
        if (i == FIELD_LOCAL)
            local = word;
        if (i == FIELD_STATE)
            state = word;
    }
    bool waiting = str_eq(state, STR("06"));
    found->waiting += str_ends(local, port) && waiting;
    found->open += str_ends(local, port) && !waiting;
    if (str_ends(local, port) && str_eq(state, STR("0A")) && str_to_u64(word, &inode) == 0 && found->n < SOCKETS_MAX)
        found->of[found->n++] = inode;
}

static int find_sockets(const char *path, uint16_t port, struct inodes *found)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? 0 : -errno; /* no IPv6 here */
    char *line = NULL, wanted[8];
    size_t size = 0;
    snprintf(wanted, sizeof(wanted), ":%04X", port);
    while (getline(&line, &size, f) > 0)
        take_socket(str_of(line), str_of(wanted), found);
    int r = ferror(f) ? -EIO : 0;
    free(line);
    (void)fclose(f);
    return r;
}

/* "socket:[12345]" of one of the sockets. */
static bool is_one_of(struct str link, const struct inodes *sockets)
{
    struct str prefix = STR("socket:[");
    uint64_t inode;
    if (!str_starts(link, prefix) || !str_ends(link, STR("]")))
        return false;
    if (str_to_u64((struct str){link.ptr + prefix.len, link.len - prefix.len - 1}, &inode) < 0)
        return false;
    for (size_t i = 0; i < sockets->n; i++)
        if (sockets->of[i] == inode)
            return true;
    return false;
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
        ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof(link));
        found = n > 0 && is_one_of((struct str){link, (size_t)n}, sockets);
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

int os_port_sockets(uint16_t port, unsigned *ret_open, unsigned *ret_waiting)
{
    struct inodes found = {.n = 0};
    int r = find_sockets("/proc/net/tcp", port, &found);
    if (r == 0)
        r = find_sockets("/proc/net/tcp6", port, &found);
    if (r == 0) {
        *ret_open = found.open;
        *ret_waiting = found.waiting;
    }
    return r;
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
