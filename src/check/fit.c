/* SPDX-License-Identifier: MIT
 *
 * The contract "fit": what the services of a machine take together leaves each device's floor free and stays within the slack.
 */
#include "check_int.h"

#include <errno.h>

static const char *refusal(const struct check_need *n)
{
    for (size_t i = 0; i < n->result->n_notes; i++)
        if (n->result->notes[i].severity == FIT_REFUSED)
            return n->result->notes[i].text;
    return NULL;
}

/* The service's reason for a floor or slack of its own, behind what was found. */
static const char *with_reason(struct check_results *r, const struct check_need *n, const char *text)
{
    return text && n->service->reason ? arena_printf(r->a, "%s (%s of its own: %s)", text, n->service->floor_set ? "a floor" : "a slack", n->service->reason) : text;
}

/* Where the service itself uses a device, and least is left over the floor; -1 when it uses none. */
static int tightest(const struct check_need *n)
{
    const struct check_machine *m = n->machine;
    int best = -1;
    int64_t least = INT64_MAX;
    for (size_t d = 0; d <= m->n_devices; d++) {
        const struct fit_use *u = check_use(n, d);
        int64_t over = m->left[d] - (int64_t)check_floor(m, d);
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

static int judge(struct check_results *r, const char *subject, const struct check_need *n)
{
    const struct check_machine *m = n->machine;
    const char *why = refusal(n);
    int d = tightest(n);
    char used[UNITS_TEXT], free[UNITS_TEXT], floor[UNITS_TEXT], over[UNITS_TEXT];
    if (why)
        return check_add(r, "fit", subject, CHECK_BROKEN, why);
    if (d < 0)
        return check_add(r, "fit", subject, CHECK_HOLDS, "it takes no memory that is known here");
    size_t at = (size_t)d;
    const char *name = check_device_name(m, at);
    int64_t left = m->left[at] - (int64_t)check_floor(m, at);
    units_show_bytes(m->used[at], used);
    units_show_bytes(check_free(m, at), free);
    units_show_bytes(check_floor(m, at), floor);
    units_show_bytes((uint64_t)(left < 0 ? -left : left), over);
    if (at == m->n_devices && !m->memory_known)
        return check_add(r, "fit", subject, CHECK_UNPROVEN, arena_printf(r->a, "%s of RAM, and how much host '%s' has is not declared", used, m->host->name));
    if (left < 0)
        return check_add(r, "fit", subject, CHECK_BROKEN,
                         with_reason(r, n, arena_printf(r->a, "%s: %s of %s with a floor of %s, %s too much; most of it is %s: 'berth fit' says what each knob would buy", name, used, free, floor, over,
                                      fit_term_text(largest(check_use(n, at))))));
    if (m->slack_bytes && m->gap_bytes > m->slack_bytes) {
        char gap[UNITS_TEXT], slack[UNITS_TEXT];
        return check_add(r, "fit", subject, CHECK_BROKEN, with_reason(r, n, arena_printf(r->a, "a gap of %s between the devices, with a slack of %s: 'berth fit --table split' shows other splits",
                                                                                       units_show_bytes(m->gap_bytes, gap), units_show_bytes(m->slack_bytes, slack))));
    }
    return check_add(r, "fit", subject, CHECK_HOLDS, with_reason(r, n, arena_printf(r->a, check_floor(m, at) ? "tightest on %s: %s of %s, %s left over the floor of %s" : "tightest on %s: %s of %s, %s left", name, used, free, over, floor)));
}

int check_fit(struct check_results *r, const struct check_plan *p)
{
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        const char *subject = arena_printf(r->a, "service %s", n->service->name);
        /* a file that is not there is one fault, and the contract "payload" says it */
        int failed = n->why ? check_add(r, "fit", subject, n->broken && !n->missing ? CHECK_BROKEN : CHECK_UNPROVEN, arena_dup(r->a, str_of(n->why))) : judge(r, subject, n);
        if (failed)
            return failed;
    }
    return 0;
}
