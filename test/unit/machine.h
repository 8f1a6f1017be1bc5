/* SPDX-License-Identifier: MIT
 *
 * A recorded machine of test/hw in a folder of its own, for tests that read machines. cmocka.h comes first.
 */
#pragma once

#include <fcntl.h>
#include <os/os.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/berth-hw-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    os_autoclose int tmp = os_open_dir("/tmp", NULL);
    return os_remove_tree(tmp, strrchr(folder, '/') + 1, NULL);
}

static inline void unpack(const char *machine)
{
    char tree[96];
    snprintf(tree, sizeof tree, "test/hw/%s.tree", machine);
    const char *argv[] = {"test/hw/unpack", tree, folder, NULL}, *envp[] = {"PATH=/usr/bin:/bin", NULL};
    int status = -1;
    struct buf said = BUF_INIT(4096);
    assert_int_equal(os_run(&(struct os_spawn){.argv = argv, .envp = envp}, 20000, NULL, &said, &status, NULL), 0);
    if (status != 0)
        fail_msg("%s", said.ptr ? said.ptr : "unpack failed");
    buf_release(&said);
}

static inline void put(const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", folder, path);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}
