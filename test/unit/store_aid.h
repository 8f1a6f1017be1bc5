/* SPDX-License-Identifier: MIT
 *
 * A store in a folder of its own below /tmp, for the tests of store.
 */
#pragma once

#include <fcntl.h>
#include <store/store_int.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes the folder, which an engine's account may enter, and opens the store in top/state; run and config are there too until the test says otherwise. */
static inline void store_aid_open(char top[64], char state[96], struct os_dirs *dirs, struct store **ret)
{
    struct err err;
    (void)snprintf(top, 64, "/tmp/berth-store-XXXXXX");
    assert_non_null(mkdtemp(top));
    assert_int_equal(chmod(top, 0755), 0);
    (void)snprintf(state, 96, "%s/state", top);
    *dirs = (struct os_dirs){.state = state, .run = state, .config = state};
    if (store_open(dirs, ret, &err) < 0)
        fail_msg("%s", err.text);
}

static inline void store_aid_close(const char *top, struct store *s)
{
    store_free(s);
    assert_int_equal(os_remove_path(top, NULL), 0);
}

/* A file in a folder. */
static inline void store_aid_put(const char *folder, const char *name, const char *text, mode_t mode)
{
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/%s", folder, name), 0);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static inline void store_aid_dir(const char *folder, const char *name)
{
    char path[STORE_PATH_MAX];
    assert_int_equal(store_pathf(path, NULL, "%s/%s", folder, name), 0);
    assert_int_equal(os_make_dirs(path, 0755, NULL), 0);
}
