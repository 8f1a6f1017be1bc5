/* SPDX-License-Identifier: MIT
 *
 * A shape said in the words of a fleet file and of a shell: what `berth fit --solve` recommends and `berth init` writes.
 */
#include "fit_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MIB (1ull << 20)
#define FLAGS_MAX 4

/* ---- a service with another shape ------------------------------------------------------------------------------------------ */

/* Flags that a solved shape may replace, and whether a value follows. */
static const struct {
    const char *names[FLAGS_MAX];
    bool value, projector;
} replaced[] = {
    {{"-cmoe", "--cpu-moe"}, false, false},
    {{"-ncmoe", "--n-cpu-moe"}, true, false},
    {{"-mmdev", "--mmproj-device"}, true, true},
    {{"--no-mmproj-offload"}, false, true},
    {{"--mmproj-offload"}, false, true},
};

/* Words that the flag at args[i] takes when it is a replaced one; 0: it is not. */
static size_t replaced_words(const char *word, bool experts, bool projector)
{
    for (size_t f = 0; f < BASE_COUNT(replaced); f++)
        for (size_t k = 0; k < FLAGS_MAX && replaced[f].names[k]; k++)
            if (strcmp(word, replaced[f].names[k]) == 0 && (replaced[f].projector ? projector : experts))
                return replaced[f].value ? 2 : 1;
    return 0;
}

static int take_args(const struct fleet_service *s, const struct fit_shape *was, const struct fit_shape *to, struct arena *a, struct fleet_service *ret, struct err *err)
{
    bool experts = was->cpu_moe != to->cpu_moe, projector = was->projector_device != to->projector_device;
    const char **args = arena_alloc(a, s->n_args + 5, sizeof(*args));
    size_t n = 0;
    if (!args)
        return err_nomem(err);
    for (size_t i = 0; i < s->n_args;) {
        size_t words = replaced_words(s->args[i], experts, projector);
        if (!words)
            args[n++] = s->args[i];
        i += words ? words : 1;
    }
    if (experts && to->cpu_moe == UINT32_MAX) {
        args[n++] = "-cmoe";
    } else if (experts && to->cpu_moe) {
        args[n++] = "-ncmoe";
        args[n++] = arena_printf(a, "%u", to->cpu_moe);
    }
    if (projector && to->projector_device == -2) {
        args[n++] = "--no-mmproj-offload";
    } else if (projector && to->projector_device >= 0 && (size_t)to->projector_device < s->host->n_devices) {
        args[n++] = "-mmdev";
        args[n++] = s->host->devices[to->projector_device].name;
    }
    for (size_t i = 0; i < n; i++)
        if (!args[i])
            return err_nomem(err);
    ret->args = args;
    ret->n_args = n;
    return 0;
}

static int take_speculative(const struct fleet_service *s, const struct fit_shape *was, const struct fit_shape *to, struct arena *a, struct fleet_service *ret, struct err *err)
{
    const char **kept = arena_alloc(a, s->shape.n_speculative + 1, sizeof(*kept));
    size_t n = 0;
    if (!kept)
        return err_nomem(err);
    bool drafts = (to->spec & FIT_SPEC_CONTEXT) != 0;
    if (was->spec == to->spec)
        return 0;
    for (size_t i = 0; i < s->shape.n_speculative; i++)
        if (drafts || !str_starts(str_of(s->shape.speculative[i]), STR("draft-")))
            kept[n++] = s->shape.speculative[i];
    ret->shape.speculative = n ? kept : NULL;
    ret->shape.n_speculative = n;
    if (!drafts)
        ret->shape.draft_max = 0;
    return 0;
}

bool fit_same_split(const struct fit_shape *a, const struct fit_shape *b)
{
    bool same = a->n_split == b->n_split;
    for (size_t i = 0; same && i < a->n_split; i++)
        same = !(a->split[i] < b->split[i]) && !(a->split[i] > b->split[i]);
    return same;
}

int fit_service_of(const struct fleet_service *s, const struct fit_shape *shape, const struct fit_result *r, struct arena *a, struct fleet_service *ret, struct err *err)
{
    struct fit_shape was;
    struct fleet_shape *to = &ret->shape;
    int e = fit_shape_of(s, a, &was, err);
    if (e < 0)
        return e;
    *ret = *s;
    to->context = r->n_ctx;
    to->slots = shape->slots;
    to->batch = shape->batch != was.batch || s->shape.batch ? shape->batch : 0;
    to->ubatch = shape->ubatch;
    to->kv_k = shape->k_type->name;
    to->kv_v = shape->v_type->name;
    to->flash_attention = shape->flash;
    to->unified_kv = shape->unified ? FLEET_ON : s->shape.unified_kv == FLEET_ON ? FLEET_OFF : s->shape.unified_kv;
    to->prompt_cache_set = s->shape.prompt_cache_set || shape->prompt_cache_bytes != was.prompt_cache_bytes;
    to->prompt_cache_bytes = shape->prompt_cache_bytes;
    bool all = shape->gpu_layers == UINT32_MAX;
    to->gpu_layers_set = !all || s->host->n_devices == 0;
    to->gpu_layers = all ? 999 : shape->gpu_layers;
    bool split = shape->n_split > 1 && !(s->shape.split_auto && fit_same_split(shape, &was));
    if (split) {
        double *shares = arena_alloc(a, shape->n_split, sizeof(*shares));
        if (!shares)
            return err_nomem(err);
        memcpy(shares, shape->split, shape->n_split * sizeof(*shares));
        to->split = shares;
        to->n_split = shape->n_split;
        to->split_auto = false;
    }
    if (shape->gpu_layers == 0)
        to->split_auto = true;
    e = take_args(s, &was, shape, a, ret, err);
    return e < 0 ? e : take_speculative(s, &was, shape, a, ret, err);
}

/* ---- as text ------------------------------------------------------------------------------------------------------------------ */

static void add_size(struct buf *out, uint64_t bytes)
{
    static const struct {
        unsigned shift;
        const char *unit;
    } units[] = {{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}, {0, "B"}};
    size_t i = 0;
    while (bytes & ((1ull << units[i].shift) - 1))
        i++;
    buf_addf(out, "%llu%s", (unsigned long long)(bytes >> units[i].shift), units[i].unit);
}

static void add_list(struct buf *out, unsigned indent, const char *key, const char *const *words, size_t n, bool quoted)
{
    if (!n)
        return;
    buf_addf(out, "%*s%s: [", (int)indent, "", key);
    for (size_t i = 0; i < n; i++) {
        buf_addf(out, "%s", i ? ", " : "");
        if (quoted)
            buf_add_quoted(out, str_of(words[i]));
        else
            buf_add_c(out, words[i]);
    }
    buf_add_c(out, "]\n");
}

static void add_number(struct buf *out, unsigned indent, const char *key, uint64_t n)
{
    if (n)
        buf_addf(out, "%*s%s: %llu\n", (int)indent, "", key, (unsigned long long)n);
}

static void add_shape(const struct fleet_shape *s, unsigned indent, struct buf *out)
{
    static const char *const states[] = {[FLEET_AUTO] = NULL, [FLEET_ON] = "on", [FLEET_OFF] = "off"};
    char per_slot[FIT_NUMBER];
    uint32_t slots = s->slots ? s->slots : 1;
    if (s->context && slots > 1 && s->unified_kv != FLEET_ON)
        buf_addf(out, "%*scontext: %u   # over all slots: %s tokens for each\n", (int)indent, "", s->context, units_show_count(s->context / slots, per_slot));
    else
        add_number(out, indent, "context", s->context);
    add_number(out, indent, "slots", slots);
    if (s->gpu_layers_set)
        buf_addf(out, "%*sgpu-layers: %u\n", (int)indent, "", s->gpu_layers);
    if (!s->split_auto && s->n_split) {
        buf_addf(out, "%*ssplit: [", (int)indent, "");
        for (size_t i = 0; i < s->n_split; i++)
            buf_addf(out, "%s%.9g", i ? ", " : "", s->split[i]);
        buf_add_c(out, "]\n");
    }
    add_number(out, indent, "batch", s->batch);
    add_number(out, indent, "ubatch", s->ubatch);
    if (s->kv_k && s->kv_v)
        buf_addf(out, "%*skv: {k: %s, v: %s}\n", (int)indent, "", s->kv_k, s->kv_v);
    if (states[s->flash_attention])
        buf_addf(out, "%*sflash-attention: %s\n", (int)indent, "", states[s->flash_attention]);
    if (states[s->unified_kv])
        buf_addf(out, "%*sunified-kv: %s\n", (int)indent, "", states[s->unified_kv]);
    if (s->prompt_cache_set) {
        buf_addf(out, "%*sprompt-cache: ", (int)indent, "");
        if (s->prompt_cache_bytes)
            add_size(out, s->prompt_cache_bytes);
        else
            buf_add_c(out, "off");
        buf_add_char(out, '\n');
    }
    add_list(out, indent, "speculative", s->speculative, s->n_speculative, false);
    add_number(out, indent, "draft-max", s->draft_max);
    add_number(out, indent, "threads", s->threads);
}

void fit_service_yaml(const struct fleet_service *s, unsigned indent, struct buf *out)
{
    static const char *const units[] = {[FLEET_CHILD] = NULL, [FLEET_SYSTEMD] = "systemd", [FLEET_QUADLET] = "quadlet"};
    unsigned in = indent + 2;
    buf_addf(out, "%*s%s:\n", (int)indent, "", s->name);
    buf_addf(out, "%*shost: %s\n%*sruntime: %s\n", (int)in, "", s->host->name, (int)in, "", s->runtime->name);
    if (s->model)
        buf_addf(out, "%*smodel: %s\n", (int)in, "", s->model->name);
    add_number(out, in, "port", s->port);
    if (s->bind && strcmp(s->bind, "127.0.0.1") != 0) {
        buf_addf(out, "%*sbind: ", (int)in, "");
        buf_add_quoted(out, str_of(s->bind));
        buf_add_char(out, '\n');
    }
    if (s->key) {
        buf_addf(out, "%*skey: ", (int)in, "");
        buf_add_quoted(out, str_of(s->key));
        buf_add_char(out, '\n');
    }
    add_shape(&s->shape, in, out);
    if (units[s->unit])
        buf_addf(out, "%*sunit: %s\n", (int)in, "", units[s->unit]);
    add_list(out, in, "args", s->args, s->n_args, true);
}

void fit_shell_word(struct buf *out, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:=,@+%";
    if (*word && word[strspn(word, plain)] == '\0') {
        buf_add_c(out, word);
        return;
    }
    buf_add_char(out, '\'');
    for (const char *p = word; *p; p++) {
        if (*p == '\'')
            buf_add_c(out, "'\\''");
        else
            buf_add_char(out, *p);
    }
    buf_add_char(out, '\'');
}
