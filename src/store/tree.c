/* SPDX-License-Identifier: MIT
 *
 * Work on a tree of files: rights made uniform, content recorded in a manifest and compared with one. All goes through os_walk, which never follows a link.
 * Names and link texts that a manifest could not hold (not UTF-8, control bytes) are refused when a tree is recorded.
 */
#include "store_int.h"

#include <errno.h>
#include <unistd.h>

#define MODE_DIR 0755u
#define MODE_FILE 0644u
#define MODE_PROGRAM 0755u

static int refuse(struct err *err, const struct os_entry *e, const char *why)
{
    base_autobuf struct buf shown = BUF_INIT(4096);
    buf_add_printable(&shown, str_of(e->path), 200);
    return err_set(err, -EINVAL, "cannot keep '%s': %s", shown.ptr ? shown.ptr : "", why);
}

/* Progress in a hundred steps at most: a tree has more files than anybody wants to hear about. */
static void tell(const struct event_sink *sink, const char *subject, const char *text, uint64_t before, uint64_t done, uint64_t total)
{
    uint64_t step = total / 100 + 1;
    if (before / step != done / step || done == total)
        event_progress(sink, subject, text, done, total);
}

/* ---- rights --------------------------------------------------------------------------------------------------- */

static int normalize_entry(void *ctx, const struct os_entry *e, struct err *err)
{
    const bool *privileged = ctx;
    if (!S_ISREG(e->mode) && !S_ISDIR(e->mode) && !S_ISLNK(e->mode))
        return refuse(err, e, "neither a file, a folder nor a link");
    if (*privileged && fchownat(e->dirfd, e->name, 0, 0, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(err, -errno, "cannot give '%s' to root", e->path);
    if (S_ISLNK(e->mode))
        return 0;
    mode_t mode = S_ISDIR(e->mode) ? MODE_DIR : e->mode & 0111 ? MODE_PROGRAM : MODE_FILE;
    if ((e->mode & 07777) != mode && fchmodat(e->dirfd, e->name, mode, 0) < 0)
        return err_sys(err, -errno, "cannot set the rights of '%s'", e->path);
    return 0;
}

int tree_normalize(int treefd, bool privileged, struct err *err)
{
    if (fchmod(treefd, MODE_DIR) < 0)
        return err_sys(err, -errno, "cannot set the rights of the tree");
    return os_walk(treefd, normalize_entry, &privileged, err);
}

/* ---- recording ------------------------------------------------------------------------------------------------- */

struct scan {
    struct manifest *m;
    const struct event_sink *sink;
    const char *subject;
    uint64_t total;
};

/* The text of a link, into out. -ENAMETOOLONG. */
static int read_link(const struct os_entry *e, char out[STORE_PATH_MAX], struct err *err)
{
    ssize_t n = readlinkat(e->dirfd, e->name, out, STORE_PATH_MAX);
    if (n < 0)
        return err_sys(err, -errno, "cannot read the link '%s'", e->path);
    if (n == STORE_PATH_MAX)
        return refuse(err, e, "the link's text is too long");
    out[n] = '\0';
    return 0;
}

static bool plain_text(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return str_is_utf8(str_of(s));
}

static int scan_entry(void *ctx, const struct os_entry *e, struct err *err)
{
    struct scan *s = ctx;
    char detail[STORE_PATH_MAX] = "";
    struct manifest_entry me = {.path = e->path, .detail = detail};
    int r = 0;
    if (!os_relpath_valid(str_of(e->path)) || !str_is_utf8(str_of(e->path)) || strlen(e->path) >= STORE_PATH_MAX)
        return refuse(err, e, "its name is not plain UTF-8, or too long");
    if (S_ISLNK(e->mode)) {
        me.kind = MANIFEST_LINK;
        r = read_link(e, detail, err);
        if (r == 0 && !plain_text(detail))
            r = refuse(err, e, "the link's text is not plain UTF-8");
    } else if (S_ISDIR(e->mode)) {
        me.kind = MANIFEST_DIR;
        me.mode = e->mode & 0777;
    } else if (S_ISREG(e->mode)) {
        me.kind = MANIFEST_FILE;
        me.mode = e->mode & 0777;
        r = os_digest_file(e->dirfd, e->name, detail, &me.bytes, err);
    } else {
        r = refuse(err, e, "neither a file, a folder nor a link");
    }
    if (r == 0)
        r = manifest_add(s->m, &me, err);
    if (r == 0 && me.kind == MANIFEST_FILE)
        tell(s->sink, s->subject, "recording", s->m->bytes - me.bytes, s->m->bytes, s->total);
    return r;
}

static int size_entry(void *ctx, const struct os_entry *e, struct err *err)
{
    struct scan *s = ctx;
    (void)err;
    if (S_ISREG(e->mode))
        s->total += e->size;
    return 0;
}

int tree_scan(int treefd, struct manifest *m, const struct event_sink *sink, const char *subject, struct err *err)
{
    struct scan s = {.m = m, .sink = sink, .subject = subject};
    int r = os_walk(treefd, size_entry, &s, err);
    return r < 0 ? r : os_walk(treefd, scan_entry, &s, err);
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */

struct compare {
    const struct manifest *m;
    const struct event_sink *sink;
    const char *subject;
    bool *seen;
    uint64_t done, n_wrong;
    char first[ERR_TEXT_MAX / 2];
};

static void differs(struct compare *c, const char *path, const char *what)
{
    if (c->n_wrong++ == 0) {
        base_autobuf struct buf shown = BUF_INIT(4096);
        buf_add_printable(&shown, str_of(path), 300);
        snprintf(c->first, sizeof c->first, "'%s' %s", shown.ptr ? shown.ptr : "", what);
    }
}

static int compare_file(struct compare *c, const struct os_entry *e, const struct manifest_entry *want)
{
    char digest[OS_SHA256_HEX];
    c->done += want->bytes;
    if (e->size != want->bytes) {
        differs(c, e->path, "has another size");
        return 0;
    }
    /* A file that cannot be read is a finding like any other, so that all of them are counted. */
    if (os_digest_file(e->dirfd, e->name, digest, NULL, NULL) < 0)
        differs(c, e->path, "cannot be read");
    else if (strcmp(digest, want->detail) != 0)
        differs(c, e->path, "has other content");
    tell(c->sink, c->subject, "proving", c->done - want->bytes, c->done, c->m->bytes);
    return 0;
}

static int compare_entry(void *ctx, const struct os_entry *e, struct err *err)
{
    struct compare *c = ctx;
    ptrdiff_t i = manifest_find(c->m, e->path);
    if (i < 0) {
        differs(c, e->path, "was added");
        return 0;
    }
    c->seen[i] = true;
    const struct manifest_entry *want = &c->m->entries[i];
    enum manifest_kind kind = S_ISREG(e->mode) ? MANIFEST_FILE : S_ISDIR(e->mode) ? MANIFEST_DIR : MANIFEST_LINK;
    if (kind != want->kind || (kind == MANIFEST_LINK && !S_ISLNK(e->mode))) {
        differs(c, e->path, "is of another kind");
        return 0;
    }
    if (kind == MANIFEST_LINK) {
        char text[STORE_PATH_MAX];
        int r = read_link(e, text, err);
        if (r < 0)
            return r;
        if (strcmp(text, want->detail) != 0)
            differs(c, e->path, "links elsewhere");
        return 0;
    }
    if ((e->mode & 07777) != want->mode)
        differs(c, e->path, "has other rights");
    return kind == MANIFEST_FILE ? compare_file(c, e, want) : 0;
}

int tree_verify(int treefd, const struct manifest *m, const struct event_sink *sink, const char *subject, struct err *err)
{
    struct compare c = {.m = m, .sink = sink, .subject = subject};
    base_autofree bool *seen = c.seen = calloc(m->n_entries + 1, sizeof *seen);
    if (!seen)
        return err_nomem(err);
    int r = os_walk(treefd, compare_entry, &c, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < m->n_entries; i++)
        if (!c.seen[i])
            differs(&c, m->entries[i].path, "is missing");
    if (c.n_wrong)
        return err_set(err, -EBADMSG, "%s: %llu difference%s from its manifest", c.first, (unsigned long long)c.n_wrong, c.n_wrong == 1 ? "" : "s");
    return 0;
}

/* ---- copying ------------------------------------------------------------------------------------------------------ */

struct copy {
    int dstfd;
};

/* True when a relative link text, read from the folder of path, never climbs above the tree. */
static bool link_stays(const char *path, const char *text)
{
    if (*text == '/')
        return false;
    ptrdiff_t depth = 0;
    for (const char *p = path; *p; p++)
        depth += *p == '/';
    struct str rest = str_of(text);
    while (rest.ptr) {
        struct str part = str_split(&rest, '/');
        if (str_eq(part, STR("..")))
            depth--;
        else if (part.len && !str_eq(part, STR(".")))
            depth++;
        if (depth < 0)
            return false;
    }
    return true;
}

static int link_entry(void *ctx, const struct os_entry *e, struct err *err)
{
    char text[STORE_PATH_MAX];
    (void)ctx;
    int r = S_ISLNK(e->mode) ? read_link(e, text, err) : 0;
    return r < 0 || !S_ISLNK(e->mode) || link_stays(e->path, text) ? r : refuse(err, e, "the link leads out of the folder");
}

int tree_links_stay(int treefd, struct err *err)
{
    return os_walk(treefd, link_entry, NULL, err);
}

static int copy_entry(void *ctx, const struct os_entry *e, struct err *err)
{
    const struct copy *c = ctx;
    if (S_ISDIR(e->mode))
        return mkdirat(c->dstfd, e->path, 0700) < 0 ? err_sys(err, -errno, "cannot make folder '%s'", e->path) : 0;
    if (S_ISREG(e->mode))
        return os_copy_file(e->dirfd, e->name, c->dstfd, e->path, e->mode & 0111 ? MODE_PROGRAM : MODE_FILE, err);
    if (!S_ISLNK(e->mode))
        return refuse(err, e, "neither a file, a folder nor a link");
    char text[STORE_PATH_MAX];
    int r = read_link(e, text, err);
    if (r < 0)
        return r;
    if (!link_stays(e->path, text))
        return refuse(err, e, "the link leads out of the folder; put what it names inside");
    return symlinkat(text, c->dstfd, e->path) < 0 ? err_sys(err, -errno, "cannot make link '%s'", e->path) : 0;
}

int tree_copy(int srcfd, int dstfd, struct err *err)
{
    struct copy c = {.dstfd = dstfd};
    return os_walk(srcfd, copy_entry, &c, err);
}
