/* SPDX-License-Identifier: MIT
 *
 * Private parts of ledger: the open file, statements that clean up after themselves, SQLite's codes as errors.
 */
#pragma once

#include "ledger.h"

#include <sqlite3.h>

struct ledger {
    sqlite3 *db;
    char *path;
    char read_only[96]; /* why; empty: it may be written */
};

/* An error from SQLite's code rc: "cannot <doing> ledger 'PATH': ...". */
int ledger_fail(const struct ledger *l, int rc, const char *doing, struct err *err);
/* -EROFS when l may not be written. */
int ledger_writable(const struct ledger *l, struct err *err) BASE_MUST_USE;
int ledger_prepare(const struct ledger *l, const char *sql, sqlite3_stmt **ret, struct err *err) BASE_MUST_USE;

#define ledger_autostmt __attribute__((cleanup(ledger_stmt_release)))
void ledger_stmt_release(sqlite3_stmt **s);

/* Binds a text that outlives the statement. */
int ledger_bind(sqlite3_stmt *s, int at, const char *text) BASE_MUST_USE;
/* Text of a column, "" for NULL; NULL only without memory. */
const char *ledger_column(sqlite3_stmt *s, int at);
/* 0 when text can be a row's: UTF-8, not too long. */
int ledger_text_check(const char *what, const char *text, struct err *err) BASE_MUST_USE;

/* ---- values.c ---- */

/* Values as a JSON object. -EINVAL names the value that cannot be written. */
int values_write(const struct ledger_value *v, size_t n, struct buf *out, struct err *err) BASE_MUST_USE;
/* Values of a JSON object of numbers and texts, in arena a. -EBADMSG for anything else. */
int values_read(const char *json, struct arena *a, struct ledger_value **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
