/* SPDX-License-Identifier: MIT
 *
 * The engine's allocator of compute buffers, as far as its high-water mark goes: blocks of 32 bytes, the smallest hole that fits (the later one of two alike), else the end. A compute buffer is as large as this
 * allocator's highest address after it went through the graph once, holes included, so a sum of what lives at one time would come out too small.
 */
#include "fit_int.h"

#define ALIGN 32

void fit_heap_init(struct fit_heap *h)
{
    h->n = 1;
    h->holes[0] = (struct fit_block){0, FIT_BYTES_MAX};
    h->peak = 0;
}

static void drop(struct fit_heap *h, size_t i)
{
    h->n--;
    memmove(&h->holes[i], &h->holes[i + 1], (h->n - i) * sizeof(h->holes[0]));
}

struct fit_block fit_heap_take(struct fit_heap *h, uint64_t bytes)
{
    bytes = fit_pad(bytes, ALIGN);
    size_t best = h->n - 1; /* the end */
    uint64_t size = UINT64_MAX;
    for (size_t i = 0; i + 1 < h->n; i++)
        if (h->holes[i].size >= bytes && h->holes[i].size <= size) {
            best = i;
            size = h->holes[i].size;
        }
    struct fit_block *hole = &h->holes[best];
    struct fit_block b = {hole->off, bytes < hole->size ? bytes : hole->size};
    hole->off += b.size;
    hole->size -= b.size;
    if (b.off + b.size > h->peak)
        h->peak = b.off + b.size;
    if (hole->size == 0 && best + 1 < h->n)
        drop(h, best);
    return b;
}

void fit_heap_give(struct fit_heap *h, struct fit_block b)
{
    if (b.size == 0)
        return;
    size_t i = 0;
    while (i + 1 < h->n && h->holes[i].off < b.off)
        i++;
    /* holes[i] is the first behind b; the end is always there */
    bool joins_next = b.off + b.size == h->holes[i].off;
    bool joins_last = i > 0 && h->holes[i - 1].off + h->holes[i - 1].size == b.off;
    if (joins_next) {
        h->holes[i].off = b.off;
        h->holes[i].size += b.size;
        if (joins_last) {
            h->holes[i].off = h->holes[i - 1].off;
            h->holes[i].size += h->holes[i - 1].size;
            drop(h, i - 1);
        }
    } else if (joins_last) {
        h->holes[i - 1].size += b.size;
    } else if (h->n < FIT_HOLES) {
        memmove(&h->holes[i + 1], &h->holes[i], (h->n - i) * sizeof(h->holes[0]));
        h->holes[i] = b;
        h->n++;
    } /* no room to remember it: the space is lost, which errs on the safe side */
}
