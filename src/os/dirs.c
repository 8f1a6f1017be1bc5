/* SPDX-License-Identifier: MIT
 *
 * Where state, run files and configuration live. Root has the system's folders, a user the XDG ones; a variable of our own
 * goes before both. As the XDG rules say, an empty variable counts as unset. A relative path is refused instead
 * of being read against a working directory that nobody had in mind.
 */
#include "os_int.h"

#include <errno.h>
#include <pwd.h>
#include <unistd.h>

#define DIR_MAX 4096

/* The value of a variable, absolute, without trailing slashes; empty when unset. */
static int from_env(const char *name, struct str *ret, struct err *err)
{
    struct str value = str_of(getenv(name));
    if (value.len && value.ptr[0] != '/')
        return err_set(err, -EINVAL, "%s is '" STR_FMT "', which is no absolute path; give one or unset it", name, STR_ARG(value));
    while (value.len > 1 && value.ptr[value.len - 1] == '/')
        value.len--;
    *ret = value;
    return 0;
}

/* The home folder, from HOME or the account. room holds what the account's entry needs. */
static int home_dir(char room[OS_ACCOUNT_ROOM], struct str *ret, struct err *err)
{
    int r = from_env("HOME", ret, err);
    if (r < 0 || ret->len)
        return r;
    struct passwd entry, *found = NULL;
    if (getpwuid_r(geteuid(), &entry, room, OS_ACCOUNT_ROOM, &found) != 0 || !found || found->pw_dir[0] != '/')
        return err_set(err, -ENOENT, "no home folder: HOME is unset and user %u has none; set HOME", (unsigned)geteuid());
    *ret = str_of(found->pw_dir);
    return 0;
}

/* own (when set), else xdg/berth, else home/rest. */
static int user_dir(const char *own, const char *xdg, const char *rest, char **ret, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(DIR_MAX);
    char room[OS_ACCOUNT_ROOM];
    struct str base = {0};
    int r = own ? from_env(own, &base, err) : 0;
    if (r < 0)
        return r;
    if (base.len) {
        buf_add_str(&path, base);
    } else {
        r = from_env(xdg, &base, err);
        if (r < 0)
            return r;
        if (base.len) {
            buf_add_str(&path, base);
            buf_add_c(&path, "/berth");
        } else {
            r = home_dir(room, &base, err);
            if (r < 0)
                return r;
            buf_add_str(&path, base);
            buf_add_c(&path, rest);
        }
    }
    *ret = buf_take(&path);
    return *ret ? 0 : err_set(err, -ENAMETOOLONG, "the path that %s gives is too long", own ? own : xdg);
}

static int root_dir(const char *own, const char *usual, char **ret, struct err *err)
{
    struct str base = {0};
    int r = own ? from_env(own, &base, err) : 0;
    if (r < 0)
        return r;
    *ret = str_dup(base.len ? base : str_of(usual));
    return *ret ? 0 : err_nomem(err);
}

/* $BERTH_RUN, else $XDG_RUNTIME_DIR/berth, else state/run: there is no run folder of a user outside a login session. */
static int user_run_dir(const char *state, char **ret, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(DIR_MAX);
    struct str own = {0}, xdg = {0};
    int r = from_env("BERTH_RUN", &own, err);
    if (r == 0)
        r = from_env("XDG_RUNTIME_DIR", &xdg, err);
    if (r < 0)
        return r;
    if (own.len)
        buf_add_str(&path, own);
    else if (xdg.len)
        buf_addf(&path, STR_FMT "/berth", STR_ARG(xdg));
    else
        buf_addf(&path, "%s/run", state);
    *ret = buf_take(&path);
    return *ret ? 0 : err_set(err, -ENAMETOOLONG, "the path of the run folder is too long");
}

int os_dirs_find(struct os_dirs *ret, struct err *err)
{
    struct os_dirs d = {0};
    int r;
    if (geteuid() == 0) {
        r = root_dir("BERTH_STATE", "/var/lib/berth", &d.state, err);
        if (r == 0)
            r = root_dir("BERTH_RUN", "/run/berth", &d.run, err);
        if (r == 0)
            r = root_dir("BERTH_CONFIG", "/etc/berth", &d.config, err);
    } else {
        r = user_dir("BERTH_STATE", "XDG_STATE_HOME", "/.local/state/berth", &d.state, err);
        if (r == 0)
            r = user_run_dir(d.state, &d.run, err);
        if (r == 0)
            r = user_dir("BERTH_CONFIG", "XDG_CONFIG_HOME", "/.config/berth", &d.config, err);
    }
    if (r < 0)
        os_dirs_release(&d);
    else
        *ret = d;
    return r;
}

void os_dirs_release(struct os_dirs *d)
{
    free(d->state);
    free(d->run);
    free(d->config);
    *d = (struct os_dirs){0};
}
