/* SPDX-License-Identifier: MIT
 *
 * The rules' table and those about a context's sizes, its KV types and where its layers go. A rule says what the engine would refuse (FIT_REFUSED, with the engine's own words), what it would silently do otherwise or
 * what costs more than it looks (FIT_WARNING), and what is good to know (FIT_NOTE). Each belongs to a range of engine versions; a version that is not known gets all of them. Names are stable and documented in
 * docs/fit.md, and a test compares the two.
 */
#include "fit_int.h"

#include <errno.h>

#define PROVEN "0.7.0"

void fit_note(struct fit_run *x, enum fit_severity severity, const char *rule, const char *fmt, ...)
{
    struct fit_result *r = x->r;
    if (r->n_notes == FIT_NOTES_MAX)
        return;
    const char *text = "";
    if (x->a) {
        base_autobuf struct buf b = BUF_INIT(ERR_TEXT_MAX);
        va_list ap;
        va_start(ap, fmt);
        buf_addv(&b, fmt, ap);
        va_end(ap);
        text = buf_status(&b) == -ENOMEM ? NULL : arena_dup(x->a, buf_str(&b));
        if (!text) {
            x->failed = -ENOMEM;
            return;
        }
    }
    r->notes[r->n_notes++] = (struct fit_note){severity, rule, text};
}

/* ---- the build and the architecture ---------------------------------------------------------------------------------- */

static void engine_unproven(struct fit_run *x, const char *rule)
{
    const char *v = x->p->in.engine_version;
    if (!v)
        fit_note(x, FIT_NOTE, rule, "the engine's version is not known: the laws are proven for llama.cpp " PROVEN);
    else if (!str_eq_c(str_of(v), PROVEN))
        fit_note(x, FIT_NOTE, rule, "llama.cpp %s: the laws are proven for " PROVEN, v);
}

static void arch_unknown(struct fit_run *x, const char *rule)
{
    const struct model *const all[] = {x->p->in.target, x->p->in.drafter};
    for (size_t i = 0; i < BASE_COUNT(all); i++)
        if (all[i] && !all[i]->known)
            fit_note(x, FIT_WARNING, rule, "architecture \"%s\" is unknown here: its weights are counted, what it caches and computes is not", all[i]->arch);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------------- */

static void context_rounded(struct fit_run *x, const char *rule)
{
    uint32_t asked = x->s->context ? x->s->context : x->p->in.target->context_trained;
    if (x->r->n_ctx != asked)
        fit_note(x, FIT_NOTE, rule, "context %s becomes %s: each slot is rounded up to a multiple of 256 tokens", FIT_COUNT(asked), FIT_COUNT(x->r->n_ctx));
}

/* A tool extrapolates; the server caps its slots, and what was asked beyond is memory for nothing. */
static void context_trained(struct fit_run *x, const char *rule)
{
    const struct fit_shape *s = x->s;
    uint32_t trained = x->p->in.target->context_trained, slot = s->unified ? s->context : s->context / s->slots;
    if (trained == 0 || x->r->n_ctx_seq <= trained || (s->unified && s->slot_cap > 0 && s->slot_cap <= trained))
        return;
    if (x->p->in.program != FIT_SERVER || !s->context_declared || slot <= trained)
        fit_note(x, FIT_WARNING, rule, "%s tokens in a slot, the model was trained for %s: a slot gets no more; lower context or raise slots", FIT_COUNT(x->r->n_ctx_seq), FIT_COUNT(trained));
    else if (s->unified && s->slots > 1)
        fit_note(x, FIT_REFUSED, rule, "%s tokens in a slot, the model was trained for %s: the engine gives a slot no more; say so with \"--kv-unified-per-slot\", \"%u\" in args, or lower context", FIT_COUNT(slot), FIT_COUNT(trained), trained);
    else
        fit_note(x, FIT_REFUSED, rule, "%s tokens in a slot, the model was trained for %s: the engine gives a slot no more; lower context to %s or raise slots", FIT_COUNT(slot), FIT_COUNT(trained), FIT_COUNT((uint64_t)trained * s->slots));
}

static void slots_split(struct fit_run *x, const char *rule)
{
    if (x->s->slots > 1 && !x->s->unified)
        fit_note(x, FIT_NOTE, rule, "%u slots divide the context: each holds %s of %s tokens; unified KV lets one use all", x->s->slots, FIT_COUNT(x->r->n_ctx_seq), FIT_COUNT(x->r->n_ctx));
}

static void slots_ubatch(struct fit_run *x, const char *rule)
{
    uint32_t tokens = x->r->n_ctx < x->r->n_ubatch ? x->r->n_ctx : x->r->n_ubatch;
    if (x->p->in.target->needs_repeatable_batch && x->s->slots > 0 && tokens % x->s->slots != 0)
        fit_note(x, FIT_REFUSED, rule, "%u slots do not divide ubatch %s: the engine aborts with \"can repeat\"; set ubatch to a multiple of slots, such as %s", x->s->slots, FIT_COUNT(tokens), FIT_COUNT(tokens - tokens % x->s->slots));
}

static void ubatch_lowered(struct fit_run *x, const char *rule)
{
    if (x->s->ubatch > x->r->n_ubatch)
        fit_note(x, FIT_NOTE, rule, "ubatch %s becomes %s, as large as batch and context allow", FIT_COUNT(x->s->ubatch), FIT_COUNT(x->r->n_ubatch));
}

/* ---- KV types -------------------------------------------------------------------------------------------------------------- */

static bool quantized(const struct gguf_type *t)
{
    return t->block > 1;
}

static void kv_type(struct fit_run *x, const char *rule)
{
    static const uint32_t known[] = {0 /* f32 */, 1 /* f16 */, 30 /* bf16 */, 8 /* q8_0 */, 2 /* q4_0 */, 3 /* q4_1 */, 20 /* iq4_nl */, 6 /* q5_0 */, 7 /* q5_1 */};
    const struct gguf_type *const types[] = {x->s->k_type, x->s->v_type, x->s->draft_k_type, x->s->draft_v_type};
    for (size_t i = 0; i < BASE_COUNT(types); i++) {
        bool ok = i >= 2 && !x->draft.pm;
        for (size_t k = 0; k < BASE_COUNT(known); k++)
            ok |= types[i]->id == known[k];
        if (!ok)
            fit_note(x, FIT_REFUSED, rule, "\"%s\" is no type for a KV cache, the engine takes f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1", types[i]->name);
    }
}

static void quantized_v(struct fit_run *x, const struct fit_context *c, const char *rule)
{
    if (c->pm && c->pm->m->cache != MODEL_CACHE_NONE && quantized(c->v) && !c->flash)
        fit_note(x, FIT_REFUSED, rule, "quantized V cache requires flash_attn to be enabled%s: set V to f16 or flash-attention: on",
                 c->pm->m->flash_attention_off ? ", which this architecture cannot" : "");
}

static void kv_quantized_v(struct fit_run *x, const char *rule)
{
    quantized_v(x, &x->target, rule);
    quantized_v(x, &x->draft, rule);
}

static void block_divides(struct fit_run *x, const struct fit_context *c, const char *rule)
{
    if (!c->pm)
        return;
    for (uint32_t il = 0; il < c->pm->m->n_layer; il++) {
        const struct model_layer *l = &c->pm->m->layers[il];
        if (!l->attention || l->nextn != c->mtp)
            continue;
        bool k = l->k_head % c->k->block != 0, v = l->v_head % c->v->block != 0 && l->v_width > 0;
        if (!k && !v)
            continue;
        const struct gguf_type *t = k ? c->k : c->v;
        fit_note(x, FIT_REFUSED, rule, "%s cache type %s with block size %u does not divide n_embd_head_%s=%u: choose a type whose block does", k ? "K" : "V", t->name, t->block, k ? "k" : "v", k ? l->k_head : l->v_head);
        return;
    }
}

static void kv_block(struct fit_run *x, const char *rule)
{
    block_divides(x, &x->target, rule);
    block_divides(x, &x->draft, rule);
}

/* Only K is cached: MLA, deepseek4. */
static bool k_only(const struct model *m)
{
    bool any = false;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        if (m->layers[il].attention && m->layers[il].v_width > 0)
            return false;
        any |= m->layers[il].attention;
    }
    return any;
}

static void types_differ(struct fit_run *x, const struct fit_context *c, const char *rule)
{
    if (c->pm && c->k != c->v && k_only(c->pm->m))
        fit_note(x, FIT_REFUSED, rule, "model does not support different K (%s) and V (%s) cache types: it caches K alone, set both alike", c->k->name, c->v->name);
}

static void kv_types_differ(struct fit_run *x, const char *rule)
{
    types_differ(x, &x->target, rule);
    types_differ(x, &x->draft, rule);
}

static bool any_cuda(const struct fit_run *x)
{
    for (size_t i = 0; i < x->n_devices; i++)
        if (x->p->classes[x->devices[i]] == FIT_CLASS_CUDA)
            return true;
    return false;
}

/* Default builds have attention kernels for a few pairs only. */
static void kv_kernel(struct fit_run *x, const char *rule)
{
    const char *k = x->s->k_type->name, *v = x->s->v_type->name;
    if (!any_cuda(x) || (!quantized(x->s->k_type) && !quantized(x->s->v_type)))
        return;
    if (!str_eq_c(str_of(k), v) || !(str_eq_c(str_of(k), "q8_0") || str_eq_c(str_of(k), "q4_0")))
        fit_note(x, FIT_WARNING, rule, "K %s with V %s: a default CUDA or HIP build has attention kernels for q8_0 and q4_0 alone, and the same for both; others run on the CPU or need a build with all quantized kernels", k, v);
}

static void kv_scratch(struct fit_run *x, const char *rule)
{
    uint64_t bytes = fit_kv_scratch(x);
    char text[UNITS_TEXT];
    if (bytes > 0)
        fit_note(x, FIT_NOTE, rule, "quantized KV on CUDA or HIP: kernels may unpack one layer to f16 while they work, up to %s more on a device; counted as the upper end of compute until it is measured", units_show_bytes(bytes, text));
}

static void flash_off(struct fit_run *x, const char *rule)
{
    if (x->p->in.target->flash_attention_off && x->s->flash == FLEET_ON)
        fit_note(x, FIT_WARNING, rule, "architecture \"%s\" cannot use flash attention, the engine turns it off", x->p->in.target->arch);
}

/* Asked to decide, the engine turns flash attention off when one attention would leave its layer's device: seen with hybrids whose first layers are on the CPU. */
static void flash_auto(struct fit_run *x, const char *rule)
{
    if (fit_flash_may_fall(x, &x->target))
        fit_note(x, FIT_WARNING, rule, "flash attention auto with layers on the CPU: for this kind of model the engine may turn it off, then compute grows by all scores and quantized V is refused; set flash-attention: on");
}

/* ---- where layers go ----------------------------------------------------------------------------------------------------------- */

static void split_free(struct fit_run *x, const char *rule)
{
    bool given = false;
    for (size_t i = 0; i < x->n_devices && i < x->s->n_split; i++)
        given |= x->s->split[i] != 0;
    if (x->n_devices > 1 && !given && x->s->split_mode != FIT_SPLIT_NONE)
        fit_note(x, FIT_WARNING, rule, "no split is given: the engine divides layers by what is free at that moment, so two starts can differ; set split");
}

static void split_zero(struct fit_run *x, const char *rule)
{
    for (size_t i = 0; i < x->n_devices; i++) {
        const struct fit_use *u = &x->r->use[x->devices[i]];
        if (x->n_devices > 1 && u->n_layers == 0 && x->s->gpu_layers > 0)
            fit_note(x, FIT_NOTE, rule, "device \"%s\" gets no layer but still counts as a device (copies of inputs, driver); leave it out of the devices", x->p->in.devices[x->devices[i]].name);
    }
}

static void main_gpu(struct fit_run *x, const char *rule)
{
    if (x->s->split_mode == FIT_SPLIT_NONE && x->p->host > 0 && x->s->main_gpu >= x->p->host)
        fit_note(x, FIT_REFUSED, rule, "invalid value for main_gpu: %u (available devices: %zu)", x->s->main_gpu, x->p->host);
}

static void split_mode(struct fit_run *x, const char *rule)
{
    const struct fit_shape *s = x->s;
    if (s->split_mode == FIT_SPLIT_ROW) {
        for (size_t i = 0; i < x->n_devices; i++)
            if (x->p->classes[x->devices[i]] != FIT_CLASS_CUDA)
                fit_note(x, FIT_REFUSED, rule, "device %s does not support split buffers: -sm row is for CUDA and HIP", x->p->in.devices[x->devices[i]].name);
    }
    if (s->split_mode == FIT_SPLIT_TENSOR) {
        if (x->p->in.target->split_tensor_refused)
            fit_note(x, FIT_REFUSED, rule, "architecture \"%s\" does not support -sm tensor", x->p->in.target->arch);
        if (s->flash == FLEET_OFF)
            fit_note(x, FIT_REFUSED, rule, "-sm tensor needs flash attention");
        if (x->n_devices < 2)
            fit_note(x, FIT_NOTE, rule, "-sm tensor has one device to divide over");
        fit_note(x, FIT_WARNING, rule, "-sm tensor needs a collective library between the cards (NCCL, RCCL) in the engine's build: without one prefill collapses, seven times slower was measured");
    }
    if (s->split_mode == FIT_SPLIT_ROW || s->split_mode == FIT_SPLIT_TENSOR)
        fit_note(x, FIT_WARNING, rule, "how the engine divides tensors is not predicted: figures marked ? are shares of the whole; start it once and read the devices before counting on them");
}

/* Law 8.1: the loader counts nextn layers also when they are not loaded. */
static void nextn_count(struct fit_run *x, const char *rule)
{
    const struct model *m = x->p->in.target;
    uint32_t ngl = x->s->gpu_layers;
    if (m->n_nextn > 0 && x->n_devices > 0 && ngl <= m->n_layer && ngl > m->n_layer - m->n_nextn)
        fit_note(x, FIT_WARNING, rule, "gpu-layers %u leaves the first %u layers on the CPU: the %u nextn layers count too, all of them are %u", ngl, m->n_layer + 1 - ngl, m->n_nextn, m->n_layer + 1);
}

static void pipeline_copies(struct fit_run *x, const char *rule)
{
    if (x->r->pipeline)
        fit_note(x, FIT_NOTE, rule, "layers on several devices work as a pipeline: what crosses between them is kept four times, in compute");
}

static void repack_host(struct fit_run *x, const char *rule)
{
    char text[UNITS_TEXT];
    uint64_t bytes = x->r->use[x->p->host].repack_bytes;
    if (bytes > 0)
        fit_note(x, FIT_NOTE, rule, "%s of the CPU's weights are repacked: allocated, not mapped, and left out of the engine's own Host figure", units_show_bytes(bytes, text));
}

static void lazy_table(struct fit_run *x, const char *rule)
{
    uint64_t bytes = x->p->target->table_bytes;
    char text[UNITS_TEXT];
    if (bytes > 4ULL << 30 && x->mmap && !x->p->target->table_moved)
        fit_note(x, FIT_NOTE, rule, "per_layer_token_embd is %s: the engine reads its rows from the file when they are needed, so it need not all be resident", units_show_bytes(bytes, text));
}

static void moe_cache(struct fit_run *x, const char *rule)
{
    if (x->s->moe_cache_bytes == 0)
        return;
    if (x->p->in.target->experts == 0)
        fit_note(x, FIT_REFUSED, rule, "the MoE cache requires a MoE model");
    else if (x->n_devices == 0)
        fit_note(x, FIT_REFUSED, rule, "the MoE cache requires a GPU backend");
    else if (x->s->split_mode == FIT_SPLIT_TENSOR)
        fit_note(x, FIT_REFUSED, rule, "the MoE cache does not support tensor parallelism");
}

static void adapters(struct fit_run *x, const char *rule)
{
    if (x->s->adapters)
        fit_note(x, FIT_WARNING, rule, "a LoRA or control vector is loaded beside the weights: its bytes are not counted");
}

/* ---- overrides --------------------------------------------------------------------------------------------------------------------- */

static void each_override(struct fit_run *x, const char *rule, void (*fn)(struct fit_run *x, const struct fit_placed *pm, size_t i, const char *rule))
{
    const struct fit_placed *const all[] = {x->p->target, x->p->drafter};
    for (size_t k = 0; k < BASE_COUNT(all); k++)
        for (size_t i = 0; all[k] && i < all[k]->n_overrides; i++)
            fn(x, all[k], i, rule);
}

static void say_unmatched(struct fit_run *x, const struct fit_placed *pm, size_t i, const char *rule)
{
    if (pm->override_hits[i] == 0)
        fit_note(x, FIT_WARNING, rule, "override \"%s\" moves no tensor of \"%s\": it matches none, or others before it take them all", pm->overrides[i].pattern, pm->m->arch);
}

static void override_unmatched(struct fit_run *x, const char *rule)
{
    each_override(x, rule, say_unmatched);
}

static void say_no_buffer(struct fit_run *x, const struct fit_placed *pm, size_t i, const char *rule)
{
    if (pm->override_no_buffer[i])
        fit_note(x, FIT_REFUSED, rule, "override \"%s\": unknown buffer type \"%s\"; it is CPU or a device's buffer, RPC0[host:port] for one behind rpc", pm->overrides[i].pattern, pm->overrides[i].buffer);
}

static void override_buffer(struct fit_run *x, const char *rule)
{
    each_override(x, rule, say_no_buffer);
}

static void say_no_kernel(struct fit_run *x, const struct fit_placed *pm, size_t i, const char *rule)
{
    if (pm->override_no_kernel[i])
        fit_note(x, FIT_WARNING, rule, "override \"%s\" moves tensors to \"%s\" whose type it has no kernel for", pm->overrides[i].pattern, pm->overrides[i].buffer);
}

static void override_kernel(struct fit_run *x, const char *rule)
{
    each_override(x, rule, say_no_kernel);
}

/* ---- host memory -------------------------------------------------------------------------------------------------------------------- */

/* Law 6.2: what one full slot saves, with its drafter's state and its checkpoints. */
static uint64_t full_slot(const struct fit_run *x)
{
    uint64_t sum = fit_state_bytes(&x->target, x->r->n_ctx_seq);
    uint64_t one = x->s->swa_full && x->target.pm->m->cache == MODEL_CACHE_SWA ? 0 : fit_checkpoint_bytes(&x->target);
    if (x->draft.pm) {
        sum = fit_add(sum, fit_state_bytes(&x->draft, x->r->n_ctx_seq));
        if (one > 0)
            one = fit_add(one, fit_checkpoint_bytes(&x->draft));
    }
    return fit_add(sum, fit_mul(one, x->s->checkpoints));
}

static void prompt_cache_small(struct fit_run *x, const char *rule)
{
    uint64_t cap = x->s->prompt_cache_bytes, need = full_slot(x);
    char a[UNITS_TEXT], b[UNITS_TEXT];
    if (cap > 0 && cap != UINT64_MAX && cap < need && x->p->in.program == FIT_SERVER)
        fit_note(x, FIT_WARNING, rule, "prompt-cache %s is less than the %s that one full slot saves, with its checkpoints: long conversations are never kept (\"exceeds cache size limit\"); raise it or turn it off", units_show_bytes(cap, a),
                 units_show_bytes(need, b));
}

static void prompt_cache_large(struct fit_run *x, const char *rule)
{
    const struct fit_host *h = x->p->in.host;
    uint64_t cap = x->s->prompt_cache_bytes;
    char a[UNITS_TEXT], b[UNITS_TEXT];
    if (!h || h->total_bytes == 0 || cap == 0 || x->p->in.program != FIT_SERVER)
        return;
    if (cap == UINT64_MAX)
        fit_note(x, FIT_WARNING, rule, "prompt-cache has no limit: it grows until the host has no memory");
    else if (cap > h->total_bytes / 2)
        fit_note(x, FIT_WARNING, rule, "prompt-cache %s is over half of the host's %s", units_show_bytes(cap, a), units_show_bytes(h->total_bytes, b));
}

static void checkpoints_large(struct fit_run *x, const char *rule)
{
    uint64_t bytes = x->r->use[x->p->host].terms[FIT_CHECKPOINTS].bytes;
    char a[UNITS_TEXT];
    if (bytes > 1ULL << 30)
        fit_note(x, FIT_NOTE, rule, "checkpoints may grow to %s in the host's memory (%u for each slot), beside the prompt cache; -ctxcp lowers them", units_show_bytes(bytes, a), x->s->checkpoints);
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------------- */

static const struct fit_rule rules[] = {
    {"engine-unproven", NULL, NULL, engine_unproven},
    {"arch-unknown", NULL, NULL, arch_unknown},
    {"context-rounded", NULL, NULL, context_rounded},
    {"context-trained", NULL, NULL, context_trained},
    {"slots-split", NULL, NULL, slots_split},
    {"slots-ubatch", NULL, NULL, slots_ubatch},
    {"ubatch-lowered", NULL, NULL, ubatch_lowered},
    {"kv-type", NULL, NULL, kv_type},
    {"kv-quantized-v", NULL, NULL, kv_quantized_v},
    {"kv-block", NULL, NULL, kv_block},
    {"kv-types-differ", NULL, NULL, kv_types_differ},
    {"kv-kernel", NULL, NULL, kv_kernel},
    {"kv-scratch", NULL, NULL, kv_scratch},
    {"flash-off", NULL, NULL, flash_off},
    {"flash-auto", NULL, NULL, flash_auto},
    {"split-free", NULL, NULL, split_free},
    {"split-zero", NULL, NULL, split_zero},
    {"split-mode", NULL, NULL, split_mode},
    {"main-gpu", NULL, NULL, main_gpu},
    {"nextn-count", NULL, NULL, nextn_count},
    {"pipeline-copies", NULL, NULL, pipeline_copies},
    {"repack-host", NULL, NULL, repack_host},
    {"lazy-table", "0.7.0", NULL, lazy_table},
    {"moe-cache", "0.7.0", NULL, moe_cache},
    {"adapters", NULL, NULL, adapters},
    {"override-unmatched", NULL, NULL, override_unmatched},
    {"override-buffer", NULL, NULL, override_buffer},
    {"override-kernel", NULL, NULL, override_kernel},
    {"prompt-cache-small", NULL, NULL, prompt_cache_small},
    {"prompt-cache-large", NULL, NULL, prompt_cache_large},
    {"checkpoints-large", NULL, NULL, checkpoints_large},
};

/* "0.7.0" as one number; 0 for anything else. */
static uint64_t version_number(const char *text)
{
    struct str s = str_of(text);
    uint64_t sum = 0, part = 0;
    for (int i = 0; i < 3; i++) {
        struct str field = str_split(&s, '.');
        if (str_to_u64(field, &part) < 0 || part > 0xffff)
            return 0;
        sum = sum << 16 | part;
    }
    return s.ptr ? 0 : sum + 1; /* 0.0.0 is a version too */
}

static void apply(struct fit_run *x, const struct fit_rule *table, size_t n, uint64_t version)
{
    for (size_t i = 0; i < n; i++) {
        if (version > 0 && table[i].since && version < version_number(table[i].since))
            continue;
        if (version > 0 && table[i].until && version >= version_number(table[i].until))
            continue;
        table[i].fn(x, table[i].name);
    }
}

bool fit_note_stays(const struct fit_note *n)
{
    static const char *const fixed[] = {"main-gpu", "moe-cache", "override-buffer", "split-mode"};
    if (n->severity != FIT_REFUSED)
        return false;
    for (size_t i = 0; i < BASE_COUNT(fixed); i++)
        if (str_eq_c(str_of(n->rule), fixed[i]))
            return true;
    return false;
}

void fit_legal(struct fit_run *x)
{
    uint64_t version = x->p->in.engine_version ? version_number(x->p->in.engine_version) : 0;
    size_t n = 0;
    apply(x, rules, BASE_COUNT(rules), version);
    const struct fit_rule *more = fit_arch_rules(&n);
    apply(x, more, n, version);
    more = fit_draft_rules(&n);
    apply(x, more, n, version);
}

const char *fit_rule_name(size_t i)
{
    size_t n = 0;
    if (i < BASE_COUNT(rules))
        return rules[i].name;
    i -= BASE_COUNT(rules);
    const struct fit_rule *more = fit_arch_rules(&n);
    if (i < n)
        return more[i].name;
    i -= n;
    more = fit_draft_rules(&n);
    return i < n ? more[i].name : NULL;
}
