/* SPDX-License-Identifier: MIT
 *
 * What llama-server took, compared with what was asked: /props for context, slots, model and projector, /slots for
 * speculation (its /props says "none" whatever runs), its log at verbosity 4 for the rest. It accepts much and drops it in silence:
 * layers for a GPU that is not there ("offloaded 33/33 layers to GPU" is printed even then), a drafter of another kind, a
 * slot's context beyond what the model was trained for.
 */
#include "engine_int.h"

#include <conf/conf.h>
#include <errno.h>

/* ---- /props ------------------------------------------------------------------------------------------------------ */

/* Least and most tokens per slot that are no difference: what was asked, and that rounded up as the engine does. */
static void slot_bounds(const struct fleet_service *s, const struct fleet_shape *sh, uint64_t *ret_least, uint64_t *ret_most)
{
    static const char *const cap[] = {"--kv-unified-per-slot"};
    *ret_most = engine_slot_context(sh);
    *ret_least = sh->unified_kv == FLEET_ON ? sh->context : sh->context / sh->slots;
    ptrdiff_t at = args_find(s, cap, 1);
    uint64_t limit = 0;
    if (at >= 0 && (size_t)at + 1 < s->n_args && str_to_u64(str_of(s->args[at + 1]), &limit) == 0 && limit > 0 && limit < *ret_least)
        *ret_least = limit;
    /* nobody asked for our own default: a model that was trained for less serves what it can */
    if (!s->shape.context)
        *ret_least = 1;
}

static void compare_context(const struct fleet_service *s, const struct fleet_shape *sh, uint64_t got, struct diffs *d)
{
    uint64_t least, most;
    slot_bounds(s, sh, &least, &most);
    if (got >= least && got <= most)
        return;
    diffs_add(d, "context per slot: asked %llu, got %llu%s", (unsigned long long)least, (unsigned long long)got,
              got < least ? " (the model was trained for less, or the engine changed it)" : "");
}

static void compare_flag(json_val root, const char *name, const char *flag, struct diffs *d)
{
    bool on;
    if (json_bool(json_get(root, name), &on) && !on)
        diffs_add(d, "%s: asked for, is off", flag);
}

static void compare_props(const struct fleet_service *s, const struct engine_paths *p, json_val root, struct diffs *d)
{
    struct fleet_shape sh;
    engine_shape(s, &sh);
    uint64_t n;
    if (json_u64(json_get(json_get(root, "default_generation_settings"), "n_ctx"), &n))
        compare_context(s, &sh, n, d);
    else
        diffs_add(d, "context per slot: not told");

    if (!json_u64(json_get(root, "total_slots"), &n))
        diffs_add(d, "slots: not told");
    else if (n != sh.slots)
        diffs_add(d, "slots: asked %u, got %llu", sh.slots, (unsigned long long)n);

    struct str path;
    char text[QUOTE_MAX];
    if (!json_str(json_get(root, "model_path"), &path))
        diffs_add(d, "model: not told");
    else if (!str_eq_c(path, p->weights))
        diffs_add(d, "model: asked '%s', got '%s'", p->weights, quote(path, text));

    compare_flag(root, "endpoint_slots", "--slots", d);
    compare_flag(root, "endpoint_metrics", "--metrics", d);
    if (!p->projector)
        return;
    static const char *const kinds[] = {"vision", "audio", "video"};
    bool any = false, on;
    for (size_t i = 0; i < BASE_COUNT(kinds); i++)
        any |= json_bool(json_get(json_get(root, "modalities"), kinds[i]), &on) && on;
    if (!any)
        diffs_add(d, "projector: asked for, takes neither images nor sound");
}

int llama_props_check(const struct fleet_service *s, const struct engine_paths *p, struct str body, struct err *err)
{
    struct json *j = NULL;
    int r = json_parse(body, &j, NULL);
    if (r == -ENOMEM)
        return err_nomem(err);
    struct str build;
    json_val root = r < 0 ? NULL : json_root(j);
    if (!json_str(json_get(root, "build_info"), &build) || build.len == 0) {
        json_free(j);
        return err_set(err, -EBADMSG, "answer is not llama-server's: another program may be listening there");
    }
    struct diffs d = DIFFS_INIT;
    compare_props(s, p, root, &d);
    json_free(j);
    return diffs_finish(&d, err);
}

/* ---- /slots ------------------------------------------------------------------------------------------------------- */

static int slots_parse(struct str body, struct json **ret, struct err *err)
{
    int r = json_parse(body, ret, NULL);
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r == 0 && json_is_arr(json_root(*ret)))
        return 0;
    if (r == 0)
        *ret = json_free(*ret);
    return err_set(err, -EBADMSG, "answer is no list of slots");
}

int llama_speculation_check(const struct fleet_service *s, struct str body, struct err *err)
{
    struct json *j = NULL;
    int r = slots_parse(body, &j, err);
    if (r < 0)
        return r;
    size_t n = json_count(json_root(j)), with = 0;
    for (size_t i = 0; i < n; i++) {
        bool on;
        with += json_bool(json_get(json_at(json_root(j), i), "speculative"), &on) && on;
    }
    json_free(j);
    if (n > 0 && with == n)
        return 0;
    return err_set(err, -EBADMSG, "speculation: asked for '%s'%s, %zu of %zu slots have any; the log says why", s->shape.speculative[0],
                   s->shape.n_speculative > 1 ? " and more" : "", with, n);
}

int llama_idle_parse(struct str body, unsigned *ret_busy, struct err *err)
{
    struct json *j = NULL;
    int r = slots_parse(body, &j, err);
    if (r < 0)
        return r;
    unsigned busy = 0;
    for (size_t i = 0; r == 0 && i < json_count(json_root(j)); i++) {
        bool on;
        if (!json_bool(json_get(json_at(json_root(j), i), "is_processing"), &on))
            r = err_set(err, -EBADMSG, "slot %zu does not say whether it is processing", i);
        else if (on)
            busy++;
    }
    json_free(j);
    if (r == 0)
        *ret_busy = busy;
    return r;
}

/* ---- the log -------------------------------------------------------------------------------------------------------- */

/* What a log said, each from its first line: later ones are those of a drafter. Empty views: not said. */
struct heard {
    struct str unified, ubatch, kv_k, kv_v, dropped;
    bool buffers, device_buffers; /* weights anywhere; on anything but the host */
    bool spec_set_up;             /* any kind of speculation was begun */
    uint32_t spec_seen;           /* bit i: speculative[i] was begun */
};

/* What follows prefix in the message up to white space, or an empty view. */
static struct str value_after(struct str message, const char *prefix)
{
    ptrdiff_t at = str_find(message, str_of(prefix));
    if (at < 0)
        return (struct str){0};
    struct str rest = {message.ptr + at + strlen(prefix), message.len - (size_t)at - strlen(prefix)};
    struct str word;
    skip_word(rest, &word);
    return word;
}

static void keep_first(struct str *to, struct str value)
{
    if (to->len == 0)
        *to = value;
}

static bool is_host_buffer(struct str name)
{
    return str_starts(name, STR("CPU")) || str_starts(name, STR("AMX")) || str_ends(name, STR("_Host"));
}

static void hear_weights(struct heard *h, struct str message)
{
    struct str word;
    struct str rest = skip_word(message, &word);
    if (!str_eq_c(word, "load_tensors:") || str_find(rest, STR("model buffer size =")) < 0)
        return;
    skip_word(rest, &word);
    h->buffers = true;
    h->device_buffers |= !is_host_buffer(word);
}

static void hear_kv_types(struct heard *h, struct str message)
{
    static const struct str k = {", K (", 5}, v = {", V (", 5};
    struct str *to[] = {&h->kv_k, &h->kv_v};
    struct str mark[] = {k, v};
    for (size_t i = 0; i < 2; i++) {
        ptrdiff_t at = str_find(message, mark[i]);
        if (at < 0)
            return;
        struct str rest = {message.ptr + at + mark[i].len, message.len - (size_t)at - mark[i].len};
        keep_first(to[i], str_split(&rest, ')'));
    }
}

static void hear_speculation(struct heard *h, const struct fleet_service *s, struct str message)
{
    struct str name = value_after(message, "adding speculative implementation ");
    if (name.len < 2)
        return;
    h->spec_set_up = true;
    name = (struct str){name.ptr + 1, name.len - 2}; /* 'quoted' */
    for (size_t i = 0; i < s->shape.n_speculative && i < 32; i++)
        if (str_eq_c(name, s->shape.speculative[i]))
            h->spec_seen |= 1U << i;
}

/* -ngl is always said, and an engine without a back end for cards complains of it whatever its number. */
bool llama_denies(const struct fleet_service *s, struct str text)
{
    struct fleet_shape sh;
    engine_shape(s, &sh);
    return sh.gpu_layers > 0 || str_find(text, STR("--gpu-layers option will be ignored")) < 0;
}

static void hear(struct heard *h, const struct fleet_service *s, struct str line)
{
    struct str text;
    if (engine_line_parse(&engine_llama, line, &text) == ENGINE_LINE_DROPPED && llama_denies(s, text))
        keep_first(&h->dropped, text);
    if (str_starts(text, STR("llama_context: kv_unified ")))
        keep_first(&h->unified, value_after(text, "= "));
    else if (str_starts(text, STR("llama_context: n_ubatch ")))
        keep_first(&h->ubatch, value_after(text, "= "));
    else if (str_starts(text, STR("llama_kv_cache: size = ")))
        hear_kv_types(h, text);
    hear_weights(h, text);
    hear_speculation(h, s, text);
}

static void compare_word(const char *what, const char *asked, struct str got, struct diffs *d)
{
    char text[QUOTE_MAX];
    if (got.len > 0 && !str_eq_c(got, asked))
        diffs_add(d, "%s: asked %s, got %s", what, asked, quote(got, text));
}

int llama_log_check(const struct fleet_service *s, struct str log, struct err *err)
{
    struct heard h = {0};
    while (log.ptr) {
        struct str line = str_split(&log, '\n');
        if (llama_begins(llama_message(line)))
            h = (struct heard){0};
        hear(&h, s, line);
    }

    struct fleet_shape sh;
    engine_shape(s, &sh);
    struct diffs d = DIFFS_INIT;
    char text[QUOTE_MAX];
    if (h.dropped.len > 0)
        diffs_add(&d, "the engine dropped something: '%s'", quote(h.dropped, text));
    if (sh.gpu_layers > 0 && h.buffers && !h.device_buffers)
        diffs_add(&d, "gpu-layers: asked for, but all weights are in host memory");
    compare_word("unified-kv", sh.unified_kv == FLEET_ON ? "true" : "false", h.unified, &d);
    compare_word("kv: k", sh.kv_k, h.kv_k, &d);
    compare_word("kv: v", sh.kv_v, h.kv_v, &d);
    uint64_t ubatch;
    uint64_t asked = sh.ubatch < sh.context ? sh.ubatch : sh.context;
    if (str_to_u64(h.ubatch, &ubatch) == 0 && ubatch != asked)
        diffs_add(&d, "ubatch: asked %llu, got %llu", (unsigned long long)asked, (unsigned long long)ubatch);
    for (size_t i = 0; h.spec_set_up && i < s->shape.n_speculative && i < 32; i++)
        if (!(h.spec_seen & (1U << i)))
            diffs_add(&d, "speculation: asked for '%s', not begun", s->shape.speculative[i]);
    return diffs_finish(&d, err);
}
