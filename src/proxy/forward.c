/* SPDX-License-Identifier: MIT
 *
 * The way to a replica: a place in the queue, then a call. The forwarded request is written anew from parsed fields. A small body goes in one piece, so that the
 * client may repeat it on a fresh connection when a kept one turns out to be dead; a large one goes in slices over a fresh connection, as fast as the replica takes it.
 */
#include <errno.h>
#include <strings.h>

#include "proxy_int.h"

/* ---- the request's body ------------------------------------------------------------------------------------ */

/* The model's name as this replica wants it, quoted. */
static struct str quote(struct proxy_request *r, const char *served)
{
    base_autobuf struct buf name = BUF_INIT(4096);
    free(r->quoted);
    r->quoted = NULL;
    json_add_string(&name, str_of(served));
    size_t len = name.len;
    if (buf_status(&name) == 0)
        r->quoted = buf_take(&name);
    return (struct str){r->quoted, r->quoted ? len : 0};
}

/* Cuts the body so that this replica's own name for the model stands in it, and the slot that it should use. */
static int cut_body(struct proxy_request *r)
{
    struct str body = proxy_body_text(&r->body), slot = {0}, name = {0};
    uint32_t number = r->ticket.slot;
    size_t at = number == AFFINITY_NO_SLOT || !r->ticket.leased || r->dialect == PLACE_BATCH || r->form ? 0 : r->member_off;
    r->part = r->part_off = 0;
    if (at && (!r->model_len || at <= r->model_off)) {
        snprintf(r->slot, sizeof r->slot, "\"id_slot\":%u,", (unsigned)number);
        slot = str_of(r->slot);
    } else {
        at = 0;
    }
    size_t off = r->model_len ? r->model_off : body.len, end = off + r->model_len;
    if (r->model_len) {
        name = r->form ? str_of(r->target.served) : quote(r, r->target.served);
        if (!name.len)
            return -ENOMEM;
    }
    r->parts[0] = (struct str){body.ptr, at};
    r->parts[1] = slot;
    r->parts[2] = (struct str){body.ptr + at, off - at};
    r->parts[3] = name;
    r->parts[4] = (struct str){body.ptr + end, body.len - end};
    return 0;
}

void proxy_forward_send(struct proxy_request *r)
{
    proxy_sender_remove(r);
    while (r->part < BASE_COUNT(r->parts)) {
        struct str part = r->parts[r->part];
        if (r->part_off == part.len) {
            r->part++;
            r->part_off = 0;
            continue;
        }
        size_t n = part.len - r->part_off < PROXY_SLICE ? part.len - r->part_off : PROXY_SLICE;
        struct str slice = {part.ptr + r->part_off, n};
        if (!proxy_lane_sends(r, n)) {
            proxy_sender_add(r);
            return;
        }
        if (proxy_body_reach(&r->body, slice) < 0) {
            proxy_answer_lost(r);
            return;
        }
        r->part_off += n;
        bool full = httpio_call_send(r->call, slice);
        proxy_body_sent(&r->body, slice);
        if (full)
            return;
    }
    r->sending = false;
    httpio_call_end(r->call);
    if (r->passing && r->content)
        proxy_request_drop_body(r);
}

/* ---- the request's head --------------------------------------------------------------------------------------- */

/* The target in origin form: what follows the host of a URL. */
static struct str origin_form(struct str target, struct buf *scratch)
{
    if (target.ptr[0] == '/' || str_eq_c(target, "*"))
        return target;
    ptrdiff_t host = str_find(target, STR("://"));
    size_t i = host < 0 ? target.len : (size_t)host + 3;
    while (i < target.len && target.ptr[i] != '/' && target.ptr[i] != '?')
        i++;
    struct str rest = {target.ptr + i, target.len - i};
    if (rest.len && rest.ptr[0] == '/')
        return rest;
    buf_add_char(scratch, '/');
    buf_add_str(scratch, rest);
    return buf_str(scratch);
}

/* What a client shows who it is with goes to who asks for it and to nobody else: the router when it has keys; else a program whose keys berth does not know. An engine with a key is shown that one; one without needs none. A stream is read on its way, and signs of life are put
 * between its events: it must not be encoded. */
static size_t request_fields(const struct proxy_request *r, char bearer[HTTPIO_BEARER_MAX], struct http_field out[HTTP_FIELDS_MAX + 1])
{
    const struct http_head *head = proxy_link_head(r);
    const char *key = r->target.key;
    bool shown = r->target.asks && !r->config->keyed && !key[0];
    /* Written anew for the replica's connection; a body that was read whole needs no leave to be sent. */
    static const struct str ours[] = {{"host", 4}, {"content-length", 14}, {"expect", 6}};
    size_t n = 0;
    for (size_t i = 0; i < head->n_fields; i++) {
        struct http_field f = head->fields[i];
        bool skip = f.hop || (!shown && proxy_guard_secret(f.name)) || (r->stream && str_eq_nocase(f.name, STR("accept-encoding")));
        for (size_t k = 0; !skip && k < BASE_COUNT(ours); k++)
            skip = f.name.len == ours[k].len && str_eq_nocase(f.name, ours[k]);
        if (!skip)
            out[n++] = f;
    }
    return n + httpio_bearer(key, bearer, &out[n]);
}

/* Starts the call to the ticket's replica. */
static int call(struct proxy_request *r, struct err *err)
{
    const struct http_head *head = proxy_link_head(r);
    struct http_field fields[HTTP_FIELDS_MAX + 1];
    char bearer[HTTPIO_BEARER_MAX];
    base_autobuf struct buf target = BUF_INIT(HTTP_TARGET_MAX + 2);
    base_autobuf struct buf joined = BUF_INIT(PROXY_BODY_SMALL + 4096);
    int rc = cut_body(r);
    if (rc < 0)
        return err_nomem(err);
    size_t len = 0;
    for (size_t i = 0; i < BASE_COUNT(r->parts); i++)
        len += r->parts[i].len;
    bool large = len > PROXY_BODY_SMALL;
    if (!large && proxy_body_reach(&r->body, proxy_body_text(&r->body)) < 0)
        return err_set(err, -ENODATA, "the router cannot read the kept request body");
    struct httpio_request q = {
        .addr = r->target.addr,
        .host = r->target.addr.unix_path ? (struct str){0} : str_of(r->target.host),
        .epoch = r->ticket.life,
        .method = head->method,
        .target = origin_form(head->target, &target),
        .fields = fields,
        .n_fields = request_fields(r, bearer, fields),
        .fresh = large,
        .body_follows = large,
        .body_length = (int64_t)len,
    };
    if (!large && len == proxy_body_text(&r->body).len && !r->model_len) {
        q.body = proxy_body_text(&r->body);
    } else if (!large) {
        for (size_t i = 0; i < BASE_COUNT(r->parts); i++)
            buf_add_str(&joined, r->parts[i]);
        q.body = buf_str(&joined);
    }
    if (buf_status(&target) < 0 || buf_status(&joined) < 0)
        return err_nomem(err);
    r->byte_ms = net_loop_now_ms(r->lane->loop);
    rc = httpio_call(r->lane->client, &q, &proxy_answer_ops, r, &r->call, err);
    if (rc == 0 && large) {
        r->sending = true;
        proxy_forward_send(r);
    }
    return rc;
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

bool proxy_forward_leave(struct proxy_request *r, enum sched_result result)
{
    const struct dialect_usage *u = &r->usage;
    struct proxy *p = r->proxy;
    if (!r->entered)
        return false;
    r->entered = false;
    struct sched_outcome o = {
        .result = result,
        .proved = r->head && r->head->status < 500,
        .content = r->content || u->known,
        .counted = u->known,
        .prompt_n = u->prompt_n,
        .cached_n = u->cached_n,
        .predicted_n = u->predicted_n,
        .prompt_ms = u->prompt_ms,
    };
    (void)pthread_mutex_lock(&p->lock);
    proxy_request_unhand(r);
    sched_leave(p->sched, &r->ticket, &o, proxy_lane_now(r->lane));
    bool waiting = sched_waiting(p->sched) > 0 || r->lane->handed;
    (void)pthread_mutex_unlock(&p->lock);
    return waiting;
}

void proxy_forward_proved(struct proxy_request *r)
{
    (void)pthread_mutex_lock(&r->proxy->lock);
    sched_proved(&r->ticket);
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

bool proxy_forward_another(const struct proxy_request *r)
{
    bool found = false;
    (void)pthread_mutex_lock(&r->proxy->lock);
    for (size_t i = 0; i < r->ticket.n_candidates && !found; i++)
        found = r->ticket.candidates[i]->ready && i != r->ticket.index && !(r->ticket.tried[i / 64] >> (i % 64) & 1);
    (void)pthread_mutex_unlock(&r->proxy->lock);
    return found;
}

static void enter(struct proxy_request *r)
{
    if (r->attempts)
        see_phase(r->proxy->see, r->page, SEE_QUEUE, net_loop_now_ms(r->lane->loop));
    if (!proxy_lane_enter(r))
        proxy_request_fail(r, 503, "too many requests are waiting (%zu)", r->turned_away - 1);
}

void proxy_forward_admit(struct proxy_request *r)
{
    (void)pthread_mutex_lock(&r->proxy->lock);
    size_t waiting = sched_waiting(r->proxy->sched);
    (void)pthread_mutex_unlock(&r->proxy->lock);
    if (r->dialect == PLACE_OTHER || waiting < SCHED_QUEUE_MAX)
        return;
    r->turned_away = waiting + 1;
    proxy_request_fail(r, 503, "too many requests are waiting (%zu)", waiting);
}

/* Who may have it, and what it is part of. */
static int make_ticket(struct proxy_request *r, struct place_identity *id)
{
    const struct http_head *head = httpio_exchange_head(r->x);
    const struct proxy_endpoint *e = r->endpoint;
    struct sched_ticket *t = &r->ticket;
    place_name(head, &r->config->names, r->proxy->seed, id);
    if (r->key && id->hint) /* what two clients call the same is two things */
        id->hint = id->flow = place_hash(id->hint, str_of(r->key));
    r->stream = id->stream && id->dialect != PLACE_BATCH;
    *t = (struct sched_ticket){
        .policy = e->policy,
        .group = e->group,
        .candidates = e->candidates,
        .n_candidates = e->n_candidates,
        .hint = id->hint,
        .flow = id->flow,
        .owner = r->key ? place_hash(r->proxy->seed, str_of(r->key)) : 0,
        .tokens = id->tokens,
        .leased = id->dialect != PLACE_OTHER,
        .pinned = id->pinned,
        .seq = r->number,
        .slot = AFFINITY_NO_SLOT,
    };
    t->tried = e->n_candidates <= 64 ? &r->tried : calloc(e->n_candidates / 64 + 1, sizeof *t->tried);
    if (id->n)
        r->chain = malloc(id->n * sizeof *r->chain);
    if (!t->tried || (id->n && !r->chain))
        return -ENOMEM;
    if (id->n)
        memcpy(r->chain, id->chain, id->n * sizeof *r->chain);
    t->chain = r->chain;
    t->n_chain = id->n;
    const struct see_named named = {
        .endpoint = e->name,
        .key = r->key,
        .api = place_dialect_name(id->dialect),
        .conversation = id->hint ? id->hint : id->n ? id->chain[0] : 0,
        .prompt_tokens = id->dialect == PLACE_OTHER ? 0 : id->tokens,
        .stream = r->stream,
    };
    see_is(r->proxy->see, r->page, &named, r->sent_ms);
    return 0;
}

void proxy_forward(struct proxy_request *r, struct proxy_look *k)
{
    r->sent_ms = net_loop_now_ms(r->lane->loop);
    r->form = k->form;
    r->model_off = k->model_off;
    r->model_len = k->model_len;
    r->member_off = k->member_off;
    if (make_ticket(r, &k->id) < 0) {
        proxy_request_fail(r, 503, "out of memory");
        return;
    }
    if (r->stream)
        proxy_stream_add(r);
    proxy_join_identify(r, k);
    if (!proxy_join(r))
        enter(r);
}

void proxy_forward_alone(struct proxy_request *r)
{
    proxy_join_open(r);
    enter(r);
}

/* Why the first of its replicas that tells is not ready. */
static void find_why(const struct proxy_request *r, char ret[PROXY_WHY_MAX])
{
    ret[0] = '\0';
    (void)pthread_mutex_lock(&r->proxy->lock);
    for (size_t i = 0; i < r->ticket.n_candidates && !ret[0]; i++)
        memcpy(ret, PROXY_PEER(r->ticket.candidates[i])->why, PROXY_WHY_MAX);
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

static void give_up(struct proxy_request *r, bool expired)
{
    char why[PROXY_WHY_MAX];
    find_why(r, why);
    if (expired)
        proxy_request_fail(r, 503, "no slot of '%s' became free in time", r->endpoint->name);
    else if (r->attempts)
        proxy_request_fail(r, 502, "no replica of '%s' could be reached; the last, '%s': %s", r->endpoint->name, r->last, r->held.len ? r->held.ptr : "no reason given");
    else
        proxy_request_fail(r, 503, "no replica of '%s' is ready%s%s", r->endpoint->name, why[0] ? ": " : "", why);
}

/* It is on its way. */
static void note_sent(struct proxy_request *r)
{
    const struct sched_ticket *t = &r->ticket;
    const char *names[SCHED_WEIGHED_MAX];
    for (size_t i = 0; i < t->n_weighed; i++)
        names[i] = PROXY_PEER(t->weighed[i].replica)->name;
    see_sent(r->proxy->see, r->page, t, names, net_loop_now_ms(r->lane->loop));
}

/* A call that could not begin for what is ours or the client's: no other replica would help. */
static bool is_not_of_replica(int rc)
{
    return rc == -ENOMEM || rc == -EINVAL || rc == -ENODATA || rc == -EMFILE || rc == -ENFILE || rc == -ENOBUFS;
}

void proxy_forward_go(struct proxy_request *r, bool expired)
{
    struct proxy *p = r->proxy;
    const char *endpoint = r->endpoint->name;
    struct sched_ticket *t = &r->ticket;
    struct err err;
    if (!t->replica) {
        give_up(r, expired);
        return;
    }
    r->last = PROXY_PEER(t->replica)->name;
    r->way = &r->endpoint->ways[t->index];
    if (r->attempts++) {
        p->stats.retries++;
        t->decision = SCHED_RETRY;
    } else {
        metrics_observe(PROXY_WAY_M(p, &r->way->queue, PROXY_M_QUEUE, endpoint, r->last), (double)(t->started_ms - t->entered_ms) / 1000);
    }
    metrics_add(PROXY_WAY_M(p, &r->way->decisions[t->decision], PROXY_M_DECISIONS, endpoint, r->last, sched_decision_name(t->decision)), 1);
    if (t->predicted)
        metrics_add(PROXY_WAY_M(p, &r->way->predicted, PROXY_M_PREDICTED, endpoint, r->last), t->predicted);
    note_sent(r);
    proxy_answer_reset(r);
    int rc = call(r, &err);
    if (is_not_of_replica(rc)) {
        (void)proxy_forward_leave(r, SCHED_ABANDONED); /* this is called while turns are handed out */
        proxy_request_fail(r, rc == -EINVAL ? 400 : 503, "%s", err.text);
    } else if (rc < 0) {
        proxy_forward_failed(r, "connect", err.text, true);
    }
}

void proxy_forward_failed(struct proxy_request *r, const char *reason, const char *text, bool blame)
{
    struct proxy *p = r->proxy;
    struct sched_ticket *t = &r->ticket;
    r->call = httpio_call_cancel(r->call);
    r->sending = false;
    (void)proxy_forward_leave(r, blame ? SCHED_FAILED : SCHED_ABANDONED); /* enter below hands out */
    metrics_add(PROXY_M(p, PROXY_M_RETRIES, r->last, reason), 1);
    see_failed(p->see, r->page, reason);
    t->tried[t->index / 64] |= UINT64_C(1) << (t->index % 64);
    if (blame)
        proxy_tell_failed(r->lane, r->last, t->generation, text);
    proxy_answer_reset(r);
    buf_add_c(&r->held, text); /* for who has to say why */
    enter(r);
}

void proxy_forward_drained(struct proxy_request *r)
{
    r->paused = false;
    r->behind = 0;
    proxy_link_taken(r);
    if (r->leader)
        r = r->leader;
    r->byte_ms = net_loop_now_ms(r->lane->loop);
    if (r->call && !proxy_join_full(r))
        httpio_call_read(r->call, true);
}
