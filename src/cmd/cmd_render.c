/* SPDX-License-Identifier: MIT
 *
 * berth render: what berth writes for other programs: units of services, without installing them; files of clients (render_clients.c).
 */
#include "render_int.h"

#include <errno.h>
#include <fcntl.h>
#include <run/run.h>
#include <store/store.h>
#include <unistd.h>

struct rendering {
    const struct cmd *c;
    const struct cmd_args *a;
    const struct fleet *fleet;
    struct store *store;
    const char *out; /* folder; NULL: standard output */
    int fd;          /* of it */
    size_t n;
};

static int put(struct rendering *x, const char *name, struct str text, mode_t mode)
{
    struct err err;
    if (!x->out) {
        base_autobuf struct buf b = BUF_INIT(UNIT_TEXT_MAX + 4096);
        buf_addf(&b, "%s# ---- %s ----\n", x->n++ ? "\n" : "", name);
        buf_add_str(&b, text);
        return buf_status(&b) < 0 ? cmd_nomem() : cmd_print(buf_str(&b));
    }
    x->n++;
    return os_write_atomic(x->fd, name, text.ptr, text.len, mode, &err) < 0 ? cmd_fail(CMD_FAILED, &err) : CMD_OK;
}

static int verify(const struct rendering *x, const char *name, const struct unit_input *in)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    struct err err;
    buf_addf(&path, "%s/%s", x->out, name);
    if (buf_status(&path) < 0)
        return cmd_nomem();
    int r = run_unit_verify(path.ptr, in->form, in->service->host->scope, &err);
    if (r == 0)
        return CMD_OK;
    err_prefix(&err, "%s", path.ptr);
    return cmd_fail(CMD_FAILED, &err);
}

static int render_input(struct rendering *x, const struct unit_input *in)
{
    base_autobuf struct buf text = BUF_INIT(UNIT_TEXT_MAX), health = BUF_INIT(65536);
    char name[UNIT_NAME_MAX], base[UNIT_NAME_MAX + 8];
    struct err err;
    if (unit_render(in, &text, &err) < 0 || (in->form == UNIT_CONTAINER && unit_render_health(in, &health, &err) < 0))
        return cmd_fail(CMD_FAILED, &err);
    int code = put(x, unit_file(in->fleet, in->service->name, in->form, name), buf_str(&text), 0644);
    if (code == CMD_OK && in->form == UNIT_CONTAINER) {
        unit_base(in->fleet, in->service->name, base);
        base_autobuf struct buf file = BUF_INIT(sizeof base);
        buf_addf(&file, "%s.health", base);
        code = buf_status(&file) < 0 ? cmd_nomem() : put(x, file.ptr, buf_str(&health), 0755);
    }
    return code == CMD_OK && cmd_given(x->c, x->a, "verify") ? verify(x, name, in) : code;
}

static int render_service(struct rendering *x, const struct fleet_service *s)
{
    struct store_runtime runtime = {0};
    struct arena *arena = arena_new(16u << 20);
    struct unit_input in;
    struct err err;
    int code = CMD_OK;
    if (!arena)
        return cmd_nomem();
    bool tree = s->unit != FLEET_QUADLET;
    if ((tree && store_runtime_find(x->store, s->runtime, &runtime, &err) < 0) || run_unit_input(x->store, x->fleet->name, s, &runtime, arena, &in, NULL, &err) < 0)
        code = cmd_fail(CMD_FAILED, &err);
    else
        code = render_input(x, &in);
    store_runtime_release(&runtime);
    arena_free(arena);
    return code;
}

/* Without a name: all that are units. */
static bool is_wanted(const struct cmd_args *a, const struct fleet_service *s)
{
    for (size_t i = 1; i < a->n_words; i++)
        if (str_eq_c(str_of(s->name), a->words[i]))
            return true;
    return a->n_words == 1 && s->unit != FLEET_CHILD;
}

static int render_units(struct rendering *x)
{
    int code = CMD_OK;
    for (size_t i = 1; i < x->a->n_words && code == CMD_OK; i++)
        if ((code = cmd_service(x->fleet, x->a->words[i])) == CMD_OK && fleet_service_find(x->fleet, x->a->words[i])->unit == FLEET_CHILD)
            code = cmd_failf(CMD_USAGE, "service '%s' is a child of 'berth up': give it 'unit: systemd' or 'unit: quadlet'", x->a->words[i]);
    for (size_t i = 0; i < x->fleet->n_services && code == CMD_OK; i++)
        if (is_wanted(x->a, &x->fleet->services[i]))
            code = render_service(x, &x->fleet->services[i]);
    if (code == CMD_OK && x->n == 0)
        return cmd_failf(CMD_USAGE, "no service of fleet '%s' is a unit: give one 'unit: systemd' or 'unit: quadlet'", x->fleet->name);
    return code;
}

static int render(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs)
{
    struct rendering x = {.c = c, .a = a, .fleet = f, .out = cmd_value(c, a, "out"), .fd = -1};
    struct err err;
    int code = CMD_OK;
    if (store_open(dirs, &x.store, &err) < 0 || (x.out && (os_make_dirs(x.out, 0755, &err) < 0 || (x.fd = os_open_dir(x.out, &err)) < 0)))
        code = cmd_fail(CMD_FAILED, &err);
    else
        code = render_units(&x);
    os_closep(&x.fd);
    store_free(x.store);
    return code;
}

static int run_render(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, CMD_WORDS_MAX, &a, &code))
        return code;
    bool clients = str_eq_c(str_of(a.words[0]), "clients");
    if (!clients && !str_eq_c(str_of(a.words[0]), "units"))
        return cmd_usage(c, "cannot render '%.60s': only 'units' and 'clients'", a.words[0]);
    if (clients && cmd_given(c, &a, "verify"))
        return cmd_usage(c, "--verify is for units; 'berth check' proves files of clients");
    if (!clients && (cmd_given(c, &a, "write") || cmd_given(c, &a, "replace")))
        return cmd_usage(c, "--write and --replace are for clients; 'berth deploy' installs units");
    if (clients && cmd_given(c, &a, "write") && cmd_given(c, &a, "out"))
        return cmd_usage(c, "--write puts each file where the fleet says, --out into a folder: say one");
    if (clients && cmd_given(c, &a, "replace") && !cmd_given(c, &a, "write"))
        return cmd_usage(c, "--replace goes with --write");
    if (clients)
        return render_clients(c, &a);
    if (cmd_given(c, &a, "verify") && !cmd_given(c, &a, "out"))
        return cmd_usage(c, "--verify needs --out: what is verified are files");
    return cmd_on_fleet(c, &a, render);
}

const struct cmd cmd_render = {
    .name = "render",
    .synopsis = "units|clients [NAME...] [--out FOLDER | --write] [-f FILE]",
    .summary = "write units of services, and the files of clients",
    .description = "units: prints the unit of each service that has 'unit: systemd' (a .service file) or 'unit: quadlet' (a .container file with its health check), as it would be on this machine; nothing is installed. The runtime and the model's "
                   "folder must be here: a unit names both by their paths.\n\n"
                   "A .service file starts the engine through its own tree's loader, as an account of its own that sees the machine read-only; a card stays visible, kernels that the engine compiles are kept, and it is started again "
                   "whatever its exit code was. A .container file names its image by digest and uses the machine's network, so that an engine on loopback stays there. Keys that this machine's systemd or Podman does not know are left out.\n\n"
                   "clients: prints the file of each client that the fleet declares, for opencode, Continue, Aider, LiteLLM or as JSON: address, endpoints, what one slot holds, the longest answer, images and sound, efforts of reasoning. "
                   "--write puts it where the fleet says; a file that is there and differs is only taken away with --replace. No key is written, only the name of the variable that holds it.",
    .examples = "berth render units\nberth render units medium --out units --verify\nberth render clients\nberth render clients laptop --write",
    .options = {CMD_OPTION_FILE, {'o', "out", "FOLDER", "write files into FOLDER instead of printing"}, {0, "verify", NULL, "have systemd-analyze or Podman's generator read the units"},
                {0, "write", NULL, "write files of clients where the fleet says"}, {0, "replace", NULL, "with --write: also over files that differ"}, {0, "headers", "FOLDER", "take models' headers from FOLDER, for files of clients"}},
    .run = run_render,
};
