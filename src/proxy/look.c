/* SPDX-License-Identifier: MIT
 *
 * What a whole body says: its model, what it is part of, and what tells it from others. Looking at it costs a fraction of a millisecond for each MiB of text and many for one of nothing but numbers or empty lists, which
 * nobody else on the loop shall wait for: a body that is large, or cut into many pieces, and whatever is in a file, is looked at on one of the threads that write files. The body is the look's own until it is done, so
 * that a request may end meanwhile.
 */
#include <errno.h>

#include "proxy_int.h"

#define HASH_SEED_2 0x6a09e667f3bcc908u

struct proxy_looking {
    struct proxy_request *request; /* is told; NULL: dropped */
    struct net_work *work;
    enum place_dialect dialect;
    uint64_t seed;
    /* work */
    struct proxy_body body;
    struct buf type; /* as the request's head has it */
    struct proxy_look look;
    int rc;
};

/* ---- on any thread -------------------------------------------------------------------------------------------- */

/* Where the first member of the body's object begins; 0 when it has none. */
static size_t first_member(struct str body)
{
    ptrdiff_t open = str_find_char(body, '{');
    size_t at = open < 0 ? body.len : (size_t)open + 1;
    while (at < body.len && (body.ptr[at] == ' ' || body.ptr[at] == '\t' || body.ptr[at] == '\r' || body.ptr[at] == '\n'))
        at++;
    return at < body.len && body.ptr[at] == '"' ? at : 0;
}

static int find_in_json(struct str body, struct proxy_look *k)
{
    size_t off, len;
    int rc = json_scan_member(body, "model", &off, &len, NULL);
    if (rc < 0)
        return rc == -EEXIST ? -EBADMSG : 0; /* an engine may take the other one, which a key may not allow */
    struct str token = {body.ptr + off, len};
    if (str_eq_c(token, "null"))
        return 0;
    k->model_off = off;
    k->model_len = len;
    if (len > k->model.max && token.ptr[0] == '"') {
        buf_add(&k->model, token.ptr + 1, FLEET_MODEL_NAME_MAX + 1);
        return 2;
    }
    return json_scan_string(token, &k->model, NULL) < 0 ? -EBADMSG : 1;
}

static int find_in_form(struct str body, struct str type, struct proxy_look *k)
{
    size_t off, len;
    int rc = http_form_find(type, body, "model", &off, &len);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    bool large = len > k->model.max;
    buf_add(&k->model, body.ptr + off, large ? FLEET_MODEL_NAME_MAX + 1 : len);
    k->model_off = off;
    k->model_len = len;
    return large ? 2 : len > 0;
}

static void look(struct str body, struct str type, enum place_dialect dialect, uint64_t seed, struct proxy_look *ret)
{
    ret->form = http_form_is(type);
    ret->model = (struct buf)BUF_INIT(PROXY_LOOK_NAME_MAX);
    ret->model_off = ret->model_len = 0;
    ret->found = ret->form ? find_in_form(body, type, ret) : find_in_json(body, ret);
    ret->member_off = first_member(body);
    ret->same[0] = ret->same[1] = 0;
    place_read(dialect, body, seed, &ret->id);
    if (dialect == PLACE_OTHER || dialect == PLACE_BATCH || body.len > PROXY_JOIN_MAX)
        return;
    ret->same[0] = place_hash(seed, body);
    ret->same[1] = place_hash(seed ^ HASH_SEED_2, body);
}

static void look_job(void *ctx)
{
    struct proxy_looking *l = ctx;
    struct str text = proxy_body_text(&l->body);
    l->rc = proxy_body_reach(&l->body, text);
    if (l->rc == 0)
        look(text, buf_str(&l->type), l->dialect, l->seed, &l->look);
    proxy_body_rest(&l->body);
}

/* ---- on the loop ------------------------------------------------------------------------------------------------ */

static void looked(void *ctx)
{
    struct proxy_looking *l = ctx;
    struct proxy_request *r = l->request;
    if (r) {
        r->looking = NULL;
        r->body = l->body;
        proxy_request_looked(r, l->rc, &l->look);
    } else {
        proxy_body_release(&l->body);
    }
    buf_release(&l->look.model);
    buf_release(&l->type);
    free(l);
}

static int look_beside(struct proxy_request *r, struct str type)
{
    struct proxy_looking *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    *l = (struct proxy_looking){.request = r, .dialect = r->dialect, .seed = r->proxy->seed, .body = r->body, .type = BUF_INIT(HTTP_HEAD_MAX)};
    buf_add_str(&l->type, type);
    int rc = buf_status(&l->type);
    if (rc == 0)
        rc = net_work_new(r->lane->loop, look_job, looked, l, &l->work);
    if (rc < 0) {
        buf_release(&l->type);
        free(l);
        return rc;
    }
    proxy_body_init(&r->body, &r->config->bodies);
    r->looking = l;
    return 1;
}

bool proxy_look_quick(struct str body)
{
    return body.len <= PROXY_LOOK_SURE || (body.len <= PROXY_LOOK_MAX && json_scan_marks(body, PROXY_LOOK_MARKS) < PROXY_LOOK_MARKS);
}

int proxy_look(struct proxy_request *r)
{
    struct str type = http_field_get(httpio_exchange_head(r->x), "content-type"), text = proxy_body_text(&r->body);
    if (r->body.file || !proxy_look_quick(text))
        return look_beside(r, type);
    look(text, type, r->dialect, r->proxy->seed, &r->lane->look);
    return 0;
}

void proxy_look_drop(struct proxy_request *r)
{
    struct proxy_looking *l = r->looking;
    if (!l)
        return;
    r->looking = NULL;
    l->request = NULL;
    proxy_body_forget(r->proxy, &l->body);
    net_work_cancel(l->work);
}
