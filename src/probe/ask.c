/* SPDX-License-Identifier: MIT
 *
 * The battery's questions, as the chat requests that clients send: what is asked of whom, and the bodies. No I/O.
 *
 * They are small (some hundred tokens in all), greedy, and the same each time. The longer message is about 250 tokens, or as many bytes as a third of a slot holds, whatever its tokenizer makes of them.
 */
#include "probe_int.h"

#include <conf/conf.h>
#include <errno.h>

#define SHORT "Say hello to me." /* as long as what is asked about the sound, so that the two prompts differ by the sound alone */
#define HEAR "What do you hear"

_Static_assert(sizeof SHORT == sizeof HEAR, "the two prompts are equally long");

const char *probe_check_text(enum probe_check c)
{
    static const char *const text[] = {
        [PROBE_CHAT] = "chat",           [PROBE_SIZE] = "size",     [PROBE_TEMPLATE] = "template", [PROBE_REUSE] = "prompt reuse", [PROBE_DRAFT] = "drafting",
        [PROBE_REASONING] = "reasoning", [PROBE_EFFORT] = "effort", [PROBE_TOOL] = "tool call",    [PROBE_IMAGE] = "image",        [PROBE_SOUND] = "sound",
    };
    return c < PROBE_CHECKS ? text[c] : "";
}

/* ---- who is asked what ------------------------------------------------------------------------------------------ */

static bool is_kind(const struct fleet_service *s, const char *kind)
{
    return strcmp(s->runtime->engine, kind) == 0;
}

/* One of berth's engines that makes text, or anything else with a list of models that declares what it serves. */
static bool chats(const struct fleet_service *s)
{
    const char *path, *body;
    struct arena *a = arena_new(64UL * 1024);
    bool makes = a && engine_token_request(s, a, &path, &body) == 0;
    arena_free(a);
    const struct fleet_serves *v = &s->serves;
    return makes || (s->identity && (v->tools || v->reasoning || v->images || v->sound || v->n_efforts));
}

static bool has_arg(const struct fleet_service *s, const char *flag)
{
    for (size_t i = 0; i < s->n_args; i++)
        if (strcmp(s->args[i], flag) == 0)
            return true;
    return false;
}

static bool drafts(const struct fleet_service *s)
{
    return s->shape.n_speculative && strncmp(s->shape.speculative[0], "draft-", 6) == 0;
}

bool probe_check_applies(const struct fleet_service *s, enum probe_check c, size_t index)
{
    bool llama = is_kind(s, "llama.cpp");
    if (index >= (c == PROBE_EFFORT ? s->serves.n_efforts : 1) || !chats(s))
        return false;
    switch (c) {
    case PROBE_SIZE:
        return llama || is_kind(s, "vllm");
    case PROBE_REUSE: /* others do not tell, or keep whole blocks only */
        return llama && !has_arg(s, "--no-cache-prompt");
    case PROBE_DRAFT:
        return llama && drafts(s);
    case PROBE_REASONING:
        return s->serves.reasoning;
    case PROBE_TOOL:
        return s->serves.tools;
    case PROBE_IMAGE:
        return s->serves.images;
    case PROBE_SOUND:
        return s->serves.sound;
    case PROBE_CHAT:
    case PROBE_TEMPLATE:
    case PROBE_EFFORT:
    case PROBE_CHECKS:
        break;
    }
    return c < PROBE_CHECKS;
}

/* ---- bodies --------------------------------------------------------------------------------------------------------- */

const char *probe_check_path(enum probe_check c)
{
    return c == PROBE_SIZE ? "/tokenize" : "/v1/chat/completions";
}

size_t probe_text_bytes(const struct fleet_service *s)
{
    struct fleet_shape sh;
    engine_shape(s, &sh);
    uint64_t third = engine_slot_context(&sh) / 3;
    return third < PROBE_TEXT_BYTES ? (size_t)third : PROBE_TEXT_BYTES;
}

/* Words that repeat little, so that no template or cache takes them for others. */
static void add_text(const struct fleet_service *s, struct buf *out)
{
    static const char *const ships[] = {"barge", "ferry", "trawler", "cutter", "tanker", "schooner"}, *const deeds[] = {"unloads", "waits", "takes on water", "leaves", "is painted"};
    size_t most = probe_text_bytes(s);
    for (unsigned i = 0; out->len < most; i++)
        buf_addf(out, "At berth %u a %s %s. ", i * 7 % 90 + 1, ships[i % BASE_COUNT(ships)], deeds[i % BASE_COUNT(deeds)]);
    if (buf_status(out) == 0)
        out->len = most; /* all of it is ASCII */
}

static void begin(struct json_out *o, const char *model, unsigned max_tokens)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "model", model);
    json_out_u64(o, "max_tokens", max_tokens);
    json_out_u64(o, "temperature", 0);
    json_out_bool(o, "stream", false);
}

static void message(struct json_out *o, struct str text)
{
    json_out_arr(o, "messages");
    json_out_obj(o, NULL);
    json_out_cstr(o, "role", "user");
    json_out_str(o, "content", text);
    json_out_end(o);
    json_out_end(o);
}

/* A text and, behind it, what is seen or heard. */
static void message_of_parts(struct json_out *o, const char *text, const char *kind, struct str data)
{
    json_out_arr(o, "messages");
    json_out_obj(o, NULL);
    json_out_cstr(o, "role", "user");
    json_out_arr(o, "content");
    json_out_obj(o, NULL);
    json_out_cstr(o, "type", "text");
    json_out_cstr(o, "text", text);
    json_out_end(o);
    json_out_obj(o, NULL);
    json_out_cstr(o, "type", kind);
    json_out_obj(o, kind);
    if (strcmp(kind, "image_url") == 0) {
        json_out_str(o, "url", data);
    } else {
        json_out_str(o, "data", data);
        json_out_cstr(o, "format", "wav");
    }
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
}

/* set_light(colour: red, green or blue): an engine that knows how holds the model to it, so that also a small one can. */
static void tools(struct json_out *o)
{
    static const char *const colours[] = {"red", "green", "blue"};
    json_out_cstr(o, "tool_choice", "required");
    json_out_arr(o, "tools");
    json_out_obj(o, NULL);
    json_out_cstr(o, "type", "function");
    json_out_obj(o, "function");
    json_out_cstr(o, "name", PROBE_TOOL_NAME);
    json_out_cstr(o, "description", "Sets the colour of the light.");
    json_out_obj(o, "parameters");
    json_out_cstr(o, "type", "object");
    json_out_obj(o, "properties");
    json_out_obj(o, "colour");
    json_out_cstr(o, "type", "string");
    json_out_arr(o, "enum");
    for (size_t i = 0; i < BASE_COUNT(colours); i++)
        json_out_cstr(o, NULL, colours[i]);
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    json_out_arr(o, "required");
    json_out_cstr(o, NULL, "colour");
    json_out_end(o);
    for (unsigned open = 0; open < 4; open++) /* parameters, function, the tool, the list */
        json_out_end(o);
}

static void ask_media(struct json_out *o, const char *model, enum probe_check c)
{
    base_autobuf struct buf data = BUF_INIT(PROBE_QUESTION_MAX / 2);
    begin(o, model, c == PROBE_IMAGE ? 256 : 16);
    if (c == PROBE_IMAGE) {
        buf_add_c(&data, "data:image/png;base64,");
        probe_add_picture(&data);
        message_of_parts(o, "Which colour fills this picture: red, green or blue? Answer with that one word.", "image_url", buf_str(&data));
    } else {
        probe_add_tone(&data);
        message_of_parts(o, HEAR, "input_audio", buf_str(&data));
    }
}

static void ask(struct json_out *o, const struct fleet_service *s, const char *model, enum probe_check c, size_t index, struct str text)
{
    switch (c) {
    case PROBE_SIZE:
        json_out_obj(o, NULL);
        json_out_cstr(o, "model", model);
        json_out_str(o, is_kind(s, "vllm") ? "prompt" : "content", text);
        json_out_bool(o, "add_special_tokens", false);
        break;
    case PROBE_TEMPLATE:
    case PROBE_REUSE:
        begin(o, model, 1);
        message(o, text);
        break;
    case PROBE_DRAFT:
        begin(o, model, 64);
        message(o, STR("Count from one to fifty, in words."));
        break;
    case PROBE_REASONING:
        begin(o, model, 96);
        message(o, STR("What is 17 times 23?"));
        break;
    case PROBE_TOOL:
        begin(o, model, 512);
        message(o, STR("Set the light to red. Call the tool."));
        tools(o);
        break;
    case PROBE_IMAGE:
    case PROBE_SOUND:
        ask_media(o, model, c);
        break;
    case PROBE_CHAT:
    case PROBE_EFFORT:
    case PROBE_CHECKS:
        begin(o, model, c == PROBE_CHAT ? 8 : 1);
        message(o, STR(SHORT));
        if (c == PROBE_EFFORT)
            json_out_cstr(o, "reasoning_effort", s->serves.efforts[index]);
        break;
    }
    json_out_end(o);
}

int probe_check_body(const struct fleet_service *s, const char *model, enum probe_check c, size_t index, struct buf *out)
{
    base_autobuf struct buf text = BUF_INIT((size_t)2 * PROBE_TEXT_BYTES);
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    add_text(s, &text);
    ask(o, s, model, c, index, buf_str(&text));
    int r = json_out_finish(o, false, out);
    json_out_free(o);
    return r < 0 ? r : buf_status(&text);
}
