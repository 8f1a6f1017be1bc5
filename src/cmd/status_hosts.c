/* SPDX-License-Identifier: MIT
 *
 * The hosts' part of `berth status`: who is asked, and how what they say goes together with what is declared and with what the supervisor here says.
 */
#include "status_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HOST_LIMIT_MS 5000 /* a host that is up answers in a tenth of it */

/* ---- asking ---------------------------------------------------------------------------------------------- */

static bool has_units(const struct fleet *f, const struct fleet_host *h)
{
    for (size_t i = 0; i < f->n_services; i++)
        if (f->services[i].host == h && f->services[i].unit != FLEET_CHILD)
            return true;
    return false;
}

/* This machine may have units that are no longer declared, when something was deployed to it. */
static bool was_deployed_here(const struct fleet *f, const struct os_dirs *dirs)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    return deploy_version_path(dirs, f->name, 0, &path, NULL) == 0;
}

static void take_text(struct status_hosts *ret, struct status_host *h, int r, const struct buf *text)
{
    if (r == 0 && json_parse(buf_str(text), &h->text, &h->why) < 0)
        (void)err_prefix(&h->why, "its answer is not understood");
    ret->silent += !h->text;
}

static int ask_others(const struct fleet *f, const struct os_dirs *dirs, struct status_hosts *ret, struct err *err)
{
    struct deploy_answer *answers = calloc(ret->n + 1, sizeof *answers);
    size_t n = 0;
    if (!answers)
        return err_nomem(err);
    for (size_t i = 0; i < ret->n; i++)
        if (ret->list[i].host->ssh)
            answers[n++].host = ret->list[i].host;
    int r = n ? deploy_ask(f, dirs, answers, n, HOST_LIMIT_MS, err) : 0;
    for (size_t i = 0, k = 0; i < ret->n; i++) {
        struct status_host *h = &ret->list[i];
        if (!h->host->ssh)
            continue;
        struct deploy_answer *a = &answers[k++];
        h->why = a->why;
        h->took_ms = a->took_ms;
        if (r == 0)
            take_text(ret, h, a->status, &a->text);
        buf_release(&a->text);
    }
    free(answers);
    return r;
}

int status_hosts_ask(const struct fleet *f, const struct os_dirs *dirs, struct status_hosts *ret, struct err *err)
{
    *ret = (struct status_hosts){.list = calloc(f->n_hosts + 1, sizeof *ret->list)};
    if (!ret->list)
        return err_nomem(err);
    for (size_t i = 0; i < f->n_hosts; i++) {
        const struct fleet_host *h = &f->hosts[i];
        if (has_units(f, h) || (!h->ssh && was_deployed_here(f, dirs)))
            ret->list[ret->n++].host = h;
    }
    int r = ask_others(f, dirs, ret, err);
    for (size_t i = 0; r == 0 && i < ret->n; i++) {
        base_autobuf struct buf text = BUF_INIT(STATUS_TEXT_MAX);
        struct status_host *h = &ret->list[i];
        uint64_t began = clk_system.mono_us(clk_system.ctx);
        if (h->host->ssh)
            continue;
        int rc = deploy_status(f->file, NULL, dirs, &text, &h->why);
        h->took_ms = (clk_system.mono_us(clk_system.ctx) - began) / 1000;
        take_text(ret, h, rc, &text);
    }
    return r;
}

void status_hosts_release(struct status_hosts *h)
{
    for (size_t i = 0; i < h->n; i++)
        json_free(h->list[i].text);
    free(h->list);
    *h = (struct status_hosts){0};
}

/* ---- together ---------------------------------------------------------------------------------------------- */

/* What a unit says in place of the supervisor. */
static const char *const of_unit[] = {"state", "pid", "uptime_ms", "restarts", "memory_bytes", "error", "pending"};

static bool is_of_unit(struct str key)
{
    for (size_t i = 0; i < BASE_COUNT(of_unit); i++)
        if (str_eq_c(key, of_unit[i]))
            return true;
    return false;
}

static json_val find_unit(const struct status_host *h, const char *service)
{
    json_val units = json_get(json_root(h->text), "units");
    for (size_t i = 0; i < json_count(units); i++)
        if (str_eq_c(json_get_str(json_at(units, i), "name", ""), service))
            return json_at(units, i);
    return NULL;
}

static const struct status_host *find_host(const struct status_hosts *h, const struct fleet_host *host)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->list[i].host == host)
            return &h->list[i];
    return NULL;
}

static void put_unit(struct json_out *o, const struct status_host *h, json_val unit)
{
    for (size_t i = 0; unit && i < BASE_COUNT(of_unit); i++)
        json_out_val(o, of_unit[i], json_get(unit, of_unit[i]));
    if (unit)
        return;
    json_out_cstr(o, "state", h->text ? "absent" : "unreachable");
    for (size_t i = 1; i < BASE_COUNT(of_unit); i++)
        if (strcmp(of_unit[i], "error") == 0)
            json_out_cstr(o, of_unit[i], h->text ? "not installed: 'berth deploy' installs it" : NULL);
        else
            json_out_null(o, of_unit[i]);
}

static void put_service(struct json_out *o, const struct status_hosts *h, const struct fleet *f, json_val service)
{
    struct str name = json_get_str(service, "name", ""), key;
    const struct fleet_service *s = NULL;
    json_val v;
    size_t iter = 0;
    for (size_t i = 0; i < f->n_services; i++)
        if (str_eq_c(name, f->services[i].name))
            s = &f->services[i];
    const struct status_host *host = s && s->unit != FLEET_CHILD ? find_host(h, s->host) : NULL;
    json_out_obj(o, NULL);
    while (json_next(service, &iter, &key, &v)) {
        char text[64];
        if (key.len >= sizeof text || (host && is_of_unit(key)))
            continue;
        memcpy(text, key.ptr, key.len);
        text[key.len] = '\0';
        json_out_val(o, text, v);
    }
    if (host)
        put_unit(o, host, find_unit(host, s->name));
    json_out_cstr(o, "host", s ? s->host->name : NULL);
    json_out_cstr(o, "unit", !s ? NULL : s->unit == FLEET_SYSTEMD ? "systemd" : s->unit == FLEET_QUADLET ? "quadlet" : "child");
    json_out_end(o);
}

static void put_undeclared(struct json_out *o, const struct status_host *h, const struct fleet *f)
{
    json_val units = json_get(json_root(h->text), "units");
    for (size_t i = 0; i < json_count(units); i++) {
        json_val unit = json_at(units, i);
        struct str name = json_get_str(unit, "name", "");
        bool declared = false;
        for (size_t k = 0; k < f->n_services; k++)
            declared |= f->services[k].host == h->host && f->services[k].unit != FLEET_CHILD && str_eq_c(name, f->services[k].name);
        if (declared)
            continue;
        json_out_obj(o, NULL);
        json_out_str(o, "name", name);
        for (size_t k = 0; k + 1 < BASE_COUNT(of_unit); k++)
            json_out_val(o, of_unit[k], json_get(unit, of_unit[k]));
        json_out_cstr(o, "pending", "removal");
        json_out_cstr(o, "host", h->host->name);
        json_out_end(o);
    }
}

static void put_hosts(struct json_out *o, const struct status_hosts *h)
{
    json_out_arr(o, "hosts");
    for (size_t i = 0; i < h->n; i++) {
        const struct status_host *e = &h->list[i];
        json_val root = json_root(e->text);
        json_out_obj(o, NULL);
        json_out_cstr(o, "name", e->host->name);
        json_out_bool(o, "reached", e->text != NULL);
        uint64_t version = json_get_u64(root, "version");
        if (version)
            json_out_u64(o, "version", version);
        else
            json_out_null(o, "version");
        json_out_bool(o, "deploying", json_get_bool(root, "deploying"));
        json_out_u64(o, "took_ms", e->took_ms);
        json_out_cstr(o, "error", e->text ? NULL : e->why.text);
        json_out_end(o);
    }
    json_out_end(o);
}

int status_hosts_merge(const struct status_hosts *h, const struct fleet *f, json_val root, struct buf *ret)
{
    struct json_out *o = json_out_new();
    json_val services = json_get(root, "services"), v;
    struct str key;
    size_t iter = 0;
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    while (json_next(root, &iter, &key, &v)) {
        char text[64];
        if (key.len >= sizeof text)
            continue;
        memcpy(text, key.ptr, key.len);
        text[key.len] = '\0';
        if (strcmp(text, "services") != 0) {
            json_out_val(o, text, v);
            continue;
        }
        json_out_arr(o, "services");
        for (size_t i = 0; i < json_count(services); i++)
            put_service(o, h, f, json_at(services, i));
        for (size_t i = 0; i < h->n; i++)
            put_undeclared(o, &h->list[i], f);
        json_out_end(o);
    }
    put_hosts(o, h);
    json_out_end(o);
    int rc = json_out_finish(o, false, ret);
    json_out_free(o);
    return rc;
}
