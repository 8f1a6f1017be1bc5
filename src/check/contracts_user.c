/* SPDX-License-Identifier: MIT
 *
 * Contracts of the user's: executables in the folder `contracts` beside the fleet file, each named by its file. One gets the fleet as JSON on its standard input, a clean environment and the fleet's folder to stand in; it
 * says how it ends (0 holds, 1 broken, anything else is an error of its own) and, in its first line, why.
 *
 * Whoever may write to one runs as whoever checks. So none is run that another account could have changed: neither folder, fleet's folder nor file may be writable by group or others, and the file is ours or root's.
 */
#include "check_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define JSON_MAX ((size_t)16 << 20)
#define SHOWN_CHARS 400 /* of what one says */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *folder_of(const struct fleet *f, struct arena *a)
{
    return arena_printf(a, "%s/contracts", f->dir);
}

/* Editors' leavings and hidden files are none. */
static bool is_contract_name(struct str name)
{
    return os_name_valid(name) && name.ptr[0] != '.' && !str_ends(name, STR("~"));
}

int check_user_names(const struct fleet *f, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err)
{
    const char *folder = folder_of(f, a), **list = NULL;
    size_t n = 0, cap = 0;
    int r = 0;
    if (!folder)
        return err_nomem(err);
    DIR *d = opendir(folder);
    if (!d && errno != ENOENT)
        return err_sys(err, -errno, "cannot look into '%s'", folder);
    const struct dirent *e;
    while (d && r == 0 && (e = readdir(d))) {
        if (!is_contract_name(str_of(e->d_name)))
            continue;
        const char **more = arena_grow(a, list, n + 1, &cap, sizeof *more);
        if (n == CHECK_USER_MAX)
            r = err_set(err, -E2BIG, "'%s' has more than %d files", folder, CHECK_USER_MAX);
        else if (!more || !(more[n] = arena_dup(a, str_of(e->d_name))))
            r = err_nomem(err);
        list = more ? more : list;
        n += r == 0;
    }
    if (d)
        closedir(d);
    if (r < 0)
        return r;
    if (n)
        qsort(list, n, sizeof *list, by_name);
    *ret = list;
    *ret_n = n;
    return 0;
}

/* ---- may it run? ----------------------------------------------------------------------------------------------------- */

static const char *unsafe(const struct check_run *c, const char *path, bool folder)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return arena_printf(c->a, "'%s' cannot be looked at: %s", check_short(c, path), strerror(errno));
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return arena_printf(c->a, "not run: '%s' belongs to another account", check_short(c, path));
    /* in a folder with the sticky bit others may add, but not replace */
    if (st.st_mode & (S_IWGRP | S_IWOTH) && !(folder && st.st_mode & S_ISVTX))
        return arena_printf(c->a, "not run: '%s' may be changed by others (rights %04o)", check_short(c, path), (unsigned)(st.st_mode & 07777));
    if (!folder && !S_ISREG(st.st_mode))
        return arena_printf(c->a, "'%s' is no regular file", check_short(c, path));
    if (!folder && !(st.st_mode & S_IXUSR))
        return arena_printf(c->a, "'%s' is no executable: chmod +x", check_short(c, path));
    return NULL;
}

/* What is behind a link is changed where it lies: its own folder is as good as the one of contracts. */
static const char *unsafe_file(const struct check_run *c, const char *path)
{
    const char *wrong = unsafe(c, path, false);
    base_autofree char *whole = wrong ? NULL : realpath(path, NULL);
    if (wrong || !whole)
        return wrong ? wrong : arena_printf(c->a, "'%s' cannot be looked at: %s", check_short(c, path), strerror(errno));
    *strrchr(whole, '/') = '\0';
    return unsafe(c, *whole ? whole : "/", true);
}

/* ---- one run ------------------------------------------------------------------------------------------------------------ */

/* The first line that was said, as people may see it; "" for none. */
static const char *first_line(const struct check_run *c, struct str said)
{
    base_autobuf struct buf shown = BUF_INIT(8192);
    struct str line = STR("");
    while (said.ptr && line.len == 0)
        line = str_trim(str_split(&said, '\n'));
    buf_add_printable(&shown, line, SHOWN_CHARS);
    return buf_status(&shown) < 0 || shown.len == 0 ? "" : arena_dup(c->a, buf_str(&shown));
}

static int judge_end(struct check_run *c, const char *subject, const char *path, int status, const struct buf *out, const struct buf *errout)
{
    const char *line = first_line(c, buf_str(out)), *cry = first_line(c, buf_str(errout)), *at = check_short(c, path);
    char ended[OS_STATUS_TEXT];
    if (!line || !cry)
        return err_nomem(c->err);
    if (out->len >= CHECK_USER_OUTPUT)
        return check_found(c, CHECK_BROKEN, subject, at, "it says more than %d bytes", CHECK_USER_OUTPUT);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return check_found(c, CHECK_HOLDS, subject, at, "%s", line[0] ? line : "it holds");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        return check_found(c, CHECK_BROKEN, subject, at, "%s", line[0] ? line : "it does not say why");
    return check_found(c, CHECK_BROKEN, subject, at, "it could not judge (%s)%s%s", os_status_text(status, ended), cry[0] ? ": " : "", cry);
}

static int run_one(struct check_run *c, int input, const char *path, const char *subject)
{
    base_autobuf struct buf out = BUF_INIT(CHECK_USER_OUTPUT), errout = BUF_INIT(CHECK_USER_OUTPUT);
    static const char *const envp[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/nonexistent", NULL};
    const char *const argv[] = {path, NULL};
    const struct os_spawn s = {.argv = argv, .envp = envp, .cwd = c->f->dir, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .new_group = true, .end_group = true, .death_signal = SIGKILL, .own_pids = os_own_pids_possible()};
    struct err err;
    int status = 0;
    if (lseek(input, 0, SEEK_SET) < 0)
        return err_sys(c->err, -errno, "the fleet cannot be handed to '%s'", path);
    int r = os_run_with(&s, input, c->o->user_ms ? c->o->user_ms : CHECK_USER_MS, &out, &errout, &status, &err);
    if (r == -ENOMEM || r == -EINTR)
        return err_set(c->err, r, "%s", err.text);
    return r < 0 ? check_found(c, CHECK_BROKEN, subject, check_short(c, path), "%s", err.text) : judge_end(c, subject, path, status, &out, &errout);
}

/* The fleet's JSON in a file of memory, which every contract reads from its beginning. */
static int make_input(struct check_run *c)
{
    base_autobuf struct buf json = BUF_INIT(JSON_MAX);
    int r = check_want_plan(c);
    if (r == 0 && (r = check_fleet_json(c->f, c->plan, &json)) < 0)
        return err_sys(c->err, r, "the fleet cannot be written as JSON");
    if (r < 0)
        return r;
    os_autoclose int fd = memfd_create("fleet.json", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_sys(c->err, -errno, "cannot make a file in memory");
    r = os_write_all(fd, json.ptr, json.len, c->err);
    if (r < 0)
        return r;
    /* one contract cannot change what the next one reads */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_sys(c->err, -errno, "cannot seal a file in memory");
    return os_take_fd(&fd);
}

static int prove_all(struct check_run *c, const char *const *names, size_t n)
{
    const char *folder = folder_of(c->f, c->a), *of = check_subject(c, "fleet", c->f->name);
    const char *bad = !folder ? NULL : unsafe(c, c->f->dir, true);
    os_autoclose int input = -1;
    int r = folder ? 0 : err_nomem(c->err);
    if (folder && !bad)
        bad = unsafe(c, folder, true);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct check_contract own = {.name = names[i]};
        bool asked = c->o->n_only == 0;
        for (size_t k = 0; k < c->o->n_only && !asked; k++)
            asked = strcmp(c->o->only[k], names[i]) == 0;
        if (!asked)
            continue;
        const char *path = arena_printf(c->a, "%s/%s", folder, names[i]);
        if (!path)
            return err_nomem(c->err);
        c->now = &own;
        const char *wrong = bad ? bad : unsafe_file(c, path);
        c->fix = wrong ? "chmod go-w, and let the folder, its parent and the file be yours" : "the contract itself says what it wants";
        if (wrong) {
            r = check_found(c, CHECK_BROKEN, of, check_short(c, path), "%s", wrong);
            continue;
        }
        if (input < 0)
            r = input = make_input(c);
        if (input >= 0)
            r = run_one(c, input, path, of);
    }
    return r;
}

int check_users(struct check_run *c)
{
    const char *const *names = NULL;
    size_t n = 0;
    int r = check_user_names(c->f, c->a, &names, &n, c->err);
    return r < 0 || n == 0 ? r : prove_all(c, names, n);
}
