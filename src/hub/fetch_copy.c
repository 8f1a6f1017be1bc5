/* SPDX-License-Identifier: MIT
 *
 * Second opinions. A wrong digest says that bytes are wrong but not which: no hub tells digests of parts. So every block of the file is fetched again and compared, and whatever differs is settled by a vote of copies.
 *
 * The vote is Boyer and Moore's: the candidate is what the file has there, and one number says by how many copies it leads. The same bytes again add one, others take one away, and at none the next copy takes its place. A copy may
 * be damaged just as the file was, so nothing is certain but the digest: every block must lead by two, then the file is proven again, and while the digest is wrong each further round asks for a lead of one more. Blocks are small: a
 * disputed one costs little, an answer that breaks off leaves what it brought, and faults that come often hit few of them. No block is asked for without end, so a server with other bytes each time, or with wrong ones every
 * time, is left.
 */
#include "fetch_int.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#define ROUNDS 3
#define COPIES_MAX 16 /* of one block, over all rounds: enough for a lead of four when a third of all copies is damaged */
#define BLOCKS_PER_SEGMENT (STORE_SEGMENT_BYTES / COPY_BLOCK_BYTES)

static uint64_t block_bytes(const struct hub_way *w, size_t b)
{
    uint64_t from = (uint64_t)b * COPY_BLOCK_BYTES;
    return w->bytes - from < COPY_BLOCK_BYTES ? w->bytes - from : COPY_BLOCK_BYTES;
}

/* The lead is too small for this round. */
static bool is_wanted(const struct hub_way *w, size_t b)
{
    return w->leads[b] <= w->copy_rounds;
}

static void set_copying(struct hub_way *w, bool copying)
{
    pthread_mutex_lock(&w->fetch->lock);
    w->copying = copying;
    pthread_mutex_unlock(&w->fetch->lock);
}

static void give_up(struct hub_way *w, const char *why)
{
    struct err err;
    char have[OS_SHA256_HEX];
    os_hex(w->m.sha256, sizeof w->m.sha256, have);
    if (w->want->sha256)
        (void)err_set(&err, -EBADMSG, "%s: sha256 is %s, pinned is %s", why, have, w->want->sha256);
    else
        (void)err_set(&err, -EBADMSG, "%s: git's sha1 is not the pinned %s", why, w->want->git_sha1 ? w->want->git_sha1 : "one");
    way_fail(w, &err);
    part_discard(w);
}

int copy_begin(struct hub_way *w, struct err *err)
{
    if (w->whole) {
        give_up(w, "the server sent other bytes than are pinned, and it sends no parts that could be compared");
        return 0;
    }
    if (w->copy_rounds == ROUNDS) {
        give_up(w, "still not what is pinned after every part was compared with other copies");
        return 0;
    }
    if (!w->leads) {
        w->n_blocks = (size_t)((w->bytes + COPY_BLOCK_BYTES - 1) / COPY_BLOCK_BYTES);
        w->leads = malloc(w->n_blocks + 1);
        w->copies = calloc(w->n_blocks + 1, 1);
        if (!w->leads || !w->copies)
            return err_nomem(err);
        memset(w->leads, 1, w->n_blocks); /* the file's own */
    }
    w->copy_rounds++;
    w->copy_from = 0;
    w->replaced_from = w->n_segments;
    w->differed = false;
    fetch_note(w, EVENT_WARN, w->copy_rounds == 1 ? "the digest is wrong: every part is fetched a second time to find the damaged one" : "the digest is still wrong: every part is fetched once more");
    set_copying(w, true);
    return 0;
}

void copy_release(struct hub_way *w)
{
    free(w->leads);
    free(w->copies);
    w->leads = w->copies = NULL;
}

bool copy_wanted(struct hub_way *w)
{
    while (w->copy_from < w->n_blocks && !is_wanted(w, w->copy_from))
        w->copy_from++;
    return w->copy_from < w->n_blocks;
}

bool copy_lease(struct hub_way *w, struct hub_lane *l)
{
    if (!copy_wanted(w))
        return false;
    for (size_t b = w->copy_from; b < w->n_blocks;) {
        size_t segment = b / BLOCKS_PER_SEGMENT, last = (segment + 1) * BLOCKS_PER_SEGMENT;
        if (w->leased[segment]) {
            b = last;
        } else if (!is_wanted(w, b)) {
            b++;
        } else {
            size_t end = b;
            while (end < last && end < w->n_blocks && is_wanted(w, end))
                end++;
            l->first = l->last = segment;
            l->pos = (uint64_t)b * COPY_BLOCK_BYTES;
            l->end = (uint64_t)(end - 1) * COPY_BLOCK_BYTES + block_bytes(w, end - 1);
            w->leased[segment] = 1;
            return true;
        }
    }
    return false;
}

/* ---- the vote ------------------------------------------------------------------------------------------------------------ */

static int read_block(const struct hub_way *w, size_t b, uint8_t *out, struct err *err)
{
    for (uint64_t done = 0, n = block_bytes(w, b); done < n;) {
        ssize_t k = pread(w->fd, out + done, (size_t)(n - done), (off_t)((uint64_t)b * COPY_BLOCK_BYTES + done));
        if (k > 0)
            done += (uint64_t)k;
        else if (k == 0 || errno != EINTR)
            return err_sys(err, k < 0 ? -errno : -ENODATA, "cannot read '%s'", w->part);
    }
    return 0;
}

/* One more copy of a block. */
static int vote(struct hub_way *w, size_t b, const uint8_t *copy, struct err *err)
{
    uint8_t have[COPY_BLOCK_BYTES];
    size_t n = (size_t)block_bytes(w, b), segment = b / BLOCKS_PER_SEGMENT;
    int r = read_block(w, b, have, err);
    if (r < 0)
        return r;
    w->copies[b]++;
    if (memcmp(have, copy, n) == 0) {
        w->leads[b]++;
    } else if (w->leads[b]) {
        w->differed = true;
        w->leads[b]--;
    } else {
        w->leads[b] = 1;
        if (segment < w->replaced_from)
            w->replaced_from = segment;
        r = fetch_write(w, copy, n, (uint64_t)b * COPY_BLOCK_BYTES, err);
    }
    if (r == 0 && is_wanted(w, b) && w->copies[b] >= COPIES_MAX)
        r = err_set(err, -EBADMSG, "the server sends other bytes each time (from %" PRIu64 " on)", (uint64_t)b * COPY_BLOCK_BYTES);
    return r;
}

size_t copy_body(struct hub_lane *l, const char *data, size_t n)
{
    struct hub_way *w = l->w;
    for (size_t left = n; left;) {
        size_t b = (size_t)(l->pos / COPY_BLOCK_BYTES), have = (size_t)(l->pos % COPY_BLOCK_BYTES), all = (size_t)block_bytes(w, b);
        size_t part = left < all - have ? left : all - have;
        memcpy(l->copy + have, data, part);
        data += part;
        left -= part;
        l->pos += part;
        if (have + part < all)
            return n;
        if (vote(w, b, l->copy, &l->refused) < 0) {
            l->hopeless = true;
            return 0;
        }
        fetch_copied(w, all);
    }
    return n;
}

void copy_end(struct hub_way *w)
{
    struct err err;
    set_copying(w, false);
    if (w->replaced_from < w->n_segments) {
        fetch_note(w, EVENT_WARN, "the damaged part is replaced: proving again");
        if (follow_start(w, w->replaced_from, &err) < 0)
            way_fail(w, &err);
    } else if (!w->differed) {
        give_up(w, "the server has other bytes than are pinned, and the same ones twice");
    } else if (copy_begin(w, &err) < 0) {
        way_fail(w, &err);
    }
}
