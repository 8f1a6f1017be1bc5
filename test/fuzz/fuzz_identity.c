/* SPDX-License-Identifier: MIT
 *
 * What a request is part of, from any body: the same bytes give the same answer, and the chain is bounded.
 */
#include <proxy/place_int.h>

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/completion", "/v1/embeddings"};
    static struct place_identity a, b;
    struct str body = {(const char *)data, size};
    for (size_t i = 0; i < BASE_COUNT(paths); i++) {
        struct http_head head = {.method = STR("POST"), .target = str_of(paths[i])};
        place_identify(str_of(paths[i]), &head, body, &place_names_default, 1, &a);
        place_identify(str_of(paths[i]), &head, body, &place_names_default, 1, &b);
        assert(a.n <= PLACE_CHAIN_MAX && a.n == b.n && a.flow == b.flow && a.hint == b.hint && a.scaffold == b.scaffold && a.tokens == b.tokens);
        for (size_t k = 0; k < a.n; k++)
            assert(a.chain[k] && a.chain[k] == b.chain[k]);
    }
    return 0;
}
