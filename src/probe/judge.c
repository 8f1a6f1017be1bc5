/* SPDX-License-Identifier: MIT
 *
 * The battery's judgements. Bodies come from a process that may be anything: every field is looked for, none is trusted to be there, and what is quoted is made fit to print. Each failure says what was found and what to do. No I/O.
 */
#include "probe_int.h"

#include <conf/conf.h>
#include <errno.h>

#define QUOTE_CHARS 160u
#define OVERHEAD_MAX 1024u /* tokens that a template may add to a message: the longest default system prompts have some hundred */
#define MARGIN 32u         /* tokens by which two texts may differ from their sum: ends of words, a line's end */
#define SOUND_MIN 8u       /* tokens of a second of sound: the sparsest encoders make a dozen */

/* What a chat's answer holds; views into the JSON. */
struct answer {
    struct json *json;
    struct str content, reasoning, error;
    json_val calls, timings;
    uint64_t prompt_tokens, made_tokens;
    bool chat; /* it has a first choice with a message */
};

static void quote(struct buf *out, struct str s)
{
    buf_add_printable(out, s, QUOTE_CHARS);
    if (buf_status(out) < 0)
        buf_clear(out);
}
#define QUOTE BUF_INIT((size_t)8 * QUOTE_CHARS)

static struct str text_of(json_val v)
{
    struct str s = {0};
    return json_str(v, &s) ? s : (struct str){0};
}

static int read_answer(struct str body, struct answer *a, struct err *err)
{
    *a = (struct answer){0};
    int r = json_parse(body, &a->json, NULL);
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r < 0)
        return 0; /* an answer without anything */
    json_val root = json_root(a->json), message = json_get(json_at(json_get(root, "choices"), 0), "message"), usage = json_get(root, "usage"), error = json_get(root, "error");
    a->chat = json_is_obj(message);
    a->content = text_of(json_get(message, "content"));
    a->reasoning = text_of(json_get(message, "reasoning_content"));
    if (!a->reasoning.len)
        a->reasoning = text_of(json_get(message, "reasoning"));
    a->calls = json_get(message, "tool_calls");
    a->timings = json_get(root, "timings");
    a->error = text_of(json_get(error, "message"));
    if (!a->error.len)
        a->error = text_of(error);
    a->prompt_tokens = json_get_u64(usage, "prompt_tokens");
    a->made_tokens = json_get_u64(usage, "completion_tokens");
    return 0;
}

/* ---- what is wrong for all alike ---------------------------------------------------------------------------------- */

/* What to look at when a request is refused. */
static const char *advice(enum probe_check c)
{
    switch (c) {
    case PROBE_REASONING:
        return "declare no 'reasoning', or give the model the 'template' that it was made with";
    case PROBE_EFFORT:
        return "the template does not know that word: take it out of 'efforts', or give the model another 'template'";
    case PROBE_TOOL:
        return "the template or the engine takes no tools: give the model another 'template', or declare no 'tools'";
    case PROBE_IMAGE:
        return "the engine takes no picture: 'projector' of the model must be the one that was made for it";
    case PROBE_SOUND:
        return "the engine takes no sound: 'projector' of the model must be one with ears";
    case PROBE_CHAT:
    case PROBE_SIZE:
    case PROBE_TEMPLATE:
    case PROBE_REUSE:
    case PROBE_DRAFT:
    case PROBE_CHECKS:
        break;
    }
    return "look at the engine's log; a model without a chat template needs 'template'";
}

static int refused(enum probe_check c, unsigned status, const struct answer *a, struct err *err)
{
    base_autobuf struct buf why = QUOTE;
    quote(&why, a->error);
    if (status == 401 || status == 403)
        return err_set(err, -EBADMSG, "status %u: it wants a key%s%s", status, why.len ? ": " : "", why.len ? why.ptr : "");
    return err_set(err, -EBADMSG, "status %u%s%s%s; %s", status, why.len ? ": '" : "", why.len ? why.ptr : "", why.len ? "'" : "", advice(c));
}

static int not_chat(struct err *err)
{
    return err_set(err, -EBADMSG, "the answer is no chat completion: another program may be listening there");
}

/* ---- one by one ------------------------------------------------------------------------------------------------------ */

static int judge_chat(const struct answer *a, struct probe_seen *seen, struct err *err)
{
    seen->chat_tokens = a->prompt_tokens;
    if (!a->made_tokens && !a->content.len && !a->reasoning.len)
        return err_set(err, -EBADMSG, "the answer is empty; the model ends at once: is its chat template the right one?");
    if (a->prompt_tokens > OVERHEAD_MAX)
        return err_set(err, -EBADMSG, "a message of four words became a prompt of %llu tokens; the chat template adds the rest to every request: give the model another 'template'", (unsigned long long)a->prompt_tokens);
    return 0;
}

/* llama.cpp lists the tokens, vLLM counts them; what cannot tell is no failure. */
static void see_size(const struct answer *a, struct probe_seen *seen)
{
    json_val root = a->json ? json_root(a->json) : NULL;
    seen->text_tokens = json_count(json_get(root, "tokens"));
    if (!seen->text_tokens)
        seen->text_tokens = json_get_u64(root, "count");
}

static int judge_template(const struct fleet_service *s, const struct answer *a, const struct probe_seen *seen, struct err *err)
{
    uint64_t bytes = probe_text_bytes(s), text = seen->text_tokens;
    if (!seen->chat_tokens || !a->prompt_tokens)
        return 0; /* this kind does not count */
    /* without a count: no tokenizer makes more tokens than bytes, and none packs more than 16 of them */
    uint64_t least = text ? text - text / 4 : bytes / 16, most = text ? text + text / 4 : bytes;
    uint64_t grew = a->prompt_tokens > seen->chat_tokens ? a->prompt_tokens - seen->chat_tokens : 0;
    if (grew + MARGIN < least)
        return err_set(err, -EBADMSG, "a message of %llu tokens made the prompt longer by %llu; the chat template drops what clients say: give the model another 'template'", (unsigned long long)(text ? text : bytes / 4), (unsigned long long)grew);
    if (grew > most + MARGIN)
        return err_set(err, -EBADMSG, "a message of %llu tokens made the prompt longer by %llu; the chat template says it more than once: give the model another 'template'", (unsigned long long)(text ? text : bytes / 4), (unsigned long long)grew);
    return 0;
}

static int judge_reuse(const struct answer *a, struct err *err)
{
    uint64_t cached = 0, computed = 0;
    if (!json_u64(json_get(a->timings, "cache_n"), &cached) || !json_u64(json_get(a->timings, "prompt_n"), &computed))
        return err_set(err, -EBADMSG, "the answer does not tell what was computed: it has no 'timings'");
    if (cached >= computed)
        return 0;
    return err_set(err, -EBADMSG, "of a prompt that it had just read it computed %llu tokens again and kept %llu; every turn of a conversation will be read from its beginning: look for 'prompt re-processing' in the engine's log", (unsigned long long)computed,
                   (unsigned long long)cached);
}

static int judge_draft(const struct fleet_service *s, const struct answer *a, struct err *err)
{
    uint64_t drafted = 0;
    if (json_u64(json_get(a->timings, "draft_n"), &drafted) && drafted > 0)
        return 0;
    return err_set(err, -EBADMSG, "'%s' is declared, and of %llu tokens none was drafted; the drafter must be one for this model: its log says why it is left out", s->shape.speculative[0], (unsigned long long)a->made_tokens);
}

static bool thinks_aloud(struct str s)
{
    static const char *const marks[] = {"<think", "</think", "<|channel", "<|thinking", "[THINK]", "<reasoning"};
    for (size_t i = 0; i < BASE_COUNT(marks); i++)
        if (str_find(s, str_of(marks[i])) >= 0)
            return true;
    return false;
}

static int judge_reasoning(const struct answer *a, struct err *err)
{
    base_autobuf struct buf shown = QUOTE;
    quote(&shown, a->content);
    if (thinks_aloud(a->content))
        return err_set(err, -EBADMSG, "what it thinks is in the answer: '%s'; 'args: [--reasoning-format, deepseek]' of llama.cpp, or '--reasoning-parser' of vLLM, takes it out", shown.ptr);
    if (!a->reasoning.len)
        return err_set(err, -EBADMSG, "the answer has no reasoning_content: '%s'; it does not think, or says so in a form that the engine does not know: give the model another 'template', or declare no 'reasoning'", shown.len ? shown.ptr : "");
    return 0;
}

static int judge_tool(const struct answer *a, struct err *err)
{
    json_val function = json_get(json_at(a->calls, 0), "function");
    struct str name = text_of(json_get(function, "name")), arguments = text_of(json_get(function, "arguments")), colour;
    base_autobuf struct buf shown = QUOTE;
    if (!json_is_obj(function)) {
        quote(&shown, a->content);
        return err_set(err, -EBADMSG, "a tool that must be called was not: it said '%s'; %s", shown.len ? shown.ptr : "", advice(PROBE_TOOL));
    }
    quote(&shown, str_eq_c(name, PROBE_TOOL_NAME) ? arguments : name);
    if (!str_eq_c(name, PROBE_TOOL_NAME))
        return err_set(err, -EBADMSG, "it called tool '%s' where there was only '" PROBE_TOOL_NAME "'; %s", shown.len ? shown.ptr : "", advice(PROBE_TOOL));
    struct json *j = NULL;
    int r = json_parse(arguments, &j, NULL);
    bool right = r == 0 && json_str(json_get(json_root(j), "colour"), &colour) && (str_eq_c(colour, "red") || str_eq_c(colour, "green") || str_eq_c(colour, "blue"));
    json_free(j);
    if (r == -ENOMEM)
        return err_nomem(err);
    return right ? 0 : err_set(err, -EBADMSG, "it called the tool with '%s', which is not the JSON that the tool takes; %s", shown.len ? shown.ptr : "", advice(PROBE_TOOL));
}

static bool says(struct str s, struct str word)
{
    for (size_t i = 0; i + word.len <= s.len; i++)
        if (str_eq_nocase((struct str){s.ptr + i, word.len}, word))
            return true;
    return false;
}

static int judge_image(const struct answer *a, struct err *err)
{
    base_autobuf struct buf shown = QUOTE;
    if (says(a->content, STR("red")) || says(a->reasoning, STR("red")))
        return 0;
    quote(&shown, a->content.len ? a->content : a->reasoning);
    return err_set(err, -EBADMSG, "asked for the colour of a red picture it said '%s'; %s", shown.len ? shown.ptr : "", advice(PROBE_IMAGE));
}

static int judge_sound(const struct answer *a, const struct probe_seen *seen, struct err *err)
{
    if (!a->made_tokens && !a->content.len && !a->reasoning.len)
        return err_set(err, -EBADMSG, "it has nothing to say to a sound; %s", advice(PROBE_SOUND));
    if (seen->chat_tokens && a->prompt_tokens && a->prompt_tokens < seen->chat_tokens + SOUND_MIN)
        return err_set(err, -EBADMSG, "a sound of one second made the prompt no longer (%llu tokens); it was dropped: %s", (unsigned long long)a->prompt_tokens, advice(PROBE_SOUND));
    return 0;
}

static int judge(const struct fleet_service *s, enum probe_check c, const struct answer *a, struct probe_seen *seen, struct err *err)
{
    switch (c) {
    case PROBE_CHAT:
        return judge_chat(a, seen, err);
    case PROBE_TEMPLATE:
        return judge_template(s, a, seen, err);
    case PROBE_REUSE:
        return judge_reuse(a, err);
    case PROBE_DRAFT:
        return judge_draft(s, a, err);
    case PROBE_REASONING:
        return judge_reasoning(a, err);
    case PROBE_TOOL:
        return judge_tool(a, err);
    case PROBE_IMAGE:
        return judge_image(a, err);
    case PROBE_SOUND:
        return judge_sound(a, seen, err);
    case PROBE_SIZE:
    case PROBE_EFFORT: /* taken is enough */
    case PROBE_CHECKS:
        break;
    }
    return 0;
}

int probe_check_judge(const struct fleet_service *s, enum probe_check c, size_t index, unsigned status, struct str body, struct probe_seen *seen, struct err *err)
{
    struct answer a;
    int r = read_answer(body, &a, err);
    if (r < 0)
        return r;
    if (c == PROBE_SIZE && status == 200)
        see_size(&a, seen);
    else if (c == PROBE_SIZE)
        r = 0;
    else if (status != 200)
        r = refused(c, status, &a, err);
    else if (!a.chat)
        r = not_chat(err);
    else
        r = judge(s, c, &a, seen, err);
    json_free(a.json);
    if (r == -EBADMSG && c == PROBE_EFFORT && index < s->serves.n_efforts)
        return err_prefix(err, "'%s'", s->serves.efforts[index]);
    return r;
}
