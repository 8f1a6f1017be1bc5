/* SPDX-License-Identifier: MIT
 *
 * What an engine says. Both its outputs are one pipe of ours: each byte goes to LOG_DIR/NAME.log, the last RUN_TAIL_MAX
 * bytes of a start are kept for its last words, and while it starts each line is shown to `engine` for what it tells. A log over
 * RUN_LOG_MAX is moved to NAME.log.1. A full disk loses log lines and nothing else: the pipe is always emptied, so that the
 * engine never waits for us.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run_int.h"

static int open_file(struct run_log *g, struct err *err)
{
    /* Private: prompts may be in it. */
    g->fd = open(g->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (g->fd < 0)
        return err_sys(err, -errno, "cannot open log '%s'", g->path);
    struct stat st;
    g->size = fstat(g->fd, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
    return 0;
}

static void rotate(struct run_log *g)
{
    base_autobuf struct buf old = BUF_INIT(8192);
    buf_addf(&old, "%s.1", g->path);
    if (buf_status(&old) < 0 || rename(g->path, old.ptr) < 0) {
        /* Bounded all the same. */
        if (ftruncate(g->fd, 0) == 0)
            g->size = 0;
        return;
    }
    close(g->fd);
    g->fd = -1;
    base_ignore(open_file(g, NULL));
}

static void write_file(struct run_log *g, struct str data)
{
    if (g->fd >= 0 && g->size + data.len > RUN_LOG_MAX)
        rotate(g);
    if (g->fd < 0)
        return;
    /* Somebody else may have cut the file (`: > log`): O_APPEND goes on at its end, the size is only ours to bound it. */
    if (os_write_all(g->fd, data.ptr, data.len, NULL) == 0)
        g->size += data.len;
}

/* data: one block, less than a tail. */
static void keep_tail(struct run_log *g, struct str data)
{
    if (g->tail.len + data.len > RUN_TAIL_MAX)
        buf_drop_front(&g->tail, g->tail.len + data.len - RUN_TAIL_MAX);
    buf_add(&g->tail, data.ptr, data.len);
    if (buf_status(&g->tail) < 0)
        buf_clear(&g->tail);
}

/* A complete line of a start that goes on. */
static void line_seen(struct run_service *s)
{
    struct str text = {0};
    enum engine_line kind = engine_line_parse(s->kind, buf_str(&s->log.line), &text);
    if (kind == ENGINE_LINE_OTHER)
        return;
    struct buf *to = kind == ENGINE_LINE_DROPPED ? &s->dropped : &s->step;
    if (kind == ENGINE_LINE_DROPPED && (to->len > 0 || !engine_line_denies(s->service, text)))
        return; /* the first one names the cause */
    buf_clear(to);
    buf_add_printable(to, text, RUN_SHOW_CHARS);
    if (buf_status(to) < 0)
        buf_clear(to);
}

static void split_lines(struct run_service *s, struct str data)
{
    struct run_log *g = &s->log;
    while (data.len > 0) {
        ptrdiff_t nl = str_find_char(data, '\n');
        size_t n = nl < 0 ? data.len : (size_t)nl;
        size_t room = RUN_LINE_MAX - g->line.len;
        if (!g->line_cut)
            buf_add(&g->line, data.ptr, n < room ? n : room);
        if (n > room)
            g->line_cut = true;
        if (nl < 0)
            return;
        if (buf_status(&g->line) == 0)
            line_seen(s);
        buf_clear(&g->line);
        g->line_cut = false;
        data.ptr += n + 1;
        data.len -= n + 1;
    }
}

/* One read. False when there is nothing more to take for the time being. */
static bool take(struct run_service *s)
{
    struct run_log *g = &s->log;
    char block[RUN_BLOCK];
    ssize_t n = read(g->pipe_fd, block, sizeof(block));
    if (n < 0 && errno == EINTR)
        return true;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            g->watch = net_watch_close(g->watch); /* its end: nothing will ever come */
        return false;
    }
    struct str data = {block, (size_t)n};
    write_file(g, data);
    keep_tail(g, data);
    if (s->state == RUN_STARTING || s->state == RUN_LOADING)
        split_lines(s, data);
    return true;
}

static void on_readable(void *ctx)
{
    (void)take(ctx);
}

int run_log_open(struct run_service *s, struct err *err)
{
    struct run_log *g = &s->log;
    buf_clear(&g->tail);
    buf_clear(&g->line);
    g->line_cut = false;
    return g->fd >= 0 ? 0 : open_file(g, err);
}

int run_log_watch(struct run_service *s, int pipe_fd, struct err *err)
{
    s->log.pipe_fd = pipe_fd;
    return net_watch_new(s->env->loop, pipe_fd, on_readable, s, &s->log.watch, err);
}

void run_log_say(struct run_service *s, const char *text)
{
    base_autobuf struct buf b = BUF_INIT(256u << 10);
    char when[CLK_RFC3339];
    buf_addf(&b, "berth: %s %s\n", clk_rfc3339(s->env->clk->real_us(s->env->clk->ctx), when), text);
    if (buf_status(&b) == 0)
        write_file(&s->log, buf_str(&b));
}

void run_log_drain(struct run_service *s)
{
    /* Bounded: something that the engine left behind may hold the pipe and go on writing. */
    for (unsigned i = 0; i < 64 && s->log.pipe_fd >= 0 && take(s); i++)
        ;
}

void run_log_close(struct run_service *s)
{
    struct run_log *g = &s->log;
    g->watch = net_watch_close(g->watch);
    os_closep(&g->pipe_fd);
    os_closep(&g->fd);
}

void run_log_release(struct run_service *s)
{
    run_log_close(s);
    buf_release(&s->log.tail);
    buf_release(&s->log.line);
    free(s->log.path);
    s->log.path = NULL;
}

void run_log_words(const struct run_service *s, struct buf *out)
{
    struct str tail = buf_str(&s->log.tail);
    enum engine_words w = engine_words_find(s->kind, tail);
    if (w != ENGINE_WORDS_UNKNOWN)
        buf_addf(out, "\n%s", engine_words_text(w));
    tail = str_trim(tail);
    size_t from = tail.len, lines = 0;
    while (from > 0 && lines < RUN_SHOW_LINES) {
        from--;
        if (tail.ptr[from] == '\n')
            lines++;
    }
    if (lines == RUN_SHOW_LINES)
        from++;
    struct str rest = {tail.ptr + from, tail.len - from};
    if (rest.len == 0) {
        buf_addf(out, "\nit said nothing (log: %s)", s->log.path);
        return;
    }
    buf_addf(out, "\nlast lines of %s:", s->log.path);
    while (rest.ptr) {
        struct str line = str_trim(str_split(&rest, '\n'));
        buf_add_c(out, "\n  | ");
        buf_add_printable(out, line, RUN_SHOW_CHARS);
    }
}
