/* SPDX-License-Identifier: MIT
 *
 * Judges of what only a running machine can tell, given what it would tell: Podman, an account without root, units, and files of ROCm's libraries in a runtime's tree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "machine.h"

#include "../../src/doctor/account.c"
#include "../../src/doctor/runtime.c"

#define take podman_take /* both have one */
#define judge podman_judge_facts
#undef IDS_WANTED
#include "../../src/doctor/podman.c"

static struct doctor d;
static struct doctor_report report;
static struct doctor_options options;
static const struct fleet_host home = {.name = "here", .scope = FLEET_USER}, box = {.name = "here", .scope = FLEET_SYSTEM};
static const struct fleet_runtime rt = {.name = "llama", .engine = "llama.cpp"};
static struct fleet_service services[1];
static const struct fleet with_quadlet = {.name = "home", .services = services, .n_services = 1};

static int begin(void **state)
{
    if (make_folder(state) < 0)
        return -1;
    memset(&report, 0, sizeof report);
    options = (struct doctor_options){.root = folder, .fleet = &with_quadlet, .host = &home};
    services[0] = (struct fleet_service){.name = "s", .host = &home, .runtime = &rt, .unit = FLEET_QUADLET};
    d = (struct doctor){.o = &options, .r = &report, .arena = arena_new(DOCTOR_MEMORY), .uid = 1000};
    return d.arena && hw_open(folder, &d.reader, NULL) == 0 ? 0 : -1;
}

static int finish(void **state)
{
    assert_false(d.failed);
    hw_close(d.reader);
    arena_free(d.arena);
    return remove_folder(state);
}

static void make(const char *path, const char *text)
{
    struct buf full = BUF_INIT(4096);
    const char *slash = strrchr(path, '/');
    buf_addf(&full, "%s/%.*s", folder, (int)(slash - path), path);
    assert_int_equal(os_make_dirs(full.ptr, 0755, NULL), 0);
    buf_release(&full);
    put(path, text);
}

static void has(enum doctor_level level, const char *topic, const char *part)
{
    for (size_t i = 0; i < d.n; i++)
        if (d.list[i].level == level && strcmp(d.list[i].topic, topic) == 0 && strstr(d.list[i].what, part))
            return;
    for (size_t i = 0; i < d.n; i++)
        print_message("# %s %s %s: %s\n", doctor_level_text(d.list[i].level), d.list[i].topic, d.list[i].where, d.list[i].what);
    fail_msg("no %s of %s: %s", doctor_level_text(level), topic, part);
}

/* ---- podman ------------------------------------------------------------------------------------------------------- */

static struct podman_facts sound(void)
{
    return (struct podman_facts){.version = "5.4.2", .cgroups = "v2", .manager = "systemd", .driver = "overlay", .runtime = "crun", .rootless = true, .socket = true, .cpu = true, .memory = true, .pids = true, .ids = 65537};
}

static void podman_in_order(void **state)
{
    (void)state;
    struct podman_facts f = sound();
    podman_judge_facts(&d, &f, DOCTOR_BAD);
    assert_int_equal(d.n, 1);
    has(DOCTOR_OK, "podman", "rootless, cgroups v2 by systemd, overlay, crun, user socket");
}

static void podman_not_in_order(void **state)
{
    (void)state;
    struct podman_facts f = sound();
    snprintf(f.version, sizeof f.version, "4.3.1");
    snprintf(f.cgroups, sizeof f.cgroups, "v1");
    snprintf(f.manager, sizeof f.manager, "cgroupfs");
    snprintf(f.driver, sizeof f.driver, "vfs");
    f.ids = 1;
    f.pids = false;
    podman_judge_facts(&d, &f, DOCTOR_BAD);
    has(DOCTOR_BAD, "podman", "this version has no quadlets");
    has(DOCTOR_BAD, "podman", "it runs with cgroups v1");
    has(DOCTOR_WARN, "podman", "cgroups are managed by 'cgroupfs'");
    has(DOCTOR_BAD, "podman", "rootless containers have 1 ids, images need 65536");
    has(DOCTOR_WARN, "podman", "no controller for pids");
    has(DOCTOR_WARN, "podman", "the driver 'vfs'");
    assert_int_equal(d.n, 6);
    assert_false(too_old("4.4.0") || too_old("10.0") || too_old("nonsense"));
    assert_true(too_old("3.9") && too_old("4.3.9"));
}

static void cards_for_containers(void **state)
{
    (void)state;
    report.hw.n_devices = 1;
    report.hw.devices[0] = (struct hw_device){.pci = "0000:01:00.0", .vendor = HW_NVIDIA, .driver = "nvidia", .driver_version = "580.95.05"};
    judge_cdi(&d, DOCTOR_BAD);
    has(DOCTOR_BAD, "podman", "NVIDIA's cards are not described for containers");
    make("etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\n  - hostPath: /usr/lib/libcuda.so.570.1.1\n");
    judge_cdi(&d, DOCTOR_BAD);
    has(DOCTOR_BAD, "podman", "it was made for another driver than 580.95.05");
    size_t before = d.n;
    put("etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\n  - hostPath: /usr/lib/libcuda.so.580.95.05\n");
    judge_cdi(&d, DOCTOR_BAD);
    assert_int_equal(d.n, before);
}

/* ---- an account ------------------------------------------------------------------------------------------------------ */

static void ids(void **state)
{
    (void)state;
    make("etc/subuid", "op:100000:65536\n");
    make("etc/subgid", "op:100000:1000\n");
    judge_ids(&d, "op");
    assert_int_equal(d.n, 1);
    has(DOCTOR_BAD, "podman", "'op' has 1000 ids there, images need 65536");
    assert_string_equal(d.list[0].where, "/etc/subgid");
}

static void lingering(void **state)
{
    (void)state;
    judge_linger(&d, "op");
    has(DOCTOR_BAD, "boot", "'op' does not linger");
    assert_string_equal(d.list[0].todo, "loginctl enable-linger op");
    make("var/lib/systemd/linger/op", "");
    judge_linger(&d, "op");
    has(DOCTOR_OK, "boot", "units of 'op' start at boot");
}

static void delegation(void **state)
{
    (void)state;
    judge_delegation(&d); /* no user manager: nothing is said */
    assert_int_equal(d.n, 0);
    make("sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers", "cpu pids\n");
    judge_delegation(&d);
    assert_int_equal(d.n, 1);
    has(DOCTOR_WARN, "cgroup", "the controller 'memory' is not delegated");
}

static void units_at_boot(void **state)
{
    (void)state;
    options.host = services[0].host = &box;
    services[0].unit = FLEET_SYSTEMD;
    judge_enabled(&d); /* not deployed yet */
    assert_int_equal(d.n, 0);
    make("etc/systemd/system/berth-home-s.service", "[Unit]\n");
    judge_enabled(&d);
    has(DOCTOR_BAD, "boot", "is installed and not enabled");
    size_t before = d.n;
    make("etc/systemd/system/multi-user.target.wants/berth-home-s.service", "[Unit]\n");
    judge_enabled(&d);
    assert_int_equal(d.n, before);
}

/* ---- a runtime's files ---------------------------------------------------------------------------------------------- */

static void files_for_the_card(void **state)
{
    (void)state;
    const struct store_runtime r = {.root = folder};
    judge_one(&d, &rt, &r, "gfx1201");
    assert_int_equal(d.n, 0); /* it has no such library: nothing is wrong */
    make("lib/librocblas.so.4", "");
    make("lib/rocblas/library/TensileLibrary_lazy_gfx1100.dat", "");
    make("lib/rocblas/library/Kernels.so-000-gfx1200.hsaco", "");
    make("lib/libhipblaslt.so.0", "");
    make("lib/hipblaslt/library/gfx1100/TensileLibrary.dat", "");
    judge_one(&d, &rt, &r, "gfx1201");
    has(DOCTOR_BAD, "runtime", "its rocBLAS has no files for gfx1201");
    has(DOCTOR_WARN, "runtime", "its hipBLASLt has no files for gfx1201");
    d.n = 0;
    judge_one(&d, &rt, &r, "gfx110"); /* a name within another one is none */
    has(DOCTOR_BAD, "runtime", "its rocBLAS has no files for gfx110");
    d.n = 0;
    judge_one(&d, &rt, &r, "gfx1100");
    assert_int_equal(d.n, 1);
    has(DOCTOR_OK, "runtime", "rocBLAS has its files for gfx1100");
}

static void taken_for_another(void **state)
{
    (void)state;
    static const char *const env[] = {"A=1", "HSA_OVERRIDE_GFX_VERSION=11.0.2"}, *const bad[] = {"HSA_OVERRIDE_GFX_VERSION=11.x"};
    char gfx[16] = "";
    assert_true(taken_for(&(struct fleet_service){.env = env, .n_env = 2}, gfx));
    assert_string_equal(gfx, "gfx1102");
    assert_false(taken_for(&(struct fleet_service){.env = bad, .n_env = 1}, gfx));
    assert_false(taken_for(&(struct fleet_service){.n_env = 0}, gfx));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(podman_in_order), CASE(podman_not_in_order), CASE(cards_for_containers), CASE(ids), CASE(lingering), CASE(delegation), CASE(units_at_boot), CASE(files_for_the_card), cmocka_unit_test(taken_for_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
