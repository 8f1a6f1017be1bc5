/* SPDX-License-Identifier: MIT
 *
 * proxy, private: the router's parts.
 *
 *   config.c   the configuration: text, reading, look-ups
 *   proxy.c    the router's life, its replicas
 *   capacity.c what replicas tell of their room
 *   lane.c     one event loop's share of it: its thread, its clock, whose turn it is
 *   numbers.c  metrics, and a line for each request
 *   request.c  a request from its head to its end: reading, own answers, errors
 *   body.c     what a request's body is kept in
 *   file.c     the file of a large one
 *   look.c     what a body says
 *   own.c      what the router answers itself
 *   forward.c  the call to a replica: queue, sending, sending again
 *   join.c     the same turn asked twice
 *   link.c     ... at two lanes: the way from an answer to a client of another lane
 *   guard.c    who may ask: keys and their limits, pages of other origins
 *   keys.c     the keys, as a file has them (proxy.h, keys_int.h)
 *   want.c     what the owner of services on demand must know
 *   answer.c   what comes back: held until it is sure, then passed on
 *   dialect.c  what the APIs call an event, an error, a sign of life
 *   place_int.h has the parts that choose
 *   see_int.h  what can be seen of requests, in see.c
 *   ask.c      what the owner may ask
 *   listen.c   where it is reached: socket and certificate, for its owner
 *   drill_int.h  the failure drill: drill.c, drill_mock.c, drill_cases.c
 *   worker.c   the process around it: channel, signals
 *
 * A configuration never changes. What does change about a replica is a `peer` of the router, found by name, which outlives the swap of a configuration
 * and lives as long as the router: there are as many as there ever were names.
 *
 * Threads: a lane has one event loop and everything that lives on it: connections, requests, calls. Lanes share the struct proxy. What is marked "lock" there is used while its lock is held, which is for moments, and
 * never over a callback, a system call or another function of a lane; the rest never changes after proxy_new, is atomic, or belongs to the owner's thread. The first lane is on the owner's loop and thread. A request whose
 * turn another lane finds is put into its own lane's list `handed`, and that lane is woken. One that gets the answer of another lane's does so over a link.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include <conf/conf.h>
#include <httpio/httpio.h>
#include <metrics/metrics.h>

#include "place_int.h"
#include "proxy.h"
#include "see_int.h"

#define PROXY_BODY_SMALL 262144         /* a body up to here is handed over in one piece and may go to a kept connection */
#define PROXY_LOOK_MAX 262144           /* of a body in memory that is looked at on the loop: 0.1 to 0.2 ms for its bytes ... */
#define PROXY_LOOK_MARKS 10000          /* ... and as many marks (json_scan_marks), each of which costs up to 30 ns: no body holds the loop for more than half a millisecond */
#define PROXY_LOOK_SURE 24576           /* a body up to here costs less, whatever is in it */
#define PROXY_LOOK_NAME_MAX 4096        /* of a model's name that is understood */
#define PROXY_SLICE 65536               /* a larger one goes in pieces of this size, as the replica takes them */
#define PROXY_SEND_TURN 524288          /* so much of all bodies goes out, which takes 0.2 ms, before a loop looks after others: a replica may take them as fast as they come */
#define PROXY_KNOWN_SHOWN 32            /* names listed in the answer to an unknown one */
#define PROXY_HOLD_MAX 65536            /* of an answer that is held until it is sure; a longer one is passed on */
#define PROXY_EVENT_MAX 65536           /* of an event that is read; of a longer one the front */
#define PROXY_TICK_MS 1000
#define PROXY_HEARTBEAT_MS 8000         /* silence on a stream after which a sign of life is sent: clients give up at 15 s */
#define PROXY_HANG_MS 95000             /* llama-server says something on a stream every 30 s, whatever it works on; who does not for so long hangs */
#define PROXY_LOG_FLUSH 32768
#ifdef __SANITIZE_ADDRESS__
#define PROXY_SPARE_MAX 0               /* memory that is used again would hide who uses it too late */
#else
#define PROXY_SPARE_MAX 64              /* requests whose memory a loop keeps for the next ones */
#endif
#define PROXY_TRIM_FROM 256             /* a router that had so many connections at once gives memory back to the system; of several loops each that had its share, and has a quarter of them left */
#define PROXY_TRIM_LEAST 32             /* ... but not for fewer than that */
#define PROXY_TRIM_POSTPONED 60         /* ticks for which that waits for a moment without requests */
#define PROXY_RUNNING 256               /* places of a table of requests under way */
#define PROXY_JOIN_MAX 4194304          /* bytes of a body that is compared with others */
#define PROXY_BEHIND_MAX 1048576        /* of an answer, what waits for a client that takes it more slowly than others do: more than a minute of most streams */
#define PROXY_DEATHS_MAX 2              /* replicas that one request may see die before its answer: it may be what kills them */
#define PROXY_RETRY_AFTER "2"           /* seconds until a client should ask again, when nothing is ready */
#define PROXY_SERIES_MAX 8192           /* endpoints x replicas x status codes, with room */
#define PROXY_TELLS_MAX 32              /* of a path */
#define PROXY_CAPACITY_MS 10000         /* who has not told its capacity is asked again after so long */
#define PROXY_FAILED_MAX 256            /* of what is said about a replica that failed */
#define PROXY_WHY_MAX 320               /* of why a service is not ready */

/* A series once it was looked up; NULL before. */
typedef _Atomic(struct metrics_series *) proxy_series;

/* ---- config.c ------------------------------------------------------------------------------------------- */

struct proxy_replica {
    const char *name;   /* of the service */
    const char *served; /* the model name that its engine answers to */
    const char *host;   /* IP address, "unix:PATH" or host name, as written */
    struct net_addr addr;
    bool resolved;      /* addr is valid: a host's name is not, which is out of reach */
    bool ready;
    uint64_t generation;
    unsigned slots;     /* requests at once; 0: as many as come */
    bool startable;     /* its owner starts it when a request waits for it */
    const char *why;    /* not ready, and why; NULL */
    const char *key;    /* shown to its engine in place of what clients show; NULL: none */
    bool asks;          /* what runs there may ask clients for a key of its own, which is then theirs to show */
    uint64_t context;   /* tokens that all slots hold together; 0 unknown */
    const char *tells;  /* where it says that itself; NULL */
    bool pins;          /* takes id_slot */
};

/* Series of metrics of one replica as an endpoint's requests reach it: looked up by their labels once. */
struct proxy_way {
    proxy_series queue, first_byte, inter_token, duration, predicted, ok, decisions[SCHED_N_DECISIONS];
};

struct proxy_endpoint {
    const char *name;
    const char *quoted; /* the name as JSON */
    const char *policy;
    const char *const *aliases;
    size_t n_aliases;
    const uint32_t *replicas; /* indices */
    size_t n_replicas;
    /* Once a router has the configuration: its peers; fewer than n_replicas when there was no memory for one. */
    struct sched_replica **candidates;
    struct sched_group *group; /* lock; of its requests */
    struct proxy_way *ways; /* to each of them */
    size_t n_candidates;
};

struct proxy_peer;

struct proxy_config {
    atomic_uint refs;
    struct arena *arena;
    struct proxy_replica *replicas;
    struct proxy_peer **peers; /* of the replicas, once a router has it; NULL: there was no memory for it */
    size_t n_replicas;
    struct proxy_endpoint *endpoints;
    size_t n_endpoints;
    struct place_names names; /* of conversations */
    struct fleet_bodies bodies;
    bool keyed;              /* clients must show a key */
    const char *const *cors; /* origins whose pages may ask */
    size_t n_cors;
};

/* Where a request goes that was sent to a replica. */
struct proxy_target {
    char served[FLEET_NAME_MAX + 1];
    struct net_addr addr;
    char host[NET_ADDR_TEXT]; /* addr as the value of Host */
    char key[FLEET_KEY_MAX + 1]; /* that its engine asks for; "" none */
    bool asks, pins;
};

/* By name or alias; NULL. */
const struct proxy_endpoint *proxy_config_find(const struct proxy_config *c, struct str model);
bool proxy_config_any_ready(const struct proxy_config *c);

/* ---- proxy.c ---------------------------------------------------------------------------------------------- */

struct proxy_peer {
    struct sched_replica s; /* lock */
    char name[FLEET_NAME_MAX + 1]; /* never changes */
    struct proxy_target target;    /* lock */
    char why[PROXY_WHY_MAX];       /* lock; it is not ready, and why; "" */
    /* lock: as its answers told */
    uint64_t prompt_n, cached_n, predicted_n;
    struct see_rate rate; /* tokens of answers */
    size_t waiting;       /* requests that could go there, when last counted */
    char tells[PROXY_TELLS_MAX];  /* lock; where it says how many tokens it holds; "" */
    uint64_t told_life, told_tokens; /* lock; of which life, and what it said */
    struct proxy *proxy;
    struct httpio_fetch *asking;  /* the owner's thread */
    uint64_t asked_life;          /* lock */
    /* lock: what the owner is to be told of it */
    bool failed;
    uint64_t failed_generation;
    char failed_text[PROXY_FAILED_MAX];
};
#define PROXY_PEER(r) base_container(r, struct proxy_peer, s)

struct proxy_request;
struct proxy_lane;
struct proxy_looking;

struct proxy {
    struct proxy_lane *lanes;
    unsigned n_lanes;
    uint64_t seed;
    uint64_t tick_ms, heartbeat_ms, hang_ms, capacity_ms;
    struct net_timer *capacity;  /* the owner's thread; NULL: nobody is asked */
    int spill_dir;               /* where files of bodies are; -1: there are none. Set before any lane serves */
    unsigned listeners;          /* the owner's, as what a drain is followed by */
    pthread_mutex_t lock;
    _Atomic(struct proxy_config *) config; /* lock, but for looking whether it is another one; NULL until the first one */
    struct proxy_keys *keys;     /* lock; NULL: none came */
    struct proxy_use *uses;      /* lock */
    struct proxy_peer **peers;   /* lock; all there ever were */
    size_t n_peers;              /* lock */
    struct affinity *affinity;   /* lock */
    struct sched *sched;         /* lock */
    struct proxy_request *running[PROXY_RUNNING]; /* lock; those that the same one may join, by hash */
    uint64_t now_ms;             /* lock; the scheduler's time: the latest of all loops' */
    unsigned undrained;          /* lock; lanes that are not drained */
    void (*drain_cb)(void *ctx);
    void *drain_ctx;
    atomic_bool trimming;          /* a loop gives memory back */
    atomic_size_t bodies, spilled; /* bytes of bodies in memory, and in files; both while they are being written */
    atomic_uint_least64_t numbers; /* of requests that were given */
    struct {
        atomic_uint_least64_t requests, retries, errors, active;
    } stats;
    struct metrics *metrics;
    struct see *see;             /* has a lock of its own */
    struct net_tls *tls;         /* NULL: plain HTTP; has a lock of its own, and is made before any lane serves */
    /* Told of a replica that could not be reached, on the owner's thread; may be NULL. */
    void (*on_failed)(void *ctx, const char *service, uint64_t generation, const char *text);
    void *on_failed_ctx;
    /* Gets whole lines for the log of requests, on any lane's thread; NULL: there is none. */
    void (*on_log)(void *ctx, struct str lines);
    void *on_log_ctx;
    /* Requests were put in line, sent or ended: on the owner's thread, and when another lane says so only while `watched`. May be NULL. */
    void (*on_moved)(void *ctx);
    void *on_moved_ctx;
    atomic_bool watched, moved;
};

/* Asks those replicas that have not told their capacity, on the owner's thread; and no more. */
void proxy_capacity_ask(struct proxy *p);
void proxy_capacity_end(struct proxy *p);
/* How much room an endpoint of the configuration in force has. The lock is held. */
void proxy_room(struct proxy *p, const struct proxy_endpoint *e, struct sched_room *ret);
/* The configuration in force, to be given back with proxy_config_unref; NULL. */
struct proxy_config *proxy_config_now(struct proxy *p);
/* Tells the owner what lanes have left for it. */
void proxy_owner_woken(struct proxy *p);
/* Requests of a lane moved: its owner may want to know. */
void proxy_tell_moved(struct proxy_lane *l);
/* A replica could not be reached: its owner is told. service is the name of a peer. */
void proxy_tell_failed(struct proxy_lane *l, const char *service, uint64_t generation, const char *text);

/* What a body says (look.c). */
struct proxy_look {
    int found;                   /* 1: it names a model; 2: one whose name is too long to be anybody's, and model is its beginning; 0: none; -EBADMSG: in a way that is none */
    bool form;                   /* the body is multipart/form-data, and its model as it is, not quoted */
    size_t model_off, model_len; /* of the model's value in it; len 0: there is none */
    struct buf model;            /* its name */
    size_t member_off;           /* of the first member of its object; 0: it has none */
    uint64_t same[2];            /* tells it from others; 0: nobody may join it */
    struct place_identity id;    /* before its head names it */
};

/* ---- lane.c ------------------------------------------------------------------------------------------------- */

struct proxy_lane {
    struct proxy *proxy;
    struct net_loop *loop;
    struct httpio_server *server;
    struct httpio_client *client;
    struct net_timer *due, *tick;  /* when the scheduler has something; while there are streams or lines */
    struct net_wake *wake;         /* other threads have something for this loop */
    pthread_t thread;              /* runs the loop; the first lane has none of its own */
    bool threaded;
    bool pumping, again, ticking; /* again: somebody came while it hands out */
    struct proxy_request *streams; /* those that want signs of life */
    struct proxy_request *senders, *last_sender; /* large bodies that wait for their turn to go on */
    struct net_wake *more;         /* their turn */
    size_t sent;                   /* bytes of bodies, since the last turn */
    struct proxy_request *spare;   /* memory of requests that have ended, for the next ones */
    unsigned n_spare;
    size_t most;                   /* connections at once, since memory was given back */
    unsigned postponed;            /* ticks for which that could have been done */
    struct buf log;                /* lines that are not written yet */
    uint64_t log_s;                /* the second of log_time */
    char log_time[CLK_RFC3339];
    struct proxy_look look;        /* scratch: large, and read where it was made */
    bool drained;                  /* lock; nothing of it is left */
    struct proxy_link_end *mail, **last_mail; /* lock; ends of links for which there is something, and how many they are */
    size_t n_mail;
    struct proxy_request *handed;  /* lock; whose turn other lanes found, in no order */
    /* lock: what the owner waits for */
    void (*order)(struct proxy_lane *l, void *arg);
    void *order_arg;
    pthread_cond_t ordered;
};

/* One of `loops`; on the loop given, or with NULL on one of its own. */
int proxy_lane_init(struct proxy *p, struct proxy_lane *l, struct net_loop *loop, unsigned loops, struct err *err) BASE_MUST_USE;
/* Ends the lane's thread. From here on everything of it is the caller's. */
void proxy_lane_stop(struct proxy_lane *l);
/* Ends its exchanges; to be called for all lanes before any is released. */
void proxy_lane_close(struct proxy_lane *l);
void proxy_lane_release(struct proxy_lane *l);
/* Has fn called on the lane's thread and waits for its end. Called by the owner's thread only. */
void proxy_lane_do(struct proxy_lane *l, void (*fn)(struct proxy_lane *l, void *arg), void *arg);
/* The scheduler's time. The lock is held. */
uint64_t proxy_lane_now(struct proxy_lane *l);
/* Takes the request out of the list of its lane, when it is there. The lock is held. */
void proxy_request_unhand(struct proxy_request *r);
/* Hands out what the scheduler has. Requests may be gone when it returns. */
void proxy_pump(struct proxy_lane *l);
/* Puts the request in line, and hands out. False: the queue is full, which turned_away tells; else the request may be gone. */
bool proxy_lane_enter(struct proxy_request *r);
/* A lease or a place in the queue was given back; waiting: somebody may have his turn now. */
void proxy_settle(struct proxy_lane *l, bool waiting);
/* Sees to it that the clock ticks once more. */
void proxy_tick(struct proxy_lane *l);
void proxy_lane_opened(void *lane); /* a connection */
void proxy_stream_add(struct proxy_request *r);
/* Whether a request may send so many bytes more of a large body before others have had their turn; else it waits for its own with proxy_sender_add, which calls proxy_forward_send. */
bool proxy_lane_sends(struct proxy_request *r, size_t bytes);
void proxy_sender_add(struct proxy_request *r);
void proxy_sender_remove(struct proxy_request *r); /* harmless when it does not wait */
void proxy_stream_remove(struct proxy_request *r);

/* ---- guard.c ---------------------------------------------------------------------------------------------------- */

/* Of one key, by its name. */
struct proxy_use {
    struct proxy_use *next;
    char name[FLEET_NAME_MAX + 1];
    uint64_t active, filled_ms;
    double tokens; /* requests that may come at once */
};
#define PROXY_GUARD_UNKNOWN "a key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY', and the one shown, if any, is not known"
/* The key that it shows, which lives until *ret_keys is given back with proxy_keys_unref; NULL: none is needed, or none is known. */
const struct proxy_key *proxy_guard_shown(struct proxy *p, const struct http_head *head, const struct proxy_config *c, struct proxy_keys **ret_keys);
/* Whether a field of a request is for us alone. */
bool proxy_guard_secret(struct str field);
/* Counts the request for its key; then whether the key may use the endpoint. Not 0: it was answered and may be gone. */
int proxy_guard_admit(struct proxy_request *r) BASE_MUST_USE;
int proxy_guard_model(struct proxy_request *r) BASE_MUST_USE;
void proxy_guard_leave(struct proxy_request *r);
void proxy_guard_release(struct proxy *p);

#define PROXY_CORS_FIELDS 3
/* Fields of an answer for the page that asked: how many. */
size_t proxy_cors_fields(const struct proxy_config *c, const struct http_head *head, struct http_field out[PROXY_CORS_FIELDS]);
/* Fields that only the router sends. */
bool proxy_cors_is_field(struct str name);
/* True when the request was a browser's question and is answered. */
bool proxy_cors_preflight(struct httpio_exchange *x, const struct http_head *head, const struct proxy_config *c);

/* ---- want.c ----------------------------------------------------------------------------------------------------- */

/* A line for the owner of services on demand (proxy.h): 1 when it differs from the one that *digest is of, which then follows; 0: it does not. */
int proxy_want_text(struct proxy *p, uint64_t mark, uint64_t *digest, struct buf *out) BASE_MUST_USE;

/* ---- dialect.c ------------------------------------------------------------------------------------------------ */

/* True when the client has something of its answer with this event; before it the answer may come from elsewhere. */
bool dialect_is_content(enum place_dialect d, const struct http_sse_event *e);
/* What an event says of its stream's end: may end: when nothing that goes on follows; ends: this is its last one. */
enum dialect_end { DIALECT_SAYS_NOTHING, DIALECT_GOES_ON, DIALECT_MAY_END, DIALECT_ENDS };
enum dialect_end dialect_end(enum place_dialect d, const struct http_sse_event *e);
#define DIALECT_NAME_MAX 64
/* An event without a name gets the type in its data, where the API's events have both: the two say the same, and clients go by either. */
void dialect_name(enum place_dialect d, struct http_sse_event *e, char scratch[DIALECT_NAME_MAX]);
/* True for an event that is an error: *ret_code as it says, by number or by name, else 500. */
bool dialect_is_error(const struct http_sse_event *e, unsigned *ret_code);
/* How many tokens of an answer an event brings, as far as its name tells: none or one. */
unsigned dialect_tokens(enum place_dialect d, const struct http_sse_event *e);
struct str dialect_heartbeat(enum place_dialect d);
/* An error in a whole answer, and as an event of a stream. */
int dialect_error_body(enum place_dialect d, unsigned status, struct str message, struct buf *out) BASE_MUST_USE;
int dialect_error_event(enum place_dialect d, unsigned status, struct str message, struct buf *out) BASE_MUST_USE;

struct dialect_usage {
    bool known;
    uint64_t prompt_n, cached_n, predicted_n; /* prompt_n: without what was cached */
    double prompt_ms, predicted_ms;           /* 0 unknown */
};
/* Adds what an answer or an event's data says of tokens. */
void dialect_read_usage(struct str text, struct dialect_usage *u);

/* ---- body.c ------------------------------------------------------------------------------------------------ */

/* Once whole it is one text, in memory or mapped. */
struct proxy_body {
    struct buf mem;          /* all of it, while there is no file */
    struct proxy_file *file; /* NULL */
    char *map;               /* the file's, once it is whole */
    size_t len;              /* of what went to the file */
    size_t given;            /* of the mapping, from its front: given back to the system */
};
void proxy_body_init(struct proxy_body *b, const struct fleet_bodies *limits);
/* Whether there is room for a body of that length (-1: it does not say), as far as its head tells. -EFBIG, or -EAGAIN: not at the moment. */
int proxy_body_admit(struct proxy *p, const struct fleet_bodies *limits, int64_t length) BASE_MUST_USE;
/* Adds what came to the request's body. As proxy_body_admit; -ENOSPC: the disk is full; -ENOMEM; others of a file, which may also be told by proxy_request_kept. */
int proxy_body_add(struct proxy_request *r, struct str data, int64_t length) BASE_MUST_USE;
/* The client is not to be read until proxy_request_kept. */
bool proxy_body_full(const struct proxy_request *r);
/* Nothing follows. 0: it is there; 1: proxy_request_kept tells. */
int proxy_body_end(struct proxy_body *b) BASE_MUST_USE;
/* To be called when it is there. */
void proxy_body_map(struct proxy_body *b);
/* All of it, after proxy_body_map; valid until the body is dropped. */
struct str proxy_body_text(const struct proxy_body *b);
/* To be called before a part of the text is read: fails where the disk cannot give it. */
int proxy_body_reach(const struct proxy_body *b, struct str part) BASE_MUST_USE;
/* What is up to the end of that part is not needed for now; nothing is. */
void proxy_body_sent(struct proxy_body *b, struct str part);
void proxy_body_rest(struct proxy_body *b);
/* Lets go of it; it is empty then. In two steps: it counts no longer, and is nobody's; and it is gone. */
void proxy_body_drop(struct proxy *p, struct proxy_body *b);
void proxy_body_forget(struct proxy *p, struct proxy_body *b);
void proxy_body_release(struct proxy_body *b);

/* ---- file.c ------------------------------------------------------------------------------------------------ */

#define PROXY_FILE_AHEAD 131072 /* of a body, what may wait while what came before is written */

/* For the rest of the request's body; takes over what came of it, which is written first. */
int proxy_file_new(struct proxy_request *r, struct buf *front, struct proxy_file **ret) BASE_MUST_USE;
int proxy_file_add(struct proxy_file *f, struct str data) BASE_MUST_USE;
int proxy_file_end(struct proxy_file *f) BASE_MUST_USE; /* proxy_request_kept tells when all of it is written and mapped */
size_t proxy_file_waiting(const struct proxy_file *f);  /* bytes that nobody writes yet */
char *proxy_file_map(const struct proxy_file *f);       /* all of it; NULL before its end */
/* Nothing is told of it any more; then nothing is left of it soon. Take NULL; the latter returns NULL. */
void proxy_file_forget(struct proxy_file *f);
struct proxy_file *proxy_file_drop(struct proxy_file *f);

/* ---- look.c ------------------------------------------------------------------------------------------------ */

/* Looks at the request's whole body. 0: the lane's `look` has what it says, and a name that is the caller's; 1: proxy_request_looked tells, and until then the body is not there. -ENOMEM, -ECANCELED. */
int proxy_look(struct proxy_request *r) BASE_MUST_USE;
/* Whether a body in memory is looked at on the loop: it is small, or of few pieces for its size. */
bool proxy_look_quick(struct str body);
/* Nothing is told any more, and the body is gone soon. Harmless when nobody looks. */
void proxy_look_drop(struct proxy_request *r);

/* ---- request.c --------------------------------------------------------------------------------------------- */

struct proxy_request {
    struct proxy *proxy;
    struct proxy_lane *lane;
    struct httpio_exchange *x;
    struct proxy_config *config; /* the one it began with */
    const struct proxy_endpoint *endpoint;
    struct proxy_way *way;       /* to the last replica that had it; NULL */
    const char *key;             /* name of the client's key; NULL */
    struct proxy_use *use;       /* counts it; NULL */
    unsigned retry_s;            /* when a client that asks too much may come again */
    uint64_t number, since_ms;
    struct see_page *page;       /* changes under the lock, while it may be in the queue; NULL: unseen */
    struct proxy_body body;
    struct proxy_looking *looking; /* who looks at the body, and has it; NULL */
    bool form;                   /* as in struct proxy_look */
    size_t model_off, model_len, member_off;
    /* where it goes */
    enum place_dialect dialect;
    bool stream;                 /* its client asked for one */
    struct sched_ticket ticket;  /* lock, while it waits */
    struct proxy_target target;  /* lock, while it waits */
    struct proxy_request *next_handed, **at_handed; /* lock; in lane->handed */
    bool handed_expired;         /* lock */
    bool entered;                /* it waits or has a lease: others may look at its ticket while it waits */
    uint64_t tried;              /* its ticket's, when there are no more than 64 candidates */
    uint64_t *chain;
    const char *last;            /* name of the last replica that had it; NULL */
    unsigned attempts, deaths;   /* deaths: of them, how often the replica was gone after it had the request */
    uint64_t same[2];            /* tells the same request from others; 0: it joins nobody */
    bool joinable;               /* it is in proxy->running */
    struct proxy_request *next_same, **at_same; /* lock; there */
    struct proxy_request *leader;               /* whose answer it gets too; NULL: its own */
    struct proxy_request *followers, *next_follower;
    struct proxy_link *source;   /* its answer comes from another lane, or that lane is asked for it; NULL */
    struct proxy_link *sink;     /* its client is another lane's: it has no exchange; NULL */
    bool between;                /* of what came from the source the last event is whole */
    struct str parts[5];         /* of the body as this replica gets it */
    char *quoted;                /* the model's name there */
    char slot[32];
    size_t part, part_off;       /* how far a large body was sent */
    bool sending;                /* a large body is on its way */
    struct httpio_call *call;
    uint64_t byte_ms;            /* when the replica was last heard of */
    bool paused;                 /* the client has more than it takes at once; when all clients of the call have, it is not read */
    size_t behind;               /* bytes that its client was sent all the same, as others go on */
    /* what comes back */
    const struct http_head *head; /* of the replica's answer, which is held; NULL */
    bool events;                 /* it is an event stream that is read */
    struct http_sse sse;
    struct buf held;
    bool content;                /* the client has something of the answer, or all of it is there */
    bool ended;                  /* it may end: all choices have, or its last event came ... */
    bool closed;                 /* ... which it did */
    struct dialect_usage usage;
    uint64_t content_ms, sent_ms;
    unsigned status;             /* of the answer; 0 none yet */
    bool passing;                /* the answer is a replica's */
    bool cut;                    /* ... and broke off */
    bool cancelled;              /* by who runs the router */
    bool slow;                   /* cut off, as others go on without it */
    size_t turned_away;          /* where it would have stood in a queue that was full */
    uint64_t token_ms;           /* when the last token passed */
    struct metrics_series *gaps; /* where the time between them goes */
    struct proxy_request *next_stream, **at_stream; /* in lane->streams */
    struct proxy_request *next_sender, **at_sender; /* in lane->senders */
};

extern const struct httpio_server_ops proxy_server_ops; /* ctx is the lane */

/* Answers with an error of ours, in a stream that has begun as its last event. The request may be gone when it returns. */
void proxy_request_fail(struct proxy_request *r, unsigned status, const char *fmt, ...) BASE_PRINTF(3, 4);
/* Sends a whole answer of ours; the exchange may be gone when it returns. c NULL: there is none yet. r NULL: what was asked for is no request to a model. */
void proxy_answer(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, unsigned status, const char *type, struct str body);
void proxy_answer_json(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, unsigned status, struct str body);
void proxy_answer_error(struct httpio_exchange *x, const struct proxy_config *c, const struct proxy_request *r, enum place_dialect d, unsigned status, struct str message);
/* Takes %XX, and with plus "+" for a space, from a target's part. */
void proxy_decode(struct str value, bool plus, struct buf *out);
/* Ends it because who runs the router says so. The request may be gone when it returns. */
void proxy_request_cancel(struct proxy_request *r);
/* It has no client any more: its call ends, and it is freed. */
void proxy_request_over(struct proxy_request *r);
/* The client at the other end of its sink has left. The request may be gone when it returns. */
void proxy_request_left(struct proxy_request *r);
/* More of its body is in its file; or all of it, whole; or not, and rc tells why. The request may be gone when it returns. */
void proxy_request_kept(struct proxy_request *r, int rc, bool whole);
/* What its body says; rc: it cannot be read. The request may be gone when it returns. */
void proxy_request_looked(struct proxy_request *r, int rc, struct proxy_look *k);
/* Lets go of the kept body. */
void proxy_request_drop_body(struct proxy_request *r);

/* ---- own.c --------------------------------------------------------------------------------------------------- */

/* Answers what is asked of the router itself, without a body: its health everybody, all else who shows a key that is known, when one is needed. False: it is nothing of that, or may not be answered. c may be NULL. */
bool proxy_own(struct proxy *p, struct httpio_exchange *x, const struct http_head *head, const struct proxy_config *c);
/* Whether a list for that key (NULL: for everybody) has the endpoint. */
bool proxy_own_lists(const struct proxy_key *key, const struct proxy_endpoint *e);
/* What can be said without the body of one that may have one: there is no such call. True: it is answered, and the request may be gone. */
bool proxy_own_refuse(struct proxy_request *r);
/* What needs the body, which is whole; found and model are as in struct proxy_look. */
bool proxy_own_body(struct proxy_request *r, int found, struct str model);

/* ---- forward.c ---------------------------------------------------------------------------------------------- */

/* Turns it away when it would have to wait and the queue is full. The request may be gone when it returns. */
void proxy_forward_admit(struct proxy_request *r);
/* Puts the complete request in line. The request may be gone when it returns. */
void proxy_forward(struct proxy_request *r, struct proxy_look *k); /* k: what its body says */
/* Nobody's answer is its own: it gets in line. The request may be gone when it returns. */
void proxy_forward_alone(struct proxy_request *r);
/* It is its turn: ticket.replica is where, or NULL for nowhere. */
void proxy_forward_go(struct proxy_request *r, bool expired);
/* The call has ended badly, or does not answer: another replica, or an error. */
void proxy_forward_failed(struct proxy_request *r, const char *reason, const char *text, bool blame);
/* True when another ready replica has not had it. */
bool proxy_forward_another(const struct proxy_request *r);
/* The client has taken what was queued. */
void proxy_forward_drained(struct proxy_request *r);
/* The replica answers, and will go on doing so for a while. */
void proxy_forward_proved(struct proxy_request *r);
/* Gives the lease, or the place in the queue, back. True: others wait, who may have their turn now. */
bool proxy_forward_leave(struct proxy_request *r, enum sched_result result);
void proxy_forward_send(struct proxy_request *r); /* more of a large body. The request may be gone when it returns */

/* ---- join.c ---------------------------------------------------------------------------------------------------- */

/* What it would have to have in common with another one to join it. */
void proxy_join_identify(struct proxy_request *r, const struct proxy_look *k);
/* True: it gets the answer of one that runs, or proxy_forward_alone is called if that comes to nothing. False: others may join it until proxy_join_close. */
bool proxy_join(struct proxy_request *r);
/* One whose client is another lane's, which has the body. False: there is nothing to join here. */
bool proxy_join_guest(struct proxy_request *r, const struct proxy_body *body);
/* Others may join it until proxy_join_close. */
void proxy_join_open(struct proxy_request *r);
void proxy_join_close(struct proxy_request *r);
/* A follower goes away. Harmless for others. */
void proxy_join_leave(struct proxy_request *r);
/* The next follower, which is none any more; NULL: there is none. */
struct proxy_request *proxy_join_take(struct proxy_request *leader);
/* Whether no client of this answer takes more of it. */
bool proxy_join_full(const struct proxy_request *leader);
/* The next follower's client takes the place of this one's. The follower, which is none any more, has the one that leaves, and is returned. NULL: there is none. */
struct proxy_request *proxy_join_succeed(struct proxy_request *r);

/* ---- link.c ---------------------------------------------------------------------------------------------------- */

/* Whose answer it is, and its head. */
struct proxy_origin {
    const struct http_head *head;
    int64_t length; /* of all of it, or -1 */
    bool events;
    const char *last;
    struct proxy_way *way;
    unsigned attempts;
};

/* Asks a lane for the answer of one that runs there. False without memory. */
bool proxy_link_ask(struct proxy_request *r, struct proxy_lane *answer);
/* Of one that asked: it goes away, which is harmless without a source; its client has taken what was queued. */
void proxy_link_leave(struct proxy_request *r);
void proxy_link_taken(struct proxy_request *r);
/* Of one with a sink: the head of its answer, which is -ENOMEM or 0; bytes of it, between: behind which an event may follow; false: its client has more than it takes. */
int proxy_link_begin(struct proxy_request *r, const struct proxy_origin *o) BASE_MUST_USE;
bool proxy_link_send(struct proxy_request *r, struct str data, bool between);
/* The end, and the request is gone when it returns. Cut: with text as its last event, "": none. Failed: text is a message. */
enum proxy_link_over { PROXY_LINK_OPEN, PROXY_LINK_ENDED, PROXY_LINK_CUT, PROXY_LINK_FAILED };
void proxy_link_end(struct proxy_request *r, enum proxy_link_over how, unsigned status, struct str text);
/* The request has got its sink from another one; it is freed. Harmless without a sink. */
void proxy_link_moved(struct proxy_request *r);
void proxy_link_drop(struct proxy_request *r);
/* The head of its client's request, wherever that is. */
const struct http_head *proxy_link_head(const struct proxy_request *r);
/* Does what other lanes have for this one. Requests may be gone when it returns. */
void proxy_link_deliver(struct proxy_lane *l);

/* ---- answer.c --------------------------------------------------------------------------------------------------- */

extern const struct httpio_call_ops proxy_answer_ops;
/* A client that joined gets the head of the answer. The request may be gone when it returns. */
void proxy_answer_begin(struct proxy_request *f, const struct proxy_origin *o);
/* Ends a client's answer as one that is not whole, with that event when there is one. The request may be gone when it returns. */
void proxy_answer_cut(struct proxy_request *r, struct str event);
/* Forgets what a call that failed has said. */
void proxy_answer_reset(struct proxy_request *r);
void proxy_answer_heartbeat(struct proxy_request *r);
/* The replica has said nothing for too long: another one, or the answer ends here. The request may be gone when it returns. */
void proxy_answer_hang(struct proxy_request *r);
/* Its body cannot be sent on. The request may be gone when it returns. */
void proxy_answer_lost(struct proxy_request *r);
/* Its content has begun and it is to end here. The request may be gone when it returns. */
void proxy_answer_cancel(struct proxy_request *r);
/* Whether an event of ours may follow what its client has. */
bool proxy_answer_between(const struct proxy_request *r);
/* The answer ends here for the client of a request that is part of none any more; an error event may follow when told. The request may be gone when it returns. */
void proxy_answer_part(struct proxy_request *r, bool told, unsigned status, struct str text);

/* ---- numbers.c --------------------------------------------------------------------------------------------------- */

enum proxy_metric {
    PROXY_M_REQUESTS,
    PROXY_M_RETRIES,
    PROXY_M_CUT,
    PROXY_M_CANCELLED,
    PROXY_M_DECISIONS,
    PROXY_M_TOKENS,
    PROXY_M_PREDICTED,
    PROXY_M_REGRET,
    PROXY_M_KEY_REQUESTS,
    PROXY_M_KEY_TOKENS,
    PROXY_M_JOINS,
    PROXY_M_HEARTBEATS,
    PROXY_M_SPILLED,
    PROXY_M_SPILLED_BYTES,
    PROXY_M_BODIES_REFUSED,
    PROXY_M_HANDSHAKES,
    PROXY_M_CONNECTIONS,
    PROXY_M_QUEUE,
    PROXY_M_FIRST_BYTE,
    PROXY_M_INTER_TOKEN,
    PROXY_M_DURATION,
    PROXY_M_ACTIVE,
    PROXY_M_WAITING,
    PROXY_M_BODY_BYTES,
    PROXY_M_INDEX,
    PROXY_M_WORKING_SET,
    PROXY_M_CAPACITY,
    PROXY_M_CONVERSATIONS,
    PROXY_M_SLOTS,
    PROXY_M_CROWDED,
    PROXY_M_READY,
    PROXY_M_SUSPECT,
    PROXY_M_BUSY,
    PROXY_M_SPEED,
    PROXY_M_COUNT,
};
extern const struct metrics_desc proxy_metric_descs[PROXY_M_COUNT];
#define PROXY_M(p, which, ...) metrics_get((p)->metrics, which, (const char *const[]){__VA_ARGS__})
/* The same of a way, whose member `at` remembers it. */
#define PROXY_WAY_M(p, at, which, ...) proxy_way_series(p, at, which, (const char *const[]){__VA_ARGS__})
static inline struct metrics_series *proxy_way_series(struct proxy *p, proxy_series *at, enum proxy_metric which, const char *const *values)
{
    struct metrics_series *s = atomic_load_explicit(at, memory_order_acquire);
    if (!s) {
        s = metrics_get(p->metrics, which, values);
        atomic_store_explicit(at, s, memory_order_release);
    }
    return s;
}

/* Its replica has sent n tokens of an answer. */
void proxy_numbers_tokens(const struct proxy_request *r, uint64_t n);
/* Whether it is in the queue. */
bool proxy_request_waits(const struct proxy_request *r);
/* It is cancelled by who runs the router. */
void proxy_numbers_cancelled(const struct proxy_request *r);
/* At its end. */
void proxy_numbers_done(struct proxy_request *r, bool completed);
void proxy_log_flush(struct proxy_lane *l);
