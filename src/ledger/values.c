/* SPDX-License-Identifier: MIT
 *
 * The values of a measurement as one flat JSON object of numbers and texts, and back. Numbers keep all their digits. Who writes a text that a person put together by hand into the file finds it passed over
 * when it is anything else.
 */
#include "ledger_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <math.h>
#include <string.h>

int values_write(const struct ledger_value *v, size_t n, struct buf *out, struct err *err)
{
    if (n > LEDGER_VALUES_MAX)
        return err_set(err, -E2BIG, "a measurement has %zu values, the ledger takes at most %d", n, LEDGER_VALUES_MAX);
    for (size_t i = 0; i < n; i++) {
        int r = ledger_text_check("the name of a value", v[i].name, err);
        if (r == 0 && v[i].text)
            r = ledger_text_check(v[i].name, v[i].text, err);
        if (r == 0 && !v[i].text && !isfinite(v[i].number))
            r = err_set(err, -EINVAL, "value '%s' is no number", v[i].name);
        if (r < 0)
            return r;
    }
    struct json_out *o = json_out_new();
    if (!o)
        return err_nomem(err);
    json_out_obj(o, NULL);
    for (size_t i = 0; i < n; i++) {
        if (v[i].text)
            json_out_cstr(o, v[i].name, v[i].text);
        else
            json_out_f64(o, v[i].name, v[i].number);
    }
    json_out_end(o);
    int r = json_out_finish(o, false, out);
    json_out_free(o);
    return r == -ENOMEM ? err_nomem(err) : r < 0 ? err_set(err, r, "values are too long for the ledger") : 0;
}

static int read_value(json_val val, struct arena *a, struct ledger_value *ret, struct err *err)
{
    struct str text;
    if (json_f64(val, &ret->number))
        return 0;
    if (!json_str(val, &text))
        return err_set(err, -EBADMSG, "value '%s' is neither number nor text", ret->name);
    ret->text = arena_dup(a, text);
    return ret->text ? 0 : err_nomem(err);
}

int values_read(const char *text, struct arena *a, struct ledger_value **ret, size_t *ret_n, struct err *err)
{
    struct json *j = NULL;
    int r = json_parse(str_of(text), &j, err);
    if (r < 0)
        return r;
    json_val root = json_root(j);
    size_t count = json_count(root), n = 0, iter = 0;
    if (!json_is_obj(root) || count > LEDGER_VALUES_MAX) {
        json_free(j);
        return err_set(err, -EBADMSG, "values are no object of at most %d", LEDGER_VALUES_MAX);
    }
    struct ledger_value *v = arena_alloc(a, count + 1, sizeof *v);
    struct str key;
    json_val val;
    if (!v) {
        json_free(j);
        return err_nomem(err);
    }
    while (r == 0 && n < count && json_next(root, &iter, &key, &val)) {
        v[n].name = arena_dup(a, key);
        r = v[n].name ? read_value(val, a, &v[n], err) : err_nomem(err);
        n++;
    }
    json_free(j);
    if (r < 0)
        return r;
    *ret = v;
    *ret_n = n;
    return 0;
}

const struct ledger_value *ledger_value(const struct ledger_row *row, const char *name)
{
    for (size_t i = 0; i < row->n_values; i++)
        if (strcmp(row->values[i].name, name) == 0)
            return &row->values[i];
    return NULL;
}

double ledger_number(const struct ledger_row *row, const char *name, double otherwise)
{
    const struct ledger_value *v = ledger_value(row, name);
    return v && !v->text ? v->number : otherwise;
}
