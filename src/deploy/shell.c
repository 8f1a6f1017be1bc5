/* SPDX-License-Identifier: MIT
 *
 * What errands to other machines stand on. Commands: an account's login shell may be any (sh, fish, csh) and may print what it likes before it does anything, so it is asked for one thing that all of them understand, to start sh with
 * one word in single quotes, and what counts comes after a line of ours. A folder for what is to go over: locked while it is used, so that those of errands that were killed are told apart and removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "deploy_int.h"

#define SCRATCH_DIR "/tmp" /* short: ssh's socket is in it, and a socket's path has 107 bytes */
#define SCRATCH "berth-ssh-"
#define YOUNG_S 60 /* made, and not locked yet */

/* ---- commands ------------------------------------------------------------------------------------------------- */

#define MARK "berth-begins"
void deploy_shell(const char *script, struct buf *out)
{
    buf_add_c(out, "exec sh -c 'echo " MARK "; ");
    for (const char *c = script; *c; c++)
        if (*c == '\'')
            buf_add_c(out, "'\\''");
        else
            buf_add_char(out, *c);
    buf_add_char(out, '\'');
}

bool deploy_is_mark(struct str line)
{
    return str_eq(str_trim(line), STR(MARK));
}

bool deploy_after_mark(struct str text, struct str *ret)
{
    const char *end = text.ptr + text.len;
    while (text.ptr)
        if (deploy_is_mark(str_split(&text, '\n'))) {
            *ret = text.ptr ? text : (struct str){end, 0};
            return true;
        }
    return false;
}

/* ---- the folder ------------------------------------------------------------------------------------------------ */

/* Of errands that were killed. Who holds the lock is at work. */
static void sweep(void)
{
    os_autoclose int dir = os_open_dir(SCRATCH_DIR, NULL);
    DIR *list = dir < 0 ? NULL : opendir(SCRATCH_DIR);
    const struct dirent *e;
    while (list && (e = readdir(list))) {
        struct stat st;
        if (!str_starts(str_of(e->d_name), STR(SCRATCH)))
            continue;
        os_autoclose int fd = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && time(NULL) - st.st_mtime > YOUNG_S && flock(fd, LOCK_EX | LOCK_NB) == 0)
            base_ignore(os_remove_tree(dir, e->d_name, NULL)); /* the next errand tries again */
    }
    if (list)
        closedir(list);
}

int deploy_scratch_make(char **ret, int *ret_fd, struct err *err)
{
    char path[] = SCRATCH_DIR "/" SCRATCH "XXXXXX";
    sweep();
    if (!mkdtemp(path))
        return err_sys(err, -errno, "cannot make a folder in '%s'", SCRATCH_DIR);
    os_autoclose int fd = os_open_dir(path, err);
    char *copy = str_dup(str_of(path));
    if (fd < 0 || !copy || flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int r = fd < 0 ? fd : !copy ? err_nomem(err) : err_sys(err, -errno, "cannot lock '%s'", path);
        free(copy);
        base_ignore(os_remove_path(path, NULL)); /* it is empty */
        return r;
    }
    *ret = copy;
    *ret_fd = os_take_fd(&fd);
    return 0;
}
