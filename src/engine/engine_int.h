/* SPDX-License-Identifier: MIT
 *
 * Inside of engine: one struct of data and small functions for each kind, the builder of argument lists, and what the kinds share in reading
 * answers and logs. A new kind is one file with one struct, and a line in engine.c's table.
 */
#pragma once

#include "engine.h"

/* ---- argument lists ------------------------------------------------------------------------------------------- */

/* Grows in an arena; a failure sticks and comes out of args_finish. */
struct args {
    struct arena *a;
    const char **v;
    size_t n, cap;
    bool failed;
};
void args_add(struct args *args, const char *word);                     /* kept, not copied */
void args_addf(struct args *args, const char *fmt, ...) BASE_PRINTF(2, 3);
/* "flag value". */
void args_pair(struct args *args, const char *flag, const char *value);
void args_number(struct args *args, const char *flag, uint64_t value);
int args_finish(struct args *args, const char *const **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;

#define FLAG_NAMES 5
/* A flag that a service's own `args` may not hold, under all its names. */
struct owned_flag {
    const char *names[FLAG_NAMES];
    const char *instead; /* what to do, or why not: "use 'context'" */
};
/* True when a word says this flag, also as "--flag=value" and with '_' for '-', which engines take too. */
bool args_is(struct str word, const char *flag);
/* Position in the service's args of the first word that is one of names (n of them, NULL ends early), or -1. */
ptrdiff_t args_find(const struct fleet_service *s, const char *const *names, size_t n);

/* ---- logs ----------------------------------------------------------------------------------------------------- */

struct line_rule {
    const char *needle; /* anywhere in the message */
    enum engine_line line;
};
struct word_rule {
    const char *needle, *also; /* both in one message; also may be NULL */
    enum engine_words words;
    bool weak; /* a warning that an engine may survive: forgotten when the start goes on */
};
/* Rules that hold for every kind: drivers and allocators speak alike below all of them. */
extern const struct word_rule words_common[];
extern const size_t words_common_n;

/* ---- kinds ------------------------------------------------------------------------------------------------------ */

struct engine_kind {
    const char *name;
    const char *program;              /* NULL: the declaration says it */
    const char *const *env;           /* NULL-terminated */
    const char *health, *identity, *props, *idle; /* paths; NULL: cannot be asked, or the declaration says it */
    uint64_t start_ms;                /* constant work of a start */
    bool reuses_port;                 /* listens with SO_REUSEADDR */

    const struct owned_flag *owned;
    size_t n_owned;

    int (*argv)(const struct fleet_service *s, const struct engine_paths *p, struct args *args, struct err *err);
    int (*props_check)(const struct fleet_service *s, const struct engine_paths *p, struct str body, struct err *err); /* with props */
    int (*speculation_check)(const struct fleet_service *s, struct str body, struct err *err); /* NULL: cannot tell */
    const char *capacity;                                                                      /* its path; NULL: declared, or nobody knows */
    const char *speculation;                                                                   /* its path */
    int (*log_check)(const struct fleet_service *s, struct str log, struct err *err);          /* NULL: nothing to compare */
    bool (*denies)(const struct fleet_service *s, struct str text);                            /* NULL: whatever is dropped was asked for */
    int (*idle_parse)(struct str body, unsigned *ret_busy, struct err *err);                   /* with idle */
    int (*token_request)(const struct fleet_service *s, struct arena *a, const char **ret_path, const char **ret_body);

    struct str (*message)(struct str line); /* a line without time stamp and level */
    bool (*begins)(struct str message);     /* true for a line that a fresh process says first: what came before is another run's; may be NULL */
    const char *const *noise;               /* messages beginning so quote the model's own text: never matched; NULL-terminated, may be NULL */
    const struct line_rule *lines;
    size_t n_lines;
    const struct word_rule *words;
    size_t n_words;
};
extern const struct engine_kind engine_llama, engine_vllm, engine_generic;


/* ---- what kinds share ------------------------------------------------------------------------------------------- */

/* Differences between asked and got, gathered into one error. */
struct diffs {
    struct buf text;
};
#define DIFFS_MAX 900 /* fits struct err with its prefix */
#define DIFFS_INIT ((struct diffs){.text = BUF_INIT(DIFFS_MAX)})
void diffs_add(struct diffs *d, const char *fmt, ...) BASE_PRINTF(2, 3);
/* 0 without differences, else -EBADMSG. Releases d. */
int diffs_finish(struct diffs *d, struct err *err) BASE_MUST_USE;

/* Outside text, printable, for a message. Returns out. */
#define QUOTE_CHARS 96
#define QUOTE_MAX (4 * QUOTE_CHARS + 4) /* a character may become four bytes; then "..." */
const char *quote(struct str s, char out[QUOTE_MAX]);

/* The rest of s behind its first word and the blanks around it; *ret_word is the word. */
struct str skip_word(struct str s, struct str *ret_word);

int llama_props_check(const struct fleet_service *s, const struct engine_paths *p, struct str body, struct err *err) BASE_MUST_USE;
int llama_speculation_check(const struct fleet_service *s, struct str body, struct err *err) BASE_MUST_USE;
int llama_log_check(const struct fleet_service *s, struct str log, struct err *err) BASE_MUST_USE;
bool llama_denies(const struct fleet_service *s, struct str text);
int llama_idle_parse(struct str body, unsigned *ret_busy, struct err *err) BASE_MUST_USE;
struct str llama_message(struct str line);
bool llama_begins(struct str message);
struct str vllm_message(struct str line);
