/* SPDX-License-Identifier: MIT
 *
 * A rig whose router has a folder for large bodies, for the tests of bodies and of their files: what is in it, and that nothing is left of them. Includes proxy_rig.h.
 */
#pragma once

#include "proxy_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <os/os.h>
#include <proxy/proxy_int.h>
#include <sys/stat.h>

static char spill_top[] = "/tmp/berth-spill-XXXXXX", spill_folder[64];

static int spill_open(void **state)
{
    rig_open(state);
    memcpy(spill_top + sizeof spill_top - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(spill_top));
    snprintf(spill_folder, sizeof spill_folder, "%s/" PROXY_BODIES, spill_top);
    assert_int_equal(mkdir(spill_folder, 0700), 0);
    proxy_spill_to(rig.proxy, os_open_dir(spill_folder, NULL));
    return 0;
}

static int spill_close(void **state)
{
    const int removed = rmdir(spill_folder) | rmdir(spill_top); /* first, since a test that failed leaves what the rest complains of */
    if (rig.proxy) {
        assert_int_equal(rig.proxy->bodies, 0);
        assert_int_equal(rig.proxy->spilled, 0);
    }
    rig_close(state);
    assert_int_equal(removed, 0); /* nothing was left in it */
    return 0;
}

/* Descriptors and mappings of files in the folder that this process has, named or not. */
static unsigned spill_files(void)
{
    unsigned n = 0;
    base_autobuf struct buf maps = BUF_INIT(16 << 20);
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char link[300] = "";
        ssize_t len = readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
        n += len > 0 && strncmp(link, spill_folder, strlen(spill_folder)) == 0 && link[strlen(spill_folder)] == '/';
    }
    closedir(d);
    os_autoclose int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    assert_int_equal(os_read_all(fd, &maps, NULL), 0);
    for (struct str rest = buf_str(&maps), line; rest.ptr;) {
        line = str_split(&rest, '\n');
        n += str_find(line, str_of(spill_folder)) >= 0;
    }
    return n;
}
