/* SPDX-License-Identifier: MIT
 *
 * How a deploy tells the fleet's router. Where the router is up, over its control socket; a berth that another machine has sent for asks that one by a line on its output, which does it there or on the machine where the router is:
 *
 *   router drain|resume|ask SERVICE        "0 done", "2 no router is up", "110 ..." on the standard input
 *
 * A drain ends by itself after DRAIN_S, since whoever asked may die; it is asked for again by the next deploy.
 */
#include "deploy_int.h"

#include <errno.h>
#include <probe/probe.h>
#include <proxy/proxy.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <up/up.h>

#define DRAIN_S 900
#define DRAIN_MS 600000u /* that requests under way may take; less than the drain lasts */
#define RESUME_MS 30000u /* that a router takes to see that a service is well */
#define STEP_MS 50
#define ANSWER_MAX (8u << 20)
#define NAMES_MAX 8u     /* of an endpoint that are asked: its own and its first aliases */

/* ---- the control socket --------------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    return clk_system.mono_us(NULL) / 1000;
}

/* -ENOENT: not up, or not known there. */
static int call(const struct deploy_router_here *h, const char *method, const char *target, struct buf *body, struct err *err)
{
    unsigned status = 0;
    int r = up_call(h->dirs, h->fleet->name, method, target, &status, body, err);
    if (r == 0 && status == 404)
        return err_set(err, -ENOENT, "the router does not know it");
    return r == 0 && status != 200 ? err_set(err, -EIO, "it answers %u", status) : r;
}

struct replica {
    bool known, ready;
    uint64_t busy;
};

/* As the router's worker has it. A router that cannot say just now has no replicas. */
static int look(const struct deploy_router_here *h, const char *service, struct replica *ret, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(ANSWER_MAX);
    struct json *j = NULL;
    *ret = (struct replica){0};
    int r = call(h, "GET", "/requests", &body, err);
    if (r == -EIO)
        return 0;
    if (r == 0)
        r = json_parse(buf_str(&body), &j, err);
    json_val all = r == 0 ? json_get(json_root(j), "replicas") : NULL;
    for (size_t i = 0; i < json_count(all); i++)
        if (str_eq_c(json_get_str(json_at(all, i), "name", ""), service))
            *ret = (struct replica){true, json_get_bool(json_at(all, i), "ready"), json_get_u64(json_at(all, i), "busy")};
    json_free(j);
    return r;
}

static int wait_until(const struct deploy_router_here *h, const char *service, bool ready, uint64_t limit_ms, struct err *err)
{
    uint64_t until = now_ms() + limit_ms;
    for (;;) {
        struct replica now;
        int r = look(h, service, &now, err);
        if (r < 0)
            return r;
        if (now.known && now.ready == ready && (ready || now.busy == 0))
            return 0;
        if (now_ms() >= until && !now.known)
            return err_set(err, -ETIMEDOUT, "the router does not say what it does");
        if (now_ms() >= until && ready)
            return err_set(err, -ETIMEDOUT, "it is not well for the router: 'berth status' says why");
        if (now_ms() >= until)
            return err_set(err, -ETIMEDOUT, "%llu requests have not ended in %u minutes; 'berth top' shows them", (unsigned long long)now.busy, DRAIN_MS / 60000);
        const struct timespec t = {.tv_nsec = STEP_MS * 1000000L};
        (void)nanosleep(&t, NULL);
    }
}

/* ---- as clients ask ----------------------------------------------------------------------------------------------- */

struct asking {
    struct net_loop *loop;
    int status;
    struct err *err;
};

static void on_battery(void *ctx, int status, const struct err *err)
{
    struct asking *a = ctx;
    a->status = status;
    if (status < 0 && a->err)
        *a->err = *err;
    net_loop_stop(a->loop);
}

static int ask_names(const struct fleet_service *s, const struct probe_door *door, struct err *err)
{
    struct asking a = {.status = -EINPROGRESS, .err = err};
    int r = net_loop_new(&a.loop, err);
    if (r < 0)
        return r;
    struct httpio_client *c = httpio_client_new(a.loop, &HTTPIO_CLIENT_DEFAULT);
    if (c && probe_battery_start(a.loop, c, s, door, on_battery, &a))
        net_loop_run(a.loop);
    else
        a.status = err_nomem(err);
    httpio_client_free(c);
    net_loop_free(a.loop);
    return a.status;
}

/* "http://127.0.0.1:8080" or "unix:/run/x.sock", as the status has it. False: nothing that is spoken here. */
static bool read_url(const char *url, struct net_addr *ret)
{
    char host[NET_HOST_MAX];
    uint64_t port;
    if (strncmp(url, "unix:", 5) == 0)
        return net_addr_unix(url + 5, ret) == 0;
    const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : NULL, *colon = at ? strrchr(at, ':') : NULL;
    if (!colon || str_to_u64(str_of(colon + 1), &port) < 0 || port > UINT16_MAX)
        return false;
    bool brackets = *at == '[' && colon > at + 1;
    int n = snprintf(host, sizeof host, "%.*s", (int)(colon - at) - 2 * brackets, at + brackets);
    return n > 0 && (size_t)n < sizeof host && net_addr_ip(host, (uint16_t)port, ret) == 0;
}

static int get(const struct deploy_router_here *h, const char *target, struct json **ret, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(ANSWER_MAX);
    int r = call(h, "GET", target, &body, err);
    return r < 0 ? r : json_parse(buf_str(&body), ret, err);
}

static bool holds(json_val list, const char *name)
{
    struct str text;
    for (size_t i = 0; i < json_count(list); i++)
        if (json_str(json_at(list, i), &text) && str_eq_c(text, name))
            return true;
    return false;
}

/* A name that the router has for the service; one that it has not read yet is none of its own to answer. */
static bool router_has(json_val status, const char *service, const char *endpoint, const char *name)
{
    json_val all = json_get(status, "endpoints");
    for (size_t i = 0; i < json_count(all); i++) {
        json_val e = json_at(all, i);
        if (str_eq_c(json_get_str(e, "name", ""), endpoint) && holds(json_get(e, "services"), service))
            return strcmp(name, endpoint) == 0 || holds(json_get(e, "aliases"), name);
    }
    return false;
}

static int ask_endpoint(const struct deploy_router_here *h, json_val status, const struct fleet_endpoint *e, const struct fleet_service *s, struct probe_door *door, struct err *err)
{
    const char *names[NAMES_MAX];
    door->models = names;
    door->n_models = 0;
    for (size_t i = 0; i <= e->n_aliases && door->n_models < NAMES_MAX; i++) {
        const char *name = i == 0 ? e->name : e->aliases[i - 1];
        if (router_has(status, s->name, e->name, name))
            names[door->n_models++] = name;
        else
            event_say(h->sink, EVENT_INFO, s->name, "the router has not read of '%s' yet: 'berth reload' there", name);
    }
    int r = ask_names(s, door, err);
    door->models = NULL;
    return r;
}

/* Every endpoint that the service is of, with the router's own address and berth's own key. */
static int ask_all(const struct deploy_router_here *h, json_val status, json_val key, const struct fleet_service *s, struct err *err)
{
    char url[PROXY_URL_TEXT + 256], secret[256];
    struct probe_door door = {0};
    snprintf(url, sizeof url, STR_FMT, STR_ARG(json_get_str(json_get(status, "router"), "url", "")));
    snprintf(secret, sizeof secret, STR_FMT, STR_ARG(json_get_str(key, "key", "")));
    if (!read_url(url, &door.addr)) {
        event_say(h->sink, EVENT_INFO, s->name, "the router speaks TLS: it is not asked as clients ask");
        return 0;
    }
    door.key = *secret ? secret : NULL;
    int r = 0;
    for (size_t i = 0; r == 0 && i < h->fleet->n_endpoints; i++)
        for (size_t k = 0; r == 0 && k < h->fleet->endpoints[i].n_services; k++)
            if (h->fleet->endpoints[i].services[k] == s)
                r = ask_endpoint(h, status, &h->fleet->endpoints[i], s, &door, err);
    explicit_bzero(secret, sizeof secret);
    return r;
}

static int ask(const struct deploy_router_here *h, const char *service, struct err *err)
{
    struct json *status = NULL, *key = NULL;
    const struct fleet_service *s = fleet_service_find(h->fleet, service);
    int r = s ? get(h, "/status", &status, err) : err_set(err, -ENOENT, "the fleet has no such service");
    if (r == 0)
        r = get(h, "/key", &key, err);
    if (r == 0)
        r = ask_all(h, json_root(status), json_root(key), s, err);
    json_free(status);
    json_free(key);
    return r;
}

/* Whether it accepts, which a start takes a moment to. */
static int state(const struct deploy_router_here *h, struct err *err)
{
    struct json *status = NULL;
    int r = get(h, "/status", &status, err);
    if (r == 0 && !str_eq_c(json_get_str(json_get(json_root(status), "router"), "state", ""), "up"))
        r = err_set(err, -EAGAIN, "the router does not accept yet");
    json_free(status);
    return r;
}

/* ---- here ------------------------------------------------------------------------------------------------------------ */

int deploy_router_here(void *ctx, enum deploy_word what, const char *service, struct err *err)
{
    const struct deploy_router_here *h = ctx;
    base_autobuf struct buf body = BUF_INIT(65536);
    char target[FLEET_NAME_MAX + 64];
    if (what == DEPLOY_ASK)
        return ask(h, service, err);
    snprintf(target, sizeof target, what == DEPLOY_DRAIN ? "/drain?service=%s&for=%u" : "/resume?service=%s", service, DRAIN_S);
    int r = call(h, "POST", target, &body, err);
    return r < 0 ? r : wait_until(h, service, what == DEPLOY_RESUME, what == DEPLOY_DRAIN ? DRAIN_MS : RESUME_MS, err);
}

/* ---- over there ------------------------------------------------------------------------------------------------------- */

static int read_line(struct buf *out)
{
    for (;;) {
        char c;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -EPIPE;
        if (c == '\n')
            return buf_status(out);
        buf_add_char(out, c);
    }
}

/* -ENOENT when nobody is there any more: what was begun goes on without. */
int deploy_router_relay(void *ctx, enum deploy_word what, const char *service, struct err *err)
{
    const struct event_sink *sink = ctx;
    base_autobuf struct buf line = BUF_INIT(2 * ERR_TEXT_MAX);
    uint64_t code = 0;
    if (printf("router %s %s\n", deploy_word_text(what), service) < 0 || fflush(stdout) != 0 || read_line(&line) < 0) {
        event_say(sink, EVENT_WARN, service, "the router is not told: whoever would is gone");
        return err_set(err, -ENOENT, "whoever would tell the router is gone");
    }
    struct str text = buf_str(&line), first = str_split(&text, ' ');
    if (str_to_u64(first, &code) < 0 || code > 4095)
        return err_set(err, -EBADMSG, "what came back about the router is not understood");
    return code ? err_set(err, -(int)code, STR_FMT, STR_ARG(text)) : 0;
}

/* ---- for a deploy from another machine ------------------------------------------------------------------------------------ */

static int run_router(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, 2, &a, &code))
        return code;
    struct fleet *f = cmd_fleet(c, &a, &code);
    struct os_dirs dirs;
    struct err err = {0};
    if (!f)
        return code;
    if (os_dirs_find(&dirs, &err) < 0) {
        fleet_free(f);
        return cmd_fail(CMD_FAILED, &err);
    }
    const struct deploy_router_here here = {.dirs = &dirs, .fleet = f};
    int r = strcmp(a.words[0], "state") == 0 ? state(&here, &err) : err_set(&err, -EINVAL, "'%.20s' is not understood", a.words[0]);
    for (unsigned w = DEPLOY_DRAIN; a.n_words == 2 && w <= DEPLOY_ASK; w++)
        if (strcmp(a.words[0], deploy_word_text((enum deploy_word)w)) == 0)
            r = deploy_router_here((void *)(uintptr_t)&here, (enum deploy_word)w, a.words[1], &err);
    os_dirs_release(&dirs);
    fleet_free(f);
    base_autobuf struct buf out = BUF_INIT(2 * ERR_TEXT_MAX);
    buf_addf(&out, "%d %s\n", r < 0 ? -r : 0, r < 0 ? err.text : "done");
    return buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

const struct cmd cmd_router = {
    .name = "_router",
    .synopsis = "drain|resume|ask SERVICE | state -f FILE",
    .summary = "tell the router of a fleet that is up here",
    .description = "What a deploy on another machine tells the router. Prints a number, 0 for done, and why.",
    .options = {CMD_OPTION_FILE},
    .hidden = true,
    .run = run_router,
};
