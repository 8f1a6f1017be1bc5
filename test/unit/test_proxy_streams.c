/* SPDX-License-Identifier: MIT
 *
 * proxy: slots and queue with real sockets, what a stream's client gets before there is content, and what is said in which dialect.
 */
#include "proxy_rig.h"

#include <proxy/proxy_int.h>

#define CHAT "/v1/chat/completions"
#define STREAM_BODY "{\"model\":\"m\",\"stream\":true}"

static void quick(uint64_t heartbeat_ms, uint64_t hang_ms)
{
    rig.proxy->tick_ms = 5;
    rig.proxy->heartbeat_ms = heartbeat_ms;
    rig.proxy->hang_ms = hang_ms;
}

/* ---- slots and queue -------------------------------------------------------------------------------------- */

static void queue_is_here(void **state)
{
    (void)state;
    struct client c[3];
    rig.slots = 1;
    rig_replicas(1, HOLD);
    for (int i = 0; i < 3; i++)
        client_start(&c[i], "POST", CHAT, STR("{\"model\":\"m\"}"));
    WAIT(rig.replicas[0].x);
    WAIT_POLL(rig_stats().active == 3);
    assert_int_equal(rig.replicas[0].requests, 1);
    assert_true(rig_metric("berth_router_waiting 2"));
    assert_true(rig_metric("berth_router_replica_busy{replica=\"r0\"} 1"));
    /* one that waits leaves: the replica never hears of it */
    c[1].call = httpio_call_cancel(c[1].call);
    WAIT_POLL(rig_stats().active == 2);
    assert_true(rig_metric("berth_router_cancelled_total{phase=\"queue\"} 1"));
    replica_answer(&rig.replicas[0], "one");
    WAIT(c[0].done && rig.replicas[0].x);
    assert_int_equal(rig.replicas[0].requests, 2);
    replica_answer(&rig.replicas[0], "two");
    WAIT(c[2].done);
    assert_string_equal(c[2].body.ptr, "two");
    assert_false(has_line(&c[2].fields, "X-Berth-Queue-Ms: 0"));
    assert_true(has_line(&c[2].fields, "X-Berth-Decision: cold"));
    /* what needs no slot does not wait for one */
    for (int i = 0; i < 3; i++)
        client_release(&c[i]);
    client_start(&c[0], "POST", CHAT, STR("{\"model\":\"m\"}"));
    WAIT(rig.replicas[0].x);
    rig.replicas[0].mode = ECHO;
    ask(&c[1], "POST", "/tokenize", "{\"model\":\"m\"}");
    assert_int_equal(c[1].status, 200);
    client_release(&c[0]);
    client_release(&c[1]);
}

#define TURN1 "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"}]}"
#define TURN2 "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"two\"}]}"

/* Without any word of the client the second turn goes where the first was, into the same slot. */
static void next_turn_goes_home(void **state)
{
    (void)state;
    struct client c;
    rig.slots = 2;
    rig.pins = true;
    rig_replicas(2, ECHO);
    for (int i = 0; i < 3; i++) { /* others in between */
        ask(&c, "POST", CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"other\"}]}");
        client_release(&c);
    }
    ask(&c, "POST", CHAT, TURN1);
    const char *home = has_line(&c.fields, "X-Berth-Replica: r0") ? "X-Berth-Replica: r0" : "X-Berth-Replica: r1";
    assert_true(str_starts(buf_str(&c.body), STR("{\"id_slot\":")));
    char slot[14];
    memcpy(slot, c.body.ptr, 13);
    slot[13] = '\0';
    client_release(&c);
    for (int i = 0; i < 3; i++) {
        ask(&c, "POST", CHAT, TURN2);
        assert_true(has_line(&c.fields, home));
        assert_true(has_line(&c.fields, "X-Berth-Decision: affine"));
        assert_true(str_starts(buf_str(&c.body), str_of(slot)));
        client_release(&c);
    }
    bool first = strcmp(home, "X-Berth-Replica: r0") == 0;
    assert_true(rig_metric(first ? "berth_router_decisions_total{endpoint=\"m\",replica=\"r0\",decision=\"affine\"} 3"
                             : "berth_router_decisions_total{endpoint=\"m\",replica=\"r1\",decision=\"affine\"} 3"));
    /* a slot that the client names stays as it is, and what is no generation has none */
    ask(&c, "POST", CHAT, "{\"id_slot\":1,\"model\":\"m\"}");
    assert_true(str_starts(buf_str(&c.body), STR("{\"id_slot\":1,\"model\":\"served-")));
    client_release(&c);
    ask(&c, "POST", "/tokenize", "{\"model\":\"m\"}");
    assert_true(str_starts(buf_str(&c.body), STR("{\"model\"")));
    client_release(&c);
}

/* What one router knew the next one knows, of replicas that are the same processes. */
static void knows_over_a_restart(void **state)
{
    (void)state;
    for (uint64_t generation = 1; generation <= 2; generation++) {
        base_autobuf struct buf index = BUF_INIT(PROXY_INDEX_MAX);
        struct client c;
        struct err err;
        uint16_t ports[2];
        rig.slots = 2;
        rig.pins = true;
        for (size_t i = 0; i < 2; i++) {
            replica_open(&rig.replicas[i], ECHO);
            ports[i] = rig.replicas[i].port;
        }
        rig_config(ports, 2, 0, 1);
        ask(&c, "POST", CHAT, TURN1);
        const char *home = has_line(&c.fields, "X-Berth-Replica: r0") ? "X-Berth-Replica: r0" : "X-Berth-Replica: r1";
        client_release(&c);
        assert_int_equal(proxy_index_save(rig.proxy, &index), 0);
        assert_int_equal(proxy_index_load(rig.proxy, buf_str(&index), &err), -EBUSY);
        rig.proxy = proxy_free(rig.proxy);
        assert_int_equal(proxy_new(rig.loop, 1, &rig.proxy, &err), 0);
        assert_int_equal(proxy_listen(rig.proxy, rig_listen(&rig.addr.port), &err), 0);
        rig_config(ports, 2, 0, generation);
        assert_int_equal(proxy_index_load(rig.proxy, buf_str(&index), &err), 0);
        ask(&c, "POST", CHAT, TURN2);
        assert_int_equal(c.status, 200);
        if (generation == 1)
            assert_true(has_line(&c.fields, home));
        assert_true(has_line(&c.fields, generation == 1 ? "X-Berth-Decision: affine" : "X-Berth-Decision: cold"));
        client_release(&c);
        for (size_t i = 0; i < 2; i++)
            replica_close(&rig.replicas[i]);
    }
    rig.replicas[0].server = rig.replicas[1].server = NULL;
}

/* ---- before content ------------------------------------------------------------------------------------------ */

/* Each API's first events, which are not content yet; then the first that is; then the last. */
static const struct {
    const char *path, *before, *content, *end, *heartbeat, *error;
} apis[] = {
    {CHAT, ":\n\ndata: {\"choices\":[{\"finish_reason\":null,\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
     "data: [DONE]\n\n", ": keep-alive\n\n", "data: {\"error\":{\"message\":"},
    {"/v1/messages", "event: message_start\ndata: {}\n\nevent: ping\ndata: {}\n\n", "event: content_block_start\ndata: {}\n\n", "event: message_stop\ndata: {}\n\n",
     "event: ping\ndata: {\"type\":\"ping\"}\n\n", "event: error\ndata: {\"type\":\"error\",\"error\":{"},
    {"/v1/responses", "event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n", "event: response.output_text.delta\ndata: {}\n\n", "event: response.completed\ndata: {}\n\n",
     "event: keepalive\ndata: {\"type\":\"keepalive\"", "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{"},
    {"/v1/completions", ": x\n\n", "data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n", ": keep-alive\n\n", "data: {\"error\":{\"message\":"},
};

static void dies_before_content(void **state)
{
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(apis); i++) {
        struct client c;
        rig_replicas(2, STREAM);
        client_start(&c, "POST", apis[i].path, STR(STREAM_BODY));
        WAIT(rig.replicas[0].x || rig.replicas[1].x);
        struct replica *first = rig.replicas[0].x ? &rig.replicas[0] : &rig.replicas[1], *second = first == rig.replicas ? first + 1 : first - 1;
        replica_event(first, apis[i].before);
        rig_run(20);
        assert_int_equal(c.status, 0);
        httpio_abort(first->x);
        WAIT(second->x);
        replica_event(second, apis[i].before);
        replica_event(second, apis[i].content);
        replica_event(second, apis[i].end);
        replica_end(second);
        WAIT(c.done);
        assert_false(c.failed);
        assert_true(has_line(&c.fields, "X-Berth-Attempts: 2"));
        /* all of the second's bytes, none of the first's */
        base_autobuf struct buf want = BUF_INIT(4096);
        buf_addf(&want, "%s%s%s", apis[i].before, apis[i].content, apis[i].end);
        assert_string_equal(c.body.ptr, want.ptr);
        client_release(&c);
        replica_close(&rig.replicas[0]);
        replica_close(&rig.replicas[1]);
        uint16_t none = 0;
        rig_config(&none, 0, 0, i + 10);
        rig.replicas[0].server = rig.replicas[1].server = NULL;
    }
    assert_int_equal(rig_stats().errors, 0);
}

static void dies_after_content(void **state)
{
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(apis); i++)
        for (int clean = 0; clean < 2; clean++) {
            struct client c;
            rig_replicas(1, STREAM);
            client_start(&c, "POST", apis[i].path, STR(STREAM_BODY));
            WAIT(rig.replicas[0].x);
            replica_event(&rig.replicas[0], apis[i].content);
            WAIT(c.len > 0);
            if (clean)
                replica_end(&rig.replicas[0]);
            else
                httpio_abort(rig.replicas[0].x);
            WAIT(c.done);
            assert_true(c.failed && c.failure == HTTPIO_CUT);
            assert_true(contains(&c.body, apis[i].error));
            client_release(&c);
            replica_close(&rig.replicas[0]);
            rig.replicas[0].server = NULL;
        }
    assert_int_equal(rig_stats().errors, 2 * BASE_COUNT(apis));
    assert_int_equal(rig_stats().active, 0);
}

/* The answer's end says as much as the empty line behind its last event. */
static void last_event_without_its_empty_line(void **state)
{
    (void)state;
    static const char *const ends[] = {"data: [DONE]\n", "data: [DONE]", "data: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{}}]}\r\n"};
    for (size_t i = 0; i < BASE_COUNT(ends); i++) {
        for (int content = 0; content < 2; content++) {
            struct client c;
            base_autobuf struct buf want = BUF_INIT(4096);
            rig_replicas(1, STREAM);
            client_start(&c, "POST", CHAT, STR(STREAM_BODY));
            WAIT(rig.replicas[0].x);
            buf_addf(&want, "%s%s", content ? "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" : "", ends[i]);
            replica_event(&rig.replicas[0], want.ptr);
            replica_end(&rig.replicas[0]);
            WAIT(c.done);
            assert_false(c.failed);
            assert_int_equal(c.status, 200);
            assert_string_equal(c.body.ptr, want.ptr);
            client_release(&c);
            replica_close(&rig.replicas[0]);
            rig.replicas[0].server = NULL;
        }
    }
    assert_int_equal(rig_stats().errors, 0);
    /* half an event is none: nothing is put behind it, and no client takes it for the end */
    struct client c;
    rig_replicas(1, STREAM);
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choi");
    replica_end(&rig.replicas[0]);
    WAIT(c.done);
    assert_true(c.failed);
    assert_string_equal(c.body.ptr, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choi");
    client_release(&c);
    assert_int_equal(rig_stats().errors, 1);
}

#define CHOICE(content, more) "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" content "\"}" more "}]}\n\n"
#define OPEN ",\"finish_reason\":null"

/* What a stream said before its answer's clean end tells whether anything is missing. */
static void whole_or_not(void **state)
{
    (void)state;
    static const struct {
        const char *path, *events;
        bool whole;
    } cases[] = {
        {CHAT, CHOICE("a", OPEN) CHOICE("error", OPEN), false},
        {CHAT, CHOICE("a", OPEN ",\"logprobs\":{\"content\":[{\"token\":\"error\"}]}"), false},
        {CHAT, CHOICE("finish_reason", OPEN), false},
        {CHAT, CHOICE("a", ",\"finish_reason\":\"\""), false},
        {CHAT, CHOICE("a", ",\"finish_reason\":\"stop\"") "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"b\"}" OPEN "}]}\n\n", false},
        {CHAT, "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"},{\"index\":1,\"finish_reason\" : null}]}\n\n", false},
        {CHAT, CHOICE("a", OPEN) CHOICE("", ",\"finish_reason\" : \"stop\"") "data: {\"choices\":[],\"usage\":{}}\n\n", true},
        {CHAT, CHOICE("a", OPEN) "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n", true},
        {"/v1/messages", "data: {\"type\":\"message_start\"}\n\ndata: {\"type\":\"content_block_delta\"}\n\n", false},
        {"/v1/messages", "data: {\"type\":\"content_block_delta\"}\n\ndata: {\"type\":\"message_stop\"}\n\n", true},
        {"/v1/responses", "data: {\"type\":\"response.output_text.delta\"}\n\n", false},
        {"/v1/responses", "data: {\"type\":\"response.output_text.delta\"}\n\ndata: {\"type\":\"response.completed\"}\n\n", true},
    };
    size_t errors = 0;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c;
        rig_replicas(1, STREAM);
        client_start(&c, "POST", cases[i].path, STR(STREAM_BODY));
        WAIT(rig.replicas[0].x);
        replica_event(&rig.replicas[0], cases[i].events);
        replica_end(&rig.replicas[0]);
        WAIT(c.done);
        if (c.failed == cases[i].whole)
            fail_msg("case %zu", i);
        assert_int_equal(strncmp(c.body.ptr, cases[i].events, strlen(cases[i].events)), 0);
        if (cases[i].whole)
            assert_int_equal(c.body.len, strlen(cases[i].events));
        errors += !cases[i].whole;
        client_release(&c);
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
    assert_int_equal(rig_stats().errors, errors);
}

/* Nothing is put behind the last event of a stream: its client has all of it, however the connection ends. */
static void breaks_off_behind_its_last_event(void **state)
{
    (void)state;
    for (size_t i = 0; i < BASE_COUNT(apis) - 1; i++) { /* not one whose last event may be followed by others */
        struct client c;
        base_autobuf struct buf want = BUF_INIT(4096);
        rig_replicas(1, STREAM);
        client_start(&c, "POST", apis[i].path, STR(STREAM_BODY));
        WAIT(rig.replicas[0].x);
        buf_addf(&want, "%s%s", apis[i].content, apis[i].end);
        replica_event(&rig.replicas[0], want.ptr);
        WAIT(c.len == want.len);
        httpio_abort(rig.replicas[0].x);
        WAIT(c.done);
        assert_false(c.failed);
        assert_string_equal(c.body.ptr, want.ptr);
        client_release(&c);
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
    assert_int_equal(rig_stats().errors, 0);
}

/* An error as the first event sends the request on when the replica is to blame, by a number or by a name. */
static void an_error_comes_first(void **state)
{
    (void)state;
    static const struct {
        const char *path, *event;
        bool moves;
    } cases[] = {
        {CHAT, "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n", true},
        {CHAT, "data: {\"error\":{\"message\":\"x\",\"code\":400}}\n\n", false},
        {CHAT, "data: {\"error\":{\"message\":\"x\",\"type\":\"invalid_request_error\",\"code\":null}}\n\n", false},
        {CHAT, "data: {\"error\":{\"message\":\"x\",\"type\":\"invalid_request_error\",\"code\":\"context_length_exceeded\"}}\n\n", false},
        {CHAT, "data: {\"error\":\"x\"}\n\n", true},
        {"/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"x\"}}\n\n", true},
        {"/v1/messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"x\"}}\n\n", false},
        {"/v1/responses", "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"x\"}\n\n", true},
        {"/v1/responses", "event: error\ndata: {\"type\":\"error\",\"code\":\"invalid_prompt\",\"message\":\"x\"}\n\n", false},
        {"/v1/responses", "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n", true},
        {"/v1/responses", "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"rate_limit_exceeded\"}}}\n\n", false},
        {"/v1/responses", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"error\":null}}\n\nevent: response.completed\ndata: {}\n\n", false},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c;
        rig_replicas(2, STREAM);
        client_start(&c, "POST", cases[i].path, STR(STREAM_BODY));
        WAIT(rig.replicas[0].x || rig.replicas[1].x);
        struct replica *first = rig.replicas[0].x ? &rig.replicas[0] : &rig.replicas[1], *second = first == rig.replicas ? first + 1 : first - 1;
        replica_event(first, cases[i].event);
        if (cases[i].moves) {
            WAIT(second->x || c.len);
            if (c.len)
                fail_msg("case %zu stayed", i);
            replica_event(second, cases[i].event);
            replica_end(second);
        } else {
            replica_end(first);
        }
        WAIT(c.done);
        assert_string_equal(c.body.ptr, cases[i].event);
        if (second->requests != cases[i].moves)
            fail_msg("case %zu moved", i);
        client_release(&c);
        replica_close(&rig.replicas[0]);
        replica_close(&rig.replicas[1]);
        uint16_t none = 0;
        rig_config(&none, 0, 0, i + 10);
        rig.replicas[0].server = rig.replicas[1].server = NULL;
    }
}

/* What is read on its way is not asked for in an encoding; what comes in one all the same passes unread. */
static void encoded_streams(void **state)
{
    (void)state;
    static const char head[] = "POST " CHAT " HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip, br\r\nConnection: close\r\nContent-Length: ";
    struct client c;
    base_autobuf struct buf ask_stream = BUF_INIT(4096);
    rig_replicas(1, ECHO);
    for (int stream = 0; stream < 2; stream++) {
        const char *body = stream ? STREAM_BODY : "{\"model\":\"m\"}";
        buf_clear(&ask_stream);
        buf_addf(&ask_stream, "%s%zu\r\n\r\n%s", head, strlen(body), body);
        raw_start(&c, ask_stream.ptr);
        WAIT(c.done);
        assert_int_equal(contains(&rig.replicas[0].fields, "Accept-Encoding"), !stream);
        client_release(&c);
    }
    replica_close(&rig.replicas[0]);
    rig.replicas[0].server = NULL;
    static const char bytes[] = "\x1f\x8b\x08 no text \xff";
    struct bare b;
    base_autobuf struct buf reply = BUF_INIT(4096);
    buf_addf(&reply, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nContent-Length: %zu\r\n\r\n%s", sizeof bytes - 1, bytes);
    bare_open(&b, reply.ptr, true, false);
    rig_config((uint16_t[]){b.port}, 1, 0, 2);
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(c.done);
    assert_int_equal(c.status, 200);
    assert_false(c.failed);
    assert_true(has_line(&c.fields, "Content-Encoding: gzip"));
    assert_string_equal(c.body.ptr, bytes);
    assert_int_equal(rig_stats().errors, 0);
    assert_int_equal(rig_stats().retries, 0);
    client_release(&c);
    bare_close(&b);
}

/* ---- signs of life -------------------------------------------------------------------------------------------- */

static void signs_of_life(void **state)
{
    (void)state;
    quick(20, 100000);
    rig.slots = 1;
    for (size_t i = 0; i < BASE_COUNT(apis); i++) {
        struct client c, busy;
        rig_replicas(1, STREAM);
        client_start(&busy, "POST", CHAT, STR("{\"model\":\"m\"}"));
        WAIT(rig.replicas[0].x);
        client_start(&c, "POST", apis[i].path, STR(STREAM_BODY));
        WAIT(contains(&c.body, apis[i].heartbeat)); /* it waits for a slot */
        assert_int_equal(c.status, 200);
        assert_true(has_line(&c.fields, "Content-Type: text/event-stream"));
        assert_int_equal(rig.replicas[0].requests, 1);
        replica_event(&rig.replicas[0], "data: [DONE]\n\n");
        replica_end(&rig.replicas[0]);
        WAIT(busy.done && rig.replicas[0].x);
        buf_clear(&c.body);
        WAIT(contains(&c.body, apis[i].heartbeat)); /* its prompt is read */
        replica_event(&rig.replicas[0], apis[i].content);
        WAIT(contains(&c.body, apis[i].content));
        buf_clear(&c.body);
        replica_event(&rig.replicas[0], "data: half");
        WAIT(contains(&c.body, "half"));
        buf_clear(&c.body);
        rig_run(60);
        assert_int_equal(c.body.len, 0); /* nothing within an event */
        replica_event(&rig.replicas[0], "\n\n");
        replica_event(&rig.replicas[0], apis[i].end);
        replica_end(&rig.replicas[0]);
        WAIT(c.done);
        assert_false(c.failed);
        client_release(&c);
        client_release(&busy);
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* A stream that has begun with signs of life can still change its replica, and still say that there is none. */
static void moves_after_signs_of_life(void **state)
{
    (void)state;
    quick(10, 100000);
    struct client c;
    rig_replicas(2, STREAM);
    client_start(&c, "POST", "/v1/messages", STR(STREAM_BODY));
    WAIT(c.status == 200);
    struct replica *first = rig.replicas[0].x ? &rig.replicas[0] : &rig.replicas[1], *second = first == rig.replicas ? first + 1 : first - 1;
    httpio_abort(first->x);
    WAIT(second->x);
    httpio_abort(second->x);
    WAIT(c.done);
    assert_true(c.failed);
    assert_true(contains(&c.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"no replica of 'm' could be reached"));
    client_release(&c);
    /* an answer that is no stream has no place in one */
    first->mode = HOLD;
    second->mode = HOLD;
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(c.status == 200);
    WAIT(rig.replicas[0].x || rig.replicas[1].x);
    httpio_respond(rig.replicas[0].x ? rig.replicas[0].x : rig.replicas[1].x, 400, "application/json", STR("{\"error\":\"too long\"}"));
    WAIT(c.done);
    assert_true(contains(&c.body, "answered 400: {\\\"error\\\":\\\"too long\\\"}"));
    client_release(&c);
}

static void hanging_replica_is_left(void **state)
{
    (void)state;
    quick(100000, 50);
    rig.pins = true;
    struct client c;
    rig_replicas(2, STREAM);
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(rig.replicas[0].requests && rig.replicas[1].requests);
    assert_int_equal(rig.replicas[0].left + rig.replicas[1].left, 1);
    assert_true(rig_metric("berth_router_retries_total{replica=\"r0\",reason=\"hang\"} 1"));
    assert_true(rig_metric("berth_router_replica_suspect{replica=\"r0\"} 1"));
    client_release(&c);
}

/* What the client has got of it cannot be taken back: no other replica may go on. */
static void hangs_after_content(void **state)
{
    (void)state;
    quick(100000, 50);
    rig.pins = true;
    struct client c;
    rig_replicas(2, STREAM);
    client_start(&c, "POST", CHAT, STR(STREAM_BODY));
    WAIT(rig.replicas[0].x);
    replica_event(&rig.replicas[0], apis[0].content);
    WAIT(c.done);
    assert_true(c.failed && c.failure == HTTPIO_CUT);
    assert_true(contains(&c.body, "broke off: it says nothing any more"));
    assert_int_equal(rig.replicas[1].requests, 0);
    assert_int_equal(rig_stats().active, 0);
    client_release(&c);
}

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

static struct buf lines;

static void keep_log(void *ctx, struct str text)
{
    (void)ctx;
    buf_add_str(&lines, text);
}

static void tokens_are_counted(void **state)
{
    (void)state;
    static const char *const ends[] = {
        "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":40,\"prompt_n\":60,\"prompt_ms\":30,\"predicted_n\":5,\"predicted_ms\":10}}\n\ndata: [DONE]\n\n",
        "data: {\"choices\":[{\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":40}}}\n\ndata: [DONE]\n\n",
    };
    lines = BUF_INIT(1 << 16);
    rig.proxy->on_log = keep_log;
    rig_replicas(1, STREAM);
    for (size_t i = 0; i < BASE_COUNT(ends); i++) {
        struct client c;
        client_start(&c, "POST", CHAT, STR(STREAM_BODY));
        WAIT(rig.replicas[0].x);
        replica_event(&rig.replicas[0], ends[i]);
        replica_end(&rig.replicas[0]);
        WAIT(c.done);
        client_release(&c);
    }
    assert_true(rig_metric("berth_router_tokens_total{endpoint=\"m\",replica=\"r0\",kind=\"prompt\"} 120"));
    assert_true(rig_metric("berth_router_tokens_total{endpoint=\"m\",replica=\"r0\",kind=\"cached\"} 80"));
    assert_true(rig_metric("berth_router_tokens_total{endpoint=\"m\",replica=\"r0\",kind=\"generated\"} 10"));
    assert_true(rig_metric("berth_router_replica_prompt_tokens_per_second{replica=\"r0\"} 800")); /* 500 is the guess, 2000 was seen once */
    struct client c;
    ask(&c, "GET", "/v1/x?model=\"q", NULL);
    client_release(&c);
    WAIT_POLL(lines.len && rig_stats().active == 0);
    proxy_log_flush(rig.proxy->lanes);
    struct str rest = buf_str(&lines);
    unsigned n = 0;
    while (rest.len) {
        struct json *j;
        uint64_t cached = 0, prompt = 0, generated = 0;
        assert_int_equal(json_parse(str_split(&rest, '\n'), &j, NULL), 0);
        (void)json_u64(json_get(json_root(j), "cached_tokens"), &cached);
        (void)json_u64(json_get(json_root(j), "prompt_tokens"), &prompt);
        (void)json_u64(json_get(json_root(j), "generated_tokens"), &generated);
        assert_int_equal(cached, n < 2 ? 40 : 0);
        assert_int_equal(prompt, n < 2 ? 100 : 0); /* all of it, as usage tells */
        assert_int_equal(generated, n < 2 ? 5 : 0);
        json_free(j);
        n++;
    }
    assert_int_equal(n, 3);
    rig.proxy->on_log = NULL;
    buf_release(&lines);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* Many connections have come and gone, of which none asked anything: their memory goes back, at once when no request is under way, and later than that when there always is one. */
static void memory_goes_back(void **state)
{
    (void)state;
    static struct client crowd[PROXY_TRIM_FROM + 4], stream;
    const struct proxy_lane *l = rig.proxy->lanes;
    rig_replicas(1, STREAM);
    quick(60000, 60000);
    for (int busy = 0; busy < 2; busy++) {
        if (busy) {
            client_start(&stream, "POST", CHAT, STR("{\"model\":\"m\",\"stream\":true}"));
            WAIT(rig.replicas[0].x);
        }
        for (size_t i = 0; i < BASE_COUNT(crowd); i++)
            raw_start(&crowd[i], "");
        WAIT_POLL(l->most == BASE_COUNT(crowd) + (size_t)busy);
        assert_true(l->ticking);
        for (size_t i = 0; i < BASE_COUNT(crowd); i++)
            client_release(&crowd[i]);
        if (busy) {
            WAIT_POLL(l->postponed > 1);
            assert_int_equal(l->most, BASE_COUNT(crowd) + 1);
        }
        WAIT_POLL(l->most <= (size_t)busy);
        assert_int_equal(l->postponed, 0);
        assert_false(rig.proxy->trimming);
        WAIT_POLL(busy || !l->ticking);
    }
    client_release(&stream);
    WAIT_POLL(!l->ticking);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(queue_is_here),
        RIG_TEST(next_turn_goes_home),
        RIG_TEST(knows_over_a_restart),
        RIG_TEST(dies_before_content),
        RIG_TEST(dies_after_content),
        RIG_TEST(last_event_without_its_empty_line),
        RIG_TEST(whole_or_not),
        RIG_TEST(breaks_off_behind_its_last_event),
        RIG_TEST(an_error_comes_first),
        RIG_TEST(encoded_streams),
        RIG_TEST(signs_of_life),
        RIG_TEST(moves_after_signs_of_life),
        RIG_TEST(hanging_replica_is_left),
        RIG_TEST(hangs_after_content),
        RIG_TEST(tokens_are_counted),
        RIG_TEST(memory_goes_back),
    };
    return cmocka_run_group_tests_name("proxy_streams", tests, NULL, NULL);
}
