/* SPDX-License-Identifier: MIT
 *
 * Speculative decoding (law 5): which of the asked kinds the engine really runs, what they do to the target's context, and the drafter's own context. A drafter's context has the target's length, slots and flash
 * attention, its own metadata, KV types and devices; it is loaded after the target, when the devices are fuller.
 */
#include "fit_int.h"

#define DRAFT_MAX 3        /* the engine's own --spec-draft-n-max */
#define NGRAM_MAP 48       /* tokens that ngram-simple and ngram-map draft at once */
#define NGRAM_MOD 64
#define NGRAM_CACHE 8

static bool drafter_serves(const struct model *d, unsigned kind)
{
    switch (kind) {
    case FIT_SPEC_EAGLE3:
        return d->role == MODEL_DRAFT_EAGLE3;
    case FIT_SPEC_DFLASH:
        return d->role == MODEL_DRAFT_DFLASH || d->role == MODEL_DRAFT_DSPARK;
    case FIT_SPEC_DSPARK:
        return d->role == MODEL_DRAFT_DSPARK;
    case FIT_SPEC_MTP:
        return d->mtp || d->role == MODEL_DRAFT_ASSISTANT;
    default:
        return true;
    }
}

static unsigned context_kind(unsigned spec)
{
    unsigned kind = spec & FIT_SPEC_CONTEXT;
    return kind & (~kind + 1); /* the first; more than one is refused by the rules */
}

/* The engine's clamp of the drafted length. */
static uint32_t clamped(const struct fit_run *x, unsigned kind, uint32_t n)
{
    const struct model *d = x->p->drafter ? x->p->drafter->m : NULL;
    uint32_t most = UINT32_MAX;
    if (d && d->block_size > 0 && kind == FIT_SPEC_DFLASH)
        most = d->block_size - 1;
    if (d && d->block_size > 0 && kind == FIT_SPEC_DSPARK)
        most = d->sample_from_anchor ? d->block_size : d->block_size - 1;
    return n < most ? n : most;
}

void fit_speculation(struct fit_run *x)
{
    const struct fit_shape *s = x->s;
    struct fit_context *c = &x->target;
    unsigned kind = context_kind(s->spec);
    bool runs = kind && (x->p->drafter ? drafter_serves(x->p->drafter->m, kind) : kind == FIT_SPEC_MTP && c->pm->m->mtp);
    x->spec = (s->spec & ~(unsigned)FIT_SPEC_CONTEXT) | (runs ? kind : 0U);

    uint32_t asked = s->draft_max ? s->draft_max : DRAFT_MAX, n = 0;
    x->r->draft_max = runs ? clamped(x, kind, asked) : 0;
    /* what sizes the target is what was asked, whether a drafter then comes or not */
    if (kind)
        n = asked;
    if ((s->spec & (FIT_SPEC_NGRAM_SIMPLE | FIT_SPEC_NGRAM_MAP)) && n < NGRAM_MAP)
        n = NGRAM_MAP;
    if ((s->spec & FIT_SPEC_NGRAM_MOD) && n < NGRAM_MOD)
        n = NGRAM_MOD;
    if ((s->spec & FIT_SPEC_NGRAM_CACHE) && n < NGRAM_CACHE)
        n = NGRAM_CACHE;
    uint64_t outputs = (uint64_t)c->np * (1 + (uint64_t)n);
    if (x->p->in.program == FIT_TOOL || s->embedding || outputs > c->n_batch)
        outputs = c->n_batch;
    c->n_outputs = outputs > 0 ? (uint32_t)outputs : 1;

    bool rolls = c->pm->m->can_rollback && (kind & (FIT_SPEC_MTP | FIT_SPEC_EAGLE3 | FIT_SPEC_DFLASH | FIT_SPEC_DSPARK));
    uint64_t rs_seq = 1 + (rolls ? (uint64_t)asked : 0);
    c->rs_seq = (uint32_t)(rs_seq > UINT32_MAX / FLEET_SLOTS_MAX ? UINT32_MAX / FLEET_SLOTS_MAX : rs_seq);
    c->rs_rows = c->np * c->rs_seq;
}

/* What the draft context takes from the target's. */
static void inherit(struct fit_run *x, struct fit_context *d, unsigned kind)
{
    const struct fit_shape *s = x->s;
    const struct fit_context *c = &x->target;
    *d = *c;
    d->draft = true;
    d->mtp = kind == FIT_SPEC_MTP;
    d->n_ubatch = s->draft_ubatch && s->draft_ubatch < c->n_batch ? s->draft_ubatch : s->draft_ubatch ? c->n_batch : c->n_ubatch;
    d->rs_seq = 1;
    d->rs_rows = c->np;
    d->n_outputs = c->np;
    if (kind == FIT_SPEC_DFLASH || kind == FIT_SPEC_DSPARK)
        d->n_outputs = (uint32_t)((uint64_t)c->np * (x->r->draft_max + 1) > c->n_batch ? c->n_batch : c->np * (x->r->draft_max + 1));
    d->k = s->draft_k_type;
    d->v = s->draft_v_type;
}

void fit_draft(struct fit_run *x)
{
    const struct fit_shape *s = x->s;
    unsigned kind = x->spec & FIT_SPEC_CONTEXT;
    if (!kind)
        return;
    struct fit_context *d = &x->draft;
    inherit(x, d, kind);
    if (x->p->drafter) {
        d->pm = x->p->drafter;
        d->device = x->draft_device;
        d->flash = s->flash != FLEET_OFF && !d->pm->m->flash_attention_off;
        d->n_stream = s->unified && !d->pm->m->always_streams ? 1 : d->np;
        const uint16_t *list = s->n_draft_devices ? s->draft_devices : x->devices;
        size_t n = s->draft_on_cpu ? 0 : s->n_draft_devices ? s->n_draft_devices : x->n_devices;
        fit_place_layers(x, d->pm->m->n_layer, s->draft_gpu_layers, list, n, x->draft_device);
        fit_place_weights(x, d, s->draft_cpu_moe, kind == FIT_SPEC_MTP);
    }
    fit_caches(x, d);
    fit_compute(x, d);
    fit_output(x, d);
}
