/* SPDX-License-Identifier: MIT
 *
 * The contracts, one function each over one subject. A contract whose subject is missing is broken, never passed by absence; what another host holds is unproven from here.
 */
#include "check_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <string.h>

int check_add(struct check_results *r, const char *contract, const char *subject, enum check_verdict verdict, const char *text)
{
    struct check_result *list = arena_grow(r->a, r->list, r->n + 1, &r->cap, sizeof *list);
    if (!list || !subject || !text)
        return -ENOMEM;
    r->list = list;
    list[r->n++] = (struct check_result){.contract = contract, .subject = subject, .verdict = verdict, .text = text};
    return 0;
}

/* True when some service on this machine uses the thing. */
static bool used_here(const struct fleet *f, const struct fleet_model *m, const struct fleet_runtime *rt, bool *ret_elsewhere)
{
    bool here = false;
    *ret_elsewhere = false;
    for (size_t i = 0; i < f->n_services; i++) {
        const struct fleet_service *s = &f->services[i];
        /* an engine without a model uses none */
        if (!(m && s->model == m) && !(rt && s->runtime == rt))
            continue;
        if (check_is_here(s->host))
            here = true;
        else
            *ret_elsewhere = true;
    }
    return here;
}

struct proofs {
    struct store *s;
    const struct fleet_model *m;
    const struct fleet_lock_model *locked;
    bool unproven;
};

/* One stat: what was proven is not hashed again here. */
static int look_for_proof(void *ctx, const char *role, const char *file, struct err *err)
{
    struct proofs *p = ctx;
    const struct fleet_lock_file *want = fleet_lock_find_file(p->locked, file);
    base_autobuf struct buf path = BUF_INIT(8192);
    (void)role;
    int r = store_payload_path(p->s, p->m, file, &path, err);
    if (r == 0 && want && !store_payload_proven(p->s, path.ptr, want))
        p->unproven = true;
    return r;
}

/* payload: every file that a model names is there, and is what the lock pins. */
static int check_payload(struct check_results *r, struct store *s, const struct fleet *f, const struct fleet_model *m)
{
    char *subject = arena_printf(r->a, "model %s", m->name);
    bool elsewhere;
    if (!used_here(f, m, NULL, &elsewhere))
        return check_add(r, "payload", subject, elsewhere ? CHECK_UNPROVEN : CHECK_HOLDS,
                   elsewhere ? "used on other hosts only" : "no service uses it");
    struct err err;
    uint64_t bytes;
    if (store_payload_check(s, m, &bytes, &err) < 0)
        return check_add(r, "payload", subject, CHECK_BROKEN, arena_dup(r->a, str_of(err.text)));
    char size[UNITS_TEXT];
    struct proofs p = {.s = s, .m = m, .locked = fleet_lock_of(f, m)};
    int ret = p.locked ? store_payload_each(m, look_for_proof, &p, &err) : 0;
    if (ret < 0)
        return ret == -ENOMEM ? ret : check_add(r, "payload", subject, CHECK_BROKEN, arena_dup(r->a, str_of(err.text)));
    if (p.unproven)
        return check_add(r, "payload", subject, CHECK_UNPROVEN, "all files are there, but not proven to be what fleet.lock pins: 'berth verify' does that");
    return check_add(r, "payload", subject, CHECK_HOLDS, arena_printf(r->a, "all files are %s, %s", p.locked ? "what fleet.lock pins" : "there", units_show_bytes(bytes, size)));
}

/* runtime: installed, and every file as its manifest says. One that is not is unproven, for `up` installs it. */
static int check_runtime(struct check_results *r, struct store *s, const struct fleet *f, const struct fleet_runtime *rt)
{
    char *subject = arena_printf(r->a, "runtime %s", rt->name);
    bool elsewhere;
    if (!used_here(f, NULL, rt, &elsewhere))
        return check_add(r, "runtime", subject, elsewhere ? CHECK_UNPROVEN : CHECK_HOLDS,
                   elsewhere ? "used on other hosts only" : "no service uses it");
    if (rt->source == FLEET_SOURCE_OCI)
        return check_add(r, "runtime", subject, CHECK_HOLDS, "an image, pinned by its digest; podman fetches it");
    struct store_runtime found;
    struct err err;
    int ret = store_runtime_find(s, rt, &found, &err);
    if (ret == -ENOENT)
        return check_add(r, "runtime", subject, CHECK_UNPROVEN, "not installed; 'berth up' or 'berth runtime add' installs it");
    if (ret < 0)
        return check_add(r, "runtime", subject, CHECK_BROKEN, arena_dup(r->a, str_of(err.text)));
    const struct fleet_lock_runtime *pin = fleet_lock_of_runtime(f, rt);
    if (pin && rt->source != FLEET_SOURCE_ARCHIVE && strcmp(pin->digest, found.digest) != 0)
        ret = check_add(r, "runtime", subject, CHECK_BROKEN, arena_printf(r->a, "%s is not the build that fleet.lock pins (%.12s): 'berth lock' takes what is installed", found.id, pin->digest));
    else if (store_runtime_verify(s, &found, NULL, &err) < 0)
        ret = check_add(r, "runtime", subject, CHECK_BROKEN, arena_dup(r->a, str_of(err.text)));
    else
        ret = check_add(r, "runtime", subject, CHECK_HOLDS, arena_printf(r->a, "%s, every file proven", found.id));
    store_runtime_release(&found);
    return ret;
}

static int path_of(struct store *s, const struct fleet_model *m, const char *file, struct arena *a, const char **ret, struct err *err)
{
    if (!file)
        return 0;
    base_autobuf struct buf path = BUF_INIT(8192);
    int r = store_payload_path(s, m, file, &path, err);
    if (r < 0)
        return r;
    *ret = arena_dup(a, buf_str(&path));
    return *ret ? 0 : err_nomem(err);
}

/* argv: the shape can be said in the engine's own flags. */
static int check_argv(struct check_results *r, struct store *s, const struct fleet_service *sv)
{
    char *subject = arena_printf(r->a, "service %s", sv->name);
    struct engine_paths paths = {0};
    struct err err;
    const char *const *argv;
    size_t n = 0;
    int ret = 0;
    if (sv->model) {
        paths.template_file = sv->model->template_file;
        ret = path_of(s, sv->model, sv->model->weights, r->a, &paths.weights, &err);
        if (!ret)
            ret = path_of(s, sv->model, sv->model->projector, r->a, &paths.projector, &err);
        if (!ret)
            ret = path_of(s, sv->model, sv->model->drafter, r->a, &paths.drafter, &err);
    }
    if (!ret)
        ret = engine_argv(sv, &paths, r->a, &argv, &n, &err);
    if (ret == -ENOMEM)
        return ret;
    if (ret < 0)
        return check_add(r, "argv", subject, CHECK_BROKEN, arena_dup(r->a, str_of(err.text)));
    return check_add(r, "argv", subject, CHECK_HOLDS, arena_printf(r->a, "%s, %zu words on its command line", sv->runtime->engine, n));
}

int check_fleet(const struct fleet *f, struct store *s, const struct check_plan_options *o, struct arena *a, struct check_result **ret, size_t *ret_n, struct err *err)
{
    struct check_plan *plan = NULL;
    int e = check_plan_new(f, s, o, &plan, err);
    if (e < 0)
        return e;
    struct check_results r = {.a = a};
    /* loading it has proved keys, units, names, references and ports */
    int failed = check_add(&r, "file", arena_printf(a, "fleet %s", f->name), CHECK_HOLDS,
                     arena_printf(a, "%zu service%s, %zu endpoint%s", f->n_services, f->n_services == 1 ? "" : "s", f->n_endpoints, f->n_endpoints == 1 ? "" : "s"));
    for (size_t i = 0; !failed && i < f->n_runtimes; i++)
        failed = check_runtime(&r, s, f, &f->runtimes[i]);
    for (size_t i = 0; !failed && i < f->n_models; i++)
        failed = check_payload(&r, s, f, &f->models[i]);
    for (size_t i = 0; !failed && i < f->n_services; i++)
        failed = check_argv(&r, s, &f->services[i]);
    if (!failed)
        failed = check_fit(&r, plan);
    check_plan_free(plan);
    if (failed)
        return err_nomem(err);
    *ret = r.list;
    *ret_n = r.n;
    return 0;
}
