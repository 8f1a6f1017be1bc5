/* SPDX-License-Identifier: MIT
 *
 * Client files in JSON. What a format has no place for is left out: opencode and Aider have no point of shortening of their own, Aider no address.
 */
#include "client_int.h"

#include <errno.h>
#include <string.h>

/* ---- opencode: a provider that speaks as OpenAI does, with its models ------------------------------------------- */

static void put_modalities(const struct client_model *m, struct json_out *o)
{
    json_out_obj(o, "modalities");
    json_out_arr(o, "input");
    json_out_cstr(o, NULL, "text");
    if (m->image)
        json_out_cstr(o, NULL, "image");
    if (m->audio)
        json_out_cstr(o, NULL, "audio");
    json_out_end(o);
    json_out_arr(o, "output");
    json_out_cstr(o, NULL, "text");
    json_out_end(o);
    json_out_end(o);
}

static void put_opencode_model(const struct client_model *m, struct json_out *o)
{
    json_out_obj(o, m->name);
    json_out_cstr(o, "name", m->name);
    json_out_bool(o, "tool_call", true);
    json_out_bool(o, "attachment", m->image || m->audio);
    json_out_bool(o, "reasoning", m->n_efforts > 0);
    put_modalities(m, o);
    json_out_obj(o, "limit");
    json_out_u64(o, "context", m->window);
    json_out_u64(o, "output", m->output);
    json_out_end(o);
    if (m->n_efforts > 0) {
        json_out_obj(o, "variants");
        for (size_t i = 0; i < m->n_efforts; i++) {
            json_out_obj(o, m->efforts[i].name);
            json_out_cstr(o, "reasoningEffort", m->efforts[i].sent);
            json_out_end(o);
        }
        json_out_end(o);
    }
    json_out_end(o);
}

int client_write_opencode(const struct client_plan *p, struct json_out *o)
{
    base_autobuf struct buf key = BUF_INIT(256), name = BUF_INIT(256);
    json_out_obj(o, NULL);
    json_out_cstr(o, "$schema", "https://opencode.ai/config.json");
    json_out_obj(o, "provider");
    json_out_obj(o, p->fleet);
    json_out_cstr(o, "npm", "@ai-sdk/openai-compatible");
    buf_addf(&name, "fleet %s", p->fleet);
    json_out_str(o, "name", buf_str(&name));
    json_out_obj(o, "options");
    json_out_cstr(o, "baseURL", p->url);
    if (p->key_env) {
        buf_addf(&key, "{env:%s}", p->key_env);
        json_out_str(o, "apiKey", buf_str(&key));
    }
    json_out_end(o);
    json_out_obj(o, "models");
    for (size_t i = 0; i < p->n_models; i++)
        put_opencode_model(&p->models[i], o);
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    json_out_end(o);
    return buf_status(&key) < 0 ? buf_status(&key) : buf_status(&name);
}

static void read_modalities(json_val list, struct client_claim *c)
{
    for (size_t i = 0; i < json_count(list); i++) {
        struct str s;
        if (!json_str(json_at(list, i), &s))
            continue;
        c->image = c->image || str_eq_c(s, "image");
        c->audio = c->audio || str_eq_c(s, "audio");
    }
}

static int read_efforts(struct client_reading *r, json_val map, const char *inner, struct client_claim *c)
{
    size_t iter = 0, cap = 0;
    struct str key, word;
    json_val v;
    int e = 0;
    while (e == 0 && json_is_obj(map) && json_next(map, &iter, &key, &v))
        if (json_str(inner ? json_get(v, inner) : v, &word))
            e = client_add_effort(r, c, &cap, word);
    return e;
}

static int read_opencode_model(struct client_reading *r, struct str name, json_val m, struct str url)
{
    struct client_claim *c = client_add(r, name, client_line_of(r->text, name));
    struct str effort;
    if (!c)
        return r->err ? r->err->code : -ENOMEM;
    c->window = json_get_u64(json_get(m, "limit"), "context");
    c->output = json_get_u64(json_get(m, "limit"), "output");
    read_modalities(json_get(json_get(m, "modalities"), "input"), c);
    int e = client_keep(r, url, &c->url);
    if (e == 0)
        e = read_efforts(r, json_get(m, "variants"), "reasoningEffort", c);
    size_t cap = c->n_efforts;
    if (e == 0 && json_str(json_get(json_get(m, "options"), "reasoningEffort"), &effort))
        e = client_add_effort(r, c, &cap, effort);
    return e;
}

int client_read_opencode(struct client_reading *r, json_val root)
{
    json_val providers = json_get(root, "provider"), provider, m;
    size_t i = 0;
    struct str id, name;
    int e = 0;
    if (!json_is_obj(providers))
        return err_set(r->err, -EBADMSG, "it has no \"provider\"");
    while (e == 0 && json_next(providers, &i, &id, &provider)) {
        json_val models = json_get(provider, "models");
        struct str url = json_get_str(json_get(provider, "options"), "baseURL", "");
        size_t k = 0;
        /* a provider without an address is one of the internet's */
        while (e == 0 && url.len && json_is_obj(models) && json_next(models, &k, &name, &m))
            e = read_opencode_model(r, name, m, url);
    }
    return e;
}

/* ---- aider: what litellm knows of a model ---------------------------------------------------------------------------- */

int client_write_aider(const struct client_plan *p, struct json_out *o)
{
    int r = 0;
    json_out_obj(o, NULL);
    for (size_t i = 0; i < p->n_models; i++) {
        const struct client_model *m = &p->models[i];
        base_autobuf struct buf name = BUF_INIT(FLEET_MODEL_NAME_MAX + 16);
        buf_addf(&name, "openai/%s", m->name);
        if (buf_status(&name) < 0) {
            r = buf_status(&name);
            break;
        }
        json_out_obj(o, name.ptr);
        json_out_u64(o, "max_input_tokens", m->window - m->output);
        json_out_u64(o, "max_output_tokens", m->output);
        json_out_u64(o, "max_tokens", m->output);
        json_out_f64(o, "input_cost_per_token", 0);
        json_out_f64(o, "output_cost_per_token", 0);
        json_out_cstr(o, "litellm_provider", "openai");
        json_out_cstr(o, "mode", "chat");
        json_out_bool(o, "supports_vision", m->image);
        json_out_bool(o, "supports_audio_input", m->audio);
        json_out_bool(o, "supports_reasoning", m->n_efforts > 0);
        json_out_end(o);
    }
    json_out_end(o);
    return r;
}

int client_read_aider(struct client_reading *r, json_val root)
{
    size_t i = 0;
    struct str key;
    json_val m;
    while (json_next(root, &i, &key, &m)) {
        if (!str_starts(key, STR("openai/")))
            continue; /* somebody else's */
        struct str name = {key.ptr + 7, key.len - 7};
        struct client_claim *c = client_add(r, name, client_line_of(r->text, key));
        if (!c)
            return r->err ? r->err->code : -ENOMEM;
        c->output = json_get_u64(m, "max_output_tokens");
        uint64_t in = json_get_u64(m, "max_input_tokens");
        /* prompt and answer share the window */
        if (in && !size_add(in, c->output, &c->window))
            c->window = UINT64_MAX;
        c->image = json_get_bool(m, "supports_vision");
        c->audio = json_get_bool(m, "supports_audio_input");
    }
    return 0;
}

/* ---- berth's own ---------------------------------------------------------------------------------------------------------- */

int client_write_json(const struct client_plan *p, struct json_out *o)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "fleet", p->fleet);
    json_out_cstr(o, "base_url", p->url);
    json_out_cstr(o, "key_env", p->key_env);
    json_out_obj(o, "models");
    for (size_t i = 0; i < p->n_models; i++) {
        const struct client_model *m = &p->models[i];
        json_out_obj(o, m->name);
        json_out_u64(o, "context", m->window);
        json_out_u64(o, "output", m->output);
        json_out_u64(o, "compact_at", m->window * p->compact / 100);
        put_modalities(m, o);
        json_out_obj(o, "reasoning");
        for (size_t k = 0; k < m->n_efforts; k++)
            json_out_cstr(o, m->efforts[k].name, m->efforts[k].sent);
        json_out_end(o);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    return 0;
}

int client_read_json(struct client_reading *r, json_val root)
{
    json_val models = json_get(root, "models"), m;
    struct str name, url = json_get_str(root, "base_url", "");
    size_t i = 0;
    int e = 0;
    if (!json_is_obj(models))
        return err_set(r->err, -EBADMSG, "it has no \"models\"");
    while (e == 0 && json_next(models, &i, &name, &m)) {
        struct client_claim *c = client_add(r, name, client_line_of(r->text, name));
        if (!c)
            return r->err ? r->err->code : -ENOMEM;
        c->window = json_get_u64(m, "context");
        c->output = json_get_u64(m, "output");
        read_modalities(json_get(json_get(m, "modalities"), "input"), c);
        e = client_keep(r, url, &c->url);
        if (e == 0)
            e = read_efforts(r, json_get(m, "reasoning"), NULL, c);
    }
    return e;
}
