/* SPDX-License-Identifier: MIT
 *
 * Services and models named on the command line.
 */
#include "cmd_int.h"

#include <stdlib.h>

/* Says that the fleet has none of that name, and which one may be meant. names: all of them, freed here; NULL is no memory. */
static int unknown(const struct fleet *f, const char *kind, const char *name, const char **names, size_t n, const char *else_hint)
{
    if (!names)
        return cmd_nomem();
    const char *near = str_nearest(str_of(name), names, n);
    base_autobuf struct buf shown = BUF_INIT(4096);
    buf_add_printable(&shown, str_of(name), 100);
    const char *text = buf_status(&shown) == 0 && shown.ptr ? shown.ptr : "";
    int code = near ? cmd_failf(CMD_USAGE, "fleet '%s' has no %s '%s'; did you mean '%s'?", f->name, kind, text, near)
                    : cmd_failf(CMD_USAGE, "fleet '%s' has no %s '%s'; %s", f->name, kind, text, else_hint);
    free(names);
    return code;
}

int cmd_service(const struct fleet *f, const char *name)
{
    if (fleet_service_find(f, name))
        return CMD_OK;
    const char **names = calloc(f->n_services + 1, sizeof(*names));
    for (size_t i = 0; names && i < f->n_services; i++)
        names[i] = f->services[i].name;
    return unknown(f, "service", name, names, f->n_services, "'berth status' lists them");
}

int cmd_model(const struct fleet *f, const char *name)
{
    for (size_t i = 0; i < f->n_models; i++)
        if (strcmp(f->models[i].name, name) == 0)
            return CMD_OK;
    const char **names = calloc(f->n_models + 1, sizeof(*names));
    for (size_t i = 0; names && i < f->n_models; i++)
        names[i] = f->models[i].name;
    return unknown(f, "model", name, names, f->n_models, "'models' of the fleet file lists them");
}
