/* SPDX-License-Identifier: MIT
 *
 * Overrides: the engine matches -ot patterns with ECMAScript's std::regex, searched anywhere in a tensor's name; here they are translated to POSIX extended expressions. Only whether a name matches
 * is asked, so lazy quantifiers equal greedy ones. What has no equivalent (lookahead, back references) is refused by name instead of being guessed. Sets of characters are written anew from the bytes that
 * they hold, which leaves no second escaping rule to get wrong.
 */
#include "fit_int.h"

#include <errno.h>
#include <regex.h>
#include <stdlib.h>

#define PATTERN_MAX 2048 /* bytes; "blk\.(0|1|...|511)" has 2 KiB */
#define NEST_MAX 32
#define REPEAT_MAX 255   /* what POSIX guarantees */
#define EXPAND_MAX 4096  /* repetitions inside each other multiply, in memory too */

struct fit_regex {
    regex_t re;
};

/* Names are ASCII; a set is one bit for each character but NUL. */
struct set {
    bool has[128];
};

struct reader {
    const char *pattern, *at;
    struct buf out;
    unsigned depth;
    unsigned expansion; /* product of all bounds */
    bool quantifiable; /* what stands before the reader can be repeated */
    struct err *err;
};

static int refuse(struct reader *r, const char *why)
{
    return err_set(r->err, -EINVAL, "pattern \"%s\": %s at character %zu", r->pattern, why, (size_t)(r->at - r->pattern) + 1);
}

static bool is_digit(int c) { return c >= '0' && c <= '9'; }
static bool is_upper(int c) { return c >= 'A' && c <= 'Z'; }
static bool is_lower(int c) { return c >= 'a' && c <= 'z'; }
static bool is_alpha(int c) { return is_upper(c) || is_lower(c); }
static bool is_alnum(int c) { return is_alpha(c) || is_digit(c); }
static bool is_word(int c) { return is_alnum(c) || c == '_'; }
static bool is_space(int c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_punct(int c) { return c > ' ' && c < 127 && !is_alnum(c); }
static bool is_xdigit(int c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static const struct {
    const char *name;
    bool (*is)(int c);
} classes[] = {{"digit", is_digit}, {"d", is_digit}, {"upper", is_upper}, {"lower", is_lower}, {"alpha", is_alpha}, {"alnum", is_alnum},
               {"w", is_word},      {"s", is_space}, {"space", is_space}, {"punct", is_punct}, {"xdigit", is_xdigit}};

static void set_add(struct set *s, bool (*is)(int c), bool negated)
{
    for (int c = 1; c < 128; c++)
        if (is(c) != negated)
            s->has[c] = true;
}

/* Writes a set so that no character in it means anything else: ']' first, '[', '^' and '-' last. */
static void set_write(struct buf *out, const struct set *s, bool negated)
{
    size_t n = 0;
    int only = 0;
    for (int c = 1; c < 128; c++)
        if (s->has[c]) {
            n++;
            only = c;
        }
    if (!negated && n == 1 && only == '^') {
        buf_add_c(out, "\\^");
        return;
    }
    buf_add_c(out, negated ? "[^" : "[");
    if (s->has[']'])
        buf_add_char(out, ']');
    for (int c = 1; c < 128; c++)
        if (s->has[c] && c != ']' && c != '[' && c != '^' && c != '-')
            buf_add_char(out, (char)c);
    for (const char *last = "[^-"; *last; last++)
        if (s->has[(unsigned char)*last])
            buf_add_char(out, *last);
    buf_add_char(out, ']');
}

/* \d \w \s and their opposites; false for any other letter. */
static bool class_letter(char c, struct set *s)
{
    char lower = (char)(c | 0x20);
    if (lower != 'd' && lower != 'w' && lower != 's')
        return false;
    set_add(s, lower == 'd' ? is_digit : lower == 'w' ? is_word : is_space, c != lower);
    return true;
}

/* "[:digit:]" inside a set. */
static int named_class(struct reader *r, struct set *s)
{
    r->at += 2;
    size_t len = strcspn(r->at, ":]");
    for (size_t i = 0; i < BASE_COUNT(classes); i++)
        if (str_eq_c((struct str){r->at, len}, classes[i].name) && r->at[len] == ':' && r->at[len + 1] == ']') {
            set_add(s, classes[i].is, false);
            r->at += len + 2;
            return 0;
        }
    return refuse(r, "an unknown character class");
}

/* One character of a set; *ret 0: a whole class was added instead. */
static int set_member(struct reader *r, struct set *s, int *ret)
{
    unsigned char c = (unsigned char)*r->at;
    if (c == 0)
        return refuse(r, "a set without its ]");
    if (c == '[' && (r->at[1] == '.' || r->at[1] == '='))
        return refuse(r, "a collating element, write the character itself");
    *ret = 0;
    if (c == '[' && r->at[1] == ':')
        return named_class(r, s);
    r->at++;
    if (c == '\\') {
        c = (unsigned char)*r->at;
        if (c == 0)
            return refuse(r, "a single \\ at the end");
        if (class_letter((char)c, s)) {
            r->at++;
            return 0;
        }
        if (is_alnum(c))
            return refuse(r, "an escape that is not supported here");
        r->at++;
    }
    if (c >= 128)
        return refuse(r, "a character outside ASCII in a set");
    *ret = c;
    return 0;
}

static int read_set(struct reader *r)
{
    struct set s = {0};
    r->at++;
    bool negated = *r->at == '^';
    r->at += negated;
    if (*r->at == ']')
        return refuse(r, "an empty set");
    while (*r->at != ']') {
        int from = 0, to = 0;
        int e = set_member(r, &s, &from);
        if (e < 0)
            return e;
        to = from;
        if (*r->at == '-' && r->at[1] != ']') {
            r->at++;
            e = set_member(r, &s, &to);
            if (e < 0)
                return e;
            if (from == 0 || to == 0 || to < from)
                return refuse(r, "a range without order");
        }
        for (int c = from; c > 0 && c <= to; c++)
            s.has[c] = true;
    }
    r->at++;
    set_write(&r->out, &s, negated);
    r->quantifiable = true;
    return 0;
}

static void add_literal(struct buf *out, char c)
{
    if (c && strchr(".[]()*+?{}|^$\\", c))
        buf_add_char(out, '\\');
    buf_add_char(out, c);
}

static int read_escape(struct reader *r)
{
    char c = *++r->at;
    if (c == 0)
        return refuse(r, "a single \\ at the end");
    struct set s = {0};
    if (class_letter(c, &s)) {
        set_write(&r->out, &s, false);
        r->quantifiable = true;
    } else if (c == 'b' || c == 'B') {
        buf_add_char(&r->out, '\\');
        buf_add_char(&r->out, c);
        r->quantifiable = false;
    } else if (is_digit(c)) {
        return refuse(r, "a back reference, which is not supported");
    } else if (is_alpha(c)) {
        return refuse(r, "an escape that is not supported");
    } else {
        add_literal(&r->out, c);
        r->quantifiable = true;
    }
    r->at++;
    return 0;
}

/* "{n}", "{n,}", "{n,m}" */
static int read_braces(struct reader *r)
{
    unsigned bounds[2] = {0, 0}, n = 0;
    const char *p = r->at + 1;
    bool open = false, digits = false;
    for (; *p && *p != '}'; p++) {
        if (is_digit(*p) && bounds[n] <= REPEAT_MAX) {
            bounds[n] = bounds[n] * 10 + (unsigned)(*p - '0');
            digits = true;
        } else if (*p == ',' && n == 0 && digits) {
            n = 1;
            open = p[1] == '}';
        } else {
            break;
        }
    }
    if (*p != '}' || !digits || bounds[0] > REPEAT_MAX || bounds[1] > REPEAT_MAX || (n == 1 && !open && bounds[1] < bounds[0]))
        return refuse(r, "a repetition that cannot be read (at most 255 times; a { that is meant needs \\{)");
    unsigned most = bounds[0] > bounds[1] ? bounds[0] : bounds[1];
    r->expansion *= most > 0 ? most : 1;
    if (r->expansion > EXPAND_MAX)
        return refuse(r, "more repetitions than anyone needs");
    buf_add(&r->out, r->at, (size_t)(p + 1 - r->at));
    r->at = p + 1;
    return 0;
}

static int read_quantifier(struct reader *r)
{
    if (!r->quantifiable)
        return refuse(r, "nothing to repeat");
    if (*r->at == '{') {
        int e = read_braces(r);
        if (e < 0)
            return e;
    } else {
        buf_add_char(&r->out, *r->at++);
    }
    if (*r->at == '?') /* lazy: the same names match */
        r->at++;
    return 0;
}

static int read_open(struct reader *r)
{
    r->at++;
    if (*r->at == '?') {
        if (r->at[1] != ':')
            return refuse(r, "a look-ahead, which is not supported");
        r->at += 2;
    }
    if (++r->depth > NEST_MAX)
        return refuse(r, "too many groups inside each other");
    buf_add_char(&r->out, '(');
    r->quantifiable = false;
    return 0;
}

static int read_one(struct reader *r)
{
    char c = *r->at;
    switch (c) {
    case '\\':
        return read_escape(r);
    case '[':
        return read_set(r);
    case '(':
        return read_open(r);
    case '*':
    case '+':
    case '?':
    case '{':
        return read_quantifier(r);
    case ']':
    case '}':
        return refuse(r, "a bracket without its opening one (one that is meant needs a \\)");
    case ')':
        if (r->depth-- == 0)
            return refuse(r, "a ) without its (");
        r->quantifiable = true;
        break;
    case '|':
    case '^':
    case '$':
        r->quantifiable = false;
        break;
    default:
        r->quantifiable = true;
    }
    buf_add_char(&r->out, c);
    r->at++;
    return 0;
}

static int translate(struct reader *r)
{
    while (*r->at) {
        int e = read_one(r);
        if (e < 0)
            return e;
    }
    if (r->depth > 0)
        return refuse(r, "a ( without its )");
    return 0;
}

int fit_regex_new(const char *pattern, struct fit_regex **ret, struct err *err)
{
    if (strlen(pattern) > PATTERN_MAX)
        return err_set(err, -EINVAL, "pattern of %zu bytes is over %d", strlen(pattern), PATTERN_MAX);
    struct reader r = {.pattern = pattern, .at = pattern, .out = BUF_INIT(64UL * PATTERN_MAX), .expansion = 1, .err = err};
    struct fit_regex *re = NULL;
    int e = translate(&r);
    if (e == 0)
        e = buf_status(&r.out) < 0 ? err_nomem(err) : 0;
    if (e == 0) {
        re = malloc(sizeof(*re));
        if (!re)
            e = err_nomem(err);
    }
    if (e == 0) {
        int code = regcomp(&re->re, r.out.ptr ? r.out.ptr : "", REG_EXTENDED | REG_NOSUB);
        if (code == REG_ESPACE) {
            e = err_nomem(err);
        } else if (code != 0) {
            char text[128];
            regerror(code, &re->re, text, sizeof(text));
            e = err_set(err, -EINVAL, "pattern \"%s\": %s", pattern, text);
        }
    }
    buf_release(&r.out);
    if (e < 0) {
        free(re);
        return e;
    }
    *ret = re;
    return 0;
}

struct fit_regex *fit_regex_free(struct fit_regex *re)
{
    if (re) {
        regfree(&re->re);
        free(re);
    }
    return NULL;
}

bool fit_regex_search(const struct fit_regex *re, const char *text)
{
    return regexec(&re->re, text, 0, NULL, 0) == 0;
}

/* \.ffn_(up|down|gate|gate_up)_(ch|)exps, without a regular expression because every tensor is asked. */
bool fit_is_routed_expert(const char *tensor)
{
    static const char *const parts[] = {"up_", "down_", "gate_up_", "gate_"};
    for (const char *p = tensor; (p = strstr(p, ".ffn_")); p++) {
        const char *q = p + 5;
        for (size_t i = 0; i < BASE_COUNT(parts); i++) {
            size_t n = strlen(parts[i]);
            if (strncmp(q, parts[i], n) != 0)
                continue;
            if (str_starts(str_of(q + n), STR("exps")) || str_starts(str_of(q + n), STR("chexps")))
                return true;
        }
    }
    return false;
}
