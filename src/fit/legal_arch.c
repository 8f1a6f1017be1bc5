/* SPDX-License-Identifier: MIT
 *
 * Rules of single architectures: what loads, is measured, and then ends the engine by an assertion of its own, at the start or at the first token. Each row says what meets it and what to do; all were seen with llama.cpp 0.7.0.
 */
#include "fit_int.h"

static bool slots_apart(const struct fit_run *x)
{
    return x->s->slots > 1 && !x->s->unified;
}

static bool slots_apart_served(const struct fit_run *x)
{
    return slots_apart(x) && x->p->in.program == FIT_SERVER;
}

static bool several_mtp_blocks(const struct fit_run *x)
{
    return (x->spec & FIT_SPEC_MTP) && !x->p->drafter && x->p->in.target->n_nextn > 1;
}

static bool mtp_projects_apart(const struct fit_run *x)
{
    const struct model *m = x->p->in.target;
    if (!(x->spec & FIT_SPEC_MTP) || x->p->drafter)
        return false;
    for (uint32_t il = 0; il < m->n_layer; il++)
        if (m->layers[il].nextn && x->p->target->layers[il].qkv == 0)
            return true;
    return false;
}

static bool no_window(const struct fit_run *x)
{
    return x->p->in.target->window == 0;
}

static bool index_narrower_than_rope(const struct fit_run *x)
{
    const struct model *m = x->p->in.target;
    bool chooses = false;
    for (uint32_t il = 0; il < m->n_layer; il++)
        chooses |= m->layers[il].index_chooses;
    return chooses && m->index_key < m->rope_dims;
}

static const struct {
    const char *arch; /* NULL: any */
    bool (*met)(const struct fit_run *x);
    const char *words, *advice;
} asserts[] = {
    {"t5", slots_apart, "ggml_can_repeat(b, a)", "several slots need unified-kv: on, or set slots: 1"},
    {"t5encoder", slots_apart_served, "!ubatch->equal_seqs()", "several slots need unified-kv: on, or set slots: 1"},
    {"glm4moe", several_mtp_blocks, "n_layer_nextn == 1", "draft-mtp works with one nextn block only; take another kind of drafter"},
    {"mimo2", mtp_projects_apart, "layer.wqkv", "draft-mtp wants attn_qkv in the nextn block, this file has q, k and v apart; take another kind of drafter"},
    {"llama4", no_window, "f_attn_temp_scale != 0.0f", "the file sets its window to 0; the first token ends the engine"},
    {NULL, index_narrower_than_rope, "n_dims <= ne0", "the indexer's keys are narrower than what rope turns; the first token ends the engine"},
};

static void engine_assert(struct fit_run *x, const char *rule)
{
    const char *arch = x->p->in.target->arch;
    for (size_t i = 0; i < BASE_COUNT(asserts); i++)
        if ((!asserts[i].arch || str_eq_c(str_of(arch), asserts[i].arch)) && asserts[i].met(x))
            fit_note(x, FIT_REFUSED, rule, "\"%s\": the engine ends by GGML_ASSERT(%s): %s", arch, asserts[i].words, asserts[i].advice);
}

const struct fit_rule *fit_arch_rules(size_t *ret_n)
{
    static const struct fit_rule rules[] = {{"engine-assert", NULL, NULL, engine_assert}};
    *ret_n = BASE_COUNT(rules);
    return rules;
}
