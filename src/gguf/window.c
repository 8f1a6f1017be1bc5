/* SPDX-License-Identifier: MIT
 *
 * The window through which a header is walked. Bytes are copied by the source into one buffer that stays in the CPU's cache, so that a header of any length costs the same memory, and a file that is cut short meanwhile
 * is an error of a read and never a fault of a mapping.
 */
#include "reader_int.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int window_init(struct window *w, const struct gguf_source *src, size_t cap, uint64_t off, struct err *err)
{
    assert(off <= src->size);
    *w = (struct window){.src = src, .cap = cap, .start = off};
    w->buf = malloc(cap);
    return w->buf ? 0 : err_nomem(err);
}

void window_release(struct window *w)
{
    free(w->buf);
    w->buf = NULL;
}

static int ends(const struct window *w, const char *what, struct err *err)
{
    return err_set(err, -ENODATA, "the file ends at byte %" PRIu64 ", inside %s that begins at byte %" PRIu64 ": it is cut short; fetch it again", w->src->size, what, window_off(w));
}

int window_need(struct window *w, size_t n, const char *what, struct err *err)
{
    assert(n <= w->cap);
    if (n <= w->len - w->pos)
        return 0;
    if (n > window_left(w))
        return ends(w, what, err);
    size_t have = w->len - w->pos;
    if (have)
        memmove(w->buf, w->buf + w->pos, have);
    w->start += w->pos;
    w->pos = 0;
    w->len = have;
    uint64_t behind = w->src->size - w->start - have;
    size_t want = behind < w->cap - have ? (size_t)behind : w->cap - have;
    int r = w->src->read(w->src->ctx, w->start + have, w->buf + have, want, err);
    if (r < 0)
        return r;
    w->len += want;
    return 0;
}

int window_skip(struct window *w, uint64_t n, const char *what, struct err *err)
{
    if (n <= w->len - w->pos) {
        w->pos += (size_t)n;
        return 0;
    }
    if (n > window_left(w))
        return ends(w, what, err);
    w->start = window_off(w) + n;
    w->pos = w->len = 0;
    return 0;
}

/* The hot loop: nearly all bytes of a header are the strings of a vocabulary. Each length is compared with what is left of the window before it moves the pointer. Returns how many strings are left when the next one does not
 * lie wholly in the window. */
static uint64_t skip_inside(struct window *w, uint64_t count)
{
    const uint8_t *p = w->buf + w->pos;
    const uint8_t *end = w->buf + w->len;
    while (count && (size_t)(end - p) >= 8) {
        uint64_t n = le64(p);
        if (n > (size_t)(end - p) - 8)
            break;
        p += 8 + (size_t)n;
        count--;
    }
    w->pos = (size_t)(p - w->buf);
    return count;
}

int window_skip_strings(struct window *w, uint64_t count, struct err *err)
{
    while ((count = skip_inside(w, count)) > 0) {
        int r = window_need(w, 8, "an array of strings", err);
        if (r < 0)
            return r;
        uint64_t n = le64(window_at(w));
        if (n > GGUF_STRING_MAX)
            return err_set(err, -EBADMSG, "a string at byte %" PRIu64 " claims %" PRIu64 " bytes; none may have over %u: the file is damaged", window_off(w), n, GGUF_STRING_MAX);
        if (n + 8 <= w->cap && n + 8 <= window_left(w))
            r = window_need(w, (size_t)n + 8, "a string", err);
        else if ((r = window_skip(w, n + 8, "a string", err)) == 0)
            count--;
        if (r < 0)
            return r;
    }
    return 0;
}
