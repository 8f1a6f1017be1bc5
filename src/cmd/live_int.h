/* SPDX-License-Identifier: MIT
 *
 * berth check --live: the battery of probe for what runs on this machine.
 */
#pragma once

#include <check/check.h>

/* One result for each service, appended to list in arena a: contract "live". -ENOMEM and others are ours. */
int check_live(const struct fleet *f, struct arena *a, struct check_result **list, size_t *n, struct err *err) BASE_MUST_USE;
