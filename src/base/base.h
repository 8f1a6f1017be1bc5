/* SPDX-License-Identifier: MIT
 *
 * base: what every module stands on. It knows nothing of models, engines, files or sockets and
 * includes libc only. Nothing here logs, exits or keeps global state; every function may be called
 * from any thread as long as one object is used by one thread at a time.
 *
 * Parts, each with its own prefix: err (errors as values), str (string views), buf (growable
 * bytes with a ceiling), arena (memory freed together), size (checked arithmetic), units ("31.86GiB"),
 * clk (injectable clock), event (what happened, told upwards without logging).
 *
 * House rule for all modules: f(object, inputs..., ret_x, err) returns 0 or a negative errno; ret_x is
 * written only on success; err may be NULL everywhere and is written only on failure.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- attributes and scope cleanup ------------------------------------------------------------- */

#define BASE_MUST_USE __attribute__((warn_unused_result))
/* Deliberate neglect of a must-use result: gcc warns at a plain (void). Say why beside it. */
#define base_ignore(result) ((void)!(result))
#define BASE_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Frees a heap pointer when the variable leaves its scope. */
#define base_autofree __attribute__((cleanup(base_freep)))
void base_freep(void *pp);

/* Value of a pointer variable, which becomes NULL: hands ownership out of a scope-cleaned variable. */
#define base_take_ptr(p) ({ __typeof__(p) taken_ = (p); (p) = NULL; taken_; })

#define BASE_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* The struct of `type` whose `member` is at ptr. */
#define base_container(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* ---- err: one error, as code and a line for people --------------------------------------------- */

/* Longest message; a longer one is cut with "..." at a UTF-8 boundary. */
#define ERR_TEXT_MAX 1024

/* A negative errno and its message: lower case, no full stop, failure first, outside text quoted. */
struct err {
    int code;
    char text[ERR_TEXT_MAX];
};

/* Writes code and message; returns code, so that `return err_set(err, -EINVAL, ...)` works.
 * code must be negative. err may be NULL. */
int err_set(struct err *err, int code, const char *fmt, ...) BASE_PRINTF(3, 4);

/* As err_set, with ": <strerror(-code)>" after the message. */
int err_sys(struct err *err, int code, const char *fmt, ...) BASE_PRINTF(3, 4);

/* Puts "<prefix>: " before the message that err holds; returns err's code (or -EIO for NULL). */
int err_prefix(struct err *err, const char *fmt, ...) BASE_PRINTF(2, 3);

/* -ENOMEM with its standard message. */
int err_nomem(struct err *err);

/* ---- str: a view of bytes that somebody else owns ----------------------------------------------- */

struct str {
    const char *ptr; /* not terminated; may be NULL when len is 0 */
    size_t len;
};

#define STR(lit) ((struct str){(lit), sizeof(lit) - 1}) /* of a string literal */
#define STR_FMT "%.*s"                                   /* printf("%.*s") with STR_ARG(s) */
#define STR_ARG(s) ((int)((s).len > 4096 ? 4096 : (s).len)), ((s).ptr ? (s).ptr : "")

/* NULL gives the empty view. Here, as what follows, so that the length of a literal is known where it is used. */
static inline struct str str_of(const char *cstr)
{
    return (struct str){cstr, cstr ? strlen(cstr) : 0};
}
#define STR_U64 20
struct str str_of_u64(uint64_t n, char out[STR_U64]); /* its decimal digits, in out, without a terminator */
static inline bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}
static inline bool str_eq_c(struct str a, const char *cstr)
{
    return str_eq(a, str_of(cstr));
}
bool str_eq_nocase(struct str a, struct str b); /* ASCII */
bool str_starts(struct str s, struct str prefix);
bool str_ends(struct str s, struct str suffix);
struct str str_trim(struct str s); /* without leading and trailing space and tab, CR, LF */
/* Offset of the first c in s, or -1. */
ptrdiff_t str_find_char(struct str s, char c);
/* Offset of the first occurrence of needle (not empty) in s, or -1. */
ptrdiff_t str_find(struct str s, struct str needle);
/* Cuts s at the first sep: returns what is before it and leaves the rest in *s; without sep returns all, *s empty
 * with ptr NULL, so that `while (s.ptr)` walks every field. */
struct str str_split(struct str *s, char sep);
/* A terminated heap copy (malloc), or NULL without memory. The caller frees. Embedded NULs are kept as they are. */
char *str_dup(struct str s) BASE_MUST_USE;
/* Decimal digits only (no sign, no space), no wrap. -EINVAL or -ERANGE. */
int str_to_u64(struct str s, uint64_t *ret) BASE_MUST_USE;
/* True when all bytes form valid UTF-8 (no surrogates, no overlongs) without NUL. */
bool str_is_utf8(struct str s);
/* Decodes the character at the front of s: its length in bytes (1-4) and *ret_point, or 0 for broken UTF-8 or an empty s. */
size_t str_utf8_decode(struct str s, uint32_t *ret_point) BASE_MUST_USE;
/* Whether a character shows as itself and changes nothing around it: no control, no separator of lines, none that turns the direction of writing. */
bool str_is_shown(uint32_t point);
/* The candidate nearest to word by edit distance, when near enough to be a misspelling (at most 2 edits and at most a
 * third of its length, or same but for case, '-' and '_'), or the only one that begins with it (of at least 4 letters); else NULL. candidates is an array of n terminated strings. */
const char *str_nearest(struct str word, const char *const *candidates, size_t n);

/* ---- buf: growable bytes with a ceiling ---------------------------------------------------------- */

/* Always terminated once anything was added, so that ptr is a C string too. Adding to a buffer that cannot grow (memory,
 * ceiling) marks it failed and adds nothing; later adds do nothing. Ask buf_status once, before using the content. */
struct buf {
    char *ptr;
    size_t len, cap, max;
    int fail; /* 0, -ENOMEM or -E2BIG */
};

#define BUF_INIT(max_bytes) ((struct buf){.max = (max_bytes)})
#define base_autobuf __attribute__((cleanup(buf_release)))

void buf_release(struct buf *b); /* frees; b stays usable with the same ceiling */
void buf_clear(struct buf *b);   /* forgets content and failure, keeps memory */
/* Makes room for n more bytes and returns where they go, NULL when failed; buf_grew(n) then counts them in. */
char *buf_room(struct buf *b, size_t n);
void buf_grew(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *data, size_t len);
static inline void buf_add_str(struct buf *b, struct str s)
{
    buf_add(b, s.ptr, s.len);
}
static inline void buf_add_c(struct buf *b, const char *cstr)
{
    buf_add_str(b, str_of(cstr));
}
static inline void buf_add_char(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}
void buf_add_u64(struct buf *b, uint64_t n); /* in decimal digits */
void buf_addf(struct buf *b, const char *fmt, ...) BASE_PRINTF(2, 3);
void buf_addv(struct buf *b, const char *fmt, va_list ap) BASE_PRINTF(2, 0);
/* Outside text for people: printable UTF-8 as it is; controls, characters that turn the direction of writing and broken UTF-8
 * as \xNN; at most max_chars characters shown (an \xNN is four) and then "...". No quotes are added. */
void buf_add_printable(struct buf *b, struct str s, size_t max_chars);
/* The same for a text of several lines, whose ends stay. */
void buf_add_lines(struct buf *b, struct str s);
/* In double quotes, as JSON and YAML read them: '"', '\\' and control bytes escaped. What is no UTF-8 stays so. */
void buf_add_quoted(struct buf *b, struct str s);
void buf_drop_front(struct buf *b, size_t n); /* n <= len */
BASE_MUST_USE static inline int buf_status(const struct buf *b)
{
    return b->fail;
}
/* Marks b failed, for who adds what was made elsewhere and was not; code 0 does nothing, the first failure stays. */
void buf_fail(struct buf *b, int code);
static inline struct str buf_str(const struct buf *b)
{
    return (struct str){b->ptr, b->len};
}
/* Content as a terminated heap string; b becomes empty. NULL when failed or without memory. */
char *buf_take(struct buf *b) BASE_MUST_USE;

/* ---- arena: memory that is freed together --------------------------------------------------------- */

struct arena;
/* max_bytes bounds the sum of all blocks. NULL without memory. */
struct arena *arena_new(size_t max_bytes) BASE_MUST_USE;
struct arena *arena_free(struct arena *a); /* takes NULL; returns NULL */
/* Zeroed, aligned for any type. NULL beyond the ceiling or without memory. count * size is checked. */
void *arena_alloc(struct arena *a, size_t count, size_t size) BASE_MUST_USE;
/* A list in an arena that grows: its place with room for `need` elements, which is `list` itself while they fit; else it moves, *cap at least doubled, zeroed behind the old
 * content. {NULL, 0} starts one. NULL as arena_alloc: the list is as it was. */
void *arena_grow(struct arena *a, void *list, size_t need, size_t *cap, size_t size) BASE_MUST_USE;
char *arena_dup(struct arena *a, struct str s) BASE_MUST_USE; /* terminated */
char *arena_printf(struct arena *a, const char *fmt, ...) BASE_PRINTF(2, 3) BASE_MUST_USE;

/* ---- size: checked arithmetic on numbers from outside ----------------------------------------------- */

/* False when the result does not fit; *ret is then untouched. */
bool size_add(uint64_t a, uint64_t b, uint64_t *ret) BASE_MUST_USE;
bool size_mul(uint64_t a, uint64_t b, uint64_t *ret) BASE_MUST_USE;
/* a rounded up to a multiple of align (a power of two). */
bool size_align(uint64_t a, uint64_t align, uint64_t *ret) BASE_MUST_USE;

/* ---- units ------------------------------------------------------------------------------------------- */

/* "512", "31.86GiB", "2GB", "8 MiB": binary for Ki/Mi/Gi/Ti, decimal for k/K/M/G/T, "B" optional after a prefix and
 * allowed alone. A fraction is rounded to whole bytes. -EINVAL (syntax, unknown unit), -ERANGE (over 2^63-1). */
int units_bytes(struct str s, uint64_t *ret) BASE_MUST_USE;
/* "640GB/s": bytes a second, the same prefixes, "/s" required. */
int units_rate(struct str s, uint64_t *ret) BASE_MUST_USE;
/* "90s", "10m", "1.5h", "250ms", "2d": milliseconds; the unit is required. -EINVAL, -ERANGE. */
int units_ms(struct str s, uint64_t *ret) BASE_MUST_USE;

#define UNITS_TEXT 28 /* enough for any of the texts below */
/* "262,144". Returns out. */
const char *units_show_count(uint64_t n, char out[UNITS_TEXT]);
/* "31.86 GiB", "512 B": two decimals above 1 KiB. Returns out. */
const char *units_show_bytes(uint64_t bytes, char out[UNITS_TEXT]);
/* "850 ms", "12.3 s", "4m 05s", "3h 12m", "5d 2h". Returns out. */
const char *units_show_ms(uint64_t ms, char out[UNITS_TEXT]);

/* ---- clk: time that tests can set ------------------------------------------------------------------------ */

struct clk {
    uint64_t (*mono_us)(void *ctx); /* monotonic, for durations */
    uint64_t (*real_us)(void *ctx); /* since 1970 UTC, only to show */
    void *ctx;
};
extern const struct clk clk_system;
#define CLK_RFC3339 32
/* "2026-01-31T12:00:00Z". Returns out. */
const char *clk_rfc3339(uint64_t real_us, char out[CLK_RFC3339]);

/* ---- event: what happened, told upwards --------------------------------------------------------------------- */

enum event_level { EVENT_DEBUG, EVENT_INFO, EVENT_WARN, EVENT_ERROR };

/* Modules below layer 5 never print: they emit events to the sink they were given; the owner decides what a person sees. */
struct event_sink {
    /* subject: what it is about ("service medium", "runtime llama"), never NULL. done/total: progress in `unit`s, both 0
     * when the event is no progress. text is valid during the call only. */
    void (*emit)(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total);
    void *ctx;
};
/* sink may be NULL (says nothing). */
void event_say(const struct event_sink *sink, enum event_level level, const char *subject, const char *fmt, ...)
    BASE_PRINTF(4, 5);
void event_progress(const struct event_sink *sink, const char *subject, const char *text, uint64_t done, uint64_t total);
