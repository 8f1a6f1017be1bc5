/* SPDX-License-Identifier: MIT
 *
 * Headers of models that are not here yet, so that berth fit can plan before anything large is fetched: some megabytes by ranges, kept in the store. What cannot be had is said, and the plan then says what is missing.
 */
#include "pull_int.h"

#include <gguf/gguf.h>
#include <unistd.h>

#define RETRIES 2 /* who plans waits for it */

struct fetching {
    const struct store *store;
    const struct fleet_model *m;
    struct pull_session *s;
    bool away;
};

/* 1 when the header of a file can be read here, from the file or the copy of its header; 0 when it cannot. */
static int is_here(const struct store *store, const struct fleet_model *m, const char *file, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(PULL_PATH_MAX), header = BUF_INIT(PULL_PATH_MAX);
    int r = store_payload_path(store, m, file, &path, err);
    if (r == 0)
        r = store_header_path(store, m, file, &header, err);
    return r < 0 ? r : access(path.ptr, F_OK) == 0 || access(header.ptr, F_OK) == 0;
}

static int look(void *ctx, const char *role, const char *file, struct err *err)
{
    struct fetching *g = ctx;
    (void)role;
    int r = is_here(g->store, g->m, file, err);
    g->away |= r == 0;
    return r < 0 ? r : 0;
}

static int fetch_header(void *ctx, const char *role, const char *file, struct err *err)
{
    struct fetching *g = ctx;
    base_autobuf struct buf url = BUF_INIT(PULL_PATH_MAX);
    struct gguf_source src = {.size = 0};
    struct gguf *gguf = NULL;
    (void)role;
    int r = is_here(g->store, g->m, file, err);
    if (r)
        return r < 0 ? r : 0;
    r = pull_hub(g->s, err);
    if (r == 0)
        r = pull_url(g->s, g->m, g->m->commit ? g->m->commit : g->m->revision, file, &url, err);
    if (r < 0)
        return r;
    os_progress_set(g->s->progress, file, "reading the header", 0, 0, OS_PLAIN);
    r = hub_source_open(g->s->hub, url.ptr, &src, err);
    if (r == 0)
        r = gguf_open(&src, &gguf, err);
    if (r == 0)
        r = store_header_save(g->s->store, g->m, file, &src, gguf, err);
    gguf_free(gguf);
    hub_source_close(&src);
    os_progress_set(g->s->progress, file, r == 0 ? "header read from afar" : "header cannot be read", 0, 0, r == 0 ? OS_GREEN : OS_YELLOW);
    return r;
}

/* A model whose headers are to be fetched, or about which something is to be said. */
static bool is_away(const struct store *store, const struct fleet_model *m)
{
    struct fetching g = {.store = store, .m = m};
    return m && m->source != FLEET_MODEL_FILE && (store_payload_each(m, look, &g, NULL) < 0 || g.away);
}

int pull_headers(const struct fleet *f, const struct store *store, const struct fleet_service *only)
{
    struct pull_session s;
    bool away[FLEET_SERVICES_MAX], any = false;
    for (size_t i = 0; i < f->n_services; i++) {
        away[i] = (!only || only == &f->services[i]) && is_away(store, f->services[i].model);
        any |= away[i];
    }
    if (!any)
        return CMD_OK;
    int code = pull_open(&s, f);
    s.options.retries = RETRIES;
    os_interrupt_begin();
    for (size_t i = 0; code == CMD_OK && i < f->n_services && !os_interrupted(); i++) {
        struct fetching g = {.store = s.store, .m = f->services[i].model, .s = &s};
        struct err err;
        if (away[i] && store_payload_each(g.m, fetch_header, &g, &err) < 0)
            os_progress_say(s.progress, OS_YELLOW, "%s: %s", g.m->name, err.text);
    }
    pull_close(&s);
    os_interrupt_end();
    return code;
}
