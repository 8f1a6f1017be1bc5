/* SPDX-License-Identifier: MIT
 *
 * The same turn asked twice. A client that gives up waiting sends its turn again while the first one's prompt is still being read: to run both would read it twice. Until an answer has content, a request that
 * is the same to the last byte, of the same conversation and with the same credentials, joins the one that runs: both get its bytes. The one that runs leads; when its client leaves, or is
 * made to, the next one takes its place, and the call goes on.
 *
 * Joined are continued conversations, named ones, and what a client says is a retry. A first message without a name is not: who asks one question many times wants many answers. One that comes to another lane asks there, and has a follower there in its place (link.c).
 */
#include "proxy_int.h"

static bool is_retry(const struct http_head *head)
{
    struct str v = http_field_get(head, "x-stainless-retry-count");
    return v.len && !str_eq_c(v, "0");
}

static void fold(struct proxy_request *r, struct str s)
{
    r->same[0] = place_hash(r->same[0], s);
    r->same[1] = place_hash(r->same[1], s);
}

void proxy_join_identify(struct proxy_request *r, const struct proxy_look *k)
{
    static const char *const credentials[] = {"authorization", "x-api-key", "api-key", "cookie", "accept", "accept-encoding"};
    const struct http_head *head = httpio_exchange_head(r->x);
    const struct sched_ticket *t = &r->ticket;
    if (!k->same[0] || !(t->hint || t->n_chain > 1 || is_retry(head)))
        return;
    memcpy(r->same, k->same, sizeof r->same);
    fold(r, head->target);
    fold(r, (struct str){(const char *)&t->hint, sizeof t->hint});
    for (size_t i = 0; i < BASE_COUNT(credentials); i++)
        fold(r, http_field_get(head, credentials[i]));
    r->same[0] |= 1; /* 0: joins nobody */
}

/* The lock is held, as in what follows. */
static struct proxy_request **bucket(const struct proxy_request *r)
{
    return &r->proxy->running[r->same[0] / 2 % PROXY_RUNNING];
}

static void add(struct proxy_request *r)
{
    struct proxy_request **b = bucket(r);
    r->next_same = *b;
    if (*b)
        (*b)->at_same = &r->next_same;
    r->at_same = b;
    *b = r;
    r->joinable = true;
}

/* One that runs and has nothing of an answer yet: of the same lane, else of another. */
static struct proxy_request *find(const struct proxy_request *r)
{
    struct proxy_request *found = NULL;
    for (struct proxy_request *o = *bucket(r); o; o = o->next_same) {
        if (o->same[0] != r->same[0] || o->same[1] != r->same[1] || o->endpoint != r->endpoint || o->key != r->key)
            continue;
        if (o->lane == r->lane)
            return o;
        found = o;
    }
    return found;
}

static bool same_body(const struct proxy_body *a, const struct proxy_body *b)
{
    struct str x = proxy_body_text(a), y = proxy_body_text(b);
    return x.len == y.len && proxy_body_reach(a, x) == 0 && proxy_body_reach(b, y) == 0 && str_eq(x, y);
}

void proxy_join_open(struct proxy_request *r)
{
    if (!r->same[0])
        return;
    (void)pthread_mutex_lock(&r->proxy->lock);
    add(r);
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

void proxy_join_close(struct proxy_request *r)
{
    if (!r->joinable)
        return;
    r->joinable = false;
    (void)pthread_mutex_lock(&r->proxy->lock);
    *r->at_same = r->next_same;
    if (r->next_same)
        r->next_same->at_same = r->at_same;
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

static bool follow(struct proxy_request *r, const struct proxy_body *body, struct proxy_request *leader)
{
    if (!same_body(&leader->body, body))
        return false;
    r->leader = leader;
    r->next_follower = leader->followers;
    leader->followers = r;
    r->ticket.decision = SCHED_JOINED;
    see_joined(r->proxy->see, r->page, leader->last);
    metrics_add(PROXY_M(r->proxy, PROXY_M_JOINS, r->sink ? "other" : "same"), 1);
    return true;
}

bool proxy_join(struct proxy_request *r)
{
    if (!r->same[0])
        return false;
    (void)pthread_mutex_lock(&r->proxy->lock);
    struct proxy_request *leader = find(r);
    struct proxy_lane *lane = leader ? leader->lane : NULL;
    if (!leader)
        add(r);
    (void)pthread_mutex_unlock(&r->proxy->lock);
    if (!leader)
        return false;
    if (lane != r->lane && proxy_link_ask(r, lane)) /* the leader may be gone by now: its lane knows */
        return true;
    if (lane == r->lane && follow(r, &r->body, leader)) {
        proxy_request_drop_body(r);
        return true;
    }
    proxy_join_open(r);
    return false;
}

bool proxy_join_guest(struct proxy_request *r, const struct proxy_body *body)
{
    (void)pthread_mutex_lock(&r->proxy->lock);
    struct proxy_request *leader = find(r);
    bool here = leader && leader->lane == r->lane;
    (void)pthread_mutex_unlock(&r->proxy->lock);
    return here && follow(r, body, leader);
}

/* The call is read while one of its clients takes what comes. */
static void read_on(struct proxy_request *leader)
{
    if (leader->call)
        httpio_call_read(leader->call, !proxy_join_full(leader));
}

void proxy_join_leave(struct proxy_request *r)
{
    struct proxy_request *leader = r->leader, **at;
    proxy_link_leave(r);
    if (!leader)
        return;
    for (at = &leader->followers; *at != r; at = &(*at)->next_follower)
        ;
    *at = r->next_follower;
    r->leader = NULL;
    read_on(leader);
}

struct proxy_request *proxy_join_take(struct proxy_request *leader)
{
    struct proxy_request *r = leader->followers;
    if (r) {
        leader->followers = r->next_follower;
        r->leader = NULL;
    }
    return r;
}

bool proxy_join_full(const struct proxy_request *leader)
{
    for (const struct proxy_request *f = leader->followers; f; f = f->next_follower)
        if (!f->paused)
            return false;
    return leader->paused;
}

#define SWAP(type, a, b)    \
    do {                    \
        type before_ = (a); \
        (a) = (b);          \
        (b) = before_;      \
    } while (0)

/* What the client is goes over; what the call is stays. */
static void swap_clients(struct proxy_request *r, struct proxy_request *o)
{
    SWAP(struct httpio_exchange *, r->x, o->x);
    if (r->x)
        httpio_exchange_set(r->x, r);
    if (o->x)
        httpio_exchange_set(o->x, o);
    SWAP(struct proxy_link *, r->sink, o->sink);
    proxy_link_moved(r);
    proxy_link_moved(o);
    SWAP(struct proxy_use *, r->use, o->use); /* each is counted off by the one that has it */
    SWAP(uint64_t, r->number, o->number);
    SWAP(uint64_t, r->since_ms, o->since_ms);
    SWAP(uint64_t, r->sent_ms, o->sent_ms);
    SWAP(unsigned, r->status, o->status);
    SWAP(size_t, r->behind, o->behind);
    SWAP(bool, r->paused, o->paused);
    SWAP(bool, r->cancelled, o->cancelled);
    (void)pthread_mutex_lock(&r->proxy->lock);
    SWAP(struct see_page *, r->page, o->page);
    (void)pthread_mutex_unlock(&r->proxy->lock);
    see_hand(r->proxy->see, r->page, r);
    see_hand(r->proxy->see, o->page, o);
}

/* How far the answer is, for the line of the one that leaves it. */
static void tell_state(const struct proxy_request *r, struct proxy_request *o)
{
    o->last = r->last;
    o->way = r->way;
    o->attempts = r->attempts;
    o->passing = r->passing;
    o->content = r->content;
    o->content_ms = r->content_ms;
    (void)pthread_mutex_lock(&r->proxy->lock); /* it may be in the queue */
    o->ticket.decision = r->ticket.decision;
    o->ticket.waited_ms = sched_waited_ms(&r->ticket);
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

struct proxy_request *proxy_join_succeed(struct proxy_request *r)
{
    struct proxy_request *next = proxy_join_take(r);
    if (!next)
        return NULL;
    swap_clients(r, next);
    tell_state(r, next);
    proxy_stream_remove(next);
    read_on(r);
    return next;
}
