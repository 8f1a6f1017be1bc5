/* SPDX-License-Identifier: MIT
 *
 * Fuzzer: an engine's log, as lines of a start, as last words, and compared with a shape, for each kind. What is shown of a line lies inside it.
 */
#include <engine/engine.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct fleet_device device = {.name = "ROCm0", .memory_bytes = 1 << 30};
static const struct fleet_host host = {.name = "here", .devices = &device, .n_devices = 1};

static void each_line(const struct engine_kind *k, struct str log)
{
    while (log.ptr) {
        struct str line = str_split(&log, '\n'), text = {0};
        engine_line_parse(k, line, &text);
        if (text.len > line.len || (text.len > 0 && (text.ptr < line.ptr || text.ptr + text.len > line.ptr + line.len)))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = {"draft-simple", "ngram-mod"};
    struct str log = {(const char *)data, size};
    const struct fleet_options known = engine_fleet_options();
    for (size_t i = 0; i < known.n_engines; i++) {
        const struct engine_kind *k = engine_find(known.engines[i]);
        struct fleet_runtime runtime = {.name = "r", .engine = known.engines[i]};
        struct fleet_service s = {.name = "small", .host = &host, .runtime = &runtime, .port = 1, .bind = "127.0.0.1",
                                  .shape = {.split_auto = true, .slots = 1, .speculative = types, .n_speculative = 2}};
        each_line(k, log);
        if (engine_words_text(engine_words_find(k, log))[0] == '\0')
            abort();
        struct err err = {0};
        int r = engine_log_check(&s, log, &err);
        if (r < 0 && (err.code != r || err.text[0] == '\0'))
            abort();
    }
    return 0;
}
