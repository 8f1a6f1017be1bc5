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

/* Editors' leavings and hidden files are none, and nobody misses them. */
static bool is_left_out(struct str name)
{
    return name.len == 0 || name.ptr[0] == '.' || str_ends(name, STR("~"));
}

/* A file that is named so cannot be asked for by its name, nor shown. */
static bool is_strange(struct str name)
{
    uint32_t point = 0;
    bool shown = os_name_valid(name);
    for (size_t n; shown && name.len; name = (struct str){name.ptr + n, name.len - n}) {
        n = str_utf8_decode(name, &point);
        shown = n > 0 && str_is_shown(point);
    }
    return !shown;
}

struct names {
    const char **list;
    size_t n, cap;
};

static int keep_name(struct names *to, struct arena *a, struct str name, struct err *err)
{
    const char **more = arena_grow(a, to->list, to->n + 1, &to->cap, sizeof *more);
    if (!more || !(more[to->n] = arena_dup(a, name)))
        return err_nomem(err);
    to->list = more;
    to->n++;
    return 0;
}

static int read_names(DIR *d, struct arena *a, struct names *good, struct names *strange, struct err *err)
{
    const struct dirent *e;
    int r = 0;
    for (errno = 0; r == 0 && (e = readdir(d)); errno = 0) {
        struct str name = str_of(e->d_name);
        struct names *to = is_strange(name) ? strange : good;
        if (!is_left_out(name))
            r = to->n < CHECK_USER_MAX ? keep_name(to, a, name, err) : err_set(err, -E2BIG, "it has more than %d files", CHECK_USER_MAX);
    }
    if (r == 0 && errno)
        r = err_sys(err, -errno, "it cannot be read");
    return r;
}

int check_user_look(const struct fleet *f, struct arena *a, struct check_user_folder *ret, struct err *err)
{
    const char *path = folder_of(f, a);
    struct names good = {0}, strange = {0};
    struct err why;
    if (!path)
        return err_nomem(err);
    *ret = (struct check_user_folder){.path = path};
    DIR *d = opendir(path);
    int r = d ? 0 : -errno;
    if (r < 0)
        err_sys(&why, r, "it cannot be looked into");
    if (d) {
        r = read_names(d, a, &good, &strange, &why);
        closedir(d);
    }
    ret->there = r != -ENOENT;
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r < 0 && ret->there && !(ret->why = arena_dup(a, str_of(why.text))))
        return err_nomem(err);
    if (r < 0)
        return 0;
    if (good.n)
        qsort(good.list, good.n, sizeof *good.list, by_name);
    if (strange.n)
        qsort(strange.list, strange.n, sizeof *strange.list, by_name);
    ret->names = good.list;
    ret->n = good.n;
    ret->strange = strange.list;
    ret->n_strange = strange.n;
    return 0;
}

int check_user_names(const struct fleet *f, struct arena *a, const char *const **ret, size_t *ret_n, struct err *err)
{
    struct check_user_folder folder;
    int r = check_user_look(f, a, &folder, err);
    if (r == 0 && folder.why)
        r = err_set(err, -EIO, "'%s': %s", folder.path, folder.why);
    if (r < 0)
        return r;
    *ret = folder.names;
    *ret_n = folder.n;
    return 0;
}

/* ---- the folder as a contract ------------------------------------------------------------------------------------------ */

static bool is_own_name(const char *name)
{
    for (size_t i = 0; check_contract(i); i++)
        if (strcmp(check_contract(i)->name, name) == 0)
            return true;
    return false;
}

/* A file under a name that nobody can ask for, or that another contract has. */
static int judge_file(struct check_run *c, const char *subject, const char *folder, const char *name, bool strange)
{
    base_autobuf struct buf shown = BUF_INIT(8192);
    buf_addf(&shown, "%s/", check_short(c, folder));
    buf_add_printable(&shown, str_of(name), SIZE_MAX);
    const char *at = buf_status(&shown) < 0 ? NULL : arena_dup(c->a, buf_str(&shown));
    if (!at)
        return err_nomem(c->err);
    c->fix = "rename the file; if it is none of yours, see who could put it there";
    if (strange)
        return check_found(c, CHECK_BROKEN, subject, at, "'%s' is not run: its name has bytes that no name should have", at);
    return check_found(c, CHECK_BROKEN, subject, at, "'%s' has the name of one of berth's own contracts", at);
}

int check_own_contracts(struct check_run *c)
{
    struct check_user_folder own;
    int r = check_user_look(c->f, c->a, &own, c->err);
    const char *subject = check_subject(c, "fleet", c->f->name), *at = r == 0 ? check_short(c, own.path) : NULL;
    size_t before = c->n;
    if (r < 0)
        return r;
    if (!own.there)
        return check_found(c, CHECK_NONE, subject, at, "there is no folder 'contracts' beside the fleet file");
    if (own.why)
        return check_found(c, CHECK_BROKEN, subject, at, "none of '%s' is run: %s", at, own.why);
    for (size_t i = 0; r == 0 && i < own.n_strange; i++)
        r = judge_file(c, subject, own.path, own.strange[i], true);
    for (size_t i = 0; r == 0 && i < own.n; i++)
        if (is_own_name(own.names[i]))
            r = judge_file(c, subject, own.path, own.names[i], false);
    if (r < 0 || c->n > before)
        return r;
    return check_found(c, own.n ? CHECK_HOLDS : CHECK_NONE, subject, at, "%zu of yours", own.n);
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
    const bool apart = os_own_pids_possible();
    const struct os_spawn s = {.argv = argv, .envp = envp, .cwd = c->f->dir, .new_group = true, .end_group = true, .death_signal = SIGKILL, .own_pids = apart, .own_init = apart};
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
        if (is_own_name(names[i]))
            continue; /* told by check_own_contracts */
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
    struct check_user_folder own;
    int r = check_user_look(c->f, c->a, &own, c->err);
    return r < 0 || own.n == 0 ? r : prove_all(c, own.names, own.n);
}
