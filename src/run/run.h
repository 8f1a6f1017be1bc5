/* SPDX-License-Identifier: MIT
 *
 * run: the one life of a service. A state machine over a back end; here the back end is a child process of ours. It is told which runtime and files to use, starts the engine,
 * proves it ready, watches it, starts it again when it dies, and stops it the way the engine needs. Main thread only (children are forked here).
 *
 *   absent -> starting -> loading -> ready -> draining -> stopping -> absent
 *   an end that nobody asked for: before it was ever ready -> failed; later -> starting again after a rising delay (RUN_BACKOFF)
 */
#pragma once

#include <base/base.h>
#include <engine/engine.h>
#include <fleet/fleet.h>
#include <httpio/httpio.h>
#include <net/net.h>
#include <os/os.h>
#include <store/store.h>
#include <unit/unit.h>

enum run_state { RUN_ABSENT, RUN_STARTING, RUN_LOADING, RUN_READY, RUN_DRAINING, RUN_STOPPING, RUN_FAILED };
const char *run_state_text(enum run_state s);

#define RUN_BACKOFF_MIN_MS 500      /* before the first restart; doubles each time ... */
#define RUN_BACKOFF_MAX_MS 60000    /* ... up to here; back to the first after RUN_STABLE_MS of being ready */
#define RUN_STABLE_MS 60000
#define RUN_DRAIN_MS 30000          /* how long a stop waits for requests under way */
#define RUN_TERM_MS ((ENGINE_PING_S + 2) * 1000ul) /* after each TERM: longer than the ping interval */
#define RUN_TERM_LOADING_MS 500    /* the same while it was not ready yet: no request waits */
#define RUN_LOG_MAX (32ul << 20) /* bytes of a log; then it is moved to NAME.log.1 and begun anew */

/* Times that a test makes short; 0 is the constant or rule above. */
struct run_times {
    uint64_t backoff_ms; /* RUN_BACKOFF_MIN_MS */
    uint64_t term_ms;    /* RUN_TERM_MS */
    uint64_t limit_ms;   /* of a start: engine_start_limit_ms */
};

/* Shared by all services of a fleet; outlives them. */
struct run_env {
    struct net_loop *loop;
    struct httpio_client *client;
    struct store *store;
    const struct clk *clk;
    const struct event_sink *sink; /* subject "service 'NAME'" */
    const char *log_dir;           /* absolute, exists */
    const char *work_dir;          /* absolute, exists, empty, not writable by the engine's account */
    struct run_times times;        /* zero but in tests */
};

struct run_service;
/* Every change of state, also those made inside run_start and run_stop; from and to are both starting when an attempt to start again failed or is made. It may call run_stop, and run_start once to is absent. */
struct run_ops {
    void (*on_state)(void *ctx, struct run_service *s, enum run_state from, enum run_state to);
};
/* service and runtime must outlive it. */
int run_new(const struct run_env *env, const struct fleet_service *service, const struct store_runtime *runtime, enum store_confine confine,
            const struct run_ops *ops, void *ctx, struct run_service **ret, struct err *err) BASE_MUST_USE;
/* What its next start runs, from another reading of the fleet file; absent or failed only. It has the same name; service and runtime must outlive it. */
int run_declare(struct run_service *s, const struct fleet_service *service, const struct store_runtime *runtime, enum store_confine confine, struct err *err) BASE_MUST_USE;
/* A folder that the engine may write to, for what its slots hold; used at the next start. path must outlive it; NULL: none. */
void run_set_slot_dir(struct run_service *s, const char *path);
/* Whether it is started again by itself when it ends after it was ready, which is so at first; else it has failed then. */
void run_set_again(struct run_service *s, bool again);
/* The process must have ended (absent or failed), else it is killed and waited for. Takes NULL; returns NULL. */
struct run_service *run_free(struct run_service *s);

/* Begins a start from absent or failed: payload and port are checked first. Errors that show at once (payload missing, port taken by whom, spawn failed) come back here, and the state is failed; all later ones through on_state and
 * run_info. */
int run_start(struct run_service *s, struct err *err) BASE_MUST_USE;
/* -EADDRINUSE when something listens at the service's address, with its owner: "port 7770 of service 'a' is taken by nginx (pid 123)". The folder of a socket is made; a socket that nobody listens at is removed. */
int run_port_check(const struct fleet_service *service, struct err *err) BASE_MUST_USE;
/* The same text for any port; what: "service 'a'", "the router". Returns -EADDRINUSE. */
int run_port_taken(uint16_t port, const char *what, struct err *err);
/* Begins a stop from any state (absent: nothing happens; failed: absent at once): draining (the owner stops sending when it sees that state), idle or drain_ms, TERM, RUN_TERM_MS, TERM, RUN_TERM_MS, KILL. on_state(absent) ends it. A second call with 0 hurries. */
void run_stop(struct run_service *s, uint64_t drain_ms);

struct run_info {
    enum run_state state;
    pid_t pid;              /* the engine's own; 0 none */
    uint64_t generation;    /* counts starts */
    uint64_t restarts;      /* starts that nobody asked for */
    uint64_t since_ms;      /* when it came into this state, by the loop's clock */
    uint64_t took_ms;       /* from start to ready, last time; 0 */
    struct os_mem mem;      /* read at the time of the call */
    const char *confine;    /* "bubblewrap" */
    const char *log_path;
    const char *error;      /* why it failed or last ended, for people, several lines: reason, class of last words, last log lines; NULL */
    const char *step;       /* what a start is doing: last telling log line, or the probe's step; NULL */
};
void run_info(struct run_service *s, struct run_info *ret);
const struct fleet_service *run_service_of(const struct run_service *s);
/* The key that its engine asks for; "" none. */
const char *run_key(const struct run_service *s);

/* ---- handing over to the program that takes this one's place by exec ----------------------------------------------- */

/* What goes on of a service. Descriptors stay the service's; the next program owns those that it inherits. */
struct run_handover {
    pid_t pid, engine_pid; /* 0: it has no process */
    int pidfd, engine_pidfd, info_fd, log_fd; /* -1 none; the first two may be the same */
    uint64_t generation, restarts, since_ms, ready_ms, took_ms;
    bool start; /* it was about to be started again */
    struct str failed; /* it has failed, and why; ptr NULL: it has not */
};
/* -EAGAIN: it is being started or stopped. */
int run_hand_over(const struct run_service *s, struct run_handover *ret) BASE_MUST_USE;
/* A fresh service takes the process, ready as it was, or is failed as it was; on_state is not called. Owns the descriptors, also on failure. */
int run_take_over(struct run_service *s, const struct run_handover *h, struct err *err) BASE_MUST_USE;

/* ---- processes that a killed berth left -------------------------------------------------------------------------- */

/* Records the processes of these services in path (atomically): pid, start time, boot id, service. */
int run_pids_write(const char *path, struct run_service *const *services, size_t n, struct err *err) BASE_MUST_USE;
/* Kills what a record names and what still is that very process, waits for its end (at most 5 s), removes the record. *ret_n: how many there were. No record is fine; a damaged one is removed. */
int run_pids_recover(const char *path, size_t *ret_n, struct err *err) BASE_MUST_USE;

/* ---- units ---------------------------------------------------------------------------------------------------------- */

/* What the unit of a service is made of on this machine: its argv is the runtime's own program through its own loader, its environment the clean one, its reads the payloads and the runtime's tree; groups and versions are this machine's.
 * runtime is not used for a container. stop is left to the caller. All of it lives in arena a, ret_paths (may be NULL) too: where the engine finds its files. -ENOENT and others when a payload's folder is not there. Needs the main thread. */
int run_unit_input(struct store *s, const char *fleet, const struct fleet_service *service, const struct store_runtime *runtime, struct arena *a, struct unit_input *ret, struct engine_paths *ret_paths, struct err *err) BASE_MUST_USE;
/* Has systemd (systemd-analyze) or Podman (its quadlet generator) read a unit file at path, in a folder of its own, without installing it. 0: it accepts it without a word. -EBADMSG with what it says; -ENOENT when the program is not on this machine. */
int run_unit_verify(const char *path, enum unit_form form, enum fleet_scope scope, struct err *err) BASE_MUST_USE;
