/* SPDX-License-Identifier: MIT
 *
 * What a service manager is told: ready, reloading, stopping, a line of status, and that we live, as often as it wants to hear it. A manager that does not listen costs a message, so
 * failures are nobody's concern.
 */
#include "up_int.h"

static void on_watchdog(void *ctx)
{
    (void)ctx;
    base_ignore(os_notify("WATCHDOG=1"));
}

int up_manager_open(struct up *u, struct err *err)
{
    uint64_t every = os_watchdog_ms();
    if (every == 0)
        return 0;
    u->watchdog = net_timer_new(u->loop, on_watchdog, u);
    if (!u->watchdog)
        return err_nomem(err);
    net_timer_start(u->watchdog, every, every);
    return 0;
}

void up_manager_tell(struct up *u, const char *what)
{
    static const char *const phases[] = {"starting", "serving", "stopping"};
    size_t ready = 0;
    for (size_t i = 0; i < u->n_services; i++) {
        struct run_info info = {0};
        if (u->services[i]->run)
            run_info(u->services[i]->run, &info);
        ready += info.state == RUN_READY;
    }
    if (u->o->router_only)
        base_ignore(os_notify("%sSTATUS=%s", what, phases[u->phase]));
    else
        base_ignore(os_notify("%sSTATUS=%s, %zu of %zu services ready", what, phases[u->phase], ready, u->n_services));
}
