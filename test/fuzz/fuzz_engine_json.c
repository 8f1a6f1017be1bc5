/* SPDX-License-Identifier: MIT
 *
 * Fuzzer: everything that an engine may answer to a probe, for each kind: model list, props, slots, metrics, one token. Whatever comes, an answer is
 * judged or refused; an error has its text.
 */
#include <engine/engine.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct fleet_host host = {.name = "here"};
static const struct engine_paths paths = {.weights = "/models/berth-tiny-f16.gguf", .projector = "/models/p.gguf"};

static void judged(int r, const struct err *err)
{
    if (r < 0 && (err->code != r || err->text[0] == '\0'))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = {"draft-simple"};
    struct str body = {(const char *)data, size};
    struct err err = {0};
    const struct fleet_options known = engine_fleet_options();
    judged(engine_identity_check(body, "small", &err), &err);
    judged(engine_token_check(body, &err), &err);
    uint64_t tokens = 0;
    int told = engine_capacity_parse(body, &tokens, &err);
    judged(told, &err);
    if ((told == 0) != (tokens > 0))
        abort();
    for (size_t i = 0; i < known.n_engines; i++) {
        struct fleet_runtime runtime = {.name = "r", .engine = known.engines[i]};
        struct fleet_service s = {.name = "small", .host = &host, .runtime = &runtime, .port = 1, .bind = "127.0.0.1",
                                  .shape = {.split_auto = true, .slots = 2, .context = 2048, .speculative = types, .n_speculative = 1}};
        unsigned busy = 0;
        judged(engine_props_check(&s, &paths, body, &err), &err);
        judged(engine_speculation_check(&s, body, &err), &err);
        judged(engine_idle_parse(&s, body, &busy, &err), &err);
    }
    return 0;
}
