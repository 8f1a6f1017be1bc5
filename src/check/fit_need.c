/* SPDX-License-Identifier: MIT
 *
 * What one service is made of: its models' headers, its runtime, its shape. A fault of the service is kept as its reason, so that the others are still planned.
 */
#include "check_int.h"

#include <errno.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

/* ---- models ------------------------------------------------------------------------------------------------------------ */

/* 0 when nothing is wrong with any part but that its data is missing; else the first other fault. */
static int judge_headers(const struct store_weights *w, struct err *err)
{
    for (size_t i = 0; i < w->n; i++) {
        const struct gguf_part *part = &w->parts[i];
        if (part->g && (part->state == GGUF_PART_OK || gguf_whole(part->g, NULL) == -ENODATA))
            continue;
        *err = part->why;
        return w->n > 1 ? err_prefix(err, "part %zu of %zu", i + 1, w->n) : err->code;
    }
    return 0;
}

static int load_parts(const struct store_weights *w, struct model **ret, struct err *err)
{
    const struct gguf **readers = calloc(w->n, sizeof(void *));
    if (!readers)
        return err_nomem(err);
    for (size_t i = 0; i < w->n; i++)
        readers[i] = w->parts[i].g;
    int r = model_load(readers, w->n, ret, err);
    free(readers);
    return r;
}

int check_model_load(const char *path, bool header_only, struct model **ret, struct store_weights *ret_files, struct err *err)
{
    struct store_weights w;
    int r = store_weights_open(path, &w, err);
    if (r < 0)
        return r;
    if (w.verdict < 0 && header_only) {
        r = judge_headers(&w, err);
    } else if (w.verdict < 0) {
        *err = w.why;
        r = w.verdict;
    }
    if (r == 0)
        r = load_parts(&w, ret, err);
    if (r == 0 && ret_files)
        *ret_files = w;
    else
        store_weights_release(&w);
    return r;
}

/* The model at path, or NULL with *ret_why. */
static int find_model(struct check_plan *p, const char *path, const struct check_model **ret, struct err *err)
{
    struct check_plan_state *st = p->state;
    for (struct check_model *m = st->models; m; m = m->next)
        if (strcmp(m->path, path) == 0) {
            *ret = m;
            return 0;
        }
    struct check_model *m = arena_alloc(p->arena, 1, sizeof(*m));
    struct err why;
    if (!m)
        return err_nomem(err);
    m->path = path;
    m->code = check_model_load(path, st->options.headers != NULL, &m->model, st->options.ledger ? &m->files : NULL, &why);
    if (m->code == -ENOMEM)
        return err_nomem(err);
    if (m->code < 0 && !(m->why = arena_dup(p->arena, str_of(why.text))))
        return err_nomem(err);
    m->next = st->models;
    st->models = m;
    *ret = m;
    return 0;
}

/* Where the header of a model's file is. */
static int file_path(struct check_plan *p, const struct fleet_model *m, const char *file, const char **ret, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(16384);
    if (p->state->options.headers) {
        const char *slash = strrchr(file, '/');
        buf_addf(&path, "%s/%s", p->state->options.headers, slash ? slash + 1 : file);
        if (buf_status(&path) < 0)
            return err_nomem(err);
    } else {
        int r = store_payload_path(p->state->store, m, file, &path, err);
        if (r < 0)
            return r;
        base_autobuf struct buf header = BUF_INIT(16384);
        if (access(path.ptr, F_OK) < 0 && store_header_path(p->state->store, m, file, &header, NULL) == 0 && access(header.ptr, F_OK) == 0) {
            buf_clear(&path);
            buf_add_str(&path, buf_str(&header));
        }
    }
    *ret = arena_dup(p->arena, buf_str(&path));
    return *ret ? 0 : err_nomem(err);
}

int check_header(struct check_plan *p, const struct fleet_model *m, const char *file, const struct check_model **ret, struct err *err)
{
    const char *path = "";
    int r = file_path(p, m, file, &path, err);
    return r < 0 ? r : find_model(p, path, ret, err);
}

int check_give_up(struct check_plan *p, struct check_need *n, bool broken, struct err *err, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(8192);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    n->why = buf_status(&text) < 0 ? NULL : arena_dup(p->arena, buf_str(&text));
    n->broken = broken;
    return n->why ? 0 : err_nomem(err);
}

/* One file of the service's model. Leaves n->why when it cannot be planned with. */
static int take_file(struct check_plan *p, struct check_need *n, const char *role, const char *file, const char **ret_path, const struct model **ret_model, struct err *err)
{
    const struct check_model *m = NULL;
    if (!file || n->why)
        return 0;
    const char *path = "";
    int r = file_path(p, n->service->model, file, &path, err);
    if (r == 0)
        r = find_model(p, path, &m, err);
    if (r < 0 || !m)
        return r;
    n->missing = m->code == -ENOENT;
    n->unreadable = !n->missing && !m->model;
    if (n->missing)
        return check_give_up(p, n, check_is_here(n->service->host) && !p->state->options.headers, err, "its %s %s: %s; 'berth fit --headers FOLDER' plans with a copy of its header", role, path, m->why);
    if (!m->model)
        return check_give_up(p, n, true, err, "its %s %s: %s", role, path, m->why);
    *ret_path = path;
    *ret_model = m->model;
    return 0;
}

/* ---- the runtime --------------------------------------------------------------------------------------------------------- */

/* "0.7.0" of "0.7.0+dfsg-1"; another form as it is. */
static const char *plain_version(struct check_plan *p, const char *version)
{
    size_t n = strspn(version, "0123456789.");
    unsigned dots = 0;
    for (size_t i = 0; i < n; i++)
        dots += version[i] == '.';
    return dots == 2 ? arena_dup(p->arena, (struct str){version, n}) : version;
}

static int take_runtime(struct check_plan *p, struct check_need *n, struct err *err)
{
    struct check_runtime *c = &p->state->runtimes[n->service->runtime - p->fleet->runtimes];
    if (!c->runtime) {
        struct err why;
        c->runtime = n->service->runtime;
        int r = store_runtime_find(p->state->store, c->runtime, &c->found, &why);
        if (r == -ENOMEM)
            return err_nomem(err);
        c->installed = r == 0;
        c->code = r;
        if (r < 0 && !(c->why = arena_dup(p->arena, str_of(why.text))))
            return err_nomem(err);
        if (r == 0 && !(c->version = plain_version(p, c->found.version)))
            return err_nomem(err);
    }
    n->runtime = c->installed ? &c->found : NULL;
    n->version = c->version;
    return 0;
}

/* The files of a model that was loaded; NULL for no path. */
static const struct store_weights *files_of(const struct check_plan *p, const char *path)
{
    for (const struct check_model *m = p->state->models; path && m; m = m->next)
        if (strcmp(m->path, path) == 0)
            return &m->files;
    return NULL;
}

static int take_key(struct check_plan *p, struct check_need *n, struct err *err)
{
    n->key = (struct measure_key){.build = n->runtime ? n->runtime->id : "", .model = "", .service = n->service->name, .hardware = n->machine->hardware_known ? n->machine->hardware : NULL};
    /* headers are only hashed when there is something to look up */
    if (!p->state->options.ledger)
        return 0;
    char *digest = arena_alloc(p->arena, OS_SHA256_HEX, 1);
    if (!digest)
        return err_nomem(err);
    int r = measure_model_digest(files_of(p, n->files.weights), files_of(p, n->files.drafter), files_of(p, n->files.projector), digest, err);
    n->key.model = digest;
    return r;
}

/* ---- a service ------------------------------------------------------------------------------------------------------------ */

static void take_devices(struct check_need *n)
{
    const struct check_machine *m = n->machine;
    bool on_devices = n->shape.gpu_layers > 0;
    n->memory = m->memory;
    n->input = (struct fit_input){.target = n->target, .drafter = n->drafter, .projector = n->projector, .shape = &n->shape, .devices = n->devices, .n_devices = on_devices ? m->n_devices : 0,
                                  .host = &n->memory, .program = FIT_SERVER, .engine_version = n->version};
    memcpy(n->devices, m->devices, m->n_devices * sizeof(n->devices[0]));
    /* a service of the CPU's is measured on the CPU alone */
    if (!on_devices && n->key.hardware)
        n->key.hardware += m->n_devices;
}

int check_need_init(struct check_plan *p, struct check_need *n, struct err *err)
{
    const struct fleet_service *s = n->service;
    struct err why;
    int r = take_runtime(p, n, err);
    if (r < 0)
        return r;
    if (strcmp(s->runtime->engine, "vllm") == 0)
        return check_vllm_init(p, n, err);
    if (strcmp(s->runtime->engine, "llama.cpp") != 0)
        return check_give_up(p, n, false, err, "what an engine of kind %s takes is not known", s->runtime->engine);
    const struct fleet_model *m = s->model;
    r = take_file(p, n, "weights", m->weights, &n->files.weights, &n->target, err);
    if (r == 0)
        r = take_file(p, n, "projector", m->projector, &n->files.projector, &n->projector, err);
    /* a drafter without a draft kind of speculation is not loaded */
    bool drafts = false;
    for (size_t i = 0; i < s->shape.n_speculative; i++)
        drafts = drafts || str_starts(str_of(s->shape.speculative[i]), STR("draft-"));
    if (r == 0 && drafts)
        r = take_file(p, n, "drafter", m->drafter, &n->files.drafter, &n->drafter, err);
    if (r < 0 || n->why)
        return r;
    r = fit_shape_of(s, p->arena, &n->shape, &why);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(err) : check_give_up(p, n, true, err, "%s", why.text);
    if (n->shape.gpu_layers > 0 && n->machine->n_devices == 0)
        return check_give_up(p, n, false, err, "gpu-layers: %s, but the devices of host '%s' are not known: declare them", n->shape.gpu_layers == UINT32_MAX ? "all" : "some", s->host->name);
    r = take_key(p, n, err);
    if (r < 0)
        return r;
    n->result = arena_alloc(p->arena, 1, sizeof(*n->result));
    if (!n->result)
        return err_nomem(err);
    take_devices(n);
    return 0;
}
