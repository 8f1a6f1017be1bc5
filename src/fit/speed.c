/* SPDX-License-Identifier: MIT
 *
 * Speed as a roofline: what one pass must read, from which memory and over which link, divided by how fast that goes. Weights are read once a pass, routed experts by the share that a pass of so many tokens is expected
 * to touch, caches as far as they are filled, recurrent states read and written. Devices work one after the other on one request; on a long prompt they overlap when the engine pipelines.
 *
 * It is a bound from above: arithmetic, launches, synchronisation and sampling are not counted. Bytes are summed in integers, over all memories of one bandwidth before any division, so that shapes that read
 * the same compare as equal.
 */
#include "solve_int.h"

#include <errno.h>

#define F32 4
#define OFFLOAD_BATCH 32 /* from so many tokens on the engine copies weights of the host to a device instead of computing there (law 4.1) */

/* ---- prepared ------------------------------------------------------------------------------------------------------------ */

/* Tables that rows are looked up in are never read whole. */
static bool is_read(const struct fit_placed *pm, const struct model_tensor *t)
{
    return t->place == MODEL_OUTPUT || t->place == MODEL_REPEATING || t->place == MODEL_FIRST || t == model_tied_tensor(pm->m);
}

static void add_overridden(const struct fit_prepared *p, struct fit_regex *const *re, struct fit_traffic *ret)
{
    const struct fit_placed *pm = p->target;
    for (size_t i = 0; i < pm->m->n_tensors; i++) {
        const struct model_tensor *t = &pm->m->tensors[i];
        if (!is_read(pm, t))
            continue;
        size_t k = 0;
        while (k < pm->n_overrides && !fit_regex_search(re[k], t->name))
            k++;
        int d = k < pm->n_overrides ? fit_buffer_index(p, pm->overrides[k].buffer) : -1;
        if (d < 0)
            continue;
        uint64_t *sum = fit_is_routed_expert(t->name) ? &ret->fixed_experts[d] : &ret->fixed_dense[d];
        *sum = fit_add(*sum, t->bytes);
    }
}

static uint64_t slot_bytes(const struct fit_placed *pm, uint32_t slot)
{
    uint64_t sum = 0;
    for (unsigned part = 0; part < FIT_GROUPS; part++)
        sum = fit_add(sum, pm->slots[slot].part[part].bytes[FIT_CLASS_PLAIN]);
    return sum;
}

int fit_traffic_of(const struct fit_prepared *p, struct fit_traffic *ret, struct err *err)
{
    const struct fit_placed *pm = p->target;
    struct fit_regex *re[FIT_OVERRIDES_MAX] = {0};
    int r = 0;
    *ret = (struct fit_traffic){0};
    for (size_t i = 0; r == 0 && i < pm->n_overrides; i++)
        r = fit_regex_new(pm->overrides[i].pattern, &re[i], err);
    if (r == 0 && pm->n_overrides > 0)
        add_overridden(p, re, ret);
    for (size_t i = 0; i < pm->n_overrides; i++)
        fit_regex_free(re[i]);
    ret->head_bytes = fit_add(slot_bytes(pm, pm->m->n_layer), pm->has_tied ? pm->tied.bytes[FIT_CLASS_PLAIN] : 0);
    if (p->drafter) {
        const struct model *d = p->drafter->m;
        ret->borrows_head = !d->own_embeddings && !model_find_tensor(d, "output.weight");
        for (uint32_t k = 0; k <= d->n_layer; k++)
            ret->drafter_bytes = fit_add(ret->drafter_bytes, slot_bytes(p->drafter, k));
    }
    return r;
}

/* ---- what a pass reads ----------------------------------------------------------------------------------------------------- */

struct pass {
    const struct fit_prepared *p;
    const struct fit_traffic *t;
    const struct fit_shape *s;
    const struct fit_result *r;
    uint64_t depth;
    bool offload;      /* the host's weights go over a link */
    double experts;    /* share of the routed experts that is read */
    double resident;   /* share of the host's experts that a MoE cache holds; negative: there is no such cache */
    uint64_t read[FIT_DEVICES_MAX + 1], link[FIT_DEVICES_MAX];
};

static uint64_t part_of(uint64_t bytes, double share)
{
    return share >= 1 ? bytes : (uint64_t)((double)bytes * share);
}

/* Share of K in N routed experts that at least one of n tokens takes, when tokens choose independently and evenly. */
static double expert_share(const struct model *m, uint64_t n)
{
    if (m->experts == 0 || m->experts_used >= m->experts)
        return 1;
    double miss = 1, base = 1 - (double)m->experts_used / m->experts;
    if (n == 1)
        return (double)m->experts_used / m->experts;
    while (n > 0) { /* base to the power of n */
        if (n & 1)
            miss *= base;
        base *= base;
        n >>= 1;
    }
    return 1 - miss;
}

static bool on_cpu(const struct pass *x, uint32_t slot, unsigned part, size_t d)
{
    uint32_t most = slot == x->p->target->m->n_layer ? UINT32_MAX - 1 : slot;
    return d == x->p->host || ((part & FIT_MOE) && most < x->s->cpu_moe) || ((part & FIT_NO_CUDA) && x->p->classes[d] == FIT_CLASS_CUDA);
}

/* Weights of a layer of device d that lie on the host. */
static void read_from_host(struct pass *x, size_t d, uint64_t bytes, bool experts)
{
    size_t host = x->p->host;
    if (experts && d != host && x->resident >= 0) {
        uint64_t hit = part_of(bytes, x->resident);
        x->read[d] = fit_add(x->read[d], hit);
        x->link[d] = fit_add(x->link[d], bytes - hit);
    } else if (x->offload && x->p->in.n_devices > 0) {
        size_t to = d == host ? 0 : d;
        x->link[to] = fit_add(x->link[to], bytes);
    } else {
        x->read[host] = fit_add(x->read[host], bytes);
    }
}

static void read_layer(struct pass *x, uint32_t slot)
{
    const struct fit_group *g = &x->p->target->slots[slot];
    size_t d = x->r->layer_device[slot];
    for (unsigned part = 0; part < FIT_GROUPS; part++) {
        uint64_t bytes = g->part[part].bytes[FIT_CLASS_PLAIN];
        if (part & FIT_MOE)
            bytes = part_of(bytes, x->experts);
        if (on_cpu(x, slot, part, d))
            read_from_host(x, d, bytes, part & FIT_MOE);
        else
            x->read[d] = fit_add(x->read[d], bytes);
    }
}

static uint64_t cell_bytes(const struct fit_shape *s, uint64_t k_width, uint64_t v_width)
{
    return fit_add(fit_row(s->k_type, k_width), fit_row(s->v_type, v_width));
}

/* What attention reads for the tokens there are, and a recurrent state's reading and writing. */
static void read_cache(struct pass *x, uint32_t il)
{
    const struct model *m = x->p->target->m;
    const struct model_layer *l = &m->layers[il];
    size_t d = x->s->kv_on_cpu ? x->p->host : x->r->layer_device[il];
    uint64_t cells = l->swa && !x->s->swa_full && x->depth > m->window ? m->window : x->depth;
    uint64_t bytes = l->attention ? fit_mul(cells, cell_bytes(x->s, l->k_width, l->v_width)) : 0;
    uint64_t indexed = l->compress_ratio > 0 ? x->depth / l->compress_ratio : x->depth;
    if (l->compress_ratio > 0)
        bytes = fit_add(bytes, fit_mul(indexed, cell_bytes(x->s, l->k_width, 0)));
    bytes = fit_add(bytes, fit_mul(indexed, cell_bytes(x->s, l->indexer_k_width, l->indexer_v_width)));
    bytes = fit_add(bytes, fit_mul(2 * (uint64_t)F32, fit_add(l->r_elems, fit_add(l->s_elems, l->ple_elems))));
    x->read[d] = fit_add(x->read[d], bytes);
}

static void read_overridden(struct pass *x)
{
    for (size_t d = 0; d <= x->p->host; d++) {
        uint64_t experts = part_of(x->t->fixed_experts[d], x->experts);
        if (d < x->p->host) {
            x->read[d] = fit_add(x->read[d], fit_add(x->t->fixed_dense[d], experts));
            continue;
        }
        read_from_host(x, x->p->host, x->t->fixed_dense[d], false);
        /* which device's layers these belong to is not kept: the first one's link stands for all */
        read_from_host(x, x->p->in.n_devices > 0 && x->resident >= 0 ? 0 : x->p->host, experts, true);
    }
}

static void read_target(struct pass *x, uint64_t tokens)
{
    const struct fit_placed *pm = x->p->target;
    x->experts = expert_share(pm->m, tokens);
    x->offload = tokens >= OFFLOAD_BATCH;
    for (uint32_t k = 0; k <= pm->m->n_layer; k++) {
        if (k < pm->m->n_layer && pm->m->layers[k].nextn)
            continue;
        read_layer(x, k);
        if (k < pm->m->n_layer)
            read_cache(x, k);
    }
    size_t out = x->r->layer_device[pm->m->n_layer];
    if (pm->has_tied)
        x->read[out] = fit_add(x->read[out], pm->tied.bytes[FIT_CLASS_PLAIN]);
    read_overridden(x);
}

/* Share of the host's routed experts that --moe-cache-mib keeps on devices. */
static double resident_share(const struct pass *x)
{
    const struct fit_placed *pm = x->p->target;
    if (x->s->moe_cache_bytes == 0 || x->p->in.n_devices == 0)
        return -1;
    uint64_t all = x->t->fixed_experts[x->p->host];
    for (uint32_t k = 0; k <= pm->m->n_layer; k++)
        for (unsigned part = 0; part < FIT_GROUPS; part++)
            if ((part & FIT_MOE) && x->r->layer_device[k] != x->p->host && on_cpu(x, k, part, x->r->layer_device[k]))
                all = fit_add(all, pm->slots[k].part[part].bytes[FIT_CLASS_PLAIN]);
    return all <= x->s->moe_cache_bytes ? 1 : (double)x->s->moe_cache_bytes / (double)all;
}

/* ---- drafting --------------------------------------------------------------------------------------------------------------- */

static unsigned draft_kind(const struct fit_shape *s, const struct fit_result *r)
{
    unsigned kind = s->spec & FIT_SPEC_CONTEXT;
    return r->draft_max > 0 ? kind & (~kind + 1) : 0;
}

/* What a drafter's attention reads for the tokens there are. */
static uint64_t draft_cache(const struct pass *x, const struct model *d, bool nextn)
{
    const struct fit_shape *s = x->s;
    uint64_t sum = 0;
    for (uint32_t il = 0; il < d->n_layer; il++) {
        const struct model_layer *l = &d->layers[il];
        uint64_t cells = l->swa && !s->swa_full && x->depth > d->window ? d->window : x->depth;
        if (l->attention && l->nextn == nextn)
            sum = fit_add(sum, fit_mul(cells, fit_add(fit_row(s->draft_k_type, l->k_width), fit_row(s->draft_v_type, l->v_width))));
    }
    return sum;
}

/* Bytes that are divided as a term of the prediction is; what rounding leaves goes to the last place, so that the sum is the same for every split. */
static void read_as_placed(struct pass *x, enum fit_term term, uint64_t bytes)
{
    uint64_t all = 0, rest = bytes;
    size_t last = x->p->host;
    for (size_t k = 0; k <= x->p->host; k++) {
        all = fit_add(all, x->r->use[k].terms[term].bytes);
        last = x->r->use[k].terms[term].bytes > 0 ? k : last;
    }
    for (size_t k = 0; k < last; k++) {
        uint64_t part = all > 0 ? part_of(bytes, (double)x->r->use[k].terms[term].bytes / (double)all) : 0;
        part = part < rest ? part : rest;
        x->read[k] = fit_add(x->read[k], part);
        rest -= part;
    }
    x->read[last] = fit_add(x->read[last], rest);
}

/* Weights of a drafter of its own; what of them is mapped on the host is in no term. */
static void read_draft_model(struct pass *x, uint64_t passes)
{
    const struct fit_prepared *p = x->p;
    double share = expert_share(p->drafter->m, 1);
    uint64_t placed = 0;
    for (size_t k = 0; k <= p->host; k++)
        placed = fit_add(placed, x->r->use[k].terms[FIT_DRAFT_WEIGHTS].bytes);
    read_as_placed(x, FIT_DRAFT_WEIGHTS, fit_mul(passes, part_of(placed, share)));
    if (x->t->drafter_bytes > placed)
        x->read[p->host] = fit_add(x->read[p->host], fit_mul(passes, part_of(x->t->drafter_bytes - placed, share)));
}

static void read_nextn(struct pass *x, uint64_t passes)
{
    const struct fit_placed *pm = x->p->target;
    for (uint32_t il = 0; il < pm->m->n_layer; il++) {
        size_t d = x->r->layer_device[il];
        if (pm->m->layers[il].nextn)
            x->read[d] = fit_add(x->read[d], fit_mul(passes, slot_bytes(pm, il)));
    }
}

/* The drafter's passes: a block drafter gives its block in one, the others a token each. */
static void read_drafter(struct pass *x, unsigned kind)
{
    const struct fit_prepared *p = x->p;
    uint64_t passes = kind & (FIT_SPEC_DFLASH | FIT_SPEC_DSPARK) ? 1 : x->r->draft_max;
    if (p->drafter)
        read_draft_model(x, passes);
    else
        read_nextn(x, passes);
    read_as_placed(x, FIT_DRAFT_KV, fit_mul(passes, draft_cache(x, p->drafter ? p->drafter->m : p->target->m, kind == FIT_SPEC_MTP)));
    if (!p->drafter || x->t->borrows_head) {
        size_t out = x->r->layer_device[p->target->m->n_layer];
        x->read[out] = fit_add(x->read[out], fit_mul(passes, x->t->head_bytes));
    }
}

/* Tokens that a pass gives when each drafted one is taken with probability a and the first refusal ends it. */
static double tokens_of(double a, uint32_t drafted)
{
    double sum = 1, power = 1;
    for (uint32_t i = 0; i < drafted && power > 1e-9; i++) {
        power *= a;
        sum += power;
    }
    return sum;
}

static double accept_of(const struct fit_prepared *p)
{
    double a = p->in.draft_accept;
    return a > 0 && a <= 1 ? a : FIT_ACCEPT_DEFAULT;
}

/* ---- time ----------------------------------------------------------------------------------------------------------------- */

static uint64_t bandwidth(const struct fit_prepared *p, size_t d)
{
    uint64_t host = p->in.host ? p->in.host->bandwidth_bytes_s : 0;
    if (d == p->host)
        return host;
    const struct fit_device *v = &p->in.devices[d];
    return v->bandwidth_bytes_s == 0 && v->shared ? host : v->bandwidth_bytes_s;
}

/* Seconds for all of it, one after the other; negative: a bandwidth that is needed is unknown. */
static double serial_s(const struct pass *x)
{
    const struct fit_prepared *p = x->p;
    double sum = 0;
    bool done[FIT_DEVICES_MAX + 1] = {0};
    for (size_t d = 0; d <= p->host; d++) {
        uint64_t rate = bandwidth(p, d), bytes = 0;
        if (done[d])
            continue;
        for (size_t e = d; e <= p->host; e++)
            if (bandwidth(p, e) == rate) {
                bytes = fit_add(bytes, x->read[e]);
                done[e] = true;
            }
        if (bytes > 0 && rate == 0)
            return -1;
        sum += bytes > 0 ? (double)bytes / (double)rate : 0;
    }
    for (size_t d = 0; d < p->host; d++) {
        if (x->link[d] > 0 && p->in.devices[d].link_bytes_s == 0)
            return -1;
        sum += x->link[d] > 0 ? (double)x->link[d] / (double)p->in.devices[d].link_bytes_s : 0;
    }
    return sum;
}

/* Seconds of the slowest place, when all work at the same time on different parts of a prompt. */
static double longest_s(const struct pass *x)
{
    const struct fit_prepared *p = x->p;
    double most = 0;
    for (size_t d = 0; d <= p->host; d++) {
        uint64_t rate = bandwidth(p, d), link = d < p->host ? x->link[d] : 0;
        if ((x->read[d] > 0 && rate == 0) || (link > 0 && p->in.devices[d].link_bytes_s == 0))
            return -1;
        double s = x->read[d] > 0 ? (double)x->read[d] / (double)rate : 0;
        s += link > 0 ? (double)link / (double)p->in.devices[d].link_bytes_s : 0;
        most = s > most ? s : most;
    }
    return most;
}

static uint64_t total_read(const struct pass *x)
{
    uint64_t sum = 0;
    for (size_t d = 0; d <= x->p->host; d++)
        sum = fit_add(sum, fit_add(x->read[d], d < x->p->host ? x->link[d] : 0));
    return sum;
}

void fit_speed_prepared(const struct fit_prepared *p, const struct fit_traffic *t, const struct fit_shape *s, const struct fit_result *r, uint64_t depth, struct fit_speed *ret)
{
    struct pass x = {.p = p, .t = t, .s = s, .r = r, .depth = depth};
    *ret = (struct fit_speed){.assumes = "", .pass_tokens = 1};
    x.resident = resident_share(&x);
    struct pass prompt = x, one = x;
    unsigned kind = draft_kind(s, r);

    read_target(&one, 1);
    ret->bytes_per_token = total_read(&one);
    read_target(&x, kind ? (uint64_t)r->draft_max + 1 : 1);
    if (kind) {
        read_drafter(&x, kind);
        ret->pass_tokens = tokens_of(accept_of(p), r->draft_max);
    }
    memcpy(ret->read_bytes, x.read, sizeof(ret->read_bytes));
    memcpy(ret->link_bytes, x.link, sizeof(ret->link_bytes));
    double pass = serial_s(&x);
    if (pass > 0) {
        ret->pass_s = pass;
        ret->decode_tok_s = ret->pass_tokens / pass;
    }
    read_target(&prompt, r->n_ubatch);
    double fill = r->pipeline ? longest_s(&prompt) : serial_s(&prompt);
    if (fill > 0)
        ret->prefill_tok_s = r->n_ubatch / fill;
}

/* ---- in words ------------------------------------------------------------------------------------------------------------- */

static void say_experts(const struct fit_prepared *p, const struct fit_shape *s, struct buf *b)
{
    const struct model *m = p->target->m;
    if (m->experts == 0)
        return;
    buf_addf(b, ", %u of %u routed experts", m->experts_used, m->experts);
    if (s->cpu_moe == 0 && p->target->n_overrides == 0)
        return;
    buf_add_c(b, s->moe_cache_bytes > 0 ? " (what misses the MoE cache over the link)" : " (those on the host computed there)");
}

int fit_speed_assumes(const struct fit_prepared *p, const struct fit_shape *s, const struct fit_result *r, uint64_t depth, struct arena *a, struct fit_speed *ret, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(ERR_TEXT_MAX);
    if (ret->pass_s <= 0) {
        ret->assumes = "no figure: declare the bandwidth of every device, link and host that is read from";
        return 0;
    }
    buf_addf(&b, "one request with %s tokens in its context; every weight read once a pass", FIT_COUNT(depth));
    say_experts(p, s, &b);
    if (p->in.n_devices > 1)
        buf_add_c(&b, "; devices one after the other");
    if (ret->pass_tokens > 1)
        buf_addf(&b, "; %u tokens drafted a pass and each taken with %.2f%s, %.2f tokens a pass", r->draft_max, accept_of(p), p->in.draft_accept > 0 ? " (measured)" : " (a guess)", ret->pass_tokens);
    if (s->spec & ~(unsigned)FIT_SPEC_CONTEXT)
        buf_add_c(&b, "; nothing gained by ngram drafting, which depends on the text");
    buf_add_c(&b, "; arithmetic, launches and waiting not counted, so it is a bound from above");
    char *text = buf_status(&b) == 0 ? arena_dup(a, buf_str(&b)) : NULL;
    if (!text)
        return err_nomem(err);
    ret->assumes = text;
    return 0;
}

int fit_speed(const struct fit_input *in, const struct fit_result *r, uint64_t depth, struct arena *a, struct fit_speed *ret, struct err *err)
{
    struct fit_prepared *p = NULL;
    struct fit_traffic t;
    struct fit_speed speed = {0};
    if (!in->shape)
        return err_set(err, -EINVAL, "no shape to estimate the speed of");
    struct arena *scratch = arena_new(FIT_SCRATCH_MAX);
    if (!scratch)
        return err_nomem(err);
    int e = fit_prepare(in, scratch, &p, err);
    if (e == 0)
        e = fit_traffic_of(p, &t, err);
    if (e == 0) {
        fit_speed_prepared(p, &t, in->shape, r, depth, &speed);
        if (a)
            e = fit_speed_assumes(p, in->shape, r, depth, a, &speed, err);
    }
    arena_free(scratch);
    if (e == 0)
        *ret = speed;
    return e;
}
