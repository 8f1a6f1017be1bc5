/* SPDX-License-Identifier: MIT
 *
 * Cards that work on one tensor together need a library of collectives, and whether that works on a machine nobody promises. A service that needs one is refused until a collective ran on exactly this hardware; one that was started
 * with a person's permission, and gave its token, has proven it.
 */
#include "deploy_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <stdlib.h>

static int read_machine(struct hw **ret, struct err *err)
{
    struct hw_reader *r = NULL;
    struct hw *h = calloc(1, sizeof *h);
    int code = h ? hw_open(NULL, &r, err) : err_nomem(err);
    if (code == 0)
        code = hw_read(r, h, err);
    hw_close(r);
    if (code == 0)
        *ret = h;
    else
        free(h);
    return code;
}

static int open_ledger(const struct deploy *d, struct ledger **ret, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(DEPLOY_PATH_MAX);
    buf_addf(&path, "%s/ledger.db", d->dirs->state);
    return buf_status(&path) < 0 ? err_nomem(err) : ledger_open(path.ptr, ret, err);
}

int deploy_collectives_judge(const struct fleet_service *s, const struct hw *h, struct ledger *l, bool allowed, struct err *err)
{
    base_autobuf struct buf key = BUF_INIT(8192);
    unsigned ranks = engine_ranks(s);
    uint64_t at = 0;
    if (ranks < 2)
        return 0;
    if (!doctor_collective_key(h, s->host, &key))
        return err_set(err, -ENODEV, "it binds %u cards together, and this machine has not two of those that host '%s' declares; 'berth doctor' tells what is here", ranks, s->host->name);
    int r = l ? doctor_collective_find(l, key.ptr, &at, NULL, err) : 0;
    if (r < 0 || at || allowed)
        return r;
    return err_set(err, -EPERM,
                   "it binds %u cards together, and no collective was proven on this hardware: 'berth doctor --prove -- all_reduce_perf -g %u' there proves it, or 'berth deploy --prove-collectives' lets this service do so; 'berth doctor' tells what may "
                   "be in the way",
                   ranks, ranks);
}

int deploy_collectives_gate(struct deploy *d, const struct fleet_service *s, struct err *err)
{
    struct ledger *l = NULL;
    struct hw *h = NULL;
    if (engine_ranks(s) < 2)
        return 0;
    int r = read_machine(&h, err);
    if (r == 0)
        r = open_ledger(d, &l, err);
    if (r == 0)
        r = deploy_collectives_judge(s, h, l, d->prove_collectives, err);
    ledger_free(l);
    free(h);
    return r;
}

void deploy_collectives_record(struct deploy *d, const struct fleet_service *s)
{
    base_autobuf struct buf key = BUF_INIT(8192), by = BUF_INIT(256);
    struct ledger *l = NULL;
    struct hw *h = NULL;
    struct err err;
    uint64_t at = 0;
    if (engine_ranks(s) < 2)
        return;
    buf_addf(&by, "service %s", s->name);
    int r = read_machine(&h, &err);
    if (r == 0 && (!doctor_collective_key(h, s->host, &key) || buf_status(&by) < 0))
        r = err_set(&err, -ENODEV, "its cards cannot be told");
    if (r == 0)
        r = open_ledger(d, &l, &err);
    if (r == 0)
        r = doctor_collective_find(l, key.ptr, &at, NULL, &err);
    if (r == 0 && !at)
        r = doctor_collective_add(l, key.ptr, by.ptr, 0, &err);
    if (r < 0)
        event_say(d->sink, EVENT_WARN, s->name, "that its collectives work is not recorded: %s", err.text);
    else if (!at)
        event_say(d->sink, EVENT_INFO, s->name, "its cards work together: recorded for this hardware");
    ledger_free(l);
    free(h);
}
