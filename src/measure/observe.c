/* SPDX-License-Identifier: MIT
 *
 * What a running service teaches, and what is made of it later. An observation is kept as it was: what a device's reading was, what all terms but compute came to, and compute as its log said or as it was predicted. What
 * is left over is worked out when it is used, against the compute figure that is then known for the observed point, so that a later measurement of compute does not count the same bytes twice.
 */
#include "measure_int.h"

#include <errno.h>
#include <string.h>

#define SOURCE_MAX 256

/* ---- keeping ---------------------------------------------------------------------------------------------------------------------------- */

/* Terms that are counted at their ceiling and start at nothing: a process that has just loaded has none of them. */
static double now_held(const struct fit_amount *a, enum fit_term t, enum ledger_tag tag)
{
    bool grows = t == FIT_PROMPT_CACHE || t == FIT_CHECKPOINTS;
    return (double)(grows && tag == LEDGER_AFTER_LOAD ? a->low : a->bytes);
}

/* Whether nobody can say how much of the host's reading is the prompt cache's or the checkpoints': after traffic they are anything from nothing to their ceiling. */
static bool grown(const struct fit_use *u, enum ledger_tag tag)
{
    static const enum fit_term grow[] = {FIT_PROMPT_CACHE, FIT_CHECKPOINTS};
    bool any = false;
    for (size_t i = 0; i < BASE_COUNT(grow); i++)
        any |= u->terms[grow[i]].bytes > u->terms[grow[i]].low;
    return any && tag == LEDGER_AFTER_TRAFFIC;
}

static double seen_bytes(const struct measure_seen *s, size_t d, enum fit_term t, bool *any)
{
    double sum = 0;
    for (size_t i = 0; s && i < s->n; i++)
        if (s->rows[i].device == (int)d && s->rows[i].term == t) {
            sum += (double)s->rows[i].bytes;
            *any = true;
        }
    return sum;
}

static void work_out(const struct fit_input *in, const struct fit_result *r, const struct measure_observation *o, struct measure_kept *k)
{
    bool any;
    *k = (struct measure_kept){.ubatch = r->n_ubatch, .n_kv = r->n_ctx_seq, .outputs = r->n_outputs};
    for (size_t d = 0; d <= in->n_devices; d++) {
        seen_bytes(o->seen, d, FIT_COMPUTE, &k->compute_seen);
        seen_bytes(o->seen, d, FIT_DRAFT_COMPUTE, &k->draft_seen);
    }
    for (size_t d = 0; d <= in->n_devices; d++) {
        const struct fit_amount *terms = r->use[d].terms;
        bool read = o->used_bytes && o->used_bytes[d] != UINT64_MAX && !grown(&r->use[d], o->tag);
        k->used[d] = read ? (double)o->used_bytes[d] : -1;
        k->compute[d] = k->compute_seen ? seen_bytes(o->seen, d, FIT_COMPUTE, &any) : (double)terms[FIT_COMPUTE].bytes;
        k->draft_compute[d] = k->draft_seen ? seen_bytes(o->seen, d, FIT_DRAFT_COMPUTE, &any) : (double)terms[FIT_DRAFT_COMPUTE].bytes;
        for (int t = 0; t < FIT_TERMS; t++)
            if (t != FIT_COMPUTE && t != FIT_DRAFT_COMPUTE && t != FIT_EXTRA)
                k->rest[d] += now_held(&terms[t], (enum fit_term)t, o->tag);
    }
}

static int64_t extra_of(const struct measure_kept *k, size_t d, double compute, double draft)
{
    double extra = k->used[d] - k->rest[d] - compute - draft;
    return extra > -9e18 && extra < 9e18 ? (int64_t)extra : 0;
}

int measure_observe(struct ledger *ledger, const struct measure_key *key, const struct fit_input *in, const struct fit_result *r, const struct measure_observation *o, uint64_t at_us, struct measure_observed *ret,
                    struct err *err)
{
    struct measure_kept k;
    char family[MEASURE_FAMILY];
    if (o->seen && o->seen->n_ubatch && (o->seen->n_ubatch != r->n_ubatch || (o->seen->n_ctx_seq && o->seen->n_ctx_seq != r->n_ctx_seq)))
        return err_set(err, -EINVAL, "the log is of another shape: ubatch %u and %u tokens a slot, declared %u and %u; restart the service, or observe what runs", (unsigned)o->seen->n_ubatch, (unsigned)o->seen->n_ctx_seq,
                       (unsigned)r->n_ubatch, (unsigned)r->n_ctx_seq);
    if (!o->seen && !o->used_bytes)
        return err_set(err, -ENODATA, "neither a log nor a reading to observe");
    work_out(in, r, o, &k);
    int code = ledger ? measure_family(in, r, family, err) : 0;
    if (code == 0 && ledger)
        code = measure_keep_observed(ledger, key, in, family, &k, o->tag, at_us, err);
    if (code < 0)
        return code;
    *ret = (struct measure_observed){.n = in->n_devices + 1, .compute_known = k.compute_seen, .draft_known = k.draft_seen};
    for (size_t d = 0; d <= in->n_devices; d++) {
        ret->extra_known[d] = k.used[d] >= 0;
        ret->extra_bytes[d] = ret->extra_known[d] ? extra_of(&k, d, k.compute[d], k.draft_compute[d]) : 0;
        ret->compute[d] = k.compute_seen ? (uint64_t)k.compute[d] : 0;
        ret->draft_compute[d] = k.draft_seen ? (uint64_t)k.draft_compute[d] : 0;
    }
    return 0;
}

/* ---- using ------------------------------------------------------------------------------------------------------------------------------- */

struct lookup {
    const struct fit_input *in;
    const struct fit_result *r;
    const char *hardware;   /* "" unknown */
    bool has_compute, has_emulated, has_observed, has_point;
    struct measure_compute compute, emulated; /* measured on this hardware; on emulated devices */
    struct measure_kept observed, point;      /* for what is left over; of the very shape, with compute seen */
    enum ledger_tag observed_tag;
    uint64_t at_us;         /* of the newest row in use */
    unsigned n_compute, n_observed, n_stale;
    char stale_hardware[1024];
};

static bool covers(const struct measure_compute *c, uint32_t ub, uint32_t kv)
{
    for (size_t d = 0; d < c->n; d++)
        if (ub < c->compute[d].ub_min || ub > c->compute[d].ub_max || kv < c->compute[d].kv_min || kv > c->compute[d].kv_max)
            return false;
    return true;
}

static void used(struct lookup *l, const struct ledger_row *row, unsigned *count)
{
    (*count)++;
    l->at_us = row->at_us > l->at_us ? row->at_us : l->at_us;
}

static void stale(struct lookup *l, const struct ledger_row *row)
{
    if (l->n_stale++ == 0)
        snprintf(l->stale_hardware, sizeof l->stale_hardware, "%s", row->hardware);
}

/* Rows come newest first: the first that covers the shape stays; one that does not is better than none only for other shapes, and is left. */
static int take_compute(void *ctx, const struct ledger_row *row, struct err *err)
{
    struct lookup *l = ctx;
    struct measure_compute c;
    (void)err;
    if (!measure_read_compute(row, l->in->n_devices, &c))
        return 0;
    bool here = *l->hardware && strcmp(row->hardware, l->hardware) == 0;
    if (!c.emulated && !here) {
        if (*l->hardware)
            stale(l, row);
        return 0;
    }
    bool *has = c.emulated ? &l->has_emulated : &l->has_compute;
    if (*has || !covers(&c, l->r->n_ubatch, l->r->n_ctx_seq))
        return 0;
    *has = true;
    *(c.emulated ? &l->emulated : &l->compute) = c;
    used(l, row, &l->n_compute);
    return 0;
}

static int take_observed(void *ctx, const struct ledger_row *row, struct err *err)
{
    struct lookup *l = ctx;
    struct measure_kept k;
    (void)err;
    if (!*l->hardware || !measure_read_observed(row, l->in->n_devices, &k))
        return 0;
    if (strcmp(row->hardware, l->hardware) != 0) {
        stale(l, row);
        return 0;
    }
    if (!l->has_point && k.compute_seen && k.ubatch == l->r->n_ubatch && k.n_kv == l->r->n_ctx_seq && k.outputs == l->r->n_outputs) {
        l->has_point = true;
        l->point = k;
        used(l, row, &l->n_observed);
    }
    bool whole = l->in->n_devices > 0 || k.used[0] >= 0; /* half a reading would take the margin of the other device away */
    for (size_t d = 0; d < l->in->n_devices; d++)
        whole &= k.used[d] >= 0;
    /* after traffic comes before after load, however old */
    if (whole && (!l->has_observed || (l->observed_tag != LEDGER_AFTER_TRAFFIC && row->tag == LEDGER_AFTER_TRAFFIC))) {
        l->has_observed = true;
        l->observed = k;
        l->observed_tag = row->tag;
        used(l, row, &l->n_observed);
    }
    return 0;
}

/* A point as coefficients: in force there and nowhere else. */
static struct fit_coef point_coef(const struct measure_kept *k, double bytes)
{
    return (struct fit_coef){.a = bytes, .ub_min = k->ubatch, .ub_max = k->ubatch, .kv_min = k->n_kv, .kv_max = k->n_kv, .worst_error = bytes > 0 ? (MEASURE_ROUNDING / bytes < 1 ? MEASURE_ROUNDING / bytes : 1) : 0};
}

/* Whether a device's figures apply at all: a device without any has coefficients of nothing, which is right for it too. */
static void take_coefs(const struct lookup *l, struct fit_coef *compute, struct fit_coef *draft, bool *ret_draft)
{
    const struct measure_compute *c = l->has_compute ? &l->compute : l->has_emulated ? &l->emulated : NULL;
    *ret_draft = false;
    for (size_t d = 0; d <= l->in->n_devices; d++) {
        if (c)
            compute[d] = c->compute[d];
        if (c && c->has_draft)
            draft[d] = c->draft_compute[d];
        *ret_draft |= c && c->has_draft;
        if (!l->has_point)
            continue;
        compute[d] = point_coef(&l->point, l->point.compute[d]);
        if (l->point.draft_seen) {
            draft[d] = point_coef(&l->point, l->point.draft_compute[d]);
            draft[d].ub_min = 0; /* the drafter's own ubatch may be another */
            *ret_draft = true;
        }
    }
}

static double compute_at(const struct fit_coef *k, const struct measure_kept *o, bool seen, double kept)
{
    if (seen || o->ubatch < k->ub_min || o->ubatch > k->ub_max || o->n_kv < k->kv_min || o->n_kv > k->kv_max)
        return kept;
    return measure_coef_at(k, o->ubatch, o->n_kv, o->outputs);
}

/* "ROCm0 was ..., is ...": the first device whose description differs. */
static const char *what_changed(const struct lookup *l, struct arena *a)
{
    struct str was = str_of(l->stale_hardware), is = str_of(l->hardware);
    while (was.ptr && is.ptr) {
        struct str x = str_trim(str_split(&was, ';')), y = str_trim(str_split(&is, ';'));
        if (!str_eq(x, y))
            return arena_printf(a, "was " STR_FMT ", is " STR_FMT, STR_ARG(x), STR_ARG(y));
    }
    return arena_printf(a, "was %s, is %s", l->stale_hardware, l->hardware);
}

static const char *source_text(const struct lookup *l, const struct measure_key *key, bool emulated, struct arena *a)
{
    char at[CLK_RFC3339];
    clk_rfc3339(l->at_us, at);
    at[10] = '\0'; /* the day is enough */
    const char *how = l->n_observed == 0 ? "measured" : l->n_compute == 0 ? "observed" : "measured and observed";
    return arena_printf(a, "%s %s on %s%s", how, at, key->build, emulated ? ", devices emulated" : "");
}

static int build(const struct lookup *l, const struct measure_key *key, struct arena *a, struct measure_calibration *ret, struct err *err)
{
    size_t n = l->in->n_devices + 1;
    struct fit_coef *compute = arena_alloc(a, n, sizeof *compute), *draft = arena_alloc(a, n, sizeof *draft);
    int64_t *extra = arena_alloc(a, n, sizeof *extra);
    bool has_draft = false, has_any = l->has_compute || l->has_emulated || l->has_point;
    if (!compute || !draft || !extra)
        return err_nomem(err);
    take_coefs(l, compute, draft, &has_draft);
    const struct measure_kept *o = &l->observed;
    for (size_t d = 0; l->has_observed && d < n; d++)
        if (o->used[d] >= 0)
            extra[d] = extra_of(o, d, compute_at(&compute[d], o, o->compute_seen, o->compute[d]), has_draft ? compute_at(&draft[d], o, o->draft_seen, o->draft_compute[d]) : o->draft_compute[d]);
    struct measure_calibration c = {.n_compute = l->n_compute, .n_observed = l->n_observed, .n_stale = l->n_stale, .emulated = !l->has_compute && l->has_emulated && !l->has_point};
    if (l->n_compute + l->n_observed > 0) {
        c.c = (struct fit_calibration){.compute = has_any ? compute : NULL, .draft_compute = has_draft ? draft : NULL, .extra_bytes = l->has_observed ? extra : NULL, .source = source_text(l, key, c.emulated, a), .n = n};
        if (!c.c.source)
            return err_nomem(err);
    }
    if (l->n_stale && !(c.stale = what_changed(l, a)))
        return err_nomem(err);
    *ret = c;
    return 0;
}

int measure_calibration(struct ledger *ledger, const struct measure_key *key, const struct fit_input *in, const struct fit_result *r, struct arena *a, struct measure_calibration *ret, struct err *err)
{
    char family[MEASURE_FAMILY];
    base_autobuf struct buf hardware = BUF_INIT(MEASURE_HARDWARE_MAX);
    int code = measure_family(in, r, family, err);
    if (code == 0)
        code = measure_hardware(key, in, &hardware, err);
    if (code < 0)
        return code;
    struct lookup *l = calloc(1, sizeof *l);
    if (!l)
        return err_nomem(err);
    l->in = in;
    l->r = r;
    l->hardware = hardware.ptr ? hardware.ptr : "";
    const struct ledger_query q = {.kind = MEASURE_KIND_COMPUTE, .build = key->build, .model = key->model, .shape = family};
    code = ledger_find(ledger, &q, take_compute, l, err);
    struct ledger_query o = q;
    o.kind = MEASURE_KIND_OBSERVED;
    if (code == 0)
        code = ledger_find(ledger, &o, take_observed, l, err);
    if (code == 0)
        code = build(l, key, a, ret, err);
    free(l);
    return code;
}
