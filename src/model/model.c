/* SPDX-License-Identifier: MIT
 *
 * Loading a model, and its facts as text. An architecture that is not in the table gets its tensors summed and placed by name, and layers that cache nothing; a projector has no context and therefore no layers.
 */
#include "model_int.h"

#include <errno.h>
#include <string.h>

static int check_parts(const struct gguf *const *parts, size_t n_parts, struct err *err)
{
    struct gguf_split s = {0};
    int r;

    if (n_parts == 0 || n_parts > GGUF_PARTS_MAX)
        return err_set(err, -EINVAL, "a model has 1 to %d parts, not %zu", GGUF_PARTS_MAX, n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        r = gguf_split(parts[i], &s, err);
        if (r < 0)
            return r;
        if (r == 0 && n_parts > 1)
            return err_set(err, -EBADMSG, "part %zu is no part of a set", i + 1);
        if (r == 1 && (s.no != i || s.count != n_parts))
            return err_set(err, -EBADMSG, "part %zu of %zu says it is part %u of %u", i + 1, n_parts, s.no + 1, s.count);
    }
    return 0;
}

/* What is the same for all architectures. */
static int read_general(struct model_load *l, const struct gguf *g)
{
    struct model *m = l->m;
    struct str arch = gguf_arch(g), name = {0}, tokenizer = {0};
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.tokens");

    if (arch.len == 0)
        return err_set(l->err, -EBADMSG, "key 'general.architecture' is missing: this is no model");
    /* it goes into messages and comments as it is */
    for (size_t i = 0; i < arch.len; i++)
        if (arch.ptr[i] <= ' ' || arch.ptr[i] > '~')
            return err_set(l->err, -EBADMSG, "key 'general.architecture' holds the byte 0x%02x: this is no name that an engine knows", (unsigned char)arch.ptr[i]);
    if (!gguf_str(gguf_find(g, "general.name"), &name))
        name = (struct str){0};
    if (!gguf_str(gguf_find(g, "tokenizer.ggml.model"), &tokenizer))
        tokenizer = (struct str){0};
    m->arch = arena_dup(m->arena, arch);
    m->name = arena_dup(m->arena, name);
    m->tokenizer = arena_dup(m->arena, tokenizer);
    if (!m->arch || !m->name || !m->tokenizer)
        return err_nomem(l->err);
    m->chat_template = gguf_find(g, "tokenizer.chat_template") != NULL;
    if (kv && kv->type == GGUF_ARRAY)
        m->vocab = (uint32_t)kv->n; /* at most GGUF_ARRAY_MAX */
    return 0;
}

/* Law 10.3: a tokenizer without tokens leaves the size to a key; a drafter may have neither. */
static int read_vocab(struct model_load *l)
{
    const struct model_tensor *t = model_find_tensor(l->m, "token_embd.weight");
    int r;

    if (l->m->vocab > 0)
        return 0;
    r = model_key_u32(l, "vocab_size", &l->m->vocab);
    if (r == 0 && l->m->vocab == 0 && t && t->ne[1] <= UINT32_MAX)
        l->m->vocab = (uint32_t)t->ne[1];
    return r;
}

/* Layers that cache nothing, so that the weights of blocks can still be placed. */
static int blank_layers(struct model *m, struct err *err)
{
    uint32_t n = 0;

    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].layer >= 0 && (uint32_t)m->tensors[i].layer >= n)
            n = (uint32_t)m->tensors[i].layer + 1;
    if (n > MODEL_LAYERS_MAX)
        return err_set(err, -E2BIG, "the model has tensors of block %u, at most %d blocks are possible", n - 1, MODEL_LAYERS_MAX);
    m->n_block = m->n_layer = n;
    m->layers = n > 0 ? arena_alloc(m->arena, n, sizeof(*m->layers)) : NULL;
    return n > 0 && !m->layers ? err_nomem(err) : 0;
}

/* What the file says of an encoder, or, in files older than the key, whether tensors of it are there. */
static bool has_encoder(const struct model_load *l, const char *key, const char *tensors)
{
    bool has = false;
    if (gguf_bool(gguf_find(l->g, key), &has))
        return has;
    for (size_t i = 0; i < l->m->n_tensors && !has; i++)
        has = strncmp(l->m->tensors[i].name, tensors, strlen(tensors)) == 0;
    return has;
}

static int load_projector(struct model_load *l)
{
    struct model *m = l->m;
    m->role = MODEL_PROJECTOR;
    m->vision = has_encoder(l, "clip.has_vision_encoder", "v.");
    m->audio = has_encoder(l, "clip.has_audio_encoder", "a.");
    for (size_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i].place = MODEL_FIRST; /* all of it is on one device */
        m->tensors[i].layer = -1;
    }
    return 0;
}

static int load(struct model_load *l, const struct gguf *const *parts, size_t n_parts)
{
    struct model *m = l->m;
    int r;

    if ((r = check_parts(parts, n_parts, l->err)) < 0 || (r = read_general(l, parts[0])) < 0 || (r = model_read_tensors(m, parts, n_parts, l->err)) < 0)
        return r;
    m->n_parts = (uint16_t)n_parts;
    l->arch = model_arch_row(str_of(m->arch));
    m->known = l->arch != NULL;
    if (!m->known)
        return blank_layers(m, l->err);
    if (l->arch->flags & F_NO_LOADER)
        return err_set(l->err, -ENOTSUP, "llama.cpp knows the name '%s' but cannot load such a model", m->arch);
    if (l->arch->role == MODEL_PROJECTOR)
        return load_projector(l);
    if ((r = model_read_params(l)) < 0 || (r = model_read_layers(l)) < 0 || (r = model_place_tensors(l)) < 0)
        return r;
    return read_vocab(l);
}

int model_load(const struct gguf *const *parts, size_t n_parts, struct model **ret, struct err *err)
{
    struct arena *a = arena_new(MODEL_MEMORY_MAX);
    struct model_load l = {.g = n_parts > 0 ? parts[0] : NULL, .m = a ? arena_alloc(a, 1, sizeof(struct model)) : NULL, .err = err};
    int r;

    if (!l.m) {
        (void)arena_free(a);
        return err_nomem(err);
    }
    l.m->arena = a;
    r = load(&l, parts, n_parts);
    if (r < 0) {
        (void)arena_free(a);
        return r;
    }
    *ret = l.m;
    return 0;
}

struct model *model_free(struct model *m)
{
    if (m)
        (void)arena_free(m->arena);
    return NULL;
}

/* What one layer is, in the order in which model_kinds says them. */
enum kind { KIND_FULL, KIND_WINDOW, KIND_RECURRENT, KIND_BOTH, KIND_NO_CACHE, KIND_NEXTN, KINDS };

static enum kind kind_of(const struct model_layer *y)
{
    bool keys = y->attention && (y->k_width > 0 || y->v_width > 0);

    if (y->nextn)
        return KIND_NEXTN;
    if (y->recurrent)
        return keys ? KIND_BOTH : KIND_RECURRENT;
    if (!keys)
        return KIND_NO_CACHE;
    return y->swa ? KIND_WINDOW : KIND_FULL;
}

void model_kinds(const struct model *m, struct buf *out)
{
    static const char *const text[KINDS] = {"full attention", "sliding window", "recurrent", "attention and recurrent", "without cache", "nextn"};
    uint32_t count[KINDS] = {0};
    const char *comma = "";

    for (uint32_t i = 0; i < m->n_layer; i++)
        count[kind_of(&m->layers[i])]++;
    for (size_t k = 0; k < KINDS; k++) {
        if (count[k] == 0)
            continue;
        buf_addf(out, "%s%u %s", comma, count[k], text[k]);
        comma = ", ";
    }
}
