/* SPDX-License-Identifier: MIT
 *
 * A repair: segments that a manifest has found damaged are fetched again. The manifest proves each by itself, so one right copy is enough, and nothing reaches the file before it is proven.
 */
#include "fetch_int.h"

#include <errno.h>
#include <inttypes.h>

void repair_want(struct hub_way *w, size_t segment)
{
    w->tries_left[segment] = REPAIR_TRIES;
}

bool repair_wanted(const struct hub_way *w)
{
    for (size_t i = 0; i < w->n_segments; i++)
        if (w->tries_left[i])
            return true;
    return false;
}

bool repair_lease(struct hub_way *w, struct hub_lane *l)
{
    size_t i = l->copy_got ? l->copy_segment : 0; /* what broke off goes on */
    if (!l->copy_got || !w->tries_left[i] || w->leased[i]) {
        l->copy_got = 0;
        for (i = 0; i < w->n_segments && (!w->tries_left[i] || w->leased[i]);)
            i++;
    }
    if (i == w->n_segments)
        return false;
    l->copy_segment = l->first = l->last = i;
    l->pos = (uint64_t)i * STORE_SEGMENT_BYTES + l->copy_got;
    l->end = (uint64_t)i * STORE_SEGMENT_BYTES + way_segment_bytes(w, i);
    w->leased[i] = 1;
    return true;
}

bool repair_proves(const struct store_manifest *m, size_t segment, const uint8_t *data)
{
    uint64_t from = (uint64_t)segment * STORE_SEGMENT_BYTES, n = m->bytes - from < STORE_SEGMENT_BYTES ? m->bytes - from : STORE_SEGMENT_BYTES;
    struct os_sha256 h;
    uint8_t end[OS_SHA256_BYTES];
    os_sha256_init(&h);
    if (segment)
        os_sha256_resume(&h, m->states[segment - 1], from);
    os_sha256_update(&h, data, (size_t)n);
    if (segment < m->n_states)
        os_sha256_state(&h, end);
    else
        os_sha256_final(&h, end);
    return memcmp(end, segment < m->n_states ? m->states[segment] : m->sha256, sizeof end) == 0;
}

/* A whole segment came. */
static int take(struct hub_way *w, size_t segment, const uint8_t *data, struct err *err)
{
    uint64_t from = (uint64_t)segment * STORE_SEGMENT_BYTES;
    if (repair_proves(w->known, segment, data)) {
        w->tries_left[segment] = 0;
        return fetch_write(w, data, (size_t)way_segment_bytes(w, segment), from, err);
    }
    if (--w->tries_left[segment])
        return 0;
    return err_set(err, -EBADMSG, "the server's bytes from %" PRIu64 " on are not those of the file: it was changed upstream, or the server is damaged", from);
}

size_t repair_body(struct hub_lane *l, const char *data, size_t n)
{
    struct hub_way *w = l->w;
    memcpy(l->copy + l->copy_got, data, n);
    l->copy_got += n;
    l->pos += n;
    fetch_copied(w, n);
    if (l->pos < l->end)
        return n;
    l->copy_got = 0;
    if (take(w, l->first, l->copy, &l->refused) == 0)
        return n;
    l->hopeless = true;
    return 0;
}
