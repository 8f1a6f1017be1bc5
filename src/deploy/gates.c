/* SPDX-License-Identifier: MIT
 *
 * What must hold before anything is touched. All gates are tried, so that a person sees at once what is to be mended.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "deploy_int.h"

#define PODMAN_MS 20000

extern char **environ;

static bool is_todo(const struct deploy_item *i)
{
    return i->action != DEPLOY_KEEP && i->action != DEPLOY_RETIRE;
}

struct deploy_wanted *deploy_wanted_of(struct deploy *d, const struct deploy_item *item)
{
    for (size_t i = 0; i < d->n_wanted; i++)
        if (d->wanted[i].name == item->service)
            return &d->wanted[i];
    return NULL;
}

/* ---- files -------------------------------------------------------------------------------------------------- */

struct proving {
    struct deploy *d;
    const struct fleet_model *m;
    const struct fleet_lock_model *locked;
};

/* One locked file: known by its stamp, else hashed. */
static int prove_file(void *ctx, const char *role, const char *file, struct err *err)
{
    const struct proving *g = ctx;
    struct deploy *d = g->d;
    struct store_pin pin;
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    (void)role;
    int r = store_payload_path(d->store, g->m, file, &path, err);
    int pinned = r < 0 ? r : store_pin_of(g->locked, file, d->arena, &pin, err);
    if (pinned <= 0)
        return pinned < 0 ? pinned : err_set(err, -ENOENT, "fleet.lock does not have '%s' of model '%s': 'berth lock' pins it", file, g->m->name);
    if (store_payload_proven(d->store, path.ptr, &pin.want))
        return 0;
    const struct store_verify_options o = {.sink = d->sink};
    struct store_check c = {.path = path.ptr, .want = pin.want, .parts = pin.parts, .n_parts = pin.n_parts};
    r = store_verify(d->store, &c, 1, &o, err);
    if (r == 0 && c.verdict >= STORE_MISSING)
        r = err_set(err, -EBADMSG, "'%s' is not what fleet.lock says: %s; 'berth verify --repair' mends it", path.ptr, c.why.text);
    store_check_release(&c);
    return r;
}

static int gate_payload(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    const struct fleet_model *m = w->service.model;
    uint64_t bytes;
    if (!m)
        return 0;
    int r = store_payload_check(d->store, m, &bytes, err);
    struct proving g = {d, m, r == 0 ? fleet_lock_of(d->fleet, m) : NULL};
    return g.locked ? store_payload_each(m, prove_file, &g, err) : r;
}

static int gate_runtime(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    return w->form == UNIT_CONTAINER ? 0 : store_runtime_verify(d->store, &w->runtime, d->sink, err);
}

static int gate_collectives(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    return deploy_collectives_gate(d, &w->service, err);
}

/* Podman's own units replace a container of their name, whoever made it. */
static int gate_container(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    char base[UNIT_NAME_MAX];
    const char *const argv[] = {"podman", "container", "inspect", "--format", "{{ index .Config.Labels \"PODMAN_SYSTEMD_UNIT\" }}", "--", unit_base(d->fleet->name, w->name, base), NULL};
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .use_path = true, .new_group = true};
    base_autobuf struct buf out = BUF_INIT(65536);
    int status;
    if (w->form != UNIT_CONTAINER)
        return 0;
    int r = os_run(&s, PODMAN_MS, &out, NULL, &status, err);
    if (r < 0 || status != 0) /* there is none of that name */
        return r;
    return str_eq_c(str_trim(buf_str(&out)), w->unit) ? 0 : err_set(err, -EEXIST, "a container '%s' is there and was not made by its unit: 'podman rm' it, or rename service '%s'", base, w->name);
}

/* A secret that anybody may read is none. */
static int gate_credentials(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    (void)d;
    for (size_t i = 0; i < w->service.n_credentials; i++) {
        const struct fleet_credential *c = &w->service.credentials[i];
        struct stat st;
        if (stat(c->path, &st) < 0)
            return err_sys(err, -errno, "its file '%s' of credential '%s' cannot be used", c->path, c->name);
        if (!S_ISREG(st.st_mode) || (st.st_mode & (S_IROTH | S_IWOTH)))
            return err_set(err, -EPERM, "'%s' of credential '%s' %s", c->path, c->name, S_ISREG(st.st_mode) ? "can be read by everybody: 'chmod 600' it" : "is no file");
    }
    return 0;
}

static int gate_key(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    char key[FLEET_KEY_MAX + 1] = "";
    int r = w->service.key ? fleet_key_read(w->service.key, key, err) : 0;
    explicit_bzero(key, sizeof key);
    return r < 0 ? err_prefix(err, "on host '%s'", d->host->name) : 0;
}

/* The tools of this very machine read the unit, in a folder that nothing is started from. */
int deploy_gate_text(struct deploy *d, const char *path_then, const char *text, enum unit_form form, struct err *err)
{
    char folder[] = "/tmp/berth-unit-XXXXXX";
    const char *name = strrchr(path_then, '/') + 1;
    if (!mkdtemp(folder))
        return err_sys(err, -errno, "cannot make a folder");
    os_autoclose int fd = os_open_dir(folder, err);
    const char *path = arena_printf(d->arena, "%s/%s", folder, name);
    int r = fd < 0 ? fd : path ? os_write_atomic(fd, name, text, strlen(text), 0644, err) : err_nomem(err);
    if (r == 0)
        r = run_unit_verify(path, form, d->host->scope, err);
    base_ignore(os_remove_path(folder, NULL)); /* it is below /tmp */
    return r;
}

static int gate_unit(struct deploy *d, struct deploy_wanted *w, struct err *err)
{
    return deploy_gate_text(d, w->path, w->text, w->form, err);
}

/* ---- port ------------------------------------------------------------------------------------------------------ */

/* Free, or held by a unit that this plan stops before it comes to this one. */
static int gate_port(const struct deploy_plan *p, const struct deploy_item *item, struct err *err)
{
    uint16_t port = item->declared->port;
    struct os_owner o;
    if (os_port_owner(port, &o) < 0 || o.pid <= 0)
        return 0;
    for (size_t i = 0; i < p->n; i++)
        if ((&p->items[i] == item || p->items[i].action == DEPLOY_RETIRE) && deploy_belongs(o.pid, p->items[i].unit))
            return 0;
    /* another of ours, which keeps it or comes later */
    for (size_t i = 0; i < p->n; i++)
        if (deploy_belongs(o.pid, p->items[i].unit))
            return err_set(err, -EADDRINUSE, "port %u is held by service '%s' until this deploy comes to it: deploy in two steps, the first one through a free port", port, p->items[i].service);
    return run_port_taken(port, "the service", err);
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* The processes of our own units: what they hold is ours to plan with. */
static size_t own_processes(struct deploy *d, pid_t *ret)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n_wanted; i++) {
        struct deploy_unit u;
        struct os_owner o;
        if (deploy_show(d, d->wanted[i].unit, &u, NULL) == 0 && u.pid > 0)
            ret[n++] = os_port_owner(d->wanted[i].service.port, &o) == 0 && o.pid > 0 && deploy_belongs(o.pid, d->wanted[i].unit) ? o.pid : u.pid;
    }
    return n;
}

/* What no shape of memory mends: the engine would refuse it, or be another than was asked. */
static const char *refusal(const struct check_need *n)
{
    for (size_t i = 0; !n->why && n->result && i < n->result->n_notes; i++)
        if (n->result->notes[i].severity == FIT_REFUSED)
            return n->result->notes[i].text;
    return NULL;
}

static int judge_fit(const struct deploy *d, const struct check_plan *plan, struct err *err)
{
    for (size_t i = 0; i < plan->n_needs; i++)
        if (plan->fleet->services[i].host == d->host && plan->needs[i].why && plan->needs[i].broken)
            return err_set(err, -EINVAL, "service '%s' cannot be planned: %s", plan->fleet->services[i].name, plan->needs[i].why);
    for (size_t i = 0; i < plan->n_needs; i++)
        if (plan->fleet->services[i].host == d->host && refusal(&plan->needs[i]))
            return err_set(err, -EINVAL, "service '%s': %s", plan->fleet->services[i].name, refusal(&plan->needs[i]));
    for (size_t i = 0; i < plan->n_machines; i++) {
        const struct check_machine *m = &plan->machines[i];
        char left[UNITS_TEXT];
        if (m->host != d->host || !m->planned || m->fits)
            continue;
        int64_t of = m->left[m->binds];
        if (of >= (int64_t)check_floor(m, (size_t)m->binds)) {
            char gap[UNITS_TEXT], slack[UNITS_TEXT];
            return err_set(err, -ENOSPC, "its devices would be uneven: the gap between them is %s, more than the 'slack' of %s; 'berth fit --table split' shows other splits", units_show_bytes(m->gap_bytes, gap),
                           units_show_bytes(m->slack_bytes, slack));
        }
        return err_set(err, -ENOSPC, "it does not fit: %s would have %s%s left, and must keep its floor; 'berth fit' shows what takes it", check_device_name(m, (size_t)m->binds), of < 0 ? "-" : "",
                       units_show_bytes((uint64_t)(of < 0 ? -of : of), left));
    }
    return 0;
}

int deploy_fit(struct deploy *d, struct err *err)
{
    pid_t *own = calloc(d->n_wanted + 1, sizeof *own);
    struct check_plan *plan = NULL;
    if (!own)
        return err_nomem(err);
    const struct check_plan_options o = {.own = own, .n_own = own_processes(d, own), .turns = true, .now = true};
    int r = check_plan_new(d->fleet, d->store, &o, &plan, err);
    if (r == 0)
        r = judge_fit(d, plan, err);
    check_plan_free(plan);
    free(own);
    return r;
}

/* ---- all ------------------------------------------------------------------------------------------------------------ */

struct gates {
    struct deploy *d;
    struct err *first;
    size_t shut;
    int r;
};

/* One that stays shut alone is the error; only of several each is an event. */
static void shut(struct gates *g, int r, const char *gate, const char *service, const struct err *why)
{
    if (g->shut++ == 0) {
        g->r = err_set(g->first, r, "%s of '%s': %s", gate, service, why->text);
        return;
    }
    if (g->shut == 2)
        event_say(g->d->sink, EVENT_ERROR, g->d->host->name, "%s", g->first->text);
    event_say(g->d->sink, EVENT_ERROR, g->d->host->name, "%s of '%s': %s", gate, service, why->text);
}

static void service_gates(struct gates *g, const struct deploy_plan *p, const struct deploy_item *item)
{
    struct deploy_wanted *w = deploy_wanted_of(g->d, item);
    static const struct {
        const char *name;
        int (*gate)(struct deploy *d, struct deploy_wanted *w, struct err *err);
    } gates[] = {{"payload", gate_payload}, {"runtime", gate_runtime}, {"credentials", gate_credentials}, {"key", gate_key}, {"container", gate_container}, {"collectives", gate_collectives}, {"unit", gate_unit}};
    struct err why;
    int r;
    assert(w); /* what is to be done and no retirement is declared */
    for (size_t i = 0; i < BASE_COUNT(gates); i++)
        if ((r = gates[i].gate(g->d, w, &why)) < 0)
            shut(g, r, gates[i].name, w->name, &why);
    if ((r = gate_port(p, item, &why)) < 0)
        shut(g, r, "port", w->name, &why);
}

int deploy_gates(struct deploy *d, const struct deploy_plan *p, struct err *err)
{
    struct gates g = {.d = d, .first = err};
    struct err why;
    bool any = false;
    int r;
    for (size_t i = 0; i < p->n; i++)
        if (is_todo(&p->items[i]) && p->items[i].router) {
            if ((r = deploy_front_gate(d, &p->items[i], &why)) < 0)
                shut(&g, r, "router", p->items[i].service, &why);
        } else if (is_todo(&p->items[i])) {
            service_gates(&g, p, &p->items[i]);
            any = true;
        }
    r = any ? deploy_fit(d, &why) : 0;
    if (r < 0)
        shut(&g, r, "fit", d->host->name, &why);
    return g.shut > 1 ? err_prefix(err, "%zu gates stay shut, as told above; the first is", g.shut) : g.r;
}
