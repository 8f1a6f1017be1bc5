/* SPDX-License-Identifier: MIT
 *
 * berth purge: lists the payload files that nothing uses, and removes them when it is told to.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <engine/engine.h>
#include <errno.h>
#include <stdio.h>
#include <store/store.h>
#include <string.h>
#include <unistd.h>

static const char *kind_of(const struct store_garbage *g)
{
    static const char *const names[] = {[STORE_GARBAGE_PAYLOAD] = "payload", [STORE_GARBAGE_PARTIAL] = "partial", [STORE_GARBAGE_MANIFEST] = "manifest"};
    return names[g->kind];
}

static int print_json(const struct store_purge *p)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_obj(o, NULL);
    json_out_arr(o, "unused");
    for (size_t i = 0; i < p->n; i++) {
        const struct store_garbage *g = &p->list[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "path", g->path);
        json_out_cstr(o, "kind", kind_of(g));
        json_out_u64(o, "bytes", g->bytes);
        json_out_bool(o, "shared", g->shared);
        json_out_bool(o, "removed", g->removed);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_u64(o, "bytes", p->bytes);
    json_out_u64(o, "kept_files", p->n_kept);
    json_out_u64(o, "kept_bytes", p->kept_bytes);
    json_out_end(o);
    return cmd_print_json(o);
}

/* The path below the store, which is the same for all; manifests are too small for a row each. */
static int print_text(const struct store_purge *p, const struct os_dirs *dirs)
{
    static const char *const headings[] = {"FREES", "WHAT", "FILE"};
    static const enum os_align aligns[] = {OS_RIGHT, OS_LEFT, OS_LEFT};
    size_t rows = 0, skip = strlen(dirs->state) + sizeof("/store/payloads/") - 1;
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return cmd_nomem();
    for (size_t i = 0; i < p->n; i++) {
        const struct store_garbage *g = &p->list[i];
        char size[UNITS_TEXT];
        if (g->kind == STORE_GARBAGE_MANIFEST)
            continue;
        os_table_cell(t, OS_PLAIN, "%s", g->shared ? "-" : units_show_bytes(g->bytes, size));
        os_table_cell(t, OS_PLAIN, "%s", g->shared ? "linked elsewhere too" : kind_of(g));
        os_table_cell(t, OS_BOLD, "%s", strlen(g->path) > skip ? g->path + skip : g->path);
        rows++;
    }
    if (rows)
        return cmd_print_table(t);
    os_table_free(t);
    return CMD_OK;
}

static void summarize(const struct store_purge *p, bool removed)
{
    char bytes[UNITS_TEXT], kept[UNITS_TEXT];
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        n += p->list[i].kind != STORE_GARBAGE_MANIFEST;
    for (size_t i = 0; i < p->n_gone; i++)
        (void)fprintf(stderr, "the fleet of %s is not there any more: nothing is kept for it\n", p->gone[i]);
    (void)fprintf(stderr, "%zu file%s, %s %s; %zu in use, %s\n", n, n == 1 ? "" : "s", units_show_bytes(p->bytes, bytes), removed ? "freed" : n ? "to free: 'berth purge --yes' removes them" : "to free",
                  p->n_kept, units_show_bytes(p->kept_bytes, kept));
}

/* ---- what changed upstream ---------------------------------------------------------------------------------------- */

static int run_other(const struct cmd *c, const char *file, const char *option)
{
    const char *argv[] = {c->name, "--file", file, option, NULL};
    return c->run(c, option ? 4 : 3, (char **)argv);
}

/* Locks and fetches again what is another file upstream than it was. The lock goes back to what it was when that cannot be fetched: what it pinned is still here. */
static int refresh(const char *file)
{
    struct fleet_lock *old = NULL;
    base_autobuf struct buf path = BUF_INIT(8192);
    struct err err;
    fleet_lock_path(file, &path);
    if (buf_status(&path) < 0)
        return cmd_nomem();
    int r = fleet_lock_load(path.ptr, &old, &err);
    if (r < 0 && r != -ENOENT)
        return cmd_fail(CMD_FAILED, &err);
    int code = old ? run_other(&cmd_lock, file, NULL) : CMD_OK; /* without a lock, pull asks what there is */
    if (code == CMD_OK)
        code = run_other(&cmd_pull, file, NULL);
    if (code != CMD_OK && old && fleet_lock_write(old, path.ptr, &err) < 0)
        (void)cmd_fail(CMD_FAILED, &err);
    fleet_lock_free(old);
    return code;
}

static int find_stale(const struct cmd *c, struct cmd_args *a, int argc, char **argv)
{
    const char *file = cmd_value(c, a, "file") ? cmd_value(c, a, "file") : "fleet.yaml";
    int code = CMD_OK;
    if (cmd_given(c, a, "json"))
        return cmd_usage(c, "--stale prints no JSON; 'berth lock --check --json' tells what changed");
    if (cmd_given(c, a, "yes"))
        code = refresh(file);
    else if (run_other(&cmd_lock, file, "--check") == CMD_USAGE)
        code = CMD_USAGE;
    /* messages are this command's again */
    return cmd_parse(c, argc, argv, 0, 0, a, &(int){CMD_OK}) ? code : CMD_USAGE;
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

/* The fleet of option -f counts too, whether it was ever used here or not. Without -f there may be none. */
static struct fleet *optional_fleet(const struct cmd *c, const struct cmd_args *a, int *ret_exit)
{
    if (!cmd_given(c, a, "file") && access("fleet.yaml", F_OK) < 0)
        return NULL;
    return cmd_fleet(c, a, ret_exit);
}

static int run_purge(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    struct os_dirs dirs = {.state = NULL};
    struct store *store = NULL;
    struct store_purge p = {.n = 0};
    struct err err;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, 0, &a, &code))
        return code;
    if (cmd_given(c, &a, "stale"))
        code = find_stale(c, &a, argc, argv);
    if (code != CMD_OK)
        return code;
    struct fleet *f = optional_fleet(c, &a, &code);
    struct fleet_options options = engine_fleet_options();
    const struct store_purge_options o = {.fleet = f, .fleet_options = &options, .remove = cmd_given(c, &a, "yes")};
    if (code == CMD_OK && (os_dirs_find(&dirs, &err) < 0 || store_open(&dirs, &store, &err) < 0 || store_purge(store, &o, &p, &err) < 0))
        code = cmd_fail(CMD_FAILED, &err);
    if (p.arena)
        code = cmd_given(c, &a, "json") ? print_json(&p) : print_text(&p, &dirs);
    if (p.arena)
        summarize(&p, o.remove);
    if (p.arena)
        store_purge_release(&p);
    store_free(store);
    os_dirs_release(&dirs);
    fleet_free(f);
    return code;
}

const struct cmd cmd_purge = {
    .name = "purge",
    .synopsis = "[--stale] [--yes] [--json] [-f FILE]",
    .summary = "list and remove the files of models that nothing uses",
    .description =
        "Lists what is in berth's payload folder and used by no fleet that this machine knows (each that was ever locked, pulled or started here, as its file says now), by no fleet that is up as it was started, and by no version that a "
        "deployment keeps to go back to. What interrupted fetches have left of such files is listed too. Nothing is removed without --yes.\n\n"
        "--stale looks first for what is another file upstream than fleet.lock pins; with --yes that is locked and fetched anew, and the old one goes when it is here and proven, unless a version or a fleet that is up still uses it.\n\n"
        "Files of a file: source are never touched. When the file of a known fleet cannot be read, nothing is removed, for nobody knows what it uses.",
    .examples = "berth purge                # what could go, and how much that frees\nberth purge --yes",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "yes", NULL, "remove what is listed"}, {0, "stale", NULL, "replace what was changed upstream"}},
    .run = run_purge,
};
