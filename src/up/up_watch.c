/* SPDX-License-Identifier: MIT
 *
 * Health of services that others start (another host, a systemd unit, everything under `berth route`): whether they answer on their health path, and whether they serve the model that is
 * declared, because an engine with another model answers requests too. One question for each service and turn, at most one a second, and none that makes the engine generate. What is not
 * known yet counts as ready: the router finds out by itself. Requests that fail are the router's own to judge. An engine with a key is asked for something that it tells only to who shows it, because its health is for everybody, and is not ready before it
 * has answered that.
 */
#include <errno.h>

#include "up_int.h"

#define TICK_MS 1000
#define ANSWER_MS 5000        /* of one question */
#define ANSWER_MAX ((size_t)1 << 20)
#define HEALTH_TICKS 2        /* between two questions of health while all is well */
#define IDENTITY_TICKS 30     /* between two of identity */
#define LATE_MAX 2            /* answers in a row that may be late: an engine at work answers slowly */

struct up_watch {
    struct up *up;
    const struct fleet_service *service; /* of u->fleet */
    struct up_name *of_host;    /* its host's name; NULL: that is an address */
    struct net_addr addr;
    bool resolved;              /* addr is there */
    bool lost;                  /* it was told that it is not */
    char address[NET_HOST_MAX]; /* of a name: the same without its port, as the router is told */
    bool known, healthy, right; /* it has been asked; answers 200; serves what is declared, as far as it says */
    bool asking_identity;
    bool refused;               /* it does not take its key, or there is none to show */
    bool proven;                /* it has taken its key, in this reading of the fleet file or one before */
    char key[FLEET_KEY_MAX + 1]; /* from its file at the last question; "" none */
    unsigned ticks, late;
    uint64_t generation;        /* lives of it that were seen */
    char name[FLEET_NAME_MAX + 1]; /* outlives the reading that service is of */
    uint64_t drained_until_ms;  /* by request: the router gives it nothing new; 0: it may */
    struct httpio_fetch *fetch;
    struct buf why;             /* it is not ready */
};

static bool is_ready(const struct up_watch *w)
{
    if (!w->known)
        return !w->service->key || w->proven;
    return w->healthy && w->right;
}

/* Takes over what its host's name leads to. True: it is another address. */
static bool take_address(struct up_watch *w)
{
    struct net_addr before = w->addr;
    bool had = w->resolved;
    w->resolved = up_name_address(w->of_host, w->service->port, &w->addr);
    if (w->resolved)
        memcpy(w->address, w->addr.host, sizeof w->address);
    return w->resolved != had || (had && !net_addr_eq(&before, &w->addr));
}

static int find_address(struct up_watch *w, struct err *err)
{
    const char *host = proxy_service_host(w->service);
    w->resolved = net_addr_parse(host, w->service->port, &w->addr) == 0;
    if (w->resolved)
        return 0;
    w->of_host = up_name_of(w->up, host);
    if (!w->of_host)
        return err_nomem(err);
    (void)take_address(w);
    return 0;
}

/* Tells the router and people, when it made a difference. */
static void changed(struct up_watch *w, bool was_ready, bool was_known)
{
    struct up *u = w->up;
    bool first = !was_known && w->service->key; /* the router waits for what comes of it */
    if (is_ready(w) == was_ready && !first)
        return;
    if (is_ready(w) && !first)
        up_say_service(u, EVENT_INFO, w->service, "answers again");
    else if (!is_ready(w))
        up_say_service(u, EVENT_WARN, w->service, "%s", w->why.len ? w->why.ptr : "does not answer");
    up_router_tell(u);
}

static void set_why(struct up_watch *w, const char *text)
{
    buf_clear(&w->why);
    buf_add_printable(&w->why, str_of(text), 300);
    if (buf_status(&w->why) < 0)
        buf_clear(&w->why);
}

static void why_key(struct up_watch *w)
{
    base_autobuf struct buf text = BUF_INIT(1024);
    buf_addf(&text, "status 401: it does not take the key in '%s'; the file must hold the same on host '%s', and the engine reads it when it starts", w->service->key, w->service->host->name);
    set_why(w, buf_status(&text) < 0 ? "status 401: it does not take its key" : text.ptr);
}

/* What its host's name leads to does not answer: the next address is asked. */
static void move_on(struct up_watch *w)
{
    if (up_name_next(w->of_host) && take_address(w)) {
        w->generation++;
        up_router_tell(w->up);
    }
}

static void take_health(struct up_watch *w, unsigned status, const struct err *failed)
{
    char text[64];
    w->refused = status == 401 && w->service->key;
    if (status == 200) {
        w->healthy = w->proven = true;
        w->late = 0;
        return;
    }
    if (failed && failed->code == -ETIMEDOUT && ++w->late < LATE_MAX)
        return;
    if (w->healthy && status == 0) {
        w->generation++; /* who comes back is another one */
        w->ticks = 0;    /* and says first who it is */
    }
    w->healthy = false;
    if (status == 0 && w->of_host)
        move_on(w);
    snprintf(text, sizeof text, "health: status %u", status);
    if (w->refused)
        why_key(w);
    else
        set_why(w, status ? text : failed->text);
}

static void take_identity(struct up_watch *w, unsigned status, struct str body)
{
    struct err err;
    if (status != 200)
        return; /* it cannot say: its health does */
    w->right = engine_identity_check(body, engine_served_name(w->service), &err) == 0;
    if (!w->right)
        set_why(w, err.text);
}

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct up_watch *w = ctx;
    bool was_ready = is_ready(w), was_known = w->known;
    w->fetch = NULL;
    w->known = true;
    if (w->asking_identity)
        take_identity(w, status, body);
    else
        take_health(w, status, failed);
    if (is_ready(w))
        buf_clear(&w->why);
    changed(w, was_ready, was_known);
}

/* A file that was replaced is followed. False: it cannot be used, and the service with it. */
static bool take_key(struct up_watch *w)
{
    char key[FLEET_KEY_MAX + 1] = "";
    struct err err;
    bool was_ready = is_ready(w), was_known = w->known;
    int r = w->service->key ? fleet_key_read(w->service->key, key, &err) : 0;
    if (r < 0) {
        w->known = w->refused = true;
        w->healthy = false;
        set_why(w, err.text);
        changed(w, was_ready, was_known);
        return false;
    }
    if (strcmp(key, w->key) != 0) {
        memcpy(w->key, key, sizeof w->key);
        up_router_tell(w->up);
    }
    explicit_bzero(key, sizeof key);
    return true;
}

/* Identity first once it answers, and now and then; health in between, each second while it is not well. */
static void ask(struct up_watch *w)
{
    const char *path = engine_identity_path(w->service);
    w->asking_identity = path && w->healthy && (w->ticks % IDENTITY_TICKS == 0 || !w->right);
    if (w->asking_identity && !w->right && w->ticks % HEALTH_TICKS)
        w->asking_identity = false;
    if (!w->asking_identity && w->healthy && w->right && w->ticks % HEALTH_TICKS) {
        w->ticks++;
        return;
    }
    if (!take_key(w))
        return;
    if (!w->asking_identity)
        path = w->key[0] ? engine_props_path(w->service) : engine_health_path(w->service);
    if (w->healthy)
        w->ticks++;
    char bearer[HTTPIO_BEARER_MAX];
    struct http_field field;
    struct httpio_request r = {.addr = w->addr, .method = STR("GET"), .target = str_of(path), .fresh = true, .fields = &field, .n_fields = httpio_bearer(w->key, bearer, &field)};
    w->fetch = httpio_fetch(w->up->client, &r, ANSWER_MAX, ANSWER_MS, answered, w);
    explicit_bzero(bearer, sizeof bearer);
}

/* Who asked for a drain and never came back must not keep it away for ever. */
static void drain_ends(struct up_watch *w)
{
    if (!w->drained_until_ms || net_loop_now_ms(w->up->loop) < w->drained_until_ms)
        return;
    w->drained_until_ms = 0;
    up_say_service(w->up, EVENT_WARN, w->service, "it was drained, and nobody has said that it is back: it gets requests again");
    up_router_tell(w->up);
}

bool up_watch_drain(struct up *u, struct str name, uint64_t for_ms)
{
    for (size_t i = 0; i < u->n_watches; i++) {
        struct up_watch *w = &u->watches[i];
        if (!str_eq_c(name, w->name))
            continue;
        if (for_ms == 0 && w->drained_until_ms && !w->fetch && w->resolved) {
            w->ticks = 0; /* it is another process by now: who it is and how it is, at once */
            ask(w);
        }
        w->drained_until_ms = for_ms ? net_loop_now_ms(u->loop) + for_ms : 0;
        up_router_tell(u);
        return true;
    }
    return false;
}

bool up_watch_drained(const struct up *u, const struct fleet_service *s)
{
    for (size_t i = 0; i < u->n_watches; i++)
        if (u->watches[i].service == s)
            return u->watches[i].drained_until_ms != 0;
    return false;
}

void up_watch_named(struct up *u, const struct up_name *o)
{
    bool told = false;
    for (size_t i = 0; i < u->n_watches; i++) {
        struct up_watch *w = &u->watches[i];
        if (w->of_host != o || (!take_address(w) && (w->resolved || w->lost)))
            continue;
        w->lost = !w->resolved;
        if (w->lost)
            up_say_service(u, EVENT_WARN, w->service, "%s", up_name_why(o));
        w->fetch = httpio_fetch_cancel(w->fetch);
        w->generation++;
        w->ticks = 0;
        told = true;
    }
    if (told)
        up_router_tell(u);
}

static void on_tick(void *ctx)
{
    struct up *u = ctx;
    up_names_tick(u);
    for (size_t i = 0; i < u->n_watches; i++) {
        struct up_watch *w = &u->watches[i];
        drain_ends(w);
        if (!w->fetch && w->resolved)
            ask(w);
    }
}

/* What outlives a reading of the fleet file: a drain, and that it took its key. */
static void keep_before(const struct up_watch *old, size_t n, struct up_watch *w)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(old[i].name, w->name) == 0) {
            w->drained_until_ms = old[i].drained_until_ms;
            w->proven = old[i].proven && (!old[i].known || old[i].healthy);
            memcpy(w->key, old[i].key, sizeof w->key);
        }
}

void up_watch_hand_over(const struct up *u, struct json_out *o)
{
    json_out_arr(o, "watches");
    for (size_t i = 0; i < u->n_watches; i++) {
        const struct up_watch *w = &u->watches[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "name", w->name);
        json_out_u64(o, "generation", w->generation);
        json_out_u64(o, "drained_until_ms", w->drained_until_ms);
        json_out_bool(o, "known", w->known);
        json_out_bool(o, "healthy", w->healthy);
        json_out_bool(o, "right", w->right);
        json_out_end(o);
    }
    json_out_end(o);
}

/* What the program before knew; times are of the same clock. Of a service with a key nothing is known before its file was read. */
static void take_over(struct up_watch *w)
{
    json_val v = up_resume_watch(w->up, w->name);
    (void)json_u64(json_get(v, "generation"), &w->generation);
    (void)json_u64(json_get(v, "drained_until_ms"), &w->drained_until_ms);
    if (w->service->key)
        return;
    (void)json_bool(json_get(v, "known"), &w->known);
    (void)json_bool(json_get(v, "healthy"), &w->healthy);
    (void)json_bool(json_get(v, "right"), &w->right);
}

static void release(struct up_watch *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        list[i].fetch = httpio_fetch_cancel(list[i].fetch);
        explicit_bzero(list[i].key, sizeof list[i].key);
        buf_release(&list[i].why);
    }
    free(list);
}

int up_watch_begin(struct up *u, struct err *err)
{
    const struct fleet *f = u->fleet;
    struct up_watch *old = u->watches;
    size_t n_old = u->n_watches;
    u->watches = NULL;
    u->n_watches = 0;
    up_names_unused(u);
    if (!u->router.wanted) { /* the machine with the router asks */
        release(old, n_old);
        return 0;
    }
    u->watches = calloc(f->n_services + 1, sizeof(*u->watches));
    if (!u->watch_timer)
        u->watch_timer = net_timer_new(u->loop, on_tick, u);
    if (!u->watches || !u->watch_timer) {
        release(old, n_old);
        return err_nomem(err);
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->n_services; i++) {
        struct up_watch *w = &u->watches[u->n_watches];
        if (up_starts(u, &f->services[i]))
            continue;
        *w = (struct up_watch){.up = u, .service = &f->services[i], .right = true, .why = BUF_INIT(2048)};
        snprintf(w->name, sizeof w->name, "%s", f->services[i].name);
        keep_before(old, n_old, w);
        take_over(w);
        u->n_watches++;
        rc = find_address(w, err);
    }
    release(old, n_old);
    if (rc < 0)
        return rc;
    up_names_prune(u);
    if (u->n_watches > 0)
        net_timer_start(u->watch_timer, TICK_MS, TICK_MS);
    else
        net_timer_stop(u->watch_timer);
    return 0;
}

void up_watch_end(struct up *u)
{
    release(u->watches, u->n_watches);
    u->watches = NULL;
    u->n_watches = 0;
}

size_t up_watch_states(const struct up *u, struct proxy_state *states)
{
    size_t n = 0;
    for (size_t i = 0; i < u->n_watches; i++) {
        const struct up_watch *w = &u->watches[i];
        struct proxy_state *s = &states[n++];
        *s = (struct proxy_state){.service = w->service, .ready = w->resolved && is_ready(w) && !w->drained_until_ms, .generation = w->generation, .key = w->key};
        if (!w->known && !is_ready(w) && !w->drained_until_ms) /* whether it takes its key is known in a moment */
            s->startable = true;
        if (w->of_host && w->resolved)
            s->address = w->address;
        if (!w->resolved) { /* the first look-up is worth waiting for */
            s->startable = up_name_is_new(w->of_host) && !w->drained_until_ms;
            s->why = up_name_why(w->of_host);
        } else if (w->drained_until_ms) {
            s->why = UP_DRAINED_WHY;
        }
    }
    return n;
}

const char *up_watch_text(const struct up *u, const struct fleet_service *s, const char **ret_why)
{
    for (size_t i = 0; i < u->n_watches; i++) {
        const struct up_watch *w = &u->watches[i];
        if (w->service != s)
            continue;
        *ret_why = w->why.len ? w->why.ptr : NULL;
        if (!w->resolved) {
            *ret_why = up_name_why(w->of_host);
            return "no answer";
        }
        return !w->known ? "elsewhere" : is_ready(w) ? "ready" : w->refused ? "wrong key" : w->healthy ? "another model" : "no answer";
    }
    return NULL;
}
