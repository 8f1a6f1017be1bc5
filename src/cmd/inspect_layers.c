/* SPDX-License-Identifier: MIT
 *
 * Layers by kind. For an architecture whose laws are known the module model tells; for any other, the tensors that a layer has show whether it attends, keeps a state, or has experts, but not whether it has a window.
 */
#include "inspect_int.h"

#include <errno.h>
#include <model/model.h>
#include <string.h>

enum { HAS_ATTENTION = 1, HAS_STATE = 2, HAS_FFN = 4, HAS_EXPERTS = 8, HAS_NEXTN = 16 };

/* "blk.12.attn_k.weight": 12, and the rest of the name. False for other names. */
static bool layer_of(struct str name, uint64_t *ret_layer, struct str *ret_rest)
{
    if (!str_starts(name, STR("blk.")))
        return false;
    struct str rest = {name.ptr + 4, name.len - 4};
    struct str number = str_split(&rest, '.');
    if (!rest.ptr || str_to_u64(number, ret_layer) < 0)
        return false;
    *ret_rest = rest;
    return true;
}

static unsigned has_of(struct str rest)
{
    if (str_starts(rest, STR("nextn.")))
        return HAS_NEXTN;
    if (str_starts(rest, STR("ssm_")) || str_starts(rest, STR("time_mix_")) || str_starts(rest, STR("shortconv.")))
        return HAS_STATE;
    if (str_starts(rest, STR("attn_k")) || str_starts(rest, STR("attn_q")))
        return HAS_ATTENTION;
    if (str_starts(rest, STR("ffn_")))
        return str_find(rest, STR("_exps.")) >= 0 ? HAS_FFN | HAS_EXPERTS : HAS_FFN;
    return 0;
}

static void look(const struct inspect *in, uint8_t has[INSPECT_LAYERS_MAX])
{
    for (size_t p = 0; p < in->weights.n; p++) {
        const struct gguf *g = in->weights.parts[p].g;
        for (size_t i = 0; g && i < gguf_info(g)->n_tensors; i++) {
            uint64_t layer;
            struct str rest;
            if (layer_of(gguf_tensor(g, i)->name, &layer, &rest) && layer < INSPECT_LAYERS_MAX)
                has[layer] |= (uint8_t)has_of(rest);
        }
    }
}

static void by_tensors(struct inspect *in, const uint8_t has[INSPECT_LAYERS_MAX], uint64_t nextn)
{
    struct inspect_layers *l = &in->layers;
    l->by_tensors = true;
    for (uint64_t i = 0; i < l->total && i < INSPECT_LAYERS_MAX; i++) {
        if ((has[i] & HAS_NEXTN) || i >= l->total - nextn)
            l->nextn++;
        else if ((has[i] & HAS_STATE) && (has[i] & HAS_ATTENTION) && str_eq_c(in->arch, "falcon-h1"))
            l->both++; /* elsewhere attn_ tensors beside a state are projections of linear attention */
        else if (has[i] & HAS_STATE)
            l->recurrent++;
        else if (has[i] & HAS_ATTENTION)
            l->full++;
        else if (has[i] & HAS_FFN)
            l->ffn++;
    }
}

static void by_law(struct inspect *in, const uint8_t has[INSPECT_LAYERS_MAX], const struct model *m)
{
    struct inspect_layers *l = &in->layers;
    for (uint32_t i = 0; i < m->n_layer; i++) {
        const struct model_layer *y = &m->layers[i];
        bool keys = y->attention && (y->k_width || y->v_width);
        if (y->nextn)
            l->nextn++;
        else if (y->recurrent && keys)
            l->both++;
        else if (y->recurrent)
            l->recurrent++;
        else if (keys && y->swa)
            l->sliding++;
        else if (keys)
            l->full++;
        else if (i < INSPECT_LAYERS_MAX && (has[i] & HAS_ATTENTION))
            l->shared++;
        else
            l->ffn++;
    }
    in->window = m->window;
}

static void take_role(struct inspect *in, const struct model *m)
{
    static const char *const drafts[] = {[MODEL_DRAFT_EAGLE3] = "draft-eagle3", [MODEL_DRAFT_DFLASH] = "draft-dflash", [MODEL_DRAFT_DSPARK] = "draft-dspark", [MODEL_DRAFT_ASSISTANT] = "assistant"};
    if (m->role == MODEL_PROJECTOR)
        in->role = "projector";
    if ((size_t)m->role < BASE_COUNT(drafts) && drafts[m->role]) {
        in->role = "drafter";
        in->drafts = drafts[m->role];
    } else if (m->mtp) {
        in->drafts = "draft-mtp";
    }
}

/* The model by its laws; NULL when there are none, or when the file is not all that they need. */
static struct model *load(struct inspect *in)
{
    const struct gguf *parts[GGUF_PARTS_MAX];
    struct model *m = NULL;
    struct err why;
    if (in->weights.verdict || !in->tensors)
        return NULL;
    if (!model_arch_known(in->arch)) {
        if (in->arch.len)
            inspect_note(in, "the laws of this architecture are not known here: its layers are told by their tensors");
        return NULL;
    }
    for (size_t i = 0; i < in->weights.n; i++)
        parts[i] = in->weights.parts[i].g;
    int r = model_load(parts, in->weights.n, &m, &why);
    if (r == -EBADMSG)
        inspect_note(in, "engines refuse it: %s", why.text);
    return r < 0 ? NULL : m;
}

void inspect_layers(struct inspect *in)
{
    const struct gguf *g = inspect_meta(in);
    uint8_t has[INSPECT_LAYERS_MAX] = {0};
    uint64_t nextn = 0;
    struct model *m = load(in);
    if (m)
        take_role(in, m);
    if (gguf_u64(gguf_find_arch(g, "block_count"), &in->layers.total)) {
        look(in, has);
        for (uint64_t i = 0; i < in->layers.total && i < INSPECT_LAYERS_MAX; i++)
            in->layers.moe += (has[i] & HAS_EXPERTS) != 0;
        if (!gguf_u64(gguf_find_arch(g, "nextn_predict_layers"), &nextn) || nextn > in->layers.total)
            nextn = 0;
        if (m && m->known)
            by_law(in, has, m);
        else
            by_tensors(in, has, nextn);
    }
    model_free(m);
}
