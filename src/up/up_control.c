/* SPDX-License-Identifier: MIT
 *
 * The control socket's server, and rolling restarts, which are asked for there. Only peers of our own account and root are
 * served. The admin listener has those of its handlers that end nothing. A request that must wait (for the router's numbers, for a service to be ready again) is kept in a list; a client that leaves takes
 * its request out of it, and what it has begun goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "up_int.h"

#define DRAIN_S 900      /* of a drain that says no limit itself */
#define DRAIN_MAX_S 86400
#define CONNECTIONS_MAX 64 /* at once, at each listener */

/* ---- answers ------------------------------------------------------------------------------------------- */

/* rc: of making the body. */
static void answer(struct httpio_exchange *x, unsigned status, int rc, const struct buf *b)
{
    if (rc < 0 || buf_status(b) < 0)
        httpio_respond(x, 500, "application/json", STR("{\"error\":\"out of memory\"}"));
    else
        httpio_respond(x, status, "application/json", buf_str(b));
}

static void answer_error(struct httpio_exchange *x, unsigned status, const char *text)
{
    base_autobuf struct buf b = BUF_INIT(UP_TEXT_MAX);
    struct json_out *o = json_out_new();
    int rc = o ? 0 : -ENOMEM;
    if (o) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "error", text);
        json_out_end(o);
        rc = json_out_finish(o, false, &b);
    }
    json_out_free(o);
    answer(x, status, rc, &b);
}

static void answer_status(struct up *u, struct httpio_exchange *x)
{
    base_autobuf struct buf b = BUF_INIT(UP_TEXT_MAX);
    int rc = up_status_text(u, u->fleet, &b);
    answer(x, 200, rc, &b);
}

static void answer_metrics(struct up *u, struct httpio_exchange *x)
{
    httpio_respond(x, 200, "text/plain; version=0.0.4", buf_str(&u->router.metrics));
}

/* False: it is answered with an error. */
static bool keep(struct up *u, struct httpio_exchange *x, enum up_wants wants)
{
    struct up_request *r = calloc(1, sizeof(*r));
    if (!r) {
        answer_error(x, 500, "out of memory");
        return false;
    }
    *r = (struct up_request){.next = u->control.requests, .x = x, .wants = wants};
    u->control.requests = r;
    return true;
}

/* The next kept request of a kind and serial (0: any), no longer kept; NULL when there is none. */
static struct httpio_exchange *take_kept(struct up *u, enum up_wants wants, uint64_t serial)
{
    for (struct up_request **at = &u->control.requests; *at; at = &(*at)->next) {
        struct up_request *r = *at;
        if (r->wants != wants || (serial && r->serial != serial))
            continue;
        struct httpio_exchange *x = r->x;
        *at = r->next;
        free(r);
        return x;
    }
    return NULL;
}

static bool waits(const struct up *u, enum up_wants wants)
{
    for (const struct up_request *r = u->control.requests; r; r = r->next)
        if (r->wants == wants)
            return true;
    return false;
}

static void wait_no_more(struct up *u)
{
    if (u->control.timer && !waits(u, UP_WANTS_STATUS) && !waits(u, UP_WANTS_METRICS) && !waits(u, UP_WANTS_ANSWER)) {
        net_timer_stop(u->control.timer);
        u->control.waiting = false;
    }
}

/* From the first that waits; one that comes later waits less, and only when the router says nothing. */
static void wait_begin(struct up *u)
{
    if (!u->control.waiting)
        net_timer_start(u->control.timer, UP_STATS_MS, 0);
    u->control.waiting = true;
}

static void answer_questions(struct up *u)
{
    struct httpio_exchange *x;
    while ((x = take_kept(u, UP_WANTS_ANSWER, 0)))
        answer_error(x, 503, "the router does not answer");
}

void up_control_stats(struct up *u)
{
    struct httpio_exchange *x;
    while ((x = take_kept(u, UP_WANTS_STATUS, 0)))
        answer_status(u, x);
    while ((x = take_kept(u, UP_WANTS_METRICS, 0)))
        answer_metrics(u, x);
    if (!up_router_alive(u))
        answer_questions(u);
    wait_no_more(u);
}

void up_control_answer(struct up *u, uint64_t serial, unsigned status, struct str body)
{
    struct httpio_exchange *x = up_web_answer(u, serial, status, body) ? NULL : take_kept(u, UP_WANTS_ANSWER, serial);
    if (x)
        httpio_respond(x, status, "application/json", body);
    wait_no_more(u);
}

/* What the router has not said in time is left out. */
static void on_late(void *ctx)
{
    struct up *u = ctx;
    answer_questions(u);
    up_control_stats(u);
}

/* ---- rolling restarts -------------------------------------------------------------------------------------- */

void up_restart_end(struct up *u, const char *text)
{
    struct up_restart *r = &u->restart;
    struct httpio_exchange *x;
    if (!r->at)
        return;
    *r = (struct up_restart){.done = r->done};
    while ((x = take_kept(u, UP_WANTS_RESTART, 0))) {
        base_autobuf struct buf b = BUF_INIT(256);
        buf_addf(&b, "{\"restarted\":%zu}", r->done);
        if (text)
            answer_error(x, 500, text);
        else
            answer(x, 200, 0, &b);
    }
}

/* The next one of a rolling restart that is up; services on demand that are down stay so. */
static struct up_service *next_to_restart(struct up *u)
{
    while (u->restart.index < u->n_services && up_demand_leaves(u->services[u->restart.index]))
        u->restart.index++;
    return u->restart.index < u->n_services ? u->services[u->restart.index] : NULL;
}

static void restart_begin(struct up *u, struct up_service *s)
{
    u->restart.at = s;
    u->restart.started = false;
    struct run_info i;
    run_info(s->run, &i);
    if (i.state == RUN_ABSENT)
        up_restart_step(u, s->run);
    else
        run_stop(s->run, RUN_DRAIN_MS);
}

static void restart_failed(struct up *u, struct up_service *s)
{
    struct run_info i;
    base_autobuf struct buf b = BUF_INIT(UP_TEXT_MAX);
    run_info(s->run, &i);
    buf_addf(&b, "service '%s': %s", s->service->name, i.error ? i.error : "did not start");
    const char *text = buf_status(&b) == 0 ? b.ptr : "did not start";
    up_say(u, EVENT_ERROR, "restart", "%s", text);
    up_restart_end(u, text);
}

void up_restart_step(struct up *u, struct run_service *run)
{
    struct up_restart *r = &u->restart;
    struct run_info i;
    if (!r->at || r->at->run != run || u->phase != UP_SERVING)
        return;
    run_info(run, &i);
    if (i.state == RUN_ABSENT && !r->started) {
        struct err err;
        if (up_service_renew(r->at, &err) < 0) {
            struct up_service *us = r->at;
            up_restart_end(u, err.text);
            if (up_on_demand(us))
                up_demand_state(us, RUN_ABSENT);
            return;
        }
        r->started = true;
        base_ignore(run_start(run, NULL)); /* a failure is a state, which comes back here */
    } else if (i.state == RUN_FAILED && r->started) {
        restart_failed(u, r->at);
    } else if (i.state == RUN_READY && r->started) {
        r->done++;
        r->index++;
        struct up_service *next = r->all ? next_to_restart(u) : NULL;
        if (next)
            restart_begin(u, next);
        else
            up_restart_end(u, NULL);
    }
}

static void restart_ask(struct up *u, struct httpio_exchange *x, struct up_service *s, bool all)
{
    u->restart = (struct up_restart){.all = all};
    if (all)
        s = next_to_restart(u);
    if (!s)
        httpio_respond(x, 200, "application/json", STR("{\"restarted\":0}"));
    else if (keep(u, x, UP_WANTS_RESTART))
        restart_begin(u, s);
}

static void on_restart(struct up *u, struct httpio_exchange *x, struct str query)
{
    struct up_service *s = u->n_services > 0 ? u->services[0] : NULL;
    bool all = query.len == 0;
    if (!all && !str_starts(query, STR("service="))) {
        answer_error(x, 400, "the query is 'service=NAME' or empty");
        return;
    }
    if (!all) {
        query.ptr += 8;
        query.len -= 8;
        s = up_service_named(u, query);
    }
    struct err err;
    if (up_may_change(u, &err) < 0)
        answer_error(x, 409, err.text);
    else if (!s)
        answer_error(x, 404, "no such service runs here");
    else if (!all && up_demand_leaves(s))
        httpio_respond(x, 200, "application/json", STR("{\"restarted\":0}")); /* its next start is a new one */
    else
        restart_ask(u, x, s, all);
}

/* ---- server ---------------------------------------------------------------------------------------------------- */

static void wait_for_stats(struct up *u, struct httpio_exchange *x, enum up_wants wants)
{
    if (!keep(u, x, wants))
        return;
    if (up_router_ask(u))
        wait_begin(u);
    else
        up_control_stats(u);
}

/* What only the router knows. */
static void ask_router(struct up *u, struct httpio_exchange *x, const struct http_head *head)
{
    if (!keep(u, x, UP_WANTS_ANSWER))
        return;
    u->control.requests->serial = ++u->control.serial;
    if (up_router_question(u, u->control.serial, head->method, head->target))
        wait_begin(u);
    else
        answer_questions(u);
}

static void on_status(struct up *u, struct httpio_exchange *x, struct str query)
{
    (void)query;
    wait_for_stats(u, x, UP_WANTS_STATUS);
}

static void on_metrics(struct up *u, struct httpio_exchange *x, struct str query)
{
    (void)query;
    wait_for_stats(u, x, UP_WANTS_METRICS);
}

static void on_down(struct up *u, struct httpio_exchange *x, struct str query)
{
    (void)query;
    httpio_respond(x, 200, "application/json", STR("{\"stopping\":true}"));
    up_stop(u);
}

/* service=NAME and, for a service that others start, for=SECONDS, after which the drain ends by itself. */
static bool read_drain(struct str query, struct str *ret_name, uint64_t *ret_seconds)
{
    static const struct str service = {"service=", 8}, limit = {"for=", 4};
    struct str rest = query, name = str_split(&rest, '&');
    if (!str_starts(name, service))
        return false;
    *ret_name = (struct str){name.ptr + service.len, name.len - service.len};
    *ret_seconds = DRAIN_S;
    if (!rest.len)
        return true;
    if (!str_starts(rest, limit))
        return false;
    struct str digits = {rest.ptr + limit.len, rest.len - limit.len};
    return str_to_u64(digits, ret_seconds) == 0 && *ret_seconds > 0 && *ret_seconds <= DRAIN_MAX_S;
}

/* The router gives it nothing new, what it works on it ends. */
static void set_drained(struct up *u, struct httpio_exchange *x, struct str query, bool drained)
{
    struct str name;
    uint64_t seconds;
    if (!read_drain(query, &name, &seconds)) {
        answer_error(x, 400, "the query is 'service=NAME' or 'service=NAME&for=SECONDS'");
        return;
    }
    struct up_service *s = up_service_named(u, name);
    if (s) {
        s->drained = drained;
        up_router_tell(u);
    } else if (!up_watch_drain(u, name, drained ? seconds * 1000 : 0)) {
        answer_error(x, 404, "no such service is known here");
        return;
    }
    httpio_respond(x, 200, "application/json", drained ? STR("{\"drained\":true}") : STR("{\"drained\":false}"));
}

static void on_drain(struct up *u, struct httpio_exchange *x, struct str query)
{
    set_drained(u, x, query, true);
}

static void on_resume(struct up *u, struct httpio_exchange *x, struct str query)
{
    set_drained(u, x, query, false);
}

/* berth's own, to ask the router as clients do. */
static void on_key(struct up *u, struct httpio_exchange *x, struct str query)
{
    base_autobuf struct buf b = BUF_INIT(256);
    (void)query;
    if (u->keys.own[0])
        buf_addf(&b, "{\"key\":\"%s\"}", u->keys.own);
    else
        buf_add_c(&b, "{\"key\":null}");
    answer(x, 200, 0, &b);
}

static void on_reload(struct up *u, struct httpio_exchange *x, struct str query)
{
    base_autobuf struct buf b = BUF_INIT(UP_TEXT_MAX);
    struct err err;
    (void)query;
    int rc = up_reload(u, &b, &err);
    if (rc == 0)
        answer(x, 200, 0, &b);
    else
        answer_error(x, rc == -EAGAIN ? 409 : 422, err.text);
}

static void on_upgrade_time(void *ctx)
{
    struct up *u = ctx;
    u->upgrade.wanted = true;
    net_loop_stop(u->loop);
}

/* The answer is out before the exec, which the timer's turn waits for. */
static void on_upgrade(struct up *u, struct httpio_exchange *x, struct str query)
{
    struct err err;
    (void)query;
    if (!u->upgrade.timer)
        u->upgrade.timer = net_timer_new(u->loop, on_upgrade_time, u);
    int rc = u->upgrade.timer ? up_upgrade_ask(u, &err) : err_nomem(&err);
    if (rc < 0) {
        answer_error(x, rc == -EAGAIN ? 409 : 422, err.text);
        return;
    }
    base_autobuf struct buf b = BUF_INIT(64);
    buf_addf(&b, "{\"upgrades\":%llu}", (unsigned long long)u->upgrade.done);
    answer(x, 200, 0, &b);
    up_router_ask_index(u); /* what its last seconds taught: the next one begins with it */
    net_timer_start(u->upgrade.timer, UP_UPGRADE_MS, 0);
}

static const struct route {
    const char *method, *path;
    void (*handle)(struct up *u, struct httpio_exchange *x, struct str query);
    bool admin; /* the admin listener has it too, where nobody's account is known */
} routes[] = {
    {"GET", "/status", on_status, true},   {"GET", "/metrics", on_metrics, true},   {"POST", "/drain", on_drain, true},
    {"POST", "/resume", on_resume, true},  {"POST", "/down", on_down, false},       {"POST", "/restart", on_restart, false},
    {"POST", "/reload", on_reload, false},  {"GET", "/key", on_key, false},
    {"POST", "/upgrade", on_upgrade, false},
};

/* Whether a browser was not led here by another page: it names this place as one does that means it, an address or localhost, and any page that asks is ours. */
static bool is_meant(const struct http_head *head)
{
    struct str host = http_field_get(head, "host"), origin = http_field_get(head, "origin"), rest = host, name, port;
    struct net_addr a;
    char ip[NET_HOST_MAX];
    if (host.len && host.ptr[0] == '[') {
        rest = (struct str){host.ptr + 1, host.len - 1};
        name = str_split(&rest, ']');
        if (!rest.ptr || (rest.len && rest.ptr[0] != ':'))
            return false;
    } else {
        name = str_split(&rest, ':');
    }
    snprintf(ip, sizeof ip, STR_FMT, STR_ARG(name));
    if (name.len >= sizeof ip || fleet_has_bad_port(host, &port) || !http_field_once(head, "origin") || (!str_eq_nocase(name, STR("localhost")) && net_addr_ip(ip, 0, &a) < 0))
        return false;
    return !origin.ptr || (str_starts(origin, STR("http://")) && str_eq((struct str){origin.ptr + 7, origin.len - 7}, host));
}

/* NULL: it may; else why not. */
static const char *may_not(const struct httpio_exchange *x, const struct http_head *head, bool *ret_admin)
{
    pid_t pid;
    uid_t uid;
    *ret_admin = httpio_exchange_cred(x, &pid, &uid) < 0;
    bool acts = !str_eq_c(head->method, "GET") && !str_eq_c(head->method, "HEAD");
    if (*ret_admin && (!is_meant(head) || (acts && !up_web_may_act(head))))
        return "the admin listener is asked by its address or as localhost, and by its own pages";
    if (*ret_admin)
        return NULL;
    return uid == 0 || uid == geteuid() ? NULL : "this socket serves the account that started the fleet, and root";
}

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct up *u = ctx;
    struct str query = head->target;
    struct str path = str_split(&query, '?');
    bool admin;
    const char *why = may_not(x, head, &admin);
    if (why) {
        answer_error(x, 403, why);
        return;
    }
    if (str_eq_c(path, "/requests") || str_starts(path, STR("/requests/"))) {
        ask_router(u, x, head);
        return;
    }
    for (size_t i = 0; i < BASE_COUNT(routes); i++) {
        const struct route *r = &routes[i];
        if (str_eq_c(head->method, r->method) && str_eq_c(path, r->path) && (r->admin || !admin)) {
            r->handle(u, x, query);
            return;
        }
    }
    if (admin && up_web_request(u, x, head))
        return;
    base_autobuf struct buf text = BUF_INIT(1024);
    buf_addf(&text, "there are GET /status, GET /metrics, GET /requests, GET /requests/ID, POST /requests/ID/cancel, POST /drain, POST /resume%s", admin ? "" : ", GET /key, POST /reload, POST /upgrade, POST /restart and POST /down");
    answer_error(x, 404, buf_status(&text) == 0 ? text.ptr : "not here");
}

static void on_writable(void *ctx, struct httpio_exchange *x)
{
    up_web_drained(ctx, x);
}

/* A client that left before its answer. */
static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    struct up *u = ctx;
    (void)completed;
    up_web_done(u, x);
    for (struct up_request **at = &u->control.requests; *at; at = &(*at)->next) {
        struct up_request *r = *at;
        if (r->x != x)
            continue;
        *at = r->next;
        free(r);
        return;
    }
}

/* One for each listener: nobody at the admin listener, which asks who it is of nobody, takes the connections of who may end the fleet. Owns fd. */
static int serve(struct up *u, struct httpio_server **server, int fd, struct err *err)
{
    static const struct httpio_server_ops ops = {.on_request = on_request, .on_drain = on_writable, .on_done = on_done};
    struct httpio_limits limits = HTTPIO_LIMITS_DEFAULT;
    limits.connections = CONNECTIONS_MAX;
    *server = httpio_server_new(u->loop, &limits, &ops, u);
    if (!*server) {
        close(fd);
        return err_nomem(err);
    }
    return httpio_server_add(*server, fd, err);
}

int up_control_open(struct up *u, struct err *err)
{
    struct net_addr a;
    if (net_addr_unix(u->paths.sock, &a) < 0)
        return err_set(err, -ENAMETOOLONG, "path '%s' is too long for a socket; set BERTH_RUN to a shorter folder", u->paths.sock);
    int fd = u->upgrade.state ? up_resume_fd(u, "control_fd") : -1;
    if (fd < 0)
        fd = net_listen_socket(&a, false, err);
    if (fd < 0)
        return fd;
    u->control.kept_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (u->control.admin_fd >= 0)
        u->control.kept_admin_fd = fcntl(u->control.admin_fd, F_DUPFD_CLOEXEC, 3);
    u->control.timer = net_timer_new(u->loop, on_late, u);
    if (!u->control.timer) {
        close(fd);
        return err_nomem(err);
    }
    int rc = serve(u, &u->control.server, fd, err);
    if (rc == 0 && u->control.admin_fd >= 0)
        rc = serve(u, &u->control.admin_server, os_take_fd(&u->control.admin_fd), err);
    return rc;
}

void up_control_close(struct up *u)
{
    /* Its exchanges end here, and each takes its request out of the list. */
    u->control.server = httpio_server_free(u->control.server);
    u->control.admin_server = httpio_server_free(u->control.admin_server);
    os_closep(&u->control.admin_fd);
    os_closep(&u->control.kept_fd);
    os_closep(&u->control.kept_admin_fd);
    up_web_close(u);
    if (u->loop)
        u->control.timer = net_timer_close(u->control.timer);
    if (u->paths.sock && u->lock_fd >= 0)
        (void)unlink(u->paths.sock);
}
