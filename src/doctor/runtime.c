/* SPDX-License-Identifier: MIT
 *
 * ROCm's libraries for matrices bring files for each kind of card. A runtime that has the library, and no files for the card, starts, loads a model, and ends at its first product.
 */
#include "doctor_int.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

struct look {
    const char *gfx;
    bool rocblas, rocblas_files, hipblaslt, hipblaslt_files; /* library; files for the card */
};

/* "gfx1100" as a word of its own: "gfx110" is another card. */
static bool names(struct str file, const char *gfx)
{
    size_t n = strlen(gfx);
    for (struct str rest = file;;) {
        ptrdiff_t at = str_find(rest, str_of(gfx));
        if (at < 0)
            return false;
        rest = (struct str){rest.ptr + at + n, rest.len - (size_t)at - n};
        if (rest.len == 0 || !isalnum((unsigned char)rest.ptr[0]))
            return true;
    }
}

static int visit(void *ctx, const struct os_entry *e, struct err *err)
{
    struct look *l = ctx;
    struct str path = str_of(e->path), name = str_of(e->name);
    (void)err;
    l->rocblas = l->rocblas || str_starts(name, STR("librocblas.so"));
    l->hipblaslt = l->hipblaslt || str_starts(name, STR("libhipblaslt.so"));
    if (str_find(path, STR("rocblas/")) >= 0 && names(name, l->gfx))
        l->rocblas_files = true;
    if (str_find(path, STR("hipblaslt/")) >= 0 && (names(name, l->gfx) || str_find(path, str_of(l->gfx)) >= 0))
        l->hipblaslt_files = true;
    return 0;
}

static void look_into(const char *path, struct look *l)
{
    os_autoclose int fd = os_open_dir(path, NULL);
    if (fd >= 0)
        base_ignore(os_walk(fd, visit, l, NULL)); /* what cannot be read is not there for the engine either */
}

/* "11.0.0" in a service's environment: the card is taken for another one. */
static bool taken_for(const struct fleet_service *s, char out[16])
{
    static const char name[] = "HSA_OVERRIDE_GFX_VERSION=";
    for (size_t i = 0; i < s->n_env; i++) {
        uint64_t v[3] = {0};
        if (strncmp(s->env[i], name, sizeof name - 1) != 0)
            continue;
        struct str rest = str_of(s->env[i] + sizeof name - 1);
        for (size_t k = 0; k < BASE_COUNT(v); k++)
            if (str_to_u64(str_split(&rest, '.'), &v[k]) < 0 || v[k] > 99)
                return false;
        snprintf(out, 16, "gfx%u%x%x", (unsigned)v[0], (unsigned)v[1], (unsigned)v[2]);
        return true;
    }
    return false;
}

static void judge_one(struct doctor *d, const struct fleet_runtime *rt, const struct store_runtime *r, const char *gfx)
{
    static const char *const usual[] = {"/opt/rocm", "/usr/lib/x86_64-linux-gnu/rocblas", "/usr/lib/x86_64-linux-gnu/hipblaslt"};
    struct look l = {.gfx = gfx};
    if (strcmp(r->root, "/") != 0)
        look_into(r->root, &l);
    for (size_t i = 0; strcmp(r->root, "/") == 0 && i < BASE_COUNT(usual); i++)
        look_into(usual[i], &l);
    if (l.rocblas && !l.rocblas_files)
        doctor_say(d, DOCTOR_BAD, "runtime", rt->name, "engines end at their first matrix product ('Cannot read TensileLibrary.dat')", "a build for this card, or a runtime with Vulkan", "its rocBLAS has no files for %s", gfx);
    else if (l.rocblas)
        doctor_say(d, DOCTOR_OK, "runtime", rt->name, "", "", "rocBLAS has its files for %s", gfx);
    if (l.hipblaslt && !l.hipblaslt_files)
        doctor_say(d, DOCTOR_WARN, "runtime", rt->name, "engines fall back to rocBLAS, which is slower at long prompts; vLLM may end", "a build for this card", "its hipBLASLt has no files for %s", gfx);
}

static bool judged_before(const struct doctor *d, size_t service)
{
    for (size_t i = 0; i < service; i++)
        if (d->o->fleet->services[i].host == d->o->host && d->o->fleet->services[i].runtime == d->o->fleet->services[service].runtime)
            return true;
    return false;
}

void runtime_judge(struct doctor *d)
{
    for (size_t i = 0; d->o->store && d->o->fleet && i < d->o->fleet->n_services; i++) {
        const struct fleet_service *s = &d->o->fleet->services[i];
        struct store_runtime r = {0};
        char other[16];
        if (s->host != d->o->host || s->runtime->source == FLEET_SOURCE_OCI || judged_before(d, i) || store_runtime_find(d->o->store, s->runtime, &r, NULL) < 0)
            continue;
        bool overridden = taken_for(s, other);
        for (size_t k = 0; k < d->r->hw.n_devices; k++) {
            bool again = false;
            for (size_t before = 0; before < k; before++)
                again = again || overridden || strcmp(d->r->cards[before].gfx, d->r->cards[k].gfx) == 0;
            if (*d->r->cards[k].gfx && !again)
                judge_one(d, s->runtime, &r, overridden ? other : d->r->cards[k].gfx);
        }
        store_runtime_release(&r);
    }
}
