/* SPDX-License-Identifier: MIT
 *
 * Addresses of hosts that are declared by name. A name is looked up beside the loop (net_resolve), kept over a reload, and looked up again now and then, and when no address of it answers. Of several addresses one is
 * in use, the first of the system's order; when it does not answer the next one is.
 */
#include "up_int.h"

#define AGAIN_MS 60000     /* of a name whose address answers: machines move */
#define RETRY_MS 5000      /* of one that is not known, or none of whose addresses answers */

struct up_name {
    struct up *up;
    struct net_addr addrs[NET_RESOLVE_MAX];
    size_t n, at;           /* at: in use */
    bool used;              /* a service of the fleet has it */
    bool failing;           /* none of them answered since it was looked up */
    struct net_resolve *look;
    uint64_t looked_ms;     /* when the last look-up ended; 0: none has */
    char why[ERR_TEXT_MAX]; /* it has no address */
    struct up_name *next;
    char host[];
};

static void on_found(void *ctx, const struct net_addr *addrs, size_t n, const char *why)
{
    struct up_name *o = ctx;
    struct net_addr before = o->n ? o->addrs[o->at] : (struct net_addr){0};
    bool had = o->n > 0;
    o->look = NULL;
    o->looked_ms = net_loop_now_ms(o->up->loop);
    o->failing = false;
    if (n == 0)
        snprintf(o->why, sizeof o->why, "host '%s' is not known: %s", o->host, why);
    if (n == 0 && had)
        return; /* a resolver that is down says nothing of a machine that answers */
    o->n = n;
    o->at = 0;
    for (size_t i = 0; i < n; i++) {
        o->addrs[i] = addrs[i];
        if (had && net_addr_eq(&addrs[i], &before))
            o->at = i; /* what is in use stays in use */
    }
    up_watch_named(o->up, o);
}

static void look_up(struct up_name *o)
{
    struct err err;
    if (o->look || net_resolve(o->up->loop, o->host, 0, on_found, o, &o->look, &err) == 0)
        return;
    o->looked_ms = net_loop_now_ms(o->up->loop);
    snprintf(o->why, sizeof o->why, "%s", err.text);
}

struct up_name *up_name_of(struct up *u, const char *host)
{
    struct up_name *o = u->names;
    size_t len = strlen(host);
    while (o && strcmp(o->host, host) != 0)
        o = o->next;
    if (!o) {
        o = calloc(1, sizeof(*o) + len + 1);
        if (!o)
            return NULL;
        o->up = u;
        memcpy(o->host, host, len + 1);
        o->next = u->names;
        u->names = o;
        look_up(o);
    }
    o->used = true;
    return o;
}

bool up_name_address(const struct up_name *o, uint16_t port, struct net_addr *ret)
{
    if (o->n == 0)
        return false;
    *ret = o->addrs[o->at];
    ret->port = port;
    return true;
}

bool up_name_is_new(const struct up_name *o)
{
    return o->looked_ms == 0;
}

const char *up_name_why(const struct up_name *o)
{
    return up_name_is_new(o) ? "the name of its host is being looked up" : o->why;
}

bool up_name_next(struct up_name *o)
{
    bool more = o->at + 1 < o->n;
    if (o->n)
        o->at = more ? o->at + 1 : 0;
    o->failing = o->failing || !more;
    return o->n > 1;
}

static struct up_name *name_free(struct up_name *o)
{
    struct up_name *next = o->next;
    o->look = net_resolve_cancel(o->look);
    free(o);
    return next;
}

void up_names_tick(struct up *u)
{
    uint64_t now = net_loop_now_ms(u->loop);
    for (struct up_name *o = u->names; o; o = o->next)
        if (!up_name_is_new(o) && now - o->looked_ms >= (o->n && !o->failing ? AGAIN_MS : RETRY_MS))
            look_up(o);
}

void up_names_unused(struct up *u)
{
    for (struct up_name *o = u->names; o; o = o->next)
        o->used = false;
}

void up_names_prune(struct up *u)
{
    for (struct up_name **at = &u->names; *at;) {
        if ((*at)->used)
            at = &(*at)->next;
        else
            *at = name_free(*at);
    }
}
