/* SPDX-License-Identifier: MIT
 *
 * The weights: every tensor of every part with its bytes, and the place that the engine gives it by its name (law 2.3). A name without its last component (.weight, .bias, .scale, .input_scale) decides; blocks
 * are told by their number. A part's tensors stay in the order of its file.
 */
#include "model_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const input_names[] = {"masked_embd_centroids", "masked_embd_ordering", "per_layer_token_embd", "position_embd", "token_embd", "token_types"};
static const char *const output_names[] = {
    "altup_proj", "altup_unembd_proj", "cls", "cls.norm", "cls.output", "conf_proj", "d2t", "dec.output_norm", "dense_2", "dense_3", "enc.output_norm", "fc", "markov_w1", "markov_w2",
    "nextn.post_projection", "output", "output_hc_base", "output_hc_down", "output_hc_fn", "output_hc_norm", "output_hc_scale", "output_hc_up", "output_norm", "output_res_score",
    "selector_hidden", "selector_predecessor", "selector_successor",
};
static const char *const factor_names[] = {"rope_factors_long", "rope_factors_short", "rope_freqs"};
static const char *const numbered[] = {"blk.", "enc.blk.", "dec.blk.", "posnet.", "convnext."};

/* Ends of names whose values are looked up, added or multiplied, never the matrix of a product. */
static const char *const no_product[] = {
    "token_embd", "position_embd", "per_layer_token_embd", "token_types", "embed_tokens", "masked_embd_ordering", "markov_w1", "selector_predecessor", "selector_successor", "d2t", "_norm", "conv1d",
    "conv1d_q", "conv1d_k", "conv1d_v", "shortconv.conv", "conv_base", "ssm_a", "ssm_d", "ssm_dt", "attn_rel_b", "ffn_gate_tid2eid", "attn_rot_embd", "attn_sinks", "_ape", "lerp_fused", "lerp_x", "lerp_k",
    "lerp_v", "lerp_w", "lerp_r", "lerp_g", "time_mix_first", "rope_freqs", "rope_factors_long", "rope_factors_short",
};

static struct str stem_of(struct str name, bool *ret_weight)
{
    static const char *const ends[] = {".weight", ".bias", ".scale", ".input_scale"};

    *ret_weight = true;
    for (size_t i = 0; i < BASE_COUNT(ends); i++)
        if (str_ends(name, str_of(ends[i]))) {
            *ret_weight = i == 0;
            name.len -= strlen(ends[i]);
            break;
        }
    return name;
}

static bool among(struct str name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq_c(name, names[i]))
            return true;
    return false;
}

/* The number of the block that a name belongs to, or -1. */
static int32_t block_of(struct str name)
{
    uint64_t n = 0;

    for (size_t i = 0; i < BASE_COUNT(numbered); i++) {
        struct str rest = name;

        if (!str_starts(name, str_of(numbered[i])))
            continue;
        rest.ptr += strlen(numbered[i]);
        rest.len -= strlen(numbered[i]);
        if (str_to_u64(str_split(&rest, '.'), &n) == 0 && rest.ptr && n < INT32_MAX)
            return (int32_t)n;
    }
    return -1;
}

static bool is_expert(struct str stem)
{
    static const char *const names[] = {"ffn_up_exps", "ffn_down_exps", "ffn_gate_exps", "ffn_gate_up_exps", "ffn_up_chexps", "ffn_down_chexps", "ffn_gate_chexps", "ffn_gate_up_chexps"};

    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (str_ends(stem, str_of(names[i])))
            return true;
    return false;
}

static bool is_product(struct str stem, const struct gguf_tensor *t)
{
    if (t->n_dims < 2)
        return false;
    for (size_t i = 0; i < BASE_COUNT(no_product); i++)
        if (str_ends(stem, str_of(no_product[i])))
            return false;
    return true;
}

/* What the name alone says; the architecture's exceptions come in model_place_tensors. */
static void read_name(struct model_tensor *y, const struct gguf_tensor *t)
{
    bool weight = false;
    struct str stem = stem_of(t->name, &weight);

    y->layer = block_of(t->name);
    y->expert = is_expert(stem);
    y->used_by_matmul = weight && is_product(stem, t);
    if (y->layer >= 0)
        y->place = MODEL_REPEATING;
    else if (among(stem, input_names, BASE_COUNT(input_names)))
        y->place = MODEL_INPUT;
    else if (among(stem, output_names, BASE_COUNT(output_names)))
        y->place = MODEL_OUTPUT;
    else if (among(stem, factor_names, BASE_COUNT(factor_names)))
        y->place = MODEL_PER_BUFFER;
    else
        y->place = MODEL_FIRST;
}

static int read_part(struct model *m, const struct gguf *g, uint16_t part, struct model_tensor *y, struct err *err)
{
    const struct gguf_info *info = gguf_info(g);

    for (size_t i = 0; i < info->n_tensors; i++, y++) {
        const struct gguf_tensor *t = gguf_tensor(g, i);

        if (!t->type)
            return err_set(err, -ENOTSUP, "tensor '%s' has the unknown type %u", t->name.ptr, t->type_id);
        y->name = arena_dup(m->arena, t->name);
        if (!y->name)
            return err_nomem(err);
        y->type = t->type;
        memcpy(y->ne, t->dims, sizeof(y->ne));
        y->bytes = t->bytes;
        y->part = part;
        y->offset = t->off - info->data_off;
        read_name(y, t);
        if (!size_add(m->weight_bytes, t->bytes, &m->weight_bytes) || !size_add(m->params, t->elements, &m->params))
            return err_set(err, -EBADMSG, "tensor '%s': all weights together exceed 64 bits", t->name.ptr);
    }
    return 0;
}

struct named {
    const char *name;
    uint16_t part;
};

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* A reader has seen to its own file; a name may still be in two parts. */
static int check_twice(const struct model *m, struct err *err)
{
    base_autofree struct named *order = calloc(m->n_tensors, sizeof(struct named));

    if (!order)
        return err_nomem(err);
    for (size_t i = 0; i < m->n_tensors; i++)
        order[i] = (struct named){m->tensors[i].name, m->tensors[i].part};
    qsort(order, m->n_tensors, sizeof(struct named), by_name);
    for (size_t i = 1; i < m->n_tensors; i++)
        if (strcmp(order[i - 1].name, order[i].name) == 0) {
            unsigned a = order[i - 1].part + 1u, b = order[i].part + 1u;

            return err_set(err, -EBADMSG, "tensor '%s' is in part %u and again in part %u", order[i].name, a < b ? a : b, a < b ? b : a);
        }
    return 0;
}

int model_read_tensors(struct model *m, const struct gguf *const *parts, size_t n_parts, struct err *err)
{
    size_t n = 0;
    int r;

    for (size_t i = 0; i < n_parts; i++)
        n += gguf_info(parts[i])->n_tensors; /* each is at most GGUF_TENSORS_MAX */
    if (n > MODEL_TENSORS_MAX)
        return err_set(err, -E2BIG, "the model has %zu tensors, at most %d are possible", n, MODEL_TENSORS_MAX);
    m->tensors = arena_alloc(m->arena, n > 0 ? n : 1, sizeof(*m->tensors));
    if (!m->tensors)
        return err_nomem(err);
    for (size_t i = 0; i < n_parts; i++) {
        r = read_part(m, parts[i], (uint16_t)i, m->tensors + m->n_tensors, err);
        if (r < 0)
            return r;
        m->n_tensors += gguf_info(parts[i])->n_tensors;
    }
    return n_parts > 1 && n > 0 ? check_twice(m, err) : 0;
}

const struct model_tensor *model_find_tensor(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

const struct model_tensor *model_tied_tensor(const struct model *m)
{
    return m->tied_output ? model_find_tensor(m, "token_embd.weight") : NULL;
}

/* A file that has nothing but nextn blocks goes beside a target and takes its tables (law 5). */
static bool only_nextn(const struct model_load *l)
{
    bool any = false;

    for (size_t i = 0; i < l->m->n_tensors; i++) {
        int32_t n = l->m->tensors[i].layer;

        if (n >= 0 && (uint32_t)n < l->trunk)
            return false;
        any |= n >= 0;
    }
    return any;
}

/* Law 2.3: which matrix gives the logits. */
static int read_output(struct model_load *l)
{
    struct model *m = l->m;
    bool output = model_find_tensor(m, "output.weight") != NULL;

    m->own_embeddings = model_find_tensor(m, "token_embd.weight") != NULL;
    if ((!m->logits && !(l->arch->flags & F_TIED_UNUSED)) || output || (l->arch->flags & (F_TAPS | F_TIED_SAME)) || only_nextn(l))
        return 0;
    if (l->arch->flags & F_OUTPUT)
        return err_set(l->err, -EBADMSG, "tensor 'output.weight' is missing, which %s models need", m->arch);
    if (!m->own_embeddings)
        return err_set(l->err, -EBADMSG, "tensors 'output.weight' and 'token_embd.weight' are both missing");
    m->tied_output = true;
    m->tied_copy_always = l->arch->flags & F_TIED_ALWAYS;
    return 0;
}

static void read_drafter(struct model *m)
{
    if (m->role != MODEL_DRAFT_DFLASH || !model_find_tensor(m, "markov_w1.weight"))
        return;
    m->role = MODEL_DRAFT_DSPARK;
    m->confidence_head = model_find_tensor(m, "conf_proj.weight") != NULL;
}

/* Law 2.3: what the engine loads of a nextn block even when that block is not asked for. */
static bool always_loaded(const struct model_load *l, struct str name)
{
    static const char head_norm[] = "nextn.shared_head_norm";
    static const char *const bias[] = {"exp_probs_b"}, *const norm[] = {head_norm};
    static const char *const feed_forward[] = {"ffn_gate", "ffn_down", "ffn_up", "ffn_gate_inp", "exp_probs_b", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", head_norm};
    static const char *const optional[] = {"attn_q_norm", "attn_k_norm", "attn_gate", "nextn.embed_tokens", "nextn.shared_head_head"};
    static const struct {
        const char *arch;
        const char *const *names;
        size_t n;
    } rows[] = {
        {"cohere2moe", norm, BASE_COUNT(norm)}, {"deepseek32", bias, BASE_COUNT(bias)}, {"glm-dsa", bias, BASE_COUNT(bias)}, {"hy_v3", feed_forward, BASE_COUNT(feed_forward)},
        {"step35", feed_forward, BASE_COUNT(feed_forward)}, {"step35", optional, BASE_COUNT(optional)},
    };
    bool weight = false;
    struct str rest = stem_of(name, &weight);

    str_split(&rest, '.'); /* "blk.N." */
    str_split(&rest, '.');
    for (size_t i = 0; i < BASE_COUNT(rows); i++)
        if (strcmp(l->m->arch, rows[i].arch) == 0 && among(rest, rows[i].names, rows[i].n))
            return true;
    return false;
}

int model_place_tensors(struct model_load *l)
{
    struct model *m = l->m;

    for (size_t i = 0; i < m->n_tensors; i++) {
        struct model_tensor *t = &m->tensors[i];

        if (t->layer >= 0 && (uint32_t)t->layer >= m->n_block)
            return err_set(l->err, -EBADMSG, "tensor '%s' is of block %d, but '%s.block_count' is %u", t->name, t->layer, m->arch, m->n_block);
        if (t->layer >= 0 && (uint32_t)t->layer >= l->trunk)
            t->place = m->nextn_skipped ? MODEL_SKIPPED : always_loaded(l, str_of(t->name)) ? MODEL_REPEATING : MODEL_NEXTN;
        if ((l->arch->flags & F_NORM_OUTPUT) && str_starts(str_of(t->name), STR("token_embd_norm.")))
            t->place = MODEL_OUTPUT;
    }
    read_drafter(m);
    return read_output(l);
}
