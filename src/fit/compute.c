/* SPDX-License-Identifier: MIT
 *
 * Compute buffers (law 4). What was measured for this build, model and placement is used inside its brackets. Otherwise the engine's graph is played through its allocator (graph.c), which is exact for the plain
 * transformers on CPUs and RPC workers; for what it plays only roughly, and for devices whose kernels ask for more than the graph says, the figure comes as an interval.
 */
#include "fit_int.h"

/* ---- how sure it is --------------------------------------------------------------------------------------------------- */

/* Which architectures are played how well, as compared with the engine over contexts, ubatches, slots, devices. An architecture that is not named is exact to a few percent. */
static const struct {
    const char *arch;
    struct fit_margin m;
} margins[] = {
    {"afmoe", {4, 14}}, {"arwkv7", {4, 235}}, {"bailingmoe3", {10, 6}}, {"cohere2", {8, 13}}, {"cohere2moe", {8, 16}}, {"dbrx", {9, 5}}, {"deepseek32", {3, 6}}, {"deepseek4", {6, 48}}, {"dots3note", {4, 16}},
    {"exaone-moe", {6, 9}}, {"gemma-embedding", {10, 70}}, {"gemma3n", {60, 155}}, {"gemma4", {10, 12}}, {"glm-dsa", {4, 8}}, {"glm5-next", {48, 78}}, {"gpt2", {13, 5}}, {"graniteswitch", {50, 190}}, {"bitnet", {36, 24}}, {"gemma-embedding2", {15, 104}}, {"modern-bert", {25, 52}}, {"neo-bert", {13, 26}},
    {"hrm_text", {21, 290}}, {"hy_v4", {36, 45}}, {"jamba", {5, 17}}, {"k2-horizon", {7, 20}}, {"kimi-k3", {6, 42}}, {"kimi-linear", {6, 26}}, {"lfm2", {34, 10}}, {"lfm2moe", {9, 6}}, {"llama4", {4, 16}},
    {"maion-coder", {16, 12}}, {"mamba", {10, 5}}, {"minicpm3", {40, 24}}, {"minimax-01", {21, 68}}, {"minimax-m3", {21, 40}}, {"mpt", {13, 5}}, {"nanbeige", {6, 110}}, {"nemotron_h", {6, 68}},
    {"nemotron_h_moe", {6, 68}}, {"olmo", {21, 8}}, {"plamo2", {20, 6}}, {"qwen35", {6, 22}}, {"qwen3next", {22, 14}}, {"qwen4exp", {15, 56}}, {"rwkv6", {4, 116}}, {"rwkv6qwen2", {6, 55}}, {"rwkv7", {4, 175}},
    {"smallthinker", {6, 11}}, {"spark2_5", {5, 11}}, {"starcoder", {13, 5}}, {"step35", {10, 27}}, {"t5", {42, 100}}, {"t5encoder", {45, 100}}, {"talkie", {21, 8}},
};
static const struct fit_margin usual = {7, 8};
static const struct fit_margin moved = {45, 60};   /* beside it: tensors or KV that an option moves elsewhere */
static const struct fit_margin without_flash = {5, 40};
static const struct fit_margin shared_kv = {30, 75}; /* layers that read another device's cache */
static const struct fit_margin only_moved = {75, 100}; /* a device without layers computes with what an override moved to it */
static const struct fit_margin only_output = {10, 250}; /* a device without layers computes what is next to the output, too */
static const struct fit_margin fallen = {10, 400}; /* flash attention that the engine may turn off */
static const struct fit_margin device = {10, 30};  /* beside it: kernels of a GPU */
static const struct fit_margin tapped = {40, 60};   /* a target whose hidden states a drafter reads */
static const struct fit_margin drafting = {60, 60}; /* such a drafter */

static void widen(struct fit_margin *m, struct fit_margin by)
{
    m->below = m->below > by.below ? m->below : by.below;
    m->above = m->above > by.above ? m->above : by.above;
}

struct fit_margin fit_margin_of(const struct model *m)
{
    for (size_t i = 0; i < BASE_COUNT(margins); i++)
        if (str_eq_c(str_of(m->arch), margins[i].arch))
            return margins[i].m;
    return usual;
}

static struct fit_margin margin_of(const struct fit_run *x, const struct fit_context *c, size_t d)
{
    struct fit_margin m = c->pm->margin;
    if (!c->flash)
        widen(&m, without_flash);
    if (x->s->kv_on_cpu || c->pm->n_overrides > 0 || (c->draft ? x->s->draft_cpu_moe : x->s->cpu_moe) > 0 || x->s->split_mode > FIT_SPLIT_NONE)
        widen(&m, moved);
    if (c->pm->shares_kv)
        widen(&m, shared_kv);
    if (fit_flash_may_fall(x, c))
        widen(&m, fallen);
    if (x->spec & FIT_SPEC_CONTEXT & ~(unsigned)FIT_SPEC_SIMPLE)
        widen(&m, c->draft ? drafting : tapped);
    if (d < x->p->host && x->p->in.devices[d].backend != FIT_RPC && x->p->in.devices[d].backend != FIT_CPU) {
        m.below += device.below;
        m.above += device.above;
    }
    return m;
}

bool fit_flash_may_fall(const struct fit_run *x, const struct fit_context *c)
{
    const struct model *m = c->pm->m;
    uint16_t host = (uint16_t)x->p->host;
    if (x->s->flash != FLEET_AUTO || c->device[0] != host || c->device[m->n_layer] == host)
        return false;
    for (uint32_t il = 0; il < m->n_layer; il++)
        if (m->layers[il].recurrent)
            return true;
    return false;
}

/* ---- what a device's kernels ask for ------------------------------------------------------------------------------------ */

/* A layer's K and V as f16 beside a quantized cache. */
static uint64_t unpacked(const struct fit_run *x, const struct fit_context *c, size_t d)
{
    uint64_t most = 0;
    if (!c->pm || d == x->p->host || x->p->classes[d] != FIT_CLASS_CUDA || x->s->kv_on_cpu || (c->k->block == 1 && c->v->block == 1))
        return 0;
    for (uint32_t il = 0; il < c->pm->m->n_layer; il++) {
        const struct model_layer *l = &c->pm->m->layers[il];
        if (!l->attention || l->nextn != c->mtp || c->device[il] != d)
            continue;
        uint64_t bytes = fit_mul(fit_mul(2, fit_mul(fit_cells(c, x->s, l->swa), c->n_stream)), fit_add(l->k_width, l->v_width));
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t fit_kv_scratch(const struct fit_run *x)
{
    uint64_t most = 0;
    for (size_t d = 0; d < x->p->host; d++) {
        uint64_t a = unpacked(x, &x->target, d), b = unpacked(x, &x->draft, d);
        most = a > most ? a : most;
        most = b > most ? b : most;
    }
    return most;
}

/* What a drafter moves between devices beside its own graph: whole ubatches of hidden states, and of an assistant the target's cache. */
static uint64_t draft_crossing(const struct fit_run *x, const struct fit_context *c)
{
    if (!c->draft || !(x->spec & FIT_SPEC_CONTEXT & ~(unsigned)FIT_SPEC_SIMPLE))
        return 0;
    uint64_t sum = fit_mul(fit_mul(4 * ((uint64_t)c->copies + 2), c->n_ubatch), c->pm->m->embd), kv = 0;
    if (c->pm->m->role != MODEL_DRAFT_ASSISTANT)
        return sum;
    const struct fit_context *t = &x->target;
    for (uint32_t il = 0; il < t->pm->m->n_layer; il++) {
        const struct model_layer *l = &t->pm->m->layers[il];
        uint64_t bytes = fit_mul(fit_mul(fit_cells(t, x->s, l->swa), t->n_stream), fit_add(fit_row(t->k, l->k_width), fit_row(t->v, l->v_width)));
        kv = l->attention && bytes > kv ? bytes : kv;
    }
    uint64_t masks = fit_mul(2 * (uint64_t)c->copies * c->n_ubatch, fit_add(fit_cells(t, x->s, false), fit_cells(t, x->s, true)));
    return fit_add(fit_add(sum, masks), fit_mul(2 * (uint64_t)c->copies, kv));
}

/* KV on the CPU is carried over for each layer that attends on a device. */
static uint64_t carried_kv(const struct fit_run *x, const struct fit_context *c, size_t d)
{
    uint64_t most = 0;
    if (!x->s->kv_on_cpu || (c->pm->graph & FIT_NO_CACHE))
        return 0;
    for (uint32_t il = 0; il < c->pm->m->n_layer; il++) {
        const struct model_layer *l = &c->pm->m->layers[il];
        if (!l->attention || l->nextn != c->mtp || c->device[il] != d)
            continue;
        uint64_t bytes = fit_mul(fit_mul(fit_cells(c, x->s, l->swa), c->n_stream), fit_add(fit_row(c->k, l->k_width), fit_row(c->v, l->v_width)));
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Layers that attend to another one's cache on another device: its K and V are inputs, kept as often as the pipeline keeps those. */
static uint64_t shared_kv_in(const struct fit_run *x, const struct fit_context *c, size_t d)
{
    const struct model *m = c->pm->m;
    uint64_t sum = 0;
    if (!c->pm->shares_kv || x->s->kv_on_cpu)
        return 0;
    for (int swa = 0; swa < 2; swa++) {
        const struct model_layer *owner = NULL;
        size_t at = d;
        bool here = false;
        for (uint32_t il = 0; il < m->n_layer; il++) {
            const struct model_layer *l = &m->layers[il];
            if (l->swa != (bool)swa || l->nextn)
                continue;
            if (l->attention) {
                owner = l;
                at = c->device[il];
            }
            here |= owner && !l->attention && c->device[il] == d && at != d;
        }
        if (here)
            sum = fit_add(sum, fit_mul(fit_mul(fit_cells(c, x->s, swa), c->n_stream), fit_add(fit_row(c->k, owner->k_width), fit_row(c->v, owner->v_width))));
    }
    return fit_mul(c->copies, sum);
}

/* A GPU computes a prompt's products with weights of the host itself: the largest of them is copied in. */
static uint64_t copied_weights(const struct fit_run *x, const struct fit_context *c, const struct fit_graph *g, size_t d)
{
    enum fit_backend b = x->p->in.devices[d].backend;
    uint64_t most = 0;
    if (b != FIT_CUDA && b != FIT_HIP && b != FIT_VULKAN)
        return 0;
    for (uint32_t il = 0; il < g->n_layer; il++) {
        uint64_t bytes = c->device[il] == x->p->host ? g->layers[il].largest : fit_experts_away(g, il) ? g->layers[il].largest_expert : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- figures -------------------------------------------------------------------------------------------------------------- */

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

/* Whether d works for the output slot; an encoder's may have no tensor and do nothing. */
static bool has_output(const struct fit_context *c, size_t d)
{
    const struct fit_group *g = &c->pm->slots[c->pm->m->n_layer];
    uint64_t sum = !(c->pm->graph & FIT_NO_HEAD) || c->draft;
    for (unsigned part = 0; part < FIT_GROUPS; part++)
        sum = fit_add(sum, g->part[part].bytes[FIT_CLASS_PLAIN]);
    return c->device[c->pm->m->n_layer] == d && sum > 0;
}

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
    g->output = has_output(c, d);
}

/* What a device without layers takes to compute with tensors that overrides moved to it: those of one layer, or of the input, at a time. */
static uint64_t beside_layers(const struct fit_context *c, const struct fit_graph *g, size_t d)
{
    uint64_t most = 0;
    for (uint32_t il = 0; c->pm->moved && g->from == g->to && il <= c->pm->m->n_layer; il++) {
        uint64_t columns = *fit_moved(c->pm, d, il);
        most = columns > most ? columns : most;
    }
    return fit_mul(4 * (uint64_t)g->ub, most);
}

static struct fit_amount played(const struct fit_run *x, const struct fit_context *c, size_t d)
{
    struct fit_graph g;
    fit_graph_init(&g, x, c);
    uint64_t bytes = 0, more = 0, misplaced = 0, beside = 0;
    if (d == x->p->host) {
        uint32_t own = 0;
        while (c->mtp && g.from < g.n_layer && !c->pm->m->layers[g.from].nextn)
            g.from++;
        while (own < g.n_layer && c->device[own] == d)
            own++;
        g.to = g.n_layer;
        g.output = has_output(c, d);
        bytes = fit_graph_host(&g, own);
    } else {
        span(c, d, &g);
        beside = beside_layers(c, &g, d);
        bytes = fit_add(fit_add(fit_graph_device(&g), shared_kv_in(x, c, d)), beside);
        more = fit_add(copied_weights(x, c, &g, d), carried_kv(x, c, d));
        /* law 4.5: a measuring pass counts one more activation on every device after the first */
        if (g.from > 0 && g.from < g.to && c->device[g.from - 1] != x->p->host && g.layers[g.from].attn_norm)
            misplaced = fit_mul(4 * (uint64_t)g.copies * g.ub, g.m->embd);
        if (x->p->in.program == FIT_TOOL)
            bytes = fit_add(bytes, misplaced);
    }
    struct fit_margin m = margin_of(x, c, d);
    if (g.from == g.to && (g.output || !beside) && (c->draft || x->s->gpu_layers <= c->pm->m->n_layer || c->pm->n_overrides > 0 || x->s->cpu_moe > 0))
        widen(&m, only_output);
    if (beside > 0)
        widen(&m, only_moved);
    if (c->draft && g.from == g.to)
        m.below = 100; /* its head may be the target's */
    struct fit_amount a = {.known = FIT_ESTIMATE};
    a.low = bytes - (m.below >= 100 ? bytes : bytes / 100 * m.below);
    a.bytes = fit_add(bytes, more);
    a.high = fit_add(fit_add(a.bytes, fit_mul(bytes / 100, m.above)), fit_add(fit_mul(2, more), d < x->p->host ? unpacked(x, c, d) : 0));
    a.high = fit_add(a.high, draft_crossing(x, c));
    if (x->p->in.program == FIT_SERVER)
        a.high = fit_add(a.high, misplaced);
    return a;
}

void fit_compute(struct fit_run *x, const struct fit_context *c)
{
    enum fit_term t = c->draft ? FIT_DRAFT_COMPUTE : FIT_COMPUTE;
    if (!c->pm->m->known)
        return;
    for (size_t d = 0; d <= x->p->host; d++) {
        struct fit_amount a;
        if (!measured(x, c, d, &a))
            a = played(x, c, d);
        if (a.high > 0)
            fit_amount_add(x, d, t, a);
    }
}
