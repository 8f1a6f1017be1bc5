/* SPDX-License-Identifier: MIT
 *
 * Parts of `berth doctor`: a report as JSON, whether it was made here or by a berth on another machine, and that JSON for people (doctor_show.c).
 */
#pragma once

#include <conf/conf.h>
#include <doctor/doctor.h>

#include "cmd_int.h"

#define DOCTOR_TEXT_MAX ((size_t)4 << 20) /* JSON of one machine */

/* host: as the fleet names it; NULL without one. */
int doctor_json(const struct doctor_report *r, const char *host, struct buf *out) BASE_MUST_USE;
/* verbose: what is in order too, and each bridge of each way. */
void doctor_show(json_val report, bool verbose, bool color, struct buf *out);
/* The lines that differ: "-old", "+new". */
void doctor_show_diff(struct str before, struct str after, struct buf *out);
