/* SPDX-License-Identifier: MIT
 *
 * Projectors (law 7): all of a projector's tensors lie on one device, never divided. Its compute buffer is reserved by a warm-up image whose size the file's kind decides, and grows with a larger one: an estimate
 * from the tower's width and the patches of an image, until it was measured.
 */
#include "fit_int.h"

#define PATCHES 4096 /* of the image that the warm-up takes, in the tower; a quarter of it in many kinds */
#define LIVE_LOW 8   /* f32 activations of the tower's width for each patch that live at once */
#define LIVE 16
#define LIVE_HIGH 64

void fit_projector(struct fit_run *x)
{
    const struct model *m = x->p->in.projector;
    if (!m)
        return;
    size_t d = x->p->host;
    if (x->s->projector_device >= 0)
        d = (size_t)x->s->projector_device;
    else if (x->s->projector_device == -1 && x->p->in.n_devices > 0)
        d = 0;
    fit_exact(x, d, FIT_PROJECTOR, x->p->projector.bytes[x->p->classes[d]]);
    uint64_t unit = fit_mul(fit_mul(4, m->embd ? m->embd : 1024), PATCHES);
    fit_amount_add(x, d, FIT_PROJECTOR_COMPUTE,
                   (struct fit_amount){.bytes = fit_mul(unit, LIVE), .low = fit_mul(unit / 4, LIVE_LOW), .high = fit_mul(unit, LIVE_HIGH), .known = FIT_ESTIMATE});
}
