/* SPDX-License-Identifier: MIT
 *
 * What the parts of a graph's play share: blocks of its heap. A column is one f32 for each token of the ubatch.
 */
#pragma once

#include "fit_int.h"

#define F32 4ULL

static inline struct fit_block take(struct fit_play *p, uint64_t bytes)
{
    return fit_heap_take(&p->h, bytes);
}
static inline struct fit_block column(struct fit_play *p, uint64_t n)
{
    return fit_heap_take(&p->h, fit_mul(p->f, n));
}
static inline void give(struct fit_play *p, struct fit_block b)
{
    fit_heap_give(&p->h, b);
}
/* Another block in place of one that is done with. */
static inline struct fit_block turn(struct fit_play *p, struct fit_block from, uint64_t n)
{
    struct fit_block to = column(p, n);
    give(p, from);
    return to;
}
static inline struct fit_block turn_bytes(struct fit_play *p, struct fit_block from, uint64_t bytes)
{
    struct fit_block to = take(p, bytes);
    give(p, from);
    return to;
}

/* ---- graph_index.c: indexers of sparse attention ---- */

/* Whether layer il chooses cells before it attends. */
bool fit_indexed(const struct fit_graph *g, uint32_t il);
/* What lies on a device for the whole graph because of layers from..to there: masks, and a plane for each layer that chooses. */
void fit_index_inputs(struct fit_play *p);
/* The keys of layer il, made and stored. */
void fit_index_keys(struct fit_play *p, uint32_t il);
/* Scores and choice; what stays of them until the mask is made. Of a latent q's rank when there is one: *rank is given back, and so is *n unless it is kept. */
struct fit_block fit_index_choose(struct fit_play *p, uint32_t il, struct fit_block *rank);
/* The mask that attention reads instead of its own; made of the choice, which is given back. */
struct fit_block fit_index_mask(struct fit_play *p, uint32_t il, struct fit_block choice);
