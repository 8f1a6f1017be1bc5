/* SPDX-License-Identifier: MIT
 *
 * Which form of confinement works here: found by running the runtime's program with --version in each, best first. That bubblewrap is installed says nothing: user namespaces may be
 * forbidden, or the mounts of a container in the way.
 */
#include "store_int.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/file.h>
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
    code = os_status_ok(status, str_trim(buf_str(&errout)).len ? buf_str(&errout) : buf_str(out), err);
    if (code < 0) {
        buf_clear(out);
        return err_prefix(err, "its program does not start");
    }
    buf_add_str(out, buf_str(&errout)); /* llama-server prints its version there */
    /* An empty file is a script that does nothing, and well. */
    if (str_trim(buf_str(out)).len == 0)
        return err_set(err, -EIO, "its program says nothing when it is asked for its version: it is not whole, or another one");
    return 0;
}

/* A folder for a trial, locked as long as it is used: what is not locked was left by a berth that was killed. */
static int lock_folder(int rundir, const char *name)
{
    struct stat st;
    os_autoclose int fd = openat(rundir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return -errno;
    /* removed by another one between open and lock */
    return fstat(fd, &st) == 0 && st.st_nlink > 0 ? os_take_fd(&fd) : -ENOENT;
}

static void sweep(int rundir)
{
    int fd = openat(rundir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *e;
    while (d && (e = readdir(d))) {
        os_autoclose int lock = strncmp(e->d_name, "trial-", 6) == 0 ? lock_folder(rundir, e->d_name) : -1;
        if (lock >= 0)
            base_ignore(os_remove_tree(rundir, e->d_name, NULL)); /* empty folders, at worst */
    }
    if (d)
        closedir(d);
    else
        os_closep(&fd);
}

/* Makes and locks a folder of its own below run; its descriptor. */
static int make_work(const char *run, int rundir, char work[STORE_PATH_MAX], struct err *err)
{
    int fd = -ENOENT;
    while (fd == -ENOENT || fd == -EWOULDBLOCK) { /* another one took it for left behind before it was locked */
        int r = store_pathf(work, err, "%s/trial-XXXXXX", run);
        if (r < 0)
            return r;
        if (!mkdtemp(work))
            return err_sys(err, -errno, "cannot make '%s'", work);
        fd = lock_folder(rundir, strrchr(work, '/') + 1);
    }
    if (fd < 0)
        return err_sys(err, fd, "cannot lock '%s'", work);
    (void)fchmod(fd, 0755); /* the loader form stands in it as the engine's account; when it cannot, that form says so */
    return fd;
}

static int try_forms(struct store *s, const struct store_runtime *r, const char *work, enum store_confine *ret, struct buf *out, struct err *err)
{
    static const enum store_confine forms[] = {STORE_BWRAP, STORE_CHROOT, STORE_LOADER};
    int code = -EIO;
    for (size_t i = 0; code < 0 && code != -ENOMEM && code != -EINTR && i < BASE_COUNT(forms); i++) {
        if (forms[i] == STORE_CHROOT && !s->privileged)
            continue;
        code = try_form(s, r, forms[i], work, out, err);
        if (code == 0)
            *ret = forms[i];
    }
    if (code < 0 && code != -ENOMEM && code != -EINTR)
        code = err ? (err->code = -EIO) : -EIO;
    return code;
}

int trial_run(struct store *s, const struct store_runtime *r, enum store_confine *ret, struct buf *out, struct err *err)
{
    char work[STORE_PATH_MAX];
    int code = os_make_dirs(s->dirs->run, s->privileged ? 0755 : 0700, err);
    if (code < 0)
        return code;
    os_autoclose int rundir = os_open_dir(s->dirs->run, err);
    if (rundir < 0)
        return rundir;
    sweep(rundir);
    os_interrupt_begin();
    os_autoclose int lock = make_work(s->dirs->run, rundir, work, err);
    code = lock < 0 ? lock : try_forms(s, r, work, ret, out, err);
    if (lock >= 0)
        base_ignore(os_remove_tree(rundir, strrchr(work, '/') + 1, NULL)); /* empty folders, at worst */
    os_interrupt_end();
    return code;
}

int store_confine_probe(struct store *s, const struct store_runtime *r, enum store_confine *ret, struct err *err)
{
    base_autobuf struct buf out = BUF_INIT(OUTPUT_MAX);
    return trial_run(s, r, ret, &out, err);
}
