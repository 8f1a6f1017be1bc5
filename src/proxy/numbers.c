/* SPDX-License-Identifier: MIT
 *
 * What can be seen of the router: metrics, and one line of JSON for each request at its end.
 */
#include "proxy_int.h"

#define LOG_PATH_MAX 512 /* of a path in a line, so that a line goes into a pipe in one piece, escapes included */

static const double first_byte_bounds[] = {0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
static const double duration_bounds[] = {0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800};
static const double queue_bounds[] = {0.001, 0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
static const double regret_bounds[] = {0, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
static const double token_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1};

const struct metrics_desc proxy_metric_descs[PROXY_M_COUNT] = {
    [PROXY_M_REQUESTS] = {"berth_router_requests_total", "Requests answered, by the endpoint they named, the last replica they went to and the status sent",
                          METRICS_COUNTER, {"endpoint", "replica", "code"}, NULL, 0},
    [PROXY_M_RETRIES] = {"berth_router_retries_total", "Calls that failed before the client had anything of an answer, by replica and reason",
                         METRICS_COUNTER, {"replica", "reason"}, NULL, 0},
    [PROXY_M_CUT] = {"berth_router_cut_total", "Answers that broke off, by replica", METRICS_COUNTER, {"replica"}, NULL, 0},
    [PROXY_M_CANCELLED] = {"berth_router_cancelled_total", "Requests whose client left before the end, by what they were doing", METRICS_COUNTER, {"phase"}, NULL, 0},
    [PROXY_M_DECISIONS] = {"berth_router_decisions_total", "Requests sent to a replica, by why it was this one: affine and overflow are conversations that it holds and that it was too busy for",
                           METRICS_COUNTER, {"endpoint", "replica", "decision"}, NULL, 0},
    [PROXY_M_TOKENS] = {"berth_router_tokens_total", "Tokens as replicas tell them: read from prompts, found in their caches, generated", METRICS_COUNTER, {"endpoint", "replica", "kind"}, NULL, 0},
    [PROXY_M_PREDICTED] = {"berth_router_predicted_cached_tokens_total", "Prompt tokens that were expected in the cache of the chosen replica", METRICS_COUNTER, {"endpoint", "replica"}, NULL, 0},
    [PROXY_M_REGRET] = {"berth_router_regret_seconds", "How much sooner the best of the other replicas would have read the prompt, as it looked when the choice was made", METRICS_HISTOGRAM,
                        {"endpoint", "replica"}, regret_bounds, BASE_COUNT(regret_bounds)},
    [PROXY_M_KEY_REQUESTS] = {"berth_router_key_requests_total", "Requests answered, by the name of the key that was shown and the status sent", METRICS_COUNTER, {"key", "code"}, NULL, 0},
    [PROXY_M_KEY_TOKENS] = {"berth_router_key_tokens_total", "Tokens as replicas tell them, by the name of the key", METRICS_COUNTER, {"key", "kind"}, NULL, 0},
    [PROXY_M_JOINS] = {"berth_router_joins_total", "Requests that joined the same turn under way, at their own event loop or at another one", METRICS_COUNTER, {"loop"}, NULL, 0},
    [PROXY_M_HEARTBEATS] = {"berth_router_heartbeats_total", "Signs of life sent to clients that wait", METRICS_COUNTER, {0}, NULL, 0},
    [PROXY_M_SPILLED] = {"berth_router_bodies_spilled_total", "Request bodies that went to a file, for their size or because memory for bodies was used up", METRICS_COUNTER, {0}, NULL, 0},
    [PROXY_M_SPILLED_BYTES] = {"berth_router_spilled_bytes_total", "Bytes of request bodies written to files", METRICS_COUNTER, {0}, NULL, 0},
    [PROXY_M_BODIES_REFUSED] = {"berth_router_bodies_refused_total", "Request bodies that were not kept: large (over the limit of one), full (over what all may take), disk full, error", METRICS_COUNTER, {"reason"}, NULL, 0},
    [PROXY_M_HANDSHAKES] = {"berth_router_tls_handshakes_total", "TLS handshakes with clients by how they ended: ok, failed (refused by either side), left (not complete when the connection ended or its time was over)",
                            METRICS_COUNTER, {"result"}, NULL, 0},
    [PROXY_M_CONNECTIONS] = {"berth_router_connections_total", "Connections of clients by what became of them: accepted; refused at the limit; reclaimed or idle (closed without a request, to make room or at the end of their "
                             "time); slow_head, slow_body and slow_reader (over their time); crowded_head (closed in the middle of a head, as too many were); large_head and malformed", METRICS_COUNTER, {"event"}, NULL, 0},
    [PROXY_M_QUEUE] = {"berth_router_queue_seconds", "Time in the queue before the first replica", METRICS_HISTOGRAM, {"endpoint", "replica"}, queue_bounds, BASE_COUNT(queue_bounds)},
    [PROXY_M_FIRST_BYTE] = {"berth_router_first_byte_seconds", "From a request's head to the first content of its answer", METRICS_HISTOGRAM, {"endpoint", "replica"},
                            first_byte_bounds, BASE_COUNT(first_byte_bounds)},
    [PROXY_M_INTER_TOKEN] = {"berth_router_inter_token_seconds", "Time between the tokens of a stream", METRICS_HISTOGRAM, {"endpoint", "replica"},
                             token_bounds, BASE_COUNT(token_bounds)},
    [PROXY_M_DURATION] = {"berth_router_duration_seconds", "From a request's head to the end of its answer", METRICS_HISTOGRAM, {"endpoint", "replica"},
                          duration_bounds, BASE_COUNT(duration_bounds)},
    [PROXY_M_ACTIVE] = {"berth_router_active", "Requests under way", METRICS_GAUGE, {0}, NULL, 0},
    [PROXY_M_WAITING] = {"berth_router_waiting", "Requests in the queue", METRICS_GAUGE, {0}, NULL, 0},
    [PROXY_M_BODY_BYTES] = {"berth_router_body_bytes", "Bytes of request bodies that are kept, in memory and in files", METRICS_GAUGE, {"where"}, NULL, 0},
    [PROXY_M_INDEX] = {"berth_router_affinity_bytes", "Memory of the index of conversations", METRICS_GAUGE, {0}, NULL, 0},
    [PROXY_M_WORKING_SET] = {"berth_router_working_set_tokens", "Tokens of the conversations that had a turn within ten minutes", METRICS_GAUGE, {"endpoint"}, NULL, 0},
    [PROXY_M_CAPACITY] = {"berth_router_capacity_tokens", "Tokens that the ready replicas hold; 0 when unknown", METRICS_GAUGE, {"endpoint"}, NULL, 0},
    [PROXY_M_CONVERSATIONS] = {"berth_router_conversations", "Conversations that had a turn within ten minutes", METRICS_GAUGE, {"endpoint"}, NULL, 0},
    [PROXY_M_SLOTS] = {"berth_router_slots", "Slots of the ready replicas; 0 when there is no limit", METRICS_GAUGE, {"endpoint"}, NULL, 0},
    [PROXY_M_CROWDED] = {"berth_router_crowded", "Whether conversations are more than the replicas keep: their prompts are read again whatever the policy", METRICS_GAUGE, {"endpoint"}, NULL, 0},
    [PROXY_M_READY] = {"berth_router_replica_ready", "Whether a replica is ready, as the router was told", METRICS_GAUGE, {"replica"}, NULL, 0},
    [PROXY_M_SUSPECT] = {"berth_router_replica_suspect", "Whether a replica is left alone because it failed", METRICS_GAUGE, {"replica"}, NULL, 0},
    [PROXY_M_BUSY] = {"berth_router_replica_busy", "Requests that a replica works on for the router", METRICS_GAUGE, {"replica"}, NULL, 0},
    [PROXY_M_SPEED] = {"berth_router_replica_prompt_tokens_per_second", "Prompt tokens a second, as learnt from a replica's answers", METRICS_GAUGE, {"replica"}, NULL, 0},
};

/* How full it is; what is unknown is not full. */
static double fullness(const struct sched_room *room)
{
    double tokens = room->capacity ? (double)room->working_set / (double)room->capacity : 0;
    double slots = room->slots ? (double)room->conversations / room->slots : 0;
    return (tokens > slots ? tokens : slots) + (room->crowded ? 1e9 : 0);
}

static void count_handshakes(const struct proxy *p)
{
    static const char *const results[] = {"ok", "failed", "left"};
    struct net_tls_stats s;
    net_tls_stats(p->tls, &s);
    const uint64_t n[] = {s.done, s.failed, s.left};
    for (size_t i = 0; i < BASE_COUNT(results); i++) {
        struct metrics_series *series = PROXY_M(p, PROXY_M_HANDSHAKES, results[i]);
        metrics_add(series, n[i] - metrics_count(series));
    }
}

static void count_connections(const struct proxy *p)
{
    for (enum httpio_event e = 0; e < HTTPIO_N_EVENTS; e++) {
        struct metrics_series *series = PROXY_M(p, PROXY_M_CONNECTIONS, httpio_event_name(e));
        uint64_t n = 0;
        for (unsigned i = 0; i < p->n_lanes; i++)
            n += httpio_server_count(p->lanes[i].server, e);
        metrics_add(series, n - metrics_count(series));
    }
}

void proxy_stats(struct proxy *p, struct proxy_stats *ret)
{
    double fullest = -1;
    *ret = (struct proxy_stats){.requests = p->stats.requests, .retries = p->stats.retries, .errors = p->stats.errors, .active = p->stats.active};
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; p->config && i < p->config->n_endpoints; i++) {
        struct sched_room room;
        proxy_room(p, &p->config->endpoints[i], &room);
        if (fullness(&room) <= fullest)
            continue;
        fullest = fullness(&room);
        ret->working_set = room.working_set;
        ret->capacity = room.capacity;
        ret->conversations = room.conversations;
        ret->slots = room.slots;
        ret->crowded = room.crowded;
    }
    (void)pthread_mutex_unlock(&p->lock);
}

/* The lock is held. */
static void measure_room(struct proxy *p)
{
    for (size_t i = 0; p->config && i < p->config->n_endpoints; i++) {
        const struct proxy_endpoint *e = &p->config->endpoints[i];
        struct sched_room room;
        proxy_room(p, e, &room);
        metrics_set(PROXY_M(p, PROXY_M_WORKING_SET, e->name), (double)room.working_set);
        metrics_set(PROXY_M(p, PROXY_M_CAPACITY, e->name), (double)room.capacity);
        metrics_set(PROXY_M(p, PROXY_M_CONVERSATIONS, e->name), room.conversations);
        metrics_set(PROXY_M(p, PROXY_M_SLOTS, e->name), room.slots);
        metrics_set(PROXY_M(p, PROXY_M_CROWDED, e->name), room.crowded);
    }
}

int proxy_metrics(struct proxy *p, struct buf *out)
{
    if (p->tls)
        count_handshakes(p);
    count_connections(p);
    (void)pthread_mutex_lock(&p->lock);
    uint64_t now = proxy_lane_now(p->lanes);
    metrics_set(metrics_get(p->metrics, PROXY_M_ACTIVE, NULL), (double)p->stats.active);
    metrics_set(metrics_get(p->metrics, PROXY_M_WAITING, NULL), (double)sched_waiting(p->sched));
    metrics_set(PROXY_M(p, PROXY_M_BODY_BYTES, "memory"), (double)p->bodies);
    metrics_set(PROXY_M(p, PROXY_M_BODY_BYTES, "file"), (double)p->spilled);
    metrics_set(metrics_get(p->metrics, PROXY_M_INDEX, NULL), (double)affinity_bytes(p->affinity));
    measure_room(p);
    for (size_t i = 0; i < p->n_peers; i++) {
        const struct proxy_peer *peer = p->peers[i];
        metrics_set(PROXY_M(p, PROXY_M_READY, peer->name), peer->s.ready);
        metrics_set(PROXY_M(p, PROXY_M_SUSPECT, peer->name), peer->s.suspect_ms > now);
        metrics_set(PROXY_M(p, PROXY_M_BUSY, peer->name), peer->s.active);
        if (peer->s.told)
            metrics_set(PROXY_M(p, PROXY_M_SPEED, peer->name), peer->s.prefill_tps);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return metrics_text(p->metrics, out);
}

/* What a request's ticket says at one moment: while it waits, any lane may hand it out. */
struct at_end {
    bool waiting;
    enum sched_decision decision;
    uint64_t waited_ms, predicted;
    struct sched_replica *replica;
    struct see_page *page; /* the caller's from here on: who looks at the queue must not write into one that has ended */
};

static void take_end(struct proxy_request *r, struct at_end *ret)
{
    const struct sched_ticket *t = &r->ticket;
    /* what is in no queue is nobody else's */
    if (r->entered)
        (void)pthread_mutex_lock(&r->proxy->lock);
    *ret = (struct at_end){
        .waiting = t->state == SCHED_WAITING,
        .decision = t->decision,
        .waited_ms = sched_waited_ms(t),
        .predicted = t->predicted,
        .replica = t->replica,
        .page = r->page,
    };
    r->page = NULL;
    if (r->entered)
        (void)pthread_mutex_unlock(&r->proxy->lock);
}

bool proxy_request_waits(const struct proxy_request *r)
{
    (void)pthread_mutex_lock(&r->proxy->lock);
    bool waits = r->ticket.state == SCHED_WAITING;
    (void)pthread_mutex_unlock(&r->proxy->lock);
    return waits;
}

static const char *phase(const struct proxy_request *r, bool waiting)
{
    if (r->content)
        return see_phase_name(SEE_DECODE);
    if (waiting)
        return see_phase_name(SEE_QUEUE);
    return see_phase_name(r->attempts ? SEE_PREFILL : SEE_READ);
}

void proxy_numbers_cancelled(const struct proxy_request *r)
{
    metrics_add(PROXY_M(r->proxy, PROXY_M_CANCELLED, phase(r, proxy_request_waits(r))), 1);
}

void proxy_numbers_tokens(const struct proxy_request *r, uint64_t n)
{
    (void)pthread_mutex_lock(&r->proxy->lock);
    see_rate_add(&PROXY_PEER(r->ticket.replica)->rate, proxy_lane_now(r->lane), n);
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

/* replica: that has it; NULL. */
static void count_tokens(const struct proxy_request *r, const char *endpoint, struct sched_replica *replica)
{
    static const char *const kinds[] = {"prompt", "cached", "generated"};
    const uint64_t n[] = {r->usage.prompt_n, r->usage.cached_n, r->usage.predicted_n};
    for (size_t i = 0; i < BASE_COUNT(kinds) && r->usage.known; i++)
        metrics_add(PROXY_M(r->proxy, PROXY_M_TOKENS, endpoint, r->last, kinds[i]), n[i]);
    for (size_t i = 0; i < BASE_COUNT(kinds) && r->usage.known && r->key; i++)
        metrics_add(PROXY_M(r->proxy, PROXY_M_KEY_TOKENS, r->key, kinds[i]), n[i]);
    if (!r->usage.known || !replica)
        return;
    struct proxy_peer *peer = PROXY_PEER(replica);
    (void)pthread_mutex_lock(&r->proxy->lock);
    peer->prompt_n += r->usage.prompt_n;
    peer->cached_n += r->usage.cached_n;
    peer->predicted_n += r->usage.predicted_n;
    if (!r->gaps) /* no stream that was counted as it passed */
        see_rate_add(&peer->rate, proxy_lane_now(r->lane), r->usage.predicted_n);
    (void)pthread_mutex_unlock(&r->proxy->lock);
}

static void close_page(const struct proxy_request *r, struct see_page *page, bool left, unsigned status, const char *endpoint)
{
    struct proxy *p = r->proxy;
    const struct dialect_usage *u = &r->usage;
    double regret;
    const char *outcome = r->cancelled ? "cancelled" : r->slow ? "slow" : r->cut ? "cut" : left ? "left" : status >= 400 ? "error" : "ok";
    struct see_end end = {.status = status, .outcome = outcome, .counted = u->known, .prompt_n = u->prompt_n, .cached_n = u->cached_n, .predicted_n = u->predicted_n,
                          .prompt_ms = u->prompt_ms, .predicted_ms = u->predicted_ms};
    if (see_end(p->see, page, &end, net_loop_now_ms(r->lane->loop), &regret))
        metrics_observe(PROXY_M(p, PROXY_M_REGRET, endpoint, r->last), regret / 1000);
}

/* The wall clock, as text that is made once a second. */
static struct str time_text(struct proxy_lane *l)
{
    uint64_t now = clk_system.real_us(clk_system.ctx);
    if (now / 1000000 != l->log_s)
        (void)clk_rfc3339(now, l->log_time);
    l->log_s = now / 1000000;
    return str_of(l->log_time);
}

/* A line is written with a pen, into room that was made for all of it: it is written for every request. */
static inline char *pen_text(char *at, struct str s)
{
    memcpy(at, s.ptr, s.len);
    return at + s.len;
}

static inline char *pen_number(char *at, struct str key, uint64_t n)
{
    char digits[STR_U64];
    at = pen_text(at, key);
    if (n > 9)
        return pen_text(at, str_of_u64(n, digits));
    *at = (char)('0' + n);
    return at + 1;
}

static char *pen_quoted(char *at, struct str key, const char *name)
{
    at = pen_text(at, key);
    if (!name)
        return pen_text(at, STR("null"));
    *at++ = '"';
    at = pen_text(at, str_of(name));
    *at++ = '"';
    return at;
}

#define LINE_ROOM ((size_t)1024 + (size_t)6 * FLEET_MODEL_NAME_MAX) /* of all but method and path: keys, numbers, names */

/* What is known when an answer ends; follows the path. Names of keys, replicas and decisions need no escapes. */
static char *write_rest(const struct proxy_request *r, const struct at_end *at, unsigned code, char *to)
{
    to = pen_text(to, STR(",\"endpoint\":"));
    to = pen_text(to, r->endpoint ? str_of(r->endpoint->quoted) : STR("null"));
    to = pen_quoted(to, STR(",\"replica\":"), r->last);
    to = pen_quoted(to, STR(",\"decision\":"), r->last ? sched_decision_name(at->decision) : NULL);
    to = pen_number(to, STR(",\"attempts\":"), r->attempts);
    to = pen_number(to, STR(",\"status\":"), code);
    to = pen_text(to, r->cut ? STR(",\"cut\":true") : STR(",\"cut\":false"));
    to = pen_number(to, STR(",\"queue_ms\":"), at->waited_ms);
    to = pen_number(to, STR(",\"first_ms\":"), r->content_ms ? r->content_ms - r->since_ms : 0);
    to = pen_number(to, STR(",\"ms\":"), net_loop_now_ms(r->lane->loop) - r->since_ms);
    if (r->usage.known) {
        to = pen_number(to, STR(",\"prompt_tokens\":"), r->usage.prompt_n + r->usage.cached_n);
        to = pen_number(to, STR(",\"cached_tokens\":"), r->usage.cached_n);
        to = pen_number(to, STR(",\"expected_cached_tokens\":"), at->predicted);
        to = pen_number(to, STR(",\"generated_tokens\":"), r->usage.predicted_n);
    }
    return pen_text(to, STR("}\n"));
}

static void write_line(struct proxy_request *r, const struct at_end *at, unsigned code)
{
    struct proxy_lane *l = r->lane;
    struct buf *b = &l->log;
    const struct http_head *head = httpio_exchange_head(r->x);
    struct str path = http_target_path(head->target);
    if (path.len > LOG_PATH_MAX)
        path.len = LOG_PATH_MAX;
    char *to = buf_room(b, LINE_ROOM);
    if (to) {
        char *from = to;
        to = pen_text(to, STR("{\"time\":\""));
        to = pen_text(to, time_text(l));
        to = pen_number(to, STR("\",\"request\":"), r->number);
        if (r->key)
            to = pen_quoted(to, STR(",\"key\":"), r->key);
        to = pen_text(to, STR(",\"method\":"));
        buf_grew(b, (size_t)(to - from));
    }
    json_add_string(b, head->method);
    buf_add_c(b, ",\"path\":");
    json_add_string(b, path);
    to = buf_room(b, LINE_ROOM);
    if (to)
        buf_grew(b, (size_t)(write_rest(r, at, code, to) - to));
    if (buf_status(b) < 0)
        buf_clear(&l->log);
    else if (l->log.len > PROXY_LOG_FLUSH)
        proxy_log_flush(l);
    else
        proxy_tick(l);
}

void proxy_log_flush(struct proxy_lane *l)
{
    if (l->proxy->on_log && l->log.len)
        l->proxy->on_log(l->proxy->on_log_ctx, buf_str(&l->log));
    buf_clear(&l->log);
}

void proxy_numbers_done(struct proxy_request *r, bool completed)
{
    struct proxy *p = r->proxy;
    const char *endpoint = r->endpoint ? r->endpoint->name : "", *replica = r->last ? r->last : "";
    char text[STR_U64 + 1];
    struct at_end at;
    bool left = !completed && !r->cut, broke = r->cut && !r->cancelled && !r->slow;
    take_end(r, &at);
    /* 499: the client left before there was an answer, in the words of other servers' logs */
    unsigned status = r->status ? r->status : 499;
    text[STR_U64] = '\0';
    const char *code = str_of_u64(status, text).ptr;
    p->stats.active--;
    if (status == 200 && r->way)
        metrics_add(PROXY_WAY_M(p, &r->way->ok, PROXY_M_REQUESTS, endpoint, replica, code), 1);
    else
        metrics_add(PROXY_M(p, PROXY_M_REQUESTS, endpoint, replica, code), 1);
    if (r->key)
        metrics_add(PROXY_M(p, PROXY_M_KEY_REQUESTS, r->key, code), 1);
    if (broke || (r->status >= 500 && !r->passing))
        p->stats.errors++;
    if (broke)
        metrics_add(PROXY_M(p, PROXY_M_CUT, replica), 1);
    else if (left && !r->cancelled)
        metrics_add(PROXY_M(p, PROXY_M_CANCELLED, phase(r, at.waiting)), 1);
    else if (r->passing && completed)
        metrics_observe(PROXY_WAY_M(p, &r->way->duration, PROXY_M_DURATION, endpoint, replica), (double)(net_loop_now_ms(r->lane->loop) - r->since_ms) / 1000);
    if (r->last)
        count_tokens(r, endpoint, at.replica);
    close_page(r, at.page, left, status, endpoint);
    if (p->on_log)
        write_line(r, &at, status);
}
