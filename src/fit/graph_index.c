/* SPDX-License-Identifier: MIT
 *
 * Indexers of sparse attention, played as the rest of a layer: cheap keys, scores of every cell for every token, the best of them, and a mask that lets attention see those alone. Five families do it in three ways: latent attention
 * chooses cell by cell, with a plane of zeros for each layer that lives from the start of the graph; pooled ones choose groups of cells and spell them out again; block ones spread their choice over every head.
 */
#include "graph_int.h"

enum way { CELLS_OF_LATENT, POOLS, BLOCKS, COMPRESSED };

static enum way way_of(const struct model *m)
{
    switch (m->cache) {
    case MODEL_CACHE_HYBRID_INDEXER:
        return POOLS;
    case MODEL_CACHE_INDEXER:
        return BLOCKS;
    case MODEL_CACHE_DEEPSEEK4:
        return COMPRESSED;
    default:
        return CELLS_OF_LATENT;
    }
}

bool fit_indexed(const struct fit_graph *g, uint32_t il)
{
    if (way_of(g->m) == BLOCKS && (!g->flash || (g->np > 1 && g->all_cells == g->cells))) /* not with several sequences in one stream */
        return false;
    if (g->mtp)
        return false;
    return g->m->layers[il].index_chooses || g->m->layers[il].index_follows;
}

/* Bytes of one number of that size for each cell and token. */
static uint64_t plane(const struct fit_play *p, uint64_t size, uint64_t cells)
{
    return fit_mul(fit_mul(size, cells), p->g->ub);
}

/* What is scored as one: a cell, or a group of them. */
static uint64_t scored(const struct fit_graph *g)
{
    uint64_t pool = way_of(g->m) == COMPRESSED ? 4 : g->m->index_pool > 0 ? g->m->index_pool : 1;
    return (g->cells + pool - 1) / pool * (way_of(g->m) == POOLS ? g->np : 1); /* groups are of one sequence each */
}

static uint64_t chosen(const struct fit_graph *g)
{
    uint64_t n = scored(g), top = g->m->index_top;
    return top > 0 && top < n ? top : n;
}

void fit_index_inputs(struct fit_play *p)
{
    const struct fit_graph *g = p->g;
    uint32_t n = 0, latent = 0;
    for (uint32_t il = g->from; il < g->to; il++) {
        n += fit_indexed(g, il);
        latent += g->layers[il].lora > 0;
    }
    if (n == 0)
        return;
    (void)fit_play_input(p, 8 * (uint64_t)g->ub);
    if (g->from > 0 && g->m->layers[g->from].index_follows) /* from the device before */
        p->choice = fit_play_input(p, plane(p, F32, chosen(g)));
    switch (way_of(g->m)) {
    case CELLS_OF_LATENT:
        (void)fit_play_input(p, plane(p, 2, g->cells));
        if (!(g->traits & FIT_INDEX_PLAIN))
            (void)fit_play_input(p, F32 * fit_mul(g->m->index_key, g->m->index_key));
        break;
    case POOLS:
        (void)fit_play_input(p, plane(p, 2, scored(g)));
        if (latent > 0)
            (void)fit_play_input(p, plane(p, F32, fit_mul(chosen(g), g->m->index_pool)));
        break;
    case COMPRESSED: /* one mask for scoring, one for attention */
        (void)fit_play_input(p, plane(p, 2, scored(g)));
        (void)fit_play_input(p, plane(p, 2, scored(g)));
        break;
    case BLOCKS:
        break;
    }
    for (uint32_t il = g->from; il < p->own && way_of(g->m) == CELLS_OF_LATENT; il++)
        if (fit_indexed(g, il))
            p->plane[il] = take(p, plane(p, F32, g->cells));
}

void fit_index_keys(struct fit_play *p, uint32_t il)
{
    uint64_t width = p->m->layers[il].indexer_k_width;
    if (!p->m->layers[il].index_chooses)
        return;
    struct fit_block k = turn(p, turn(p, column(p, width), width), width);
    if (way_of(p->m) == CELLS_OF_LATENT && !(p->g->traits & FIT_INDEX_PLAIN))
        k = turn(p, k, width);
    give(p, k);
}

static bool follows_next(const struct fit_play *p, uint32_t il)
{
    return il + 1 < p->g->to && p->m->layers[il + 1].index_follows;
}

struct fit_block fit_index_choose(struct fit_play *p, uint32_t il, struct fit_block *rank)
{
    const struct fit_graph *g = p->g;
    enum way way = way_of(p->m);
    uint64_t heads = p->m->index_heads, key = p->m->layers[il].indexer_k_width;
    if (way == BLOCKS)
        return (struct fit_block){0, 0}; /* which are chosen when K and V are there */
    if (!p->m->layers[il].index_chooses) {
        give(p, *rank);
        return p->choice;
    }
    give(p, p->choice);
    if (way == POOLS) /* keys are stored beside what pools them */
        key = p->m->index_key;
    struct fit_block q = column(p, heads * key);
    give(p, *rank);
    q = turn(p, q, heads * key);
    if (!(g->traits & FIT_INDEX_PLAIN))
        q = turn(p, q, heads * key);
    struct fit_block weights = column(p, heads), scores = take(p, plane(p, F32, scored(g)));
    give(p, q);
    give(p, weights);
    struct fit_block best = take(p, plane(p, F32, chosen(g)));
    if (way != POOLS)
        give(p, scores);
    best = turn_bytes(p, best, plane(p, F32, chosen(g)));
    if (way == POOLS) { /* every cell of the chosen groups */
        give(p, scores);
        uint64_t all = plane(p, F32, fit_mul(chosen(g), p->m->index_pool));
        struct fit_block cells = turn_bytes(p, take(p, all), all);
        give(p, best);
        return cells;
    }
    p->choice = follows_next(p, il) ? best : (struct fit_block){0, 0};
    return best;
}

/* Groups become cells again, and those that are counted twice or lie ahead are moved to where they do no harm. */
static struct fit_block mask_of_pools(struct fit_play *p, struct fit_block choice, struct fit_block mask)
{
    uint64_t all = plane(p, F32, fit_mul(chosen(p->g), p->m->index_pool));
    struct fit_block cells = turn_bytes(p, choice, all), counts = take(p, all);
    if (p->g->traits & FIT_HYPER_GATE) { /* those that are not full are counted */
        counts = turn_bytes(p, counts, all);
        struct fit_block ones = take(p, all), sums = take(p, all);
        give(p, ones);
        give(p, sums);
    }
    give(p, counts);
    struct fit_block places = turn_bytes(p, cells, all);
    give(p, take(p, all));
    give(p, places);
    return turn_bytes(p, mask, plane(p, 2, p->g->cells));
}

/* One mask for each head of the indexer. */
static struct fit_block mask_of_blocks(struct fit_play *p, uint32_t il)
{
    uint64_t heads = p->m->index_heads, cells = p->g->cells, key = p->m->layers[il].indexer_k_width;
    give(p, turn(p, turn(p, column(p, heads * key), heads * key), heads * key));
    struct fit_block rows = turn_bytes(p, take(p, fit_mul(heads, plane(p, F32, cells))), fit_mul(heads, plane(p, F32, cells)));
    give(p, take(p, plane(p, F32, cells)));
    return turn_bytes(p, rows, fit_mul(heads, plane(p, 2, cells)));
}

struct fit_block fit_index_mask(struct fit_play *p, uint32_t il, struct fit_block choice)
{
    enum way way = way_of(p->m);
    uint64_t cells = way == COMPRESSED ? scored(p->g) : p->g->cells;
    if (way == BLOCKS)
        return mask_of_blocks(p, il);
    struct fit_block mask = take(p, fit_mul(plane(p, 2, cells), way == POOLS ? p->g->np : 1));
    if (way == POOLS)
        return mask_of_pools(p, choice, mask);
    give(p, p->plane[il]);
    p->plane[il] = (struct fit_block){0, 0};
    if (!follows_next(p, il)) {
        give(p, choice);
        p->choice = (struct fit_block){0, 0};
    }
    mask = turn_bytes(p, mask, plane(p, 2, cells));
    return way == COMPRESSED ? turn_bytes(p, mask, plane(p, 2, fit_add(cells, p->g->swa_cells))) : mask;
}
