/* SPDX-License-Identifier: MIT
 *
 * Source archive:URL#sha256=DIGEST: a release of an engine as tar or zip. The archive is kept in store/archives by its digest, as debs are, so that the runtime can be made again without a network, and is
 * proven by that digest before a byte of it is looked at. libarchive reads it, opened at run time.
 *
 * An archive is hostile until unpacked: every name must be a relative path without "..", nothing is written through a link (folders on the way are opened without following any, and links are made when all
 * files are there), nothing is written twice, and devices, set-id bits and more than the limits below are refused. What most archives have around everything, one folder, is taken away.
 */
#include "store_int.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <dlfcn.h>
#include <engine/engine.h>
#include <errno.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK ((size_t)256 << 10)
#define WRAPPERS_MAX 3 /* folders around everything */
#define UNWRAPPED ".unwrapped"

/* What is used of libarchive. X(name): its function archive_NAME. */
#define CALLS(X) \
    X(read_new) X(read_free) X(read_support_filter_gzip) X(read_support_filter_bzip2) X(read_support_filter_xz) X(read_support_filter_zstd) X(read_support_format_tar) X(read_support_format_zip) \
    X(read_open_fd) X(read_next_header) X(read_data) X(error_string) X(entry_pathname) X(entry_filetype) X(entry_perm) X(entry_symlink) X(entry_hardlink)
static struct {
#define MEMBER(name) __typeof__(&archive_##name) name; /* NOLINT(bugprone-macro-parentheses): it is a member's name */
    CALLS(MEMBER)
#undef MEMBER
    const char *missing; /* what could not be opened */
} lib;

static void open_library(void)
{
    void *so = dlopen("libarchive.so.13", RTLD_NOW | RTLD_LOCAL);
    lib.missing = so ? NULL : "libarchive.so.13";
#define LOAD(name) \
    if (so && !lib.missing) { \
        void *p = dlsym(so, "archive_" #name); \
        if (p) \
            memcpy(&lib.name, &p, sizeof p); \
        else \
            lib.missing = "archive_" #name; \
    }
    CALLS(LOAD)
#undef LOAD
}

static int need_library(struct err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, open_library);
    return lib.missing ? err_set(err, -ENOTSUP, "unpacking needs libarchive (no %s here): install the package libarchive13 (on some systems libarchive13t64)", lib.missing) : 0;
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

int archive_name(struct str name, char out[STORE_PATH_MAX])
{
    while (str_starts(name, STR("./")))
        name = (struct str){name.ptr + 2, name.len - 2};
    while (name.len && name.ptr[name.len - 1] == '/')
        name.len--;
    if (name.len == 0 || str_eq_c(name, "."))
        return 0;
    if (name.len >= STORE_PATH_MAX || !os_relpath_valid(name) || !str_is_utf8(name))
        return -EINVAL;
    memcpy(out, name.ptr, name.len);
    out[name.len] = '\0';
    return 1;
}

/* ---- unpacking -------------------------------------------------------------------------------------------------- */

struct link {
    const char *path, *text;
};

struct unpack {
    struct archive *a;
    int treefd;
    uint64_t bytes, bytes_max;
    size_t n_entries;
    char *block; /* of content, on its way */
    struct arena *arena;
    struct link *links; /* made at the end */
    size_t n_links, cap_links;
};

static int refuse(struct err *err, const char *name, const char *why)
{
    base_autobuf struct buf shown = BUF_INIT(ERR_TEXT_MAX);
    buf_add_printable(&shown, str_of(name), 200);
    return err_set(err, -EBADMSG, "the archive's '%s' %s", shown.ptr ? shown.ptr : "", why);
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The folder that path is in, made where it is missing; no link is followed on the way. */
static int open_parent(int treefd, const char *path, struct err *err)
{
    struct str rest = str_of(path);
    os_autoclose int dir = fcntl(treefd, F_DUPFD_CLOEXEC, 0);
    for (unsigned depth = 0; dir >= 0; depth++) {
        struct str part = str_split(&rest, '/');
        if (!rest.ptr)
            return os_take_fd(&dir);
        if (depth == OS_WALK_DEPTH)
            return refuse(err, path, "is too deep");
        char name[NAME_MAX + 1];
        memcpy(name, part.ptr, part.len); /* at most 255, by os_relpath_valid */
        name[part.len] = '\0';
        if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
            return err_sys(err, -errno, "cannot make folder '%s'", path);
        int next = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        os_closep(&dir);
        if (next < 0)
            return refuse(err, path, "lies below what is no folder");
        dir = next;
    }
    return err_sys(err, -errno, "cannot open the tree");
}

static int too_much(const struct unpack *u, struct err *err)
{
    char most[UNITS_TEXT];
    return err_set(err, -E2BIG, "the archive holds more than %s, which is %s", units_show_bytes(u->bytes_max, most), u->bytes_max == STORE_ARCHIVE_BYTES_MAX ? "more than any engine" : "far too much for its own size");
}

static int write_content(struct unpack *u, int fd, const char *path, struct err *err)
{
    for (;;) {
        ssize_t n = lib.read_data(u->a, u->block, BLOCK);
        if (n < 0)
            return err_set(err, -EBADMSG, "the archive is damaged at '%s': %s", path, lib.error_string(u->a));
        if (n == 0)
            return 0;
        if (os_interrupted())
            return err_set(err, -EINTR, "interrupted");
        if (!size_add(u->bytes, (uint64_t)n, &u->bytes) || u->bytes > u->bytes_max)
            return too_much(u, err);
        int r = os_write_all(fd, u->block, (size_t)n, err);
        if (r < 0)
            return r;
    }
}

static int unpack_file(struct unpack *u, struct archive_entry *e, const char *path, struct err *err)
{
    mode_t mode = lib.entry_perm(e);
    if (mode & (S_ISUID | S_ISGID))
        return refuse(err, path, "has a set-id bit");
    os_autoclose int dir = open_parent(u->treefd, path, err);
    if (dir < 0)
        return dir;
    os_autoclose int fd = openat(dir, last_part(path), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0111 ? 0755 : 0644);
    if (fd < 0)
        return errno == EEXIST ? refuse(err, path, "is there twice") : err_sys(err, -errno, "cannot make '%s'", path);
    return write_content(u, fd, path, err);
}

/* A second name of a file that came before: what it names is opened without following a link, too. */
static int unpack_hardlink(struct unpack *u, const char *target, const char *path, struct err *err)
{
    char to[STORE_PATH_MAX], old[64];
    if (archive_name(str_of(target), to) != 1)
        return refuse(err, path, "is a link out of it");
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    os_autoclose int fd = (int)syscall(SYS_openat2, u->treefd, to, &how, sizeof how);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return refuse(err, path, "is a link to no file before it");
    os_autoclose int dir = open_parent(u->treefd, path, err);
    if (dir < 0)
        return dir;
    snprintf(old, sizeof old, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, old, dir, last_part(path), AT_SYMLINK_FOLLOW) < 0)
        return errno == EEXIST ? refuse(err, path, "is there twice") : err_sys(err, -errno, "cannot make '%s'", path);
    return 0;
}

static int keep_link(struct unpack *u, const char *path, const char *text, struct err *err)
{
    if (!text || !*text || strlen(text) >= STORE_PATH_MAX)
        return refuse(err, path, "is a link without a text that can be used");
    struct link *p = arena_grow(u->arena, u->links, u->n_links + 1, &u->cap_links, sizeof *p);
    if (!p)
        return err_nomem(err);
    u->links = p;
    p[u->n_links] = (struct link){arena_dup(u->arena, str_of(path)), arena_dup(u->arena, str_of(text))};
    return p[u->n_links].path && p[u->n_links++].text ? 0 : err_nomem(err);
}

static int unpack_entry(struct unpack *u, struct archive_entry *e, struct err *err)
{
    char path[STORE_PATH_MAX];
    const char *raw = lib.entry_pathname(e), *hard = lib.entry_hardlink(e);
    int r = raw ? archive_name(str_of(raw), path) : -EINVAL;
    if (r < 0)
        return refuse(err, raw ? raw : "?", "has a name that would leave the folder, or that cannot be used");
    if (r == 0)
        return 0;
    if (hard)
        return unpack_hardlink(u, hard, path, err);
    switch (lib.entry_filetype(e)) {
    case AE_IFREG:
        return unpack_file(u, e, path, err);
    case AE_IFLNK:
        return keep_link(u, path, lib.entry_symlink(e), err);
    case AE_IFDIR: {
        os_autoclose int dir = open_parent(u->treefd, path, err);
        if (dir < 0)
            return dir;
        return mkdirat(dir, last_part(path), 0755) < 0 && errno != EEXIST ? err_sys(err, -errno, "cannot make folder '%s'", path) : 0;
    }
    default:
        return refuse(err, path, "is neither a file, a folder nor a link");
    }
}

static int unpack_links(struct unpack *u, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < u->n_links; i++) {
        os_autoclose int dir = open_parent(u->treefd, u->links[i].path, err);
        if (dir < 0)
            return dir;
        if (symlinkat(u->links[i].text, dir, last_part(u->links[i].path)) < 0)
            r = errno == EEXIST ? refuse(err, u->links[i].path, "is there twice") : err_sys(err, -errno, "cannot make link '%s'", u->links[i].path);
    }
    return r;
}

static int unpack_all(struct unpack *u, int fd, struct err *err)
{
    (void)lib.read_support_filter_gzip(u->a);
    (void)lib.read_support_filter_bzip2(u->a);
    (void)lib.read_support_filter_xz(u->a);
    (void)lib.read_support_filter_zstd(u->a);
    (void)lib.read_support_format_tar(u->a);
    (void)lib.read_support_format_zip(u->a);
    if (lib.read_open_fd(u->a, fd, BLOCK) != ARCHIVE_OK)
        return err_set(err, -EBADMSG, "it is neither tar nor zip: %s", lib.error_string(u->a));
    for (;;) {
        struct archive_entry *e;
        int r = lib.read_next_header(u->a, &e);
        if (r == ARCHIVE_EOF)
            return unpack_links(u, err);
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
            return err_set(err, -EBADMSG, "the archive is damaged: %s", lib.error_string(u->a));
        if (++u->n_entries > MANIFEST_ENTRIES_MAX)
            return err_set(err, -E2BIG, "the archive holds more than %d files", MANIFEST_ENTRIES_MAX);
        r = unpack_entry(u, e, err);
        if (r < 0)
            return r;
    }
}

/* What may come out of an archive of so many bytes. */
static uint64_t most_of(uint64_t bytes)
{
    uint64_t most = STORE_ARCHIVE_BYTES_MAX;
    if (!size_mul(bytes, STORE_ARCHIVE_RATIO_MAX, &most) || most > STORE_ARCHIVE_BYTES_MAX)
        most = STORE_ARCHIVE_BYTES_MAX;
    return most > STORE_ARCHIVE_SMALL ? most : STORE_ARCHIVE_SMALL;
}

int archive_unpack(int fd, int treefd, struct err *err)
{
    struct stat st;
    int r = need_library(err);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return err_sys(err, -errno, "cannot look at the archive");
    struct unpack u = {.treefd = treefd, .bytes_max = most_of((uint64_t)st.st_size), .arena = arena_new(MANIFEST_MEMORY_MAX), .block = malloc(BLOCK), .a = lib.read_new()};
    r = u.arena && u.block && u.a ? unpack_all(&u, fd, err) : err_nomem(err);
    if (u.a)
        (void)lib.read_free(u.a);
    free(u.block);
    (void)arena_free(u.arena);
    return r;
}

/* ---- the tree --------------------------------------------------------------------------------------------------- */

/* The one entry of a folder, when it is a folder itself and there is no other. */
static bool only_folder(int treefd, char ret[NAME_MAX + 1])
{
    int fd = openat(treefd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    size_t n = 0;
    struct stat st;
    const struct dirent *e;
    if (!d) {
        os_closep(&fd);
        return false;
    }
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && n++ == 0)
            snprintf(ret, NAME_MAX + 1, "%s", e->d_name);
    closedir(d);
    return n == 1 && fstatat(treefd, ret, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Moves what is in the folder name of the tree to where the folder is. */
static int unwrap(int treefd, const char *name, struct err *err)
{
    if (renameat(treefd, name, treefd, UNWRAPPED) < 0)
        return err_sys(err, -errno, "cannot move '%s'", name);
    int fd = openat(treefd, UNWRAPPED, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    int r = 0;
    if (!d) {
        os_closep(&fd);
        return err_nomem(err);
    }
    while (r == 0 && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && renameat(dirfd(d), e->d_name, treefd, e->d_name) < 0)
            r = err_sys(err, -errno, "cannot move '%s'", e->d_name);
    closedir(d);
    if (r == 0 && unlinkat(treefd, UNWRAPPED, AT_REMOVEDIR) < 0)
        r = err_sys(err, -errno, "cannot remove a folder");
    return r;
}

/* The archive, open and proven to be the pinned one. */
static int open_archive(const struct install *in, const char *path, struct err *err)
{
    char digest[OS_SHA256_HEX];
    os_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, -errno, "cannot open '%s'", path);
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int r = os_digest_file(AT_FDCWD, self, digest, NULL, err);
    if (r < 0)
        return r;
    if (strcmp(digest, in->want->digest) != 0)
        return err_set(err, -EBADMSG, "'%s' is not what is pinned: its sha256 is %s", in->want->source_arg, digest);
    return os_take_fd(&fd);
}

/* Fetched archives are kept by their digest. */
static int fetch_archive(const struct install *in, struct err *err)
{
    char path[STORE_PATH_MAX];
    const struct store_add_options *o = in->o;
    int r = store_path(in->store, path, err, "archives/%s", in->want->digest);
    if (r < 0)
        return r;
    int fd = open_archive(in, path, NULL);
    if (fd >= 0)
        return fd;
    if (o->offline || !o->fetch)
        return err_set(err, -ENETUNREACH, "%s is not in the store and would have to be fetched", in->want->source_arg);
    event_say(o->sink, EVENT_INFO, in->subject, "fetching %s", in->want->source_arg);
    r = o->fetch(o->fetch_ctx, in->want->source_arg, in->want->digest, path, err);
    return r < 0 ? r : open_archive(in, path, err);
}

int archive_install(struct install *in, struct err *err)
{
    const char *program = engine_program(engine_find(in->m->engine));
    char found[STORE_PATH_MAX] = "", name[NAME_MAX + 1];
    int r = need_library(err);
    if (r < 0)
        return r;
    os_autoclose int fd = in->want->source_arg[0] == '/' ? open_archive(in, in->want->source_arg, err) : fetch_archive(in, err);
    if (fd < 0)
        return fd;
    event_say(in->o->sink, EVENT_INFO, in->subject, "unpacking %s", in->want->source_arg);
    r = archive_unpack(fd, in->treefd, err);
    for (unsigned i = 0; r == 0 && i < WRAPPERS_MAX && program && tree_program(in->treefd, program, found) < 0 && only_folder(in->treefd, name); i++)
        r = unwrap(in->treefd, name, err);
    if (r == 0)
        r = tree_links_stay(in->treefd, err);
    if (r == 0 && program && tree_program(in->treefd, program, found) < 0)
        r = err_set(err, -ENOENT, "the archive holds no program '%s', neither at its top nor in bin or usr/bin", program);
    if (r < 0)
        return r;
    in->m->program = arena_dup(in->m->arena, str_of(found));
    return in->m->program ? 0 : err_nomem(err);
}
