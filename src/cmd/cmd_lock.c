/* SPDX-License-Identifier: MIT
 *
 * berth lock: what the fleet's models are at this moment, written down beside the fleet file; and --check: what is different upstream from what was written down.
 */
#include "pull_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <string.h>

/* ---- finding out ---------------------------------------------------------------------------------------------------------- */

struct locking {
    struct pull_session *s;
    const struct fleet_model *m;
    struct fleet_lock_file *files;
    size_t n, cap;
};

/* A file on this machine: of a folder of one's own, or fetched from a plain server. */
static int add_local(void *ctx, const char *role, const char *file, struct err *err)
{
    struct locking *l = ctx;
    struct arena *a = l->s->arena;
    base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
    int r = store_payload_path(l->s->store, l->m, file, &path, err);
    if (r < 0)
        return r;
    struct store_check c = {.path = path.ptr, .want = {.path = file}};
    const struct store_verify_options o = {.sink = &l->s->sink, .record = true};
    struct fleet_lock_file *list = arena_grow(a, l->files, l->n + 1, &l->cap, sizeof *list);
    r = list ? store_verify(l->s->store, &c, 1, &o, err) : err_nomem(err);
    char hex[OS_SHA256_HEX];
    if (r == 0 && c.verdict == STORE_MISSING && l->m->source != FLEET_MODEL_FILE)
        r = err_set(err, -ENOENT, "model '%s': its %s '%s' is not here yet: a plain server tells no digests, so 'berth pull %s' comes first", l->m->name, role, file, l->m->name);
    else if (r == 0 && c.verdict != STORE_PROVEN && c.verdict != STORE_UNCHANGED && c.verdict != STORE_RECORDED)
        r = err_set(err, c.why.code < 0 ? c.why.code : -EBADMSG, "model '%s': its %s '%s': %s", l->m->name, role, path.ptr, c.why.text);
    if (r == 0) {
        l->files = list;
        l->files[l->n] = (struct fleet_lock_file){.path = arena_dup(a, str_of(file)), .bytes = c.bytes, .sha256 = arena_dup(a, str_of(os_hex(c.sha256, sizeof c.sha256, hex)))};
        r = l->files[l->n].path && l->files[l->n].sha256 ? 0 : err_nomem(err);
        l->n++;
    }
    store_check_release(&c);
    return r;
}

static int find_out(struct pull_session *s, const struct fleet_model *m, struct fleet_lock_model *ret, struct err *err)
{
    struct locking l = {.s = s, .m = m};
    base_autobuf struct buf source = BUF_INIT(PULL_PATH_MAX);
    fleet_source_text(s->fleet, m, &source);
    char *text = buf_status(&source) < 0 ? NULL : arena_dup(s->arena, buf_str(&source));
    if (!text)
        return err_nomem(err);
    int r;
    if (m->source == FLEET_MODEL_HF) {
        r = pull_hub(s, err);
        if (r == 0)
            r = hub_resolve(s->hub, m, s->arena, ret, err);
    } else {
        r = store_payload_each(m, add_local, &l, err);
        if (r == 0)
            *ret = (struct fleet_lock_model){.name = m->name, .files = l.files, .n_files = l.n};
    }
    if (r == 0)
        ret->source = text;
    return r;
}

/* ---- comparing --------------------------------------------------------------------------------------------------------------- */

enum change { SAME, NEW, MOVED /* another commit, the same files */, CHANGED };

static bool same_file(const struct fleet_lock_file *a, const struct fleet_lock_file *b)
{
    const char *x = a->sha256 ? a->sha256 : a->git_sha1, *y = b->sha256 ? b->sha256 : b->git_sha1;
    return a->bytes == b->bytes && x && y && strcmp(x, y) == 0;
}

/* Files that are different, as lines. */
static size_t compare_files(const struct fleet_lock_model *old, const struct fleet_lock_model *now, struct buf *out)
{
    size_t n = 0;
    for (size_t i = 0; i < now->n_files; i++) {
        const struct fleet_lock_file *f = fleet_lock_find_file(old, now->files[i].path);
        if (f && same_file(f, &now->files[i]))
            continue;
        const char *digest = now->files[i].sha256 ? now->files[i].sha256 : now->files[i].git_sha1;
        buf_addf(out, "  %s %s (%.12s%s%.12s)\n", now->files[i].path, f ? "changed" : "is new", f ? (f->sha256 ? f->sha256 : f->git_sha1) : "", f ? " -> " : "", digest);
        n++;
    }
    for (size_t i = 0; i < old->n_files; i++)
        if (!fleet_lock_find_file(now, old->files[i].path)) {
            buf_addf(out, "  %s is not named any more\n", old->files[i].path);
            n++;
        }
    return n;
}

static enum change compare(const struct fleet_lock_model *old, const struct fleet_lock_model *now, struct buf *lines)
{
    if (!old)
        return NEW;
    if (compare_files(old, now, lines))
        return CHANGED;
    return old->commit && now->commit && strcmp(old->commit, now->commit) != 0 ? MOVED : SAME;
}

static const char *change_text(enum change c, bool check)
{
    static const char *const words[] = {"as locked", "locked", "moved, same files", "changed"};
    return c == NEW && check ? "not locked" : words[c];
}

/* ---- the result ------------------------------------------------------------------------------------------------------------------ */

struct report {
    struct os_table *table;
    struct json_out *json;
    struct buf lines;
    bool check;
    size_t n_changed;
};

static void add_row(struct report *r, const struct fleet_lock_model *m, enum change c)
{
    uint64_t bytes = 0;
    char size[UNITS_TEXT];
    for (size_t i = 0; i < m->n_files; i++)
        bytes += m->files[i].bytes;
    r->n_changed += c == CHANGED || (c == NEW && r->check);
    if (r->json) {
        json_out_obj(r->json, NULL);
        json_out_cstr(r->json, "model", m->name);
        json_out_cstr(r->json, "source", m->source);
        json_out_cstr(r->json, "commit", m->commit);
        json_out_u64(r->json, "files", m->n_files);
        json_out_u64(r->json, "bytes", bytes);
        json_out_cstr(r->json, "state", change_text(c, r->check));
        json_out_end(r->json);
        return;
    }
    os_table_cell(r->table, OS_BOLD, "%s", m->name);
    os_table_cell(r->table, OS_PLAIN, "%.12s", m->commit ? m->commit : "-");
    os_table_cell(r->table, OS_PLAIN, "%zu", m->n_files);
    os_table_cell(r->table, OS_PLAIN, "%s", units_show_bytes(bytes, size));
    os_table_cell(r->table, c == CHANGED ? OS_YELLOW : c == SAME ? OS_GREEN : OS_PLAIN, "%s", change_text(c, r->check));
}

static void add_failed(struct report *r, const char *model, const char *why)
{
    if (r->json) {
        json_out_obj(r->json, NULL);
        json_out_cstr(r->json, "model", model);
        json_out_cstr(r->json, "error", why);
        json_out_end(r->json);
        return;
    }
    os_table_cell(r->table, OS_BOLD, "%s", model);
    os_table_cell(r->table, OS_PLAIN, "-");
    os_table_cell(r->table, OS_PLAIN, "-");
    os_table_cell(r->table, OS_PLAIN, "-");
    os_table_cell(r->table, OS_RED, "failed");
}

static int report_open(struct report *r, bool json, bool check)
{
    static const char *const headings[] = {"MODEL", "COMMIT", "FILES", "SIZE", "STATE"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    *r = (struct report){.check = check, .lines = BUF_INIT(1u << 20)};
    if (json)
        r->json = json_out_new();
    else
        r->table = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!r->json && !r->table)
        return cmd_nomem();
    if (json)
        json_out_arr(r->json, NULL);
    return CMD_OK;
}

static int report_close(struct report *r)
{
    int code;
    if (r->json) {
        json_out_end(r->json);
        code = cmd_print_json(r->json);
    } else {
        code = cmd_print_table(r->table);
        if (code == CMD_OK && r->lines.len)
            code = cmd_print(buf_str(&r->lines));
    }
    buf_release(&r->lines);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------------ */

/* What a runtime is pinned by: the digest that it is declared with, else that of what is installed, else what the old lock has. False: nothing is known yet. */
static bool find_runtime(struct pull_session *s, const struct fleet_runtime *rt, struct fleet_lock_runtime *ret)
{
    base_autobuf struct buf source = BUF_INIT(PULL_PATH_MAX);
    const struct fleet_lock_runtime *old = fleet_lock_of_runtime(s->fleet, rt);
    struct store_runtime found;
    fleet_runtime_text(rt, &source);
    *ret = (struct fleet_lock_runtime){.name = rt->name, .source = arena_dup(s->arena, buf_str(&source)), .digest = rt->digest};
    if (!rt->digest && store_runtime_find(s->store, rt, &found, NULL) == 0) {
        ret->digest = found.digest[0] ? arena_dup(s->arena, str_of(found.digest)) : NULL;
        store_runtime_release(&found);
    }
    if (!ret->digest && old)
        *ret = *old;
    return ret->source && ret->digest;
}

/* The new lock: what was found out, and what the old one has of models that were not asked about. Models that the fleet has no more go. */
static int write_lock(struct pull_session *s, struct fleet_lock_model *found, size_t n, struct err *err)
{
    const struct fleet *f = s->fleet;
    base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX);
    struct fleet_lock_model *all = arena_alloc(s->arena, f->n_models + 1, sizeof *all);
    struct fleet_lock_runtime *runtimes = arena_alloc(s->arena, f->n_runtimes + 1, sizeof *runtimes);
    struct fleet_lock lock = {.models = all, .runtimes = runtimes};
    if (!all || !runtimes)
        return err_nomem(err);
    for (size_t i = 0; i < f->n_runtimes; i++)
        lock.n_runtimes += find_runtime(s, &f->runtimes[i], &runtimes[lock.n_runtimes]);
    for (size_t i = 0; i < f->n_models; i++) {
        const struct fleet_lock_model *m = fleet_lock_of(f, &f->models[i]);
        for (size_t k = 0; k < n; k++)
            if (strcmp(found[k].name, f->models[i].name) == 0)
                m = &found[k];
        if (m)
            all[lock.n_models++] = *m;
    }
    fleet_lock_path(f->file, &path);
    return buf_status(&path) < 0 ? err_nomem(err) : fleet_lock_write(&lock, path.ptr, err);
}

static int lock_models(struct pull_session *s, const struct cmd_args *a, struct report *r)
{
    const struct fleet *f = s->fleet;
    struct fleet_lock_model *found = arena_alloc(s->arena, f->n_models + 1, sizeof *found);
    size_t n = 0;
    bool failed = false;
    struct err err;
    if (!found)
        return cmd_nomem();
    for (size_t i = 0; i < f->n_models; i++) {
        if (!pull_wants(a, &f->models[i]))
            continue;
        if (find_out(s, &f->models[i], &found[n], &err) < 0) {
            failed = true;
            add_failed(r, f->models[i].name, err.text);
            if (err.code == -EINTR)
                return cmd_failf(CMD_FAILED, "interrupted: nothing was written");
            (void)cmd_fail(CMD_FAILED, &err);
            continue;
        }
        base_autobuf struct buf lines = BUF_INIT(1u << 20);
        enum change c = compare(fleet_lock_of(f, &f->models[i]), &found[n], &lines);
        add_row(r, &found[n++], c);
        if (c == CHANGED)
            buf_addf(&r->lines, "%s:\n%s", f->models[i].name, lines.ptr ? lines.ptr : "");
    }
    if (!r->check && n && write_lock(s, found, n, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    return failed || (r->check && r->n_changed) ? CMD_FAILED : CMD_OK;
}

static int run_lock(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    struct pull_session s;
    struct report r;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code))
        return code;
    struct fleet *f = pull_fleet(c, &a, &code);
    if (!f)
        return code;
    if (!f->n_models) {
        code = cmd_failf(CMD_FAILED, "%s declares no models", f->file);
        fleet_free(f);
        return code;
    }
    code = pull_open(&s, f);
    if (code == CMD_OK)
        code = pull_read_options(&s, c, &a);
    os_interrupt_begin();
    if (code == CMD_OK && (code = report_open(&r, cmd_given(c, &a, "json"), cmd_given(c, &a, "check"))) == CMD_OK) {
        code = lock_models(&s, &a, &r);
        int shown = report_close(&r);
        code = code == CMD_OK ? shown : code;
    }
    pull_close(&s);
    fleet_free(f);
    os_interrupt_end();
    return code;
}

const struct cmd cmd_lock = {
    .name = "lock",
    .synopsis = "[--check] [--json] [-f FILE] [MODEL...]",
    .summary = "pin the models: commit, bytes and sha256 of every file",
    .description =
        "Asks the hub what every model of the fleet is at its revision and writes it to fleet.lock beside the fleet file: the commit, and of exactly the files that the fleet names (a split set means all its parts) the bytes and the sha256, "
        "or git's sha1 for small files. Files of file: and https: sources are hashed as they are on this machine. With names, only those models are looked at; the others stay as they are.\n\n"
        "A locked model is fetched at its commit, whatever is published later, and lies in a folder of its own, so that the one before it stays until 'berth purge'.\n\n"
        "--check writes nothing and says what is different upstream from what is locked: exit 1 when a file changed, is gone, or is not locked. A new commit with the same files is no change.",
    .examples = "berth lock\n"
                "berth lock --check\n"
                "berth lock qwen-27b && berth pull qwen-27b",
    .options = {CMD_OPTION_FILE, CMD_OPTION_JSON, {0, "check", NULL, "compare with what is upstream; write nothing"}, PULL_OPTIONS},
    .run = run_lock,
};
