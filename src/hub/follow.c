/* SPDX-License-Identifier: MIT
 *
 * The threads beside the network's. A follower hashes one file from its beginning to its end, right behind what arrives, and keeps the state after each segment; when the digest is right it puts the file in its place. The keeper
 * brings data to the disk and then says so in the journals; nothing waits for it until HUB_LOSS_BYTES are on their way to the disk.
 */
#include "hub_int.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define CHUNK ((size_t)64 << 10)         /* of one read: it stays in a core's own cache between reading and hashing */
#define JOURNAL_SYNC_US 1000000          /* journals themselves are synced so often: what is lost with the power is fetched again */
#define KEEP_MAX 256                     /* segments that one round of the keeper takes */

/* Signals belong to the caller's thread. */
static int start_thread(pthread_t *t, void *(*run)(void *), void *ctx)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = pthread_create(t, NULL, run, ctx);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

/* ---- follower ---------------------------------------------------------------------------------------------------------- */

struct hashing {
    struct hub_way *w;
    struct os_sha256 h;
    struct os_digest *git; /* NULL unless it is wanted */
    char *chunk;
};

/* Waits until segment i is here; false when the thread shall end. */
static bool wait_for(struct hub_way *w, size_t i)
{
    uint64_t all = way_segment_bytes(w, i);
    pthread_mutex_lock(&w->fetch->lock);
    while (!w->stop && w->got[i] < all)
        (void)pthread_cond_wait(&w->fetch->moved, &w->fetch->lock);
    bool go = !w->stop;
    pthread_mutex_unlock(&w->fetch->lock);
    return go;
}

static int hash_segment(struct hashing *g, size_t i)
{
    uint64_t off = (uint64_t)i * STORE_SEGMENT_BYTES, left = way_segment_bytes(g->w, i);
    while (left) {
        ssize_t n = pread(g->w->fd, g->chunk, left < CHUNK ? (size_t)left : CHUNK, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        os_sha256_update(&g->h, g->chunk, (size_t)n);
        if (g->git && os_digest_add(g->git, g->chunk, (size_t)n) < 0)
            return -EIO;
        off += (uint64_t)n;
        left -= (uint64_t)n;
    }
    return 0;
}

/* Compares with what is pinned, and completes the manifest. */
static enum hub_proof judge(struct hashing *g)
{
    struct hub_way *w = g->w;
    char hex[OS_SHA256_HEX];
    os_sha256_final(&g->h, w->m.sha256);
    if (w->want->sha256)
        return strcmp(os_hex(w->m.sha256, sizeof w->m.sha256, hex), w->want->sha256) == 0 ? PROOF_GOOD : PROOF_BAD;
    if (!w->want->git_sha1)
        return PROOF_GOOD;
    if (os_digest_hex(g->git, hex) < 0) {
        (void)err_set(&w->err, -EIO, "sha1 cannot be computed");
        return PROOF_ERROR;
    }
    if (strcmp(hex, w->want->git_sha1) != 0 || !os_unhex(str_of(hex), w->m.git_sha1, sizeof w->m.git_sha1))
        return PROOF_BAD;
    return PROOF_GOOD;
}

static enum hub_proof hash_all(struct hashing *g, size_t from)
{
    struct hub_way *w = g->w;
    for (size_t i = from; i < w->n_segments; i++) {
        if (!wait_for(w, i))
            return PROOF_NONE;
        int r = hash_segment(g, i);
        if (r < 0) {
            (void)err_sys(&w->err, r, "cannot read '%s'", w->part);
            return PROOF_ERROR;
        }
        if (i < w->m.n_states)
            os_sha256_state(&g->h, w->m.states[i]);
        pthread_mutex_lock(&w->fetch->lock);
        w->hashed = i + 1;
        pthread_mutex_unlock(&w->fetch->lock);
    }
    enum hub_proof p = judge(g);
    if (p == PROOF_GOOD && part_finish(w, &w->err) < 0)
        p = PROOF_ERROR;
    return p;
}

static void *follow(void *ctx)
{
    struct hub_way *w = ctx;
    struct hashing g = {.w = w, .chunk = malloc(CHUNK)};
    size_t from = w->hashed;
    os_sha256_init(&g.h);
    if (from)
        os_sha256_resume(&g.h, w->m.states[from - 1], (uint64_t)from * STORE_SEGMENT_BYTES);
    enum hub_proof p = PROOF_ERROR;
    if (w->want->git_sha1)
        g.git = os_digest_new_git(w->bytes);
    if (g.chunk && (!w->want->git_sha1 || g.git))
        p = hash_all(&g, from);
    else
        (void)err_nomem(&w->err);
    os_digest_free(g.git);
    free(g.chunk);
    pthread_mutex_lock(&w->fetch->lock);
    w->proof = p;
    pthread_mutex_unlock(&w->fetch->lock);
    hub_wake(w->fetch->hub);
    return NULL;
}

int follow_start(struct hub_way *w, size_t from_segment, struct err *err)
{
    /* git's digest has no states: it begins anew */
    pthread_mutex_lock(&w->fetch->lock);
    w->hashed = w->want->git_sha1 ? 0 : from_segment;
    w->stop = false;
    w->proof = PROOF_RUNNING;
    pthread_mutex_unlock(&w->fetch->lock);
    int r = start_thread(&w->follower, follow, w);
    if (r < 0) {
        w->proof = PROOF_NONE;
        return err_sys(err, r, "cannot start a thread");
    }
    w->following = true;
    return 0;
}

void follow_stop(struct hub_way *w)
{
    if (!w->following)
        return;
    pthread_mutex_lock(&w->fetch->lock);
    w->stop = true;
    (void)pthread_cond_broadcast(&w->fetch->moved);
    pthread_mutex_unlock(&w->fetch->lock);
    (void)pthread_join(w->follower, NULL);
    w->following = false;
}

/* ---- keeper ---------------------------------------------------------------------------------------------------------------- */

struct kept {
    struct hub_way *w;
    size_t segment;
    uint32_t got;
};

/* What the journals do not know yet, under lock. */
static size_t gather(struct hub_fetch *f, struct kept *list)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_ways; i++) {
        struct hub_way *w = &f->ways[i];
        if (w->state != WAY_ACTIVE || w->fd < 0 || !w->dirty)
            continue;
        const uint8_t *at = w->dirty;
        while (n < KEEP_MAX && (at = memchr(at, 1, w->n_segments - (size_t)(at - w->dirty)))) {
            size_t s = (size_t)(at - w->dirty);
            w->dirty[s] = 0;
            w->keeping = true;
            list[n++] = (struct kept){w, s, w->got[s]};
        }
    }
    return n;
}

/* One file's data, then its journal's lines. */
static int keep_way(struct hub_way *w, const struct kept *list, size_t n, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT((size_t)KEEP_MAX * 64);
    if (fdatasync(w->fd) < 0)
        return err_sys(err, -errno, "cannot write '%s'", w->part);
    for (size_t i = 0; i < n; i++)
        if (list[i].w == w)
            hub_journal_add(&w->head, list[i].segment, list[i].got, &text);
    if (buf_status(&text) < 0)
        return err_nomem(err);
    int r = os_write_all(w->journal_fd, text.ptr, text.len, err);
    uint64_t now = hub_now_us();
    if (r == 0 && now - w->journal_synced_us > JOURNAL_SYNC_US) {
        w->journal_synced_us = now;
        if (fdatasync(w->journal_fd) < 0)
            r = err_sys(err, -errno, "cannot write '%s'", w->journal);
    }
    return r;
}

static void keep_round(struct hub_fetch *f)
{
    struct kept list[KEEP_MAX];
    struct err err;
    uint64_t bytes = f->unkept;
    size_t n = gather(f, list);
    pthread_mutex_unlock(&f->lock);
    for (size_t i = 0; i < n; i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++)
            first = first && list[k].w != list[i].w;
        if (!first || keep_way(list[i].w, list, n, &err) == 0)
            continue;
        pthread_mutex_lock(&f->lock);
        list[i].w->disk = err;
        pthread_mutex_unlock(&f->lock);
    }
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < n; i++)
        list[i].w->keeping = false;
    f->unkept -= bytes;
    (void)pthread_cond_broadcast(&f->moved);
    hub_wake(f->hub); /* lanes may be paused */
}

static void *keep(void *ctx)
{
    struct hub_fetch *f = ctx;
    pthread_mutex_lock(&f->lock);
    while (!f->keeper_quit) {
        if (f->unkept >= HUB_KEEP_BYTES)
            keep_round(f);
        else
            (void)pthread_cond_wait(&f->moved, &f->lock);
    }
    if (f->unkept)
        keep_round(f);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

int keeper_start(struct hub_fetch *f, struct err *err)
{
    int r = start_thread(&f->keeper, keep, f);
    if (r < 0)
        return err_sys(err, r, "cannot start a thread");
    f->keeper_runs = true;
    return 0;
}

void keeper_stop(struct hub_fetch *f)
{
    if (!f->keeper_runs)
        return;
    pthread_mutex_lock(&f->lock);
    f->keeper_quit = true;
    (void)pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
    (void)pthread_join(f->keeper, NULL);
    f->keeper_runs = false;
}
