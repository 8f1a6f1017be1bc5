/* SPDX-License-Identifier: MIT
 *
 * Writing JSON: a yyjson document is built from front to back and printed at the end. A stack remembers the open
 * containers. Running out of memory marks the writer failed; what is added after that is ignored, and json_out_finish
 * tells. Wrong nesting is our own bug and asserted.
 */
#include "json_int.h"

#include <assert.h>
#include <errno.h>

/* Open containers: a parsed value may lie CONF_DEPTH_MAX deep inside what wraps it. */
#define OUT_DEPTH_MAX ((size_t)2 * CONF_DEPTH_MAX)

struct json_out {
    yyjson_mut_doc *doc;
    yyjson_mut_val *open[OUT_DEPTH_MAX];
    size_t depth;
    bool failed;
};

struct json_out *json_out_new(void)
{
    struct json_out *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->doc = yyjson_mut_doc_new(NULL);
    if (!o->doc) {
        free(o);
        return NULL;
    }
    return o;
}

struct json_out *json_out_free(struct json_out *o)
{
    if (o) {
        yyjson_mut_doc_free(o->doc);
        free(o);
    }
    return NULL;
}

/* A string value that the document owns, with U+FFFD for each byte that is not UTF-8. NULL without memory. */
static yyjson_mut_val *string_of(yyjson_mut_doc *doc, struct str s)
{
    if (s.len == 0)
        return yyjson_mut_str(doc, "");
    if (str_is_utf8(s))
        return yyjson_mut_strncpy(doc, s.ptr, s.len);
    base_autobuf struct buf fixed = BUF_INIT(CONF_JSON_MAX);
    while (s.len) {
        uint32_t point;
        size_t n = str_utf8_decode(s, &point);
        if (n)
            buf_add(&fixed, s.ptr, n);
        else
            buf_add_c(&fixed, "\xEF\xBF\xBD");
        n = n ? n : 1;
        s = (struct str){s.ptr + n, s.len - n};
    }
    if (buf_status(&fixed) < 0)
        return NULL;
    return yyjson_mut_strncpy(doc, fixed.ptr, fixed.len);
}

/* Puts v (NULL: no memory) where the writer stands. */
static bool add(struct json_out *o, const char *key, yyjson_mut_val *v)
{
    if (!v)
        o->failed = true;
    if (o->failed)
        return false;
    if (o->depth == 0) {
        assert(!key && !yyjson_mut_doc_get_root(o->doc));
        yyjson_mut_doc_set_root(o->doc, v);
        return true;
    }
    yyjson_mut_val *in = o->open[o->depth - 1];
    assert(yyjson_mut_is_obj(in) == (key != NULL));
    bool ok;
    if (key) {
        yyjson_mut_val *k = string_of(o->doc, str_of(key));
        ok = k && yyjson_mut_obj_add(in, k, v);
    } else {
        ok = yyjson_mut_arr_append(in, v);
    }
    if (!ok)
        o->failed = true;
    return ok;
}

static void open_container(struct json_out *o, const char *key, yyjson_mut_val *v)
{
    if (!add(o, key, v))
        return;
    assert(o->depth < OUT_DEPTH_MAX);
    o->open[o->depth++] = v;
}

void json_out_obj(struct json_out *o, const char *key)
{
    open_container(o, key, yyjson_mut_obj(o->doc));
}

void json_out_arr(struct json_out *o, const char *key)
{
    open_container(o, key, yyjson_mut_arr(o->doc));
}

void json_out_end(struct json_out *o)
{
    if (o->failed)
        return;
    assert(o->depth > 0);
    o->depth--;
}

void json_out_str(struct json_out *o, const char *key, struct str v)
{
    (void)add(o, key, string_of(o->doc, v));
}

void json_out_cstr(struct json_out *o, const char *key, const char *v)
{
    if (v)
        json_out_str(o, key, str_of(v));
    else
        json_out_null(o, key);
}

void json_out_u64(struct json_out *o, const char *key, uint64_t v)
{
    (void)add(o, key, yyjson_mut_uint(o->doc, v));
}

void json_out_i64(struct json_out *o, const char *key, int64_t v)
{
    (void)add(o, key, yyjson_mut_sint(o->doc, v));
}

void json_out_f64(struct json_out *o, const char *key, double v)
{
    (void)add(o, key, yyjson_mut_real(o->doc, v));
}

void json_out_bool(struct json_out *o, const char *key, bool v)
{
    (void)add(o, key, yyjson_mut_bool(o->doc, v));
}

void json_out_null(struct json_out *o, const char *key)
{
    (void)add(o, key, yyjson_mut_null(o->doc));
}

void json_out_val(struct json_out *o, const char *key, json_val v)
{
    if (v)
        (void)add(o, key, yyjson_val_mut_copy(o->doc, json_val_yy(v)));
    else
        json_out_null(o, key);
}

int json_out_finish(struct json_out *o, bool pretty, struct buf *out)
{
    if (o->failed)
        return -ENOMEM;
    assert(o->depth == 0 && yyjson_mut_doc_get_root(o->doc));
    /* JSON has no infinity and no NaN: null says that there is no number. */
    yyjson_write_flag flags = YYJSON_WRITE_INF_AND_NAN_AS_NULL;
    if (pretty)
        flags |= YYJSON_WRITE_PRETTY_TWO_SPACES | YYJSON_WRITE_NEWLINE_AT_END;
    size_t len = 0;
    base_autofree char *text = yyjson_mut_write_opts(o->doc, flags, NULL, &len, NULL);
    if (!text)
        return -ENOMEM;
    buf_add(out, text, len);
    return buf_status(out);
}

/* ---- a string by itself -------------------------------------------------------------------------------------- */

static bool is_plain(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.ptr[i] < 0x20 || (unsigned char)s.ptr[i] > 0x7e || s.ptr[i] == '"' || s.ptr[i] == '\\')
            return false;
    return true;
}

void json_add_string(struct buf *out, struct str s)
{
    if (is_plain(s)) {
        buf_add_char(out, '"');
        buf_add_str(out, s);
        buf_add_char(out, '"');
        return;
    }
    struct json_out *o = json_out_new();
    if (o)
        json_out_str(o, NULL, s);
    if (!o || json_out_finish(o, false, out) < 0)
        buf_fail(out, -ENOMEM);
    json_out_free(o);
}
