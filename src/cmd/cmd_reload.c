/* SPDX-License-Identifier: MIT
 *
 * berth reload: has a running fleet read its file again. The file's name for the fleet is enough here: whether the rest can be used is for the supervisor to say, and to keep.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <stdio.h>
#include <up/up.h>

/* "started: a, b" on standard error, when there are any. */
static void say_names(json_val root, const char *key, const char *text)
{
    json_val list = json_get(root, key);
    for (size_t i = 0; i < json_count(list); i++) {
        struct str name;
        if (json_str(json_at(list, i), &name))
            (void)fprintf(stderr, "%s" STR_FMT, i ? ", " : text, STR_ARG(name));
    }
    if (json_count(list))
        (void)fputc('\n', stderr);
}

static int report(const char *name, const struct buf *body, unsigned status)
{
    struct json *j;
    struct err err;
    struct str why;
    if (json_parse(buf_str(body), &j, &err) < 0)
        return cmd_failf(CMD_FAILED, "the supervisor's answer is not understood: %s", err.text);
    json_val root = json_root(j);
    int code = CMD_OK;
    if (status == 200) {
        (void)fprintf(stderr, "fleet '%s' goes by its file\n", name);
        say_names(root, "started", "started          ");
        say_names(root, "removed", "being stopped    ");
        say_names(root, "pending", "pending restart  ");
    } else if (json_str(json_get(root, "error"), &why)) {
        code = cmd_failf(status == 422 ? CMD_USAGE : CMD_FAILED, STR_FMT "; what was in force stays", STR_ARG(why));
    } else {
        code = cmd_failf(CMD_FAILED, "the supervisor of fleet '%s' refused (%u)", name, status);
    }
    json_free(j);
    return code;
}

static int reload(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    base_autobuf struct buf body = BUF_INIT(1u << 20);
    unsigned status = 0;
    struct err err;
    (void)c;
    (void)a;
    if (up_call(dirs, name, "POST", "/reload", &status, &body, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    return report(name, &body, status);
}

static int run_reload(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 0, 0, &a, &code) ? cmd_on_name(c, &a, reload) : code;
}

const struct cmd cmd_reload = {
    .name = "reload",
    .synopsis = "[-f FILE]",
    .summary = "let a running fleet go by its file again",
    .description = "Reads the fleet file again without dropping a request. Endpoints, aliases, policies, keys, the certificate and the router's address are in force at once. Services that are new are started; those that are gone finish their requests (at most 30 s) and are stopped. "
                   "A service whose process would be another goes on as it is: 'berth status' calls it 'pending restart', and 'berth restart SERVICE' gives it what is declared. SIGHUP does the same, where there is no terminal.\n\n"
                   "A file that cannot be used changes nothing: exit 2, and 'berth status' shows why. Exit 1 when the fleet is not up, or is starting, restarting or stopping.",
    .examples = "berth reload\nsystemctl reload berth    # with ExecReload=kill -HUP $MAINPID",
    .options = {CMD_OPTION_FILE},
    .run = run_reload,
};
