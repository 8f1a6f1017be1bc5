/* SPDX-License-Identifier: MIT
 *
 * The engine's graph of one ubatch, played through its allocator (law 4): the inputs of a device, its layers one after the other, the output. Inputs that cross devices in a pipeline are kept four times and for good. What
 * one layer takes is graph_layer.c's.
 */
#include "graph_int.h"

#define SEEN_MAX 16     /* kinds of layers that are told apart */
#define ROTATED 64ULL
#define LATE_INPUTS 4   /* that the mix of a late choice of rows needs beside the output alone */
#define PLAYED 2        /* layers of one kind that are played before the rest is taken for the same */

unsigned fit_traits(const struct model *m)
{
    static const struct {
        const char *arch;
        unsigned traits;
    } known[] = {
        {"bert", FIT_NO_ROPE}, {"bloom", FIT_NO_ROPE}, {"cogvlm", FIT_ALL_LOGITS | FIT_NO_MIXED}, {"cohere2", FIT_FFN_FIRST}, {"command-r", FIT_FFN_FIRST}, {"deepseek4", FIT_NO_MIXED | FIT_HYPER_VIEWS}, {"gpt2", FIT_NO_ROPE}, {"hy_v4", FIT_INDEX_PLAIN | FIT_HYPER_VIEWS}, {"jais", FIT_NO_ROPE}, {"kimi-k3", FIT_LATE_ROWS}, {"jina-bert-v2", FIT_NO_ROPE},
        {"llama-embed", FIT_NO_CACHE | FIT_NO_HEAD}, {"mamba", FIT_NO_ROPE}, {"mamba2", FIT_NO_ROPE}, {"mpt", FIT_NO_ROPE}, {"plamo", FIT_FFN_FIRST}, {"qwen4exp", FIT_HYPER_GATE}, {"refact", FIT_NO_ROPE | FIT_NO_EXPERTS}, {"starcoder", FIT_NO_ROPE}, {"t5", FIT_NO_ROPE | FIT_BIAS}, {"t5encoder", FIT_NO_ROPE | FIT_NO_CACHE | FIT_BIAS},
    };
    unsigned all = m->cache == MODEL_CACHE_NONE ? FIT_NO_CACHE : 0;
    for (size_t i = 0; i < BASE_COUNT(known); i++)
        if (str_eq_c(str_of(m->arch), known[i].arch))
            all |= known[i].traits;
    all |= m->logits ? 0 : FIT_NO_HEAD;
    all |= model_find_tensor(m, "position_embd.weight") ? FIT_POSITION_ROWS : 0;
    all |= model_find_tensor(m, "token_types.weight") ? FIT_TYPE_ROWS : 0;
    const struct model_tensor *norm = model_find_tensor(m, "token_embd_norm.weight");
    return all | (norm && norm->place == MODEL_FIRST ? FIT_EMBD_NORM : 0);
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------------- */

struct fit_block fit_play_input(struct fit_play *p, uint64_t bytes)
{
    struct fit_block b = {0, 0};
    for (uint32_t i = 0; i < p->g->copies; i++)
        b = take(p, bytes);
    return b;
}

/* Matrices that rotate K and V before they are quantized: as wide as a head, and 64. */
static void rotations(struct fit_play *p)
{
    uint64_t head = 0;
    for (uint32_t il = p->g->from; il < p->g->to; il++)
        head = p->m->layers[il].k_head > head ? p->m->layers[il].k_head : head;
    if (p->g->turn_k)
        (void)fit_play_input(p, F32 * head * head);
    if (p->g->turn_v)
        (void)fit_play_input(p, F32 * ROTATED * ROTATED);
}

/* What a cache's layers read beside activations. */
static void cache_inputs(struct fit_play *p, bool swa)
{
    const struct fit_graph *g = p->g;
    uint64_t ub = g->ub, cells = swa ? g->swa_cells : g->cells;
    struct fit_block *b = p->idx[swa];
    for (int i = 0; i < 2 && (g->traits & FIT_BIAS) && g->from == 0; i++) /* distances, and a view of them */
        (void)fit_play_input(p, fit_mul(4 * ub, g->no_cache ? ub : cells));
    if (g->no_cache) {
        b[FIT_READ_MASK] = fit_play_input(p, fit_mul(fit_fused(g) ? 2 : 4, fit_mul(ub, fit_pad(ub, FIT_CELLS))));
        return;
    }
    b[FIT_READ_K] = fit_play_input(p, 8 * ub);
    if (g->v_max > 0)
        b[FIT_READ_V] = fit_play_input(p, fit_mul(8 * ub, g->flash ? 1 : g->v_max));
    b[FIT_READ_MASK] = fit_play_input(p, fit_mul((g->flash ? 2 : 4) * ub, cells));
    rotations(p);
}

static bool uses(const struct fit_graph *g, uint32_t il, bool swa)
{
    return (g->no_cache || g->m->layers[il].attention || g->layers[il].q > 0) && !(g->m->layers[il].recurrent && !g->m->layers[il].attention) && g->m->layers[il].swa == swa;
}

/* Inputs come in the order in which layers ask for them first. */
static void all_cache_inputs(struct fit_play *p)
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
    fit_index_inputs(p);
}

void fit_play_read(struct fit_play *p, uint32_t il, enum fit_read what)
{
    bool swa = p->m->layers[il].swa;
    uint32_t last = p->last_use[0] > p->last_use[1] ? p->last_use[0] : p->last_use[1];
    if (p->keep)
        return;
    if (what == FIT_READ_POS && il == last)
        give(p, p->pos);
    else if (what != FIT_READ_POS && il == p->last_use[swa])
        give(p, p->idx[swa][what]);
}

/* Layers alike leave the heap as they found it, so the third one of a kind teaches nothing. */
struct seen {
    struct {
        uint64_t kind;
        unsigned n;
    } kinds[SEEN_MAX];
    size_t n;
};

static bool worth_playing(struct seen *s, const struct fit_graph *g, uint32_t il)
{
    uint64_t kind = g->layers[il].kind;
    if (il + 2 >= g->to)
        return true;
    for (size_t i = 0; i < s->n; i++)
        if (s->kinds[i].kind == kind)
            return s->kinds[i].n++ < PLAYED;
    if (s->n < SEEN_MAX) {
        s->kinds[s->n].kind = kind;
        s->kinds[s->n++].n = 1;
    }
    return true;
}

static void play_layers(struct fit_play *p, struct fit_block x, bool give_x)
{
    const struct fit_graph *g = p->g;
    struct seen s = {.n = 0};
    for (uint32_t il = g->from; il < g->to; il++) {
        if (!worth_playing(&s, g, il))
            continue;
        fit_play_layer(p, il, &x, give_x);
        give_x = true;
    }
}

/* ---- one device ---------------------------------------------------------------------------------------------------------------- */

static void play_init(struct fit_play *p, const struct fit_graph *g)
{
    memset(p, 0, sizeof(*p));
    p->g = g;
    p->m = g->m;
    p->own = g->to;
    p->f = F32 * (uint64_t)g->ub;
    p->fo = F32 * (uint64_t)g->outputs;
    p->keep = g->copies > 1;
    fit_heap_init(&p->h);
}

/* Products with experts that stay on the host: two of the three inner widths and all outputs live at once. */
static uint64_t host_experts(const struct fit_graph *g)
{
    uint64_t most = 0, used = g->m->experts_used;
    for (uint32_t il = 0; il < g->n_layer; il++)
        if (fit_experts_away(g, il) && g->layers[il].expert > most)
            most = g->layers[il].expert;
    return most > 0 ? fit_mul(F32 * (uint64_t)g->ub, fit_add(fit_mul(2 * used, most), fit_mul(used + 1, g->m->embd))) : 0;
}

bool fit_experts_away(const struct fit_graph *g, uint32_t il)
{
    return g->layers[il].expert > 0 && (il < g->cpu_moe || g->layers[il].away);
}

/* What is added to the embeddings, and their own norm, before the first layer. *own: x is no input that stays. */
static struct fit_block embedded(struct fit_play *p, struct fit_block x, struct fit_block positions, bool *own)
{
    unsigned traits = p->g->traits;
    uint64_t e = p->m->embd;
    if ((traits & FIT_TYPE_ROWS) && !*own)
        x = column(p, e);
    *own |= traits & FIT_TYPE_ROWS;
    if (traits & FIT_POSITION_ROWS) {
        if (!*own)
            x = column(p, e);
        *own = true;
        if (!p->keep)
            give(p, positions);
    }
    if (p->m->hyper > 1) { /* repeated for each of its streams */
        struct fit_block all = column(p, e * p->m->hyper);
        if (*own)
            give(p, x);
        x = all;
        *own = true;
    }
    if (traits & FIT_EMBD_NORM) {
        struct fit_block normed = column(p, e);
        if (*own)
            give(p, x);
        x = normed;
        *own = true;
    }
    return x;
}

/* Logits of the rows that are asked for. */
static void head(struct fit_play *p)
{
    if (p->g->traits & FIT_NO_HEAD)
        return;
    if (p->g->all_rows)
        (void)take(p, fit_mul(p->fo, p->m->embd));
    (void)take(p, fit_mul(p->fo, p->m->vocab));
}

/* Residual streams that reach the output's device when it is another than the last layer's. */
static uint64_t streams_out(const struct fit_graph *g)
{
    if (g->traits & FIT_LATE_ROWS)
        return g->copies > 1 ? LATE_INPUTS : 1;
    if (g->traits & FIT_HYPER_VIEWS) /* the first norm's, and a view for each */
        return g->m->hyper * (1 + (uint64_t)g->m->hyper);
    return (g->traits & FIT_HYPER_GATE) ? g->m->hyper : 1;
}

/* The same in front of a layer. */
static uint64_t streams_in(const struct fit_graph *g)
{
    return (g->traits & FIT_HYPER_VIEWS) && g->m->cache != MODEL_CACHE_DEEPSEEK4 ? streams_out(g) : g->m->hyper;
}

/* A device that has the output and no layer. */
static uint64_t output_alone(struct fit_play *p)
{
    const struct fit_graph *g = p->g;
    if (!g->output)
        return 0;
    bool late = g->all_rows || g->m->cache == MODEL_CACHE_DEEPSEEK4;
    uint64_t rows_in = late ? p->f : p->fo, e = g->m->embd;
    for (uint64_t i = 0; i < streams_out(g); i++)
        (void)fit_play_input(p, fit_mul(rows_in, e));
    if (g->traits & FIT_LATE_ROWS)
        (void)column(p, e);
    if (late)
        (void)fit_play_input(p, 4 * (uint64_t)g->outputs);
    if (p->keep)
        (void)take(p, fit_mul(rows_in, e));
    head(p);
    return p->h.peak;
}

/* A device that holds layers from..to, or only the output. */
uint64_t fit_graph_device(const struct fit_graph *g)
{
    struct fit_play p;
    play_init(&p, g);
    uint64_t e = g->m->embd, ub = g->ub;
    if (g->from == g->to)
        return output_alone(&p);
    struct fit_block mixed = {0, 0}, rows = {0, 0}, places = {0, 0}, positions = {0, 0};
    bool first = g->from == 0, own = !p.keep;
    /* rows of positions alone draw the other input's rows to the host */
    bool two = first && !(g->traits & FIT_NO_MIXED) && ((g->traits & FIT_TYPE_ROWS) || !(g->traits & FIT_POSITION_ROWS));
    if (two) {
        mixed = fit_play_input(&p, fit_mul(p.f, e));
        rows = fit_play_input(&p, fit_mul(p.f, e));
        places = fit_play_input(&p, 8 * ub);
    }
    struct fit_block x = fit_play_input(&p, fit_mul(p.f, first ? e : e * streams_in(g)));
    if (first && (g->traits & FIT_TYPE_ROWS))
        (void)fit_play_input(&p, F32 * e);
    if (first && (g->traits & FIT_POSITION_ROWS))
        positions = fit_play_input(&p, fit_mul(p.f, e));
    if (g->rope)
        p.pos = fit_play_input(&p, (g->m->m_rope ? 16 : 4) * ub);
    if (g->table > 0)
        (void)fit_play_input(&p, fit_mul(p.f, g->table));
    all_cache_inputs(&p);
    if (g->all_rows ? g->output : g->to == g->n_layer)
        (void)fit_play_input(&p, 4 * (uint64_t)g->outputs);
    if (two) {
        (void)column(&p, e);
        if (!p.keep) {
            give(&p, mixed);
            give(&p, rows);
            give(&p, places);
        }
    }
    if (first)
        x = embedded(&p, x, positions, &own);
    play_layers(&p, x, own);
    if (g->output)
        head(&p);
    return p.h.peak;
}

/* The host: every input, the embedding, and the layers that it has itself. */
uint64_t fit_graph_host(const struct fit_graph *g, uint32_t own_layers)
{
    struct fit_play p;
    play_init(&p, g);
    p.own = own_layers;
    uint64_t e = g->m->embd, ub = g->ub;
    uint64_t two = !(g->traits & FIT_NO_MIXED);
    (void)fit_play_input(&p, fit_mul(p.f, e));
    struct fit_block tokens = fit_play_input(&p, 4 * ub), mixed_tokens = fit_play_input(&p, two * 4 * ub), mixed = fit_play_input(&p, two * fit_mul(p.f, e)), places = fit_play_input(&p, two * 8 * ub);
    if (g->rope || (g->traits & FIT_POSITION_ROWS))
        p.pos = fit_play_input(&p, (g->m->m_rope ? 16 : 4) * ub);
    all_cache_inputs(&p);
    if (g->no_cache && g->m->window > 0 && (p.idx[0][FIT_READ_MASK].size == 0 || p.idx[1][FIT_READ_MASK].size == 0))
        cache_inputs(&p, p.idx[1][FIT_READ_MASK].size == 0); /* both masks are made, whichever the layers read */
    (void)fit_play_input(&p, 4 * (uint64_t)g->outputs);
    struct fit_block x = column(&p, e);
    struct fit_block rows, positions = {0, 0};
    bool own_x = !p.keep;
    if (g->table > 0)
        (void)column(&p, 2 * g->table);
    if (g->traits & FIT_POSITION_ROWS)
        positions = column(&p, e);
    if (own_layers == 0) {
        (void)column(&p, two * e);
        return fit_add(p.h.peak, host_experts(g));
    }
    give(&p, tokens);
    rows = column(&p, two * e);
    give(&p, mixed_tokens);
    (void)column(&p, two * e);
    give(&p, mixed);
    give(&p, rows);
    give(&p, places);
    struct fit_graph own = *g;
    own.to = own_layers;
    p.g = &own;
    x = embedded(&p, x, positions, &own_x);
    play_layers(&p, x, own_x);
    if (own.output)
        head(&p);
    return fit_add(p.h.peak, host_experts(g));
}

void fit_graph_init(struct fit_graph *g, const struct fit_run *x, const struct fit_context *c)
{
    const struct fit_shape *s = x->s;
    memset(g, 0, sizeof(*g));
    g->m = c->pm->m;
    g->layers = c->pm->layers;
    /* the layers of a trunk end before those of the drafter in the file */
    g->n_layer = c->pm->m->n_layer - (c->mtp || c->pm->m->n_nextn > c->pm->m->n_layer ? 0 : c->pm->m->n_nextn);
    uint64_t ub = c->n_ubatch < c->n_ctx ? c->n_ubatch : c->n_ctx;
    ub = (ub + c->np - 1) / c->np * c->np; /* whole sequences */
    g->ub = (uint32_t)ub;
    g->np = c->np;
    g->outputs = c->n_outputs < g->ub ? c->n_outputs : g->ub;
    g->cells = fit_cells(c, s, false);
    g->swa_cells = fit_cells(c, s, true);
    g->all_cells = fit_mul(g->cells, c->n_stream);
    g->all_swa_cells = fit_mul(g->swa_cells, c->n_stream);
    g->cast_k = c->flash && c->k->id == 0; /* f32 */
    g->cast_v = c->flash && c->v->id == 0;
    g->turn_k = c->k->block > 1 && c->pm->v_width_max > 0;
    g->turn_v = c->v->block > 1 && c->pm->v_width_max > 0;
    g->table = c->pm->table_width;
    g->copies = c->copies;
    g->mtp = c->mtp;
    g->flash = c->flash;
    g->traits = c->pm->graph;
    g->all_rows = (!c->draft && (x->spec & FIT_SPEC_MTP)) || (g->traits & FIT_LATE_ROWS);
    if (g->traits & FIT_ALL_LOGITS)
        g->outputs = g->ub;
    g->rope = !(g->traits & FIT_NO_ROPE);
    g->no_cache = g->traits & FIT_NO_CACHE;
    g->v_max = c->pm->v_width_max;
    g->cpu_moe = c->draft ? s->draft_cpu_moe : s->cpu_moe;
}
