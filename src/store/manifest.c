/* SPDX-License-Identifier: MIT
 *
 * manifest.json: what an installed runtime is made of. The file is JSON so that people and other programs can read it; what names a
 * runtime is the sha256 of a plain text form of the same facts, one line each, so that the digest does not depend on how JSON is
 * laid out. A manifest read from disk proves itself: the digest is computed again, and the folder's name must carry it (store.c).
 */
#include "store_int.h"

#include <conf/conf.h>
#include <errno.h>

#define FORMAT 1
#define VERSION_MAX 64 /* bytes of an engine's version: it becomes part of a path */
#define ID_DIGITS 12

static const char *const kind_names[] = {[MANIFEST_DIR] = "dir", [MANIFEST_FILE] = "file", [MANIFEST_LINK] = "link"};

struct manifest *manifest_new(void)
{
    struct manifest *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->arena = arena_new(MANIFEST_MEMORY_MAX);
    if (!m->arena)
        return manifest_free(m);
    m->engine = m->version = m->source = m->packages = m->program = "";
    return m;
}

struct manifest *manifest_free(struct manifest *m)
{
    if (!m)
        return NULL;
    m->arena = arena_free(m->arena);
    free(m->entries);
    free(m);
    return NULL;
}

/* Takes e, whose texts live as long as m. */
static int append(struct manifest *m, const struct manifest_entry *e, struct err *err)
{
    if (m->n_entries == MANIFEST_ENTRIES_MAX)
        return err_set(err, -E2BIG, "too many files: a runtime has at most %d", MANIFEST_ENTRIES_MAX);
    if (m->n_entries == m->cap_entries) {
        size_t cap = m->cap_entries ? m->cap_entries * 2 : 256;
        struct manifest_entry *p = realloc(m->entries, cap * sizeof *p);
        if (!p)
            return err_nomem(err);
        m->entries = p;
        m->cap_entries = cap;
    }
    if (e->kind == MANIFEST_FILE) {
        if (!size_add(m->bytes, e->bytes, &m->bytes))
            return err_set(err, -E2BIG, "the sizes of all files do not fit a number");
        m->n_files++;
    }
    m->entries[m->n_entries++] = *e;
    return 0;
}

int manifest_add(struct manifest *m, const struct manifest_entry *e, struct err *err)
{
    struct manifest_entry copy = *e;
    copy.path = arena_dup(m->arena, str_of(e->path));
    copy.detail = arena_dup(m->arena, str_of(e->detail));
    return copy.path && copy.detail ? append(m, &copy, err) : err_nomem(err);
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct manifest_entry *)a)->path, ((const struct manifest_entry *)b)->path);
}

/* The line of an entry. Written by hand: a runtime has a thousand of them, and every command that wants one proves its manifest. */
static void add_line(struct buf *line, const struct manifest_entry *e)
{
    const char mode[] = {' ', (char)('0' + (e->mode >> 9 & 7)), (char)('0' + (e->mode >> 6 & 7)), (char)('0' + (e->mode >> 3 & 7)), (char)('0' + (e->mode & 7)), ' '};
    buf_add_c(line, kind_names[e->kind]);
    buf_add(line, mode, sizeof mode);
    buf_add_u64(line, e->bytes);
    buf_add_char(line, ' ');
    buf_add_c(line, e->path);
    buf_add_char(line, ' ');
    buf_add_c(line, e->detail);
    buf_add_char(line, '\n');
}

/* No field can hold a line feed: names have no control bytes, link texts and versions are checked. */
static int compute_digest(struct manifest *m, struct err *err)
{
    struct os_sha256 d;
    uint8_t sum[OS_SHA256_BYTES];
    base_autobuf struct buf line = BUF_INIT((size_t)4 * STORE_PATH_MAX);
    os_sha256_init(&d);
    buf_addf(&line, "berth runtime %d\nengine %s\nversion %s\nsource %s\npackages %s\nprogram %s\ncomplete %d\n", FORMAT, m->engine, m->version,
             m->source, m->packages, m->program, m->complete);
    for (size_t i = 0; i <= m->n_entries; i++) {
        if (buf_status(&line) < 0)
            return err_sys(err, buf_status(&line), "cannot compute the manifest's digest");
        os_sha256_update(&d, line.ptr, line.len);
        buf_clear(&line);
        if (i < m->n_entries)
            add_line(&line, &m->entries[i]);
    }
    os_sha256_final(&d, sum);
    (void)os_hex(sum, sizeof sum, m->digest);
    return 0;
}

int manifest_seal(struct manifest *m, struct err *err)
{
    bool in_order = true; /* as manifest_text writes them */
    for (size_t i = 1; in_order && i < m->n_entries; i++)
        in_order = strcmp(m->entries[i - 1].path, m->entries[i].path) < 0;
    if (!in_order)
        qsort(m->entries, m->n_entries, sizeof *m->entries, compare_entries);
    for (size_t i = 1; !in_order && i < m->n_entries; i++)
        if (strcmp(m->entries[i - 1].path, m->entries[i].path) == 0)
            return err_set(err, -EEXIST, "'%s' is there twice", m->entries[i].path);
    return compute_digest(m, err);
}

ptrdiff_t manifest_find(const struct manifest *m, const char *path)
{
    if (!m->n_entries)
        return -1;
    struct manifest_entry key = {.path = path};
    const struct manifest_entry *e = bsearch(&key, m->entries, m->n_entries, sizeof *e, compare_entries);
    return e ? e - m->entries : -1;
}

const char *manifest_id(const struct manifest *m)
{
    return arena_printf(m->arena, "%s-%s-%.*s", m->engine, m->version, ID_DIGITS, m->digest);
}

bool manifest_is_sha256(struct str s)
{
    if (s.len != OS_SHA256_HEX - 1)
        return false;
    for (size_t i = 0; i < s.len; i++)
        if (!((s.ptr[i] >= '0' && s.ptr[i] <= '9') || (s.ptr[i] >= 'a' && s.ptr[i] <= 'f')))
            return false;
    return true;
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static void write_entry(struct json_out *o, const struct manifest_entry *e)
{
    json_out_obj(o, e->path);
    json_out_cstr(o, "kind", kind_names[e->kind]);
    if (e->kind == MANIFEST_LINK) {
        json_out_cstr(o, "target", e->detail);
    } else {
        char mode[8];
        snprintf(mode, sizeof mode, "%04o", (unsigned)(e->mode & 07777));
        json_out_cstr(o, "mode", mode);
    }
    if (e->kind == MANIFEST_FILE) {
        json_out_u64(o, "bytes", e->bytes);
        json_out_cstr(o, "sha256", e->detail);
    }
    json_out_end(o);
}

int manifest_text(const struct manifest *m, struct buf *out, struct err *err)
{
    struct json_out *o = json_out_new();
    if (!o)
        return err_nomem(err);
    json_out_obj(o, NULL);
    json_out_u64(o, "version", FORMAT);
    json_out_cstr(o, "engine", m->engine);
    json_out_cstr(o, "engine_version", m->version);
    json_out_cstr(o, "source", m->source);
    json_out_cstr(o, "packages", m->packages);
    json_out_cstr(o, "program", m->program);
    json_out_bool(o, "complete", m->complete);
    json_out_u64(o, "installed_us", m->installed_us);
    json_out_cstr(o, "digest", m->digest);
    json_out_arr(o, "debs");
    for (size_t i = 0; i < m->n_debs; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "file", m->debs[i].file);
        json_out_cstr(o, "sha256", m->debs[i].sha256);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_obj(o, "files"); /* by path */
    for (size_t i = 0; i < m->n_entries; i++)
        write_entry(o, &m->entries[i]);
    json_out_end(o);
    json_out_end(o);
    int r = json_out_finish(o, true, out);
    json_out_free(o);
    return r < 0 ? err_sys(err, r, "cannot write the manifest") : 0;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static int bad(struct err *err, const char *what, struct str value)
{
    base_autobuf struct buf shown = BUF_INIT(1024);
    buf_add_printable(&shown, value, 120);
    return err_set(err, -EBADMSG, "not a runtime's manifest: %s '%s'", what, shown.ptr ? shown.ptr : "");
}

/* A text without control bytes, copied. NULL with err set. */
static const char *get_text(struct manifest *m, json_val obj, const char *key, size_t max, struct err *err)
{
    struct str s;
    if (!json_str(json_get(obj, key), &s) || s.len > max) {
        (void)bad(err, "no good text for", str_of(key));
        return NULL;
    }
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7f) {
            (void)bad(err, "control byte in", s);
            return NULL;
        }
    }
    const char *copy = arena_dup(m->arena, s);
    if (!copy)
        (void)err_nomem(err);
    return copy;
}

static int get_mode(json_val obj, uint32_t *ret, struct err *err)
{
    struct str s;
    if (!json_str(json_get(obj, "mode"), &s) || s.len != 4 || s.ptr[0] != '0')
        return bad(err, "no good", STR("mode"));
    uint32_t mode = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '7')
            return bad(err, "mode", s);
        mode = mode * 8 + (uint32_t)(s.ptr[i] - '0');
    }
    *ret = mode;
    return 0;
}

static int read_entry(struct manifest *m, struct str path, json_val v, struct err *err)
{
    struct manifest_entry e = {.detail = ""};
    struct str kind;
    if (!os_relpath_valid(path) || path.len >= STORE_PATH_MAX)
        return bad(err, "path", path);
    if (!json_str(json_get(v, "kind"), &kind))
        return bad(err, "no kind of", path);
    size_t k = 0;
    while (k < BASE_COUNT(kind_names) && !str_eq_c(kind, kind_names[k]))
        k++;
    if (k == BASE_COUNT(kind_names))
        return bad(err, "kind", kind);
    e.kind = (enum manifest_kind)k;
    int r = e.kind == MANIFEST_LINK ? 0 : get_mode(v, &e.mode, err);
    if (r < 0)
        return r;
    if (e.kind == MANIFEST_LINK && !(e.detail = get_text(m, v, "target", STORE_PATH_MAX - 1, err)))
        return -EBADMSG;
    struct str digest;
    if (e.kind == MANIFEST_FILE) {
        if (!json_u64(json_get(v, "bytes"), &e.bytes) || !json_str(json_get(v, "sha256"), &digest) || !manifest_is_sha256(digest))
            return bad(err, "no good size or sha256 of", path);
        if (!(e.detail = get_text(m, v, "sha256", OS_SHA256_HEX, err)))
            return -EBADMSG;
    }
    e.path = arena_dup(m->arena, path);
    return e.path ? append(m, &e, err) : err_nomem(err);
}

static int read_debs(struct manifest *m, json_val arr, struct err *err)
{
    size_t n = json_count(arr);
    if (!json_is_arr(arr) || n > MANIFEST_DEBS_MAX)
        return bad(err, "no good", STR("debs"));
    m->debs = arena_alloc(m->arena, n, sizeof *m->debs);
    if (n && !m->debs)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        json_val v = json_at(arr, i);
        struct str sha;
        if (!json_str(json_get(v, "sha256"), &sha) || !manifest_is_sha256(sha))
            return bad(err, "no good sha256 in", STR("debs"));
        m->debs[i].sha256 = get_text(m, v, "sha256", OS_SHA256_HEX, err);
        m->debs[i].file = get_text(m, v, "file", 255, err);
        if (!m->debs[i].sha256 || !m->debs[i].file)
            return -EBADMSG;
    }
    m->n_debs = n;
    return 0;
}

static bool version_valid(const char *v)
{
    size_t n = strlen(v);
    return n > 0 && n <= VERSION_MAX && v[strspn(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+~_-")] == '\0';
}

static int read_head(struct manifest *m, json_val root, struct err *err)
{
    uint64_t format;
    if (!json_u64(json_get(root, "version"), &format))
        return bad(err, "no", STR("version"));
    if (format != FORMAT)
        return err_set(err, -EBADMSG, "the manifest has format %llu and this berth knows %d: use the berth that wrote it", (unsigned long long)format,
                       FORMAT);
    m->engine = get_text(m, root, "engine", FLEET_NAME_MAX, err);
    m->version = m->engine ? get_text(m, root, "engine_version", VERSION_MAX, err) : NULL;
    m->source = m->version ? get_text(m, root, "source", STORE_PATH_MAX, err) : NULL;
    m->packages = m->source ? get_text(m, root, "packages", 65536, err) : NULL;
    m->program = m->packages ? get_text(m, root, "program", STORE_PATH_MAX - 1, err) : NULL;
    if (!m->program)
        return -EBADMSG;
    if (!fleet_name_valid(str_of(m->engine)))
        return bad(err, "engine", str_of(m->engine));
    if (!version_valid(m->version))
        return bad(err, "engine_version", str_of(m->version));
    if (*m->program && (*m->program != '/' || !os_relpath_valid(str_of(m->program + 1))))
        return bad(err, "program", str_of(m->program));
    if (!json_bool(json_get(root, "complete"), &m->complete) || !json_u64(json_get(root, "installed_us"), &m->installed_us))
        return bad(err, "no", STR("complete or installed_us"));
    return 0;
}

static int read_all(struct manifest *m, json_val root, struct err *err)
{
    int r = read_head(m, root, err);
    if (r == 0)
        r = read_debs(m, json_get(root, "debs"), err);
    if (r < 0)
        return r;
    json_val files = json_get(root, "files");
    if (!json_is_obj(files))
        return bad(err, "no", STR("files"));
    size_t at = 0;
    struct str path;
    json_val v;
    while (r == 0 && json_next(files, &at, &path, &v))
        r = read_entry(m, path, v, err);
    if (r == 0)
        r = manifest_seal(m, err);
    if (r < 0)
        return r;
    struct str digest;
    if (!json_str(json_get(root, "digest"), &digest) || !str_eq_c(digest, m->digest))
        return err_set(err, -EBADMSG, "the manifest was changed: its content has digest %.12s", m->digest);
    return 0;
}

int manifest_parse(struct str text, struct manifest **ret, struct err *err)
{
    struct json *j;
    int r = json_parse(text, &j, err);
    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        struct err why = err ? *err : (struct err){0};
        return err_set(err, -EBADMSG, "not a runtime's manifest: %s", why.text);
    }
    struct manifest *m = manifest_new();
    r = m ? read_all(m, json_root(j), err) : err_nomem(err);
    json_free(j);
    if (r < 0) {
        manifest_free(m);
        return r;
    }
    *ret = m;
    return 0;
}
