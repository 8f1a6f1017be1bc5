/* SPDX-License-Identifier: MIT
 *
 * Work for another thread, on libuv's pool: what a disk may hold up. The pool's threads are few, which is right for a disk; a resolver, which may hang for long, has its own. What was begun ends before its loop does.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "net_int.h"

struct net_work {
    uint32_t magic;
    uv_work_t uv;
    void (*work)(void *ctx);
    void (*done)(void *ctx);
    void *ctx;
};

static void work_cb(uv_work_t *uv)
{
    const struct net_work *w = uv->data;

    w->work(w->ctx);
}

static void done_cb(uv_work_t *uv, int status)
{
    struct net_work *w = uv->data;
    void (*done)(void *ctx) = w->done;
    void *ctx = w->ctx;

    (void)status; /* cancelled: the owner knows, who did it */
    assert(w->magic == NET_MAGIC_WORK);
    w->magic = NET_MAGIC_DEAD;
    free(w);
    done(ctx);
}

int net_work_new(struct net_loop *l, void (*work)(void *ctx), void (*done)(void *ctx), void *ctx, struct net_work **ret)
{
    if (l->closing)
        return -ECANCELED;
    struct net_work *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    *w = (struct net_work){.magic = NET_MAGIC_WORK, .work = work, .done = done, .ctx = ctx};
    w->uv.data = w;
    int r = uv_queue_work(&l->uv, &w->uv, work_cb, done_cb);
    if (r < 0) {
        free(w);
        return r;
    }
    *ret = w;
    return 0;
}

void net_work_cancel(struct net_work *w)
{
    assert(w->magic == NET_MAGIC_WORK);
    base_ignore(uv_cancel((uv_req_t *)&w->uv)); /* -EBUSY: it has begun */
}
