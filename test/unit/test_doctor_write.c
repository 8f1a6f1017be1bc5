/* SPDX-License-Identifier: MIT
 *
 * Cards into a fleet file: what changes, what stays byte for byte, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <doctor/doctor.h>
#include <errno.h>
#include <string.h>

#define MIB (1ull << 20)

static const char *const engines[] = {"llama.cpp", "vllm", "generic"};
static const struct fleet_options known = {.engines = engines, .n_engines = BASE_COUNT(engines)};

#define REST "runtimes:\n  llama: {engine: llama.cpp, source: system}\nmodels:\n  m: {source: file:models, weights: m.gguf}\nservices:\n  s: {host: here, runtime: llama, model: m, port: 7770}   # the only one\n"

static struct hw two_cards(void)
{
    struct hw h = {.n_devices = 2, .host = {.total_bytes = 64ull << 30}};
    for (size_t i = 0; i < 2; i++) {
        h.devices[i] = (struct hw_device){.vendor = HW_AMD, .vendor_id = 0x1002, .device_id = 0x7551, .driver = "amdgpu", .memory_known = true, .total_bytes = 32624 * MIB, .kfd_order = i == 0 ? 2 : 1};
        snprintf(h.devices[i].pci, sizeof h.devices[i].pci, i == 0 ? "0000:03:00.0" : "0000:07:00.0");
    }
    h.devices[0].link = (struct hw_link){.gen = 5, .width = 16, .bytes_s = 63015384608};
    h.devices[1].link = (struct hw_link){.gen = 4, .width = 4, .bytes_s = 7876923076};
    return h;
}

static void becomes(const char *before, const char *after, size_t want)
{
    struct buf out = BUF_INIT(65536);
    struct hw h = two_cards();
    struct err err = {.text = ""};
    size_t n = 99;
    if (doctor_write(str_of(before), "fleet.yaml", &known, "here", &h, &out, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(out.ptr, after);
    assert_int_equal(n, want);
    /* once more: nothing is left to write */
    struct buf again = BUF_INIT(65536);
    assert_int_equal(doctor_write(str_of(after), "fleet.yaml", &known, "here", &h, &again, &n, &err), 0);
    assert_string_equal(again.ptr, after);
    assert_int_equal(n, 0);
    buf_release(&again);
    buf_release(&out);
}

static void refused(const char *before, const char *why)
{
    struct buf out = BUF_INIT(65536);
    struct hw h = two_cards();
    struct err err = {.text = ""};
    size_t n = 99;
    int r = doctor_write(str_of(before), "fleet.yaml", &known, "here", &h, &out, &n, &err);
    if (r != -EINVAL || !strstr(err.text, why))
        fail_msg("%d: %s (%s)", r, err.text, why);
    assert_int_equal(n, 99);
    buf_release(&out);
}

#define VULKAN0 "- {name: Vulkan0, memory: 32624MiB, pci: \"0000:03:00.0\", link: 63.0GB/s}\n"
#define VULKAN1 "- {name: Vulkan1, memory: 32624MiB, pci: \"0000:07:00.0\", link: 7.9GB/s}\n"

static void a_file_without_hosts(void **state)
{
    (void)state;
    becomes("# mine\nversion: 1\nname: home   # sweet\n\n# engines\n# of mine\n" REST, "# mine\nversion: 1\nname: home   # sweet\n\nhosts:\n  here:\n    devices:\n      " VULKAN0 "      " VULKAN1 "# engines\n# of mine\n" REST, 1);
}

static void a_host_without_devices(void **state)
{
    (void)state;
    becomes("version: 1\nname: home\nhosts:\n  here:     # this one\n      floor: 1GiB    # enough\n" REST,
            "version: 1\nname: home\nhosts:\n  here:     # this one\n      devices:\n        " VULKAN0 "        " VULKAN1 "      floor: 1GiB    # enough\n" REST, 1);
}

static void some_of_them(void **state)
{
    (void)state;
    /* the engine's names are those that are declared; what was rounded by a person stays, and so does what berth does not know */
    becomes("version: 1\nname: home\nhosts:\n  here:\n    devices:   # two\n    # the first\n    - {name: ROCm0, memory: 31.86GiB, pci: '0000:07:00.0', bandwidth: 640GB/s}   # slow\n    # end\n    floor: 1GiB\n" REST,
            "version: 1\nname: home\nhosts:\n  here:\n    devices:   # two\n    # the first\n    - {name: ROCm0, memory: 31.86GiB, pci: '0000:07:00.0', bandwidth: 640GB/s}   # slow\n    - {name: ROCm1, memory: 32624MiB, pci: \"0000:03:00.0\", link: 63.0GB/s}\n"
            "    # end\n    floor: 1GiB\n" REST,
            1);
}

static void values_that_changed(void **state)
{
    (void)state;
    becomes("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - name: ROCm1\n        memory: 16GiB       # too little\n        pci: \"0000:03:00.0\"\n        link: 31.5GB/s\n      -   {pci: '0000:07:00.0', link: \"7.8GB/s\", name: ROCm0, shared: true, memory: '47.5GiB'}\n" REST,
            "version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - name: ROCm1\n        memory: 32624MiB       # too little\n        pci: \"0000:03:00.0\"\n        link: 63.0GB/s\n      -   {pci: '0000:07:00.0', link: \"7.8GB/s\", name: ROCm0, shared: false, memory: 32624MiB}\n" REST,
            4);
    /* moved: the only card of its size that is not declared */
    becomes("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"}\n      - {name: ROCm0, memory: 31.86GiB, pci: \"0000:09:00.0\"}\n" REST,
            "version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"}\n      - {name: ROCm0, memory: 31.86GiB, pci: \"0000:07:00.0\"}\n" REST, 1);
}

static void one_that_is_gone_stays(void **state)
{
    (void)state;
    becomes("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm7, memory: 8GiB, pci: \"0000:09:00.0\"} # sold\n" REST,
            "version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm7, memory: 8GiB, pci: \"0000:09:00.0\"} # sold\n      - {name: ROCm0, memory: 32624MiB, pci: \"0000:07:00.0\", link: 7.9GB/s}\n"
            "      - {name: ROCm1, memory: 32624MiB, pci: \"0000:03:00.0\", link: 63.0GB/s}\n" REST,
            1);
    /* but its name is taken */
    refused("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm0, memory: 8GiB, pci: \"0000:09:00.0\"}\n" REST, "two devices 'ROCm0'");
}

static void lines_of_another_kind(void **state)
{
    (void)state;
    becomes("version: 1\r\nname: home\r\nhosts:\r\n  here:\r\n    floor: 1GiB\r\nruntimes: {llama: {engine: llama.cpp, source: system}}\r\nmodels: {m: {source: \"file:models\", weights: m.gguf}}\r\nservices: {s: {runtime: llama, model: m, port: 7770}}",
            "version: 1\r\nname: home\r\nhosts:\r\n  here:\r\n    devices:\r\n      - {name: Vulkan0, memory: 32624MiB, pci: \"0000:03:00.0\", link: 63.0GB/s}\r\n      - {name: Vulkan1, memory: 32624MiB, pci: \"0000:07:00.0\", link: 7.9GB/s}\r\n    floor: 1GiB\r\nruntimes: {llama: "
            "{engine: llama.cpp, source: system}}\r\nmodels: {m: {source: \"file:models\", weights: m.gguf}}\r\nservices: {s: {runtime: llama, model: m, port: 7770}}",
            1);
    /* letters of several bytes before a value on its line; no newline at the end */
    becomes("version: 1\nname: home\n" REST "hosts:\n  here:\n    devices:\n      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"} # Gr\xc3\xb6\xc3\x9f" "e",
            "version: 1\nname: home\n" REST "hosts:\n  here:\n    devices:\n      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"} # Gr\xc3\xb6\xc3\x9f" "e\n      - {name: ROCm0, memory: 32624MiB, pci: \"0000:07:00.0\", link: 7.9GB/s}\n", 1);
}

static void ambiguous_places(void **state)
{
    (void)state;
    refused("version: 1\nname: home\nhosts:\n  here: {floor: 1GiB}\n" REST, "fleet.yaml:4: the host is written in one line");
    refused("version: 1\nname: home\nhosts: {here: {floor: 1GiB}}\n" REST, "fleet.yaml:3: the host is written in one line");
    refused("version: 1\nname: home\nhosts:\n  here:\n    devices: [{name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"}]\n" REST, "fleet.yaml:5: 'devices' is a list in brackets");
    refused("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm1, memory: 31.86GiB,\n         pci: \"0000:03:00.0\"\n        }\n" REST, "fleet.yaml:6: the last device's braces end on a line of their own");
    refused("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm0, memory: 31.86GiB, pci: \"0000:09:00.0\"}\n" REST, "fleet.yaml:6: this device is not at its address, and several cards could be it");
    refused("version: 1\nname: home\nhosts:\n  here:\n    devices:\n      - {name: ROCm1, memory: \"16\\u0047iB\", pci: \"0000:03:00.0\"}\n" REST, "fleet.yaml:6: a value is written in a form that is not touched");
    refused("version: 1\nname: home\nhosts:\n  big: {ssh: op@big}\n" REST, "here"); /* no fleet file: its service names a host that is not there */
    refused("nonsense", "fleet.yaml:1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_hosts), cmocka_unit_test(a_host_without_devices), cmocka_unit_test(some_of_them), cmocka_unit_test(values_that_changed), cmocka_unit_test(one_that_is_gone_stays),
        cmocka_unit_test(lines_of_another_kind), cmocka_unit_test(ambiguous_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
