/* SPDX-License-Identifier: MIT
 *
 * Help text and man pages, both from the command's table entry, so that they cannot differ.
 */
#include "cmd_int.h"

#include <string.h>

#define TEXT_WIDTH 79 /* widest line of a help text, and of everything that is wrapped as one */
#define WORD_MAX 4096 /* characters of a word */

static const char about[] =
    "berth puts language models on the machines you own. From one file, fleet.yaml, it starts\n"
    "real engines (llama.cpp, vLLM), proves that they serve what was declared, and gives your\n"
    "clients one address.";

/* ---- words in lines -------------------------------------------------------------------------------------- */

void cmd_add_wrapped(struct buf *out, struct str text, size_t column, size_t indent)
{
    cmd_add_wrapped_within(out, text, column, indent, "", TEXT_WIDTH);
}

void cmd_add_wrapped_within(struct buf *out, struct str text, size_t column, size_t indent, const char *mark, size_t width)
{
    size_t at = column;
    bool first = true;
    while (text.len) {
        size_t n = 0;
        while (n < text.len && text.ptr[n] != ' ' && text.ptr[n] != '\n')
            n++;
        struct str word = {text.ptr, n};
        size_t columns = os_text_width(word);
        text = (struct str){text.ptr + n, text.len - n};
        while (text.len && (text.ptr[0] == ' ' || text.ptr[0] == '\n'))
            text = (struct str){text.ptr + 1, text.len - 1};
        if (!n)
            continue;
        if (!first && at + 1 + columns > width) {
            buf_addf(out, "\n%*s%s", (int)indent, "", mark);
            at = indent + strlen(mark);
        } else if (!first) {
            buf_add_char(out, ' ');
            at++;
        }
        buf_add_printable(out, word, WORD_MAX);
        at += columns;
        first = false;
    }
}

/* The next paragraph of a text, cut off its front. */
static struct str next_paragraph(struct str *text)
{
    ptrdiff_t end = str_find(*text, STR("\n\n"));
    struct str p = *text;
    if (end < 0) {
        *text = (struct str){NULL, 0};
        return p;
    }
    p.len = (size_t)end;
    *text = (struct str){text->ptr + end + 2, text->len - (size_t)end - 2};
    return p;
}

static bool has_option(const struct cmd *c, size_t i)
{
    return i < CMD_OPTIONS_MAX && c->options[i].name;
}

/* "-f, --file FILE" */
static void add_option_name(struct buf *out, const struct cmd_option *o)
{
    if (o->letter)
        buf_addf(out, "-%c, ", o->letter);
    else
        buf_add_c(out, "    ");
    buf_addf(out, "--%s", o->name);
    if (o->value)
        buf_addf(out, " %s", o->value);
}

static const struct cmd_option help_option = {'h', "help", NULL, "print this help"};

static void add_options(struct buf *out, const struct cmd *c)
{
    const struct cmd_option *all[CMD_OPTIONS_MAX + 1];
    size_t n = 0, widest = 0;
    for (size_t i = 0; has_option(c, i); i++)
        all[n++] = &c->options[i];
    all[n++] = &help_option;
    for (size_t i = 0; i < n; i++) {
        size_t w = 4 + 2 + strlen(all[i]->name) + (all[i]->value ? 1 + strlen(all[i]->value) : 0);
        widest = w > widest ? w : widest;
    }
    buf_add_c(out, "\nOptions:\n");
    for (size_t i = 0; i < n; i++) {
        size_t start = out->len;
        buf_add_c(out, "  ");
        add_option_name(out, all[i]);
        size_t used = out->len - start, column = widest + 4;
        buf_addf(out, "%*s", (int)(column > used ? column - used : 2), "");
        cmd_add_wrapped(out, str_of(all[i]->help), column, column);
        buf_add_char(out, '\n');
    }
}

static void add_command_list(struct buf *out)
{
    for (size_t i = 0; i < cmd_table_len; i++) {
        if (cmd_table[i]->hidden)
            continue;
        buf_addf(out, "  %-9s ", cmd_table[i]->name);
        cmd_add_wrapped(out, str_of(cmd_table[i]->summary), 12, 12);
        buf_add_char(out, '\n');
    }
}

int cmd_help_text(const struct cmd *c, struct buf *out)
{
    if (!c) {
        buf_add_c(out, "Usage: berth COMMAND [OPTIONS]\n\n");
        cmd_add_wrapped(out, str_of(about), 0, 0);
        buf_add_c(out, "\n\nCommands:\n");
        add_command_list(out);
        buf_add_c(out, "\n'berth COMMAND -h' explains one. A fleet is read from ./fleet.yaml or the file\n"
                       "named with -f. Exit: 0 ok, 1 failed, 2 usage or unusable fleet file.\n");
        return buf_status(out);
    }
    buf_addf(out, "Usage: berth %s %s\n\n", c->name, c->synopsis);
    struct str text = str_of(c->description);
    while (text.ptr) {
        cmd_add_wrapped(out, next_paragraph(&text), 0, 0);
        buf_add_c(out, text.ptr ? "\n\n" : "\n");
    }
    add_options(out, c);
    if (c->examples) {
        buf_add_c(out, "\nExamples:\n");
        struct str lines = str_of(c->examples);
        while (lines.ptr) {
            struct str line = str_split(&lines, '\n');
            if (line.len)
                buf_addf(out, "  %.*s\n", STR_ARG(line));
        }
    }
    return buf_status(out);
}

/* ---- man pages ------------------------------------------------------------------------------------------------ */

/* Text for roff: backslash and dash escaped, a line never begins with a control character. */
static void add_roff(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        char ch = s.ptr[i];
        bool line_start = i == 0 || s.ptr[i - 1] == '\n';
        if (line_start && (ch == '.' || ch == '\''))
            buf_add_c(out, "\\&");
        if (ch == '\\')
            buf_add_c(out, "\\e");
        else if (ch == '-')
            buf_add_c(out, "\\-");
        else
            buf_add_char(out, ch);
    }
}

static void add_roff_c(struct buf *out, const char *s)
{
    add_roff(out, str_of(s));
}

static void add_man_head(struct buf *out, const char *title, const char *summary)
{
    buf_add_c(out, ".TH ");
    for (const char *p = title; *p; p++)
        buf_add_char(out, (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p));
    buf_add_c(out, " 1 \"\" \"berth " BERTH_VERSION "\" \"berth\"\n.SH NAME\n");
    add_roff_c(out, title);
    buf_add_c(out, " \\- ");
    add_roff_c(out, summary);
    buf_add_c(out, "\n.SH SYNOPSIS\n");
}

static void add_man_paragraphs(struct buf *out, struct str text)
{
    while (text.ptr) {
        add_roff(out, next_paragraph(&text));
        buf_add_c(out, text.ptr ? "\n.PP\n" : "\n");
    }
}

static void add_man_exit(struct buf *out)
{
    buf_add_c(out, ".SH EXIT STATUS\n0 ok; 1 failed; 2 usage or unusable fleet file.\n");
}

static int man_of_berth(struct buf *out)
{
    add_man_head(out, "berth", "put language models on the machines you own");
    buf_add_c(out, ".B berth\n.I COMMAND\n[OPTIONS]\n.SH DESCRIPTION\n");
    add_man_paragraphs(out, str_of(about));
    buf_add_c(out, ".SH COMMANDS\n");
    for (size_t i = 0; i < cmd_table_len; i++) {
        if (cmd_table[i]->hidden)
            continue;
        buf_addf(out, ".TP\n.BR berth\\-%s (1)\n", cmd_table[i]->name);
        add_roff_c(out, cmd_table[i]->summary);
        buf_add_char(out, '\n');
    }
    add_man_exit(out);
    buf_add_c(out, ".SH ENVIRONMENT\n"
                   ".TP\n.B BERTH_STATE\nfolder of runtimes, payloads and logs (root: /var/lib/berth; else ~/.local/state/berth)\n"
                   ".TP\n.B BERTH_RUN\nfolder of locks and control sockets (root: /run/berth; else $XDG_RUNTIME_DIR/berth)\n"
                   ".TP\n.B BERTH_CONFIG\nfolder of settings, beside which units of 'scope: user' are (root: /etc/berth; else $XDG_CONFIG_HOME/berth)\n"
                   ".TP\n.B NO_COLOR\nno colour in tables and progress when set and not empty\n"
                   ".SH FILES\n.TP\n.B fleet.yaml\nthe fleet: hosts, runtimes, models, services, endpoints, router\n");
    return buf_status(out);
}

int cmd_man_page(const struct cmd *c, struct buf *out)
{
    if (!c)
        return man_of_berth(out);
    base_autobuf struct buf title = BUF_INIT(256);
    buf_addf(&title, "berth-%s", c->name);
    if (buf_status(&title))
        return buf_status(&title);
    add_man_head(out, title.ptr, c->summary);
    buf_addf(out, ".B berth %s\n", c->name);
    add_roff_c(out, c->synopsis);
    buf_add_c(out, "\n.SH DESCRIPTION\n");
    add_man_paragraphs(out, str_of(c->description));
    buf_add_c(out, ".SH OPTIONS\n");
    for (size_t i = 0; i < CMD_OPTIONS_MAX + 1; i++) {
        const struct cmd_option *o = has_option(c, i) ? &c->options[i] : &help_option;
        buf_add_c(out, ".TP\n.B ");
        if (o->letter)
            buf_addf(out, "\\-%c, ", o->letter);
        buf_add_c(out, "\\-\\-");
        add_roff_c(out, o->name);
        if (o->value)
            buf_addf(out, " %s", o->value);
        buf_add_char(out, '\n');
        add_roff_c(out, o->help);
        buf_add_char(out, '\n');
        if (o == &help_option)
            break;
    }
    if (c->examples) {
        buf_add_c(out, ".SH EXAMPLES\n.nf\n");
        add_roff_c(out, c->examples);
        buf_add_c(out, "\n.fi\n");
    }
    add_man_exit(out);
    buf_add_c(out, ".SH SEE ALSO\n.BR berth (1)\n");
    return buf_status(out);
}
