/* SPDX-License-Identifier: MIT
 *
 * Bodies of requests, kept so that they can be sent again. A small one is in memory. A large one, or any when memory is used up, goes to a file without a name as it comes, and is mapped when it is whole: whoever
 * looks for something in a body gets a view of all of it, and what was looked at is given back, so that it costs memory only while somebody looks.
 *
 * Nobody else can change or shorten the file. A mapping whose page cannot be read would end the process: pages are asked for first (proxy_body_reach), which fails instead.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <os/os.h>

#include "proxy_int.h"

#define GIVE_BACK ((size_t)1 << 20) /* of a mapping that is sent, what is behind is given back in pieces of this size */

void proxy_body_init(struct proxy_body *b, const struct fleet_bodies *limits)
{
    *b = (struct proxy_body){.mem = BUF_INIT((size_t)limits->max_bytes + 1), .fd = -1};
}

struct str proxy_body_text(const struct proxy_body *b)
{
    return b->filed ? (struct str){b->map, b->map ? b->len : 0} : buf_str(&b->mem);
}

int proxy_body_admit(struct proxy *p, const struct fleet_bodies *limits, int64_t length)
{
    uint64_t n = length > 0 ? (uint64_t)length : 0;
    if (n > limits->max_bytes)
        return -EFBIG;
    bool memory = p->bodies + n <= limits->memory_bytes && (n <= limits->spill_bytes || p->spill_dir < 0);
    bool disk = p->spill_dir >= 0 && p->spilled + n <= limits->disk_bytes;
    return memory || disk ? 0 : -EAGAIN;
}

/* A file that nobody else can open, and that is gone with its last descriptor and mapping. */
static int make_file(struct proxy *p)
{
    int fd = openat(p->spill_dir, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd < 0 ? -errno : fd;
    /* The file system has none without a name: it has one for a moment. */
    char name[64];
    snprintf(name, sizeof name, ".body-%ld-%llu", (long)getpid(), (unsigned long long)++p->spill_names);
    fd = openat(p->spill_dir, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    (void)unlinkat(p->spill_dir, name, 0);
    return fd;
}

static int append(struct proxy *p, struct proxy_body *b, struct str data)
{
    while (data.len) {
        ssize_t n = write(b->fd, data.ptr, data.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return errno == EDQUOT || errno == EFBIG || n == 0 ? -ENOSPC : -errno;
        data.ptr += n;
        data.len -= (size_t)n;
        b->len += (size_t)n;
        p->spilled += (size_t)n;
        metrics_add(metrics_get(p->metrics, PROXY_M_SPILLED_BYTES, NULL), (uint64_t)n);
    }
    return 0;
}

/* Moves what came so far to a file. */
static int spill(struct proxy *p, struct proxy_body *b)
{
    int fd = make_file(p);
    if (fd < 0)
        return fd;
    b->fd = fd;
    b->filed = true;
    b->len = 0;
    metrics_add(metrics_get(p->metrics, PROXY_M_SPILLED, NULL), 1);
    int rc = append(p, b, buf_str(&b->mem));
    p->bodies -= b->mem.len;
    buf_release(&b->mem);
    return rc;
}

int proxy_body_add(struct proxy *p, const struct fleet_bodies *limits, struct proxy_body *b, struct str data, int64_t length)
{
    size_t have = b->filed ? b->len : b->mem.len;
    if (data.len > limits->max_bytes || have > limits->max_bytes - data.len)
        return -EFBIG;
    /* Lanes that look at the same moment go over a limit by little. */
    bool memory = p->bodies + data.len <= limits->memory_bytes;
    bool large = have + data.len > limits->spill_bytes || (length > 0 && (uint64_t)length > limits->spill_bytes);
    if (!b->filed && p->spill_dir >= 0 && (large || !memory)) {
        int rc = spill(p, b);
        if (rc < 0)
            return rc;
    }
    if (b->filed) {
        if (p->spilled + data.len > limits->disk_bytes)
            return -EAGAIN;
        return append(p, b, data);
    }
    if (!memory)
        return -EAGAIN;
    buf_add_str(&b->mem, data);
    if (buf_status(&b->mem) < 0)
        return -ENOMEM;
    p->bodies += data.len;
    return 0;
}

int proxy_body_end(struct proxy_body *b)
{
    if (!b->filed || !b->len)
        return 0;
    void *map = mmap(NULL, b->len, PROT_READ, MAP_SHARED, b->fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    b->map = map;
    os_closep(&b->fd); /* the mapping keeps the file */
    return proxy_body_reach(b, proxy_body_text(b));
}

int proxy_body_reach(const struct proxy_body *b, struct str part)
{
    if (!b->map || !part.len || part.ptr < b->map || part.ptr >= b->map + b->len)
        return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), off = (size_t)(part.ptr - b->map) & ~(page - 1);
    size_t end = (size_t)(part.ptr - b->map) + part.len;
    /* EINVAL: a kernel before 5.14, where a page that cannot be read ends the process. */
    return madvise(b->map + off, end - off, MADV_POPULATE_READ) < 0 && errno != EINVAL ? -errno : 0;
}

static void give_back(struct proxy_body *b, size_t until)
{
    if (until <= b->given)
        return;
    base_ignore(madvise(b->map + b->given, until - b->given, MADV_DONTNEED)); /* it stays ours a little longer */
    b->given = until;
}

void proxy_body_sent(struct proxy_body *b, struct str part)
{
    if (b->map && part.ptr >= b->map && part.ptr < b->map + b->len)
        give_back(b, ((size_t)(part.ptr - b->map) + part.len) & ~(GIVE_BACK - 1));
}

void proxy_body_rest(struct proxy_body *b)
{
    if (!b->map)
        return;
    b->given = 0;
    give_back(b, b->len);
    b->given = 0;
}

void proxy_body_drop(struct proxy *p, struct proxy_body *b)
{
    if (b->filed)
        p->spilled -= b->len;
    else
        p->bodies -= b->mem.len;
    if (b->map)
        (void)munmap(b->map, b->len);
    os_closep(&b->fd);
    b->map = NULL;
    b->filed = false;
    b->len = b->given = 0;
    buf_release(&b->mem);
}
