/* SPDX-License-Identifier: MIT
 *
 * What the layers of a model are made of, as far as their activations go: widths and kinds of their products, read once from names and dimensions of tensors. Layers alike get the same hash, so that only a few of each kind
 * are played.
 */
#include "graph_int.h"

#include <errno.h>

#define FNV_START 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

static uint32_t width(uint64_t n)
{
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* Which width of a layer a tensor tells: its first dimension is what it reads, its second what it makes. */
static const struct {
    const char *name;
    size_t at;
    unsigned dim;
} widths[] = {
    {"attn_q.weight", offsetof(struct fit_layer, q), 1},
    {"attn_q_b.weight", offsetof(struct fit_layer, q), 1},
    {"attn_k.weight", offsetof(struct fit_layer, k), 1},
    {"attn_v.weight", offsetof(struct fit_layer, v), 1},
    {"attn_q_a.weight", offsetof(struct fit_layer, q_a), 1},
    {"attn_kv_a_mqa.weight", offsetof(struct fit_layer, kv_a), 1},
    {"attn_kv_a_norm.weight", offsetof(struct fit_layer, lora), 0},
    {"attn_qkv.weight", offsetof(struct fit_layer, qkv), 1},
    {"attn_output.weight", offsetof(struct fit_layer, o), 0},
    {"attn_o.weight", offsetof(struct fit_layer, o), 0},
    {"ffn_up.weight", offsetof(struct fit_layer, up), 1},
    {"ffn_down.weight", offsetof(struct fit_layer, down), 0},
    {"ffn_down_exps.weight", offsetof(struct fit_layer, expert), 0},
    {"ffn_down_shexp.weight", offsetof(struct fit_layer, shared), 0},
    {"ssm_in.weight", offsetof(struct fit_layer, in), 1},
    {"ssm_conv1d.weight", offsetof(struct fit_layer, conv), 1},
    {"ssm_x.weight", offsetof(struct fit_layer, x), 1},
    {"ssm_out.weight", offsetof(struct fit_layer, inner), 0},
    {"shortconv.in_proj.weight", offsetof(struct fit_layer, in), 1},
    {"shortconv.out_proj.weight", offsetof(struct fit_layer, inner), 0},
};

static void read_tensor(struct fit_layer *l, struct str name, const struct model_tensor *t)
{
    for (size_t i = 0; i < BASE_COUNT(widths); i++)
        if (str_eq_c(name, widths[i].name))
            *(uint32_t *)(void *)((char *)l + widths[i].at) = width(t->ne[widths[i].dim]);
    if (t->bytes > l->largest)
        l->largest = t->bytes;
    if (t->expert && t->bytes > l->largest_expert)
        l->largest_expert = t->bytes;
    if (str_eq_c(name, "ffn_gate.weight"))
        l->gated = true;
    if (str_eq_c(name, "ffn_norm.weight"))
        l->pre_ffn = true;
    if (str_eq_c(name, "ffn_norm.weight") || str_eq_c(name, "attn_norm_2.weight") || str_eq_c(name, "post_attention_norm.weight"))
        l->ffn_norm = true;
    if (str_eq_c(name, "attn_norm.weight") || str_eq_c(name, "attn_norm.bias"))
        l->attn_norm = true;
    if (str_eq_c(name, "layer_output_norm.weight") || str_eq_c(name, "post_ffw_norm.weight") || str_eq_c(name, "ffn_post_norm.weight"))
        l->post_ffn = true;
    if (str_starts(name, STR("shortconv.")))
        l->mixer = FIT_MIX_SHORT;
}

static uint64_t kind_of(const struct fit_layer *l, const struct model_layer *m)
{
    const uint64_t all[] = {l->q, l->k, l->v, l->o, l->qkv, l->up, l->down, l->expert, l->shared, l->q_a, l->kv_a, l->lora, l->in, l->conv, l->x, l->inner, l->gated, l->ffn_norm, l->attn_norm, l->pre_ffn, l->post_ffn,
                            l->mixer, m->attention, m->swa, m->recurrent, m->index_chooses, m->index_follows, m->heads, m->r_elems, m->s_elems};
    uint64_t h = FNV_START;
    for (size_t i = 0; i < BASE_COUNT(all); i++)
        h = (h ^ all[i]) * FNV_PRIME;
    return h;
}

static void understand(struct fit_layer *l, const struct model_layer *m)
{
    if (m->attention) { /* without a cache the products tell */
        l->k = width(m->k_width);
        l->v = width(m->v_width > 0 ? m->v_width : m->k_width);
    }
    if (m->recurrent && l->mixer == FIT_MIX_OTHER && l->inner > 0 && l->conv > 0)
        l->mixer = l->x > 0 ? FIT_MIX_MAMBA : l->in > 0 ? FIT_MIX_MAMBA2 : l->qkv > 0 ? FIT_MIX_DELTA : FIT_MIX_OTHER;
    if (l->qkv > 0 && l->mixer != FIT_MIX_DELTA)
        l->q = l->qkv > l->k + l->v ? l->qkv - l->k - l->v : l->qkv;
    if (l->o == 0)
        l->o = l->q;
    l->kind = kind_of(l, m);
}

int fit_layers_new(const struct model *m, struct arena *a, struct fit_layer **ret)
{
    struct fit_layer *all = arena_alloc(a, m->n_layer > 0 ? m->n_layer : 1, sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct model_tensor *t = &m->tensors[i];
        struct str name = str_of(t->name);
        if (str_starts(name, STR("dec.")) || (str_starts(name, STR("enc.")) && m->cache == MODEL_CACHE_NONE))
            (void)str_split(&name, '.');
        if (t->layer < 0 || (uint32_t)t->layer >= m->n_layer || !str_starts(name, STR("blk.")))
            continue;
        (void)str_split(&name, '.');
        (void)str_split(&name, '.');
        read_tensor(&all[t->layer], name, t);
    }
    bool no_experts = fit_traits(m) & FIT_NO_EXPERTS;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        if (no_experts)
            all[il].expert = 0;
        understand(&all[il], &m->layers[il]);
    }
    *ret = all;
    return 0;
}
