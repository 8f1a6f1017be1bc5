/* SPDX-License-Identifier: MIT
 *
 * A keys file of any bytes: what is taken has names that differ, models that are names, limits within their bounds, and no key is found that nobody has.
 */
#include <proxy/proxy.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct proxy_keys *k;
    struct err err;
    if (proxy_keys_parse((struct str){(const char *)data, size}, "keys", &k, &err) < 0)
        return 0;
    for (size_t i = 0; i < proxy_keys_count(k); i++) {
        const struct proxy_key *key = proxy_keys_at(k, i);
        if (!fleet_name_valid(str_of(key->name)) || key->concurrency > PROXY_KEY_LIMIT_MAX || key->rate > PROXY_KEY_LIMIT_MAX || key->n_models > PROXY_KEY_MODELS_MAX)
            abort();
        for (size_t m = 0; m < key->n_models; m++)
            if (!key->models[m][0] || !proxy_key_allows(key, key->models[m]))
                abort();
        if (key->n_models && proxy_key_allows(key, ""))
            abort();
        for (size_t n = 0; n < i; n++)
            if (strcmp(proxy_keys_at(k, n)->name, key->name) == 0 || memcmp(proxy_keys_at(k, n)->hash, key->hash, PROXY_KEY_HASH) == 0)
                abort();
    }
    proxy_keys_unref(k);
    return 0;
}
