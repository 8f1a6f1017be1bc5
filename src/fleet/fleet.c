/* SPDX-License-Identifier: MIT
 *
 * Reading a fleet file from end to end: the text, the tree, the root, the sections in the order in which they refer to each
 * other, the router, and last the rules over all of it. What is not written gets its default here. A fleet and
 * everything in it lie in one arena; nothing of the YAML tree is kept.
 */
#include "fleet_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <os/os.h>
#include <unistd.h>

#define ROUTER_ADDRESS "127.0.0.1"
#define ROUTER_PORT 8080

struct owned {
    struct arena *arena;
    struct fleet fleet;
};

struct fleet *fleet_free(struct fleet *f)
{
    if (f) {
        struct owned *o = base_container(f, struct owned, fleet);
        f->lock = fleet_lock_free(f->lock);
        (void)arena_free(o->arena); /* which holds o itself */
    }
    return NULL;
}

static struct fleet *new_fleet(void)
{
    struct arena *a = arena_new(FLEET_MEMORY_MAX);
    struct owned *o = a ? arena_alloc(a, 1, sizeof *o) : NULL;
    if (!o) {
        (void)arena_free(a);
        return NULL;
    }
    o->arena = a;
    return &o->fleet;
}

/* The absolute folder of a file: where relative paths inside it begin. Links and ".." stay as they are. */
static int find_dir(struct arena *a, const char *path, const char **ret, struct err *err)
{
    const char *slash = strrchr(path, '/');
    struct str dir = {path, slash == path ? 1 : slash ? (size_t)(slash - path) : 0};
    while (str_starts(dir, STR("./")))
        dir = (struct str){dir.ptr + 2, dir.len - 2};
    if (str_eq_c(dir, "."))
        dir.len = 0;
    const char *abs;
    if (path[0] == '/') {
        abs = arena_dup(a, dir);
    } else {
        base_autofree char *cwd = getcwd(NULL, 0);
        if (!cwd)
            return err_sys(err, -errno, "cannot find the current folder");
        const char *rest = arena_dup(a, dir);
        abs = !rest ? NULL : dir.len ? arena_printf(a, "%s/%s", strcmp(cwd, "/") == 0 ? "" : cwd, rest) : arena_dup(a, str_of(cwd));
    }
    if (!abs)
        return err_nomem(err);
    *ret = abs;
    return 0;
}

static int default_host(struct fleet_reader *r)
{
    struct fleet_host *here = arena_alloc(r->arena, 1, sizeof *here);
    if (!here)
        return err_nomem(r->err);
    *here = (struct fleet_host){.name = "here", .pos = {1, 1}};
    r->fleet->hosts = here;
    r->fleet->n_hosts = 1;
    return 0;
}

static int default_endpoints(struct fleet_reader *r)
{
    struct fleet *f = r->fleet;
    if (f->n_services == 0)
        return 0;
    struct fleet_endpoint *all = arena_alloc(r->arena, f->n_services, sizeof *all);
    const struct fleet_service **refs = arena_alloc(r->arena, f->n_services, sizeof(struct fleet_service *));
    if (!all || !refs)
        return err_nomem(r->err);
    for (size_t i = 0; i < f->n_services; i++) {
        refs[i] = &f->services[i];
        all[i] = (struct fleet_endpoint){.name = f->services[i].name, .services = &refs[i], .n_services = 1, .pos = f->services[i].pos};
    }
    f->endpoints = all;
    f->n_endpoints = f->n_services;
    return 0;
}

static int read_router(struct fleet_reader *r)
{
    struct fleet_router *router = &r->fleet->router;
    router->address = ROUTER_ADDRESS;
    router->port = ROUTER_PORT;
    router->loops = 1;
    router->bodies = FLEET_BODIES_DEFAULT;
    const struct yaml_node *n = yaml_get(r->root, "router");
    if (!n)
        return 0;
    router->declared = true;
    router->pos = fleet_key_pos_of(n);
    return fleet_read_part(r, &fleet_schema_router, n, "the router", router->pos, router);
}

static int read_all(struct fleet_reader *r)
{
    if (yaml_is_null(r->root))
        return fleet_refuse(r, r->root, "the file is empty; begin with 'version: 1' and 'name: NAME'");
    int rc = fleet_read_part(r, &fleet_schema_root, r->root, "the fleet", (struct fleet_pos){1, 1}, r->fleet);
    for (size_t i = 0; rc == 0 && i < fleet_n_sections; i++) {
        rc = fleet_read_section(r, &fleet_sections[i]);
        if (rc == 0 && i == 0 && r->fleet->n_hosts == 0)
            rc = default_host(r);
        /* clients refer to them */
        if (rc == 0 && strcmp(fleet_sections[i].key, "endpoints") == 0 && r->fleet->n_endpoints == 0)
            rc = default_endpoints(r);
    }
    if (rc == 0)
        rc = read_router(r);
    if (rc == 0)
        rc = fleet_rules_listen(r);
    if (rc == 0)
        rc = fleet_rules_router(r);
    if (rc == 0)
        rc = fleet_rules_ports(r);
    if (rc == 0)
        rc = fleet_rules_endpoints(r);
    if (rc == 0)
        fleet_hash(r);
    return rc;
}

/* Seen from that host. The hosts are the reader's own, so what is const to others is not to it. */
static int be_here(struct fleet *f, const char *name, struct err *err)
{
    struct fleet_host *hosts = (struct fleet_host *)f->hosts, *here = NULL;
    for (size_t i = 0; i < f->n_hosts; i++) {
        if (strcmp(hosts[i].name, name) == 0)
            here = &hosts[i];
        else if (!hosts[i].ssh)
            hosts[i].ssh = "elsewhere";
    }
    if (!here)
        return err_set(err, -EINVAL, "%s: there is no host '%s'", f->file, name);
    here->ssh = NULL;
    return 0;
}

int fleet_parse(struct str text, const char *path, const struct fleet_options *opt, struct fleet **ret, struct err *err)
{
    struct yaml *tree;
    int rc = yaml_parse(text, path, &tree, err);
    if (rc < 0)
        return rc;
    struct fleet *f = new_fleet();
    if (!f) {
        (void)yaml_free(tree);
        return err_nomem(err);
    }
    struct arena *a = base_container(f, struct owned, fleet)->arena;
    f->file = arena_dup(a, str_of(path));
    rc = f->file ? find_dir(a, path, &f->dir, err) : err_nomem(err);
    if (rc == 0) {
        struct fleet_reader r = {.arena = a, .fleet = f, .opt = opt, .root = yaml_root(tree), .err = err, .of = "the fleet"};
        rc = read_all(&r);
    }
    (void)yaml_free(tree);
    if (rc == 0 && opt && opt->here)
        rc = be_here(f, opt->here, err);
    if (rc < 0) {
        (void)fleet_free(f);
        return rc;
    }
    *ret = f;
    return 0;
}

/* The lock beside the file, and from it the commits. The models are the reader's own, so what is const to others is not to it. */
static int take_lock(struct fleet *f, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT((size_t)2 * PATH_MAX);
    fleet_lock_path(f->file, &path);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    int rc = fleet_lock_load(path.ptr, &f->lock, err);
    if (rc == -ENOENT)
        return 0;
    struct fleet_model *models = (struct fleet_model *)f->models;
    for (size_t i = 0; rc == 0 && i < f->n_models; i++) {
        const struct fleet_lock_model *l = fleet_lock_of(f, &models[i]);
        models[i].commit = l ? l->commit : NULL;
        fleet_hash_commit(f, &models[i]);
    }
    return rc;
}

int fleet_load_text(struct str text, const char *path, const struct fleet_options *opt, struct fleet **ret, struct err *err)
{
    struct fleet *f = NULL;
    int rc = fleet_parse(text, path, opt, &f, err);
    if (rc == 0)
        rc = take_lock(f, err);
    if (rc < 0)
        (void)fleet_free(f);
    else
        *ret = f;
    return rc;
}

int fleet_load(const char *path, const struct fleet_options *opt, struct fleet **ret, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(CONF_YAML_MAX);
    int rc = os_read_file(AT_FDCWD, path, &text, err);
    if (rc == -EFBIG)
        return err_set(err, -EINVAL, "%s:1:1: the file is larger than %zu KiB", path, CONF_YAML_MAX / 1024);
    return rc < 0 ? rc : fleet_load_text(buf_str(&text), path, opt, ret, err);
}

static int keep_name(struct str name, char ret[FLEET_NAME_MAX + 1])
{
    if (!fleet_name_valid(name))
        return -EINVAL;
    (void)snprintf(ret, FLEET_NAME_MAX + 1, STR_FMT, STR_ARG(name));
    return 0;
}

/* The only "name: X" at the beginning of a line: of a file that is no YAML, as in the middle of an edit. A fleet that runs must still be seen and stopped then. */
static int name_from_lines(struct str text, char ret[FLEET_NAME_MAX + 1])
{
    struct str found = {NULL, 0};
    while (text.len) {
        struct str line = str_split(&text, '\n');
        if (!str_starts(line, STR("name:")))
            continue;
        if (found.ptr)
            return -EINVAL;
        struct str value = {line.ptr + 5, line.len - 5};
        found = str_trim(str_split(&value, '#'));
    }
    return keep_name(found, ret);
}

int fleet_name_of(const char *path, char ret[FLEET_NAME_MAX + 1])
{
    base_autobuf struct buf text = BUF_INIT(CONF_YAML_MAX);
    struct yaml *tree;
    int rc = os_read_file(AT_FDCWD, path, &text, NULL);
    if (rc < 0)
        return rc;
    if (yaml_parse(buf_str(&text), path, &tree, NULL) < 0)
        return name_from_lines(buf_str(&text), ret);
    const struct yaml_node *n = yaml_get(yaml_root(tree), "name");
    rc = n && n->kind == YAML_SCALAR ? keep_name(n->text, ret) : -EINVAL;
    (void)yaml_free(tree);
    return rc;
}

const struct fleet_service *fleet_service_find(const struct fleet *f, const char *name)
{
    return fleet_find(f->services, f->n_services, sizeof *f->services, str_of(name));
}

const struct fleet_host *fleet_host_find(const struct fleet *f, const char *name)
{
    return fleet_find(f->hosts, f->n_hosts, sizeof *f->hosts, str_of(name));
}

const struct fleet_host *fleet_host_here(const struct fleet *f)
{
    for (size_t i = 0; i < f->n_hosts; i++)
        if (!f->hosts[i].ssh)
            return &f->hosts[i];
    return NULL;
}

bool fleet_service_local(const struct fleet_service *s)
{
    return !s->host->ssh && s->unit == FLEET_CHILD;
}
