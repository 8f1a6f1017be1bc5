/* SPDX-License-Identifier: MIT
 *
 * Contracts of the user's, run for real: how one ends, what it gets, how long and how much it may say, and which are not run at all.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <check/check_int.h>
#include <engine/engine.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct world {
    char top[64], state[96], folder[96];
    struct os_dirs dirs;
    struct store *store;
    struct fleet *fleet;
    struct arena *arena;
};

static void put(const struct world *w, const char *name, const char *text, mode_t mode)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", w->top, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct fleet_options options = engine_fleet_options();
    struct err err;
    char path[256];
    assert_non_null(w);
    snprintf(w->top, sizeof w->top, "/tmp/berth-check-XXXXXX");
    assert_non_null(mkdtemp(w->top));
    snprintf(w->state, sizeof w->state, "%s/state", w->top);
    snprintf(w->folder, sizeof w->folder, "%s/contracts", w->top);
    assert_int_equal(mkdir(w->folder, 0755), 0);
    w->dirs = (struct os_dirs){.state = w->state, .run = w->state, .config = w->state};
    assert_int_equal(store_open(&w->dirs, &w->store, NULL), 0);
    put(w, "fleet.yaml", "version: 1\nname: f\nruntimes:\n  own: {engine: generic, source: system}\nservices:\n  a: {runtime: own, port: 7770, command: [serve], env: {SECRET: hidden}}\n", 0644);
    snprintf(path, sizeof path, "%s/fleet.yaml", w->top);
    if (fleet_load(path, &options, &w->fleet, &err) < 0)
        fail_msg("%s", err.text);
    w->arena = arena_new(64 << 20);
    assert_non_null(w->arena);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    fleet_free(w->fleet);
    store_free(w->store);
    arena_free(w->arena);
    assert_int_equal(os_remove_path(w->top, NULL), 0);
    free(w);
    return 0;
}

/* The one result of the contract of that name. */
static struct check_result prove(struct world *w, const char *name, uint64_t ms)
{
    const char *const only[] = {name};
    const struct check_options o = {.only = only, .n_only = 1, .user_ms = ms};
    struct check_result *r = NULL;
    size_t n = 0;
    struct err err;
    if (check_fleet(w->fleet, w->store, &o, w->arena, &r, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n, 1);
    assert_string_equal(r[0].contract, name);
    assert_string_equal(r[0].subject, "fleet f");
    return r[0];
}

static void ends_tell(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *name, *script, *text;
        enum check_verdict v;
    } cases[] = {
        {"holds", "#!/bin/sh\necho 3 pages\necho more\n", "3 pages", CHECK_HOLDS},
        {"silent", "#!/bin/sh\n", "it holds", CHECK_HOLDS},
        {"broken", "#!/bin/sh\necho no page says it\nexit 1\n", "no page says it", CHECK_BROKEN},
        {"mute", "#!/bin/sh\nexit 1\n", "it does not say why", CHECK_BROKEN},
        {"error", "#!/bin/sh\necho 'no such thing' >&2\nexit 3\n", "it could not judge (exit 3): no such thing", CHECK_BROKEN},
        {"itself", "#!/bin/sh\nkill -9 $$\n", "it could not judge (killed by SIGKILL)", CHECK_BROKEN},
        {"group", "#!/bin/sh\nkill -TERM 0\n", "it could not judge (killed by SIGTERM)", CHECK_BROKEN},
        {"quiet", "#!/bin/sh\nexec >&- 2>&-\nexit 0\n", "it holds", CHECK_HOLDS},
        {"control", "#!/bin/sh\nprintf '\\033[31mred\\n'\nexit 1\n", "\\x1b[31mred", CHECK_BROKEN},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char file[64];
        snprintf(file, sizeof file, "contracts/%s", cases[i].name);
        put(w, file, cases[i].script, 0755);
        struct check_result r = prove(w, cases[i].name, 0);
        assert_string_equal(r.text, cases[i].text);
        assert_int_equal(r.verdict, cases[i].v);
        assert_string_equal(r.where, file);
    }
}

static void gets_the_fleet_and_nothing_else(void **state)
{
    struct world *w = *state;
    assert_int_equal(setenv("BERTH_TEST_SECRET", "x", 1), 0);
    put(w, "contracts/env", "#!/bin/sh\nenv | cut -d= -f1 | grep -vx -e PWD -e SHLVL -e _ -e OLDPWD | sort | tr '\\n' ' '\necho \"$# $PWD\"\n", 0755);
    char want[160];
    snprintf(want, sizeof want, "HOME LC_ALL PATH 0 %s", w->top);
    assert_string_equal(prove(w, "env", 0).text, want);
    put(w, "contracts/fds", "#!/bin/sh\nls /proc/self/fd | tr '\\n' ' '\n", 0755);
    assert_string_equal(prove(w, "fds", 0).text, "0 1 2 3"); /* 3 is ls's own */
    put(w, "contracts/json", "#!/bin/sh\ngrep -c -e '\"port\": 7770' -e '\"SECRET\"'\n", 0755);
    assert_string_equal(prove(w, "json", 0).text, "2");
    put(w, "contracts/hidden", "#!/bin/sh\n! grep hidden\n", 0755);
    assert_int_equal(prove(w, "hidden", 0).verdict, CHECK_HOLDS);
    put(w, "contracts/write", "#!/bin/sh\necho x >>/proc/self/fd/0 || exit 0\nexit 1\n", 0755);
    assert_int_equal(prove(w, "write", 0).verdict, CHECK_HOLDS); /* what the next one reads is the same */
}

/* Whether any process has that word in its environment or arguments. */
static bool lives(const char *pid_file)
{
    base_autobuf struct buf text = BUF_INIT(64);
    uint64_t pid;
    if (os_read_file(AT_FDCWD, pid_file, &text, NULL) < 0 || str_to_u64(str_trim(buf_str(&text)), &pid) < 0)
        return false;
    return kill((pid_t)pid, 0) == 0;
}

static void has_an_end(void **state)
{
    struct world *w = *state;
    char script[512], pid[128];
    snprintf(pid, sizeof pid, "%s/pid", w->top);
    put(w, "contracts/slow", "#!/bin/sh\necho begun\nexec sleep 600\n", 0755);
    struct check_result r = prove(w, "slow", 200);
    assert_int_equal(r.verdict, CHECK_BROKEN);
    assert_non_null(strstr(r.text, "did not end within 200 ms and was killed"));
    /* what it left behind ends with it, whether it ended in time or not */
    snprintf(script, sizeof script, "#!/bin/sh\nsleep 600 >/dev/null 2>&1 &\ngrep NSpid /proc/$!/status >/dev/null\necho $! >%s\nexit 0\n", pid);
    put(w, "contracts/leaves", script, 0755);
    assert_int_equal(prove(w, "leaves", 5000).verdict, CHECK_HOLDS);
    if (!os_own_pids_possible()) /* else the number is of another namespace */
        assert_false(lives(pid));
    put(w, "contracts/loud", "#!/bin/sh\nyes | head -c 200000\n", 0755);
    r = prove(w, "loud", 0);
    assert_int_equal(r.verdict, CHECK_BROKEN);
    assert_string_equal(r.text, "it says more than 65536 bytes");
}

/* What is no program, and what does not behave: each is broken with a reason, and nothing is left of it. */
static void breaks_by_itself_alone(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *name, *script, *text;
        uint64_t ms;
    } cases[] = {
        {"interpreter", "#!/nonexistent/sh\n", "the program that its first line or its header names is not there", 0},
        {"bare", "echo hello\n", "a script without a line '#!' at its top", 0},
        {"empty", "", "a script without a line '#!' at its top", 0},
        {"noise", "\177ELF\001\002\003 no program", "cannot start", 0},
        {"mute", "#!/bin/sh\nexec >&- 2>&- <&-\nsleep 600\n", "did not end within 300 ms", 300},
        {"many", "#!/bin/sh\ni=0\nwhile [ $i -lt 200 ]; do sleep 600 & i=$((i+1)); done\nwait\n", "did not end within 3.0 s", 3000},
        {"away", "#!/bin/sh\nsetsid sh -c 'sleep 600' &\nsetsid sh -c 'trap \"\" TERM HUP INT; sleep 600' &\nexit 1\n", "it does not say why", 0},
        {"flood", "#!/bin/sh\nhead -c 100000000 /dev/zero\n", "it says more than 65536 bytes", 0},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        char file[64];
        snprintf(file, sizeof file, "contracts/%s", cases[i].name);
        put(w, file, cases[i].script, 0755);
        struct check_result r = prove(w, cases[i].name, cases[i].ms);
        if (!strstr(r.text, cases[i].text))
            fail_msg("%s: %s", cases[i].name, r.text);
        assert_int_equal(r.verdict, CHECK_BROKEN);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child of ours is left */
    assert_int_equal(errno, ECHILD);
}

static void what_is_no_file_is_not_run(void **state)
{
    struct world *w = *state;
    char path[160];
    static const char *const names[] = {"folder", "fifo", "loop", "nowhere"};
    snprintf(path, sizeof path, "%s/folder", w->folder);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/fifo", w->folder);
    assert_int_equal(mkfifo(path, 0755), 0);
    snprintf(path, sizeof path, "%s/loop", w->folder);
    assert_int_equal(symlink("loop", path), 0);
    snprintf(path, sizeof path, "%s/nowhere", w->folder);
    assert_int_equal(symlink("/nonexistent", path), 0);
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        struct check_result r = prove(w, names[i], 0);
        assert_int_equal(r.verdict, CHECK_BROKEN);
        assert_non_null(strstr(r.text, i < 2 ? "is no regular file" : "cannot be looked at"));
    }
}

/* All results for the contract 'contracts'. */
static const struct check_result *prove_folder(struct world *w, size_t want)
{
    const char *const only[] = {"file", "contracts"};
    const struct check_options o = {.only = only, .n_only = 2};
    struct check_result *r = NULL;
    size_t n = 0;
    struct err err;
    if (check_fleet(w->fleet, w->store, &o, w->arena, &r, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(r[0].contract, "file"); /* whatever the folder is, the others are proven */
    assert_int_equal(r[0].verdict, CHECK_HOLDS);
    assert_int_equal(n, want + 1);
    for (size_t i = 1; i < n; i++)
        assert_string_equal(r[i].contract, "contracts");
    return r + 1;
}

static void names_that_none_can_have_are_told(void **state)
{
    struct world *w = *state;
    assert_int_equal(prove_folder(w, 1)[0].verdict, CHECK_NONE); /* the folder is empty */
    put(w, "contracts/a", "", 0755);
    assert_int_equal(prove_folder(w, 1)[0].verdict, CHECK_HOLDS);
    put(w, "contracts/b\nroot ok", "", 0755);
    put(w, "contracts/\033[31m", "", 0755);
    put(w, "contracts/\xff", "", 0755);
    put(w, "contracts/\xE2\x80\xAE", "", 0755);
    put(w, "contracts/fit", "", 0755);
    const struct check_result *r = prove_folder(w, 5);
    static const char *const where[] = {"contracts/\\x1b[31m", "contracts/b\\x0aroot ok", "contracts/\\xe2\\x80\\xae", "contracts/\\xff", "contracts/fit"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(r[i].verdict, CHECK_BROKEN);
        assert_string_equal(r[i].where, where[i]);
        assert_non_null(strstr(r[i].text, i < 4 ? "is not run: its name has bytes" : "has the name of one of berth's own"));
    }
}

static void a_folder_that_cannot_be_read_is_one_broken_contract(void **state)
{
    struct world *w = *state;
    char file[64];
    assert_int_equal(rmdir(w->folder), 0);
    assert_int_equal(prove_folder(w, 1)[0].verdict, CHECK_NONE);
    put(w, "contracts", "", 0644);
    const struct check_result *r = prove_folder(w, 1);
    assert_int_equal(r[0].verdict, CHECK_BROKEN);
    assert_string_equal(r[0].text, "none of 'contracts' is run: it cannot be looked into: Not a directory");
    assert_int_equal(unlink(w->folder), 0);
    assert_int_equal(symlink("contracts", w->folder), 0);
    assert_int_equal(prove_folder(w, 1)[0].verdict, CHECK_BROKEN);
    assert_int_equal(unlink(w->folder), 0);
    assert_int_equal(mkdir(w->folder, 0755), 0);
    for (int i = 0; i <= CHECK_USER_MAX; i++) {
        snprintf(file, sizeof file, "contracts/c%d", i);
        put(w, file, "", 0755);
    }
    r = prove_folder(w, 1);
    assert_string_equal(r[0].text, "none of 'contracts' is run: it has more than 64 files");
    /* one that is asked for by name is not known then, and it is said why */
    const char *const only[] = {"c1"};
    const struct check_options o = {.only = only, .n_only = 1};
    struct check_result *list = NULL;
    size_t n = 0;
    struct err err;
    assert_int_equal(check_fleet(w->fleet, w->store, &o, w->arena, &list, &n, &err), -ENOENT);
    assert_non_null(strstr(err.text, "the folder 'contracts' cannot be read: it has more than 64 files"));
}

static void what_others_may_change_is_not_run(void **state)
{
    struct world *w = *state;
    char path[160], mark[128], script[256];
    snprintf(mark, sizeof mark, "%s/ran", w->top);
    snprintf(script, sizeof script, "#!/bin/sh\ntouch %s\n", mark);
    put(w, "contracts/c", script, 0775);
    assert_non_null(strstr(prove(w, "c", 0).text, "not run: 'contracts/c' may be changed by others (rights 0775)"));
    put(w, "contracts/c", script, 0757);
    assert_int_equal(prove(w, "c", 0).verdict, CHECK_BROKEN);
    put(w, "contracts/c", script, 0755);
    assert_int_equal(chmod(w->folder, 0777), 0);
    assert_non_null(strstr(prove(w, "c", 0).text, "not run: 'contracts"));
    assert_int_equal(chmod(w->folder, 0755), 0);
    assert_int_equal(chmod(w->top, 0777), 0);
    assert_non_null(strstr(prove(w, "c", 0).text, "may be changed by others (rights 0777)"));
    assert_int_equal(chmod(w->top, 0755), 0);
    if (geteuid() == 0) {
        snprintf(path, sizeof path, "%s/c", w->folder);
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_non_null(strstr(prove(w, "c", 0).text, "belongs to another account"));
        assert_int_equal(chown(path, 0, 0), 0);
    }
    /* a link is as good as where it leads */
    char folder[128];
    snprintf(folder, sizeof folder, "%s/elsewhere", w->top);
    snprintf(path, sizeof path, "%s/link", w->folder);
    assert_int_equal(mkdir(folder, 0755), 0);
    put(w, "elsewhere/c", script, 0755);
    assert_int_equal(symlink("../elsewhere/c", path), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_non_null(strstr(prove(w, "link", 0).text, "may be changed by others (rights 0777)"));
    put(w, "contracts/c", script, 0644);
    assert_non_null(strstr(prove(w, "c", 0).text, "is no executable"));
    assert_int_equal(access(mark, F_OK), -1);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(prove(w, "link", 0).verdict, CHECK_HOLDS);
    assert_int_equal(unlink(mark), 0);
    put(w, "contracts/c", script, 0755);
    assert_int_equal(prove(w, "c", 0).verdict, CHECK_HOLDS);
    assert_int_equal(access(mark, F_OK), 0);
}

static void names_are_files(void **state)
{
    struct world *w = *state;
    const char *const *names = NULL;
    size_t n = 0;
    put(w, "contracts/b", "", 0755);
    put(w, "contracts/a", "", 0755);
    put(w, "contracts/.hidden", "", 0755);
    put(w, "contracts/a~", "", 0755);
    assert_int_equal(check_user_names(w->fleet, w->arena, &names, &n, NULL), 0);
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "a");
    assert_string_equal(names[1], "b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ends_tell, setup, teardown),
        cmocka_unit_test_setup_teardown(gets_the_fleet_and_nothing_else, setup, teardown),
        cmocka_unit_test_setup_teardown(has_an_end, setup, teardown),
        cmocka_unit_test_setup_teardown(what_others_may_change_is_not_run, setup, teardown),
        cmocka_unit_test_setup_teardown(breaks_by_itself_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_file_is_not_run, setup, teardown),
        cmocka_unit_test_setup_teardown(names_that_none_can_have_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_read_is_one_broken_contract, setup, teardown),
        cmocka_unit_test_setup_teardown(names_are_files, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
