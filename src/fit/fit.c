/* SPDX-License-Identifier: MIT
 *
 * The prediction itself: prepares models, runs the steps in the engine's order, and judges the sums against free memory and floors.
 */
#include "fit_int.h"

#include <assert.h>
#include <errno.h>

#define MIB (1ULL << 20)

const char *fit_term_text(enum fit_term t)
{
    static const char *const texts[FIT_TERMS] = {"weights",        "KV cache",   "recurrent state", "indexer",      "compute",           "output",       "draft weights", "draft KV cache", "draft state",
                                                 "draft compute", "draft output", "projector",     "projector compute", "prompt cache", "checkpoints", "ngram tables", "driver and pools"};
    return (unsigned)t < FIT_TERMS ? texts[t] : "?";
}

/* ---- input -------------------------------------------------------------------------------------------------------------- */

static int check_devices(const struct fit_input *in, struct err *err)
{
    if (in->n_devices > FIT_DEVICES_MAX)
        return err_set(err, -EINVAL, "%zu devices, and llama.cpp uses at most %d: leave some out", in->n_devices, FIT_DEVICES_MAX);
    for (size_t i = 0; i < in->n_devices; i++)
        if (!in->devices[i].name || in->devices[i].name[0] == 0)
            return err_set(err, -EINVAL, "device %zu has no name", i + 1);
    return 0;
}

static int check_split(const struct fit_shape *s, struct err *err)
{
    if (s->n_split > FIT_DEVICES_MAX)
        return err_set(err, -EINVAL, "split: %zu shares, at most %d", s->n_split, FIT_DEVICES_MAX);
    for (size_t i = 0; i < s->n_split; i++)
        if (!(s->split[i] >= 0 && s->split[i] <= 1e30))
            return err_set(err, -EINVAL, "split: share %zu is not a number from 0 on", i + 1);
    return 0;
}

static int check_shape(const struct fit_input *in, const struct fit_shape *s, struct err *err)
{
    if (s->slots == 0 || s->slots > FLEET_SLOTS_MAX)
        return err_set(err, -EINVAL, "slots: %u, give 1 to %d", s->slots, FLEET_SLOTS_MAX);
    if (s->context > INT32_MAX)
        return err_set(err, -EINVAL, "context: %u tokens, the engine counts to %d", s->context, INT32_MAX);
    if (s->context == 0 && in->target->context_trained == 0)
        return err_set(err, -EINVAL, "context: give one, the model does not say what it was trained for");
    if (!s->k_type || !s->v_type || !s->draft_k_type || !s->draft_v_type)
        return err_set(err, -EINVAL, "kv: a type is missing");
    int r = check_split(s, err);
    if (r < 0)
        return r;
    if (s->n_draft_devices > FIT_DEVICES_MAX)
        return err_set(err, -EINVAL, "%zu devices for the drafter, at most %d", s->n_draft_devices, FIT_DEVICES_MAX);
    for (size_t i = 0; i < s->n_draft_devices; i++)
        if (s->draft_devices[i] >= in->n_devices)
            return err_set(err, -EINVAL, "the drafter's device %zu is none of the %zu devices", i + 1, in->n_devices);
    if (s->projector_device >= 0 && (size_t)s->projector_device >= in->n_devices)
        return err_set(err, -EINVAL, "the projector's device is none of the %zu devices", in->n_devices);
    return 0;
}

int fit_prepare(const struct fit_input *in, struct arena *a, struct fit_prepared **ret, struct err *err)
{
    if (!in->target)
        return err_set(err, -EINVAL, "no model to fit");
    const struct fit_shape *s = in->shape;
    if (s && (s->n_overrides > FIT_OVERRIDES_MAX || s->n_draft_overrides > FIT_DRAFT_OVERRIDES_MAX))
        return err_set(err, -EINVAL, "%zu overrides, at most %d", s->n_overrides > FIT_OVERRIDES_MAX ? s->n_overrides : s->n_draft_overrides, FIT_OVERRIDES_MAX);
    int r = check_devices(in, err);
    if (r < 0)
        return r;
    struct fit_prepared *p = arena_alloc(a, 1, sizeof(*p));
    if (!p)
        return err_nomem(err);
    p->in = *in;
    p->host = in->n_devices;
    for (size_t i = 0; i < in->n_devices; i++)
        p->classes[i] = fit_class_of(in->devices[i].backend);
    p->classes[p->host] = FIT_CLASS_PLAIN;
    size_t n = s ? s->n_overrides : 0, n_draft = s ? s->n_draft_overrides : 0;
    if (n > 0)
        memcpy(p->overrides, s->overrides, n * sizeof(p->overrides[0]));
    if (n_draft > 0)
        memcpy(p->draft_overrides, s->draft_overrides, n_draft * sizeof(p->draft_overrides[0]));
    r = fit_placed_new(p, in->target, p->overrides, n, a, &p->target, err);
    if (r == 0 && in->drafter)
        r = fit_placed_new(p, in->drafter, p->draft_overrides, n_draft, a, &p->drafter, err);
    if (r < 0)
        return r;
    if (in->projector)
        p->projector = fit_sum_all(in->projector);
    *ret = p;
    return 0;
}

/* ---- run ----------------------------------------------------------------------------------------------------------------- */

static bool has_host_buffer(enum fit_backend b)
{
    return b == FIT_CUDA || b == FIT_HIP || b == FIT_VULKAN;
}

/* The devices that layers are split over, and how the CPU's tensors are kept. */
static void devices_init(struct fit_run *x)
{
    const struct fit_input *in = &x->p->in;
    const struct fit_shape *s = x->s;
    bool pinned = false;
    x->mmap = !s->no_mmap;
    for (size_t i = 0; i < in->n_devices; i++) {
        if (s->split_mode == FIT_SPLIT_NONE && i != s->main_gpu)
            continue;
        x->devices[x->n_devices++] = (uint16_t)i;
        pinned |= has_host_buffer(in->devices[i].backend);
        /* an integrated device does not want to be mapped from */
        if (in->devices[i].shared && has_host_buffer(in->devices[i].backend))
            x->mmap = false;
    }
    /* the first GPU's pinned buffers come before the CPU's repacking */
    x->repack = in->host && in->host->repack && !s->no_repack && (!pinned || s->no_host);
}

/* Law 4.2. */
static bool pipelined(const struct fit_run *x)
{
    const struct fit_shape *s = x->s;
    if (x->n_devices < 2 || s->split_mode != FIT_SPLIT_LAYER || s->kv_on_cpu || s->cpu_moe > 0 || x->p->target->n_overrides > 0)
        return false;
    if (s->gpu_layers <= x->p->target->m->n_layer)
        return false;
    for (size_t i = 0; i < x->n_devices; i++) {
        enum fit_backend b = x->p->in.devices[x->devices[i]].backend;
        if (b == FIT_OTHER || b == FIT_CPU)
            return false;
    }
    return true;
}

static void run_target(struct fit_run *x)
{
    const struct fit_shape *s = x->s;
    struct fit_context *c = &x->target;
    c->pm = x->p->target;
    c->device = x->r->layer_device;
    fit_resolve(x);
    fit_speculation(x);
    x->r->pipeline = pipelined(x);
    c->copies = x->r->pipeline ? 4 : 1;
    fit_place_layers(x, c->pm->m->n_layer, s->gpu_layers, x->devices, x->n_devices, c->device);
    for (uint32_t k = 0; k <= c->pm->m->n_layer; k++)
        x->r->use[c->device[k]].n_layers++;
    x->r->n_slots_placed = c->pm->m->n_layer + 1;
    bool nextn = (x->spec & FIT_SPEC_MTP) && !x->p->drafter;
    fit_place_weights(x, c, s->cpu_moe, nextn);
    fit_caches(x, c);
    fit_compute(x, c);
    fit_output(x, c);
}

/* Beside every figure of the engine: what a driver and its libraries take for themselves on a device, until a reading tells. */
static struct fit_amount driver_bytes(enum fit_backend b)
{
    switch (b) {
    case FIT_CUDA:
    case FIT_HIP:
        return (struct fit_amount){.bytes = 512 * MIB, .low = 128 * MIB, .high = 1536 * MIB, .known = FIT_ESTIMATE};
    case FIT_VULKAN:
    case FIT_OTHER:
        return (struct fit_amount){.bytes = 256 * MIB, .low = 0, .high = 1024 * MIB, .known = FIT_ESTIMATE};
    default:
        return (struct fit_amount){.known = FIT_EXACT};
    }
}

static bool unused(const struct fit_use *u)
{
    uint64_t sum = u->n_layers;
    for (int t = 0; t < FIT_TERMS; t++)
        sum = fit_add(sum, u->terms[t].bytes);
    return sum == 0;
}

/* A reading below the sum of terms says that compute, the one term that is estimated, is less. */
static void take_off(struct fit_use *u, uint64_t bytes)
{
    static const enum fit_term from[] = {FIT_COMPUTE, FIT_DRAFT_COMPUTE, FIT_PROJECTOR_COMPUTE};
    for (size_t i = 0; i < BASE_COUNT(from); i++) {
        struct fit_amount *a = &u->terms[from[i]];
        uint64_t part = bytes < a->bytes ? bytes : a->bytes;
        a->bytes -= part;
        bytes -= part;
        a->low = a->low < a->bytes ? a->low : a->bytes;
    }
}

static void add_extra(struct fit_run *x)
{
    const struct fit_calibration *cal = x->p->in.calibration;
    for (size_t d = 0; d <= x->p->host; d++) {
        struct fit_amount *a = &x->r->use[d].terms[FIT_EXTRA];
        if (cal && cal->extra_bytes && d < cal->n) {
            int64_t extra = cal->extra_bytes[d];
            a->bytes = a->low = a->high = extra > 0 ? (uint64_t)extra : 0;
            a->known = FIT_MEASURED;
            if (extra < 0)
                take_off(&x->r->use[d], (uint64_t)0 - (uint64_t)extra);
        } else if (d < x->p->host && !unused(&x->r->use[d])) {
            *a = driver_bytes(x->p->in.devices[d].backend);
        }
    }
}

static int64_t difference(uint64_t free, uint64_t used)
{
    return (int64_t)(free > FIT_BYTES_MAX ? FIT_BYTES_MAX : free) - (int64_t)(used > FIT_BYTES_MAX ? FIT_BYTES_MAX : used);
}

static void sum_up(struct fit_run *x)
{
    struct fit_result *r = x->r;
    const struct fit_input *in = &x->p->in;
    uint64_t from_host = 0;
    for (size_t d = 0; d <= x->p->host; d++) {
        struct fit_use *u = &r->use[d];
        for (int t = 0; t < FIT_TERMS; t++) {
            u->used = fit_add(u->used, u->terms[t].bytes);
            u->used_high = fit_add(u->used_high, u->terms[t].high);
        }
        if (d < x->p->host && in->devices[d].shared)
            from_host = fit_add(from_host, u->used);
    }
    int64_t host_left = in->host ? difference(in->host->free_bytes, fit_add(r->use[x->p->host].used, from_host)) : 0;
    r->use[x->p->host].left = host_left;
    for (size_t d = 0; d < x->p->host; d++) {
        struct fit_use *u = &r->use[d];
        u->left = difference(in->devices[d].free_bytes, u->used);
        if (in->devices[d].shared && in->host && host_left < u->left)
            u->left = host_left;
    }
}

enum fit_term fit_largest_term(const struct fit_use *u)
{
    enum fit_term best = FIT_WEIGHTS;
    for (int t = 0; t < FIT_EXTRA; t++)
        if (u->terms[t].bytes > u->terms[best].bytes)
            best = (enum fit_term)t;
    return best;
}

static void judge(struct fit_run *x)
{
    struct fit_result *r = x->r;
    const struct fit_input *in = &x->p->in;
    int64_t least = INT64_MAX, low = INT64_MAX, high = INT64_MIN;
    r->fits = true;
    for (size_t d = 0; d <= x->p->host; d++) {
        if (d == x->p->host && !in->host)
            break;
        uint64_t floor = d < x->p->host ? in->devices[d].floor_bytes : in->host->floor_bytes;
        int64_t left = r->use[d].left, over = left - difference(floor, 0);
        if (over < least) {
            least = over;
            r->binds = (int)d;
        }
        if (d < x->p->host) {
            low = left < low ? left : low;
            high = left > high ? left : high;
        }
    }
    r->fits = least >= 0;
    r->binds_term = fit_largest_term(&r->use[r->binds]);
    r->gap_bytes = x->p->host > 1 ? (uint64_t)(high - low) : 0;
    for (size_t i = 0; i < r->n_notes; i++)
        if (r->notes[i].severity == FIT_REFUSED)
            r->fits = false;
}

/* Law 2.6: other split modes divide tensors, not layers. How they round is not known, so devices get what their shares come to of the sum, and nothing below the sum is ruled out. Caches stay with their layer when rows are split. */
static void divide_tensors(struct fit_run *x)
{
    static const enum fit_term weights[] = {FIT_WEIGHTS, FIT_DRAFT_WEIGHTS}, others[] = {FIT_KV, FIT_STATE, FIT_INDEXER, FIT_COMPUTE, FIT_DRAFT_KV, FIT_DRAFT_STATE, FIT_DRAFT_COMPUTE};
    if (x->n_devices < 2 || x->s->split_mode < FIT_SPLIT_ROW)
        return;
    for (size_t i = 0; i < BASE_COUNT(weights); i++)
        fit_divide(x, weights[i], true);
    for (size_t i = 0; i < BASE_COUNT(others); i++)
        fit_divide(x, others[i], x->s->split_mode == FIT_SPLIT_TENSOR);
}

static void run_all(struct fit_run *x)
{
    devices_init(x);
    run_target(x);
    fit_draft(x);
    divide_tensors(x);
    fit_projector(x);
    fit_host_states(x);
}

int fit_predict_prepared(const struct fit_prepared *p, const struct fit_shape *s, struct arena *a, struct fit_result *ret, struct err *err)
{
    int e = check_shape(&p->in, s, err);
    if (e < 0)
        return e;
    memset(ret, 0, sizeof(*ret));
    struct fit_run x = {.p = p, .s = s, .r = ret, .a = a};
    run_all(&x);
    add_extra(&x);
    const struct fit_context *c = &x.target;
    ret->n_ctx = c->n_ctx;
    ret->n_ctx_seq = c->n_ctx_seq;
    ret->n_stream = c->n_stream;
    ret->n_batch = c->n_batch;
    ret->n_ubatch = c->n_ubatch;
    ret->n_outputs = c->n_outputs;
    ret->n_rs_rows = c->rs_rows;
    sum_up(&x);
    fit_legal(&x);
    judge(&x);
    return x.failed < 0 ? err_nomem(err) : 0;
}

int fit_predict(const struct fit_input *in, struct arena *a, struct fit_result *ret, struct err *err)
{
    if (!in->shape)
        return err_set(err, -EINVAL, "no shape to fit");
    struct fit_prepared *p = NULL;
    int r = fit_prepare(in, a, &p, err);
    return r < 0 ? r : fit_predict_prepared(p, in->shape, a, ret, err);
}

/* ---- questions ------------------------------------------------------------------------------------------------------------ */

#define QUESTION_MEMORY (64UL << 20) /* of one prepared input: tens of KiB for real models */

/* Prepares in an arena of its own, which *ret_a hands out. */
static int prepare_alone(const struct fit_input *in, struct arena **ret_a, struct fit_prepared **ret, struct err *err)
{
    if (!in->shape)
        return err_set(err, -EINVAL, "no shape to fit");
    struct arena *a = arena_new(QUESTION_MEMORY);
    if (!a)
        return err_nomem(err);
    int r = fit_prepare(in, a, ret, err);
    if (r < 0)
        a = arena_free(a);
    *ret_a = a;
    return r;
}

int fit_saved_state(const struct fit_input *in, uint64_t tokens, uint64_t *ret_target, uint64_t *ret_draft, struct err *err)
{
    struct arena *a = NULL;
    struct fit_prepared *p = NULL;
    int r = prepare_alone(in, &a, &p, err);
    if (r < 0)
        return r;
    assert(p);
    r = check_shape(in, in->shape, err);
    if (r == 0) {
        struct fit_result result;
        memset(&result, 0, sizeof(result));
        struct fit_run x = {.p = p, .s = in->shape, .r = &result};
        run_all(&x);
        *ret_target = fit_state_bytes(&x.target, tokens);
        *ret_draft = x.draft.pm ? fit_state_bytes(&x.draft, tokens) : 0;
    }
    a = arena_free(a);
    return r;
}
