/* SPDX-License-Identifier: MIT
 *
 * Reading JSON through yyjson. A json_val is yyjson's own value pointer under another name, so that yyjson.h stays in
 * this module; values live in the document. yyjson takes any depth and any length: both are bounded here before it
 * sees the text, the depth by counting brackets outside strings.
 */
#include "conf_int.h"
#include "json_int.h"

#include <errno.h>

struct json {
    yyjson_doc *doc;
};

static int fail_at(struct err *err, struct str text, size_t offset, const char *what)
{
    struct conf_place p = conf_locate(text, offset);
    return err_set(err, -EINVAL, "%u:%u: %s", p.line, p.column, what);
}

/* Offset of the quote that ends the string whose first character is at i: one with an even number of backslashes before it. text.len without one. */
static size_t string_end(struct str text, size_t i)
{
    for (size_t at = i;; at++) {
        const char *quote = at < text.len ? memchr(text.ptr + at, '"', text.len - at) : NULL;
        if (!quote)
            return text.len;
        at = (size_t)(quote - text.ptr);
        size_t slashes = 0;
        while (at - slashes > i && text.ptr[at - slashes - 1] == '\\')
            slashes++;
        if (slashes % 2 == 0)
            return at;
    }
}

/* Offset of the last byte of the comment that begins at i; i itself when none does. */
static size_t comment_end(struct str text, size_t i)
{
    char kind = i + 1 < text.len ? text.ptr[i + 1] : '\0';
    if (kind != '/' && kind != '*')
        return i;
    struct str rest = {text.ptr + i + 2, text.len - i - 2};
    ptrdiff_t end = kind == '/' ? str_find_char(rest, '\n') : str_find(rest, STR("*/"));
    return end < 0 ? text.len : i + 2 + (size_t)end + (kind == '*');
}

/* Offset of the bracket that opens one level too many, or text.len. On text that is no JSON the answer may be off;
 * the parser then says what is wrong with it. */
static size_t too_deep_at(struct str text, bool comments)
{
    unsigned depth = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '"') {
            i = string_end(text, i + 1);
        } else if (c == '/' && comments) {
            i = comment_end(text, i);
        } else if (c == '[' || c == '{') {
            if (++depth > CONF_DEPTH_MAX)
                return i;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return text.len;
}

static int parse(struct str text, bool relaxed, struct json **ret, struct err *err)
{
    if (text.len > CONF_JSON_MAX)
        return err_set(err, -E2BIG, "JSON text of %zu bytes is too long; the limit is %zu bytes", text.len, CONF_JSON_MAX);
    if (text.len == 0)
        return err_set(err, -EINVAL, "1:1: the JSON text is empty");
    size_t deep = too_deep_at(text, relaxed);
    if (deep < text.len) {
        struct conf_place p = conf_locate(text, deep);
        return err_set(err, -EINVAL, "%u:%u: JSON is nested more than %d levels deep", p.line, p.column, CONF_DEPTH_MAX);
    }
    struct json *j = calloc(1, sizeof *j);
    if (!j)
        return err_nomem(err);
    yyjson_read_err why;
    /* Without the in-situ flag the text is only read, so dropping const is safe. */
    j->doc = yyjson_read_opts((char *)(uintptr_t)text.ptr, text.len, relaxed ? YYJSON_READ_ALLOW_COMMENTS | YYJSON_READ_ALLOW_TRAILING_COMMAS : YYJSON_READ_NOFLAG, NULL, &why);
    if (!j->doc) {
        free(j);
        return why.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION ? err_nomem(err) : fail_at(err, text, why.pos, why.msg);
    }
    *ret = j;
    return 0;
}

int json_parse(struct str text, struct json **ret, struct err *err)
{
    return parse(text, false, ret, err);
}

int json_parse_relaxed(struct str text, struct json **ret, struct err *err)
{
    if (str_starts(text, STR("\xEF\xBB\xBF")))
        text = (struct str){text.ptr + 3, text.len - 3};
    return parse(text, true, ret, err);
}

struct json *json_free(struct json *j)
{
    if (j) {
        yyjson_doc_free(j->doc);
        free(j);
    }
    return NULL;
}

static json_val from_yy(yyjson_val *v)
{
    return (json_val)(void *)v;
}

yyjson_val *json_val_yy(json_val v)
{
    return (yyjson_val *)(uintptr_t)v;
}

json_val json_root(const struct json *j)
{
    return j ? from_yy(yyjson_doc_get_root(j->doc)) : NULL;
}

json_val json_get(json_val obj, const char *key)
{
    return from_yy(yyjson_obj_get(json_val_yy(obj), key));
}

json_val json_at(json_val arr, size_t i)
{
    return from_yy(yyjson_arr_get(json_val_yy(arr), i));
}

size_t json_count(json_val v)
{
    yyjson_val *y = json_val_yy(v);
    return yyjson_is_obj(y) ? yyjson_obj_size(y) : yyjson_arr_size(y);
}

/* *iter is the distance in bytes from the object to the key that comes next; 0 stands for the first, which follows the
 * object itself. All values of a document lie in one block, so the distance stays valid as long as the document. */
bool json_next(json_val obj, size_t *iter, struct str *ret_key, json_val *ret_val)
{
    yyjson_val *o = json_val_yy(obj);
    if (!yyjson_is_obj(o))
        return false;
    char *start = (char *)o;
    size_t end = (size_t)((char *)unsafe_yyjson_get_next(o) - start);
    size_t at = *iter ? *iter : sizeof(yyjson_val);
    if (at >= end)
        return false;
    yyjson_val *key = (yyjson_val *)(void *)(start + at);
    yyjson_val *val = key + 1;
    *ret_key = (struct str){yyjson_get_str(key), yyjson_get_len(key)};
    *ret_val = from_yy(val);
    *iter = (size_t)((char *)unsafe_yyjson_get_next(val) - start);
    return true;
}

bool json_is_obj(json_val v)
{
    return yyjson_is_obj(json_val_yy(v));
}

bool json_is_arr(json_val v)
{
    return yyjson_is_arr(json_val_yy(v));
}

bool json_is_null(json_val v)
{
    return yyjson_is_null(json_val_yy(v));
}

bool json_str(json_val v, struct str *ret)
{
    yyjson_val *y = json_val_yy(v);
    if (!yyjson_is_str(y))
        return false;
    *ret = (struct str){yyjson_get_str(y), yyjson_get_len(y)};
    return true;
}

bool json_u64(json_val v, uint64_t *ret)
{
    yyjson_val *y = json_val_yy(v);
    if (!yyjson_is_uint(y))
        return false;
    *ret = yyjson_get_uint(y);
    return true;
}

bool json_f64(json_val v, double *ret)
{
    yyjson_val *y = json_val_yy(v);
    if (!yyjson_is_num(y))
        return false;
    *ret = yyjson_get_num(y);
    return true;
}

bool json_bool(json_val v, bool *ret)
{
    yyjson_val *y = json_val_yy(v);
    if (!yyjson_is_bool(y))
        return false;
    *ret = yyjson_get_bool(y);
    return true;
}

struct str json_get_str(json_val obj, const char *key, const char *otherwise)
{
    struct str s;
    return json_str(json_get(obj, key), &s) ? s : str_of(otherwise);
}

uint64_t json_get_u64(json_val obj, const char *key)
{
    uint64_t n;
    return json_u64(json_get(obj, key), &n) ? n : 0;
}

double json_get_f64(json_val obj, const char *key)
{
    double d;
    return json_f64(json_get(obj, key), &d) ? d : 0;
}

bool json_get_bool(json_val obj, const char *key)
{
    bool b;
    return json_bool(json_get(obj, key), &b) && b;
}
