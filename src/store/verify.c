/* SPDX-License-Identifier: MIT
 *
 * Proving payload files. Three ways, cheapest first:
 *
 *   the stamp of the manifest is the file's: nothing has touched it since it was proven, so nothing is read;
 *   the manifest is of what is wanted: each segment is hashed by itself, from the state before it to the state after it, by whichever thread is free; what differs is where the damage is;
 *   there is no manifest of use: the file is hashed from end to end by one thread, and the states on the way become its manifest.
 *
 * Work lies in one list of pieces, whole files first, which the threads take one by one. A piece writes its own result and nothing else, so that the list's place is all that is shared. The caller's thread says how far it is
 * and looks whether it is interrupted.
 */
#include "store_int.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define CHUNK ((size_t)64 << 10)  /* of one read: it stays in the core's own cache between reading and hashing; 256 KiB and more cost twice the time in the kernel */
#define TICK_MS 100               /* between two looks at the work */
#define YOUNG_NS 20000000u        /* file systems count time in ticks of up to 10 ms: a change in the tick of the last one could not be seen */

/* One file while it is proven. */
struct proof {
    struct store_check *c;
    bool hashed;            /* there is something to hash */
    int fd;
    struct stamp before;
    struct segments known;  /* manifest; path NULL: none of use */
    uint8_t *bad;           /* of each segment of the wanted file */
    size_t n_segments;
    struct store_manifest seen; /* what a reading from end to end came to */
    int code;                   /* of such a reading: 0, or a negative errno */
};

/* A segment of a file, or the whole of it. */
struct piece {
    struct proof *p;
    size_t segment; /* WHOLE */
};
#define WHOLE SIZE_MAX

struct work {
    struct proof *proofs;
    struct piece *pieces;
    size_t n_pieces;
    atomic_size_t next;
    atomic_uint_least64_t hashed; /* bytes */
    uint64_t bytes;               /* to hash */
    atomic_bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t done; /* a thread ends */
    unsigned running;
};

/* ---- hashing ---------------------------------------------------------------------------------------------------- */

/* len bytes from off into h and, when given, git. -ENODATA: the file is shorter. */
static int hash_range(struct work *w, int fd, uint64_t off, uint64_t len, char *chunk, struct os_sha256 *h, struct os_digest *git)
{
    while (len) {
        if (atomic_load_explicit(&w->stop, memory_order_relaxed))
            return -EINTR;
        ssize_t n = pread(fd, chunk, len < CHUNK ? (size_t)len : CHUNK, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        os_sha256_update(h, chunk, (size_t)n);
        if (git && os_digest_add(git, chunk, (size_t)n) < 0)
            return -EIO;
        off += (uint64_t)n;
        len -= (uint64_t)n;
        (void)atomic_fetch_add_explicit(&w->hashed, (uint64_t)n, memory_order_relaxed);
    }
    return 0;
}

static uint64_t segment_bytes(uint64_t bytes, size_t i)
{
    uint64_t from = i * STORE_SEGMENT_BYTES;
    return bytes - from < STORE_SEGMENT_BYTES ? bytes - from : STORE_SEGMENT_BYTES;
}

bool segments_prove(const struct store_manifest *m, size_t i, const struct os_sha256 *h)
{
    uint8_t digest[OS_SHA256_BYTES];
    struct os_sha256 end = *h;
    if (i < m->n_states)
        os_sha256_state(&end, digest);
    else
        os_sha256_final(&end, digest);
    return memcmp(digest, i < m->n_states ? m->states[i] : m->sha256, sizeof digest) == 0;
}

void segments_begin(const struct store_manifest *m, size_t i, struct os_sha256 *h)
{
    if (i == 0)
        os_sha256_init(h);
    else
        os_sha256_resume(h, m->states[i - 1], i * STORE_SEGMENT_BYTES);
}

/* A segment that cannot be read is damaged: writing it again is what makes a disk give it another place. */
static void prove_segment(struct work *w, struct proof *p, size_t i, char *chunk)
{
    const struct store_manifest *m = &p->known.m;
    struct os_sha256 h;
    segments_begin(m, i, &h);
    int r = hash_range(w, p->fd, i * STORE_SEGMENT_BYTES, segment_bytes(m->bytes, i), chunk, &h, NULL);
    p->bad[i] = r < 0 || !segments_prove(m, i, &h);
}

/* The fragments of a joined file, each in its place; `seen` gets their sum when all of them are right. */
static int read_parts(struct work *w, struct proof *p, char *chunk)
{
    const struct store_check *c = p->c;
    uint64_t at = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->n_parts; i++) {
        const struct fleet_lock_file *f = c->parts[i];
        struct os_digest *git = f->git_sha1 ? os_digest_new_git(f->bytes) : NULL;
        char hex[OS_SHA256_HEX] = "";
        uint8_t digest[OS_SHA256_BYTES];
        struct os_sha256 h;
        os_sha256_init(&h);
        r = f->git_sha1 && !git ? -ENOMEM : hash_range(w, p->fd, at, f->bytes, chunk, &h, git);
        os_sha256_final(&h, digest);
        if (r == 0 && git)
            r = os_digest_hex(git, hex);
        else
            (void)os_hex(digest, sizeof digest, hex);
        bool same = r == 0 && strcmp(hex, git ? f->git_sha1 : f->sha256) == 0;
        os_digest_free(git);
        if (r == 0 && !same)
            return 0;
        at += f->bytes;
    }
    if (r == 0 && !os_unhex(str_of(c->want.git_sha1), p->seen.git_sha1, sizeof p->seen.git_sha1))
        r = -EIO;
    return r;
}

/* Reads the file from end to end into p->seen. */
static int read_whole(struct work *w, struct proof *p, char *chunk)
{
    struct store_manifest *m = &p->seen;
    struct os_sha256 h;
    bool by_git = p->c->want.git_sha1 && !p->c->n_parts;
    struct os_digest *git = by_git ? os_digest_new_git(p->before.bytes) : NULL;
    int r = store_manifest_init(m, p->before.bytes);
    if (by_git && !git)
        r = -ENOMEM;
    os_sha256_init(&h);
    for (size_t i = 0; r == 0 && i < store_segments(m->bytes); i++) {
        r = hash_range(w, p->fd, i * STORE_SEGMENT_BYTES, segment_bytes(m->bytes, i), chunk, &h, git);
        if (r == 0 && i < m->n_states)
            os_sha256_state(&h, m->states[i]);
    }
    if (r == 0)
        os_sha256_final(&h, m->sha256);
    char hex[OS_SHA256_HEX];
    if (r == 0 && git)
        r = os_digest_hex(git, hex);
    if (r == 0 && git && !os_unhex(str_of(hex), m->git_sha1, sizeof m->git_sha1))
        r = -EIO;
    os_digest_free(git);
    return r == 0 && p->c->n_parts ? read_parts(w, p, chunk) : r;
}

static void *worker(void *ctx)
{
    struct work *w = ctx;
    char *chunk = malloc(CHUNK);
    size_t i;
    while (chunk && !atomic_load(&w->stop) && (i = atomic_fetch_add(&w->next, 1)) < w->n_pieces) {
        struct proof *p = w->pieces[i].p;
        if (w->pieces[i].segment == WHOLE)
            p->code = read_whole(w, p, chunk);
        else
            prove_segment(w, p, w->pieces[i].segment, chunk);
    }
    free(chunk);
    pthread_mutex_lock(&w->mutex);
    w->running--;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

static unsigned threads_for(const struct store_verify_options *o, size_t pieces)
{
    cpu_set_t set;
    unsigned n = o->threads;
    if (n == 0) /* those that we may use, which may be fewer than there are */
        n = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
    if (n > STORE_VERIFY_THREADS)
        n = STORE_VERIFY_THREADS;
    return n > pieces ? (unsigned)pieces : n;
}

static void say_progress(struct work *w, const struct event_sink *sink, uint64_t begun_us)
{
    char rate[UNITS_TEXT], text[64];
    uint64_t done = atomic_load(&w->hashed), us = clk_system.mono_us(clk_system.ctx) - begun_us;
    snprintf(text, sizeof text, "%s/s", units_show_bytes(us ? (uint64_t)((double)done * 1e6 / (double)us) : 0, rate));
    event_progress(sink, "verify", text, done, w->bytes);
}

/* Until every thread has ended. */
static void attend(struct work *w, const struct event_sink *sink)
{
    uint64_t begun = clk_system.mono_us(clk_system.ctx);
    pthread_mutex_lock(&w->mutex);
    while (w->running) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        (void)pthread_cond_clockwait(&w->done, &w->mutex, CLOCK_MONOTONIC, &until);
        if (os_interrupted())
            atomic_store(&w->stop, true);
        say_progress(w, sink, begun);
    }
    pthread_mutex_unlock(&w->mutex);
}

/* All pieces, by n threads. Signals stay with the caller's thread. */
static int run_threads(struct work *w, unsigned n, const struct event_sink *sink, struct err *err)
{
    pthread_t threads[STORE_VERIFY_THREADS];
    sigset_t all, old;
    unsigned begun = 0;
    int r = 0;
    if (os_interrupted())
        return err_set(err, -EINTR, "interrupted");
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&w->mutex);
    while (begun < n && (r = pthread_create(&threads[begun], NULL, worker, w)) == 0)
        begun++;
    w->running = begun;
    pthread_mutex_unlock(&w->mutex);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (begun == 0 && n)
        return err_sys(err, -r, "cannot start a thread");
    attend(w, sink);
    for (unsigned i = 0; i < begun; i++)
        (void)pthread_join(threads[i], NULL);
    if (atomic_load(&w->stop))
        return err_set(err, -EINTR, "interrupted");
    return atomic_load(&w->next) < w->n_pieces ? err_nomem(err) : 0; /* no thread had memory for its chunk */
}

/* ---- one file --------------------------------------------------------------------------------------------------- */

static bool pinned(const struct store_check *c)
{
    return c->want.sha256 || c->want.git_sha1;
}

/* Changed so lately that the next change might leave the same time: waits until it cannot. */
static void let_age(const struct stamp *s)
{
    struct timespec now, pause = {.tv_nsec = YOUNG_NS};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (ns < s->ctime_ns + YOUNG_NS)
        (void)nanosleep(&pause, NULL);
}

static int open_file(struct proof *p)
{
    struct store_check *c = p->c;
    struct stat st;
    /* a pipe under that name must not hold us up */
    p->fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (p->fd < 0 || fstat(p->fd, &st) < 0) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        c->verdict = missing ? STORE_MISSING : STORE_UNREADABLE;
        return missing ? err_set(&c->why, -ENOENT, "no such file") : err_sys(&c->why, -errno, "cannot be read");
    }
    c->verdict = STORE_UNREADABLE;
    if (!S_ISREG(st.st_mode))
        return err_set(&c->why, -EINVAL, "is no regular file");
    c->bytes = (uint64_t)st.st_size;
    if (c->bytes > STORE_PAYLOAD_MAX)
        return err_set(&c->why, -EFBIG, "is larger than any model");
    p->before = stamp_of(&st);
    return 0;
}

/* Opens a file and finds the way to prove it: 1 when there is something to hash. */
static int prepare(struct store *s, struct proof *p, const struct store_verify_options *o)
{
    struct store_check *c = p->c;
    if (open_file(p) < 0)
        return 0;
    if (segments_load(s, c->path, &p->known, NULL) == 0 && pinned(c) && !segments_match(&p->known.m, &c->want))
        segments_release(&p->known); /* of what the file was before it was pinned, or pinned again */
    if (o->record && !pinned(c) && p->known.path && !stamp_same(&p->known.stamp, &p->before))
        segments_release(&p->known);
    if (p->known.path)
        c->want.bytes = p->known.m.bytes;
    if (p->known.path && !o->full && stamp_same(&p->known.stamp, &p->before)) {
        c->verdict = STORE_UNCHANGED;
        memcpy(c->sha256, p->known.m.sha256, sizeof c->sha256);
        return 0;
    }
    if (!p->known.path && pinned(c) && c->bytes != c->want.bytes) {
        c->verdict = STORE_DAMAGED;
        (void)err_set(&c->why, -EBADMSG, "has %llu bytes, not %llu", (unsigned long long)c->bytes, (unsigned long long)c->want.bytes);
        return 0;
    }
    p->n_segments = store_segments(p->known.path ? p->known.m.bytes : c->bytes);
    p->bad = calloc(p->n_segments + 1, 1);
    if (!p->bad)
        return err_nomem(&c->why);
    /* What is asked for in full is asked of the disk, not of memory that once was read from it. */
    if (o->full)
        (void)posix_fadvise(p->fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)posix_fadvise(p->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    let_age(&p->before);
    return 1;
}

/* The damaged segments, of those that were hashed and of those that are not there. */
static int list_damage(struct proof *p)
{
    struct store_check *c = p->c;
    const struct store_manifest *m = &p->known.m;
    size_t n = 0;
    for (size_t i = 0; i < p->n_segments; i++)
        n += p->bad[i];
    if (n == 0 && c->bytes == m->bytes)
        return 0;
    c->verdict = STORE_DAMAGED;
    c->located = true;
    c->segments = calloc(n + 1, sizeof *c->segments);
    if (!c->segments)
        return err_nomem(&c->why);
    for (size_t i = 0; i < p->n_segments; i++)
        if (p->bad[i])
            c->segments[c->n_segments++] = i;
    if (n == 0)
        return err_set(&c->why, -EBADMSG, "has %llu bytes, not %llu: something was added at its end", (unsigned long long)c->bytes, (unsigned long long)m->bytes);
    if (c->bytes != m->bytes)
        return err_set(&c->why, -EBADMSG, "has %llu bytes, not %llu; %zu of %zu segments are damaged", (unsigned long long)c->bytes, (unsigned long long)m->bytes, n, p->n_segments);
    if (p->n_segments == 1)
        return err_set(&c->why, -EBADMSG, "has other content than it had");
    return err_set(&c->why, -EBADMSG, "%zu of %zu segments %s damaged, the first at byte %llu", n, p->n_segments, n == 1 ? "is" : "are",
                   (unsigned long long)(c->segments[0] * STORE_SEGMENT_BYTES));
}

/* What reading from end to end came to. */
static void judge_whole(struct proof *p)
{
    struct store_check *c = p->c;
    char hex[OS_SHA256_HEX];
    if (p->code < 0) {
        c->verdict = STORE_UNREADABLE;
        (void)err_sys(&c->why, p->code, "cannot be read");
    } else if (!pinned(c)) {
        c->verdict = STORE_RECORDED;
    } else if (segments_match(&p->seen, &c->want)) {
        c->verdict = STORE_PROVEN;
    } else {
        c->verdict = STORE_DAMAGED;
        (void)err_set(&c->why, -EBADMSG, "has other content: its sha256 is %.12s...", os_hex(p->seen.sha256, sizeof p->seen.sha256, hex));
    }
}

/* Damage that a full verification found behind a stamp that says "unchanged": the manifest stays, to locate and repair it, and its stamp goes. */
static void distrust(struct store *s, const struct proof *p)
{
    struct stamp none = {.bytes = p->known.m.bytes};
    base_ignore(segments_save(s, p->c->path, &p->known.m, &none, NULL)); /* then the damage is found again by the next full one */
}

static void conclude(struct store *s, struct proof *p)
{
    struct store_check *c = p->c;
    struct stat st;
    bool whole = !p->known.path;
    if (whole)
        judge_whole(p);
    else if (list_damage(p) == 0)
        c->verdict = STORE_PROVEN;
    else
        distrust(s, p);
    if (c->verdict != STORE_PROVEN && c->verdict != STORE_RECORDED)
        return;
    const struct store_manifest *m = whole ? &p->seen : &p->known.m;
    struct stamp after = fstat(p->fd, &st) == 0 ? stamp_of(&st) : (struct stamp){0};
    if (!stamp_same(&after, &p->before)) {
        c->verdict = STORE_UNREADABLE;
        (void)err_set(&c->why, -EBUSY, "was changed while it was read: verify it again when nothing writes to it");
        return;
    }
    memcpy(c->sha256, m->sha256, sizeof c->sha256);
    if (segments_save(s, c->path, m, &p->before, &c->why) < 0 && c->verdict == STORE_RECORDED)
        c->verdict = STORE_UNREADABLE; /* proven all the same when it was pinned; without a manifest nothing is recorded */
}

static void proof_release(struct proof *p)
{
    os_closep(&p->fd);
    segments_release(&p->known);
    store_manifest_release(&p->seen);
    free(p->bad);
}

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static int compare_whole(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    uint64_t m = x->p->before.bytes, n = y->p->before.bytes;
    return m < n ? 1 : m > n ? -1 : 0;
}

/* The pieces of all files that have something to hash: whole files first, the largest at the front, since no two threads can share one. */
static int make_pieces(struct work *w, size_t n_files, struct err *err)
{
    size_t n = 0, n_whole = 0;
    for (size_t i = 0; i < n_files; i++)
        if (w->proofs[i].hashed)
            n += w->proofs[i].known.path ? w->proofs[i].n_segments : 1;
    w->pieces = calloc(n + 1, sizeof *w->pieces);
    if (!w->pieces)
        return err_nomem(err);
    for (size_t i = 0; i < n_files; i++) {
        struct proof *p = &w->proofs[i];
        if (p->hashed && !p->known.path)
            w->pieces[w->n_pieces++] = (struct piece){p, WHOLE};
        if (p->hashed)
            w->bytes += p->known.path ? p->known.m.bytes : p->c->n_parts ? p->before.bytes * 2 : p->before.bytes;
    }
    n_whole = w->n_pieces;
    if (n_whole)
        qsort(w->pieces, n_whole, sizeof *w->pieces, compare_whole);
    for (size_t i = 0; i < n_files; i++)
        for (size_t k = 0; w->proofs[i].hashed && w->proofs[i].known.path && k < w->proofs[i].n_segments; k++)
            w->pieces[w->n_pieces++] = (struct piece){&w->proofs[i], k};
    return 0;
}

int store_verify(struct store *s, struct store_check *files, size_t n, const struct store_verify_options *o, struct err *err)
{
    struct work w = {.mutex = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
    w.proofs = calloc(n + 1, sizeof *w.proofs);
    int r = w.proofs ? 0 : err_nomem(err);
    for (size_t i = 0; w.proofs && i < n; i++)
        w.proofs[i] = (struct proof){.c = &files[i], .fd = -1};
    for (size_t i = 0; r == 0 && i < n; i++) {
        int some = prepare(s, &w.proofs[i], o);
        w.proofs[i].hashed = some == 1;
        if (some < 0)
            r = err_nomem(err);
    }
    if (r == 0)
        r = make_pieces(&w, n, err);
    if (r == 0 && w.n_pieces)
        r = run_threads(&w, threads_for(o, w.n_pieces), o->sink, err);
    for (size_t i = 0; r == 0 && i < n; i++)
        if (w.proofs[i].hashed)
            conclude(s, &w.proofs[i]);
    for (size_t i = 0; w.proofs && i < n; i++)
        proof_release(&w.proofs[i]);
    free(w.proofs);
    free(w.pieces);
    return r;
}

void store_check_release(struct store_check *c)
{
    free(c->segments);
    c->segments = NULL;
    c->n_segments = 0;
}
