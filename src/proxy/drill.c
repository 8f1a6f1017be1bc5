/* SPDX-License-Identifier: MIT
 *
 * The failure drill: the fleet's own endpoints with their policies, aliases and slots, in a router of its own on ports that the system chose. What runs is not touched. Its patience is
 * shortened, so that silence is a failure after milliseconds. Every case begins with replicas that nothing is held against.
 */
#include <errno.h>

#include <os/os.h>

#include "drill_int.h"

/* ---- waiting ------------------------------------------------------------------------------------------------ */

void drill_poke(struct drill *d)
{
    net_loop_stop(d->loop);
}

uint64_t drill_now_us(void)
{
    return clk_system.mono_us(clk_system.ctx);
}

static void on_limit(void *ctx)
{
    struct drill *d = ctx;
    d->expired = true;
    drill_poke(d);
}

static bool is_true(void *ctx)
{
    return *(const bool *)ctx;
}

static bool run_until(struct drill *d, uint64_t step_ms, bool (*is)(void *ctx), void *ctx)
{
    uint64_t until = drill_now_us() + (uint64_t)DRILL_WAIT_MS * 1000;
    while (!is(ctx)) {
        if (drill_now_us() >= until)
            return false;
        net_timer_start(d->limit, step_ms, 0);
        net_loop_run(d->loop);
    }
    net_timer_stop(d->limit);
    return true;
}

bool drill_wait(struct drill *d, const bool *what)
{
    return run_until(d, DRILL_WAIT_MS, is_true, (void *)(uintptr_t)what);
}

bool drill_until(struct drill *d, bool (*is)(void *ctx), void *ctx)
{
    return run_until(d, 2, is, ctx);
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

static void on_head(void *ctx, const struct http_head *head)
{
    struct drill_client *c = ctx;
    struct str replica = http_field_get(head, "x-berth-replica");
    c->status = head->status;
    c->retry_after = http_field_get(head, "retry-after").ptr;
    snprintf(c->replica, sizeof c->replica, STR_FMT, STR_ARG(replica));
    drill_poke(c->drill);
}

static void on_body(void *ctx, struct str data)
{
    struct drill_client *c = ctx;
    uint64_t late = drill_now_us() - c->drill->sent_us;
    c->pieces++;
    if (late > c->late_us)
        c->late_us = late;
    buf_add_str(&c->body, data);
    drill_poke(c->drill);
}

static void on_end(void *ctx)
{
    struct drill_client *c = ctx;
    c->call = NULL;
    c->done = true;
    drill_poke(c->drill);
}

static void on_fail(void *ctx, enum httpio_failure f, const char *text)
{
    struct drill_client *c = ctx;
    (void)f, (void)text;
    c->call = NULL;
    c->done = c->failed = true;
    drill_poke(c->drill);
}

int drill_ask(struct drill *d, struct drill_client *c, const char *target, struct str body)
{
    static const struct httpio_call_ops ops = {.on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};
    char bearer[HTTPIO_BEARER_MAX];
    struct http_field fields[2] = {HTTPIO_FIELD(STR("Content-Type"), STR("application/json"))};
    size_t n = 1 + httpio_bearer(d->key, bearer, &fields[1]);
    *c = (struct drill_client){.drill = d, .body = BUF_INIT(2 * DRILL_BODY_MAX)};
    struct httpio_request q = {.addr = d->addr, .method = STR("POST"), .target = str_of(target), .fields = fields, .n_fields = n, .body = body, .fresh = true};
    return httpio_call(d->http, &q, &ops, c, &c->call, NULL);
}

void drill_client_release(struct drill_client *c)
{
    c->call = httpio_call_cancel(c->call);
    buf_release(&c->body);
}

/* ---- the router --------------------------------------------------------------------------------------------- */

/* The fleet with every service on a mock's port. */
static int make_config(struct drill *d, bool ready, struct buf *out)
{
    const struct fleet *f = d->fleet;
    struct fleet copy = *f;
    struct proxy_state *states = calloc(f->n_services, sizeof *states);
    struct fleet_service *services = calloc(f->n_services, sizeof *services);
    struct fleet_endpoint *endpoints = calloc(f->n_endpoints, sizeof *endpoints);
    const struct fleet_service **pointers = calloc(f->n_services * f->n_endpoints, sizeof(const struct fleet_service *));
    int rc = states && services && endpoints && pointers ? 0 : -ENOMEM;
    d->generation++;
    for (size_t i = 0; rc == 0 && i < f->n_services; i++) {
        services[i] = f->services[i];
        services[i].host = NULL;
        services[i].bind = "127.0.0.1";
        services[i].port = drill_mock_port(d->mocks[i]);
        states[i] = (struct proxy_state){.service = &services[i], .ready = ready, .generation = d->generation};
    }
    for (size_t i = 0; rc == 0 && i < f->n_endpoints; i++) {
        endpoints[i] = f->endpoints[i];
        endpoints[i].services = pointers + i * f->n_services;
        for (size_t k = 0; k < f->endpoints[i].n_services; k++)
            pointers[i * f->n_services + k] = &services[f->endpoints[i].services[k] - f->services];
    }
    copy.services = services;
    copy.endpoints = endpoints;
    if (rc == 0)
        rc = proxy_config_text(&copy, states, f->n_services, out);
    free(states);
    free(services);
    free(endpoints);
    free(pointers);
    return rc;
}

int drill_arm(struct drill *d, enum drill_mode mode, size_t live, bool ready, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    struct proxy_config *c;
    int rc = 0;
    bool breaks = drill_breaks(mode);
    d->breaks_left = d->n > 1 ? 1 : UINT32_MAX;
    for (size_t i = 0; rc == 0 && i < d->n; i++)
        rc = drill_mock_set(d->replicas[i], i == live && !breaks ? DRILL_GOOD : mode, err);
    if (rc == 0 && (rc = make_config(d, ready, &text)) < 0)
        return err_set(err, rc, "the router's configuration cannot be written");
    if (rc == 0)
        rc = proxy_config_parse(buf_str(&text), &c, err);
    if (rc == 0)
        proxy_set_config(d->proxy, c);
    return rc;
}

/* Where clients of the fleet need a key those of the drill have one, of their own. */
static int make_key(struct drill *d, struct err *err)
{
    unsigned char hash[PROXY_KEY_HASH];
    char hex[2 * PROXY_KEY_HASH + 1];
    base_autobuf struct buf text = BUF_INIT(256);
    struct proxy_keys *k;
    if (!d->fleet->router.keys_file)
        return 0;
    int rc = proxy_key_new(d->key, err);
    if (rc < 0)
        return rc;
    rc = proxy_key_hash(str_of(d->key), hash);
    if (rc < 0)
        return err_sys(err, rc, "cannot hash a key");
    buf_addf(&text, "drill sha256:%s\n", os_hex(hash, sizeof hash, hex));
    if (buf_status(&text) < 0)
        return err_nomem(err);
    rc = proxy_keys_parse(buf_str(&text), "drill", &k, err);
    if (rc == 0)
        proxy_set_keys(d->proxy, k);
    return rc;
}

static int start(struct drill *d, struct err *err)
{
    struct net_addr a;
    int rc = net_loop_new(&d->loop, err);
    d->mocks = calloc(d->fleet->n_services, sizeof(struct drill_mock *));
    d->replicas = calloc(d->fleet->n_services, sizeof(struct drill_mock *));
    if (rc == 0 && (!d->mocks || !d->replicas))
        return err_nomem(err);
    if (rc == 0)
        rc = proxy_new(d->loop, 1, &d->proxy, err);
    if (rc == 0)
        rc = make_key(d, err);
    if (rc < 0)
        return rc;
    d->proxy->tick_ms = 5;
    d->proxy->heartbeat_ms = DRILL_BEAT_MS;
    d->proxy->hang_ms = DRILL_HANG_MS;
    d->http = httpio_client_new(d->loop, &HTTPIO_CLIENT_DEFAULT);
    d->limit = net_timer_new(d->loop, on_limit, d);
    if (!d->http || !d->limit)
        return err_nomem(err);
    for (size_t i = 0; rc == 0 && i < d->fleet->n_services; i++)
        rc = drill_mock_new(d, &d->mocks[i], err);
    if (rc == 0)
        rc = net_addr_ip("127.0.0.1", 0, &a);
    int fd = rc < 0 ? rc : net_listen_socket(&a, false, err);
    if (fd < 0)
        return fd;
    rc = net_socket_addr(fd, &d->addr);
    int listened = proxy_listen(d->proxy, fd, err);
    return rc < 0 ? err_sys(err, rc, "cannot learn a socket's address") : listened;
}

static void stop(struct drill *d)
{
    d->http = httpio_client_free(d->http);
    d->proxy = proxy_free(d->proxy);
    for (size_t i = 0; d->mocks && i < d->fleet->n_services; i++)
        d->mocks[i] = drill_mock_free(d->mocks[i]);
    if (d->loop) {
        d->limit = net_timer_close(d->limit);
        d->loop = net_loop_free(d->loop);
    }
    free(d->mocks);
    free(d->replicas);
}

/* ---- the run -------------------------------------------------------------------------------------------------- */

static void choose_endpoint(struct drill *d, const struct fleet_endpoint *e)
{
    d->endpoint = e;
    d->n = e->n_services;
    d->pins = e->n_services > 0;
    d->slots = 0;
    bool bounded = true;
    for (size_t i = 0; i < e->n_services; i++) {
        const struct fleet_service *s = e->services[i];
        d->replicas[i] = d->mocks[s - d->fleet->services];
        d->pins = d->pins && strcmp(s->runtime->engine, "llama.cpp") == 0;
        bounded = bounded && strcmp(s->runtime->engine, "generic") != 0 && s->shape.slots;
        d->slots += s->shape.slots;
    }
    if (!bounded)
        d->slots = 0;
}

static void run_case(struct drill *d, const struct drill_case *c, unsigned repeat, struct proxy_drill_case *r)
{
    uint64_t sum = 0;
    *r = (struct proxy_drill_case){.endpoint = d->endpoint->name, .name = c->name, .expects = d->n < 2 && drill_moves(c) ? "an error in the client's form" : c->expects};
    for (unsigned i = 0; i < repeat; i++) {
        uint64_t began = drill_now_us();
        d->why[0] = '\0';
        enum drill_verdict v = c->run(d, c, i % d->n);
        uint64_t took = drill_now_us() - began;
        if (v == DRILL_SKIPPED) {
            snprintf(r->why, sizeof r->why, "%s", d->why);
            return;
        }
        r->runs++;
        sum += took;
        if (took > r->max_us)
            r->max_us = took;
        if (v == DRILL_FAILED && r->failed++ == 0)
            snprintf(r->why, sizeof r->why, "%s", d->why[0] ? d->why : "no reason given");
    }
    r->mean_us = r->runs ? sum / r->runs : 0;
}

int proxy_drill(const struct fleet *f, unsigned repeat, void (*tell)(void *ctx, const struct proxy_drill_case *c), void *ctx, struct err *err)
{
    struct drill d = {.fleet = f};
    int rc = start(&d, err);
    for (size_t e = 0; rc == 0 && e < f->n_endpoints; e++) {
        choose_endpoint(&d, &f->endpoints[e]);
        for (size_t i = 0; d.n && i < drill_n_cases; i++) {
            struct proxy_drill_case r;
            run_case(&d, &drill_cases[i], repeat, &r);
            tell(ctx, &r);
        }
    }
    stop(&d);
    return rc;
}
