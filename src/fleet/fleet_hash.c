/* SPDX-License-Identifier: MIT
 *
 * What a process is started from, as one number for each service and runtime: two files that declare the same have the same numbers, however they are written. The order of keys,
 * comments, quotes and places do not count; neither do keys that only decide about other things than the process.
 */
#include "fleet_int.h"

#define FNV_BASIS UINT64_C(14695981039346656037)
#define FNV_PRIME UINT64_C(1099511628211)

static uint64_t mix_text(uint64_t h, struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        h = (h ^ (unsigned char)s.ptr[i]) * FNV_PRIME;
    return (h ^ 0xff) * FNV_PRIME; /* where it ends: no byte of UTF-8 */
}

static uint64_t mix_number(uint64_t h, uint64_t n)
{
    h ^= n;
    h *= FNV_PRIME;
    return (h ^ (h >> 29)) * FNV_PRIME;
}

static bool is_among(struct str key, const char *const *list)
{
    for (; list && *list; list++)
        if (str_eq_c(key, *list))
            return true;
    return false;
}

/* The tree is as deep as the parser allows, and no deeper. */
static uint64_t of_node(const struct yaml_node *n, const char *const *without, unsigned depth)
{
    uint64_t h = mix_number(FNV_BASIS, n ? (uint64_t)n->kind : 77);
    uint64_t sum = 0;
    if (!n || depth == 0)
        return h;
    if (n->kind == YAML_SCALAR)
        return mix_text(h, n->text);
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        if (n->kind == YAML_SEQ)
            h = mix_number(h, of_node(c, NULL, depth - 1));
        else if (!is_among(c->key, without))
            sum += mix_number(mix_text(FNV_BASIS, c->key), of_node(c, NULL, depth - 1)); /* keys have no order */
    }
    return mix_number(h, sum);
}

static const struct yaml_node *part(const struct fleet_reader *r, const char *section, const char *name)
{
    return yaml_get(yaml_get(r->root, section), name);
}

void fleet_hash(struct fleet_reader *r)
{
    /* What decides who is chosen, when it is started and what must remain free, not what it is. */
    static const char *const not_service[] = {"floor", "slack", "reason", "start", "idle-stop", "pin", "preload", "serves", NULL};
    static const char *const not_host[] = {"floor", "slack", "address", "memory", "bandwidth", NULL};
    struct fleet *f = r->fleet;
    for (size_t i = 0; i < f->n_runtimes; i++) {
        struct fleet_runtime *rt = (struct fleet_runtime *)&f->runtimes[i]; /* still being made: the arena's own memory */
        rt->declared_hash = of_node(part(r, "runtimes", rt->name), NULL, CONF_DEPTH_MAX);
    }
    for (size_t i = 0; i < f->n_services; i++) {
        struct fleet_service *s = (struct fleet_service *)&f->services[i];
        uint64_t h = of_node(part(r, "services", s->name), not_service, CONF_DEPTH_MAX);
        h = mix_number(h, s->runtime->declared_hash);
        h = mix_number(h, of_node(part(r, "hosts", s->host->name), not_host, CONF_DEPTH_MAX));
        s->declared_hash = mix_number(h, s->model ? of_node(part(r, "models", s->model->name), NULL, CONF_DEPTH_MAX) : 0);
    }
}

void fleet_hash_commit(struct fleet *f, const struct fleet_model *m)
{
    for (size_t i = 0; i < f->n_services; i++) {
        struct fleet_service *s = (struct fleet_service *)&f->services[i];
        if (s->model == m && m->commit)
            s->declared_hash = mix_text(s->declared_hash, str_of(m->commit));
    }
}
