/* SPDX-License-Identifier: MIT
 *
 * berth restart: services one after the other, each ready again before the next one stops.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <up/up.h>

/* What the supervisor answered when it did not do it. */
static int refused(const struct buf *body, const char *service)
{
    struct json *j = NULL;
    struct str text = {0};
    if (json_parse(buf_str(body), &j, NULL) == 0 && json_str(json_get(json_root(j), "error"), &text))
        (void)cmd_failf(CMD_FAILED, STR_FMT, STR_ARG(text));
    else
        (void)cmd_failf(CMD_FAILED, "service '%s' was not restarted", service);
    json_free(j);
    return CMD_FAILED;
}

static int restart_one(const struct os_dirs *dirs, const struct fleet *f, const char *service)
{
    base_autobuf struct buf body = BUF_INIT(1 << 20), target = BUF_INIT(FLEET_NAME_MAX + 64);
    unsigned status = 0;
    char took[UNITS_TEXT];
    struct err err;
    uint64_t began = clk_system.mono_us(NULL);
    buf_addf(&target, "/restart?service=%s", service);
    if (buf_status(&target) < 0)
        return cmd_nomem();
    if (up_call(dirs, f->name, "POST", target.ptr, &status, &body, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (status != 200)
        return refused(&body, service);
    if (str_find(buf_str(&body), STR("\"restarted\":0")) >= 0)
        (void)fprintf(stderr, "%s: idle; the next request for it starts it\n", service);
    else
        (void)fprintf(stderr, "%s: ready again after %s\n", service, units_show_ms((clk_system.mono_us(NULL) - began) / 1000, took));
    return CMD_OK;
}

/* Without names, all that run here. */
static int restart_each(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs)
{
    (void)c;
    int code = CMD_OK;
    for (size_t i = 0; code == CMD_OK && i < a->n_words; i++)
        code = cmd_service(f, a->words[i]);
    for (size_t i = 0; code == CMD_OK && i < a->n_words; i++)
        code = restart_one(dirs, f, a->words[i]);
    for (size_t i = 0; code == CMD_OK && a->n_words == 0 && i < f->n_services; i++)
        if (fleet_service_local(&f->services[i]))
            code = restart_one(dirs, f, f->services[i].name);
    return code;
}

static int run_restart(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code) ? cmd_on_fleet(c, &a, restart_each) : code;
}

const struct cmd cmd_restart = {
    .name = "restart",
    .synopsis = "[-f FILE] [SERVICE...]",
    .summary = "restart services one after the other",
    .description = "Each service is taken out of the router, finishes its requests (at most 30 s), is stopped, started and proven ready again before the next one is touched, so that an endpoint with several services answers all the time. Without names every service of the fleet on this machine is restarted.\n\n"
                   "Exit 1 at the first one that does not come back; those after it are left as they are.",
    .examples = "berth restart\nberth restart alpha",
    .options = {CMD_OPTION_FILE},
    .run = run_restart,
};
