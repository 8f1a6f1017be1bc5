/* SPDX-License-Identifier: MIT
 *
 * berth drain and berth resume: a service that runs is taken out of the router, and given back to it. Nothing is stopped: that is for whoever wants to work on it, or on its machine, without a client noticing.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <stdio.h>
#include <time.h>
#include <up/up.h>

#define TEXT_MAX (4u << 20)
#define REST_MS 30000u
#define LOOK_MS 100

/* CMD_OK when the supervisor did it. */
static int tell(const struct os_dirs *dirs, const char *fleet, const char *target, const char *service)
{
    base_autobuf struct buf body = BUF_INIT(4096);
    unsigned status = 0;
    struct err err;
    if (up_call(dirs, fleet, "POST", target, &status, &body, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (status == 404)
        return cmd_failf(CMD_FAILED, "fleet '%s' has no service '%s'; 'berth status' lists them", fleet, service);
    return status == 200 ? CMD_OK : cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' refused (%u): %s", fleet, status, body.ptr ? body.ptr : "");
}

/* What the router has of it under way; CMD_OK when that is known. */
static int count_busy(const struct os_dirs *dirs, const char *fleet, const char *service, uint64_t *ret)
{
    base_autobuf struct buf body = BUF_INIT(TEXT_MAX);
    unsigned status = 0;
    struct json *j = NULL;
    struct err err;
    if (up_call(dirs, fleet, "GET", "/requests", &status, &body, &err) < 0 || (status == 200 && json_parse(buf_str(&body), &j, &err) < 0))
        return cmd_fail(CMD_FAILED, &err);
    if (status != 200)
        return cmd_failf(CMD_FAILED, "fleet '%s' does not say what is under way (%u)", fleet, status);
    json_val all = json_get(json_root(j), "replicas");
    *ret = 0;
    for (size_t i = 0; i < json_count(all); i++)
        if (str_eq_c(json_get_str(json_at(all, i), "name", ""), service))
            *ret = json_get_u64(json_at(all, i), "busy");
    json_free(j);
    return CMD_OK;
}

static int wait_until_it_rests(const struct os_dirs *dirs, const char *fleet, const char *service, uint64_t for_ms)
{
    static const struct timespec step = {.tv_nsec = LOOK_MS * 1000000L};
    uint64_t began = clk_system.mono_us(NULL), busy = 0;
    for (;;) {
        int code = count_busy(dirs, fleet, service, &busy);
        if (code != CMD_OK)
            return code;
        if (busy == 0)
            break;
        if (clk_system.mono_us(NULL) - began > REST_MS * 1000ull)
            return cmd_failf(CMD_FAILED, "service '%s' gets nothing new, and still works on %llu request%s", service, (unsigned long long)busy, busy == 1 ? "" : "s");
        (void)nanosleep(&step, NULL);
    }
    char after[UNITS_TEXT];
    (void)fprintf(stderr, "%s: gets nothing new and works on nothing; 'berth resume %s' gives it back%s%s\n", service, service, for_ms ? ", or time, after " : "", for_ms ? units_show_ms(for_ms, after) : "");
    return CMD_OK;
}

/* Whether this supervisor starts it, and keeps its log: a time has an effect only on what others start. */
static bool is_child(const struct os_dirs *dirs, const char *fleet, const char *service)
{
    base_autobuf struct buf body = BUF_INIT(TEXT_MAX);
    unsigned status = 0;
    struct json *j = NULL;
    struct str log;
    bool child = false;
    if (up_call(dirs, fleet, "GET", "/status", &status, &body, NULL) < 0 || status != 200 || json_parse(buf_str(&body), &j, NULL) < 0)
        return false; /* whoever drains says why */
    json_val all = json_get(json_root(j), "services");
    for (size_t i = 0; i < json_count(all); i++)
        if (str_eq_c(json_get_str(json_at(all, i), "name", ""), service))
            child = json_str(json_get(json_at(all, i), "log"), &log);
    json_free(j);
    return child;
}

static int drain(const struct cmd *c, const struct cmd_args *a, const char *fleet, const struct os_dirs *dirs)
{
    base_autobuf struct buf target = BUF_INIT(512);
    const char *text = cmd_value(c, a, "for"), *service = a->words[0];
    uint64_t ms = 0;
    if (!fleet_name_valid(str_of(service)))
        return cmd_usage(c, "'%.60s' is no service's name", service);
    if (text && (units_ms(str_of(text), &ms) < 0 || ms < 1000))
        return cmd_usage(c, "--for: '%.60s' is no time of a second or more, such as 90s, 10m or 2h", text);
    if (text && is_child(dirs, fleet, service))
        return cmd_failf(CMD_FAILED, "service '%s' runs here and would be drained until 'berth resume': leave --for out", service);
    buf_addf(&target, "/drain?service=%s", service);
    if (text)
        buf_addf(&target, "&for=%llu", (unsigned long long)(ms / 1000));
    if (buf_status(&target) < 0)
        return cmd_nomem();
    int code = tell(dirs, fleet, target.ptr, service);
    return code == CMD_OK ? wait_until_it_rests(dirs, fleet, service, ms) : code;
}

static int resume(const struct cmd *c, const struct cmd_args *a, const char *fleet, const struct os_dirs *dirs)
{
    base_autobuf struct buf target = BUF_INIT(512);
    const char *service = a->words[0];
    if (!fleet_name_valid(str_of(service)))
        return cmd_usage(c, "'%.60s' is no service's name", service);
    buf_addf(&target, "/resume?service=%s", service);
    if (buf_status(&target) < 0)
        return cmd_nomem();
    int code = tell(dirs, fleet, target.ptr, service);
    if (code == CMD_OK)
        (void)fprintf(stderr, "%s: gets requests again\n", service);
    return code;
}

static int run_drain(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 1, 1, &a, &code) ? cmd_on_name(c, &a, drain) : code;
}

static int run_resume(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 1, 1, &a, &code) ? cmd_on_name(c, &a, resume) : code;
}

const struct cmd cmd_service_drain = {
    .name = "drain",
    .synopsis = "[--for TIME] [-f FILE] SERVICE",
    .summary = "take a service out of the router",
    .description = "The router of the fleet that is up gives the service nothing new; what it works on it finishes, which is waited for, at most 30 s. It goes on running and 'berth status' calls it drained. Requests go to the other services of its endpoints; where there is none clients are told so (503).\n\n"
                   "A child of 'berth up' is drained until 'berth resume'. One that others start (another host, a unit) comes back by itself after 15 minutes, or after --for.\n\n"
                   "Exit 1 when it still works on something; it gets nothing new all the same.",
    .examples = "berth drain alpha\nberth drain --for 1h big    # one that another host runs",
    .options = {CMD_OPTION_FILE, {0, "for", "TIME", "come back by itself after so long"}},
    .run = run_drain,
};

const struct cmd cmd_service_resume = {
    .name = "resume",
    .synopsis = "[-f FILE] SERVICE",
    .summary = "give a drained service back to the router",
    .description = "Takes back what 'berth drain' did: the service gets requests again.",
    .examples = "berth resume alpha",
    .options = {CMD_OPTION_FILE},
    .run = run_resume,
};
