/* SPDX-License-Identifier: MIT
 *
 * A source for gguf that reads from memory, for tests: bytes up to `len`, then zeros up to the source's size (a hole). It asserts what readers promise, and can fail at the n-th read.
 */
#pragma once

#include <errno.h>
#include <gguf/gguf.h>
#include <string.h>

struct memory_source {
    const uint8_t *bytes;
    size_t len;
    struct gguf_source src;
    long reads, fail_at; /* fail_at: this read fails with -EIO; -1 none */
    uint64_t bytes_read;
};

static inline int memory_source_read(void *ctx, uint64_t off, void *buf, size_t len, struct err *err)
{
    struct memory_source *m = ctx;
    if (len > m->src.size || off > m->src.size - len)
        return err_set(err, -EFAULT, "read behind the end");
    if (m->reads++ == m->fail_at)
        return err_set(err, -EIO, "a read that fails");
    m->bytes_read += len;
    memset(buf, 0, len);
    if (off < m->len)
        memcpy(buf, m->bytes + off, len < m->len - off ? len : m->len - (size_t)off);
    return 0;
}

/* m must stay where it is while a reader uses it. */
static inline const struct gguf_source *memory_source_init(struct memory_source *m, const void *bytes, size_t len, uint64_t size)
{
    *m = (struct memory_source){.bytes = bytes, .len = len, .fail_at = -1};
    m->src = (struct gguf_source){.read = memory_source_read, .size = size, .ctx = m};
    return &m->src;
}
