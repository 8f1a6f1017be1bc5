/* SPDX-License-Identifier: MIT
 *
 * Shared by the files that make a fetch: fetch.c gives out work, fetch_lane.c judges what comes, fetch_copy.c asks a second time, fetch_main.c is the caller's side.
 */
#pragma once

#include "hub_int.h"

int64_t fetch_step(struct hub_job *job, bool stop, uint64_t now_us);
void way_drop_lanes(struct hub_way *w);
void way_restart(struct hub_way *w); /* the file changed on the server: all that came is worth nothing */
/* A lane with a lease begins its request. */
void lane_begin(struct hub_lane *l, struct hub_way *w);
void lane_idle(struct hub_lane *l); /* gives its lease back; its exchange does not run any more */
bool lane_on_head(struct hub_exchange *x);
size_t lane_on_body(struct hub_exchange *x, const char *data, size_t n);
void lane_on_end(struct hub_exchange *x, CURLcode code);
