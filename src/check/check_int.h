/* SPDX-License-Identifier: MIT
 *
 * Private parts of check. A plan is made in three steps: machines (fit_machine.c), what each service's files and runtime are (fit_need.c), and the predictions, which depend on one another because services share devices (fit_plan.c).
 */
#pragma once

#include "check.h"

/* Results grow in the arena by doubling; what is left behind dies with it. */
struct check_results {
    struct arena *a;
    struct check_result *list;
    size_t n, cap;
};
/* 0 or -ENOMEM, also when subject or text is NULL for want of memory. */
int check_add(struct check_results *r, const char *contract, const char *subject, enum check_verdict verdict, const char *text) BASE_MUST_USE;

static inline bool check_is_here(const struct fleet_host *h)
{
    return h->ssh == NULL;
}

/* A model's header, read once for all services that serve it. */
struct check_model {
    const char *path;
    struct model *model; /* NULL: it cannot be read, and why */
    struct store_weights files; /* of the model, open when there is a ledger: its measurements go by their headers */
    const char *why;
    int code;
    struct check_model *next;
};
/* A runtime of the fleet, looked up once. */
struct check_runtime {
    const struct fleet_runtime *runtime;
    struct store_runtime found;
    bool installed;
    const char *version;
};

struct check_plan_state {
    struct store *store;
    struct check_plan_options options;
    struct check_model *models;
    struct check_runtime *runtimes; /* one for each of the fleet's */
    bool hw_read;
    struct hw hw;                 /* this machine, when a service runs on it */
    uint64_t own_devices[HW_DEVICES_MAX], own_host; /* what the fleet's own engines hold */
};

/* Appends a line that the machine's figures are to be read with; one too many is left out. */
void check_machine_note(struct check_plan *p, struct check_machine *m, const char *fmt, ...) BASE_PRINTF(3, 4);
/* Fills in a machine; which of its services need devices is known from the declarations alone. */
int check_machine_init(struct check_plan *p, struct check_machine *m, const struct fleet_host *h, struct err *err) BASE_MUST_USE;
/* Everything but the prediction; what is wrong becomes n->why. */
int check_need_init(struct check_plan *p, struct check_need *n, struct err *err) BASE_MUST_USE;
/* The service's reason, kept: 0 or -ENOMEM. */
int check_give_up(struct check_plan *p, struct check_need *n, bool broken, struct err *err, const char *fmt, ...) BASE_PRINTF(5, 6);
/* As check_need_init, for an engine of kind vllm. */
int check_vllm_init(struct check_plan *p, struct check_need *n, struct err *err) BASE_MUST_USE;
/* What the fleet's own engines hold here, and the machine itself. */
int check_hw(struct check_plan *p, struct err *err) BASE_MUST_USE;

/* The contract "fit" of every service. */
int check_fit(struct check_results *r, const struct check_plan *p) BASE_MUST_USE;
