/* SPDX-License-Identifier: MIT
 *
 * A set holds, for each family of its table, a list of series in order of making, and one hash table over all of them. Label
 * values may come from clients; the number of series and the length of values are bounded, so neither memory nor the longest
 * chain of a bucket can grow without end.
 *
 * Series are only ever added: a new one is complete before it is linked, at the head of its bucket and at the end of its family, so that readers need no lock. A text may show a histogram between two of its
 * numbers; its count is therefore summed from its buckets.
 *
 * The text is the Prometheus exposition format 0.0.4. A scraper refuses a whole page for one byte that is not UTF-8, so such
 * bytes in a label value are shown as '?'.
 */
#include <metrics/metrics.h>

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

struct metrics_series {
    const struct metrics_desc *desc;
    struct metrics_series *_Atomic next; /* of the family */
    struct metrics_series *collision;    /* of the bucket */
    uint32_t hash;
    _Atomic uint64_t count;   /* counter's value */
    _Atomic double value;     /* gauge's value; histogram's sum */
    _Atomic uint64_t *buckets;               /* histogram: observations at most bounds[i], not cumulative */
    const char *values[METRICS_LABELS_MAX];  /* into the same block of memory */
};

struct family {
    struct metrics_series *_Atomic first;
    struct metrics_series *last;
};

struct bucket {
    struct metrics_series *_Atomic first;
};

struct metrics {
    const struct metrics_desc *descs;
    size_t n, n_series, series_max;
    pthread_mutex_t making; /* held while a series is added */
    uint32_t mask;
    struct bucket *table;
    struct family families[];
};

static size_t n_labels(const struct metrics_desc *d)
{
    size_t n = 0;
    while (n < METRICS_LABELS_MAX && d->labels[n])
        n++;
    return n;
}

struct metrics *metrics_new(const struct metrics_desc *descs, size_t n, size_t series_max)
{
    uint32_t size = 16;
    while (size < series_max && size < UINT32_C(1) << 20)
        size *= 2;
    struct metrics *m = calloc(1, sizeof *m + n * sizeof m->families[0]);
    struct bucket *table = calloc(size, sizeof *table);
    if (!m || !table) {
        free(m);
        free(table);
        return NULL;
    }
    *m = (struct metrics){.descs = descs, .n = n, .series_max = series_max, .mask = size - 1, .table = table};
    (void)pthread_mutex_init(&m->making, NULL); /* cannot fail without attributes */
    return m;
}

struct metrics *metrics_free(struct metrics *m)
{
    if (!m)
        return NULL;
    for (size_t i = 0; i < m->n; i++)
        for (struct metrics_series *s = m->families[i].first, *next; s; s = next) {
            next = s->next;
            free(s);
        }
    free(m->table);
    (void)pthread_mutex_destroy(&m->making);
    free(m);
    return NULL;
}

/* FNV-1a over the family and its values. */
static uint32_t hash_of(size_t index, const char *const *values, size_t n)
{
    uint32_t h = UINT32_C(2166136261) ^ (uint32_t)index;
    for (size_t i = 0; i < n; i++)
        for (const char *c = values[i];; c++) {
            h = (h ^ (unsigned char)*c) * UINT32_C(16777619);
            if (!*c)
                break;
        }
    return h;
}

static bool same(const struct metrics_series *s, const struct metrics_desc *d, const char *const *values, size_t n)
{
    if (s->desc != d)
        return false;
    for (size_t i = 0; i < n; i++)
        if (strcmp(s->values[i], values[i]) != 0)
            return false;
    return true;
}

/* One block: the series, its buckets, its values. */
static struct metrics_series *make(const struct metrics_desc *d, const char *const *values, size_t n)
{
    size_t n_buckets = d->type == METRICS_HISTOGRAM ? d->n_bounds + 1 : 0, bytes = 0, lens[METRICS_LABELS_MAX];
    for (size_t i = 0; i < n; i++) {
        lens[i] = strlen(values[i]);
        if (lens[i] > METRICS_VALUE_MAX)
            return NULL;
        bytes += lens[i] + 1;
    }
    struct metrics_series *s = calloc(1, sizeof *s + n_buckets * sizeof *s->buckets + bytes);
    if (!s)
        return NULL;
    s->desc = d;
    s->buckets = (_Atomic uint64_t *)(s + 1);
    char *to = (char *)(s->buckets + n_buckets);
    for (size_t i = 0; i < n; i++) {
        s->values[i] = memcpy(to, values[i], lens[i] + 1);
        to += lens[i] + 1;
    }
    return s;
}

static struct metrics_series *find(struct metrics *m, const struct metrics_desc *d, uint32_t h, const char *const *values, size_t n)
{
    struct metrics_series *s = atomic_load_explicit(&m->table[h & m->mask].first, memory_order_acquire);
    while (s && (s->hash != h || !same(s, d, values, n)))
        s = s->collision;
    return s;
}

static void add(struct metrics *m, size_t index, struct metrics_series *s)
{
    struct bucket *bucket = &m->table[s->hash & m->mask];
    struct family *f = &m->families[index];
    m->n_series++;
    s->collision = atomic_load_explicit(&bucket->first, memory_order_relaxed);
    atomic_store_explicit(&bucket->first, s, memory_order_release);
    atomic_store_explicit(f->last ? &f->last->next : &f->first, s, memory_order_release);
    f->last = s;
}

struct metrics_series *metrics_get(struct metrics *m, size_t index, const char *const *values)
{
    assert(index < m->n);
    const struct metrics_desc *d = &m->descs[index];
    size_t n = n_labels(d);
    uint32_t h = hash_of(index, values, n);
    struct metrics_series *s = find(m, d, h, values, n);
    if (s)
        return s;
    (void)pthread_mutex_lock(&m->making);
    s = find(m, d, h, values, n); /* another thread may have been faster */
    if (!s && m->n_series < m->series_max && (s = make(d, values, n))) {
        s->hash = h;
        add(m, index, s);
    }
    (void)pthread_mutex_unlock(&m->making);
    return s;
}

void metrics_add(struct metrics_series *s, uint64_t n)
{
    if (!s)
        return;
    assert(s->desc->type == METRICS_COUNTER);
    atomic_fetch_add_explicit(&s->count, n, memory_order_relaxed);
}

void metrics_set(struct metrics_series *s, double v)
{
    if (!s)
        return;
    assert(s->desc->type == METRICS_GAUGE);
    atomic_store_explicit(&s->value, v, memory_order_relaxed);
}

void metrics_observe(struct metrics_series *s, double v)
{
    if (!s || isnan(v)) /* one NaN would spoil the sum for good */
        return;
    assert(s->desc->type == METRICS_HISTOGRAM);
    size_t i = 0;
    while (i < s->desc->n_bounds && v > s->desc->bounds[i])
        i++;
    atomic_fetch_add_explicit(&s->buckets[i], 1, memory_order_relaxed);
    double sum = atomic_load_explicit(&s->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&s->value, &sum, sum + v, memory_order_relaxed, memory_order_relaxed))
        continue;
}

static uint64_t observations(const struct metrics_series *s)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= s->desc->n_bounds; i++)
        n += atomic_load_explicit(&s->buckets[i], memory_order_relaxed);
    return n;
}

uint64_t metrics_count(const struct metrics_series *s)
{
    if (!s)
        return 0;
    return s->desc->type == METRICS_HISTOGRAM ? observations(s) : atomic_load_explicit(&s->count, memory_order_relaxed);
}

/* ---- exposition text ------------------------------------------------------------------------------------ */

static void add_escaped(struct buf *out, const char *text, bool quotes)
{
    bool utf8 = str_is_utf8(str_of(text));
    for (const char *c = text; *c; c++) {
        if (*c == '\\')
            buf_add(out, "\\\\", 2);
        else if (*c == '\n')
            buf_add(out, "\\n", 2);
        else if (*c == '"' && quotes)
            buf_add(out, "\\\"", 2);
        else
            buf_add_char(out, !utf8 && (unsigned char)*c >= 0x80 ? '?' : *c);
    }
}

/* The shortest of a few notations that reads back as v. */
static void add_number(struct buf *out, double v)
{
    if (isnan(v)) {
        buf_add_c(out, "NaN");
    } else if (isinf(v)) {
        buf_add_c(out, v > 0 ? "+Inf" : "-Inf");
    } else {
        char text[40];
        for (int digits = 6; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v) /* NOLINT: of our own making */
                break;
        }
        buf_add_c(out, text);
    }
}

/* Name, labels and the space before the value. le: NULL, or the upper bound of a bucket. */
static void add_name(struct buf *out, const struct metrics_desc *d, const char *suffix, const struct metrics_series *s, const double *le)
{
    buf_add_c(out, d->name);
    buf_add_c(out, suffix);
    size_t n = s ? n_labels(d) : 0;
    for (size_t i = 0; i < n; i++) {
        buf_addf(out, "%c%s=\"", i ? ',' : '{', d->labels[i]);
        add_escaped(out, s->values[i], true);
        buf_add_char(out, '"');
    }
    if (le) {
        buf_addf(out, "%cle=\"", n ? ',' : '{');
        add_number(out, *le);
        buf_add_char(out, '"');
    }
    buf_add_c(out, n || le ? "} " : " ");
}

static void add_count(struct buf *out, uint64_t n)
{
    buf_addf(out, "%llu\n", (unsigned long long)n);
}

static void add_histogram(struct buf *out, const struct metrics_desc *d, const struct metrics_series *s)
{
    uint64_t sum = 0;
    for (size_t i = 0; i <= d->n_bounds; i++) {
        sum += s ? atomic_load_explicit(&s->buckets[i], memory_order_relaxed) : 0;
        add_name(out, d, "_bucket", s, i < d->n_bounds ? &d->bounds[i] : &(double){INFINITY});
        add_count(out, sum);
    }
    add_name(out, d, "_sum", s, NULL);
    add_number(out, s ? s->value : 0);
    buf_add_char(out, '\n');
    add_name(out, d, "_count", s, NULL);
    add_count(out, sum);
}

/* s is NULL for a family without labels that nothing was counted in yet. */
static void add_series(struct buf *out, const struct metrics_desc *d, const struct metrics_series *s)
{
    switch (d->type) {
    case METRICS_COUNTER:
        add_name(out, d, "", s, NULL);
        add_count(out, metrics_count(s));
        break;
    case METRICS_GAUGE:
        add_name(out, d, "", s, NULL);
        add_number(out, s ? s->value : 0);
        buf_add_char(out, '\n');
        break;
    case METRICS_HISTOGRAM:
        add_histogram(out, d, s);
        break;
    }
}

int metrics_text(const struct metrics *m, struct buf *out)
{
    static const char *const types[] = {[METRICS_COUNTER] = "counter", [METRICS_GAUGE] = "gauge", [METRICS_HISTOGRAM] = "histogram"};
    for (size_t i = 0; i < m->n; i++) {
        const struct metrics_desc *d = &m->descs[i];
        buf_addf(out, "# HELP %s ", d->name);
        add_escaped(out, d->help, false);
        buf_addf(out, "\n# TYPE %s %s\n", d->name, types[d->type]);
        for (const struct metrics_series *s = m->families[i].first; s; s = s->next)
            add_series(out, d, s);
        if (!m->families[i].first && !n_labels(d))
            add_series(out, d, NULL);
    }
    return buf_status(out);
}
