/* SPDX-License-Identifier: MIT
 *
 * A service as a unit has the same arguments, files and environment as a child of ours. What a child gets from bubblewrap a unit gets from systemd, so it starts the program through its tree's own loader.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_int.h"

#define VERSION_MS 10000
#define VERIFY_MS 60000
#define STOP_MARGIN_MS 5000

/* Version of a program of this machine; unknown when it is not there. */
static struct unit_version version_of(const char *program)
{
    struct unit_version v = {0};
    base_autobuf struct buf out = BUF_INIT(4096), errout = BUF_INIT(4096);
    const char *const argv[] = {program, "--version", NULL};
    const struct os_spawn s = {.argv = argv, .use_path = true, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    int status;
    if (os_run(&s, VERSION_MS, &out, &errout, &status, NULL) == 0 && status == 0 && unit_version_parse(buf_str(&out), &v) < 0)
        v = (struct unit_version){0};
    return v;
}

/* Groups that own devices which compute; a unit that names one which is not there does not start. */
static int groups(struct arena *a, struct unit_input *in, struct err *err)
{
    static const char *const names[] = {"render", "video"};
    const char **list = arena_alloc(a, BASE_COUNT(names), sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < BASE_COUNT(names); i++)
        if (getgrnam(names[i]))
            list[in->n_groups++] = names[i];
    in->groups = list;
    return 0;
}

static int devices(const struct fleet_service *service, struct arena *a, struct unit_input *in, struct err *err)
{
    static const char *const nodes[] = {"/dev/kfd", "/dev/dri"};
    const char **list = arena_alloc(a, BASE_COUNT(nodes), sizeof *list);
    struct stat st;
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; service->host->n_devices && i < BASE_COUNT(nodes); i++)
        if (stat(nodes[i], &st) == 0)
            list[in->n_devices++] = nodes[i];
    in->devices = list;
    return 0;
}

/* HOME is the unit's own. */
static int environment(const char *const *envp, struct arena *a, struct unit_input *in, struct err *err)
{
    size_t n = 0;
    while (envp && envp[n])
        n++;
    const char **env = arena_alloc(a, n + 1, sizeof *env);
    if (!env)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        if (strncmp(envp[i], "HOME=", 5) != 0 && !(env[in->n_env++] = arena_dup(a, str_of(envp[i]))))
            return err_nomem(err);
    in->env = env;
    return 0;
}

static int command(const char *const *argv, struct arena *a, struct unit_input *in, struct err *err)
{
    size_t n = 0;
    while (argv[n])
        n++;
    const char **list = arena_alloc(a, n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        if (!(list[i] = arena_dup(a, str_of(argv[i]))))
            return err_nomem(err);
    if (!list)
        return err_nomem(err);
    in->argv = list;
    in->n_argv = n;
    return 0;
}

/* A name is looked up as the machine's systemd would not: units have no PATH of ours. */
static int absolute(struct arena *a, struct unit_input *in, struct err *err)
{
    base_autobuf struct buf found = BUF_INIT(8192);
    if (in->n_argv == 0 || in->argv[0][0] == '/')
        return 0;
    int r = os_find_program(in->argv[0], &found, err);
    if (r < 0)
        return r;
    const char *path = arena_dup(a, buf_str(&found));
    const char **list = arena_alloc(a, in->n_argv + 1, sizeof *list);
    if (!path || !list)
        return err_nomem(err);
    memcpy(list, in->argv, in->n_argv * sizeof *list);
    list[0] = path;
    in->argv = list;
    return 0;
}

static int reads(const struct run_recipe *recipe, const struct store_runtime *runtime, struct arena *a, struct unit_input *in, struct err *err)
{
    bool tree = in->form == UNIT_SERVICE && strcmp(runtime->root, "/") != 0;
    const char **list = arena_alloc(a, recipe->n_binds + 1, sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < recipe->n_binds; i++)
        if (!(list[in->n_reads++] = arena_dup(a, str_of(recipe->binds[i].path))))
            return err_nomem(err);
    if (tree && !(list[in->n_reads++] = arena_dup(a, str_of(runtime->root))))
        return err_nomem(err);
    in->reads = list;
    return 0;
}

static int service_command(struct store *s, const struct store_runtime *runtime, const struct run_recipe *recipe, struct arena *a, struct unit_input *in, struct err *err)
{
    struct store_launch l;
    int r = store_launch_make(s, runtime, STORE_LOADER, recipe->args, recipe->n_args, recipe->binds, recipe->n_binds, recipe->env, recipe->n_env, "/", &l, err);
    if (r < 0)
        return r;
    r = command(l.spawn.argv, a, in, err);
    if (r == 0)
        r = environment(l.spawn.envp, a, in, err);
    store_launch_release(&l);
    return r == 0 ? absolute(a, in, err) : r;
}

static int credentials(const struct fleet_service *service, struct arena *a, struct unit_input *in, struct err *err)
{
    struct unit_credential *list = arena_alloc(a, service->n_credentials + 2, sizeof *list);
    if (!list)
        return err_nomem(err);
    for (size_t i = 0; i < service->n_credentials; i++)
        list[i] = (struct unit_credential){service->credentials[i].name, service->credentials[i].path};
    in->credentials = list;
    in->n_credentials = service->n_credentials;
    if (service->key)
        list[in->n_credentials++] = (struct unit_credential){FLEET_KEY_CREDENTIAL, service->key};
    return 0;
}

/* In a container a credential has a place of its own; systemd's word for it means nothing there. */
static int place_credentials(struct arena *a, const char *const **list, size_t n, struct err *err)
{
    const char **words = arena_alloc(a, n + 1, sizeof *words);
    if (!words)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        base_autobuf struct buf word = BUF_INIT(1u << 20);
        struct str rest = str_of((*list)[i]);
        for (ptrdiff_t at; (at = str_find(rest, STR(FLEET_CREDENTIAL_MARK))) >= 0;) {
            buf_add(&word, rest.ptr, (size_t)at);
            rest = (struct str){rest.ptr + at + strlen(FLEET_CREDENTIAL_MARK), rest.len - (size_t)at - strlen(FLEET_CREDENTIAL_MARK)};
            struct str name = str_split(&rest, '}');
            buf_addf(&word, UNIT_CREDENTIALS "/" STR_FMT, STR_ARG(name));
        }
        buf_add_str(&word, rest);
        words[i] = buf_status(&word) < 0 ? NULL : arena_dup(a, buf_str(&word));
        if (!words[i])
            return err_nomem(err);
    }
    *list = words;
    return 0;
}

int run_unit_input(struct store *s, const char *fleet, const struct fleet_service *service, const struct store_runtime *runtime, struct arena *a, struct unit_input *ret, struct engine_paths *ret_paths, struct err *err)
{
    const struct run_env env = {.store = s};
    struct run_service self = {.env = &env, .service = service, .runtime = runtime, .kind = engine_find(service->runtime->engine), .arena = a, .key_path = service->key ? FLEET_KEY_MARK : NULL};
    struct unit_input in = {.fleet = fleet, .service = service, .form = service->unit == FLEET_QUADLET ? UNIT_CONTAINER : UNIT_SERVICE};
    struct run_recipe recipe;
    int r = run_recipe(&self, &recipe, err);
    if (r < 0)
        return r;
    in.systemd = version_of("systemctl");
    in.start_limit_ms = engine_start_limit_ms(self.kind, 0, 0);
    in.stop_limit_ms = RUN_DRAIN_MS + 2 * RUN_TERM_MS + STOP_MARGIN_MS;
    r = reads(&recipe, runtime, a, &in, err);
    if (r == 0)
        r = groups(a, &in, err);
    if (r == 0)
        r = credentials(service, a, &in, err);
    if (r == 0 && in.form == UNIT_SERVICE)
        r = service_command(s, runtime, &recipe, a, &in, err);
    if (r == 0 && in.form == UNIT_CONTAINER) {
        in.podman = version_of("podman");
        in.argv = recipe.args;
        in.n_argv = recipe.n_args;
        in.env = recipe.env;
        in.n_env = recipe.n_env;
        in.image = service->runtime->source_arg;
        r = devices(service, a, &in, err);
        if (r == 0)
            r = place_credentials(a, &in.argv, in.n_argv, err);
        if (r == 0)
            r = place_credentials(a, &in.env, in.n_env, err);
    }
    if (r == 0)
        *ret = in;
    if (r == 0 && ret_paths)
        *ret_paths = self.paths;
    return r;
}

/* ---- verification ---------------------------------------------------------------------------------------- */

/* The first line of a complaint; the generator also says which file it reads. */
static struct str first_complaint(struct str said)
{
    while (said.ptr) {
        struct str line = str_trim(str_split(&said, '\n'));
        if (line.len && str_find(line, STR("Loading source unit file ")) < 0)
            return line;
    }
    return STR("");
}

static int judge(const char *what, int status, struct str said, struct err *err)
{
    struct str first = first_complaint(said);
    if (status == 0 && first.len == 0)
        return 0;
    base_autobuf struct buf shown = BUF_INIT(4096);
    buf_add_printable(&shown, first, 600);
    return err_set(err, -EBADMSG, "%s refuses it: %s", what, buf_status(&shown) < 0 || shown.len == 0 ? "no reason given" : shown.ptr);
}

static int analyze(const char *path, enum fleet_scope scope, const char *runtime_dir, struct err *err)
{
    base_autobuf struct buf out = BUF_INIT(65536), errout = BUF_INIT(65536), home = BUF_INIT(PATH_MAX + 8), run = BUF_INIT(PATH_MAX + 32);
    const char *const argv[] = {"systemd-analyze", scope == FLEET_USER ? "--user" : "--system", "--man=no", "--recursive-errors=no", "verify", path, NULL};
    buf_addf(&home, "HOME=%s", getenv("HOME") ? getenv("HOME") : "/");
    buf_addf(&run, "XDG_RUNTIME_DIR=%s", runtime_dir);
    if (buf_status(&home) < 0 || buf_status(&run) < 0)
        return err_nomem(err);
    const char *const envp[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", home.ptr, run.ptr, NULL};
    const struct os_spawn s = {.argv = argv, .envp = envp, .use_path = true, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    int status, r = os_run(&s, VERIFY_MS, &out, &errout, &status, err);
    return r < 0 ? r : judge("systemd-analyze", status, buf_str(&errout), err);
}

/* A user's manager makes folders in its runtime directory, and ends without one: outside a login session it gets one for the time. */
static int verify_service(const char *path, enum fleet_scope scope, struct err *err)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");
    char own[] = "/tmp/berth-run-XXXXXX";
    if (scope == FLEET_SYSTEM || (dir && access(dir, W_OK) == 0))
        return analyze(path, scope, dir ? dir : "/run", err);
    if (!mkdtemp(own))
        return err_sys(err, -errno, "cannot make a folder below /tmp");
    int r = analyze(path, scope, own, err);
    base_ignore(os_remove_path(own, NULL)); /* it is below /tmp */
    return r;
}

/* Its exit code has been 0 for units that it then left out: what it says counts, too. */
static int verify_container(const char *path, enum fleet_scope scope, struct err *err)
{
    static const char *const programs[] = {"/usr/libexec/podman/quadlet", "/usr/lib/systemd/system-generators/podman-system-generator"};
    base_autobuf struct buf out = BUF_INIT(1u << 20), errout = BUF_INIT(65536), dir = BUF_INIT(8192);
    const char *slash = strrchr(path, '/');
    buf_addf(&dir, "QUADLET_UNIT_DIRS=%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (buf_status(&dir) < 0)
        return err_nomem(err);
    const char *const envp[] = {dir.ptr, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    for (size_t i = 0; i < BASE_COUNT(programs); i++) {
        if (access(programs[i], X_OK) < 0)
            continue;
        const char *const argv[] = {programs[i], "-dryrun", scope == FLEET_USER ? "-user" : NULL, NULL};
        const struct os_spawn s = {.argv = argv, .envp = envp, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
        int status, r = os_run(&s, VERIFY_MS, &out, &errout, &status, err);
        return r < 0 ? r : judge("podman's quadlet generator", status, buf_str(&errout), err);
    }
    return err_set(err, -ENOENT, "there is no quadlet generator here: install podman 4.4 or newer");
}

int run_unit_verify(const char *path, enum unit_form form, enum fleet_scope scope, struct err *err)
{
    return form == UNIT_CONTAINER ? verify_container(path, scope, err) : verify_service(path, scope, err);
}
