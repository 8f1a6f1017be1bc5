/* SPDX-License-Identifier: MIT
 *
 * Caches beside the keys and values: the indexers of sparse attention and the compressed caches of deepseek4 (law 3.6). An indexer's cells are counted as those of a layer without a window.
 */
#include "model_int.h"

#include <errno.h>

/* What glm-dsa takes for layers of a long-context file that does not name them: the first two, then every fourth. */
#define LONG_CONTEXT 1048576u
#define BUILT_IN_LAYERS 78u

static bool built_in(uint32_t i)
{
    return i < 2 || (i < BUILT_IN_LAYERS && (i - 2) % 4 == 0);
}

/* Which blocks are of the full type, as INDEX_TYPES and INDEX_TYPES_FULL want it. */
static int read_types(struct model_load *l, uint32_t *types)
{
    int r, found;

    r = model_key_blocks(l, "attention.indexer.types", true, types, &found);
    if (r < 0 || found)
        return r;
    if (l->arch->index == INDEX_TYPES_FULL)
        return err_set(l->err, -EBADMSG, "key '%s.attention.indexer.types' is missing", l->m->arch);
    for (uint32_t i = 0; i < l->m->n_block; i++)
        types[i] = l->m->context_trained < LONG_CONTEXT || built_in(i);
    return 0;
}

/* Whether an indexer also keeps a value as wide as its key for each cell: its blocks are compressed. One block that is suffices for all. ratio: one for each block. */
static int read_compressed(struct model_load *l, uint32_t *ratio, bool *ret)
{
    int r, found;

    if (l->arch->index != INDEX_ATTENTION_KV)
        return 0;
    if ((r = model_key_blocks(l, "attention.compress_ratios", true, ratio, &found)) < 0)
        return r;
    for (uint32_t i = 0; i < l->m->n_block; i++)
        *ret |= ratio[i] != 0;
    return 0;
}

/* What an indexer computes with. */
static int read_scoring(struct model_load *l)
{
    struct model *m = l->m;
    uint32_t ratio = 0;
    int r;

    m->index_pool = 1;
    if ((r = model_key_u32(l, "attention.indexer.head_count", &m->index_heads)) < 0 || (r = model_key_u32(l, "attention.indexer.key_length", &m->index_key)) < 0 || (r = model_key_u32(l, "attention.indexer.top_k", &m->index_top)) < 0 ||
         (r = model_key_max(l, "attention.compress_ratios", &ratio)) < 0)
        return r;
    if (l->arch->index == INDEX_ATTENTION_KV || l->arch->index == INDEX_ATTENTION_3)
        r = model_key_u32(l, "attention.indexer.kpool", &m->index_pool);
    if (m->index_pool == 0)
        m->index_pool = ratio > 0 ? ratio : 1;
    return r;
}

int model_read_index(struct model_load *l)
{
    uint32_t types[MODEL_LAYERS_MAX] = {0}, ratio[MODEL_LAYERS_MAX] = {0}, key = 0, dense = 0;
    bool compressed = false;
    int r;

    if (l->arch->index == INDEX_NO)
        return 0;
    if ((r = read_scoring(l)) < 0)
        return r;
    if ((r = model_key_u32(l, "attention.indexer.key_length", &key)) < 0 || (r = model_key_u32(l, "leading_dense_block_count", &dense)) < 0)
        return r;
    if ((l->arch->index == INDEX_TYPES || l->arch->index == INDEX_TYPES_FULL) && (r = read_types(l, types)) < 0)
        return r;
    if ((r = read_compressed(l, ratio, &compressed)) < 0)
        return r;
    for (uint32_t i = 0; i < l->trunk; i++) {
        struct model_layer *y = &l->m->layers[i];
        bool has = false;

        switch ((enum arch_index)l->arch->index) {
        case INDEX_NO: break;
        case INDEX_ALL: has = true; break;
        case INDEX_TYPES: has = types[i] != 0; break;
        case INDEX_TYPES_FULL: has = types[i] != 0 && !y->swa; break;
        case INDEX_MOE: has = i >= dense; break;
        case INDEX_ATTENTION_KV:
        case INDEX_ATTENTION_3: has = !y->recurrent; break;
        }
        y->index_follows = !has && key > 0 && (l->arch->index == INDEX_TYPES || l->arch->index == INDEX_TYPES_FULL) && !y->swa;
        if (!has || key == 0)
            continue;
        y->index_chooses = l->m->index_heads > 0 && (l->arch->index != INDEX_ATTENTION_KV || ratio[i] != 0);
        y->indexer_k_width = l->arch->index == INDEX_ATTENTION_3 ? 3ull * key : key;
        if (l->arch->index == INDEX_MOE)
            y->indexer_v_width = l->v_head;
        if (l->arch->index == INDEX_ATTENTION_KV) {
            y->indexer_k_width += compressed ? key : 0;
            y->indexer_v_in_k_type = true;
        }
    }
    return 0;
}

/* Law 3.6, deepseek4: a compressed cache beside the raw one, and the states of what compresses. */
int model_read_v4(struct model_load *l)
{
    uint32_t ratio[MODEL_LAYERS_MAX] = {0}, key = 0;
    int r, found;

    if ((r = model_key_blocks(l, "attention.compress_ratios", true, ratio, &found)) < 0 || (r = model_key_u32(l, "attention.indexer.key_length", &key)) < 0 || (r = read_scoring(l)) < 0)
        return r;
    for (uint32_t i = 0; i < l->trunk; i++) {
        struct model_layer *y = &l->m->layers[i];

        if (ratio[i] != 0 && ratio[i] != 4 && ratio[i] != 128)
            return err_set(l->err, -EBADMSG, "key '%s.attention.compress_ratios' has %u for block %u, possible are 0, 4 and 128", l->m->arch, ratio[i], i);
        y->compress_ratio = ratio[i];
        if (ratio[i] == 4) {
            y->compressor_elems = 8ull * 2 * y->k_head;
            y->indexer_k_width = key;
            y->index_chooses = l->m->index_heads > 0;
            y->indexer_compressor_elems = 8ull * 2 * key;
        } else if (ratio[i] == 128) {
            y->compressor_elems = 128ull * y->k_head;
        }
    }
    return 0;
}
