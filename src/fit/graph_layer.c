/* SPDX-License-Identifier: MIT
 *
 * One layer of a graph, in the order of the engine's nodes: what is taken, and given back after its last use. Ropes and norms of a reshaped tensor take a block of their own; sums, scalings and norms of a whole tensor work
 * in place. A layer is plain attention, MLA, or a state (delta net, mamba, short convolution), then a feed-forward part, dense or of experts, behind or beside it; graph_read.c says what.
 */
#include "graph_int.h"

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

/* A learned bias for every pair of tokens, looked up and laid out as the scores are, which it is added to. */
static void add_bias(struct fit_play *p, uint32_t il, uint64_t tokens, uint64_t cells)
{
    uint64_t heads = p->m->layers[il].heads;
    if (!(p->g->traits & FIT_BIAS) || p->g->from > 0) /* its table lies with the first layer, and so does the work */
        return;
    struct fit_block bias = turn(p, column(p, fit_mul(heads, tokens)), fit_mul(heads, tokens));
    if (cells > tokens)
        bias = turn(p, bias, fit_mul(heads, cells));
    give(p, bias);
}

/* Scores and sums over the cells: one fused step with flash attention. out: columns of the result. */
static struct fit_block attend(struct fit_play *p, uint32_t il, struct fit_block q, uint64_t out)
{
    const struct fit_graph *g = p->g;
    if (fit_fused(g)) {
        const struct model_layer *m = &g->m->layers[il];
        uint64_t all = 2 * (m->swa ? g->all_swa_cells : g->all_cells);
        struct fit_block k = take(p, g->cast_k ? fit_mul(all, m->k_width) : 0), v = take(p, g->cast_v ? fit_mul(all, m->v_width) : 0);
        struct fit_block fa = turn(p, q, out);
        give(p, k);
        give(p, v);
        fit_play_read(p, il, FIT_READ_MASK);
        return fa;
    }
    uint64_t cells = g->m->layers[il].swa ? g->swa_cells : g->cells;
    struct fit_block v = take(p, g->flash ? fit_mul(fit_mul(2, g->all_cells), g->m->layers[il].v_width) : 0); /* which is not transposed in the cache */
    struct fit_block kq = turn(p, q, fit_mul(g->m->layers[il].heads, cells));
    add_bias(p, il, cells, cells);
    fit_play_read(p, il, FIT_READ_MASK);
    struct fit_block kqv = turn(p, kq, out);
    give(p, v);
    return turn(p, kqv, out);
}

/* What attention works on: q, k and v, and what they are views of. */
struct heads {
    struct fit_block q, k, v, whole;
    bool gated; /* q and a gate for what comes out were one product */
};

/* The same over the ubatch's own tokens: K and V are padded to whole cells, and made f16 for the fused step. */
static struct fit_block attend_tokens(struct fit_play *p, uint32_t il, struct heads *h, uint64_t out)
{
    const struct fit_layer *l = &p->g->layers[il];
    uint64_t cells = fit_pad(p->g->ub, FIT_CELLS), k = fit_mul(cells, l->k), v = fit_mul(cells, l->v);
    bool views = l->qkv > 0, fused = fit_fused(p->g);
    struct fit_block padded = take(p, fit_mul(F32, fused ? k : v));
    if (!views)
        give(p, fused ? h->k : h->v);
    struct fit_block made = take(p, fused ? fit_mul(2, k) : fit_mul(F32, v));
    give(p, padded);
    padded = take(p, fit_mul(F32, fused ? v : k));
    if (!views)
        give(p, fused ? h->v : h->k);
    if (fused) {
        struct fit_block other = take(p, fit_mul(2, v));
        give(p, padded);
        struct fit_block fa = turn(p, h->q, out);
        give(p, made);
        give(p, other);
        fit_play_read(p, il, FIT_READ_MASK);
        return fa;
    }
    struct fit_block kq = turn(p, h->q, fit_mul(p->m->layers[il].heads, cells));
    give(p, padded);
    add_bias(p, il, p->g->ub, cells);
    fit_play_read(p, il, FIT_READ_MASK);
    struct fit_block kqv = turn(p, kq, out);
    give(p, made);
    return turn(p, kqv, out);
}

/* MLA: q is carried into K's latent space, the sum is carried back. */
static struct fit_block latent_attention(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_layer *l = &p->g->layers[il];
    uint64_t heads = p->m->layers[il].heads, rope = l->kv_a > l->lora ? l->kv_a - l->lora : 0;
    bool chooses = fit_indexed(p->g, il);
    struct fit_block rank = {0, 0}, choice = {0, 0}, mask = {0, 0};
    if (chooses)
        fit_index_keys(p, il);
    if (l->q_a > 0)
        rank = column(p, l->q_a);
    struct fit_block q = column(p, l->q);
    if (!chooses)
        give(p, rank);
    struct fit_block absorbed = column(p, l->lora * heads), q_rope = column(p, rope * heads);
    give(p, q);
    q = column(p, l->kv_a * heads);
    give(p, absorbed);
    give(p, q_rope);
    struct fit_block kv = column(p, l->kv_a);
    if (!keep_n && !chooses)
        give(p, n);
    struct fit_block c = column(p, l->lora), k_rope = column(p, rope);
    give(p, kv);
    fit_play_read(p, il, FIT_READ_POS);
    struct fit_block k = column(p, l->kv_a);
    give(p, c);
    give(p, k_rope);
    give(p, k);
    fit_play_read(p, il, FIT_READ_K);
    if (chooses) {
        choice = fit_index_choose(p, il, &rank);
        if (!keep_n)
            give(p, n);
        mask = fit_index_mask(p, il, choice);
    }
    struct fit_block fa = attend(p, il, q, l->lora * heads);
    give(p, mask);
    return turn(p, turn(p, fa, l->o), l->o);
}

/* One product for all three: they are views of it until a rope makes q and k tensors of their own. */
static void project_together(struct fit_play *p, const struct fit_layer *l, struct heads *h, struct fit_block n, bool keep_n)
{
    const struct fit_graph *g = p->g;
    *h = (struct heads){.whole = column(p, l->qkv)};
    if (!keep_n)
        give(p, n);
    if (g->rope)
        h->q = column(p, l->q);
    if (g->turn_k)
        h->q = turn(p, h->q, l->q);
    if (g->turn_v)
        h->v = turn(p, column(p, l->v), l->v);
    if (g->rope)
        h->k = column(p, l->k);
    if (h->q.size == 0) {
        h->q = h->whole;
        h->whole = (struct fit_block){0, 0};
    } else if (h->v.size > 0 && h->k.size > 0) {
        give(p, h->whole);
        h->whole = (struct fit_block){0, 0};
    }
}

static void project(struct fit_play *p, const struct fit_layer *l, struct heads *h, struct fit_block n, bool keep_n)
{
    const struct fit_graph *g = p->g;
    h->gated = l->o > 0 && l->q == 2 * l->o;
    h->q = column(p, l->q);
    if (h->gated) {
        h->whole = h->q;
        h->q = column(p, l->o);
    } else if (g->rope) {
        h->q = turn(p, h->q, l->q);
    }
    if (g->turn_k && !g->no_cache)
        h->q = turn(p, h->q, h->gated ? l->o : l->q);
    if (g->no_cache) { /* with one it is V that comes first */
        h->k = column(p, l->k);
        if (g->rope)
            h->k = turn(p, h->k, l->k);
    }
    h->v = column(p, l->v);
    if (g->turn_v && !g->no_cache)
        h->v = turn(p, h->v, l->v);
    if (!g->no_cache)
        h->k = column(p, l->k);
    if (!keep_n)
        give(p, n);
    if (g->rope && !g->no_cache)
        h->k = turn(p, h->k, l->k);
}

/* Attention on the normed input n; returns what the last product reads. */
static struct fit_block attention(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_graph *g = p->g;
    const struct fit_layer *l = &g->layers[il];
    struct heads h = {.gated = false};
    bool chooses = fit_indexed(g, il);
    struct fit_block choice = {0, 0}, none = {0, 0};
    if (l->kv_a > 0 && l->lora > 0)
        return latent_attention(p, il, n, keep_n);
    if (chooses) {
        fit_index_keys(p, il);
        choice = fit_index_choose(p, il, &none);
    }
    if (l->qkv > 0)
        project_together(p, l, &h, n, keep_n);
    else
        project(p, l, &h, n, keep_n);
    fit_play_read(p, il, FIT_READ_POS);
    if (g->no_cache) {
        struct fit_block fa = attend_tokens(p, il, &h, l->o);
        if (l->qkv > 0) {
            give(p, h.k);
            give(p, h.whole);
        }
        return fa;
    }
    if (g->turn_k)
        h.k = turn(p, h.k, l->k);
    give(p, h.k);
    fit_play_read(p, il, FIT_READ_K);
    give(p, h.v);
    if (!h.gated)
        give(p, h.whole);
    fit_play_read(p, il, FIT_READ_V);
    struct fit_block mask = chooses ? fit_index_mask(p, il, choice) : none, fa = attend(p, il, h.q, l->o);
    give(p, mask);
    if (g->turn_v && !(g->traits & FIT_FFN_FIRST))
        fa = turn(p, fa, l->o);
    if (h.gated)
        give(p, turn(p, h.whole, l->o));
    return fa;
}

/* ---- states ------------------------------------------------------------------------------------------------------------------ */

/* Rows of the convolution's and the scan's state for all sequences. */
static struct fit_block rows(struct fit_play *p, uint64_t elems)
{
    return take(p, fit_mul(F32 * (uint64_t)p->g->np, elems));
}

static struct fit_block convolved(struct fit_play *p, struct fit_block *in, bool keep_in, uint64_t channels, struct fit_block state, uint64_t state_elems)
{
    struct fit_block joined = take(p, fit_add(fit_mul(p->f, channels), fit_mul(F32 * (uint64_t)p->g->np, state_elems)));
    give(p, state);
    if (!keep_in)
        give(p, *in);
    return turn(p, joined, channels);
}

static struct fit_block delta_net(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_layer *l = &p->g->layers[il];
    const struct model_layer *m = &p->m->layers[il];
    uint64_t inner = l->inner, qk = l->qkv > inner ? (l->qkv - inner) / 2 : l->qkv;
    struct fit_block r = rows(p, m->r_elems), in = column(p, l->qkv);
    /* the scan's state is fetched between the two halves of the convolution */
    struct fit_block joined = take(p, fit_add(fit_mul(p->f, l->qkv), fit_mul(F32 * (uint64_t)p->g->np, m->r_elems)));
    give(p, r);
    give(p, in);
    struct fit_block s = rows(p, m->s_elems), conv = turn(p, joined, l->qkv);
    struct fit_block q = column(p, qk), k = column(p, qk);
    struct fit_block out = take(p, fit_add(fit_mul(p->f, inner), fit_mul(F32 * (uint64_t)p->g->np, m->s_elems)));
    give(p, q);
    give(p, k);
    give(p, conv);
    give(p, s);
    struct fit_block normed = turn(p, out, inner), gate = column(p, inner);
    if (!keep_n)
        give(p, n);
    give(p, turn(p, gate, inner));
    return normed;
}

static struct fit_block mamba(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_layer *l = &p->g->layers[il];
    const struct model_layer *m = &p->m->layers[il];
    uint64_t inner = l->inner;
    bool second = l->mixer == FIT_MIX_MAMBA2;
    struct fit_block r = p->next_state.size > 0 ? p->next_state : rows(p, m->r_elems), in = column(p, l->in), x = {0, 0}, dt = {0, 0};
    if (!keep_n)
        give(p, n);
    struct fit_block conv = convolved(p, &in, true, l->conv, r, m->r_elems);
    if (!second) {
        x = column(p, l->x);
        dt = column(p, inner);
    }
    struct fit_block scan = take(p, fit_add(fit_mul(p->f, inner), fit_mul(F32 * (uint64_t)p->g->np, m->s_elems)));
    give(p, dt);
    give(p, x);
    if (p->g->np > 1) /* states of other sequences are moved */
        give(p, take(p, fit_mul(F32 * (uint64_t)(p->g->np - 1), m->s_elems)));
    p->next_state = (struct fit_block){0, 0};
    if (il + 1 < p->g->to && p->m->layers[il + 1].recurrent && p->m->layers[il + 1].r_elems > 0)
        p->next_state = rows(p, p->m->layers[il + 1].r_elems);
    struct fit_block z = turn(p, in, inner), y = turn(p, conv, inner);
    give(p, scan);
    struct fit_block out = column(p, inner);
    give(p, z);
    give(p, y);
    return second ? turn(p, out, inner) : out;
}

static struct fit_block short_conv(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_layer *l = &p->g->layers[il];
    const struct model_layer *m = &p->m->layers[il];
    struct fit_block in = column(p, l->in);
    if (!keep_n)
        give(p, n);
    struct fit_block r = rows(p, m->r_elems), bx = column(p, l->inner);
    struct fit_block conv = convolved(p, &bx, false, l->inner, r, m->r_elems);
    give(p, in);
    return conv;
}

/* Other states: roughly, projections as wide as all that they mix, and both rows of the state. */
static struct fit_block other_state(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_layer *l = &p->g->layers[il];
    const struct model_layer *m = &p->m->layers[il];
    uint64_t wide = l->o > 0 ? l->o : p->m->embd;
    struct fit_block in = column(p, 3 * wide), conv = column(p, 3 * wide), s = rows(p, fit_mul(2, fit_add(m->r_elems, m->s_elems)));
    struct fit_block out = column(p, wide), gate = column(p, wide);
    give(p, in);
    give(p, conv);
    give(p, s);
    give(p, gate);
    if (!keep_n)
        give(p, n);
    return out;
}

static struct fit_block state(struct fit_play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    switch (p->g->layers[il].mixer) {
    case FIT_MIX_DELTA:
        return delta_net(p, il, n, keep_n);
    case FIT_MIX_MAMBA:
    case FIT_MIX_MAMBA2:
        return mamba(p, il, n, keep_n);
    case FIT_MIX_SHORT:
        return short_conv(p, il, n, keep_n);
    default:
        return other_state(p, il, n, keep_n);
    }
}

/* ---- feed-forward ---------------------------------------------------------------------------------------------------------------- */

static struct fit_block dense(struct fit_play *p, uint64_t up, uint64_t down, bool gated, struct fit_block n)
{
    struct fit_block gate = {0, 0}, u, h;
    if (gated)
        gate = column(p, down);
    u = column(p, up);
    give(p, n);
    h = u;
    if (gated || up != down) {
        h = column(p, down);
        give(p, gate);
        give(p, u);
    }
    return turn(p, h, p->m->embd);
}

static struct fit_block experts(struct fit_play *p, const struct fit_layer *l, struct fit_block n, bool away)
{
    const struct model *m = p->m;
    uint64_t used = m->experts_used;
    struct fit_block logits = column(p, m->experts), order = column(p, m->experts), weights = column(p, used);
    give(p, logits);
    give(p, column(p, 1));
    struct fit_block gate = {0, 0}, up = {0, 0}, h = {0, 0}, d;
    if (!away) { /* else only their outputs come back */
        gate = column(p, used * l->expert);
        up = column(p, used * l->expert);
    }
    if (l->shared == 0)
        give(p, n);
    if (!away)
        h = column(p, used * l->expert);
    give(p, gate);
    give(p, up);
    d = turn(p, h, used * m->embd);
    give(p, order);
    give(p, weights);
    struct fit_block sum = turn(p, d, m->embd);
    if (l->shared > 0)
        give(p, dense(p, l->shared, l->shared, true, n));
    return sum;
}

/* ---- the layer --------------------------------------------------------------------------------------------------------------------- */

/* From here on only the rows that are asked for. */
static struct fit_block last_rows(struct fit_play *p, struct fit_block o, struct fit_block x, bool give_x)
{
    uint64_t bytes = fit_mul(p->fo, p->m->embd);
    struct fit_block to = take(p, bytes);
    give(p, o);
    struct fit_block residual = take(p, bytes);
    if (give_x)
        give(p, x);
    give(p, residual);
    p->f = p->fo;
    return to;
}

/* Hyper-connections: the layer works on a mix of several residual streams. *norm is what the mix is made from, kept until the part's result is spread over them. */
static struct fit_block mixed(struct fit_play *p, struct fit_block *norm)
{
    uint64_t wide = (uint64_t)p->m->hyper * p->m->embd;
    bool gated = p->g->traits & FIT_HYPER_GATE;
    *norm = column(p, wide);
    struct fit_block gate = column(p, gated ? wide : 0), n = column(p, p->m->embd);
    give(p, gate);
    if (!gated) {
        give(p, *norm);
        *norm = (struct fit_block){0, 0};
    }
    return n;
}

static struct fit_block spread(struct fit_play *p, struct fit_block part, struct fit_block norm, struct fit_block x, bool give_x)
{
    struct fit_block to = column(p, (uint64_t)p->m->hyper * p->m->embd);
    give(p, part);
    give(p, norm);
    if (give_x)
        give(p, x);
    return to;
}

static void hyper_layer(struct fit_play *p, uint32_t il, struct fit_block *x, bool give_x)
{
    const struct fit_graph *g = p->g;
    const struct fit_layer *l = &g->layers[il];
    struct fit_block norm, n = mixed(p, &norm);
    struct fit_block fa = p->m->layers[il].recurrent ? state(p, il, n, false) : attention(p, il, n, false);
    *x = spread(p, turn(p, fa, p->m->embd), norm, *x, give_x);
    if (il + 1 == g->n_layer && !g->all_rows && (g->traits & FIT_HYPER_GATE)) {
        *x = turn_bytes(p, *x, fit_mul(p->fo, (uint64_t)p->m->hyper * p->m->embd));
        p->f = p->fo;
    }
    n = mixed(p, &norm);
    fa = l->expert > 0 && p->m->experts > 0 ? experts(p, l, n, fit_experts_away(g, il)) : dense(p, l->up, l->down, l->gated, n);
    *x = spread(p, fa, norm, *x, true);
}

static struct fit_block picked(struct fit_play *p, struct fit_block b, bool give_b)
{
    struct fit_block rows = take(p, fit_mul(p->fo, p->m->embd));
    if (give_b)
        give(p, b);
    return rows;
}

/* The feed-forward part works on the same normed input before attention's last product does. */
static struct fit_block ffn_first(struct fit_play *p, uint32_t il, struct fit_block x, bool give_x, struct fit_block n, struct fit_block fa)
{
    const struct fit_layer *l = &p->g->layers[il];
    bool last = il + 1 == p->g->n_layer && !p->g->all_rows;
    uint64_t all = p->f;
    if (last) {
        n = picked(p, n, true);
        p->f = p->fo;
    }
    struct fit_block sum = dense(p, l->up, l->down, l->gated, n);
    if (last)
        give(p, picked(p, x, give_x));
    else if (give_x)
        give(p, x);
    p->f = all;
    if (p->g->turn_v)
        fa = turn(p, fa, l->o);
    struct fit_block o = turn(p, fa, p->m->embd);
    if (last) {
        o = picked(p, o, true);
        p->f = p->fo;
    }
    give(p, o);
    return sum;
}

void fit_play_layer(struct fit_play *p, uint32_t il, struct fit_block *x, bool give_x)
{
    const struct fit_graph *g = p->g;
    const struct fit_layer *l = &g->layers[il];
    const struct model_layer *m = &p->m->layers[il];
    if (p->m->hyper > 1) {
        hyper_layer(p, il, x, give_x);
        return;
    }
    bool feeds = l->up > 0 || (l->expert > 0 && p->m->experts > 0);
    /* a layer without a cache of its own may attend to another's */
    bool attends = m->attention || g->no_cache || (!m->recurrent && (l->q > 0 || l->qkv > 0));
    bool parallel = feeds && !l->ffn_norm && !l->post_ffn && (attends || m->recurrent);
    bool behind = l->post_ffn && !l->pre_ffn; /* norms stand behind both parts alone */
    struct fit_block n = column(p, behind && !l->attn_norm ? 0 : p->m->embd), fa = {0, 0}, o = *x;
    if (m->recurrent)
        fa = state(p, il, n, parallel || attends);
    if (attends) {
        if (m->recurrent)
            fa = turn(p, fa, p->m->embd);
        struct fit_block both = fa;
        fa = attention(p, il, n, parallel);
        give(p, both);
    }
    if (parallel && (g->traits & FIT_FFN_FIRST)) {
        *x = ffn_first(p, il, *x, give_x, n, fa);
        return;
    }
    if (attends || m->recurrent) {
        o = turn(p, fa, p->m->embd);
        if (il + 1 == g->n_layer && !g->all_rows)
            o = last_rows(p, o, *x, give_x);
        else if (give_x)
            give(p, *x);
        if (feeds && !parallel)
            n = column(p, behind ? 0 : p->m->embd);
    }
    if (!feeds) {
        *x = o;
        return;
    }
    *x = l->expert > 0 && p->m->experts > 0 ? experts(p, l, n, fit_experts_away(g, il)) : dense(p, l->up, l->down, l->gated, n);
    give(p, o);
}
