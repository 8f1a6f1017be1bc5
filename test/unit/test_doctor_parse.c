/* SPDX-License-Identifier: MIT
 *
 * What a doctor reads that others wrote: kernel log, limits, mounts, ranges of ids, `podman info`.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <doctor/doctor_int.h>
#include <errno.h>
#include <string.h>

static void read_log(struct klog_sum *s, const char *text)
{
    memset(s, 0, sizeof *s);
    klog_add(s, str_of(text));
}

/* ---- kernel log -------------------------------------------------------------------------------------------------- */

static void kinds_of_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum klog_kind kind;
        const char *pci, *process;
        unsigned xid;
    } cases[] = {
        {"3,1,5000000,-;Out of memory: Killed process 23456 (llama-server) total-vm:191234567kB, anon-rss:61234567kB", KLOG_OOM, "", "llama-server", 0},
        {"Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB", KLOG_OOM_GROUP, "", "python3", 0},
        {"amdgpu 0000:c2:00.0: ring gfx_0.0.0 timeout, signaled seq=166926, emitted seq=166928", KLOG_HANG, "0000:c2:00.0", "", 0},
        {"[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=152958, emitted seq=152961", KLOG_HANG, "", "", 0},
        {"amdgpu 0000:07:00.0: amdgpu: GPU reset begin!", KLOG_RESET, "0000:07:00.0", "", 0},
        {"amdgpu 0000:c2:00.0: Starting gfx_0.0.0 ring reset", KLOG_RESET, "0000:c2:00.0", "", 0},
        {"amdgpu 0000:03:00.0: amdgpu: GPU reset end with ret = -110", KLOG_LOST, "0000:03:00.0", "", 0},
        {"amdgpu 0000:03:00.0: amdgpu: device lost from bus!", KLOG_LOST, "0000:03:00.0", "", 0},
        {"amdgpu 0000:0d:00.0: [gfxhub] page fault (src_id:0 ring:24 vmid:4 pasid:10)", KLOG_FAULT, "0000:0d:00.0", "", 0},
        {"kfd kfd: amdgpu: skipped device 1002:67df, PCI rejects atomics 730<0", KLOG_ATOMICS, "", "", 0},
        {"amdgpu 0000:03:00.0: amdgpu: PCIE atomic ops is not supported", KLOG_ATOMICS, "", "", 0},
        {"NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", KLOG_XID, "0000:01:00.0", "<unknown>", 79},
        {"NVRM: Xid (PCI:0000:2b:00): 31, pid=6800, name=llama-server, Ch 00000008", KLOG_XID, "0000:2b:00.0", "llama-server", 31},
        {"NVRM: API mismatch: the client has the version 580.95.05, but", KLOG_MISMATCH, "", "", 0},
        {"pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", KLOG_LINK, "0000:00:01.1", "", 0},
        {"pcieport 0000:00:01.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer", KLOG_LINK, "0000:00:01.1", "", 0},
        {"nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", KLOG_LINK_FATAL, "0000:01:00.0", "", 0},
        {"nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer", KLOG_LINK_FATAL, "0000:01:00.0", "", 0},
        {"mce: [Hardware Error]: Machine check events logged", KLOG_MACHINE, "", "", 0},
    };
    struct klog_sum s;
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        read_log(&s, cases[i].line);
        if (s.n != 1)
            fail_msg("%s", cases[i].line);
        assert_int_equal(s.events[0].kind, cases[i].kind);
        assert_string_equal(s.events[0].pci, cases[i].pci);
        assert_string_equal(s.events[0].process, cases[i].process);
        assert_int_equal(s.events[0].xid, cases[i].xid);
        assert_int_equal(s.events[0].count, 1);
        assert_int_equal(s.events[0].last_us, i == 0 ? 5000000 : 0);
    }
}

static void lines_that_say_nothing(void **state)
{
    (void)state;
    static const char *const lines[] = {"", "\n\n", "6,1,1,-;usb 1-1: new high-speed USB device", "NVRM: Xid (PCI:0000:01:00): x, pid=1", "NVRM: Xid (nothing)", "sshd: ring the bell timeout, signaled seq=", " ring gfx timeout, signaled seq= amdgpu",
                                        "6,1,1,-;amdgpu 0000:03:00.0: amdgpu: 24560M of VRAM memory ready", "NVRM: Xid (PCI:zzzz:01:00): 79, pid=1"};
    struct klog_sum s;
    for (size_t i = 0; i < BASE_COUNT(lines); i++) {
        read_log(&s, lines[i]);
        if (s.n)
            fail_msg("%s", lines[i]);
    }
}

static void the_same_again(void **state)
{
    (void)state;
    struct klog_sum s;
    read_log(&s, "6,1,1000000,-;amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n SUBSYSTEM=pci\n DEVICE=+pci:0000:03:00.0\n6,2,2000000,-;amdgpu 0000:07:00.0: amdgpu: GPU reset begin!\n6,3,9000000,-;amdgpu 0000:03:00.0: amdgpu: GPU reset begin!. Source:  1\n");
    assert_int_equal(s.n, 2);
    assert_int_equal(s.events[0].count, 2);
    assert_int_equal(s.events[0].last_us, 9000000);
    assert_int_equal(s.events[1].count, 1);
    /* who was at work stands on the next line */
    read_log(&s, "amdgpu 0000:c2:00.0: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=2\namdgpu 0000:c2:00.0:  Process llama-server pid 12519 thread llama-server pid 12519\namdgpu 0000:c2:00.0:  Process other pid 1 thread other pid 1\n");
    assert_string_equal(s.events[0].process, "llama-server");
    read_log(&s, "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=2\n[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process vllm pid 333260 thread vllm:cs0 pid 333289\n");
    assert_string_equal(s.events[0].process, "vllm");
}

static void too_many_kinds(void **state)
{
    (void)state;
    struct klog_sum s = {.n = 0};
    for (unsigned i = 0; i < KLOG_EVENTS_MAX + 10; i++) {
        char line[128];
        snprintf(line, sizeof line, "NVRM: Xid (PCI:0000:01:00): %u, pid=1, name=x, y\n", i);
        klog_add(&s, str_of(line));
    }
    assert_int_equal(s.n, KLOG_EVENTS_MAX);
    assert_true(s.more);
}

/* ---- small files -------------------------------------------------------------------------------------------------------- */

static void cgroups(void **state)
{
    (void)state;
    assert_int_equal(host_cgroups(STR("25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")), 2);
    assert_int_equal(host_cgroups(STR("36 25 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n37 25 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")), 1);
    assert_int_equal(host_cgroups(STR("36 25 0:31 / /mnt rw - cgroup2 cgroup2 rw\n")), 0);
    assert_int_equal(host_cgroups(STR("")), 0);
    assert_int_equal(host_cgroups(STR(" - cgroup2")), 0);
}

static void limits(void **state)
{
    (void)state;
    static const char text[] = "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         8388608              8388608              bytes     \nMax address space         unlimited            unlimited            bytes     \nMax nonsense x\n";
    uint64_t n = 0;
    assert_true(host_limit(str_of(text), "Max locked memory", &n));
    assert_int_equal(n, 8388608);
    assert_true(host_limit(str_of(text), "Max address space", &n));
    assert_true(n == UINT64_MAX);
    assert_false(host_limit(str_of(text), "Max nonsense", &n));
    assert_false(host_limit(str_of(text), "Max open files", &n));
}

static void words_of_the_command_line(void **state)
{
    (void)state;
    struct str v;
    struct str line = STR("BOOT_IMAGE=/vmlinuz root=UUID=1-2 ro iommu=pt amdgpu.gttsize=122880 nomodeset");
    assert_true(host_word(line, "iommu", &v) && str_eq_c(v, "pt"));
    assert_true(host_word(line, "amdgpu.gttsize", &v) && str_eq_c(v, "122880"));
    assert_true(host_word(line, "nomodeset", &v) && v.len == 0);
    assert_true(host_word(line, "root", &v) && str_eq_c(v, "UUID=1-2"));
    assert_false(host_word(line, "amdgpu", &v));
    assert_false(host_word(line, "mmu", &v));
}

static void ranges_of_ids(void **state)
{
    (void)state;
    struct str text = STR("root:100000:65536\nop:165536:65536\n1000:300000:1000\nop:400000:200000\nbad:x:y\nop:5000000000:65536\nop\n");
    assert_int_equal(account_range(text, "op", 1000), 200000);
    assert_int_equal(account_range(text, "other", 1000), 1000);
    assert_int_equal(account_range(text, "bad", 7), 0);
    assert_int_equal(account_range(STR(""), "op", 1000), 0);
}

static void podman(void **state)
{
    (void)state;
    static const char text[] = "{\"host\":{\"cgroupControllers\":[\"cpu\",\"memory\",\"pids\"],\"cgroupManager\":\"systemd\",\"cgroupVersion\":\"v2\",\"idMappings\":{\"uidmap\":[{\"container_id\":0,\"host_id\":1000,\"size\":1},"
                               "{\"container_id\":1,\"host_id\":100000,\"size\":65536}]},\"ociRuntime\":{\"name\":\"crun\"},\"remoteSocket\":{\"exists\":true},\"security\":{\"rootless\":true}},\"store\":{\"graphDriverName\":\"overlay\"},"
                               "\"version\":{\"Version\":\"5.4.2\"}}";
    struct podman_facts f;
    struct err err;
    assert_int_equal(podman_parse(str_of(text), &f, &err), 0);
    assert_string_equal(f.version, "5.4.2");
    assert_string_equal(f.cgroups, "v2");
    assert_string_equal(f.manager, "systemd");
    assert_string_equal(f.driver, "overlay");
    assert_string_equal(f.runtime, "crun");
    assert_true(f.rootless && f.socket && f.cpu && f.memory && f.pids);
    assert_int_equal(f.ids, 65537);
    assert_int_equal(podman_parse(STR("{\"host\":[],\"version\":{\"Version\":\"4.3.1\"}}"), &f, &err), 0);
    assert_false(f.rootless || f.memory);
    assert_string_equal(f.driver, "");
    assert_int_equal(podman_parse(STR("{}"), &f, &err), -EBADMSG);
    assert_string_equal(err.text, "it tells no version");
    assert_true(podman_parse(STR("Error: cannot"), &f, &err) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_lines), cmocka_unit_test(lines_that_say_nothing), cmocka_unit_test(the_same_again), cmocka_unit_test(too_many_kinds), cmocka_unit_test(cgroups), cmocka_unit_test(limits),
        cmocka_unit_test(words_of_the_command_line), cmocka_unit_test(ranges_of_ids), cmocka_unit_test(podman),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
