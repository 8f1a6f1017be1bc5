/* SPDX-License-Identifier: MIT
 *
 * berth fit --table: the shapes around the declared one along one axis. Figures are GiB, so that the columns of several devices stand side by side; why a shape is refused stands below its row.
 */
#include "fit_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void table_json(const struct check_machine *m, const struct check_need *n, const char *axis, const struct fit_row *rows, size_t count, struct json_out *o)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "service", n->service->name);
    json_out_cstr(o, "axis", axis);
    json_out_arr(o, "rows");
    for (size_t i = 0; i < count; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "value", rows[i].value);
        json_out_bool(o, "declared", rows[i].declared);
        json_out_u64(o, "context_per_slot", rows[i].slot_context);
        json_out_bool(o, "fits", rows[i].fits);
        json_out_cstr(o, "why", rows[i].why);
        json_out_cstr(o, "warns", rows[i].warns.rule);
        json_out_u64(o, "gap", rows[i].gap_bytes);
        json_out_obj(o, "left");
        for (size_t d = 0; d < n->input.n_devices; d++)
            json_out_i64(o, check_device_name(m, d), rows[i].left[d]);
        if (m->memory_known)
            json_out_i64(o, "RAM", rows[i].left[n->input.n_devices]);
        json_out_end(o);
        if (rows[i].decode_tok_s > 0)
            json_out_f64(o, "decode_tok_s", rows[i].decode_tok_s);
        else
            json_out_null(o, "decode_tok_s");
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
}

static struct os_table *table_new(const struct check_machine *m, const struct check_need *n, const char *axis)
{
    char names[FIT_DEVICES_MAX + 1][64];
    const char *headings[FIT_DEVICES_MAX + 8] = {"", axis, "SLOT HAS"};
    enum os_align aligns[FIT_DEVICES_MAX + 8] = {OS_LEFT, OS_RIGHT, OS_RIGHT};
    size_t columns = 3;
    for (size_t d = 0; d <= n->input.n_devices; d++) {
        if (d == n->input.n_devices && !m->memory_known)
            continue;
        (void)snprintf(names[d], sizeof(names[d]), "%s %c", d < n->input.n_devices ? check_device_name(m, d) : "RAM", fit_mark(fit_known_use(&n->result->use[d])));
        headings[columns] = names[d];
        aligns[columns++] = OS_RIGHT;
    }
    if (n->input.n_devices > 1) {
        headings[columns] = "GAP";
        aligns[columns++] = OS_RIGHT;
    }
    headings[columns] = "TOK/S ~";
    aligns[columns++] = OS_RIGHT;
    headings[columns] = "";
    aligns[columns++] = OS_LEFT;
    return os_table_new(headings, aligns, columns);
}

/* "5.72", "-0.31": of a column in GiB. */
static void gib_cell(struct os_table *t, enum os_style style, int64_t bytes)
{
    os_table_cell(t, style, "%.2f", (double)bytes / (1ull << 30));
}

/* What rows that fit are warned of, each rule once: a number in their last column, and its text below the table. */
struct footnotes {
    const struct fit_note *list[FIT_NOTES_MAX];
    size_t n;
};

static size_t footnote(struct footnotes *f, const struct fit_row *row)
{
    size_t i = 0;
    if (!row->fits || !row->warns.rule)
        return 0;
    while (i < f->n && strcmp(f->list[i]->rule, row->warns.rule) != 0)
        i++;
    if (i == f->n && f->n < FIT_NOTES_MAX)
        f->list[f->n++] = &row->warns;
    return i + 1;
}

static void add_footnotes(const struct footnotes *f, unsigned width, struct buf *out)
{
    for (size_t i = 0; i < f->n; i++) {
        base_autobuf struct buf text = BUF_INIT(1 << 14);
        buf_addf(&text, "%s [%s]", f->list[i]->text, f->list[i]->rule);
        buf_addf(out, "  (%zu)  ", i + 1);
        cmd_add_wrapped_within(out, buf_str(&text), 7, 7, "", width);
        buf_add_char(out, '\n');
    }
}

static void table_row(struct os_table *t, const struct check_machine *m, const struct check_need *n, const struct fit_row *row, size_t foot)
{
    char text[FIT_NUMBER];
    enum os_style style = row->declared ? OS_BOLD : OS_PLAIN;
    os_table_cell(t, OS_BOLD, "%s", row->declared ? ">" : " ");
    uint64_t number = 0;
    os_table_cell(t, style, "%s", str_to_u64(str_of(row->value), &number) == 0 ? units_show_count(number, text) : row->value);
    os_table_cell(t, style, "%s", units_show_count(row->slot_context, text));
    for (size_t d = 0; d <= n->input.n_devices; d++) {
        uint64_t floor = d < n->input.n_devices ? n->devices[d].floor_bytes : n->memory.floor_bytes;
        if (d == n->input.n_devices && !m->memory_known)
            continue;
        gib_cell(t, row->left[d] < (int64_t)floor ? OS_RED : style, row->left[d]);
    }
    if (n->input.n_devices > 1)
        gib_cell(t, style, (int64_t)row->gap_bytes);
    if (row->decode_tok_s > 0)
        os_table_cell(t, style, "%.1f", row->decode_tok_s);
    else
        os_table_cell(t, style, "-");
    if (foot)
        os_table_cell(t, OS_YELLOW, "fits (%zu)", foot);
    else
        os_table_cell(t, row->fits ? OS_GREEN : OS_RED, "%s", row->fits ? "fits" : row->why ? "refused" : "does not fit");
}

int fit_table_show(struct fit_session *s, const struct fit_question *q)
{
    const char *name = cmd_value(q->c, q->a, "table");
    const struct check_need *n = q->need;
    enum fit_axis axis;
    struct fit_bad *bad = NULL;
    struct fit_row *rows = NULL;
    size_t n_bad = 0, count = 0;
    char depth[FIT_NUMBER];
    struct err err;
    if (fit_axis_of(str_of(name), &axis, &err) < 0)
        return cmd_usage(q->c, "--table: %s", err.text);
    if (fit_bad_shapes(s, n, &bad, &n_bad, &err) < 0 || fit_table(&n->input, axis, bad, n_bad, s->plan->arena, &rows, &count, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (q->json) {
        struct json_out *o = json_out_new();
        if (!o)
            return cmd_nomem();
        table_json(n->machine, n, name, rows, count, o);
        return fit_print_json(o);
    }
    base_autobuf struct buf heading = BUF_INIT(64), out = BUF_INIT(1 << 20), shape = BUF_INIT(8192);
    for (const char *p = name; *p; p++)
        buf_add_char(&heading, (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p));
    fit_shape_text(n, &shape);
    buf_addf(&shape, "; left after load, in GiB; TOK/S with %s tokens in the context:", units_show_count(FIT_SOLVE_DEPTH, depth));
    buf_addf(&out, "%s: ", n->service->name);
    cmd_add_wrapped_within(&out, buf_str(&shape), strlen(n->service->name) + 2, 2, "", q->view.width);
    buf_add_char(&out, '\n');
    struct os_table *t = buf_status(&heading) < 0 ? NULL : table_new(n->machine, n, heading.ptr);
    const char **below = arena_alloc(s->plan->arena, count + 1, sizeof(*below));
    if (!below)
        buf_fail(&out, -ENOMEM);
    struct footnotes feet = {.n = 0};
    for (size_t i = 0; t && below && i < count; i++) {
        table_row(t, n->machine, n, &rows[i], footnote(&feet, &rows[i]));
        below[i] = rows[i].why;
    }
    fit_table_add(t, q->view.color, below, q->view.width, &out);
    add_footnotes(&feet, q->view.width, &out);
    return buf_status(&out) < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}
