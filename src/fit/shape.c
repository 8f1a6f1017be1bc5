/* SPDX-License-Identifier: MIT
 *
 * Shapes: berth's defaults, and a shape from a service's declaration. What a declaration leaves out is what the engine is told for it, so that the plan is of the command line that will run; flags that a person adds in
 * args are read as far as they decide memory. A flag that decides memory in a way that a shape cannot say is refused by name: a plan that silently leaves it out would be wrong.
 */
#include "fit_int.h"

#include <errno.h>
#include <stdlib.h>

/* As engine_shape says them; a test compares. */
#define SLOTS 1
#define CONTEXT_PER_SLOT 4096
#define BATCH 2048
#define UBATCH 512
#define PROMPT_CACHE (512ULL << 20)
#define CHECKPOINTS 8
#define DRAFT_MAX 3
#define MIB (1ULL << 20)
#define F16 1 /* ggml's id */
#define FLAG_NAMES 4

void fit_shape_default(struct fit_shape *s)
{
    const struct gguf_type *f16 = gguf_type_get(F16);
    *s = (struct fit_shape){.slots = SLOTS, .batch = BATCH, .ubatch = UBATCH, .gpu_layers = UINT32_MAX, .k_type = f16, .v_type = f16, .draft_k_type = f16, .draft_v_type = f16,
                            .draft_gpu_layers = UINT32_MAX, .prompt_cache_bytes = PROMPT_CACHE, .checkpoints = CHECKPOINTS, .projector_device = -1};
}

/* ---- flags ------------------------------------------------------------------------------------------------------------- */

struct reader {
    const struct fleet_service *s;
    struct fit_shape *shape;
    struct arena *a;
    const char *flag, *value;
    bool cpu_moe_seen;
    struct err *err;
};

static int refuse(const struct reader *r, const char *why)
{
    return err_set(r->err, -EINVAL, "args of service \"%s\": \"%s\": %s", r->s->name, r->flag, why);
}

static int number(const struct reader *r, uint64_t max, uint64_t *ret)
{
    if (str_to_u64(str_of(r->value), ret) < 0 || *ret > max)
        return err_set(r->err, -EINVAL, "args of service \"%s\": \"%s\": \"%s\" is not a number from 0 to %llu", r->s->name, r->flag, r->value, (unsigned long long)max);
    return 0;
}

static int number_u32(const struct reader *r, uint32_t *ret)
{
    uint64_t n = 0;
    int e = number(r, INT32_MAX, &n);
    if (e == 0)
        *ret = (uint32_t)n;
    return e;
}

static int kv_type(const struct reader *r, const char *name, const struct gguf_type **ret)
{
    const struct gguf_type *t = gguf_type_find(str_of(name));
    if (!t)
        return err_set(r->err, -EINVAL, "service \"%s\": \"%s\" is no tensor type", r->s->name, name);
    *ret = t;
    return 0;
}

/* Index of a device that the host declares. */
static int device_index(const struct reader *r, struct str name, size_t *ret)
{
    const struct fleet_host *h = r->s->host;
    for (size_t i = 0; h && i < h->n_devices && i < FIT_DEVICES_MAX; i++)
        if (str_eq_c(name, h->devices[i].name)) {
            *ret = i;
            return 0;
        }
    return err_set(r->err, -EINVAL, "args of service \"%s\": \"%s\": the host declares no device \"" STR_FMT "\"", r->s->name, r->flag, STR_ARG(name));
}

static int set_checkpoints(struct reader *r) { return number_u32(r, &r->shape->checkpoints); }
static int set_draft_ubatch(struct reader *r) { return number_u32(r, &r->shape->draft_ubatch); }
static int set_slot_cap(struct reader *r) { return number_u32(r, &r->shape->slot_cap); }
static int set_main_gpu(struct reader *r) { return number_u32(r, &r->shape->main_gpu); }
static int set_draft_cpu_moe_n(struct reader *r) { return number_u32(r, &r->shape->draft_cpu_moe); }
static int set_draft_k(struct reader *r) { return kv_type(r, r->value, &r->shape->draft_k_type); }
static int set_draft_v(struct reader *r) { return kv_type(r, r->value, &r->shape->draft_v_type); }

static int set_kv_on_cpu(struct reader *r) { r->shape->kv_on_cpu = true; return 0; }
static int set_kv_on_device(struct reader *r) { r->shape->kv_on_cpu = false; return 0; }
static int set_swa_full(struct reader *r) { r->shape->swa_full = true; return 0; }
static int set_repack(struct reader *r) { r->shape->no_repack = false; return 0; }
static int set_no_repack(struct reader *r) { r->shape->no_repack = true; return 0; }
static int set_no_host(struct reader *r) { r->shape->no_host = true; return 0; }
static int set_embedding(struct reader *r) { r->shape->embedding = true; return 0; }
static int set_adapters(struct reader *r) { r->shape->adapters = true; return 0; }
static int set_sampling(struct reader *r) { r->shape->sampling = true; return 0; }
static int set_no_draft_sampling(struct reader *r) { r->shape->no_draft_sampling = true; return 0; }
static int set_projector_cpu(struct reader *r) { r->shape->projector_device = -2; return 0; }
static int set_cpu_moe(struct reader *r) { r->shape->cpu_moe = UINT32_MAX; r->cpu_moe_seen = true; return 0; }
static int set_draft_cpu_moe(struct reader *r) { r->shape->draft_cpu_moe = UINT32_MAX; return 0; }

static int set_cpu_moe_n(struct reader *r)
{
    r->cpu_moe_seen = true;
    return number_u32(r, &r->shape->cpu_moe);
}

static int set_draft_layers(struct reader *r)
{
    if (str_eq_c(str_of(r->value), "all") || str_eq_c(str_of(r->value), "auto") || str_starts(str_of(r->value), STR("-"))) {
        r->shape->draft_gpu_layers = UINT32_MAX;
        return 0;
    }
    return number_u32(r, &r->shape->draft_gpu_layers);
}

static int set_moe_cache(struct reader *r)
{
    uint64_t mib = 0;
    int e = number(r, FIT_BYTES_MAX / MIB, &mib);
    r->shape->moe_cache_bytes = e == 0 ? mib * MIB : 0;
    return e;
}

static int set_p_min(struct reader *r)
{
    char *end = NULL;
    double p = strtod(r->value, &end);
    if (end == r->value || *end || !(p >= 0 && p <= 1))
        return refuse(r, "wants a number from 0 to 1");
    r->shape->draft_p_min = p;
    return 0;
}

static int set_split_mode(struct reader *r)
{
    static const char *const names[] = {[FIT_SPLIT_LAYER] = "layer", [FIT_SPLIT_NONE] = "none", [FIT_SPLIT_ROW] = "row", [FIT_SPLIT_TENSOR] = "tensor"};
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (str_eq_c(str_of(r->value), names[i])) {
            r->shape->split_mode = (enum fit_split_mode)i;
            return 0;
        }
    return refuse(r, "is none, layer, row or tensor");
}

/* Locked pages are no page cache that can be given back, so they count as allocated. */
static int set_load_mode(struct reader *r)
{
    r->shape->no_mmap = !str_eq_c(str_of(r->value), "auto") && !str_eq_c(str_of(r->value), "mmap");
    return 0;
}

static int set_projector_device(struct reader *r)
{
    size_t i = 0;
    if (str_eq_c(str_of(r->value), "none"))
        return set_projector_cpu(r);
    int e = device_index(r, str_of(r->value), &i);
    if (e == 0)
        r->shape->projector_device = (int)i;
    return e;
}

static int set_draft_devices(struct reader *r)
{
    r->shape->draft_on_cpu = str_eq_c(str_of(r->value), "none");
    r->shape->n_draft_devices = 0;
    if (r->shape->draft_on_cpu)
        return 0;
    struct str list = str_of(r->value);
    while (list.ptr) {
        size_t i = 0;
        int e = device_index(r, str_split(&list, ','), &i);
        if (e < 0)
            return e;
        if (r->shape->n_draft_devices == FIT_DEVICES_MAX)
            return refuse(r, "too many devices");
        r->shape->draft_devices[r->shape->n_draft_devices++] = (uint16_t)i;
    }
    return 0;
}

/* The engine's devices come in the order of its -dev; ours in the order of the host. */
static int check_devices(struct reader *r)
{
    size_t n = r->s->host ? r->s->host->n_devices : 0, at = 0;
    struct str list = str_of(r->value);
    if (str_eq_c(list, "none"))
        return n == 0 || r->shape->gpu_layers == 0 ? 0 : refuse(r, "set gpu-layers: 0 instead");
    while (list.ptr) {
        struct str name = str_split(&list, ',');
        if (at >= n || !str_eq_c(name, r->s->host->devices[at].name))
            return refuse(r, "declare these devices on the host, in this order, instead");
        at++;
    }
    return at == n ? 0 : refuse(r, "declare these devices on the host, in this order, instead");
}

/* ---- overrides ------------------------------------------------------------------------------------------------------------ */

/* The engine splits at every comma, then at the first '='. */
static int add_overrides(struct reader *r, struct fit_override *list, size_t max, size_t *n)
{
    struct str all = str_of(r->value);
    while (all.ptr) {
        struct str one = str_split(&all, ',');
        struct str pattern = str_split(&one, '=');
        if (!one.ptr || one.len == 0)
            return refuse(r, "is pattern=buffer, and a pattern cannot hold a comma");
        if (*n == max)
            return refuse(r, "too many overrides");
        struct fit_override o = {arena_dup(r->a, pattern), arena_dup(r->a, one)};
        if (!o.pattern || !o.buffer)
            return err_nomem(r->err);
        list[(*n)++] = o;
    }
    return 0;
}

/* "blk\.(0|1|...|n-1)\.<rest>" */
static int add_first_layers(struct reader *r, uint32_t n, const char *rest)
{
    struct fit_shape *s = r->shape;
    base_autobuf struct buf b = BUF_INIT(16384);
    if (n == 0)
        return 0;
    if (s->n_overrides == FIT_OVERRIDES_MAX)
        return refuse(r, "too many overrides");
    for (uint32_t i = 0; i < n && i < MODEL_LAYERS_MAX; i++)
        buf_addf(&b, "%s%u", i ? "|" : "blk\\.(", i);
    buf_addf(&b, ")\\.%s", rest);
    struct fit_override o = {buf_status(&b) < 0 ? NULL : arena_dup(r->a, buf_str(&b)), "CPU"};
    if (!o.pattern)
        return err_nomem(r->err);
    s->overrides[s->n_overrides++] = o;
    return 0;
}

static int set_overrides(struct reader *r)
{
    struct fit_shape *s = r->shape;
    /* what came before decides first: experts that are on the CPU already are not moved again */
    if (r->cpu_moe_seen && s->cpu_moe > 0) {
        static const char experts[] = "ffn_(up|down|gate|gate_up)_(ch|)exps";
        int e = add_first_layers(r, s->cpu_moe > MODEL_LAYERS_MAX ? MODEL_LAYERS_MAX : s->cpu_moe, experts);
        if (e < 0)
            return e;
        s->cpu_moe = 0;
    }
    return add_overrides(r, s->overrides, FIT_OVERRIDES_MAX, &s->n_overrides);
}

static int set_draft_overrides(struct reader *r)
{
    return add_overrides(r, r->shape->draft_overrides, FIT_DRAFT_OVERRIDES_MAX, &r->shape->n_draft_overrides);
}

static int set_cpu_ffn(struct reader *r)
{
    uint32_t n = 0;
    int e = number_u32(r, &n);
    return e < 0 ? e : add_first_layers(r, n, "ffn_(up|down|gate)\\.");
}

static int refuse_keys(struct reader *r)
{
    return refuse(r, "changes what the model's header says, which a plan cannot follow");
}

/* ---- the table --------------------------------------------------------------------------------------------------------------- */

static const struct flag {
    const char *names[FLAG_NAMES];
    int (*set)(struct reader *r);
    bool value; /* the next word is its value */
} flags[] = {
    {{"-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"}, set_checkpoints, true},
    {{"-nkvo", "--no-kv-offload"}, set_kv_on_cpu, false},
    {{"-kvo", "--kv-offload"}, set_kv_on_device, false},
    {{"--swa-full"}, set_swa_full, false},
    {{"-nr", "--no-repack"}, set_no_repack, false},
    {{"--repack"}, set_repack, false},
    {{"--no-host"}, set_no_host, false},
    {{"-lm", "--load-mode"}, set_load_mode, true},
    {{"-ot", "--override-tensor"}, set_overrides, true},
    {{"-cmoe", "--cpu-moe"}, set_cpu_moe, false},
    {{"-ncmoe", "--n-cpu-moe"}, set_cpu_moe_n, true},
    {{"-ncffn", "--n-cpu-ffn"}, set_cpu_ffn, true},
    {{"--moe-cache-mib"}, set_moe_cache, true},
    {{"-sm", "--split-mode"}, set_split_mode, true},
    {{"-mg", "--main-gpu"}, set_main_gpu, true},
    {{"--kv-unified-per-slot"}, set_slot_cap, true},
    {{"-dev", "--device"}, check_devices, true},
    {{"--embedding", "--embeddings", "--rerank", "--reranking"}, set_embedding, false},
    {{"-mmdev", "--mmproj-device"}, set_projector_device, true},
    {{"--no-mmproj-offload"}, set_projector_cpu, false},
    {{"--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"}, set_adapters, true},
    {{"-bs", "--backend-sampling"}, set_sampling, false},
    {{"--override-kv"}, refuse_keys, true},
    {{"-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"}, set_draft_k, true},
    {{"-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"}, set_draft_v, true},
    {{"-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"}, set_draft_layers, true},
    {{"-devd", "--device-draft", "--spec-draft-device"}, set_draft_devices, true},
    {{"-otd", "--override-tensor-draft", "--spec-draft-override-tensor"}, set_draft_overrides, true},
    {{"-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"}, set_draft_cpu_moe, false},
    {{"-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe", "--spec-draft-ncmoe"}, set_draft_cpu_moe_n, true},
    {{"--spec-draft-n-ubatch"}, set_draft_ubatch, true},
    {{"--spec-draft-p-min", "--draft-p-min"}, set_p_min, true},
    {{"--no-spec-draft-backend-sampling"}, set_no_draft_sampling, false},
};

static const struct flag *flag_find(const char *word)
{
    for (size_t i = 0; i < BASE_COUNT(flags); i++)
        for (size_t k = 0; k < FLAG_NAMES && flags[i].names[k]; k++)
            if (str_eq_c(str_of(word), flags[i].names[k]))
                return &flags[i];
    return NULL;
}

static int read_args(struct reader *r)
{
    const struct fleet_service *s = r->s;
    for (size_t i = 0; i < s->n_args; i++) {
        const struct flag *f = flag_find(s->args[i]);
        if (!f)
            continue;
        r->flag = s->args[i];
        if (f->value) {
            if (i + 1 == s->n_args)
                return refuse(r, "its value is missing");
            r->value = s->args[++i];
        }
        int e = f->set(r);
        if (e < 0)
            return e;
    }
    return 0;
}

/* ---- the declaration ------------------------------------------------------------------------------------------------------------- */

static int read_split(struct reader *r)
{
    const struct fleet_shape *from = &r->s->shape;
    const struct fleet_host *h = r->s->host;
    struct fit_shape *to = r->shape;
    size_t n = h ? h->n_devices : 0;
    if (n > FIT_DEVICES_MAX || from->n_split > FIT_DEVICES_MAX)
        return err_set(r->err, -EINVAL, "service \"%s\": %zu devices, and llama.cpp uses at most %d: leave some out", r->s->name, n > from->n_split ? n : from->n_split, FIT_DEVICES_MAX);
    if (!from->split_auto && from->n_split > 0) {
        to->n_split = from->n_split;
        for (size_t i = 0; i < from->n_split; i++)
            to->split[i] = from->split[i];
        return 0;
    }
    for (size_t i = 0; n > 1 && i < n; i++) {
        uint64_t whole = h->devices[i].memory_bytes / MIB;
        to->split[i] = (double)whole;
    }
    to->n_split = n > 1 ? n : 0;
    return 0;
}

static int read_speculative(struct reader *r)
{
    static const struct {
        const char *name;
        unsigned bit;
    } kinds[] = {{"draft-simple", FIT_SPEC_SIMPLE}, {"draft-eagle3", FIT_SPEC_EAGLE3}, {"draft-mtp", FIT_SPEC_MTP}, {"draft-dflash", FIT_SPEC_DFLASH}, {"draft-dspark", FIT_SPEC_DSPARK},
                 {"ngram-simple", FIT_SPEC_NGRAM_SIMPLE}, {"ngram-map-k", FIT_SPEC_NGRAM_MAP}, {"ngram-map-k4v", FIT_SPEC_NGRAM_MAP}, {"ngram-mod", FIT_SPEC_NGRAM_MOD}, {"ngram-cache", FIT_SPEC_NGRAM_CACHE}, {"none", 0}};
    const struct fleet_shape *from = &r->s->shape;
    for (size_t i = 0; i < from->n_speculative; i++) {
        size_t k = 0;
        while (k < BASE_COUNT(kinds) && !str_eq_c(str_of(from->speculative[i]), kinds[k].name))
            k++;
        if (k == BASE_COUNT(kinds))
            return err_set(r->err, -EINVAL, "service \"%s\": speculative: \"%s\" is unknown", r->s->name, from->speculative[i]);
        r->shape->spec |= kinds[k].bit;
    }
    r->shape->draft_max = from->draft_max ? from->draft_max : DRAFT_MAX;
    return 0;
}

static int read_numbers(struct reader *r)
{
    const struct fleet_shape *from = &r->s->shape;
    struct fit_shape *to = r->shape;
    to->slots = from->slots ? from->slots : SLOTS;
    to->context = from->context ? from->context : CONTEXT_PER_SLOT * to->slots;
    to->context_declared = from->context > 0;
    to->batch = from->batch ? from->batch : from->ubatch > BATCH ? from->ubatch : BATCH;
    to->ubatch = from->ubatch ? from->ubatch : to->batch < UBATCH ? to->batch : UBATCH;
    to->unified = from->unified_kv == FLEET_ON;
    to->flash = from->flash_attention;
    bool devices = r->s->host && r->s->host->n_devices > 0;
    to->gpu_layers = from->gpu_layers_set ? from->gpu_layers : devices ? UINT32_MAX : 0;
    if (to->gpu_layers == 0)
        to->draft_gpu_layers = 0;
    if (from->prompt_cache_set) {
        uint64_t mib = from->prompt_cache_bytes / MIB;
        to->prompt_cache_bytes = mib > 0 || from->prompt_cache_bytes == 0 ? mib * MIB : MIB;
    }
    int e = from->kv_k ? kv_type(r, from->kv_k, &to->k_type) : 0;
    if (e == 0 && from->kv_v)
        e = kv_type(r, from->kv_v, &to->v_type);
    return e;
}

int fit_shape_of(const struct fleet_service *s, struct arena *a, struct fit_shape *ret, struct err *err)
{
    struct fit_shape shape;
    fit_shape_default(&shape);
    struct reader r = {.s = s, .shape = &shape, .a = a, .err = err};
    int e = read_numbers(&r);
    if (e == 0)
        e = read_split(&r);
    if (e == 0)
        e = read_speculative(&r);
    if (e == 0)
        e = read_args(&r);
    if (e == 0)
        *ret = shape;
    return e;
}
