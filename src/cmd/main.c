/* SPDX-License-Identifier: MIT
 *
 * The program: finds the subcommand in the table and runs it. Everything else is in cmd_<name>.c and in the modules below.
 */
#include "cmd_int.h"

#include <signal.h>
#include <stdio.h>

const struct cmd *const cmd_table[] = {
    &cmd_init,
    &cmd_up,
    &cmd_down,
    &cmd_reload,
    &cmd_restart,
    &cmd_service_drain,
    &cmd_service_resume,
    &cmd_upgrade,
    &cmd_status,
    &cmd_top,
    &cmd_logs,
    &cmd_check,
    &cmd_fit,
    &cmd_inspect,
    &cmd_lock,
    &cmd_pull,
    &cmd_verify,
    &cmd_purge,
    &cmd_runtime,
    &cmd_route,
    &cmd_drill,
    &cmd_key,
    &cmd_render,
    &cmd_plan,
    &cmd_deploy,
    &cmd_rollback,
    &cmd_history,
    &cmd_doctor,
    &cmd_help,
    &cmd_route_worker,
    &cmd_resume,
    &cmd_apply,
    &cmd_status_there,
    &cmd_drain,
    &cmd_router,
};
const size_t cmd_table_len = BASE_COUNT(cmd_table);

int main(int argc, char **argv)
{
    os_begin();
    /* a closed pipe is an error of the write that met it, in every part of the program */
    (void)signal(SIGPIPE, SIG_IGN);

    if (argc < 2) {
        base_autobuf struct buf text = BUF_INIT(64u << 10);
        if (cmd_help_text(NULL, &text) == 0)
            (void)fwrite(text.ptr, 1, text.len, stderr);
        return CMD_USAGE;
    }
    struct str first = str_of(argv[1]);
    if (str_eq_c(first, "--version") || str_eq_c(first, "-V"))
        return cmd_print(STR("berth " BERTH_VERSION "\n"));
    if (str_eq_c(first, "--help") || str_eq_c(first, "-h"))
        return cmd_help.run(&cmd_help, 1, argv + 1);

    const struct cmd *c = cmd_find(argv[1]);
    if (!c) {
        const char *names[BASE_COUNT(cmd_table)];
        size_t n = 0;
        for (size_t i = 0; i < cmd_table_len; i++)
            if (!cmd_table[i]->hidden)
                names[n++] = cmd_table[i]->name;
        const char *near = str_nearest(first, names, n);
        if (near)
            return cmd_failf(CMD_USAGE, "there is no command '%.60s'; did you mean 'berth %s'?", argv[1], near);
        return cmd_failf(CMD_USAGE, "there is no command '%.60s'; 'berth help' lists them", argv[1]);
    }
    return c->run(c, argc - 1, argv + 1);
}
