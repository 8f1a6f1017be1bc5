/* SPDX-License-Identifier: MIT
 *
 * berth check --live: the battery of probe for what runs on this machine, and once through the router that is up here for each endpoint.
 */
#pragma once

#include <check/check.h>
#include <os/os.h>

/* One result for each service, then one for each endpoint, appended to list in arena a: contract "live". -ENOMEM and others are ours. */
int check_live(const struct os_dirs *dirs, const struct fleet *f, struct arena *a, struct check_result **list, size_t *n, struct err *err) BASE_MUST_USE;
