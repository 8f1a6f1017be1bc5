/* SPDX-License-Identifier: MIT
 *
 * berth logs: the last lines of an engine's log, and what follows. The file may be cut or moved away while it is followed: then the rest of
 * the old one is shown and the new one from its beginning.
 */
#include "cmd_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <up/up.h>

#define LINES_DEFAULT 100
#define LINES_MAX 10000000
#define BLOCK 65536
#define POLL_MS 200 /* between two looks at a log that is followed */

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int sig)
{
    (void)sig;
    asked_to_stop = 1;
}

/* Offset where the last `lines` lines of the first `size` bytes begin. */
static off_t find_tail(int fd, off_t size, uint64_t lines)
{
    char block[BLOCK];
    uint64_t seen = 0;
    off_t at = size;
    while (at > 0) {
        size_t n = at > BLOCK ? BLOCK : (size_t)at;
        ssize_t got = pread(fd, block, n, at - (off_t)n);
        if (got != (ssize_t)n)
            return at; /* cut under our hands: what is left is shown */
        for (size_t i = n; i > 0; i--) {
            off_t here = at - (off_t)n + (off_t)i;
            /* A line feed at the very end closes the last line and begins none. */
            if (block[i - 1] == '\n' && here != size && ++seen == lines)
                return here;
        }
        at -= (off_t)n;
    }
    return 0;
}

/* An engine quotes what clients and models say, and a terminal obeys it: there it is made printable. A file or a pipe gets it as it is. */
static int print(struct str text)
{
    if (isatty(STDOUT_FILENO) != 1)
        return cmd_print(text);
    base_autobuf struct buf out = BUF_INIT((size_t)5 * BLOCK);
    while (text.len > 0) {
        size_t n = 0;
        while (n < text.len && text.ptr[n] != '\n' && text.ptr[n] != '\t')
            n++;
        bool ends = n < text.len && text.ptr[n] == '\n';
        buf_add_printable(&out, (struct str){text.ptr, ends && n > 0 && text.ptr[n - 1] == '\r' ? n - 1 : n}, SIZE_MAX);
        if (n < text.len)
            buf_add_char(&out, text.ptr[n++]);
        text.ptr += n;
        text.len -= n;
    }
    return buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

/* Prints from *off to the end of the file. CMD_OK, or the code to end with. */
static int copy_out(int fd, off_t *off)
{
    char block[BLOCK];
    ssize_t n;
    while ((n = pread(fd, block, sizeof(block), *off)) > 0) {
        /* Whole lines where there are some, so that no character is cut in two. */
        const char *end = n == (ssize_t)sizeof(block) ? memrchr(block, '\n', sizeof(block)) : NULL;
        size_t len = end ? (size_t)(end - block) + 1 : (size_t)n;
        int code = print((struct str){block, len});
        if (code != CMD_OK)
            return code;
        *off += (off_t)len;
    }
    return n < 0 ? cmd_failf(CMD_FAILED, "cannot read the log: %s", strerror(errno)) : CMD_OK;
}

/* The file at path when it is not the one that is open: its descriptor; else -1. */
static int open_next(const char *path, int fd)
{
    struct stat open_one, named;
    if (fstat(fd, &open_one) < 0 || stat(path, &named) < 0)
        return -1;
    if (open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int follow(const char *path, int *fd, off_t off)
{
    struct sigaction a = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &a, NULL);
    (void)sigaction(SIGTERM, &a, NULL);
    int code = CMD_OK;
    while (code == CMD_OK && !asked_to_stop) {
        struct stat st;
        if (fstat(*fd, &st) == 0 && st.st_size < off)
            off = 0;
        code = copy_out(*fd, &off);
        int next = open_next(path, *fd);
        if (next >= 0) {
            /* What came between the last read and the move. */
            if (code == CMD_OK)
                code = copy_out(*fd, &off);
            close(*fd);
            *fd = next;
            off = 0;
            continue;
        }
        /* A reader that has gone ends it even while nothing is written. */
        struct pollfd out = {.fd = STDOUT_FILENO, .events = 0};
        if (poll(&out, 1, POLL_MS) > 0 && (out.revents & (POLLERR | POLLHUP)))
            break;
    }
    return code;
}

static int show(const char *path, const char *service, uint64_t lines, bool follow_it)
{
    os_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 && errno == ENOENT)
        return cmd_failf(CMD_FAILED, "service '%s' has no log yet: it was never started here ('%s' does not exist)", service, path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return cmd_failf(CMD_FAILED, "cannot open '%s': %s", path, strerror(errno));
    off_t off = lines == 0 ? st.st_size : find_tail(fd, st.st_size, lines);
    int code = copy_out(fd, &off);
    return code == CMD_OK && follow_it ? follow(path, &fd, off) : code;
}

/* A file that is unusable at this moment hides no log; one that can be read names what there is, and who keeps the log of a unit. */
static int check_service(const char *path, const char *service)
{
    struct fleet_options options = engine_fleet_options();
    struct fleet *f = NULL;
    if (!fleet_name_valid(str_of(service)))
        return cmd_failf(CMD_USAGE, "'%.60s' is no name of a service", service);
    if (fleet_load(path ? path : "fleet.yaml", &options, &f, NULL) < 0)
        return CMD_OK;
    int code = cmd_service(f, service);
    const struct fleet_service *s = code == CMD_OK ? fleet_service_find(f, service) : NULL;
    if (s && s->unit != FLEET_CHILD)
        code = cmd_failf(CMD_FAILED, "service '%s' is a unit%s%s: 'journalctl %s-u berth-%s-%s' there has its log", service, s->host->ssh ? " on host " : "", s->host->ssh ? s->host->name : "", s->host->scope == FLEET_USER ? "--user " : "", f->name, service);
    fleet_free(f);
    return code;
}

static int logs(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs)
{
    uint64_t lines = LINES_DEFAULT;
    const char *service = a->words[0], *n = cmd_value(c, a, "lines");
    if (n && (str_to_u64(str_of(n), &lines) < 0 || lines > LINES_MAX))
        return cmd_usage(c, "'%s' is no number of lines", n);
    /* The router and, in the background, berth itself have logs too; no service can have these names. */
    bool own = strcmp(service, "router") == 0 || strcmp(service, "berth") == 0;
    int code = own ? CMD_OK : check_service(cmd_value(c, a, "file"), service);
    if (code != CMD_OK)
        return code;
    base_autobuf struct buf path = BUF_INIT(8192);
    return up_log_path(dirs, name, service, &path) < 0 ? cmd_nomem() : show(path.ptr, service, lines, cmd_given(c, a, "follow"));
}

static int run_logs(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    return cmd_parse(c, argc, argv, 1, 1, &a, &code) ? cmd_on_name(c, &a, logs) : code;
}

const struct cmd cmd_logs = {
    .name = "logs",
    .synopsis = "[-F] [-n LINES] [-f FILE] SERVICE",
    .summary = "show an engine's log",
    .description = "Prints the last lines of what the engine of a service has written, over all its starts; each start begins with its command line. 'router' and 'berth' (of a fleet in the background) have logs too. With -F it goes on with what comes, also over a log that is cut or moved away, until Ctrl-C.",
    .examples = "berth logs alpha\nberth logs -F -n 20 alpha    # follow it",
    .options = {{'F', "follow", NULL, "go on with what comes"},
                {'n', "lines", "LINES", "how many lines to begin with (default 100)"},
                CMD_OPTION_FILE},
    .run = run_logs,
};
