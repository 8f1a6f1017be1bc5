/* SPDX-License-Identifier: MIT
 *
 * What one step of each knob buys: every step is a shape of its own, predicted like any other, and what counts is the difference on the device that binds.
 */
#include "solve_int.h"

#include <errno.h>

#define UBATCH_LEAST 64

struct turner {
    struct fit_steps *x;
    const struct fit_result *now;
    const struct fit_shape *shape;
    struct arena *a;
    struct err *err;
    struct fit_knob knobs[FIT_KNOBS_MAX];
    size_t n;
};

static int64_t freed(const struct turner *t, const struct fit_result *then)
{
    const int d = t->now->binds;
    return (int64_t)t->now->use[d].used - (int64_t)then->use[d].used;
}

/* Takes the step when it frees something where it is needed. The texts were made by the caller: NULL says that there was no memory for them. */
static int turn(struct turner *t, const char *knob, const char *from, const char *to, const struct fit_shape *s)
{
    if (!from || !to)
        return err_nomem(t->err);
    int r = fit_steps_predict(t->x, s, NULL, t->err);
    if (r < 0)
        return r;
    const struct fit_result *then = &t->x->result;
    if (t->n < FIT_KNOBS_MAX && (freed(t, then) > 0 || (then->fits && !t->now->fits)))
        t->knobs[t->n++] = (struct fit_knob){knob, from, to, freed(t, then), then->fits, *s};
    return 0;
}

static const char *number(struct turner *t, uint64_t n)
{
    return arena_printf(t->a, "%llu", (unsigned long long)n);
}

static const char *bytes(struct turner *t, uint64_t n)
{
    char text[UNITS_TEXT];
    return arena_dup(t->a, str_of(units_show_bytes(n, text)));
}

static int turn_context(struct turner *t)
{
    struct fit_shape s = *t->shape;
    uint32_t seq = t->now->n_ctx_seq, slots = s.unified ? 1 : s.slots;
    uint32_t step = seq / 8 / FIT_CELLS * FIT_CELLS;
    step = step > 0 ? step : FIT_CELLS;
    if (seq <= step)
        return 0;
    s.context = (seq - step) * slots;
    return turn(t, "context", number(t, t->now->n_ctx), number(t, s.context), &s);
}

static int turn_ubatch(struct turner *t)
{
    struct fit_shape s = *t->shape;
    if (t->now->n_ubatch < 2 * UBATCH_LEAST)
        return 0;
    s.ubatch = t->now->n_ubatch / 2;
    return turn(t, "ubatch", number(t, t->now->n_ubatch), number(t, s.ubatch), &s);
}

static int turn_slots(struct turner *t)
{
    struct fit_shape s = *t->shape;
    uint32_t seq = t->now->n_ctx_seq, was = s.slots;
    if (was < 2)
        return 0;
    s.slots--;
    s.context = s.unified ? t->now->n_ctx : seq * s.slots; /* the others keep theirs */
    return turn(t, "slots", arena_printf(t->a, "%u of %s", was, FIT_COUNT(seq)), arena_printf(t->a, "%u of %s", s.slots, FIT_COUNT(seq)), &s);
}

/* Bits for 32 elements. */
static uint64_t width(const struct gguf_type *type)
{
    return type->block ? 256ULL * type->bytes / type->block : 0;
}

static int turn_kv(struct turner *t)
{
    struct fit_shape s = *t->shape;
    const struct gguf_type *q8_0 = gguf_type_find(STR("q8_0"));
    bool k = width(s.k_type) > width(q8_0), v = width(s.v_type) > width(q8_0);
    if (!k && !v)
        return 0;
    const char *from = s.k_type == s.v_type ? s.k_type->name : arena_printf(t->a, "%s/%s", s.k_type->name, s.v_type->name);
    s.k_type = k ? q8_0 : s.k_type;
    s.v_type = v ? q8_0 : s.v_type;
    return turn(t, "kv", from, s.k_type == s.v_type ? s.k_type->name : arena_printf(t->a, "%s/%s", s.k_type->name, s.v_type->name), &s);
}

static const char *spec_text(unsigned spec)
{
    static const struct {
        unsigned bit;
        const char *text;
    } kinds[] = {{FIT_SPEC_SIMPLE, "draft-simple"}, {FIT_SPEC_EAGLE3, "draft-eagle3"}, {FIT_SPEC_MTP, "draft-mtp"}, {FIT_SPEC_DFLASH, "draft-dflash"}, {FIT_SPEC_DSPARK, "draft-dspark"}};
    for (size_t i = 0; i < BASE_COUNT(kinds); i++)
        if (spec & kinds[i].bit)
            return kinds[i].text;
    return "none";
}

static int turn_drafter(struct turner *t)
{
    struct fit_shape s = *t->shape;
    if (!fit_drafts(t->x->in, &s))
        return 0;
    s.spec &= ~(unsigned)FIT_SPEC_CONTEXT;
    return turn(t, "drafter", spec_text(t->shape->spec), "none", &s);
}

/* The device with most left over its floor, but for one. */
static int roomiest(const struct turner *t, int but)
{
    const struct fit_input *in = t->x->in;
    int best = -1;
    int64_t most = INT64_MIN;
    for (int d = 0; d < (int)in->n_devices; d++) {
        int64_t over = t->now->use[d].left - (int64_t)in->devices[d].floor_bytes;
        if (d != but && over > most) {
            most = over;
            best = d;
        }
    }
    return best;
}

static int turn_layer(struct turner *t)
{
    const struct fit_input *in = t->x->in;
    struct fit_shape s = *t->shape;
    uint32_t shares[FIT_DEVICES_MAX];
    int from = t->now->binds, to = roomiest(t, from);
    if (from >= (int)in->n_devices || t->now->use[from].n_layers == 0 || s.split_mode != FIT_SPLIT_LAYER)
        return 0;
    if (to < 0) {
        uint32_t placed = t->now->use[from].n_layers;
        s.gpu_layers = placed - 1;
        return turn(t, "layer", arena_printf(t->a, "gpu-layers %u", placed), arena_printf(t->a, "gpu-layers %u", placed - 1), &s);
    }
    (void)fit_whole_shares(in, t->now, shares);
    if (shares[from] == 0)
        return 0;
    s.n_split = in->n_devices;
    for (size_t d = 0; d < in->n_devices; d++)
        s.split[d] = shares[d];
    const char *was = fit_shares_text(s.split, s.n_split, t->a);
    s.split[from]--;
    s.split[to]++;
    return turn(t, "layer", was, fit_shares_text(s.split, s.n_split, t->a), &s);
}

static int turn_moe(struct turner *t)
{
    struct fit_shape s = *t->shape;
    uint32_t next = fit_next_moe(t->x->prepared[0], s.cpu_moe);
    if (next == 0 || t->x->in->n_devices == 0)
        return 0;
    s.cpu_moe = next;
    return turn(t, "cpu-moe", number(t, t->shape->cpu_moe), number(t, next), &s);
}

static int turn_projector(struct turner *t)
{
    const struct fit_input *in = t->x->in;
    struct fit_shape s = *t->shape;
    int at = s.projector_device == -1 && in->n_devices > 0 ? 0 : s.projector_device, to = roomiest(t, at);
    if (!in->projector || at < 0 || at != t->now->binds)
        return 0;
    s.projector_device = to < 0 ? -2 : to;
    return turn(t, "projector", in->devices[at].name, to < 0 ? "CPU" : in->devices[to].name, &s);
}

static int turn_host(struct turner *t)
{
    struct fit_shape s = *t->shape;
    int r = 0;
    if (t->now->binds != (int)t->x->in->n_devices)
        return 0;
    if (s.prompt_cache_bytes > 0) {
        uint64_t cap = t->now->use[t->now->binds].terms[FIT_PROMPT_CACHE].bytes; /* what no limit comes to */
        s.prompt_cache_bytes = cap / 2;
        r = turn(t, "prompt-cache", bytes(t, cap), bytes(t, cap / 2), &s);
    }
    s = *t->shape;
    s.checkpoints /= 2;
    return r < 0 || t->shape->checkpoints == 0 ? r : turn(t, "checkpoints", number(t, t->shape->checkpoints), number(t, s.checkpoints), &s);
}

static int by_use(const void *a, const void *b)
{
    const struct fit_knob *p = a, *q = b;
    if (p->fits != q->fits)
        return p->fits ? -1 : 1;
    if (p->freed_bytes != q->freed_bytes)
        return p->freed_bytes > q->freed_bytes ? -1 : 1;
    return strcmp(p->knob, q->knob);
}

int fit_knobs(const struct fit_input *in, const struct fit_result *r, struct arena *a, struct fit_knob **ret, size_t *ret_n, struct err *err)
{
    static int (*const turns[])(struct turner *) = {turn_context, turn_ubatch, turn_slots, turn_kv, turn_drafter, turn_layer, turn_moe, turn_projector, turn_host};
    if (!in->shape)
        return err_set(err, -EINVAL, "no shape to turn knobs of");
    struct arena *scratch = arena_new(FIT_SCRATCH_MAX);
    struct turner *t = scratch ? arena_alloc(scratch, 1, sizeof(*t)) : NULL;
    if (!t) {
        arena_free(scratch);
        return err_nomem(err);
    }
    *t = (struct turner){.now = r, .shape = in->shape, .a = a, .err = err};
    int e = fit_steps_new(in, scratch, &t->x, err);
    for (size_t i = 0; e == 0 && i < BASE_COUNT(turns); i++)
        e = turns[i](t);
    if (e == 0) {
        qsort(t->knobs, t->n, sizeof(t->knobs[0]), by_use);
        struct fit_knob *knobs = arena_alloc(a, t->n ? t->n : 1, sizeof(*knobs));
        if (knobs) {
            memcpy(knobs, t->knobs, t->n * sizeof(*knobs));
            *ret = knobs;
            *ret_n = t->n;
        } else {
            e = err_nomem(err);
        }
    }
    arena_free(scratch);
    return e;
}
