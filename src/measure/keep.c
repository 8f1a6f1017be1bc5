/* SPDX-License-Identifier: MIT
 *
 * Measurements as rows of the ledger and back. Values are named by device, "d0.a", "host.used", so that a person can read them; a row of another number of devices is none of ours.
 */
#include "measure_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COEF_FIELDS 9
#define MORE 8

static const char *const coef_names[COEF_FIELDS] = {"a", "b", "c", "d", "ub-min", "ub-max", "kv-min", "kv-max", "error"};

static void coef_fields(const struct fit_coef *k, double ret[COEF_FIELDS])
{
    const double v[COEF_FIELDS] = {k->a, k->b, k->c, k->d, k->ub_min, k->ub_max, k->kv_min, k->kv_max, k->worst_error};
    memcpy(ret, v, sizeof v);
}

/* Names of values, made as they are needed and freed together. */
struct values {
    struct arena *a;
    struct ledger_value *v;
    size_t n, cap;
    bool failed;
};

static void put(struct values *v, const char *name, double number)
{
    if (v->failed || !v->v || v->n == v->cap) {
        v->failed = true;
        return;
    }
    const char *kept = arena_dup(v->a, str_of(name));
    v->failed = !kept;
    v->v[v->n++] = (struct ledger_value){.name = kept, .number = number};
}

static void put_of(struct values *v, size_t d, size_t n_devices, const char *name, double number)
{
    char full[MEASURE_NAME];
    put(v, measure_name(d, n_devices, name, full), number);
}

static int begin(struct values *v, size_t cap, struct err *err)
{
    *v = (struct values){.a = arena_new((size_t)1 << 20), .cap = cap};
    v->v = v->a ? arena_alloc(v->a, cap, sizeof *v->v) : NULL;
    if (v->v)
        return 0;
    v->a = arena_free(v->a);
    return err_nomem(err);
}

static int finish(struct values *v, struct ledger *l, struct ledger_row *row, struct err *err)
{
    row->values = v->v;
    row->n_values = v->n;
    int r = v->failed ? err_nomem(err) : ledger_add(l, row, NULL, err);
    arena_free(v->a);
    return r;
}

/* ---- coefficients --------------------------------------------------------------------------------------------------------------------- */

static void put_coef(struct values *v, size_t d, size_t n_devices, const char *prefix, const struct fit_coef *k)
{
    double fields[COEF_FIELDS];
    char name[32];
    coef_fields(k, fields);
    for (size_t i = 0; i < COEF_FIELDS; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, coef_names[i]);
        put_of(v, d, n_devices, name, fields[i]);
    }
}

int measure_keep_compute(const struct measure_lab *lab, const struct measure_key *key, const struct fit_input *in, const char *family, const struct measure_compute *c, struct err *err)
{
    const struct clk *clk = lab->clk ? lab->clk : &clk_system;
    base_autobuf struct buf hardware = BUF_INIT(MEASURE_HARDWARE_MAX);
    struct values v = {0};
    int r = c->emulated ? 0 : measure_hardware(key, in, &hardware, err);
    if (c->emulated)
        buf_add_c(&hardware, MEASURE_EMULATED);
    if (r == 0 && buf_status(&hardware) < 0)
        r = err_nomem(err);
    if (r == 0)
        r = begin(&v, c->n * COEF_FIELDS * 2 + MORE, err);
    if (r < 0)
        return r;
    put(&v, "devices", (double)in->n_devices);
    put(&v, "runs", (double)c->n_points);
    put(&v, "worst-error", c->worst_error);
    put(&v, "draft", c->has_draft);
    for (size_t d = 0; d < c->n; d++) {
        put_coef(&v, d, in->n_devices, "", &c->compute[d]);
        if (c->has_draft)
            put_coef(&v, d, in->n_devices, "draft-", &c->draft_compute[d]);
    }
    struct ledger_row row = {.at_us = clk->real_us(clk->ctx), .kind = MEASURE_KIND_COMPUTE, .service = key->service, .build = key->build, .model = key->model, .shape = family,
                             .hardware = hardware.ptr ? hardware.ptr : "", .tag = LEDGER_HOLLOW};
    return finish(&v, lab->ledger, &row, err);
}

static uint32_t whole(double v)
{
    return v >= 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static struct fit_coef read_coef(const struct ledger_row *row, size_t d, size_t n_devices, const char *prefix)
{
    double f[COEF_FIELDS] = {0};
    char name[32], full[MEASURE_NAME];
    for (size_t i = 0; i < COEF_FIELDS; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, coef_names[i]);
        f[i] = ledger_number(row, measure_name(d, n_devices, name, full), 0);
    }
    return (struct fit_coef){.a = f[0], .b = f[1], .c = f[2], .d = f[3], .ub_min = whole(f[4]), .ub_max = whole(f[5]), .kv_min = whole(f[6]), .kv_max = whole(f[7]), .worst_error = f[8] >= 0 && f[8] <= 1 ? f[8] : 1};
}

static bool of_devices(const struct ledger_row *row, size_t n_devices)
{
    return n_devices <= FIT_DEVICES_MAX && ledger_number(row, "devices", -1) == (double)n_devices;
}

bool measure_read_compute(const struct ledger_row *row, size_t n_devices, struct measure_compute *ret)
{
    if (!of_devices(row, n_devices))
        return false;
    *ret = (struct measure_compute){.n = n_devices + 1, .emulated = strcmp(row->hardware, MEASURE_EMULATED) == 0, .has_draft = ledger_number(row, "draft", 0) > 0, .worst_error = ledger_number(row, "worst-error", 1)};
    for (size_t d = 0; d <= n_devices; d++) {
        ret->compute[d] = read_coef(row, d, n_devices, "");
        if (ret->has_draft)
            ret->draft_compute[d] = read_coef(row, d, n_devices, "draft-");
    }
    return true;
}

/* ---- observations ------------------------------------------------------------------------------------------------------------------------ */

int measure_keep_observed(struct ledger *l, const struct measure_key *key, const struct fit_input *in, const char *family, const struct measure_kept *k, enum ledger_tag tag, uint64_t at_us, struct err *err)
{
    base_autobuf struct buf hardware = BUF_INIT(MEASURE_HARDWARE_MAX);
    struct values v = {0};
    size_t n = in->n_devices;
    int r = measure_hardware(key, in, &hardware, err);
    if (r == 0)
        r = begin(&v, (n + 1) * 4 + MORE, err);
    if (r < 0)
        return r;
    put(&v, "devices", (double)n);
    put(&v, "ubatch", k->ubatch);
    put(&v, "n-kv", k->n_kv);
    put(&v, "outputs", k->outputs);
    put(&v, "compute-seen", k->compute_seen);
    put(&v, "draft-seen", k->draft_seen);
    for (size_t d = 0; d <= n; d++) {
        if (k->used[d] >= 0)
            put_of(&v, d, n, "used", k->used[d]);
        put_of(&v, d, n, "rest", k->rest[d]);
        put_of(&v, d, n, "compute", k->compute[d]);
        put_of(&v, d, n, "draft-compute", k->draft_compute[d]);
    }
    struct ledger_row row = {.at_us = at_us, .kind = MEASURE_KIND_OBSERVED, .service = key->service, .build = key->build, .model = key->model, .shape = family, .hardware = hardware.ptr ? hardware.ptr : "", .tag = tag};
    return finish(&v, l, &row, err);
}

bool measure_read_observed(const struct ledger_row *row, size_t n_devices, struct measure_kept *ret)
{
    char full[MEASURE_NAME];
    if (!of_devices(row, n_devices))
        return false;
    *ret = (struct measure_kept){.ubatch = whole(ledger_number(row, "ubatch", 0)), .n_kv = whole(ledger_number(row, "n-kv", 0)), .outputs = whole(ledger_number(row, "outputs", 0)),
                                 .compute_seen = ledger_number(row, "compute-seen", 0) > 0, .draft_seen = ledger_number(row, "draft-seen", 0) > 0};
    for (size_t d = 0; d <= n_devices; d++) {
        ret->used[d] = ledger_number(row, measure_name(d, n_devices, "used", full), -1);
        ret->rest[d] = ledger_number(row, measure_name(d, n_devices, "rest", full), 0);
        ret->compute[d] = ledger_number(row, measure_name(d, n_devices, "compute", full), 0);
        ret->draft_compute[d] = ledger_number(row, measure_name(d, n_devices, "draft-compute", full), 0);
    }
    return true;
}
