/* SPDX-License-Identifier: MIT
 *
 * Neighbourhoods: the declared shape with one of its numbers changed, row by row, as an operator would try them.
 */
#include "solve_int.h"

#include <errno.h>

#define CELLS 256     /* the engine rounds a slot's context to it */
#define ROWS_MAX 64
#define SPLIT_STEPS 3 /* to either side, over two devices */
#define SPLIT_STEPS_MANY 2
#define SLOTS_BELOW 3
#define SLOTS_ABOVE 4
#define UBATCH_LEAST 128
#define UBATCH_MOST 8192

int fit_axis_of(struct str name, enum fit_axis *ret, struct err *err)
{
    static const char *const names[] = {[FIT_AXIS_SPLIT] = "split", [FIT_AXIS_CONTEXT] = "context", [FIT_AXIS_SLOTS] = "slots", [FIT_AXIS_UBATCH] = "ubatch", [FIT_AXIS_KV] = "kv"};
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (str_eq_c(name, names[i])) {
            *ret = (enum fit_axis)i;
            return 0;
        }
    return err_set(err, -EINVAL, "no table \"" STR_FMT "\"; there are split, context, slots, ubatch and kv", STR_ARG(name));
}

struct tabler {
    struct fit_steps *x;
    const struct fit_bad *bad;
    size_t n_bad;
    struct arena *a;
    struct err *err;
    struct fit_row *rows; /* room for ROWS_MAX */
    size_t n;
    struct fit_result now; /* the declared shape's */
};

static const char *refusal(const struct fit_result *r)
{
    for (size_t i = 0; i < r->n_notes; i++)
        if (r->notes[i].severity == FIT_REFUSED)
            return r->notes[i].text;
    return NULL;
}

static struct fit_note new_warning(const struct fit_result *r, const struct fit_result *declared)
{
    for (size_t i = 0; i < r->n_notes; i++) {
        size_t k = 0;
        while (k < declared->n_notes && strcmp(declared->notes[k].rule, r->notes[i].rule) != 0)
            k++;
        if (r->notes[i].severity == FIT_WARNING && k == declared->n_notes)
            return r->notes[i];
    }
    return (struct fit_note){0};
}

static int add(struct tabler *t, const char *value, bool declared, const struct fit_shape *s)
{
    struct fit_steps *x = t->x;
    if (!value)
        return err_nomem(t->err);
    if (t->n == ROWS_MAX)
        return 0;
    int r = fit_steps_predict(x, s, t->a, t->err);
    if (r < 0)
        return r;
    const struct fit_result *p = &x->result;
    struct fit_row *row = &t->rows[t->n++];
    *row = (struct fit_row){.value = value, .declared = declared, .slot_context = p->n_ctx_seq, .gap_bytes = p->gap_bytes, .fits = p->fits, .why = refusal(p), .warns = new_warning(p, &t->now), .shape = *s};
    for (size_t d = 0; d <= x->in->n_devices; d++)
        row->left[d] = p->use[d].left;
    row->decode_tok_s = fit_steps_speed(x, s);
    const struct fit_bad *bad = fit_known_bad(x->prepared[0], t->bad, t->n_bad, s, p, &x->room);
    if (!bad)
        return 0;
    row->fits = false;
    row->why = arena_printf(t->a, "known to be bad: %s", bad->reason ? bad->reason : "no reason was recorded");
    return row->why ? 0 : err_nomem(t->err);
}

/* ---- axes --------------------------------------------------------------------------------------------------------------------- */

static int add_split(struct tabler *t, const uint32_t *shares, bool declared)
{
    struct fit_shape s = *t->x->in->shape;
    s.n_split = t->x->in->n_devices;
    for (size_t d = 0; d < s.n_split; d++)
        s.split[d] = shares[d];
    return add(t, fit_shares_text(s.split, s.n_split, t->a), declared, &s);
}

/* Moves k shares from device d to the next one; false: there are not so many. */
static bool moved(const uint32_t *from, size_t n, size_t d, int k, uint32_t *ret)
{
    memcpy(ret, from, n * sizeof(*ret));
    if ((k > 0 && from[d] < (uint32_t)k) || (k < 0 && from[d + 1] < (uint32_t)-k))
        return false;
    ret[d] -= (uint32_t)k;
    ret[d + 1] += (uint32_t)k;
    return true;
}

static int by_shares(const void *a, const void *b)
{
    const struct fit_row *p = a, *q = b;
    for (size_t d = 0; d < p->shape.n_split; d++)
        if (p->shape.split[d] != q->shape.split[d])
            return p->shape.split[d] < q->shape.split[d] ? -1 : 1;
    return 0;
}

static int rows_split(struct tabler *t)
{
    const struct fit_input *in = t->x->in;
    uint32_t shares[FIT_DEVICES_MAX], next[FIT_DEVICES_MAX];
    if (in->n_devices < 2)
        return add(t, in->n_devices ? in->devices[0].name : "CPU", true, in->shape);
    (void)fit_whole_shares(in, &t->now, shares);
    int steps = in->n_devices == 2 ? SPLIT_STEPS : SPLIT_STEPS_MANY, r = add_split(t, shares, true);
    for (size_t d = 0; r == 0 && d + 1 < in->n_devices; d++)
        for (int k = -steps; r == 0 && k <= steps; k++)
            if (k != 0 && moved(shares, in->n_devices, d, k, next))
                r = add_split(t, next, false);
    qsort(t->rows, t->n, sizeof(t->rows[0]), by_shares);
    return r;
}

static int rows_context(struct tabler *t)
{
    static const unsigned quarters[] = {1, 2, 3, 4, 5, 6, 8};
    struct fit_shape s = *t->x->in->shape;
    uint64_t seq = t->now.n_ctx_seq, slots = s.unified ? 1 : s.slots, last = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < BASE_COUNT(quarters); i++) {
        uint64_t each = seq * quarters[i] / 4 / CELLS * CELLS, all = each * slots;
        if (each == last || each == 0 || all > INT32_MAX)
            continue;
        last = each;
        s.context = (uint32_t)all;
        r = add(t, arena_printf(t->a, "%llu", (unsigned long long)all), quarters[i] == 4, &s);
    }
    return r;
}

static int rows_slots(struct tabler *t)
{
    struct fit_shape s = *t->x->in->shape;
    uint32_t now = s.slots, from = now > SLOTS_BELOW ? now - SLOTS_BELOW : 1, to = now + SLOTS_ABOVE < FLEET_SLOTS_MAX ? now + SLOTS_ABOVE : FLEET_SLOTS_MAX;
    int r = 0;
    for (s.slots = from; r == 0 && s.slots <= to; s.slots++)
        r = add(t, arena_printf(t->a, "%u", s.slots), s.slots == now, &s);
    return r;
}

static int rows_ubatch(struct tabler *t)
{
    struct fit_shape s = *t->x->in->shape;
    uint32_t now = t->now.n_ubatch, batch = t->now.n_batch;
    bool done = false;
    int r = 0;
    for (uint32_t ub = UBATCH_LEAST; r == 0 && ub <= UBATCH_MOST && ub <= batch; ub *= 2) {
        if (!done && now <= ub) {
            s.ubatch = now;
            r = add(t, arena_printf(t->a, "%u", now), true, &s);
            done = true;
        }
        s.ubatch = ub;
        if (r == 0 && ub != now)
            r = add(t, arena_printf(t->a, "%u", ub), false, &s);
    }
    s.ubatch = now;
    return r < 0 || done ? r : add(t, arena_printf(t->a, "%u", now), true, &s);
}

static int rows_kv(struct tabler *t)
{
    static const char *const names[] = {"f32", "bf16", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"};
    const struct fit_shape *declared = t->x->in->shape;
    int r = 0;
    if (declared->k_type != declared->v_type)
        r = add(t, arena_printf(t->a, "%s/%s", declared->k_type->name, declared->v_type->name), true, declared);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(names); i++) {
        struct fit_shape s = *declared;
        s.k_type = s.v_type = gguf_type_find(str_of(names[i]));
        r = add(t, names[i], s.k_type == declared->k_type && s.v_type == declared->v_type, &s);
    }
    return r;
}

/* ---- entry ------------------------------------------------------------------------------------------------------------------------ */

static int make(struct tabler *t, enum fit_axis axis, struct arena *scratch, const struct fit_input *in)
{
    static int (*const rows[])(struct tabler *) = {[FIT_AXIS_SPLIT] = rows_split, [FIT_AXIS_CONTEXT] = rows_context, [FIT_AXIS_SLOTS] = rows_slots, [FIT_AXIS_UBATCH] = rows_ubatch, [FIT_AXIS_KV] = rows_kv};
    if ((unsigned)axis >= BASE_COUNT(rows))
        return err_set(t->err, -EINVAL, "no table of number %d", (int)axis);
    int r = fit_steps_new(in, scratch, &t->x, t->err);
    if (r == 0)
        r = fit_steps_predict(t->x, in->shape, NULL, t->err);
    if (r < 0)
        return r;
    t->now = t->x->result;
    return rows[axis](t);
}

int fit_table(const struct fit_input *in, enum fit_axis axis, const struct fit_bad *bad, size_t n_bad, struct arena *a, struct fit_row **ret, size_t *ret_n, struct err *err)
{
    if (!in->shape)
        return err_set(err, -EINVAL, "no shape to make a table of");
    struct arena *scratch = arena_new(FIT_SCRATCH_MAX);
    struct tabler *t = scratch ? arena_alloc(scratch, 1, sizeof(*t)) : NULL;
    struct fit_row *rows = arena_alloc(a, ROWS_MAX, sizeof(*rows));
    if (!t || !rows) {
        arena_free(scratch);
        return err_nomem(err);
    }
    *t = (struct tabler){.bad = bad, .n_bad = n_bad, .a = a, .err = err, .rows = rows};
    int r = make(t, axis, scratch, in);
    if (r == 0) {
        *ret = rows;
        *ret_n = t->n;
    }
    arena_free(scratch);
    return r;
}
