/* SPDX-License-Identifier: MIT
 *
 * Manifests of payload files: what a file was when it was proven, and how to prove any part of it again. They lie in store/manifests, named by the sha256 of the file's absolute path, so that a model in a
 * user's own folder can have one and gets no litter. Little endian, one write, one rename:
 *
 *   8 magic | u32 format | u32 segment bytes | stamp: u64 inode, size, mtime ns, ctime ns | 32 sha256 | 20 git sha1 | u32 length of the path | path | u64 states | 32 each | 32 sha256 of all before
 *
 * The stamp is the file's as it was before the first byte of the proof was read. Whatever changes a file changes its ctime, which nobody can set; so the same stamp means the same file, up to what goes around the
 * file system (a dying disk, a bit in memory): that is what a full verification is for. The device is not in it: its number may be another after each start of the machine.
 */
#include "store_int.h"

#include <errno.h>
#include <libgen.h>
#include <sys/statvfs.h>

#define FORMAT 1
#define HEAD_BYTES (8 + 4 + 4 + 4 * 8 + OS_SHA256_BYTES + 20 + 4)
static const char magic[8] = "berthseg";

size_t store_segments(uint64_t bytes)
{
    return (size_t)(bytes / STORE_SEGMENT_BYTES + (bytes % STORE_SEGMENT_BYTES != 0));
}

size_t store_states(uint64_t bytes)
{
    size_t n = store_segments(bytes);
    return n ? n - 1 : 0;
}

int store_manifest_init(struct store_manifest *m, uint64_t bytes)
{
    *m = (struct store_manifest){.bytes = bytes, .n_states = store_states(bytes)};
    m->states = calloc(m->n_states + 1, sizeof *m->states);
    return m->states ? 0 : -ENOMEM;
}

void store_manifest_release(struct store_manifest *m)
{
    free(m->states);
    *m = (struct store_manifest){.bytes = 0};
}

struct stamp stamp_of(const struct stat *st)
{
    return (struct stamp){
        .inode = st->st_ino,
        .bytes = (uint64_t)st->st_size,
        .mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec,
        .ctime_ns = (uint64_t)st->st_ctim.tv_sec * 1000000000u + (uint64_t)st->st_ctim.tv_nsec,
    };
}

bool stamp_same(const struct stamp *a, const struct stamp *b)
{
    return a->inode == b->inode && a->bytes == b->bytes && a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static void put(struct buf *out, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_add_char(out, (char)(v >> (8 * i)));
}

/* n bytes from the front of *s; 0 when it has not so many, which the digest at the end has made impossible for what we wrote. */
static uint64_t take(struct str *s, size_t n)
{
    uint64_t v = 0;
    if (s->len < n)
        return 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)(uint8_t)s->ptr[i] << (8 * i);
    *s = (struct str){s->ptr + n, s->len - n};
    return v;
}

static bool take_bytes(struct str *s, void *to, size_t n)
{
    if (s->len < n)
        return false;
    memcpy(to, s->ptr, n);
    *s = (struct str){s->ptr + n, s->len - n};
    return true;
}

static void digest_of(struct str s, uint8_t ret[OS_SHA256_BYTES])
{
    struct os_sha256 h;
    os_sha256_init(&h);
    os_sha256_update(&h, s.ptr, s.len);
    os_sha256_final(&h, ret);
}

void segments_text(const struct store_manifest *m, const struct stamp *stamp, const char *path, struct buf *out)
{
    uint8_t digest[OS_SHA256_BYTES];
    buf_add(out, magic, sizeof magic);
    put(out, FORMAT, 4);
    put(out, STORE_SEGMENT_BYTES, 4);
    put(out, stamp->inode, 8);
    put(out, stamp->bytes, 8);
    put(out, stamp->mtime_ns, 8);
    put(out, stamp->ctime_ns, 8);
    buf_add(out, m->sha256, sizeof m->sha256);
    buf_add(out, m->git_sha1, sizeof m->git_sha1);
    put(out, strlen(path), 4);
    buf_add_c(out, path);
    put(out, m->n_states, 8);
    if (m->n_states)
        buf_add(out, m->states, m->n_states * sizeof *m->states);
    digest_of(buf_str(out), digest);
    buf_add(out, digest, sizeof digest);
}

static int bad(struct err *err, const char *what)
{
    return err_set(err, -EBADMSG, "not the manifest of a file: %s", what);
}

int segments_parse(struct str text, struct segments *ret, struct err *err)
{
    struct segments g = {.path = NULL};
    uint8_t digest[OS_SHA256_BYTES];
    if (text.len < HEAD_BYTES + 8 + OS_SHA256_BYTES || memcmp(text.ptr, magic, sizeof magic) != 0)
        return bad(err, "wrong beginning");
    struct str s = {text.ptr, text.len - OS_SHA256_BYTES};
    digest_of(s, digest);
    if (memcmp(digest, s.ptr + s.len, sizeof digest) != 0)
        return bad(err, "it was changed");
    s = (struct str){s.ptr + sizeof magic, s.len - sizeof magic};
    if (take(&s, 4) != FORMAT || take(&s, 4) != STORE_SEGMENT_BYTES)
        return bad(err, "another format");
    g.stamp.inode = take(&s, 8);
    g.stamp.bytes = g.m.bytes = take(&s, 8);
    g.stamp.mtime_ns = take(&s, 8);
    g.stamp.ctime_ns = take(&s, 8);
    if (g.m.bytes > STORE_PAYLOAD_MAX || !take_bytes(&s, g.m.sha256, sizeof g.m.sha256) || !take_bytes(&s, g.m.git_sha1, sizeof g.m.git_sha1))
        return bad(err, "a size that cannot be");
    uint64_t len = take(&s, 4);
    if (len == 0 || len >= STORE_PATH_MAX || s.len < len || s.ptr[0] != '/' || memchr(s.ptr, '\0', len))
        return bad(err, "no path");
    struct str path = {s.ptr, len};
    s = (struct str){s.ptr + len, s.len - len};
    bool counted = s.len >= 8;
    uint64_t n = take(&s, 8);
    if (!counted || n != store_states(g.m.bytes) || s.len != n * OS_SHA256_BYTES)
        return bad(err, "wrong number of states");
    g.path = str_dup(path);
    g.m.states = malloc(n ? n * sizeof *g.m.states : 1);
    if (!g.path || !g.m.states) {
        segments_release(&g);
        return err_nomem(err);
    }
    g.m.n_states = n;
    (void)take_bytes(&s, g.m.states, n * sizeof *g.m.states);
    *ret = g;
    return 0;
}

void segments_release(struct segments *g)
{
    store_manifest_release(&g->m);
    free(g->path);
    *g = (struct segments){.path = NULL};
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

/* Names the manifest of a file. */
static void name_of(const char *path, char ret[OS_SHA256_HEX])
{
    uint8_t digest[OS_SHA256_BYTES];
    digest_of(str_of(path), digest);
    (void)os_hex(digest, sizeof digest, ret);
}

int segments_read(int dirfd, const char *name, struct segments *ret, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(HEAD_BYTES + STORE_PATH_MAX + 8 + OS_SHA256_BYTES * (STORE_PAYLOAD_MAX / STORE_SEGMENT_BYTES + 2));
    int r = os_read_file(dirfd, name, &text, err);
    return r < 0 ? r : segments_parse(buf_str(&text), ret, err);
}

int segments_load(const struct store *s, const char *path, struct segments *ret, struct err *err)
{
    char name[OS_SHA256_HEX];
    os_autoclose int dir = store_dir(s, "manifests", err);
    if (dir < 0)
        return dir;
    name_of(path, name);
    struct segments g;
    int r = segments_read(dir, name, &g, err);
    if (r == 0 && strcmp(g.path, path) != 0) {
        segments_release(&g);
        r = -EBADMSG;
    }
    if (r == -EBADMSG)
        return err_set(err, -ENOENT, "'%s' was never proven", path);
    if (r == 0)
        *ret = g;
    return r;
}

int store_manifest_load(const struct store *s, const char *path, struct store_manifest *ret, struct err *err)
{
    struct segments g;
    int r = segments_load(s, path, &g, err);
    if (r < 0)
        return r;
    *ret = g.m;
    g.m = (struct store_manifest){.bytes = 0};
    segments_release(&g);
    return 0;
}

int segments_save(struct store *s, const char *path, const struct store_manifest *m, const struct stamp *stamp, struct err *err)
{
    char name[OS_SHA256_HEX];
    base_autobuf struct buf text = BUF_INIT(HEAD_BYTES + STORE_PATH_MAX + 8 + OS_SHA256_BYTES * (m->n_states + 1));
    if (path[0] != '/' || m->bytes > STORE_PAYLOAD_MAX || m->n_states != store_states(m->bytes))
        return err_set(err, -EINVAL, "cannot record the proof of '%s'", path);
    segments_text(m, stamp, path, &text);
    if (buf_status(&text) < 0)
        return err_set(err, -ENAMETOOLONG, "cannot record the proof of '%s'", path);
    name_of(path, name);
    os_autoclose int dir = store_dir(s, "manifests", err);
    return dir < 0 ? dir : os_write_atomic(dir, name, text.ptr, text.len, 0600, err);
}

int store_manifest_save(struct store *s, const char *path, const struct store_manifest *m, struct err *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return err_sys(err, -errno, "cannot look at '%s'", path);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != m->bytes)
        return err_set(err, -EBADMSG, "'%s' has %llu bytes, not the %llu that were proven", path, (unsigned long long)st.st_size, (unsigned long long)m->bytes);
    struct stamp now = stamp_of(&st);
    return segments_save(s, path, m, &now, err);
}

bool segments_match(const struct store_manifest *m, const struct fleet_lock_file *want)
{
    uint8_t digest[OS_SHA256_BYTES];
    if (m->bytes != want->bytes)
        return false;
    if (want->sha256)
        return os_unhex(str_of(want->sha256), digest, sizeof m->sha256) && memcmp(digest, m->sha256, sizeof m->sha256) == 0;
    return want->git_sha1 && os_unhex(str_of(want->git_sha1), digest, sizeof m->git_sha1) && memcmp(digest, m->git_sha1, sizeof m->git_sha1) == 0;
}

bool store_payload_proven(const struct store *s, const char *path, const struct fleet_lock_file *want)
{
    struct segments g;
    struct stat st;
    if (stat(path, &st) < 0 || segments_load(s, path, &g, NULL) < 0)
        return false;
    struct stamp now = stamp_of(&st);
    bool proven = stamp_same(&g.stamp, &now) && segments_match(&g.m, want);
    segments_release(&g);
    return proven;
}

/* ---- room ------------------------------------------------------------------------------------------------------- */

int store_space_check(const char *path, uint64_t need_bytes, struct err *err)
{
    base_autofree char *at = str_dup(str_of(path));
    struct statvfs v;
    if (!at)
        return err_nomem(err);
    char *dir = at;
    while (statvfs(dir, &v) < 0) {
        if (errno == EINTR)
            continue;
        if (errno != ENOENT && errno != ENOTDIR)
            return err_sys(err, -errno, "cannot find out how much room '%s' has", dir);
        dir = dirname(dir);
    }
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (need_bytes <= room)
        return 0;
    char need[UNITS_TEXT], have[UNITS_TEXT], more[UNITS_TEXT];
    return err_set(err, -ENOSPC, "not enough room in '%s': %s are needed and %s are free; make room for %s more ('berth purge' lists what nothing uses)", dir,
                   units_show_bytes(need_bytes, need), units_show_bytes(room, have), units_show_bytes(need_bytes - room, more));
}
