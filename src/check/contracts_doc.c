/* SPDX-License-Identifier: MIT
 *
 * Contracts about the pages that a fleet names: command lines that they quote say what is declared, and their links lead somewhere. A quoted line is one of a code block whose program is that of an engine; it is the line of
 * the service whose alias or port it names, else of one that serves its model.
 */
#include "check_int.h"

#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_MAX ((size_t)8 << 20) /* bytes */
#define LINE_WORDS 1024            /* of one quoted command */

/* A page as it was read, for both contracts. */
struct check_page {
    bool read;
    const char *wrong; /* it cannot be read */
    struct str text;
};

struct page {
    struct check_run *c;
    const struct fleet_document *d;
    struct str text;
    const char *subject;
    size_t found; /* command lines, or links */
    bool broken;
};

static int say(struct page *p, unsigned line, const char *what)
{
    p->broken = true;
    return what ? check_found(p->c, CHECK_BROKEN, p->subject, check_where(p->c, p->d->path, line), "%s", what) : err_nomem(p->c->err);
}

static int want_page(struct check_run *c, size_t i)
{
    const char *path = c->f->documents[i].path;
    base_autobuf struct buf text = BUF_INIT(PAGE_MAX);
    struct err err;
    if (!c->pages && !(c->pages = arena_alloc(c->a, c->f->n_documents, sizeof *c->pages)))
        return err_nomem(c->err);
    struct check_page *p = &c->pages[i];
    if (p->read)
        return 0;
    p->read = true;
    p->wrong = check_file_wrong(c, path);
    if (!p->wrong && os_read_file(AT_FDCWD, path, &text, &err) < 0 && !(p->wrong = arena_dup(c->a, str_of(err.text))))
        return err_nomem(c->err);
    const char *copy = p->wrong ? "" : arena_dup(c->a, buf_str(&text));
    if (!copy)
        return err_nomem(c->err);
    p->text = (struct str){copy, p->wrong ? 0 : text.len};
    return 0;
}

/* Every page for one contract; one that cannot be read is told by `teller` alone. */
static int each_page(struct check_run *c, int (*judge)(struct page *p), bool teller, const char *what, const char *none)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->f->n_documents; i++) {
        const struct fleet_document *d = &c->f->documents[i];
        struct page p = {.c = c, .d = d, .subject = check_subject(c, "document", check_short(c, d->path))};
        r = want_page(c, i);
        if (r < 0)
            break;
        const char *wrong = c->pages[i].wrong, *at = check_where(c, d->path, 0);
        if (wrong) {
            r = check_found(c, teller ? CHECK_BROKEN : CHECK_NONE, p.subject, check_at(c, d->pos), "%s", teller ? wrong : "it cannot be read: see contract links");
            continue;
        }
        p.text = c->pages[i].text;
        r = judge(&p);
        if (r == 0 && !p.broken && p.found)
            r = check_found(c, CHECK_HOLDS, p.subject, at, "%zu %s%s", p.found, what, p.found == 1 ? "" : "s");
        else if (r == 0 && !p.broken)
            r = check_found(c, CHECK_NONE, p.subject, at, "%s", none);
    }
    if (r == 0 && c->f->n_documents == 0)
        r = check_found(c, CHECK_NONE, check_subject(c, "fleet", c->f->name), c->f->file, "no document is declared");
    return r;
}

/* The lines of a page, and which of them are in code blocks, whose own marks are not inside. A block ends at marks of its own kind, as many as it began with. */
struct lines {
    struct str rest;
    unsigned line;
    bool code, mark; /* this line is in a block; it begins or ends one */
    char kind;       /* of the block's marks */
    size_t width;
};

/* How many marks of a fence a line begins with; 0: it is none. *ret_bare: nothing stands behind them. */
static size_t fence_of(struct str line, bool *ret_bare)
{
    struct str s = str_trim(line);
    size_t n = 0;
    while (n < s.len && (s.ptr[n] == '`' || s.ptr[n] == '~') && s.ptr[n] == s.ptr[0])
        n++;
    *ret_bare = n == s.len;
    /* "```x```" is code within a line */
    return n < 3 || (s.ptr[0] == '`' && memchr(s.ptr + n, '`', s.len - n)) ? 0 : n;
}

static bool next_line(struct lines *l, struct str *ret)
{
    bool bare;
    if (!l->rest.ptr)
        return false;
    if (l->mark)
        l->code = !l->code;
    *ret = str_split(&l->rest, '\n');
    l->line++;
    size_t n = fence_of(*ret, &bare);
    char kind = n ? str_trim(*ret).ptr[0] : '\0';
    l->mark = l->code ? n >= l->width && kind == l->kind && bare : n > 0;
    if (l->mark && !l->code) {
        l->kind = kind;
        l->width = n;
    }
    return true;
}

/* ---- flags ----------------------------------------------------------------------------------------------------------- */

struct quoted {
    const char *words[LINE_WORDS];
    size_t n;
};

/* Words as a shell would read them, without what only a shell can know. */
static int split_words(struct arena *a, struct str s, struct quoted *ret)
{
    base_autobuf struct buf w = BUF_INIT(PAGE_MAX);
    char quote = 0;
    bool any = false;
    ret->n = 0;
    for (size_t i = 0; i <= s.len; i++) {
        char ch = i < s.len ? s.ptr[i] : ' ';
        if (quote ? ch == quote : ch == '"' || ch == '\'') {
            quote = quote ? 0 : ch;
            any = true;
        } else if (ch == '\\' && i + 1 < s.len && quote != '\'') {
            buf_add_char(&w, s.ptr[++i]);
            any = true;
        } else if (quote || (ch != ' ' && ch != '\t' && ch != '\r' && ch != '\n')) {
            buf_add_char(&w, ch);
            any = true;
        } else if (any) {
            if (ret->n == LINE_WORDS)
                return 0; /* no command of a person's */
            if (!(ret->words[ret->n] = arena_dup(a, buf_str(&w))))
                return -ENOMEM;
            ret->n++;
            buf_clear(&w);
            any = false;
        }
    }
    return 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *program_of(const struct fleet_service *s)
{
    return s->n_command ? base_name(s->command[0]) : engine_program(engine_find(s->runtime->engine));
}

static bool is_flag(const char *w)
{
    return w[0] == '-' && w[1] && !(w[1] >= '0' && w[1] <= '9');
}

static bool same_flag(const struct fleet_service *s, struct str a, struct str b)
{
    return str_eq(engine_flag_name(engine_find(s->runtime->engine), a), engine_flag_name(engine_find(s->runtime->engine), b));
}

/* The value of a flag in a list of words: NULL when the flag is not there, "" when it has none. */
static const char *value_in(const struct fleet_service *s, const char *const *words, size_t n, struct str flag)
{
    for (size_t i = 0; i < n; i++) {
        struct str w = str_of(words[i]), value = w, name = is_flag(words[i]) ? str_split(&value, '=') : w;
        if (!is_flag(words[i]) || !same_flag(s, name, flag))
            continue;
        if (value.ptr)
            return value.ptr;
        return i + 1 < n && !is_flag(words[i + 1]) ? words[i + 1] : "";
    }
    return NULL;
}

/* Whether a quoted line is the service's: it names its alias or port, or neither and its model. */
static bool is_line_of(const struct fleet_service *s, const struct quoted *q)
{
    char port[8];
    snprintf(port, sizeof port, "%u", (unsigned)s->port);
    const char *says = value_in(s, q->words, q->n, STR("--port")), *alias = value_in(s, q->words, q->n, STR("--alias")), *served = value_in(s, q->words, q->n, STR("--served-model-name")), *model = value_in(s, q->words, q->n, STR("-m"));
    if (says)
        return strcmp(says, port) == 0;
    if (alias || served)
        return strcmp(alias ? alias : served, engine_served_name(s)) == 0;
    return model && s->model && strcmp(base_name(model), base_name(s->model->weights)) == 0;
}

/* Whether a flag that is quoted with a value is among words, which may have it more than once; *ret: a value that it has there, NULL for none. */
static bool gets_value(const struct fleet_service *s, const char *const *argv, size_t n, struct str name, const char *says, const char **ret)
{
    *ret = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *gets = is_flag(argv[i]) ? value_in(s, argv + i, n - i, name) : NULL;
        *ret = *ret ? *ret : gets;
        if (gets && (strcmp(says, gets) == 0 || (gets[0] == '/' && strcmp(base_name(says), base_name(gets)) == 0)))
            return true;
    }
    return false;
}

/* What a line quotes otherwise than it is; NULL: nothing. */
static int compare(struct check_run *c, const struct fleet_service *s, const struct quoted *q, const char **ret)
{
    const char *const *argv;
    size_t n = 0;
    struct err err;
    int r = check_command(c, s, &argv, &n, &err);
    if (r < 0)
        return r == -ENOMEM ? err_nomem(c->err) : 0; /* contract argv says it */
    for (size_t i = 0; i < q->n && !*ret; i++) {
        if (!is_flag(q->words[i]))
            continue;
        struct str value = str_of(q->words[i]), name = str_split(&value, '=');
        const char *says = value_in(s, q->words + i, q->n - i, name), *gets;
        bool same = gets_value(s, argv, n, name, says, &gets);
        if (!gets)
            *ret = arena_printf(c->a, "it quotes '" STR_FMT "', which service '%s' does not get", STR_ARG(name), s->name);
        else if (!same)
            *ret = arena_printf(c->a, "it quotes '" STR_FMT "%s%s', and service '%s' gets '%s'", STR_ARG(name), says[0] ? " " : "", says, s->name, gets[0] ? gets : "no value");
        if (!*ret && (!gets || !same))
            return err_nomem(c->err);
    }
    return 0;
}

/* A line of an engine that is no service's: when it names a port or an alias, there should be one. */
static int judge_stray(struct page *p, const struct fleet_service *like, const struct quoted *q, const char *program, unsigned line)
{
    static const char *const flags[][2] = {{"--port", "at port"}, {"--alias", "with the alias"}, {"--served-model-name", "with the alias"}};
    for (size_t i = 0; i < BASE_COUNT(flags); i++) {
        const char *value = value_in(like, q->words, q->n, str_of(flags[i][0]));
        if (value)
            return say(p, line, arena_printf(p->c->a, "it quotes a '%s' %s %s, which no service has", program, flags[i][1], value));
    }
    return 0;
}

static int judge_command(struct page *p, struct str text, unsigned line)
{
    struct check_run *c = p->c;
    struct quoted q;
    const char *wrong = NULL;
    if (split_words(c->a, text, &q) < 0)
        return err_nomem(c->err);
    for (size_t k = 0; k < q.n; k++) {
        const struct fleet_service *like = NULL;
        for (size_t i = 0; i < c->f->n_services; i++) {
            const struct fleet_service *s = &c->f->services[i];
            const char *name = program_of(s);
            if (!name || strcmp(base_name(q.words[k]), name) != 0)
                continue;
            like = s;
            if (!is_line_of(s, &q))
                continue;
            p->found++;
            int r = compare(c, s, &q, &wrong);
            return r < 0 || !wrong ? r : say(p, line, wrong);
        }
        if (like)
            return judge_stray(p, like, &q, base_name(q.words[k]), line);
    }
    return 0;
}

/* Lines of code blocks, continued ones joined. */
static int judge_flags(struct page *p)
{
    struct lines l = {.rest = p->text};
    base_autobuf struct buf command = BUF_INIT(PAGE_MAX);
    unsigned first = 0;
    struct str line;
    int r = 0;
    while (r == 0 && next_line(&l, &line)) {
        if (!l.code || l.mark)
            continue;
        if (command.len == 0)
            first = l.line;
        struct str s = str_trim(line);
        bool goes_on = s.len && s.ptr[s.len - 1] == '\\';
        buf_add_str(&command, (struct str){s.ptr, s.len - goes_on});
        buf_add_char(&command, ' ');
        if (goes_on)
            continue;
        r = buf_status(&command) < 0 ? err_nomem(p->c->err) : judge_command(p, buf_str(&command), first);
        buf_clear(&command);
    }
    return r;
}

int check_flags(struct check_run *c)
{
    return each_page(c, judge_flags, false, "command line", "it quotes no command line of a service");
}

/* ---- links -------------------------------------------------------------------------------------------------------------- */

/* A heading as pages link to it: lower case, spaces as '-', no punctuation. */
static void slug_of(struct str heading, struct buf *out)
{
    for (size_t i = 0; i < heading.len; i++) {
        char ch = heading.ptr[i];
        if (ch >= 'A' && ch <= 'Z')
            buf_add_char(out, (char)(ch - 'A' + 'a'));
        else if ((ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9') || ch == '-' || ch == '_' || (unsigned char)ch >= 0x80)
            buf_add_char(out, ch);
        else if (ch == ' ')
            buf_add_char(out, '-');
    }
}

static unsigned count_headings(struct str text, struct str anchor)
{
    struct lines l = {.rest = text};
    struct str line;
    unsigned found = 0;
    while (next_line(&l, &line)) {
        size_t n = 0;
        while (n < line.len && line.ptr[n] == '#')
            n++;
        if (n == 0 || l.code || l.mark)
            continue;
        base_autobuf struct buf slug = BUF_INIT(4096);
        slug_of(str_trim((struct str){line.ptr + n, line.len - n}), &slug);
        found += str_eq(buf_str(&slug), anchor);
    }
    return found;
}

/* Of equal headings the second is linked to with "-1" behind it, and so on. */
static bool has_heading(struct str text, struct str anchor)
{
    struct str first = anchor;
    uint64_t no;
    if (count_headings(text, anchor))
        return true;
    while (first.len && first.ptr[first.len - 1] >= '0' && first.ptr[first.len - 1] <= '9')
        first.len--;
    if (first.len < 2 || first.len == anchor.len || first.ptr[first.len - 1] != '-' || str_to_u64((struct str){anchor.ptr + first.len, anchor.len - first.len}, &no) < 0)
        return false;
    first.len--;
    return count_headings(text, first) > no;
}

static bool is_elsewhere(struct str target)
{
    ptrdiff_t colon = str_find_char(target, ':'), slash = str_find_char(target, '/');
    return colon > 0 && (slash < 0 || colon < slash); /* https:, mailto: */
}

/* "docs/fleet.md#clients" from the page's folder. */
static int judge_target(struct page *p, struct str target, unsigned line)
{
    struct check_run *c = p->c;
    struct str anchor = target, path = str_split(&anchor, '#');
    if (target.len == 0 || is_elsewhere(target))
        return 0;
    p->found++;
    if (path.len == 0)
        return has_heading(p->text, anchor) ? 0 : say(p, line, arena_printf(c->a, "'#" STR_FMT "' is no heading of the page", STR_ARG(anchor)));
    const char *slash = strrchr(p->d->path, '/');
    const char *full = path.ptr[0] == '/' ? arena_dup(c->a, path) : arena_printf(c->a, "%.*s/" STR_FMT, (int)(slash - p->d->path), p->d->path, STR_ARG(path));
    if (!full)
        return err_nomem(c->err);
    if (access(full, F_OK) < 0)
        return say(p, line, arena_printf(c->a, "'" STR_FMT "' is not there", STR_ARG(path)));
    if (!anchor.len || !str_ends(path, STR(".md")))
        return 0; /* what other kinds of files make of an anchor is their own */
    base_autobuf struct buf text = BUF_INIT(PAGE_MAX);
    struct err err;
    if (os_read_file(AT_FDCWD, full, &text, &err) < 0)
        return say(p, line, arena_printf(c->a, "its heading cannot be looked for: %s", err.text));
    return has_heading(buf_str(&text), anchor) ? 0 : say(p, line, arena_printf(c->a, "'#" STR_FMT "' is no heading of '" STR_FMT "'", STR_ARG(anchor), STR_ARG(path)));
}

/* "](target)" and "](<target>)", "[name]: target". */
static int judge_line(struct page *p, struct str line, unsigned number)
{
    int r = 0;
    ptrdiff_t at;
    struct str rest = str_trim(line);
    if (str_starts(rest, STR("[")) && (at = str_find(rest, STR("]: "))) > 0) {
        rest = str_trim((struct str){rest.ptr + at + 3, rest.len - (size_t)at - 3});
        return judge_target(p, str_split(&rest, ' '), number);
    }
    while (r == 0 && (at = str_find(rest, STR("]("))) >= 0) {
        rest = (struct str){rest.ptr + at + 2, rest.len - (size_t)at - 2};
        struct str after = rest, target = str_split(&after, ')');
        if (!after.ptr)
            break;
        target = str_split(&target, ' '); /* a title may follow */
        if (target.len > 1 && target.ptr[0] == '<')
            target = (struct str){target.ptr + 1, target.len - 2};
        r = judge_target(p, target, number);
        rest = after;
    }
    return r;
}

static int judge_links(struct page *p)
{
    struct lines l = {.rest = p->text};
    struct str line;
    int r = 0;
    while (r == 0 && next_line(&l, &line))
        if (!l.code && !l.mark)
            r = judge_line(p, line, l.line);
    return r;
}

int check_links(struct check_run *c)
{
    return each_page(c, judge_links, true, "link", "it has no link to a file");
}
