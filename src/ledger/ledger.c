/* SPDX-License-Identifier: MIT
 *
 * The ledger's file: opened, recognised, brought up to the present version. A file is known by SQLite's application id, so that another program's database is refused instead of filled; its version is SQLite's
 * user_version. Steps from version to version run in one transaction which takes the write lock first, so that of two processes that open a new file one makes the tables and the other finds them.
 *
 * Journal: write-ahead log with a sync at each commit. Where a file system cannot share memory (NFS) SQLite keeps its rollback journal, which is as safe and lets fewer processes in at once.
 */
#include "ledger_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define APPLICATION_ID 0x62727468 /* "brth" */
#define RETRY_MS 10

/* steps[n] brings version n to n + 1. A step is never changed once a berth with it was released. */
static const char *const steps[] = {
    "CREATE TABLE measurement("
    " id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " at_us INTEGER NOT NULL,"
    " kind TEXT NOT NULL,"
    " service TEXT NOT NULL,"
    " build TEXT NOT NULL,"
    " model TEXT NOT NULL,"
    " shape TEXT NOT NULL,"
    " hardware TEXT NOT NULL,"
    " tag TEXT NOT NULL,"
    " vals TEXT NOT NULL) STRICT;"
    "CREATE INDEX measurement_of ON measurement(kind, build, model);"
    "CREATE TABLE history("
    " id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " at_us INTEGER NOT NULL,"
    " subject TEXT NOT NULL,"
    " what TEXT NOT NULL,"
    " detail TEXT NOT NULL) STRICT;"
    "CREATE INDEX history_of ON history(subject);",
};
_Static_assert(BASE_COUNT(steps) == LEDGER_VERSION, "a step for each version");

/* ---- errors and statements ------------------------------------------------------------------------------------------------ */

static int code_of(const struct ledger *l, int rc)
{
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_SCHEMA:
        return -EBADMSG;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_TOOBIG:
        return -E2BIG;
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return -EACCES;
    case SQLITE_CANTOPEN: {
        int e = l->db ? sqlite3_system_errno(l->db) : 0;
        return e > 0 ? -e : -EIO;
    }
    default:
        return -EIO;
    }
}

int ledger_fail(const struct ledger *l, int rc, const char *doing, struct err *err)
{
    int code = code_of(l, rc);
    if (code == -ENOMEM)
        return err_nomem(err);
    if (code == -EBUSY)
        return err_set(err, code, "cannot %s ledger '%s': another process has been writing for %d s", doing, l->path, LEDGER_WAIT_MS / 1000);
    if ((rc & 0xff) == SQLITE_NOTADB)
        return err_set(err, code, "cannot %s ledger '%s': it is no ledger; move it away and a new one is made", doing, l->path);
    if (code == -EBADMSG)
        return err_set(err, code, "cannot %s ledger '%s': it is damaged (%s); move it away and a new one is made", doing, l->path, l->db ? sqlite3_errmsg(l->db) : sqlite3_errstr(rc));
    if ((rc & 0xff) == SQLITE_CANTOPEN)
        return err_sys(err, code, "cannot %s ledger '%s'", doing, l->path);
    return err_set(err, code, "cannot %s ledger '%s': %s", doing, l->path, l->db ? sqlite3_errmsg(l->db) : sqlite3_errstr(rc));
}

int ledger_writable(const struct ledger *l, struct err *err)
{
    return *l->read_only ? err_set(err, -EROFS, "cannot write to ledger '%s': %s", l->path, l->read_only) : 0;
}

int ledger_prepare(const struct ledger *l, const char *sql, sqlite3_stmt **ret, struct err *err)
{
    int rc = sqlite3_prepare_v2(l->db, sql, -1, ret, NULL);
    return rc == SQLITE_OK ? 0 : ledger_fail(l, rc, "use", err);
}

void ledger_stmt_release(sqlite3_stmt **s)
{
    sqlite3_finalize(*s); /* repeats the error that its step gave, which was told then */
    *s = NULL;
}

int ledger_bind(sqlite3_stmt *s, int at, const char *text)
{
    return sqlite3_bind_text(s, at, text, -1, SQLITE_STATIC);
}

const char *ledger_column(sqlite3_stmt *s, int at)
{
    if (sqlite3_column_type(s, at) == SQLITE_NULL)
        return "";
    return (const char *)sqlite3_column_text(s, at);
}

int ledger_text_check(const char *what, const char *text, struct err *err)
{
    struct str s = str_of(text);
    if (s.len > LEDGER_TEXT_MAX)
        return err_set(err, -E2BIG, "%s has %zu bytes, the ledger takes at most %d", what, s.len, LEDGER_TEXT_MAX);
    return str_is_utf8(s) ? 0 : err_set(err, -EINVAL, "%s is not UTF-8", what);
}

/* ---- opening -------------------------------------------------------------------------------------------------------------------- */

static int ask_number(const struct ledger *l, const char *sql, int64_t *ret, struct err *err)
{
    ledger_autostmt sqlite3_stmt *s = NULL;
    int r = ledger_prepare(l, sql, &s, err);
    if (r < 0)
        return r;
    int rc = sqlite3_step(s);
    if (rc != SQLITE_ROW)
        return ledger_fail(l, rc == SQLITE_DONE ? SQLITE_CORRUPT : rc, "read", err);
    *ret = sqlite3_column_int64(s, 0);
    return 0;
}

static int run(const struct ledger *l, const char *sql, const char *doing, struct err *err)
{
    int rc = sqlite3_exec(l->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : ledger_fail(l, rc, doing, err);
}

/* What is in the file, seen at one moment. */
static int recognise(const struct ledger *l, int64_t *ret_version, struct err *err)
{
    int64_t application = 0, version = 0, tables = 0;
    int r = run(l, "BEGIN", "read", err);
    if (r < 0)
        return r;
    r = ask_number(l, "SELECT count(*) FROM sqlite_schema", &tables, err);
    if (r == 0)
        r = ask_number(l, "PRAGMA application_id", &application, err);
    if (r == 0)
        r = ask_number(l, "PRAGMA user_version", &version, err);
    int done = run(l, "ROLLBACK", "read", r == 0 ? err : NULL);
    if (r == 0)
        r = done;
    if (r < 0)
        return r;
    if (application != APPLICATION_ID && (tables > 0 || version != 0))
        return err_set(err, -EBADMSG, "'%s' is another program's database; move it away and a new ledger is made", l->path);
    *ret_version = version;
    return 0;
}

/* Takes the write lock, looks again (another process may have been first), and does what is missing. */
static int migrate(const struct ledger *l, struct err *err)
{
    int64_t version = 0;
    char sql[96];
    int r = run(l, "BEGIN IMMEDIATE", "open", err);
    if (r < 0)
        return r;
    r = ask_number(l, "PRAGMA user_version", &version, err);
    for (int64_t v = version; r == 0 && v < LEDGER_VERSION; v++)
        r = run(l, steps[v], "bring up to date", err);
    if (r == 0 && version < LEDGER_VERSION) {
        snprintf(sql, sizeof sql, "PRAGMA user_version = %d; PRAGMA application_id = %d", LEDGER_VERSION, APPLICATION_ID);
        r = run(l, sql, "bring up to date", err);
    }
    int done = run(l, r == 0 ? "COMMIT" : "ROLLBACK", "bring up to date", r == 0 ? err : NULL);
    if (r == 0 && done < 0) {
        r = done;
        base_ignore(run(l, "ROLLBACK", "", NULL)); /* a commit that failed may have left the transaction open */
    }
    return r;
}

/* Changing the journal needs the file for oneself, and SQLite does not wait for that. */
static int use_wal(const struct ledger *l, struct err *err)
{
    int rc = SQLITE_BUSY;
    for (int waited = 0; waited <= LEDGER_WAIT_MS; waited += RETRY_MS) {
        ledger_autostmt sqlite3_stmt *s = NULL;
        rc = sqlite3_prepare_v2(l->db, "PRAGMA journal_mode = WAL", -1, &s, NULL);
        if (rc == SQLITE_OK)
            rc = sqlite3_step(s);
        if (rc == SQLITE_ROW)
            return 0;
        if ((rc & 0xff) != SQLITE_BUSY)
            break;
        sqlite3_sleep(RETRY_MS);
    }
    return ledger_fail(l, rc, "open", err);
}

/* SQLite would make the file by the umask; its companions take over the rights of the file. Only a file that was not there is opened here: closing one that SQLite has open elsewhere in this process would drop its locks. */
static int make_file(const char *path, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    else if (errno != EEXIST && errno != EROFS && errno != EACCES)
        return err_sys(err, -errno, "cannot make ledger '%s'", path);
    return 0;
}

static int set_up(struct ledger *l, struct err *err)
{
    int64_t version = 0;
    /* a damaged file must not be able to run code, nor may two names mean one text */
    sqlite3_db_config(l->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(l->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    int rc = sqlite3_busy_timeout(l->db, LEDGER_WAIT_MS);
    if (rc != SQLITE_OK)
        return ledger_fail(l, rc, "open", err);
    int r = recognise(l, &version, err);
    if (r < 0)
        return r;
    if (version > LEDGER_VERSION)
        snprintf(l->read_only, sizeof l->read_only, "it is of version %lld, this berth knows %d", (long long)version, LEDGER_VERSION);
    else if (sqlite3_db_readonly(l->db, "main") == 1)
        snprintf(l->read_only, sizeof l->read_only, "the file may not be written");
    if (*l->read_only)
        return version == 0 ? err_set(err, -EROFS, "ledger '%s' is empty and %s", l->path, l->read_only) : 0;
    r = run(l, "PRAGMA synchronous = FULL", "open", err);
    if (r == 0)
        r = use_wal(l, err);
    return r == 0 && version < LEDGER_VERSION ? migrate(l, err) : r;
}

static int connect(struct ledger *l, const char *name, int flags, struct err *err)
{
    int rc = sqlite3_open_v2(name, &l->db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    return rc == SQLITE_OK ? set_up(l, err) : ledger_fail(l, rc, "open", err);
}

static bool folder_writable(const char *path)
{
    const char *slash = strrchr(path, '/');
    base_autofree char *folder = slash ? str_dup((struct str){path, slash == path ? 1 : (size_t)(slash - path)}) : str_dup(STR("."));
    return !folder || faccessat(AT_FDCWD, folder, W_OK, AT_EACCESS) == 0;
}

/* Where nothing can be made beside the file, SQLite cannot share it with a writer, and refuses it as long as it believes in one. Nobody can write there, so it is told that the file stays as it is. */
static int connect_unchanging(struct ledger *l, struct err *err)
{
    base_autobuf struct buf uri = BUF_INIT(16384);
    buf_add_c(&uri, "file:");
    for (const char *p = l->path; *p; p++)
        if (strchr("?#%", *p))
            buf_addf(&uri, "%%%02x", (unsigned)*p);
        else
            buf_add_char(&uri, *p);
    buf_add_c(&uri, "?immutable=1");
    if (buf_status(&uri) < 0)
        return err_nomem(err);
    sqlite3_close(l->db);
    l->db = NULL;
    return connect(l, uri.ptr, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, err);
}

int ledger_open(const char *path, struct ledger **ret, struct err *err)
{
    int r = make_file(path, err);
    if (r < 0)
        return r;
    struct ledger *l = calloc(1, sizeof *l);
    if (!l || !(l->path = str_dup(str_of(path)))) {
        free(l);
        return err_nomem(err);
    }
    r = connect(l, path, SQLITE_OPEN_READWRITE, err);
    if (r < 0 && r != -EBADMSG && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0 && !folder_writable(path))
        r = connect_unchanging(l, err);
    if (r < 0) {
        ledger_free(l);
        return r;
    }
    *ret = l;
    return 0;
}

struct ledger *ledger_free(struct ledger *l)
{
    if (l) {
        sqlite3_close(l->db);
        free(l->path);
        free(l);
    }
    return NULL;
}

const char *ledger_read_only(const struct ledger *l)
{
    return *l->read_only ? l->read_only : NULL;
}
