/* SPDX-License-Identifier: MIT
 *
 * What each layer caches: keys and values (laws 3.2, 3.4, 3.5, 3.8), recurrent state (3.7), and how blocks become layers (3.9, 3.10). Widths are elements of one cell or one row; types, cells and rows come
 * from a shape, which this module does not know.
 */
#include "model_int.h"

#include <errno.h>
#include <string.h>

struct state {
    uint64_t r, s;
};

static int width(const struct model_load *l, const char *what, uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t w = 0;

    if (!size_mul(a, b, &w) || w > MODEL_WIDTH_MAX)
        return err_set(l->err, -EBADMSG, "%s of one layer would be %llu x %llu elements, which no real model has", what, (unsigned long long)a, (unsigned long long)b);
    *ret = w;
    return 0;
}

/* Law 3.7, the families with keys of their own; *ret_done tells whether one was found. */
static int special_state(const struct model_load *l, struct state *st, bool *ret_done)
{
    uint32_t wkv = 0, shift = 2, conv = 0, kda = 0, kernel = 0;
    uint64_t n = 0;
    int r;

    *ret_done = true;
    if ((r = model_key_u32(l, "wkv.head_size", &wkv)) < 0 || (r = model_key_u32(l, "token_shift_count", &shift)) < 0 || (r = model_key_u32(l, "shortconv.l_cache", &conv)) < 0 ||
        (r = model_key_u32(l, "kda.head_dim", &kda)) < 0 || (r = model_key_u32(l, "ssm.conv_kernel", &kernel)) < 0)
        return r;
    if (wkv > 0) {
        r = width(l, "the token shift", shift, l->m->embd, &st->r);
        return r < 0 ? r : width(l, "the state", l->m->embd, wkv, &st->s);
    }
    if (conv > 0)
        return width(l, "the convolution", conv - 1, l->m->embd, &st->r);
    if (kda > 0) {
        if ((r = width(l, "the convolution", 3ull * (kernel > 0 ? kernel - 1 : 3), l->heads[0], &n)) < 0 || (r = width(l, "the convolution", n, kda, &st->r)) < 0)
            return r;
        r = width(l, "the state", (uint64_t)kda * kda, l->heads[0], &st->s);
        return r;
    }
    *ret_done = false;
    return 0;
}

/* Law 3.7. */
static int read_state(const struct model_load *l, struct state *st)
{
    uint32_t kernel = 0, inner = 0, groups = 0, n_state = 0;
    uint64_t n = 0;
    bool done = false;
    int r;

    r = special_state(l, st, &done);
    if (r < 0 || done)
        return r;
    if (l->arch->flags & F_SQUARE)
        return width(l, "the state", (uint64_t)l->k_head * l->k_head, l->heads[0], &st->s);
    if ((r = model_key_u32(l, "ssm.conv_kernel", &kernel)) < 0 || (r = model_key_u32(l, "ssm.inner_size", &inner)) < 0 || (r = model_key_u32(l, "ssm.group_count", &groups)) < 0 ||
        (r = model_key_u32(l, "ssm.state_size", &n_state)) < 0)
        return r;
    if ((r = width(l, "the convolution", 2ull * groups, n_state, &n)) < 0 || (r = width(l, "the convolution", kernel > 0 ? kernel - 1 : 0, n + inner, &st->r)) < 0)
        return r;
    return width(l, "the state", n_state, inner, &st->s);
}

/* Law 3.7: l->recurrent. */
static int read_recurrent(struct model_load *l)
{
    uint32_t v[MODEL_LAYERS_MAX] = {0}, interval = l->arch->interval;
    int r, found = 0;

    if (l->arch->recurrent == REC_INTERVAL) {
        if ((r = model_key_u32(l, "full_attention_interval", &interval)) < 0 || (r = model_key_blocks(l, "attention.recurrent_layers", true, v, &found)) < 0)
            return r;
        if (found == 0 && interval == 0)
            return err_set(l->err, -EBADMSG, "key '%s.full_attention_interval' is 0", l->m->arch);
        l->m->full_attention_interval = found == 0 ? interval : 0;
    }
    for (uint32_t i = 0; i < l->trunk; i++) {
        switch ((enum arch_recurrent)l->arch->recurrent) {
        case REC_NEVER: break;
        case REC_ALL:
        case REC_BOTH: l->recurrent[i] = true; break;
        case REC_NO_KV_HEADS: l->recurrent[i] = l->kv_heads[i] == 0; break;
        case REC_THREE_KINDS: l->recurrent[i] = l->kv_heads[i] == 0 && l->ff[i] == 0; break;
        case REC_INTERVAL: l->recurrent[i] = found > 0 ? v[i] != 0 : (i + 1) % interval != 0; break;
        }
    }
    return 0;
}

/* Law 3.8: how many blocks, from the first, own their keys and values. */
static int read_owners(struct model_load *l, uint32_t *ret)
{
    uint32_t shared = 0, n = l->trunk;
    int r;

    if (l->arch->flags & F_SHARED_20)
        n = n < 20 ? n : 20;
    if (l->arch->flags & F_SHARED_KEY) {
        if ((r = model_key_u32(l, "attention.shared_kv_layers", &shared)) < 0)
            return r;
        if (shared >= n)
            return err_set(l->err, -EBADMSG, "key '%s.attention.shared_kv_layers' is %u of %u blocks: none would own a cache", l->m->arch, shared, n);
        n -= shared;
        if (shared > 0 && (n < 2 || l->swa[n - 1] || !l->swa[n - 2]))
            return err_set(l->err, -EBADMSG, "the last two of %u blocks that own a cache must be one with a window and one without", n);
    }
    if (l->arch->flags & F_NO_OWN_KV)
        n = 0;
    *ret = n;
    return 0;
}

/* Whether block i has keys and values of its own: laws 3.3, 3.7, 3.8, 3.10. */
static bool has_attention(const struct model_load *l, uint32_t i, uint32_t owners)
{
    if (i >= l->trunk) /* the MTP context's */
        return !l->m->nextn_skipped;
    if (l->arch->cache == CACHE_NO || l->arch->cache == CACHE_STATE || i >= owners)
        return false;
    if (l->arch->recurrent == REC_THREE_KINDS)
        return !l->recurrent[i] && l->ff[i] == 0;
    return l->arch->recurrent == REC_BOTH || !l->recurrent[i];
}

static int set_attention(const struct model_load *l, uint32_t i, struct model_layer *y)
{
    int r;

    y->attention = true;
    y->swa = l->swa[i];
    y->kv_heads = l->kv_heads[i];
    y->k_head = y->swa ? l->k_head_swa : l->k_head;
    if ((r = width(l, "the key", y->k_head, y->kv_heads, &y->k_width)) < 0)
        return r;
    if (l->mla || l->arch->cache == CACHE_V4) /* law 3.5 */
        return 0;
    y->v_head = y->swa ? l->v_head_swa : l->v_head;
    return width(l, "the value", y->v_head, y->kv_heads, &y->v_width);
}

/* Law 3.7, last part: qwen4exp. */
static int read_ple(struct model_load *l)
{
    const struct gguf_kv *kv = model_key(l, "ple.layers");
    uint32_t kernel = 0, ngram = 0, streams = 0;
    uint64_t n = 0;
    int64_t at = 0;
    int r;

    if (!(l->arch->flags & F_PLE) || !kv || kv->type != GGUF_ARRAY || kv->n == 0)
        return 0;
    if ((r = model_key_u32(l, "ple.conv_kernel", &kernel)) < 0 || (r = model_key_u32(l, "ple.ngram_size", &ngram)) < 0 || (r = model_key_u32(l, "hyper_connection.count", &streams)) < 0)
        return r;
    if ((r = width(l, "the embedding state", kernel > 0 ? kernel - 1 : 0, ngram, &n)) < 0 || (r = width(l, "the embedding state", n, streams, &n)) < 0 ||
        (r = width(l, "the embedding state", n, l->m->embd, &n)) < 0)
        return r;
    for (uint64_t i = 0; i < kv->n; i++) {
        if (!gguf_at_i64(kv, i, &at) || at < 0 || at >= l->m->n_block)
            return err_set(l->err, -EBADMSG, "key '%s' names a layer that is not there", kv->key.ptr);
        l->m->layers[at].ple_elems = n;
    }
    l->m->ple = true;
    return 0;
}

/* Law 3.9: blocks that are run several times, and a layer that is no block. */
static int read_extra(struct model_load *l)
{
    struct model *m = l->m;
    uint32_t loops = 1;
    int r;

    if (l->arch->flags & F_ROUTER)
        m->n_layer = m->n_block + 1;
    if (l->arch->flags & F_LOOPS) {
        if ((r = model_key_u32(l, "num_loops", &loops)) < 0)
            return r;
        if (loops == 0 || loops > MODEL_LAYERS_MAX / m->n_block)
            return err_set(l->err, -EBADMSG, "key '%s.num_loops' is %u for %u blocks, possible are 1 to %d layers", m->arch, loops, m->n_block, MODEL_LAYERS_MAX);
        m->n_layer = loops * m->n_block;
    }
    if (m->n_layer > MODEL_LAYERS_MAX)
        return err_set(l->err, -EBADMSG, "the model has %u layers, at most %d are possible", m->n_layer, MODEL_LAYERS_MAX);
    return 0;
}

static int fill_extra(struct model_load *l)
{
    struct model *m = l->m;
    struct model_layer *y;
    int r;

    for (uint32_t i = m->n_block; i < m->n_layer; i++) {
        y = &m->layers[i];
        if (l->arch->flags & F_LOOPS) {
            *y = m->layers[i % m->n_block];
            continue;
        }
        y->attention = true;
        y->heads = y->kv_heads = 1;
        y->k_head = l->k_head;
        y->v_head = l->v_head;
        if ((r = width(l, "the key", y->k_head, 1, &y->k_width)) < 0 || (r = width(l, "the value", y->v_head, 1, &y->v_width)) < 0)
            return r;
    }
    return 0;
}

/* Law 3.3. */
static enum model_cache cache_of(const struct model_load *l)
{
    bool window = l->m->window > 0;

    if (l->arch->cache == CACHE_NO)
        return MODEL_CACHE_NONE;
    switch ((enum arch_cache)l->arch->cache) {
    case CACHE_NO:
    case CACHE_KV: break;
    case CACHE_STATE: return MODEL_CACHE_RECURRENT;
    case CACHE_HYBRID: return window ? MODEL_CACHE_HYBRID_SWA : MODEL_CACHE_HYBRID;
    case CACHE_HYBRID_INDEX: return MODEL_CACHE_HYBRID_INDEXER;
    case CACHE_INDEX: return MODEL_CACHE_INDEXER;
    case CACHE_MLA_INDEX: return window ? MODEL_CACHE_DSA_SWA : MODEL_CACHE_DSA;
    case CACHE_V4: return MODEL_CACHE_DEEPSEEK4;
    }
    return window ? MODEL_CACHE_SWA : MODEL_CACHE_PLAIN;
}

int model_read_layers(struct model_load *l)
{
    struct model *m = l->m;
    struct state st = {0};
    uint32_t owners = 0;
    int r;

    if ((r = read_recurrent(l)) < 0 || (r = model_read_pattern(l)) < 0 || (r = read_owners(l, &owners)) < 0 || (r = read_extra(l)) < 0)
        return r;
    if (l->arch->recurrent != REC_NEVER && (r = read_state(l, &st)) < 0)
        return r;
    m->cache = cache_of(l);
    m->layers = arena_alloc(m->arena, m->n_layer, sizeof(*m->layers));
    if (!m->layers)
        return err_nomem(l->err);
    for (uint32_t i = 0; i < m->n_block; i++) {
        struct model_layer *y = &m->layers[i];

        y->nextn = i >= l->trunk;
        y->heads = l->heads[i];
        y->ff = l->ff[i];
        if (has_attention(l, i, owners) && (r = set_attention(l, i, y)) < 0)
            return r;
        y->recurrent = l->recurrent[i];
        y->r_elems = y->recurrent ? st.r : 0;
        y->s_elems = y->recurrent ? st.s : 0;
    }
    if ((r = fill_extra(l)) < 0 || (r = read_ple(l)) < 0 || (r = model_read_index(l)) < 0)
        return r;
    return l->arch->cache == CACHE_V4 ? model_read_v4(l) : 0;
}
