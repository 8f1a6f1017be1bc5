/* SPDX-License-Identifier: MIT
 *
 * The record of processes that a killed berth left. What it says is only read here, nothing is signalled.
 */
#include "../../src/run/run_pids.c"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    bool this_boot = false;
    if (!record_valid(text, "3d6a5f0e-1b7c-4b0e-9c53-0f6a2d9e8b11", &this_boot))
        return 0;
    (void)str_split(&text, '\n');
    while (text.len > 0) {
        pid_t pid = 0;
        uint64_t start;
        struct str service;
        assert(parse_line(str_split(&text, '\n'), &pid, &start, &service));
        assert(pid > 1 && service.len > 0);
    }
    return 0;
}
