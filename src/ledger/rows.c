/* SPDX-License-Identifier: MIT
 *
 * Rows of the ledger: added, found, forgotten. An addition is one statement and so one transaction. What is asked for becomes conditions of one statement; names of columns are ours, values are bound.
 */
#include "ledger_int.h"

#include <errno.h>
#include <string.h>

#define SQL_MAX 1024
#define VALUES_TEXT_MAX ((size_t)4 << 20)
#define ROW_MEMORY_MAX ((size_t)16 << 20)

static const char *const tags[] = {[LEDGER_HOLLOW] = "hollow", [LEDGER_AFTER_LOAD] = "after-load", [LEDGER_AFTER_TRAFFIC] = "after-traffic"};
_Static_assert(BASE_COUNT(tags) == LEDGER_TAGS, "a text for each tag");

const char *ledger_tag_text(enum ledger_tag t)
{
    return tags[t];
}

static bool tag_of(const char *text, enum ledger_tag *ret)
{
    for (size_t i = 0; i < BASE_COUNT(tags); i++)
        if (strcmp(text, tags[i]) == 0) {
            *ret = (enum ledger_tag)i;
            return true;
        }
    return false;
}

/* A statement of additions: texts in order, from parameter 2 on; parameter 1 is the time. */
static int insert(struct ledger *l, const char *sql, uint64_t at_us, const char *const *texts, int n, uint64_t *ret_id, struct err *err)
{
    if (at_us > INT64_MAX)
        return err_set(err, -EINVAL, "time %llu is out of range", (unsigned long long)at_us);
    ledger_autostmt sqlite3_stmt *s = NULL;
    int r = ledger_prepare(l, sql, &s, err);
    if (r < 0)
        return r;
    int rc = sqlite3_bind_int64(s, 1, (int64_t)at_us);
    for (int i = 0; rc == SQLITE_OK && i < n; i++)
        rc = ledger_bind(s, i + 2, texts[i]);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(s);
    if (rc != SQLITE_DONE)
        return ledger_fail(l, rc, "write to", err);
    if (ret_id)
        *ret_id = (uint64_t)sqlite3_last_insert_rowid(l->db);
    return 0;
}

int ledger_add(struct ledger *l, const struct ledger_row *row, uint64_t *ret_id, struct err *err)
{
    base_autobuf struct buf values = BUF_INIT(VALUES_TEXT_MAX);
    int r = ledger_writable(l, err);
    if (r == 0)
        r = values_write(row->values, row->n_values, &values, err);
    if (r < 0)
        return r;
    const char *const texts[] = {row->kind, row->service, row->build, row->model, row->shape, row->hardware, tags[row->tag], values.ptr};
    static const char *const what[] = {"kind", "service", "build", "model", "shape", "hardware"};
    for (size_t i = 0; r == 0 && i < BASE_COUNT(what); i++)
        r = ledger_text_check(what[i], texts[i], err);
    if (r < 0)
        return r;
    return insert(l, "INSERT INTO measurement(at_us, kind, service, build, model, shape, hardware, tag, vals) VALUES(?,?,?,?,?,?,?,?,?)", row->at_us, texts, BASE_COUNT(texts), ret_id, err);
}

/* ---- finding ------------------------------------------------------------------------------------------------------------------- */

/* The texts that a query may ask for, as columns. */
#define WANTED 7
static void wanted(const struct ledger_query *q, const char *columns[WANTED], const char *values[WANTED])
{
    static const char *const names[WANTED] = {"kind", "service", "build", "model", "shape", "hardware", "tag"};
    const char *const given[WANTED] = {q->kind, q->service, q->build, q->model, q->shape, q->hardware, q->by_tag ? tags[q->tag] : NULL};
    memcpy(columns, names, sizeof names);
    memcpy(values, given, sizeof given);
}

/* "HEAD WHERE kind = ? AND ... TAIL", prepared and bound. */
static int prepare_query(const struct ledger *l, const char *head, const struct ledger_query *q, const char *tail, sqlite3_stmt **ret, struct err *err)
{
    base_autobuf struct buf sql = BUF_INIT(SQL_MAX);
    const char *columns[WANTED], *values[WANTED];
    wanted(q, columns, values);
    buf_addf(&sql, "%s WHERE at_us >= ?", head);
    for (size_t i = 0; i < WANTED; i++)
        if (values[i])
            buf_addf(&sql, " AND %s = ?", columns[i]);
    buf_add_c(&sql, tail);
    if (buf_status(&sql) < 0)
        return err_nomem(err);
    int r = ledger_prepare(l, sql.ptr, ret, err);
    if (r < 0)
        return r;
    int at = 1, rc = sqlite3_bind_int64(*ret, at++, q->since_us > INT64_MAX ? INT64_MAX : (int64_t)q->since_us);
    for (size_t i = 0; rc == SQLITE_OK && i < WANTED; i++)
        if (values[i])
            rc = ledger_bind(*ret, at++, values[i]);
    return rc == SQLITE_OK ? 0 : ledger_fail(l, rc, "read", err);
}

/* 1: a row, 0: one to pass over. */
static int read_row(sqlite3_stmt *s, struct arena *a, struct ledger_row *ret, struct err *err)
{
    const char *texts[8];
    for (int i = 0; i < 8; i++)
        if (!(texts[i] = ledger_column(s, i + 2)))
            return err_nomem(err);
    struct ledger_value *values = NULL;
    *ret = (struct ledger_row){
        .id = (uint64_t)sqlite3_column_int64(s, 0), .at_us = (uint64_t)sqlite3_column_int64(s, 1),
        .kind = texts[0], .service = texts[1], .build = texts[2], .model = texts[3], .shape = texts[4], .hardware = texts[5],
    };
    if (!tag_of(texts[6], &ret->tag))
        return 0;
    struct err why;
    int r = values_read(texts[7], a, &values, &ret->n_values, &why);
    if (r == -ENOMEM)
        return err_nomem(err);
    ret->values = values;
    return r == 0 ? 1 : 0;
}

int ledger_find(struct ledger *l, const struct ledger_query *q, int (*each)(void *ctx, const struct ledger_row *row, struct err *err), void *ctx, struct err *err)
{
    ledger_autostmt sqlite3_stmt *s = NULL;
    int r = prepare_query(l, "SELECT id, at_us, kind, service, build, model, shape, hardware, tag, vals FROM measurement", q, " ORDER BY id DESC", &s, err);
    size_t n = 0;
    while (r == 0 && (q->most == 0 || n < q->most)) {
        int rc = sqlite3_step(s);
        if (rc == SQLITE_DONE)
            break;
        if (rc != SQLITE_ROW)
            return ledger_fail(l, rc, "read", err);
        struct arena *a = arena_new(ROW_MEMORY_MAX);
        struct ledger_row row;
        r = a ? read_row(s, a, &row, err) : err_nomem(err);
        if (r > 0) {
            n++;
            r = each(ctx, &row, err);
        }
        arena_free(a);
    }
    return r < 0 ? r : 0;
}

int ledger_forget(struct ledger *l, const struct ledger_query *q, uint64_t *ret_n, struct err *err)
{
    ledger_autostmt sqlite3_stmt *s = NULL;
    int r = ledger_writable(l, err);
    if (r == 0)
        r = prepare_query(l, "DELETE FROM measurement", q, "", &s, err);
    if (r < 0)
        return r;
    int rc = sqlite3_step(s);
    if (rc != SQLITE_DONE)
        return ledger_fail(l, rc, "write to", err);
    if (ret_n)
        *ret_n = (uint64_t)sqlite3_changes64(l->db);
    return 0;
}

/* ---- history -------------------------------------------------------------------------------------------------------------------- */

int ledger_note(struct ledger *l, const struct ledger_event *e, uint64_t *ret_id, struct err *err)
{
    const char *const texts[] = {e->subject, e->what, e->detail};
    static const char *const what[] = {"subject", "what", "detail"};
    int r = ledger_writable(l, err);
    for (size_t i = 0; r == 0 && i < BASE_COUNT(what); i++)
        r = ledger_text_check(what[i], texts[i], err);
    if (r < 0)
        return r;
    return insert(l, "INSERT INTO history(at_us, subject, what, detail) VALUES(?,?,?,?)", e->at_us, texts, BASE_COUNT(texts), ret_id, err);
}

int ledger_history(struct ledger *l, const char *subject, size_t most, int (*each)(void *ctx, const struct ledger_event *e, struct err *err), void *ctx, struct err *err)
{
    ledger_autostmt sqlite3_stmt *s = NULL;
    int r = ledger_prepare(l, subject ? "SELECT id, at_us, subject, what, detail FROM history WHERE subject = ?2 ORDER BY id DESC LIMIT ?1" : "SELECT id, at_us, subject, what, detail FROM history ORDER BY id DESC LIMIT ?1", &s, err);
    if (r < 0)
        return r;
    int rc = sqlite3_bind_int64(s, 1, most == 0 || most > INT64_MAX ? -1 : (int64_t)most);
    if (rc == SQLITE_OK && subject)
        rc = ledger_bind(s, 2, subject);
    if (rc != SQLITE_OK)
        return ledger_fail(l, rc, "read", err);
    while (r == 0 && (rc = sqlite3_step(s)) != SQLITE_DONE) {
        if (rc != SQLITE_ROW)
            return ledger_fail(l, rc, "read", err);
        struct ledger_event e = {
            .id = (uint64_t)sqlite3_column_int64(s, 0), .at_us = (uint64_t)sqlite3_column_int64(s, 1),
            .subject = ledger_column(s, 2), .what = ledger_column(s, 3), .detail = ledger_column(s, 4),
        };
        if (!e.subject || !e.what || !e.detail)
            return err_nomem(err);
        r = each(ctx, &e, err);
    }
    return r < 0 ? r : 0;
}
