/* SPDX-License-Identifier: MIT
 *
 * From points to coefficients. A compute buffer is the largest of several sets of tensors that live at once, and each set grows with ubatch and with ubatch times the cells of the cache: within one set bytes are
 * a + b ub + c ub kv, exactly. The buffer follows one set as long as no other takes over, which a held-out point shows.
 */
#include "measure_int.h"

#include <string.h>

#define PIPELINE_COPIES 4
#define TERMS 3 /* a, b, c */

/* Architectures whose layers do not begin with a norm that has weights: nothing crosses twice. Found by comparing the engine's measuring pass with its real one. */
static bool begins_otherwise(const char *arch)
{
    static const char *const names[] = {"deepseek4", "exaone4", "glm5-next", "hrm_text", "hy_v4", "k2-horizon", "kimi-k3", "minimax-01", "olmo", "olmo2", "qwen4exp", "talkie"};
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (strcmp(arch, names[i]) == 0)
            return true;
    return false;
}

/* The measuring pass takes a device's first norm for the previous device's, so that its result crosses beside its input: one activation of f32 too many in every copy. Without copies the room is used again, and nothing is
 * too much. */
uint64_t measure_excess(const struct model *m, const uint16_t *layer_device, uint32_t n_layer, bool nextn, size_t d, size_t n_devices, bool pipeline, uint32_t n_ubatch)
{
    size_t first = n_devices;
    bool here = false;
    if (!pipeline || d >= n_devices || begins_otherwise(m->arch))
        return 0;
    for (uint32_t il = 0; il < n_layer && il < m->n_layer; il++) {
        if (m->layers[il].nextn != nextn || layer_device[il] >= n_devices)
            continue;
        if (first == n_devices)
            first = layer_device[il];
        here |= layer_device[il] == d;
    }
    return here && d != first ? PIPELINE_COPIES * sizeof(float) * (uint64_t)m->embd * n_ubatch : 0;
}

double measure_coef_at(const struct fit_coef *c, uint32_t ubatch, uint32_t n_kv, uint32_t outputs)
{
    double ub = ubatch, kv = n_kv;
    return c->a + c->b * ub + c->c * ub * kv + c->d * outputs;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double size(double v)
{
    return v < 0 ? -v : v;
}

/* Solves the normal equations by elimination with the largest pivot. A term that the points do not tell apart is left out (0). */
static void eliminate(double m[TERMS][TERMS + 1], double *ret)
{
    bool used[TERMS] = {false};
    size_t row_of[TERMS];
    for (size_t c = 0; c < TERMS; c++) {
        size_t best = TERMS;
        for (size_t r = 0; r < TERMS; r++)
            if (!used[r] && (best == TERMS || size(m[r][c]) > size(m[best][c])))
                best = r;
        row_of[c] = TERMS;
        if (best == TERMS || size(m[best][c]) < 1e-9)
            continue;
        used[best] = true;
        row_of[c] = best;
        for (size_t r = 0; r < TERMS; r++) {
            double f = r == best ? 0 : m[r][c] / m[best][c];
            for (size_t k = c; k <= TERMS; k++)
                m[r][k] -= f * m[best][k];
        }
    }
    for (size_t c = 0; c < TERMS; c++)
        ret[c] = row_of[c] < TERMS ? m[row_of[c]][TERMS] / m[row_of[c]][c] : 0;
}

static double bytes_of(const struct measure_point *p, size_t device, bool draft)
{
    return (double)(draft ? p->draft_bytes[device] : p->bytes[device]);
}

double measure_fit(const struct measure_point *points, size_t n, size_t device, bool draft, struct fit_coef *ret)
{
    double m[TERMS][TERMS + 1] = {{0}}, x[TERMS], scale[TERMS] = {1, 1, 1};
    struct fit_coef c = {0};
    /* terms of one magnitude, or the elimination drowns the small ones */
    for (size_t i = 0; i < n; i++) {
        double row[TERMS] = {1, points[i].ubatch, (double)points[i].ubatch * points[i].n_kv};
        for (size_t k = 0; k < TERMS; k++)
            scale[k] = row[k] > scale[k] ? row[k] : scale[k];
    }
    for (size_t i = 0; i < n; i++) {
        const struct measure_point *p = &points[i];
        double row[TERMS] = {1, p->ubatch / scale[1], (double)p->ubatch * p->n_kv / scale[2]};
        c.ub_min = i == 0 || p->ubatch < c.ub_min ? p->ubatch : c.ub_min;
        c.ub_max = p->ubatch > c.ub_max ? p->ubatch : c.ub_max;
        c.kv_min = i == 0 || p->n_kv < c.kv_min ? p->n_kv : c.kv_min;
        c.kv_max = p->n_kv > c.kv_max ? p->n_kv : c.kv_max;
        for (size_t r = 0; r < TERMS && !p->held_out; r++) {
            for (size_t k = 0; k < TERMS; k++)
                m[r][k] += row[r] * row[k];
            m[r][TERMS] += row[r] * bytes_of(p, device, draft);
        }
    }
    eliminate(m, x);
    c.a = x[0];
    c.b = x[1] / scale[1];
    c.c = x[2] / scale[2];
    double beyond = 0;
    for (size_t i = 0; i < n; i++) {
        double truth = bytes_of(&points[i], device, draft), off = size(measure_coef_at(&c, points[i].ubatch, points[i].n_kv, points[i].outputs) - truth);
        if (truth <= 0)
            continue; /* nothing stands there, and the log's rounding makes nothing of little */
        double share = (off + MEASURE_ROUNDING) / truth;
        c.worst_error = larger(c.worst_error, share > 1 ? 1 : share);
        beyond = larger(beyond, (off - MEASURE_ROUNDING) / truth);
    }
    *ret = c;
    return beyond;
}
