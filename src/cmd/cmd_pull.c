/* SPDX-License-Identifier: MIT
 *
 * berth pull: what the fleet's models need and this machine does not have is fetched, proven while it arrives, and put in its place.
 */
#include "pull_int.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* What is fetched but not there yet, against the room that there is. */
static int check_space(const struct hub_want *wants, size_t n, struct err *err)
{
    uint64_t need = 0;
    for (size_t i = 0; i < n; i++) {
        base_autobuf struct buf part = BUF_INIT(PULL_PATH_MAX);
        struct stat st;
        uint64_t bytes = wants[i].bytes == HUB_UNKNOWN ? 0 : wants[i].bytes, have = 0;
        buf_addf(&part, "%s.part", wants[i].path);
        if (buf_status(&part) == 0 && stat(part.ptr, &st) == 0)
            have = (uint64_t)st.st_blocks * 512;
        if (!size_add(need, have < bytes ? bytes - have : 0, &need))
            return err_set(err, -ERANGE, "the files have too many bytes");
    }
    return n && need ? store_space_check(wants[0].path, need, err) : 0;
}

static int fetch(struct pull_session *s, struct pull_plan *p, struct err *err)
{
    struct hub_want *wants = arena_alloc(s->arena, p->n + 1, sizeof *wants);
    struct pull_item **of = arena_alloc(s->arena, p->n + 1, sizeof(void *));
    int *codes = arena_alloc(s->arena, p->n + 1, sizeof *codes);
    size_t n = 0;
    int r = wants && of && codes ? 0 : err_nomem(err);
    for (size_t i = 0; r == 0 && i < p->n; i++) {
        struct pull_item *item = &p->items[i];
        base_autobuf struct buf url = BUF_INIT(PULL_PATH_MAX);
        if (item->here)
            continue;
        r = pull_hub(s, err);
        if (r == 0)
            r = pull_url(s, item->model, item->commit, item->file, &url, err);
        char *kept = r == 0 ? arena_dup(s->arena, buf_str(&url)) : NULL;
        if (r == 0 && !kept)
            r = err_nomem(err);
        of[n] = item;
        wants[n++] = (struct hub_want){item->subject, kept, item->path, item->want.bytes, item->want.sha256, item->want.git_sha1};
    }
    if (r == 0)
        r = check_space(wants, n, err);
    if (r < 0 || !n)
        return r;
    r = hub_fetch(s->hub, s->store, wants, n, codes, err);
    for (size_t i = 0; i < n; i++) {
        of[i]->code = codes[i];
        of[i]->here = r != -EINTR && codes[i] == 0;
    }
    return r;
}

/* Files as a person counts them: what is joined of fragments is one. */
static void count_files(const struct pull_plan *p, size_t *all, size_t *here, uint64_t *bytes)
{
    struct stat st;
    *all = p->n_joins;
    *here = 0;
    *bytes = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct pull_item *item = &p->items[i];
        *all += !item->joined;
        *here += !item->joined && item->here;
        if (!item->joined && item->here && stat(item->path, &st) == 0)
            *bytes += (uint64_t)st.st_size;
    }
    for (size_t i = 0; i < p->n_joins; i++) {
        *here += p->joins[i].here;
        *bytes += p->joins[i].here ? p->joins[i].pin.want.bytes : 0;
    }
}

static void summarize(struct pull_session *s, const struct pull_plan *p, size_t before)
{
    size_t all, here;
    uint64_t bytes;
    char size[UNITS_TEXT];
    count_files(p, &all, &here, &bytes);
    units_show_bytes(bytes, size);
    base_autobuf struct buf text = BUF_INIT(256);
    if (here < all)
        buf_addf(&text, "%zu of %zu files are here", here, all);
    else if (here > before)
        buf_addf(&text, "%zu file%s here, %s", here, here == 1 ? " is" : "s are", size);
    else
        buf_addf(&text, "%zu file%s here already, %s", here, here == 1 ? " is" : "s are", size);
    if (p->n && buf_status(&text) == 0)
        os_progress_set(s->progress, "total", text.ptr, 0, 0, here < all || p->failed ? OS_YELLOW : OS_GREEN);
    bool full = false;
    for (size_t i = 0; i < p->n; i++)
        full = full || p->items[i].code == -ENOSPC;
    if (full)
        os_progress_say(s->progress, OS_YELLOW, "the disk is full: make room ('berth purge' lists what nothing uses), then 'berth pull' goes on where it stopped");
    if (p->n_unlocked)
        os_progress_say(s->progress, OS_YELLOW, "nothing is pinned for %zu model%s: 'berth lock' writes down commit, bytes and sha256", p->n_unlocked, p->n_unlocked == 1 ? "" : "s");
}

int pull_models(struct pull_session *s, const struct fleet_model *const *models, size_t n)
{
    struct pull_plan p = {.n = 0};
    struct err err = {.code = 0};
    size_t all, before = 0;
    uint64_t bytes;
    for (size_t i = 0; i < n && !os_interrupted(); i++)
        pull_plan_model(s, &p, models[i]);
    int r = pull_plan_here(s, &p, &err);
    count_files(&p, &all, &before, &bytes);
    if (r == 0)
        r = fetch(s, &p, &err);
    bool told = false; /* files that failed have said so */
    for (size_t i = 0; i < p.n; i++)
        told = told || p.items[i].code < 0;
    int joined = r == -EINTR ? 0 : pull_join_all(s, &p, &err);
    if (joined < 0) {
        r = joined;
        told = false;
    }
    if (r != -EINTR)
        summarize(s, &p, before);
    if (r == -EINTR)
        return cmd_failf(CMD_FAILED, "interrupted: what came is kept, and the next 'berth pull' goes on there");
    if (r < 0 && !told)
        return cmd_fail(CMD_FAILED, &err);
    return r < 0 || p.failed ? CMD_FAILED : CMD_OK;
}

static int pull(struct pull_session *s, const struct cmd_args *a)
{
    const struct fleet_model **models = arena_alloc(s->arena, s->fleet->n_models + 1, sizeof(void *));
    size_t n = 0;
    for (size_t i = 0; models && i < s->fleet->n_models; i++)
        if (pull_wants(a, &s->fleet->models[i]))
            models[n++] = &s->fleet->models[i];
    return models ? pull_models(s, models, n) : cmd_nomem();
}

static int run_pull(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    struct pull_session s;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 0, CMD_WORDS_MAX, &a, &code))
        return code;
    struct fleet *f = pull_fleet(c, &a, &code);
    if (!f)
        return code;
    code = pull_open(&s, f);
    if (code == CMD_OK)
        code = pull_read_options(&s, c, &a);
    if (code == CMD_OK)
        code = pull_lock(&s);
    os_interrupt_begin();
    if (code == CMD_OK)
        code = pull(&s, &a);
    pull_close(&s);
    fleet_free(f);
    os_interrupt_end();
    return code;
}

const struct cmd cmd_pull = {
    .name = "pull",
    .synopsis = "[--connections N] [-f FILE] [MODEL...]",
    .summary = "fetch the models' files, proven to the last byte",
    .description =
        "Fetches what the fleet's models name and this machine does not have: every part of a split set, projector, drafter. What fleet.lock pins ('berth lock') is fetched at its commit and compared with its bytes and sha256; without a lock "
        "the hub is asked what it has at this moment.\n\n"
        "Several files and several ranges of each come at once and are hashed as they arrive. A file on its way is NAME.part; NAME itself is replaced by one rename when it is proven, and not touched before. An interrupted pull, even "
        "a killed one, goes on where it stopped. What breaks, stalls or expires is tried again, within limits and with the pauses that the hub asks for; when a digest is wrong only the damaged part is replaced.\n\n"
        "Files of the Hugging Face cache of this account and of other revisions are taken over when they are proven to be the right ones. Fragments (NAME.part1of3) are joined; parts of split GGUF sets are not.\n\n"
        "HF_ENDPOINT names another hub. A token is read from HF_TOKEN, else from the file HF_TOKEN_PATH, HF_HOME/token or ~/.cache/huggingface/token; it goes to the hub itself and to no other host.",
    .examples = "berth pull\n"
                "berth pull qwen-27b --connections 8\n"
                "HF_TOKEN_PATH=/etc/berth/token berth pull -f fleet.yaml",
    .options = {CMD_OPTION_FILE, PULL_OPTIONS},
    .run = run_pull,
};
