/* SPDX-License-Identifier: MIT
 *
 * What plan, deploy, rollback and history share. deploy_here.c acts on this machine, cmd_deploy.c goes over the hosts, deploy_show.c shows what came of it.
 */
#pragma once

#include <conf/conf.h>
#include <deploy/deploy.h>
#include <engine/engine.h>
#include <stdio.h>
#include <string.h>

#include "cmd_int.h"

#define DEPLOY_TEXT_MAX (16u << 20) /* JSON of one host */

struct deploy_request {
    const char *fleet_path, *host, *who;
    const char *since; /* with only_plan: compared with a kept version ("3") or another fleet file, by its path, instead of what is installed; NULL */
    bool only_plan, prove_collectives;
    const struct deploy_router *router;
};

/* deploy_router.c: the tell of a router that is up here (ctx: struct deploy_router_here), and of one that only the machine which sent for us can reach (ctx: a sink for what is to be said). */
struct deploy_router_here {
    const struct os_dirs *dirs;
    const struct fleet *fleet;
    const struct event_sink *sink; /* NULL */
};
int deploy_router_here(void *ctx, enum deploy_word what, const char *service, struct err *err);
int deploy_router_relay(void *ctx, enum deploy_word what, const char *service, struct err *err);

/* The JSON of one host, whatever came of it: {"host","items":[{"action","service","unit","path","reason","diff"}],"todo","error"} and, but for a plan, "started","proven","retired","kept","version","rolled_back". -ENOMEM. */
int deploy_here(const struct deploy_request *q, const struct os_dirs *dirs, const struct event_sink *sink, struct buf *ret) BASE_MUST_USE;
/* Fetches what fleet.lock pins of the models that units of this host need and that are not here. An exit code; what failed was said. */
int deploy_fetch(const struct fleet *f);
/* Reads what hub_export wrote on another machine from standard input, up to an empty line, into this process's environment. */
void deploy_take_secrets(void);

/* The fleet file of the version before the one in force, of the fleet that q's file names. */
int deploy_rollback_path(const struct deploy_request *q, const struct os_dirs *dirs, struct buf *ret, struct err *err) BASE_MUST_USE;

/* The fleet file of fleet f with its lock and templates as they were at a git revision, in a scratch folder which deploy_since_clear removes. *ret: as loaded from there. -EINVAL: no revision, no repository, or the file was unusable then. */
struct deploy_since {
    char *folder;
    struct fleet *fleet;
};
int deploy_since_get(const struct fleet *f, const char *revision, struct deploy_since *ret, struct err *err) BASE_MUST_USE;
void deploy_since_clear(struct deploy_since *s);

/* Table and differences of plans; hosts: n values as above. */
int deploy_show_plan(const json_val *hosts, size_t n, bool diff);
/* One line for what a deploy of one host came to. */
int deploy_show_outcome(json_val host);
