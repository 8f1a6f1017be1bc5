/* SPDX-License-Identifier: MIT
 *
 * Formats by name: three are JSON and two YAML, so that a text is parsed here and its tree read by the format.
 */
#include "client_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct client_claim *client_add(struct client_reading *r, struct str name, unsigned line)
{
    struct client_claim *list = r->n < CLIENT_MODELS_MAX ? arena_grow(r->a, r->list, r->n + 1, &r->cap, sizeof *list) : NULL;
    if (!list) {
        err_set(r->err, r->n < CLIENT_MODELS_MAX ? -ENOMEM : -E2BIG, r->n < CLIENT_MODELS_MAX ? "out of memory" : "it lists more than %d models", CLIENT_MODELS_MAX);
        return NULL;
    }
    r->list = list;
    struct client_claim *c = &list[r->n];
    *c = (struct client_claim){.line = line};
    if (client_keep(r, name, &c->name) < 0)
        return NULL;
    r->n++;
    return c;
}

int client_keep(struct client_reading *r, struct str s, struct str *ret)
{
    const char *copy = arena_dup(r->a, s);
    if (!copy)
        return err_nomem(r->err);
    *ret = (struct str){copy, s.len};
    return 0;
}

int client_add_effort(struct client_reading *r, struct client_claim *c, size_t *cap, struct str word)
{
    struct str *list = arena_grow(r->a, (void *)(uintptr_t)c->efforts, c->n_efforts + 1, cap, sizeof *list);
    if (!list)
        return err_nomem(r->err);
    c->efforts = list;
    int e = client_keep(r, word, &list[c->n_efforts]);
    c->n_efforts += e == 0;
    return e;
}

unsigned client_line_of(struct str text, struct str key)
{
    unsigned line = 1;
    while (text.ptr) {
        struct str rest = str_split(&text, '\n');
        ptrdiff_t at;
        while (key.len && (at = str_find(rest, key)) >= 0) {
            size_t end = (size_t)at + key.len;
            if (at > 0 && rest.ptr[at - 1] == '"' && end < rest.len && rest.ptr[end] == '"')
                return line;
            rest = (struct str){rest.ptr + end, rest.len - end};
        }
        line++;
    }
    return 0;
}

static int render_json(int (*write)(const struct client_plan *p, struct json_out *o), const struct client_plan *p, struct buf *out, struct err *err)
{
    struct json_out *o = json_out_new();
    int r = o ? write(p, o) : -ENOMEM;
    if (r == 0)
        r = json_out_finish(o, true, out);
    json_out_free(o);
    return r < 0 ? err_sys(err, r, "the file cannot be made") : 0;
}

int client_render(enum fleet_format format, const struct client_plan *p, struct buf *out, struct err *err)
{
    int r = 0;
    switch (format) {
    case FLEET_OPENCODE:
        r = render_json(client_write_opencode, p, out, err);
        break;
    case FLEET_AIDER:
        r = render_json(client_write_aider, p, out, err);
        break;
    case FLEET_JSON:
        r = render_json(client_write_json, p, out, err);
        break;
    case FLEET_CONTINUE:
        client_write_continue(p, out);
        break;
    case FLEET_LITELLM:
        client_write_litellm(p, out);
        break;
    }
    if (r == 0 && (r = buf_status(out)) < 0)
        err_sys(err, r, "the file cannot be made");
    return r;
}

static int by_name(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    size_t least = x->len < y->len ? x->len : y->len;
    int order = least ? memcmp(x->ptr, y->ptr, least) : 0;
    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

/* Of two equal keys one program takes the first, another the last: what such an object claims cannot be judged. Claims are in objects alone, and the parser sees to it that they are not deep. */
static int refuse_duplicates(struct client_reading *r, json_val obj)
{
    size_t n = 0, iter = 0, all = json_count(obj);
    struct str *keys = calloc(all + 1, sizeof *keys);
    json_val child;
    int e = keys ? 0 : err_nomem(r->err);
    while (e == 0 && n < all && json_next(obj, &iter, &keys[n], &child)) {
        n++;
        if (json_is_obj(child))
            e = refuse_duplicates(r, child);
    }
    if (e == 0 && n)
        qsort(keys, n, sizeof *keys, by_name);
    for (size_t i = 1; e == 0 && i < n; i++)
        if (str_eq(keys[i - 1], keys[i]))
            e = err_set(r->err, -EBADMSG, "%u:1: key \"" STR_FMT "\" stands twice in one object", client_line_of(r->text, keys[i]), STR_ARG(keys[i]));
    free(keys);
    return e;
}

static int read_json(struct client_reading *r, int (*read)(struct client_reading *r, json_val root))
{
    struct json *j = NULL;
    int e = json_parse_relaxed(r->text, &j, r->err);
    if (e == 0 && !json_is_obj(json_root(j)))
        e = err_set(r->err, -EBADMSG, "1:1: it is no JSON object");
    if (e == 0)
        e = refuse_duplicates(r, json_root(j));
    if (e == 0)
        e = read(r, json_root(j));
    json_free(j);
    return e;
}

static int read_yaml(struct client_reading *r, int (*read)(struct client_reading *r, const struct yaml_node *root))
{
    struct yaml *y = NULL;
    int e = yaml_parse(r->text, "", &y, r->err);
    /* the name in front is the caller's to say */
    if (e < 0 && r->err && r->err->text[0] == ':')
        memmove(r->err->text, r->err->text + 1, strlen(r->err->text));
    if (e == 0)
        e = read(r, yaml_root(y));
    yaml_free(y);
    return e;
}

int client_read(enum fleet_format format, struct str text, struct arena *a, struct client_claim **ret, size_t *ret_n, struct err *err)
{
    struct client_reading r = {.text = text, .a = a, .err = err};
    int e = 0;
    if (text.len > CLIENT_TEXT_MAX)
        return err_set(err, -E2BIG, "it has more than %zu bytes", CLIENT_TEXT_MAX);
    switch (format) {
    case FLEET_OPENCODE:
        e = read_json(&r, client_read_opencode);
        break;
    case FLEET_AIDER:
        e = read_json(&r, client_read_aider);
        break;
    case FLEET_JSON:
        e = read_json(&r, client_read_json);
        break;
    case FLEET_CONTINUE:
        e = read_yaml(&r, client_read_continue);
        break;
    case FLEET_LITELLM:
        e = read_yaml(&r, client_read_litellm);
        break;
    }
    if (e < 0)
        return e == -EINVAL ? -EBADMSG : e;
    *ret = r.list;
    *ret_n = r.n;
    return 0;
}
