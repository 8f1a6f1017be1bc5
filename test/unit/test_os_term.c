/* SPDX-License-Identifier: MIT
 *
 * Tables and progress: the very bytes, on a terminal (a pseudo-terminal of a known size) and elsewhere.
 */
#include <os/os.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../../src/os/os_int.h"

/* ---- tables -------------------------------------------------------------------------------------- */

static const char *const headings[] = {"SERVICE", "PID", "MODEL"};
static const enum os_align aligns[] = {OS_LEFT, OS_RIGHT, OS_LEFT};

static void test_table(void **state)
{
    (void)state;
    base_autobuf struct buf out = BUF_INIT(4096);
    struct os_table *t = os_table_new(headings, aligns, 3);
    assert_non_null(t);
    assert_int_equal(os_table_text(t, false, &out), 0);
    assert_string_equal(out.ptr, "SERVICE  PID  MODEL\n");
    os_table_cell(t, OS_PLAIN, "alpha");
    os_table_cell(t, OS_GREEN, "%d", 12345);
    os_table_cell(t, OS_PLAIN, "tiny");
    os_table_cell(t, OS_PLAIN, "b");
    assert_int_equal(os_table_text(t, false, &out), -EINVAL);
    os_table_cell(t, OS_PLAIN, "7");
    os_table_cell(t, OS_DIM, "a longer one");
    buf_clear(&out);
    assert_int_equal(os_table_text(t, false, &out), 0);
    assert_string_equal(out.ptr, "SERVICE    PID  MODEL\n"
                                 "alpha    12345  tiny\n"
                                 "b            7  a longer one\n");
    buf_clear(&out);
    assert_int_equal(os_table_text(t, true, &out), 0);
    assert_string_equal(out.ptr, "\033[1mSERVICE\033[0m    \033[1mPID\033[0m  \033[1mMODEL\033[0m\n"
                                 "alpha    \033[32m12345\033[0m  tiny\n"
                                 "b            7  \033[2ma longer one\033[0m\n");
    /* a cell that ends in spaces keeps its column aligned, and no line ends in them */
    os_table_cell(t, OS_PLAIN, "c");
    os_table_cell(t, OS_PLAIN, "8  ");
    os_table_cell(t, OS_PLAIN, "%s", "");
    buf_clear(&out);
    assert_int_equal(os_table_text(t, false, &out), 0);
    assert_non_null(strstr(out.ptr, "\nc          8\n"));
    assert_null(os_table_free(t));
    assert_null(os_table_free(NULL));
}

static void test_table_width(void **state)
{
    (void)state;
    base_autobuf struct buf out = BUF_INIT(8192);
    struct os_table *t = os_table_new(headings, aligns, 3);
    os_table_cell(t, OS_PLAIN, "\xE6\xA8\xA1\xE5\x9E\x8B"); /* two characters, four columns */
    os_table_cell(t, OS_PLAIN, "\xC3\xA4");
    os_table_cell(t, OS_PLAIN, "x");
    os_table_cell(t, OS_PLAIN, "evil\033[2J");
    os_table_cell(t, OS_PLAIN, "%s", "");
    os_table_cell(t, OS_PLAIN, "%s", "");
    os_table_cell(t, OS_PLAIN, "%s", "");
    os_table_cell(t, OS_PLAIN, "%s", "");
    os_table_cell(t, OS_PLAIN, "y");
    assert_int_equal(os_table_text(t, false, &out), 0);
    assert_string_equal(out.ptr, "SERVICE      PID  MODEL\n"
                                 "\xE6\xA8\xA1\xE5\x9E\x8B           \xC3\xA4  x\n"
                                 "evil\\x1b[2J\n"
                                 "                  y\n");
    buf_clear(&out);
    struct buf none = BUF_INIT(3);
    assert_int_equal(os_table_text(t, false, &none), -ENOMEM);
    buf_release(&none);
    os_table_free(t);
}

static void test_text_width(void **state)
{
    (void)state;
    assert_int_equal(os_text_width(STR("abc")), 3);
    assert_int_equal(os_text_width(STR("")), 0);
    assert_int_equal(os_text_width(STR("e\xCC\x81")), 1);         /* combining accent */
    assert_int_equal(os_text_width(STR("\xF0\x9F\x98\x80")), 2);  /* emoji */
    assert_int_equal(os_text_width(STR("\xED\x95\x9C")), 2);      /* Hangul */
    assert_int_equal(os_text_width(STR("\xE2\x96\x88")), 1);      /* block */
    assert_int_equal(os_text_width(STR("\xFF\xC3")), 2);          /* broken bytes */
    assert_int_equal(os_text_cut(STR("abc"), 2).len, 2);
    assert_int_equal(os_text_cut(STR("abc"), 3).len, 3);
    assert_int_equal(os_text_cut(STR("a\xED\x95\x9C"), 2).len, 1); /* half of a wide one is none */
    assert_int_equal(os_text_cut(STR("e\xCC\x81" "b"), 1).len, 3); /* the mark goes with its letter */
    assert_int_equal(os_text_cut(STR("abc"), 0).len, 0);
}

/* ---- progress ------------------------------------------------------------------------------------ */

struct screen {
    int master, slave;
    uint64_t now;
    struct clk clk;
    struct buf seen;
    char *term, *no_color;
};

static uint64_t screen_now(void *ctx)
{
    return ((struct screen *)ctx)->now;
}

static void set_env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static int setup(void **state)
{
    struct screen *s = calloc(1, sizeof(*s));
    struct termios raw;
    struct winsize size = {.ws_row = 10, .ws_col = 80};
    char name[64];
    s->term = getenv("TERM") ? str_dup(str_of(getenv("TERM"))) : NULL;
    s->no_color = getenv("NO_COLOR") ? str_dup(str_of(getenv("NO_COLOR"))) : NULL;
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    s->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (s->master < 0 || grantpt(s->master) < 0 || unlockpt(s->master) < 0 || ptsname_r(s->master, name, sizeof(name)) != 0)
        return -1;
    s->slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (s->slave < 0 || tcgetattr(s->slave, &raw) < 0)
        return -1;
    raw.c_oflag &= ~(tcflag_t)OPOST;
    s->now = 1000000;
    s->clk = (struct clk){.mono_us = screen_now, .real_us = screen_now, .ctx = s};
    s->seen = BUF_INIT(1 << 20);
    *state = s;
    (void)fcntl(s->master, F_SETFL, O_NONBLOCK);
    return tcsetattr(s->slave, TCSANOW, &raw) < 0 || ioctl(s->slave, TIOCSWINSZ, &size) < 0;
}

static int teardown(void **state)
{
    struct screen *s = *state;
    set_env("TERM", s->term);
    set_env("NO_COLOR", s->no_color);
    free(s->term);
    free(s->no_color);
    close(s->master);
    close(s->slave);
    buf_release(&s->seen);
    free(s);
    return 0;
}

/* What was written to the terminal since the last call. */
static const char *seen(struct screen *s)
{
    char chunk[4096];
    ssize_t n;
    buf_clear(&s->seen);
    while ((n = read(s->master, chunk, sizeof(chunk))) > 0)
        buf_add(&s->seen, chunk, (size_t)n);
    return s->seen.ptr ? s->seen.ptr : "";
}

static void test_terminal(void **state)
{
    struct screen *s = *state;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(os_is_terminal(s->slave));
    assert_false(os_is_terminal(null));
    assert_int_equal(os_term_width(s->slave), 80);
    assert_int_equal(os_term_width(null), 80);
    struct winsize size = {.ws_row = 10, .ws_col = 123};
    assert_int_equal(ioctl(s->slave, TIOCSWINSZ, &size), 0);
    assert_int_equal(os_term_width(s->slave), 123);
    assert_false(os_term_color(s->slave));
    setenv("NO_COLOR", "", 1);
    assert_true(os_term_color(s->slave));
    unsetenv("NO_COLOR");
    assert_true(os_term_color(s->slave));
    assert_false(os_term_color(null));
    setenv("TERM", "dumb", 1);
    assert_false(os_term_color(s->slave));
    close(null);
}

static void test_progress(void **state)
{
    struct screen *s = *state;
    struct os_progress *p = os_progress_new(s->slave, &s->clk);
    os_progress_set(p, "alpha", "loading", 0, 0, OS_PLAIN);
    assert_string_equal(seen(s), "  alpha  loading   0.0 s\n");
    s->now += 600000;
    os_progress_set(p, "beta-10", "queued", 0, 0, OS_PLAIN);
    assert_string_equal(seen(s), "\033[1A\r\033[J"
                                 "  alpha    loading   0.6 s\n"
                                 "  beta-10  queued    0.0 s\n");
    s->now += 1500000;
    os_progress_set(p, "alpha", "loading", 45, 100, OS_PLAIN);
    assert_string_equal(seen(s), "\033[2A\r\033[J"
                                 "  alpha    loading  [#########-----------]  45 %   2.1 s\n"
                                 "  beta-10  queued                                  1.5 s\n");
    /* What comes too fast for the eye is not drawn, but what is new is. */
    s->now += 1000;
    os_progress_set(p, "alpha", "loading", 46, 100, OS_PLAIN);
    assert_string_equal(seen(s), "");
    os_progress_set(p, "alpha", "warming", 46, 100, OS_PLAIN);
    assert_non_null(strstr(seen(s), "warming"));
    /* Finished: written for good above, and gone from the block. */
    s->now += 900000;
    os_progress_set(p, "beta-10", "ready", 0, 0, OS_GREEN);
    assert_string_equal(seen(s), "\033[2A\r\033[J"
                                 "  beta-10  ready in 2.4 s\n"
                                 "  alpha    warming  [#########-----------]  46 %   3.0 s\n");
    os_progress_say(p, OS_PLAIN, "log of %s:\nline \033[2J\n", "alpha");
    assert_string_equal(seen(s), "\033[1A\r\033[J"
                                 "log of alpha:\n"
                                 "line \\x1b[2J\n"
                                 "  alpha    warming  [#########-----------]  46 %   3.0 s\n");
    os_progress_set(p, "alpha", "out of memory", 0, 0, OS_RED);
    assert_string_equal(seen(s), "\033[1A\r\033[J"
                                 "  alpha    out of memory after 3.0 s\n");
    os_progress_set(p, "gamma", "already there", 0, 0, OS_GREEN);
    assert_string_equal(seen(s), "  gamma    already there\n");
    os_progress_set(p, "alpha", "loading", UINT64_MAX, UINT64_MAX, OS_PLAIN);
    assert_string_equal(seen(s), "  alpha    loading  [####################] 100 %   0.0 s\n");
    s->now += 75000000;
    os_progress_set(p, "alpha", "loading", 200, 100, OS_PLAIN);
    assert_string_equal(seen(s), "\033[1A\r\033[J"
                                 "  alpha    loading  [####################] 100 %  1m 15s\n");
    s->now += 1000;
    os_progress_set(p, "alpha", "loading", 0, 100, OS_PLAIN);
    assert_string_equal(seen(s), "");
    assert_null(os_progress_free(p)); /* the last state stays on the screen */
    assert_string_equal(seen(s), "\033[1A\r\033[J"
                                 "  alpha    loading  [--------------------]   0 %  1m 15s\n");
    assert_null(os_progress_free(NULL));
}

static void test_progress_color(void **state)
{
    struct screen *s = *state;
    unsetenv("NO_COLOR");
    struct os_progress *p = os_progress_new(s->slave, &s->clk);
    os_progress_set(p, "a", "loading", 1, 4, OS_PLAIN);
    assert_string_equal(seen(s), "  \033[1ma\033[0m  loading  [\033[36m#####\033[0m\033[2m---------------\033[0m]  25 %\033[2m   0.0 s\033[0m\n");
    os_progress_set(p, "a", "ready", 0, 0, OS_GREEN);
    assert_string_equal(seen(s), "\033[1A\r\033[J  \033[1ma\033[0m  \033[32mready\033[0m in 0.0 s\n");
    os_progress_free(p);
}

/* No drawn line is as wide as the terminal: a wrapped one could not be erased. */
static void test_progress_narrow(void **state)
{
    struct screen *s = *state;
    for (unsigned short columns = 1; columns < 90; columns++) {
        struct winsize size = {.ws_row = 10, .ws_col = columns};
        assert_int_equal(ioctl(s->slave, TIOCSWINSZ, &size), 0);
        struct os_progress *p = os_progress_new(s->slave, &s->clk);
        os_progress_set(p, "a-service-of-some-length", "a long text about \xE6\xA8\xA1\xE5\x9E\x8B and what it does there", 1, 2, OS_PLAIN);
        struct str line = str_of(seen(s));
        assert_true(str_ends(line, STR("\n")));
        line.len--;
        assert_int_equal(str_find_char(line, '\n'), -1);
        assert_true(os_text_width(line) < (columns > 1 ? columns : 2));
        assert_true(str_is_utf8(line));
        if (columns == 50)
            assert_true(str_ends(line, STR("   0.0 s")));
        os_progress_free(p);
    }
}

/* More tasks than rows: the block stays smaller than the screen. */
static void test_progress_many(void **state)
{
    struct screen *s = *state;
    struct os_progress *p = os_progress_new(s->slave, &s->clk);
    for (unsigned i = 0; i < 30; i++) {
        char name[16];
        snprintf(name, sizeof(name), "task-%02u", i);
        os_progress_set(p, name, "queued", 0, 0, OS_PLAIN);
    }
    (void)seen(s);
    os_progress_set(p, "task-00", "begun", 0, 0, OS_PLAIN);
    const char *text = seen(s);
    assert_true(str_starts(str_of(text), STR("\033[8A\r\033[J  task-00  begun ")));
    assert_true(str_ends(str_of(text), STR("\n  and 23 more\n")));
    os_progress_free(p);
}

static void test_progress_elsewhere(void **state)
{
    struct screen *s = *state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    struct os_progress *p = os_progress_new(ends[1], &s->clk);
    os_progress_set(p, "alpha", "loading", 0, 10, OS_PLAIN);
    s->now += 600000;
    os_progress_set(p, "alpha", "loading", 5, 10, OS_PLAIN);
    os_progress_set(p, "beta", "loading", 5, 10, OS_PLAIN);
    os_progress_set(p, "alpha", "ready", 10, 10, OS_GREEN);
    os_progress_say(p, OS_YELLOW, "port %d is taken", 80);
    s->now += 1000000;
    os_progress_set(p, "beta", "engine died", 10, 10, OS_RED);
    os_progress_set(p, "gamma", "verified", 0, 0, OS_GREEN);
    os_progress_set(p, "delta", "loading", 0, 0, OS_PLAIN);
    os_progress_free(p);
    close(ends[1]);
    base_autobuf struct buf out = BUF_INIT(4096);
    assert_int_equal(os_read_all(ends[0], &out, NULL), 0);
    close(ends[0]);
    assert_string_equal(out.ptr, "alpha: ready in 0.6 s\n"
                                 "port 80 is taken\n"
                                 "beta: engine died after 1.0 s\n"
                                 "gamma: verified\n");
}

static void test_progress_dumb(void **state)
{
    struct screen *s = *state;
    setenv("TERM", "dumb", 1);
    struct os_progress *p = os_progress_new(s->slave, &s->clk);
    os_progress_set(p, "alpha", "loading", 0, 10, OS_PLAIN);
    os_progress_set(p, "alpha", "ready", 0, 10, OS_GREEN);
    os_progress_free(p);
    assert_string_equal(seen(s), "alpha: ready in 0.0 s\n");
}

static void test_progress_hostile(void **state)
{
    struct screen *s = *state;
    char name[3000];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    struct os_progress *p = os_progress_new(s->slave, &s->clk);
    os_progress_set(p, name, name, 1, 3, OS_PLAIN);
    assert_true(strlen(seen(s)) <= 80);
    os_progress_set(p, name, "x\ny\033[0m", 1, 3, OS_RED);
    assert_non_null(strstr(seen(s), "x\\x0ay\\x1b[0m after 0.0 s\n"));
    os_progress_free(p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table), cmocka_unit_test(test_table_width), cmocka_unit_test(test_text_width),
        TEST(test_terminal),          TEST(test_progress),                TEST(test_progress_color),
        TEST(test_progress_narrow),   TEST(test_progress_many),           TEST(test_progress_elsewhere),
        TEST(test_progress_dumb),     TEST(test_progress_hostile),
    };
    return cmocka_run_group_tests_name("os terminal", tests, NULL, NULL);
}
