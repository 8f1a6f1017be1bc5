/* SPDX-License-Identifier: MIT
 *
 * Who asks a fleet and what is written about it: clients with the files that tell them what they may ask for, pages that quote its command lines, the recorded rules of a host's firewall, and the
 * words for how hard a model is to think. Whether files are there, and say what is true, is for `berth check`.
 */
#include "fleet_int.h"

static int read_path(struct fleet_reader *r, const struct yaml_node *n, const char **ret)
{
    const char *text;
    int rc = fleet_text(r, n, &text);
    return rc < 0 ? rc : fleet_path(r, n, str_of(text), ret);
}

int fleet_read_firewall(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_host *h = part;
    return read_path(r, n, &h->firewall);
}

int fleet_read_client_file(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_client *c = part;
    return read_path(r, n, &c->file);
}

int fleet_read_documents(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet *f = part;
    size_t count = 0;
    int rc = fleet_list(r, n, 1, FLEET_DOCUMENTS_MAX, &count);
    if (rc < 0)
        return rc;
    struct fleet_document *all = arena_alloc(r->arena, count, sizeof *all);
    if (!all)
        return err_nomem(r->err);
    size_t i = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next, i++) {
        r->item = i + 1;
        all[i].pos = fleet_pos_of(c);
        rc = read_path(r, c, &all[i].path);
        for (size_t k = 0; rc == 0 && k < i; k++)
            if (strcmp(all[k].path, all[i].path) == 0)
                rc = fleet_refuse(r, c, "%s is '%s', which is at line %u too; remove one", fleet_label(r), fleet_show(r, c->text), all[k].pos.line);
        if (rc < 0)
            return rc;
    }
    f->documents = all;
    f->n_documents = count;
    return 0;
}

int fleet_read_reasoning(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_model *m = part;
    int rc = fleet_map(r, n);
    size_t count = 0;
    for (const struct yaml_node *c = rc == 0 ? n->first : NULL; c; c = c->next)
        count++;
    if (rc == 0 && count > FLEET_REASONING_MAX)
        return fleet_refuse(r, n, "%s has %zu words; at most %d are allowed", fleet_label(r), count, FLEET_REASONING_MAX);
    struct fleet_effort *all = rc == 0 ? arena_alloc(r->arena, count ? count : 1, sizeof *all) : NULL;
    if (rc == 0 && !all)
        return err_nomem(r->err);
    size_t i = 0;
    for (const struct yaml_node *c = rc == 0 ? n->first : NULL; c && rc == 0; c = c->next, i++) {
        all[i].name = arena_dup(r->arena, c->key);
        rc = all[i].name ? fleet_check_word(r, c, c->key) : err_nomem(r->err);
        if (rc == 0)
            rc = fleet_text(r, c, &all[i].sent);
        if (rc == 0)
            rc = fleet_check_word(r, c, c->text);
    }
    m->efforts = all;
    m->n_efforts = i;
    return rc;
}

int fleet_read_client_from(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_client *c = part;
    const void *found = NULL;
    c->elsewhere = n->kind == YAML_SCALAR && str_eq_c(n->text, "elsewhere") && !fleet_find(r->fleet->hosts, r->fleet->n_hosts, sizeof *r->fleet->hosts, n->text);
    if (c->elsewhere)
        return 0;
    int rc = fleet_read_ref(r, n, "host", r->fleet->hosts, r->fleet->n_hosts, sizeof *r->fleet->hosts, &found);
    c->host = found;
    return rc;
}

int fleet_read_client_endpoints(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_client *cl = part;
    size_t count = 0;
    int rc = fleet_list(r, n, 1, FLEET_SERVICES_MAX, &count);
    if (rc < 0)
        return rc;
    const struct fleet_endpoint **all = arena_alloc(r->arena, count, sizeof(void *));
    if (!all)
        return err_nomem(r->err);
    size_t i = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next, i++) {
        const void *found = NULL;
        r->item = i + 1;
        rc = fleet_read_ref(r, c, "endpoint", r->fleet->endpoints, r->fleet->n_endpoints, sizeof *r->fleet->endpoints, &found);
        if (rc < 0)
            return rc;
        all[i] = found;
        for (size_t k = 0; k < i; k++)
            if (all[k] == found)
                return fleet_refuse(r, c, "%s names endpoint '%s' twice; remove one", r->of, all[i]->name);
    }
    cl->endpoints = all;
    cl->n_endpoints = count;
    return 0;
}

int fleet_check_client_url(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    struct str rest = text;
    bool ok = str_starts(text, STR("http://")) || str_starts(text, STR("https://"));
    if (ok) {
        size_t skip = str_starts(text, STR("https://")) ? 8 : 7;
        rest = (struct str){text.ptr + skip, text.len - skip};
    }
    ok = ok && rest.len > 0 && rest.ptr[0] != '/' && rest.ptr[0] != ':' && rest.len <= 512;
    for (size_t i = 0; ok && i < rest.len; i++)
        ok = (unsigned char)rest.ptr[i] > 0x20 && (unsigned char)rest.ptr[i] < 0x7f && !strchr("@?#\"'<>\\^`{|}", rest.ptr[i]);
    if (ok)
        return fleet_check_port(r, n, text);
    return fleet_refuse(r, n, "%s must be an address such as 'http://big.example:8080/v1', not '%s'", fleet_label(r), fleet_show(r, text));
}

int fleet_check_variable(struct fleet_reader *r, const struct yaml_node *n, struct str text)
{
    bool ok = text.len > 0 && text.len <= 64 && !(text.ptr[0] >= '0' && text.ptr[0] <= '9');
    for (size_t i = 0; ok && i < text.len; i++) {
        char c = text.ptr[i];
        ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    }
    if (ok)
        return 0;
    return fleet_refuse(r, n, "%s must be the name of a variable, such as 'BERTH_KEY', not '%s'; a key itself belongs into no file that is shown", fleet_label(r), fleet_show(r, text));
}

int fleet_rules_client(struct fleet_reader *r, const struct yaml_node *n, void *part, size_t index)
{
    const struct fleet_client *c = part;
    for (size_t i = 0; i < index; i++)
        if (strcmp(r->fleet->clients[i].file, c->file) == 0)
            return fleet_refuse(r, yaml_get(n, "file"), "%s has the file of client '%s' at line %u; give each its own", r->of, r->fleet->clients[i].name, r->fleet->clients[i].pos.line);
    if (c->elsewhere && c->network == FLEET_NETWORK_BRIDGE)
        return fleet_refuse(r, yaml_get(n, "network"), "'network' of %s has no effect with 'from: elsewhere'; remove it", r->of);
    return 0;
}
