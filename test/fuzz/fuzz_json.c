/* SPDX-License-Identifier: MIT
 *
 * JSON: whatever is accepted can be walked, written again, and reads back; whatever is refused says where.
 */
#include <conf/conf.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile size_t seen;

static void walk(json_val v, unsigned depth)
{
    struct str s, key;
    uint64_t u;
    double d;
    bool b;
    size_t iter = 0, n = 0;
    json_val child;
    if (depth > CONF_DEPTH_MAX)
        abort();
    if (json_str(v, &s))
        seen += s.len;
    seen += json_u64(v, &u) + json_f64(v, &d) + json_bool(v, &b) + json_is_null(v);
    for (; json_next(v, &iter, &key, &child); n++) {
        seen += key.len;
        walk(child, depth + 1);
    }
    if (json_is_obj(v) && n != json_count(v))
        abort();
    for (size_t i = 0; json_is_arr(v) && i < json_count(v) && i < 1000; i++)
        walk(json_at(v, i), depth + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json *j = NULL, *again = NULL;
    struct err err = {0};
    if (json_parse((struct str){(const char *)data, size}, &j, &err) < 0) {
        if (j || err.code >= 0 || err.text[0] < '1' || err.text[0] > '9')
            abort();
        return 0;
    }
    walk(json_root(j), 0);
    struct buf out = BUF_INIT(CONF_JSON_MAX);
    struct json_out *o = json_out_new();
    if (!o)
        abort();
    json_out_val(o, NULL, json_root(j));
    if (json_out_finish(o, size % 2 == 0, &out) < 0 || json_parse(buf_str(&out), &again, NULL) < 0)
        abort();
    json_free(again);
    json_out_free(o);
    /* bytes of any kind become a string that reads back */
    buf_clear(&out);
    o = json_out_new();
    if (!o)
        abort();
    json_out_str(o, NULL, (struct str){(const char *)data, size});
    if (json_out_finish(o, false, &out) < 0 || json_parse(buf_str(&out), &again, NULL) < 0)
        abort();
    json_free(again);
    json_out_free(o);
    buf_release(&out);
    json_free(j);
    return 0;
}
