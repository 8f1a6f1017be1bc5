/* SPDX-License-Identifier: MIT
 *
 * Contracts about what lies on disk: engine builds, model files, their headers, templates; and the command line that they come to. Each header is read once, by the plan.
 */
#include "check_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define TEMPLATE_MAX ((size_t)4 << 20) /* bytes; the longest known have some 20 KiB */

int check_file(struct check_run *c)
{
    const struct fleet *f = c->f;
    /* loading it has proved keys, units, names, references and ports */
    return check_found(c, CHECK_HOLDS, check_subject(c, "fleet", f->name), f->file, "%zu service%s, %zu endpoint%s", f->n_services, f->n_services == 1 ? "" : "s", f->n_endpoints, f->n_endpoints == 1 ? "" : "s");
}

/* ---- runtimes ------------------------------------------------------------------------------------------------------ */

static int judge_runtime(struct check_run *c, const struct fleet_runtime *rt, const char *subject, const char *at)
{
    const struct check_runtime *known = &c->plan->state->runtimes[rt - c->f->runtimes];
    if (rt->source == FLEET_SOURCE_OCI)
        return check_found(c, CHECK_HOLDS, subject, at, "an image, pinned by its digest; podman fetches it");
    if (!known->installed && known->code == -ENOENT)
        return check_found(c, CHECK_UNPROVEN, subject, at, "not installed; 'berth up' or 'berth runtime add' installs it");
    if (!known->installed)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", known->why);
    const struct fleet_lock_runtime *pin = fleet_lock_of_runtime(c->f, rt);
    struct err err;
    if (pin && rt->source != FLEET_SOURCE_ARCHIVE && strcmp(pin->digest, known->found.digest) != 0) {
        c->fix = "'berth lock' pins what is installed, 'berth runtime add' installs what is pinned";
        return check_found(c, CHECK_BROKEN, subject, at, "%s is not the build that fleet.lock pins (%.12s)", known->found.id, pin->digest);
    }
    if (store_runtime_verify(c->s, &known->found, NULL, &err) < 0)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", err.text);
    return check_found(c, CHECK_HOLDS, subject, at, "%s, every file proven", known->found.id);
}

int check_runtime(struct check_run *c)
{
    int r = check_want_plan(c);
    for (size_t i = 0; r == 0 && i < c->f->n_runtimes; i++) {
        const struct fleet_runtime *rt = &c->f->runtimes[i];
        const char *subject = check_subject(c, "runtime", rt->name), *at = check_at(c, rt->pos);
        bool elsewhere;
        if (check_used_here(c->f, NULL, rt, &elsewhere))
            r = judge_runtime(c, rt, subject, at);
        else
            r = check_found(c, elsewhere ? CHECK_UNPROVEN : CHECK_NONE, subject, at, elsewhere ? "used on other hosts only" : "no service uses it");
    }
    return r;
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

struct proofs {
    struct store *s;
    const struct fleet_model *m;
    const struct fleet_lock_model *locked;
    struct arena *a;
    bool unproven;
};

/* One stat: what was proven is not hashed again here. */
static int look_for_proof(void *ctx, const char *role, const char *file, struct err *err)
{
    struct proofs *p = ctx;
    struct store_pin pin;
    base_autobuf struct buf path = BUF_INIT(8192);
    (void)role;
    int r = store_payload_path(p->s, p->m, file, &path, err);
    int pinned = r < 0 ? r : store_pin_of(p->locked, file, p->a, &pin, err);
    if (pinned == 1 && !store_payload_proven(p->s, path.ptr, &pin.want))
        p->unproven = true;
    return pinned < 0 ? pinned : 0;
}

static int judge_payload(struct check_run *c, const struct fleet_model *m, const char *subject, const char *at)
{
    struct err err;
    uint64_t bytes;
    struct fleet_model without = *m; /* the template has a contract of its own */
    without.template_file = NULL;
    int r = store_payload_check(c->s, &without, &bytes, &err);
    struct proofs p = {.s = c->s, .m = m, .locked = fleet_lock_of(c->f, m), .a = c->a};
    if (r == 0 && p.locked)
        r = store_payload_each(m, look_for_proof, &p, &err);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(c->err) : check_found(c, CHECK_BROKEN, subject, at, "%s", err.text);
    char size[UNITS_TEXT];
    if (p.unproven)
        return check_found(c, CHECK_UNPROVEN, subject, at, "all files are there, but not proven to be what fleet.lock pins: 'berth verify' does that");
    return check_found(c, CHECK_HOLDS, subject, at, "all files are %s, %s", p.locked ? "what fleet.lock pins" : "there", units_show_bytes(bytes, size));
}

int check_payload(struct check_run *c)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_models; i++) {
        const struct fleet_model *m = &c->f->models[i];
        const char *subject = check_subject(c, "model", m->name), *at = check_at(c, m->pos);
        bool elsewhere;
        if (check_used_here(c->f, m, NULL, &elsewhere))
            r = judge_payload(c, m, subject, at);
        else
            r = check_found(c, elsewhere ? CHECK_UNPROVEN : CHECK_NONE, subject, at, elsewhere ? "used on other hosts only" : "no service uses it");
    }
    return r;
}

/* ---- headers ------------------------------------------------------------------------------------------------------------- */

/* Whether a service of llama.cpp loads the model: other engines' files are not GGUF. */
static bool is_read_by_llama(const struct fleet *f, const struct fleet_model *m)
{
    for (size_t i = 0; i < f->n_services; i++)
        if (f->services[i].model == m && strcmp(f->services[i].runtime->engine, "llama.cpp") == 0)
            return true;
    return false;
}

/* Of the files that a model names the first whose header is wrong, or is not here. */
static int first_wrong(struct check_run *c, const struct fleet_model *m, const char **ret_role, const struct check_model **ret, struct err *err)
{
    const struct {
        const char *role, *file;
    } files[] = {{"weights", m->weights}, {"projector", m->projector}, {"drafter", m->drafter}};
    *ret = NULL;
    for (size_t i = 0; i < BASE_COUNT(files); i++) {
        const struct check_model *found = NULL;
        int r = files[i].file ? check_header(c->plan, m, files[i].file, &found, err) : 0;
        if (r < 0)
            return r;
        if (found && !found->model) {
            *ret_role = files[i].role;
            *ret = found;
            return 0;
        }
    }
    return 0;
}

static int judge_header(struct check_run *c, const struct fleet_model *m, const char *subject, const char *at)
{
    const struct check_model *wrong = NULL, *target = NULL;
    const char *role = "";
    int r = first_wrong(c, m, &role, &wrong, c->err);
    if (r < 0)
        return r;
    if (wrong && wrong->code == -ENOENT)
        return check_found(c, CHECK_NONE, subject, at, "its %s cannot be found here: see contract payload", role);
    if (wrong)
        return check_found(c, CHECK_BROKEN, subject, check_where(c, wrong->path, 0), "%s: %s", role, wrong->why);
    if ((r = check_header(c->plan, m, m->weights, &target, c->err)) < 0)
        return r;
    base_autobuf struct buf kinds = BUF_INIT(512);
    model_kinds(target->model, &kinds);
    if (target->model->role == MODEL_PROJECTOR) {
        c->fix = "name the model's own file under 'weights'";
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' is a projector, no model", m->weights);
    }
    return check_found(c, CHECK_HOLDS, subject, at, "%s, %u part%s, %s", target->model->arch, target->model->n_parts, target->model->n_parts == 1 ? "" : "s", kinds.len ? kinds.ptr : "layers of unknown kind");
}

int check_model_header(struct check_run *c)
{
    int r = check_want_plan(c);
    for (size_t i = 0; r == 0 && i < c->f->n_models; i++) {
        const struct fleet_model *m = &c->f->models[i];
        const char *subject = check_subject(c, "model", m->name), *at = check_at(c, m->pos);
        bool elsewhere, here = check_used_here(c->f, m, NULL, &elsewhere);
        if (!here && !elsewhere)
            r = check_found(c, CHECK_NONE, subject, at, "no service uses it");
        else if (!is_read_by_llama(c->f, m))
            r = check_found(c, CHECK_NONE, subject, at, "no service of llama.cpp reads it");
        else if (!here && !c->o->plan.headers)
            r = check_found(c, CHECK_UNPROVEN, subject, at, "used on other hosts only; --headers FOLDER takes its header from there");
        else
            r = judge_header(c, m, subject, at);
    }
    return r;
}

/* ---- templates and projectors -------------------------------------------------------------------------------------------- */

static int judge_template(struct check_run *c, const struct fleet_model *m, const char *subject, const char *at)
{
    const char *wrong = check_file_wrong(c, m->template_file);
    if (wrong)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", wrong);
    base_autobuf struct buf text = BUF_INIT(TEMPLATE_MAX);
    struct err err;
    int r = os_read_file(AT_FDCWD, m->template_file, &text, &err);
    if (r == -ENOMEM)
        return err_nomem(c->err);
    if (r < 0)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", err.text);
    if (!str_is_utf8(buf_str(&text)))
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' is no text", check_short(c, m->template_file));
    if (str_find(buf_str(&text), STR("{{")) < 0 && str_find(buf_str(&text), STR("{%")) < 0)
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' holds no tag of a template: every prompt would be this text", check_short(c, m->template_file));
    return check_found(c, CHECK_HOLDS, subject, at, "%s, %zu bytes", check_short(c, m->template_file), text.len);
}

int check_template(struct check_run *c)
{
    int r = check_want_plan(c);
    for (size_t i = 0; r == 0 && i < c->f->n_models; i++) {
        const struct fleet_model *m = &c->f->models[i];
        const char *subject = check_subject(c, "model", m->name), *at = check_at(c, m->pos);
        const struct check_model *found = NULL;
        bool elsewhere, here = check_used_here(c->f, m, NULL, &elsewhere);
        /* it lies beside the fleet file, whichever host serves the model */
        if (m->template_file)
            r = judge_template(c, m, subject, at);
        else if (here && is_read_by_llama(c->f, m) && (r = check_header(c->plan, m, m->weights, &found, c->err)) == 0 && found->model && found->model->chat_template)
            r = check_found(c, CHECK_HOLDS, subject, at, "the model's own");
        else if (r == 0)
            r = check_found(c, CHECK_NONE, subject, at, "none is named");
    }
    return r;
}

static int judge_projector(struct check_run *c, const struct fleet_model *m, const char *subject, const char *at)
{
    const struct check_model *found = NULL;
    int r = check_header(c->plan, m, m->projector, &found, c->err);
    if (r < 0)
        return r;
    const struct model *p = found->model;
    if (!p)
        return check_found(c, CHECK_NONE, subject, at, "it cannot be read: see contract %s", found->code == -ENOENT ? "payload" : "model");
    if (p->role != MODEL_PROJECTOR)
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' is a model of architecture %s, no projector", m->projector, p->arch);
    if (!p->vision && !p->audio)
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' has no encoder, neither for images nor for sound", m->projector);
    return check_found(c, CHECK_HOLDS, subject, at, "for %s", p->vision && p->audio ? "images and sound" : p->vision ? "images" : "sound");
}

int check_projector(struct check_run *c)
{
    int r = check_want_plan(c);
    for (size_t i = 0; r == 0 && i < c->f->n_models; i++) {
        const struct fleet_model *m = &c->f->models[i];
        const char *subject = check_subject(c, "model", m->name), *at = check_at(c, m->pos);
        bool elsewhere, here = check_used_here(c->f, m, NULL, &elsewhere);
        if (!m->projector)
            r = check_found(c, CHECK_NONE, subject, at, "none is named: text only");
        else if (!here && !c->o->plan.headers)
            r = check_found(c, elsewhere ? CHECK_UNPROVEN : CHECK_NONE, subject, at, elsewhere ? "used on other hosts only" : "no service uses it");
        else
            r = judge_projector(c, m, subject, at);
    }
    return r;
}

/* ---- command lines --------------------------------------------------------------------------------------------------------- */

static int path_of(struct check_run *c, const struct fleet_model *m, const char *file, const char **ret, struct err *err)
{
    if (!file)
        return 0;
    base_autobuf struct buf path = BUF_INIT(8192);
    int r = store_payload_path(c->s, m, file, &path, err);
    if (r < 0)
        return r;
    *ret = arena_dup(c->a, buf_str(&path));
    return *ret ? 0 : err_nomem(err);
}

int check_command(struct check_run *c, const struct fleet_service *sv, const char *const **ret, size_t *ret_n, struct err *err)
{
    struct engine_paths paths = {.key = sv->key};
    int r = 0;
    if (sv->model) {
        paths.template_file = sv->model->template_file;
        r = path_of(c, sv->model, sv->model->weights, &paths.weights, err);
        if (r == 0)
            r = path_of(c, sv->model, sv->model->projector, &paths.projector, err);
        if (r == 0)
            r = path_of(c, sv->model, sv->model->drafter, &paths.drafter, err);
    }
    return r == 0 ? engine_argv(sv, &paths, c->a, ret, ret_n, err) : r;
}

int check_argv(struct check_run *c)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_services; i++) {
        const struct fleet_service *s = &c->f->services[i];
        const char *subject = check_subject(c, "service", s->name), *at = check_at(c, s->pos);
        const char *const *argv;
        size_t n = 0;
        struct err err;
        r = check_command(c, s, &argv, &n, &err);
        if (r == -ENOMEM)
            r = err_nomem(c->err);
        else if (r < 0)
            r = check_found(c, CHECK_BROKEN, subject, at, "%s", err.text);
        else
            r = check_found(c, CHECK_HOLDS, subject, at, "%s, %zu words on its command line", s->runtime->engine, n);
    }
    return r;
}
