/* SPDX-License-Identifier: MIT
 *
 * What all subcommands share: the command line, errors as a person sees them, the fleet file.
 */
#include "cmd_int.h"

#include <assert.h>
#include <conf/conf.h>
#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PRINT_MAX (256u << 20) /* of one result: the tensors of a large split set, as JSON, have some tens of MB */

/* The command that is running, for the prefix of its errors; one process runs one command. */
static const char *running = NULL;

const struct cmd *cmd_find(const char *name)
{
    for (size_t i = 0; i < cmd_table_len; i++)
        if (strcmp(cmd_table[i]->name, name) == 0)
            return cmd_table[i];
    return NULL;
}

/* What an error quotes may come from a file, an engine or another host: a terminal gets none of its control bytes. */
int cmd_failf(int code, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(64u << 10), line = BUF_INIT(256u << 10);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    buf_add_lines(&line, buf_str(&text));
    (void)fprintf(stderr, "berth%s%s: %s\n", running ? " " : "", running ? running : "", buf_status(&text) == 0 && buf_status(&line) == 0 ? line.ptr : "out of memory");
    return code;
}

const char *cmd_own_program(char *out)
{
    /* a copy that a deploy brought is started by its loader, which its script beside it knows */
    const char *bundle = getenv("BERTH_BUNDLE"), *slash = bundle ? strrchr(bundle, '/') : NULL;
    int k = slash ? snprintf(out, PATH_MAX, "%.*s/berth", (int)(slash - bundle), bundle) : -1;
    if (k > 0 && k < PATH_MAX && access(out, X_OK) == 0)
        return out;
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (n <= 0 || out[0] != '/')
        return "/proc/self/exe";
    out[n] = '\0';
    return access(out, X_OK) == 0 ? out : "/proc/self/exe";
}

int cmd_fail(int code, const struct err *err)
{
    return cmd_failf(code, "%s", err->text);
}

int cmd_nomem(void)
{
    return cmd_failf(CMD_FAILED, "out of memory");
}

int cmd_usage(const struct cmd *c, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(4096);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    /* a question that names the right word needs no more */
    if (str_ends(buf_str(&text), STR("?")))
        return cmd_failf(CMD_USAGE, "%s", text.ptr);
    return cmd_failf(CMD_USAGE, "%s; see 'berth %s -h'", text.ptr ? text.ptr : "unusable command line", c->name);
}

int cmd_print(struct str text)
{
    if (fwrite(text.ptr ? text.ptr : "", 1, text.len, stdout) != text.len || fflush(stdout) != 0) {
        if (errno == EPIPE)
            return CMD_FAILED; /* the reader has what it wanted */
        return cmd_failf(CMD_FAILED, "cannot write the result: %s", strerror(errno));
    }
    return CMD_OK;
}

/* The folder of a path, opened; *ret_name is what stands behind it. */
static int open_folder_of(const char *path, const char **ret_name, struct err *err)
{
    const char *slash = strrchr(path, '/');
    base_autofree char *folder = slash ? str_dup((struct str){path, (size_t)(slash - path) + 1}) : str_dup(STR("."));
    *ret_name = slash ? slash + 1 : path;
    return folder ? os_open_dir(folder, err) : err_nomem(err);
}

static int write_new(const char *path, struct str text, bool must_be_new, struct err *err)
{
    os_autoclose int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | (must_be_new ? O_CREAT | O_EXCL : 0), 0644);
    if (fd < 0)
        return err_sys(err, -errno, "cannot write '%s'", path);
    int r = os_write_all(fd, text.ptr, text.len, err);
    if (r < 0 && must_be_new)
        (void)unlink(path);
    return r;
}

int cmd_write_file(const char *path, struct str text, bool replace, struct err *err)
{
    struct stat st;
    if (!replace || lstat(path, &st) < 0)
        return write_new(path, text, true, err);
    /* the names of open descriptors are not to be replaced either */
    bool direct = stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || str_starts(str_of(path), STR("/dev/")) || str_starts(str_of(path), STR("/proc/")));
    if (direct)
        return write_new(path, text, false, err);
    /* a link stays: what it leads to is replaced */
    base_autofree char *whole = realpath(path, NULL);
    if (!whole)
        return err_sys(err, -errno, "cannot write '%s'", path);
    const char *name;
    os_autoclose int dir = open_folder_of(whole, &name, err);
    return dir < 0 ? dir : os_replace_atomic(dir, name, text.ptr, text.len, err);
}

/* JSON lets strings hold characters that a terminal obeys: they are written as the escapes that JSON has for them. Its own bytes are all printable, but for the ends of lines. */
static void add_escaped(struct buf *out, struct str text)
{
    while (text.len) {
        uint32_t point = 0;
        size_t plain = 0, n = 0;
        while (plain < text.len && (n = str_utf8_decode((struct str){text.ptr + plain, text.len - plain}, &point)) > 0 && (point == '\n' || str_is_shown(point)))
            plain += n;
        buf_add(out, text.ptr, plain);
        text = (struct str){text.ptr + plain, text.len - plain};
        if (!text.len)
            return;
        if (point > 0xFFFF)
            buf_addf(out, "\\u%04x\\u%04x", 0xD800 + ((unsigned)(point - 0x10000) >> 10), 0xDC00 + ((unsigned)(point - 0x10000) & 0x3FF));
        else
            buf_addf(out, "\\u%04x", (unsigned)point);
        n = n ? n : 1; /* json_out lets nothing pass that is no UTF-8 */
        text = (struct str){text.ptr + n, text.len - n};
    }
}

int cmd_print_json(struct json_out *o)
{
    base_autobuf struct buf text = BUF_INIT(PRINT_MAX), shown = BUF_INIT(PRINT_MAX);
    int r = json_out_finish(o, true, &text);
    json_out_free(o);
    if (r == 0)
        add_escaped(&shown, buf_str(&text));
    return r < 0 || buf_status(&shown) < 0 ? cmd_nomem() : cmd_print(buf_str(&shown));
}

int cmd_print_table(struct os_table *t)
{
    base_autobuf struct buf text = BUF_INIT(PRINT_MAX);
    int r = os_table_text(t, os_term_color(STDOUT_FILENO), &text);
    os_table_free(t);
    return r < 0 ? cmd_nomem() : cmd_print(buf_str(&text));
}

static void show_progress(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    enum os_style style = level == EVENT_ERROR ? OS_RED : level == EVENT_WARN ? OS_YELLOW : OS_PLAIN;
    if (level >= EVENT_WARN)
        os_progress_say(ctx, style, "%s: %s", subject, text);
    else
        os_progress_set(ctx, subject, text, done, total, OS_PLAIN);
}

struct event_sink cmd_progress_sink(struct os_progress *p)
{
    return (struct event_sink){.emit = show_progress, .ctx = p};
}

/* ---- the command line --------------------------------------------------------------------------------- */

static size_t count_options(const struct cmd *c)
{
    size_t n = 0;
    while (n < CMD_OPTIONS_MAX && c->options[n].name)
        n++;
    return n;
}

static size_t option_index(const struct cmd *c, const char *name)
{
    for (size_t i = 0; i < count_options(c); i++)
        if (strcmp(c->options[i].name, name) == 0)
            return i;
    assert(false && "an option that the command does not have");
    return 0;
}

const char *cmd_value(const struct cmd *c, const struct cmd_args *a, const char *name)
{
    return a->values[option_index(c, name)];
}

bool cmd_given(const struct cmd *c, const struct cmd_args *a, const char *name)
{
    return cmd_value(c, a, name) != NULL;
}

/* What one word of the command line is. */
struct word {
    ptrdiff_t option;  /* index, or -1 */
    const char *value; /* of the option, when it has one */
    bool takes_next;   /* the value is the next word */
    bool help;
    struct str cluster; /* more switches behind a short one */
};

/* Reads a short option at the front of `rest` (without the dash). */
static bool read_short(const struct cmd *c, struct str rest, struct word *w)
{
    *w = (struct word){.option = -1};
    if (rest.ptr[0] == 'h') {
        w->help = true;
        return true;
    }
    for (size_t i = 0; i < count_options(c); i++) {
        if (!c->options[i].letter || c->options[i].letter != rest.ptr[0])
            continue;
        w->option = (ptrdiff_t)i;
        struct str behind = {rest.ptr + 1, rest.len - 1};
        if (!c->options[i].value)
            w->cluster = behind;
        else if (behind.len)
            w->value = behind.ptr; /* argv words are terminated */
        else
            w->takes_next = true;
        return true;
    }
    return false;
}

static bool read_long(const struct cmd *c, const char *text, struct word *w, int *ret_exit)
{
    *w = (struct word){.option = -1};
    struct str rest = str_of(text);
    struct str name = str_split(&rest, '=');
    if (str_eq_c(name, "help")) {
        w->help = true;
        return true;
    }
    const char *names[CMD_OPTIONS_MAX];
    size_t n = count_options(c);
    for (size_t i = 0; i < n; i++) {
        names[i] = c->options[i].name;
        if (!str_eq_c(name, c->options[i].name))
            continue;
        w->option = (ptrdiff_t)i;
        if (c->options[i].value && rest.ptr)
            w->value = rest.ptr;
        else if (c->options[i].value)
            w->takes_next = true;
        else if (rest.ptr) {
            *ret_exit = cmd_usage(c, "option '--%s' takes no value", c->options[i].name);
            return false;
        }
        return true;
    }
    const char *near = str_nearest(name, names, n);
    if (near)
        *ret_exit = cmd_usage(c, "unknown option '--%.*s'; did you mean '--%s'?", STR_ARG(name), near);
    else
        *ret_exit = cmd_usage(c, "unknown option '--%.*s'", STR_ARG(name));
    return false;
}

static bool take_option(const struct cmd *c, const struct word *w, int argc, char **argv, int *i, struct cmd_args *ret, int *ret_exit)
{
    const struct cmd_option *o = &c->options[w->option];
    const char *value = w->value ? w->value : "";
    if (w->takes_next) {
        if (*i + 1 >= argc) {
            *ret_exit = cmd_usage(c, "option '--%s' needs a value (%s)", o->name, o->value);
            return false;
        }
        value = argv[++*i];
    }
    ret->values[w->option] = value;
    ret->counts[w->option]++;
    return true;
}

static bool print_help(const struct cmd *c, int *ret_exit)
{
    base_autobuf struct buf text = BUF_INIT(64u << 10);
    int r = cmd_help_text(c, &text);
    *ret_exit = r ? cmd_nomem() : cmd_print(buf_str(&text));
    return false;
}

/* A fleet file without its -f is the usual one. */
static int refuse_word(const struct cmd *c, const char *word, size_t max_words)
{
    const char *end = strrchr(word, '.');
    if (end && (strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0))
        for (size_t i = 0; i < count_options(c); i++)
            if (strcmp(c->options[i].name, "file") == 0)
                return cmd_usage(c, "takes no word '%.60s'; did you mean '-f %.60s'?", word, word);
    return max_words ? cmd_usage(c, "one word too many: '%.60s'", word) : cmd_usage(c, "takes no words: '%.60s'", word);
}

bool cmd_parse(const struct cmd *c, int argc, char **argv, size_t min_words, size_t max_words, struct cmd_args *ret, int *ret_exit)
{
    assert(max_words <= CMD_WORDS_MAX);
    running = c->name;
    *ret = (struct cmd_args){.argc = argc, .argv = argv};
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!only_words && strcmp(a, "--") == 0) {
            only_words = true;
            continue;
        }
        struct word w;
        if (only_words || a[0] != '-' || !a[1]) {
            if (ret->n_words == max_words) {
                *ret_exit = refuse_word(c, a, max_words);
                return false;
            }
            ret->words[ret->n_words++] = a;
            continue;
        }
        if (a[1] == '-') {
            if (!read_long(c, a + 2, &w, ret_exit))
                return false;
            if (w.help)
                return print_help(c, ret_exit);
            if (!take_option(c, &w, argc, argv, &i, ret, ret_exit))
                return false;
            continue;
        }
        for (struct str rest = str_of(a + 1); rest.len; rest = w.cluster) {
            if (!read_short(c, rest, &w)) {
                *ret_exit = cmd_usage(c, "unknown option '-%c'", rest.ptr[0]);
                return false;
            }
            if (w.help)
                return print_help(c, ret_exit);
            if (!take_option(c, &w, argc, argv, &i, ret, ret_exit))
                return false;
        }
    }
    if (ret->n_words < min_words) {
        *ret_exit = cmd_usage(c, "something is missing: berth %s %s", c->name, c->synopsis);
        return false;
    }
    return true;
}

const char *cmd_value_at(const struct cmd *c, const struct cmd_args *a, const char *name, size_t i)
{
    /* The line was parsed without error before, so a second walk needs no checks. */
    size_t want = option_index(c, name);
    if (i >= a->counts[want])
        return NULL;
    for (int k = 1; k < a->argc; k++) {
        const char *s = a->argv[k];
        if (strcmp(s, "--") == 0)
            break;
        if (s[0] != '-' || !s[1])
            continue;
        struct word w;
        int ignored;
        struct str rest = str_of(s + 1);
        do {
            bool ok = s[1] == '-' ? read_long(c, s + 2, &w, &ignored) : read_short(c, rest, &w);
            if (!ok || w.option < 0)
                return NULL;
            const char *value = w.value;
            if (w.takes_next && k + 1 < a->argc)
                value = a->argv[++k];
            if ((size_t)w.option == want && i-- == 0)
                return value ? value : "";
            rest = w.cluster;
        } while (rest.len);
    }
    return NULL;
}

struct fleet *cmd_fleet(const struct cmd *c, const struct cmd_args *a, int *ret_exit)
{
    const char *path = cmd_value(c, a, "file");
    struct fleet_options opt = engine_fleet_options();
    struct fleet *f = NULL;
    struct err err;
    if (fleet_load(path ? path : "fleet.yaml", &opt, &f, &err) < 0) {
        if (err.code == -ENOENT && !path)
            *ret_exit = cmd_failf(CMD_USAGE, "%s; 'berth init' writes one, -f FILE names another", err.text);
        else
            *ret_exit = cmd_fail(CMD_USAGE, &err);
        return NULL;
    }
    return f;
}

int cmd_on_fleet(const struct cmd *c, const struct cmd_args *a, int (*fn)(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs))
{
    int code = CMD_OK;
    struct os_dirs dirs;
    struct err err;
    struct fleet *f = cmd_fleet(c, a, &code);
    if (!f)
        return code;
    if (os_dirs_find(&dirs, &err) < 0) {
        code = cmd_fail(CMD_FAILED, &err);
    } else {
        code = fn(c, a, f, &dirs);
        os_dirs_release(&dirs);
    }
    fleet_free(f);
    return code;
}

int cmd_on_name(const struct cmd *c, const struct cmd_args *a, int (*fn)(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs))
{
    const char *path = cmd_value(c, a, "file");
    char name[FLEET_NAME_MAX + 1];
    struct os_dirs dirs;
    struct err err;
    int code = CMD_OK;
    if (fleet_name_of(path ? path : "fleet.yaml", name) < 0) {
        /* no name: what is wrong is for the reader of the whole file to say */
        struct fleet *f = cmd_fleet(c, a, &code);
        if (!f)
            return code;
        (void)snprintf(name, sizeof(name), "%s", f->name);
        fleet_free(f);
    }
    if (os_dirs_find(&dirs, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    code = fn(c, a, name, &dirs);
    os_dirs_release(&dirs);
    return code;
}
