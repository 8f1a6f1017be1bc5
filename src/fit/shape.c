/* SPDX-License-Identifier: MIT
 *
 * A shape from a declaration.
 */
#include "fit_int.h"

void fit_shape_default(struct fit_shape *s)
{
    const struct gguf_type *f16 = gguf_type_get(1);
    *s = (struct fit_shape){.slots = 1, .batch = 2048, .ubatch = 512, .gpu_layers = UINT32_MAX, .k_type = f16, .v_type = f16, .draft_k_type = f16, .draft_v_type = f16,
                            .draft_gpu_layers = UINT32_MAX, .prompt_cache_bytes = 512ULL << 20, .checkpoints = 8, .projector_device = -1};
}
