/* SPDX-License-Identifier: MIT
 *
 * Rules of speculative decoding (law 5.3): a server that runs proves nothing about its drafter, because most faults are answered by serving without one.
 */
#include "fit_int.h"

#define VOCAB_SLACK 128 /* tokens by which two vocabularies may differ in size */

static const struct {
    unsigned bit;
    const char *name;
} kinds[] = {{FIT_SPEC_SIMPLE, "draft-simple"}, {FIT_SPEC_EAGLE3, "draft-eagle3"}, {FIT_SPEC_MTP, "draft-mtp"}, {FIT_SPEC_DFLASH, "draft-dflash"}, {FIT_SPEC_DSPARK, "draft-dspark"}};

/* The first context-backed kind that is asked for, NULL none. */
static const char *asked(const struct fit_run *x, unsigned *ret_bit)
{
    for (size_t i = 0; i < BASE_COUNT(kinds); i++)
        if (x->s->spec & kinds[i].bit) {
            *ret_bit = kinds[i].bit;
            return kinds[i].name;
        }
    *ret_bit = 0;
    return NULL;
}

static void spec_two(struct fit_run *x, const char *rule)
{
    unsigned bits = x->s->spec & FIT_SPEC_CONTEXT;
    if (bits & (bits - 1))
        fit_note(x, FIT_REFUSED, rule, "two kinds of drafter with a context of their own never load together: keep one, ngram kinds may stand beside it");
}

static void drafter_unused(struct fit_run *x, const char *rule)
{
    if (x->p->drafter && !(x->s->spec & FIT_SPEC_CONTEXT))
        fit_note(x, FIT_WARNING, rule, "a drafter is named but no draft kind of speculation: the engine loads it and frees it again; set speculative or leave it out");
}

static void drafter_missing(struct fit_run *x, const char *rule)
{
    unsigned bit = 0;
    const char *name = asked(x, &bit);
    if (name && bit != FIT_SPEC_MTP && !x->p->drafter)
        fit_note(x, FIT_WARNING, rule, "%s without a drafter's file: the engine runs, and drafts nothing; name a drafter", name);
}

static void drafter_kind(struct fit_run *x, const char *rule)
{
    unsigned bit = 0;
    const char *name = asked(x, &bit);
    if (!name || !x->p->drafter || (x->spec & bit))
        return;
    const char *arch = x->p->drafter->m->arch;
    if (bit == FIT_SPEC_DSPARK)
        fit_note(x, FIT_REFUSED, rule, "%s with a drafter of architecture \"%s\": the engine crashes (segmentation fault)", name, arch);
    else
        fit_note(x, FIT_WARNING, rule, "%s with a drafter of architecture \"%s\": the engine says so in its log and runs without", name, arch);
}

static void mtp_nextn(struct fit_run *x, const char *rule)
{
    const struct model *m = x->p->in.target;
    if (!(x->s->spec & FIT_SPEC_MTP) || x->p->drafter || m->mtp)
        return;
    fit_note(x, FIT_REFUSED, rule, "context type MTP requested but model doesn't contain MTP layers%s: take another kind of drafter", m->n_nextn > 0 ? " that the engine can run" : "");
}

static void mtp_table(struct fit_run *x, const char *rule)
{
    if ((x->s->spec & FIT_SPEC_MTP) && x->p->drafter && x->p->drafter->m->role == MODEL_DRAFT_ASSISTANT && x->p->target->table_moved)
        fit_note(x, FIT_REFUSED, rule, "the drafter borrows the target's per_layer_token_embd, which an override moved off the CPU: its load dies with \"invalid vector subscript\"; leave the table on the CPU");
}

static void draft_depth(struct fit_run *x, const char *rule)
{
    uint32_t max = x->r->draft_max;
    if (max > 0 && x->s->draft_max > max)
        fit_note(x, FIT_WARNING, rule, "draft-max %u becomes %u: the drafter's block holds no more (other builds stop with an assertion); memory is taken for %u", x->s->draft_max, max, x->s->draft_max);
}

static void dspark_confidence(struct fit_run *x, const char *rule)
{
    if ((x->spec & FIT_SPEC_DSPARK) && x->p->drafter && !x->p->drafter->m->confidence_head && x->s->draft_p_min > 0)
        fit_note(x, FIT_REFUSED, rule, "DSpark draft has no confidence head: please set --spec-draft-p-min 0");
}

static void drafter_window(struct fit_run *x, const char *rule)
{
    const struct fit_context *d = &x->draft;
    char text[UNITS_TEXT];
    if (!d->pm || d->mtp || d->pm->m->window > 0)
        return;
    uint64_t kv = 0;
    for (size_t i = 0; i <= x->p->host; i++)
        kv = fit_add(kv, x->r->use[i].terms[FIT_DRAFT_KV].bytes);
    if (kv > 0)
        fit_note(x, FIT_WARNING, rule, "the drafter has no sliding window and its context is the target's: it caches all %s tokens, %s; the load may succeed and the first draft die; lower context or take a drafter with a window", FIT_COUNT(d->n_ctx),
                 units_show_bytes(kv, text));
}

static void spec_rollback(struct fit_run *x, const char *rule)
{
    const struct model *m = x->p->in.target;
    bool recurrent = false;
    for (uint32_t il = 0; il < m->n_layer; il++)
        recurrent |= m->layers[il].recurrent;
    if (recurrent && !m->can_rollback && (x->spec & FIT_SPEC_CONTEXT))
        fit_note(x, FIT_WARNING, rule, "\"%s\" cannot roll its recurrent state back: rejected drafts are undone through checkpoints, which is slower", m->arch);
}

/* A Markov head adds its own scores to the target's logits: one of another size ends the engine when its graph is made. */
static void markov_vocab(struct fit_run *x, const char *rule)
{
    const struct model_tensor *t = model_find_tensor(x->p->drafter->m, "markov_w2.weight");
    uint32_t vocab = x->p->in.target->vocab;
    if (t && t->ne[1] != vocab)
        fit_note(x, FIT_REFUSED, rule, "the drafter's Markov head knows %s tokens, the target %s: the engine ends by GGML_ASSERT(ggml_can_repeat(b, a)); take the drafter of this model", FIT_COUNT(t->ne[1]), FIT_COUNT(vocab));
}

static void draft_vocab(struct fit_run *x, const char *rule)
{
    if ((x->spec & FIT_SPEC_DSPARK) && x->p->drafter)
        markov_vocab(x, rule);
    if (!(x->spec & FIT_SPEC_SIMPLE) || !x->p->drafter)
        return;
    uint32_t a = x->p->in.target->vocab, b = x->p->drafter->m->vocab;
    if ((a > b ? a - b : b - a) > VOCAB_SLACK)
        fit_note(x, FIT_WARNING, rule, "the target has %s tokens and the drafter %s: \"the target and draft vocabs are not compatible\", the engine runs without", FIT_COUNT(a), FIT_COUNT(b));
}

static const struct fit_rule rules[] = {
    {"spec-two", NULL, NULL, spec_two},
    {"drafter-unused", NULL, NULL, drafter_unused},
    {"drafter-missing", NULL, NULL, drafter_missing},
    {"drafter-kind", NULL, NULL, drafter_kind},
    {"mtp-nextn", NULL, NULL, mtp_nextn},
    {"mtp-table", NULL, NULL, mtp_table},
    {"draft-depth", NULL, NULL, draft_depth},
    {"dspark-confidence", NULL, NULL, dspark_confidence},
    {"drafter-window", NULL, NULL, drafter_window},
    {"spec-rollback", NULL, NULL, spec_rollback},
    {"draft-vocab", NULL, NULL, draft_vocab},
};

const struct fit_rule *fit_draft_rules(size_t *ret_n)
{
    *ret_n = BASE_COUNT(rules);
    return rules;
}
