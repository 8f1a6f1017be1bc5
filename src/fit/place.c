/* SPDX-License-Identifier: MIT
 *
 * Which bytes of weights lie where (law 2). Preparing walks the tensors once and sums them by layer, once for each way of rounding; placing walks layers. The engine divides layers among devices in float32, so this
 * does too: with doubles a layer at a boundary would land elsewhere.
 */
#include "fit_int.h"

#include <errno.h>

#define CUDA_ROW 512

enum fit_class fit_class_of(enum fit_backend b)
{
    switch (b) {
    case FIT_CUDA:
    case FIT_HIP:
        return FIT_CLASS_CUDA;
    case FIT_VULKAN:
        return FIT_CLASS_WIDE;
    default:
        return FIT_CLASS_PLAIN;
    }
}

enum fit_backend fit_backend_of(const char *device_name)
{
    static const struct {
        const char *prefix;
        enum fit_backend backend;
    } table[] = {{"CPU", FIT_CPU}, {"RPC", FIT_RPC}, {"CUDA", FIT_CUDA}, {"ROCm", FIT_HIP}, {"HIP", FIT_HIP}, {"Vulkan", FIT_VULKAN}};
    struct str name = str_of(device_name);
    for (size_t i = 0; i < BASE_COUNT(table); i++)
        if (str_starts(name, str_of(table[i].prefix)))
            return table[i].backend;
    return FIT_OTHER;
}

static const uint64_t align_of[FIT_CLASSES] = {32, 128, 256};

/* CUDA reads whole rows of 512 elements of quantized tensors. */
static uint64_t row_padding(enum fit_class c, const struct gguf_type *t, uint64_t width)
{
    if (c != FIT_CLASS_CUDA || t->block == 1 || width % CUDA_ROW == 0)
        return 0;
    return fit_row(t, CUDA_ROW - width % CUDA_ROW);
}

static uint64_t rounded(enum fit_class c, const struct gguf_type *t, uint64_t width, uint64_t bytes)
{
    return bytes == 0 ? 0 : fit_pad(fit_add(bytes, row_padding(c, t, width)), align_of[c]);
}

uint64_t fit_tensor_bytes(enum fit_class c, const struct gguf_type *t, uint64_t width, uint64_t rows)
{
    return rounded(c, t, width, fit_mul(fit_row(t, width), rows));
}

/* ---- what is special about a type ------------------------------------------------------------------------------------ */

static bool no_cuda_kernel(const struct gguf_type *t)
{
    static const char *const names[] = {"tq1_0", "tq2_0", "i8", "i16", "i32", "i64", "f64"};
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (str_eq_c(str_of(t->name), names[i]))
            return true;
    return false;
}

/* CPU_REPACK of x86 with AVX2: rows are interleaved by eight. */
static bool repackable(const struct model_tensor *t)
{
    static const char *const names[] = {"q4_0", "q4_K", "iq4_nl", "mxfp4"};
    if (t->ne[1] % 8 != 0)
        return false;
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (str_eq_c(str_of(t->type->name), names[i]))
            return true;
    return false;
}

static void sums_add(struct fit_sums *s, const struct model_tensor *t, bool repack)
{
    for (int c = 0; c < FIT_CLASSES; c++)
        s->bytes[c] = fit_add(s->bytes[c], rounded((enum fit_class)c, t->type, t->ne[0], t->bytes));
    if (repack)
        s->repack = fit_add(s->repack, rounded(FIT_CLASS_PLAIN, t->type, t->ne[0], t->bytes));
}


struct fit_sums fit_sum_all(const struct model *m)
{
    struct fit_sums s = {0};
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].place != MODEL_SKIPPED)
            sums_add(&s, &m->tensors[i], false);
    return s;
}

/* ---- preparing --------------------------------------------------------------------------------------------------------- */

struct matcher {
    const struct fit_prepared *p;
    struct fit_placed *pm;
    struct fit_regex *re[FIT_OVERRIDES_MAX];
    int target[FIT_OVERRIDES_MAX]; /* device index, host; -1 unknown */
};

int fit_buffer_index(const struct fit_prepared *p, const char *buffer)
{
    if (str_eq_c(str_of(buffer), "CPU"))
        return (int)p->host;
    for (size_t i = 0; i < p->in.n_devices; i++) {
        const struct fit_device *d = &p->in.devices[i];
        if (str_eq_c(str_of(buffer), d->buffer ? d->buffer : d->name))
            return (int)i;
    }
    return -1;
}

/* The place that an override gives a tensor, or -1. */
static int overridden(struct matcher *m, const struct model_tensor *t)
{
    for (size_t i = 0; i < m->pm->n_overrides; i++) {
        if (!fit_regex_search(m->re[i], t->name))
            continue;
        m->pm->override_hits[i]++;
        if (m->target[i] < 0)
            return -1;
        size_t to = (size_t)m->target[i];
        if (t->used_by_matmul && no_cuda_kernel(t->type) && m->p->classes[to] == FIT_CLASS_CUDA)
            m->pm->override_no_kernel[i] = true;
        return (int)to;
    }
    return -1;
}

static int matcher_init(struct matcher *m, struct err *err)
{
    for (size_t i = 0; i < m->pm->n_overrides; i++) {
        int r = fit_regex_new(m->pm->overrides[i].pattern, &m->re[i], err);
        if (r < 0)
            return r;
        m->target[i] = fit_buffer_index(m->p, m->pm->overrides[i].buffer);
        m->pm->override_no_buffer[i] = m->target[i] < 0;
    }
    return 0;
}

uint64_t *fit_moved(const struct fit_placed *pm, size_t device, uint32_t il)
{
    return &pm->moved[device * (pm->m->n_layer + 1) + il];
}

/* A product's two sides; the input has its own rows, those of the other kind of embeddings, and their mix. */
static void count_moved(struct fit_placed *pm, const struct model_tensor *t, size_t to)
{
    bool input = t->place == MODEL_INPUT;
    uint32_t slot = input || t->layer < 0 || (uint32_t)t->layer >= pm->m->n_layer ? pm->m->n_layer : (uint32_t)t->layer;
    uint64_t *columns = fit_moved(pm, to, slot), used = t->expert ? pm->m->experts_used : 1;
    *columns = fit_add(*columns, input ? fit_mul(4, t->ne[0]) : fit_add(t->ne[0], fit_mul(used, t->ne[1])));
}

static void place_one(struct matcher *x, const struct model_tensor *t, bool tied)
{
    struct fit_placed *pm = x->pm;
    bool repack = t->used_by_matmul && repackable(t), nextn = t->place == MODEL_NEXTN;
    int to = pm->n_overrides > 0 ? overridden(x, t) : -1;
    if (t->layer < 0 && str_eq_c(str_of(t->name), "per_layer_token_embd.weight")) {
        pm->table_bytes = t->bytes;
        pm->table_width = t->ne[0];
    }
    if (tied)
        sums_add(&pm->tied, t, repackable(t)); /* as an output it is multiplied with */
    if (to >= 0) {
        pm->table_moved |= (size_t)to != x->p->host && t->layer < 0 && str_eq_c(str_of(t->name), "per_layer_token_embd.weight");
        if ((size_t)to == x->p->host && t->layer >= 0 && (uint32_t)t->layer < pm->m->n_layer && strstr(t->name, "ffn_down_exps"))
            pm->layers[t->layer].away = true;
        struct fit_sums *fixed = nextn ? pm->fixed_nextn : pm->fixed;
        sums_add(&fixed[to], t, repack && (size_t)to == x->p->host);
        if (!nextn)
            count_moved(pm, t, (size_t)to);
        if (tied && pm->m->tied_copy_always)
            sums_add(&fixed[to], t, false);
        if (tied)
            pm->has_tied = false; /* both are in one buffer and therefore one tensor */
        return;
    }
    uint32_t n = pm->m->n_layer, slot = t->layer < 0 ? 0 : (uint32_t)t->layer;
    switch (t->place) {
    case MODEL_INPUT:
        sums_add(&pm->input, t, repack);
        return;
    case MODEL_PER_BUFFER:
        sums_add(&pm->per_buffer, t, repack);
        return;
    case MODEL_OUTPUT:
        slot = n;
        break;
    case MODEL_FIRST:
        slot = 0;
        break;
    default:
        slot = slot < n ? slot : n;
    }
    bool no_cuda = t->used_by_matmul && no_cuda_kernel(t->type);
    bool loaded = slot < n && pm->m->layers[slot].nextn && t->place == MODEL_REPEATING;
    unsigned part = (fit_is_routed_expert(t->name) ? FIT_MOE : 0U) | (no_cuda ? FIT_NO_CUDA : 0U) | (loaded ? FIT_LOADED : 0U);
    sums_add(&pm->slots[slot].part[part], t, repack);
}

static void understand_layers(struct fit_placed *pm)
{
    const struct model *m = pm->m;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        const struct model_layer *l = &m->layers[il];
        if (l->attention && l->v_width > pm->v_width_max)
            pm->v_width_max = l->v_width;
        pm->shares_kv |= m->cache != MODEL_CACHE_NONE && !l->attention && !l->recurrent && !l->nextn && pm->layers[il].q > 0;
    }
}

int fit_placed_new(const struct fit_prepared *p, const struct model *m, const struct fit_override *overrides, size_t n, struct arena *a, struct fit_placed **ret, struct err *err)
{
    if (m->n_layer > MODEL_LAYERS_MAX)
        return err_set(err, -EINVAL, "model of %u layers, the engine has at most %d", m->n_layer, MODEL_LAYERS_MAX);
    struct fit_placed *pm = arena_alloc(a, 1, sizeof(*pm));
    struct fit_group *slots = arena_alloc(a, (size_t)m->n_layer + 1, sizeof(*slots));
    uint64_t *moved = n ? arena_alloc(a, ((size_t)m->n_layer + 1) * (p->host + 1), sizeof(*moved)) : NULL;
    if (!pm || !slots || (n && !moved))
        return err_nomem(err);
    pm->m = m;
    pm->moved = moved;
    pm->slots = slots;
    pm->overrides = overrides;
    pm->n_overrides = n;
    const struct model_tensor *tied = model_tied_tensor(m);
    pm->has_tied = tied != NULL;

    if (fit_layers_new(m, a, &pm->layers) < 0)
        return err_nomem(err);
    struct matcher x = {.p = p, .pm = pm};
    int r = matcher_init(&x, err);
    for (size_t i = 0; r == 0 && i < m->n_tensors; i++)
        if (m->tensors[i].place != MODEL_SKIPPED)
            place_one(&x, &m->tensors[i], &m->tensors[i] == tied);
    for (size_t i = 0; i < n; i++)
        fit_regex_free(x.re[i]);
    if (r < 0)
        return r;
    understand_layers(pm);
    pm->selects = model_find_tensor(m, "selector_hidden.weight") != NULL;
    pm->graph = fit_traits(m);
    pm->margin = fit_margin_of(m);
    *ret = pm;
    return 0;
}

/* ---- placing ------------------------------------------------------------------------------------------------------------- */

/* Shares of devices, summed up and divided by their sum: float32 all along, as the engine. */
static void shares(const struct fit_run *x, const uint16_t *devices, size_t n, float *cum)
{
    const struct fit_shape *s = x->s;
    bool given = false;
    for (size_t i = 0; i < n && i < s->n_split; i++)
        given |= s->split[i] != 0;
    float sum = 0;
    for (size_t i = 0; i < n; i++) {
        float w = 0;
        if (given) {
            w = i < s->n_split ? (float)s->split[i] : 0;
        } else {
            const struct fit_device *d = &x->p->in.devices[devices[i]];
            uint64_t free = d->total_bytes == 0 && d->free_bytes == 0 && x->p->in.host ? x->p->in.host->free_bytes : d->free_bytes;
            uint64_t used = 0; /* a drafter comes when the target is there */
            for (int t = 0; t < FIT_TERMS; t++)
                used = fit_add(used, x->r->use[devices[i]].terms[t].bytes);
            w = (float)(free > used ? free - used : 0);
        }
        sum += w;
        cum[i] = sum;
    }
    for (size_t i = 0; i < n; i++)
        cum[i] = sum > 0 ? cum[i] / sum : (float)(i + 1) / (float)n;
}

void fit_divide(struct fit_run *x, enum fit_term t, bool move)
{
    float cum[FIT_DEVICES_MAX];
    uint64_t sum = 0, high = 0;
    for (size_t i = 0; i < x->n_devices; i++) {
        sum = fit_add(sum, x->r->use[x->devices[i]].terms[t].bytes);
        high = fit_add(high, x->r->use[x->devices[i]].terms[t].high);
    }
    if (sum == 0)
        return;
    shares(x, x->devices, x->n_devices, cum);
    for (size_t i = 0; i < x->n_devices; i++) {
        struct fit_amount *a = &x->r->use[x->devices[i]].terms[t];
        double share = (double)cum[i] - (i ? (double)cum[i - 1] : 0);
        *a = (struct fit_amount){.bytes = move ? (uint64_t)(share * (double)sum) : a->bytes, .low = 0, .high = high, .known = FIT_UNPREDICTED};
    }
}

void fit_place_layers(const struct fit_run *x, uint32_t n_layer, uint32_t ngl, const uint16_t *devices, size_t n_devices, uint16_t *ret)
{
    uint16_t host = (uint16_t)x->p->host;
    uint32_t n_slots = n_layer + 1;
    uint32_t active = n_devices == 0 ? 0 : ngl > n_slots ? n_slots : ngl;
    uint32_t start = n_slots - active;
    float cum[FIT_DEVICES_MAX];
    shares(x, devices, n_devices, cum);
    for (uint32_t k = 0; k < n_slots; k++) {
        if (k < start) {
            ret[k] = host;
            continue;
        }
        float at = (float)(k - start) / (float)active;
        size_t d = 0;
        while (d + 1 < n_devices && cum[d] <= at)
            d++;
        ret[k] = devices[d];
    }
}

/* Weights on the host: mapped, or allocated when repacked or when there is no mmap. */
static void host_weights(struct fit_run *x, const struct fit_sums *s, enum fit_term t)
{
    struct fit_use *u = &x->r->use[x->p->host];
    uint64_t all = s->bytes[FIT_CLASS_PLAIN], repack = x->repack ? s->repack : 0;
    uint64_t mapped = x->mmap ? all - repack : 0;
    u->repack_bytes = fit_add(u->repack_bytes, repack);
    u->mapped_bytes = fit_add(u->mapped_bytes, mapped);
    fit_exact(x, x->p->host, t, all - mapped);
}

static void put(struct fit_run *x, size_t device, const struct fit_sums *s, enum fit_term t)
{
    if (device == x->p->host)
        host_weights(x, s, t);
    else
        fit_exact(x, device, t, s->bytes[x->p->classes[device]]);
}

/* whole false: only what is loaded without its nextn layer. */
static void place_slot(struct fit_run *x, const struct fit_group *g, size_t device, bool whole, bool moe_on_cpu, enum fit_term t)
{
    size_t host = x->p->host;
    for (unsigned part = 0; part < FIT_GROUPS; part++) {
        if (g->part[part].bytes[FIT_CLASS_PLAIN] == 0 || (!whole && !(part & FIT_LOADED)))
            continue;
        bool to_host = ((part & FIT_MOE) && moe_on_cpu) || ((part & FIT_NO_CUDA) && x->p->classes[device] == FIT_CLASS_CUDA);
        put(x, to_host ? host : device, &g->part[part], t);
    }
}

/* One copy for each distinct buffer type among the layers that use it. */
static void place_copies(struct fit_run *x, const struct fit_context *c, bool nextn, enum fit_term t)
{
    const struct model *m = c->pm->m;
    bool has[FIT_DEVICES_MAX + 1] = {0};
    if (c->pm->per_buffer.bytes[FIT_CLASS_PLAIN] == 0)
        return;
    for (uint32_t il = 0; il < m->n_block && il < m->n_layer; il++) {
        const struct model_layer *l = &m->layers[il];
        uint16_t d = c->device[il];
        if ((l->nextn && !nextn && !m->nextn_rope) || (m->rope_dense_only && l->swa) || has[d])
            continue;
        has[d] = true;
        put(x, d, &c->pm->per_buffer, t);
    }
}

/* ---- cache of experts (law 4.6) -------------------------------------------------------------------------------------------- */

/* Bytes of a layer's routed experts when they are kept on the host, else 0. */
static uint64_t host_experts(const struct fit_context *c, uint32_t il, uint32_t cpu_moe)
{
    const struct fit_group *g = &c->pm->slots[il];
    if (il >= cpu_moe || c->pm->m->layers[il].nextn)
        return 0;
    return fit_add(g->part[FIT_MOE].bytes[FIT_CLASS_PLAIN], g->part[FIT_MOE | FIT_NO_CUDA].bytes[FIT_CLASS_PLAIN]);
}

/* Divided by shares among the devices that have such layers, in whole experts, at most one more than there are. */
static void place_expert_cache(struct fit_run *x, const struct fit_context *c, uint32_t cpu_moe)
{
    const struct fit_shape *s = x->s;
    const struct model *m = c->pm->m;
    uint64_t held[FIT_DEVICES_MAX + 1] = {0}, expert = 0, index = 0;
    double sum = 0;
    if (s->moe_cache_bytes == 0 || m->experts == 0 || x->n_devices == 0)
        return;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        uint64_t bytes = host_experts(c, il, cpu_moe) / m->experts;
        if (bytes == 0 || c->device[il] == x->p->host)
            continue;
        held[c->device[il]] += m->experts;
        expert = bytes > expert ? bytes : expert;
        index = fit_add(index, fit_pad(4 * (uint64_t)m->experts, align_of[FIT_CLASS_PLAIN]));
    }
    if (expert == 0)
        return;
    float cum[FIT_DEVICES_MAX];
    shares(x, x->devices, x->n_devices, cum);
    for (size_t i = 0; i < x->n_devices; i++)
        sum += held[x->devices[i]] ? (double)cum[i] - (i ? (double)cum[i - 1] : 0) : 0;
    for (size_t i = 0; sum > 0 && i < x->n_devices; i++) {
        uint16_t d = x->devices[i];
        double share = ((double)cum[i] - (i ? (double)cum[i - 1] : 0)) / sum * (double)s->moe_cache_bytes;
        uint64_t n = held[d] ? (uint64_t)(share < 0 ? 0 : share) / expert : 0;
        fit_exact(x, d, FIT_WEIGHTS, fit_mul(n > held[d] + 1 ? held[d] + 1 : n, expert));
    }
    fit_exact(x, x->p->host, FIT_WEIGHTS, index);
}

void fit_place_weights(struct fit_run *x, const struct fit_context *c, uint32_t cpu_moe, bool nextn)
{
    const struct fit_placed *pm = c->pm;
    const struct model *m = pm->m;
    enum fit_term own = c->draft ? FIT_DRAFT_WEIGHTS : FIT_WEIGHTS;
    put(x, x->p->host, &pm->input, own);
    for (uint32_t il = 0; il < m->n_layer; il++)
        place_slot(x, &pm->slots[il], c->device[il], nextn || !m->layers[il].nextn, il < cpu_moe, own);
    uint16_t out = c->device[m->n_layer];
    place_slot(x, &pm->slots[m->n_layer], out, true, cpu_moe == UINT32_MAX, own);
    /* on the CPU both are one tensor, unless the output's is repacked */
    if (pm->has_tied && (out != x->p->host || m->tied_copy_always || (x->repack && pm->tied.repack > 0)))
        put(x, out, &pm->tied, own);
    place_copies(x, c, nextn, own);
    for (size_t d = 0; d <= x->p->host; d++) {
        put(x, d, &pm->fixed[d], own);
        if (nextn)
            put(x, d, &pm->fixed_nextn[d], own);
    }
    if (!c->draft)
        place_expert_cache(x, c, cpu_moe);
}
