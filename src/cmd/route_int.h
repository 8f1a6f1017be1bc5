/* SPDX-License-Identifier: MIT
 *
 * cmd, private: the parts of berth route.
 */
#pragma once

#include "cmd_int.h"

/* berth route explain ID; for cmd_on_fleet. */
int route_explain(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs);
