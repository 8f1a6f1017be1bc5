/* SPDX-License-Identifier: MIT
 *
 * Who reaches whom: the router its services, clients the router, and what a host's firewall says to each. Loopback is a place of its own: that of a host is neither another host's nor that of a container with a network of its own.
 */
#include "check_int.h"

#include <errno.h>
#include <fcntl.h>
#include <firewall/firewall.h>
#include <string.h>
#include <unistd.h>

/* ---- places --------------------------------------------------------------------------------------------------------- */

const struct fleet_host *check_router_host(const struct fleet *f)
{
    return f->router.host ? f->router.host : fleet_host_here(f);
}

static bool is_loopback(const char *ip)
{
    return strncmp(ip, "127.", 4) == 0 || strcmp(ip, "::1") == 0 || strcmp(ip, "localhost") == 0;
}

/* Whether a client runs on the router's host, and whether on its network. */
static bool beside_router(const struct fleet *f, const struct fleet_client *c)
{
    return !c->elsewhere && (!c->host || c->host == check_router_host(f));
}

static bool on_its_network(const struct fleet *f, const struct fleet_client *c)
{
    return beside_router(f, c) && c->network == FLEET_NETWORK_HOST;
}

int check_url_host(const char *url, struct arena *a, const char **ret_host, uint16_t *ret_port)
{
    bool tls = strncmp(url, "https://", 8) == 0;
    struct str s = str_of(url + (tls ? 8 : 7)), host = str_split(&s, '/');
    uint16_t port = tls ? 443 : 80;
    bool brackets = host.len && host.ptr[0] == '[';
    ptrdiff_t end = brackets ? str_find_char(host, ']') : -1, colon = -1;
    for (size_t i = end > 0 ? (size_t)end : 0; i < host.len; i++)
        if (host.ptr[i] == ':')
            colon = (ptrdiff_t)i;
    if (colon >= 0) {
        (void)fleet_is_port((struct str){host.ptr + colon + 1, host.len - (size_t)colon - 1}, &port); /* proven when the file was read */
        host.len = (size_t)colon;
    }
    if (end > 0)
        host = (struct str){host.ptr + 1, (size_t)end - 1};
    *ret_port = port;
    *ret_host = arena_dup(a, host);
    return *ret_host ? 0 : -ENOMEM;
}

/* ---- what a client asks ------------------------------------------------------------------------------------------------ */

int check_client_url(const struct fleet *f, const struct fleet_client *c, struct arena *a, const char **ret, struct err *err)
{
    const struct fleet_router *o = &f->router;
    const struct fleet_host *h = check_router_host(f);
    const char *address = o->address, *url;
    if (c->url) {
        *ret = c->url;
        return 0;
    }
    if (o->socket)
        return err_set(err, -EINVAL, "the router listens on a socket, which has no address for client '%s': give it a 'url'", c->name);
    if (check_is_wildcard(str_of(address)) && beside_router(f, c))
        address = c->network == FLEET_NETWORK_BRIDGE ? "host.containers.internal" : strcmp(address, "::") == 0 ? "::1" : "127.0.0.1";
    else if (check_is_wildcard(str_of(address))) {
        if (!h || !h->address)
            return err_set(err, -EINVAL, "client '%s' is on another machine, and the host of the router has no 'address'", c->name);
        address = h->address;
    }
    url = arena_printf(a, strchr(address, ':') ? "%s://[%s]:%u/v1" : "%s://%s:%u/v1", o->certificate ? "https" : "http", address, (unsigned)o->port);
    if (!url)
        return err_nomem(err);
    *ret = url;
    return 0;
}

/* ---- reach --------------------------------------------------------------------------------------------------------------- */

/* An address of the client's own choosing. */
static int judge_url(struct check_run *c, const struct fleet_client *cl, const char *subject, const char *at)
{
    const struct fleet_router *o = &c->f->router;
    const char *host = NULL;
    uint16_t port = 0;
    if (check_url_host(cl->url, c->a, &host, &port) < 0)
        return err_nomem(c->err);
    if (is_loopback(host) && !on_its_network(c->f, cl)) {
        c->fix = "use an address of the router's host, and let the router listen there, with keys";
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' is loopback %s, and the router is not there", cl->url, cl->network == FLEET_NETWORK_BRIDGE ? "of its container" : "of its machine");
    }
    if (port != o->port || o->socket)
        return check_found(c, CHECK_UNPROVEN, subject, at, "'%s' is no address of the router: what forwards it cannot be seen", cl->url);
    if (is_loopback(o->address) && !is_loopback(host)) {
        c->fix = "let the router listen at that address, with keys";
        return check_found(c, CHECK_BROKEN, subject, at, "it asks '%s', and the router listens on %s alone", host, o->address);
    }
    return check_found(c, CHECK_HOLDS, subject, at, "by %s", cl->url);
}

static int judge_client(struct check_run *c, const struct fleet_client *cl)
{
    const struct fleet_router *o = &c->f->router;
    const char *subject = check_subject(c, "client", cl->name), *at = check_at(c, cl->pos), *url = NULL;
    struct err err;
    if (cl->url)
        return judge_url(c, cl, subject, at);
    if (!o->socket && is_loopback(o->address) && !on_its_network(c->f, cl)) {
        c->fix = "let the router listen at an address of its host, with keys; or give the container '--network=host'";
        return check_found(c, CHECK_BROKEN, subject, at, "the router listens on %s alone, which is another place %s", o->address, beside_router(c->f, cl) ? "in a container with a network of its own" : "on its machine");
    }
    int r = check_client_url(c->f, cl, c->a, &url, &err);
    if (r == -ENOMEM)
        return err_nomem(c->err);
    if (r < 0) {
        c->fix = "give the client a 'url'";
        return check_found(c, CHECK_BROKEN, subject, at, "%s", err.text);
    }
    return check_found(c, CHECK_HOLDS, subject, at, "by %s", url);
}

/* A service of an endpoint that runs on another host than the router: its engine listens on loopback there, or with a key for others too. */
static int judge_service(struct check_run *c, const struct fleet_service *s)
{
    const struct fleet_host *h = check_router_host(c->f);
    const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos);
    if (s->host == h)
        return check_found(c, CHECK_HOLDS, subject, at, "on the router's host");
    if (!c->f->router.declared)
        return check_found(c, CHECK_NONE, subject, at, "on another host, and no router is declared");
    if (s->host->address && is_loopback(s->host->address))
        return check_found(c, CHECK_HOLDS, subject, at, "by %s, a tunnel of yours", s->host->address);
    if (fleet_service_wide(s)) {
        bool any = check_is_wildcard(str_of(s->bind));
        if (s->host->address || !any)
            return check_found(c, CHECK_HOLDS, subject, at, "by %s, with the key in '%s'", s->host->address ? s->host->address : s->bind, s->key);
        return check_found(c, CHECK_UNPROVEN, subject, at, "by its ssh target '%s', which must be its name here too: give the host an 'address'", s->host->ssh ? s->host->ssh : s->host->name);
    }
    c->fix = "'bind' it to an address of its host, with a 'key'; or run the router there, or forward the port (ssh -L) and set the host's 'address' to 127.0.0.1";
    return check_found(c, CHECK_BROKEN, subject, at, "it listens on %s of host '%s', and the router runs on %s%s%s", s->bind, s->host->name, h ? "host '" : "this machine", h ? h->name : "", h ? "'" : "");
}

static bool has_endpoint(const struct fleet *f, const struct fleet_service *s)
{
    for (size_t i = 0; i < f->n_endpoints; i++)
        for (size_t k = 0; k < f->endpoints[i].n_services; k++)
            if (f->endpoints[i].services[k] == s)
                return true;
    return false;
}

int check_reach(struct check_run *c)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        if (has_endpoint(c->f, s))
            r = judge_service(c, s);
        else
            r = check_found(c, CHECK_NONE, check_subject(c, "service", s->name), check_at(c, s->pos), "no endpoint names it");
    }
    for (size_t i = 0; r == 0 && i < c->f->n_clients; i++)
        r = judge_client(c, &c->f->clients[i]);
    return r;
}

/* ---- firewalls ------------------------------------------------------------------------------------------------------------ */

struct question {
    uint16_t port;
    bool loopback;
    const char *who;
};

/* What comes to a host's ports: our own probes over loopback, and clients from elsewhere at the router. */
static size_t questions_of(struct check_run *c, const struct fleet_host *h, struct question *q)
{
    const struct fleet_router *o = &c->f->router;
    size_t n = 0;
    for (size_t i = 0; i < c->f->n_services; i++)
        if (c->f->services[i].host == h)
            q[n++] = (struct question){c->f->services[i].port, true, arena_printf(c->a, "the probe of service '%s'", c->f->services[i].name)};
    if (h != check_router_host(c->f)) {
        for (size_t i = 0; i < c->f->n_services; i++)
            if (c->f->services[i].host == h && fleet_service_wide(&c->f->services[i]) && has_endpoint(c->f, &c->f->services[i]))
                q[n++] = (struct question){c->f->services[i].port, false, arena_printf(c->a, "the router's way to service '%s'", c->f->services[i].name)};
        return n;
    }
    if (o->socket || o->port == 0)
        return n;
    if (is_loopback(o->address))
        q[n++] = (struct question){o->port, true, "what asks the router"};
    for (size_t i = 0; !is_loopback(o->address) && i < c->f->n_clients; i++)
        q[n++] = (struct question){o->port, on_its_network(c->f, &c->f->clients[i]), arena_printf(c->a, "client '%s'", c->f->clients[i].name)};
    return n;
}

static int ask(struct check_run *c, const struct fleet_host *h, const struct firewall *f, const char *source)
{
    const char *subject = check_subject(c, "host", h->name);
    struct question *q = arena_alloc(c->a, 2 * c->f->n_services + c->f->n_clients + 1, sizeof *q);
    if (!q)
        return err_nomem(c->err);
    size_t n = questions_of(c, h, q);
    const struct question *doubt = NULL;
    unsigned doubt_line = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned line = 0, may = firewall_ask(f, &(struct firewall_probe){.port = q[i].port, .loopback = q[i].loopback}, &line);
        if (!q[i].who)
            return err_nomem(c->err);
        if (may == FIREWALL_STOPS)
            return check_found(c, CHECK_BROKEN, subject, h->firewall ? check_where(c, h->firewall, line) : check_at(c, h->pos), "%s is stopped at port %u by line %u of %s", q[i].who, (unsigned)q[i].port, line, source);
        if (may != FIREWALL_PASSES && !doubt) {
            doubt = &q[i];
            doubt_line = line;
        }
    }
    if (doubt)
        return check_found(c, CHECK_UNPROVEN, subject, check_at(c, h->pos), "%s may be stopped at port %u by line %u of %s: it depends on where it comes from", doubt->who, (unsigned)doubt->port, doubt_line, source);
    return check_found(c, CHECK_HOLDS, subject, check_at(c, h->pos), "%zu way%s through %s", n, n == 1 ? "" : "s", source);
}

static int judge_recorded(struct check_run *c, const struct fleet_host *h, struct buf *text)
{
    const char *subject = check_subject(c, "host", h->name), *wrong = check_file_wrong(c, h->firewall);
    struct err err;
    c->fix = "record it again: 'nft list ruleset >FILE' or 'iptables-save >FILE'";
    if (wrong)
        return check_found(c, CHECK_BROKEN, subject, check_at(c, h->pos), "%s", wrong);
    if (os_read_file(AT_FDCWD, h->firewall, text, &err) < 0)
        return check_found(c, CHECK_BROKEN, subject, check_at(c, h->pos), "%s", err.text);
    c->fix = NULL;
    return 0;
}

static int judge_firewall(struct check_run *c, const struct fleet_host *h)
{
    base_autobuf struct buf text = BUF_INIT(FIREWALL_TEXT_MAX);
    const char *subject = check_subject(c, "host", h->name), *at = check_at(c, h->pos), *source = h->firewall ? check_short(c, h->firewall) : "";
    struct firewall f;
    struct err err;
    size_t before = c->n;
    int r = h->firewall ? judge_recorded(c, h, &text) : 0;
    if (r < 0 || c->n > before)
        return r;
    if (!h->firewall && !check_is_here(h))
        return check_found(c, CHECK_UNPROVEN, subject, at, "its rules are not here: record them under 'firewall'");
    if (!h->firewall && geteuid() != 0)
        return check_found(c, CHECK_UNPROVEN, subject, at, "rules are read as root only; or record them under 'firewall'");
    r = h->firewall ? 0 : firewall_read(&text, &source, &err);
    if (r == -ENOMEM || r == -EINTR)
        return err_set(c->err, r, "%s", err.text);
    if (r < 0)
        return check_found(c, CHECK_UNPROVEN, subject, at, "its rules cannot be seen: %s", err.text);
    if (r == 1)
        return check_found(c, CHECK_NONE, subject, at, "neither nft nor iptables is here");
    r = firewall_parse(buf_str(&text), c->a, &f, &err);
    if (r == -ENOMEM)
        return err_nomem(c->err);
    if (r < 0)
        return check_found(c, CHECK_BROKEN, subject, h->firewall ? check_where(c, h->firewall, 0) : at, "rules that cannot be read: %s", err.text);
    return ask(c, h, &f, source);
}

int check_firewall(struct check_run *c)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_hosts; i++)
        r = judge_firewall(c, &c->f->hosts[i]);
    return r;
}
