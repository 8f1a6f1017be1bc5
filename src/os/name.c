/* SPDX-License-Identifier: MIT
 *
 * Names: which text from outside may become a path component, and how a path is shown in an error. This is the only door:
 * what passes here cannot climb, be absolute, or hide control bytes.
 */
#include "os_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

bool os_name_valid(struct str name)
{
    if (name.len == 0 || name.len > NAME_MAX || str_eq(name, STR(".")) || str_eq(name, STR("..")))
        return false;
    for (size_t i = 0; i < name.len; i++) {
        unsigned char c = (unsigned char)name.ptr[i];
        if (c < 0x20 || c == 0x7F || c == '/')
            return false;
    }
    return true;
}

bool os_relpath_valid(struct str path)
{
    if (path.len == 0 || path.len >= PATH_MAX)
        return false;
    while (path.ptr)
        if (!os_name_valid(str_split(&path, '/')))
            return false;
    return true;
}

const char *os_path_text(int dirfd, const char *path, char out[OS_PATH_TEXT])
{
    int saved = errno;
    base_autobuf struct buf text = BUF_INIT((size_t)8 * PATH_MAX + 8);
    if (path[0] != '/' && dirfd != AT_FDCWD) {
        char link[40], dir[PATH_MAX];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd);
        ssize_t n = readlink(link, dir, sizeof(dir));
        if (n > 0)
            buf_add_printable(&text, (struct str){dir, (size_t)n}, SIZE_MAX);
        if (n > 0 && path[0] != '\0' && dir[n - 1] != '/')
            buf_add_c(&text, "/");
    }
    buf_add_printable(&text, str_of(path), (size_t)4 * PATH_MAX);
    const char *from = buf_status(&text) == 0 && text.ptr ? text.ptr : path;
    size_t len = strlen(from);
    const char *cut = "";
    if (len >= OS_PATH_TEXT) { /* the end tells more than the start */
        from += len - (OS_PATH_TEXT - 1 - 3);
        while (((unsigned char)*from & 0xC0) == 0x80)
            from++;
        cut = "...";
    }
    snprintf(out, OS_PATH_TEXT, "%s%s", cut, from);
    errno = saved;
    return out;
}
