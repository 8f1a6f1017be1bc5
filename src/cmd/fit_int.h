/* SPDX-License-Identifier: MIT
 *
 * Parts of `berth fit`: how a plan is shown (fit_text.c with bars of fit_bar.c, fit_svg.c, fit_json.c), which shapes are near (fit_table.c), how a better one is found (fit_solve.c), and how the plan learns from an engine (fit_learn.c).
 */
#pragma once

#include "cmd_int.h"

#include <check/check.h>

/* ---- session -------------------------------------------------------------------------------------------------------------- */

struct json;
struct fit_session {
    const struct fleet *fleet;
    struct os_dirs dirs;
    struct store *store;
    struct ledger *ledger;   /* NULL: there is none */
    bool unusable;           /* there is one, but not for us; that was said */
    struct json *status;     /* of the fleet's supervisor; NULL: it is not up */
    pid_t *own;
    size_t n_own;
    struct check_plan_options options; /* for the caller to complete before fit_session_plan */
    struct check_plan *plan;
};
/* All return an exit code and have said why. Close it in any case. */
int fit_session_open(struct fit_session *s, const struct fleet *f);
void fit_session_close(struct fit_session *s);
int fit_session_ledger(struct fit_session *s, bool make); /* opens it when it is there, or makes it */
int fit_session_plan(struct fit_session *s);              /* a new plan in place of an older one */
struct check_need *fit_session_need(const struct fit_session *s, const char *service);

/* ---- what is shown ------------------------------------------------------------------------------------------------------- */

/* Terms that a bar does not tell apart. */
enum fit_group { FIT_G_WEIGHTS, FIT_G_KV, FIT_G_STATE, FIT_G_COMPUTE, FIT_G_DRAFT, FIT_G_PROJECTOR, FIT_G_PROMPTS, FIT_G_DRIVER, FIT_G_SHARED /* of the host: what devices with a shared pool take */, FIT_GROUPS_SHOWN };
struct fit_group_look {
    const char *name, *fill; /* fill: in a picture */
    unsigned color;          /* of the terminal's 256 */
    char letter;             /* where there is no colour */
    bool dark;               /* text on it is white */
};
extern const struct fit_group_look fit_looks[FIT_GROUPS_SHOWN];

/* What is shown of a plan: all of it, or one service with the machine that it runs on. */
struct fit_view {
    const struct check_plan *plan;
    const struct fleet_service *only; /* NULL: all */
    const struct fit_families *families; /* asked about; replicas are the endpoints'; NULL: not asked */
    struct fit_session *session;
    bool color;
    unsigned width;
};
bool fit_view_machine(const struct fit_view *v, const struct check_machine *m);
bool fit_view_need(const struct fit_view *v, const struct check_need *n);
/* True when all that is shown fits and nothing is wrong; what cannot be known is no failure. */
bool fit_view_fits(const struct fit_view *v);
/* Sums of a machine's device d (n_devices: the host) by group, over all its services. */
void fit_group_sums(const struct check_plan *p, const struct check_machine *m, size_t d, uint64_t ret[FIT_GROUPS_SHOWN]);
/* How what is used of a device is known: as its least known part. */
enum fit_known fit_known_use(const struct fit_use *u);
enum fit_known fit_known_device(const struct check_plan *p, const struct check_machine *m, size_t d);
char fit_mark(enum fit_known k);
/* Devices of a machine that are shown: the host's memory too, unless it is not known and nothing uses it. */
bool fit_shows_device(const struct check_machine *m, size_t d);

#define FIT_NUMBER 32
const char *fit_gib(uint64_t bytes, char out[FIT_NUMBER]);   /* "25.85" */
const char *fit_signed(int64_t bytes, char out[FIT_NUMBER]); /* "-1.20 GiB" */
/* "2 slots of 131,072 tokens (262,144 in all), f16 KV, ubatch 512, split 36,29, draft-dflash". */
void fit_shape_text(const struct check_need *n, struct buf *out);
/* "fits: ..." or "does not fit: ..."; one line without its end. */
void fit_verdict(const struct check_machine *m, struct buf *out);

/* One bar, as wide as width columns. */
void fit_bar(const struct fit_view *v, const struct check_machine *m, size_t d, unsigned width, struct buf *out);
void fit_legend(const struct fit_view *v, struct buf *out);

void fit_text(const struct fit_view *v, struct buf *out);
/* Bytes of what a full slot of a need that was predicted is saved in; 0 when that is not known. */
uint64_t fit_saved_slot(const struct check_need *n);
void fit_svg(const struct fit_view *v, struct buf *out);
struct json_out;
void fit_json(const struct fit_view *v, struct json_out *o);
/* ---- fit_advice.c ---- */
void fit_add_knobs(const struct fit_view *v, const struct check_need *n, struct buf *out);
void fit_put_knobs(const struct fit_view *v, const struct check_need *n, struct json_out *o);
/* Why the need's own shape was recorded as bad, or NULL. */
const char *fit_bad_reason(struct fit_session *s, const struct check_need *n);
/* "3x30000" or "3x30000+1x50000"; -EINVAL. */
int fit_families_read(const char *text, struct fit_families *ret) BASE_MUST_USE;
void fit_add_families(const struct fit_view *v, struct buf *out);
void fit_put_families(const struct fit_view *v, struct json_out *o);

/* A table's text after two spaces on each line; below (may be NULL): what is said under each row, or NULL. Takes the table; one that failed marks out as failed. */
void fit_table_add(struct os_table *t, bool color, const char *const *below, unsigned width, struct buf *out);

/* ---- questions ----------------------------------------------------------------------------------------------------------------- */

struct fit_question {
    const struct cmd *c;
    const struct cmd_args *a;
    bool json;
    const struct fleet_service *only; /* NULL: all */
    struct check_need *need;          /* of questions about one service */
    struct fit_view view;
};
/* Each answers on stdout and returns the exit code. */
int fit_solve_show(struct fit_session *s, const struct fit_question *q);
int fit_table_show(struct fit_session *s, const struct fit_question *q);
int fit_measure(struct fit_session *s, const struct fit_question *q); /* s->plan is then a new one */
int fit_observe(struct fit_session *s, const struct fit_question *q);
int fit_explain(struct fit_session *s, const struct fit_question *q);
int fit_record_bad(struct fit_session *s, const struct fit_question *q);
int fit_forget_bad(struct fit_session *s, const struct fit_question *q);
/* Prints and frees. */
int fit_print_json(struct json_out *o);

/* Shapes of a need's model and build that were recorded as bad. Memory is the plan's. */
int fit_bad_shapes(struct fit_session *s, const struct check_need *n, struct fit_bad **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;

/* A service with another shape, as a fleet file says it; strings are a's. Flags in args that the shape replaces are taken out. */
int fit_service_of(const struct fleet_service *s, const struct fit_shape *shape, const struct fit_result *r, struct arena *a, struct fleet_service *ret, struct err *err) BASE_MUST_USE;
bool fit_same_split(const struct fit_shape *a, const struct fit_shape *b);
/* The service as a part of a fleet file, each line after indent spaces. */
void fit_service_yaml(const struct fleet_service *s, unsigned indent, struct buf *out);
/* A word of a command line as a shell would want it. */
void fit_shell_word(struct buf *out, const char *word);
