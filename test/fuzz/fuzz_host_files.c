/* SPDX-License-Identifier: MIT
 *
 * Small texts of a machine, by the first byte: mounts, limits, the kernel's command line, ranges of ids, what a test of collectives printed.
 */
#include <assert.h>
#include <doctor/doctor_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hw h = {.n_devices = 2, .devices = {{.pci = "0000:03:00.0", .vendor = HW_AMD, .driver = "amdgpu"}, {.pci = "0000:07:00.0", .vendor = HW_AMD, .driver = "amdgpu"}}};
    if (size == 0)
        return 0;
    struct str text = {(const char *)data + 1, size - 1}, v = {NULL, 0};
    uint64_t n = 0;
    double rate = -1;
    switch (data[0] % 5) {
    case 0:
        assert(host_cgroups(text) <= 2);
        break;
    case 1:
        base_ignore(host_limit(text, "Max locked memory", &n)); /* any number may come out */
        break;
    case 2:
        if (host_word(text, "iommu", &v))
            assert(v.ptr >= text.ptr && v.ptr + v.len <= text.ptr + text.len);
        break;
    case 3:
        assert(account_range(text, "op", 1000) <= UINT32_MAX);
        break;
    default:
        if (doctor_collective_read(text, &h, NULL, &rate, NULL) == 0)
            assert(rate > 0 && rate < 1e18);
    }
    return 0;
}
