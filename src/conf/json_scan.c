/* SPDX-License-Identifier: MIT
 *
 * Finding one member at the top level of a JSON object without building anything: one pass, no allocation but for a key that is written with escapes. Values are skipped by counting brackets outside strings; what
 * is inside them is the reader's business who gets the whole text later. A text that is no object, or that ends inside a value, is refused.
 */
#include <conf/conf.h>

#include <errno.h>

struct scan {
    struct str text;
    size_t at;
    struct json_longs *longs;
};

static void skip_space(struct scan *s)
{
    while (s->at < s->text.len) {
        char c = s->text.ptr[s->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return;
        s->at++;
    }
}

/* The character here, or 0 at the end. */
static char peek(const struct scan *s)
{
    return s->at < s->text.len ? s->text.ptr[s->at] : '\0';
}

/* Over a string that was walked over before. */
static bool skip_known(struct scan *s)
{
    const char *begin = s->text.ptr + s->at;
    for (size_t i = 0; i < s->longs->n; i++)
        if (s->longs->list[i].begin == begin && (size_t)(s->longs->list[i].end - begin) <= s->text.len - s->at) {
            s->at += (size_t)(s->longs->list[i].end - begin);
            return true;
        }
    return false;
}

static void note_long(const struct scan *s, size_t begin)
{
    struct json_longs *l = s->longs;
    if (l->n == JSON_LONGS_MAX)
        return;
    l->list[l->n].begin = s->text.ptr + begin;
    l->list[l->n++].end = s->text.ptr + s->at;
}

/* Over a string that begins here: to the first quote with an even number of backslashes before it. */
static bool skip_string(struct scan *s)
{
    if (s->longs && skip_known(s))
        return true;
    size_t start = ++s->at;
    for (;;) {
        const char *quote = s->at < s->text.len ? memchr(s->text.ptr + s->at, '"', s->text.len - s->at) : NULL;
        if (!quote)
            return false;
        size_t end = (size_t)(quote - s->text.ptr), slashes = 0;
        while (end - slashes > start && s->text.ptr[end - slashes - 1] == '\\')
            slashes++;
        s->at = end + 1;
        if (slashes % 2)
            continue;
        if (s->longs && s->at - start > JSON_LONG_BYTES)
            note_long(s, start - 1);
        return true;
    }
}

/* Over one value of any kind, up to what follows it. */
static bool skip_value(struct scan *s)
{
    size_t depth = 0, start = s->at;
    while (s->at < s->text.len) {
        switch (s->text.ptr[s->at]) {
        case '"':
            if (!skip_string(s))
                return false;
            if (depth == 0)
                return true;
            break;
        case '{':
        case '[':
            depth++;
            s->at++;
            break;
        case '}':
        case ']':
            if (depth == 0)
                return s->at > start;
            s->at++;
            if (--depth == 0)
                return true;
            break;
        case ',':
            if (depth == 0)
                return s->at > start;
            s->at++;
            break;
        default:
            s->at++;
        }
    }
    return false;
}

/* True when the quoted token at [off, off + len) says key. */
static bool is_key(struct str token, const char *key)
{
    struct str plain = {token.ptr + 1, token.len - 2};
    if (!memchr(plain.ptr, '\\', plain.len))
        return str_eq_c(plain, key);
    base_autobuf struct buf text = BUF_INIT(256);
    return token.len <= 1024 && json_scan_string(token, &text, NULL) == 0 && str_eq_c(buf_str(&text), key);
}

static int broken(const struct scan *s, struct err *err, const char *what)
{
    return err_set(err, -EBADMSG, "%s at byte %zu of a JSON text", what, s->at);
}

int json_scan_member(struct str text, const char *key, size_t *ret_off, size_t *ret_len, struct err *err)
{
    struct scan s = {.text = text};
    bool found = false;
    size_t off = 0, len = 0;
    skip_space(&s);
    if (peek(&s) != '{')
        return broken(&s, err, "no object");
    s.at++;
    skip_space(&s);
    while (peek(&s) != '}') {
        size_t key_at = s.at;
        if (peek(&s) != '"' || !skip_string(&s))
            return broken(&s, err, "no key");
        bool wanted = is_key((struct str){text.ptr + key_at, s.at - key_at}, key);
        skip_space(&s);
        if (peek(&s) != ':')
            return broken(&s, err, "no ':' after a key");
        s.at++;
        skip_space(&s);
        size_t value_at = s.at;
        if (!skip_value(&s))
            return broken(&s, err, "no value");
        if (wanted) {
            found = true;
            off = value_at;
            len = str_trim((struct str){text.ptr + value_at, s.at - value_at}).len;
        }
        skip_space(&s);
        if (peek(&s) == ',') {
            s.at++;
            skip_space(&s);
            if (peek(&s) == '}')
                return broken(&s, err, "no key after ','");
        } else if (peek(&s) != '}') {
            return broken(&s, err, "no ',' or '}' after a value");
        }
    }
    if (!found)
        return err_set(err, -ENOENT, "no member '%s' in a JSON object", key);
    *ret_off = off;
    *ret_len = len;
    return 0;
}

int json_walk_begin(struct json_walk *w, struct str text, struct json_longs *longs)
{
    struct scan s = {.text = text};
    skip_space(&s);
    char open = peek(&s);
    if (open != '{' && open != '[')
        return -EBADMSG;
    *w = (struct json_walk){.text = text, .at = s.at + 1, .close = open == '{' ? '}' : ']', .longs = longs};
    return 0;
}

int json_walk_next(struct json_walk *w, struct str *ret_key, struct str *ret_value)
{
    struct scan s = {.text = w->text, .at = w->at, .longs = w->longs};
    skip_space(&s);
    if (peek(&s) == w->close && s.at < s.text.len)
        return 0;
    if (w->later) {
        if (peek(&s) != ',')
            return -EBADMSG;
        s.at++;
        skip_space(&s);
    }
    struct str key = {s.text.ptr + s.at, 0};
    if (w->close == '}') {
        size_t from = s.at;
        if (peek(&s) != '"' || !skip_string(&s))
            return -EBADMSG;
        key.len = s.at - from;
        skip_space(&s);
        if (peek(&s) != ':')
            return -EBADMSG;
        s.at++;
        skip_space(&s);
    }
    size_t from = s.at;
    if (!skip_value(&s))
        return -EBADMSG;
    w->at = s.at;
    w->later = true;
    *ret_key = key;
    *ret_value = str_trim((struct str){s.text.ptr + from, s.at - from});
    return 1;
}

int json_scan_string(struct str token, struct buf *out, struct err *err)
{
    struct json *j = NULL;
    struct str s;
    int r = json_parse(token, &j, err);
    if (r < 0)
        return -EBADMSG;
    if (json_str(json_root(j), &s)) {
        buf_add_str(out, s);
        r = buf_status(out);
    } else {
        r = err_set(err, -EBADMSG, "not a JSON string");
    }
    json_free(j);
    return r;
}
