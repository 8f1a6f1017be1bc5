/* SPDX-License-Identifier: MIT
 *
 * Shared by the parts of `berth verify`: the files that the fleet's models name, what is known of each, and what is done about it.
 */
#pragma once

#include "pull_int.h"

/* One file of a model. Files that several models name are hashed once: `same` leads to the first of them. */
struct verify_file {
    const struct fleet_model *model;
    const char *role;           /* "weights" */
    const char *file, *path;    /* below the source; absolute */
    const struct fleet_lock_model *locked; /* NULL: nothing is pinned */
    bool unlisted;              /* the model is locked, but not this file */
    struct store_pin pin;       /* of the lock */
    struct store_check *check;
    size_t same;                /* index; of the first its own */
    bool repaired;
    uint64_t fetched_bytes;     /* by a repair */
    struct err repair;          /* why it was not; code 0: nothing to say */
};
/* A set of weights, or one file, as the engine would look at it. */
struct verify_set {
    const struct fleet_model *model;
    bool checked; /* its files are sound, so that its headers tell something */
    struct err why; /* code 0: consistent */
};
struct verify {
    const struct cmd *c;
    const struct cmd_args *a;
    struct pull_session s;
    struct verify_file *files;
    size_t n_files, cap_files;
    struct store_check *checks; /* one for each file, used for the first of the same */
    struct verify_set *sets;
    size_t n_sets;
};

/* True for a file that is what it must be, as far as anybody has said. */
bool verify_sound(const struct store_check *c);
/* Proves all files, or only those that are not known to be sound, into their checks. */
int verify_files(struct verify *v, bool full, struct err *err) BASE_MUST_USE;
/* Fetches what is damaged or missing and proves it again. */
int verify_repair(struct verify *v, struct err *err) BASE_MUST_USE;
/* What was found, as a table or as JSON. Exit code of printing. */
int verify_print(const struct verify *v);
