/* SPDX-License-Identifier: MIT
 *
 * httpio, inside: what server and client share. Deadlines are not timers of their own: an owner has one `sweep`, is asked to look over its objects when the
 * earliest deadline that it named has come, and names the next one while it looks. Work that must not happen in the middle of somebody's call waits in an
 * owner's list for its `soon` timer, which strikes before the loop waits again.
 */
#pragma once

#include <sys/queue.h>

#include "httpio.h"

/* Sweeps are at least this far apart, so that thousands of deadlines cost no more than a walk now and then. */
#define HTTPIO_SWEEP_MS 50

struct httpio_sweep {
    struct net_loop *loop;
    struct net_timer *timer;
    uint64_t due; /* when the timer strikes; UINT64_MAX: it does not run */
    void (*look)(void *ctx);
    void *ctx;
};

/* look is the last thing that a sweep does: it may free the sweep's owner. */
int httpio_sweep_init(struct httpio_sweep *s, struct net_loop *l, void (*look)(void *ctx), void *ctx) BASE_MUST_USE;
void httpio_sweep_release(struct httpio_sweep *s);
/* A look no later than shortly after due. */
void httpio_sweep_want(struct httpio_sweep *s, uint64_t due);

/* a + b, or never when it does not fit. */
static inline uint64_t httpio_later(uint64_t a, uint64_t b)
{
    return b < UINT64_MAX - a ? a + b : UINT64_MAX;
}

/* Takes all entries of list `from` over to the empty list `to`. */
#define HTTPIO_LIST_MOVE(to, from, link)                             \
    do {                                                             \
        (to)->lh_first = (from)->lh_first;                           \
        if ((to)->lh_first)                                          \
            (to)->lh_first->link.le_prev = &(to)->lh_first;          \
        (from)->lh_first = NULL;                                     \
    } while (0)

/* The JSON body of an error that httpio itself answers. message is outside text. */
void httpio_error_body(struct buf *out, const char *message, const char *type, unsigned code);

/* "Sun, 06 Nov 1994 08:49:37 GMT". Returns out. */
#define HTTPIO_DATE 32
const char *httpio_date(uint64_t real_s, char out[HTTPIO_DATE]);

/* True for a field that httpio alone writes: Content-Length, Transfer-Encoding, Connection. */
bool httpio_field_ours(struct str name);

/* The parts of one chunk: what is corked before it, its size line, its data. Returns the number of parts; line is scratch memory. */
size_t httpio_chunk(struct str data, char line[HTTP_CHUNK_LINE], struct str parts[3]);
