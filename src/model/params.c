/* SPDX-License-Identifier: MIT
 *
 * Dimensions of the whole model: what must be there, what a missing key means, and the values that no engine would load (law 1.4). Per-block numbers land in the load's arrays; layers.c makes layers of them.
 */
#include "model_int.h"

#include <errno.h>
#include <string.h>

static int read_blocks(struct model_load *l)
{
    struct model *m = l->m;
    int r;

    r = model_key_need(l, "block_count", &m->n_block);
    if (r < 0)
        return r;
    if (m->n_block == 0 || m->n_block > MODEL_LAYERS_MAX)
        return err_set(l->err, -EBADMSG, "key '%s.block_count' is %u, possible is 1 to %d", m->arch, m->n_block, MODEL_LAYERS_MAX);
    l->trunk = m->n_block;
    m->n_layer = m->n_block;
    r = model_key_u32(l, "nextn_predict_layers", &m->n_nextn);
    if (r < 0 || (l->arch->flags & F_NO_OWN_KV)) /* of an assistant all blocks are of that kind, and it is loaded for them */
        return r;
    if (m->n_nextn >= m->n_block)
        return err_set(l->err, -EBADMSG, "key '%s.nextn_predict_layers' is %u of %u blocks: none would be left", m->arch, m->n_nextn, m->n_block);
    l->trunk = m->n_block - m->n_nextn;
    return 0;
}

static int read_experts(struct model_load *l)
{
    struct model *m = l->m;
    int r;

    if ((r = model_key_u32(l, "expert_count", &m->experts)) < 0 || (r = model_key_max(l, "expert_used_count", &m->experts_used)) < 0 ||
        (r = model_key_max(l, "expert_feed_forward_length", &m->expert_ff)) < 0 || (r = model_key_u32(l, "expert_shared_feed_forward_length", &m->expert_shared_ff)) < 0)
        return r;
    if (m->experts > MODEL_EXPERTS_MAX)
        return err_set(l->err, -EBADMSG, "key '%s.expert_count' is %u, at most %d are possible", m->arch, m->experts, MODEL_EXPERTS_MAX);
    if (m->experts > 0 && (m->experts_used == 0 || m->experts_used > m->experts))
        return err_set(l->err, -EBADMSG, "key '%s.expert_used_count' is %u of %u experts", m->arch, m->experts_used, m->experts);
    if (m->experts > 0 && m->expert_ff == 0)
        m->expert_ff = m->ff;
    return 0;
}

/* Head sizes, laws 3.2 and 3.5. */
static int read_heads(struct model_load *l)
{
    struct model *m = l->m;
    uint32_t k_mla = 0, v_mla = 0;
    int r, found;

    if ((r = model_key_blocks(l, "attention.head_count", false, l->heads, &found)) < 0)
        return r;
    memcpy(l->kv_heads, l->heads, sizeof(l->kv_heads));
    if ((r = model_key_blocks(l, "attention.head_count_kv", false, l->kv_heads, &found)) < 0 || (r = model_key_blocks(l, "feed_forward_length", false, l->ff, &found)) < 0)
        return r;
    for (uint32_t i = 0; i < m->n_block; i++) {
        m->heads = l->heads[i] > m->heads ? l->heads[i] : m->heads;
        m->ff = l->ff[i] > m->ff ? l->ff[i] : m->ff;
    }
    if (l->heads[0] > 0) {
        l->k_head = l->v_head = m->embd / l->heads[0];
        if ((r = model_key_u32(l, "attention.key_length", &l->k_head)) < 0 || (r = model_key_u32(l, "attention.value_length", &l->v_head)) < 0)
            return r;
    }
    if ((l->arch->flags & F_V_LORA) && (r = model_key_u32(l, "attention.kv_lora_rank", &l->v_head)) < 0)
        return r;
    l->k_head_swa = l->k_head;
    l->v_head_swa = l->v_head;
    if ((r = model_key_u32(l, "attention.key_length_swa", &l->k_head_swa)) < 0 || (r = model_key_u32(l, "attention.value_length_swa", &l->v_head_swa)) < 0)
        return r;
    if (!(l->arch->flags & F_MLA))
        return 0;
    if ((r = model_key_u32(l, "attention.key_length_mla", &k_mla)) < 0 || (r = model_key_u32(l, "attention.value_length_mla", &v_mla)) < 0)
        return r;
    l->mla = k_mla > 0 && v_mla > 0;
    return 0;
}

/* Law 6.1: four positions a token instead of one. */
static bool has_m_rope(const struct model_load *l)
{
    const struct gguf_kv *kv = model_key(l, "rope.dimension_sections");
    int64_t a = 0, b = 0;

    if (!(l->arch->flags & F_M_ROPE_IF))
        return l->arch->flags & F_M_ROPE;
    return gguf_at_i64(kv, 0, &a) && gguf_at_i64(kv, 1, &b) && a > 0 && b > 0;
}

/* Law 5: what a drafter takes from its target. */
static int read_taps(struct model_load *l)
{
    struct model *m = l->m;
    uint64_t n = model_key_count(l, "target_layers");
    int r;

    if (n == 0)
        n = model_key_count(l, "extract_layers"); /* as older converters call it */
    if (n == 0)
        return err_set(l->err, -EBADMSG, "key '%s.target_layers' is missing: which layers of the target it taps", m->arch);
    if (n > MODEL_LAYERS_MAX || (m->role == MODEL_DRAFT_EAGLE3 && n != 3))
        return err_set(l->err, -EBADMSG, "key '%s.target_layers' has %llu values, expected %s", m->arch, (unsigned long long)n, m->role == MODEL_DRAFT_EAGLE3 ? "3" : "at most 512");
    m->taps = (uint32_t)n;
    if ((r = model_key_u32(l, "block_size", &m->block_size)) < 0)
        return r;
    return model_key_bool(l, "sample_from_anchor", &m->sample_from_anchor);
}

int model_read_params(struct model_load *l)
{
    struct model *m = l->m;
    unsigned flags = l->arch->flags;
    int r;

    m->role = (enum model_role)l->arch->role;
    m->logits = !(flags & F_NO_LOGITS);
    m->causal = !(flags & F_NOT_CAUSAL);
    m->nextn_skipped = flags & F_NEXTN_SKIPPED;
    m->nextn_cached = flags & F_NEXTN_CACHED;
    m->nextn_rope = flags & F_NEXTN_ROPE;
    m->can_rollback = flags & F_ROLLBACK;
    m->needs_repeatable_batch = flags & F_REPEAT;
    m->flash_attention_off = flags & F_NO_FLASH;
    m->split_tensor_refused = flags & F_NO_SPLIT;
    m->rope_dense_only = flags & F_ROPE_DENSE;
    m->always_streams = l->arch->cache == CACHE_V4;
    if ((r = model_key_need(l, "context_length", &m->context_trained)) < 0 || (r = model_key_need(l, "embedding_length", &m->embd)) < 0 || (r = read_blocks(l)) < 0)
        return r;
    if ((r = model_key_u32(l, "embedding_length_out", &m->embd_out)) < 0 || (r = read_heads(l)) < 0 || (r = read_experts(l)) < 0 || (r = model_key_bool(l, "attention.causal", &m->causal)) < 0)
        return r;
    if (m->embd_out == 0)
        m->embd_out = m->embd;
    if ((r = model_key_u32(l, "hyper_connection.count", &m->hyper)) < 0)
        return r;
    m->hyper = m->hyper > 0 ? m->hyper : 1;
    m->rope_dims = l->k_head;
    if ((r = model_key_u32(l, "rope.dimension_count", &m->rope_dims)) < 0)
        return r;
    m->mtp = m->n_nextn > 0 && (flags & F_MTP);
    m->m_rope = has_m_rope(l);
    return flags & F_TAPS ? read_taps(l) : 0;
}
