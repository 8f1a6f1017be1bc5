/* SPDX-License-Identifier: MIT
 *
 * What a doctor finds on the recorded machines of test/hw, with and without a fleet file that speaks of them; collectives and their proofs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "machine.h"

#include <doctor/doctor_int.h>
#include <errno.h>
#include <unistd.h>

static const char *const engines[] = {"llama.cpp", "vllm", "generic"};
static const struct fleet_options known = {.engines = engines, .n_engines = BASE_COUNT(engines)};

static struct fleet *fleet(const char *devices)
{
    struct buf b = BUF_INIT(65536);
    struct fleet *f = NULL;
    struct err err;
    buf_addf(&b, "version: 1\nname: home\nhosts:\n  here:\n    devices:\n%sruntimes:\n  llama: {engine: llama.cpp, source: system}\nmodels:\n  m: {source: file:models, weights: m.gguf}\nservices:\n  s: {host: here, runtime: llama, model: m, port: 7770}\n", devices);
    if (fleet_parse(buf_str(&b), "fleet.yaml", &known, &f, &err) < 0)
        fail_msg("%s", err.text);
    buf_release(&b);
    return f;
}

static struct doctor_report *look_with(const struct fleet *f, struct ledger *l)
{
    struct doctor_report *r = NULL;
    struct err err;
    const struct doctor_options o = {.root = folder, .fleet = f, .host = f ? &f->hosts[0] : NULL, .ledger = l};
    if (doctor_look(&o, &r, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 1; i < r->n; i++)
        assert_true(r->findings[i - 1].level >= r->findings[i].level); /* worst first */
    return r;
}

static struct doctor_report *look_at(const char *machine)
{
    unpack(machine);
    return look_with(NULL, NULL);
}

/* The finding about that topic and place whose text has that part. */
static const struct doctor_finding *find(const struct doctor_report *r, const char *topic, const char *where, const char *part)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->findings[i].topic, topic) == 0 && strcmp(r->findings[i].where, where) == 0 && strstr(r->findings[i].what, part))
            return &r->findings[i];
    return NULL;
}

static void has(const struct doctor_report *r, enum doctor_level level, const char *topic, const char *where, const char *part)
{
    const struct doctor_finding *f = find(r, topic, where, part);
    if (!f) {
        for (size_t i = 0; i < r->n; i++)
            print_message("# %s %s %s: %s\n", doctor_level_text(r->findings[i].level), r->findings[i].topic, r->findings[i].where, r->findings[i].what);
        fail_msg("nothing about %s %s: %s", topic, where, part);
    }
    if (f->level != level)
        fail_msg("%s %s is %s", topic, where, doctor_level_text(f->level));
    if (level >= DOCTOR_WARN)
        assert_true(*f->why && *f->todo); /* what is wrong says why it matters and what to do */
}

static size_t count(const struct doctor_report *r, enum doctor_level level)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += r->findings[i].level == level;
    return n;
}

/* ---- machines --------------------------------------------------------------------------------------------------- */

static void behind_the_chipset(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("chipset-x4");
    has(r, DOCTOR_WARN, "atomics", "0000:0c:00.0", "stop at 0000:04:00.0: that port of a switch or chipset hands none on");
    has(r, DOCTOR_OK, "atomics", "0000:03:00.0", "come through");
    has(r, DOCTOR_OK, "way", "0000:03:00.0", "gen4 x16 to the CPU, 31.5 GB/s");
    has(r, DOCTOR_NOTE, "way", "0000:0c:00.0", "gen4 x4 at 0000:00:02.1: 7.9 GB/s, the card itself could take 31.5 GB/s");
    has(r, DOCTOR_NOTE, "collectives", "here", "unproven");
    has(r, DOCTOR_OK, "card", "0000:03:00.0", "gfx1100, VBIOS 113-D7020100-102, smc 0x004e7e00, mes 0x00000084, mec 0x000001fc, 303 W of 348");
    has(r, DOCTOR_OK, "kernel", "here", "6.12.48+deb13-amd64, iommu=pt");
    has(r, DOCTOR_OK, "log", "kernel", "no GPU fault");
    assert_int_equal(count(r, DOCTOR_BAD), 0);
    assert_int_equal(count(r, DOCTOR_WARN), 1);
    assert_int_equal(doctor_worst(r), DOCTOR_WARN);
    doctor_free(r);
}

static void several_cards_behind_an_iommu(void **state)
{
    (void)state;
    unpack("chipset-x4");
    put("proc/cmdline", "root=/dev/sda1 ro nomodeset\n");
    struct doctor_report *r = look_with(NULL, NULL);
    has(r, DOCTOR_NOTE, "kernel", "here", "the IOMMU is not told to let them pass");
    doctor_free(r);
    put("proc/cmdline", "root=/dev/sda1 amd_iommu=off\n");
    r = look_with(NULL, NULL);
    assert_null(find(r, "kernel", "here", "IOMMU"));
    doctor_free(r);
}

static void a_riser(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("riser");
    has(r, DOCTOR_WARN, "way", "0000:00:01.1", "the link to 0000:01:00.0 runs at gen3 while the card works (97 %), both ends can do gen5");
    has(r, DOCTOR_WARN, "card", "0000:03:00.0", "the CPU sees 256.00 MiB of its 31.86 GiB: resizable BAR is off");
    has(r, DOCTOR_WARN, "log", "0000:01:00.0", "the PCIe link had errors, which were corrected (2 times, last 2h 31m after boot)");
    has(r, DOCTOR_BAD, "log", "0000:03:00.0", "the GPU hung: a ring timed out (1 time, llama-server, 2h 33m after boot)");
    has(r, DOCTOR_WARN, "log", "0000:03:00.0", "the GPU was reset (1 time, 2h 33m after boot)");
    has(r, DOCTOR_WARN, "log", "kernel", "at its cgroup's limit (1 time, llama-server, 2h 35m after boot)");
    has(r, DOCTOR_OK, "atomics", "0000:03:00.0", "come through");
    assert_null(find(r, "collectives", "here", "")); /* one card works alone */
    assert_int_equal(doctor_worst(r), DOCTOR_BAD);
    doctor_free(r);
}

static void a_riser_at_rest(void **state)
{
    (void)state;
    static const char card[] = "sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0/gpu_busy_percent";
    unpack("riser");
    put(card, "0\n");
    struct doctor_report *r = look_with(NULL, NULL);
    has(r, DOCTOR_NOTE, "way", "0000:00:01.1", "is at gen3 at this moment, both ends can do gen5");
    doctor_free(r);
    /* asleep: as slow as a link can be, and nothing is wrong */
    put("sys/devices/pci0000:00/0000:00:01.1/current_link_speed", "2.5 GT/s PCIe\n");
    put("sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/current_link_speed", "2.5 GT/s PCIe\n");
    r = look_with(NULL, NULL);
    has(r, DOCTOR_OK, "way", "0000:03:00.0", "gen5 x16 to the CPU, 63.0 GB/s");
    doctor_free(r);
    /* lanes that are lost are lost at rest too */
    put("sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/current_link_width", "8\n");
    r = look_with(NULL, NULL);
    has(r, DOCTOR_WARN, "way", "0000:00:01.1", "the link to 0000:01:00.0 has 8 of 16 lanes that both ends could use");
    doctor_free(r);
}

static void no_atomics(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("no-atomics");
    has(r, DOCTOR_BAD, "log", "kernel", "ROCm's driver refuses a card: no PCIe atomics");
    has(r, DOCTOR_WARN, "atomics", "0000:01:00.0", "stop at 0000:00:1c.0: the port at the CPU does not carry them out");
    has(r, DOCTOR_NOTE, "card", "0000:01:00.0", "ROCm's driver does not know it");
    has(r, DOCTOR_NOTE, "way", "0000:01:00.0", "gen3 x2 at 0000:00:1c.0: 2.0 GB/s, the card itself could take 15.8 GB/s");
    doctor_free(r);
}

static void a_shared_pool(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("strix-halo");
    has(r, DOCTOR_WARN, "pool", "0000:c5:00.0", "amdgpu.gttsize allows 120.00 GiB, but ttm.pages_limit ends the pool at 62.64 GiB");
    const struct doctor_finding *f = find(r, "pool", "0000:c5:00.0", "gttsize");
    assert_non_null(strstr(f->todo, "ttm.pages_limit=30670848 on the kernel command line (117.00 GiB)"));
    assert_null(find(r, "atomics", "0000:c5:00.0", ""));
    assert_null(find(r, "way", "0000:c5:00.0", ""));
    doctor_free(r);
    /* the driver's own figure goes beyond what all drivers together may have: the pool ends before */
    put("sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0/mem_info_gtt_total", "128849018880\n");
    r = look_with(NULL, NULL);
    assert_int_equal(r->hw.devices[0].total_bytes, (512ull << 20) + 67263528960);
    doctor_free(r);
    put("sys/module/ttm/parameters/pages_limit", "31457280\n");
    r = look_with(NULL, NULL);
    assert_int_equal(r->hw.devices[0].total_bytes, (512ull << 20) + 128849018880);
    has(r, DOCTOR_OK, "pool", "0000:c5:00.0", "the GPU shares the RAM: 120.50 GiB of 125.29 GiB");
    doctor_free(r);
}

static void a_pool_of_half_the_ram(void **state)
{
    (void)state;
    unpack("strix-halo");
    put("sys/module/amdgpu/parameters/gttsize", "-1\n");
    struct doctor_report *r = look_with(NULL, NULL);
    has(r, DOCTOR_NOTE, "pool", "0000:c5:00.0", "the GPU's pool ends at 63.14 GiB of 125.29 GiB of RAM (carve-out 512.00 MiB)");
    doctor_free(r);
}

static void a_card_that_fell_off(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("one-3090");
    has(r, DOCTOR_BAD, "log", "0000:01:00.0", "Xid 79: the card fell off the bus (1 time, llama-server, 2h 13m after boot)");
    has(r, DOCTOR_WARN, "log", "0000:01:00.0", "Xid 31: a program on the card touched memory that is not its own");
    has(r, DOCTOR_WARN, "way", "0000:00:01.0", "has 8 of 16 lanes");
    doctor_free(r);
}

static void a_virtual_machine(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("bare");
    has(r, DOCTOR_NOTE, "card", "here", "there is no card that engines compute on");
    assert_int_equal(count(r, DOCTOR_BAD) + count(r, DOCTOR_WARN), 0);
    assert_int_equal(r->n, 3); /* the card, kernel, swap: what is not recorded is not judged */
    doctor_free(r);
    put("proc/meminfo", "MemTotal: 4023456 kB\nMemAvailable: 1000000 kB\nSwapTotal: 4194304 kB\nSwapFree: 1048576 kB\nHugePages_Total:     512\nHugepagesize:       2048 kB\n");
    r = look_with(NULL, NULL);
    has(r, DOCTOR_WARN, "swap", "here", "3.00 GiB of 4.00 GiB are in use");
    has(r, DOCTOR_WARN, "hugepages", "here", "1.00 GiB of RAM are set aside");
    doctor_free(r);
    struct err err;
    const struct doctor_options o = {.root = "/nowhere"};
    assert_int_equal(doctor_look(&o, &r, &err), -ENOENT);
}

static void drivers(void **state)
{
    (void)state;
    struct doctor_report *r = look_at("mixed");
    has(r, DOCTOR_NOTE, "card", "0000:04:00.0", "given away (vfio-pci)");
    has(r, DOCTOR_NOTE, "card", "0000:06:00.0", "the driver 'xe' does not tell its memory");
    assert_null(find(r, "collectives", "here", "")); /* one card of AMD's is not integrated */
    doctor_free(r);
    char path[512];
    snprintf(path, sizeof path, "%s/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/driver", folder);
    assert_int_equal(unlink(path), 0);
    put("proc/cmdline", "quiet nomodeset");
    r = look_with(NULL, NULL);
    has(r, DOCTOR_BAD, "card", "0000:01:00.0", "no driver is bound to it");
    assert_non_null(strstr(find(r, "card", "0000:01:00.0", "no driver")->todo, "nomodeset"));
    doctor_free(r);
}

static void accelerators_of_others(void **state)
{
    (void)state;
    unpack("two-r9700"); /* its board's display controller is not told */
    static const char at[] = "sys/devices/pci0000:00/0000:0a:00.0";
    char path[128];
    struct doctor_report *r = look_with(NULL, NULL);
    assert_null(find(r, "card", "0000:0a:00.0", ""));
    doctor_free(r);
    snprintf(path, sizeof path, "%s/class", at);
    put(path, "0x120000\n");
    r = look_with(NULL, NULL);
    has(r, DOCTOR_NOTE, "card", "0000:0a:00.0", "1a03:2000 is an accelerator of a maker that berth knows no engine for");
    doctor_free(r);
    put(path, "0x12zz00\n");
    r = look_with(NULL, NULL);
    assert_null(find(r, "card", "0000:0a:00.0", ""));
    doctor_free(r);
}

/* ---- the inventory ------------------------------------------------------------------------------------------------ */

static void as_declared(void **state)
{
    (void)state;
    unpack("two-r9700");
    struct fleet *f = fleet("      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\", link: 63GB/s}\n      - {name: ROCm0, memory: 32624MiB, pci: \"0000:07:00.0\", link: 7.9GB/s}\n");
    struct doctor_report *r = look_with(f, NULL);
    has(r, DOCTOR_OK, "inventory", "ROCm1", "as declared, at 0000:03:00.0");
    has(r, DOCTOR_OK, "inventory", "ROCm0", "as declared, at 0000:07:00.0");
    assert_int_equal(count(r, DOCTOR_WARN), 0);
    doctor_free(r);
    fleet_free(f);
}

static void drift(void **state)
{
    (void)state;
    unpack("two-r9700");
    struct fleet *f = fleet("      - {name: ROCm0, memory: 47GiB, pci: \"0000:03:00.0\", link: 63GB/s}\n      - {name: ROCm2, memory: 24GiB, pci: \"0000:08:00.0\", link: 31.5GB/s}\n");
    struct doctor_report *r = look_with(f, NULL);
    has(r, DOCTOR_BAD, "inventory", "ROCm0", "is declared with 47.00 GiB and has 31.86 GiB");
    has(r, DOCTOR_WARN, "inventory", "ROCm0", "engines call the card at 0000:03:00.0 'ROCm1'");
    has(r, DOCTOR_BAD, "inventory", "ROCm2", "is declared at 0000:08:00.0 and is not there");
    has(r, DOCTOR_NOTE, "inventory", "0000:07:00.0", "is not declared under 'devices' of host 'here'");
    doctor_free(r);
    fleet_free(f);
    f = fleet("      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"}\n      - {name: ROCm0, memory: 31.86GiB, pci: \"0000:09:00.0\", link: 31.5GB/s}\n");
    r = look_with(f, NULL);
    has(r, DOCTOR_WARN, "inventory", "ROCm0", "is declared at 0000:09:00.0, and seems to have moved to 0000:07:00.0");
    assert_null(find(r, "inventory", "0000:07:00.0", "not declared"));
    doctor_free(r);
    fleet_free(f);
    f = fleet("      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"}\n      - {name: ROCm0, memory: 31.86GiB, pci: \"0000:07:00.0\", link: 31.5GB/s, shared: true}\n");
    r = look_with(f, NULL);
    has(r, DOCTOR_WARN, "inventory", "ROCm0", "its way is declared with 31.5 GB/s and has 7.9 GB/s");
    has(r, DOCTOR_WARN, "inventory", "ROCm0", "its memory is its own");
    doctor_free(r);
    fleet_free(f);
}

/* ---- collectives ---------------------------------------------------------------------------------------------------- */

static void proofs(void **state)
{
    (void)state;
    struct ledger *l = NULL;
    char path[128];
    struct buf key = BUF_INIT(4096), by = BUF_INIT(256);
    struct hw_reader *reader = NULL;
    struct hw h;
    uint64_t at = 1;
    unpack("two-r9700");
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    assert_int_equal(ledger_open(path, &l, NULL), 0);
    assert_int_equal(hw_open(folder, &reader, NULL), 0);
    assert_int_equal(hw_read(reader, &h, NULL), 0);
    hw_close(reader);
    assert_true(doctor_collective_key(&h, NULL, &key));
    assert_string_equal(key.ptr, "0000:03:00.0 1002:7551 gen5x16 amdgpu-6.16.3 31.86 GiB + 0000:07:00.0 1002:7551 gen4x4 amdgpu-6.16.3 31.86 GiB");
    assert_int_equal(doctor_collective_find(l, key.ptr, &at, &by, NULL), 0);
    assert_int_equal(at, 0);
    struct doctor_report *r = look_with(NULL, l);
    has(r, DOCTOR_NOTE, "collectives", "here", "unproven");
    doctor_free(r);

    assert_int_equal(doctor_collective_add(l, key.ptr, "service medium", 0, NULL), 0);
    assert_int_equal(doctor_collective_add(l, key.ptr, "all_reduce_perf", 6.5e9, NULL), 0);
    assert_int_equal(doctor_collective_find(l, key.ptr, &at, &by, NULL), 0);
    assert_true(at > 1600000000000000);
    assert_string_equal(by.ptr, "all_reduce_perf");
    r = look_with(NULL, l);
    has(r, DOCTOR_OK, "collectives", "here", "by all_reduce_perf");
    doctor_free(r);

    /* another driver is another machine */
    put("proc/sys/kernel/osrelease", "6.99.1\n");
    r = look_with(NULL, l);
    has(r, DOCTOR_NOTE, "collectives", "here", "unproven");
    doctor_free(r);

    /* one card is none, and a host may declare fewer than there are */
    struct fleet *f = fleet("      - {name: ROCm1, memory: 31.86GiB, pci: \"0000:03:00.0\"}\n");
    buf_clear(&key);
    assert_false(doctor_collective_key(&h, &f->hosts[0], &key));
    fleet_free(f);
    buf_release(&key);
    buf_release(&by);
    ledger_free(l);
}

static void measurements_of_other_hardware(void **state)
{
    (void)state;
    struct ledger *l = NULL;
    char path[128];
    unpack("two-r9700");
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    assert_int_equal(ledger_open(path, &l, NULL), 0);
    static const char *const rows[] = {
        "ROCm1 0000:03:00.0 1002:7551 gen5x16 amdgpu-6.16.3 31.86 GiB; ROCm0 0000:07:00.0 1002:7551 gen4x4 amdgpu-6.16.3 31.86 GiB; host cpu avx2 32 threads",
        "host cpu avx2 32 threads",
        "emulated",
        "",
    };
    for (size_t i = 0; i < BASE_COUNT(rows); i++)
        assert_int_equal(ledger_add(l, &(struct ledger_row){.kind = "compute", .service = "", .build = "", .model = "", .shape = "", .hardware = rows[i]}, NULL, NULL), 0);
    struct doctor_report *r = look_with(NULL, l);
    assert_null(find(r, "inventory", "ledger", ""));
    doctor_free(r);
    assert_int_equal(ledger_add(l, &(struct ledger_row){.kind = "observed", .service = "", .build = "", .model = "", .shape = "", .hardware = "ROCm0 0000:07:00.0 1002:7551 gen4x16 amdgpu-6.12.1 31.86 GiB; host cpu avx2 32 threads"}, NULL, NULL), 0);
    r = look_with(NULL, l);
    has(r, DOCTOR_NOTE, "inventory", "ledger", "1 of the last 2 measurements are of other hardware: then 0000:07:00.0 1002:7551 gen4x16 amdgpu-6.12.1 31.86 GiB, now 0000:07:00.0 1002:7551 gen4x4 amdgpu-6.16.3 31.86 GiB");
    doctor_free(r);
    ledger_free(l);
}

#define RANKS "# nThread 1 nGpus 2 minBytes 8388608 maxBytes 134217728 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
#define FIGURES "#       size         count      type   redop    root     time   algbw   busbw #wrong\n     8388608       2097152     float     sum      -1   1300.1    6.45    6.45      0\n"

static void what_a_test_printed(void **state)
{
    (void)state;
    static const struct {
        const char *text, *err;
    } cases[] = {
        {RANKS "#  Rank  0 Group  0 Pid   4711 on box device  0 [0000:03:00] AMD Radeon AI PRO R9700\n#  Rank  1 Group  0 Pid   4711 on box device  1 [0000:07:00] AMD Radeon AI PRO R9700\n#\n" FIGURES "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.5123\n#\n", NULL},
        {RANKS "#  Rank  0 Pid   4711 on box device  0 [0x03] AMD\n#  Rank  1 Pid   4711 on box device  1 [0x07] AMD\n" FIGURES "# Errors with asterisks indicate errors\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.5123 \n", NULL},
        {RANKS "#  Rank  0 Group  0 Pid   4711 on box device  0 [0000:03:00] AMD\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.5\n", "the test did not run on 0000:07:00.0: give it as many GPUs as the host has (-g)"},
        {RANKS "#  Rank  0 [0000:03:00] A\n#  Rank  1 [0000:07:00] B\n# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 6.5\n", "3 values were wrong"},
        {RANKS "#  Rank  0 [0000:03:00] A\n#  Rank  1 [0000:07:00] B\n# Avg bus bandwidth    : 6.5\n", "the test did not say how many of its values were wrong ('# Out of bounds values'): run it with checks (-c 1)"},
        {RANKS "#  Rank  0 [0000:03:00] A\n#  Rank  1 [0000:07:00] B\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n", "the test did not say its average ('# Avg bus bandwidth')"},
        {RANKS "#  Rank  0 [0000:03:00] A\n#  Rank  1 [0000:07:00] B\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.5123\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 9.5\n", NULL},
        {RANKS "#  Rank  0 [0000:03:00] A\n#  Rank  1 [0000:07:00] B\n# Out of bounds values : 5 FAILED\n# Avg bus bandwidth    : 6.5\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.5\n", "5 values were wrong"},
        {RANKS "#  Rank  0 [0000:03:00] A\n#  Rank  1 [0000:07:00] B\n# Out of bounds values : nan\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.5\n",
         "the test did not say how many of its values were wrong ('# Out of bounds values'): run it with checks (-c 1)"},
        {"hello\n", "the test did not run on 0000:03:00.0: give it as many GPUs as the host has (-g)"},
        {"", "the test did not run on 0000:03:00.0: give it as many GPUs as the host has (-g)"},
    };
    struct hw h = {.n_devices = 2, .devices = {{.pci = "0000:03:00.0", .vendor = HW_AMD, .driver = "amdgpu"}, {.pci = "0000:07:00.0", .vendor = HW_AMD, .driver = "amdgpu"}}};
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        double rate = 0;
        struct err err;
        int r = doctor_collective_read(str_of(cases[i].text), &h, NULL, &rate, &err);
        if (cases[i].err) {
            assert_int_equal(r, -EBADMSG);
            assert_string_equal(err.text, cases[i].err);
        } else {
            assert_int_equal(r, 0);
            assert_true(rate > 6.512e9 && rate < 6.513e9);
        }
    }
}

/* ---- the firewall -------------------------------------------------------------------------------------------- */

static struct doctor_report *look_behind(const char *file, const char *rules, bool wide)
{
    struct err err;
    struct fleet *f = NULL;
    struct buf text = BUF_INIT(4096);
    put(file, rules);
    buf_addf(&text, "version: 1\nname: home\nruntimes:\n  own: {engine: generic, source: system}\nservices:\n  s: {runtime: own, port: 7770, command: [serve]}\nrouter: {listen: \"%s:8080\"%s}\n", wide ? "10.0.0.7" : "127.0.0.1",
             wide ? ", keys-file: /etc/berth/keys" : "");
    if (fleet_parse(buf_str(&text), "fleet.yaml", &known, &f, &err) < 0)
        fail_msg("%s", err.text);
    buf_release(&text);
    struct doctor_report *r = look_with(f, NULL);
    fleet_free(f);
    return r;
}

static void firewalls(void **state)
{
    (void)state;
    unpack("bare");
    struct doctor_report *r = look_with(NULL, NULL);
    assert_null(find(r, "firewall", "here", ""));
    doctor_free(r);
    r = look_behind("nft", "table inet f {\n\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n\t\tiif \"lo\" accept\n\t\tip saddr 10.0.0.0/8 tcp dport 8080 accept\n\t}\n}\n", true);
    has(r, DOCTOR_NOTE, "firewall", "port 8080", "what asks the router from elsewhere passes line");
    assert_null(find(r, "firewall", "port 7770", ""));
    doctor_free(r);
    r = look_behind("nft", "table inet f {\n\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n\t\tiif \"eth0\" accept\n\t\ttcp dport 22 accept\n\t}\n}\n", true);
    has(r, DOCTOR_BAD, "firewall", "port 7770", "the probe of service 's' is stopped by line 2 of nft");
    has(r, DOCTOR_BAD, "firewall", "port 8080", "what asks the router from here is stopped by line 2 of nft");
    doctor_free(r);
    r = look_behind("nft", "", false);
    has(r, DOCTOR_OK, "firewall", "here", "2 ways through nft");
    doctor_free(r);
    r = look_behind("nft", "table inet f {\n\tchain input {\n", false);
    has(r, DOCTOR_NOTE, "firewall", "here", "its rules cannot be judged");
    doctor_free(r);
    char path[96];
    snprintf(path, sizeof path, "%s/nft", folder);
    assert_int_equal(unlink(path), 0);
    r = look_behind("iptables-save", "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp --dport 8080 -j ACCEPT\nCOMMIT\n", true);
    has(r, DOCTOR_BAD, "firewall", "port 7770", "the probe of service 's' is stopped by line 2 of iptables-save");
    assert_null(find(r, "firewall", "port 8080", ""));
    doctor_free(r);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(behind_the_chipset), CASE(several_cards_behind_an_iommu), CASE(a_riser), CASE(a_riser_at_rest), CASE(no_atomics), CASE(a_shared_pool), CASE(a_pool_of_half_the_ram), CASE(a_card_that_fell_off), CASE(a_virtual_machine),
        CASE(drivers), CASE(accelerators_of_others), CASE(as_declared), CASE(drift), CASE(proofs), CASE(measurements_of_other_hardware), CASE(firewalls), cmocka_unit_test(what_a_test_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
