/* SPDX-License-Identifier: MIT
 *
 * The control socket's server, and rolling restarts, which are asked for there. Only peers of our own account and root are
 * served. A request that must wait (for the router's numbers, for a service to be ready again) is kept in a list; a client that leaves takes
 * its request out of it, and what it has begun goes on.
 */
#include <errno.h>
#include <unistd.h>

#include "up_int.h"

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
    struct httpio_exchange *x = take_kept(u, UP_WANTS_ANSWER, serial);
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
        r->started = true;
        base_ignore(run_start(run, NULL)); /* a failure is a state, which comes back here */
    } else if (i.state == RUN_FAILED && r->started) {
        restart_failed(u, r->at);
    } else if (i.state == RUN_READY && r->started) {
        r->done++;
        size_t next = ++r->index;
        if (r->all && next < u->n_services)
            restart_begin(u, u->services[next]);
        else
            up_restart_end(u, NULL);
    }
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
    if (u->phase != UP_SERVING)
        answer_error(x, 409, u->phase == UP_STARTING ? "the fleet is still starting" : "the fleet is being stopped");
    else if (!s)
        answer_error(x, 404, "no such service runs here");
    else if (u->restart.at)
        answer_error(x, 409, "another restart is under way");
    else if (keep(u, x, UP_WANTS_RESTART)) {
        u->restart = (struct up_restart){.all = all};
        restart_begin(u, s);
    }
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

static bool may_ask(const struct httpio_exchange *x)
{
    pid_t pid;
    uid_t uid;
    return httpio_exchange_cred(x, &pid, &uid) == 0 && (uid == 0 || uid == geteuid());
}

static void on_request(void *ctx, struct httpio_exchange *x, const struct http_head *head)
{
    struct up *u = ctx;
    struct str query = head->target;
    struct str path = str_split(&query, '?');
    bool get = str_eq_c(head->method, "GET"), post = str_eq_c(head->method, "POST");
    if (!may_ask(x)) {
        answer_error(x, 403, "this socket serves the account that started the fleet, and root");
    } else if (get && str_eq_c(path, "/status")) {
        wait_for_stats(u, x, UP_WANTS_STATUS);
    } else if (get && str_eq_c(path, "/metrics")) {
        wait_for_stats(u, x, UP_WANTS_METRICS);
    } else if (str_eq_c(path, "/requests") || str_starts(path, STR("/requests/"))) {
        ask_router(u, x, head);
    } else if (post && str_eq_c(path, "/down")) {
        httpio_respond(x, 200, "application/json", STR("{\"stopping\":true}"));
        up_stop(u);
    } else if (post && str_eq_c(path, "/restart")) {
        on_restart(u, x, query);
    } else {
        answer_error(x, 404, "there are GET /status, GET /metrics, GET /requests, GET /requests/ID, POST /requests/ID/cancel, POST /down and POST /restart");
    }
}

/* A client that left before its answer. */
static void on_done(void *ctx, struct httpio_exchange *x, bool completed)
{
    struct up *u = ctx;
    (void)completed;
    for (struct up_request **at = &u->control.requests; *at; at = &(*at)->next) {
        struct up_request *r = *at;
        if (r->x != x)
            continue;
        *at = r->next;
        free(r);
        return;
    }
}

int up_control_open(struct up *u, struct err *err)
{
    static const struct httpio_server_ops ops = {.on_request = on_request, .on_done = on_done};
    struct httpio_limits limits = HTTPIO_LIMITS_DEFAULT;
    limits.connections = 64;
    struct net_addr a;
    if (net_addr_unix(u->paths.sock, &a) < 0)
        return err_set(err, -ENAMETOOLONG, "path '%s' is too long for a socket; set BERTH_RUN to a shorter folder", u->paths.sock);
    int fd = net_listen_socket(&a, false, err);
    if (fd < 0)
        return fd;
    u->control.timer = net_timer_new(u->loop, on_late, u);
    u->control.server = u->control.timer ? httpio_server_new(u->loop, &limits, &ops, u) : NULL;
    if (!u->control.server) {
        close(fd);
        return err_nomem(err);
    }
    return httpio_server_add(u->control.server, fd, err);
}

void up_control_close(struct up *u)
{
    /* Its exchanges end here, and each takes its request out of the list. */
    u->control.server = httpio_server_free(u->control.server);
    if (u->loop)
        u->control.timer = net_timer_close(u->control.timer);
    if (u->paths.sock && u->lock_fd >= 0)
        (void)unlink(u->paths.sock);
}
