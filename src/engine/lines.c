/* SPDX-License-Identifier: MIT
 *
 * One line of an engine's log: its message without what every line carries, what it tells about a start, and, for the last
 * lines of a dead engine, why it ended. Rules are substrings of messages that the engines are known to print; the first that fits
 * wins, because causes are printed before their consequences. What does not fit is unknown: a wrong reason sends people to the wrong place.
 */
#include "engine_int.h"

/* ---- messages ------------------------------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static struct str skip(struct str s, size_t n)
{
    return (struct str){s.ptr + n, s.len - n};
}

static struct str skip_blanks(struct str s)
{
    while (s.len > 0 && is_blank(s.ptr[0]))
        s = skip(s, 1);
    return s;
}

struct str skip_word(struct str s, struct str *ret_word)
{
    s = skip_blanks(s);
    size_t n = 0;
    while (n < s.len && !is_blank(s.ptr[n]))
        n++;
    *ret_word = (struct str){s.ptr, n};
    return skip_blanks(skip(s, n));
}

static bool all_of(struct str word, const char *allowed)
{
    for (size_t i = 0; i < word.len; i++)
        if (!is_digit(word.ptr[i]) && !strchr(allowed, word.ptr[i]))
            return false;
    return word.len > 0 && is_digit(word.ptr[0]);
}

/* "0.00.017.348 I srv    load_model: text" -> "load_model: text". The stamp is minutes.seconds.ms.us since the start; parts of the server
 * put a short tag and a right-aligned function name before their text. */
struct str llama_message(struct str line)
{
    static const char *const tags[] = {"srv", "cmn", "slot", "spec", "res", "que"};
    struct str word, whole = str_trim(line);
    struct str rest = skip_word(whole, &word);
    if (all_of(word, ".") && str_find_char(word, '.') > 0) {
        struct str level;
        struct str after = skip_word(rest, &level);
        if (level.len == 1 && strchr("EWIDT", level.ptr[0])) {
            whole = after;
            rest = skip_word(whole, &word);
            for (size_t i = 0; i < BASE_COUNT(tags); i++)
                if (str_eq_c(word, tags[i]))
                    return rest;
        }
    }
    return whole;
}

bool llama_begins(struct str message)
{
    return str_eq_c(message, "llama_server: initializing ...");
}

/* "(EngineCore_DP0 pid=104) ERROR 05-05 12:36:59 [core.py:1131] text" -> "text"; each part may be absent. */
struct str vllm_message(struct str line)
{
    static const char *const levels[] = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"};
    struct str s = str_trim(line), word;
    while (s.len > 0 && s.ptr[0] == '(') { /* a worker's own mark may come twice */
        ptrdiff_t end = str_find_char(s, ')');
        if (end < 0 || str_find((struct str){s.ptr, (size_t)end}, STR("pid=")) < 0)
            break;
        s = skip_blanks(skip(s, (size_t)end + 1));
    }
    struct str rest = skip_word(s, &word);
    for (size_t i = 0; i < BASE_COUNT(levels); i++) {
        if (!str_eq_c(word, levels[i]) && !(str_ends(word, STR(":")) && str_eq_c((struct str){word.ptr, word.len - 1}, levels[i])))
            continue;
        struct str after = skip_word(rest, &word);
        if (all_of(word, "-")) {
            rest = after;
            after = skip_word(rest, &word);
            if (all_of(word, ":."))
                rest = after;
        }
        skip_word(rest, &word);
        ptrdiff_t end = rest.len > 0 && rest.ptr[0] == '[' ? str_find_char(rest, ']') : -1;
        return end < 0 ? rest : skip_blanks(skip(rest, (size_t)end + 1));
    }
    return s;
}

/* ---- what a line tells ------------------------------------------------------------------------------------------------ */

static bool is_noise(const struct engine_kind *k, struct str message)
{
    for (size_t i = 0; k->noise && k->noise[i]; i++)
        if (str_starts(message, str_of(k->noise[i])))
            return true;
    return false;
}

static enum engine_line classify(const struct engine_kind *k, struct str message)
{
    if (is_noise(k, message))
        return ENGINE_LINE_OTHER;
    for (size_t i = 0; i < k->n_lines; i++)
        if (str_find(message, str_of(k->lines[i].needle)) >= 0)
            return k->lines[i].line;
    return ENGINE_LINE_OTHER;
}

enum engine_line engine_line_parse(const struct engine_kind *k, struct str line, struct str *ret_text)
{
    *ret_text = k->message(line);
    return classify(k, *ret_text);
}

/* ---- why it ended -------------------------------------------------------------------------------------------------------- */

const struct word_rule words_common[] = {
    {"Memory access fault by GPU", NULL, ENGINE_WORDS_PAGE_FAULT, false},
    {"an illegal memory access was encountered", NULL, ENGINE_WORDS_PAGE_FAULT, false},
    {"HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", NULL, ENGINE_WORDS_PAGE_FAULT, false},
    {"HSA_STATUS_ERROR_MEMORY_FAULT", NULL, ENGINE_WORDS_PAGE_FAULT, false},

    {"Could not initialize Tensile host", "No devices found", ENGINE_WORDS_NO_DEVICE, false},
    {"error: no ROCm-capable device is detected", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"CUDA error: no CUDA-capable device is detected", NULL, ENGINE_WORDS_NO_DEVICE, false},
    {"error: invalid device ordinal", NULL, ENGINE_WORDS_NO_DEVICE, false},

    {"rocBLAS error: Cannot read ", NULL, ENGINE_WORDS_KERNEL_TABLES, false},
    {"rocblaslt error: Cannot read ", NULL, ENGINE_WORDS_KERNEL_TABLES, false},
    {"hipblaslt error: Cannot read ", NULL, ENGINE_WORDS_KERNEL_TABLES, false},
    {"no kernel image is available for execution on the device", NULL, ENGINE_WORDS_KERNEL_TABLES, false},
    {"error: invalid device function", NULL, ENGINE_WORDS_KERNEL_TABLES, false},
    {"has no device code compatible with", NULL, ENGINE_WORDS_KERNEL_TABLES, false},

    {"Malloc failed: out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false}, /* cudaMalloc, hipMalloc */
    {"CUDA error: out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"ROCm error: out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"ErrorOutOfDeviceMemory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"BLAS_STATUS_ALLOC_FAILED", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"ErrorOutOfHostMemory", NULL, ENGINE_WORDS_HOST_MEMORY, false},
    {"std::bad_alloc", NULL, ENGINE_WORDS_HOST_MEMORY, false},
};
const size_t words_common_n = BASE_COUNT(words_common);

static const struct word_rule *match(const struct word_rule *rules, size_t n, struct str message)
{
    for (size_t i = 0; i < n; i++)
        if (str_find(message, str_of(rules[i].needle)) >= 0 && (!rules[i].also || str_find(message, str_of(rules[i].also)) >= 0))
            return &rules[i];
    return NULL;
}

enum engine_words engine_words_find(const struct engine_kind *k, struct str tail)
{
    const struct word_rule *found = NULL;
    while (tail.ptr) {
        struct str message = k->message(str_split(&tail, '\n'));
        if (message.len == 0 || is_noise(k, message))
            continue;
        enum engine_line line = classify(k, message);
        /* another process, a start that came through, or one that tries again: what was said before is not why this one ended */
        bool anew = (k->begins && k->begins(message)) || line == ENGINE_LINE_READY || str_find(message, STR("retrying without pipeline parallelism")) >= 0;
        bool went_on = found && found->weak && line != ENGINE_LINE_OTHER && line != ENGINE_LINE_DROPPED;
        if (anew || went_on)
            found = NULL;
        if (found && !found->weak)
            continue;
        const struct word_rule *r = match(k->words, k->n_words, message);
        if (!r)
            r = match(words_common, words_common_n, message);
        if (r)
            found = r;
    }
    return found ? found->words : ENGINE_WORDS_UNKNOWN;
}

const char *engine_words_text(enum engine_words w)
{
    static const char *const text[] = {
        [ENGINE_WORDS_UNKNOWN] = "it ended for a reason that its log does not tell in known words",
        [ENGINE_WORDS_DEVICE_MEMORY] = "out of device memory: lower context, slots or ubatch, quantize kv, or move layers (split, gpu-layers)",
        [ENGINE_WORDS_HOST_MEMORY] = "out of host memory: lower context, slots or prompt-cache, or stop what else uses memory",
        [ENGINE_WORDS_MEMORY_NOT_BACK] = "device memory is still held by another process: wait for the previous engine to end, or find who holds it",
        [ENGINE_WORDS_MEMLOCK] = "memory could not be locked: raise the memlock limit (ulimit -l, LimitMEMLOCK=), or leave out --mlock",
        [ENGINE_WORDS_PAGE_FAULT] = "the GPU touched memory that is not its own: a fault of the engine, its driver or the card; try flash-attention: off, then another build",
        [ENGINE_WORDS_KERNEL_TABLES] = "this build has no kernels for this GPU: use a build for its architecture, or check the ROCm libraries' tables",
        [ENGINE_WORDS_SPLIT_NAME] = "a split model is incomplete or misnamed: weights must name the first part, all parts beside it under their own names",
        [ENGINE_WORDS_UNKNOWN_FLAG] = "the engine refuses a flag or its value: check args and whether this engine version knows it",
        [ENGINE_WORDS_TEMPLATE] = "the chat template is missing or broken: check the model's template",
        [ENGINE_WORDS_PORT] = "it cannot listen: port taken, or bind is no address of this machine",
        [ENGINE_WORDS_CORRUPT] = "the model file is damaged or no model: verify the payload and fetch it again",
        [ENGINE_WORDS_UNKNOWN_ARCH] = "this engine build does not know the model's architecture: use a newer runtime",
        [ENGINE_WORDS_NO_DEVICE] = "a device is not there: check the host's devices, the driver, and that the build has a back end for them",
    };
    return (size_t)w < BASE_COUNT(text) ? text[w] : text[0];
}
