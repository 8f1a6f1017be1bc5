/* SPDX-License-Identifier: MIT
 *
 * berth up: brings the fleet up on this machine and serves it.
 */
#include "cmd_int.h"

#include <limits.h>
#include <up/up.h>

static int run_up(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    char program[PATH_MAX];
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    const char *file = cmd_value(c, &a, "file");
    struct up_options o = {
        .fleet_path = file ? file : "fleet.yaml",
        .background = cmd_given(c, &a, "detach"),
        .offline = cmd_given(c, &a, "offline"),
        .program = cmd_own_program(program),
    };
    return up_main(&o);
}

const struct cmd cmd_up = {
    .name = "up",
    .synopsis = "[-d] [--offline] [-f FILE]",
    .summary = "bring the fleet up on this machine: engines and router",
    .description =
        "Starts every service of the fleet that belongs to this machine as a child process, proves each one ready (it answers, it serves the declared model, it took the declared shape, it makes a token), and then serves the router's address. A runtime that is not installed yet is installed first.\n\n"
        "An engine that dies later is started again after a rising delay, and the router sends to the others meanwhile. Ctrl-C or SIGTERM lets requests under way finish (at most 30 s), stops everything and ends with 0; a second one hurries. Nothing is left running, whatever happens.\n\n"
        "Exit 1 when something cannot be started: a port is taken, a file is missing, an engine ends while it loads. Its error names the service and shows the engine's last lines, and what had been started is stopped. Exit 2 when the fleet file cannot be used; nothing is started.",
    .examples = "berth up\nberth up -d -f examples/demo.yaml    # in the background",
    .options = {CMD_OPTION_FILE,
                {'d', "detach", NULL, "go into the background once everything is ready"},
                {0, "offline", NULL, "fetch nothing: a runtime that is not installed is an error"}},
    .run = run_up,
};
