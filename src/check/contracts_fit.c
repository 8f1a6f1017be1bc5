/* SPDX-License-Identifier: MIT
 *
 * Contracts about memory and about what the engine makes of a shape, all from one plan. Rules of fit are told apart by their names: those of speculation, of the prompt cache, and the rest.
 */
#include "check_int.h"

#include <errno.h>
#include <string.h>

/* ---- rules -------------------------------------------------------------------------------------------------------- */

enum topic { TOPIC_SHAPE, TOPIC_DRAFTER, TOPIC_PROMPT_CACHE };

/* Rules that break a contract also where the engine goes on: it would not do what was declared. The others are advice, and `berth fit` shows it. */
static const struct {
    const char *rule;
    enum topic topic;
} named[] = {
    {"spec-two", TOPIC_DRAFTER},          {"drafter-missing", TOPIC_DRAFTER},    {"drafter-kind", TOPIC_DRAFTER},      {"mtp-nextn", TOPIC_DRAFTER},
    {"mtp-table", TOPIC_DRAFTER},         {"draft-depth", TOPIC_DRAFTER},        {"dspark-confidence", TOPIC_DRAFTER}, {"draft-vocab", TOPIC_DRAFTER},
    {"override-unmatched", TOPIC_SHAPE},  {"override-kernel", TOPIC_SHAPE},      {"prompt-cache-small", TOPIC_PROMPT_CACHE}, {"prompt-cache-large", TOPIC_PROMPT_CACHE},
};

/* The first note of a topic that breaks its contract, or NULL. */
static const char *broken_rule(const struct check_need *n, enum topic t)
{
    for (size_t i = 0; i < n->result->n_notes; i++) {
        const struct fit_note *note = &n->result->notes[i];
        size_t k = 0;
        while (k < BASE_COUNT(named) && strcmp(named[k].rule, note->rule) != 0)
            k++;
        enum topic of = k < BASE_COUNT(named) ? named[k].topic : TOPIC_SHAPE;
        if (of == t && (note->severity == FIT_REFUSED || k < BASE_COUNT(named)))
            return note->text;
    }
    return NULL;
}

/* Which contract tells why a service has no plan: what is wrong with it is its shape's, what is only not known is its memory's. */
enum teller { TELLS_NOTHING, TELLS_WRONG, TELLS_UNKNOWN };

static int no_plan(struct check_run *c, const struct check_need *n, const char *subject, const char *at, enum teller t)
{
    bool here = check_is_here(n->service->host);
    if (n->unreadable)
        return check_found(c, CHECK_NONE, subject, at, "its model cannot be read: see contract model");
    if (n->missing && here)
        return check_found(c, CHECK_NONE, subject, at, "its model is not here: see contract payload");
    if (n->broken && t != TELLS_WRONG)
        return check_found(c, CHECK_NONE, subject, at, "it cannot be planned: see contract shape");
    if (!n->broken && t != TELLS_UNKNOWN)
        return check_found(c, CHECK_NONE, subject, at, "it cannot be planned: see contract fit");
    return check_found(c, n->broken ? CHECK_BROKEN : CHECK_UNPROVEN, subject, at, "%s", n->why);
}

static bool is_llama(const struct check_need *n)
{
    return strcmp(n->service->runtime->engine, "llama.cpp") == 0;
}

/* Walks the services: what has a plan is judged. */
static int each(struct check_run *c, enum teller t, int (*judge)(struct check_run *c, const struct check_need *n, const char *subject, const char *at))
{
    int r = check_want_plan(c);
    for (size_t i = 0; r == 0 && i < c->plan->n_needs; i++) {
        const struct check_need *n = &c->plan->needs[i];
        const char *subject = check_subject(c, "service", n->service->name), *at = check_at(c, n->service->pos);
        if (n->why && strcmp(n->service->runtime->engine, "generic") == 0)
            r = check_found(c, t == TELLS_UNKNOWN ? CHECK_UNPROVEN : CHECK_NONE, subject, at, "%s", n->why);
        else
            r = n->why ? no_plan(c, n, subject, at, t) : judge(c, n, subject, at);
    }
    return r;
}

/* ---- legality ------------------------------------------------------------------------------------------------------- */

static int judge_drafter(struct check_run *c, const struct check_need *n, const char *subject, const char *at)
{
    const struct fleet_shape *h = &n->service->shape;
    const char *why = broken_rule(n, TOPIC_DRAFTER);
    if (why)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", why);
    if (h->n_speculative == 0)
        return check_found(c, CHECK_NONE, subject, at, "it does not draft");
    return check_found(c, CHECK_HOLDS, subject, at, "%s%s%s", h->speculative[0], n->drafter ? " by " : "", n->drafter ? n->drafter->arch : "");
}

int check_drafter(struct check_run *c)
{
    return each(c, TELLS_NOTHING, judge_drafter);
}

static int judge_shape(struct check_run *c, const struct check_need *n, const char *subject, const char *at)
{
    const char *why = broken_rule(n, TOPIC_SHAPE);
    char slot[UNITS_TEXT];
    if (why)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", why);
    return check_found(c, CHECK_HOLDS, subject, at, "%u slot%s of %s tokens", n->service->shape.slots, n->service->shape.slots == 1 ? "" : "s", units_show_count(n->result->n_ctx_seq, slot));
}

int check_shape(struct check_run *c)
{
    return each(c, TELLS_WRONG, judge_shape);
}

static int judge_prompts(struct check_run *c, const struct check_need *n, const char *subject, const char *at)
{
    const struct fleet_shape *h = &n->service->shape;
    const char *why = broken_rule(n, TOPIC_PROMPT_CACHE);
    char cap[UNITS_TEXT];
    if (!is_llama(n))
        return check_found(c, CHECK_NONE, subject, at, "an engine of another kind");
    if (h->prompt_cache_set && h->prompt_cache_bytes == 0)
        return check_found(c, CHECK_NONE, subject, at, "off");
    if (!h->prompt_cache_set)
        return check_found(c, CHECK_NONE, subject, at, "none is declared%s", why ? "; what berth gives by itself keeps short conversations only" : "");
    if (why)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", why);
    return check_found(c, CHECK_HOLDS, subject, at, "%s hold a full slot", units_show_bytes(h->prompt_cache_bytes, cap));
}

int check_prompt_cache(struct check_run *c)
{
    return each(c, TELLS_NOTHING, judge_prompts);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

/* The service's reason for a floor or slack of its own, behind what was found. */
static const char *reason_of(const struct check_run *c, const struct check_need *n, bool own)
{
    return own && n->service->reason ? arena_printf(c->a, " (of its own: %s)", n->service->reason) : "";
}

/* What is left of device d over its floor while n is up. */
static int64_t over_floor(const struct check_plan *p, const struct check_need *n, size_t d)
{
    return (int64_t)check_free(n->machine, d) - (int64_t)check_used_with(p, n, d) - (int64_t)check_floor(n->machine, d);
}

/* Where the service itself uses a device, and least is left over the floor; -1 when it uses none. */
static int tightest(const struct check_plan *p, const struct check_need *n)
{
    const struct check_machine *m = n->machine;
    int best = -1;
    int64_t least = INT64_MAX;
    for (size_t d = 0; d <= m->n_devices; d++) {
        const struct fit_use *u = check_use(n, d);
        int64_t over = over_floor(p, n, d);
        if (u && u->used && over < least) {
            least = over;
            best = (int)d;
        }
    }
    return best;
}

static enum fit_term largest(const struct fit_use *u)
{
    enum fit_term best = FIT_WEIGHTS;
    for (int t = 0; t < FIT_EXTRA; t++)
        if (u->terms[t].bytes > u->terms[best].bytes)
            best = (enum fit_term)t;
    return best;
}

static int judge_fit(struct check_run *c, const struct check_need *n, const char *subject, const char *at)
{
    const struct check_machine *m = n->machine;
    int d = tightest(c->plan, n);
    char used[UNITS_TEXT], free[UNITS_TEXT], floor[UNITS_TEXT], over[UNITS_TEXT];
    if (d < 0)
        return check_found(c, CHECK_HOLDS, subject, at, "it takes no memory that is known here");
    size_t on = (size_t)d;
    const char *name = check_device_name(m, on), *reason = reason_of(c, n, n->service->floor_set), *turns = check_takes_turns(n) ? ", in turns with others on demand" : "";
    int64_t left = over_floor(c->plan, n, on);
    units_show_bytes(check_used_with(c->plan, n, on), used);
    units_show_bytes(check_free(m, on), free);
    units_show_bytes(check_floor(m, on), floor);
    units_show_bytes((uint64_t)(left < 0 ? -left : left), over);
    if (!reason)
        return err_nomem(c->err);
    if (on == m->n_devices && !m->memory_known)
        return check_found(c, CHECK_UNPROVEN, subject, at, "%s of RAM, and how much host '%s' has is not declared", used, m->host->name);
    if (left < 0)
        return check_found(c, CHECK_BROKEN, subject, at, "%s: %s of %s with a floor of %s%s, %s too much; most of it is %s", name, used, free, floor, reason, over, fit_term_text(largest(check_use(n, on))));
    if (check_floor(m, on))
        return check_found(c, CHECK_HOLDS, subject, at, "tightest on %s: %s of %s, %s left over the floor of %s%s%s", name, used, free, over, floor, reason, turns);
    return check_found(c, CHECK_HOLDS, subject, at, "tightest on %s: %s of %s, %s left%s%s", name, used, free, over, reason, turns);
}

int check_fit(struct check_run *c)
{
    return each(c, TELLS_UNKNOWN, judge_fit);
}

/* Why services of a machine have a slack of their own, behind what was found. */
static const char *slack_reasons(const struct check_run *c, const struct check_machine *m)
{
    const char *all = "";
    for (size_t i = 0; all && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        if (s->host == m->host && s->slack_bytes)
            all = arena_printf(c->a, "%s (service '%s' has its own: %s)", all, s->name, s->reason);
    }
    return all;
}

int check_slack(struct check_run *c)
{
    int r = check_want_plan(c);
    for (size_t i = 0; r == 0 && i < c->plan->n_machines; i++) {
        const struct check_machine *m = &c->plan->machines[i];
        const char *subject = check_subject(c, "host", m->host->name), *at = check_at(c, m->host->pos);
        char gap[UNITS_TEXT], slack[UNITS_TEXT];
        const char *why = slack_reasons(c, m);
        if (!why)
            return err_nomem(c->err);
        units_show_bytes(m->gap_bytes, gap);
        units_show_bytes(m->slack_bytes, slack);
        if (!m->slack_bytes)
            r = check_found(c, CHECK_NONE, subject, at, "no slack is declared: any gap will do");
        else if (m->n_devices < 2)
            r = check_found(c, CHECK_NONE, subject, at, "%s", m->n_devices ? "it has one device" : "it has no device");
        else if (!m->planned)
            r = check_found(c, CHECK_NONE, subject, at, "nothing that runs there can be planned");
        else if (m->gap_bytes > m->slack_bytes)
            r = check_found(c, CHECK_BROKEN, subject, at, "a gap of %s between its devices, with a slack of %s%s", gap, slack, why);
        else
            r = check_found(c, CHECK_HOLDS, subject, at, "a gap of %s, with a slack of %s%s", gap, slack, why);
    }
    return r;
}
