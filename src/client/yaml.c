/* SPDX-License-Identifier: MIT
 *
 * Client files in YAML. Strings are written in double quotes, whatever they hold.
 */
#include "client_int.h"

#include <errno.h>
#include <string.h>

static void put_line(struct buf *out, const char *lead, const char *value)
{
    buf_add_c(out, lead);
    buf_add_quoted(out, str_of(value));
    buf_add_char(out, '\n');
}

static struct str text_of(const struct yaml_node *map, const char *key)
{
    const struct yaml_node *n = yaml_get(map, key);
    return n && n->kind == YAML_SCALAR ? n->text : STR("");
}

static uint64_t number_of(const struct yaml_node *map, const char *key)
{
    uint64_t v = 0;
    return str_to_u64(text_of(map, key), &v) == 0 ? v : 0;
}

static bool is_true(const struct yaml_node *map, const char *key)
{
    return str_eq_c(text_of(map, key), "true");
}

/* ---- Continue ------------------------------------------------------------------------------------------------------- */

void client_write_continue(const struct client_plan *p, struct buf *out)
{
    put_line(out, "name: ", p->fleet);
    buf_add_c(out, "version: 1.0.0\nschema: v1\nmodels:\n");
    for (size_t i = 0; i < p->n_models; i++) {
        const struct client_model *m = &p->models[i];
        put_line(out, "  - name: ", m->name);
        buf_add_c(out, "    provider: openai\n");
        put_line(out, "    model: ", m->name);
        put_line(out, "    apiBase: ", p->url);
        if (p->key_env)
            buf_addf(out, "    apiKey: ${{ secrets.%s }}\n", p->key_env);
        buf_add_c(out, "    roles: [chat, edit, apply]\n");
        buf_addf(out, "    capabilities: [tool_use%s]\n", m->image ? ", image_input" : "");
        buf_add_c(out, "    defaultCompletionOptions:\n");
        buf_addf(out, "      contextLength: %llu\n", (unsigned long long)m->window);
        buf_addf(out, "      maxTokens: %llu\n", (unsigned long long)m->output);
    }
}

int client_read_continue(struct client_reading *r, const struct yaml_node *root)
{
    const struct yaml_node *models = yaml_get(root, "models");
    if (!models || models->kind != YAML_SEQ)
        return err_set(r->err, -EBADMSG, "it has no list 'models'");
    for (const struct yaml_node *m = models->first; m; m = m->next) {
        struct str url = text_of(m, "apiBase");
        if (!url.len)
            continue; /* a provider of the internet's */
        struct client_claim *c = client_add(r, text_of(m, "model"), m->line);
        if (!c)
            return r->err ? r->err->code : -ENOMEM;
        const struct yaml_node *options = yaml_get(m, "defaultCompletionOptions"), *can = yaml_get(m, "capabilities"), *body = yaml_get(yaml_get(m, "requestOptions"), "extraBodyProperties");
        c->window = number_of(options, "contextLength");
        c->output = number_of(options, "maxTokens");
        for (const struct yaml_node *w = can && can->kind == YAML_SEQ ? can->first : NULL; w; w = w->next)
            c->image = c->image || str_eq_c(w->text, "image_input");
        size_t cap = 0;
        int e = client_keep(r, url, &c->url);
        if (e == 0 && text_of(body, "reasoning_effort").len)
            e = client_add_effort(r, c, &cap, text_of(body, "reasoning_effort"));
        if (e < 0)
            return e;
    }
    return 0;
}

/* ---- LiteLLM --------------------------------------------------------------------------------------------------------- */

static void put_litellm(const struct client_plan *p, const struct client_model *m, const char *name, const char *effort, struct buf *out)
{
    base_autobuf struct buf model = BUF_INIT(FLEET_MODEL_NAME_MAX + 16);
    buf_addf(&model, "openai/%s", m->name);
    if (buf_status(&model) < 0) {
        buf_fail(out, buf_status(&model));
        return;
    }
    put_line(out, "  - model_name: ", name);
    buf_add_c(out, "    litellm_params:\n");
    put_line(out, "      model: ", model.ptr);
    put_line(out, "      api_base: ", p->url);
    /* the library refuses to ask without any */
    if (p->key_env)
        buf_addf(out, "      api_key: os.environ/%s\n", p->key_env);
    else
        buf_add_c(out, "      api_key: \"none\"\n");
    if (effort)
        put_line(out, "      reasoning_effort: ", effort);
    buf_addf(out, "      max_tokens: %llu\n", (unsigned long long)m->output);
    buf_add_c(out, "    model_info:\n");
    buf_addf(out, "      max_input_tokens: %llu\n", (unsigned long long)(m->window - m->output));
    buf_addf(out, "      max_output_tokens: %llu\n", (unsigned long long)m->output);
    buf_addf(out, "      supports_vision: %s\n", m->image ? "true" : "false");
    buf_addf(out, "      supports_audio_input: %s\n", m->audio ? "true" : "false");
    buf_addf(out, "      supports_reasoning: %s\n", m->n_efforts ? "true" : "false");
}

/* A gateway's own names for efforts: "medium", "medium-high", ... */
void client_write_litellm(const struct client_plan *p, struct buf *out)
{
    buf_add_c(out, "model_list:\n");
    for (size_t i = 0; i < p->n_models; i++) {
        const struct client_model *m = &p->models[i];
        put_litellm(p, m, m->name, NULL, out);
        for (size_t k = 0; k < m->n_efforts; k++) {
            base_autobuf struct buf name = BUF_INIT(FLEET_MODEL_NAME_MAX + FLEET_NAME_MAX + 8);
            buf_addf(&name, "%s-%s", m->name, m->efforts[k].name);
            if (buf_status(&name) < 0)
                buf_fail(out, buf_status(&name));
            else
                put_litellm(p, m, name.ptr, m->efforts[k].sent, out);
        }
    }
}

int client_read_litellm(struct client_reading *r, const struct yaml_node *root)
{
    const struct yaml_node *models = yaml_get(root, "model_list");
    if (!models || models->kind != YAML_SEQ)
        return err_set(r->err, -EBADMSG, "it has no list 'model_list'");
    for (const struct yaml_node *m = models->first; m; m = m->next) {
        const struct yaml_node *params = yaml_get(m, "litellm_params"), *info = yaml_get(m, "model_info");
        struct str url = text_of(params, "api_base"), name = text_of(params, "model");
        if (!url.len)
            continue;
        if (str_starts(name, STR("openai/")))
            name = (struct str){name.ptr + 7, name.len - 7};
        struct client_claim *c = client_add(r, name, m->line);
        if (!c)
            return r->err ? r->err->code : -ENOMEM;
        uint64_t in = number_of(info, "max_input_tokens");
        c->output = number_of(info, "max_output_tokens");
        if (!c->output)
            c->output = number_of(params, "max_tokens");
        if (in && !size_add(in, c->output, &c->window))
            c->window = UINT64_MAX;
        c->image = is_true(info, "supports_vision");
        c->audio = is_true(info, "supports_audio_input");
        size_t cap = 0;
        int e = client_keep(r, url, &c->url);
        if (e == 0 && text_of(params, "reasoning_effort").len)
            e = client_add_effort(r, c, &cap, text_of(params, "reasoning_effort"));
        if (e < 0)
            return e;
    }
    return 0;
}
