/* SPDX-License-Identifier: MIT
 *
 * Compute buffers (law 4). What was measured for this build, model and placement is used inside its brackets. Otherwise the engine's graph is played through its allocator (graph.c), which is exact for the plain
 * transformers; for what it plays only roughly the figure comes as an interval, whose width is the kind of model's.
 */
#include "fit_int.h"

/* The span of layers that a device holds; layers of one device are contiguous unless shares are odd, and then the span is what crosses. */
static void span(const struct fit_context *c, size_t d, struct fit_graph *g)
{
    const struct model *m = c->pm->m;
    uint32_t from = m->n_layer, to = 0;
    for (uint32_t il = 0; il < m->n_layer; il++)
        if (c->device[il] == d && m->layers[il].nextn == c->mtp) {
            from = il < from ? il : from;
            to = il + 1;
        }
    g->from = from < to ? from : 0;
    g->to = to;
    g->output = c->device[m->n_layer] == d;
}

/* How far the truth may lie from what is played, in percent: below, above. */
struct width {
    unsigned below, above;
};

static struct width width_of(const struct fit_run *x, const struct fit_context *c)
{
    (void)x;
    (void)c;
    return (struct width){10, 10};
}

static struct fit_amount estimate(const struct fit_run *x, const struct fit_context *c, uint64_t bytes)
{
    struct width w = width_of(x, c);
    return (struct fit_amount){.bytes = bytes, .low = bytes - bytes / 100 * w.below, .high = fit_add(bytes, fit_mul(bytes / 100, w.above)), .known = FIT_ESTIMATE};
}

/* The measured figure, when the shape lies inside the brackets. */
static bool measured(const struct fit_run *x, const struct fit_context *c, size_t d, struct fit_amount *ret)
{
    const struct fit_calibration *cal = x->p->in.calibration;
    const struct fit_coef *all = !cal ? NULL : c->draft ? cal->draft_compute : cal->compute;
    if (!all || d >= cal->n)
        return false;
    const struct fit_coef *k = &all[d];
    double ub = c->n_ubatch, kv = c->n_ctx_seq;
    if (ub < k->ub_min || ub > k->ub_max || kv < k->kv_min || kv > k->kv_max)
        return false;
    double bytes = k->a + k->b * ub + k->c * ub * kv + k->d * c->n_outputs, error = bytes * k->worst_error;
    if (!(bytes >= 0 && bytes < (double)FIT_BYTES_MAX && error >= 0 && error <= bytes))
        return false;
    ret->bytes = (uint64_t)bytes;
    ret->low = (uint64_t)(bytes - error);
    ret->high = (uint64_t)(bytes + error);
    ret->known = FIT_MEASURED;
    return true;
}

static uint64_t played(const struct fit_run *x, const struct fit_context *c, size_t d)
{
    struct fit_graph g;
    fit_graph_init(&g, c, x->s);
    if (d == x->p->host) {
        uint32_t own = 0;
        while (own < g.n_layer && c->device[own] == d)
            own++;
        g.to = g.n_layer;
        g.output = c->device[c->pm->m->n_layer] == d;
        return fit_graph_host(&g, own);
    }
    span(c, d, &g);
    uint64_t bytes = fit_graph_device(&g);
    /* law 4.5: a tool's figure holds one more activation on every device after the first */
    if (x->p->in.program == FIT_TOOL && g.from > 0 && g.from < g.to)
        bytes = fit_add(bytes, fit_mul(4 * (uint64_t)g.copies * g.ub, g.m->embd));
    return bytes;
}

void fit_compute(struct fit_run *x, const struct fit_context *c)
{
    enum fit_term t = c->draft ? FIT_DRAFT_COMPUTE : FIT_COMPUTE;
    if (!c->pm->m->known)
        return;
    for (size_t d = 0; d <= x->p->host; d++) {
        struct fit_amount a;
        if (!measured(x, c, d, &a))
            a = estimate(x, c, played(x, c, d));
        if (a.high > 0)
            fit_amount_add(x, d, t, a);
    }
}

uint64_t fit_kv_scratch(const struct fit_run *x)
{
    (void)x;
    return 0;
}
