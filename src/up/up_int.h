/* SPDX-License-Identifier: MIT
 *
 * up, private: the supervisor's memory and the seams between its parts.
 *
 *   up.c          phases: starting -> serving -> stopping, one callback for every change of a service
 *   up_prepare.c  all that is needed before anything is started: folders, lock, runtimes, ports
 *   up_reload.c   reading the fleet file again; services that come and go
 *   up_upgrade.c  another build of berth takes over, by exec in place
 *   up_watch.c    health of services that others start
 *   up_names.c    addresses of their hosts
 *   up_router.c   the router: what it is told and says, which worker serves, starting one again
 *   up_worker.c   one worker process: spawn, channel, end
 *   up_control.c  the control socket's server, rolling restarts
 *   up_keys.c     keys of clients
 *   up_web.c      the page of the admin listener, in web/
 *   demand.c      which services on demand are to be up (demand_int.h)
 *   up_demand.c   ... and how that is done
 *   up_fits.c     which of them fit together, and whether memory is free
 *   up_prompts.c  what their slots hold, while they are stopped
 *   up_status.c   the status as JSON, of a running fleet and of one that is down
 *   up_manager.c  what the service manager is told
 *   up_say.c      what a person sees: progress, messages, the table
 *   up_daemon.c   going into the background
 *   up_client.c   the other end of the control socket
 */
#pragma once

#include <signal.h>

#include <conf/conf.h>
#include <httpio/httpio.h>
#include <hw/hw.h>
#include <net/net.h>
#include <proxy/proxy.h>
#include <run/run.h>
#include <store/store.h>

#include "demand_int.h"
#include "up.h"

#define UP_TEND_MS 2000           /* between looks at the router's files */
#define UP_TICK_MS 250            /* redraws what a start is doing */
#define UP_STATS_MS 1000          /* how long a status waits for the router's numbers */
#define UP_UPGRADE_MS 100         /* between the word that another program takes over and its start: the router tells what it knows of conversations meanwhile */
#define UP_LEAVE_MS 3600000ull    /* how long a router that was replaced finishes what it has: longer than any answer takes */
#define UP_BACKOFF_MIN_MS 100     /* before a router that ended is started again; doubles ... */
#define UP_BACKOFF_MAX_MS 5000    /* ... up to here; back to the first once it ran this long */
#define UP_TEXT_MAX (4u << 20)    /* of one answer on the control socket */
#define UP_PATH_MAX 4096
#define UP_LOCK_TEXT (UP_PATH_MAX + 32) /* what is in a lock file: a pid and a path */
#define UP_SOCKETS_MAX FLEET_ROUTER_LOOPS_MAX /* that the router listens at: one for each loop, or what the service manager passed */
_Static_assert(UP_SOCKETS_MAX >= OS_SOCKETS_MAX, "all passed sockets have room");
#define UP_SETTLE_MS 20000        /* how long a start waits for memory that a stopped engine held */
#define UP_SETTLE_LOOK_MS 50
#define UP_WHY_MAX 300            /* of the reason that clients are told */
#define UP_WAITS_MAX 1024         /* endpoints that a worker's report names */
#define UP_FITS_MAX 64            /* answers that are kept */

/* Where a fleet keeps its things; absolute. */
struct up_paths {
    char *run;    /* folder */
    char *lock, *sock, *pids;
    char *fleet;  /* folder of its state */
    char *state_lock;
    char *logs, *work;
};
int up_paths_make(const struct os_dirs *dirs, const char *name, struct up_paths *ret, struct err *err) BASE_MUST_USE;
void up_paths_release(struct up_paths *p);

/* One runtime in use; there are as many as there ever were while this supervisor runs. */
struct up_runtime {
    struct up_runtime *next;
    uint64_t declared_hash;
    struct store_runtime installed;
    enum store_confine confine;
};

/* One reading of the fleet file: services that run as it declares them hold it. */
struct up_fleet {
    unsigned refs;
    struct fleet *f;
};

/* What memory a start takes, of each of this machine's cards and of the machine itself. */
struct up_need {
    bool found;
    uint64_t card_bytes[HW_DEVICES_MAX], host_bytes;
};

/* How a file looked when it was read; zeroes: it was not there. */
struct up_stamp {
    dev_t dev;
    ino_t ino;
    mode_t mode;
    uint64_t size;
    int64_t mtime_ns;
};
struct up_stamp up_stamp_of(const char *path);
bool up_stamp_eq(const struct up_stamp *a, const struct up_stamp *b);

/* Of the slots' files. */
struct up_prompts {
    char *dir; /* NULL: nothing is kept */
    struct httpio_fetch *fetch;
    bool saving;
    bool held[FLEET_SLOTS_MAX];
    unsigned slot, n_held, n_restored;
    uint64_t bytes, next_life, declared_hash;
    struct up_stamp weights; /* of the engine that they are of */
};

struct up_service {
    struct up *up;
    const struct fleet_service *service; /* as it is declared now, or was when it was removed */
    struct up_fleet *of;                 /* holds `service` */
    struct up_fleet *run_of;             /* holds what its process runs as: run_service_of(run) */
    const struct up_runtime *runtime;    /* of `service` */
    struct run_service *run;
    bool fresh;                          /* to be started by the reading that is being taken over: it is new, or not on demand any more */
    bool start;                          /* taken over without a process that it should have */
    bool removed;                        /* the fleet file has it no more: it goes when it has stopped */
    bool drained; /* by request: the router gives it nothing new */
    uint64_t unreached; /* generation of which the router has said that it cannot be reached */
    /* on demand: */
    uint64_t life;      /* as the router knows it; kept when its slots are given back to the next process */
    bool startable;     /* as the router was told */
    char why[UP_WHY_MAX]; /* it did not start, or "" */
    struct net_timer *settle;
    uint64_t settle_by_ms;
    struct up_need need;
    struct up_prompts prompts;
};

struct up_wait {
    size_t endpoint;
    uint64_t n, since_ms;
};

/* What a worker works on, as it told last. */
struct up_report {
    uint64_t mark; /* that it follows */
    uint64_t active[FLEET_SERVICES_MAX];
    struct up_wait waits[UP_WAITS_MAX];
    size_t n_waits;
};

struct up_fit {
    uint64_t key, until_ms;
    bool fits;
};

struct up_keys_read {
    struct up_stamp file;
    struct buf text; /* with berth's own line; empty where clients need no key */
};

struct up_keys {
    struct up_keys_read read; /* what the workers have */
    char own[PROXY_KEY_TEXT]; /* the key of that line, new with each start; "": clients need none */
    struct net_timer *timer;
};

struct up_demand {
    struct demand d; /* n 0: there are none on demand */
    struct up_service **units;
    struct net_timer *timer;
    uint64_t mark;   /* of the last line to the workers */
    bool acting;
    struct up_fit fits[UP_FITS_MAX];
    size_t n_fits;
    struct hw_reader *reader;
    struct hw *hw;
};

/* One process of the router. */
struct up_worker {
    struct up_worker *next; /* the one before it */
    struct up *up;
    struct os_proc proc;
    struct net_watch *watch;
    struct net_stream *channel;
    struct buf line;
    uint64_t started_ms;
    bool accepts; /* it has a configuration and accepts */
    bool leaving; /* another one serves; it finishes what it has */
    struct proxy_stats stats;
    struct up_report *report; /* NULL: none yet */
};

struct up_router {
    bool wanted;     /* the fleet's router is on this machine */
    bool passed;     /* the service manager opened its sockets */
    int listen_fds[UP_SOCKETS_MAX]; /* kept here, so that connections wait while a worker is replaced */
    size_t n_listen;
    struct net_addr addr;   /* of the first */
    struct proxy_pair pair; /* certificate and key in force */
    struct up_worker *workers; /* the newest first: that one serves, or will once it accepts */
    struct net_timer *timer, *tend;
    bool unmended; /* something is wrong with its files, which was said */
    uint64_t backoff_ms, restarts;
    bool draining; /* it has been told to end */
    struct buf metrics, index; /* index: what the worker knows of conversations, for the next one */
};

/* A control request that waits for its answer. */
struct up_request {
    struct up_request *next;
    struct httpio_exchange *x;
    enum up_wants { UP_WANTS_STATUS, UP_WANTS_METRICS, UP_WANTS_RESTART, UP_WANTS_ANSWER } wants;
    uint64_t serial; /* UP_WANTS_ANSWER: of the question that the router was asked */
};

struct up_control {
    int admin_fd;               /* bound, not served yet; -1 */
    struct net_addr admin;      /* where the admin listener is; host "" without one */
    struct httpio_server *server, *admin_server; /* NULL: there is no such listener */
    struct up_request *requests;
    int kept_fd, kept_admin_fd; /* second descriptors of its listeners, for the next program; -1 */
    struct net_timer *timer; /* ends the wait for what the router says */
    bool waiting;            /* it runs */
    uint64_t serial;         /* of the last question to the router */
};

/* Who looks at the page. */
struct up_looker;
struct up_web {
    struct up_looker *lookers;
    struct net_timer *timer; /* NULL until the first one looks */
    uint64_t serial;         /* of the question that is open at the router; 0 none */
};

/* A rolling restart: services one after the other. */
struct up_restart {
    struct up_service *at; /* NULL: none */
    bool all;
    size_t index; /* of `at`, when all */
    size_t done;
    bool started; /* `at` has been stopped and is starting */
};

/* What became of the fleet file since the start. */
struct up_reload {
    uint64_t done;           /* readings that are in force by now */
    struct buf error;        /* why the last one is not; empty */
    struct net_timer *sweep; /* takes removed services out that have stopped */
};

/* Another build takes this one's place. */
struct up_upgrade {
    bool wanted;        /* as soon as the loop has stopped */
    uint64_t done;      /* how often this fleet's supervisor was replaced */
    struct buf error;   /* why the last that was to take over did not; empty */
    struct buf file;    /* the fleet file as it was when that was asked for */
    struct json *state; /* what the one before handed over, while it is read; NULL */
    struct net_timer *timer;
};

enum up_phase { UP_STARTING, UP_SERVING, UP_STOPPING };

struct up {
    const struct up_options *o;
    struct up_fleet *of;  /* the configuration in force ... */
    struct fleet *fleet;  /* ... which is this */
    struct os_dirs dirs;
    struct up_paths paths;
    int lock_fd, state_fd; /* the locks of the run and the state folder: both or none */
    int store_fd;
    struct store *store;
    struct up_runtime *runtimes;
    struct up_service **services; /* those that are started here; each has its place for as long as it is there */
    size_t n_services;

    struct net_loop *loop;
    struct httpio_client *client;
    struct net_signal *signals[4];
    struct net_timer *tick, *watchdog;
    struct event_sink sink;
    struct run_env env;
    struct up_router router;
    struct up_control control;
    struct up_web web;
    struct up_restart restart;
    struct up_reload reload;
    struct up_upgrade upgrade;
    struct up_demand demand;
    struct up_keys keys;
    struct up_watch *watches; /* of services that others start */
    size_t n_watches;
    struct net_timer *watch_timer;
    struct up_name *names;

    enum up_phase phase;
    bool services_stopping; /* the router is gone, engines are being stopped */
    bool done;              /* nothing runs any more */
    uint64_t stop_by_ms;    /* when requests under way have had their time */
    int exit_code;
    uint64_t began_ms;

    struct os_progress *progress; /* while starting and stopping */
    int ready_fd;                 /* background: where the waiting parent is told; -1 */
    bool detached;                /* standard error is a log file */
};

/* ---- up.c ---- */
/* Something without which the fleet cannot start or go on: says it, stops everything, exit 1. */
void up_fail(struct up *u, const char *subject, const char *text);
void up_stop(struct up *u);
/* The router's worker accepts (the first time: the fleet is up), has ended for good. */
void up_router_is_up(struct up *u);
void up_router_is_gone(struct up *u);
struct up_service *up_service_named(struct up *u, struct str name);
/* Whether this supervisor starts the service; whether that fleet's router is its own. */
bool up_starts(const struct up *u, const struct fleet_service *s);
bool up_routes(const struct up *u, const struct fleet *f);
/* Whether it may be changed now: -EAGAIN while the fleet starts or stops, or a rolling restart is under way, with which of them. */
int up_may_change(const struct up *u, struct err *err) BASE_MUST_USE;
/* SIGINT, SIGTERM and SIGHUP, which end or reload a fleet. */
void up_signals(sigset_t *ret);

/* ---- up_prepare.c ---- */
int up_prepare(struct up *u, struct err *err) BASE_MUST_USE;
/* Records which processes are ours. */
void up_record(struct up *u);

/* The runtime of a service, proven; NULL with -ENOENT when it is not installed. It lives as long as u. */
int up_runtime_of(struct up *u, const struct fleet_runtime *declared, const struct up_runtime **ret, struct err *err) BASE_MUST_USE;

void up_runtimes_release(struct up *u);

/* ---- up_reload.c ---- */
/* Reads the file; host: which of its hosts this machine is, NULL: the one without ssh. *ret has one reference. */
int up_fleet_load(const char *path, const char *host, struct up_fleet **ret, struct err *err) BASE_MUST_USE;
/* The same of what was read from it before; text.ptr NULL: it is read. */
int up_fleet_load_text(struct str text, const char *path, const char *host, struct up_fleet **ret, struct err *err) BASE_MUST_USE;
struct up_fleet *up_fleet_ref(struct up_fleet *of);
struct up_fleet *up_fleet_unref(struct up_fleet *of); /* takes NULL; returns NULL */
/* A service of u->fleet with its place; not started. */
int up_service_add(struct up *u, const struct fleet_service *s, struct up_service **ret, struct err *err) BASE_MUST_USE;
/* Takes it out of the list; its run is freed. */
void up_service_free(struct up_service *s);
int up_service_run(struct up_service *s, struct err *err) BASE_MUST_USE; /* makes its run */
/* Whether what runs is not what is declared. */
bool up_service_pending(const struct up_service *s);
/* Before a start: what is declared is what runs from then on. */
int up_service_renew(struct up_service *s, struct err *err) BASE_MUST_USE;
/* Reads the fleet file and does what it says. On failure nothing has changed, and the status has the reason. out: what was done, as JSON. */
int up_reload(struct up *u, struct buf *out, struct err *err) BASE_MUST_USE;
/* A service that was removed has stopped. */
void up_reload_gone(struct up *u);
void up_reload_release(struct up *u);

/* ---- up_upgrade.c ---- */
/* Tries whether the program at our path can take over. */
int up_upgrade_ask(struct up *u, struct err *err) BASE_MUST_USE;
/* Runs it in our place; comes back only when that failed, which is said. */
void up_upgrade_exec(struct up *u);
/* In the program that takes over: what was handed to it. A descriptor by its key, -1 none. */
int up_resume_fd(const struct up *u, const char *key);
size_t up_resume_sockets(struct up *u); /* into the router's; how many */
int up_resume_service(struct up_service *s, struct err *err) BASE_MUST_USE;
int up_resume_router(struct up *u, struct err *err) BASE_MUST_USE;
/* What was in force, when its files cannot be used in this moment, which *err says; -ENOENT: nothing was, and *err is as it was. */
int up_resume_pair(struct up *u, struct err *err) BASE_MUST_USE;
int up_resume_keys(struct up *u, struct err *err) BASE_MUST_USE;
json_val up_resume_watch(const struct up *u, const char *name); /* NULL: nothing */
void up_resume_done(struct up *u);
/* up.c: goes on with it; owns of and state. The value is the exit code. */
int up_resume(const struct up_options *o, struct up_fleet *of, struct json *state);

/* ---- up_watch.c ---- */
/* Begins to ask the services of u->fleet that others start; again: of another reading. */
int up_watch_begin(struct up *u, struct err *err) BASE_MUST_USE;
void up_watch_end(struct up *u);
/* Into the state for the program that takes over: an array "watches". */
void up_watch_hand_over(const struct up *u, struct json_out *o);
/* The router gives it nothing new for so long at most; 0: it may again. False: none of that name is watched. */
bool up_watch_drain(struct up *u, struct str name, uint64_t for_ms);
bool up_watch_drained(const struct up *u, const struct fleet_service *s);
/* What is known of them for the router; states has room. */
size_t up_watch_states(const struct up *u, struct proxy_state *states);
/* A name has another address, or it is known that it has none. */
void up_watch_named(struct up *u, const struct up_name *o);
/* "ready", "no answer", "another model", "wrong key", "elsewhere" (not asked yet) and why (NULL); NULL for a service that is not asked. */
const char *up_watch_text(const struct up *u, const struct fleet_service *s, const char **ret_why);

/* ---- up_names.c ---- */
/* The name of a host, which is looked up; lives until a prune that it is not used at. NULL without memory. */
struct up_name *up_name_of(struct up *u, const char *host);
/* The address in use; false: there is none. */
bool up_name_address(const struct up_name *o, uint16_t port, struct net_addr *ret);
/* No look-up of it has ended. */
bool up_name_is_new(const struct up_name *o);
/* Why it has no address. */
const char *up_name_why(const struct up_name *o);
/* The address in use does not answer: another one is used from here on. False: there is no other. */
bool up_name_next(struct up_name *o);
void up_names_tick(struct up *u);
/* Marks all as unused; frees those that are since. */
void up_names_unused(struct up *u);
void up_names_prune(struct up *u);

/* ---- up_router.c ---- */
#define UP_DRAINED_WHY "it is drained" /* what clients are told of a service that was taken out of the router */
void up_router_start(struct up *u);
/* Starts another worker on the same sockets; once it accepts, the one before finishes what it has and ends. -EAGAIN: none serves. */
int up_router_replace(struct up *u, struct err *err) BASE_MUST_USE;
/* Tells the worker what is ready. */
void up_router_tell(struct up *u);
/* Tells the workers the keys of clients. */
void up_router_tell_keys(struct up *u);
/* Tells the worker its certificate and key. */
void up_router_tell_pair(struct up *u);
/* False when no worker runs, so that no numbers will come. */
bool up_router_ask(struct up *u);
/* Has the worker say at once what it knows of conversations. */
void up_router_ask_index(struct up *u);
/* Passes a question on, as proxy_ask has it; up_control_answer gets what comes back. False when no worker runs. */
bool up_router_question(struct up *u, uint64_t serial, struct str method, struct str target);
void up_router_drain(struct up *u, uint64_t limit_ms);
void up_router_kill(struct up *u);
/* Other sockets, for the worker to come: up_router_replace. Owns them. */
void up_router_rebind(struct up *u, const int *fds, size_t n, const struct net_addr *a);
bool up_router_alive(const struct up *u);
bool up_router_accepts(const struct up *u);
/* Of the worker that serves; requests under way of all. */
void up_router_stats(const struct up *u, struct proxy_stats *ret);
/* It will not be needed: the fleet ends before it was up. */
void up_router_never(struct up *u);
/* From up_worker.c: a line came; the process has ended. */
void up_router_take(struct up_worker *w, struct str line);
void up_router_ended(struct up_worker *w, int status);
void up_router_release(struct up *u);

/* ---- up_worker.c ---- */
/* Starts one, at the front of the router's list. */
int up_worker_start(struct up *u, struct up_worker **ret, struct err *err) BASE_MUST_USE;
/* One that runs already; owns the channel, also on failure, and the process on success. */
int up_worker_adopt(struct up *u, const struct os_proc *proc, int channel_fd, struct up_worker **ret, struct err *err) BASE_MUST_USE;
void up_worker_send(struct up_worker *w, const struct buf *line);
/* Makes the folder for large bodies again when it was removed. */
int up_worker_mend_spill(struct up *u, struct err *err) BASE_MUST_USE;
/* Takes it out of the list; one that lives is killed and waited for. Takes NULL; returns NULL. */
struct up_worker *up_worker_free(struct up_worker *w);

/* Names one life of an engine for ever, so that what the router knows of it outlives the supervisor and nobody else's. */
uint64_t up_life_of(const struct run_info *info);

/* ---- up_demand.c ---- */
bool up_on_demand(const struct up_service *us);
int up_demand_open(struct up *u, struct err *err) BASE_MUST_USE;
/* The fleet was read again: its services on demand may be others. */
int up_demand_renew(struct up *u, struct err *err) BASE_MUST_USE;
/* A service goes. */
void up_demand_leave(struct up_service *us);
/* The fleet is up: preloads begin. */
void up_demand_begin(struct up *u);
/* A service on demand changed its state. */
void up_demand_state(struct up_service *us, enum run_state to);
/* Whether requests may be sent to it, as far as that is decided here. */
bool up_demand_serves(const struct up_service *us);
/* Whether a request may wait for it, and if not why, or NULL. */
const char *up_demand_why(const struct up_service *us, bool *ret_startable);
bool up_demand_idle(const struct up_service *us);
/* Whether there is nothing to restart: it is down, or about to be. */
bool up_demand_leaves(const struct up_service *us);
/* A worker's report. */
void up_demand_take(struct up_worker *w, json_val v);
void up_demand_worker_gone(struct up *u);
void up_demand_close(struct up *u);
/* Its prompts are kept, are given back. */
void up_demand_stop(struct up_service *us);
void up_demand_ready(struct up_service *us);

/* ---- up_fits.c ---- */
/* Whether the units on demand with up[i] may run at the same time; ctx is the supervisor. */
bool up_fits(void *ctx, const bool *up);
/* Whether the memory that the service takes is free now; else what is not. */
bool up_fits_free(struct up *u, struct up_service *us, char ret_what[96]);
void up_fits_release(struct up *u);

/* ---- up_prompts.c ---- */
int up_prompts_open(struct up *u, struct err *err) BASE_MUST_USE;
/* Folders for services on demand that have none yet. */
int up_prompts_renew(struct up *u, struct err *err) BASE_MUST_USE;
/* Ends with up_demand_stop, perhaps before it returns. */
void up_prompts_save(struct up_service *us);
/* Ends with up_demand_ready, perhaps before it returns. life: of the new process. */
void up_prompts_restore(struct up_service *us, uint64_t life);
void up_prompts_cancel(struct up_service *us);
/* Nothing of it is given back. */
void up_prompts_drop(struct up_service *us);
void up_prompts_close(struct up *u);

/* ---- up_keys.c ---- */
/* Reads the keys file, when there is one; what was read before stays when it cannot be used. */
int up_keys_load(struct up *u, struct err *err) BASE_MUST_USE;
/* The same of a reading that is not in force yet; path NULL: there is none, and ret is empty. The text of ret is to be released, also after a failure. */
int up_keys_read(struct up *u, const char *path, struct up_keys_read *ret, struct err *err) BASE_MUST_USE;
/* What was read is in force, as the fleet now is; k has what was before. */
void up_keys_take(struct up *u, struct up_keys_read *k);
/* Reads it again whenever it changed. */
int up_keys_watch(struct up *u, struct err *err) BASE_MUST_USE;
/* Looks at the file that the fleet now names, or at none. */
void up_keys_follow(struct up *u);
void up_keys_release(struct up *u);

/* ---- up_control.c ---- */
int up_control_open(struct up *u, struct err *err) BASE_MUST_USE;
/* Answers what waits for the router's numbers. */
void up_control_stats(struct up *u);
/* The router has answered a question. */
void up_control_answer(struct up *u, uint64_t serial, unsigned status, struct str body);
/* A service changed: a rolling restart may go on. */
void up_restart_step(struct up *u, struct run_service *s);
/* Ends a rolling restart with a failure; text NULL: none is under way or it went well. */
void up_restart_end(struct up *u, const char *text);
void up_control_close(struct up *u);

/* ---- up_web.c ---- */
/* Serves a page, or begins a stream of events. False: the path is nothing of the page's. */
bool up_web_request(struct up *u, struct httpio_exchange *x, const struct http_head *head);
/* Whether a request that acts was meant: one from a browser must have the field that the page sends, and no form can. */
bool up_web_may_act(const struct http_head *head);
/* The router has answered; true when the page had asked. */
bool up_web_answer(struct up *u, uint64_t serial, unsigned status, struct str body);
void up_web_drained(struct up *u, struct httpio_exchange *x);
void up_web_done(struct up *u, struct httpio_exchange *x);
void up_web_close(struct up *u); /* after the server was freed */

/* ---- up_status.c ---- */
/* u NULL: a fleet that is down. */
int up_status_text(struct up *u, const struct fleet *f, struct buf *out) BASE_MUST_USE;

/* ---- up_manager.c ---- */
/* Begins to say that we live, when a service manager wants to hear it. */
int up_manager_open(struct up *u, struct err *err) BASE_MUST_USE;
/* Tells it the state; what: "READY=1\n", "STOPPING=1\n" or "". */
void up_manager_tell(struct up *u, const char *what);

/* ---- up_say.c ---- */
/* Tells people, on standard error or in berth.log. subject: "" for the fleet as a whole. */
void up_say(struct up *u, enum event_level level, const char *subject, const char *fmt, ...) BASE_PRINTF(4, 5);
void up_say_service(struct up *u, enum event_level level, const struct fleet_service *s, const char *fmt, ...) BASE_PRINTF(4, 5);
/* "service 'NAME'". Returns out. */
#define UP_SUBJECT_MAX (FLEET_NAME_MAX + 16)
const char *up_subject(const struct fleet_service *s, char out[UP_SUBJECT_MAX]);
void up_emit(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total);
void up_progress_service(struct up *u, struct run_service *s, enum run_state from);
void up_progress_all(struct up *u);
void up_print_table(struct up *u);

/* ---- up_daemon.c ---- */
/* Forks; true in the child, which goes on. In the parent it waits for the child's word and returns false with *ret_exit. */
bool up_daemonize(struct up *u, int *ret_exit);
/* Tells the waiting parent, if there is one; 0: all is ready. */
void up_daemon_tell(struct up *u, int exit_code);
/* Standard output and error become berth.log. */
void up_daemon_detach(struct up *u);

/* ---- up_client.c ---- */
/* The process that holds one of the fleet's locks: its pid, 0 when none does, -1 when it has not said yet. ret_run, which may be NULL, gets the run folder that its fleet is found in. */
pid_t up_lock_holder(const char *lock_path, struct buf *ret_run);
