/* SPDX-License-Identifier: MIT
 *
 * Which files of a repository a model of the fleet is: those that it names, all parts of a set that it begins, or the fragments that a file was cut into for upload (NAME.part1of3). Files that nobody asked for are not looked at.
 */
#include "hub_int.h"

#include <errno.h>
#include <inttypes.h>

struct resolving {
    const struct fleet_model *m;
    const struct hub_tree *tree;
    struct arena *a;
    struct fleet_lock_file *files;
    size_t n, cap;
};

static int add(struct resolving *r, const struct hub_file *f, struct err *err)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->files[i].path, f->path) == 0)
            return 0; /* one file in two roles */
    if (f->bytes > STORE_PAYLOAD_MAX)
        return err_set(err, -EFBIG, "model '%s': '%s' has %" PRIu64 " bytes, it is said, and no payload has so many", r->m->name, f->path, f->bytes);
    struct fleet_lock_file *list = arena_grow(r->a, r->files, r->n + 1, &r->cap, sizeof *list);
    if (!list)
        return err_nomem(err);
    r->files = list;
    struct fleet_lock_file *to = &r->files[r->n++];
    *to = (struct fleet_lock_file){.path = arena_dup(r->a, str_of(f->path)), .bytes = f->bytes};
    to->sha256 = f->sha256 ? arena_dup(r->a, str_of(f->sha256)) : NULL;
    to->git_sha1 = f->git_sha1 ? arena_dup(r->a, str_of(f->git_sha1)) : NULL;
    return to->path && (to->sha256 || to->git_sha1) ? 0 : err_nomem(err);
}

/* All fragments of file, in order: their number, 0 when there are none, or -ENOENT when one is missing. */
static int add_fragments(struct resolving *r, const char *file, struct err *err)
{
    uint32_t no, count = 0;
    for (size_t i = 0; i < r->tree->n_files && !count; i++)
        if (!store_fragment(str_of(r->tree->files[i].path), file, &no, &count))
            count = 0;
    for (uint32_t k = 1; k <= count; k++) {
        char *path = arena_printf(r->a, "%s.part%uof%u", file, (unsigned)k, (unsigned)count);
        const struct hub_file *f = path ? hub_tree_find(r->tree, path) : NULL;
        if (!path)
            return err_nomem(err);
        if (!f)
            return err_set(err, -ENOENT, "model '%s': %s has '%s' in %u fragments, and '%s' is not among them", r->m->name, r->m->source_arg, file, (unsigned)count, path);
        int rc = add(r, f, err);
        if (rc < 0)
            return rc;
    }
    return (int)count;
}

/* The name in the repository that is most like the one that is not there. */
static const char *nearest(const struct hub_tree *t, const char *file)
{
    const char *names[512];
    size_t n = 0;
    for (size_t i = 0; i < t->n_files && n < BASE_COUNT(names); i++)
        names[n++] = t->files[i].path;
    return str_nearest(str_of(file), names, n);
}

static int add_named(void *ctx, const char *role, const char *file, struct err *err)
{
    struct resolving *r = ctx;
    const struct hub_file *f = hub_tree_find(r->tree, file);
    if (f)
        return add(r, f, err);
    int n = add_fragments(r, file, err);
    if (n)
        return n < 0 ? n : 0;
    const char *near = nearest(r->tree, file);
    return err_set(err, -ENOENT, "model '%s': its %s file '%s' is not in %s at '%s'%s%s%s: it is gone upstream, or the name is wrong", r->m->name, role, file, r->m->source_arg, r->m->revision, near ? "; there is '" : "",
                   near ? near : "", near ? "'" : "");
}

int hub_resolve(struct hub *h, const struct fleet_model *m, struct arena *a, struct fleet_lock_model *ret, struct err *err)
{
    struct hub_tree tree;
    int rc = hub_tree(h, m->source_arg, m->revision, &tree, err);
    if (rc < 0)
        return err_prefix(err, "model '%s'", m->name);
    struct resolving r = {.m = m, .tree = &tree, .a = a};
    rc = store_payload_each(m, add_named, &r, err);
    char *commit = arena_dup(a, str_of(tree.commit));
    if (rc == 0 && !commit)
        rc = err_nomem(err);
    hub_tree_release(&tree);
    if (rc < 0)
        return rc;
    *ret = (struct fleet_lock_model){.name = m->name, .revision = m->revision, .commit = commit, .files = r.files, .n_files = r.n};
    return 0;
}
