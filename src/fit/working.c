/* SPDX-License-Identifier: MIT
 *
 * The working set of conversations. A replica keeps what it served in its KV pool, and what runs draws on the same pool: a running sequence beside its cached prefix. When the fullest replica's families and what runs there do not go
 * into its pool, no way of placing conversations helps; some prefix is computed again at every turn.
 */
#include "fit_int.h"

#include <errno.h>

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b > 0);
}

static const char *words(const struct fit_families *f, const struct fit_working_set *w, struct arena *a)
{
    const char *need = FIT_COUNT(w->need_tokens), *have = FIT_COUNT(w->have_tokens);
    if (!w->wall)
        return arena_printf(a, "%u famil%s on %u replica%s: the fullest needs %s of %s KV tokens", f->families, f->families == 1 ? "y" : "ies", f->replicas, f->replicas == 1 ? "" : "s", need, have);
    if (w->replicas_needed == 0)
        return arena_printf(a, "a capacity wall that no number of replicas moves: %u running sequences of %s tokens leave no room for one family of %s in %s KV tokens", f->running,
                            FIT_COUNT(f->running_tokens), FIT_COUNT(f->family_tokens), have);
    return arena_printf(a, "a capacity wall, not a matter of placement: the fullest of %u replicas needs %s of %s KV tokens for %u families and what runs, %s too many; %u of %u families stay cached, %u replicas would keep all",
                        f->replicas, need, have, w->families_per_replica, FIT_COUNT(w->short_tokens), w->kept_families, f->families, w->replicas_needed);
}

int fit_working_set(const struct fit_families *f, struct arena *a, struct fit_working_set *ret, struct err *err)
{
    if (f->replicas == 0)
        return err_set(err, -EINVAL, "working set: no replica");
    if (f->replica_tokens == 0)
        return err_set(err, -EINVAL, "working set: the KV tokens of a replica are not known");
    struct fit_working_set w = {.have_tokens = f->replica_tokens};
    w.families_per_replica = (uint32_t)divide_up(f->families, f->replicas);
    uint64_t runs = fit_mul(f->running, f->running_tokens);
    w.need_tokens = fit_add(fit_mul(w.families_per_replica, f->family_tokens), runs);
    w.wall = w.need_tokens > w.have_tokens;
    w.short_tokens = w.wall ? w.need_tokens - w.have_tokens : 0;
    uint64_t room = w.have_tokens > runs ? w.have_tokens - runs : 0;
    uint64_t each = f->family_tokens == 0 ? f->families : room / f->family_tokens;
    if (runs > w.have_tokens)
        each = 0;
    uint64_t all = fit_mul(each, f->replicas);
    w.kept_families = all < f->families ? (uint32_t)all : f->families;
    uint64_t needed = f->families == 0 ? 1 : each == 0 ? 0 : divide_up(f->families, each);
    w.replicas_needed = runs > w.have_tokens ? 0 : (uint32_t)needed;
    w.text = words(f, &w, a);
    if (!w.text)
        return err_nomem(err);
    *ret = w;
    return 0;
}
