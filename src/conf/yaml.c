/* SPDX-License-Identifier: MIT
 *
 * Reading YAML through libyaml's events into a plain tree. Only what a person can mean in one way is taken: maps, lists
 * and scalars, no anchors, aliases, tags, second documents, duplicate or complex keys. All nodes and texts lie in one
 * arena. The depth is checked at each event, so that libyaml, which looks at most a line or 1024 characters ahead, never
 * works on a text that is nested much deeper than what is allowed. libyaml's own messages speak of its grammar;
 * the common ones are put into words for the author of the file.
 */
#include "conf_int.h"

#include <assert.h>
#include <errno.h>
#include <yaml.h>

/* Nodes that one file may hold: far over any real fleet, and a bound on what a mebibyte of commas costs. */
#define YAML_NODES_MAX 65536
/* Memory of one tree: 65536 nodes of about 100 bytes, their texts with padding, and room to sort keys. */
#define YAML_TREE_MAX ((size_t)32 * 1024 * 1024)
/* Characters of a key that an error shows. */
#define YAML_SHOW_MAX 64

struct yaml {
    struct arena *arena;
    struct yaml_node *root;
};

struct level {
    struct yaml_node *node, *last; /* an open map or list and its newest child */
    size_t count;
    bool has_key; /* of a map: key was read, its value comes next */
    struct str key;
    struct conf_place key_at;
};

struct reader {
    struct yaml *tree;
    struct str text;
    const char *name;
    struct err *err;
    struct level open[CONF_DEPTH_MAX];
    size_t depth, nodes;
    bool had_document;
};

static struct conf_place place_of(yaml_mark_t m)
{
    /* a text of CONF_YAML_MAX bytes has no line or column that an unsigned could not hold */
    return (struct conf_place){(unsigned)m.line + 1, (unsigned)m.column + 1};
}

BASE_PRINTF(3, 4) static int refuse(const struct reader *r, struct conf_place at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    base_autobuf struct buf say = BUF_INIT(ERR_TEXT_MAX);
    buf_addv(&say, fmt, ap);
    va_end(ap);
    if (buf_status(&say) < 0)
        return err_nomem(r->err);
    return err_set(r->err, -EINVAL, "%s:%u:%u: %s", r->name, at.line, at.column, say.ptr);
}

/* ---- what libyaml says, in the author's words ------------------------------------------------------------- */

/* Where an error is shown: at the problem, or at the beginning of what libyaml was reading. */
enum where { AT_PROBLEM, AT_CONTEXT };

static const struct wording {
    const char *problem; /* how libyaml's text begins */
    enum where where;
    const char *say;
    const char *after_line; /* when set, the line where the context begins stands between say and this */
} wordings[] = {
    {"found a tab character", AT_PROBLEM, "a tab in the indentation; use spaces", NULL},
    {"mapping values are not allowed", AT_PROBLEM, "':' is not allowed here; put the text in quotes, or check the indentation", NULL},
    {"did not find expected key", AT_PROBLEM, "this does not belong to the map that begins at line ", "; check the indentation"},
    {"did not find expected '-' indicator", AT_PROBLEM, "this does not belong to the list that begins at line ",
     "; check the indentation"},
    {"did not find expected ',' or ']'", AT_PROBLEM, "',' or ']' is missing before this, in the list that begins at line ", ""},
    {"did not find expected ',' or '}'", AT_PROBLEM, "',' or '}' is missing before this, in the map that begins at line ", ""},
    {"could not find expected ':'", AT_CONTEXT, "a key without a value; write 'key: value'", NULL},
    {"found unexpected end of stream", AT_CONTEXT, "the quote that opens here is not closed", NULL},
    {"found unexpected document indicator", AT_CONTEXT, "the quote that opens here is not closed", NULL},
    {"did not find expected node content", AT_PROBLEM, "a value is missing here", NULL},
    {"block sequence entries are not allowed", AT_PROBLEM, "a list cannot begin here; begin it on its own line", NULL},
    {"did not find expected <document start>", AT_PROBLEM, "this stands after the end of the document; remove it", NULL},
    {"did not find expected alphabetic or numeric", AT_CONTEXT,
     "anchors and aliases are not supported; put text that begins with '&' or '*' in quotes", NULL},
    {"found unknown escape character", AT_PROBLEM, "unknown escape; write '\\\\' for a backslash, or use single quotes", NULL},
};

/* The byte at a mark, whose index counts characters. Only for errors: counts from the start. */
static char byte_at(const struct reader *r, yaml_mark_t m)
{
    size_t i = 0;
    for (size_t chars = 0; i < r->text.len; i++) {
        if (((unsigned char)r->text.ptr[i] & 0xC0) == 0x80)
            continue;
        if (chars++ == m.index)
            return r->text.ptr[i];
    }
    return '\0';
}

static int parser_error(const struct reader *r, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR)
        return err_nomem(r->err);
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_READER_ERROR)
        return refuse(r, conf_locate(r->text, p->problem_offset), "%s; remove this character", problem);
    if (strncmp(problem, "found character that cannot start", 33) == 0) {
        char c = byte_at(r, p->problem_mark);
        if (c == '\t')
            return refuse(r, place_of(p->problem_mark), "a tab in the indentation; use spaces");
        return refuse(r, place_of(p->problem_mark), "a value cannot begin with '%c'; put it in quotes", c);
    }
    for (size_t i = 0; i < BASE_COUNT(wordings); i++) {
        const struct wording *w = &wordings[i];
        if (strncmp(problem, w->problem, strlen(w->problem)) != 0)
            continue;
        struct conf_place context = place_of(p->context_mark);
        struct conf_place at = w->where == AT_CONTEXT ? context : place_of(p->problem_mark);
        if (w->after_line)
            return refuse(r, at, "%s%u%s", w->say, context.line, w->after_line);
        return refuse(r, at, "%s", w->say);
    }
    return refuse(r, place_of(p->problem_mark), "%s", problem);
}

/* ---- the tree ---------------------------------------------------------------------------------------------- */

static int copy_text(const struct reader *r, const yaml_event_t *e, struct str *ret)
{
    struct str text = {(const char *)e->data.scalar.value, e->data.scalar.length};
    char *copy = arena_dup(r->tree->arena, text);
    if (!copy)
        return err_nomem(r->err);
    *ret = (struct str){copy, text.len};
    return 0;
}

static int read_key(struct reader *r, const yaml_event_t *e)
{
    struct level *in = &r->open[r->depth - 1];
    struct conf_place at = place_of(e->start_mark);
    if (e->type != YAML_SCALAR_EVENT)
        return refuse(r, at, "a key must be a plain word, not a list or map");
    if (e->data.scalar.length == 0)
        return refuse(r, at, "a key is missing here");
    if (e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return refuse(r, at, "a key must be a plain word; remove the quotes");
    in->has_key = true;
    in->key_at = at;
    return copy_text(r, e, &in->key);
}

/* Hangs n into what is open, under the key that was read last when that is a map. */
static void hang(struct reader *r, struct yaml_node *n)
{
    if (r->depth == 0) {
        r->tree->root = n;
        return;
    }
    struct level *in = &r->open[r->depth - 1];
    if (in->node->kind == YAML_MAP) {
        n->key = in->key;
        n->key_line = in->key_at.line;
        n->key_column = in->key_at.column;
        in->has_key = false;
    }
    if (in->last)
        in->last->next = n;
    else
        in->node->first = n;
    in->last = n;
    in->count++;
}

/* Makes the node of event e. A list or map becomes the innermost that is open. */
static int add_node(struct reader *r, const yaml_event_t *e, enum yaml_kind kind)
{
    struct conf_place at = place_of(e->start_mark);
    if (kind != YAML_SCALAR && r->depth == CONF_DEPTH_MAX)
        return refuse(r, at, "nested more than %d levels deep", CONF_DEPTH_MAX);
    if (r->nodes == YAML_NODES_MAX)
        return refuse(r, at, "the file holds more than %d values", YAML_NODES_MAX);
    struct yaml_node *n = arena_alloc(r->tree->arena, 1, sizeof *n);
    if (!n)
        return err_nomem(r->err);
    r->nodes++;
    n->kind = kind;
    n->line = at.line;
    n->column = at.column;
    hang(r, n);
    if (kind != YAML_SCALAR) {
        r->open[r->depth++] = (struct level){.node = n};
        return 0;
    }
    n->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return copy_text(r, e, &n->text);
}

static int by_key_then_place(const void *pa, const void *pb)
{
    const struct yaml_node *a = *(struct yaml_node *const *)pa, *b = *(struct yaml_node *const *)pb;
    size_t common = a->key.len < b->key.len ? a->key.len : b->key.len;
    int d = memcmp(a->key.ptr, b->key.ptr, common);
    if (d == 0 && a->key.len != b->key.len)
        d = a->key.len < b->key.len ? -1 : 1;
    if (d == 0 && a->key_line != b->key_line)
        d = a->key_line < b->key_line ? -1 : 1;
    if (d == 0 && a->key_column != b->key_column)
        d = a->key_column < b->key_column ? -1 : 1;
    return d;
}

static bool is_before(const struct yaml_node *a, const struct yaml_node *b)
{
    return a->key_line != b->key_line ? a->key_line < b->key_line : a->key_column < b->key_column;
}

/* Sorts rather than compares each with each: a map of one file may have tens of thousands of keys. */
static int refuse_duplicates(const struct reader *r, const struct level *map)
{
    if (map->count < 2)
        return 0;
    struct yaml_node **sorted = arena_alloc(r->tree->arena, map->count, sizeof(struct yaml_node *));
    if (!sorted)
        return err_nomem(r->err);
    size_t n = 0;
    for (struct yaml_node *c = map->node->first; c; c = c->next)
        sorted[n++] = c;
    qsort(sorted, n, sizeof(struct yaml_node *), by_key_then_place);
    const struct yaml_node *first = NULL, *again = NULL; /* the earliest repetition in the file */
    for (size_t i = 1; i < n; i++) {
        if (str_eq(sorted[i - 1]->key, sorted[i]->key) && (!again || is_before(sorted[i], again))) {
            first = sorted[i - 1];
            again = sorted[i];
        }
    }
    if (!again)
        return 0;
    base_autobuf struct buf key = BUF_INIT(ERR_TEXT_MAX);
    buf_add_printable(&key, again->key, YAML_SHOW_MAX);
    if (buf_status(&key) < 0)
        return err_nomem(r->err);
    return refuse(r, (struct conf_place){again->key_line, again->key_column}, "duplicate key '%s'; it stands at line %u too", key.ptr,
                  first->key_line);
}

static int close_level(struct reader *r)
{
    assert(r->depth > 0); /* libyaml's ends have their starts */
    const struct level *done = &r->open[--r->depth];
    return done->node->kind == YAML_MAP ? refuse_duplicates(r, done) : 0;
}

/* Anchors and tags may stand before any kind of node. */
static int refuse_properties(const struct reader *r, const yaml_event_t *e)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    }
    if (anchor)
        return refuse(r, place_of(e->start_mark), "anchors are not supported; write the value out where it is used");
    if (tag)
        return refuse(r, place_of(e->start_mark), "tags are not supported; remove it, or put text that begins with '!' in quotes");
    return 0;
}

static int take_event(struct reader *r, const yaml_event_t *e)
{
    int rc = refuse_properties(r, e);
    if (rc < 0)
        return rc;
    bool ends = e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
    bool wants_key = r->depth > 0 && r->open[r->depth - 1].node->kind == YAML_MAP && !r->open[r->depth - 1].has_key;
    if (e->type == YAML_ALIAS_EVENT)
        return refuse(r, place_of(e->start_mark), "aliases are not supported; write the value out, or put text that begins with '*' in quotes");
    if (wants_key && !ends)
        return read_key(r, e);
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->had_document)
            return refuse(r, place_of(e->start_mark), "a second document begins here; keep one in each file");
        r->had_document = true;
        return 0;
    case YAML_SCALAR_EVENT:
        return add_node(r, e, YAML_SCALAR);
    case YAML_MAPPING_START_EVENT:
        return add_node(r, e, YAML_MAP);
    case YAML_SEQUENCE_START_EVENT:
        return add_node(r, e, YAML_SEQ);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        return close_level(r);
    default:
        return 0;
    }
}

static int read_events(struct reader *r, yaml_parser_t *p)
{
    for (bool end = false; !end;) {
        yaml_event_t e;
        if (!yaml_parser_parse(p, &e))
            return parser_error(r, p);
        int rc = take_event(r, &e);
        end = e.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
        if (rc < 0)
            return rc;
    }
    if (r->tree->root)
        return 0;
    struct yaml_node *n = arena_alloc(r->tree->arena, 1, sizeof *n);
    if (!n)
        return err_nomem(r->err);
    n->line = n->column = 1;
    n->text = STR("");
    r->tree->root = n;
    return 0;
}

/* Offset of the first byte that belongs to no UTF-8 character or is NUL, or text.len. */
static size_t bad_byte_at(struct str text)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t point;
        size_t n = str_utf8_decode((struct str){text.ptr + i, text.len - i}, &point);
        if (n == 0 || point == 0)
            return i;
        i += n;
    }
    return text.len;
}

static int check_text(const struct reader *r)
{
    if (r->text.len > CONF_YAML_MAX)
        return refuse(r, (struct conf_place){1, 1}, "the file is larger than %zu KiB", CONF_YAML_MAX / 1024);
    size_t at = bad_byte_at(r->text);
    if (at == r->text.len)
        return 0;
    return refuse(r, conf_locate(r->text, at), "byte 0x%02x is not UTF-8 text", (unsigned)(unsigned char)r->text.ptr[at]);
}

int yaml_parse(struct str text, const char *name, struct yaml **ret, struct err *err)
{
    if (!text.ptr)
        text = STR("");
    if (str_starts(text, STR("\xEF\xBB\xBF")))
        text = (struct str){text.ptr + 3, text.len - 3};
    struct reader r = {.text = text, .name = name, .err = err};
    int rc = check_text(&r);
    if (rc < 0)
        return rc;
    struct yaml *y = calloc(1, sizeof *y);
    if (!y)
        return err_nomem(err);
    y->arena = arena_new(YAML_TREE_MAX);
    yaml_parser_t p;
    if (!y->arena || !yaml_parser_initialize(&p)) {
        yaml_free(y);
        return err_nomem(err);
    }
    yaml_parser_set_encoding(&p, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&p, (const unsigned char *)text.ptr, text.len);
    r.tree = y;
    rc = read_events(&r, &p);
    yaml_parser_delete(&p);
    if (rc < 0) {
        yaml_free(y);
        return rc;
    }
    *ret = y;
    return 0;
}

struct yaml *yaml_free(struct yaml *y)
{
    if (y) {
        y->arena = arena_free(y->arena);
        free(y);
    }
    return NULL;
}

const struct yaml_node *yaml_root(const struct yaml *y)
{
    return y->root;
}

const struct yaml_node *yaml_get(const struct yaml_node *n, const char *key)
{
    if (!n || n->kind != YAML_MAP)
        return NULL;
    for (const struct yaml_node *c = n->first; c; c = c->next)
        if (str_eq_c(c->key, key))
            return c;
    return NULL;
}

bool yaml_is_null(const struct yaml_node *n)
{
    return n && n->kind == YAML_SCALAR && !n->quoted &&
           (n->text.len == 0 || str_eq_c(n->text, "~") || str_eq_c(n->text, "null"));
}
