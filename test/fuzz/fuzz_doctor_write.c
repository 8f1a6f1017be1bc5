/* SPDX-License-Identifier: MIT
 *
 * Cards into a fleet file: what comes out is the text without what went and with what came, and a second writing changes nothing.
 */
#include <assert.h>
#include <doctor/doctor.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const engines[] = {"llama.cpp", "vllm", "generic"};
static const struct fleet_options known = {.engines = engines, .n_engines = BASE_COUNT(engines)};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hw h = {.n_devices = 2};
    for (size_t i = 0; i < 2; i++) {
        h.devices[i] = (struct hw_device){.vendor = HW_AMD, .vendor_id = 0x1002, .device_id = 0x7551, .driver = "amdgpu", .memory_known = true, .total_bytes = (uint64_t)(32624 - i) << 20, .kfd_order = i == 0 ? 2 : 1, .link = {.gen = 4, .width = 4, .bytes_s = 7876923076}};
        snprintf(h.devices[i].pci, sizeof h.devices[i].pci, i == 0 ? "0000:03:00.0" : "0000:07:00.0");
    }
    struct str text = {(const char *)data, size};
    base_autobuf struct buf out = BUF_INIT((size_t)8 << 20), again = BUF_INIT((size_t)8 << 20);
    size_t n = 0;
    if (doctor_write(text, "fleet.yaml", &known, "here", &h, &out, &n, NULL) < 0)
        return 0;
    assert(n > 0 || str_eq(buf_str(&out), text));
    size_t more = 99;
    assert(doctor_write(buf_str(&out), "fleet.yaml", &known, "here", &h, &again, &more, NULL) == 0);
    assert(more == 0 && str_eq(buf_str(&again), buf_str(&out)));
    return 0;
}
