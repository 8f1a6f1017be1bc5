/* SPDX-License-Identifier: MIT
 *
 * run, private: one service's memory and the seams between its parts. run.c is the state machine, run_launch.c makes a
 * process from a declaration, run_log.c takes what it says, run_over.c hands a process to the next program, run_pids.c keeps the record for the next berth,
 * run_unit.c says what a unit of the service is made of.
 */
#pragma once

#include <probe/probe.h>

#include "run.h"

#define RUN_ARENA_MAX (16u << 20) /* one start: argv and the paths of a split set of hundreds of parts */
#define RUN_TAIL_MAX (64u << 10)         /* the part of a log that engine_words_find is given */
#define RUN_BLOCK (16u << 10)            /* of one read */
#define RUN_LINE_MAX (8u << 10)          /* a longer log line is looked at up to here; the file has all of it */
#define RUN_SHOW_LINES 10                /* log lines in an error */
#define RUN_SHOW_CHARS 300               /* of each of them */
#define RUN_TEXT_MAX 1300                /* as many, four bytes each, and a bit */
#define RUN_ERROR_MAX (16u << 10)
#define RUN_SETTLE_MS 100 /* between telling the owner to stop sending and the first look whether it idles */

struct run_log {
    char *path;
    int fd;             /* the file; -1 */
    uint64_t size;      /* of the file */
    int pipe_fd;        /* what the engine writes to; -1 */
    struct net_watch *watch;
    struct buf tail;    /* last bytes of this start */
    struct buf line;    /* the line that is not complete yet */
    bool line_cut;      /* the rest of this line is not looked at */
};

struct run_service {
    const struct run_env *env;
    const struct fleet_service *service;
    const struct store_runtime *runtime;
    const struct engine_kind *kind;
    enum store_confine confine;
    struct run_ops ops;
    void *ctx;
    struct net_addr addr;

    enum run_state state;
    uint64_t since_ms, start_ms, ready_ms, took_ms, backoff_ms;
    uint64_t generation, restarts;
    bool was_ready; /* since the owner asked for this start */
    bool once;      /* it is not started again by itself */

    /* One process and what belongs to it. */
    struct arena *arena; /* argv, paths; until the next start */
    struct engine_paths paths;
    const char *slot_dir;
    const char *key_path; /* where its engine sees its key */
    char key[FLEET_KEY_MAX + 1]; /* of the process that runs; "" none */
    struct probe_target target;
    uint64_t limit_ms;
    struct os_proc proc;   /* our child: the engine, or bubblewrap around it */
    struct os_proc engine; /* the engine; shares proc's descriptor when it is the same process */
    struct net_watch *proc_watch, *info_watch;
    int info_fd;
    struct run_log log;

    struct probe_ready *ready;
    struct probe_idle *idle;
    struct net_timer *timer;
    void (*on_timer)(struct run_service *s);
    uint64_t drain_ms;
    unsigned end_round; /* how many times its end was asked for */

    struct buf verdict; /* why we end it ourselves; empty: we do not */
    struct buf dropped; /* a log line that says that something asked for was not done */
    struct buf step, error;
};

/* What an engine is started with, whoever starts it; in the service's arena, of which only env->store, service, runtime and kind are needed. Sets s->paths. */
struct run_recipe {
    const struct store_bind *binds; /* files that it reads */
    size_t n_binds;
    const char *const *args, *const *env; /* args: after the program's name */
    size_t n_args, n_env;
};
int run_recipe(struct run_service *s, struct run_recipe *ret, struct err *err) BASE_MUST_USE;

/* Makes the process of a start: checks, recipe, pipes, spawn. On failure nothing is left. */
int run_launch(struct run_service *s, struct err *err) BASE_MUST_USE;
/* Closes what belongs to a process that has ended. */
void run_launch_clear(struct run_service *s);
/* Kills and waits (at most 5 s); for run_free and for a launch that failed halfway. */
void run_launch_kill(struct run_service *s);
bool run_alive(const struct run_service *s);
/* Watches the process, and what bubblewrap tells of it. */
int run_watch(struct run_service *s, struct err *err) BASE_MUST_USE;
/* Whom proofs ask, from here on: the process with the key that it was given. In run.c. */
void run_aim(struct run_service *s);
/* Callbacks of the process's descriptors, in run.c. */
void run_on_end(void *ctx);
void run_on_info(void *ctx);

/* Opens NAME.log for adding and watches pipe_fd, which it owns from now on. */
int run_log_open(struct run_service *s, struct err *err) BASE_MUST_USE;
int run_log_watch(struct run_service *s, int pipe_fd, struct err *err) BASE_MUST_USE;
/* A line of our own. */
void run_log_say(struct run_service *s, const char *text);
/* Takes what is left in the pipe. */
void run_log_drain(struct run_service *s);
/* Closes pipe and file. */
void run_log_close(struct run_service *s);
void run_log_release(struct run_service *s);
/* Adds class of last words and last lines to out. */
void run_log_words(const struct run_service *s, struct buf *out);
