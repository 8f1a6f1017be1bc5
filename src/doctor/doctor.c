/* SPDX-License-Identifier: MIT
 *
 * Looking at a machine: the facts are read once, then each judge adds its findings, which come out worst first.
 */
#include "doctor_int.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

const char *doctor_level_text(enum doctor_level l)
{
    static const char *const texts[] = {[DOCTOR_OK] = "ok", [DOCTOR_NOTE] = "note", [DOCTOR_WARN] = "warn", [DOCTOR_BAD] = "bad"};
    return texts[l];
}

enum doctor_level doctor_worst(const struct doctor_report *r)
{
    return r->n ? r->findings[0].level : DOCTOR_OK;
}

/* ---- the list -------------------------------------------------------------------------------------------------------- */

static const char *keep(struct doctor *d, const char *fmt, va_list ap) BASE_PRINTF(2, 0);
static const char *keep(struct doctor *d, const char *fmt, va_list ap)
{
    base_autobuf struct buf b = BUF_INIT(8192);
    buf_addv(&b, fmt, ap);
    const char *text = buf_status(&b) < 0 ? NULL : arena_dup(d->arena, buf_str(&b));
    d->failed = d->failed || !text;
    return text ? text : "";
}

const char *doctor_text(struct doctor *d, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = keep(d, fmt, ap);
    va_end(ap);
    return text;
}

void doctor_say(struct doctor *d, enum doctor_level level, const char *topic, const char *where, const char *why, const char *todo, const char *fmt, ...)
{
    va_list ap;
    struct doctor_finding *list = arena_grow(d->arena, d->list, d->n + 1, &d->cap, sizeof *list);
    if (!list) {
        d->failed = true;
        return;
    }
    d->list = list;
    va_start(ap, fmt);
    list[d->n++] = (struct doctor_finding){.level = level, .topic = topic, .where = doctor_text(d, "%s", where), .what = keep(d, fmt, ap), .why = why, .todo = todo};
    va_end(ap);
}

/* ---- sources ------------------------------------------------------------------------------------------------------------ */

struct str doctor_file(struct doctor *d, const char *path, struct buf *b)
{
    return hw_file(d->reader, path, b) ? str_trim(buf_str(b)) : (struct str){NULL, 0};
}

bool doctor_file_u64(struct doctor *d, const char *path, uint64_t *ret)
{
    base_autobuf struct buf b = BUF_INIT(4096);
    return str_to_u64(doctor_file(d, path, &b), ret) == 0;
}

bool doctor_exists(struct doctor *d, const char *path)
{
    return faccessat(hw_root(d->reader), path, F_OK, 0) == 0;
}

bool doctor_has_unit(const struct doctor *d, enum fleet_unit kind)
{
    for (size_t i = 0; d->o->fleet && i < d->o->fleet->n_services; i++)
        if (d->o->fleet->services[i].host == d->o->host && d->o->fleet->services[i].unit == kind)
            return true;
    return false;
}

int doctor_place(const struct hw *h, const struct fleet_device *f)
{
    bool sure;
    return f->pci ? hw_find_pci(h, f->pci) : hw_find_engine(h, f->name, &sure);
}

bool doctor_near(uint64_t a, uint64_t b, unsigned per_mille)
{
    uint64_t more = a > b ? a : b, gap = a > b ? a - b : b - a;
    return gap <= more / 1000 * per_mille;
}

const char *doctor_rate(double bytes_s, char out[UNITS_TEXT])
{
    snprintf(out, UNITS_TEXT, "%.1f GB/s", bytes_s / 1e9);
    return out;
}

int doctor_run(const char *const *argv, struct buf *out, struct err *err)
{
    const struct os_spawn s = {.argv = argv, .envp = (const char *const *)environ, .use_path = true, .new_group = true, .end_group = true, .death_signal = SIGKILL};
    return os_run_ok(&s, DOCTOR_COMMAND_MS, out, err);
}

/* ---- looking -------------------------------------------------------------------------------------------------------------- */

/* Worst first; findings of one level stay in their order. */
static void sort(struct doctor_finding *list, size_t n, struct doctor_finding *out)
{
    size_t k = 0;
    for (int level = DOCTOR_BAD; level >= DOCTOR_OK; level--)
        for (size_t i = 0; i < n; i++)
            if (list[i].level == (enum doctor_level)level)
                out[k++] = list[i];
}

static int judge(struct doctor *d, struct err *err)
{
    static void (*const judges[])(struct doctor *d) = {cards_judge, ways_judge, log_judge, inventory_judge, host_judge, account_judge, podman_judge, firewall_judge, runtime_judge};
    int r = hw_read(d->reader, &d->r->hw, err);
    if (r < 0)
        return r;
    d->config = hw_ways(d->reader, &d->r->hw, d->r->ways);
    hw_cards(d->reader, &d->r->hw, d->r->cards);
    for (size_t i = 0; i < BASE_COUNT(judges); i++)
        judges[i](d);
    struct doctor_finding *sorted = arena_alloc(d->arena, d->n + 1, sizeof *sorted);
    if (!sorted || d->failed)
        return err_nomem(err);
    sort(d->list, d->n, sorted);
    d->r->findings = sorted;
    d->r->n = d->n;
    return 0;
}

int doctor_look(const struct doctor_options *o, struct doctor_report **ret, struct err *err)
{
    struct doctor_report *report = calloc(1, sizeof *report);
    struct klog_sum *log = calloc(1, sizeof *log);
    bool live = !o->root || strcmp(o->root, "/") == 0;
    struct doctor d = {.o = o, .r = report, .log = log, .live = live, .uid = live ? geteuid() : 0};
    if (report)
        report->arena = d.arena = arena_new(DOCTOR_MEMORY);
    int r = report && log && report->arena ? hw_open(o->root, &d.reader, err) : err_nomem(err);
    if (r == 0)
        r = judge(&d, err);
    hw_close(d.reader);
    free(log);
    if (r == 0)
        *ret = report;
    else
        doctor_free(report);
    return r;
}

struct doctor_report *doctor_free(struct doctor_report *r)
{
    if (r)
        arena_free(r->arena);
    free(r);
    return NULL;
}
