/* SPDX-License-Identifier: MIT
 *
 * berth upgrade: has another build of berth take over a running fleet; and the program that takes over, which the supervisor runs in its own place.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <stdio.h>
#include <time.h>
#include <up/up.h>

#define ANSWER_MAX (8u << 20)
#define STEP_MS 100
#define STEPS 600 /* a minute: runtimes are proven again */

/* A member of the supervisor's answer: a number, or a text into `text` (may be NULL). */
static bool member(const struct buf *body, const char *key, uint64_t *ret, struct buf *text)
{
    struct json *j = NULL;
    struct str s;
    bool ok = json_parse(buf_str(body), &j, NULL) == 0;
    if (ok && text && (ok = json_str(json_get(json_root(j), key), &s)))
        buf_add_str(text, s);
    else if (ok && !text)
        ok = json_u64(json_get(json_root(j), key), ret);
    json_free(j);
    return ok;
}

static int refused(const struct buf *why)
{
    return cmd_failf(CMD_FAILED, "%s; nothing has changed", why->len ? why->ptr : "the supervisor refused");
}

/* Until the one that took over answers, or the one before says why it goes on: what it was asked has become wrong meanwhile. */
static int wait_for(const struct os_dirs *dirs, const char *name, uint64_t before)
{
    for (int i = 0; i < STEPS; i++) {
        base_autobuf struct buf body = BUF_INIT(ANSWER_MAX), version = BUF_INIT(256), why = BUF_INIT((size_t)2 * ERR_TEXT_MAX);
        struct timespec step = {.tv_nsec = STEP_MS * 1000000L};
        unsigned status = 0;
        uint64_t now = before;
        (void)nanosleep(&step, NULL);
        /* a connection may be cut by the exec: the next question is heard */
        if (up_call(dirs, name, "GET", "/status", &status, &body, NULL) < 0 || status != 200 || !member(&body, "upgrades", &now, NULL))
            continue;
        if (now <= before && member(&body, "upgrade_error", NULL, &why))
            return refused(&why);
        if (now <= before)
            continue;
        bool known = member(&body, "version", NULL, &version);
        (void)fprintf(stderr, "fleet '%s' is run by berth %s\n", name, known ? version.ptr : "?");
        return CMD_OK;
    }
    return cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' does not say that another one has taken over; see 'berth logs berth'", name);
}

static int upgrade(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    base_autobuf struct buf body = BUF_INIT(ANSWER_MAX), why = BUF_INIT(ERR_TEXT_MAX);
    unsigned status = 0;
    uint64_t before = 0;
    struct err err;
    (void)c;
    (void)a;
    if (up_call(dirs, name, "POST", "/upgrade", &status, &body, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (status == 200 && member(&body, "upgrades", &before, NULL))
        return wait_for(dirs, name, before);
    (void)member(&body, "error", NULL, &why);
    return refused(&why);
}

static int run_upgrade(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, 0, &a, &code) ? cmd_on_name(c, &a, upgrade) : code;
}

const struct cmd cmd_upgrade = {
    .name = "upgrade",
    .synopsis = "[-f FILE]",
    .summary = "let another build of berth take over a running fleet",
    .description = "Install the other build over the program that runs the fleet, then say this. The supervisor runs it in its own place, as the same process: engines go on with the same process numbers, and the router is replaced by one that accepts on the same sockets, while the one before finishes its streams (at most an hour).\n\n"
                   "The other program is tried first, and nothing changes (exit 1) when it cannot go on from here, when the fleet file does not declare what runs, or while a service is being started or stopped.",
    .examples = "make install && berth upgrade",
    .options = {CMD_OPTION_FILE},
    .run = run_upgrade,
};

/* ---- the one that takes over ------------------------------------------------------------------------------ */

static int run_resume(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    uint64_t fd;
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    const char *text = cmd_value(c, &a, "state-fd");
    if (!text || str_to_u64(str_of(text), &fd) < 0 || fd > 1 << 20)
        return cmd_usage(c, "a descriptor with the state is needed");
    return up_resume_main((int)fd, cmd_given(c, &a, "check"));
}

const struct cmd cmd_resume = {
    .name = "_up",
    .synopsis = "--state-fd FD [--check]",
    .summary = "goes on where another build's supervisor stops",
    .description = "Started by 'berth upgrade', in the supervisor's own process. With --check it only tells whether it could.",
    .options = {{0, "state-fd", "FD", "memfd with the state"}, {0, "check", NULL, "change nothing"}},
    .hidden = true,
    .run = run_resume,
};
