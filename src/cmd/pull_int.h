/* SPDX-License-Identifier: MIT
 *
 * What commands that fetch share (pull_show.c): the fleet, the store, a hub that is opened when it is first needed, and how its events look. And the parts of `berth pull`: what is to be fetched (pull_plan.c), fragments that are
 * joined (pull_join.c).
 */
#pragma once

#include "cmd_int.h"

#include <hub/hub.h>
#include <store/store.h>

#define PULL_MEMORY_MAX (256u << 20) /* of one command: names of files, mostly */
#define PULL_PATH_MAX 8192

/* ---- session -------------------------------------------------------------------------------------------------------------- */

struct pull_session {
    const struct fleet *fleet;   /* NULL without one */
    struct os_dirs dirs;
    struct store *store;
    struct hub *hub;             /* NULL until pull_hub */
    struct hub_options options;
    struct os_progress *progress;
    struct event_sink sink;
    struct arena *arena;
    bool terminal;
    unsigned told;               /* tenths of the whole that were said where there is no terminal, and when */
    uint64_t told_us;
    int lock_fd;                 /* of pull_lock; -1 */
};
/* All return an exit code and have said why. Close it in any case. */
int pull_open(struct pull_session *s, const struct fleet *f);
void pull_close(struct pull_session *s);
/* For commands that write payload files: waits until no other does, and has it written down that the fleet uses its files. Before os_interrupt_begin, so that waiting can be broken off. An exit code. */
int pull_lock(struct pull_session *s);
/* Options --connections, --stall and --retries, into s->options. */
int pull_read_options(struct pull_session *s, const struct cmd *c, const struct cmd_args *a);
#define PULL_OPTIONS \
    {0, "connections", "N", "connections at once (default 4)"}, {0, "stall", "SECONDS", "give up a connection that brings nothing for so long (30)"}, { 0, "retries", "N", "tries in a row without a byte (8)" }
/* Opens the hub; -errno with err. */
int pull_hub(struct pull_session *s, struct err *err) BASE_MUST_USE;
/* Where a file of a model is; revision is for a hub's. The hub must be open. */
int pull_url(const struct pull_session *s, const struct fleet_model *m, const char *revision, const char *file, struct buf *url, struct err *err) BASE_MUST_USE;
/* True when the model is one of the command's words, or there are none. */
bool pull_wants(const struct cmd_args *a, const struct fleet_model *m);
/* As cmd_fleet; every word of the command must be a model of it. */
struct fleet *pull_fleet(const struct cmd *c, const struct cmd_args *a, int *ret_exit);

/* Fetches what n models of the session's fleet name and is not here. An exit code; what failed was said. */
int pull_models(struct pull_session *s, const struct fleet_model *const *models, size_t n);
/* Fetches the headers of models that are not here, of all services or one, for a plan. Nothing is made when there are none. An exit code. */
int pull_headers(const struct fleet *f, const struct store *store, const struct fleet_service *only);

/* ---- what is to be fetched -------------------------------------------------------------------------------------------------- */

struct pull_item {
    const struct fleet_model *model;
    const char *role, *file;          /* below the model's source */
    const char *path, *subject;
    const char *joined;               /* a fragment: path of the file that it is a part of; NULL */
    struct fleet_lock_file want;      /* both digests NULL: not pinned; bytes HUB_UNKNOWN: not known */
    const char *commit;               /* NULL: no hub's */
    bool here;
    int code;                         /* of its fetch */
};
struct pull_join {
    const char *file, *path;
    struct store_pin pin;             /* its fragments */
    bool here;
};
struct pull_plan {
    struct pull_item *items;
    size_t n, cap;
    struct pull_join *joins;
    size_t n_joins, cap_joins;
    size_t n_unlocked;                /* hub models that no lock pins */
    bool failed;                      /* a model could not be planned; said already */
};
/* What model m needs, into p. Said when it cannot be known. */
void pull_plan_model(struct pull_session *s, struct pull_plan *p, const struct fleet_model *m);
/* Finds out what is here already, whole and proven; what is elsewhere on this machine is taken over. */
int pull_plan_here(struct pull_session *s, struct pull_plan *p, struct err *err) BASE_MUST_USE;
/* Joins the fragments of every file whose fragments are all here. */
int pull_join_all(struct pull_session *s, struct pull_plan *p, struct err *err) BASE_MUST_USE;
