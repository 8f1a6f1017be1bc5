/* SPDX-License-Identifier: MIT
 *
 * How many tokens a replica's memory of prompts holds, where nobody declares it: vLLM decides that when it starts, from the memory that is free then, and tells it in its metrics. Each process is asked
 * once it is ready, by the owner's lane, and again until it has said so.
 */
#include <engine/engine.h>

#include "proxy_int.h"

#define ANSWER_MAX ((size_t)4 << 20) /* of metrics: a few hundred kilobytes */
#define ANSWER_MS 5000

static void answered(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct proxy_peer *peer = ctx;
    struct proxy *p = peer->proxy;
    uint64_t tokens;
    bool told = !failed && status == 200 && engine_capacity_parse(body, &tokens, NULL) == 0;
    peer->asking = NULL;
    (void)pthread_mutex_lock(&p->lock);
    if (told && peer->s.life == peer->asked_life && peer->tells[0]) { /* else it was another process's */
        peer->told_life = peer->asked_life;
        peer->told_tokens = peer->s.context = tokens;
    }
    (void)pthread_mutex_unlock(&p->lock);
}

/* Whether it is to be asked; then where. */
static bool wants(struct proxy *p, struct proxy_peer *peer, struct net_addr *ret_addr, char ret_path[PROXY_TELLS_MAX])
{
    (void)pthread_mutex_lock(&p->lock);
    bool asked = peer->s.ready && peer->tells[0] && peer->told_life != peer->s.life;
    peer->asked_life = peer->s.life;
    *ret_addr = peer->target.addr;
    memcpy(ret_path, peer->tells, PROXY_TELLS_MAX);
    (void)pthread_mutex_unlock(&p->lock);
    return asked;
}

static void ask(struct proxy *p)
{
    bool waits = false;
    for (size_t i = 0; i < p->n_peers; i++) {
        struct proxy_peer *peer = p->peers[i];
        struct httpio_request q = {.method = STR("GET"), .fresh = true};
        char path[PROXY_TELLS_MAX];
        if (peer->asking || !wants(p, peer, &q.addr, path))
            continue;
        q.target = str_of(path);
        peer->asking = httpio_fetch(p->lanes->client, &q, ANSWER_MAX, ANSWER_MS, answered, peer);
        waits = true;
    }
    if (waits)
        net_timer_start(p->capacity, p->capacity_ms, 0);
}

static void on_time(void *ctx)
{
    ask(ctx);
}

void proxy_capacity_ask(struct proxy *p)
{
    bool any = false;
    for (size_t i = 0; i < p->n_peers; i++)
        any = any || p->peers[i]->tells[0];
    if (any && !p->capacity)
        p->capacity = net_timer_new(p->lanes->loop, on_time, p);
    if (any && p->capacity)
        ask(p);
}

void proxy_capacity_end(struct proxy *p)
{
    for (size_t i = 0; i < p->n_peers; i++)
        p->peers[i]->asking = httpio_fetch_cancel(p->peers[i]->asking);
    p->capacity = net_timer_close(p->capacity);
}
