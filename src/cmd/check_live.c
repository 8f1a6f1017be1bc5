/* SPDX-License-Identifier: MIT
 *
 * Each service of this machine that answers is asked for what it declares, whoever started it; nothing is started for it. Who it is comes first: the battery is not for strangers. What an engine took is compared by a deploy and by
 * `berth up`, which know where its files are. Then each endpoint is asked once as clients ask, through the router.
 */
#include "front_int.h"
#include "live_int.h"

#include <errno.h>
#include <probe/probe.h>

#define ANSWER_MS 5000 /* of an engine that runs, to its own machine */
#define ANSWER_MAX ((size_t)1 << 20)

struct live {
    struct net_loop *loop;
    struct httpio_client *client;
    const struct fleet_service *service;
    struct probe_door door;
    char key[FLEET_KEY_MAX + 1];
    bool runs; /* its health is 200 */
    int status;
    struct err err;
};

static void end(struct live *l, int status)
{
    l->status = status;
    net_loop_stop(l->loop);
}

static void on_battery(void *ctx, int status, const struct err *err)
{
    struct live *l = ctx;
    if (status < 0)
        l->err = *err;
    end(l, status);
}

static void begin_battery(struct live *l)
{
    if (!probe_battery_start(l->loop, l->client, l->service, &l->door, on_battery, l))
        end(l, err_nomem(&l->err));
}

static void on_identity(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct live *l = ctx;
    int r = status == 200 ? engine_identity_check(body, engine_served_name(l->service), &l->err) : err_set(&l->err, -EIO, "its list of models: status %u%s%s", status, failed ? ": " : "", failed ? failed->text : "");
    if (r < 0)
        end(l, r);
    else
        begin_battery(l);
}

static void get(struct live *l, const char *path, httpio_fetched *cb)
{
    char bearer[HTTPIO_BEARER_MAX];
    struct http_field field;
    const struct httpio_request r = {.addr = l->door.addr, .method = STR("GET"), .target = str_of(path), .fresh = true, .fields = &field, .n_fields = httpio_bearer(l->key, bearer, &field)};
    if (!httpio_fetch(l->client, &r, ANSWER_MAX, ANSWER_MS, cb, l))
        end(l, err_nomem(&l->err));
}

static void on_health(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct live *l = ctx;
    const char *path = engine_identity_path(l->service);
    (void)body;
    l->runs = status == 200;
    if (!l->runs)
        end(l, status ? err_set(&l->err, -EAGAIN, "its health is %u", status) : err_set(&l->err, -ECONNREFUSED, "it does not answer: %s", failed->text));
    else if (path)
        get(l, path, on_identity);
    else
        begin_battery(l);
}

static int ask(struct live *l, struct err *err)
{
    int r = net_loop_new(&l->loop, err);
    if (r < 0)
        return r;
    l->client = httpio_client_new(l->loop, &HTTPIO_CLIENT_DEFAULT);
    if (l->client) {
        l->status = -EINPROGRESS;
        get(l, engine_health_path(l->service), on_health);
        net_loop_run(l->loop);
    }
    r = l->client ? 0 : err_nomem(err);
    l->client = httpio_client_free(l->client);
    l->loop = net_loop_free(l->loop);
    return r;
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* "answers; asked for chat, template, tool call". */
static const char *asked_for(const struct fleet_service *s, struct arena *a)
{
    base_autobuf struct buf text = BUF_INIT(512);
    for (unsigned c = 0; c < PROBE_CHECKS; c++)
        if (c != PROBE_SIZE && probe_check_applies(s, (enum probe_check)c, 0))
            buf_addf(&text, "%s%s", text.len ? ", " : "does ", probe_check_text((enum probe_check)c));
    return buf_status(&text) < 0 ? NULL : arena_dup(a, text.len ? buf_str(&text) : STR("answers; there is no text to ask it for"));
}

static int judge(const struct fleet_service *s, struct arena *a, struct check_result *r, bool *runs, struct err *err)
{
    struct live l = {.service = s};
    *r = (struct check_result){.contract = "live", .subject = arena_printf(a, "service %s", s->name), .verdict = CHECK_UNPROVEN};
    if (s->host->ssh) {
        r->text = arena_printf(a, "it is on host '%s': ask there", s->host->name);
    } else {
        int rc = net_addr_parse(s->bind, s->port, &l.door.addr);
        l.door.key = l.key;
        if (rc < 0)
            return err_set(err, rc, "bind '%s' is no address", s->bind);
        if (s->key && fleet_key_read(s->key, l.key, &l.err) < 0)
            l.status = l.err.code;
        else
            rc = ask(&l, err);
        explicit_bzero(l.key, sizeof l.key);
        if (rc < 0)
            return rc;
        *runs = l.runs;
        bool asleep = !l.runs && s->start == FLEET_ON_DEMAND;
        r->verdict = l.status == 0 ? CHECK_HOLDS : asleep ? CHECK_UNPROVEN : CHECK_BROKEN;
        r->text = l.status == 0 ? asked_for(s, a) : asleep ? arena_dup(a, STR("it is on demand, and not up")) : arena_dup(a, str_of(l.err.text));
    }
    return r->subject && r->text ? 0 : err_nomem(err);
}

/* ---- the front door --------------------------------------------------------------------------------------------- */

/* What keeps the question from being asked: the router is elsewhere or not up, or it would start a service. *verdict as it is then; NULL: nothing does. */
static const char *front_obstacle(const struct fleet *f, const struct fleet_endpoint *e, const bool *runs, int opened, const struct err *why, struct arena *a, enum check_verdict *verdict)
{
    *verdict = CHECK_UNPROVEN;
    if (f->router.host && f->router.host->ssh)
        return arena_printf(a, "its router is on host '%s': ask there", f->router.host->name);
    for (size_t i = 0; i < e->n_services; i++)
        if (e->services[i]->start == FLEET_ON_DEMAND && !runs[e->services[i] - f->services])
            return arena_printf(a, "service '%s' is on demand and not up: the question could start it", e->services[i]->name);
    if (opened == -ENOENT) {
        *verdict = f->router.declared ? CHECK_BROKEN : CHECK_UNPROVEN;
        return arena_dup(a, STR("no router is up here: 'berth up' or 'berth route' brings it"));
    }
    if (opened == -EACCES || opened == -EPERM)
        return arena_printf(a, "the router is another account's: %s", why->text);
    *verdict = CHECK_BROKEN;
    return opened < 0 ? arena_dup(a, str_of(why->text)) : NULL;
}

static int ask_front(const struct front_door *door, const struct fleet_endpoint *e, const struct fleet_service *s, struct arena *a, struct check_result *r)
{
    base_autobuf struct buf text = BUF_INIT(4096);
    const char *names[FRONT_NAMES_MAX], *name;
    struct err err;
    size_t n = 0;
    buf_add_c(&text, "answers as ");
    for (; (name = front_door_name(e, n)); names[n++] = name) {
        if (!front_door_knows(door, s->name, e, name)) {
            r->text = arena_printf(a, "the router has not read of '%s' with service '%s': 'berth reload' there", name, s->name);
            return r->text ? 0 : -ENOMEM;
        }
        buf_addf(&text, "%s%s", n ? ", " : "", name);
    }
    int code = front_door_ask(door, s, names, n, &err);
    if (code == -ENOMEM)
        return code;
    r->verdict = code < 0 ? CHECK_BROKEN : CHECK_HOLDS;
    r->text = code < 0 ? arena_dup(a, str_of(err.text)) : buf_status(&text) < 0 ? NULL : arena_dup(a, buf_str(&text));
    return r->text ? 0 : -ENOMEM;
}

static int judge_front(const struct fleet *f, const struct fleet_endpoint *e, const bool *runs, const struct front_door *door, int opened, const struct err *why, struct arena *a, struct check_result *r)
{
    size_t i = 0;
    *r = (struct check_result){.contract = "live", .subject = arena_printf(a, "endpoint %s", e->name), .verdict = CHECK_NONE};
    while (i < e->n_services && !probe_check_applies(e->services[i], PROBE_CHAT, 0))
        i++;
    if (i == e->n_services) {
        r->text = arena_dup(a, STR("there is no text to ask its services for"));
        return r->subject && r->text ? 0 : -ENOMEM;
    }
    r->text = front_obstacle(f, e, runs, opened, why, a, &r->verdict);
    int code = r->text ? 0 : ask_front(door, e, e->services[i], a, r);
    return r->subject && code == 0 ? 0 : -ENOMEM;
}

static int judge_fronts(const struct os_dirs *dirs, const struct fleet *f, const bool *runs, struct arena *a, struct check_result *list, struct err *err)
{
    struct front_door door;
    struct err why = {0};
    int r = 0, opened = front_door_open(dirs, f, &door, &why);
    for (size_t i = 0; r == 0 && i < f->n_endpoints; i++)
        r = judge_front(f, &f->endpoints[i], runs, &door, opened, &why, a, &list[i]);
    front_door_close(&door);
    return r < 0 ? err_nomem(err) : 0;
}

int check_live(const struct os_dirs *dirs, const struct fleet *f, struct arena *a, struct check_result **list, size_t *n, struct err *err)
{
    struct check_result *all = arena_alloc(a, *n + f->n_services + f->n_endpoints + 1, sizeof *all);
    bool *runs = arena_alloc(a, f->n_services + 1, sizeof *runs);
    if (!all || !runs)
        return err_nomem(err);
    if (*n)
        memcpy(all, *list, *n * sizeof *all);
    *list = all;
    for (size_t i = 0; i < f->n_services; i++) {
        int r = judge(&f->services[i], a, &all[*n], &runs[i], err);
        if (r < 0)
            return r;
        (*n)++;
    }
    int r = judge_fronts(dirs, f, runs, a, &all[*n], err);
    *n += r == 0 ? f->n_endpoints : 0;
    return r;
}
