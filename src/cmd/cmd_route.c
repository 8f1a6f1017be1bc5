/* SPDX-License-Identifier: MIT
 *
 * berth route: the router alone, for services that others start; and the router's worker, which `berth up` starts.
 */
#include "route_int.h"

#include <limits.h>
#include <proxy/proxy.h>
#include <up/up.h>

#define LISTEN_MAX FLEET_ROUTER_LOOPS_MAX /* sockets of one worker */

static int run_route(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, 2, &a, &code))
        return code;
    if (a.n_words == 2 && str_eq_c(str_of(a.words[0]), "explain"))
        return cmd_on_name(c, &a, route_explain);
    if (a.n_words > 0 && str_eq_c(str_of(a.words[0]), "explain"))
        return cmd_usage(c, "explain needs a request's number");
    if (a.n_words > 0)
        return cmd_usage(c, "'%.40s' is not understood; there is 'explain ID'", a.words[0]);
    if (cmd_given(c, &a, "json"))
        return cmd_usage(c, "--json goes with 'explain ID'");
    char program[PATH_MAX];
    const char *file = cmd_value(c, &a, "file");
    struct up_options o = {.fleet_path = file ? file : "fleet.yaml", .program = cmd_own_program(program), .router_only = true, .host = cmd_value(c, &a, "host")};
    return up_main(&o);
}

const struct cmd cmd_route = {
    .name = "route",
    .synopsis = "[--host HOST] [explain ID [--json]] [-f FILE]",
    .summary = "serve the router alone; explain a request",
    .description = "Serves the fleet's router without starting any service: for engines that something else starts. A service that cannot be reached is passed over. Ctrl-C or SIGTERM lets requests under way finish, at most 30 s.\n\n"
                   "route explain ID tells of one request of a fleet that is up, by the number in its answer's field X-Berth-Request-Id: which replicas could have had it, with the prompt tokens that were expected in the cache of each, how long each would have been waited for and how soon it would have read the prompt; which one was chosen and why; what really happened; and the regret: how much sooner the best of the others would have been. The last 512 requests are remembered.",
    .examples = "berth route -f fleet.yaml\nberth route explain 1041",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "host", "HOST", "the host that this machine is, in a file that came from another"}},
    .run = run_route,
};

/* ---- the worker --------------------------------------------------------------------------------------------- */

static bool to_fd(const char *text, int *ret)
{
    uint64_t n;
    if (!text || str_to_u64(str_of(text), &n) < 0 || n > 1 << 20)
        return false;
    *ret = (int)n;
    return true;
}

static int run_worker(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK, channel = -1, spill = -1, fds[LISTEN_MAX];
    size_t n = 0;
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    const char *text = cmd_value(c, &a, "loops");
    uint64_t loops = 1;
    if (text && (str_to_u64(str_of(text), &loops) < 0 || loops == 0 || loops > FLEET_ROUTER_LOOPS_MAX))
        return cmd_usage(c, "'%s' is no number of loops", text);
    while ((text = cmd_value_at(c, &a, "listen-fd", n))) {
        if (n == LISTEN_MAX || !to_fd(text, &fds[n]))
            return cmd_usage(c, "'%s' is no descriptor to listen on", text);
        n++;
    }
    if (n == 0 || !to_fd(cmd_value(c, &a, "channel-fd"), &channel))
        return cmd_usage(c, "a channel and at least one listening descriptor are needed");
    if ((text = cmd_value(c, &a, "spill-fd")) && !to_fd(text, &spill))
        return cmd_usage(c, "'%s' is no descriptor of a folder", text);
    struct err err;
    return proxy_worker(channel, fds, n, spill, (unsigned)loops, &err) < 0 ? cmd_fail(CMD_FAILED, &err) : CMD_OK;
}

const struct cmd cmd_route_worker = {
    .name = "_route",
    .synopsis = "--channel-fd FD [--loops N] [--spill-fd FD] --listen-fd FD...",
    .summary = "the router's worker process",
    .description = "Started by 'berth up'. Serves the listening descriptors as the channel's configuration says and ends with the channel.",
    .options = {{0, "channel-fd", "FD", "connected socket to the supervisor"}, {0, "listen-fd", "FD", "listening socket; may be repeated"},
                {0, "loops", "N", "event loops that share the sockets (default 1)"}, {0, "spill-fd", "FD", "folder for large request bodies"}},
    .hidden = true,
    .run = run_worker,
};
