/* SPDX-License-Identifier: MIT
 *
 * Services on demand: what the router's workers tell becomes what demand.c knows, and what it decides is done here, through run. A start waits until the memory that it needs is really free,
 * since a process's end and the end of its memory are two things; a stop first keeps what its slots hold (up_prompts.c). Several workers may be there for a while: one that is replaced still counts what it works on.
 */
#include <errno.h>

#include "up_int.h"

#define NONE SIZE_MAX

/* ---- what is there ------------------------------------------------------------------------------------------ */

static uint64_t now_ms(const struct up *u)
{
    return net_loop_now_ms(u->loop);
}

bool up_on_demand(const struct up_service *us)
{
    return us->service->start == FLEET_ON_DEMAND && !us->removed;
}

static size_t unit_of(const struct up_demand *m, const struct up_service *us)
{
    for (size_t i = 0; i < m->d.n; i++)
        if (m->units[i] == us)
            return i;
    return NONE;
}

static void run_later(struct up *u);

/* Does all that is to be done, and sees to it that this is asked again in time. */
static void act(struct up *u);

static void on_timer(void *ctx)
{
    act(ctx);
}

/* A unit of a service whose process is there already: it was always up until now, or another supervisor started it. */
static void join(struct up *u, struct demand *d, size_t i, struct up_service *us)
{
    struct run_info info;
    run_info(us->run, &info);
    if (info.state == RUN_STARTING || info.state == RUN_LOADING) {
        demand_loading(d, i, now_ms(u));
    } else if (info.state == RUN_READY || info.state == RUN_DRAINING) {
        demand_loading(d, i, now_ms(u));
        demand_ready(d, i, now_ms(u));
        us->life = up_life_of(&info);
    }
}

/* The services on demand of the fleet as it is now, with what is known of those that were there before. */
static int fill(struct up *u, struct err *err)
{
    struct up_demand *m = &u->demand;
    struct demand d;
    size_t n = 0;
    for (size_t i = 0; i < u->n_services; i++)
        n += up_on_demand(u->services[i]);
    struct up_service **units = calloc(n + 1, sizeof(struct up_service *));
    if (!units || demand_init(&d, n, up_fits, u) < 0) {
        free(units);
        return err_nomem(err);
    }
    d.seq = m->d.seq;
    n = 0;
    for (size_t i = 0; i < u->n_services; i++) {
        struct up_service *us = u->services[i];
        run_set_again(us->run, !up_on_demand(us)); /* one on demand is started again for who asks */
        if (!up_on_demand(us)) {
            up_prompts_cancel(us);
            us->settle = net_timer_close(us->settle);
            continue;
        }
        struct demand_unit *unit = &d.units[n];
        size_t before = unit_of(m, us);
        if (before != NONE)
            *unit = m->d.units[before];
        if (unit->state == DEMAND_DOWN) { /* the file that was read may mend what kept it from starting: it is tried at once */
            unit->failures = unit->deaths = 0;
            unit->retry_ms = 0;
        }
        unit->pinned = us->service->pin == FLEET_YES;
        unit->preload = before == NONE && us->service->preload == FLEET_YES;
        unit->idle_stop_ms = us->service->idle_stop_ms;
        if (before == NONE)
            join(u, &d, n, us);
        units[n++] = us;
    }
    demand_release(&m->d);
    free(m->units);
    m->d = d;
    m->units = units;
    memset(m->fits, 0, sizeof m->fits); /* other units, another plan */
    return 0;
}

int up_demand_open(struct up *u, struct err *err)
{
    u->demand.timer = net_timer_new(u->loop, on_timer, u);
    if (!u->demand.timer)
        return err_nomem(err);
    u->demand.mark = now_ms(u); /* greater than any that workers may still tell of the program before this one */
    int rc = fill(u, err);
    return rc < 0 ? rc : up_prompts_open(u, err);
}

int up_demand_renew(struct up *u, struct err *err)
{
    int rc = fill(u, err);
    /* Workers count anew, for units in another order. */
    for (struct up_worker *w = u->router.workers; w; w = w->next) {
        free(w->report);
        w->report = NULL;
    }
    return rc < 0 ? rc : up_prompts_renew(u, err);
}

void up_demand_leave(struct up_service *us)
{
    up_prompts_cancel(us);
    us->settle = net_timer_close(us->settle);
    free(us->prompts.dir);
    us->prompts.dir = NULL;
}

void up_demand_close(struct up *u)
{
    struct up_demand *m = &u->demand;
    for (size_t i = 0; i < m->d.n; i++)
        up_prompts_cancel(m->units[i]);
    if (u->loop) {
        m->timer = net_timer_close(m->timer);
        for (size_t i = 0; i < m->d.n; i++)
            m->units[i]->settle = net_timer_close(m->units[i]->settle);
    }
    up_fits_release(u);
    demand_release(&m->d);
    free(m->units);
    m->units = NULL;
    up_prompts_close(u);
}

void up_demand_begin(struct up *u)
{
    act(u);
}

/* ---- for the router and for people --------------------------------------------------------------------------- */

bool up_demand_serves(const struct up_service *us)
{
    const struct up_demand *m = &us->up->demand;
    size_t i = unit_of(m, us);
    return i == NONE || m->d.units[i].state == DEMAND_READY;
}

const char *up_demand_why(const struct up_service *us, bool *ret_startable)
{
    const struct up_demand *m = &us->up->demand;
    size_t i = unit_of(m, us);
    bool stopping = us->up->phase == UP_STOPPING;
    *ret_startable = i != NONE && !stopping && !us->drained && demand_startable(&m->d, i, now_ms(us->up));
    if (i == NONE || *ret_startable)
        return NULL;
    return stopping ? "the fleet is being stopped" : us->why[0] ? us->why : NULL;
}

bool up_demand_idle(const struct up_service *us)
{
    const struct up_demand *m = &us->up->demand;
    size_t i = unit_of(m, us);
    return i != NONE && m->d.units[i].state == DEMAND_DOWN;
}

bool up_demand_leaves(const struct up_service *us)
{
    const struct up_demand *m = &us->up->demand;
    size_t i = unit_of(m, us);
    return i != NONE && (m->d.units[i].state == DEMAND_DOWN || m->d.units[i].state == DEMAND_STOPPING);
}

/* ---- starting ------------------------------------------------------------------------------------------------ */

static void set_why(struct up_service *us, const char *text)
{
    struct str rest = str_of(text), line = str_split(&rest, '\n');
    base_autobuf struct buf b = BUF_INIT((size_t)4 * UP_WHY_MAX);
    buf_add_printable(&b, line, UP_WHY_MAX - 8);
    snprintf(us->why, sizeof us->why, "%s", buf_status(&b) == 0 && b.len ? b.ptr : "it did not start");
    for (size_t n = strlen(us->why); n && !str_is_utf8(str_of(us->why)); n--)
        us->why[n - 1] = '\0'; /* cut within a character */
}

static void go(struct up_service *us)
{
    struct err err;
    us->settle = net_timer_close(us->settle);
    if (up_service_renew(us, &err) < 0)
        up_say_service(us->up, EVENT_ERROR, us->service, "%s", err.text);
    base_ignore(run_start(us->run, NULL)); /* a failure is a state, which comes to up_demand_state */
}

/* Whether the memory is there; then it starts. What does not come back in time is somebody else's: the engine will say what it misses. */
static void on_settle(void *ctx)
{
    struct up_service *us = ctx;
    struct up *u = us->up;
    char what[96];
    if (u->phase == UP_STOPPING)
        us->settle = net_timer_close(us->settle);
    else if (up_fits_free(u, us, what)) {
        go(us);
    } else if (now_ms(u) >= us->settle_by_ms) {
        up_say_service(u, EVENT_WARN, us->service, "starts although %s", what);
        go(us);
    }
}

static void start(struct up *u, struct up_service *us)
{
    us->settle_by_ms = now_ms(u) + UP_SETTLE_MS;
    us->why[0] = '\0';
    us->need.found = false;
    if (!us->settle)
        us->settle = net_timer_new(u->loop, on_settle, us);
    if (us->settle)
        net_timer_start(us->settle, 1, UP_SETTLE_LOOK_MS);
    else
        go(us);
}

/* ---- doing what was decided -------------------------------------------------------------------------------------- */

void up_demand_stop(struct up_service *us)
{
    run_stop(us->run, RUN_DRAIN_MS);
}

static void perform(struct up *u, const struct demand_action *a, bool *tell)
{
    struct up_demand *m = &u->demand;
    struct up_service *us = m->units[a->unit];
    switch (a->what) {
    case DEMAND_START:
        start(u, us);
        return;
    case DEMAND_CLOSE:
        demand_closed(&m->d, a->unit, m->mark + 1); /* of the line that is sent next */
        *tell = true;
        return;
    case DEMAND_OPEN:
        *tell = true;
        return;
    case DEMAND_STOP:
        up_say_service(u, EVENT_INFO, us->service, "stops: %s", m->d.units[a->unit].for_another ? "another needs its memory" : "nobody asks for it");
        up_prompts_save(us); /* up_demand_stop follows */
        return;
    case DEMAND_REFUSE:
        set_why(us, "it does not fit into this machine's memory beside what must stay up");
        up_say_service(u, EVENT_WARN, us->service, "%s", us->why);
        *tell = true;
        return;
    }
}

static void act(struct up *u)
{
    struct up_demand *m = &u->demand;
    struct demand_action a;
    bool tell = false;
    if (u->phase != UP_SERVING || m->acting)
        return;
    m->acting = true;
    for (size_t i = 0; i < m->d.n; i++) {
        bool startable = demand_startable(&m->d, i, now_ms(u));
        tell = tell || startable != m->units[i]->startable; /* a failed one may be asked for again */
        m->units[i]->startable = startable;
    }
    while (u->phase == UP_SERVING && demand_next(&m->d, now_ms(u), &a))
        perform(u, &a, &tell);
    m->acting = false;
    if (tell)
        up_router_tell(u);
    run_later(u);
}

static void run_later(struct up *u)
{
    uint64_t due = demand_due(&u->demand.d), now = now_ms(u);
    if (due == UINT64_MAX)
        net_timer_stop(u->demand.timer);
    else
        net_timer_start(u->demand.timer, due > now ? due - now : 1, 0);
}

/* ---- what happens ---------------------------------------------------------------------------------------------------- */

void up_demand_ready(struct up_service *us)
{
    struct up *u = us->up;
    size_t i = unit_of(&u->demand, us);
    if (i == NONE) /* it was taken out of the fleet meanwhile */
        return;
    demand_ready(&u->demand.d, i, now_ms(u));
    up_router_tell(u);
    act(u);
}

/* It has ended by itself. While it loaded, the load has failed; while prompts were given back to it, perhaps of them, and it is tried without. */
static void take_end(struct up_service *us, size_t i, const struct run_info *info, bool asked)
{
    struct up *u = us->up;
    struct demand *d = &u->demand.d;
    bool loaded = d->units[i].state != DEMAND_LOADING || asked;
    set_why(us, info->error ? info->error : "it did not start");
    if (loaded) {
        if (asked && d->units[i].state == DEMAND_LOADING)
            up_prompts_drop(us);
        demand_died(d, i, now_ms(u));
    } else {
        up_say_service(u, EVENT_WARN, us->service, "%s", us->why);
        demand_failed(d, i, now_ms(u));
    }
}

void up_demand_state(struct up_service *us, enum run_state to)
{
    struct up *u = us->up;
    struct up_demand *m = &u->demand;
    size_t i = unit_of(m, us);
    bool asked = us->prompts.fetch != NULL;
    struct run_info info;
    run_info(us->run, &info);
    if (i == NONE)
        return;
    if (to != RUN_READY)
        up_prompts_cancel(us);
    switch (to) {
    case RUN_STARTING:
    case RUN_LOADING:
        us->settle = net_timer_close(us->settle); /* by whomever it was started */
        demand_loading(&m->d, i, now_ms(u));
        break;
    case RUN_READY:
        up_prompts_restore(us, up_life_of(&info)); /* up_demand_ready follows */
        return;
    case RUN_DRAINING:
    case RUN_STOPPING:
        if (m->d.units[i].state == DEMAND_STOPPING)
            return;
        demand_loading(&m->d, i, now_ms(u)); /* it is to come back: its place is kept, and requests wait for it */
        up_router_tell(u);
        break;
    case RUN_FAILED:
        take_end(us, i, &info, asked);
        up_router_tell(u);
        break;
    case RUN_ABSENT:
        if (u->restart.at == us)
            return;
        demand_gone(&m->d, i);
        up_router_tell(u);
        break;
    }
    act(u);
}

/* ---- what the router tells ---------------------------------------------------------------------------------------------- */

static void read_active(struct up *u, struct up_report *r, json_val list)
{
    for (size_t i = 0; i < json_count(list); i++) {
        struct str name = {0};
        uint64_t n = 0;
        if (!json_str(json_get(json_at(list, i), "service"), &name) || !json_u64(json_get(json_at(list, i), "n"), &n))
            continue;
        for (size_t k = 0; k < u->demand.d.n; k++)
            if (str_eq_c(name, u->demand.units[k]->service->name))
                r->active[k] = n;
    }
}

static void read_waiting(struct up *u, struct up_report *r, json_val list)
{
    for (size_t i = 0; i < json_count(list) && r->n_waits < BASE_COUNT(r->waits); i++) {
        struct str name = {0};
        uint64_t n = 0, ms = 0;
        json_val v = json_at(list, i);
        if (!json_str(json_get(v, "endpoint"), &name) || !json_u64(json_get(v, "n"), &n) || !json_u64(json_get(v, "ms"), &ms))
            continue;
        for (size_t k = 0; k < u->fleet->n_endpoints; k++)
            if (str_eq_c(name, u->fleet->endpoints[k].name))
                r->waits[r->n_waits++] = (struct up_wait){.endpoint = k, .n = n, .since_ms = now_ms(u) > ms ? now_ms(u) - ms : 0};
    }
}

static void count_wait(struct up *u, const struct up_wait *w)
{
    const struct fleet_endpoint *e = &u->fleet->endpoints[w->endpoint];
    struct up_demand *m = &u->demand;
    size_t units[FLEET_SERVICES_MAX], n = 0;
    for (size_t i = 0; i < e->n_services; i++)
        for (size_t k = 0; k < m->d.n; k++)
            if (m->units[k]->service == e->services[i] && !m->units[k]->drained)
                units[n++] = k;
    if (n)
        demand_report_wait(&m->d, units, n, w->n, w->since_ms, now_ms(u));
}

/* All workers' reports together. A worker that has not told yet follows nothing. */
static void count(struct up *u)
{
    struct up_demand *m = &u->demand;
    uint64_t mark = UINT64_MAX;
    demand_report_begin(&m->d);
    for (size_t i = 0; i < m->d.n; i++) {
        uint64_t active = 0;
        for (const struct up_worker *w = u->router.workers; w; w = w->next)
            active += w->report ? w->report->active[i] : 0;
        demand_report_active(&m->d, i, active);
    }
    for (const struct up_worker *w = u->router.workers; w; w = w->next) {
        uint64_t its = w->report ? w->report->mark : 0;
        mark = its < mark ? its : mark;
        for (size_t i = 0; w->report && i < w->report->n_waits; i++)
            count_wait(u, &w->report->waits[i]);
    }
    demand_report_end(&m->d, mark, now_ms(u));
}

void up_demand_take(struct up_worker *w, json_val v)
{
    struct up *u = w->up;
    if (!w->report)
        w->report = calloc(1, sizeof *w->report);
    if (!w->report || !u->demand.d.n)
        return;
    *w->report = (struct up_report){0};
    (void)json_u64(json_get(v, "mark"), &w->report->mark);
    read_active(u, w->report, json_get(v, "active"));
    read_waiting(u, w->report, json_get(v, "waiting"));
    count(u);
    act(u);
}

void up_demand_worker_gone(struct up *u)
{
    if (!u->demand.d.n || u->phase != UP_SERVING)
        return;
    count(u);
    act(u);
}
