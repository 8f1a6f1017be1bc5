/* SPDX-License-Identifier: MIT
 *
 * Sliding windows (law 3.4): whether an architecture has one in this file, how wide it is, and which layers are bounded by it. A pattern in the file wins: an array is taken as it is, a scalar is the period.
 * Without one the architecture's own period holds. Layers of nextn are dense unless an array says otherwise.
 */
#include "model_int.h"

#include <errno.h>
#include <string.h>

/* The window, 0 when it is off. */
static int read_width(struct model_load *l, uint32_t *ret)
{
    const struct model_arch_row *a = l->arch;
    bool set = model_key(l, "attention.sliding_window") != NULL;
    uint32_t width = 0;
    int r;

    *ret = 0;
    if (a->swa == SWA_NEVER || (a->swa == SWA_DEFAULT_64 && l->trunk != 64))
        return 0;
    r = a->swa == SWA_REQUIRED ? model_key_need(l, "attention.sliding_window", &width) : model_key_u32(l, "attention.sliding_window", &width);
    if (r < 0)
        return r;
    switch ((enum arch_swa)a->swa) {
    case SWA_DEFAULT:
    case SWA_DEFAULT_64: width = set ? width : a->window; break;
    case SWA_FIXED: width = set && width == 0 ? 0 : a->window; break;
    case SWA_FIXED_IF_SET: width = width == 0 ? 0 : a->window; break;
    case SWA_REQUIRED:
    case SWA_IF_SET:
    case SWA_NEVER: break;
    }
    if (width == 0 && (a->swa == SWA_REQUIRED || a->swa == SWA_DEFAULT || a->swa == SWA_DEFAULT_64))
        return err_set(l->err, -EBADMSG, "key '%s.attention.sliding_window' is 0, but this architecture has a window", l->m->arch);
    *ret = width;
    return 0;
}

static void set_period(struct model_load *l, uint32_t period)
{
    bool first = l->arch->flags & F_DENSE_FIRST;

    for (uint32_t i = 0; i < l->trunk; i++)
        l->swa[i] = period == 0 || (first ? i % period != 0 : i % period < period - 1);
}

static int set_default(struct model_load *l)
{
    /* a dflash drafter built of deepseek4 blocks (it has hyper-connections) has the window on every layer and says so nowhere */
    if (l->m->role == MODEL_DRAFT_DFLASH && model_key(l, "hyper_connection.count")) {
        set_period(l, 0);
        return 0;
    }
    switch (l->arch->pattern) {
    case PATTERN_REQUIRED: return err_set(l->err, -EBADMSG, "key '%s.attention.sliding_window_pattern' is missing", l->m->arch);
    case PATTERN_ALL: set_period(l, 0); break;
    case PATTERN_ATTENTION:
        for (uint32_t i = 0; i < l->trunk; i++)
            l->swa[i] = !l->recurrent[i];
        break;
    default: set_period(l, l->arch->pattern); break;
    }
    return 0;
}

int model_read_pattern(struct model_load *l)
{
    static const char key[] = "attention.sliding_window_pattern";
    uint32_t pattern[MODEL_LAYERS_MAX] = {0};
    bool any = false;
    int r, found;

    if ((r = read_width(l, &l->m->window)) < 0 || l->m->window == 0)
        return r;
    l->m->window_chunked = l->arch->flags & F_CHUNKED;
    if ((r = model_key_blocks(l, key, true, pattern, &found)) < 0)
        return r;
    if (found == 2)
        for (uint32_t i = 0; i < l->m->n_block; i++)
            l->swa[i] = pattern[i] != 0;
    else if (found == 1)
        set_period(l, pattern[0]);
    else if ((r = set_default(l)) < 0)
        return r;
    for (uint32_t i = 0; i < l->m->n_block; i++)
        any |= l->swa[i];
    if (!any)
        return err_set(l->err, -EBADMSG, "the model has a window of %u, but '%s.%s' gives it to no layer", l->m->window, l->m->arch, key);
    return 0;
}
