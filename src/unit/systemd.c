/* SPDX-License-Identifier: MIT
 *
 * A .service file. The engine runs as an account of its own that owns nothing, sees the machine read-only, and has of its devices only those that compute. What would hide a card or break an engine is left out on
 * purpose: PrivateDevices (hides cards), MemoryDenyWriteExecute (engines compile kernels at run time), ProtectKernelTunables in a user's manager. A user's manager cannot mount, so there only what the
 * kernel refuses by itself is left.
 */
#include <errno.h>

#include "unit_int.h"

static bool below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n]);
}

static bool in_home(const char *path)
{
    return below(path, "/home") || below(path, "/root") || below(path, "/run/user");
}

/* Folders that the sandbox covers are opened again for exactly what the engine reads. */
static int reads(const struct unit_input *in, struct buf *out, struct err *err)
{
    bool home = false;
    for (size_t i = 0; i < in->n_reads; i++)
        home |= in_home(in->reads[i]);
    unit_key(out, "PrivateTmp", "yes");
    unit_key(out, "ProtectHome", home ? "tmpfs" : "yes");
    for (size_t i = 0; i < in->n_reads; i++) {
        const char *path = in->reads[i];
        if (!in_home(path) && !below(path, "/tmp") && !below(path, "/var/tmp"))
            continue;
        /* source:target is one value */
        if (strchr(path, ':'))
            return err_set(err, -EINVAL, "'%s' cannot be shown to service '%s': its name has a ':'", path, in->service->name);
        int r = unit_words(out, "BindReadOnlyPaths", &path, 1, false, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* systemd passes over a source that is not straight, and says so in its own log alone. */
static bool is_straight(const char *path)
{
    struct str rest = str_of(path);
    while (rest.ptr) {
        struct str part = str_split(&rest, '/');
        if (str_eq_c(part, ".") || str_eq_c(part, ".."))
            return false;
    }
    return path[0] == '/';
}

/* LoadCredential= is read without quotes: one would become part of the name, and of the path. */
static int credentials(const struct unit_input *in, struct buf *out, struct err *err)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < in->n_credentials; i++) {
        const struct unit_credential *c = &in->credentials[i];
        base_autobuf struct buf word = BUF_INIT(65536);
        if (!is_straight(c->path))
            return err_set(err, -EINVAL, "'%.400s' of credential '%s' of service '%s' must be an absolute path without '.' and '..'", c->path, c->name, in->service->name);
        buf_addf(&word, "%s:%s", c->name, c->path);
        r = buf_status(&word) < 0 ? err_nomem(err) : unit_raw(out, "LoadCredential", word.ptr, false, err);
    }
    return r;
}

static int account(const struct unit_input *in, struct buf *out, struct err *err)
{
    static const char *const rules[][2] = {
        {"DynamicUser", "yes"}, {"CapabilityBoundingSet", ""}, {"ProtectSystem", "strict"}, {"ProtectHostname", "yes"}, {"ProtectClock", "yes"}, {"ProtectControlGroups", "yes"}, {"ProtectKernelTunables", "yes"},
        {"ProtectKernelModules", "yes"}, {"ProtectKernelLogs", "yes"}, {"ProtectProc", "invisible"}, {"PrivateDevices", "no"}, {"DevicePolicy", "closed"},
    };
    static const char *const cards[] = {"char-drm rw", "char-kfd rw", "char-nvidia rw", "char-nvidia-frontend rw", "char-nvidia-uvm rw", "char-nvidia-caps rw"};
    for (size_t i = 0; i < BASE_COUNT(rules); i++)
        unit_key(out, rules[i][0], rules[i][1]);
    for (size_t i = 0; i < BASE_COUNT(cards); i++)
        unit_key(out, "DeviceAllow", cards[i]);
    int r = in->n_groups ? unit_words(out, "SupplementaryGroups", in->groups, in->n_groups, false, err) : 0;
    if (r == 0)
        r = reads(in, out, err);
    return r;
}

static void seccomp(struct buf *out)
{
    static const char *const rules[][2] = {
        {"NoNewPrivileges", "yes"},       {"LockPersonality", "yes"}, {"RestrictNamespaces", "yes"},
        {"RestrictRealtime", "yes"},      {"RestrictSUIDSGID", "yes"}, {"RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"},
        {"SystemCallArchitectures", "native"}, {"SystemCallFilter", "@system-service"}, {"SystemCallErrorNumber", "EPERM"},
    };
    for (size_t i = 0; i < BASE_COUNT(rules); i++)
        unit_key(out, rules[i][0], rules[i][1]);
}

/* HOME is the cache folder, so that whatever an engine compiles is there at the next start. */
static int environment(const struct unit_input *in, struct buf *out, struct err *err)
{
    char base[UNIT_NAME_MAX];
    unit_base(in->fleet, in->service->name, base);
    unit_key(out, "CacheDirectory", base);
    unit_key(out, "CacheDirectoryMode", "0700");
    unit_key(out, "WorkingDirectory", "/");
    buf_addf(out, "Environment=HOME=%%C/%s XDG_CACHE_HOME=%%C/%s\n", base, base);
    return unit_each(out, "Environment", in->env, in->n_env, false, err);
}

int unit_systemd(const struct unit_input *in, struct buf *out, struct err *err)
{
    if (in->n_argv == 0 || in->argv[0][0] != '/')
        return err_set(err, -EINVAL, "service '%s' has no program with an absolute path", in->service->name);
    int r = unit_head(in, out, err);
    buf_add_c(out, "\n[Service]\n");
    /* engines do not tell when they are ready: deploy proves it */
    unit_key(out, "Type", "exec");
    if (r == 0)
        r = unit_words(out, "ExecStart", in->argv, in->n_argv, true, err);
    if (r == 0 && in->n_stop)
        r = unit_words(out, "ExecStop", in->stop, in->n_stop, true, err);
    if (r == 0)
        r = environment(in, out, err);
    if (r < 0)
        return r;
    unit_service(in, out);
    unit_key(out, "LimitMEMLOCK", "infinity");
    unit_key(out, "LimitNOFILE", "65536");
    unit_key(out, "LimitCORE", "0");
    unit_key(out, "UMask", "0077");
    seccomp(out);
    r = credentials(in, out, err);
    if (r == 0 && in->service->host->scope == FLEET_SYSTEM)
        r = account(in, out, err);
    unit_install(in, out);
    return r;
}
