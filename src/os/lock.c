/* SPDX-License-Identifier: MIT
 *
 * Locks between processes: flock on a file that stays. It is never removed, because whoever opened it just before would
 * hold a lock on a file that nobody else can see.
 */
#include "os_int.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

int os_lock(const char *path, bool exclusive, bool wait, struct err *err)
{
    char text[OS_PATH_TEXT];
    os_autoclose int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    if (fd < 0)
        return err_sys(err, -errno, "cannot open lock '%s'", os_path_text(AT_FDCWD, path, text));
    int how = (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB);
    int r;
    do {
        r = flock(fd, how);
    } while (r < 0 && errno == EINTR);
    if (r < 0 && errno == EWOULDBLOCK)
        return err_set(err, -EWOULDBLOCK, "'%s' is locked by another process", os_path_text(AT_FDCWD, path, text));
    if (r < 0)
        return err_sys(err, -errno, "cannot lock '%s'", os_path_text(AT_FDCWD, path, text));
    return os_take_fd(&fd);
}
