/* SPDX-License-Identifier: MIT
 *
 * Words that other programs have for what a fleet file says: whoever comes from one writes its word first, and the nearest key by letters is none. Looked up when a key is unknown. A word counts without its case and without '-' and '_', as
 * the same setting is written in a file, on a command line and in a program.
 */
#include "fleet_int.h"

#include <string.h>

/* `of` begins as the label of the part does. */
static const struct {
    const char *of, *word, *here;
} words[] = {
    {"service", "ttl", "'idle-stop', with 'start: on-demand'"},
    {"service", "keepalive", "'idle-stop', with 'start: on-demand'"},
    {"service", "cmd", "'runtime', 'model' and 'args', or 'command' with engine 'generic'"},
    {"service", "aliases", "'aliases' of its endpoint"},
    {"service", "checkendpoint", "'health', with engine 'generic'"},
    {"service", "concurrencylimit", "'slots'"},
    {"service", "parallel", "'slots'"},
    {"service", "np", "'slots'"},
    {"service", "maxnumseqs", "'slots'"},
    {"service", "ctxsize", "'context'"},
    {"service", "nctx", "'context'"},
    {"service", "numctx", "'context'"},
    {"service", "maxmodellen", "'context'"},
    {"service", "ngpulayers", "'gpu-layers'"},
    {"service", "ngl", "'gpu-layers'"},
    {"service", "numgpu", "'gpu-layers'"},
    {"service", "tensorsplit", "'split'"},
    {"service", "cacheram", "'prompt-cache'"},
    {"service", "cachetypek", "'kv: {k: TYPE}'"},
    {"service", "cachetypev", "'kv: {v: TYPE}'"},
    {"service", "restart", "nothing to declare: one that ends is started again"},
    {"group", "swap", "'rule: exclusive'"},
    {"group", "exclusive", "'rule: exclusive'"},
    {"group", "members", "'services'"},
    {"group", "persistent", "'pin: true' of its services"},
    {"endpoint", "model", "'services'"},
    {"endpoint", "models", "'services'"},
    {"endpoint", "members", "'services'"},
    {"endpoint", "backends", "'services'"},
    {"endpoint", "servers", "'services'"},
    {"endpoint", "replicas", "'services'"},
    {"endpoint", "upstream", "'services'"},
    {"endpoint", "routingstrategy", "'policy'"},
    {"endpoint", "loadbalancing", "'policy'"},
    {"the router", "apikeys", "'keys-file', which 'berth key add NAME' fills"},
    {"the router", "apikey", "'keys-file', which 'berth key add NAME' fills"},
    {"the router", "keys", "'keys-file', which 'berth key add NAME' fills"},
    {"the router", "masterkey", "'keys-file', which 'berth key add NAME' fills"},
    {"the router", "port", "'listen: ADDRESS:PORT'"},
    {"the router", "bind", "'listen: ADDRESS:PORT'"},
    {"the router", "address", "'listen: ADDRESS:PORT'"},
    {"the router", "metrics", "'admin', which has them at /metrics"},
    {"the router", "workers", "'loops'"},
    {"the router", "threads", "'loops'"},
    {"the router", "clientmaxbodysize", "'bodies: {max: SIZE}'"},
    {"the router", "maxbodysize", "'bodies: {max: SIZE}'"},
    {"the router", "alloworigins", "'cors'"},
    {"the router", "policy", "'policy' of an endpoint"},
    {"'tls' of the router", "certfile", "'certificate'"},
    {"'tls' of the router", "keyfile", "'key'"},
    {"the fleet", "apikeys", "'keys-file' under 'router'"},
    {"the fleet", "listen", "'listen' under 'router'"},
    {"the fleet", "hooks", "'preload: true' of a service on demand"},
    {"the fleet", "startport", "'port' of each service"},
    {"the fleet", "modellist", "'endpoints'"},
};

static bool is_word(struct str key, const char *word)
{
    for (size_t i = 0; i < key.len; i++) {
        char c = key.ptr[i];
        if (c == '-' || c == '_')
            continue;
        if (*word == '\0' || (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != *word)
            return false;
        word++;
    }
    return *word == '\0';
}

const char *fleet_elsewhere(const char *of, struct str key)
{
    for (size_t i = 0; i < BASE_COUNT(words); i++)
        if (strncmp(of, words[i].of, strlen(words[i].of)) == 0 && is_word(key, words[i].word))
            return words[i].here;
    return NULL;
}
