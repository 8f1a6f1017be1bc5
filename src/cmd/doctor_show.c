/* SPDX-License-Identifier: MIT
 *
 * A doctor's report for people: the cards, what is wrong with its reason and its remedy, and on demand what is in order and each bridge.
 */
#include "doctor_text_int.h"

#include <errno.h>
#include <string.h>

#define NAME_WIDTH 22  /* of a card's name, so that the table has 80 columns */
#define TOPIC_WIDTH 11
#define WORD_MAX 256    /* characters of a topic, a place, a name */
#define INDENT 6
#define NEAR_LINES 128 /* how far a line that was added is looked for */

/* ---- outside words --------------------------------------------------------------------------------------------------------- */

/* A report may come from another host: its words are made fit to print, and its level is one of ours. */
struct look {
    const char *level;
    enum os_style style;
};

static const struct look *look_of(json_val finding)
{
    static const struct look looks[] = {{"note", OS_CYAN}, {"bad", OS_RED}, {"warn", OS_YELLOW}, {"ok", OS_GREEN}};
    struct str level = json_get_str(finding, "level", "");
    for (size_t i = 0; i < BASE_COUNT(looks); i++)
        if (str_eq_c(level, looks[i].level))
            return &looks[i];
    return &looks[0];
}

static void add_level(struct buf *out, const struct look *l, bool color)
{
    buf_addf(out, "%s%-4s%s  ", os_style_on(l->style, color), l->level, os_style_off(l->style, color));
}

/* Returns the columns that it takes. */
static size_t add_word(struct buf *out, struct str word)
{
    size_t from = out->len;
    buf_add_printable(out, word, WORD_MAX);
    return buf_status(out) < 0 ? 0 : os_text_width((struct str){out->ptr + from, out->len - from});
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
    buf_add_char(out, '\n');
    add_level(out, look_of(f), color);
    buf_add_c(out, os_style_on(OS_BOLD, color));
    add_word(out, json_get_str(f, "topic", ""));
    buf_addf(out, "%s  ", os_style_off(OS_BOLD, color));
    add_word(out, json_get_str(f, "where", ""));
    buf_addf(out, "\n%*s", INDENT, "");
    cmd_add_wrapped(out, json_get_str(f, "what", ""), INDENT, INDENT);
    buf_add_char(out, '\n');
    add_reason("why", json_get_str(f, "why", ""), out);
    add_reason("do ", json_get_str(f, "todo", ""), out);
}

static void add_fine(json_val f, bool color, struct buf *out)
{
    struct str where = json_get_str(f, "where", "");
    size_t column = INDENT + TOPIC_WIDTH + 2;
    add_level(out, look_of(f), color);
    size_t topic = add_word(out, json_get_str(f, "topic", ""));
    buf_addf(out, "%*s", topic < TOPIC_WIDTH ? (int)(TOPIC_WIDTH - topic) + 2 : 2, "");
    if (!str_eq_c(where, "here")) {
        column += add_word(out, where) + 2;
        buf_add_c(out, "  ");
    }
    cmd_add_wrapped(out, json_get_str(f, "what", ""), column, INDENT + TOPIC_WIDTH + 2);
    buf_add_char(out, '\n');
}

void doctor_show(json_val report, bool verbose, bool color, struct buf *out)
{
    json_val machine = json_get(report, "machine"), devices = json_get(report, "devices"), findings = json_get(report, "findings");
    struct str host = json_get_str(report, "host", "this machine"), cpu = json_get_str(machine, "cpu", "");
    char memory[UNITS_TEXT], available[UNITS_TEXT];
    unsigned fine = 0;
    add_word(out, host);
    buf_add_c(out, ": ");
    if (cpu.len) {
        add_word(out, cpu);
        buf_add_c(out, ", ");
    }
    buf_addf(out, "%llu threads\n%s of RAM, %s available\n", (unsigned long long)json_get_u64(machine, "threads"), units_show_bytes(json_get_u64(machine, "memory_bytes"), memory),
             units_show_bytes(json_get_u64(machine, "available_bytes"), available));
    add_cards(devices, color, out);
    if (verbose)
        add_ways(devices, color, out);
    for (size_t i = 0; i < json_count(findings); i++) {
        json_val f = json_at(findings, i);
        bool ok = look_of(f)->style == OS_GREEN;
        if (!ok) {
            add_problem(f, color, out);
        } else if (verbose) {
            buf_add_c(out, fine ? "" : "\n");
            add_fine(f, color, out);
        }
        fine += ok;
    }
    if (fine && !verbose)
        buf_addf(out, "\n%sok%s    %u more in order; -v lists them and each bridge\n", os_style_on(OS_GREEN, color), os_style_off(OS_GREEN, color), fine);
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

/* A line of a file of CRLF is shown without its CR. */
static void add_line(struct buf *out, char sign, struct str line)
{
    if (str_ends(line, STR("\r")))
        line.len--;
    buf_add_char(out, sign);
    buf_add_printable(out, line, SIZE_MAX);
    buf_add_char(out, '\n');
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
            add_line(out, '-', old);
            before = rest;
        }
        add_line(out, '+', line);
    }
}
