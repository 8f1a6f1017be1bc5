/* SPDX-License-Identifier: MIT
 *
 * fleet.yaml: whatever is accepted keeps what fleet.h promises to the modules that use it; whatever is refused says where.
 */
#include <engine/engine.h>
#include <fleet/fleet.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static bool is_inside(const void *p, const void *array, size_t n, size_t size)
{
    uintptr_t at = (uintptr_t)p, first = (uintptr_t)array;
    return at >= first && at < first + n * size && (at - first) % size == 0;
}

static void check_service(const struct fleet *f, const struct fleet_service *s)
{
    bool generic = strcmp(s->runtime->engine, "generic") == 0;
    require(fleet_name_valid(str_of(s->name)) && s->pos.line > 0 && s->port > 0);
    require(is_inside(s->host, f->hosts, f->n_hosts, sizeof *f->hosts));
    require(is_inside(s->runtime, f->runtimes, f->n_runtimes, sizeof *f->runtimes));
    require(s->model ? is_inside(s->model, f->models, f->n_models, sizeof *f->models) : generic);
    require(strncmp(s->bind, "127.", 4) == 0 || strcmp(s->bind, "::1") == 0);
    require(s->shape.slots >= 1 && s->shape.slots <= FLEET_SLOTS_MAX && (!s->shape.context || s->shape.context >= s->shape.slots));
    require(s->shape.split_auto == (s->shape.n_split == 0));
    require((s->n_command > 0) == generic && (s->health != NULL) == generic);
    for (size_t i = 0; i < s->n_args; i++)
        require(strpbrk(s->args[i], "\r\n") == NULL);
    for (size_t i = 0; i < s->n_env; i++)
        require(strchr(s->env[i], '=') != NULL && strncmp(s->env[i], "LD_", 3) != 0);
    require(fleet_service_find(f, s->name) == s);
}

static void check_fleet(const struct fleet *f)
{
    require(f->name && f->n_hosts > 0 && f->dir[0] == '/');
    for (size_t i = 0; i < f->n_models; i++) {
        const char *w = f->models[i].weights;
        require(w[0] != '/' && w[0] != '-' && strncmp(w, "../", 3) != 0 && strstr(w, "/../") == NULL);
    }
    for (size_t i = 0; i < f->n_runtimes; i++)
        require((f->runtimes[i].source == FLEET_SOURCE_DEBIAN) == (f->runtimes[i].n_packages > 0));
    for (size_t i = 0; i < f->n_services; i++)
        check_service(f, &f->services[i]);
    require((f->n_services > 0) >= (f->n_endpoints > 0));
    for (size_t i = 0; i < f->n_endpoints; i++) {
        require(f->endpoints[i].n_services > 0);
        for (size_t k = 0; k < f->endpoints[i].n_services; k++)
            require(is_inside(f->endpoints[i].services[k], f->services, f->n_services, sizeof *f->services));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct fleet_options options = engine_fleet_options();
    struct fleet *f = NULL;
    struct err err = {0};
    int rc = fleet_parse((struct str){(const char *)data, size}, "f", &options, &f, &err);
    if (rc < 0) {
        require(!f && err.code == rc && strncmp(err.text, "f:", 2) == 0 && err.text[2] >= '1' && err.text[2] <= '9');
        return 0;
    }
    check_fleet(f);
    fleet_free(f);
    return 0;
}
