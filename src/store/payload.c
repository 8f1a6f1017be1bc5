/* SPDX-License-Identifier: MIT
 *
 * Where the files of a model are, and the proof that they are there. A file's name comes from the fleet file and stays below its source: absolute paths and
 * ".." are refused here too, whatever was checked before.
 */
#include "store_int.h"

#include <errno.h>
#include <libgen.h>
#include <unistd.h>

#define HEADER_CHUNK 65536

/* kind: "payloads" or "headers". */
static int path_of(const struct store *s, const char *kind, const struct fleet_model *m, const char *file, struct buf *ret, struct err *err)
{
    if (!os_relpath_valid(str_of(file)))
        return err_set(err, -EINVAL, "model '%s': '%s' is no file below its source", m->name, file);
    size_t before = ret->len;
    if (m->source == FLEET_MODEL_HF) {
        const char *revision = m->commit ? m->commit : m->revision;
        if (!os_relpath_valid(str_of(m->source_arg)) || !os_name_valid(str_of(revision)))
            return err_set(err, -EINVAL, "model '%s': '%s' at '%s' is no repository and revision", m->name, m->source_arg, revision);
        buf_addf(ret, "%s/%s/hf/%s/%s/%s", s->root, kind, m->source_arg, revision, file);
    } else if (m->source == FLEET_MODEL_WEB) {
        const char *place = strstr(m->source_arg, "://");
        if (!place || !os_relpath_valid(str_of(place + 3)))
            return err_set(err, -EINVAL, "model '%s': '%s' is no address of a folder", m->name, m->source_arg);
        buf_addf(ret, "%s/%s/web/%s/%s", s->root, kind, place + 3, file);
    } else {
        buf_addf(ret, "%s/%s", m->source_arg, file);
    }
    if (buf_status(ret) < 0)
        return err_nomem(err);
    return ret->len - before < STORE_PATH_MAX ? 0 : err_set(err, -ENAMETOOLONG, "model '%s': the path of '%s' is too long", m->name, file);
}

int store_payload_path(const struct store *s, const struct fleet_model *m, const char *file, struct buf *ret, struct err *err)
{
    return path_of(s, "payloads", m, file, ret, err);
}

int store_header_path(const struct store *s, const struct fleet_model *m, const char *file, struct buf *ret, struct err *err)
{
    if (m->source == FLEET_MODEL_FILE)
        return err_set(err, -EINVAL, "model '%s' has a folder of its own", m->name);
    return path_of(s, "headers", m, file, ret, err);
}

/* The header, and the rest as a hole: what only looks at headers finds nothing missing. */
static int write_header(int fd, const struct gguf_source *src, const struct gguf *g, struct err *err)
{
    uint64_t bytes = gguf_info(g)->data_off < src->size ? gguf_info(g)->data_off : src->size;
    char chunk[HEADER_CHUNK];
    int r = 0;
    for (uint64_t off = 0; r == 0 && off < bytes;) {
        size_t n = bytes - off < sizeof chunk ? (size_t)(bytes - off) : sizeof chunk;
        r = src->read(src->ctx, off, chunk, n, err);
        if (r == 0)
            r = os_write_all(fd, chunk, n, err);
        off += n;
    }
    if (r == 0 && (src->size > INT64_MAX || ftruncate(fd, (off_t)src->size) < 0))
        r = err_sys(err, src->size > INT64_MAX ? -EFBIG : -errno, "cannot make a file as long as the remote one");
    return r;
}

int store_header_save(const struct store *s, const struct fleet_model *m, const char *file, const struct gguf_source *src, const struct gguf *g, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT((size_t)2 * STORE_PATH_MAX), temporary = BUF_INIT((size_t)2 * STORE_PATH_MAX);
    int r = store_header_path(s, m, file, &path, err);
    if (r < 0)
        return r;
    buf_addf(&temporary, "%s.new", path.ptr);
    base_autofree char *folder = str_dup(buf_str(&path));
    if (buf_status(&temporary) < 0 || !folder)
        return err_nomem(err);
    r = os_make_dirs(dirname(folder), 0755, err);
    os_autoclose int fd = r < 0 ? -1 : open(temporary.ptr, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (r == 0 && fd < 0)
        r = err_sys(err, -errno, "cannot write '%s'", temporary.ptr);
    if (r == 0)
        r = write_header(fd, src, g, err);
    if (r == 0 && rename(temporary.ptr, path.ptr) < 0)
        r = err_sys(err, -errno, "cannot write '%s'", path.ptr);
    if (r < 0 && fd >= 0)
        (void)unlink(temporary.ptr);
    return r;
}

static int missing(const struct fleet_model *m, const char *role, const char *file, const char *path, struct err *err)
{
    if (m->source != FLEET_MODEL_FILE)
        return err_set(err, -ENOENT, "model '%s': its %s file '%s' is not here: 'berth pull %s' fetches it to %s", m->name, role, file, m->name, path);
    return err_set(err, -ENOENT, "model '%s': its %s '%s' does not exist: put it there, or correct source and %s", m->name, role, path, role);
}

static int check_path(const struct fleet_model *m, const char *role, const char *file, const char *path, uint64_t *sum, struct err *err)
{
    struct stat st;
    int code = stat(path, &st);
    if (code < 0 && (errno == ENOENT || errno == ENOTDIR))
        return missing(m, role, file, path, err);
    if (code < 0 || (S_ISREG(st.st_mode) && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) < 0))
        return err_sys(err, -errno, "model '%s': its %s '%s' cannot be read", m->name, role, path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, -EINVAL, "model '%s': its %s '%s' is no regular file", m->name, role, path);
    if (st.st_size == 0)
        return err_set(err, -EINVAL, "model '%s': its %s '%s' is empty: fetch it again", m->name, role, path);
    return size_add(*sum, (uint64_t)st.st_size, sum) ? 0 : err_set(err, -ERANGE, "model '%s': the sizes of its files do not fit a number", m->name);
}

/* Every part of the set that the weights begin; a file of its own is one. */
static int each_part(const struct fleet_model *m, int (*fn)(void *ctx, const char *role, const char *file, struct err *err), void *ctx, struct err *err)
{
    struct gguf_split_name set;
    if (!gguf_split_name(str_of(m->weights), &set) || !str_eq_c(set.suffix, ".gguf"))
        return fn(ctx, "weights", m->weights, err);
    int r = 0;
    for (uint32_t i = 1; r == 0 && i <= set.count; i++) {
        base_autobuf struct buf file = BUF_INIT(STORE_PATH_MAX);
        gguf_split_file(&file, &set, i);
        if (buf_status(&file) < 0)
            return err_nomem(err);
        if (set.no != 1)
            return err_set(err, -EINVAL, "model '%s': weights '%s' are part %u of a set: name its first part, '%s'", m->name, m->weights, (unsigned)set.no, file.ptr);
        r = fn(ctx, "weights", file.ptr, err);
    }
    return r;
}

int store_payload_each(const struct fleet_model *m, int (*fn)(void *ctx, const char *role, const char *file, struct err *err), void *ctx, struct err *err)
{
    int r = each_part(m, fn, ctx, err);
    if (r == 0 && m->projector)
        r = fn(ctx, "projector", m->projector, err);
    if (r == 0 && m->drafter)
        r = fn(ctx, "drafter", m->drafter, err);
    return r;
}

struct checked {
    const struct store *s;
    const struct fleet_model *m;
    uint64_t sum;
};

static int check_one(void *ctx, const char *role, const char *file, struct err *err)
{
    struct checked *c = ctx;
    base_autobuf struct buf path = BUF_INIT((size_t)2 * STORE_PATH_MAX);
    int r = store_payload_path(c->s, c->m, file, &path, err);
    return r < 0 ? r : check_path(c->m, role, file, path.ptr, &c->sum, err);
}

int store_payload_check(const struct store *s, const struct fleet_model *m, uint64_t *ret_bytes, struct err *err)
{
    struct checked c = {.s = s, .m = m};
    int r = store_payload_each(m, check_one, &c, err);
    if (r == 0 && m->template_file)
        r = check_path(m, "template", m->template_file, m->template_file, &c.sum, err);
    if (r == 0)
        *ret_bytes = c.sum;
    return r;
}
