/* SPDX-License-Identifier: MIT
 *
 * vLLM's budget. At start it takes a share of the card, subtracts weights, overhead and graphs, and makes the rest a pool of KV blocks, or with an expert arena keeps a reserve for the pool and gives the rest to experts. Every
 * constant is declared or was measured for exactly this point. What was measured shows that the knobs are not monotonic and that prices change with the geometry, so a figure for another point is unknown and never drawn
 * between two others.
 */
#include "fit_int.h"

#include <errno.h>

#define STEP 0.001 /* of the utilization that is found here; the flag takes more digits, nobody can tell them apart */

struct check {
    const struct fit_vllm *v;
    struct fit_vllm_result *r;
    struct arena *a;
    int failed;
};

static void note(struct check *x, enum fit_severity severity, const char *rule, const char *fmt, ...) BASE_PRINTF(4, 5);
static void note(struct check *x, enum fit_severity severity, const char *rule, const char *fmt, ...)
{
    if (x->r->n_notes == FIT_NOTES_MAX)
        return;
    base_autobuf struct buf b = BUF_INIT(ERR_TEXT_MAX);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&b, fmt, ap);
    va_end(ap);
    const char *text = buf_status(&b) == 0 ? arena_dup(x->a, buf_str(&b)) : NULL;
    if (!text)
        x->failed = -ENOMEM;
    else
        x->r->notes[x->r->n_notes++] = (struct fit_note){severity, rule, text};
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1ULL << 30);
}

/* ---- shares of the card ------------------------------------------------------------------------------------------------------- */

/* The largest multiple of step that is at most share. */
static double down_to_step(double share, double step)
{
    if (!(share > 0) || !(step > 0))
        return 0;
    uint64_t n = (uint64_t)(share / step) + 1;
    while (n > 0 && (double)n * step > share)
        n--;
    return (double)n * step;
}

double fit_vllm_ceiling(uint64_t total_bytes, uint64_t free_at_init_bytes, double most, double step)
{
    if (total_bytes == 0)
        return 0;
    double share = (double)free_at_init_bytes / (double)total_bytes, limit = most > 0 && most < 1 ? most : 1;
    return down_to_step(share < limit ? share : limit, step);
}

/* ---- how work is divided ---------------------------------------------------------------------------------------------------------- */

static uint32_t one_or(uint32_t n)
{
    return n ? n : 1;
}

static void check_tensor_parallel(struct check *x)
{
    const struct fit_vllm *v = x->v;
    uint32_t tp = one_or(v->tp), dcp = one_or(v->dcp);
    if (v->heads > 0 && v->heads % tp != 0)
        note(x, FIT_REFUSED, "tensor-parallel", "tensor-parallel size %u does not divide %u attention heads", tp, v->heads);
    if (v->kv_heads > 0 && v->kv_heads % tp != 0 && tp % v->kv_heads != 0)
        note(x, FIT_REFUSED, "tensor-parallel", "tensor-parallel size %u and %u KV heads: one must divide the other", tp, v->kv_heads);
    if (v->kv_heads > 0 && tp > v->kv_heads && tp % v->kv_heads == 0 && dcp < tp / v->kv_heads)
        note(x, FIT_NOTE, "kv-copies", "%u ranks keep copies of %u KV heads; decode-context-parallel %u would divide them instead", tp, v->kv_heads, tp / v->kv_heads);
    if (dcp == 1)
        return;
    if (tp % dcp != 0)
        note(x, FIT_REFUSED, "decode-context-parallel", "decode-context-parallel size %u does not divide tensor-parallel size %u", dcp, tp);
    else if (v->kv_heads > 0 && (tp <= v->kv_heads || dcp > tp / v->kv_heads))
        note(x, FIT_REFUSED, "decode-context-parallel", "decode-context-parallel size %u needs a tensor-parallel size of at least %u times the %u KV heads, it is %u", dcp, dcp, v->kv_heads, tp);
}

static uint32_t count_kind(const struct fit_vllm *v, const char *kind, uint32_t from, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = from; i < from + n; i++)
        count += str_eq(str_of(v->layer_kinds[i]), str_of(kind));
    return count;
}

/* KV groups are made over all stages: a stage with other kinds than the first has pages that fit into no group. */
static bool stages_alike(const struct fit_vllm *v, uint32_t each)
{
    for (uint32_t stage = 1; stage < v->pp; stage++)
        for (uint32_t i = 0; i < each; i++) {
            const char *kind = v->layer_kinds[stage * each + i];
            if (count_kind(v, kind, stage * each, each) != count_kind(v, kind, 0, each))
                return false;
        }
    return true;
}

static void check_pipeline_parallel(struct check *x)
{
    const struct fit_vllm *v = x->v;
    uint32_t pp = one_or(v->pp);
    if (pp == 1 || v->n_layer == 0)
        return;
    if (pp > v->n_layer)
        note(x, FIT_REFUSED, "pipeline-parallel", "pipeline-parallel size %u is more than the %u layers", pp, v->n_layer);
    else if (v->n_layer % pp != 0)
        note(x, FIT_WARNING, "pipeline-parallel", "%u layers do not divide evenly over %u stages: the pool is what the stage with least memory for each of its layers can hold", v->n_layer, pp);
    else if (v->layer_kinds && !stages_alike(v, v->n_layer / pp))
        note(x, FIT_REFUSED, "pipeline-parallel", "%u stages of %u layers hold different kinds of layers: their pages have no common size; choose a size that gives each stage the same kinds", pp, v->n_layer / pp);
}

static void check_refusals(struct check *x)
{
    const struct fit_vllm *v = x->v;
    const struct {
        const char *flag;
        uint64_t value;
    } flags[] = {{"max-num-seqs", v->max_num_seqs}, {"max-num-batched-tokens", v->chunk}, {"max-model-len", v->max_model_len}, {"tensor-parallel-size", one_or(v->tp)},
                 {"pipeline-parallel-size", one_or(v->pp)}, {"decode-context-parallel-size", one_or(v->dcp)}};
    for (size_t i = 0; i < v->n_refusals; i++)
        for (size_t k = 0; k < BASE_COUNT(flags); k++)
            if (str_eq_c(str_of(v->refusals[i].flag), flags[k].flag) && v->refusals[i].value == flags[k].value)
                note(x, FIT_REFUSED, "known-bad", "--%s %llu is known to be bad: %s", flags[k].flag, (unsigned long long)flags[k].value, v->refusals[i].reason ? v->refusals[i].reason : "no reason was recorded");
}

/* ---- the budget --------------------------------------------------------------------------------------------------------------------- */

static void take_share(struct check *x)
{
    const struct fit_vllm *v = x->v;
    struct fit_vllm_result *r = x->r;
    r->utilization_ceiling = fit_vllm_ceiling(v->total_bytes, v->free_at_init_bytes, v->utilization_most, STEP);
    r->utilization = v->utilization > 0 ? v->utilization : r->utilization_ceiling;
    r->budget_bytes = (uint64_t)(r->utilization * (double)v->total_bytes);
    r->left_bytes = (int64_t)(v->total_bytes - r->budget_bytes);
    if (v->utilization_most > 0 && r->utilization > v->utilization_most)
        note(x, FIT_REFUSED, "utilization", "gpu-memory-utilization %g: this runtime refuses more than %g", r->utilization, v->utilization_most);
    else if (r->budget_bytes > v->free_at_init_bytes)
        note(x, FIT_REFUSED, "utilization", "gpu-memory-utilization %g is %.2f GiB and %.2f GiB are free when the runtime starts: it refuses; %.3f is the ceiling", r->utilization, gib(r->budget_bytes),
             gib(v->free_at_init_bytes), r->utilization_ceiling);
    else if (r->utilization < r->utilization_ceiling)
        note(x, FIT_NOTE, "utilization", "a utilization below the ceiling of %.3f makes the pool smaller; it does not make what a request needs beyond the budget any safer", r->utilization_ceiling);
}

static void read_chunk(struct check *x)
{
    const struct fit_vllm *v = x->v;
    struct fit_vllm_result *r = x->r;
    if (v->n_readings == 0)
        return;
    for (size_t i = 0; i < v->n_readings; i++)
        if (v->readings[i].chunk == v->chunk) {
            r->kv_bytes = v->readings[i].kv_bytes;
            r->kv_measured = true;
            return;
        }
    r->kv_bytes = 0;
    note(x, FIT_WARNING, "prefill-chunk", "the KV pool was read at other prefill chunks than %s and does not follow from them: measure it here", FIT_COUNT(v->chunk));
}

static void divide_budget(struct check *x)
{
    const struct fit_vllm *v = x->v;
    struct fit_vllm_result *r = x->r;
    r->graphs_bytes = fit_mul(v->graphs, v->graph_bytes);
    uint64_t fixed = fit_add(fit_add(v->weight_bytes, v->overhead_bytes), r->graphs_bytes);
    bool arena = v->expert_slot_bytes > 0;
    uint64_t taken = arena ? fit_add(fixed, v->kv_reserve_bytes) : fixed;
    if (taken >= r->budget_bytes) {
        note(x, FIT_REFUSED, "budget", "weights %.2f, overhead %.2f, graphs %.2f%s leave nothing of a budget of %.2f GiB", gib(v->weight_bytes), gib(v->overhead_bytes), gib(r->graphs_bytes),
             arena ? " and the KV reserve" : "", gib(r->budget_bytes));
        return;
    }
    if (arena) {
        r->arena_slots = (r->budget_bytes - taken) / v->expert_slot_bytes;
        r->arena_bytes = r->arena_slots * v->expert_slot_bytes;
        r->kv_bytes = v->kv_reserve_bytes;
    } else {
        r->kv_bytes = r->budget_bytes - taken;
    }
    read_chunk(x);
}

static void price_tokens(struct check *x)
{
    const struct fit_vllm *v = x->v;
    struct fit_vllm_result *r = x->r;
    for (size_t i = 0; i < v->n_prices; i++)
        if (v->prices[i].max_model_len == v->max_model_len && str_eq(str_of(v->prices[i].kv), str_of(v->kv)))
            r->token_bytes = fit_add(v->prices[i].attention_bytes, v->prices[i].side_bytes);
    if (r->token_bytes == 0) {
        note(x, FIT_WARNING, "token-price", "what a token of %s KV takes at max-model-len %s was neither declared nor measured; a price of another length does not hold here", v->kv ? v->kv : "this", FIT_COUNT(v->max_model_len));
        return;
    }
    r->pool_tokens = r->kv_bytes / r->token_bytes;
    if (r->kv_bytes == 0 || v->max_model_len == 0)
        return;
    r->contexts = (double)r->pool_tokens / v->max_model_len;
    if (r->pool_tokens < v->max_model_len)
        note(x, FIT_REFUSED, "pool", "the pool holds %s tokens, less than one context of %s: it refuses to start", FIT_COUNT(r->pool_tokens), FIT_COUNT(v->max_model_len));
    else
        note(x, FIT_NOTE, "survival", "%.2f contexts of %s go into the pool; that a start passes its gates with them is no proof: send one request of full length before counting on it", r->contexts, FIT_COUNT(v->max_model_len));
}

int fit_vllm(const struct fit_vllm *v, struct arena *a, struct fit_vllm_result *ret, struct err *err)
{
    if (v->total_bytes == 0 || v->total_bytes > FIT_BYTES_MAX)
        return err_set(err, -EINVAL, "vllm: the card's memory is not known");
    if (v->free_at_init_bytes > v->total_bytes)
        return err_set(err, -EINVAL, "vllm: more memory free at start than the card has");
    if (!(v->utilization >= 0 && v->utilization <= 1) || !(v->utilization_most >= 0 && v->utilization_most <= 1))
        return err_set(err, -EINVAL, "vllm: gpu-memory-utilization %g, give 0 to 1", v->utilization);
    if (v->layer_kinds && v->n_layer == 0)
        return err_set(err, -EINVAL, "vllm: kinds of layers without a number of layers");
    struct fit_vllm_result found = {0};
    struct check x = {.v = v, .r = &found, .a = a};
    take_share(&x);
    divide_budget(&x);
    price_tokens(&x);
    check_tensor_parallel(&x);
    check_pipeline_parallel(&x);
    check_refusals(&x);
    found.starts = true;
    for (size_t i = 0; i < found.n_notes; i++)
        found.starts = found.starts && found.notes[i].severity != FIT_REFUSED;
    if (x.failed < 0)
        return err_nomem(err);
    *ret = found;
    return 0;
}
