/* SPDX-License-Identifier: MIT
 *
 * What llama.cpp's log tells of memory: lines "FUNCTION: NAME KIND buffer size = X MiB" and the few that give them their meaning. The log of one start is, in order: a measuring pass for what was asked (the target,
 * then "the extra model"), perhaps passes for other numbers, then the load: the target's weights and context, the drafter's. Only lines of known functions count, because a log quotes what is in the model file.
 */
#include "engine_int.h"

#define MIB (1ull << 20)
#define WHOLE_MAX ((uint64_t)1 << 40) /* MiB: no buffer has an exbibyte */

/* Functions whose buffers count, and what their word before "buffer size" means. */
static const struct {
    const char *function, *word;
    enum engine_buffer_kind kind;
} rules[] = {
    {"load_tensors", "model", ENGINE_BUFFER_WEIGHTS},
    {"llama_context", "output", ENGINE_BUFFER_OUTPUT},
    {"llama_kv_cache", "KV", ENGINE_BUFFER_KV},
    {"llama_memory_recurrent", "RS", ENGINE_BUFFER_STATE},
    {"llama_dsv4_comp_state", NULL, ENGINE_BUFFER_STATE},
    {"sched_reserve", "compute", ENGINE_BUFFER_COMPUTE},
    {"reserve_compute_meta", "compute", ENGINE_BUFFER_PROJECTOR_COMPUTE},
    {"alloc_compute_meta", "compute", ENGINE_BUFFER_PROJECTOR_COMPUTE},
};

static struct str from(struct str s, ptrdiff_t n)
{
    return (struct str){s.ptr + n, s.len - (size_t)n};
}

/* "  12.34 MiB..." -> bytes and half a unit of the last place. */
static bool mebibytes(struct str s, uint64_t *ret, uint64_t *ret_tolerance)
{
    struct str number;
    s = skip_word(s, &number);
    if (!str_starts(s, STR("MiB")))
        return false;
    ptrdiff_t dot = str_find_char(number, '.');
    struct str fraction = dot < 0 ? (struct str){NULL, 0} : from(number, dot + 1);
    if (dot >= 0)
        number.len = (size_t)dot;
    uint64_t whole = 0, part = 0, unit = 1;
    if (str_to_u64(number, &whole) < 0 || whole > WHOLE_MAX || fraction.len > 6 || (fraction.len && str_to_u64(fraction, &part) < 0))
        return false;
    for (size_t i = 0; i < fraction.len; i++)
        unit *= 10;
    *ret = whole * MIB + (part * MIB + unit / 2) / unit;
    *ret_tolerance = (MIB + 2 * unit - 1) / (2 * unit);
    return true;
}

/* "NAME KIND buffer size = X MiB", or the same with "MoE cache size" for buffer size. */
static bool parse_buffer(struct str function, struct str text, struct engine_buffer *ret)
{
    static const struct str size = {"buffer size =", sizeof "buffer size =" - 1}, moe = {"MoE cache size =", sizeof "MoE cache size =" - 1};
    struct str rest = skip_word(text, &ret->name);
    if (ret->name.len == 0)
        return false;
    if (str_starts(rest, moe)) {
        ret->kind = ENGINE_BUFFER_MOE_CACHE;
        return mebibytes(from(rest, (ptrdiff_t)moe.len), &ret->bytes, &ret->tolerance_bytes);
    }
    ptrdiff_t at = str_find(rest, size);
    if (at < 0)
        return false;
    struct str word = str_trim((struct str){rest.ptr, (size_t)at});
    for (size_t i = 0; i < BASE_COUNT(rules); i++)
        if (str_eq_c(function, rules[i].function) && (!rules[i].word || str_eq_c(word, rules[i].word))) {
            ret->kind = rules[i].kind;
            return mebibytes(from(rest, at + (ptrdiff_t)size.len), &ret->bytes, &ret->tolerance_bytes);
        }
    return false;
}

/* "n_ctx                 = 4096" */
static void take_fact(struct engine_context *c, struct str text)
{
    const struct {
        const char *name;
        uint32_t *ret;
    } facts[] = {{"n_ctx", &c->n_ctx}, {"n_ctx_seq", &c->n_ctx_seq}, {"n_batch", &c->n_batch}, {"n_ubatch", &c->n_ubatch}, {"n_seq_max", &c->n_seq_max}, {"n_outputs_max", &c->n_outputs_max}};
    struct str name, equals, value;
    skip_word(skip_word(skip_word(text, &name), &equals), &value);
    uint64_t n = 0;
    if (!str_eq_c(equals, "=") || str_to_u64(value, &n) < 0 || n > UINT32_MAX)
        return;
    for (size_t i = 0; i < BASE_COUNT(facts); i++)
        if (str_eq_c(name, facts[i].name))
            *facts[i].ret = (uint32_t)n;
}

static void begin_start(struct engine_memory *m)
{
    *m = (struct engine_memory){.starts = m->starts + 1};
}

/* Another model and its contexts follow, from the first on. */
static void begin_models(struct engine_memory *m)
{
    m->contexts = m->models = 0;
    m->pipeline = false;
    m->target = (struct engine_context){0};
}

/* Lines of the measuring pass. False: none of them. */
static bool measuring_line(struct engine_memory *m, struct str text)
{
    if (str_starts(text, STR("getting device memory data for the extra model"))) {
        m->contexts = m->models = 1; /* what follows is the drafter's, of which the MTP context has no model of its own */
        return true;
    }
    if (str_starts(text, STR("getting device memory data for"))) {
        m->measuring = true;
        m->passes++;
        begin_models(m);
        return true;
    }
    if (str_starts(text, STR("failed to measure the memory of the extra model"))) {
        m->draft_unmeasured = true;
        return true;
    }
    /* several devices are listed, one or none has a line for itself; later passes say so too */
    if (str_starts(text, STR("projected memory use with initial parameters")) || str_starts(text, STR("projected to use "))) {
        m->measured = true;
        return true;
    }
    if (str_starts(text, STR("encountered an error while trying to fit params"))) {
        m->failed = true;
        return true;
    }
    if (str_starts(text, STR("fitting params to free memory took"))) {
        m->measuring = false;
        begin_models(m);
        return true;
    }
    return false;
}

/* The number of the context or model that a buffer belongs to: the last that began. */
static unsigned current(unsigned begun)
{
    return begun ? begun - 1 : 0;
}

bool engine_memory_line(struct engine_memory *m, const struct engine_kind *k, struct str line, struct engine_buffer *ret)
{
    if (k != &engine_llama)
        return false;
    struct str text = llama_message(line), function;
    if (llama_begins(text) || str_starts(text, STR("load_model: loading model '"))) {
        /* the second line of these two is of the same start, unless something was loaded in between: a server that woke up */
        if (llama_begins(text) || m->starts == 0 || m->models > 0 || m->passes > 0)
            begin_start(m);
        return false;
    }
    text = skip_word(text, &function);
    if (!str_ends(function, STR(":")))
        return false;
    function.len--;
    if (measuring_line(m, text))
        return false;
    if (str_eq_c(function, "load_tensors") && str_starts(text, STR("loading model tensors")))
        m->models++;
    else if (str_starts(text, STR("creating ")) && str_find(text, STR("KV cache")) >= 0)
        m->indexer = str_find(text, STR("indexer KV cache")) >= 0;
    if (str_eq_c(function, "llama_context")) {
        if (str_starts(text, STR("constructing llama_context"))) {
            m->contexts++;
            m->indexer = m->pipeline = false;
        } else if (str_starts(text, STR("pipeline parallelism enabled"))) {
            m->pipeline = true;
        } else if (m->contexts == 1) {
            take_fact(&m->target, text);
        }
    }
    if (!parse_buffer(function, text, ret))
        return false;
    if (ret->kind == ENGINE_BUFFER_KV && m->indexer)
        ret->kind = ENGINE_BUFFER_INDEXER;
    ret->context = current(ret->kind == ENGINE_BUFFER_WEIGHTS ? m->models : m->contexts);
    ret->measuring = m->measuring;
    return true;
}
