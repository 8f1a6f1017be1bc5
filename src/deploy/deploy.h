/* SPDX-License-Identifier: MIT
 *
 * deploy: brings the units of a fleet's services on this machine to what a version of the fleet file declares, and proves it; when the proof fails, the version before is entered again and proven too. Another
 * machine is reached by running this very program there (push.c). Needs the main thread; one deploy at a time for each fleet and machine.
 *
 *   $STATE/fleets/NAME/versions/N/      fleet.yaml, fleet.lock and the templates of a version that was in force, `folder`, what its relative paths are taken from, and `before`, the version that was in force then; `current` is a link to the one that is
 *   $STATE/store/templates/DIGEST-X     templates, under a name that changes with their content alone, where an engine's account can read them
 *   $STATE/fleets/NAME/trash/TIME/      unit files that were taken away, with `restore`, the commands that bring them back
 *   $STATE/fleets/NAME/deploying        there while a deploy is at work: what it began must be proven by the next one
 *   $STATE/fleets/NAME/deploy.lock      flock; ends with the process that holds it
 *
 * What is installed is compared with what is wanted each time anew, file by file, and never taken from memory: a deploy that was killed anywhere is finished by the next one.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <os/os.h>

#define DEPLOY_VERSIONS_KEPT 10
#define DEPLOY_TRASH_KEPT 20     /* deploys whose removed unit files can be restored */
#define DEPLOY_SECRETS_MAX 16384 /* a pipe takes it whole */

/* The fleet's router, wherever it is: told before a service is stopped and after it is proven, and then asked as clients ask. Each call waits until it is so. 0; -ENOENT: no router is up that knows the service, so that nothing is to be told; others: it could not be. */
enum deploy_word {
    DEPLOY_DRAIN,  /* nothing new goes to the service, and what it works on has ended */
    DEPLOY_RESUME, /* it is given requests again */
    DEPLOY_ASK,    /* the endpoints of the service answer under all their names */
};
const char *deploy_word_text(enum deploy_word w); /* "drain" */
struct deploy_router {
    int (*tell)(void *ctx, enum deploy_word what, const char *service, struct err *err);
    void *ctx;
};

struct deploy_options {
    const char *fleet_path;  /* the file to deploy; templates are beside it or absolute */
    const char *dir;         /* what other relative paths are taken from; NULL: what a kept version was deployed with, else the file's folder */
    const char *host;        /* which of its hosts this machine is; NULL: the one without ssh */
    const char *who;         /* for the history: "op@laptop" */
    bool only_plan;          /* a runtime that can be made from packages need not be there yet */
    bool prove_collectives;  /* a service whose cards need collectives may be started although none was proven on this hardware: its own proof will be one */
    const struct event_sink *sink;
    const struct deploy_router *router; /* NULL: nobody is told */
};

struct deploy;
/* Reads the fleet, opens the store, works out each unit's text. -ENOENT: no such host, or no service of this host is a unit. -EINVAL and others: the fleet, a runtime or a payload cannot be used; nothing was changed. */
int deploy_open(const struct deploy_options *o, const struct os_dirs *dirs, struct deploy **ret, struct err *err) BASE_MUST_USE;
struct deploy *deploy_free(struct deploy *d); /* takes NULL; returns NULL */
/* Keeps other deploys of a fleet off this machine until the descriptor that it returns is closed: before anything is fetched for one. -EBUSY: another one is at work. */
int deploy_hold(const struct os_dirs *dirs, const char *fleet, struct err *err) BASE_MUST_USE;
/* A fleet file that another machine brought lies in $STATE/fleets/NAME/incoming.XXXXXX, where no other errand touches it. Under the hold it takes the place of `incoming`, and what errands that are long gone have left is removed: *ret is its path then; of any other
 * file its own. */
int deploy_take_in(const struct os_dirs *dirs, const char *fleet, const char *fleet_path, struct buf *ret, struct err *err) BASE_MUST_USE;
/* Before a plan that is to be applied; fd, from deploy_hold, belongs to d from here on, also on failure. */
int deploy_begin(struct deploy *d, int fd, struct err *err) BASE_MUST_USE;
const struct fleet_host *deploy_host(const struct deploy *d);
/* Opens what was declared before, for the same host and the same folder of relative paths: a version that is kept ("3"), or a fleet file by its path. *ret NULL: it knew no such host. -ENOENT: no such version. */
int deploy_open_then(const struct deploy *d, const char *what, struct deploy **ret, struct err *err) BASE_MUST_USE;

/* ---- plan ------------------------------------------------------------------------------------------------- */

enum deploy_action {
    DEPLOY_KEEP,    /* installed as it is wanted, and running */
    DEPLOY_PROVE,   /* the same, but it declares to serve other things than it was proven to, or an earlier deploy did not come to its proof */
    DEPLOY_START,   /* installed as it is wanted; not running, or running since before its file was written */
    DEPLOY_CHANGE,  /* another text */
    DEPLOY_INSTALL, /* not there */
    DEPLOY_RETIRE,  /* ours, and no longer declared */
    DEPLOY_RELOAD,  /* the router: it reads another fleet file, or another build takes over; its process and its streams stay */
};
const char *deploy_action_text(enum deploy_action a);

struct deploy_item {
    enum deploy_action action;
    const char *service;
    const char *unit;    /* as systemctl names it */
    const char *path;    /* of its file */
    const char *old_path; /* of the one that is installed; the same when none is */
    const char *reason;  /* for people */
    const char *diff;    /* lines "-old" and "+new"; "" */
    /* What apply works with; NULL where it does not apply. */
    const struct fleet_service *declared;
    const char *text, *health; /* wanted */
    const char *old_text, *old_health; /* installed */
    bool was_active;
    bool router;         /* it is the fleet's router, and no service */
};
struct deploy_plan {
    struct deploy_item *items;
    size_t n;
    bool interrupted;    /* an earlier deploy did not end */
};
/* Compares what is wanted with what is installed; changes nothing. The plan lives as long as d. -EEXIST: a file, unit or container that is not ours has one of our names: it is named, and never touched. */
int deploy_plan(struct deploy *d, struct deploy_plan *ret, struct err *err) BASE_MUST_USE;
/* The same between two fleet files, whatever is installed: then (NULL: it knew nothing of this host) was opened on the same machine and must outlive the plan. */
int deploy_plan_since(struct deploy *d, const struct deploy *then, struct deploy_plan *ret, struct err *err) BASE_MUST_USE;
size_t deploy_plan_todo(const struct deploy_plan *p); /* items that are not DEPLOY_KEEP */

/* ---- apply ------------------------------------------------------------------------------------------------- */

/* What stands between a plan and its start: payloads (by stat where they were proven), runtimes, what fits in the devices' free memory, collectives that are proven where cards work together, ports, how systemd or Podman reads each unit. Each gate that stays shut is told to the sink
 * as an error; the first one is err. Nothing was changed. */
int deploy_gates(struct deploy *d, const struct deploy_plan *p, struct err *err) BASE_MUST_USE;

struct deploy_outcome {
    size_t started, proven, retired, kept; /* proven: that were not started for it */
    uint64_t version;       /* that is in force */
    bool rolled_back;       /* something failed, and what was there before is proven to run again */
};
/* Does it: for one service after the other stop, wait for port and memory, install, start, prove. 0: all of it is proven. On failure everything that was changed is put back and proven; err says what failed and, after "; ", how the
 * way back ended. After deploy_begin. */
int deploy_apply(struct deploy *d, const struct deploy_plan *p, struct deploy_outcome *ret, struct err *err) BASE_MUST_USE;

/* Fleet file of the version before the one in force (back 1), or the one that is (back 0), of a fleet on this machine. -ENOENT: there is none. */
int deploy_version_path(const struct os_dirs *dirs, const char *fleet, unsigned back, struct buf *ret, struct err *err) BASE_MUST_USE;

struct deploy_errand {
    const char *const *words;  /* for the program there, NULL-terminated; "-f" with where the fleet is over there is added */
    const struct fleet *since; /* another fleet that is brought along and named by "--since"; NULL */
    struct str secrets;        /* what it reads from its standard input, at most DEPLOY_SECRETS_MAX bytes, seen by no other program and kept nowhere; empty: none */
    const struct deploy_router *router; /* what it wants of the fleet's router meanwhile: lines "router WORD SERVICE" on its output are done by this one, and answered with "CODE TEXT" on its input; NULL: there are none */
};
/* Runs this program on another host of the fleet, after bringing it, the fleet (as it is on this disk) and the packages of runtimes there. out: what it prints; what it
 * says goes to our stderr as it comes. *ret_status as waitpid's: ssh's own, 255, when the connection broke; what was begun over there goes on then. -EHOSTUNREACH and others when it did not come to that. */
int deploy_remote(const struct fleet *f, const struct fleet_host *h, const struct os_dirs *dirs, const struct deploy_errand *e, const struct event_sink *sink, struct buf *out, int *ret_status, struct err *err) BASE_MUST_USE;

/* ---- status ------------------------------------------------------------------------------------------------ */

/* What of a fleet is on this machine, as one line of JSON; host: which of the file's hosts it is, NULL the one without ssh. {"name","version" in force,"deploying","units":[{"name","unit","state","pid","uptime_ms","restarts",
 * "memory_bytes","enabled","error","pending"}]}, with null for what is not known. States: ready (its engine answers), loading (runs, does not answer yet), up (runs, cannot be asked), starting, restarting (ended and is
 * started again), stopped, failed, absent, foreign (not ours), unknown (systemd cannot be asked). Changes nothing and needs no rights. */
int deploy_status(const char *fleet_path, const char *host, const struct os_dirs *dirs, struct buf *ret, struct err *err) BASE_MUST_USE;

struct deploy_answer {
    const struct fleet_host *host; /* with ssh; set by who asks */
    struct buf text;               /* what deploy_status says there, "units" empty where nothing was deployed; the caller releases it */
    int status;                    /* 0, or why there is no answer */
    struct err why;
    uint64_t took_ms;
};
/* Asks n hosts at the same time, each over the system's ssh, for at most limit_ms. -ENOMEM. */
int deploy_ask(const struct fleet *f, const struct os_dirs *dirs, struct deploy_answer *answers, size_t n, uint64_t limit_ms, struct err *err) BASE_MUST_USE;

/* Lets a service come to rest before systemd ends it: waits until its engine works on nothing, at most limit_ms. Never fails: an engine that cannot be asked is ended all the same. */
void deploy_drain(const struct fleet_service *s, uint64_t limit_ms);
