/* SPDX-License-Identifier: MIT
 *
 * ledger: what was measured, when, and on what: one SQLite file. Rows are only ever added or forgotten, never changed. Several processes may write: each addition is one transaction that waits for others up to
 * LEDGER_WAIT_MS, is on disk when the call returns, and leaves a sound file whenever its process is killed. A file of a newer berth is read and never written.
 *
 * A ledger is used by one thread at a time.
 */
#pragma once

#include <base/base.h>

#define LEDGER_VERSION 1       /* of the file's tables; user_version */
#define LEDGER_WAIT_MS 5000
#define LEDGER_VALUES_MAX 1024 /* of one measurement */
#define LEDGER_TEXT_MAX 65536  /* bytes of one text */

struct ledger;
/* Makes the file (0600, in a folder that exists), or brings an older one up to LEDGER_VERSION. A newer one, or one that may not be written, is opened read-only, in a folder or on a file system where nothing may be written too (then without what a killed writer left in the log beside it). -EBADMSG: damaged, or no ledger; -EBUSY: another process holds it. */
int ledger_open(const char *path, struct ledger **ret, struct err *err) BASE_MUST_USE;
struct ledger *ledger_free(struct ledger *l); /* takes NULL; returns NULL */
/* Why nothing can be written ("it is of version 3, this berth knows 1"), or NULL. */
const char *ledger_read_only(const struct ledger *l);

/* ---- measurements --------------------------------------------------------------------------------------------------- */

enum ledger_tag {
    LEDGER_HOLLOW,        /* the engine's own figures for a model without data */
    LEDGER_AFTER_LOAD,    /* a service that has answered nothing yet */
    LEDGER_AFTER_TRAFFIC, /* pools have grown */
    LEDGER_TAGS
};
const char *ledger_tag_text(enum ledger_tag t); /* "after-load" */

/* A number, or a text when text is not NULL. In the file values are one JSON object. */
struct ledger_value {
    const char *name;
    double number;
    const char *text;
};

/* Texts are UTF-8 and not NULL; "" where something does not apply. */
struct ledger_row {
    uint64_t id;          /* given by the ledger, grows */
    uint64_t at_us;       /* real time */
    const char *kind;     /* "compute", "observed", "known-bad", "bench": each has its values */
    const char *service;  /* as the fleet names it */
    const char *build;    /* the runtime's id */
    const char *model;    /* digest */
    const char *shape;    /* key */
    const char *hardware; /* identity */
    enum ledger_tag tag;
    const struct ledger_value *values;
    size_t n_values;
};
/* -EROFS, -EBUSY (others wrote for LEDGER_WAIT_MS), -EINVAL (not UTF-8, a value that is no number), -E2BIG. ret_id may be NULL. */
int ledger_add(struct ledger *l, const struct ledger_row *row, uint64_t *ret_id, struct err *err) BASE_MUST_USE;

/* NULL or 0: any. */
struct ledger_query {
    const char *kind, *service, *build, *model, *shape, *hardware;
    bool by_tag;
    enum ledger_tag tag;
    uint64_t since_us;
    size_t most;          /* 0: all */
};
/* Calls each with matching rows, newest first; what a row points at is valid during the call. each returns 0 to go on, 1 to stop, or a negative errno, which is returned. Rows whose values cannot be read are passed over. */
int ledger_find(struct ledger *l, const struct ledger_query *q, int (*each)(void *ctx, const struct ledger_row *row, struct err *err), void *ctx, struct err *err) BASE_MUST_USE;
/* Takes matching rows away (most is not regarded). *ret_n (may be NULL): how many. */
int ledger_forget(struct ledger *l, const struct ledger_query *q, uint64_t *ret_n, struct err *err) BASE_MUST_USE;
/* The value of that name, or NULL. */
const struct ledger_value *ledger_value(const struct ledger_row *row, const char *name);
/* The number of that name; otherwise when it is not there. */
double ledger_number(const struct ledger_row *row, const char *name, double otherwise);

/* ---- history ---------------------------------------------------------------------------------------------------------- */

/* What was done: "host big" "deploy" "medium: llama.cpp 0.7.0 -> 0.7.1". */
struct ledger_event {
    uint64_t id, at_us;
    const char *subject, *what, *detail;
};
int ledger_note(struct ledger *l, const struct ledger_event *e, uint64_t *ret_id, struct err *err) BASE_MUST_USE;
/* Newest first, at most `most` (0: all), those of one subject when it is not NULL. each as for ledger_find. */
int ledger_history(struct ledger *l, const char *subject, size_t most, int (*each)(void *ctx, const struct ledger_event *e, struct err *err), void *ctx, struct err *err) BASE_MUST_USE;
