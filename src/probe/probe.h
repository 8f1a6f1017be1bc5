/* SPDX-License-Identifier: MIT
 *
 * probe: proof that a service is what it was declared to be, over HTTP, on the owner's loop. It starts nothing and stops nothing.
 */
#pragma once

#include <base/base.h>
#include <engine/engine.h>
#include <fleet/fleet.h>
#include <httpio/httpio.h>

/* How far a readiness proof has come. */
enum probe_step { PROBE_HEALTH, PROBE_IDENTITY, PROBE_PROPS, PROBE_TOKEN, PROBE_DONE };
const char *probe_step_text(enum probe_step s);

struct probe_target {
    const struct fleet_service *service;
    const struct engine_paths *paths;
    struct net_addr addr;
};
/* Readiness: health until it is 200 (asked every 200 ms at first, at most once a second later; refused and 503 mean "still loading"), then identity, then what the engine took, then one generated token. Steps that the kind
 * cannot answer are left out. cb comes exactly once unless cancelled: status 0; -ETIMEDOUT when limit_ms ended in health; -EBADMSG and others when a later step failed, with the step and what was wrong in err. */
struct probe_ready;
struct probe_ready *probe_ready_start(struct net_loop *l, struct httpio_client *c, const struct probe_target *t, uint64_t limit_ms,
                                      void (*cb)(void *ctx, int status, enum probe_step at, const struct err *err), void *ctx) BASE_MUST_USE;
struct probe_ready *probe_ready_cancel(struct probe_ready *p);

/* Waits until the engine works on nothing: polls once a second. cb exactly once unless cancelled: 0, or -ETIMEDOUT, or -ENOTSUP when the kind cannot tell (then at once). */
struct probe_idle;
struct probe_idle *probe_idle_start(struct net_loop *l, struct httpio_client *c, const struct probe_target *t, uint64_t limit_ms,
                                    void (*cb)(void *ctx, int status), void *ctx) BASE_MUST_USE;
struct probe_idle *probe_idle_cancel(struct probe_idle *p);
