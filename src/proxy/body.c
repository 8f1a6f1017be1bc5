/* SPDX-License-Identifier: MIT
 *
 * Bodies of requests, kept so that they can be sent again. A small one is in memory. A large one, or any when memory is used up, goes to a file without a name as it comes (file.c), and is mapped when it is whole: whoever
 * looks for something in a body gets a view of all of it, and what was looked at is given back, so that it costs memory only while somebody looks.
 *
 * Nobody else can change or shorten the file. A mapping whose page cannot be read would end the process: pages are asked for first (proxy_body_reach), which fails instead.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proxy_int.h"

#define GIVE_BACK ((size_t)1 << 20) /* of a mapping that is sent, what is behind is given back in pieces of this size */

void proxy_body_init(struct proxy_body *b, const struct fleet_bodies *limits)
{
    *b = (struct proxy_body){.mem = BUF_INIT((size_t)limits->max_bytes + 1)};
}

struct str proxy_body_text(const struct proxy_body *b)
{
    if (b->map)
        return (struct str){b->map, b->len};
    return b->file || !b->mem.len ? STR("") : buf_str(&b->mem); /* parts of it are views too, which an empty one at NULL cannot have */
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

/* Moves what came so far to a file. */
static int spill(struct proxy_request *r)
{
    struct proxy_body *b = &r->body;
    size_t len = b->mem.len;
    int rc = proxy_file_new(r, &b->mem, &b->file);
    if (rc < 0)
        return rc;
    b->len = len;
    r->proxy->spilled += len;
    metrics_add(metrics_get(r->proxy->metrics, PROXY_M_SPILLED, NULL), 1);
    return 0;
}

int proxy_body_add(struct proxy_request *r, struct str data, int64_t length)
{
    struct proxy *p = r->proxy;
    const struct fleet_bodies *limits = &r->config->bodies;
    struct proxy_body *b = &r->body;
    size_t have = b->file ? b->len : b->mem.len;
    if (data.len > limits->max_bytes || have > limits->max_bytes - data.len)
        return -EFBIG;
    /* Lanes that look at the same moment go over a limit by little. */
    bool memory = p->bodies + data.len <= limits->memory_bytes;
    bool large = have + data.len > limits->spill_bytes || (length > 0 && (uint64_t)length > limits->spill_bytes);
    if (!b->file && p->spill_dir >= 0 && (large || !memory)) {
        int rc = spill(r);
        if (rc < 0)
            return rc;
    }
    if (b->file) {
        if (p->spilled + data.len > limits->disk_bytes)
            return -EAGAIN;
        b->len += data.len;
        p->spilled += data.len;
        return proxy_file_add(b->file, data);
    }
    if (!memory)
        return -EAGAIN;
    buf_add_str(&b->mem, data);
    if (buf_status(&b->mem) < 0)
        return -ENOMEM;
    p->bodies += data.len;
    return 0;
}

bool proxy_body_full(const struct proxy_request *r)
{
    size_t waiting = r->body.file ? proxy_file_waiting(r->body.file) : 0;
    return waiting > PROXY_FILE_AHEAD || (waiting && r->proxy->bodies > r->config->bodies.memory_bytes);
}

int proxy_body_end(struct proxy_body *b)
{
    if (!b->file || !b->len)
        return 0;
    int rc = proxy_file_end(b->file);
    return rc < 0 ? rc : 1;
}

void proxy_body_map(struct proxy_body *b)
{
    b->map = b->file ? proxy_file_map(b->file) : NULL;
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

void proxy_body_forget(struct proxy *p, struct proxy_body *b)
{
    if (b->file)
        p->spilled -= b->len;
    else
        p->bodies -= b->mem.len;
    proxy_file_forget(b->file);
}

void proxy_body_release(struct proxy_body *b)
{
    b->map = NULL;
    b->file = proxy_file_drop(b->file);
    b->len = b->given = 0;
    buf_release(&b->mem);
}

void proxy_body_drop(struct proxy *p, struct proxy_body *b)
{
    proxy_body_forget(p, b);
    proxy_body_release(b);
}
