/* SPDX-License-Identifier: MIT
 *
 * engine: everything that differs between engine kinds, as tables and pure functions: shape -> flags, readiness and identity, log lines, last words. No I/O, no
 * processes. Facts are those of llama.cpp 0.7.0 (llama-server) and vLLM's OpenAI server; kind "generic" is whatever its declaration says.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>

/* ---- what a shape that leaves a number out gets -------------------------------------------------------------- */

/* An engine's own default may change between two builds, depend on what is free at that moment, or be far too large; these do not. */
#define ENGINE_SLOTS 1                     /* one conversation at a time has the whole context; more slots are a decision */
#define ENGINE_CONTEXT_PER_SLOT 4096       /* tokens; small enough for any card, large enough for a first chat */
#define ENGINE_BATCH 2048                  /* tokens taken from the queue at once: llama.cpp's own figure, costs no memory by itself */
#define ENGINE_UBATCH 512                  /* tokens computed at once: compute buffers grow with it */
#define ENGINE_KV "f16"                    /* exact; quantized KV is a decision */
#define ENGINE_PROMPT_CACHE (512ULL << 20) /* bytes of host RAM; llama.cpp's own 8 GiB surprises a small machine */
#define ENGINE_DRAFT_MAX 3                 /* tokens drafted at once: llama.cpp's own figure */
#define ENGINE_CHECKPOINTS 8               /* saved states per slot (SWA, recurrent), up to 75 MiB each; llama.cpp's own 32 is 9.6 GiB for four slots */
#define ENGINE_GPU_SHARE_PERCENT 90        /* vLLM's share of a card when the fleet does not declare the card's memory */
#define ENGINE_GPU_SHARE_MAX_PERCENT 95    /* and at most: CUDA graphs and libraries live outside that share */

/* The service's shape with every absent number filled in as above, as engine_argv says it. gpu_layers is UINT32_MAX for "all". */
void engine_shape(const struct fleet_service *s, struct fleet_shape *ret);
/* Tokens that one slot can hold by this shape, as llama.cpp rounds it: up to a multiple of 256; unified KV gives each slot all. */
uint64_t engine_slot_context(const struct fleet_shape *resolved);

struct engine_kind;
/* NULL when there is no such kind. */
const struct engine_kind *engine_find(const char *name);
/* Their names, and which flags `args` may not hold, for fleet_load. */
struct fleet_options engine_fleet_options(void);

/* Where things are for one service, as the engine will see them. Paths are absolute. */
struct engine_paths {
    const char *weights, *projector, *drafter, *template_file; /* NULL: none */
    const char *key;      /* file with the key that it shall ask for, as it sees it; needed by a service with one */
    const char *slot_dir; /* where it may keep what its slots hold; NULL: nowhere */
};
/* The argument list after the program's name (for "generic": the whole command), NULL-terminated, in arena a. Nothing that decides memory is left to a default: context, slots, layers, split, batch,
 * ubatch, KV types, unified KV, flash attention and prompt cache are always spelled out. -EINVAL when a shape cannot be expressed (err says which key). */
int engine_argv(const struct fleet_service *s, const struct engine_paths *p, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
/* The name by which a flag of that kind goes first: "-c" of "--ctx-size"; a flag with one name, or of a kind whose names are not known, is its own. */
struct str engine_flag_name(const struct engine_kind *k, struct str flag);
/* Whether it listens with SO_REUSEADDR, so that connections of the process before, which only wait for late packets, are not in its way. */
bool engine_reuses_port(const struct engine_kind *k);
/* The program's usual name: "llama-server", "vllm". NULL for generic and for no kind. */
const char *engine_program(const struct engine_kind *k);
/* What the service's environment gets beside the clean one, NULL-terminated (may be empty). */
const char *const *engine_env(const struct engine_kind *k);
/* How many cards its engine binds together through a library of collectives (tensor or pipeline parallelism); 1: none. */
unsigned engine_ranks(const struct fleet_service *s);
/* The name under which the engine must serve: the service's name. */
const char *engine_served_name(const struct fleet_service *s);

/* ---- readiness and identity -------------------------------------------------------------------------------- */

/* Paths to ask; NULL: this kind cannot be asked. */
const char *engine_health_path(const struct fleet_service *s);
const char *engine_identity_path(const struct fleet_service *s); /* an OpenAI-like model list */
const char *engine_props_path(const struct fleet_service *s);    /* what the engine took */
const char *engine_idle_path(const struct fleet_service *s);     /* tells whether it works: llama.cpp /slots, vllm /metrics */
/* 0 when the model list names `want`; -ENOENT with what it names instead; -EBADMSG when it is no model list. */
int engine_identity_check(struct str body, const char *want, struct err *err) BASE_MUST_USE;
/* Compares what the engine says it took with what was asked: per-slot context, slots, model path, speculation. -EBADMSG with every difference ("context per slot: asked 4096, got 2048; ..."). A value that the engine
 * rounds up itself (context to a multiple of 256 per slot) is no difference. */
int engine_props_check(const struct fleet_service *s, const struct engine_paths *p, struct str body, struct err *err) BASE_MUST_USE;
/* What tells whether speculation is on: NULL when none was asked for or this kind cannot tell. /props of llama.cpp says "none" whatever runs, its /slots tells the truth. */
const char *engine_speculation_path(const struct fleet_service *s);
/* -EBADMSG when speculation was asked for and any slot goes without. */
int engine_speculation_check(const struct fleet_service *s, struct str body, struct err *err) BASE_MUST_USE;
/* What tells how many tokens of prompts it keeps, where that is not declared: vllm /metrics; NULL. */
const char *engine_capacity_path(const struct fleet_service *s);
/* That number, of all its caches together, from such an answer. -EBADMSG. */
int engine_capacity_parse(struct str body, uint64_t *ret_tokens, struct err *err) BASE_MUST_USE;
/* How many requests it is working on. -EBADMSG. */
int engine_idle_parse(const struct fleet_service *s, struct str body, unsigned *ret_busy, struct err *err) BASE_MUST_USE;
/* A request that makes one token: POST path and body, in arena a; the answer is judged by engine_token_check. -ENOTSUP when this kind has none. */
int engine_token_request(const struct fleet_service *s, struct arena *a, const char **ret_path, const char **ret_body) BASE_MUST_USE;
/* 0 when the answer holds at least one generated token. */
int engine_token_check(struct str body, struct err *err) BASE_MUST_USE;

/* ---- logs ------------------------------------------------------------------------------------------------------ */

/* What one log line tells about a start that goes on. */
enum engine_line { ENGINE_LINE_OTHER, ENGINE_LINE_LOADING, ENGINE_LINE_BUFFER, ENGINE_LINE_WARMUP, ENGINE_LINE_READY, ENGINE_LINE_DROPPED /* an asked-for thing was silently not done */ };
/* ret_text (a view into line): what to show, without time stamp and level. */
enum engine_line engine_line_parse(const struct engine_kind *k, struct str line, struct str *ret_text);
/* Whether what a line of ENGINE_LINE_DROPPED denies is something that this service asked for: some are said of every start on a machine without a card. text: from engine_line_parse. */
bool engine_line_denies(const struct fleet_service *s, struct str text);

/* Compares what a finished start's log says with what was asked, for what no path tells: devices, KV types, ubatch, unified KV, each kind of speculation, and any ENGINE_LINE_DROPPED. -EBADMSG with every
 * difference. A line that is not there (another build, a cut log) is no difference. */
int engine_log_check(const struct fleet_service *s, struct str log, struct err *err) BASE_MUST_USE;

/* What a start's log tells of memory (llama.cpp from -lv 4 on). A walk takes the lines of one process in order and keeps what they mean together: the engine measures before it loads, and what it says while measuring is
 * of buffers that are not there; after the target comes the drafter; the indexer's cache calls itself KV. */
enum engine_buffer_kind { ENGINE_BUFFER_WEIGHTS, ENGINE_BUFFER_KV, ENGINE_BUFFER_INDEXER, ENGINE_BUFFER_STATE, ENGINE_BUFFER_COMPUTE, ENGINE_BUFFER_OUTPUT, ENGINE_BUFFER_MOE_CACHE, ENGINE_BUFFER_PROJECTOR_COMPUTE };
struct engine_buffer {
    struct str name;      /* of the buffer type, a view into the line: "CUDA0", "RPC0[127.0.0.1:50052]", "CPU_Mapped" */
    enum engine_buffer_kind kind;
    uint64_t bytes, tolerance_bytes; /* the log rounds */
    unsigned context;     /* 0: the target's, from 1 on: drafters' */
    bool measuring;
};
/* What one context says of itself; 0: not said. */
struct engine_context {
    uint32_t n_ctx, n_ctx_seq, n_batch, n_ubatch, n_seq_max, n_outputs_max;
};
/* Begin with all zero. A line that begins another start sets starts up and forgets what came before. */
struct engine_memory {
    unsigned starts;      /* seen so far; buffers of an earlier one are gone */
    bool measuring;       /* inside the engine's own measuring passes */
    unsigned passes;      /* measuring passes begun in this start: the first is of what was asked */
    bool measured;        /* the first pass is complete, the drafter included */
    bool draft_unmeasured; /* the engine could not measure its drafter alone */
    bool failed;          /* the measuring failed: what was asked cannot be loaded */
    unsigned contexts, models; /* begun in this pass or load */
    bool indexer;         /* the next KV buffers are an indexer's */
    bool pipeline;        /* of the context that began last: it keeps four copies of what crosses devices */
    struct engine_context target;
};
/* Feeds one line of engine kind k: true and *ret when it tells of a buffer. */
bool engine_memory_line(struct engine_memory *m, const struct engine_kind *k, struct str line, struct engine_buffer *ret);

/* Why an engine ended, read from its last lines. ENGINE_WORDS_UNKNOWN is a legal answer; nothing is guessed. */
enum engine_words {
    ENGINE_WORDS_UNKNOWN,
    ENGINE_WORDS_DEVICE_MEMORY,   /* out of device memory */
    ENGINE_WORDS_HOST_MEMORY,     /* host allocation failed */
    ENGINE_WORDS_MEMORY_NOT_BACK, /* less free at init than before: a previous process still holds it */
    ENGINE_WORDS_MEMLOCK,
    ENGINE_WORDS_PAGE_FAULT,      /* GPU memory access fault */
    ENGINE_WORDS_KERNEL_TABLES,   /* rocBLAS / hipBLASLt tables, or no kernel image for this device */
    ENGINE_WORDS_SPLIT_NAME,      /* not the first part, or a part missing */
    ENGINE_WORDS_UNKNOWN_FLAG,
    ENGINE_WORDS_TEMPLATE,
    ENGINE_WORDS_PORT,            /* cannot listen */
    ENGINE_WORDS_CORRUPT,         /* not a model file, or damaged */
    ENGINE_WORDS_UNKNOWN_ARCH,    /* this build does not know the architecture */
    ENGINE_WORDS_NO_DEVICE,       /* a named device or back end is not there */
};
/* tail: the last part of its log (whole lines; the caller gives up to 64 KiB). */
enum engine_words engine_words_find(const struct engine_kind *k, struct str tail);
/* For people: "out of device memory: lower context, slots or ubatch, or move layers". */
const char *engine_words_text(enum engine_words w);

/* ---- time -------------------------------------------------------------------------------------------------------------- */

/* How often a server-sent event goes out when nothing else does: stopping waits longer than this. Seconds. */
#define ENGINE_PING_S 1
#define ENGINE_SLOW_DISK (50ULL * 1000 * 1000) /* bytes a second when the disk's speed is unknown: a USB or network disk */
#define ENGINE_START_MARGIN 3ULL                /* pages of a mapped file come in out of order, other services load at the same time */
/* How long a start may take: ENGINE_START_MARGIN times the payload's bytes by the disk's speed (bytes a second; 0 unknown: ENGINE_SLOW_DISK), plus what the kind does beside reading: device start, warm-up, compiling. Saturates. */
uint64_t engine_start_limit_ms(const struct engine_kind *k, uint64_t payload_bytes, uint64_t disk_bytes_s);
