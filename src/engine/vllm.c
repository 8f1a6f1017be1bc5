/* SPDX-License-Identifier: MIT
 *
 * vLLM's OpenAI server. Its shape differs: it takes a share of each card and makes of it what KV it can, slots are a limit of
 * sequences at once, and a sequence may be as long as one slot's context. Keys that it has no flag for are refused, not ignored. Flags and
 * messages are the documented ones of its V1 engine; metric names are those of its /metrics.
 */
#include "engine_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <math.h>

static const struct owned_flag owned[] = {
    {{"--model"}, "use 'weights' of the model"},
    {{"--served-model-name"}, "the service's own name is served"},
    {{"--max-model-len"}, "use 'context' and 'slots'"},
    {{"--max-num-seqs"}, "use 'slots'"},
    {{"--max-num-batched-tokens"}, "use 'batch'"},
    {{"--kv-cache-dtype"}, "use 'kv'"},
    {{"--chat-template"}, "use 'template' of the model"},
    {{"--tensor-parallel-size", "-tp"}, "use 'devices' of the host"},
    {{"--host"}, "use 'bind'"},
    {{"--port"}, "use 'port'"},
    {{"--uds"}, "use 'bind' and 'port'"},
    {{"--root-path"}, "berth expects the API at '/'"},
    {{"--api-key"}, "the router could not reach an engine with a key"},
};

static const char *const kv_types[] = {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"};

static int refuse(const char *key, const char *why, struct err *err)
{
    return err_set(err, -EINVAL, "%s: cannot be said to vllm, %s", key, why);
}

static int check_shape(const struct fleet_service *s, const struct engine_paths *p, struct err *err)
{
    const struct fleet_shape *sh = &s->shape;
    if (!p->weights)
        return err_set(err, -EINVAL, "service '%s' has no model, vllm needs one", s->name);
    if (sh->ubatch > 0)
        return refuse("ubatch", "set batch:", err);
    if (sh->gpu_layers_set)
        return refuse("gpu-layers", "it places whole layers only; --cpu-offload-gb in args moves some to the host", err);
    if (sh->flash_attention != FLEET_AUTO)
        return refuse("flash-attention", "it chooses; VLLM_ATTENTION_BACKEND in env overrides", err);
    if (sh->unified_kv == FLEET_OFF)
        return refuse("unified-kv", "its KV is always shared", err);
    if (sh->prompt_cache_set && sh->prompt_cache_bytes > 0)
        return refuse("prompt-cache", "it keeps prompts in device memory", err);
    if (sh->n_speculative > 0 || sh->draft_max > 0)
        return refuse("speculative", "give --speculative-config in args", err);
    if (sh->threads > 0)
        return refuse("threads", "set OMP_NUM_THREADS in env", err);
    if (p->projector)
        return refuse("projector", "its models carry theirs", err);
    for (size_t i = 1; !sh->split_auto && i < sh->n_split; i++)
        if (fabs(sh->split[i] - sh->split[0]) > 1e-9)
            return refuse("split", "it splits evenly, leave split: out", err);
    if (sh->kv_k || sh->kv_v) {
        if (!sh->kv_k || !sh->kv_v || !str_eq_c(str_of(sh->kv_k), sh->kv_v))
            return refuse("kv", "k and v must be of one type", err);
        bool known = false;
        for (size_t i = 0; i < BASE_COUNT(kv_types); i++)
            known |= str_eq_c(str_of(sh->kv_k), kv_types[i]);
        if (!known)
            return err_set(err, -EINVAL, "kv: '%s' is unknown to vllm, it knows auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2", sh->kv_k);
    }
    if (sh->context > 0 && sh->context < (sh->slots ? sh->slots : ENGINE_SLOTS))
        return err_set(err, -EINVAL, "context: %u tokens for %u slots, give each slot at least one", sh->context, sh->slots);
    return 0;
}

/* Hundredths of a card that vLLM may take: all but the floor, rounded down, on the device where that is least. */
static unsigned gpu_share(const struct fleet_host *h)
{
    if (!h || h->n_devices == 0)
        return ENGINE_GPU_SHARE_PERCENT;
    unsigned share = ENGINE_GPU_SHARE_MAX_PERCENT;
    for (size_t i = 0; i < h->n_devices; i++) {
        uint64_t all = h->devices[i].memory_bytes;
        if (all == 0)
            return ENGINE_GPU_SHARE_PERCENT;
        uint64_t left = h->floor_bytes < all ? all - h->floor_bytes : 0;
        unsigned percent = (unsigned)((double)left / (double)all * 100);
        if (percent < share)
            share = percent;
    }
    return share;
}

/* A folder of safetensors is named by any file in it; vLLM wants the folder, but a GGUF file itself. */
static const char *model_path(const char *weights, struct arena *a)
{
    struct str path = str_of(weights);
    if (!str_ends(path, STR(".safetensors")))
        return weights;
    size_t n = path.len;
    while (n > 1 && path.ptr[n - 1] != '/')
        n--;
    while (n > 1 && path.ptr[n - 1] == '/')
        n--;
    return arena_dup(a, (struct str){path.ptr, n});
}

static int vllm_argv(const struct fleet_service *s, const struct engine_paths *p, struct args *args, struct err *err)
{
    static const char *const budget[] = {"--gpu-memory-utilization", "--kv-cache-memory-bytes"};
    int r = check_shape(s, p, err);
    if (r < 0)
        return r;
    struct fleet_shape sh;
    engine_shape(s, &sh);
    unsigned share = gpu_share(s->host);
    if (share == 0)
        return err_set(err, -EINVAL, "floor: of host '%s' leaves vllm no memory on its smallest device", s->host->name);
    args_add(args, "serve");
    args_add(args, model_path(p->weights, args->a));
    args_pair(args, "--served-model-name", engine_served_name(s));
    const char *socket = fleet_service_socket(s);
    if (socket) {
        args_pair(args, "--uds", socket);
    } else {
        args_pair(args, "--host", s->bind);
        args_number(args, "--port", s->port);
    }
    args_number(args, "--max-model-len", sh.context / sh.slots);
    args_number(args, "--max-num-seqs", sh.slots);
    args_number(args, "--max-num-batched-tokens", sh.batch);
    args_pair(args, "--kv-cache-dtype", s->shape.kv_k ? s->shape.kv_k : "auto");
    if (s->host && s->host->n_devices > 1)
        args_number(args, "--tensor-parallel-size", s->host->n_devices);
    if (args_find(s, budget, BASE_COUNT(budget)) < 0) {
        args_add(args, budget[0]);
        args_addf(args, "0.%02u", share);
    }
    if (p->template_file)
        args_pair(args, "--chat-template", p->template_file);
    for (size_t i = 0; i < s->n_args; i++)
        args_add(args, s->args[i]);
    return 0;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------- */

/* The value of a sample line "name{labels} value" when it is of that family. */
static bool sample(struct str line, const char *family, double *ret)
{
    struct str rest = str_trim(line);
    size_t n = strlen(family);
    if (!str_starts(rest, str_of(family)) || rest.len == n || (rest.ptr[n] != '{' && rest.ptr[n] != ' '))
        return false;
    ptrdiff_t end = rest.ptr[n] == '{' ? str_find_char(rest, '}') : (ptrdiff_t)n - 1;
    if (end < 0)
        return false;
    struct str value;
    skip_word((struct str){rest.ptr + end + 1, rest.len - (size_t)end - 1}, &value);
    char text[32];
    if (value.len == 0 || value.len >= sizeof(text))
        return false;
    memcpy(text, value.ptr, value.len);
    text[value.len] = '\0';
    char *stop;
    *ret = strtod(text, &stop);
    return *stop == '\0' && *ret >= 0 && *ret < 1e9;
}

static int idle_parse(struct str body, unsigned *ret_busy, struct err *err)
{
    bool told = false;
    double busy = 0, n;
    while (body.ptr) {
        struct str line = str_split(&body, '\n');
        if (sample(line, "vllm:num_requests_running", &n)) {
            told = true;
            busy += n;
        } else if (sample(line, "vllm:num_requests_waiting", &n)) {
            busy += n;
        }
    }
    if (!told || busy >= 1e9)
        return err_set(err, -EBADMSG, "metrics do not tell vllm:num_requests_running");
    *ret_busy = (unsigned)busy;
    return 0;
}

/* The number that a label of a sample line has; false when it has none. */
static bool label_u64(struct str labels, const char *name, uint64_t *ret)
{
    while (labels.len) {
        struct str key = str_trim(str_split(&labels, '='));
        if (!labels.len || labels.ptr[0] != '"')
            return false;
        labels = (struct str){labels.ptr + 1, labels.len - 1};
        ptrdiff_t end = str_find_char(labels, '"');
        if (end < 0)
            return false;
        struct str value = {labels.ptr, (size_t)end};
        labels = (struct str){labels.ptr + end + 1, labels.len - (size_t)end - 1};
        if (str_eq_c(key, name))
            return str_to_u64(value, ret) == 0;
        if (labels.len && labels.ptr[0] == ',')
            labels = (struct str){labels.ptr + 1, labels.len - 1};
    }
    return false;
}

/* vllm:cache_config_info{block_size="16",num_gpu_blocks="27848",...} 1.0, one for each engine behind the server. */
int engine_capacity_parse(struct str body, uint64_t *ret_tokens, struct err *err)
{
    const struct str family = STR("vllm:cache_config_info{");
    uint64_t sum = 0;
    while (body.ptr) {
        struct str line = str_trim(str_split(&body, '\n'));
        uint64_t blocks, each, tokens;
        if (!str_starts(line, family))
            continue;
        struct str labels = {line.ptr + family.len, line.len - family.len};
        if (!label_u64(labels, "num_gpu_blocks", &blocks) || !label_u64(labels, "block_size", &each) || __builtin_mul_overflow(blocks, each, &tokens) || __builtin_add_overflow(sum, tokens, &sum))
            return err_set(err, -EBADMSG, "metrics do not tell num_gpu_blocks and block_size of vllm:cache_config_info");
    }
    if (!sum)
        return err_set(err, -EBADMSG, "metrics do not tell vllm:cache_config_info");
    *ret_tokens = sum;
    return 0;
}

static int vllm_token_request(const struct fleet_service *s, struct arena *a, const char **ret_path, const char **ret_body)
{
    /* a server of embeddings or rankings generates nothing */
    static const char *const other[] = {"--task", "--runner"};
    ptrdiff_t at = args_find(s, other, BASE_COUNT(other));
    if (at >= 0 && (size_t)at + 1 < s->n_args && !str_eq_c(str_of(s->args[at + 1]), "generate") && !str_eq_c(str_of(s->args[at + 1]), "auto"))
        return -ENOTSUP;
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_cstr(o, "model", engine_served_name(s));
    json_out_cstr(o, "prompt", "Hello");
    json_out_u64(o, "max_tokens", 1);
    json_out_u64(o, "temperature", 0);
    json_out_bool(o, "stream", false);
    json_out_end(o);
    base_autobuf struct buf body = BUF_INIT(4096);
    int r = json_out_finish(o, false, &body);
    json_out_free(o);
    const char *text = r < 0 ? NULL : arena_dup(a, buf_str(&body));
    if (!text)
        return r < 0 ? r : -ENOMEM;
    *ret_path = "/v1/completions";
    *ret_body = text;
    return 0;
}

/* ---- logs ----------------------------------------------------------------------------------------------------------------- */

static const struct line_rule lines[] = {
    {"Falling back to V0", ENGINE_LINE_DROPPED}, /* ... is not supported by the V1 Engine */
    {"Starting to load model", ENGINE_LINE_LOADING},
    {"Loading safetensors checkpoint shards", ENGINE_LINE_LOADING},
    {"Loading weights took", ENGINE_LINE_LOADING},
    {"Model loading took", ENGINE_LINE_BUFFER},
    {"Available KV cache memory", ENGINE_LINE_BUFFER},
    {"GPU KV cache size", ENGINE_LINE_BUFFER},
    {"Capturing CUDA graph", ENGINE_LINE_WARMUP},
    {"Graph capturing finished", ENGINE_LINE_WARMUP},
    {"torch.compile takes", ENGINE_LINE_WARMUP},
    {"init engine (profile", ENGINE_LINE_WARMUP},
    {"Application startup complete", ENGINE_LINE_READY},
};

static const struct word_rule words[] = {
    {"on startup is less than desired GPU memory utilization", NULL, ENGINE_WORDS_MEMORY_NOT_BACK, false},
    {"Error in memory profiling", "nitial free memory", ENGINE_WORDS_MEMORY_NOT_BACK, false},

    {"CUDA out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"HIP out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"which is larger than the available KV cache memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"is larger than the maximum number of tokens that can be stored in KV cache", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"No available memory for the cache blocks", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"DefaultCPUAllocator: can't allocate memory", NULL, ENGINE_WORDS_HOST_MEMORY, false},
    {"OSError: [Errno 12] Cannot allocate memory", NULL, ENGINE_WORDS_HOST_MEMORY, false},

    {"error: unrecognized arguments:", NULL, ENGINE_WORDS_UNKNOWN_FLAG, false},
    {"error: argument --", NULL, ENGINE_WORDS_UNKNOWN_FLAG, false},

    {"[Errno 98]", "ddress already in use", ENGINE_WORDS_PORT, false},
    {"[Errno 98] error while attempting to bind on address", NULL, ENGINE_WORDS_PORT, false},

    {"ValueError: Model architectures [", "are not supported", ENGINE_WORDS_UNKNOWN_ARCH, false},
    {"but Transformers does not recognize this architecture", NULL, ENGINE_WORDS_UNKNOWN_ARCH, false},

    {"SafetensorError: ", NULL, ENGINE_WORDS_CORRUPT, false},

    {"The supplied chat template", "appears path-like, but doesn't exist", ENGINE_WORDS_TEMPLATE, false},
    {"jinja2.exceptions.TemplateSyntaxError", NULL, ENGINE_WORDS_TEMPLATE, false},

    {"RuntimeError: No CUDA GPUs are available", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"RuntimeError: No HIP GPUs are available", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"RuntimeError: Found no NVIDIA driver on your system", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"RuntimeError: Failed to infer device type", NULL, ENGINE_WORDS_NO_DEVICE, false},
};

/* What is on disk is what was verified: nothing is fetched or reported behind our back. */
static const char *const env[] = {"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "NO_COLOR=1", NULL};

const struct engine_kind engine_vllm = {
    .name = "vllm",
    .program = "vllm",
    .env = env,
    .health = "/health",
    .identity = "/v1/models",
    .idle = "/metrics",
    .capacity = "/metrics",
    .reuses_port = true,
    .start_ms = 10ULL * 60 * 1000, /* imports, profiling, compiling, capturing graphs: minutes */
    .owned = owned,
    .n_owned = BASE_COUNT(owned),
    .argv = vllm_argv,
    .idle_parse = idle_parse,
    .token_request = vllm_token_request,
    .message = vllm_message,
    .lines = lines,
    .n_lines = BASE_COUNT(lines),
    .words = words,
    .n_words = BASE_COUNT(words),
};
