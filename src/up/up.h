/* SPDX-License-Identifier: MIT
 *
 * up: the supervisor of a fleet on this machine, and the way to talk to it. It owns the fleet's lock, its engines (through run), the router worker with its listening sockets, and the control socket. One thread.
 *
 *   $RUN/<fleet>/lock           flock held while it runs; in it the pid and $RUN
 *   $STATE/fleets/<fleet>/lock  the same, so that two with one state and two run folders do not meet
 *   $RUN/<fleet>/control.sock   HTTP/JSON, mode 0600, peers of our own uid and root only
 *   $RUN/<fleet>/pids           what to kill when a killed berth is started again
 *   $STATE/fleets/<fleet>/logs/SERVICE.log, router.log, berth.log (in the background)
 *
 * Control: POST /upgrade has the program at its own path take over, engines and streams go on. POST /reload reads the fleet file again: 200 with what was done, 422 with what is wrong in it. GET /status; POST /down; POST /restart?service=NAME (all without it); POST /drain?service=NAME (of a service that others start with &for=SECONDS, 900 without) and /resume?service=NAME; GET /key: what berth itself asks the router with; each answers JSON. GET /metrics: the router's, as Prometheus text. GET /requests, GET /requests/ID, POST /requests/ID/cancel: what proxy_ask says.
 * The admin listener (`router: admin:`, loopback) has the same but /key, /reload, /upgrade, /down and /restart: whose process asks is not known there.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <os/os.h>

struct up_options {
    const char *fleet_path;
    const char *host; /* which of its hosts this machine is, for a file that came from another one; NULL: the one without ssh */
    bool background; /* detach once all is ready, or fail with the reason; the parent returns when that is known */
    bool offline;
    bool router_only; /* starts no service: others do. Lines of requests go to standard output */
    const char *program; /* absolute path of this very program, started again as the router worker: "PROGRAM _route" */
};
/* Brings the fleet up and serves it until it is told to stop (SIGINT, SIGTERM, POST /down). Progress and errors go to stderr. The value is the exit code: 0 stopped as asked, 1 failed, 2 unusable fleet file. Whatever happens, nothing is left running.
 * A second SIGINT or SIGTERM hurries. */
int up_main(const struct up_options *o);

/* The program that takes a running supervisor's place, with what that has written into a memfd. check_only: whether it could (0), else a line on standard error (1). */
int up_resume_main(int state_fd, bool check_only);

/* ---- talking to a running supervisor ----------------------------------------------------------------------- */

/* One request over the control socket of the fleet named `name`; waits for the answer. -ENOENT: not running; -EBUSY: running with another run folder; -EAGAIN: it is installing or checking and does not listen yet. *ret_status is HTTP's. */
int up_call(const struct os_dirs *dirs, const char *name, const char *method, const char *target, unsigned *ret_status, struct buf *ret_body, struct err *err) BASE_MUST_USE;
/* Waits until the supervisor has released its lock: 0, or -ETIMEDOUT. */
int up_wait_gone(const struct os_dirs *dirs, const char *name, uint64_t limit_ms, struct err *err) BASE_MUST_USE;
/* Absolute path of a service's log ("router" and "berth" too). */
int up_log_path(const struct os_dirs *dirs, const char *name, const char *service, struct buf *ret) BASE_MUST_USE;
/* What GET /status of a fleet that is down would say, one line of JSON. The shape is the same: state "down", pids null. */
int up_status_down(const struct fleet *f, struct buf *ret) BASE_MUST_USE;
