/* SPDX-License-Identifier: MIT
 *
 * What differs between two texts of a unit, as lines and in a few words; and the plan between two fleet files, which looks at no unit that is installed.
 */
#include <errno.h>
#include <stdlib.h>

#include "deploy_int.h"

#define DIFF_LINES_MAX 512 /* of a unit that are compared: a service with a thousand flags shows the first half of its differences */

/* ---- lines -------------------------------------------------------------------------------------------------------- */

static size_t split(struct str text, struct str lines[DIFF_LINES_MAX])
{
    size_t n = 0;
    while (text.ptr && n < DIFF_LINES_MAX)
        lines[n++] = str_split(&text, '\n');
    return n && lines[n - 1].len == 0 ? n - 1 : n;
}

static void add_line(struct buf *out, char sign, struct str line)
{
    buf_add_char(out, sign);
    buf_add_str(out, line);
    buf_add_char(out, '\n');
}

/* Lines of a that are not in b with '-', of b that are not in a with '+', in order. */
static void add_diff(struct str a, struct str b, struct buf *out)
{
    struct str la[DIFF_LINES_MAX], lb[DIFF_LINES_MAX];
    size_t na = split(a, la), nb = split(b, lb), i = 0, k = 0;
    uint16_t *common = calloc((na + 1) * (nb + 1), sizeof *common); /* [i][k]: longest common run of lines from i and k on */
    if (!common) {
        buf_fail(out, -ENOMEM);
        return;
    }
    for (size_t x = na; x-- > 0;)
        for (size_t y = nb; y-- > 0;) {
            uint16_t below = common[(x + 1) * (nb + 1) + y], right = common[x * (nb + 1) + y + 1];
            common[x * (nb + 1) + y] = str_eq(la[x], lb[y]) ? (uint16_t)(common[(x + 1) * (nb + 1) + y + 1] + 1) : below > right ? below : right;
        }
    while (i < na || k < nb) {
        if (i < na && k < nb && str_eq(la[i], lb[k])) {
            i++;
            k++;
        } else if (i < na && (k == nb || common[(i + 1) * (nb + 1) + k] >= common[i * (nb + 1) + k + 1])) {
            add_line(out, '-', la[i++]);
        } else {
            add_line(out, '+', lb[k++]);
        }
    }
    free(common);
}

/* A command's flags on lines of their own, so that the one that differs is seen. */
static void spread(struct str text, struct buf *out)
{
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        bool command = str_starts(line, STR("Exec"));
        for (size_t i = 0; i < line.len; i++)
            if (command && line.ptr[i] == ' ' && i + 1 < line.len && line.ptr[i + 1] == '-')
                buf_add_c(out, "\n   ");
            else
                buf_add_char(out, line.ptr[i]);
        if (text.ptr)
            buf_add_char(out, '\n');
    }
}

/* The key of a line, or the flag of a command; empty for the rest. */
static struct str key_of(struct str line)
{
    bool flag = str_starts(line, STR("   -"));
    struct str s = flag ? str_trim(line) : line;
    ptrdiff_t end = s.len && s.ptr[0] != '#' ? str_find_char(s, flag ? ' ' : '=') : -1;
    return end > 0 ? (struct str){s.ptr, (size_t)end} : flag ? s : STR("");
}

/* The keys of the lines that differ: "-c, Environment". */
static void changed_keys(struct str diff, struct buf *out)
{
    struct str seen[8];
    size_t n = 0, more = 0;
    while (diff.ptr) {
        struct str line = str_split(&diff, '\n');
        struct str key = line.len ? key_of((struct str){line.ptr + 1, line.len - 1}) : line;
        bool known = key.len == 0;
        for (size_t i = 0; i < n; i++)
            known |= str_eq(seen[i], key);
        if (known)
            continue;
        if (n == BASE_COUNT(seen)) {
            more++;
            continue;
        }
        buf_addf(out, "%s" STR_FMT, n ? ", " : "", STR_ARG(key));
        seen[n++] = key;
    }
    if (more)
        buf_addf(out, " and more");
}

void deploy_diff(struct str before, struct str after, struct buf *lines, struct buf *keys)
{
    base_autobuf struct buf a = BUF_INIT(DEPLOY_FILE_MAX), b = BUF_INIT(DEPLOY_FILE_MAX);
    spread(before, &a);
    spread(after, &b);
    add_diff(buf_str(&a), buf_str(&b), lines);
    changed_keys(buf_str(lines), keys);
}

static bool same_efforts(const struct fleet_serves *a, const struct fleet_serves *b)
{
    bool same = a->n_efforts == b->n_efforts;
    for (size_t i = 0; same && i < a->n_efforts; i++)
        same = strcmp(a->efforts[i], b->efforts[i]) == 0;
    return same;
}

void deploy_diff_serves(const struct fleet_serves *before, const struct fleet_serves *after, struct buf *keys)
{
    const struct {
        const char *name;
        bool same;
    } parts[] = {
        {"tools", before->tools == after->tools},    {"reasoning", before->reasoning == after->reasoning}, {"images", before->images == after->images},
        {"sound", before->sound == after->sound},    {"efforts", same_efforts(before, after)},
    };
    size_t n = 0;
    for (size_t i = 0; i < BASE_COUNT(parts); i++)
        if (!parts[i].same)
            buf_addf(keys, "%s%s", n++ ? ", " : "serves: ", parts[i].name);
}

/* ---- two fleet files ------------------------------------------------------------------------------------------------ */

static const struct deploy_wanted *find(const struct deploy *d, const char *service)
{
    for (size_t i = 0; d && i < d->n_wanted; i++)
        if (strcmp(d->wanted[i].name, service) == 0)
            return &d->wanted[i];
    return NULL;
}

static int compare(struct deploy *d, const struct deploy_wanted *w, const struct deploy_wanted *was, struct deploy_item *item, struct err *err)
{
    base_autobuf struct buf lines = BUF_INIT(DEPLOY_FILE_MAX), why = BUF_INIT(1024);
    const char *old_health = was && was->health ? was->health : "", *health = w->health ? w->health : "";
    *item = (struct deploy_item){.action = DEPLOY_KEEP, .service = w->name, .unit = w->unit, .path = w->path, .declared = &w->service, .text = w->text, .health = w->health};
    if (!was) {
        item->action = DEPLOY_INSTALL;
        buf_add_c(&why, "not declared then");
    } else if ((!w->text || !was->text) && w->service.declared_hash == was->service.declared_hash) {
        buf_add_c(&why, "declared as it was");
    } else if (!w->text || !was->text) {
        item->action = DEPLOY_CHANGE;
        buf_addf(&why, "cannot be compared: %s", (w->text ? was : w)->lacks);
    } else if (strcmp(was->text, w->text) == 0 && strcmp(old_health, health) == 0 && strcmp(was->path, w->path) == 0) {
        deploy_diff_serves(&was->service.serves, &w->service.serves, &why);
        item->action = why.len ? DEPLOY_PROVE : item->action;
        buf_add_c(&why, why.len ? " changed" : "as it was");
    } else {
        item->action = DEPLOY_CHANGE;
        deploy_diff(str_of(was->text), str_of(w->text), &lines, &why);
        if (why.len == 0)
            buf_add_c(&why, strcmp(was->path, w->path) != 0 ? "another form of unit" : strcmp(old_health, health) != 0 ? "health check" : "comment");
        buf_add_c(&why, " changed");
    }
    item->reason = buf_status(&why) < 0 ? NULL : arena_dup(d->arena, buf_str(&why));
    item->diff = buf_status(&lines) < 0 ? NULL : arena_dup(d->arena, buf_str(&lines));
    return item->reason && item->diff ? 0 : err_nomem(err);
}

int deploy_plan_since(struct deploy *d, const struct deploy *then, struct deploy_plan *ret, struct err *err)
{
    struct deploy_plan p = {.items = arena_alloc(d->arena, d->n_wanted + (then ? then->n_wanted : 0) + 1, sizeof *p.items)};
    if (!p.items)
        return err_nomem(err);
    for (size_t i = 0; i < d->n_wanted; i++) {
        int r = compare(d, &d->wanted[i], find(then, d->wanted[i].name), &p.items[p.n++], err);
        if (r < 0)
            return r;
    }
    for (size_t i = 0; then && i < then->n_wanted; i++) {
        const struct deploy_wanted *was = &then->wanted[i];
        if (!find(d, was->name))
            p.items[p.n++] = (struct deploy_item){.action = DEPLOY_RETIRE, .service = was->name, .unit = was->unit, .path = was->path, .reason = "no longer declared", .diff = ""};
    }
    *ret = p;
    return 0;
}
