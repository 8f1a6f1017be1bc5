/* SPDX-License-Identifier: MIT
 *
 * The fleet as JSON, for contracts of the user's: what is declared, with defaults filled in, and what follows from it (a slot's tokens, what an endpoint's conversations may hold). Variables of an engine's environment are named
 * without their values, which may be secrets.
 */
#include "check_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <string.h>

static void put_size(struct json_out *o, const char *key, uint64_t bytes)
{
    if (bytes)
        json_out_u64(o, key, bytes);
    else
        json_out_null(o, key);
}

static void put_texts(struct json_out *o, const char *key, const char *const *list, size_t n)
{
    json_out_arr(o, key);
    for (size_t i = 0; i < n; i++)
        json_out_cstr(o, NULL, list[i]);
    json_out_end(o);
}

static void put_hosts(struct json_out *o, const struct fleet *f)
{
    json_out_obj(o, "hosts");
    for (size_t i = 0; i < f->n_hosts; i++) {
        const struct fleet_host *h = &f->hosts[i];
        json_out_obj(o, h->name);
        json_out_bool(o, "here", h->ssh == NULL);
        json_out_cstr(o, "ssh", h->ssh);
        json_out_cstr(o, "address", h->address);
        json_out_cstr(o, "scope", h->scope == FLEET_USER ? "user" : "system");
        put_size(o, "memory", h->memory_bytes);
        json_out_u64(o, "floor", h->floor_bytes);
        put_size(o, "slack", h->slack_bytes);
        json_out_arr(o, "devices");
        for (size_t d = 0; d < h->n_devices; d++) {
            json_out_obj(o, NULL);
            json_out_cstr(o, "name", h->devices[d].name);
            json_out_u64(o, "memory", h->devices[d].memory_bytes);
            json_out_cstr(o, "pci", h->devices[d].pci);
            json_out_end(o);
        }
        json_out_end(o);
        json_out_end(o);
    }
    json_out_end(o);
}

static void put_models(struct json_out *o, const struct fleet *f)
{
    static const char *const sources[] = {[FLEET_MODEL_FILE] = "file", [FLEET_MODEL_HF] = "hf", [FLEET_MODEL_WEB] = "https"};
    json_out_obj(o, "models");
    for (size_t i = 0; i < f->n_models; i++) {
        const struct fleet_model *m = &f->models[i];
        json_out_obj(o, m->name);
        json_out_cstr(o, "source", sources[m->source]);
        json_out_cstr(o, "from", m->source_arg);
        json_out_cstr(o, "revision", m->revision);
        json_out_cstr(o, "commit", m->commit);
        json_out_cstr(o, "weights", m->weights);
        json_out_cstr(o, "projector", m->projector);
        json_out_cstr(o, "drafter", m->drafter);
        json_out_cstr(o, "template", m->template_file);
        json_out_obj(o, "reasoning");
        for (size_t k = 0; k < m->n_efforts; k++)
            json_out_cstr(o, m->efforts[k].name, m->efforts[k].sent);
        json_out_end(o);
        json_out_end(o);
    }
    json_out_end(o);
}

static void put_service(struct json_out *o, const struct check_plan *p, const struct fleet_service *s)
{
    static const char *const units[] = {[FLEET_CHILD] = "child", [FLEET_SYSTEMD] = "systemd", [FLEET_QUADLET] = "quadlet"};
    const struct fleet_endpoint alone = {.services = &s, .n_services = 1};
    json_out_obj(o, s->name);
    json_out_cstr(o, "host", s->host->name);
    json_out_cstr(o, "runtime", s->runtime->name);
    json_out_cstr(o, "engine", s->runtime->engine);
    json_out_cstr(o, "model", s->model ? s->model->name : NULL);
    json_out_u64(o, "port", s->port);
    json_out_cstr(o, "bind", s->bind);
    json_out_cstr(o, "unit", units[s->unit]);
    json_out_cstr(o, "start", s->start == FLEET_ON_DEMAND ? "on-demand" : "always");
    put_size(o, "context", s->shape.context);
    json_out_u64(o, "slots", s->shape.slots);
    put_size(o, "slot_context", check_window(p, &alone));
    put_texts(o, "speculative", s->shape.speculative, s->shape.n_speculative);
    put_texts(o, "args", s->args, s->n_args);
    put_texts(o, "command", s->command, s->n_command);
    json_out_arr(o, "env");
    for (size_t i = 0; i < s->n_env; i++) {
        struct str rest = str_of(s->env[i]);
        json_out_str(o, NULL, str_split(&rest, '='));
    }
    json_out_end(o);
    json_out_u64(o, "line", s->pos.line);
    json_out_end(o);
}

static void put_endpoints(struct json_out *o, const struct check_plan *p)
{
    const struct fleet *f = p->fleet;
    json_out_obj(o, "endpoints");
    for (size_t i = 0; i < f->n_endpoints; i++) {
        const struct fleet_endpoint *e = &f->endpoints[i];
        json_out_obj(o, e->name);
        json_out_arr(o, "services");
        for (size_t k = 0; k < e->n_services; k++)
            json_out_cstr(o, NULL, e->services[k]->name);
        json_out_end(o);
        json_out_cstr(o, "policy", fleet_policy_name(e->policy));
        put_texts(o, "aliases", e->aliases, e->n_aliases);
        put_size(o, "window", check_window(p, e));
        json_out_end(o);
    }
    json_out_end(o);
}

static void put_rest(struct json_out *o, const struct fleet *f)
{
    const struct fleet_router *r = &f->router;
    json_out_obj(o, "router");
    json_out_cstr(o, "host", r->host ? r->host->name : NULL);
    json_out_cstr(o, "address", r->socket ? NULL : r->address);
    json_out_u64(o, "port", r->socket ? 0 : r->port);
    json_out_cstr(o, "socket", r->socket);
    json_out_bool(o, "keys", r->keys_file != NULL);
    json_out_bool(o, "tls", r->certificate != NULL);
    json_out_end(o);
    json_out_obj(o, "clients");
    for (size_t i = 0; i < f->n_clients; i++) {
        const struct fleet_client *c = &f->clients[i];
        json_out_obj(o, c->name);
        json_out_cstr(o, "format", fleet_format_name(c->format));
        json_out_cstr(o, "file", c->file);
        json_out_cstr(o, "from", c->elsewhere ? "elsewhere" : c->host ? c->host->name : NULL);
        json_out_cstr(o, "network", c->network == FLEET_NETWORK_BRIDGE ? "bridge" : "host");
        json_out_u64(o, "compact", c->compact);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_arr(o, "documents");
    for (size_t i = 0; i < f->n_documents; i++)
        json_out_cstr(o, NULL, f->documents[i].path);
    json_out_end(o);
}

int check_fleet_json(const struct fleet *f, const struct check_plan *p, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", f->name);
    json_out_cstr(o, "file", f->file);
    json_out_cstr(o, "folder", f->dir);
    put_hosts(o, f);
    put_models(o, f);
    json_out_obj(o, "services");
    for (size_t i = 0; i < f->n_services; i++)
        put_service(o, p, &f->services[i]);
    json_out_end(o);
    put_endpoints(o, p);
    put_rest(o, f);
    json_out_end(o);
    int r = json_out_finish(o, true, out);
    json_out_free(o);
    return r;
}
