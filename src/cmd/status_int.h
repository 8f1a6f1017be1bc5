/* SPDX-License-Identifier: MIT
 *
 * What the parts of `berth status` share: cmd_status.c shows, status_hosts.c asks the hosts of the fleet for their units.
 */
#pragma once

#include <conf/conf.h>
#include <deploy/deploy.h>

#include "cmd_int.h"

#define STATUS_TEXT_MAX (8u << 20)

/* What was found on the hosts that have units of the fleet. */
struct status_host {
    const struct fleet_host *host;
    struct json *text; /* as deploy_status; NULL: it could not be asked */
    struct err why;
    uint64_t took_ms;
};
struct status_hosts {
    struct status_host *list;
    size_t n, silent; /* silent: could not be asked */
};
/* Asks all of them at once. Hosts without a unit of the fleet are left out. -ENOMEM. */
int status_hosts_ask(const struct fleet *f, const struct os_dirs *dirs, struct status_hosts *ret, struct err *err) BASE_MUST_USE;
void status_hosts_release(struct status_hosts *h);
/* The supervisor's status with what the hosts say: each service gets "host" and "unit", those that are units what their host says of them, units that are not declared are added, and "hosts" tells of the hosts. */
int status_hosts_merge(const struct status_hosts *h, const struct fleet *f, json_val root, struct buf *ret) BASE_MUST_USE;
