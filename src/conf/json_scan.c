/* SPDX-License-Identifier: MIT
 *
 * Finding members of a JSON object without building anything: no allocation but for a key that is written with escapes. Values are skipped by counting brackets outside strings; what is inside them is the
 * reader's business who gets the whole text later. A text that is no object, or that ends inside a value, is refused.
 *
 * What is skipped is looked at in blocks of 64 bytes, a bit for each: which bytes are quotes, backslashes and brackets is asked for all of them at once, and what follows from it (which quotes are escaped,
 * what lies between quotes) is arithmetic on whole words. So a text costs about the same whatever is in it.
 */
#include <conf/conf.h>

#include <errno.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 64
#define SHORT 16 /* what is mostly shorter than that is looked at byte by byte first */

struct scan {
    struct str text;
    size_t at;
};

/* The character here, or 0 at the end. */
static char peek(const struct scan *s)
{
    return s->at < s->text.len ? s->text.ptr[s->at] : '\0';
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

/* Which of 64 bytes are c once `fold` is set in them: '{' and '[', and '}' and ']', differ in one bit. */
static uint64_t find_all(const char *p, char fold, char c)
{
    uint64_t found = 0;
#ifdef __SSE2__
    for (unsigned i = 0; i < BLOCK; i += 16) {
        __m128i bytes = _mm_or_si128(_mm_loadu_si128((const __m128i *)(const void *)(p + i)), _mm_set1_epi8(fold));
        found |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(c))) << i;
    }
#else
    for (unsigned i = 0; i < BLOCK; i++)
        found |= (uint64_t)((p[i] | fold) == c) << i;
#endif
    return found;
}

/* The block here; near the end of the text a copy of what is left, with zeroes behind. */
static const char *block_at(const struct scan *s, char scratch[BLOCK])
{
    size_t left = s->text.len - s->at;
    if (left >= BLOCK)
        return s->text.ptr + s->at;
    memset(scratch, 0, BLOCK);
    memcpy(scratch, s->text.ptr + s->at, left);
    return scratch;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_spaces(struct scan *s)
{
    char scratch[BLOCK];
    for (unsigned i = 0; i < SHORT; i++, s->at++)
        if (!is_space(peek(s)))
            return;
    for (; s->at < s->text.len; s->at += BLOCK) {
        const char *p = block_at(s, scratch);
        uint64_t other = ~(find_all(p, 0, ' ') | find_all(p, 0, '\t') | find_all(p, 0, '\n') | find_all(p, 0, '\r'));
        if (other) {
            s->at += (size_t)__builtin_ctzll(other);
            return;
        }
    }
}

static inline void skip_space(struct scan *s)
{
    if (is_space(peek(s)))
        skip_spaces(s);
}

/* The quotes that no backslash escapes. *carry: the first byte is escaped by the block before; then, whether this one escapes the next one's. Runs of backslashes are told apart by whether they begin at an even or an odd
 * place: adding such a beginning to its run carries to the place behind it. */
static uint64_t live_quotes(uint64_t quotes, uint64_t slashes, uint64_t *carry)
{
    const uint64_t even = 0x5555555555555555u;
    uint64_t sum, first = *carry;
    if (!(slashes | first))
        return quotes;
    slashes &= ~first;
    uint64_t follows = slashes << 1 | first, odd_starts = slashes & ~even & ~follows;
    *carry = __builtin_add_overflow(odd_starts, slashes, &sum);
    return quotes & ~((even ^ sum << 1) & follows);
}

/* Within a long string: nothing before the next quote matters but the backslashes at its end, which are walked over afterwards: who stands among them must not leap again and again. */
static void leap(struct scan *s)
{
    if (s->at >= s->text.len)
        return;
    const char *quote = memchr(s->text.ptr + s->at, '"', s->text.len - s->at);
    size_t to = quote ? (size_t)(quote - s->text.ptr) : s->text.len;
    if (to - s->at < BLOCK)
        return;
    while (to > s->at && s->text.ptr[to - 1] == '\\')
        to--;
    s->at = to;
}

/* Over a string that begins here. */
static bool skip_string(struct scan *s)
{
    char scratch[BLOCK];
    uint64_t carry = 0;
    s->at++;
    while (s->at < s->text.len) {
        const char *p = block_at(s, scratch);
        uint64_t quotes = find_all(p, 0, '"'), slashes = find_all(p, 0, '\\'), live = live_quotes(quotes, slashes, &carry);
        if (live) {
            s->at += (size_t)__builtin_ctzll(live) + 1;
            return true;
        }
        s->at += BLOCK;
        if (!quotes && !slashes)
            leap(s);
    }
    return false;
}

/* Every bit becomes the parity of itself and those below: what lies between quotes, with the first of each pair. */
static uint64_t between(uint64_t quotes)
{
    for (unsigned shift = 1; shift < BLOCK; shift *= 2)
        quotes ^= quotes << shift;
    return quotes;
}

/* Over an object or array that begins here. */
static bool skip_nest(struct scan *s)
{
    char scratch[BLOCK];
    size_t depth = 0;
    uint64_t carry = 0, inside = 0; /* all ones: the block begins in a string */
    while (s->at < s->text.len) {
        const char *p = block_at(s, scratch);
        uint64_t quotes = find_all(p, 0, '"'), slashes = find_all(p, 0, '\\');
        if (inside && !quotes && !slashes && !carry) {
            s->at += BLOCK;
            leap(s);
            continue;
        }
        uint64_t strings = between(live_quotes(quotes, slashes, &carry)) ^ inside;
        uint64_t open = find_all(p, 0x20, '{') & ~strings, close = find_all(p, 0x20, '}') & ~strings;
        inside = (uint64_t)0 - (strings >> (BLOCK - 1));
        if (!(open | close)) {
            s->at += BLOCK;
            continue;
        }
        if ((size_t)__builtin_popcountll(close) < depth) {
            depth += (size_t)__builtin_popcountll(open);
            depth -= (size_t)__builtin_popcountll(close);
            s->at += BLOCK;
            continue;
        }
        for (uint64_t both = open | close; both; both &= both - 1) {
            uint64_t bit = both & -both;
            if (bit & open) {
                depth++;
            } else if (--depth == 0) {
                s->at += (size_t)__builtin_ctzll(bit) + 1;
                return true;
            }
        }
        s->at += BLOCK;
    }
    return false;
}

/* Over a number or a word, up to what cannot be of it. */
static void skip_scalar(struct scan *s)
{
    char scratch[BLOCK];
    for (; s->at < s->text.len; s->at += BLOCK) {
        const char *p = block_at(s, scratch);
        uint64_t end = find_all(p, 0, '"') | find_all(p, 0, ',') | find_all(p, 0x20, '{') | find_all(p, 0x20, '}');
        if (end) {
            s->at += (size_t)__builtin_ctzll(end);
            return;
        }
    }
    s->at = s->text.len;
}

/* Over one value of any kind, up to what follows it. */
static bool skip_value(struct scan *s)
{
    size_t start = s->at;
    while (s->at < s->text.len) {
        switch (s->text.ptr[s->at]) {
        case '"':
            return skip_string(s);
        case '{':
        case '[':
            return skip_nest(s);
        case '}':
        case ']':
        case ',':
            return s->at > start;
        default:
            break;
        }
        if (++s->at - start == SHORT)
            skip_scalar(s);
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
    unsigned found = 0;
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
            found += found < 2;
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
    if (found > 1)
        return err_set(err, -EEXIST, "member '%s' is there twice in a JSON object", key);
    *ret_off = off;
    *ret_len = len;
    return 0;
}

size_t json_scan_marks(struct str text, size_t most)
{
    struct scan s = {.text = text};
    char scratch[BLOCK];
    size_t n = 0;
    uint64_t carry = 0, inside = 0;
    for (; s.at < text.len && n < most; s.at += BLOCK) {
        const char *p = block_at(&s, scratch);
        uint64_t strings = between(live_quotes(find_all(p, 0, '"'), find_all(p, 0, '\\'), &carry)) ^ inside;
        uint64_t marks = (find_all(p, 0, ',') | find_all(p, 0, ':') | find_all(p, 0x20, '{')) & ~strings;
        inside = (uint64_t)0 - (strings >> (BLOCK - 1));
        if (marks)
            n += (size_t)__builtin_popcountll(marks);
    }
    return n < most ? n : most;
}

/* ---- walking -------------------------------------------------------------------------------------------- */

int json_walk_begin(struct json_walk *w, struct str text)
{
    struct scan s = {.text = text};
    skip_space(&s);
    char open = peek(&s);
    if (open != '{' && open != '[')
        return -EBADMSG;
    *w = (struct json_walk){.text = text, .at = s.at + 1, .close = open == '{' ? '}' : ']'};
    return 0;
}

int json_walk_next(struct json_walk *w, struct str *ret_key)
{
    struct scan s = {.text = w->text, .at = w->at};
    if (w->waits && !skip_value(&s))
        return -EBADMSG;
    skip_space(&s);
    w->waits = false;
    w->at = s.at;
    if (peek(&s) == w->close)
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
    char c = peek(&s);
    if (!c || c == ',' || c == '}' || c == ']')
        return -EBADMSG;
    w->at = s.at;
    w->later = w->waits = true;
    *ret_key = key;
    return 1;
}

char json_walk_peek(const struct json_walk *w)
{
    return w->text.ptr[w->at];
}

int json_walk_value(struct json_walk *w, struct str *ret_value)
{
    struct scan s = {.text = w->text, .at = w->at};
    if (!skip_value(&s))
        return -EBADMSG;
    *ret_value = str_trim((struct str){s.text.ptr + w->at, s.at - w->at});
    w->at = s.at;
    w->waits = false;
    return 0;
}

void json_walk_enter(const struct json_walk *w, struct json_walk *ret_inner)
{
    *ret_inner = (struct json_walk){.text = w->text, .at = w->at + 1, .close = json_walk_peek(w) == '{' ? '}' : ']'};
}

void json_walk_leave(struct json_walk *w, const struct json_walk *inner)
{
    w->at = inner->at + 1;
    w->waits = false;
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
