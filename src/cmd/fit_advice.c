/* SPDX-License-Identifier: MIT
 *
 * What berth fit says beside the figures: what one step of each knob would buy where something does not fit, shapes that were recorded as bad, and whether replicas can keep the conversations that they are to serve.
 */
#include "fit_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- knobs ------------------------------------------------------------------------------------------------------------------ */

/* True when the service takes part in what does not fit, so that its knobs can help. */
static bool can_help(const struct check_need *n)
{
    const struct fit_use *u = n->why || n->pool || n->machine->fits ? NULL : check_use(n, (size_t)n->machine->binds);
    return u && u->used;
}

static int knobs_of(const struct check_plan *p, const struct check_need *n, struct fit_knob **ret, size_t *ret_n, struct err *err)
{
    *ret_n = 0;
    return can_help(n) ? fit_knobs(&n->input, n->result, p->arena, ret, ret_n, err) : 0;
}

void fit_add_knobs(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    static const char *const headings[] = {"KNOB", "FROM", "TO", "FREES", ""};
    static const enum os_align aligns[] = {OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    const struct check_machine *m = n->machine;
    struct fit_knob *knobs = NULL;
    size_t count = 0;
    if (knobs_of(v->plan, n, &knobs, &count, NULL) < 0 || !count)
        return;
    const struct fit_use *u = check_use(n, (size_t)m->binds);
    char text[UNITS_TEXT];
    buf_addf(out, "  on %s %s binds with %s; one step of each knob would buy there:\n", check_device_name(m, (size_t)m->binds), fit_term_text(n->result->binds_term),
             units_show_bytes(u->terms[n->result->binds_term].bytes, text));
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    for (size_t i = 0; t && i < count; i++) {
        char freed[FIT_NUMBER];
        os_table_cell(t, OS_PLAIN, "%s", knobs[i].knob);
        os_table_cell(t, OS_PLAIN, "%s", knobs[i].from);
        os_table_cell(t, OS_PLAIN, "%s", knobs[i].to);
        os_table_cell(t, knobs[i].freed_bytes > 0 ? OS_PLAIN : OS_DIM, "%s", fit_signed(knobs[i].freed_bytes, freed));
        os_table_cell(t, OS_GREEN, "%s", knobs[i].fits ? "then it fits" : "");
    }
    fit_table_add(t, v->color, NULL, v->width, out);
}

void fit_put_knobs(const struct fit_view *v, const struct check_need *n, struct json_out *o)
{
    struct fit_knob *knobs = NULL;
    size_t count = 0;
    json_out_arr(o, "knobs");
    if (knobs_of(v->plan, n, &knobs, &count, NULL) < 0)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "knob", knobs[i].knob);
        json_out_cstr(o, "from", knobs[i].from);
        json_out_cstr(o, "to", knobs[i].to);
        json_out_i64(o, "freed", knobs[i].freed_bytes);
        json_out_bool(o, "fits", knobs[i].fits);
        json_out_end(o);
    }
    json_out_end(o);
}

/* ---- shapes known to be bad --------------------------------------------------------------------------------------------------- */

static bool same_shape(const struct check_need *n, const struct fit_shape *b)
{
    const struct fit_shape *s = &n->shape;
    return n->result->n_ctx == b->context && s->slots == b->slots && s->batch == b->batch && s->ubatch == b->ubatch && s->gpu_layers == b->gpu_layers && s->cpu_moe == b->cpu_moe && s->spec == b->spec &&
           s->k_type == b->k_type && s->v_type == b->v_type && fit_same_split(s, b);
}

const char *fit_bad_reason(struct fit_session *s, const struct check_need *n)
{
    struct fit_bad *bad = NULL;
    size_t count = 0;
    if (n->why || n->pool || fit_bad_shapes(s, n, &bad, &count, NULL) < 0)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (same_shape(n, bad[i].shape))
            return bad[i].reason;
    return NULL;
}

/* ---- conversations --------------------------------------------------------------------------------------------------------------- */

/* "3x30000" */
static int read_times(struct str text, uint32_t *ret_n, uint64_t *ret_tokens)
{
    uint64_t n;
    struct str count = str_split(&text, 'x');
    if (!text.ptr || str_to_u64(count, &n) < 0 || n == 0 || n > UINT32_MAX || str_to_u64(text, ret_tokens) < 0 || *ret_tokens == 0)
        return -EINVAL;
    *ret_n = (uint32_t)n;
    return 0;
}

int fit_families_read(const char *text, struct fit_families *ret)
{
    struct str running = str_of(text), kept = str_split(&running, '+');
    *ret = (struct fit_families){.replicas = 0};
    int r = read_times(kept, &ret->families, &ret->family_tokens);
    return r == 0 && running.ptr ? read_times(running, &ret->running, &ret->running_tokens) : r;
}

/* The planned need of a service, or NULL. */
static const struct check_need *planned(const struct check_plan *p, const struct fleet_service *s)
{
    const struct check_need *n = &p->needs[s - p->fleet->services];
    return n->why ? NULL : n;
}

/* What an endpoint's replicas can keep; false when there is nothing to say. */
static bool working_set(const struct fit_view *v, const struct fleet_endpoint *e, struct fit_working_set *ret)
{
    struct fit_families f = *v->families;
    f.replica_tokens = UINT64_MAX;
    for (size_t i = 0; i < e->n_services; i++) {
        const struct check_need *n = planned(v->plan, e->services[i]);
        if (!n)
            return false;
        f.replica_tokens = n->result->n_ctx < f.replica_tokens ? n->result->n_ctx : f.replica_tokens;
    }
    f.replicas = (uint32_t)e->n_services;
    return fit_working_set(&f, v->plan->arena, ret, NULL) == 0;
}

void fit_add_families(const struct fit_view *v, struct buf *out)
{
    for (size_t i = 0; v->families && i < v->plan->fleet->n_endpoints; i++) {
        const struct fleet_endpoint *e = &v->plan->fleet->endpoints[i];
        struct fit_working_set w;
        if (!working_set(v, e, &w))
            continue;
        buf_addf(out, "\n%sendpoint %s%s  %s", os_style_on(OS_BOLD, v->color), e->name, os_style_off(OS_BOLD, v->color), os_style_on(OS_YELLOW, v->color && w.wall));
        cmd_add_wrapped_within(out, str_of(w.text), strlen("endpoint   ") + strlen(e->name), 2, "", v->width);
        buf_addf(out, "%s\n", os_style_off(OS_YELLOW, v->color && w.wall));
    }
}

void fit_put_families(const struct fit_view *v, struct json_out *o)
{
    json_out_arr(o, "conversations");
    for (size_t i = 0; v->families && i < v->plan->fleet->n_endpoints; i++) {
        const struct fleet_endpoint *e = &v->plan->fleet->endpoints[i];
        struct fit_working_set w;
        if (!working_set(v, e, &w))
            continue;
        json_out_obj(o, NULL);
        json_out_cstr(o, "endpoint", e->name);
        json_out_u64(o, "need_tokens", w.need_tokens);
        json_out_u64(o, "have_tokens", w.have_tokens);
        json_out_u64(o, "kept_families", w.kept_families);
        json_out_u64(o, "replicas_needed", w.replicas_needed);
        json_out_bool(o, "wall", w.wall);
        json_out_cstr(o, "text", w.text);
        json_out_end(o);
    }
    json_out_end(o);
}
