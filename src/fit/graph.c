/* SPDX-License-Identifier: MIT
 *
 * The engine's graph of one ubatch, played through its allocator (law 4): which activations are taken and given back, in the order of its nodes. Ropes and norms of a reshaped tensor take a block of their own, sums and
 * scalings work in place, inputs that cross devices in a pipeline are kept four times and for good. One program covers the transformers whose layers are attention and a feed-forward part, dense or of experts,
 * after each other or beside each other; what of it a model has is read from its tensors' names. Recurrent and other layers are played by their widest parts.
 */
#include "fit_int.h"

#include <errno.h>

#define F32 4
#define SEEN_MAX 16     /* kinds of layers that are told apart */
#define PLAYED 2        /* layers of one kind that are played before the rest is taken for the same */

/* ---- what a layer is made of --------------------------------------------------------------------------------------- */

static uint64_t clamp_width(uint64_t n)
{
    return n > UINT32_MAX ? UINT32_MAX : n;
}

static void read_tensor(struct fit_layer *l, struct str name, const struct model_tensor *t)
{
    uint32_t in = (uint32_t)clamp_width(t->ne[0]), out = (uint32_t)clamp_width(t->ne[1]);
    if (str_eq_c(name, "attn_q.weight")) {
        l->q = out;
    } else if (str_eq_c(name, "attn_q_b.weight")) {
        l->q = out;
    } else if (str_eq_c(name, "attn_qkv.weight")) {
        l->qkv = out;
    } else if (str_eq_c(name, "attn_output.weight")) {
        l->o = in;
    } else if (str_eq_c(name, "ffn_up.weight")) {
        l->up = out;
    } else if (str_eq_c(name, "ffn_down.weight")) {
        l->down = in;
    } else if (str_eq_c(name, "ffn_gate.weight")) {
        l->gated = true;
    } else if (str_eq_c(name, "ffn_down_exps.weight")) {
        l->expert = in;
    } else if (str_eq_c(name, "ffn_down_shexp.weight")) {
        l->shared = in;
    } else if (str_eq_c(name, "ffn_norm.weight") || str_eq_c(name, "attn_norm_2.weight") || str_eq_c(name, "post_attention_norm.weight")) {
        l->ffn_norm = true;
    } else if (str_eq_c(name, "ssm_in.weight") || str_eq_c(name, "attn_gate.weight") || str_eq_c(name, "ssm_conv1d.weight")) {
        l->wide = l->wide > out ? l->wide : out;
    }
}

int fit_layers_new(const struct model *m, struct arena *a, struct fit_layer **ret)
{
    struct fit_layer *all = arena_alloc(a, m->n_layer > 0 ? m->n_layer : 1, sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct model_tensor *t = &m->tensors[i];
        struct str name = str_of(t->name);
        if (t->layer < 0 || (uint32_t)t->layer >= m->n_layer || !str_starts(name, STR("blk.")))
            continue;
        (void)str_split(&name, '.');
        (void)str_split(&name, '.');
        read_tensor(&all[t->layer], name, t);
    }
    for (uint32_t il = 0; il < m->n_layer; il++) {
        struct fit_layer *l = &all[il];
        const struct model_layer *x = &m->layers[il];
        l->k = (uint32_t)clamp_width(x->k_width);
        l->v = (uint32_t)clamp_width(x->v_width > 0 ? x->v_width : x->k_width);
        if (l->qkv > 0)
            l->q = l->qkv > l->k + l->v ? l->qkv - l->k - l->v : l->qkv;
        if (l->o == 0)
            l->o = l->q;
    }
    *ret = all;
    return 0;
}

static bool has_rope(const struct model *m)
{
    static const char *const without[] = {"bloom", "gpt2", "mpt", "jais", "refact", "starcoder"};
    for (size_t i = 0; i < BASE_COUNT(without); i++)
        if (str_eq_c(str_of(m->arch), without[i]))
            return false;
    return true;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------------- */

struct play {
    const struct fit_graph *g;
    const struct model *m;
    struct fit_heap h;
    uint64_t f, fo;       /* bytes of one f32 column for the ubatch, for its outputs */
    struct fit_block idx[2][3]; /* of the dense and the windowed cache: places of K and V, mask */
    uint32_t last_use[2];       /* last layer here that reads them */
    bool keep;            /* inputs stay */
};

static struct fit_block take(struct play *p, uint64_t bytes)
{
    return fit_heap_take(&p->h, bytes);
}
static struct fit_block column(struct play *p, uint64_t width)
{
    return fit_heap_take(&p->h, fit_mul(p->f, width));
}
static void give(struct play *p, struct fit_block b)
{
    fit_heap_give(&p->h, b);
}

/* An input: as many copies as the pipeline keeps; the last one is worked with. */
static struct fit_block input(struct play *p, uint64_t bytes)
{
    struct fit_block b = {0, 0};
    for (uint32_t i = 0; i < p->g->copies; i++)
        b = take(p, bytes);
    return b;
}

/* What a cache's layers read beside activations. */
static void cache_inputs(struct play *p, bool swa)
{
    const struct fit_graph *g = p->g;
    uint64_t ub = g->ub, cells = swa ? g->swa_cells : g->cells;
    struct fit_block *b = p->idx[swa];
    if (g->no_cache) { /* tokens look at each other alone */
        b[2] = input(p, fit_mul(g->flash ? 2 : 4, fit_mul(ub, ub)));
        return;
    }
    b[0] = input(p, 8 * ub);
    b[1] = input(p, fit_mul(8 * ub, g->flash ? 1 : g->v_max));
    b[2] = input(p, fit_mul((g->flash ? 2 : 4) * ub, cells));
}

static bool uses(const struct fit_graph *g, uint32_t il, bool swa)
{
    return (g->no_cache || g->m->layers[il].attention || g->m->layers[il].k_width > 0) && g->m->layers[il].swa == swa;
}

/* Inputs come in the order in which layers ask for them first. */
static void all_cache_inputs(struct play *p)
{
    const struct fit_graph *g = p->g;
    bool done[2] = {false, false};
    for (uint32_t il = g->from; il < g->to; il++)
        for (int swa = 0; swa < 2; swa++)
            if (uses(g, il, swa)) {
                p->last_use[swa] = il;
                if (!done[swa])
                    cache_inputs(p, swa);
                done[swa] = true;
            }
}

static void done_with_inputs(struct play *p, uint32_t il)
{
    for (int swa = 0; swa < 2; swa++) {
        if (p->keep || !uses(p->g, il, swa) || p->last_use[swa] != il)
            continue;
        for (int i = 0; i < 3; i++)
            give(p, p->idx[swa][i]);
    }
}

/* ---- one layer --------------------------------------------------------------------------------------------------------------- */

/* Attention on the normed input n (kept when it is used again); returns its output, before the last product. */
static struct fit_block attention(struct play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_graph *g = p->g;
    const struct fit_layer *l = &g->layers[il];
    struct fit_block q, k = {0, 0}, v = {0, 0}, qkv = {0, 0}, t;
    bool rope = g->rope;
    if (l->qkv > 0) {
        q = qkv = column(p, l->qkv);
        if (!keep_n)
            give(p, n);
        if (rope) {
            q = column(p, l->q);
            k = column(p, l->k);
        }
    } else {
        q = column(p, l->q);
        if (rope) {
            t = column(p, l->q);
            give(p, q);
            q = t;
        }
        v = column(p, l->v);
        k = column(p, l->k);
        if (!keep_n)
            give(p, n);
        if (rope) {
            t = column(p, l->k);
            give(p, k);
            k = t;
        }
    }
    struct fit_block fa = {0, 0};
    if (!g->no_cache) {
        give(p, k);
        give(p, v);
        if (rope)
            give(p, qkv);
    }
    if (g->flash) {
        fa = column(p, l->o);
        give(p, q);
    } else {
        uint64_t cells = g->no_cache ? g->ub : g->m->layers[il].swa ? g->swa_cells : g->cells;
        struct fit_block kq = column(p, fit_mul(g->m->layers[il].heads, cells));
        give(p, q);
        struct fit_block kqv = column(p, l->o);
        give(p, kq);
        fa = column(p, l->o);
        give(p, kqv);
    }
    if (g->no_cache) {
        give(p, k);
        give(p, v);
        if (rope)
            give(p, qkv);
    }
    return fa;
}

/* A gated or plain feed-forward part of width w, on n, which is given back after its last use when given_n. */
static struct fit_block dense(struct play *p, uint64_t up, uint64_t down, bool gated, struct fit_block n, bool give_n)
{
    struct fit_block h, u = {0, 0}, gate = {0, 0};
    if (gated) {
        gate = column(p, down);
        u = column(p, up);
    } else {
        u = column(p, up);
    }
    if (give_n)
        give(p, n);
    if (gated || up != down) {
        h = column(p, down);
        give(p, gate);
        give(p, u);
    } else {
        h = u;
    }
    struct fit_block d = column(p, p->m->embd);
    give(p, h);
    return d;
}

static struct fit_block experts(struct play *p, const struct fit_layer *l, struct fit_block n)
{
    const struct model *m = p->m;
    uint64_t used = m->experts_used;
    struct fit_block logits = column(p, m->experts), order = column(p, m->experts), weights = column(p, used);
    give(p, logits);
    give(p, column(p, 1));
    struct fit_block gate = column(p, used * l->expert), up = column(p, used * l->expert);
    if (l->shared == 0)
        give(p, n);
    struct fit_block h = column(p, used * l->expert);
    give(p, gate);
    give(p, up);
    struct fit_block d = column(p, used * m->embd);
    give(p, h);
    give(p, order);
    give(p, weights);
    struct fit_block sum = column(p, m->embd);
    give(p, d);
    if (l->shared > 0)
        give(p, dense(p, l->shared, l->shared, true, n, true));
    return sum;
}

/* State layers: what they project to, their convolution and their output live at once. */
static struct fit_block recurrent(struct play *p, uint32_t il, struct fit_block n, bool keep_n)
{
    const struct fit_layer *l = &p->g->layers[il];
    const struct model_layer *x = &p->m->layers[il];
    uint64_t wide = l->qkv > l->wide ? l->qkv : l->wide ? l->wide : 2 * (uint64_t)p->m->embd;
    struct fit_block in = column(p, wide), gate = column(p, wide), conv = column(p, wide);
    if (!keep_n)
        give(p, n);
    struct fit_block state = take(p, fit_mul(F32 * 2, fit_mul(fit_add(x->r_elems, x->s_elems), p->g->np)));
    struct fit_block q = column(p, wide), out = column(p, wide);
    give(p, in);
    give(p, gate);
    give(p, conv);
    give(p, state);
    give(p, q);
    return out;
}

/* A layer on the residual stream x; *x becomes what it hands on. */
static void layer(struct play *p, uint32_t il, struct fit_block *x, bool give_x)
{
    const struct fit_graph *g = p->g;
    const struct fit_layer *l = &g->layers[il];
    const struct model_layer *ml = &p->m->layers[il];
    bool parallel = !l->ffn_norm && (l->up > 0 || l->expert > 0);
    bool last = il + 1 == g->n_layer;
    struct fit_block n = column(p, p->m->embd);
    bool attends = ml->attention || ml->k_width > 0 || g->no_cache;
    struct fit_block fa = {0, 0};
    if (ml->recurrent)
        fa = recurrent(p, il, n, parallel || attends);
    if (attends) {
        give(p, fa);
        fa = attention(p, il, n, parallel);
    }
    struct fit_block o = column(p, p->m->embd);
    give(p, fa);
    done_with_inputs(p, il);
    if (last) { /* from here on only rows that are asked for */
        struct fit_block rows = take(p, fit_mul(p->fo, p->m->embd));
        give(p, o);
        struct fit_block residual = take(p, fit_mul(p->fo, p->m->embd));
        if (give_x)
            give(p, *x);
        give(p, residual);
        o = rows;
        p->f = p->fo;
    } else if (give_x) {
        give(p, *x);
    }
    if (l->up == 0 && l->expert == 0) {
        if (parallel)
            give(p, n);
        *x = o;
        return;
    }
    if (!parallel)
        n = column(p, p->m->embd);
    *x = l->expert > 0 && p->m->experts > 0 ? experts(p, l, n) : dense(p, l->up, l->down, l->gated, n, true);
    give(p, o);
}

/* Layers alike leave the heap as they found it, so the third one of a kind teaches nothing. */
struct seen {
    struct {
        const struct fit_layer *l;
        const struct model_layer *m;
        unsigned n;
    } kinds[SEEN_MAX];
    size_t n;
};

static bool alike(const struct fit_layer *a, const struct fit_layer *b)
{
    return a->q == b->q && a->k == b->k && a->v == b->v && a->o == b->o && a->qkv == b->qkv && a->up == b->up && a->down == b->down && a->expert == b->expert && a->shared == b->shared && a->wide == b->wide;
}

static bool worth_playing(struct seen *s, const struct fit_graph *g, uint32_t il)
{
    const struct fit_layer *l = &g->layers[il];
    const struct model_layer *m = &g->m->layers[il];
    if (il + 2 >= g->to)
        return true;
    for (size_t i = 0; i < s->n; i++)
        if (alike(s->kinds[i].l, l) && s->kinds[i].m->swa == m->swa && s->kinds[i].m->recurrent == m->recurrent && s->kinds[i].m->attention == m->attention)
            return s->kinds[i].n++ < PLAYED;
    if (s->n < SEEN_MAX) {
        s->kinds[s->n].l = l;
        s->kinds[s->n].m = m;
        s->kinds[s->n].n = 1;
        s->n++;
    }
    return true;
}

static void play_layers(struct play *p, struct fit_block x)
{
    const struct fit_graph *g = p->g;
    struct seen s = {.n = 0};
    bool give_x = !p->keep;
    for (uint32_t il = g->from; il < g->to; il++) {
        if (!worth_playing(&s, g, il)) {
            done_with_inputs(p, il);
            continue;
        }
        layer(p, il, &x, give_x);
        give_x = true;
    }
}

/* ---- one device ---------------------------------------------------------------------------------------------------------------- */

static void play_init(struct play *p, const struct fit_graph *g)
{
    memset(p, 0, sizeof(*p));
    p->g = g;
    p->m = g->m;
    p->f = F32 * (uint64_t)g->ub;
    p->fo = F32 * (uint64_t)g->outputs;
    p->keep = g->copies > 1;
    fit_heap_init(&p->h);
}

/* A device that holds layers from..to, or only the output. */
uint64_t fit_graph_device(const struct fit_graph *g)
{
    struct play p;
    play_init(&p, g);
    uint64_t e = g->m->embd, ub = g->ub;
    if (g->from == g->to) {
        if (!g->output)
            return 0;
        (void)input(&p, fit_mul(p.fo, e));
        if (p.keep)
            (void)take(&p, fit_mul(p.fo, e));
        (void)take(&p, fit_mul(p.fo, g->m->vocab));
        return p.h.peak;
    }
    struct fit_block mixed = {0, 0}, rows = {0, 0}, places = {0, 0};
    bool first = g->from == 0;
    if (first) {
        mixed = input(&p, fit_mul(p.f, e));
        rows = input(&p, fit_mul(p.f, e));
        places = input(&p, 8 * ub);
    }
    struct fit_block x = input(&p, fit_mul(p.f, e));
    if (g->rope)
        (void)input(&p, (g->m->m_rope ? 16 : 4) * ub);
    all_cache_inputs(&p);
    if (g->to == g->n_layer)
        (void)input(&p, 4 * (uint64_t)g->outputs);
    if (first) {
        (void)column(&p, e);
        if (!p.keep) {
            give(&p, mixed);
            give(&p, rows);
            give(&p, places);
        }
    }
    play_layers(&p, x);
    if (g->output)
        (void)take(&p, fit_mul(p.fo, g->m->vocab));
    return p.h.peak;
}

/* The host: every input, the embedding, and the layers that it has itself. */
uint64_t fit_graph_host(const struct fit_graph *g, uint32_t own_layers)
{
    struct play p;
    play_init(&p, g);
    uint64_t e = g->m->embd, ub = g->ub;
    (void)input(&p, fit_mul(p.f, e));
    struct fit_block tokens = input(&p, 4 * ub), mixed_tokens = input(&p, 4 * ub), mixed = input(&p, fit_mul(p.f, e)), places = input(&p, 8 * ub);
    (void)input(&p, (g->m->m_rope ? 16 : 4) * ub);
    all_cache_inputs(&p);
    (void)input(&p, 4 * (uint64_t)g->outputs);
    struct fit_block x = column(&p, e);
    struct fit_block rows;
    if (own_layers == 0) {
        (void)column(&p, e);
        return p.h.peak;
    }
    give(&p, tokens);
    rows = column(&p, e);
    give(&p, mixed_tokens);
    (void)column(&p, e);
    give(&p, mixed);
    give(&p, rows);
    give(&p, places);
    struct fit_graph own = *g;
    own.to = own_layers;
    p.g = &own;
    play_layers(&p, x);
    if (own.output)
        (void)take(&p, fit_mul(p.fo, g->m->vocab));
    return p.h.peak;
}

void fit_graph_init(struct fit_graph *g, const struct fit_context *c, const struct fit_shape *s)
{
    memset(g, 0, sizeof(*g));
    g->m = c->pm->m;
    g->layers = c->pm->layers;
    g->n_layer = c->pm->m->n_layer;
    uint64_t ub = c->n_ubatch < c->n_ctx ? c->n_ubatch : c->n_ctx;
    g->ub = (uint32_t)ub;
    g->np = c->np;
    g->outputs = c->n_outputs < g->ub ? c->n_outputs : g->ub;
    g->cells = fit_cells(c, s, false);
    g->swa_cells = fit_cells(c, s, true);
    g->copies = c->copies;
    g->flash = c->flash;
    g->rope = has_rope(g->m);
    g->no_cache = g->m->cache == MODEL_CACHE_NONE;
    g->v_max = c->pm->v_width_max;
}
