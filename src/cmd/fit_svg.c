/* SPDX-License-Identifier: MIT
 *
 * berth fit as a picture: the bars of each machine on one scale, with figures, floors and a legend. Plain SVG without scripts, links or fonts of its own; all text from outside is escaped.
 */
#include "fit_int.h"

#include <stdio.h>
#include <string.h>

#define PICTURE_WIDTH 880
#define MARGIN 28
#define NAMES 92    /* width of the devices' names */
#define FIGURES 178 /* width of the figures behind a bar */
#define BAR_HEIGHT 30
#define BAR_STEP 58

static void add_escaped(struct buf *out, const char *text)
{
    base_autobuf struct buf plain = BUF_INIT(1 << 14);
    buf_add_printable(&plain, str_of(text), 200);
    for (size_t i = 0; i < plain.len; i++) {
        char c = plain.ptr[i];
        const char *entity = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : NULL;
        if (entity)
            buf_add_c(out, entity);
        else
            buf_add_char(out, c);
    }
}

static void add_text(struct buf *out, double x, double y, const char *class, const char *anchor, const char *text)
{
    buf_addf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\"%s%s%s>", class, x, y, anchor ? " text-anchor=\"" : "", anchor ? anchor : "", anchor ? "\"" : "");
    add_escaped(out, text);
    buf_add_c(out, "</text>\n");
}

/* The largest that any bar of the machine shows: all its bars have one scale, but the host's RAM, which may be ten times a card. */
static double scale_of(const struct check_machine *m, size_t d)
{
    uint64_t most = 1;
    for (size_t i = 0; i <= m->n_devices; i++) {
        if ((d < m->n_devices) != (i < m->n_devices))
            continue;
        uint64_t free = check_free(m, i) < FIT_BYTES_MAX ? check_free(m, i) : 0;
        most = free > most ? free : most;
        most = m->used[i] > most ? m->used[i] : most;
    }
    return (double)(PICTURE_WIDTH - 2 * MARGIN - NAMES - FIGURES) / (double)most;
}

static void add_segments(const struct fit_view *v, const struct check_machine *m, size_t d, double x, double y, double scale, struct buf *out)
{
    uint64_t sums[FIT_GROUPS_SHOWN];
    fit_group_sums(v->plan, m, d, sums);
    for (int g = 0; g < FIT_GROUPS_SHOWN; g++) {
        double width = (double)sums[g] * scale;
        const struct fit_group_look *look = &fit_looks[g];
        if (width <= 0)
            continue;
        char size[UNITS_TEXT];
        buf_addf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s %s</title></rect>\n", x, y, width, BAR_HEIGHT, look->fill, look->name, units_show_bytes(sums[g], size));
        if (width > (double)strlen(look->name) * 7 + 10)
            add_text(out, x + 7, y + 20, look->dark ? "in light" : "in", NULL, look->name);
        x += width;
    }
}

static void add_bar(const struct fit_view *v, const struct check_machine *m, size_t d, double y, struct buf *out)
{
    double scale = scale_of(m, d), x = MARGIN + NAMES;
    uint64_t free = check_free(m, d), floor = check_floor(m, d);
    bool known = free < FIT_BYTES_MAX, low = known && m->left[d] < (int64_t)floor;
    char used[FIT_NUMBER], all[FIT_NUMBER], left[FIT_NUMBER], text[128];
    add_text(out, MARGIN, y + 20, "name", NULL, check_device_name(m, d));
    if (known) {
        double width = (double)free * scale, keep = (double)(floor < free ? floor : free) * scale;
        buf_addf(out, "<rect class=\"free\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>\n", x, y, width, BAR_HEIGHT);
        buf_addf(out, "<rect fill=\"url(#floor)\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>\n", x + width - keep, y, keep, BAR_HEIGHT);
    }
    add_segments(v, m, d, x, y, scale, out);
    if (known)
        buf_addf(out, "<path class=\"%s\" d=\"M%.2f %.1fv%d\"/>\n", low ? "end bad" : "end", x + (double)free * scale, y - 4, BAR_HEIGHT + 8);
    double right = PICTURE_WIDTH - MARGIN;
    if (known)
        (void)snprintf(text, sizeof(text), "%s of %s GiB", fit_gib(m->used[d], used), fit_gib(free, all));
    else
        (void)snprintf(text, sizeof(text), "%s GiB", fit_gib(m->used[d], used));
    add_text(out, right, y + 13, "figure", "end", text);
    if (!known)
        return;
    if (m->left[d] < 0)
        (void)snprintf(text, sizeof(text), "%s too much", fit_signed(-m->left[d], left));
    else
        (void)snprintf(text, sizeof(text), low ? "%s left, floor %s GiB" : "%s left", fit_signed(m->left[d], left), fit_gib(floor, all));
    add_text(out, right, y + 29, low ? "note red" : "note", "end", text);
}

/* The words under a machine's bars; returns how far down they went. */
static double add_needs(const struct fit_view *v, const struct check_machine *m, double y, struct buf *out)
{
    for (size_t i = 0; i < v->plan->n_needs; i++) {
        const struct check_need *n = &v->plan->needs[i];
        base_autobuf struct buf text = BUF_INIT(8192);
        if (n->machine != m)
            continue;
        buf_addf(&text, "%s: ", n->service->name);
        if (n->why)
            buf_addf(&text, "%s", n->why);
        else
            fit_shape_text(n, &text);
        add_text(out, MARGIN, y, "note", NULL, buf_status(&text) < 0 ? "" : text.ptr);
        y += 20;
    }
    return y;
}

static double add_machine(const struct fit_view *v, const struct check_machine *m, double y, struct buf *out)
{
    base_autobuf struct buf verdict = BUF_INIT(4096);
    fit_verdict(m, &verdict);
    add_text(out, MARGIN, y, "title", NULL, m->host->name);
    add_text(out, MARGIN + 12 + (double)strlen(m->host->name) * 10, y, m->fits ? "note green" : "note red", NULL, verdict.ptr ? verdict.ptr : "");
    y += 20;
    for (size_t d = 0; d <= m->n_devices; d++) {
        if (!fit_shows_device(m, d))
            continue;
        add_bar(v, m, d, y, out);
        y += BAR_STEP;
    }
    return add_needs(v, m, y, out) + 16;
}

static void add_legend(const struct fit_view *v, double y, struct buf *out)
{
    double x = MARGIN;
    for (int g = 0; g < FIT_GROUPS_SHOWN; g++) {
        bool used = false;
        for (size_t i = 0; i < v->plan->n_machines; i++)
            for (size_t d = 0; fit_view_machine(v, &v->plan->machines[i]) && d <= v->plan->machines[i].n_devices; d++) {
                uint64_t sums[FIT_GROUPS_SHOWN];
                fit_group_sums(v->plan, &v->plan->machines[i], d, sums);
                used = used || sums[g] > 0;
            }
        if (!used)
            continue;
        buf_addf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>\n", x, y - 10, fit_looks[g].fill);
        add_text(out, x + 18, y, "note", NULL, fit_looks[g].name);
        x += 36 + (double)strlen(fit_looks[g].name) * 6.6;
    }
    buf_addf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"url(#floor)\"/>\n", x, y - 10);
    add_text(out, x + 18, y, "note", NULL, "floor");
}

void fit_svg(const struct fit_view *v, struct buf *out)
{
    static const char head[] =
        "<style>.bg{fill:#fbfaf7}.free{fill:#eceae3}.title{font-size:17px;font-weight:600;fill:#12344d}.name{font-weight:600;fill:#1d2730}.figure{font-size:13px;fill:#1d2730}"
        ".note{font-size:12px;fill:#6a7178}.in{font-size:12px;fill:#1d2730}.light{fill:#fff}.red{fill:#b3261e}.green{fill:#2e7d4f}.end{stroke:#12344d;stroke-width:1.6}.bad{stroke:#b3261e;stroke-width:3}</style>\n"
        "<defs><pattern id=\"floor\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" fill=\"#f4dfd0\"/><path d=\"M0 0v7\" stroke=\"#d98a5b\" "
        "stroke-width=\"3\"/></pattern></defs>\n";
    base_autobuf struct buf body = BUF_INIT(4 << 20);
    double y = 38;
    for (size_t i = 0; i < v->plan->n_machines; i++)
        if (fit_view_machine(v, &v->plan->machines[i]))
            y = add_machine(v, &v->plan->machines[i], y, &body) + 12;
    add_legend(v, y, &body);
    int height = (int)y + 20;
    buf_addf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"Inter,'Segoe UI','DejaVu Sans',sans-serif\" font-size=\"14\">\n", PICTURE_WIDTH, height, PICTURE_WIDTH,
             height);
    buf_add_c(out, "<title>Memory of fleet ");
    add_escaped(out, v->plan->fleet->name);
    buf_add_c(out, "</title>\n");
    buf_add_c(out, head);
    buf_addf(out, "<rect class=\"bg\" width=\"%d\" height=\"%d\" rx=\"10\"/>\n", PICTURE_WIDTH, height);
    buf_add_str(out, buf_str(&body));
    buf_add_c(out, "</svg>\n");
    buf_fail(out, buf_status(&body));
}
