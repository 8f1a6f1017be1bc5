/* SPDX-License-Identifier: MIT
 *
 * The file of a large body. What comes is gathered in memory while another thread writes what came before, so that a slow disk holds up nobody but the client whose body it is: that one is not read while more waits than
 * PROXY_FILE_AHEAD. At the end of the body the file is mapped. The file is made, and let go of, on that thread as well: the pages of one that nobody has any more are waited for too.
 *
 * One job at a time. While it runs, what is below `job` belongs to its thread; who drops a file then leaves it to the job's end, and a job that has not begun is not done any more.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <os/os.h>

#include "proxy_int.h"

struct proxy_file {
    struct net_loop *loop;
    struct proxy_request *request; /* is told; NULL: dropped */
    struct net_work *work;         /* the job under way; NULL */
    struct buf wait;               /* what the next one writes */
    bool whole;                    /* nothing comes after that */
    /* job */
    struct buf flight;
    bool last;                     /* flight is the end: it is mapped */
    int dir, fd, rc;               /* dir: where the file will be, until there is one */
    size_t written;
    char *map;
};

/* ---- on the other thread ------------------------------------------------------------------------------------- */

/* A file that nobody else can open, and that is gone with its last descriptor and mapping. */
static int make_file(int dir)
{
    static atomic_uint_least64_t names;
    int fd = openat(dir, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
        return fd < 0 ? -errno : fd;
    /* The file system has none without a name: it has one for a moment. */
    char name[64];
    snprintf(name, sizeof name, ".body-%ld-%llu", (long)getpid(), (unsigned long long)++names);
    fd = openat(dir, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    (void)unlinkat(dir, name, 0);
    return fd;
}

/* What is asked for in a removed folder fails with ENOENT, or on ext4 with EPERM. */
static bool is_removed(int dir)
{
    struct stat st;
    return fstat(dir, &st) == 0 && st.st_nlink == 0;
}

/* The folder was removed: one in its place. Whoever owns the router makes one again where this account may not. */
static int make_file_again(int dir)
{
    os_autoclose int above = openat(dir, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (above < 0)
        return -errno;
    (void)mkdirat(above, PROXY_BODIES, 0700);
    os_autoclose int other = openat(above, PROXY_BODIES, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return other < 0 ? -errno : make_file(other);
}

static int write_all(int fd, struct str data, size_t at)
{
    while (data.len) {
        ssize_t n = pwrite(fd, data.ptr, data.len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return errno == EDQUOT || errno == EFBIG || n == 0 ? -ENOSPC : -errno;
        data.ptr += n;
        data.len -= (size_t)n;
        at += (size_t)n;
    }
    return 0;
}

static void write_job(void *ctx)
{
    struct proxy_file *f = ctx;
    if (f->fd < 0) {
        f->fd = make_file(f->dir);
        if (f->fd < 0 && is_removed(f->dir))
            f->fd = make_file_again(f->dir);
        os_closep(&f->dir);
    }
    f->rc = f->fd < 0 ? f->fd : write_all(f->fd, buf_str(&f->flight), f->written);
    if (f->rc < 0)
        return;
    f->written += f->flight.len;
    if (!f->last)
        return;
    void *map = mmap(NULL, f->written, PROT_READ, MAP_SHARED, f->fd, 0);
    f->rc = map == MAP_FAILED ? -errno : 0;
    f->map = map == MAP_FAILED ? NULL : map;
    os_closep(&f->fd); /* the mapping keeps the file */
}

static void let_go_job(void *ctx)
{
    struct proxy_file *f = ctx;
    if (f->map)
        (void)munmap(f->map, f->written);
    os_closep(&f->fd);
    os_closep(&f->dir);
}

/* ---- on the loop --------------------------------------------------------------------------------------------- */

static void gone(void *ctx)
{
    struct proxy_file *f = ctx;
    buf_release(&f->flight);
    free(f);
}

static void let_go(struct proxy_file *f)
{
    if (net_work_new(f->loop, let_go_job, gone, f, &f->work) == 0)
        return;
    let_go_job(f);
    gone(f);
}

static void written(void *ctx);

/* Starts the next job, if there is something to do. */
static int go_on(struct proxy_file *f)
{
    if (f->work || (!f->wait.len && !f->whole))
        return 0;
    struct buf next = f->wait;
    f->wait = f->flight; /* empty: the two take turns */
    f->flight = next;
    f->last = f->whole;
    return net_work_new(f->loop, write_job, written, f, &f->work);
}

static void written(void *ctx)
{
    struct proxy_file *f = ctx;
    struct proxy_request *r = f->request;
    size_t len = f->flight.len;
    f->work = NULL;
    if (!r || f->last || f->flight.cap > (size_t)4 * PROXY_FILE_AHEAD)
        buf_release(&f->flight);
    buf_clear(&f->flight);
    if (!r) {
        let_go(f);
        return;
    }
    struct proxy *p = r->proxy;
    bool whole = f->map;
    int rc = f->rc;
    p->bodies -= len;
    if (rc == 0)
        metrics_add(metrics_get(p->metrics, PROXY_M_SPILLED_BYTES, NULL), len);
    if (rc == 0 && !whole)
        rc = go_on(f);
    proxy_request_kept(r, rc, whole); /* the file may be gone when it returns */
}

int proxy_file_new(struct proxy_request *r, struct buf *front, struct proxy_file **ret)
{
    struct proxy_file *f = calloc(1, sizeof *f);
    if (!f)
        return -ENOMEM;
    *f = (struct proxy_file){.loop = r->lane->loop, .request = r, .wait = *front, .flight = BUF_INIT(front->max), .fd = -1};
    f->dir = fcntl(r->proxy->spill_dir, F_DUPFD_CLOEXEC, 0); /* a router that is freed closes its own */
    if (f->dir < 0) {
        int rc = -errno;
        free(f);
        return rc;
    }
    *front = (struct buf)BUF_INIT(front->max);
    *ret = f;
    return 0;
}

int proxy_file_add(struct proxy_file *f, struct str data)
{
    buf_add_str(&f->wait, data);
    if (buf_status(&f->wait) < 0)
        return -ENOMEM;
    f->request->proxy->bodies += data.len;
    return go_on(f);
}

int proxy_file_end(struct proxy_file *f)
{
    f->whole = true;
    return go_on(f);
}

size_t proxy_file_waiting(const struct proxy_file *f)
{
    return f->wait.len;
}

char *proxy_file_map(const struct proxy_file *f)
{
    return f->work ? NULL : f->map;
}

void proxy_file_forget(struct proxy_file *f)
{
    if (!f || !f->request)
        return;
    f->request->proxy->bodies -= f->flight.len + f->wait.len;
    f->request = NULL;
}

struct proxy_file *proxy_file_drop(struct proxy_file *f)
{
    if (!f)
        return NULL;
    proxy_file_forget(f);
    buf_release(&f->wait);
    if (f->work)
        net_work_cancel(f->work);
    else
        let_go(f);
    return NULL;
}
