/* SPDX-License-Identifier: MIT
 *
 * berth down: stops a running fleet and waits until it is gone.
 */
#include "cmd_int.h"

#include <errno.h>
#include <stdio.h>
#include <up/up.h>

#define WAIT_MS 120000 /* requests under way, then TERM, TERM and KILL of each engine: far below */

static int stop_fleet(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    (void)c;
    (void)a;
    base_autobuf struct buf body = BUF_INIT(64u << 10);
    unsigned status = 0;
    struct err err;
    int rc = up_call(dirs, name, "POST", "/down", &status, &body, &err);
    if (rc == -ENOENT) {
        (void)fprintf(stderr, "%s\n", err.text);
        return CMD_OK;
    }
    if (rc < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (status != 200)
        return cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' refused (%u): %s", name, status, body.ptr ? body.ptr : "");
    if (up_wait_gone(dirs, name, WAIT_MS, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    (void)fprintf(stderr, "fleet '%s' is down\n", name);
    return CMD_OK;
}

static int run_down(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, 0, &a, &code) ? cmd_on_name(c, &a, stop_fleet) : code;
}

const struct cmd cmd_down = {
    .name = "down",
    .synopsis = "[-f FILE]",
    .summary = "stop the fleet on this machine",
    .description = "Asks the running supervisor of the fleet to stop and waits until it and every engine are gone. The router takes no new request; those under way have 30 seconds to finish. A fleet that is not up is no error.",
    .examples = "berth down\nberth down -f examples/demo.yaml",
    .options = {CMD_OPTION_FILE},
    .run = run_down,
};
