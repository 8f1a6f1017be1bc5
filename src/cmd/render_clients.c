/* SPDX-License-Identifier: MIT
 *
 * berth render clients: the files of programs that ask, made from the fleet's plan. A person's file is never taken away by accident: one that is there and differs stays, unless it is asked for.
 */
#include "render_int.h"

#include "fit_int.h"

#include <client/client.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define RENDER_MEMORY ((size_t)16 << 20)

struct clients {
    const struct cmd *c;
    const struct cmd_args *a;
    struct fit_session *s;
    const char *out; /* folder; NULL */
    size_t n;
};

static bool is_wanted(const struct cmd_args *a, const struct fleet_client *cl)
{
    for (size_t i = 1; i < a->n_words; i++)
        if (str_eq_c(str_of(cl->name), a->words[i]))
            return true;
    return a->n_words == 1;
}

static int unknown(const struct clients *x, const char *name)
{
    const struct fleet *f = x->s->fleet;
    for (size_t i = 0; i < f->n_clients; i++)
        if (strcmp(f->clients[i].name, name) == 0)
            return CMD_OK;
    if (f->n_clients == 0)
        return cmd_failf(CMD_USAGE, "fleet '%s' declares no client: add 'clients' to its file", f->name);
    return cmd_failf(CMD_USAGE, "fleet '%s' has no client '%.80s'; 'clients' of its file lists them", f->name, name);
}

/* Whether the file is already what would be written, or must not be touched. */
static int may_write(const struct clients *x, const char *path, struct str text, bool *ret_same)
{
    base_autobuf struct buf old = BUF_INIT(CLIENT_TEXT_MAX + 1);
    struct err err;
    int r = os_read_file(AT_FDCWD, path, &old, &err);
    *ret_same = r == 0 && str_eq(buf_str(&old), text);
    if (r == -ENOENT || *ret_same || cmd_given(x->c, x->a, "replace"))
        return CMD_OK;
    return r < 0 ? cmd_fail(CMD_FAILED, &err) : cmd_failf(CMD_FAILED, "'%s' is there and differs: --replace takes its place, without --write it is shown", path);
}

/* What a person wrote stays beside it under the name that editors use. */
static int keep_old(const char *path, struct str text, struct err *err)
{
    base_autobuf struct buf old = BUF_INIT(CLIENT_TEXT_MAX + 1), beside = BUF_INIT(8192);
    int r = os_read_file(AT_FDCWD, path, &old, err);
    buf_addf(&beside, "%s~", path);
    if (r == -ENOENT || (r == 0 && str_eq(buf_str(&old), text)))
        return 0;
    if (r < 0 || buf_status(&beside) < 0)
        return r < 0 ? r : err_nomem(err);
    struct stat st;
    /* with the rights of the original: it may hold a key */
    return stat(path, &st) < 0 ? err_sys(err, -errno, "cannot look at '%s'", path) : os_put_file(beside.ptr, old.ptr, old.len, st.st_mode & 0777, err);
}

static int put_file(const struct clients *x, const struct fleet_client *cl, struct str text)
{
    base_autobuf struct buf path = BUF_INIT(8192);
    const char *slash = strrchr(cl->file, '/');
    struct str folder = x->out ? str_of(x->out) : (struct str){cl->file, slash == cl->file ? 1 : (size_t)(slash - cl->file)};
    bool same = false;
    struct err err;
    int code = x->out ? CMD_OK : may_write(x, cl->file, text, &same);
    if (code != CMD_OK || same)
        return code;
    buf_add_str(&path, folder);
    if (buf_status(&path) < 0)
        return cmd_nomem();
    if (os_make_dirs(path.ptr, 0755, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    buf_add_c(&path, slash);
    if (buf_status(&path) < 0)
        return cmd_nomem();
    if ((!x->out && keep_old(path.ptr, text, &err) < 0) || os_put_file(path.ptr, text.ptr, text.len, 0644, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    return cmd_failf(CMD_OK, "wrote %s", path.ptr);
}

static int render_one(struct clients *x, const struct fleet_client *cl)
{
    base_autobuf struct buf text = BUF_INIT(CLIENT_TEXT_MAX), shown = BUF_INIT(CLIENT_TEXT_MAX + 8192);
    struct arena *arena = arena_new(RENDER_MEMORY);
    struct client_plan p;
    struct err err;
    int code = CMD_OK;
    if (!arena)
        return cmd_nomem();
    if (check_client_plan(x->s->plan, cl, arena, &p, &err) < 0 || client_render(cl->format, &p, &text, &err) < 0)
        code = cmd_fail(CMD_FAILED, &err);
    arena_free(arena);
    if (code != CMD_OK)
        return code;
    if (x->out || cmd_given(x->c, x->a, "write"))
        return put_file(x, cl, buf_str(&text));
    /* one alone comes as it is, so that it can be redirected */
    if (x->a->n_words != 2)
        buf_addf(&shown, "%s# ---- %s: %s ----\n", x->n++ ? "\n" : "", cl->name, cl->file);
    buf_add_str(&shown, buf_str(&text));
    return buf_status(&shown) < 0 ? cmd_nomem() : cmd_print(buf_str(&shown));
}

static int render_all(struct clients *x)
{
    const struct fleet *f = x->s->fleet;
    int code = f->n_clients ? CMD_OK : unknown(x, "");
    for (size_t i = 1; i < x->a->n_words && code == CMD_OK; i++)
        code = unknown(x, x->a->words[i]);
    if (code == CMD_OK)
        code = fit_session_plan(x->s);
    for (size_t i = 0; i < f->n_clients && code == CMD_OK; i++)
        if (is_wanted(x->a, &f->clients[i]))
            code = render_one(x, &f->clients[i]);
    return code;
}

int render_clients(const struct cmd *c, const struct cmd_args *a)
{
    int code = CMD_OK;
    struct fleet *f = cmd_fleet(c, a, &code);
    if (!f)
        return code;
    struct fit_session s;
    struct clients x = {.c = c, .a = a, .s = &s, .out = cmd_value(c, a, "out")};
    code = fit_session_open(&s, f);
    s.options.headers = cmd_value(c, a, "headers");
    if (code == CMD_OK)
        code = render_all(&x);
    fit_session_close(&s);
    fleet_free(f);
    return code;
}
