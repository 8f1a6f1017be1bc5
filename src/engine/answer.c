/* SPDX-License-Identifier: MIT
 *
 * Answers that all kinds give alike: an OpenAI model list, and the answer to a request for one token. Bodies come from a
 * process that may be anything that happens to listen there, so every field is looked for and none is trusted to be present.
 */
#include "engine_int.h"

#include <conf/conf.h>
#include <errno.h>

#define NAMED_MAX 300UL /* characters of names listed in an error */

const char *quote(struct str s, char out[QUOTE_MAX])
{
    base_autobuf struct buf b = BUF_INIT(QUOTE_MAX - 1);
    buf_add_printable(&b, s, QUOTE_CHARS);
    struct str text = buf_status(&b) < 0 ? STR("?") : buf_str(&b);
    memcpy(out, text.ptr ? text.ptr : "", text.len);
    out[text.len] = '\0';
    return out;
}

void diffs_add(struct diffs *d, const char *fmt, ...)
{
    size_t before = d->text.len;
    if (before > 0)
        buf_add_c(&d->text, "; ");
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&d->text, fmt, ap);
    va_end(ap);
}

int diffs_finish(struct diffs *d, struct err *err)
{
    int r = 0;
    /* too many for the buffer: those that fitted are said */
    if (d->text.fail == -ENOMEM)
        r = err_nomem(err);
    else if (d->text.len > 0)
        r = err_set(err, -EBADMSG, "%s", d->text.ptr);
    buf_release(&d->text);
    return r;
}

static int not_a_list(struct err *err)
{
    return err_set(err, -EBADMSG, "answer is no model list: another program may be listening there");
}

static bool names_it(json_val model, struct str want)
{
    struct str id;
    if (json_str(json_get(model, "id"), &id) && str_eq(id, want))
        return true;
    json_val aliases = json_get(model, "aliases");
    for (size_t i = 0; i < json_count(aliases); i++)
        if (json_str(json_at(aliases, i), &id) && str_eq(id, want))
            return true;
    return false;
}

int engine_identity_check(struct str body, const char *want, struct err *err)
{
    struct json *j = NULL;
    int r = json_parse(body, &j, NULL);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(err) : not_a_list(err);
    json_val data = json_get(json_root(j), "data");
    if (!json_is_arr(data)) {
        json_free(j);
        return not_a_list(err);
    }
    base_autobuf struct buf named = BUF_INIT(4 * NAMED_MAX);
    for (size_t i = 0; i < json_count(data); i++) {
        json_val model = json_at(data, i);
        if (names_it(model, str_of(want))) {
            json_free(j);
            return 0;
        }
        struct str id;
        char text[QUOTE_MAX];
        if (json_str(json_get(model, "id"), &id) && named.len < NAMED_MAX)
            buf_addf(&named, "%s'%s'", named.len ? ", " : "", quote(id, text));
    }
    json_free(j);
    return err_set(err, -ENOENT, "it serves %s, not '%s': another program may be listening there", named.len ? named.ptr : "no model", want);
}

int engine_token_check(struct str body, struct err *err)
{
    struct json *j = NULL;
    int r = json_parse(body, &j, NULL);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(err) : err_set(err, -EBADMSG, "answer to a request for one token is no JSON");
    json_val root = json_root(j);
    struct str message;
    uint64_t made = 0;
    char text[QUOTE_MAX];
    json_val error = json_get(root, "error");
    if (json_str(json_get(error, "message"), &message) || json_str(error, &message))
        r = err_set(err, -EBADMSG, "request for one token failed: '%s'", quote(message, text));
    else if ((json_u64(json_get(root, "tokens_predicted"), &made) || json_u64(json_get(json_get(root, "usage"), "completion_tokens"), &made)) && made > 0)
        r = 0;
    else
        r = err_set(err, -EBADMSG, "answer to a request for one token holds none");
    json_free(j);
    return r;
}
