/* SPDX-License-Identifier: MIT
 *
 * The router's values and what must be between them: where it listens, where metrics and status are, who may ask. Whoever can be reached from other machines asks for keys; what needs
 * no key is for this machine alone.
 */
#include "fleet_int.h"

int fleet_read_router_host(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    const void *found = fleet_find(r->fleet->hosts, r->fleet->n_hosts, sizeof *r->fleet->hosts, n->text);
    if (!found && n->kind == YAML_SCALAR && str_eq_c(n->text, "here"))
        return 0; /* this machine, declared or not */
    int rc = fleet_read_ref(r, n, "host", r->fleet->hosts, r->fleet->n_hosts, sizeof *r->fleet->hosts, &found);
    router->host = found;
    return rc;
}

/* ADDRESS:PORT; other: what it may be instead, for the message. */
static int read_place(struct fleet_reader *r, const struct yaml_node *n, const char *other, const char **ret, uint16_t *ret_port)
{
    const char *text;
    int rc = fleet_text(r, n, &text);
    if (rc < 0)
        return rc;
    /* The port follows the last colon; an IPv6 address stands in brackets, so that its own colons are inside. */
    const char *colon = strrchr(text, ':');
    struct str address = colon ? (struct str){text, (size_t)(colon - text)} : (struct str){NULL, 0};
    bool brackets = address.len > 2 && address.ptr[0] == '[' && address.ptr[address.len - 1] == ']';
    if (brackets)
        address = (struct str){address.ptr + 1, address.len - 2};
    uint16_t port = 0;
    bool v6 = str_find_char(address, ':') >= 0;
    if (!colon || !fleet_is_ip(address) || v6 != brackets || !colon[1])
        return fleet_refuse(r, n, "%s must be ADDRESS:PORT, such as '127.0.0.1:8080' or '[::1]:8080'%s, not '%s'", fleet_label(r), other,
                            fleet_show(r, str_of(text)));
    if (!str_eq_c(str_of(colon + 1), "0") && !fleet_is_port(str_of(colon + 1), &port))
        return fleet_refuse(r, n, "%s has the port '%s'; " FLEET_PORTS ", and with 0 the system chooses one", fleet_label(r), fleet_show(r, str_of(colon + 1)));
    const char *kept = arena_dup(r->arena, address);
    if (!kept)
        return err_nomem(r->err);
    *ret = kept;
    *ret_port = port;
    return 0;
}

int fleet_read_listen(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    if (n->kind == YAML_SCALAR && fleet_is_socket(n->text))
        return fleet_read_socket(r, n, n->text, &router->socket);
    return read_place(r, n, ", or unix:PATH", &router->address, &router->port);
}

int fleet_read_admin(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    const char *address = NULL;
    int rc = read_place(r, n, "", &address, &router->admin_port);
    if (rc < 0)
        return rc;
    if (!fleet_is_loopback(str_of(address)))
        return fleet_refuse(r, n, "%s is '%s', which other machines could reach, and it asks for no key; use '127.0.0.1'", fleet_label(r), address);
    router->admin = address;
    return 0;
}

int fleet_read_keys_file(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    const char *text;
    int rc = fleet_text(r, n, &text);
    return rc < 0 ? rc : fleet_path(r, n, str_of(text), &router->keys_file);
}

int fleet_read_bodies(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    int rc = fleet_map(r, n);
    return rc < 0 ? rc : fleet_read_part(r, &fleet_schema_bodies, n, fleet_label(r), fleet_key_pos_of(n), &router->bodies);
}

static int rules_bodies(struct fleet_reader *r)
{
    const struct fleet_bodies *b = &r->fleet->router.bodies;
    const struct yaml_node *n = yaml_get(yaml_get(r->root, "router"), "bodies");
    char most[UNITS_TEXT];
    if (!n)
        return 0;
    if (b->max_bytes > FLEET_BODY_MAX)
        return fleet_refuse(r, yaml_get(n, "max"), "'max' of bodies is at most %s", units_show_bytes(FLEET_BODY_MAX, most));
    if (b->max_bytes > b->disk_bytes && b->max_bytes > b->memory_bytes)
        return fleet_refuse(r, n, "a body of 'max' bytes fits neither into 'memory' nor into 'disk'; lower it, or raise one of them");
    return 0;
}

/* scheme://host[:port], as a browser writes it: a page's origin is compared byte for byte. */
int fleet_check_origin(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    struct str rest = text;
    bool https = str_starts(text, STR("https://")), ok = https || str_starts(text, STR("http://"));
    if (ok) {
        size_t skip = https ? 8 : 7;
        rest = (struct str){text.ptr + skip, text.len - skip};
    }
    ok = ok && rest.len > 0 && rest.len <= 300;
    for (size_t i = 0; ok && i < rest.len; i++) {
        char c = rest.ptr[i];
        ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == ':' || c == '[' || c == ']';
    }
    if (ok)
        return fleet_check_port(r, n, text);
    return fleet_refuse(r, n, "%s must be the origin of a page in lower case, such as 'https://chat.example' or 'http://127.0.0.1:3000', not '%s'", fleet_label(r), fleet_show(r, text));
}

int fleet_rules_router(struct fleet_reader *r)
{
    const struct fleet *f = r->fleet;
    const struct fleet_router *o = &f->router;
    const struct yaml_node *n = yaml_get(r->root, "router");
    if (!o->socket && !fleet_is_loopback(str_of(o->address)) && !o->keys_file)
        return fleet_refuse(r, yaml_get(n, "listen"), "'listen' of the router is '%s', which other machines can reach; add 'keys-file' ('berth key add NAME' fills it) or use '127.0.0.1'",
                            o->address);
    if (o->unit == FLEET_SYSTEMD && !o->host)
        return fleet_refuse(r, yaml_get(n, "unit"), "'unit' of the router is 'systemd', and it has no 'host'; name the one that runs it");
    for (size_t i = 0; o->unit == FLEET_SYSTEMD && i < f->n_services; i++)
        if (f->services[i].host == o->host && f->services[i].unit == FLEET_CHILD)
            return fleet_refuse_at(r, f->services[i].pos, "service '%s' is a child of 'berth up', which cannot run beside a router that is a unit of the same host '%s'; give it 'unit: systemd'", f->services[i].name, o->host->name);
    if (o->admin && o->admin_port && !o->socket && o->admin_port == o->port)
        return fleet_refuse(r, yaml_get(n, "admin"), "'admin' of the router has the port of 'listen'; choose another");
    int rc = rules_bodies(r);
    if (rc < 0)
        return rc;
    if (o->host && o->host->ssh)
        for (size_t i = 0; i < f->n_services; i++)
            if (f->services[i].start == FLEET_ON_DEMAND)
                return fleet_refuse_at(r, f->services[i].pos, "service '%s' starts on demand, which the router asks for, and that is on host '%s'; let both be on this machine", f->services[i].name, o->host->name);
    return 0;
}
