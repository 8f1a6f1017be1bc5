/* SPDX-License-Identifier: MIT
 *
 * solve: the solver beside its brute-force twin, on models of real size that are made in memory. For perf/solve. Prints a line for each case: name, shapes that the twin tried, points of the front, then least and median
 * milliseconds of the solver, milliseconds of the twin, and "same" or "differs". Exit 1 when a front differs.
 *
 *   solve [RUNS]
 */
#include "../unit/solve_twin.h"

#include <time.h>

#define RUNS_MAX 100

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static bool same(const struct twin *t, const struct fit_choice *c, size_t n)
{
    if (n != (t->n_front < FIT_FRONT_MAX ? t->n_front : FIT_FRONT_MAX))
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct twin_point p = twin_point_of(t->in, &c[i * t->n], t->n);
        bool found = false;
        for (size_t k = 0; k < t->n_front && !found; k++)
            found = twin_equal(&t->front[k], &p, t->n);
        if (!found)
            return false;
    }
    return true;
}

static bool one_case(const char *name, const struct fit_input *in, const struct fit_space *f, size_t runs)
{
    double ms[RUNS_MAX], twin_ms;
    struct twin t = {.in = in, .space = f, .n = 1};
    struct fit_choice *c = NULL;
    struct arena *a = NULL;
    struct err err = {0};
    size_t n = 0;

    for (size_t i = 0; i < runs; i++) {
        (void)arena_free(a);
        a = arena_new(64U << 20);
        const double from = now_ms();
        if (!a || fit_solve(in, 1, f, a, &c, &n, &err) < 0)
            maker_die(name, err.text);
        ms[i] = now_ms() - from;
    }
    qsort(ms, runs, sizeof(ms[0]), by_value);
    const double from = now_ms();
    twin_run(&t);
    twin_ms = now_ms() - from;
    const bool ok = same(&t, c, n);
    printf("%s\t%zu\t%zu\t%.2f\t%.2f\t%.0f\t%s\n", name, t.tried, n, ms[0], ms[runs / 2], twin_ms, ok ? "same" : "differs");
    (void)fflush(stdout);
    twin_release(&t);
    (void)arena_free(a);
    return ok;
}

int main(int argc, char **argv)
{
    uint64_t runs = 9;
    bool ok = true;

    if (argc > 2 || (argc == 2 && (str_to_u64(str_of(argv[1]), &runs) < 0 || runs == 0 || runs > RUNS_MAX))) {
        fprintf(stderr, "usage: solve [RUNS]\n");
        return 2;
    }
    struct fit_device devices[2];
    struct fit_host host = {.total_bytes = 246 * GIB, .free_bytes = 240 * GIB, .floor_bytes = 2 * GIB, .bandwidth_bytes_s = 256000000000};
    for (size_t d = 0; d < 2; d++)
        devices[d] = (struct fit_device){.name = d ? "ROCm1" : "ROCm0", .backend = FIT_HIP, .total_bytes = 32624 * MIB, .free_bytes = 32624 * MIB, .floor_bytes = GIB, .bandwidth_bytes_s = 640000000000,
                                         .link_bytes_s = 31500000000};
    struct model *m = model_27b(), *drafter = model_dflash2(), *moe = model_moe(48, 640, S_Q8_0);
    struct fit_shape s;
    fit_shape_default(&s);
    s.context = 262144;
    s.spec = FIT_SPEC_DFLASH;
    s.draft_max = 7;
    struct fit_input in = {.target = m, .drafter = drafter, .shape = &s, .devices = devices, .n_devices = 2, .host = &host, .engine_version = "0.7.0"};
    struct fit_space f = {.split = true, .contexts = {131072, 196608, 262144, 393216, 524288}, .n_contexts = 5, .slots = {1, 2, 4}, .n_slots = 3};

    ok &= one_case("27B, two cards", &in, &f, runs);
    f.drafter_off = true;
    f.ubatches[0] = 512;
    f.ubatches[1] = 256;
    f.n_ubatches = 2;
    f.kv[0] = gguf_type_get(S_F16);
    f.kv[1] = gguf_type_get(S_Q8_0);
    f.n_kv = 2;
    ok &= one_case("27B, two cards, every knob", &in, &f, runs);

    s.spec = 0;
    in.target = moe;
    in.drafter = NULL;
    f = (struct fit_space){.split = true, .cpu_moe = true, .contexts = {65536, 262144}, .n_contexts = 2, .slots = {1, 2}, .n_slots = 2};
    ok &= one_case("512 experts, two cards", &in, &f, runs);
    (void)model_free(m);
    (void)model_free(drafter);
    (void)model_free(moe);
    return ok ? 0 : 1;
}
