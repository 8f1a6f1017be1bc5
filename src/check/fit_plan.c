/* SPDX-License-Identifier: MIT
 *
 * The predictions of a plan. Services of one machine share its devices: each is predicted alone first, then again with what the others take away, because shares by free memory and a cache's room depend on it. Where all of them do not fit, those on demand
 * take turns: each is predicted beside what is always up, and the machine's figures are the worst of that.
 */
#include "check_int.h"

#include <errno.h>
#include <string.h>

#define PLAN_MEMORY ((size_t)1 << 30) /* arena: results and texts; models have their own */

/* ---- figures ------------------------------------------------------------------------------------------------------ */

const struct fit_use *check_use(const struct check_need *n, size_t d)
{
    size_t devices = n->machine->n_devices;
    if (n->why || !n->result)
        return NULL;
    if (n->pool)
        return d <= devices ? &n->result->use[d] : NULL;
    if (d == devices)
        return &n->result->use[n->input.n_devices];
    return d < n->input.n_devices ? &n->result->use[d] : NULL;
}

const char *check_device_name(const struct check_machine *m, size_t d)
{
    return d < m->n_devices ? m->devices[d].name : "RAM";
}

uint64_t check_floor(const struct check_machine *m, size_t d)
{
    return d < m->n_devices ? m->devices[d].floor_bytes : m->memory.floor_bytes;
}

uint64_t check_free(const struct check_machine *m, size_t d)
{
    return d < m->n_devices ? m->devices[d].free_bytes : m->memory.free_bytes;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return size_add(a, b, &sum) && sum < FIT_BYTES_MAX ? sum : FIT_BYTES_MAX;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What n takes of device d; a shared pool's part counts for the host too. */
static uint64_t use_of(const struct check_need *n, size_t d)
{
    const struct check_machine *m = n->machine;
    const struct fit_use *u = check_use(n, d);
    uint64_t sum = u ? u->used : 0;
    for (size_t k = 0; d == m->n_devices && k < m->n_devices; k++)
        if (m->devices[k].shared && (u = check_use(n, k)) != NULL)
            sum = add(sum, u->used);
    return sum;
}

static bool may_go(const struct check_need *n)
{
    return n->service->start == FLEET_ON_DEMAND && n->service->pin != FLEET_YES;
}

bool check_takes_turns(const struct check_need *n)
{
    return n->machine->turns && may_go(n);
}

/* What the services of m but one take of device d; of those that take turns nothing. */
static uint64_t taken(const struct check_plan *p, const struct check_machine *m, size_t d, const struct check_need *but)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        if (n->machine == m && n != but && !check_takes_turns(n))
            sum = add(sum, use_of(n, d));
    }
    return sum;
}

/* Of those that take turns the one that takes most of device d; NULL: there is none. */
static const struct check_need *largest_turn(const struct check_plan *p, const struct check_machine *m, size_t d)
{
    const struct check_need *best = NULL;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        if (n->machine == m && check_takes_turns(n) && (!best || use_of(n, d) > use_of(best, d)))
            best = n;
    }
    return best;
}

uint64_t check_used_with(const struct check_plan *p, const struct check_need *n, size_t d)
{
    return check_takes_turns(n) ? add(taken(p, n->machine, d, n), use_of(n, d)) : n->machine->used[d];
}

bool check_counts(const struct check_plan *p, const struct check_need *n, size_t d)
{
    return !check_takes_turns(n) || n == largest_turn(p, n->machine, d);
}

/* ---- predictions ---------------------------------------------------------------------------------------------------- */

static int predict(struct check_plan *p, struct check_need *n, struct err *err)
{
    struct err why;
    if (n->pool)
        return 0; /* depends on nobody else */
    int r = fit_predict(&n->input, p->arena, n->result, &why);
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r < 0) {
        n->result = NULL;
        n->why = arena_dup(p->arena, str_of(why.text));
        n->broken = true;
        return n->why ? 0 : err_nomem(err);
    }
    return 0;
}

/* What was measured before, looked up with the prediction that knows nothing of it. */
static int calibrate(struct check_plan *p, struct check_need *n, struct err *err)
{
    if (!p->state->options.ledger || !n->runtime || n->pool)
        return 0;
    struct err why;
    int r = measure_calibration(p->state->options.ledger, &n->key, &n->input, n->result, p->arena, &n->calibration, &why);
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r < 0) {
        n->calibration = (struct measure_calibration){.n_compute = 0};
        check_machine_note(p, n->machine, "service %s: the ledger cannot be used: %s", n->service->name, why.text);
        return 0;
    }
    n->input.calibration = n->calibration.c.n ? &n->calibration.c : NULL;
    return 0;
}

static void leave_to_others(struct check_plan *p, struct check_need *n)
{
    const struct check_machine *m = n->machine;
    for (size_t d = 0; d < m->n_devices; d++)
        n->devices[d].free_bytes = less(m->devices[d].free_bytes, taken(p, m, d, n));
    n->memory.free_bytes = m->memory_known ? less(m->memory.free_bytes, taken(p, m, m->n_devices, n)) : FIT_BYTES_MAX;
}

static bool refused(const struct check_need *n)
{
    for (size_t i = 0; i < n->result->n_notes; i++)
        if (n->result->notes[i].severity == FIT_REFUSED)
            return true;
    return false;
}

/* The largest difference between what is left of the devices, while `turn` is up with what is always up. */
static uint64_t gap_with(const struct check_plan *p, const struct check_machine *m, const struct check_need *turn)
{
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (size_t d = 0; d < m->n_devices; d++) {
        int64_t left = (int64_t)check_free(m, d) - (int64_t)add(taken(p, m, d, turn), turn ? use_of(turn, d) : 0);
        low = left < low ? left : low;
        high = left > high ? left : high;
    }
    return m->n_devices > 1 ? (uint64_t)(high - low) : 0;
}

/* Whether its memory is enough; an engine may refuse all the same. */
static bool has_room(const struct check_machine *m)
{
    for (size_t d = 0; d <= m->n_devices; d++)
        if (m->left[d] < (int64_t)check_floor(m, d))
            return false;
    return m->slack_bytes == 0 || m->gap_bytes <= m->slack_bytes;
}

/* The sums of a machine, from its services' predictions. */
static void sum_up(struct check_plan *p, struct check_machine *m)
{
    int64_t least = INT64_MAX;
    m->planned = false;
    m->gap_bytes = 0;
    for (size_t d = 0; d <= m->n_devices; d++) {
        const struct check_need *turn = largest_turn(p, m, d);
        m->used[d] = add(taken(p, m, d, NULL), turn ? use_of(turn, d) : 0);
        m->left[d] = (int64_t)check_free(m, d) - (int64_t)m->used[d];
        int64_t over = m->left[d] - (int64_t)check_floor(m, d);
        if (over < least) {
            least = over;
            m->binds = (int)d;
        }
    }
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        uint64_t gap = n->machine == m && (check_takes_turns(n) || !m->turns) ? gap_with(p, m, check_takes_turns(n) ? n : NULL) : 0;
        m->planned = m->planned || (n->machine == m && !n->why);
        m->gap_bytes = gap > m->gap_bytes ? gap : m->gap_bytes;
    }
    m->fits = has_room(m);
    for (size_t i = 0; i < p->n_needs; i++)
        if (p->needs[i].machine == m && !p->needs[i].why && refused(&p->needs[i]))
            m->fits = false;
}

/* Predicts all needs of a machine again, after shapes or calibrations of some were changed. */
static int plan_again(struct check_plan *p, struct check_machine *m, struct err *err)
{
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < p->n_needs; i++) {
            struct check_need *n = &p->needs[i];
            if (n->machine != m || n->why)
                continue;
            if (pass)
                leave_to_others(p, n);
            int r = predict(p, n, err);
            if (r == 0 && pass == 0 && !n->why && !n->input.calibration)
                r = calibrate(p, n, err);
            if (r < 0)
                return r;
        }
    sum_up(p, m);
    return 0;
}

/* What a prediction beside all others took away from a need. */
struct before {
    const char *why;
    struct fit_result *result;
};

/* How many services of m could be planned and may go for others. */
static size_t count_demand(const struct check_plan *p, const struct check_machine *m, const struct before *before)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_needs; i++)
        n += p->needs[i].machine == m && may_go(&p->needs[i]) && !before[i].why;
    return n;
}

/* All at once; where that does not fit, and may be otherwise, in turns. */
static int plan_machine(struct check_plan *p, struct check_machine *m, struct err *err)
{
    bool all = true;
    struct before *before = arena_alloc(p->arena, p->n_needs + 1, sizeof *before);
    if (!before)
        return err_nomem(err);
    for (size_t i = 0; i < p->n_needs; i++)
        before[i] = (struct before){p->needs[i].why, p->needs[i].result};
    int r = plan_again(p, m, err);
    for (size_t i = 0; i < p->n_needs; i++)
        all = all && (p->needs[i].machine != m || p->needs[i].why == before[i].why);
    if (r < 0 || (has_room(m) && all) || !p->state->options.turns || count_demand(p, m, before) < 2)
        return r;
    for (size_t i = 0; i < p->n_needs; i++) {
        struct check_need *n = &p->needs[i];
        if (n->machine != m || before[i].why)
            continue;
        n->why = NULL;
        n->broken = false;
        n->result = before[i].result;
    }
    m->turns = true;
    check_machine_note(p, m, "services on demand do not fit together and take turns: figures are of the largest beside what stays up");
    return plan_again(p, m, err);
}

/* ---- floors --------------------------------------------------------------------------------------------------------- */

static uint64_t floor_of(const struct check_need *n)
{
    return n->service->floor_set ? n->service->floor_bytes : n->machine->host->floor_bytes;
}

/* A device keeps the largest floor that a service on it asks for, a machine the smallest slack. */
static void take_floors(struct check_plan *p, struct check_machine *m)
{
    const struct check_plan_options *o = &p->state->options;
    bool on_devices = false, any = false;
    uint64_t devices = m->host->floor_bytes, memory = m->host->floor_bytes, slack = 0;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        if (n->machine != m)
            continue;
        uint64_t own = floor_of(n), gap = n->service->slack_bytes ? n->service->slack_bytes : m->host->slack_bytes;
        memory = !any || own > memory ? own : memory;
        any = true;
        slack = gap && (!slack || gap < slack) ? gap : slack;
        if (n->input.n_devices || n->pool) {
            devices = !on_devices || own > devices ? own : devices;
            on_devices = true;
        }
        char text[UNITS_TEXT];
        if (n->service->floor_set)
            check_machine_note(p, m, "service %s keeps a floor of its own, %s: %s", n->service->name, units_show_bytes(own, text), n->service->reason);
        if (n->service->slack_bytes)
            check_machine_note(p, m, "service %s has a slack of its own, %s: %s", n->service->name, units_show_bytes(gap, text), n->service->reason);
    }
    for (size_t d = 0; d < m->n_devices; d++)
        m->devices[d].floor_bytes = o->floor_set ? o->floor_bytes : devices;
    m->memory.floor_bytes = o->floor_set ? o->floor_bytes : memory;
    m->slack_bytes = o->slack_set ? o->slack_bytes : slack;
    for (size_t i = 0; i < p->n_needs; i++) {
        struct check_need *n = &p->needs[i];
        for (size_t d = 0; n->machine == m && d < m->n_devices; d++)
            n->devices[d].floor_bytes = m->devices[d].floor_bytes;
        if (n->machine == m)
            n->memory.floor_bytes = m->memory.floor_bytes;
    }
}

/* ---- the plan --------------------------------------------------------------------------------------------------------- */

static struct check_machine *machine_of(const struct check_plan *p, const struct fleet_host *h)
{
    return &p->machines[h - p->fleet->hosts];
}

static bool has_service(const struct fleet *f, const struct fleet_host *h)
{
    for (size_t i = 0; i < f->n_services; i++)
        if (f->services[i].host == h)
            return true;
    return false;
}

static int fill(struct check_plan *p, struct err *err)
{
    const struct fleet *f = p->fleet;
    int r = 0;
    p->machines = arena_alloc(p->arena, f->n_hosts, sizeof(*p->machines));
    p->needs = arena_alloc(p->arena, f->n_services, sizeof(*p->needs));
    p->state->runtimes = arena_alloc(p->arena, f->n_runtimes, sizeof(*p->state->runtimes));
    if ((f->n_hosts && !p->machines) || (f->n_services && !p->needs) || (f->n_runtimes && !p->state->runtimes))
        return err_nomem(err);
    for (size_t i = 0; r == 0 && i < f->n_hosts; i++) {
        p->machines[i].host = &f->hosts[i];
        p->n_machines++;
        if (has_service(f, &f->hosts[i]))
            r = check_machine_init(p, &p->machines[i], &f->hosts[i], err);
    }
    for (size_t i = 0; r == 0 && i < f->n_services; i++) {
        p->needs[i] = (struct check_need){.service = &f->services[i], .machine = machine_of(p, f->services[i].host)};
        p->n_needs++;
        r = check_need_init(p, &p->needs[i], err);
    }
    for (size_t i = 0; r == 0 && i < p->n_machines; i++) {
        if (!has_service(f, p->machines[i].host))
            continue;
        take_floors(p, &p->machines[i]);
        r = plan_machine(p, &p->machines[i], err);
    }
    return r;
}

int check_plan_new(const struct fleet *f, struct store *s, const struct check_plan_options *o, struct check_plan **ret, struct err *err)
{
    struct arena *a = arena_new(PLAN_MEMORY);
    struct check_plan *p = a ? arena_alloc(a, 1, sizeof(*p)) : NULL;
    struct check_plan_state *st = p ? arena_alloc(a, 1, sizeof(*st)) : NULL;
    if (!st) {
        arena_free(a);
        return err_nomem(err);
    }
    *p = (struct check_plan){.fleet = f, .arena = a, .state = st};
    st->store = s;
    if (o)
        st->options = *o;
    int r = fill(p, err);
    if (r < 0)
        check_plan_free(p);
    else
        *ret = p;
    return r;
}

struct check_plan *check_plan_free(struct check_plan *p)
{
    if (!p)
        return NULL;
    for (struct check_model *m = p->state->models; m; m = m->next) {
        m->model = model_free(m->model);
        store_weights_release(&m->files);
    }
    for (size_t i = 0; p->state->runtimes && i < p->fleet->n_runtimes; i++)
        if (p->state->runtimes[i].installed)
            store_runtime_release(&p->state->runtimes[i].found);
    arena_free(p->arena);
    return NULL;
}
