/* SPDX-License-Identifier: MIT
 *
 * Files as sources for gguf, and split sets found beside one of their parts. Reading goes through pread on a descriptor: no mapping, so a file that shrinks under us is an error of one call.
 */
#include "store_int.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one file ------------------------------------------------------------------------------------------------- */

/* The descriptor travels in the context pointer: a source needs no memory of its own. +1, so that all zero is none. */
static void *ctx_of(int fd)
{
    return (void *)(uintptr_t)(unsigned)(fd + 1);
}

static int fd_of(const void *ctx)
{
    return (int)(uintptr_t)ctx - 1;
}

static int source_read(void *ctx, uint64_t off, void *buf, size_t len, struct err *err)
{
    char *to = buf;
    while (len) {
        ssize_t n = pread(fd_of(ctx), to, len, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, -errno, "cannot read %zu bytes at byte %" PRIu64, len, off);
        if (n == 0)
            return err_set(err, -ENODATA, "the file was cut short at byte %" PRIu64 " while it was read", off);
        to += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode))
        return "a folder; name a file in it";
    if (S_ISFIFO(mode))
        return "a pipe; name a file";
    if (S_ISSOCK(mode))
        return "a socket; name a file";
    return "a device; name a file";
}

int store_source_open(const char *path, struct gguf_source *ret, struct err *err)
{
    /* NONBLOCK: opening a pipe by mistake must not wait for a writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    int r = 0;
    if (fd < 0)
        return err_sys(err, -errno, "cannot open the file");
    if (fstat(fd, &st) < 0)
        r = err_sys(err, -errno, "cannot look at the file");
    else if (!S_ISREG(st.st_mode))
        r = err_set(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, "is %s", kind_of(st.st_mode));
    else
        *ret = (struct gguf_source){.read = source_read, .size = (uint64_t)st.st_size, .ctx = ctx_of(fd)};
    if (r < 0)
        (void)close(fd);
    return r;
}

void store_source_close(struct gguf_source *s)
{
    if (s->ctx)
        (void)close(fd_of(s->ctx));
    *s = (struct gguf_source){.size = 0};
}

static int open_file(void *ctx, const char *path, struct gguf_source *ret, struct err *err)
{
    (void)ctx;
    return store_source_open(path, ret, err);
}

const struct store_opener store_files = {.open = open_file, .close = store_source_close};

int store_source_read(const struct gguf_source *s, struct buf *out, struct err *err)
{
    if (s->size > out->max - out->len)
        return err_set(err, -EFBIG, "the file has %" PRIu64 " bytes; at most %zu are read", s->size, out->max);
    if (!s->size)
        return 0;
    char *to = buf_room(out, (size_t)s->size);
    if (!to)
        return err_nomem(err);
    int r = s->read(s->ctx, 0, to, (size_t)s->size, err);
    if (r == 0)
        buf_grew(out, (size_t)s->size);
    return r;
}

/* ---- a set ------------------------------------------------------------------------------------------------------ */

/* The path of part no (from 1) beside path, whose last component is at name_off. NULL without memory. */
static char *part_path(const char *path, size_t name_off, const struct gguf_split_name *n, uint32_t no)
{
    struct buf out = BUF_INIT((size_t)2 * STORE_PATH_MAX);
    buf_add(&out, path, name_off);
    gguf_split_file(&out, n, no);
    char *taken = buf_take(&out);
    buf_release(&out);
    return taken;
}

static int allocate(struct store_weights *w, size_t n, struct err *err)
{
    w->parts = calloc(n, sizeof(*w->parts));
    w->sources = calloc(n, sizeof(void *));
    if (!w->parts || !w->sources) {
        (void)err_nomem(err);
        return -ENOMEM; /* said outright: analyzers do not look into err_nomem */
    }
    w->n = n;
    return 0;
}

/* Opens part i at its path. */
static int open_part(struct store_weights *w, size_t i, struct err *err)
{
    w->sources[i] = calloc(1, sizeof(*w->sources[i]));
    if (!w->sources[i])
        return err_nomem(err);
    int r = w->opener->open(w->opener->ctx, w->parts[i].path, w->sources[i], err);
    return r < 0 ? r : gguf_open(w->sources[i], &w->parts[i].g, err);
}

/* Makes w, which has the one file, the whole set; what is wrong with another part becomes its state. */
static int open_others(struct store_weights *w, size_t name_off, const struct gguf_split_name *name, struct err *err)
{
    if (name->count > GGUF_PARTS_MAX)
        return err_set(err, -E2BIG, "is of a set of %" PRIu32 " parts; at most %d are read", name->count, GGUF_PARTS_MAX);
    struct store_weights one = *w;
    *w = (struct store_weights){.opener = one.opener, .given = name->no - 1};
    int r = allocate(w, name->count, err);
    for (size_t i = 0; r == 0 && i < w->n; i++) {
        struct gguf_part *p = &w->parts[i];
        if (i == w->given) {
            *p = one.parts[0];
            w->sources[i] = one.sources[0];
            one.n = 0;
            continue;
        }
        p->path = part_path(one.parts[0].path, name_off, name, (uint32_t)i + 1);
        int bad = p->path ? open_part(w, i, &p->why) : err_nomem(&p->why);
        if (bad == -ENOMEM)
            r = err_nomem(err);
        else if (bad < 0)
            p->state = bad == -ENOENT ? GGUF_PART_MISSING : GGUF_PART_BAD;
    }
    store_weights_release(&one);
    return r;
}

int store_weights_open(const char *path, struct store_weights *ret, struct err *err)
{
    return store_weights_open_by(&store_files, path, ret, err);
}

int store_weights_open_by(const struct store_opener *o, const char *path, struct store_weights *ret, struct err *err)
{
    struct store_weights w = {.opener = o};
    struct gguf_split split;
    struct gguf_split_name name;
    const char *slash = strrchr(path, '/');
    size_t name_off = slash ? (size_t)(slash - path) + 1 : 0;

    int r = allocate(&w, 1, err);
    if (r == 0) {
        w.parts[0].path = str_dup(str_of(path));
        r = w.parts[0].path ? open_part(&w, 0, err) : err_nomem(err);
    }
    if (r == 0 && gguf_split(w.parts[0].g, &split, NULL) == 1 && gguf_split_name(str_of(path + name_off), &name) && str_eq_c(name.suffix, ".gguf"))
        r = open_others(&w, name_off, &name, err);
    if (r == 0)
        w.verdict = gguf_set_check(w.parts, w.n, &w.why);
    if (w.verdict == -ENOMEM)
        r = err_nomem(err);
    if (r < 0) {
        store_weights_release(&w);
        return r;
    }
    *ret = w;
    return 0;
}

void store_weights_release(struct store_weights *w)
{
    for (size_t i = 0; i < w->n; i++) {
        gguf_free(w->parts[i].g);
        free(w->parts[i].path);
        if (w->sources[i])
            w->opener->close(w->sources[i]);
        free(w->sources[i]);
    }
    free(w->parts);
    free(w->sources);
    *w = (struct store_weights){.given = 0};
}
