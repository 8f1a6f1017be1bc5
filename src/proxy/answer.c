/* SPDX-License-Identifier: MIT
 *
 * What comes back. Nothing of a replica's answer goes to the client before it is sure: of an event stream the first event with content, of a small answer all of it. Until then the replica may
 * refuse, break off or say that it failed, and another one gets the request. From then on bytes pass as they come, and an answer that breaks off ends as one: with an error
 * where its events can carry one, and with an end that no client takes for the end.
 */
#include <errno.h>
#include <strings.h>

#include "proxy_int.h"

static bool begun(const struct proxy_request *r)
{
    return r->status != 0;
}

void proxy_answer_reset(struct proxy_request *r)
{
    if (r->events)
        http_sse_release(&r->sse);
    r->head = NULL;
    r->events = r->ended = r->closed = false;
    r->usage = (struct dialect_usage){0};
    buf_clear(&r->held);
}

/* ---- the head of what is sent ---------------------------------------------------------------------------------- */

static bool is_event_stream(const struct http_head *head)
{
    static const char type[] = "text/event-stream";
    struct str v = http_field_get(head, "content-type");
    return v.len >= sizeof type - 1 && strncasecmp(v.ptr, type, sizeof type - 1) == 0;
}

/* Its bytes are not its text: nothing can be read of it. */
static bool is_encoded(const struct http_head *head)
{
    struct str v = http_field_get(head, "content-encoding");
    return v.len && !str_eq_nocase(v, STR("identity"));
}

struct own_fields {
    char attempts[STR_U64], queue[STR_U64], number[STR_U64];
};

/* Of literals, digits and names that a fleet's file may have. */
#define OWN(n, v) ((struct http_field){.name = STR(n), .value = (v), .sound = true})

/* replica: whether it is known who answers. */
static size_t own_fields(const struct proxy_request *r, bool replica, struct own_fields *o, struct http_field *out)
{
    const struct sched_ticket *t = &r->ticket;
    size_t n = 0;
    out[n++] = OWN("X-Berth-Request-Id", str_of_u64(r->number, o->number));
    if (!replica)
        return n;
    out[n++] = OWN("X-Berth-Replica", str_of(r->last));
    out[n++] = OWN("X-Berth-Decision", str_of(sched_decision_name(t->decision)));
    out[n++] = OWN("X-Berth-Attempts", str_of_u64(r->attempts, o->attempts));
    out[n++] = OWN("X-Berth-Queue-Ms", str_of_u64(sched_waited_ms(t), o->queue));
    return n;
}

#define OWN_FIELDS (6 + PROXY_CORS_FIELDS)

/* A field that only the router writes. Told apart by their first letter, before they are compared. */
static bool is_ours(struct str name)
{
    switch (name.ptr[0] | 0x20) {
    case 'a':
        return proxy_cors_is_field(name);
    case 'c':
        return name.len == 14 && strncasecmp(name.ptr, "content-length", 14) == 0;
    case 'x':
        return name.len >= 8 && strncasecmp(name.ptr, "x-berth-", 8) == 0;
    default:
        return false;
    }
}

static size_t response_fields(const struct proxy_request *r, const struct http_head *head, struct own_fields *own, struct http_field *out)
{
    size_t n = 0;
    for (size_t i = 0; i < head->n_fields; i++)
        if (!head->fields[i].hop && !is_ours(head->fields[i].name))
            out[n++] = head->fields[i];
    n += own_fields(r, true, own, out + n);
    n += proxy_cors_fields(r->config, httpio_exchange_head(r->x), out + n);
    if (is_event_stream(head) && !http_field_get(head, "x-accel-buffering").ptr)
        out[n++] = HTTPIO_FIELD(STR("X-Accel-Buffering"), STR("no"));
    return n;
}

/* Begins an event stream of ours, before a replica has said anything. */
static int begin_stream(struct proxy_request *r)
{
    struct own_fields own;
    struct http_field fields[OWN_FIELDS + 3];
    size_t n = own_fields(r, false, &own, fields);
    n += proxy_cors_fields(r->config, httpio_exchange_head(r->x), fields + n);
    fields[n++] = HTTPIO_FIELD(STR("Content-Type"), STR("text/event-stream"));
    fields[n++] = HTTPIO_FIELD(STR("Cache-Control"), STR("no-cache"));
    fields[n++] = HTTPIO_FIELD(STR("X-Accel-Buffering"), STR("no"));
    int rc = httpio_begin(r->x, 200, fields, n, -1);
    if (rc == 0)
        r->status = 200;
    return rc;
}

void proxy_answer_heartbeat(struct proxy_request *r)
{
    const struct proxy_request *of = r->leader ? r->leader : r; /* whose answer it is */
    if (r->sink) /* its client's lane does it */
        return;
    if ((of->head && !of->events) || (of->content && !proxy_answer_between(r)))
        return;
    if (!begun(r) && begin_stream(r) < 0)
        return;
    r->sent_ms = net_loop_now_ms(r->lane->loop);
    metrics_add(metrics_get(r->proxy->metrics, PROXY_M_HEARTBEATS, NULL), 1);
    (void)httpio_send(r->x, dialect_heartbeat(r->dialect));
}

/* ---- passing on --------------------------------------------------------------------------------------------------- */

/* False: its client has more than it takes. */
static bool give(struct proxy_request *r, struct str data, bool between)
{
    if (r->sink)
        return proxy_link_send(r, data, between);
    bool full = httpio_send(r->x, data);
    r->sent_ms = net_loop_now_ms(r->lane->loop);
    r->behind = r->paused ? r->behind + data.len : 0;
    r->paused = r->paused || full;
    return !r->paused;
}

/* Whether the others go on without it. In the middle of an event it is waited for a little longer: its end can be told then. */
static bool is_behind(const struct proxy_request *r, bool between)
{
    return r->behind > PROXY_BEHIND_MAX + (between ? 0 : PROXY_EVENT_MAX);
}

static void leave_behind(struct proxy_request *r, bool between)
{
    r->slow = true;
    proxy_answer_part(r, between, 503, STR("this client took its answer too slowly"));
}

static void drop_behind(struct proxy_request *r, bool between)
{
    for (struct proxy_request *f = r->followers, *next; f; f = next) {
        next = f->next_follower;
        if (!is_behind(f, between))
            continue;
        proxy_join_leave(f);
        leave_behind(f, between);
    }
    if (r->followers && is_behind(r, between))
        leave_behind(proxy_join_succeed(r), between);
}

/* To every client. Whoever takes it is not held up by one who does not. */
static void send(struct proxy_request *r, struct str data)
{
    bool between = proxy_answer_between(r), taken = give(r, data, between);
    for (struct proxy_request *f = r->followers; f; f = f->next_follower)
        taken = give(f, data, between) || taken;
    if (r->followers)
        drop_behind(r, between);
    if (!taken && r->call)
        httpio_call_read(r->call, false);
}

/* The head of the answer, unless a stream of ours has begun. */
static int begin_answer(struct proxy_request *r, const struct proxy_origin *o)
{
    struct http_field fields[HTTP_FIELDS_MAX + OWN_FIELDS];
    struct own_fields own;
    if (r->sink)
        return proxy_link_begin(r, o);
    if (begun(r))
        return 0;
    size_t n = response_fields(r, o->head, &own, fields);
    int rc = httpio_begin(r->x, o->head->status, fields, n, o->length);
    if (rc == 0)
        r->status = o->head->status;
    return rc;
}

void proxy_answer_begin(struct proxy_request *f, const struct proxy_origin *o)
{
    f->last = o->last;
    f->way = o->way;
    f->attempts = o->attempts;
    if (begun(f) && !o->events) { /* it has no place in the stream that has begun */
        proxy_request_fail(f, o->head->status >= 400 ? o->head->status : 502, "replica '%s' answered %u", o->last, o->head->status);
        return;
    }
    if (begin_answer(f, o) < 0) {
        proxy_request_fail(f, 502, "the answer of replica '%s' cannot be passed on", o->last);
        return;
    }
    see_joined(f->proxy->see, f->page, f->last);
    f->passing = f->content = true;
    f->content_ms = net_loop_now_ms(f->lane->loop);
    see_phase(f->proxy->see, f->page, SEE_DECODE, f->content_ms);
}

/* From here on the answer is this replica's. length: of all of it, or -1. False when it cannot be passed on; the request may be gone then. */
static bool commit(struct proxy_request *r, int64_t length)
{
    struct proxy_origin o = {.head = r->head, .length = length, .events = r->events, .last = r->last, .way = r->way, .attempts = r->attempts};
    struct proxy *p = r->proxy;
    if (begin_answer(r, &o) < 0) {
        r->call = httpio_call_cancel(r->call);
        proxy_request_fail(r, 502, "the answer of replica '%s' cannot be passed on", r->last);
        return false;
    }
    r->passing = r->content = true;
    r->content_ms = r->token_ms = net_loop_now_ms(r->lane->loop);
    see_phase(p->see, r->page, SEE_DECODE, r->content_ms);
    if (r->events)
        r->gaps = PROXY_WAY_M(p, &r->way->inter_token, PROXY_M_INTER_TOKEN, r->endpoint->name, r->last);
    metrics_observe(PROXY_WAY_M(p, &r->way->first_byte, PROXY_M_FIRST_BYTE, r->endpoint->name, r->last), (double)(r->content_ms - r->since_ms) / 1000);
    if (r->head->status < 500 && (length < 0 || length > PROXY_HOLD_MAX))
        proxy_forward_proved(r);
    proxy_join_close(r);
    for (struct proxy_request *f = r->followers, *next; f; f = next) {
        next = f->next_follower;
        proxy_answer_begin(f, &o);
    }
    if (!r->sending) /* nobody else will get it */
        proxy_request_drop_body(r);
    send(r, buf_str(&r->held));
    return true;
}

void proxy_answer_cut(struct proxy_request *r, struct str event)
{
    r->cut = true;
    if (r->sink) {
        proxy_link_end(r, PROXY_LINK_CUT, 0, event);
        return;
    }
    if (!event.len) {
        httpio_abort(r->x);
        return;
    }
    (void)httpio_send(r->x, event);
    httpio_cut(r->x);
}

/* The answer ends here, and is not whole; its call is over. The request may be gone when it returns. */
static void end_early(struct proxy_request *r, enum sched_result result, unsigned status, struct str text)
{
    base_autobuf struct buf event = BUF_INIT(8192);
    struct proxy_lane *lane = r->lane;
    struct proxy_request *f;
    bool waiting = proxy_forward_leave(r, result);
    proxy_join_leave(r);
    bool told = r->events && http_sse_between(&r->sse) && text.len && dialect_error_event(r->dialect, status, text, &event) == 0;
    while ((f = proxy_join_take(r)))
        proxy_answer_cut(f, told ? buf_str(&event) : (struct str){0});
    proxy_answer_cut(r, told ? buf_str(&event) : (struct str){0});
    proxy_settle(lane, waiting);
}

static void finish(struct proxy_request *r)
{
    if (r->sink)
        proxy_link_end(r, PROXY_LINK_ENDED, 0, (struct str){0});
    else
        httpio_end(r->x);
}

/* All clients of the answer have all of it. */
static void end_whole(struct proxy_request *r, enum sched_result result)
{
    struct proxy_lane *lane = r->lane;
    struct proxy_request *f;
    bool waiting = proxy_forward_leave(r, result);
    while ((f = proxy_join_take(r)))
        finish(f);
    finish(r);
    proxy_settle(lane, waiting);
}

static void break_off(struct proxy_request *r, const char *why)
{
    if (r->closed && http_sse_between(&r->sse)) { /* nothing is missing: an error behind the last event would have a client ask again for what it has */
        end_whole(r, SCHED_FAILED);
        return;
    }
    base_autobuf struct buf text = BUF_INIT(4096);
    buf_addf(&text, "replica '%s' broke off: %s", r->last, why);
    end_early(r, SCHED_FAILED, 502, buf_status(&text) == 0 ? buf_str(&text) : (struct str){0});
}

bool proxy_answer_between(const struct proxy_request *r)
{
    const struct proxy_request *of = r->leader ? r->leader : r;
    if (r->source)
        return r->between;
    return of->events && http_sse_between(&of->sse);
}

void proxy_answer_part(struct proxy_request *r, bool told, unsigned status, struct str text)
{
    base_autobuf struct buf event = BUF_INIT(8192);
    if (!r->content)
        proxy_request_fail(r, status, STR_FMT, STR_ARG(text));
    else
        proxy_answer_cut(r, told && dialect_error_event(r->dialect, status, text, &event) == 0 ? buf_str(&event) : (struct str){0});
}

void proxy_answer_cancel(struct proxy_request *r)
{
    r->call = httpio_call_cancel(r->call);
    r->sending = false;
    end_early(r, SCHED_ABANDONED, 410, STR("this request was cancelled by the operator"));
}

void proxy_answer_hang(struct proxy_request *r)
{
    if (!r->content) {
        proxy_forward_failed(r, "hang", "it says nothing", true);
        return;
    }
    r->call = httpio_call_cancel(r->call);
    r->sending = false;
    break_off(r, "it says nothing any more");
}

void proxy_answer_lost(struct proxy_request *r)
{
    static const struct str text = {"the router cannot read the kept request body", 44};
    struct proxy_lane *lane = r->lane;
    r->call = httpio_call_cancel(r->call);
    r->sending = false;
    if (r->content) {
        end_early(r, SCHED_ABANDONED, 503, text);
        return;
    }
    bool waiting = proxy_forward_leave(r, SCHED_ABANDONED);
    proxy_answer_reset(r);
    proxy_request_fail(r, 503, STR_FMT, STR_ARG(text));
    proxy_settle(lane, waiting);
}

/* ---- what a call tells ------------------------------------------------------------------------------------------------ */

static bool reads_events(const struct proxy_request *r)
{
    return r->ticket.leased && r->dialect != PLACE_BATCH && r->head->status == 200 && is_event_stream(r->head) && !is_encoded(r->head);
}

/* Whether the answer waits here until it is whole: it is small, or it has no place in the stream that has begun. */
static bool is_held(const struct proxy_request *r)
{
    if (begun(r))
        return true;
    return r->ticket.leased && r->head->status == 200 && !is_event_stream(r->head) && r->head->content_length <= PROXY_HOLD_MAX;
}

static void on_head(void *ctx, const struct http_head *head)
{
    struct proxy_request *r = ctx;
    unsigned status = head->status;
    r->byte_ms = net_loop_now_ms(r->lane->loop);
    r->head = head;
    bool down = status == 502 || status == 503 || status == 504;
    /* the client showed none of its own there, so it is not the one who is refused */
    if (status == 401 && r->target.key[0]) {
        proxy_forward_failed(r, "401", "it answered 401: it does not take the key that the router has for it", true);
        return;
    }
    if (r->ticket.leased && (down || status == 500 || status == 429) && proxy_forward_another(r)) {
        char text[48];
        snprintf(text, sizeof text, "it answered %u", status);
        /* A 500 may be the request's own fault, and 429 is no fault: neither says that the replica is ill. */
        proxy_forward_failed(r, down ? "status" : status == 500 ? "500" : "429", text, down);
        return;
    }
    r->events = reads_events(r);
    if (r->events)
        http_sse_init(&r->sse, PROXY_EVENT_MAX);
    else if (!is_held(r))
        (void)commit(r, head->content_length);
}

/* So many tokens came at once. */
static void note_tokens(struct proxy_request *r, unsigned n)
{
    uint64_t now = net_loop_now_ms(r->lane->loop);
    if (r->content && n)
        metrics_observe(r->gaps, (double)(now - r->token_ms) / 1000 / n);
    r->token_ms = now;
    see_tokens(r->proxy->see, r->page, n);
    proxy_numbers_tokens(r, n);
}

/* Looks at what events say. False: one of them sent the request to another replica. */
static bool read_events(struct proxy_request *r, struct str rest, bool *ret_content)
{
    bool content = r->content;
    unsigned tokens = 0;
    char name[DIALECT_NAME_MAX];
    while (rest.len) {
        struct http_sse_event e = {0};
        size_t used = 0;
        unsigned code;
        int rc = http_sse_feed(&r->sse, rest, &used, &e);
        rest.ptr += used;
        rest.len -= used;
        if (rc < 0) /* no memory to look: it passes unseen */
            break;
        if (rc == 0)
            continue;
        dialect_name(r->dialect, &e, name);
        if (!content && dialect_is_error(&e, &code) && code >= 500 && proxy_forward_another(r)) {
            proxy_forward_failed(r, "error event", "it sent an error", true);
            return false;
        }
        content = content || dialect_is_content(r->dialect, &e);
        enum dialect_end end = dialect_end(r->dialect, &e);
        r->closed = r->closed || end == DIALECT_ENDS;
        r->ended = r->closed || end == DIALECT_MAY_END || (r->ended && end != DIALECT_GOES_ON);
        tokens += content && !r->ended ? dialect_tokens(r->dialect, &e) : 0;
        dialect_read_usage(e.data, &r->usage);
    }
    if (tokens)
        note_tokens(r, tokens);
    *ret_content = content;
    return true;
}

/* Events go on whole or in parts, as they come. */
static void take_events(struct proxy_request *r, struct str data)
{
    bool content;
    if (!read_events(r, data, &content))
        return;
    if (r->content) {
        send(r, data);
        return;
    }
    buf_add_str(&r->held, data);
    if (buf_status(&r->held) < 0)
        proxy_forward_failed(r, "memory", "no memory to hold its answer", false);
    else if (content || r->held.len > PROXY_HOLD_MAX)
        (void)commit(r, -1);
}

static void on_body(void *ctx, struct str data)
{
    struct proxy_request *r = ctx;
    r->byte_ms = net_loop_now_ms(r->lane->loop);
    if (r->events) {
        take_events(r, data);
    } else if (r->content) {
        send(r, data);
    } else if (r->held.len <= PROXY_HOLD_MAX) {
        buf_add_str(&r->held, data);
        if (buf_status(&r->held) < 0)
            proxy_forward_failed(r, "memory", "no memory to hold its answer", false);
        else if (r->held.len > PROXY_HOLD_MAX && !begun(r))
            (void)commit(r, r->head->content_length);
    }
}

/* A whole answer that is no stream, where a stream has begun: its error is the stream's. */
static void end_in_stream(struct proxy_request *r)
{
    base_autobuf struct buf shown = BUF_INIT(4096);
    buf_add_printable(&shown, buf_str(&r->held), 1000);
    proxy_request_fail(r, r->head->status >= 400 ? r->head->status : 502, "replica '%s' answered %u: %s", r->last,
                       r->head->status, shown.len ? shown.ptr : "");
}

static void on_end(void *ctx)
{
    struct proxy_request *r = ctx;
    struct proxy_lane *lane = r->lane;
    bool content = false, open = r->events && !r->ended && !http_sse_between(&r->sse);
    r->call = NULL;
    /* the empty line behind its last event may be missing: the answer's own end tells as much */
    if (open && !read_events(r, STR("\n\n"), &content))
        return;
    if (r->events && !content && !r->content && !r->ended) {
        proxy_forward_failed(r, "empty", "its stream ended without content", true);
        return;
    }
    if (!r->events && !r->content)
        dialect_read_usage(buf_str(&r->held), &r->usage);
    bool broken = r->events && !r->ended, refused = !r->events && begun(r) && !r->content;
    if (!refused && !r->content && !commit(r, r->events ? -1 : (int64_t)r->held.len))
        return;
    if (broken && open) { /* an event of ours would become part of the unfinished one */
        end_early(r, SCHED_FAILED, 502, (struct str){0});
        return;
    }
    if (broken) {
        break_off(r, "its stream ended without its last event");
        return;
    }
    if (!refused) {
        end_whole(r, SCHED_OK);
        return;
    }
    bool waiting = proxy_forward_leave(r, SCHED_OK);
    end_in_stream(r);
    proxy_settle(lane, waiting);
}

static void on_fail(void *ctx, enum httpio_failure f, const char *text)
{
    static const char *const reasons[] = {[HTTPIO_CONNECT] = "connect", [HTTPIO_RESET] = "reset", [HTTPIO_CUT] = "cut", [HTTPIO_TIMEOUT] = "timeout", [HTTPIO_MALFORMED] = "malformed"};
    struct proxy_request *r = ctx;
    struct proxy_lane *lane = r->lane;
    r->call = NULL;
    r->sending = false;
    r->deaths += f == HTTPIO_RESET || f == HTTPIO_CUT;
    if (r->content) {
        break_off(r, httpio_failure_text(f));
    } else if (r->ticket.leased && r->deaths >= PROXY_DEATHS_MAX && proxy_forward_another(r)) {
        bool waiting = proxy_forward_leave(r, SCHED_FAILED);
        proxy_request_fail(r, 502, "%u replicas of '%s' broke off while they had this request; the last, '%s': %s", r->deaths, r->endpoint->name, r->last, text);
        proxy_settle(lane, waiting);
    } else if (r->ticket.leased || f == HTTPIO_CONNECT || f == HTTPIO_RESET) {
        proxy_forward_failed(r, reasons[f], text, true);
    } else { /* a call of unknown effect that was perhaps carried out */
        bool waiting = proxy_forward_leave(r, SCHED_FAILED);
        proxy_request_fail(r, f == HTTPIO_TIMEOUT ? 504 : 502, "replica '%s': %s", r->last, text);
        proxy_settle(lane, waiting);
    }
}

static void on_drain(void *ctx)
{
    struct proxy_request *r = ctx;
    if (r->sending)
        proxy_forward_send(r);
}

const struct httpio_call_ops proxy_answer_ops = {
    .on_head = on_head,
    .on_body = on_body,
    .on_end = on_end,
    .on_fail = on_fail,
    .on_drain = on_drain,
};
