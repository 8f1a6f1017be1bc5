/* SPDX-License-Identifier: MIT
 *
 * Contracts about clients' files. A file is read once and its claims are kept with the run's plan of what the client should be told. The law of limits: the point at which a client shortens a conversation, plus its longest
 * answer, must fit into the window; and the window is that of one slot, not of the whole pool.
 */
#include "check_int.h"

#include <client/client.h>
#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- what a client should be told ---------------------------------------------------------------------------------- */

static uint64_t slot_of(const struct check_plan *p, const struct fleet_service *s)
{
    const struct check_need *n = &p->needs[s - p->fleet->services];
    struct fleet_shape sh;
    if (!n->why && n->result && n->result->n_ctx_seq)
        return n->result->n_ctx_seq;
    if (strcmp(s->runtime->engine, "generic") == 0)
        return s->shape.context / s->shape.slots;
    engine_shape(s, &sh);
    return strcmp(s->runtime->engine, "llama.cpp") == 0 ? engine_slot_context(&sh) : sh.context / sh.slots;
}

uint64_t check_window(const struct check_plan *p, const struct fleet_endpoint *e)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < e->n_services; i++) {
        uint64_t slot = slot_of(p, e->services[i]);
        least = slot < least ? slot : least;
    }
    return least == UINT64_MAX ? 0 : least;
}

/* What every service of an endpoint takes. */
static int senses_of(struct check_plan *p, const struct fleet_endpoint *e, struct client_model *m, struct err *err)
{
    m->image = m->audio = true;
    for (size_t i = 0; i < e->n_services; i++) {
        const struct fleet_model *fm = e->services[i]->model;
        const struct check_model *found = NULL;
        int r = fm && fm->projector ? check_header(p, fm, fm->projector, &found, err) : 0;
        if (r < 0)
            return r;
        /* a projector that is not here (another host's, not fetched yet) is one for images, as most are */
        m->image = m->image && found && (!found->model || found->model->vision);
        m->audio = m->audio && found && found->model && found->model->audio;
    }
    return 0;
}

/* Whether every service of an endpoint takes the word: one that says what it serves is held to that, else its model's words count. */
static bool takes_effort(const struct fleet_endpoint *e, struct str word)
{
    for (size_t i = 0; i < e->n_services; i++) {
        const struct fleet_service *s = e->services[i];
        bool known = false;
        for (size_t k = 0; k < s->serves.n_efforts && !known; k++)
            known = str_eq_c(word, s->serves.efforts[k]);
        for (size_t k = 0; s->serves.n_efforts == 0 && s->model && k < s->model->n_efforts && !known; k++)
            known = str_eq_c(word, s->model->efforts[k].sent);
        if (!known)
            return false;
    }
    return e->n_services > 0;
}

/* What a client may ask for: the words of the first service that all others take too. */
static int efforts_of(const struct fleet_endpoint *e, struct arena *a, struct client_model *m, struct err *err)
{
    const struct fleet_service *s = e->services[0];
    const struct fleet_model *fm = s->model;
    size_t n = fm && fm->n_efforts ? fm->n_efforts : s->serves.n_efforts;
    struct fleet_effort *list = arena_alloc(a, n ? n : 1, sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        struct fleet_effort one = fm && fm->n_efforts ? fm->efforts[i] : (struct fleet_effort){s->serves.efforts[i], s->serves.efforts[i]};
        if (takes_effort(e, str_of(one.sent)))
            list[m->n_efforts++] = one;
    }
    m->efforts = list;
    return 0;
}

static int tell(struct check_plan *p, const struct fleet_client *c, const struct fleet_endpoint *e, struct arena *a, struct client_model *m, struct err *err)
{
    *m = (struct client_model){.name = e->name, .window = check_window(p, e)};
    if (!m->window)
        return err_set(err, -ENODATA, "what a slot of endpoint '%s' holds is not known: give its services 'context'", e->name);
    uint64_t room = m->window - m->window * c->compact / 100;
    if (c->output > room)
        return err_set(err, -EINVAL, "client '%s': an answer of %u tokens does not fit behind %u %% of the %llu that a slot of '%s' holds; at most %llu do", c->name, c->output, c->compact, (unsigned long long)m->window, e->name,
                       (unsigned long long)room);
    if (room == 0)
        return err_set(err, -EINVAL, "client '%s' shortens at %u %% and leaves nothing for an answer; lower 'compact'", c->name, c->compact);
    m->output = c->output ? c->output : room;
    int r = senses_of(p, e, m, err);
    return r < 0 ? r : efforts_of(e, a, m, err);
}

int check_client_plan(const struct check_plan *p, const struct fleet_client *c, struct arena *a, struct client_plan *ret, struct err *err)
{
    const struct fleet *f = p->fleet;
    size_t n = c->n_endpoints ? c->n_endpoints : f->n_endpoints;
    struct client_model *models = arena_alloc(a, n ? n : 1, sizeof *models);
    struct client_plan out = {.fleet = f->name, .key_env = c->key_env, .compact = c->compact, .models = models, .n_models = n};
    if (!models)
        return err_nomem(err);
    int r = check_client_url(f, c, a, &out.url, err);
    for (size_t i = 0; r == 0 && i < n; i++)
        r = tell((struct check_plan *)(uintptr_t)p, c, c->n_endpoints ? c->endpoints[i] : &f->endpoints[i], a, &models[i], err);
    if (r == 0)
        *ret = out;
    return r;
}

/* ---- what its file claims -------------------------------------------------------------------------------------------- */

struct check_file_of_client {
    bool read;
    const char *wrong;            /* it cannot be used */
    const char *at;               /* where that is */
    const struct client_claim *claims;
    size_t n;
};

static int read_file(struct check_run *c, const struct fleet_client *cl, struct check_file_of_client *f)
{
    base_autobuf struct buf text = BUF_INIT(CLIENT_TEXT_MAX + 1);
    struct client_claim *claims = NULL;
    struct err err;
    f->read = true;
    f->at = check_where(c, cl->file, 0);
    f->wrong = check_file_wrong(c, cl->file);
    if (f->wrong)
        return 0;
    int r = os_read_file(AT_FDCWD, cl->file, &text, &err);
    if (r == 0)
        r = client_read(cl->format, buf_str(&text), c->a, &claims, &f->n, &err);
    if (r == -ENOMEM)
        return err_nomem(c->err);
    f->claims = claims;
    if (r < 0 && !(f->wrong = arena_printf(c->a, "it is no file of format %s: %s", fleet_format_name(cl->format), err.text)))
        return err_nomem(c->err);
    return 0;
}

/* Every file once, whichever contract asks first. */
static int want_files(struct check_run *c)
{
    int r = check_want_plan(c);
    if (r < 0 || c->files)
        return r;
    c->files = arena_alloc(c->a, c->f->n_clients ? c->f->n_clients : 1, sizeof *c->files);
    if (!c->files)
        return err_nomem(c->err);
    for (size_t i = 0; r == 0 && i < c->f->n_clients; i++)
        r = read_file(c, &c->f->clients[i], &c->files[i]);
    return r;
}

/* Addresses are the same but for slashes at their end. */
static bool same_url(struct str a, struct str b)
{
    while (a.len && a.ptr[a.len - 1] == '/')
        a.len--;
    while (b.len && b.ptr[b.len - 1] == '/')
        b.len--;
    return str_eq(a, b);
}

static const struct fleet_endpoint *endpoint_of(const struct fleet *f, struct str name)
{
    for (size_t i = 0; i < f->n_endpoints; i++) {
        const struct fleet_endpoint *e = &f->endpoints[i];
        if (str_eq_c(name, e->name))
            return e;
        for (size_t k = 0; k < e->n_aliases; k++)
            if (str_eq_c(name, e->aliases[k]))
                return e;
    }
    return NULL;
}

/* Whether a claim is about this fleet: one of another address is not. */
static bool is_ours(const struct client_claim *k, const char *url)
{
    return k->url.len == 0 || !url || same_url(k->url, str_of(url));
}

static bool has_claim(const struct check_file_of_client *f, const struct fleet *fl, const struct fleet_endpoint *e, const char *url)
{
    for (size_t i = 0; i < f->n; i++)
        if (is_ours(&f->claims[i], url) && endpoint_of(fl, f->claims[i].name) == e)
            return true;
    return false;
}

/* ---- clients ------------------------------------------------------------------------------------------------------------- */

/* The first thing that is wrong with what a file asks for; NULL: nothing. */
static int first_fault(struct check_run *c, const struct fleet_client *cl, const struct check_file_of_client *f, const char *url, const char **ret, unsigned *ret_line)
{
    bool ours = f->n == 0;
    size_t n = cl->n_endpoints ? cl->n_endpoints : c->f->n_endpoints;
    for (size_t i = 0; i < f->n; i++) {
        const struct client_claim *k = &f->claims[i];
        if (!is_ours(k, url))
            continue;
        ours = true;
        *ret_line = k->line;
        if (!endpoint_of(c->f, k->name) && cl->format != FLEET_AIDER) {
            *ret = arena_printf(c->a, "it asks for model '" STR_FMT "', which is no endpoint", STR_ARG(k->name));
            return *ret ? 0 : err_nomem(c->err);
        }
    }
    *ret_line = f->n ? f->claims[0].line : 0;
    if (!ours)
        *ret = arena_printf(c->a, "it asks '" STR_FMT "', and the router is at '%s'", STR_ARG(f->claims[0].url), url);
    for (size_t i = 0; ours && i < n; i++) {
        const struct fleet_endpoint *e = cl->n_endpoints ? cl->endpoints[i] : &c->f->endpoints[i];
        if (has_claim(f, c->f, e, url))
            continue;
        *ret_line = 0;
        *ret = arena_printf(c->a, "it does not have endpoint '%s'", e->name);
        break;
    }
    return 0;
}

/* The client's address, or NULL where contract reach has something to say. */
static int url_of(struct check_run *c, const struct fleet_client *cl, const char **ret)
{
    int r = check_client_url(c->f, cl, c->a, ret, NULL);
    return r == -ENOMEM ? err_nomem(c->err) : 0;
}

static int judge_client(struct check_run *c, const struct fleet_client *cl, const struct check_file_of_client *f)
{
    const char *subject = check_subject(c, "client", cl->name), *url = NULL, *fault = NULL;
    unsigned line = 0;
    if (f->wrong)
        return check_found(c, CHECK_BROKEN, subject, f->at, "%s", f->wrong);
    int r = url_of(c, cl, &url);
    if (r == 0)
        r = first_fault(c, cl, f, url, &fault, &line);
    if (r < 0)
        return r;
    if (fault)
        return check_found(c, CHECK_BROKEN, subject, check_where(c, cl->file, line), "%s", fault);
    return check_found(c, CHECK_HOLDS, subject, f->at, "%s, %zu model%s", fleet_format_name(cl->format), f->n, f->n == 1 ? "" : "s");
}

static int no_clients(struct check_run *c)
{
    return check_found(c, CHECK_NONE, check_subject(c, "fleet", c->f->name), c->f->file, "no client is declared");
}

int check_clients(struct check_run *c)
{
    int r = want_files(c);
    for (size_t i = 0; r == 0 && i < c->f->n_clients; i++)
        r = judge_client(c, &c->f->clients[i], &c->files[i]);
    return r == 0 && c->f->n_clients == 0 ? no_clients(c) : r;
}

/* ---- limits, modalities, reasoning: every claim of every file ------------------------------------------------------------- */

/* Says what is wrong with a claim, or NULL; *ret_told: the claim said something to judge. */
typedef const char *judge_claim(struct check_run *c, const struct fleet_client *cl, const struct client_claim *k, const struct fleet_endpoint *e, bool *ret_told);

static int each_client(struct check_run *c, judge_claim *judge, const char *nothing, const char *fine)
{
    int r = want_files(c);
    for (size_t i = 0; r == 0 && i < c->f->n_clients; i++) {
        const struct fleet_client *cl = &c->f->clients[i];
        const struct check_file_of_client *f = &c->files[i];
        const char *subject = check_subject(c, "client", cl->name), *wrong = NULL, *url = NULL;
        bool told = false;
        unsigned line = 0;
        r = url_of(c, cl, &url);
        for (size_t k = 0; r == 0 && k < f->n && !wrong; k++) {
            const struct fleet_endpoint *e = is_ours(&f->claims[k], url) ? endpoint_of(c->f, f->claims[k].name) : NULL;
            if (e)
                wrong = judge(c, cl, &f->claims[k], e, &told);
            line = f->claims[k].line;
        }
        if (r < 0)
            break;
        if (f->wrong)
            r = check_found(c, CHECK_NONE, subject, f->at, "its file cannot be read: see contract clients");
        else if (wrong)
            r = check_found(c, CHECK_BROKEN, subject, check_where(c, cl->file, line), "%s", wrong);
        else
            r = check_found(c, told ? CHECK_HOLDS : CHECK_NONE, subject, f->at, "%s", told ? fine : nothing);
    }
    return r == 0 && c->f->n_clients == 0 ? no_clients(c) : r;
}

static const char *limit_wrong(struct check_run *c, const struct fleet_client *cl, const struct client_claim *k, const struct fleet_endpoint *e, bool *ret_told)
{
    uint64_t slot = check_window(c->plan, e), trigger, sum = 0;
    char w[UNITS_TEXT], s[UNITS_TEXT], t[UNITS_TEXT], o[UNITS_TEXT];
    if (!slot)
        return NULL; /* nobody knows what an engine of kind generic holds */
    *ret_told = true;
    units_show_count(slot, s);
    units_show_count(k->window, w);
    units_show_count(k->output, o);
    if (!k->window)
        return arena_printf(c->a, "'" STR_FMT "' has no window: the client takes its own guess for the %s of a slot", STR_ARG(k->name), s);
    if (!k->output)
        return arena_printf(c->a, "'" STR_FMT "' has no longest answer: the client takes its own guess", STR_ARG(k->name));
    if (k->window > slot)
        return arena_printf(c->a, "'" STR_FMT "' has a window of %s, and a slot holds %s", STR_ARG(k->name), w, s);
    if (!size_mul(k->window, cl->compact, &trigger) || !size_add(trigger / 100, k->output, &sum) || sum > slot)
        return arena_printf(c->a, "'" STR_FMT "': %s (%u %% of %s) and an answer of %s are more than the %s of a slot", STR_ARG(k->name), units_show_count(trigger / 100, t), cl->compact, w, o, s);
    return NULL;
}

int check_limits(struct check_run *c)
{
    return each_client(c, limit_wrong, "what slots hold is not known", "window and answer fit into a slot");
}

static const char *modality_wrong(struct check_run *c, const struct fleet_client *cl, const struct client_claim *k, const struct fleet_endpoint *e, bool *ret_told)
{
    struct client_model m = {.image = false};
    (void)cl;
    *ret_told = true;
    if (senses_of(c->plan, e, &m, NULL) < 0)
        return "out of memory";
    if (k->image && !m.image)
        return arena_printf(c->a, "'" STR_FMT "' is to take images, and no projector of the model does", STR_ARG(k->name));
    if (k->audio && !m.audio)
        return arena_printf(c->a, "'" STR_FMT "' is to take sound, and no projector of the model does", STR_ARG(k->name));
    return NULL;
}

int check_modalities(struct check_run *c)
{
    return each_client(c, modality_wrong, "it has no model of this fleet", "no more than the models take");
}

static const char *effort_wrong(struct check_run *c, const struct fleet_client *cl, const struct client_claim *k, const struct fleet_endpoint *e, bool *ret_told)
{
    (void)cl;
    for (size_t i = 0; i < k->n_efforts; i++) {
        *ret_told = true;
        if (!takes_effort(e, k->efforts[i]))
            return arena_printf(c->a, "'" STR_FMT "' may send the effort '" STR_FMT "', which neither 'serves' of every service nor 'reasoning' of its model has", STR_ARG(k->name), STR_ARG(k->efforts[i]));
    }
    return NULL;
}

int check_reasoning(struct check_run *c)
{
    return each_client(c, effort_wrong, "it asks for no effort", "every effort is one that the template takes");
}
