/* SPDX-License-Identifier: MIT
 *
 * Shapes known to be bad: recorded because they failed for a reason that no arithmetic shows. One is met again by every shape that is equal in the parts that were named; layers are compared by where they come to lie, so that the
 * same placement in other shares is the same.
 */
#include "solve_int.h"

static bool differs(const struct fit_prepared *p, const struct fit_shape *a, const struct fit_shape *b, unsigned parts)
{
    uint32_t trained = p->in.target->context_trained;
    uint32_t context_a = a->context ? a->context : trained, context_b = b->context ? b->context : trained;
    return ((parts & FIT_PART_CONTEXT) && context_a != context_b) || ((parts & FIT_PART_SLOTS) && a->slots != b->slots) || ((parts & FIT_PART_UBATCH) && a->ubatch != b->ubatch) ||
           ((parts & FIT_PART_BATCH) && a->batch != b->batch) || ((parts & FIT_PART_KV) && (a->k_type != b->k_type || a->v_type != b->v_type)) || ((parts & FIT_PART_SPEC) && a->spec != b->spec);
}

static bool same_layers(const struct fit_prepared *p, const struct fit_shape *bad, const struct fit_shape *s, const struct fit_result *r, struct fit_result *room)
{
    /* what cannot even be predicted is equal to nothing that was */
    if (bad->cpu_moe != s->cpu_moe || fit_predict_prepared(p, bad, NULL, room, NULL) < 0)
        return false;
    return memcmp(room->layer_device, r->layer_device, r->n_slots_placed * sizeof(r->layer_device[0])) == 0;
}

const struct fit_bad *fit_known_bad(const struct fit_prepared *p, const struct fit_bad *list, size_t n, const struct fit_shape *s, const struct fit_result *r, struct fit_result *room)
{
    for (size_t i = 0; i < n; i++) {
        const struct fit_bad *b = &list[i];
        unsigned parts = b->parts ? b->parts : ~0U;
        if (!b->shape || differs(p, b->shape, s, parts))
            continue;
        if (!(parts & FIT_PART_LAYERS) || same_layers(p, b->shape, s, r, room))
            return b;
    }
    return NULL;
}
