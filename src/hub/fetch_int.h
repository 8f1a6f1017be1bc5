/* SPDX-License-Identifier: MIT
 *
 * Shared by the files that make a fetch: fetch.c gives out work, fetch_lane.c judges what comes, fetch_copy.c asks a second time, fetch_repair.c asks for what a manifest misses, fetch_main.c is the caller's side.
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
/* Writes data into the file; err names it. */
int fetch_write(struct hub_way *w, const void *data, size_t n, uint64_t at, struct err *err) BASE_MUST_USE;
/* n bytes came that are compared or proven and are no progress of the file. */
void fetch_copied(struct hub_way *w, uint64_t n);

/* fetch_copy.c: second opinions. */
#define COPY_BLOCK_BYTES ((size_t)65536) /* that is compared and replaced as one */
int copy_begin(struct hub_way *w, struct err *err) BASE_MUST_USE; /* the digest was wrong: a round begins */
bool copy_wanted(struct hub_way *w);                              /* something is to be asked for in this round */
bool copy_lease(struct hub_way *w, struct hub_lane *l);           /* false: nothing that no other lane has */
size_t copy_body(struct hub_lane *l, const char *data, size_t n); /* as lane_on_body */
void copy_end(struct hub_way *w);                                 /* of a round */
void copy_release(struct hub_way *w);

/* fetch_repair.c: the same of a repair. */
void repair_want(struct hub_way *w, size_t segment);
bool repair_wanted(const struct hub_way *w);
bool repair_lease(struct hub_way *w, struct hub_lane *l);
size_t repair_body(struct hub_lane *l, const char *data, size_t n);
