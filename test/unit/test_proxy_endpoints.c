/* SPDX-License-Identifier: MIT
 *
 * proxy: every endpoint of every API passes byte for byte, but for the model's name; what the router answers itself.
 */
#include "proxy_rig.h"

#include <proxy/proxy_int.h>

#define MULTIPART(before, model, after) before "--B0\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" model "\r\n" after "--B0--\r\n"
#define FILE_PART "--B0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n\r\n\x01\x02 \"model\":\"m\" --B\r\n"

/* One request with these fields; what the replica got is in rig.replicas[0], what came back in c. */
static void call(struct client *c, const char *method, const char *target, const struct http_field *fields, size_t n, struct str body)
{
    client_init(c);
    struct httpio_request q = {.addr = rig.addr, .method = str_of(method), .target = str_of(target), .fields = fields, .n_fields = n, .body = body};
    assert_int_equal(httpio_call(rig.http, &q, &client_ops, c, &c->call, NULL), 0);
    WAIT(c->done);
}

static void same(struct str got, struct str want, const char *where)
{
    if (!str_eq(got, want))
        fail_msg("%s: got '" STR_FMT "', want '" STR_FMT "'", where, STR_ARG(got), STR_ARG(want));
}

/* In, and as the replica must get it. White space, order, numbers, escapes and unknown members stay as they are. */
static void json_endpoints(void **state)
{
    (void)state;
    static const char *const targets[] = {
        "/v1/chat/completions", "/chat/completions", "/v1/completions", "/completion", "/completions", "/infill", "/v1/embeddings", "/embedding", "/v1/rerank", "/rerank", "/v1/reranking",
        "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/audio/speech", "/v1/images/generations", "/tokenize", "/detokenize", "/apply-template", "/v1/unheard/of",
        "/v1/chat/completions?a=%2F%2e+b&model=other&c",
    };
    static const struct {
        const char *in, *out;
    } bodies[] = {
        {"{\"model\":\"m\"}", "{\"model\":\"served-0\"}"},
        {" {\n\t\"x\" : [1.0, 1e400, -0] ,\"model\" :  \"alias\" , \"y\":\"\\u00e4\\/\", \"x\":2}\r\n", " {\n\t\"x\" : [1.0, 1e400, -0] ,\"model\" :  \"served-0\" , \"y\":\"\\u00e4\\/\", \"x\":2}\r\n"},
        {"{\"messages\":[{\"model\":\"inner\",\"content\":\"\\\"model\\\":\\\"m\\\"\"}],\"model\":\"gpt \\\"4\\\"\"}", "{\"messages\":[{\"model\":\"inner\",\"content\":\"\\\"model\\\":\\\"m\\\"\"}],\"model\":\"served-0\"}"},
    };
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(targets); i++)
        for (size_t k = 0; k < BASE_COUNT(bodies); k++) {
            struct client c;
            base_autobuf struct buf line = BUF_INIT(4096);
            buf_addf(&line, "POST %s", targets[i]);
            call(&c, "POST", targets[i], NULL, 0, str_of(bodies[k].in));
            assert_int_equal(c.status, 200);
            same(buf_str(&rig.replicas[0].line), buf_str(&line), targets[i]);
            same(buf_str(&rig.replicas[0].body), str_of(bodies[k].out), targets[i]);
            same(buf_str(&c.body), str_of(bodies[k].out), targets[i]);
            client_release(&c);
        }
}

/* Calls that read: a fleet of one endpoint has them without a name, and with one in the query. */
static void reading_endpoints(void **state)
{
    (void)state;
    static const char *const targets[] = {"/props", "/slots", "/slots?fail_on_no_slot=1", "/lora-adapters", "/metrics?model=m", "/v1/files/a%2fb?model=alias&x=%20", "/props?model=gpt+%224%22"};
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(targets); i++) {
        struct client c;
        base_autobuf struct buf line = BUF_INIT(4096);
        buf_addf(&line, "GET %s", targets[i]);
        call(&c, "GET", targets[i], NULL, 0, (struct str){0});
        assert_int_equal(c.status, 200);
        same(buf_str(&rig.replicas[0].line), buf_str(&line), targets[i]);
        client_release(&c);
    }
}

static void forms(void **state)
{
    (void)state;
    const struct http_field fields[] = {HTTPIO_FIELD(STR("Content-Type"), STR("multipart/form-data; boundary=B0"))};
    static const char *const targets[] = {"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits", "/v1/images/variations"};
    const struct {
        struct str in, out;
    } bodies[] = {
        {STR(MULTIPART(FILE_PART, "m", "")), STR(MULTIPART(FILE_PART, "served-0", ""))},
        {STR(MULTIPART("", "alias", FILE_PART)), STR(MULTIPART("", "served-0", FILE_PART))},
    };
    struct client c;
    rig.pins = true;
    rig.slots = 2;
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(targets); i++)
        for (size_t k = 0; k < BASE_COUNT(bodies); k++) {
            call(&c, "POST", targets[i], fields, 1, bodies[k].in);
            assert_int_equal(c.status, 200);
            same(buf_str(&rig.replicas[0].body), bodies[k].out, targets[i]);
            assert_true(has_line(&rig.replicas[0].fields, "Content-Type: multipart/form-data; boundary=B0"));
            client_release(&c);
        }
    call(&c, "POST", targets[0], fields, 1, STR(MULTIPART(FILE_PART, "nobody", "")));
    assert_int_equal(c.status, 404);
    assert_true(contains(&c.body, "'nobody' is not served here; known models: 'm', 'alias'"));
    client_release(&c);
    call(&c, "POST", targets[0], fields, 1, STR(MULTIPART("--B0\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n", "m", "")));
    assert_int_equal(c.status, 400);
    assert_true(contains(&c.body, "names the model twice"));
    client_release(&c);
}

/* End to end fields go both ways, also of an answer that is an error. */
static void fields_both_ways(void **state)
{
    (void)state;
    const struct http_field fields[] = {
        HTTPIO_FIELD(STR("X-Request-Id"), STR("mine")), HTTPIO_FIELD(STR("Accept-Language"), STR("de")), HTTPIO_FIELD(STR("OpenAI-Organization"), STR("o")),
        HTTPIO_FIELD(STR("anthropic-version"), STR("2023-06-01")), HTTPIO_FIELD(STR("traceparent"), STR("00-1-2-01")), HTTPIO_FIELD(STR("Connection"), STR("x-hop")), HTTPIO_FIELD(STR("X-Hop"), STR("1")),
    };
    static const char *const through[] = {"X-Request-Id: mine", "Accept-Language: de", "OpenAI-Organization: o", "anthropic-version: 2023-06-01", "traceparent: 00-1-2-01"};
    struct client c;
    rig_replicas(1, BUSY);
    call(&c, "POST", "/v1/chat/completions", fields, 5, STR("{\"model\":\"m\"}"));
    assert_int_equal(c.status, 503);
    assert_true(has_line(&c.fields, "Retry-After: 7") && has_line(&c.fields, "X-Request-Id: q") && has_line(&c.fields, "X-Berth-Request-Id: 1"));
    for (size_t i = 0; i < BASE_COUNT(through); i++)
        if (!has_line(&rig.replicas[0].fields, through[i]))
            fail_msg("'%s' did not pass", through[i]);
    client_release(&c);
}

/* How often a text stands in another. */
static size_t times(const struct buf *b, const char *text)
{
    size_t n = 0;
    for (const char *p = b->ptr; p && (p = strcasestr(p, text)); p++)
        n++;
    return n;
}

/* A replica with a key is shown exactly that one, whatever the client shows. */
static void key_of_a_replica(void **state)
{
    (void)state;
    const struct http_field fields[] = {
        HTTPIO_FIELD(STR("Authorization"), STR("Bearer of-the-client")), HTTPIO_FIELD(STR("x-api-key"), STR("of-the-client")), HTTPIO_FIELD(STR("Api-Key"), STR("of-the-client")), HTTPIO_FIELD(STR("X-Two"), STR("2")),
    };
    static const char *const targets[] = {"/v1/chat/completions", "/v1/models/x/y", "/tokenize"};
    struct client c;
    rig.key = "K-of-the-engine-0";
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(targets); i++) {
        call(&c, "POST", targets[i], fields, 4, STR("{\"model\":\"m\"}"));
        assert_int_equal(c.status, 200);
        assert_true(has_line(&rig.replicas[0].fields, "Authorization: Bearer K-of-the-engine-0"));
        assert_int_equal(times(&rig.replicas[0].fields, "authorization:"), 1);
        assert_int_equal(times(&rig.replicas[0].fields, "of-the-client"), 0);
        assert_true(has_line(&rig.replicas[0].fields, "X-Two: 2"));
        assert_false(contains(&c.fields, "K-of-the-engine") || contains(&c.body, "K-of-the-engine"));
        client_release(&c);
    }
    /* also when the client shows none, and nothing that the owner asks has it */
    call(&c, "POST", targets[0], NULL, 0, STR("{\"model\":\"m\"}"));
    assert_int_equal(times(&rig.replicas[0].fields, "authorization: Bearer K-of-the-engine-0"), 1);
    client_release(&c);
    base_autobuf struct buf told = BUF_INIT(1 << 20);
    unsigned status;
    assert_int_equal(proxy_ask(rig.proxy, STR("GET"), STR("/requests"), &status, &told), 0);
    assert_int_equal(proxy_metrics(rig.proxy, &told), 0);
    assert_true(contains(&told, "r0"));
    assert_false(contains(&told, "K-of-the-engine"));
}

/* What clients show goes to a program that may ask for it, and only when the router does not ask them itself. */
static void keys_of_clients(void **state)
{
    (void)state;
    const struct http_field fields[] = {HTTPIO_FIELD(STR("Authorization"), STR("Bearer of-the-client")), HTTPIO_FIELD(STR("x-api-key"), STR("of-the-client")), HTTPIO_FIELD(STR("Api-Key"), STR("of-the-client"))};
    static const struct {
        bool asks, keyed;
        const char *key;
        size_t shown;
    } cases[] = {{false, false, NULL, 0}, {true, false, NULL, 3}, {true, true, NULL, 0}, {true, false, "K-of-the-engine-0", 0}};
    unsigned char hash[PROXY_KEY_HASH];
    base_autobuf struct buf text = BUF_INIT(4096);
    struct proxy_keys *keys;
    assert_int_equal(proxy_key_hash(STR("of-the-client"), hash), 0);
    buf_add_c(&text, "alice sha256:");
    for (size_t b = 0; b < sizeof hash; b++)
        buf_addf(&text, "%02x", hash[b]);
    assert_int_equal(proxy_keys_parse(buf_str(&text), "keys", &keys, NULL), 0);
    proxy_set_keys(rig.proxy, keys);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c;
        rig.asks = cases[i].asks;
        rig.key = cases[i].key;
        rig_replicas(1, ECHO);
        rig.proxy->config->keyed = cases[i].keyed;
        call(&c, "POST", "/v1/chat/completions", fields, 3, STR("{\"model\":\"m\"}"));
        assert_int_equal(c.status, 200);
        assert_int_equal(times(&rig.replicas[0].fields, "of-the-client"), cases[i].shown);
        client_release(&c);
        replica_close(&rig.replicas[0]);
        rig.replicas[0].server = NULL;
    }
}

/* Two clients with keys of their own may call their conversations the same. */
static void a_session_is_its_keys(void **state)
{
    (void)state;
    static const char *const secrets[] = {"of-alice", "of-bob"};
    base_autobuf struct buf text = BUF_INIT(4096);
    struct proxy_keys *keys;
    for (size_t i = 0; i < 2; i++) {
        unsigned char hash[PROXY_KEY_HASH];
        assert_int_equal(proxy_key_hash(str_of(secrets[i]), hash), 0);
        buf_addf(&text, "%s sha256:", i ? "bob" : "alice");
        for (size_t b = 0; b < sizeof hash; b++)
            buf_addf(&text, "%02x", hash[b]);
        buf_add_char(&text, '\n');
    }
    assert_int_equal(proxy_keys_parse(buf_str(&text), "keys", &keys, NULL), 0);
    proxy_set_keys(rig.proxy, keys);
    rig_replicas(2, ECHO);
    rig.proxy->config->keyed = true;
    for (size_t i = 0; i < 3; i++) {
        static const char *const bodies[] = {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}",
                                             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"c\"}]}"};
        struct client c;
        const struct http_field fields[] = {HTTPIO_FIELD(STR("x-session-id"), STR("one")), HTTPIO_FIELD(STR("x-api-key"), str_of(secrets[i == 1]))};
        call(&c, "POST", "/v1/chat/completions", fields, BASE_COUNT(fields), str_of(bodies[i]));
        assert_int_equal(c.status, 200);
        assert_true(has_line(&c.fields, i == 2 ? "X-Berth-Decision: affine" : "X-Berth-Decision: cold")); /* alice, bob, alice */
        client_release(&c);
    }
}

static uint64_t capacity_now(void)
{
    struct proxy_stats s;
    proxy_stats(rig.proxy, &s);
    return s.capacity;
}

static void tell(struct replica *r, const char *blocks)
{
    base_autobuf struct buf b = BUF_INIT(4096);
    WAIT(r->x);
    assert_string_equal(r->line.ptr, "GET /metrics");
    buf_addf(&b, "# HELP x\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%s\"} 1.0\n", blocks);
    replica_answer(r, b.ptr);
    WAIT(!r->x);
}

/* Replicas that tell how much they hold are asked once in each of their lives, and again as long as they do not say. */
static void capacity_is_asked(void **state)
{
    (void)state;
    uint16_t ports[2];
    rig.tells = true;
    rig.proxy->capacity_ms = 20;
    for (size_t i = 0; i < 2; i++) {
        replica_open(&rig.replicas[i], HOLD);
        ports[i] = rig.replicas[i].port;
    }
    rig_config(ports, 2, 0, 1);
    tell(&rig.replicas[0], "1000");
    tell(&rig.replicas[1], "None"); /* not yet */
    rig_run(5);
    assert_int_equal(capacity_now(), 0); /* of one it is not known */
    tell(&rig.replicas[1], "500");
    WAIT_POLL(capacity_now() == 24000);
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    assert_int_equal(proxy_metrics(rig.proxy, &text), 0);
    assert_true(contains(&text, "berth_router_capacity_tokens{endpoint=\"m\"} 24000"));
    /* another configuration, the same processes */
    unsigned asked = rig.replicas[0].requests;
    rig_config(ports, 2, 0, 1);
    assert_int_equal(capacity_now(), 24000);
    rig_run(50);
    assert_int_equal(rig.replicas[0].requests, asked);
    /* other processes hold what they say, and nothing of what is said for those before them counts */
    rig_config(ports, 2, 0, 2);
    assert_int_equal(capacity_now(), 0);
    WAIT(rig.replicas[0].x && rig.replicas[1].x);
    rig_config(ports, 2, 0, 3);
    tell(&rig.replicas[0], "7");
    tell(&rig.replicas[1], "7");
    assert_int_equal(capacity_now(), 0);
    tell(&rig.replicas[0], "10");
    tell(&rig.replicas[1], "20");
    WAIT_POLL(capacity_now() == 480);
}

/* Who is refused there is the router: the next replica is asked, and no client is told that its key is wrong. */
static void refused_key(void **state)
{
    (void)state;
    struct client c;
    rig.key = "K-of-the-engine-0";
    rig_replicas(1, DENY);
    call(&c, "POST", "/v1/chat/completions", NULL, 0, STR("{\"model\":\"m\"}"));
    assert_int_equal(c.status, 502);
    assert_true(contains(&c.body, "the last, 'r0': it answered 401: it does not take the key that the router has for it"));
    client_release(&c);
    replica_close(&rig.replicas[0]);
    rig.key = NULL; /* then it is the client's own affair */
    rig_replicas(1, DENY);
    call(&c, "POST", "/v1/chat/completions", NULL, 0, STR("{\"model\":\"m\"}"));
    assert_int_equal(c.status, 401);
    client_release(&c);
}

/* The error has the client's own shape, and lists what there is. */
static void unknown_model(void **state)
{
    (void)state;
    static const struct {
        const char *target, *want;
    } cases[] = {
        {"/v1/chat/completions", "{\"error\":{\"message\":\"model 'x' is not served here; known models: 'm', 'alias', 'gpt \\\"4\\\"'\",\"type\":\"not_found_error\",\"code\":404}}"},
        {"/v1/responses", "{\"error\":{\"message\":\"model 'x' is not served here; known models: 'm', 'alias', 'gpt \\\"4\\\"'\",\"type\":\"not_found_error\",\"code\":404}}"},
        {"/v1/messages", "{\"type\":\"error\",\"error\":{\"message\":\"model 'x' is not served here; known models: 'm', 'alias', 'gpt \\\"4\\\"'\",\"type\":\"not_found_error\",\"code\":404}}"},
    };
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c;
        call(&c, "POST", cases[i].target, NULL, 0, STR("{\"model\":\"x\"}"));
        assert_int_equal(c.status, 404);
        same(buf_str(&c.body), str_of(cases[i].want), cases[i].target);
        client_release(&c);
    }
    assert_int_equal(rig.replicas[0].requests, 0);
}

static void probes(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target, *body;
        unsigned status;
        const char *part;
    } cases[] = {
        {"GET", "/", NULL, 200, "berth is running"},
        {"GET", "/api/version", NULL, 200, "{\"version\":\"" BERTH_VERSION "\"}"},
        {"GET", "/api/tags", NULL, 200, "{\"models\":[{\"name\":\"m\",\"model\":\"m\","},
        {"GET", "/api/tags?x=1", NULL, 200, "\"name\":\"gpt \\\"4\\\"\""},
        {"GET", "/api/ps", NULL, 200, "\"name\":\"alias\""},
        {"POST", "/api/show", "{\"model\":\"alias\"}", 200, "\"capabilities\":[\"completion\"]"},
        {"POST", "/api/show", "{\"name\":\"m\",\"verbose\":true}", 200, "\"model_info\":{}"},
        {"POST", "/api/show", "{\"model\":\"x\"}", 404, "{\"error\":\"this model is not served here"},
        {"POST", "/api/show", "{\"model\":7}", 404, "{\"error\":"},
        {"POST", "/api/show", "[]", 400, "{\"error\":\"set \\\"model\\\""},
        {"POST", "/api/chat", "{\"model\":\"m\"}", 404, "POST /v1/chat/completions"},
        {"POST", "/api/generate", "{\"model\":\"m\"}", 404, "/v1/messages"},
        {"DELETE", "/api/delete", NULL, 404, "this is not Ollama"},
        {"GET", "/v1/models/alias", NULL, 200, "{\"id\":\"alias\",\"object\":\"model\""},
        {"GET", "/v1/models/gpt%20%224%22", NULL, 200, "\"id\":\"gpt \\\"4\\\"\""},
        {"GET", "/v1/models/x", NULL, 404, "{\"error\":{\"message\":\"this model is not served here"},
    };
    rig_replicas(1, ECHO);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct client c;
        call(&c, cases[i].method, cases[i].target, NULL, 0, str_of(cases[i].body));
        if (c.status != cases[i].status || !contains(&c.body, cases[i].part))
            fail_msg("%s %s: %u '%s'", cases[i].method, cases[i].target, c.status, c.body.ptr);
        client_release(&c);
    }
    assert_int_equal(rig.replicas[0].requests, 0);
    struct client c;
    rig_config(&rig.replicas[0].port, 1, 1, 2);
    call(&c, "GET", "/api/ps", NULL, 0, (struct str){0});
    same(buf_str(&c.body), STR("{\"models\":[]}"), "not ready");
    client_release(&c);
}

/* A client that tries a WebSocket first is told at once, over a connection that lives on. */
static void no_websocket(void **state)
{
    (void)state;
    struct client c;
    rig_replicas(1, ECHO);
    raw_start(&c, "GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n");
    WAIT(contains(&c.body, "by POST over HTTP"));
    assert_true(str_starts(buf_str(&c.body), STR("HTTP/1.1 426 ")));
    assert_int_equal(rig.replicas[0].requests, 0);
    client_release(&c);
}

/* A page that may ask can read whatever the router answers itself, errors too. */
static void pages_read_own_answers(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://chat.example"};
    static const struct {
        const char *method, *target, *body;
        unsigned status;
    } cases[] = {
        {"GET", "/health", "", 200}, {"GET", "/", "", 200}, {"GET", "/v1/models", "", 200}, {"GET", "/v1/models/m", "", 200}, {"GET", "/v1/models/none", "", 404},
        {"GET", "/api/tags", "", 200}, {"GET", "/api/ps", "", 200}, {"GET", "/api/version", "", 200}, {"POST", "/api/show", "{\"model\":\"m\"}", 200},
        {"POST", "/api/show", "{}", 400}, {"POST", "/api/chat", "", 404}, {"POST", "/v1/chat/completions", "{\"model\":\"none\"}", 404},
    };
    const struct http_field origin = HTTPIO_FIELD(STR("Origin"), STR("https://chat.example"));
    struct client c;
    rig_replicas(1, ECHO);
    rig.proxy->config->cors = origins;
    rig.proxy->config->n_cors = BASE_COUNT(origins);
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        call(&c, cases[i].method, cases[i].target, &origin, 1, str_of(cases[i].body));
        if (c.status != cases[i].status || !has_line(&c.fields, "Access-Control-Allow-Origin: https://chat.example"))
            fail_msg("%s %s: %u\n%s", cases[i].method, cases[i].target, c.status, c.fields.ptr);
        client_release(&c);
    }
}

/* One question in bytes of its own; what comes back is in c->body. */
static void ask_as(struct client *c, const char *method, const char *fields)
{
    base_autobuf struct buf b = BUF_INIT(1 << 16);
    buf_addf(&b, "%s /v1/models HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n", method, fields);
    assert_int_equal(buf_status(&b), 0);
    raw_start(c, b.ptr);
    WAIT(c->done);
}

/* Only the very origins that are declared may read; whatever looks like one of them, and several at once, are told nothing. */
static void hostile_origins(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://chat.example", "http://127.0.0.1:3000"};
    static const char *const hostile[] = {
        "null", "", "*", "file://", "chrome-extension://abcdef", "about:blank", "http://chat.example", "HTTPS://chat.example", "https://CHAT.example", "https://chat.example:443", "https://chat.example:8443",
        "https://chat.example.", "https://chat.example/", "https://chat.example.evil.test", "https://evilchat.example", "https://evil.test/https://chat.example", "https://chat.example@evil.test",
        "https://user:secret@chat.example", "https://chat.exampl", "https://xn--cht-5cd.example", "https://ch\xd0\xb0t.example", "https://chat.example,https://evil.test", "https://chat.example https://evil.test",
        "https://chat.example\thttps://evil.test", "http://127.0.0.1", "http://127.0.0.1:30000", "http://127.0.0.1:3000.evil.test", "http://127.1:3000", "http://localhost:3000", "http://[::1]:3000", "127.0.0.1:3000",
    };
    char fields[8192], far[6000];
    struct client c;
    rig_replicas(1, ECHO);
    rig.proxy->config->cors = origins;
    rig.proxy->config->n_cors = BASE_COUNT(origins);
    memset(far, 'a', sizeof far);
    memcpy(far, "https://", 8);
    memcpy(far + sizeof far - 14, ".chat.example", 14);
    for (size_t i = 0; i <= BASE_COUNT(hostile); i++) {
        const char *origin = i < BASE_COUNT(hostile) ? hostile[i] : far;
        snprintf(fields, sizeof fields, "Origin: %s\r\n", origin);
        ask_as(&c, "GET", fields);
        if (!str_starts(buf_str(&c.body), STR("HTTP/1.1 200 ")) || contains(&c.body, "Access-Control-") || !contains(&c.body, "Vary: Origin\r\n"))
            fail_msg("'%s': %s", origin, c.body.ptr);
        client_release(&c);
        snprintf(fields, sizeof fields, "Origin: %s\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n", origin);
        ask_as(&c, "OPTIONS", fields);
        if (!str_starts(buf_str(&c.body), STR("HTTP/1.1 403 ")) || contains(&c.body, "Access-Control-"))
            fail_msg("'%s': %s", origin, c.body.ptr);
        client_release(&c);
    }
    static const char *const several[] = {"Origin: https://chat.example\r\nOrigin: https://evil.test\r\n", "Origin: https://evil.test\r\nOrigin: https://chat.example\r\n",
                                          "Origin: https://chat.example\r\norigin: https://chat.example\r\n"};
    for (size_t i = 0; i < BASE_COUNT(several); i++) {
        ask_as(&c, "GET", several[i]);
        assert_true(str_starts(buf_str(&c.body), STR("HTTP/1.1 200 ")));
        assert_false(contains(&c.body, "Access-Control-"));
        client_release(&c);
    }
    static const char *const broken[] = {"Origin: https://chat.example\x01\r\n", "Origin: https://chat.example\x7f\r\n", "Origin: https://chat.example\rX: y\r\n", "Origin : https://chat.example\r\n"};
    for (size_t i = 0; i < BASE_COUNT(broken); i++) {
        ask_as(&c, "GET", broken[i]);
        assert_true(str_starts(buf_str(&c.body), STR("HTTP/1.1 400 ")));
        assert_false(contains(&c.body, "Access-Control-"));
        client_release(&c);
    }
    for (size_t i = 0; i < BASE_COUNT(origins); i++) {
        char want[64];
        snprintf(fields, sizeof fields, "Origin: %s\r\n", origins[i]);
        snprintf(want, sizeof want, "Access-Control-Allow-Origin: %s\r\n", origins[i]);
        ask_as(&c, "GET", fields);
        assert_true(contains(&c.body, want));
        assert_false(contains(&c.body, "Access-Control-Allow-Credentials"));
        client_release(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_session_is_its_keys),
        RIG_TEST(json_endpoints), RIG_TEST(reading_endpoints), RIG_TEST(forms), RIG_TEST(fields_both_ways), RIG_TEST(key_of_a_replica), RIG_TEST(keys_of_clients),
        RIG_TEST(capacity_is_asked), RIG_TEST(refused_key), RIG_TEST(unknown_model), RIG_TEST(probes), RIG_TEST(no_websocket), RIG_TEST(pages_read_own_answers), RIG_TEST(hostile_origins),
    };
    return cmocka_run_group_tests_name("proxy_endpoints", tests, NULL, NULL);
}
