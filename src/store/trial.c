/* SPDX-License-Identifier: MIT
 *
 * Which form of confinement works here: found by running the runtime's program with --version in each, best first. That bubblewrap is installed says nothing: user namespaces may be
 * forbidden, or the mounts of a container in the way.
 */
#include "store_int.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define TRIAL_MS 120000 /* vllm imports for a minute on a cold disk */
#define OUTPUT_MAX 65536

/* What proves a start. */
struct trial {
    struct launch_words words;
    const char *args[2];
    char loader[STORE_PATH_MAX];
};

/* A kind without a program of its own is tried with what the host or the tree surely has. */
static int trial_words(const struct store_runtime *r, struct trial *t)
{
    char found[STORE_PATH_MAX];
    t->words = (struct launch_words){.args = t->args, .n_args = 2};
    t->args[1] = "--version";
    if (*r->program) {
        t->args[0] = "--version";
        t->words.n_args = 1;
        return 0;
    }
    if (!r->complete) {
        t->args[0] = "/usr/bin/env";
        return 0;
    }
    os_autoclose int fd = open(r->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 ? -errno : tree_loader(fd, "", found);
    if (code == 0)
        code = store_pathf(t->loader, NULL, "/%s", found);
    t->args[0] = t->loader;
    return code;
}

static int try_form(struct store *s, const struct store_runtime *r, enum store_confine form, const char *work, struct buf *out, struct err *err)
{
    char why[OS_STATUS_TEXT];
    struct trial t;
    struct store_launch l;
    int code = trial_words(r, &t);
    if (code < 0)
        return err_sys(err, code, "the tree '%s' has lost its loader", r->root);
    code = launch_make(s, r, form, &t.words, NULL, 0, work, false, &l, err);
    if (code < 0)
        return code;
    base_autobuf struct buf errout = BUF_INIT(OUTPUT_MAX);
    int status = 0;
    l.spawn.death_signal = SIGKILL;
    l.spawn.new_group = true;
    code = os_run(&l.spawn, TRIAL_MS, out, &errout, &status, err);
    store_launch_release(&l);
    if (code < 0)
        return code;
    if (status != 0) {
        base_autobuf struct buf shown = BUF_INIT(4096);
        struct str said = str_trim(buf_str(&errout));
        buf_add_printable(&shown, said.len ? said : str_trim(buf_str(out)), 300);
        buf_clear(out);
        return err_set(err, -EIO, "its program does not start: %s: %s", os_status_text(status, why), shown.ptr ? shown.ptr : "");
    }
    buf_add_str(out, buf_str(&errout)); /* llama-server prints its version there */
    return 0;
}

int trial_run(struct store *s, const struct store_runtime *r, enum store_confine *ret, struct buf *out, struct err *err)
{
    static const enum store_confine forms[] = {STORE_BWRAP, STORE_CHROOT, STORE_LOADER};
    char work[STORE_PATH_MAX];
    int code = os_make_dirs(s->dirs->run, s->privileged ? 0755 : 0700, err);
    if (code == 0)
        code = store_pathf(work, err, "%s/trial-XXXXXX", s->dirs->run);
    if (code < 0)
        return code;
    if (!mkdtemp(work))
        return err_sys(err, -errno, "cannot make '%s'", work);
    (void)chmod(work, 0755); /* the loader form stands in it as the engine's account; when it cannot, that form says so */
    code = -EIO;
    for (size_t i = 0; code < 0 && code != -ENOMEM && i < BASE_COUNT(forms); i++) {
        if (forms[i] == STORE_CHROOT && !s->privileged)
            continue;
        code = try_form(s, r, forms[i], work, out, err);
        if (code == 0)
            *ret = forms[i];
    }
    os_autoclose int rundir = os_open_dir(s->dirs->run, NULL);
    int left = rundir < 0 ? rundir : os_remove_tree(rundir, strrchr(work, '/') + 1, NULL);
    (void)left; /* empty folders, at worst */
    if (code < 0 && code != -ENOMEM)
        code = err ? (err->code = -EIO) : -EIO;
    return code;
}

int store_confine_probe(struct store *s, const struct store_runtime *r, enum store_confine *ret, struct err *err)
{
    base_autobuf struct buf out = BUF_INIT(OUTPUT_MAX);
    return trial_run(s, r, ret, &out, err);
}
