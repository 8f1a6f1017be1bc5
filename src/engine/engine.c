/* SPDX-License-Identifier: MIT
 *
 * The table of engine kinds and the public functions, each of which asks the kind's struct. What an absent number of a shape
 * means is decided here once, so that the flags, the check after the start, and what people are shown cannot disagree.
 */
#include "engine_int.h"

#include <assert.h>
#include <errno.h>

#define CONTEXT_PAD 256 /* llama.cpp rounds a slot's context up to a multiple of it */

static const struct engine_kind *const kinds[] = {&engine_llama, &engine_vllm, &engine_generic};
static const char *const names[] = {"llama.cpp", "vllm", "generic"};
static_assert(BASE_COUNT(kinds) == BASE_COUNT(names), "one name for each kind");

const struct engine_kind *engine_find(const char *name)
{
    for (size_t i = 0; i < BASE_COUNT(kinds); i++)
        if (str_eq_c(str_of(name), kinds[i]->name))
            return kinds[i];
    return NULL;
}

static const struct engine_kind *kind_of(const struct fleet_service *s)
{
    const struct engine_kind *k = engine_find(s->runtime->engine);
    assert(k);
    return k;
}

static const char *flag_taken(const char *engine, struct str word, const char **ret_flag)
{
    const struct engine_kind *k = engine_find(engine);
    for (size_t i = 0; k && i < k->n_owned; i++)
        for (size_t n = 0; n < FLAG_NAMES && k->owned[i].names[n]; n++)
            if (args_is(word, k->owned[i].names[n])) {
                *ret_flag = k->owned[i].names[n];
                return k->owned[i].instead;
            }
    return NULL;
}

struct fleet_options engine_fleet_options(void)
{
    return (struct fleet_options){.engines = names, .n_engines = BASE_COUNT(names), .flag_taken = flag_taken};
}

bool engine_reuses_port(const struct engine_kind *k)
{
    return k && k->reuses_port;
}

const char *engine_program(const struct engine_kind *k)
{
    return k ? k->program : NULL;
}

const char *const *engine_env(const struct engine_kind *k)
{
    return k->env;
}

const char *engine_served_name(const struct fleet_service *s)
{
    return s->name;
}

void engine_shape(const struct fleet_service *s, struct fleet_shape *ret)
{
    *ret = s->shape;
    if (!ret->slots)
        ret->slots = ENGINE_SLOTS;
    if (!ret->context)
        ret->context = ENGINE_CONTEXT_PER_SLOT * ret->slots;
    if (!ret->batch)
        ret->batch = ret->ubatch > ENGINE_BATCH ? ret->ubatch : ENGINE_BATCH;
    if (!ret->ubatch)
        ret->ubatch = ret->batch < ENGINE_UBATCH ? ret->batch : ENGINE_UBATCH;
    if (!ret->kv_k)
        ret->kv_k = ENGINE_KV;
    if (!ret->kv_v)
        ret->kv_v = ENGINE_KV;
    if (ret->unified_kv == FLEET_AUTO)
        ret->unified_kv = FLEET_OFF;
    if (!ret->prompt_cache_set) {
        ret->prompt_cache_set = true;
        ret->prompt_cache_bytes = ENGINE_PROMPT_CACHE;
    }
    if (!ret->gpu_layers_set) {
        ret->gpu_layers_set = true;
        ret->gpu_layers = s->host && s->host->n_devices > 0 ? UINT32_MAX : 0;
    }
    if (!ret->draft_max)
        ret->draft_max = ENGINE_DRAFT_MAX;
}

static uint64_t pad(uint64_t n)
{
    return (n + CONTEXT_PAD - 1) / CONTEXT_PAD * CONTEXT_PAD;
}

uint64_t engine_slot_context(const struct fleet_shape *resolved)
{
    uint64_t all = pad(resolved->context);
    return resolved->unified_kv == FLEET_ON ? all : pad(all / resolved->slots);
}

int engine_argv(const struct fleet_service *s, const struct engine_paths *p, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err)
{
    struct args args = {.a = a};
    const char *flag, *instead;
    for (size_t i = 0; i < s->n_args; i++)
        if ((instead = flag_taken(s->runtime->engine, str_of(s->args[i]), &flag)))
            return err_set(err, -EINVAL, "'args' of service '%s' must not hold '%s'; %s", s->name, flag, instead);
    int r = kind_of(s)->argv(s, p, &args, err);
    return r < 0 ? r : args_finish(&args, ret, ret_n, err);
}

/* ---- paths and answers ----------------------------------------------------------------------------------------- */

const char *engine_health_path(const struct fleet_service *s)
{
    const struct engine_kind *k = kind_of(s);
    return k->health ? k->health : s->health ? s->health : "/health";
}

const char *engine_identity_path(const struct fleet_service *s)
{
    const struct engine_kind *k = kind_of(s);
    return k->identity ? k->identity : s->identity;
}

const char *engine_props_path(const struct fleet_service *s)
{
    return kind_of(s)->props;
}

const char *engine_idle_path(const struct fleet_service *s)
{
    return kind_of(s)->idle;
}

const char *engine_capacity_path(const struct fleet_service *s)
{
    return kind_of(s)->capacity;
}

const char *engine_speculation_path(const struct fleet_service *s)
{
    return s->shape.n_speculative > 0 ? kind_of(s)->speculation : NULL;
}

int engine_props_check(const struct fleet_service *s, const struct engine_paths *p, struct str body, struct err *err)
{
    const struct engine_kind *k = kind_of(s);
    return k->props_check ? k->props_check(s, p, body, err) : 0;
}

int engine_speculation_check(const struct fleet_service *s, struct str body, struct err *err)
{
    const struct engine_kind *k = kind_of(s);
    return k->speculation_check && s->shape.n_speculative > 0 ? k->speculation_check(s, body, err) : 0;
}

bool engine_line_denies(const struct fleet_service *s, struct str text)
{
    const struct engine_kind *k = kind_of(s);
    return !k->denies || k->denies(s, text);
}

int engine_log_check(const struct fleet_service *s, struct str log, struct err *err)
{
    const struct engine_kind *k = kind_of(s);
    return k->log_check ? k->log_check(s, log, err) : 0;
}

int engine_idle_parse(const struct fleet_service *s, struct str body, unsigned *ret_busy, struct err *err)
{
    const struct engine_kind *k = kind_of(s);
    if (!k->idle_parse)
        return err_set(err, -ENOTSUP, "engine '%s' does not tell whether it works", k->name);
    return k->idle_parse(body, ret_busy, err);
}

int engine_token_request(const struct fleet_service *s, struct arena *a, const char **ret_path, const char **ret_body)
{
    const struct engine_kind *k = kind_of(s);
    return k->token_request ? k->token_request(s, a, ret_path, ret_body) : -ENOTSUP;
}

/* ---- time --------------------------------------------------------------------------------------------------------- */

uint64_t engine_start_limit_ms(const struct engine_kind *k, uint64_t payload_bytes, uint64_t disk_bytes_s)
{
    uint64_t speed = disk_bytes_s ? disk_bytes_s : ENGINE_SLOW_DISK;
    /* seconds first, then the rest: bytes * 1000 would wrap from 16 PiB on */
    uint64_t ms = 0, sum = 0;
    if (!size_mul(payload_bytes / speed, 1000 * ENGINE_START_MARGIN, &ms))
        return UINT64_MAX;
    uint64_t rest = payload_bytes % speed;
    ms = size_add(ms, (uint64_t)((double)rest / (double)speed * 1000 * ENGINE_START_MARGIN), &sum) ? sum : UINT64_MAX;
    return size_add(ms, k->start_ms, &sum) ? sum : UINT64_MAX;
}
