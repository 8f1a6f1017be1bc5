/* SPDX-License-Identifier: MIT
 *
 * The network's thread and one request on it. A hub has one thread, which sleeps until it is given a job; the job begins exchanges and is asked again whenever one of them moved. All of libcurl is used on that thread.
 *
 * Redirects are not followed here: who began the exchange decides, and the token goes by the origin of each request anew.
 */
#include "hub_int.h"

#include <errno.h>
#include <signal.h>

#define BUFFER_BYTES (256L << 10) /* of one read: fewer calls than libcurl's 16 KiB, and still in the CPU's cache */
#define WATCH_NS 100000000

uint64_t hub_now_us(void)
{
    return clk_system.mono_us(clk_system.ctx);
}

/* ---- one exchange ------------------------------------------------------------------------------------------------------- */

static size_t on_field(char *data, size_t size, size_t n, void *ctx)
{
    struct hub_exchange *x = ctx;
    struct str line = {data, size * n};
    while (line.len && (line.ptr[line.len - 1] == '\n' || line.ptr[line.len - 1] == '\r'))
        line.len--;
    if (x->head_complete)
        return size * n; /* trailers */
    if (line.len) {
        hub_head_line(&x->head, line, clk_system.real_us(clk_system.ctx) / 1000000);
        return size * n;
    }
    if (x->head.status < 200)
        return size * n; /* more heads follow */
    x->head_complete = true;
    return x->on_head(x) ? size * n : 0;
}

static size_t on_data(char *data, size_t size, size_t n, void *ctx)
{
    struct hub_exchange *x = ctx;
    size_t taken = x->head_complete ? x->on_body(x, data, size * n) : 0;
    if (taken == size * n)
        x->body_bytes += taken;
    return taken;
}

static bool add_field(struct hub_exchange *x, const char *fmt, ...) BASE_PRINTF(2, 3);
static bool add_field(struct hub_exchange *x, const char *fmt, ...)
{
    base_autobuf struct buf line = BUF_INIT(HUB_URL_MAX);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&line, fmt, ap);
    va_end(ap);
    struct curl_slist *l = buf_status(&line) < 0 ? NULL : x->hub->c->slist_append(x->fields, line.ptr);
    if (l)
        x->fields = l;
    if (line.ptr)
        explicit_bzero(line.ptr, line.len); /* it may be the token's */
    return l != NULL;
}

static bool add_fields(struct hub_exchange *x, const struct hub_ask *ask)
{
    bool ok = add_field(x, "User-Agent: berth/" BERTH_VERSION) && add_field(x, "Accept: */*");
    if (ok && ask->from != HUB_UNKNOWN && ask->to == HUB_UNKNOWN)
        ok = add_field(x, "Range: bytes=%llu-", (unsigned long long)ask->from);
    else if (ok && ask->from != HUB_UNKNOWN)
        ok = add_field(x, "Range: bytes=%llu-%llu", (unsigned long long)ask->from, (unsigned long long)ask->to);
    if (ok && ask->from != HUB_UNKNOWN && ask->if_range && *ask->if_range)
        ok = add_field(x, "If-Range: %s", ask->if_range);
    if (ok && x->own && x->hub->token)
        ok = add_field(x, "Authorization: Bearer %s", x->hub->token);
    return ok;
}

static bool set_options(struct hub_exchange *x)
{
    const struct hub_curl *c = x->hub->c;
    CURL *e = x->easy;
    return c->easy_setopt(e, CURLOPT_URL, x->url) == CURLE_OK && c->easy_setopt(e, CURLOPT_HTTPHEADER, x->fields) == CURLE_OK && c->easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           c->easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK && c->easy_setopt(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK && c->easy_setopt(e, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L) == CURLE_OK &&
           /* streams of one connection share its window: several connections are the point */
           c->easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK && c->easy_setopt(e, CURLOPT_BUFFERSIZE, BUFFER_BYTES) == CURLE_OK &&
           c->easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)HUB_CONNECT_MS) == CURLE_OK && c->easy_setopt(e, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK && c->easy_setopt(e, CURLOPT_ERRORBUFFER, x->text) == CURLE_OK &&
           c->easy_setopt(e, CURLOPT_HEADERFUNCTION, on_field) == CURLE_OK && c->easy_setopt(e, CURLOPT_HEADERDATA, x) == CURLE_OK && c->easy_setopt(e, CURLOPT_WRITEFUNCTION, on_data) == CURLE_OK &&
           c->easy_setopt(e, CURLOPT_WRITEDATA, x) == CURLE_OK && c->easy_setopt(e, CURLOPT_PRIVATE, x) == CURLE_OK;
}

static void clear(struct hub_exchange *x)
{
    const struct hub_curl *c = x->hub->c;
    if (x->easy)
        c->easy_cleanup(x->easy);
    for (struct curl_slist *l = x->fields; l; l = l->next)
        explicit_bzero(l->data, strlen(l->data));
    c->slist_free_all(x->fields);
    x->easy = NULL;
    x->fields = NULL;
}

int hub_exchange_begin(struct hub_exchange *x, const char *url, const struct hub_ask *ask, struct err *err)
{
    struct hub *h = x->hub;
    struct hub_origin o;
    size_t len = strlen(url);
    if (len >= sizeof x->url)
        return err_set(err, -ENAMETOOLONG, "an address of over %d bytes", HUB_URL_MAX - 1);
    int r = hub_origin_of(h, url, &o, err);
    if (r < 0)
        return r;
    memmove(x->url, url, len + 1);
    x->own = hub_origin_eq(&o, &h->origin);
    hub_head_clear(&x->head);
    x->head_complete = false;
    x->body_bytes = 0;
    x->text[0] = '\0';
    x->easy = h->c->easy_init();
    if (!x->easy || !add_fields(x, ask) || !set_options(x) || h->c->multi_add_handle(h->multi, x->easy) != CURLM_OK) {
        clear(x);
        return err_nomem(err);
    }
    return 0;
}

void hub_exchange_cancel(struct hub_exchange *x)
{
    if (!x->easy)
        return;
    (void)x->hub->c->multi_remove_handle(x->hub->multi, x->easy);
    clear(x);
}

void hub_exchange_resume(struct hub_exchange *x)
{
    (void)x->hub->c->easy_pause(x->easy, CURLPAUSE_CONT);
}

/* ---- the thread --------------------------------------------------------------------------------------------------------- */

static void collect(struct hub *h)
{
    int left;
    CURLMsg *m;
    while ((m = h->c->multi_info_read(h->multi, &left))) {
        struct hub_exchange *x = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE || h->c->easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&x) != CURLE_OK || !x)
            continue;
        long e = 0;
        x->refusal = code == CURLE_COULDNT_CONNECT && h->c->easy_getinfo(m->easy_handle, CURLINFO_OS_ERRNO, &e) == CURLE_OK ? (int)e : 0;
        hub_exchange_cancel(x);
        x->on_end(x, code);
    }
}

static void work(struct hub *h, struct hub_job *job)
{
    for (;;) {
        int running = 0;
        pthread_mutex_lock(&h->lock);
        bool stop = job->stop;
        pthread_mutex_unlock(&h->lock);
        (void)h->c->multi_perform(h->multi, &running);
        collect(h);
        int64_t us = job->step(job, stop, hub_now_us());
        if (us < 0)
            return;
        (void)h->c->multi_poll(h->multi, NULL, 0, (int)(us / 1000 > 1000 ? 1000 : us / 1000), NULL);
    }
}

static void *run(void *ctx)
{
    struct hub *h = ctx;
    pthread_mutex_lock(&h->lock);
    while (!h->quit) {
        struct hub_job *job = h->job;
        if (!job || job->over) {
            (void)pthread_cond_wait(&h->changed, &h->lock);
            continue;
        }
        pthread_mutex_unlock(&h->lock);
        work(h, job);
        pthread_mutex_lock(&h->lock);
        job->over = true;
        (void)pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

int hub_wire_start(struct hub *h, struct err *err)
{
    sigset_t all, before;
    (void)sigfillset(&all); /* signals are the caller's */
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    int r = pthread_create(&h->thread, NULL, run, h);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r)
        return err_sys(err, -r, "cannot start the network's thread");
    h->started = true;
    return 0;
}

void hub_wire_stop(struct hub *h)
{
    if (!h->started)
        return;
    pthread_mutex_lock(&h->lock);
    h->quit = true;
    (void)pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    (void)pthread_join(h->thread, NULL);
    h->started = false;
}

void hub_wake(struct hub *h)
{
    (void)h->c->multi_wakeup(h->multi);
}

int hub_run(struct hub *h, struct hub_job *job, struct err *err)
{
    bool stopped = false;
    pthread_mutex_lock(&h->lock);
    h->job = job;
    (void)pthread_cond_broadcast(&h->changed);
    while (!job->over) {
        struct timespec t;
        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_nsec += WATCH_NS;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&h->changed, &h->lock, &t);
        if (job->over)
            break;
        if (os_interrupted() && !job->stop) {
            stopped = job->stop = true;
            hub_wake(h);
        }
        pthread_mutex_unlock(&h->lock);
        if (job->watch)
            job->watch(job);
        pthread_mutex_lock(&h->lock);
    }
    h->job = NULL;
    pthread_mutex_unlock(&h->lock);
    return stopped ? err_set(err, -EINTR, "interrupted") : 0;
}
