/* SPDX-License-Identifier: MIT
 *
 * The command line of a hollow run. Everything that decides the graph is said as the shape has it, layers are placed by explicit counts so that what is free at that moment plays no part, and devices go by the names that
 * they have in this run. -lv 5 makes the engine print its measuring pass; port 0 lets it take any.
 */
#include "measure_int.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORDS_MAX 96
#define LIST_MAX 8192

struct words {
    struct arena *a;
    const char **v;
    size_t n;
    bool failed;
};

static void add(struct words *w, const char *word)
{
    if (!word || w->n == WORDS_MAX)
        w->failed = true;
    else
        w->v[w->n++] = word;
}

static void pair(struct words *w, const char *flag, const char *value)
{
    add(w, flag);
    add(w, value);
}

static void number(struct words *w, const char *flag, uint32_t n)
{
    pair(w, flag, arena_printf(w->a, "%u", (unsigned)n));
}

/* A list of words joined by commas. */
static const char *joined(struct words *w, struct buf *b)
{
    const char *text = buf_status(b) == 0 && b->len ? arena_dup(w->a, buf_str(b)) : NULL;
    if (!text)
        w->failed = true;
    return text;
}

static void add_item(struct buf *b, const char *fmt, ...) BASE_PRINTF(2, 3);
static void add_item(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    if (b->len)
        buf_add_char(b, ',');
    va_start(ap, fmt);
    buf_addv(b, fmt, ap);
    va_end(ap);
}

/* ---- where layers go ---------------------------------------------------------------------------------------------------------------- */

void measure_counts(const struct fit_result *r, size_t n_devices, uint32_t *ret)
{
    memset(ret, 0, n_devices * sizeof *ret);
    for (uint32_t k = 0; k < r->n_slots_placed && k < BASE_COUNT(r->layer_device); k++)
        if (r->layer_device[k] < n_devices)
            ret[r->layer_device[k]]++;
}

void measure_divide(uint32_t n_layer, uint32_t ngl, const uint32_t *counts, size_t n_devices, uint16_t *ret)
{
    float cumulated[FIT_DEVICES_MAX] = {0}, sum = 0;
    uint32_t act = ngl > n_layer ? n_layer + 1 : ngl, start = n_layer + 1 - act;
    for (size_t d = 0; d < n_devices; d++)
        cumulated[d] = sum += (float)counts[d];
    for (size_t d = 0; d < n_devices && sum > 0; d++)
        cumulated[d] /= sum;
    for (uint32_t k = 0; k <= n_layer; k++) {
        size_t d = n_devices;
        if (k >= start && n_devices > 0 && sum > 0) {
            float x = (float)(k - start) / (float)act;
            for (d = 0; d < n_devices && !(cumulated[d] > x); d++)
                ;
        }
        ret[k] = (uint16_t)d;
    }
}

static void add_devices(struct words *w, const struct fit_input *in, const struct fit_result *r, const struct measure_run_shape *s)
{
    const struct fit_shape *shape = in->shape;
    base_autobuf struct buf names = BUF_INIT(LIST_MAX), shares = BUF_INIT(LIST_MAX);
    uint32_t counts[FIT_DEVICES_MAX];
    if (in->n_devices == 0) {
        pair(w, "-dev", "none");
        return;
    }
    if (s->rpc)
        pair(w, "--rpc", s->rpc); /* before -ot, which looks its names up */
    for (size_t d = 0; d < in->n_devices; d++)
        add_item(&names, "%s", s->devices[d].name);
    pair(w, "-dev", joined(w, &names));
    static const char *const modes[] = {[FIT_SPLIT_LAYER] = "layer", [FIT_SPLIT_NONE] = "none", [FIT_SPLIT_ROW] = "row", [FIT_SPLIT_TENSOR] = "tensor"};
    pair(w, "-sm", modes[shape->split_mode]);
    if (shape->split_mode != FIT_SPLIT_LAYER)
        number(w, "-mg", shape->main_gpu);
    pair(w, "-ngl", shape->gpu_layers == UINT32_MAX ? "all" : arena_printf(w->a, "%u", (unsigned)shape->gpu_layers));
    measure_counts(r, in->n_devices, counts);
    uint32_t all = 0;
    for (size_t d = 0; d < in->n_devices; d++) {
        add_item(&shares, "%u", (unsigned)counts[d]);
        all += counts[d];
    }
    if (all > 0 && shape->split_mode == FIT_SPLIT_LAYER)
        pair(w, "-ts", joined(w, &shares));
}

/* ---- everything else -------------------------------------------------------------------------------------------------------------------- */

static const char *buffer_of(const struct fit_input *in, const struct measure_run_shape *s, const char *buffer)
{
    for (size_t d = 0; d < in->n_devices; d++)
        if (strcmp(buffer, in->devices[d].buffer ? in->devices[d].buffer : in->devices[d].name) == 0)
            return s->devices[d].buffer;
    return buffer;
}

static void add_overrides(struct words *w, const struct fit_input *in, const struct measure_run_shape *s, const char *flag, const struct fit_override *list, size_t n)
{
    base_autobuf struct buf b = BUF_INIT(LIST_MAX);
    for (size_t i = 0; i < n; i++)
        add_item(&b, "%s=%s", list[i].pattern, buffer_of(in, s, list[i].buffer));
    if (n)
        pair(w, flag, joined(w, &b));
}

static void add_moe(struct words *w, uint32_t n, const char *all, const char *some)
{
    if (n == UINT32_MAX)
        add(w, all);
    else if (n)
        number(w, some, n);
}

static void add_speculation(struct words *w, const struct fit_input *in, const struct measure_run_shape *s)
{
    static const struct {
        unsigned bit;
        const char *name;
    } kinds[] = {{FIT_SPEC_SIMPLE, "draft-simple"}, {FIT_SPEC_EAGLE3, "draft-eagle3"}, {FIT_SPEC_MTP, "draft-mtp"}, {FIT_SPEC_DFLASH, "draft-dflash"}, {FIT_SPEC_DSPARK, "draft-dspark"},
                 {FIT_SPEC_NGRAM_SIMPLE, "ngram-simple"}, {FIT_SPEC_NGRAM_MAP, "ngram-map-k"}, {FIT_SPEC_NGRAM_MOD, "ngram-mod"}, {FIT_SPEC_NGRAM_CACHE, "ngram-cache"}};
    const struct fit_shape *shape = in->shape;
    base_autobuf struct buf types = BUF_INIT(LIST_MAX), devices = BUF_INIT(LIST_MAX);
    if (!shape->spec)
        return;
    for (size_t i = 0; i < BASE_COUNT(kinds); i++)
        if (shape->spec & kinds[i].bit)
            add_item(&types, "%s", kinds[i].name);
    pair(w, "--spec-type", joined(w, &types));
    if (!(shape->spec & FIT_SPEC_CONTEXT))
        return;
    if (s->drafter)
        pair(w, "-md", s->drafter);
    if (shape->draft_max)
        number(w, "--spec-draft-n-max", shape->draft_max);
    if (shape->draft_ubatch)
        number(w, "--spec-draft-n-ubatch", shape->draft_ubatch);
    if (shape->draft_gpu_layers != UINT32_MAX)
        number(w, "-ngld", shape->draft_gpu_layers);
    pair(w, "-ctkd", shape->draft_k_type->name);
    pair(w, "-ctvd", shape->draft_v_type->name);
    for (size_t i = 0; i < shape->n_draft_devices; i++)
        if (shape->draft_devices[i] < in->n_devices)
            add_item(&devices, "%s", s->devices[shape->draft_devices[i]].name);
    if (shape->draft_on_cpu)
        pair(w, "-devd", "none");
    else if (shape->n_draft_devices)
        pair(w, "-devd", joined(w, &devices));
    add_moe(w, shape->draft_cpu_moe, "-cmoed", "-ncmoed");
    add_overrides(w, in, s, "-otd", shape->draft_overrides, shape->n_draft_overrides);
}

static void add_switches(struct words *w, const struct fit_shape *s)
{
    const struct {
        const char *flag;
        bool on;
    } switches[] = {{"-nkvo", s->kv_on_cpu}, {"--swa-full", s->swa_full}, {"-nr", s->no_repack}, {"--no-host", s->no_host}, {"--embedding", s->embedding}};
    for (size_t i = 0; i < BASE_COUNT(switches); i++)
        if (switches[i].on)
            add(w, switches[i].flag);
    add(w, s->unified ? "--kv-unified" : "--no-kv-unified");
    if (s->moe_cache_bytes)
        pair(w, "--moe-cache-mib", arena_printf(w->a, "%llu", (unsigned long long)(s->moe_cache_bytes >> 20)));
}

int measure_argv(const struct fit_input *in, const struct fit_result *r, const struct measure_run_shape *s, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err)
{
    static const char *const flash[] = {[FLEET_AUTO] = "auto", [FLEET_ON] = "on", [FLEET_OFF] = "off"};
    static const char *const fixed[] = {"--host", "127.0.0.1", "--port", "0", "-lv", "5", "--log-colors", "off", "--offline", "--no-warmup", "-fit", "on"};
    const struct fit_shape *shape = in->shape;
    struct words w = {.a = a, .v = arena_alloc(a, WORDS_MAX + 1, sizeof *w.v)};
    if (!w.v)
        return err_nomem(err);
    for (size_t i = 0; i < BASE_COUNT(fixed); i++)
        add(&w, fixed[i]);
    pair(&w, "-m", s->weights);
    add_devices(&w, in, r, s);
    number(&w, "-c", s->context);
    number(&w, "-np", s->slots);
    number(&w, "-b", shape->batch > s->ubatch ? shape->batch : s->ubatch);
    number(&w, "-ub", s->ubatch);
    pair(&w, "-ctk", shape->k_type->name);
    pair(&w, "-ctv", shape->v_type->name);
    pair(&w, "-fa", flash[shape->flash]);
    add_switches(&w, shape);
    add_moe(&w, shape->cpu_moe, "-cmoe", "-ncmoe");
    add_overrides(&w, in, s, "-ot", shape->overrides, shape->n_overrides);
    add_speculation(&w, in, s);
    if (w.failed)
        return err_set(err, -ENOMEM, "cannot write the command line of a measuring run");
    *ret = w.v;
    *ret_n = w.n;
    return 0;
}
