/* SPDX-License-Identifier: MIT
 *
 * The machine beside its cards: kernel and its command line, limits, swap, huge pages, cgroups, time.
 */
#include "doctor_int.h"

#include <string.h>
#include <sys/timex.h>

#define LOCK_LEAST (1ull << 30) /* bytes: under it no model can be locked */

/* ---- parsers ------------------------------------------------------------------------------------------------------------- */

/* "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw" */
unsigned host_cgroups(struct str mountinfo)
{
    bool one = false, several = false;
    while (mountinfo.ptr) {
        struct str line = str_split(&mountinfo, '\n');
        ptrdiff_t at = str_find(line, STR(" - "));
        if (at < 0)
            continue;
        struct str head = {line.ptr, (size_t)at}, type = {line.ptr + at + 3, line.len - (size_t)at - 3}, point = {NULL, 0};
        for (unsigned i = 0; i < 5 && head.ptr; i++)
            point = str_split(&head, ' ');
        type = str_split(&type, ' ');
        one = one || (str_eq_c(type, "cgroup2") && str_eq_c(point, "/sys/fs/cgroup"));
        several = several || str_eq_c(type, "cgroup");
    }
    return several ? 1 : one ? 2 : 0;
}

bool host_limit(struct str limits, const char *name, uint64_t *ret)
{
    while (limits.ptr) {
        struct str line = str_split(&limits, '\n');
        if (!str_starts(line, str_of(name)))
            continue;
        struct str rest = str_trim((struct str){line.ptr + strlen(name), line.len - strlen(name)}), soft = str_split(&rest, ' ');
        if (str_eq_c(soft, "unlimited")) {
            *ret = UINT64_MAX;
            return true;
        }
        return str_to_u64(soft, ret) == 0;
    }
    return false;
}

bool host_word(struct str cmdline, const char *name, struct str *ret)
{
    size_t n = strlen(name);
    while (cmdline.ptr) {
        struct str word = str_split(&cmdline, ' ');
        if (!str_starts(word, str_of(name)) || (word.len > n && word.ptr[n] != '='))
            continue;
        *ret = word.len > n ? (struct str){word.ptr + n + 1, word.len - n - 1} : (struct str){word.ptr + n, 0};
        return true;
    }
    return false;
}

static uint64_t meminfo(struct str text, const char *key)
{
    size_t n = strlen(key);
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        if (!str_starts(line, str_of(key)) || line.len == n || line.ptr[n] != ':')
            continue;
        struct str rest = str_trim((struct str){line.ptr + n + 1, line.len - n - 1});
        uint64_t v = 0;
        return str_to_u64(str_split(&rest, ' '), &v) == 0 ? v : 0;
    }
    return 0;
}

/* ---- judges ----------------------------------------------------------------------------------------------------------------- */

static unsigned discrete(const struct doctor *d)
{
    unsigned n = 0;
    for (size_t i = 0; i < d->r->hw.n_devices; i++)
        n += !d->r->hw.devices[i].shared;
    return n;
}

static void judge_kernel(struct doctor *d)
{
    base_autobuf struct buf b = BUF_INIT(DOCTOR_FILE_MAX), rocm = BUF_INIT(4096), shown = BUF_INIT(1024);
    struct str cmdline = doctor_file(d, "proc/cmdline", &b), value;
    struct str version = doctor_file(d, "opt/rocm/.info/version", &rocm);
    static const char *const told[] = {"iommu", "amd_iommu", "intel_iommu", "amdgpu.gttsize", "ttm.pages_limit", "pci", "pcie_aspm", "amdgpu.runpm", "amdgpu.lockup_timeout", "nomodeset", "hugepages"};
    buf_addf(&shown, "%s", *d->r->hw.host.kernel ? d->r->hw.host.kernel : "unknown kernel");
    if (version.len) {
        buf_add_c(&shown, ", ROCm ");
        buf_add_printable(&shown, version, 40);
    }
    for (size_t i = 0; i < BASE_COUNT(told); i++)
        if (host_word(cmdline, told[i], &value)) {
            buf_addf(&shown, ", %s%s", told[i], value.len ? "=" : "");
            buf_add_printable(&shown, value, 40);
        }
    doctor_say(d, DOCTOR_OK, "kernel", "here", "", "", "%s", buf_status(&shown) == 0 ? shown.ptr : "");
    bool passes = host_word(cmdline, "iommu", &value) && str_eq_c(value, "pt");
    bool off = (host_word(cmdline, "iommu", &value) || host_word(cmdline, "amd_iommu", &value) || host_word(cmdline, "intel_iommu", &value)) && str_eq_c(value, "off");
    if (cmdline.len && discrete(d) > 1 && !passes && !off)
        doctor_say(d, DOCTOR_NOTE, "kernel", "here", "each transfer between cards is translated by the IOMMU, and collectives may hang on it", "put iommu=pt on the kernel command line", "several cards, and the IOMMU is not told to let them pass");
}

static void judge_locked(struct doctor *d)
{
    base_autobuf struct buf b = BUF_INIT(DOCTOR_FILE_MAX);
    uint64_t n = 0;
    char text[UNITS_TEXT];
    if (!host_limit(doctor_file(d, "proc/self/limits", &b), "Max locked memory", &n))
        return;
    bool wanted = false;
    for (size_t i = 0; d->o->fleet && i < d->o->fleet->n_services; i++) {
        const struct fleet_service *s = &d->o->fleet->services[i];
        for (size_t k = 0; s->host == d->o->host && s->unit == FLEET_CHILD && k < s->n_args; k++)
            wanted = wanted || strcmp(s->args[k], "--mlock") == 0;
    }
    if (n == UINT64_MAX)
        doctor_say(d, DOCTOR_OK, "memlock", "here", "", "", "memory may be locked without limit");
    else if (n < LOCK_LEAST)
        doctor_say(d, wanted ? DOCTOR_BAD : DOCTOR_OK, "memlock", "here", wanted ? "--mlock of a service of 'berth up' fails: the engine only warns and goes on unlocked" : "",
                   wanted ? "put '* - memlock unlimited' into /etc/security/limits.d/berth.conf and log in again, or make the service a unit, which sets it by itself" : "", "%s may be locked%s", units_show_bytes(n, text),
                   wanted ? "" : "; units set their own limit");
    else
        doctor_say(d, DOCTOR_OK, "memlock", "here", "", "", "%s may be locked", units_show_bytes(n, text));
}

static void judge_memory(struct doctor *d)
{
    const struct hw_host *h = &d->r->hw.host;
    base_autobuf struct buf b = BUF_INIT(DOCTOR_FILE_MAX), thp = BUF_INIT(4096);
    char a[UNITS_TEXT], c[UNITS_TEXT];
    uint64_t used = h->swap_total_bytes - (h->swap_free_bytes < h->swap_total_bytes ? h->swap_free_bytes : h->swap_total_bytes), policy = 0;
    if (h->swap_total_bytes && used > h->swap_total_bytes / 10 && used > (1ull << 30))
        doctor_say(d, DOCTOR_WARN, "swap", "here", "an engine whose pages were put there is slow at each first touch, and RSS hides it", "'berth status' shows each engine's memory; lower prompt-cache or what rests in RAM", "%s of %s are in use", units_show_bytes(used, a),
                   units_show_bytes(h->swap_total_bytes, c));
    else
        doctor_say(d, DOCTOR_OK, "swap", "here", "", "", h->swap_total_bytes ? "%s of %s in use" : "there is none", units_show_bytes(used, a), units_show_bytes(h->swap_total_bytes, c));
    struct str info = doctor_file(d, "proc/meminfo", &b);
    uint64_t pages = meminfo(info, "HugePages_Total"), size = meminfo(info, "Hugepagesize"), kib = 0, bytes = 0;
    if (pages && size_mul(pages, size, &kib) && size_mul(kib, 1024, &bytes) && bytes >= (1ull << 30))
        doctor_say(d, DOCTOR_WARN, "hugepages", "here", "engines do not use them: this memory is lost to models", "vm.nr_hugepages=0, unless a virtual machine wants them", "%s of RAM are set aside as huge pages", units_show_bytes(bytes, a));
    if (str_find(doctor_file(d, "sys/kernel/mm/transparent_hugepage/enabled", &thp), STR("[never]")) >= 0)
        doctor_say(d, DOCTOR_NOTE, "hugepages", "here", "layers on the CPU run some per cent slower", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", "transparent huge pages are off");
    if (doctor_file_u64(d, "proc/sys/vm/overcommit_memory", &policy) && policy == 2)
        doctor_say(d, DOCTOR_WARN, "memory", "here", "engines map models larger than what is promised to them, and fail", "vm.overcommit_memory=0", "the kernel promises no more memory than it has");
}

static void judge_cgroups(struct doctor *d)
{
    base_autobuf struct buf b = BUF_INIT(DOCTOR_FILE_MAX);
    switch (host_cgroups(doctor_file(d, "proc/self/mountinfo", &b))) {
    case 2:
        doctor_say(d, DOCTOR_OK, "cgroup", "here", "", "", "version 2");
        break;
    case 1:
        doctor_say(d, DOCTOR_WARN, "cgroup", "here", "quadlets need version 2, and limits of units count less exactly", "systemd.unified_cgroup_hierarchy=1 on the kernel command line", "version 1, or both at once");
        break;
    default:
        break; /* a container, or a recorded machine: nobody tells */
    }
}

/* Times of the history, of certificates, and of what the router says to clients. */
static void judge_time(struct doctor *d)
{
    struct timex t = {.modes = 0};
    if (!d->live)
        return;
    int state = adjtimex(&t);
    if (state == TIME_ERROR && (t.status & STA_UNSYNC))
        doctor_say(d, DOCTOR_NOTE, "time", "here", "certificates and the history go by it", "timedatectl set-ntp true", "the clock is not kept by a time server");
    else if (state >= 0)
        doctor_say(d, DOCTOR_OK, "time", "here", "", "", "the clock is kept by a time server");
}

void host_judge(struct doctor *d)
{
    judge_kernel(d);
    judge_memory(d);
    judge_locked(d);
    judge_cgroups(d);
    judge_time(d);
}
