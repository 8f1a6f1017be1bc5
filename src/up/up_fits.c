/* SPDX-License-Identifier: MIT
 *
 * Which services on demand may be up together: those that the plan of the fleet, made for just them and all that is always up, finds room for, floors honoured, and that no group keeps apart. What cannot be planned
 * is known to nobody: it runs alone among those on demand. And whether the memory that a plan counts on is free at this moment.
 */
#include <errno.h>

#include <check/check.h>
#include <hw/hw.h>

#include "up_int.h"

#define CACHE_MS 10000 /* undeclared devices are planned with what is free just now */

/* ---- groups -------------------------------------------------------------------------------------------------- */

static bool in_group(const struct fleet_group *g, const struct up_service *us)
{
    for (size_t i = 0; i < g->n_services; i++)
        if (strcmp(g->services[i]->name, us->service->name) == 0)
            return true;
    return false;
}

static bool groups_allow(const struct up *u, const bool *up)
{
    const struct up_demand *m = &u->demand;
    for (size_t i = 0; i < u->fleet->n_groups; i++) {
        const struct fleet_group *g = &u->fleet->groups[i];
        size_t inside = 0, outside = 0;
        for (size_t k = 0; k < m->d.n; k++)
            if (up[k])
                (*(in_group(g, m->units[k]) ? &inside : &outside))++;
        if (g->rule == FLEET_EXCLUSIVE ? inside > 1 : inside > 0 && outside > 0)
            return false;
    }
    return true;
}

/* ---- the plan of a part of the fleet --------------------------------------------------------------------------- */

static bool takes_part(const struct up *u, const struct fleet_service *s, const bool *up)
{
    if (s->start != FLEET_ON_DEMAND)
        return true;
    for (size_t i = 0; i < u->demand.d.n; i++)
        if (u->demand.units[i]->service == s)
            return up[i];
    return false;
}

static size_t own_engines(const struct up *u, pid_t *pids)
{
    size_t n = 0;
    for (size_t i = 0; i < u->n_services; i++) {
        struct run_info info;
        run_info(u->services[i]->run, &info);
        if (info.pid > 0)
            pids[n++] = info.pid;
    }
    return n;
}

/* services: room for all of the fleet's; it must outlive the plan, as part must. */
static int plan_part(struct up *u, const bool *up, struct fleet_service *services, struct fleet *part, struct check_plan **ret, struct err *err)
{
    pid_t own[FLEET_SERVICES_MAX];
    *part = *u->fleet;
    part->services = services;
    part->n_services = 0;
    for (size_t i = 0; i < u->fleet->n_services; i++)
        if (takes_part(u, &u->fleet->services[i], up))
            services[part->n_services++] = u->fleet->services[i];
    struct check_plan_options o = {.own = own, .n_own = own_engines(u, own)};
    return check_plan_new(part, u->store, &o, ret, err);
}

static bool plan_fits(const struct check_plan *p)
{
    size_t demand = 0, unknown = 0;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        bool here = n->machine->here, on_demand = n->service->start == FLEET_ON_DEMAND;
        if (!here || !on_demand)
            continue;
        demand++;
        unknown += n->why != NULL;
        if (n->why && n->broken)
            return false;
        if (!n->why && !n->machine->fits)
            return false;
    }
    return unknown == 0 || demand == 1;
}

static bool look_up(const struct up_demand *m, uint64_t key, uint64_t now, bool *ret)
{
    for (size_t i = 0; i < BASE_COUNT(m->fits); i++) {
        if (m->fits[i].key != key || m->fits[i].until_ms <= now)
            continue;
        *ret = m->fits[i].fits;
        return true;
    }
    return false;
}

bool up_fits(void *ctx, const bool *up)
{
    struct up *u = ctx;
    struct up_demand *m = &u->demand;
    uint64_t key = 0, now = net_loop_now_ms(u->loop);
    size_t n = 0;
    for (size_t i = 0; i < m->d.n; i++) {
        key |= up[i] && i < 64 ? UINT64_C(1) << i : 0;
        n += up[i];
    }
    bool fits = true, cached = m->d.n <= 64;
    if (n == 0)
        return true;
    if (!groups_allow(u, up))
        return false;
    if (cached && look_up(m, key, now, &fits))
        return fits;
    struct fleet part;
    struct check_plan *p = NULL;
    struct err err;
    base_autofree struct fleet_service *services = calloc(u->fleet->n_services, sizeof *services);
    if (!services || plan_part(u, up, services, &part, &p, &err) < 0)
        return n == 1; /* nobody knows: one alone */
    fits = plan_fits(p);
    check_plan_free(p);
    if (cached)
        m->fits[m->n_fits++ % BASE_COUNT(m->fits)] = (struct up_fit){.key = key, .until_ms = now + CACHE_MS, .fits = fits};
    return fits;
}

/* ---- what is free ------------------------------------------------------------------------------------------------ */

/* What the service takes, of each card and of the host, by the plan of what is up with it. */
static int find_need(struct up *u, const struct up_service *us, struct up_need *ret)
{
    struct up_demand *m = &u->demand;
    struct fleet part;
    struct check_plan *p = NULL;
    bool up[FLEET_SERVICES_MAX] = {0};
    base_autofree struct fleet_service *services = calloc(u->fleet->n_services, sizeof *services);
    *ret = (struct up_need){.found = true};
    if (!services)
        return -ENOMEM;
    for (size_t i = 0; i < m->d.n; i++)
        up[i] = m->d.units[i].state != DEMAND_DOWN;
    int rc = plan_part(u, up, services, &part, &p, NULL);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        const struct check_machine *machine = n->machine;
        if (strcmp(n->service->name, us->service->name) != 0)
            continue;
        for (size_t d = 0; d <= machine->n_devices; d++) {
            const struct fit_use *use = check_use(n, d);
            if (use && d == machine->n_devices)
                ret->host_bytes = use->used;
            else if (use && machine->card[d] >= 0)
                ret->card_bytes[machine->card[d]] += use->used;
        }
    }
    check_plan_free(p);
    return 0;
}

bool up_fits_free(struct up *u, struct up_service *us, char ret_what[96])
{
    struct up_demand *m = &u->demand;
    char free_text[UNITS_TEXT], need_text[UNITS_TEXT];
    if (!m->hw && (hw_open(NULL, &m->reader, NULL) < 0 || !(m->hw = calloc(1, sizeof *m->hw)) || hw_read(m->reader, m->hw, NULL) < 0))
        return true; /* nobody can say */
    if (hw_update(m->reader, m->hw, NULL) < 0 || (us->need.found ? 0 : find_need(u, us, &us->need)) < 0)
        return true;
    for (size_t i = 0; i < m->hw->n_devices; i++) {
        const struct hw_device *d = &m->hw->devices[i];
        if (!d->memory_known || d->free_bytes >= us->need.card_bytes[i])
            continue;
        snprintf(ret_what, 96, "%s has %s free of the %s it takes", d->pci, units_show_bytes(d->free_bytes, free_text), units_show_bytes(us->need.card_bytes[i], need_text));
        return false;
    }
    if (m->hw->host.available_bytes >= us->need.host_bytes)
        return true;
    snprintf(ret_what, 96, "the machine has %s available of the %s it takes", units_show_bytes(m->hw->host.available_bytes, free_text), units_show_bytes(us->need.host_bytes, need_text));
    return false;
}

void up_fits_release(struct up *u)
{
    u->demand.reader = hw_close(u->demand.reader);
    free(u->demand.hw);
    u->demand.hw = NULL;
}
