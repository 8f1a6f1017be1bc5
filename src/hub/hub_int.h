/* SPDX-License-Identifier: MIT
 *
 * Shared inside hub only. Three layers: curl.c opens the library; wire.c sends one request after the other, follows redirects by hand and runs the network's thread; fetch.c with its parts makes files of many requests. parse.c reads
 * what servers say and knows nothing else.
 */
#pragma once

#include "hub.h"

#include <pthread.h>

#define CURL_DISABLE_TYPECHECK /* its macros are for calls by name */
#include <curl/curl.h>

/* ---- the library (curl.c) --------------------------------------------------------------------------------------------- */

/* What is used of libcurl, by pointers. X(name): its function curl_NAME. */
#define HUB_CURL_CALLS(X) \
    X(global_init) X(version_info) X(easy_init) X(easy_cleanup) X(easy_setopt) X(easy_getinfo) X(easy_reset) X(easy_pause) X(easy_strerror) X(multi_init) X(multi_cleanup) X(multi_add_handle) X(multi_remove_handle) \
    X(multi_perform) X(multi_poll) X(multi_wakeup) X(multi_info_read) X(multi_setopt) X(multi_strerror) X(slist_append) X(slist_free_all) X(getdate) X(url) X(url_cleanup) X(url_set) X(url_get) X(free)
struct hub_curl {
#define HUB_CURL_MEMBER(name) __typeof__(&curl_##name) name; /* NOLINT(bugprone-macro-parentheses): it is a member's name */
    HUB_CURL_CALLS(HUB_CURL_MEMBER)
#undef HUB_CURL_MEMBER
};
/* The library, opened once in a process and never closed. -ENOTSUP. */
int hub_curl_open(const struct hub_curl **ret, struct err *err) BASE_MUST_USE;

/* ---- what servers say (parse.c); no I/O ------------------------------------------------------------------------------- */

#define HUB_URL_MAX 8192
#define HUB_ETAG_MAX 256

struct hub_range {
    uint64_t from, to; /* inclusive; both HUB_UNKNOWN when nothing was satisfied: an asterisk */
    uint64_t total;    /* HUB_UNKNOWN for "*" */
};
/* "bytes 0-99/1234" */
bool hub_parse_range(struct str v, struct hub_range *ret);
/* The target of rel="next" in a Link field, as a view of v. */
bool hub_parse_next(struct str v, struct str *ret);
/* Retry-After: seconds, or a date (RFC 9110 IMF-fixdate) against now. Milliseconds, at most HUB_WAIT_MAX_MS. */
bool hub_parse_retry_after(struct str v, uint64_t now_s, uint64_t *ret_ms);
/* RateLimit: `"api";r=0;t=55` or "limit=10, remaining=0, reset=55": how long until there is room again; false while there is. */
bool hub_parse_rate_limit(struct str v, uint64_t *ret_ms);
/* One page of the tree API, added to t. */
int hub_parse_tree(struct str json, struct hub_tree *t, size_t *cap, struct err *err) BASE_MUST_USE;
/* The commit in the answer about a revision, into ret[41]. */
int hub_parse_commit(struct str json, char ret[41], struct err *err) BASE_MUST_USE;
/* True for n lower-case hex digits. */
bool hub_is_hex(struct str s, size_t n);
/* Appends path with everything escaped that is not unreserved or '/'. */
void hub_escape_path(struct buf *out, const char *path);

/* The head of one answer. */
struct hub_head {
    long status;
    uint64_t length;       /* Content-Length; HUB_UNKNOWN */
    bool has_range;
    struct hub_range range;
    char etag[HUB_ETAG_MAX];       /* strong ones only: If-Range takes no other; "" */
    char location[HUB_URL_MAX];    /* "" */
    char next[HUB_URL_MAX];        /* of Link; "" */
    char type[64];                 /* Content-Type without its parameters, in lower case */
    char linked_etag[72];          /* X-Linked-Etag without quotes: sha256 of what a redirect leads to; "" */
    char error[64];                /* X-Error-Code: "GatedRepo"; "" */
    char message[512];             /* X-Error-Message, printable */
    uint64_t linked_size;          /* X-Linked-Size; HUB_UNKNOWN */
    uint64_t wait_ms;              /* Retry-After or RateLimit; 0 */
    bool encoded;                  /* Content-Encoding other than identity */
    bool bad;                      /* fields that contradict each other or that are too long to be meant */
};
void hub_head_clear(struct hub_head *h);
/* Takes one line as it came, without its line end. A status line begins anew. */
void hub_head_line(struct hub_head *h, struct str line, uint64_t now_s);

/* ---- the wire (wire.c, wire_say.c, get.c) --------------------------------------------------------------------------------- */

#define HUB_CONNECT_MS 20000
#define HUB_SHOWN_MAX 512 /* of an address in a message */
#define HUB_STALL_BYTES_S 1024      /* that a connection must bring on average over hub->stall_us, else it is given up */
#define HUB_REFUSAL_BYTES_MAX 65536 /* of the body of an error or a redirect, which is thrown away so that the connection can be used again */

struct hub_origin {
    char scheme[8], host[256];
    char port[8];
};

/* Work that the network's thread does for a caller that waits. */
struct hub_job {
    /* On the network's thread, at the start and then whenever something happened or the time has passed: microseconds until it must be called again, or -1 when the job is over and none of its exchanges runs. stop: the caller was
     * interrupted. */
    int64_t (*step)(struct hub_job *job, bool stop, uint64_t now_us);
    void (*watch)(struct hub_job *job); /* on the caller's thread, ten times a second; NULL */
    bool stop, over;                    /* under the hub's lock */
};

struct hub {
    const struct hub_curl *c;
    char *endpoint;           /* without a slash at its end */
    struct hub_origin origin; /* of endpoint */
    char *token;              /* NULL: none. Written into one request field and nowhere else */
    unsigned connections, retries;
    uint64_t stall_us;
    const struct event_sink *sink;
    CURLM *multi;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct hub_job *job;      /* under lock */
    bool quit;                /* under lock */
};
/* Gives the thread a job and waits for its end. -EINTR when it was broken off. */
int hub_run(struct hub *h, struct hub_job *job, struct err *err) BASE_MUST_USE;
int hub_wire_start(struct hub *h, struct err *err) BASE_MUST_USE;
void hub_wire_stop(struct hub *h);
void hub_wake(struct hub *h); /* the job's step is called soon; any thread */
uint64_t hub_now_us(void);

/* One request and its answer; all on the network's thread. Callbacks may not begin or cancel exchanges, but `end` may. */
struct hub_exchange {
    struct hub *hub;
    CURL *easy;                 /* while it runs */
    struct curl_slist *fields;
    char url[HUB_URL_MAX];
    bool own;                   /* goes to the hub itself */
    struct hub_head head;
    bool head_complete;
    uint64_t body_bytes;        /* that came */
    char text[CURL_ERROR_SIZE];
    int refusal;                /* errno of a connection that was not made; 0 */
    /* The head is complete: false breaks off. */
    bool (*on_head)(struct hub_exchange *x);
    /* How much of data was taken: n to go on, CURL_WRITEFUNC_PAUSE to get the same data later, anything else to break off. */
    size_t (*on_body)(struct hub_exchange *x, const char *data, size_t n);
    void (*on_end)(struct hub_exchange *x, CURLcode code);
    void *owner;
};
struct hub_ask {
    uint64_t from, to;     /* of a range, inclusive; from HUB_UNKNOWN: the whole; to HUB_UNKNOWN: to the end */
    const char *if_range;  /* NULL or "": none */
};
/* x's hub, callbacks and owner are set. On failure nothing runs. */
int hub_exchange_begin(struct hub_exchange *x, const char *url, const struct hub_ask *ask, struct err *err) BASE_MUST_USE;
void hub_exchange_cancel(struct hub_exchange *x); /* without on_end; nothing when it does not run */
void hub_exchange_resume(struct hub_exchange *x); /* after a pause */

int hub_origin_of(const struct hub *h, const char *url, struct hub_origin *ret, struct err *err) BASE_MUST_USE;
bool hub_origin_eq(const struct hub_origin *a, const struct hub_origin *b);
/* Where a redirect from url leads, into out[HUB_URL_MAX]: http or https, never from https to http. */
int hub_url_follow(const struct hub *h, const char *url, const char *location, char *out, struct err *err) BASE_MUST_USE;
/* An address for people: without its query, which may be a signature, and without names in front of the host. Returns out. */
const char *hub_show(const struct hub *h, const char *url, char out[HUB_SHOWN_MAX]);

/* What an answer or its lack means. */
enum hub_verdict {
    HUB_GOOD,     /* 2xx */
    HUB_REDIRECT,
    HUB_AGAIN,    /* may go better later */
    HUB_EXPIRED,  /* refused by another host than the hub: a signed address has run out */
    HUB_HOPELESS
};
/* Judges a finished exchange; err has the words for all but HUB_GOOD and HUB_REDIRECT. */
enum hub_verdict hub_judge(const struct hub_exchange *x, CURLcode code, struct err *err);
/* Pause before try number n (from 1) of something that failed: a doubling one, with some chance in it. */
uint64_t hub_pause_us(unsigned n);
/* A whole small answer of the hub into out, with redirects and retries; next (NULL or HUB_URL_MAX) gets the Link to the next page or "". */
int hub_get(struct hub *h, const char *url, struct buf *out, char *next, struct err *err) BASE_MUST_USE;
/* Bytes from..to of a file (fewer when it ends before), and how many it has. resolved[HUB_URL_MAX]: where the address led last time, "" at first. */
int hub_get_part(struct hub *h, const char *url, char *resolved, uint64_t from, uint64_t to, struct buf *out, uint64_t *ret_total, struct err *err) BASE_MUST_USE;

/* ---- the journal (journal.c) ------------------------------------------------------------------------------------------------ */

/* PATH.part.journal: a line that says what PATH.part is to become, then a line for each time that bytes of a segment were on disk:
 *
 *   berth-journal 1 BYTES DIGEST ETAG CHECK
 *   SEGMENT BYTES CHECK
 *
 * DIGEST and ETAG may be "-". A segment is filled from its beginning; the last line about it counts. CHECK is a sum over the first line's and the line itself, so that a line that was cut short, or left by another file, ends the
 * journal. A line is written after the data that it speaks of was brought to the disk, never before. */
struct hub_journal {
    uint64_t bytes;
    char digest[65];         /* "-": not pinned */
    char etag[HUB_ETAG_MAX]; /* "-": none */
    uint64_t sum;            /* of the first line; for later ones */
    size_t valid;            /* bytes of the text up to the end of its last good line */
};
#define HUB_JOURNAL_MAX (256u << 20) /* bytes of one; a terabyte in pieces of HUB_KEEP_BYTES comes to 12 MB */
/* Appends the first line and sets j->sum. */
void hub_journal_begin(struct hub_journal *j, struct buf *out);
void hub_journal_add(const struct hub_journal *j, uint64_t segment, uint64_t got, struct buf *out);
/* The first line; -EBADMSG when it is none. */
int hub_journal_open(struct str text, struct hub_journal *ret) BASE_MUST_USE;
/* All other lines into got (of n segments), until one is not good. */
void hub_journal_read(struct str text, struct hub_journal *j, uint32_t *got, size_t n);

/* ---- files on their way (fetch*.c, part.c, follow.c) ------------------------------------------------------------------------ */

#define HUB_KEEP_BYTES 4194304  /* received since the journal's last lines: then it is written again */
#define HUB_LEASE_SEGMENTS 2    /* that one request asks for at most: less idle time between requests, and the follower stays near enough to read from caches */
#define HUB_RESTARTS 3          /* of a file that changes while it is fetched */
#define HUB_NOTES_MAX 1024

enum hub_way_state { WAY_WAITING, WAY_ACTIVE, WAY_DONE, WAY_FAILED };
enum hub_proof { PROOF_NONE, PROOF_RUNNING, PROOF_GOOD, PROOF_BAD, PROOF_ERROR };

struct hub_fetch;
/* One file. `under lock` is the fetch's lock; the rest belongs to the network's thread unless it says otherwise. */
struct hub_way {
    struct hub_fetch *fetch;
    const struct hub_want *want;
    bool pinned;
    enum hub_way_state state;      /* under lock */
    struct err err;                /* WAY_FAILED */
    /* on disk */
    char *part, *journal;
    int fd, journal_fd;
    bool keeping;                  /* the keeper uses the descriptors; under lock */
    struct hub_journal head;
    uint64_t journal_synced_us;    /* keeper's */
    /* segments */
    uint64_t bytes;                /* HUB_UNKNOWN until the first answer */
    size_t n_segments;
    uint32_t *got;                 /* bytes of each, from its beginning; under lock */
    uint8_t *leased, *dirty;       /* a lane has it; the journal does not know its `got` (under lock) */
    size_t free_from;              /* none before it is free */
    uint64_t done_bytes;           /* sum of got; under lock */
    /* where it is */
    char url[HUB_URL_MAX];         /* "": not resolved yet */
    char etag[HUB_ETAG_MAX];
    bool ready;                    /* a good answer came: several lanes may go */
    bool whole;                    /* the server knows no ranges */
    bool changed, from_zero;       /* what one answer said: the file is another one; only the whole can be had */
    uint64_t refreshed_at;         /* bytes that had come at the last refresh */
    unsigned lanes, fails, redirects, refreshes, restarts;
    uint64_t again_us;             /* not before; under lock */
    uint64_t calm_bytes;           /* the most that had come at any failure */
    /* proof */
    pthread_t follower;
    bool following;                /* the thread is to be joined */
    bool stop;                     /* it shall end; under lock */
    enum hub_proof proof;          /* under lock */
    size_t hashed;                 /* segments; under lock */
    struct err disk;               /* code not 0: the keeper could not write; under lock */
    struct store_manifest m;       /* the follower's while it runs */
    /* second opinions after a wrong digest, or a repair */
    bool copying;                  /* under lock */
    uint64_t copied_bytes;         /* fetched for it; under lock */
    unsigned copy_rounds;          /* begun */
    size_t n_blocks, copy_from;    /* no block before it is wanted in this round */
    uint8_t *leads, *copies;       /* of each block: by how many copies the file's bytes lead; how many came */
    bool differed;                 /* a copy, in this round */
    size_t replaced_from;          /* first segment that was replaced in this round; n_segments: none */
    const struct store_manifest *known; /* of a repair; NULL: second opinions */
    uint8_t *tries_left;           /* of each segment of a repair; 0: not wanted */
    /* shown; the caller's thread */
    double rate;
    uint64_t seen_bytes;
};

/* One connection's work. */
struct hub_lane {
    struct hub_exchange x;
    struct hub_way *w;             /* NULL: idle */
    uint64_t pos, end;
    size_t first, last;            /* leased segments */
    bool if_range;                 /* was sent */
    bool paused;
    uint8_t *copy;                 /* of one block, or of one segment of a repair, when copying */
    size_t copy_segment, copy_got; /* what copy has of a repair's segment */
    uint64_t window_us, window_bytes, began_us, began_pos;
    bool hopeless;                 /* of refused */
    struct err refused;            /* code 0: nothing was refused here */
};

struct hub_note {
    enum event_level level;
    const char *subject;           /* of a want */
    char text[ERR_TEXT_MAX];
};

struct hub_fetch {
    struct hub_job job;
    struct hub *hub;
    struct store *store;
    pthread_mutex_t lock;
    pthread_cond_t moved;          /* anything under lock changed */
    struct hub_way *ways;
    size_t n_ways, n_active;
    struct hub_lane *lanes;
    size_t n_lanes;
    uint64_t hold_us;              /* the servers asked for a pause */
    bool failed_all;               /* interrupted, or a fault that all files share */
    /* keeper */
    pthread_t keeper;
    bool keeper_runs, keeper_quit; /* under lock */
    uint64_t unkept;               /* under lock */
    /* told on the caller's thread; under lock */
    struct hub_note *notes;
    size_t n_notes;
    uint64_t watched_us;
    double rate;
    uint64_t seen_bytes;
};

/* Whether data is what m says of the segment (fetch_repair.c). */
bool repair_proves(const struct store_manifest *m, size_t segment, const uint8_t *data);
#define REPAIR_TRIES 4 /* of one segment, each damaged on its way: then it is the server */

uint64_t way_segment_bytes(const struct hub_way *w, size_t i);
void fetch_note(struct hub_way *w, enum event_level level, const char *fmt, ...) BASE_PRINTF(3, 4);
/* Gives a file up with err. */
void way_fail(struct hub_way *w, const struct err *err);
/* One more failure that may pass; wait_ms: what the server asked for. */
void way_again(struct hub_way *w, const struct err *why, uint64_t wait_ms, uint64_t now_us);

/* part.c: the file on disk. */
int hub_write_at(int fd, const void *data, size_t n, uint64_t at, const char *path, struct err *err) BASE_MUST_USE; /* path is for its message */
int part_open(struct hub_way *w, struct err *err) BASE_MUST_USE;  /* with what the journal says, when w->bytes is known */
int part_size(struct hub_way *w, uint64_t bytes, struct err *err) BASE_MUST_USE; /* the size is known: journal and segments begin */
int part_reset(struct hub_way *w, struct err *err) BASE_MUST_USE; /* all that came is worth nothing */
int part_finish(struct hub_way *w, struct err *err) BASE_MUST_USE; /* proven: the rename */
void part_close(struct hub_way *w);
void part_discard(struct hub_way *w); /* removes both files */

/* follow.c: the threads beside the network. */
int follow_start(struct hub_way *w, size_t from_segment, struct err *err) BASE_MUST_USE;
void follow_stop(struct hub_way *w);
int keeper_start(struct hub_fetch *f, struct err *err) BASE_MUST_USE;
void keeper_stop(struct hub_fetch *f);
