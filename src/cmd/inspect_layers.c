/* SPDX-License-Identifier: MIT
 *
 * Layers by kind. Which tensors a layer has tells whether it attends, keeps a state, or has experts, for any architecture; what no tensor shows (a window) is left to the laws of the architectures that berth knows.
 */
#include "inspect_int.h"

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

static void by_tensors(struct inspect *in, uint64_t nextn)
{
    uint8_t has[INSPECT_LAYERS_MAX] = {0};
    struct inspect_layers *l = &in->layers;
    look(in, has);
    l->by_tensors = true;
    for (uint64_t i = 0; i < l->total && i < INSPECT_LAYERS_MAX; i++) {
        if (has[i] & HAS_EXPERTS)
            l->moe++;
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

void inspect_layers(struct inspect *in)
{
    const struct gguf *g = inspect_meta(in);
    uint64_t nextn = 0;
    if (!gguf_u64(gguf_find_arch(g, "block_count"), &in->layers.total))
        return;
    if (!gguf_u64(gguf_find_arch(g, "nextn_predict_layers"), &nextn) || nextn > in->layers.total)
        nextn = 0;
    by_tensors(in, nextn);
}
