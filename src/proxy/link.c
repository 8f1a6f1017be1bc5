/* SPDX-License-Identifier: MIT
 *
 * The way from an answer to a client of another lane. A request that could join one of another lane asks that lane: its body, its head and a request without an exchange, its guest, are left in a link. The other lane
 * compares the bodies, and makes the guest a follower there, or says no: then the request goes its own way. What a follower is sent goes into the link in pieces, which are copied once and given to the
 * client's connection by the client's own lane.
 *
 * A link has two ends, each of one lane and used by that lane's thread; what passes is under the proxy's lock. An end for which there is something is put into its lane's list `mail`, and the lane is woken. Either end may go
 * first. The link lives until both have, and nothing of it is in a list.
 */
#include <errno.h>

#include "proxy_int.h"

#define FULL 262144 /* bytes on their way to a client above which it takes no more: as many as its connection may queue */

struct proxy_link_end {
    struct proxy_link *link;
    struct proxy_lane *lane;
    struct proxy_request *request; /* the lane's own; NULL: it has gone */
    struct proxy_link_end *next;   /* lock; in lane->mail */
    bool mailed;                   /* lock; it is there */
};

/* Of an answer: its head, or bytes. */
struct piece {
    struct piece *next;
    struct http_head *head; /* NULL: bytes */
    struct proxy_origin origin;
    bool between;
    size_t len;
    char data[];
};

/* What an end finds when it looks. */
struct to_client {
    bool replied, refused; /* whether there is something to join */
    struct piece *pieces;
    enum proxy_link_over over;
};
struct to_answer {
    bool asks, left, drained;
};

struct proxy_link {
    struct proxy *proxy;
    struct proxy_link_end client, answer;
    struct http_head *head;       /* of the client's request */
    struct proxy_request *guest;  /* until the answer's lane has it */
    struct proxy_body body;       /* the client's; until the reply the answer's lane looks at it */
    bool asking;                  /* the client's: there is no reply */
    size_t owed;                  /* the client's: bytes that its connection has and has not sent */
    bool lost;                    /* the answer's: a piece had no memory */
    /* lock */
    unsigned refs;                /* ends that have not gone or that are in a list */
    struct to_client to_client;
    struct to_answer to_answer;
    struct piece **last;          /* of the pieces */
    size_t behind;                /* bytes that the client's connection has not sent */
    bool full;                    /* the answer's lane wants to know when it has */
    /* the answer's until it is over, then the client's */
    unsigned status;
    bool slow;
    struct buf text;
    struct dialect_usage usage;   /* of an answer that has no other client: who counts it */
    struct sched_replica *replica;
    struct metrics_series *gaps;
    uint64_t predicted;
};

/* ---- what is copied ------------------------------------------------------------------------------------------ */

static struct str copy_text(struct str s, char **at)
{
    struct str copy = {*at, s.len};
    if (s.len)
        memcpy(*at, s.ptr, s.len);
    *at += s.len;
    return copy;
}

/* In one piece, to be freed. NULL without memory. */
static struct http_head *copy_head(const struct http_head *h)
{
    size_t text = h->method.len + h->target.len + h->reason.len;
    for (size_t i = 0; i < h->n_fields; i++)
        text += h->fields[i].name.len + h->fields[i].value.len;
    struct http_head *copy = malloc(sizeof *copy + h->n_fields * sizeof *h->fields + text);
    if (!copy)
        return NULL;
    struct http_field *fields = (struct http_field *)(copy + 1);
    char *at = (char *)(fields + h->n_fields);
    *copy = *h;
    copy->method = copy_text(h->method, &at);
    copy->target = copy_text(h->target, &at);
    copy->reason = copy_text(h->reason, &at);
    copy->fields = fields;
    for (size_t i = 0; i < h->n_fields; i++) {
        fields[i] = h->fields[i];
        fields[i].name = copy_text(h->fields[i].name, &at);
        fields[i].value = copy_text(h->fields[i].value, &at);
    }
    return copy;
}

static struct piece *piece_new(struct str data)
{
    struct piece *p = malloc(sizeof *p + data.len);
    if (!p)
        return NULL;
    *p = (struct piece){.len = data.len};
    if (data.len)
        memcpy(p->data, data.ptr, data.len);
    return p;
}

static struct piece *piece_free(struct piece *p)
{
    struct piece *next = p->next;
    free(p->head);
    free(p);
    return next;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void lock(struct proxy_link *k)
{
    (void)pthread_mutex_lock(&k->proxy->lock);
}

static void unlock(struct proxy_link *k)
{
    (void)pthread_mutex_unlock(&k->proxy->lock);
}

static void unref(struct proxy_link *k)
{
    lock(k);
    bool last = --k->refs == 0;
    unlock(k);
    if (!last)
        return;
    for (struct piece *p = k->to_client.pieces; p;)
        p = piece_free(p);
    buf_release(&k->text);
    free(k->head);
    free(k);
}

/* Ends what the lock is held for: that end's lane will look. */
static void tell(struct proxy_link *k, struct proxy_link_end *e)
{
    struct proxy_lane *l = e->lane;
    bool first = !e->mailed;
    if (first) {
        e->mailed = true;
        e->next = NULL;
        *l->last_mail = e;
        l->last_mail = &e->next;
        l->n_mail++;
        k->refs++;
    }
    unlock(k);
    if (first)
        net_wake_send(l->wake);
}

/* ---- the client's end ------------------------------------------------------------------------------------------- */

/* The request that follows there in place of r. */
static struct proxy_request *guest_new(const struct proxy_request *r, struct proxy_link *k)
{
    struct proxy_request *g = malloc(sizeof *g);
    if (!g)
        return NULL;
    *g = (struct proxy_request){.proxy = r->proxy, .lane = k->answer.lane, .config = proxy_config_ref(r->config), .endpoint = r->endpoint, .key = r->key, .number = r->number, .since_ms = r->since_ms,
                                .dialect = r->dialect, .stream = r->stream, .same = {r->same[0], r->same[1]}, .sink = k, .held = BUF_INIT(r->held.max)};
    proxy_body_init(&g->body, &r->config->bodies);
    return g;
}

bool proxy_link_ask(struct proxy_request *r, struct proxy_lane *answer)
{
    struct proxy_link *k = calloc(1, sizeof *k);
    if (!k)
        return false;
    *k = (struct proxy_link){.proxy = r->proxy, .asking = true, .refs = 2, .text = BUF_INIT(524288), .to_answer = {.asks = true}};
    k->client = (struct proxy_link_end){.link = k, .lane = r->lane, .request = r};
    k->answer = (struct proxy_link_end){.link = k, .lane = answer};
    k->last = &k->to_client.pieces;
    k->head = copy_head(httpio_exchange_head(r->x));
    k->guest = k->head ? guest_new(r, k) : NULL;
    if (!k->guest) {
        free(k->head);
        free(k);
        return false;
    }
    k->body = r->body;
    proxy_body_init(&r->body, &r->config->bodies);
    r->source = k;
    lock(k);
    tell(k, &k->answer);
    return true;
}

/* The request needs the link no more. */
static void let_go(struct proxy_link *k)
{
    k->client.request->source = NULL;
    k->client.request = NULL;
    unref(k);
}

void proxy_link_leave(struct proxy_request *r)
{
    struct proxy_link *k = r->source;
    if (!k)
        return;
    if (k->asking) /* it is still looked at */
        proxy_body_forget(k->proxy, &k->body);
    lock(k);
    k->to_answer.left = true;
    tell(k, &k->answer);
    let_go(k);
}

void proxy_link_taken(struct proxy_request *r)
{
    struct proxy_link *k = r->source;
    if (!k || !k->owed)
        return;
    lock(k);
    k->behind -= k->owed;
    k->owed = 0;
    bool over = k->full && k->behind <= FULL;
    if (!over) {
        unlock(k);
        return;
    }
    k->full = false;
    k->to_answer.drained = true;
    tell(k, &k->answer);
}

/* The same while its mail is being read, which holds the link: it is not gone when this returns. */
static void let_go_reading(struct proxy_link *k)
{
    k->client.request->source = NULL;
    k->client.request = NULL;
    lock(k);
    k->refs--;
    unlock(k);
}

static void take_reply(struct proxy_link *k, bool refused)
{
    struct proxy_request *r = k->client.request;
    k->asking = false;
    if (!r) {
        proxy_body_release(&k->body);
    } else if (!refused) {
        r->ticket.decision = SCHED_JOINED;
        see_joined(k->proxy->see, r->page, NULL);
        proxy_body_drop(k->proxy, &k->body);
    } else {
        r->body = k->body;
        let_go_reading(k);
        proxy_forward_alone(r);
    }
}

static void take_piece(struct proxy_link *k, struct proxy_request *r, const struct piece *p)
{
    if (p->head) {
        proxy_answer_begin(r, &p->origin);
        return;
    }
    k->owed += p->len;
    r->between = p->between;
    r->paused = httpio_send(r->x, (struct str){p->data, p->len}) || r->paused;
    r->sent_ms = net_loop_now_ms(r->lane->loop);
}

static void take_end(struct proxy_link *k, enum proxy_link_over how)
{
    struct proxy_request *r = k->client.request;
    if (k->usage.known) {
        r->usage = k->usage;
        r->gaps = k->gaps;
        r->ticket.replica = k->replica;
        r->ticket.predicted = k->predicted;
    }
    r->slow = k->slow;
    let_go_reading(k);
    if (how == PROXY_LINK_ENDED)
        httpio_end(r->x);
    else if (how == PROXY_LINK_CUT)
        proxy_answer_cut(r, buf_str(&k->text));
    else
        proxy_request_fail(r, k->status, STR_FMT, STR_ARG(buf_str(&k->text)));
}

static void at_client(struct proxy_link *k, const struct to_client *m)
{
    if (m->replied)
        take_reply(k, m->refused);
    for (struct piece *p = m->pieces; p; p = piece_free(p))
        if (k->client.request)
            take_piece(k, k->client.request, p);
    if (k->client.request && !k->client.request->paused)
        proxy_link_taken(k->client.request);
    if (k->client.request && m->over)
        take_end(k, m->over);
}

/* ---- the answer's end ------------------------------------------------------------------------------------------- */

const struct http_head *proxy_link_head(const struct proxy_request *r)
{
    return r->sink ? r->sink->head : httpio_exchange_head(r->x);
}

void proxy_link_moved(struct proxy_request *r)
{
    if (r->sink)
        r->sink->answer.request = r;
}

void proxy_link_drop(struct proxy_request *r)
{
    struct proxy_link *k = r->sink;
    if (!k)
        return;
    r->sink = NULL;
    k->answer.request = NULL;
    unref(k);
}

/* Returns how many bytes the client has not taken. */
static size_t put(struct proxy_link *k, struct piece *p)
{
    lock(k);
    *k->last = p;
    k->last = &p->next;
    k->behind += p->len;
    k->full = k->full || k->behind > FULL;
    size_t behind = k->behind;
    tell(k, &k->client);
    return behind;
}

int proxy_link_begin(struct proxy_request *r, const struct proxy_origin *o)
{
    struct piece *p = piece_new((struct str){0});
    struct http_head *head = p ? copy_head(o->head) : NULL;
    if (!head) {
        free(p);
        return -ENOMEM;
    }
    p->head = head;
    p->origin = *o;
    p->origin.head = head;
    r->status = head->status;
    (void)put(r->sink, p);
    return 0;
}

bool proxy_link_send(struct proxy_request *r, struct str data, bool between)
{
    struct proxy_link *k = r->sink;
    struct piece *p = k->lost ? NULL : piece_new(data);
    if (p) {
        p->between = between;
        r->behind = put(k, p);
        r->paused = r->behind > FULL;
    } else { /* what follows would not be the answer: others go on without it */
        k->lost = true;
        r->paused = false;
        r->behind = SIZE_MAX;
    }
    return !r->paused;
}

void proxy_link_end(struct proxy_request *r, enum proxy_link_over how, unsigned status, struct str text)
{
    struct proxy_link *k = r->sink;
    if (!k->lost)
        buf_add_str(&k->text, text);
    if (k->lost || buf_status(&k->text) < 0) {
        buf_clear(&k->text);
        how = PROXY_LINK_CUT;
    }
    lock(k);
    k->to_client.over = how;
    k->status = status;
    k->slow = r->slow;
    k->usage = r->usage;
    k->gaps = r->gaps;
    k->replica = r->ticket.replica;
    k->predicted = r->ticket.predicted;
    tell(k, &k->client);
    proxy_request_over(r);
}

static void at_answer(struct proxy_link *k, const struct to_answer *m)
{
    if (m->asks) {
        struct proxy_request *g = k->guest;
        k->guest = NULL;
        bool joined = proxy_join_guest(g, &k->body);
        lock(k);
        k->to_client.replied = true;
        k->to_client.refused = !joined;
        tell(k, &k->client);
        if (joined)
            k->answer.request = g;
        else
            proxy_request_over(g);
    }
    if (m->drained && k->answer.request)
        proxy_forward_drained(k->answer.request);
    if (m->left && k->answer.request)
        proxy_request_left(k->answer.request);
}

/* ---- the lane ------------------------------------------------------------------------------------------------------ */

/* The first end of the list looks. */
static void look(struct proxy_lane *l)
{
    struct to_client to_client = {0};
    struct to_answer to_answer = {0};
    (void)pthread_mutex_lock(&l->proxy->lock);
    struct proxy_link_end *e = l->mail;
    struct proxy_link *k = e->link;
    l->mail = e->next;
    if (!l->mail)
        l->last_mail = &l->mail;
    l->n_mail--;
    e->mailed = false;
    if (e == &k->client) {
        to_client = k->to_client;
        k->to_client = (struct to_client){0};
        k->last = &k->to_client.pieces;
    } else {
        to_answer = k->to_answer;
        k->to_answer = (struct to_answer){0};
    }
    unlock(k);
    if (e == &k->client)
        at_client(k, &to_client);
    else
        at_answer(k, &to_answer);
    unref(k);
}

void proxy_link_deliver(struct proxy_lane *l)
{
    (void)pthread_mutex_lock(&l->proxy->lock);
    size_t n = l->n_mail;
    (void)pthread_mutex_unlock(&l->proxy->lock);
    while (n--) /* what comes meanwhile wakes the lane again */
        look(l);
}
