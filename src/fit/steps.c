/* SPDX-License-Identifier: MIT
 *
 * What knobs, tables and the solver share: an input prepared for many small changes, and the units in which splits and experts are counted.
 */
#include "solve_int.h"

int fit_steps_new(const struct fit_input *in, struct arena *scratch, struct fit_steps **ret, struct err *err)
{
    struct fit_steps *x = arena_alloc(scratch, 1, sizeof(*x));
    if (!x)
        return err_nomem(err);
    struct fit_input without = *in;
    without.drafter = NULL;
    x->in = in;
    const struct fit_input *const both[2] = {in, &without};
    for (int i = 0; i < 2; i++) {
        int r = fit_prepare(both[i], scratch, &x->prepared[i], err);
        if (r == 0)
            r = fit_traffic_of(x->prepared[i], &x->traffic[i], err);
        if (r < 0)
            return r;
    }
    *ret = x;
    return 0;
}

static unsigned variant(const struct fit_steps *x, const struct fit_shape *s)
{
    return fit_drafts(x->in, x->in->shape) && !(s->spec & FIT_SPEC_CONTEXT) ? 1 : 0;
}

int fit_steps_predict(struct fit_steps *x, const struct fit_shape *s, struct arena *a, struct err *err)
{
    return fit_predict_prepared(x->prepared[variant(x, s)], s, a, &x->result, err);
}

double fit_steps_speed(const struct fit_steps *x, const struct fit_shape *s)
{
    struct fit_speed speed;
    unsigned v = variant(x, s);
    uint32_t seq = x->result.n_ctx_seq;
    fit_speed_prepared(x->prepared[v], &x->traffic[v], s, &x->result, seq < FIT_SOLVE_DEPTH ? seq : FIT_SOLVE_DEPTH, &speed);
    return speed.decode_tok_s;
}

bool fit_drafts(const struct fit_input *in, const struct fit_shape *s)
{
    return (s->spec & FIT_SPEC_CONTEXT) && (in->drafter || in->target->mtp);
}

uint32_t fit_declared_sum(const struct fit_shape *s, uint32_t n_layers)
{
    double sum = 0;
    for (size_t i = 0; i < s->n_split; i++) {
        if (!(s->split[i] >= 0 && s->split[i] <= 2.0 * MODEL_LAYERS_MAX) || s->split[i] != (double)(uint32_t)s->split[i])
            return 0;
        sum += s->split[i];
    }
    return sum + 1 >= n_layers && sum <= 2.0 * MODEL_LAYERS_MAX ? (uint32_t)sum : 0;
}

uint32_t fit_whole_shares(const struct fit_input *in, const struct fit_result *r, uint32_t *ret)
{
    uint32_t placed = 0;
    for (size_t d = 0; d < in->n_devices; d++) {
        ret[d] = r->use[d].n_layers;
        placed += ret[d];
    }
    uint32_t sum = in->shape->n_split <= in->n_devices ? fit_declared_sum(in->shape, placed) : 0;
    if (sum == 0)
        return placed;
    for (size_t d = 0; d < in->n_devices; d++)
        ret[d] = d < in->shape->n_split ? (uint32_t)in->shape->split[d] : 0;
    return sum;
}

uint32_t fit_next_moe(const struct fit_prepared *p, uint32_t cpu_moe)
{
    const struct fit_placed *pm = p->target;
    for (uint32_t il = cpu_moe; il < pm->m->n_layer; il++)
        for (unsigned part = 0; part < FIT_GROUPS; part++)
            if ((part & FIT_MOE) && pm->slots[il].part[part].bytes[FIT_CLASS_PLAIN] > 0)
                return il + 1;
    return 0;
}

const char *fit_shares_text(const double *shares, size_t n, struct arena *a)
{
    base_autobuf struct buf b = BUF_INIT(1024);
    for (size_t d = 0; d < n; d++)
        buf_addf(&b, "%s%g", d > 0 ? "," : "", shares[d]);
    return buf_status(&b) == 0 ? arena_dup(a, buf_str(&b)) : NULL;
}
