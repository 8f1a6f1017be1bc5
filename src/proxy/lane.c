/* SPDX-License-Identifier: MIT
 *
 * A lane: one event loop with its server, its client and its requests. Its clock is a timer that asks the scheduler again, and a tick while streams wait for signs of life or
 * lines for the log. Every lane hands out whatever the scheduler has; what is another lane's is put into that lane's list, and it is woken. So it is for links between requests of two lanes.
 *
 * The first lane lives on its owner's loop. Each other has a thread, which ends when it is told to; what the owner wants of it is done on its thread while the owner waits.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>

#include "proxy_int.h"

/* ---- the thread ------------------------------------------------------------------------------------------- */

/* What the owner waits for, and then what others have found. */
static void on_wake(void *ctx)
{
    struct proxy_lane *l = ctx;
    struct proxy *p = l->proxy;
    (void)pthread_mutex_lock(&p->lock);
    void (*order)(struct proxy_lane *, void *) = l->order;
    (void)pthread_mutex_unlock(&p->lock);
    if (order) {
        order(l, l->order_arg);
        (void)pthread_mutex_lock(&p->lock);
        l->order = NULL;
        (void)pthread_cond_signal(&l->ordered);
        (void)pthread_mutex_unlock(&p->lock);
    }
    proxy_link_deliver(l);
    proxy_pump(l);
    if (l == p->lanes)
        proxy_owner_woken(p);
}

void proxy_lane_do(struct proxy_lane *l, void (*fn)(struct proxy_lane *l, void *arg), void *arg)
{
    struct proxy *p = l->proxy;
    if (!l->threaded) {
        fn(l, arg);
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    l->order_arg = arg;
    l->order = fn;
    (void)pthread_mutex_unlock(&p->lock);
    net_wake_send(l->wake);
    (void)pthread_mutex_lock(&p->lock);
    while (l->order)
        (void)pthread_cond_wait(&l->ordered, &p->lock);
    (void)pthread_mutex_unlock(&p->lock);
}

static void *run(void *arg)
{
    struct proxy_lane *l = arg;
    net_loop_run(l->loop);
    return NULL;
}

static int start_thread(struct proxy_lane *l)
{
    sigset_t all, before;
    /* Signals are the owner's. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = -pthread_create(&l->thread, NULL, run, l);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->threaded = rc == 0;
    return rc;
}

static void stop_loop(struct proxy_lane *l, void *arg)
{
    (void)arg;
    l->pumping = true; /* nobody is sent anywhere any more */
    net_loop_stop(l->loop);
}

void proxy_lane_stop(struct proxy_lane *l)
{
    if (!l->threaded) {
        l->pumping = true;
        return;
    }
    proxy_lane_do(l, stop_loop, NULL);
    (void)pthread_join(l->thread, NULL);
    l->threaded = false;
}

/* ---- life ------------------------------------------------------------------------------------------------- */

static void on_due(void *ctx)
{
    proxy_pump(ctx);
}

static void on_tick(void *ctx);
static void on_more(void *ctx);
static void drop_spare(struct proxy_lane *l);

int proxy_lane_init(struct proxy *p, struct proxy_lane *l, struct net_loop *loop, unsigned loops, struct err *err)
{
    l->proxy = p;
    l->log = BUF_INIT(1 << 20);
    l->last_mail = &l->mail;
    (void)pthread_cond_init(&l->ordered, NULL); /* cannot fail without attributes */
    int rc = 0;
    l->loop = loop;
    if (!loop)
        rc = net_loop_new(&l->loop, err);
    if (rc == 0)
        rc = net_wake_new(l->loop, on_wake, l, &l->wake, err);
    if (rc == 0)
        rc = net_wake_new(l->loop, on_more, l, &l->more, err);
    if (rc < 0)
        return rc;
    struct httpio_limits limits = HTTPIO_LIMITS_DEFAULT;
    limits.servers = loops;
    limits.connections = 0; /* as many as descriptors serve: each is small, and one that waits makes room */
    l->server = httpio_server_new(l->loop, &limits, &proxy_server_ops, l);
    l->client = httpio_client_new(l->loop, &HTTPIO_CLIENT_DEFAULT);
    l->due = net_timer_new(l->loop, on_due, l);
    l->tick = net_timer_new(l->loop, on_tick, l);
    if (!l->server || !l->client || !l->due || !l->tick)
        return err_nomem(err);
    rc = loop ? 0 : start_thread(l);
    return rc < 0 ? err_sys(err, rc, "cannot start a thread of the router") : 0;
}

void proxy_lane_close(struct proxy_lane *l)
{
    l->server = httpio_server_free(l->server);
}

void proxy_lane_release(struct proxy_lane *l)
{
    l->client = httpio_client_free(l->client);
    l->due = net_timer_close(l->due);
    l->tick = net_timer_close(l->tick);
    l->wake = net_wake_close(l->wake);
    l->more = net_wake_close(l->more);
    drop_spare(l);
    proxy_log_flush(l);
    buf_release(&l->log);
    if (l != l->proxy->lanes)
        l->loop = net_loop_free(l->loop);
    (void)pthread_cond_destroy(&l->ordered);
}

/* ---- whose turn it is -------------------------------------------------------------------------------------- */

uint64_t proxy_lane_now(struct proxy_lane *l)
{
    uint64_t now = net_loop_now_ms(l->loop);
    /* Loops look at the clock at different times; a request of another lane must not have come in the future. */
    if (now > l->proxy->now_ms)
        l->proxy->now_ms = now;
    return l->proxy->now_ms;
}

static void hand_over(struct proxy_request *r, bool expired)
{
    struct proxy_lane *l = r->lane;
    r->handed_expired = expired;
    r->next_handed = l->handed;
    if (l->handed)
        l->handed->at_handed = &r->next_handed;
    r->at_handed = &l->handed;
    l->handed = r;
}

static struct proxy_request *take_over(struct proxy_lane *l, bool *ret_expired)
{
    struct proxy_request *r = l->handed;
    if (r) {
        *ret_expired = r->handed_expired;
        proxy_request_unhand(r);
    }
    return r;
}

void proxy_request_unhand(struct proxy_request *r)
{
    if (!r->at_handed)
        return;
    *r->at_handed = r->next_handed;
    if (r->next_handed)
        r->next_handed->at_handed = r->at_handed;
    r->at_handed = NULL;
}

struct turn {
    struct proxy_request *request; /* of this lane */
    struct proxy_lane *other;      /* has got one */
    bool expired;
    bool more;                     /* others wait */
    uint64_t due_ms;               /* when to look again, from now on; UINT64_MAX never */
};

/* The lock is held. */
static void next(struct proxy_lane *l, struct turn *ret)
{
    struct proxy *p = l->proxy;
    *ret = (struct turn){0};
    struct proxy_request *r = take_over(l, &ret->expired);
    if (!r) {
        struct sched_ticket *t = sched_next(p->sched, proxy_lane_now(l), &ret->expired);
        r = t ? base_container(t, struct proxy_request, ticket) : NULL;
        if (t && t->replica)
            r->target = PROXY_PEER(t->replica)->target;
        if (r && r->lane != l) {
            hand_over(r, ret->expired);
            ret->other = r->lane;
        }
    }
    ret->request = ret->other ? NULL : r;
    ret->more = l->handed || sched_waiting(p->sched) > 0;
    uint64_t due = ret->more ? sched_due(p->sched) : UINT64_MAX;
    ret->due_ms = due == UINT64_MAX ? due : due > p->now_ms ? due - p->now_ms : 1;
}

/* Whose turn it is has it, and so on, until nobody has. */
static void hand_out(struct proxy_lane *l, struct turn *t)
{
    l->pumping = true;
    while (t->request || t->other) {
        l->again = false;
        if (t->request)
            proxy_forward_go(t->request, t->expired);
        else
            net_wake_send(t->other->wake);
        if (!t->more && !l->again) /* nobody waited then, and nobody came since */
            break;
        (void)pthread_mutex_lock(&l->proxy->lock);
        next(l, t);
        (void)pthread_mutex_unlock(&l->proxy->lock);
    }
    l->pumping = false;
    if (t->due_ms == UINT64_MAX)
        net_timer_stop(l->due);
    else
        net_timer_start(l->due, t->due_ms, 0);
    proxy_tell_moved(l);
}

void proxy_pump(struct proxy_lane *l)
{
    struct turn t;
    if (l->pumping) {
        l->again = true;
        return;
    }
    (void)pthread_mutex_lock(&l->proxy->lock);
    next(l, &t);
    (void)pthread_mutex_unlock(&l->proxy->lock);
    hand_out(l, &t);
}

bool proxy_lane_enter(struct proxy_request *r)
{
    struct proxy_lane *l = r->lane;
    struct proxy *p = r->proxy;
    struct turn t;
    (void)pthread_mutex_lock(&p->lock);
    bool entered = sched_enter(p->sched, &r->ticket, proxy_lane_now(l)) == 0;
    if (entered && !l->pumping)
        next(l, &t);
    else if (!entered)
        r->turned_away = sched_waiting(p->sched) + 1;
    r->entered = entered;
    (void)pthread_mutex_unlock(&p->lock);
    if (entered && l->pumping)
        l->again = true;
    else if (entered)
        hand_out(l, &t);
    return entered;
}

void proxy_settle(struct proxy_lane *l, bool waiting)
{
    if (waiting)
        proxy_pump(l);
    else if (!l->pumping)
        proxy_tell_moved(l);
}

/* ---- large bodies on their way ------------------------------------------------------------------------------- */

bool proxy_lane_sends(struct proxy_request *r, size_t bytes)
{
    struct proxy_lane *l = r->lane;
    if (l->sent >= PROXY_SEND_TURN)
        return false;
    l->sent += bytes;
    return true;
}

void proxy_sender_add(struct proxy_request *r)
{
    struct proxy_lane *l = r->lane;
    proxy_sender_remove(r);
    r->at_sender = l->last_sender ? &l->last_sender->next_sender : &l->senders;
    *r->at_sender = l->last_sender = r;
    net_wake_send(l->more); /* a timer that is due at once would not wait for what others have to say */
}

void proxy_sender_remove(struct proxy_request *r)
{
    struct proxy_lane *l = r->lane;
    if (!r->at_sender)
        return;
    *r->at_sender = r->next_sender;
    if (r->next_sender)
        r->next_sender->at_sender = r->at_sender;
    else
        l->last_sender = r->at_sender == &l->senders ? NULL : base_container(r->at_sender, struct proxy_request, next_sender);
    r->at_sender = NULL;
    r->next_sender = NULL;
}

static void on_more(void *ctx)
{
    struct proxy_lane *l = ctx;
    struct proxy_request *r;
    l->sent = 0;
    while ((r = l->senders) && l->sent < PROXY_SEND_TURN) {
        proxy_sender_remove(r);
        if (r->sending)
            proxy_forward_send(r);
    }
    if (l->senders)
        net_wake_send(l->more);
}

/* ---- the tick ---------------------------------------------------------------------------------------------- */

void proxy_tick(struct proxy_lane *l)
{
    if (!l->ticking)
        net_timer_start(l->tick, l->proxy->tick_ms, l->proxy->tick_ms);
    l->ticking = true;
}

void proxy_stream_add(struct proxy_request *r)
{
    struct proxy_lane *l = r->lane;
    r->next_stream = l->streams;
    if (l->streams)
        l->streams->at_stream = &r->next_stream;
    r->at_stream = &l->streams;
    l->streams = r;
    proxy_tick(l);
}

void proxy_stream_remove(struct proxy_request *r)
{
    if (!r->at_stream)
        return;
    *r->at_stream = r->next_stream;
    if (r->next_stream)
        r->next_stream->at_stream = r->at_stream;
    r->at_stream = NULL;
}

static void drop_spare(struct proxy_lane *l)
{
    struct proxy_request *r;
    while ((r = l->spare)) {
        l->spare = r->next_stream;
        free(r);
    }
    l->n_spare = 0;
}

/* Whether there were so many connections that what they used is worth giving back. Loops share the clients. */
static bool was_crowded(const struct proxy_lane *l)
{
    size_t share = PROXY_TRIM_FROM / l->proxy->n_lanes;
    return l->most >= (share > PROXY_TRIM_LEAST ? share : PROXY_TRIM_LEAST);
}

void proxy_lane_opened(void *ctx)
{
    struct proxy_lane *l = ctx;
    size_t open = httpio_server_open(l->server);
    if (open <= l->most)
        return;
    l->most = open;
    if (was_crowded(l))
        proxy_tick(l);
}

/* The allocator keeps what thousands of connections have used, in pieces between what lives longer. To give it back takes milliseconds for each 10 MiB, in which nobody on any loop gets memory: that is left for a moment
 * when no request is under way, though not for ever. */
static void give_memory_back(struct proxy_lane *l)
{
    struct proxy *p = l->proxy;
    size_t open = httpio_server_open(l->server);
    if (!was_crowded(l) || open > l->most / 4) {
        l->postponed = 0;
        return;
    }
    if (p->stats.active && ++l->postponed < PROXY_TRIM_POSTPONED)
        return;
    if (atomic_exchange(&p->trimming, true)) /* another loop does it for all; what this one has spare has its turn at the next tick */
        return;
    drop_spare(l);
    (void)malloc_trim(0);
    p->trimming = false;
    l->most = open;
    l->postponed = 0;
}

/* Looks after the streams. What is done for one may end it, and then others begin: the walk ends there. */
static void on_tick(void *ctx)
{
    struct proxy_lane *l = ctx;
    const struct proxy *p = l->proxy;
    uint64_t now = net_loop_now_ms(l->loop);
    proxy_log_flush(l);
    for (struct proxy_request *r = l->streams; r;) {
        struct proxy_request *following = r->next_stream;
        if (r->call && !proxy_join_full(r) && r->target.pins && now - r->byte_ms >= p->hang_ms) {
            proxy_answer_hang(r);
            break; /* the list is another one: the rest has its turn at the next tick */
        }
        if (now - r->sent_ms >= p->heartbeat_ms)
            proxy_answer_heartbeat(r);
        r = following;
    }
    give_memory_back(l);
    if (!l->streams && !was_crowded(l)) {
        net_timer_stop(l->tick);
        l->ticking = false;
    }
}
