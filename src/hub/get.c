/* SPDX-License-Identifier: MIT
 *
 * A whole small answer, or a part of a file, in memory: one exchange after the other until there is one, or until trying is pointless. For the hub's API and for headers of remote files.
 */
#include "hub_int.h"

#include <errno.h>

struct get {
    struct hub_job job;
    struct hub *hub;
    struct hub_exchange x;
    struct buf *out;
    size_t before;        /* of out */
    char url[HUB_URL_MAX];
    const char *first_url;
    struct hub_ask ask;   /* of a part */
    uint64_t total;       /* of the file that it is a part of */
    unsigned tries, redirects;
    uint64_t again_us, moved_us;
    uint64_t seen;        /* of the body at moved_us: where a stretch of stall_us begins */
    bool running, done, too_big, page, no_parts;
    int code;
    struct err err;
};

static void finish(struct get *g, int code)
{
    g->code = code;
    g->done = true;
}

/* Whether the answer is just the part that was asked for. */
static bool is_part(struct get *g, const struct hub_head *h)
{
    g->page = strcmp(h->type, "text/html") == 0;
    g->no_parts = h->status != 206 || !h->has_range || h->range.from != g->ask.from || h->range.total == HUB_UNKNOWN || h->range.to != (g->ask.to < h->range.total ? g->ask.to : h->range.total - 1) || h->encoded;
    g->total = h->range.total;
    return !g->page && !g->no_parts;
}

static bool on_head(struct hub_exchange *x)
{
    struct get *g = x->owner;
    if (x->head.status >= 300)
        return true;
    return !x->head.bad && (g->ask.from == HUB_UNKNOWN || is_part(g, &x->head));
}

static size_t on_body(struct hub_exchange *x, const char *data, size_t n)
{
    struct get *g = x->owner;
    if (x->head.status >= 300)
        return x->body_bytes + n <= HUB_REFUSAL_BYTES_MAX ? n : 0; /* what a refusal says is in its head */
    buf_add(g->out, data, n);
    g->too_big = buf_status(g->out) == -E2BIG;
    return buf_status(g->out) < 0 ? 0 : n;
}

static void retry(struct get *g, uint64_t now_us)
{
    if (++g->tries > g->hub->retries) {
        finish(g, err_prefix(&g->err, "given up after %u tries", g->tries));
        return;
    }
    uint64_t pause = g->x.head.wait_ms * 1000;
    if (pause < hub_pause_us(g->tries))
        pause = hub_pause_us(g->tries);
    g->again_us = now_us + pause;
}

static void on_end(struct hub_exchange *x, CURLcode code)
{
    struct get *g = x->owner;
    char shown[HUB_SHOWN_MAX];
    g->running = false;
    if (g->page || g->no_parts || g->too_big || x->head.bad) {
        finish(g, err_set(&g->err, g->page ? -EMEDIUMTYPE : -EPROTO, "%s: %s", hub_show(g->hub, g->url, shown),
                          g->page ? "the server sends a web page instead of the file" : g->no_parts ? "the server sends no parts of files" : g->too_big ? "the answer is too large" : "the answer contradicts itself"));
        return;
    }
    switch (hub_judge(x, code, &g->err)) {
    case HUB_GOOD:
        finish(g, 0);
        break;
    case HUB_REDIRECT:
        if (++g->redirects > HUB_REDIRECTS)
            finish(g, err_set(&g->err, -ELOOP, "%s: over %d redirects", hub_show(g->hub, g->url, shown), HUB_REDIRECTS));
        else if (hub_url_follow(g->hub, g->url, x->head.location, g->url, &g->err) < 0)
            finish(g, g->err.code);
        break;
    case HUB_AGAIN:
        retry(g, hub_now_us());
        break;
    case HUB_EXPIRED:
        if (strcmp(g->url, g->first_url) != 0) { /* the hub gives a new address */
            memcpy(g->url, g->first_url, strlen(g->first_url) + 1);
            retry(g, hub_now_us());
            break;
        }
        finish(g, g->err.code);
        break;
    case HUB_HOPELESS:
        finish(g, g->err.code);
        break;
    }
}

static void begin(struct get *g, uint64_t now_us)
{
    g->out->len = g->before;
    g->seen = 0;
    g->moved_us = now_us;
    if (hub_exchange_begin(&g->x, g->url, &g->ask, &g->err) < 0)
        finish(g, g->err.code);
    else
        g->running = true;
}

/* A byte now and then is no answer: enough must come in each stretch of time. */
static void look_at_pace(struct get *g, uint64_t now_us)
{
    uint64_t came = g->x.body_bytes - g->seen;
    if (now_us - g->moved_us <= g->hub->stall_us + (g->x.head_complete ? 0 : (uint64_t)HUB_CONNECT_MS * 1000))
        return;
    if (came && came >= g->hub->stall_us / 1000000 * HUB_STALL_BYTES_S) {
        g->seen = g->x.body_bytes;
        g->moved_us = now_us;
        return;
    }
    char shown[HUB_SHOWN_MAX];
    hub_exchange_cancel(&g->x);
    g->running = false;
    (void)err_set(&g->err, -ETIMEDOUT, "%s: %s", hub_show(g->hub, g->url, shown), came ? "the answer comes too slowly" : "the server says nothing");
    retry(g, now_us);
}

static int64_t step(struct hub_job *job, bool stop, uint64_t now_us)
{
    struct get *g = base_container(job, struct get, job);
    if (stop && !g->done) {
        hub_exchange_cancel(&g->x);
        finish(g, err_set(&g->err, -EINTR, "interrupted"));
    }
    if (g->done)
        return -1;
    if (g->running)
        look_at_pace(g, now_us);
    if (!g->running && !g->done && now_us >= g->again_us)
        begin(g, now_us);
    if (g->done)
        return 0;
    return g->running ? 200000 : (int64_t)(g->again_us > now_us ? g->again_us - now_us : 0);
}

static int get(struct hub *h, const char *url, const char *start, const struct hub_ask *ask, struct buf *out, struct get **ret, struct err *err)
{
    if (strlen(url) >= HUB_URL_MAX)
        return err_set(err, -ENAMETOOLONG, "an address of over %d bytes", HUB_URL_MAX - 1);
    struct get *g = calloc(1, sizeof *g);
    if (!g)
        return err_nomem(err);
    memcpy(g->url, start, strlen(start) + 1);
    g->job.step = step;
    g->hub = h;
    g->first_url = url;
    g->ask = *ask;
    g->out = out;
    g->before = out->len;
    g->x = (struct hub_exchange){.hub = h, .on_head = on_head, .on_body = on_body, .on_end = on_end, .owner = g};
    int r = hub_run(h, &g->job, err);
    if (r == 0 && g->code < 0)
        r = err_set(err, g->code, "%s", g->err.text);
    *ret = g;
    return r;
}

int hub_get(struct hub *h, const char *url, struct buf *out, char *next, struct err *err)
{
    const struct hub_ask whole = {.from = HUB_UNKNOWN, .to = HUB_UNKNOWN};
    struct get *g = NULL;
    int r = get(h, url, url, &whole, out, &g, err);
    if (r == 0 && next && g->x.head.next[0])
        r = hub_url_follow(h, g->url, g->x.head.next, next, err);
    else if (r == 0 && next)
        next[0] = '\0';
    free(g);
    return r;
}

int hub_get_part(struct hub *h, const char *url, char *resolved, uint64_t from, uint64_t to, struct buf *out, uint64_t *ret_total, struct err *err)
{
    const struct hub_ask part = {.from = from, .to = to};
    struct get *g = NULL;
    int r = get(h, url, resolved[0] ? resolved : url, &part, out, &g, err);
    if (r == 0) {
        memcpy(resolved, g->url, sizeof g->url);
        *ret_total = g->total;
    }
    free(g);
    return r;
}
