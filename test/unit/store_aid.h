/* SPDX-License-Identifier: MIT
 *
 * A store in a folder of its own below /tmp, for the tests of store.
 */
#pragma once

#include <store/store_int.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes the folder, which an engine's account may enter, and opens the store in top/state; run and config are there too until the test says otherwise. */
static void store_aid_open(char top[64], char state[96], struct os_dirs *dirs, struct store **ret)
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

static void store_aid_close(const char *top, struct store *s)
{
    store_free(s);
    int tmp = os_open_dir("/tmp", NULL);
    assert_int_equal(os_remove_tree(tmp, top + sizeof "/tmp/" - 1, NULL), 0);
    close(tmp);
}
