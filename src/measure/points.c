/* SPDX-License-Identifier: MIT
 *
 * Where to measure: a rectangle of ubatch and context with the shape itself in it, its four corners for the coefficients and its middle to check them.
 */
#include "measure_int.h"

#define CONTEXT_STEP 256u /* the engine rounds a slot's context up to it */
#define UB_LEAST 32u      /* below it the engine computes in other ways */

static uint32_t round_ub(const struct fit_input *in, uint32_t ub)
{
    uint32_t slots = in->shape->slots ? in->shape->slots : 1;
    uint32_t step = in->target->needs_repeatable_batch ? slots : 1; /* others round up to whole sequences by themselves */
    uint32_t rounded = ub / step * step;
    return rounded < slots ? slots : rounded;
}

/* Up, as the engine does it: of each slot's share, or of the whole when slots share it. */
static uint32_t round_context(const struct fit_input *in, uint64_t context)
{
    uint64_t step = in->shape->unified ? CONTEXT_STEP : (uint64_t)CONTEXT_STEP * (in->shape->slots ? in->shape->slots : 1);
    uint64_t rounded = (context + step - 1) / step * step;
    return rounded > UINT32_MAX ? UINT32_MAX / (uint32_t)step * (uint32_t)step : (uint32_t)rounded;
}

static void order(uint32_t v[2])
{
    if (v[0] > v[1]) {
        uint32_t t = v[0];
        v[0] = v[1];
        v[1] = t;
    }
}

void measure_bracket_first(const struct fit_input *in, const struct fit_result *r, const struct measure_range *range, struct measure_bracket *ret)
{
    uint32_t ub = r->n_ubatch, context = r->n_ctx;
    ret->ub[0] = range->ub_min ? range->ub_min : ub / 2;
    ret->ub[1] = range->ub_max ? range->ub_max : ub;
    if (!range->ub_min && ret->ub[0] < UB_LEAST) { /* too small to halve: upwards */
        ret->ub[0] = ub;
        ret->ub[1] = range->ub_max ? range->ub_max : ub * 2;
    }
    order(ret->ub);
    for (size_t i = 0; i < 2; i++)
        ret->ub[i] = round_ub(in, ret->ub[i]);
    ret->context[0] = round_context(in, range->context_min ? range->context_min : context / 2);
    ret->context[1] = round_context(in, range->context_max ? range->context_max : context);
    order(ret->context);
    if (ret->context[0] < ret->ub[1] || ret->context[0] == ret->context[1]) { /* a context below ubatch cuts it */
        uint32_t most = ret->context[1];
        ret->context[0] = round_context(in, most > ret->ub[1] ? most : ret->ub[1]);
        ret->context[1] = round_context(in, (uint64_t)ret->context[0] * 2);
    }
}

/* Half the way from v to target. */
static uint32_t nearer(uint32_t v, uint32_t target)
{
    return v < target ? target - (target - v) / 2 : target + (v - target) / 2;
}

bool measure_bracket_narrow(const struct fit_input *in, const struct fit_result *r, bool pin, struct measure_bracket *b)
{
    struct measure_bracket n;
    for (size_t i = 0; i < 2; i++) {
        n.ub[i] = round_ub(in, pin ? r->n_ubatch : nearer(b->ub[i], r->n_ubatch));
        n.context[i] = round_context(in, nearer(b->context[i], r->n_ctx));
    }
    order(n.ub);
    order(n.context);
    bool changed = n.ub[0] != b->ub[0] || n.ub[1] != b->ub[1] || n.context[0] != b->context[0] || n.context[1] != b->context[1];
    *b = n;
    return changed;
}

void measure_bracket_middle(const struct fit_input *in, const struct measure_bracket *b, uint32_t *ret_ub, uint32_t *ret_context)
{
    *ret_ub = round_ub(in, b->ub[0] + (b->ub[1] - b->ub[0]) / 2);
    *ret_context = round_context(in, b->context[0] + ((uint64_t)b->context[1] - b->context[0]) / 2);
}
