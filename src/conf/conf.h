/* SPDX-License-Identifier: MIT
 *
 * conf: JSON and YAML behind one small API. The only module that knows yyjson and libyaml. No I/O: text in, values out.
 * Values belong to their document and die with it. Everything from outside is bounded: CONF_TEXT_MAX bytes, CONF_DEPTH_MAX levels.
 */
#pragma once

#include <base/base.h>

#define CONF_DEPTH_MAX 32                        /* nesting; libyaml's cost is quadratic in flow depth, yyjson has no limit of its own */
#define CONF_YAML_MAX ((size_t)1024 * 1024)      /* bytes of one YAML file */
#define CONF_JSON_MAX ((size_t)64 * 1024 * 1024) /* bytes of one JSON text */

/* ---- JSON, reading ------------------------------------------------------------------------------------ */

struct json;                                /* a parsed text */
typedef const struct json_value_opaque *json_val; /* a value inside it; NULL is "not there" and every getter accepts it */

/* Strict RFC 8259: one value, no trailing text, UTF-8, no duplicate check. The text is copied. Errors: "line:column: ...". */
int json_parse(struct str text, struct json **ret, struct err *err) BASE_MUST_USE;
/* As editors and people write it: comments, a comma behind the last of a list, and a byte order mark are passed over too. */
int json_parse_relaxed(struct str text, struct json **ret, struct err *err) BASE_MUST_USE;
struct json *json_free(struct json *j);
json_val json_root(const struct json *j);
json_val json_get(json_val obj, const char *key);              /* NULL unless obj is an object that has key */
json_val json_at(json_val arr, size_t i);                      /* NULL unless arr is an array with more than i elements */
size_t json_count(json_val v);                                 /* of an array or object; else 0 */
/* Walks an object: start with *iter = 0; false at the end. */
bool json_next(json_val obj, size_t *iter, struct str *ret_key, json_val *ret_val);
bool json_is_obj(json_val v);
bool json_is_arr(json_val v);
bool json_is_null(json_val v);
bool json_str(json_val v, struct str *ret);    /* false unless a string */
bool json_u64(json_val v, uint64_t *ret);      /* false unless an integer >= 0 */
bool json_f64(json_val v, double *ret);        /* false unless a number */
bool json_bool(json_val v, bool *ret);         /* false unless true or false */
/* Members as they are shown: what is missing, or of another kind, is otherwise, 0 or false. */
struct str json_get_str(json_val obj, const char *key, const char *otherwise);
uint64_t json_get_u64(json_val obj, const char *key);
double json_get_f64(json_val obj, const char *key);
bool json_get_bool(json_val obj, const char *key);

/* ---- JSON, scanning without a tree --------------------------------------------------------------------------- */

/* Finds member `key` at the top level of a JSON object in a text of any size, in one pass without allocation and without checking more than it must skip (depth is counted, not recursed). *ret_off and *ret_len span the
 * value's bytes in text, quotes included. The text is walked to its end: -EEXIST when the key is there twice, of which readers take the first or the last. -ENOENT; -EBADMSG when text is not an object or ends
 * early. */
int json_scan_member(struct str text, const char *key, size_t *ret_off, size_t *ret_len, struct err *err) BASE_MUST_USE;
/* How many commas, colons and opening brackets stand outside strings, `most` at the most: what a walk through all of the text costs, roughly, in a small part of the time that it takes. Of any bytes. */
size_t json_scan_marks(struct str text, size_t most);
/* Walks the members of an object or the elements of an array, each of which is taken whole, or entered, or left alone, so that one pass goes through all of a text. The members are private. */
struct json_walk {
    struct str text;
    size_t at;
    char close;
    bool later, waits; /* waits: a value begins at `at` */
};
/* -EBADMSG unless text begins with '{' or '['. What follows its end is not looked at. */
int json_walk_begin(struct json_walk *w, struct str text) BASE_MUST_USE;
/* 1: *ret_key is the next key's token with its quotes (empty in an array), and its value can be had; 0: that was all; -EBADMSG: text is malformed or ends early. */
int json_walk_next(struct json_walk *w, struct str *ret_key) BASE_MUST_USE;
/* After a 1: what the value begins with; then its text, -EBADMSG as above, or, when it begins with '{' or '[', a walk through it, after whose 0, and not otherwise, comes json_walk_leave. Or neither. */
char json_walk_peek(const struct json_walk *w);
int json_walk_value(struct json_walk *w, struct str *ret_value) BASE_MUST_USE;
void json_walk_enter(const struct json_walk *w, struct json_walk *ret_inner);
void json_walk_leave(struct json_walk *w, const struct json_walk *inner);
/* The text of a JSON string token (with its quotes), unescaped into out. -EBADMSG. */
int json_scan_string(struct str token, struct buf *out, struct err *err) BASE_MUST_USE;

/* ---- JSON, writing --------------------------------------------------------------------------------------- */

/* Writes one value from front to back. Misuse (a key outside an object, ...) is our bug: asserted. Memory failures stick
 * and come out of json_out_finish. Strings that are not UTF-8 are written with U+FFFD in place of the bad bytes. */
struct json_out;
struct json_out *json_out_new(void) BASE_MUST_USE;
struct json_out *json_out_free(struct json_out *o);
/* key NULL inside an array or at the root; else the member's name (copied). */
void json_out_obj(struct json_out *o, const char *key);
void json_out_arr(struct json_out *o, const char *key);
void json_out_end(struct json_out *o); /* closes the innermost object or array */
void json_out_str(struct json_out *o, const char *key, struct str v);
/* A string by itself, quoted and escaped as json_out_str would. Without memory out is failed. */
void json_add_string(struct buf *out, struct str s);
void json_out_cstr(struct json_out *o, const char *key, const char *v); /* NULL writes null */
void json_out_u64(struct json_out *o, const char *key, uint64_t v);
void json_out_i64(struct json_out *o, const char *key, int64_t v);
void json_out_f64(struct json_out *o, const char *key, double v);
void json_out_bool(struct json_out *o, const char *key, bool v);
void json_out_null(struct json_out *o, const char *key);
/* A copy of a parsed value. */
void json_out_val(struct json_out *o, const char *key, json_val v);
/* Appends the text to out: pretty has two spaces of indentation and a last newline; else one line without one. */
int json_out_finish(struct json_out *o, bool pretty, struct buf *out) BASE_MUST_USE;

/* ---- YAML, reading ------------------------------------------------------------------------------------------ */

/* A plain tree with positions. Anchors, aliases, tags, several documents, duplicate keys and keys that are not plain scalars are refused, as are
 * more than CONF_YAML_MAX bytes, CONF_DEPTH_MAX levels and text that is not UTF-8. */
enum yaml_kind { YAML_SCALAR, YAML_MAP, YAML_SEQ };

struct yaml_node {
    enum yaml_kind kind;
    unsigned line, column;      /* 1-based, of its first character; columns count characters */
    struct str text;            /* YAML_SCALAR */
    bool quoted;                /* YAML_SCALAR written in quotes or as a block: always a string */
    struct yaml_node *first;    /* YAML_MAP: values in file order; YAML_SEQ: elements */
    struct yaml_node *next;     /* sibling */
    struct str key;             /* set when the parent is a map */
    unsigned key_line, key_column;
};
struct yaml;
/* name is what errors call the file: "name:line:column: message". An empty text is a null scalar. */
int yaml_parse(struct str text, const char *name, struct yaml **ret, struct err *err) BASE_MUST_USE;
/* The linker knows it by another name: libyaml has an exported yaml_free of its own, which ours would replace inside the library. */
struct yaml *yaml_free(struct yaml *y) __asm__("conf_yaml_free");
const struct yaml_node *yaml_root(const struct yaml *y);
/* The value of key in a map; NULL when n is NULL, no map, or has no such key. */
const struct yaml_node *yaml_get(const struct yaml_node *n, const char *key);
/* True for an unquoted scalar that is empty, "~" or "null". */
bool yaml_is_null(const struct yaml_node *n);
