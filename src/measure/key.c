/* SPDX-License-Identifier: MIT
 *
 * What a measurement belongs to. A model is the bytes of its headers but for the words of its vocabulary: a file with the same header has the same sizes, whatever its data is. A family is everything of a shape that the engine's graph depends on, but for
 * the numbers that coefficients are a function of: which kinds of layers stand on each device, how many sequences, which types; two shapes of one family have compute buffers on one line.
 */
#include "measure_int.h"

#include <errno.h>
#include <string.h>

#define CHUNK ((size_t)64 << 10)
#define KINDS_MAX 64 /* distinct kinds of layers of one model; a real one has two or three */

/* ---- digest ----------------------------------------------------------------------------------------------------------------------- */

static int digest_range(struct os_digest *d, const struct gguf_source *src, uint64_t from, uint64_t to, struct err *err)
{
    char chunk[CHUNK];
    int r = 0;
    while (r == 0 && from < to) {
        size_t n = to - from < CHUNK ? (size_t)(to - from) : CHUNK;
        r = src->read(src->ctx, from, chunk, n, err);
        if (r == 0 && (r = os_digest_add(d, chunk, n)) < 0)
            return err_sys(err, r, "cannot digest");
        from += n;
    }
    return r;
}

/* A vocabulary is nearly all of a header and decides no size but by its length. */
static bool is_long(const struct gguf_kv *kv)
{
    return kv->type == GGUF_ARRAY && kv->bytes > GGUF_KEEP_ARRAY;
}

static int digest_part(struct os_digest *d, const struct gguf_part *part, const struct gguf_source *src, struct err *err)
{
    const struct gguf_info *info = gguf_info(part->g);
    uint64_t from = 0, end = info->header_bytes < src->size ? info->header_bytes : src->size;
    uint64_t sizes[2] = {end, info->data_off};
    int r = os_digest_add(d, sizes, sizeof sizes);
    for (size_t i = 0; r == 0 && i < info->n_kv; i++) {
        const struct gguf_kv *kv = gguf_kv(part->g, i);
        if (!is_long(kv) || kv->off < from || kv->off + kv->bytes > end)
            continue;
        r = digest_range(d, src, from, kv->off, err);
        if (r == 0)
            r = os_digest_add(d, &kv->bytes, sizeof kv->bytes);
        from = kv->off + kv->bytes;
    }
    if (r == 0)
        r = digest_range(d, src, from, end, err);
    return r < 0 ? err_prefix(err, "'%s'", part->path) : 0;
}

static int digest_files(struct os_digest *d, char role, const struct store_weights *w, struct err *err)
{
    uint64_t head[2] = {(unsigned char)role, w->n};
    int r = os_digest_add(d, head, sizeof head);
    if (r < 0)
        r = err_sys(err, r, "cannot digest '%s'", w->parts[0].path);
    for (size_t i = 0; r == 0 && i < w->n; i++)
        r = w->parts[i].g && w->sources[i] ? digest_part(d, &w->parts[i], w->sources[i], err) : err_set(err, w->why.code ? w->why.code : -EBADMSG, "%s", w->why.text);
    return r;
}

int measure_model_digest(const struct store_weights *weights, const struct store_weights *drafter, const struct store_weights *projector, char ret[OS_SHA256_HEX], struct err *err)
{
    const struct store_weights *const files[] = {weights, drafter, projector};
    static const char roles[] = {'w', 'd', 'p'};
    struct os_digest *d = os_digest_new();
    int r = 0;
    if (!d)
        return err_nomem(err);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(files); i++)
        if (files[i])
            r = digest_files(d, roles[i], files[i], err);
    char hex[OS_SHA256_HEX];
    if (r == 0 && (r = os_digest_hex(d, hex)) < 0)
        r = err_sys(err, r, "cannot digest the headers of a model");
    os_digest_free(d);
    if (r == 0)
        memcpy(ret, hex, sizeof hex);
    return r;
}

/* ---- family ------------------------------------------------------------------------------------------------------------------------- */

/* What the graph of a layer depends on. No padding: compared as bytes. */
struct kind {
    uint32_t bits, heads, kv_heads, k_head, v_head, ff, compress, experts;
    uint64_t k_width, v_width, indexer, r_elems, s_elems;
};

static struct kind kind_of(const struct model *m, uint32_t il, bool moe)
{
    const struct model_layer *l = &m->layers[il];
    struct kind k;
    memset(&k, 0, sizeof k);
    k.bits = (uint32_t)(l->attention | l->swa << 1 | l->recurrent << 2 | l->nextn << 3 | moe << 4);
    k.heads = l->heads;
    k.kv_heads = l->kv_heads;
    k.k_head = l->k_head;
    k.v_head = l->v_head;
    k.ff = l->ff;
    k.compress = l->compress_ratio;
    k.experts = moe ? m->experts : 0;
    k.k_width = l->k_width;
    k.v_width = l->v_width;
    k.indexer = l->indexer_k_width;
    k.r_elems = l->r_elems;
    k.s_elems = l->s_elems;
    return k;
}

struct kinds {
    struct kind list[KINDS_MAX];
    size_t n;
};

static size_t kind_index(struct kinds *ks, const struct kind *k)
{
    for (size_t i = 0; i < ks->n; i++)
        if (memcmp(&ks->list[i], k, sizeof *k) == 0)
            return i;
    if (ks->n == KINDS_MAX)
        return KINDS_MAX - 1;
    ks->list[ks->n] = *k;
    return ks->n++;
}

/* For each device the set of its layers' kinds, as bits. Kinds are numbered as they first appear in the model, so that the numbers mean the same in every shape of it. */
static void kinds_by_device(const struct fit_input *in, const struct fit_result *r, uint64_t *sets)
{
    const struct model *m = in->target;
    struct kinds kinds = {.n = 0};
    bool moe[MODEL_LAYERS_MAX] = {false};
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].expert && m->tensors[i].layer >= 0 && m->tensors[i].layer < MODEL_LAYERS_MAX)
            moe[m->tensors[i].layer] = true;
    for (uint32_t il = 0; il < m->n_layer && il < MODEL_LAYERS_MAX; il++) {
        struct kind k = kind_of(m, il, moe[il]);
        size_t d = r->layer_device[il];
        if (d <= in->n_devices)
            sets[d] |= (uint64_t)1 << kind_index(&kinds, &k);
    }
}

/* FNV-1a: names a list of overrides. */
static uint64_t hash_text(uint64_t h, const char *s)
{
    for (; s && *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211ull;
    return (h ^ 0xff) * 1099511628211ull;
}

static uint64_t hash_overrides(const struct fit_shape *s)
{
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < s->n_overrides; i++)
        h = hash_text(hash_text(h, s->overrides[i].pattern), s->overrides[i].buffer);
    for (size_t i = 0; i < s->n_draft_overrides; i++)
        h = hash_text(hash_text(h, s->draft_overrides[i].pattern), s->draft_overrides[i].buffer);
    return h;
}

static void add_flags(struct buf *b, const struct fit_shape *s)
{
    const struct {
        const char *text;
        bool on;
    } flags[] = {{"kvu", s->unified}, {"nkvo", s->kv_on_cpu}, {"swa-full", s->swa_full}, {"no-repack", s->no_repack}, {"no-host", s->no_host}, {"embedding", s->embedding}, {"draft-cpu", s->draft_on_cpu}};
    for (size_t i = 0; i < BASE_COUNT(flags); i++)
        if (flags[i].on)
            buf_addf(b, " %s", flags[i].text);
    if (s->n_overrides + s->n_draft_overrides)
        buf_addf(b, " ot:%016llx", (unsigned long long)hash_overrides(s));
    if (s->cpu_moe)
        buf_addf(b, s->cpu_moe == UINT32_MAX ? " cmoe" : " ncmoe%u", (unsigned)s->cpu_moe);
    if (s->moe_cache_bytes)
        buf_addf(b, " moe-cache%llu", (unsigned long long)s->moe_cache_bytes);
}

static void add_draft(struct buf *b, const struct fit_shape *s, const struct fit_result *r)
{
    if (!s->spec)
        return;
    buf_addf(b, " spec%u draft-max%u %s,%s", s->spec, (unsigned)r->draft_max, s->draft_k_type->name, s->draft_v_type->name);
    if (s->draft_ubatch)
        buf_addf(b, " draft-ub%u", (unsigned)s->draft_ubatch);
    if (s->draft_gpu_layers != UINT32_MAX)
        buf_addf(b, " ngld%u", (unsigned)s->draft_gpu_layers);
    if (s->draft_cpu_moe)
        buf_addf(b, s->draft_cpu_moe == UINT32_MAX ? " cmoed" : " ncmoed%u", (unsigned)s->draft_cpu_moe);
    for (size_t i = 0; i < s->n_draft_devices; i++)
        buf_addf(b, " devd%u", (unsigned)s->draft_devices[i]);
}

int measure_family(const struct fit_input *in, const struct fit_result *r, char ret[MEASURE_FAMILY], struct err *err)
{
    static const char *const modes[] = {[FIT_SPLIT_LAYER] = "layer", [FIT_SPLIT_NONE] = "none", [FIT_SPLIT_ROW] = "row", [FIT_SPLIT_TENSOR] = "tensor"};
    static const char *const flash[] = {[FLEET_AUTO] = "auto", [FLEET_ON] = "on", [FLEET_OFF] = "off"};
    const struct fit_shape *s = in->shape;
    base_autobuf struct buf b = BUF_INIT(MEASURE_FAMILY - 1);
    uint64_t sets[FIT_DEVICES_MAX + 1] = {0};
    kinds_by_device(in, r, sets);
    buf_addf(&b, "np%u out%u %s,%s fa:%s sm:%s copies%d", (unsigned)s->slots, (unsigned)r->n_outputs, s->k_type->name, s->v_type->name, flash[s->flash], modes[s->split_mode], r->pipeline ? 4 : 1);
    add_flags(&b, s);
    add_draft(&b, s, r);
    size_t last = r->layer_device[in->target->n_layer];
    for (size_t d = 0; d <= in->n_devices; d++)
        buf_addf(&b, " %s%llx%s", d == in->n_devices ? "host:" : "", (unsigned long long)sets[d], d == last ? "+out" : "");
    if (buf_status(&b) < 0)
        return buf_status(&b) == -ENOMEM ? err_nomem(err) : err_set(err, -E2BIG, "the shape has too many parts to be named");
    memcpy(ret, b.ptr, b.len + 1);
    return 0;
}

int measure_hardware(const struct measure_key *key, const struct fit_input *in, struct buf *ret, struct err *err)
{
    for (size_t d = 0; key->hardware && d <= in->n_devices; d++)
        buf_addf(ret, "%s%s %s", d ? "; " : "", d < in->n_devices ? in->devices[d].name : "host", key->hardware[d]);
    return buf_status(ret) < 0 ? err_set(err, buf_status(ret), "the hardware's description is too long") : 0;
}

const char *measure_name(size_t d, size_t n_devices, const char *name, char out[MEASURE_NAME])
{
    if (d == n_devices)
        snprintf(out, MEASURE_NAME, "host.%s", name);
    else
        snprintf(out, MEASURE_NAME, "d%zu.%s", d, name);
    return out;
}
