/* SPDX-License-Identifier: MIT
 *
 * How a deploy tells the fleet's router. Where the router is up, over its control socket; a berth that another machine has sent for asks that one by a line on its output, which does it there or on the machine where the router is:
 *
 *   router drain|resume|ask SERVICE        "0 done", "2 no router is up", "110 ..." on the standard input
 *
 * A drain ends by itself after DRAIN_S, since whoever asked may die; it is asked for again by the next deploy.
 */
#include "deploy_host_int.h"
#include "front_int.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <up/up.h>

#define DRAIN_S 900
#define DRAIN_MS 600000u /* that requests under way may take; less than the drain lasts */
#define RESUME_MS 30000u /* that a router takes to see that a service is well */
#define STEP_MS 50
#define ANSWER_MAX (8u << 20)

/* ---- the control socket --------------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    return clk_system.mono_us(NULL) / 1000;
}

/* -ENOENT: not up, or not known there. */
static int call(const struct deploy_router_here *h, const char *method, const char *target, struct buf *body, struct err *err)
{
    unsigned status = 0;
    int r = up_call(h->dirs, h->fleet->name, method, target, &status, body, err);
    if (r == 0 && status == 404)
        return err_set(err, -ENOENT, "the router does not know it");
    return r == 0 && status != 200 ? err_set(err, -EIO, "it answers %u", status) : r;
}

struct replica {
    bool known, ready;
    uint64_t busy;
};

/* As the router's worker has it. A router that cannot say just now has no replicas. */
static int look(const struct deploy_router_here *h, const char *service, struct replica *ret, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(ANSWER_MAX);
    struct json *j = NULL;
    *ret = (struct replica){0};
    int r = call(h, "GET", "/requests", &body, err);
    if (r == -EIO)
        return 0;
    if (r == 0)
        r = json_parse(buf_str(&body), &j, err);
    json_val all = r == 0 ? json_get(json_root(j), "replicas") : NULL;
    for (size_t i = 0; i < json_count(all); i++)
        if (str_eq_c(json_get_str(json_at(all, i), "name", ""), service))
            *ret = (struct replica){true, json_get_bool(json_at(all, i), "ready"), json_get_u64(json_at(all, i), "busy")};
    json_free(j);
    return r;
}

static int wait_until(const struct deploy_router_here *h, const char *service, bool ready, uint64_t limit_ms, struct err *err)
{
    uint64_t until = now_ms() + limit_ms;
    for (;;) {
        struct replica now;
        int r = look(h, service, &now, err);
        if (r < 0)
            return r;
        if (now.known && now.ready == ready && (ready || now.busy == 0))
            return 0;
        if (now_ms() >= until && !now.known)
            return err_set(err, -ETIMEDOUT, "the router does not say what it does");
        if (now_ms() >= until && ready)
            return err_set(err, -ETIMEDOUT, "it is not well for the router: 'berth status' says why");
        if (now_ms() >= until)
            return err_set(err, -ETIMEDOUT, "%llu requests have not ended in %u minutes; 'berth top' shows them", (unsigned long long)now.busy, DRAIN_MS / 60000);
        const struct timespec t = {.tv_nsec = STEP_MS * 1000000L};
        (void)nanosleep(&t, NULL);
    }
}

/* ---- as clients ask ----------------------------------------------------------------------------------------------- */

/* By the names that the router has read; the others are told. */
static int ask_endpoint(const struct deploy_router_here *h, const struct front_door *door, const struct fleet_endpoint *e, const struct fleet_service *s, struct err *err)
{
    const char *names[FRONT_NAMES_MAX], *name;
    size_t n = 0;
    for (size_t i = 0; (name = front_door_name(e, i)); i++) {
        if (front_door_knows(door, s->name, e, name))
            names[n++] = name;
        else
            event_say(h->sink, EVENT_INFO, s->name, "the router has not read of '%s' yet: 'berth reload' there", name);
    }
    return front_door_ask(door, s, names, n, err);
}

/* Every endpoint that the service is of. */
static int ask(const struct deploy_router_here *h, const char *service, struct err *err)
{
    const struct fleet_service *s = fleet_service_find(h->fleet, service);
    struct front_door door;
    if (!s)
        return err_set(err, -ENOENT, "the fleet has no such service");
    int r = front_door_open(h->dirs, h->fleet, &door, err);
    for (size_t i = 0; r == 0 && i < h->fleet->n_endpoints; i++)
        for (size_t k = 0; r == 0 && k < h->fleet->endpoints[i].n_services; k++)
            if (h->fleet->endpoints[i].services[k] == s)
                r = ask_endpoint(h, &door, &h->fleet->endpoints[i], s, err);
    front_door_close(&door);
    return r;
}

/* Whether it accepts, which a start takes a moment to. */
static int state(const struct deploy_router_here *h, struct err *err)
{
    base_autobuf struct buf body = BUF_INIT(ANSWER_MAX);
    struct json *status = NULL;
    int r = call(h, "GET", "/status", &body, err);
    if (r == 0)
        r = json_parse(buf_str(&body), &status, err);
    if (r == 0 && !str_eq_c(json_get_str(json_get(json_root(status), "router"), "state", ""), "up"))
        r = err_set(err, -EAGAIN, "the router does not accept yet");
    json_free(status);
    return r;
}

/* ---- here ------------------------------------------------------------------------------------------------------------ */

int deploy_router_here(void *ctx, enum deploy_word what, const char *service, struct err *err)
{
    const struct deploy_router_here *h = ctx;
    base_autobuf struct buf body = BUF_INIT(65536);
    char target[FLEET_NAME_MAX + 64];
    if (what == DEPLOY_ASK)
        return ask(h, service, err);
    snprintf(target, sizeof target, what == DEPLOY_DRAIN ? "/drain?service=%s&for=%u" : "/resume?service=%s", service, DRAIN_S);
    int r = call(h, "POST", target, &body, err);
    return r < 0 ? r : wait_until(h, service, what == DEPLOY_RESUME, what == DEPLOY_DRAIN ? DRAIN_MS : RESUME_MS, err);
}

/* ---- over there ------------------------------------------------------------------------------------------------------- */

static int read_line(struct buf *out)
{
    for (;;) {
        char c;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -EPIPE;
        if (c == '\n')
            return buf_status(out);
        buf_add_char(out, c);
    }
}

/* -ENOENT when nobody is there any more: what was begun goes on without. */
int deploy_router_relay(void *ctx, enum deploy_word what, const char *service, struct err *err)
{
    const struct event_sink *sink = ctx;
    base_autobuf struct buf line = BUF_INIT((size_t)2 * ERR_TEXT_MAX);
    uint64_t code = 0;
    if (printf("router %s %s\n", deploy_word_text(what), service) < 0 || fflush(stdout) != 0 || read_line(&line) < 0) {
        event_say(sink, EVENT_WARN, service, "the router is not told: whoever would is gone");
        return err_set(err, -ENOENT, "whoever would tell the router is gone");
    }
    struct str text = buf_str(&line), first = str_split(&text, ' ');
    if (str_to_u64(first, &code) < 0 || code > 4095)
        return err_set(err, -EBADMSG, "what came back about the router is not understood");
    return code ? err_set(err, -(int)code, STR_FMT, STR_ARG(text)) : 0;
}

/* ---- for a deploy from another machine ------------------------------------------------------------------------------------ */

static int run_router(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, 2, &a, &code))
        return code;
    struct fleet *f = cmd_fleet(c, &a, &code);
    struct os_dirs dirs;
    struct err err = {0};
    if (!f)
        return code;
    if (os_dirs_find(&dirs, &err) < 0) {
        fleet_free(f);
        return cmd_fail(CMD_FAILED, &err);
    }
    const struct deploy_router_here here = {.dirs = &dirs, .fleet = f};
    int r = strcmp(a.words[0], "state") == 0 ? state(&here, &err) : err_set(&err, -EINVAL, "'%.20s' is not understood", a.words[0]);
    for (unsigned w = DEPLOY_DRAIN; a.n_words == 2 && w <= DEPLOY_ASK; w++)
        if (strcmp(a.words[0], deploy_word_text((enum deploy_word)w)) == 0)
            r = deploy_router_here((void *)(uintptr_t)&here, (enum deploy_word)w, a.words[1], &err);
    os_dirs_release(&dirs);
    fleet_free(f);
    base_autobuf struct buf out = BUF_INIT((size_t)2 * ERR_TEXT_MAX);
    buf_addf(&out, "%d %s\n", r < 0 ? -r : 0, r < 0 ? err.text : "done");
    return buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

const struct cmd cmd_router = {
    .name = "_router",
    .synopsis = "drain|resume|ask SERVICE | state -f FILE",
    .summary = "tell the router of a fleet that is up here",
    .description = "What a deploy on another machine tells the router. Prints a number, 0 for done, and why.",
    .options = {CMD_OPTION_FILE},
    .hidden = true,
    .run = run_router,
};
