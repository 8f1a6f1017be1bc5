/* SPDX-License-Identifier: MIT
 *
 * Second opinions. A wrong digest says that bytes are wrong but not which: no hub tells digests of parts. So every segment is fetched a second time and compared; where the two differ a third copy decides. A digest that is still wrong takes another round. What was damaged on
 * its way is found so, and only it is replaced. When nothing differs, the server itself has other bytes than its pointer says.
 *
 * A repair uses the same way for the segments that a manifest has found damaged: there every copy can be proven by itself.
 */
#include "fetch_int.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

enum { OPINION_NONE, OPINION_WANTED, OPINION_DOUBTED, OPINION_SETTLED };

#define PIECE 65536
#define ROUNDS 3 /* a copy may be damaged just as the file is, and then shows nothing: the next round's is not */

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

static void set_copying(struct hub_way *w, bool copying)
{
    pthread_mutex_lock(&w->fetch->lock);
    w->copying = copying;
    pthread_mutex_unlock(&w->fetch->lock);
}

int copy_begin(struct hub_way *w, struct err *err)
{
    if (w->copy_rounds == ROUNDS) {
        give_up(w, "still not what is pinned after every part was compared with other copies");
        return 0;
    }
    if (w->whole) {
        give_up(w, "the server sent other bytes than are pinned, and it sends no parts that could be compared");
        return 0;
    }
    w->opinion = calloc(w->n_segments + 1, 1);
    w->second = calloc(w->n_segments + 1, sizeof *w->second);
    if (!w->opinion || !w->second) {
        copy_release(w);
        return err_nomem(err);
    }
    memset(w->opinion, OPINION_WANTED, w->n_segments);
    w->replaced_from = w->n_segments;
    w->copy_rounds++;
    set_copying(w, true);
    fetch_note(w, EVENT_WARN, "the digest is wrong: every part is fetched a second time to find the damaged one");
    return 0;
}

void copy_want(struct hub_way *w, size_t segment)
{
    w->opinion[segment] = OPINION_WANTED;
}

void copy_release(struct hub_way *w)
{
    free(w->opinion);
    free(w->second);
    w->opinion = NULL;
    w->second = NULL;
}

bool copy_next(const struct hub_way *w, size_t *ret_segment)
{
    for (size_t i = 0; i < w->n_segments; i++)
        if ((w->opinion[i] == OPINION_WANTED || w->opinion[i] == OPINION_DOUBTED) && !w->leased[i]) {
            *ret_segment = i;
            return true;
        }
    return false;
}

/* 1: the file has just these bytes there; 0: others; or -errno. */
static int same_as_file(const struct hub_way *w, size_t segment, const uint8_t *data)
{
    uint8_t piece[PIECE];
    uint64_t off = (uint64_t)segment * STORE_SEGMENT_BYTES, left = way_segment_bytes(w, segment);
    while (left) {
        ssize_t n = pread(w->fd, piece, left < PIECE ? (size_t)left : PIECE, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0 || memcmp(piece, data, (size_t)n) != 0)
            return 0;
        data += n;
        off += (uint64_t)n;
        left -= (uint64_t)n;
    }
    return 1;
}

static int replace(struct hub_way *w, size_t segment, const uint8_t *data)
{
    uint64_t off = (uint64_t)segment * STORE_SEGMENT_BYTES, left = way_segment_bytes(w, segment);
    while (left) {
        ssize_t n = pwrite(w->fd, data, (size_t)left, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        data += n;
        off += (uint64_t)n;
        left -= (uint64_t)n;
    }
    if (segment < w->replaced_from)
        w->replaced_from = segment;
    return 0;
}

/* Whether data is what the manifest of a repair says of the segment. */
static bool is_proven(const struct hub_way *w, size_t segment, const uint8_t *data)
{
    const struct store_manifest *m = w->known;
    struct os_sha256 h;
    uint8_t end[OS_SHA256_BYTES];
    os_sha256_init(&h);
    if (segment)
        os_sha256_resume(&h, m->states[segment - 1], (uint64_t)segment * STORE_SEGMENT_BYTES);
    os_sha256_update(&h, data, (size_t)way_segment_bytes(w, segment));
    if (segment < m->n_states)
        os_sha256_state(&h, end);
    else
        os_sha256_final(&h, end);
    return memcmp(end, segment < m->n_states ? m->states[segment] : m->sha256, sizeof end) == 0;
}

static int take_repair(struct hub_way *w, size_t segment, const uint8_t *data, struct err *err)
{
    if (is_proven(w, segment, data)) {
        w->opinion[segment] = OPINION_SETTLED;
        return replace(w, segment, data);
    }
    if (w->opinion[segment] == OPINION_DOUBTED)
        return err_set(err, -EBADMSG, "the server's bytes from %" PRIu64 " on are not those of the file: it was changed upstream, or the server is damaged", (uint64_t)segment * STORE_SEGMENT_BYTES);
    w->opinion[segment] = OPINION_DOUBTED;
    return 0;
}

/* The second copy, or the third. */
static int take_opinion(struct hub_way *w, size_t segment, const uint8_t *data, struct err *err)
{
    struct os_sha256 h;
    uint8_t digest[OS_SHA256_BYTES];
    int same = same_as_file(w, segment, data);
    if (same < 0)
        return err_sys(err, same, "cannot read '%s'", w->part);
    os_sha256_init(&h);
    os_sha256_update(&h, data, (size_t)way_segment_bytes(w, segment));
    os_sha256_final(&h, digest);
    if (same) {
        w->opinion[segment] = OPINION_SETTLED;
    } else if (w->opinion[segment] == OPINION_WANTED) {
        memcpy(w->second[segment], digest, sizeof digest);
        w->opinion[segment] = OPINION_DOUBTED;
    } else if (memcmp(w->second[segment], digest, sizeof digest) == 0) {
        w->opinion[segment] = OPINION_SETTLED;
        return replace(w, segment, data);
    } else {
        return err_set(err, -EBADMSG, "the server sends other bytes each time (from %" PRIu64 " on)", (uint64_t)segment * STORE_SEGMENT_BYTES);
    }
    return 0;
}

void copy_take(struct hub_way *w, size_t segment, const uint8_t *data)
{
    struct err err = {.code = 0};
    int r = w->known ? take_repair(w, segment, data, &err) : take_opinion(w, segment, data, &err);
    if (r < 0 && !err.code)
        (void)err_sys(&err, r, "cannot write '%s'", w->part ? w->part : w->want->path);
    if (r < 0)
        way_fail(w, &err);
}

void copy_end(struct hub_way *w)
{
    struct err err;
    copy_release(w);
    set_copying(w, false);
    if (w->known) {
        w->proof = PROOF_GOOD; /* each segment was proven by itself */
    } else if (w->replaced_from == w->n_segments) {
        give_up(w, "the server has other bytes than are pinned, and the same ones twice");
    } else {
        fetch_note(w, EVENT_WARN, "the damaged part is replaced: proving again");
        if (follow_start(w, w->replaced_from, &err) < 0)
            way_fail(w, &err);
    }
}
