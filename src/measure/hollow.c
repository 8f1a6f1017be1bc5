/* SPDX-License-Identifier: MIT
 *
 * Hollow models: the header of a file and a hole as long as its data. The engine reads every size from the header and proves that the data lies inside the file; while it measures it reads no data. Parts of a split set
 * are made under the set's own form of names, because the engine finds them by it.
 */
#include "measure_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK ((size_t)64 << 10)

static int copy_header(const struct gguf_source *src, uint64_t bytes, int fd, const char *path, struct err *err)
{
    char chunk[CHUNK];
    for (uint64_t off = 0; off < bytes;) {
        size_t n = bytes - off < CHUNK ? (size_t)(bytes - off) : CHUNK;
        int r = src->read(src->ctx, off, chunk, n, err);
        if (r == 0)
            r = os_write_all(fd, chunk, n, err);
        if (r < 0)
            return err_prefix(err, "cannot make '%s'", path);
        off += n;
    }
    return 0;
}

static int make_part(const struct gguf_part *part, const struct gguf_source *src, const char *path, struct err *err)
{
    const struct gguf_info *info = gguf_info(part->g);
    uint64_t header = info->data_off < src->size ? info->data_off : src->size;
    uint64_t length = info->end > info->data_off ? info->end : info->data_off;
    if (length > INT64_MAX)
        return err_set(err, -EFBIG, "'%s' claims %llu bytes", part->path, (unsigned long long)length);
    os_autoclose int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(err, -errno, "cannot make '%s'", path);
    if (fchmod(fd, 0644) < 0) /* whatever the umask: the engine may run as another account */
        return err_sys(err, -errno, "cannot set the rights of '%s'", path);
    int r = copy_header(src, header, fd, path, err);
    if (r == 0 && ftruncate(fd, (off_t)length) < 0)
        r = err_sys(err, -errno, "cannot make a hollow file of %llu bytes at '%s'", (unsigned long long)length, path);
    return r;
}

static int make_parts(const struct store_weights *w, const char *folder, const char *name, char **ret, struct err *err)
{
    for (size_t i = 0; i < w->n; i++) {
        base_autobuf struct buf path = BUF_INIT(MEASURE_PATH_MAX);
        if (w->n == 1)
            buf_addf(&path, "%s/%s.gguf", folder, name);
        else
            buf_addf(&path, "%s/%s-%05zu-of-%05zu.gguf", folder, name, i + 1, w->n);
        if (buf_status(&path) < 0)
            return err_set(err, -ENAMETOOLONG, "the path of folder '%s' is too long", folder);
        if (!w->parts[i].g || !w->sources[i]) /* its header is what is needed; missing data is none of our business */
            return err_set(err, w->why.code ? w->why.code : -EBADMSG, "%s", w->why.text);
        int r = make_part(&w->parts[i], w->sources[i], path.ptr, err);
        if (r < 0)
            return r;
        if (i == 0 && !(*ret = buf_take(&path)))
            return err_nomem(err);
    }
    return 0;
}

int measure_hollow(const char *path, const char *folder, const char *name, char **ret_path, struct err *err)
{
    struct store_weights w;
    int r = store_weights_open(path, &w, err);
    if (r < 0)
        return r;
    char *first = NULL;
    r = make_parts(&w, folder, name, &first, err);
    store_weights_release(&w);
    if (r < 0) {
        free(first);
        return r;
    }
    *ret_path = first;
    return 0;
}
