/* SPDX-License-Identifier: MIT
 *
 * proxy: the router's data plane. Takes a client's request, finds the endpoint by the model it names, sends it to a replica and passes the answer through as it
 * comes. It starts and stops nothing: what exists and what is ready it is told through an immutable configuration that its owner swaps. Runs as a worker process of its own
 * (proxy_worker), so that its crash costs no engine.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <net/net.h>

/* ---- configuration ------------------------------------------------------------------------------------------ */

/* Immutable, reference-counted: requests under way keep the one that they began with. */
struct proxy_config;
struct proxy_config *proxy_config_ref(struct proxy_config *c);
struct proxy_config *proxy_config_unref(struct proxy_config *c); /* takes NULL; returns NULL */

/* What is known of one service. */
struct proxy_state {
    const struct fleet_service *service;
    const struct fleet_service *as; /* what its process runs as, when that is not what is declared; NULL: as declared */
    bool ready;
    uint64_t generation; /* changes with every start of its process */
    bool startable;      /* not ready, but worth waiting for: its owner starts it when a request waits for it */
    const char *why;     /* not ready and not startable: what clients are told; NULL */
    const char *key;     /* that its engine asks for; NULL or "" none */
    const char *address; /* IP address of a host that is declared by name; NULL: as declared */
};
/* The configuration of a fleet as one line of JSON, as the worker reads it. A service that is not in states is taken for ready. */
int proxy_config_text(const struct fleet *f, const struct proxy_state *states, size_t n, struct buf *out) BASE_MUST_USE;
/* -EBADMSG for anything that proxy_config_text does not write. */
int proxy_config_parse(struct str text, struct proxy_config **ret, struct err *err) BASE_MUST_USE;

/* IP address, host name or "unix:PATH" at which the router's machine reaches a service. */
const char *proxy_service_host(const struct fleet_service *s);

/* ---- keys of clients ------------------------------------------------------------------------------------------ */

#define PROXY_KEYS_MAX 4096 /* of a file: what a client shows is compared with each */
#define PROXY_KEYS_FILE_MAX ((size_t)1 << 20) /* bytes */
#define PROXY_KEY_MODELS_MAX 256 /* that one key may name */
#define PROXY_KEY_LIMIT_MAX 1000000 /* requests, at once or a minute */
#define PROXY_KEY_HASH 32 /* bytes */
#define PROXY_KEY_TEXT 64 /* "berth_" and 43 characters, with room */

struct proxy_key {
    const char *name;
    unsigned char hash[PROXY_KEY_HASH]; /* SHA-256 of the key's text */
    const char *const *models;          /* endpoints by their names; n_models 0: all */
    size_t n_models;
    uint32_t concurrency, rate;         /* requests at once, and a minute; 0: any */
};
struct proxy_keys;
/* The text of a keys file (keys.c describes it); path names it in errors "PATH:LINE: ...". -EINVAL. */
int proxy_keys_parse(struct str text, const char *path, struct proxy_keys **ret, struct err *err) BASE_MUST_USE;
struct proxy_keys *proxy_keys_ref(struct proxy_keys *k);
struct proxy_keys *proxy_keys_unref(struct proxy_keys *k); /* takes NULL; returns NULL */
size_t proxy_keys_count(const struct proxy_keys *k);
const struct proxy_key *proxy_keys_at(const struct proxy_keys *k, size_t i); /* NULL beyond the last */
/* The file's text into out, when nobody but its owner, who is we or root, can read it. -ENOENT, -EACCES, ... */
int proxy_keys_read(const char *path, struct buf *out, struct err *err) BASE_MUST_USE;
/* A new random key; and what is kept of one. */
int proxy_key_new(char ret[PROXY_KEY_TEXT], struct err *err) BASE_MUST_USE;
int proxy_key_hash(struct str secret, unsigned char ret[PROXY_KEY_HASH]) BASE_MUST_USE;
/* Whether the key may use an endpoint. */
bool proxy_key_allows(const struct proxy_key *k, const char *model);

/* ---- the router --------------------------------------------------------------------------------------------- */

/* Behaviour, first to last:
 *   GET /health           200 {"status":"ok"} while any replica is ready, else 503
 *   GET /v1/models        the fleet's endpoint names and aliases, OpenAI's list shape; also /models
 *   GET /v1/models/NAME   one of them; 404
 *   GET /, GET /api/tags, /api/ps, /api/version, POST /api/show   what clients of Ollama ask first
 *   a WebSocket           426: clients that may use one go on over HTTP at once
 *   other calls of /api/  404, without their body, as are 401, 413, 429, and 503 of a full queue
 *   anything else         the endpoint is the field "model" of a multipart/form-data body, or the string member "model" at the top level of a JSON body; without a body the query's model=; when neither names one and the fleet has exactly one endpoint, that one.
 *                         A name that is not there: 404 in OpenAI's error shape listing the known ones. No model named: 400.
 * The body's model value is replaced by the replica's served name; everything else goes through byte for byte: path, query, percent-encoding, fields but hop-by-hop ones, status, response body.
 * The endpoint's policy chooses the replica (place_int.h); a replica gets at most as many generations as it has slots, the others wait here, in order, fair between conversations, at most SCHED_QUEUE_MAX of
 * them for SCHED_QUEUE_MS. llama.cpp's slots are named in the body ("id_slot") unless the client does.
 * Of a generation's answer nothing reaches the client before it is sure: of an event stream the first event with content, of another up to PROXY_HOLD_MAX all of it. Until then a replica that refuses, breaks off,
 * answers 5xx or 429, or hangs, is left for another, each tried once; when none is left: its answer, else 502 (503 with Retry-After when none was ready or the queue is full). Afterwards an answer that breaks off
 * ends with an error in the client's dialect and without its proper end. A client that asked for a stream gets signs of life in its dialect from the start; the first one begins the response. Other calls pass at once and are sent again only when refused or reset.
 * A client that leaves cancels its call. Response fields added: X-Berth-Request-Id, -Replica, -Decision, -Attempts, -Queue-Ms; X-Accel-Buffering: no on event streams. Errors made here: {"error":{"message":...,"type":...,"code":N}}, as the messages API has it there. */
struct proxy;
/* Serves with `loops` event loops: the one given, and one more on a thread of its own for each other. All functions here are for the thread of the first. */
int proxy_new(struct net_loop *l, unsigned loops, struct proxy **ret, struct err *err) BASE_MUST_USE;
/* Takes over one reference. */
void proxy_set_config(struct proxy *p, struct proxy_config *c);
/* Replaces the keys; takes over one reference. Requests under way go on. */
void proxy_set_keys(struct proxy *p, struct proxy_keys *k);
/* Serves a listening descriptor, which it owns from now on, also on failure. The loops take turns: an address that all are to serve needs a socket with SO_REUSEPORT for each. */
int proxy_listen(struct proxy *p, int fd, struct err *err) BASE_MUST_USE;
/* A folder for large bodies, which is ours from now on: they are in files without names there. Before the first proxy_listen, or never: then all are in memory. One that is removed is looked for, and made where that may be done, beside where it was, by its name. */
#define PROXY_BODIES "bodies"
void proxy_spill_to(struct proxy *p, int dir_fd);
/* Takes no new connections and ends once what runs has ended, at the latest after deadline_ms. */
void proxy_drain(struct proxy *p, uint64_t deadline_ms, void (*cb)(void *ctx), void *ctx);
struct proxy *proxy_free(struct proxy *p);
struct proxy_stats {
    uint64_t requests, retries, errors; /* since the start: taken, sent again, answered by us with 5xx or cut */
    uint64_t active;                    /* under way */
    /* the endpoint with the least room: tokens of the conversations in use against what its replicas' slots hold (0: unknown), those conversations against slots */
    uint64_t working_set, capacity, conversations, slots;
    bool crowded; /* more than fits: prompts are read again, whatever the policy */
};
void proxy_stats(struct proxy *p, struct proxy_stats *ret);
/* A question of the owner: GET /requests (those under way, those that ended last, the replicas), GET /requests/ID (one with what it was chosen from), POST /requests/ID/cancel. Appends JSON to
 * out; *ret_status is as HTTP's. -ENOMEM, -E2BIG. */
int proxy_ask(struct proxy *p, struct str method, struct str target, unsigned *ret_status, struct buf *out) BASE_MUST_USE;
/* Prometheus text. */
int proxy_metrics(struct proxy *p, struct buf *out) BASE_MUST_USE;
/* What is known of conversations, as bytes for the next router. */
#define PROXY_INDEX_MAX 524288 /* bytes */
int proxy_index_save(struct proxy *p, struct buf *out) BASE_MUST_USE; /* fails as buf does */
uint64_t proxy_index_changes(struct proxy *p); /* another number: it would write something else */
/* Takes it over, as far as its replicas are the same processes: after the first configuration and before the first proxy_listen. -EBADMSG, -ENOTSUP: nothing is changed. */
int proxy_index_load(struct proxy *p, struct str index, struct err *err) BASE_MUST_USE;

/* Connections that are accepted from here on at addresses speak TLS with this certificate and key (PEM); called again it replaces them, and on failure the old ones stay. Sockets of this
 * machine stay plain. Before the first proxy_listen, or never. */
int proxy_set_tls(struct proxy *p, struct str certificate, struct str key, struct err *err) BASE_MUST_USE;

/* ---- what its owner opens ---------------------------------------------------------------------------------------- */

int proxy_address(const struct fleet *f, struct net_addr *ret, struct err *err) BASE_MUST_USE;
/* The router's listening sockets as the fleet declares them, and where they are bound: one for each of its loops, but a unix socket is one. Returns how many; the caller owns the descriptors. A unix socket is for its owner, and its group when one is
 * declared. Errors as net_listen_socket. */
int proxy_bind(const struct fleet *f, int fds[FLEET_ROUTER_LOOPS_MAX], struct net_addr *ret, struct err *err) BASE_MUST_USE;
#define PROXY_URL_TEXT (NET_ADDR_TEXT + 16)
/* "http://127.0.0.1:8080", "https://...", "unix:/run/x.sock". Returns out. */
const char *proxy_url(const struct fleet *f, const struct net_addr *a, char out[PROXY_URL_TEXT]);

/* What is in the files of `router: tls:`; both empty without. A zeroed one is fine everywhere. */
struct proxy_pair {
    struct buf certificate, key;
};
/* Reads and tries them. *ret keeps what it held on failure, and is replaced on success. -EPERM: everybody may read the key. */
int proxy_tls_read(const struct fleet *f, struct proxy_pair *ret, struct err *err) BASE_MUST_USE;
void proxy_pair_release(struct proxy_pair *p);
/* The pair as a line for the worker's channel. */
int proxy_pair_text(const struct proxy_pair *p, struct buf *out) BASE_MUST_USE;

/* ---- the worker process ---------------------------------------------------------------------------------------- */

/* Lines of JSON over a socketpair. Owner to worker: {"config":{...}} replaces the configuration, {"index":HEX} before the first one is what an earlier worker knew of conversations, {"index":true} asks for it, {"drain":MS} ends it
 * gracefully, {"stats":true} asks for numbers, {"ask":{"serial":N,"method":"GET","target":"/requests"}} asks as proxy_ask does,
 * {"tls":{"certificate":PEM,"key":PEM}} comes before the first configuration, or replaces the pair, {"keys":TEXT} is the
 * keys file: before the first configuration of a router that asks for keys, and whenever it changed, {"mark":N} after a configuration numbers it: whoever sends it has services on demand and is told what they are asked for. Worker to owner: {"up":true} once the first configuration is in force and it
 * accepts, {"stats":{"requests":N,"retries":N,"errors":N,"active":N,"working_set":N,"capacity":N,"conversations":N,"slots":N,"crowded":B,"metrics":"..."}}, {"answer":{"serial":N,"status":N,"body":{...}}},
 * {"failed":{"service":NAME,"generation":N,"text":"..."}} when a replica could not be reached, {"index":HEX} now and then, when it is asked for and before it ends, unless nothing has changed since,
 * {"demand":{"mark":N,"active":[{"service":NAME,"n":N},...],"waiting":[{"endpoint":NAME,"n":N,"ms":LONGEST},...]}} whenever it differs: after the configuration of that number what each replica works on, and for which
 * endpoints requests wait of which no replica is ready. The end of the channel ends the worker at once. */
#define PROXY_CHANNEL_LINE_MAX 4194304 /* bytes: the configuration of a large fleet, or its metrics; a longer line ends the worker */
/* Runs until drained or the channel ends. spill_dir: as proxy_spill_to; -1: there is none. Owns the descriptors. 0, or a negative errno. */
int proxy_worker(int channel_fd, const int *listen_fds, size_t n, int spill_dir, unsigned loops, struct err *err) BASE_MUST_USE;

/* ---- the drill ------------------------------------------------------------------------------------------------- */

/* One case at one endpoint, after all its repeats. */
struct proxy_drill_case {
    const char *endpoint, *name, *expects;
    unsigned runs, failed; /* runs 0: it does not apply, and why says so */
    uint64_t mean_us, max_us;
    char why[256];         /* of the first one that failed; "" */
};
/* Runs every case of failure against the fleet's endpoints, policies and slots, in a router of its own whose replicas are mocks on loopback; nothing that runs is touched. tell is called after each case.
 * A case that fails is no error. */
int proxy_drill(const struct fleet *f, unsigned repeat, void (*tell)(void *ctx, const struct proxy_drill_case *c), void *ctx, struct err *err) BASE_MUST_USE;
