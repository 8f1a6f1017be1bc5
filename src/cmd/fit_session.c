/* SPDX-License-Identifier: MIT
 *
 * What commands about a plan open and close: folders, store, ledger, the fleet's own running engines, the plan itself.
 */
#include "fit_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <up/up.h>

#define STATUS_MAX (8u << 20)

/* The engines of the fleet that run: nobody's when it is not up. */
static int read_status(struct fit_session *s)
{
    base_autobuf struct buf body = BUF_INIT(STATUS_MAX);
    unsigned code = 0;
    struct err err;
    if (up_call(&s->dirs, s->fleet->name, "GET", "/status", &code, &body, &err) < 0 || code != 200)
        return 0;
    if (json_parse(buf_str(&body), &s->status, &err) < 0)
        return 0;
    json_val services = json_get(json_root(s->status), "services");
    size_t n = json_count(services);
    s->own = calloc(n ? n : 1, sizeof(*s->own));
    if (!s->own)
        return cmd_failf(CMD_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        uint64_t pid;
        if (json_u64(json_get(json_at(services, i), "pid"), &pid) && pid && pid <= INT32_MAX)
            s->own[s->n_own++] = (pid_t)pid;
    }
    return CMD_OK;
}

int fit_session_ledger(struct fit_session *s, bool make)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    struct err err;
    buf_addf(&path, "%s/ledger.db", s->dirs.state);
    if (buf_status(&path) < 0)
        return cmd_failf(CMD_FAILED, "out of memory");
    if (s->ledger || (!make && access(path.ptr, F_OK) < 0))
        return CMD_OK;
    if (s->unusable)
        return CMD_FAILED;
    if (make && store_make(s->store, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (ledger_open(path.ptr, &s->ledger, &err) == 0)
        return CMD_OK;
    s->unusable = true;
    if (make)
        return cmd_fail(CMD_FAILED, &err);
    /* a plan without what was measured is a plan all the same, and says so */
    return cmd_failf(CMD_OK, "nothing measured is used: %s", err.text);
}

int fit_session_open(struct fit_session *s, const struct fleet *f)
{
    struct err err;
    *s = (struct fit_session){.fleet = f};
    if (os_dirs_find(&s->dirs, &err) < 0 || store_look(&s->dirs, &s->store, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    int code = fit_session_ledger(s, false);
    if (code == CMD_OK)
        code = read_status(s);
    s->options = (struct check_plan_options){.hw_root = getenv("BERTH_HW_ROOT"), .ledger = s->ledger, .own = s->own, .n_own = s->n_own, .turns = true};
    return code;
}

void fit_session_close(struct fit_session *s)
{
    s->plan = check_plan_free(s->plan);
    s->ledger = ledger_free(s->ledger);
    s->store = store_free(s->store);
    s->status = json_free(s->status);
    free(s->own);
    s->own = NULL;
    os_dirs_release(&s->dirs);
}

int fit_session_plan(struct fit_session *s)
{
    struct err err;
    s->plan = check_plan_free(s->plan);
    return check_plan_new(s->fleet, s->store, &s->options, &s->plan, &err) < 0 ? cmd_fail(CMD_FAILED, &err) : CMD_OK;
}

struct check_need *fit_session_need(const struct fit_session *s, const char *service)
{
    for (size_t i = 0; i < s->plan->n_needs; i++)
        if (strcmp(s->plan->needs[i].service->name, service) == 0)
            return &s->plan->needs[i];
    return NULL;
}
