/* SPDX-License-Identifier: MIT
 *
 * Flags that go by several names: which ones mean the same, so that a command line which somebody wrote can be compared with ours. Names are those of llama-server 0.7.0; an underscore in a long one is a hyphen.
 */
#include "engine_int.h"

#include <string.h>

#define ALIASES 4

static const char *const same[][ALIASES] = {
    {"-m", "--model"},
    {"-mm", "--mmproj"},
    {"-md", "--model-draft", "--spec-draft-model"},
    {"-c", "--ctx-size"},
    {"-np", "--parallel"},
    {"-ts", "--tensor-split"},
    {"-ngl", "--gpu-layers", "--n-gpu-layers"},
    {"-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"},
    {"-b", "--batch-size"},
    {"-ub", "--ubatch-size"},
    {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},
    {"-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"},
    {"-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"},
    {"-fa", "--flash-attn"},
    {"-kvu", "--kv-unified"},
    {"-no-kvu", "--no-kv-unified"},
    {"-cram", "--cache-ram"},
    {"-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"},
    {"--spec-draft-n-max", "--draft-max", "--draft-n", "--draft"},
    {"-t", "--threads"},
    {"-a", "--alias"},
    {"-lv", "--verbosity", "--log-verbosity"},
    {"-fit", "--fit"},
    {"-sm", "--split-mode"},
    {"-mg", "--main-gpu"},
    {"-kvo", "--kv-offload"},
    {"-nkvo", "--no-kv-offload"},
    {"-nr", "--no-repack"},
    {"-mmdev", "--mmproj-device"},
    {"-dev", "--device"},
    {"-ot", "--override-tensor"},
    {"-cmoe", "--cpu-moe"},
    {"-ncmoe", "--n-cpu-moe"},
    {"-s", "--seed"},
    {"--no-ui", "--no-webui"},
    {"--ui", "--webui"},
    {"--temp", "--temperature"},
    {"-n", "--predict", "--n-predict"},
};

struct str engine_flag_name(const struct engine_kind *k, struct str flag)
{
    if (k != &engine_llama)
        return flag;
    for (size_t i = 0; i < BASE_COUNT(same); i++)
        for (size_t n = 0; n < ALIASES && same[i][n]; n++)
            if (args_is(flag, same[i][n]))
                return str_of(same[i][0]);
    return flag;
}
