/* SPDX-License-Identifier: MIT
 *
 * How many cards an engine binds together through a library of collectives (RCCL, NCCL): tensor and pipeline parallelism. llama.cpp's split by layers copies from card to card and needs none.
 */
#include "engine_int.h"

#include <string.h>

#define RANKS_MAX 1024 /* of one service; a number beyond it is no size */

struct sizes {
    const char *names[6];
};
/* Each multiplies. */
static const struct sizes vllm_sizes[] = {{{"--pipeline-parallel-size", "-pp"}}, {{"--data-parallel-size", "-dp"}}};
static const struct sizes generic_sizes[] = {{{"--tensor-parallel-size", "--tp-size", "--tp", "-tp"}}, {{"--pipeline-parallel-size", "--pp-size", "--pp", "-pp"}}};

/* The value of the last of these flags among words; 1 without one, 2 when it is no number: it asks for something that is not known. */
static unsigned size_of(const char *const *words, size_t n, const struct sizes *f)
{
    unsigned ret = 1;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < BASE_COUNT(f->names) && f->names[k]; k++) {
            if (!args_is(str_of(words[i]), f->names[k]))
                continue;
            const char *equals = strchr(words[i], '='), *value = equals ? equals + 1 : i + 1 < n ? words[i + 1] : "";
            uint64_t v = 0;
            ret = str_to_u64(str_of(value), &v) == 0 && v >= 1 && v <= RANKS_MAX ? (unsigned)v : 2;
        }
    return ret;
}

unsigned engine_ranks(const struct fleet_service *s)
{
    unsigned devices = s->host && s->host->n_devices > 1 ? (unsigned)s->host->n_devices : 1, ranks = 1;
    const char *kind = s->runtime->engine;
    if (strcmp(kind, "vllm") == 0) {
        ranks = devices; /* its tensor parallelism is over all of them */
        for (size_t i = 0; i < BASE_COUNT(vllm_sizes); i++)
            ranks *= size_of(s->args, s->n_args, &vllm_sizes[i]);
    } else if (strcmp(kind, "generic") == 0) {
        for (size_t i = 0; i < BASE_COUNT(generic_sizes); i++)
            ranks *= size_of(s->command, s->n_command, &generic_sizes[i]);
    } else {
        static const char *const split[] = {"--split-mode", "-sm"};
        ptrdiff_t at = args_find(s, split, BASE_COUNT(split));
        const char *word = at < 0 ? "" : s->args[at], *equals = strchr(word, '='), *value = equals ? equals + 1 : at >= 0 && (size_t)at + 1 < s->n_args ? s->args[at + 1] : "";
        if (strcmp(value, "tensor") == 0)
            ranks = devices;
    }
    return ranks;
}
