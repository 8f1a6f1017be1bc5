/* SPDX-License-Identifier: MIT
 *
 * Overrides' patterns: what of ECMAScript is understood matches as the engine's std::regex does, the rest is refused with its place.
 */
#include "fit_aid.h"

#include "../../src/fit/fit_int.h"

static bool matches(const char *pattern, const char *text)
{
    struct fit_regex *re = NULL;
    struct err err = {0};

    if (fit_regex_new(pattern, &re, &err) < 0)
        fail_msg("%s", err.text);
    bool r = fit_regex_search(re, text);
    re = fit_regex_free(re);
    return r;
}

static void understood(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *yes, *no;
    } cases[] = {
        {"ffn", "blk.0.ffn_up.weight", "blk.0.attn_q.weight"},
        {"blk\\.1\\.", "blk.1.ffn_up.weight", "blk.11.ffn_up.weight"},
        {"^blk\\.\\d\\.", "blk.7.x", "blk.17.x"},
        {"blk\\.\\d{2}\\.", "blk.17.x", "blk.7.x"},
        {"blk\\.\\d{2,}\\.", "blk.117.x", "blk.7.x"},
        {"blk\\.(2[0-9]|3[01])\\.ffn_.*_exps", "blk.31.ffn_up_exps.weight", "blk.32.ffn_up_exps.weight"},
        {"\\.ffn_(up|down|gate|gate_up)_(ch|)exps", "blk.0.ffn_gate_up_chexps.weight", "blk.0.ffn_up_shexp.weight"},
        {"\\.ffn_(?:up|down)_exps", "blk.0.ffn_down_exps.weight", "blk.0.ffn_gate_exps.weight"},
        {"blk\\.[^0-3]\\.", "blk.4.x", "blk.3.x"},
        {"[\\]x]y", "]y", "zy"},
        {"[a\\-c]$", "-", "b"},
        {"[\\w.]+weight$", "output.weight", "output.weight2"},
        {"[[:digit:]]+\\.ffn", "12.ffn", "x.ffn"},
        {"^token_embd", "token_embd.weight", "per_layer_token_embd.weight"},
        {"(a|b){2}c", "abc", "ac"},
        {"x+?y*?z??", "xx", "yz"},
        {"weight$", "a.weight", "a.weights"},
        {"a.c", "abc", "ac"},
        {"a\\.c", "a.c", "abc"},
        {"\\bffn", ".ffn", "xffn"},
        {"\\D\\d", "a1", "11"},
        {"[^[:alpha:]]", "1", "a"},
        {"", "anything", NULL},
        {"\\^\\$\\*\\+\\(\\)\\{\\}\\[\\]\\|\\/\\-", "^$*+(){}[]|/-", "^"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!matches(cases[i].pattern, cases[i].yes))
            fail_msg("'%s' does not match '%s'", cases[i].pattern, cases[i].yes);
        if (cases[i].no && matches(cases[i].pattern, cases[i].no))
            fail_msg("'%s' matches '%s'", cases[i].pattern, cases[i].no);
    }
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *says;
    } cases[] = {
        {"(?=a)b", "look-ahead"}, {"(?!a)b", "look-ahead"}, {"(a)\\1", "back reference"}, {"a(", "without its )"},       {"a)", "without its ("},          {"*a", "nothing to repeat"},
        {"(|+)", "nothing to repeat"}, {"a\\", "single \\"}, {"[a", "without its ]"},     {"[]a]", "empty set"},         {"[z-a]", "without order"},       {"[\\d-z]", "without order"},
        {"\\x41", "escape"},      {"\\u0041", "escape"},    {"\\n", "escape"},            {"[\\n]", "escape"},           {"a{1", "repetition"},            {"a{300}", "repetition"},
        {"a{3,2}", "repetition"}, {"a{,2}", "repetition"},  {"a}", "bracket"},            {"a]", "bracket"},             {"[[:nope:]]", "character class"}, {"[[.a.]]", "collating"},
        {"[\xc3\xa4]", "ASCII"},  {"((((((((((((((((((((((((((((((((((a", "too many groups"}, {"((a{99}){99}){99}", "more repetitions"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fit_regex *re = NULL;
        struct err err = {0};

        if (fit_regex_new(cases[i].pattern, &re, &err) != -EINVAL)
            fail_msg("'%s' is taken", cases[i].pattern);
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s': '%s' does not say '%s'", cases[i].pattern, err.text, cases[i].says);
    }
    char longest[4096];
    struct fit_regex *re = NULL;
    struct err err = {0};
    memset(longest, 'a', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(fit_regex_new(longest, &re, &err), -EINVAL);
}

static void experts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is;
    } cases[] = {
        {"blk.0.ffn_up_exps.weight", true},      {"blk.0.ffn_gate_up_exps.weight", true}, {"blk.0.ffn_down_chexps.weight", true}, {"blk.0.ffn_gate_exps.bias", true},
        {"blk.0.ffn_up_shexp.weight", false},    {"blk.0.ffn_gate_inp.weight", false},    {"blk.0.ffn_up.weight", false},         {"blk.0.attn_q.weight", false},
        {"blk.0.ffn_gate_up_shexp.weight", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(fit_is_routed_expert(cases[i].name), cases[i].is);
        /* as the engine's own expression says */
        assert_int_equal(matches("\\.ffn_(up|down|gate|gate_up)_(ch|)exps", cases[i].name), cases[i].is);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(understood), cmocka_unit_test(refused), cmocka_unit_test(experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
