/* SPDX-License-Identifier: MIT
 *
 * Engine flags that a fleet file may not hold, with what to write instead. Each of them says what a key says, so that one of
 * the two would lose without a word, or it changes what berth relies on to know an engine: where it listens, what it
 * serves, what it logs. Everything else in `args` is the author's own.
 */
#include "fleet_int.h"

#define SET_BY_US "berth sets it itself"
#define FROM_SOURCE "name where the files come from with 'source' of the model"
#define ONE_MODEL "a service serves one model"
#define NO_SERVICE "it ends the engine at once"

static const struct flag {
    const char *engine, *flag;
    const char *key;    /* what to use, or NULL */
    const char *reason; /* when there is no key */
} flags[] = {
    {"llama.cpp", "-m", "'weights' of the model", NULL},
    {"llama.cpp", "--model", "'weights' of the model", NULL},
    {"llama.cpp", "-mm", "'projector' of the model", NULL},
    {"llama.cpp", "--mmproj", "'projector' of the model", NULL},
    {"llama.cpp", "-md", "'drafter' of the model", NULL},
    {"llama.cpp", "--model-draft", "'drafter' of the model", NULL},
    {"llama.cpp", "--spec-draft-model", "'drafter' of the model", NULL},
    {"llama.cpp", "--chat-template-file", "'template' of the model", NULL},
    {"llama.cpp", "-c", "'context'", NULL},
    {"llama.cpp", "--ctx-size", "'context'", NULL},
    {"llama.cpp", "-np", "'slots'", NULL},
    {"llama.cpp", "--parallel", "'slots'", NULL},
    {"llama.cpp", "-ts", "'split'", NULL},
    {"llama.cpp", "--tensor-split", "'split'", NULL},
    {"llama.cpp", "-ngl", "'gpu-layers'", NULL},
    {"llama.cpp", "--gpu-layers", "'gpu-layers'", NULL},
    {"llama.cpp", "--n-gpu-layers", "'gpu-layers'", NULL},
    {"llama.cpp", "-b", "'batch'", NULL},
    {"llama.cpp", "--batch-size", "'batch'", NULL},
    {"llama.cpp", "-ub", "'ubatch'", NULL},
    {"llama.cpp", "--ubatch-size", "'ubatch'", NULL},
    {"llama.cpp", "-ctk", "'kv'", NULL},
    {"llama.cpp", "--cache-type-k", "'kv'", NULL},
    {"llama.cpp", "-ctv", "'kv'", NULL},
    {"llama.cpp", "--cache-type-v", "'kv'", NULL},
    {"llama.cpp", "-fa", "'flash-attention'", NULL},
    {"llama.cpp", "--flash-attn", "'flash-attention'", NULL},
    {"llama.cpp", "-kvu", "'unified-kv'", NULL},
    {"llama.cpp", "--kv-unified", "'unified-kv'", NULL},
    {"llama.cpp", "-no-kvu", "'unified-kv'", NULL},
    {"llama.cpp", "--no-kv-unified", "'unified-kv'", NULL},
    {"llama.cpp", "-cram", "'prompt-cache'", NULL},
    {"llama.cpp", "--cache-ram", "'prompt-cache'", NULL},
    {"llama.cpp", "--spec-type", "'speculative'", NULL},
    {"llama.cpp", "--spec-draft-n-max", "'draft-max'", NULL},
    {"llama.cpp", "--draft-max", "'draft-max'", NULL},
    {"llama.cpp", "--draft-n", "'draft-max'", NULL},
    {"llama.cpp", "--draft", "'draft-max'", NULL},
    {"llama.cpp", "-t", "'threads'", NULL},
    {"llama.cpp", "--threads", "'threads'", NULL},
    {"llama.cpp", "--port", "'port'", NULL},
    {"llama.cpp", "--host", "'bind'", NULL},
    {"llama.cpp", "-a", NULL, SET_BY_US},
    {"llama.cpp", "--alias", NULL, SET_BY_US},
    {"llama.cpp", "-lv", NULL, SET_BY_US},
    {"llama.cpp", "--verbosity", NULL, SET_BY_US},
    {"llama.cpp", "--log-verbosity", NULL, SET_BY_US},
    {"llama.cpp", "--log-disable", NULL, "berth reads the log"},
    {"llama.cpp", "--log-file", NULL, "berth keeps the log"},
    {"llama.cpp", "--log-jsonl", NULL, "berth reads the log"},
    {"llama.cpp", "--log-colors", NULL, "berth reads the log"},
    {"llama.cpp", "--metrics", NULL, SET_BY_US},
    {"llama.cpp", "--slots", NULL, SET_BY_US},
    {"llama.cpp", "--no-slots", NULL, "berth asks the slots whether the engine is idle"},
    {"llama.cpp", "--sse-ping-interval", NULL, SET_BY_US},
    {"llama.cpp", "-fit", NULL, SET_BY_US},
    {"llama.cpp", "--fit", NULL, SET_BY_US},
    {"llama.cpp", "--reuse-port", NULL, "it would hide that the port is taken"},
    {"llama.cpp", "--api-prefix", NULL, "berth expects the API at '/'"},
    {"llama.cpp", "--api-key", NULL, "the router could not reach an engine with a key"},
    {"llama.cpp", "--api-key-file", NULL, "the router could not reach an engine with a key"},
    {"llama.cpp", "--ssl-key-file", NULL, "the router speaks plain HTTP to engines"},
    {"llama.cpp", "--ssl-cert-file", NULL, "the router speaks plain HTTP to engines"},
    {"llama.cpp", "-mu", NULL, FROM_SOURCE},
    {"llama.cpp", "--model-url", NULL, FROM_SOURCE},
    {"llama.cpp", "-mmu", NULL, FROM_SOURCE},
    {"llama.cpp", "--mmproj-url", NULL, FROM_SOURCE},
    {"llama.cpp", "-hf", NULL, FROM_SOURCE},
    {"llama.cpp", "-hfr", NULL, FROM_SOURCE},
    {"llama.cpp", "--hf-repo", NULL, FROM_SOURCE},
    {"llama.cpp", "-hff", NULL, FROM_SOURCE},
    {"llama.cpp", "--hf-file", NULL, FROM_SOURCE},
    {"llama.cpp", "-hfd", NULL, FROM_SOURCE},
    {"llama.cpp", "--hf-repo-draft", NULL, FROM_SOURCE},
    {"llama.cpp", "-hft", NULL, "a secret does not belong in an argument"},
    {"llama.cpp", "--hf-token", NULL, "a secret does not belong in an argument"},
    {"llama.cpp", "-dr", NULL, FROM_SOURCE},
    {"llama.cpp", "--docker-repo", NULL, FROM_SOURCE},
    {"llama.cpp", "--models-dir", NULL, ONE_MODEL},
    {"llama.cpp", "--models-preset", NULL, ONE_MODEL},
    {"llama.cpp", "-h", NULL, NO_SERVICE},
    {"llama.cpp", "--help", NULL, NO_SERVICE},
    {"llama.cpp", "--usage", NULL, NO_SERVICE},
    {"llama.cpp", "--version", NULL, NO_SERVICE},
    {"llama.cpp", "--list-devices", NULL, NO_SERVICE},
    {"vllm", "--model", "'weights' of the model", NULL},
    {"vllm", "--served-model-name", NULL, SET_BY_US},
    {"vllm", "--max-model-len", "'context'", NULL},
    {"vllm", "--max-num-seqs", "'slots'", NULL},
    {"vllm", "--max-num-batched-tokens", "'batch'", NULL},
    {"vllm", "--kv-cache-dtype", "'kv'", NULL},
    {"vllm", "--chat-template", "'template' of the model", NULL},
    {"vllm", "--tensor-parallel-size", "'devices' of the host", NULL},
    {"vllm", "-tp", "'devices' of the host", NULL},
    {"vllm", "--uds", "'bind' and 'port'", NULL},
    {"vllm", "--root-path", NULL, "berth expects the API at '/'"},
    {"vllm", "--port", "'port'", NULL},
    {"vllm", "--host", "'bind'", NULL},
    {"vllm", "--api-key", NULL, "the router could not reach an engine with a key"},
};

/* True when arg is this flag, also as "--flag=value" and with '_' for '-', which the engines take too. */
static bool is_flag(struct str arg, const char *flag)
{
    struct str name = str_split(&arg, '=');
    if (name.len != strlen(flag))
        return false;
    for (size_t i = 0; i < name.len; i++)
        if ((i >= 2 && name.ptr[i] == '_' ? '-' : name.ptr[i]) != flag[i])
            return false;
    return true;
}

static const struct flag *find_flag(const char *engine, struct str arg)
{
    for (size_t i = 0; i < BASE_COUNT(flags); i++)
        if (strcmp(flags[i].engine, engine) == 0 && is_flag(arg, flags[i].flag))
            return &flags[i];
    return NULL;
}

int fleet_rules_flags(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *s)
{
    const struct yaml_node *args = yaml_get(n, "args");
    for (const struct yaml_node *c = args ? args->first : NULL; c; c = c->next) {
        const struct flag *f = find_flag(s->runtime->engine, c->text);
        if (f && f->key)
            return fleet_refuse(r, c, "'args' of %s must not hold '%s'; use %s", r->of, f->flag, f->key);
        if (f)
            return fleet_refuse(r, c, "'args' of %s must not hold '%s'; %s", r->of, f->flag, f->reason);
    }
    /* llama-server takes every flag from the environment too. */
    const struct yaml_node *env = yaml_get(n, "env");
    bool llama = strcmp(s->runtime->engine, "llama.cpp") == 0;
    for (const struct yaml_node *c = env && llama ? env->first : NULL; c; c = c->next)
        if (str_starts(c->key, STR("LLAMA_ARG_")) || str_eq_c(c->key, "LLAMA_API_KEY"))
            return fleet_refuse_at(r, fleet_key_pos_of(c), "'env' of %s must not set '%s', which is an engine flag; use a key or 'args'", r->of,
                                   fleet_show(r, c->key));
    return 0;
}
