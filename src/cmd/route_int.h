/* SPDX-License-Identifier: MIT
 *
 * cmd, private: the parts of berth route.
 */
#pragma once

#include "cmd_int.h"

#include <conf/conf.h>

/* What is known of a request, for people. -ENOMEM. */
int route_explain_text(json_val v, bool color, struct buf *out) BASE_MUST_USE;
/* berth route explain ID; for cmd_on_fleet. */
int route_explain(const struct cmd *c, const struct cmd_args *a, const char *fleet, const struct os_dirs *dirs);
