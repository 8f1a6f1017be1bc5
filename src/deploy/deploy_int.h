/* SPDX-License-Identifier: MIT
 *
 * deploy, private.
 *
 *   deploy.c    opening: fleet, store, what each unit's text is
 *   manager.c   systemctl and journalctl, by argv
 *   plan.c      what is installed against what is wanted
 *   diff.c      two texts of a unit, two fleet files
 *   gates.c     what must hold before anything is touched
 *   collectives.c  whether cards that are to work together were proven to
 *   apply.c     the order of things, and the way back
 *   prove.c     that a unit's engine is what was declared, and that it is the one that answers
 *   router.c    the fleet's router as a unit
 *   push.c      the same on another machine
 *   shell.c     commands for another machine's login shell, and a folder for an errand there
 *   status.c    what of a fleet is on this machine
 *   ask.c       the same of many machines at once
 *   version.c   folders of versions, trash, the mark of a deploy at work
 */
#pragma once

#include <check/check.h>
#include <doctor/doctor.h>
#include <engine/engine.h>
#include <run/run.h>
#include <store/store.h>
#include <unit/unit.h>

#include "deploy.h"

#define DEPLOY_MEMORY (64u << 20)
#define DEPLOY_PATH_MAX 4096
#define DEPLOY_FILE_MAX (4u << 20) /* of a unit that is installed, a fleet file, a template */
#define DEPLOY_PORT_MS 75000       /* a port's last sockets are gone after a minute */
#define DEPLOY_MEMORY_MS 30000     /* a driver takes its time to give a card's memory back */

/* One service of this host that is a unit. */
struct deploy_wanted {
    struct fleet_service service; /* with its template's stored path */
    struct fleet_model model;
    struct store_runtime runtime;
    struct engine_paths paths;
    enum unit_form form;
    const char *name, *unit, *path, *text, *health, *health_path;
    const char *lacks; /* without a text, in a plan: what a deploy brings first */
};

/* The fleet's router as a unit of this host; unit NULL: it is none. */
struct deploy_router_unit {
    const char *unit, *path, *text;
    const char *folder; /* of the fleet file that it reads: $STATE/fleets/NAME/router */
    const char *file;   /* in it */
    const char *old_yaml, *old_lock; /* there; "" */
    bool other_build;   /* what runs is not this program */
};

struct deploy {
    const struct os_dirs *dirs;
    const struct event_sink *sink;
    const char *who;
    bool prove_collectives;
    const struct deploy_router *router;
    struct arena *arena;
    int lock_fd; /* -1: not held */
    struct fleet *fleet;
    const char *yaml, *lock; /* the fleet's two files as they were read: a person may edit them while a deploy is at work; without a lock it is "" */
    const struct fleet_host *host;
    const char *dir; /* what the fleet's relative paths are taken from */
    struct store *store;
    const char *folder; /* $STATE/fleets/NAME */
    const char *unit_dir, *quadlet_dir;
    struct deploy_wanted *wanted;
    size_t n_wanted;
    struct deploy_router_unit front;
};

/* Which of its hosts this machine is; name as in struct deploy_options. */
int deploy_find_host(struct deploy *d, const char *name, struct err *err) BASE_MUST_USE;
/* Where units and the fleet's own files are; makes nothing. */
int deploy_find_folders(struct deploy *d, struct err *err) BASE_MUST_USE;
/* The service that an item is about; NULL for DEPLOY_RETIRE. */
struct deploy_wanted *deploy_wanted_of(struct deploy *d, const struct deploy_item *item);
/* What of this host's devices and memory is free at this moment is enough: 0, or -ENOSPC. */
int deploy_fit(struct deploy *d, struct err *err) BASE_MUST_USE;
/* A person wants it to end. */
bool deploy_stop_asked(void);

/* ---- manager.c: systemd, of the host's scope ---- */

struct deploy_unit {
    bool loaded, active, failed, activating, enabled, stale; /* stale: systemd has not read its file */
    pid_t pid;
    uint64_t restarts, since_s, since_mono_us; /* since: when its process started, real time and the clock of durations */
    char fragment[DEPLOY_PATH_MAX], invocation[64];
};
int deploy_show(const struct deploy *d, const char *unit, struct deploy_unit *ret, struct err *err) BASE_MUST_USE;
/* The same for n units, asked together: a process of systemctl takes longer than its answer. */
int deploy_show_many(const struct deploy *d, const char *const *units, size_t n, struct deploy_unit *ret, struct err *err) BASE_MUST_USE;
/* systemctl with these words, NULL-terminated. Its own words are in err. */
int deploy_systemctl(const struct deploy *d, const char *const *words, uint64_t timeout_ms, struct err *err) BASE_MUST_USE;
/* Its process was started before its file was written. */
bool deploy_older_than_file(const struct deploy_unit *u, const char *path);
/* What a unit's process has written since it was started. */
void deploy_journal(const struct deploy *d, const char *invocation, struct buf *out);

/* ---- diff.c ---- */

/* Appends the lines that differ, commands with a line for each flag, and the names of what differs: "-c, Environment"; nothing when only comments do. */
void deploy_diff(struct str before, struct str after, struct buf *lines, struct buf *keys);
/* Appends the names of what a service declares to serve otherwise than before: "serves: tools, efforts"; nothing when it is the same. */
void deploy_diff_serves(const struct fleet_serves *before, const struct fleet_serves *after, struct buf *keys);

/* ---- plan.c ---- */

/* Reads a unit's file: *ret NULL when there is none. -EEXIST when it is not ours. */
int deploy_read_own(struct deploy *d, const char *path, const char *service, const char **ret, struct err *err) BASE_MUST_USE;

/* ---- gates.c ---- */

/* Whether this machine's tools accept a unit's text that is to stand at path_then. */
int deploy_gate_text(struct deploy *d, const char *path_then, const char *text, enum unit_form form, struct err *err) BASE_MUST_USE;

/* ---- apply.c ---- */

/* Puts the item's file in place of the one before, which goes to trash STAMP, and has systemd read and enable it; nothing is started. */
int deploy_install(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err) BASE_MUST_USE;
/* Forgets that it failed before. As deploy_systemctl. */
int deploy_start_unit(struct deploy *d, const char *unit, struct err *err) BASE_MUST_USE;
int deploy_stop_unit(struct deploy *d, const char *unit, struct err *err) BASE_MUST_USE;

/* ---- router.c: the router as a unit is d->front, the last item of a plan; struct deploy_router tells one that is up ---- */

/* Fills in d->front when the router is a unit of this host, else leaves it empty. */
int deploy_front_open(struct deploy *d, struct err *err) BASE_MUST_USE;
/* What is to be done with it. interrupted: a deploy before did not come to its end, so that what runs is proven once more. */
int deploy_front_plan(struct deploy *d, bool interrupted, struct deploy_item *item, struct err *err) BASE_MUST_USE;
/* What stands between the item and its start: its unit's text, the files that it names, its port. */
int deploy_front_gate(struct deploy *d, const struct deploy_item *item, struct err *err) BASE_MUST_USE;
/* Does the item, and waits until the router accepts. */
int deploy_front_bring(struct deploy *d, const struct deploy_item *i, const char *stamp, struct err *err) BASE_MUST_USE;
/* Before or instead of putting its unit back: what it read before. */
int deploy_front_restore(struct deploy *d, const struct deploy_item *i, struct err *err) BASE_MUST_USE;

/* ---- prove.c ---- */

/* Waits until the unit's engine is ready and is what w declares. -ECANCELED: it has ended, with its last words. */
int deploy_prove(struct deploy *d, const struct deploy_wanted *w, struct err *err) BASE_MUST_USE;
/* -ECANCELED: what, with the last words of the unit's process. */
int deploy_ended(struct deploy *d, const struct deploy_wanted *w, const char *what, struct err *err);
/* Whether a process belongs to a unit. */
bool deploy_belongs(pid_t pid, const char *unit);
/* Waits until nothing of ours is left at the service's port: no listener, no connection and, for an engine that does not take such a port, no TIME_WAIT. -EADDRINUSE names who has it. */
int deploy_wait_port(const struct fleet_service *s, struct err *err) BASE_MUST_USE;

/* ---- shell.c ---- */

#define DEPLOY_COMMAND_MAX ((size_t)128 << 10) /* what one word of a command may have */
/* Appends a command that runs the script in sh on another machine, whatever its login shell is, after a line of its own on the output. The script has no line's end. */
void deploy_shell(const char *script, struct buf *out);
bool deploy_is_mark(struct str line); /* that line */
/* What came after that line; false: it did not come. */
bool deploy_after_mark(struct str text, struct str *ret) BASE_MUST_USE;
/* A folder "/tmp/berth-ssh-XXXXXX" for one errand, locked as long as *ret_fd is open; *ret is the caller's to remove and free. What errands that were killed have left is removed. */
int deploy_scratch_make(char **ret, int *ret_fd, struct err *err) BASE_MUST_USE;

/* ---- collectives.c ---- */

/* 0 for a service that needs none, or whose machine has proven them; else -EPERM says how. */
int deploy_collectives_gate(struct deploy *d, const struct fleet_service *s, struct err *err) BASE_MUST_USE;
/* The same of a machine that was read, and its ledger (NULL: there is none). */
int deploy_collectives_judge(const struct fleet_service *s, const struct hw *h, struct ledger *l, bool allowed, struct err *err) BASE_MUST_USE;
/* A service was proven: with it its collectives. What cannot be recorded is told to the sink. */
void deploy_collectives_record(struct deploy *d, const struct fleet_service *s);

/* ---- version.c ---- */

uint64_t deploy_version_current(const char *folder); /* the number of the version in force; 0: there is none */
/* What relative paths of a kept version, or of a fleet file that another machine brought, are taken from, of its file's path; NULL: it is neither. In arena a. */
const char *deploy_version_dir(struct arena *a, const char *fleet_path);
int deploy_version_kept(const struct deploy *d, uint64_t n, struct buf *ret, struct err *err) BASE_MUST_USE;
bool deploy_marked(const struct deploy *d);
int deploy_mark(struct deploy *d, bool on, struct err *err) BASE_MUST_USE;
/* Keeps the fleet file with its lock as a version and makes it the one in force; one that is the same as that is not kept twice. */
int deploy_version_keep(struct deploy *d, uint64_t *ret, struct err *err) BASE_MUST_USE;
/* Copies a file to the trash of this deploy, with its way back. stamp: of the deploy. */
int deploy_trash(struct deploy *d, const char *stamp, const char *path, const char *unit, struct err *err) BASE_MUST_USE;
/* Removes all of the trash but what DEPLOY_TRASH_KEPT deploys put there last. */
void deploy_prune_trash(struct deploy *d);
/* The fleet file and the lock beside it, into d. */
int deploy_read_fleet(struct deploy *d, const char *path, struct err *err) BASE_MUST_USE;
/* A template under a name that its content decides; *ret lives in the arena. */
int deploy_store_file(struct deploy *d, const char *path, const char **ret, struct err *err) BASE_MUST_USE;

/* fleet.yaml, fleet.lock and templates of a fleet into a folder, as they are on disk. */
int deploy_version_write(const struct fleet *f, const char *folder, struct err *err) BASE_MUST_USE;
/* Links to the files of a folder that a list of names ("\nNAME\n...") has not got, into stage; *ret_n: how many. */
int deploy_link_missing(int fd, const char *folder, const char *stage, struct str there, size_t *ret_n, struct err *err) BASE_MUST_USE;
/* $STATE/bin/berth, which units name: starts this very program. */
int deploy_self(struct deploy *d, struct err *err) BASE_MUST_USE;
/* Removes older copies of berth from $STATE/bin; what cannot be removed stays. */
void deploy_prune_bin(struct deploy *d);
