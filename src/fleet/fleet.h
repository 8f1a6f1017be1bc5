/* SPDX-License-Identifier: MIT
 *
 * fleet: fleet.yaml as plain structs, validated. The schema in fleet_schema.c is the authority for every key. It reads the file, resolves
 * references between the parts and refuses what cannot be meant; whether the fleet *works* (payloads, memory, ports in use) is
 * for other modules. All memory of a fleet belongs to it and dies with fleet_free; pointers between parts stay inside.
 *
 * Every error about the file reads "FILE:LINE:COLUMN: what is wrong; what to do" with code -EINVAL.
 */
#pragma once

#include <base/base.h>

#define FLEET_ROUTER_LOOPS_MAX 64 /* one for each core, and a router that needs more is not on one machine */
#define FLEET_NAME_MAX 63     /* of hosts, services, models, runtimes, endpoints: they become paths, unit names and labels */
#define FLEET_HEADERS_MAX 16 /* conversation headers of the router: each is looked for in each request */
#define FLEET_MODEL_NAME_MAX 255 /* of endpoints and aliases: what clients write in "model" */
#define FLEET_SERVICES_MAX 1024
#define FLEET_DEVICES_MAX 64
#define FLEET_SLOTS_MAX 256   /* sequences that llama.cpp allows */
#define FLEET_ARGS_MAX 256

struct fleet_pos {
    unsigned line, column; /* of the part's key in the file; 1-based */
};

enum fleet_answer { FLEET_NO, FLEET_YES };

struct fleet_device {
    const char *name; /* as the engine calls it: "ROCm0", "CUDA1" */
    uint64_t memory_bytes;
    const char *pci;             /* "0000:03:00.0" or NULL */
    uint64_t bandwidth_bytes_s;  /* 0 unknown */
    uint64_t link_bytes_s;       /* 0 unknown */
    enum fleet_answer shared;    /* its memory is the host's RAM: an integrated GPU */
    struct fleet_pos pos;
};

enum fleet_scope { FLEET_SYSTEM, FLEET_USER };

struct fleet_host {
    const char *name;
    const char *ssh;     /* NULL: this machine */
    const char *address; /* where clients on other machines reach it; NULL */
    enum fleet_scope scope;
    uint64_t memory_bytes; /* 0 not declared */
    uint64_t bandwidth_bytes_s; /* of its memory; 0 unknown */
    uint64_t floor_bytes;  /* free memory that must remain on every device */
    uint64_t slack_bytes;  /* largest gap between what is left of its devices; 0 any */
    const char *firewall;  /* absolute: a recording of its rules, as nft or iptables-save prints them; NULL */
    const struct fleet_device *devices;
    size_t n_devices;
    struct fleet_pos pos;
};

/* Where a runtime comes from. */
enum fleet_source_kind { FLEET_SOURCE_DEBIAN, FLEET_SOURCE_PATH, FLEET_SOURCE_SYSTEM, FLEET_SOURCE_ARCHIVE, FLEET_SOURCE_OCI };

struct fleet_runtime {
    const char *name;
    const char *engine; /* kind: "llama.cpp", "vllm", "generic"; checked against fleet_options.engines */
    enum fleet_source_kind source;
    const char *source_arg;          /* debian: suite; path: absolute folder; system: NULL; archive: http(s) URL or absolute path; oci: "IMAGE@sha256:DIGEST" */
    const char *digest;              /* archive, oci: sha256 that it is pinned by, 64 hex digits; else NULL */
    const char *const *packages;     /* debian: at least one */
    size_t n_packages;
    uint64_t declared_hash;          /* of all that is declared of it */
    struct fleet_pos pos;
};

enum fleet_model_source { FLEET_MODEL_FILE, FLEET_MODEL_HF, FLEET_MODEL_WEB };

/* How hard a model is to think: the word that clients use, and the word that its template knows. */
struct fleet_effort {
    const char *name, *sent;
};

/* Files of a model, each relative to its source. */
struct fleet_model {
    const char *name;
    enum fleet_model_source source;
    const char *source_arg; /* file: absolute folder (a relative one is taken from fleet.yaml's folder); hf: "org/repo"; web: "https://host/folder" */
    const char *revision;   /* hf: "main" when not given; file: NULL */
    const char *commit;     /* hf: what fleet.lock says the revision is, as long as it is of this source and revision; NULL: not locked */
    const char *weights;    /* required; the first part of a split set names the set */
    const char *projector, *drafter; /* NULL */
    const char *template_file;       /* absolute (a relative one is taken from fleet.yaml's folder), or NULL */
    const struct fleet_effort *efforts; /* what clients may ask for; 0: not declared */
    size_t n_efforts;
    struct fleet_pos pos;
};

enum fleet_unit { FLEET_CHILD, FLEET_SYSTEMD, FLEET_QUADLET };
enum fleet_tristate { FLEET_AUTO, FLEET_ON, FLEET_OFF };

/* llama.cpp's words: types of a KV cache, those that are not quantized first, and kinds of speculation. */
#define FLEET_KV_TYPES 9
#define FLEET_KV_PLAIN 3
#define FLEET_SPEC_TYPES 10
extern const char *const fleet_kv_types[FLEET_KV_TYPES], *const fleet_spec_types[FLEET_SPEC_TYPES];

/* The numbers that decide memory. 0 or NULL: not declared. */
struct fleet_shape {
    uint32_t context;       /* tokens, total over all slots */
    uint32_t slots;         /* default 1 */
    bool split_auto;        /* `split: auto` or absent */
    const double *split;    /* shares per device */
    size_t n_split;
    bool gpu_layers_set;
    uint32_t gpu_layers;    /* `gpu-layers: 0` runs on the CPU; absent: all when the host has devices, else 0 */
    uint32_t batch, ubatch;
    const char *kv_k, *kv_v;    /* type names: "f16", "q8_0" */
    enum fleet_tristate flash_attention;
    enum fleet_tristate unified_kv;
    bool prompt_cache_set;
    uint64_t prompt_cache_bytes; /* 0 with prompt_cache_set: off */
    const char *const *speculative; /* "draft-dflash", "ngram-mod", ... */
    size_t n_speculative;
    uint32_t draft_max;
    uint32_t threads;
};

/* What vLLM takes beside its pool: nobody but the running engine can tell, so it is measured once and declared, for one rank. 0: not declared. */
struct fleet_vllm {
    bool declared;
    uint64_t free_at_init_bytes; /* of a card, as the engine reports it at start */
    uint64_t weight_bytes, overhead_bytes, graph_bytes, kv_reserve_bytes, expert_slot_bytes;
    uint64_t token_bytes;        /* of the pool, for one token at exactly this context and KV type */
    uint32_t graphs, block_tokens;
};

/* A secret that the engine reads from a file: the service manager shows it to the service alone. */
struct fleet_credential {
    const char *name; /* lower-case letters, digits, '-' */
    const char *path; /* absolute, on the service's host; it is never copied there */
};
#define FLEET_CREDENTIALS_MAX 16
#define FLEET_CREDENTIAL_MARK "{credential:" /* NAME}: where the file is, in words of command and args and values of env */

enum fleet_start { FLEET_ALWAYS, FLEET_ON_DEMAND };
#define FLEET_PROMPT_FILES (UINT64_C(4) << 30) /* bytes, when not declared */

/* What clients may count on beside plain chat: declared, and proven by a deploy. */
#define FLEET_EFFORTS_MAX 8 /* words that clients send as reasoning_effort */
struct fleet_serves {
    enum fleet_answer tools, reasoning, images, sound;
    const char *const *efforts;
    size_t n_efforts;
};

struct fleet_service {
    const char *name;
    const struct fleet_host *host;
    const struct fleet_runtime *runtime;
    const struct fleet_model *model; /* NULL only for engine "generic" */
    uint16_t port;    /* 0 with a socket */
    const char *bind; /* "127.0.0.1", or "unix:" and the absolute path of a socket; not loopback only with a key */
    const char *key;  /* absolute path of the file with the key that its engine asks for, on its host and on the router's; NULL: it asks for none */
    struct fleet_shape shape;
    enum fleet_unit unit;
    const char *const *args; /* engine flags that berth does not model */
    size_t n_args;
    const char *const *env;  /* "NAME=value", beside the clean environment */
    size_t n_env;
    const struct fleet_credential *credentials; /* units only */
    size_t n_credentials;
    bool floor_set;          /* instead of the host's */
    uint64_t floor_bytes, slack_bytes; /* slack 0: the host's */
    const char *reason;      /* of both; never NULL with either */
    enum fleet_start start;
    uint64_t idle_stop_ms;   /* on demand: stopped after so long without a request; 0 never */
    enum fleet_answer pin;   /* on demand: once started it is not stopped for another */
    enum fleet_answer preload; /* on demand: started with the fleet */
    uint64_t prompt_files_bytes; /* on demand: of files that keep its slots' prompts while it is stopped; 0 none */
    struct fleet_serves serves;
    struct fleet_vllm vllm;  /* engine "vllm" only */
    /* engine "generic" only */
    const char *const *command; /* argv; "{port}", "{bind}", "{model}" are replaced as whole words or inside a word */
    size_t n_command;
    const char *health;         /* path that answers 200 when ready; "/health" */
    const char *identity;       /* path of an OpenAI-like model list, or NULL: the served model cannot be learnt */
    uint64_t declared_hash;     /* of all that its process is started from, host, runtime, model and its commit with it: another one means that it must be started again */
    struct fleet_pos pos;
};

enum fleet_policy { FLEET_ADAPTIVE, FLEET_COUNTER, FLEET_ROUNDROBIN, FLEET_LEAST, FLEET_HASH, FLEET_STICKY };
/* As written: "adaptive", ... */
const char *fleet_policy_name(enum fleet_policy p);

struct fleet_endpoint {
    const char *name;
    const struct fleet_service *const *services;
    size_t n_services;
    enum fleet_policy policy;
    const char *const *aliases;
    size_t n_aliases;
    struct fleet_pos pos;
};

/* What services of a machine may run at the same time, beside what fits. */
enum fleet_group_rule { FLEET_EXCLUSIVE /* one of them */, FLEET_TOGETHER /* they, and no other on demand */ };

struct fleet_group {
    const char *name;
    const struct fleet_service *const *services; /* all on demand */
    size_t n_services;
    enum fleet_group_rule rule;
    struct fleet_pos pos;
};

/* What bodies of requests may take. A router keeps each until it is sure that no other replica must have it. */
struct fleet_bodies {
    uint64_t max_bytes;    /* of one */
    uint64_t spill_bytes;  /* a larger one goes to a file */
    uint64_t memory_bytes; /* of all that are in memory at once */
    uint64_t disk_bytes;   /* of all that are in files at once */
};
#define FLEET_BODIES_DEFAULT ((struct fleet_bodies){.max_bytes = UINT64_C(64) << 20, .spill_bytes = UINT64_C(1) << 20, .memory_bytes = UINT64_C(256) << 20, .disk_bytes = UINT64_C(8) << 30})
#define FLEET_BODY_MAX (UINT64_C(16) << 30) /* nobody sends an engine more in one request */

enum fleet_format { FLEET_OPENCODE, FLEET_CONTINUE, FLEET_AIDER, FLEET_LITELLM, FLEET_JSON };
#define FLEET_FORMATS 5
/* As written: "opencode", ... */
const char *fleet_format_name(enum fleet_format f);
enum fleet_network { FLEET_NETWORK_HOST, FLEET_NETWORK_BRIDGE /* in a container with a network of its own */ };
#define FLEET_COMPACT 70 /* percent of its window at which a client shortens a conversation, when not declared */

/* A program that asks this fleet, and the file that tells it what it may ask for. */
struct fleet_client {
    const char *name;
    enum fleet_format format;
    const char *file;              /* absolute: what `berth render clients` writes and `berth check` reads */
    bool elsewhere;                /* on a machine that is no host of the fleet */
    const struct fleet_host *host; /* NULL: beside the router, or elsewhere */
    enum fleet_network network;
    const char *url;               /* "http://big.example:8080/v1"; NULL: the router's, as it is reached from there */
    const char *key_env;           /* name of the variable that holds its key; NULL: none is sent */
    const struct fleet_endpoint *const *endpoints; /* that it uses; 0: all */
    size_t n_endpoints;
    uint32_t output;               /* most tokens of an answer; 0: what the window leaves */
    uint32_t compact;              /* percent */
    struct fleet_pos pos;
};

/* A page that quotes command lines of the fleet. */
struct fleet_document {
    const char *path; /* absolute */
    struct fleet_pos pos;
};

struct fleet_router {
    bool declared;
    const struct fleet_host *host; /* NULL: this machine; never with a unit of its own */
    enum fleet_unit unit;          /* FLEET_CHILD or FLEET_SYSTEMD */
    const char *address;           /* "127.0.0.1" */
    uint16_t port;                 /* 8080; 0 lets the system choose (tests) */
    const char *socket;            /* absolute path of a unix socket instead of address and port; NULL */
    const char *group;             /* whose members may use the socket beside its owner; NULL */
    const char *certificate, *key; /* absolute; both NULL: plain HTTP */
    const char *const *conversation_headers; /* fields of requests that name a conversation, first to last; 0 of them: the router's own list */
    size_t n_conversation_headers;
    const char *admin;             /* loopback address of the listener for metrics and status; NULL: there is none */
    uint16_t admin_port;           /* 0 lets the system choose */
    const char *keys_file;         /* absolute; NULL: clients need no key */
    const char *const *cors;       /* origins whose pages may ask: "https://chat.example" */
    size_t n_cors;
    uint32_t loops;                /* threads that serve clients: 1 */
    struct fleet_bodies bodies;
    struct fleet_pos pos;
};

struct fleet {
    const char *name; /* names the fleet's state: required */
    const char *file; /* as given */
    const char *dir;  /* absolute folder of the file */
    const struct fleet_host *hosts;
    size_t n_hosts; /* at least one: without `hosts:` a host "here" is this machine */
    const struct fleet_runtime *runtimes;
    size_t n_runtimes;
    const struct fleet_model *models;
    size_t n_models;
    const struct fleet_service *services;
    size_t n_services;
    const struct fleet_endpoint *endpoints; /* without `endpoints:` each service is one, by its own name */
    size_t n_endpoints;
    const struct fleet_group *groups;
    size_t n_groups;
    const struct fleet_client *clients;
    size_t n_clients;
    const struct fleet_document *documents;
    size_t n_documents;
    struct fleet_router router;
    struct fleet_lock *lock; /* of fleet.lock beside the file; NULL when there is none */
};

/* What the caller knows and fleet may not: the engine kinds that exist, and their flags. */
struct fleet_options {
    const char *const *engines; /* n names */
    size_t n_engines;
    /* Why a word must not stand in `args` ("use 'context'") and which flag it is; NULL when it may. The function may be NULL: all may. */
    const char *(*flag_taken)(const char *engine, struct str word, const char **ret_flag);
    /* The host that this machine is, for a fleet file that came from another one: it loses its `ssh`, and the host without one gets "elsewhere". -EINVAL when there is no such host. NULL: as written. */
    const char *here;
    /* Absolute folder that relative paths are taken from, but templates', for a file that was moved away from it. NULL: the file's own. */
    const char *dir;
};

/* Reads and validates a file, and the lock beside it when there is one. -EINVAL: one of them is unusable, err has the place; -ENOENT, -EACCES, ...: not readable, err has the path. */
int fleet_load(const char *path, const struct fleet_options *opt, struct fleet **ret, struct err *err) BASE_MUST_USE;
/* As fleet_load, of a text that was read from that path before. */
int fleet_load_text(struct str text, const char *path, const struct fleet_options *opt, struct fleet **ret, struct err *err) BASE_MUST_USE;
/* As fleet_load from text, without the lock; `path` names it in errors and gives its folder. */
int fleet_parse(struct str text, const char *path, const struct fleet_options *opt, struct fleet **ret, struct err *err) BASE_MUST_USE;
struct fleet *fleet_free(struct fleet *f);
/* Only the name, of a file that may be unusable otherwise, even no YAML. -EINVAL: it has none. */
int fleet_name_of(const char *path, char ret[FLEET_NAME_MAX + 1]) BASE_MUST_USE;
/* NULL when there is none of that name. */
const struct fleet_service *fleet_service_find(const struct fleet *f, const char *name);
const struct fleet_host *fleet_host_find(const struct fleet *f, const char *name);
/* The host that this machine is, the only one without `ssh`; NULL when the file declares none. */
const struct fleet_host *fleet_host_here(const struct fleet *f);
/* A port as a person writes it, 1 to 65535. */
bool fleet_is_port(struct str text, uint16_t *ret);
/* Whether the host of an address "[SCHEME://][NAME@]HOST[:PORT][/...]" has a port behind it that is none, which is then *ret. */
bool fleet_has_bad_port(struct str url, struct str *ret);
#define FLEET_PORTS "ports are 1 to 65535"
/* What is wrong with the text of a runtime's source "archive:..." without that word as a phrase; NULL and the parts filled in when nothing is. *ret_place is the archive without its digest. */
const char *fleet_archive_wrong(struct str text, struct str *ret_place, struct str *ret_digest);
/* Path of the socket that a service listens at; NULL: it has an address and a port. */
const char *fleet_service_socket(const struct fleet_service *s);
/* True when other machines may reach it: its address is not loopback. */
bool fleet_service_wide(const struct fleet_service *s);

#define FLEET_KEY_MIN 16  /* characters of an engine's key: fewer are soon guessed */
#define FLEET_KEY_MAX 256
#define FLEET_KEY_CREDENTIAL "engine-key" /* name of a unit's credential that is its service's key */
#define FLEET_KEY_MARK FLEET_CREDENTIAL_MARK FLEET_KEY_CREDENTIAL "}"
/* The key in a file of one line. -EACCES when anybody but its owner, who is we or root, may use it; -EINVAL when it is no key; -ENOENT, ... The text in ret is the caller's to wipe. */
int fleet_key_read(const char *path, char ret[FLEET_KEY_MAX + 1], struct err *err) BASE_MUST_USE;
/* True for a service that `up` starts here: host is this machine and unit is child. */
bool fleet_service_local(const struct fleet_service *s);
/* A name of a host, service, model, runtime: lower-case letters, digits, '-', '_', '.', beginning with a letter or digit; 1..FLEET_NAME_MAX. */
bool fleet_name_valid(struct str name);

/* ---- fleet.lock ---------------------------------------------------------------------------------------------------
 *
 * What the fleet's models and runtimes were when they were last pinned: JSON with "version": 1, sorted by name, so that a change shows as the lines that changed. */

#define FLEET_LOCK_BYTES_MAX ((size_t)16 << 20) /* of the file: a line of some 150 bytes for each payload */
#define FLEET_LOCK_FILES_MAX 16384              /* of one model; the largest split sets have some hundred parts */

/* One file of a model. Exactly one of the digests is set, in lower-case hex: hubs know large files by sha256 and small ones by git's sha1 of a blob. */
struct fleet_lock_file {
    const char *path; /* below the source */
    uint64_t bytes;
    const char *sha256, *git_sha1;
};
struct fleet_lock_model {
    const char *name;
    const char *source;   /* as fleet_source_text has it */
    const char *revision; /* hf: as declared; file: NULL */
    const char *commit;   /* hf: 40 hex digits; file: NULL */
    const struct fleet_lock_file *files;
    size_t n_files;
};
struct fleet_lock_runtime {
    const char *name, *source; /* "debian:forky" */
    const char *digest;        /* sha256 in hex: of an archive or an image what it is pinned by, else that of its manifest */
};
struct fleet_lock {
    const struct fleet_lock_model *models;
    size_t n_models;
    const struct fleet_lock_runtime *runtimes;
    size_t n_runtimes;
};
/* The lock of a fleet file: its path with ".lock" for ".yaml" or ".yml", appended to out. */
void fleet_lock_path(const char *fleet_file, struct buf *out);
/* -ENOENT: there is none; -EINVAL: unusable, or written by a newer berth. All of it belongs to *ret. */
int fleet_lock_load(const char *path, struct fleet_lock **ret, struct err *err) BASE_MUST_USE;
/* As fleet_lock_load from text; path names it in errors. */
int fleet_lock_parse(struct str text, const char *path, struct fleet_lock **ret, struct err *err) BASE_MUST_USE;
/* Replaces the file at once. The lists of l may be in any order; it is the caller's and stays as it is. -EINVAL for what fleet_lock_load would refuse. */
int fleet_lock_write(const struct fleet_lock *l, const char *path, struct err *err) BASE_MUST_USE;
struct fleet_lock *fleet_lock_free(struct fleet_lock *l);
/* NULL when there is none, or l or m is NULL. */
const struct fleet_lock_model *fleet_lock_find_model(const struct fleet_lock *l, const char *name);
const struct fleet_lock_file *fleet_lock_find_file(const struct fleet_lock_model *m, const char *path);
/* What the lock says of a model as the fleet declares it: NULL too when it was locked from another source or revision. */
const struct fleet_lock_model *fleet_lock_of(const struct fleet *f, const struct fleet_model *m);
/* The same of a runtime. */
const struct fleet_lock_runtime *fleet_lock_of_runtime(const struct fleet *f, const struct fleet_runtime *rt);
/* A runtime's source as it is declared, with absolute paths: "debian:forky". Appended to out. */
void fleet_runtime_text(const struct fleet_runtime *rt, struct buf *out);
/* "hf:ORG/REPO"; "file:FOLDER", relative when it is in the fleet's folder, so that a lock may move with it. Appended to out. */
void fleet_source_text(const struct fleet *f, const struct fleet_model *m, struct buf *out);
