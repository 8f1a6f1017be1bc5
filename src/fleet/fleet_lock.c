/* SPDX-License-Identifier: MIT
 *
 * fleet.lock: what was pinned, as JSON, sorted, one file a line group, so that a version control shows what a new lock changed. Read from anybody: every name becomes part of a path and every
 * digest is compared with what was fetched, so each is checked when it is read, and when it is written by reading it again. A lock and all it points at lie in one arena.
 *
 *   {"version": 1,
 *    "models": {"NAME": {"source": "hf:ORG/REPO", "revision": "main", "commit": "40 digits", "files": {"PATH": {"bytes": N, "sha256": "64 digits"}}}},
 *    "runtimes": {"NAME": {"source": "debian:forky", "digest": "64 digits"}}}
 */
#include "fleet_int.h"

#include <errno.h>
#include <fcntl.h>
#include <os/os.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT 1
#define MEMORY_MAX ((size_t)64 << 20) /* of one lock: the file, its strings again, and the structs */
#define COMMIT_DIGITS 40
#define SHA256_DIGITS (OS_SHA256_HEX - 1)
#define SHA1_DIGITS (OS_SHA1_HEX - 1)

struct owned {
    struct arena *arena;
    struct fleet_lock lock;
};

struct reader {
    struct arena *arena;
    const char *path; /* for messages */
    struct err *err;
};

struct fleet_lock *fleet_lock_free(struct fleet_lock *l)
{
    if (l) {
        struct owned *o = base_container(l, struct owned, lock);
        (void)arena_free(o->arena); /* which holds o itself */
    }
    return NULL;
}

void fleet_lock_path(const char *fleet_file, struct buf *out)
{
    struct str s = str_of(fleet_file);
    s.len -= str_ends(s, STR(".yaml")) ? 5 : str_ends(s, STR(".yml")) ? 4 : 0;
    buf_add_str(out, s);
    buf_add_c(out, ".lock");
}

void fleet_source_text(const struct fleet *f, const struct fleet_model *m, struct buf *out)
{
    if (m->source == FLEET_MODEL_HF) {
        buf_addf(out, "hf:%s", m->source_arg);
        return;
    }
    if (m->source == FLEET_MODEL_WEB) {
        buf_add_c(out, m->source_arg);
        return;
    }
    size_t dir = strlen(f->dir);
    bool inside = strncmp(m->source_arg, f->dir, dir) == 0 && m->source_arg[dir] == '/' && m->source_arg[dir + 1];
    buf_addf(out, "file:%s", inside ? m->source_arg + dir + 1 : m->source_arg);
}

void fleet_runtime_text(const struct fleet_runtime *rt, struct buf *out)
{
    static const char *const kinds[] = {[FLEET_SOURCE_DEBIAN] = "debian:", [FLEET_SOURCE_PATH] = "path:", [FLEET_SOURCE_SYSTEM] = "system", [FLEET_SOURCE_ARCHIVE] = "archive:", [FLEET_SOURCE_OCI] = "oci:"};
    buf_addf(out, "%s%s", kinds[rt->source], rt->source == FLEET_SOURCE_SYSTEM || !rt->source_arg ? "" : rt->source_arg);
    if (rt->source == FLEET_SOURCE_ARCHIVE)
        buf_addf(out, "#sha256=%s", rt->digest);
}

/* ---- finding -------------------------------------------------------------------------------------------------- */

const struct fleet_lock_model *fleet_lock_find_model(const struct fleet_lock *l, const char *name)
{
    return l ? fleet_find(l->models, l->n_models, sizeof *l->models, str_of(name)) : NULL;
}

const struct fleet_lock_file *fleet_lock_find_file(const struct fleet_lock_model *m, const char *path)
{
    return m ? fleet_find(m->files, m->n_files, sizeof *m->files, str_of(path)) : NULL;
}

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

const struct fleet_lock_model *fleet_lock_of(const struct fleet *f, const struct fleet_model *m)
{
    const struct fleet_lock_model *l = fleet_lock_find_model(f->lock, m->name);
    base_autobuf struct buf source = BUF_INIT((size_t)2 * FLEET_TEXT_MAX);
    fleet_source_text(f, m, &source);
    return l && buf_status(&source) == 0 && same(l->source, source.ptr) && same(l->revision, m->revision) ? l : NULL;
}

const struct fleet_lock_runtime *fleet_lock_of_runtime(const struct fleet *f, const struct fleet_runtime *rt)
{
    const struct fleet_lock_runtime *l = f->lock ? fleet_find(f->lock->runtimes, f->lock->n_runtimes, sizeof *l, str_of(rt->name)) : NULL;
    base_autobuf struct buf source = BUF_INIT((size_t)2 * FLEET_TEXT_MAX);
    fleet_runtime_text(rt, &source);
    return l && buf_status(&source) == 0 && strcmp(l->source, source.ptr) == 0 ? l : NULL;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static int refuse(const struct reader *r, const char *what, struct str value)
{
    base_autobuf struct buf shown = BUF_INIT(ERR_TEXT_MAX);
    buf_add_printable(&shown, value, FLEET_SHOW_MAX);
    return err_set(r->err, -EINVAL, "%s: %s '%s': remove the file, and 'berth lock' writes a new one", r->path, what, shown.ptr ? shown.ptr : "");
}

static bool is_hex(struct str s, size_t digits)
{
    uint8_t raw[OS_SHA256_BYTES];
    return digits <= 2 * sizeof raw && os_unhex(s, raw, digits / 2);
}

/* A text member without control bytes, into *ret. */
static int read_text(const struct reader *r, json_val obj, const char *key, const char **ret)
{
    struct str s;
    if (!json_str(json_get(obj, key), &s) || s.len == 0 || s.len > FLEET_TEXT_MAX)
        return refuse(r, "no good text for", str_of(key));
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7f)
            return refuse(r, "a control character in", s);
    *ret = arena_dup(r->arena, s);
    return *ret ? 0 : err_nomem(r->err);
}

/* A digest member of so many digits; *ret stays NULL when it is not there. */
static int read_digest(const struct reader *r, json_val obj, const char *key, size_t digits, const char **ret)
{
    struct str s;
    json_val v = json_get(obj, key);
    if (!v)
        return 0;
    if (!json_str(v, &s) || !is_hex(s, digits))
        return refuse(r, "not lower-case hexadecimal digits of the right length for", str_of(key));
    *ret = arena_dup(r->arena, s);
    return *ret ? 0 : err_nomem(r->err);
}

static int read_file(const struct reader *r, struct str path, json_val v, struct fleet_lock_file *ret)
{
    if (!os_relpath_valid(path))
        return refuse(r, "no path below a source:", path);
    if (!json_u64(json_get(v, "bytes"), &ret->bytes) || ret->bytes > INT64_MAX)
        return refuse(r, "no good number of bytes for", path);
    int rc = read_digest(r, v, "sha256", SHA256_DIGITS, &ret->sha256);
    if (rc == 0)
        rc = read_digest(r, v, "git_sha1", SHA1_DIGITS, &ret->git_sha1);
    if (rc == 0 && !ret->sha256 == !ret->git_sha1)
        return refuse(r, "neither or both of sha256 and git_sha1 for", path);
    ret->path = arena_dup(r->arena, path);
    return rc < 0 || ret->path ? rc : err_nomem(r->err);
}

/* Structs begin with their name. */
static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts n structs by name and refuses one name twice. */
static int sort_names(const struct reader *r, void *parts, size_t n, size_t size)
{
    if (n)
        qsort(parts, n, size, compare_names);
    for (size_t i = 1; i < n; i++) {
        const char *const *a = (const void *)((const char *)parts + (i - 1) * size), *const *b = (const void *)((const char *)parts + i * size);
        if (strcmp(*a, *b) == 0)
            return refuse(r, "twice in one place:", str_of(*a));
    }
    return 0;
}

static int read_files(const struct reader *r, json_val obj, struct fleet_lock_model *m)
{
    size_t n = json_count(obj), at = 0;
    struct str path;
    json_val v;
    if (!json_is_obj(obj) || n == 0 || n > FLEET_LOCK_FILES_MAX)
        return refuse(r, "no good list of files for model", str_of(m->name));
    struct fleet_lock_file *files = arena_alloc(r->arena, n, sizeof *files);
    if (!files)
        return err_nomem(r->err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n && json_next(obj, &at, &path, &v); i++)
        rc = read_file(r, path, v, &files[i]);
    m->files = files;
    m->n_files = n;
    return rc < 0 ? rc : sort_names(r, files, n, sizeof *files);
}

static int read_model(const struct reader *r, struct str name, json_val v, struct fleet_lock_model *m)
{
    if (!fleet_name_valid(name))
        return refuse(r, "no name of a model:", name);
    m->name = arena_dup(r->arena, name);
    int rc = m->name ? read_text(r, v, "source", &m->source) : err_nomem(r->err);
    if (rc == 0 && str_starts(str_of(m->source), STR("hf:"))) {
        rc = read_text(r, v, "revision", &m->revision);
        if (rc == 0)
            rc = read_digest(r, v, "commit", COMMIT_DIGITS, &m->commit);
        if (rc == 0 && !m->commit)
            rc = refuse(r, "no commit for model", name);
    } else if (rc == 0 && !str_starts(str_of(m->source), STR("file:")) && !str_starts(str_of(m->source), STR("https://")) && !str_starts(str_of(m->source), STR("http://"))) {
        rc = refuse(r, "unknown source", str_of(m->source));
    }
    return rc < 0 ? rc : read_files(r, json_get(v, "files"), m);
}

static int read_runtime(const struct reader *r, struct str name, json_val v, struct fleet_lock_runtime *rt)
{
    if (!fleet_name_valid(name))
        return refuse(r, "no name of a runtime:", name);
    rt->name = arena_dup(r->arena, name);
    int rc = rt->name ? read_text(r, v, "source", &rt->source) : err_nomem(r->err);
    if (rc == 0)
        rc = read_digest(r, v, "digest", SHA256_DIGITS, &rt->digest);
    return rc == 0 && !rt->digest ? refuse(r, "no digest for runtime", name) : rc;
}

static int read_models(const struct reader *r, json_val obj, struct fleet_lock *l)
{
    size_t n = json_count(obj), at = 0;
    struct str name;
    json_val v;
    if (obj && (!json_is_obj(obj) || n > FLEET_SERVICES_MAX))
        return refuse(r, "no good", STR("models"));
    struct fleet_lock_model *models = arena_alloc(r->arena, n ? n : 1, sizeof *models);
    if (!models)
        return err_nomem(r->err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n && json_next(obj, &at, &name, &v); i++)
        rc = read_model(r, name, v, &models[i]);
    l->models = models;
    l->n_models = n;
    return rc < 0 ? rc : sort_names(r, models, n, sizeof *models);
}

static int read_runtimes(const struct reader *r, json_val obj, struct fleet_lock *l)
{
    size_t n = json_count(obj), at = 0;
    struct str name;
    json_val v;
    if (obj && (!json_is_obj(obj) || n > FLEET_SERVICES_MAX))
        return refuse(r, "no good", STR("runtimes"));
    struct fleet_lock_runtime *runtimes = arena_alloc(r->arena, n ? n : 1, sizeof *runtimes);
    if (!runtimes)
        return err_nomem(r->err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n && json_next(obj, &at, &name, &v); i++)
        rc = read_runtime(r, name, v, &runtimes[i]);
    l->runtimes = runtimes;
    l->n_runtimes = n;
    return rc < 0 ? rc : sort_names(r, runtimes, n, sizeof *runtimes);
}

static int read_all(const struct reader *r, json_val root, struct fleet_lock *l)
{
    uint64_t format;
    if (!json_u64(json_get(root, "version"), &format) || format == 0)
        return refuse(r, "no good", STR("version"));
    if (format > FORMAT)
        return err_set(r->err, -EINVAL, "%s: has format %llu and this berth knows %d: use the berth that wrote it", r->path, (unsigned long long)format, FORMAT);
    int rc = read_models(r, json_get(root, "models"), l);
    return rc < 0 ? rc : read_runtimes(r, json_get(root, "runtimes"), l);
}

int fleet_lock_parse(struct str text, const char *path, struct fleet_lock **ret, struct err *err)
{
    struct err why;
    struct json *j;
    int rc = json_parse(text, &j, &why);
    if (rc < 0)
        return rc == -ENOMEM ? err_nomem(err) : err_set(err, -EINVAL, "%s: %s", path, why.text);
    struct arena *a = arena_new(MEMORY_MAX);
    struct owned *o = a ? arena_alloc(a, 1, sizeof *o) : NULL;
    if (o) {
        struct reader r = {.arena = a, .path = path, .err = err};
        o->arena = a;
        rc = read_all(&r, json_root(j), &o->lock);
    } else {
        rc = err_nomem(err);
    }
    (void)json_free(j);
    if (rc < 0)
        (void)arena_free(a);
    else
        *ret = &o->lock;
    return rc;
}

int fleet_lock_load(const char *path, struct fleet_lock **ret, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(FLEET_LOCK_BYTES_MAX);
    int rc = os_read_file(AT_FDCWD, path, &text, err);
    if (rc == -EFBIG)
        return err_set(err, -EINVAL, "%s: is larger than %zu MiB", path, FLEET_LOCK_BYTES_MAX >> 20);
    return rc < 0 ? rc : fleet_lock_parse(buf_str(&text), path, ret, err);
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    return compare_names(*(const void *const *)a, *(const void *const *)b);
}

/* Places of n structs, sorted by name. */
static const void **sorted(const void *parts, size_t n, size_t size)
{
    const void **places = calloc(n + 1, sizeof *places);
    if (!places)
        return NULL;
    for (size_t i = 0; i < n; i++)
        places[i] = (const char *)parts + i * size;
    if (n)
        qsort(places, n, sizeof *places, compare_places);
    return places;
}

static int write_model(struct json_out *o, const struct fleet_lock_model *m)
{
    base_autofree const void **files = sorted(m->files, m->n_files, sizeof *m->files);
    if (!files)
        return -ENOMEM;
    json_out_obj(o, m->name);
    json_out_cstr(o, "source", m->source);
    if (m->revision)
        json_out_cstr(o, "revision", m->revision);
    if (m->commit)
        json_out_cstr(o, "commit", m->commit);
    json_out_obj(o, "files");
    for (size_t i = 0; i < m->n_files; i++) {
        const struct fleet_lock_file *f = files[i];
        json_out_obj(o, f->path);
        json_out_u64(o, "bytes", f->bytes);
        if (f->sha256)
            json_out_cstr(o, "sha256", f->sha256);
        if (f->git_sha1)
            json_out_cstr(o, "git_sha1", f->git_sha1);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    return 0;
}

static int lock_text(const struct fleet_lock *l, struct buf *out)
{
    const void **models = sorted(l->models, l->n_models, sizeof *l->models);
    const void **runtimes = sorted(l->runtimes, l->n_runtimes, sizeof *l->runtimes);
    struct json_out *o = json_out_new();
    if (!models || !runtimes || !o) {
        (void)json_out_free(o);
        free(models);
        free(runtimes);
        return -ENOMEM;
    }
    int rc = 0;
    json_out_obj(o, NULL);
    json_out_u64(o, "version", FORMAT);
    json_out_obj(o, "models");
    for (size_t i = 0; rc == 0 && i < l->n_models; i++)
        rc = write_model(o, models[i]);
    json_out_end(o);
    json_out_obj(o, "runtimes");
    for (size_t i = 0; i < l->n_runtimes; i++) {
        const struct fleet_lock_runtime *rt = runtimes[i];
        json_out_obj(o, rt->name);
        json_out_cstr(o, "source", rt->source);
        json_out_cstr(o, "digest", rt->digest);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    if (rc == 0)
        rc = json_out_finish(o, true, out);
    (void)json_out_free(o);
    free(models);
    free(runtimes);
    return rc;
}

int fleet_lock_write(const struct fleet_lock *l, const char *path, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(FLEET_LOCK_BYTES_MAX);
    struct fleet_lock *again = NULL;
    int rc = lock_text(l, &text);
    if (rc < 0)
        return err_sys(err, rc, "cannot write '%s'", path);
    /* what could not be read again is not written */
    rc = fleet_lock_parse(buf_str(&text), path, &again, err);
    again = fleet_lock_free(again);
    return rc < 0 ? rc : os_put_file(path, text.ptr, text.len, 0644, err);
}
