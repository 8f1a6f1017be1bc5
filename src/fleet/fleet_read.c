/* SPDX-License-Identifier: MIT
 *
 * From YAML nodes to structs, by the tables of fleet_schema.c; and the wording of what is refused. A key that no table
 * has is refused with the nearest that it has, a value of the wrong form with the form that is wanted. Structs are
 * filled in the order of the file, so that the first fault from the top is the one that is told.
 */
#include "fleet_int.h"

#include <errno.h>

#define REF_NAMES_MAX 8 /* names that a message about a wrong one lists */

/* ---- messages ---------------------------------------------------------------------------------------------- */

static int refuse_v(const struct fleet_reader *r, struct fleet_pos at, const char *fmt, va_list ap) BASE_PRINTF(3, 0);
static int refuse_v(const struct fleet_reader *r, struct fleet_pos at, const char *fmt, va_list ap)
{
    base_autobuf struct buf say = BUF_INIT((size_t)4 * ERR_TEXT_MAX);
    buf_addv(&say, fmt, ap);
    if (buf_status(&say) < 0)
        return err_nomem(r->err);
    return err_set(r->err, -EINVAL, "%s:%u:%u: %s", r->fleet->file, at.line, at.column, say.ptr);
}

int fleet_refuse_at(const struct fleet_reader *r, struct fleet_pos at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = refuse_v(r, at, fmt, ap);
    va_end(ap);
    return rc;
}

int fleet_refuse(const struct fleet_reader *r, const struct yaml_node *n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = refuse_v(r, fleet_pos_of(n), fmt, ap);
    va_end(ap);
    return rc;
}

struct fleet_pos fleet_pos_of(const struct yaml_node *n)
{
    return (struct fleet_pos){n->line, n->column};
}

struct fleet_pos fleet_key_pos_of(const struct yaml_node *n)
{
    return (struct fleet_pos){n->key_line, n->key_column};
}

const char *fleet_show(const struct fleet_reader *r, struct str text)
{
    base_autobuf struct buf out = BUF_INIT(ERR_TEXT_MAX);
    buf_add_printable(&out, text, FLEET_SHOW_MAX);
    const char *shown = buf_status(&out) == 0 ? arena_dup(r->arena, buf_str(&out)) : NULL;
    return shown ? shown : "?";
}

const char *fleet_label(const struct fleet_reader *r)
{
    const char *label;
    if (!r->key)
        label = r->of;
    else if (r->item)
        label = arena_printf(r->arena, "item %zu of '%s' of %s", r->item, r->key, r->of);
    else
        label = arena_printf(r->arena, "'%s' of %s", r->key, r->of);
    return label ? label : "?";
}

/* ---- single values ------------------------------------------------------------------------------------------- */

static const char *kind_name(const struct yaml_node *n)
{
    return n->kind == YAML_MAP ? "a map" : n->kind == YAML_SEQ ? "a list" : "a single value";
}

/* A scalar that says something. */
static int require_scalar(const struct fleet_reader *r, const struct yaml_node *n)
{
    if (yaml_is_null(n))
        return fleet_refuse(r, n, "%s has no value; give it one or remove it", fleet_label(r));
    if (n->kind != YAML_SCALAR)
        return fleet_refuse(r, n, "%s must be a single value, not %s", fleet_label(r), kind_name(n));
    return 0;
}

/* The first character that is not seen or changes how what is around it is read (controls, separators of lines, turns of the direction of writing): in an argument, a path or a unit file it is never meant. False without one. The
 * text is UTF-8. */
static bool find_hidden(struct str s, uint32_t *ret_point)
{
    for (size_t n; s.len && (n = str_utf8_decode(s, ret_point)) > 0; s = (struct str){s.ptr + n, s.len - n})
        if (!str_is_shown(*ret_point))
            return true;
    return false;
}

int fleet_text(struct fleet_reader *r, const struct yaml_node *n, const char **ret)
{
    int rc = require_scalar(r, n);
    if (rc < 0)
        return rc;
    if (n->text.len > FLEET_TEXT_MAX)
        return fleet_refuse(r, n, "%s is longer than %d bytes", fleet_label(r), FLEET_TEXT_MAX);
    uint32_t point;
    if (find_hidden(n->text, &point))
        return fleet_refuse(r, n, point < 0xA0 ? "%s holds the control character 0x%02x; remove it" : "%s holds the hidden character U+%04X; remove it", fleet_label(r), (unsigned)point);
    const char *copy = arena_dup(r->arena, n->text);
    if (!copy)
        return err_nomem(r->err);
    *ret = copy;
    return 0;
}

int fleet_number(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t max, uint64_t *ret)
{
    int rc = require_scalar(r, n);
    if (rc < 0)
        return rc;
    uint64_t v;
    bool is_number = str_to_u64(n->text, &v) == 0;
    if (is_number && n->quoted)
        return fleet_refuse(r, n, "%s must be a number; remove the quotes", fleet_label(r));
    /* to other readers of YAML it is octal */
    if (is_number && n->text.len > 1 && n->text.ptr[0] == '0')
        return fleet_refuse(r, n, "%s must be a number without a 0 in front, not '%s'", fleet_label(r), fleet_show(r, n->text));
    if (!is_number || v < min || v > max)
        return fleet_refuse(r, n, "%s must be a whole number from %llu to %llu, not '%s'", fleet_label(r), (unsigned long long)min,
                            (unsigned long long)max, fleet_show(r, n->text));
    *ret = v;
    return 0;
}

int fleet_bytes(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t *ret)
{
    int rc = require_scalar(r, n);
    if (rc < 0)
        return rc;
    uint64_t v;
    rc = units_bytes(n->text, &v);
    if (rc == -ERANGE)
        return fleet_refuse(r, n, "%s is too large: '%s'", fleet_label(r), fleet_show(r, n->text));
    if (rc < 0)
        return fleet_refuse(r, n, "%s must be a size such as '31.86GiB', not '%s'", fleet_label(r), fleet_show(r, n->text));
    if (v < min)
        return fleet_refuse(r, n, "%s must be more than 0", fleet_label(r));
    char last = n->text.ptr[n->text.len - 1];
    if (v > 0 && last >= '0' && last <= '9')
        return fleet_refuse(r, n, "%s has no unit; write '%sMiB' or '%sGiB'", fleet_label(r), fleet_show(r, n->text), fleet_show(r, n->text));
    *ret = v;
    return 0;
}

static int read_time(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t *ret)
{
    const char *text = NULL;
    int rc = fleet_text(r, n, &text);
    if (rc < 0)
        return rc;
    if (units_ms(str_of(text), ret) < 0)
        return fleet_refuse(r, n, "%s must be a time such as '90s', '10m' or '2h', not '%s'", fleet_label(r), fleet_show(r, str_of(text)));
    if (*ret < min)
        return fleet_refuse(r, n, "%s is %s; it must be at least %llu s", fleet_label(r), text, (unsigned long long)(min / 1000));
    return 0;
}

static int read_rate(struct fleet_reader *r, const struct yaml_node *n, uint64_t *ret)
{
    int rc = require_scalar(r, n);
    if (rc < 0)
        return rc;
    uint64_t v;
    if (units_rate(n->text, &v) < 0 || v == 0)
        return fleet_refuse(r, n, "%s must be a rate such as '640GB/s', not '%s'", fleet_label(r), fleet_show(r, n->text));
    *ret = v;
    return 0;
}

static int read_word(struct fleet_reader *r, const struct yaml_node *n, const char *const *words, unsigned *ret)
{
    int rc = require_scalar(r, n);
    if (rc < 0)
        return rc;
    base_autobuf struct buf all = BUF_INIT(ERR_TEXT_MAX);
    for (unsigned i = 0; words[i]; i++) {
        if (str_eq_c(n->text, words[i])) {
            *ret = i;
            return 0;
        }
        buf_addf(&all, "%s'%s'", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    }
    if (buf_status(&all) < 0)
        return err_nomem(r->err);
    return fleet_refuse(r, n, "%s must be %s, not '%s'", fleet_label(r), all.ptr, fleet_show(r, n->text));
}

/* ---- lists and maps ------------------------------------------------------------------------------------------ */

int fleet_list(struct fleet_reader *r, const struct yaml_node *n, uint64_t min, uint64_t max, size_t *ret)
{
    if (n->kind == YAML_SCALAR && !yaml_is_null(n) && str_find_char(n->text, ' ') < 0)
        return fleet_refuse(r, n, "%s must be a list, such as [%s]", fleet_label(r), fleet_show(r, n->text));
    if (n->kind != YAML_SEQ && !yaml_is_null(n))
        return fleet_refuse(r, n, "%s must be a list, not %s", fleet_label(r), kind_name(n));
    size_t count = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next)
        count++;
    if (n->kind != YAML_SEQ || count < min)
        return fleet_refuse(r, n, "%s is empty; add an item or remove it", fleet_label(r));
    if (count > max)
        return fleet_refuse(r, n, "%s has %zu items; at most %llu are allowed", fleet_label(r), count, (unsigned long long)max);
    *ret = count;
    return 0;
}

int fleet_map(struct fleet_reader *r, const struct yaml_node *n)
{
    if (yaml_is_null(n))
        return fleet_refuse(r, n, "%s has no content; add to it or remove it", fleet_label(r));
    if (n->kind != YAML_MAP)
        return fleet_refuse(r, n, "%s must be a map, not %s", fleet_label(r), kind_name(n));
    return 0;
}

static int read_list(struct fleet_reader *r, const struct fleet_key *k, const struct yaml_node *n, void *part)
{
    size_t count = 0;
    int rc = fleet_list(r, n, k->min, k->max, &count);
    if (rc < 0 || count == 0)
        return rc;
    const char **items = arena_alloc(r->arena, count, sizeof *items);
    if (!items)
        return err_nomem(r->err);
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        rc = fleet_text(r, c, &items[r->item++]);
        if (rc == 0 && k->check)
            rc = k->check(r, c, c->text);
        if (rc < 0)
            return rc;
    }
    const char *const *done = items;
    memcpy((char *)part + k->at, &done, sizeof done);
    memcpy((char *)part + k->set_at, &count, sizeof count);
    return 0;
}

/* ---- parts --------------------------------------------------------------------------------------------------------- */

static int read_scalar(struct fleet_reader *r, const struct fleet_key *k, const struct yaml_node *n, void *part)
{
    char *at = (char *)part + k->at;
    uint64_t v = 0;
    unsigned word = 0;
    const char *text = NULL;
    int rc;
    switch (k->type) {
    case FLEET_T_TEXT:
        rc = fleet_text(r, n, &text);
        if (rc == 0 && k->check)
            rc = k->check(r, n, n->text);
        if (rc == 0)
            memcpy(at, &text, sizeof text);
        return rc;
    case FLEET_T_NUMBER:
        rc = fleet_number(r, n, k->min, k->max, &v);
        if (rc == 0) {
            memcpy(at, &(uint32_t){(uint32_t)v}, sizeof(uint32_t));
            if (k->set_at != FLEET_NOWHERE)
                memcpy((char *)part + k->set_at, &(bool){true}, sizeof(bool));
        }
        return rc;
    case FLEET_T_PORT:
        rc = fleet_number(r, n, k->min, k->max, &v);
        if (rc == 0)
            memcpy(at, &(uint16_t){(uint16_t)v}, sizeof(uint16_t));
        return rc;
    case FLEET_T_BYTES:
    case FLEET_T_RATE:
        rc = k->type == FLEET_T_BYTES ? fleet_bytes(r, n, k->min, &v) : read_rate(r, n, &v);
        if (rc == 0)
            memcpy(at, &v, sizeof v);
        return rc;
    case FLEET_T_TIME:
        rc = read_time(r, n, k->min, &v);
        if (rc == 0)
            memcpy(at, &v, sizeof v);
        return rc;
    case FLEET_T_WORD:
        rc = read_word(r, n, k->words, &word);
        if (rc == 0)
            memcpy(at, &word, sizeof word);
        return rc;
    default:
        return 0; /* a section: read on its own */
    }
}

static int read_key(struct fleet_reader *r, const struct fleet_key *k, const struct yaml_node *n, void *part)
{
    r->key = k->name;
    r->item = 0;
    if (k->type == FLEET_T_LIST)
        return read_list(r, k, n, part);
    if (k->type == FLEET_T_OWN)
        return k->read(r, n, part);
    return read_scalar(r, k, n, part);
}

static int refuse_key(const struct fleet_reader *r, const struct fleet_schema *s, const struct yaml_node *n)
{
    const char *names[64];
    base_autobuf struct buf all = BUF_INIT(ERR_TEXT_MAX);
    size_t count = s->n < BASE_COUNT(names) ? s->n : BASE_COUNT(names);
    for (size_t i = 0; i < count; i++) {
        names[i] = s->keys[i].name;
        buf_addf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    if (buf_status(&all) < 0)
        return err_nomem(r->err);
    const char *here = fleet_elsewhere(r->of, n->key), *near = str_nearest(n->key, names, count);
    if (here)
        return fleet_refuse_at(r, fleet_key_pos_of(n), "unknown key '%s' in %s; that is %s", fleet_show(r, n->key), r->of, here);
    if (near)
        return fleet_refuse_at(r, fleet_key_pos_of(n), "unknown key '%s' in %s; did you mean '%s'?", fleet_show(r, n->key), r->of, near);
    return fleet_refuse_at(r, fleet_key_pos_of(n), "unknown key '%s' in %s; the keys are %s", fleet_show(r, n->key), r->of, all.ptr);
}

static int read_keys(struct fleet_reader *r, const struct fleet_schema *s, const struct yaml_node *n, struct fleet_pos at, void *part)
{
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        const struct fleet_key *k = NULL;
        for (size_t i = 0; i < s->n && !k; i++)
            if (str_eq_c(c->key, s->keys[i].name))
                k = &s->keys[i];
        int rc = k ? read_key(r, k, c, part) : refuse_key(r, s, c);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < s->n; i++)
        if (s->keys[i].required && !yaml_get(n, s->keys[i].name))
            return fleet_refuse_at(r, at, "%s has no '%s'; add it, for example '%s: %s'", r->of, s->keys[i].name, s->keys[i].name,
                                   s->keys[i].required);
    return 0;
}

int fleet_read_part(struct fleet_reader *r, const struct fleet_schema *s, const struct yaml_node *n, const char *of, struct fleet_pos at,
                    void *part)
{
    const char *outer_of = r->of, *outer_key = r->key;
    size_t outer_item = r->item;
    r->of = of;
    r->key = NULL;
    r->item = 0;
    int rc = fleet_map(r, n);
    if (rc == 0)
        rc = read_keys(r, s, n, at, part);
    r->of = outer_of;
    r->key = outer_key;
    r->item = outer_item;
    return rc;
}

/* ---- sections -------------------------------------------------------------------------------------------------------- */

static int read_named(struct fleet_reader *r, const struct fleet_section *s, const struct yaml_node *n, void *part, size_t index)
{
    const char *name = arena_dup(r->arena, n->key);
    const char *of = arena_printf(r->arena, "%s '%s'", s->what, fleet_show(r, n->key));
    struct fleet_pos at = fleet_key_pos_of(n);
    if (!name || !of)
        return err_nomem(r->err);
    r->of = of;
    r->key = NULL;
    r->item = 0;
    int rc = s->check_name(r, n, n->key);
    if (rc < 0)
        return rc;
    if (s->defaults)
        s->defaults(part);
    memcpy(part, &name, sizeof name);
    memcpy((char *)part + s->pos_at, &at, sizeof at);
    rc = fleet_read_part(r, s->schema, n, of, at, part);
    if (rc == 0 && s->rules)
        rc = s->rules(r, n, part, index);
    return rc;
}

int fleet_read_section(struct fleet_reader *r, const struct fleet_section *s)
{
    const struct yaml_node *n = yaml_get(r->root, s->key);
    if (!n)
        return 0;
    r->of = "the fleet";
    r->key = s->key;
    r->item = 0;
    int rc = fleet_map(r, n);
    if (rc < 0)
        return rc;
    size_t count = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next)
        count++;
    if (count == 0)
        return fleet_refuse(r, n, "%s has no content; add to it or remove it", fleet_label(r));
    if (count > FLEET_SERVICES_MAX)
        return fleet_refuse(r, n, "%s has %zu parts; at most %d are allowed", fleet_label(r), count, FLEET_SERVICES_MAX);
    char *parts = arena_alloc(r->arena, count, s->size);
    if (!parts)
        return err_nomem(r->err);
    /* The fleet gets the array first and the count as it grows: rules compare a part with those before it. */
    memcpy((char *)r->fleet + s->items_at, &parts, sizeof parts);
    size_t i = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next, i++) {
        rc = read_named(r, s, c, parts + i * s->size, i);
        if (rc < 0)
            return rc;
        memcpy((char *)r->fleet + s->count_at, &(size_t){i + 1}, sizeof(size_t));
    }
    return 0;
}

const void *fleet_find(const void *parts, size_t n, size_t size, struct str name)
{
    for (size_t i = 0; i < n; i++) {
        const char *part = (const char *)parts + i * size;
        const char *part_name;
        memcpy(&part_name, part, sizeof part_name);
        if (str_eq_c(name, part_name))
            return part;
    }
    return NULL;
}

int fleet_refuse_ref(struct fleet_reader *r, const struct yaml_node *n, const char *what, const char *text, const void *parts, size_t n_parts,
                     size_t size)
{
    const char **names = arena_alloc(r->arena, n_parts ? n_parts : 1, sizeof *names);
    if (!names)
        return err_nomem(r->err);
    base_autobuf struct buf all = BUF_INIT(ERR_TEXT_MAX);
    for (size_t i = 0; i < n_parts; i++) {
        memcpy(&names[i], (const char *)parts + i * size, sizeof names[i]);
        if (n_parts <= REF_NAMES_MAX)
            buf_addf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = str_nearest(str_of(text), names, n_parts);
    const char *shown = fleet_show(r, str_of(text));
    if (near)
        return fleet_refuse(r, n, "%s names %s '%s', which is not declared; did you mean '%s'?", r->of, what, shown, near);
    if (all.len == 0 || buf_status(&all) < 0)
        return fleet_refuse(r, n, "%s names %s '%s', which is not declared; declare it under '%ss'", r->of, what, shown, what);
    return fleet_refuse(r, n, "%s names %s '%s', which is not declared; declared %s %s", r->of, what, shown, n_parts == 1 ? "is" : "are", all.ptr);
}
