/* SPDX-License-Identifier: MIT
 *
 * Bars of memory. A device is a line of cells: what each group of terms takes, what is free, and at the end the floor. With colours a cell is a coloured space, so that no font is asked for; without, each group has a letter. What does not
 * fit goes on beyond the device's end, behind a '|'.
 */
#include "fit_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CELLS_MAX 512
#define OVER '!'
#define FREE '.'
#define FLOOR '/'

const struct fit_group_look fit_looks[FIT_GROUPS_SHOWN] = {
    [FIT_G_WEIGHTS] = {"weights", "#2f6690", 25, 'W', true},
    [FIT_G_KV] = {"KV cache", "#3aa17e", 36, 'K', false},
    [FIT_G_STATE] = {"states", "#9ccf8f", 150, 'S', false},
    [FIT_G_COMPUTE] = {"compute", "#f0a63c", 214, 'C', false},
    [FIT_G_DRAFT] = {"drafter", "#7d5ba6", 97, 'D', true},
    [FIT_G_PROJECTOR] = {"projector", "#d0648f", 168, 'P', false},
    [FIT_G_PROMPTS] = {"prompt cache", "#cbb079", 180, 'H', false},
    [FIT_G_DRIVER] = {"driver", "#8c939a", 244, 'X', false},
    [FIT_G_SHARED] = {"shared pool", "#5b7fa3", 67, 'G', true},
};

static enum fit_group group_of(enum fit_term t)
{
    static const enum fit_group groups[FIT_TERMS] = {
        [FIT_WEIGHTS] = FIT_G_WEIGHTS, [FIT_KV] = FIT_G_KV, [FIT_INDEXER] = FIT_G_KV, [FIT_STATE] = FIT_G_STATE, [FIT_COMPUTE] = FIT_G_COMPUTE, [FIT_OUTPUT] = FIT_G_COMPUTE,
        [FIT_DRAFT_WEIGHTS] = FIT_G_DRAFT, [FIT_DRAFT_KV] = FIT_G_DRAFT, [FIT_DRAFT_STATE] = FIT_G_DRAFT, [FIT_DRAFT_COMPUTE] = FIT_G_DRAFT, [FIT_DRAFT_OUTPUT] = FIT_G_DRAFT, [FIT_TABLES] = FIT_G_DRAFT,
        [FIT_PROJECTOR] = FIT_G_PROJECTOR, [FIT_PROJECTOR_COMPUTE] = FIT_G_PROJECTOR, [FIT_PROMPT_CACHE] = FIT_G_PROMPTS, [FIT_CHECKPOINTS] = FIT_G_PROMPTS, [FIT_EXTRA] = FIT_G_DRIVER,
    };
    return groups[t];
}

/* ---- figures ---------------------------------------------------------------------------------------------------------- */

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return size_add(a, b, &sum) && sum < FIT_BYTES_MAX ? sum : FIT_BYTES_MAX;
}

void fit_group_sums(const struct check_plan *p, const struct check_machine *m, size_t d, uint64_t ret[FIT_GROUPS_SHOWN])
{
    memset(ret, 0, FIT_GROUPS_SHOWN * sizeof(*ret));
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct fit_use *u = p->needs[i].machine == m && check_counts(p, &p->needs[i], d) ? check_use(&p->needs[i], d) : NULL;
        for (int t = 0; u && t < FIT_TERMS; t++)
            ret[group_of((enum fit_term)t)] = plus(ret[group_of((enum fit_term)t)], u->terms[t].bytes);
    }
    for (size_t k = 0; d == m->n_devices && k < m->n_devices; k++)
        if (m->devices[k].shared)
            ret[FIT_G_SHARED] = plus(ret[FIT_G_SHARED], m->used[k]);
}

enum fit_known fit_known_use(const struct fit_use *u)
{
    enum fit_known worst = FIT_EXACT;
    for (int t = 0; t < FIT_TERMS; t++)
        if (u->terms[t].high && u->terms[t].known > worst)
            worst = u->terms[t].known;
    return worst;
}

enum fit_known fit_known_device(const struct check_plan *p, const struct check_machine *m, size_t d)
{
    enum fit_known worst = FIT_EXACT;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct fit_use *u = p->needs[i].machine == m && check_counts(p, &p->needs[i], d) ? check_use(&p->needs[i], d) : NULL;
        enum fit_known known = u ? fit_known_use(u) : FIT_EXACT;
        worst = known > worst ? known : worst;
    }
    for (size_t k = 0; d == m->n_devices && k < m->n_devices; k++)
        if (m->devices[k].shared && fit_known_device(p, m, k) > worst)
            worst = fit_known_device(p, m, k);
    return worst;
}

char fit_mark(enum fit_known k)
{
    static const char marks[] = {[FIT_EXACT] = '=', [FIT_MEASURED] = '*', [FIT_ESTIMATE] = '~', [FIT_UNPREDICTED] = '?'};
    return marks[k];
}

bool fit_shows_device(const struct check_machine *m, size_t d)
{
    return d < m->n_devices || m->memory_known || m->used[d] > 0;
}

const char *fit_gib(uint64_t bytes, char out[FIT_NUMBER])
{
    (void)snprintf(out, FIT_NUMBER, "%.2f", (double)bytes / (double)(1ull << 30));
    return out;
}

const char *fit_signed(int64_t bytes, char out[FIT_NUMBER])
{
    char text[UNITS_TEXT];
    (void)snprintf(out, FIT_NUMBER, "%s%s", bytes < 0 ? "-" : "", units_show_bytes((uint64_t)(bytes < 0 ? -bytes : bytes), text));
    return out;
}

/* ---- a bar ---------------------------------------------------------------------------------------------------------------- */

/* What each cell shows: a group, or one of the characters above. */
struct cells {
    int what[CELLS_MAX]; /* group, or FIT_GROUPS_SHOWN and up */
    unsigned n;
    unsigned end;        /* where the device ends; n when everything fits */
};
enum { CELL_FREE = FIT_GROUPS_SHOWN, CELL_FLOOR, CELL_OVER };

static unsigned scaled(uint64_t bytes, uint64_t all, unsigned n)
{
    double share = (double)bytes / (double)all;
    return share >= 1 ? n : (unsigned)(share * n + 0.5);
}

static void fill(struct cells *c, unsigned *at, unsigned to, int what)
{
    for (; *at < to && *at < c->n; (*at)++)
        c->what[*at] = what;
}

static void lay_out(const struct fit_view *v, const struct check_machine *m, size_t d, unsigned width, struct cells *c)
{
    uint64_t sums[FIT_GROUPS_SHOWN], all = check_free(m, d), sum = 0, floor = check_floor(m, d);
    unsigned at = 0;
    fit_group_sums(v->plan, m, d, sums);
    if (all >= FIT_BYTES_MAX || all < m->used[d])
        all = m->used[d];
    all = all ? all : 1;
    c->n = width < CELLS_MAX ? width : CELLS_MAX;
    c->end = scaled(check_free(m, d), all, c->n);
    for (int g = 0; g < FIT_GROUPS_SHOWN; g++) {
        sum = plus(sum, sums[g]);
        fill(c, &at, scaled(sum, all, c->n), g);
    }
    fill(c, &at, scaled(all > floor ? all - floor : 0, all, c->n), CELL_FREE);
    fill(c, &at, c->n, CELL_FLOOR);
}

static char letter_of(int what)
{
    if (what < FIT_GROUPS_SHOWN)
        return fit_looks[what].letter;
    return what == CELL_FREE ? FREE : what == CELL_FLOOR ? FLOOR : OVER;
}

/* A run of equal cells, with the group's name written into it where there is room. */
static void add_run(struct buf *out, int what, unsigned n, bool over)
{
    if (what >= FIT_GROUPS_SHOWN) {
        buf_add_c(out, over ? "\033[31m" : what == CELL_FLOOR ? "\033[38;5;173m" : "\033[38;5;240m");
        for (unsigned i = 0; i < n; i++)
            buf_add_char(out, letter_of(what));
        buf_add_c(out, "\033[0m");
        return;
    }
    const struct fit_group_look *look = &fit_looks[what];
    size_t len = strlen(look->name);
    buf_addf(out, "\033[48;5;%u;38;5;%um", look->color, look->dark ? 255u : 16u);
    unsigned left = n;
    if (n >= len + 2) {
        buf_addf(out, " %s", look->name);
        left -= (unsigned)len + 1;
    }
    for (; left; left--)
        buf_add_char(out, ' ');
    buf_add_c(out, "\033[0m");
}

void fit_bar(const struct fit_view *v, const struct check_machine *m, size_t d, unsigned width, struct buf *out)
{
    struct cells c = {.n = 0};
    lay_out(v, m, d, width, &c);
    for (unsigned i = 0; i < c.n;) {
        unsigned from = i;
        if (i == c.end && i)
            buf_add_c(out, v->color ? "\033[1;31m|\033[0m" : "|");
        while (i < c.n && c.what[i] == c.what[from] && (i == from || i != c.end))
            i++;
        if (v->color) {
            add_run(out, c.what[from], i - from, from >= c.end);
            continue;
        }
        for (unsigned k = from; k < i; k++)
            buf_add_char(out, letter_of(c.what[k]));
    }
    if (c.end == c.n)
        buf_add_char(out, ' ');
}

void fit_legend(const struct fit_view *v, struct buf *out)
{
    bool used[FIT_GROUPS_SHOWN] = {0}, over = false;
    for (size_t i = 0; i < v->plan->n_machines; i++) {
        const struct check_machine *m = &v->plan->machines[i];
        for (size_t d = 0; fit_view_machine(v, m) && d <= m->n_devices; d++) {
            uint64_t sums[FIT_GROUPS_SHOWN];
            fit_group_sums(v->plan, m, d, sums);
            for (int g = 0; g < FIT_GROUPS_SHOWN; g++)
                used[g] |= sums[g] > 0;
            over |= m->used[d] > check_free(m, d);
        }
    }
    size_t column = 0;
    for (int g = 0; g < FIT_GROUPS_SHOWN; g++) {
        size_t width = strlen(fit_looks[g].name) + (v->color ? 5 : 4);
        if (!used[g])
            continue;
        buf_add_c(out, column && column + width > v->width ? "\n" : "");
        column = column + width > v->width ? width : column + width;
        if (v->color)
            buf_addf(out, "  \033[48;5;%um  \033[0m %s", fit_looks[g].color, fit_looks[g].name);
        else
            buf_addf(out, "  %c %s", fit_looks[g].letter, fit_looks[g].name);
    }
    const char *end = !over ? "" : v->color ? "  \033[1;31m|\033[0m its end" : "  | its end";
    buf_add_c(out, column + strlen("  . free  / floor") + (over ? strlen("  | its end") : 0) > v->width ? "\n" : "");
    buf_addf(out, v->color ? "  \033[38;5;240m%c\033[0m free  \033[38;5;173m%c\033[0m floor%s\n" : "  %c free  %c floor%s\n", FREE, FLOOR, end);
}
