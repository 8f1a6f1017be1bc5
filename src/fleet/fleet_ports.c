/* SPDX-License-Identifier: MIT
 *
 * Rules over the whole fleet: nobody listens where somebody else does, and a name that a client asks for means one
 * endpoint.
 */
#include "fleet_int.h"

/* ---- ports ---------------------------------------------------------------------------------------------------------- */

static const struct yaml_node *service_port(const struct fleet_reader *r, const struct fleet_service *s)
{
    return yaml_get(yaml_get(yaml_get(r->root, "services"), s->name), "port");
}

static int refuse_router_port(struct fleet_reader *r, const struct fleet_service *s)
{
    const struct yaml_node *listen = yaml_get(yaml_get(r->root, "router"), "listen");
    if (listen)
        return fleet_refuse(r, listen, "port %u of the router is that of service '%s' at line %u; choose another", (unsigned)s->port, s->name,
                            service_port(r, s)->line);
    return fleet_refuse(r, service_port(r, s), "port %u of service '%s' is the router's; choose another, or give the router one with 'listen'",
                        (unsigned)s->port, s->name);
}

int fleet_rules_ports(struct fleet_reader *r)
{
    const struct fleet *f = r->fleet;
    for (size_t i = 0; i < f->n_services; i++) {
        const struct fleet_service *s = &f->services[i];
        for (size_t k = 0; k < i; k++) {
            const struct fleet_service *other = &f->services[k];
            if (s->port == 0 && strcmp(other->bind, s->bind) == 0)
                return fleet_refuse_at(r, s->pos, "socket '%s' of service '%s' is that of service '%s' at line %u; choose another", fleet_service_socket(s), s->name, other->name, other->pos.line);
            if (s->port && other->host == s->host && other->port == s->port)
                return fleet_refuse(r, service_port(r, s), "port %u of service '%s' is that of service '%s' at line %u, on the same host; choose another",
                                    (unsigned)s->port, s->name, other->name, service_port(r, other)->line);
        }
        /* at most one host is this machine, so that a router without a host stands beside every service that has no ssh */
        bool beside = f->router.host ? f->router.host == s->host : !s->host->ssh;
        const char *socket = fleet_service_socket(s);
        if (beside && socket && f->router.socket && strcmp(socket, f->router.socket) == 0)
            return fleet_refuse_at(r, s->pos, "socket '%s' of service '%s' is the router's; choose another", socket, s->name);
        if (!s->port)
            continue;
        if (beside && !f->router.socket && s->port == f->router.port)
            return refuse_router_port(r, s);
        if (beside && f->router.admin && s->port == f->router.admin_port)
            return fleet_refuse(r, yaml_get(yaml_get(r->root, "router"), "admin"), "'admin' of the router has the port of service '%s' at line %u; choose another", s->name,
                                service_port(r, s)->line);
    }
    return 0;
}

/* ---- endpoint names ------------------------------------------------------------------------------------------------------- */

/* One name that clients may ask for. */
struct asked {
    const char *name;
    const struct fleet_endpoint *endpoint;
    struct fleet_pos pos;
};

static int by_name_then_place(const void *pa, const void *pb)
{
    const struct asked *a = pa, *b = pb;
    int d = strcmp(a->name, b->name);
    if (d == 0 && a->pos.line != b->pos.line)
        d = a->pos.line < b->pos.line ? -1 : 1;
    if (d == 0 && a->pos.column != b->pos.column)
        d = a->pos.column < b->pos.column ? -1 : 1;
    return d;
}

/* Every name and alias of the endpoints, in their order; all has room for them. */
static size_t collect(const struct fleet_reader *r, struct asked *all)
{
    const struct yaml_node *section = yaml_get(r->root, "endpoints");
    size_t n = 0, i = 0;
    for (const struct yaml_node *c = section ? section->first : NULL; c; c = c->next, i++) {
        const struct fleet_endpoint *e = &r->fleet->endpoints[i];
        all[n++] = (struct asked){e->name, e, e->pos};
        const struct yaml_node *aliases = yaml_get(c, "aliases");
        const struct yaml_node *a = aliases ? aliases->first : NULL;
        for (size_t k = 0; k < e->n_aliases && a; k++, a = a->next)
            all[n++] = (struct asked){e->aliases[k], e, fleet_pos_of(a)};
    }
    return n;
}

int fleet_rules_endpoints(struct fleet_reader *r)
{
    size_t room = 1;
    for (size_t i = 0; i < r->fleet->n_endpoints; i++)
        room += 1 + r->fleet->endpoints[i].n_aliases;
    struct asked *all = arena_alloc(r->arena, room, sizeof *all);
    if (!all)
        return err_nomem(r->err);
    size_t n = collect(r, all);
    qsort(all, n, sizeof *all, by_name_then_place);
    for (size_t i = 1; i < n; i++) {
        const struct asked *a = &all[i - 1], *b = &all[i];
        if (strcmp(a->name, b->name) == 0)
            return fleet_refuse_at(r, b->pos, "endpoint '%s' goes by the name '%s', which endpoint '%s' has at line %u; names must differ",
                                   b->endpoint->name, b->name, a->endpoint->name, a->pos.line);
    }
    return 0;
}
