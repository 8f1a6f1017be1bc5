/* SPDX-License-Identifier: MIT
 *
 * What a request is part of, from any body: the same bytes give the same answer, and the chain is bounded.
 */
#include <proxy/place_int.h>

#include <assert.h>

static void identify(const struct http_head *head, struct str body, struct place_identity *ret)
{
    place_read(place_dialect_of(head->method, head->target), body, 1, ret);
    place_name(head, &place_names_default, 1, ret);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/completion", "/v1/embeddings"};
    static struct place_identity a, b;
    struct str body = {(const char *)data, size};
    for (size_t i = 0; i < BASE_COUNT(paths); i++) {
        struct http_head head = {.method = STR("POST"), .target = str_of(paths[i])};
        identify(&head, body, &a);
        identify(&head, body, &b);
        assert(a.n <= PLACE_CHAIN_MAX && a.n == b.n && a.flow == b.flow && a.hint == b.hint && a.scaffold == b.scaffold && a.tokens == b.tokens);
        for (size_t k = 0; k < a.n; k++)
            assert(a.chain[k] && a.chain[k] == b.chain[k]);
    }
    return 0;
}
