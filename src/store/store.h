/* SPDX-License-Identifier: MIT
 *
 * store: what berth keeps on disk and how an engine is started from it. Payload paths, runtimes with their manifests, verification, the launch recipe. Knows fleet's structs but no
 * engine's flags. Layout below os_dirs.state:
 *
 *   store/payloads/hf/ORG/REPO/REV/...   files of models from a hub; REV is the commit that fleet.lock pins, so that nothing below it ever changes, else the revision
 *   store/manifests/SHA256               what a payload file was when it was proven, by the sha256 of its absolute path
 *   store/payloads/web/HOST/FOLDER/...   files of models from a plain web server
 *   store/headers/hf|web/...             headers of such files that are not here, below the same names
 *   store/runtimes/ID/tree/              the engine and every library it needs, as a root file system without writable parts
 *   store/runtimes/ID/manifest.json      engine, version, source, packages, digest of every file; written last, so that a folder without it is no runtime
 *   store/debs/SHA256.deb                what a debian: runtime was made from, kept as its rollback and remote source
 *   store/archives/SHA256                what an archive: runtime was made from
 *   store/debs/resolved-KEY.json         which of them a declaration came to, for making it again without a network
 *   store/lock                           flock: shared to run, exclusive to take files away (remove, replace a damaged runtime)
 *   store/change                         flock: held by every change; changes wait for one another, never for what runs
 *   store/fetch, store/uses              flocks: of whoever writes payload files; of who writes down what a fleet uses (fleets/NAME/uses), or takes away what none does
 *
 * An install happens in store/runtimes/.new-XXXX and becomes visible by one rename; leftovers are removed by the next change.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <gguf/gguf.h>
#include <os/os.h>

struct store;
/* For who only reads: nothing is made, and a store that is not there is an empty one. dirs must outlive the store. */
int store_look(const struct os_dirs *dirs, struct store **ret, struct err *err) BASE_MUST_USE;
/* Makes the folders that are not there (0755 as root, so that the engine's account can read; else 0700). Before anything is written. */
int store_make(const struct store *s, struct err *err) BASE_MUST_USE;
/* Both. */
int store_open(const struct os_dirs *dirs, struct store **ret, struct err *err) BASE_MUST_USE;
struct store *store_free(struct store *s);
/* Takes the store's lock; returns the descriptor to close. -EWOULDBLOCK without wait. */
int store_lock(struct store *s, bool exclusive, bool wait, struct err *err) BASE_MUST_USE;

/* ---- payloads ------------------------------------------------------------------------------------------------ */

/* Absolute path of one file of a model. The path need not exist. */
int store_payload_path(const struct store *s, const struct fleet_model *m, const char *file, struct buf *ret, struct err *err) BASE_MUST_USE;
/* Calls fn for each file that a model names below its source: weights (all parts of a set that the first part names), projector, drafter. role is one of these words; file is fn's until it returns. Ends with the first error of fn, or
 * -EINVAL when the weights are a later part of a set. The template is the fleet's own file and not among them. */
int store_payload_each(const struct fleet_model *m, int (*fn)(void *ctx, const char *role, const char *file, struct err *err), void *ctx, struct err *err) BASE_MUST_USE;
/* Where a copy of the header of a remote file is kept, as long as the file itself, with a hole for its data: enough to plan with. It need not exist. -EINVAL for files of one's own. */
int store_header_path(const struct store *s, const struct fleet_model *m, const char *file, struct buf *ret, struct err *err) BASE_MUST_USE;
/* Makes that copy from a source and its header. */
int store_header_save(const struct store *s, const struct fleet_model *m, const char *file, const struct gguf_source *src, const struct gguf *g, struct err *err) BASE_MUST_USE;
/* Proves that every file that a model names is there, regular, readable and not empty; a weights file that names the first part of a split set (-00001-of-000NN.gguf) stands for all parts.
 * *ret_bytes: their sum. -ENOENT with the path and what to do. */
int store_payload_check(const struct store *s, const struct fleet_model *m, uint64_t *ret_bytes, struct err *err) BASE_MUST_USE;

/* ---- proofs of payload files ---------------------------------------------------------------------------------- */

/* A file is proven in segments: a manifest keeps the chaining state of its sha256 after each, so that any one can be hashed by itself, by any thread, and damage has a place. Larger segments cost less to
 * keep, smaller ones less to fetch again; this is 32 bytes for 16 MiB. */
#define STORE_SEGMENT_BYTES ((uint64_t)16777216)
#define STORE_PAYLOAD_MAX ((uint64_t)16 << 40) /* bytes of one file: a million segments */

struct store_manifest {
    uint64_t bytes;
    uint8_t sha256[OS_SHA256_BYTES];
    uint8_t git_sha1[20];                /* of a joined file the sum that store_pin has in its place; all zero: not known */
    size_t n_states;                     /* store_states(bytes) */
    uint8_t (*states)[OS_SHA256_BYTES];  /* states[i]: after segment i; heap, owned */
};
/* Segments of a file of so many bytes, and how many of them have a state: all but the last, whose end is the digest. */
size_t store_segments(uint64_t bytes);
size_t store_states(uint64_t bytes);
/* What a lock says of one file of a model. A file that was cut for upload ("FILE.part1of3") has no digest of its own: there want has the bytes of all fragments and, as git_sha1, a sum over them that only manifests know. */
struct store_pin {
    struct fleet_lock_file want;                 /* both digests NULL: the lock does not have it */
    const struct fleet_lock_file *const *parts;  /* the fragments in order; NULL: it is no such file */
    size_t n_parts;
};
#define STORE_FRAGMENTS_MAX 999
/* True when path is fragment no (from 1) of count of file. */
bool store_fragment(struct str path, const char *file, uint32_t *ret_no, uint32_t *ret_count);
/* 1 when locked (or NULL) has the file, whole or in fragments; 0: it has not. -EFBIG, -ENOENT (not all fragments). What is made is in a or in locked. */
int store_pin_of(const struct fleet_lock_model *locked, const char *file, struct arena *a, struct store_pin *ret, struct err *err) BASE_MUST_USE;

/* What path (absolute) was when it was last proven. -ENOENT: never; one that is damaged itself counts as never. */
int store_manifest_load(const struct store *s, const char *path, struct store_manifest *ret, struct err *err) BASE_MUST_USE;
/* Records that path holds just this. The file's inode, size and times are kept with it, so that as long as they stay the same the file is known to be. -EBADMSG: it has another size. */
int store_manifest_save(struct store *s, const char *path, const struct store_manifest *m, struct err *err) BASE_MUST_USE;
/* Of a file of so many bytes, its digests zeroes until it was read. -ENOMEM; released all the same. */
int store_manifest_init(struct store_manifest *m, uint64_t bytes) BASE_MUST_USE;
void store_manifest_release(struct store_manifest *m);
/* True when path was proven to be what want says and nothing has touched it since: one stat, nothing hashed. Of want only bytes and digests are read. */
bool store_payload_proven(const struct store *s, const char *path, const struct fleet_lock_file *want);

enum store_verdict {
    STORE_UNKNOWN,    /* nobody has looked */
    STORE_PROVEN,     /* hashed, and what is wanted */
    STORE_UNCHANGED,  /* proven before, and nothing has touched it since: nothing was read */
    STORE_RECORDED,   /* nobody says what it must be: it is what later proofs compare with */
    STORE_MISSING,
    STORE_DAMAGED,    /* another size or other content */
    STORE_UNREADABLE, /* or changed while it was read */
};
struct store_check {
    /* given */
    const char *path;            /* absolute */
    struct fleet_lock_file want; /* bytes and digests; both digests NULL: what its manifest says, of which the bytes are put here */
    const struct fleet_lock_file *const *parts; /* of a store_pin; NULL, or n_parts that follow each other in the file */
    size_t n_parts;
    /* found; all zero before */
    enum store_verdict verdict;
    uint64_t bytes;              /* of the file as it is */
    uint8_t sha256[OS_SHA256_BYTES]; /* proven, unchanged or recorded */
    bool located;                /* damaged: `segments` are all that differ, and its manifest can prove what replaces them. There may be none: then it is only too long */
    uint64_t *segments;          /* ascending; heap, owned */
    size_t n_segments;
    struct err why;              /* missing, damaged, unreadable: "has 5 bytes, not 7" */
};
#define STORE_VERIFY_THREADS 8 /* beyond it memory is the limit, not cores */
struct store_verify_options {
    bool full;        /* hash what is unchanged too, from the disk */
    bool record;      /* a file that is not pinned and was touched since it was recorded is recorded again, not damaged: its owner says so */
    unsigned threads; /* 0: one for each core that we may use, at most STORE_VERIFY_THREADS */
    const struct event_sink *sink; /* progress of subject "verify" in bytes */
};
/* Finds out about n files, all of them whatever one of them is. What is proven or recorded gets its manifest; damage behind an unchanged stamp takes the stamp's credit away. 0 when every verdict is made; -EINTR, -ENOMEM, and
 * -EAGAIN without threads. Release each check either way. */
int store_verify(struct store *s, struct store_check *files, size_t n, const struct store_verify_options *o, struct err *err) BASE_MUST_USE;
void store_check_release(struct store_check *c);

/* A damaged file, open for the segments that are fetched again. When the file has other names (hard links) a copy is made and takes its place at the end, so that nobody else's file is written to. */
struct store_repair {
    int fd;      /* of exactly the wanted size */
    char *path;  /* heap, owned */
    char *copy;  /* path of the copy; NULL: written in place */
};
int store_repair_begin(const char *path, uint64_t bytes, struct store_repair *ret, struct err *err) BASE_MUST_USE;
/* keep: what was written goes to the disk and takes its place; else a copy is thrown away. r is released either way. */
int store_repair_end(struct store_repair *r, bool keep, struct err *err) BASE_MUST_USE;

/* Looks for file f of a locked hf: model where it may be already: below another revision of the same repository in the store, and in the cache of huggingface_hub (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub). One that is
 * proven to be f is put in its place by reflink, else by hard link, else by copy, and gets its manifest. -ENOENT: there is none; -EINTR. */
int store_adopt(struct store *s, const struct fleet_model *m, const struct fleet_lock_file *f, const struct event_sink *sink, struct err *err) BASE_MUST_USE;

/* Held by whoever writes payload files (fetches, repairs), so that none is taken away meanwhile. Returns the descriptor to close; -EWOULDBLOCK without wait. */
int store_lock_payloads(struct store *s, bool wait, struct err *err) BASE_MUST_USE;
/* Writes down that this machine has the fleet, so that a purge keeps what it uses; running: and what it is started with, which counts as long as it is up. Call it before the first look at its payloads. */
int store_uses_write(struct store *s, const struct fleet *f, bool running, struct err *err) BASE_MUST_USE;

enum store_garbage_kind {
    STORE_GARBAGE_PAYLOAD,  /* a whole file that no fleet names */
    STORE_GARBAGE_PARTIAL,  /* what a fetch or a repair left behind */
    STORE_GARBAGE_MANIFEST, /* the proof of a file that is gone, or goes */
};
struct store_garbage {
    const char *path;
    enum store_garbage_kind kind;
    uint64_t bytes; /* that removing it frees */
    bool shared;    /* its bytes have another name, and stay */
    bool removed;
};
struct store_purge {
    struct arena *arena;
    struct store_garbage *list;
    size_t n, n_kept;
    uint64_t bytes, kept_bytes; /* that removing all of it frees; payloads that stay */
    const char *const *gone;    /* fleet files that were known and are not there any more: nothing is kept for them */
    size_t n_gone;
};
struct store_purge_options {
    const struct fleet *fleet; /* one more that counts; NULL */
    const struct fleet_options *fleet_options;
    bool remove;
};
/* What is in the payload folder and in use by no fleet that this machine knows, nor by a version that a deployment keeps; removed when asked for. -EBUSY: something is being fetched. -EINVAL and others: the file of a fleet cannot be
 * read, so that nobody knows what it uses. */
int store_purge(struct store *s, const struct store_purge_options *o, struct store_purge *ret, struct err *err) BASE_MUST_USE;
void store_purge_release(struct store_purge *p);

/* -ENOSPC when the file system that path will be on (its nearest folder that exists) has no room for so many more bytes; says how many are missing. */
int store_space_check(const char *path, uint64_t need_bytes, struct err *err) BASE_MUST_USE;

/* ---- runtimes --------------------------------------------------------------------------------------------------- */

struct store_runtime {
    char *id;       /* "llama.cpp-0.7.0+dfsg-1-3fa2b19c04d1": engine, version, digest of the manifest */
    char *engine, *version;
    char *source;   /* "debian:forky", "path:/srv/llama", "system" */
    char *packages; /* sorted, space-separated; "" */
    char *root;     /* absolute folder of the tree; system: "/" */
    char *program;  /* path of the server inside the tree: "/usr/bin/llama-server" */
    bool complete;  /* the tree has its own loader and C library and needs nothing from the host */
    uint64_t n_files, bytes;
    uint64_t installed_us; /* real time */
    char digest[OS_SHA256_HEX]; /* of its manifest; "" when that is damaged */
};
void store_runtime_release(struct store_runtime *r);

#define STORE_ARCHIVE_BYTES_MAX ((uint64_t)64 << 30) /* of what an archive holds: a build with every GPU library has some 5 GiB */
#define STORE_ARCHIVE_RATIO_MAX 100                  /* of that to the archive's own size, beyond STORE_ARCHIVE_SMALL: programs come to 3 to 5, bombs to a thousand */
#define STORE_ARCHIVE_SMALL ((uint64_t)16 << 20)
struct store_add_options {
    bool offline;            /* only what is in the store already: -ENETUNREACH when something would have to be fetched */
    bool ignore_valid_until; /* accept a mirror's snapshot whose release file has run out */
    const char *mirror;      /* NULL: the machine's own apt sources */
    /* Puts what url has at path, which is written at once or not at all, once it has that sha256 (hex). NULL: archives are not fetched. */
    int (*fetch)(void *ctx, const char *url, const char *sha256, const char *path, struct err *err);
    void *fetch_ctx;
    const struct event_sink *sink; /* progress: subject "runtime NAME" */
};
/* The installed runtime of a declaration: -ENOENT when there is none. The manifest is read, the files are not proven. */
int store_runtime_find(struct store *s, const struct fleet_runtime *want, struct store_runtime *ret, struct err *err) BASE_MUST_USE;
/* Installs what is declared; when it is there and proven, this is a no-op. Sources:
 *   debian:SUITE  the closure of the packages, resolved by apt in a private state from the machine's own mirror, each .deb compared with the sha256 of the signed index, unpacked in order;
 *   path:DIR      a copy of the folder, which holds llama-server (in ., bin or usr/bin); complete when it has a loader of its own, else it runs on the host's libraries;
 *   archive:      tar or zip, from the store, a path, or fetched; proven by its digest, then unpacked;
 *   system        the host's own program, recorded with its digest and never copied;
 *   oci:          -EOPNOTSUPP: podman has it.
 * A damaged one is made again; -EBUSY while something runs from it. Every new one is started once before it is kept: -EIO with what it said. A path: folder that is newer than its copy is told as a warning.
 * Needs the main thread. Interrupted at any moment it leaves no runtime. Errors say which step, and for apt its last lines: -ENETUNREACH (the mirror cannot be reached), -ETIME (its release file has run out), -ENOENT (no such package,
 * folder or program), -EBADMSG (a package is not what the signed index names). */
int store_runtime_add(struct store *s, const struct fleet_runtime *want, const struct store_add_options *o, struct store_runtime *ret, struct err *err) BASE_MUST_USE;
/* Every file's presence, kind, mode and digest against the manifest, and that nothing was added. -EBADMSG names the first difference and how many there are. */
int store_runtime_verify(struct store *s, const struct store_runtime *r, const struct event_sink *sink, struct err *err) BASE_MUST_USE;
/* All installed ones, sorted by id. Free with store_runtimes_free. */
int store_runtime_list(struct store *s, struct store_runtime **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
struct store_runtime *store_runtimes_free(struct store_runtime *list, size_t n);
/* Removes one by id (or its unambiguous beginning). -EBUSY while something runs from it (somebody holds the store's shared lock), -ENOENT, -ENOTUNIQ. */
int store_runtime_remove(struct store *s, const char *id, struct err *err) BASE_MUST_USE;

/* ---- launch recipe -------------------------------------------------------------------------------------------------- */

/* How an engine is confined. Chosen by trying, best first. */
enum store_confine {
    STORE_BWRAP,  /* bubblewrap: own mount, pid, ipc, uts namespaces; the host's network */
    STORE_CHROOT, /* root only: private mount namespace, chroot, then the engine's account */
    STORE_LOADER, /* the tree's own loader, no confinement; for a tree that is not complete: the program itself */
};
/* Which one works here for this runtime, found by running the runtime's program with --version. Never fails for want of confinement: LOADER is the last resort; -EIO with its output when the program
 * does not even start that way. */
int store_confine_probe(struct store *s, const struct store_runtime *r, enum store_confine *ret, struct err *err) BASE_MUST_USE;
const char *store_confine_text(enum store_confine c);

/* A file or folder that the engine must see, at the same absolute path inside as outside, read-only unless writable. As root a read-only one is bound before rights are given up, so that
 * a model below a private folder can be read; a writable one must be reachable by the engine's account, and needs bubblewrap. Paths below /proc, /dev and /sys are -EINVAL, as are those that a complete
 * tree has itself. */
struct store_bind {
    const char *path;
    bool writable;
};
/* All that os_spawn needs, owning its memory. spawn's descriptors, death signal and group are for the caller to set. */
struct store_launch {
    struct os_spawn spawn;
    struct arena *arena;
    bool has_info_fd;  /* bwrap: keep_fds[0] must be a pipe's write end; it gets JSON with "child-pid": the engine's own pid as seen from outside */
};
/* args: the engine's arguments after the program's name. env: "NAME=value" list, the whole environment beside PATH, HOME=/tmp, LANG=C.UTF-8 (NULL none).
 * work: an empty folder that the engine's account cannot write; it is the current folder of the unconfined form, and holds the folders that root's mounts go to. It may be shared by services, and is the caller's to remove with os_remove_tree
 * when nothing runs. A runtime without a program of its own (kind "generic") has it as args[0]. */
int store_launch_make(struct store *s, const struct store_runtime *r, enum store_confine c, const char *const *args, size_t n_args, const struct store_bind *binds, size_t n_binds,
                      const char *const *env, size_t n_env, const char *work, struct store_launch *ret, struct err *err) BASE_MUST_USE;
void store_launch_release(struct store_launch *l);

/* ---- file source for gguf ---------------------------------------------------------------------------------------------- */

/* A source that reads a regular file with pread, so that a file which is cut short meanwhile is an error (-ENODATA) and no signal. The size is the one at the time of opening. A reader points at ret, which must stay where it is. */
int store_source_open(const char *path, struct gguf_source *ret, struct err *err) BASE_MUST_USE;
void store_source_close(struct gguf_source *s); /* takes one that was never opened (all zero) */
/* Whole content of a source into out, within out's ceiling (-EFBIG). */
int store_source_read(const struct gguf_source *s, struct buf *out, struct err *err) BASE_MUST_USE;

/* How files are opened by name, when they are not only files of this machine. */
struct store_opener {
    int (*open)(void *ctx, const char *path, struct gguf_source *ret, struct err *err);
    void (*close)(struct gguf_source *s); /* takes one that was never opened (all zero) */
    void *ctx;
};
extern const struct store_opener store_files; /* store_source_open and store_source_close */

/* One GGUF file, or all parts of the split set that it belongs to. */
struct store_weights {
    const struct store_opener *opener;
    struct gguf_part *parts;      /* in the set's order; the file itself when n is 1 */
    struct gguf_source **sources; /* of each part; NULL for one that is missing */
    size_t n, given;              /* parts[given] is the file that was asked for */
    int verdict;                  /* of gguf_set_check: 0, or the code in why: parts are wrong or missing, but what is there can be looked at */
    struct err why;
};
/* Fails when path itself cannot be read as GGUF; parts beside it that are wrong are told in verdict. */
int store_weights_open(const char *path, struct store_weights *ret, struct err *err) BASE_MUST_USE;
/* The same through an opener, which must outlive ret. */
int store_weights_open_by(const struct store_opener *o, const char *path, struct store_weights *ret, struct err *err) BASE_MUST_USE;
void store_weights_release(struct store_weights *w);
