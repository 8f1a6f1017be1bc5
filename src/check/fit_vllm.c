/* SPDX-License-Identifier: MIT
 *
 * Services of vLLM in a plan. What such an engine takes is declared, because only the running one can tell; what follows from it (the pool, how many contexts it holds, whether a start is refused) is fit's. Every rank takes the same.
 */
#include "check_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The value behind a flag of the command line, or NULL. */
static const char *flag_value(const char *const *argv, size_t n, const char *flag)
{
    for (size_t i = 0; i + 1 < n; i++)
        if (argv[i] && strcmp(argv[i], flag) == 0)
            return argv[i + 1];
    return NULL;
}

static uint32_t flag_number(const char *const *argv, size_t n, const char *flag)
{
    const char *text = flag_value(argv, n, flag);
    uint64_t v = 0;
    return text && str_to_u64(str_of(text), &v) == 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static void put(struct fit_use *u, enum fit_term t, uint64_t bytes)
{
    u->terms[t] = (struct fit_amount){.bytes = bytes, .low = bytes, .high = bytes, .known = FIT_MEASURED};
    u->used += bytes;
    u->used_high += bytes;
}

/* The pool as terms of a device. */
static void fill(struct check_need *n, const struct fit_vllm *v, const struct fit_vllm_result *pool)
{
    struct fit_result *r = n->result;
    r->n_ctx = pool->pool_tokens < UINT32_MAX ? (uint32_t)pool->pool_tokens : UINT32_MAX;
    r->n_ctx_seq = v->max_model_len;
    r->fits = pool->starts;
    for (size_t d = 0; d < n->machine->n_devices; d++) {
        struct fit_use *u = &r->use[d];
        put(u, FIT_WEIGHTS, v->weight_bytes + pool->arena_bytes);
        put(u, FIT_KV, pool->kv_bytes);
        put(u, FIT_COMPUTE, v->overhead_bytes + pool->graphs_bytes);
        put(u, FIT_EXTRA, v->total_bytes - v->free_at_init_bytes);
        u->left = pool->left_bytes;
    }
    memcpy(r->notes, pool->notes, sizeof(r->notes));
    r->n_notes = pool->n_notes;
}

static int take_command(struct check_plan *p, struct check_need *n, const struct fit_device *d, struct fit_vllm *v, struct fit_vllm_price *price, struct err *err)
{
    const struct fleet_service *s = n->service;
    const struct fleet_vllm *f = &s->vllm;
    const struct engine_paths paths = {.weights = "/model", .template_file = NULL};
    static const char *const none[] = {NULL};
    const char *const *argv = none;
    size_t count = 0;
    struct fleet_shape sh;
    int r = engine_argv(s, &paths, p->arena, &argv, &count, err);
    if (r < 0)
        return r;
    engine_shape(s, &sh);
    const char *share = flag_value(argv, count, "--gpu-memory-utilization");
    *v = (struct fit_vllm){.total_bytes = d->total_bytes, .free_at_init_bytes = f->free_at_init_bytes, .utilization = share ? strtod(share, NULL) : 0, .weight_bytes = f->weight_bytes, .overhead_bytes = f->overhead_bytes,
                           .graphs = f->graphs, .graph_bytes = f->graph_bytes, .kv_reserve_bytes = f->kv_reserve_bytes, .expert_slot_bytes = f->expert_slot_bytes, .max_model_len = sh.context / sh.slots,
                           .max_num_seqs = sh.slots, .chunk = sh.batch, .block_tokens = f->block_tokens, .kv = s->shape.kv_k ? s->shape.kv_k : "auto", .tp = (uint32_t)n->machine->n_devices,
                           .pp = flag_number(argv, count, "--pipeline-parallel-size"), .dcp = flag_number(argv, count, "--decode-context-parallel-size")};
    *price = (struct fit_vllm_price){.max_model_len = v->max_model_len, .kv = v->kv, .attention_bytes = f->token_bytes};
    v->prices = price;
    v->n_prices = f->token_bytes ? 1 : 0;
    return 0;
}

int check_vllm_init(struct check_plan *p, struct check_need *n, struct err *err)
{
    const struct check_machine *m = n->machine;
    struct err why;
    struct fit_vllm v;
    struct fit_vllm_price price;
    if (!n->service->vllm.declared)
        return check_give_up(p, n, false, err, "what vLLM takes is not declared: read it off a running one and write it under 'vllm'");
    if (!m->n_devices)
        return check_give_up(p, n, false, err, "the cards of host '%s' are not declared", m->host->name);
    for (size_t d = 1; d < m->n_devices; d++)
        if (m->devices[d].total_bytes != m->devices[0].total_bytes)
            return check_give_up(p, n, false, err, "cards of different sizes: 'vllm' declares one rank, and every rank is taken to be alike");
    n->result = arena_alloc(p->arena, 1, sizeof(*n->result));
    struct fit_vllm_result *pool = arena_alloc(p->arena, 1, sizeof(*pool));
    if (!n->result || !pool)
        return err_nomem(err);
    int r = take_command(p, n, &m->devices[0], &v, &price, &why);
    if (r == 0)
        r = fit_vllm(&v, p->arena, pool, &why);
    if (r < 0) {
        n->result = NULL;
        return r == -ENOMEM ? err_nomem(err) : check_give_up(p, n, true, err, "%s", why.text);
    }
    n->pool = pool;
    fill(n, &v, pool);
    return 0;
}
