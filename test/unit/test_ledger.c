/* SPDX-License-Identifier: MIT
 *
 * The ledger: what is put in comes out, whoever else writes and whoever is killed; files that are newer, damaged or another program's; memory that ends anywhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "failing_malloc.h"

#include <fcntl.h>
#include <ledger/ledger.h>
#include <math.h>
#include <os/os.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], path[96];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/berth-ledger-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    os_autoclose int tmp = os_open_dir("/tmp", NULL);
    return os_remove_tree(tmp, strrchr(folder, '/') + 1, NULL);
}

static struct ledger *opened(void)
{
    struct ledger *l = NULL;
    struct err err;
    int r = ledger_open(path, &l, &err);
    if (r < 0)
        print_message("%s\n", err.text);
    assert_int_equal(r, 0);
    return l;
}

/* Runs SQL on the file as a stranger would. */
static void stranger(const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    char *why = NULL;
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(db);
}

static const struct ledger_row plain = {.kind = "compute", .service = "medium", .build = "llama.cpp-0.7.0-abc", .model = "d1", .shape = "s", .hardware = "h", .tag = LEDGER_HOLLOW, .at_us = 1000};

struct seen {
    uint64_t ids[64];
    size_t n, stop_at;
    struct ledger_row last;
    double a;
    char text[64], hardware[64], names[256];
};
static int see(void *ctx, const struct ledger_row *row, struct err *err)
{
    struct seen *s = ctx;
    (void)err;
    assert_true(s->n < BASE_COUNT(s->ids));
    s->ids[s->n++] = row->id;
    s->last = *row;
    s->a = ledger_number(row, "a", -1);
    const struct ledger_value *t = ledger_value(row, "text");
    snprintf(s->text, sizeof s->text, "%s", t && t->text ? t->text : "-");
    snprintf(s->hardware, sizeof s->hardware, "%s", row->hardware);
    return s->stop_at && s->n == s->stop_at;
}

static size_t count(struct ledger *l, const struct ledger_query *q)
{
    struct seen s = {0};
    assert_int_equal(ledger_find(l, q, see, &s, NULL), 0);
    return s.n;
}

static void a_row_comes_back(void **state)
{
    (void)state;
    struct ledger *l = opened();
    const struct ledger_value values[] = {{"a", 1.0 / 3, NULL}, {"big", 9007199254740991.0, NULL}, {"text", 0, "caf\xc3\xa9 \"x\""}, {"neg", -12.5, NULL}};
    struct ledger_row row = plain;
    row.values = values;
    row.n_values = BASE_COUNT(values);
    row.tag = LEDGER_AFTER_TRAFFIC;
    uint64_t id = 0;
    assert_int_equal(ledger_add(l, &row, &id, NULL), 0);
    ledger_free(l);

    l = opened();
    struct seen s = {0};
    assert_int_equal(ledger_find(l, &(struct ledger_query){0}, see, &s, NULL), 0);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.ids[0], id);
    assert_int_equal(s.last.at_us, 1000);
    assert_int_equal(s.last.tag, LEDGER_AFTER_TRAFFIC);
    assert_int_equal(s.last.n_values, 4);
    assert_true(s.a == 1.0 / 3);
    assert_string_equal(s.text, "caf\xc3\xa9 \"x\"");
    assert_string_equal(s.hardware, "h");
    assert_null(ledger_read_only(l));
    ledger_free(l);

    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void found_by_what_is_asked(void **state)
{
    (void)state;
    struct ledger *l = opened();
    for (int i = 0; i < 6; i++) {
        struct ledger_row row = plain;
        row.at_us = 100 * (uint64_t)i;
        row.kind = i % 2 ? "observed" : "compute";
        row.hardware = i < 3 ? "old" : "new";
        row.tag = i == 5 ? LEDGER_AFTER_LOAD : LEDGER_HOLLOW;
        assert_int_equal(ledger_add(l, &row, NULL, NULL), 0);
    }
    assert_int_equal(count(l, &(struct ledger_query){0}), 6);
    assert_int_equal(count(l, &(struct ledger_query){.kind = "compute"}), 3);
    assert_int_equal(count(l, &(struct ledger_query){.kind = "compute", .hardware = "new"}), 1);
    assert_int_equal(count(l, &(struct ledger_query){.since_us = 300}), 3);
    assert_int_equal(count(l, &(struct ledger_query){.by_tag = true, .tag = LEDGER_HOLLOW}), 5);
    assert_int_equal(count(l, &(struct ledger_query){.model = "d1' OR 1=1 --"}), 0);
    assert_int_equal(count(l, &(struct ledger_query){.service = "medium", .build = "llama.cpp-0.7.0-abc", .model = "d1", .shape = "s"}), 6);
    struct seen s = {0};
    assert_int_equal(ledger_find(l, &(struct ledger_query){.most = 2}, see, &s, NULL), 0);
    assert_int_equal(s.n, 2);
    assert_true(s.ids[0] > s.ids[1]); /* newest first */
    s = (struct seen){.stop_at = 3};
    assert_int_equal(ledger_find(l, &(struct ledger_query){0}, see, &s, NULL), 0);
    assert_int_equal(s.n, 3);

    uint64_t gone = 0;
    assert_int_equal(ledger_forget(l, &(struct ledger_query){.hardware = "old"}, &gone, NULL), 0);
    assert_int_equal(gone, 3);
    assert_int_equal(count(l, &(struct ledger_query){0}), 3);
    ledger_free(l);
}

static int stop_with_error(void *ctx, const struct ledger_row *row, struct err *err)
{
    (void)ctx;
    return err_set(err, -ECANCELED, "row %llu is enough", (unsigned long long)row->id);
}

static void what_cannot_be_kept(void **state)
{
    (void)state;
    struct ledger *l = opened();
    struct err err;
    struct ledger_row row = plain;
    struct ledger_value v = {.name = "x", .number = NAN};
    row.values = &v;
    row.n_values = 1;
    assert_int_equal(ledger_add(l, &row, NULL, &err), -EINVAL);
    assert_string_equal(err.text, "value 'x' is no number");
    v.number = INFINITY;
    assert_int_equal(ledger_add(l, &row, NULL, NULL), -EINVAL);
    v = (struct ledger_value){.name = "x", .text = "\xff"};
    assert_int_equal(ledger_add(l, &row, NULL, &err), -EINVAL);
    assert_string_equal(err.text, "x is not UTF-8");
    row = plain;
    row.hardware = "\xc3";
    assert_int_equal(ledger_add(l, &row, NULL, &err), -EINVAL);
    assert_string_equal(err.text, "hardware is not UTF-8");
    row = plain;
    row.at_us = UINT64_MAX;
    assert_int_equal(ledger_add(l, &row, NULL, NULL), -EINVAL);
    char *long_text = calloc(1, LEDGER_TEXT_MAX + 2);
    memset(long_text, 'x', LEDGER_TEXT_MAX + 1);
    row = plain;
    row.shape = long_text;
    assert_int_equal(ledger_add(l, &row, NULL, NULL), -E2BIG);
    free(long_text);
    assert_int_equal(count(l, &(struct ledger_query){0}), 0);

    assert_int_equal(ledger_add(l, &plain, NULL, NULL), 0);
    assert_int_equal(ledger_find(l, &(struct ledger_query){0}, stop_with_error, NULL, &err), -ECANCELED);
    assert_string_equal(err.text, "row 1 is enough");
    ledger_free(l);
}

static void rows_by_another_hand(void **state)
{
    (void)state;
    struct ledger *l = opened();
    assert_int_equal(ledger_add(l, &plain, NULL, NULL), 0);
    stranger("INSERT INTO measurement VALUES(NULL,1,'compute','','','','','','hollow','[1,2]');"
             "INSERT INTO measurement VALUES(NULL,1,'compute','','','','','','hollow','{\"a\":[]}');"
             "INSERT INTO measurement VALUES(NULL,1,'compute','','','','','','hollow','{');"
             "INSERT INTO measurement VALUES(NULL,1,'compute','','','','','','yesterday','{}');"
             "INSERT INTO measurement VALUES(NULL,1,'compute','','','','','','hollow','{\"a\":7}')");
    struct seen s = {0};
    assert_int_equal(ledger_find(l, &(struct ledger_query){.most = 2}, see, &s, NULL), 0);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.ids[0], 6);
    assert_int_equal(s.ids[1], 1);
    ledger_free(l);
}

static int see_event(void *ctx, const struct ledger_event *e, struct err *err)
{
    (void)err;
    buf_addf(ctx, "%llu %s|%s|%s;", (unsigned long long)e->at_us, e->subject, e->what, e->detail);
    return 0;
}

static void history_is_kept(void **state)
{
    (void)state;
    struct ledger *l = opened();
    struct buf b = BUF_INIT(4096);
    const struct ledger_event events[] = {{.at_us = 1, .subject = "host a", .what = "deploy", .detail = "x"}, {.at_us = 2, .subject = "host b", .what = "deploy", .detail = "y"}, {.at_us = 3, .subject = "host a", .what = "rollback", .detail = ""}};
    for (size_t i = 0; i < BASE_COUNT(events); i++)
        assert_int_equal(ledger_note(l, &events[i], NULL, NULL), 0);
    assert_int_equal(ledger_history(l, "host a", 0, see_event, &b, NULL), 0);
    assert_string_equal(b.ptr, "3 host a|rollback|;1 host a|deploy|x;");
    buf_clear(&b);
    assert_int_equal(ledger_history(l, NULL, 2, see_event, &b, NULL), 0);
    assert_string_equal(b.ptr, "3 host a|rollback|;2 host b|deploy|y;");
    buf_release(&b);
    ledger_free(l);
}

/* ---- files ---------------------------------------------------------------------------------------------------------------- */

static void a_newer_one_is_read(void **state)
{
    (void)state;
    struct ledger *l = opened();
    assert_int_equal(ledger_add(l, &plain, NULL, NULL), 0);
    ledger_free(l);
    stranger("PRAGMA user_version = 7; ALTER TABLE measurement ADD COLUMN more TEXT");
    l = opened();
    struct err err;
    assert_string_equal(ledger_read_only(l), "it is of version 7, this berth knows 1");
    assert_int_equal(ledger_add(l, &plain, NULL, &err), -EROFS);
    assert_non_null(strstr(err.text, "it is of version 7"));
    assert_int_equal(ledger_note(l, &(struct ledger_event){.subject = "", .what = "", .detail = ""}, NULL, NULL), -EROFS);
    assert_int_equal(ledger_forget(l, &(struct ledger_query){0}, NULL, NULL), -EROFS);
    assert_int_equal(count(l, &(struct ledger_query){0}), 1);
    ledger_free(l);
}

/* In a folder where nothing can be made, by an account that owns nothing there. */
static void read_where_nothing_can_be_written(void **state)
{
    (void)state;
    struct ledger *l = opened();
    struct err err;
    char odd[128];
    assert_int_equal(ledger_add(l, &plain, NULL, NULL), 0);
    ledger_free(l);
    snprintf(odd, sizeof odd, "%s/50%% of #1?.db", folder); /* what means something in SQLite's addresses */
    assert_int_equal(rename(path, odd), 0);
    assert_int_equal(chmod(odd, 0644), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    bool root = geteuid() == 0;
    if (root)
        assert_int_equal(seteuid(65534), 0);
    int r = ledger_open(odd, &l, &err), missing = ledger_open(path, &(struct ledger *){NULL}, NULL);
    if (r == 0) {
        assert_string_equal(ledger_read_only(l), "the file may not be written");
        assert_int_equal(count(l, &(struct ledger_query){0}), 1);
        assert_int_equal(ledger_add(l, &plain, NULL, NULL), -EROFS);
        ledger_free(l);
    }
    if (root)
        assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(r, 0);
    assert_int_equal(missing, -ENOENT);
}

static void another_program_s_file(void **state)
{
    (void)state;
    struct ledger *l = NULL;
    struct err err;
    stranger("CREATE TABLE bookmarks(url TEXT)");
    assert_int_equal(ledger_open(path, &l, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "another program's database"));
    assert_null(l);
    assert_int_equal(unlink(path), 0);

    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    for (int i = 0; i < 600; i++)
        assert_int_equal(write(fd, "no database ", 12), 12);
    close(fd);
    assert_int_equal(ledger_open(path, &l, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "it is no ledger; move it away"));

    char missing[128];
    snprintf(missing, sizeof missing, "%s/none/ledger.db", folder);
    assert_int_equal(ledger_open(missing, &l, &err), -ENOENT);
    assert_int_equal(ledger_open(folder, &l, &err), -EISDIR);
}

static void a_damaged_file(void **state)
{
    (void)state;
    struct ledger *l = opened();
    struct err err;
    ledger_free(l);
    stranger("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 300)"
             "INSERT INTO measurement SELECT NULL,i,'compute','','','','','','hollow','{}' FROM n;"
             "PRAGMA wal_checkpoint(TRUNCATE)");
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    char junk[8192];
    memset(junk, 0x5a, sizeof junk);
    assert_int_equal(pwrite(fd, junk, sizeof junk, 4096), sizeof junk);
    close(fd);
    int r = ledger_open(path, &l, &err);
    if (r == 0) {
        struct seen s = {0};
        r = ledger_find(l, &(struct ledger_query){.most = 1, .kind = "compute"}, see, &s, &err);
        ledger_free(l);
    }
    assert_int_equal(r, -EBADMSG);
    assert_non_null(strstr(err.text, "damaged"));
}

static void a_file_of_version_0_grows(void **state)
{
    (void)state;
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600); /* as a killed first opening leaves it */
    close(fd);
    struct ledger *l = opened();
    assert_int_equal(ledger_add(l, &plain, NULL, NULL), 0);
    assert_int_equal(count(l, &(struct ledger_query){0}), 1);
    ledger_free(l);
}

/* ---- several processes ------------------------------------------------------------------------------------------------------- */

#define WRITERS 4
#define EACH 8

static void writers_at_once(void **state)
{
    (void)state;
    pid_t pids[WRITERS];
    for (int w = 0; w < WRITERS; w++) {
        pids[w] = fork();
        if (pids[w] == 0) {
            struct ledger *l = NULL;
            int bad = ledger_open(path, &l, NULL) < 0; /* all of them race to make the file */
            for (int i = 0; !bad && i < EACH; i++)
                bad = ledger_add(l, &plain, NULL, NULL) < 0;
            ledger_free(l);
            _exit(bad);
        }
        assert_true(pids[w] > 0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status = -1;
        assert_int_equal(waitpid(pids[w], &status, 0), pids[w]);
        assert_int_equal(status, 0);
    }
    struct ledger *l = opened();
    uint64_t gone = 0;
    assert_int_equal(ledger_forget(l, &(struct ledger_query){0}, &gone, NULL), 0);
    assert_int_equal(gone, WRITERS * EACH);
    ledger_free(l);
}

static int pragma_text(void *ctx, int n, char **values, char **names)
{
    (void)n;
    (void)names;
    snprintf(ctx, 32, "%s", values[0]);
    return 0;
}

/* A writer is killed again and again; what it was told is kept is there, and the file is sound. */
static void a_writer_is_killed(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (int round = 0; round < 3; round++) {
        int p[2];
        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
            struct ledger *l = NULL;
            uint64_t id = 0;
            if (ledger_open(path, &l, NULL) < 0)
                _exit(1);
            while (ledger_add(l, &plain, &id, NULL) == 0)
                if (write(p[1], &id, sizeof id) != sizeof id)
                    break;
            _exit(1);
        }
        assert_true(pid > 0);
        close(p[1]);
        for (int i = 0; i < 4 + round; i++) {
            uint64_t id = 0;
            assert_int_equal(read(p[0], &id, sizeof id), sizeof id);
            assert_int_equal(id, last + 1);
            last = id;
        }
        kill(pid, SIGKILL);
        uint64_t id;
        while (read(p[0], &id, sizeof id) == sizeof id)
            last = id;
        close(p[0]);
        waitpid(pid, NULL, 0);
        struct ledger *l = opened();
        struct seen s = {0};
        assert_int_equal(ledger_find(l, &(struct ledger_query){.most = 1}, see, &s, NULL), 0);
        assert_true(s.ids[0] == last || s.ids[0] == last + 1); /* killed between the commit and the telling */
        last = s.ids[0];
        ledger_free(l);
    }
    sqlite3 *db = NULL;
    char sound[32] = "";
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA integrity_check", pragma_text, sound, NULL), SQLITE_OK);
    assert_string_equal(sound, "ok");
    sqlite3_close(db);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------- */

static void memory_ends_anywhere(void **state)
{
    (void)state;
#if FAILING_MALLOC
    struct ledger *l = opened(); /* SQLite's own start-up keeps what it takes */
    ledger_free(l);
    const struct ledger_value values[] = {{"a", 1, NULL}, {"text", 0, "t"}};
    struct ledger_row row = plain;
    row.values = values;
    row.n_values = 2;
    for (long n = 0;; n++) {
        bool failed;
        struct err err = {0};
        struct seen s = {0};
        l = NULL;
        failing_arm(n);
        int r = ledger_open(path, &l, &err);
        if (r == 0)
            r = ledger_add(l, &row, NULL, &err);
        if (r == 0)
            r = ledger_find(l, &(struct ledger_query){.most = 1}, see, &s, &err);
        if (r == 0)
            r = ledger_forget(l, &(struct ledger_query){0}, NULL, &err);
        ledger_free(l);
        long live = failing_disarm(&failed);
        if (live != 0)
            fail_msg("call %ld: %ld blocks leak", n, live);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        if (r != 0 && r != -ENOMEM)
            fail_msg("call %ld: %d %s", n, r, err.text);
    }
#else
    skip();
#endif
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        CASE(a_row_comes_back), CASE(found_by_what_is_asked), CASE(what_cannot_be_kept), CASE(rows_by_another_hand), CASE(history_is_kept),
        CASE(a_newer_one_is_read), CASE(read_where_nothing_can_be_written), CASE(another_program_s_file), CASE(a_damaged_file), CASE(a_file_of_version_0_grows),
        CASE(writers_at_once), CASE(a_writer_is_killed), CASE(memory_ends_anywhere),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
