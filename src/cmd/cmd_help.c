/* SPDX-License-Identifier: MIT
 *
 * berth help: the list of commands, one command's help, or the man pages' source.
 */
#include "cmd_int.h"

static int run_help(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, 1, &a, &code))
        return code;
    const struct cmd *about = NULL;
    if (a.n_words && !str_eq_c(str_of(a.words[0]), "berth")) {
        about = cmd_find(a.words[0]);
        if (!about || about->hidden)
            return cmd_failf(CMD_USAGE, "there is no command '%.60s'; 'berth help' lists them", a.words[0]);
    }
    base_autobuf struct buf text = BUF_INIT(64u << 10);
    int r;
    if (cmd_given(c, &a, "list")) {
        for (size_t i = 0; i < cmd_table_len; i++)
            if (!cmd_table[i]->hidden)
                buf_addf(&text, "%s\n", cmd_table[i]->name);
        r = buf_status(&text);
    } else if (cmd_given(c, &a, "man")) {
        r = cmd_man_page(about, &text);
    } else {
        r = cmd_help_text(about, &text);
    }
    return r ? cmd_nomem() : cmd_print(buf_str(&text));
}

const struct cmd cmd_help = {
    .name = "help",
    .synopsis = "[COMMAND]",
    .summary = "list the commands, or explain one",
    .description = "Prints the list of commands, or the help text of one.\n\n"
                   "With --man it prints the man page's source instead, which 'man -l -' shows.",
    .examples = "berth help up               # what 'berth up' does\n"
                "berth help --man up | man -l -",
    .options = {{0, "man", NULL, "print the man page's source"}, {0, "list", NULL, "print the names of all commands, one a line"}},
    .run = run_help,
};
