/* SPDX-License-Identifier: MIT
 *
 * berth verify: proves the files of models against fleet.lock, or against what they were when they were first seen, and that split sets belong together. What was proven and is unchanged since costs one stat.
 */
#include "verify_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool verify_sound(const struct store_check *c)
{
    return c->verdict == STORE_PROVEN || c->verdict == STORE_UNCHANGED || c->verdict == STORE_RECORDED;
}

/* ---- which files ------------------------------------------------------------------------------------------------ */

struct adding {
    struct verify *v;
    const struct fleet_model *m;
};

static int add_file(void *ctx, const char *role, const char *file, struct err *err)
{
    const struct adding *x = ctx;
    struct verify *v = x->v;
    base_autobuf struct buf path = BUF_INIT(16384);
    int r = store_payload_path(v->s.store, x->m, file, &path, err);
    if (r < 0)
        return r;
    struct verify_file *list = arena_grow(v->s.arena, v->files, v->n_files + 1, &v->cap_files, sizeof *list);
    if (!list)
        return err_nomem(err);
    v->files = list;
    struct verify_file *f = &list[v->n_files];
    *f = (struct verify_file){.model = x->m, .role = role, .file = arena_dup(v->s.arena, str_of(file)), .path = arena_dup(v->s.arena, buf_str(&path)), .locked = fleet_lock_of(v->s.fleet, x->m), .same = v->n_files};
    if (!f->file || !f->path)
        return err_nomem(err);
    int pinned = store_pin_of(f->locked, file, v->s.arena, &f->pin, err);
    if (pinned < 0)
        return err_prefix(err, "model '%s'", x->m->name);
    f->unlisted = f->locked && !pinned;
    for (size_t i = 0; i < v->n_files && f->same == v->n_files; i++)
        if (strcmp(list[i].path, f->path) == 0)
            f->same = i;
    v->n_files++;
    return 0;
}

static int collect(struct verify *v, struct err *err)
{
    v->sets = arena_alloc(v->s.arena, v->s.fleet->n_models + 1, sizeof *v->sets);
    if (!v->sets)
        return err_nomem(err);
    int r = 0;
    for (size_t i = 0; r == 0 && i < v->s.fleet->n_models; i++) {
        struct adding x = {.v = v, .m = &v->s.fleet->models[i]};
        if (!pull_wants(v->a, x.m))
            continue;
        v->sets[v->n_sets++].model = x.m;
        r = store_payload_each(x.m, add_file, &x, err);
    }
    v->checks = arena_alloc(v->s.arena, v->n_files + 1, sizeof *v->checks);
    if (r == 0 && !v->checks)
        return err_nomem(err);
    for (size_t i = 0; r == 0 && i < v->n_files; i++) {
        struct verify_file *f = &v->files[i];
        f->check = &v->checks[f->same];
        if (f->same == i)
            f->check->want = f->pin.want;
    }
    return r;
}

/* ---- proving ---------------------------------------------------------------------------------------------------- */

int verify_files(struct verify *v, bool full, struct err *err)
{
    size_t n = 0;
    size_t *of = arena_alloc(v->s.arena, v->n_files + 1, sizeof *of);
    struct store_check *todo = arena_alloc(v->s.arena, v->n_files + 1, sizeof *todo);
    if (!of || !todo)
        return err_nomem(err);
    for (size_t i = 0; i < v->n_files; i++)
        if (v->files[i].same == i && !verify_sound(&v->checks[i])) {
            of[n] = i;
            todo[n++] = (struct store_check){.path = v->files[i].path, .want = v->checks[i].want, .parts = v->files[i].pin.parts, .n_parts = v->files[i].pin.n_parts};
        }
    const struct store_verify_options o = {.full = full, .sink = &v->s.sink};
    int r = store_verify(v->s.store, todo, n, &o, err);
    for (size_t k = 0; k < n; k++) {
        store_check_release(&v->checks[of[k]]);
        v->checks[of[k]] = todo[k];
    }
    return r;
}

/* What the headers of a model's weights say of one another. */
static void check_set(const struct verify *v, struct verify_set *s)
{
    struct store_weights w;
    const char *path = NULL;
    s->checked = true;
    for (size_t i = 0; i < v->n_files; i++) {
        const struct verify_file *f = &v->files[i];
        if (f->model != s->model || strcmp(f->role, "weights") != 0)
            continue;
        path = path ? path : f->path;
        s->checked = s->checked && verify_sound(f->check);
    }
    if (!s->checked || !path || !str_ends(str_of(path), STR(".gguf"))) {
        s->checked = false;
        return;
    }
    if (store_weights_open(path, &w, &s->why) < 0)
        return;
    if (w.verdict < 0)
        s->why = w.why;
    store_weights_release(&w);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static int judge(const struct verify *v)
{
    bool good = true;
    for (size_t i = 0; i < v->n_files; i++)
        good = good && verify_sound(v->files[i].check) && !v->files[i].unlisted;
    for (size_t i = 0; i < v->n_sets; i++)
        good = good && v->sets[i].why.code == 0;
    return good ? CMD_OK : CMD_FAILED;
}

static int verify_all(struct verify *v, struct err *err)
{
    int r = collect(v, err);
    if (r == 0)
        r = verify_files(v, cmd_given(v->c, v->a, "full"), err);
    if (r == 0 && cmd_given(v->c, v->a, "repair"))
        r = verify_repair(v, err);
    for (size_t i = 0; r == 0 && i < v->n_sets; i++)
        check_set(v, &v->sets[i]);
    return r;
}

static int verify_and_print(struct verify *v)
{
    struct err err;
    os_interrupt_begin();
    int r = verify_all(v, &err);
    v->s.progress = os_progress_free(v->s.progress);
    int code = r < 0 ? cmd_fail(CMD_FAILED, &err) : verify_print(v);
    os_interrupt_end();
    return code == CMD_OK ? judge(v) : code;
}

static int run_verify(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    struct verify v = {.c = c, .a = &a};
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code))
        return code;
    struct fleet *f = pull_fleet(c, &a, &code);
    if (!f)
        return code;
    code = pull_open(&v.s, f);
    if (code == CMD_OK && cmd_given(c, &a, "repair"))
        code = pull_lock(&v.s);
    if (code == CMD_OK)
        code = verify_and_print(&v);
    for (size_t i = 0; v.checks && i < v.n_files; i++)
        store_check_release(&v.checks[i]);
    pull_close(&v.s);
    fleet_free(f);
    return code;
}

const struct cmd cmd_verify = {
    .name = "verify",
    .synopsis = "[--full] [--repair] [--json] [-f FILE] [MODEL...]",
    .summary = "prove the files of models, and repair what is damaged",
    .description =
        "Compares every file that the fleet's models name with fleet.lock: bytes and digest, and that the parts of a split set belong together. A file that is not in a lock is recorded the first time and compared with that afterwards.\n\n"
        "What was proven and has not been touched since (inode, size, times of change) is not read again, so that a second run takes milliseconds; --full reads everything from the disk. Files, and pieces of one file, are hashed on all cores. Damage is told by its place.\n\n"
        "--repair fetches only the damaged pieces from the hub and proves each; what is missing, or was never proven before, is fetched whole. A file that has other names (hard links) is copied before it is written to. Files of a file: source are never written to.\n\n"
        "Exit 1 when a file is missing, damaged or not in the lock of its model.",
    .examples = "berth verify               # before every start: one stat a file\n"
                "berth verify --full big    # read all of one model from the disk\n"
                "berth verify --repair",
    .options = {CMD_OPTION_FILE,
                CMD_OPTION_JSON,
                {0, "full", NULL, "hash what is unchanged too"},
                {0, "repair", NULL, "fetch what is damaged or missing"}},
    .run = run_verify,
};
