/* SPDX-License-Identifier: MIT
 *
 * metrics: counters, gauges and histograms declared in one table, and their Prometheus exposition text. No I/O, no clock. Any thread may count in a set and write its text: values are
 * atomic, series are found without a lock. Making and freeing a set belong to one thread, while no other uses it.
 */
#pragma once

#include <base/base.h>

enum metrics_type { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM };

#define METRICS_LABELS_MAX 4
#define METRICS_VALUE_MAX 256 /* bytes of a label value: names of models and replicas are shorter */

/* One family. Tables are static const arrays, indexed by the user's enum. */
struct metrics_desc {
    const char *name;   /* "berth_router_requests_total": counters end in _total, durations in _seconds, sizes in _bytes */
    const char *help;   /* one sentence without a full stop */
    enum metrics_type type;
    const char *labels[METRICS_LABELS_MAX]; /* names, NULL-terminated when fewer */
    const double *bounds; /* histogram: upper bounds, ascending, without +Inf */
    size_t n_bounds;
};

struct metrics;
struct metrics_series; /* one family with one set of label values; lives as long as the set */

/* descs must outlive the set. series_max bounds the number of series over all families. */
struct metrics *metrics_new(const struct metrics_desc *descs, size_t n, size_t series_max) BASE_MUST_USE;
struct metrics *metrics_free(struct metrics *m);
/* The series of family `index` with these label values (as many as it has labels; copied), made when new. NULL when the ceiling is reached, a value is too long or memory is out;
 * every function below accepts NULL and does nothing, so that counting never fails a request. */
struct metrics_series *metrics_get(struct metrics *m, size_t index, const char *const *values);
void metrics_add(struct metrics_series *s, uint64_t n);     /* counter */
void metrics_set(struct metrics_series *s, double v);       /* gauge */
void metrics_observe(struct metrics_series *s, double v);   /* histogram */
uint64_t metrics_count(const struct metrics_series *s);     /* counter's value; histogram's number of observations */
/* All families in table order, series in order of making, as text/plain; version=0.0.4 with HELP, TYPE and escaped label values. Families without labels and series are
 * written with value 0. */
int metrics_text(const struct metrics *m, struct buf *out) BASE_MUST_USE;
