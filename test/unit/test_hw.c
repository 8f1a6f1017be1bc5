/* SPDX-License-Identifier: MIT
 *
 * Machines of test/hw, each unpacked and read; NVIDIA's library played by the test; files that say nonsense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "failing_malloc.h"
#include "machine.h"

#include <fcntl.h>
#include <hw/hw_int.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define R9700 (32624 * MIB)

static struct hw_reader *opened(void)
{
    struct hw_reader *r = NULL;
    assert_int_equal(hw_open(folder, &r, NULL), 0);
    assert_false(r->has_nvml); /* a recorded machine is not asked */
    return r;
}

static struct hw_reader *machine(const char *name, struct hw *ret)
{
    unpack(name);
    struct hw_reader *r = opened();
    struct err err;
    int code = hw_read(r, ret, &err);
    if (code < 0)
        fail_msg("%s", err.text);
    return r;
}

/* ---- machines ----------------------------------------------------------------------------------------------------------------- */

static void two_cards(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("two-r9700", &h);
    assert_int_equal(h.n_devices, 2); /* no sound, no board controller */
    assert_int_equal(h.n_more, 0);
    const struct hw_device *a = &h.devices[0], *b = &h.devices[1];
    assert_string_equal(a->pci, "0000:03:00.0");
    assert_string_equal(a->name, "Radeon AI PRO R9700");
    assert_string_equal(a->driver, "amdgpu");
    assert_string_equal(a->driver_version, "6.16.3");
    assert_int_equal(a->vendor, HW_AMD);
    assert_int_equal(a->device_id, 0x7551);
    assert_false(a->shared);
    assert_true(a->memory_known);
    assert_int_equal(a->total_bytes, R9700);
    assert_int_equal(a->free_bytes, R9700 - 2469396480);
    assert_int_equal(b->free_bytes, R9700);
    /* asleep at 2.5 GT/s, but the way is as wide and fast as it can be */
    assert_int_equal(a->link.gen, 5);
    assert_int_equal(a->link.width, 16);
    assert_int_equal(a->link.bytes_s, 63015384608);
    /* its own link reads sixteen lanes of the fifth generation; the slot has four of the fourth */
    assert_int_equal(b->link.max_gen, 5);
    assert_int_equal(b->link.max_width, 16);
    assert_int_equal(b->link.gen, 4);
    assert_int_equal(b->link.width, 4);
    assert_int_equal(b->link.bytes_s, 7876923076);

    assert_int_equal(h.host.total_bytes, 257949696ull * 1024);
    assert_int_equal(h.host.available_bytes, 251658240ull * 1024);
    assert_int_equal(h.host.threads, 32);
    assert_int_equal(h.host.cores, 16);
    assert_true(h.host.avx2 && h.host.avx512 && h.host.fma && h.host.f16c);
    assert_string_equal(h.host.cpu, "AMD EPYC 4564P 16-Core Processor");

    /* ROCm's topology has the second card first */
    char name[HW_ENGINE_NAME];
    bool sure = false;
    assert_true(hw_engine_name(&h, 0, HW_ROCM, name, &sure));
    assert_string_equal(name, "ROCm1");
    assert_true(sure);
    assert_int_equal(hw_find_engine(&h, "ROCm0", &sure), 1);
    assert_true(sure);
    assert_int_equal(hw_find_engine(&h, "Vulkan0", &sure), 0);
    assert_true(sure); /* equal cards: whichever it is */
    assert_int_equal(hw_find_engine(&h, "ROCm2", &sure), -1);
    assert_int_equal(hw_find_engine(&h, "CUDA0", &sure), -1);
    assert_int_equal(hw_find_engine(&h, "ROCm", &sure), -1);
    assert_int_equal(hw_find_pci(&h, "07:00.0"), 1);
    assert_int_equal(hw_find_pci(&h, "0000:07:00.0"), 1);
    assert_int_equal(hw_find_pci(&h, "0001:07:00.0"), -1);
    assert_int_equal(hw_find_pci(&h, ""), -1);

    char id[HW_IDENTITY];
    assert_string_equal(hw_identity(b, id), "0000:07:00.0 1002:7551 gen4x4 amdgpu-6.16.3 31.86 GiB");
    assert_string_equal(hw_host_identity(&h.host, id), "cpu avx2 avx512 fma f16c 32 threads");
    hw_close(r);
}

static void readings_change(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("two-r9700", &h);
    put("sys/devices/pci0000:00/0000:00:02.1/0000:05:00.0/0000:06:00.0/0000:07:00.0/mem_info_vram_used", "1048576\n");
    put("proc/meminfo", "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n");
    assert_int_equal(hw_update(r, &h, NULL), 0);
    assert_int_equal(h.devices[1].free_bytes, R9700 - MIB);
    assert_int_equal(h.devices[1].vram_used_bytes, MIB);
    assert_int_equal(h.host.available_bytes, MIB);
    assert_int_equal(h.host.swap_total_bytes, 0);
    assert_string_equal(h.devices[1].name, "Radeon AI PRO R9700");

    put("sys/devices/pci0000:00/0000:00:02.1/0000:05:00.0/0000:06:00.0/0000:07:00.0/mem_info_vram_used", "soon\n");
    assert_int_equal(hw_update(r, &h, NULL), 0);
    assert_false(h.devices[1].memory_known);
    put("proc/meminfo", "\n");
    struct err err;
    assert_int_equal(hw_update(r, &h, &err), -EBADMSG);
    assert_string_equal(err.text, "/proc/meminfo tells no MemTotal");
    hw_close(r);
}

static void what_a_process_holds(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("two-r9700", &h);
    uint64_t bytes[HW_DEVICES_MAX];
    bool known[HW_DEVICES_MAX];
    hw_process(r, &h, 4711, bytes, known);
    assert_true(known[0] && known[1] && !known[2]);
    assert_int_equal(bytes[0], 20401094656);
    assert_int_equal(bytes[1], 19327352832);
    hw_process(r, &h, 4712, bytes, known); /* Vulkan: one client seen through two descriptors, and another */
    assert_true(known[0] && !known[1]);
    assert_int_equal(bytes[0], 5 * MIB);
    hw_process(r, &h, 1, bytes, known);
    assert_false(known[0]);
    assert_int_equal(bytes[0], 0);
    hw_close(r);
}

static void a_shared_pool(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("strix-halo", &h);
    assert_int_equal(h.n_devices, 1);
    const struct hw_device *d = &h.devices[0];
    assert_true(d->shared);
    assert_int_equal(d->total_bytes, 512 * MIB + (65687040ull << 10));
    assert_int_equal(d->free_bytes, (512 - 180) * MIB + (65687040ull << 10) - 300 * MIB);
    char id[HW_IDENTITY];
    assert_non_null(strstr(hw_identity(d, id), " shared"));
    uint64_t bytes[HW_DEVICES_MAX];
    bool known[HW_DEVICES_MAX];
    hw_process(r, &h, 900, bytes, known);
    assert_true(known[0]);
    assert_int_equal(bytes[0], MIB + (8388608ull << 10)); /* the pool is both */

    /* the host has less than the driver may map */
    put("proc/meminfo", "MemTotal: 131374080 kB\nMemAvailable: 1024 kB\n");
    assert_int_equal(hw_update(r, &h, NULL), 0);
    assert_int_equal(d->free_bytes, (512 - 180) * MIB + MIB);
    hw_close(r);
}

static void a_card_without_its_library(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("one-3090", &h);
    assert_int_equal(h.n_devices, 1);
    const struct hw_device *d = &h.devices[0];
    assert_string_equal(d->name, "GeForce RTX 3090");
    assert_string_equal(d->driver_version, "580.95.05");
    assert_false(d->memory_known);
    assert_int_equal(d->total_bytes, 0);
    assert_int_equal(d->link.gen, 3); /* the card could do the fourth generation */
    assert_int_equal(d->link.width, 8);
    assert_int_equal(d->link.bytes_s, 7876923080);
    assert_false(h.host.avx512);
    assert_int_equal(h.host.cores, 8);
    char name[HW_ENGINE_NAME];
    bool sure = false;
    assert_true(hw_engine_name(&h, 0, HW_CUDA, name, &sure));
    assert_string_equal(name, "CUDA0");
    assert_true(sure);
    assert_false(hw_engine_name(&h, 0, HW_ROCM, name, &sure));
    assert_false(hw_engine_name(&h, 1, HW_CUDA, name, &sure));
    hw_close(r);
}

static void a_mixed_machine(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("mixed", &h);
    bool sure = true;
    char name[HW_ENGINE_NAME];
    assert_int_equal(h.n_devices, 5);
    assert_false(h.devices[0].shared);
    assert_int_equal(h.devices[0].link.gen, 5); /* "32 GT/s", as older kernels write it */
    /* fastest first, says CUDA: no telling which that is */
    assert_int_equal(hw_find_engine(&h, "CUDA0", &sure), 1);
    assert_false(sure);
    assert_string_equal(h.devices[2].driver, "vfio-pci");
    assert_int_equal(h.devices[3].link.width, 0); /* 63 lanes do not exist */
    assert_int_equal(h.devices[3].link.bytes_s, 0);
    assert_int_equal(h.devices[3].vendor, HW_INTEL);
    assert_false(h.devices[3].memory_known);
    /* no sensors, no memory maker: the size of the carve-out tells */
    assert_true(h.devices[4].shared);
    assert_false(hw_engine_name(&h, 4, HW_ROCM, name, &sure));
    assert_int_equal(hw_find_engine(&h, "ROCm0", &sure), 0);
    assert_true(sure);
    assert_int_equal(hw_find_engine(&h, "Vulkan4", &sure), 4);
    assert_false(sure);
    hw_close(r);
}

static void a_bare_machine(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("bare", &h);
    assert_int_equal(h.n_devices, 0);
    assert_int_equal(h.host.threads, 2);
    hw_close(r);

    struct err err;
    assert_int_equal(hw_open("/nowhere/at/all", &r, &err), -ENOENT);
    assert_string_equal(err.text, "cannot open '/nowhere/at/all': No such file or directory");
}

static void no_memory_figures(void **state)
{
    (void)state;
    struct hw h;
    struct err err;
    struct hw_reader *r = opened(); /* an empty root */
    assert_int_equal(hw_read(r, &h, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/proc/meminfo"));
    hw_close(r);
}

static void this_machine(void **state)
{
    (void)state;
    struct hw_reader *r = NULL;
    struct hw h;
    assert_int_equal(hw_open(NULL, &r, NULL), 0);
    assert_int_equal(hw_read(r, &h, NULL), 0);
    assert_true(h.host.total_bytes > 64 * MIB && h.host.available_bytes <= h.host.total_bytes);
    assert_true(h.host.threads >= 1 && h.host.cores >= 1 && h.host.cores <= h.host.threads);
    assert_int_equal(hw_update(r, &h, NULL), 0);
    hw_close(r);
}

/* ---- nonsense --------------------------------------------------------------------------------------------------------------------- */

#define CARD "sys/devices/pci0000:00/0000:00:02.1/0000:05:00.0/0000:06:00.0/0000:07:00.0/"
static void files_that_say_nonsense(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"", "\n", "-1\n", "99999999999999999999999\n", "0x\n", "0xg\n", "nan", "1e9\n", "\xff\xfe\x00", "18446744073709551615\n"};
    static const char *const files[] = {"mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_used", "max_link_speed", "current_link_width", "class", "device", "mem_info_vram_vendor"};
    unpack("two-r9700");
    for (size_t f = 0; f < BASE_COUNT(files); f++)
        for (size_t i = 0; i < BASE_COUNT(nonsense); i++) {
            struct hw h;
            char path[HW_PATH_MAX];
            snprintf(path, sizeof path, CARD "%s", files[f]);
            put(path, nonsense[i]);
            struct hw_reader *r = opened();
            assert_int_equal(hw_read(r, &h, NULL), 0);
            assert_true(h.n_devices >= 1 && h.n_devices <= 2);
            for (size_t d = 0; d < h.n_devices; d++)
                assert_true(h.devices[d].free_bytes <= h.devices[d].total_bytes && h.devices[d].total_bytes <= INT64_MAX);
            hw_close(r);
        }
    /* used over total: nothing is free */
    put(CARD "class", "0x030000");
    put(CARD "device", "0x7551");
    put(CARD "mem_info_vram_vendor", "samsung");
    put(CARD "mem_info_vram_total", "1000");
    put(CARD "mem_info_vram_used", "2000");
    put(CARD "mem_info_gtt_used", "0");
    struct hw h;
    struct hw_reader *r = opened();
    assert_int_equal(hw_read(r, &h, NULL), 0);
    assert_int_equal(h.n_devices, 2);
    assert_int_equal(h.devices[1].free_bytes, 0);
    hw_close(r);
}

static void more_cards_than_fit(void **state)
{
    (void)state;
    char path[HW_PATH_MAX];
    static const char *const dirs[] = {"proc", "sys", "sys/bus", "sys/bus/pci", "sys/bus/pci/devices"};
    for (size_t i = 0; i < BASE_COUNT(dirs); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, dirs[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    put("proc/meminfo", "MemTotal: 2048 kB\n");
    for (unsigned i = 0; i < HW_DEVICES_MAX + 3; i++) {
        snprintf(path, sizeof path, "%s/sys/bus/pci/devices/0000:%02x:00.0", folder, i);
        assert_int_equal(mkdir(path, 0755), 0);
        static const char *const files[][2] = {{"class", "0x030200"}, {"vendor", "0x10de"}, {"device", "0x2204"}};
        for (size_t f = 0; f < BASE_COUNT(files); f++) {
            snprintf(path, sizeof path, "sys/bus/pci/devices/0000:%02x:00.0/%s", i, files[f][0]);
            put(path, files[f][1]);
        }
    }
    struct hw h;
    struct hw_reader *r = opened();
    bool sure = true;
    char name[HW_ENGINE_NAME];
    assert_int_equal(hw_read(r, &h, NULL), 0);
    assert_int_equal(h.n_devices, HW_DEVICES_MAX);
    assert_int_equal(h.n_more, 3);
    assert_string_equal(h.devices[3].pci, "0000:03:00.0");
    assert_string_equal(h.devices[3].name, "10de:2204"); /* no list of names here */
    assert_true(hw_engine_name(&h, 3, HW_CUDA, name, &sure));
    assert_false(sure);
    hw_close(r);
}

static void links(void **state)
{
    (void)state;
    /* field measurements: Gen4 x16 31.5 GB/s, x1 1.97 GB/s */
    assert_int_equal(hw_link_bytes_s(4, 16) / 10000000, 3150);
    assert_int_equal(hw_link_bytes_s(4, 1) / 10000000, 196);
    assert_int_equal(hw_link_bytes_s(1, 1), 250000000);
    assert_int_equal(hw_link_bytes_s(7, 16), 0);
    assert_int_equal(hw_link_bytes_s(4, 3), 0);
    assert_int_equal(hw_link_bytes_s(0, 16), 0);
}

/* ---- NVIDIA's library ------------------------------------------------------------------------------------------------------------------ */

static int fake_memory_code;
static struct nvml_memory fake_memory;
static int fake_handle;

static int nv_by_pci(const char *pci, void **ret)
{
    *ret = &fake_handle;
    return strcmp(pci, "0000:01:00.0") == 0 ? 0 : 6;
}
static int nv_memory(void *device, struct nvml_memory *ret)
{
    assert_ptr_equal(device, &fake_handle);
    *ret = fake_memory;
    return fake_memory_code;
}
static int nv_name(void *device, char *ret, unsigned len)
{
    (void)device;
    memset(ret, 'N', len); /* not terminated */
    return 0;
}
static int nv_uuid(void *device, char *ret, unsigned len)
{
    (void)device;
    snprintf(ret, len, "GPU-1\n2");
    return 0;
}
static int nv_driver(char *ret, unsigned len)
{
    snprintf(ret, len, "580.1");
    return 0;
}
static int nv_processes(void *device, unsigned *n, struct nvml_process *ret)
{
    (void)device;
    assert_true(*n >= 3);
    ret[0] = (struct nvml_process){.pid = 7, .used = 100};
    ret[1] = (struct nvml_process){.pid = 8, .used = 1000};
    ret[2] = (struct nvml_process){.pid = 9, .used = UINT64_MAX};
    ret[3] = (struct nvml_process){.pid = 7, .used = 11};
    *n = 4;
    return 0;
}

static void nvidia_s_library(void **state)
{
    (void)state;
    struct hw h;
    struct hw_reader *r = machine("one-3090", &h);
    r->nvml = (struct nvml){.by_pci = nv_by_pci, .memory = nv_memory, .name = nv_name, .uuid = nv_uuid, .processes = nv_processes, .driver = nv_driver};
    r->has_nvml = true;
    fake_memory = (struct nvml_memory){.total = 24576 * MIB, .free = 24000 * MIB, .used = 576 * MIB};
    fake_memory_code = 0;
    assert_int_equal(hw_read(r, &h, NULL), 0);
    const struct hw_device *d = &h.devices[0];
    assert_true(d->memory_known && !d->shared);
    assert_int_equal(d->total_bytes, 24576 * MIB);
    assert_int_equal(d->free_bytes, 24000 * MIB);
    assert_string_equal(d->driver_version, "580.1");
    assert_string_equal(d->uuid, "GPU-1\\x0a2");
    assert_true(strlen(d->name) > 32 && d->name[0] == 'N');
    uint64_t bytes[HW_DEVICES_MAX];
    bool known[HW_DEVICES_MAX];
    hw_process(r, &h, 7, bytes, known);
    assert_true(known[0]);
    assert_int_equal(bytes[0], 111);
    hw_process(r, &h, 9, bytes, known); /* "not available" */
    assert_false(known[0]);

    fake_memory_code = NVML_NOT_SUPPORTED; /* a chip that shares the RAM */
    assert_int_equal(hw_update(r, &h, NULL), 0);
    assert_true(d->shared && d->memory_known);
    assert_int_equal(d->total_bytes, h.host.total_bytes);
    fake_memory_code = 999;
    assert_int_equal(hw_update(r, &h, NULL), 0);
    assert_false(d->memory_known);
    hw_close(r);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------------------ */

static void memory_ends_anywhere(void **state)
{
    (void)state;
#if FAILING_MALLOC
    unpack("two-r9700");
    struct hw h;
    for (long n = 0;; n++) {
        bool failed;
        struct hw_reader *r = NULL;
        failing_arm(n);
        int code = hw_open(folder, &r, NULL);
        if (code == 0)
            code = hw_read(r, &h, NULL);
        hw_close(r);
        long live = failing_disarm(&failed);
        if (live != 0)
            fail_msg("call %ld: %ld blocks leak", n, live);
        if (!failed) {
            assert_int_equal(code, 0);
            break;
        }
        /* a file that cannot be held is as one that is not there */
        assert_true(code == 0 || code == -ENOMEM || code == -ENOENT);
    }
#else
    skip();
#endif
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        CASE(two_cards), CASE(readings_change), CASE(what_a_process_holds), CASE(a_shared_pool), CASE(a_card_without_its_library), CASE(a_mixed_machine), CASE(a_bare_machine),
        CASE(no_memory_figures), CASE(this_machine), CASE(files_that_say_nonsense), CASE(more_cards_than_fit), CASE(links), CASE(nvidia_s_library), CASE(memory_ends_anywhere),
    };
    return cmocka_run_group_tests_name("hw", tests, NULL, NULL);
}
