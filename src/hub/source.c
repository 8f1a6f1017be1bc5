/* SPDX-License-Identifier: MIT
 *
 * A remote file as a source for gguf. A header is read from front to back in small windows, so what is fetched grows while the reading goes on in order, and what was fetched is kept: readers come back to a vocabulary.
 */
#include "hub_int.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#define FIRST_BYTES ((uint64_t)512 << 10) /* the header of a file without a vocabulary */
#define MOST_BYTES ((uint64_t)8 << 20)
#define KEPT_MAX ((uint64_t)GGUF_MEMORY_MAX * 2)

struct chunk {
    struct chunk *next;
    uint64_t off;
    size_t len;
    char data[];
};

struct remote {
    struct hub *hub;
    char *url;
    char resolved[HUB_URL_MAX];
    struct chunk *chunks;
    uint64_t size, kept, ask, end; /* end: of what was fetched last */
};

static const struct chunk *find(const struct remote *s, uint64_t off)
{
    for (const struct chunk *c = s->chunks; c; c = c->next)
        if (off >= c->off && off - c->off < c->len)
            return c;
    return NULL;
}

static int fetch(struct remote *s, uint64_t off, uint64_t least, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(MOST_BYTES * 2);
    uint64_t total = 0;
    s->ask = off == s->end && s->ask < MOST_BYTES ? s->ask * 2 : s->ask;
    uint64_t n = least > s->ask ? least : s->ask;
    if (n > MOST_BYTES)
        n = MOST_BYTES;
    if (s->kept + n > KEPT_MAX)
        return err_set(err, -E2BIG, "the header is too large to be read from afar");
    int r = hub_get_part(s->hub, s->url, s->resolved, off, off + n - 1, &b, &total, err);
    if (r < 0)
        return r;
    if (s->size == HUB_UNKNOWN)
        s->size = total;
    if (total != s->size || b.len != (n < total - off ? n : total - off))
        return err_set(err, -ESTALE, "the file changed on the server while it was read");
    struct chunk *c = malloc(sizeof *c + b.len);
    if (!c)
        return err_nomem(err);
    c->next = s->chunks;
    c->off = off;
    c->len = b.len;
    memcpy(c->data, b.ptr, b.len);
    s->chunks = c;
    s->kept += b.len;
    s->end = off + b.len;
    return 0;
}

static int read_remote(void *ctx, uint64_t off, void *buf, size_t len, struct err *err)
{
    struct remote *s = ctx;
    char *to = buf;
    while (len) {
        const struct chunk *c = find(s, off);
        if (!c) {
            int r = fetch(s, off, len, err);
            if (r < 0)
                return r;
            continue;
        }
        size_t n = c->len - (size_t)(off - c->off);
        if (n > len)
            n = len;
        memcpy(to, c->data + (off - c->off), n);
        to += n;
        off += n;
        len -= n;
    }
    return 0;
}

int hub_source_open(struct hub *h, const char *url, struct gguf_source *ret, struct err *err)
{
    struct remote *s = calloc(1, sizeof *s);
    if (!s || !(s->url = str_dup(str_of(url)))) {
        free(s);
        return err_nomem(err);
    }
    s->hub = h;
    s->size = HUB_UNKNOWN;
    s->ask = FIRST_BYTES / 2;
    struct gguf_source src = {.read = read_remote, .ctx = s};
    int r = fetch(s, 0, FIRST_BYTES, err);
    if (r < 0) {
        hub_source_close(&src);
        return r;
    }
    src.size = s->size;
    *ret = src;
    return 0;
}

void hub_source_close(struct gguf_source *src)
{
    struct remote *s = src->ctx;
    *src = (struct gguf_source){.size = 0};
    if (!s)
        return;
    for (struct chunk *c = s->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(s->url);
    free(s);
}
