/* SPDX-License-Identifier: MIT
 *
 * The router as its owner sees it: which worker process serves, what it is told and what it says. A worker that ends is started again after a rising delay, while connections wait in
 * the backlog of the listening sockets, which are kept open here. One is replaced without losing a stream: a new one begins on the same sockets, and once it accepts the one before it is told to
 * finish what it has.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "up_int.h"

#define INDEX_NAME "router.index"
#define INDEX_MAX ((size_t)2 * PROXY_INDEX_MAX)

static void on_timer(void *ctx);

bool up_router_alive(const struct up *u)
{
    return u->router.workers != NULL;
}

bool up_router_accepts(const struct up *u)
{
    return u->router.workers && u->router.workers->accepts && !u->router.workers->leaving;
}

void up_router_stats(const struct up *u, struct proxy_stats *ret)
{
    *ret = u->router.workers ? u->router.workers->stats : (struct proxy_stats){0};
    for (const struct up_worker *w = u->router.workers ? u->router.workers->next : NULL; w; w = w->next)
        ret->active += w->stats.active;
}

/* ---- what it is told ------------------------------------------------------------------------------------ */

static void send_all(struct up *u, const struct buf *b)
{
    for (struct up_worker *w = u->router.workers; w; w = w->next)
        up_worker_send(w, b);
}

uint64_t up_life_of(const struct run_info *info)
{
    char text[OS_BOOT_ID + 64], boot[OS_BOOT_ID];
    uint64_t ticks, h = UINT64_C(14695981039346656037);
    if (info->pid <= 0 || os_proc_start(info->pid, &ticks) < 0 || os_boot_id(boot, NULL) < 0)
        return info->generation;
    snprintf(text, sizeof text, "%s %ld %llu", boot, (long)info->pid, (unsigned long long)ticks);
    for (const char *c = text; *c; c++)
        h = (h ^ (unsigned char)*c) * UINT64_C(1099511628211);
    return h;
}

/* ---- what it knows of conversations, kept in the fleet's folder -------------------------------------------- */

static bool is_hex(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!((s.ptr[i] >= '0' && s.ptr[i] <= '9') || (s.ptr[i] >= 'a' && s.ptr[i] <= 'f')))
            return false;
    return s.len > 0 && s.len <= INDEX_MAX;
}

/* Nothing but digits goes on to a worker, whatever was done to the file. */
static void load_index(struct up *u)
{
    os_autoclose int dir = os_open_dir(u->paths.fleet, NULL);
    struct buf *index = &u->router.index;
    buf_clear(index);
    int rc = dir < 0 ? dir : os_read_file(dir, INDEX_NAME, index, NULL);
    if (rc == 0 && is_hex(buf_str(index)))
        return;
    buf_clear(index);
    if (rc != -ENOENT)
        up_say(u, EVENT_WARN, "router", "'%s/" INDEX_NAME "' cannot be used: conversations begin anew", u->paths.fleet);
}

static void tell_index(struct up *u)
{
    base_autobuf struct buf b = BUF_INIT(INDEX_MAX + 32);
    if (u->router.index.len == 0)
        load_index(u);
    if (u->router.index.len == 0)
        return;
    buf_add_c(&b, "{\"index\":\"");
    buf_add_str(&b, buf_str(&u->router.index));
    buf_add_c(&b, "\"}");
    up_worker_send(u->router.workers, &b);
}

/* A disk that is full costs what is known of conversations, after the next restart, and nothing else. */
static void take_index(struct up *u, struct str hex)
{
    if (!is_hex(hex))
        return;
    buf_clear(&u->router.index);
    buf_add_str(&u->router.index, hex);
    os_autoclose int dir = os_open_dir(u->paths.fleet, NULL);
    if (dir >= 0)
        base_ignore(os_write_atomic(dir, INDEX_NAME, hex.ptr, hex.len, 0600, NULL));
}

static uint64_t life_for_router(const struct up_service *us, const struct run_info *info)
{
    return up_on_demand(us) ? us->life : up_life_of(info);
}

/* What a worker tells from now on is told after the configuration before this line. */
static void tell_mark(struct up *u)
{
    base_autobuf struct buf b = BUF_INIT(64);
    if (!u->demand.d.n)
        return;
    buf_addf(&b, "{\"mark\":%llu}", (unsigned long long)++u->demand.mark);
    send_all(u, &b);
}

void up_router_tell(struct up *u)
{
    if (!u->router.workers || u->router.draining)
        return;
    struct proxy_state states[2 * FLEET_SERVICES_MAX];
    size_t n = u->n_services;
    for (size_t i = 0; i < u->n_services; i++) {
        struct run_info info;
        run_info(u->services[i]->run, &info);
        states[i] = (struct proxy_state){
            .service = u->services[i]->service, .as = run_service_of(u->services[i]->run),
            .ready = info.state == RUN_READY && !u->services[i]->drained && up_demand_serves(u->services[i]),
            .generation = life_for_router(u->services[i], &info)};
        states[i].key = run_key(u->services[i]->run);
        states[i].why = up_demand_why(u->services[i], &states[i].startable);
        if (u->services[i]->drained && !states[i].startable && !states[i].why)
            states[i].why = UP_DRAINED_WHY;
    }
    n += up_watch_states(u, states + n);
    base_autobuf struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    if (proxy_config_text(u->fleet, states, n, &b) == 0)
        send_all(u, &b);
    else
        up_say(u, EVENT_ERROR, "router", "configuration cannot be written");
    if (b.ptr)
        explicit_bzero(b.ptr, b.cap); /* keys of engines are in it */
    tell_mark(u);
}

void up_router_tell_keys(struct up *u)
{
    base_autobuf struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    struct json_out *o = u->fleet->router.keys_file ? json_out_new() : NULL;
    if (!o)
        return;
    json_out_obj(o, NULL);
    json_out_str(o, "keys", buf_str(&u->keys.read.text));
    json_out_end(o);
    if (json_out_finish(o, false, &b) == 0)
        send_all(u, &b);
    json_out_free(o);
}

void up_router_tell_pair(struct up *u)
{
    base_autobuf struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    if (u->router.pair.key.len == 0)
        return;
    if (proxy_pair_text(&u->router.pair, &b) == 0)
        send_all(u, &b);
    else
        up_say(u, EVENT_ERROR, "router", "certificate cannot be written");
    if (b.ptr)
        explicit_bzero(b.ptr, b.cap);
}

bool up_router_ask(struct up *u)
{
    base_autobuf struct buf b = BUF_INIT(64);
    if (!up_router_accepts(u))
        return false;
    buf_add_c(&b, "{\"stats\":true}");
    send_all(u, &b);
    return true;
}

void up_router_ask_index(struct up *u)
{
    base_autobuf struct buf b = BUF_INIT(64);
    if (!up_router_accepts(u))
        return;
    buf_add_c(&b, "{\"index\":true}");
    up_worker_send(u->router.workers, &b);
}

bool up_router_question(struct up *u, uint64_t serial, struct str method, struct str target)
{
    base_autobuf struct buf b = BUF_INIT((size_t)8 * HTTP_TARGET_MAX);
    struct json_out *o = json_out_new();
    if (!up_router_accepts(u) || !o) {
        json_out_free(o);
        return false;
    }
    json_out_obj(o, NULL);
    json_out_obj(o, "ask");
    json_out_u64(o, "serial", serial);
    json_out_str(o, "method", method);
    json_out_str(o, "target", target);
    json_out_end(o);
    json_out_end(o);
    int rc = json_out_finish(o, false, &b);
    json_out_free(o);
    if (rc == 0)
        up_worker_send(u->router.workers, &b);
    return rc == 0;
}

/* ---- what it says --------------------------------------------------------------------------------------- */

static void take_answer(struct up *u, json_val v)
{
    base_autobuf struct buf body = BUF_INIT(UP_TEXT_MAX);
    struct json_out *o = json_out_new();
    uint64_t serial = 0, status = 500;
    if (!json_u64(json_get(v, "serial"), &serial) || !json_u64(json_get(v, "status"), &status) || status < 200 || status > 599 || !o) {
        json_out_free(o);
        return; /* who asked is told that no answer came */
    }
    json_out_val(o, NULL, json_get(v, "body"));
    if (json_out_finish(o, false, &body) == 0)
        up_control_answer(u, serial, (unsigned)status, buf_str(&body));
    json_out_free(o);
}

static void take_stats(struct up_worker *w, json_val v)
{
    struct up *u = w->up;
    struct proxy_stats *s = &w->stats;
    struct str metrics;
    if (!json_u64(json_get(v, "requests"), &s->requests) || !json_u64(json_get(v, "retries"), &s->retries) ||
        !json_u64(json_get(v, "errors"), &s->errors) || !json_u64(json_get(v, "active"), &s->active))
        up_say(u, EVENT_WARN, "router", "its numbers are not complete");
    (void)json_u64(json_get(v, "working_set"), &s->working_set);
    (void)json_u64(json_get(v, "capacity"), &s->capacity);
    (void)json_u64(json_get(v, "conversations"), &s->conversations);
    (void)json_u64(json_get(v, "slots"), &s->slots);
    (void)json_bool(json_get(v, "crowded"), &s->crowded);
    if (w != u->router.workers)
        return;
    buf_clear(&u->router.metrics);
    if (json_str(json_get(v, "metrics"), &metrics))
        buf_add_str(&u->router.metrics, metrics);
    up_control_stats(u);
}

/* The engine's end is seen here sooner; this tells of one that lives and does not answer, once for each of its lives. */
static void take_failed(struct up *u, json_val v)
{
    struct str name = {0}, text = {0};
    uint64_t generation = 0;
    struct run_info info;
    if (!json_str(json_get(v, "service"), &name) || !json_u64(json_get(v, "generation"), &generation))
        return;
    (void)json_str(json_get(v, "text"), &text);
    struct up_service *s = up_service_named(u, name);
    if (!s || s->unreached == generation)
        return;
    run_info(s->run, &info);
    if (info.state != RUN_READY || life_for_router(s, &info) != generation)
        return;
    s->unreached = generation;
    base_autobuf struct buf b = BUF_INIT(1024);
    buf_add_printable(&b, text, 200);
    up_say(u, EVENT_WARN, "router", "service '%s' could not be reached: %s", s->service->name, buf_status(&b) == 0 && b.len ? b.ptr : "no reason given");
}

/* The newest one serves; those before it finish what they have. */
static void take_up(struct up_worker *w)
{
    struct up *u = w->up;
    base_autobuf struct buf b = BUF_INIT(64);
    w->accepts = true;
    buf_addf(&b, "{\"drain\":%llu}", UP_LEAVE_MS);
    for (struct up_worker *old = w->next; old; old = old->next) {
        if (!old->leaving)
            up_worker_send(old, &b);
        old->leaving = true;
    }
    up_router_is_up(u);
}

void up_router_take(struct up_worker *w, struct str line)
{
    struct up *u = w->up;
    struct json *j;
    struct err err;
    struct str index;
    bool up;
    if (json_parse(line, &j, &err) < 0) {
        up_say(u, EVENT_WARN, "router", "said something that is not understood: %s", err.text);
        return;
    }
    json_val root = json_root(j);
    if (json_bool(json_get(root, "up"), &up) && up && !w->accepts) {
        take_up(w);
    } else if (json_get(root, "stats")) {
        take_stats(w, json_get(root, "stats"));
    } else if (json_get(root, "answer")) {
        take_answer(u, json_get(root, "answer"));
    } else if (json_get(root, "demand")) {
        up_demand_take(w, json_get(root, "demand"));
    } else if (json_get(root, "failed")) {
        take_failed(u, json_get(root, "failed"));
    } else if (w == u->router.workers && json_str(json_get(root, "index"), &index)) {
        take_index(u, index);
    }
    json_free(j);
}

/* ---- its processes -------------------------------------------------------------------------------------- */

/* The worker writes a line for each request, at the end of whatever the file is: over its bound the file is kept once as router.log.1 and cut. */
static void trim_log(const struct up *u)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX), old = BUF_INIT(UP_PATH_MAX);
    struct stat st;
    buf_addf(&path, "%s/router.log", u->paths.logs);
    buf_addf(&old, "%s/router.log.1", u->paths.logs);
    if (buf_status(&path) < 0 || buf_status(&old) < 0 || stat(path.ptr, &st) < 0 || (uint64_t)st.st_size <= RUN_LOG_MAX)
        return;
    (void)unlink(old.ptr);
    base_ignore(os_copy_file(AT_FDCWD, path.ptr, AT_FDCWD, old.ptr, 0600, NULL)); /* bounded all the same */
    base_ignore(truncate(path.ptr, 0));
}

/* Without its file nobody finds a unix socket, however well it is served: another one takes its place, and a worker that serves it. The one before finishes what it has. */
static int mend_socket(struct up *u, struct err *err)
{
    struct up_router *r = &u->router;
    int fds[UP_SOCKETS_MAX];
    struct net_addr a;
    struct stat st;
    if (!r->addr.unix_path || r->passed || u->phase != UP_SERVING || !up_router_accepts(u) || lstat(r->addr.host, &st) == 0 || errno != ENOENT)
        return 0;
    int n = proxy_bind(u->fleet, fds, &a, err);
    if (n < 0)
        return n;
    up_router_rebind(u, fds, (size_t)n, &a);
    int rc = up_router_replace(u, err);
    if (rc < 0) {
        (void)unlink(r->addr.host); /* so that it is tried again */
        return rc;
    }
    up_say(u, EVENT_WARN, "router", "its socket '%s' had been removed: it is there again", r->addr.host);
    return 0;
}

/* What others did to the router's files is mended, and what cannot be is said once. */
static void on_tend(void *ctx)
{
    struct up *u = ctx;
    struct err err;
    trim_log(u);
    int rc = up_worker_mend_spill(u, &err);
    if (rc == 0)
        rc = mend_socket(u, &err);
    if (rc < 0 && !u->router.unmended)
        up_say(u, EVENT_ERROR, "router", "%s", err.text);
    u->router.unmended = rc < 0;
}

static void start_later(struct up *u, const char *why)
{
    struct up_router *r = &u->router;
    if (u->phase == UP_STARTING) {
        up_fail(u, "router", why);
        return;
    }
    r->backoff_ms = r->backoff_ms == 0 ? UP_BACKOFF_MIN_MS : r->backoff_ms * 2;
    if (r->backoff_ms > UP_BACKOFF_MAX_MS)
        r->backoff_ms = UP_BACKOFF_MAX_MS;
    up_say(u, EVENT_WARN, "router", "%s; starts again in %llu ms", why, (unsigned long long)r->backoff_ms);
    r->restarts++;
    net_timer_start(r->timer, r->backoff_ms, 0);
}

void up_router_ended(struct up_worker *w, int status)
{
    struct up *u = w->up;
    struct up_router *r = &u->router;
    bool served = w == r->workers, left = w->leaving, accepted = w->accepts;
    uint64_t lived = net_loop_now_ms(u->loop) - w->started_ms;
    os_proc_release(&w->proc);
    w->proc = OS_PROC_NONE;
    up_worker_free(w);
    up_demand_worker_gone(u);
    if (served)
        up_control_stats(u);
    if (r->draining) {
        if (!r->workers)
            up_router_is_gone(u);
        return;
    }
    if (!served || left)
        return;
    char how[OS_STATUS_TEXT], why[OS_STATUS_TEXT + UP_PATH_MAX];
    snprintf(why, sizeof(why), "the router ended (%s); its log is %s/router.log", os_status_text(status, how), u->paths.logs);
    if (!accepted && r->workers && !r->workers->leaving) {
        up_say(u, EVENT_ERROR, "router", "its new process did not begin, the one before goes on: %s", why);
        return;
    }
    if (lived > UP_BACKOFF_MAX_MS)
        r->backoff_ms = 0;
    start_later(u, why);
}

static int start(struct up *u, struct err *err)
{
    struct up_router *r = &u->router;
    struct up_worker *w;
    if (!r->timer)
        r->timer = net_timer_new(u->loop, on_timer, u);
    if (!r->tend && (r->tend = net_timer_new(u->loop, on_tend, u)))
        net_timer_start(r->tend, UP_TEND_MS, UP_TEND_MS);
    int rc = r->timer ? up_worker_start(u, &w, err) : err_nomem(err);
    if (rc < 0)
        return rc;
    up_router_tell_pair(u);
    up_router_tell_keys(u);
    tell_index(u);
    up_router_tell(u);
    return 0;
}

void up_router_start(struct up *u)
{
    struct err err;
    if (start(u, &err) < 0)
        start_later(u, err.text);
}

int up_router_replace(struct up *u, struct err *err)
{
    struct up_router *r = &u->router;
    if (r->draining || !up_router_accepts(u))
        return err_set(err, -EAGAIN, "the router is not serving just now");
    return start(u, err);
}

static void on_timer(void *ctx)
{
    struct up *u = ctx;
    if (u->router.draining)
        up_router_kill(u); /* they were to end by themselves */
    else
        up_router_start(u);
}

static void close_sockets(struct up_router *r)
{
    for (size_t i = 0; i < r->n_listen; i++)
        os_closep(&r->listen_fds[i]);
    r->n_listen = 0;
}

void up_router_rebind(struct up *u, const int *fds, size_t n, const struct net_addr *a)
{
    struct up_router *r = &u->router;
    if (r->addr.unix_path && !net_addr_eq(&r->addr, a))
        (void)unlink(r->addr.host);
    close_sockets(r); /* workers have their own descriptors of them */
    memcpy(r->listen_fds, fds, n * sizeof(fds[0]));
    r->n_listen = n;
    r->addr = *a;
}

void up_router_drain(struct up *u, uint64_t limit_ms)
{
    struct up_router *r = &u->router;
    r->draining = true;
    /* What no worker has accepted is refused from here on instead of waiting for nobody. */
    close_sockets(r);
    if (r->timer)
        net_timer_stop(r->timer);
    if (!r->workers) {
        up_router_is_gone(u);
        return;
    }
    base_autobuf struct buf b = BUF_INIT(64);
    buf_addf(&b, "{\"drain\":%llu}", (unsigned long long)limit_ms);
    send_all(u, &b);
    net_timer_start(r->timer, limit_ms + 1000, 1000);
}

void up_router_kill(struct up *u)
{
    for (struct up_worker *w = u->router.workers; w; w = w->next)
        base_ignore(os_proc_signal(&w->proc, SIGKILL));
}

void up_router_never(struct up *u)
{
    u->router.draining = true;
    up_router_kill(u);
    close_sockets(&u->router);
}

void up_router_release(struct up *u)
{
    struct up_router *r = &u->router;
    while (r->workers)
        up_worker_free(r->workers);
    if (u->loop) {
        r->timer = net_timer_close(r->timer);
        r->tend = net_timer_close(r->tend);
    }
    close_sockets(r);
    if (r->addr.unix_path && !r->passed)
        (void)unlink(r->addr.host);
    proxy_pair_release(&r->pair);
    buf_release(&r->metrics);
    buf_release(&r->index);
}
