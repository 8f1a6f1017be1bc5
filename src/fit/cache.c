/* SPDX-License-Identifier: MIT
 *
 * What a context caches (law 3): the sizes as the engine resolves them, then for each layer its K and V cells, its indexer, its recurrent state and deepseek4's compressed caches, each on the layer's device.
 * All tensors of a cache lie in one buffer for each device, every one rounded up to the buffer's alignment.
 */
#include "fit_int.h"

#define BATCH 2048     /* the engine's own -b */
#define RATIO_COARSE 128
#define RATIO_FINE 4

void fit_exact(struct fit_run *x, size_t device, enum fit_term t, uint64_t bytes)
{
    if (bytes == 0)
        return;
    struct fit_amount *a = &x->r->use[device].terms[t];
    a->bytes = fit_add(a->bytes, bytes);
    a->low = fit_add(a->low, bytes);
    a->high = fit_add(a->high, bytes);
}

void fit_amount_add(struct fit_run *x, size_t device, enum fit_term t, struct fit_amount amount)
{
    struct fit_amount *a = &x->r->use[device].terms[t];
    a->bytes = fit_add(a->bytes, amount.bytes);
    a->low = fit_add(a->low, amount.low);
    a->high = fit_add(a->high, amount.high);
    if (amount.known > a->known)
        a->known = amount.known;
}

/* Law 3.1; the order of the steps matters. */
void fit_resolve(struct fit_run *x)
{
    const struct fit_shape *s = x->s;
    const struct model *m = x->p->target->m;
    struct fit_context *c = &x->target;
    uint64_t n_ctx = s->context ? s->context : m->context_trained;
    uint64_t n_batch = s->batch ? s->batch : BATCH;
    if (s->embedding && s->ubatch && n_batch > s->ubatch)
        n_batch = s->ubatch;
    if (m->causal && n_batch > n_ctx)
        n_batch = n_ctx;
    uint64_t n_ubatch = s->ubatch && s->ubatch < n_batch ? s->ubatch : n_batch;
    n_ctx = fit_pad(n_ctx, FIT_CELLS);
    uint64_t n_seq = s->unified ? n_ctx : fit_pad(n_ctx / s->slots, FIT_CELLS);
    if (!s->unified)
        n_ctx = n_seq * s->slots;

    c->np = s->slots;
    c->unified = s->unified;
    c->n_ctx = (uint32_t)(n_ctx > UINT32_MAX ? UINT32_MAX : n_ctx);
    c->n_ctx_seq = (uint32_t)(n_seq > UINT32_MAX ? UINT32_MAX : n_seq);
    c->n_stream = s->unified && !m->always_streams ? 1 : s->slots;
    c->n_batch = (uint32_t)n_batch;
    c->n_ubatch = (uint32_t)n_ubatch;
    c->flash = s->flash != FLEET_OFF && !m->flash_attention_off;
    c->k = s->k_type;
    c->v = s->v_type;
}

uint64_t fit_cells(const struct fit_context *c, const struct fit_shape *s, bool swa)
{
    uint64_t seq = c->n_ctx_seq;
    if (!swa || s->swa_full)
        return seq;
    bool shared = c->unified && !c->pm->m->always_streams;
    uint64_t cells = fit_add(fit_mul(c->pm->m->window, shared ? c->np : 1), c->n_ubatch);
    return fit_pad(cells < seq ? cells : seq, FIT_CELLS);
}

/* Terms that a context counts into. */
struct terms {
    enum fit_term kv, state, indexer;
};

struct cacher {
    struct fit_run *x;
    const struct fit_context *c;
    struct terms t;
    uint64_t dense_rows, swa_rows; /* cells of all streams */
    bool one_v_width;              /* V is transposed and every layer's as wide as the widest */
};

static void put(struct cacher *k, size_t d, enum fit_term t, const struct gguf_type *type, uint64_t width, uint64_t rows)
{
    if (width > 0 && rows > 0)
        fit_exact(k->x, d, t, fit_tensor_bytes(k->x->p->classes[d], type, width, rows));
}

static void put_f32(struct cacher *k, size_t d, uint64_t elements, uint64_t rows)
{
    if (elements > 0)
        put(k, d, k->t.state, gguf_type_get(0), elements, rows);
}

static void put_attention(struct cacher *k, const struct model_layer *l, size_t d)
{
    uint64_t rows = l->swa ? k->swa_rows : k->dense_rows;
    put(k, d, k->t.kv, k->c->k, l->k_width, rows);
    if (l->v_width > 0)
        put(k, d, k->t.kv, k->c->v, k->one_v_width ? k->c->pm->v_width_max : l->v_width, rows);
}

/* deepseek4: beside the raw window a coarser cache of the whole sequence, and what compresses it. */
static void put_compressed(struct cacher *k, const struct model_layer *l, size_t d)
{
    uint64_t seq = k->c->n_ctx_seq, rows = k->c->n_stream;
    uint64_t cells = fit_pad((seq + l->compress_ratio - 1) / l->compress_ratio, FIT_CELLS) * rows;
    put(k, d, k->t.kv, k->c->k, l->k_width, cells);
    put(k, d, k->t.indexer, k->c->k, l->indexer_k_width, cells);
    for (int twice = 0; twice < 2; twice++) {
        put_f32(k, d, l->compressor_elems, rows * k->c->rs_seq);
        put_f32(k, d, l->indexer_compressor_elems, rows * k->c->rs_seq);
    }
}

static void put_layer(struct cacher *k, const struct model_layer *l, size_t d)
{
    if (l->attention)
        put_attention(k, l, d);
    if (k->c->mtp)
        return; /* plain attention only */
    if (l->compress_ratio > 0) {
        put_compressed(k, l, d);
    } else {
        put(k, d, k->t.indexer, k->c->k, l->indexer_k_width, k->dense_rows);
        put(k, d, k->t.indexer, l->indexer_v_in_k_type ? k->c->k : k->c->v, l->indexer_v_width, k->dense_rows);
    }
    if (l->recurrent) {
        put_f32(k, d, l->r_elems, k->c->rs_rows);
        put_f32(k, d, l->s_elems, k->c->rs_rows);
    }
    put_f32(k, d, l->ple_elems, k->c->rs_rows);
}

void fit_caches(struct fit_run *x, const struct fit_context *c)
{
    const struct model *m = c->pm->m;
    if (m->cache == MODEL_CACHE_NONE)
        return;
    struct cacher k = {.x = x, .c = c, .t = {FIT_KV, FIT_STATE, FIT_INDEXER}};
    if (c->draft)
        k.t = (struct terms){FIT_DRAFT_KV, FIT_DRAFT_STATE, FIT_DRAFT_STATE};
    k.dense_rows = fit_mul(fit_cells(c, x->s, false), c->n_stream);
    k.swa_rows = fit_mul(fit_cells(c, x->s, true), c->n_stream);
    k.one_v_width = !c->flash;
    for (uint32_t il = 0; il < m->n_layer; il++)
        if (fit_cached_by(c, &m->layers[il]))
            put_layer(&k, &m->layers[il], x->s->kv_on_cpu ? x->p->host : c->device[il]);
}
