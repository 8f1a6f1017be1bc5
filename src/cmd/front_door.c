/* SPDX-License-Identifier: MIT
 *
 * The router that is up here, asked as clients ask. Where it listens and what it has read is its own word, over its control socket; so is berth's key.
 */
#include "front_int.h"

#include <errno.h>
#include <fcntl.h>
#include <probe/probe.h>
#include <proxy/proxy.h>
#include <stdio.h>
#include <string.h>
#include <up/up.h>

#define ANSWER_MAX (8u << 20)

static int get(const struct os_dirs *dirs, const struct fleet *f, const char *target, struct json **ret, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(ANSWER_MAX);
    unsigned status = 0;
    int r = up_call(dirs, f->name, "GET", target, &status, &body, err);
    if (r == 0 && status != 200)
        r = err_set(err, -EIO, "it answers %u", status);
    if (r == 0)
        r = json_parse(buf_str(&body), ret, err);
    if (body.len)
        explicit_bzero(body.ptr, body.len); /* one of them is a key */
    return r;
}

/* "http://127.0.0.1:8080", "https://..." or "unix:/run/x.sock", as the status has it. */
static bool read_url(const char *url, struct net_addr *ret, bool *ret_tls)
{
    char host[NET_HOST_MAX];
    uint64_t port;
    *ret_tls = strncmp(url, "https://", 8) == 0;
    if (strncmp(url, "unix:", 5) == 0)
        return net_addr_unix(url + 5, ret) == 0;
    const char *at = *ret_tls ? url + 8 : strncmp(url, "http://", 7) == 0 ? url + 7 : NULL, *colon = at ? strrchr(at, ':') : NULL;
    if (!colon || str_to_u64(str_of(colon + 1), &port) < 0 || port > UINT16_MAX)
        return false;
    bool brackets = *at == '[' && colon > at + 1;
    int n = snprintf(host, sizeof host, "%.*s", (int)(colon - at) - 2 * brackets, at + brackets);
    return n > 0 && (size_t)n < sizeof host && net_addr_ip(host, (uint16_t)port, ret) == 0;
}

static int read_certificate(const struct fleet *f, struct net_tls **ret, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(NET_PEM_MAX);
    if (!f->router.certificate)
        return err_set(err, -EINVAL, "the router speaks TLS, and the fleet file names no 'tls' of it: 'berth reload' there");
    int r = os_read_file(AT_FDCWD, f->router.certificate, &text, err);
    if (r == 0 && (r = net_tls_trust(buf_str(&text), ret, err)) < 0)
        return err_prefix(err, "'%s'", f->router.certificate);
    return r;
}

int front_door_open(const struct os_dirs *dirs, const struct fleet *f, struct front_door *ret, struct err *err)
{
    char url[PROXY_URL_TEXT + 256];
    struct json *key = NULL;
    bool tls = false;
    *ret = (struct front_door){0};
    int r = get(dirs, f, "/status", &ret->status, err);
    if (r == 0)
        r = get(dirs, f, "/key", &key, err);
    if (r == 0) {
        snprintf(url, sizeof url, STR_FMT, STR_ARG(json_get_str(json_get(json_root(ret->status), "router"), "url", "")));
        snprintf(ret->key, sizeof ret->key, STR_FMT, STR_ARG(json_get_str(json_root(key), "key", "")));
        if (!read_url(url, &ret->addr, &tls))
            r = err_set(err, -EIO, "it does not say where it listens");
    }
    if (r == 0 && tls)
        r = read_certificate(f, &ret->tls, err);
    json_free(key);
    return r;
}

void front_door_close(struct front_door *d)
{
    json_free(d->status);
    net_tls_unref(d->tls);
    explicit_bzero(d, sizeof *d);
}

/* ---- what it has read -------------------------------------------------------------------------------------------- */

const char *front_door_name(const struct fleet_endpoint *e, size_t i)
{
    return i > e->n_aliases || i >= FRONT_NAMES_MAX ? NULL : i == 0 ? e->name : e->aliases[i - 1];
}

static bool holds(json_val list, const char *name)
{
    struct str text;
    for (size_t i = 0; i < json_count(list); i++)
        if (json_str(json_at(list, i), &text) && str_eq_c(text, name))
            return true;
    return false;
}

bool front_door_knows(const struct front_door *d, const char *service, const struct fleet_endpoint *e, const char *name)
{
    json_val all = json_get(json_root(d->status), "endpoints");
    for (size_t i = 0; i < json_count(all); i++) {
        json_val has = json_at(all, i);
        if (str_eq_c(json_get_str(has, "name", ""), e->name) && holds(json_get(has, "services"), service))
            return strcmp(name, e->name) == 0 || holds(json_get(has, "aliases"), name);
    }
    return false;
}

/* ---- the question --------------------------------------------------------------------------------------------------- */

struct asking {
    struct net_loop *loop;
    int status;
    struct err *err;
};

static void on_battery(void *ctx, int status, const struct err *err)
{
    struct asking *a = ctx;
    a->status = status;
    if (status < 0 && a->err)
        *a->err = *err;
    net_loop_stop(a->loop);
}

int front_door_ask(const struct front_door *d, const struct fleet_service *s, const char *const *names, size_t n, struct err *err)
{
    const struct probe_door door = {.addr = d->addr, .tls = d->tls, .models = names, .n_models = n, .key = d->key};
    struct asking a = {.status = -EINPROGRESS, .err = err};
    int r = net_loop_new(&a.loop, err);
    if (r < 0)
        return r;
    struct httpio_client *c = httpio_client_new(a.loop, &HTTPIO_CLIENT_DEFAULT);
    if (c && probe_battery_start(a.loop, c, s, &door, on_battery, &a))
        net_loop_run(a.loop);
    else
        a.status = err_nomem(err);
    httpio_client_free(c);
    net_loop_free(a.loop);
    return a.status;
}
