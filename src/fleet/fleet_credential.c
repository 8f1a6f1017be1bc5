/* SPDX-License-Identifier: MIT
 *
 * `credentials:` of a service: names of secrets and the files that hold them on its host, and the marks in its words that stand for where the service sees them.
 */
#include <errno.h>

#include "fleet_int.h"

static bool is_name(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!((s.ptr[i] >= 'a' && s.ptr[i] <= 'z') || (s.ptr[i] >= '0' && s.ptr[i] <= '9') || s.ptr[i] == '-'))
            return false;
    return s.len > 0 && s.len <= FLEET_NAME_MAX;
}

int fleet_read_credentials(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    int rc = fleet_map(r, n);
    if (rc < 0)
        return rc;
    struct fleet_credential *list = arena_alloc(r->arena, FLEET_CREDENTIALS_MAX, sizeof *list);
    size_t count = 0;
    if (!list)
        return err_nomem(r->err);
    const char *of = fleet_label(r), *outer_of = r->of, *outer_key = r->key;
    r->of = of;
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        if (count == FLEET_CREDENTIALS_MAX)
            return fleet_refuse_at(r, fleet_key_pos_of(c), "%s has more than %d names", of, FLEET_CREDENTIALS_MAX);
        if (!is_name(c->key))
            return fleet_refuse_at(r, fleet_key_pos_of(c), "%s holds '%s'; use lower-case letters, digits and '-'", of, fleet_show(r, c->key));
        struct fleet_credential *e = &list[count++];
        e->name = arena_dup(r->arena, c->key);
        if (!e->name)
            return err_nomem(r->err);
        r->key = e->name;
        rc = fleet_text(r, c, &e->path);
        if (rc < 0)
            return rc;
        /* on another machine, where no folder of ours is */
        if (e->path[0] != '/')
            return fleet_refuse(r, c, "%s must be an absolute path, on the host of the service", fleet_label(r));
    }
    r->of = outer_of;
    r->key = outer_key;
    s->credentials = list;
    s->n_credentials = count;
    return 0;
}

/* Every mark names one that is declared. */
static const char *unknown_mark(const struct fleet_service *s, const char *word, struct arena *a)
{
    for (const char *p = word; (p = strstr(p, FLEET_CREDENTIAL_MARK)); p++) {
        const char *name = p + strlen(FLEET_CREDENTIAL_MARK), *end = strchr(name, '}');
        bool known = false;
        for (size_t i = 0; end && i < s->n_credentials; i++)
            known |= strlen(s->credentials[i].name) == (size_t)(end - name) && strncmp(s->credentials[i].name, name, (size_t)(end - name)) == 0;
        if (!known)
            return arena_printf(a, "%.*s", end && end - name < FLEET_NAME_MAX ? (int)(end - name) : 0, name);
    }
    return NULL;
}

int fleet_check_credentials(struct fleet_reader *r, const struct fleet_service *s)
{
    const struct {
        const char *const *list;
        size_t n;
    } words[] = {{s->command, s->n_command}, {s->args, s->n_args}, {s->env, s->n_env}};
    if (s->n_credentials && s->unit == FLEET_CHILD)
        return fleet_refuse_at(r, s->pos, "'credentials' of service '%s' need 'unit: systemd' or 'unit: quadlet', which keep them from others", s->name);
    for (size_t k = 0; k < BASE_COUNT(words); k++)
        for (size_t i = 0; i < words[k].n; i++) {
            const char *name = unknown_mark(s, words[k].list[i], r->arena);
            if (name)
                return fleet_refuse_at(r, s->pos, "service '%s' has no credential '%s': name its file in 'credentials'", s->name, name);
        }
    return 0;
}
