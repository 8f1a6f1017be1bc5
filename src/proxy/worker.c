/* SPDX-License-Identifier: MIT
 *
 * The process around a router. It lives at one end of a channel: it gets configurations, answers questions, and ends when told to drain or when the channel ends, which is
 * how it learns that its owner is gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <os/os.h>

#include "proxy_int.h"

#define WANT_MS 2     /* between a change and the line that tells of it */
#define SAVE_MS 10000 /* between two copies of the index for the owner: what a crash costs */

struct worker {
    struct net_loop *loop;
    struct proxy *proxy;
    struct net_stream *channel;
    const int *fds;   /* not served yet */
    size_t n_fds;
    unsigned loops;
    int spill_dir;
    struct buf line;
    struct net_timer *save, *want;
    bool wanting;          /* its owner has services on demand */
    bool want_armed;
    uint64_t mark, digest; /* of the last line about it */
    uint64_t saved;  /* changes of the index at that time */
    struct buf index; /* what an earlier one knew, until there is a configuration */
    bool draining;
    bool log_file;            /* stdout is a file: writing to it never waits */
    pthread_mutex_t log_lock; /* between looking whether a write would wait and the write */
    int rc;
    struct err *err;
};

static void stop(struct worker *w, int rc)
{
    if (w->rc == 0)
        w->rc = rc;
    net_loop_stop(w->loop);
}

static void on_drained(void *ctx)
{
    stop(ctx, 0);
}

static void say_index(void *ctx);

static void drain(struct worker *w, uint64_t deadline_ms)
{
    if (!w->draining)
        say_index(w);
    w->draining = true; /* again: with another deadline */
    proxy_drain(w->proxy, deadline_ms, on_drained, w);
}

/* Takes each descriptor over, also when one fails. Loops without one of their own share those of others. */
static int listen_all(struct worker *w, struct err *err)
{
    int rc = 0;
    const int *fds = w->fds;
    size_t own = w->n_fds;
    int more[FLEET_ROUTER_LOOPS_MAX];
    size_t n_more = 0;
    while (own + n_more < w->loops && (more[n_more] = fcntl(fds[n_more % own], F_DUPFD_CLOEXEC, 3)) >= 0)
        n_more++;
    for (; w->n_fds; w->fds++, w->n_fds--) {
        int r = rc == 0 ? proxy_listen(w->proxy, *w->fds, err) : close(*w->fds);
        if (rc == 0)
            rc = r;
    }
    for (size_t i = 0; i < n_more; i++) {
        int r = rc == 0 ? proxy_listen(w->proxy, more[i], err) : close(more[i]);
        if (rc == 0)
            rc = r;
    }
    return rc;
}

/* ---- what is said to the owner ------------------------------------------------------------------------------ */

static void say(struct worker *w, struct json_out *o)
{
    base_autobuf struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    if (!o)
        return;
    if (json_out_finish(o, false, &b) == 0) {
        struct str parts[] = {buf_str(&b), STR("\n")};
        base_ignore(net_stream_write(w->channel, parts, BASE_COUNT(parts))); /* a broken channel is told by its end */
    }
    json_out_free(o);
}

static void say_up(struct worker *w)
{
    struct json_out *o = json_out_new();
    if (!o)
        return;
    json_out_obj(o, NULL);
    json_out_bool(o, "up", true);
    json_out_end(o);
    say(w, o);
}

static void say_stats(struct worker *w)
{
    base_autobuf struct buf text = BUF_INIT(PROXY_CHANNEL_LINE_MAX / 2);
    struct proxy_stats s;
    struct json_out *o = json_out_new();
    if (!o)
        return;
    proxy_stats(w->proxy, &s);
    json_out_obj(o, NULL);
    json_out_obj(o, "stats");
    json_out_u64(o, "requests", s.requests);
    json_out_u64(o, "retries", s.retries);
    json_out_u64(o, "errors", s.errors);
    json_out_u64(o, "active", s.active);
    json_out_u64(o, "working_set", s.working_set);
    json_out_u64(o, "capacity", s.capacity);
    json_out_u64(o, "conversations", s.conversations);
    json_out_u64(o, "slots", s.slots);
    json_out_bool(o, "crowded", s.crowded);
    json_out_str(o, "metrics", proxy_metrics(w->proxy, &text) == 0 ? buf_str(&text) : STR(""));
    json_out_end(o);
    json_out_end(o);
    say(w, o);
}

static void say_answer(struct worker *w, uint64_t serial, unsigned status, struct str body)
{
    base_autobuf struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    buf_addf(&b, "{\"answer\":{\"serial\":%llu,\"status\":%u,\"body\":", (unsigned long long)serial, status);
    buf_add_str(&b, body);
    buf_add_c(&b, "}}\n");
    struct str line = buf_str(&b);
    if (buf_status(&b) == 0)
        base_ignore(net_stream_write(w->channel, &line, 1));
}

static void say_want(void *ctx)
{
    struct worker *w = ctx;
    base_autobuf struct buf b = BUF_INIT(PROXY_CHANNEL_LINE_MAX);
    w->want_armed = false;
    if (proxy_want_text(w->proxy, w->mark, &w->digest, &b) > 0) {
        struct str parts[] = {buf_str(&b), STR("\n")};
        base_ignore(net_stream_write(w->channel, parts, BASE_COUNT(parts)));
    }
}

/* What moves within a moment is told together. */
static void on_moved(void *ctx)
{
    struct worker *w = ctx;
    if (w->wanting && !w->want_armed)
        net_timer_start(w->want, WANT_MS, 0);
    w->want_armed = w->wanting;
}

static int take_keys(struct worker *w, struct str text)
{
    struct proxy_keys *k;
    int rc = proxy_keys_parse(text, "keys", &k, w->err);
    if (rc == 0)
        proxy_set_keys(w->proxy, k);
    return rc;
}

static int take_mark(struct worker *w, uint64_t mark)
{
    if (!w->want)
        w->want = net_timer_new(w->loop, say_want, w);
    if (!w->want)
        return err_nomem(w->err);
    w->wanting = true;
    w->proxy->watched = true;
    w->mark = mark;
    on_moved(w);
    return 0;
}

/* The whole lines at the front that a pipe which is not full takes at once; one that is longer goes alone. */
static size_t front_of(struct str lines)
{
    size_t n = lines.len < PIPE_BUF ? lines.len : PIPE_BUF;
    while (n && lines.ptr[n - 1] != '\n')
        n--;
    return n ? n : (size_t)str_find_char(lines, '\n') + 1;
}

/* The log of requests is what this process prints. A full disk, or a reader who has stopped, costs lines, not requests. */
static void on_log(void *ctx, struct str lines)
{
    struct worker *w = ctx;
    (void)pthread_mutex_lock(&w->log_lock);
    while (lines.len) {
        struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
        if (!w->log_file && (poll(&out, 1, 0) <= 0 || !(out.revents & POLLOUT)))
            break;
        ssize_t n = write(STDOUT_FILENO, lines.ptr, w->log_file ? lines.len : front_of(lines));
        if (n <= 0)
            break;
        lines.ptr += n;
        lines.len -= (size_t)n;
    }
    (void)pthread_mutex_unlock(&w->log_lock);
}

static void on_failed(void *ctx, const char *service, uint64_t generation, const char *text)
{
    struct json_out *o = json_out_new();
    if (!o)
        return;
    json_out_obj(o, NULL);
    json_out_obj(o, "failed");
    json_out_cstr(o, "service", service);
    json_out_u64(o, "generation", generation);
    json_out_cstr(o, "text", text);
    json_out_end(o);
    json_out_end(o);
    say(ctx, o);
}

/* The index of conversations, when it is not what the owner has. */
static void say_index(void *ctx)
{
    struct worker *w = ctx;
    base_autobuf struct buf index = BUF_INIT(PROXY_INDEX_MAX), hex = BUF_INIT((size_t)2 * PROXY_INDEX_MAX + 1);
    uint64_t changes = proxy_index_changes(w->proxy);
    if (!w->channel || changes == w->saved || proxy_index_save(w->proxy, &index) < 0)
        return;
    char *at = buf_room(&hex, 2 * index.len);
    struct json_out *o = at ? json_out_new() : NULL;
    if (!o)
        return;
    (void)os_hex((const uint8_t *)index.ptr, index.len, at);
    buf_grew(&hex, 2 * index.len);
    w->saved = changes;
    json_out_obj(o, NULL);
    json_out_str(o, "index", buf_str(&hex));
    json_out_end(o);
    say(w, o);
}

/* ---- what the owner says --------------------------------------------------------------------------------------- */

/* What an earlier worker knew. It is a help, not a need: one that cannot be read is passed over. */
static void take_index(struct worker *w, struct str hex)
{
    buf_clear(&w->index);
    size_t n = hex.len / 2;
    char *to = buf_room(&w->index, n);
    if (to && os_unhex(hex, (uint8_t *)to, n))
        buf_grew(&w->index, n);
}

static void use_index(struct worker *w)
{
    struct err err;
    if (w->index.len && buf_status(&w->index) == 0 && proxy_index_load(w->proxy, buf_str(&w->index), &err) < 0)
        (void)fprintf(stderr, "berth router: %s; it begins anew\n", err.text);
    w->saved = proxy_index_changes(w->proxy);
    buf_release(&w->index);
}

static int take_config(struct worker *w, struct str line)
{
    struct proxy_config *c;
    int rc = proxy_config_parse(line, &c, w->err);
    if (rc < 0)
        return rc;
    proxy_set_config(w->proxy, c);
    if (!w->n_fds)
        return 0;
    use_index(w);
    rc = listen_all(w, w->err);
    if (rc == 0)
        say_up(w);
    return rc;
}

static int take_ask(struct worker *w, json_val v)
{
    base_autobuf struct buf body = BUF_INIT(PROXY_CHANNEL_LINE_MAX / 2);
    uint64_t serial;
    struct str method, target;
    unsigned status = 500;
    if (!json_u64(json_get(v, "serial"), &serial) || !json_str(json_get(v, "method"), &method) || !json_str(json_get(v, "target"), &target))
        return err_set(w->err, -EBADMSG, "a question on the router's channel is not complete");
    if (proxy_ask(w->proxy, method, target, &status, &body) < 0) {
        buf_clear(&body);
        buf_add_c(&body, "{\"error\":\"out of memory\"}");
        status = 500;
    }
    say_answer(w, serial, status, buf_str(&body));
    return 0;
}

static int take_pair(struct worker *w, json_val v)
{
    struct str certificate, key;
    if (!json_str(json_get(v, "certificate"), &certificate) || !json_str(json_get(v, "key"), &key))
        return err_set(w->err, -EBADMSG, "the router's certificate is not complete");
    return proxy_set_tls(w->proxy, certificate, key, w->err);
}

static int take_line(struct worker *w, struct str line)
{
    struct json *j;
    uint64_t ms;
    bool ask;
    struct str index, text;
    int rc = json_parse(line, &j, w->err);
    if (rc < 0)
        return err_prefix(w->err, "a line of the router's channel is malformed");
    json_val root = json_root(j);
    if (json_get(root, "config"))
        rc = take_config(w, line);
    else if (json_get(root, "tls"))
        rc = take_pair(w, json_get(root, "tls"));
    else if (json_str(json_get(root, "keys"), &text))
        rc = take_keys(w, text);
    else if (json_u64(json_get(root, "mark"), &ms))
        rc = take_mark(w, ms);
    else if (json_u64(json_get(root, "drain"), &ms))
        drain(w, ms);
    else if (json_bool(json_get(root, "stats"), &ask) && ask)
        say_stats(w);
    else if (json_get(root, "ask"))
        rc = take_ask(w, json_get(root, "ask"));
    else if (json_str(json_get(root, "index"), &index))
        take_index(w, index);
    else if (json_bool(json_get(root, "index"), &ask) && ask)
        say_index(w);
    else
        rc = err_set(w->err, -EBADMSG, "a line of the router's channel is not understood");
    json_free(j);
    return rc;
}

static void on_data(void *ctx, struct str data)
{
    struct worker *w = ctx;
    while (data.ptr && w->rc == 0) {
        struct str head = str_split(&data, '\n');
        buf_add_str(&w->line, head);
        if (!data.ptr) /* the line's end has not come */
            break;
        int rc = buf_status(&w->line);
        if (rc < 0)
            rc = err_set(w->err, rc, "a line of the router's channel is too long");
        else
            rc = take_line(w, buf_str(&w->line));
        buf_clear(&w->line);
        if (rc < 0)
            stop(w, rc);
    }
    if (w->rc == 0 && buf_status(&w->line) < 0)
        stop(w, err_set(w->err, buf_status(&w->line), "a line of the router's channel is too long"));
}

static void on_channel_end(void *ctx, int status)
{
    (void)status;
    stop(ctx, 0);
}

/* ---- running ------------------------------------------------------------------------------------------------------ */

static int begin(struct worker *w)
{
    int rc = net_loop_new(&w->loop, w->err);
    if (rc == 0)
        rc = proxy_new(w->loop, w->loops, &w->proxy, w->err);
    struct stat st;
    w->log_file = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode);
    (void)pthread_mutex_init(&w->log_lock, NULL); /* cannot fail without attributes */
    if (rc == 0) {
        proxy_spill_to(w->proxy, os_take_fd(&w->spill_dir));
        w->proxy->on_log_ctx = w;
        w->proxy->on_log = on_log;
    }
    return rc;
}

static void end(struct worker *w)
{
    os_closep(&w->spill_dir);
    for (; w->n_fds; w->fds++, w->n_fds--)
        (void)close(*w->fds);
    w->proxy = proxy_free(w->proxy);
    w->want = net_timer_close(w->want);
    w->channel = net_stream_close(w->channel, false);
    w->save = net_timer_close(w->save);
    if (w->loop)
        w->loop = net_loop_free(w->loop);
    buf_release(&w->line);
    buf_release(&w->index);
    (void)pthread_mutex_destroy(&w->log_lock);
}

int proxy_worker(int channel_fd, const int *listen_fds, size_t n, int spill_dir, unsigned loops, struct err *err)
{
    static const struct net_stream_ops ops = {.on_data = on_data, .on_end = on_channel_end};
    struct worker w = {
        .fds = listen_fds,
        .n_fds = n,
        .spill_dir = spill_dir,
        .loops = loops,
        .line = BUF_INIT(PROXY_CHANNEL_LINE_MAX),
        .index = BUF_INIT(PROXY_INDEX_MAX),
        .err = err,
    };
    int rc = begin(&w);
    if (rc < 0) {
        (void)close(channel_fd);
    } else {
        w.proxy->on_failed = on_failed;
        w.proxy->on_failed_ctx = &w;
        w.proxy->on_moved = on_moved;
        w.proxy->on_moved_ctx = &w;
        rc = net_stream_from_fd(w.loop, channel_fd, &ops, &w, &w.channel, err);
    }
    if (rc == 0 && !(w.save = net_timer_new(w.loop, say_index, &w)))
        rc = err_nomem(err);
    if (rc == 0) {
        net_timer_start(w.save, SAVE_MS, SAVE_MS);
        net_loop_run(w.loop);
        rc = w.rc;
    }
    end(&w);
    return rc;
}
