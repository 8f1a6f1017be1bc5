/* SPDX-License-Identifier: MIT
 *
 * The battery without sockets: who is asked what, what the questions are, and what is made of answers, most of them as llama-server 0.7.0 gives them; and the picture and the tone, byte for byte.
 */
#include <conf/conf.h>
#include <os/os.h>
#include <probe/probe_int.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const struct fleet_host bare = {.name = "here"};
static const struct fleet_runtime llama = {.name = "llama", .engine = "llama.cpp"}, vllm = {.name = "vllm", .engine = "vllm"}, generic = {.name = "own", .engine = "generic"};
static const char *const drafter[] = {"draft-simple"}, *const ngram[] = {"ngram-mod"}, *const words[] = {"low", "high"};

static struct fleet_service service(const struct fleet_runtime *runtime)
{
    return (struct fleet_service){.name = "small", .host = &bare, .runtime = runtime, .port = 1, .bind = "127.0.0.1", .shape = {.split_auto = true, .slots = 2, .context = 8192}};
}

/* ---- who is asked what ------------------------------------------------------------------------------------------ */

static unsigned asked(const struct fleet_service *s)
{
    unsigned set = 0;
    for (unsigned c = 0; c < PROBE_CHECKS; c++)
        if (probe_check_applies(s, (enum probe_check)c, 0))
            set |= 1u << c;
    return set;
}

static void each_is_asked_what_it_declares(void **state)
{
    (void)state;
    const unsigned plain = 1u << PROBE_CHAT | 1u << PROBE_SIZE | 1u << PROBE_TEMPLATE | 1u << PROBE_REUSE;
    struct fleet_service s = service(&llama);
    assert_int_equal(asked(&s), plain);
    s.shape.speculative = ngram;
    s.shape.n_speculative = 1;
    assert_int_equal(asked(&s), plain); /* it may find nothing to draft */
    s.shape.speculative = drafter;
    assert_int_equal(asked(&s), plain | 1u << PROBE_DRAFT);
    s.serves = (struct fleet_serves){.tools = FLEET_YES, .reasoning = FLEET_YES, .images = FLEET_YES, .sound = FLEET_YES, .efforts = words, .n_efforts = 2};
    assert_int_equal(asked(&s), (1u << PROBE_CHECKS) - 1);
    assert_true(probe_check_applies(&s, PROBE_EFFORT, 1));
    assert_false(probe_check_applies(&s, PROBE_EFFORT, 2));
    assert_false(probe_check_applies(&s, PROBE_TOOL, 1));
}

static void what_makes_no_text_is_asked_nothing(void **state)
{
    (void)state;
    static const char *const embedding[] = {"--embeddings"}, *const uncached[] = {"--no-cache-prompt"};
    struct fleet_service s = service(&llama), v = service(&vllm), g = service(&generic);
    s.args = embedding;
    s.n_args = 1;
    assert_int_equal(asked(&s), 0);
    s.args = uncached;
    assert_int_equal(asked(&s), 1u << PROBE_CHAT | 1u << PROBE_SIZE | 1u << PROBE_TEMPLATE);
    assert_int_equal(asked(&v), 1u << PROBE_CHAT | 1u << PROBE_SIZE | 1u << PROBE_TEMPLATE);
    assert_int_equal(asked(&g), 0);
    g.serves.tools = FLEET_YES;
    g.identity = "/v1/models";
    assert_int_equal(asked(&g), 1u << PROBE_CHAT | 1u << PROBE_TEMPLATE | 1u << PROBE_TOOL);
}

/* ---- questions --------------------------------------------------------------------------------------------------------- */

static struct json *question(const struct fleet_service *s, enum probe_check c, size_t index)
{
    base_autobuf struct buf b = BUF_INIT(PROBE_QUESTION_MAX);
    struct json *j = NULL;
    assert_int_equal(probe_check_body(s, "small", c, index, &b), 0);
    assert_int_equal(json_parse(buf_str(&b), &j, NULL), 0);
    return j;
}

static json_val message_of(const struct json *j)
{
    return json_get(json_at(json_get(json_root(j), "messages"), 0), "content");
}

static void questions_are_what_clients_send(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    s.serves = (struct fleet_serves){.efforts = words, .n_efforts = 2};
    struct str text;
    for (unsigned c = 0; c < PROBE_CHECKS; c++) {
        struct json *j = question(&s, (enum probe_check)c, c == PROBE_EFFORT ? 1 : 0);
        assert_true(str_eq_c(json_get_str(json_root(j), "model", ""), "small"));
        assert_string_equal(probe_check_path((enum probe_check)c), c == PROBE_SIZE ? "/tokenize" : "/v1/chat/completions");
        if (c == PROBE_EFFORT)
            assert_true(str_eq_c(json_get_str(json_root(j), "reasoning_effort", ""), "high"));
        json_free(j);
    }
    struct json *j = question(&s, PROBE_TOOL, 0);
    json_val f = json_get(json_at(json_get(json_root(j), "tools"), 0), "function");
    assert_true(str_eq_c(json_get_str(f, "name", ""), "set_light"));
    assert_int_equal(json_count(json_get(json_get(json_get(json_get(f, "parameters"), "properties"), "colour"), "enum")), 3);
    assert_true(str_eq_c(json_get_str(json_root(j), "tool_choice", ""), "required"));
    json_free(j);
    j = question(&s, PROBE_IMAGE, 0);
    assert_true(str_starts(json_get_str(json_get(json_at(message_of(j), 1), "image_url"), "url", ""), STR("data:image/png;base64,iVBORw0KGgo")));
    json_free(j);
    j = question(&s, PROBE_SOUND, 0);
    assert_true(str_starts(json_get_str(json_get(json_at(message_of(j), 1), "input_audio"), "data", ""), STR("UklGR")));
    json_free(j);
    j = question(&s, PROBE_TEMPLATE, 0);
    assert_true(json_str(message_of(j), &text));
    assert_int_equal(text.len, 1000);
    json_free(j);
    s.shape.context = 512; /* 256 each */
    j = question(&s, PROBE_TEMPLATE, 0);
    assert_true(json_str(message_of(j), &text));
    assert_int_equal(text.len, 85);
    json_free(j);
    s.runtime = &vllm;
    j = question(&s, PROBE_SIZE, 0);
    assert_true(json_str(json_get(json_root(j), "prompt"), &text));
    json_free(j);
}

/* The digest is of what Python, with zlib, reads as 64 by 64 pixels of (255, 0, 0); its module wave counts 440 periods in the tone that begins so. */
static void picture_and_tone_are_what_they_say(void **state)
{
    (void)state;
    base_autobuf struct buf png = BUF_INIT(PROBE_QUESTION_MAX), wav = BUF_INIT(PROBE_QUESTION_MAX);
    char hex[OS_SHA256_HEX];
    probe_add_picture(&png);
    assert_int_equal(buf_status(&png), 0);
    struct os_digest *d = os_digest_new();
    assert_int_equal(os_digest_add(d, png.ptr, png.len), 0);
    assert_int_equal(os_digest_hex(d, hex), 0);
    assert_string_equal(hex, "f39bf5005994fa197f3531c93e32cf29d918928e8a9d19648a6b0516c18f7bd1");
    os_digest_free(d);
    probe_add_tone(&wav);
    assert_int_equal(wav.len, (44 + 32000 + 2) / 3 * 4);
    assert_true(str_starts(buf_str(&wav), STR("UklGRiR9AABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YQB9AAAAAF8FlQp7D")));
    base_autobuf struct buf small = BUF_INIT(64);
    probe_add_picture(&small);
    assert_int_equal(buf_status(&small), -E2BIG);
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

static char text[ERR_TEXT_MAX];

static int judge(const struct fleet_service *s, enum probe_check c, unsigned status, const char *body, struct probe_seen *seen)
{
    struct err err = {0};
    int r = probe_check_judge(s, c, 0, status, str_of(body), seen, &err);
    snprintf(text, sizeof text, "%s", r < 0 ? err.text : "");
    return r;
}

#define SAID(content, usage, more) "{\"choices\":[{\"message\":{\"role\":\"assistant\",\"content\":" content more "}}],\"usage\":" usage ",\"timings\":{\"cache_n\":2,\"prompt_n\":11,\"draft_n\":0}}"
#define USED(prompt) "{\"prompt_tokens\":" prompt ",\"completion_tokens\":8}"

static void a_chat_is_answered(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {0};
    assert_int_equal(judge(&s, PROBE_CHAT, 200, SAID("\"Hello\"", USED("19"), ""), &seen), 0);
    assert_int_equal(seen.chat_tokens, 19);
    assert_int_equal(judge(&s, PROBE_CHAT, 200, SAID("null", USED("19"), ""), &seen), 0); /* it thinks first */
    assert_int_equal(judge(&s, PROBE_CHAT, 200, SAID("\"\"", "{\"prompt_tokens\":19,\"completion_tokens\":0}", ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "the answer is empty"));
    assert_int_equal(judge(&s, PROBE_CHAT, 200, SAID("\"Hello\"", USED("3000"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "a prompt of 3000 tokens; the chat template adds the rest"));
    assert_int_equal(judge(&s, PROBE_CHAT, 500, "{\"error\":{\"message\":\"no chat template\"}}", &seen), -EBADMSG);
    assert_string_equal(text, "status 500: 'no chat template'; look at the engine's log; a model without a chat template needs 'template'");
    assert_int_equal(judge(&s, PROBE_CHAT, 401, "{\"error\":\"who are you\"}", &seen), -EBADMSG);
    assert_string_equal(text, "status 401: it wants a key: who are you");
    assert_int_equal(judge(&s, PROBE_CHAT, 200, "<html>", &seen), -EBADMSG);
    assert_non_null(strstr(text, "another program"));
}

static void a_template_that_drops_or_repeats_is_found(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {.chat_tokens = 19};
    assert_int_equal(judge(&s, PROBE_SIZE, 200, "{\"tokens\":[1,2,3,4,5]}", &seen), 0);
    assert_int_equal(seen.text_tokens, 5);
    assert_int_equal(judge(&s, PROBE_SIZE, 200, "{\"count\":250,\"tokens\":null}", &seen), 0);
    assert_int_equal(seen.text_tokens, 250);
    assert_int_equal(judge(&s, PROBE_TEMPLATE, 200, SAID("\"a\"", USED("265"), ""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_TEMPLATE, 200, SAID("\"a\"", USED("19"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "a message of 250 tokens made the prompt longer by 0; the chat template drops what clients say"));
    assert_int_equal(judge(&s, PROBE_TEMPLATE, 200, SAID("\"a\"", USED("515"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "longer by 496; the chat template says it more than once"));
    /* nobody could tell how long it is */
    assert_int_equal(judge(&s, PROBE_SIZE, 404, "{}", &seen), 0);
    seen.text_tokens = 0;
    assert_int_equal(judge(&s, PROBE_TEMPLATE, 200, SAID("\"a\"", USED("265"), ""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_TEMPLATE, 200, SAID("\"a\"", USED("20"), ""), &seen), -EBADMSG);
    assert_int_equal(judge(&s, PROBE_TEMPLATE, 200, SAID("\"a\"", USED("2100"), ""), &seen), -EBADMSG);
}

static void reuse_and_drafting_are_counted(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {0};
    s.shape.speculative = drafter;
    s.shape.n_speculative = 1;
    assert_int_equal(judge(&s, PROBE_REUSE, 200, "{\"choices\":[{\"message\":{}}],\"timings\":{\"cache_n\":542,\"prompt_n\":1}}", &seen), 0);
    assert_int_equal(judge(&s, PROBE_REUSE, 200, SAID("\"a\"", USED("13"), ""), &seen), -EBADMSG); /* a common beginning is no reuse */
    assert_non_null(strstr(text, "computed 11 tokens again and kept 2"));
    assert_int_equal(judge(&s, PROBE_REUSE, 200, "{\"choices\":[{\"message\":{}}]}", &seen), -EBADMSG);
    assert_int_equal(judge(&s, PROBE_DRAFT, 200, "{\"choices\":[{\"message\":{}}],\"timings\":{\"draft_n\":46,\"draft_n_accepted\":0}}", &seen), 0);
    assert_int_equal(judge(&s, PROBE_DRAFT, 200, SAID("\"one two\"", USED("13"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "'draft-simple' is declared, and of 8 tokens none was drafted"));
    assert_int_equal(judge(&s, PROBE_DRAFT, 200, "{\"choices\":[{\"message\":{}}]}", &seen), -EBADMSG);
}

static void reasoning_has_a_field_of_its_own(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {0};
    assert_int_equal(judge(&s, PROBE_REASONING, 200, SAID("\"\"", USED("13"), ",\"reasoning_content\":\"17 times 20\""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_REASONING, 200, SAID("\"391\"", USED("13"), ",\"reasoning\":\"17 times 20\""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_REASONING, 200, SAID("\"<think>17 times\"", USED("13"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "what it thinks is in the answer: '<think>17 times'"));
    assert_int_equal(judge(&s, PROBE_REASONING, 200, SAID("\"391\"", USED("13"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "no reasoning_content: '391'"));
}

#define CALL(name, arguments) SAID("null", USED("13"), ",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" arguments "}}]")

static void a_tool_is_called_with_json(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {0};
    assert_int_equal(judge(&s, PROBE_TOOL, 200, CALL("set_light", "\"{\\\"colour\\\": \\\"red\\\"}\""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_TOOL, 200, SAID("\"<tool_call>{}\"", USED("13"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "a tool that must be called was not: it said '<tool_call>{}'"));
    assert_int_equal(judge(&s, PROBE_TOOL, 200, CALL("set", "\"{}\""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "it called tool 'set'"));
    assert_int_equal(judge(&s, PROBE_TOOL, 200, CALL("set_light", "\"{colour\""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "with '{colour', which is not the JSON that the tool takes"));
    assert_int_equal(judge(&s, PROBE_TOOL, 200, CALL("set_light", "\"{\\\"colour\\\": \\\"pink\\\"}\""), &seen), -EBADMSG);
    assert_int_equal(judge(&s, PROBE_TOOL, 200, CALL("set_light", "{\"colour\":\"red\"}"), &seen), -EBADMSG); /* clients parse a string */
}

static void pictures_and_sounds_are_taken(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {.chat_tokens = 13};
    assert_int_equal(judge(&s, PROBE_IMAGE, 200, SAID("\"Red.\"", USED("90"), ""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_IMAGE, 200, SAID("\"Blue\"", USED("90"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "asked for the colour of a red picture it said 'Blue'"));
    assert_int_equal(judge(&s, PROBE_IMAGE, 500, "{\"error\":{\"message\":\"image input is not supported\"}}", &seen), -EBADMSG);
    assert_non_null(strstr(text, "image input is not supported"));
    assert_int_equal(judge(&s, PROBE_SOUND, 200, SAID("\"A beep.\"", USED("40"), ""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_SOUND, 200, SAID("\"Hello!\"", USED("14"), ""), &seen), -EBADMSG);
    assert_non_null(strstr(text, "it was dropped"));
    assert_int_equal(judge(&s, PROBE_SOUND, 200, SAID("\"\"", "{\"prompt_tokens\":40}", ""), &seen), -EBADMSG);
}

static void an_effort_that_the_template_refuses_is_named(void **state)
{
    (void)state;
    struct fleet_service s = service(&llama);
    struct probe_seen seen = {0};
    s.serves = (struct fleet_serves){.efforts = words, .n_efforts = 2};
    assert_int_equal(judge(&s, PROBE_EFFORT, 200, SAID("\"a\"", USED("13"), ""), &seen), 0);
    assert_int_equal(judge(&s, PROBE_EFFORT, 400, "{\"error\":{\"code\":400,\"message\":\"Jinja Exception: no such effort\"}}", &seen), -EBADMSG);
    assert_string_equal(text, "'low': status 400: 'Jinja Exception: no such effort'; the template does not know that word: take it out of 'efforts', or give the model another 'template'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_asked_what_it_declares),
        cmocka_unit_test(what_makes_no_text_is_asked_nothing),
        cmocka_unit_test(questions_are_what_clients_send),
        cmocka_unit_test(picture_and_tone_are_what_they_say),
        cmocka_unit_test(a_chat_is_answered),
        cmocka_unit_test(a_template_that_drops_or_repeats_is_found),
        cmocka_unit_test(reuse_and_drafting_are_counted),
        cmocka_unit_test(reasoning_has_a_field_of_its_own),
        cmocka_unit_test(a_tool_is_called_with_json),
        cmocka_unit_test(pictures_and_sounds_are_taken),
        cmocka_unit_test(an_effort_that_the_template_refuses_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
