/* SPDX-License-Identifier: MIT
 *
 * cmd: what a person meets. One table entry and one file for each subcommand; its help text and its man page come from the same entry. Results go to stdout, everything else to stderr;
 * exit codes: 0 ok, 1 failed, 2 usage or unusable fleet file.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <os/os.h>

enum { CMD_OK = 0, CMD_FAILED = 1, CMD_USAGE = 2 };

/* One option of a command. letter 0: long only. value NULL: a switch. */
struct cmd_option {
    char letter;
    const char *name;  /* "file" for --file */
    const char *value; /* "FILE" */
    const char *help;  /* one line, lower case, no full stop */
};
#define CMD_OPTIONS_MAX 20
#define CMD_WORDS_MAX 64

struct cmd {
    const char *name;
    const char *synopsis;    /* after "berth NAME": "[-d] [-f FILE]" */
    const char *summary;     /* one line for the list */
    const char *description; /* paragraphs, separated by an empty line; wrapped when they are shown */
    const char *examples;    /* lines "command    # what it does"; NULL */
    struct cmd_option options[CMD_OPTIONS_MAX]; /* ended by an entry without a name; -h/--help is understood by all */
    bool hidden;             /* not listed: for berth itself */
    int (*run)(const struct cmd *c, int argc, char **argv);
};
extern const struct cmd cmd_init;
extern const struct cmd cmd_up;
extern const struct cmd cmd_down;
extern const struct cmd cmd_reload;
extern const struct cmd cmd_upgrade;
extern const struct cmd cmd_resume;
extern const struct cmd cmd_restart;
extern const struct cmd cmd_service_drain;
extern const struct cmd cmd_service_resume;
extern const struct cmd cmd_status;
extern const struct cmd cmd_top;
extern const struct cmd cmd_logs;
extern const struct cmd cmd_check;
extern const struct cmd cmd_fit;
extern const struct cmd cmd_inspect;
extern const struct cmd cmd_lock;
extern const struct cmd cmd_pull;
extern const struct cmd cmd_verify;
extern const struct cmd cmd_purge;
extern const struct cmd cmd_runtime;
extern const struct cmd cmd_route;
extern const struct cmd cmd_drill;
extern const struct cmd cmd_key;
extern const struct cmd cmd_render;
extern const struct cmd cmd_plan;
extern const struct cmd cmd_deploy;
extern const struct cmd cmd_rollback;
extern const struct cmd cmd_history;
extern const struct cmd cmd_doctor;
extern const struct cmd cmd_help;
extern const struct cmd cmd_route_worker;
extern const struct cmd cmd_apply;
extern const struct cmd cmd_status_there;
extern const struct cmd cmd_drain;
extern const struct cmd cmd_router;

/* Parsed command line. */
struct cmd_args {
    const char *values[CMD_OPTIONS_MAX]; /* per option: its value; "" for a switch that was given; NULL not given. A repeated option: the last value, and all through cmd_value_at */
    unsigned counts[CMD_OPTIONS_MAX];
    const char *words[CMD_WORDS_MAX];    /* what is no option */
    size_t n_words;
    int argc;
    char **argv;
};
/* argv[0] is the command's name. Understands -x, -xVALUE, -x VALUE, --name, --name VALUE, --name=VALUE, switches in one cluster, "--". Returns true when the command should go on; else *ret_exit is set (help was printed, or a usage error
 * was said). min_words..max_words bounds the words. */
bool cmd_parse(const struct cmd *c, int argc, char **argv, size_t min_words, size_t max_words, struct cmd_args *ret, int *ret_exit);
/* Of an option by its long name, which the command must have. */
const char *cmd_value(const struct cmd *c, const struct cmd_args *a, const char *name);
bool cmd_given(const struct cmd *c, const struct cmd_args *a, const char *name);
/* The i-th value of a repeated option, or NULL. */
const char *cmd_value_at(const struct cmd *c, const struct cmd_args *a, const char *name, size_t i);

/* "berth: <text>" (or "berth NAME: <text>") on stderr; returns the exit code given. */
int cmd_fail(int code, const struct err *err);
/* The path of this very program, to be started again; out holds PATH_MAX. A file that was replaced meanwhile is still there to the kernel, by its link, which is then returned. */
const char *cmd_own_program(char *out);
int cmd_failf(int code, const char *fmt, ...) BASE_PRINTF(2, 3);
int cmd_nomem(void); /* CMD_FAILED */
/* Usage error with the hint to "berth NAME -h"; returns CMD_USAGE. */
int cmd_usage(const struct cmd *c, const char *fmt, ...) BASE_PRINTF(2, 3);
/* Loads the fleet of option -f; on failure says why and gives the exit code: 2 for an unusable or missing file. */
struct fleet *cmd_fleet(const struct cmd *c, const struct cmd_args *a, int *ret_exit);
/* Runs fn with the fleet of option -f and this machine's folders. The exit code is fn's, or that of what could not be had. */
int cmd_on_fleet(const struct cmd *c, const struct cmd_args *a, int (*fn)(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs));
/* The same with the fleet's name only, for what a running fleet is asked: its file need not be usable. */
int cmd_on_name(const struct cmd *c, const struct cmd_args *a, int (*fn)(const struct cmd *c, const struct cmd_args *a, const char *name, const struct os_dirs *dirs));
/* CMD_OK when the fleet has a service of that name; else says so, with the nearest one, and returns CMD_USAGE. */
int cmd_service(const struct fleet *f, const char *name);
/* The same of a model. */
int cmd_model(const struct fleet *f, const char *name);
#define CMD_OPTION_FILE {'f', "file", "FILE", "fleet file (default ./fleet.yaml)"}
#define CMD_OPTION_JSON {0, "json", NULL, "print JSON"}
/* Writes all of text to stdout; CMD_OK, or CMD_FAILED when stdout is closed or full. */
int cmd_print(struct str text);
/* Writes text to a file that was named by a person: one that exists is replaced whole or not at all, what is no regular file (/dev/stdout) is written to. Without replace one that exists is refused with -EEXIST. */
int cmd_write_file(const char *path, struct str text, bool replace, struct err *err) BASE_MUST_USE;
/* The same with what was written to o or put into t, which are freed. */
struct json_out;
int cmd_print_json(struct json_out *o);
int cmd_print_table(struct os_table *t);

/* Events as lines of progress; warnings and errors above them. */
struct event_sink cmd_progress_sink(struct os_progress *p);

/* Adds text, made fit to print, with its words wrapped within 80 columns; each line but the first begins with indent spaces; column is where the first begins. Lines of the text are joined. A word that is too long stands alone and whole. */
void cmd_add_wrapped(struct buf *out, struct str text, size_t column, size_t indent);
/* The same within so many columns; mark stands behind the indent of each line but the first. */
void cmd_add_wrapped_within(struct buf *out, struct str text, size_t column, size_t indent, const char *mark, size_t width);
/* Help text (width 80) and man page source of one command, and of berth itself when c is NULL. */
int cmd_help_text(const struct cmd *c, struct buf *out) BASE_MUST_USE;
int cmd_man_page(const struct cmd *c, struct buf *out) BASE_MUST_USE;
const struct cmd *cmd_find(const char *name);
extern const struct cmd *const cmd_table[];
extern const size_t cmd_table_len;
