/* SPDX-License-Identifier: MIT
 *
 * What the files of store share: the store itself, manifests, the work on a tree of files, the private apt, and the mounts of a
 * launch. Everything in a `struct manifest` or a `struct plan` belongs to its arena.
 */
#pragma once

#include "store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

/* A manifest's text as it was read, for as long as its file stays the same: a fleet's runtimes are looked for among all, and then proven. */
#define STORE_KEPT_MAX 16 /* manifests; a large one has some 300 KiB */
struct store_kept {
    char *id;
    struct stat st;
    struct buf text;
};

struct store {
    const struct os_dirs *dirs;
    char *root;      /* STATE/store */
    bool privileged; /* we are root: what is made can be read by everyone, engines run as their own account */
    struct store_kept kept[STORE_KEPT_MAX];
    size_t n_kept;
};

#define STORE_PATH_MAX 4096

/* "ROOT/<formatted>" into out. -ENAMETOOLONG. */
int store_path(const struct store *s, char out[STORE_PATH_MAX], struct err *err, const char *fmt, ...) BASE_PRINTF(4, 5) BASE_MUST_USE;
/* Any formatted path into out. -ENAMETOOLONG. */
int store_pathf(char out[STORE_PATH_MAX], struct err *err, const char *fmt, ...) BASE_PRINTF(3, 4) BASE_MUST_USE;
/* Opens a folder of the store. */
int store_dir(const struct store *s, const char *name, struct err *err) BASE_MUST_USE;
/* ... to read its names. */
int store_dir_read(const struct store *s, const char *name, DIR **ret, struct err *err) BASE_MUST_USE;
struct manifest;
/* A runtime as its manifest describes it, with its tree at root (NULL: where installed ones are). m NULL: all that is known is the name. */
int store_fill(const struct store *s, const char *id, const char *root, const struct manifest *m, struct store_runtime *ret, struct err *err) BASE_MUST_USE;
/* "debian:forky", and the packages sorted with a space between, as a manifest has them. */
int store_describe(const struct fleet_runtime *w, struct buf *source, struct buf *packages, struct err *err) BASE_MUST_USE;
/* store/change, held by every change. */
int store_lock_change(struct store *s, struct err *err) BASE_MUST_USE;

/* ---- manifest ------------------------------------------------------------------------------------------------- */

#define MANIFEST_ENTRIES_MAX 200000       /* a CUDA or ROCm closure has some tens of thousands */
#define MANIFEST_MEMORY_MAX (256u << 20)  /* of one manifest, names included */
#define MANIFEST_DEBS_MAX 4096

enum manifest_kind { MANIFEST_DIR, MANIFEST_FILE, MANIFEST_LINK };

struct manifest_entry {
    const char *path; /* relative to the tree, no "./" */
    enum manifest_kind kind;
    uint32_t mode;      /* permission bits; 0 for a link */
    uint64_t bytes;     /* of a file */
    const char *detail; /* file: sha256 in hex; link: its text; folder: "" */
};

struct manifest_deb {
    const char *file;   /* as the mirror calls it: "libc6_2.41-6_amd64.deb" */
    const char *sha256;
};

struct manifest {
    struct arena *arena;
    const char *engine, *version, *source, *packages; /* packages: sorted, a space between */
    const char *program;                              /* "/usr/bin/llama-server"; "" for a kind without one */
    bool complete;
    uint64_t installed_us;
    struct manifest_deb *debs;
    size_t n_debs;
    struct manifest_entry *entries; /* sorted by path once sealed */
    size_t n_entries, cap_entries;
    uint64_t n_files, bytes;        /* regular files and their sum */
    char digest[OS_SHA256_HEX];     /* of all above but installed_us and debs */
};

struct manifest *manifest_new(void) BASE_MUST_USE;
struct manifest *manifest_free(struct manifest *m);
/* Copies path and detail. -E2BIG beyond the limits. */
int manifest_add(struct manifest *m, const struct manifest_entry *e, struct err *err) BASE_MUST_USE;
/* Sorts, refuses one path twice (-EEXIST) and computes the digest. Entries are not added afterwards. */
int manifest_seal(struct manifest *m, struct err *err) BASE_MUST_USE;
/* Index of path in a sealed manifest, or -1. */
ptrdiff_t manifest_find(const struct manifest *m, const char *path);
/* JSON text of a sealed manifest, appended. */
int manifest_text(const struct manifest *m, struct buf *out, struct err *err) BASE_MUST_USE;
/* The other way. Everything is checked, the digest too: -EBADMSG. */
int manifest_parse(struct str text, struct manifest **ret, struct err *err) BASE_MUST_USE;
/* "ENGINE-VERSION-xxxxxxxxxxxx", in the manifest's arena; NULL without memory. */
const char *manifest_id(const struct manifest *m);
/* True for 64 lower-case hex digits. */
bool manifest_is_sha256(struct str s);

/* ---- manifests of payload files ----------------------------------------------------------------------------------- */

/* What changes whenever a file does. */
struct stamp {
    uint64_t inode, bytes, mtime_ns, ctime_ns;
};
struct stamp stamp_of(const struct stat *st);
bool stamp_same(const struct stamp *a, const struct stamp *b);

/* A manifest as it is on disk: with its file's path and stamp. */
struct segments {
    char *path;
    struct stamp stamp;
    struct store_manifest m;
};
void segments_release(struct segments *g);
void segments_text(const struct store_manifest *m, const struct stamp *stamp, const char *path, struct buf *out);
/* -EBADMSG for anything that segments_text did not write. */
int segments_parse(struct str text, struct segments *ret, struct err *err) BASE_MUST_USE;
/* The manifest file dirfd/name. */
int segments_read(int dirfd, const char *name, struct segments *ret, struct err *err) BASE_MUST_USE;
/* The manifest of path; -ENOENT when it has none that is sound. */
int segments_load(const struct store *s, const char *path, struct segments *ret, struct err *err) BASE_MUST_USE;
/* The stamp is the file's before it was read. */
int segments_save(struct store *s, const char *path, const struct store_manifest *m, const struct stamp *stamp, struct err *err) BASE_MUST_USE;
/* Proving segment i: h as it is at its beginning, and whether it ends as m has it. */
void segments_begin(const struct store_manifest *m, size_t i, struct os_sha256 *h);
bool segments_prove(const struct store_manifest *m, size_t i, const struct os_sha256 *h);
/* Of the bytes and digests that want names. */
bool segments_match(const struct store_manifest *m, const struct fleet_lock_file *want);

/* ---- trees of files --------------------------------------------------------------------------------------------- */

/* Makes every folder 0755 and every file 0755 or 0644, root's when we are root; set-id bits go. Devices, sockets and pipes are refused. */
int tree_normalize(int treefd, bool privileged, struct err *err) BASE_MUST_USE;
/* Adds everything below treefd to m, with digests. */
int tree_scan(int treefd, struct manifest *m, const struct event_sink *sink, const char *subject, struct err *err) BASE_MUST_USE;
/* Compares everything below treefd with m: -EBADMSG names the first difference and counts all. */
int tree_verify(int treefd, const struct manifest *m, const struct event_sink *sink, const char *subject, struct err *err) BASE_MUST_USE;
/* Copies everything below srcfd. A link that leaves the folder is refused (-EINVAL), unless absolute links are allowed. */
int tree_copy(int srcfd, int dstfd, struct err *err) BASE_MUST_USE;
/* -EINVAL when a link leads out of the tree, or is absolute. */
int tree_links_stay(int treefd, struct err *err) BASE_MUST_USE;
/* Folder and file of the program: "/usr/bin/NAME", "/bin/NAME" or "/NAME" for a file that may be run, into out. -ENOENT. */
int tree_program(int treefd, const char *name, char out[STORE_PATH_MAX]) BASE_MUST_USE;
/* The loader that program asks for, looked up inside the tree with links resolved there: "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2". -ENOENT when the tree has
 * none, or no C library beside it: it then needs the host's. program "" looks for any loader. */
int tree_loader(int treefd, const char *program, char out[STORE_PATH_MAX]) BASE_MUST_USE;
/* What programs expect at the top of a root file system: lib, lib64, bin, sbin as links into usr where usr has them, and the empty folders that mounts go to. */
int tree_root(int treefd, struct err *err) BASE_MUST_USE;
/* Links ggml's back ends beside the loader: under the loader's own name that is where the engine looks for them. */
int tree_backends(int treefd, const char *loader, struct err *err) BASE_MUST_USE;

/* ---- sources ------------------------------------------------------------------------------------------------------- */

/* What an install works on. */
struct install {
    struct store *store;
    const struct fleet_runtime *want;
    const struct store_add_options *o;
    const char *subject; /* "runtime NAME" */
    const char *stage;   /* absolute: STORE/runtimes/.new-XXXX */
    int treefd;          /* stage/tree */
    int lockfd;          /* store/change; children that write get it too, so that the next change waits for those that outlive us */
    struct manifest *m;  /* engine, source and packages are set */
};
/* Each fills the tree and sets program, version and what else it knows. */
int debian_install(struct install *in, struct err *err) BASE_MUST_USE;
int path_install(struct install *in, struct err *err) BASE_MUST_USE;
/* True when the folder that a runtime was copied from holds a regular file that is newer than the copy. */
bool path_changed(const struct fleet_runtime *want, uint64_t installed_us);
int archive_install(struct install *in, struct err *err) BASE_MUST_USE;
/* A name of an archive's entry as a path of the tree, into out: 1; 0 for the top itself; -EINVAL for one that would leave it or cannot be used. */
int archive_name(struct str name, char out[STORE_PATH_MAX]) BASE_MUST_USE;
/* Everything of the archive at fd, into an empty tree. -EBADMSG, -E2BIG, -ENOTSUP without libarchive, -EINTR. */
int archive_unpack(int fd, int treefd, struct err *err) BASE_MUST_USE;
int system_install(struct install *in, struct err *err) BASE_MUST_USE;
/* The host's own program against its manifest: -EBADMSG. */
int system_verify(const struct manifest *m, struct err *err) BASE_MUST_USE;

/* ---- the private apt --------------------------------------------------------------------------------------------------- */

#define APT_DEBS_MAX MANIFEST_DEBS_MAX
#define APT_DEB_BYTES_MAX (16ull << 30)

struct apt_deb {
    const char *url, *file, *sha256;
    uint64_t bytes;
};
struct apt_list {
    struct apt_deb *debs;
    size_t n;
    uint64_t bytes;
};
/* The lines "'URL' FILE BYTES SHA256:HEX" of `apt-get --print-uris`; other lines are skipped. -EBADMSG for one that begins like it and is not, or has no sha256. */
int apt_uris_parse(struct str text, struct arena *a, struct apt_list *ret, struct err *err) BASE_MUST_USE;
/* The machine's Debian mirror out of `apt-get update --print-uris`, without a trailing slash; NULL when it names none. */
const char *apt_mirror_parse(struct str text, struct arena *a);

struct apt {
    struct arena *arena;
    const struct install *in;
    const char *dir;     /* its private folder */
    const char *conf;    /* for APT_CONFIG */
    const char *arch;    /* "amd64" */
    const char *mirror;
    const char *const *env;
};
/* Writes the private state and configuration below in->stage/apt. */
int apt_open(struct apt *apt, const struct install *in, struct err *err) BASE_MUST_USE;
void apt_close(struct apt *apt);
int apt_update(struct apt *apt, struct err *err) BASE_MUST_USE;
/* The closure of the packages, in the order to unpack. */
int apt_resolve(struct apt *apt, struct apt_list *ret, struct err *err) BASE_MUST_USE;
/* Fetches what apt's cache (apt_cache_dir) does not hold yet. */
int apt_fetch(struct apt *apt, uint64_t total, struct err *err) BASE_MUST_USE;
const char *apt_cache_dir(struct apt *apt); /* NULL without memory */

/* ---- trying a runtime ------------------------------------------------------------------------------------------------------ */

/* As store_confine_probe; what the program printed is appended to out. */
int trial_run(struct store *s, const struct store_runtime *r, enum store_confine *ret, struct buf *out, struct err *err) BASE_MUST_USE;

struct launch_words {
    const char *const *args;
    size_t n_args;
    const char *const *env;
    size_t n_env;
};
/* store_launch_make, with bubblewrap's report left out on demand. */
int launch_make(struct store *s, const struct store_runtime *r, enum store_confine form, const struct launch_words *w, const struct store_bind *binds, size_t n_binds,
                const char *work, bool with_info, struct store_launch *ret, struct err *err) BASE_MUST_USE;

/* ---- a launch's mounts ---------------------------------------------------------------------------------------------------- */

enum plan_kind {
    PLAN_RO,   /* from at to, read-only */
    PLAN_RW,   /* from at to */
    PLAN_DEV,  /* a device node or a folder of them */
    PLAN_LINK, /* a link at to with the text from */
};
struct plan_item {
    enum plan_kind kind;
    const char *from, *to;
    bool is_dir;
    bool same;   /* shows at its place what is there outside too */
    bool staged; /* only root may be able to reach it: bound before rights are given up */
};
struct plan {
    struct arena *arena;
    struct plan_item *items;
    size_t n, cap;
    bool has_drivers; /* host libraries lie in PLAN_DRIVERS */
};
#define PLAN_DRIVERS "/run/drivers"
/* The mounts that show r's program all that it needs, and binds at their own places, parents before children. Memory is the arena's. Paths that cannot be shown are -EINVAL. */
int plan_make(struct plan *p, struct arena *a, const struct store_runtime *r, const struct store_bind *binds, size_t n_binds, struct err *err) BASE_MUST_USE;
