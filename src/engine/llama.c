/* SPDX-License-Identifier: MIT
 *
 * llama.cpp's llama-server: the command line, the paths, the rules for its log. Every flag that decides memory is said,
 * also where our value is the engine's own default: a default may change with the next build, and half of them are chosen by
 * the engine from what is free at that moment (-fit, -ngl auto, -np auto, -ts by free bytes). Flags and messages are those of 0.7.0.
 */
#include "engine_int.h"

#include <errno.h>

#define MIB (1024ULL * 1024)
#define VERBOSITY "4" /* at 3 it says nothing about buffers */

/* ---- flags that a user's args may not hold --------------------------------------------------------------------- */

/* Each says what a key says, so that one of the two would lose without a word, or changes what berth relies on to know an engine. */
#define SET_BY_US "berth sets it itself"
#define FROM_SOURCE "name where the files come from with 'source' of the model"
static const struct owned_flag owned[] = {
    {{"-m", "--model"}, "use 'weights' of the model"},
    {{"-mm", "--mmproj"}, "use 'projector' of the model"},
    {{"-md", "--model-draft", "--spec-draft-model"}, "use 'drafter' of the model"},
    {{"--chat-template-file"}, "use 'template' of the model"},
    {{"-c", "--ctx-size"}, "use 'context'"},
    {{"-np", "--parallel"}, "use 'slots'"},
    {{"-ts", "--tensor-split"}, "use 'split'"},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "use 'gpu-layers'"},
    {{"-b", "--batch-size"}, "use 'batch'"},
    {{"-ub", "--ubatch-size"}, "use 'ubatch'"},
    {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"}, "use 'kv'"},
    {{"-fa", "--flash-attn"}, "use 'flash-attention'"},
    {{"-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"}, "use 'unified-kv'"},
    {{"-cram", "--cache-ram"}, "use 'prompt-cache'"},
    {{"--spec-type"}, "use 'speculative'"},
    {{"--spec-draft-n-max", "--draft-max", "--draft-n", "--draft"}, "use 'draft-max'"},
    {{"-t", "--threads"}, "use 'threads'"},
    {{"--port"}, "use 'port'"},
    {{"--host"}, "use 'bind'"},
    {{"-a", "--alias"}, "the service's own name is the alias"},
    {{"-lv", "--verbosity", "--log-verbosity"}, "berth reads buffer sizes at " VERBOSITY "; -v shows more"},
    {{"--log-disable", "--log-jsonl", "--log-colors"}, "berth reads the log"},
    {{"--log-file"}, "berth keeps the log"},
    {{"--metrics", "--slots"}, SET_BY_US},
    {{"--no-slots"}, "berth asks the slots whether the engine is idle"},
    {{"--sse-ping-interval"}, SET_BY_US ", and a stop waits for it"},
    {{"-fit", "--fit"}, "the engine must not change what berth planned"},
    {{"--reuse-port"}, "it would hide that the port is taken"},
    {{"--api-prefix"}, "berth expects the API at '/'"},
    {{"--api-key", "--api-key-file"}, "use 'key'"},
    {{"--ssl-key-file", "--ssl-cert-file"}, "the router speaks plain HTTP to engines"},
    {{"-mu", "--model-url", "-mmu", "--mmproj-url"}, FROM_SOURCE},
    {{"-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"}, FROM_SOURCE},
    {{"-hfd", "--hf-repo-draft", "-dr", "--docker-repo"}, FROM_SOURCE},
    {{"-hft", "--hf-token"}, "a secret does not belong in an argument"},
    {{"--models-dir", "--models-preset"}, "a service serves one model"},
    {{"-h", "--help", "--usage", "--version", "--list-devices"}, "it ends the engine at once"},
};

/* ---- what is said only so that no default decides: a user's own word replaces it -------------------------------- */

struct said_flag {
    const char *names[FLAG_NAMES]; /* the first is said, unless the args hold any of them */
    const char *value;             /* NULL: none */
};
static const struct said_flag said_always[] = {
    {{"--split-mode", "-sm"}, "layer"},
    {{"--kv-offload", "-kvo", "-nkvo", "--no-kv-offload"}, NULL},
    {{"--repack", "-nr", "--no-repack"}, NULL},
    {{"--cors-origins"}, "localhost"}, /* else any page in a browser may use an engine on this machine */
};
/* Said twice, the engine calls it a dropped argument, even without a value. */
static const struct said_flag said_for_us[] = {
    {{"--no-ui", "--ui", "--webui", "--no-webui"}, NULL},
    {{"--offline"}, NULL},
};
/* Before the file: without it only templates that the engine knows are taken. */
static const struct said_flag said_template[] = {{{"--jinja"}, NULL}};
static const struct said_flag said_drafter[] = {
    {{"--cache-type-k-draft", "-ctkd", "--spec-draft-type-k"}, ENGINE_KV},
    {{"--cache-type-v-draft", "-ctvd", "--spec-draft-type-v"}, ENGINE_KV},
};
static const struct said_flag said_projector[] = {
    {{"--mmproj-offload", "--no-mmproj-offload", "-mmdev", "--mmproj-device"}, NULL},
};

static void say(struct args *args, const struct fleet_service *s, const struct said_flag *table, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (args_find(s, table[i].names, FLAG_NAMES) >= 0)
            continue;
        args_add(args, table[i].names[0]);
        if (table[i].value)
            args_add(args, table[i].value);
    }
}

/* ---- shape -> flags ----------------------------------------------------------------------------------------------- */

static bool one_of(const char *word, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq_c(str_of(word), list[i]))
            return true;
    return false;
}

static int unknown_word(const char *key, const char *word, const char *const *list, size_t n, struct err *err)
{
    base_autobuf struct buf all = BUF_INIT(512);
    for (size_t i = 0; i < n; i++)
        buf_addf(&all, "%s%s", i ? ", " : "", list[i]);
    const char *near = str_nearest(str_of(word), list, n);
    if (near)
        return err_set(err, -EINVAL, "%s: '%s' is unknown to llama.cpp, did you mean '%s'", key, word, near);
    return err_set(err, -EINVAL, "%s: '%s' is unknown to llama.cpp, it knows %s", key, word, buf_status(&all) < 0 ? "others" : all.ptr);
}

static bool is_draft(const char *type)
{
    return str_starts(str_of(type), STR("draft-"));
}

/* The one draft type among the kinds of speculation, or NULL. */
static const char *draft_type(const struct fleet_shape *sh)
{
    for (size_t i = 0; i < sh->n_speculative; i++)
        if (is_draft(sh->speculative[i]))
            return sh->speculative[i];
    return NULL;
}

static int check_memory(const struct fleet_shape *sh, struct err *err)
{
    if (sh->slots > FLEET_SLOTS_MAX)
        return err_set(err, -EINVAL, "slots: %u, llama.cpp has at most %d", sh->slots, FLEET_SLOTS_MAX);
    if (sh->context < sh->slots)
        return err_set(err, -EINVAL, "context: %u tokens for %u slots, give each slot at least one", sh->context, sh->slots);
    if (sh->context > INT32_MAX || sh->batch > INT32_MAX)
        return err_set(err, -EINVAL, "context: or batch: is over %d", INT32_MAX);
    if (sh->ubatch > sh->batch)
        return err_set(err, -EINVAL, "ubatch: %u is over batch: %u, llama.cpp would lower it in silence", sh->ubatch, sh->batch);
    if (!one_of(sh->kv_k, fleet_kv_types, FLEET_KV_TYPES))
        return unknown_word("kv: k", sh->kv_k, fleet_kv_types, FLEET_KV_TYPES, err);
    if (!one_of(sh->kv_v, fleet_kv_types, FLEET_KV_TYPES))
        return unknown_word("kv: v", sh->kv_v, fleet_kv_types, FLEET_KV_TYPES, err);
    bool exact_v = one_of(sh->kv_v, fleet_kv_types, FLEET_KV_PLAIN);
    if (!exact_v && sh->flash_attention == FLEET_OFF)
        return err_set(err, -EINVAL, "kv: v '%s' needs flash attention, set flash-attention: on", sh->kv_v);
    return 0;
}

static int check_devices(const struct fleet_service *s, const struct fleet_shape *sh, struct err *err)
{
    size_t n = s->host ? s->host->n_devices : 0;
    if (sh->n_split == 0 || sh->split_auto)
        return 0;
    if (sh->gpu_layers == 0)
        return err_set(err, -EINVAL, "split: there is nothing to split, set gpu-layers: or declare the host's devices");
    if (n > 0 && sh->n_split != n)
        return err_set(err, -EINVAL, "split: %zu shares for %zu devices, give one for each", sh->n_split, n);
    double sum = 0;
    for (size_t i = 0; i < sh->n_split; i++) {
        if (!(sh->split[i] >= 0))
            return err_set(err, -EINVAL, "split: share %zu is not a number from 0 on", i + 1);
        sum += sh->split[i];
    }
    /* all zero would mean "by free memory", which differs between two starts */
    return sum > 0 ? 0 : err_set(err, -EINVAL, "split: all shares are 0");
}

static int check_speculation(const struct fleet_shape *sh, const struct engine_paths *p, struct err *err)
{
    const char *draft = draft_type(sh);
    for (size_t i = 0; i < sh->n_speculative; i++) {
        const char *type = sh->speculative[i];
        if (!one_of(type, fleet_spec_types, FLEET_SPEC_TYPES))
            return unknown_word("speculative", type, fleet_spec_types, FLEET_SPEC_TYPES, err);
        if (is_draft(type) && type != draft)
            return err_set(err, -EINVAL, "speculative: '%s' and '%s' together, llama.cpp takes one kind of drafter", draft, type);
    }
    /* without a file these are accepted and do nothing; only MTP may live in the model itself */
    if (draft && !p->drafter && !str_eq_c(str_of(draft), "draft-mtp"))
        return err_set(err, -EINVAL, "speculative: '%s' needs a drafter, set the model's drafter:", draft);
    return 0;
}

static int check_shape(const struct fleet_service *s, const struct fleet_shape *sh, const struct engine_paths *p, struct err *err)
{
    if (!p->weights)
        return err_set(err, -EINVAL, "service '%s' has no model, llama.cpp needs one", s->name);
    int r = check_memory(sh, err);
    if (r == 0)
        r = check_devices(s, sh, err);
    if (r == 0)
        r = check_speculation(sh, p, err);
    if (r == 0 && s->shape.draft_max > 0 && !draft_type(sh))
        r = err_set(err, -EINVAL, "draft-max: is for a draft-* kind of speculative:, give an ngram's sizes in args");
    return r;
}

/* Which devices, in which order, and how much of the model on each. The order of the host's declaration is the order of the shares. */
static void add_placement(struct args *args, const struct fleet_service *s, const struct fleet_shape *sh)
{
    if (sh->gpu_layers == UINT32_MAX)
        args_pair(args, "-ngl", "all");
    else
        args_number(args, "-ngl", sh->gpu_layers);

    size_t n = s->host ? s->host->n_devices : 0;
    bool given = !sh->split_auto && sh->n_split > 0;
    if (sh->gpu_layers == 0 || (!given && n < 2))
        return;
    base_autobuf struct buf shares = BUF_INIT(FLEET_DEVICES_MAX * 32UL);
    for (size_t i = 0; i < (given ? sh->n_split : n); i++) {
        buf_add_c(&shares, i ? "," : "");
        if (given)
            buf_addf(&shares, "%.9g", sh->split[i]);
        else
            buf_addf(&shares, "%llu", (unsigned long long)(s->host->devices[i].memory_bytes / MIB));
    }
    args_add(args, "-ts");
    args_add(args, buf_status(&shares) < 0 ? NULL : arena_dup(args->a, buf_str(&shares)));
}

/* Last, because a device named here must exist already and an RPC device exists only after the --rpc in the user's args. A device that is
 * not there ends the engine instead of silently running on the CPU. */
static void add_devices(struct args *args, const struct fleet_service *s, const struct fleet_shape *sh)
{
    static const char *const names[] = {"-dev", "--device"};
    if (args_find(s, names, BASE_COUNT(names)) >= 0)
        return;
    if (sh->gpu_layers == 0) {
        args_pair(args, names[0], "none");
        return;
    }
    if (!s->host || s->host->n_devices == 0)
        return;
    base_autobuf struct buf list = BUF_INIT(FLEET_DEVICES_MAX * 128UL);
    for (size_t i = 0; i < s->host->n_devices; i++)
        buf_addf(&list, "%s%s", i ? "," : "", s->host->devices[i].name);
    args_add(args, names[0]);
    args_add(args, buf_status(&list) < 0 ? NULL : arena_dup(args->a, buf_str(&list)));
}

static void add_speculation(struct args *args, const struct fleet_service *s, const struct fleet_shape *sh, const struct engine_paths *p)
{
    static const char *const layers[] = {"-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"};
    if (sh->n_speculative == 0)
        return;
    base_autobuf struct buf types = BUF_INIT(512);
    for (size_t i = 0; i < sh->n_speculative; i++)
        buf_addf(&types, "%s%s", i ? "," : "", sh->speculative[i]);
    args_add(args, "--spec-type");
    args_add(args, buf_status(&types) < 0 ? NULL : arena_dup(args->a, buf_str(&types)));
    if (!draft_type(sh))
        return;
    args_number(args, "--spec-draft-n-max", sh->draft_max);
    say(args, s, said_drafter, BASE_COUNT(said_drafter));
    /* a drafter without a draft kind of speculation is loaded and thrown away: it is named only here */
    if (!p->drafter)
        return;
    args_pair(args, "-md", p->drafter);
    if (args_find(s, layers, BASE_COUNT(layers)) < 0)
        args_pair(args, layers[0], sh->gpu_layers == 0 ? "0" : "all");
}

static void add_memory(struct args *args, const struct fleet_service *s, const struct fleet_shape *sh)
{
    static const char *const fa[] = {[FLEET_AUTO] = "auto", [FLEET_ON] = "on", [FLEET_OFF] = "off"};
    static const char *const checkpoints[] = {"-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"};
    args_number(args, "-c", sh->context);
    args_number(args, "-np", sh->slots);
    add_placement(args, s, sh);
    args_number(args, "-b", sh->batch);
    args_number(args, "-ub", sh->ubatch);
    args_pair(args, "-ctk", sh->kv_k);
    args_pair(args, "-ctv", sh->kv_v);
    args_pair(args, "-fa", fa[sh->flash_attention]);
    args_add(args, sh->unified_kv == FLEET_ON ? "--kv-unified" : "--no-kv-unified");
    /* whole MiB; less than one is one, because 0 turns it off */
    uint64_t mib = sh->prompt_cache_bytes / MIB;
    args_number(args, "-cram", mib == 0 && sh->prompt_cache_bytes > 0 ? 1 : mib);
    if (args_find(s, checkpoints, BASE_COUNT(checkpoints)) < 0)
        args_number(args, checkpoints[0], ENGINE_CHECKPOINTS);
    args_pair(args, "-fit", "off");
    say(args, s, said_always, BASE_COUNT(said_always));
    if (sh->threads > 0)
        args_number(args, "-t", sh->threads);
}

static int llama_argv(const struct fleet_service *s, const struct engine_paths *p, struct args *args, struct err *err)
{
    struct fleet_shape sh;
    engine_shape(s, &sh);
    int r = check_shape(s, &sh, p, err);
    if (r < 0)
        return r;
    args_pair(args, "-m", p->weights);
    args_pair(args, "--alias", engine_served_name(s));
    const char *socket = fleet_service_socket(s);
    args_pair(args, "--host", socket ? socket : s->bind);
    if (!socket)
        args_number(args, "--port", s->port);
    if (s->key && !p->key) /* without it everybody could ask */
        return err_set(err, -EINVAL, "the key of service '%s' has no place where its engine sees it", s->name);
    if (s->key)
        args_pair(args, "--api-key-file", p->key);
    add_memory(args, s, &sh);
    if (p->projector) {
        args_pair(args, "--mmproj", p->projector);
        say(args, s, said_projector, BASE_COUNT(said_projector));
    }
    add_speculation(args, s, &sh, p);
    if (p->template_file) {
        say(args, s, said_template, BASE_COUNT(said_template));
        args_pair(args, "--chat-template-file", p->template_file);
    }
    if (p->slot_dir)
        args_pair(args, "--slot-save-path", p->slot_dir);
    args_pair(args, "-lv", VERBOSITY);
    args_pair(args, "--log-colors", "off");
    args_number(args, "--sse-ping-interval", ENGINE_PING_S);
    args_add(args, "--metrics");
    args_add(args, "--slots");
    say(args, s, said_for_us, BASE_COUNT(said_for_us));
    for (size_t i = 0; i < s->n_args; i++)
        args_add(args, s->args[i]);
    add_devices(args, s, &sh);
    return 0;
}

/* ---- one token ------------------------------------------------------------------------------------------------------ */

static int llama_token_request(const struct fleet_service *s, struct arena *a, const char **ret_path, const char **ret_body)
{
    /* a server of embeddings or rankings generates nothing */
    static const char *const other[] = {"--embedding", "--embeddings", "--rerank", "--reranking"};
    (void)a;
    if (args_find(s, other, BASE_COUNT(other)) >= 0)
        return -ENOTSUP;
    *ret_path = "/completion";
    *ret_body = "{\"prompt\":\"Hello\",\"n_predict\":1,\"temperature\":0,\"ignore_eos\":true,\"cache_prompt\":false,\"stream\":false}";
    return 0;
}

/* ---- logs --------------------------------------------------------------------------------------------------------------- */

static const struct line_rule lines[] = {
    /* what was asked for and is not done; a start that goes on is then not what the fleet says */
    {"option will be ignored", ENGINE_LINE_DROPPED}, /* no usable GPU found, --gpu-layers ... */
    {"failed to initialize speculative decoding context", ENGINE_LINE_DROPPED},
    {"the target and draft vocabs are not compatible", ENGINE_LINE_DROPPED},
    {"exceeds the trained block size", ENGINE_LINE_DROPPED}, /* draft-max clamped */
    {"failed to mlock", ENGINE_LINE_DROPPED},
    {"it will be disabled", ENGINE_LINE_DROPPED}, /* cache_reuse is not supported by this context, ... */
    {"MoE cache is disabled", ENGINE_LINE_DROPPED},
    {"specified multiple times", ENGINE_LINE_DROPPED},
    {"will be overwritten by command line argument", ENGINE_LINE_DROPPED}, /* an LLAMA_ARG_ of the service's env */
    {"loading draft model", ENGINE_LINE_LOADING},
    {"loading model", ENGINE_LINE_LOADING},
    {"creating MTP draft context", ENGINE_LINE_LOADING},
    {"loaded multimodal model", ENGINE_LINE_LOADING},
    {"buffer size =", ENGINE_LINE_BUFFER},
    {"warming up the model", ENGINE_LINE_WARMUP},
    {"listening on http", ENGINE_LINE_READY},
};

static const struct word_rule words[] = {
    {"invalid device:", "error while handling argument", ENGINE_WORDS_NO_DEVICE, false},
    {"error while handling argument \"--rpc\"", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"ggml-rpc.cpp", "Failed to connect to", ENGINE_WORDS_NO_DEVICE, false},
    {"invalid value for main_gpu", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"no backends are loaded", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"error while handling argument \"--chat-template-file\"", NULL, ENGINE_WORDS_TEMPLATE, false},
    {"error: invalid argument: ", NULL, ENGINE_WORDS_UNKNOWN_FLAG, false},
    {"error while handling argument ", NULL, ENGINE_WORDS_UNKNOWN_FLAG, false},

    {"failed to initialize chat template", NULL, ENGINE_WORDS_TEMPLATE, false},
    {"chat template is not supported", NULL, ENGINE_WORDS_TEMPLATE, false},
    {"chat template parsing error", NULL, ENGINE_WORDS_TEMPLATE, false},

    {"couldn't bind ", "server socket", ENGINE_WORDS_PORT, false},

    {"unknown model architecture", NULL, ENGINE_WORDS_UNKNOWN_ARCH, false},
    {"unknown pre-tokenizer type", NULL, ENGINE_WORDS_UNKNOWN_ARCH, false},
    {"unknown projector type", NULL, ENGINE_WORDS_UNKNOWN_ARCH, false},

    {"invalid split file name", NULL, ENGINE_WORDS_SPLIT_NAME, false},
    {"illegal split file idx", NULL, ENGINE_WORDS_SPLIT_NAME, false},
    {"invalid split file idx", NULL, ENGINE_WORDS_SPLIT_NAME, false},
    {"failed to load GGUF split from", NULL, ENGINE_WORDS_SPLIT_NAME, false},

    {"gguf_init_from_reader:", "invalid magic characters", ENGINE_WORDS_CORRUPT, false},
    {"gguf_init_from_reader:", "failed to read ", ENGINE_WORDS_CORRUPT, false},
    {"bad GGUF version", NULL, ENGINE_WORDS_CORRUPT, false},
    {"GGUFv1 is no longer supported", NULL, ENGINE_WORDS_CORRUPT, false},
    {"this software only supports up to version", NULL, ENGINE_WORDS_UNKNOWN_ARCH, false},
    {"is not a power of 2", "alignment", ENGINE_WORDS_CORRUPT, false},
    {"number of tensors is ", NULL, ENGINE_WORDS_CORRUPT, false},
    {"is too long", "tensor name", ENGINE_WORDS_CORRUPT, false},
    {"duplicate tensor name", NULL, ENGINE_WORDS_CORRUPT, false},
    {"invalid ggml type", NULL, ENGINE_WORDS_CORRUPT, false},
    {"not a multiple of block size", NULL, ENGINE_WORDS_CORRUPT, false},
    {"has offset ", ", expected ", ENGINE_WORDS_CORRUPT, false},
    {"data is not within the file bounds", NULL, ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "key not found in model", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "has wrong type", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "has wrong array length", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "missing tensor", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "not found", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "has wrong shape", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "wrong number of tensors", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "cannot find tokenizer", ENGINE_WORDS_CORRUPT, false},
    {"error loading model", "corrupted model", ENGINE_WORDS_CORRUPT, false},

    {"ggml_aligned_malloc: insufficient memory", NULL, ENGINE_WORDS_HOST_MEMORY, false},
    {"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer", NULL, ENGINE_WORDS_HOST_MEMORY, false},
    {"failed to allocate CPU", " buffer of size ", ENGINE_WORDS_HOST_MEMORY, false},
    {"_Host buffer of size ", "failed to allocate ", ENGINE_WORDS_HOST_MEMORY, false},
    {"unable to allocate CPU", " buffer", ENGINE_WORDS_HOST_MEMORY, false},
    {"error loading model: unable to allocate ", "_Host buffer", ENGINE_WORDS_HOST_MEMORY, false},
    {"failed to allocate ", " buffer of size ", ENGINE_WORDS_DEVICE_MEMORY, false},
    {"error loading model: unable to allocate ", " buffer", ENGINE_WORDS_DEVICE_MEMORY, false},
    {"failed to mlock", NULL, ENGINE_WORDS_MEMLOCK, true},
};

static const char *const noise[] = {"llama_model_loader: - kv", "init: init: chat template", "init: chat template", NULL};

/* A crash calls a debugger to print its stack, which can outlive the engine and hang. */
static const char *const env[] = {"GGML_NO_BACKTRACE=1", NULL};

const struct engine_kind engine_llama = {
    .name = "llama.cpp",
    .program = "llama-server",
    .env = env,
    .health = "/health",
    .identity = "/v1/models",
    .props = "/props",
    .idle = "/slots",
    .reuses_port = true,
    .start_ms = 60ULL * 1000, /* device start and warm-up: seconds, a minute on a cold driver */
    .owned = owned,
    .n_owned = BASE_COUNT(owned),
    .argv = llama_argv,
    .props_check = llama_props_check,
    .speculation_check = llama_speculation_check,
    .speculation = "/slots",
    .log_check = llama_log_check,
    .denies = llama_denies,
    .idle_parse = llama_idle_parse,
    .token_request = llama_token_request,
    .message = llama_message,
    .begins = llama_begins,
    .noise = noise,
    .lines = lines,
    .n_lines = BASE_COUNT(lines),
    .words = words,
    .n_words = BASE_COUNT(words),
};
