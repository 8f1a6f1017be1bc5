/* SPDX-License-Identifier: MIT
 *
 * PATH.part and its journal on disk. What must hold at every moment, whatever is killed or cut off: PATH is the old file or the new one, proven; a line of the journal speaks only of bytes that are on the disk. So the order is:
 * names of .part and journal, data, the journal's line about it; and at the end data, PATH's name, and only then the journal's removal.
 */
#include "hub_int.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES_MAX 8192

uint64_t way_segment_bytes(const struct hub_way *w, size_t i)
{
    uint64_t begin = (uint64_t)i * STORE_SEGMENT_BYTES;
    return w->bytes - begin < STORE_SEGMENT_BYTES ? w->bytes - begin : STORE_SEGMENT_BYTES;
}

static char *with_suffix(const char *path, const char *suffix)
{
    base_autobuf struct buf b = BUF_INIT(PATH_BYTES_MAX);
    buf_addf(&b, "%s%s", path, suffix);
    return buf_take(&b);
}

static int sync_folder(const char *path, struct err *err)
{
    base_autofree char *copy = str_dup(str_of(path));
    if (!copy)
        return err_nomem(err);
    const char *folder = dirname(copy);
    os_autoclose int fd = os_open_dir(folder, err);
    if (fd < 0)
        return fd;
    return fsync(fd) < 0 && errno != EINVAL ? err_sys(err, -errno, "cannot write to the folder '%s'", folder) : 0;
}

static const char *digest_of(const struct hub_way *w)
{
    return w->want->sha256 ? w->want->sha256 : w->want->git_sha1 ? w->want->git_sha1 : "-";
}

/* ---- segments ---------------------------------------------------------------------------------------------------------- */

static int make_segments(struct hub_way *w, uint64_t bytes, struct err *err)
{
    if (bytes > STORE_PAYLOAD_MAX)
        return err_set(err, -EFBIG, "%llu bytes are more than any payload has", (unsigned long long)bytes);
    struct store_manifest m;
    size_t n = store_segments(bytes);
    uint32_t *got = calloc(n + 1, sizeof *got);
    uint8_t *leased = calloc(n + 1, 1), *dirty = calloc(n + 1, 1);
    int r = store_manifest_init(&m, bytes);
    if (r < 0 || !got || !leased || !dirty) {
        free(got);
        free(leased);
        free(dirty);
        store_manifest_release(&m);
        return err_nomem(err);
    }
    pthread_mutex_lock(&w->fetch->lock);
    w->bytes = bytes;
    w->n_segments = n;
    w->got = got;
    w->leased = leased;
    w->dirty = dirty;
    w->free_from = 0;
    w->done_bytes = 0;
    w->hashed = 0;
    w->m = m;
    pthread_mutex_unlock(&w->fetch->lock);
    return 0;
}

static void drop_segments(struct hub_way *w)
{
    pthread_mutex_lock(&w->fetch->lock);
    free(w->got);
    free(w->leased);
    free(w->dirty);
    w->got = NULL;
    w->leased = w->dirty = NULL;
    w->n_segments = 0;
    w->done_bytes = 0;
    w->bytes = w->want->bytes;
    pthread_mutex_unlock(&w->fetch->lock);
    store_manifest_release(&w->m);
}

/* ---- the journal on disk ------------------------------------------------------------------------------------------------ */

/* A new journal in place of whatever was there: first the bytes of .part are forgotten, then the old journal, so that no line outlives what it speaks of. */
static int begin_journal(struct hub_way *w, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(4096);
    if (ftruncate(w->journal_fd, 0) < 0 || lseek(w->journal_fd, 0, SEEK_SET) < 0 || fsync(w->journal_fd) < 0 || ftruncate(w->fd, 0) < 0)
        return err_sys(err, -errno, "cannot write '%s'", w->journal);
    w->head = (struct hub_journal){.bytes = w->bytes};
    (void)snprintf(w->head.digest, sizeof w->head.digest, "%s", digest_of(w));
    (void)snprintf(w->head.etag, sizeof w->head.etag, "%s", w->etag[0] ? w->etag : "-");
    hub_journal_begin(&w->head, &text);
    if (buf_status(&text) < 0)
        return err_nomem(err);
    int r = os_write_all(w->journal_fd, text.ptr, text.len, err);
    if (r == 0 && fsync(w->journal_fd) < 0)
        r = err_sys(err, -errno, "cannot write '%s'", w->journal);
    return r == 0 ? sync_folder(w->part, err) : r;
}

/* What an earlier transfer left: 1 when it is taken up, 0 when there is nothing of use. */
static int read_journal(struct hub_way *w, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(HUB_JOURNAL_MAX);
    struct hub_journal j;
    struct stat st;
    if (os_read_file(AT_FDCWD, w->journal, &text, NULL) < 0 || hub_journal_open(buf_str(&text), &j) < 0 || fstat(w->fd, &st) < 0)
        return 0;
    if ((w->want->bytes != HUB_UNKNOWN && j.bytes != w->want->bytes) || strcmp(j.digest, digest_of(w)) != 0 || (!w->pinned && strcmp(j.etag, "-") == 0))
        return 0; /* of another file, or of one that nothing could tell from another */
    int r = make_segments(w, j.bytes, err);
    if (r < 0)
        return r;
    hub_journal_read(buf_str(&text), &j, w->got, w->n_segments);
    for (size_t i = 0; i < w->n_segments; i++) {
        if ((uint64_t)i * STORE_SEGMENT_BYTES + w->got[i] > (uint64_t)st.st_size)
            w->got[i] = 0;
        w->done_bytes += w->got[i];
    }
    if (strcmp(j.etag, "-") != 0)
        (void)snprintf(w->etag, sizeof w->etag, "%s", j.etag);
    w->head = j;
    if (ftruncate(w->journal_fd, (off_t)j.valid) < 0 || lseek(w->journal_fd, 0, SEEK_END) < 0)
        return err_sys(err, -errno, "cannot write '%s'", w->journal);
    return 1;
}

int hub_write_at(int fd, const void *data, size_t n, uint64_t at, const char *path, struct err *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(fd, (const char *)data + done, n - done, (off_t)(at + done));
        if (k > 0)
            done += (size_t)k;
        else if (k == 0 || errno != EINTR)
            return err_sys(err, k == 0 ? -EIO : -errno, "cannot write '%s'", path);
    }
    return 0;
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static int open_one(const char *path, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    struct stat st;
    if (fd < 0)
        return err_sys(err, -errno, "cannot write '%s'", path);
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    (void)close(fd);
    return err_set(err, -EINVAL, "'%s' is no regular file: move it away", path);
}

int part_open(struct hub_way *w, struct err *err)
{
    base_autofree char *folder = str_dup(str_of(w->want->path));
    w->part = with_suffix(w->want->path, ".part");
    w->journal = with_suffix(w->want->path, ".part.journal");
    if (!folder || !w->part || !w->journal)
        return err_set(err, -ENAMETOOLONG, "the path '%.200s...' is too long", w->want->path);
    int r = os_make_dirs(dirname(folder), 0755, err);
    if (r == 0 && (w->fd = open_one(w->part, err)) < 0)
        r = w->fd;
    if (r == 0 && flock(w->fd, LOCK_EX | LOCK_NB) < 0)
        r = errno == EWOULDBLOCK ? err_set(err, -EBUSY, "'%s' is being fetched by another berth", w->want->path) : err_sys(err, -errno, "cannot lock '%s'", w->part);
    if (r == 0 && (w->journal_fd = open_one(w->journal, err)) < 0)
        r = w->journal_fd;
    if (r == 0)
        r = read_journal(w, err);
    if (r != 0 || w->want->bytes == HUB_UNKNOWN)
        return r < 0 ? r : 0;
    return part_size(w, w->want->bytes, err);
}

int part_size(struct hub_way *w, uint64_t bytes, struct err *err)
{
    int r = make_segments(w, bytes, err);
    return r == 0 ? begin_journal(w, err) : r;
}

static void wait_for_keeper(struct hub_way *w)
{
    pthread_mutex_lock(&w->fetch->lock);
    while (w->keeping)
        (void)pthread_cond_wait(&w->fetch->moved, &w->fetch->lock);
    pthread_mutex_unlock(&w->fetch->lock);
}

int part_reset(struct hub_way *w, struct err *err)
{
    wait_for_keeper(w);
    drop_segments(w);
    w->etag[0] = '\0';
    if (ftruncate(w->journal_fd, 0) < 0 || fsync(w->journal_fd) < 0 || ftruncate(w->fd, 0) < 0)
        return err_sys(err, -errno, "cannot write '%s'", w->part);
    return w->want->bytes == HUB_UNKNOWN ? 0 : part_size(w, w->want->bytes, err);
}

int part_finish(struct hub_way *w, struct err *err)
{
    if (fsync(w->fd) < 0)
        return err_sys(err, -errno, "cannot write '%s'", w->part);
    if (rename(w->part, w->want->path) < 0)
        return err_sys(err, -errno, "cannot put '%s' in its place", w->want->path);
    int r = sync_folder(w->want->path, err);
    if (r == 0)
        r = !w->fetch->store ? 0 : store_manifest_save(w->fetch->store, w->want->path, &w->m, err);
    if (r == 0)
        (void)unlink(w->journal);
    return r;
}

void part_close(struct hub_way *w)
{
    wait_for_keeper(w);
    os_closep(&w->fd);
    os_closep(&w->journal_fd);
}

void part_discard(struct hub_way *w)
{
    if (w->journal)
        (void)unlink(w->journal);
    if (w->part)
        (void)unlink(w->part);
}
