/* SPDX-License-Identifier: MIT
 *
 * What `lspci -xxx` is said to have written, read by libpci: whatever it says, the ways stay within what a way can be.
 */
#include <hw/hw_int.h>

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char root[] = "/tmp/berth-fuzz-pci-XXXXXX";

static void leave(void)
{
    (void)chdir("/");
    char path[64];
    snprintf(path, sizeof path, "%s/lspci", root);
    (void)unlink(path);
    (void)rmdir(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int dir = -1;
    if (dir < 0) {
        if (!mkdtemp(root))
            abort();
        (void)atexit(leave);
        dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    int fd = openat(dir, "lspci", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
    struct hw_reader r = {.root = dir};
    snprintf(r.path, sizeof r.path, "%s", root);
    struct hw_way w = {.n = 3, .hops = {{.pci = "0000:03:00.0"}, {.pci = "0000:02:00.0"}, {.pci = "0000:00:01.1"}}};
    bool ok = pcilib_read(&r, &w, 1);
    size_t at = 0;
    enum hw_atomics a = hw_way_atomics(&w, &at);
    assert(ok || a == HW_ATOMICS_UNKNOWN);
    assert(a != HW_ATOMICS_STOPPED || at < w.n);
    for (size_t i = 0; i < w.n; i++)
        assert(w.hops[i].target_gen <= 6 && (w.hops[i].config || w.hops[i].port == HW_PORT_UNKNOWN));
    return 0;
}
