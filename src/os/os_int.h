/* SPDX-License-Identifier: MIT
 *
 * Shared inside os only: the text of a path in errors, parts of a started child, and the width of text on a terminal.
 */
#pragma once

#include <os/os.h>

/* A path in an error: cut when longer, so that the reason behind it still fits into the message. */
#define OS_PATH_TEXT 512

/* dirfd and path as people know it: "/var/lib/berth/store/x", control bytes escaped. path may be "" for dirfd itself. Keeps errno. Returns out. */
const char *os_path_text(int dirfd, const char *path, char out[OS_PATH_TEXT]);

/* For the entry of an account: names, folders and shells of all systems fit. */
#define OS_ACCOUNT_ROOM 16384

/* Goes on as the first process of a namespace until child has ended, and ends all of it; *told, in shared memory, becomes how child did. All signals must be blocked. */
_Noreturn void os_be_init(pid_t child, int *told);
#define OS_INIT_SILENT (-1) /* of *told before: no status is negative */

/* Undoes what os_begin did to the limit of descriptors; system calls only. */
void os_fds_limit_back(void);

/* The longest front of s that takes at most max columns. */
struct str os_text_cut(struct str s, size_t max);
