/* SPDX-License-Identifier: MIT
 *
 * A doctor's report for people: the cards, what is wrong with its reason and its remedy, and on demand what is in order and each bridge.
 */
#include "doctor_int.h"

#include <errno.h>
#include <string.h>

#define NAME_WIDTH 22  /* of a card's name, so that the table has 80 columns */
#define TOPIC_WIDTH 11
#define INDENT 6
#define NEAR_LINES 128 /* how far a line that was added is looked for */

/* ---- colours ------------------------------------------------------------------------------------------------------------ */

static const char *style_on(struct str level, bool color)
{
    if (!color)
        return "";
    return str_eq_c(level, "bad") ? "\033[1;31m" : str_eq_c(level, "warn") ? "\033[33m" : str_eq_c(level, "note") ? "\033[36m" : "\033[32m";
}

static const char *style_off(bool color)
{
    return color ? "\033[0m" : "";
}

/* ---- cards ------------------------------------------------------------------------------------------------------------------ */

static void bytes_cell(struct os_table *t, json_val d, const char *key)
{
    char text[UNITS_TEXT];
    os_table_cell(t, OS_PLAIN, "%s", json_get_bool(d, "memory_known") ? units_show_bytes(json_get_u64(d, key), text) : "-");
}

static void card_rows(struct os_table *t, json_val devices)
{
    for (size_t i = 0; i < json_count(devices); i++) {
        json_val d = json_at(devices, i), way = json_get(d, "narrowest");
        struct str pci = json_get_str(d, "pci", ""), name = json_get_str(d, "name", "");
        base_autobuf struct buf shown = BUF_INIT(4096);
        if (str_starts(name, STR("NVIDIA ")))
            name = (struct str){name.ptr + 7, name.len - 7};
        buf_add_printable(&shown, name, name.len > NAME_WIDTH ? NAME_WIDTH - 3 : NAME_WIDTH);
        os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(pci));
        os_table_cell(t, OS_BOLD, "%s", buf_status(&shown) == 0 && shown.len ? shown.ptr : "-");
        bytes_cell(t, d, "memory_bytes");
        bytes_cell(t, d, "free_bytes");
        if (json_get_bool(d, "shared"))
            os_table_cell(t, OS_PLAIN, "the RAM itself");
        else if (json_get_u64(way, "width"))
            os_table_cell(t, OS_PLAIN, "gen%llu x%llu %.1f GB/s", (unsigned long long)json_get_u64(way, "gen"), (unsigned long long)json_get_u64(way, "width"), json_get_f64(way, "bytes_s") / 1e9);
        else
            os_table_cell(t, OS_DIM, "not told");
    }
}

static void add_table(struct os_table *t, bool color, struct buf *out)
{
    buf_fail(out, t ? os_table_text(t, color, out) : -ENOMEM);
    os_table_free(t);
}

static void add_cards(json_val devices, bool color, struct buf *out)
{
    static const char *const headings[] = {"CARD", "NAME", "MEMORY", "FREE", "WAY TO THE CPU"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    if (json_count(devices) == 0)
        return;
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (t)
        card_rows(t, devices);
    buf_add_char(out, '\n');
    add_table(t, color, out);
}

/* ---- ways --------------------------------------------------------------------------------------------------------------------- */

static void link_cell(struct os_table *t, json_val hop, const char *gen, const char *width)
{
    if (json_get_u64(hop, gen) && json_get_u64(hop, width))
        os_table_cell(t, OS_PLAIN, "gen%llu x%llu", (unsigned long long)json_get_u64(hop, gen), (unsigned long long)json_get_u64(hop, width));
    else
        os_table_cell(t, OS_DIM, "-");
}

static void atomics_cell(struct os_table *t, json_val hop)
{
    json_val a = json_get(hop, "atomics");
    struct str port = json_get_str(hop, "port", "");
    const char *text = "not told";
    if (json_is_obj(a)) {
        bool blocks = json_get_bool(a, "blocks");
        if (str_eq_c(port, "card"))
            text = json_get_bool(a, "requests") ? "sends" : "may not send";
        else if (blocks)
            text = "lets none out";
        else if (str_eq_c(port, "root"))
            text = json_get_bool(a, "completes32") && json_get_bool(a, "completes64") ? "carries out" : "carries out none";
        else
            text = json_get_bool(a, "routes") ? "hands on" : "hands on none";
    }
    os_table_cell(t, OS_PLAIN, "%s", text);
}

static void add_ways(json_val devices, bool color, struct buf *out)
{
    static const char *const headings[] = {"BRIDGE", "PORT", "LINK NOW", "AT MOST", "ATOMIC OPERATIONS"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT, OS_LEFT, OS_LEFT};
    for (size_t i = 0; i < json_count(devices); i++) {
        json_val way = json_get(json_at(devices, i), "way");
        if (json_count(way) < 2)
            continue;
        struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
        for (size_t k = 0; t && k < json_count(way); k++) {
            json_val hop = json_at(way, k);
            struct str pci = json_get_str(hop, "pci", ""), port = json_get_str(hop, "port", "-");
            os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(pci));
            os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(port));
            link_cell(t, hop, "gen", "width");
            link_cell(t, hop, "max_gen", "max_width");
            atomics_cell(t, hop);
        }
        buf_add_char(out, '\n');
        add_table(t, color, out);
    }
}

/* ---- findings -------------------------------------------------------------------------------------------------------------------- */

static void add_reason(const char *label, struct str text, struct buf *out)
{
    if (!text.len)
        return;
    buf_addf(out, "%*s%s ", INDENT, "", label);
    cmd_add_wrapped(out, text, INDENT + strlen(label) + 1, INDENT + strlen(label) + 1);
    buf_add_char(out, '\n');
}

static void add_problem(json_val f, bool color, struct buf *out)
{
    struct str level = json_get_str(f, "level", ""), topic = json_get_str(f, "topic", ""), where = json_get_str(f, "where", ""), what = json_get_str(f, "what", "");
    buf_addf(out, "\n%s%-4.*s%s  %s" STR_FMT "%s  " STR_FMT "\n%*s", style_on(level, color), (int)level.len, level.ptr, style_off(color), color ? "\033[1m" : "", STR_ARG(topic), style_off(color), STR_ARG(where), INDENT, "");
    cmd_add_wrapped(out, what, INDENT, INDENT);
    buf_add_char(out, '\n');
    add_reason("why", json_get_str(f, "why", ""), out);
    add_reason("do ", json_get_str(f, "todo", ""), out);
}

static void add_fine(json_val f, bool color, struct buf *out)
{
    struct str level = json_get_str(f, "level", ""), topic = json_get_str(f, "topic", ""), where = json_get_str(f, "where", ""), what = json_get_str(f, "what", "");
    size_t column = INDENT + TOPIC_WIDTH + 2;
    buf_addf(out, "%s%-4.*s%s  %-*.*s  ", style_on(level, color), (int)level.len, level.ptr, style_off(color), TOPIC_WIDTH, (int)topic.len, topic.ptr);
    if (!str_eq_c(where, "here")) {
        buf_addf(out, STR_FMT "  ", STR_ARG(where));
        column += where.len + 2;
    }
    cmd_add_wrapped(out, what, column, INDENT + TOPIC_WIDTH + 2);
    buf_add_char(out, '\n');
}

void doctor_show(json_val report, bool verbose, bool color, struct buf *out)
{
    json_val machine = json_get(report, "machine"), devices = json_get(report, "devices"), findings = json_get(report, "findings");
    struct str host = json_get_str(report, "host", "this machine"), cpu = json_get_str(machine, "cpu", "");
    char memory[UNITS_TEXT], available[UNITS_TEXT];
    unsigned fine = 0;
    buf_addf(out, STR_FMT ": ", STR_ARG(host));
    if (cpu.len)
        buf_addf(out, STR_FMT ", ", STR_ARG(cpu));
    buf_addf(out, "%llu threads\n%s of RAM, %s available\n", (unsigned long long)json_get_u64(machine, "threads"), units_show_bytes(json_get_u64(machine, "memory_bytes"), memory),
             units_show_bytes(json_get_u64(machine, "available_bytes"), available));
    add_cards(devices, color, out);
    if (verbose)
        add_ways(devices, color, out);
    for (size_t i = 0; i < json_count(findings); i++) {
        json_val f = json_at(findings, i);
        bool ok = str_eq_c(json_get_str(f, "level", ""), "ok");
        if (!ok) {
            add_problem(f, color, out);
        } else if (verbose) {
            buf_add_c(out, fine ? "" : "\n");
            add_fine(f, color, out);
        }
        fine += ok;
    }
    if (fine && !verbose)
        buf_addf(out, "\n%sok%s    %u more in order; -v lists them and each bridge\n", style_on(STR("ok"), color), style_off(color), fine);
}

/* ---- differences -------------------------------------------------------------------------------------------------------------------- */

/* Whether the next lines of text have this one. */
static bool comes(struct str text, struct str line)
{
    for (unsigned i = 0; text.ptr && i < NEAR_LINES; i++)
        if (str_eq(str_split(&text, '\n'), line))
            return true;
    return false;
}

/* Lines are changed where they are, or added; none is moved or taken away. */
void doctor_show_diff(struct str before, struct str after, struct buf *out)
{
    while (after.ptr) {
        struct str rest = before, old = {NULL, 0}, line = str_split(&after, '\n');
        if (before.ptr)
            old = str_split(&rest, '\n');
        if (before.ptr && str_eq(old, line)) {
            before = rest;
            continue;
        }
        if (before.ptr && !comes(after, old)) {
            buf_addf(out, "-" STR_FMT "\n", STR_ARG(old));
            before = rest;
        }
        buf_addf(out, "+" STR_FMT "\n", STR_ARG(line));
    }
}
