/* SPDX-License-Identifier: MIT
 *
 * probe: proof that a service is what it was declared to be, over HTTP, on the owner's loop. It starts nothing and stops nothing. Readiness is asked after each start and costs one token; the battery asks for all that the
 * service declares, costs some hundred, and comes after a deploy or when a person wants to know.
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
    char key[FLEET_KEY_MAX + 1]; /* that its engine asks for; "" none */
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

/* ---- the battery ------------------------------------------------------------------------------------------------ */

/* What is asked, in this order; what a service does not declare, or its kind cannot tell, is left out. */
enum probe_check {
    PROBE_CHAT,      /* it answers under its name */
    PROBE_SIZE,      /* how many tokens the next text has: asked, never judged */
    PROBE_TEMPLATE,  /* a longer message takes as many tokens more as it has */
    PROBE_REUSE,     /* the same once more is not computed again */
    PROBE_DRAFT,     /* the drafter drafts */
    PROBE_REASONING, /* what it thinks is in a field of its own */
    PROBE_EFFORT,    /* its template takes a word that clients send as reasoning_effort: one question for each */
    PROBE_TOOL,      /* it calls a tool that must be called */
    PROBE_IMAGE,     /* it names the colour of a picture */
    PROBE_SOUND,     /* it takes a sound and has something to say */
    PROBE_CHECKS,
};
/* "chat", "template": for people. */
const char *probe_check_text(enum probe_check c);
/* Whether this service is asked: index counts the questions of one check from 0. A service that makes no text is asked nothing. */
bool probe_check_applies(const struct fleet_service *s, enum probe_check c, size_t index);
/* The question as a POST: its path, and its body appended to out. model: the name that it is asked for. */
const char *probe_check_path(enum probe_check c);
int probe_check_body(const struct fleet_service *s, const char *model, enum probe_check c, size_t index, struct buf *out) BASE_MUST_USE;
/* What earlier answers told the later ones; begin with all zero. */
struct probe_seen {
    uint64_t chat_tokens, text_tokens; /* of the first prompt; of the longer text alone. 0: not told */
};
/* Judges an answer from anybody. -EBADMSG, with what is wrong and what to do about it. */
int probe_check_judge(const struct fleet_service *s, enum probe_check c, size_t index, unsigned status, struct str body, struct probe_seen *seen, struct err *err) BASE_MUST_USE;

/* Where a battery is asked. */
struct probe_door {
    struct net_addr addr;
    struct net_tls *tls;       /* of net_tls_trust; NULL: plain */
    const char *const *models; /* the router's: one chat for each of these n_models names, and nothing else; NULL: the engine itself, all checks */
    size_t n_models;
    const char *key;           /* that the router, or the engine, asks for; NULL or "" none */
};
/* Asks all of it, one after the other, until one fails. cb exactly once unless cancelled: 0, or -EBADMSG, -EIO (no answer) with the check's name and the failure in err. service and the door's texts outlive it. */
struct probe_battery;
struct probe_battery *probe_battery_start(struct net_loop *l, struct httpio_client *c, const struct fleet_service *s, const struct probe_door *door, void (*cb)(void *ctx, int status, const struct err *err), void *ctx) BASE_MUST_USE;
struct probe_battery *probe_battery_cancel(struct probe_battery *b); /* takes NULL; returns NULL */
