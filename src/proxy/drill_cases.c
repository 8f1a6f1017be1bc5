/* SPDX-License-Identifier: MIT
 *
 * What the drill tries. In a case of failover all replicas but one fail in the same way, so that whatever the policy tries first the answer must come from that one; an endpoint with one replica must
 * give an error in the client's form instead.
 */
#include <errno.h>

#include "drill_int.h"

#define CHAT "/v1/chat/completions"

/* ---- saying what was wrong ---------------------------------------------------------------------------------- */

static enum drill_verdict fail(struct drill *d, const char *fmt, ...) BASE_PRINTF(2, 3);
static enum drill_verdict fail(struct drill *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(d->why, sizeof d->why, fmt, ap);
    va_end(ap);
    return DRILL_FAILED;
}

static enum drill_verdict skip(struct drill *d, const char *why)
{
    snprintf(d->why, sizeof d->why, "%s", why);
    return DRILL_SKIPPED;
}

static bool has(const struct drill_client *c, const char *text)
{
    return c->body.len && str_find(buf_str(&c->body), str_of(text)) >= 0;
}

static unsigned requests_of(const struct drill *d)
{
    unsigned n = 0;
    for (size_t i = 0; i < d->n; i++)
        n += drill_mock_requests(d->replicas[i]);
    return n;
}

static unsigned left_of(const struct drill *d)
{
    unsigned n = 0;
    for (size_t i = 0; i < d->n; i++)
        n += drill_mock_left(d->replicas[i]);
    return n;
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

static int ask(struct drill *d, struct drill_client *c, const char *target, bool stream)
{
    base_autobuf struct buf body = BUF_INIT(4096);
    buf_add_c(&body, "{\"model\":");
    buf_add_quoted(&body, str_of(d->endpoint->name));
    buf_addf(&body, ",\"stream\":%s,\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"drill %llu\"}]}", stream ? "true" : "false", (unsigned long long)++d->asked);
    return buf_status(&body) < 0 ? -ENOMEM : drill_ask(d, c, target ? target : CHAT, buf_str(&body));
}

/* A case that needs nothing but its answer: armed, asked, waited for. False: it could not be asked, or nothing came; d->why says so. */
static bool play(struct drill *d, const struct drill_case *k, size_t live, bool stream, struct drill_client *c)
{
    struct err err;
    *c = (struct drill_client){.body = BUF_INIT(1)};
    if (drill_arm(d, k->mode, live, true, &err) < 0) {
        (void)fail(d, "%s", err.text);
        return false;
    }
    if (ask(d, c, k->target, stream) < 0) {
        (void)fail(d, "no connection to the router");
        return false;
    }
    if (drill_wait(d, &c->done))
        return true;
    (void)fail(d, "nothing came within %d s", DRILL_WAIT_MS / 1000);
    return false;
}

static enum drill_verdict check_good(struct drill *d, const struct drill_client *c, bool stream)
{
    if (c->failed)
        return fail(d, "the answer broke off (status %u)", c->status);
    if (c->status != 200)
        return fail(d, "status %u", c->status);
    if (stream ? !has(c, "[DONE]") || !has(c, "\"a\"") : !has(c, "{\"ok\":true}"))
        return fail(d, "the answer is not the replica's");
    return DRILL_PASSED;
}

/* An endpoint with one replica has nobody else: an error that a client understands. */
static enum drill_verdict check_alone(struct drill *d, const struct drill_client *c)
{
    if (c->status == 200 ? !has(c, "\"error\"") : c->status < 429 || (!has(c, "\"error\"") && !has(c, "{}")))
        return fail(d, "status %u instead of an error", c->status);
    return DRILL_PASSED;
}

/* ---- before there is content ------------------------------------------------------------------------------------- */

static enum drill_verdict failover(struct drill *d, const struct drill_case *k, size_t live, bool stream)
{
    struct drill_client c;
    enum drill_verdict v = DRILL_FAILED;
    if (play(d, k, d->n > 1 ? live : SIZE_MAX, stream, &c)) {
        v = d->n > 1 ? check_good(d, &c, stream) : check_alone(d, &c);
        if (v == DRILL_PASSED && d->n > 1 && !drill_breaks(k->mode) && strcmp(c.replica, d->endpoint->services[live]->name) != 0 && !stream)
            v = fail(d, "'%s' is said to have answered", c.replica);
        if (v == DRILL_PASSED && drill_mock_requests(d->replicas[live]) > 1)
            v = fail(d, "a replica got the request %u times", drill_mock_requests(d->replicas[live]));
    }
    drill_client_release(&c);
    return v;
}

static enum drill_verdict whole_moves(struct drill *d, const struct drill_case *k, size_t live)
{
    return failover(d, k, live, false);
}

static enum drill_verdict stream_moves(struct drill *d, const struct drill_case *k, size_t live)
{
    return failover(d, k, live, true);
}

static enum drill_verdict silent_is_left(struct drill *d, const struct drill_case *k, size_t live)
{
    return d->pins ? failover(d, k, live, true) : skip(d, "its engines may be silent for long");
}

static enum drill_verdict answers(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c;
    enum drill_verdict v = DRILL_FAILED;
    (void)live;
    if (play(d, k, SIZE_MAX, false, &c))
        v = check_good(d, &c, false);
    drill_client_release(&c);
    return v;
}

static enum drill_verdict nobody_is_reached(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c;
    enum drill_verdict v = DRILL_FAILED;
    (void)live;
    if (play(d, k, SIZE_MAX, false, &c))
        v = c.status == 502 && has(&c, "\"error\"") ? DRILL_PASSED : fail(d, "status %u, not 502 with an error", c.status);
    drill_client_release(&c);
    return v;
}

static enum drill_verdict nobody_is_ready(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c = {.body = BUF_INIT(1)};
    struct err err;
    enum drill_verdict v = DRILL_PASSED;
    (void)live;
    if (drill_arm(d, k->mode, SIZE_MAX, false, &err) < 0)
        return fail(d, "%s", err.text);
    if (ask(d, &c, NULL, false) < 0 || !drill_wait(d, &c.done))
        v = fail(d, "nothing came");
    else if (c.status != 503 || !c.retry_after || requests_of(d))
        v = fail(d, "status %u, %s Retry-After", c.status, c.retry_after ? "with" : "without");
    drill_client_release(&c);
    return v;
}

static enum drill_verdict unknown_model(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c = {.body = BUF_INIT(1)};
    struct err err;
    enum drill_verdict v = DRILL_PASSED;
    (void)live;
    if (drill_arm(d, k->mode, SIZE_MAX, true, &err) < 0)
        return fail(d, "%s", err.text);
    if (drill_ask(d, &c, CHAT, STR("{\"model\":\"no such model\"}")) < 0 || !drill_wait(d, &c.done))
        v = fail(d, "nothing came");
    else if (c.status != 404 || !has(&c, "known models") || requests_of(d))
        v = fail(d, "status %u", c.status);
    drill_client_release(&c);
    return v;
}

/* The whole body again at the next one, not what is left of it. */
static enum drill_verdict large_body_moves(struct drill *d, const struct drill_case *k, size_t live)
{
    base_autobuf struct buf body = BUF_INIT(DRILL_BODY_MAX);
    struct drill_client c = {.body = BUF_INIT(1)};
    struct err err;
    enum drill_verdict v = DRILL_PASSED;
    if (d->n < 2)
        return skip(d, "it has one replica");
    buf_add_c(&body, "{\"model\":");
    buf_add_quoted(&body, str_of(d->endpoint->name));
    buf_add_c(&body, ",\"messages\":[{\"role\":\"user\",\"content\":\"");
    while (body.len < DRILL_BODY_MAX - 64)
        buf_addf(&body, "%zu ", body.len);
    buf_add_c(&body, "\"}]}");
    if (buf_status(&body) < 0 || drill_arm(d, k->mode, live, true, &err) < 0)
        return fail(d, "out of memory");
    if (drill_ask(d, &c, CHAT, buf_str(&body)) < 0 || !drill_wait(d, &c.done))
        v = fail(d, "nothing came");
    else
        v = check_good(d, &c, false);
    for (size_t i = 0; i < d->n; i++)
        if (strcmp(c.replica, d->endpoint->services[i]->name) == 0)
            live = i;
    struct str got = drill_mock_body(d->replicas[live]), tail = {body.ptr + body.len - 60000, 60000};
    if (v == DRILL_PASSED && !str_ends(got, tail))
        v = fail(d, "the body that arrived is another one");
    drill_client_release(&c);
    return v;
}

/* ---- afterwards -------------------------------------------------------------------------------------------------------- */

/* Content has come: it ends as a failure that the client's API knows, and nobody else gets the request. */
static enum drill_verdict ends_with_error(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c;
    enum drill_verdict v = DRILL_FAILED;
    (void)live;
    if (k->mode == DRILL_STALL && !d->pins)
        return skip(d, "its engines may be silent for long");
    if (play(d, k, SIZE_MAX, true, &c)) {
        bool error = k->target && strstr(k->target, "/messages") ? has(&c, "event: error\n") : k->target && strstr(k->target, "/responses") ? has(&c, "response.failed") : has(&c, "\"error\"");
        if (c.status != 200 || !has(&c, "\"a\""))
            v = fail(d, "status %u, without the content that was there", c.status);
        else if (!c.failed)
            v = fail(d, "it ended as if it were whole");
        else if (!error)
            v = fail(d, "no error event");
        else if (requests_of(d) != 1)
            v = fail(d, "it was sent %u times", requests_of(d));
        else
            v = DRILL_PASSED;
    }
    drill_client_release(&c);
    return v;
}

static enum drill_verdict whole_is_cut(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c;
    enum drill_verdict v = DRILL_FAILED;
    (void)live;
    if (play(d, k, SIZE_MAX, false, &c))
        v = c.failed && requests_of(d) == 1 ? DRILL_PASSED : fail(d, "status %u, %s, sent %u times", c.status, c.failed ? "cut" : "ended as if it were whole", requests_of(d));
    drill_client_release(&c);
    return v;
}

/* ---- time ------------------------------------------------------------------------------------------------------------------ */

static enum drill_verdict passes_at_once(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c;
    enum drill_verdict v = DRILL_FAILED;
    uint64_t hang_ms = d->proxy->hang_ms;
    (void)live;
    d->proxy->hang_ms = DRILL_PATIENT_MS;
    if (play(d, k, SIZE_MAX, true, &c)) {
        v = check_good(d, &c, true);
        if (v == DRILL_PASSED && c.pieces < 10)
            v = fail(d, "20 events came in %u pieces", c.pieces);
        else if (v == DRILL_PASSED && c.late_us > (uint64_t)DRILL_LEAVE_MS * 1000)
            v = fail(d, "an event was %llu ms late", (unsigned long long)c.late_us / 1000);
    }
    d->proxy->hang_ms = hang_ms;
    drill_client_release(&c);
    return v;
}

static bool beats(void *ctx)
{
    const struct drill_client *c = ctx;
    return c->pieces >= 2 || c->done;
}

static enum drill_verdict signs_of_life(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c = {.body = BUF_INIT(1)};
    struct err err;
    enum drill_verdict v = DRILL_PASSED;
    (void)live;
    uint64_t hang_ms = d->proxy->hang_ms;
    d->proxy->hang_ms = DRILL_PATIENT_MS;
    if (drill_arm(d, k->mode, SIZE_MAX, true, &err) < 0 || ask(d, &c, k->target, true) < 0)
        v = fail(d, "it could not be asked");
    else if (!drill_until(d, beats, &c) || c.done)
        v = fail(d, "no sign of life came");
    for (size_t i = 0; i < d->n; i++)
        drill_mock_release(d->replicas[i]);
    if (v == DRILL_PASSED && (!drill_wait(d, &c.done) || c.failed || !has(&c, "\"a\"")))
        v = fail(d, "the answer did not follow");
    d->proxy->hang_ms = hang_ms;
    drill_client_release(&c);
    return v;
}

/* ---- clients that leave ------------------------------------------------------------------------------------------------------ */

static bool one_arrived(void *ctx)
{
    return requests_of(ctx) == 1;
}

static bool one_left(void *ctx)
{
    return left_of(ctx) == 1;
}

static enum drill_verdict leaves(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client c = {.body = BUF_INIT(1)};
    struct err err;
    enum drill_verdict v = DRILL_PASSED;
    uint64_t hang_ms = d->proxy->hang_ms;
    (void)live;
    if (drill_arm(d, k->mode, SIZE_MAX, true, &err) < 0 || ask(d, &c, k->target, true) < 0)
        return fail(d, "it could not be asked");
    d->proxy->hang_ms = DRILL_PATIENT_MS;
    if (!drill_until(d, one_arrived, d) || (k->mode == DRILL_STALL && !drill_until(d, beats, &c) && !c.pieces)) {
        v = fail(d, "the replica did not get it");
    } else {
        uint64_t since = drill_now_us();
        c.call = httpio_call_cancel(c.call);
        if (!drill_until(d, one_left, d))
            v = fail(d, "the replica goes on");
        else if (drill_now_us() - since > (uint64_t)DRILL_LEAVE_MS * 1000)
            v = fail(d, "the replica went on for %llu ms", (unsigned long long)(drill_now_us() - since) / 1000);
    }
    d->proxy->hang_ms = hang_ms;
    drill_client_release(&c);
    return v;
}

struct crowd {
    struct drill *d;
    unsigned n;
};

static bool arrived_or_waits(void *ctx)
{
    const struct crowd *c = ctx;
    return requests_of(c->d) == c->n || sched_waiting(c->d->proxy->sched) > 0;
}

static bool one_less(void *ctx)
{
    const struct crowd *c = ctx;
    return c->d->proxy->stats.active == c->n - 1;
}

/* Asks until one has to wait, wherever the policy sends them. */
static enum drill_verdict fill(struct drill *d, struct drill_client *held, size_t max, struct crowd *crowd)
{
    while (crowd->n < max) {
        if (ask(d, &held[crowd->n++], NULL, false) < 0)
            return fail(d, "it could not be asked");
        if (!drill_until(d, arrived_or_waits, crowd))
            return fail(d, "a request neither reached a slot nor waits");
        if (sched_waiting(d->proxy->sched) > 0)
            return DRILL_PASSED;
    }
    return skip(d, "it has very many slots");
}

/* One waits for a slot and leaves: no replica ever hears of it. */
static enum drill_verdict leaves_the_queue(struct drill *d, const struct drill_case *k, size_t live)
{
    struct drill_client held[64] = {{.call = NULL}};
    struct crowd crowd = {.d = d};
    struct err err;
    (void)live;
    if (!d->slots)
        return skip(d, "its engines have no slots that could be full");
    if (drill_arm(d, k->mode, SIZE_MAX, true, &err) < 0)
        return fail(d, "%s", err.text);
    uint64_t hang_ms = d->proxy->hang_ms;
    d->proxy->hang_ms = DRILL_PATIENT_MS;
    enum drill_verdict v = fill(d, held, BASE_COUNT(held), &crowd);
    if (v == DRILL_PASSED) {
        struct drill_client *waits = &held[crowd.n - 1];
        waits->call = httpio_call_cancel(waits->call);
        if (!drill_until(d, one_less, &crowd))
            v = fail(d, "it is still counted");
    }
    for (size_t i = 0; i < d->n; i++)
        drill_mock_release(d->replicas[i]);
    for (unsigned i = 0; i + 1 < crowd.n && v == DRILL_PASSED; i++)
        if (!drill_wait(d, &held[i].done) || held[i].status != 200)
            v = fail(d, "another one was not answered");
    if (v == DRILL_PASSED && requests_of(d) != crowd.n - 1)
        v = fail(d, "a replica got the request that was left");
    for (unsigned i = 0; i < crowd.n; i++)
        drill_client_release(&held[i]);
    d->proxy->hang_ms = hang_ms;
    return v;
}

/* Kept connections that die under the next request. */
static enum drill_verdict stale_connections(struct drill *d, const struct drill_case *k, size_t live)
{
    struct err err;
    (void)live;
    if (drill_arm(d, k->mode, SIZE_MAX, true, &err) < 0)
        return fail(d, "%s", err.text);
    for (int i = 0; i < 8; i++) {
        struct drill_client c;
        enum drill_verdict v = ask(d, &c, NULL, false) == 0 && drill_wait(d, &c.done) ? check_good(d, &c, false) : fail(d, "nothing came");
        drill_client_release(&c);
        if (v != DRILL_PASSED)
            return v;
    }
    return DRILL_PASSED;
}

bool drill_moves(const struct drill_case *c)
{
    return c->run == whole_moves || c->run == stream_moves || c->run == silent_is_left;
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------- */

const struct drill_case drill_cases[] = {
    {"answers", "the replica's answer", answers, DRILL_GOOD, NULL},
    {"refused", "another replica answers", whole_moves, DRILL_REFUSE, NULL},
    {"reset", "another replica answers", whole_moves, DRILL_RESET, NULL},
    {"end instead of an answer", "another replica answers", whole_moves, DRILL_EOF, NULL},
    {"no HTTP", "another replica answers", whole_moves, DRILL_GARBAGE, NULL},
    {"status 500", "another replica answers", whole_moves, DRILL_500, NULL},
    {"status 503", "another replica answers", whole_moves, DRILL_503, NULL},
    {"status 429", "another replica answers", whole_moves, DRILL_429, NULL},
    {"half an answer", "another replica answers", whole_moves, DRILL_SHORT, NULL},
    {"large body, reset", "all of it goes to another replica", large_body_moves, DRILL_RESET, NULL},
    {"stream: 200, then the end", "another replica answers", stream_moves, DRILL_HEAD_ONLY, NULL},
    {"stream: first event is an error", "another replica answers", stream_moves, DRILL_ERROR_EVENT, NULL},
    {"stream: silence", "another replica answers", silent_is_left, DRILL_SILENT, NULL},
    {"chat dies midway", "error event, unclean end", ends_with_error, DRILL_DIE, CHAT},
    {"messages dies midway", "error event, unclean end", ends_with_error, DRILL_DIE, "/v1/messages"},
    {"responses dies midway", "error event, unclean end", ends_with_error, DRILL_DIE, "/v1/responses"},
    {"stream ends without its end", "error event, unclean end", ends_with_error, DRILL_END_EARLY, CHAT},
    {"stream stalls midway", "error event, unclean end", ends_with_error, DRILL_STALL, CHAT},
    {"large answer dies midway", "unclean end", whole_is_cut, DRILL_DIE, NULL},
    {"slow stream", "every event at once", passes_at_once, DRILL_SLOW, NULL},
    {"chat waits", "signs of life, then the answer", signs_of_life, DRILL_SILENT, CHAT},
    {"messages waits", "signs of life, then the answer", signs_of_life, DRILL_SILENT, "/v1/messages"},
    {"responses waits", "signs of life, then the answer", signs_of_life, DRILL_SILENT, "/v1/responses"},
    {"client leaves the queue", "no replica hears of it", leaves_the_queue, DRILL_SILENT, NULL},
    {"client leaves while it waits", "its call ends at once", leaves, DRILL_SILENT, NULL},
    {"client leaves a stream", "its call ends at once", leaves, DRILL_STALL, NULL},
    {"stale kept connections", "no failure", stale_connections, DRILL_STALE, NULL},
    {"all refuse", "502", nobody_is_reached, DRILL_REFUSE, NULL},
    {"none is ready", "503, Retry-After", nobody_is_ready, DRILL_GOOD, NULL},
    {"unknown model", "404 with the known ones", unknown_model, DRILL_GOOD, NULL},
};
const size_t drill_n_cases = BASE_COUNT(drill_cases);
