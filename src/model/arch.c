/* SPDX-License-Identifier: MIT
 *
 * The table of architectures: one row for each name that llama.cpp 0.7.0 knows (law 10.1), in alphabetical order. A row says only what differs from a decoder with a plain cache on every layer, an
 * optional output matrix and no window. What the columns mean is in model_int.h; the code that follows them is in layers.c, window.c, indexer.c and tensors.c.
 */
#include "model_int.h"

#include <string.h>

#define BERT (F_NO_LOGITS | F_NOT_CAUSAL)
#define KDA (F_MLA | F_NO_SPLIT)

static const struct model_arch_row rows[] = {
    {.name = "afmoe", .swa = SWA_IF_SET, .pattern = 4},
    {.name = "apertus"},
    {.name = "arcee"},
    {.name = "arctic"},
    {.name = "arwkv7", .flags = F_OUTPUT, .cache = CACHE_STATE, .recurrent = REC_ALL},
    {.name = "baichuan", .flags = F_OUTPUT},
    {.name = "bailingmoe", .flags = F_OUTPUT},
    {.name = "bailingmoe2", .flags = F_OUTPUT | F_NEXTN_SKIPPED},
    {.name = "bailingmoe3", .flags = KDA | F_MTP | F_NEXTN_CACHED | F_ROLLBACK | F_M_ROPE_IF, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "bert", .flags = BERT, .cache = CACHE_NO},
    {.name = "bitnet", .flags = F_NO_SPLIT | F_TIED_SAME},
    {.name = "bloom"},
    {.name = "chameleon"},
    {.name = "chatglm"},
    {.name = "clef", .flags = F_NO_LOGITS, .cache = CACHE_NO},
    {.name = "clip", .flags = F_NO_LOGITS, .cache = CACHE_NO, .role = MODEL_PROJECTOR},
    {.name = "codeshell"},
    {.name = "cogvlm"},
    {.name = "cohere2", .swa = SWA_REQUIRED, .pattern = 4},
    {.name = "cohere2moe", .flags = F_MTP | F_DENSE_FIRST, .swa = SWA_REQUIRED, .pattern = 4},
    {.name = "command-r"},
    {.name = "dbrx", .flags = F_OUTPUT},
    {.name = "deci"},
    {.name = "deepseek"},
    {.name = "deepseek2", .flags = F_MLA | F_MTP | F_NO_SPLIT},
    {.name = "deepseek2-ocr"},
    {.name = "deepseek32", .flags = F_MLA | F_MTP | F_NO_SPLIT, .cache = CACHE_MLA_INDEX, .index = INDEX_ALL},
    {.name = "deepseek4", .flags = F_OUTPUT | F_MTP | F_ROLLBACK, .cache = CACHE_V4, .swa = SWA_REQUIRED, .pattern = PATTERN_ALL},
    {.name = "dflash", .flags = F_TAPS, .swa = SWA_IF_SET, .pattern = PATTERN_REQUIRED, .role = MODEL_DRAFT_DFLASH},
    {.name = "dots1", .flags = F_OUTPUT},
    {.name = "dots3note", .flags = F_MLA | F_NEXTN_SKIPPED | F_NO_SPLIT, .cache = CACHE_MLA_INDEX, .swa = SWA_REQUIRED, .pattern = PATTERN_REQUIRED, .index = INDEX_TYPES_FULL},
    {.name = "dream", .flags = F_NOT_CAUSAL, .cache = CACHE_NO},
    {.name = "eagle3", .flags = F_TAPS, .role = MODEL_DRAFT_EAGLE3},
    {.name = "ernie4_5"},
    {.name = "ernie4_5-moe"},
    {.name = "eurobert", .flags = BERT, .cache = CACHE_NO},
    {.name = "exaone"},
    {.name = "exaone-moe", .flags = F_NEXTN_SKIPPED, .window = 128, .swa = SWA_DEFAULT, .pattern = 4},
    {.name = "exaone4", .flags = F_NEXTN_SKIPPED, .window = 4096, .swa = SWA_DEFAULT_64, .pattern = 4},
    {.name = "falcon"},
    {.name = "falcon-h1", .flags = F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_BOTH},
    {.name = "gemma"},
    {.name = "gemma-embedding", .flags = BERT | F_TIED_UNUSED, .cache = CACHE_NO, .swa = SWA_REQUIRED, .pattern = 6},
    {.name = "gemma-embedding2", .flags = BERT, .cache = CACHE_NO},
    {.name = "gemma2", .window = 4096, .swa = SWA_DEFAULT, .pattern = 2},
    {.name = "gemma3", .swa = SWA_IF_SET, .pattern = 6},
    {.name = "gemma3n", .flags = F_TIED_ALWAYS | F_SHARED_20 | F_NO_SPLIT, .swa = SWA_REQUIRED, .pattern = 5},
    {.name = "gemma4", .flags = F_TIED_ALWAYS | F_SHARED_KEY | F_ROPE_DENSE, .swa = SWA_REQUIRED, .pattern = PATTERN_REQUIRED},
    {.name = "gemma4-assistant", .flags = F_NO_OWN_KV | F_ROPE_DENSE, .cache = CACHE_NO, .swa = SWA_REQUIRED, .pattern = PATTERN_REQUIRED, .role = MODEL_DRAFT_ASSISTANT},
    {.name = "glm-dsa", .flags = F_MLA | F_MTP | F_NO_SPLIT, .cache = CACHE_MLA_INDEX, .index = INDEX_TYPES},
    {.name = "glm4", .flags = F_NEXTN_SKIPPED | F_M_ROPE_IF},
    {.name = "glm4moe", .flags = F_MTP | F_M_ROPE_IF},
    {.name = "glm5-next", .flags = F_MLA | F_MTP, .cache = CACHE_HYBRID_INDEX, .recurrent = REC_INTERVAL, .interval = 4, .index = INDEX_ATTENTION_3},
    {.name = "gpt-oss", .flags = F_OUTPUT, .swa = SWA_REQUIRED, .pattern = 2},
    {.name = "gpt2"},
    {.name = "gptj", .flags = F_NO_LOADER},
    {.name = "gptneox", .flags = F_OUTPUT},
    {.name = "granite"},
    {.name = "granite_swa", .swa = SWA_REQUIRED, .pattern = PATTERN_REQUIRED},
    {.name = "granitehybrid", .flags = F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "granitemoe"},
    {.name = "graniteswitch", .flags = F_ROUTER},
    {.name = "grok", .flags = F_NO_FLASH | F_NO_SPLIT},
    {.name = "grovemoe"},
    {.name = "hrm_text"},
    {.name = "hunyuan-dense"},
    {.name = "hunyuan-moe"},
    {.name = "hunyuan_vl", .flags = F_M_ROPE_IF},
    {.name = "hy_v3", .flags = F_MTP},
    {.name = "hy_v4", .flags = F_MLA, .cache = CACHE_MLA_INDEX, .index = INDEX_TYPES},
    {.name = "internlm2", .flags = F_OUTPUT},
    {.name = "jais", .flags = F_OUTPUT},
    {.name = "jais2"},
    {.name = "jamba", .flags = F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "jina-bert-v2", .flags = BERT, .cache = CACHE_NO},
    {.name = "jina-bert-v3", .flags = BERT, .cache = CACHE_NO},
    {.name = "k2-horizon"},
    {.name = "kimi-k3", .flags = KDA | F_V_LORA | F_OUTPUT, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "kimi-linear", .flags = KDA | F_OUTPUT | F_REPEAT, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "laguna", .flags = F_DENSE_FIRST, .swa = SWA_IF_SET, .pattern = 4},
    {.name = "lfm2", .flags = F_ROLLBACK | F_NORM_OUTPUT, .cache = CACHE_HYBRID, .swa = SWA_IF_SET, .pattern = PATTERN_ATTENTION, .recurrent = REC_NO_KV_HEADS},
    {.name = "lfm2moe", .flags = F_ROLLBACK | F_NORM_OUTPUT, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "llada", .flags = F_NOT_CAUSAL, .cache = CACHE_NO},
    {.name = "llada-moe", .flags = F_OUTPUT | F_NOT_CAUSAL, .cache = CACHE_NO},
    {.name = "llama"},
    {.name = "llama-embed", .flags = F_NOT_CAUSAL},
    {.name = "llama4", .flags = F_CHUNKED, .window = 8192, .swa = SWA_FIXED, .pattern = 4},
    {.name = "maincoder"},
    {.name = "maion-coder", .swa = SWA_IF_SET, .pattern = PATTERN_REQUIRED},
    {.name = "mamba", .flags = F_NO_SPLIT, .cache = CACHE_STATE, .recurrent = REC_ALL},
    {.name = "mamba2", .flags = F_NO_SPLIT, .cache = CACHE_STATE, .recurrent = REC_ALL},
    {.name = "maple", .swa = SWA_IF_SET, .pattern = PATTERN_REQUIRED},
    {.name = "mellum", .flags = F_OUTPUT, .swa = SWA_IF_SET, .pattern = 4},
    {.name = "mimo2", .flags = F_OUTPUT | F_MTP, .swa = SWA_REQUIRED, .pattern = PATTERN_REQUIRED},
    {.name = "minicpm"},
    {.name = "minicpm3", .flags = F_NO_SPLIT},
    {.name = "minimax-01", .flags = F_SQUARE | F_REPEAT | F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_INTERVAL, .interval = 8},
    {.name = "minimax-m2", .flags = F_OUTPUT | F_NO_SPLIT},
    {.name = "minimax-m3", .flags = F_OUTPUT | F_NO_SPLIT, .cache = CACHE_INDEX, .index = INDEX_MOE},
    {.name = "mistral3"},
    {.name = "mistral4", .flags = F_MLA | F_NO_SPLIT},
    {.name = "modern-bert", .flags = BERT, .cache = CACHE_NO, .swa = SWA_REQUIRED, .pattern = 3},
    {.name = "mpt", .flags = F_NO_SPLIT},
    {.name = "muse-glimmer", .flags = F_OUTPUT, .swa = SWA_REQUIRED, .pattern = 4},
    {.name = "nanbeige", .flags = F_LOOPS},
    {.name = "nemotron", .flags = F_OUTPUT},
    {.name = "nemotron_h", .flags = F_ROLLBACK | F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_THREE_KINDS},
    {.name = "nemotron_h_moe", .flags = F_MTP | F_ROLLBACK | F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_THREE_KINDS},
    {.name = "neo-bert", .flags = BERT, .cache = CACHE_NO},
    {.name = "nomic-bert", .flags = BERT, .cache = CACHE_NO},
    {.name = "nomic-bert-moe", .flags = BERT, .cache = CACHE_NO},
    {.name = "olmo"},
    {.name = "olmo2", .flags = F_OUTPUT | F_NO_SPLIT, .swa = SWA_IF_SET, .pattern = 4},
    {.name = "olmoe", .flags = F_OUTPUT | F_NO_SPLIT},
    {.name = "openelm"},
    {.name = "orion", .flags = F_OUTPUT},
    {.name = "paddleocr", .flags = F_M_ROPE},
    {.name = "pangu-embedded"},
    {.name = "phi2", .flags = F_OUTPUT},
    {.name = "phi3"},
    {.name = "phimoe"},
    {.name = "plamo", .flags = F_OUTPUT},
    {.name = "plamo2", .flags = F_NO_SPLIT, .cache = CACHE_HYBRID, .recurrent = REC_NO_KV_HEADS},
    {.name = "plamo3", .swa = SWA_IF_SET, .pattern = 8},
    {.name = "plm"},
    {.name = "pockettts"},
    {.name = "qwen", .flags = F_OUTPUT},
    {.name = "qwen2"},
    {.name = "qwen2moe", .flags = F_OUTPUT},
    {.name = "qwen2vl", .flags = F_M_ROPE},
    {.name = "qwen3"},
    {.name = "qwen35", .flags = F_MTP | F_ROLLBACK | F_M_ROPE, .cache = CACHE_HYBRID, .recurrent = REC_INTERVAL, .interval = 4},
    {.name = "qwen35moe", .flags = F_MTP | F_ROLLBACK | F_M_ROPE, .cache = CACHE_HYBRID, .recurrent = REC_INTERVAL, .interval = 4},
    {.name = "qwen3moe"},
    {.name = "qwen3next", .flags = F_MTP, .cache = CACHE_HYBRID, .recurrent = REC_INTERVAL, .interval = 4},
    {.name = "qwen3tts", .flags = F_M_ROPE | F_NO_SPLIT},
    {.name = "qwen3vl", .flags = F_M_ROPE},
    {.name = "qwen3vlmoe", .flags = F_M_ROPE},
    {.name = "qwen4exp", .flags = F_MTP | F_ROLLBACK | F_M_ROPE | F_PLE | F_NO_SPLIT, .cache = CACHE_HYBRID_INDEX, .recurrent = REC_INTERVAL, .interval = 4, .index = INDEX_ATTENTION_KV},
    {.name = "refact"},
    {.name = "rnd1", .flags = F_NOT_CAUSAL, .cache = CACHE_NO},
    {.name = "rwkv6", .flags = F_OUTPUT, .cache = CACHE_STATE, .recurrent = REC_ALL},
    {.name = "rwkv6qwen2", .flags = F_OUTPUT, .cache = CACHE_STATE, .recurrent = REC_ALL},
    {.name = "rwkv7", .flags = F_OUTPUT, .cache = CACHE_STATE, .recurrent = REC_ALL},
    {.name = "seed_oss"},
    {.name = "smallthinker", .flags = F_DENSE_FIRST, .window = 4096, .swa = SWA_FIXED_IF_SET, .pattern = 4},
    {.name = "smollm3"},
    {.name = "spark2_5", .swa = SWA_IF_SET, .pattern = PATTERN_REQUIRED},
    {.name = "stablelm", .flags = F_OUTPUT},
    {.name = "starcoder"},
    {.name = "starcoder2"},
    {.name = "step35", .flags = F_MTP | F_NEXTN_ROPE, .swa = SWA_REQUIRED, .pattern = PATTERN_REQUIRED},
    {.name = "t5", .flags = F_NO_SPLIT},
    {.name = "t5encoder", .flags = F_NO_LOGITS},
    {.name = "talkie", .flags = F_OUTPUT},
    {.name = "vllm-decision2", .flags = F_NO_LOGITS},
    {.name = "wavtokenizer-dec", .flags = F_NOT_CAUSAL, .cache = CACHE_NO},
    {.name = "xverse", .flags = F_OUTPUT},
};

const struct model_arch_row *model_arch_row(struct str name)
{
    size_t low = 0, high = BASE_COUNT(rows);

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        size_t len = strlen(rows[mid].name);
        int order = memcmp(name.ptr ? name.ptr : "", rows[mid].name, name.len < len ? name.len : len);

        if (order == 0 && name.len == len)
            return &rows[mid];
        if (order < 0 || (order == 0 && name.len < len))
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

bool model_arch_known(struct str arch)
{
    return model_arch_row(arch) != NULL;
}

const char *model_arch(size_t i)
{
    return i < BASE_COUNT(rows) ? rows[i].name : NULL;
}
