/* SPDX-License-Identifier: MIT
 *
 * One connection's answers: what its head promises is compared with what was asked and with what is known, what its body brings goes to its place, and its end says what to do next. Nothing is repaired: an answer that
 * is not exactly what was asked for is refused, with words, and asked for again where that may help.
 */
#include "fetch_int.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#define REFRESHES_MAX 5         /* of a signed address, in a row without a byte */

static void refuse(struct hub_lane *l, bool hopeless, int code, const char *fmt, ...) BASE_PRINTF(4, 5);
static void refuse(struct hub_lane *l, bool hopeless, int code, const char *fmt, ...)
{
    char shown[HUB_SHOWN_MAX], text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    l->hopeless = hopeless;
    (void)err_set(&l->refused, code, "%s: %s", hub_show(l->x.hub, l->x.url, shown), text);
}

/* ---- beginning -------------------------------------------------------------------------------------------------------------- */

void lane_begin(struct hub_lane *l, struct hub_way *w)
{
    const char *url = w->url[0] ? w->url : w->want->url;
    const bool unpinned = !w->pinned && !w->known;
    /* what is pinned is proven by its digest, whatever the server calls it */
    struct hub_ask ask = {.from = l->pos, .to = l->end - 1, .if_range = unpinned && (w->done_bytes || w->ready) ? w->etag : NULL};
    struct err err;
    uint64_t now = hub_now_us();
    l->w = w;
    w->lanes++;
    l->if_range = ask.if_range && *ask.if_range;
    l->paused = l->hopeless = false;
    l->refused.code = 0;
    l->window_us = l->began_us = now;
    l->window_bytes = 0;
    l->began_pos = l->pos;
    if (w->copying && !l->copy && !(l->copy = malloc(w->known ? STORE_SEGMENT_BYTES : COPY_BLOCK_BYTES)))
        (void)err_nomem(&err);
    else if (hub_exchange_begin(&l->x, url, &ask, &err) == 0)
        return;
    lane_idle(l);
    way_fail(w, &err);
}

void lane_idle(struct hub_lane *l)
{
    struct hub_way *w = l->w;
    for (size_t i = l->first; w->leased && i <= l->last && i < w->n_segments; i++)
        w->leased[i] = 0;
    w->lanes--;
    l->w = NULL;
}

/* ---- head --------------------------------------------------------------------------------------------------------------------- */

/* The file has another size than is known. */
static void refuse_size(struct hub_lane *l, uint64_t bytes)
{
    const struct hub_way *w = l->w;
    if (w->want->bytes != HUB_UNKNOWN)
        refuse(l, true, -ESTALE, "the server has %" PRIu64 " bytes, %" PRIu64 " are expected: it was changed upstream; 'berth lock' looks again", bytes, w->want->bytes);
    else if (w->bytes == HUB_UNKNOWN)
        refuse(l, true, -ENODATA, "the file is empty on the server");
    else
        l->w->changed = true;
}

static bool learn_size(struct hub_lane *l, uint64_t bytes)
{
    struct hub_way *w = l->w;
    struct err err;
    if (w->bytes == bytes)
        return true;
    if (w->bytes != HUB_UNKNOWN) {
        refuse_size(l, bytes);
        return false;
    }
    int r = part_size(w, bytes, &err);
    if (r == 0)
        r = follow_start(w, 0, &err);
    if (r < 0) {
        l->hopeless = true;
        l->refused = err;
        return false;
    }
    if (w->n_segments)
        w->leased[0] = 1;
    if (l->end > bytes)
        l->end = bytes;
    return true;
}

/* A part, as asked. */
static bool take_partial(struct hub_lane *l)
{
    const struct hub_head *h = &l->x.head;
    struct hub_way *w = l->w;
    if (!h->has_range || h->range.from != l->pos || h->range.to == HUB_UNKNOWN) {
        refuse(l, false, -EPROTO, "the server sends another range than was asked for");
        return false;
    }
    if (h->range.total == HUB_UNKNOWN && w->bytes == HUB_UNKNOWN) {
        refuse(l, true, -EPROTO, "the server does not say how long the file is");
        return false;
    }
    if (w->bytes == HUB_UNKNOWN && h->etag[0])
        (void)snprintf(w->etag, sizeof w->etag, "%s", h->etag);
    if (h->range.total != HUB_UNKNOWN && !learn_size(l, h->range.total))
        return false;
    if (h->range.to != l->end - 1 || (h->length != HUB_UNKNOWN && h->length != l->end - l->pos)) {
        refuse(l, false, -EPROTO, "the server sends %" PRIu64 " bytes where %" PRIu64 " were asked for", h->length == HUB_UNKNOWN ? h->range.to - h->range.from + 1 : h->length, l->end - l->pos);
        return false;
    }
    return true;
}

/* The whole file although a part was asked for: the server knows no ranges, or the file is not what If-Range named. */
static bool take_whole(struct hub_lane *l)
{
    const struct hub_head *h = &l->x.head;
    struct hub_way *w = l->w;
    if (l->if_range) {
        w->changed = true;
        return false;
    }
    if (w->copying || (w->lanes > 1 && w->ready)) {
        /* the others know that ranges work here; or there is nothing to begin anew */
        refuse(l, w->copying && w->whole, -EPROTO, "the server sends the whole file where a part was asked for");
        w->whole = w->copying; /* until a part comes */
        return false;
    }
    if (h->length == HUB_UNKNOWN && w->bytes == HUB_UNKNOWN) {
        refuse(l, true, -EPROTO, "the server does not say how long the file is");
        return false;
    }
    if (h->length != HUB_UNKNOWN && !learn_size(l, h->length))
        return false;
    if (l->pos) {
        w->from_zero = true; /* what came was worth nothing: such a server cannot go on where it stopped */
        return false;
    }
    pthread_mutex_lock(&w->fetch->lock);
    memset(w->leased, 1, w->n_segments);
    pthread_mutex_unlock(&w->fetch->lock);
    l->first = 0;
    l->last = w->n_segments ? w->n_segments - 1 : 0;
    l->end = w->bytes;
    w->whole = true;
    return true;
}

static bool is_web_page(const struct hub_lane *l)
{
    struct str path = str_of(l->w->want->path);
    return strcmp(l->x.head.type, "text/html") == 0 && !str_ends(path, STR(".html")) && !str_ends(path, STR(".htm"));
}

bool lane_on_head(struct hub_exchange *x)
{
    struct hub_lane *l = x->owner;
    const struct hub_head *h = &x->head;
    if (h->status == 416 && h->has_range && h->range.total != HUB_UNKNOWN && h->range.total != l->w->bytes)
        refuse_size(l, h->range.total);
    if (h->status < 200 || h->status > 299)
        return true;
    if (is_web_page(l)) {
        refuse(l, true, -EMEDIUMTYPE, "the server sends a web page instead of the file: a login or a notice; open the address in a browser, and set HF_TOKEN when it wants one");
        return false;
    }
    if (h->bad || h->encoded) {
        refuse(l, false, -EPROTO, h->encoded ? "the server sends the file in another encoding" : "the head of the answer contradicts itself");
        return false;
    }
    if (h->status != 206 && h->status != 200) {
        refuse(l, true, -EPROTO, "the server answers %ld to a request for a file", h->status);
        return false;
    }
    if (!(h->status == 206 ? take_partial(l) : take_whole(l)))
        return false;
    if (h->status == 206)
        l->w->whole = false;
    l->w->ready = true;
    return true;
}

/* ---- body --------------------------------------------------------------------------------------------------------------------- */

/* The first bytes of what nobody pinned: a GGUF file begins like one. */
static bool looks_right(struct hub_lane *l, const char *data, size_t n)
{
    if (l->pos || l->w->pinned || n < 4 || !str_ends(str_of(l->w->want->path), STR(".gguf")) || memcmp(data, "GGUF", 4) == 0)
        return true;
    refuse(l, true, -EMEDIUMTYPE, "what the server sends is no GGUF file");
    return false;
}

/* n bytes are in the file at l->pos: segments, journal and follower learn of it. */
static void count(struct hub_lane *l, size_t n)
{
    struct hub_way *w = l->w;
    struct hub_fetch *f = w->fetch;
    bool wake = false;
    pthread_mutex_lock(&f->lock);
    for (size_t left = n; left;) {
        size_t i = (size_t)(l->pos / STORE_SEGMENT_BYTES);
        uint64_t room = (uint64_t)i * STORE_SEGMENT_BYTES + way_segment_bytes(w, i) - l->pos;
        size_t part = left < room ? left : (size_t)room;
        w->got[i] += (uint32_t)part;
        w->dirty[i] = 1;
        wake = wake || part == room;
        l->pos += part;
        left -= part;
    }
    w->done_bytes += n;
    f->unkept += n;
    if (wake || f->unkept >= HUB_KEEP_BYTES)
        (void)pthread_cond_broadcast(&f->moved);
    pthread_mutex_unlock(&f->lock);
}

static bool has_room(struct hub_lane *l)
{
    struct hub_fetch *f = l->w->fetch;
    pthread_mutex_lock(&f->lock);
    bool room = f->unkept < HUB_LOSS_BYTES;
    pthread_mutex_unlock(&f->lock);
    return room;
}

int fetch_write(struct hub_way *w, const void *data, size_t n, uint64_t at, struct err *err)
{
    return hub_write_at(w->fd, data, n, at, w->part ? w->part : w->want->path, err);
}

void fetch_copied(struct hub_way *w, uint64_t n)
{
    pthread_mutex_lock(&w->fetch->lock);
    w->copied_bytes += n;
    pthread_mutex_unlock(&w->fetch->lock);
}

size_t lane_on_body(struct hub_exchange *x, const char *data, size_t n)
{
    struct hub_lane *l = x->owner;
    if (x->head.status < 200 || x->head.status > 299)
        return x->body_bytes + n <= HUB_REFUSAL_BYTES_MAX ? n : 0;
    if (n > l->end - l->pos) {
        refuse(l, false, -EPROTO, "the server sends more bytes than it promised");
        return 0;
    }
    if (l->w->copying)
        return l->w->known ? repair_body(l, data, n) : copy_body(l, data, n);
    if (!looks_right(l, data, n))
        return 0;
    if (!has_room(l)) {
        l->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (fetch_write(l->w, data, n, l->pos, &l->refused) < 0) {
        l->hopeless = true;
        return 0;
    }
    count(l, n);
    return n;
}

/* ---- end ------------------------------------------------------------------------------------------------------------------------ */

static void redirected(struct hub_way *w, const struct hub_exchange *x)
{
    struct err err;
    char shown[HUB_SHOWN_MAX];
    int r = 0;
    hub_show(x->hub, x->url, shown);
    if (w->want->sha256 && x->own && x->head.linked_etag[0] && strcmp(x->head.linked_etag, w->want->sha256) != 0)
        r = err_set(&err, -ESTALE, "%s: the hub has sha256 %s there, not the pinned %s: it was changed upstream; 'berth lock --check' says what", shown, x->head.linked_etag, w->want->sha256);
    else if (w->redirects >= HUB_REDIRECTS)
        r = err_set(&err, -ELOOP, "%s: over %d redirects", shown, HUB_REDIRECTS);
    else
        r = hub_url_follow(x->hub, x->url, x->head.location, w->url, &err);
    w->redirects++;
    if (r < 0)
        way_fail(w, &err);
}

/* A signed address has run out: the hub gives a new one. */
static void refresh(struct hub_way *w, const char *url, const struct err *why, uint64_t now_us)
{
    if (strcmp(url, w->want->url) != 0 && strcmp(url, w->url) != 0)
        return; /* another lane met it first */
    if (w->done_bytes + w->copied_bytes > w->refreshed_at)
        w->refreshes = 0;
    w->refreshed_at = w->done_bytes + w->copied_bytes;
    if (strcmp(url, w->url) != 0 || ++w->refreshes > REFRESHES_MAX) {
        way_fail(w, why);
        return;
    }
    w->url[0] = '\0';
    w->redirects = 0;
    w->ready = false; /* one lane asks, the others wait for its answer */
    if (w->refreshes > 1)
        way_again(w, why, 0, now_us);
}

static bool begin_anew(struct hub_way *w)
{
    bool changed = w->changed || w->from_zero;
    if (changed && !w->from_zero) {
        w->changed = false;
        way_restart(w);
    } else if (changed) {
        struct err err;
        w->from_zero = false;
        way_drop_lanes(w);
        follow_stop(w);
        w->proof = PROOF_NONE;
        if (part_reset(w, &err) < 0 || (w->got && follow_start(w, 0, &err) < 0))
            way_fail(w, &err);
        else
            w->whole = true;
    }
    return changed;
}

void lane_on_end(struct hub_exchange *x, CURLcode code)
{
    struct hub_lane *l = x->owner;
    struct hub_way *w = l->w;
    struct err err;
    uint64_t now_us = hub_now_us();
    bool complete = l->pos == l->end, refused = l->refused.code != 0, hopeless = l->hopeless;
    uint64_t pos = l->pos;
    if (refused)
        err = l->refused;
    lane_idle(l);
    if (begin_anew(w))
        return;
    if (refused) {
        if (hopeless)
            way_fail(w, &err);
        else
            way_again(w, &err, 0, now_us);
        return;
    }
    enum hub_verdict v = hub_judge(x, code, &err);
    if (v == HUB_GOOD && !complete) {
        char shown[HUB_SHOWN_MAX];
        (void)err_set(&err, -ENODATA, "%s: the answer ended early, at byte %" PRIu64, hub_show(x->hub, x->url, shown), pos);
        v = HUB_AGAIN;
    }
    if (v == HUB_GOOD)
        w->redirects = 0;
    else if (v == HUB_REDIRECT)
        redirected(w, x);
    else if (v == HUB_AGAIN)
        way_again(w, &err, x->head_complete ? x->head.wait_ms : 0, now_us);
    else if (v == HUB_EXPIRED)
        refresh(w, x->url, &err, now_us);
    else
        way_fail(w, &err);
}
