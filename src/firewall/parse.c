/* SPDX-License-Identifier: MIT
 *
 * Text of rules to chains: what `nft list ruleset` prints, a block for each table and chain with one rule in each line, and what `iptables-save` prints, a line for each chain and each rule. Sets, maps and everything else that
 * is no chain is passed over by counting braces.
 */
#include "firewall.h"

#include <errno.h>
#include <string.h>

struct parser {
    struct arena *a;
    struct firewall *f;
    struct err *err;
    unsigned line;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* A rule's words, while they are read. */
struct words {
    const char **list;
    size_t n, cap;
};

static int add_word(struct parser *p, struct words *w, struct str word)
{
    if (w->n == FIREWALL_WORDS_MAX)
        return err_set(p->err, -E2BIG, "line %u has more than %d words", p->line, FIREWALL_WORDS_MAX);
    const char **list = arena_grow(p->a, w->list, w->n + 1, &w->cap, sizeof *list);
    if (!list)
        return err_nomem(p->err);
    w->list = list;
    list[w->n] = arena_dup(p->a, word);
    return list[w->n++] ? 0 : err_nomem(p->err);
}

/* A line as words: quotes hold spaces together and are taken off; braces, commas, colons between spaces and semicolons stand alone. */
static int nft_words(struct parser *p, struct str s, struct words *ret)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < s.len;) {
        if (is_space(s.ptr[i])) {
            i++;
            continue;
        }
        size_t begin = i, end;
        if (s.ptr[i] == '"') {
            begin = ++i;
            while (i < s.len && s.ptr[i] != '"')
                i++;
            end = i;
            i += i < s.len;
        } else if (strchr("{},;", s.ptr[i])) {
            end = ++i;
        } else {
            while (i < s.len && !is_space(s.ptr[i]) && !strchr("{},;\"", s.ptr[i]))
                i++;
            end = i;
        }
        r = add_word(p, ret, (struct str){s.ptr + begin, end - begin});
    }
    return r;
}

static int add_chain(struct parser *p, const char *table, const char *name, struct firewall_chain **ret)
{
    struct firewall *f = p->f;
    struct firewall_chain *list = arena_grow(p->a, f->chains, f->n + 1, &f->cap, sizeof *list);
    if (!list || !name || !table)
        return err_nomem(p->err);
    f->chains = list;
    list[f->n] = (struct firewall_chain){.table = table, .name = name, .line = p->line};
    *ret = &list[f->n++];
    return 0;
}

static int add_rule(struct parser *p, struct firewall_chain *c, const char *const *words, size_t n)
{
    struct firewall_rule *list = arena_grow(p->a, c->rules, c->n_rules + 1, &c->cap, sizeof *list);
    if (!list)
        return err_nomem(p->err);
    c->rules = list;
    list[c->n_rules++] = (struct firewall_rule){.line = p->line, .words = words, .n_words = n};
    return 0;
}

/* ---- nft ------------------------------------------------------------------------------------------------------------- */

/* "type filter hook input priority filter; policy drop;" */
static void take_hook(struct firewall_chain *c, const char *const *w, size_t n)
{
    bool filter = n > 1 && strcmp(w[1], "filter") == 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (strcmp(w[i], "hook") == 0) {
            c->input = filter && strcmp(w[i + 1], "input") == 0;
            c->output = filter && strcmp(w[i + 1], "output") == 0;
        }
        if (strcmp(w[i], "policy") == 0)
            c->drops = strcmp(w[i + 1], "drop") == 0;
    }
}

struct blocks {
    const char *table;
    struct firewall_chain *chain;
    size_t depth; /* of open braces */
};

static int nft_line(struct parser *p, struct blocks *b, const char *const *w, size_t n)
{
    int r = 0;
    /* families without IPv4 have nothing to say of it */
    if (b->depth == 0 && n >= 3 && strcmp(w[0], "table") == 0) {
        bool named = n >= 4 && strcmp(w[2], "{") != 0;
        bool counts = !named || strcmp(w[1], "ip") == 0 || strcmp(w[1], "inet") == 0;
        b->table = counts ? arena_printf(p->a, "%s %s", w[1], named ? w[2] : "") : NULL;
        if (counts && !b->table)
            return err_nomem(p->err);
    } else if (b->depth == 1 && b->table && n >= 3 && strcmp(w[0], "chain") == 0) {
        r = add_chain(p, b->table, w[1], &b->chain);
    } else if (b->depth == 2 && b->chain && n > 1 && strcmp(w[0], "type") == 0) {
        take_hook(b->chain, w, n);
    } else if (b->depth == 2 && b->chain && n > 0 && strcmp(w[0], "}") != 0 && strcmp(w[0], "policy") != 0) {
        r = add_rule(p, b->chain, w, n);
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(w[i], "{") == 0)
            b->depth++;
        else if (strcmp(w[i], "}") == 0 && b->depth > 0)
            b->depth--;
    }
    if (b->depth < 2)
        b->chain = NULL;
    if (b->depth == 0)
        b->table = NULL;
    return r;
}

/* ---- iptables ----------------------------------------------------------------------------------------------------------- */

static struct firewall_chain *find(struct firewall *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->chains[i].name, name) == 0)
            return &f->chains[i];
    return NULL;
}

static int iptables_line(struct parser *p, bool *filter, const char *const *w, size_t n)
{
    struct firewall_chain *c = NULL;
    if (n == 0)
        return 0;
    if (w[0][0] == '*')
        *filter = strcmp(w[0], "*filter") == 0;
    if (!*filter || w[0][0] == '*')
        return 0;
    if (w[0][0] == ':' && n > 1) {
        int r = add_chain(p, "filter", w[0] + 1, &c);
        if (r < 0)
            return r;
        c->input = strcmp(c->name, "INPUT") == 0;
        c->output = strcmp(c->name, "OUTPUT") == 0;
        c->drops = strcmp(w[1], "DROP") == 0;
        return 0;
    }
    if (n > 2 && strcmp(w[0], "-A") == 0 && (c = find(p->f, w[1])) != NULL)
        return add_rule(p, c, w + 2, n - 2);
    return 0;
}

/* iptables has lists inside words; only nft's commas stand alone. */
static int iptables_words(struct parser *p, struct str s, struct words *ret)
{
    int r = 0;
    while (r == 0 && s.len) {
        s = str_trim(s);
        bool quoted = s.len && s.ptr[0] == '"';
        size_t end = quoted ? 1 : 0;
        while (end < s.len && (quoted ? s.ptr[end] != '"' : !is_space(s.ptr[end])))
            end++;
        if (s.len == 0)
            break;
        r = add_word(p, ret, (struct str){s.ptr + quoted, end - quoted});
        end += quoted && end < s.len;
        s = (struct str){s.ptr + end, s.len - end};
    }
    return r;
}

/* ---- both ---------------------------------------------------------------------------------------------------------------- */

/* The first line that says something tells the language. */
static int language(struct str text, bool *ret_iptables, struct err *err)
{
    while (text.ptr) {
        struct str line = str_trim(str_split(&text, '\n'));
        if (line.len == 0 || line.ptr[0] == '#')
            continue;
        *ret_iptables = line.ptr[0] == '*';
        if (line.ptr[0] == '*' || str_starts(line, STR("table ")))
            return 0;
        return err_set(err, -EBADMSG, "neither what 'nft list ruleset' nor what 'iptables-save' prints");
    }
    *ret_iptables = false;
    return 0;
}

int firewall_parse(struct str text, struct arena *a, struct firewall *ret, struct err *err)
{
    struct firewall f = {.n = 0};
    struct parser p = {.a = a, .f = &f, .err = err};
    struct blocks b = {.depth = 0};
    bool filter = false;
    if (!str_is_utf8(text))
        return err_set(err, -EBADMSG, "no text");
    int r = language(text, &f.iptables, err);
    while (r == 0 && text.ptr) {
        struct str line = str_trim(str_split(&text, '\n'));
        struct words w = {.n = 0};
        p.line++;
        if (line.len == 0 || line.ptr[0] == '#')
            continue;
        r = f.iptables ? iptables_words(&p, line, &w) : nft_words(&p, line, &w);
        if (r == 0)
            r = f.iptables ? iptables_line(&p, &filter, w.list, w.n) : nft_line(&p, &b, w.list, w.n);
    }
    if (r == 0 && b.depth > 0)
        r = err_set(err, -EBADMSG, "it ends in the middle of a block");
    if (r == 0)
        *ret = f;
    return r;
}
