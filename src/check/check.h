/* SPDX-License-Identifier: MIT
 *
 * check: the contracts of a fleet, each with a name, what it says and what to do when it is broken; and the plan of a fleet, what its services need of each machine's memory, which the contract "fit" is judged by. It reads files, the
 * store, the ledger and this machine's devices; it starts nothing and changes nothing.
 */
#pragma once

#include <base/base.h>
#include <fit/fit.h>
#include <fleet/fleet.h>
#include <hw/hw.h>
#include <ledger/ledger.h>
#include <measure/measure.h>
#include <store/store.h>
#include <sys/types.h>

/* ---- the plan ------------------------------------------------------------------------------------------------------- */

#define CHECK_NOTES_MAX 16

/* A machine and what its services take together. Figures are of the devices in order, then of the host's own memory. */
struct check_machine {
    const struct fleet_host *host;
    bool here;                   /* it is this one */
    bool declared;               /* the devices are the fleet's; else those found here */
    bool memory_known;           /* of the host: declared or read; else it has FIT_BYTES_MAX */
    bool live;                   /* free_bytes are what is free at this moment, without what the fleet's own engines hold; else all of a device is the fleet's */
    struct fit_device devices[FIT_DEVICES_MAX]; /* free_bytes: before any service; floor_bytes: the largest that a service asks for */
    size_t n_devices;
    struct fit_host memory;
    int card[FIT_DEVICES_MAX];   /* which of this machine's cards each is, by hw's order; -1: none that is known */
    const char *hardware[FIT_DEVICES_MAX + 1]; /* identities; known for all or for none */
    bool hardware_known;
    uint64_t slack_bytes;        /* largest gap between devices, the smallest that a service asks for; 0: any */
    bool turns;                  /* services on demand do not fit together: each is planned beside what is always up, and the figures below are the worst of that */
    uint64_t used[FIT_DEVICES_MAX + 1];
    int64_t left[FIT_DEVICES_MAX + 1];
    uint64_t gap_bytes;
    bool planned;                /* at least one service is */
    bool fits;                   /* everything planned stays above the floors, within the slack, and nothing is refused */
    int binds;                   /* where least is left over the floor */
    const char *notes[CHECK_NOTES_MAX]; /* what the figures are to be read with */
    size_t n_notes;
};

/* One service's part in it. */
struct check_need {
    const struct fleet_service *service;
    struct check_machine *machine;
    const char *why;             /* not NULL: it cannot be planned, and why; all below is then empty */
    bool broken;                 /* with why: something is wrong; else it is only not known */
    bool missing;                /* with why: a model's header is not here */
    bool unreadable;             /* with why: it is, and cannot be read */
    struct measure_files files;
    const struct model *target, *drafter, *projector;
    const struct store_runtime *runtime; /* NULL: not installed here */
    const char *version;         /* of the engine as fit takes it: "0.7.0"; NULL */
    struct fit_shape shape;
    struct fit_device devices[FIT_DEVICES_MAX]; /* the machine's, or none when the service runs on the CPU; free_bytes without what the other services take */
    struct fit_host memory;
    struct fit_input input;      /* of all the above */
    struct fit_result *result;
    const struct fit_vllm_result *pool; /* of an engine of kind vllm, one rank; then there is no model, and result holds what was declared */
    struct measure_key key;      /* build "" when the runtime is not here */
    struct measure_calibration calibration;
};

struct check_plan_options {
    const char *headers;         /* folder in which models' files are looked for by their names: their headers are enough; NULL: where the store has them */
    struct ledger *ledger;       /* NULL: nothing was measured */
    const char *hw_root;         /* below which this machine's devices are read; NULL: the machine itself */
    const pid_t *own;            /* engines of this fleet that run here: what they hold is the fleet's to plan with */
    size_t n_own;
    bool turns;                  /* services on demand that do not fit together may take turns; else all that the fleet names is up at once */
    bool now;                    /* declared devices of this machine too are planned with what is free at this moment */
    bool floor_set, slack_set;   /* instead of what the fleet says */
    uint64_t floor_bytes, slack_bytes;
};

struct check_plan {
    const struct fleet *fleet;
    struct check_machine *machines;
    size_t n_machines;
    struct check_need *needs;    /* one for each service, in order */
    size_t n_needs;
    struct arena *arena;         /* owns all of it */
    struct check_plan_state *state;
};
/* Works out what every service needs. fleet, store, options and the ledger must outlive it. What is wrong with one service is its `why`; an error is ours. */
int check_plan_new(const struct fleet *f, struct store *s, const struct check_plan_options *o, struct check_plan **ret, struct err *err) BASE_MUST_USE;
struct check_plan *check_plan_free(struct check_plan *p); /* takes NULL; returns NULL */
/* The model at path, which is a file or the first part of a set beside it; free it with model_free. header_only: files that end behind their headers will do. ret_files (may be NULL): its files, to be released.
 * Codes as store_weights_open and model_load. */
int check_model_load(const char *path, bool header_only, struct model **ret, struct store_weights *ret_files, struct err *err) BASE_MUST_USE;
/* What a need takes on device d of its machine (n_devices: the host); NULL when it uses no device. */
const struct fit_use *check_use(const struct check_need *n, size_t d);
/* Whether n goes when others on demand are asked for, and they when it is. */
bool check_takes_turns(const struct check_need *n);
/* What is used of device d while n is up, with all that is up beside it. */
uint64_t check_used_with(const struct check_plan *p, const struct check_need *n, size_t d);
/* Whether n is part of the most that is used of device d at once: of those that take turns the largest is, all others are. */
bool check_counts(const struct check_plan *p, const struct check_need *n, size_t d);
/* Name of device d of a machine: "ROCm0", "RAM". */
const char *check_device_name(const struct check_machine *m, size_t d);
uint64_t check_floor(const struct check_machine *m, size_t d);
/* What is there for the fleet: free before any service. */
uint64_t check_free(const struct check_machine *m, size_t d);

/* ---- contracts ---------------------------------------------------------------------------------------------------- */

/* A rule that spans files or machines. All of them are one table (contracts.c), each with what makes it worth keeping. */
struct check_contract {
    const char *name; /* "limits" */
    const char *says; /* what must hold: one line */
    const char *how;  /* how that is found out */
    const char *why;  /* what happens to people otherwise */
    const char *fix;  /* what to do, where a result has nothing better */
};
/* In the order in which they are proven; NULL behind the last. */
const struct check_contract *check_contract(size_t i);

enum check_verdict {
    CHECK_HOLDS,
    CHECK_BROKEN,
    CHECK_UNPROVEN, /* cannot be seen from here: another host's, not installed yet, another account's */
    CHECK_NONE,     /* does not apply, and the text says why; what was named and is not there is broken, never this */
};

struct check_result {
    const char *contract; /* "payload", "limits", or the file name of a user's */
    const char *subject;  /* "service medium", "model qwen" */
    enum check_verdict verdict;
    const char *text;     /* what was found */
    const char *where;    /* "fleet.yaml:12", "clients/opencode.json:7"; NULL */
    const char *why;      /* of the contract; NULL for a user's */
    const char *fix;      /* broken: what to do */
};

#define CHECK_USER_MS 10000     /* how long one contract of the user's may take, unless told otherwise */
#define CHECK_USER_OUTPUT 65536 /* bytes that it may say; more is broken */
#define CHECK_USER_MAX 64       /* contracts in the folder */

struct check_options {
    struct check_plan_options plan;
    const struct os_dirs *dirs;    /* of this machine: where units of its account are; NULL: no unit is looked for */
    const char *const *only;       /* names of contracts; 0: all */
    size_t n_only;
    uint64_t user_ms;              /* 0: CHECK_USER_MS */
};
/* Proves the contracts; the results and their texts live in arena a. -ENOENT: one of `only` is no contract. Any other error is ours (memory, unreadable store), never a broken contract. Needs the main thread. */
int check_fleet(const struct fleet *f, struct store *s, const struct check_options *o, struct arena *a, struct check_result **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
/* Names of the user's contracts: files of the folder `contracts` beside the fleet file, sorted; whether they may run is another matter. 0 and none without the folder; -EIO: it cannot be read. */
int check_user_names(const struct fleet *f, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
/* The fleet as JSON, as a user's contract gets it on its standard input; p gives what a slot holds. */
int check_fleet_json(const struct fleet *f, const struct check_plan *p, struct buf *out) BASE_MUST_USE;

/* ---- what clients may ask for ---------------------------------------------------------------------------------------- */

/* Tokens of one slot of every service of an endpoint, the smallest: what a conversation may hold. 0: not known. */
uint64_t check_window(const struct check_plan *p, const struct fleet_endpoint *e);
/* What a client is told: its address and, for each endpoint that it uses, window, answer, modalities and efforts. -EINVAL: the fleet does not allow it (no address from there, an answer that does not fit), -ENODATA: a window is not known. */
struct client_plan;
int check_client_plan(const struct check_plan *p, const struct fleet_client *c, struct arena *a, struct client_plan *ret, struct err *err) BASE_MUST_USE;
