/* SPDX-License-Identifier: MIT
 *
 * Parts of `berth render`: units (cmd_render.c) and files of clients (render_clients.c).
 */
#pragma once

#include "cmd_int.h"

/* Runs `berth render clients`; the options are proven. Returns the exit code. */
int render_clients(const struct cmd *c, const struct cmd_args *a);
