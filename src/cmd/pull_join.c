/* SPDX-License-Identifier: MIT
 *
 * Files that were cut into fragments for upload (NAME.part1of3): each fragment was proven by itself, and together they are the file. It is made beside its place, proven to be as long as they are together and hashed on the way, so that
 * it can be verified later; then the fragments go. Parts of a split GGUF set are no fragments: they are never joined.
 */
#include "pull_int.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((size_t)1 << 20)

struct joining {
    struct pull_session *s;
    const struct pull_join *j;
    int fd;
    char *chunk;
    struct os_sha256 h;
    struct store_manifest m;
    uint64_t done;
};

/* The hash of the whole, with its state at each segment's end. */
static void hash(struct joining *g, const char *data, size_t n)
{
    while (n) {
        uint64_t room = STORE_SEGMENT_BYTES - g->done % STORE_SEGMENT_BYTES;
        size_t part = n < room ? n : (size_t)room;
        os_sha256_update(&g->h, data, part);
        g->done += part;
        data += part;
        n -= part;
        size_t ended = (size_t)(g->done / STORE_SEGMENT_BYTES);
        if (g->done % STORE_SEGMENT_BYTES == 0 && ended <= g->m.n_states)
            os_sha256_state(&g->h, g->m.states[ended - 1]);
    }
}

static int append(struct joining *g, const char *fragment, struct err *err)
{
    os_autoclose int fd = open(fragment, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, -errno, "cannot read '%s'", fragment);
    for (;;) {
        ssize_t n = read(fd, g->chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, -errno, "cannot read '%s'", fragment);
        if (n == 0)
            return 0;
        if (os_interrupted())
            return err_set(err, -EINTR, "interrupted");
        int r = g->done + (uint64_t)n > g->j->pin.want.bytes ? err_set(err, -EBADMSG, "'%s' is longer than it was", fragment) : os_write_all(g->fd, g->chunk, (size_t)n, err);
        if (r < 0)
            return r;
        hash(g, g->chunk, (size_t)n);
        event_progress(&g->s->sink, g->j->file, "joining", g->done, g->j->pin.want.bytes);
    }
}

static int place(struct joining *g, const char *temporary, struct err *err)
{
    base_autofree char *copy = str_dup(str_of(g->j->path));
    if (!copy)
        return err_nomem(err);
    if (g->done != g->j->pin.want.bytes)
        return err_set(err, -EBADMSG, "the fragments of '%s' are shorter than they were", g->j->file);
    if (fsync(g->fd) < 0 || rename(temporary, g->j->path) < 0)
        return err_sys(err, -errno, "cannot put '%s' in its place", g->j->path);
    os_autoclose int dir = os_open_dir(dirname(copy), err);
    if (dir < 0)
        return dir;
    if (fsync(dir) < 0 && errno != EINVAL)
        return err_sys(err, -errno, "cannot write to the folder of '%s'", g->j->path);
    os_sha256_final(&g->h, g->m.sha256);
    if (!os_unhex(str_of(g->j->pin.want.git_sha1), g->m.git_sha1, sizeof g->m.git_sha1))
        return err_set(err, -EINVAL, "the sum over the fragments of '%s' is none", g->j->file);
    return store_manifest_save(g->s->store, g->j->path, &g->m, err);
}

/* A pipe of that name must not hold us up. */
static int open_temporary(const char *path, struct err *err)
{
    os_autoclose int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot write '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "'%s' is no regular file: move it away", path);
    return ftruncate(fd, 0) < 0 ? err_sys(err, -errno, "cannot write '%s'", path) : os_take_fd(&fd);
}

static int join(struct pull_session *s, const struct pull_join *j, struct err *err)
{
    struct joining g = {.s = s, .j = j, .fd = -1};
    const char *temporary = arena_printf(s->arena, "%s.part", j->path);
    if (!temporary)
        return err_nomem(err);
    g.chunk = malloc(CHUNK);
    os_sha256_init(&g.h);
    int r = store_manifest_init(&g.m, j->pin.want.bytes);
    r = r == 0 && g.chunk ? store_space_check(j->path, j->pin.want.bytes, err) : err_nomem(err);
    if (r == 0)
        r = g.fd = open_temporary(temporary, err);
    r = r < 0 ? r : 0;
    for (size_t i = 1; r == 0 && i <= j->pin.n_parts; i++) {
        base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
        buf_addf(&path, "%s.part%zuof%zu", j->path, i, j->pin.n_parts);
        r = buf_status(&path) < 0 ? err_nomem(err) : append(&g, path.ptr, err);
    }
    if (r == 0)
        r = place(&g, temporary, err);
    else if (g.fd >= 0)
        (void)unlink(temporary);
    for (size_t i = 1; r == 0 && i <= j->pin.n_parts; i++) {
        base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
        buf_addf(&path, "%s.part%zuof%zu", j->path, i, j->pin.n_parts);
        if (buf_status(&path) == 0)
            (void)unlink(path.ptr);
    }
    os_closep(&g.fd);
    store_manifest_release(&g.m);
    free(g.chunk);
    return r;
}

static bool is_complete(const struct pull_plan *p, const struct pull_join *j)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].joined && strcmp(p->items[i].joined, j->path) == 0 && !p->items[i].here)
            return false;
    return true;
}

int pull_join_all(struct pull_session *s, struct pull_plan *p, struct err *err)
{
    int r = 0;
    for (size_t k = 0; r == 0 && k < p->n_joins; k++) {
        struct pull_join *j = &p->joins[k];
        if (j->here || !is_complete(p, j))
            continue;
        r = join(s, j, err);
        j->here = r == 0;
        if (r == 0)
            os_progress_set(s->progress, j->file, "joined of its fragments, proven", 0, 0, OS_GREEN);
    }
    return r;
}
