/* SPDX-License-Identifier: MIT
 *
 * Places that are files: sockets of the router and of services, the certificate that the router shows. Paths are taken from the fleet file's folder when relative; whether they are there
 * is for who opens them.
 */
#include "fleet_int.h"

#define SOCKET_PATH_MAX 107 /* what the kernel's address of a socket holds */

bool fleet_is_socket(struct str text)
{
    return str_starts(text, STR("unix:"));
}

int fleet_read_socket(struct fleet_reader *r, const struct yaml_node *n, struct str text, const char **ret)
{
    const char *path;
    int rc = fleet_path(r, n, (struct str){text.ptr + 5, text.len - 5}, &path);
    if (rc < 0)
        return rc;
    if (strlen(path) > SOCKET_PATH_MAX)
        return fleet_refuse(r, n, "%s is '%s', %zu bytes; a socket's path has at most %d", fleet_label(r), fleet_show(r, str_of(path)), strlen(path), SOCKET_PATH_MAX);
    *ret = path;
    return 0;
}

int fleet_read_bind(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    const char *text;
    int rc = fleet_text(r, n, &text);
    if (rc < 0)
        return rc;
    if (fleet_is_socket(str_of(text))) {
        rc = fleet_read_socket(r, n, str_of(text), &text);
        text = rc < 0 ? NULL : arena_printf(r->arena, "unix:%s", text);
        if (rc == 0 && !text)
            rc = err_nomem(r->err);
    } else {
        rc = fleet_check_bind(r, n, str_of(text));
    }
    if (rc == 0)
        s->bind = text;
    return rc;
}

const char *fleet_service_socket(const struct fleet_service *s)
{
    return s->bind && fleet_is_socket(str_of(s->bind)) ? s->bind + 5 : NULL;
}

static int read_path(struct fleet_reader *r, const struct yaml_node *n, const char **ret)
{
    const char *text;
    int rc = fleet_text(r, n, &text);
    return rc < 0 ? rc : fleet_path(r, n, str_of(text), ret);
}

int fleet_read_certificate(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    return read_path(r, n, &router->certificate);
}

int fleet_read_key(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_router *router = part;
    return read_path(r, n, &router->key);
}

int fleet_read_tls(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    int rc = fleet_map(r, n);
    return rc < 0 ? rc : fleet_read_part(r, &fleet_schema_tls, n, fleet_label(r), fleet_key_pos_of(n), part);
}

int fleet_rules_listen(struct fleet_reader *r)
{
    const struct fleet_router *o = &r->fleet->router;
    const struct yaml_node *n = yaml_get(r->root, "router");
    if (o->socket && o->certificate)
        return fleet_refuse(r, yaml_get(n, "tls"), "'tls' of the router does not go with a socket of this machine; leave it out, or listen at an address");
    if (o->group && !o->socket)
        return fleet_refuse(r, yaml_get(n, "group"), "'group' of the router is for a socket of this machine: 'listen: unix:PATH'; leave it out");
    return 0;
}
