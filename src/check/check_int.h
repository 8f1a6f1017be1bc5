/* SPDX-License-Identifier: MIT
 *
 * Private parts of check. A plan is made in three steps: machines (fit_machine.c), what each service's files and runtime are (fit_need.c), and the predictions, which depend on one another because services share devices (fit_plan.c).
 * Contracts are a table (contracts.c); each is a function over the whole fleet that adds one result for each subject. They share what was read: the plan with all headers, the units that are installed.
 */
#pragma once

#include "check.h"

/* Units of berth's form that are installed on this machine, in the folders that systemd reads for the fleet's scope. */
struct check_unit {
    const char *path, *name; /* the file; "berth-home-medium.service" */
    const char *fleet, *service; /* whose it is; NULL: no file of berth's */
    const char *port;        /* that its command line names, as text; NULL */
};

/* One run over the contracts. Results grow in the arena; what is left behind dies with it. */
struct check_run {
    struct arena *a;
    const struct fleet *f;
    struct store *s;
    const struct check_options *o;
    struct check_plan *plan;      /* made when the first contract asks for it */
    const struct check_contract *now; /* that is being proven */
    const char *fix;              /* for the next result alone; NULL: the contract's */
    struct check_result *list;
    size_t n, cap;
    bool units_read;
    const struct check_unit *units;
    size_t n_units;
    struct check_page *pages;           /* one for each document */
    struct check_file_of_client *files; /* one for each client of the fleet; NULL: not read yet */
    struct err *err;
};
/* Adds a result. subject and where may be NULL for want of memory. 0 or -ENOMEM. */
int check_found(struct check_run *c, enum check_verdict v, const char *subject, const char *where, const char *fmt, ...) BASE_PRINTF(5, 6) BASE_MUST_USE;
/* "service medium"; "fleet.yaml:12". In the arena; NULL without memory. */
const char *check_subject(const struct check_run *c, const char *kind, const char *name);
const char *check_where(const struct check_run *c, const char *file, unsigned line);
const char *check_at(const struct check_run *c, struct fleet_pos pos);
/* 0 and c->plan is there. */
int check_want_plan(struct check_run *c) BASE_MUST_USE;
int check_want_units(struct check_run *c) BASE_MUST_USE;
/* What is wrong with a regular file that somebody named: NULL when it is there, readable and not empty. */
const char *check_file_wrong(const struct check_run *c, const char *path);
/* A path as people wrote it: relative when it is in the fleet file's folder. */
const char *check_short(const struct check_run *c, const char *path);

/* A line of the table: the contract and what proves it. */
struct check_entry {
    struct check_contract contract;
    int (*prove)(struct check_run *c);
};

/* contracts_model.c */
int check_file(struct check_run *c) BASE_MUST_USE;
int check_runtime(struct check_run *c) BASE_MUST_USE;
int check_payload(struct check_run *c) BASE_MUST_USE;
int check_model_header(struct check_run *c) BASE_MUST_USE;
int check_template(struct check_run *c) BASE_MUST_USE;
int check_projector(struct check_run *c) BASE_MUST_USE;
int check_argv(struct check_run *c) BASE_MUST_USE;
/* The command line of a service, in the arena. -EINVAL: its shape cannot be said. */
int check_command(struct check_run *c, const struct fleet_service *s, const char *const **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
/* contracts_fit.c */
int check_drafter(struct check_run *c) BASE_MUST_USE;
int check_shape(struct check_run *c) BASE_MUST_USE;
int check_fit(struct check_run *c) BASE_MUST_USE;
int check_slack(struct check_run *c) BASE_MUST_USE;
int check_prompt_cache(struct check_run *c) BASE_MUST_USE;
/* contracts_host.c */
int check_ports(struct check_run *c) BASE_MUST_USE;
int check_address(struct check_run *c) BASE_MUST_USE;
int check_open(struct check_run *c) BASE_MUST_USE;
int check_published(struct check_run *c) BASE_MUST_USE;
int check_secrets(struct check_run *c) BASE_MUST_USE;
/* contracts_reach.c */
int check_reach(struct check_run *c) BASE_MUST_USE;
int check_firewall(struct check_run *c) BASE_MUST_USE;
/* The host that the router runs on; NULL: this machine, which is no host of the fleet. */
const struct fleet_host *check_router_host(const struct fleet *f);
/* Where a client asks, with the path of the API. -EINVAL: there is no address from where it is. */
int check_client_url(const struct fleet *f, const struct fleet_client *c, struct arena *a, const char **ret, struct err *err) BASE_MUST_USE;
/* Host and port of an address as a fleet file has it. */
int check_url_host(const char *url, struct arena *a, const char **ret_host, uint16_t *ret_port) BASE_MUST_USE;
/* contracts_client.c */
int check_clients(struct check_run *c) BASE_MUST_USE;
int check_limits(struct check_run *c) BASE_MUST_USE;
int check_modalities(struct check_run *c) BASE_MUST_USE;
int check_reasoning(struct check_run *c) BASE_MUST_USE;
/* contracts_unit.c */
int check_names(struct check_run *c) BASE_MUST_USE;
int check_unit_text(struct check_run *c) BASE_MUST_USE;
int check_deployed(struct check_run *c) BASE_MUST_USE;
/* contracts_doc.c */
int check_flags(struct check_run *c) BASE_MUST_USE;
int check_links(struct check_run *c) BASE_MUST_USE;
/* contracts_user.c: the folder of the user's contracts; those of them that were asked for, run. */
struct check_user_folder {
    const char *path;
    bool there;
    const char *why;            /* NULL, or why it cannot be read; then there are no names */
    const char *const *names, *const *strange; /* files that are contracts, and those under names that none can have; sorted */
    size_t n, n_strange;
};
/* In arena a. Only want of memory is an error. */
int check_user_look(const struct fleet *f, struct arena *a, struct check_user_folder *ret, struct err *err) BASE_MUST_USE;
int check_own_contracts(struct check_run *c) BASE_MUST_USE;
int check_users(struct check_run *c) BASE_MUST_USE;

/* True when some service on this machine uses the thing; *ret_elsewhere: one on another. */
bool check_used_here(const struct fleet *f, const struct fleet_model *m, const struct fleet_runtime *rt, bool *ret_elsewhere);

/* Every address of a host. */
static inline bool check_is_wildcard(struct str ip)
{
    return str_eq_c(ip, "0.0.0.0") || str_eq_c(ip, "::");
}

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
    int code;         /* of the look-up, and why, when it is not */
    const char *why;
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

/* The header of one file of a model, read once for the whole plan. */
int check_header(struct check_plan *p, const struct fleet_model *m, const char *file, const struct check_model **ret, struct err *err) BASE_MUST_USE;
