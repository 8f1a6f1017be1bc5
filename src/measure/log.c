/* SPDX-License-Identifier: MIT
 *
 * Logs of running services: the buffers of the last start by device and term, and how they compare with a prediction. What a log says twice of one context (a buffer that was reserved again) counts once, the last time;
 * what it says while measuring counts not at all.
 */
#include "measure_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ENTRIES_MAX 256

/* One buffer as the log has it. */
struct entry {
    char name[64];
    enum engine_buffer_kind kind;
    unsigned context;
    uint64_t bytes, tolerance;
};
struct entries {
    struct entry list[ENTRIES_MAX];
    size_t n, lost;
};

static void take_entry(struct entries *es, const struct engine_buffer *b)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(b->name.len < sizeof name ? b->name.len : sizeof name - 1), b->name.ptr);
    bool again = b->kind == ENGINE_BUFFER_COMPUTE || b->kind == ENGINE_BUFFER_OUTPUT || b->kind == ENGINE_BUFFER_PROJECTOR_COMPUTE; /* others come once for each cache, run of tensors, ... */
    for (size_t i = 0; i < es->n; i++) {
        struct entry *e = &es->list[i];
        if (e->kind != b->kind || e->context != b->context || strcmp(e->name, name) != 0)
            continue;
        e->bytes = again ? b->bytes : e->bytes + b->bytes;
        e->tolerance = again ? b->tolerance_bytes : e->tolerance + b->tolerance_bytes;
        return;
    }
    if (es->n == ENTRIES_MAX) {
        es->lost++;
        return;
    }
    struct entry *e = &es->list[es->n++];
    *e = (struct entry){.kind = b->kind, .context = b->context, .bytes = b->bytes, .tolerance = b->tolerance_bytes};
    memcpy(e->name, name, sizeof name);
}

static enum fit_term term_of(enum engine_buffer_kind kind, bool draft)
{
    switch (kind) {
    case ENGINE_BUFFER_WEIGHTS:
        return draft ? FIT_DRAFT_WEIGHTS : FIT_WEIGHTS;
    case ENGINE_BUFFER_MOE_CACHE:
        return FIT_WEIGHTS; /* copies of experts */
    case ENGINE_BUFFER_KV:
        return draft ? FIT_DRAFT_KV : FIT_KV;
    case ENGINE_BUFFER_INDEXER:
        return draft ? FIT_DRAFT_KV : FIT_INDEXER;
    case ENGINE_BUFFER_STATE:
        return draft ? FIT_DRAFT_STATE : FIT_STATE;
    case ENGINE_BUFFER_OUTPUT:
        return draft ? FIT_DRAFT_OUTPUT : FIT_OUTPUT;
    case ENGINE_BUFFER_PROJECTOR_COMPUTE:
        return FIT_PROJECTOR_COMPUTE;
    default:
        return draft ? FIT_DRAFT_COMPUTE : FIT_COMPUTE;
    }
}

static void take_row(struct measure_seen *s, const struct entry *e, const struct fit_input *in)
{
    struct measure_seen_row row = {.device = measure_device_of(str_of(e->name), in, NULL), .term = term_of(e->kind, e->context > 0), .bytes = e->bytes, .tolerance = e->tolerance};
    row.mapped = str_ends(str_of(e->name), STR("_Mapped"));
    memcpy(row.name, e->name, sizeof row.name);
    for (size_t i = 0; i < s->n; i++) {
        struct measure_seen_row *o = &s->rows[i];
        /* names of no device stay apart */
        if (o->device != row.device || o->term != row.term || o->mapped != row.mapped || (row.device < 0 && strcmp(o->name, row.name) != 0))
            continue;
        o->bytes += row.bytes;
        o->tolerance += row.tolerance;
        return;
    }
    if (s->n == MEASURE_SEEN_MAX)
        s->n_lost++;
    else
        s->rows[s->n++] = row;
}

int measure_read_log(const char *kind, const struct fit_input *in, struct str log, struct measure_seen *ret, struct err *err)
{
    const struct engine_kind *k = engine_find(kind);
    struct engine_memory m = {0};
    struct entries *es = calloc(1, sizeof *es);
    if (!es)
        return err_nomem(err);
    unsigned starts = 0;
    while (k && log.ptr) {
        struct engine_buffer b = {0};
        bool found = engine_memory_line(&m, k, str_split(&log, '\n'), &b);
        if (m.starts != starts)
            es->n = es->lost = 0;
        starts = m.starts;
        if (found && !b.measuring)
            take_entry(es, &b);
    }
    struct measure_seen *s = ret;
    bool any = es->n > 0;
    if (any) {
        *s = (struct measure_seen){.n_lost = es->lost, .n_ctx = m.target.n_ctx, .n_ctx_seq = m.target.n_ctx_seq, .n_ubatch = m.target.n_ubatch, .n_batch = m.target.n_batch, .slots = m.target.n_seq_max};
        for (size_t i = 0; i < es->n; i++)
            take_row(s, &es->list[i], in);
    }
    free(es);
    if (any)
        return 0;
    if (!k || strcmp(kind, "llama.cpp") != 0)
        return err_set(err, -ENODATA, "engine '%s' does not tell its buffers in its log", kind);
    return err_set(err, -ENODATA, "the log tells no buffer: llama.cpp prints them with -lv 4, and only after it has loaded");
}

/* ---- against a prediction --------------------------------------------------------------------------------------------------------------- */

const char *measure_verdict_text(enum measure_verdict v)
{
    static const char *const texts[] = {[MEASURE_EXACT] = "exact", [MEASURE_WITHIN] = "within", [MEASURE_OFF] = "off"};
    return texts[v];
}

/* Terms that stand in a log. What the engine never says, or says in other words, cannot be compared. */
static bool logged_term(enum fit_term t)
{
    switch (t) {
    case FIT_PROJECTOR:
    case FIT_PROMPT_CACHE:
    case FIT_CHECKPOINTS:
    case FIT_TABLES:
    case FIT_EXTRA:
        return false;
    default:
        return true;
    }
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static void judge(struct measure_difference *d)
{
    uint64_t low = d->low > d->tolerance ? d->low - d->tolerance : 0;
    if (distance(d->predicted, d->logged) <= d->tolerance)
        d->verdict = MEASURE_EXACT;
    else
        d->verdict = d->logged >= low && d->logged <= d->high + d->tolerance ? MEASURE_WITHIN : MEASURE_OFF;
}

static const struct measure_seen_row *row_of(const struct measure_seen *s, int device, enum fit_term t, bool mapped)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->rows[i].device == device && s->rows[i].term == t && s->rows[i].mapped == mapped)
            return &s->rows[i];
    return NULL;
}

static void add_difference(struct measure_comparison *c, struct measure_difference d, const struct measure_seen_row *row)
{
    d.logged = row ? row->bytes : 0;
    d.tolerance = row ? row->tolerance : 0;
    if (d.predicted == 0 && d.high == 0 && d.logged == 0)
        return;
    judge(&d);
    c->n_off += d.verdict == MEASURE_OFF;
    c->rows[c->n++] = d;
}

static void compare_device(const struct fit_input *in, const struct fit_result *r, const struct measure_seen *seen, size_t d, struct measure_comparison *c)
{
    const struct fit_use *use = &r->use[d];
    const char *name = d < in->n_devices ? in->devices[d].name : "host";
    for (int t = 0; t < FIT_TERMS; t++) {
        const struct fit_amount *a = &use->terms[t];
        if (!logged_term((enum fit_term)t))
            continue;
        struct measure_difference diff = {.device = (int)d, .name = name, .term = (enum fit_term)t, .predicted = a->bytes, .low = a->low, .high = a->high, .known = a->known};
        add_difference(c, diff, row_of(seen, (int)d, (enum fit_term)t, false));
    }
    if (d < in->n_devices)
        return;
    /* weights in the page cache: no allocation, but a term that can be off */
    struct measure_seen_row both = {.mapped = true};
    for (int t = FIT_WEIGHTS; t <= FIT_DRAFT_WEIGHTS; t++) {
        const struct measure_seen_row *row = row_of(seen, (int)d, (enum fit_term)t, true);
        if (row) {
            both.bytes += row->bytes;
            both.tolerance += row->tolerance;
        }
    }
    struct measure_difference diff = {.device = (int)d, .name = "page cache", .term = FIT_WEIGHTS, .predicted = use->mapped_bytes, .low = use->mapped_bytes, .high = use->mapped_bytes, .known = FIT_EXACT};
    if (both.bytes || use->mapped_bytes)
        add_difference(c, diff, &both);
}

static int compare_shape(const struct fit_result *r, const struct measure_seen *seen, struct arena *a, struct measure_comparison *c, struct err *err)
{
    const struct {
        const char *name;
        uint32_t logged, predicted;
    } facts[] = {{"n_ctx", seen->n_ctx, r->n_ctx}, {"n_ctx_seq", seen->n_ctx_seq, r->n_ctx_seq}, {"n_batch", seen->n_batch, r->n_batch}, {"n_ubatch", seen->n_ubatch, r->n_ubatch}};
    base_autobuf struct buf b = BUF_INIT(512);
    for (size_t i = 0; i < BASE_COUNT(facts); i++)
        if (facts[i].logged && facts[i].logged != facts[i].predicted)
            buf_addf(&b, "%s%s %u, predicted %u", b.len ? "; " : "", facts[i].name, (unsigned)facts[i].logged, (unsigned)facts[i].predicted);
    if (b.len == 0)
        return buf_status(&b) < 0 ? err_nomem(err) : 0;
    c->shape = arena_dup(a, buf_str(&b));
    return c->shape ? 0 : err_nomem(err);
}

int measure_compare_log(const struct fit_input *in, const struct fit_result *r, const struct measure_seen *seen, struct arena *a, struct measure_comparison *ret, struct err *err)
{
    struct measure_comparison c = {0};
    c.rows = arena_alloc(a, (in->n_devices + 1) * (FIT_TERMS + 1) + seen->n, sizeof *c.rows);
    if (!c.rows)
        return err_nomem(err);
    for (size_t d = 0; d <= in->n_devices; d++)
        compare_device(in, r, seen, d, &c);
    for (size_t i = 0; i < seen->n; i++)
        if (seen->rows[i].device < 0) {
            const char *name = arena_dup(a, str_of(seen->rows[i].name));
            if (!name)
                return err_nomem(err);
            add_difference(&c, (struct measure_difference){.device = -1, .name = name, .term = seen->rows[i].term, .known = FIT_EXACT}, &seen->rows[i]);
        }
    for (size_t i = 0; i < c.n; i++)
        if (c.rows[i].verdict == MEASURE_OFF && (!c.worst || distance(c.rows[i].predicted, c.rows[i].logged) > distance(c.worst->predicted, c.worst->logged)))
            c.worst = &c.rows[i];
    int code = compare_shape(r, seen, a, &c, err);
    if (code == 0)
        *ret = c;
    return code;
}
