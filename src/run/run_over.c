/* SPDX-License-Identifier: MIT
 *
 * A service's process, handed from a supervisor to the program that takes its place by exec: the same process number, so that the engine stays its child, and its pidfds, its log's
 * pipe and what is counted go on. Only a service that is at rest, ready or without a process, can be handed over.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "run_int.h"

int run_hand_over(const struct run_service *s, struct run_handover *ret)
{
    *ret = (struct run_handover){.pidfd = -1, .engine_pidfd = -1, .info_fd = -1, .log_fd = -1, .generation = s->generation, .restarts = s->restarts};
    switch (s->state) {
    case RUN_ABSENT:
        return 0;
    case RUN_FAILED:
        ret->since_ms = s->since_ms;
        ret->failed = s->error.len ? buf_str(&s->error) : STR("it failed");
        return 0;
    case RUN_STARTING:
        ret->start = true;
        return run_alive(s) ? -EAGAIN : 0;
    case RUN_READY:
        break;
    case RUN_LOADING:
    case RUN_DRAINING:
    case RUN_STOPPING:
        return -EAGAIN;
    }
    ret->pid = s->proc.pid;
    ret->pidfd = s->proc.pidfd;
    ret->engine_pid = s->engine.pid;
    ret->engine_pidfd = s->engine.pidfd;
    ret->info_fd = s->info_fd;
    ret->log_fd = s->log.pipe_fd;
    ret->since_ms = s->since_ms;
    ret->ready_ms = s->ready_ms;
    ret->took_ms = s->took_ms;
    return 0;
}

static int watch(struct run_service *s, int log_fd, struct err *err)
{
    int rc = run_log_open(s, err);
    if (rc == 0 && log_fd >= 0)
        rc = run_log_watch(s, log_fd, err);
    return rc < 0 ? rc : run_watch(s, err);
}

int run_take_over(struct run_service *s, const struct run_handover *h, struct err *err)
{
    s->generation = h->generation;
    s->restarts = h->restarts;
    if (h->failed.ptr) {
        s->state = RUN_FAILED;
        s->since_ms = h->since_ms;
        buf_clear(&s->error);
        buf_add_str(&s->error, h->failed);
        return buf_status(&s->error) < 0 ? err_nomem(err) : 0;
    }
    if (h->pid <= 0)
        return 0;
    s->proc = (struct os_proc){.pid = h->pid, .pidfd = h->pidfd};
    s->engine = (struct os_proc){.pid = h->engine_pid, .pidfd = h->engine_pidfd};
    s->info_fd = h->info_fd;
    s->since_ms = h->since_ms;
    s->start_ms = h->ready_ms >= h->took_ms ? h->ready_ms - h->took_ms : 0;
    s->ready_ms = h->ready_ms;
    s->took_ms = h->took_ms;
    s->was_ready = true;
    if (s->service->key && fleet_key_read(s->service->key, s->key, NULL) < 0)
        s->key[0] = '\0'; /* it is refused, and said so, by whoever asks */
    run_aim(s);
    s->state = RUN_READY;
    int rc = watch(s, h->log_fd, err);
    if (rc == 0)
        run_log_say(s, "another berth has taken over");
    return rc;
}
