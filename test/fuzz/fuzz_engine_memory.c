/* SPDX-License-Identifier: MIT
 *
 * Fuzzer: what an engine's log tells of memory. A buffer's name lies inside its line, no size can wrap a sum, and counts never run backwards within a start.
 */
#include <engine/engine.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct fleet_options known = engine_fleet_options();
    for (size_t i = 0; i < known.n_engines; i++) {
        const struct engine_kind *k = engine_find(known.engines[i]);
        struct engine_memory m = {0};
        struct str rest = {(const char *)data, size};
        while (rest.ptr) {
            struct str line = str_split(&rest, '\n');
            struct engine_buffer b = {0};
            unsigned starts = m.starts;
            bool found = engine_memory_line(&m, k, line, &b);
            if (m.starts < starts || m.starts > starts + 1)
                abort();
            if (!found)
                continue;
            if (b.name.len == 0 || b.name.ptr < line.ptr || b.name.ptr + b.name.len > line.ptr + line.len)
                abort();
            if (b.bytes > (uint64_t)1 << 61 || b.tolerance_bytes == 0 || b.kind > ENGINE_BUFFER_PROJECTOR_COMPUTE)
                abort();
        }
    }
    return 0;
}
