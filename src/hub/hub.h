/* SPDX-License-Identifier: MIT
 *
 * hub: transfers from hubs of models and from plain web servers, and nothing else. What is fetched is proven before it is kept: exact bytes, sha256 (or git's sha1 for small files), on a thread of its own right behind the network.
 * The network itself runs on one thread that belongs to the hub; the caller waits, sees events, and may be interrupted. libcurl is opened at run time, so that a machine without it can still run engines.
 *
 * A file on its way is PATH.part, and PATH.part.journal says which bytes of it are on disk; PATH is replaced by one rename when it is proven, and not touched before. What a killed transfer left is taken up where the journal ends.
 *
 * The token (HF_TOKEN, else the file HF_TOKEN_PATH, HF_HOME/token or ~/.cache/huggingface/token) goes to the hub's own scheme, host and port alone: redirects are followed by hand. It is in no message, event or file.
 *
 * A struct hub is used by one thread at a time. Work of it is broken off with -EINTR between os_interrupt_begin and os_interrupt_end when a signal came.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <gguf/gguf.h>
#include <store/store.h>

#define HUB_CONNECTIONS 4            /* at once: enough to fill a line that one connection cannot, few enough for hubs that count them */
#define HUB_CONNECTIONS_MAX 16
#define HUB_FILES_ACTIVE 2           /* files on their way at once: two are hashed on two cores */
#define HUB_STALL_MS 30000           /* a connection that brings under 1 KiB a second for so long is given up */
#define HUB_RETRIES 8                /* in a row without a byte; with the pauses between them about a minute and a half */
#define HUB_WAIT_MAX_MS 3600000      /* longest pause that a hub may ask for */
#define HUB_LOSS_BYTES 8388608       /* received but not yet in the journal, over all files: what a kill can cost at most */
#define HUB_REDIRECTS 5
#define HUB_TREE_MAX 200000          /* files of a repository */
#define HUB_JSON_MAX (64u << 20)     /* of one answer of the API */
#define HUB_UNKNOWN UINT64_MAX       /* a size that nobody has told yet */

struct hub;
struct hub_options {
    const char *endpoint;  /* NULL: HF_ENDPOINT, else https://huggingface.co */
    unsigned connections;  /* 0: HUB_CONNECTIONS */
    uint64_t stall_ms;     /* 0: HUB_STALL_MS */
    unsigned retries;      /* 0: HUB_RETRIES */
    const struct event_sink *sink; /* NULL, or: progress of each file by hub_want.subject and of "total"; INFO when a file is done, WARN before a pause, ERROR when a file is given up. Called on the caller's thread */
};
/* -ENOTSUP with the package's name when libcurl cannot be opened, -ENETDOWN when HF_HUB_OFFLINE is set, -EINVAL for an unusable endpoint. */
int hub_new(const struct hub_options *o, struct hub **ret, struct err *err) BASE_MUST_USE;
struct hub *hub_free(struct hub *h);

/* For another machine that is to fetch what this one may: lines "HF_ENDPOINT=..." and "HF_TOKEN=...", appended; nothing when neither is set. The text is a secret: it goes through a pipe, and is wiped after use. */
int hub_export(struct buf *ret, struct err *err) BASE_MUST_USE;
/* Loads libcurl, so that a copy of this process takes it along. -ENOTSUP as hub_new. */
int hub_load(struct err *err) BASE_MUST_USE;

/* ---- what a repository has ------------------------------------------------------------------------------------------- */

struct hub_file {
    const char *path;              /* os_relpath_valid */
    uint64_t bytes;
    const char *sha256, *git_sha1; /* lower-case hex; sha256 of an LFS file, else git_sha1 of its blob; the other is NULL */
};
struct hub_tree {
    struct arena *arena;
    const char *commit;            /* 40 hex digits */
    struct hub_file *files;        /* sorted by path */
    size_t n_files;
};
/* Every file of repo ("ORG/REPO") at revision. -EACCES (a token is needed, or it has no access: the text says which), -ENOENT (no such repository or revision), -EPROTO (not a hub's answer), -EBADMSG (a name that would leave the
 * folder), -ETIMEDOUT, -ECONNREFUSED and others of the network. */
int hub_tree(struct hub *h, const char *repo, const char *revision, struct hub_tree *ret, struct err *err) BASE_MUST_USE;
void hub_tree_release(struct hub_tree *t);
const struct hub_file *hub_tree_find(const struct hub_tree *t, const char *path); /* NULL: not there */
/* The address of one file, into ret (appended): ENDPOINT/REPO/resolve/REVISION/PATH, each part escaped. */
int hub_url(const struct hub *h, const char *repo, const char *revision, const char *path, struct buf *ret, struct err *err) BASE_MUST_USE;

/* The same for a plain server: FOLDER/PATH, with PATH escaped. */
int hub_web_url(const char *folder, const char *path, struct buf *ret, struct err *err) BASE_MUST_USE;
/* What an hf: model of the fleet is at its revision at this moment: its commit, and exactly the files that it names; of one that was cut into fragments those. Strings are in a or m's; source is left to the caller. -ENOENT names a file
 * that is not there; else as hub_tree. */
int hub_resolve(struct hub *h, const struct fleet_model *m, struct arena *a, struct fleet_lock_model *ret, struct err *err) BASE_MUST_USE;

/* ---- fetching -------------------------------------------------------------------------------------------------------- */

struct hub_want {
    const char *subject;           /* how events call it */
    const char *url;               /* absolute, http or https */
    const char *path;              /* absolute; missing folders are made */
    uint64_t bytes;                /* HUB_UNKNOWN: as the server says */
    const char *sha256, *git_sha1; /* hex; both NULL: nothing is pinned, and the bytes are only as good as the server */
};
/* Fetches all of them; what one wants is tried to the end whatever happens to the others. s: manifests of what arrived go there; NULL: there are none. ret_codes (NULL, or n): 0 or the error of each. Returns 0, or the first error with its text:
 * -EBADMSG (the bytes are not what is pinned; no wrong file is left under the name), -EMEDIUMTYPE (a web page instead of the file), -ESTALE (another size than pinned: changed upstream), -ENOSPC, and what hub_tree may say. */
int hub_fetch(struct hub *h, struct store *s, const struct hub_want *wants, size_t n, int *ret_codes, struct err *err) BASE_MUST_USE;
/* One file, with a hub that is opened for it: what store_add_options.fetch wants. ctx: an event sink, or NULL. */
int hub_fetch_pinned(void *ctx, const char *url, const char *sha256, const char *path, struct err *err) BASE_MUST_USE;
/* Fetches segments (indices of STORE_SEGMENT_BYTES) of one file again and writes each into fd once it is proven against m; nothing else of fd is touched. *ret_bytes: what was fetched. -EBADMSG: the server's bytes are not those of m. */
int hub_repair(struct hub *h, const struct hub_want *w, const struct store_manifest *m, const uint64_t *segments, size_t n, int fd, uint64_t *ret_bytes, struct err *err) BASE_MUST_USE;

/* The same of a file that was joined of parts, in this order: of each the url, the bytes and a subject. */
int hub_repair_joined(struct hub *h, const struct hub_want *parts, size_t n_parts, const struct store_manifest *m, const uint64_t *segments, size_t n, int fd, uint64_t *ret_bytes, struct err *err) BASE_MUST_USE;

/* ---- remote headers -------------------------------------------------------------------------------------------------- */

/* A source that reads ranges of a remote file and keeps what it read. Close it with hub_source_close. */
int hub_source_open(struct hub *h, const char *url, struct gguf_source *ret, struct err *err) BASE_MUST_USE;
void hub_source_close(struct gguf_source *s);
