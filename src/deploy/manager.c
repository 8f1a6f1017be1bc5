/* SPDX-License-Identifier: MIT
 *
 * systemd as its own tools show it: systemctl and journalctl are on every machine that has units, speak to the right manager by a flag, and their "show" output is a stable interface. A user's manager is found by
 * XDG_RUNTIME_DIR, which a session that came in by ssh may lack.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deploy_int.h"

#define SHOW_MS 20000
#define SHOW_WORDS 4    /* before the units */
#define SHOW_AT_ONCE 64 /* units: their properties fit into what is read of an answer */
#define WORDS_MAX (SHOW_WORDS + SHOW_AT_ONCE)

/* -EIO as os_run_ok's. */
static int call(const struct deploy *d, const char *program, const char *const *words, uint64_t timeout_ms, struct buf *out, struct err *err)
{
    const char *argv[WORDS_MAX + 4] = {program};
    size_t n = 1;
    if (d->host->scope == FLEET_USER)
        argv[n++] = "--user";
    for (size_t i = 0; words[i] && n < WORDS_MAX + 3; i++)
        argv[n++] = words[i];
    base_autobuf struct buf runtime = BUF_INIT(DEPLOY_PATH_MAX);
    const char *of_session = getenv("XDG_RUNTIME_DIR");
    if (of_session)
        buf_addf(&runtime, "XDG_RUNTIME_DIR=%s", of_session);
    else
        buf_addf(&runtime, "XDG_RUNTIME_DIR=/run/user/%u", (unsigned)geteuid());
    if (buf_status(&runtime) < 0)
        return err_nomem(err);
    const char *const envp[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", runtime.ptr, NULL};
    const struct os_spawn s = {.argv = argv, .envp = envp, .use_path = true, .new_group = true};
    int r = os_run_ok(&s, timeout_ms, out, err);
    return r == -ENOENT ? err_set(err, r, "'%s' is not on this machine: units need systemd", program) : r;
}

int deploy_systemctl(const struct deploy *d, const char *const *words, uint64_t timeout_ms, struct err *err)
{
    int r = call(d, "systemctl", words, timeout_ms, NULL, err);
    return r == -EIO ? err_prefix(err, "systemctl %s failed", words[0]) : r;
}

void deploy_journal(const struct deploy *d, const char *invocation, struct buf *out)
{
    base_autobuf struct buf match = BUF_INIT(256);
    buf_addf(&match, "%s=%s", d->host->scope == FLEET_USER ? "USER_INVOCATION_ID" : "_SYSTEMD_INVOCATION_ID", invocation);
    const char *const words[] = {match.ptr, "--output=cat", "--no-pager", "--quiet", NULL};
    /* without a journal there are no last words, which is no failure of its own */
    if (buf_status(&match) == 0 && *invocation)
        base_ignore(call(d, "journalctl", words, SHOW_MS, out, NULL));
}

static uint64_t number(struct str v)
{
    uint64_t n = 0;
    if (v.len && v.ptr[0] == '@')
        v = (struct str){v.ptr + 1, v.len - 1};
    return str_to_u64(v, &n) < 0 ? 0 : n;
}

static void keep(char *out, size_t size, struct str v)
{
    snprintf(out, size, STR_FMT, STR_ARG(v));
}

static void take(struct deploy_unit *u, struct str key, struct str v)
{
    if (str_eq_c(key, "LoadState"))
        u->loaded = str_eq_c(v, "loaded");
    else if (str_eq_c(key, "ActiveState")) {
        u->active = str_eq_c(v, "active") || str_eq_c(v, "reloading");
        u->failed = str_eq_c(v, "failed");
        u->activating = str_eq_c(v, "activating");
    } else if (str_eq_c(key, "UnitFileState"))
        u->enabled = str_eq_c(v, "enabled") || str_eq_c(v, "generated");
    else if (str_eq_c(key, "NeedDaemonReload"))
        u->stale = str_eq_c(v, "yes");
    else if (str_eq_c(key, "MainPID"))
        u->pid = (pid_t)number(v);
    else if (str_eq_c(key, "NRestarts"))
        u->restarts = number(v);
    else if (str_eq_c(key, "ExecMainStartTimestamp"))
        u->since_s = number(v);
    else if (str_eq_c(key, "ExecMainStartTimestampMonotonic"))
        u->since_mono_us = number(v);
    else if (str_eq_c(key, "FragmentPath"))
        keep(u->fragment, sizeof u->fragment, v);
    else if (str_eq_c(key, "InvocationID"))
        keep(u->invocation, sizeof u->invocation, v);
}

/* The blocks of several units, in the order in which they were asked for; an empty line is between them. */
static int take_blocks(struct str text, struct deploy_unit *ret, size_t n, struct err *err)
{
    size_t at = 0;
    memset(ret, 0, n * sizeof *ret);
    text = str_trim(text);
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        if (line.len == 0) {
            at++;
            continue;
        }
        struct str key = str_split(&line, '=');
        if (at < n && line.ptr)
            take(&ret[at], key, line);
    }
    /* whose is whose would be a guess */
    return at + 1 == n ? 0 : err_set(err, -EIO, "systemctl was asked about %zu unit%s and told of %zu", n, n == 1 ? "" : "s", at + 1);
}

static int show_some(const struct deploy *d, const char *const *units, size_t n, struct deploy_unit *ret, struct err *err)
{
    static const char properties[] = "--property=LoadState,ActiveState,UnitFileState,NeedDaemonReload,MainPID,NRestarts,ExecMainStartTimestamp,ExecMainStartTimestampMonotonic,FragmentPath,InvocationID";
    const char *words[WORDS_MAX + 1] = {"show", properties, "--timestamp=unix", "--"};
    base_autobuf struct buf out = BUF_INIT(65536);
    for (size_t i = 0; i < n; i++)
        words[SHOW_WORDS + i] = units[i];
    int r = call(d, "systemctl", words, SHOW_MS, &out, err);
    if (r < 0 && access("/run/systemd/system", F_OK) < 0)
        return err_set(err, -EIO, "this machine does not run systemd, which keeps units running: a service with 'unit: child' needs 'berth up' alone");
    if (r < 0)
        return r == -EIO ? err_prefix(err, "systemd cannot be asked about '%s'", units[0]) : r;
    return take_blocks(buf_str(&out), ret, n, err);
}

int deploy_show_many(const struct deploy *d, const char *const *units, size_t n, struct deploy_unit *ret, struct err *err)
{
    int r = 0;
    for (size_t at = 0; r == 0 && at < n; at += SHOW_AT_ONCE)
        r = show_some(d, units + at, n - at < SHOW_AT_ONCE ? n - at : SHOW_AT_ONCE, ret + at, err);
    return r;
}

int deploy_show(const struct deploy *d, const char *unit, struct deploy_unit *ret, struct err *err)
{
    struct deploy_unit u;
    int r = show_some(d, &unit, 1, &u, err);
    if (r == 0)
        *ret = u;
    return r;
}
