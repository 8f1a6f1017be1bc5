/* SPDX-License-Identifier: MIT
 *
 * What lies in the host's memory beside caches and weights (laws 4.7 and 6): a context's output buffer, saved sequence states with their prompt cache, checkpoints, and the tables of ngram drafters. Saved states
 * are counted as the engine writes them, field by field; the prompt cache is counted at its limit and checkpoints at their number, because both grow until they get there.
 */
#include "fit_int.h"

#define F32 4
#define NGRAM_MOD_TABLE (4194304ULL * 4) /* one for the server */

/* ---- output buffer --------------------------------------------------------------------------------------------------- */

/* Logits are there even where no head is; embeddings when they are what is served, and of an encoder with a decoder behind it. */
static uint64_t plain_rows(const struct fit_run *x, const struct fit_context *c, uint64_t rows)
{
    const struct model *m = c->pm->m;
    bool embeddings = (x->s->embedding && !c->draft) || str_eq_c(str_of(m->arch), "t5");
    return fit_mul(fit_mul(F32, fit_add(m->vocab, embeddings ? m->embd_out : 0)), rows);
}

/* What a device that samples gives back: candidates, probabilities and the token. */
static uint64_t sampled_rows(const struct fit_context *c, uint64_t rows)
{
    return fit_mul(F32 * (3 * (uint64_t)c->pm->m->vocab + 1), rows);
}

/* A drafter that reads hidden states gives its own out too, and samples on the device unless it selects among candidates. */
static struct fit_amount draft_output(const struct fit_run *x, const struct fit_context *c)
{
    uint64_t hidden = F32 * (uint64_t)c->pm->m->embd_out, rows = c->np;
    struct fit_amount a = {.known = FIT_EXACT};
    if (!(x->spec & FIT_SPEC_CONTEXT & ~(unsigned)FIT_SPEC_SIMPLE)) {
        a.bytes = plain_rows(x, c, rows);
        a.high = plain_rows(x, c, c->n_outputs > rows ? c->n_outputs : rows);
    } else if (c->pm->selects) {
        a.bytes = fit_add(plain_rows(x, c, rows), fit_mul(hidden, c->n_batch));
        a.high = fit_add(plain_rows(x, c, c->n_outputs), fit_mul(hidden, c->n_batch));
    } else {
        /* prompts go through heads that stand on the target row by row */
        uint64_t most = x->spec & (FIT_SPEC_MTP | FIT_SPEC_EAGLE3) ? c->n_batch : c->n_outputs;
        a.bytes = fit_add(plain_rows(x, c, rows), fit_mul(hidden, rows));
        a.high = fit_add(plain_rows(x, c, most), fit_mul(hidden, most));
        if (!x->s->no_draft_sampling) {
            a.bytes = fit_add(a.bytes, sampled_rows(c, rows));
            a.high = fit_add(a.high, sampled_rows(c, most));
        }
    }
    return a;
}

/* The target starts with logits alone; hidden states that a drafter reads come with the first batch. */
static struct fit_amount target_output(const struct fit_run *x, const struct fit_context *c)
{
    const struct model *m = c->pm->m;
    uint64_t most = c->n_outputs > c->np ? c->n_outputs : c->np, later = 0;
    if (x->spec & FIT_SPEC_MTP)
        later = fit_mul(F32 * (uint64_t)m->embd_out, c->n_batch);
    if (x->p->drafter && (x->spec & (FIT_SPEC_EAGLE3 | FIT_SPEC_DFLASH | FIT_SPEC_DSPARK)))
        later = fit_add(later, fit_mul(fit_mul(F32 * (uint64_t)m->embd, c->n_batch), x->p->drafter->m->taps));
    if (x->s->sampling)
        later = fit_add(later, sampled_rows(c, most));
    return (struct fit_amount){.bytes = plain_rows(x, c, c->np), .high = fit_add(plain_rows(x, c, most), later), .known = FIT_EXACT};
}

void fit_output(struct fit_run *x, const struct fit_context *c)
{
    struct fit_amount a = c->draft ? draft_output(x, c) : target_output(x, c);
    a.low = a.bytes;
    a.high = a.high > a.bytes ? a.high : a.bytes;
    fit_amount_add(x, x->p->host, c->draft ? FIT_DRAFT_OUTPUT : FIT_OUTPUT, a);
}

/* ---- saved states ------------------------------------------------------------------------------------------------------ */

#define CACHE_HEADER (8 + 4 + 8)  /* of one attention cache, and STREAM_HEADER for each of its streams */
#define STREAM_HEADER 4
#define CELL_HEADER 12            /* position and sequences; as much again with M-RoPE or per-layer embeddings */
#define LAYER_HEADER 12           /* for K and for V */
#define RECURRENT_HEADER (4 + 8 + 8)
#define RECURRENT_LAYER 24
#define TABLE_LAYER 8             /* the state of per-layer embeddings */
#define COMPRESSED_HEADER 132     /* of deepseek4's compressed caches and compressors together */
#define COMPRESSOR_HEADER 24      /* of its compressors alone */
#define COMPRESSOR_LAYER 40       /* of one of a compressor's tensors */

/* One attention cache of a state. */
struct cache_sum {
    uint64_t per_cell, headers;
    bool is; /* the context has it, even when no layer of it is left */
};

static void cache_layer(struct cache_sum *s, const struct gguf_type *k, uint64_t k_width, const struct gguf_type *v, uint64_t v_width)
{
    if (k_width > 0) {
        s->per_cell = fit_add(s->per_cell, fit_row(k, k_width));
        s->headers += LAYER_HEADER;
        s->is = true;
    }
    if (v_width > 0) {
        s->per_cell = fit_add(s->per_cell, fit_row(v, v_width));
        s->headers += LAYER_HEADER;
    }
}

static uint64_t cache_bytes(const struct fit_context *c, const struct cache_sum *s, uint64_t cells)
{
    const struct model *m = c->pm->m;
    if (!s->is)
        return 0;
    uint64_t cell = fit_add(s->per_cell, m->m_rope || m->ple ? 2 * CELL_HEADER : CELL_HEADER);
    return fit_add(CACHE_HEADER + STREAM_HEADER * (uint64_t)c->n_stream + s->headers, fit_mul(cell, cells));
}

struct state_sums {
    struct cache_sum dense, swa, indexer;
    uint64_t recurrent; /* its header included; 0 none */
    uint64_t compressors, n_compressed; /* deepseek4 */
};

static void add_recurrent(struct state_sums *s, const struct model_layer *l)
{
    if (s->recurrent == 0)
        s->recurrent = RECURRENT_HEADER;
    if (l->recurrent)
        s->recurrent = fit_add(s->recurrent, fit_add(RECURRENT_LAYER, fit_mul(F32, fit_add(l->r_elems, l->s_elems))));
    if (l->ple_elems > 0)
        s->recurrent = fit_add(s->recurrent, fit_add(TABLE_LAYER, fit_mul(F32, l->ple_elems)));
}

/* Both tensors of a compressor, of K and of the indexer. */
static void add_compressors(struct state_sums *s, const struct model_layer *l)
{
    const uint64_t elems[] = {l->compressor_elems, l->indexer_compressor_elems};
    for (size_t i = 0; i < BASE_COUNT(elems); i++)
        if (elems[i] > 0)
            s->compressors = fit_add(s->compressors, 2 * fit_add(COMPRESSOR_LAYER, fit_mul(F32, elems[i])));
    s->n_compressed++;
}

/* Cells of deepseek4's coarser caches: they carry no headers of their own. */
static uint64_t compressed_bytes(const struct fit_context *c, uint64_t tokens)
{
    const struct model *m = c->pm->m;
    uint64_t sum = COMPRESSED_HEADER;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        const struct model_layer *l = &m->layers[il];
        if (l->nextn != c->mtp || l->compress_ratio == 0)
            continue;
        uint64_t row = fit_add(fit_row(c->k, l->k_width), l->indexer_k_width ? fit_row(c->k, l->indexer_k_width) : 0);
        sum = fit_add(sum, fit_add(LAYER_HEADER * (l->indexer_k_width ? 2ULL : 1ULL), fit_mul(tokens / l->compress_ratio, row)));
    }
    return sum;
}

static struct state_sums sum_state(const struct fit_context *c)
{
    const struct model *m = c->pm->m;
    struct state_sums s = {.recurrent = 0};
    for (uint32_t il = 0; il < m->n_layer; il++) {
        const struct model_layer *l = &m->layers[il];
        if (!fit_cached_by(c, l))
            continue;
        if (l->attention)
            cache_layer(l->swa ? &s.swa : &s.dense, c->k, l->k_width, c->v, !c->flash && l->v_width ? c->pm->v_width_max : l->v_width);
        if (c->mtp)
            continue;
        if (l->compress_ratio > 0) {
            add_compressors(&s, l);
            continue;
        }
        cache_layer(&s.indexer, c->k, l->indexer_k_width, l->indexer_v_in_k_type ? c->k : c->v, l->indexer_v_width);
        if (l->recurrent || l->ple_elems > 0)
            add_recurrent(&s, l);
    }
    /* a context with two caches keeps both, also when one has no layer */
    s.dense.is |= s.swa.is && !c->mtp;
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
    uint64_t sum = fit_add(cache_bytes(c, &s.dense, tokens), cache_bytes(c, &s.indexer, tokens));
    if (s.n_compressed > 0)
        sum = fit_add(sum, fit_add(compressed_bytes(c, tokens), s.compressors));
    return fit_add(sum, fit_add(cache_bytes(c, &s.swa, window_cells(c, tokens)), s.recurrent));
}

/* What cannot be cut at any position is kept apart: the window's cells, or the recurrent state. */
uint64_t fit_checkpoint_bytes(const struct fit_context *c)
{
    const struct state_sums s = sum_state(c);
    uint64_t compressors = s.n_compressed > 0 ? fit_add(COMPRESSOR_HEADER, s.compressors) : 0;
    return fit_add(fit_add(cache_bytes(c, &s.swa, window_cells(c, c->n_ctx_seq)), s.recurrent), compressors);
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
