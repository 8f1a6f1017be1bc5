/* SPDX-License-Identifier: MIT
 *
 * What lies in the host's memory beside caches and weights (laws 4.7 and 6): a context's output buffer, saved sequence states with their prompt cache, checkpoints, and the tables of ngram drafters. Saved states
 * are counted as the engine writes them, field by field; the prompt cache is counted at its limit and checkpoints at their number, because both grow until they get there.
 */
#include "fit_int.h"

#define F32 4
#define NGRAM_MOD_TABLE (4194304ULL * 4) /* one for the server */

/* ---- output buffer --------------------------------------------------------------------------------------------------- */

/* Logits, and embeddings when they are what is served: all that is there when a context is made. */
static uint64_t first_rows(const struct fit_run *x, const struct fit_context *c, uint64_t rows)
{
    const struct model *m = c->pm->m;
    uint64_t sum = m->logits ? fit_mul(F32 * (uint64_t)m->vocab, rows) : 0;
    return x->s->embedding && !c->draft ? fit_add(sum, fit_mul(F32 * (uint64_t)m->embd_out, rows)) : sum;
}

/* What the first batches ask for beside: hidden states that a drafter reads, and what is sampled on the device. */
static uint64_t later_rows(const struct fit_run *x, const struct fit_context *c, uint64_t rows)
{
    const struct model *m = c->pm->m;
    uint64_t sum = 0;
    if (x->spec & FIT_SPEC_MTP)
        sum = fit_mul(F32 * (uint64_t)m->embd_out, c->draft ? rows : c->n_batch);
    if (c->draft ? (x->spec & FIT_SPEC_MTP) && !x->s->no_draft_sampling : x->s->sampling)
        sum = fit_add(sum, fit_mul(F32 * (3 * (uint64_t)m->vocab + 1), rows));
    if (!c->draft && x->p->drafter && (x->spec & (FIT_SPEC_EAGLE3 | FIT_SPEC_DFLASH | FIT_SPEC_DSPARK)))
        sum = fit_add(sum, fit_mul(fit_mul(F32 * (uint64_t)m->embd, c->n_batch), x->p->drafter->m->taps));
    return sum;
}

void fit_output(struct fit_run *x, const struct fit_context *c)
{
    uint64_t most = c->n_outputs > c->np ? c->n_outputs : c->np;
    struct fit_amount a = {.known = FIT_EXACT};
    a.bytes = a.low = first_rows(x, c, c->np);
    a.high = fit_add(first_rows(x, c, most), later_rows(x, c, most));
    fit_amount_add(x, x->p->host, c->draft ? FIT_DRAFT_OUTPUT : FIT_OUTPUT, a);
}

/* ---- saved states ------------------------------------------------------------------------------------------------------ */

#define STATE_HEADER 8
#define CACHE_HEADER 4
#define STREAM_HEADER 4
#define CACHE_TAIL 8
#define CELL_HEADER 12   /* position and sequences; as much again with M-RoPE or per-layer embeddings */
#define LAYER_HEADER 12  /* for K and for V */
#define RECURRENT_HEADER (4 + 8 + 8)
#define RECURRENT_LAYER 24

/* One attention cache of a state. */
struct cache_sum {
    uint64_t per_cell, headers, layers;
};

static void cache_layer(struct cache_sum *s, const struct gguf_type *k, uint64_t k_width, const struct gguf_type *v, uint64_t v_width)
{
    if (k_width > 0) {
        s->per_cell = fit_add(s->per_cell, fit_row(k, k_width));
        s->headers += LAYER_HEADER;
        s->layers++;
    }
    if (v_width > 0) {
        s->per_cell = fit_add(s->per_cell, fit_row(v, v_width));
        s->headers += LAYER_HEADER;
    }
}

static uint64_t cache_bytes(const struct fit_context *c, const struct cache_sum *s, uint64_t cells)
{
    const struct model *m = c->pm->m;
    uint64_t cell = fit_add(s->per_cell, m->m_rope || m->ple ? 2 * CELL_HEADER : CELL_HEADER);
    return fit_add(CACHE_HEADER + STREAM_HEADER * (uint64_t)c->n_stream + CACHE_TAIL + s->headers, fit_mul(cell, cells));
}

struct state_sums {
    struct cache_sum dense, swa, indexer;
    uint64_t recurrent, n_recurrent;
};

static struct state_sums sum_state(const struct fit_context *c)
{
    const struct model *m = c->pm->m;
    struct state_sums s = {0};
    for (uint32_t il = 0; il < m->n_layer; il++) {
        const struct model_layer *l = &m->layers[il];
        if (l->nextn != c->mtp)
            continue;
        if (l->attention)
            cache_layer(l->swa ? &s.swa : &s.dense, c->k, l->k_width, c->v, !c->flash && l->v_width ? c->pm->v_width_max : l->v_width);
        if (c->mtp)
            continue;
        cache_layer(&s.indexer, c->k, l->indexer_k_width, l->indexer_v_in_k_type ? c->k : c->v, l->indexer_v_width);
        if (l->recurrent) {
            s.recurrent = fit_add(s.recurrent, fit_add(RECURRENT_LAYER, fit_mul(F32, fit_add(l->r_elems, l->s_elems))));
            s.n_recurrent++;
        }
        s.recurrent = fit_add(s.recurrent, fit_mul(F32, l->ple_elems));
    }
    return s;
}

static uint64_t window_cells(const struct fit_context *c, uint64_t tokens)
{
    uint64_t window = c->pm->m->window;
    return window > 0 && tokens > window ? window : tokens;
}

uint64_t fit_state_bytes(const struct fit_context *c, uint64_t tokens)
{
    const struct state_sums s = sum_state(c);
    if (c->pm->m->cache == MODEL_CACHE_NONE)
        return 0;
    uint64_t sum = STATE_HEADER;
    if (s.dense.layers > 0)
        sum = fit_add(sum, cache_bytes(c, &s.dense, tokens));
    if (s.swa.layers > 0)
        sum = fit_add(sum, cache_bytes(c, &s.swa, window_cells(c, tokens)));
    if (s.indexer.layers > 0)
        sum = fit_add(sum, cache_bytes(c, &s.indexer, tokens));
    if (s.n_recurrent > 0)
        sum = fit_add(sum, fit_add(RECURRENT_HEADER, s.recurrent));
    return sum;
}

/* What cannot be cut at any position is kept apart: the window's cells, or the recurrent state. */
uint64_t fit_checkpoint_bytes(const struct fit_context *c)
{
    const struct state_sums s = sum_state(c);
    uint64_t sum = 0;
    if (s.swa.layers > 0)
        sum = fit_add(sum, cache_bytes(c, &s.swa, window_cells(c, c->n_ctx_seq)));
    if (s.n_recurrent > 0)
        sum = fit_add(sum, fit_add(RECURRENT_HEADER, s.recurrent));
    return sum > 0 ? fit_add(STATE_HEADER, sum) : 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------ */

static void checkpoints(struct fit_run *x)
{
    if (x->s->swa_full && x->target.pm->m->cache == MODEL_CACHE_SWA)
        return;
    uint64_t one = fit_checkpoint_bytes(&x->target);
    if (one == 0)
        return;
    if (x->draft.pm)
        one = fit_add(one, fit_checkpoint_bytes(&x->draft));
    uint64_t all = fit_mul(fit_mul(one, x->s->checkpoints), x->target.np);
    fit_amount_add(x, x->p->host, FIT_CHECKPOINTS, (struct fit_amount){.bytes = all, .high = all});
}

void fit_host_states(struct fit_run *x)
{
    if (x->p->in.program == FIT_TOOL)
        return;
    uint64_t cap = x->s->prompt_cache_bytes;
    if (cap == UINT64_MAX) /* what bounds it then is the number of tokens */
        cap = fit_add(fit_state_bytes(&x->target, x->target.n_ctx), x->draft.pm ? fit_state_bytes(&x->draft, x->draft.n_ctx) : 0);
    if (cap > 0)
        fit_amount_add(x, x->p->host, FIT_PROMPT_CACHE, (struct fit_amount){.bytes = cap, .high = cap});
    checkpoints(x);
    if (x->spec & FIT_SPEC_NGRAM_MOD)
        fit_exact(x, x->p->host, FIT_TABLES, NGRAM_MOD_TABLE);
}
