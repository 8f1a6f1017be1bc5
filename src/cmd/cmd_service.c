/* SPDX-License-Identifier: MIT
 *
 * A service named on the command line.
 */
#include "cmd_int.h"

#include <stdlib.h>

int cmd_service(const struct fleet *f, const char *name)
{
    if (fleet_service_find(f, name))
        return CMD_OK;
    const char **names = calloc(f->n_services + 1, sizeof(*names));
    if (!names)
        return cmd_nomem();
    for (size_t i = 0; i < f->n_services; i++)
        names[i] = f->services[i].name;
    const char *near = str_nearest(str_of(name), names, f->n_services);
    base_autobuf struct buf shown = BUF_INIT(4096);
    buf_add_printable(&shown, str_of(name), 100);
    const char *text = buf_status(&shown) == 0 && shown.ptr ? shown.ptr : "";
    int code = near ? cmd_failf(CMD_USAGE, "fleet '%s' has no service '%s'; did you mean '%s'?", f->name, text, near)
                    : cmd_failf(CMD_USAGE, "fleet '%s' has no service '%s'; 'berth status' lists them", f->name, text);
    free(names);
    return code;
}
